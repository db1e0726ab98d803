/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A worker step by step, where the simulation does not come: cells that no honest worker writes,
 * cells that change all the time, messages that do not exist, attempts up to the last one, and
 * pages that are out of range.
 */

#include "ring/claims.h"
#include "tests/ring/harness_cores.h"
#include <pthread.h>

static struct dlx_shm_claims *claims_page;
static struct dlx_claims worker, other_worker;
static unsigned n_bells, n_asked;
static bool others_live;

static void ring_group(void *userdata)
{
    (void)userdata;
    n_bells++;
}

static bool is_alive(void *userdata, uint32_t owner)
{
    (void)userdata;
    ck_assert_uint_le(owner, DLX_SHM_OWNERS_MAX);
    n_asked++;
    return others_live;
}

static const struct dlx_claims_env claims_env = {.ring_group = ring_group, .is_alive = is_alive};

static void begin_worker(struct dlx_claims *c, struct dlx_reader *r, struct dlx_shm_link *page,
                         uint32_t owner, uint64_t lease_ns)
{
    dlx__reader_init(r, f.control, ENTRIES, 0, page, page == f.other_page, HELD, false, false, true,
                     &reader_env, NULL);
    ck_assert_int_eq(dlx__claims_init(c, r, claims_page, owner, lease_ns, DLX_SHM_ATTEMPTS_MAX,
                                      &claims_env, NULL),
                     0);
    dlx__claims_start(c, DLX_READER_ALL, false);
}

/* A gating writer with a group of two workers. */
static void begin_group(bool gating, uint64_t lease_ns)
{
    begin_writer(gating);
    n_bells = n_asked = 0;
    others_live = true;
    claims_page = dlx_test_pages(dlx_shm_claims_size(ENTRIES));
    f.link.group_number = f.other.group_number = 1;
    f.link.reliable = f.other.reliable = false;
    ck_assert_int_eq(dlx__writer_link_add(&f.w, &f.link), 0);
    ck_assert_int_eq(dlx__writer_link_add(&f.w, &f.other), 0);
    begin_worker(&worker, &reader, f.page, 1, lease_ns);
    begin_worker(&other_worker, &other_reader, f.other_page, 2, lease_ns);
}

static void setup_group(void)
{
    begin_group(true, 0);
}

static void end_group(void)
{
    dlx__claims_deinit(&worker);
    dlx__claims_deinit(&other_worker);
    end_writer();
    free(claims_page);
}

static dlx_atomic_u64 *cell_of(uint64_t n)
{
    return &claims_page->cells[n % ENTRIES];
}

static struct dlx_shm_cell look_at(uint64_t n)
{
    return dlx_shm_cell_unpack(atomic_load(cell_of(n)));
}

static void write_cell(uint64_t n, enum dlx_shm_cell_state state, uint32_t owner, uint64_t lap)
{
    atomic_store(cell_of(n), dlx_shm_cell_pack((struct dlx_shm_cell){
                                 .state = state, .attempt = 1, .owner = owner, .lap = lap}));
}

/* A take passes so many messages, and then says that there is none, though it may not sleep. */
static struct dlx_taken claim(struct dlx_claims *c, uint64_t n)
{
    struct dlx_taken taken;
    int r = DLX_E_EMPTY;
    for (unsigned i = 0; r == DLX_E_EMPTY && i < 4 && !dlx__claims_nothing_there(c); i++)
        r = dlx__claims_take(c, &taken, 1);
    ck_assert_int_eq(r, 1);
    ck_assert(dlx_test_is_of(taken.words, taken.n));
    ck_assert_uint_eq(taken.n, n);
    return taken;
}

static void claim_fails(struct dlx_claims *c, int code)
{
    struct dlx_taken taken;
    ck_assert_int_eq(dlx__claims_take(c, &taken, 1), code);
}

static void settle(struct dlx_claims *c, const struct dlx_taken *taken, enum dlx_claim_end end)
{
    ck_assert(dlx__claims_settle(c, taken->n, taken->claim, end));
    dlx__reader_release(c->reader, taken->hold);
}

static void finish(struct dlx_claims *c, uint64_t n)
{
    struct dlx_taken taken = claim(c, n);
    settle(c, &taken, DLX_CLAIM_DONE);
}

/* ---- numbers --------------------------------------------------------------------------------- */

TEST(laps_follow_each_other_over_many_rings)
{
    setup_group();
    for (uint64_t n = 1; n <= 5 * ENTRIES; n++) {
        publish(1);
        finish(n % 3 ? &worker : &other_worker, n);
        ck_assert_uint_eq(look_at(n).lap, n / ENTRIES + 1);
        ck_assert_int_eq(look_at(n).state, DLX_SHM_CELL_DONE);
        ck_assert_uint_eq(look_at(n).owner, n % 3 ? 1 : 2);
    }
    ck_assert_uint_eq(dlx__writer_passed(&f.w), 5 * ENTRIES);
    ck_assert_uint_eq(claims_page->lost, 0);
    ck_assert_uint_eq(claims_page->redelivered, 0);
    end_group();
}

TEST(worker_that_did_nothing_for_many_rings_catches_up)
{
    setup_group();
    for (uint64_t n = 1; n <= 3 * ENTRIES; n++) {
        publish(1);
        finish(&worker, n);
    }
    ck_assert_uint_eq(f.other_page->done, 0);
    publish(1);
    finish(&other_worker, 3 * ENTRIES + 1);
    ck_assert_uint_eq(f.other_page->done, 3 * ENTRIES + 1);
    end_group();
}

TEST(last_lap_is_the_last_of_40_bits)
{
    struct dlx_shm_cell cell = {.state = DLX_SHM_CELL_DONE,
                                .attempt = 63,
                                .renewals = 15,
                                .owner = DLX_SHM_OWNERS_MAX,
                                .lap = (UINT64_C(1) << 40) - 1};
    struct dlx_shm_cell back = dlx_shm_cell_unpack(dlx_shm_cell_pack(cell));
    ck_assert_uint_eq(dlx_shm_cell_pack(cell), UINT64_MAX);
    ck_assert_uint_eq(back.lap, cell.lap);
    ck_assert_uint_eq(back.owner, cell.owner);
    ck_assert_uint_eq(back.attempt, cell.attempt);
}

/* ---- attempts -------------------------------------------------------------------------------- */

TEST(message_that_is_always_given_back_is_buried_after_62_attempts)
{
    setup_group();
    publish(2);
    for (uint32_t attempt = 1; attempt <= 62; attempt++) {
        struct dlx_taken taken = claim(&worker, 1);
        ck_assert_uint_eq(dlx__claim_attempt(taken.claim), attempt);
        settle(&worker, &taken, DLX_CLAIM_RETURNED);
    }
    ck_assert_uint_eq(n_bells, 62);
    ck_assert_uint_eq(claims_page->returned, 62);
    ck_assert_uint_eq(claims_page->redelivered, DLX_SHM_ATTEMPTS_MAX - 1); /* then dead */
    ck_assert_uint_eq(claims_page->dead, 0);
    finish(&worker, 2); /* the first one was buried on the way */
    ck_assert_int_eq(look_at(1).state, DLX_SHM_CELL_DONE);
    ck_assert_uint_eq(claims_page->dead, 1);
    ck_assert_uint_eq(f.page->done, 2);
    end_group();
}

TEST(attempt_beyond_the_last_one_does_not_become_a_state)
{
    setup_group();
    publish(1);
    atomic_store(cell_of(1), dlx_shm_cell_pack((struct dlx_shm_cell){
                                 .state = DLX_SHM_CELL_RETURNED, .attempt = 63, .lap = 1}));
    claim_fails(&worker, DLX_E_EMPTY);
    ck_assert_int_eq(look_at(1).state, DLX_SHM_CELL_DONE);
    ck_assert_uint_eq(look_at(1).attempt, 63);
    ck_assert_uint_eq(claims_page->dead, 1);
    end_group();
}

TEST(dead_letter_is_done_and_counted)
{
    setup_group();
    publish(1);
    struct dlx_taken taken = claim(&worker, 1);
    settle(&worker, &taken, DLX_CLAIM_DEAD);
    ck_assert(!dlx__claims_settle(&worker, 1, taken.claim, DLX_CLAIM_DONE));
    ck_assert_uint_eq(claims_page->dead, 1);
    ck_assert_uint_eq(dlx__writer_passed(&f.w), 1);
    end_group();
}

/* ---- leases ---------------------------------------------------------------------------------- */

#define LEASE_NS UINT64_C(8000000)

TEST(lease_ends_unless_it_is_renewed)
{
    begin_group(true, LEASE_NS);
    publish(1);
    struct dlx_taken taken = claim(&worker, 1), again;
    uint64_t now = UINT64_C(1000000000);
    ck_assert(dlx__claims_look(&other_worker, now));
    for (unsigned i = 0; i < 100; i++) { /* renewals wrap */
        now += LEASE_NS / 2;
        ck_assert(dlx__claims_renew(&worker, 1, taken.claim, now));
        ck_assert(dlx__claims_look(&other_worker, now));
        claim_fails(&other_worker, DLX_E_EMPTY);
    }
    for (unsigned i = 0; i < 3; i++)
        ck_assert(dlx__claims_look(&other_worker, now += LEASE_NS / 2));
    again = claim(&other_worker, 1);
    ck_assert_uint_eq(dlx__claim_attempt(again.claim), 2);
    ck_assert(!dlx__claims_renew(&worker, 1, taken.claim, now));
    ck_assert(!dlx__claims_settle(&worker, 1, taken.claim, DLX_CLAIM_DONE));
    ck_assert(!dlx__claims_settle(&worker, 1, taken.claim, DLX_CLAIM_RETURNED));
    ck_assert_uint_eq(f.page->hold[taken.hold], 1); /* it still pins the payload */
    settle(&other_worker, &again, DLX_CLAIM_DONE);
    dlx__reader_release(&reader, taken.hold);
    end_group();
}

TEST(claim_of_one_that_lives_stays_without_a_lease)
{
    setup_group();
    publish(1);
    struct dlx_taken taken = claim(&worker, 1);
    ck_assert(dlx__claims_look(&other_worker, 1));
    ck_assert(dlx__claims_look(&other_worker, UINT64_MAX));
    claim_fails(&other_worker, DLX_E_EMPTY);
    settle(&worker, &taken, DLX_CLAIM_DONE);
    ck_assert(!dlx__claims_look(&other_worker, UINT64_MAX));
    end_group();
}

/* ---- deaths ---------------------------------------------------------------------------------- */

TEST(messages_that_the_dead_gave_back_without_a_word_are_found)
{
    setup_group();
    publish(2);
    struct dlx_taken taken = claim(&worker, 1);
    finish(&other_worker, 2);
    claim_fails(&other_worker, DLX_E_EMPTY);
    /* It dies between the cell and the count. */
    write_cell(1, DLX_SHM_CELL_RETURNED, 1, 1);
    ck_assert(dlx__claims_nothing_there(&other_worker));
    (void)dlx__claims_look(&other_worker, 0);
    ck_assert(!dlx__claims_nothing_there(&other_worker));
    finish(&other_worker, 1);
    dlx__reader_release(&reader, taken.hold);
    end_group();
}

TEST(a_look_finds_messages_that_the_worker_has_yet_to_pass)
{
    setup_group();
    publish(3);
    (void)claim(&worker, 1);
    (void)claim(&worker, 2);
    others_live = false;
    (void)dlx__claims_look(&other_worker, 0);
    ck_assert_uint_eq(claims_page->returned, 2);
    finish(&other_worker, 1);
    finish(&other_worker, 2);
    finish(&other_worker, 3);
    ck_assert_uint_eq(claims_page->redelivered, 2);
    end_group();
}

TEST(a_look_tells_what_was_done_without_a_word)
{
    setup_group();
    publish(1);
    (void)claim(&worker, 1);
    write_cell(1, DLX_SHM_CELL_DONE, 1, 1); /* and it dies */
    dlx__writer_set_blocked(&f.w, true);
    unsigned before = f.n_rung_writer;
    (void)dlx__claims_look(&other_worker, 0);
    ck_assert_uint_eq(f.other_page->done, 1);
    ck_assert_uint_gt(f.n_rung_writer, before);
    end_group();
}

TEST(a_worker_that_has_left_tells_the_group_of_what_it_does_later)
{
    setup_group();
    publish(1);
    struct dlx_taken taken = claim(&worker, 1);
    dlx__claims_close(&worker);
    dlx__reader_release(&reader, taken.hold);
    dlx__writer_look_for_dead(&f.w); /* it holds nothing: the publisher has left the link */
    unsigned before = n_bells;
    ck_assert(dlx__claims_settle(&worker, 1, taken.claim, DLX_CLAIM_DONE));
    ck_assert_uint_gt(n_bells, before);
    ck_assert_uint_eq(dlx__writer_passed(&f.w), 0);
    (void)dlx__claims_look(&other_worker, 0);
    ck_assert_uint_eq(dlx__writer_passed(&f.w), 1);
    end_group();
}

TEST(messages_that_are_done_before_they_are_announced_are_not_forgotten)
{
    setup_group();
    put(1);
    finish(&worker, 1);
    f.link.dead = true;
    dlx__writer_look_for_dead(&f.w);
    ck_assert_uint_eq(f.n_links_gone, 1);
    dlx__writer_announce(&f.w);
    ck_assert_uint_eq(dlx__writer_passed(&f.w), 1);
    end_group();
}

/* ---- waiting --------------------------------------------------------------------------------- */

TEST(end_waits_asleep_for_what_others_have)
{
    setup_group();
    publish(1);
    struct dlx_taken taken = claim(&worker, 1);
    dlx__writer_close(&f.w);
    claim_fails(&other_worker, DLX_E_EMPTY);
    dlx__claims_arm(&other_worker);
    ck_assert(dlx__claims_nothing_there(&other_worker));
    unsigned before = n_bells;
    settle(&worker, &taken, DLX_CLAIM_DONE);
    ck_assert_uint_gt(n_bells, before);
    claim_fails(&other_worker, DLX_E_PUBLISHER_GONE);
    ck_assert(!dlx__claims_nothing_there(&other_worker));
    ck_assert_int_eq(dlx__claims_take(&other_worker, NULL, 0), DLX_E_PUBLISHER_GONE);
    end_group();
}

TEST(message_behind_one_that_another_has_is_seen)
{
    setup_group();
    claim_fails(&other_worker, DLX_E_EMPTY);
    publish(2);
    (void)claim(&worker, 1);
    ck_assert(dlx__claims_has_unclaimed(&other_worker));
    (void)claim(&worker, 2);
    ck_assert(!dlx__claims_has_unclaimed(&other_worker));
    ck_assert_int_eq(dlx__claims_take(&other_worker, NULL, 0), DLX_E_EMPTY);
    publish(1);
    ck_assert(dlx__claims_has_unclaimed(&other_worker));
    ck_assert_int_eq(dlx__claims_take(&other_worker, NULL, 0), DLX_E_TOO_MANY_HELD);
    end_group();
}

TEST(a_message_rings_one_sleeper)
{
    setup_group();
    dlx__claims_arm(&worker);
    dlx__claims_arm(&other_worker);
    publish(1);
    ck_assert_uint_eq(f.n_rung, 1);
    publish(1); /* the first one may work for long */
    ck_assert_uint_eq(f.n_rung, 2);
    publish(1); /* both are awake, or will be */
    ck_assert_uint_eq(f.n_rung, 2);
    dlx__claims_disarm(&worker);
    dlx__claims_arm(&worker);
    dlx__writer_close(&f.w);
    ck_assert_uint_eq(f.n_rung, 3);
    end_group();
}

/* ---- losses ---------------------------------------------------------------------------------- */

TEST(worker_that_was_lapped_by_far_loses_each_message_once)
{
    begin_group(false, 0);
    publish(20 * ENTRIES);
    finish(&worker, 20 * ENTRIES - WINDOW + 1);
    for (uint64_t n = 20 * ENTRIES - WINDOW + 2; n <= 20 * ENTRIES; n++)
        finish(&other_worker, n);
    ck_assert_uint_eq(claims_page->lost, 20 * ENTRIES - WINDOW);
    ck_assert_uint_eq(reader.lost + other_reader.lost, 20 * ENTRIES - WINDOW);
    end_group();
}

TEST(loss_does_not_touch_what_is_done)
{
    begin_group(false, 0);
    publish(1);
    (void)claim(&other_worker, 1); /* and keeps it */
    publish(WINDOW + 1);
    (void)claim(&worker, 3); /* 2 is lost */
    ck_assert_uint_eq(claims_page->lost, 1);
    ck_assert_uint_eq(f.page->done, 0);
    end_group();
}

/* ---- cells that no honest worker writes ------------------------------------------------------ */

static uint64_t hostile_seed;

static uint64_t next_random(void)
{
    hostile_seed = hostile_seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return hostile_seed >> 20 ^ hostile_seed << 44;
}

/* Another worker writes what it likes. */
static void write_anything(void)
{
    for (uint32_t i = 0; i < ENTRIES; i++) {
        uint64_t x = next_random();
        uint64_t lap =
            x % 4 ? x % 3 + f.w.head / ENTRIES : next_random() & ((UINT64_C(1) << 40) - 1);
        atomic_store(&claims_page->cells[i],
                     dlx_shm_cell_pack((struct dlx_shm_cell){.state = x >> 8 & 3,
                                                             .attempt = x >> 10 & 63,
                                                             .renewals = x >> 16 & 15,
                                                             .owner = x >> 20 & DLX_SHM_OWNERS_MAX,
                                                             .lap = lap}));
    }
    atomic_store(&claims_page->returned, next_random());
    atomic_store(&claims_page->start, next_random());
    others_live = next_random() & 1;
}

TEST(cells_of_any_content_end_no_worker_and_no_publisher)
{
    begin_group(true, 5);
    hostile_seed = 1;
    for (unsigned round = 0; round < 20000; round++) {
        struct dlx_taken taken[HELD];
        write_anything();
        if (next_random() % 2 && f.w.head < 100 * ENTRIES && dlx__writer_make_room(&f.w) == 0)
            publish(1);
        int r = dlx__claims_take(&worker, taken, 1 + next_random() % HELD);
        for (int i = 0; i < r; i++) {
            ck_assert_uint_le(taken[i].n, f.w.head);
            ck_assert(dlx_test_is_of(taken[i].words, taken[i].n));
            if (next_random() % 2)
                write_anything();
            (void)dlx__claims_renew(&worker, taken[i].n, taken[i].claim, next_random());
            (void)dlx__claims_settle(&worker, taken[i].n, taken[i].claim,
                                     (enum dlx_claim_end)(next_random() % 4));
            dlx__reader_release(&reader, taken[i].hold);
        }
        (void)dlx__claims_look(&worker, next_random());
        (void)dlx__claims_has_unclaimed(&worker);
        dlx__claims_arm(&worker);
        (void)dlx__claims_nothing_there(&worker);
        dlx__claims_disarm(&worker);
        ck_assert_uint_le(dlx__writer_passed(&f.w), f.w.head);
        ck_assert_uint_le(f.w.head + 1 - f.w.oldest, WINDOW);
    }
    end_group();
}

TEST(done_beyond_the_newest_message_is_cut)
{
    setup_group();
    publish(1);
    atomic_store(&f.page->done, UINT64_MAX);
    ck_assert_uint_eq(dlx__writer_passed(&f.w), 1);
    publish(2);
    ck_assert_uint_le(dlx__writer_passed(&f.w), 3);
    ck_assert_uint_le(f.w.head + 1 - f.w.oldest, WINDOW);
    end_group();
}

TEST(done_of_a_message_that_does_not_exist_harms_its_group_alone)
{
    setup_group();
    for (uint64_t n = 1; n < ENTRIES; n++)
        write_cell(n, DLX_SHM_CELL_DONE, 7, 1);
    claim_fails(&worker, DLX_E_EMPTY);
    (void)dlx__claims_look(&worker, 0);
    ck_assert_uint_eq(dlx__writer_passed(&f.w), 0);
    publish(1);
    ck_assert_uint_eq(dlx__writer_passed(&f.w), 1);
    end_group();
}

TEST(owner_0_is_dead)
{
    setup_group();
    publish(1);
    write_cell(1, DLX_SHM_CELL_CLAIMED, 0, 1);
    (void)dlx__claims_look(&worker, 0);
    finish(&worker, 1);
    end_group();
}

TEST(publisher_that_names_impossible_messages_keeps_no_worker)
{
    setup_group();
    publish(1);
    finish(&worker, 1);
    for (unsigned i = 0; i < 100; i++) {
        struct dlx_taken taken;
        for (uint64_t n = 0; n < ENTRIES; n++)
            atomic_store(&f.control->entries[n].gen, UINT64_MAX >> (i % 64));
        atomic_store(&f.control->head, UINT64_MAX >> (i % 60));
        atomic_store(&f.control->oldest, UINT64_MAX >> (i % 50));
        (void)dlx__claims_take(&worker, &taken, 1);
        (void)dlx__claims_look(&worker, 0);
        (void)dlx__claims_has_unclaimed(&worker);
        (void)dlx__claims_nothing_there(&worker);
    }
    end_group();
}

/* ---- threads --------------------------------------------------------------------------------- */

static void *settle_elsewhere(void *userdata)
{
    settle(&worker, userdata, DLX_CLAIM_DONE);
    return NULL;
}

/* Messages 1 and 2 came along from another control block, and are to be had in the next one. */
TEST(second_move_is_seen_while_another_thread_settles)
{
    dlx_atomic_u64 carried = 0; /* the publisher has not said it */
    struct dlx_taken taken[3], none;
    pthread_t thread;
    setup_group();
    publish(3);
    for (uint64_t n = 1; n <= 3; n++)
        taken[n - 1] = claim(&worker, n);
    worker.carried = &carried;
    worker.moved_at = 2;
    atomic_store(&f.control->entries[4].gen, 4 | DLX_SHM_MOVED);
    ck_assert_int_eq(pthread_create(&thread, NULL, settle_elsewhere, &taken[2]), 0);
    (void)dlx__claims_take(&worker, &none, 1); /* sees it, whether or not message 3 is done */
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    (void)dlx__claims_look(&worker, 0);
    ck_assert_uint_eq(atomic_load(&f.page->done), 3);
    claim_fails(&worker, DLX_E_NOT_FOUND); /* here */
    for (int i = 0; i < 2; i++)
        settle(&worker, &taken[i], DLX_CLAIM_DONE);
    end_group();
}

/* ---- groups of a publisher ------------------------------------------------------------------- */

TEST(deserted_group_stops_no_publisher_unless_it_was_declared)
{
    setup_group();
    publish(WINDOW);
    ck_assert_int_eq(dlx__writer_make_room(&f.w), DLX_E_FULL);
    dlx__claims_close(&worker);
    ck_assert_int_eq(dlx__writer_make_room(&f.w), DLX_E_FULL);
    dlx__claims_close(&other_worker);
    ck_assert_int_eq(dlx__writer_make_room(&f.w), 0);
    end_group();
}

TEST(declared_group_without_a_worker_stops_its_publisher)
{
    begin_writer(true);
    ck_assert_int_eq(dlx__writer_declare(&f.w, 1), 0);
    publish(WINDOW);
    ck_assert_int_eq(dlx__writer_make_room(&f.w), DLX_E_FULL);
    end_writer();
}

int main(void)
{
    return dlx_test_run_case(tcase_create("claims"));
}
