/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes in containers that share nothing but the daemon's folder: messages, sets, what is
 * retained, deaths and restarts, with the daemon outside, and with one in namespaces of its own.
 */

#include "tests/harness/cli.h"
#include "tests/harness/container.h"
#include "tests/harness/fork.h"
#include "tests/harness/stream.h"

#define N_MESSAGES 200

/* The users of two containers. */
static const struct pair {
    uid_t publisher, subscriber;
} pairs[] = {
    {0, 0},                           /* root's, which root started */
    {DLX_TEST_ALICE, DLX_TEST_ALICE}, /* a user's, rootless */
    {DLX_TEST_ALICE, DLX_TEST_BOB},
    {0, DLX_TEST_BOB},
};
#define N_PAIRS ((int)DLX_ARRAY_SIZE(pairs))

static void serve_users(void *userdata)
{
    (void)userdata;
    dlx_test_daemon_exec(&dlx_test_stream_daemon,
                         DLX_TEST_WORDS("--allow-user", "64001", "--allow-user", "64002"));
}

/* The fixture's daemon serves no other user. */
static bool begin(void (*prepare)(void *userdata))
{
    if (!dlx_test_container_may())
        return false;
    ck_assert_int_eq(dlx_test_daemon_stop(&dlx_test_stream_daemon), 0);
    dlx_test_daemon_start_prepared(&dlx_test_stream_daemon, prepare, NULL);
    return true;
}

static struct dlx_test_container run(uid_t uid, dlx_test_container_role *role)
{
    return dlx_test_container_start(&dlx_test_stream_daemon, uid, role);
}

/* The role alone. */
static void play(uid_t uid, dlx_test_container_role *role)
{
    struct dlx_test_container container = run(uid, role);
    dlx_test_container_join(&container);
}

static void say(const struct dlx_test_container *container)
{
    dlx_test_container_say(container->sock, 0);
}

static void hear(const struct dlx_test_container *container)
{
    (void)dlx_test_container_hear(container->sock);
}

/* Makes a publisher, and waits for its subscriber. */
static struct dlx_publisher *joined_publisher(void)
{
    struct dlx_publisher *p =
        dlx_test_stream_new_publisher("test/a", PUBLISHER_BLOCKING(.history = 1));
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    return p;
}

static void publish(struct dlx_publisher *p, int64_t value)
{
    ok(dlx_publish(p, dlx_test_stream_alloc(p, 10, value), PUBLISH(.timeout_ns = PATIENCE), NULL));
}

static struct dlx_subscription *subscription(bool reliable)
{
    return dlx_test_stream_new_subscription("test/a", SUBSCRIBE(.reliable = reliable));
}

static void publish_many(int sock)
{
    auto_publisher *p = joined_publisher();
    ck_assert_int_eq(getpid(), 1); /* as the subscriber */
    for (int64_t i = 1; i <= N_MESSAGES; i++)
        publish(p, i);
    (void)dlx_test_container_hear(sock);
}

static void take_many(int sock)
{
    auto_subscription *s = subscription(true);
    ck_assert_int_eq(getpid(), 1);
    dlx_test_stream_take_all(s, 1, N_MESSAGES);
    dlx_test_container_say(sock, 0);
}

/* One container publishes until the other one has taken. */
static void check_stream(const struct pair *pair, dlx_test_container_role *publishes,
                         dlx_test_container_role *takes)
{
    struct dlx_test_container p = run(pair->publisher, publishes);
    struct dlx_test_container s = run(pair->subscriber, takes);
    hear(&s);
    say(&p);
    dlx_test_container_join(&s);
    dlx_test_container_join(&p);
}

LOOP_TEST(messages_pass_between_containers, 0, N_PAIRS)
{
    if (begin(serve_users))
        check_stream(&pairs[_i], publish_many, take_many);
}

static void publish_set(int sock)
{
    auto_publisher *p = joined_publisher();
    struct dlx_item items[] = {{"one", dlx_test_stream_alloc(p, 5, 100)},
                               {"two", dlx_test_stream_alloc(p, 7, 200)}};
    ok(dlx_publish_set(p, items, 2, NULL, NULL, NULL));
    (void)dlx_test_container_hear(sock);
}

static void take_set(int sock)
{
    auto_subscription *s = subscription(true);
    auto_message *m = dlx_test_stream_next(s);
    ck_assert_uint_eq(dlx_message_n_tensors(m), 2);
    ck_assert_str_eq(dlx_message_tensor_name(m, 1), "two");
    ck_assert_int_eq(((const int64_t *)dlx_message_tensor_peek(m, 1)->data)[6], 206);
    dlx_test_container_say(sock, 0);
}

LOOP_TEST(sets_pass_between_containers, 0, N_PAIRS)
{
    if (begin(serve_users))
        check_stream(&pairs[_i], publish_set, take_set);
}

static void retain_two(int sock)
{
    auto_publisher *p = dlx_test_stream_new_publisher("test/a", PUBLISHER(.retain = 2));
    dlx_test_stream_publish_all(p, 10, 1, 2);
    dlx_test_container_say(sock, 0);
    (void)dlx_test_container_hear(sock);
}

static void take_two(int sock)
{
    auto_subscription *s = subscription(false);
    (void)sock;
    dlx_test_stream_take_all(s, 1, 2);
}

enum end { LIVES, ENDS, IS_KILLED };

LOOP_TEST(a_container_that_comes_late_gets_what_is_retained, LIVES, IS_KILLED + 1)
{
    if (!begin(serve_users))
        return;
    struct dlx_test_container p = run(0, retain_two);
    hear(&p);
    if (_i == IS_KILLED)
        dlx_test_container_kill(&p);
    if (_i == ENDS) {
        say(&p);
        dlx_test_container_join(&p);
    }
    for (int i = 0; i < 2; i++)
        play(0, take_two);
    if (_i == LIVES) {
        say(&p);
        dlx_test_container_join(&p);
    }
    auto_client *c = dlx_test_stream_connect();
    ok(dlx_drop_retained(c, "test/a"));
}

static uint64_t shared_bytes(struct dlx_client *c)
{
    return dlx_test_stream_daemon_info(c).shared_bytes;
}

static void publish_one_and_wait(int sock)
{
    struct dlx_publisher *p = joined_publisher();
    dlx_test_stream_publish(p, 1 << 20, 1);
    (void)dlx_test_container_hear(sock);
}

static void hold_until_it_is_gone(int sock)
{
    auto_subscription *s = subscription(true);
    struct dlx_message *none = NULL;
    auto_message *m = dlx_test_stream_next(s);
    dlx_test_container_say(sock, 0);
    ck_assert_int_eq(dlx_take(s, PATIENCE, &none), DLX_E_PUBLISHER_GONE);
    dlx_test_stream_check(m, 1 << 20, 1); /* what it holds is good */
}

/* And its memory comes back. */
static void check_death_of_publisher(const struct pair *pair)
{
    auto_client *c = dlx_test_stream_connect();
    uint64_t before = shared_bytes(c);
    struct dlx_test_container p = run(pair->publisher, publish_one_and_wait);
    struct dlx_test_container s = run(pair->subscriber, hold_until_it_is_gone);
    hear(&s);
    ck_assert_uint_gt(shared_bytes(c), before + (8 << 20) - 1);
    dlx_test_container_kill(&p);
    dlx_test_container_join(&s);
    eventually(shared_bytes(c) == before);
}

LOOP_TEST(a_subscriber_notices_the_death_of_a_publisher_in_another_container, 0, N_PAIRS)
{
    if (begin(serve_users))
        check_death_of_publisher(&pairs[_i]);
}

static void fill_and_go_on(int sock)
{
    auto_publisher *p = joined_publisher();
    int r;
    dlx_test_stream_publish(p, 10, 1);
    (void)dlx_test_container_hear(sock); /* it holds that */
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(p, 10, 2);
    while ((r = dlx_publish(p, t, NULL, NULL)) == 0)
        t = dlx_test_stream_alloc(p, 10, 2);
    ck_assert_int_eq(r, DLX_E_FULL);
    dlx_test_container_say(sock, 0);
    (void)dlx_test_container_hear(sock); /* it is dead */
    ok(dlx_publish(p, t, PUBLISH(.timeout_ns = PATIENCE), NULL));
    dlx_test_container_say(sock, 0);
}

static void hold_one(int sock)
{
    struct dlx_subscription *s = subscription(true);
    (void)dlx_test_stream_next(s);
    dlx_test_container_say(sock, 0);
    (void)dlx_test_container_hear(sock);
}

/* The daemon stands still meanwhile: the publisher has a pidfd of a process that it cannot see. */
static void check_death_of_subscriber(const struct pair *pair, bool is_paused)
{
    struct dlx_test_container p = run(pair->publisher, fill_and_go_on);
    struct dlx_test_container s = run(pair->subscriber, hold_one);
    hear(&s);
    say(&p);
    hear(&p);
    if (is_paused)
        dlx_test_daemon_pause(&dlx_test_stream_daemon);
    dlx_test_container_kill(&s);
    say(&p);
    hear(&p);
    if (is_paused)
        ck_assert_int_eq(kill(dlx_test_stream_daemon.pid, SIGCONT), 0);
    dlx_test_container_join(&p);
}

LOOP_TEST(a_publisher_goes_on_without_a_dead_subscriber_in_another_container, 0, N_PAIRS)
{
    if (begin(serve_users))
        check_death_of_subscriber(&pairs[_i], true);
}

static void publish_around_a_restart(int sock)
{
    auto_publisher *p = joined_publisher();
    for (int64_t i = 1; i <= 4; i++) {
        if (i == 4) /* it announces itself to the next daemon, for who came late */
            ok(dlx_publisher_wait(p, 2, PATIENCE));
        publish(p, i);
        (void)dlx_test_container_hear(sock);
    }
}

static void take_around_a_restart(int sock)
{
    auto_subscription *s = subscription(true);
    for (int64_t i = 1; i <= 4; i++) {
        dlx_test_stream_take(s, i);
        dlx_test_container_say(sock, 0);
    }
}

/* The message before comes, too, if its publisher is on the way to the next daemon with it. */
static void come_late(int sock)
{
    auto_subscription *s = subscription(true);
    dlx_test_container_say(sock, 0);
    auto_message *m = dlx_test_stream_next(s);
    bool is_before = *(const int64_t *)dlx_message_tensor_peek(m, 0)->data == 3;
    dlx_test_stream_check(m, 10, is_before ? 3 : 4);
    if (is_before)
        dlx_test_stream_expect(s, 10, 4);
}

/* The containers have the folder: the next daemon's socket is in it. */
static void check_restart(const struct pair *pair, bool is_contained)
{
    struct dlx_test_container p = run(pair->publisher, publish_around_a_restart);
    struct dlx_test_container s = run(pair->subscriber, take_around_a_restart);
    hear(&s);
    if (is_contained)
        dlx_test_container_kill_daemon(&dlx_test_stream_daemon);
    else
        dlx_test_daemon_kill(&dlx_test_stream_daemon);
    say(&p); /* one message is published without a daemon */
    hear(&s);
    dlx_test_daemon_start_prepared(&dlx_test_stream_daemon,
                                   is_contained ? dlx_test_container_enter : serve_users, NULL);
    say(&p);
    hear(&s);
    struct dlx_test_container late = run(pair->subscriber, come_late);
    hear(&late);
    say(&p);
    hear(&s);
    dlx_test_container_join(&late);
    say(&p);
    dlx_test_container_join(&s);
    dlx_test_container_join(&p);
}

LOOP_TEST(containers_go_on_with_the_next_daemon, 0, N_PAIRS)
{
    if (begin(serve_users))
        check_restart(&pairs[_i], false);
}

/* The daemon sees none of its clients: all of them have pid 0 for it. */
TEST(a_daemon_in_a_container_serves_others)
{
    if (!begin(dlx_test_container_enter))
        return;
    check_stream(&pairs[0], publish_many, take_many);
    check_death_of_publisher(&pairs[0]);
    check_death_of_subscriber(&pairs[0], false);
    check_restart(&pairs[0], true);
}

static int connect_library(void)
{
    auto_client *c = NULL;
    return dlx_connect(CONNECT(.timeout_ns = PATIENCE), &c);
}

static void be_nobody(int sock)
{
    (void)sock;
    fails(connect_library(), DLX_E_ACCESS, "dlpackd's user namespace");
}

TEST(a_daemon_in_a_container_refuses_users_without_a_name_and_says_so)
{
    if (begin(dlx_test_container_enter))
        play(DLX_TEST_ALICE, be_nobody);
}

static void enter_with_an_older_kernel(void *userdata)
{
    (void)setenv("DLX_TEST_NO_PEERPIDFD", "1", 1);
    dlx_test_container_enter(userdata);
}

/* Nothing names a process that the daemon does not see, so it would not notice the death of such a
 * process. */
TEST(a_daemon_in_a_container_needs_pidfds_of_its_peers_and_says_so)
{
    if (begin(enter_with_an_older_kernel))
        fails(connect_library(), DLX_E_DISCONNECTED, "SO_PEERPIDFD");
}

static void check_says(const char *command, const char *text)
{
    struct dlx_test_cli cli;
    dlx_test_cli_run(&cli, dlx_test_stream_daemon.path, -1, 0, DLX_TEST_WORDS(command));
    contains(cli.out, text);
    dlx_test_cli_deinit(&cli);
}

static uint32_t pid_scope(void)
{
    auto_client *c = dlx_test_stream_connect();
    struct dlx_daemon_info info = dlx_test_stream_daemon_info(c);
    ck_assert_uint_ne(info.pid, 0);
    return info.pid_scope;
}

static void ask_which(int sock)
{
    (void)sock;
    ck_assert_uint_eq(pid_scope(), DLX_PID_ELSEWHERE);
}

TEST(dlxctl_in_a_container_says_that_the_daemon_is_elsewhere)
{
    if (!begin(serve_users))
        return;
    ck_assert_uint_eq(pid_scope(), DLX_PID_HERE);
    play(0, ask_which);
    pid_t pid = dlx_test_fork();
    if (pid == 0) { /* dlxctl needs the files of this machine */
        dlx_test_container_enter(NULL);
        check_says("info", "of another pid namespace");
        check_says("info", "(the path that the daemon has)");
        check_says("doctor", "of another pid namespace");
        _exit(0);
    }
    dlx_test_fork_join(pid);
}

TEST(dlxctl_says_that_the_daemon_is_in_a_container)
{
    if (!begin(dlx_test_container_enter))
        return;
    auto_publisher *p = dlx_test_stream_new_publisher("test/a", NULL);
    check_says("info", "pid 1 of another pid namespace");
    check_says("ls", " ? "); /* it does not know who publishes */
}
