/* SPDX-License-Identifier: Apache-2.0 */

/* Files that are written: each is on the disk before it has its name, a link stays a link, and
 * nothing stays of one that a signal interrupts. */

#include "cli/save_file.h"
#include "cli/wait.h"
#include "tests/harness/cli.h"
#include "tests/harness/fork.h"
#include "tests/harness/run.h"
#include <sys/prctl.h>

/* The file that each of them saves. */
static const char *path;

static const int signals[] = {SIGHUP, SIGINT, SIGQUIT, SIGALRM, SIGUSR1, SIGUSR2, SIGTERM, SIGXCPU};
enum { N_SIGNALS = DLX_ARRAY_SIZE(signals) };

static void check_content(const char *name, const char *content)
{
    size_t size = 0;
    char *data = dlx_test_read_file(name, &size);
    ck_assert_str_eq(data, content);
    free(data);
}

/* The signal comes between two parts of the content. */
static int write_and_raise(int fd, const void *content)
{
    int code = save_bytes(fd, "some", 4);
    (void)raise(*(const int *)content);
    return code < 0 ? code : save_bytes(fd, " bytes", 6);
}

enum disposition { DEFAULT, CAUGHT, IGNORED };

/* Save in a child, where the signal comes; it exits with -1 times what save_file() returned. */
static int save_in_child(const int *number, enum disposition disposition)
{
    int status = 0;
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        struct cli_error e = {{0}};
        (void)prctl(PR_SET_DUMPABLE, 0); /* no core */
        for (size_t i = 0; i < N_SIGNALS; i++)
            (void)signal(signals[i], disposition == IGNORED ? SIG_IGN : SIG_DFL);
        if (disposition == CAUGHT)
            wait_catch_signals();
        _exit(-save_file(path, write_and_raise, number, &e));
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return status;
}

LOOP_TEST(a_signal_that_ends_the_program_leaves_no_file, 0, N_SIGNALS)
{
    int status = save_in_child(&signals[_i], DEFAULT);
    ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == signals[_i], "status %d", status);
    ck_assert_uint_eq(dlx_test_n_files(), 0);
}

LOOP_TEST(a_signal_that_ends_the_program_leaves_a_file_as_it_was, 0, N_SIGNALS)
{
    dlx_test_file_write("x.npy", "before", 6);
    ck_assert(WIFSIGNALED(save_in_child(&signals[_i], DEFAULT)));
    check_content(path, "before");
    ck_assert_uint_eq(dlx_test_n_files(), 1);
}

LOOP_TEST(a_signal_that_is_caught_is_told_and_leaves_no_file, 0, 2)
{
    const int number = _i ? SIGINT : SIGTERM;
    int status = save_in_child(&number, CAUGHT);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == -DLX_E_INTERRUPTED, "status %d",
                  status);
    ck_assert_uint_eq(dlx_test_n_files(), 0);
}

LOOP_TEST(a_signal_that_is_ignored_changes_nothing, 0, N_SIGNALS)
{
    int status = save_in_child(&signals[_i], IGNORED);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %d", status);
    check_content(path, "some bytes");
    ck_assert_uint_eq(dlx_test_n_files(), 1);
}

/* The calls of fsync(), in their order: 'f' for a file whose name is not there yet, 'F' for one
 * whose name is, 'd' for the folder. The function stands in for that of libc. */
static char synced[8];
static int sync_error;

int fsync(int fd)
{
    struct stat st;
    ck_assert_int_eq(fstat(fd, &st), 0);
    size_t n = strlen(synced);
    ck_assert_uint_lt(n, sizeof synced - 1);
    if (S_ISDIR(st.st_mode))
        synced[n] = 'd';
    else
        synced[n] = access(path, F_OK) == 0 ? 'F' : 'f';
    errno = sync_error;
    return sync_error ? -1 : 0;
}

static int write_some(int fd, const void *content)
{
    return save_bytes(fd, content, strlen(content));
}

TEST(a_file_is_on_the_disk_before_it_has_its_name)
{
    struct cli_error e = {{0}};
    ck_assert_int_eq(save_file(path, write_some, "new", &e), 0);
    ck_assert_str_eq(synced, "fd");
    check_content(path, "new");
}

TEST(a_file_that_cannot_be_synced_is_an_error_and_is_not_there)
{
    struct cli_error e = {{0}};
    sync_error = EIO;
    ck_assert_int_eq(save_file(path, write_some, "new", &e), DLX_E_SYSTEM);
    ck_assert_msg(strstr(e.text, "x.npy: sync: Input/output error"), "%s", e.text);
    ck_assert_uint_eq(dlx_test_n_files(), 0);
    synced[0] = '\0';
    sync_error = EINVAL; /* a file system that has nothing to sync */
    ck_assert_int_eq(save_file(path, write_some, "new", &e), 0);
    check_content(path, "new");
}

TEST(a_symbolic_link_stays_and_its_file_is_replaced)
{
    struct cli_error e = {{0}};
    struct stat st;
    const char *target = dlx_test_file("target"), *link = dlx_test_file("link");
    ck_assert_int_eq(symlink("target", link), 0);
    ck_assert_int_eq(save_file(link, write_some, "new", &e), DLX_E_SYSTEM);
    ck_assert_msg(strstr(e.text, "/link: follow the symbolic link: No such file"), "%s", e.text);
    for (int i = 0; i < 2; i++) {
        const char *content = i ? "second" : "first";
        ck_assert_int_eq(save_file(i ? link : target, write_some, content, &e), 0);
        check_content(target, content);
        ck_assert_int_eq(lstat(link, &st), 0);
        ck_assert(S_ISLNK(st.st_mode));
    }
    ck_assert_uint_eq(dlx_test_n_files(), 2);
}

TEST(a_file_that_is_replaced_keeps_its_permissions)
{
    struct cli_error e = {{0}};
    struct stat st;
    const mode_t mask = umask(022);
    ck_assert_int_eq(save_file(path, write_some, "first", &e), 0);
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_uint_eq(st.st_mode & 0777, 0644);
    ck_assert_int_eq(chmod(path, 0600), 0);
    ck_assert_int_eq(save_file(path, write_some, "second", &e), 0);
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_uint_eq(st.st_mode & 0777, 0600);
    check_content(path, "second");
    (void)umask(mask);
}

TEST(a_terminal_gets_no_tensor)
{
    struct cli_error e = {{0}};
    char name[64], byte;
    int ours = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
    ck_assert_int_ge(ours, 0);
    ck_assert_int_eq(grantpt(ours), 0);
    ck_assert_int_eq(unlockpt(ours), 0);
    ck_assert_int_eq(ptsname_r(ours, name, sizeof name), 0);
    ck_assert_int_eq(save_file(name, write_some, "new", &e), DLX_E_INVALID);
    ck_assert_msg(strstr(e.text, "is a terminal, and the data is binary"), "%s", e.text);
    ck_assert_int_le(read(ours, &byte, 1), 0);
    (void)close(ours);
}

static void begin(void)
{
    path = dlx_test_file("x.npy");
    memset(synced, 0, sizeof synced);
    sync_error = 0;
}

int main(void)
{
    TCase *tcase = tcase_create("save_file");
    dlx_test_files_fixture(tcase);
    tcase_add_checked_fixture(tcase, begin, NULL);
    return dlx_test_run_case(tcase);
}
