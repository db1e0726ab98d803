/* SPDX-License-Identifier: Apache-2.0 */
/* The file of the daemon's socket and its lock, and what may come through it where the kernel
 * refuses nothing. */

#include "tests/daemon/harness_served.h"
#include "tests/harness/manager.h"
#include "tests/harness/seccomp.h"
#include <sys/file.h>

static struct dlx_test_daemon place;

static struct stat stat_of(const char *path)
{
    struct stat st;
    ck_assert_int_eq(lstat(path, &st), 0);
    return st;
}

static char lock_path[300];

static void set_up(void)
{
    (void)snprintf(lock_path, sizeof lock_path, "%s.lock", place.path);
}

/* A process has the lock: a daemon that has just begun, or one that hangs. Odd: another kind of
 * socket answers there. */
LOOP_TEST(the_holder_of_the_lock_is_named_though_nobody_answers, 0, 2)
{
    auto_fd lock = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    auto_fd other = _i % 2 ? dlx_test_listen(place.path, SOCK_STREAM) : -1;
    ck_assert_int_eq(write(lock, "4711\n", 5), 5);
    ck_assert_int_eq(flock(lock, LOCK_EX), 0);
    uint64_t before = dlx__now_ns();
    (void)dlx_test_daemon_refuses(place.path, 1, "another dlpackd (pid 4711) is listening on");
    if (_i % 2 == 0) /* it may be about to listen */
        ck_assert_uint_ge(dlx__now_ns() - before, UINT64_C(1900000000));
    ck_assert_int_eq(access(lock_path, F_OK), 0);
    ck_assert_int_eq(unlink(lock_path), 0);
    if (other >= 0)
        ck_assert_int_eq(unlink(place.path), 0);
}

static void clear_umask(void *userdata)
{
    (void)userdata;
    (void)umask(0);
}

/* A user that can open the lock can hold it, and no daemon would ever start again. */
TEST(the_lock_can_be_opened_by_its_own_user_only)
{
    dlx_test_daemon_start_prepared(&place, clear_umask, NULL);
    ck_assert_uint_eq(stat_of(lock_path).st_mode, S_IFREG | 0600);
    ck_assert_int_eq(dlx_test_daemon_stop(&place), 0);
}

/* A lock that a former version, or a user, made for others to open. Even: a process holds it; odd:
 * a process takes it when a daemon was killed. */
LOOP_TEST(a_lock_that_others_can_open_is_replaced, 0, 2)
{
    int theirs = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_eq(fchmod(theirs, 0644), 0);
    ino_t before = stat_of(lock_path).st_ino;
    if (_i % 2 == 0)
        ck_assert_int_eq(flock(theirs, LOCK_EX), 0);
    dlx_test_daemon_start(&place, NULL);
    ck_assert_uint_ne(stat_of(lock_path).st_ino, before);
    ck_assert_uint_eq(stat_of(lock_path).st_mode, S_IFREG | 0600);
    dlx_test_daemon_kill(&place);
    ck_assert_int_eq(flock(theirs, LOCK_EX | LOCK_NB), 0);
    dlx_test_daemon_start(&place, NULL);
    close(theirs);
    ck_assert_int_eq(dlx_test_daemon_stop(&place), 0);
}

/* Anybody may put something in its place where he may write. */
TEST(a_lock_file_of_another_kind_is_left_alone)
{
    enum { LINK, HARD_LINK, FIFO, FOREIGN, N };
    char victim[300], text[16] = "";
    (void)snprintf(victim, sizeof victim, "%s/victim", place.dir);
    auto_fd fd = open(victim, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_eq(write(fd, "untouched", 9), 9);
    for (int kind = 0; kind < N; kind++) {
        if (kind == LINK)
            ck_assert_int_eq(symlink(victim, lock_path), 0);
        else if (kind == HARD_LINK)
            ck_assert_int_eq(link(victim, lock_path), 0);
        else if (kind == FIFO)
            ck_assert_int_eq(mkfifo(lock_path, 0600), 0);
        else if (geteuid() != 0)
            break; /* a file cannot be given away */
        else
            ck_assert(close(open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600)) == 0 &&
                      chown(lock_path, 65534, 65534) == 0);
        struct stat before = stat_of(lock_path);
        contains(dlx_test_daemon_refuses(place.path, 1, "lock file "), lock_path);
        ck_assert_uint_eq(stat_of(lock_path).st_ino, before.st_ino);
        ck_assert_int_eq(pread(fd, text, sizeof text, 0), 9);
        ck_assert_int_eq(unlink(lock_path), 0);
    }
    ck_assert_int_eq(unlink(victim), 0);
}

/* Even: it is gone; odd: there is something else. */
LOOP_TEST(a_foreign_file_in_place_of_the_socket_stays, 0, 2)
{
    dlx_test_daemon_start(&place, NULL);
    ck_assert_int_eq(unlink(place.path), 0);
    if (_i % 2)
        close(open(place.path, O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    ck_assert_int_eq(dlx_test_daemon_stop(&place), 0);
    ck_assert_int_eq(unlink(place.path), _i % 2 ? 0 : -1);
}

static void pass_socket(void *fd)
{
    dlx_test_pass_sockets(fd, 1, "dlpackd.socket");
}

/* The daemon neither locks nor probes nor removes such a socket, however it ends; a client that
 * came before the daemon is served. */
TEST(a_socket_of_the_service_manager_is_used)
{
    auto_fd listener = dlx_test_listen(place.path, SOCK_SEQPACKET);
    for (int i = 0; i < 3; i++) {
        auto_fd early = dlx_test_connect(&place);
        dlx_test_daemon_start_prepared(&place, pass_socket, &listener);
        auto_fd late = dlx_test_hello(&place, 1);
        dlx_test_greet(early, 1);
        ck_assert_int_lt(access(lock_path, F_OK), 0);
        if (i == 0)
            dlx_test_daemon_kill(&place);
        else
            ck_assert_int_eq(dlx_test_daemon_stop(&place), 0);
        ck_assert_uint_eq(stat_of(place.path).st_mode & S_IFMT, S_IFSOCK);
    }
    ck_assert_int_eq(unlink(place.path), 0);
}

TEST(lack_of_descriptors_is_logged_once)
{
    static const char words[] = "out of file descriptors";
    char log[4096];
    dlx_test_daemon_start(&place, NULL);
    close(dlx_test_hello(&place, 1)); /* what is made for the first one is there */
    int witness = dlx_test_hello(&place, 1);
    (void)dlx_test_daemon_leave_fds(&place, 0);
    for (int i = 0; i < 20; i++) {
        const char *text = dlx_test_disconnected(dlx_test_connect(&place), DLX_E_FD_LIMIT);
        contains(text, "no file descriptor left");
    }
    close(witness);
    ck_assert_int_eq(fcntl(place.log_fd, F_SETFL, O_NONBLOCK), 0);
    ssize_t n = read(place.log_fd, log, sizeof log - 1);
    ck_assert_int_gt(n, 0);
    log[n] = '\0';
    const char *first = strstr(log, words);
    ck_assert_msg(first && !strstr(first + 1, words), "%s", log);
    ck_assert_int_eq(dlx_test_daemon_stop(&place), 0);
}

/* A daemon that is sent some takes none, and closes the connection: on the control socket, and on
 * that of a subscription. */
TEST(descriptors_are_not_taken_where_the_kernel_does_not_refuse_them)
{
    uint8_t data[] = {0x08, 0x01, 0xda, 0x01, 0x00}; /* DaemonInfo */
    int fds[253];
    auto_fd path = open("/", O_PATH | O_CLOEXEC);
    dlx_test_daemon_start_prepared(&place, dlx_test_seccomp_on_an_older_kernel, NULL);
    int witness = dlx_test_hello(&place, 1);
    size_t n_fds = dlx_test_daemon_n_fds(&place);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(fds); i++)
        fds[i] = i % 2 == 0 ? STDIN_FILENO : path;
    for (size_t n = 1; n <= DLX_ARRAY_SIZE(fds); n += 84) {
        auto_test_subscription sub;
        int fd = dlx_test_hello(&place, 1);
        ck_assert_int_eq(dlx__packet_send(fd, data, sizeof data, fds, n), 0);
        contains(dlx_test_disconnected(fd, DLX_E_PROTOCOL), "file descriptors: clients send none");
        fd = dlx_test_hello(&place, 1);
        dlx_test_subscribe(&sub, fd, "t", false);
        ck_assert_int_eq(dlx__packet_send(sub.fd, data, sizeof data, fds, n), 0);
        contains(dlx_test_disconnected(fd, DLX_E_PROTOCOL), "subscription to t: packet with");
    }
    dlx_test_recv_done();
    dlx_test_daemon_wait_n_fds(&place, n_fds);
    close(witness);
    ck_assert_int_eq(dlx_test_daemon_stop(&place), 0);
}

int main(void)
{
    TCase *tcase = tcase_create("socket");
    tcase_set_timeout(tcase, PATIENCE_S);
    dlx_test_dir_fixture(tcase, &place);
    tcase_add_checked_fixture(tcase, set_up, NULL);
    return dlx_test_run_case(tcase);
}
