/* SPDX-License-Identifier: Apache-2.0 */
/* A publisher's retained messages are there with the daemon that replaces its first one, for
 * newcomers too, and come once. */

#include "tests/harness/store.h"
#include "tests/restart/harness_restart.h"

static struct dlx_publisher *new_publisher(struct dlx_client *c, uint32_t on_full)
{
    return dlx_test_stream_publisher(c, "test/a", PUBLISHER(.retain = 3, .on_full = on_full));
}

static struct dlx_subscription *subscribe(struct dlx_client *c, uint32_t history, bool reliable)
{
    return dlx_test_stream_subscribe(c, "test/a",
                                     SUBSCRIBE(.history = history, .reliable = reliable));
}

/* Takes a message, also through errors that the daemon is gone. */
static int take(struct dlx_subscription *s, int64_t timeout_ns, struct dlx_message **ret)
{
    int r = dlx_take(s, timeout_ns, ret);
    for (int k = 0; k < 10 && r == DLX_E_DISCONNECTED; k++)
        r = dlx_take(s, timeout_ns, ret);
    return r;
}

static void take_and_check(struct dlx_subscription *s, int64_t first, int64_t last)
{
    for (int64_t i = first; i <= last; i++) {
        auto_message *m = NULL;
        ok(take(s, PATIENCE, &m));
        dlx_test_stream_check(m, 100, i);
        ck_assert_uint_eq(dlx_message_seq(m), (uint64_t)i);
    }
}

static void check_nothing(struct dlx_subscription *s)
{
    struct dlx_message *m = NULL;
    int r = take(s, SECOND / 50, &m);
    ck_assert_msg(r == DLX_E_TIMEOUT || r == DLX_E_EMPTY, "%d", r);
}

static uint64_t n_lost(struct dlx_subscription *s)
{
    return dlx_test_stream_subscription_stats(s).lost;
}

TEST(newcomers_find_what_is_retained_after_each_restart)
{
    auto_client *c = dlx_test_stream_connect(), *c2 = NULL;
    auto_publisher *p = new_publisher(c, DLX_ON_FULL_DROP);
    int64_t n = 0;
    for (int round = 0; round < 6; round++) {
        /* None in the first round, and then fewer than are retained. */
        dlx_test_stream_publish_all(p, 100, n + 1, n + round);
        n += round;
        dlx_restart_with(p);
        c2 = dlx_test_stream_connect();
        auto_subscription *s = subscribe(c2, 0, false);
        take_and_check(s, n > 3 ? n - 2 : 1, n);
        dlx_test_stream_publish(p, 100, ++n);
        take_and_check(s, n, n);
        c2 = dlx_client_unref(c2);
    }
}

/* Odd: reliable. */
LOOP_TEST(a_subscriber_that_was_there_gets_nothing_twice, 0, 2)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = new_publisher(c, _i ? DLX_ON_FULL_BLOCK : DLX_ON_FULL_DROP);
    auto_subscription *s = subscribe(c, 0, _i), *slow = subscribe(c, 0, _i);
    dlx_test_stream_publish_all(p, 100, 1, 10);
    take_and_check(s, 1, 10);
    take_and_check(slow, 1, 8);
    for (int64_t next = 9; next <= 10; next++) {
        dlx_restart_with(p);
        check_nothing(s);
        take_and_check(slow, next, next);
    }
    check_nothing(slow);
    dlx_restart_with(p);
    do {
        check_nothing(s);
        check_nothing(slow);
    } while (dlx_publisher_wait(p, 2, 0) != 0); /* the new daemon has linked them */
    dlx_test_stream_publish(p, 100, 11);
    take_and_check(s, 11, 11);
    take_and_check(slow, 11, 11);
    ck_assert_uint_eq(n_lost(s), 0);
    ck_assert_uint_eq(n_lost(slow), 0);
}

/* The subscription gets the newest of each control block at most, while it holds one of an older
 * block. */
TEST(latest_skips_to_what_came_after_the_new_daemon)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = new_publisher(c, DLX_ON_FULL_DROP);
    struct dlx_message *held = NULL, *m = NULL;
    int64_t n = 0, last = 0;
    auto_subscription *s =
        dlx_test_stream_subscribe(c, "test/a", SUBSCRIBE(.mode = DLX_MODE_LATEST));
    for (int round = 0; round < 4; round++) {
        dlx_test_stream_publish_all(p, 100, n + 1, n + 3);
        n += 3;
        if (round == 0) {
            ok(take(s, PATIENCE, &held));
            last = (int64_t)dlx_message_seq(held);
            ck_assert_int_eq(last, n);
        }
        dlx_restart_with(p);
        dlx_test_stream_publish_all(p, 100, n + 1, n + 2);
        n += 2;
        while (last < n) {
            ok(take(s, PATIENCE, &m));
            int64_t seq = (int64_t)dlx_message_seq(m);
            ck_assert(seq == n || seq == n - 2);
            ck_assert_int_eq((int64_t)dlx_message_gap(m), seq - last - 1);
            dlx_test_stream_check(m, 100, seq);
            dlx_message_unref(m);
            last = seq;
        }
        check_nothing(s);
    }
    struct dlx_subscription_stats stats = dlx_test_stream_subscription_stats(s);
    ck_assert_uint_eq(stats.taken + stats.skipped, (uint64_t)n);
    ck_assert_uint_eq(stats.lost, 0);
    dlx_test_stream_check(held, 100, 3);
    dlx_message_unref(held);
}

/* Messages stay held through it, in the old memory and in the new one, and the ring goes round many
 * times. */
TEST(copies_are_given_back)
{
    dlx_set_debug(false); /* its arenas are larger */
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", PUBLISHER(.retain = 3, .depth = 8));
    auto_subscription *s = subscribe(c, 0, false);
    struct dlx_message *held[2] = {NULL}, *m = NULL;
    int64_t n = 0;
    for (int i = 0; i < 2; i++) {
        dlx_test_stream_publish(p, 100, ++n);
        ok(dlx_take(s, SECOND, &held[i]));
    }
    dlx_restart_with(p);
    check_nothing(s);
    auto_subscription *late = subscribe(c, 0, false);
    ok(dlx_take(late, SECOND, &m)); /* the copy of the first one */
    for (int i = 0; i < 500; i++) {
        dlx_test_stream_publish(p, 100, ++n);
        take_and_check(s, n, n);
    }
    dlx_test_stream_check(held[0], 100, 1);
    dlx_test_stream_check(held[1], 100, 2);
    dlx_test_stream_check(m, 100, 1);
    dlx_message_unref(held[0]);
    dlx_message_unref(held[1]);
    dlx_message_unref(m);
    dlx_test_stream_publish_all(p, 100, n + 1, n + 100);
    ck_assert_uint_le(dlx_test_stream_stats(p).arena_bytes, 64 << 10);
}

#define SET 200

static void publish_set(struct dlx_publisher *p, int64_t value, bool share)
{
    struct dlx_item items[SET];
    char names[SET][16];
    int64_t copied[4] = {value, value + 1, value + 2, value + 3};
    int64_t shape = 4, many[10] = {1, 1, 2, 1, 1, 1, 2, 1, 1, 1};
    DLManagedTensorVersioned foreign = INT64_TENSOR(copied, &shape), deep = foreign,
                             empty = foreign;
    deep.dl_tensor.ndim = 10;
    deep.dl_tensor.shape = many;
    deep.dl_tensor.strides = NULL;
    int64_t zero = 0;
    empty.dl_tensor.shape = &zero;
    for (int i = 0; i < SET; i++) {
        (void)snprintf(names[i], sizeof names[i], "w%d", i);
        items[i].name = names[i];
        items[i].tensor = i == 3   ? &foreign
                          : i == 5 ? &deep
                          : i == 7 ? &empty
                                   : dlx_test_stream_alloc(p, i % 17 + 1, value + i);
    }
    struct dlx_bytes meta = {"meta data", 9};
    ok(dlx_publish_set(p, items, SET, &meta, PUBLISH(.share = share), NULL));
    for (int i = 0; share && i < SET; i++)
        if (i != 3 && i != 5 && i != 7)
            items[i].tensor->deleter(items[i].tensor);
}

static void check_set(struct dlx_message *m, int64_t value)
{
    size_t meta_size = 0;
    ck_assert_uint_eq(dlx_message_n_tensors(m), SET);
    for (uint32_t i = 0; i < SET; i++) {
        const DLTensor *t = dlx_message_tensor_peek(m, i);
        char name[16];
        (void)snprintf(name, sizeof name, "w%u", i);
        ck_assert_str_eq(dlx_message_tensor_name(m, i), name);
        int64_t n = i == 7 ? 0 : i == 3 || i == 5 ? 4 : i % 17 + 1, k = 0;
        int64_t first = i == 3 || i == 5 ? value : value + i;
        ck_assert_int_eq(t->ndim, i == 5 ? 10 : 1);
        while (k < n && ((const int64_t *)t->data)[k] == first + k)
            k++;
        ck_assert_int_eq(k, n); /* one assert: each is a system call */
    }
    const void *meta = dlx_message_meta(m, &meta_size);
    ck_assert_uint_eq(meta_size, 9);
    ck_assert_int_eq(memcmp(meta, "meta data", 9), 0);
}

TEST(sets_are_carried_whole)
{
    auto_publisher *p = dlx_test_stream_new_publisher("test/a", PUBLISHER(.retain = 2));
    publish_set(p, 1000, false);
    publish_set(p, 2000, true);
    for (int i = 0; i < 3; i++) {
        dlx_restart_with(p);
        auto_client *c2 = dlx_test_stream_connect();
        auto_subscription *s = subscribe(c2, 0, false);
        for (int64_t value = 1000; value <= 2000; value += 1000) {
            auto_message *m = dlx_test_stream_next(s);
            check_set(m, value);
        }
    }
}

/* The arena that is made for all copies has no room to spare, and in debug mode each tensor of it
 * has guard bytes. Odd: in debug mode. */
LOOP_TEST(large_sets_are_carried_whole, 0, 2)
{
    enum { TENSORS = 3, VALUES = 1 << 17 };
    dlx_set_debug(_i);
    auto_publisher *p = dlx_test_stream_new_publisher("test/a", PUBLISHER(.retain = 2));
    for (int64_t value = 1; value <= 2; value++) {
        struct dlx_item items[TENSORS];
        for (int i = 0; i < TENSORS; i++)
            items[i] = (struct dlx_item){.tensor = dlx_test_stream_alloc(p, VALUES, value + i)};
        ok(dlx_publish_set(p, items, TENSORS, NULL, NULL, NULL));
    }
    for (int restart = 0; restart < 2; restart++) {
        dlx_restart_with(p);
        auto_client *c2 = dlx_test_stream_connect();
        auto_subscription *s = subscribe(c2, 0, false);
        for (int64_t value = 1; value <= 2; value++) {
            auto_message *m = dlx_test_stream_next(s);
            ck_assert_uint_eq(dlx_message_n_tensors(m), TENSORS);
            for (uint32_t i = 0; i < TENSORS; i++) {
                const int64_t *data = dlx_message_tensor_peek(m, i)->data;
                ck_assert_int_eq(data[0], value + i);
                ck_assert_int_eq(data[VALUES - 1], value + i + VALUES - 1);
            }
        }
    }
}

TEST(a_shared_tensor_is_carried_and_stays_the_callers)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = new_publisher(c, DLX_ON_FULL_DROP);
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(p, 100, 7);
    for (int i = 0; i < 3; i++)
        ok(dlx_publish(p, t, PUBLISH(.share = true), NULL));
    dlx_restart_with(p);
    ck_assert_int_eq(((const int64_t *)t->dl_tensor.data)[99], 106);
    t->deleter(t);
    dlx_restart_with(p);
    auto_subscription *s = subscribe(c, 0, false);
    for (int i = 0; i < 3; i++) {
        auto_message *m = NULL;
        ok(take(s, SECOND, &m));
        dlx_test_stream_check(m, 100, 7);
    }
}

/* The publisher's former self, which the service manager kept, goes; the messages that it leaves at
 * its end are kept. */
TEST(a_publisher_replaces_what_was_kept_of_it)
{
    dlx_test_store_begin(DLX_TEST_STORE_MANY);
    struct dlx_client *c = dlx_test_stream_connect();
    struct dlx_publisher *p = new_publisher(c, DLX_ON_FULL_DROP);
    dlx_test_stream_publish_all(p, 100, 1, 2);
    for (int i = 0; i < 5; i++) {
        dlx_test_store_restart();
        dlx_restart_announce(p);
        /* The ledger, a pidfd, a control block, an arena. */
        dlx_test_manager_wait_n_kept(&dlx_test_store_manager, "", 4);
    }
    dlx_publisher_unref(p);
    dlx_client_unref(c);
    dlx_test_store_restart();
    dlx_test_store_check_there("test/a", 1, 2);
    dlx_test_store_drop("test/a");
    dlx_test_store_end();
}
