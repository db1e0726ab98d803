/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Daemons that follow each other, each time with one call of the C library that fails: retained
 * messages are there as they were, or not there; publishers and subscriptions go on all the same, a
 * little later; no call waits for ever, and nothing is left.
 */

#include "client/publish/publisher.h"
#include "client/publish/publisher_move.h"
#include "client/subscribe/subscription.h"
#include "tests/fail/harness_fail.h"
#include "tests/fail/harness_server.h"
#include "tests/harness/manager.h"
#include "tests/harness/stream.h"

enum { GIVES, TAKES_BACK }; /* the daemon that fails */
enum { N_RETAINED = 50, LAST = 7 };

#define GROUPS .groups = (const char *const[]){"g"}, .n_groups = 1
#define WORKER SUBSCRIBE(.group = "g", .max_held = 2, .max_attempts = 60)

static struct dlx_test_manager manager;

/* Starts a daemon with the manager's descriptors, once that has read the last daemon's words. */
static void start_with_kept(struct dlx_test_fail *fail)
{
    static struct dlxd_manager_fds fds;
    struct pollfd p = {.fd = manager.sock, .events = POLLIN};
    while (poll(&p, 1, 0) == 1)
        (void)poll(NULL, 0, 1);
    pthread_mutex_lock(&manager.lock);
    fds = (struct dlxd_manager_fds){.fds = calloc(manager.n + 1, sizeof *fds.fds)};
    ck_assert_ptr_nonnull(fds.fds);
    for (size_t i = 0; i < manager.n; i++)
        fds.fds[fds.n++] =
            (struct dlxd_manager_fd){.fd = fcntl(manager.kept[i].fd, F_DUPFD_CLOEXEC, 0),
                                     .name = strdup(manager.kept[i].name)};
    pthread_mutex_unlock(&manager.lock);
    dlx_test_server_start(fail, &fds);
}

static bool
    is_queue; /* what outlives a daemon: a message that no worker has done, or a retained one */

/* As far as it goes, when the daemon has its difficulties. */
static int leave_messages(void)
{
    struct dlx_test_cast x = {.m = NULL};
    int r = dlx_test_server_connect(&x.c[0]);
    if (r == 0)
        r = dlx_publisher_new(x.c[0], "store/a",
                              is_queue ? PUBLISHER(GROUPS) : PUBLISHER(.retain = 1), &x.p);
    for (int64_t value = 1; r == 0 && value <= LAST; value++)
        r = dlx_test_cast_publish(&x, N_RETAINED, value);
    (void)dlx_test_fail_say(r);
    dlx_test_cast_leave(&x);
    return r;
}

/* A message of the queue, which stays there. */
static int take_work(struct dlx_test_cast *x)
{
    int r = dlx_subscribe(x->c[0], "store/a", WORKER, &x->s);
    return r < 0 ? r : dlx_take(x->s, 0, &x->m);
}

/* Returns 0, EMPTY, or another code if the daemon may have its difficulties. */
static int look(void)
{
    struct dlx_test_cast x = {.m = NULL};
    int r = dlx_test_server_connect(&x.c[0]);
    if (r == 0)
        r = is_queue ? take_work(&x) : dlx_get(x.c[0], "store/a", 0, &x.m);
    if (r == 0) {
        const int64_t *data = dlx_message_tensor_peek(x.m, 0)->data;
        ck_assert_int_le(data[0], LAST);
        ck_assert_int_eq(data[N_RETAINED - 1], data[0] + N_RETAINED - 1);
    }
    (void)dlx_test_fail_say(r);
    dlx_test_cast_leave(&x);
    return r;
}

/* The life of messages: the daemons that they see, of which one fails. The messages are there as
 * they were, or not there. */
static int outlive(int who, struct dlx_test_fail *fail)
{
    dlx_test_manager_start(&manager, &dlx_test_stream_daemon);
    (void)setenv("NOTIFY_SOCKET", manager.path, 1);
    start_with_kept(who == GIVES ? fail : NULL);
    int left = leave_messages();
    dlx_test_server_stop();
    start_with_kept(who == TAKES_BACK ? fail : NULL);
    int there = look();
    dlx_test_server_stop();
    const char *call = dlx_test_fail_stop(fail);
    start_with_kept(NULL);
    int still = look();
    dlx_test_server_stop();
    dlx_test_fail_expect(there == 0 || call, "that they are there");
    dlx_test_fail_expect(still == 0 || there < 0 || call, "that they are still there");
    dlx_test_fail_expect(still == 0 || still == DLX_E_EMPTY, "an answer of a daemon that is well");
    if (who == GIVES)
        dlx_test_fail_expect(there == 0 || there == DLX_E_EMPTY, "an answer of the next daemon");
    else
        dlx_test_fail_expect(left == 0, "that they could be left");
    dlx_test_manager_stop(&manager);
    int r = who == GIVES ? left : there;
    return r == DLX_E_EMPTY ? 0 : r;
}

static int outlive_daemon(int who, struct dlx_test_fail *fail)
{
    is_queue = false;
    return outlive(who, fail);
}

static int outlive_as_queue(int who, struct dlx_test_fail *fail)
{
    is_queue = true;
    return outlive(who, fail);
}

/* Until it has gone on with this daemon, or, if a call is to fail, until one has. */
static bool publisher_goes_on(struct dlx_publisher *p, uint64_t epoch,
                              const struct dlx_test_fail *fail)
{
    for (uint64_t until = dlx__deadline(PATIENCE);
         p->epoch == epoch && !(fail && fail->call) && dlx__now_ns() < until;) {
        dlx__publisher_check(p, dlx__now_ns(), DLX_HURRY_NOW_AND_THEN, 0);
        if (p->epoch == epoch)
            (void)poll(NULL, 0, 1);
    }
    return p->epoch != epoch;
}

static void subscription_goes_on(struct dlx_subscription *s, const struct dlx_test_fail *fail)
{
    for (uint64_t until = dlx__deadline(PATIENCE);
         (s->sock < 0 || s->n_open < 2) && !(fail && fail->call) && dlx__now_ns() < until;) {
        dlx__subscription_read_notifications(s);
        if (s->sock < 0 || s->n_open < 2)
            (void)poll(NULL, 0, 1);
    }
}

/* Takes up to message `n`: nothing is missed in silence. A link that could not be made is told
 * once; that is the caller's then. */
static void take_the_rest(struct dlx_subscription *s, uint64_t n, bool may_fail)
{
    uint64_t last = 1;
    for (uint64_t until = dlx__deadline(PATIENCE); last < n;) {
        struct dlx_message *m = NULL;
        int r = dlx_take(s, SECOND / 10, &m);
        ck_assert_msg(dlx__now_ns() < until, "no message after %d", (int)last);
        if (r == DLX_E_TIMEOUT || r == DLX_E_DISCONNECTED)
            continue;
        ck_assert_msg(r == 0 || (may_fail && *dlx_errmsg()), "%s", dlx_strerror(r));
        if (r < 0)
            return;
        ck_assert_uint_eq(dlx_message_seq(m), last + dlx_message_gap(m) + 1);
        dlx_test_stream_check(m, 10, (int64_t)dlx_message_seq(m));
        last = dlx_message_seq(m);
        dlx_message_unref(m);
    }
}

/* Of two blocks of memory, as a set has: what was taken for the first one goes back when there is
 * none for the second one. */
static void publish_two(struct dlx_publisher *p, int64_t value)
{
    const struct dlx_item items[] = {{"a", dlx_test_stream_alloc(p, 10, value)},
                                     {"b", dlx_test_stream_alloc(p, 10, value)}};
    ok(dlx_publish_set(p, items, 2, NULL, NULL, NULL));
}

enum { PUBLISHER, SUBSCRIPTION };

/* Another daemon follows. One end goes on with it while a call fails, and then both go on. */
static void change_daemon(struct dlx_test_cast *x, int who, struct dlx_test_fail *fail)
{
    struct dlx_test_fail *of_publisher = who == PUBLISHER ? fail : NULL;
    struct dlx_test_fail *of_subscription = who == SUBSCRIPTION ? fail : NULL;
    uint64_t epoch = x->p->epoch;
    dlx_test_server_stop();
    dlx__subscription_read_notifications(x->s); /* it has ended */
    dlx_test_server_start(NULL, NULL);
    dlx_test_fail(of_publisher);
    (void)publisher_goes_on(x->p, epoch, of_publisher);
    dlx_test_fail(NULL);
    ck_assert_msg(publisher_goes_on(x->p, epoch, NULL), "the publisher does not go on");
    /* The publishers with which it tried to go on are gone. */
    ck_assert_uint_eq(dlx_test_stream_daemon_info(x->c[0]).n_publishers, 1);
    dlx_test_fail(of_subscription);
    subscription_goes_on(x->s, of_subscription);
    dlx_test_fail(NULL);
}

static int go_on(int who, struct dlx_test_fail *fail)
{
    struct dlx_test_cast x = {.m = NULL};
    int64_t n = 0;
    dlx_test_server_start(NULL, NULL);
    ok(dlx_test_server_connect(&x.c[0]));
    ok(dlx_test_server_connect(&x.c[1]));
    x.p = dlx_test_stream_publisher(x.c[0], "test/a", PUBLISHER(.history = 3, .retain = 2));
    x.s = dlx_test_stream_subscribe(x.c[1], "test/a", NULL);
    while (n < 4)
        publish_two(x.p, ++n);
    dlx_test_stream_take(x.s, 1);
    change_daemon(&x, who, fail);
    publish_two(x.p, ++n);
    take_the_rest(x.s, (uint64_t)n, who == SUBSCRIPTION);
    x.s = dlx_subscription_unref(x.s);
    x.p = dlx_publisher_unref(x.p);
    ok(dlx_get(x.c[1], "test/a", 0, &x.m));
    ck_assert_uint_eq(dlx_message_seq(x.m), (uint64_t)n);
    dlx_test_cast_leave(&x);
    dlx_test_server_stop();
    return 0;
}

/* Does what is left: each message once, or marked. One that was held meanwhile is among them. */
static void do_the_rest(struct dlx_test_cast *x, struct dlx_message *held, uint64_t n,
                        bool may_fail)
{
    uint64_t done = 1;
    for (uint64_t until = dlx__deadline(PATIENCE); done != (UINT64_C(1) << n) - 1;) {
        struct dlx_message *m = held;
        int r = held ? 0 : dlx_take(x->s, SECOND / 10, &m);
        ck_assert_msg(dlx__now_ns() < until, "done: %x", (unsigned)done);
        if (r == DLX_E_TIMEOUT || r == DLX_E_DISCONNECTED || r == DLX_E_PUBLISHER_GONE)
            continue;
        ck_assert_msg(r == 0 || (may_fail && *dlx_errmsg()), "%s", dlx_strerror(r));
        if (r < 0 && may_fail) { /* a link that could not be made is told once */
            may_fail = false;
            x->s = dlx_subscription_unref(x->s);
            x->s = dlx_test_stream_subscribe(x->c[1], "test/a", WORKER);
            continue;
        }
        uint64_t bit = UINT64_C(1) << (dlx_message_seq(m) - 1);
        dlx_test_stream_check(m, 10, (int64_t)dlx_message_seq(m));
        ck_assert(!(done & bit) || dlx_message_attempt(m) > 1);
        r = dlx_message_done(m);
        ck_assert(r == 0 || r == DLX_E_NOT_FOUND);
        done |= r == 0 ? bit : 0;
        held = NULL;
        dlx_message_unref(m);
    }
}

/* A worker that is not in a call does not hear that its former link has nothing left. */
static bool has_drained(struct dlx_test_cast *x)
{
    ck_assert_int_lt(dlx_take(x->s, 0, &x->m), 0);
    return dlx_publisher_drain(x->p, SECOND / 1000) == 0;
}

static int go_on_working(int who, struct dlx_test_fail *fail)
{
    struct dlx_test_cast x = {.m = NULL};
    int64_t n = 0;
    dlx_test_server_start(NULL, NULL);
    ok(dlx_test_server_connect(&x.c[0]));
    ok(dlx_test_server_connect(&x.c[1]));
    x.p = dlx_test_stream_publisher(x.c[0], "test/a", PUBLISHER(GROUPS));
    x.s = dlx_test_stream_subscribe(x.c[1], "test/a", WORKER);
    while (n < 4)
        publish_two(x.p, ++n);
    struct dlx_message *m = dlx_test_stream_next(x.s);
    ok(dlx_message_done(m));
    dlx_message_unref(m);
    m = dlx_test_stream_next(x.s);
    change_daemon(&x, who, fail);
    publish_two(x.p, ++n);
    do_the_rest(&x, m, (uint64_t)n, who == SUBSCRIPTION);
    eventually(has_drained(&x));
    dlx_test_cast_leave(&x);
    dlx_test_server_stop();
    return 0;
}

static const struct dlx_test_fail_story stories[] = {
    {"the daemon that gives messages away", outlive_daemon, GIVES, .n_calls = 150},
    {"the daemon that takes them back", outlive_daemon, TAKES_BACK, .n_calls = 150},
    {"a publisher with the next daemon", go_on, PUBLISHER, .n_calls = 80},
    {"a subscription with the next daemon", go_on, SUBSCRIPTION, .n_calls = 80},
    {"the daemon that gives a queue away", outlive_as_queue, GIVES, .n_calls = 150},
    {"the daemon that takes it back", outlive_as_queue, TAKES_BACK, .n_calls = 150},
    {"a publisher of a queue with the next daemon", go_on_working, PUBLISHER, .n_calls = 80},
    {"a worker with the next daemon", go_on_working, SUBSCRIPTION, .n_calls = 80},
};

LOOP_TEST(each_call_fails_once, 0, DLX_ARRAY_SIZE(stories))
{
    dlx_test_fail_each(&stories[_i]);
}

int main(void)
{
    return dlx_test_run_case(dlx_test_server_case("restart_fails"));
}
