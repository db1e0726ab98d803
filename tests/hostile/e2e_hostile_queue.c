/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Hostile workers, which write what they like into the claims page of their group, and hostile
 * publishers. They harm their own group: others go on, and nobody crashes or hangs.
 */

#include "client/message/message.h"
#include "client/message/worker.h"
#include "tests/hostile/harness_liar.h"
#include "tests/hostile/harness_lies.h"
#include "tests/harness/random.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/timerfd.h>

#define N      16
#define TOPIC  "test/a"
#define GROUPS .groups = (const char *const[]){"bad", "good"}, .n_groups = 2

static struct dlx_subscription *worker(struct dlx_client *c, const char *group)
{
    return dlx_test_stream_subscribe(c, TOPIC, SUBSCRIBE(.group = group, .lease_ns = SECOND / 10));
}

/* ---- hostile workers ------------------------------------------------------------------------- */

enum way {
    ANY_WORDS,    /* in all of the page, and in its own link page */
    ALL_DONE,     /* of the last lap there is */
    ALL_WORN,     /* given back as often as there are attempts */
    ALL_CLAIMED,  /* by a worker that lives: by itself */
    FALSE_OWNERS, /* by any number */
    HOLES,        /* in the page */
    LOCKS,        /* as if all numbers had a worker that lives, and then it stops */
    STORM,        /* the group's bell rings for ever */
    N_WAYS_TO_HARM
};

static void write_cells(struct dlx_worker_link *claims, uint32_t n, enum way way, uint64_t *seed)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t random = dlx_test_random(seed);
        struct dlx_shm_cell cell = {
            .state = DLX_SHM_CELL_DONE, .attempt = 63, .lap = UINT64_MAX >> 24};
        uint32_t any = (uint32_t)(random >> 32);
        if (way != ALL_DONE)
            cell = (struct dlx_shm_cell){
                .state = way == ALL_WORN ? DLX_SHM_CELL_RETURNED : DLX_SHM_CELL_CLAIMED,
                .attempt = way == ALL_WORN ? 10 : any % 63 + 1,
                .owner = way == ALL_CLAIMED ? claims->core.owner : any / 64 % 4096,
                .lap = 1 + random % 3};
        dlx_store64_relaxed(&claims->page->cells[i], dlx_shm_cell_pack(cell));
    }
}

static void write_anything(struct dlx_subscriber_link *link, uint64_t *seed)
{
    uint64_t *words[] = {(uint64_t *)(void *)link->claims->page, (uint64_t *)(void *)link->page};
    uint64_t n_words[] = {link->claims->page_size / 8, dlx_shm_link_size(link->max_held) / 8};
    for (int k = 0; k < 400; k++) {
        uint64_t x = dlx_test_random(seed), i = x % 2;
        static const uint64_t values[] = {0, 1, 2, UINT32_MAX, UINT64_MAX, INT64_MAX, 1 << 20};
        uint64_t value = x & 2 ? values[x / 4 % DLX_ARRAY_SIZE(values)] : dlx_test_random(seed);
        uint64_t at = x & 4 ? x / 64 % 8 : x / 64 % n_words[i];
        __atomic_store_n(&words[i][at], value, __ATOMIC_RELAXED);
    }
}

static void lock_all(const struct dlx_worker_link *claims)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", claims->probe);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 1, .l_len = 4095};
    (void)fcntl(fd >= 0 ? fd : claims->probe, F_OFD_SETLK, &lock);
}

/* The liar, in a process of its own: it joins, and harms its group for ever. */
static void harm(struct dlx_client *c, int tell, int arg)
{
    struct dlx_subscription *s = worker(c, "bad");
    struct dlx_message *m = dlx_test_stream_next(s);
    struct dlx_subscriber_link *link = m->link;
    struct dlx_worker_link *claims = link->claims;
    const struct itimerspec for_ever = {{.tv_nsec = 1}, {.tv_nsec = 1}},
                            never = {.it_value = {.tv_nsec = 0}};
    uint64_t seed = (uint64_t)arg + 1;
    if (arg == LOCKS) {
        lock_all(claims);
        dlx_test_liar_say(tell);
        raise(SIGSTOP);
    }
    (void)fcntl(claims->bell, F_SETFL, 0); /* others share the flags */
    for (uint64_t k = 0;; k++) {
        if (arg == ANY_WORDS)
            write_anything(link, &seed);
        else if (arg == HOLES)
            (void)madvise(claims->page, claims->page_size, MADV_REMOVE);
        else if (arg != STORM)
            write_cells(claims, dlx__reader_n_entries(&link->core), (enum way)arg, &seed);
        (void)timerfd_settime(claims->bell, 0, k % 3 && arg == STORM ? &for_ever : &never, NULL);
        if (k == 0)
            dlx_test_liar_say(tell);
        (void)sched_yield();
    }
}

/* The harmed group may do anything but hang or crash: each call comes back. */
static void work_in_the_harmed_group(struct dlx_subscription *s)
{
    for (int k = 0; k < 20; k++) {
        struct dlx_message *m = NULL;
        uint64_t start = dlx__now_ns();
        if (dlx_take(s, SECOND / 500, &m) == 0) {
            (void)dlx_message_renew(m);
            (void)(k % 2 ? dlx_message_done(m) : dlx_message_give_back(m));
        }
        dlx_message_unref(m);
        ck_assert(dlx_test_ends_in_time(start, SECOND / 500));
    }
}

LOOP_TEST(a_hostile_worker_harms_only_its_group, 0, N_WAYS_TO_HARM)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(
        c, TOPIC, PUBLISHER(GROUPS, .on_full = DLX_ON_FULL_DROP, .depth = 512));
    auto_subscription *good = dlx_test_stream_subscribe(c, TOPIC, SUBSCRIBE(.group = "good"));
    auto_subscription *all = dlx_test_stream_subscribe(c, TOPIC, NULL);
    auto_subscription *harmed = worker(c, "bad");
    dlx_test_stream_publish_all(p, N, 1, 10);
    struct dlx_test_liar liar = dlx_test_liar_spawn(harm, _i);
    dlx_test_liar_hear(liar.sock);
    for (int64_t n = 1; n <= 300; n++) {
        auto_message *m = dlx_test_stream_next(good);
        ck_assert_uint_eq(dlx_message_seq(m), (uint64_t)n);
        ck_assert_uint_eq(dlx_message_attempt(m), 1);
        ok(dlx_message_done(m));
        dlx_test_stream_expect(all, N, n);
        dlx_test_stream_publish(p, N, n + 10);
        if (n % 100 == 0)
            work_in_the_harmed_group(harmed);
        if (n % 150 == 0) { /* somebody joins it: or is told why not */
            struct dlx_subscription *another = NULL;
            (void)dlx_subscribe(c, TOPIC, SUBSCRIBE(.group = "bad", .lease_ns = SECOND / 10),
                                &another);
            if (another)
                work_in_the_harmed_group(another);
            dlx_subscription_unref(another);
        }
    }
    (void)dlx_test_stream_daemon_info(c); /* it answers */
    uint64_t start = dlx__now_ns();
    (void)dlx_publisher_drain(p, SECOND / 100);
    ck_assert(dlx_test_ends_in_time(start, SECOND / 100));
    dlx_test_liar_kill(&liar);
    work_in_the_harmed_group(harmed);
    (void)dlx_test_stream_daemon_info(c);
}

/* ---- hostile publishers ---------------------------------------------------------------------- */

/* The message lies in an arena that nobody announced, and the worker may have one message. */
TEST(a_message_that_never_comes_keeps_a_worker_from_no_other)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *liar = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    auto_publisher *honest = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    auto_subscription *s = dlx_test_stream_subscribe(c, TOPIC, SUBSCRIBE(.group = "good"));
    const int64_t shape[2] = {16, 16};
    uint64_t words[DLX_SHM_ENTRY_WORDS];
    dlx_test_stream_publish(liar, N, 1);
    auto_message *m = dlx_test_stream_next(s);
    ok(dlx_message_done(m));
    struct dlx_block *block = dlx_test_scene_begin_lie(liar, words);
    ck_assert(dlx__entry_pack_tensor(words, 77, block->offset, (DLDataType){kDLUInt, 8, 1}, false,
                                     2, shape));
    dlx__writer_put(&liar->core, words, 1, block);
    dlx__writer_announce(&liar->core);
    take_fails(s, SECOND / 50, DLX_E_TIMEOUT, "");
    for (int64_t n = 1; n <= 20; n++) {
        dlx_test_stream_publish(honest, N, n);
        m = dlx_message_unref(m);
        m = dlx_test_stream_next(s);
        ck_assert_uint_eq(dlx_message_publisher(m), honest->id);
        ok(dlx_message_done(m));
    }
}

static void publish_at(struct dlx_publisher *liar, uint64_t ns)
{
    uint64_t words[DLX_SHM_ENTRY_WORDS];
    struct dlx_block *block = dlx_test_scene_begin_lie(liar, words);
    dlx__writer_put(&liar->core, words, ns, block);
    dlx__writer_announce(&liar->core);
}

static void do_next(struct dlx_subscription *s)
{
    auto_message *m = dlx_test_stream_next(s);
    ok(dlx_message_done(m));
}

/* The next message of the liar is always there already, and seems older than the honest one. */
TEST(a_publisher_that_claims_to_be_from_the_past_does_not_go_first_for_ever)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *liar = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    auto_publisher *honest = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    auto_subscription *good = dlx_test_stream_subscribe(c, TOPIC, SUBSCRIBE(.group = "good"));
    auto_subscription *bad = dlx_test_stream_subscribe(c, TOPIC, SUBSCRIBE(.group = "bad"));
    uint64_t n_taken = 0;
    dlx_test_stream_publish(honest, N, 1);
    publish_at(liar, 1);
    for (uint64_t from = 0; from != honest->id; n_taken++) {
        publish_at(liar, 1);
        auto_message *m = dlx_test_stream_next(good);
        from = dlx_message_publisher(m);
        ok(dlx_message_done(m));
        do_next(bad);
        ck_assert_uint_le(n_taken, DLX_SHM_ENTRIES_MAX + 1);
    }
    ck_assert_uint_gt(n_taken, 1000); /* the lie was believed */
}

/* The rare publisher publishes after the worker has looked at all of them, and does not wait until
 * the busy one has nothing that seems older than the lie. */
TEST(a_publisher_that_claims_to_be_from_the_future_holds_up_no_other)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *liar = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    auto_publisher *busy = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    auto_publisher *rare = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
    auto_subscription *good = dlx_test_stream_subscribe(c, TOPIC, SUBSCRIBE(.group = "good"));
    auto_subscription *bad = dlx_test_stream_subscribe(c, TOPIC, SUBSCRIBE(.group = "bad"));
    struct dlx_publisher *all[] = {liar, busy, rare};
    uint64_t until = UINT64_MAX;
    bool is_rare = false;
    for (size_t i = 0; i < DLX_ARRAY_SIZE(all); i++) { /* their memory is known then */
        dlx_test_stream_publish(all[i], N, 0);
        do_next(good);
        do_next(bad);
    }
    publish_at(liar, UINT64_MAX);
    dlx_test_stream_publish(busy, N, 1);
    for (int64_t n = 2; !is_rare; n++) {
        dlx_test_stream_publish(busy, N, n);
        if (n == 3) { /* `good` has looked */
            dlx_test_stream_publish(rare, N, 1);
            until = dlx__now_ns() + SECOND / 500;
        }
        auto_message *m = dlx_test_stream_next(good);
        is_rare = dlx_message_publisher(m) == rare->id;
        ck_assert(is_rare || dlx_message_publisher(m) == liar->id ||
                  dlx_message_monotonic_ns(m) < until);
        ok(dlx_message_done(m));
        do_next(bad);
    }
}

/* Head, gens, moved_at and what was carried. */
TEST(a_control_block_that_changes_all_the_time_holds_no_worker_up)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *honest = dlx_test_stream_publisher(
        c, TOPIC, PUBLISHER(.groups = (const char *const[]){"good"}, .n_groups = 1));
    for (uint64_t round = 0; round < 20; round++) {
        struct dlx_publisher *liar = dlx_test_stream_publisher(c, TOPIC, PUBLISHER(GROUPS));
        auto_subscription *s =
            dlx_test_stream_subscribe(c, TOPIC, SUBSCRIBE(.group = "good", .max_held = 4));
        struct dlx_test_scribbler scribbler = {
            .seed = round + 1,
            .words = (uint64_t *)(void *)dlx_test_control_of(liar),
            .n_words = dlx_shm_control_size(liar->core.block->mask + 1) / 8,
        };
        if (round % 2) /* also the few words before the entries alone */
            scribbler.n_words = 24;
        dlx_test_stream_publish_all(liar, N, 1, 4);
        pthread_t thread = dlx_test_stream_thread(dlx_test_scribble, &scribbler);
        eventually(atomic_load(&scribbler.rounds) > 0);
        for (int64_t n = 1; n <= 20; n++) {
            bool is_honest = false;
            dlx_test_stream_publish(honest, N, n);
            for (uint64_t until = dlx__deadline(PATIENCE); !is_honest;) {
                struct dlx_message *m = NULL;
                ck_assert(dlx__now_ns() < until);
                if (dlx_take(s, SECOND, &m) < 0)
                    continue;
                is_honest = dlx_message_publisher(m) == honest->id;
                if (is_honest)
                    ok(dlx_message_done(m));
                dlx_message_unref(m);
            }
        }
        atomic_store(&scribbler.stop, true);
        pthread_join(thread, NULL);
        s = dlx_subscription_unref(s);
        dlx_publisher_unref(liar);
        ok(dlx_publisher_drain(honest, 0));
    }
}
