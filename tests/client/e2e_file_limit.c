/* SPDX-License-Identifier: Apache-2.0 */

/* Processes whose files may not be large (RLIMIT_FSIZE, `ulimit -f`): shared memory is a file to
 * the kernel. */

#include "tests/harness/fork.h"
#include "tests/harness/spawn.h"
#include "tests/harness/stream.h"
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#define MIB   (UINT64_C(1) << 20)
#define SMALL 1000               /* elements of a tensor that fits into a file of 1 MiB */
#define LARGE (int64_t)(MIB / 2) /* elements of one that does not */

static struct rlimit one_mib = {MIB, MIB}, nothing = {0, 0}, soft = {MIB, RLIM_INFINITY};

/* For this process and the programs that it starts. The runner of the tests may ignore the signal,
 * which is unusual. */
static void limit_hard(void *limit)
{
    (void)signal(SIGXFSZ, SIG_DFL);
    if (setrlimit(RLIMIT_FSIZE, limit) < 0)
        _exit(126);
}

/* The same without CAP_SYS_RESOURCE, with which a process has no hard limits. */
static void limit_files(void *limit)
{
    if (prctl(PR_CAPBSET_READ, CAP_SYS_RESOURCE, 0, 0, 0) == 1)
        (void)prctl(PR_CAPBSET_DROP, CAP_SYS_RESOURCE, 0, 0, 0);
    limit_hard(limit);
}

static int alloc(struct dlx_publisher *p, int64_t n)
{
    const struct dlx_tensor_spec spec = INT64_SPEC(&n);
    auto_tensor *t = NULL;
    int r = dlx_alloc(p, &spec, &t);
    return r;
}

CASE(daemon)
{
    TCase *tcase = tcase_create("daemon");
    tcase_set_timeout(tcase, PATIENCE_S);
    dlx_test_dir_fixture(tcase, &dlx_test_stream_daemon);
    return tcase;
}

static void stop_daemon(void)
{
    ck_assert_int_eq(dlx_test_daemon_stop(&dlx_test_stream_daemon), 0);
}

TEST_OF(daemon, a_region_beyond_the_limit_fails_one_request)
{
    dlx_test_daemon_start_prepared(&dlx_test_stream_daemon, limit_files, &one_mib);
    struct dlx_test_pair x = dlx_test_pair_make(NULL, NULL);
    for (int64_t i = 0; i < 3; i++) {
        fails(alloc(x.p, LARGE), DLX_E_LIMIT, "limit of 1.0 MiB a file");
        dlx_test_stream_publish(x.p, SMALL, i);
        dlx_test_stream_expect(x.s, SMALL, i);
    }
    dlx_test_pair_end(&x);
    stop_daemon();
}

static void allocate_beyond_the_limit(void (*prepare)(void *limit), struct rlimit *limit)
{
    dlx_test_daemon_start_prepared(&dlx_test_stream_daemon, prepare, limit);
    struct dlx_test_pair x = dlx_test_pair_make(NULL, NULL);
    ok(alloc(x.p, LARGE));
    dlx_test_pair_end(&x);
    stop_daemon();
}

TEST_OF(daemon, a_limit_that_may_be_raised_is_raised)
{
    allocate_beyond_the_limit(limit_files, &soft);
}

TEST_OF(daemon, a_daemon_with_the_right_to_has_no_limit)
{
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &one_mib), 0);
    if (setrlimit(RLIMIT_FSIZE, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY}) == 0)
        allocate_beyond_the_limit(limit_hard, &one_mib);
    else
        puts("SKIP: this process has no CAP_SYS_RESOURCE");
}

/* All that a client does to files, where the signal would end it: its limit is not in the way,
 * since it only fills files that have their size. */
static void stream_with_limit(void)
{
    limit_files(&nothing);
    auto_pair x = dlx_test_pair_make(PUBLISHER(.retain = 1), NULL);
    for (int64_t i = 0; i < 3; i++) {
        dlx_test_stream_publish(x.p, LARGE, i);
        dlx_test_stream_expect(x.s, LARGE, i);
    }
}

TEST_OF(daemon, the_limit_of_a_client_does_not_matter)
{
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        stream_with_limit();
        _exit(0);
    }
    dlx_test_fork_join(pid);
    stop_daemon();
}

/* A private daemon inherits the limit. */
CASE(private)
{
    return dlx_test_spawn_case("private");
}

static bool can_start_daemons(void)
{
    if (dlx_test_valgrind())
        puts("SKIP: valgrind has no pidfds, and its own way with clone()");
    return !dlx_test_valgrind();
}

/* In a child: Check's own files are limited as well. */
static int connect_with_limit(struct rlimit *limit, const char *word)
{
    struct dlx_client *c = NULL;
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        limit_files(limit);
        int r = dlx_connect(NULL, &c);
        dlx_client_unref(c);
        _exit(strstr(dlx_errmsg(), word) ? -r : 99);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFEXITED(status), "status %#x", (unsigned)status);
    return -WEXITSTATUS(status);
}

TEST_OF(private, a_private_daemon_that_can_make_nothing_is_not_started)
{
#if defined DLX_COVERAGE || defined __SANITIZE_THREAD__
    puts("SKIP: a program that counts branches, or runs under thread sanitizer, writes files "
         "before main()");
    return;
#endif
    if (can_start_daemons())
        ck_assert_int_eq(connect_with_limit(&nothing, "limit of 0 B a file"), DLX_E_NO_DAEMON);
}

/* Clients that share the daemon are told why, and the daemon stays. */
TEST_OF(private, a_private_daemon_tells_its_other_clients_of_the_limit)
{
    if (!can_start_daemons())
        return;
    (void)setenv("DLX_IDLE_EXIT", "5", 1);
    ck_assert_int_eq(connect_with_limit(&one_mib, ""), 0);
    auto_client *c = dlx_test_spawn_connect();
    pid_t pid = dlx_test_spawn_pid(c);
    auto_publisher *p = dlx_test_stream_publisher(c, "t", NULL);
    fails(alloc(p, LARGE), DLX_E_LIMIT, "RLIMIT_FSIZE");
    ok(alloc(p, SMALL));
    ck_assert_int_eq(dlx_test_spawn_pid(c), pid);
    p = dlx_publisher_unref(p);
    ck_assert_int_eq(kill(pid, SIGTERM), 0);
    dlx_test_spawn_wait_end(pid);
}

int main(void)
{
    return dlx_test_run_cases();
}
