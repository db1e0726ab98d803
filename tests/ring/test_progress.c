/* SPDX-License-Identifier: Apache-2.0 */
/* How many messages a subscriber has lost and has yet to take, by words that may lie. */

#include "ring/layout.h"
#include "tests/harness/run.h"

#define HEAD_MAX (DLX_SHM_MOVED - 1)

static const struct {
    uint64_t passed, oldest, head, gone, behind;
} progress[] = {
    {0, 1, 0, 0, 0}, /* nothing was published */
    {0, 1, 3, 0, 3}, /* everything is there */
    {3, 1, 3, 0, 0},
    {0, 485, 500, 484, 16}, /* it has taken nothing, and the depth is 16 */
    {484, 485, 500, 0, 16}, /* it has noticed that */
    {483, 485, 500, 1, 16},
    {490, 485, 500, 0, 10},
    {500, 501, 500, 0, 0},
    {499, 501, 500, 1, 0}, /* nothing is kept */
    {2, 9, 5, 3, 0},       /* an old block: its publisher goes on in another one */
    {5, 9, 5, 0, 0},
    {7, 9, 5, 0, 0}, /* the cursor is ahead: head may be a batch late */
    {0, 0, 3, 0, 3}, /* lies */
    {UINT64_MAX, 3, 5, 0, 0},
    {0, UINT64_MAX, 5, 5, 0},
    {0, UINT64_MAX, UINT64_MAX, HEAD_MAX, 0},
    {0, 0, UINT64_MAX, 0, HEAD_MAX},
    {1, 3, UINT64_MAX, 1, HEAD_MAX - 2},
    {UINT64_MAX, UINT64_MAX, UINT64_MAX, 0, 0},
};

LOOP_TEST(progress_says_how_many_are_gone_and_left, 0, DLX_ARRAY_SIZE(progress))
{
    struct dlx_shm_progress got =
        dlx_shm_progress(progress[_i].passed, progress[_i].oldest, progress[_i].head);
    ck_assert_uint_eq(got.gone, progress[_i].gone);
    ck_assert_uint_eq(got.behind, progress[_i].behind);
}

static const struct {
    struct dlx_shm_misses misses;
    uint64_t n, n_latest, counted;
} misses[] = {
    {{.cursor = 5, .skipped = 1, .lost = 2}, 2, 1, 5},
    /* The reader is about to pass 8, and counts what it misses before. */
    {{.cursor = 5, .skipped = 1, .lost = 2, .passing = 8, .missed = 5}, 5, 5, 8},
    {{.cursor = 5, .skipped = 1, .lost = 2, .passing = 5, .missed = 9}, 2, 1, 5}, /* it did */
    {{.cursor = 6, .skipped = 1, .lost = 2, .passing = 5, .missed = 9}, 2, 1, 6},
    /* Another link has its turn. */
    {{.cursor = 0, .passing = UINT64_MAX, .missed = 3}, 3, 3, UINT64_MAX},
    {{.cursor = UINT64_MAX, .lost = 4, .passing = UINT64_MAX}, 4, 0, UINT64_MAX}, /* it has left */
};

LOOP_TEST(a_link_page_says_how_many_were_missed, 0, DLX_ARRAY_SIZE(misses))
{
    const struct dlx_shm_misses *m = &misses[_i].misses;
    ck_assert_uint_eq(dlx_shm_misses_n(m, false), misses[_i].n);
    ck_assert_uint_eq(dlx_shm_misses_n(m, true), misses[_i].n_latest);
    ck_assert_uint_eq(dlx_shm_misses_counted(m), misses[_i].counted);
    ck_assert(dlx_shm_misses_agree(m, m));
}

int main(void)
{
    return dlx_test_run_case(tcase_create("progress"));
}
