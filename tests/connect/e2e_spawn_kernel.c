/* SPDX-License-Identifier: Apache-2.0 */
/* A private daemon where the kernel refuses a call that starting it needs: the caller learns which,
 * and nothing is left. The daemon gets no descriptor and no priority from the process that starts
 * it. */

#include "tests/harness/seccomp.h"
#include "tests/harness/spawn.h"
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>

/* From here on the call with this argument fails. */
static bool refuse(unsigned nr, unsigned arg, unsigned value, unsigned error)
{
    return !dlx_test_skips(!dlx_test_seccomp_fail_with(nr, arg, value, error), "no seccomp here");
}

static const struct {
    unsigned nr, arg, value, error;
    const char *words;
} refusals[] = {
    {SYS_openat, 2, O_RDWR, EMFILE, "opening /dev/null: Too many open files"},
    {SYS_dup, 0, 0, EMFILE, "opening /dev/null: Too many open files"},
    {SYS_pipe2, 1, O_CLOEXEC | O_NONBLOCK, ENFILE, "making a pipe: Too many open files in system"},
    {SYS_fcntl, 1, F_SETFL, EPERM, "making a pipe: Operation not permitted"},
    {SYS_dup3, 1, 2, EBUSY, "executing it: Device or resource busy"},
};

LOOP_TEST(a_call_that_is_refused_is_named, 0, DLX_ARRAY_SIZE(refusals))
{
    if (!refuse(refusals[_i].nr, refusals[_i].arg, refusals[_i].value, refusals[_i].error))
        return;
    dlx_test_spawn_fails(DLX_AUTOSPAWN_DEFAULT, PATIENCE, DLX_E_NO_DAEMON, refusals[_i].words);
    dlx_test_spawn_fails(DLX_AUTOSPAWN_DEFAULT, PATIENCE, DLX_E_NO_DAEMON, "dlpackd: ");
}

TEST(a_kernel_without_pages_that_fork_wipes_is_named)
{
    if (refuse(SYS_madvise, 2, MADV_WIPEONFORK, EINVAL))
        dlx_test_spawn_fails(DLX_AUTOSPAWN_DEFAULT, PATIENCE, DLX_E_KERNEL,
                             "no MADV_WIPEONFORK (Linux 4.14 or newer is needed)");
}

/* Before Linux 5.9 the starter closes descriptors one by one. */
TEST(without_close_range_it_has_none_of_our_descriptors)
{
    int pair[2];
    char byte;
    ck_assert_int_eq(pipe(pair), 0); /* without O_CLOEXEC: a child that inherits it keeps it */
    if (!refuse(SYS_close_range, 0, 0, ENOSYS))
        return;
    auto_client *c = dlx_test_spawn_connect();
    close(pair[1]);
    ck_assert_int_eq(read(pair[0], &byte, 1), 0); /* no process has the other end */
    close(pair[0]);
}

static const int policies[] = {SCHED_FIFO, SCHED_RR};

LOOP_TEST(a_daemon_that_a_real_time_thread_starts_is_not_one, 0, DLX_ARRAY_SIZE(policies))
{
    const struct sched_param one = {.sched_priority = 1}, none = {.sched_priority = 0};
    if (sched_setscheduler(0, policies[_i], &one) < 0) {
        printf("SKIP: no real-time threads here (%s)\n", strerror(errno));
        return;
    }
    auto_client *c = dlx_test_spawn_connect();
    int policy = sched_getscheduler(dlx_test_spawn_pid(c));
    int own = sched_getscheduler(0);
    ck_assert_int_eq(sched_setscheduler(0, SCHED_OTHER, &none), 0);
    ck_assert_int_eq(policy, SCHED_OTHER);
    ck_assert_int_eq(own, policies[_i]);
}

TEST(environment_of_the_program_may_be_empty)
{
    char daemon[4096], dir[300];
    (void)snprintf(daemon, sizeof daemon, "%s", getenv("DLX_DAEMON"));
    (void)snprintf(dir, sizeof dir, "%s", getenv("XDG_RUNTIME_DIR"));
    ck_assert_int_eq(clearenv(), 0);
    /* The library's own defaults say where the daemon is, and how long it stays. */
    ck_assert_int_eq(setenv("DLX_DAEMON", daemon, 1), 0);
    ck_assert_int_eq(setenv("XDG_RUNTIME_DIR", dir, 1), 0);
    ck_assert_int_eq(setenv("DLX_IDLE_EXIT", "", 1), 0);
    struct dlx_client *c = dlx_test_spawn_connect();
    pid_t pid = dlx_test_spawn_pid(c);
    dlx_client_unref(c);
    ck_assert_int_eq(kill(pid, SIGTERM), 0); /* by default it would stay for seconds */
    dlx_test_spawn_wait_end(pid);
}

/* Neither the calls nor the starter have a time limit then. */
TEST(a_connect_that_may_wait_for_ever_starts_a_daemon_too)
{
    const struct dlx_connect_args args = {.size = sizeof args, .timeout_ns = DLX_FOREVER};
    auto_client *c = NULL;
    ok(dlx_connect(&args, &c));
    ck_assert_uint_eq(dlx_test_stream_daemon_info(c).n_clients, 1);
}

int main(void)
{
    if (dlx_test_skips(dlx_test_valgrind(), "valgrind has no pidfds, and its own way with clone()"))
        return 77;
    return dlx_test_run_case(dlx_test_spawn_case("kernel"));
}
