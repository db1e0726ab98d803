/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_RESTART_HARNESS_QUEUES_H
#define DLX_TESTS_RESTART_HARNESS_QUEUES_H

/* Stories of work queues whose messages outlive a daemon: what the next one has of them, however it
 * came. Group g of topic test/a. */

#include "tests/harness/store.h"

#define DLX_QUEUES_TOPIC  "test/a"
#define DLX_QUEUES_GROUPS .groups = (const char *const[]){"g"}, .n_groups = 1
#define DLX_QUEUES_WORKER SUBSCRIBE(.group = "g")

/* Take message `n`, in this delivery, and say that it is done. Ends of other publishers may be told
 * before. */
void dlx_queues_do(struct dlx_subscription *s, uint64_t n, uint32_t attempt);

/* Nothing of any publisher is left in the daemon, also of those that it does not list. */
void dlx_queues_await_end(void);

/* The publisher has gone, and so has a worker, which had a message. */
void dlx_queues_tell_left(void (*next_daemon)(void));
/* The publisher has gone before a worker came. */
void dlx_queues_tell_unseen(void (*next_daemon)(void));
/* The publisher lives, makes no call, and is killed when the next daemon is there. */
void dlx_queues_tell_killed(void (*next_daemon)(void));
/* A worker lives and has a message, until it is killed when the next daemon is there. */
void dlx_queues_tell_held(void (*next_daemon)(void));
/* The publisher ends while the next daemon is stopped, so that it cannot tell it so. */
void dlx_queues_tell_silent(void (*next_daemon)(void));
/* A worker of the former daemon finishes the last message, and makes no other call. */
void dlx_queues_tell_finished(void (*next_daemon)(void));

#endif
