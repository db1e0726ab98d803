/* SPDX-License-Identifier: Apache-2.0 */

/* The debug mode of a publisher's memory: whole pages, protected while in use, writable again
 * before reuse. */

#include "client/heap/debug.h"
#include "tests/harness/maps.h"
#include "tests/harness/run.h"
#include <dlx/dlx.h>

static size_t page;

static struct dlx_heap *make_heap(uint64_t pages)
{
    struct dlx_heap *heap;
    uint64_t generation;
    page = (size_t)dlx__debug_align();
    ck_assert_int_eq(dlx__fork_init(&generation), 0);
    ck_assert_int_eq(dlx__heap_new(&heap, generation, true), 0);
    void *map = mmap(NULL, pages * page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(map, MAP_FAILED);
    ck_assert_int_eq(dlx__heap_add(heap, 1, map, pages * page), 0);
    return heap;
}

static struct dlx_block *take(struct dlx_heap *heap, uint64_t size)
{
    struct dlx_block *block = NULL;
    ck_assert_int_eq(dlx__heap_take(heap, size, &block), 0);
    return block;
}

static DLManagedTensorVersioned *export_block(struct dlx_block *block, int64_t n)
{
    ck_assert_int_eq(dlx__block_export(block, (DLDataType){kDLUInt, 8, 1}, 1, &n, (uint64_t)n), 0);
    return &block->tensor;
}

static bool is_writable(const struct dlx_block *block)
{
    uint8_t *data = dlx__block_data(block);
    bool first = !dlx_test_faults(data), last = !dlx_test_faults(data + block->size - 1);
    ck_assert_int_eq(first, last);
    return first;
}

TEST(each_block_has_whole_pages)
{
    struct dlx_heap *heap = make_heap(6);
    uint64_t rounded;
    struct dlx_block *a = take(heap, 1), *b = take(heap, page), *c = take(heap, page + 1);
    struct dlx_block *none = take(heap, 0), *full;
    ck_assert_uint_eq(a->size, page);
    ck_assert_uint_eq(b->size, page);
    ck_assert_uint_eq(c->size, 2 * page);
    ck_assert_uint_eq((uintptr_t)dlx__block_data(b) % page, 0);
    ck_assert_uint_eq((uintptr_t)dlx__block_data(c) % page, 0);
    ck_assert_int_eq(dlx__heap_take(heap, 2 * page + 1, &full), DLX_E_FULL);
    ck_assert(dlx__heap_round(heap, 1, &rounded));
    ck_assert_uint_eq(rounded, page);
    ck_assert(!dlx__heap_round(heap, UINT64_MAX, &rounded));
    ck_assert_uint_eq(dlx__heap_growth(heap, 4 * page + 1) % page, 0);
    dlx__heap_give(heap, a);
    dlx__heap_give(heap, b);
    dlx__heap_give(heap, c);
    dlx__heap_give(heap, none);
    dlx__heap_give(heap, take(heap, 6 * page));
    dlx__heap_close(heap);
}

TEST(what_is_protected_is_writable_when_it_comes_back)
{
    struct dlx_heap *heap = make_heap(8);
    struct dlx_block *blocks[4];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 4; i++)
            blocks[i] = take(heap, 2 * page - 1);
        /* The second and the last; then the third. */
        blocks[1]->next = blocks[3];
        blocks[3]->next = NULL;
        ck_assert(dlx__debug_protect(blocks[1]));
        for (int i = 0; i < 4; i++)
            ck_assert_int_eq(is_writable(blocks[i]), i % 2 == 0);
        blocks[2]->next = NULL;
        ck_assert(dlx__debug_protect(blocks[2]));
        for (int i = 0; i < 4; i++) {
            ck_assert_int_eq(is_writable(blocks[i]), i == 0);
            dlx__heap_give(heap, blocks[i]);
            for (int k = i + 1; k < 4; k++) /* and its neighbours stay as they are */
                ck_assert(!is_writable(blocks[k]));
        }
        struct dlx_block *whole = take(heap, 8 * page); /* in one piece */
        memset(dlx__block_data(whole), round, 8 * page);
        dlx__heap_give(heap, whole);
    }
    dlx__heap_close(heap);
}

TEST(a_shared_block_is_protected_to_its_last_use)
{
    struct dlx_heap *heap = make_heap(1);
    struct dlx_block *block = take(heap, 8), *refs[2], *empty = take(heap, 0);
    DLManagedTensorVersioned *tensor = export_block(block, 8);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(dlx__block_share(block, &refs[i]), 0);
        refs[i]->next = empty;
        ck_assert(dlx__debug_protect(refs[i]));
    }
    dlx__heap_give(heap, refs[0]);
    ck_assert(!is_writable(block));
    dlx__heap_give(heap, refs[1]);
    ck_assert(!is_writable(block));
    tensor->deleter(tensor);
    ck_assert(!is_writable(block)); /* not seen yet by the publisher's thread */
    ck_assert_ptr_eq(take(heap, page), block);
    ck_assert(is_writable(block));
    dlx__heap_give(heap, block);
    dlx__heap_give(heap, empty);
    dlx__heap_close(heap);
}

/* The kernel may refuse to split a mapping, in either direction. What it does not make writable is
 * out of use until it does. */
START_TEST(what_cannot_be_made_writable_is_not_used)
{
    struct dlx_heap *heap = make_heap(3);
    struct dlx_block *blocks[3], *block;
    for (int i = 0; i < 3; i++)
        blocks[i] = take(heap, page);
    for (int i = 0; i < 3; i++)
        blocks[i]->next = i < 2 ? blocks[i + 1] : NULL;
    ck_assert(dlx__debug_protect(blocks[0])); /* one mapping */
    struct dlx_test_maps maps = dlx_test_maps_exhaust();
    dlx__heap_give(heap, blocks[1]);
    int refused = dlx__heap_take(heap, page, &block);
    int twice = dlx__heap_take(heap, page, &block);
    dlx_test_maps_give_back(&maps);
    ck_assert_int_eq(refused, DLX_E_FULL);
    ck_assert_int_eq(twice, DLX_E_FULL);
    ck_assert_ptr_eq(take(heap, page), blocks[1]);
    ck_assert(is_writable(blocks[1]));
    ck_assert(!is_writable(blocks[0]));
    ck_assert(!is_writable(blocks[2]));
    for (int i = 0; i < 3; i++)
        dlx__heap_give(heap, blocks[i]);
    dlx__heap_close(heap);
}
END_TEST

START_TEST(a_heap_ends_with_what_cannot_be_made_writable)
{
    struct dlx_heap *heap = make_heap(3);
    struct dlx_block *blocks[3];
    for (int i = 0; i < 3; i++)
        blocks[i] = take(heap, page);
    for (int i = 0; i < 3; i++)
        blocks[i]->next = i < 2 ? blocks[i + 1] : NULL;
    ck_assert(dlx__debug_protect(blocks[0]));
    struct dlx_test_maps maps = dlx_test_maps_exhaust();
    dlx__heap_give(heap, blocks[1]);
    dlx_test_maps_give_back(&maps);
    dlx__heap_give(heap, blocks[0]);
    dlx__heap_give(heap, blocks[2]);
    dlx__heap_close(heap); /* nothing leaks */
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("heap_debug");
    tcase_set_timeout(tcase, 60);
    if (dlx_test_maps_can_exhaust())
        tcase_add_test(tcase, what_cannot_be_made_writable_is_not_used);
    if (dlx_test_maps_can_exhaust())
        tcase_add_test(tcase, a_heap_ends_with_what_cannot_be_made_writable);
    return dlx_test_run_case(tcase);
}
