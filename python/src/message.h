/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXPY_MESSAGE_H
#define DLXPY_MESSAGE_H

/* dlx.Message: a taken message with its tensors. */

#include "state.h"
#include "stream.h"
#include "tensor.h"

/* The memory of the tensors on the CPU of a message. */
enum dlxpy_memory {
    DLXPY_SHARED,
    DLXPY_PINNED, /* shared, and a GPU copies from it: any stream may use them until one is named */
    DLXPY_PRIVATE, /* of dlx_message_tensor_private(): they may be written to */
};

struct dlxpy_message {
    PyObject_HEAD struct dlx_message *m; /* NULL: released */
    PyObject *weakrefs;
    unsigned generation;        /* of fork */
    struct dlxpy_stream stream; /* of take() */
    bool is_on_gpu;             /* some of its tensors */
    bool is_settled;            /* of a worker: said to be done, or given back */
    enum dlxpy_memory memory;
};

/* Takes `m` over, also when it fails. `stream`: the one that uses its tensors on GPUs.
 * NULL with an exception. */
PyObject *dlxpy_message_new(struct dlx_message *m, const struct dlxpy_stream *stream,
                            enum dlxpy_memory memory);

/* Tensor `i`; NULL with an exception. */
struct dlxpy_tensor *dlxpy_message_tensor(struct dlxpy_message *message, uint32_t i);

/* All of them, a list; `closure` is not used. NULL with an exception. */
PyObject *dlxpy_message_tensors(PyObject *self, void *closure);

/* The message of a dlx.Message; NULL with dlx.Closed after its release. */
struct dlx_message *dlxpy_message_of(PyObject *self);

/* task.c: what a worker of a group says of its message. */
PyObject *dlxpy_task_done(PyObject *self, PyObject *unused);
PyObject *dlxpy_task_give_back(PyObject *self, PyObject *unused);
PyObject *dlxpy_task_renew(PyObject *self, PyObject *unused);
PyObject *dlxpy_task_attempt(PyObject *self, void *closure);
extern const char dlxpy_task_done_doc[], dlxpy_task_give_back_doc[], dlxpy_task_renew_doc[];
/* A `with` block of the message ends: its work is done, or has failed. Returns 0, or -1 with an
 * exception: it is not this worker's any more. */
int dlxpy_task_leave(PyObject *self, bool has_failed);

/* The message, if it has only one tensor; NULL with an exception. */
struct dlx_message *dlxpy_message_only_one(PyObject *self);

/* The only tensor of the message, as a managed tensor; NULL with an exception if there are more. */
DLManagedTensorVersioned *dlxpy_message_export(PyObject *self);

#endif
