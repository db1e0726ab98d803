/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/hostile/harness_trap.h"
#include "tests/harness/seccomp.h"

#define BODY(name) DLX__WIRE__PACKET__BODY_##name

void dlx_test_trap_daemon_answers(int64_t within_ns, const char *when)
{
    uint64_t start = dlx__now_ns();
    Dlx__Wire__DaemonInfo info = DLX__WIRE__DAEMON_INFO__INIT;
    int fd = dlx_test_hello(&dlx_test_stream_daemon, 1);
    (void)dlx_test_call_for(fd, BODY(DAEMON_INFO), &info, BODY(DAEMON_INFO_REPLY));
    close(fd);
    ck_assert_msg(dlx__now_ns() - start < (uint64_t)within_ns,
                  "%s: the daemon stood still for %.3f s", when,
                  (double)(dlx__now_ns() - start) / 1e9);
}

bool dlx_test_trap_send(struct dlx_test_trap *trap, enum dlx_test_trap_way way, int borrow_fd)
{
    static const uint8_t info[] = {0x08, 0x01, 0xda, 0x01, 0x00};
    const struct dlx_test_daemon *daemon = &dlx_test_stream_daemon;
    *trap = (struct dlx_test_trap){.way = way, .fd = -1, .s = {.fd = -1}, .p = {.link_sock = -1}};
    if (way != BEFORE_IT_ACCEPTS)
        trap->fd = dlx_test_hello(daemon, 1);
    if (way == ON_A_SUBSCRIPTION)
        dlx_test_subscribe(&trap->s, trap->fd, "test/a", false);
    if (way == ON_A_LINK_SOCKET)
        dlx_test_publisher_new(&trap->p, trap->fd, "test/a", 0);
    dlx_test_recv_done();
    dlx_test_daemon_pause(daemon);
    if (way == BEFORE_IT_ACCEPTS)
        trap->fd = dlx_test_connect(daemon);
    int sock = way == ON_A_SUBSCRIPTION  ? trap->s.fd
               : way == ON_A_LINK_SOCKET ? trap->p.link_sock
                                         : trap->fd;
    int r = dlx__packet_send(sock, info, sizeof info, &borrow_fd, 1);
    ck_assert(r == 0 || errno == EPERM);
    return r == 0;
}

void dlx_test_trap_resume(struct dlx_test_trap *trap)
{
    if (trap->way == LEFT_IN_THE_SOCKET) /* and gone before it looks */
        trap->fd = dlx__close(trap->fd);
    ck_assert_int_eq(kill(dlx_test_stream_daemon.pid, SIGCONT), 0);
}

void dlx_test_trap_end(struct dlx_test_trap *trap, int64_t within_ns)
{
    dlx_test_trap_daemon_answers(within_ns, "sent");
    dlx__close(trap->s.fd);
    if (trap->p.id)
        dlx_test_publisher_deinit(&trap->p);
    dlx__close(trap->fd);
    dlx_test_trap_daemon_answers(within_ns, "left");
}

void dlx_test_trap_skip(bool sent, bool is_refused)
{
    if (!sent && !is_refused)
        puts("SKIP: no seccomp here, by which the kernel could be made an older one");
    if (sent && is_refused)
        puts("SKIP: the kernel does not know SO_PASSRIGHTS");
}

void dlx_test_trap_on_an_older_kernel(void)
{
    ck_assert_int_eq(dlx_test_daemon_stop(&dlx_test_stream_daemon), 0);
    dlx_test_daemon_start_prepared(&dlx_test_stream_daemon, dlx_test_seccomp_on_an_older_kernel,
                                   NULL);
}
