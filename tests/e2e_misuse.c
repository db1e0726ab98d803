/* SPDX-License-Identifier: Apache-2.0 */

/* Calls that a caller must not make: each is refused or does nothing, and no message is hurt. */

#include "client/publisher.h"
#include "tests/harness_stream.h"
#include <poll.h>
#include <pthread.h>
#include <string.h>

static struct dlx_publisher_stats stats_of(struct dlx_publisher *p)
{
    struct dlx_publisher_stats stats = {.size = sizeof stats};
    ok(dlx_publisher_get_stats(p, &stats));
    return stats;
}

/* ---- whose tensor it is --------------------------------------------------------------------- */

enum { SINGLE, SET, BATCH, N_WAYS };

static int publish(struct dlx_publisher *p, int way, DLManagedTensorVersioned *t)
{
    const struct dlx_item item = {.name = "t", .tensor = t};
    uint32_t n;
    return way == SINGLE ? dlx_publish(p, t, NULL)
           : way == SET  ? dlx_publish_set(p, &item, 1, NULL, NULL)
                         : dlx_publish_n(p, &t, 1, NULL, &n);
}

START_TEST(a_tensor_is_not_published_twice)
{
    struct dlx_test_pair x = dlx_test_pair_make(NULL, NULL);
    struct dlx_message *m = NULL;
    const int first = _i / N_WAYS, second = _i % N_WAYS;
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, 10, 5);
    ok(publish(x.p, first, t));
    fails(publish(x.p, second, t), DLX_E_INVALID, "published or deleted before");
    ok(dlx_take(x.s, PATIENCE, &m));
    fails(publish(x.p, second, t), DLX_E_INVALID, "published or deleted before");
    dlx_test_stream_check(m, 10, 5);
    dlx_message_unref(m);
    ck_assert_uint_eq(stats_of(x.p).published, 1);
    dlx_test_stream_publish(x.p, 10, 6);
    ok(dlx_take(x.s, PATIENCE, &m));
    dlx_test_stream_check(m, 10, 6);
    dlx_message_unref(m);
    dlx_test_pair_end(&x);
}
END_TEST

START_TEST(a_tensor_is_not_in_a_message_or_batch_twice)
{
    struct dlx_test_pair x = dlx_test_pair_make(NULL, NULL);
    struct dlx_message *m = NULL;
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, 10, 5), *two[] = {t, t};
    const struct dlx_item items[] = {{"a", t}, {"b", t}};
    uint32_t n = 7;
    fails(dlx_publish_set(x.p, items, 2, NULL, NULL), DLX_E_INVALID, "twice");
    fails(dlx_publish_n(x.p, two, 2, NULL, &n), DLX_E_INVALID, "published or deleted before");
    ck_assert_uint_eq(n, 1);
    ok(dlx_take(x.s, PATIENCE, &m));
    dlx_test_stream_check(m, 10, 5);
    dlx_message_unref(m);
    ck_assert_int_eq(dlx_take(x.s, 0, &m), DLX_E_EMPTY);
    dlx_test_pair_end(&x);
}
END_TEST

START_TEST(a_deleted_tensor_is_not_published)
{
    struct dlx_test_pair x = dlx_test_pair_make(NULL, NULL);
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, 10, 5);
    t->deleter(t);
    fails(publish(x.p, _i, t), DLX_E_INVALID, "published or deleted before");
    ck_assert_uint_eq(stats_of(x.p).published, 0);
    dlx_test_pair_end(&x);
}
END_TEST

START_TEST(deleting_a_published_tensor_does_nothing_but_count)
{
    struct dlx_test_pair x = dlx_test_pair_make(NULL, NULL);
    struct dlx_message *m = NULL, *other = NULL;
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, 10, 5);
    ok(publish(x.p, _i, t));
    ck_assert_uint_eq(stats_of(x.p).deleted_again, 0);
    t->deleter(t);
    t->deleter(t);
    ck_assert_uint_eq(stats_of(x.p).deleted_again, 2);
    ok(dlx_take(x.s, PATIENCE, &m));
    for (int64_t i = 0; i < 300; i++) { /* whose memory is not that one */
        dlx_test_stream_publish(x.p, 10, 1000 * i);
        ok(dlx_take(x.s, PATIENCE, &other));
        dlx_test_stream_check(other, 10, 1000 * i);
        dlx_message_unref(other);
    }
    dlx_test_stream_check(m, 10, 5);
    dlx_message_unref(m);
    ck_assert_uint_eq(stats_of(x.p).deleted_again, 2);
    dlx_test_pair_end(&x);
}
END_TEST

/* The memory comes back once, so it is handed out once. */
START_TEST(a_tensor_that_is_deleted_twice_comes_back_once)
{
    struct dlx_test_pair x = dlx_test_pair_make(NULL, NULL);
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, 10, 5), *again[2];
    t->deleter(t);
    t->deleter(t);
    for (int i = 0; i < 2; i++)
        again[i] = dlx_test_stream_alloc(x.p, 10, 100 * i);
    ck_assert_ptr_ne(again[0]->dl_tensor.data, again[1]->dl_tensor.data);
    ck_assert_uint_eq(stats_of(x.p).deleted_again, 1);
    for (int i = 0; i < 2; i++)
        again[i]->deleter(again[i]);
    dlx_test_pair_end(&x);
}
END_TEST

/* ---- two threads ----------------------------------------------------------------------------- */

struct waiter {
    struct dlx_publisher *p;
    DLManagedTensorVersioned *t;
    int result;
};

static void *publish_and_wait(void *userdata)
{
    struct waiter *w = userdata;
    const struct dlx_publish_args wait = {.size = sizeof wait, .timeout_ns = PATIENCE};
    w->result = dlx_publish(w->p, w->t, &wait);
    return NULL;
}

static bool is_blocked(const struct dlx_publisher *p)
{
    dlx_atomic_u32 *blocked = (dlx_atomic_u32 *)(uintptr_t)&p->core.block->control->blocked;
    return dlx_load32_sc(blocked) != 0;
}

START_TEST(only_one_thread_at_a_time_is_in_a_call_on_a_publisher)
{
    const struct dlx_publisher_args pa = {
        .size = sizeof pa, .depth = 1, .on_full = DLX_ON_FULL_BLOCK};
    const struct dlx_subscribe_args sa = {.size = sizeof sa, .reliable = true};
    struct dlx_test_pair x = dlx_test_pair_make(&pa, &sa);
    struct dlx_publisher_stats stats = {.size = sizeof stats};
    struct dlx_event event = {.size = sizeof event};
    int64_t n = 10;
    const struct dlx_tensor_spec spec = {
        .size = sizeof spec, .dtype = {kDLInt, 64, 1}, .ndim = 1, .shape = &n};
    pthread_t thread;
    dlx_test_stream_publish(x.p, 10, 1);
    struct waiter w = {.p = x.p, .t = dlx_test_stream_alloc(x.p, 10, 2), .result = 7};
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, 10, 3), *none = NULL;
    DLManagedTensor legacy = {.dl_tensor = t->dl_tensor};
    const struct dlx_item item = {.name = "t", .tensor = t};
    uint32_t published = 7;
    ck_assert_int_eq(pthread_create(&thread, NULL, publish_and_wait, &w), 0);
    for (uint64_t until = dlx__deadline(PATIENCE); !is_blocked(x.p);) {
        ck_assert_uint_lt(dlx__now_ns(), until);
        (void)poll(NULL, 0, 1);
    }
    fails(dlx_publish(x.p, t, NULL), DLX_E_IN_USE, "another thread");
    fails(dlx_publish_n(x.p, &t, 1, NULL, &published), DLX_E_IN_USE, "dlx_publish_n");
    ck_assert_uint_eq(published, 0);
    fails(dlx_publish_set(x.p, &item, 1, NULL, NULL), DLX_E_IN_USE, "another thread");
    fails(dlx_publish_legacy(x.p, &legacy, NULL), DLX_E_IN_USE, "another thread");
    fails(dlx_alloc(x.p, &spec, &none), DLX_E_IN_USE, "test/a");
    fails(dlx_alloc_set(x.p, &spec, 1, &none), DLX_E_IN_USE, "another thread");
    fails(dlx_publisher_wait(x.p, 1, 0), DLX_E_IN_USE, "another thread");
    fails(dlx_publisher_get_stats(x.p, &stats), DLX_E_IN_USE, "another thread");
    fails(dlx_publisher_next_event(x.p, &event), DLX_E_IN_USE, "another thread");
    ck_assert_ptr_null(none);
    dlx_test_stream_take(x.s, 1); /* makes room */
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(w.result, 0);
    dlx_test_stream_take(x.s, 2);
    ok(dlx_publish(x.p, t, NULL)); /* it stayed the caller's */
    dlx_test_stream_take(x.s, 3);
    dlx_test_pair_end(&x);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("misuse");
    TCase *tcase = dlx_test_stream_case("misuse");
    tcase_add_loop_test(tcase, a_tensor_is_not_published_twice, 0, N_WAYS * N_WAYS);
    tcase_add_test(tcase, a_tensor_is_not_in_a_message_or_batch_twice);
    tcase_add_loop_test(tcase, a_deleted_tensor_is_not_published, 0, N_WAYS);
    tcase_add_loop_test(tcase, deleting_a_published_tensor_does_nothing_but_count, 0, N_WAYS);
    tcase_add_test(tcase, a_tensor_that_is_deleted_twice_comes_back_once);
    tcase_add_test(tcase, only_one_thread_at_a_time_is_in_a_call_on_a_publisher);
    suite_add_tcase(suite, tcase);
    return dlx_test_run(suite);
}
