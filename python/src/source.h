/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXPY_SOURCE_H
#define DLXPY_SOURCE_H

/*
 * Import: an object of another library (or a dlx.Tensor) as a tensor that libdlx can read. In this
 * order: a tensor of ours; a DLPack capsule; the DLPack exchange API of its type; the buffer
 * protocol (bytes, bytearray, array, mmap, memoryview, NumPy); __dlpack__; __array_interface__.
 * Objects on a GPU are asked by __dlpack__ alone, with a stream, and are passed on; other devices
 * are refused.
 */

#include "stream.h"
#include "tensor.h"

#define DLXPY_SOURCE_DIMS 16

struct dlxpy_source {
    /* The tensor for libdlx: `view`, which has no deleter and describes memory that stays until
     * dlxpy_source_end(); or the tensor of `own` itself, which can be passed on; or, on a GPU,
     * `managed`, which libdlx keeps. */
    DLManagedTensorVersioned *tensor;
    DLManagedTensorVersioned view;
    struct dlxpy_tensor *own; /* a reference; it has a user while it is here */
    bool is_again;            /* another source of the same user has it */
    bool on_gpu;              /* of another library, or `own` */

    /* the object that keeps the memory */
    struct dlxpy_owner *owner;
    DLManagedTensorVersioned *managed;
    DLManagedTensor *legacy;
    Py_buffer buffer; /* if buffer.obj */
    PyObject *object;
    int64_t *dims; /* shape and strides, inline_dims unless there are many */
    int64_t inline_dims[DLXPY_SOURCE_DIMS];
};

enum dlxpy_use {
    DLXPY_LOOK,  /* only for its shape and type, on any device */
    DLXPY_COPY,  /* to be copied */
    DLXPY_PASS,  /* to be passed on without a copy if it may be */
    DLXPY_SHARE, /* likewise, and the caller promises not to write to it any more */
};

/* The publisher or call that wants a tensor, and its purpose. */
struct dlxpy_sender {
    enum dlxpy_use use;
    uint64_t publisher; /* number of the dlx.Publisher whose tensors may be passed on */
    /* One use for all tensors that are packed together. The same tensor may be among them twice;
     * libdlx decides about that. */
    const void *user;
    struct dlxpy_stream stream; /* that libdlx waits for before it passes on a tensor on a GPU */
};

/* Returns 0; -1 with an exception: TypeError (it is no tensor), dlx.DeviceError, BufferError,
 * ValueError, or what the object raised. */
int dlxpy_source_begin(struct dlxpy_source *s, PyObject *object, const struct dlxpy_sender *sender);

/* Let go of everything. `spent`: libdlx has taken the tensor of `own`. */
void dlxpy_source_end(struct dlxpy_source *s, bool spent);

/* Is the version of DLPack known? Returns 0; -1 with a BufferError. */
int dlxpy_source_check_version(const DLManagedTensorVersioned *managed);
/* Are there so many dimensions, and a shape? Returns 0; -1 with an exception. */
int dlxpy_source_check_shape(const DLTensor *t);

#endif
