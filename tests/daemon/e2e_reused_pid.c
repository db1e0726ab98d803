/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A process dies, and another one gets its number before anybody has looked: for daemon and
 * publishers the first one is dead all the same, what it held comes back, and the second one has
 * nothing of it, not even with its sockets.
 */

#include "tests/harness/fork.h"
#include "tests/harness/manager.h"
#include "tests/daemon/harness_pid.h"
#include "tests/harness/stream.h"
#include <sys/prctl.h>

#define BODY(name) DLX__WIRE__PACKET__BODY_##name

static const struct dlx_publish_args wait_long = {.size = sizeof wait_long, .timeout_ns = PATIENCE};

/* ---- processes ----------------------------------------------------------------------------- */

struct process {
    pid_t pid;
    int sock; /* packets each way */
};

/* Runs in the child, and may return. */
typedef void part_fn(int sock, void *userdata);

/* With this number, or with any if it is 0. */
static struct process spawn(pid_t number, part_fn *part, void *userdata)
{
    int pair[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    pid_t pid = number ? dlx_test_pid_fork(number) : dlx_test_fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(pair[0]);
        part(pair[1], userdata);
        _exit(0);
    }
    close(pair[1]);
    return (struct process){pid, pair[0]};
}

static void say(int sock)
{
    ck_assert_int_eq(send(sock, "", 1, MSG_NOSIGNAL), 1);
}

static void hear(int sock)
{
    char byte;
    dlx_test_wait_readable(sock);
    ck_assert_int_eq(recv(sock, &byte, 1, 0), 1);
}

static void rest(void)
{
    for (;;)
        pause();
}

static void wait_to_be_killed(int sock, void *userdata)
{
    (void)userdata;
    say(sock);
    rest();
}

/* Nobody knows by what it has said since: the daemon stands still meanwhile, and a publisher makes
 * no call. */
static void kill_and_reap(struct process *process)
{
    int status;
    ck_assert_int_eq(kill(process->pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(process->pid, &status, 0), process->pid);
    ck_assert_msg(WIFSIGNALED(status), "it failed: %d", status);
    close(process->sock);
}

/* It has done its part, and found nothing that should not be. */
static void join(struct process *process)
{
    dlx_test_fork_join(process->pid);
    close(process->sock);
}

static void resume_daemon(void)
{
    ck_assert_int_eq(kill(dlx_test_stream_daemon.pid, SIGCONT), 0);
}

/* ---- the subscriber of a publisher --------------------------------------------------------- */

static struct dlx_subscription *subscribe_reliably(void)
{
    struct dlx_subscribe_args args = {.size = sizeof args, .reliable = true};
    return dlx_test_stream_subscribe(dlx_test_stream_connect(), "test/a", &args);
}

static void hold_the_first(int sock, void *userdata)
{
    struct dlx_subscription *s = subscribe_reliably();
    (void)dlx_test_stream_next(s);
    wait_to_be_killed(sock, userdata);
}

static void take_one(int sock, void *userdata)
{
    struct dlx_subscription *s = subscribe_reliably();
    struct dlx_message *m = dlx_test_stream_next(s);
    dlx_test_stream_check(m, 10, 100);
    wait_to_be_killed(sock, userdata);
}

static uint32_t n_subscribers(struct dlx_publisher *p)
{
    return dlx_test_stream_stats(p).n_subscribers;
}

static void expect_event(struct dlx_publisher *p, uint32_t kind, pid_t pid)
{
    struct dlx_event event = {.size = sizeof event};
    int r;
    for (int ms = 0; (r = dlx_publisher_next_event(p, &event)) != 0; ms++) {
        ck_assert_int_eq(r, DLX_E_EMPTY);
        ck_assert_int_lt(ms, PATIENCE_MS);
        (void)poll(NULL, 0, 1);
    }
    ck_assert_uint_eq(event.kind, kind);
    ck_assert_int_eq((pid_t)event.pid, pid);
}

/* While the daemon stands still, a publisher has but a pidfd to know by. Odd: the second one
 * subscribes, too, and is not taken for the first. */
LOOP_TEST(a_publisher_does_without_a_dead_subscriber, 0, 2)
{
    struct dlx_publisher_args args = {
        .size = sizeof args, .history = 1, .on_full = DLX_ON_FULL_BLOCK};
    if (!dlx_test_pid_may_choose())
        return;
    struct dlx_client *c = dlx_test_stream_connect();
    struct dlx_publisher *p = dlx_test_stream_publisher(c, "test/a", &args);
    struct process first = spawn(0, hold_the_first, NULL);
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    dlx_test_stream_publish(p, 10, 0);
    hear(first.sock);
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(p, 10, 1);
    int r;
    while ((r = dlx_publish(p, t, NULL)) == 0)
        t = dlx_test_stream_alloc(p, 10, 1);
    ck_assert_msg(r == DLX_E_FULL, "%d: %s", r, dlx_client_errmsg(NULL));

    dlx_test_daemon_pause(&dlx_test_stream_daemon);
    kill_and_reap(&first);
    struct process second = spawn(first.pid, _i % 2 == 0 ? wait_to_be_killed : take_one, NULL);
    ck_assert_int_eq(second.pid, first.pid);
    ok(dlx_publish(p, t, &wait_long));
    ck_assert_uint_eq(n_subscribers(p), 0);
    expect_event(p, DLX_EVENT_JOINED, first.pid);
    expect_event(p, DLX_EVENT_LOST, first.pid);
    resume_daemon();
    if (_i % 2 == 1) {
        expect_event(p, DLX_EVENT_JOINED, second.pid);
        ok(dlx_publisher_wait(p, 1,
                              PATIENCE)); /* it has begun, too: it takes what comes from now on */
        ok(dlx_publish(p, dlx_test_stream_alloc(p, 10, 100), &wait_long));
    }
    hear(second.sock);
    ck_assert_int_eq((int)n_subscribers(p), _i % 2);
    kill_and_reap(&second);
    dlx_publisher_unref(p);
    dlx_client_unref(c);
}

/* ---- a client of the daemon ---------------------------------------------------------------- */

struct left {
    int control;
    int subscription;
    uint64_t ids[2]; /* of its publisher and its subscription */
};

/* Takes part in everything, and hands its sockets over. */
static void take_part(int sock, void *userdata)
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
static void try_to_be_the_first(int sock, void *userdata)
{
    const struct left *left = userdata;
    Dlx__Wire__PublisherClose close_it = DLX__WIRE__PUBLISHER_CLOSE__INIT;
    Dlx__Wire__SubscriptionClose leave = DLX__WIRE__SUBSCRIPTION_CLOSE__INIT;
    Dlx__Wire__ArenaNew arena = DLX__WIRE__ARENA_NEW__INIT;
    Dlx__Wire__ListPublishers list = DLX__WIRE__LIST_PUBLISHERS__INIT;
    say(sock);
    hear(sock);
    close_it.publisher = arena.publisher = left->ids[0];
    arena.arena_size = 4096;
    leave.subscription = left->ids[1];
    int fd = dlx_test_hello(&dlx_test_stream_daemon, 10);
    ck_assert(is_refused(fd, BODY(PUBLISHER_CLOSE), &close_it));
    ck_assert(is_refused(fd, BODY(ARENA_NEW), &arena));
    ck_assert(is_refused(fd, BODY(SUBSCRIPTION_CLOSE), &leave));
    list.topic = (char *)(uintptr_t) "mine";
    const Dlx__Wire__Packet *reply = dlx_test_call(fd, BODY(LIST_PUBLISHERS), &list);
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
}

TEST(the_daemon_gives_nothing_of_a_dead_client_to_the_second)
{
    static struct dlx_packet packet;
    struct dlx_test_publisher pub;
    struct dlx_test_subscription sub;
    struct left left;
    if (!dlx_test_pid_may_choose())
        return;
    int control = dlx_test_hello(&dlx_test_stream_daemon, 10);
    dlx_test_publisher_new(&pub, control, "theirs", 0);
    dlx_test_publisher_ready(&pub);
    dlx_test_subscribe(&sub, control, "mine", false);
    struct process first = spawn(0, take_part, NULL);
    (void)dlx_test_join(&sub);
    dlx_test_wait_readable(first.sock);
    ck_assert_int_eq(dlx__packet_recv_fds(first.sock, &packet), 0);
    ck_assert_uint_eq(packet.n_fds, 2);
    left.control = dlx__packet_steal_fd(&packet, 0);
    left.subscription = dlx__packet_steal_fd(&packet, 1);
    memcpy(left.ids, packet.data, sizeof left.ids);
    while (dlx_test_joins(&pub) == 0)
        (void)poll(NULL, 0, 1);

    dlx_test_daemon_pause(&dlx_test_stream_daemon);
    kill_and_reap(&first); /* its sockets are open still: no hang-up tells */
    struct process second = spawn(first.pid, try_to_be_the_first, &left);
    hear(second.sock);
    resume_daemon();
    check_is_over(left.control);
    check_is_over(left.subscription);
    (void)dlx_test_expect(sub.fd, BODY(PUBLISHER_GONE));
    while (dlx_test_leaves(&pub) == 0)
        (void)poll(NULL, 0, 1);
    say(second.sock);
    join(&second);
    close(left.control);
    close(left.subscription);
    dlx_test_publisher_deinit(&pub);
    dlx_test_subscription_deinit(&sub);
    dlx_test_recv_done();
    close(control);
}

/* ---- a client that the daemon has not seen yet --------------------------------------------- */

static void connect_and_hand_over(int sock, void *userdata)
{
    (void)userdata;
    int fd = dlx_test_connect(&dlx_test_stream_daemon);
    ck_assert_int_eq(dlx__packet_send(sock, "", 1, &fd, 1), 0);
    rest();
}

/* Before Linux 6.5 there is but its number: daemon/objects/client.c tells what that means. */
TEST(a_connection_of_a_dead_process_is_not_taken_for_the_seconds)
{
    static struct dlx_packet packet;
    int pair[2], pidfd;
    socklen_t size = sizeof pidfd;
    if (!dlx_test_pid_may_choose())
        return;
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    int r = getsockopt(pair[0], SOL_SOCKET, 77 /* SO_PEERPIDFD */, &pidfd, &size);
    close(pair[0]);
    close(pair[1]);
    if (r < 0) {
        puts("SKIP: SO_PEERPIDFD is not known here (Linux 6.5)");
        return;
    }
    close(pidfd);
    dlx_test_daemon_pause(&dlx_test_stream_daemon);
    struct process first = spawn(0, connect_and_hand_over, NULL);
    dlx_test_wait_readable(first.sock);
    ck_assert_int_eq(dlx__packet_recv_fds(first.sock, &packet), 0);
    ck_assert_uint_eq(packet.n_fds, 1);
    int fd = dlx__packet_steal_fd(&packet, 0);
    kill_and_reap(&first);
    struct process second = spawn(first.pid, wait_to_be_killed, NULL);
    hear(second.sock);
    resume_daemon();
    check_is_over(fd);
    kill_and_reap(&second);
    close(fd);
}

/* ---- who wrote what is retained ------------------------------------------------------------ */

static void leave_a_message(int sock, void *userdata)
{
    struct dlx_publisher_args args = {.size = sizeof args, .retain = 1};
    struct dlx_publisher *p = dlx_test_stream_publisher(dlx_test_stream_connect(), "test/a", &args);
    dlx_test_stream_publish(p, 10, 5);
    wait_to_be_killed(sock, userdata);
}

/* While it lives it may write, and nobody joins what it left; the service manager keeps a pidfd of
 * it, not its number. */
TEST(the_next_daemon_knows_that_the_publisher_is_dead)
{
    static struct dlx_test_manager manager;
    struct dlx_message *m = NULL;
    if (!dlx_test_pid_may_choose())
        return;
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    dlx_test_manager_start(&manager, &dlx_test_stream_daemon);
    dlx_test_manager_run(&manager, &dlx_test_stream_daemon, 100);
    struct process first = spawn(0, leave_a_message, NULL);
    hear(first.sock);
    dlx_test_manager_wait_n_kept(&manager, "dlx-pid-", 1);
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    kill_and_reap(&first);
    struct process second = spawn(first.pid, wait_to_be_killed, NULL);
    hear(second.sock);
    dlx_test_manager_run(&manager, &dlx_test_stream_daemon, 100);
    struct dlx_client *c = dlx_test_stream_connect();
    ok(dlx_get(c, "test/a", 0, &m));
    dlx_test_stream_check(m, 10, 5);
    dlx_message_unref(m);
    ok(dlx_retained_drop(c, "test/a"));
    dlx_client_unref(c);
    kill_and_reap(&second);
    dlx_test_manager_wait_n_kept(&manager, "", 1); /* the ledger */
    dlx_test_manager_stop(&manager);
}

int main(void)
{
    return dlx_test_run_case(dlx_test_stream_case("reused_pid"));
}
