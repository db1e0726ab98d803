/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXPY_DEBUG_H
#define DLXPY_DEBUG_H

/*
 * dlx.debug(): a write to memory that is a message's names the topic and the tensor, before the
 * process ends as it does without. The module remembers where the tensors lie that were taken and
 * published last.
 */

#include "state.h"
#include <stdbool.h>

bool dlxpy_debug_is_on(void);

/* Remember where the tensors of a message lie. */
void dlxpy_debug_received(const struct dlx_message *m);
void dlxpy_debug_published(const char *topic, const char *name, uint64_t seq, const DLTensor *t);

/* The function debug() of the module. */
PyObject *dlxpy_debug(PyObject *self, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames);
extern const char dlxpy_debug_doc[];

#endif
