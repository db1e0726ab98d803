/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process dies, and another one gets its number before anybody has looked: for daemon and
 * publishers the first one is dead all the same, what it held comes back, and the second one has
 * nothing of it, not even with its sockets.
 */

#include "tests/daemon/harness_pid.h"
#include "tests/harness/fork.h"
#include "tests/harness/store.h"

static const struct dlx_publish_args wait_long = {.size = sizeof wait_long, .timeout_ns = PATIENCE};

/* Runs in the child, and may return. */
typedef void part_fn(int sock, const void *userdata);

/* With this number, which a dead process had. */
static struct dlx_test_part spawn_as(pid_t number, part_fn *part, const void *userdata)
{
    return dlx_test_part_begin_as(number, dlx_test_pid_fork, part, userdata);
}

static _Noreturn void rest(void)
{
    for (;;)
        pause();
}

static void wait_to_be_killed(int sock, const void *userdata)
{
    (void)userdata;
    dlx_test_say(sock);
    rest();
}

static void resume_daemon(void)
{
    ck_assert_int_eq(kill(dlx_test_stream_daemon.pid, SIGCONT), 0);
}

static struct dlx_subscription *subscribe_reliably(void)
{
    return dlx_test_stream_subscribe(dlx_test_stream_connect(), "test/a", SUBSCRIBE_RELIABLY);
}

static void hold_the_first(int sock, const void *userdata)
{
    (void)dlx_test_stream_next(subscribe_reliably());
    wait_to_be_killed(sock, userdata);
}

static void take_one(int sock, const void *userdata)
{
    dlx_test_stream_expect(subscribe_reliably(), 10, 100);
    wait_to_be_killed(sock, userdata);
}

static void expect_event(struct dlx_publisher *p, uint32_t kind, pid_t pid)
{
    struct dlx_event event = {.size = sizeof event};
    int r;
    for (uint64_t until = dlx__deadline(PATIENCE); (r = dlx_publisher_next_event(p, &event)) != 0;
         dlx_test_before(until)) {
        ck_assert_int_eq(r, DLX_E_EMPTY);
        (void)poll(NULL, 0, 1);
    }
    ck_assert_uint_eq(event.kind, kind);
    ck_assert_int_eq((pid_t)event.pid, pid);
}

/* While the daemon stands still, a publisher has but a pidfd to know by. Odd: the second one
 * subscribes, too, and is not taken for the first. */
LOOP_TEST(a_publisher_does_without_a_dead_subscriber, 0, 2)
{
    if (!dlx_test_pid_may_choose())
        return;
    auto_publisher *p = dlx_test_stream_new_publisher("test/a", PUBLISHER_BLOCKING(.history = 1));
    struct dlx_test_part first = dlx_test_part_begin(hold_the_first, NULL);
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    dlx_test_stream_publish(p, 10, 0);
    dlx_test_hear(first.sock);
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(p, 10, 1);
    int r;
    while ((r = dlx_publish(p, t, NULL, NULL)) == 0)
        t = dlx_test_stream_alloc(p, 10, 1);
    ck_assert_msg(r == DLX_E_FULL, "%d: %s", r, dlx_errmsg());

    dlx_test_daemon_pause(&dlx_test_stream_daemon);
    dlx_test_part_kill(&first);
    struct dlx_test_part second =
        spawn_as(first.pid, _i % 2 == 0 ? wait_to_be_killed : take_one, NULL);
    ck_assert_int_eq(second.pid, first.pid);
    ok(dlx_publish(p, t, &wait_long, NULL));
    ck_assert_uint_eq(dlx_test_stream_stats(p).n_subscribers, 0);
    expect_event(p, DLX_EVENT_JOINED, first.pid);
    expect_event(p, DLX_EVENT_LOST, first.pid);
    resume_daemon();
    if (_i % 2 == 1) {
        expect_event(p, DLX_EVENT_JOINED, second.pid);
        /* The subscriber has begun, too: it takes messages from now on. */
        ok(dlx_publisher_wait(p, 1, PATIENCE));
        ok(dlx_publish(p, dlx_test_stream_alloc(p, 10, 100), &wait_long, NULL));
    }
    dlx_test_hear(second.sock);
    ck_assert_int_eq((int)dlx_test_stream_stats(p).n_subscribers, _i % 2);
    dlx_test_part_kill(&second);
}

struct left {
    int fds[2];      /* its control socket, and that of its subscription */
    uint64_t ids[2]; /* of its publisher and its subscription */
};

/* Takes part in everything, and hands its sockets over. */
static void take_part(int sock, const void *userdata)
{
    struct dlx_test_publisher pub;
    struct dlx_test_subscription sub;
    (void)userdata;
    int control = dlx_test_hello(&dlx_test_stream_daemon, 10);
    dlx_test_publisher_new(&pub, control, "mine", 0);
    dlx_test_publisher_ready(&pub);
    dlx_test_subscribe(&sub, control, "theirs", false);
    (void)dlx_test_join(&sub);
    dlx_test_recv_done();
    const uint64_t ids[] = {pub.id, sub.id};
    const int fds[] = {control, sub.fd};
    ck_assert_int_eq(dlx__packet_send(sock, ids, sizeof ids, fds, 2), 0);
    rest();
}

static bool is_refused(int fd, Dlx__Wire__Packet__BodyCase body, void *message)
{
    return dlx_test_call(fd, body, message)->body_case == BODY(ERROR);
}

/* With the number of the first one, and all that it had: what it was is over. */
static void try_to_be_the_first(int sock, const void *userdata)
{
    const struct left *left = userdata;
    dlx_test_say(sock);
    dlx_test_hear(sock);
    int fd = dlx_test_hello(&dlx_test_stream_daemon, 10);
    ck_assert(is_refused(fd, PUBLISHER_CLOSE(.publisher = left->ids[0])));
    ck_assert(is_refused(fd, ARENA_NEW(.publisher = left->ids[0], .arena_size = 4096)));
    ck_assert(is_refused(fd, SUBSCRIPTION_CLOSE(.subscription = left->ids[1])));
    const Dlx__Wire__Packet *reply = dlx_test_call(fd, LIST_PUBLISHERS(.topic = (char[]){"mine"}));
    ck_assert_int_eq(reply->body_case, BODY(PUBLISHER_LIST));
    ck_assert_uint_eq(reply->publisher_list->n_entries, 0);
}

/* The daemon has closed it, unasked. */
static void check_is_over(int fd)
{
    char byte;
    dlx_test_wait_readable(fd);
    ck_assert_int_eq(recv(fd, &byte, 1, 0), 0);
    ck_assert_int_lt(send(fd, &byte, 1, MSG_NOSIGNAL), 0);
    close(fd);
}

/* The descriptors that the first process has handed over, which its death does not close. */
static void receive(int sock, size_t n, int *fds, uint64_t ids[2])
{
    static struct dlx_packet packet;
    dlx_test_wait_readable(sock);
    ck_assert_int_eq(dlx__packet_recv_fds(sock, &packet), 0);
    ck_assert_uint_eq(packet.n_fds, n);
    for (size_t i = 0; i < n; i++)
        fds[i] = dlx__packet_steal_fd(&packet, i);
    memcpy(ids, packet.data, DLX_MIN(packet.size, 2 * sizeof *ids));
}

TEST(the_daemon_gives_nothing_of_a_dead_client_to_the_second)
{
    auto_test_publisher pub = {.link_sock = -1};
    auto_test_subscription sub = {.fd = -1};
    struct left left;
    if (!dlx_test_pid_may_choose())
        return;
    auto_fd control = dlx_test_hello(&dlx_test_stream_daemon, 10);
    dlx_test_publisher_new(&pub, control, "theirs", 0);
    dlx_test_publisher_ready(&pub);
    dlx_test_subscribe(&sub, control, "mine", false);
    struct dlx_test_part first = dlx_test_part_begin(take_part, NULL);
    (void)dlx_test_join(&sub);
    receive(first.sock, 2, left.fds, left.ids);
    eventually(dlx_test_joins(&pub) > 0);

    dlx_test_daemon_pause(&dlx_test_stream_daemon);
    dlx_test_part_kill(&first); /* its sockets are open still: no hang-up tells */
    struct dlx_test_part second = spawn_as(first.pid, try_to_be_the_first, &left);
    dlx_test_hear(second.sock);
    resume_daemon();
    for (int i = 0; i < 2; i++)
        check_is_over(left.fds[i]);
    (void)dlx_test_expect(sub.fd, BODY(PUBLISHER_GONE));
    eventually(dlx_test_leaves(&pub) > 0);
    dlx_test_say(second.sock);
    dlx_test_part_join(&second);
    dlx_test_recv_done();
}

static void connect_and_hand_over(int sock, const void *userdata)
{
    (void)userdata;
    int fd = dlx_test_connect(&dlx_test_stream_daemon);
    ck_assert_int_eq(dlx__packet_send(sock, "", 1, &fd, 1), 0);
    rest();
}

/* Before Linux 6.5 there is but its number: daemon/objects/client.c tells what that means. */
TEST(a_connection_of_a_dead_process_is_not_taken_for_the_seconds)
{
    int pair[2], pidfd, fd;
    uint64_t none[2];
    socklen_t size = sizeof pidfd;
    if (!dlx_test_pid_may_choose())
        return;
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    int r = getsockopt(pair[0], SOL_SOCKET, 77 /* SO_PEERPIDFD */, &pidfd, &size);
    close(pair[0]);
    close(pair[1]);
    if (dlx_test_skips(r < 0, "SO_PEERPIDFD is not known here (Linux 6.5)"))
        return;
    close(pidfd);
    dlx_test_daemon_pause(&dlx_test_stream_daemon);
    struct dlx_test_part first = dlx_test_part_begin(connect_and_hand_over, NULL);
    receive(first.sock, 1, &fd, none);
    dlx_test_part_kill(&first);
    struct dlx_test_part second = spawn_as(first.pid, wait_to_be_killed, NULL);
    dlx_test_hear(second.sock);
    resume_daemon();
    check_is_over(fd);
    dlx_test_part_kill(&second);
}

static void leave_a_message(int sock, const void *userdata)
{
    dlx_test_stream_publish(
        dlx_test_stream_publisher(dlx_test_stream_connect(), "test/a", PUBLISHER(.retain = 1)), 10,
        5);
    wait_to_be_killed(sock, userdata);
}

/* While the publisher lives it may write, and no subscriber joins its retained messages; the
 * service manager keeps its pidfd, not its number. */
TEST(the_next_daemon_knows_that_the_publisher_is_dead)
{
    if (!dlx_test_pid_may_choose())
        return;
    dlx_test_store_begin(DLX_TEST_STORE_MANY);
    struct dlx_test_part first = dlx_test_part_begin(leave_a_message, NULL);
    dlx_test_hear(first.sock);
    dlx_test_manager_wait_n_kept(&dlx_test_store_manager, "dlx-pid-", 1);
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    dlx_test_part_kill(&first);
    struct dlx_test_part second = spawn_as(first.pid, wait_to_be_killed, NULL);
    dlx_test_hear(second.sock);
    dlx_test_store_run_again();
    auto_client *c = dlx_test_stream_connect();
    dlx_test_stream_get(c, "test/a", 10, 5);
    dlx_test_store_drop("test/a");
    dlx_test_part_kill(&second);
    dlx_test_store_end();
}
