/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What is done with messages once a stream runs, each time with one call of the C library that
 * fails: sets with tensors of many dimensions, others' tensors, names to be found, tensors of
 * several kinds taken out of a message, a larger block. Who asked is told in words, or does not
 * notice; values are right, nothing is left, and the same publisher goes on.
 */

#include "client/publish/publisher.h"
#include "tests/fail/harness_fail.h"
#include "tests/harness/stream.h"
#include <poll.h>
#include <stdio.h>
#include <string.h>

enum { N_MANY = 40, N_DIMS = 12, N_WORDS = 5000 };

/* ---- the story: no ck_ in here, as calls fail ------------------------------------------------ */

struct cast {
    struct dlx_test_pair pair;
    struct dlx_message *m;
    DLManagedTensorVersioned *t[N_MANY];
    DLManagedTensor *legacy;
    const char *wrong; /* what was not as promised, though every call went well */
};

static void expect(struct cast *x, bool good, const char *what)
{
    if (!good && !x->wrong)
        x->wrong = what;
}

static void give_back(struct cast *x)
{
    for (size_t i = 0; i < N_MANY; i++) {
        if (x->t[i])
            x->t[i]->deleter(x->t[i]);
        x->t[i] = NULL;
    }
    if (x->legacy)
        x->legacy->deleter(x->legacy);
    x->legacy = NULL;
    x->m = dlx_message_unref(x->m);
}

static void name_of(char ret[16], int i)
{
    (void)snprintf(ret, 16, "tensor.%d", i);
}

/* As many tensors as there is a table of names for, of more dimensions than lie in a ring entry,
 * one word each; the last is large. */
static int publish_own_set(struct cast *x)
{
    static int64_t ones[N_DIMS] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    static int64_t large[] = {N_WORDS};
    static const struct dlx_bytes meta = {.data = "meta", .size = 4};
    struct dlx_tensor_spec specs[N_MANY];
    struct dlx_item items[N_MANY];
    char names[N_MANY][16];
    for (int i = 0; i < N_MANY; i++)
        specs[i] = (struct dlx_tensor_spec){.size = sizeof specs[i],
                                            .dtype = {kDLInt, 64, 1},
                                            .ndim = i < N_MANY - 1 ? N_DIMS : 1,
                                            .shape = i < N_MANY - 1 ? ones : large};
    int r = dlx_alloc_set(x->pair.p, specs, N_MANY, x->t);
    for (int i = 0; r < 0 && i < N_MANY; i++)
        expect(x, !x->t[i], "a tensor of a set that there is not");
    DLX_TEST_TRY(r);
    for (int i = 0; i < N_MANY; i++) {
        name_of(names[i], i);
        items[i] = (struct dlx_item){.name = names[i], .tensor = x->t[i]};
        *(int64_t *)x->t[i]->dl_tensor.data = i;
    }
    DLX_TEST_TRY(dlx_publish_set(x->pair.p, items, N_MANY, &meta, NULL));
    memset(x->t, 0, sizeof x->t);
    return 0;
}

static int use_set(struct cast *x)
{
    DLX_TEST_TRY(dlx_take(x->pair.s, PATIENCE, &x->m));
    for (int i = 0; i < N_MANY; i++) {
        char name[16];
        uint32_t at;
        name_of(name, i);
        DLX_TEST_TRY(dlx_message_find(x->m, name, &at));
        DLX_TEST_TRY(dlx_message_tensor(x->m, at, &x->t[i]));
        expect(x, *(const int64_t *)x->t[i]->dl_tensor.data == i, "a value of a set");
        expect(x, x->t[i]->dl_tensor.ndim == (i < N_MANY - 1 ? N_DIMS : 1), "its dimensions");
    }
    DLX_TEST_TRY(dlx_message_tensor_legacy(x->m, N_MANY - 1, true, &x->legacy));
    x->t[0]->deleter(x->t[0]);
    x->t[0] = NULL;
    DLX_TEST_TRY(dlx_message_private(x->m, N_MANY - 1, &x->t[0]));
    int64_t *mine = x->t[0]->dl_tensor.data;
    expect(x, *mine == N_MANY - 1, "a value of a private copy");
    *mine = -1;
    expect(x, *(const int64_t *)x->legacy->dl_tensor.data == N_MANY - 1,
           "a value that was written");
    x->t[1]->deleter(x->t[1]);
    x->t[1] = NULL;
    DLX_TEST_TRY(dlx_message_private(x->m, 1, &x->t[1]));
    give_back(x);
    return 0;
}

/* Somebody else's memory, every other column of it: copied. */
static int publish_others(struct cast *x)
{
    static int64_t values[4][6], shape[] = {4, 3}, strides[] = {6, 2};
    DLManagedTensorVersioned one = {.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION},
                                    .dl_tensor = {.data = values,
                                                  .device = {kDLCPU, 0},
                                                  .ndim = 2,
                                                  .dtype = {kDLInt, 64, 1},
                                                  .shape = shape,
                                                  .strides = strides}},
                             two = one;
    DLManagedTensor legacy = {.dl_tensor = one.dl_tensor};
    const struct dlx_item items[] = {{"one", &one}, {"two", &two}};
    values[3][4] = 77;
    DLX_TEST_TRY(dlx_publish(x->pair.p, &one, NULL));
    DLX_TEST_TRY(dlx_publish_legacy(x->pair.p, &legacy, NULL));
    DLX_TEST_TRY(dlx_publish_set(x->pair.p, items, 2, NULL, NULL));
    for (int i = 0; i < 3; i++) {
        DLX_TEST_TRY(dlx_take(x->pair.s, PATIENCE, &x->m));
        const DLTensor *t = dlx_message_peek(x->m, 0);
        expect(x, ((const int64_t *)t->data)[11] == 77, "a value that was copied");
        give_back(x);
    }
    return 0;
}

/* A tensor that stays the user's. */
static int publish_shared(struct cast *x)
{
    int64_t n = 10;
    const struct dlx_tensor_spec spec = {
        .size = sizeof spec, .dtype = {kDLInt, 64, 1}, .ndim = 1, .shape = &n};
    const struct dlx_publish_args share = {.size = sizeof share, .share = true};
    DLX_TEST_TRY(dlx_alloc(x->pair.p, &spec, &x->t[0]));
    *(int64_t *)x->t[0]->dl_tensor.data = 5;
    DLX_TEST_TRY(dlx_publish(x->pair.p, x->t[0], &share));
    DLX_TEST_TRY(dlx_publish(x->pair.p, x->t[0], &share));
    for (int i = 0; i < 2; i++) {
        DLX_TEST_TRY(dlx_take(x->pair.s, PATIENCE, &x->m));
        expect(x, *(const int64_t *)dlx_message_peek(x->m, 0)->data == 5, "a value that is shared");
        x->m = dlx_message_unref(x->m);
    }
    give_back(x);
    return 0;
}

/* What is to be waited for by somebody's own poll(). */
static int poll_for_one(struct cast *x)
{
    int fd = dlx_subscription_fd(x->pair.s);
    DLX_TEST_TRY(fd);
    for (int round = 0; round < 2; round++) {
        int r = dlx_take(x->pair.s, 0, &x->m);
        if (r < 0 && r != DLX_E_EMPTY)
            return r;
        if (r == 0)
            expect(x, false, "a message that nobody published");
        give_back(x);
        DLX_TEST_TRY(publish_own_set(x));
        struct pollfd p = {.fd = fd, .events = POLLIN};
        while ((r = dlx_take(x->pair.s, 0, &x->m)) == DLX_E_EMPTY)
            (void)poll(&p, 1, 100);
        DLX_TEST_TRY(r);
        give_back(x);
    }
    return 0;
}

static int (*const parts[])(struct cast *x) = {publish_own_set, use_set, publish_others,
                                               publish_shared, poll_for_one};

/* Returns what tell() did; `ret_words` are the library's. */
static int tell(struct cast *x, struct dlx_test_fail *fail, char ret_words[256])
{
    int r = 0;
    dlx_test_fail(fail);
    for (size_t i = 0; r == 0 && i < DLX_ARRAY_SIZE(parts); i++)
        r = parts[i](x);
    (void)snprintf(ret_words, 256, "%s", r < 0 ? dlx_client_errmsg(NULL) : "");
    give_back(x);
    dlx_test_fail(NULL);
    return r;
}

/* ---- all ------------------------------------------------------------------------------------- */

static struct cast make(void)
{
    const struct dlx_publisher_args pa = {
        .size = sizeof pa, .history = 2, .on_full = DLX_ON_FULL_BLOCK};
    const struct dlx_subscribe_args sa = {.size = sizeof sa, .reliable = true, .max_held = 4};
    return (struct cast){.pair = dlx_test_pair_make(&pa, &sa)};
}

/* That one call failed is nobody's lie, and no reason to wait until time is over. */
static bool is_honest(int code)
{
    return code != DLX_E_TIMEOUT && code != DLX_E_PROTOCOL && code != DLX_E_BAD_PEER &&
           code != DLX_E_INVALID && code != DLX_E_PUBLISHER_NOT_RESPONDING;
}

TEST(a_call_fails_once_the_stream_runs)
{
    struct dlx_test_fail fail = {.at = 0};
    char words[256];
    size_t n_failed = 0;
    struct cast x = make();
    ok(tell(&x, NULL, words));
    dlx_test_pair_end(&x.pair);
    while (dlx_test_fail_next(&fail)) {
        x = make();
        int r = tell(&x, &fail, words);
        size_t at = atomic_exchange(&fail.at, 0);
        if (r < 0)
            ck_assert_msg(is_honest(r) && *words, "call %zu (%s), way %zu: %s: %s", at, fail.call,
                          fail.way, dlx_strerror(r), words);
        ck_assert_msg(!x.wrong, "call %zu (%s), way %zu: %s", at, fail.call, fail.way, x.wrong);
        n_failed += r < 0;
        /* The same publisher goes on. */
        struct dlx_subscription *s = dlx_test_stream_subscribe(x.pair.c, "test/a", NULL);
        x.pair.s = dlx_subscription_unref(x.pair.s); /* what it has not taken would be waited for */
        dlx_test_stream_publish(x.pair.p, 10, (int64_t)at);
        dlx_test_stream_expect(s, 10, (int64_t)at);
        dlx_subscription_unref(s);
        dlx_test_pair_end(&x.pair);
        atomic_store(&fail.at, at);
    }
    ck_assert_uint_gt(n_failed, 20);
}

int main(void)
{
    return dlx_test_run_case(dlx_test_stream_case("sets_fails"));
}
