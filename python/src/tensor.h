/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXPY_TENSOR_H
#define DLXPY_TENSOR_H

/* dlx.Tensor: a received tensor, one in a publisher's shared memory to be filled, or a private
 * copy. */

#include "export.h"
#include "owner.h"
#include "state.h"

struct dlxpy_tensor {
    PyObject_HEAD struct dlxpy_owner *owner; /* NULL: it was published */
    PyObject *weakrefs;
    uint64_t publisher;  /* number of the dlx.Publisher that allocated it; 0: none */
    Py_ssize_t n_views;  /* exports by the buffer protocol */
    unsigned generation; /* of fork, of what libdlx mapped; 0: private memory, which a child has */
    const void *user;    /* the call that publishes it now, perhaps without the GIL; NULL: none */
    bool is_untracked;   /* on a GPU: its address was given away; its users are unknown */
    bool gives_legacy;   /* also if it is read-only */
    bool is_received;
};

/* Takes `managed` over, also when it fails. NULL with an exception. */
struct dlxpy_tensor *dlxpy_tensor_new(DLManagedTensorVersioned *managed);

/* Takes `owner` over, on success. NULL with an exception. */
struct dlxpy_tensor *dlxpy_tensor_of(struct dlxpy_owner *owner);

/* Makes one more object for the same memory. NULL with an exception. */
struct dlxpy_tensor *dlxpy_tensor_again(const struct dlxpy_tensor *t);

/* May a thread read the tensor's owner? Not once it was published, nor while another thread
 * publishes it without the GIL. */
static inline bool dlxpy_tensor_is_there(const struct dlxpy_tensor *t)
{
    return t->owner && !t->user;
}

/* NULL with an exception if it was published, is being published, or belongs to a parent process. A
 * received tensor has no address if it is on a GPU. */
DLTensor *dlxpy_tensor_data(const struct dlxpy_tensor *t);

/* As dlxpy_tensor_data(), and dlx.DeviceError for a tensor on a GPU. */
DLTensor *dlxpy_tensor_cpu_data(const struct dlxpy_tensor *t);

/* A private, writable copy; `managed` stays the caller's. The GIL is released. NULL with an
 * exception. */
DLManagedTensorVersioned *dlxpy_tensor_copy(const DLManagedTensorVersioned *managed);

/* As dlxpy_tensor_copy(), of a tensor object. */
DLManagedTensorVersioned *dlxpy_tensor_own_copy(struct dlxpy_tensor *t);

/* A tuple of numbers; NULL with an exception. */
PyObject *dlxpy_tuple_of(const int64_t *values, int32_t n);

/* How many objects made of the tensor can still write to its memory; -1: unknown. */
Py_ssize_t dlxpy_tensor_n_exports(const struct dlxpy_tensor *t);

/* A capsule for the request. NULL with an exception. */
PyObject *dlxpy_tensor_dlpack(struct dlxpy_tensor *t, const struct dlxpy_request *request);

/* The device as in __dlpack_device__. NULL with an exception. */
PyObject *dlxpy_tensor_device(const struct dlxpy_tensor *t);

/* The tensor was passed on: its memory belongs to another owner. */
void dlxpy_tensor_spend(struct dlxpy_tensor *t);

/* tensor_buffer.c: the slots and getters of other protocols. */
int dlxpy_tensor_get_buffer(PyObject *self, Py_buffer *view, int flags);
void dlxpy_tensor_release_buffer(PyObject *self, Py_buffer *view);
PyObject *dlxpy_tensor_array_interface(PyObject *self, void *closure);
PyObject *dlxpy_tensor_cuda_array_interface(PyObject *self, void *closure);

#endif
