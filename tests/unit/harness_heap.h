/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_HEAP_H
#define DLX_TESTS_HARNESS_HEAP_H

/* A publisher's payload memory without a publisher: each test has a heap. */

#include "client/heap/heap.h"
#include "tests/harness/run.h"

#define U8 ((DLDataType){kDLUInt, 8, 1})

static struct dlx_heap *heap;
static uint32_t last_arena; /* its id: they are counted from 1 */

static inline void close_heap(void)
{
    dlx__heap_close(heap);
    heap = NULL;
}

/* In the place of the one that was there. */
static inline void open_heap(bool debug)
{
    uint64_t generation;
    close_heap();
    last_arena = 0;
    ck_assert_int_eq(dlx__fork_init(&generation), 0);
    ck_assert_int_eq(dlx__heap_new(&heap, generation, debug), 0);
}

/* An arena takes memory only where it is written to. */
static inline void add_arena(uint64_t size)
{
    void *map =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ck_assert_ptr_ne(map, MAP_FAILED);
    ck_assert_int_eq(dlx__heap_add(heap, ++last_arena, map, size), 0);
}

static inline struct dlx_block *take(uint64_t size)
{
    struct dlx_block *block = NULL;
    ck_assert_int_eq(dlx__heap_take(heap, size, &block), 0);
    return block;
}

static inline void give(struct dlx_block *block)
{
    dlx__heap_give(heap, block);
}

static inline bool fits(uint64_t size)
{
    struct dlx_block *block;
    int r = dlx__heap_take(heap, size, &block);
    ck_assert(r == 0 || r == DLX_E_FULL);
    if (r == 0)
        give(block);
    return r == 0;
}

/* As n bytes. */
static inline DLManagedTensorVersioned *export_block(struct dlx_block *block, int64_t n)
{
    ck_assert_int_eq(dlx__block_export(block, U8, 1, &n, (uint64_t)n), 0);
    return &block->tensor;
}

static inline void setup_heap(void)
{
    open_heap(false);
}

static inline TCase *heap_case(const char *name)
{
    TCase *tcase = tcase_create(name);
    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, setup_heap, close_heap);
    return tcase;
}

#endif
