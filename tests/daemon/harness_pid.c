/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/daemon/harness_pid.h"
#include "tests/harness/fork.h"
#include "tests/harness/patience.h"
#include <check.h>
#include <errno.h>
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* A copy of this process, as of fork(), by Linux 5.5 and who may (CAP_CHECKPOINT_RESTORE or
 * CAP_SYS_ADMIN). */
static pid_t clone_as(pid_t pid)
{
    struct clone_args args = {
        .exit_signal = SIGCHLD, .set_tid = (uint64_t)(uintptr_t)&pid, .set_tid_size = 1};
    return (pid_t)syscall(SYS_clone3, &args, sizeof args);
}

/* The number of a process that has been. */
static pid_t free_pid(void)
{
    pid_t pid = dlx_test_fork();
    if (pid == 0)
        _exit(0);
    ck_assert_int_ge(pid, 0);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    return pid;
}

bool dlx_test_pid_may_choose(void)
{
    pid_t pid = clone_as(free_pid());
    if (pid == 0)
        _exit(0);
    if (pid > 0) {
        ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
        return true;
    }
    if (errno == EEXIST) /* it may */
        return true;
    printf("SKIP: no process can be given a number of one's choice here (clone3: %s)\n",
           strerror(errno));
    return false;
}

pid_t dlx_test_pid_fork(pid_t pid)
{
    /* A process that got the number first ends some time. */
    for (int ms = 0; ms < PATIENCE_MS; ms++) {
        pid_t child = clone_as(pid);
        if (child == 0)
            dlx_test_fork_silence();
        if (child >= 0)
            return child;
        ck_assert_msg(errno == EEXIST, "clone3: %s", strerror(errno));
        (void)poll(NULL, 0, 1);
    }
    ck_abort_msg("somebody else has pid %d", (int)pid);
}
