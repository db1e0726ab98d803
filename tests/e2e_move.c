/* SPDX-License-Identifier: Apache-2.0 */

/* Publishers that go on in another control block: on their own, and at moments of the test's choice. */

#include "client/publisher.h"
#include "tests/harness_stream.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

/* A publisher does not wait for long: on a busy machine not for long enough. */
static void move(struct dlx_publisher *p, uint32_t n_slots)
{
    int r;
    for (time_t end = time(NULL) + PATIENCE_S;
         (r = dlx__publisher_move(p, n_slots)) == DLX_E_TIMEOUT;)
        ck_assert_int_lt(time(NULL), end);
    ok(r);
}

static int copy_info(const struct dlx_publisher_info *info, void *userdata)
{
    *(struct dlx_publisher_info *)userdata = *info;
    return 0;
}

static struct dlx_publisher_info info_of(struct dlx_client *c)
{
    struct dlx_publisher_info info = {0};
    ok(dlx_list_publishers(c, "test/a", copy_info, &info));
    return info;
}

static void expect(struct dlx_subscription *s, int64_t value)
{
    struct dlx_message *m = NULL;
    ok(dlx_take(s, PATIENCE, &m));
    ck_assert_uint_eq(dlx_message_seq(m), (uint64_t)value);
    dlx_test_stream_check(m, 10, value);
    dlx_message_unref(m);
}

static struct dlx_subscription *subscribe(struct dlx_client *c, uint32_t history, bool reliable,
                                          uint32_t mode)
{
    struct dlx_subscribe_args args = {
        .size = sizeof args, .history = history, .reliable = reliable, .mode = mode};
    struct dlx_subscription *s = NULL;
    ok(dlx_subscribe(c, "test/a", &args, &s));
    return s;
}

START_TEST(a_busy_publisher_gets_more_slots)
{
    if (dlx_test_valgrind()) {
        puts("SKIP: under valgrind no publisher is busy enough");
        return;
    }
    struct dlx_publisher_args args = {.size = sizeof args, .on_full = DLX_ON_FULL_BLOCK};
    struct dlx_subscribe_args sargs = {.size = sizeof sargs, .reliable = true};
    size_t fds = dlx_test_daemon_n_fds(&dlx_test_stream_daemon);
    struct dlx_test_pair x = dlx_test_pair_make(&args, &sargs);
    int64_t i = 1;
    /* How many messages are many depends on the clock. A machine that is too slow for it, with a sanitizer and other work,
     * is told after some attempts that it was quick: the last time was just now. */
    const time_t begin = time(NULL);
    for (time_t end = begin + PATIENCE_S; x.p->core.n_slots == 64 && time(NULL) < end;)
        for (int k = 0; k < 2000; k++, i++) {
            if (time(NULL) > begin + PATIENCE_S / 4)
                x.p->relief_asked_ns = dlx__now_ns();
            dlx_test_stream_publish(x.p, 10, i);
            expect(x.s, i);
        }
    for (int k = 0; k < 2000; k++, i++) {
        dlx_test_stream_publish(x.p, 10, i);
        expect(x.s, i);
    }
    struct dlx_publisher_info info = info_of(x.c);
    ck_assert_uint_eq(info.n_slots, 1024);
    ck_assert_uint_eq(info.published, (uint64_t)i - 1);
    ck_assert_uint_eq(info.published_bytes, ((uint64_t)i - 1) * 80);
    ck_assert_uint_eq(info.control_bytes, dlx_shm_control_size(1024)); /* the old block has gone */
    dlx_test_pair_end(&x);
    dlx_test_daemon_wait_n_fds(&dlx_test_stream_daemon, fds);
}
END_TEST

START_TEST(slots_that_the_caller_chose_stay)
{
    struct dlx_publisher_args args = {.size = sizeof args, .n_slots = 16};
    struct dlx_test_pair x = dlx_test_pair_make(&args, NULL);
    for (int64_t i = 1; i <= 20000; i++)
        dlx_test_stream_publish(x.p, 10, i);
    ck_assert_uint_eq(info_of(x.c).n_slots, 16);
    dlx_test_pair_end(&x);
}
END_TEST

START_TEST(readers_that_hold_much_get_more_slots)
{
    enum { N = 900 };
    struct dlx_subscribe_args args = {.size = sizeof args, .max_held = N};
    struct dlx_test_pair x = dlx_test_pair_make(NULL, &args);
    static struct dlx_message *m[N];
    for (int i = 0; i < N; i++) { /* each is held, none finds the ring full */
        dlx_test_stream_publish(x.p, 10, i);
        ok(dlx_take(x.s, SECOND, &m[i]));
    }
    ck_assert_uint_ge(info_of(x.c).n_slots, 1024);
    for (int i = 0; i < N; i++) {
        dlx_test_stream_check(m[i], 10, i);
        dlx_message_unref(m[i]);
    }
    dlx_test_pair_end(&x);
}
END_TEST

START_TEST(every_message_comes_across_a_move)
{
    struct dlx_publisher_args args = {.size = sizeof args, .on_full = DLX_ON_FULL_BLOCK};
    struct dlx_subscribe_args sargs = {.size = sizeof sargs, .reliable = true, .history = 3};
    struct dlx_test_pair x = dlx_test_pair_make(&args, &sargs);
    struct dlx_subscription *latest = subscribe(x.c, 0, false, DLX_MODE_LATEST);
    struct dlx_message *m = NULL, *held = NULL;
    int64_t n = 0, taken = 0, newest = 0;
    static const uint32_t sizes[] = {16, 1024, 7, 64, 4096, 8};
    for (size_t round = 0; round < 24; round++) {
        for (size_t i = 0; i < round % 7; i++)
            dlx_test_stream_publish(x.p, 10, ++n);
        move(x.p, sizes[round % 6]);
        if (round % 3 == 0) { /* two blocks, the second one empty */
            dlx_test_stream_publish(x.p, 10, ++n);
            move(x.p, sizes[round % 5]);
        }
        /* The newest that it knows of: a block may be on its way, when others are before it (credit). */
        while (newest < n) {
            ok(dlx_take(latest, PATIENCE, &m));
            ck_assert_int_gt((int64_t)dlx_message_seq(m), newest);
            newest = (int64_t)dlx_message_seq(m);
            m = dlx_message_unref(m);
        }
        ck_assert_int_eq(dlx_take(latest, 0, &m), DLX_E_EMPTY);
        for (; taken < n - (int64_t)(round % 4); taken++)
            expect(x.s, taken + 1);
        if (round == 10) {
            ok(dlx_take(x.s, SECOND, &held)); /* holds a message of an old block for long */
            taken++;
        }
    }
    for (; taken < n; taken++)
        expect(x.s, taken + 1);
    struct dlx_subscription_stats stats = {.size = sizeof stats};
    ok(dlx_subscription_get_stats(x.s, &stats));
    ck_assert_uint_eq(stats.lost, 0);
    dlx_test_stream_check(held, 10, (int64_t)dlx_message_seq(held));
    dlx_message_unref(held);
    dlx_subscription_unref(latest);
    dlx_test_pair_end(&x);
}
END_TEST

START_TEST(the_history_spans_blocks)
{
    struct dlx_client *c = dlx_test_stream_connect();
    struct dlx_publisher *p = NULL;
    struct dlx_publisher_args args = {.size = sizeof args, .history = 6, .retain = 4};
    struct dlx_message *m = NULL;
    ok(dlx_publisher_new(c, "test/a", &args, &p));
    for (int64_t i = 1; i <= 8; i++) {
        dlx_test_stream_publish(p, 10, i);
        if (i == 4 || i == 6 || i == 8)
            move(p, 32);
    }
    struct dlx_subscription *s = subscribe(c, 6, false, DLX_MODE_ALL),
                            *retained = subscribe(c, 0, false, DLX_MODE_ALL),
                            *none = subscribe(c, DLX_HISTORY_NONE, false, DLX_MODE_ALL);
    for (int64_t i = 3; i <= 8; i++)
        expect(s, i);
    for (int64_t i = 5; i <= 8; i++)
        expect(retained, i);
    dlx_test_stream_publish(p, 10, 9);
    expect(s, 9);
    expect(retained, 9);
    expect(none, 9);
    dlx_publisher_unref(p);
    /* What it leaves behind, too. */
    struct dlx_subscription *late = subscribe(c, 0, false, DLX_MODE_ALL);
    for (int64_t i = 6; i <= 9; i++)
        expect(late, i);
    ck_assert_int_eq(dlx_take(late, 0, &m), DLX_E_PUBLISHER_GONE);
    ok(dlx_get(c, "test/a", 0, &m));
    dlx_test_stream_check(m, 10, 9);
    dlx_message_unref(m);
    dlx_subscription_unref(s);
    dlx_subscription_unref(retained);
    dlx_subscription_unref(none);
    dlx_subscription_unref(late);
    dlx_client_unref(c);
}
END_TEST

START_TEST(old_blocks_go_when_nobody_needs_them)
{
    struct dlx_test_pair x = dlx_test_pair_make(NULL, NULL);
    struct dlx_message *m = NULL;
    dlx_test_stream_publish(x.p, 10, 1);
    ok(dlx_take(x.s, SECOND, &m));
    for (int64_t i = 2; i <= 40; i++) {
        move(x.p, 32);
        dlx_test_stream_publish(x.p, 10, i);
        expect(x.s, i);
        ck_assert_uint_le(info_of(x.c).control_bytes, 40 * dlx_shm_control_size(64));
    }
    (void)dlx__pub_reclaim(&x.p->core, UINT32_MAX);
    /* 4 of history, and the one that is held. */
    ck_assert_uint_le(info_of(x.c).control_bytes, 6 * dlx_shm_control_size(64));
    dlx_test_stream_check(m, 10, 1);
    dlx_message_unref(m);
    for (int64_t i = 41; i <= 45; i++) {
        dlx_test_stream_publish(x.p, 10, i);
        expect(x.s, i);
    }
    (void)dlx__pub_reclaim(&x.p->core, UINT32_MAX);
    ck_assert_uint_eq(info_of(x.c).control_bytes, dlx_shm_control_size(32));
    ck_assert_uint_eq(info_of(x.c).n_slots, 32);
    dlx_test_pair_end(&x);
}
END_TEST

/* A newcomer that starts in an old block wakes a publisher that waits for it. */
static void *join_with_history(void *userdata)
{
    return subscribe(userdata, 4, false, DLX_MODE_ALL);
}

START_TEST(who_starts_in_an_old_block_wakes_its_publisher)
{
    for (int i = 0; i < 20; i++) {
        struct dlx_client *c = dlx_test_stream_connect(), *c2 = dlx_test_stream_connect();
        struct dlx_publisher *p = NULL;
        pthread_t thread;
        void *s = NULL;
        ok(dlx_publisher_new(c, "test/a", NULL, &p));
        dlx_test_stream_publish(p, 10, 1);
        move(p, 64);
        ck_assert_int_eq(pthread_create(&thread, NULL, join_with_history, c2), 0);
        ok(dlx_publisher_wait(p, 1, PATIENCE));
        ck_assert_int_eq(pthread_join(thread, &s), 0);
        expect(s, 1);
        dlx_subscription_unref(s);
        dlx_publisher_unref(p);
        dlx_client_unref(c);
        dlx_client_unref(c2);
    }
}
END_TEST

/* A daemon that does not answer costs a busy publisher a few milliseconds, not its stream. */
START_TEST(a_daemon_that_stands_still_does_not_stop_a_stream)
{
    struct dlx_test_pair x = dlx_test_pair_make(NULL, NULL);
    struct timespec begin, end;
    int64_t i = 1;
    for (; i <= 100; i++)
        dlx_test_stream_publish(x.p, 10, i);
    dlx_test_daemon_pause(&dlx_test_stream_daemon);
    (void)clock_gettime(CLOCK_MONOTONIC, &begin);
    for (; i <= 20000; i++)
        dlx_test_stream_publish(x.p, 10, i);
    (void)clock_gettime(CLOCK_MONOTONIC, &end);
    kill(dlx_test_stream_daemon.pid, SIGCONT);
    ck_assert_int_lt(end.tv_sec - begin.tv_sec, 4); /* 5 s is what a call may take */
    struct dlx_message *m = NULL;
    ok(dlx_take(x.s, SECOND, &m));
    dlx_test_stream_check(m, 10, (int64_t)dlx_message_seq(m));
    dlx_message_unref(m);
    dlx_test_pair_end(&x);
}
END_TEST

static void *take_all(void *userdata)
{
    struct dlx_subscription *s = userdata;
    for (int64_t i = 1; i <= 3000; i++)
        expect(s, i);
    return NULL;
}

/* Who sleeps while the publisher moves is woken by what comes in the new block. */
START_TEST(sleepers_wake_up_across_moves)
{
    struct dlx_publisher_args args = {.size = sizeof args, .on_full = DLX_ON_FULL_BLOCK};
    struct dlx_publish_args wait = {.size = sizeof wait, .timeout_ns = PATIENCE};
    struct dlx_client *c = dlx_test_stream_connect();
    struct dlx_publisher *p = NULL;
    pthread_t threads[3];
    struct dlx_subscription *s[3];
    ok(dlx_publisher_new(c, "test/a", &args, &p));
    for (int i = 0; i < 3; i++) {
        struct dlx_subscribe_args sargs = {
            .size = sizeof sargs, .reliable = true, .spin_ns = DLX_SPIN_NEVER};
        ok(dlx_subscribe(c, "test/a", &sargs, &s[i]));
        ck_assert_int_eq(pthread_create(&threads[i], NULL, take_all, s[i]), 0);
    }
    for (int64_t i = 1; i <= 3000; i++) {
        ok(dlx_publish(p, dlx_test_stream_alloc(p, 10, i), &wait));
        if (i % 10 == 0) /* a slow daemon is not waited for */
            while (dlx__publisher_move(p, 8 + (uint32_t)i % 100) == DLX_E_TIMEOUT)
                ;
    }
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        dlx_subscription_unref(s[i]);
    }
    dlx_publisher_unref(p);
    dlx_client_unref(c);
}
END_TEST

START_TEST(latest_skips_to_the_new_block)
{
    struct dlx_test_pair x = dlx_test_pair_make(NULL, NULL);
    struct dlx_subscription *latest = subscribe(x.c, 0, false, DLX_MODE_LATEST);
    struct dlx_subscription_stats stats = {.size = sizeof stats};
    for (int64_t i = 1; i <= 3; i++)
        dlx_test_stream_publish(x.p, 10, i);
    move(x.p, 16);
    expect(latest, 3); /* there is nothing newer */
    dlx_test_stream_publish(x.p, 10, 4);
    dlx_test_stream_publish(x.p, 10, 5);
    move(x.p, 16);
    dlx_test_stream_publish(x.p, 10, 6);
    dlx_test_stream_publish(x.p, 10, 7);
    expect(latest, 7);
    ok(dlx_subscription_get_stats(latest, &stats));
    ck_assert_uint_eq(stats.skipped, 2 + 3);
    ck_assert_uint_eq(stats.lost, 0);
    dlx_subscription_unref(latest);
    dlx_test_pair_end(&x);
}
END_TEST

/* One that says it has moved, and has not. */
START_TEST(who_waits_for_a_block_that_never_comes_is_told_of_the_end)
{
    struct dlx_test_pair x = dlx_test_pair_make(NULL, NULL);
    struct dlx_message *m = NULL;
    dlx_test_stream_publish(x.p, 10, 1);
    dlx_store64_sc(&x.p->control->head, 1 | DLX_SHM_MOVED);
    expect(x.s, 1);
    ck_assert_int_eq(dlx_take(x.s, 0, &m), DLX_E_EMPTY);
    ck_assert_int_eq(dlx_take(x.s, 10000000, &m), DLX_E_TIMEOUT);
    x.p = dlx_publisher_unref(x.p);
    ck_assert_int_eq(dlx_take(x.s, PATIENCE, &m), DLX_E_PUBLISHER_GONE);
    dlx_test_pair_end(&x);
}
END_TEST

START_TEST(the_daemon_refuses_blocks_that_cannot_be)
{
    struct dlx_test_pair x = dlx_test_pair_make(NULL, NULL);
    struct dlx_test_publisher p;
    int control = dlx_test_hello(&dlx_test_stream_daemon, 10);
    dlx_test_publisher_new(&p, control, "test/b", 0);
    Dlx__Wire__ArenaNew request = DLX__WIRE__ARENA_NEW__INIT;
    Dlx__Wire__ArenaDrop drop = DLX__WIRE__ARENA_DROP__INIT;
    Dlx__Wire__ArenaReady ready = DLX__WIRE__ARENA_READY__INIT;
    request.publisher = drop.publisher = ready.publisher = p.id;
    request.n_slots = 64;
    request.arena_size = dlx_shm_control_size(64);
#define refused(body, message, code, word)                                                         \
    ck_assert_ptr_nonnull(                                                                         \
        strstr(dlx_test_call_error(control, DLX__WIRE__PACKET__BODY_##body, message, code), word))
    refused(ARENA_NEW, &request, DLX_E_INVALID, "no control block to move from");
    refused(ARENA_READY, &ready, DLX_E_NOT_FOUND, "no such arena 0"); /* only with its publisher */
    refused(ARENA_DROP, &drop, DLX_E_NOT_FOUND, "no such arena 0");
    dlx_test_publisher_ready(&p);
    refused(ARENA_DROP, &drop, DLX_E_INVALID, "needs its control block 0");
    request.n_slots = 100;
    refused(ARENA_NEW, &request, DLX_E_INVALID, "for 100 slots");
    request.n_slots = 5; /* the history is 4 */
    request.arena_size = dlx_shm_control_size(5);
    refused(ARENA_NEW, &request, DLX_E_INVALID, "from 6");
    request.n_slots = DLX_SHM_SLOTS_MAX + 1;
    request.arena_size = dlx_shm_control_size(DLX_SHM_SLOTS_MAX) + 8192;
    refused(ARENA_NEW, &request, DLX_E_INVALID, "to 4096");
    close(control);
    dlx_test_publisher_deinit(&p);
    dlx_test_pair_end(&x);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("move");
    TCase *tcase = dlx_test_stream_case("move");
    tcase_add_test(tcase, a_busy_publisher_gets_more_slots);
    tcase_add_test(tcase, slots_that_the_caller_chose_stay);
    tcase_add_test(tcase, readers_that_hold_much_get_more_slots);
    tcase_add_test(tcase, every_message_comes_across_a_move);
    tcase_add_test(tcase, latest_skips_to_the_new_block);
    tcase_add_test(tcase, the_history_spans_blocks);
    tcase_add_test(tcase, old_blocks_go_when_nobody_needs_them);
    tcase_add_test(tcase, who_starts_in_an_old_block_wakes_its_publisher);
    tcase_add_test(tcase, a_daemon_that_stands_still_does_not_stop_a_stream);
    tcase_add_test(tcase, sleepers_wake_up_across_moves);
    tcase_add_test(tcase, who_waits_for_a_block_that_never_comes_is_told_of_the_end);
    tcase_add_test(tcase, the_daemon_refuses_blocks_that_cannot_be);
    suite_add_tcase(suite, tcase);
    return dlx_test_run(suite);
}
