/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A publisher goes on with a new daemon, and closes or is killed before a subscriber has come
 * there: what it had published meanwhile is counted when its link ends.
 */

#include "client/publish/publisher.h"
#include "client/publish/publisher_reconnect.h"
#include "client/subscribe/subscription.h"
#include "client/subscribe/subscription_reconnect.h"
#include "tests/harness/fork.h"
#include "tests/harness/stream.h"
#include <sys/prctl.h>
#include <time.h>

/* It announces itself to the new daemon. */
static void wait_for_daemon(struct dlx_publisher *p, uint64_t epoch)
{
    for (time_t end = time(NULL) + PATIENCE_S; p->epoch == epoch;) {
        dlx__publisher_check(p, dlx__now_ns());
        ck_assert_int_lt(time(NULL), end);
    }
}

static void replace_daemon(struct dlx_publisher *p)
{
    dlx_test_stream_restart();
    wait_for_daemon(p, p->epoch);
}

static void publish_to(struct dlx_publisher *p, uint64_t last)
{
    while (p->core.head < last)
        dlx_test_stream_publish(p, 10, (int64_t)p->core.head + 1);
}

/* It does not wait for who has yet to come. */
static void close_at_once(struct dlx_publisher *p)
{
    p->watch.linger_ns = 0;
    dlx_publisher_unref(p);
}

struct reader {
    struct dlx_client *c;
    struct dlx_subscription *s;
    uint64_t last, gaps, taken;
};

static struct reader subscribe(const struct dlx_subscribe_args *sa)
{
    struct reader r = {.c = dlx_test_stream_connect()};
    ok(dlx_subscribe(r.c, "test/a", sa, &r.s));
    return r;
}

static void end_reader(struct reader *r)
{
    dlx_subscription_unref(r->s);
    dlx_client_unref(r->c);
}

/* Returns what dlx_take() does. */
static int take_one(struct reader *r, int64_t timeout_ns)
{
    struct dlx_message *m = NULL;
    int code = dlx_take(r->s, timeout_ns, &m);
    if (code < 0)
        return code;
    ck_assert_uint_eq(dlx_message_seq(m), r->last + dlx_message_gap(m) + 1);
    dlx_test_stream_check(m, 10, (int64_t)dlx_message_seq(m));
    r->gaps += dlx_message_gap(m);
    r->last = dlx_message_seq(m);
    r->taken++;
    dlx_message_unref(m);
    return 0;
}

static void take_to(struct reader *r, uint64_t last)
{
    while (r->last < last)
        ok(take_one(r, PATIENCE));
}

/* Take what is there until the last publisher is gone. */
static void take_rest(struct reader *r, int64_t timeout_ns)
{
    int code;
    time_t end = time(NULL) + PATIENCE_S;
    while ((code = take_one(r, timeout_ns)) != DLX_E_PUBLISHER_GONE) {
        ck_assert(code == 0 || code == DLX_E_EMPTY || code == DLX_E_TIMEOUT);
        ck_assert_int_lt(time(NULL), end);
    }
}

/* The event of its only link's end. */
static void check_event(struct reader *r, uint32_t kind)
{
    struct dlx_event e = {.size = sizeof e};
    ok(dlx_subscription_next_event(r->s, &e));
    ck_assert_uint_eq(e.kind, DLX_EVENT_JOINED);
    do
        ok(dlx_subscription_next_event(r->s, &e));
    while (e.kind == DLX_EVENT_RECONNECTED);
    ck_assert_uint_eq(e.kind, kind);
}

static struct dlx_subscription_stats stats_of(const struct reader *r)
{
    struct dlx_subscription_stats stats = dlx_test_stream_subscription_stats(r->s);
    ck_assert_uint_eq(stats.taken, r->taken);
    return stats;
}

/* The ways to take, how many were taken before the daemon died, and how many daemons follow. */
static const struct way {
    enum dlx_mode mode;
    int64_t spin_ns, timeout_ns;
    bool has_fd;
    uint64_t n_before;
    int n_daemons;
} ways[] = {
    {.timeout_ns = SECOND, .n_before = 3, .n_daemons = 1},
    {.timeout_ns = SECOND, .n_before = 1, .n_daemons = 1},
    {.timeout_ns = SECOND, .n_before = 3, .n_daemons = 3},
    {.n_before = 2, .n_daemons = 2},
    {.has_fd = true, .n_before = 3, .n_daemons = 1},
    {.spin_ns = DLX_SPIN_ALWAYS, .timeout_ns = SECOND, .n_before = 3, .n_daemons = 1},
    {.mode = DLX_MODE_LATEST, .timeout_ns = SECOND, .n_before = 3, .n_daemons = 2},
};

LOOP_TEST(who_closes_before_we_are_back_leaves_its_last_number, 0, (int)DLX_ARRAY_SIZE(ways))
{
    const struct way *way = &ways[_i];
    auto_client *c = dlx_test_stream_connect();
    struct dlx_publisher *p = dlx_test_stream_publisher(c, "test/a", NULL);
    struct reader r = subscribe(SUBSCRIBE(.mode = way->mode, .spin_ns = way->spin_ns));
    for (uint64_t n = 1; n <= 3; n++) {
        publish_to(p, n);
        if (n <= way->n_before)
            take_to(&r, n);
    }
    if (way->has_fd)
        ck_assert_int_ge(dlx_subscription_fd(r.s), 0);
    for (int i = 0; i < way->n_daemons; i++) {
        replace_daemon(p);
        publish_to(p, p->core.head + 6);
    }
    uint64_t n_missed = p->core.head - 3;
    close_at_once(p);
    take_rest(&r, way->timeout_ns);
    struct dlx_subscription_stats stats = stats_of(&r);
    ck_assert_uint_eq(stats.taken, 3);
    ck_assert_uint_eq(stats.lost, way->mode == DLX_MODE_LATEST ? 0 : n_missed);
    ck_assert_uint_eq(stats.skipped, way->mode == DLX_MODE_LATEST ? n_missed : 0);
    check_event(&r, DLX_EVENT_LEFT);
    end_reader(&r);
}

/* Odd: it keeps them only while it is there. */
LOOP_TEST(what_it_leaves_with_the_new_daemon_is_not_lost, 0, 2)
{
    auto_client *c = dlx_test_stream_connect();
    struct dlx_publisher *p = dlx_test_stream_publisher(
        c, "test/a", PUBLISHER(.retain = 2, .retain_for_ns = _i ? DLX_RETAIN_LATCHED : 0));
    struct reader r = subscribe(NULL);
    publish_to(p, 3);
    take_to(&r, 3);
    replace_daemon(p);
    publish_to(p, 9);
    close_at_once(p);
    r.s->next_try_ns = UINT64_MAX; /* it leaves its link before it has another one */
    take_rest(&r, SECOND);
    ck_assert_uint_eq(stats_of(&r).lost, _i ? 6 : 4);
    check_event(&r, DLX_EVENT_LEFT);
    if (_i == 0) {
        r.s->next_try_ns = 0;
        ck_assert_int_eq(take_one(&r, 0), DLX_E_DISCONNECTED); /* said once */
        take_to(&r, 9);
        ck_assert_uint_eq(r.taken, 5);
        ck_assert_uint_eq(r.gaps, 4);
        ck_assert_uint_eq(stats_of(&r).lost, 4);
    }
    end_reader(&r);
}

/* A subscriber that does not look is sent four arenas, and then its daemon ends. Its publisher goes
 * on without a daemon, or (odd) with the next one. */
LOOP_TEST(who_was_not_sent_every_arena_hears_how_many_it_misses, 0, 2)
{
    static const int64_t sizes[] = {10, 3000, 9000, 30000, 70000};
    auto_client *c = dlx_test_stream_connect();
    struct dlx_message *m = NULL;
    int code;
    dlx_set_debug(false); /* arenas have other sizes in it */
    struct dlx_publisher *p = dlx_test_stream_publisher(c, "test/a", PUBLISHER(.depth = 32));
    struct reader r = subscribe(NULL);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(sizes); i++)
        dlx_test_stream_publish(p, sizes[i], 1);
    publish_to(p, 20);
    if (_i == 0)
        dlx_test_daemon_kill(&dlx_test_stream_daemon);
    else
        replace_daemon(p);
    publish_to(p, 25);
    close_at_once(p);
    while ((code = dlx_take(r.s, SECOND, &m)) != DLX_E_PUBLISHER_GONE) {
        ok(code);
        r.taken++;
        dlx_message_unref(m);
    }
    struct dlx_subscription_stats stats = stats_of(&r);
    ck_assert_uint_eq(stats.taken + stats.lost, 25);
    ck_assert_uint_gt(stats.lost, 0); /* they lie where it cannot look */
    if (_i == 0)
        dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
    end_reader(&r);
}

/* A publisher says anything over its bell, and hangs up: only its own messages seem to be lost. */
LOOP_TEST(what_a_liar_says_over_its_bell_costs_no_other_stream, 0, 2)
{
    struct dlx_client *c[2] = {dlx_test_stream_connect(), dlx_test_stream_connect()};
    struct dlx_publisher *p[2] = {NULL, NULL};
    uint8_t bytes[1000];
    for (int i = 0; i < 2; i++)
        ok(dlx_publisher_new(c[i], "test/a", NULL, &p[i]));
    struct reader r = subscribe(NULL);
    ok(dlx_publisher_wait(p[0], 1, PATIENCE));
    ok(dlx_publisher_wait(p[1], 1, PATIENCE));
    publish_to(p[0], 3);
    take_to(&r, 3);
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(_i == 0 ? UINT8_MAX : i * 37);
    const struct dlx_publisher_link *publisher_link =
        (const void *)p[1]->core.links[0]; /* its first field */
    ck_assert_int_eq(send(publisher_link->bell, bytes, sizeof bytes, MSG_NOSIGNAL),
                     (int)sizeof bytes);
    ck_assert_int_eq(shutdown(publisher_link->bell, SHUT_RDWR), 0);
    time_t end = time(NULL) + PATIENCE_S;
    while (stats_of(&r).n_publishers > 1) {
        ck_assert_int_eq(take_one(&r, SECOND / 100), DLX_E_TIMEOUT);
        ck_assert_int_lt(time(NULL), end);
    }
    ck_assert_uint_le(stats_of(&r).lost, INT64_MAX);
    publish_to(p[0], 6);
    take_to(&r, 6);
    ck_assert_uint_eq(r.gaps, 0);
    end_reader(&r);
    for (int i = 0; i < 2; i++) {
        dlx_publisher_unref(p[i]);
        dlx_client_unref(c[i]);
    }
}

static void say(int fd)
{
    ck_assert_int_eq(write(fd, "", 1), 1);
}

static void hear(int fd)
{
    char byte;
    ck_assert_int_eq(read(fd, &byte, 1), 1);
}

/* A publisher in a process of its own: three messages, and six more when the daemon was
 * replaced. */
static _Noreturn void publish_until_killed(int fd)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct dlx_publisher *p = dlx_test_stream_publisher(dlx_test_stream_connect(), "test/a", NULL);
    say(fd);
    hear(fd);
    publish_to(p, 3);
    say(fd);
    hear(fd);
    wait_for_daemon(p, p->epoch);
    publish_to(p, 9);
    say(fd);
    for (;;)
        pause();
}

/* Odd: we were on our way to the new daemon, which tells its last number. Else nobody does. */
LOOP_TEST(who_is_killed_before_we_are_back_is_lost, 0, 2)
{
    int fds[2], status;
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    pid_t pid = dlx_test_fork();
    if (pid == 0)
        publish_until_killed(fds[1]);
    close(fds[1]);
    hear(fds[0]);
    struct reader r = subscribe(NULL);
    say(fds[0]);
    take_to(&r, 2);
    hear(fds[0]);
    dlx_test_stream_restart();
    say(fds[0]);
    hear(fds[0]);
    time_t end = time(NULL) + PATIENCE_S;
    dlx__subscription_read_notifications(r.s);
    while (_i && r.s->sock < 0) {
        dlx__subscription_reconnect(r.s);
        ck_assert_int_lt(time(NULL), end);
    }
    if (_i)
        dlx_test_wait_readable(r.s->sock); /* the offer of a link */
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status)); /* it has not failed */
    take_rest(&r, SECOND);
    ck_assert_uint_eq(r.taken, 3);
    ck_assert_uint_eq(stats_of(&r).lost, _i ? 6 : 0);
    check_event(&r, DLX_EVENT_LOST);
    close(fds[0]);
    end_reader(&r);
}

int main(void)
{
    return dlx_test_run_case(dlx_test_stream_case("restart_close"));
}
