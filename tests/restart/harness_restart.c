/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/restart/harness_restart.h"
#include "client/subscribe/subscription.h"

void dlx_restart_announce(struct dlx_publisher *p)
{
    uint64_t epoch = p->epoch;
    for (uint64_t until = dlx__deadline(PATIENCE); p->epoch == epoch; dlx_test_before(until))
        ck_assert_int_eq(dlx_publisher_wait(p, 1000, SECOND / 50), DLX_E_TIMEOUT);
}

void dlx_restart_with(struct dlx_publisher *p)
{
    dlx_test_stream_restart();
    dlx_restart_announce(p);
}

void dlx_restart_subscribe_again(struct dlx_subscription *s)
{
    dlx__subscription_read_notifications(s);
    ck_assert_int_lt(s->sock, 0);
    for (uint64_t until = dlx__deadline(PATIENCE); s->sock < 0; dlx_test_before(until))
        dlx__subscription_reconnect(s);
}

struct dlx_restart_reader dlx_restart_reader_make(const struct dlx_subscribe_args *args)
{
    struct dlx_restart_reader r = {.c = dlx_test_stream_connect()};
    r.s = dlx_test_stream_subscribe(r.c, "test/a", args);
    return r;
}

void dlx_restart_reader_end(struct dlx_restart_reader *r)
{
    dlx_subscription_unref(r->s);
    dlx_client_unref(r->c);
}

int dlx_restart_read(struct dlx_restart_reader *r, int64_t timeout_ns)
{
    auto_message *m = NULL;
    int code = dlx_take(r->s, timeout_ns, &m);
    if (code < 0)
        return code;
    uint64_t seq = dlx_message_seq(m), gap = dlx_message_gap(m);
    ck_assert_msg(seq == r->last + gap + 1, "message %lu after %lu, and a gap of %lu is reported",
                  (unsigned long)seq, (unsigned long)r->last, (unsigned long)gap);
    dlx_test_stream_check(m, 10, (int64_t)seq);
    r->gaps += gap;
    r->last = seq;
    r->taken++;
    return 0;
}

void dlx_restart_read_to(struct dlx_restart_reader *r, uint64_t last)
{
    while (r->last < last)
        ok(dlx_restart_read(r, PATIENCE));
}

struct dlx_subscription_stats dlx_restart_reader_stats(struct dlx_restart_reader *r)
{
    struct dlx_subscription_stats stats = dlx_test_stream_subscription_stats(r->s);
    ck_assert_uint_eq(stats.taken, r->taken);
    ck_assert_uint_ge(stats.lost + stats.skipped, r->missed);
    r->missed = stats.lost + stats.skipped;
    return stats;
}
