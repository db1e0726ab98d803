/* SPDX-License-Identifier: Apache-2.0 */

/* Writer and reader of a ring, step by step: what is freed, links that come and go, other
 * blocks. */

#include "tests/ring/harness_cores.h"

CASE(dropping)
{
    TCase *tcase = tcase_create("dropping");
    tcase_add_checked_fixture(tcase, setup, end_writer);
    return tcase;
}

TEST_OF(dropping, a_held_message_is_not_freed)
{
    begin();
    begin_other();
    publish(2);
    uint32_t first = take(&reader, 1), second = take(&reader, 2);
    uint32_t other_hold = take(&other_reader, 1);
    publish(5);
    reclaim_until_freed(7 - WINDOW - 2); /* the other one has not passed the rest */
    dlx__reader_release(&reader, second);
    dlx__reader_release(&reader, first);
    reclaim_until_freed(7 - WINDOW - 1);
    dlx__reader_release(&other_reader, other_hold);
    reclaim_until_freed(7 - WINDOW);
}

TEST_OF(dropping, messages_that_all_have_passed_go_but_for_kept_ones)
{
    leave_both();
    publish(WINDOW);
    reclaim_until_freed(WINDOW - KEPT);
    ck_assert_uint_eq(dlx__writer_reclaim(&f.w, true), 0);
    ck_assert_uint_eq(f.w.n_payloads, KEPT);
}

/* However long it takes nothing. */
TEST_OF(dropping, a_reader_of_the_newest_alone_keeps_no_message)
{
    f.link.is_passed_over = true;
    begin_lossy(true, 0, 0);
    begin_other();
    dlx__reader_close(&other_reader);
    publish(WINDOW);
    reclaim_until_freed(WINDOW - KEPT);
    (void)take_after_gap(&reader, WINDOW, WINDOW - 1);
}

TEST_OF(dropping, reclaim_drops_one_message_that_was_not_passed)
{
    begin();
    publish(WINDOW);
    ck_assert_uint_eq(dlx__writer_reclaim(&f.w, false), 0);
    ck_assert_uint_eq(dlx__writer_reclaim(&f.w, true), 2); /* retired and freed */
    ck_assert_uint_eq(f.n_freed, 1);
    ck_assert_uint_eq(dlx__writer_reclaim(&f.w, true), 0); /* the others are kept */
}

CASE(gating)
{
    TCase *tcase = tcase_create("gating");
    tcase_add_checked_fixture(tcase, setup_gating, end_writer);
    return tcase;
}

static void begin_reliable(void)
{
    ck_assert_int_eq(dlx__writer_link_add(&f.w, &f.link), 0);
    begin();
}

TEST_OF(gating, reclaim_does_not_drop_what_a_reliable_link_has_not_passed)
{
    begin_reliable();
    publish(WINDOW);
    ck_assert_uint_eq(dlx__writer_reclaim(&f.w, true), 0);
}

/* The writer may not see a reader yet that joined before they were put: only dlx__writer_announce()
 * has a fence. */
TEST_OF(dropping, reclaim_leaves_what_was_not_announced)
{
    leave_both();
    publish(KEPT);
    put(3);
    reclaim_all();
    ck_assert_uint_eq(f.w.oldest, 1);
    dlx__writer_announce(&f.w);
    reclaim_all();
    ck_assert_uint_eq(f.w.oldest, 3 + 1);
}

TEST_OF(dropping, hold_words_that_were_never_used_are_not_looked_at)
{
    begin();
    publish(1);
    (void)take(&reader, 1);
    ck_assert_uint_eq(dlx_load64_relaxed(&f.page->n_used), 1);
    dlx_store64_relaxed(&f.page->hold[1], 2);
    publish(4);
    reclaim_until_freed(1); /* 2; 1 is held */
    ck_assert_uint_eq(dlx__writer_link_n_held(&f.link), 1);
}

TEST_OF(dropping, messages_held_one_at_a_time_need_one_word)
{
    uint32_t hold[3];
    begin();
    for (int i = 0; i < 20; i++) {
        publish(1);
        hold[0] = take(&reader, (uint64_t)i + 1);
        ck_assert_uint_eq(hold[0], 0);
        dlx__reader_release(&reader, hold[0]);
    }
    publish(3);
    for (unsigned i = 0; i < 3; i++) { /* several: each has its own */
        hold[i] = take(&reader, 21 + i);
        for (unsigned k = 0; k < i; k++)
            ck_assert_uint_ne(hold[i], hold[k]);
    }
}

TEST_OF(dropping, the_table_of_payloads_grows)
{
    uint32_t room = f.w.payloads_room;
    begin();
    begin_other();
    publish(1);
    (void)take(&reader, 1);
    publish(5 * room); /* no call reclaims */
    ck_assert_uint_gt(f.w.payloads_room, 5 * room);
    ck_assert_uint_eq(f.w.n_payloads, 1 + 5 * room);
    reclaim_all();
    ck_assert_uint_eq(f.w.n_payloads, WINDOW + 1);
}

/* The daemon has it, and has yet to tell: it may hold anything. */
TEST_OF(dropping, nothing_is_freed_while_a_link_is_missing)
{
    dlx_store64_relaxed(&f.membership.joins, 3); /* two were picked up */
    publish(WINDOW + 2);
    reclaim_until_freed(0);
    /* The daemon takes it back: it left before that. */
    dlx_store64_relaxed(&f.membership.joins, 2);
    reclaim_until_freed(2);
}

TEST_OF(gating, a_gating_writer_retires_nothing_while_a_link_is_missing)
{
    dlx_store64_relaxed(&f.membership.joins, 1);
    publish(WINDOW);
    ck_assert_int_eq(dlx__writer_make_room(&f.w), DLX_E_FULL);
    ck_assert_uint_eq(f.w.oldest, 1);
    dlx_store64_relaxed(&f.membership.joins, 0);
    ck_assert_int_eq(dlx__writer_make_room(&f.w), 0);
}

TEST_OF(gating, a_gating_writer_is_full_until_a_reliable_reader_takes)
{
    begin_reliable();
    publish(WINDOW);
    dlx__writer_set_blocked(&f.w, true);
    ck_assert_int_eq(dlx__writer_make_room(&f.w), DLX_E_FULL);
    uint32_t hold = take(&reader, 1);
    ck_assert_uint_eq(f.n_rung_writer, 1);
    ck_assert_int_eq(dlx__writer_make_room(&f.w), 0);
    dlx__writer_set_blocked(&f.w, false);
    dlx__reader_release(&reader, hold);
    ck_assert_uint_eq(f.n_rung_writer, 1);
    publish(1);
    ck_assert_int_eq(dlx__writer_make_room(&f.w), DLX_E_FULL);
    dlx__writer_set_blocked(&f.w, true);
    dlx__reader_close(&reader);
    ck_assert_uint_eq(f.n_rung_writer, 2);
    ck_assert_int_eq(dlx__writer_make_room(&f.w), 0);
}

TEST_OF(gating, a_reader_rings_once_for_each_look_of_a_writer_that_waits)
{
    begin_reliable();
    publish(WINDOW);
    dlx__writer_set_blocked(&f.w, true);
    uint32_t first = take(&reader, 1), second = take(&reader, 2);
    ck_assert_uint_eq(f.n_rung_writer, 1);
    dlx__writer_set_blocked(&f.w, true);
    (void)take(&reader, 3);
    ck_assert_uint_eq(f.n_rung_writer, 2);
    /* as publishers that know no numbers, and those that have moved */
    dlx_store32_relaxed(&f.w.block->control->blocked, DLX_SHM_BLOCKED_ALWAYS);
    dlx__reader_release(&reader, first);
    dlx__reader_release(&reader, second);
    ck_assert_uint_eq(f.n_rung_writer, 4);
}

TEST_OF(gating, a_new_link_does_not_keep_more_than_window_messages)
{
    publish(WINDOW);
    ck_assert_int_eq(dlx__writer_make_room(&f.w), 0);
    f.waiting[f.n_waiting++] = &f.link;
    dlx_store64_relaxed(&f.membership.joins, 1);
    put(1);
    dlx__writer_announce(&f.w);
    ck_assert_uint_eq(f.w.n_links, 1);
    ck_assert_uint_eq(f.w.head + 1 - f.w.oldest, WINDOW);
    ck_assert_int_eq(dlx__writer_make_room(&f.w), DLX_E_FULL);
}

TEST_OF(gating, a_link_that_is_picked_up_late_with_another_one_is_woken)
{
    dlx_store64_relaxed(&f.membership.joins, 1);
    begin();
    ck_assert(dlx__reader_arm(&reader));
    publish(1);
    ck_assert_uint_eq(f.n_rung, 0); /* its packet is missing */
    dlx_store64_relaxed(&f.membership.joins, 2);
    f.waiting[f.n_waiting++] = &f.link;
    f.waiting[f.n_waiting++] = &f.other;
    (void)dlx__writer_reclaim(&f.w, false);
    ck_assert_uint_eq(f.w.n_links, 2);
    ck_assert_uint_eq(f.n_rung, 1);
}

TEST_OF(dropping, a_link_that_left_goes_although_no_daemon_says_so)
{
    begin();
    publish(20);
    dlx__reader_close(&reader);
    dlx__writer_reclaim(&f.w, false);
    ck_assert_uint_eq(f.n_links_gone, 1);
}

TEST_OF(dropping, a_link_that_left_goes_with_what_it_held_last)
{
    begin();
    publish(2);
    uint32_t first = take(&reader, 1), second = take(&reader, 2);
    dlx__reader_close(&reader);
    dlx_store64_relaxed(&f.membership.leaves, 1);
    publish(5);
    for (int i = 0; i < 3; i++) { /* as often as it is asked: it stays */
        reclaim_until_freed(2);   /* 3 and 4 */
        ck_assert_uint_eq(f.n_links_gone, 0);
    }
    dlx__reader_release(&reader, first);
    reclaim_until_freed(3);
    ck_assert_uint_eq(f.n_links_gone, 0);
    dlx__reader_release(&reader, second);
    reclaim_until_freed(4);
    ck_assert_uint_eq(f.n_links_gone, 1);
}

/* The writer does not trust an earlier look at the links that left. */
TEST_OF(dropping, a_message_held_when_a_link_left_is_freed_when_it_is_released)
{
    begin();
    publish(1);
    uint32_t hold = take(&reader, 1);
    dlx__reader_close(&reader);
    publish(WINDOW);
    dlx_store64_relaxed(&f.membership.leaves, 1);
    dlx__writer_read_membership(&f.w);
    dlx__reader_release(&reader, hold);
    ck_assert_uint_eq(dlx__writer_reclaim(&f.w, false), 1);
    ck_assert_uint_eq(f.n_freed, 1);
}

TEST_OF(dropping, a_dead_link_holds_nothing)
{
    begin();
    publish(1);
    (void)take(&reader, 1);
    publish(WINDOW);
    reclaim_until_freed(0);
    f.link.dead = true;
    reclaim_until_freed(1);
    ck_assert_uint_eq(f.n_links_gone, 1);
}

TEST_OF(dropping, bytes_of_a_link_are_those_of_what_it_holds_but_the_newest)
{
    uint32_t hold[3];
    begin();
    ck_assert_uint_eq(dlx__writer_link_bytes(&f.w, &f.link), 0);
    publish(3);
    for (unsigned i = 0; i < 3; i++) {
        hold[i] = take(&reader, i + 1);
        ck_assert_uint_eq(dlx__writer_link_bytes(&f.w, &f.link), 10 * i);
        ck_assert_uint_eq(dlx__writer_link_n_used(&f.link), i + 1);
    }
    publish(WINDOW); /* retired by now */
    ck_assert_uint_eq(dlx__writer_link_bytes(&f.w, &f.link), 20);
    dlx__reader_release(&reader, hold[1]);
    ck_assert_uint_eq(dlx__writer_link_bytes(&f.w, &f.link), 10);
    dlx__reader_release(&reader, hold[0]);
    ck_assert_uint_eq(dlx__writer_link_bytes(&f.w, &f.link), 0);
    ck_assert_uint_eq(dlx__writer_link_n_used(&f.link), 3);
    dlx__reader_release(&reader, hold[2]);
}

/* Such numbers pin nothing. The writer takes the greatest number for the newest, whatever it is. */
TEST_OF(dropping, numbers_of_no_message_have_no_bytes)
{
    static const uint64_t numbers[] = {5, 1, 100, UINT64_MAX, DLX_SHM_GONE | 4};
    publish(WINDOW + 2);
    reclaim_all(); /* 1 and 2 are free */
    dlx_store64_relaxed(&f.page->n_used, UINT64_MAX);
    ck_assert_uint_eq(dlx__writer_link_n_used(&f.link), HELD);
    dlx_store64_relaxed(&f.page->hold[0], 4);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(numbers); i++) {
        dlx_store64_relaxed(&f.page->hold[1], numbers[i]);
        ck_assert_uint_eq(dlx__writer_link_bytes(&f.w, &f.link), numbers[i] == 1 ? 0 : 10);
    }
}

static uint32_t busy_hold;

static void release_and_take(void)
{
    f.on_bytes = NULL;
    dlx__reader_release(&reader, busy_hold);
    ck_assert_uint_eq(take(&reader, 4), busy_hold);
}

/* Or an honest reader could be said to hold more than it ever did. */
TEST_OF(dropping, messages_released_and_taken_during_a_look_do_not_count)
{
    begin();
    publish(3);
    for (unsigned i = 1; i <= 3; i++)
        busy_hold = take(&reader, i);
    publish(1);
    f.on_bytes = release_and_take;
    ck_assert_uint_eq(dlx__writer_link_bytes(&f.w, &f.link), 10); /* 1, and not 2, the newest */
    ck_assert_uint_eq(dlx__writer_link_bytes(&f.w, &f.link), 20); /* 1 and 2, and not 4 */
}

TEST_OF(dropping, both_copies_stay_while_one_is_held)
{
    begin();
    publish(3);
    uint32_t first = take(&reader, 1), second = take(&reader, 2);
    const struct dlx_shm_control *control = move(2);
    begin_in(&other_reader, f.other_page, control, 1);
    uint32_t late_hold = take(&other_reader, 2);
    publish(7);
    ck_assert_uint_eq(f.n_blocks_gone, 1); /* 1 to 3 are retired */
    reclaim_until_freed(4 + 2);            /* 3 twice, 4 to 7 once */
    dlx__reader_release(&reader, second);
    reclaim_until_freed(6); /* the copy is held */
    dlx__reader_release(&other_reader, late_hold);
    reclaim_until_freed(8); /* 2 twice */
    dlx__reader_release(&reader, first);
    reclaim_until_freed(9);
    dlx__writer_deinit(&f.w);
    ck_assert_uint_eq(f.n_freed, 12);
}

TEST_OF(dropping, a_message_may_be_in_many_blocks)
{
    publish(3);
    for (int i = 0; i < 5; i++)
        (void)move(3);
    ck_assert_uint_eq(f.w.n_payloads, 3 * 6);
    publish(50);
    ck_assert_uint_eq(f.n_blocks_gone, 5);
    dlx__writer_deinit(&f.w);
    ck_assert_uint_eq(f.n_freed, 3 * 6 + 50);
}

/* Half of the copies were made when it failed. */
TEST_OF(dropping, copies_in_a_block_that_is_not_used_are_freed)
{
    struct dlx_writer_block *block;
    uint64_t words[DLX_SHM_ENTRY_WORDS];
    publish(3);
    ck_assert_int_eq(dlx__writer_block_new(&f.w, new_control(), ENTRIES, 2, &block), 0);
    dlx__writer_copy_retained(block, 2, words, dlx__writer_payload(&f.w, 2, words));
    dlx__writer_block_free(&f.w, block);
    ck_assert_uint_eq(f.n_freed, 1);
    ck_assert_uint_eq(f.w.n_payloads, 3);
    dlx__writer_block_free(&f.w, NULL);
    ck_assert(dlx_test_blocks_are_right(&f.w));
}

/* The block between has nothing of it. */
TEST_OF(dropping, a_message_is_retired_in_every_block_that_has_it)
{
    publish(3);
    (void)move(0);
    (void)move(2);
    for (int i = 0; i < 3; i++) {
        publish(1);
        ck_assert(dlx_test_blocks_are_right(&f.w));
    }
    reclaim_until_freed(3 + 2);
}

TEST_OF(dropping, messages_passed_on_another_link_are_not_taken_again)
{
    publish(3);
    const struct dlx_shm_control *control = move(2); /* 2 and 3 */
    publish(1);
    begin_in(&reader, f.page, control, 1);
    dlx__reader_follow(&reader, 3, 0);
    (void)take(&reader, 4);
    ck_assert_uint_eq(reader.lost, 0);
}

TEST_OF(dropping, messages_between_two_links_are_lost_once)
{
    publish(3);
    const struct dlx_shm_control *control = move(1); /* 3 */
    begin_in(&reader, f.page, control, 2);
    dlx__reader_follow(&reader, 1, 1); /* 1 was lost there */
    ck_assert_uint_eq(reader.lost, 1); /* 2 */
    ck_assert_uint_eq(dlx__reader_untold(&reader), 2);
    (void)take_after_gap(&reader, 3, 2);
    ck_assert_uint_eq(dlx__reader_untold(&reader), 0);
}

TEST_OF(gating, a_reader_left_in_an_old_block_rings)
{
    begin_reliable();
    publish(WINDOW);
    (void)move(WINDOW);
    ck_assert_int_eq(dlx__writer_make_room(&f.w), DLX_E_FULL);
    (void)take(&reader, 1);
    ck_assert_uint_eq(f.n_rung_writer, 1);
    ck_assert_int_eq(dlx__writer_make_room(&f.w), 0);
}

TEST_OF(dropping, a_new_block_names_its_oldest_message_and_its_copies_count)
{
    publish(WINDOW);
    for (uint32_t n_copied = 0; n_copied <= KEPT; n_copied++) {
        uint32_t before = f.w.n_payloads;
        const struct dlx_shm_control *control = move(n_copied);
        ck_assert_uint_eq(dlx_load64_relaxed((dlx_atomic_u64 *)(uintptr_t)&control->oldest),
                          f.w.head - n_copied + 1);
        ck_assert_uint_eq(f.w.n_payloads, before + n_copied);
    }
}

int main(void)
{
    return dlx_test_run_cases();
}
