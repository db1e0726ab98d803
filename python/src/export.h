/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXPY_EXPORT_H
#define DLXPY_EXPORT_H

/* DLPack out: __dlpack__ and its capsules. */

#include "state.h"
#include "stream.h"
#include <stdbool.h>

/* The arguments of __dlpack__(*, stream, max_version, dl_device, copy). */
struct dlxpy_request {
    struct dlxpy_stream stream;
    DLDevice device; /* if has_device */
    bool has_device;
    bool versioned;
    bool copy;
};

/* Returns 0; -1 with TypeError, or ValueError for an object that is no stream. */
int dlxpy_request_parse(PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames,
                        struct dlxpy_request *ret);

/* Can memory of that device serve the request? Returns 0; -1 with BufferError, or ValueError for a
 * stream. */
int dlxpy_request_check(const struct dlxpy_request *request, DLDevice device);

/* BufferError: a consumer from before DLPack 1.0 cannot be told that `what` is read-only. */
PyObject *dlxpy_refuse_legacy(const char *what);

/* Make a capsule; take the tensor over, also on failure. NULL: out of memory, with an exception. */
PyObject *dlxpy_capsule(DLManagedTensorVersioned *tensor);
PyObject *dlxpy_capsule_legacy(DLManagedTensor *tensor);

#define DLXPY_CAPSULE        "dltensor_versioned"
#define DLXPY_CAPSULE_LEGACY "dltensor"

#endif
