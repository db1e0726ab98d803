/* SPDX-License-Identifier: Apache-2.0 */

/* A publisher's payload memory, against a plain model: no two blocks overlap, everything comes
 * back. */

#include "ring/tensor.h"
#include "tests/unit/harness_heap.h"
#include "tests/harness/random.h"

static uint64_t seed;

static uint64_t random_below(uint64_t n)
{
    return (dlx_test_random(&seed) >> 20) % n;
}

static void take_all(struct dlx_block **ret, const uint64_t *sizes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ret[i] = take(sizes[i]);
}

static void give_all(struct dlx_block *const *blocks, size_t n)
{
    for (size_t i = 0; i < n; i++)
        give(blocks[i]);
}

TEST(blocks_are_aligned_and_whole)
{
    ck_assert(!fits(1));
    add_arena(65536);
    struct dlx_block *a = take(1), *b = take(257), *none = take(0);
    ck_assert_uint_eq(a->size, 256);
    ck_assert_uint_eq(b->size, 512);
    ck_assert_uint_eq(b->offset % DLX_SHM_ALIGN, 0);
    ck_assert_ptr_null(dlx__block_data(none));
    ck_assert_uint_eq(dlx__block_arena_id(none), 0);
    ck_assert_uint_eq(dlx__block_arena_id(a), 1);
    ck_assert(!fits(65536));
    ck_assert(!fits(UINT64_MAX));
    give_all((struct dlx_block *[]){a, b, none, NULL}, 4);
    ck_assert(fits(65536)); /* what was kept whole is given up when that is what it takes */
    dlx__heap_close(NULL);
}

TEST(the_block_given_back_first_is_used_next)
{
    add_arena(65536);
    struct dlx_block *a = take(1000), *b = take(1000);
    give(b);
    ck_assert_ptr_eq(take(1000), b);
    ck_assert_ptr_null(dlx__heap_next(heap));
    give(b);
    ck_assert_ptr_eq(dlx__heap_next(heap), b);
    give(a);
    ck_assert_ptr_eq(take(900), b);
    ck_assert_ptr_eq(take(1000), a);
    give(a);
    give(b);
}

/* The sizes of a state dict, and a manifest of any size. Otherwise each set gives up the blocks of
 * one size, and carves them again. */
TEST(a_few_sizes_do_not_drive_each_other_out)
{
    uint64_t sizes[] = {8192, 768, 256, 0};
    enum { N = DLX_ARRAY_SIZE(sizes) };
    for (uint64_t manifest = 1000; manifest < 3000; manifest++) {
        struct dlx_block *blocks[N];
        open_heap(false);
        add_arena(1 << 20);
        sizes[3] = manifest * DLX_SHM_ALIGN;
        take_all(blocks, sizes, N);
        give_all(blocks, N);
        dlx__heap_want_none(heap);
        for (size_t i = 0; i < N; i++)
            ck_assert_msg(dlx__heap_want(heap, sizes[i]), "%d beside a manifest of %d",
                          (int)sizes[i], (int)sizes[3]);
    }
}

/* A set that finds all its blocks given back needs no room in one piece. */
TEST(a_set_wants_as_many_blocks_as_it_has_parts)
{
    static const uint64_t sizes[] = {1000, 1000, 3000, 1000, 3000, 1000};
    struct dlx_block *blocks[DLX_ARRAY_SIZE(sizes)];
    add_arena(65536);
    take_all(blocks, sizes, DLX_ARRAY_SIZE(sizes));
    dlx__heap_want_none(heap);
    ck_assert(!dlx__heap_want(heap, 1000));
    give_all(blocks, DLX_ARRAY_SIZE(sizes));
    dlx__heap_want_none(heap);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(sizes); i++)
        ck_assert(dlx__heap_want(heap, sizes[i] - i));
    ck_assert(!dlx__heap_want(heap, 1000) && !dlx__heap_want(heap, 3000));
    ck_assert(!dlx__heap_want(heap, 2000) && !dlx__heap_want(heap, UINT64_MAX));
    ck_assert_uint_eq(dlx__heap_find_any_empty(heap), 1); /* without what was kept whole */
    dlx__heap_want_none(heap);
    ck_assert(!dlx__heap_want(heap, 1000));
}

/* In whatever order neighbours come back, they are one piece again, at the ends of an arena and
 * inside. */
TEST(neighbours_become_one_again)
{
    add_arena(16384);
    for (int order = 0; order < 256; order++) {
        int turn[4] = {order & 3, order >> 2 & 3, order >> 4 & 3, order >> 6 & 3};
        struct dlx_block *blocks[4];
        if ((1 << turn[0] | 1 << turn[1] | 1 << turn[2] | 1 << turn[3]) != 15)
            continue; /* not each of them once */
        take_all(blocks, (uint64_t[]){4096, 4096, 4096, 4096}, 4);
        ck_assert(!fits(1));
        for (int i = 0; i < 4; i++)
            give(blocks[turn[i]]);
        ck_assert(fits(16384));
    }
}

/* Or a large piece would be cut for a small block, and a large block find none. */
TEST(a_block_comes_from_the_smallest_piece_that_fits)
{
    static const uint64_t sizes[] = {8192, 256, 2048, 256, 4096, 256, 1280};
    struct dlx_block *blocks[DLX_ARRAY_SIZE(sizes)];
    add_arena(16384);
    take_all(blocks, sizes, DLX_ARRAY_SIZE(sizes));
    void *two = dlx__block_data(blocks[2]), *four = dlx__block_data(blocks[4]);
    for (int i = 0; i < 6; i += 2)
        give(blocks[i]);
    ck_assert(!fits(16384)); /* gives up what is kept whole */
    struct dlx_block *three = take(3072), *one = take(1024);
    ck_assert_ptr_eq(dlx__block_data(three), four);
    /* The rest of the 4096 is 1024, and fits better than the 2048. */
    ck_assert_ptr_eq(dlx__block_data(one), (char *)four + 3072);
    struct dlx_block *eight = take(8192), *last = take(2048); /* still in one piece */
    ck_assert_ptr_eq(dlx__block_data(last), two);
    struct dlx_block *all[] = {three, one, eight, last, blocks[1], blocks[3], blocks[5], blocks[6]};
    give_all(all, DLX_ARRAY_SIZE(all));
    ck_assert(fits(16384));
}

#define N_LIVE 64

/* Drop what no block was taken from since the last call. Returns how many bytes. */
static uint64_t trim(void)
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
    struct dlx_block *live[N_LIVE] = {0};
    uint64_t sizes[N_LIVE];
    seed = (uint64_t)_i + 1;
    for (int round = 0; round < 8000; round++) {
        uint64_t at = random_below(N_LIVE);
        if (live[at]) {
            const uint8_t *data = dlx__block_data(live[at]);
            for (uint64_t i = 0; i < sizes[at]; i += 997)
                ck_assert_uint_eq(data[i], at);
            give(live[at]);
            live[at] = NULL;
            continue;
        }
        uint64_t size = random_below(3) ? 1 + random_below(4) * 1000 : 1 + random_below(20000);
        int r = dlx__heap_take(heap, size, &live[at]);
        if (r == DLX_E_FULL) {
            uint64_t growth = dlx__heap_growth(heap, size);
            ck_assert_uint_ge(growth, size);
            ck_assert_uint_eq(growth % DLX_PAGE, 0);
            add_arena(growth);
            r = dlx__heap_take(heap, size, &live[at]);
        }
        ck_assert_int_eq(r, 0);
        ck_assert_uint_ge(live[at]->size, size);
        sizes[at] = size;
        memset(dlx__block_data(live[at]), (int)at, size);
        if (random_below(100) == 0 && dlx__heap_n_arenas(heap) > 1) {
            uint64_t bytes = dlx__heap_bytes(heap), dropped = trim();
            ck_assert_uint_eq(dlx__heap_bytes(heap), bytes - dropped);
        }
    }
    give_all(live, N_LIVE);
    /* Everything came back: all arenas but one can go. */
    (void)trim(); /* forgets what was needed before */
    (void)trim();
    ck_assert_uint_eq(dlx__heap_n_arenas(heap), 1);
}

TEST(only_what_nobody_needed_since_is_trimmed)
{
    uint64_t size = 0;
    add_arena(16384);
    add_arena(16384);
    struct dlx_block *a = take(16384), *b = take(16384);
    ck_assert_uint_eq(trim(), 0); /* both are used */
    give(b);
    ck_assert_uint_eq(trim(), 0); /* it was used since the last call */
    ck_assert(fits(16384));
    ck_assert_uint_eq(trim(), 0); /* again */
    ck_assert_uint_eq(dlx__heap_find_empty(heap, UINT64_MAX, &size), 0);
    /* As little as this is not too much. */
    ck_assert_uint_eq(dlx__heap_trim(heap, false), 0);
    ck_assert_uint_eq(dlx__heap_trim(heap, true), 16384);
    ck_assert_uint_eq(dlx__heap_find_empty(heap, 0, &size), 0);
    ck_assert_uint_eq(dlx__heap_find_empty(heap, 1, &size), dlx__block_arena_id(a) == 1 ? 2 : 1);
    ck_assert_uint_eq(size, 16384);
    ck_assert_uint_eq(trim(), 16384);
    ck_assert_uint_eq(dlx__heap_bytes(heap), 16384);
    give(a);
    (void)trim();
    (void)trim();
    ck_assert_uint_eq(dlx__heap_bytes(heap), 16384); /* the last one stays */
}

static const uint64_t wasteful_size = UINT64_C(768) << 10;

/* Arena 1 holds the first block, and has room for 63 more, arena 2 is full with the second, and
 * that is more than is needed. */
static void make_wasteful(struct dlx_block *ret_blocks[2])
{
    struct dlx_block *blocks[64];
    add_arena(64 * wasteful_size);
    ck_assert(!dlx__heap_put_anywhere(heap, true));
    for (uint32_t i = 0; i < 64; i++)
        blocks[i] = take(wasteful_size);
    ck_assert(dlx__heap_put_anywhere(heap, false));
    add_arena(wasteful_size);
    ret_blocks[0] = blocks[0];
    ret_blocks[1] = take(wasteful_size);
    give_all(&blocks[1], 63);
    (void)dlx__heap_trim(heap, true);
    (void)dlx__heap_trim(heap, true);
    ck_assert_uint_gt(dlx__heap_excess(heap, false), 0);
}

TEST(an_arena_that_is_almost_empty_is_vacated_while_there_is_too_much)
{
    struct dlx_block *blocks[3];
    uint64_t dropped;
    make_wasteful(blocks);
    ck_assert_uint_eq(dlx__heap_find_empty(heap, UINT64_MAX, &dropped), 0);
    dlx__heap_vacate(heap);
    ck_assert(!fits(wasteful_size)); /* not from arena 1 */
    add_arena(wasteful_size);
    blocks[2] = take(wasteful_size);
    ck_assert_uint_eq(dlx__block_arena_id(blocks[2]), 3);
    give(blocks[0]);
    ck_assert(!fits(wasteful_size)); /* nor its block again */
    ck_assert_uint_eq(dlx__heap_find_empty(heap, 1, &dropped), 1);
    ck_assert_uint_eq(dropped, 64 * wasteful_size);
    dlx__heap_drop(heap, 1);
    dlx__heap_vacate(heap);
    ck_assert_uint_eq(dlx__heap_excess(heap, false), 0);
    give_all(&blocks[1], 2);
}

TEST(an_arena_that_was_to_be_vacated_is_used_before_much_is_added)
{
    struct dlx_block *blocks[100];
    uint64_t added = 0;
    uint32_t n = 2;
    make_wasteful(blocks);
    dlx__heap_vacate(heap);
    ck_assert(!fits(wasteful_size));
    /* When there is no more memory, it is used at once. */
    ck_assert(!dlx__heap_put_anywhere(heap, true));
    struct dlx_block *other = take(wasteful_size);
    ck_assert_uint_eq(dlx__block_arena_id(other), 1);
    give(other);
    ck_assert(dlx__heap_put_anywhere(heap, false));
    do {
        if (dlx__heap_take(heap, wasteful_size, &blocks[n]) == DLX_E_FULL) {
            uint64_t bytes = dlx__heap_growth(heap, wasteful_size);
            add_arena(bytes);
            added += bytes;
            ck_assert_uint_le(added, 32 * wasteful_size);
            blocks[n] = take(wasteful_size);
        }
        ck_assert_uint_lt(n, 99);
    } while (dlx__block_arena_id(blocks[n++]) != 1);
    ck_assert_uint_gt(added, 0);
    while (n > 0)
        give(blocks[--n]);
}

TEST(growth_has_limits)
{
    ck_assert_uint_eq(dlx__heap_growth(heap, 1), 16384);
    ck_assert_uint_eq(dlx__heap_growth(heap, 16385), 20480);
    ck_assert_uint_eq(dlx__heap_growth(heap, DLX_SHM_ARENA_MAX), DLX_SHM_ARENA_MAX);
    ck_assert_uint_eq(dlx__heap_growth(heap, DLX_SHM_ARENA_MAX + 1), UINT64_MAX);
    ck_assert_uint_eq(dlx__heap_growth(heap, UINT64_MAX), UINT64_MAX);
}

/* Takes and exports a block at once, as dlx_alloc() does if the last one was like it. */
static struct dlx_block *export_again(DLDataType dtype, int32_t ndim, const int64_t *shape)
{
    return dlx__heap_export_again(heap, dtype, ndim, shape);
}

TEST(a_block_taken_again_is_like_the_exported_one)
{
    const int64_t n = 100, other = 101;
    add_arena(8192);
    struct dlx_block *a = take(100), *b = take(100);
    ck_assert_ptr_null(export_again(U8, 1, &n)); /* none was given back */
    export_block(a, n);
    a->tensor.dl_tensor.shape[0] = 7;
    ck_assert(!dlx__block_is_unchanged(a));
    a->is_dirty = true; /* so dlx_publish() marks it */
    dlx__block_published(a);
    give(b);
    give(take(100)); /* never exported */
    ck_assert_ptr_null(export_again(U8, 1, &n));
    ck_assert_ptr_eq(take(100), b);
    give(a);
    ck_assert_ptr_null(export_again(U8, 1, &other));
    ck_assert_ptr_null(export_again((DLDataType){kDLInt, 8, 1}, 1, &n));
    ck_assert_ptr_null(export_again(U8, 1, NULL));
    ck_assert_ptr_null(export_again(U8, 0, NULL));
    ck_assert_ptr_null(export_again(U8, -1, &n));
    ck_assert_ptr_eq(export_again(U8, 1, &n), a);
    ck_assert_int_eq(a->tensor.dl_tensor.shape[0], n);
    ck_assert(dlx__block_is_unchanged(a));
    a->tensor.deleter(&a->tensor); /* comes back by the stack */
    ck_assert_ptr_eq(export_again(U8, 1, &n), a);
    dlx__block_published(a);
    give(a);
    give(b);
}

/* Its struct was that of another block, of another size. */
TEST(a_block_that_was_never_exported_is_not_taken_again)
{
    struct dlx_block *blocks[2];
    const int64_t n = 100;
    add_arena(8192);
    take_all(blocks, (uint64_t[]){100, 100}, 2);
    for (size_t i = 0; i < 2; i++) {
        export_block(blocks[i], n);
        dlx__block_published(blocks[i]);
    }
    give_all(blocks, 2);
    ck_assert_uint_eq(dlx__heap_find_any_empty(heap), 1); /* what was kept is given up for that */
    dlx__heap_drop(heap, 1);
    add_arena(8192);
    take_all(blocks, (uint64_t[]){1000, 1000}, 2);
    give_all(blocks, 2);
    blocks[0] = take(1000); /* so that this is where it would look */
    ck_assert_ptr_null(export_again(U8, 1, &n));
    give(blocks[0]);
}

int main(void)
{
    return dlx_test_run_case(heap_case("heap"));
}
