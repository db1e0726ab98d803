/* SPDX-License-Identifier: Apache-2.0 */

/* Blocks that are taken and exported in one, because the last ones were like them. */

#include "client/heap.h"
#include "tests/harness_run.h"
#include <check.h>
#include <sys/mman.h>

static uint64_t generation;

static struct dlx_heap *make_heap(void)
{
    struct dlx_heap *heap;
    ck_assert_int_eq(dlx__fork_init(&generation), 0);
    dlx_set_debug(false); /* test_heap_debug is about that */
    ck_assert_int_eq(dlx__heap_new(&heap, generation), 0);
    return heap;
}

static void add_arena(struct dlx_heap *heap, uint32_t id, uint64_t size)
{
    void *map = mmap(NULL, size, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ck_assert_ptr_ne(map, MAP_FAILED);
    ck_assert_int_eq(dlx__heap_add(heap, id, map, size), 0);
}

static struct dlx_block *take(struct dlx_heap *heap, uint64_t size)
{
    struct dlx_block *block = NULL;
    ck_assert_int_eq(dlx__heap_take(heap, size, &block), 0);
    return block;
}

static const DLDataType u8 = {kDLUInt, 8, 1};

static DLManagedTensorVersioned *export_block(struct dlx_block *block, int64_t n)
{
    ck_assert_int_eq(dlx__block_export(block, u8, 1, &n, (uint64_t)n), 0);
    return &block->tensor;
}

START_TEST(what_is_taken_again_is_like_what_was_exported)
{
    struct dlx_heap *heap = make_heap();
    const int64_t n = 100, other = 101;
    add_arena(heap, 1, 8192);
    struct dlx_block *a = take(heap, 100), *b = take(heap, 100);
    ck_assert_ptr_null(dlx__heap_export_again(heap, u8, 1, &n)); /* none was given back */
    export_block(a, n);
    dlx__block_published(a);
    a->tensor.dl_tensor.shape[0] = 7;
    dlx__heap_give(heap, b);
    dlx__heap_give(heap, take(heap, 100)); /* never exported */
    ck_assert_ptr_null(dlx__heap_export_again(heap, u8, 1, &n));
    dlx__heap_give(heap, a);
    ck_assert_ptr_null(dlx__heap_export_again(heap, u8, 1, &other));
    ck_assert_ptr_null(dlx__heap_export_again(heap, (DLDataType){kDLInt, 8, 1}, 1, &n));
    ck_assert_ptr_null(dlx__heap_export_again(heap, u8, 1, NULL));
    ck_assert_ptr_null(dlx__heap_export_again(heap, u8, 0, NULL));
    ck_assert_ptr_null(dlx__heap_export_again(heap, u8, -1, &n));
    ck_assert_ptr_eq(dlx__heap_export_again(heap, u8, 1, &n), a);
    ck_assert_int_eq(a->tensor.dl_tensor.shape[0], n);
    ck_assert(dlx__block_is_unchanged(a, false));
    a->tensor.deleter(&a->tensor); /* comes back by the stack */
    ck_assert_ptr_eq(dlx__heap_export_again(heap, u8, 1, &n), a);
    dlx__block_published(a);
    dlx__heap_give(heap, a);
    dlx__heap_close(heap);
}
END_TEST

/* Its struct was that of another block, of another size. */
START_TEST(a_block_that_was_never_exported_is_not_taken_again)
{
    struct dlx_heap *heap = make_heap();
    struct dlx_block *block[2];
    const int64_t n = 100;
    add_arena(heap, 1, 8192);
    for (size_t i = 0; i < 2; i++) {
        block[i] = take(heap, 100);
        export_block(block[i], n);
        dlx__block_published(block[i]);
    }
    dlx__heap_give(heap, block[0]);
    dlx__heap_give(heap, block[1]);
    ck_assert_uint_eq(dlx__heap_drop_empty(heap), 1); /* what was kept is given up before that */
    add_arena(heap, 2, 8192);
    for (size_t i = 0; i < 2; i++)
        block[i] = take(heap, 1000);
    dlx__heap_give(heap, block[0]);
    dlx__heap_give(heap, block[1]);
    block[0] = take(heap, 1000); /* so that this is where it would look */
    ck_assert_ptr_null(dlx__heap_export_again(heap, u8, 1, &n));
    dlx__heap_give(heap, block[0]);
    dlx__heap_close(heap);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("heap_again");
    TCase *tcase = tcase_create("heap_again");
    tcase_add_test(tcase, what_is_taken_again_is_like_what_was_exported);
    tcase_add_test(tcase, a_block_that_was_never_exported_is_not_taken_again);
    suite_add_tcase(suite, tcase);
    return dlx_test_run(suite);
}
