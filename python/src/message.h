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

/* The message, if it has only one tensor; NULL with an exception. */
struct dlx_message *dlxpy_message_only_one(PyObject *self);

/* The only tensor of the message, as a managed tensor; NULL with an exception if there are more. */
DLManagedTensorVersioned *dlxpy_message_export(PyObject *self);

#endif
