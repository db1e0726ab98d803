/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Descriptors that hold up the process that closes them, sent to the daemon, which must not stand
 * still. Files of a FUSE file system do so, and, for every user, TCP sockets that linger: the last
 * close() waits for a peer that does not read.
 *
 * RUN_ALONE=yes: the kernel's collector of descriptors in flight closes some of them, and a process
 * that sends descriptors as the same user waits for it, as other tests do.
 */

#include "tests/hostile/harness_trap.h"
#include <arpa/inet.h>
#include <netinet/in.h>

/* The descriptors hold up for ten seconds and more; a busy machine and a sanitizer for less than
 * this. */
#define STALL_NS (2 * SECOND)

struct socket_trap {
    int fd; /* to be sent: its last close() waits */
    int peer;
};

/* The peer of the socket does not read, and there is something to be sent. */
static struct socket_trap lingering_socket(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct linger linger = {.l_onoff = 1, .l_linger = 20};
    socklen_t size = sizeof address;
    static const char bytes[65536];
    struct socket_trap trap = {.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), .peer = -1};
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(listen(listener, 1), 0);
    ck_assert_int_eq(getsockname(listener, (struct sockaddr *)&address, &size), 0);
    ck_assert_int_eq(connect(trap.fd, (struct sockaddr *)&address, sizeof address), 0);
    trap.peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    ck_assert_int_ge(trap.peer, 0);
    close(listener);
    while (send(trap.fd, bytes, sizeof bytes, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
        ;
    ck_assert_int_eq(setsockopt(trap.fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger), 0);
    return trap;
}

/* Send the socket away, so that this process has it no more. */
static bool send_socket(enum dlx_test_trap_way way, struct socket_trap *socket)
{
    struct dlx_test_trap trap;
    bool sent = dlx_test_trap_send(&trap, way, socket->fd);
    if (!sent) /* or our own close() would wait */
        socket->peer = dlx__close(socket->peer);
    close(socket->fd);
    dlx_test_trap_resume(&trap);
    dlx_test_trap_end(&trap, STALL_NS);
    return sent;
}

LOOP_TEST(a_lingering_socket_is_refused_by_the_kernel, 0, N_TRAP_WAYS)
{
    struct socket_trap trap = lingering_socket();
    dlx_test_trap_skip(send_socket((enum dlx_test_trap_way)_i, &trap), true);
    dlx__close(trap.peer);
}

/* A worker waits for it, while the daemon serves others, and longer than the daemon's own end
 * does. */
LOOP_TEST(a_lingering_socket_does_not_hold_the_daemon_up_where_the_kernel_lets_it_pass, 0,
          N_TRAP_WAYS)
{
    if (dlx_test_valgrind()) {
        puts("SKIP: valgrind lets no other thread run while one closes a socket");
        return;
    }
    dlx_test_trap_on_an_older_kernel();
    struct socket_trap trap = lingering_socket();
    bool sent = send_socket((enum dlx_test_trap_way)_i, &trap);
    dlx_test_trap_skip(sent, false);
    if (sent) {
        uint64_t start = dlx__now_ns();
        ck_assert_int_eq(dlx_test_daemon_stop(&dlx_test_stream_daemon), 0);
        ck_assert_uint_lt(dlx__now_ns() - start, (uint64_t)(5 * SECOND));
        dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
    }
    dlx__close(trap.peer);
}

int main(void)
{
    TCase *tcase = dlx_test_stream_case("hostile_fds");
    tcase_set_timeout(tcase, 60);
    return dlx_test_run_case(tcase);
}
