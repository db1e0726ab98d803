/* SPDX-License-Identifier: Apache-2.0 */

/* A signal handler runs while a call waits: the call says so, nothing is lost, and the next one
 * goes on. A program that is stopped and continued runs no handler: its call goes on waiting. */

#include "tests/harness/fork.h"
#include "tests/harness/stream.h"
#include <sched.h>
#include <sys/time.h>

static void ignore(int signal)
{
    (void)signal;
}

/* Again and again, as the first may come before the call sleeps. 0: no more. */
static void interrupt_every(long us)
{
    const struct sigaction action = {.sa_handler = ignore}; /* without SA_RESTART */
    const struct itimerval every = {.it_interval = {.tv_usec = us}, .it_value = {.tv_usec = us}};
    ck_assert_int_eq(sigaction(SIGALRM, &action, NULL), 0);
    ck_assert_int_eq(setitimer(ITIMER_REAL, &every, NULL), 0);
}

LOOP_TEST(a_take_that_waits, 0, 2)
{
    auto_pair pair = dlx_test_pair_make(NULL, NULL);
    struct dlx_message *m = NULL;
    if (_i == 1)
        ck_assert_int_ge(dlx_subscription_fd(pair.s), 0);
    interrupt_every(20000);
    int r = dlx_take(pair.s, PATIENCE, &m);
    interrupt_every(0);
    fails(r, DLX_E_INTERRUPTED, "signal");
    dlx_test_stream_publish(pair.p, 10, 1);
    dlx_test_stream_take(pair.s, 1);
}

TEST(a_publisher_that_waits_for_subscribers)
{
    auto_pair pair = dlx_test_pair_make(NULL, NULL);
    interrupt_every(20000);
    int r = dlx_publisher_wait(pair.p, 2, PATIENCE);
    interrupt_every(0);
    fails(r, DLX_E_INTERRUPTED, "signal");
    ok(dlx_publisher_wait(pair.p, 1, PATIENCE));
}

/* The tensor stays the caller's. */
TEST(a_publisher_that_waits_for_a_reliable_subscriber)
{
    const struct dlx_publish_args wait = {.size = sizeof wait, .timeout_ns = PATIENCE};
    auto_pair pair = dlx_test_pair_make(PUBLISHER(.depth = 3, .on_full = DLX_ON_FULL_BLOCK),
                                        SUBSCRIBE(.reliable = true));
    dlx_test_stream_publish_all(pair.p, 10, 1, 3);
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(pair.p, 10, 4);
    interrupt_every(20000);
    int r = dlx_publish(pair.p, t, &wait);
    interrupt_every(0);
    fails(r, DLX_E_INTERRUPTED, "signal");
    dlx_test_stream_take_all(pair.s, 1, 3);
    ok(dlx_publish(pair.p, t, &wait));
    dlx_test_stream_take(pair.s, 4);
}

/* ---- stopped and continued ------------------------------------------------------------------ */

/* A child that says on a pipe that it is about to wait. */
struct child {
    pid_t pid;
    int ready;
};

static struct child spawn(void (*run)(int ready))
{
    int fds[2];
    ck_assert_int_eq(pipe(fds), 0);
    struct child child = {.pid = dlx_test_fork(), .ready = fds[0]};
    ck_assert_int_ge(child.pid, 0);
    if (child.pid == 0) {
        close(fds[0]);
        run(fds[1]);
        _exit(0);
    }
    close(fds[1]);
    return child;
}

static void say_ready(int fd)
{
    ck_assert_int_eq(write(fd, "", 1), 1);
}

/* As proc_pid_stat(5) has it; 'Z' also for one that is not there. */
static char state_of(pid_t pid)
{
    char path[64], stat[512] = "";
    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    size_t n = file ? fread(stat, 1, sizeof stat - 1, file) : 0;
    if (file)
        (void)fclose(file);
    stat[n] = '\0';
    const char *end = strrchr(stat, ')');
    return end && end[1] == ' ' ? end[2] : 'Z';
}

/* The child sleeps in the call that it is about to make; there it is stopped and continued. */
static void stop_and_continue(const struct child *child)
{
    char byte, state;
    ck_assert_int_eq(read(child->ready, &byte, 1), 1);
    for (int i = 0; i < 5; i++) {
        uint64_t end = dlx__now_ns() + (uint64_t)PATIENCE;
        while ((state = state_of(child->pid)) != 'S' && state != 'Z') {
            ck_assert_msg(dlx__now_ns() < end, "the child is in state %c", state);
            (void)sched_yield();
        }
        ck_assert_msg(state == 'S', "the wait has ended");
        ck_assert_int_eq(kill(child->pid, SIGSTOP), 0);
        ck_assert_int_eq(waitpid(child->pid, NULL, WUNTRACED), child->pid);
        ck_assert_int_eq(kill(child->pid, SIGCONT), 0);
    }
}

static void ends_well(const struct child *child)
{
    dlx_test_fork_join(child->pid);
    close(child->ready);
}

static void take_one(int ready, bool by_fd)
{
    struct dlx_client *c = dlx_test_stream_connect();
    struct dlx_subscription *s = dlx_test_stream_subscribe(c, "test/a", NULL);
    if (by_fd)
        ck_assert_int_ge(dlx_subscription_fd(s), 0);
    say_ready(ready);
    dlx_test_stream_take(s, 1);
}

static void take_one_here(int ready)
{
    take_one(ready, false);
}

static void take_one_by_fd(int ready)
{
    take_one(ready, true);
}

LOOP_TEST(a_take_that_waits_is_stopped_and_continued, 0, 2)
{
    struct child child = spawn(_i == 0 ? take_one_here : take_one_by_fd);
    auto_client *c = dlx_test_stream_connect();
    stop_and_continue(&child);
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", NULL);
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    dlx_test_stream_publish(p, 10, 1);
    ends_well(&child);
}

/* First for a subscriber, then for room. */
static void publish_four(int ready)
{
    struct dlx_client *c = dlx_test_stream_connect();
    auto_publisher *p =
        dlx_test_stream_publisher(c, "test/a", PUBLISHER(.depth = 3, .on_full = DLX_ON_FULL_BLOCK));
    say_ready(ready);
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    dlx_test_stream_publish_all(p, 10, 1, 3);
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(p, 10, 4);
    say_ready(ready);
    ok(dlx_publish(p, t, PUBLISH(.timeout_ns = PATIENCE)));
}

TEST(a_publisher_that_waits_is_stopped_and_continued)
{
    struct child child = spawn(publish_four);
    auto_client *c = dlx_test_stream_connect();
    stop_and_continue(&child);
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/a", SUBSCRIBE(.reliable = true));
    stop_and_continue(&child);
    dlx_test_stream_take_all(s, 1, 4);
    ends_well(&child);
}

int main(void)
{
    return dlx_test_run_case(dlx_test_stream_case("interrupted"));
}
