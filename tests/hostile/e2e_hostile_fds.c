/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Descriptors that hold up whoever closes them, sent to the daemon: it must not stand still. Files
 * of a FUSE file system do so, and, for every user, TCP sockets that linger: the last close() waits
 * for a peer that does not read.
 *
 * RUN_ALONE=yes: the kernel's collector of descriptors in flight closes some of them, and whoever
 * sends descriptors as the same user waits for it, as other tests do.
 */

#include "common/error.h"
#include "tests/harness/seccomp.h"
#include "tests/harness/stream.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define BODY(name) DLX__WIRE__PACKET__BODY_##name
/* The descriptors hold up for ten seconds and more; a busy machine and a sanitizer for less than
 * this. */
#define STALL_NS (2 * SECOND)

struct trap {
    int fd; /* to be sent: its last close() waits */
    int peer;
};

/* Its peer does not read, and there is something to be sent. */
static struct trap lingering_socket(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct linger linger = {.l_onoff = 1, .l_linger = 20};
    socklen_t size = sizeof address;
    static const char bytes[65536];
    struct trap trap = {.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), .peer = -1};
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

/* Another client is answered. */
static void daemon_answers(const char *when)
{
    uint64_t start = dlx__now_ns();
    Dlx__Wire__DaemonInfo info = DLX__WIRE__DAEMON_INFO__INIT;
    int fd = dlx_test_hello(&dlx_test_stream_daemon, 1);
    ck_assert_int_eq(dlx_test_call(fd, BODY(DAEMON_INFO), &info)->body_case,
                     BODY(DAEMON_INFO_REPLY));
    close(fd);
    ck_assert_msg(dlx__now_ns() - start < (uint64_t)STALL_NS,
                  "%s: the daemon stood still for %.3f s", when,
                  (double)(dlx__now_ns() - start) / 1e9);
}

enum way {
    READ_BY_THE_DAEMON,
    LEFT_IN_THE_SOCKET,
    BEFORE_IT_ACCEPTS,
    ON_A_SUBSCRIPTION,
    ON_A_LINK_SOCKET, /* which the daemon never reads */
    N_WAYS
};

/* Send it away, so that nobody here has it any more. Returns false where the kernel refuses that
 * (Linux 6.16). */
static bool send_trap(enum way way, struct trap *trap)
{
    static const uint8_t info[] = {0x08, 0x01, 0xda, 0x01, 0x00};
    struct dlx_test_subscription s = {.fd = -1};
    struct dlx_test_publisher p = {.link_sock = -1};
    int fd = way == BEFORE_IT_ACCEPTS ? -1 : dlx_test_hello(&dlx_test_stream_daemon, 1);
    if (way == ON_A_SUBSCRIPTION)
        dlx_test_subscribe(&s, fd, "test/a", false);
    if (way == ON_A_LINK_SOCKET)
        dlx_test_publisher_new(&p, fd, "test/a", 0);
    dlx_test_recv_done();
    dlx_test_daemon_pause(&dlx_test_stream_daemon); /* until nobody else has it */
    if (way == BEFORE_IT_ACCEPTS)
        fd = dlx_test_connect(&dlx_test_stream_daemon);
    int sock = way == ON_A_SUBSCRIPTION ? s.fd : way == ON_A_LINK_SOCKET ? p.link_sock : fd;
    int r = dlx__packet_send(sock, info, sizeof info, &trap->fd, 1);
    int send_errno = errno;
    if (r < 0) /* or our own close() would wait */
        trap->peer = dlx__close(trap->peer);
    close(trap->fd);
    if (way == LEFT_IN_THE_SOCKET) /* and gone before it looks */
        fd = dlx__close(fd);
    (void)kill(dlx_test_stream_daemon.pid, SIGCONT);
    if (r < 0)
        ck_assert_int_eq(send_errno, EPERM);
    daemon_answers("sent");
    dlx__close(s.fd);
    if (p.id)
        dlx_test_publisher_deinit(&p);
    dlx__close(fd);
    daemon_answers("left");
    return r == 0;
}

LOOP_TEST(a_lingering_socket_is_refused_by_the_kernel, 0, N_WAYS)
{
    struct trap trap = lingering_socket();
    if (send_trap((enum way)_i, &trap))
        puts("SKIP: the kernel does not know SO_PASSRIGHTS");
    dlx__close(trap.peer);
}

/* A worker waits for it, while the daemon serves others, and longer than the daemon's own end
 * does. */
LOOP_TEST(a_lingering_socket_does_not_hold_the_daemon_up_where_the_kernel_lets_it_pass, 0, N_WAYS)
{
    if (dlx_test_valgrind()) {
        puts("SKIP: valgrind lets no other thread run while one closes a socket");
        return;
    }
    ck_assert_int_eq(dlx_test_daemon_stop(&dlx_test_stream_daemon), 0);
    dlx_test_daemon_start_prepared(&dlx_test_stream_daemon, dlx_test_seccomp_on_an_older_kernel,
                                   NULL);
    struct trap trap = lingering_socket();
    if (!send_trap((enum way)_i, &trap)) {
        puts("SKIP: no seccomp here, by which the kernel could be made an older one");
    } else {
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
