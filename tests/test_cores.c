/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The cores of publisher and subscriber, step by step. Messages that are in two control blocks: dlx__pub_carry(), and
 * dlx__take_follow() past what was seen in the first. Links that leave, and which hold words are used.
 */

#include "common/error.h"
#include "common/publish.h"
#include "common/take.h"
#include "tests/harness_run.h"
#include <check.h>
#include <stdlib.h>

#define SLOTS 8U
#define HELD  4U

struct fixture {
    struct dlx_pub pub;
    struct dlx_shm_membership membership;
    struct dlx_shm_link *page, *other_page;
    struct dlx_pub_link link, other;
    unsigned n_freed, n_blocks_gone, n_links_gone;
};

static struct fixture f;
static int payload; /* they are counted, not looked at */

static void pick_up(void *userdata)
{
    (void)userdata;
}

static void ring(void *userdata, struct dlx_pub_link *link)
{
    (void)userdata;
    (void)link;
}

static void ring_publisher(void *userdata)
{
    (void)userdata;
}

static void link_gone(void *userdata, struct dlx_pub_link *link)
{
    (void)userdata;
    (void)link;
    f.n_links_gone++;
}

static void slot_freed(void *userdata, void *p)
{
    (void)userdata;
    ck_assert_ptr_eq(p, &payload);
    f.n_freed++;
}

static void block_gone(void *userdata, const struct dlx_pub_block *block)
{
    (void)userdata;
    f.n_blocks_gone++;
    free(block->control);
}

static const struct dlx_pub_env env = {.pick_up = pick_up,
                                       .ring = ring,
                                       .look_for_dead = pick_up,
                                       .link_gone = link_gone,
                                       .slot_freed = slot_freed,
                                       .block_gone = block_gone};
static const struct dlx_take_env take_env = {.ring = ring_publisher};

static void *zeroed(uint64_t size)
{
    void *memory = aligned_alloc(DLX_PAGE, size);
    ck_assert_ptr_nonnull(memory);
    for (uint64_t i = 0; i < size / 8; i++)
        ((uint64_t *)memory)[i] = 0;
    return memory;
}

static void add_link(struct dlx_pub_link *link, struct dlx_shm_link **page)
{
    *page = zeroed(dlx_shm_link_size(HELD));
    *link =
        (struct dlx_pub_link){.page = *page, .ticket = dlx_shm_ticket(*page, 0), .max_held = HELD};
    ck_assert_int_eq(dlx__pub_link_add(&f.pub, link), 0);
}

static void setup(void)
{
    f = (struct fixture){.n_freed = 0};
    struct dlx_shm_control *control = zeroed(dlx_shm_control_size(SLOTS));
    ck_assert_int_eq(dlx__pub_init(&f.pub, control, SLOTS, 3, false, &f.membership, &env, NULL), 0);
    add_link(&f.link, &f.page);
    add_link(&f.other, &f.other_page);
}

static void teardown(void)
{
    dlx__pub_deinit(&f.pub);
    free(f.page);
    free(f.other_page);
}

static void publish(unsigned n)
{
    while (n-- > 0) {
        uint32_t slot;
        ck_assert_int_eq(dlx__pub_slot(&f.pub, &slot), 0);
        f.pub.slots[slot].n_tensors = 1;
        f.pub.slots[slot].record = (struct dlx_shm_record){
            .ndim = 0, .dtype_bits = 8, .dtype_lanes = 1, .device_type = 1, .flags = 1, .size = 1};
        dlx__pub_commit(&f.pub, slot, &payload);
    }
}

static struct dlx_shm_control *move(uint32_t n_carried)
{
    struct dlx_pub_block *block;
    void *payloads[SLOTS];
    struct dlx_shm_control *control = zeroed(dlx_shm_control_size(SLOTS));
    ck_assert_int_eq(dlx__pub_block_new(&f.pub, control, SLOTS, &block), 0);
    for (uint32_t i = 0; i < n_carried; i++) {
        uint32_t slot;
        uint64_t n = f.pub.head - n_carried + 1 + i;
        const struct dlx_pub_block *from = dlx__pub_find(&f.pub, n, &slot);
        ck_assert_uint_eq(dlx_load64_relaxed(&from->slots[slot].gen), n);
        block->slots[i].n_tensors = 1;
        block->slots[i].record = from->slots[slot].record;
        payloads[i] = &payload;
    }
    dlx__pub_carry(&f.pub, block, n_carried, payloads);
    dlx__pub_move(&f.pub, block);
    return control;
}

static void begin(struct dlx_take *take, struct dlx_shm_link *page,
                  const struct dlx_shm_control *control, uint64_t cursor)
{
    dlx__take_init(take, control, SLOTS, page, 0, HELD, false, false, &take_env, NULL);
    dlx__take_start(take, cursor);
}

static uint64_t take_one(struct dlx_take *take, uint32_t *ret_hold)
{
    struct dlx_taken taken = {0};
    ck_assert_int_eq(dlx__take_next(take, &taken), 0);
    *ret_hold = taken.hold;
    ck_assert_uint_eq(taken.gap, 0);
    return taken.n;
}

START_TEST(both_copies_stay_while_one_is_held)
{
    struct dlx_take old, new;
    uint32_t hold[2], late_hold;
    begin(&old, f.page, f.pub.block->control, 0);
    publish(3);
    ck_assert_uint_eq(take_one(&old, &hold[0]), 1);
    ck_assert_uint_eq(take_one(&old, &hold[1]), 2);
    const struct dlx_shm_control *control = move(2);
    begin(&new, f.other_page, control, 1);
    ck_assert_uint_eq(take_one(&new, &late_hold), 2);
    publish(7); /* 1 to 7 can go but for the held ones */
    dlx__pub_reclaim(&f.pub, UINT32_MAX);
    ck_assert_uint_eq(f.n_freed, 4 + 2); /* 3 twice, 4 to 7 once */
    dlx__take_release(&old, hold[1]);
    dlx__pub_reclaim(&f.pub, 0);
    ck_assert_uint_eq(f.n_freed, 6); /* the copy is held */
    dlx__take_release(&new, late_hold);
    dlx__pub_reclaim(&f.pub, 0);
    ck_assert_uint_eq(f.n_freed, 8); /* 2 twice */
    ck_assert_uint_eq(f.n_blocks_gone, 0);
    dlx__take_release(&old, hold[0]);
    dlx__pub_reclaim(&f.pub, 0);
    ck_assert_uint_eq(f.n_freed, 9);
    ck_assert_uint_eq(f.n_blocks_gone, 1);
    dlx__pub_deinit(&f.pub);
    ck_assert_uint_eq(f.n_freed, 12);
}
END_TEST

START_TEST(a_message_may_be_in_many_blocks)
{
    publish(3);
    for (int i = 0; i < 5; i++) {
        (void)move(3);
        ck_assert_uint_eq(dlx__pub_n_live(&f.pub), 3);
    }
    for (int i = 0; i < 50; i++)
        publish(1);
    ck_assert_uint_eq(f.n_blocks_gone, 5);
    dlx__pub_deinit(&f.pub);
    ck_assert_uint_eq(f.n_freed, 3 * 6 + 50);
}
END_TEST

START_TEST(what_was_passed_elsewhere_is_passed_over)
{
    struct dlx_take take;
    struct dlx_taken taken = {0};
    uint32_t hold;
    publish(3);
    const struct dlx_shm_control *first = move(2); /* 2 and 3 */
    publish(2);                                    /* 4 and 5 */
    begin(&take, f.page, first, 1);
    const struct dlx_shm_control *second = move(0);
    publish(2); /* 6 and 7 */
    /* On another link it got as far as 6, which is in the next block. */
    dlx__take_follow(&take, 6, 0);
    ck_assert_uint_eq(take.cursor, 5);
    ck_assert_int_eq(dlx__take_next(&take, &taken), DLX_E_NOT_FOUND);
    ck_assert_int_eq(dlx__take_move(&take, second, SLOTS, 5), 0);
    ck_assert_uint_eq(take_one(&take, &hold), 7);
    dlx__take_release(&take, hold);
    ck_assert_uint_eq(take.lost, 0);
    ck_assert_uint_eq(take.taken, 1);
}
END_TEST

START_TEST(what_nobody_has_any_more_is_counted_once)
{
    struct dlx_take take;
    struct dlx_taken taken = {0};
    publish(3);
    const struct dlx_shm_control *first = move(1); /* 3 */
    begin(&take, f.page, first, 2);
    dlx__take_follow(&take, 1, 0); /* 2 is gone */
    ck_assert_uint_eq(take.lost, 1);
    ck_assert_int_eq(dlx__take_next(&take, &taken), 0);
    ck_assert_uint_eq(taken.n, 3);
    ck_assert_uint_eq(taken.gap, 1);
    dlx__take_release(&take, taken.hold);
    /* Two blocks on, past one that it never saw: 4 and 5 were passed elsewhere, 6 is gone. */
    publish(3);
    (void)move(0);
    const struct dlx_shm_control *third = move(0);
    publish(1);
    take.passed = 5;
    ck_assert_int_eq(dlx__take_move(&take, third, SLOTS, 6), 0);
    ck_assert_uint_eq(take.lost, 2);
    ck_assert_int_eq(dlx__take_next(&take, &taken), 0);
    ck_assert_uint_eq(taken.n, 7);
}
END_TEST

/* The daemon has it, and has yet to tell: it may hold anything. It is not told of when it has left before that. */
START_TEST(nothing_is_freed_while_a_link_is_not_known)
{
    uint32_t slot;
    dlx_store64_sc(&f.membership.joins, 3); /* two were picked up */
    publish(SLOTS);
    ck_assert_uint_eq(dlx__pub_reclaim(&f.pub, SLOTS), 0);
    ck_assert_int_eq(dlx__pub_slot(&f.pub, &slot), DLX_E_FULL);
    ck_assert_uint_eq(f.n_freed, 0);
    dlx_store64_sc(&f.membership.joins, 2);
    ck_assert_int_eq(dlx__pub_slot(&f.pub, &slot), 0);
    ck_assert_uint_eq(f.n_freed, SLOTS - 3);
}
END_TEST

START_TEST(a_link_that_left_goes_although_no_daemon_says_so)
{
    struct dlx_take take;
    begin(&take, f.page, f.pub.block->control, 0);
    publish(20);
    dlx__take_close(&take);
    unsigned n_passes = 0;
    for (; f.n_links_gone == 0 && n_passes < 100; n_passes++)
        dlx__pub_reclaim(&f.pub, 0);
    ck_assert_uint_eq(f.n_links_gone, 1);
    ck_assert_uint_le(n_passes, 16);
}
END_TEST

START_TEST(a_link_that_left_goes_with_what_it_held_last)
{
    struct dlx_take take;
    uint32_t hold[2];
    begin(&take, f.page, f.pub.block->control, 0);
    publish(2);
    ck_assert_uint_eq(take_one(&take, &hold[0]), 1);
    ck_assert_uint_eq(take_one(&take, &hold[1]), 2);
    dlx__take_close(&take);
    dlx_store64_sc(&f.membership.leaves, 1);
    publish(5);
    for (int i = 0; i < 3; i++) { /* as often as it is asked: it stays */
        dlx__pub_reclaim(&f.pub, UINT32_MAX);
        ck_assert_uint_eq(f.n_freed, 2); /* 3 and 4 */
        ck_assert_uint_eq(f.n_links_gone, 0);
    }
    dlx__take_release(&take, hold[0]);
    dlx__pub_reclaim(&f.pub, 0);
    ck_assert_uint_eq(f.n_freed, 3);
    ck_assert_uint_eq(f.n_links_gone, 0);
    dlx__take_release(&take, hold[1]);
    dlx__pub_reclaim(&f.pub, 0); /* this one, not one in 16 */
    ck_assert_uint_eq(f.n_freed, 4);
    ck_assert_uint_eq(f.n_links_gone, 1);
}
END_TEST

START_TEST(one_message_at_a_time_is_held_by_one_word)
{
    struct dlx_take take;
    uint32_t hold[3];
    begin(&take, f.page, f.pub.block->control, 0);
    for (int i = 0; i < 20; i++) {
        publish(1);
        (void)take_one(&take, &hold[0]);
        ck_assert_uint_eq(hold[0], 0);
        dlx__take_release(&take, hold[0]);
    }
    publish(3);
    for (int i = 0; i < 3; i++) { /* several: each has its own */
        (void)take_one(&take, &hold[i]);
        for (int k = 0; k < i; k++)
            ck_assert_uint_ne(hold[i], hold[k]);
    }
}
END_TEST

/* Head is the publisher's busiest line: who lags leaves it alone. */
START_TEST(what_is_known_is_taken_without_a_look_at_head)
{
    struct dlx_take take;
    struct dlx_taken taken = {0};
    uint32_t hold;
    dlx_atomic_u64 *head = &f.pub.block->control->head;
    begin(&take, f.page, f.pub.block->control, 0);
    publish(3);
    ck_assert(!dlx__take_knows(&take));
    ck_assert_uint_eq(take_one(&take, &hold), 1);
    ck_assert(dlx__take_knows(&take));
    dlx_store64_relaxed(head, 1); /* nobody sees that it went back, */
    ck_assert_uint_eq(take_one(&take, &hold), 2);
    ck_assert_uint_eq(take_one(&take, &hold), 3);
    ck_assert(!dlx__take_knows(&take));
    ck_assert_int_eq(dlx__take_next(&take, &taken), DLX_E_BAD_PEER); /* until there is no more */
    dlx_store64_relaxed(head, 3);
    ck_assert_int_eq(dlx__take_next(&take, &taken), DLX_E_EMPTY);
}
END_TEST

/* What was there when head was looked at has gone since: it is counted, and head is looked at again. */
START_TEST(what_is_known_may_be_gone)
{
    struct dlx_take take;
    struct dlx_taken taken = {0};
    uint32_t hold;
    begin(&take, f.page, f.pub.block->control, 0);
    publish(3);
    ck_assert_uint_eq(take_one(&take, &hold), 1);
    dlx__take_release(&take, hold);
    publish(100);
    ck_assert_int_eq(dlx__take_next(&take, &taken), 0);
    ck_assert_uint_gt(taken.n, 100 - SLOTS);
    ck_assert_uint_eq(taken.gap, taken.n - 2);
    ck_assert_uint_eq(take.lost, taken.n - 2);
    dlx__take_release(&take, taken.hold);
    for (uint64_t n = taken.n + 1; n <= 103; n++) {
        ck_assert_uint_eq(take_one(&take, &hold), n);
        dlx__take_release(&take, hold);
    }
    ck_assert_int_eq(dlx__take_next(&take, &taken), DLX_E_EMPTY);
}
END_TEST

/* The newest one is wanted, not the newest that is known. */
START_TEST(latest_looks_at_head_each_time)
{
    struct dlx_take take;
    struct dlx_taken taken = {0};
    dlx__take_init(&take, f.pub.block->control, SLOTS, f.page, 0, HELD, true, false, &take_env,
                   NULL);
    dlx__take_start(&take, 0);
    publish(2);
    ck_assert_int_eq(dlx__take_next(&take, &taken), 0);
    ck_assert_uint_eq(taken.n, 2);
    take.word = 4; /* as if it had known of more */
    publish(4);
    ck_assert_int_eq(dlx__take_next(&take, &taken), 0);
    ck_assert_uint_eq(taken.n, 6);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cores");
    TCase *tcase = tcase_create("cores");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, both_copies_stay_while_one_is_held);
    tcase_add_test(tcase, a_message_may_be_in_many_blocks);
    tcase_add_test(tcase, what_was_passed_elsewhere_is_passed_over);
    tcase_add_test(tcase, what_nobody_has_any_more_is_counted_once);
    tcase_add_test(tcase, a_link_that_left_goes_although_no_daemon_says_so);
    tcase_add_test(tcase, a_link_that_left_goes_with_what_it_held_last);
    tcase_add_test(tcase, one_message_at_a_time_is_held_by_one_word);
    tcase_add_test(tcase, what_is_known_is_taken_without_a_look_at_head);
    tcase_add_test(tcase, what_is_known_may_be_gone);
    tcase_add_test(tcase, latest_looks_at_head_each_time);
    tcase_add_test(tcase, nothing_is_freed_while_a_link_is_not_known);
    suite_add_tcase(suite, tcase);
    return dlx_test_run(suite);
}
