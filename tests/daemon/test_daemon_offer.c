/* SPDX-License-Identifier: Apache-2.0 */
/* Publishers and subscriptions meet once, in steps that do a bounded amount of work, whatever comes
 * and goes between two of them. */
#include "daemon/objects/delivery.h"
#include "daemon/objects/drain.h"
#include "daemon/objects/link.h"
#include "daemon/objects/publisher.h"
#include "tests/daemon/harness_scene.h"
#include "tests/harness/random.h"

enum { N = 40, STEPS = 3000 };

/* A subscription whose request is being handled, or was. */
struct reader {
    struct dlxd_subscription *subscription;
    struct dlxd_offers offers;
    bool is_asking;
    int fd;
};

static struct dlxd_client *client;
static uint64_t seed;
static struct dlxd_publisher *publishers[N];
static struct reader readers[N];

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

static struct dlxd_publisher *publish_some(const char *topic, uint64_t n)
{
    return dlx_test_broker_publisher(client, topic, &dlx_scene_plain, n);
}

static struct dlxd_publisher *publish(const char *topic)
{
    return publish_some(topic, 0);
}

static void subscribe_as(struct reader *ret, const char *topic,
                         const struct dlxd_subscription_config *config)
{
    *ret = (struct reader){.is_asking = true};
    ok(dlxd_subscription_new(&ret->subscription, client, topic, config, &ret->fd));
    dlxd_offers_init(&ret->offers, ret->subscription);
}

static void subscribe(struct reader *ret, const char *topic)
{
    subscribe_as(ret, topic, &(const struct dlxd_subscription_config){.max_held = 1});
}

/* The subscriber counts those that it was promised from the first one on. */
static void check_promised(const struct reader *reader)
{
    const struct dlxd_list *it = reader->subscription->links.next;
    uint64_t id = reader->offers.made_link - reader->offers.n_links;
    for (uint32_t i = 0; i < reader->offers.n_links; i++, it = it->next)
        ck_assert_uint_eq(dlxd_link_id(dlxd_container_of(it, struct dlxd_link, by_subscription)),
                          ++id);
}

static void ask(struct reader *reader)
{
    struct dlxd_offers *offers = &reader->offers;
    int r = dlxd_offers_step(offers);
    ck_assert_int_ge(r, 0);
    reader->is_asking = r == 1;
    if (r == 1)
        return;
    check_promised(reader);
    dlxd_subscription_open(reader->subscription);
}

static void leave(struct reader *reader)
{
    dlxd_offers_deinit(&reader->offers);
    dlxd_subscription_free(reader->subscription);
    close(reader->fd);
    *reader = (struct reader){.subscription = NULL};
}

/* ---- each pair meets once ------------------------------------------------------------------- */

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
        while (readers[i].is_asking)
            ask(&readers[i]);
    for (int i = 0; i < N * N; i++)
        if (publishers[i / N] && readers[i % N].subscription)
            check_pair(publishers[i / N], readers[i % N].subscription);
    for (int i = 0; i < N; i++) {
        uint64_t last = 0;
        if (!readers[i].subscription)
            continue;
        dlx_for_each (it, &readers[i].subscription->links) { /* those it was promised come first */
            uint64_t id = dlxd_link_id(dlxd_container_of(it, struct dlxd_link, by_subscription));
            ck_assert_uint_gt(id, last);
            last = id;
        }
        leave(&readers[i]);
    }
}

/* ---- bounded steps -------------------------------------------------------------------------- */

TEST(a_subscription_to_many_topics_is_answered_step_by_step)
{
    enum { TOPICS = 200, MOST = 16 };
    struct reader reader;
    uint32_t steps = 0;
    uint64_t first = 0;
    for (int i = 0; i < TOPICS; i++) {
        char topic[16];
        (void)snprintf(topic, sizeof topic, "t/%d", i);
        (void)publish(topic);
    }
    subscribe(&reader, "t/*");
    while (reader.is_asking) {
        size_t n_links = dlx_scene.broker.registry.links.n;
        size_t n_found = reader.offers.n_publishers;
        ask(&reader);
        ck_assert_uint_le(dlx_scene.broker.registry.links.n - n_links, MOST);
        ck_assert_uint_le(reader.offers.n_publishers - n_found, MOST);
        steps++;
    }
    ck_assert_uint_ge(steps, 2 * TOPICS / MOST);
    ck_assert_uint_eq(reader.offers.n_links, TOPICS);
    dlx_for_each (it, &reader.subscription->links) { /* their numbers follow one another */
        uint64_t id = dlxd_link_id(dlxd_container_of(it, struct dlxd_link, by_subscription));
        first = first ? first : id;
        ck_assert_uint_eq(id, first++);
    }
    leave(&reader);
}

TEST(a_publisher_for_many_subscriptions_is_offered_step_by_step)
{
    enum { MOST = 16 };
    uint32_t steps = 0;
    for (int i = 0; i < N; i++) {
        subscribe(&readers[i], i % 2 ? "t" : "*");
        ask(&readers[i]);
    }
    struct dlxd_publisher *publisher = publish("t");
    for (bool more = true; more; steps++) {
        size_t n = publisher->n_links;
        more = dlxd_offering_step(publisher);
        ck_assert_uint_le(publisher->n_links - n, MOST);
    }
    ck_assert_uint_ge(steps, N / MOST);
    ck_assert_uint_eq(publisher->n_links, N);
    for (int i = 0; i < N; i++)
        leave(&readers[i]);
}

/* As if its subscriber had taken it, and were asleep since. */
static void make_spare_ready(const struct reader *reader)
{
    struct dlxd_link *link = dlx_scene_link(reader->subscription);
    ck_assert_int_eq(link->made, DLXD_MADE_AS_SPARE);
    link->drain->page_fd = memfd_create("page", MFD_CLOEXEC);
    ck_assert_int_ge(link->drain->page_fd, 0);
    link->state = DLXD_LINK_SPARE;
}

TEST(a_publisher_joins_many_spare_links_step_by_step)
{
    enum { MOST = 16 };
    int link_sock;
    uint32_t n = 0;
    for (int i = 0; i < N; i++) {
        subscribe_as(&readers[i], "t",
                     &(const struct dlxd_subscription_config){.max_held = 1, .n_spares = 1});
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
    for (int i = 0; i < N; i++)
        leave(&readers[i]);
}

/* Nobody reads: what its links were to be told is known at the end all the same. */
TEST(a_publisher_with_many_links_ends_step_by_step)
{
    enum { LINKS = 500, MOST = 64 };
    static struct reader many[LINKS];
    struct dlxd_publisher *publisher = publish("t");
    dlx_scene_offer(publisher);
    for (int i = 0; i < LINKS; i++) {
        subscribe(&many[i], "t");
        while (many[i].is_asking)
            ask(&many[i]);
        dlxd_task_stop(&many[i].subscription->task); /* it sends nothing meanwhile */
    }
    ck_assert_uint_eq(publisher->n_links, LINKS);
    (void)dlxd_publisher_end(publisher);
    ck_assert_uint_ge(publisher->n_links, LINKS - MOST);
    dlxd_broker_settle(&dlx_scene.broker);
    for (int i = 0; i < LINKS; i++) {
        const struct dlxd_link *link =
            dlxd_container_of(many[i].subscription->links.next, struct dlxd_link, by_subscription);
        ck_assert(dlxd_list_empty(&many[i].subscription->links) || link->state == DLXD_LINK_FAILED);
        leave(&many[i]);
    }
}

TEST(a_client_with_many_links_ends_step_by_step)
{
    enum { LINKS = 300, MOST = 64 };
    static struct reader many[LINKS];
    struct dlxd_publisher *publisher = publish("t");
    dlx_scene_offer(publisher);
    client = dlx_scene_client(0, 100000);
    for (int i = 0; i < LINKS; i++) {
        subscribe(&many[i], "t");
        while (many[i].is_asking)
            ask(&many[i]);
        dlxd_offers_deinit(&many[i].offers);
        close(many[i].fd);
    }
    dlxd_client_doom(client);
    for (size_t n = publisher->n_links; n > 0; n = publisher->n_links) {
        bool more = dlxd_client_end_some(client);
        ck_assert_uint_le(n - publisher->n_links, MOST);
        ck_assert(more || publisher->n_links == 0);
    }
    dlxd_broker_settle(&dlx_scene.broker);
}

/* ---- news that nobody reads ----------------------------------------------------------------- */

/* As long as nothing can be sent: the socket is as good as full. */
static void stop_reading(struct reader *reader)
{
    dlxd_subscription_open(reader->subscription);
    reader->subscription->state = DLXD_SUBSCRIPTION_FULL;
}

static void come_and_go(const char *topic, uint64_t head)
{
    struct dlxd_publisher *publisher = publish_some(topic, head);
    dlx_scene_offer(publisher);
    (void)dlxd_publisher_end(publisher);
}

TEST(failed_links_that_nobody_reads_are_bounded_and_what_was_missed_is_exact)
{
    enum { GONE = 1000, MOST = 64 + 2 };
    struct reader reader;
    uint64_t missed = 0;
    uint32_t merged = 0;
    subscribe(&reader, "t/*");
    ask(&reader);
    stop_reading(&reader);
    for (int i = 0; i < GONE; i++) {
        come_and_go("t/a", 3);
        ck_assert_uint_le(dlx_scene.broker.registry.links.n, MOST);
    }
    dlx_for_each (it, &reader.subscription->links) {
        const struct dlxd_link *link = dlxd_container_of(it, struct dlxd_link, by_subscription);
        ck_assert_int_eq(link->state, DLXD_LINK_FAILED);
        ck_assert_uint_le(link->fail_missed, link->fail_seq);
        missed += link->fail_missed;
        merged += link->n_merged + 1;
    }
    ck_assert_uint_eq(missed, 3 * GONE);
    ck_assert_uint_eq(merged, GONE);
    leave(&reader);
    ck_assert_uint_eq(client->user->used[DLXD_FAILED], 0);
}

/* Whatever failed first: the subscriber counts what was missed of a publisher that has gone, and
 * knows no such publisher. */
TEST(what_was_missed_is_exact_when_other_failures_came_first)
{
    enum { REFUSED = 100, GONE = 50 };
    static const struct dlxd_publisher_config blocks = {
        .history = 1, .depth = 16, .n_entries = 256, .on_full = 1};
    struct reader reader;
    uint64_t missed = 0;
    subscribe_as(&reader, "t/*",
                 &(const struct dlxd_subscription_config){.max_held = 1, .reliable = true});
    ask(&reader);
    stop_reading(&reader);
    for (int i = 0; i < REFUSED; i++) { /* those that drop messages cannot serve it */
        struct dlxd_publisher *publisher = publish("t/a");
        dlx_scene_offer(publisher);
    }
    ck_assert_ptr_nonnull(reader.subscription->failed);
    ck_assert_int_eq(reader.subscription->failed->fail_code, DLX_E_QOS);
    for (int i = 0; i < GONE; i++) {
        struct dlxd_publisher *publisher = dlx_test_broker_publisher(client, "t/b", &blocks, 3);
        dlx_scene_offer(publisher);
        (void)dlxd_publisher_end(publisher);
    }
    dlx_for_each (it, &reader.subscription->links) {
        const struct dlxd_link *link = dlxd_container_of(it, struct dlxd_link, by_subscription);
        ck_assert(link->fail_missed == 0 ||
                  (link->fail_code == DLX_E_PUBLISHER_GONE && link->fail_origin != 0));
        ck_assert_uint_le(link->fail_missed, link->fail_seq);
        missed += link->fail_missed;
    }
    ck_assert_uint_eq(missed, 3 * GONE);
    leave(&reader);
}

/* However many subscriptions there are: each has one that tells of all others. */
TEST(failed_links_of_all_subscriptions_of_a_user_have_a_limit)
{
    enum { MOST = 100 };
    dlx_scene.broker.users.max[DLXD_FAILED] = MOST;
    for (int i = 0; i < N; i++) {
        subscribe(&readers[i], "t/*");
        ask(&readers[i]);
        stop_reading(&readers[i]);
    }
    for (int i = 0; i < 100; i++) {
        come_and_go("t/a", 1);
        ck_assert_uint_le(dlx_scene.broker.registry.links.n, MOST + N);
    }
    ck_assert(!dlxd_client_is_doomed(client));
    for (int i = 0; i < N; i++) {
        uint64_t missed = 0;
        dlx_for_each (it, &readers[i].subscription->links)
            missed += dlxd_container_of(it, struct dlxd_link, by_subscription)->fail_missed;
        ck_assert_uint_eq(missed, 100);
        leave(&readers[i]);
    }
}

/* Those that the answer to Subscribe counts are told one by one, or not at all. */
TEST(who_does_not_read_what_it_was_promised_is_disconnected_at_the_limit)
{
    enum { MOST = 10 };
    struct reader reader;
    struct dlxd_publisher *first[MOST + 2];
    for (int i = 0; i < MOST + 2; i++) {
        first[i] = publish("t/a");
        dlx_scene_offer(first[i]);
    }
    dlx_scene.broker.users.max[DLXD_FAILED] = MOST;
    subscribe(&reader, "t/*");
    while (reader.is_asking)
        ask(&reader);
    stop_reading(&reader);
    for (int i = 0; i < MOST; i++)
        (void)dlxd_publisher_end(first[i]);
    ck_assert(!dlxd_client_is_doomed(client));
    (void)dlxd_publisher_end(first[MOST]);
    ck_assert(dlxd_client_is_doomed(client));
    dlxd_offers_deinit(&reader.offers);
    close(reader.fd);
}

int main(void)
{
    return dlx_test_run_case(dlx_scene_case("offer", set_up));
}
