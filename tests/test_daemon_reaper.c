/* SPDX-License-Identifier: Apache-2.0 */

/* Large regions are closed on a thread; where there is no thread to be had, at once, and nobody dies. */

#include "common/util.h"
#include "daemon/reaper.h"
#include "tests/harness_fork.h"
#include "tests/harness_run.h"
#include "tests/harness_seccomp.h"
#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define LARGE (UINT64_C(1) << 30)

/* A pipe's writing end, whose close() is seen at the other end. */
static int make_pipe(int *ret_read)
{
    int fds[2];
    ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
    *ret_read = fds[0];
    return fds[1];
}

/* Blocks until all writing ends are closed. */
static void expect_closed(int fd)
{
    char byte;
    ck_assert_int_eq(read(fd, &byte, 1), 0);
    dlx__close(fd);
}

START_TEST(everything_is_closed)
{
    struct dlxd_reaper *reaper = NULL;
    int ends[100];
    ck_assert_int_eq(dlxd_reaper_new(&reaper), 0);
    for (int i = 0; i < 100; i++)
        ck_assert_int_eq(dlxd_reaper_close(reaper, make_pipe(&ends[i]), i % 2 ? LARGE : 1), -1);
    for (int i = 0; i < 50; i++)
        expect_closed(ends[i]);
    ck_assert_int_eq(dlxd_reaper_close(reaper, -1, LARGE), -1);
    ck_assert_ptr_null(dlxd_reaper_free(reaper));
    for (int i = 50; i < 100; i++) { /* closed by now */
        ck_assert_int_eq(fcntl(ends[i], F_SETFL, O_NONBLOCK), 0);
        expect_closed(ends[i]);
    }
    ck_assert_ptr_null(dlxd_reaper_free(NULL));
    ck_assert_int_eq(dlxd_reaper_new(&reaper), 0);
    dlxd_reaper_free(reaper); /* that never had a thread */
}
END_TEST

/* What the thread `tid` of this process blocks, one bit a signal. */
static uint64_t blocked_signals(const char *tid)
{
    char path[64], line[256];
    unsigned long long mask = 0;
    (void)snprintf(path, sizeof path, "/proc/self/task/%.20s/status", tid);
    FILE *f = fopen(path, "re");
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "SigBlk: %llx", &mask) == 1)
            break;
    (void)fclose(f);
    return mask;
}

START_TEST(signals_stay_with_the_thread_that_handles_them)
{
    struct dlxd_reaper *reaper = NULL;
    const struct dirent *entry;
    unsigned n = 0;
    int end;
    ck_assert_int_eq(dlxd_reaper_new(&reaper), 0);
    dlxd_reaper_close(reaper, make_pipe(&end), LARGE);
    expect_closed(end);
    DIR *tasks = opendir("/proc/self/task");
    ck_assert_ptr_nonnull(tasks);
    while ((entry = readdir(tasks))) {
        if (entry->d_name[0] == '.')
            continue;
        bool own = strtol(entry->d_name, NULL, 10) == getpid();
        bool blocked = blocked_signals(entry->d_name) & UINT64_C(1) << (SIGTERM - 1);
        ck_assert_msg(blocked == !own, "thread %s", entry->d_name);
        n += !own;
    }
    closedir(tasks);
    ck_assert_uint_ge(n, 1);
    dlxd_reaper_free(reaper);
}
END_TEST

#if defined(__x86_64__) || defined(__aarch64__)
/* From here on this process gets no new thread, as at the limit of RLIMIT_NPROC, which root is not held to.
 * clone3() has its flags in memory, where a filter cannot look: the C library does without it. */
static bool forbid_threads(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    return dlx_test_seccomp_install(filter, DLX_ARRAY_SIZE(filter));
}

/* libuv's pool, which did this once, calls abort(). */
START_TEST(without_a_thread_it_is_closed_at_once)
{
    int end[3], fd[3], status = 0;
    for (int i = 0; i < 3; i++)
        fd[i] = make_pipe(&end[i]);
    pid_t pid = dlx_test_fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        struct dlxd_reaper *reaper = NULL;
        if (!forbid_threads() || dlxd_reaper_new(&reaper) < 0)
            _exit(2);
        for (int i = 0; i < 3; i++)
            (void)dlxd_reaper_close(reaper, fd[i], LARGE);
        for (int i = 0; i < 3; i++)
            if (fcntl(fd[i], F_GETFD) >= 0)
                _exit(3);
        dlxd_reaper_free(reaper);
        _exit(0);
    }
    for (int i = 0; i < 3; i++) {
        dlx__close(fd[i]);
        expect_closed(end[i]);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
}
END_TEST
#endif

int main(void)
{
    Suite *suite = suite_create("daemon_reaper");
    TCase *tcase = tcase_create("reaper");
    tcase_add_test(tcase, everything_is_closed);
    tcase_add_test(tcase, signals_stay_with_the_thread_that_handles_them);
#if defined(__x86_64__) || defined(__aarch64__)
    tcase_add_test(tcase, without_a_thread_it_is_closed_at_once);
#endif
    suite_add_tcase(suite, tcase);
    return dlx_test_run(suite);
}
