/* SPDX-License-Identifier: Apache-2.0 */

/* Local tensors of a publisher's payload memory: changed, deleted on other threads, shared, and
 * outliving their publisher. */

#include "client/heap/heap.h"
#include "tests/unit/harness_heap.h"
#include "tests/harness/run.h"

TEST(an_exported_block_knows_whether_it_was_changed)
{
    struct dlx_heap *heap = dlx_test_heap_make(), *other = dlx_test_heap_make();
    dlx_test_heap_add_arena(heap, 1, 16384);
    struct dlx_block *block = dlx_test_heap_take(heap, 24);
    int64_t shape[12] = {2, 3, 4, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    for (int32_t ndim = 3; ndim <= 12; ndim += 9) { /* inside the block, and beside it */
        ck_assert_int_eq(dlx__block_export(block, dlx_test_u8, ndim, shape, 24), 0);
        DLTensor *t = &block->tensor.dl_tensor;
        DLTensor before = *t;
        ck_assert(dlx__block_is_unchanged(block));
        block->tensor.flags = DLPACK_FLAG_BITMASK_READ_ONLY;
        ck_assert(!dlx__block_is_unchanged(block));
        block->tensor.flags = 0;
#define CHANGED(...)                                                                               \
    do {                                                                                           \
        __VA_ARGS__;                                                                               \
        ck_assert(!dlx__block_is_unchanged(block));                                                \
        *t = before;                                                                               \
    } while (0)
        CHANGED(t->data = (char *)t->data + 256);
        CHANGED(t->byte_offset = 1);
        CHANGED(t->ndim--);
        CHANGED(t->shape++);
        CHANGED(t->strides = NULL);
        CHANGED(t->dtype.code = kDLInt);
        CHANGED(t->dtype.bits = 4);
        CHANGED(t->dtype.lanes = 2);
        CHANGED(t->device.device_type = kDLCUDAHost);
        CHANGED(t->device.device_id = 1);
#undef CHANGED
        t->shape[0] = 1;
        ck_assert(!dlx__block_is_unchanged(block));
        t->shape[0] = 2;
        t->strides[2] = 2;
        ck_assert(!dlx__block_is_unchanged(block));
        t->strides[2] = 1;
        ck_assert(dlx__block_is_unchanged(block));
        ck_assert_ptr_eq(dlx__block_of(heap, &block->tensor), block);
        ck_assert_ptr_null(dlx__block_of(other, &block->tensor));
        dlx__block_published(block);
    }
    dlx__heap_give(heap, block);
    dlx__heap_close(heap);
    dlx__heap_close(other);
}

/* ---- local tensors that outlive, on other threads -------------------------------------------- */

#define N_TENSORS 2000

static void *delete_all(void *userdata)
{
    DLManagedTensorVersioned **tensors = userdata;
    for (int i = 0; i < N_TENSORS; i++)
        tensors[i]->deleter(tensors[i]);
    return NULL;
}

TEST(tensors_come_back_from_other_threads)
{
    static DLManagedTensorVersioned *tensors[2][N_TENSORS];
    struct dlx_heap *heap = dlx_test_heap_make();
    pthread_t threads[2];
    dlx_test_heap_add_arena(heap, 1, 2 * N_TENSORS * 256);
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < N_TENSORS; i++)
            for (int k = 0; k < 2; k++)
                tensors[k][i] = dlx_test_heap_export(dlx_test_heap_take(heap, 100), 100);
        struct dlx_block *block;
        ck_assert_int_eq(dlx__heap_take(heap, 100, &block), DLX_E_FULL);
        for (int k = 0; k < 2; k++)
            ck_assert_int_eq(pthread_create(&threads[k], NULL, delete_all, tensors[k]), 0);
        if (round == 4) /* the publisher goes meanwhile: the last tensor frees the heap */
            dlx__heap_close(heap);
        for (int k = 0; k < 2; k++)
            ck_assert_int_eq(pthread_join(threads[k], NULL), 0);
    }
}

TEST(a_local_tensor_outlives_its_publisher)
{
    struct dlx_heap *heap = dlx_test_heap_make();
    dlx_test_heap_add_arena(heap, 1, 16384);
    DLManagedTensorVersioned *kept = dlx_test_heap_export(dlx_test_heap_take(heap, 1000), 1000);
    DLManagedTensorVersioned *back = dlx_test_heap_export(dlx_test_heap_take(heap, 1000), 1000);
    back->deleter(back);
    dlx__heap_close(heap);
    memset(kept->dl_tensor.data, 7, 1000);
    kept->deleter(kept);
}

/* ---- shared blocks --------------------------------------------------------------------------- */

static void *delete_one(void *userdata)
{
    DLManagedTensorVersioned *tensor = userdata;
    tensor->deleter(tensor);
    return NULL;
}

static void delete_on(bool other_thread, DLManagedTensorVersioned *tensor)
{
    pthread_t thread;
    if (!other_thread) {
        tensor->deleter(tensor);
        return;
    }
    ck_assert_int_eq(pthread_create(&thread, NULL, delete_one, tensor), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
}

#define ARENA 16384

static bool is_free(struct dlx_heap *heap)
{
    struct dlx_block *whole;
    int r = dlx__heap_take(heap, ARENA, &whole);
    if (r == 0)
        dlx__heap_give(heap, whole);
    ck_assert(r == 0 || r == DLX_E_FULL);
    return r == 0;
}

/* The deleter and two references, in every order, the deleter here and on another thread: it comes
 * back with the last of them, and not before. Once more, to see that a reused block starts anew. */
TEST(a_shared_block_comes_back_with_the_last_use)
{
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                     {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    struct dlx_heap *heap = dlx_test_heap_make();
    dlx_test_heap_add_arena(heap, 1, ARENA);
    for (int round = 0; round < 2 * 2 * 6; round++) {
        struct dlx_block *block = dlx_test_heap_take(heap, 100), *refs[2];
        DLManagedTensorVersioned *tensor = dlx_test_heap_export(block, 100);
        for (int i = 0; i < 2; i++) {
            ck_assert_int_eq(dlx__block_share(block, &refs[i]), 0);
            ck_assert_ptr_null(dlx__block_data(refs[i]));
        }
        ck_assert_ptr_ne(refs[0], refs[1]);
        for (int k = 0; k < 3; k++) {
            int what = orders[round % 6][k];
            ck_assert(!is_free(heap));
            if (what == 2)
                delete_on(round / 6 % 2, tensor);
            else
                dlx__heap_give(heap, refs[what]);
        }
        ck_assert(is_free(heap));
    }
    dlx__heap_close(heap);
}

TEST(a_shared_block_is_still_local_without_references)
{
    struct dlx_heap *heap = dlx_test_heap_make();
    struct dlx_block *ref;
    dlx_test_heap_add_arena(heap, 1, ARENA);
    struct dlx_block *block = dlx_test_heap_take(heap, 100);
    DLManagedTensorVersioned *tensor = dlx_test_heap_export(block, 100);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(dlx__block_share(block, &ref), 0);
        dlx__heap_give(heap, ref);
        ck_assert(!is_free(heap));
    }
    tensor->deleter(tensor);
    ck_assert(is_free(heap));
    dlx__heap_close(heap);
}

/* Published for the last time without `share`: the references are all that is left, whichever is
 * given back first. */
TEST(ownership_of_a_shared_block_may_pass)
{
    struct dlx_heap *heap = dlx_test_heap_make();
    struct dlx_block *refs[2];
    dlx_test_heap_add_arena(heap, 1, ARENA);
    for (int round = 0; round < 2; round++) {
        struct dlx_block *block = dlx_test_heap_take(heap, 100);
        (void)dlx_test_heap_export(block, 100);
        for (int i = 0; i < 2; i++)
            ck_assert_int_eq(dlx__block_share(block, &refs[i]), 0);
        dlx__block_published(block);
        dlx__heap_give(heap, refs[round]);
        ck_assert(!is_free(heap));
        dlx__heap_give(heap, refs[!round]);
        ck_assert(is_free(heap));
    }
    /* Or when there is no reference any more: then its message has the block itself. */
    struct dlx_block *block = dlx_test_heap_take(heap, 100);
    (void)dlx_test_heap_export(block, 100);
    ck_assert_int_eq(dlx__block_share(block, &refs[0]), 0);
    dlx__heap_give(heap, refs[0]);
    dlx__block_published(block);
    ck_assert(!is_free(heap));
    dlx__heap_give(heap, block);
    ck_assert(is_free(heap));
    dlx__heap_close(heap);
}

TEST(a_shared_block_of_no_bytes_comes_back)
{
    struct dlx_heap *heap = dlx_test_heap_make();
    struct dlx_block *refs[2];
    for (int order = 0; order < 2; order++) {
        struct dlx_block *block = dlx_test_heap_take(heap, 0);
        DLManagedTensorVersioned *tensor = dlx_test_heap_export(block, 0);
        for (int i = 0; i < 2; i++)
            ck_assert_int_eq(dlx__block_share(block, &refs[i]), 0);
        if (order == 0)
            tensor->deleter(tensor);
        for (int i = 0; i < 2; i++)
            dlx__heap_give(heap, refs[i]);
        if (order == 1)
            tensor->deleter(tensor);
        /* All three structs are used again, each once. */
        struct dlx_block *again[3];
        for (int i = 0; i < 3; i++) {
            again[i] = dlx_test_heap_take(heap, 0);
            ck_assert_ptr_null(again[i]->of);
            ck_assert(again[i] == block || again[i] == refs[0] || again[i] == refs[1]);
            for (int k = 0; k < i; k++)
                ck_assert_ptr_ne(again[i], again[k]);
        }
        for (int i = 0; i < 3; i++)
            dlx__heap_give(heap, again[i]);
    }
    dlx__heap_close(heap);
}

/* The publisher gives the references back and goes; a shared tensor may be deleted before that,
 * between, after them, or after the publisher, here or on another thread. Leaks and double frees
 * are the sanitizer's to find. */
TEST(a_shared_tensor_and_its_publisher_end_in_any_order)
{
    enum { BEFORE, BETWEEN, AFTER_REFS, LAST, N_TIMES };
    for (int when = 0; when < 2 * N_TIMES; when++) {
        struct dlx_heap *heap = dlx_test_heap_make();
        struct dlx_block *refs[2];
        dlx_test_heap_add_arena(heap, 1, ARENA);
        struct dlx_block *block = dlx_test_heap_take(heap, 100);
        DLManagedTensorVersioned *tensor = dlx_test_heap_export(block, 100);
        for (int i = 0; i < 2; i++)
            ck_assert_int_eq(dlx__block_share(block, &refs[i]), 0);
        memset(tensor->dl_tensor.data, 7, 100);
        for (int time = 0; time < N_TIMES; time++) {
            if (when % N_TIMES == time) {
                ck_assert_uint_eq(((uint8_t *)tensor->dl_tensor.data)[99], 7);
                delete_on(when >= N_TIMES, tensor);
            }
            if (time < 2)
                dlx__heap_give(heap, refs[time]);
            else if (time == AFTER_REFS)
                dlx__heap_close(heap);
        }
    }
}

/* Deleters on two threads while the publisher's thread gives references back and goes on
 * sharing. */
TEST(shared_blocks_come_back_from_other_threads)
{
    static DLManagedTensorVersioned *tensors[2][N_TENSORS];
    static struct dlx_block *refs[2 * N_TENSORS];
    struct dlx_heap *heap = dlx_test_heap_make();
    pthread_t threads[2];
    dlx_test_heap_add_arena(heap, 1, 2 * N_TENSORS * 256);
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < N_TENSORS; i++)
            for (int k = 0; k < 2; k++) {
                struct dlx_block *block = dlx_test_heap_take(heap, 100);
                tensors[k][i] = dlx_test_heap_export(block, 100);
                ck_assert_int_eq(dlx__block_share(block, &refs[2 * i + k]), 0);
            }
        for (int k = 0; k < 2; k++)
            ck_assert_int_eq(pthread_create(&threads[k], NULL, delete_all, tensors[k]), 0);
        for (int i = 0; i < 2 * N_TENSORS; i++) {
            dlx__heap_collect(heap);
            dlx__heap_give(heap, refs[i]);
        }
        if (round == 4)
            dlx__heap_close(heap);
        for (int k = 0; k < 2; k++)
            ck_assert_int_eq(pthread_join(threads[k], NULL), 0);
    }
}

int main(void)
{
    TCase *tcase = tcase_create("heap_local");
    tcase_set_timeout(tcase, 60);
    return dlx_test_run_case(tcase);
}
