/* SPDX-License-Identifier: Apache-2.0 */

/* Local tensors of a publisher's payload memory: changed, deleted on other threads, shared, and
 * outliving their publisher. */

#include "tests/unit/harness_heap.h"

TEST(an_exported_block_knows_whether_it_was_changed)
{
    struct dlx_heap *other = heap;
    heap = NULL;
    open_heap(false);
    add_arena(16384);
    struct dlx_block *block = take(24);
    int64_t shape[12] = {2, 3, 4, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    for (int32_t ndim = 3; ndim <= 12; ndim += 9) { /* inside the block, and beside it */
        ck_assert_int_eq(dlx__block_export(block, U8, ndim, shape, 24), 0);
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
    give(block);
    dlx__heap_close(other);
}

#define N_TENSORS 2000

static void *delete_all(void *userdata)
{
    DLManagedTensorVersioned **tensors = userdata;
    for (int i = 0; i < N_TENSORS && tensors[i]; i++)
        tensors[i]->deleter(tensors[i]);
    return NULL;
}

static void share(struct dlx_block *block, struct dlx_block **refs, int n)
{
    for (int i = 0; i < n; i++) {
        ck_assert_int_eq(dlx__block_share(block, &refs[i]), 0);
        ck_assert_ptr_null(dlx__block_data(refs[i]));
    }
}

/* Deleters on two threads; for shared blocks, while the publisher's thread gives references back
 * and goes on sharing. */
LOOP_TEST(tensors_come_back_from_other_threads, 0, 2)
{
    static DLManagedTensorVersioned *tensors[2][N_TENSORS];
    static struct dlx_block *refs[2 * N_TENSORS];
    bool shared = _i == 1;
    pthread_t threads[2];
    add_arena(2 * N_TENSORS * 256);
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 2 * N_TENSORS; i++) {
            struct dlx_block *block = take(100);
            tensors[i % 2][i / 2] = export_block(block, 100);
            share(block, &refs[i], shared);
        }
        ck_assert(!fits(100));
        for (int k = 0; k < 2; k++)
            ck_assert_int_eq(pthread_create(&threads[k], NULL, delete_all, tensors[k]), 0);
        for (int i = 0; shared && i < 2 * N_TENSORS; i++) {
            dlx__heap_collect(heap);
            give(refs[i]);
        }
        if (round == 4) /* the publisher goes meanwhile: the last tensor frees the heap */
            close_heap();
        for (int k = 0; k < 2; k++)
            ck_assert_int_eq(pthread_join(threads[k], NULL), 0);
    }
}

TEST(a_local_tensor_outlives_its_publisher)
{
    add_arena(16384);
    DLManagedTensorVersioned *kept = export_block(take(1000), 1000);
    DLManagedTensorVersioned *back = export_block(take(1000), 1000);
    back->deleter(back);
    close_heap();
    memset(kept->dl_tensor.data, 7, 1000);
    kept->deleter(kept);
}

static DLManagedTensorVersioned *deleted_meanwhile;
static uint32_t n_settled, n_refused; /* the next ones are */

/* Waits for the work of a GPU, during which another tensor is deleted. */
static bool settle(const struct dlx_heap_kind *kind)
{
    DLManagedTensorVersioned *tensor = dlx_steal(deleted_meanwhile);
    (void)kind;
    n_settled++;
    if (tensor)
        tensor->deleter(tensor);
    if (n_refused == 0)
        return true;
    n_refused--;
    return false;
}

static unsigned n_arenas_freed;

static void count_arena(const struct dlx_heap_kind *kind, const struct dlx_arena *arena,
                        bool is_end)
{
    (void)kind;
    (void)arena;
    (void)is_end;
    n_arenas_freed++;
}

#define COUNTED 512 /* bytes of an arena: two blocks */

/* Of a kind whose ends of arenas and waits are counted. */
static void open_counted(void)
{
    uint64_t generation;
    const struct dlx_heap_kind kind = {.device = {kDLCUDA, 0},
                                       .align = 256,
                                       .least = COUNTED,
                                       .unit = COUNTED,
                                       .free_arena = count_arena,
                                       .settle = settle};
    close_heap();
    last_arena = 0;
    ok(dlx__fork_init(&generation));
    ok(dlx__heap_new_of(&heap, generation, &kind));
}

static void add_counted(void)
{
    static _Alignas(256) uint8_t memory[3][COUNTED];
    ck_assert_uint_lt(last_arena, DLX_ARRAY_SIZE(memory));
    ok(dlx__heap_add_of(heap, last_arena + 1, memory[last_arena], COUNTED, NULL));
    last_arena++;
}

/* The work that uses a tensor was queued before it was deleted: what is deleted during the wait was
 * not waited for. */
TEST(a_tensor_that_is_deleted_during_the_wait_for_others_is_waited_for_again)
{
    open_counted();
    add_counted();
    DLManagedTensorVersioned *tensor = export_block(take(100), 100);
    deleted_meanwhile = export_block(take(100), 100);
    tensor->deleter(tensor);
    dlx__heap_collect(heap);
    ck_assert_uint_eq(n_settled, 1);
    dlx__heap_collect(heap);
    ck_assert_uint_eq(n_settled, 2);
}

/* The driver may refuse to wait. */
TEST(a_deleted_tensor_that_was_not_waited_for_is_not_used_again_before_it_was)
{
    open_counted();
    add_counted();
    DLManagedTensorVersioned *first = export_block(take(100), 100);
    DLManagedTensorVersioned *second = export_block(take(100), 100);
    n_refused = 2;
    first->deleter(first);
    ck_assert(!fits(100));
    second->deleter(second);
    ck_assert(!fits(100)); /* the first one is asked for alone */
    struct dlx_block *block = take(100);
    ck_assert_ptr_eq(&block->tensor, first);
    ck_assert_uint_eq(n_settled, 3);
    struct dlx_block *other = take(100);
    ck_assert_ptr_eq(&other->tensor, second);
    ck_assert_uint_eq(n_settled, 4);
    give(block);
    give(other);
}

TEST(a_heap_that_is_closed_waits_for_no_deleted_tensor)
{
    open_counted();
    add_counted();
    DLManagedTensorVersioned *tensor = export_block(take(100), 100);
    n_refused = 1;
    tensor->deleter(tensor);
    dlx__heap_collect(heap);
    n_arenas_freed = 0;
    close_heap();
    ck_assert_uint_eq(n_settled, 1);
    ck_assert_uint_eq(n_arenas_freed, 1);
}

/* A publisher that cannot go on with the next daemon has what it had before. What it got from that
 * daemon may still be in use. */
TEST(arenas_that_were_set_aside_come_back)
{
    open_counted();
    add_counted();
    struct dlx_block *first = take(100), *second = take(100);
    dlx__heap_set_aside(heap, NULL);
    add_counted();
    struct dlx_block *added = take(100);
    ck_assert_uint_eq(dlx__block_arena_id(added), 2);
    give(first);
    ck_assert(!fits(COUNTED));
    dlx__heap_bring_back(heap, NULL);
    ck_assert_uint_eq(n_arenas_freed, 0);
    ck_assert_uint_eq(dlx__heap_n_arenas(heap), 1);
    ck_assert_uint_eq(dlx__heap_bytes(heap), COUNTED);
    give(added);
    ck_assert_uint_eq(n_arenas_freed, 1);
    ck_assert(!fits(COUNTED));
    give(second);
    ck_assert(fits(COUNTED));
}

TEST(a_frozen_arena_goes_with_its_last_block)
{
    open_counted();
    add_counted();
    struct dlx_block *first = take(100), *second = take(100);
    add_counted(); /* empty: it goes at once */
    dlx__heap_set_aside(heap, NULL);
    dlx__heap_freeze(heap);
    ck_assert_uint_eq(n_arenas_freed, 1);
    ck_assert(dlx__block_is_frozen(first));
    give(first);
    ck_assert_uint_eq(n_arenas_freed, 1);
    ck_assert(!fits(100));
    give(second);
    ck_assert_uint_eq(n_arenas_freed, 2);
    ck_assert(!fits(100));
}

static void delete_on(bool other_thread, DLManagedTensorVersioned *tensor)
{
    DLManagedTensorVersioned *one[] = {tensor, NULL};
    pthread_t thread;
    if (!other_thread) {
        tensor->deleter(tensor);
        return;
    }
    ck_assert_int_eq(pthread_create(&thread, NULL, delete_all, one), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
}

#define ARENA 16384

/* The deleter and two references, in every order, the deleter here and on another thread: it comes
 * back with the last of them, and not before. Once more, to see that a reused block starts anew. */
TEST(a_shared_block_comes_back_with_the_last_use)
{
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                     {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    add_arena(ARENA);
    for (int round = 0; round < 2 * 2 * 6; round++) {
        struct dlx_block *block = take(100), *refs[2];
        DLManagedTensorVersioned *tensor = export_block(block, 100);
        share(block, refs, 2);
        ck_assert_ptr_ne(refs[0], refs[1]);
        for (int k = 0; k < 3; k++) {
            int what = orders[round % 6][k];
            ck_assert(!fits(ARENA));
            if (what == 2)
                delete_on(round / 6 % 2, tensor);
            else
                give(refs[what]);
        }
        ck_assert(fits(ARENA));
    }
}

TEST(a_shared_block_is_still_local_without_references)
{
    add_arena(ARENA);
    struct dlx_block *block = take(100), *ref;
    DLManagedTensorVersioned *tensor = export_block(block, 100);
    for (int i = 0; i < 3; i++) {
        share(block, &ref, 1);
        give(ref);
        ck_assert(!fits(ARENA));
    }
    tensor->deleter(tensor);
    ck_assert(fits(ARENA));
}

/* Published for the last time without `share`: the references are all that is left, whichever is
 * given back first. */
TEST(ownership_of_a_shared_block_may_pass)
{
    struct dlx_block *refs[2], *block;
    add_arena(ARENA);
    for (int round = 0; round < 2; round++) {
        block = take(100);
        (void)export_block(block, 100);
        share(block, refs, 2);
        dlx__block_published(block);
        give(refs[round]);
        ck_assert(!fits(ARENA));
        give(refs[!round]);
        ck_assert(fits(ARENA));
    }
    /* Or when there is no reference any more: then its message has the block itself. */
    block = take(100);
    (void)export_block(block, 100);
    share(block, refs, 1);
    give(refs[0]);
    dlx__block_published(block);
    ck_assert(!fits(ARENA));
    give(block);
    ck_assert(fits(ARENA));
}

TEST(a_shared_block_of_no_bytes_comes_back)
{
    for (int order = 0; order < 2; order++) {
        struct dlx_block *block = take(0), *refs[2], *again[3];
        DLManagedTensorVersioned *tensor = export_block(block, 0);
        share(block, refs, 2);
        if (order == 0)
            tensor->deleter(tensor);
        give(refs[0]);
        give(refs[1]);
        if (order == 1)
            tensor->deleter(tensor);
        /* All three structs are used again, each once. */
        for (int i = 0; i < 3; i++) {
            again[i] = take(0);
            ck_assert_ptr_null(again[i]->of);
            ck_assert(again[i] == block || again[i] == refs[0] || again[i] == refs[1]);
            for (int k = 0; k < i; k++)
                ck_assert_ptr_ne(again[i], again[k]);
        }
        for (int i = 0; i < 3; i++)
            give(again[i]);
    }
}

/* The publisher gives the references back and goes; a shared tensor may be deleted before that,
 * between, after them, or after the publisher, here or on another thread. Leaks and double frees
 * are the sanitizer's to find. */
TEST(a_shared_tensor_and_its_publisher_end_in_any_order)
{
    enum { BEFORE, BETWEEN, AFTER_REFS, LAST, N_TIMES };
    for (int when = 0; when < 2 * N_TIMES; when++) {
        struct dlx_block *refs[2];
        open_heap(false);
        add_arena(ARENA);
        struct dlx_block *block = take(100);
        DLManagedTensorVersioned *tensor = export_block(block, 100);
        share(block, refs, 2);
        memset(tensor->dl_tensor.data, 7, 100);
        for (int time = 0; time < N_TIMES; time++) {
            if (when % N_TIMES == time) {
                ck_assert_uint_eq(((uint8_t *)tensor->dl_tensor.data)[99], 7);
                delete_on(when >= N_TIMES, tensor);
            }
            if (time < 2)
                give(refs[time]);
            else if (time == AFTER_REFS)
                close_heap();
        }
    }
}

int main(void)
{
    return dlx_test_run_case(heap_case("heap_local"));
}
