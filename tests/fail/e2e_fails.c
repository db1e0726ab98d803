/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Stories of clients and a daemon, each time with one call of the C library that fails: of the
 * daemon, which is a thread of this program, or of the library. The caller is told in words, or
 * does not notice; nothing waits for ever, nothing is left; and the same daemon or publisher goes
 * on.
 */

#include "client/control/client.h"
#include "tests/fail/harness_fail.h"
#include "tests/fail/harness_server.h"
#include "tests/harness/stream.h"

enum { N_DIMS = 12, N_SMALL = 100, N_LARGE = 20000 };

/* A tensor in the caller's memory, to be copied. */
static DLManagedTensorVersioned callers(int64_t *data, int32_t ndim, int64_t *shape,
                                        int64_t *strides)
{
    DLManagedTensorVersioned t = INT64_TENSOR(data, shape);
    t.dl_tensor.ndim = ndim;
    t.dl_tensor.strides = strides;
    return t;
}

static int take(struct dlx_test_cast *x, struct dlx_subscription *s, int64_t n, int64_t value)
{
    DLX_TEST_TRY(dlx_take(s, PATIENCE, &x->m));
    dlx_test_cast_check(x, n, value);
    return 0;
}

static int publish_two(struct dlx_test_cast *x)
{
    int64_t n = 3, values[3] = {1, 2, 3};
    DLManagedTensorVersioned mine = callers(values, 1, &n, NULL), other = mine;
    const struct dlx_item items[] = {{"one", &mine}, {"two", &other}};
    DLX_TEST_TRY(dlx_publish_set(x->p, items, 2, NULL, NULL, NULL));
    DLX_TEST_TRY(dlx_take(x->s, PATIENCE, &x->m));
    dlx_test_fail_expect(dlx_message_n_tensors(x->m) == 2 &&
                             strcmp(dlx_message_tensor_name(x->m, 1), "two") == 0,
                         "the names of a set");
    DLX_TEST_TRY(dlx_message_tensor(x->m, 1, &x->t[0]));
    dlx_test_fail_expect(((const int64_t *)x->t[0]->dl_tensor.data)[2] == 3, "the values of a set");
    dlx_test_cast_give_back(x);
    return 0;
}

static int see_publisher(const struct dlx_publisher_info *info, void *userdata)
{
    *(uint64_t *)userdata = info->publisher;
    return 0;
}

static int count_link(const struct dlx_link_info *info, void *userdata)
{
    (void)info;
    ++*(int *)userdata;
    return 0;
}

static int ask_everything(struct dlx_test_cast *x, uint64_t *ret_n_lost)
{
    const struct dlx_publisher_args *pa = PUBLISHER_BLOCKING(.history = 2, .depth = 8, .retain = 1);
    uint64_t id = 0;
    int n_links = 0;
    DLX_TEST_TRY(dlx_test_server_connect(&x->c[0]));
    DLX_TEST_TRY(dlx_test_server_connect(&x->c[1]));
    DLX_TEST_TRY(dlx_publisher_new(x->c[0], "calls/a", pa, &x->p));
    DLX_TEST_TRY(dlx_subscribe(x->c[1], "calls/a", SUBSCRIBE_RELIABLY, &x->s));
    DLX_TEST_TRY(dlx_test_cast_publish(x, N_SMALL, 1));
    DLX_TEST_TRY(take(x, x->s, N_SMALL, 1));
    DLX_TEST_TRY(dlx_subscribe(x->c[1], "calls/*", SUBSCRIBE(.history = 1), &x->pattern));
    DLX_TEST_TRY(take(x, x->pattern, N_SMALL, 1));
    DLX_TEST_TRY(dlx_test_cast_publish(x, N_LARGE, 2));
    DLX_TEST_TRY(take(x, x->s, N_LARGE, 2));
    DLX_TEST_TRY(take(x, x->pattern, N_LARGE, 2));
    DLX_TEST_TRY(publish_two(x));
    DLX_TEST_TRY(dlx_list_publishers(x->c[1], "calls/*", see_publisher, &id));
    DLX_TEST_TRY(dlx_list_links(x->c[1], id, count_link, &n_links));
    dlx_test_fail_expect(n_links == 2, "the links");
    x->pattern = dlx_subscription_unref(x->pattern);
    DLX_TEST_TRY(dlx_test_cast_publish(x, N_SMALL, 3));
    DLX_TEST_TRY(take(x, x->s, N_SMALL, 3));
    x->p = dlx_publisher_unref(x->p);
    DLX_TEST_TRY(dlx_get(x->c[0], "calls/a", 0, &x->m)); /* EMPTY: the daemon could not keep it */
    dlx_test_cast_check(x, N_SMALL, 3);
    DLX_TEST_TRY(dlx_drop_retained(x->c[0], "calls/a"));
    /* The client connects again, if need be. */
    DLX_TEST_TRY(dlx_list_publishers(x->c[1], "calls/a", see_publisher, &id));
    *ret_n_lost = atomic_load(&x->c[0]->epoch) + atomic_load(&x->c[1]->epoch);
    return 0;
}

static int tell_everything(int who, struct dlx_test_fail *fail)
{
    return dlx_test_server_tell(ask_everything, who, fail);
}

static void name_of(char ret[16], int i)
{
    (void)snprintf(ret, 16, "tensor.%d", i);
}

/* As many tensors as there is a table of names for, of more dimensions than lie in a ring entry,
 * one word each; the last is large. */
static int publish_own_set(struct dlx_test_cast *x)
{
    static const int64_t ones[N_DIMS] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, large[] = {5000};
    static const struct dlx_bytes meta = {.data = "meta", .size = 4};
    struct dlx_tensor_spec specs[DLX_TEST_CAST_TENSORS];
    struct dlx_item items[DLX_TEST_CAST_TENSORS];
    char names[DLX_TEST_CAST_TENSORS][16];
    for (int i = 0; i < DLX_TEST_CAST_TENSORS; i++)
        specs[i] = i < DLX_TEST_CAST_TENSORS - 1 ? dlx_test_cast_spec(N_DIMS, ones)
                                                 : dlx_test_cast_spec(1, large);
    int r = dlx_alloc_set(x->p, specs, DLX_TEST_CAST_TENSORS, x->t);
    for (int i = 0; r < 0 && i < DLX_TEST_CAST_TENSORS; i++)
        dlx_test_fail_expect(!x->t[i], "a tensor of a set that there is not");
    DLX_TEST_TRY(r);
    for (int i = 0; i < DLX_TEST_CAST_TENSORS; i++) {
        name_of(names[i], i);
        items[i] = (struct dlx_item){.name = names[i], .tensor = x->t[i]};
        *(int64_t *)x->t[i]->dl_tensor.data = i;
    }
    DLX_TEST_TRY(dlx_publish_set(x->p, items, DLX_TEST_CAST_TENSORS, &meta, NULL, NULL));
    memset(x->t, 0, sizeof x->t);
    return 0;
}

static int make_private(struct dlx_test_cast *x, uint32_t i, size_t at)
{
    x->t[at]->deleter(x->t[at]);
    x->t[at] = NULL;
    return dlx_message_tensor_private(x->m, i, &x->t[at]);
}

static int use_set(struct dlx_test_cast *x)
{
    DLX_TEST_TRY(dlx_take(x->s, PATIENCE, &x->m));
    for (int i = 0; i < DLX_TEST_CAST_TENSORS; i++) {
        char name[16];
        uint32_t at;
        name_of(name, i);
        DLX_TEST_TRY(dlx_message_tensor_find(x->m, name, &at));
        DLX_TEST_TRY(dlx_message_tensor(x->m, at, &x->t[i]));
        const DLTensor *t = &x->t[i]->dl_tensor;
        dlx_test_fail_expect(*(const int64_t *)t->data == i, "a value of a set");
        dlx_test_fail_expect(t->ndim == (i < DLX_TEST_CAST_TENSORS - 1 ? N_DIMS : 1),
                             "its dimensions");
    }
    DLX_TEST_TRY(dlx_message_tensor_legacy(x->m, DLX_TEST_CAST_TENSORS - 1, true, &x->legacy));
    DLX_TEST_TRY(make_private(x, DLX_TEST_CAST_TENSORS - 1, 0));
    int64_t *mine = x->t[0]->dl_tensor.data;
    dlx_test_fail_expect(*mine == DLX_TEST_CAST_TENSORS - 1, "a value of a private copy");
    *mine = -1;
    dlx_test_fail_expect(*(const int64_t *)x->legacy->dl_tensor.data == DLX_TEST_CAST_TENSORS - 1,
                         "a value that was written");
    DLX_TEST_TRY(make_private(x, 1, 1));
    dlx_test_cast_give_back(x);
    return 0;
}

/* Takes `n` messages that have this value there. */
static int take_values(struct dlx_test_cast *x, int n, int at, int64_t value)
{
    for (int i = 0; i < n; i++) {
        DLX_TEST_TRY(dlx_take(x->s, PATIENCE, &x->m));
        const DLTensor *t = dlx_message_tensor_peek(x->m, 0);
        dlx_test_fail_expect(((const int64_t *)t->data)[at] == value, "a value that was published");
        x->m = dlx_message_unref(x->m);
    }
    return 0;
}

/* Memory of another library, every other column of it: copied. */
static int publish_others(struct dlx_test_cast *x)
{
    static int64_t values[4][6], shape[] = {4, 3}, strides[] = {6, 2};
    DLManagedTensorVersioned one = callers(values[0], 2, shape, strides), two = one;
    DLManagedTensor legacy = {.dl_tensor = one.dl_tensor};
    const struct dlx_item items[] = {{"one", &one}, {"two", &two}};
    values[3][4] = 77;
    DLX_TEST_TRY(dlx_publish(x->p, &one, NULL, NULL));
    DLX_TEST_TRY(dlx_publish_legacy(x->p, &legacy, NULL, NULL));
    DLX_TEST_TRY(dlx_publish_set(x->p, items, 2, NULL, NULL, NULL));
    return take_values(x, 3, 11, 77);
}

/* A tensor that stays the user's. */
static int publish_shared(struct dlx_test_cast *x)
{
    const int64_t n = 10;
    const struct dlx_tensor_spec spec = dlx_test_cast_spec(1, &n);
    DLX_TEST_TRY(dlx_alloc(x->p, &spec, &x->t[0]));
    *(int64_t *)x->t[0]->dl_tensor.data = 5;
    DLX_TEST_TRY(dlx_publish(x->p, x->t[0], PUBLISH(.share = true), NULL));
    DLX_TEST_TRY(dlx_publish(x->p, x->t[0], PUBLISH(.share = true), NULL));
    DLX_TEST_TRY(take_values(x, 2, 0, 5));
    dlx_test_cast_give_back(x);
    return 0;
}

/* A message that the program's own poll() waits for. */
static int poll_for_one(struct dlx_test_cast *x)
{
    int fd = dlx_subscription_fd(x->s);
    DLX_TEST_TRY(fd);
    for (int round = 0; round < 2; round++) {
        int r = dlx_take(x->s, 0, &x->m);
        if (r < 0 && r != DLX_E_EMPTY)
            return r;
        dlx_test_fail_expect(r < 0, "no message before one is published");
        dlx_test_cast_give_back(x);
        DLX_TEST_TRY(publish_own_set(x));
        struct pollfd p = {.fd = fd, .events = POLLIN};
        while ((r = dlx_take(x->s, 0, &x->m)) == DLX_E_EMPTY)
            (void)poll(&p, 1, 100);
        DLX_TEST_TRY(r);
        dlx_test_cast_give_back(x);
    }
    return 0;
}

static int use_messages(struct dlx_test_cast *x)
{
    DLX_TEST_TRY(publish_own_set(x));
    DLX_TEST_TRY(use_set(x));
    DLX_TEST_TRY(publish_others(x));
    DLX_TEST_TRY(publish_shared(x));
    return poll_for_one(x);
}

/* The same publisher goes on. */
static int tell_of_messages(int kind, struct dlx_test_fail *fail)
{
    auto_pair pair = dlx_test_pair_make(PUBLISHER_BLOCKING(.history = 2),
                                        SUBSCRIBE(.reliable = true, .max_held = 4));
    struct dlx_test_cast x = {.p = pair.p, .s = pair.s};
    (void)kind;
    dlx_test_fail(fail);
    int r = dlx_test_fail_say(use_messages(&x));
    dlx_test_cast_give_back(&x);
    dlx_test_fail(NULL);
    auto_subscription *s = dlx_test_stream_subscribe(pair.c, "test/a", NULL);
    pair.s = dlx_subscription_unref(pair.s); /* what it has not taken would be waited for */
    dlx_test_stream_publish(pair.p, 10, 1);
    dlx_test_stream_expect(s, 10, 1);
    return r;
}

/* A block kept each time would need another arena. More dimensions than a block has room for. */
enum { N_AGAIN = 40, N_WORDS = 8192 };
enum { ALLOC, ALLOC_SET, ALLOC_TWO_KINDS, COPY, PUBLISH_SET, SHARE };

static int64_t shape_of_many[N_DIMS] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, N_WORDS};

static int alloc_and_drop(struct dlx_publisher *p, const struct dlx_tensor_spec *specs, uint32_t n)
{
    DLManagedTensorVersioned *t[3] = {NULL};
    DLX_TEST_TRY(n == 1 ? dlx_alloc(p, specs, t) : dlx_alloc_set(p, specs, n, t));
    for (uint32_t i = 0; i < n; i++)
        t[i]->deleter(t[i]);
    return 0;
}

static int use_publisher(int kind, struct dlx_publisher *p, int32_t ndim)
{
    static int64_t words[N_WORDS];
    const struct dlx_tensor_spec flat = dlx_test_cast_spec(1, &shape_of_many[N_DIMS - 1]),
                                 spec = dlx_test_cast_spec(ndim, &shape_of_many[N_DIMS - ndim]),
                                 specs[] = {spec, spec, spec}, two_kinds[] = {flat, spec};
    const struct dlx_publish_args share = {.size = sizeof share, .share = true};
    DLManagedTensorVersioned one = callers(words, N_DIMS, shape_of_many, NULL), two = one;
    DLManagedTensorVersioned *own = NULL;
    if (kind == ALLOC || kind == ALLOC_SET)
        return alloc_and_drop(p, specs, kind == ALLOC ? 1 : 3);
    if (kind == ALLOC_TWO_KINDS) /* the second one fails: the first one is given back */
        return alloc_and_drop(p, two_kinds, 2);
    if (kind == COPY)
        return dlx_publish(p, &one, NULL, NULL);
    DLX_TEST_TRY(dlx_alloc(p, &spec, &own));
    const struct dlx_item items[] = {{"own", own}, {"one", &one}, {"two", &two}};
    int r = kind == SHARE ? dlx_publish(p, own, &share, NULL)
                          : dlx_publish_set(p, items, 3, NULL, NULL, NULL);
    if (kind == SHARE || r < 0)
        own->deleter(own);
    return r;
}

static int use_again_and_again(int kind, struct dlx_test_fail *fail)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    int r = 0;
    for (int i = 0; i < N_AGAIN; i++) /* until no call needs another arena */
        ok(use_publisher(kind, x.p, 1));
    const uint64_t bytes = dlx_test_stream_stats(x.p).arena_bytes;
    for (int i = 0; i < N_AGAIN; i++) {
        if (fail)
            fail->n_calls = 0;
        dlx_test_fail(fail);
        r = dlx_test_fail_say(use_publisher(kind, x.p, N_DIMS));
        dlx_test_fail(NULL);
    }
    dlx_test_fail_expect(dlx_test_stream_stats(x.p).arena_bytes == bytes, "no more memory");
    return r;
}

static const struct dlx_test_fail_story stories[] = {
    {"the daemon", tell_everything, DLX_TEST_DAEMON_FAILS, .n_calls = 600, .n_errors = 21},
    {"the library", tell_everything, DLX_TEST_LIBRARY_FAILS, .n_calls = 600, .n_errors = 21},
    {"messages", tell_of_messages, 0, .n_calls = 200, .n_errors = 21},
    {"dlx_alloc", use_again_and_again, ALLOC, .n_calls = 1, .n_errors = 1},
    {"dlx_alloc_set", use_again_and_again, ALLOC_SET, .n_calls = 1, .n_errors = 1},
    {"a set of two kinds", use_again_and_again, ALLOC_TWO_KINDS, .n_calls = 1, .n_errors = 1},
    {"a copy", use_again_and_again, COPY, .n_calls = 0},
    {"dlx_publish_set", use_again_and_again, PUBLISH_SET, .n_calls = 4, .n_errors = 1},
    {"a tensor that is shared", use_again_and_again, SHARE, .n_calls = 1, .n_errors = 1},
};

LOOP_TEST(each_call_fails_once, 0, DLX_ARRAY_SIZE(stories))
{
    dlx_test_fail_each(&stories[_i]);
}

int main(void)
{
    return dlx_test_run_case(dlx_test_server_case("fails"));
}
