/* SPDX-License-Identifier: Apache-2.0 */

/* The thread that serves what the keeper has not (gpu/lib/serve.h). The test is the daemon and the
 * readers; memfds stand for GPU memory. */

#include "gpu/backend.h"
#include "gpu/lib/serve.h"
#include "tests/harness/fds.h"
#include "tests/harness/fork.h"
#include "tests/harness/keeper.h"
#include "tests/harness/patience.h"
#include "tests/harness/stream.h"
#include <dirent.h>
#include <sys/resource.h>

static void close_memory(struct dlx_gpu_memory *memory)
{
    (void)memory;
}

static const struct dlx_gpu_ops ops = {.close = close_memory};

struct publisher {
    struct dlx_gpu_exports *exports;
    struct dlx_gpu_export *export;
    struct dlx_gpu_handle handle; /* of the export; the descriptors are others */
    int sock;                     /* the daemon's end */
};
static struct publisher one, two;
static size_t fds_before;
static struct dlx_packet packet;

static void add_export(struct publisher *of, uint32_t n_chunks)
{
    const struct dlx_gpu_memory memory = {.ops = &ops};
    struct dlx_gpu_handle handle;
    ok(dlx__gpu_exports_plan(of->exports, &of->export));
    dlx_test_keeper_handle(&of->handle, dlx__gpu_export_handle(of->export)->id, n_chunks);
    ok(dlx__gpu_handle_copy(&of->handle, &handle));
    dlx__gpu_export_fill(of->export, &memory, &handle);
}

static void begin(struct publisher *of, uint64_t number, uint32_t n_chunks)
{
    int ends[2];
    ok(dlx__gpu_exports_new(&of->exports, (struct dlx_gpu_publisher){number, number}));
    add_export(of, n_chunks);
    dlx_test_fds_pair(ends);
    of->sock = ends[0];
    ok(dlx__gpu_serve(of->exports, NULL, ends[1]));
}

static void end(struct publisher *of)
{
    if (!of->exports)
        return;
    dlx__gpu_serve_end(of->exports);
    dlx__gpu_export_unref(dlx_steal(of->export));
    dlx__gpu_exports_end(dlx_steal(of->exports));
    dlx__gpu_handle_deinit(&of->handle);
    of->sock = dlx__close(of->sock);
}

static void setup(void)
{
    fds_before = dlx_test_fds_count();
}

/* Sanitizers have threads of their own. */
static bool has_threads(size_t expected)
{
    size_t n = 0;
    if (dlx_test_instrumented())
        return true;
    DIR *dir = opendir("/proc/self/task");
    ck_assert_ptr_nonnull(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n == expected + 2; /* . and .. */
}

/* Whatever a test did, its publishers end, and leave nothing. */
static void teardown(void)
{
    end(&one);
    end(&two);
    eventually(has_threads(1));
    ck_assert_uint_eq(dlx_test_fds_count(), fds_before);
}

/* As the daemon asks, for a reader, whose end this returns. */
static int ask(const struct publisher *of, uint64_t id)
{
    const struct dlx_keeper_packet packet_of = {.kind = DLX_KEEPER_ASK, .allocation = id};
    int ends[2];
    dlx_test_fds_pair(ends);
    ck_assert_int_eq(shutdown(ends[0], SHUT_WR), 0);
    ok(dlx__keeper_send(of->sock, &packet_of, &ends[1], 1));
    close(ends[1]);
    return ends[0];
}

static bool is_readable(int sock, int ms)
{
    struct pollfd readable = {.fd = sock, .events = POLLIN};
    return poll(&readable, 1, ms) == 1;
}

/* 0: a PART came, and is in `ret`; else the code of a REFUSAL, or DLX_E_DISCONNECTED. */
static int receive(int sock, struct dlx_gpu_handle *ret)
{
    struct dlx_keeper_packet part;
    ck_assert(is_readable(sock, PATIENCE_MS));
    int r = dlx__packet_recv_fds(sock, &packet);
    if (r < 0)
        return r;
    ok(dlx__keeper_decode(&packet, &part));
    if (part.kind == DLX_KEEPER_REFUSAL)
        return dlx__keeper_fail(&part);
    ck_assert_int_eq(part.kind, DLX_KEEPER_PART);
    ok(dlx__gpu_handle_decode(ret, part.body, part.body_size, packet.fds, packet.n_fds));
    dlx__packet_deinit(&packet);
    return 0;
}

/* All of it comes on this socket, which is then closed. */
static void gets_all(int take_sock, const struct publisher *of)
{
    struct dlx_gpu_handle got = {0};
    while (!dlx__gpu_handle_is_complete(&got))
        ok(receive(take_sock, &got));
    ck_assert(dlx_test_keeper_same(&got, &of->handle));
    dlx__gpu_handle_deinit(&got);
    ck_assert_int_eq(receive(take_sock, &got), DLX_E_DISCONNECTED);
    close(take_sock);
}

static const uint32_t sizes[] = {1, 8, 9, 253, 600};

LOOP_TEST(a_reader_gets_an_allocation_of_any_number_of_chunks, 0, DLX_ARRAY_SIZE(sizes))
{
    begin(&one, 1, sizes[_i]);
    for (int i = 0; i < 3; i++)
        gets_all(ask(&one, one.handle.id), &one);
}

TEST(memory_that_is_not_shared_is_refused_in_words)
{
    struct dlx_gpu_handle got = {0};
    begin(&one, 1, 1);
    int sock = ask(&one, 77);
    fails(receive(sock, &got), DLX_E_NOT_FOUND, "GPU memory 77");
    ck_assert_int_eq(receive(sock, &got), DLX_E_DISCONNECTED);
    close(sock);
}

TEST(an_allocation_that_goes_away_while_it_is_sent_is_refused_in_words)
{
    struct dlx_gpu_handle got = {0};
    begin(&one, 1, 9);
    int sock = ask(&one, one.handle.id);
    ck_assert(is_readable(sock, PATIENCE_MS));
    dlx__gpu_export_unref(dlx_steal(one.export));
    ok(receive(sock, &got));
    ck_assert_uint_eq(got.n_received, 8);
    fails(receive(sock, &got), DLX_E_NOT_FOUND, "any more");
    dlx__gpu_handle_deinit(&got);
    close(sock);
}

TEST(a_reader_that_never_reads_keeps_nobody_else_waiting)
{
    begin(&one, 1, 60);
    int lazy = ask(&one, one.handle.id);
    ck_assert(is_readable(lazy, PATIENCE_MS));
    for (int i = 0; i < 3; i++)
        gets_all(ask(&one, one.handle.id), &one);
    close(lazy);
}

/* So descriptors that nobody receives are few: the kernel counts those of a user. */
TEST(the_next_part_follows_when_the_last_one_was_received)
{
    struct dlx_gpu_handle got = {0};
    begin(&one, 1, 60);
    int lazy = ask(&one, one.handle.id);
    gets_all(ask(&one, one.handle.id), &one); /* the thread had its chances */
    dlx__gpu_serve_end(one.exports);
    ok(receive(lazy, &got));
    ck_assert_uint_eq(got.n_received, 8);
    ck_assert_int_eq(receive(lazy, &got), DLX_E_DISCONNECTED);
    dlx__gpu_handle_deinit(&got);
    close(lazy);
}

/* For longer, all in all, than one that receives nothing is waited for. */
TEST(a_slow_reader_gets_all)
{
    enum { PARTS = 10 };
    const int pause_ms = (int)(DLX_GPU_READER_NS / 1000000) * 3 / 2 / PARTS;
    struct dlx_gpu_handle got = {0};
    begin(&one, 1, 8 * PARTS);
    int sock = ask(&one, one.handle.id);
    while (!dlx__gpu_handle_is_complete(&got)) {
        (void)poll(NULL, 0, pause_ms);
        ok(receive(sock, &got));
    }
    ck_assert(dlx_test_keeper_same(&got, &one.handle));
    dlx__gpu_handle_deinit(&got);
    close(sock);
}

TEST(a_reader_that_receives_nothing_is_given_up_in_words)
{
    struct dlx_gpu_handle got = {0};
    begin(&one, 1, 9);
    uint64_t began = dlx__now_ns();
    int lazy = ask(&one, one.handle.id);
    struct pollfd over = {.fd = lazy, .events = POLLRDHUP};
    ck_assert_int_eq(poll(&over, 1, PATIENCE_MS), 1);
    ck_assert_uint_ge(dlx__now_ns() - began, DLX_GPU_READER_NS);
    ok(receive(lazy, &got));
    fails(receive(lazy, &got), DLX_E_TIMEOUT, "gave up");
    dlx__gpu_handle_deinit(&got);
    close(lazy);
}

enum { MANY = DLX_GPU_READERS_MAX + 5 };
static int socks[MANY];

/* While the thread can serve none: it finds them closed all at once. The newest one is its first.
 */
static int close_those_who_are_served(const struct dlx_gpu_handle *handle, void *unused)
{
    (void)handle, (void)unused;
    for (size_t i = DLX_GPU_READERS_MAX; i > 0; i--)
        close(socks[i - 1]);
    return 0;
}

/* Ten times: how far the thread is when they go is chance. */
LOOP_TEST(more_readers_than_are_served_at_a_time_wait_for_others, 0, 10)
{
    begin(&one, 1, 9);
    for (size_t i = 0; i < MANY; i++)
        socks[i] = ask(&one, one.handle.id);
    ck_assert(is_readable(socks[DLX_GPU_READERS_MAX - 1], PATIENCE_MS));
    ck_assert(!is_readable(socks[MANY - 1], _i));
    ok(dlx__gpu_exports_look(one.exports, one.handle.id, close_those_who_are_served, NULL));
    for (size_t i = DLX_GPU_READERS_MAX; i < MANY; i++)
        gets_all(socks[i], &one);
}

TEST(publishers_share_a_thread_which_ends_with_the_last_one)
{
    begin(&one, 1, 1);
    begin(&two, 2, 2);
    ck_assert(has_threads(2));
    gets_all(ask(&one, one.handle.id), &one);
    gets_all(ask(&two, two.handle.id), &two);
    end(&one);
    ck_assert(has_threads(2));
    gets_all(ask(&two, two.handle.id), &two);
    end(&two);
    eventually(has_threads(1));
    begin(&one, 1, 1);
    gets_all(ask(&one, one.handle.id), &one);
}

TEST(a_publisher_that_ends_takes_its_sockets_from_the_thread)
{
    struct dlx_gpu_handle got = {0};
    begin(&one, 1, 9);
    begin(&two, 2, 1);
    int reader = ask(&one, one.handle.id);
    ck_assert(is_readable(reader, PATIENCE_MS));
    int daemon = dlx__steal_fd(&one.sock);
    end(&one);
    ck_assert(dlx__packet_hung_up(daemon));
    ok(receive(reader, &got));
    ck_assert_int_eq(receive(reader, &got), DLX_E_DISCONNECTED);
    dlx__gpu_handle_deinit(&got);
    close(reader);
    close(daemon);
    gets_all(ask(&two, two.handle.id), &two);
}

TEST(the_socket_of_another_daemon_takes_the_place_of_the_former_one)
{
    int ends[2];
    begin(&one, 1, 1);
    int former = one.sock;
    dlx_test_fds_pair(ends);
    ok(dlx__gpu_serve(one.exports, NULL, ends[1]));
    ck_assert(dlx__packet_hung_up(former));
    close(former);
    one.sock = ends[0];
    gets_all(ask(&one, one.handle.id), &one);
}

TEST(a_daemon_that_ends_is_no_burden_and_the_next_one_is_served)
{
    int ends[2];
    begin(&one, 1, 1);
    begin(&two, 2, 1);
    close(one.sock);
    gets_all(ask(&two, two.handle.id), &two);
    dlx_test_fds_pair(ends);
    one.sock = ends[0];
    ok(dlx__gpu_serve(one.exports, NULL, ends[1]));
    gets_all(ask(&one, one.handle.id), &one);
}

TEST(a_packet_that_asks_for_nothing_is_passed_over)
{
    const struct dlx_keeper_packet other = {.kind = DLX_KEEPER_CLAIMED};
    begin(&one, 1, 1);
    static const char long_one[DLX_PACKET_SIZE_MAX + 1] = "?";
    ok(dlx__packet_send(one.sock, "?", 1, NULL, 0));
    ck_assert_int_eq(send(one.sock, long_one, sizeof long_one, 0), sizeof long_one);
    ok(dlx__keeper_send(one.sock, &other, NULL, 0));
    gets_all(ask(&one, one.handle.id), &one);
}

/* Until the program has closed some. */
TEST(a_process_without_descriptors_lets_readers_wait)
{
    struct rlimit before, none;
    begin(&one, 1, 1);
    int sock = ask(&one, one.handle.id);
    gets_all(sock, &one);
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    const struct dlx_keeper_packet asked = {.kind = DLX_KEEPER_ASK, .allocation = one.handle.id};
    int ends[2];
    dlx_test_fds_pair(ends);
    none = (struct rlimit){3, before.rlim_max};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    ok(dlx__keeper_send(one.sock, &asked, &ends[1], 1));
    ck_assert(!is_readable(ends[0], 50));
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
    close(ends[1]);
    gets_all(ends[0], &one);
}

/* The child has a copy of the thread's sockets, but not the thread. */
TEST(a_forked_child_serves_nothing_and_leaves_its_parent_alone)
{
    int ends[2];
    dlx__gpu_watch_forks();
    begin(&one, 1, 1);
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        dlx_test_fds_pair(ends);
        bool is_refused = dlx__gpu_serve(one.exports, NULL, ends[1]) == DLX_E_FORKED;
        dlx__gpu_serve_end(one.exports);
        _exit(!is_refused);
    }
    dlx_test_fork_join(pid);
    gets_all(ask(&one, one.handle.id), &one);
}

int main(void)
{
    TCase *tcase = tcase_create("gpu_serve");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_set_timeout(tcase, 2 * PATIENCE_S);
    return dlx_test_run_case(tcase);
}
