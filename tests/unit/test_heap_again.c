/* SPDX-License-Identifier: Apache-2.0 */

/* Blocks that are taken and exported in one, because the last ones were like them. */

#include "client/heap/heap.h"
#include "tests/unit/harness_heap.h"
#include "tests/harness/run.h"

TEST(what_is_taken_again_is_like_what_was_exported)
{
    struct dlx_heap *heap = dlx_test_heap_make();
    const int64_t n = 100, other = 101;
    dlx_test_heap_add_arena(heap, 1, 8192);
    struct dlx_block *a = dlx_test_heap_take(heap, 100), *b = dlx_test_heap_take(heap, 100);
    ck_assert_ptr_null(dlx__heap_export_again(heap, dlx_test_u8, 1, &n)); /* none was given back */
    dlx_test_heap_export(a, n);
    a->tensor.dl_tensor.shape[0] = 7;
    ck_assert(!dlx__block_is_unchanged(a));
    a->is_dirty = true; /* so dlx_publish() marks it */
    dlx__block_published(a);
    dlx__heap_give(heap, b);
    dlx__heap_give(heap, dlx_test_heap_take(heap, 100)); /* never exported */
    ck_assert_ptr_null(dlx__heap_export_again(heap, dlx_test_u8, 1, &n));
    ck_assert_ptr_eq(dlx_test_heap_take(heap, 100), b);
    dlx__heap_give(heap, a);
    ck_assert_ptr_null(dlx__heap_export_again(heap, dlx_test_u8, 1, &other));
    ck_assert_ptr_null(dlx__heap_export_again(heap, (DLDataType){kDLInt, 8, 1}, 1, &n));
    ck_assert_ptr_null(dlx__heap_export_again(heap, dlx_test_u8, 1, NULL));
    ck_assert_ptr_null(dlx__heap_export_again(heap, dlx_test_u8, 0, NULL));
    ck_assert_ptr_null(dlx__heap_export_again(heap, dlx_test_u8, -1, &n));
    ck_assert_ptr_eq(dlx__heap_export_again(heap, dlx_test_u8, 1, &n), a);
    ck_assert_int_eq(a->tensor.dl_tensor.shape[0], n);
    ck_assert(dlx__block_is_unchanged(a));
    a->tensor.deleter(&a->tensor); /* comes back by the stack */
    ck_assert_ptr_eq(dlx__heap_export_again(heap, dlx_test_u8, 1, &n), a);
    dlx__block_published(a);
    dlx__heap_give(heap, a);
    dlx__heap_give(heap, b);
    dlx__heap_close(heap);
}

/* Its struct was that of another block, of another size. */
TEST(a_block_that_was_never_exported_is_not_taken_again)
{
    struct dlx_heap *heap = dlx_test_heap_make();
    struct dlx_block *block[2];
    const int64_t n = 100;
    dlx_test_heap_add_arena(heap, 1, 8192);
    for (size_t i = 0; i < 2; i++) {
        block[i] = dlx_test_heap_take(heap, 100);
        dlx_test_heap_export(block[i], n);
        dlx__block_published(block[i]);
    }
    dlx__heap_give(heap, block[0]);
    dlx__heap_give(heap, block[1]);
    ck_assert_uint_eq(dlx__heap_drop_empty(heap), 1); /* what was kept is given up before that */
    dlx_test_heap_add_arena(heap, 2, 8192);
    for (size_t i = 0; i < 2; i++)
        block[i] = dlx_test_heap_take(heap, 1000);
    dlx__heap_give(heap, block[0]);
    dlx__heap_give(heap, block[1]);
    block[0] = dlx_test_heap_take(heap, 1000); /* so that this is where it would look */
    ck_assert_ptr_null(dlx__heap_export_again(heap, dlx_test_u8, 1, &n));
    dlx__heap_give(heap, block[0]);
    dlx__heap_close(heap);
}

int main(void)
{
    return dlx_test_run_case(tcase_create("heap_again"));
}
