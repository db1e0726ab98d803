/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_LIAR_H
#define DLX_TESTS_HARNESS_LIAR_H

/* A process that lies to libdlx, and what the honest side expects of its own calls meanwhile. */

#include "tests/harness/stream.h"

struct dlx_test_liar {
    pid_t pid;
    int sock; /* a byte each way, in turns */
};

void dlx_test_liar_say(int fd);
void dlx_test_liar_hear(int fd);
/* Fork; the child runs `fn`, which never returns. */
struct dlx_test_liar dlx_test_liar_spawn(void (*fn)(struct dlx_client *c, int tell, int arg),
                                         int arg);
void dlx_test_liar_kill(struct dlx_test_liar *liar);
/* The error's words name the liar. */
void dlx_test_liar_check_names(pid_t pid);
uint64_t dlx_test_liar_random(void);

/* Of the liar: do nothing any more, after telling. */
void dlx_test_liar_rest(int tell) __attribute__((noreturn));
/* Of the liar: ring without end, after telling. */
void dlx_test_liar_storm(int bell, int tell) __attribute__((noreturn));

/* Did a call that was given so long end before much more had passed, on a busy machine and under a
 * sanitizer? */
bool dlx_test_ends_in_time(uint64_t start, int64_t timeout_ns);

#endif
