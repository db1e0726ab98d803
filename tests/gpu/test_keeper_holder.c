/* SPDX-License-Identifier: Apache-2.0 */
/* The process that holds one publisher's descriptors, over its two sockets. */
#include "tests/harness/daemon.h"
#include "tests/harness/fork.h"
#include "tests/harness/fuse.h"
#include "tests/harness/keeper.h"

static struct dlxk_holder_options options;
static int owner = -1, control = -1;
static pid_t pid;
static char text[DLX_ERROR_TEXT_SIZE];
static struct dlx_gpu_handle sent, got;

static void start(void)
{
    int owners[2], controls[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, owners), 0);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, controls), 0);
    pid_t parent = getpid();
    pid = dlx_test_fork();
    if (pid == 0)
        _exit(dlxk_holder_main(owners[1], controls[1], parent, &options));
    close(owners[1]);
    close(controls[1]);
    owner = owners[0];
    control = controls[0];
}

static void teardown(void)
{
    dlx__gpu_handle_deinit(&sent);
    dlx__gpu_handle_deinit(&got);
    owner = dlx__close(owner);
    control = dlx__close(control);
    if (pid > 0)
        dlx_test_fork_kill(pid);
    pid = 0;
    options = (struct dlxk_holder_options){0};
}

static int ask(uint64_t allocation)
{
    int theirs;
    int ours = dlx_test_keeper_reply_socket(&theirs);
    const struct dlx_keeper_packet get = {
        .kind = DLX_KEEPER_GET, .origin = 1, .allocation = allocation};
    ck_assert_int_eq(dlx__keeper_send(control, &get, &theirs, 1), 0);
    close(theirs);
    return ours;
}

static int fetch(uint64_t allocation)
{
    auto_fd sock = ask(allocation);
    return dlx_test_keeper_receive(sock, &got, text);
}

/* Allocation 7 is what was sent. */
static void check_fetched(void)
{
    ck_assert_msg(fetch(7) == 0, "%s", text);
    ck_assert(dlx_test_keeper_same(&sent, &got));
}

/* A holder that has an allocation 7. */
static void start_with(uint32_t n_chunks)
{
    start();
    dlx_test_keeper_handle(&sent, 7, n_chunks);
    ck_assert_int_eq(dlx_test_keeper_put(owner, 1, &sent, text), 0);
}

static const uint32_t sizes[] = {1, DLXK_AHEAD, DLXK_AHEAD + 1, 253, 254, 300};

LOOP_TEST(a_handle_comes_back_in_parts_that_are_read_one_by_one, 0, DLX_ARRAY_SIZE(sizes))
{
    start_with(sizes[_i]);
    for (int i = 0; i < 3; i++)
        check_fetched();
}

TEST(a_handle_that_was_dropped_or_never_put_is_not_found)
{
    start_with(3);
    ck_assert_int_eq(fetch(6), DLX_E_NOT_FOUND);
    dlx_test_keeper_drop(owner, 8);
    dlx_test_keeper_drop(owner, 7);
    ck_assert_int_eq(fetch(7), DLX_E_NOT_FOUND);
    contains(text, "allocation 7");
}

TEST(a_holder_serves_when_its_publisher_has_gone)
{
    struct dlx_packet packet;
    struct dlx_keeper_packet gone;
    start_with(3);
    owner = dlx__close(owner);
    dlx_test_wait_readable(control);
    ck_assert_int_eq(dlx__packet_recv_fds(control, &packet), 0);
    ck_assert_int_eq(dlx__keeper_decode(&packet, &gone), 0);
    ck_assert_int_eq(gone.kind, DLX_KEEPER_OWNER_GONE);
    check_fetched();
}

/* The publisher does not wait for the answer, and its subscriber asks at once. */
TEST(a_handle_sent_before_a_reader_asks_is_found)
{
    static uint8_t data[DLX_GPU_BYTES_MAX];
    int fds[DLX_PACKET_FDS_MAX];
    size_t n_fds;
    start();
    ck_assert_int_eq(kill(pid, SIGSTOP), 0);
    auto_fd sock = ask(9);
    for (uint64_t id = 1; id <= 9; id++) {
        dlx__gpu_handle_deinit(&sent);
        dlx_test_keeper_handle(&sent, id, 1);
        size_t size = dlx__gpu_handle_encode(&sent, 0, data, fds, &n_fds);
        const struct dlx_keeper_packet put = {
            .kind = DLX_KEEPER_PUT, .serial = (uint32_t)id, .body = data, .body_size = size};
        ck_assert_int_eq(dlx__keeper_send(owner, &put, fds, n_fds), 0);
    }
    ck_assert_int_eq(kill(pid, SIGCONT), 0);
    ck_assert_msg(dlx_test_keeper_receive(sock, &got, text) == 0, "%s", text);
    ck_assert(dlx_test_keeper_same(&sent, &got));
}

TEST(a_second_description_with_an_id_replaces_the_first)
{
    start();
    for (uint32_t i = 1; i <= 2; i++) {
        dlx__gpu_handle_deinit(&sent);
        dlx_test_keeper_handle(&sent, 7, i);
        ck_assert_int_eq(dlx_test_keeper_put(owner, i, &sent, text), 0);
    }
    check_fetched();
}

TEST(too_many_descriptors_are_a_clear_error_and_cost_nothing_else)
{
    struct dlx_gpu_handle large;
    options.n_fds_most = 300;
    start();
    dlx_test_keeper_handle(&sent, 7, 20);
    dlx_test_keeper_handle(&large, 8, 281);
    ck_assert_int_eq(dlx_test_keeper_put(owner, 1, &sent, text), 0);
    for (uint32_t i = 2; i < 5; i++) {
        ck_assert_int_eq(dlx_test_keeper_put(owner, i, &large, text), DLX_E_LIMIT);
        contains(text, "needs 281");
        contains(text, "has 20");
        contains(text, "limit 300");
    }
    ck_assert_int_eq(fetch(7), 0);
    ck_assert_int_eq(fetch(8), DLX_E_NOT_FOUND);
    dlx_test_keeper_drop(owner, 7);
    ck_assert_int_eq(dlx_test_keeper_put(owner, 5, &large, text), 0);
    ck_assert_int_eq(fetch(8), 0);
    dlx__gpu_handle_deinit(&large);
}

TEST(a_description_that_lies_is_refused_and_the_next_one_is_kept)
{
    struct dlx_gpu_handle lie;
    start();
    dlx_test_keeper_handle(&sent, 7, 2);
    dlx_test_keeper_handle(&lie, 8, 2);
    lie.size++;
    ck_assert_int_eq(dlx_test_keeper_put(owner, 1, &lie, text), DLX_E_PROTOCOL);
    lie.size--;
    lie.id = 0;
    ck_assert_int_eq(dlx_test_keeper_put(owner, 2, &lie, text), DLX_E_PROTOCOL);
    lie.id = 8;
    lie.kind = (enum dlx_gpu_kind)77;
    ck_assert_int_eq(dlx_test_keeper_put(owner, 3, &lie, text), DLX_E_VERSION);
    ck_assert_int_eq(dlx_test_keeper_put(owner, 4, &sent, text), 0);
    ck_assert_int_eq(fetch(7), 0);
    ck_assert_int_eq(fetch(8), DLX_E_NOT_FOUND);
    lie.kind = DLX_GPU_CUDA_VMM;
    dlx__gpu_handle_deinit(&lie);
}

TEST(an_owner_that_breaks_the_protocol_is_cut_off_and_what_it_put_stays)
{
    start_with(2);
    ck_assert_int_eq(dlx__packet_send(owner, "what?", 5, NULL, 0), 0);
    ck_assert_int_eq(dlx_test_keeper_answer(owner, DLX_KEEPER_ANSWER, 2, text), DLX_E_DISCONNECTED);
    ck_assert_int_eq(fetch(7), 0);
}

/* At most DLXK_AHEAD are on their way to one that does not read, and it is given up; others go
 * on. */
TEST(a_reader_that_does_not_read_is_given_up)
{
    options.reader_ns = 50000000;
    start_with(3 * DLXK_AHEAD);
    int idle = ask(7);
    dlx_test_wait_readable(idle);
    ck_assert_int_eq(fetch(7), 0);
    struct pollfd end = {.fd = idle, .events = POLLRDHUP};
    ck_assert_int_eq(poll(&end, 1, PATIENCE_MS), 1);
    /* The reader finds the one part that it was sent, and the end. */
    ck_assert_int_eq(dlx_test_keeper_receive(idle, &got, text), DLX_E_DISCONNECTED);
    close(idle);
    ck_assert_int_eq(fetch(7), 0);
}

/* Each part that is read is a sign of life: the time that a reader has is for the next one. */
TEST(a_reader_that_is_slow_but_reads_gets_everything)
{
    enum { N_PARTS = 8, PAUSE_MS = 300 };
    options.reader_ns = UINT64_C(1000000) * PAUSE_MS * N_PARTS / 2;
    start_with(N_PARTS * DLXK_AHEAD);
    auto_fd sock = ask(7);
    ck_assert_msg(dlx_test_keeper_receive_slowly(sock, PAUSE_MS, &got, text) == 0, "%s", text);
    ck_assert(dlx_test_keeper_same(&sent, &got));
}

TEST(a_holder_ends_with_the_router)
{
    int status;
    start_with(3);
    control = dlx__close(control);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    pid = 0;
    ck_assert_int_eq(status, 0);
}

/* close() of a file whose server has ended fails, which valgrind takes for a file that stays
 * open. */
static void let_go(struct dlx_gpu_handle *handle)
{
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    for (uint32_t i = 0; i < handle->n_chunks; i++)
        ck_assert_int_ge(dup2(null, handle->chunks[i].fd), 0);
    close(null);
    dlx__gpu_handle_deinit(handle);
}

/* No process looks into a file: one whose server does not answer is held and sent like any other.
 * Closing it, when it is dropped, holds up this holder alone. */
TEST(a_file_whose_server_does_not_answer_is_held_and_sent)
{
    struct dlx_test_fuse fuse;
    start(); /* before there is a file that it would inherit */
    if (!dlx_test_fuse_start(&fuse))
        return;
    dlx_test_keeper_handle(&sent, 7, 1);
    dlx__close(sent.chunks[0].fd);
    sent.chunks[0].fd = dlx__steal_fd(&fuse.fd);
    dlx_test_fuse_mute(&fuse);
    ck_assert_int_eq(dlx_test_keeper_put(owner, 1, &sent, text), 0);
    ck_assert_int_eq(fetch(7), 0);
    ck_assert_int_eq(atomic_load(&fuse.asked->getattr), 0);
    dlx_test_keeper_drop(owner, 7);
    dlx_test_fuse_wait(&fuse.asked->flush);
    dlx_test_fuse_end(&fuse);
    let_go(&sent);
    let_go(&got);
}

int main(void)
{
    TCase *tcase = tcase_create("holder");
    tcase_add_checked_fixture(tcase, NULL, teardown);
    tcase_set_timeout(tcase, 2 * PATIENCE_S);
    return dlx_test_run_case(tcase);
}
