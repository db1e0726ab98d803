/* SPDX-License-Identifier: Apache-2.0 */

/* Watches of the daemon, and what happens when the kernel takes no more of them. */

#include "daemon/base/watch.h"
#include "tests/daemon/harness_scene.h"
#include "tests/harness/fds.h"
#include <sys/epoll.h>
#include <sys/syscall.h>

/* Replaces the C library's, for the daemon and libuv alike: the limit fs.epoll.max_user_watches is
 * the whole machine's. */
static int adds_left = INT32_MAX;

int epoll_ctl(int epoll, int op, int fd, struct epoll_event *event)
{
    if (op == EPOLL_CTL_ADD && adds_left-- <= 0) {
        errno = ENOSPC;
        return -1;
    }
    return (int)syscall(SYS_epoll_ctl, epoll, op, fd, event);
}

struct seen {
    struct dlxd_watch *watch;
    struct dlxd_watch **victim; /* freed by the first event */
    unsigned n;
    int events;
};

static void on_event(void *data, int events)
{
    struct seen *seen = data;
    seen->n++;
    seen->events = events;
    if (seen->victim)
        *seen->victim = dlxd_watch_free(*seen->victim);
}

static uv_loop_t loop;
static struct dlxd_watches *watches;
static int a[2], b[2];

static void setup(void)
{
    adds_left = INT32_MAX;
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    ok(dlxd_watches_new(&watches, &loop));
    dlx_test_fds_pair(a);
    dlx_test_fds_pair(b);
}

static void teardown(void)
{
    watches = dlxd_watches_free(watches);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    for (int i = 0; i < 2; i++) {
        dlx__close(a[i]);
        dlx__close(b[i]);
    }
}

static void watch(struct seen *seen, int fd, int events)
{
    ok(dlxd_watch_new(&seen->watch, watches, fd, events, on_event, seen));
}

static void run(void)
{
    for (int i = 0; i < 5; i++)
        (void)uv_run(&loop, UV_RUN_NOWAIT);
}

CASE(watch)
{
    TCase *tcase = tcase_create("watch");
    tcase_add_checked_fixture(tcase, setup, teardown);
    return tcase;
}

TEST_OF(watch, a_state_that_holds_is_told_until_the_watch_is_paused)
{
    struct seen seen = {0};
    watch(&seen, a[0], DLXD_READABLE);
    run();
    ck_assert_uint_eq(seen.n, 0);
    dlxd_watch_set(seen.watch, DLXD_READABLE | DLXD_WRITABLE);
    run();
    ck_assert_uint_ge(seen.n, 5);
    ck_assert_int_eq(seen.events, DLXD_WRITABLE);
    dlxd_watch_set(seen.watch, 0);
    a[1] = dlx__close(a[1]); /* a hang-up is no reason either */
    seen.n = 0;
    run();
    ck_assert_uint_eq(seen.n, 0);
    dlxd_watch_set(seen.watch, DLXD_READABLE);
    run();
    ck_assert_uint_ge(seen.n, 5);
    ck_assert_int_eq(seen.events, DLXD_READABLE);
    dlxd_watch_free(seen.watch);
}

TEST_OF(watch, a_watch_that_an_event_before_it_freed_is_silent)
{
    struct seen one = {0}, two = {0};
    watch(&one, a[0], DLXD_WRITABLE);
    watch(&two, b[0], DLXD_WRITABLE);
    one.victim = &two.watch;
    two.victim = &one.watch;
    run();
    ck_assert_int_eq((one.n > 0) + (two.n > 0), 1);
    dlxd_watch_free(one.watch);
    dlxd_watch_free(two.watch);
}

/* libuv calls abort() when epoll_ctl() fails. */
TEST_OF(watch, a_kernel_that_watches_no_more_refuses_one_fd)
{
    struct seen seen = {0}, other = {0};
    watch(&seen, a[0], DLXD_READABLE);
    run();
    adds_left = 0;
    fails(dlxd_watch_new(&other.watch, watches, b[0], DLXD_READABLE, on_event, &other),
          DLX_E_NO_MEMORY, "max_user_watches");
    dlxd_watch_set(seen.watch, 0);
    dlxd_watch_set(seen.watch, DLXD_READABLE);
    ck_assert_int_eq(send(a[1], "x", 1, 0), 1);
    run();
    ck_assert_uint_ge(seen.n, 1);
    dlxd_watch_free(seen.watch);
}

CASE(watched)
{
    return dlx_scene_case("objects that are watched", NULL);
}

TEST_OF(watched, a_client_that_cannot_be_watched_is_refused_alone)
{
    struct dlxd_client *client;
    int pair[2];
    (void)dlx_scene_client(0, 8);
    for (int left = 0; left < 2; left++) { /* the socket, the pidfd */
        dlx_test_fds_pair(pair);
        dlx_scene_keep(pair[1]);
        /* Every client sends something. Unread, it turns the end into a reset, which must not hide
         * the reason. */
        ck_assert_int_eq(send(pair[1], "hello", 5, 0), 5);
        adds_left = left;
        ck_assert_int_eq(dlxd_client_new(&client, &dlx_scene.broker, pair[0], DLXD_SOCKET_MAIN),
                         DLX_E_NO_MEMORY);
        adds_left = INT32_MAX;
        const Dlx__Wire__Packet *packet = dlx_scene_expect(pair[1], BODY(DISCONNECT));
        ck_assert_int_eq(packet->disconnect->code, DLX_E_NO_MEMORY);
        ck_assert_ptr_nonnull(strstr(packet->disconnect->text, "max_user_watches"));
        dlx_test_broker_run(&dlx_scene); /* a worker closes it */
        dlx_scene_expect_end(pair[1]);
    }
    ck_assert_uint_eq(dlx_scene.broker.n_clients, 1);
}

TEST_OF(watched, a_subscription_that_cannot_be_watched_fails_alone)
{
    Dlx__Wire__Subscribe *request = WIRE(subscribe, .topic = WIRE_TEXT("t"), .max_held = 1);
    struct dlxd_client *client = dlx_scene_client(0, 8);
    adds_left = 0;
    dlx_scene_call_fails(client, request, DLX_E_NO_MEMORY, "max_user_watches");
    adds_left = INT32_MAX;
    ck_assert_uint_eq(dlx_scene.broker.registry.n_topics, 0);
    ck_assert_uint_eq(client->user->used[DLXD_OBJECTS], 0);
    (void)dlx_scene_call_gets(client, request, BODY(SUBSCRIBE_REPLY));
}

int main(void)
{
    return dlx_test_run_cases();
}
