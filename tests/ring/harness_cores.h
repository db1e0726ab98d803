/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_CORES_H
#define DLX_TESTS_HARNESS_CORES_H

/* A writer and two links, for tests that go step by step. */

#include "tests/harness/ring.h"
#include "tests/harness/run.h"

#define ENTRIES 8U
#define WINDOW  3U
#define KEPT    2U
#define HELD    4U

static struct fixture {
    struct dlx_writer w;
    struct dlx_shm_membership membership;
    struct dlx_shm_control *control; /* of the first block */
    struct dlx_shm_link *page, *other_page;
    struct dlx_writer_link link, other;
    struct dlx_writer_link *waiting[2]; /* for pick_up() */
    unsigned n_waiting, n_pick_ups;
    struct dlx_shm_control *controls[8]; /* of all blocks: readers may still be in them */
    unsigned n_controls, n_freed, n_blocks_gone, n_links_gone, n_rung, n_rung_writer;
    uint64_t n_undone;
    void (*on_bytes)(void); /* when a writer counts bytes */
} f;
static struct dlx_reader reader, other_reader;
static int payload; /* they are counted, not looked at */

static inline void pick_up(void *userdata)
{
    (void)userdata;
    f.n_pick_ups++;
    while (f.n_waiting > 0)
        ck_assert_int_eq(dlx__writer_link_add(&f.w, f.waiting[--f.n_waiting]), 0);
}

static inline void ring(void *userdata, struct dlx_writer_link *link)
{
    (void)userdata;
    (void)link;
    f.n_rung++;
}

static inline void ring_writer(void *userdata)
{
    (void)userdata;
    f.n_rung_writer++;
}

static inline void link_gone(void *userdata, struct dlx_writer_link *link)
{
    (void)userdata;
    (void)link;
    f.n_links_gone++;
}

static inline void payload_freed(void *userdata, void *p)
{
    (void)userdata;
    ck_assert_ptr_eq(p, &payload);
    f.n_freed++;
}

/* As many as the harness says; and the test may do something meanwhile. */
static inline uint64_t payload_bytes(void *userdata, const void *p)
{
    (void)userdata;
    ck_assert_ptr_eq(p, &payload);
    if (f.on_bytes)
        f.on_bytes();
    return 10;
}

static inline void block_gone(void *userdata, const struct dlx_writer_block *block)
{
    (void)userdata;
    (void)block;
    f.n_blocks_gone++;
}

static inline void undone(void *userdata, uint64_t n)
{
    (void)userdata;
    f.n_undone += n;
}

static const struct dlx_writer_env env = {.pick_up = pick_up,
                                          .ring = ring,
                                          .look_for_dead = dlx_test_ignore,
                                          .link_gone = link_gone,
                                          .payload_freed = payload_freed,
                                          .payload_bytes = payload_bytes,
                                          .undone = undone,
                                          .block_gone = block_gone};
static const struct dlx_reader_env reader_env = {.ring = ring_writer};

static inline struct dlx_shm_control *new_control(void)
{
    ck_assert_uint_lt(f.n_controls, DLX_ARRAY_SIZE(f.controls));
    return f.controls[f.n_controls++] = dlx_test_control(ENTRIES);
}

static inline void begin_writer(bool gating)
{
    f = (struct fixture){.n_freed = 0};
    f.control = new_control();
    ck_assert_int_eq(
        dlx__writer_init(&f.w, f.control, ENTRIES, WINDOW, KEPT, gating, &f.membership, &env, NULL),
        0);
    f.page = dlx_test_link(&f.link, 0, HELD, gating, false);
    f.other_page = dlx_test_link(&f.other, 1, HELD, gating, false);
}

static inline void end_writer(void)
{
    dlx__writer_deinit(&f.w);
    for (unsigned i = 0; i < f.n_controls; i++)
        free(f.controls[i]);
    free(f.page);
    free(f.other_page);
}

/* A dropping writer, which knows both links. */
static inline void setup(void)
{
    begin_writer(false);
    ck_assert_int_eq(dlx__writer_link_add(&f.w, &f.link), 0);
    ck_assert_int_eq(dlx__writer_link_add(&f.w, &f.other), 0);
}

/* A gating writer, which knows no reader yet. */
static inline void setup_gating(void)
{
    begin_writer(true);
}

static inline void put(unsigned n)
{
    while (n-- > 0)
        dlx_test_put(&f.w, &payload);
}

static inline void publish(unsigned n)
{
    while (n-- > 0) {
        if (!dlx__writer_has_room(&f.w))
            ck_assert_int_eq(dlx__writer_make_room(&f.w), 0);
        put(1);
        dlx__writer_announce(&f.w);
    }
}

static inline void reclaim_all(void)
{
    dlx_test_reclaim_all(&f.w);
}

/* Reclaim what can be: so many payloads have been freed then, in all. */
static inline void reclaim_until_freed(unsigned n)
{
    reclaim_all();
    ck_assert_uint_eq(f.n_freed, n);
}

/* Go on in another block with the newest messages. */
static inline struct dlx_shm_control *move(uint32_t n_copied)
{
    struct dlx_writer_block *block;
    uint64_t words[DLX_SHM_ENTRY_WORDS];
    struct dlx_shm_control *control = new_control();
    ck_assert_int_eq(dlx__writer_block_new(&f.w, control, ENTRIES, n_copied, &block), 0);
    for (uint64_t n = f.w.head - n_copied + 1; n <= f.w.head; n++) {
        ck_assert_ptr_eq(dlx__writer_payload(&f.w, n, words), &payload);
        ck_assert(dlx_test_is_of(words, n));
        dlx__writer_copy_retained(block, n, words, &payload);
    }
    dlx__writer_move(&f.w, block);
    ck_assert(dlx_test_blocks_are_right(&f.w));
    return control;
}

/* On one of the pages, which is then the reader's. */
static inline void begin_in(struct dlx_reader *r, struct dlx_shm_link *page,
                            const struct dlx_shm_control *control, uint64_t base)
{
    dlx__reader_init(r, control, ENTRIES, base, page, page == f.other_page, HELD, false, f.w.gating,
                     true, &reader_env, NULL);
    dlx__reader_start(r, DLX_READER_ALL);
}

/* In the first block, from its first message on. */
static inline void begin(void)
{
    begin_in(&reader, f.page, f.control, 0);
}

static inline void begin_other(void)
{
    begin_in(&other_reader, f.other_page, f.control, 0);
}

/* A reader that the writer does not wait for: of all messages from `history` before the newest, or
 * of the latest. */
static inline void begin_lossy(bool latest, uint32_t history, uint64_t base)
{
    dlx__reader_init(&reader, f.control, ENTRIES, base, f.page, 0, HELD, latest, false, false,
                     &reader_env, NULL);
    dlx__reader_start(&reader, history);
}

/* Both have left, and passed everything. */
static inline void leave_both(void)
{
    begin();
    dlx__reader_close(&reader);
    begin_other();
    dlx__reader_close(&other_reader);
}

/* The next message is this one, and says that so many before it are lost. Returns its hold word. */
static inline uint32_t take_after_gap(struct dlx_reader *r, uint64_t n, uint64_t gap)
{
    struct dlx_taken taken;
    ck_assert_int_eq(dlx__reader_take(r, &taken, 1), 1);
    ck_assert(dlx_test_is_of(taken.words, taken.n));
    ck_assert_uint_eq(taken.n, n);
    ck_assert_uint_eq(taken.gap, gap);
    return taken.hold;
}

static inline uint32_t take(struct dlx_reader *r, uint64_t n)
{
    return take_after_gap(r, n, 0);
}

static inline void take_fails(struct dlx_reader *r, int code)
{
    struct dlx_taken taken;
    ck_assert_int_eq(dlx__reader_take(r, &taken, 1), code);
}

#endif
