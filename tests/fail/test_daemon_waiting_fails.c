/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Newcomers of a publisher that makes no call: what does not fit into its link socket waits in the
 * daemon, also with one call of the C library that fails. The publisher finds all who are there,
 * once, in their order, and as many as `joins` says.
 */
#include "common/bell.h"
#include "ring/layout.h"
#include "daemon/objects/pending_join.h"
#include "daemon/objects/publisher.h"
#include "daemon/objects/publisher_state.h"
#include "tests/harness/broker.h"
#include "tests/fail/harness_fail.h"
#include "tests/harness/fork.h"
#include "tests/harness/run.h"
#include <sys/syscall.h>

/* Of what is asked for so often that the records which Check writes of assertions would take most
 * of the time. */
#define REQUIRE(condition, ...)                                                                    \
    do {                                                                                           \
        if (!(condition))                                                                          \
            ck_abort_msg(__VA_ARGS__);                                                             \
    } while (0)

enum { MAX_HELD = 70, IN_SOCKET = 128, N_LINKS = 4096, N = DLXD_PENDING_JOINS_MAX };

/* The state of a subscriber. */
enum kind { THERE, OVER, HOLDS, DEAD, N_KINDS };

static struct {
    struct dlx_test_broker test;
    struct dlxd_client *client;
    int control;
    struct dlxd_publisher *publisher;
    int link_sock; /* the publisher's end */
    const struct dlx_shm_membership *line;
    int pages[N_KINDS]; /* links of a kind have one page */
    int alive, dead;    /* pidfds */
    struct dlxd_subscription subscription;
    struct dlxd_link links[N_LINKS]; /* by number, from 1 */
    enum kind kinds[N_LINKS];
    uint32_t n; /* links */
    uint32_t last_found, n_found;
    bool found[N_LINKS];
} w;

static uint64_t joins(void)
{
    return dlx_load64_sc((dlx_atomic_u64 *)(uintptr_t)&w.line->joins);
}

static uint64_t leaves(void)
{
    return dlx_load64_sc((dlx_atomic_u64 *)(uintptr_t)&w.line->leaves);
}

static void hold(enum kind kind, uint64_t n)
{
    off_t last = (off_t)(offsetof(struct dlx_shm_link, hold) + 8 * (MAX_HELD - 1));
    REQUIRE(pwrite(w.pages[kind], &n, 8, last) == 8, "pwrite");
}

static int page_of(enum kind kind)
{
    bool closed = kind == OVER || kind == HOLDS;
    uint64_t cursor = closed ? DLX_SHM_CURSOR_CLOSED : 1;
    int fd = memfd_create("page", MFD_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, (off_t)dlx_shm_link_size(MAX_HELD)), 0);
    ck_assert_int_eq(pwrite(fd, &cursor, 8, offsetof(struct dlx_shm_link, cursor)), 8);
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
    if (pid == 0)
        _exit(0);
    int fd = pidfd_of(pid);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    return fd;
}

static void setup(void)
{
    static const struct dlxd_publisher_config config = {
        .history = 1, .depth = 16, .n_entries = 256};
    struct dlxd_publisher_fds fds;
    const void *map;
    memset(&w, 0, sizeof w);
    dlx_test_broker_init(&w.test, UINT64_C(1) << 32);
    w.client = dlx_test_broker_client(&w.test, 1000, &w.control);
    ck_assert_int_eq(dlxd_publisher_new(&w.publisher, w.client, "t", &config, &fds), 0);
    close(fds.control_fd);
    w.link_sock = fds.link_sock;
    map = mmap(NULL, DLX_PAGE, PROT_READ, MAP_SHARED, fds.membership_fd, 0);
    ck_assert(map != MAP_FAILED);
    close(fds.membership_fd);
    w.line = (const struct dlx_shm_membership *)map + w.publisher->line.index;
    for (enum kind k = 0; k < N_KINDS; k++)
        w.pages[k] = page_of(k);
    hold(HOLDS, 7);
    w.alive = pidfd_of(getpid());
    w.dead = pidfd_of_the_dead();
    w.subscription.client = w.client;
}

static void teardown(void)
{
    const int fds[] = {w.control, w.link_sock, w.alive, w.dead};
    dlx_test_broker_deinit(&w.test);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(fds); i++)
        close(fds[i]);
    for (enum kind k = 0; k < N_KINDS; k++)
        close(w.pages[k]);
    munmap((void *)(uintptr_t)((uintptr_t)w.line & ~(uintptr_t)(DLX_PAGE - 1)), DLX_PAGE);
}

static bool has_failed(const struct dlx_test_fail *fail)
{
    return fail && fail->call;
}

static struct dlxd_link *link_at(uint32_t i)
{
    return &w.links[i];
}

/* The next link. No ck_ in here: it may be that a call fails. `ret_bell`: the subscriber's end, or
 * NULL. */
static int join(enum kind kind, int *ret_bell)
{
    Dlx__Wire__LinkAdded body = DLX__WIRE__LINK_ADDED__INIT;
    uint32_t number = w.n + 1;
    struct dlxd_link *link = link_at(number);
    int bell[2];
    *link = (struct dlxd_link){.publisher = w.publisher, .subscription = &w.subscription};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, bell) < 0)
        return DLX_E_FD_LIMIT;
    const int fds[] = {w.pages[kind], bell[0], kind == DEAD ? w.dead : w.alive};
    body.link = number;
    body.max_held = MAX_HELD;
    body.page_size = dlx_shm_link_size(MAX_HELD);
    int r = dlxd_pending_join_send(link, &body, fds);
    close(bell[0]);
    if (r == 0 && ret_bell)
        *ret_bell = bell[1];
    else
        close(bell[1]);
    if (r == 0) {
        w.n = number;
        w.kinds[number] = kind;
        dlxd_membership_joined(&w.publisher->line);
    }
    return r;
}

static void join_many(enum kind kind, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        REQUIRE(join(kind, NULL) == 0, "link %u: %s", w.n + 1, dlx__error_message());
}

static void end(uint32_t number)
{
    dlxd_pending_join_link_ended(link_at(number));
}

static void read_socket(void)
{
    static struct dlx_packet rx;
    static struct dlx_proto_arena arena;
    const Dlx__Wire__Packet *packet;
    while (dlx__packet_recv_fds(w.link_sock, &rx) == 0) {
        REQUIRE(dlx__proto_unpack(&arena, rx.data, rx.size, &packet) == 0, "%s",
                dlx__error_message());
        REQUIRE(packet->body_case == DLX__WIRE__PACKET__BODY_LINK_ADDED && rx.n_fds == 3, "%s",
                dlx__proto_name(packet));
        uint64_t number = packet->link_added->link;
        REQUIRE(number > w.last_found && number <= w.n, "link %u after %u", (unsigned)number,
                w.last_found);
        w.last_found = (uint32_t)number;
        w.found[number] = true;
        w.n_found++;
        dlx__packet_deinit(&rx);
    }
}

static bool needs(enum kind kind)
{
    return kind == THERE || kind == HOLDS;
}

/* Until nothing comes any more. */
static void read_all(void)
{
    for (uint32_t n = UINT32_MAX; n != w.n_found;) {
        n = w.n_found;
        dlx_test_broker_run(&w.test);
        dlxd_broker_unstick(&w.test.broker);
        read_socket();
    }
    REQUIRE(joins() == w.n_found, "%u joins, %u found", (unsigned)joins(), w.n_found);
    for (uint32_t i = 1; i <= w.n; i++)
        REQUIRE(w.found[i] || !needs(w.kinds[i]), "link %u of %u is lost", i, w.n);
    ck_assert_uint_eq(w.publisher->pending_joins.n, 0);
    ck_assert_uint_eq(w.publisher->pending_joins.n_ended, 0);
    ck_assert_uint_eq(w.client->user->used[DLXD_PENDING_JOINS], 0);
}

TEST(waiting_joins_are_sent_in_the_order_of_joining)
{
    size_t n_fds = dlx_test_broker_n_fds(&w.test);
    join_many(THERE, IN_SOCKET);
    ck_assert_uint_eq(w.publisher->pending_joins.n, 0);
    join_many(THERE, N);
    ck_assert_uint_eq(w.publisher->pending_joins.n, N);
    ck_assert_uint_eq(w.client->user->used[DLXD_PENDING_JOINS], N);
    ck_assert_uint_eq(joins(), IN_SOCKET + N);
    ck_assert_int_eq(join(THERE, NULL), DLX_E_PUBLISHER_NOT_RESPONDING);
    ck_assert_ptr_nonnull(strstr(dlx__error_message(), "512 more wait"));
    ck_assert_ptr_nonnull(strstr(dlx__error_message(), "publisher of t"));
    read_all();
    ck_assert_uint_eq(w.n_found, IN_SOCKET + N);
    ck_assert_uint_eq(dlx_test_broker_n_fds(&w.test), n_fds);
    join_many(THERE, IN_SOCKET + 1); /* and it may happen again */
    ck_assert_uint_eq(w.publisher->pending_joins.n, 1);
    read_all();
}

TEST(a_join_that_has_left_for_good_makes_room_and_no_other_does)
{
    size_t n_fds = dlx_test_broker_n_fds(&w.test);
    join_many(THERE, IN_SOCKET);
    for (uint32_t i = 0; i < 2000; i++) {
        join_many(i % 2 ? OVER : DEAD, 1);
        end(w.n);
    }
    ck_assert_uint_eq(w.publisher->pending_joins.n, 0);
    ck_assert_uint_eq(joins(), IN_SOCKET);
    ck_assert_uint_eq(dlx_test_broker_n_fds(&w.test), n_fds);
    join_many(HOLDS, N / 2);
    for (uint32_t i = w.n - N / 2 + 1; i <= w.n; i++)
        end(i);
    join_many(THERE, N / 2);
    ck_assert_uint_eq(w.publisher->pending_joins.n, N);
    ck_assert_int_eq(join(THERE, NULL), DLX_E_PUBLISHER_NOT_RESPONDING);
    /* These subscribers hold no message any more, and no peer says so. */
    hold(HOLDS, 0);
    while (join(THERE, NULL) == DLX_E_PUBLISHER_NOT_RESPONDING) /* the last look was just now */
        continue;
    ck_assert_uint_eq(w.publisher->pending_joins.n, N / 2 + 1);
    ck_assert_uint_eq(joins(), IN_SOCKET + N / 2 + 1);
    for (uint32_t i = 1; i <= w.n; i++)
        w.kinds[i] = w.kinds[i] == HOLDS ? OVER : w.kinds[i];
    read_all();
    ck_assert_uint_eq(w.n_found, IN_SOCKET + N / 2 + 1);
}

TEST(the_ended_are_looked_at_when_they_have_doubled)
{
    join_many(THERE, IN_SOCKET);
    join_many(HOLDS, 7);
    for (uint32_t i = 0; i < 7; i++)
        end(w.n - i);
    ck_assert_uint_eq(w.publisher->pending_joins.n, 7);
    hold(HOLDS, 0);
    join_many(THERE, 1);
    end(w.n); /* the eighth, which is there */
    ck_assert_uint_eq(w.publisher->pending_joins.n, 1);
    ck_assert_uint_eq(w.publisher->pending_joins.n_ended, 1);
    ck_assert_uint_eq(joins(), IN_SOCKET + 1);
    uint64_t left = leaves();
    for (uint32_t i = 1; i < w.n; i++)
        w.kinds[i] = w.kinds[i] == HOLDS ? OVER : w.kinds[i];
    read_all();
    ck_assert_uint_eq(leaves(), left + 1); /* told after its link, which had ended before */
}

static void expect_bytes(int bell, const char *expected, size_t n)
{
    char bytes[8];
    ck_assert_int_eq(recv(bell, bytes, sizeof bytes, 0), (ssize_t)n);
    ck_assert_mem_eq(bytes, expected, n);
}

/* The publisher may have published messages for which it could not ring them. */
TEST(waiting_joins_are_rung_when_the_publisher_makes_a_call)
{
    static const char waits[] = {DLX_BELL_WAITS}, rung[] = {0}, told[] = {DLX_BELL_TOLD};
    int known, next, last;
    char byte;
    ck_assert_int_eq(join(THERE, &known), 0);
    join_many(THERE, IN_SOCKET - 1);
    ck_assert_int_eq(join(THERE, &next), 0);
    join_many(THERE, IN_SOCKET - 1);
    ck_assert_int_eq(join(THERE, &last), 0);
    ck_assert_int_lt(recv(known, &byte, 1, 0), 0);
    expect_bytes(next, waits, 1);
    expect_bytes(last, waits, 1);
    read_socket();
    dlx_test_broker_run(&w.test);
    expect_bytes(next, told, 1);
    expect_bytes(last, rung, 1);
    read_all();
    expect_bytes(last, told, 1);
    ck_assert_int_eq(recv(last, &byte, 1, 0), 0); /* the publisher has closed its end */
    close(known);
    close(next);
    close(last);
}

TEST(a_user_may_have_so_many_that_wait)
{
    w.test.broker.users.max[DLXD_PENDING_JOINS] = 3;
    join_many(THERE, IN_SOCKET + 3);
    size_t n_fds = dlx_test_broker_n_fds(&w.test);
    ck_assert_int_eq(join(THERE, NULL), DLX_E_LIMIT);
    ck_assert_ptr_nonnull(strstr(dlx__error_message(), "links that wait for their publishers"));
    ck_assert_uint_eq(dlx_test_broker_n_fds(&w.test), n_fds);
    read_all();
}

TEST(a_user_leaves_places_of_anothers_publisher_for_the_next)
{
    enum { GREEDY = 384, HONEST = 96 }; /* 3 times 128, and 3 times 32 */
    int fds[2];
    struct dlxd_client *greedy = dlx_test_broker_client_by(&w.test, 1, 1000, &fds[0]);
    struct dlxd_client *honest = dlx_test_broker_client_by(&w.test, 2, 1000, &fds[1]);
    w.subscription.client = greedy;
    join_many(THERE, IN_SOCKET + GREEDY);
    ck_assert_int_eq(join(THERE, NULL), DLX_E_PUBLISHER_NOT_RESPONDING);
    ck_assert_ptr_nonnull(strstr(dlx__error_message(), "3 times the places that are left"));
    w.subscription.client = honest;
    join_many(THERE, HONEST);
    w.subscription.client = w.client;
    join_many(THERE, N - GREEDY - HONEST);
    ck_assert_uint_eq(w.publisher->pending_joins.n, N);
    read_all();
    ck_assert_uint_eq(greedy->user->used[DLXD_PENDING_JOINS], 0);
    close(fds[0]);
    close(fds[1]);
}

TEST(a_publisher_that_has_closed_its_link_socket_is_not_waited_for)
{
    join_many(THERE, IN_SOCKET + 3);
    close(w.link_sock);
    dlx_test_broker_run(&w.test);
    ck_assert_int_eq(join(THERE, NULL), DLX_E_DISCONNECTED);
    ck_assert_uint_eq(w.publisher->pending_joins.n, 3);
    ck_assert_uint_eq(joins(), IN_SOCKET + 3); /* no join was taken back */
    w.link_sock = memfd_create("none", MFD_CLOEXEC);
    end(w.n); /* may come before or after the publisher's end */
    ck_assert(dlxd_publisher_end(w.publisher) == false);
    for (uint32_t i = 1; i < w.n; i++)
        end(i);
    ck_assert_uint_eq(w.client->user->used[DLXD_PENDING_JOINS], 0);
}

/* The socket has room, and the kernel has none, for a moment: no event says that this is over. The
 * publisher lives, and reads what comes. */
TEST(waiting_joins_are_sent_when_the_kernel_has_room_again)
{
    struct dlx_test_fail fail = {.at = 1, .only = "sendmsg"};
    join_many(THERE, IN_SOCKET + 3);
    read_socket();
    dlx_test_fail(&fail);
    dlx_test_broker_run(&w.test);
    dlx_test_fail(NULL);
    ck_assert(has_failed(&fail));
    ck_assert_uint_eq(w.publisher->pending_joins.n, 3);
    read_all();
}

/* The first that waits, one behind it that has ended, and one that sends those before it, who have
 * room now: a call of one of these fails. */
static int wait_with_failure(int kind, struct dlx_test_fail *fail)
{
    (void)kind;
    setup();
    join_many(THERE, IN_SOCKET);
    size_t n_fds = dlx_test_broker_n_fds(&w.test);
    dlx_test_fail(fail);
    uint32_t waits = join(THERE, NULL) == 0;
    dlx_test_fail(NULL);
    ck_assert_uint_eq(w.publisher->pending_joins.n, waits);
    ck_assert_uint_eq(dlx_test_broker_n_fds(&w.test), n_fds + 3 * (size_t)waits);
    dlx_test_fail(fail);
    if (!has_failed(fail))
        (void)join(HOLDS, NULL);
    if (w.kinds[w.n] == HOLDS)
        end(w.n);
    dlx_test_fail(NULL);
    join_many(OVER, 1);
    dlx_test_fail(fail);
    if (!has_failed(fail))
        end(w.n);
    dlx_test_fail(NULL);
    join_many(THERE, 3);
    read_socket();
    dlx_test_fail(fail);
    if (!has_failed(fail))
        (void)join(THERE, NULL);
    dlx_test_fail(NULL);
    read_all();
    teardown();
    return 0;
}

TEST(a_call_that_fails_loses_nobody)
{
    static const struct dlx_test_fail_story story = {
        .name = "links that wait", .tell = wait_with_failure, .n_calls = 100};
    teardown(); /* each telling has a publisher of its own */
    dlx_test_fail_each(&story);
    setup();
}

int main(void)
{
    TCase *tcase = tcase_create("waiting");
    tcase_set_timeout(tcase, 120);
    tcase_add_checked_fixture(tcase, setup, teardown);
    return dlx_test_run_case(tcase);
}
