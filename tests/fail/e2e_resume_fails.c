/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A publisher, or a subscription, goes on with another daemon, again and again, each time with one
 * call of the C library that fails meanwhile. It goes on all the same, a little later: what is
 * retained is there, nothing is missed in silence, and nothing is left.
 */

#include "client/publish/publisher.h"
#include "client/publish/publisher_reconnect.h"
#include "client/subscribe/subscription.h"
#include "tests/fail/harness_fail.h"
#include "tests/harness/fds.h"
#include "tests/fail/harness_server.h"
#include "tests/harness/stream.h"
#include <poll.h>
#include <string.h>

static struct dlx_test_daemon place;

static struct dlx_client *connect_to(void)
{
    const struct dlx_connect_args args = {
        .size = sizeof args, .socket = place.path, .timeout_ns = PATIENCE};
    struct dlx_client *c = NULL;
    ok(dlx_connect(&c, &args));
    return c;
}

/* Until it has gone on with this daemon, or, if a call is to fail, until one has. Returns the
 * former. */
static bool publisher_goes_on(struct dlx_publisher *p, uint64_t epoch,
                              const struct dlx_test_fail *fail)
{
    for (uint64_t until = dlx__deadline(PATIENCE);
         p->epoch == epoch && !(fail && fail->call) && dlx__now_ns() < until;) {
        dlx__publisher_check(p, dlx__now_ns());
        if (p->epoch == epoch)
            (void)poll(NULL, 0, 1);
    }
    return p->epoch != epoch;
}

static bool subscription_goes_on(struct dlx_subscription *s, const struct dlx_test_fail *fail)
{
    for (uint64_t until = dlx__deadline(PATIENCE);
         (s->sock < 0 || s->n_open < 2) && !(fail && fail->call) && dlx__now_ns() < until;) {
        dlx__subscription_read_notifications(s);
        if (s->sock < 0 || s->n_open < 2)
            (void)poll(NULL, 0, 1);
    }
    return s->sock >= 0;
}

static void tell(struct dlx_test_fail *fail, bool publisher_fails)
{
    struct dlx_publisher_args pa = {.size = sizeof pa, .history = 3, .retain = 2};
    struct dlx_client *c[2];
    struct dlx_message *m = NULL;
    int64_t n = 0;
    dlx_test_server_start(place.path, NULL);
    c[0] = connect_to();
    c[1] = connect_to();
    struct dlx_publisher *p = dlx_test_stream_publisher(c[0], "test/a", &pa);
    struct dlx_subscription *s = dlx_test_stream_subscribe(c[1], "test/a", NULL);
    while (n < 4)
        dlx_test_stream_publish(p, 10, ++n);
    dlx_test_stream_take(s, 1);
    dlx_test_server_stop();
    dlx__subscription_read_notifications(s); /* it has ended */
    dlx_test_server_start(place.path, NULL);
    uint64_t epoch = p->epoch;
    if (publisher_fails) {
        dlx_test_fail(fail);
        (void)publisher_goes_on(p, epoch, fail);
        dlx_test_fail(NULL);
    }
    ck_assert_msg(publisher_goes_on(p, epoch, NULL), "%s failed once, and it does not go on",
                  fail->call);
    if (!publisher_fails) {
        dlx_test_fail(fail);
        (void)subscription_goes_on(s, fail);
        dlx_test_fail(NULL);
    }
    dlx_test_stream_publish(p, 10, ++n);
    uint64_t last = 1;
    for (uint64_t until = dlx__deadline(PATIENCE); last < (uint64_t)n;) {
        int r = dlx_take(s, SECOND / 10, &m);
        ck_assert_msg(dlx__now_ns() < until, "%s failed once: no message after %d", fail->call,
                      (int)last);
        if (r == DLX_E_TIMEOUT || r == DLX_E_DISCONNECTED)
            continue;
        if (r < 0) { /* its link could not be made, which is told once; that is the caller's then */
            ck_assert_msg(!publisher_fails && *dlx_client_errmsg(NULL), "%s", dlx_strerror(r));
            break;
        }
        ck_assert_uint_eq(dlx_message_seq(m), last + dlx_message_gap(m) + 1);
        dlx_test_stream_check(m, 10, (int64_t)dlx_message_seq(m));
        last = dlx_message_seq(m);
        dlx_message_unref(m);
    }
    dlx_subscription_unref(s);
    dlx_publisher_unref(p);
    ok(dlx_get(c[1], "test/a", 0, &m));
    ck_assert_uint_eq(dlx_message_seq(m), (uint64_t)n);
    dlx_message_unref(m);
    dlx_client_unref(c[0]);
    dlx_client_unref(c[1]);
    dlx_test_server_stop();
}

LOOP_TEST(who_goes_on_does_so_though_a_call_fails, 0, 2)
{
    struct dlx_test_fail fail = {.at = 0};
    size_t n_failed = 0, n_fds = 0;
    while (dlx_test_fail_next(&fail)) {
        tell(&fail, _i == 0);
        n_failed += fail.call != NULL;
        if (n_fds == 0) /* libuv keeps a pipe for signals */
            n_fds = dlx_test_fds_count();
        ck_assert_msg(dlx_test_fds_count() == n_fds, "%s failed: %zu descriptors, %zu before",
                      fail.call ? fail.call : "nothing", dlx_test_fds_count(), n_fds);
    }
    ck_assert_uint_gt(n_failed, 20);
}

int main(void)
{
    TCase *tcase = tcase_create("resume");
    tcase_set_timeout(tcase, 5 * PATIENCE_S);
    dlx_test_dir_fixture(tcase, &place);
    return dlx_test_run_case(tcase);
}
