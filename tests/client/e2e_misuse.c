/* SPDX-License-Identifier: Apache-2.0 */

/* Calls that a caller must not make: each is refused or does nothing, and no message is hurt. */

#include "client/publish/publisher.h"
#include "tests/harness/stream.h"
#include <stdatomic.h>

enum { SINGLE, SET, BATCH, N_WAYS };

static int publish(struct dlx_publisher *p, int way, DLManagedTensorVersioned *t)
{
    const struct dlx_item item = {.name = "t", .tensor = t};
    uint32_t n;
    return way == SINGLE ? dlx_publish(p, t, NULL, NULL)
           : way == SET  ? dlx_publish_set(p, &item, 1, NULL, NULL, NULL)
                         : dlx_publish_n(p, &t, 1, NULL, NULL, &n);
}

LOOP_TEST(a_tensor_is_not_published_twice, 0, N_WAYS *N_WAYS)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    const int first = _i / N_WAYS, second = _i % N_WAYS;
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, 10, 5);
    ok(publish(x.p, first, t));
    fails(publish(x.p, second, t), DLX_E_INVALID, "allocate another one, or publish with `share`");
    auto_message *m = dlx_test_stream_next(x.s);
    fails(publish(x.p, second, t), DLX_E_INVALID, "published or deleted before");
    dlx_test_stream_check(m, 10, 5);
    ck_assert_uint_eq(dlx_test_stream_stats(x.p).published, 1);
    dlx_test_stream_publish(x.p, 10, 6);
    dlx_test_stream_expect(x.s, 10, 6);
}

TEST(a_tensor_is_not_in_a_message_or_batch_twice)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, 10, 5), *two[] = {t, t};
    const struct dlx_item items[] = {{"a", t}, {"b", t}};
    uint32_t n = 7;
    fails(dlx_publish_set(x.p, items, 2, NULL, NULL, NULL), DLX_E_INVALID, "twice");
    fails(dlx_publish_n(x.p, two, 2, NULL, NULL, &n), DLX_E_INVALID, "published or deleted before");
    ck_assert_uint_eq(n, 1);
    dlx_test_stream_expect(x.s, 10, 5);
    take_fails(x.s, 0, DLX_E_EMPTY, "");
}

LOOP_TEST(a_deleted_tensor_is_not_published, 0, N_WAYS)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, 10, 5);
    t->deleter(t);
    fails(publish(x.p, _i, t), DLX_E_INVALID, "published or deleted before");
    ck_assert_uint_eq(dlx_test_stream_stats(x.p).published, 0);
}

LOOP_TEST(deleting_a_published_tensor_does_nothing_but_count, 0, N_WAYS)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, 10, 5);
    ok(publish(x.p, _i, t));
    ck_assert_uint_eq(dlx_test_stream_stats(x.p).deleted_again, 0);
    t->deleter(t);
    t->deleter(t);
    ck_assert_uint_eq(dlx_test_stream_stats(x.p).deleted_again, 2);
    auto_message *m = dlx_test_stream_next(x.s);
    for (int64_t i = 0; i < 300; i++) { /* whose memory is not that one */
        dlx_test_stream_publish(x.p, 10, 1000 * i);
        dlx_test_stream_expect(x.s, 10, 1000 * i);
    }
    dlx_test_stream_check(m, 10, 5);
    ck_assert_uint_eq(dlx_test_stream_stats(x.p).deleted_again, 2);
}

/* The memory comes back once, so it is handed out once. */
TEST(a_tensor_that_is_deleted_twice_comes_back_once)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, 10, 5);
    t->deleter(t);
    t->deleter(t);
    auto_tensor *u = dlx_test_stream_alloc(x.p, 10, 0), *v = dlx_test_stream_alloc(x.p, 10, 100);
    ck_assert_ptr_ne(u->dl_tensor.data, v->dl_tensor.data);
    ck_assert_uint_eq(dlx_test_stream_stats(x.p).deleted_again, 1);
}

struct waiter {
    struct dlx_publisher *p;
    DLManagedTensorVersioned *t;
    int result;
};

static void *publish_and_wait(void *userdata)
{
    struct waiter *w = userdata;
    w->result = dlx_publish(w->p, w->t, PUBLISH(.timeout_ns = PATIENCE), NULL);
    return NULL;
}

static bool is_blocked(const struct dlx_publisher *p)
{
    dlx_atomic_u32 *blocked = (dlx_atomic_u32 *)(uintptr_t)&p->core.block->control->blocked;
    return dlx_load32_sc(blocked) != 0;
}

TEST(only_one_thread_at_a_time_is_in_a_call_on_a_publisher)
{
    auto_pair x = dlx_test_pair_make(PUBLISHER_BLOCKING(.depth = 1), SUBSCRIBE_RELIABLY);
    struct dlx_publisher_stats stats = {.size = sizeof stats};
    struct dlx_event event = {.size = sizeof event};
    int64_t n = 10;
    const struct dlx_tensor_spec spec = INT64_SPEC(&n);
    dlx_test_stream_publish(x.p, 10, 1);
    struct waiter w = {.p = x.p, .t = dlx_test_stream_alloc(x.p, 10, 2), .result = 7};
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, 10, 3), *none = NULL;
    DLManagedTensor legacy = {.dl_tensor = t->dl_tensor};
    const struct dlx_item item = {.name = "t", .tensor = t};
    uint32_t published = 7;
    pthread_t thread = dlx_test_stream_thread(publish_and_wait, &w);
    eventually(is_blocked(x.p));
    fails(dlx_publish(x.p, t, NULL, NULL), DLX_E_IN_USE,
          "another thread: make one for each thread, or use a lock");
    fails(dlx_publish_n(x.p, &t, 1, NULL, NULL, &published), DLX_E_IN_USE, "dlx_publish_n");
    ck_assert_uint_eq(published, 0);
    fails(dlx_publish_set(x.p, &item, 1, NULL, NULL, NULL), DLX_E_IN_USE, "another thread");
    fails(dlx_publish_legacy(x.p, &legacy, NULL, NULL), DLX_E_IN_USE, "another thread");
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
    ok(dlx_publish(x.p, t, NULL, NULL)); /* it stayed the caller's */
    dlx_test_stream_take(x.s, 3);
}

enum { N_TAKEN = 20000 };

struct taker {
    struct dlx_subscription *s;
    bool many;
    int64_t timeout_ns;
    uint64_t until; /* so many messages, all takers together */
    int result;     /* of the last call that did not meet another one */
};

static atomic_uint n_times[N_TAKEN + 1]; /* that a message was taken, by its number */
static atomic_uint_least64_t n_taken;

static void *take_messages(void *userdata)
{
    struct taker *t = userdata;
    while (atomic_load(&n_taken) < t->until) {
        struct dlx_message *m[4];
        uint32_t n = 1;
        int r = t->many ? dlx_take_n(t->s, 4, t->timeout_ns, m, &n)
                        : dlx_take(t->s, t->timeout_ns, &m[0]);
        if (r == DLX_E_IN_USE || r == DLX_E_EMPTY)
            continue;
        t->result = r;
        if (r < 0)
            return NULL;
        for (uint32_t i = 0; i < n; i++) {
            atomic_fetch_add(&n_times[dlx_message_seq(m[i])], 1);
            dlx_message_unref(m[i]);
        }
        atomic_fetch_add(&n_taken, n);
    }
    return NULL;
}

/* The one thread has the turn for its own, from many calls before, or it has not. */
LOOP_TEST(only_one_thread_at_a_time_is_in_a_call_on_a_subscription, 0, 2)
{
    const int64_t n_before = _i == 0 ? 0 : 1000;
    auto_pair x = dlx_test_pair_make(PUBLISHER(.depth = 4096), NULL);
    struct taker taker = {.s = x.s, .timeout_ns = PATIENCE, .until = (uint64_t)n_before + 1};
    struct dlx_subscription_stats stats = {.size = sizeof stats};
    struct dlx_event event = {.size = sizeof event};
    struct dlx_message *m = NULL;
    uint32_t n;
    dlx_test_stream_publish_all(x.p, 10, 1, n_before);
    pthread_t thread = dlx_test_stream_thread(take_messages, &taker);
    eventually(atomic_load(&n_taken) >= (uint64_t)n_before &&
               dlx_subscription_get_stats(x.s, &stats) == DLX_E_IN_USE);
    fails(dlx_take(x.s, 0, &m), DLX_E_IN_USE,
          "dlx_take: the subscription of topic test/a is in use");
    fails(dlx_take(x.s, PATIENCE, &m), DLX_E_IN_USE, "another thread"); /* at once */
    fails(dlx_take_n(x.s, 1, 0, &m, &n), DLX_E_IN_USE, "dlx_take_n");
    fails(dlx_subscription_fd(x.s), DLX_E_IN_USE, "dlx_subscription_fd");
    fails(dlx_subscription_next_event(x.s, &event), DLX_E_IN_USE, "dlx_subscription_next_event");
    fails(dlx_subscription_get_stats(x.s, &stats), DLX_E_IN_USE, "dlx_subscription_get_stats");
    ck_assert_ptr_null(m);
    dlx_test_stream_publish(x.p, 10, n_before + 1);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(taker.result, 0);
    ck_assert_uint_eq(dlx_test_stream_subscription_stats(x.s).taken, (uint64_t)n_before + 1);
}

/* One thread takes single messages, the other batches; the main thread publishes. */
TEST(threads_that_take_from_one_subscription_get_no_message_twice)
{
    auto_pair x = dlx_test_pair_make(PUBLISHER_BLOCKING(.depth = 64), SUBSCRIBE_RELIABLY);
    struct taker takers[2] = {{.s = x.s, .until = N_TAKEN},
                              {.s = x.s, .until = N_TAKEN, .many = true}};
    pthread_t threads[] = {dlx_test_stream_thread(take_messages, &takers[0]),
                           dlx_test_stream_thread(take_messages, &takers[1])};
    for (int64_t i = 1; i <= N_TAKEN; i++)
        ok(dlx_publish(x.p, dlx_test_stream_alloc(x.p, 10, i), PUBLISH(.timeout_ns = PATIENCE),
                       NULL));
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        ck_assert_int_eq(takers[i].result, 0);
    }
    ck_assert_uint_eq(atomic_load(&n_taken), N_TAKEN);
    for (int i = 1; i <= N_TAKEN; i++)
        ck_assert_uint_eq(atomic_load(&n_times[i]), 1);
}
