/* SPDX-License-Identifier: Apache-2.0 */

/* Jobs beside the loop: one that does not end holds up its own user alone; without threads no
 * client dies. */

#include "daemon/base/worker.h"
#include "tests/harness/fork.h"
#include "tests/harness/patience.h"
#include "tests/harness/run.h"
#include "tests/harness/seccomp.h"
#include "tests/harness/fds.h"
#include <dirent.h>
#include <sched.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <uv.h>

static uv_loop_t loop;
static struct dlxd_workers *workers;
static size_t n_done;

static void setup(void)
{
    n_done = 0;
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    ok(dlxd_workers_new(&workers, &loop));
}

static void teardown(void)
{
    ck_assert_ptr_null(dlxd_workers_free(workers));
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
}

/* Users are told apart by their addresses alone. */
static const struct dlxd_user *user(size_t i)
{
    static const char users[100];
    return (const struct dlxd_user *)(const void *)&users[i];
}

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

static bool is_closed(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

/* A job. A stuck job has begun, and goes on when it is let go. */
struct work {
    bool is_stuck, done;
    sem_t begun, go;
    size_t order; /* when it was done */
    pthread_t ran_on;
};

static void run(void *data)
{
    struct work *work = data;
    work->ran_on = pthread_self();
    if (!work->is_stuck)
        return;
    (void)sem_post(&work->begun);
    (void)sem_wait(&work->go);
}

static void done(void *data)
{
    struct work *work = data;
    work->done = true;
    work->order = ++n_done;
    ck_assert(!pthread_equal(work->ran_on, pthread_self()));
}

static void begin(struct work *work, size_t whose)
{
    *work = (struct work){.done = false};
    ok(dlxd_workers_run(workers, user(whose), run, done, work));
}

static void begin_stuck(struct work *work, size_t whose)
{
    *work = (struct work){.is_stuck = true};
    ck_assert_int_eq(sem_init(&work->begun, 0, 0), 0);
    ck_assert_int_eq(sem_init(&work->go, 0, 0), 0);
    ok(dlxd_workers_run(workers, user(whose), run, done, work));
    ck_assert_int_eq(sem_wait(&work->begun), 0);
}

static void wait_done(const struct work *work)
{
    while (!work->done)
        (void)uv_run(&loop, UV_RUN_ONCE);
}

static void let_go(struct work *work)
{
    ck_assert_int_eq(sem_post(&work->go), 0);
    wait_done(work);
}

TEST(jobs_of_a_user_run_in_their_order)
{
    static struct work works[1000];
    const size_t n = DLX_ARRAY_SIZE(works);
    for (size_t i = 0; i < n; i++)
        begin(&works[i], 0);
    ck_assert_uint_eq(dlxd_workers_n_jobs(workers), n);
    size_t before = 0;
    while (dlxd_workers_n_jobs(workers) > 0) {
        (void)uv_run(&loop, UV_RUN_ONCE);
        ck_assert_uint_le(n_done, before + 64); /* others have their turn */
        before = n_done;
    }
    for (size_t i = 0; i < n; i++) {
        ck_assert_uint_eq(works[i].order, i + 1);
        ck_assert(pthread_equal(works[i].ran_on, works[0].ran_on));
    }
}

TEST(a_job_that_does_not_end_holds_up_only_its_user)
{
    struct work stuck, behind, others[50];
    ck_assert_uint_eq(dlxd_workers_longest_ns(workers), 0);
    uint64_t before = dlx__now_ns();
    begin_stuck(&stuck, 0);
    begin(&behind, 0);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(others); i++)
        begin(&others[i], 1 + i % 20);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(others); i++)
        wait_done(&others[i]);
    ck_assert(!stuck.done && !behind.done);
    /* Other jobs have run meanwhile, and ended. */
    uint64_t longest = dlxd_workers_longest_ns(workers), since = dlx__now_ns() - before;
    ck_assert(longest > 0 && longest <= since + 1);
    ck_assert_uint_gt(dlxd_workers_longest_ns(workers), longest);
    ck_assert_uint_eq(dlxd_workers_n_jobs(workers), 2);
    let_go(&stuck);
    wait_done(&behind);
    ck_assert_uint_lt(stuck.order, behind.order);
    for (uint64_t until = dlx__deadline(PATIENCE); dlxd_workers_longest_ns(workers) > 0;)
        ck_assert_uint_lt(dlx__now_ns(), until);
}

/* A proof does not wait until gigabytes that went before it are returned. */
TEST(jobs_and_closing_do_not_wait_for_each_other)
{
    struct work job, stuck;
    int end, other;
    dlxd_workers_close(workers, user(0), dlx_test_fds_slow_to_close(&other));
    dlxd_workers_close(workers, user(0), make_pipe(&end));
    begin(&job, 0);
    wait_done(&job);
    ck_assert(!is_closed(end));
    dlx__close(other);
    expect_closed(end);
    begin_stuck(&stuck, 0);
    dlxd_workers_close(workers, user(0), make_pipe(&end));
    expect_closed(end);
    let_go(&stuck);
}

/* Every thread has one that does not end: the rest wait, and then take turns by user. */
TEST(beyond_the_threads_users_take_turns)
{
    struct work stuck[DLXD_WORKERS_MAX], many[10], one;
    for (size_t i = 0; i < DLXD_WORKERS_MAX; i++)
        begin_stuck(&stuck[i], i);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(many); i++)
        begin(&many[i], DLXD_WORKERS_MAX);
    begin(&one, DLXD_WORKERS_MAX + 1);
    (void)uv_run(&loop, UV_RUN_NOWAIT);
    ck_assert_uint_eq(n_done, 0);
    let_go(&stuck[0]);
    wait_done(&one);
    ck_assert_uint_eq(one.order, 3); /* after the first that was stuck, and the first of the many */
    for (size_t i = 0; i < DLX_ARRAY_SIZE(many); i++)
        wait_done(&many[i]);
    for (size_t i = 1; i < DLXD_WORKERS_MAX; i++)
        let_go(&stuck[i]);
}

TEST(everything_is_closed)
{
    int ends[100];
    for (size_t i = 0; i < 100; i++)
        ck_assert_int_eq(dlxd_workers_close(workers, user(i % 3), make_pipe(&ends[i])), -1);
    for (int i = 0; i < 50; i++)
        expect_closed(ends[i]);
    ck_assert_int_eq(dlxd_workers_close(workers, user(0), -1), -1);
    teardown();
    for (int i = 50; i < 100; i++) {
        ck_assert(is_closed(ends[i]));
        dlx__close(ends[i]);
    }
    setup(); /* one that never has a thread */
    ck_assert_ptr_null(dlxd_workers_free(NULL));
}

/* The job is left to the end of the process, which does not wait for it either. */
TEST(the_end_does_not_wait_for_a_job_that_does_not_end)
{
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        static struct work stuck, behind;
        begin_stuck(&stuck, 0);
        begin(&behind, 0);
        dlxd_workers_free(workers);
        (void)uv_run(&loop, UV_RUN_DEFAULT);
        _exit(stuck.done || behind.done ? 1 : 0);
    }
    dlx_test_fork_join(pid);
}

/* The signals that the thread `tid` of this process blocks, one bit each. */
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

TEST(signals_stay_with_the_thread_that_handles_them)
{
    const struct dirent *entry;
    unsigned n = 0;
    int end;
    dlxd_workers_close(workers, user(0), make_pipe(&end));
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
}

#if defined(__x86_64__) || defined(__aarch64__)
/* From here on this process gets no new thread, as at the limit of RLIMIT_NPROC, which root is not
 * held to. clone3() has its flags in memory, where a filter cannot look: the C library does without
 * it. */
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
TEST(without_a_thread_it_is_closed_at_once_and_jobs_are_refused)
{
    int end[3], fd[3];
    for (int i = 0; i < 3; i++)
        fd[i] = make_pipe(&end[i]);
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        struct work work;
        ck_assert(forbid_threads());
        for (int i = 0; i < 3; i++) {
            (void)dlxd_workers_close(workers, user(0), fd[i]);
            fails(dlxd_workers_run(workers, user(0), run, done, &work), DLX_E_SYSTEM,
                  "cannot start a thread");
        }
        for (int i = 0; i < 3; i++)
            ck_assert_int_lt(fcntl(fd[i], F_GETFD), 0);
        teardown();
        _exit(0);
    }
    for (int i = 0; i < 3; i++) {
        dlx__close(fd[i]);
        expect_closed(end[i]);
    }
    dlx_test_fork_join(pid);
}
#endif

int main(void)
{
    TCase *tcase = tcase_create("worker");
    tcase_add_checked_fixture(tcase, setup, teardown);
    return dlx_test_run_case(tcase);
}
