/* SPDX-License-Identifier: Apache-2.0 */

/* Work queues against a real daemon: each message goes to one worker of a group, once, unless it is
 * given back or its worker dies. */

#include "client/publish/publisher.h"
#include "tests/client/harness_queue.h"
#include <poll.h>
#include <stdatomic.h>

static void publish_all(struct dlx_publisher *p, int64_t first, int64_t last)
{
    dlx_test_stream_publish_all(p, N, first, last);
}

static bool next_event(struct dlx_subscription *s, enum dlx_event_kind kind, struct dlx_event *ret)
{
    *ret = (struct dlx_event){.size = sizeof *ret};
    while (dlx_subscription_next_event(s, ret) == 0)
        if (ret->kind == (uint32_t)kind)
            return true;
    return false;
}

/* ---- who gets what ------------------------------------------------------------------------- */

TEST(each_message_goes_to_one_worker)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    auto_subscription *all = dlx_test_stream_subscribe(c, TOPIC, SUBSCRIBE_RELIABLY);
    struct dlx_subscription *workers[3];
    uint32_t n_taken[3] = {0};
    uint64_t seen = 0;
    for (int i = 0; i < 3; i++)
        workers[i] = dlx_queue_worker(c);
    publish_all(p, 1, 60);
    for (uint64_t n = 1; n <= 60; n++) {
        auto_message *m = dlx_queue_next(workers[n % 3]);
        ck_assert_uint_eq(seen & UINT64_C(1) << dlx_message_seq(m), 0);
        seen |= UINT64_C(1) << dlx_message_seq(m);
        n_taken[n % 3]++;
        ok(dlx_message_done(m));
    }
    for (int i = 0; i < 3; i++) {
        ck_assert_uint_eq(n_taken[i], 20);
        take_fails(workers[i], 0, DLX_E_EMPTY, "");
    }
    ok(dlx_publisher_drain(p, 0));
    for (int64_t n = 1; n <= 60; n++) /* as of each subscription without a group */
        dlx_test_stream_expect(all, N, n);
    dlx_test_stream_unref_subscriptions(workers, 3);
}

TEST(a_declared_group_keeps_messages_until_there_is_a_worker)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    publish_all(p, 1, 64);
    auto_tensor *t = dlx_test_stream_alloc(p, N, 65);
    fails(dlx_publish(p, t, PUBLISH(.timeout_ns = 1), NULL), DLX_E_TIMEOUT,
          "group g has not done message 1, published");
    auto_subscription *s = dlx_queue_worker(c);
    for (uint64_t n = 1; n <= 64; n++)
        dlx_queue_do(s, n, 1);
    take_fails(s, 0, DLX_E_EMPTY, "");
}

TEST(another_group_begins_with_its_first_worker)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER_BLOCKING(.depth = 4));
    publish_all(p, 1, 10); /* nobody keeps it */
    auto_subscription *s = dlx_queue_worker(c);
    publish_all(p, 11, 14);
    auto_tensor *t = dlx_test_stream_alloc(p, N, 15);
    fails(dlx_publish(p, t, NULL, NULL), DLX_E_FULL, "group g has not done message 11");
    dlx_queue_do(s, 11, 1);
    auto_subscription *other = dlx_queue_worker(c);
    dlx_queue_do(other, 12, 1);
    s = dlx_subscription_unref(s);
    other = dlx_subscription_unref(other); /* the group ends */
    publish_all(p, 15, 30);
    eventually(dlx_test_stream_stats(p).undone == 2);
}

TEST(a_worker_that_was_there_first_gets_the_first_message)
{
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *s = dlx_queue_worker(c);
    auto_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER_BLOCKING(.depth = 4));
    publish_all(p, 1, 4);
    for (uint64_t n = 1; n <= 4; n++)
        dlx_queue_do(s, n, 1);
}

TEST(two_groups_get_each_message_each)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(
        c, TOPIC, PUBLISHER(.groups = (const char *const[]){"a", "b"}, .n_groups = 2));
    auto_subscription *a = dlx_test_stream_subscribe(c, TOPIC, SUBSCRIBE(.group = "a"));
    auto_subscription *b = dlx_test_stream_subscribe(c, TOPIC, SUBSCRIBE(.group = "b"));
    publish_all(p, 1, 8);
    for (uint64_t n = 1; n <= 8; n++)
        dlx_queue_do(a, n, 1);
    fails(dlx_publisher_drain(p, 0), DLX_E_TIMEOUT, "group b has not done message 1");
    for (uint64_t n = 1; n <= 8; n++)
        dlx_queue_do(b, n, 1);
    ok(dlx_publisher_drain(p, 0));
}

TEST(a_worker_takes_from_all_publishers)
{
    auto_client *c = dlx_test_stream_connect();
    struct dlx_publisher *p[3];
    auto_subscription *s = dlx_queue_worker(c), *other = dlx_queue_worker(c);
    for (int i = 0; i < 3; i++)
        p[i] = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    for (int64_t n = 1; n <= 20; n++)
        for (int i = 0; i < 3; i++)
            dlx_test_stream_publish(p[i], N, n);
    for (int k = 0; k < 60; k++) {
        auto_message *m = dlx_queue_next(k % 2 ? s : other);
        ok(dlx_message_done(m));
    }
    for (int i = 0; i < 3; i++)
        ok(dlx_publisher_drain(p[i], 0));
    dlx_test_stream_unref_publishers(p, 3);
}

/* A message that says that no more will come overtakes none of other publishers. */
TEST(messages_of_several_publishers_begin_in_the_order_of_their_publication)
{
    enum { PUBLISHERS = 4, MESSAGES = 200 };
    auto_client *c = dlx_test_stream_connect();
    struct dlx_publisher *p[PUBLISHERS];
    auto_subscription *early = dlx_queue_worker(c);
    for (int i = 0; i < PUBLISHERS; i++)
        p[i] = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS, .depth = MESSAGES));
    for (int i = 0; i < PUBLISHERS; i++)
        dlx_test_stream_publish(p[i], N, 1);
    for (int i = 0; i < PUBLISHERS; i++) { /* then `early` has heard of all of them */
        auto_message *m = dlx_queue_next(early);
        ok(dlx_message_done(m));
    }
    for (int n = 0; n < MESSAGES; n++) /* by turns, and then in runs */
        dlx_test_stream_publish(p[n < 100 ? n % PUBLISHERS : n / 10 % PUBLISHERS], N, n);
    auto_subscription *late = dlx_queue_worker(c);
    for (int n = 0; n < MESSAGES; n++) {
        auto_message *m = dlx_test_stream_next(n % 3 ? early : late);
        dlx_test_stream_check(m, N, n);
        ok(dlx_message_done(m));
    }
    dlx_test_stream_unref_publishers(p, PUBLISHERS);
}

/* The look lists the link of the one that left first, and another link gets its place. */
TEST(a_publisher_that_leaves_does_not_change_the_order)
{
    enum { PUBLISHERS = 3 };
    auto_client *c = dlx_test_stream_connect();
    struct dlx_publisher *p[PUBLISHERS];
    struct dlx_message *m[PUBLISHERS];
    auto_subscription *s =
        dlx_test_stream_subscribe(c, TOPIC, SUBSCRIBE(.group = "g", .max_held = 8));
    for (int i = 0; i < PUBLISHERS; i++) {
        p[i] = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
        dlx_test_stream_publish(p[i], N, 1);
    }
    for (int i = 0; i < PUBLISHERS; i++)
        m[i] = dlx_test_stream_next(s);
    for (int leaves = 0; leaves < PUBLISHERS - 1; leaves++) {
        uint64_t id = p[leaves]->id;
        p[leaves] = dlx_publisher_unref(p[leaves]);
        take_fails(s, SECOND / 20, DLX_E_TIMEOUT, ""); /* the worker has heard of the end */
        for (int n = 0; n < 2 * PUBLISHERS; n++)
            dlx_test_stream_publish(p[PUBLISHERS - 1 - n % (PUBLISHERS - 1 - leaves)], N, n);
        for (int i = 0; i < PUBLISHERS; i++)
            if (m[i] && dlx_message_publisher(m[i]) == id) {
                ok(dlx_message_done(m[i]));
                m[i] = dlx_message_unref(m[i]);
            }
        for (int n = 0; n < 2 * PUBLISHERS; n++) {
            auto_message *next = dlx_test_stream_next(s);
            dlx_test_stream_check(next, N, n);
            ok(dlx_message_done(next));
        }
    }
    dlx_test_stream_unref_messages(m, PUBLISHERS);
    dlx_test_stream_unref_publishers(p, PUBLISHERS);
}

/* What was claimed of a publisher whose memory is yet to be announced comes, and is no message that
 * the worker keeps. */
TEST(a_worker_takes_the_first_messages_of_many_publishers)
{
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *s = dlx_queue_worker(c);
    struct dlx_publisher *p[48];
    for (int i = 0; i < 48; i++)
        p[i] = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    for (int i = 0; i < 48; i++)
        dlx_test_stream_publish(p[i], N, 1);
    for (int i = 0; i < 48; i++) {
        auto_message *m = dlx_queue_next(s);
        ok(dlx_message_done(m));
    }
    dlx_test_stream_unref_publishers(p, 48);
}

/* ---- what becomes of a message --------------------------------------------------------------- */

TEST(a_message_that_is_released_undone_is_given_back)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    auto_subscription *s = dlx_queue_worker(c), *other = dlx_queue_worker(c);
    publish_all(p, 1, 2);
    dlx_message_unref(dlx_queue_next(s));
    dlx_queue_do(other, 1, 2); /* before message 2 */
    auto_message *m = dlx_queue_next(s);
    ok(dlx_message_give_back(m));
    fails(dlx_message_give_back(m), DLX_E_NOT_FOUND, "it was given back");
    fails(dlx_message_done(m), DLX_E_NOT_FOUND, "it was given back");
    fails(dlx_message_renew(m), DLX_E_NOT_FOUND, "it was given back");
    dlx_test_stream_check(m, N, 2); /* it stays valid */
    dlx_queue_do(other, 2, 2);
    struct dlx_subscription_stats stats = dlx_test_stream_subscription_stats(other);
    ck_assert_uint_eq(stats.redelivered, 2);
    ck_assert_uint_eq(stats.done, 2);
    ck_assert_uint_eq(stats.n_claimed, 0);
}

TEST(a_message_that_is_done_stays_valid_until_it_is_released)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS, .depth = 2));
    auto_subscription *s = dlx_queue_worker(c);
    auto_tensor *kept = NULL;
    dlx_test_stream_publish(p, N, 1);
    struct dlx_message *m = dlx_queue_next(s);
    ok(dlx_message_tensor(m, 0, &kept));
    ok(dlx_message_done(m));
    ok(dlx_message_done(m));
    fails(dlx_message_give_back(m), DLX_E_NOT_FOUND, "it was said to be done");
    dlx_message_unref(m);
    for (int64_t n = 2; n <= 100; n++) {
        dlx_test_stream_publish(p, N, n);
        dlx_queue_do(s, (uint64_t)n, 1);
    }
    ck_assert_int_eq(((int64_t *)kept->dl_tensor.data)[0], 1);
}

TEST(a_tensor_keeps_its_message_from_being_given_back)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    auto_subscription *s = dlx_queue_worker(c), *other = dlx_queue_worker(c);
    DLManagedTensorVersioned *kept = NULL;
    dlx_test_stream_publish(p, N, 1);
    struct dlx_message *m = dlx_queue_next(s);
    ok(dlx_message_tensor(m, 0, &kept));
    dlx_message_unref(m);
    take_fails(other, 0, DLX_E_EMPTY, "");
    kept->deleter(kept);
    dlx_queue_do(other, 1, 2);
}

TEST(the_last_release_says_that_it_is_done_if_that_was_asked_for)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    auto_subscription *s = dlx_queue_worker(c);
    DLManagedTensorVersioned *t = NULL;
    publish_all(p, 1, 2);
    struct dlx_message *m = dlx_queue_next(s);
    ok(dlx_message_tensor(m, 0, &t));
    ok(dlx_message_done_at_release(m));
    dlx_message_unref(m);
    fails(dlx_publisher_drain(p, 0), DLX_E_TIMEOUT, "message 1");
    t->deleter(t);
    auto_message *other = dlx_queue_next(s);
    ck_assert_uint_eq(dlx_message_seq(other), 2); /* in the same struct, and not yet done */
    ok(dlx_message_give_back(other));
    fails(dlx_message_done_at_release(other), DLX_E_NOT_FOUND, "it was given back");
    dlx_queue_do(s, 2, 2);
    ok(dlx_publisher_drain(p, 0));
}

static int copy_group_info(const struct dlx_group_info *info, void *userdata)
{
    memcpy(userdata, info, sizeof *info);
    return 0;
}

TEST(a_message_that_is_given_back_too_often_becomes_a_dead_letter)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    auto_subscription *dead = dlx_test_stream_subscribe(c, "test/dead", NULL);
    const struct dlx_subscribe_args *args = WORKER(.max_attempts = 3, .dead_letters = "test/dead");
    auto_subscription *s = dlx_test_stream_subscribe(c, TOPIC, args);
    struct dlx_event event;
    publish_all(p, 1, 2);
    for (uint32_t attempt = 1; attempt <= 3; attempt++) {
        auto_message *m = dlx_queue_next(s);
        ck_assert_uint_eq(dlx_message_seq(m), 1);
        ck_assert_uint_eq(dlx_message_attempt(m), attempt);
    }
    dlx_queue_do(s, 2, 1);
    ok(dlx_publisher_drain(p, 0));
    ck_assert(next_event(s, DLX_EVENT_DEAD_LETTER, &event));
    ck_assert_str_eq(event.reason, "message 1 was given back 3 times; a copy was published");
    ck_assert_str_eq(event.topic, TOPIC);
    ck_assert_uint_eq(dlx_test_stream_subscription_stats(s).dead, 1);
    dlx_test_stream_expect(dead, N, 1);
    struct dlx_group_info info;
    ok(dlx_list_groups(c, TOPIC, copy_group_info, &info));
    ck_assert_uint_eq(info.redelivered, 2); /* finding a dead letter is no delivery */
    ck_assert_uint_eq(info.dead, 1);
}

TEST(a_lease_ends_and_the_former_worker_is_told)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    auto_subscription *s = dlx_test_stream_subscribe(c, TOPIC, WORKER(.lease_ns = SECOND / 20));
    auto_subscription *other = dlx_test_stream_subscribe(c, TOPIC, WORKER(.lease_ns = SECOND / 20));
    dlx_test_stream_publish(p, N, 1);
    auto_message *m = dlx_queue_next(s);
    dlx_queue_do(other, 1, 2);
    fails(dlx_message_done(m), DLX_E_NOT_FOUND, "its lease ended");
    fails(dlx_message_renew(m), DLX_E_NOT_FOUND, "it was given back");
    ok(dlx_publisher_drain(p, 0));
}

/* ---- how many a worker has ------------------------------------------------------------------- */

TEST(a_worker_has_as_many_as_it_asked_for_over_all_publishers)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    auto_publisher *q = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    auto_subscription *s = dlx_test_stream_subscribe(c, TOPIC, WORKER(.max_held = 3));
    struct dlx_message *m[8];
    uint32_t n;
    publish_all(p, 1, 2);
    publish_all(q, 1, 6);
    ok(dlx_take_n(s, 8, PATIENCE, m, &n));
    ck_assert_uint_eq(n, 3);
    take_fails(s, 0, DLX_E_TOO_MANY_HELD,
               "3 messages of group g are neither done nor given back, the limit of this "
               "subscription (max_held)");
    ok(dlx_message_done(m[0])); /* its memory is kept, and another one may come */
    auto_message *more = dlx_queue_next(s);
    ck_assert_uint_eq(dlx_test_stream_subscription_stats(s).n_claimed, 3);
    dlx_test_stream_unref_messages(m, 3);
}

TEST(a_publisher_waits_while_too_many_bytes_do)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p =
        dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS, .max_queued_bytes = 3 * N * 8 - 1));
    publish_all(p, 1, 3); /* the third one exceeds it */
    auto_tensor *t = dlx_test_stream_alloc(p, N, 4);
    fails(dlx_publish(p, t, PUBLISH(.timeout_ns = 1), NULL), DLX_E_TIMEOUT,
          "240 B wait already (max_queued_bytes 239 B): group g has not done message 1");
    auto_subscription *s = dlx_queue_worker(c);
    dlx_queue_do(s, 1, 1);
    dlx_test_stream_publish(p, N, 4);
    for (uint64_t n = 2; n <= 4; n++)
        dlx_queue_do(s, n, 1);
}

/* ---- sleep ----------------------------------------------------------------------------------- */

struct sleeper {
    struct dlx_subscription *s;
    _Atomic uint32_t n_taken;
};

static void *take_until_the_end(void *userdata)
{
    struct sleeper *sleeper = userdata;
    struct dlx_message *m;
    while (dlx_take(sleeper->s, PATIENCE, &m) == 0) {
        atomic_fetch_add(&sleeper->n_taken, 1);
        dlx_message_done(m);
        dlx_message_unref(m);
    }
    return NULL;
}

TEST(each_message_wakes_up_one_sleeper)
{
    auto_client *c = dlx_test_stream_connect();
    struct dlx_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    struct sleeper sleepers[4];
    pthread_t threads[4];
    uint32_t n_taken = 0;
    for (int i = 0; i < 4; i++) {
        sleepers[i] = (struct sleeper){.s = dlx_queue_worker(c)};
        threads[i] = dlx_test_stream_thread(take_until_the_end, &sleepers[i]);
    }
    for (int64_t n = 1; n <= 200; n++) {
        dlx_test_stream_publish(p, N, n);
        ok(dlx_publisher_drain(p, PATIENCE));
    }
    ck_assert_uint_le(dlx_test_stream_stats(p).bells, 200);
    dlx_publisher_unref(p);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        n_taken += sleepers[i].n_taken;
        dlx_subscription_unref(sleepers[i].s);
    }
    ck_assert_uint_eq(n_taken, 200);
}

TEST(a_worker_that_polls_hears_of_messages_and_of_those_that_are_given_back)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    auto_subscription *s = dlx_queue_worker(c), *other = dlx_queue_worker(c);
    struct pollfd pfd = {.fd = dlx_subscription_fd(s), .events = POLLIN};
    struct dlx_message *m = NULL;
    ck_assert_int_ge(pfd.fd, 0);
    auto_message *held = NULL;
    for (int64_t n = 1; n <= 20; n++) {
        int r;
        dlx_test_stream_publish(p, N, 2 * n - 1);
        while ((r = dlx_take(s, 0, &m)) == DLX_E_EMPTY)
            ck_assert_int_eq(poll(&pfd, 1, PATIENCE / 1000000), 1);
        ok(r);
        ok(dlx_message_done(m));
        dlx_message_unref(m);
        dlx_test_stream_publish(p, N, 2 * n);
        held = dlx_queue_next(other);
        while ((r = dlx_take(s, 0, &m)) == DLX_E_EMPTY && poll(&pfd, 1, 0) == 1)
            ;
        ck_assert_int_eq(r, DLX_E_EMPTY);
        held = dlx_message_unref(held); /* the other one gives it back */
        while ((r = dlx_take(s, 0, &m)) == DLX_E_EMPTY)
            ck_assert_int_eq(poll(&pfd, 1, PATIENCE / 1000000), 1);
        ok(r);
        ck_assert_uint_eq(dlx_message_attempt(m), 2);
        ok(dlx_message_done(m));
        dlx_message_unref(m);
    }
}

/* What others did first is done as soon as this worker's own is: there is nothing to look for. */
TEST(a_worker_sleeps_when_others_have_done_what_came_later)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    auto_subscription *s = dlx_queue_worker(c), *other = dlx_queue_worker(c);
    struct pollfd pfd = {.fd = dlx_subscription_fd(s), .events = POLLIN};
    publish_all(p, 1, 3);
    auto_message *m = dlx_queue_next(s);
    dlx_queue_do(other, 2, 1);
    dlx_queue_do(other, 3, 1);
    ok(dlx_message_done(m));
    int n_rounds = 0;
    do
        take_fails(s, 0, DLX_E_EMPTY, "");
    while (poll(&pfd, 1, 0) == 1 && ++n_rounds < 100);
    ck_assert_int_lt(n_rounds, 100);
}

/* ---- ends ------------------------------------------------------------------------------------ */

TEST(a_worker_leaves_when_all_is_done_and_not_before)
{
    auto_client *c = dlx_test_stream_connect();
    struct dlx_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    auto_subscription *s = dlx_queue_worker(c), *other = dlx_queue_worker(c);
    publish_all(p, 1, 2);
    struct dlx_message *m = dlx_queue_next(s);
    dlx_queue_do(other, 2, 1);
    dlx_publisher_unref(p);
    take_fails(other, SECOND / 20, DLX_E_TIMEOUT, "");
    dlx_message_unref(m); /* given back */
    dlx_queue_do(other, 1, 2);
    take_fails(other, PATIENCE, DLX_E_PUBLISHER_GONE, "");
    take_fails(s, PATIENCE, DLX_E_PUBLISHER_GONE, "");
}

TEST(undone_messages_outlive_their_publisher_and_go_when_they_are_done)
{
    auto_client *c = dlx_test_stream_connect();
    struct dlx_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    publish_all(p, 1, 4);
    auto_subscription *first = dlx_queue_worker(c);
    dlx_queue_do(first, 1, 1);
    first = dlx_subscription_unref(first);
    dlx_publisher_unref(p);
    auto_publisher *q = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS)); /* keeps its own */
    auto_subscription *s = dlx_queue_worker(c);
    for (uint64_t n = 2; n <= 4; n++)
        dlx_queue_do(s, n, 1);
    dlx_test_stream_publish(q, N, 1);
    dlx_queue_do(s, 1, 1);
    s = dlx_subscription_unref(s);
    eventually(dlx_test_stream_list(c, NULL) == 1);
}

TEST(another_worker_takes_what_a_killed_one_had)
{
    struct dlx_test_peer peer = dlx_test_peer_begin(dlx_queue_take_one);
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    dlx_test_stream_publish(p, N, 1);
    dlx_test_peer_hear(&peer);
    auto_subscription *s = dlx_queue_worker(c);
    take_fails(s, 0, DLX_E_EMPTY, "");
    fails(dlx_publisher_drain(p, 0), DLX_E_TIMEOUT, "has it");
    uint64_t before = dlx__now_ns();
    dlx_test_peer_kill(&peer);
    dlx_queue_do(s, 1, 2);
    ck_assert_uint_lt(dlx__now_ns() - before, SECOND / 2); /* and not when it looks anyway */
    ok(dlx_publisher_drain(p, 0));
}

/* The worker never sleeps, and no message of the publisher is waiting that the killed one had. */
TEST(another_worker_takes_what_a_killed_one_had_beside_a_busy_publisher)
{
    struct dlx_test_peer peer = dlx_test_peer_begin(dlx_queue_take_one);
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *quiet = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    dlx_test_stream_publish(quiet, N, 1);
    dlx_test_peer_hear(&peer);
    auto_publisher *busy = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    auto_subscription *s = dlx_queue_worker(c);
    take_fails(s, 0, DLX_E_EMPTY, "");
    dlx_test_peer_kill(&peer);
    const uint64_t until = dlx__now_ns() + (uint64_t)PATIENCE;
    dlx_test_stream_publish(busy, N, 1);
    for (bool is_back = false; !is_back;) {
        dlx_test_stream_publish(busy, N, 1); /* one is always there */
        auto_message *m = dlx_test_stream_next(s);
        is_back = dlx_message_publisher(m) == quiet->id;
        ok(dlx_message_done(m));
        ck_assert_uint_lt(dlx__now_ns(), until);
    }
}

/* Of the publishers that left, another worker has everything; the one that is there has nothing. */
TEST(a_worker_sleeps_while_others_have_what_former_publishers_left)
{
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *other =
        dlx_test_stream_subscribe(c, TOPIC, SUBSCRIBE(.group = "g", .max_held = 2));
    struct dlx_message *m[2];
    for (size_t i = 0; i < DLX_ARRAY_SIZE(m); i++) {
        auto_publisher *former = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
        dlx_test_stream_publish(former, N, 1);
        m[i] = dlx_test_stream_next(other);
    }
    auto_publisher *idle = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    auto_subscription *s = dlx_queue_worker(c);
    take_fails(s, SECOND / 5, DLX_E_TIMEOUT, "");
    ck_assert_uint_gt(dlx_test_stream_subscription_stats(s).sleeps, 0);
    dlx_test_stream_unref_messages(m, DLX_ARRAY_SIZE(m));
}

TEST(a_worker_that_comes_takes_what_the_last_one_had_when_it_was_killed)
{
    struct dlx_test_peer peer = dlx_test_peer_begin(dlx_queue_take_one);
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    publish_all(p, 1, 2);
    dlx_test_peer_hear(&peer);
    dlx_test_peer_kill(&peer);
    auto_subscription *s = dlx_queue_worker(c);
    dlx_queue_do(s, 1, 2);
    dlx_queue_do(s, 2, 1);
    ok(dlx_publisher_drain(p, 0));
}

TEST(a_stopped_worker_keeps_what_it_has)
{
    struct dlx_test_peer peer = dlx_test_peer_begin(dlx_queue_take_one);
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    publish_all(p, 1, 2);
    dlx_test_peer_hear(&peer);
    kill(peer.pid, SIGSTOP);
    auto_subscription *s = dlx_queue_worker(c);
    dlx_queue_do(s, 2, 1);
    take_fails(s, SECOND * 3 / 2, DLX_E_TIMEOUT, "");
    dlx_test_peer_kill(&peer);
    dlx_queue_do(s, 1, 2);
}

/* ---- bad input ------------------------------------------------------------------------------- */

TEST(a_publisher_without_groups_may_be_given_an_empty_list)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(
        c, TOPIC, PUBLISHER(.groups = (const char *const[]){"g"}, .n_groups = 0));
    ck_assert_int_eq(dlx_publisher_drain(p, 0), DLX_E_INVALID);
}

TEST(the_descriptor_of_a_publisher_tells_when_all_is_done)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    auto_subscription *s = dlx_queue_worker(c);
    struct pollfd fd = {.fd = dlx_publisher_fd(p), .events = POLLIN};
    publish_all(p, 1, 1);
    auto_message *m = dlx_queue_next(s);
    ck_assert_int_eq(dlx_publisher_drain(p, 0), DLX_E_TIMEOUT);
    while (poll(&fd, 1, 0) > 0) /* sometimes without a reason */
        ck_assert_int_eq(dlx_publisher_drain(p, 0), DLX_E_TIMEOUT);
    ok(dlx_message_done(m));
    ck_assert_int_eq(poll(&fd, 1, (int)(PATIENCE / 1000000)), 1);
    ok(dlx_publisher_drain(p, 0));
}

TEST(arguments_that_cannot_be)
{
    static const struct {
        struct dlx_subscribe_args args;
        const char *words;
    } cases[] = {
        {{.group = ""}, "has 0 bytes"},
        {{.group = "a/b"}, "byte 0x2f at 1"},
        {{.group = "0123456789012345678901234567890123456789012345678901234567890123"},
         "has 64 bytes"},
        {{.group = "g", .mode = DLX_MODE_LATEST}, "mode LATEST passes messages over"},
        {{.group = "g", .history = 1}, "there is no history (1)"},
        {{.group = "g", .lease_ns = -1}, "lease_ns -1"},
        {{.group = "g", .max_attempts = 61}, "max_attempts 61 must be at most 60"},
        {{.group = "g", .dead_letters = "a//b"}, "empty segment"},
    };
    auto_client *c = dlx_test_stream_connect();
    struct dlx_subscription *s = NULL;
    struct dlx_publisher *p = NULL;
    for (size_t i = 0; i < DLX_ARRAY_SIZE(cases); i++) {
        struct dlx_subscribe_args args = cases[i].args;
        args.size = sizeof args;
        int r = dlx_subscribe(c, TOPIC, &args, &s);
        ck_assert_msg(r < 0 && strstr(dlx_errmsg(), cases[i].words), "%d %s", r, dlx_errmsg());
        ck_assert_msg(!strstr(dlx_errmsg() + 1, "subscription to"), "twice: %s", dlx_errmsg());
    }
    const char *const twice[] = {"a", "b", "a"}, *const none[] = {""};
    fails(dlx_publisher_new(c, TOPIC, PUBLISHER(.groups = none, .n_groups = 1), &p), DLX_E_INVALID,
          "has 0 bytes");
    fails(dlx_publisher_new(c, TOPIC, PUBLISHER(.groups = twice, .n_groups = 17), &p),
          DLX_E_INVALID, "at most 16");
    fails(dlx_publisher_new(c, TOPIC, PUBLISHER(.groups = twice, .n_groups = 3), &p), DLX_E_INVALID,
          "twice");
    auto_publisher *q = dlx_test_stream_publisher(c, TOPIC, NULL);
    fails(dlx_publisher_drain(q, 0), DLX_E_INVALID, "it has declared none");
    auto_subscription *ordinary = dlx_test_stream_subscribe(c, TOPIC, NULL);
    dlx_test_stream_publish(q, N, 1);
    auto_message *m = dlx_queue_next(ordinary);
    fails(dlx_message_done(m), DLX_E_INVALID, "is in no group");
    ck_assert_uint_eq(dlx_message_attempt(m), 0);
}

TEST(a_worker_with_another_lease_or_limit_is_refused)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    auto_subscription *s = dlx_test_stream_subscribe(c, TOPIC, WORKER(.max_attempts = 3));
    struct dlx_subscription *other = NULL;
    fails(dlx_subscribe(c, TOPIC, WORKER(.max_attempts = 4), &other), DLX_E_QOS, "4");
    fails(dlx_subscribe(c, TOPIC, WORKER(.max_attempts = 3, .lease_ns = SECOND), &other), DLX_E_QOS,
          "lease");
}

TEST(workers_with_other_terms_may_follow_the_last_one_at_once)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    for (uint32_t i = 1; i <= 50; i++) {
        auto_subscription *s =
            dlx_test_stream_subscribe(c, TOPIC, WORKER(.max_attempts = i, .lease_ns = SECOND * i));
        dlx_test_stream_publish(p, N, i);
        dlx_queue_do(s, i, 1);
    }
}

/* ---- lists ---------------------------------------------------------------------------------- */

static int note_link(const struct dlx_link_info *info, void *userdata)
{
    struct dlx_link_info **next = userdata;
    *(*next)++ = *info;
    return 0;
}

static int note_publisher(const struct dlx_publisher_info *info, void *userdata)
{
    *(uint64_t *)userdata = info->publisher;
    return 0;
}

/* What another worker does is not lost, and not behind. */
TEST(a_list_counts_for_an_idle_worker_nothing_that_another_one_does)
{
    enum { ALL = 200, DEPTH = 8 };
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS, .depth = DEPTH));
    auto_subscription *idle = dlx_queue_worker(c);
    auto_subscription *busy = dlx_queue_worker(other);
    struct dlx_link_info infos[3] = {{.size = sizeof infos[0]}}, *next_info = infos;
    uint64_t id = 0;
    publish_all(p, 1, 1);
    dlx_queue_do(idle, 1, 1);
    for (int64_t n = 2; n <= ALL; n++) {
        publish_all(p, n, n);
        dlx_queue_do(busy, (uint64_t)n, 1);
    }
    ok(dlx_list_publishers(c, TOPIC, note_publisher, &id));
    ok(dlx_list_links(c, id, note_link, &next_info));
    ck_assert_ptr_eq(next_info, infos + 2);
    ck_assert_uint_eq(infos[0].taken, 1);
    ck_assert_uint_eq(infos[1].taken, ALL - 1);
    for (int i = 0; i < 2; i++) {
        ck_assert_uint_eq(infos[i].lost, 0);
        ck_assert_uint_eq(infos[i].skipped, 0);
        ck_assert(!infos[i].blocks);
        ck_assert_uint_eq(infos[i].behind, 0);
    }
}

/* The publisher waits for the message that one worker has. */
TEST(a_list_says_which_worker_a_publisher_waits_for)
{
    enum { DEPTH = 8 };
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS, .depth = DEPTH));
    auto_subscription *holds = dlx_queue_worker(c);
    auto_subscription *free = dlx_queue_worker(other);
    struct dlx_link_info infos[3] = {{.size = sizeof infos[0]}}, *next_info = infos;
    uint64_t id = 0;
    publish_all(p, 1, 1);
    auto_message *m = dlx_queue_next(holds);
    for (int64_t n = 2; n <= DEPTH; n++) {
        publish_all(p, n, n);
        if (n <= DEPTH - 2)
            dlx_queue_do(free, (uint64_t)n, 1);
    }
    dlx_store32_relaxed(&p->core.block->control->blocked, 1); /* as if it waited */
    ok(dlx_list_publishers(c, TOPIC, note_publisher, &id));
    ok(dlx_list_links(c, id, note_link, &next_info));
    ck_assert_ptr_eq(next_info, infos + 2);
    ck_assert(infos[0].blocks && !infos[1].blocks);
    for (int i = 0; i < 2; i++) /* two wait, which either of them can take */
        ck_assert_uint_eq(infos[i].behind, 2);
    ck_assert_uint_eq(infos[0].n_held, 1);
    dlx_store32_relaxed(&p->core.block->control->blocked, 0);
}

static int note_claim(const struct dlx_claim_info *info, void *userdata)
{
    *(struct dlx_claim_info *)userdata = *info;
    return 0;
}

/* The next worker takes the message only when that worker lets go of it, or dies. */
TEST(a_list_names_a_worker_that_has_a_message_and_has_closed_its_subscription)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    struct dlx_subscription *s = dlx_queue_worker(c);
    struct dlx_claim_info claim = {.seq = 0};
    uint64_t id = 0;
    publish_all(p, 1, 1);
    auto_message *m = dlx_queue_next(s);
    dlx_subscription_unref(s);
    ok(dlx_list_publishers(c, TOPIC, note_publisher, &id));
    ok(dlx_list_claims(c, id, 1, note_claim, &claim));
    ck_assert_uint_eq(claim.seq, 1);
    ck_assert_uint_ne(claim.link, 0);
    ck_assert_uint_eq(claim.pid, (uint32_t)getpid());
    ck_assert_uint_eq(claim.uid, getuid());
    ck_assert_str_eq(claim.client_name, "e2e_queue");
}

/* A process that computes makes no call. It is ready for two publishers that come meanwhile. */
TEST(a_time_out_names_workers_that_make_no_call)
{
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    auto_subscription *s = dlx_queue_worker(c);
    auto_publisher *first = dlx_test_stream_publisher(other, TOPIC, PUBLISHER(GROUPS)),
                   *second = dlx_test_stream_publisher(other, TOPIC, PUBLISHER(GROUPS)),
                   *third = dlx_test_stream_publisher(other, TOPIC, PUBLISHER(GROUPS, .depth = 1));
    struct dlx_link_info link = {.size = sizeof link}, *next_info = &link;
    char words[80];
    ok(dlx_publisher_wait(first, 1, 0));
    ok(dlx_publisher_wait(second, 1, 0));
    ok(dlx_list_links(c, third->id, note_link, &next_info));
    ck_assert(link.joining);
    ck_assert_uint_eq(link.group, 1);
    publish_all(third, 1, 1);
    (void)snprintf(words, sizeof words, "none of its workers has it: e2e_queue (pid %d)", getpid());
    fails(dlx_publisher_drain(third, SECOND / 50), DLX_E_TIMEOUT, words);
    auto_tensor *t = dlx_test_stream_alloc(third, N, 2);
    fails(dlx_publish(third, t, PUBLISH(.timeout_ns = SECOND / 50), NULL), DLX_E_TIMEOUT, words);
    fails(dlx_publisher_drain(third, 0), DLX_E_TIMEOUT, "no worker is attached, and whether");
    dlx_queue_do(s, 1, 1);
    ok(dlx_publisher_drain(third, PATIENCE));
}
