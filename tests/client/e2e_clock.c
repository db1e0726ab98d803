/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Time-outs do not follow the clock of the day, which a user may set. The tests do not set it: a
 * filter lets every wait that follows it end at once, as after a jump.
 */

#include "client/publish/publisher.h"
#include "tests/harness/seccomp.h"
#include "tests/harness/stream.h"
#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>

#ifndef DLX_SANITIZE

/* Of this thread. */
static bool let_the_clock_jump(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, FUTEX_CLOCK_REALTIME, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ETIMEDOUT),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    return dlx_test_seccomp_install(filter, DLX_ARRAY_SIZE(filter));
}

/* Which system call the thread is in; -1: none, or it is not told. */
static long call_of(long tid)
{
    char path[64], text[64] = "";
    (void)snprintf(path, sizeof path, "/proc/self/task/%ld/syscall", tid);
    FILE *file = fopen(path, "re");
    bool read = file && fgets(text, sizeof text, file);
    if (file)
        (void)fclose(file);
    return read && text[0] >= '0' && text[0] <= '9' ? strtol(text, NULL, 10) : -1;
}

static void await_call(const _Atomic long *tid, long call)
{
    eventually(call_of(*tid) == call);
}

/* The call of a thread, and its result. No assertions there. */
struct act {
    pthread_t thread;
    struct dlx_client *c;
    _Atomic long tid;
    bool filtered;
    int result;
    struct dlx_publisher *p;
};

/* The thread has the client's lock while it waits for the daemon. */
static void *ask(void *userdata)
{
    struct act *act = userdata;
    struct dlx_daemon_info info = {.size = sizeof info};
    act->tid = syscall(SYS_gettid);
    act->result = dlx_client_get_daemon_info(act->c, &info);
    return NULL;
}

static void *wait_for_the_lock(void *userdata)
{
    struct act *act = userdata;
    act->filtered = let_the_clock_jump();
    act->tid = syscall(SYS_gettid);
    act->result = dlx_publisher_new(act->c, "test/a", NULL, &act->p);
    return NULL;
}

/* The daemon, which was stopped. */
static void let_it_answer(const struct act *asker)
{
    ck_assert_int_eq(kill(dlx_test_stream_daemon.pid, SIGCONT), 0);
    ck_assert_int_eq(pthread_join(asker->thread, NULL), 0);
    ck_assert_int_eq(asker->result, 0);
}

LOOP_TEST(a_wait_for_another_thread_lasts_as_long_as_it_may, 0, 2)
{
    auto_client *c = NULL;
    ok(dlx_connect(CONNECT(.timeout_ns = _i == 0 ? PATIENCE : DLX_FOREVER), &c));
    struct act asker = {.c = c, .result = -1}, waiter = asker;
    dlx_test_daemon_pause(&dlx_test_stream_daemon);
    asker.thread = dlx_test_stream_thread(ask, &asker);
    await_call(&asker.tid, SYS_poll);
    waiter.thread = dlx_test_stream_thread(wait_for_the_lock, &waiter);
    await_call(&waiter.tid, SYS_futex);
    let_it_answer(&asker);
    ck_assert_int_eq(pthread_join(waiter.thread, NULL), 0);
    ck_assert_int_eq(waiter.result, 0);
    if (!waiter.filtered)
        puts("SKIP: no seccomp here");
    dlx_publisher_unref(waiter.p);
}

static void pass_all(struct dlx_test_pair *x, int64_t first, int64_t last)
{
    for (int64_t n = first; n <= last; n++) {
        dlx_test_stream_publish(x->p, 10, n);
        dlx_test_stream_take(x->s, n);
    }
}

/* Packets that only tell the daemon, and calls that can be made later, do not wait for another
 * thread's call: a stream goes on. */
TEST(a_stream_does_not_wait_for_another_thread)
{
    auto_pair x = dlx_test_pair_make(PUBLISHER(.history = 2, .retain = 1), NULL);
    struct act asker = {.c = x.c, .result = -1};
    pass_all(&x, 1, 200); /* until it needs no more memory */
    dlx_test_daemon_pause(&dlx_test_stream_daemon);
    asker.thread = dlx_test_stream_thread(ask, &asker);
    await_call(&asker.tid, SYS_poll);
    pass_all(&x, 201, 600);
    let_it_answer(&asker);
    pass_all(&x, 601, 601);
    x.p = dlx_publisher_unref(x.p);
    auto_message *m = NULL;
    ok(dlx_get(x.c, "test/a", 0, &m));
    dlx_test_stream_check(m, 10, 601);
    ok(dlx_drop_retained(x.c, "test/a"));
}

#else

TEST(a_wait_for_another_thread_does_not_hold_up_a_stream)
{
    puts("SKIP: with sanitizers the clock of the day is used: client/control/call.c");
}

#endif
