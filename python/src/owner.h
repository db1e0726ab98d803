/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXPY_OWNER_H
#define DLXPY_OWNER_H

/*
 * The owner of a tensor's memory: a count around a managed tensor (of libdlx, or of another
 * library). A dlx.Tensor has one reference, and each DLPack export another, so that the memory
 * stays as long as anything made of it. Exports are deleted on any thread, with or without the GIL,
 * also when the interpreter is gone: nothing here touches Python.
 */

#include <dlpack/dlpack.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dlxpy_owner {
    atomic_uint n_refs;
    DLManagedTensorVersioned *tensor; /* deleted with the last reference; NULL: passed on */
    int64_t *strides;                 /* row-major ones, where the tensor came without */
    bool is_used_on;       /* by streams that consumers named: its end may wait for them */
    struct dlxpy_gpu *gpu; /* of a received tensor on a GPU (gpu.h), in `tensor`; NULL: of others */
};

/* Is its memory that of a GPU, received or allocated by a publisher? */
static inline bool dlxpy_owner_is_on_gpu(const struct dlxpy_owner *owner)
{
    DLDeviceType type = owner->tensor->dl_tensor.device.device_type;
    return type == kDLCUDA || type == kDLROCM;
}

/* Takes `tensor` over, on success. NULL: no memory. */
struct dlxpy_owner *dlxpy_owner_new(DLManagedTensorVersioned *tensor);

void dlxpy_owner_unref(struct dlxpy_owner *owner);

/* Another managed tensor of the same memory. byte_offset is 0, strides are never NULL for ndim > 0.
 * NULL: no memory. */
DLManagedTensorVersioned *dlxpy_owner_export(struct dlxpy_owner *owner);
DLManagedTensor *dlxpy_owner_export_legacy(struct dlxpy_owner *owner);

/* As dlxpy_owner_export(), of a row-major tensor as its `size` bytes. */
DLManagedTensorVersioned *dlxpy_owner_export_bytes(struct dlxpy_owner *owner, size_t size);

/* As dlxpy_owner_export(), of a part that begins `offset` bytes on. The caller fills in `ndim`
 * extents and strides. */
DLManagedTensorVersioned *dlxpy_owner_view(struct dlxpy_owner *owner, int64_t offset, int32_t ndim);

/* The description that an export has, valid as long as the owner has a reference. */
DLTensor dlxpy_owner_describe(const struct dlxpy_owner *owner);

/* A tensor of private memory: row-major, writable, aligned to DLX_ALIGNMENT, its content undefined.
 * `like` gives dtype and shape. NULL: no memory, or too large for any. */
DLManagedTensorVersioned *dlxpy_private_new(const DLTensor *like, bool padded);

/* Copy the elements of `from`, of any strides, into row-major memory. False: it is of a type with
 * parts of bytes, and not row-major. */
bool dlxpy_copy_elements(void *to, const DLTensor *from, bool padded);

bool dlxpy_is_row_major(const DLTensor *t);

#endif
