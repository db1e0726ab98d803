/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXPY_ERRORS_H
#define DLXPY_ERRORS_H

/* Codes of libdlx as exceptions of dlx._errors. Each sets the exception and returns NULL. The GIL is held. */

#include "state.h"

/* The last failure of a libdlx call of this thread, with the library's words. */
PyObject *dlxpy_raise(int code);

/* With words of ours. printf's formats. */
PyObject *dlxpy_raise_text(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A handle that was closed: dlx.Closed. `what` is "the publisher of cam/front", say. */
PyObject *dlxpy_raise_closed(const char *what);

/* Add to the exception that is there: formats of PyUnicode_FromFormat(). */
void dlxpy_add_note(const char *format, ...);

/* Let it begin with what it is about, as in "tensors['a']: ...": formats of PyUnicode_FromFormat(). */
void dlxpy_name_place(const char *format, ...);

/* How often this process was forked off, seen from the one that loaded the module. What refers to shared memory
 * remembers it: touching that memory in a child faults. */
unsigned dlxpy_fork_generation(void);

/* DLX_E_FORKED if `generation` is not this process's; 0 is that of every process. Returns 0 or
 * -1. */
int dlxpy_check_forked(unsigned generation);

#endif
