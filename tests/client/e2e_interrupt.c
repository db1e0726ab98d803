/* SPDX-License-Identifier: Apache-2.0 */

/* dlx_connect_args.interrupt: what waits for a daemon that stands still is ended by it, and nothing
 * of it is left. */

#include "client/control/call.h"
#include "client/publish/publisher.h"
#include "tests/harness/stream.h"
#include <stdatomic.h>
#include <sys/un.h>

/* Elements: more than a publisher has when it is new; and more than are allocated before the first
 * question. */
enum { LARGE = 1 << 20, SLOW = 1 << 26 };

struct asked {
    int n;
    int stop_at;     /* 0: never */
    int continue_at; /* the daemon; 0: never */
};

static _Thread_local struct asked asked;
static int data;

static int interrupt(void *interrupt_data)
{
    if (interrupt_data != &data)
        return 1;
    asked.n++;
    if (asked.n == asked.continue_at)
        (void)kill(dlx_test_stream_daemon.pid, SIGCONT);
    return asked.n == asked.stop_at;
}

static struct dlx_client *connect_with(int64_t timeout_ns)
{
    struct dlx_client *c = NULL;
    ok(dlx_connect(
        CONNECT(.timeout_ns = timeout_ns, .interrupt = interrupt, .interrupt_data = &data), &c));
    return c;
}

static struct sockaddr_un address_of(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    ck_assert_uint_lt(strlen(path), sizeof address.sun_path);
    memcpy(address.sun_path, path, strlen(path) + 1);
    return address;
}

/* No process accepts its connections. */
static int listen_at(const char *path, int backlog)
{
    const struct sockaddr_un address = address_of(path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(listen(fd, backlog), 0);
    return fd;
}

static int count_publisher(const struct dlx_publisher_info *info, void *userdata)
{
    (void)info;
    ++*(int *)userdata;
    return 0;
}

static int alloc_n(struct dlx_publisher *p, int64_t n, DLManagedTensorVersioned **ret)
{
    struct dlx_tensor_spec spec = INT64_SPEC(&n);
    return dlx_alloc(p, &spec, ret);
}

static int alloc(struct dlx_publisher *p, DLManagedTensorVersioned **ret)
{
    return alloc_n(p, LARGE, ret);
}

static int publish(struct dlx_publisher *p)
{
    static int64_t values[LARGE], n = LARGE;
    DLManagedTensorVersioned mine = INT64_TENSOR(values, &n);
    return dlx_publish(p, &mine, NULL, NULL);
}

static void is_ended(int r, const char *what)
{
    ck_assert_msg(r == DLX_E_INTERRUPTED && asked.n == asked.stop_at, "%s: %d (%s), asked %d times",
                  what, r, dlx_errmsg(), asked.n);
    ck_assert_msg(strstr(dlx_errmsg(), dlx_test_stream_daemon.path), "%s: %s", what, dlx_errmsg());
    asked.n = 0;
}

/* Of the client's calls that ask the daemon. */
static void each_call_is_ended(struct dlx_client *c)
{
    struct dlx_publisher *other = NULL;
    struct dlx_subscription *s = NULL;
    struct dlx_daemon_info info = {.size = sizeof info};
    int n = 0;
    is_ended(dlx_publisher_new(c, "test/b", NULL, &other), "dlx_publisher_new");
    is_ended(dlx_subscribe(c, "test/a", NULL, &s), "dlx_subscribe");
    is_ended(dlx_drop_retained(c, "test/a"), "dlx_drop_retained");
    is_ended(dlx_list_publishers(c, NULL, count_publisher, &n), "dlx_list_publishers");
    is_ended(dlx_client_get_daemon_info(c, &info), "dlx_client_get_daemon_info");
}

TEST(an_interrupt_ends_every_wait_for_the_daemon)
{
    auto_client *c = connect_with(DLX_FOREVER);
    struct dlx_message *m = NULL;
    DLManagedTensorVersioned *t = NULL;
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", NULL);
    struct dlx_daemon_info before = dlx_test_stream_daemon_info(c), after = before;
    dlx_test_daemon_pause(&dlx_test_stream_daemon);
    asked = (struct asked){.stop_at = 2};
    is_ended(alloc(p, &t), "dlx_alloc");
    is_ended(publish(p), "dlx_publish");
    is_ended(dlx_get(c, "test/a", DLX_FOREVER, &m), "dlx_get");
    each_call_is_ended(c);
    asked.stop_at = 0;
    ck_assert_int_eq(kill(dlx_test_stream_daemon.pid, SIGCONT), 0);
    /* All of that was done, and is given back; a subscription is when the daemon sees that its
     * socket is closed. */
    eventually((after = dlx_test_stream_daemon_info(c)).n_publishers == 1 &&
               after.shared_bytes == before.shared_bytes);
    ok(publish(p));
}

static void count(void *n)
{
    ++*(int *)n;
}

/* Whichever handle is the last one. A message does not wait for the daemon. */
LOOP_TEST(interrupt_data_is_freed_with_the_last_handle, 0, 3)
{
    int n = 0;
    struct dlx_client *c = NULL;
    struct dlx_message *m = NULL;
    ok(dlx_connect(CONNECT(.interrupt_free = count, .interrupt_data = &n), &c));
    struct dlx_publisher *p = dlx_test_stream_publisher(c, "test/a", NULL);
    struct dlx_subscription *s = dlx_test_stream_subscribe(c, "test/a", NULL);
    ok(publish(p));
    ok(dlx_take(s, PATIENCE, &m));
    for (int i = _i; i < _i + 3; i++) {
        ck_assert_int_eq(n, 0);
        if (i % 3 == 0)
            dlx_client_unref(c);
        else if (i % 3 == 1)
            dlx_publisher_unref(p);
        else
            dlx_subscription_unref(s);
    }
    ck_assert_int_eq(n, 1);
    dlx_message_unref(m);
}

TEST(interrupt_data_is_the_callers_if_nothing_was_connected)
{
    int n = 0;
    struct dlx_client *c = NULL;
    struct dlx_connect_args args = {
        .size = sizeof args, .socket = "/nowhere", .interrupt_free = count, .interrupt_data = &n};
    fails(dlx_connect(&args, &c), DLX_E_NO_DAEMON, "/nowhere");
    ck_assert_int_eq(n, 0);
}

/* A program that was compiled before there was interrupt_free. */
TEST(connect_args_may_end_before_interrupt_free)
{
    struct dlx_client *c = NULL;
    struct dlx_connect_args args = {.size = offsetof(struct dlx_connect_args, interrupt_free),
                                    .socket = dlx_test_stream_daemon.path,
                                    .interrupt_free = count};
    ok(dlx_connect(&args, &c));
    dlx_client_unref(c);
}

TEST(an_interrupt_ends_an_allocation)
{
    auto_client *c = connect_with(PATIENCE);
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", NULL);
    DLManagedTensorVersioned *t = NULL;
    struct dlx_daemon_info before = dlx_test_stream_daemon_info(c);
    asked = (struct asked){.stop_at = 1};
    fails(alloc_n(p, SLOW, &t), DLX_E_INTERRUPTED, "of 512.0 MiB were allocated");
    ck_assert_int_eq(asked.n, 1);
    ck_assert_uint_eq(dlx_test_stream_daemon_info(c).shared_bytes, before.shared_bytes);
    ok(publish(p)); /* it may have memory again at once */
}

static struct {
    struct dlx_client *c;
    struct dlx_publisher *p;
} taker;

/* In place of the daemon, which takes arenas back from a process that is stopped: the first
 * `n_arenas`. */
static int take_arenas_back(void *n_arenas)
{
    for (uint32_t id = 1; id <= *(uint32_t *)n_arenas; id++)
        (void)dlx__call_arena_drop(taker.c, taker.p->id, id, false);
    return 0;
}

/* Once is made good for. */
LOOP_TEST(memory_that_the_daemon_takes_back_twice_is_a_timeout, 1, 3)
{
    DLManagedTensorVersioned *t = NULL;
    uint32_t n = (uint32_t)_i;
    ok(dlx_connect(CONNECT(.interrupt = take_arenas_back, .interrupt_data = &n), &taker.c));
    ok(dlx_publisher_new(taker.c, "test/a", NULL, &taker.p));
    int r = alloc_n(taker.p, SLOW, &t);
    if (n == 1)
        ok(r);
    else
        fails(r, DLX_E_TIMEOUT, "stopped or is too slow");
    dlx_test_stream_end_tensor(&t);
    dlx_publisher_unref(taker.p);
    dlx_client_unref(taker.c);
}

TEST(interrupt_is_asked_as_long_as_the_daemon_stands_still)
{
    auto_client *c = connect_with(DLX_FOREVER);
    dlx_test_daemon_pause(&dlx_test_stream_daemon);
    asked = (struct asked){.continue_at = 3};
    (void)dlx_test_stream_daemon_info(c);
    ck_assert_int_ge(asked.n, 3);
}

/* A daemon that has ended is waited for, too; and so is the answer of one in its place that is
 * deaf. */
TEST(an_interrupt_ends_the_wait_for_another_daemon)
{
    auto_client *c = connect_with(DLX_FOREVER);
    DLManagedTensorVersioned *t = NULL;
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", NULL);
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    asked = (struct asked){.stop_at = 3};
    is_ended(alloc(p, &t), "dlx_alloc");
    (void)unlink(dlx_test_stream_daemon.path);
    int deaf = listen_at(dlx_test_stream_daemon.path, 4096);
    each_call_is_ended(c);
    close(deaf);
    (void)unlink(dlx_test_stream_daemon.path);
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
    asked.stop_at = 0;
    ok(publish(p));
}

struct act {
    struct dlx_client *c;
    atomic_bool has_begun;
    int result;
};

/* No assertions here. The thread has the client's lock while it waits. */
static void *ask(void *userdata)
{
    struct act *act = userdata;
    struct dlx_daemon_info info = {.size = sizeof info};
    atomic_store(&act->has_begun, true);
    act->result = dlx_client_get_daemon_info(act->c, &info);
    return NULL;
}

/* The second thread waits for the first, or comes first itself: both end in the same way. */
TEST(an_interrupt_ends_the_wait_for_another_thread)
{
    struct act act = {.c = connect_with(PATIENCE), .result = -1};
    DLManagedTensorVersioned *t = NULL;
    struct dlx_publisher *p = dlx_test_stream_publisher(act.c, "test/a", NULL);
    dlx_test_daemon_pause(&dlx_test_stream_daemon);
    pthread_t thread = dlx_test_stream_thread(ask, &act);
    while (!atomic_load(&act.has_begun))
        ;
    for (int i = 0; i < 5; i++) {
        asked = (struct asked){.stop_at = 1};
        is_ended(alloc(p, &t), "dlx_alloc");
    }
    ck_assert_int_eq(kill(dlx_test_stream_daemon.pid, SIGCONT), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(act.result, 0);
    asked.stop_at = 0;
    ok(alloc(p, &t));
    dlx_test_stream_end_tensor(&t);
    dlx_publisher_unref(p);
    dlx_client_unref(act.c);
}

static struct {
    struct act act;
    pthread_t caller, thread;
    bool is_paused;
    int n_waits; /* of the caller */
} slow;

/* The daemon stands still before it can prove the arena, for longer than a call waits. */
static int slow_down(void *unused)
{
    (void)unused;
    if (!pthread_equal(pthread_self(), slow.caller))
        return 0;
    if (!slow.is_paused)
        dlx_test_daemon_pause(&dlx_test_stream_daemon);
    slow.is_paused = true;
    if (!atomic_load(&slow.act.c->is_patient))
        return 0;
    slow.n_waits++;
    if (slow.n_waits == 1)
        slow.thread = dlx_test_stream_thread(ask, &slow.act);
    if (slow.n_waits == 10)
        (void)kill(dlx_test_stream_daemon.pid, SIGCONT);
    return 0;
}

/* And so has a thread that waits for this one. */
TEST(a_large_arena_has_more_time_to_be_proved_than_other_calls)
{
    DLManagedTensorVersioned *t = NULL;
    slow.caller = pthread_self();
    ok(dlx_connect(CONNECT(.timeout_ns = SECOND, .interrupt = slow_down), &slow.act.c));
    struct dlx_publisher *p = dlx_test_stream_publisher(slow.act.c, "test/a", NULL);
    ok(alloc_n(p, SLOW, &t));
    ck_assert_int_ge(slow.n_waits, 10);
    ck_assert_int_eq(pthread_join(slow.thread, NULL), 0);
    ck_assert_int_eq(slow.act.result, 0);
    dlx_test_stream_end_tensor(&t);
    dlx_publisher_unref(p);
    dlx_client_unref(slow.act.c);
}

/* A program that was interrupted can end. */
TEST(a_close_does_not_wait_for_a_daemon_that_is_known_to_stand_still)
{
    auto_client *c = connect_with(DLX_FOREVER);
    struct dlx_publisher *p[8] = {NULL};
    struct dlx_daemon_info info = {.size = sizeof info};
    char topic[] = "test/0";
    for (size_t i = 0; i < DLX_ARRAY_SIZE(p); i++, topic[5]++)
        ok(dlx_publisher_new(c, topic, NULL, &p[i]));
    dlx_test_daemon_pause(&dlx_test_stream_daemon);
    asked = (struct asked){.stop_at = 1};
    is_ended(dlx_client_get_daemon_info(c, &info), "dlx_client_get_daemon_info");
    dlx_test_stream_unref_publishers(p, DLX_ARRAY_SIZE(p));
    ck_assert_int_eq(asked.n, 0);
    asked.stop_at = 0;
    ck_assert_int_eq(kill(dlx_test_stream_daemon.pid, SIGCONT), 0);
    ok(dlx_client_get_daemon_info(c, &info));
    ck_assert_uint_eq(info.n_publishers, 0);
}

static struct {
    struct dlx_client *c;
    struct dlx_publisher *p;
    int result;
} inner;

/* As a handler of SIGTERM does. */
static int close_one(void *unused)
{
    struct dlx_daemon_info info = {.size = sizeof info};
    (void)unused;
    inner.p = dlx_publisher_unref(inner.p);
    inner.result = dlx_client_get_daemon_info(inner.c, &info);
    (void)kill(dlx_test_stream_daemon.pid, SIGCONT);
    return 0;
}

LOOP_TEST(interrupt_may_close_a_publisher_and_ask_the_daemon_nothing, 0, 2)
{
    ok(dlx_connect(CONNECT(.timeout_ns = _i == 0 ? PATIENCE : DLX_FOREVER, .interrupt = close_one),
                   &inner.c));
    ok(dlx_publisher_new(inner.c, "test/a", NULL, &inner.p));
    dlx_test_daemon_pause(&dlx_test_stream_daemon);
    struct dlx_daemon_info info = dlx_test_stream_daemon_info(inner.c);
    ck_assert_int_eq(inner.result, DLX_E_IN_USE);
    ok(dlx_client_get_daemon_info(inner.c, &info));
    ck_assert_uint_eq(info.n_publishers, 0); /* the daemon heard of it */
    dlx_client_unref(inner.c);
}

/* As a daemon that stands still has when many come. */
TEST(a_connect_without_a_place_in_the_listen_queue_waits_no_longer_than_asked)
{
    char path[108];
    (void)snprintf(path, sizeof path, "%.90s/full", dlx_test_stream_daemon.dir);
    int listener = listen_at(path, 0), first = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const struct sockaddr_un address = address_of(path);
    ck_assert_int_eq(connect(first, (const struct sockaddr *)&address, sizeof address), 0);
    struct dlx_connect_args args = {.size = sizeof args,
                                    .socket = path,
                                    .timeout_ns = SECOND / 20,
                                    .interrupt = interrupt,
                                    .interrupt_data = &data};
    struct dlx_client *c = NULL;
    asked = (struct asked){.stop_at = 0};
    fails(dlx_connect(&args, &c), DLX_E_TIMEOUT, path);
    args.interrupt = NULL;
    args.timeout_ns = 1; /* not "for ever", as 0 is for the kernel */
    fails(dlx_connect(&args, &c), DLX_E_TIMEOUT, path);
    args.interrupt = interrupt;
    args.timeout_ns = DLX_FOREVER;
    asked = (struct asked){.stop_at = 2};
    fails(dlx_connect(&args, &c), DLX_E_INTERRUPTED, path);
    ck_assert_int_eq(asked.n, 2);
    close(first);
    close(listener);
    unlink(path);
}
