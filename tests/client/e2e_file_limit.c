/* SPDX-License-Identifier: Apache-2.0 */

/* Processes whose files may not be large (RLIMIT_FSIZE, `ulimit -f`): shared memory is a file to
 * the kernel. */

#include "tests/harness/fork.h"
#include "tests/harness/spawn.h"
#include "tests/harness/stream.h"
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#define MIB       (UINT64_C(1) << 20)
#define SMALL     1000               /* elements of a tensor that fits into a file of 1 MiB */
#define LARGE     (int64_t)(MIB / 2) /* elements of one that does not */
#define STREAM_OK 3

static const struct rlimit one_mib = {MIB, MIB}, nothing = {0, 0}, soft = {MIB, RLIM_INFINITY};

/* For this process and the programs that it starts. A process with CAP_SYS_RESOURCE has no hard
 * limits. Whoever runs the tests may ignore the signal, which nobody does otherwise. */
static void limit_files(void *limit)
{
    (void)signal(SIGXFSZ, SIG_DFL);
    if (prctl(PR_CAPBSET_READ, CAP_SYS_RESOURCE, 0, 0, 0) == 1)
        (void)prctl(PR_CAPBSET_DROP, CAP_SYS_RESOURCE, 0, 0, 0);
    if (setrlimit(RLIMIT_FSIZE, limit) < 0)
        _exit(126);
}

static void start_limited(const struct rlimit *limit)
{
    dlx_test_daemon_start_prepared(&dlx_test_stream_daemon, limit_files, (void *)(uintptr_t)limit);
}

static int alloc(struct dlx_publisher *p, int64_t n)
{
    const struct dlx_tensor_spec spec = INT64_SPEC(&n);
    DLManagedTensorVersioned *t = NULL;
    int r = dlx_alloc(p, &spec, &t);
    if (r == 0)
        t->deleter(t);
    return r;
}

/* ---- the daemon ---------------------------------------------------------------------------- */

START_TEST(a_region_beyond_the_limit_fails_one_request)
{
    start_limited(&one_mib);
    struct dlx_test_pair x = dlx_test_pair_make(NULL, NULL);
    for (int64_t i = 0; i < 3; i++) {
        fails(alloc(x.p, LARGE), DLX_E_LIMIT, "limit of 1.0 MiB a file");
        dlx_test_stream_publish(x.p, SMALL, i);
        dlx_test_stream_expect(x.s, SMALL, i);
    }
    dlx_test_pair_end(&x);
    ck_assert_int_eq(dlx_test_daemon_stop(&dlx_test_stream_daemon), 0);
}
END_TEST

START_TEST(a_limit_that_may_be_raised_is_raised)
{
    start_limited(&soft);
    struct dlx_test_pair x = dlx_test_pair_make(NULL, NULL);
    ok(alloc(x.p, LARGE));
    dlx_test_pair_end(&x);
    ck_assert_int_eq(dlx_test_daemon_stop(&dlx_test_stream_daemon), 0);
}
END_TEST

static void limit_hard(void *limit)
{
    (void)signal(SIGXFSZ, SIG_DFL);
    if (setrlimit(RLIMIT_FSIZE, limit) < 0)
        _exit(126);
}

START_TEST(a_daemon_with_the_right_to_has_no_limit)
{
    struct rlimit limit;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &one_mib), 0);
    bool may = setrlimit(RLIMIT_FSIZE, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY}) == 0;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    if (!may) {
        puts("SKIP: this process has no CAP_SYS_RESOURCE");
        return;
    }
    dlx_test_daemon_start_prepared(&dlx_test_stream_daemon, limit_hard,
                                   (void *)(uintptr_t)&one_mib);
    struct dlx_test_pair x = dlx_test_pair_make(NULL, NULL);
    ok(alloc(x.p, LARGE));
    dlx_test_pair_end(&x);
    ck_assert_int_eq(dlx_test_daemon_stop(&dlx_test_stream_daemon), 0);
}
END_TEST

/* ---- the library --------------------------------------------------------------------------- */

/* All that a client does to files, where the signal would end it: its limit is not in the way,
 * since it only fills files that have their size. */
static void stream_with_limit(void)
{
    limit_files((void *)(uintptr_t)&nothing);
    auto_pair x = dlx_test_pair_make(PUBLISHER(.retain = 1), NULL);
    for (int64_t i = 0; i < 3; i++) {
        dlx_test_stream_publish(x.p, LARGE, i);
        dlx_test_stream_expect(x.s, LARGE, i);
    }
}

START_TEST(the_limit_of_a_client_does_not_matter)
{
    int status;
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        stream_with_limit();
        _exit(STREAM_OK);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == STREAM_OK, "status %#x",
                  (unsigned)status);
    ck_assert_int_eq(dlx_test_daemon_stop(&dlx_test_stream_daemon), 0);
}
END_TEST

/* ---- a private daemon, which inherits the limit --------------------------------------------- */

/* In a child: Check's own files are limited as well. */
static int connect_with_limit(const struct rlimit *limit, const char *word)
{
    struct dlx_client *c = NULL;
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        limit_files((void *)(uintptr_t)limit);
        int r = dlx_connect(&c, NULL);
        dlx_client_unref(c);
        _exit(strstr(dlx_client_errmsg(NULL), word) ? -r : 99);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFEXITED(status), "status %#x", (unsigned)status);
    return -WEXITSTATUS(status);
}

START_TEST(a_private_daemon_that_can_make_nothing_is_not_started)
{
#if defined DLX_COVERAGE || defined __SANITIZE_THREAD__
    puts("SKIP: a program that counts branches, or runs under thread sanitizer, writes files "
         "before main()");
    return;
#endif
    ck_assert_int_eq(connect_with_limit(&nothing, "limit of 0 B a file"), DLX_E_NO_DAEMON);
}
END_TEST

/* Whoever shares it is told why, and the daemon stays. */
START_TEST(a_private_daemon_tells_its_other_clients_of_the_limit)
{
    (void)setenv("DLX_IDLE_EXIT", "5", 1);
    ck_assert_int_eq(connect_with_limit(&one_mib, ""), 0);
    auto_client *c = dlx_test_spawn_connect();
    pid_t pid = dlx_test_spawn_pid(c);
    struct dlx_publisher *p = dlx_test_stream_publisher(c, "t", NULL);
    fails(alloc(p, LARGE), DLX_E_LIMIT, "RLIMIT_FSIZE");
    ok(alloc(p, SMALL));
    ck_assert_int_eq(dlx_test_spawn_pid(c), pid);
    dlx_publisher_unref(p);
    ck_assert_int_eq(kill(pid, SIGTERM), 0);
    dlx_test_spawn_wait_end(pid);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("file_limit");
    TCase *tcase = tcase_create("daemon");
    tcase_set_timeout(tcase, PATIENCE_S);
    dlx_test_dir_fixture(tcase, &dlx_test_stream_daemon);
    tcase_add_test(tcase, a_region_beyond_the_limit_fails_one_request);
    tcase_add_test(tcase, a_limit_that_may_be_raised_is_raised);
    tcase_add_test(tcase, a_daemon_with_the_right_to_has_no_limit);
    tcase_add_test(tcase, the_limit_of_a_client_does_not_matter);
    suite_add_tcase(suite, tcase);
    if (!dlx_test_valgrind()) { /* has no pidfds, and its own way with clone() */
        tcase = dlx_test_spawn_case("private");
        tcase_add_test(tcase, a_private_daemon_that_can_make_nothing_is_not_started);
        tcase_add_test(tcase, a_private_daemon_tells_its_other_clients_of_the_limit);
        suite_add_tcase(suite, tcase);
    }
    return dlx_test_run(suite);
}
