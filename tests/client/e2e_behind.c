/* SPDX-License-Identifier: Apache-2.0 */

/* dlx_list_links() tells how far a subscriber is behind, what it has lost, and whether its
 * publisher waits for it. */

#include "client/message/subscriber_link.h"
#include "client/publish/publisher.h"
#include "client/subscribe/subscription.h"
#include "tests/harness/fork.h"
#include "tests/harness/stream.h"

enum { DEPTH = 4, LINKS_MAX = 8 };

struct links {
    struct dlx_link_info of[LINKS_MAX];
    size_t n;
};

static int add_link(const struct dlx_link_info *link, void *userdata)
{
    struct links *links = userdata;
    ck_assert_uint_lt(links->n, LINKS_MAX);
    links->of[links->n++] = *link;
    return 0;
}

/* The links of the one publisher of test/a, in the order in which they were made. */
static struct links look(struct dlx_client *c)
{
    struct links links = {.n = 0};
    struct dlx_publisher_info info = {.publisher = 0};
    (void)dlx_test_stream_list(c, &info);
    ok(dlx_list_links(c, info.publisher, add_link, &links));
    return links;
}

static struct dlx_link_info look_at_one(struct dlx_client *c)
{
    struct links links = look(c);
    ck_assert_uint_eq(links.n, 1);
    return links.of[0];
}

/* Until the first link blocks its publisher, or no longer does. */
static struct links wait_until_it_blocks(struct dlx_client *c, bool blocks)
{
    struct links links;
    eventually((links = look(c)).of[0].blocks == blocks);
    ck_assert_uint_ge(links.n, 1);
    return links;
}

TEST(a_list_says_how_many_messages_a_subscriber_has_yet_to_take)
{
    auto_pair x = dlx_test_pair_make(PUBLISHER(.depth = DEPTH), NULL);
    ck_assert_uint_eq(look_at_one(x.c).behind, 0);
    for (int i = 1; i <= 3; i++) {
        dlx_test_stream_publish(x.p, 10, i);
        ck_assert_uint_eq(look_at_one(x.c).behind, (uint64_t)i);
    }
    auto_message *m = dlx_test_stream_next(x.s);
    ck_assert_uint_eq(look_at_one(x.c).behind, 2); /* it holds the first one, and has passed it */
    m = dlx_message_unref(m);
    dlx_test_stream_publish(x.p, 10, 4);
    struct dlx_link_info link = look_at_one(x.c);
    ck_assert_uint_eq(link.behind, 3);
    ck_assert_uint_eq(link.lost, 0);
    ck_assert(!link.blocks);
}

/* By its depth, or by its history if that is more. */
static const struct dlx_publisher_args blocking[] = {
    {.size = sizeof blocking[0], .on_full = DLX_ON_FULL_BLOCK, .depth = DEPTH, .history = 1},
    {.size = sizeof blocking[0], .on_full = DLX_ON_FULL_BLOCK, .depth = DEPTH, .history = 6},
};
static const struct dlx_subscribe_args reliable = {.size = sizeof reliable, .reliable = true};

/* ---- what is lost --------------------------------------------------------------------------- */

/* Of both, those that were lost, or skipped in mode LATEST. */
struct missed {
    uint64_t by_daemon, by_stats;
};

static struct missed missed_by(struct dlx_client *c, struct dlx_subscription *s)
{
    struct dlx_link_info link = look_at_one(c);
    struct dlx_subscription_stats stats = dlx_test_stream_subscription_stats(s);
    bool is_latest = link.mode == DLX_MODE_LATEST;
    ck_assert_uint_eq(is_latest ? link.lost : link.skipped, 0);
    ck_assert_uint_eq(is_latest ? stats.lost : stats.skipped, 0);
    return (struct missed){.by_daemon = link.lost + link.skipped,
                           .by_stats = stats.lost + stats.skipped};
}

static void expect_missed(struct dlx_client *c, struct dlx_subscription *s, uint64_t n)
{
    struct missed missed = missed_by(c, s);
    ck_assert_uint_eq(missed.by_daemon, n);
    ck_assert_uint_eq(missed.by_stats, n);
}

static const struct {
    const char *pattern;
    struct dlx_subscribe_args args;
    bool publisher_is_first;
} hung[] = {
    {"test/a", {.size = sizeof(struct dlx_subscribe_args)}, true},
    {"test/a", {.size = sizeof(struct dlx_subscribe_args)}, false},
    {"test/*", {.size = sizeof(struct dlx_subscribe_args)}, true},
    {"test/*", {.size = sizeof(struct dlx_subscribe_args)}, false},
    {"test/a", {.size = sizeof(struct dlx_subscribe_args), .mode = DLX_MODE_LATEST}, true},
    {"test/a", {.size = sizeof(struct dlx_subscribe_args), .mode = DLX_MODE_LATEST}, false},
};

/* The subscriber has not taken anything, nor made another call since the first message. */
LOOP_TEST(messages_that_a_hung_subscriber_can_never_get_are_lost_at_once, 0, DLX_ARRAY_SIZE(hung))
{
    auto_client *c = dlx_test_stream_connect();
    bool is_latest = hung[_i].args.mode == DLX_MODE_LATEST;
    auto_publisher *p = hung[_i].publisher_is_first
                            ? dlx_test_stream_publisher(c, "test/a", PUBLISHER(.depth = DEPTH))
                            : NULL;
    auto_subscription *s = dlx_test_stream_subscribe(c, hung[_i].pattern, &hung[_i].args);
    if (!p)
        p = dlx_test_stream_publisher(c, "test/a", PUBLISHER(.depth = DEPTH));
    dlx_test_stream_publish_all(p, 10, 1, DEPTH);
    ck_assert_uint_eq(look_at_one(c).lost + look_at_one(c).skipped, 0);
    dlx_test_stream_publish_all(p, 10, DEPTH + 1, 500);
    struct dlx_link_info link = look_at_one(c);
    ck_assert_uint_eq(is_latest ? link.skipped : link.lost, 500 - DEPTH);
    ck_assert_uint_eq(link.behind, DEPTH);
    ck_assert_uint_eq(link.taken, 0);
    for (int i = 0; i < 2; i++)
        expect_missed(c, s, 500 - DEPTH);
    /* The subscriber counts them itself. */
    auto_message *m = dlx_test_stream_next(s);
    uint64_t n_before = is_latest ? 500 - 1 : 500 - DEPTH;
    ck_assert_uint_eq(dlx_message_gap(m), n_before);
    expect_missed(c, s, n_before);
    ck_assert_uint_eq(look_at_one(c).behind, 500 - n_before - 1);
    dlx_test_stream_publish_all(p, 10, 501, 500 + 2 * DEPTH);
    expect_missed(c, s, 500 + 2 * DEPTH - DEPTH - 1); /* all but the ones in the ring and m */
}

/* The subscriber is ready for two publishers, and makes no call: it will get the rest of the third
 * one's messages, or count them. */
TEST(messages_that_a_joining_subscriber_can_never_get_are_lost_at_once)
{
    auto_client *c = dlx_test_stream_connect();
    pid_t pid = dlx_test_stream_subscribe_elsewhere(NULL);
    struct dlx_publisher *p[3];
    for (int i = 0; i < 3; i++)
        p[i] = dlx_test_stream_publisher(c, "test/a", PUBLISHER(.depth = DEPTH));
    dlx_test_stream_publish_all(p[2], 10, 1, 10);
    struct links links = {.n = 0};
    struct dlx_publisher_info info = {.publisher = 0};
    ck_assert_uint_eq(dlx_test_stream_list(c, &info), 3);
    ck_assert_uint_eq(info.published, 10);
    ok(dlx_list_links(c, info.publisher, add_link, &links));
    ck_assert_uint_eq(links.n, 1);
    ck_assert(links.of[0].joining);
    ck_assert_uint_eq(links.of[0].lost, 10 - DEPTH);
    ck_assert_uint_eq(links.of[0].behind, DEPTH);
    dlx_test_fork_kill(pid);
    dlx_test_stream_unref_publishers(p, 3);
}

/* A message that the subscriber holds is not lost, however old it is. */
TEST(a_message_that_is_held_is_not_lost)
{
    auto_pair x = dlx_test_pair_make(PUBLISHER(.depth = DEPTH), NULL);
    dlx_test_stream_publish_all(x.p, 10, 1, 3);
    auto_message *m = dlx_test_stream_next(x.s), *n = dlx_test_stream_next(x.s);
    dlx_test_stream_publish_all(x.p, 10, 4, 100);
    expect_missed(x.c, x.s, 100 - DEPTH - 2);
    ck_assert_uint_eq(look_at_one(x.c).n_held, 2);
}

static int count_lost(const struct dlx_link_info *link, void *n)
{
    *(uint64_t *)n += link->lost;
    return 0;
}

static int note_publisher(const struct dlx_publisher_info *info, void *publisher)
{
    *(uint64_t *)publisher = info->publisher;
    return 0;
}

static uint64_t lost_of_gone(struct dlx_client *c)
{
    uint64_t publisher = 0, n = 0;
    ok(dlx_list_gone_publishers(c, "test/a", note_publisher, &publisher));
    ck_assert_uint_ne(publisher, 0);
    ok(dlx_list_links(c, publisher, count_lost, &n));
    return n;
}

/* The subscriber has yet to take what is left of the publisher (0); it leaves while it holds a
 * message (1). */
LOOP_TEST(lost_messages_stay_lost_when_an_end_of_the_link_goes, 0, 2)
{
    auto_pair x = dlx_test_pair_make(PUBLISHER(.depth = DEPTH), NULL);
    dlx_test_stream_publish(x.p, 10, 1);
    auto_message *m = dlx_test_stream_next(x.s);
    dlx_test_stream_publish_all(x.p, 10, 2, 100);
    expect_missed(x.c, x.s, 100 - DEPTH - 1);
    if (_i == 1) {
        x.s = dlx_subscription_unref(x.s);
        ck_assert_uint_eq(look_at_one(x.c).lost, 100 - DEPTH - 1);
        ck_assert_uint_eq(look_at_one(x.c).behind, 0);
    }
    x.p = dlx_publisher_unref(x.p);
    ck_assert_uint_eq(lost_of_gone(x.c), 100 - DEPTH - 1);
}

/* A publisher may write any number; the sum is one that there can be. */
TEST(counters_that_lie_do_not_overflow)
{
    auto_pair x = dlx_test_pair_make(&blocking[0], NULL);
    struct dlx_shm_control *control = x.p->core.block->control;
    struct dlx_shm_link *page = x.s->links[0]->page;
    dlx_store64_sc(&page->lost, UINT64_MAX - 1);
    ck_assert_uint_eq(look_at_one(x.c).lost, UINT64_MAX - 1);
    dlx_store64_sc(&control->head, UINT64_MAX);
    dlx_store64_sc(&control->oldest, UINT64_MAX);
    ck_assert_uint_eq(look_at_one(x.c).lost, UINT64_MAX);
    ck_assert_uint_eq(look_at_one(x.c).behind, 0);
    /* A head that cannot be is none: the next take says so. */
    ck_assert_uint_eq(dlx_test_stream_subscription_stats(x.s).lost, 0);
    dlx_store64_sc(&page->passing, UINT64_MAX);
    dlx_store64_sc(&page->missed, 3);
    ck_assert_uint_eq(look_at_one(x.c).lost, 3);
    dlx_store64_sc(&control->head, 0);
    dlx_store64_sc(&control->oldest, 1);
}

/* ---- who waits ------------------------------------------------------------------------------ */

static void *publish_one(void *p)
{
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(p, 10, 1);
    ok(dlx_publish(p, t, PUBLISH(.timeout_ns = PATIENCE), NULL));
    return NULL;
}

/* The subscriber holds one message of the 16 that it may hold: the publisher does not wait for held
 * ones. */
LOOP_TEST(a_subscriber_that_holds_little_and_is_slow_blocks_its_publisher, 0,
          DLX_ARRAY_SIZE(blocking))
{
    auto_pair x = dlx_test_pair_make(&blocking[_i], &reliable);
    uint64_t window = _i == 0 ? DEPTH : 6;
    auto_message *held = NULL;
    auto_subscription *keeps_up = dlx_test_stream_subscribe(x.c, "test/a", &reliable);
    for (uint64_t i = 0; i <= window; i++) {
        dlx_test_stream_publish(x.p, 10, (int64_t)i);
        dlx_test_stream_expect(keeps_up, 10, (int64_t)i);
        if (i == 0)
            held = dlx_test_stream_next(x.s);
        if (i == window - 1) { /* as if it waited for anything else: there is room */
            dlx_store32_relaxed(&x.p->core.block->control->blocked, 1);
            ck_assert(!look(x.c).of[0].blocks);
            dlx_store32_relaxed(&x.p->core.block->control->blocked, 0);
        }
    }
    struct links links = look(x.c);
    ck_assert_uint_eq(links.of[0].behind, window);
    ck_assert(!links.of[0].blocks); /* there is no room, but the publisher does not wait for any */
    pthread_t thread = dlx_test_stream_thread(publish_one, x.p);
    links = wait_until_it_blocks(x.c, true);
    ck_assert_uint_eq(links.n, 2);
    ck_assert_uint_eq(links.of[0].behind, window);
    ck_assert_uint_eq(links.of[0].n_held, 1);
    ck_assert(!links.of[1].blocks);
    ck_assert_uint_eq(links.of[1].behind, 0);
    dlx_test_stream_expect(x.s, 10, 1);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    links = look(x.c);
    ck_assert(!links.of[0].blocks);
    ck_assert_uint_eq(links.of[0].behind, window);
}

/* A publisher that waits by its descriptor waits between its calls. */
TEST(a_publisher_that_waits_by_its_descriptor_is_blocked)
{
    auto_pair x = dlx_test_pair_make(&blocking[0], &reliable);
    dlx_test_stream_publish_all(x.p, 10, 1, DEPTH);
    ck_assert_int_ge(dlx_publisher_fd(x.p), 0);
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, 10, DEPTH + 1);
    ck_assert_int_eq(dlx_publish(x.p, t, NULL, NULL), DLX_E_FULL);
    ck_assert(look_at_one(x.c).blocks);
    /* There is room, and its loop has yet to see that. */
    auto_message *m = dlx_test_stream_next(x.s);
    ck_assert(!look_at_one(x.c).blocks);
    ok(dlx_publish(x.p, t, NULL, NULL));
    ck_assert(!look_at_one(x.c).blocks);
}

/* A publisher that speaks the protocol itself, so that a test writes its control block. */
struct raw {
    struct dlx_client *c;
    struct dlx_subscription *s;
    struct dlx_test_publisher p;
    struct dlx_shm_control *control;
};

static struct raw make_raw(uint64_t after_seq, uint32_t retain)
{
    struct raw x = {.c = dlx_test_stream_connect()};
    Dlx__Wire__PublisherNew request = DLX__WIRE__PUBLISHER_NEW__INIT;
    request.topic = (char *)(uintptr_t) "test/a";
    request.history = 1;
    request.depth = DEPTH;
    request.n_entries = DLX_SHM_ENTRIES_MIN;
    request.on_full = 1;
    request.retain = retain;
    request.resumes = after_seq > 0 ? UINT64_MAX / 2 : 0;
    request.after_seq = after_seq;
    ok(dlx_subscribe(x.c, "test/a", &reliable, &x.s));
    dlx_test_publisher_new_from(&x.p, dlx_test_hello(&dlx_test_stream_daemon, 10), &request);
    dlx_test_publisher_ready(&x.p);
    x.control = x.p.block;
    return x;
}

static void end_raw(struct raw *x)
{
    close(x->p.control);
    dlx_test_publisher_deinit(&x->p);
    dlx_subscription_unref(x->s);
    dlx_client_unref(x->c);
}

/* The subscriber makes no call, so it has stored no cursor. */
LOOP_TEST(a_subscriber_that_was_there_first_is_behind_from_the_first_message, 0, 2)
{
    static const uint64_t after[] = {0, 10};
    struct raw x = make_raw(after[_i], 0);
    dlx_store64_sc(&x.control->head, after[_i] + DEPTH - 1);
    dlx_store32_relaxed(&x.control->blocked, 1);
    ck_assert_uint_eq(look_at_one(x.c).behind, DEPTH - 1);
    ck_assert(!look_at_one(x.c).blocks); /* the publisher waits, but not for this one */
    dlx_store64_sc(&x.control->head, after[_i] + DEPTH);
    ck_assert_uint_eq(look_at_one(x.c).behind, DEPTH);
    ck_assert(look_at_one(x.c).blocks);
    dlx_store32_relaxed(&x.control->blocked, 0);
    ck_assert(!look_at_one(x.c).blocks);
    end_raw(&x);
}

/* A later subscriber has yet to say where it begins; until then a publisher waits for it all the
 * same. */
TEST(a_subscriber_that_has_not_started_is_not_behind)
{
    auto_pair x = dlx_test_pair_make(&blocking[0], &reliable);
    struct dlx_shm_link *page = x.s->links[0]->page;
    struct dlx_shm_control *control = x.p->core.block->control;
    dlx_store32_relaxed(&page->started, 0);
    dlx_test_stream_publish_all(x.p, 10, 1, DEPTH);
    ck_assert_uint_eq(look_at_one(x.c).behind, 0);
    ck_assert(!look_at_one(x.c).blocks);
    dlx_store32_relaxed(&control->blocked, 1);
    ck_assert_uint_eq(look_at_one(x.c).behind, 0);
    ck_assert(look_at_one(x.c).blocks);
    dlx_store32_relaxed(&page->started, 1);
    ck_assert_uint_eq(look_at_one(x.c).behind, DEPTH);
}

#define HEAD_MAX ((UINT64_C(1) << 61) - 1)

static const struct {
    uint64_t head, cursor, behind;
} lies[] = {
    {7, 5, 2},
    {7, 8, 0},
    {7, UINT64_MAX, 0}, /* it has left */
    {7, UINT64_MAX - 1, 0},
    {HEAD_MAX, 0, HEAD_MAX},
    {HEAD_MAX + 1, 1, HEAD_MAX - 1},
    {UINT64_MAX, 0, HEAD_MAX},
    {UINT64_MAX, HEAD_MAX + 1, 0},
};

LOOP_TEST(a_head_and_a_cursor_that_lie_give_numbers_that_can_be, 0, DLX_ARRAY_SIZE(lies))
{
    auto_pair x = dlx_test_pair_make(&blocking[0], &reliable);
    struct dlx_shm_control *control = x.p->core.block->control;
    struct dlx_shm_link *page = x.s->links[0]->page;
    dlx_store32_relaxed(&control->blocked, UINT32_MAX);
    dlx_store64_sc(&control->head, lies[_i].head);
    dlx_store64_sc(&page->cursor, lies[_i].cursor);
    struct dlx_link_info link = look_at_one(x.c);
    ck_assert_uint_eq(link.behind, lies[_i].behind);
    ck_assert_int_eq(link.blocks, lies[_i].behind >= DEPTH);
    dlx_store64_sc(&page->cursor, 0);
    dlx_store64_sc(&control->head, 0);
}

/* The control block of the killed publisher says for ever that it waits. */
TEST(a_publisher_that_was_killed_waits_for_nobody)
{
    auto_client *c = dlx_test_stream_connect();
    struct dlx_link_info link;
    struct dlx_publisher_info info;
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/a", &reliable);
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        struct raw x = make_raw(0, 1);
        dlx_store64_sc(&x.control->published, DEPTH);
        dlx_store64_sc(&x.control->head, DEPTH);
        dlx_store32_relaxed(&x.control->blocked, 1);
        for (;;)
            pause();
    }
    eventually(dlx_test_stream_list(c, NULL) == 1);
    link = wait_until_it_blocks(c, true).of[0];
    ck_assert_uint_eq(link.behind, DEPTH);
    dlx_test_fork_kill(pid);
    link = wait_until_it_blocks(c, false).of[0];
    ck_assert_uint_eq(link.behind, DEPTH);
    ck_assert_uint_eq(dlx_test_stream_list(c, &info), 1);
    ck_assert(info.retained);
}
