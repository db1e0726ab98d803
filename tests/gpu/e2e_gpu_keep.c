/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Descriptors of GPU memory reach those who subscribe later, by the GPU keeper that a real dlpackd
 * starts. memfds stand for GPU memory.
 */

#include "client/control/call.h"
#include "gpu/lib/keep.h"
#include "gpu/lib/receive.h"
#include "client/publish/publisher.h"
#include "client/subscribe/subscription.h"
#include "tests/harness/fork.h"
#include "tests/harness/keeper.h"
#include "tests/harness/store.h"
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/resource.h>

static struct dlx_gpu_handle sent, got;

/* The keeper that the daemon of the fixture has started; 0: none. */
static pid_t keeper_pid(void)
{
    return dlx_test_keeper_find(dlx_test_stream_daemon.path);
}

/* The keeper ends by itself when no process needs it, and leaves no file. */
static void keeper_ends(void)
{
    char path[300];
    struct stat st;
    dlx_test_keeper_wait_gone(dlx_test_stream_daemon.path);
    (void)snprintf(path, sizeof path, "%s" DLX_KEEPER_SUFFIX, dlx_test_stream_daemon.path);
    ck_assert_int_eq(lstat(path, &st), -1);
    (void)snprintf(path, sizeof path, "%s" DLX_KEEPER_SUFFIX ".lock", dlx_test_stream_daemon.path);
    ck_assert_int_eq(lstat(path, &st), -1);
}

static void handle(uint64_t id, uint32_t n_chunks)
{
    dlx__gpu_handle_deinit(&sent);
    dlx_test_keeper_handle(&sent, id, n_chunks);
}

/* The link to the only publisher that there is. */
static struct dlx_subscriber_link *link_of(struct dlx_subscription *s)
{
    struct dlx_subscriber_link *found = NULL;
    for (uint32_t i = 0; i < s->n_links; i++)
        if (s->links[i]->publisher != 0)
            found = s->links[i];
    ck_assert_ptr_nonnull(found);
    return found;
}

static int fetch(struct dlx_client *c, struct dlx_subscription *s, uint64_t id)
{
    dlx__gpu_handle_deinit(&got);
    return dlx__message_gpu_fetch(c, link_of(s), id, &got);
}

/* A newcomer of a connection of its own gets the memory. */
static void reaches_a_newcomer_to(const char *topic, uint64_t id)
{
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *s = dlx_test_stream_subscribe(c, topic, SUBSCRIBE(.history = 8));
    auto_message *m = dlx_test_stream_next(s); /* it is held while its memory is fetched */
    ok(fetch(c, s, id));
    ck_assert(dlx_test_keeper_same(&sent, &got));
}

static void reaches_a_newcomer(uint64_t id)
{
    reaches_a_newcomer_to("test/a", id);
}

/* The pair of most tests, and what its publisher keeps. */
static struct dlx_test_pair x;
static struct dlx_gpu_keep *keep;

static void put(int expected)
{
    int r = dlx__gpu_keep_put(x.p->client, x.p->id, &keep, &sent);
    ck_assert_msg(r == expected, "%d: %s", r, dlx__error_message());
}

/* A pair whose publisher has put an allocation. */
static void begin(const struct dlx_publisher_args *args, uint64_t id, uint32_t n_chunks)
{
    x = dlx_test_pair_make(args, NULL);
    handle(id, n_chunks);
    put(1);
}

static void pass_one(void)
{
    dlx_test_stream_publish(x.p, 10, 1);
    dlx_test_stream_take(x.s, 1);
}

static void end(void)
{
    keep = dlx__gpu_keep_free(keep);
    dlx_test_pair_end(&x);
    x = (struct dlx_test_pair){.c = NULL};
}

/* Also ends the pair if the test has not. */
static void done(void)
{
    end();
    dlx__gpu_handle_deinit(&sent);
    dlx__gpu_handle_deinit(&got);
}

static const uint32_t sizes[] = {1, 253, 254, 600};

LOOP_TEST(a_handle_reaches_a_subscriber_in_any_number_of_parts, 0, DLX_ARRAY_SIZE(sizes))
{
    begin(NULL, 1, 1);
    handle(2, sizes[_i]);
    put(0);
    pass_one();
    ok(fetch(x.c, x.s, 2));
    ck_assert(dlx_test_keeper_same(&sent, &got));
    dlx__gpu_keep_drop(keep, 2);
    fails(fetch(x.c, x.s, 2), DLX_E_NOT_FOUND, "allocation 2");
    ok(fetch(x.c, x.s, 1));
    end();
    dlx_test_keeper_wait_children(keeper_pid(), 0);
}

TEST(a_late_joiner_needs_nothing_of_an_idle_publisher)
{
    begin(PUBLISHER(.history = 4), 7, 3);
    dlx_test_stream_publish(x.p, 10, 1);
    for (int i = 0; i < 3; i++)
        reaches_a_newcomer(7);
}

/* Puts and publishes one message to be retained, and waits to be killed. */
static pid_t spawn_publisher(const char *topic)
{
    struct dlx_test_child child = dlx_test_fork_child();
    if (child.pid == 0) {
        struct dlx_publisher *p =
            dlx_test_store_publisher(dlx_test_stream_connect(), topic, &dlx_test_retain_1);
        ck_assert_int_eq(dlx__gpu_keep_put(p->client, p->id, &keep, &sent), 1);
        dlx_test_stream_publish(p, 10, 1);
        dlx_test_fork_ready(&child);
    }
    return dlx_test_fork_wait_ready(&child);
}

TEST(memory_of_retained_messages_outlives_a_publisher_that_was_killed)
{
    handle(7, 300);
    dlx_test_fork_kill(spawn_publisher("test/a"));
    for (int i = 0; i < 3; i++)
        reaches_a_newcomer(7);
    dlx_test_keeper_wait_children(keeper_pid(), 1);
    dlx_test_store_drop("test/a");
    dlx_test_keeper_wait_children(keeper_pid(), 0);
}

TEST(memory_of_retained_messages_outlives_daemons)
{
    dlx_test_store_begin(DLX_TEST_STORE_MANY);
    keeper_ends(); /* of the test before: this one is to wait longer for the next daemon */
    (void)setenv("DLX_KEEPER_GRACE", "600", 1);
    dlx_test_store_restart();
    handle(7, 3);
    pid_t pid = spawn_publisher("test/a");
    dlx_test_store_restart();
    reaches_a_newcomer(7);
    dlx_test_fork_kill(pid);
    reaches_a_newcomer(7);
    for (int i = 0; i < 3; i++) {
        dlx_test_store_restart();
        reaches_a_newcomer(7);
    }
    /* A daemon that is told to end forgets nothing, either. */
    ck_assert_int_eq(dlx_test_daemon_stop(&dlx_test_stream_daemon), 0);
    dlx_test_store_run_again();
    reaches_a_newcomer(7);
    dlx_test_store_drop("test/a");
    dlx_test_keeper_wait_children(keeper_pid(), 0);
    ck_assert_int_eq(kill(keeper_pid(), SIGTERM), 0);
    keeper_ends();
    (void)setenv("DLX_KEEPER_GRACE", "0.2", 1);
    dlx_test_store_end();
}

TEST(memory_of_each_retained_topic_outlives_daemons)
{
    static const char *const topics[] = {"test/a", "test/b", "test/c"};
    dlx_test_store_begin(DLX_TEST_STORE_MANY);
    handle(7, 3);
    for (unsigned i = 0; i < 3; i++)
        dlx_test_fork_kill(spawn_publisher(topics[i]));
    for (int i = 0; i < 2; i++) {
        dlx_test_store_restart();
        for (unsigned k = 0; k < 3; k++)
            reaches_a_newcomer_to(topics[k], 7);
    }
    for (unsigned i = 0; i < 3; i++)
        dlx_test_store_drop(topics[i]);
    dlx_test_keeper_wait_children(keeper_pid(), 0);
    dlx_test_store_end();
}

/* The publisher's connection goes on, and so do links that the former daemon made. */
TEST(a_publisher_goes_on_with_another_daemon)
{
    begin(PUBLISHER(.history = 4), 7, 3);
    pass_one();
    const struct dlx_subscriber_link *old = link_of(x.s);
    pid_t before = keeper_pid();
    dlx_test_stream_restart();
    for (uint64_t id = x.p->id; x.p->id == id;) /* it announces itself */
        dlx_test_stream_publish(x.p, 10, 2);
    dlx_test_stream_publish(x.p, 10, 2);
    ck_assert_int_eq(keeper_pid(), before);
    ok(dlx__message_gpu_fetch(x.c, old, 7, &got));
    ck_assert(dlx_test_keeper_same(&sent, &got));
    reaches_a_newcomer(7);
    handle(8, 3);
    put(0);
    reaches_a_newcomer(8);
    end();
    dlx_test_keeper_wait_children(before, 0);
}

TEST(messages_that_are_held_keep_the_memory_of_a_publisher_that_closed)
{
    begin(NULL, 7, 3);
    dlx_test_stream_publish(x.p, 10, 1);
    struct dlx_message *m = dlx_test_stream_next(x.s);
    keep = dlx__gpu_keep_free(keep);
    x.p = dlx_publisher_unref(x.p);
    ok(fetch(x.c, x.s, 7));
    ck_assert(dlx_test_keeper_same(&sent, &got));
    dlx_message_unref(m);
    end();
    dlx_test_keeper_wait_children(keeper_pid(), 0);
}

/* 0: the router is killed; 1: the holder. */
LOOP_TEST(a_handle_that_the_keeper_lost_is_put_again, 0, 2)
{
    begin(PUBLISHER(.history = 4), 7, 3);
    pass_one();
    pid_t router = keeper_pid(), victim = router;
    if (_i == 1)
        ck_assert_uint_eq(dlx_test_keeper_children(router, &victim, 1), 1);
    ck_assert_int_eq(kill(victim, SIGKILL), 0);
    if (_i == 1)
        dlx_test_keeper_wait_children(router, 0);
    fails(fetch(x.c, x.s, 7), DLX_E_NOT_FOUND, "GPU");
    handle(8, 2);
    put(1);
    ok(fetch(x.c, x.s, 8));
    handle(7, 3);
    put(0);
    reaches_a_newcomer(7);
    ck_assert_int_eq(_i == 1, keeper_pid() == router);
}

/* The keeper stands still: a call for GPU memory fails after a while, and the daemon serves all
 * others. */
TEST(a_keeper_that_stands_still_holds_up_nobody_else)
{
    begin(NULL, 7, 1);
    keep = dlx__gpu_keep_free(keep);
    pid_t router = keeper_pid();
    ck_assert_int_eq(kill(router, SIGSTOP), 0);
    uint64_t began = dlx__now_ns();
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        struct dlx_client *c = dlx_test_stream_connect();
        struct dlx_publisher *p = NULL;
        ok(dlx_publisher_new(c, "test/b", NULL, &p));
        _exit(dlx__gpu_keep_put(p->client, p->id, &keep, &sent) == DLX_E_TIMEOUT ? 0 : 1);
    }
    int status, n = 0;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        dlx_test_stream_publish(x.p, 10, ++n);
        dlx_test_stream_take(x.s, n);
        dlx_client_unref(dlx_test_stream_connect());
    }
    ck_assert_int_eq(status, 0);
    ck_assert_uint_lt(dlx__now_ns() - began, PATIENCE);
    ck_assert_int_eq(kill(router, SIGCONT), 0);
}

static void *put_elsewhere(void *ret)
{
    *(int *)ret = dlx__gpu_keep_put(x.p->client, x.p->id, &keep, &sent);
    return NULL;
}

static int read_gpu_calls(const struct dlx_quota_info *info, void *ret)
{
    if (strcmp(info->name, "gpu-calls") == 0)
        *(uint64_t *)ret = info->used;
    return 0;
}

static uint64_t n_gpu_calls(struct dlx_client *c)
{
    uint64_t n = 0;
    ok(dlx_list_quotas(c, read_gpu_calls, &n));
    return n;
}

TEST(a_call_that_a_keeper_did_not_answer_is_for_the_next_one)
{
    int r = 0;
    begin(PUBLISHER(.history = 4), 7, 1);
    pass_one();
    keep = dlx__gpu_keep_free(keep);
    pid_t router = keeper_pid();
    auto_client *c = dlx_test_stream_connect();
    ck_assert_int_eq(kill(router, SIGSTOP), 0);
    pthread_t thread = dlx_test_stream_thread(put_elsewhere, &r);
    eventually(n_gpu_calls(c) == 1); /* it was sent */
    ck_assert_int_eq(kill(router, SIGKILL), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(r, 1);
    reaches_a_newcomer(7);
}

static pid_t slow_holder;
static int n_asked;

/* The program is asked now and then during a wait: the third time, the holder goes on. */
static int go_on_at_third(void *unused)
{
    (void)unused;
    if (++n_asked == 3)
        ck_assert_int_eq(kill(slow_holder, SIGCONT), 0);
    return 0;
}

/* A wait that may be interrupted has parts: the end of one is not the end of the time. */
LOOP_TEST(a_keeper_that_is_slow_is_waited_for_also_by_a_program_that_can_interrupt, 0, 2)
{
    begin(PUBLISHER(.history = 4), 7, 1);
    pass_one();
    ck_assert_uint_eq(dlx_test_keeper_children(keeper_pid(), &slow_holder, 1), 1);
    n_asked = 0;
    x.c->interrupt = go_on_at_third;
    handle(8, 2);
    ck_assert_int_eq(kill(slow_holder, SIGSTOP), 0);
    int r = _i == 0 ? dlx__gpu_keep_put(x.p->client, x.p->id, &keep, &sent) : fetch(x.c, x.s, 7);
    ck_assert_int_eq(kill(slow_holder, SIGCONT), 0); /* also if no call waited for it */
    x.c->interrupt = NULL;
    ck_assert_msg(r == 0, "%d: %s", r, dlx__error_message());
    ck_assert_int_ge(n_asked, 3);
}

static void without_keeper(void *userdata)
{
    (void)userdata;
    (void)setenv("DLX_KEEPER", "/no/such/program", 1);
}

TEST(a_keeper_that_is_not_installed_is_a_clear_error)
{
    ck_assert_int_eq(dlx_test_daemon_stop(&dlx_test_stream_daemon), 0);
    keeper_ends(); /* of the test before */
    dlx_test_daemon_start_prepared(&dlx_test_stream_daemon, without_keeper, NULL);
    x = dlx_test_pair_make(NULL, NULL);
    handle(7, 1);
    for (int i = 0; i < 2; i++) {
        fails(dlx__gpu_keep_put(x.p->client, x.p->id, &keep, &sent), DLX_E_NO_DAEMON,
              "/no/such/program");
        ck_assert_ptr_null(keep);
    }
    pass_one();
    fails(fetch(x.c, x.s, 7), DLX_E_NO_DAEMON, "/no/such/program");
}

TEST(an_older_daemon_is_not_asked)
{
    x = dlx_test_pair_make(NULL, NULL);
    handle(7, 1);
    x.c->minor = 2;
    fails(dlx__gpu_keep_put(x.p->client, x.p->id, &keep, &sent), DLX_E_VERSION, "2.3");
}

TEST(a_forked_child_may_not_use_it)
{
    begin(NULL, 7, 1);
    pass_one();
    pid_t pid = dlx_test_fork();
    if (pid == 0)
        _exit(dlx__gpu_keep_put(x.p->client, x.p->id, &keep, &sent) == DLX_E_FORKED &&
                      fetch(x.c, x.s, 7) == DLX_E_FORKED
                  ? 0
                  : 1);
    dlx_test_fork_join(pid);
    ok(fetch(x.c, x.s, 7));
}

TEST(another_publisher_or_link_is_refused)
{
    int sock;
    x = dlx_test_pair_make(NULL, NULL);
    auto_client *other = dlx_test_stream_connect();
    keeper_ends(); /* of the test before */
    pass_one();
    fails(dlx__call_gpu_keep(other, x.p->id, &sock), DLX_E_NOT_FOUND, "publisher");
    fails(dlx__call_gpu_get(other, link_of(x.s)->id, 0, 7, &sock), DLX_E_NOT_FOUND, "link");
    fails(dlx__call_gpu_get(x.c, link_of(x.s)->id, 0, 0, &sock), DLX_E_INVALID, "allocation 0");
    ck_assert_int_eq(keeper_pid(), 0); /* no client needed it */
}

#define FILES 1024

static void few_files(void *userdata)
{
    const struct rlimit files = {FILES, FILES};
    (void)userdata;
    (void)setrlimit(RLIMIT_NOFILE, &files);
    /* Root's processes have no limit by these. */
    (void)prctl(PR_CAPBSET_DROP, CAP_SYS_RESOURCE);
    (void)prctl(PR_CAPBSET_DROP, CAP_SYS_ADMIN);
}

/* Packets that lie unread in their sockets count for the daemon's user: they may not keep the
 * daemon from sending, nor honest readers from being served. */
TEST(readers_that_never_read_keep_nobody_out)
{
    enum { N = 300 };
    static int socks[N];
    ck_assert_int_eq(dlx_test_daemon_stop(&dlx_test_stream_daemon), 0);
    dlx_test_daemon_start_prepared(&dlx_test_stream_daemon, few_files, NULL);
    begin(NULL, 7, 60);
    pass_one();
    for (int i = 0; i < N; i++)
        ok(dlx__call_gpu_get(x.c, link_of(x.s)->id, 0, 7, &socks[i]));
    /* Publishers, subscriptions and links need descriptors from the daemon. */
    for (int i = 0; i < 50; i++) {
        struct dlx_test_pair y = dlx_test_pair_make(NULL, NULL);
        dlx_test_pair_end(&y);
    }
    for (int i = 0; i < N; i++)
        close(socks[i]);
    ok(fetch(x.c, x.s, 7));
}

TEST(the_keeper_ends_after_the_last_daemon)
{
    begin(NULL, 7, 1);
    ck_assert_int_ne(keeper_pid(), 0);
    end();
    ck_assert_int_eq(dlx_test_daemon_stop(&dlx_test_stream_daemon), 0);
    keeper_ends();
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
}

int main(void)
{
    TCase *tcase = dlx_test_stream_case("gpu_keep");
    tcase_add_checked_fixture(tcase, NULL, done);
    return dlx_test_run_case(tcase);
}
