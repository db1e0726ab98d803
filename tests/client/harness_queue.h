/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_CLIENT_HARNESS_QUEUE_H
#define DLX_TESTS_CLIENT_HARNESS_QUEUE_H

/* Workers of group g, which take the messages of test/work, here or in processes of their own. */

#include "tests/harness/fork.h"
#include "tests/harness/stream.h"

#define N           10 /* elements of a message, which has its number as its value */
#define TOPIC       "test/work"
#define GROUPS      .groups = (const char *const[]){"g"}, .n_groups = 1
#define WORKER(...) SUBSCRIBE(.group = "g", __VA_ARGS__)

struct dlx_subscription *dlx_queue_worker(struct dlx_client *c);

/* Waits for a message, and checks its value. */
struct dlx_message *dlx_queue_next(struct dlx_subscription *s);
/* Takes message `n`, in this delivery, and says that it is done. */
void dlx_queue_do(struct dlx_subscription *s, uint64_t n, uint32_t attempt);

/* A part: subscribes, says so, takes a message, says so, and waits for its end. */
void dlx_queue_take_one(struct dlx_test_peer *parent);

#endif
