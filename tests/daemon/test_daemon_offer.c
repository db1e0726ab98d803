/* SPDX-License-Identifier: Apache-2.0 */
/* Publishers and subscriptions meet once, in steps that do a bounded amount of work, whatever comes
 * and goes between two of them. */
#include "daemon/objects/connection.h"
#include "daemon/objects/link.h"
#include "daemon/objects/offer.h"
#include "daemon/objects/publisher_state.h"
#include "tests/daemon/harness_scene.h"
#include "tests/harness/random.h"

/* MOST: of what a step does that has no time. */
enum { N = 40, MANY = 500, STEPS = 3000, MOST = 1, MOST_SPARES = 16 };

/* A subscription whose request is being handled, or was. */
struct reader {
    struct dlxd_subscription *subscription;
    struct dlxd_offers offers;
    bool is_asking;
    int sock;
};

static struct dlxd_client *client;
static uint64_t seed;
static struct dlxd_publisher *publishers[N];
static struct reader readers[MANY];

static uint32_t pick(uint32_t n)
{
    return (uint32_t)((dlx_test_random(&seed) >> 20) % n);
}

static void set_up(void)
{
    client = dlx_scene_client(0, 100000);
    (void)memset(publishers, 0, sizeof publishers);
    (void)memset(readers, 0, sizeof readers);
}

/* Its subscription ends with its client. */
static void forget(struct reader *reader)
{
    dlxd_offers_deinit(&reader->offers);
    *reader = (struct reader){.subscription = NULL};
}

static void leave(struct reader *reader)
{
    dlxd_offers_deinit(&reader->offers);
    dlxd_subscription_free(reader->subscription);
    dlx_scene_close(reader->sock);
    *reader = (struct reader){.subscription = NULL};
}

static void tear_down(void)
{
    for (int i = 0; i < MANY; i++)
        if (readers[i].subscription)
            leave(&readers[i]);
}

static struct dlxd_publisher *publish(const char *topic)
{
    return dlx_test_broker_publisher(client, topic, &dlx_scene_plain, 0);
}

static void subscribe_as(struct reader *ret, const char *topic,
                         const struct dlxd_subscription_config *config)
{
    *ret = (struct reader){.is_asking = true};
    ret->subscription = dlx_scene_subscription(client, topic, config, &ret->sock);
    dlxd_offers_init(&ret->offers, ret->subscription);
}

static void subscribe(struct reader *ret, const char *topic)
{
    subscribe_as(ret, topic, NULL);
}

static const struct dlxd_link *link_at(const struct dlxd_list *by_subscription)
{
    return dlxd_container_of(by_subscription, struct dlxd_link, by_subscription);
}

/* The subscriber counts those that it was promised from the first one on. */
static void check_promised(const struct reader *reader)
{
    const struct dlxd_list *it = reader->subscription->links.next;
    uint64_t id = reader->offers.made_link - reader->offers.n_links;
    for (uint32_t i = 0; i < reader->offers.n_links; i++, it = it->next)
        ck_assert_uint_eq(dlxd_link_id(link_at(it)), ++id);
}

static void ask(struct reader *reader)
{
    int r = dlxd_offers_step(&reader->offers);
    ck_assert_int_ge(r, 0);
    reader->is_asking = r == 1;
    if (r == 1)
        return;
    check_promised(reader);
    dlxd_subscription_open(reader->subscription);
}

static void ask_to_the_end(struct reader *reader)
{
    while (reader->is_asking)
        ask(reader);
}

/* The first of them, each with one subscription of this pattern. */
static void subscribe_many(int n, const char *pattern)
{
    for (int i = 0; i < n; i++) {
        subscribe(&readers[i], pattern);
        ask_to_the_end(&readers[i]);
    }
}

static void random_step(void)
{
    static const char *const names[] = {"a/a", "a/b", "a/c/d", "b/a", "a/*", "**", "a/**", "b/*"};
    uint32_t i = pick(N);
    struct dlxd_publisher **publisher = &publishers[i];
    struct reader *reader = &readers[i];
    if (pick(2)) {
        char topic[16];
        (void)snprintf(topic, sizeof topic, "%s/%u", names[pick(4)], pick(10));
        if (!*publisher) {
            *publisher = publish(pick(2) ? names[pick(4)] : topic);
        } else if ((*publisher)->offering.active && pick(10)) {
            (void)dlxd_offering_step(*publisher);
        } else if (pick(4) == 0) {
            (void)dlxd_publisher_end(*publisher);
            *publisher = NULL;
        }
    } else if (!reader->subscription) {
        subscribe(reader, names[pick(8)]);
    } else if (reader->is_asking && pick(10)) {
        ask(reader);
    } else if (pick(4) == 0) {
        leave(reader);
    }
}

static void check_pair(const struct dlxd_publisher *publisher,
                       const struct dlxd_subscription *subscription)
{
    uint32_t n = 0;
    dlx_for_each (it, &publisher->links)
        n += dlxd_container_of(it, struct dlxd_link, by_publisher)->subscription == subscription;
    ck_assert_uint_eq(n, dlx__pattern_matches(subscription->topic_name, publisher->topic_name) ? 1
                                                                                               : 0);
}

LOOP_TEST(each_pair_meets_once_however_steps_interleave, 1, 21)
{
    seed = (uint64_t)_i;
    for (int i = 0; i < STEPS; i++)
        random_step();
    for (int i = 0; i < N; i++)
        if (publishers[i])
            dlx_scene_offer(publishers[i]);
    for (int i = 0; i < N; i++)
        ask_to_the_end(&readers[i]);
    for (int i = 0; i < N * N; i++)
        if (publishers[i / N] && readers[i % N].subscription)
            check_pair(publishers[i / N], readers[i % N].subscription);
    for (int i = 0; i < N; i++) {
        uint64_t last = 0;
        if (!readers[i].subscription)
            continue;
        dlx_for_each (it, &readers[i].subscription->links) { /* those it was promised come first */
            ck_assert_uint_gt(dlxd_link_id(link_at(it)), last);
            last = dlxd_link_id(link_at(it));
        }
    }
}

TEST(a_subscription_to_many_topics_is_answered_step_by_step)
{
    enum { TOPICS = 200 };
    struct reader *reader = &readers[0];
    uint32_t steps = 0;
    for (int i = 0; i < TOPICS; i++) {
        char topic[16];
        (void)snprintf(topic, sizeof topic, "t/%d", i);
        (void)publish(topic);
    }
    subscribe(reader, "t/*");
    for (; reader->is_asking; steps++) {
        size_t n_links = dlx_scene.broker.registry.links.n;
        size_t n_found = reader->offers.n_publishers;
        ask(reader);
        ck_assert_uint_le(dlx_scene.broker.registry.links.n - n_links, MOST);
        ck_assert_uint_le(reader->offers.n_publishers - n_found, MOST);
    }
    ck_assert_uint_ge(steps, 2 * TOPICS / MOST);
    ck_assert_uint_eq(reader->offers.n_links, TOPICS); /* their numbers follow one another: ask() */
}

TEST(a_subscription_gets_many_spare_links_step_by_step)
{
    struct reader *reader = &readers[0];
    subscribe_as(reader, "t", SUBSCRIPTION_CONFIG(.max_held = 1, .n_spares = N));
    while (reader->is_asking) {
        uint32_t n = reader->offers.n_links;
        ask(reader);
        ck_assert_uint_le(reader->offers.n_links - n, MOST_SPARES);
    }
    ck_assert_uint_eq(reader->offers.n_links, N);
    ck_assert_uint_eq(reader->subscription->n_spares, N);
}

TEST(a_publisher_for_many_subscriptions_is_offered_step_by_step)
{
    uint32_t steps = 0;
    for (int i = 0; i < N; i++) {
        subscribe(&readers[i], i % 2 ? "t" : "*");
        ask_to_the_end(&readers[i]);
    }
    struct dlxd_publisher *publisher = publish("t");
    for (bool more = true; more; steps++) {
        size_t n = publisher->n_links;
        more = dlxd_offering_step(publisher);
        ck_assert_uint_le(publisher->n_links - n, MOST);
    }
    ck_assert_uint_ge(steps, N / MOST);
    ck_assert_uint_eq(publisher->n_links, N);
}

/* As if its subscriber had taken it, and were asleep since. */
static void make_spare_ready(const struct reader *reader)
{
    struct dlxd_link *link = dlx_scene_link(reader->subscription);
    ck_assert_int_eq(link->made, DLXD_MADE_AS_SPARE);
    link->drain->page_fd = memfd_create("page", MFD_CLOEXEC);
    ck_assert_int_ge(link->drain->page_fd, 0);
    dlxd_link_set_proving(link);
    link->state = DLXD_LINK_SPARE;
}

/* Its link fails, in words, and the spare one is for a publisher that waits. */
TEST(a_spare_link_of_a_reliable_subscription_is_for_a_publisher_that_blocks)
{
    struct reader *reader = &readers[0];
    subscribe_as(reader, "t", SUBSCRIPTION_CONFIG(.max_held = 1, .n_spares = 1, .reliable = true));
    ask(reader);
    make_spare_ready(reader);
    reader->subscription->state = DLXD_SUBSCRIPTION_FULL; /* nothing else can be sent */
    const struct dlxd_publisher *drops = dlx_scene_publisher(client, "t");
    ck_assert_uint_eq(drops->n_links, 0);
    ck_assert_uint_eq(reader->subscription->n_failed, 1);
    const struct dlxd_publisher *blocks =
        dlx_test_broker_publisher(client, "t", PUBLISHER_CONFIG(.on_full = 1), 0);
    dlx_scene_offer((struct dlxd_publisher *)(uintptr_t)blocks);
    ck_assert_uint_eq(blocks->n_links, 1);
    ck_assert_int_eq(dlxd_container_of(blocks->links.next, struct dlxd_link, by_publisher)->made,
                     DLXD_MADE_EARLY);
}

TEST(a_publisher_joins_many_spare_links_step_by_step)
{
    int link_sock;
    uint32_t n = 0;
    for (int i = 0; i < N; i++) {
        subscribe_as(&readers[i], "t", SUBSCRIPTION_CONFIG(.max_held = 1, .n_spares = 1));
        ask(&readers[i]);
        make_spare_ready(&readers[i]);
        readers[i].subscription->state = DLXD_SUBSCRIPTION_FULL; /* nothing else can be sent */
    }
    struct dlxd_publisher *publisher = dlx_scene_publisher_linked(client, "t", &link_sock);
    ck_assert_uint_eq(publisher->n_links, N);
    dlxd_publisher_deliver_begin(publisher);
    for (bool more = true; more;) {
        uint32_t n_before = n;
        more = dlxd_publisher_deliver_step(publisher);
        n = 0;
        dlx_for_each (it, &publisher->links)
            n += dlxd_container_of(it, struct dlxd_link, by_publisher)->state == DLXD_LINK_ADDED;
        ck_assert_uint_le(n - n_before, MOST);
    }
    ck_assert_uint_eq(n, N);
}

/* No subscriber reads: the daemon still knows at the end what the links had to be told. */
TEST(a_publisher_with_many_links_ends_step_by_step)
{
    struct dlxd_publisher *publisher = dlx_scene_publisher(client, "t");
    subscribe_many(MANY, "t");
    for (int i = 0; i < MANY; i++)
        dlxd_task_stop(&readers[i].subscription->task); /* it sends nothing meanwhile */
    ck_assert_uint_eq(publisher->n_links, MANY);
    (void)dlxd_publisher_end(publisher);
    ck_assert_uint_ge(publisher->n_links, MANY - MOST);
    dlxd_broker_settle(&dlx_scene.broker);
    for (int i = 0; i < MANY; i++) {
        const struct dlxd_list *links = &readers[i].subscription->links;
        ck_assert(dlxd_list_empty(links) || link_at(links->next)->state == DLXD_LINK_FAILED);
    }
}

TEST(a_client_with_many_links_ends_step_by_step)
{
    struct dlxd_publisher *publisher = dlx_scene_publisher(client, "t");
    client = dlx_scene_client(0, 100000);
    subscribe_many(MANY, "t");
    for (int i = 0; i < MANY; i++)
        forget(&readers[i]);
    dlxd_client_doom(client);
    for (size_t n = publisher->n_links; n > 0; n = publisher->n_links) {
        bool more = dlxd_client_end_some(client);
        ck_assert_uint_le(n - publisher->n_links, MOST);
        ck_assert(more || publisher->n_links == 0);
    }
    dlxd_broker_settle(&dlx_scene.broker);
}

/* As long as nothing can be sent: the socket is as good as full. */
static void stop_reading(struct reader *reader)
{
    dlxd_subscription_open(reader->subscription);
    reader->subscription->state = DLXD_SUBSCRIPTION_FULL;
}

static void come_and_go(const char *topic, const struct dlxd_publisher_config *config,
                        uint64_t head)
{
    struct dlxd_publisher *publisher = dlx_test_broker_publisher(client, topic, config, head);
    dlx_scene_offer(publisher);
    (void)dlxd_publisher_end(publisher);
    dlxd_broker_settle(&dlx_scene.broker);
}

/* The number of messages that the reader's failed links report as missed. */
static uint64_t n_missed(const struct reader *reader)
{
    uint64_t missed = 0;
    dlx_for_each (it, &reader->subscription->links) {
        ck_assert_uint_le(link_at(it)->fail_missed, link_at(it)->fail_seq);
        missed += link_at(it)->fail_missed;
    }
    return missed;
}

TEST(failed_links_that_nobody_reads_are_bounded_and_what_was_missed_is_exact)
{
    enum { GONE = 1000, KEPT = 64 + 2 };
    uint32_t merged = 0;
    subscribe_many(1, "t/*");
    stop_reading(&readers[0]);
    for (int i = 0; i < GONE; i++) {
        come_and_go("t/a", &dlx_scene_plain, 3);
        ck_assert_uint_le(dlx_scene.broker.registry.links.n, KEPT);
    }
    dlx_for_each (it, &readers[0].subscription->links) {
        ck_assert_int_eq(link_at(it)->state, DLXD_LINK_FAILED);
        merged += link_at(it)->n_merged + 1;
    }
    ck_assert_uint_eq(n_missed(&readers[0]), 3 * GONE);
    ck_assert_uint_eq(merged, GONE);
    leave(&readers[0]);
    ck_assert_uint_eq(client->user->used[DLXD_FAILED], 0);
}

/* Whatever failed first, the subscriber counts missed messages of a publisher that has gone, and
 * knows no such publisher. */
TEST(the_count_of_missed_messages_is_exact_after_other_failures)
{
    enum { REFUSED = 100, GONE = 50 };
    struct reader *reader = &readers[0];
    subscribe_as(reader, "t/*", SUBSCRIPTION_CONFIG(.max_held = 1, .reliable = true));
    ask(reader);
    stop_reading(reader);
    for (int i = 0; i < REFUSED; i++) /* those that drop messages cannot serve it */
        (void)dlx_scene_publisher(client, "t/a");
    ck_assert_ptr_nonnull(reader->subscription->failed);
    ck_assert_int_eq(reader->subscription->failed->fail_code, DLX_E_QOS);
    for (int i = 0; i < GONE; i++)
        come_and_go("t/b", PUBLISHER_CONFIG(.history = 1, .on_full = 1), 3);
    dlx_for_each (it, &reader->subscription->links)
        ck_assert(link_at(it)->fail_missed == 0 ||
                  (link_at(it)->fail_code == DLX_E_PUBLISHER_GONE && link_at(it)->fail_origin));
    ck_assert_uint_eq(n_missed(reader), 3 * GONE);
}

/* However many subscriptions there are: each has one that tells of all others. */
TEST(failed_links_of_all_subscriptions_of_a_user_have_a_limit)
{
    enum { LIMIT = 100 };
    dlx_scene.broker.users.max[DLXD_FAILED] = LIMIT;
    subscribe_many(N, "t/*");
    for (int i = 0; i < N; i++)
        stop_reading(&readers[i]);
    for (int i = 0; i < 100; i++) {
        come_and_go("t/a", &dlx_scene_plain, 1);
        ck_assert_uint_le(dlx_scene.broker.registry.links.n, LIMIT + N);
    }
    ck_assert(!dlxd_client_is_doomed(client));
    for (int i = 0; i < N; i++)
        ck_assert_uint_eq(n_missed(&readers[i]), 100);
}

/* The offers that the answer to Subscribe counts are told one by one, or not at all. */
TEST(a_subscriber_that_leaves_offers_unread_is_disconnected_at_the_limit)
{
    enum { LIMIT = 10 };
    struct dlxd_publisher *first[LIMIT + 2];
    for (int i = 0; i < LIMIT + 2; i++)
        first[i] = dlx_scene_publisher(client, "t/a");
    dlx_scene.broker.users.max[DLXD_FAILED] = LIMIT;
    subscribe_many(1, "t/*");
    stop_reading(&readers[0]);
    for (int i = 0; i < LIMIT; i++)
        (void)dlxd_publisher_end(first[i]);
    ck_assert(!dlxd_client_is_doomed(client));
    (void)dlxd_publisher_end(first[LIMIT]);
    ck_assert(dlxd_client_is_doomed(client));
    forget(&readers[0]);
}

int main(void)
{
    TCase *tcase = dlx_scene_case("offer", set_up);
    tcase_add_checked_fixture(tcase, NULL, tear_down);
    return dlx_test_run_case(tcase);
}
