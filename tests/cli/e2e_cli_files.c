/* SPDX-License-Identifier: Apache-2.0 */

/* dlxctl and files that cannot be written, and pipes without a reader or writer. */

#include "tests/cli/harness_cli_case.h"
#include <limits.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>

static const char *const commands[] = {"get", "save"};

/* A message that stays: topic big, of more zeros than a pipe has room for. */
static void retain_message(void)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "big", PUBLISHER(.retain = 1));
    dlx_test_stream_publish(p, 125000, 0);
}

/* ulimit -f: nothing stays, and the reason is told. */
LOOP_TEST(a_file_over_the_limit_of_its_size_is_an_error, 0, 4)
{
    const char *file = dlx_test_file(_i / 2 == 0 ? "x.npy" : "x.safetensors");
    const struct rlimit small = {.rlim_cur = 10240, .rlim_max = RLIM_INFINITY};
    struct rlimit before;
    retain_message();
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
    if (before.rlim_max != RLIM_INFINITY) {
        puts("SKIP: RLIMIT_FSIZE is limited");
        return;
    }
    /* programs in Python have it ignored, and who they start, too */
    (void)signal(SIGXFSZ, SIG_DFL);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    auto_cli cli = dlxctl_start(commands[_i % 2], "big", file);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
    dlx_test_cli_finish(&cli, 1);
    has(cli.err, "write: File too large");
    ck_assert_uint_eq(dlx_test_n_files(), 0);
}

/* The longest name that a file system takes, and one more. */
LOOP_TEST(a_file_may_have_the_longest_name_that_there_is, 0, 2)
{
    char name[NAME_MAX + 2];
    struct stat st;
    retain_message();
    memset(name, 'n', sizeof name - 1);
    memcpy(name + NAME_MAX - 4, ".npy", 5);
    const char *path = dlx_test_file(name);
    auto_cli longest = dlxctl(0, commands[_i], "big", path);
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_uint_eq(dlx_test_n_files(), 1);
    ck_assert_int_eq(unlink(path), 0);
    memcpy(name + NAME_MAX - 3, ".npy", 5);
    auto_cli longer = dlxctl(1, commands[_i], "big", dlx_test_file(name));
    has(longer.err, "create: File name too long");
    ck_assert_uint_eq(dlx_test_n_files(), 0);
}

/* Wait until it sleeps in this system call, or opens something. Returns false if the kernel does
 * not tell. */
static bool wait_in_call(pid_t pid, long number)
{
    char text[256];
    (void)snprintf(text, sizeof text, "/proc/%d/syscall", pid);
    for (time_t end = time(NULL) + PATIENCE_S;;) {
        int fd = open(text, O_RDONLY | O_CLOEXEC);
        if (fd < 0 && errno == ENOENT)
            return false;
        char line[256] = "";
        ssize_t n = fd < 0 ? -1 : read(fd, line, sizeof line - 1);
        int error = errno;
        if (fd >= 0)
            (void)close(fd);
        if (n < 0 && (error == EACCES || error == EPERM))
            return false;
        char *rest = line;
        long call = strtol(line, &rest, 10); /* or the word "running" */
        if (rest != line && (call == number || call == SYS_openat))
            return true;
        ck_assert_int_lt(time(NULL), end);
        (void)poll(NULL, 0, 1);
    }
}

static void wait_for_end(pid_t pid)
{
    siginfo_t info = {.si_pid = 0};
    for (time_t end = time(NULL) + PATIENCE_S; info.si_pid != pid;) {
        ck_assert_int_lt(time(NULL), end);
        ck_assert_int_eq(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT | WNOHANG), 0);
        (void)poll(NULL, 0, 1);
    }
}

static const struct pipe_case {
    const char *words[5]; /* "fifo" is the path of one */
    long call;            /* that it waits in */
} pipe_cases[] = {
    {{"get", "big", "fifo"}, SYS_openat},  {{"get", "big", "-"}, SYS_write},
    {{"save", "big", "fifo"}, SYS_openat}, {{"save", "big", "-"}, SYS_write},
    {{"pub", "other", "fifo"}, SYS_ppoll},
};

/* The pipe has no reader, or writer, and never gets one. */
LOOP_TEST(a_command_that_waits_for_the_other_end_of_a_pipe_ends_by_one_signal, 0,
          2 * (int)DLX_ARRAY_SIZE(pipe_cases))
{
    const struct pipe_case *x = &pipe_cases[_i / 2];
    const int number = _i % 2 ? SIGINT : SIGTERM;
    const char *fifo = dlx_test_file("fifo");
    const char *words[5] = {0};
    for (size_t i = 0; i < 4 && x->words[i]; i++)
        words[i] = strcmp(x->words[i], "fifo") == 0 ? fifo : x->words[i];
    ck_assert_int_eq(mkfifo(fifo, 0600), 0);
    retain_message();
    auto_cli cli = dlx_test_cli_started(words);
    if (wait_in_call(cli.pid, x->call)) {
        ck_assert_int_eq(kill(cli.pid, number), 0);
        if (x->call == SYS_write)
            wait_for_end(cli.pid); /* before anything is read */
        dlx_test_cli_finish(&cli, 128 + number);
    } else {
        puts("SKIP: /proc/PID/syscall does not tell what a process waits in");
        ck_assert_int_eq(kill(cli.pid, SIGKILL), 0);
        dlx_test_cli_finish(&cli, 128 + SIGKILL);
    }
    ck_assert_int_eq(unlink(fifo), 0);
    ck_assert_uint_eq(dlx_test_n_files(), 0);
}

int main(void)
{
    return dlx_test_run_case(dlx_test_cli_case("files"));
}
