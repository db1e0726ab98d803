/* SPDX-License-Identifier: Apache-2.0 */

/* A lying subscriber's process: however it lies, a publisher waits for it no longer than asked, and
 * names it. */

#include "client/subscribe/subscription.h"
#include "tests/hostile/harness_liar.h"

static void sleeps(struct dlx_subscriber_link *subscriber_link, int tell)
{
    (void)subscriber_link;
    dlx_test_liar_rest(tell);
}

static void rings_publisher(struct dlx_subscriber_link *subscriber_link, int tell)
{
    dlx_test_liar_storm(subscriber_link->bell, tell);
}

static void holds_what_it_likes(struct dlx_subscriber_link *subscriber_link, int tell)
{
    dlx_test_liar_say(tell);
    for (uint64_t i = 0;; i++)
        dlx_store64_sc(&subscriber_link->page->hold[i % subscriber_link->max_held],
                       dlx_test_liar_random() % 64);
}

static void raises_its_ticket(struct dlx_subscriber_link *subscriber_link, int tell)
{
    dlx_test_liar_say(tell);
    for (;;)
        dlx_store64_sc(subscriber_link->core.ticket, dlx_test_liar_random());
}

static void uses_more_than_there_are(struct dlx_subscriber_link *subscriber_link, int tell)
{
    dlx_test_liar_say(tell);
    for (uint64_t i = 0;; i++) {
        dlx_store64_sc(&subscriber_link->page->n_used, dlx_test_liar_random());
        dlx_store64_sc(&subscriber_link->page->hold[i % subscriber_link->max_held],
                       dlx_test_liar_random());
    }
}

/* Every value is a good one, and none is true. */
static void hangs_up_but_stays(struct dlx_subscriber_link *subscriber_link, int tell)
{
    shutdown(subscriber_link->bell, SHUT_RDWR);
    dlx_test_liar_rest(tell);
}

static const struct {
    const char *name;
    void (*lie)(struct dlx_subscriber_link *subscriber_link, int tell);
} sub_lies[] = {
    {"never takes", sleeps},
    {"always ringing", rings_publisher},
    {"changing holds", holds_what_it_likes},
    {"changing ticket", raises_its_ticket},
    {"any number of hold words", uses_more_than_there_are},
    {"hung up, but lives", hangs_up_but_stays},
};

static void lying_subscriber(struct dlx_client *c, int tell, int arg)
{
    struct dlx_subscribe_args sa = {.size = sizeof sa, .reliable = true};
    struct dlx_subscription *s = NULL;
    ok(dlx_subscribe(c, "test/a", &sa, &s));
    sub_lies[arg].lie(s->links[0], tell);
}

LOOP_TEST(a_subscriber_that_lies_holds_a_publisher_no_longer_than_asked, 0,
          (int)DLX_ARRAY_SIZE(sub_lies))
{
    struct dlx_client *c = dlx_test_stream_connect();
    struct dlx_publisher_args pa = {
        .size = sizeof pa, .on_full = DLX_ON_FULL_BLOCK, .history = 2, .depth = 40};
    struct dlx_subscribe_args sa = {.size = sizeof sa, .reliable = true};
    struct dlx_publish_args args = {.size = sizeof args, .timeout_ns = SECOND / 20};
    struct dlx_publisher *p = NULL;
    struct dlx_subscription *s = NULL;
    struct dlx_message *m = NULL;
    int64_t published = 0, n_timeouts = 0;
    ok(dlx_publisher_new(c, "test/a", &pa, &p));
    ok(dlx_subscribe(c, "test/a", &sa, &s));
    struct dlx_test_liar liar = dlx_test_liar_spawn(lying_subscriber, _i);
    dlx_test_liar_hear(liar.sock);
    /* It passes nothing, so that after 40 messages it is in the way: that is its right for as long
     * as we wait, and no longer. */
    for (int round = 0; round < 60 && n_timeouts < 15; round++) {
        DLManagedTensorVersioned *t = dlx_test_stream_alloc(p, 4, published + 1);
        uint64_t start = dlx__now_ns();
        int r = dlx_publish(p, t, &args);
        ck_assert_msg(dlx_test_ends_in_time(start, args.timeout_ns),
                      "%s: a publish of 0.05 s took %.3f s", sub_lies[_i].name,
                      (double)(dlx__now_ns() - start) / 1e9);
        if (r == 0) {
            published++;
            ok(dlx_take(s, PATIENCE, &m));
            dlx_test_stream_check(m, 4, published);
            ck_assert_uint_eq(dlx_message_gap(m), 0);
            dlx_message_unref(m);
            continue;
        }
        ck_assert_int_eq(r, DLX_E_TIMEOUT);
        dlx_test_liar_check_names(liar.pid);
        n_timeouts++;
        t->deleter(t);
    }
    ck_assert_int_eq(n_timeouts, 15);
    uint64_t start = dlx__now_ns();
    fails(dlx_publisher_wait(p, 3, SECOND / 20), DLX_E_TIMEOUT, "2 of 3 subscribers");
    ck_assert(dlx_test_ends_in_time(start, SECOND / 20));
    dlx_test_liar_kill(&liar);
    for (int i = 0; i < 100; i++) {
        args.timeout_ns = PATIENCE;
        ok(dlx_publish(p, dlx_test_stream_alloc(p, 4, ++published), &args));
        ok(dlx_take(s, PATIENCE, &m));
        dlx_test_stream_check(m, 4, published);
        dlx_message_unref(m);
    }
    dlx_subscription_unref(s);
    dlx_publisher_unref(p);
    dlx_client_unref(c);
}

int main(void)
{
    TCase *tcase = dlx_test_stream_case("hostile_process_subscriber");
    tcase_set_timeout(tcase, 12);
    return dlx_test_run_case(tcase);
}
