/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon ends and another one takes its place: streams go on, and everybody is there again. */

#include "client/publish/publisher.h"
#include "tests/harness/fork.h"
#include "tests/harness/seccomp.h"
#include "tests/harness/stream.h"
#include <stdatomic.h>
#include <sys/syscall.h>

struct reader {
    struct dlx_client *c;
    struct dlx_subscription *s;
    atomic_uint_fast64_t to, last; /* values */
    bool polls;
};

static void wait_readable(struct dlx_subscription *s)
{
    struct pollfd p = {.fd = dlx_subscription_fd(s), .events = POLLIN};
    ck_assert_int_ge(p.fd, 0);
    ck_assert_int_eq(poll(&p, 1, PATIENCE_MS), 1);
}

/* A daemon that ends is no signal for the threads that stream: a kernel that valgrind simulates
 * interrupts them by it. */
static void block_sigchld(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    ck_assert_int_eq(pthread_sigmask(SIG_BLOCK, &set, NULL), 0);
}

/* Every value up to `to`, one after the other. */
static void *read_all(void *userdata)
{
    struct reader *r = userdata;
    block_sigchld();
    uint64_t last = atomic_load(&r->last);
    while (last < atomic_load(&r->to)) {
        struct dlx_message *m = NULL;
        int code = dlx_take(r->s, r->polls ? 0 : PATIENCE, &m);
        if (code == DLX_E_EMPTY) {
            wait_readable(r->s);
            continue;
        }
        ok(code);
        ck_assert_uint_eq(dlx_message_seq(m), last + 1);
        ck_assert_uint_eq(dlx_message_gap(m), 0);
        dlx_test_stream_check(m, 10, (int64_t)++last);
        dlx_message_unref(m);
        atomic_store(&r->last, last);
    }
    return NULL;
}

static pthread_t start_reader(struct reader *r)
{
    r->c = dlx_test_stream_connect();
    atomic_store(&r->to, UINT64_MAX);
    r->s = dlx_test_stream_subscribe(r->c, "test/a", SUBSCRIBE_RELIABLY);
    return dlx_test_stream_thread(read_all, r);
}

static void end_reader(struct reader *r)
{
    dlx_subscription_unref(r->s);
    dlx_client_unref(r->c);
}

static bool have_read(const struct reader readers[2], uint64_t to)
{
    return atomic_load(&readers[0].last) >= to && atomic_load(&readers[1].last) >= to;
}

static void publish_patiently(struct dlx_publisher *p, int64_t value)
{
    ok(dlx_publish(p, dlx_test_stream_alloc(p, 10, value), PUBLISH(.timeout_ns = PATIENCE), NULL));
}

struct writer {
    struct dlx_publisher *p;
    atomic_bool stop;
    atomic_uint_fast64_t n;
};

static void *publish_all(void *userdata)
{
    struct writer *w = userdata;
    block_sigchld();
    while (!atomic_load(&w->stop))
        publish_patiently(w->p, (int64_t)atomic_fetch_add(&w->n, 1) + 1);
    return NULL;
}

/* Daemons that end while publishers and subscribers are on their way to them. */
TEST(restarts_at_any_moment_lose_nothing)
{
    /* So few messages need one arena: of many that come at once, the daemon may not have sent all
     * when it ends. */
    auto_publisher *p = dlx_test_stream_new_publisher("test/a", PUBLISHER_BLOCKING(.depth = 16));
    struct writer writer = {.p = p};
    struct reader readers[] = {{.polls = false}, {.polls = true}};
    pthread_t threads[] = {start_reader(&readers[0]), start_reader(&readers[1]),
                           dlx_test_stream_thread(publish_all, &writer)};
    for (unsigned round = 0; round < 40; round++) {
        uint64_t some_time = round * 997 % 8000 * 300; /* up to 2.4 ms, never the same */
        for (uint64_t end = dlx__now_ns() + some_time; dlx__now_ns() < end;)
            sched_yield();
        dlx_test_stream_restart();
    }
    uint64_t n = atomic_load(&writer.n);
    eventually(have_read(readers, n + 100));
    atomic_store(&writer.stop, true);
    ck_assert_int_eq(pthread_join(threads[2], NULL), 0);
    /* Publishes the last message. No reader ends before it: one that stops reading stops the
     * publisher, and so all that sleep. */
    n = atomic_load(&writer.n) + 1;
    for (int i = 0; i < 2; i++)
        atomic_store(&readers[i].to, n);
    publish_patiently(p, (int64_t)n);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        struct dlx_subscription_stats stats = dlx_test_stream_subscription_stats(readers[i].s);
        ck_assert_uint_eq(stats.lost, 0);
        ck_assert_uint_eq(stats.n_publishers, 1);
        end_reader(&readers[i]);
    }
}

TEST(a_tensor_allocated_before_a_restart_is_copied_and_reported)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    struct dlx_publish_report report = {.size = sizeof report};
    struct dlx_publish_args strict = {.size = sizeof strict, .strict = true},
                            reported = {.size = sizeof reported};
    DLManagedTensorVersioned *before = dlx_test_stream_alloc(x.p, 10, 7777),
                             *never = dlx_test_stream_alloc(x.p, 10, 1);
    int64_t n = 0;
    dlx_test_stream_restart();
    for (uint64_t until = dlx__deadline(PATIENCE); x.p->epoch == 0; dlx_test_before(until)) {
        publish_patiently(x.p, ++n);
        sched_yield();
    }
    fails(dlx_publish(x.p, before, &strict, NULL), DLX_E_WOULD_COPY,
          "predates the dlpackd restart");
    ok(dlx_publish(x.p, before, &reported, &report));
    ck_assert_uint_eq(report.n_copied, 1);
    ck_assert_uint_eq(report.copied_bytes, 80);
    ok(dlx_publish(x.p, dlx_test_stream_alloc(x.p, 10, 1), &strict, NULL));
    struct dlx_message *m = dlx_test_stream_next(x.s);
    while (((const int64_t *)dlx_message_tensor_peek(m, 0)->data)[0] != 7777) {
        dlx_message_unref(m);
        m = dlx_test_stream_next(x.s);
    }
    dlx_test_stream_check(m, 10, 7777);
    dlx_message_unref(m);
    never->deleter(never); /* also after its arena was given up */
}

/* With each call that may need memory first. */
LOOP_TEST(each_kind_of_publishing_finds_the_new_daemon, 0, 6)
{
    enum { N = 1 << 18 };
    static int64_t values[N], shape = N;
    static const struct dlx_tensor_spec spec = INT64_SPEC(&shape);
    DLManagedTensorVersioned foreign = INT64_TENSOR(values, &shape), *own = NULL;
    DLManagedTensor legacy = {.dl_tensor = foreign.dl_tensor};
    struct dlx_item item = {.tensor = &foreign};
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    values[N - 1] = 9;
    dlx_test_stream_publish(x.p, 10, 1);
    dlx_test_stream_take(x.s, 1);
    dlx_test_stream_restart();
    switch (_i) {
    case 0:
        ok(dlx_publish(x.p, &foreign, NULL, NULL));
        break;
    case 1:
        ok(dlx_publish_legacy(x.p, &legacy, NULL, NULL));
        break;
    case 2:
        ok(dlx_publish_set(x.p, &item, 1, NULL, NULL, NULL));
        break;
    default:
        ok(_i == 3 ? dlx_alloc_set(x.p, &spec, 1, &own) : dlx_alloc(x.p, &spec, &own));
        memcpy(own->dl_tensor.data, values, sizeof values);
        struct dlx_item both[] = {{"own", own}, {"foreign", &foreign}};
        ok(_i < 5 ? dlx_publish(x.p, own, NULL, NULL)
                  : dlx_publish_set(x.p, both, 2, NULL, NULL, NULL));
        break;
    }
    ck_assert_uint_eq(x.p->epoch, 1);
    auto_message *m = dlx_test_stream_next(x.s);
    ck_assert_uint_eq(dlx_message_seq(m), 2);
    ck_assert_uint_eq(dlx_message_gap(m), 0);
    ck_assert_int_eq(((const int64_t *)dlx_message_tensor_peek(m, 0)->data)[N - 1], 9);
}

TEST(a_publisher_that_never_waits_finds_the_second_daemon)
{
    auto_pair x = dlx_test_pair_make(PUBLISHER_BLOCKING(), SUBSCRIBE_RELIABLY);
    dlx_test_stream_publish(x.p, 10, 1);
    dlx_test_stream_restart();
    x.p->watch.next_look_ns = 0;
    dlx_test_stream_publish(x.p, 10, 2); /* then it announces itself */
    ck_assert_uint_eq(x.p->epoch, 1);
    DLManagedTensorVersioned *third = dlx_test_stream_alloc(x.p, 10, 3);
    fails(dlx_publish(x.p, third, NULL, NULL), DLX_E_FULL, "have yet to join");
    dlx_test_stream_restart();
    dlx_test_stream_take_all(x.s, 1, 2);
    dlx_test_stream_publish_once_joined(x.p, third, x.s);
    dlx_test_stream_take(x.s, 3);
}

/* In a process that may not poll(). */
static int look_without_a_system_call(void)
{
    struct dlx_client *c = dlx_test_stream_connect();
    struct dlx_publisher *p = dlx_test_stream_publisher(c, "test/b", NULL);
    dlx_test_stream_publish(p, 10, 1);
    ck_assert(dlx_test_seccomp_kill(SYS_poll));
    p->watch.next_look_ns = 0;
    dlx_test_stream_publish(p, 10, 2);
    return p->watch.next_look_ns != 0;
}

/* The daemon's word in the membership page says that it is there. */
TEST(a_publisher_hears_of_its_daemon_without_a_system_call)
{
    pid_t pid = dlx_test_fork();
    if (pid == 0)
        _exit(look_without_a_system_call() ? 7 : 1);
    ck_assert_int_eq(dlx_test_fork_status(pid), 7);
}

/* A publisher that the daemon does not know any more asks its socket, although the daemon is
 * there. */
TEST(a_disconnected_publisher_asks_its_socket)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    dlx_test_stream_publish(x.p, 10, 1);
    ck_assert(dlx__writer_has_daemon(&x.p->core));
    uint64_t id = x.p->id;
    shutdown(x.c->sock, SHUT_RDWR);
    uint64_t until = dlx__deadline(PATIENCE);
    for (; dlx__writer_has_daemon(&x.p->core); dlx_test_before(until))
        sched_yield();
    for (; x.p->id == id; dlx_test_before(until)) {
        x.p->watch.next_look_ns = 0;
        dlx_test_stream_publish(x.p, 10, 2);
    }
    ck_assert(dlx__writer_has_daemon(&x.p->core));
}

/* A publisher that publishes once and then sleeps is known to the daemon that was there then. */
TEST(a_single_message_is_enough_to_find_the_new_daemon)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    dlx_test_stream_publish(x.p, 10, 1); /* looks; next time in a second */
    dlx_test_stream_restart();
    dlx_test_stream_publish(x.p, 10, 2);
    ck_assert_uint_eq(x.p->epoch, 1);
}

/* The set needs memory of the new daemon, so it is tried twice; a tensor may be in it twice both
 * times. */
TEST(a_shared_set_is_shared_with_the_new_daemon_too)
{
    enum { N = 1 << 18 };
    static int64_t values[N];
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    int64_t shape = N;
    DLManagedTensorVersioned t = INT64_TENSOR(values, &shape);
    struct dlx_item items[] = {{"a", &t}, {"b", &t}};
    dlx_test_stream_restart();
    ok(dlx_publish_set(x.p, items, 2, NULL, PUBLISH(.share = true), NULL));
    ck_assert_uint_eq(x.p->epoch, 1);
}

/* Once the publisher has announced itself: while it waits for the first one to be taken. */
static void *take_two_late(void *userdata)
{
    block_sigchld();
    auto_client *c = dlx_test_stream_connect();
    eventually(dlx_test_stream_list(c, NULL) == 1);
    dlx_test_stream_take_all(userdata, 1, 2);
    return NULL;
}

/* The links and the memory that were found for the set before the wait are of the daemon that has
 * ended. */
TEST(a_set_that_waits_through_a_restart_is_counted_once)
{
    int64_t values[10] = {9}, shape = 10;
    auto_pair x = dlx_test_pair_make(PUBLISHER_BLOCKING(.depth = 1), SUBSCRIBE_RELIABLY);
    struct dlx_publish_report report = {.size = sizeof report};
    DLManagedTensorVersioned foreign = INT64_TENSOR(values, &shape);
    struct dlx_item items[] = {{"own", dlx_test_stream_alloc(x.p, 10, 2)}, {"foreign", &foreign}};
    dlx_test_stream_publish(x.p, 10, 1);
    ck_assert_uint_eq(x.p->epoch, 0);
    dlx_test_stream_restart();
    pthread_t thread = dlx_test_stream_thread(take_two_late, x.s);
    ok(dlx_publish_set(x.p, items, 2, NULL, PUBLISH(.timeout_ns = PATIENCE), &report));
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_uint_eq(x.p->epoch, 1);
    ck_assert_uint_eq(report.n_copied, 2);
    ck_assert_uint_eq(report.copied_bytes, 2 * sizeof values);
}

TEST(an_old_connection_serves_new_calls)
{
    auto_client *c = dlx_test_stream_connect();
    dlx_test_stream_restart();
    ck_assert_uint_eq(dlx_test_stream_list(c, NULL), 0);
    dlx_test_stream_restart();
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", NULL);
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/a", NULL);
    dlx_test_stream_publish(p, 10, 1);
    dlx_test_stream_expect(s, 10, 1);
}

TEST(a_take_hears_once_that_the_daemon_is_gone)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = NULL;
    struct dlx_message *m = NULL;
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/a", NULL);
    ck_assert(dlx_test_stream_subscription_stats(s).has_daemon);
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    fails(dlx_take(s, PATIENCE, &m), DLX_E_DISCONNECTED, "dlpackd is gone");
    fails(dlx_take(s, 30000000, &m), DLX_E_TIMEOUT, "test/a: no message in time, since no dlpackd");
    ck_assert(!dlx_test_stream_subscription_stats(s).has_daemon);
    fails(dlx_publisher_new(c, "test/a", NULL, &p), DLX_E_DISCONNECTED, "run dlpackd --socket=");
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
    auto_client *c2 = dlx_test_stream_connect();
    ok(dlx_publisher_new(c2, "test/a", NULL, &p));
    dlx_test_stream_publish(p, 10, 1);
    /* The subscription is there again, and misses nothing of later publishers. */
    dlx_message_unref(dlx_test_stream_next(s));
    ck_assert(dlx_test_stream_subscription_stats(s).has_daemon);
}

/* A publisher that waits announces itself, too. */
TEST(a_publisher_that_waits_for_subscribers_is_announced_again)
{
    auto_publisher *p = dlx_test_stream_new_publisher("test/a", PUBLISHER_BLOCKING());
    struct reader r = {.polls = false};
    dlx_test_stream_restart();
    pthread_t thread = start_reader(&r);
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    dlx_test_stream_publish(p, 10, 1);
    while (atomic_load(&r.last) < 1)
        sched_yield();
    atomic_store(&r.to, 2);
    dlx_test_stream_publish(p, 10, 2);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    end_reader(&r);
}
