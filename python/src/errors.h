/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXPY_ERRORS_H
#define DLXPY_ERRORS_H

/* Codes of libdlx as exceptions of dlx._errors. Each sets the exception and returns NULL. The GIL
 * is held. */

#include "state.h"

/* The last failure of a libdlx call of this thread, with the library's words. */
PyObject *dlxpy_raise(int code);

/* A failure of a call that libdlx tells later. */
PyObject *dlxpy_raise_words(int code, const char *text);

/* A failure of this extension, with its own text in printf's formats. */
PyObject *dlxpy_raise_text(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Words of other programs as str: names of tensors and of programs are any bytes, and may be cut
 * within a character. */
PyObject *dlxpy_text(const char *text);

/* A handle that was closed: dlx.Closed. `what` is "the publisher of cam/front", say. */
PyObject *dlxpy_raise_closed(const char *what);

/* Let a function of dlx._errors add to the current exception, or return another one in its place.
 * The function gets the exception and a tuple of more arguments: `format` is of Py_BuildValue(). */
void dlxpy_amend(const char *function, const char *format, ...);

/* Clear the current exception. Returns 0; -1: the exception stays, since it is about something
 * else, as KeyboardInterrupt is. */
int dlxpy_pass_over(void);

/* The number of forks between the process that loaded the module and this one. Objects that refer
 * to shared memory remember it: touching that memory in a child faults. */
unsigned dlxpy_fork_generation(void);

/* DLX_E_FORKED if `generation` is not this process's; 0 is that of every process. Returns 0 or
 * -1. */
int dlxpy_check_forked(unsigned generation);

#endif
