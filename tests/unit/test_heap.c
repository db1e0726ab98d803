/* SPDX-License-Identifier: Apache-2.0 */

/* A publisher's payload memory, against a plain model: no two blocks overlap, everything comes
 * back. */

#include "client/heap/heap.h"
#include "ring/tensor.h"
#include "tests/unit/harness_heap.h"
#include "tests/harness/random.h"
#include "tests/harness/run.h"

static uint64_t seed;

static uint64_t random_below(uint64_t n)
{
    return (dlx_test_random(&seed) >> 20) % n;
}

TEST(blocks_are_aligned_and_whole)
{
    struct dlx_heap *heap = dlx_test_heap_make();
    struct dlx_block *block;
    ck_assert_int_eq(dlx__heap_take(heap, 1, &block), DLX_E_FULL);
    dlx_test_heap_add_arena(heap, 1, 65536);
    struct dlx_block *a = dlx_test_heap_take(heap, 1), *b = dlx_test_heap_take(heap, 257),
                     *none = dlx_test_heap_take(heap, 0);
    ck_assert_uint_eq(a->size, 256);
    ck_assert_uint_eq(b->size, 512);
    ck_assert_uint_eq(b->offset % DLX_SHM_ALIGN, 0);
    ck_assert_ptr_null(dlx__block_data(none));
    ck_assert_uint_eq(dlx__block_arena_id(none), 0);
    ck_assert_uint_eq(dlx__block_arena_id(a), 1);
    ck_assert_int_eq(dlx__heap_take(heap, 65536, &block), DLX_E_FULL);
    ck_assert_int_eq(dlx__heap_take(heap, UINT64_MAX, &block), DLX_E_FULL);
    dlx__heap_give(heap, a);
    dlx__heap_give(heap, b);
    dlx__heap_give(heap, none);
    dlx__heap_give(heap, NULL);
    /* What was kept whole is given up when that is what it takes. */
    dlx__heap_give(heap, dlx_test_heap_take(heap, 65536));
    dlx__heap_close(heap);
    dlx__heap_close(NULL);
}

TEST(the_block_given_back_first_is_used_next)
{
    struct dlx_heap *heap = dlx_test_heap_make();
    dlx_test_heap_add_arena(heap, 1, 65536);
    struct dlx_block *a = dlx_test_heap_take(heap, 1000), *b = dlx_test_heap_take(heap, 1000);
    dlx__heap_give(heap, b);
    ck_assert_ptr_eq(dlx_test_heap_take(heap, 1000), b);
    ck_assert_ptr_null(dlx__heap_next(heap));
    dlx__heap_give(heap, b);
    ck_assert_ptr_eq(dlx__heap_next(heap), b);
    dlx__heap_give(heap, a);
    ck_assert_ptr_eq(dlx_test_heap_take(heap, 900), b);
    ck_assert_ptr_eq(dlx_test_heap_take(heap, 1000), a);
    dlx__heap_give(heap, a);
    dlx__heap_give(heap, b);
    dlx__heap_close(heap);
}

/* Those of a state dict, and a manifest of any size. Otherwise each set gives up the blocks of one,
 * and carves them anew. */
TEST(a_few_sizes_do_not_drive_each_other_out)
{
    uint64_t sizes[] = {8192, 768, 256, 0};
    for (uint64_t manifest = 1000; manifest < 3000; manifest++) {
        struct dlx_heap *heap = dlx_test_heap_make();
        struct dlx_block *blocks[DLX_ARRAY_SIZE(sizes)];
        dlx_test_heap_add_arena(heap, 1, 1 << 20);
        sizes[3] = manifest * DLX_SHM_ALIGN;
        for (size_t i = 0; i < DLX_ARRAY_SIZE(sizes); i++)
            blocks[i] = dlx_test_heap_take(heap, sizes[i]);
        for (size_t i = 0; i < DLX_ARRAY_SIZE(sizes); i++)
            dlx__heap_give(heap, blocks[i]);
        dlx__heap_want_none(heap);
        for (size_t i = 0; i < DLX_ARRAY_SIZE(sizes); i++)
            ck_assert_msg(dlx__heap_want(heap, sizes[i]), "%d beside a manifest of %d",
                          (int)sizes[i], (int)sizes[3]);
        dlx__heap_close(heap);
    }
}

/* A set that finds all its blocks given back needs no room in one piece. */
TEST(a_set_wants_as_many_blocks_as_it_has_parts)
{
    static const uint64_t sizes[] = {1000, 1000, 3000, 1000, 3000, 1000};
    struct dlx_heap *heap = dlx_test_heap_make();
    struct dlx_block *blocks[DLX_ARRAY_SIZE(sizes)];
    dlx_test_heap_add_arena(heap, 1, 65536);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(sizes); i++)
        blocks[i] = dlx_test_heap_take(heap, sizes[i]);
    dlx__heap_want_none(heap);
    ck_assert(!dlx__heap_want(heap, 1000));
    for (size_t i = 0; i < DLX_ARRAY_SIZE(sizes); i++)
        dlx__heap_give(heap, blocks[i]);
    dlx__heap_want_none(heap);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(sizes); i++)
        ck_assert(dlx__heap_want(heap, sizes[i] - i));
    ck_assert(!dlx__heap_want(heap, 1000) && !dlx__heap_want(heap, 3000));
    ck_assert(!dlx__heap_want(heap, 2000) && !dlx__heap_want(heap, UINT64_MAX));
    (void)dlx__heap_drop_empty(heap); /* with all that was kept whole */
    dlx__heap_want_none(heap);
    ck_assert(!dlx__heap_want(heap, 1000));
    dlx__heap_close(heap);
}

/* In whatever order neighbours come back, they are one piece again, at the ends of an arena and
 * inside. */
TEST(neighbours_become_one_again)
{
    struct dlx_heap *heap = dlx_test_heap_make();
    dlx_test_heap_add_arena(heap, 1, 16384);
    for (int order = 0; order < 256; order++) {
        int turn[4] = {order & 3, order >> 2 & 3, order >> 4 & 3, order >> 6 & 3};
        struct dlx_block *blocks[4], *none;
        if ((1 << turn[0] | 1 << turn[1] | 1 << turn[2] | 1 << turn[3]) != 15)
            continue; /* not each of them once */
        for (int i = 0; i < 4; i++)
            blocks[i] = dlx_test_heap_take(heap, 4096);
        ck_assert_int_eq(dlx__heap_take(heap, 1, &none), DLX_E_FULL);
        for (int i = 0; i < 4; i++)
            dlx__heap_give(heap, blocks[turn[i]]);
        struct dlx_block *whole = dlx_test_heap_take(heap, 16384);
        dlx__heap_give(heap, whole);
    }
    dlx__heap_close(heap);
}

/* Or a large piece would be cut for a small block, and a large block find none. */
TEST(a_block_comes_from_the_smallest_piece_that_fits)
{
    static const uint64_t sizes[] = {8192, 256,  2048,
                                     256,  4096, 256}; /* free those that are not 256 */
    struct dlx_heap *heap = dlx_test_heap_make();
    struct dlx_block *blocks[7];
    dlx_test_heap_add_arena(heap, 1, 16384);
    for (int i = 0; i < 6; i++)
        blocks[i] = dlx_test_heap_take(heap, sizes[i]);
    blocks[6] = dlx_test_heap_take(heap, 16384 - 8192 - 2048 - 4096 - 3 * 256);
    void *two = dlx__block_data(blocks[2]), *four = dlx__block_data(blocks[4]);
    for (int i = 0; i < 6; i += 2)
        dlx__heap_give(heap, blocks[i]);
    struct dlx_block *eight;
    ck_assert_int_eq(dlx__heap_take(heap, 16384, &eight),
                     DLX_E_FULL); /* gives up what is kept whole */
    struct dlx_block *three = dlx_test_heap_take(heap, 3072), *one = dlx_test_heap_take(heap, 1024);
    ck_assert_ptr_eq(dlx__block_data(three), four);
    /* What is left of the 4096 is 1024: it fits better than the 2048. */
    ck_assert_ptr_eq(dlx__block_data(one), (char *)four + 3072);
    eight = dlx_test_heap_take(heap, 8192); /* still in one piece */
    struct dlx_block *last = dlx_test_heap_take(heap, 2048);
    ck_assert_ptr_eq(dlx__block_data(last), two);
    struct dlx_block *all[] = {three, one, eight, last, blocks[1], blocks[3], blocks[5], blocks[6]};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(all); i++)
        dlx__heap_give(heap, all[i]);
    dlx__heap_give(heap, dlx_test_heap_take(heap, 16384));
    dlx__heap_close(heap);
}

#define N_LIVE 64

/* Drop what no block was taken from since the last call. Returns how many bytes. */
static uint64_t trim(struct dlx_heap *heap)
{
    uint64_t bytes = dlx__heap_trim(heap, true), dropped = 0, size;
    uint32_t id;
    while ((id = dlx__heap_find_empty(heap, bytes - dropped, &size)) != 0) {
        dlx__heap_drop(heap, id);
        dropped += size;
    }
    return dropped;
}

LOOP_TEST(random_use_keeps_blocks_apart, 0, 4)
{
    seed = (uint64_t)_i + 1;
    struct dlx_heap *heap = dlx_test_heap_make();
    struct dlx_block *live[N_LIVE] = {0};
    uint32_t n_arenas = 0;
    uint64_t sizes[N_LIVE];
    for (int round = 0; round < 8000; round++) {
        uint64_t at = random_below(N_LIVE);
        if (live[at]) {
            const uint8_t *data = dlx__block_data(live[at]);
            for (uint64_t i = 0; i < sizes[at]; i += 997)
                ck_assert_uint_eq(data[i], at);
            dlx__heap_give(heap, live[at]);
            live[at] = NULL;
            continue;
        }
        uint64_t size = random_below(3) ? 1 + random_below(4) * 1000 : 1 + random_below(20000);
        int r = dlx__heap_take(heap, size, &live[at]);
        if (r == DLX_E_FULL) {
            uint64_t growth = dlx__heap_growth(heap, size);
            ck_assert_uint_ge(growth, size);
            ck_assert_uint_eq(growth % DLX_PAGE, 0);
            dlx_test_heap_add_arena(heap, ++n_arenas, growth);
            r = dlx__heap_take(heap, size, &live[at]);
        }
        ck_assert_int_eq(r, 0);
        ck_assert_uint_ge(live[at]->size, size);
        sizes[at] = size;
        memset(dlx__block_data(live[at]), (int)at, size);
        if (random_below(100) == 0 && dlx__heap_n_arenas(heap) > 1) {
            uint64_t bytes = dlx__heap_bytes(heap);
            uint64_t dropped = trim(heap);
            ck_assert_uint_eq(dlx__heap_bytes(heap), bytes - dropped);
        }
    }
    for (int i = 0; i < N_LIVE; i++)
        dlx__heap_give(heap, live[i]);
    /* Everything came back: all arenas but one can go. */
    (void)trim(heap); /* forgets what was needed before */
    (void)trim(heap);
    ck_assert_uint_eq(dlx__heap_n_arenas(heap), 1);
    dlx__heap_close(heap);
}

TEST(only_what_nobody_needed_since_is_trimmed)
{
    struct dlx_heap *heap = dlx_test_heap_make();
    uint64_t size = 0;
    dlx_test_heap_add_arena(heap, 1, 16384);
    dlx_test_heap_add_arena(heap, 2, 16384);
    struct dlx_block *a = dlx_test_heap_take(heap, 16384), *b = dlx_test_heap_take(heap, 16384);
    ck_assert_uint_eq(trim(heap), 0); /* both are used */
    dlx__heap_give(heap, b);
    ck_assert_uint_eq(trim(heap), 0); /* it was used since the last call */
    b = dlx_test_heap_take(heap, 16384);
    dlx__heap_give(heap, b);
    ck_assert_uint_eq(trim(heap), 0); /* again */
    ck_assert_uint_eq(dlx__heap_find_empty(heap, UINT64_MAX, &size), 0);
    /* As little as this is kept unless all is to go. */
    ck_assert_uint_eq(dlx__heap_trim(heap, false), 0);
    ck_assert_uint_eq(dlx__heap_find_empty(heap, UINT64_MAX, &size), 0);
    ck_assert_uint_eq(dlx__heap_trim(heap, true), 16384);
    ck_assert_uint_eq(dlx__heap_find_empty(heap, 0, &size), 0);
    ck_assert_uint_eq(dlx__heap_find_empty(heap, 1, &size), dlx__block_arena_id(a) == 1 ? 2 : 1);
    ck_assert_uint_eq(size, 16384);
    ck_assert_uint_eq(trim(heap), 16384);
    ck_assert_uint_eq(dlx__heap_bytes(heap), 16384);
    dlx__heap_give(heap, a);
    (void)trim(heap);
    (void)trim(heap);
    ck_assert_uint_eq(dlx__heap_bytes(heap), 16384); /* the last one stays */
    dlx__heap_close(heap);
}

/* Arena 1 holds the first block, and has room for 63 more, arena 2 is full with the second, and
 * that is more than is needed. */
static struct dlx_heap *make_wasteful(struct dlx_block *ret_blocks[2], uint64_t *ret_size)
{
    struct dlx_heap *heap = dlx_test_heap_make();
    const uint64_t size = UINT64_C(768) << 10;
    struct dlx_block *blocks[64];
    dlx_test_heap_add_arena(heap, 1, 64 * size);
    ck_assert(!dlx__heap_put_anywhere(heap, true));
    for (uint32_t i = 0; i < 64; i++)
        blocks[i] = dlx_test_heap_take(heap, size);
    ck_assert(dlx__heap_put_anywhere(heap, false));
    dlx_test_heap_add_arena(heap, 2, size);
    ret_blocks[1] = dlx_test_heap_take(heap, size);
    for (uint32_t i = 1; i < 64; i++)
        dlx__heap_give(heap, blocks[i]);
    (void)dlx__heap_trim(heap, true);
    (void)dlx__heap_trim(heap, true);
    ck_assert_uint_gt(dlx__heap_excess(heap, false), 0);
    ret_blocks[0] = blocks[0];
    *ret_size = size;
    return heap;
}

TEST(an_arena_that_is_almost_empty_is_vacated_while_there_is_too_much)
{
    struct dlx_block *blocks[2], *other;
    uint64_t size, dropped;
    struct dlx_heap *heap = make_wasteful(blocks, &size);
    ck_assert_uint_eq(dlx__heap_find_empty(heap, UINT64_MAX, &dropped), 0);
    dlx__heap_vacate(heap);
    ck_assert_int_eq(dlx__heap_take(heap, size, &other), DLX_E_FULL); /* not from arena 1 */
    dlx_test_heap_add_arena(heap, 3, size);
    other = dlx_test_heap_take(heap, size);
    ck_assert_uint_eq(dlx__block_arena_id(other), 3);
    dlx__heap_give(heap, blocks[0]);
    struct dlx_block *none;
    ck_assert_int_eq(dlx__heap_take(heap, size, &none), DLX_E_FULL); /* nor its block again */
    ck_assert_uint_eq(dlx__heap_find_empty(heap, 1, &dropped), 1);
    ck_assert_uint_eq(dropped, 64 * size);
    dlx__heap_drop(heap, 1);
    dlx__heap_vacate(heap);
    ck_assert_uint_eq(dlx__heap_excess(heap, false), 0);
    dlx__heap_give(heap, blocks[1]);
    dlx__heap_give(heap, other);
    dlx__heap_close(heap);
}

TEST(an_arena_that_was_to_be_vacated_is_used_before_much_is_added)
{
    struct dlx_block *blocks[100], *other;
    uint64_t size, added = 0;
    uint32_t n = 2, id = 3;
    struct dlx_heap *heap = make_wasteful(blocks, &size);
    dlx__heap_vacate(heap);
    ck_assert_int_eq(dlx__heap_take(heap, size, &other), DLX_E_FULL);
    /* When there is no more memory, it is used at once. */
    ck_assert(!dlx__heap_put_anywhere(heap, true));
    other = dlx_test_heap_take(heap, size);
    ck_assert_uint_eq(dlx__block_arena_id(other), 1);
    dlx__heap_give(heap, other);
    ck_assert(dlx__heap_put_anywhere(heap, false));
    do {
        if (dlx__heap_take(heap, size, &blocks[n]) == DLX_E_FULL) {
            uint64_t bytes = dlx__heap_growth(heap, size);
            dlx_test_heap_add_arena(heap, id++, bytes);
            added += bytes;
            ck_assert_uint_le(added, 32 * size);
            blocks[n] = dlx_test_heap_take(heap, size);
        }
        ck_assert_uint_lt(n, 99);
    } while (dlx__block_arena_id(blocks[n++]) != 1);
    ck_assert_uint_gt(added, 0);
    while (n > 0)
        dlx__heap_give(heap, blocks[--n]);
    dlx__heap_close(heap);
}

TEST(growth_has_limits)
{
    struct dlx_heap *heap = dlx_test_heap_make();
    ck_assert_uint_eq(dlx__heap_growth(heap, 1), 16384);
    ck_assert_uint_eq(dlx__heap_growth(heap, 16385), 20480);
    ck_assert_uint_eq(dlx__heap_growth(heap, DLX_SHM_ARENA_MAX), DLX_SHM_ARENA_MAX);
    ck_assert_uint_eq(dlx__heap_growth(heap, DLX_SHM_ARENA_MAX + 1), UINT64_MAX);
    ck_assert_uint_eq(dlx__heap_growth(heap, UINT64_MAX), UINT64_MAX);
    dlx__heap_close(heap);
}

int main(void)
{
    TCase *tcase = tcase_create("heap");
    tcase_set_timeout(tcase, 60);
    return dlx_test_run_case(tcase);
}
