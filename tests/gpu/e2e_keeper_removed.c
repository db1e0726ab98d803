/* SPDX-License-Identifier: Apache-2.0 */
/* A keeper whose socket file, lock file or folder is removed while it runs, as by a program that
 * cleans /tmp: it listens at its path again, since it would never be found there, and neither would
 * the memory that it holds. */

#include "tests/harness/fork.h"
#include "tests/harness/run.h"
#include "tests/harness/spawn.h"
#include <signal.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

static char dir[] = "/tmp/dlx-keeper.XXXXXX";
static char folder[64], path[80], lock_path[96];
static pid_t keeper;

/* Returns its pid. */
static pid_t start_keeper(void)
{
    pid_t pid = dlx_test_fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        (void)execl(dlx_test_spawn_program("dlpackd-keeper"), "dlpackd-keeper", "--socket", path,
                    "--grace", "3600", (char *)NULL);
        _exit(127);
    }
    return pid;
}

static bool is_served(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    auto_fd fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    return connect(fd, (const struct sockaddr *)&address, sizeof address) == 0;
}

/* Does the keeper hold the lock, with its pid in the file? */
static bool is_locked(void)
{
    char text[32] = "";
    auto_fd fd = open(lock_path, O_RDWR | O_CLOEXEC);
    return fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0 && pread(fd, text, sizeof text - 1, 0) > 0 &&
           strtol(text, NULL, 10) == (long)keeper;
}

static void await(bool (*is_so)(void))
{
    uint64_t until = dlx__deadline(PATIENCE);
    while (!is_so()) {
        ck_assert_uint_lt(dlx__now_ns(), until);
        (void)poll(NULL, 0, 5);
    }
}

static int status_of(pid_t pid)
{
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void set_up(void)
{
    ck_assert_ptr_nonnull(mkdtemp(dir));
    (void)snprintf(folder, sizeof folder, "%s/f", dir);
    (void)snprintf(path, sizeof path, "%s/s.keeper", folder);
    (void)snprintf(lock_path, sizeof lock_path, "%s.lock", path);
    ck_assert_int_eq(mkdir(folder, 0700), 0);
    keeper = start_keeper();
    await(is_served);
    await(is_locked);
}

/* The keeper removes its files. */
static void tear_down(void)
{
    ck_assert_int_eq(kill(keeper, SIGTERM), 0);
    ck_assert_int_eq(status_of(keeper), 0);
    ck_assert_int_eq(rmdir(folder), 0);
    ck_assert_int_eq(rmdir(dir), 0);
}

enum { SOCKET = 1, LOCK = 2, FOLDER = 4 };
static const int removals[] = {SOCKET, LOCK, SOCKET | LOCK, SOCKET | LOCK | FOLDER};

LOOP_TEST(removed_files_are_made_again, 0, DLX_ARRAY_SIZE(removals))
{
    struct stat st;
    const int what = removals[_i];
    if (what & SOCKET)
        ck_assert_int_eq(unlink(path), 0);
    if (what & LOCK)
        ck_assert_int_eq(unlink(lock_path), 0);
    if (what & FOLDER) { /* the daemon makes it again, if there is one */
        ck_assert_int_eq(rmdir(folder), 0);
        ck_assert_int_eq(mkdir(folder, 0700), 0);
    }
    await(is_served);
    await(is_locked);
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777U, 0600);
    /* Another one finds it there, and goes. */
    ck_assert_int_eq(status_of(start_keeper()), 0);
    ck_assert_int_eq(waitpid(keeper, NULL, WNOHANG), 0);
}

/* Another keeper took the path meanwhile: both stay, and each removes the files that it made. */
TEST(a_path_that_another_keeper_has_taken_is_left_to_it)
{
    pid_t first = keeper;
    ck_assert_int_eq(kill(first, SIGSTOP), 0);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(unlink(lock_path), 0);
    keeper = start_keeper();
    await(is_served);
    await(is_locked);
    ck_assert_int_eq(kill(first, SIGCONT), 0);
    ck_assert_int_eq(kill(first, SIGTERM), 0);
    ck_assert_int_eq(status_of(first), 0);
    ck_assert(is_served());
    ck_assert(is_locked());
}

int main(void)
{
    TCase *tc = tcase_create("keeper_removed");
    tcase_add_checked_fixture(tc, set_up, tear_down);
    return dlx_test_run_case(tc);
}
