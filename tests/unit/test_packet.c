/* SPDX-License-Identifier: Apache-2.0 */
/* Packets with file descriptors: nothing leaks, whatever goes wrong. */
#include "common/packet.h"
#include "tests/harness/daemon.h"
#include "tests/harness/fds.h"
#include "tests/harness/run.h"
#include <sys/resource.h>

static int pair[2];
static size_t before; /* fds that are open with it */
static struct dlx_packet packet;
static int (*const receive[])(int sock, struct dlx_packet *ret) = {dlx__packet_recv,
                                                                   dlx__packet_recv_fds};
static uint8_t data[DLX_PACKET_SIZE_MAX + 1];
static int many[DLX_PACKET_FDS_MAX];

static void setup(void)
{
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 7);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(many); i++)
        many[i] = pair[i % 2]; /* the same few files: only the receiver needs room */
    before = dlx_test_fds_count();
}

static void teardown(void)
{
    pair[0] = dlx__close(pair[0]);
    pair[1] = dlx__close(pair[1]);
}

static void send_one(int sock, const char *text, size_t n_fds)
{
    ck_assert_int_eq(dlx__packet_send(sock, text, 1, many, n_fds), 0);
}

static void expect_one(char text, size_t n_fds)
{
    ck_assert_int_eq(dlx__packet_recv_fds(pair[1], &packet), 0);
    ck_assert_uint_eq(packet.size, 1);
    ck_assert_int_eq(packet.data[0], text);
    ck_assert_uint_eq(packet.n_fds, n_fds);
    for (size_t i = 0; i < n_fds; i++)
        ck_assert_int_eq(fcntl(packet.fds[i], F_GETFD), FD_CLOEXEC);
    dlx__packet_deinit(&packet);
}

static void expect_nothing(int code)
{
    ck_assert_int_eq(dlx__packet_recv_fds(pair[1], &packet), code);
}

/* There is room for so many more fds. Returns the limit that was. */
static struct rlimit limit_fds(unsigned more)
{
    struct rlimit limit, low;
    int lowest = dlx_test_fds_dup(pair[0]); /* number that is free */
    dlx__close(lowest);
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    low = limit;
    low.rlim_cur = (rlim_t)lowest + more;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &low), 0);
    return limit;
}

TEST(round_trips)
{
    static const struct {
        size_t size;
        size_t n_fds;
    } cases[] = {{1, 0},
                 {1, 3},
                 {100, DLX_PACKET_FDS_MAX},
                 {DLX_PACKET_SIZE_MAX, 0},
                 {DLX_PACKET_SIZE_MAX, DLX_PACKET_FDS_MAX}};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(cases); i++) {
        ck_assert_int_eq(dlx__packet_send(pair[0], data, cases[i].size, many, cases[i].n_fds), 0);
        ck_assert_uint_eq(dlx_test_fds_count(), before);
        ck_assert_int_eq(dlx__packet_recv_fds(pair[1], &packet), 0);
        ck_assert_uint_eq(packet.size, cases[i].size);
        ck_assert_mem_eq(packet.data, data, cases[i].size);
        ck_assert_uint_eq(packet.n_fds, cases[i].n_fds);
        ck_assert_uint_eq(dlx_test_fds_count(), before + cases[i].n_fds);
        for (size_t f = 0; f < packet.n_fds; f++) {
            struct stat sent, got;
            ck_assert_int_eq(fstat(many[f], &sent), 0);
            ck_assert_int_eq(fstat(packet.fds[f], &got), 0);
            ck_assert_uint_eq(sent.st_ino, got.st_ino);
            ck_assert_int_eq(fcntl(packet.fds[f], F_GETFD), FD_CLOEXEC);
        }
        dlx__packet_deinit(&packet);
        ck_assert_uint_eq(dlx_test_fds_count(), before);
    }
    expect_nothing(DLX_E_EMPTY);
}

TEST(stolen_fds_are_the_caller_s)
{
    send_one(pair[0], "x", 3);
    ck_assert_int_eq(dlx__packet_recv_fds(pair[1], &packet), 0);
    int fd = dlx__packet_steal_fd(&packet, 1);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(dlx__packet_steal_fd(&packet, 1), -1);
    ck_assert_int_eq(dlx__packet_steal_fd(&packet, 3), -1);
    ck_assert_int_eq(dlx__packet_steal_fd(&packet, SIZE_MAX), -1);
    dlx__packet_deinit(&packet);
    dlx__packet_deinit(&packet);
    dlx__packet_deinit(NULL);
    ck_assert_int_eq(dlx__packet_steal_fd(&packet, 0), -1);
    ck_assert_uint_eq(dlx_test_fds_count(), before + 1);
    ck_assert_int_ge(fcntl(fd, F_GETFD), 0);
    dlx__close(fd);
}

/* As a hostile peer would: any size, any fds. */
static void send_raw(const void *bytes, size_t size, size_t n_fds)
{
    union {
        struct cmsghdr align;
        char buffer[CMSG_SPACE(sizeof many)];
    } control = {.buffer = {0}};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = size};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (n_fds > 0) {
        msg.msg_control = &control;
        msg.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
        memcpy(CMSG_DATA(c), many, sizeof(int) * n_fds);
    }
    ck_assert_int_ge(sendmsg(pair[0], &msg, MSG_NOSIGNAL), 0);
}

LOOP_TEST(bad_packets_are_refused_with_their_fds, 0, 2)
{
    static uint8_t large[3 * DLX_PACKET_SIZE_MAX];
    static const size_t sizes[] = {DLX_PACKET_SIZE_MAX + 1, DLX_PACKET_SIZE_MAX + 2, sizeof large,
                                   0};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(sizes); i++) {
        for (size_t n_fds = sizes[i] == 0; n_fds <= DLX_PACKET_FDS_MAX; n_fds += 84) {
            send_raw(large, sizes[i], n_fds);
            ck_assert_int_eq(receive[_i](pair[1], &packet), DLX_E_PROTOCOL);
            ck_assert_uint_eq(packet.size, 0);
            ck_assert_uint_eq(packet.n_fds, 0);
            ck_assert_uint_eq(dlx_test_fds_count(), before);
            if (receive[_i] == dlx__packet_recv) /* which leaves it where it is */
                ck_assert(dlx__packet_drop(pair[1]));
        }
    }
    /* The next packet is whole. */
    send_raw("n", 1, 1);
    expect_one('n', 1);
}

/* Fds of a peer that may send none are not even received, also without room for them: they stay in
 * the socket, since closing them might wait. */
LOOP_TEST(fds_that_nobody_may_send_never_become_ours, 0, 2)
{
    for (size_t n_fds = 1; n_fds <= DLX_PACKET_FDS_MAX; n_fds += 84) {
        send_raw("x", n_fds % 2, n_fds); /* some of them empty */
        send_raw("y", 1, 0);
        struct rlimit limit = limit_fds(_i == 0 ? DLX_PACKET_FDS_MAX : 0);
        int with = dlx__packet_recv(pair[1], &packet);
        size_t size = packet.size, n_got = packet.n_fds;
        bool same = dlx__packet_recv(pair[1], &packet) == with && dlx__packet_drop(pair[1]);
        int next = dlx__packet_recv(pair[1], &packet);
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
        ck_assert_int_eq(with, DLX_E_PROTOCOL);
        ck_assert(same);
        ck_assert_uint_eq(size, 0);
        ck_assert_uint_eq(n_got, 0);
        ck_assert_int_eq(next, 0);
        ck_assert_uint_eq(packet.size, 1);
        ck_assert_int_eq(packet.data[0], 'y');
        ck_assert_uint_eq(dlx_test_fds_count(), before);
    }
}

/* Nothing is lost, however often the caller looks. */
TEST(fds_without_room_stay_in_the_socket)
{
    int lost[3];
    if (dlx_test_valgrind()) {
        puts("SKIP: valgrind keeps RLIMIT_NOFILE to itself: the kernel hands over all descriptors");
        return;
    }
    send_one(pair[0], "x", 5);
    send_one(pair[0], "z", 5);
    send_one(pair[0], "", 0);
    struct rlimit limit = limit_fds(2);
    for (int i = 0; i < 3; i++) {
        lost[i] = dlx__packet_recv_fds(pair[1], &packet);
        if (packet.n_fds > 0 || packet.size != 1 || packet.data[0] != 'x')
            lost[i] = 0;
    }
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(lost[i], DLX_E_FD_LIMIT);
    ck_assert_uint_eq(dlx_test_fds_count(), before);
    expect_one('x', 5);
    ck_assert(dlx__packet_drop(pair[1])); /* z */
    expect_one('\0', 0);
    expect_nothing(DLX_E_EMPTY);
    send_raw("", 0, 1); /* a violation is gone */
    expect_nothing(DLX_E_PROTOCOL);
    expect_nothing(DLX_E_EMPTY);
    pair[0] = dlx__close(pair[0]);
    expect_nothing(DLX_E_DISCONNECTED);
    ck_assert_uint_eq(dlx_test_fds_count(), before - 1);
}

LOOP_TEST(packets_that_a_peer_sent_before_it_went_are_read, 0, 2)
{
    send_one(pair[0], "a", 2);
    send_one(pair[0], "b", 0);
    /* Something of ours stays unread: the kernel says ECONNRESET first. */
    if (_i == 1)
        send_one(pair[1], "z", 0);
    pair[0] = dlx__close(pair[0]);
    expect_one('a', 2);
    expect_one('b', 0);
    expect_nothing(DLX_E_DISCONNECTED);
    expect_nothing(DLX_E_DISCONNECTED);
    ck_assert_int_eq(dlx__packet_send(pair[1], "x", 1, NULL, 0), DLX_E_DISCONNECTED);
    ck_assert_uint_eq(dlx_test_fds_count(), before - 1);
}

LOOP_TEST(a_reader_that_does_not_read_fills_up, 0, 2)
{
    unsigned n = 0;
    int r;
    while ((r = dlx__packet_send(pair[0], data, 1000, NULL, 0)) == 0)
        n++;
    ck_assert_int_eq(r, DLX_E_FULL);
    ck_assert_uint_gt(n, 0);
    for (unsigned i = 0; i < n; i++)
        ck_assert_int_eq(receive[_i](pair[1], &packet), 0);
    ck_assert_int_eq(receive[_i](pair[1], &packet), DLX_E_EMPTY);
    ck_assert_int_eq(dlx__packet_send(pair[0], data, 1000, NULL, 0), 0);
}

/* The peer closed with a packet of ours unread, after the look: the kernel tells of that first. */
TEST(a_packet_of_who_reset_the_connection_is_dropped)
{
    send_one(pair[0], "b", 0);
    send_one(pair[1], "unread", 0);
    pair[0] = dlx__close(pair[0]);
    ck_assert(dlx__packet_drop(pair[1]));
    expect_nothing(DLX_E_DISCONNECTED);
}

int main(void)
{
    TCase *tcase = tcase_create("packet");
    tcase_add_checked_fixture(tcase, setup, teardown);
    return dlx_test_run_case(tcase);
}
