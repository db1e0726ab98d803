/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_COMMON_ERROR_H
#define DLX_COMMON_ERROR_H

/* Internal errors. A function returns 0 or a negative enum dlx_error, and the innermost function
 * that understands the failure stores its text in a buffer of the calling thread. Only this module
 * translates errno. */

#include "common/util.h"
#include <dlx/error.h>

#define DLX_ERROR_TEXT_SIZE 512

dlx_for_gpu const char *dlx__error_text(int code);
const char *dlx__error_name(int code);

/* The error code of an errno value: DLX_E_FD_LIMIT for EMFILE and ENFILE, and so on. */
int dlx__error_from_errno(int err);

/* Sets the thread's message and returns `code`. The text is truncated to DLX_ERROR_TEXT_SIZE - 1
 * bytes. */
dlx_for_gpu int dlx__fail(int code, const char *fmt, ...) dlx_printf(2, 3);

/* The same without formatting, for frequent failures. */
int dlx__fail_text(int code, const char *text);

/* The same with ": <strerror(errno)>" appended; returns dlx__error_from_errno(errno). */
dlx_for_gpu int dlx__fail_errno(const char *fmt, ...) dlx_printf(1, 2);

/* Prefixes the thread's message with "<text>: ", to add who or where. Returns `code`. */
dlx_for_gpu int dlx__fail_prefix(int code, const char *fmt, ...) dlx_printf(2, 3);

/* Does the process, or the machine, lack something now that it may have later: descriptors, memory,
 * address space, mappings? */
static inline bool dlx__error_is_lack(int code)
{
    return code == DLX_E_FD_LIMIT || code == DLX_E_NO_MEMORY || code == DLX_E_LIMIT;
}

/* The thread's message; "" if there is none. */
dlx_for_gpu const char *dlx__error_message(void);

/* Is there a message? A flag of its own, at a fixed offset in the thread's memory (one byte of the
 * static TLS that libraries share), so that clearing costs one store and no call. */
extern dlx_for_gpu _Thread_local bool dlx__error_is_set __attribute__((tls_model("initial-exec")));

/* Clears the thread's message. Public functions that can fail call it first. */
static inline void dlx__error_clear(void)
{
    dlx__error_is_set = false;
}

#endif
