/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_COMMON_ERROR_H
#define DLX_COMMON_ERROR_H

/*
 * Errors inside: functions return 0 or a negative enum dlx_error and leave the words, once, where the
 * failure is understood best, in a buffer of the calling thread. errno is translated here and
 * nowhere else.
 */

#include "common/util.h"
#include <dlx/error.h>

#define DLX_ERROR_TEXT_SIZE 512

const char *dlx__error_text(int code);
const char *dlx__error_name(int code);

/* The code that stands for an errno value: EMFILE and ENFILE are FD_LIMIT, and so on. */
int dlx__error_from_errno(int err);

/* Set the thread's message and return `code`. The text is cut at DLX_ERROR_TEXT_SIZE - 1 bytes. */
int dlx__fail(int code, const char *fmt, ...) dlx_printf(2, 3);

/* The same for a failure that may be frequent: the text is not formatted. */
int dlx__fail_text(int code, const char *text);

/* The same with ": <strerror(errno)>" appended; returns dlx__error_from_errno(errno). */
int dlx__fail_errno(const char *fmt, ...) dlx_printf(1, 2);

/* Put "<text>: " in front of the thread's message and return `code`: adds who or where. */
int dlx__fail_prefix(int code, const char *fmt, ...) dlx_printf(2, 3);

/* The thread's message, "" when there is none. */
const char *dlx__error_message(void);

/* Is there a message? A word of its own, at a fixed place of the thread (one byte of the static TLS that
 * libraries share), so that clearing costs one store and no call. */
extern _Thread_local bool dlx__error_is_set __attribute__((tls_model("initial-exec")));

/* Forget the thread's message: at the entry of public functions that can fail. */
static inline void dlx__error_clear(void)
{
    dlx__error_is_set = false;
}

#endif
