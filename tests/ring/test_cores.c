/* SPDX-License-Identifier: Apache-2.0 */

/* Writer and reader of a ring, step by step: publish, take, the end, hostile peers. */

#include "tests/ring/harness_cores.h"

TEST(a_batch_may_fill_the_ring)
{
    struct dlx_taken taken[HELD];
    begin();
    for (int round = 0; round < 5; round++) {
        unsigned n = 0;
        reclaim_all();
        ck_assert_int_eq(dlx__writer_make_room(&f.w), 0);
        for (; dlx__writer_has_room(&f.w); n++)
            put(1);
        ck_assert_uint_eq(n, ENTRIES - 1 - (round ? WINDOW : 0)); /* one is for the mark */
        ck_assert(dlx__reader_pending(&reader));
        ck_assert_int_eq(dlx__reader_take(&reader, taken, HELD), HELD);
        for (uint32_t i = 0; i < HELD; i++) {
            ck_assert(dlx_test_is_of(taken[i].words, taken[i].n));
            dlx__reader_release(&reader, taken[i].hold);
        }
        dlx__writer_announce(&f.w);
        ck_assert_uint_eq(f.w.head + 1 - f.w.oldest, WINDOW);
    }
}

TEST(an_announcement_wakes_for_a_whole_batch)
{
    begin();
    ck_assert(dlx__reader_arm(&reader));
    put(3);
    ck_assert_uint_eq(f.n_rung, 0);
    dlx__writer_announce(&f.w);
    ck_assert_uint_eq(f.n_rung, 1);
    publish(1);
    ck_assert_uint_eq(f.n_rung, 1);
    ck_assert(!dlx__reader_arm(&reader)); /* there is something: it need not sleep */
}

TEST(a_reader_hears_which_gpu_memory_was_freed)
{
    uint64_t seen = 0, ids[DLX_SHM_FREED];
    begin();
    ck_assert_uint_eq(dlx__reader_freed(&reader, &seen, ids), 0);
    for (uint64_t id = 1; id < 100; id += 3) { /* round and round */
        for (uint64_t i = 0; i < 3; i++)
            dlx__writer_note_freed(&f.w, id + i);
        ck_assert_uint_eq(dlx__reader_freed(&reader, &seen, ids), 3);
        for (uint64_t i = 0; i < 3; i++)
            ck_assert_uint_eq(ids[i], id + i);
    }
    for (uint64_t i = 0; i < DLX_SHM_FREED - 1; i++)
        dlx__writer_note_freed(&f.w, 200 + i);
    ck_assert_uint_eq(dlx__reader_freed(&reader, &seen, ids), DLX_SHM_FREED - 1);
    for (uint64_t i = 0; i < DLX_SHM_FREED; i++)
        dlx__writer_note_freed(&f.w, 300 + i);
    ck_assert_uint_eq(dlx__reader_freed(&reader, &seen, ids), DLX_READER_FREED_MANY);
    ck_assert_uint_eq(dlx__reader_freed(&reader, &seen, ids), 0);
}

TEST(a_reader_that_sleeps_is_woken_once_for_freed_gpu_memory)
{
    uint64_t seen = 0, ids[DLX_SHM_FREED];
    begin();
    dlx__writer_note_freed(&f.w, 1);
    ck_assert_uint_eq(f.n_rung, 0);
    ck_assert(dlx__reader_arm(&reader));
    ck_assert_uint_eq(dlx__reader_freed(&reader, &seen, ids), 1); /* before it sleeps */
    dlx__writer_note_freed(&f.w, 2);
    dlx__writer_note_freed(&f.w, 3);
    ck_assert_uint_eq(f.n_rung, 1);
    ck_assert_uint_eq(dlx__reader_freed(&reader, &seen, ids), 2);
}

TEST(a_take_gives_no_more_than_can_be_held)
{
    struct dlx_taken taken[2 * HELD];
    begin();
    put(ENTRIES - 1);
    dlx__writer_announce(&f.w);
    ck_assert_int_eq(dlx__reader_take(&reader, taken, 2 * HELD), WINDOW); /* others are retired */
    ck_assert_uint_eq(taken[0].gap, ENTRIES - 1 - WINDOW);
    publish(2);
    ck_assert_int_eq(dlx__reader_take(&reader, taken + WINDOW, 2), HELD - WINDOW);
    take_fails(&reader, DLX_E_TOO_MANY_HELD);
    ck_assert_uint_eq(dlx__reader_n_held(&reader), HELD);
    ck_assert_uint_eq(dlx__writer_link_n_held(&f.link), HELD);
}

TEST(a_take_of_none_fails_only_if_there_is_a_message)
{
    struct dlx_taken taken;
    begin();
    ck_assert_int_eq(dlx__reader_take(&reader, &taken, 0), DLX_E_EMPTY);
    publish(1);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(dlx__reader_take(&reader, &taken, 0), DLX_E_TOO_MANY_HELD);
    ck_assert_uint_eq(dlx__reader_n_held(&reader), 0);
    (void)take(&reader, 1);
    dlx__writer_close(&f.w);
    ck_assert_int_eq(dlx__reader_take(&reader, &taken, 0), DLX_E_PUBLISHER_GONE);
}

TEST(a_lapped_reader_goes_on_at_the_oldest_message)
{
    begin();
    publish(100);
    (void)take_after_gap(&reader, 100 + 1 - WINDOW, 100 - WINDOW);
    ck_assert_uint_eq(reader.lost, 100 - WINDOW);
}

TEST(a_latest_reader_skips_to_the_newest_message)
{
    struct dlx_taken taken[2];
    begin_lossy(true, 0, 0);
    publish(2);
    ck_assert_int_eq(dlx__reader_take(&reader, taken, 2), 1);
    ck_assert_uint_eq(taken[0].n, 2);
    publish(4);
    ck_assert_int_eq(dlx__reader_take(&reader, taken, 2), 1);
    ck_assert_uint_eq(taken[0].n, 6);
    ck_assert_uint_eq(reader.skipped, 1 + 3);
    ck_assert_uint_eq(reader.lost, 0);
}

TEST(a_reader_starts_with_the_history_it_asks_for)
{
    publish(WINDOW);
    for (uint32_t history = 0; history < 5; history++) {
        begin_lossy(false, history, 0);
        ck_assert_uint_eq(reader.cursor, WINDOW - DLX_MIN(history, WINDOW));
        begin_lossy(false, history, 2); /* 1 and 2 are not in this block */
        ck_assert_uint_eq(reader.cursor, DLX_MAX(WINDOW - DLX_MIN(history, WINDOW), 2U));
    }
}

TEST(a_reader_that_joins_within_a_batch_finds_the_newest_message)
{
    put(4); /* head is not stored yet */
    begin_lossy(false, 1, 0);
    ck_assert_uint_eq(reader.cursor, 3);
}

/* dlx_publisher_wait() waits for readers of any kind. */
TEST(a_reader_that_starts_rings_although_nobody_waits_for_what_it_takes)
{
    dlx__writer_set_blocked(&f.w, true);
    begin_lossy(true, 0, 0);
    ck_assert_uint_eq(f.n_rung_writer, 1);
}

TEST(the_end_comes_after_the_last_message)
{
    begin();
    publish(1);
    ck_assert(!dlx__reader_is_closed(&reader));
    (void)take(&reader, 1);
    take_fails(&reader, DLX_E_EMPTY);
    ck_assert(dlx__reader_arm(&reader));
    dlx__writer_close(&f.w);
    ck_assert_uint_eq(f.n_rung, 1);
    ck_assert(dlx__reader_pending(&reader) && dlx__reader_is_closed(&reader));
    take_fails(&reader, DLX_E_PUBLISHER_GONE);
    ck_assert_uint_eq(reader.cursor, 1);
}

TEST(the_end_of_a_full_ring_leaves_all_messages)
{
    struct dlx_taken taken[ENTRIES];
    begin_lossy(false, 0, 0);
    put(ENTRIES - 1);
    f.w.announced = f.w.head; /* as if `window` were as large */
    dlx__writer_close(&f.w);
    ck_assert_int_eq(dlx__reader_take(&reader, taken, ENTRIES), HELD);
    ck_assert_uint_eq(taken[0].n, 1);
}

TEST(a_move_is_not_the_end)
{
    begin();
    publish(1);
    (void)move(1);
    ck_assert(!dlx__reader_is_closed(&reader));
    (void)take(&reader, 1);
    take_fails(&reader, DLX_E_NOT_FOUND);
}

TEST(a_retired_message_is_lost_and_the_end_follows)
{
    begin();
    dlx__reader_close(&reader);
    publish(WINDOW);
    reclaim_all(); /* 1 is GONE */
    dlx__writer_close(&f.w);
    begin_other();
    ck_assert(dlx__reader_pending(&other_reader));
    (void)take(&other_reader, 1); /* the other link had yet to start */
    ck_assert_int_eq(dlx__writer_reclaim(&f.w, true), 1);
    (void)take(&other_reader, 2);
    publish(0);
    (void)take(&other_reader, 3);
    take_fails(&other_reader, DLX_E_PUBLISHER_GONE);
    ck_assert_uint_eq(other_reader.cursor, WINDOW);
}

static const uint64_t bad[] = {0,
                               1,
                               ENTRIES,
                               DLX_SHM_MOVED - 1,
                               DLX_SHM_MOVED,
                               DLX_SHM_END,
                               DLX_SHM_GONE,
                               DLX_SHM_GONE - 1,
                               UINT64_MAX - 1,
                               UINT64_MAX};

/* Whatever the words say, a reader returns, with numbers that go up. */
LOOP_TEST(a_hostile_control_block_does_not_keep_a_reader, 0, 4)
{
    for (size_t g = 0; g < DLX_ARRAY_SIZE(bad); g++)
        for (size_t h = 0; h < DLX_ARRAY_SIZE(bad); h++)
            for (size_t o = 0; o < DLX_ARRAY_SIZE(bad); o++) {
                struct dlx_taken taken[HELD];
                memset(f.page, 0, dlx_shm_link_size(HELD));
                for (uint32_t i = 0; i < ENTRIES; i++)
                    dlx_store64_relaxed(&f.control->entries[i].gen, bad[g] + i);
                dlx_store64_relaxed(&f.control->head, bad[h]);
                dlx_store64_relaxed(&f.control->oldest, bad[o]);
                dlx__reader_init(&reader, f.control, ENTRIES, 0, f.page, 0, HELD, _i == 0, _i == 1,
                                 true, &reader_env, NULL);
                dlx__reader_start(&reader, _i == 2 ? 2 : 0);
                (void)dlx__reader_is_closed(&reader);
                for (int i = 0; i < 4; i++) {
                    uint64_t before = reader.cursor;
                    int n = dlx__reader_take(&reader, taken, HELD);
                    ck_assert(reader.cursor >= before && reader.cursor < UINT64_MAX / 2);
                    ck_assert(dlx_load64_relaxed(&f.page->cursor) != DLX_SHM_CURSOR_CLOSED);
                    ck_assert(n <= (int)HELD && n != 0);
                    for (int k = 0; k < n; k++) {
                        ck_assert(taken[k].n > before);
                        dlx__reader_release(&reader, taken[k].hold);
                    }
                    ck_assert_uint_eq(dlx__reader_n_held(&reader), 0);
                }
            }
}

TEST(a_hostile_link_page_hurts_only_its_own_link)
{
    begin_other();
    publish(1);
    (void)take(&other_reader, 1);
    for (size_t k = 0; k < DLX_ARRAY_SIZE(bad); k++) {
        dlx_store64_relaxed(&f.page->n_used, bad[k]);
        for (size_t c = 0; c < DLX_ARRAY_SIZE(bad); c++) {
            dlx_store64_relaxed(&f.page->cursor, bad[c] == UINT64_MAX ? 5 : bad[c]);
            dlx_store64_relaxed(&f.page->hold[c % HELD], bad[k]);
            dlx_store64_relaxed(f.link.ticket, bad[c]);
            publish(2);
            (void)dlx__writer_reclaim(&f.w, c % 2);
            ck_assert_uint_le(dlx__writer_link_n_held(&f.link), HELD);
            ck_assert_uint_le(f.w.n_retired, HELD + 1);
            ck_assert(f.w.oldest == 1 || f.w.retired[0].n == 1); /* an honest one holds it */
        }
    }
}

/* An entry is at most one batch ahead of head, which the ring bounds. */
TEST(an_entry_one_ring_ahead_of_head_is_believed_and_the_next_is_not)
{
    static const uint64_t lies[] = {1 + 2 * ENTRIES, 1 + ENTRIES + 1};
    begin();
    publish(1);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(lies); i++) {
        dlx_store64_relaxed(&f.control->entries[1].gen, lies[i]);
        take_fails(&reader, DLX_E_BAD_PEER);
        ck_assert_str_ne(dlx__error_message(), "");
    }
    dlx_store64_relaxed(&f.control->entries[1].gen, 1 + ENTRIES);
    dlx_store64_relaxed(&f.control->head, UINT64_MAX);
    take_fails(&reader, DLX_E_BAD_PEER);
    ck_assert_uint_eq(reader.cursor, 0);
    ck_assert_uint_eq(reader.lost, 0);
    dlx_store64_relaxed(&f.control->head, 1);
    take_fails(&reader, DLX_E_EMPTY);
    ck_assert_uint_eq(reader.lost, 1);
}

/* Each entry is one that the reader has missed, and so is the next one that it looks for. */
TEST(a_head_that_runs_away_is_left_after_two_rings)
{
    const uint64_t far = 10000 * ENTRIES;
    begin();
    for (uint64_t i = 0; i < ENTRIES; i++)
        dlx_store64_relaxed(&f.control->entries[i].gen, far + i);
    dlx_store64_relaxed(&f.control->head, far);
    for (uint64_t n = 1; n <= 3; n++) {
        take_fails(&reader, DLX_E_EMPTY);
        ck_assert_uint_eq(reader.lost, n * 2 * ENTRIES);
    }
}

/* The number goes into an error text, and its cursor is the peer's. */
TEST(only_a_reliable_link_that_is_a_window_behind_blocks)
{
    static const uint64_t passed[] = {1, WINDOW + 9, DLX_SHM_CURSOR_CLOSED};
    begin();
    publish(WINDOW);
    ck_assert_uint_eq(dlx__writer_link_lag(&f.w, &f.link), 0);
    f.link.reliable = true;
    ck_assert_uint_eq(dlx__writer_link_lag(&f.w, &f.link), WINDOW);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(passed); i++) {
        dlx_store64_relaxed(&f.page->cursor, passed[i]);
        ck_assert_uint_eq(dlx__writer_link_lag(&f.w, &f.link), 0);
    }
}

int main(void)
{
    TCase *tcase = tcase_create("dropping");
    tcase_add_checked_fixture(tcase, setup, end_writer);
    return dlx_test_run_case(tcase);
}
