/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_MISUSE_H
#define DLX_CLIENT_MISUSE_H

/*
 * The debug mode, which finds callers that use a released object. A released handle has the
 * generation DLX_RELEASED, which is that of no process. dlx__forked() is true of it, so the path of
 * each call goes on as it was, and what refuses a forked child tells the two apart.
 *
 * Without the debug mode a handle is freed, and its use afterwards is undefined.
 */

#include <stdbool.h>
#include <stdint.h>

#define DLX_RELEASED UINT64_MAX

/* Released handles that stay readable in debug mode; the oldest is freed. */
#define DLX_QUARANTINE 4096U

/* Is the debug mode on, by dlx_set_debug() or by DLX_DEBUG=1 at the first call? Any thread. */
bool dlx__debug(void);

/* In debug mode: tell the caller's mistake on stderr, and abort. `format` is of printf(). */
_Noreturn void dlx__misuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Free the memory, which in debug mode stays readable for a while. */
void dlx__quarantine(void *memory);
/* The same of a handle, whose generation is in it. */
void dlx__release_handle(void *handle, uint64_t *generation);

/* `call` does nothing for this handle since it is not of this process; abort if it was released. */
void dlx__check_released(uint64_t generation, const char *call);

#endif
