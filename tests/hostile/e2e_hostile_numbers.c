/* SPDX-License-Identifier: Apache-2.0 */

/* A publisher that lies about the numbers in its control block: head, oldest, gen. */

#include "ring/entry.h"
#include "tests/hostile/harness_lies.h"
#include "tests/harness/random.h"

static const uint64_t heads[] = {
    0,
    1,
    5,
    6,
    1000000,
    DLX_SHM_MOVED - 1,
    DLX_SHM_MOVED,
    DLX_SHM_END + 7,
    DLX_SHM_GONE,
    UINT64_MAX - 1,
    UINT64_MAX,
};

/* The liar publishes and is read. */
static void go_before(struct dlx_test_scene *x, int64_t n)
{
    struct dlx_message *m = NULL;
    for (int64_t i = 0; i < n; i++) {
        dlx_test_stream_publish(x->liar, 4, i);
        ok(dlx_test_scene_take(x, SECOND, &m));
        dlx_message_unref(m);
    }
}

/* `_i` tells the way to take, and what lies before the reader: nothing, two messages, or an entry
 * that lapped it. */
LOOP_TEST(a_head_that_jumps_harms_only_its_link, 0, 3 * N_WAYS)
{
    for (size_t k = 0; k < DLX_ARRAY_SIZE(heads) * DLX_ARRAY_SIZE(heads); k++) {
        auto_scene x = dlx_test_scene_make_for((enum dlx_test_way)(_i % N_WAYS));
        go_before(&x, 3);
        if (_i / N_WAYS == 1) {
            dlx_test_stream_publish(x.liar, 4, 3);
            dlx_test_stream_publish(x.liar, 4, 4);
        }
        dlx_store64_sc(&dlx_test_control_of(x.liar)->head, heads[k % DLX_ARRAY_SIZE(heads)]);
        dlx_store64_sc(&dlx_test_control_of(x.liar)->oldest, heads[k / DLX_ARRAY_SIZE(heads)]);
        if (_i / N_WAYS == 2)
            dlx_store64_sc(dlx_test_gen_of(x.liar, 4), 4 + x.liar->core.block->mask + 1);
        (void)dlx_test_scene_honest_goes_on_for(&x, 3);
    }
}

/* A joiner looks for the newest message from such a head on. */
LOOP_TEST(a_head_that_jumped_harms_no_joiner, 0, 2 * N_WAYS)
{
    static const uint64_t marks[] = {0, DLX_SHM_END, DLX_SHM_MOVED, DLX_SHM_GONE, 1, UINT64_MAX};
    const struct dlx_subscribe_args *sa =
        SUBSCRIBE(.history = _i / N_WAYS == 1 ? 3 : 0,
                  .mode = _i % N_WAYS == LATEST ? DLX_MODE_LATEST : DLX_MODE_ALL,
                  .reliable = _i % N_WAYS == RELIABLE);
    for (size_t k = 0; k < DLX_ARRAY_SIZE(heads) * DLX_ARRAY_SIZE(marks); k++) {
        auto_scene x = dlx_test_scene_make_for((enum dlx_test_way)(_i % N_WAYS));
        uint64_t head = heads[k % DLX_ARRAY_SIZE(heads)];
        uint64_t mark = marks[k / DLX_ARRAY_SIZE(heads)];
        go_before(&x, 3);
        dlx_subscription_unref(x.s);
        dlx_store64_sc(&dlx_test_control_of(x.liar)->head, head);
        for (uint64_t n = 0; n < 8; n++)
            dlx_store64_sc(dlx_test_gen_of(x.liar, head + n - 3), (head + n - 3) ^ mark);
        x.s = dlx_test_stream_subscribe(x.c, "test/a", sa);
        (void)dlx_test_scene_honest_goes_on_for(&x, 3);
    }
}

/* The number after the last one is 0, which in a hold word says that nothing is held. */
TEST(there_is_no_message_0)
{
    auto_scene x = dlx_test_scene_make_for(ONE);
    struct dlx_message *m[2] = {NULL, NULL};
    uint64_t words[DLX_SHM_ENTRY_WORDS];
    dlx_subscription_unref(x.s);
    struct dlx_block *block = dlx_test_scene_begin_lie(x.liar, words);
    for (uint64_t n = 0; n < 4; n++)
        for (uint32_t i = 0; i < DLX_SHM_ENTRY_WORDS; i++)
            dlx_store64_sc(&dlx_test_control_of(x.liar)->entries[n].words[i], words[i]);
    dlx_store64_sc(dlx_test_gen_of(x.liar, 0), DLX_SHM_END);
    dlx_store64_sc(&dlx_test_control_of(x.liar)->head, UINT64_MAX);
    x.s = dlx_test_stream_subscribe(x.c, "test/a", NULL);
    for (uint64_t n = 0; n < 4; n++)
        dlx_store64_sc(dlx_test_gen_of(x.liar, n), n);
    for (int i = 0; i < 2; i++) {
        int r = dlx_take(x.s, 0, &m[i]);
        ck_assert_msg(r == DLX_E_EMPTY || r == DLX_E_BAD_PEER, "%d: message %d", r,
                      m[i] ? (int)dlx_message_seq(m[i]) : -1);
    }
    (void)dlx_test_scene_honest_goes_on(&x);
    dlx__heap_give(x.liar->heap, block);
}

/* gen of the next message (4), and whether a subscriber must not believe it. */
static const struct {
    uint64_t gen;
    bool told;
} gens[] = {
    {4 | DLX_SHM_GONE, false},
    {4 | DLX_SHM_END, false},
    {4 | DLX_SHM_MOVED, false},
    {4 | DLX_SHM_END | DLX_SHM_MOVED, false},
    {4 | DLX_SHM_END | DLX_SHM_GONE, false},
    {4 | DLX_SHM_END | DLX_SHM_MOVED | DLX_SHM_GONE, false},
    {3, false},
    {5, false},
    {3 | DLX_SHM_END, false},
    {5 | DLX_SHM_END, false},
    {260 | DLX_SHM_END, true},
    {260, true},
    {260 | DLX_SHM_GONE, true},
    {1000000, true},
    {DLX_SHM_MOVED - 1, true},
    {UINT64_MAX, true},
};

/* The liar stores a gen, and goes on as if nothing was. */
LOOP_TEST(a_gen_that_lies_harms_only_its_link, 0, N_WAYS)
{
    for (size_t k = 0; k < DLX_ARRAY_SIZE(gens); k++) {
        auto_scene x = dlx_test_scene_make_for((enum dlx_test_way)(_i % N_WAYS));
        ck_assert_uint_eq(x.liar->core.block->mask, 255);
        go_before(&x, 3);
        dlx_store64_sc(dlx_test_gen_of(x.liar, 4), gens[k].gen);
        bool told = dlx_test_scene_honest_goes_on_for(&x, 3);
        ck_assert_msg(told == gens[k].told, "gen %#llx: %d", (unsigned long long)gens[k].gen, told);
        for (int i = 3; i < 8; i++)
            dlx_test_stream_publish(x.liar, 4, i);
        (void)dlx_test_scene_honest_goes_on_for(&x, 10);
    }
}

LOOP_TEST(gens_of_nobody_are_losses, 0, N_WAYS)
{
    auto_scene x = dlx_test_scene_make_for((enum dlx_test_way)_i);
    for (int i = 0; i < 10; i++)
        dlx_test_stream_publish(x.liar, 4, i);
    for (uint64_t n = 1; n <= 10; n++)
        dlx_store64_sc(dlx_test_gen_of(x.liar, n), n + n % 2 * 100);
    ck_assert(!dlx_test_scene_honest_goes_on_for(&x, 12));
    struct dlx_subscription_stats stats = dlx_test_stream_subscription_stats(x.s);
    ck_assert_uint_eq(stats.taken + stats.lost + stats.skipped, 22);
    ck_assert_uint_eq(stats.n_held, 0);
}

LOOP_TEST(a_control_block_that_changes_all_the_time_is_survived, 0, N_WAYS)
{
    for (int round = 0; round < 20; round++) {
        auto_scene x = dlx_test_scene_make_for((enum dlx_test_way)_i);
        struct dlx_test_scribbler scribbler = {.seed = (uint64_t)(round + 1),
                                               .words = (uint64_t *)dlx_test_control_of(x.liar)};
        /* Most of the time where the reader looks. */
        scribbler.n_words =
            round % 2 ? 24 + 16 * 8 : dlx_shm_control_size(x.liar->core.block->mask + 1) / 8;
        for (int i = 0; i < 10; i++)
            dlx_test_stream_publish(x.liar, 4, i);
        dlx_test_scene_while(&x, dlx_test_scribble, &scribbler, 100);
    }
}

/* Nearly right numbers, which never settle: so that the reader goes far. */
struct flipper {
    struct dlx_test_scribbler base;
    struct dlx_shm_control *control;
    uint64_t mask;
    uint64_t marks; /* of DLX_SHM_END, _MOVED, _GONE */
};

static void *flip(void *userdata)
{
    struct flipper *x = userdata;
    uint64_t head = 1;
    while (!atomic_load(&x->base.stop)) {
        uint64_t r = dlx_test_random(&x->base.seed) >> 8, n = head + (r >> 8) % 6 - 2;
        const uint64_t gone = n | (x->marks & DLX_SHM_GONE), end = n | (x->marks & DLX_SHM_END);
        uint64_t values[] = {n, n, n, gone, n | (x->marks & DLX_SHM_MOVED), end, n - 1, n + 1};
        dlx_store64_release(&x->control->entries[n & x->mask].gen, values[r % 8]);
        if (r >> 20 & 1)
            dlx_store64_release(&x->control->head, head + (r >> 24) % 3);
        if (r >> 21 & 1)
            dlx_store64_release(&x->control->oldest, n);
        head += (r >> 16) % 8 == 0;
        atomic_fetch_add(&x->base.rounds, 1);
    }
    return NULL;
}

LOOP_TEST(gens_that_never_settle_are_survived, 0, N_WAYS)
{
    static const uint64_t marks[] = {0, DLX_SHM_GONE, DLX_SHM_GONE | DLX_SHM_MOVED, UINT64_MAX};
    for (int round = 0; round < 12; round++) {
        auto_scene x = dlx_test_scene_make_for((enum dlx_test_way)_i);
        uint64_t words[DLX_SHM_ENTRY_WORDS];
        struct flipper flipper = {.base = {.seed = (uint64_t)(round + 1)},
                                  .control = dlx_test_control_of(x.liar),
                                  .mask = x.liar->core.block->mask,
                                  .marks = marks[round % 4]};
        struct dlx_block *block = dlx_test_scene_begin_lie(x.liar, words);
        for (uint32_t n = 0; n <= flipper.mask; n++)
            for (uint32_t i = 0; i < DLX_SHM_ENTRY_WORDS; i++)
                dlx_store64_sc(&dlx_test_control_of(x.liar)->entries[n].words[i], words[i]);
        dlx_test_scene_while(&x, flip, &flipper.base, 100);
        dlx__heap_give(x.liar->heap, block);
    }
}

int main(void)
{
    TCase *tcase = dlx_test_stream_case("hostile_numbers");
    tcase_set_timeout(tcase, 120);
    return dlx_test_run_case(tcase);
}
