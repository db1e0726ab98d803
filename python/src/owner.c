/* SPDX-License-Identifier: Apache-2.0 */
#include "owner.h"
#include "dtype.h"
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT 256U

/* ---- owner --------------------------------------------------------------------------------- */

/* Older producers leave strides out where a tensor is row-major. */
static bool fill_strides(struct dlxpy_owner *owner)
{
    DLTensor *t = &owner->tensor->dl_tensor;
    if (t->strides || t->ndim == 0)
        return true;
    owner->strides = malloc((size_t)t->ndim * sizeof *owner->strides);
    if (!owner->strides)
        return false;
    uint64_t stride = 1;
    for (int32_t i = t->ndim; i-- > 0; stride *= t->shape[i] > 1 ? (uint64_t)t->shape[i] : 1)
        owner->strides[i] = (int64_t)stride;
    return true;
}

struct dlxpy_owner *dlxpy_owner_new(DLManagedTensorVersioned *tensor)
{
    struct dlxpy_owner *owner = calloc(1, sizeof *owner);
    if (!owner)
        return NULL;
    atomic_init(&owner->n_refs, 1);
    owner->tensor = tensor;
    if (fill_strides(owner))
        return owner;
    free(owner);
    return NULL;
}

void dlxpy_owner_unref(struct dlxpy_owner *owner)
{
    if (!owner || atomic_fetch_sub(&owner->n_refs, 1) != 1)
        return;
    if (owner->tensor && owner->tensor->deleter)
        owner->tensor->deleter(owner->tensor);
    free(owner->strides);
    free(owner);
}

/* ---- exports ------------------------------------------------------------------------------- */

static void delete_versioned(DLManagedTensorVersioned *tensor)
{
    dlxpy_owner_unref(tensor->manager_ctx);
    free(tensor);
}

static void delete_legacy(DLManagedTensor *tensor)
{
    dlxpy_owner_unref(tensor->manager_ctx);
    free(tensor);
}

/* Several importers do not look at byte_offset. */
DLTensor dlxpy_owner_describe(const struct dlxpy_owner *owner)
{
    DLTensor t = owner->tensor->dl_tensor;
    if (t.data)
        t.data = (char *)t.data + t.byte_offset;
    t.byte_offset = 0;
    if (owner->strides)
        t.strides = owner->strides;
    return t;
}

/* Makes a managed tensor with room for `n_dims` numbers after it. NULL: no memory. */
static DLManagedTensorVersioned *export_with(struct dlxpy_owner *owner, size_t n_dims)
{
    DLManagedTensorVersioned *ret = malloc(sizeof *ret + n_dims * sizeof(int64_t));
    if (!ret)
        return NULL;
    atomic_fetch_add(&owner->n_refs, 1);
    *ret = (DLManagedTensorVersioned){
        .version = {DLPACK_MAJOR_VERSION, owner->tensor->version.minor},
        .manager_ctx = owner,
        .deleter = delete_versioned,
        .flags = owner->tensor->flags,
        .dl_tensor = dlxpy_owner_describe(owner),
    };
    return ret;
}

DLManagedTensorVersioned *dlxpy_owner_export(struct dlxpy_owner *owner)
{
    return export_with(owner, 0);
}

DLManagedTensorVersioned *dlxpy_owner_view(struct dlxpy_owner *owner, int64_t offset, int32_t ndim)
{
    DLManagedTensorVersioned *ret = export_with(owner, 2 * (size_t)ndim);
    if (!ret)
        return NULL;
    DLTensor *t = &ret->dl_tensor;
    if (t->data)
        t->data = (char *)t->data + offset;
    t->ndim = ndim;
    t->shape = (int64_t *)(ret + 1);
    t->strides = t->shape + ndim;
    return ret;
}

DLManagedTensorVersioned *dlxpy_owner_export_bytes(struct dlxpy_owner *owner, size_t size)
{
    DLManagedTensorVersioned *ret = dlxpy_owner_view(owner, 0, 1);
    if (!ret)
        return NULL;
    ret->flags &= DLPACK_FLAG_BITMASK_READ_ONLY;
    ret->dl_tensor.dtype = (DLDataType){kDLUInt, 8, 1};
    ret->dl_tensor.shape[0] = (int64_t)size;
    ret->dl_tensor.strides[0] = 1;
    return ret;
}

DLManagedTensor *dlxpy_owner_export_legacy(struct dlxpy_owner *owner)
{
    DLManagedTensor *ret = malloc(sizeof *ret);
    if (!ret)
        return NULL;
    atomic_fetch_add(&owner->n_refs, 1);
    *ret = (DLManagedTensor){
        .dl_tensor = dlxpy_owner_describe(owner), .manager_ctx = owner, .deleter = delete_legacy};
    return ret;
}

/* ---- private memory ------------------------------------------------------------------------ */

struct private
{
    DLManagedTensorVersioned tensor;
    int64_t dims[]; /* shape, strides */
};

static void delete_private(DLManagedTensorVersioned *tensor)
{
    free(tensor->dl_tensor.data);
    free(tensor);
}

DLManagedTensorVersioned *dlxpy_private_new(const DLTensor *like, bool padded)
{
    size_t ndim = (size_t)like->ndim, size = dlxpy_tensor_bytes(like, padded);
    struct private *p = malloc(sizeof *p + 2 * ndim * sizeof p->dims[0]);
    void *data = NULL;
    if (!p || size > PTRDIFF_MAX - ALIGNMENT)
        goto fail;
    if (size > 0)
        data = aligned_alloc(ALIGNMENT, (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    if (size > 0 && !data)
        goto fail;
    uint64_t stride = 1;
    for (size_t i = ndim; i-- > 0;) {
        p->dims[i] = like->shape[i];
        p->dims[ndim + i] = (int64_t)stride;
        stride *= like->shape[i] > 1 ? (uint64_t)like->shape[i] : 1;
    }
    p->tensor = (DLManagedTensorVersioned){
        .version = {DLPACK_MAJOR_VERSION, padded ? 1 : 0},
        .deleter = delete_private,
        .flags = padded ? DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED : 0,
        .dl_tensor = {.data = data,
                      .device = {kDLCPU, 0},
                      .ndim = like->ndim,
                      .dtype = like->dtype,
                      .shape = ndim ? p->dims : NULL,
                      .strides = ndim ? p->dims + ndim : NULL},
    };
    return &p->tensor;
fail:
    free(p);
    return NULL;
}

/* ---- copying ------------------------------------------------------------------------------- */

bool dlxpy_is_row_major(const DLTensor *t)
{
    int64_t stride = 1;
    bool is = true;
    for (int32_t i = t->ndim; i-- > 0;) {
        if (t->shape[i] == 0)
            return true;
        is &= !t->strides || t->shape[i] == 1 || t->strides[i] == stride;
        stride *= t->shape[i];
    }
    return is;
}

static char *copy_strided(char *to, const char *from, const DLTensor *t, int32_t axis, size_t item)
{
    if (axis == t->ndim) {
        memcpy(to, from, item);
        return to + item;
    }
    for (int64_t i = 0; i < t->shape[axis]; i++)
        to = copy_strided(to, from + i * t->strides[axis] * (int64_t)item, t, axis + 1, item);
    return to;
}

bool dlxpy_copy_elements(void *to, const DLTensor *from, bool padded)
{
    const char *data = (const char *)from->data + from->byte_offset;
    size_t size = dlxpy_tensor_bytes(from, padded), item = dlxpy_dtype_bytes(from->dtype);
    if (size == 0)
        return true;
    if (dlxpy_is_row_major(from))
        memcpy(to, data, size);
    else if (item > 0)
        copy_strided(to, data, from, 0, item);
    else
        return false;
    return true;
}
