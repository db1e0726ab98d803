/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/fork.h"
#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* tmpfile(): a file under /tmp without a name. */
static bool is_check_file(const char *fd)
{
    static const char end[] = " (deleted)";
    char link[64], target[256];
    (void)snprintf(link, sizeof link, "/proc/self/fd/%s", fd);
    ssize_t n = readlink(link, target, sizeof target - 1);
    if (n < (ssize_t)sizeof end)
        return false;
    target[n] = '\0';
    return strncmp(target, "/tmp/", 5) == 0 && strcmp(target + n - (sizeof end - 1), end) == 0;
}

void dlx_test_fork_silence(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (!dir || null < 0)
        _exit(1);
    for (const struct dirent *entry; (entry = readdir(dir));)
        if (is_check_file(entry->d_name))
            (void)dup2(null, atoi(entry->d_name));
    closedir(dir);
    close(null);
}

pid_t dlx_test_fork(void)
{
    pid_t pid = fork();
    if (pid == 0)
        dlx_test_fork_silence();
    else
        ck_assert_int_ge(pid, 0);
    return pid;
}

struct dlx_test_child dlx_test_fork_child(void)
{
    struct dlx_test_child child;
    ck_assert_int_eq(pipe(child.ready), 0);
    child.pid = dlx_test_fork();
    return child;
}

_Noreturn void dlx_test_fork_ready(const struct dlx_test_child *child)
{
    if (write(child->ready[1], "", 1) != 1)
        _exit(1);
    for (;;)
        pause();
}

pid_t dlx_test_fork_wait_ready(const struct dlx_test_child *child)
{
    char byte;
    close(child->ready[1]);
    ck_assert_int_eq(read(child->ready[0], &byte, 1), 1);
    close(child->ready[0]);
    return child->pid;
}

void dlx_test_fork_join(pid_t pid)
{
    int status = -1;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(status == 0, "the child's status is %#x", (unsigned)status);
}

void dlx_test_fork_kill(pid_t pid)
{
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
}
