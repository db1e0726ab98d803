/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/client/harness_queue.h"

struct dlx_subscription *dlx_queue_worker(struct dlx_client *c)
{
    return dlx_test_stream_subscribe(c, TOPIC, WORKER());
}

struct dlx_message *dlx_queue_next(struct dlx_subscription *s)
{
    struct dlx_message *m = dlx_test_stream_next(s);
    dlx_test_stream_check(m, N, (int64_t)dlx_message_seq(m));
    return m;
}

void dlx_queue_do(struct dlx_subscription *s, uint64_t n, uint32_t attempt)
{
    auto_message *m = dlx_queue_next(s);
    ck_assert_uint_eq(dlx_message_seq(m), n);
    ck_assert_uint_eq(dlx_message_attempt(m), attempt);
    ok(dlx_message_done(m));
}

void dlx_queue_take_one(struct dlx_test_peer *parent)
{
    struct dlx_subscription *s = dlx_queue_worker(dlx_test_stream_connect());
    dlx_test_peer_say(parent);
    (void)dlx_queue_next(s);
    dlx_test_peer_say(parent);
    pause();
}
