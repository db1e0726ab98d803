/* SPDX-License-Identifier: Apache-2.0 */

/*
 * dlx_connect_args.interrupt ends every wait for other programs: takes, publishes, waits for
 * subscribers, and the start of a daemon. Nothing is lost by it, and nothing is counted.
 */

#include "tests/harness/fds.h"
#include "tests/harness/spawn.h"
#include "tests/harness/stream.h"
#include <sys/file.h>
#include <sys/time.h>

static struct {
    int n;
    int stop_at; /* from this question on: 0: never */
    int act_at;  /* 0: never */
    void (*act)(void);
} asked;

static int interrupt(void *unused)
{
    (void)unused;
    asked.n++;
    if (asked.n == asked.act_at)
        asked.act();
    return asked.stop_at > 0 && asked.n >= asked.stop_at;
}

/* The client that is asked has a publisher and a subscription on test/a, and one on test/none;
 * `other` has the same, and no `interrupt`. */
static struct {
    struct dlx_client *c, *other;
    struct dlx_publisher *p, *other_p;
    struct dlx_subscription *s, *other_s, *late;
    DLManagedTensorVersioned *t[3];
} now;

/* A wait of the client that is asked, and how another program ends it. */
struct wait {
    const char *name;
    const char *topic;
    int (*call)(int64_t timeout_ns);
    void (*end)(void);
    bool blocks; /* there is no room */
    uint32_t min_subscribers;
    int64_t spin_ns;
    bool without_publisher;
    bool with_fd;
};

static int take(int64_t timeout_ns)
{
    auto_message *m = NULL;
    int r = dlx_take(now.s, timeout_ns, &m);
    if (r == 0) {
        dlx_test_stream_check(m, 10, 7);
        ck_assert_uint_eq(dlx_message_seq(m), 1);
        ck_assert_uint_eq(dlx_message_gap(m), 0);
    }
    return r;
}

static int take_n(int64_t timeout_ns)
{
    struct dlx_message *m[2] = {NULL};
    uint32_t n = 0;
    int r = dlx_take_n(now.s, 2, timeout_ns, m, &n);
    ck_assert_uint_eq(n, r == 0);
    dlx_message_unref(m[0]);
    return r;
}

static int get(int64_t timeout_ns)
{
    auto_message *m = NULL;
    int r = dlx_get(now.c, "test/other", timeout_ns, &m);
    return r;
}

static int publish(int64_t timeout_ns)
{
    int r = dlx_publish(now.p, now.t[0], PUBLISH(.timeout_ns = timeout_ns), NULL);
    if (r == 0)
        now.t[0] = NULL;
    return r;
}

static int publish_n(int64_t timeout_ns)
{
    uint32_t n = 9;
    int r = dlx_publish_n(now.p, now.t, 2, PUBLISH(.timeout_ns = timeout_ns), NULL, &n);
    ck_assert_uint_eq(n, r == 0 ? 2 : 0);
    if (r == 0)
        now.t[0] = now.t[1] = NULL;
    return r;
}

static int publish_set(int64_t timeout_ns)
{
    const struct dlx_item items[] = {{"x", now.t[0]}, {"y", now.t[1]}};
    int r = dlx_publish_set(now.p, items, 2, NULL, PUBLISH(.timeout_ns = timeout_ns), NULL);
    if (r == 0)
        now.t[0] = now.t[1] = NULL;
    return r;
}

static int publisher_wait(int64_t timeout_ns)
{
    return dlx_publisher_wait(now.p, 2, timeout_ns);
}

static void other_publishes(void)
{
    dlx_test_stream_publish(now.other_p, 10, 7);
}

static void other_takes_all(void)
{
    struct dlx_message *m = NULL;
    while (dlx_take(now.other_s, 0, &m) == 0)
        m = dlx_message_unref(m);
}

static void other_subscribes(void)
{
    ok(dlx_subscribe(now.other, "test/a", NULL, &now.late));
}

static const struct wait waits[] = {
    {"take", "test/other", take, other_publishes, .blocks = false},
    {"take with a descriptor", "test/other", take, other_publishes, .with_fd = true},
    {"take, spinning for ever", "test/other", take, other_publishes, .spin_ns = DLX_SPIN_ALWAYS},
    {"take, spinning for long", "test/other", take, other_publishes, .spin_ns = 100 * SECOND},
    {"take, never spinning", "test/other", take, other_publishes, .spin_ns = DLX_SPIN_NEVER},
    {"take of nobody", "test/other", take, other_publishes, .without_publisher = true},
    {"take several", "test/other", take_n, other_publishes, .blocks = false},
    {"get", "test/other", get, other_publishes, .blocks = false},
    {"publish", "test/a", publish, other_takes_all, .blocks = true},
    {"publish several", "test/a", publish_n, other_takes_all, .blocks = true},
    {"publish a set", "test/a", publish_set, other_takes_all, .blocks = true},
    {"publish to required ones", "test/a", publish, other_subscribes, .min_subscribers = 2},
    {"wait for subscribers", "test/a", publisher_wait, other_subscribes, .blocks = false},
};
enum { N_WAITS = DLX_ARRAY_SIZE(waits) };

static bool takes(const struct wait *w)
{
    return w->call == take || w->call == take_n;
}

/* A wait that spins makes no system call. */
static bool spins(const struct wait *w)
{
    return w->spin_ns > 0 || w->spin_ns == DLX_SPIN_ALWAYS;
}

static void set_up(const struct wait *w, int (*asks)(void *unused))
{
    now.late = NULL;
    ok(dlx_connect(CONNECT(.interrupt = asks), &now.c));
    now.other = dlx_test_stream_connect();
    now.p = dlx_test_stream_publisher(
        now.c, "test/a", PUBLISHER_BLOCKING(.depth = 3, .min_subscribers = w->min_subscribers));
    now.other_p =
        dlx_test_stream_publisher(now.other, w->without_publisher ? "test/b" : "test/other", NULL);
    now.s = dlx_test_stream_subscribe(now.c, "test/other", SUBSCRIBE(.spin_ns = w->spin_ns));
    now.other_s = dlx_test_stream_subscribe(now.other, "test/a", SUBSCRIBE_RELIABLY);
    ck_assert(!w->with_fd || dlx_subscription_fd(now.s) >= 0);
    ok(dlx_publisher_wait(now.p, 1, PATIENCE));
    for (size_t i = 0; i < DLX_ARRAY_SIZE(now.t); i++)
        now.t[i] = dlx_test_stream_alloc(now.p, 10, 7);
    if (w->blocks)
        dlx_test_stream_publish_all(now.p, 10, 0, 2);
    if (w->without_publisher)
        now.other_p = dlx_publisher_unref(now.other_p);
    memset(&asked, 0, sizeof asked); /* what took 50 ms, on a busy machine, was asked about */
}

static void tear_down(void)
{
    for (size_t i = 0; i < DLX_ARRAY_SIZE(now.t); i++)
        dlx_test_stream_end_tensor(&now.t[i]);
    dlx_subscription_unref(now.s);
    dlx_subscription_unref(now.other_s);
    dlx_subscription_unref(now.late);
    dlx_publisher_unref(now.p);
    dlx_publisher_unref(now.other_p);
    dlx_client_unref(now.c);
    dlx_client_unref(now.other);
}

static bool sleeps(const struct wait *w)
{
    return takes(w) && !spins(w);
}

/* A wait in many parts counts as one, and has not failed for want of room. */
static void one_wait_is_counted(const struct wait *w)
{
    struct dlx_publisher_stats p = dlx_test_stream_stats(now.p);
    unsigned long long n_sleeps = dlx_test_stream_subscription_stats(now.s).sleeps;
    ck_assert_uint_eq(p.refused, 0);
    ck_assert_uint_eq(p.blocked, w->blocks || w->min_subscribers > 0);
    /* The subscriber may have been woken for what is no message. */
    ck_assert_msg(sleeps(w) ? n_sleeps >= 1 && n_sleeps <= 3 : n_sleeps == 0, "%s slept %llu times",
                  w->name, n_sleeps);
}

static void appear(void)
{
    if (!now.other_p)
        ok(dlx_publisher_new(now.other, "test/other", NULL, &now.other_p));
}

CASE(peers)
{
    return dlx_test_stream_case("interrupt_peers");
}

/* At the first question, and at a later one. */
LOOP_TEST_OF(peers, an_interrupt_ends_every_wait_for_others, 0, 2 * N_WAITS)
{
    const struct wait *w = &waits[_i / 2];
    set_up(w, interrupt);
    size_t n_fds = dlx_test_fds_count();
    asked.stop_at = _i % 2 == 0 ? 1 : 3;
    int r = w->call(DLX_FOREVER);
    ck_assert_msg(r == DLX_E_INTERRUPTED && asked.n == asked.stop_at, "%s: %d (%s), asked %d times",
                  w->name, r, dlx_errmsg(), asked.n);
    ck_assert_ptr_nonnull(strstr(dlx_errmsg(), w->topic));
    ck_assert_ptr_nonnull(strstr(dlx_errmsg(), "interrupted"));
    ck_assert_uint_eq(dlx_test_fds_count(), n_fds);
    one_wait_is_counted(w);
    if (!w->with_fd) /* which is readable at first, so that the program looks */
        ck_assert_uint_eq(dlx_test_stream_subscription_stats(now.s).sleeps, sleeps(w));
    asked.stop_at = 0;
    if (w->call == get) { /* it was to get what is retained, or comes while it waits */
        asked.act_at = asked.n + 1;
        asked.act = w->end;
    } else {
        appear();
        w->end();
    }
    ok(w->call(PATIENCE));
    one_wait_is_counted(w);
    tear_down();
}

static void (*end_it)(void);

static void appear_and_end(void)
{
    appear();
    end_it();
}

LOOP_TEST_OF(peers, a_wait_goes_on_when_it_was_asked_about, 0, N_WAITS)
{
    const struct wait *w = &waits[_i];
    set_up(w, interrupt);
    asked.act_at = 3;
    asked.act = appear_and_end;
    end_it = w->end;
    int r = w->call(PATIENCE);
    ck_assert_msg(r == 0 && asked.n >= 3, "%s: %d (%s), asked %d times", w->name, r, dlx_errmsg(),
                  asked.n);
    ck_assert_str_eq(dlx_errmsg(), "");
    one_wait_is_counted(w);
    tear_down();
}

LOOP_TEST_OF(peers, a_short_wait_is_not_asked_about_and_a_longer_one_ends_in_time, 0, N_WAITS)
{
    const struct wait *w = &waits[_i];
    set_up(w, interrupt);
    int r = w->call(SECOND / 1000);
    ck_assert_msg(r == DLX_E_TIMEOUT && asked.n == 0, "%s: %d (%s), asked %d times", w->name, r,
                  dlx_errmsg(), asked.n);
    uint64_t end = dlx__now_ns() + SECOND / 10;
    fails(w->call(SECOND / 10), DLX_E_TIMEOUT, w->topic);
    ck_assert_uint_ge(dlx__now_ns(), end);
    tear_down();
}

static void note(int signal)
{
    (void)signal;
}

/* 0: no more. */
static void interrupt_every(long us)
{
    const struct sigaction action = {.sa_handler = note}; /* without SA_RESTART */
    const struct itimerval every = {.it_interval = {.tv_usec = us}, .it_value = {.tv_usec = us}};
    ck_assert_int_eq(sigaction(SIGALRM, &action, NULL), 0);
    ck_assert_int_eq(setitimer(ITIMER_REAL, &every, NULL), 0);
}

/* Waits that are too short to be asked about otherwise. */
LOOP_TEST_OF(peers, a_signal_is_asked_about_at_once_and_does_not_end_a_wait, 0, N_WAITS)
{
    const struct wait *w = &waits[_i];
    set_up(w, interrupt);
    interrupt_every(3000);
    uint64_t end = dlx__now_ns() + (uint64_t)PATIENCE;
    while (asked.n == 0 && !spins(w)) {
        fails(w->call(SECOND / 25), DLX_E_TIMEOUT, w->topic);
        ck_assert_uint_lt(dlx__now_ns(), end);
    }
    interrupt_every(0);
    tear_down();
}

/* Nothing is lost, and a tensor stays the caller's. The first signal may come before the call
 * sleeps. */
LOOP_TEST_OF(peers, a_signal_ends_a_wait_where_nobody_is_asked, 0, N_WAITS)
{
    const struct wait *w = &waits[_i];
    if (spins(w))
        return;
    set_up(w, NULL);
    interrupt_every(20000);
    int r = w->call(PATIENCE);
    interrupt_every(0);
    fails(r, DLX_E_INTERRUPTED, "signal");
    appear();
    w->end();
    if (w->call != get) { /* which gets what comes while it waits */
        ok(w->call(PATIENCE));
        one_wait_is_counted(w);
    }
    if (w->blocks) {
        auto_message *m = dlx_test_stream_next(now.other_s);
        ck_assert_uint_eq(dlx_message_seq(m), 4);
        ck_assert_uint_eq(dlx_message_gap(m), 0);
        dlx_test_stream_check(m, 10, 7);
    }
    tear_down();
}

static int inner[4];

static void use_what_waits(void)
{
    struct dlx_daemon_info info = {.size = sizeof info};
    struct dlx_message *m = NULL;
    inner[0] = dlx_take(now.s, 0, &m);
    inner[1] = dlx_publish(now.p, now.t[2], NULL, NULL);
    inner[2] = dlx_client_get_daemon_info(now.c, &info);
    now.late = dlx_subscription_unref(now.late);
}

/* Also by a thread that the publisher and the subscription have known for long. */
LOOP_TEST_OF(peers, interrupt_may_use_all_but_the_object_that_waits, 0, N_WAITS)
{
    const struct wait *w = &waits[_i];
    set_up(w, interrupt);
    for (int n = 0; n < 200; n++)
        ck_assert_uint_eq(dlx_test_stream_stats(now.p).refused +
                              dlx_test_stream_subscription_stats(now.s).taken,
                          0);
    ok(dlx_subscribe(now.other, "test/b", NULL, &now.late));
    asked.act_at = 1;
    asked.act = use_what_waits;
    fails(w->call(SECOND / 10), DLX_E_TIMEOUT, w->topic);
    ck_assert_int_eq(inner[0], takes(w) ? DLX_E_IN_USE : DLX_E_EMPTY);
    ck_assert_int_eq(inner[1], takes(w) || w->call == get ? 0 : DLX_E_IN_USE);
    ck_assert_int_eq(inner[2], 0);
    if (inner[1] == 0)
        now.t[2] = NULL;
    tear_down();
}

CASE(start)
{
    return dlx_test_spawn_case("start");
}

static int connect_private(int64_t timeout_ns)
{
    struct dlx_connect_args args = {
        .size = sizeof args, .timeout_ns = timeout_ns, .interrupt = interrupt};
    auto_client *c = NULL;
    int r = dlx_connect(&args, &c);
    return r;
}

static void let_it_start(void)
{
    dlx_test_spawn_say("go");
}

TEST_OF(start, an_interrupt_ends_the_start_of_a_daemon_and_the_daemon)
{
    char text[32];
    dlx_test_spawn_script("echo $$ >$DIR/pid; exec sleep 1000");
    for (int stop_at = 1; stop_at <= 4; stop_at += 3) {
        memset(&asked, 0, sizeof asked);
        asked.stop_at = stop_at;
        size_t n_fds = dlx_test_fds_count();
        fails(connect_private(DLX_FOREVER), DLX_E_INTERRUPTED, "interrupted while");
        ck_assert_int_eq(asked.n, stop_at);
        ck_assert_uint_eq(dlx_test_fds_count(), n_fds);
        dlx_test_spawn_read("pid", text, sizeof text); /* it was executed before we were asked */
        dlx_test_spawn_wait_end((pid_t)atol(text));
    }
    dlx_test_spawn_remove("pid");
    dlx_test_spawn_remove("script");
}

TEST_OF(start, a_start_goes_on_when_it_was_asked_about)
{
    memset(&asked, 0, sizeof asked);
    asked.act_at = 3;
    asked.act = let_it_start;
    dlx_test_spawn_fifo("go");
    dlx_test_spawn_script("read line <$DIR/go; exec $REAL \"$@\"");
    ok(connect_private(PATIENCE));
    ck_assert_int_ge(asked.n, 3);
    dlx_test_spawn_remove("go");
    dlx_test_spawn_remove("script");
    dlx_test_spawn_wait_empty();
}

TEST_OF(start, an_interrupt_ends_the_wait_for_another_process_that_starts_a_daemon)
{
    int dir = open(dlx_test_spawn_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    memset(&asked, 0, sizeof asked);
    asked.stop_at = 3;
    ck_assert_int_eq(flock(dir, LOCK_EX), 0);
    fails(connect_private(DLX_FOREVER), DLX_E_INTERRUPTED, dlx_test_spawn_socket);
    ck_assert_int_eq(asked.n, 3);
    close(dir);
}

int main(void)
{
    return dlx_test_run_cases();
}
