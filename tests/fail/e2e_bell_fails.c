/* SPDX-License-Identifier: Apache-2.0 */

/* Bells that the kernel has no memory for. */

#include "common/bell.h"
#include "tests/fail/harness_fail.h"
#include "tests/harness/stream.h"
#include <poll.h>

#define LONG_NS UINT64_C(600000000000)

TEST(a_bell_that_fails_once_is_rung_again)
{
    int pair[2];
    char byte;
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    for (size_t way = 0; way < 2; way++) { /* ENOBUFS, EINTR */
        struct dlx_test_fail fail = {.at = 1, .way = way, .only = "send"};
        dlx_test_fail(&fail);
        bool rung = dlx__ring_bell(pair[0]);
        dlx_test_fail(NULL);
        ck_assert(rung);
        ck_assert_str_eq(fail.call, "send");
        ck_assert_int_eq(recv(pair[1], &byte, 1, MSG_DONTWAIT), 1);
        ck_assert_int_lt(recv(pair[1], &byte, 1, MSG_DONTWAIT), 0);
    }
    close(pair[0]);
    close(pair[1]);
}

static bool is_readable(struct dlx_subscription *s, int timeout_ms)
{
    struct pollfd fd = {.fd = dlx_subscription_fd(s), .events = POLLIN};
    return poll(&fd, 1, timeout_ms) == 1;
}

/* Asks for a bell: the subscription's descriptor is readable when it rings. */
static void fall_asleep(struct dlx_subscription *s)
{
    struct dlx_message *m = NULL;
    for (int i = 0; i < 2; i++) {
        ck_assert_int_ge(dlx_subscription_fd(s), 0);
        ck_assert_int_eq(dlx_take(s, 0, &m), DLX_E_EMPTY);
    }
    ck_assert(!is_readable(s, 0));
}

TEST(a_bell_that_could_not_be_rung_is_rung_with_the_next_message)
{
    struct dlx_test_pair x = dlx_test_pair_make(NULL, NULL);
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, 4, 1);
    fall_asleep(x.s);
    struct dlx_test_fail fail = {.at = 1, .only = "send", .for_ns = LONG_NS};
    dlx_test_fail(&fail);
    int r = dlx_publish(x.p, t, NULL);
    dlx_test_fail(NULL);
    ok(r);
    ck_assert_uint_eq(fail.n_calls, DLX_BELL_TRIES);
    ck_assert(!is_readable(x.s, 0));
    dlx_test_stream_publish(x.p, 4, 2);
    ck_assert(is_readable(x.s, PATIENCE_MS));
    for (int64_t i = 1; i <= 2; i++) {
        struct dlx_message *m = NULL;
        ok(dlx_take(x.s, 0, &m));
        dlx_test_stream_check(m, 4, i);
        dlx_message_unref(m);
    }
    dlx_test_pair_end(&x);
}

int main(void)
{
    return dlx_test_run_case(dlx_test_stream_case("bell_fails"));
}
