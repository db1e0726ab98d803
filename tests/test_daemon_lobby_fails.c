/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Newcomers of a publisher that makes no call: the lobby with one call of the C library that fails, and with a daemon that is killed
 * before each of its calls. What the publisher finds in its sockets is all who are there, and at most once more than it ought to.
 */
#include "common/error.h"
#include "common/memory.h"
#include "common/shm.h"
#include "daemon/lobby.h"
#include "daemon/publisher.h"
#include "tests/harness_broker.h"
#include "tests/harness_fail.h"
#include "tests/harness_fds.h"
#include "tests/harness_fork.h"
#include "tests/harness_patience.h"
#include "tests/harness_run.h"
#include <check.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define BODY(name) DLX__WIRE__PACKET__BODY_##name

/* Of what is asked for so often that the records which Check writes of assertions would take most of the time. */
#define REQUIRE(condition, ...)                                                                    \
    do {                                                                                           \
        if (!(condition))                                                                          \
            ck_abort_msg(__VA_ARGS__);                                                             \
    } while (0)

enum { MAX_HELD = 16, N_IDS = 4096, N = DLXD_WAITING_MAX };

/* What is to become of a link, by its number. The first N lie in the link socket, where they stay. */
enum kind { THERE, OVER, HOLDS, DEAD, N_KINDS };

static struct {
    struct dlx_test_broker test;
    struct dlxd_client *client;
    int control;
    struct dlxd_publisher *publisher;
    int link_sock; /* the publisher's end */
    struct dlx_shm_control *block;
    uint64_t block_size;
    int pages[N_KINDS]; /* links of a kind have one page */
    int bell[2];
    int alive, dead; /* pidfds */
    uint32_t last;   /* link */
    int trays[2];
    uint64_t joins; /* as LobbyClosed said */
    uint32_t n_seen[N_IDS];
} w;

static enum kind kind_of(uint32_t link)
{
    return link <= N ? OVER : (enum kind)(link % N_KINDS);
}

static int page_of(enum kind kind)
{
    static const uint64_t cursors[] = {
        [THERE] = 1, [OVER] = DLX_SHM_CURSOR_CLOSED, [HOLDS] = DLX_SHM_CURSOR_CLOSED, [DEAD] = 1};
    uint64_t hold = 7;
    int fd = memfd_create("page", MFD_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, (off_t)dlx_shm_link_size(MAX_HELD)), 0);
    ck_assert_int_eq(pwrite(fd, &cursors[kind], 8, offsetof(struct dlx_shm_link, cursor)), 8);
    if (kind == HOLDS) /* the last one that it has */
        ck_assert_int_eq(
            pwrite(fd, &hold, 8, offsetof(struct dlx_shm_link, hold) + 8 * (MAX_HELD - 1)), 8);
    return fd;
}

static int pidfd_of(pid_t pid)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    ck_assert_int_ge(fd, 0);
    return fd;
}

static int pidfd_of_the_dead(void)
{
    pid_t pid = dlx_test_fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0)
        _exit(0);
    int fd = pidfd_of(pid);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    return fd;
}

static void setup(void)
{
    static const struct dlxd_publisher_config config = {.history = 1, .n_slots = 3};
    struct dlxd_publisher_fds fds;
    void *map;
    memset(&w, 0, sizeof w);
    dlx_test_broker_init(&w.test, UINT64_C(1) << 32);
    w.client = dlx_test_broker_client(&w.test, 1000, &w.control);
    w.client->minor = DLX_PROTO_MINOR;
    ck_assert_int_eq(dlxd_publisher_new(&w.publisher, w.client, "t", &config, &fds), 0);
    close(fds.membership_fd);
    w.link_sock = fds.link_sock;
    w.block_size = dlx_shm_control_size(config.n_slots);
    ck_assert_int_eq(dlx__region_populate(&dlx__memory_memfd, fds.control_fd, w.block_size, &map),
                     0);
    w.block = map;
    ck_assert_int_eq(dlxd_publisher_ready(w.publisher), 0);
    for (enum kind k = 0; k < N_KINDS; k++)
        w.pages[k] = page_of(k);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, w.bell), 0);
    w.alive = pidfd_of(getpid());
    w.dead = pidfd_of_the_dead();
    w.trays[0] = w.trays[1] = -1;
}

static void teardown(void)
{
    const int fds[] = {w.control, w.link_sock, w.bell[0],  w.bell[1],
                       w.alive,   w.dead,      w.trays[0], w.trays[1]};
    dlx_test_broker_deinit(&w.test);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(fds); i++)
        dlx__close(fds[i]);
    for (enum kind k = 0; k < N_KINDS; k++)
        close(w.pages[k]);
    dlx__region_unmap(w.block, w.block_size);
}

/* The next link. No ck_ in here: it may be that a call fails. */
static int join(void)
{
    Dlx__Wire__LinkAdded body = DLX__WIRE__LINK_ADDED__INIT;
    uint32_t link = w.last + 1;
    enum kind kind = kind_of(link);
    const int fds[] = {w.pages[kind], w.bell[0], kind == DEAD ? w.dead : w.alive};
    body.link = link;
    body.max_held = MAX_HELD;
    body.page_size = dlx_shm_link_size(MAX_HELD);
    int r = dlxd_lobby_send_added(w.publisher, w.client->user, &body, fds);
    if (r == 0) {
        w.last = link;
        dlxd_membership_joined(&w.publisher->line);
        if (kind != THERE)
            dlxd_lobby_left(w.publisher);
    }
    return r;
}

static void join_many(uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        REQUIRE(join() == 0, "link %u: %s", w.last + 1, dlx__error_message());
}

/* ---- what the publisher finds --------------------------------------------------------------- */

static void read_socket(int sock)
{
    static struct dlx_packet rx;
    static struct dlx_proto_arena arena;
    const Dlx__Wire__Packet *packet;
    while (sock >= 0 && dlx__packet_recv_fds(sock, &rx) == 0) {
        REQUIRE(dlx__proto_unpack(&arena, rx.data, rx.size, &packet) == 0, "%s",
                dlx__error_message());
        if (packet->body_case == BODY(LINK_ADDED)) {
            REQUIRE(rx.n_fds == 3 && packet->link_added->link < N_IDS, "LinkAdded with %zu fds",
                    rx.n_fds);
            w.n_seen[packet->link_added->link]++;
        } else if (packet->body_case == BODY(LOBBY_OPEN)) {
            REQUIRE(rx.n_fds == 2, "LobbyOpen with %zu fds", rx.n_fds);
            for (size_t i = 0; i < 2; i++) {
                dlx__close(w.trays[i]);
                w.trays[i] = dlx__packet_steal_fd(&rx, i);
            }
        } else {
            ck_assert_int_eq(packet->body_case, BODY(LOBBY_CLOSED));
            w.joins = packet->lobby_closed->joins;
        }
        dlx__packet_deinit(&rx);
    }
}

static void read_all(void)
{
    memset(w.n_seen, 0, sizeof w.n_seen);
    read_socket(w.link_sock);
    read_socket(w.trays[0]);
    read_socket(w.trays[1]);
}

static bool needs(enum kind kind)
{
    return kind == THERE || kind == HOLDS;
}

/* Of the links up to `last`. */
static void check_found(uint32_t last, uint32_t most)
{
    for (uint32_t i = 1; i <= last; i++) {
        REQUIRE(w.n_seen[i] > 0 || !needs(kind_of(i)), "link %u of %u is lost", i, last);
        REQUIRE(w.n_seen[i] <= most, "link %u of %u is there %u times", i, last, w.n_seen[i]);
    }
}

/* ---- the tests ----------------------------------------------------------------------------- */

START_TEST(who_has_left_makes_room_and_nobody_else_does)
{
    setup();
    join_many(2 * N);
    ck_assert_ptr_nonnull(w.publisher->lobby);
    /* Half of the lobby stays at each turn, of that which came since the one before: N, N/2, N/4 are free. */
    join_many(N / 2);
    join_many(N / 4);
    read_all();
    check_found(w.last, 1);
    for (uint32_t i = N + 1; i <= 2 * N; i++)
        ck_assert_uint_eq(w.n_seen[i], needs(kind_of(i)));
    /* It has read all: the link socket will do. */
    join_many(1);
    ck_assert_ptr_null(w.publisher->lobby);
    ck_assert_uint_eq(w.client->user->used[DLXD_LINKS], 0);
    uint32_t last = w.last;
    read_all();
    ck_assert_uint_eq(w.n_seen[last], 1);
    ck_assert_uint_eq(w.joins, last - 1);
    join_many(2 * N); /* and there may be another one */
    ck_assert_ptr_nonnull(w.publisher->lobby);
    read_all();
    teardown();
}
END_TEST

START_TEST(there_is_an_end_to_it)
{
    setup();
    int r = 0;
    while (r == 0)
        r = join();
    ck_assert_int_eq(r, DLX_E_PUBLISHER_NOT_RESPONDING);
    read_all();
    check_found(w.last, 1);
    uint32_t n = 0;
    for (uint32_t i = N + 1; i <= w.last; i++)
        n += needs(kind_of(i));
    ck_assert_uint_ge(n, N - 8);
    ck_assert_uint_le(n, N);
    teardown();
}
END_TEST

START_TEST(nothing_is_taken_out_under_the_publishers_hands)
{
    setup();
    join_many(2 * N);
    dlx_store32_sc(&w.block->picking, 1);
    ck_assert_int_eq(join(), DLX_E_PUBLISHER_NOT_RESPONDING);
    read_all();
    for (uint32_t i = 1; i <= w.last; i++)
        ck_assert_uint_eq(w.n_seen[i], 1);
    dlx_store32_sc(&w.block->picking, 0);
    teardown();
}
END_TEST

START_TEST(an_old_client_or_one_that_is_not_vouched_for_has_no_lobby)
{
    setup();
    w.client->minor = DLX_PROTO_MINOR_LOBBY - 1;
    join_many(N);
    ck_assert_int_eq(join(), DLX_E_PUBLISHER_NOT_RESPONDING);
    ck_assert_ptr_null(w.publisher->lobby);
    read_all();
    check_found(w.last, 1);
    teardown();
}
END_TEST

START_TEST(a_call_that_fails_loses_nobody)
{
    struct dlx_test_fail fail = {0};
    size_t n_points = 0;
    while (dlx_test_fail_next(&fail)) {
        setup();
        join_many(N);
        size_t fds_full = dlx_test_fds_count();
        dlx_test_fail(&fail);
        int r = join(); /* opens the lobby */
        dlx_test_fail(NULL);
        if (r < 0)
            ck_assert_msg(dlx_test_fds_count() == fds_full + (w.publisher->lobby ? 4 : 0), "%s",
                          fail.call);
        join_many(2 * N - w.last);
        size_t n_calls = fail.n_calls;
        dlx_test_fail(&fail);
        r = fail.call ? 0 : join(); /* clears it */
        dlx_test_fail(NULL);
        n_points += fail.n_calls > n_calls;
        if (r < 0)
            (void)join();
        read_all();
        /* Where a tray could not be emptied they are there twice. */
        check_found(w.last, fail.call && strcmp(fail.call, "connect") == 0 ? 2 : 1);
        teardown();
    }
    ck_assert_uint_gt(n_points, 100);
}
END_TEST

/* ---- a daemon of its own process ------------------------------------------------------------ */

struct daemon {
    pid_t pid;
    int sock; /* tells it to go on */
};

/* With a lobby that is full. The publisher, and what it finds, are ours; the daemon fails as is said when the last link joins. */
static struct daemon start_daemon(struct dlx_test_fail *fail)
{
    static struct dlx_packet rx;
    int pair[2];
    uint8_t byte = 0;
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    struct daemon daemon = {.pid = dlx_test_fork(), .sock = pair[0]};
    ck_assert_int_ge(daemon.pid, 0);
    if (daemon.pid == 0) {
        setup();
        join_many(2 * N);
        ck_assert_int_eq(dlx__packet_send(pair[1], &byte, 1, &w.link_sock, 1), 0);
        ck_assert_int_eq(recv(pair[1], &byte, 1, 0), 1);
        dlx_test_fail(fail);
        _exit(join() == 0 ? 0 : 2);
    }
    close(pair[1]);
    struct pollfd p = {.fd = daemon.sock, .events = POLLIN};
    ck_assert_int_eq(poll(&p, 1, PATIENCE_MS), 1);
    ck_assert_int_eq(dlx__packet_recv_fds(daemon.sock, &rx), 0);
    memset(&w, 0, sizeof w);
    w.link_sock = dlx__packet_steal_fd(&rx, 0);
    w.trays[0] = w.trays[1] = -1;
    return daemon;
}

static int status_of(struct daemon *daemon)
{
    int status;
    ck_assert_int_eq(waitpid(daemon->pid, &status, 0), daemon->pid);
    ck_assert_msg(WIFEXITED(status), "status %#x", (unsigned)status);
    close(daemon->sock);
    return WEXITSTATUS(status);
}

static void close_sockets(void)
{
    close(w.link_sock);
    close(w.trays[0]);
    close(w.trays[1]);
}

START_TEST(a_daemon_that_is_killed_at_any_call_loses_nobody)
{
    struct dlx_test_fail fail = {.dies = true};
    size_t n_points = 0, n_twice = 0;
    for (int status = 1; status != 0; n_points++) {
        fail.at++;
        struct daemon daemon = start_daemon(&fail);
        ck_assert_int_eq(send(daemon.sock, "", 1, 0), 1);
        status = status_of(&daemon);
        ck_assert(status == 0 || status == DLX_TEST_FAIL_DIED);
        read_all();
        check_found(2 * N, 2);
        for (uint32_t i = 1; i <= 2 * N; i++)
            n_twice += w.n_seen[i] == 2;
        ck_assert(status != 0 || w.n_seen[2 * N + 1] == 1);
        close_sockets();
    }
    ck_assert_uint_gt(n_points, 100);
    ck_assert_uint_gt(n_twice, 0); /* else nothing was copied before it was taken out */
}
END_TEST

static void *receive_into(void *page)
{
    (void)recv(w.trays[0], page, DLX_PAGE, 0);
    return NULL;
}

/* The kernel holds a lock of the socket meanwhile: whoever receives from it as well waits, and cannot even be killed. */
START_TEST(a_publisher_that_stalls_in_a_receive_keeps_nobody_waiting)
{
    struct uffdio_api api = {.api = UFFD_API};
    int uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    if (uffd < 0 && (errno == EPERM || errno == ENOSYS)) {
        printf("userfaultfd is not allowed here: not tested\n");
        return;
    }
    ck_assert_int_eq(ioctl(uffd, UFFDIO_API, &api), 0);
    void *page = mmap(NULL, DLX_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(page, MAP_FAILED);
    struct uffdio_register area = {.range = {.start = (uintptr_t)page, .len = DLX_PAGE},
                                   .mode = UFFDIO_REGISTER_MODE_MISSING};
    ck_assert_int_eq(ioctl(uffd, UFFDIO_REGISTER, &area), 0);
    struct daemon daemon = start_daemon(NULL);
    read_socket(w.link_sock);
    pthread_t thread;
    struct pollfd stalled = {.fd = uffd, .events = POLLIN};
    ck_assert_int_eq(pthread_create(&thread, NULL, receive_into, page), 0);
    ck_assert_int_eq(poll(&stalled, 1, PATIENCE_MS), 1);
    struct pollfd ends = {.fd = pidfd_of(daemon.pid), .events = POLLIN};
    ck_assert_int_eq(send(daemon.sock, "", 1, 0), 1);
    bool in_time = poll(&ends, 1, PATIENCE_MS) == 1;
    struct uffdio_zeropage there = {.range = area.range};
    ck_assert_int_eq(ioctl(uffd, UFFDIO_ZEROPAGE, &there), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert(in_time);
    ck_assert_int_eq(status_of(&daemon), 0);
    close(ends.fd);
    close_sockets();
    munmap(page, DLX_PAGE);
    close(uffd);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("lobby");
    TCase *tcase = tcase_create("lobby");
    tcase_set_timeout(tcase, 5 * PATIENCE_S);
    tcase_add_test(tcase, who_has_left_makes_room_and_nobody_else_does);
    tcase_add_test(tcase, there_is_an_end_to_it);
    tcase_add_test(tcase, nothing_is_taken_out_under_the_publishers_hands);
    tcase_add_test(tcase, an_old_client_or_one_that_is_not_vouched_for_has_no_lobby);
    tcase_add_test(tcase, a_call_that_fails_loses_nobody);
    tcase_add_test(tcase, a_daemon_that_is_killed_at_any_call_loses_nobody);
    tcase_add_test(tcase, a_publisher_that_stalls_in_a_receive_keeps_nobody_waiting);
    suite_add_tcase(suite, tcase);
    return dlx_test_run(suite);
}
