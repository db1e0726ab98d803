/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_RESTART_HARNESS_RESTART_H
#define DLX_TESTS_RESTART_HARNESS_RESTART_H

/* Streams that go on with another daemon, which the tests see from inside. */

#include "client/publish/publisher.h"
#include "client/subscribe/subscription.h"
#include "tests/harness/stream.h"

/* The publisher announces itself to the daemon that has taken the place of its own. */
void dlx_restart_announce(struct dlx_publisher *p);
/* The daemon is replaced before. */
void dlx_restart_with(struct dlx_publisher *p);
/* The subscription subscribes again, and has not read the offers of the new daemon. */
void dlx_restart_subscribe_again(struct dlx_subscription *s);

/* A subscription to test/a that may lose messages, of which each gap has to have its number. */
struct dlx_restart_reader {
    struct dlx_client *c;
    struct dlx_subscription *s;
    uint64_t last, gaps, taken;
    uint64_t missed; /* as its counters said last */
};
#define auto_reader DLX_TEST_AUTO(dlx_restart_reader_end) struct dlx_restart_reader
struct dlx_restart_reader dlx_restart_reader_make(const struct dlx_subscribe_args *args);
void dlx_restart_reader_end(struct dlx_restart_reader *r);
/* Take and check a message of 10 elements whose value is its number. Returns what dlx_take()
 * does. */
int dlx_restart_read(struct dlx_restart_reader *r, int64_t timeout_ns);
/* Up to the message with this number. */
void dlx_restart_read_to(struct dlx_restart_reader *r, uint64_t last);
/* Checks that the reader has counted all taken messages, and that its counts of lost and skipped
 * ones never fall. */
struct dlx_subscription_stats dlx_restart_reader_stats(struct dlx_restart_reader *r);

#endif
