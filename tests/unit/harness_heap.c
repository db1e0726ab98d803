/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/harness_heap.h"
#include <check.h>
#include <sys/mman.h>

struct dlx_heap *dlx_test_heap_make(void)
{
    struct dlx_heap *heap;
    uint64_t generation;
    ck_assert_int_eq(dlx__fork_init(&generation), 0);
    ck_assert_int_eq(dlx__heap_new(&heap, generation, false), 0);
    return heap;
}

void dlx_test_heap_add_arena(struct dlx_heap *heap, uint32_t id, uint64_t size)
{
    void *map = mmap(NULL, size, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ck_assert_ptr_ne(map, MAP_FAILED);
    ck_assert_int_eq(dlx__heap_add(heap, id, map, size), 0);
}

struct dlx_block *dlx_test_heap_take(struct dlx_heap *heap, uint64_t size)
{
    struct dlx_block *block = NULL;
    ck_assert_int_eq(dlx__heap_take(heap, size, &block), 0);
    return block;
}

DLManagedTensorVersioned *dlx_test_heap_export(struct dlx_block *block, int64_t n)
{
    ck_assert_int_eq(dlx__block_export(block, dlx_test_u8, 1, &n, (uint64_t)n), 0);
    return &block->tensor;
}
