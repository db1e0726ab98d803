/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A story told again and again, each time with one call of the C library that fails: of the daemon,
 * which is a thread of this program, or of the library. Who asked is told in words, or does not
 * notice; nothing waits for ever, nothing is left; and the same daemon serves the next one.
 */

#include "client/control/client.h"
#include "common/error.h"
#include "common/memory.h"
#include "tests/fail/harness_fail.h"
#include "tests/harness/fds.h"
#include "tests/fail/harness_server.h"
#include "tests/harness/stream.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { N_SMALL = 100, N_LARGE = 20000 };

/* ---- the story: no ck_ in here, as calls fail ------------------------------------------------ */

struct cast {
    struct dlx_client *one, *two;
    struct dlx_publisher *p;
    struct dlx_subscription *s, *pattern;
    struct dlx_message *m;
    DLManagedTensorVersioned *t;
    const char *wrong; /* what was not as promised, though every call went well */
    uint64_t n_lost;   /* connections */
};

static void expect(struct cast *x, bool good, const char *what)
{
    if (!good && !x->wrong)
        x->wrong = what;
}

static int publish(struct cast *x, int64_t n, int64_t value)
{
    struct dlx_tensor_spec spec = {
        .size = sizeof spec, .dtype = {kDLInt, 64, 1}, .ndim = 1, .shape = &n};
    DLX_TEST_TRY(dlx_alloc(x->p, &spec, &x->t));
    for (int64_t i = 0; i < n; i++)
        ((int64_t *)x->t->dl_tensor.data)[i] = value + i;
    DLX_TEST_TRY(dlx_publish(x->p, x->t, NULL));
    x->t = NULL;
    return 0;
}

static void check(struct cast *x, int64_t n, int64_t value)
{
    const DLTensor *t = dlx_message_peek(x->m, 0);
    const int64_t *data = t->data;
    expect(x, t->shape[0] == n && data[0] == value && data[n - 1] == value + n - 1,
           "the values of a message");
    x->m = dlx_message_unref(x->m);
}

static int take(struct cast *x, struct dlx_subscription *s, int64_t n, int64_t value)
{
    DLX_TEST_TRY(dlx_take(s, PATIENCE, &x->m));
    check(x, n, value);
    return 0;
}

static int publish_set(struct cast *x)
{
    int64_t n = 3, values[3] = {1, 2, 3};
    DLManagedTensorVersioned mine = {.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION},
                                     .dl_tensor = {.data = values,
                                                   .device = {kDLCPU, 0},
                                                   .ndim = 1,
                                                   .dtype = {kDLInt, 64, 1},
                                                   .shape = &n}};
    DLManagedTensorVersioned other = mine;
    struct dlx_item items[] = {{"one", &mine}, {"two", &other}};
    DLX_TEST_TRY(dlx_publish_set(x->p, items, 2, NULL, NULL));
    DLX_TEST_TRY(dlx_take(x->s, PATIENCE, &x->m));
    expect(x, dlx_message_n_tensors(x->m) == 2 && strcmp(dlx_message_name(x->m, 1), "two") == 0,
           "the names of a set");
    DLX_TEST_TRY(dlx_message_tensor(x->m, 1, &x->t));
    expect(x, ((const int64_t *)x->t->dl_tensor.data)[2] == 3, "the values of a set");
    x->t->deleter(x->t);
    x->t = NULL;
    x->m = dlx_message_unref(x->m);
    return 0;
}

static int see_publisher(const struct dlx_publisher_info *info, void *userdata)
{
    *(uint64_t *)userdata = info->publisher;
    return 0;
}

static int count_link(const struct dlx_link_info *info, void *userdata)
{
    (void)info;
    ++*(int *)userdata;
    return 0;
}

static int tell(struct cast *x, const char *path)
{
    struct dlx_connect_args ca = {.size = sizeof ca, .socket = path, .timeout_ns = PATIENCE};
    struct dlx_publisher_args pa = {
        .size = sizeof pa, .history = 2, .on_full = DLX_ON_FULL_BLOCK, .depth = 8, .retain = 1};
    struct dlx_subscribe_args sa = {.size = sizeof sa, .reliable = true},
                              late = {.size = sizeof late, .history = 1};
    uint64_t id = 0;
    int n_links = 0;
    DLX_TEST_TRY(dlx_connect(&x->one, &ca));
    DLX_TEST_TRY(dlx_connect(&x->two, &ca));
    DLX_TEST_TRY(dlx_publisher_new(x->one, "calls/a", &pa, &x->p));
    DLX_TEST_TRY(dlx_subscribe(x->two, "calls/a", &sa, &x->s));
    DLX_TEST_TRY(publish(x, N_SMALL, 1));
    DLX_TEST_TRY(take(x, x->s, N_SMALL, 1));
    DLX_TEST_TRY(dlx_subscribe(x->two, "calls/*", &late, &x->pattern));
    DLX_TEST_TRY(take(x, x->pattern, N_SMALL, 1));
    DLX_TEST_TRY(publish(x, N_LARGE, 2));
    DLX_TEST_TRY(take(x, x->s, N_LARGE, 2));
    DLX_TEST_TRY(take(x, x->pattern, N_LARGE, 2));
    DLX_TEST_TRY(publish_set(x));
    DLX_TEST_TRY(dlx_list_publishers(x->two, "calls/*", see_publisher, &id));
    DLX_TEST_TRY(dlx_list_links(x->two, id, count_link, &n_links));
    expect(x, n_links == 2, "the links");
    x->pattern = dlx_subscription_unref(x->pattern);
    DLX_TEST_TRY(publish(x, N_SMALL, 3));
    DLX_TEST_TRY(take(x, x->s, N_SMALL, 3));
    x->p = dlx_publisher_unref(x->p);
    DLX_TEST_TRY(dlx_get(x->one, "calls/a", 0, &x->m)); /* EMPTY: the daemon could not keep it */
    check(x, N_SMALL, 3);
    DLX_TEST_TRY(dlx_retained_drop(x->one, "calls/a"));
    DLX_TEST_TRY(dlx_list_publishers(x->two, "calls/a", see_publisher,
                                     &id)); /* connects again, if need be */
    x->n_lost = atomic_load(&x->one->epoch) + atomic_load(&x->two->epoch);
    return 0;
}

struct told {
    const char *wrong;
    uint64_t n_lost;
    char words[256]; /* the library's */
};

/* Returns what tell() did. */
static int tell_and_leave(const char *path, struct dlx_test_fail *fail, struct told *ret)
{
    struct cast x = {.wrong = NULL};
    dlx_test_fail(fail);
    int r = tell(&x, path);
    (void)snprintf(ret->words, sizeof ret->words, "%s", r < 0 ? dlx_client_errmsg(NULL) : "");
    if (x.t && x.t->deleter)
        x.t->deleter(x.t);
    dlx_message_unref(x.m);
    dlx_subscription_unref(x.pattern);
    dlx_subscription_unref(x.s);
    dlx_publisher_unref(x.p);
    dlx_client_unref(x.one);
    dlx_client_unref(x.two);
    dlx_test_fail(NULL);
    ret->wrong = x.wrong;
    ret->n_lost = x.n_lost;
    return r;
}

/* ---- the daemon ---------------------------------------------------------------------------- */

static struct dlx_test_daemon place;

/* Nothing is left of anybody, in a while. What a client left that may be alive stays until that is
 * known: drop it. */
static void wait_until_empty(void)
{
    struct dlx_connect_args args = {
        .size = sizeof args, .socket = place.path, .timeout_ns = PATIENCE};
    struct dlx_daemon_info info = {.size = sizeof info};
    struct dlx_client *c = NULL;
    uint64_t deadline = dlx__deadline(PATIENCE);
    ok(dlx_connect(&c, &args));
    for (;;) {
        (void)dlx_retained_drop(c, "calls/a");
        ok(dlx_client_get_daemon_info(c, &info));
        if (info.shared_bytes == 0 && info.n_publishers == 0 && info.n_clients == 1)
            break;
        ck_assert_msg(dlx__now_ns() < deadline, "%llu bytes, %u publishers, %u clients are left",
                      (unsigned long long)info.shared_bytes, info.n_publishers, info.n_clients);
        (void)poll(NULL, 0, 1);
    }
    dlx_client_unref(c);
}

/* ---- what may be said ---------------------------------------------------------------------- */

/* That one call failed is nobody's lie, and no reason to wait until time is over. */
static bool is_honest(int code)
{
    return code != DLX_E_TIMEOUT && code != DLX_E_PROTOCOL && code != DLX_E_BAD_PEER &&
           code != DLX_E_INVALID && code != DLX_E_PUBLISHER_NOT_RESPONDING;
}

/* What the daemon does again, or at its next look. */
static bool passes_unnoticed(const struct dlx_test_fail *fail)
{
    return fail->call && (fail->error == EINTR || strcmp(fail->call, "poll") == 0);
}

static void tell_with_each_failure(bool daemon_fails)
{
    struct dlx_test_fail fail = {.at = 0};
    struct told told;
    size_t n_failed = 0;
    dlx_test_server_start(place.path, NULL);
    ck_assert_int_eq(tell_and_leave(place.path, NULL, &told), 0);
    dlx_test_server_stop();
    size_t fds_before = dlx_test_fds_count();
    if (!daemon_fails)
        dlx_test_server_start(place.path, NULL);
    while (dlx_test_fail_next(&fail)) {
        if (daemon_fails)
            dlx_test_server_start(place.path, &fail);
        int r = tell_and_leave(place.path, daemon_fails ? NULL : &fail, &told);
        size_t at = atomic_exchange(&fail.at, 0);
        if (r < 0)
            ck_assert_msg(is_honest(r) && *told.words, "call %zu (%s), way %zu: %s: %s", at,
                          fail.call, fail.way, dlx_strerror(r), told.words);
        ck_assert_msg(!told.wrong, "call %zu, way %zu: %s", at, fail.way, told.wrong);
        if (daemon_fails && passes_unnoticed(&fail))
            ck_assert_msg(r == 0 && told.n_lost == 0,
                          "call %zu (%s), way %zu: %s, %zu connections lost", at, fail.call,
                          fail.way, told.words, (size_t)told.n_lost);
        n_failed += r < 0;
        wait_until_empty();
        r = tell_and_leave(place.path, NULL, &told);
        ck_assert_msg(r == 0 && !told.wrong, "after call %zu, way %zu: %s: %s %s", at, fail.way,
                      dlx_strerror(r), told.words, told.wrong ? told.wrong : "");
        wait_until_empty();
        if (daemon_fails) {
            dlx_test_server_stop();
            ck_assert_msg(dlx_test_fds_count() == fds_before,
                          "%s (call %zu) failed with %s: %zu descriptors, %zu before",
                          fail.call ? fail.call : "nothing", at, strerror(fail.error),
                          dlx_test_fds_count(), fds_before);
        }
        atomic_store(&fail.at, at);
    }
    if (!daemon_fails)
        dlx_test_server_stop();
    ck_assert_uint_eq(dlx_test_fds_count(), fds_before);
    ck_assert_uint_gt(n_failed, 20);
}

TEST(a_call_of_the_daemon_fails)
{
    tell_with_each_failure(true);
}

TEST(a_call_of_the_library_fails)
{
    tell_with_each_failure(false);
}

/* ---- what the daemon has to know before it sends more --------------------------------------- */

/* Less than PATIENCE: something comes at once, or never. */
#define SOON (INT64_C(5000000000))

static struct dlx_client *connect_soon(void)
{
    struct dlx_connect_args args = {.size = sizeof args, .socket = place.path, .timeout_ns = SOON};
    struct dlx_client *c = NULL;
    ok(dlx_connect(&c, &args));
    return c;
}

/* The socket takes nothing for so long. */
#define FULL_NS UINT64_C(100000000)

/* Full from each packet on. How many could not acknowledge, and subscribed all the same? What else
 * fails is told at once. */
static size_t subscribe_when_full(struct dlx_client *c)
{
    size_t n_good = 0;
    bool failed = true;
    for (size_t at = 2; failed; at++) { /* the first one is Subscribe, which waits */
        struct dlx_test_fail fail = {.at = at, .only = "sendmsg", .for_ns = FULL_NS};
        struct dlx_subscription *s = NULL;
        dlx_test_fail(&fail);
        int r = dlx_subscribe(c, "calls/*", NULL, &s);
        dlx_test_fail(NULL);
        ck_assert_msg(r == 0 || r == DLX_E_FULL, "packet %zu: %s", at, dlx_client_errmsg(NULL));
        failed = fail.call != NULL;
        n_good += r == 0 && failed;
        dlx_subscription_unref(s);
    }
    return n_good;
}

/* A pattern has more spare links than the daemon offers without an Ack. Which packet is one depends
 * on how fast it is. */
TEST(a_subscriber_that_could_not_acknowledge_tries_again)
{
    dlx_test_server_start(place.path, NULL);
    struct dlx_client *c = connect_soon();
    for (size_t n_good = 0; n_good < 3;)
        n_good += subscribe_when_full(c);
    dlx_client_unref(c);
    dlx_test_server_stop();
}

/* Likewise of one that sleeps: 0 in dlx_take(), 1 on the descriptor; and there are more arenas than
 * come without an Ack. */
LOOP_TEST(a_subscriber_that_sleeps_and_could_not_acknowledge_tries_again, 0, 2)
{
    enum { N_MESSAGES = 7 };
    bool failed = true;
    struct dlx_client *c;
    dlx_test_server_start(place.path, NULL);
    c = connect_soon();
    for (size_t at = 1; failed; at++) {
        struct dlx_test_fail fail = {.at = at, .only = "sendmsg", .for_ns = FULL_NS};
        struct cast x = {.one = c};
        struct dlx_publisher_args args = {.size = sizeof args, .depth = 2 * N_MESSAGES};
        ok(dlx_subscribe(c, "calls/a", NULL, &x.s));
        ok(dlx_publisher_new(c, "calls/a", &args, &x.p));
        for (int i = 0; i < N_MESSAGES; i++)
            ok(publish(&x, INT64_C(1000) << i, i));
        struct pollfd pfd = {.fd = dlx_subscription_fd(x.s), .events = POLLIN};
        int n = 0, r = 0;
        while (n < N_MESSAGES && (r == 0 || r == DLX_E_FULL)) { /* a spare link that was not made */
            dlx_test_fail(&fail);
            r = dlx_take(x.s, _i == 0 ? SOON : 0, &x.m);
            dlx_test_fail(NULL);
            if (r == 0)
                n++;
            else if (r == DLX_E_EMPTY)
                r = poll(&pfd, 1, (int)(SOON / 1000000)) == 1 ? 0 : DLX_E_TIMEOUT;
            x.m = dlx_message_unref(x.m);
        }
        ck_assert_msg(n == N_MESSAGES, "packet %zu: %s after %d messages", at, dlx_strerror(r), n);
        failed = fail.call != NULL;
        dlx_subscription_unref(x.s);
        dlx_publisher_unref(x.p);
    }
    dlx_client_unref(c);
    dlx_test_server_stop();
}

int main(void)
{
    TCase *tcase = tcase_create("calls");
    tcase_set_timeout(tcase, 5 * PATIENCE_S);
    dlx_test_dir_fixture(tcase, &place);
    return dlx_test_run_case(tcase);
}
