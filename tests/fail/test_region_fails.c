/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The life of a region, each time with one call of the C library that fails: no descriptor, no
 * mapping and no name stays, whichever step fails.
 */

#include "common/error.h"
#include "common/memory.h"
#include "tests/fail/harness_fail.h"
#include "tests/harness/fds.h"
#include "tests/harness/run.h"
#include <check.h>
#include <stdio.h>
#include <string.h>

#define SIZE (UINT64_C(3) * DLX_PAGE)

/* Shared mappings of this process, which are regions. */
static size_t count_shared_maps(void)
{
    char line[512], how[8];
    size_t n = 0;
    FILE *f = fopen("/proc/self/maps", "re");
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof line, f))
        n += sscanf(line, "%*s %7s", how) == 1 && how[3] == 's';
    (void)fclose(f);
    return n;
}

/* Both ends of one region; no ck_ in here, as calls fail. */
static int live(const struct dlx_memory *memory)
{
    int ro = -1, writer = -1;
    void *map = NULL;
    const void *read_map = NULL;
    uint64_t size = 0;
    int r = dlx__region_new(memory, "test", SIZE, &ro, &writer);
    if (r < 0)
        return r;
    r = dlx__region_populate(memory, writer, SIZE, &map); /* closes it in any case */
    if (r == 0)
        r = dlx__region_prove(memory, ro, SIZE);
    if (r == 0)
        r = dlx__region_inspect(memory, ro, &size);
    if (r == 0)
        r = borrow_dlx__region_attach(memory, ro, SIZE, &read_map);
    dlx__region_unmap(read_map, SIZE);
    dlx__region_unmap(map, SIZE);
    dlx__close(ro);
    return r;
}

static int probe(const struct dlx_memory *memory)
{
    return dlx__memory_supported(memory);
}

static int (*const stories[])(const struct dlx_memory *) = {live, probe};

START_TEST(a_region_that_fails_leaves_nothing)
{
    const struct dlx_memory *memory = dlx__memory_by_tag((uint32_t)_i / 2);
    struct dlx_test_fail fail = {.at = 0};
    size_t n_failed = 0;
    ck_assert_ptr_nonnull(memory);
    ck_assert_int_eq(stories[_i % 2](memory), 0);
    const size_t n_fds = dlx_test_fds_count(), n_maps = count_shared_maps();
    while (dlx_test_fail_next(&fail)) {
        dlx_test_fail(&fail);
        int r = stories[_i % 2](memory);
        dlx_test_fail(NULL);
        n_failed += r < 0;
        ck_assert_msg(dlx_test_fds_count() == n_fds, "%s (call %zu, way %zu): %zu descriptors",
                      fail.call, fail.at, fail.way, dlx_test_fds_count());
        ck_assert_msg(count_shared_maps() == n_maps, "%s (call %zu, way %zu): %zu mappings",
                      fail.call, fail.at, fail.way, count_shared_maps());
    }
    ck_assert_uint_gt(n_failed, 5);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("region_fails");
    TCase *tcase = tcase_create("region");
    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, a_region_that_fails_leaves_nothing, 0, 4);
    suite_add_tcase(suite, tcase);
    return dlx_test_run(suite);
}
