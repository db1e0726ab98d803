/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A publisher's calls, again and again with the same call of the C library failing: the memory that
 * they took comes back, so that the publisher never needs more of it.
 */

#include "tests/fail/harness_fail.h"
#include "tests/harness/stream.h"

/* One block kept each time would need another arena. More dimensions than a block has room for. */
enum { N_AGAIN = 40, N_DIMS = 12, N_WORDS = 8192 };

static int64_t words[N_WORDS], shape[N_DIMS] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, N_WORDS};
static struct dlx_tensor_spec spec = {.size = sizeof spec, .dtype = {kDLInt, 64, 1}};

static void use_dims(int32_t n)
{
    spec.ndim = n;
    spec.shape = shape + N_DIMS - n;
}

/* ---- stories: no ck_ in here, as calls fail -------------------------------------------------- */

static int alloc(struct dlx_publisher *p)
{
    DLManagedTensorVersioned *t = NULL;
    DLX_TEST_TRY(dlx_alloc(p, &spec, &t));
    t->deleter(t);
    return 0;
}

static int alloc_set(struct dlx_publisher *p)
{
    const struct dlx_tensor_spec specs[] = {spec, spec, spec};
    DLManagedTensorVersioned *t[3] = {NULL};
    DLX_TEST_TRY(dlx_alloc_set(p, specs, 3, t));
    for (size_t i = 0; i < 3; i++)
        t[i]->deleter(t[i]);
    return 0;
}

/* The second one fails: the first one is given back. */
static int alloc_set_of_two_kinds(struct dlx_publisher *p)
{
    struct dlx_tensor_spec specs[] = {spec, spec};
    DLManagedTensorVersioned *t[2] = {NULL};
    specs[0].ndim = 1;
    specs[0].shape = &shape[N_DIMS - 1];
    DLX_TEST_TRY(dlx_alloc_set(p, specs, 2, t));
    for (size_t i = 0; i < 2; i++)
        t[i]->deleter(t[i]);
    return 0;
}

static DLManagedTensorVersioned callers(void)
{
    return (DLManagedTensorVersioned){.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION},
                                      .dl_tensor = {.data = words,
                                                    .device = {kDLCPU, 0},
                                                    .ndim = N_DIMS,
                                                    .dtype = {kDLInt, 64, 1},
                                                    .shape = shape}};
}

static int publish_copy(struct dlx_publisher *p)
{
    DLManagedTensorVersioned t = callers();
    return dlx_publish(p, &t, NULL);
}

static int publish_set(struct dlx_publisher *p)
{
    DLManagedTensorVersioned *own = NULL, one = callers(), two = callers();
    DLX_TEST_TRY(dlx_alloc(p, &spec, &own));
    const struct dlx_item items[] = {{"own", own}, {"one", &one}, {"two", &two}};
    int r = dlx_publish_set(p, items, 3, NULL, NULL);
    if (r < 0)
        own->deleter(own);
    return r;
}

static int publish_shared(struct dlx_publisher *p)
{
    const struct dlx_publish_args share = {.size = sizeof share, .share = true};
    DLManagedTensorVersioned *own = NULL;
    DLX_TEST_TRY(dlx_alloc(p, &spec, &own));
    int r = dlx_publish(p, own, &share);
    own->deleter(own);
    return r;
}

static const struct {
    int (*tell)(struct dlx_publisher *p);
    bool can_fail;
} stories[] = {
    {alloc, true},         {alloc_set, true},   {alloc_set_of_two_kinds, true},
    {publish_copy, false}, {publish_set, true}, {publish_shared, true},
};

static uint64_t arena_bytes(struct dlx_publisher *p)
{
    struct dlx_publisher_stats stats = {.size = sizeof stats};
    ok(dlx_publisher_get_stats(p, &stats));
    return stats.arena_bytes;
}

START_TEST(calls_that_fail_again_and_again_need_no_more_memory)
{
    struct dlx_test_pair x = dlx_test_pair_make(NULL, NULL);
    struct dlx_test_fail fail = {.at = 0};
    size_t n_failed = 0;
    use_dims(1); /* blocks without room for more, until no call needs another arena */
    for (int i = 0; i < N_AGAIN; i++)
        ok(stories[_i].tell(x.p));
    use_dims(N_DIMS);
    const uint64_t bytes = arena_bytes(x.p);
    while (dlx_test_fail_next(&fail)) {
        for (int i = 0; i < N_AGAIN; i++) {
            fail.n_calls = 0;
            dlx_test_fail(&fail);
            n_failed += stories[_i].tell(x.p) < 0;
            dlx_test_fail(NULL);
        }
        ck_assert_msg(arena_bytes(x.p) == bytes, "%s (call %zu): %llu bytes, %llu before",
                      fail.call ? fail.call : "nothing", fail.at,
                      (unsigned long long)arena_bytes(x.p), (unsigned long long)bytes);
    }
    if (stories[_i].can_fail)
        ck_assert_uint_gt(n_failed, 0);
    dlx_test_pair_end(&x);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("baseline_fails");
    TCase *tcase = dlx_test_stream_case("baseline_fails");
    tcase_add_loop_test(tcase, calls_that_fail_again_and_again_need_no_more_memory, 0,
                        sizeof stories / sizeof stories[0]);
    suite_add_tcase(suite, tcase);
    return dlx_test_run(suite);
}
