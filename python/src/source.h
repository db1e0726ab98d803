/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXPY_SOURCE_H
#define DLXPY_SOURCE_H

/*
 * Anything in: an object of another library (or a dlx.Tensor) as a tensor that libdlx can read. In this order:
 * a tensor of ours; the DLPack exchange API of its type; the buffer protocol (bytes, bytearray, array, mmap, memoryview,
 * NumPy); __dlpack__; __array_interface__. What lies on a device is refused first.
 */

#include "tensor.h"

#define DLXPY_SOURCE_DIMS 16

struct dlxpy_source {
    /* What to give to libdlx: `view`, which has no deleter and describes memory that stays until
     * dlxpy_source_end(); or the tensor of `own` itself, which can be passed on. */
    DLManagedTensorVersioned *tensor;
    DLManagedTensorVersioned view;
    struct dlxpy_tensor *own; /* a reference; it has a user while it is here */
    bool is_again;            /* another source of the same user has it */

    /* what keeps the memory */
    struct dlxpy_owner *owner;
    DLManagedTensorVersioned *managed;
    DLManagedTensor *legacy;
    Py_buffer buffer; /* if buffer.obj */
    PyObject *object;
    int64_t *dims; /* shape and strides, inline_dims unless there are many */
    int64_t inline_dims[DLXPY_SOURCE_DIMS];
};

enum dlxpy_use {
    DLXPY_LOOK,  /* only to look at it: shape and type */
    DLXPY_COPY,  /* to be copied */
    DLXPY_PASS,  /* to be passed on without a copy if it may be */
    DLXPY_SHARE, /* likewise, and the caller promises not to write to it any more */
};

/* `publisher`: number of the dlx.Publisher whose tensors may be passed on, and `user` who passes them: one tensor
 * may be there twice, what libdlx says to that is for it. Returns 0; -1 with an exception:
 * TypeError (it is no tensor), dlx.DeviceError, BufferError, ValueError, or what the object raised. */
int dlxpy_source_begin(struct dlxpy_source *s, PyObject *object, enum dlxpy_use use,
                       uint64_t publisher, const void *user);

/* Let go of everything. `spent`: libdlx has taken the tensor of `own`. */
void dlxpy_source_end(struct dlxpy_source *s, bool spent);

/* source_buffer.c: fill `view` and what keeps it. Return 1; 0: not that kind of object; -1 with an exception. */
int dlxpy_source_buffer(struct dlxpy_source *s, PyObject *object);
int dlxpy_source_array_interface(struct dlxpy_source *s, PyObject *object);

/* An attribute, or NULL without an exception when there is none; *failed is set for any other exception. */
PyObject *dlxpy_attribute(PyObject *object, const char *name, bool *failed);

#endif
