/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A failed call leaves nothing behind, however often it fails: no shared memory, no descriptor, no
 * message, no held message. A caller's tensors stay the caller's.
 */

#include "tests/harness/fds.h"
#include "tests/harness/stream.h"

/* Each failure is repeated so often that one block kept each time needs another arena. */
enum { N_AGAIN = 100, N_WORDS = 8192 };

static const DLDataType word = {kDLInt, 64, 1};
static int64_t n_words = N_WORDS, words[N_WORDS];

static DLManagedTensorVersioned callers(void *data)
{
    return (DLManagedTensorVersioned)INT64_TENSOR(data, &n_words);
}

static const struct dlx_publish_args strict = {.size = sizeof strict, .strict = true};

static void publish_without_data(struct dlx_publisher *p)
{
    DLManagedTensorVersioned t = callers(NULL);
    fails(dlx_publish(p, &t, NULL, NULL), DLX_E_SHAPE, "data is NULL");
}

static void publish_legacy_without_data(struct dlx_publisher *p)
{
    DLManagedTensor t = {.dl_tensor = callers(NULL).dl_tensor};
    fails(dlx_publish_legacy(p, &t, NULL, NULL), DLX_E_SHAPE, "data is NULL");
}

static void publish_what_would_be_copied(struct dlx_publisher *p)
{
    DLManagedTensorVersioned t = callers(words);
    fails(dlx_publish(p, &t, &strict, NULL), DLX_E_WOULD_COPY, "strict");
}

static void publish_what_spans_too_much(struct dlx_publisher *p)
{
    int64_t stride = INT64_MAX;
    DLManagedTensorVersioned t = callers(words);
    t.dl_tensor.strides = &stride;
    fails(dlx_publish(p, &t, NULL, NULL), DLX_E_SHAPE, "2^63-1");
}

/* The first one is read where it lies, the second one is copied, the third one fails. */
static void publish_set_without_data(struct dlx_publisher *p)
{
    auto_tensor *own = dlx_test_stream_alloc(p, N_WORDS, 3);
    DLManagedTensorVersioned mine = callers(words), none = callers(NULL);
    const struct dlx_item items[] = {{"a", own}, {"b", &mine}, {"c", &none}};
    fails(dlx_publish_set(p, items, 3, NULL, NULL, NULL), DLX_E_SHAPE, "data is NULL");
}

static void publish_set_of_one_name(struct dlx_publisher *p)
{
    auto_tensor *own = dlx_test_stream_alloc(p, N_WORDS, 3);
    DLManagedTensorVersioned mine = callers(words);
    const struct dlx_item items[] = {{"a", own}, {"a", &mine}};
    fails(dlx_publish_set(p, items, 2, NULL, NULL, NULL), DLX_E_INVALID, "are both named");
}

static void publish_shared_set_without_data(struct dlx_publisher *p)
{
    auto_tensor *own = dlx_test_stream_alloc(p, N_WORDS, 3);
    DLManagedTensorVersioned none = callers(NULL);
    const struct dlx_item items[] = {{"a", own}, {"b", own}, {"c", &none}};
    fails(dlx_publish_set(p, items, 3, NULL, PUBLISH(.share = true), NULL), DLX_E_SHAPE,
          "data is NULL");
}

static void alloc_too_much(struct dlx_publisher *p)
{
    int64_t shape[] = {INT64_MAX, INT64_MAX};
    DLManagedTensorVersioned *t = NULL;
    fails(dlx_alloc(p, SPEC(.dtype = word, .ndim = 2, .shape = shape), &t), DLX_E_SHAPE, "2^63-1");
    ck_assert_ptr_null(t);
}

/* Room for all of them is found first: the last one has more dimensions than can be. */
static void alloc_set_with_a_bad_one(struct dlx_publisher *p)
{
    struct dlx_tensor_spec specs[] = {INT64_SPEC(&n_words), INT64_SPEC(&n_words),
                                      INT64_SPEC(&n_words)};
    DLManagedTensorVersioned *t[3] = {NULL};
    specs[2].ndim = DLX_NDIM_MAX + 1;
    fails(dlx_alloc_set(p, specs, 3, t), DLX_E_SHAPE, "tensor 2");
    ck_assert(!t[0] && !t[1] && !t[2]);
}

static void (*const failures[])(struct dlx_publisher *) = {
    publish_without_data,
    publish_legacy_without_data,
    publish_what_would_be_copied,
    publish_what_spans_too_much,
    publish_set_without_data,
    publish_set_of_one_name,
    publish_shared_set_without_data,
    alloc_too_much,
    alloc_set_with_a_bad_one,
};
enum { N_FAILURES = DLX_ARRAY_SIZE(failures) };

LOOP_TEST(a_failed_call_leaves_nothing_behind, 0, N_FAILURES)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    auto_message *m = NULL;
    for (int i = 0; i < 3; i++) /* caches fill */
        failures[_i](x.p);
    const struct dlx_publisher_stats before = dlx_test_stream_stats(x.p);
    size_t n_fds = dlx_test_fds_count();
    for (int i = 0; i < N_AGAIN; i++)
        failures[_i](x.p);
    const struct dlx_publisher_stats now = dlx_test_stream_stats(x.p);
    ck_assert_uint_eq(now.arena_bytes, before.arena_bytes);
    ck_assert_uint_eq(now.n_arenas, before.n_arenas);
    ck_assert_uint_eq(now.published, before.published);
    ck_assert_uint_eq(now.copied_bytes, before.copied_bytes);
    ck_assert_uint_eq(dlx_test_fds_count(), n_fds);
    fails(dlx_take(x.s, 0, &m), DLX_E_EMPTY, "");
    dlx_test_stream_publish(x.p, 10, 1);
    ok(dlx_take(x.s, SECOND, &m));
    ck_assert_uint_eq(dlx_message_seq(m), 1);
}

/* A shape or strides that the caller gave to what dlx_alloc() gave. */
TEST(a_tensor_that_does_not_lie_in_its_block_is_copied)
{
    static const struct {
        int64_t shape, stride;
        uint64_t byte_offset;
        bool fits;
    } forms[] = {
        {8, 1, 0, true}, {4, 2, 0, true},  {4, 0, 0, false}, {2, -1, 0, false},
        {1, 0, 0, true}, {1, 1, 8, false}, {2, 7, 0, true},
    };
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(forms); i++) {
        DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, 8, 1);
        t->dl_tensor.shape[0] = forms[i].shape;
        t->dl_tensor.strides[0] = forms[i].stride;
        t->dl_tensor.byte_offset = forms[i].byte_offset;
        int r = dlx_publish(x.p, t, &strict, NULL);
        ck_assert_msg(r == (forms[i].fits ? 0 : DLX_E_WOULD_COPY), "form %zu: %s", i,
                      dlx_strerror(r));
        if (r < 0)
            t->deleter(t);
    }
}

/* Two blocks side by side: one is not read where the other one lies. */
TEST(a_tensor_that_reaches_into_the_next_block_is_copied)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    for (int64_t n = 8; n <= 8192; n *= 4) {
        DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, n, 1),
                                 *u = dlx_test_stream_alloc(x.p, n, 1);
        const bool in_order = (uintptr_t)t->dl_tensor.data < (uintptr_t)u->dl_tensor.data;
        DLManagedTensorVersioned *a = in_order ? t : u, *b = in_order ? u : t;
        int64_t between = (int64_t *)b->dl_tensor.data - (int64_t *)a->dl_tensor.data;
        ck_assert_int_ge(between, n);
        a->dl_tensor.shape[0] = between + 1;
        fails(dlx_publish(x.p, a, &strict, NULL), DLX_E_WOULD_COPY, "moved out");
        a->dl_tensor.shape[0] = n;
        ok(dlx_publish(x.p, a, &strict, NULL));
        b->deleter(b);
    }
}

struct use {
    struct dlx_test_pair pair;
    int publisher, subscription;
};

static void *use_both(void *userdata)
{
    struct use *use = userdata;
    struct dlx_publisher_stats published = {.size = sizeof published};
    struct dlx_subscription_stats taken = {.size = sizeof taken};
    use->publisher = dlx_publisher_get_stats(use->pair.p, &published);
    use->subscription = dlx_subscription_get_stats(use->pair.s, &taken);
    return NULL;
}

static void check_use(const struct use *use, int call)
{
    ck_assert_msg(use->publisher == 0 && use->subscription == 0, "call %d: %s, %s", call,
                  dlx_strerror(use->publisher), dlx_strerror(use->subscription));
}

/* A call, good or bad, is over when it returns: another thread may make the next one. */
TEST(a_call_that_has_returned_is_over)
{
    struct use use = {.pair = dlx_test_pair_make(NULL, NULL)};
    struct dlx_subscription_stats small = {.size = 1};
    struct dlx_publisher_stats tiny = {.size = 1};
    for (int i = 0; i < 2 + N_FAILURES; i++) {
        if (i == 1) {
            ck_assert_int_lt(dlx_subscription_get_stats(use.pair.s, &small), 0);
            ck_assert_int_lt(dlx_publisher_get_stats(use.pair.p, &tiny), 0);
            take_fails(use.pair.s, 0, DLX_E_EMPTY, "");
        } else if (i >= 2) {
            failures[i - 2](use.pair.p);
        }
        pthread_t thread = dlx_test_stream_thread(use_both, &use);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        check_use(&use, i);
        (void)use_both(&use);
        check_use(&use, i);
    }
    dlx_test_pair_end(&use.pair);
}

TEST(each_refused_message_counts_once)
{
    auto_pair x = dlx_test_pair_make(PUBLISHER_BLOCKING(.depth = 2), SUBSCRIBE_RELIABLY);
    dlx_test_stream_publish_all(x.p, 10, 1, 2);
    auto_tensor *t = dlx_test_stream_alloc(x.p, 10, 3);
    for (uint64_t i = 1; i <= 3; i++) {
        fails(dlx_publish(x.p, t, NULL, NULL), DLX_E_FULL, "");
        ck_assert_uint_eq(dlx_test_stream_stats(x.p).refused, 2 * i - 1);
        fails(dlx_publish(x.p, t, PUBLISH(.timeout_ns = SECOND / 100), NULL), DLX_E_TIMEOUT, "");
        ck_assert_uint_eq(dlx_test_stream_stats(x.p).refused, 2 * i);
        ck_assert_uint_eq(dlx_test_stream_stats(x.p).blocked, i);
    }
}

/* The spare links of a subscription end with each daemon: after many daemons it knows how many
 * publishers it has. */
TEST(a_subscription_of_many_daemons_knows_its_publishers)
{
    auto_client *c = dlx_test_stream_connect();
    struct dlx_message *m = NULL;
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/a", NULL);
    for (int i = 0; i < 3; i++) {
        int r;
        dlx_test_stream_restart();
        do /* until it has come to the new daemon */
            r = dlx_take(s, SECOND / 20, &m);
        while (r == DLX_E_DISCONNECTED || strstr(dlx_errmsg(), "no dlpackd"));
        fails(r, DLX_E_TIMEOUT, "nobody publishes it");
        struct dlx_client *other = dlx_test_stream_connect();
        struct dlx_publisher *p = dlx_test_stream_publisher(other, "test/a", NULL);
        dlx_test_stream_publish(p, 10, 7);
        dlx_test_stream_expect(s, 10, 7);
        fails(dlx_take(s, SECOND / 20, &m), DLX_E_TIMEOUT, "no message in time");
        ck_assert(!strstr(dlx_errmsg(), "nobody"));
        dlx_publisher_unref(p);
        dlx_client_unref(other);
        fails(dlx_take(s, 10 * SECOND, &m), DLX_E_PUBLISHER_GONE, "the last publisher left");
    }
}
