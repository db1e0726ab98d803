/* SPDX-License-Identifier: Apache-2.0 */

/* The debug mode of a publisher's memory: whole pages, of which the last bytes are no tensor's;
 * protected while in use, writable again before reuse. */

#include "client/heap/heap.h"
#include "tests/harness/maps.h"
#include "tests/unit/harness_heap.h"

static size_t page;

static void setup(void)
{
    page = (size_t)dlx__debug_align();
    open_heap(true);
}

/* The largest size that n pages have room for. */
static size_t most_of(size_t n)
{
    return n * page - DLX_DEBUG_GUARD;
}

static bool is_writable(const struct dlx_block *block)
{
    uint8_t *data = dlx__block_data(block);
    bool first = !dlx_test_faults(data), last = !dlx_test_faults(data + block->size - 1);
    ck_assert_int_eq(first, last);
    return first;
}

TEST(each_block_has_whole_pages_and_a_guard)
{
    uint64_t rounded;
    add_arena(6 * page);
    struct dlx_block *a = take(1), *b = take(most_of(1)), *c = take(most_of(1) + 1),
                     *none = take(0);
    ck_assert_uint_eq(a->size, page);
    ck_assert_uint_eq(b->size, page);
    ck_assert_uint_eq(c->size, 2 * page);
    ck_assert_uint_eq(none->size, 0);
    ck_assert_uint_eq((uintptr_t)dlx__block_data(b) % page, 0);
    ck_assert_uint_eq((uintptr_t)dlx__block_data(c) % page, 0);
    ck_assert(!fits(most_of(2) + 1));
    ck_assert(fits(most_of(2)));
    ck_assert(dlx__heap_round(heap, 1, &rounded));
    ck_assert_uint_eq(rounded, page);
    ck_assert(dlx__heap_round(heap, page, &rounded));
    ck_assert_uint_eq(rounded, 2 * page);
    ck_assert(!dlx__heap_round(heap, UINT64_MAX, &rounded));
    ck_assert(!dlx__heap_round(heap, UINT64_MAX - page, &rounded));
    ck_assert_uint_eq(dlx__heap_growth(heap, 4 * page + 1) % page, 0);
    give(a);
    give(b);
    give(c);
    give(none);
    ck_assert(!fits(most_of(6) + 1));
    ck_assert(fits(most_of(6)));
}

/* Filled behind the tensor up to the end of its last page, and nowhere else. */
TEST(bytes_behind_a_tensor_are_filled_when_it_is_exported)
{
    add_arena(2 * page);
    struct dlx_block *block = take(page);
    uint8_t *data = dlx__block_data(block);
    memset(data, 1, 2 * page);
    DLManagedTensorVersioned *tensor = export_block(block, (int64_t)page);
    for (size_t i = 0; i < 2 * page; i++)
        ck_assert_int_eq(data[i] == 1, i < page);
    for (size_t i = page; i < 2 * page; i++)
        ck_assert_uint_eq(data[i], data[page]);
    tensor->deleter(tensor);
}

TEST(a_protected_block_is_writable_when_it_comes_back)
{
    struct dlx_block *blocks[4];
    add_arena(8 * page);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 4; i++)
            blocks[i] = take(most_of(2) - 1);
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
            give(blocks[i]);
            for (int k = i + 1; k < 4; k++) /* and its neighbours stay as they are */
                ck_assert(!is_writable(blocks[k]));
        }
        struct dlx_block *whole = take(most_of(8)); /* in one piece */
        memset(dlx__block_data(whole), round, 8 * page);
        give(whole);
    }
}

TEST(a_shared_block_is_protected_to_its_last_use)
{
    add_arena(page);
    struct dlx_block *block = take(8), *refs[2], *empty = take(0);
    DLManagedTensorVersioned *tensor = export_block(block, 8);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(dlx__block_share(block, &refs[i]), 0);
        refs[i]->next = empty;
        ck_assert(dlx__debug_protect(refs[i]));
    }
    for (int i = 0; i < 2; i++) {
        give(refs[i]);
        ck_assert(!is_writable(block));
    }
    tensor->deleter(tensor);
    ck_assert(!is_writable(block)); /* not seen yet by the publisher's thread */
    const uint8_t *data = dlx__block_data(block);
    struct dlx_block *next = take(most_of(1));
    ck_assert_ptr_ne(next, block); /* whose struct stays as released */
    ck_assert_ptr_eq(dlx__block_data(next), data);
    ck_assert(is_writable(next));
    give(next);
    give(empty);
}

/* Three of a page each, in one mapping. */
static void take_protected(struct dlx_block *blocks[3])
{
    add_arena(3 * page);
    for (int i = 0; i < 3; i++)
        blocks[i] = take(most_of(1));
    for (int i = 0; i < 3; i++)
        blocks[i]->next = i < 2 ? blocks[i + 1] : NULL;
    ck_assert(dlx__debug_protect(blocks[0]));
}

/* The kernel may refuse to split a mapping, in either direction. A block that it does not make
 * writable is out of use until it does. */
TEST(a_block_that_cannot_be_made_writable_is_not_used)
{
    struct dlx_block *blocks[3], *block;
    if (!dlx_test_maps_can_exhaust())
        return;
    take_protected(blocks);
    struct dlx_test_maps maps = dlx_test_maps_exhaust();
    give(blocks[1]);
    int refused = dlx__heap_take(heap, most_of(1), &block);
    int twice = dlx__heap_take(heap, most_of(1), &block);
    dlx_test_maps_give_back(&maps);
    ck_assert_int_eq(refused, DLX_E_FULL);
    ck_assert_int_eq(twice, DLX_E_FULL);
    ck_assert_ptr_eq(take(most_of(1)), blocks[1]);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(is_writable(blocks[i]), i == 1);
    for (int i = 0; i < 3; i++)
        give(blocks[i]);
}

TEST(a_heap_ends_with_what_cannot_be_made_writable)
{
    struct dlx_block *blocks[3];
    if (!dlx_test_maps_can_exhaust())
        return;
    take_protected(blocks);
    struct dlx_test_maps maps = dlx_test_maps_exhaust();
    give(blocks[1]);
    dlx_test_maps_give_back(&maps);
    give(blocks[0]);
    give(blocks[2]); /* nothing leaks */
}

int main(void)
{
    TCase *tcase = tcase_create("heap_debug");
    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, setup, close_heap);
    return dlx_test_run_case(tcase);
}
