/* SPDX-License-Identifier: Apache-2.0 */

/* In which arena blocks are put, and when empty arenas go: memory comes back by whole arenas
 * alone. */

#include "client/heap/arena.h"
#include "tests/harness/random.h"
#include "tests/unit/harness_heap.h"
#include <math.h>

#define KIB    UINT64_C(1024)
#define MIB    (1024 * KIB)
#define WINDOW 1000

static uint64_t now; /* the number of the newest message */

/* The bytes that the last publish() added to the heap, and dropped for that. */
static uint64_t grown, dropped;

static uint64_t drop_excess(uint64_t size)
{
    uint64_t before = dlx__heap_bytes(heap);
    for (uint32_t id; (id = dlx__heap_find_excess(heap, size, now, WINDOW));)
        dlx__heap_drop(heap, id);
    return before - dlx__heap_bytes(heap);
}

/* As a publisher does it. */
static struct dlx_block *publish(uint64_t size)
{
    struct dlx_block *block;
    now++;
    dropped = grown = 0;
    int r = dlx__heap_take(heap, size, &block);
    if (r == DLX_E_FULL) {
        grown = dlx__heap_growth(heap, size);
        dropped = drop_excess(grown);
        add_arena(grown);
        r = dlx__heap_take(heap, size, &block);
    }
    if (r == DLX_E_FULL) {
        ck_assert(!dlx__heap_put_anywhere(heap, true));
        r = dlx__heap_take(heap, size, &block);
        ck_assert(dlx__heap_put_anywhere(heap, false));
    }
    ck_assert_int_eq(r, 0);
    return block;
}

LOOP_TEST(a_large_block_has_an_arena_of_its_own, 0, 2)
{
    open_heap(_i == 1);
    ck_assert_uint_eq(dlx__heap_growth(heap, 5 * MIB + 1), 5 * MIB + 4096);
    add_arena(5 * MIB);
    struct dlx_block *large = take(4 * MIB);
    /* Nothing else goes there, so that all of the arena is free when it is. */
    ck_assert(!fits(256));
    ck_assert(!fits(MIB));
    add_arena(dlx__heap_growth(heap, 256));
    struct dlx_block *small = take(256);
    ck_assert_uint_eq(dlx__block_arena_id(small), 2);
    give(large);
    ck_assert_uint_eq(dlx__heap_find_any_empty(heap), 1);
    dlx__heap_drop(heap, 1);
    ck_assert_uint_eq(dlx__heap_find_any_empty(heap), 0);
    give(small);
}

TEST(a_large_block_does_not_join_small_ones)
{
    add_arena(2 * MIB);
    ck_assert(fits(2 * MIB));
    ck_assert(!fits(3 * MIB / 2)); /* a third of that would be wasted */
    ck_assert(!dlx__heap_put_anywhere(heap, true));
    struct dlx_block *small = take(256);
    ck_assert(dlx__heap_put_anywhere(heap, false));
    ck_assert(!fits(MIB));
    ck_assert(fits(MIB - 256));
    /* Unless there is nothing else, and for what comes and goes together. */
    ck_assert(!dlx__heap_put_anywhere(heap, true));
    ck_assert(fits(MIB));
    ck_assert(dlx__heap_put_anywhere(heap, false));
    give(small);
}

/* Sizes that change a little do not take memory from the kernel for each message. */
TEST(an_arena_that_is_little_too_large_is_used_again)
{
    add_arena(10 * MIB);
    ck_assert(fits(10 * MIB));
    ck_assert(fits(8 * MIB));
    ck_assert(!fits(7 * MIB));
    ck_assert(!fits(10 * MIB + 1));
}

/* Each arena is a mapping in every reader. */
TEST(not_all_blocks_are_large)
{
    static struct dlx_block *blocks[6000];
    size_t n = 0;
    for (; n < DLX_ARRAY_SIZE(blocks); n++)
        blocks[n] = publish(MIB);
    ck_assert_uint_ge(dlx__heap_n_arenas(heap), 256);
    ck_assert_uint_le(dlx__heap_n_arenas(heap), 400);
    while (n-- > 0)
        give(blocks[n]);
}

TEST(empty_arenas_go_when_there_are_too_many)
{
    for (uint64_t size = 10; size <= 50; size += 10) {
        struct dlx_block *a = publish(size * MIB);
        ck_assert_uint_eq(grown, size * MIB);
        /* 10, 20 and 30 MiB are not too much for a publisher that needs 30. */
        ck_assert_uint_eq(dropped > 0, size > 30);
        ck_assert_uint_le(dlx__heap_bytes(heap), (size + 32) * MIB);
        give(a);
    }
    ck_assert_uint_ge(dlx__heap_bytes(heap), 50 * MIB);
}

/* Memory that was needed a moment ago will be needed again. */
TEST(memory_needed_lately_stays)
{
    struct dlx_block *blocks[8];
    for (int i = 0; i < 8; i++)
        blocks[i] = publish(20 * MIB);
    for (int i = 0; i < 8; i++)
        give(blocks[i]);
    give(publish(5 * MIB));
    ck_assert_uint_eq(grown, 5 * MIB);
    ck_assert_uint_eq(dropped, 0); /* of 165 MiB, 160 were in use a message ago */
    now += WINDOW;                 /* in the window before, still */
    give(publish(4 * MIB - 1));
    ck_assert_uint_eq(dropped, 0);
    now += 2 * WINDOW;
    give(publish(3 * MIB - 1));
    ck_assert_uint_ge(dropped, 120 * MIB);
    ck_assert_uint_le(dlx__heap_bytes(heap), (3 + 32) * MIB);
}

/* Two sizes in turn, a few of each held: after the first messages nothing comes and nothing
 * goes. */
LOOP_TEST(a_stream_that_repeats_itself_keeps_its_arenas, 0, 2)
{
    open_heap(_i == 1);
    struct dlx_block *held[6] = {0};
    for (uint64_t i = 0; i < 10000; i++) {
        struct dlx_block **at = &held[i % DLX_ARRAY_SIZE(held)];
        give(*at);
        *at = publish((i % 3 ? 24 : 9) * MIB + 5000);
        ck_assert_uint_eq(dropped, 0);
        ck_assert(i < 6 || grown == 0);
    }
    for (size_t i = 0; i < DLX_ARRAY_SIZE(held); i++)
        give(held[i]);
}

struct load {
    uint64_t live;           /* bytes that are held */
    double log2_of_smallest; /* sizes are log-uniform */
    double log2_of_largest;
    double most;  /* memory that is there / bytes that are held, at their peaks */
    double grown; /* bytes of new arenas / bytes of messages */
};

/* bench/bench_memory.c measures the first of them with a daemon. */
static const struct load loads[] = {
    {UINT64_C(1) << 30, 12, 26, 1.15, 0.9},
    {UINT64_C(1) << 30, 23, 23.3, 1.15, 0.1}, /* 8 to 9.8 MiB: they need few new arenas */
    {UINT64_C(256) << 20, 12, 20, 1.45, 0.01},
    {UINT64_C(100) << 20, 23, 23.3, 1.4, 0.01},
};

LOOP_TEST(random_sizes_take_little_more_than_they_need, 0, (int)DLX_ARRAY_SIZE(loads))
{
    const struct load *l = &loads[_i];
    static struct dlx_block *held[20000];
    static uint64_t sizes[20000];
    size_t n_held = 0;
    uint64_t live = 0, live_peak = 0, there_peak = 0, all = 0, all_grown = 0, state = 7;
    double span = l->log2_of_largest - l->log2_of_smallest;
    for (int i = 0; i < 8000; i++) {
        uint64_t size = (uint64_t)exp2(
            l->log2_of_smallest + span * ((double)(dlx_test_splitmix64(&state) >> 11) * 0x1p-53));
        while (n_held > 0 && live + size > l->live) {
            size_t k = dlx_test_splitmix64(&state) % n_held;
            give(held[k]);
            live -= sizes[k];
            held[k] = held[--n_held];
            sizes[k] = sizes[n_held];
        }
        ck_assert_uint_lt(n_held, DLX_ARRAY_SIZE(held));
        held[n_held] = publish(size);
        sizes[n_held++] = size;
        live += size;
        if (i < 3000)
            continue;
        all += size;
        all_grown += grown;
        live_peak = DLX_MAX(live_peak, live);
        /* Readers still have what was dropped just now. */
        there_peak = DLX_MAX(there_peak, dlx__heap_bytes(heap) + dropped);
    }
    ck_assert_double_le((double)there_peak / (double)live_peak, l->most);
    ck_assert_double_le((double)all_grown / (double)all, l->grown);
    while (n_held > 0)
        give(held[--n_held]);
}

static void unmap_arena(const struct dlx_heap_kind *kind, const struct dlx_arena *arena,
                        bool is_end)
{
    (void)kind;
    (void)is_end;
    ck_assert_int_eq(munmap(arena->map, arena->size), 0);
}

/* As on a GPU, where the smallest arena is a large one of shared memory. */
static void open_gpu_heap(void)
{
    const struct dlx_heap_kind kind = {.device = {kDLCUDA, 0},
                                       .align = 256,
                                       .least = 2 * MIB,
                                       .unit = 2 * MIB,
                                       .free_arena = unmap_arena};
    uint64_t generation;
    close_heap();
    ck_assert_int_eq(dlx__fork_init(&generation), 0);
    ck_assert_int_eq(dlx__heap_new_of(&heap, generation, &kind), 0);
}

TEST(small_blocks_begin_an_empty_arena_of_the_least_size)
{
    open_gpu_heap();
    ck_assert_uint_eq(dlx__heap_growth(heap, 64), 2 * MIB);
    add_arena(2 * MIB);
    struct dlx_block *block = take(64);
    ck_assert_uint_eq(block->size, 256);
    give(block);
}

/* The smallest arena for it is nearly twice as large. */
TEST(a_large_block_takes_an_empty_arena_that_a_new_one_would_be_like)
{
    open_gpu_heap();
    ck_assert_uint_eq(dlx__heap_growth(heap, 2 * MIB + 256), 4 * MIB);
    add_arena(4 * MIB);
    for (int i = 0; i < 2; i++) {
        struct dlx_block *large = take(2 * MIB + 256);
        ck_assert(!fits(256));
        give(large);
    }
}

/* A set: its parts lie side by side in their order, however they come back. */
TEST(parts_are_cut_from_a_block_in_their_order)
{
    static const uint64_t sizes[] = {MIB, 0, 100, MIB};
    struct dlx_block *part[4], *rest;
    open_gpu_heap();
    add_arena(4 * MIB);
    for (int round = 0; round < 2; round++) {
        struct dlx_block *whole = take(2 * MIB + 256);
        for (int i = 0; i < 4; i++)
            ck_assert_int_eq(dlx__heap_cut(heap, &whole, sizes[i], &part[i]), 0);
        ck_assert_ptr_null(whole);
        ck_assert_int_eq(dlx__heap_cut(heap, &whole, 256, &rest), DLX_E_FULL);
        ck_assert_uint_eq(part[0]->offset, 0);
        ck_assert_uint_eq(part[1]->size, 0);
        ck_assert_uint_eq(part[2]->offset, MIB);
        ck_assert_uint_eq(part[2]->size, 256);
        ck_assert_uint_eq(part[3]->offset, MIB + 256);
        for (int i = 3; i >= 0; i--)
            give(part[i]);
    }
    struct dlx_block *whole = take(3 * MIB);
    ck_assert_int_eq(dlx__heap_cut(heap, &whole, 4 * MIB, &rest), DLX_E_FULL);
    ck_assert_uint_eq(whole->size, 3 * MIB);
    give(whole);
}

int main(void)
{
    return dlx_test_run_case(heap_case("fit"));
}
