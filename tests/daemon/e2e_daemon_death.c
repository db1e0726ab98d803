/* SPDX-License-Identifier: Apache-2.0 */
/* A client that dies, or leaves early, takes its objects along and nothing else. */
#include "tests/daemon/harness_served.h"
#include "tests/harness/fork.h"

/* A client process that does its part of a story up to `stage` and is killed there. */
static _Noreturn void play(int stage, const struct dlx_test_child *child)
{
    struct dlx_test_publisher pub;
    struct dlx_test_subscription sub;
    int fd = stage == 0 ? dlx_test_connect(&dlx_served) : dlx_test_hello(&dlx_served, 100);
    if (stage >= 2)
        dlx_test_publisher_new(&pub, fd, "mine", 0);
    if (stage >= 3)
        dlx_test_publisher_ready(&pub);
    if (stage >= 4)
        (void)dlx_test_call(fd, ARENA_NEW(.publisher = pub.id, .arena_size = 4096));
    if (stage >= 5)
        (void)dlx_test_arena(&pub, 4096);
    if (stage >= 6)
        dlx_test_subscribe(&sub, fd, "theirs", false);
    if (stage == 7)
        (void)dlx_test_expect(sub.fd, BODY(LINK_OFFER));
    if (stage == 8)
        (void)dlx_test_accept_offer(&sub);
    if (stage == 9)
        (void)dlx_test_join(&sub);
    dlx_test_fork_ready(child);
}

static void leave(const struct dlx_test_subscription *sub, uint64_t link)
{
    dlx_test_send(sub->fd, LINK_CLOSE(.link = link), 0);
}

LOOP_TEST(death_at_any_stage_leaves_nothing, 0, 10)
{
    auto_test_publisher pub = dlx_served_publisher("theirs");
    auto_test_subscription sub = dlx_served_subscription("mine");
    dlx_served_barrier();
    size_t n = dlx_test_daemon_n_fds(&dlx_served);
    struct dlx_test_child child = dlx_test_fork_child();
    if (child.pid == 0)
        play(_i, &child);
    pid_t pid = dlx_test_fork_wait_ready(&child);
    if (_i >= 3) {
        uint64_t link = dlx_test_join(&sub);
        ck_assert_int_eq(kill(pid, SIGKILL), 0);
        const Dlx__Wire__Packet *p = dlx_test_recv(sub.fd);
        while (p->body_case == BODY(ARENA_ADDED)) {
            dlx_test_ack(&sub);
            p = dlx_test_recv(sub.fd);
        }
        ck_assert_int_eq(p->body_case, BODY(PUBLISHER_GONE));
        ck_assert_uint_eq(p->publisher_gone->link, link);
        leave(&sub, link);
    } else {
        ck_assert_int_eq(kill(pid, SIGKILL), 0);
    }
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    dlx_test_daemon_wait_n_fds(&dlx_served, n);
    if (_i >= 8) {
        while (dlx_test_leaves(&pub) == 0)
            dlx_served_barrier();
        ck_assert_uint_eq(dlx_test_joins(&pub), 1);
    }
}

TEST(publisher_that_leaves_before_the_link_is_open)
{
    Dlx__Wire__LinkReady ready = DLX__WIRE__LINK_READY__INIT;
    auto_test_publisher pub = dlx_served_publisher("t");
    auto_test_subscription sub = dlx_served_subscription("t");
    ready.link = dlx_test_expect(sub.fd, BODY(LINK_OFFER))->link_offer->link;
    dlx_served_publisher_close(&pub);
    const Dlx__Wire__Packet *p = dlx_test_expect(sub.fd, BODY(LINK_FAILED));
    ck_assert_uint_eq(p->link_failed->link, ready.link);
    ck_assert_int_eq(p->link_failed->code, DLX_E_PUBLISHER_GONE);
    dlx_test_send(sub.fd, BODY(LINK_READY), &ready, 0); /* crossed: no violation */
    dlx_served_barrier();
    ck_assert(dlx_test_is_silent(sub.fd));
}

/* Hang-up does not tell: the child holds every socket. The pidfd does. */
TEST(child_that_inherits_the_sockets_does_not_keep_its_parent_alive)
{
    int ready[2];
    pid_t grandchild;
    auto_test_subscription sub = dlx_served_subscription("mine");
    dlx_served_barrier(); /* it has closed the end of the socket that it sent */
    size_t n = dlx_test_daemon_n_fds(&dlx_served);
    ck_assert_int_eq(pipe2(ready, O_CLOEXEC), 0);
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        struct dlx_test_publisher pub;
        int fd = dlx_test_hello(&dlx_served, 100);
        dlx_test_publisher_new(&pub, fd, "mine", 0);
        dlx_test_publisher_ready(&pub);
        grandchild = dlx_test_fork();
        if (grandchild == 0)
            for (;;)
                pause();
        ck_assert_int_eq(write(ready[1], &grandchild, sizeof grandchild), sizeof grandchild);
        for (;;)
            pause();
    }
    close(ready[1]);
    ck_assert_int_eq(read(ready[0], &grandchild, sizeof grandchild), sizeof grandchild);
    close(ready[0]);
    uint64_t link = dlx_test_join(&sub);
    dlx_test_fork_kill(pid);
    ck_assert_uint_eq(dlx_test_expect(sub.fd, BODY(PUBLISHER_GONE))->publisher_gone->link, link);
    leave(&sub, link);
    dlx_test_daemon_wait_n_fds(&dlx_served, n + 1); /* the link socket, which it has not read */
    ck_assert_int_eq(kill(grandchild, SIGKILL), 0);
    dlx_test_daemon_wait_n_fds(&dlx_served, n);
}

/* Only the daemon that has ended could write its page: the next one cannot. */
TEST(a_publisher_that_resumes_gets_a_page_of_the_next_daemon)
{
    auto_test_publisher before = dlx_served_publisher("t"), after;
    auto_test_subscription sub = dlx_served_subscription("t");
    (void)dlx_test_join(&sub);
    ck_assert_uint_eq(dlx_test_joins(&before), 1);
    dlx_test_daemon_kill(&dlx_served);
    close(dlx_served_client);
    dlx_test_subscription_deinit(&sub);
    dlx_served_start(NULL);
    Dlx__Wire__PublisherNew request = dlx_test_publisher_request("t");
    request.resumes = before.id;
    dlx_test_publisher_new_from(&after, dlx_served_client, &request);
    dlx_test_publisher_ready(&after);
    ck_assert_uint_eq(dlx_test_joins(&after), 0);
    sub = dlx_served_subscription("t");
    (void)dlx_test_join(&sub);
    ck_assert_uint_eq(dlx_test_joins(&after), 1);
    ck_assert_uint_eq(dlx_test_joins(&before), 1);
}

int main(void)
{
    return dlx_test_run_case(dlx_served_case("death"));
}
