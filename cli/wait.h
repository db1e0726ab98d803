/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_WAIT_H
#define CLI_WAIT_H

/** Time, signals, and waiting for either without losing one. */

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#define WAIT_FOREVER INT64_MAX
/** How long to wait at most in calls of libdlx that a signal does not end. */
#define WAIT_SLICE_NS (200 * INT64_C(1000000))

/** CLOCK_MONOTONIC in nanoseconds. */
int64_t wait_now(void);

/** now + delay_ns, WAIT_FOREVER when that overflows. */
int64_t wait_deadline(int64_t delay_ns);

/** From here on, the first SIGINT or SIGTERM is only noted; a second one ends the program. */
void wait_catch_signals(void);

/** What a second one does first: it ends the program itself. */
void wait_at_second_signal(void (*handler)(int number));

/**
 * Around calls that may wait for ever for another process, to open or to write to a pipe: a signal
 * ends the program there. Returns 0, or DLX_E_INTERRUPTED if one came before: do not call.
 */
int wait_begin_blocking(void);
void wait_end_blocking(void);

/**
 * For code that must tidy up, such as a file under a temporary name: signals that would end the
 * program take effect when they are released. wait_holds_signal(): has one come meanwhile?
 */
void wait_hold_signals(sigset_t *before);
void wait_release_signals(const sigset_t *before);
bool wait_holds_signal(void);

/** The number of the signal that came, 0 when none did. */
int wait_signal(void);

/**
 * Wait until `fd` is readable (-1: none), until `deadline` or for a signal; a signal that comes
 * between looking and sleeping is not lost. Returns 0 when readable, DLX_E_TIMEOUT,
 * DLX_E_INTERRUPTED or DLX_E_SYSTEM.
 */
int wait_until(int fd, int64_t deadline);

#endif
