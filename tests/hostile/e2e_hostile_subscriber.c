/* SPDX-License-Identifier: Apache-2.0 */

/* A subscriber that lies in its link page, cursor, hold words and ticket, or in what it does: here,
 * and in a process of its own. A publisher waits for it no longer than asked, and names it. */

#include "tests/hostile/harness_liar.h"
#include "tests/hostile/harness_lies.h"

struct cast {
    struct dlx_client *c;
    struct dlx_publisher *p;
    struct dlx_subscription *honest, *liar; /* NULL: it is another process's */
    struct dlx_shm_link *page;              /* of the liar */
    int64_t published, taken;
    struct dlx_message *held; /* an older one that the honest subscription holds, of this value */
    int64_t held_value;
};

static struct cast make_cast(uint32_t depth)
{
    struct cast x = {.c = dlx_test_stream_connect()};
    x.p = dlx_test_stream_publisher(
        x.c, "test/a", PUBLISHER(.on_full = DLX_ON_FULL_BLOCK, .history = 2, .depth = depth));
    x.honest = dlx_test_stream_subscribe(x.c, "test/a", SUBSCRIBE(.reliable = true));
    return x;
}

static struct cast make_cast_with_liar(void)
{
    struct cast x = make_cast(32);
    x.liar = dlx_test_stream_subscribe(x.c, "test/a", SUBSCRIBE(.reliable = true));
    x.page = x.liar->links[0]->page;
    return x;
}

static void end_cast(struct cast *x)
{
    /* what it pins is not more than it may hold */
    ck_assert_uint_le(dlx_test_stream_stats(x->p).n_arenas, 4);
    dlx_message_unref(x->held);
    dlx_subscription_unref(x->honest);
    dlx_subscription_unref(x->liar);
    dlx_publisher_unref(x->p);
    dlx_client_unref(x->c);
}
#define auto_cast DLX_TEST_AUTO(end_cast) struct cast

/* Publish, waiting so long if that is what it takes. */
static int publish_within(struct cast *x, int64_t timeout_ns)
{
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(x->p, 4, x->published + 1);
    uint64_t start = dlx__now_ns();
    int r = dlx_publish(x->p, t, PUBLISH(.timeout_ns = timeout_ns), NULL);
    ck_assert_msg(dlx_test_ends_in_time(start, timeout_ns), "a publish of %.3f s took %.3f s",
                  (double)timeout_ns / 1e9, (double)(dlx__now_ns() - start) / 1e9);
    if (r == 0)
        x->published++;
    else
        t->deleter(t);
    return r;
}

enum { SHORT_NS = 2000000 };

static int publish_once(struct cast *x)
{
    return publish_within(x, SHORT_NS);
}

/* The honest one gets every message that was published, in order. */
static void take_all(struct cast *x)
{
    struct dlx_message *m = NULL;
    while (x->taken < x->published) {
        ok(dlx_take(x->honest, PATIENCE, &m));
        dlx_test_stream_check(m, 4, ++x->taken);
        ck_assert_uint_eq(dlx_message_gap(m), 0);
        if (x->held)
            dlx_test_stream_check(x->held, 4, x->held_value);
        if (x->taken % 40 != 1) {
            dlx_message_unref(m);
            continue;
        }
        dlx_message_unref(x->held);
        x->held = m;
        x->held_value = x->taken;
    }
}

/* No subscriber is in the way. */
static void go_on(struct cast *x, int64_t timeout_ns)
{
    for (int i = 0; i < 100; i++) {
        ok(publish_within(x, timeout_ns));
        take_all(x);
    }
}

CASE(page)
{
    TCase *tcase = dlx_test_stream_case("page");
    tcase_set_timeout(tcase, 120);
    return tcase;
}

CASE(process)
{
    TCase *tcase = dlx_test_stream_case("process");
    tcase_set_timeout(tcase, 12);
    return tcase;
}

TEST_OF(page, a_cursor_that_lies_harms_only_itself)
{
    auto_cast x = make_cast_with_liar();
    static const uint64_t cursors[] = {UINT64_C(1) << 62, 0, 3, UINT64_MAX - 1, 1};
    for (int round = 0; round < 500; round++) {
        dlx_store64_sc(&x.page->cursor, cursors[round % 5]);
        int r = publish_once(&x);
        if (r < 0) { /* it may hold the publisher up, as any reliable subscriber: that is named */
            ck_assert_int_eq(r, DLX_E_TIMEOUT);
            dlx_test_liar_check_names(getpid());
        }
        take_all(&x);
    }
    ck_assert_int_gt(x.published, 60);
}

/* A subscriber that says that it has started, and has passed nothing, is in the way as any other
 * that takes nothing. */
LOOP_TEST_OF(page, a_subscriber_that_starts_without_a_cursor_is_waited_for_and_named, 0, 2)
{
    auto_cast x = make_cast_with_liar();
    dlx_store64_sc(&x.page->cursor, 0);
    dlx_store32_sc(&x.page->started, _i == 0 ? 1 : UINT32_MAX);
    int r = 0;
    for (int round = 0; r == 0 && round < 100; round++) {
        r = publish_once(&x);
        take_all(&x);
    }
    ck_assert_int_eq(r, DLX_E_TIMEOUT);
    ck_assert_ptr_nonnull(strstr(dlx_errmsg(), "behind"));
    ck_assert_int_eq(x.published, 32);
    x.liar = dlx_subscription_unref(x.liar);
    go_on(&x, SHORT_NS);
}

/* Lies that hold no publisher up: the liar's cursor says that it is not in the way. */
static void any_holds(struct cast *x, uint64_t round)
{
    for (uint32_t k = 0; k < 16; k++) {
        const uint64_t lies[] = {(uint64_t)x->published, (uint64_t)x->published - k, UINT64_MAX,
                                 round * 1000003};
        dlx_store64_sc(&x->page->hold[k], lies[(round / 16) % 4]);
    }
}

static void any_number_of_holds(struct cast *x, uint64_t round)
{
    static const uint64_t numbers[] = {0,         1, 15, 17, 4096, UINT32_MAX, UINT64_C(1) << 32,
                                       UINT64_MAX};
    dlx_store64_sc(&x->page->n_used, numbers[round % DLX_ARRAY_SIZE(numbers)]);
    dlx_store64_sc(&x->page->hold[round % 16], (uint64_t)x->published + round % 3 * 1000);
}

/* Each costs a byte: more than its socket has room for. */
static void any_ticket(struct cast *x, uint64_t round)
{
    dlx_store64_sc(x->liar->links[0]->core.ticket, round * 7);
}

static void (*const lies[])(struct cast *x, uint64_t round) = {any_holds, any_number_of_holds,
                                                               any_ticket};

/* The liar pins no more than it may hold (end_cast), and holding starves no publisher. */
LOOP_TEST_OF(page, holds_and_tickets_that_lie_harm_only_itself, 0, (int)DLX_ARRAY_SIZE(lies))
{
    auto_cast x = make_cast_with_liar();
    for (uint64_t round = 0; round < 3000; round++) {
        dlx_store64_sc(&x.page->cursor, UINT64_C(1) << 62);
        lies[_i](&x, round);
        ok(publish_once(&x));
        take_all(&x);
    }
}

TEST_OF(page, a_link_page_that_changes_all_the_time_is_survived)
{
    for (int round = 0; round < 5; round++) {
        auto_cast x = make_cast_with_liar();
        struct dlx_test_scribbler scribbler = {
            .seed = (uint64_t)(round + 1), .words = (uint64_t *)&x.page->cursor, .n_words = 256};
        pthread_t thread = dlx_test_stream_thread(dlx_test_scribble, &scribbler);
        for (int i = 0; i < 1000; i++) {
            int r = publish_once(&x);
            ck_assert(r == 0 || r == DLX_E_TIMEOUT || r == DLX_E_FULL);
            take_all(&x);
        }
        atomic_store(&scribbler.stop, true);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
    }
}

/* Lies of a process: each is made, told of, and goes on until the process is killed. */
static void sleeps(struct dlx_subscriber_link *link, int tell)
{
    (void)link;
    dlx_test_liar_rest(tell);
}

static void rings_publisher(struct dlx_subscriber_link *link, int tell)
{
    dlx_test_liar_storm(link->bell, tell);
}

static void holds_what_it_likes(struct dlx_subscriber_link *link, int tell)
{
    dlx_test_liar_say(tell);
    for (uint64_t i = 0;; i++)
        dlx_store64_sc(&link->page->hold[i % link->max_held], dlx_test_liar_random() % 64);
}

static void raises_its_ticket(struct dlx_subscriber_link *link, int tell)
{
    dlx_test_liar_say(tell);
    for (;;)
        dlx_store64_sc(link->core.ticket, dlx_test_liar_random());
}

static void uses_more_than_there_are(struct dlx_subscriber_link *link, int tell)
{
    dlx_test_liar_say(tell);
    for (uint64_t i = 0;; i++) {
        dlx_store64_sc(&link->page->n_used, dlx_test_liar_random());
        dlx_store64_sc(&link->page->hold[i % link->max_held], dlx_test_liar_random());
    }
}

/* Every value is a good one, and none is true. */
static void hangs_up_but_stays(struct dlx_subscriber_link *link, int tell)
{
    shutdown(link->bell, SHUT_RDWR);
    dlx_test_liar_rest(tell);
}

static const struct {
    const char *name;
    void (*lie)(struct dlx_subscriber_link *link, int tell);
} process_lies[] = {
    {"never takes", sleeps},
    {"always ringing", rings_publisher},
    {"changing holds", holds_what_it_likes},
    {"changing ticket", raises_its_ticket},
    {"any number of hold words", uses_more_than_there_are},
    {"hung up, but lives", hangs_up_but_stays},
};

static void lying_subscriber(struct dlx_client *c, int tell, int arg)
{
    struct dlx_subscription *s =
        dlx_test_stream_subscribe(c, "test/a", SUBSCRIBE(.reliable = true));
    process_lies[arg].lie(s->links[0], tell);
}

LOOP_TEST_OF(process, a_process_that_lies_holds_a_publisher_no_longer_than_asked, 0,
             (int)DLX_ARRAY_SIZE(process_lies))
{
    auto_cast x = make_cast(40);
    int n_timeouts = 0;
    struct dlx_test_liar liar = dlx_test_liar_spawn(lying_subscriber, _i);
    dlx_test_liar_hear(liar.sock);
    /* The subscriber passes nothing, so that after 40 messages it is in the way, which it may be
     * for as long as the publisher waits. */
    for (int round = 0; round < 60 && n_timeouts < 15; round++) {
        int r = publish_within(&x, SECOND / 20);
        take_all(&x);
        if (r == 0)
            continue;
        ck_assert_int_eq(r, DLX_E_TIMEOUT);
        dlx_test_liar_check_names(liar.pid);
        n_timeouts++;
    }
    ck_assert_msg(n_timeouts == 15, "%s: %d time-outs", process_lies[_i].name, n_timeouts);
    uint64_t start = dlx__now_ns();
    fails(dlx_publisher_wait(x.p, 3, SECOND / 20), DLX_E_TIMEOUT, "2 of 3 subscribers");
    ck_assert(dlx_test_ends_in_time(start, SECOND / 20));
    dlx_test_liar_kill(&liar);
    go_on(&x, PATIENCE);
}

int main(void)
{
    return dlx_test_run_cases();
}
