/* SPDX-License-Identifier: Apache-2.0 */
/* The router of the GPU keeper, with its holders, spoken to as the daemon does. */
#include "tests/harness/daemon.h"
#include "tests/harness/fuse.h"
#include "tests/harness/keeper.h"
#include <sys/resource.h>

#define AN_HOUR UINT64_C(3600000000000)

static struct dlx_test_keeper keeper;
static struct dlxk_router_options options;
static char text[DLX_ERROR_TEXT_SIZE];
static struct dlx_gpu_handle sent, got;

/* With other options or limits. */
static void restart(void)
{
    dlx_test_keeper_kill(&keeper);
    dlx_test_keeper_start(&keeper, &options);
}

static void setup(void)
{
    options = (struct dlxk_router_options){.grace_ns = AN_HOUR};
    restart();
}

static void teardown(void)
{
    dlx_test_keeper_kill(&keeper);
    dlx__gpu_handle_deinit(&sent);
    dlx__gpu_handle_deinit(&got);
}

/* A publisher's end, and allocation 7 put there. */
static int publisher(uint64_t origin, uint64_t user, uint32_t n_chunks)
{
    int owner;
    ck_assert_msg(dlx_test_keeper_own(&keeper, origin, user, &owner, text) == 0, "%s", text);
    dlx__gpu_handle_deinit(&sent);
    dlx_test_keeper_handle(&sent, 7, n_chunks);
    ck_assert_int_eq(dlx_test_keeper_put(owner, 1, &sent, text), 0);
    return owner;
}

static int fetch(uint64_t origin, uint64_t user, uint32_t reader)
{
    auto_fd sock = dlx_test_keeper_ask(&keeper, origin, user, reader, 7);
    return dlx_test_keeper_receive(sock, &got, text);
}

static void is_cut_off(int sock)
{
    struct pollfd end = {.fd = sock, .events = POLLIN};
    ck_assert_int_eq(poll(&end, 1, PATIENCE_MS), 1);
    ck_assert(end.revents & POLLHUP);
}

TEST(each_publisher_has_a_holder_of_its_own)
{
    auto_fd a = publisher(1, 1000, 1);
    auto_fd b = publisher(1, 1001, 2); /* says that it is the same, and is another user's */
    auto_fd c = publisher(2, 1000, 3);
    dlx_test_keeper_wait_children(keeper.pid, 3);
    ck_assert_int_eq(fetch(2, 1000, 5), 0);
    ck_assert_uint_eq(got.n_chunks, 3);
    ck_assert_int_eq(fetch(1, 1001, 5), 0);
    ck_assert_uint_eq(got.n_chunks, 2);
    ck_assert_int_eq(fetch(1, 1000, 5), 0);
    ck_assert_uint_eq(got.n_chunks, 1);
    ck_assert_int_eq(fetch(3, 1000, 5), DLX_E_NOT_FOUND);
    contains(text, "publisher 3");
    a = dlx__close(a);
    dlx_test_keeper_tell(&keeper, DLX_KEEPER_FORGET, 1, 1000);
    dlx_test_keeper_wait_children(keeper.pid, 2);
    ck_assert_int_eq(fetch(1, 1000, 5), DLX_E_NOT_FOUND);
    ck_assert_int_eq(fetch(1, 1001, 5), 0);
}

/* The publisher is between two daemons, or announces itself again because an answer was late. */
TEST(handles_of_a_connected_publisher_are_not_forgotten)
{
    int a = publisher(1, 1000, 1);
    dlx_test_keeper_tell(&keeper, DLX_KEEPER_FORGET, 1, 1000);
    ck_assert_int_eq(fetch(1, 1000, 5), 0);
    dlx_test_keeper_claim(&keeper, 1, 1000, 4096);
    close(a);
    for (int i = 0; i < 10; i++)
        ck_assert_int_eq(fetch(1, 1000, 5), 0);
    dlx_test_keeper_tell(&keeper, DLX_KEEPER_FORGET, 1, 1000);
    dlx_test_keeper_wait_children(keeper.pid, 0);
}

/* The claims of the last daemon say nothing of those of the next one. */
TEST(a_publisher_that_ends_before_the_next_daemon_has_claimed_it_is_kept_for_it)
{
    auto_fd a = publisher(1, 1000, 1);
    dlx_test_keeper_claim(&keeper, 1, 1000, 4096);
    ck_assert_int_eq(fetch(1, 1000, 5), 0); /* so that it was read */
    dlx_test_keeper_connect(&keeper);
    ck_assert_int_eq(fetch(1, 1000, 5), 0);
    ck_assert_int_eq(shutdown(a, SHUT_WR), 0);
    is_cut_off(a); /* its holder has told the router */
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(fetch(1, 1000, 5), 0);
    dlx_test_keeper_claim(&keeper, 1, 1000, 4096);
    ck_assert_int_eq(fetch(1, 1000, 5), 0);
}

TEST(a_publisher_that_comes_again_begins_anew)
{
    auto_fd first = publisher(1, 1000, 1), second = -1;
    ck_assert_int_eq(dlx_test_keeper_own(&keeper, 1, 1000, &second, text), 0);
    is_cut_off(first);
    ck_assert_int_eq(fetch(1, 1000, 5), DLX_E_NOT_FOUND);
    ck_assert_int_eq(dlx_test_keeper_put(second, 1, &sent, text), 0);
    ck_assert_int_eq(fetch(1, 1000, 5), 0);
}

TEST(a_user_may_have_three_times_the_holders_that_are_left)
{
    int owners[8], n = 0, r;
    options.n_holders_max = 8;
    restart();
    while ((r = dlx_test_keeper_own(&keeper, (uint64_t)n + 1, 1000, &owners[n], text)) == 0)
        n++;
    ck_assert_int_eq(r, DLX_E_LIMIT);
    ck_assert_int_eq(n, 6);
    ck_assert_msg(strstr(text, "6 of them of uid 1000") && strstr(text, "limit 8"), "%s", text);
    ck_assert_int_eq(dlx_test_keeper_own(&keeper, 1, 1001, &owners[n++], text), 0);
    ck_assert_int_eq(dlx_test_keeper_own(&keeper, 1, 1002, &owners[n], text), DLX_E_LIMIT);
    dlx_test_keeper_tell(&keeper, DLX_KEEPER_FORGET, 2, 1000);
    close(owners[1]);
    owners[1] = -1;
    /* The publisher's holder ends, and then the keeper notices. */
    uint64_t until = dlx__deadline(PATIENCE);
    do
        r = dlx_test_keeper_own(&keeper, 1, 1002, &owners[n], text);
    while (r == DLX_E_LIMIT && dlx__now_ns() < until);
    ck_assert_int_eq(r, 0);
    n++;
    while (n > 0)
        dlx__close(owners[--n]);
}

TEST(handles_that_the_daemon_claims_outlive_their_publisher_and_no_others)
{
    int a = publisher(1, 1000, 1), b = publisher(2, 1000, 1), c = publisher(3, 1000, 1);
    close(a);
    close(b);
    ck_assert_int_eq(fetch(1, 1000, 5), 0);
    ck_assert_int_eq(fetch(2, 1000, 5), 0);
    dlx_test_keeper_connect(&keeper); /* another daemon, which has one of the two that are gone */
    ck_assert_int_eq(fetch(2, 1000, 5), 0);
    dlx_test_keeper_claim(&keeper, 1, 1000, 4096);
    dlx_test_keeper_wait_children(keeper.pid, 2);
    ck_assert_int_eq(fetch(1, 1000, 5), 0);
    ck_assert_int_eq(fetch(2, 1000, 5), DLX_E_NOT_FOUND);
    ck_assert_int_eq(fetch(3, 1000, 5), 0);
    close(c); /* not claimed: it goes with its publisher now */
    dlx_test_keeper_wait_children(keeper.pid, 1);
    dlx_test_keeper_claim(&keeper, 1, 1001, 4096); /* of another user: nothing */
    ck_assert_int_eq(fetch(1, 1000, 5), 0);
}

/* The daemon's other sockets have other users, whatever their uids. */
TEST(a_uid_by_another_socket_has_a_holder_of_its_own)
{
    const uint64_t main_user = 1000, pods_user = UINT64_C(5) << 32 | 1000;
    auto_fd a = publisher(1, main_user, 2);
    ck_assert_int_eq(fetch(1, pods_user, 5), DLX_E_NOT_FOUND);
    int b = publisher(1, pods_user, 1); /* replaces no publisher */
    ck_assert_int_eq(fetch(1, main_user, 5), 0);
    ck_assert_uint_eq(got.n_chunks, 2);
    ck_assert_int_eq(fetch(1, pods_user, 5), 0);
    ck_assert_uint_eq(got.n_chunks, 1);
    dlx_test_keeper_tell(&keeper, DLX_KEEPER_FORGET, 1, pods_user);
    close(b);
    dlx_test_keeper_wait_children(keeper.pid, 1);
    ck_assert_int_eq(fetch(1, main_user, 5), 0);
}

TEST(without_a_daemon_what_is_left_behind_goes_after_a_while)
{
    options.grace_ns = 100000000;
    restart();
    int a = publisher(1, 1000, 1), b = publisher(2, 1000, 1);
    close(a);
    keeper.daemon = dlx__close(keeper.daemon);
    dlx_test_keeper_wait_children(keeper.pid, 1); /* b is still there */
    dlx_test_keeper_connect(&keeper);
    dlx_test_keeper_claim(&keeper, 2, 1000, 4096);
    ck_assert_int_eq(fetch(2, 1000, 5), 0);
    ck_assert_int_eq(fetch(1, 1000, 5), DLX_E_NOT_FOUND);
    keeper.daemon = dlx__close(keeper.daemon);
    close(b);
    ck_assert_int_eq(dlx_test_keeper_wait(&keeper), 0);
}

TEST(a_router_does_not_end_while_a_daemon_or_a_publisher_is_there)
{
    options.grace_ns = 1000000;
    restart();
    int a = publisher(1, 1000, 1);
    close(a);
    for (int i = 0; i < 20; i++) {
        ck_assert_int_eq(poll(NULL, 0, 1), 0);
        ck_assert_int_eq(fetch(1, 1000, 5), 0);
    }
    auto_fd b = publisher(2, 1000, 1);
    keeper.daemon = dlx__close(keeper.daemon);
    dlx_test_keeper_wait_children(keeper.pid, 1);
    dlx_test_keeper_connect(&keeper);
    ck_assert_int_eq(fetch(2, 1000, 5), 0);
}

TEST(a_holder_that_dies_costs_what_it_held_and_no_more)
{
    pid_t holder;
    auto_fd a = publisher(1, 1000, 1);
    ck_assert_uint_eq(dlx_test_keeper_children(keeper.pid, &holder, 1), 1);
    auto_fd b = publisher(2, 1000, 3);
    ck_assert_int_eq(kill(holder, SIGKILL), 0);
    dlx_test_keeper_wait_children(keeper.pid, 1);
    ck_assert_int_eq(fetch(1, 1000, 5), DLX_E_NOT_FOUND);
    ck_assert_int_eq(fetch(2, 1000, 5), 0);
    is_cut_off(a);
    close(a);
    a = publisher(1, 1000, 1);
    ck_assert_int_eq(fetch(1, 1000, 5), 0);
}

TEST(holders_end_with_a_router_that_is_killed)
{
    auto_fd a = publisher(1, 1000, 1);
    dlx_test_keeper_kill(&keeper);
    is_cut_off(a);
}

TEST(a_daemon_that_breaks_the_protocol_is_cut_off)
{
    auto_fd a = publisher(1, 1000, 1);
    ck_assert_int_eq(dlx__packet_send(keeper.daemon, "what?", 5, NULL, 0), 0);
    is_cut_off(keeper.daemon);
    dlx_test_keeper_connect(&keeper);
    ck_assert_int_eq(fetch(1, 1000, 5), 0);
}

/* A holder that waits, for whatever file: its readers hear that it does not answer. */
TEST(a_holder_that_stands_still_holds_nobody_else_up)
{
    pid_t holder;
    auto_fd a = publisher(1, 1000, 1);
    ck_assert_uint_eq(dlx_test_keeper_children(keeper.pid, &holder, 1), 1);
    auto_fd b = publisher(2, 1000, 1);
    ck_assert_int_eq(kill(holder, SIGSTOP), 0);
    auto_fd waiting = dlx_test_keeper_ask(&keeper, 1, 1000, 5, 7);
    for (int i = 0; i < 10; i++)
        ck_assert_int_eq(fetch(2, 1000, 5), 0);
    ck_assert_int_eq(dlx_test_keeper_receive(waiting, &got, text), DLX_E_DISCONNECTED);
}

static size_t unread(int *socks, size_t n, uint32_t reader)
{
    size_t n_served = 0;
    for (size_t i = 0; i < n; i++)
        socks[i] = dlx_test_keeper_ask(&keeper, 1, 1000, reader, 7);
    ck_assert_int_eq(fetch(1, 1000, reader + 1), 0); /* they were all dealt with before */
    for (size_t i = 0; i < n; i++) {
        struct pollfd p = {.fd = socks[i], .events = POLLIN};
        n_served += poll(&p, 1, 0) == 1;
    }
    return n_served;
}

/* Such readers may have as many descriptors on their way as the daemon allowed, also once they were
 * given up and when their holder has ended, and others are served beside them. */
TEST(readers_that_never_read_have_few_descriptors_on_their_way)
{
    enum { N = 40, MOST = 32 };
    int socks[2 * N];
    dlx_test_keeper_claim(&keeper, 0, 0, MOST * DLXK_AHEAD);
    int a = publisher(1, 1000, 2 * DLXK_AHEAD);
    size_t n = unread(socks, N, 50);
    ck_assert_uint_eq(n, 24); /* three times the eight that are left */
    /* The holder ends, and unread descriptors stay on their way. */
    dlx_test_keeper_tell(&keeper, DLX_KEEPER_FORGET, 1, 1000);
    close(a);
    a = publisher(1, 1000, 2 * DLXK_AHEAD);
    size_t n_more = unread(socks + N, N, 50);
    ck_assert_uint_eq(n_more, 0);
    ck_assert_int_eq(fetch(1, 1000, 51), 0);
    for (int i = 0; i < N; i++)
        close(socks[i]);
    /* Now it is their turn. */
    for (int i = N; i < 2 * N; i++) {
        ck_assert_msg(dlx_test_keeper_receive(socks[i], &got, text) == 0, "%d: %s", i, text);
        dlx__gpu_handle_deinit(&got);
        close(socks[i]);
    }
    close(a);
}

TEST(a_user_may_not_fill_the_queue_of_readers)
{
    enum { N = DLXK_WAITING_MAX };
    static int socks[N];
    struct rlimit files = {2 * N + 256, 2 * N + 256};
    struct rlimit before;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    files.rlim_max = before.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &files) < 0) {
        puts("SKIP: the limit of open files cannot be raised");
        return;
    }
    restart();
    auto_fd a = publisher(1, 1000, 1);
    dlx_test_keeper_claim(&keeper, 0, 0, 0);
    for (int i = 0; i < N; i++)
        socks[i] = dlx_test_keeper_ask(&keeper, 1, 1000, 50, 7);
    ck_assert_int_eq(fetch(1, 1000, 51), 0);
    ck_assert_int_eq(dlx_test_keeper_receive(socks[N - 1], &got, text), DLX_E_LIMIT);
    contains(text, "768 of them of uid 50");
    for (int i = 0; i < N; i++)
        close(socks[i]);
}

/* A killed holder closes the last descriptor of the file. */
TEST(a_file_whose_server_does_not_answer_holds_up_its_own_holder_alone)
{
    struct dlx_test_fuse fuse;
    if (!dlx_test_fuse_start(&fuse))
        return;
    auto_fd b = publisher(2, 1000, 1);
    int a = publisher(1, 1001, 1);
    dlx__close(sent.chunks[0].fd);
    sent.chunks[0].fd = dlx__steal_fd(&fuse.fd);
    ck_assert_int_eq(dlx_test_keeper_put(a, 2, &sent, text), 0);
    dlx__gpu_handle_deinit(&sent);
    dlx_test_fuse_mute(&fuse);
    dlx_test_keeper_drop(a, 7);
    dlx_test_fuse_wait(&fuse.asked->flush);
    dlx_test_keeper_tell(&keeper, DLX_KEEPER_FORGET, 1, 1001);
    ck_assert_int_eq(fetch(2, 1000, 5), 0);
    close(a);
    ck_assert_int_eq(fetch(2, 1000, 5), 0);
    dlx_test_fuse_end(&fuse);
    dlx_test_keeper_wait_children(keeper.pid, 1);
    ck_assert_int_eq(fetch(2, 1000, 5), 0);
}

TEST(the_router_has_as_many_files_afterwards)
{
    struct dlx_test_daemon process = {.path = ""};
    auto_fd a = publisher(1, 1000, 100);
    process.pid = keeper.pid;
    size_t before = dlx_test_daemon_n_fds(&process);
    for (int i = 0; i < 100; i++) {
        ck_assert_int_eq(fetch(1, 1000, 5), 0);
        close(dlx_test_keeper_ask(&keeper, 1, 1000, 5, 7));
        close(dlx_test_keeper_ask(&keeper, 9, 1000, 5, 7));
        close(publisher(2, 1000, 1));
    }
    dlx_test_keeper_tell(&keeper, DLX_KEEPER_FORGET, 2, 1000);
    dlx_test_keeper_wait_children(keeper.pid, 1);
    dlx_test_daemon_wait_n_fds(&process, before);
}

int main(void)
{
    TCase *tcase = tcase_create("router");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_set_timeout(tcase, 2 * PATIENCE_S);
    return dlx_test_run_case(tcase);
}
