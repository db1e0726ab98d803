/* SPDX-License-Identifier: Apache-2.0 */

/* What operators see and do: subscriptions, also without a publisher, refusals, connections, times
 * of messages and waits, and the end of a connection by a kick. */

#include "tests/harness/fork.h"
#include "tests/harness/stream.h"
#include <inttypes.h>

/* ---- lists --------------------------------------------------------------------------------- */

struct subscriptions {
    struct dlx_subscription_info items[40];
    size_t n;
};

static int keep_subscription(const struct dlx_subscription_info *info, void *userdata)
{
    struct subscriptions *all = userdata;
    ck_assert_uint_lt(all->n, DLX_ARRAY_SIZE(all->items));
    all->items[all->n++] = *info;
    return 0;
}

static struct subscriptions list_subscriptions(struct dlx_client *c, const char *topic,
                                               bool unserved)
{
    struct subscriptions all = {.n = 0};
    ok(dlx_list_subscriptions(c, topic, unserved, keep_subscription, &all));
    return all;
}

struct clients {
    struct dlx_client_info items[8];
    size_t n;
};

static int keep_client(const struct dlx_client_info *info, void *userdata)
{
    struct clients *all = userdata;
    ck_assert_uint_lt(all->n, DLX_ARRAY_SIZE(all->items));
    all->items[all->n++] = *info;
    return 0;
}

static struct clients list_clients(struct dlx_client *c)
{
    struct clients all = {.n = 0};
    ok(dlx_list_clients(c, keep_client, &all));
    return all;
}

/* The id of the connection that asks. */
static uint64_t id_of(struct dlx_client *c)
{
    struct clients all = list_clients(c);
    for (size_t i = 0; i < all.n; i++)
        if (all.items[i].own)
            return all.items[i].client;
    ck_abort_msg("a client does not list itself");
}

static int keep_refusal(const struct dlx_refusal_info *info, void *userdata)
{
    *(struct dlx_refusal_info *)userdata = *info;
    return 0;
}

static int keep_link(const struct dlx_link_info *info, void *userdata)
{
    *(struct dlx_link_info *)userdata = *info;
    return 0;
}

static struct dlx_link_info link_of(struct dlx_client *c, const struct dlx_publisher *p)
{
    struct dlx_link_info link = {.size = 0};
    ok(dlx_list_links(c, dlx_publisher_id(p), keep_link, &link));
    ck_assert_uint_ne(link.link, 0);
    return link;
}

TEST(subscriptions_without_a_publisher_are_listed_and_others_on_demand)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "cam/a", NULL);
    auto_subscription *served = dlx_test_stream_subscribe(c, "cam/a", NULL),
                      *alone =
                          dlx_test_stream_subscribe(c, "cam/b", SUBSCRIBE(.mode = DLX_MODE_LATEST)),
                      *pattern = dlx_test_stream_subscribe(c, "mic/*", SUBSCRIBE(.reliable = true));
    struct subscriptions all = list_subscriptions(c, NULL, false);
    ck_assert_uint_eq(all.n, 3);
    ck_assert_str_eq(all.items[0].topic, "cam/a");
    ck_assert_uint_eq(all.items[0].n_links, 1);
    ck_assert_str_eq(all.items[1].topic, "cam/b");
    ck_assert_uint_eq(all.items[1].mode, DLX_MODE_LATEST);
    ck_assert_str_eq(all.items[2].topic, "mic/*");
    ck_assert(all.items[2].reliable && all.items[2].n_links == 0);
    ck_assert_uint_eq(all.items[2].pid, (uint32_t)getpid());
    ck_assert_uint_eq(all.items[2].uid, getuid());
    ck_assert_str_eq(all.items[2].client_name, "e2e_operate");
    ck_assert_uint_eq(all.items[2].client, id_of(c));
    all = list_subscriptions(c, "**", true);
    ck_assert_uint_eq(all.n, 2);
    ck_assert_str_eq(all.items[0].topic, "cam/b");
    ck_assert_str_eq(all.items[1].topic, "mic/*");
    all = list_subscriptions(c, "mic/front", true);
    ck_assert_uint_eq(all.n, 1);
    ck_assert_uint_eq(list_subscriptions(c, "lidar", false).n, 0);
    fails(dlx_list_subscriptions(c, "a//b", false, keep_subscription, &all), DLX_E_TOPIC, "");
}

TEST(a_list_of_subscriptions_goes_on_after_each_page)
{
    auto_client *c = dlx_test_stream_connect();
    struct dlx_subscription *made[30];
    for (uint32_t i = 0; i < 30; i++)
        made[i] = dlx_test_stream_subscribe(c, i < 15 ? "one" : "p/*", NULL);
    struct subscriptions all = list_subscriptions(c, NULL, false);
    ck_assert_uint_eq(all.n, 30);
    for (uint32_t i = 1; i < 30; i++)
        ck_assert(all.items[i].subscription > all.items[i - 1].subscription);
    for (uint32_t i = 0; i < 30; i++)
        dlx_subscription_unref(made[i]);
}

TEST(a_refused_link_is_told_with_its_subscription)
{
    auto_client *c = dlx_test_stream_connect(), *few = dlx_test_stream_connect_with_links(2);
    auto_publisher *a = dlx_test_stream_publisher(c, "t", NULL),
                   *b = dlx_test_stream_publisher(c, "t", NULL),
                   *d = dlx_test_stream_publisher(c, "t", NULL);
    auto_subscription *s = NULL;
    fails(dlx_subscribe(few, "t", NULL, &s), DLX_E_LIMIT, "");
    struct dlx_refusal_info refusal = {.size = 0};
    ok(dlx_list_refusals(c, "t", keep_refusal, &refusal));
    ck_assert_str_eq(refusal.topic, "t");
    ck_assert_str_eq(refusal.what, "link");
    ck_assert_int_eq(refusal.code, DLX_E_LIMIT);
    ck_assert_uint_eq(refusal.n, 1);
    ck_assert_uint_eq(refusal.pid, (uint32_t)getpid());
    contains(refusal.text, "links");
    ck_assert_uint_eq(dlx_test_stream_daemon_info(c).refused_limit, 1);
    (void)a;
    (void)b;
    (void)d;
}

TEST(a_refused_subscription_is_told_and_counted)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "drops", NULL);
    auto_subscription *s = NULL;
    for (int i = 0; i < 3; i++)
        fails(dlx_subscribe(c, "drops", SUBSCRIBE(.reliable = true), &s), DLX_E_QOS, "");
    struct dlx_refusal_info refusal = {.size = 0};
    ok(dlx_list_refusals(c, NULL, keep_refusal, &refusal));
    ck_assert_str_eq(refusal.what, "subscribe");
    ck_assert_int_eq(refusal.code, DLX_E_QOS);
    ck_assert_uint_eq(refusal.n, 3);
    ck_assert_str_eq(refusal.rule, "");
    ck_assert_uint_le(refusal.at_ns, dlx__now_ns());
    ck_assert_uint_eq(dlx_test_stream_daemon_info(c).refused_qos, 3);
}

struct renewal {
    struct dlx_client *c;
    uint32_t n;
};

/* Another program has the same request refused again while the list goes on. */
static int renew_refusal(const struct dlx_refusal_info *info, void *userdata)
{
    struct renewal *renewal = userdata;
    auto_subscription *s = NULL;
    ck_assert_uint_lt(renewal->n++, 1000);
    fails(dlx_subscribe(renewal->c, info->topic, SUBSCRIBE(.reliable = true), &s), DLX_E_QOS, "");
    return 0;
}

TEST(a_list_of_refusals_ends_although_they_are_renewed)
{
    enum { N = 16 };
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    struct dlx_publisher *publishers[N];
    struct renewal renewal = {.c = other};
    for (int i = 0; i < N; i++) {
        char topic[16];
        auto_subscription *s = NULL;
        (void)snprintf(topic, sizeof topic, "t/%d", i);
        publishers[i] = dlx_test_stream_publisher(c, topic, NULL);
        fails(dlx_subscribe(other, topic, SUBSCRIBE(.reliable = true), &s), DLX_E_QOS, "");
    }
    ok(dlx_list_refusals(c, NULL, renew_refusal, &renewal));
    ck_assert_uint_ge(renewal.n, N);
    for (int i = 0; i < N; i++)
        dlx_publisher_unref(publishers[i]);
}

static void hold_three(struct dlx_test_peer *parent)
{
    struct dlx_subscription *s =
        dlx_test_stream_subscribe(dlx_test_stream_connect(), "t", SUBSCRIBE(.max_held = 4));
    struct dlx_message *held[3];
    dlx_test_peer_say(parent);
    for (size_t i = 0; i < 3; i++)
        ok(dlx_take(s, PATIENCE, &held[i]));
    dlx_test_peer_say(parent);
    pause();
}

TEST(messages_that_a_subscriber_held_when_it_died_are_counted)
{
    struct dlx_test_peer peer = dlx_test_fork_peer();
    if (peer.pid == 0)
        hold_three(&peer);
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "t", NULL);
    dlx_test_peer_hear(&peer);
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    dlx_test_stream_publish_all(p, 1000, 1, 5);
    dlx_test_peer_hear(&peer);
    ck_assert_uint_eq(dlx_test_stream_daemon_info(c).reclaimed, 0);
    dlx_test_peer_kill(&peer);
    while (dlx_test_stream_daemon_info(c).reclaimed == 0) /* the death is noticed soon */
        continue;
    ck_assert_uint_eq(dlx_test_stream_daemon_info(c).reclaimed, 3);
}

/* One that lets go of what it holds, and ends, leaves nothing to reclaim. */
TEST(messages_that_are_released_are_not_reclaimed)
{
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "t", NULL);
    struct dlx_subscription *s = dlx_test_stream_subscribe(other, "t", NULL);
    dlx_test_stream_publish_all(p, 1000, 1, 2);
    for (int i = 0; i < 2; i++) {
        auto_message *m = NULL;
        ok(dlx_take(s, PATIENCE, &m));
    }
    dlx_subscription_unref(s);
    other = dlx_client_unref(other);
    ck_assert_uint_eq(dlx_test_stream_daemon_info(c).reclaimed, 0);
}

TEST(a_list_of_clients_tells_what_each_has)
{
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(other, "t", NULL);
    auto_subscription *s = dlx_test_stream_subscribe(other, "t", NULL);
    dlx_test_stream_publish(p, 1000, 1);
    struct clients all = list_clients(c);
    ck_assert_uint_eq(all.n, 2);
    ck_assert(all.items[0].own && !all.items[1].own);
    ck_assert_uint_eq(all.items[0].n_publishers + all.items[0].n_subscriptions, 0);
    ck_assert_uint_eq(all.items[0].shared_bytes, 0);
    ck_assert_uint_eq(all.items[1].n_publishers, 1);
    ck_assert_uint_eq(all.items[1].n_subscriptions, 1);
    ck_assert_uint_eq(all.items[1].n_links, 2); /* both ends of one link are this client's */
    struct dlx_publisher_info info;
    ck_assert_uint_eq(dlx_test_stream_list(c, &info), 1);
    ck_assert_uint_eq(all.items[1].shared_bytes, info.arena_bytes + info.control_bytes);
    ck_assert_str_eq(all.items[1].client_name, "e2e_operate");
    ck_assert_str_eq(all.items[1].socket, "dlpackd");
    ck_assert_uint_eq(all.items[1].uid, getuid());
}

/* ---- times --------------------------------------------------------------------------------- */

TEST(a_link_tells_when_its_next_message_and_its_oldest_hold_were_published)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "t", NULL);
    auto_subscription *s = dlx_test_stream_subscribe(c, "t", SUBSCRIBE(.max_held = 4));
    struct dlx_link_info link = link_of(c, p);
    ck_assert(link.next_ns == 0 && link.held_ns == 0);
    uint64_t before = dlx__now_ns();
    dlx_test_stream_publish_all(p, 10, 1, 3);
    struct dlx_message *first = dlx_test_stream_next(s), *second = dlx_test_stream_next(s);
    uint64_t after = dlx__now_ns();
    link = link_of(c, p);
    ck_assert(before <= link.held_ns && link.held_ns < link.next_ns && link.next_ns <= after);
    ck_assert_uint_eq(link.held_ns, dlx_message_monotonic_ns(first));
    first = dlx_message_unref(first);
    link = link_of(c, p);
    ck_assert_uint_eq(link.held_ns, dlx_message_monotonic_ns(second));
    second = dlx_message_unref(second);
    dlx_test_stream_take(s, 3);
    link = link_of(c, p);
    ck_assert(link.next_ns == 0 && link.held_ns == 0);
}

TEST(a_hold_that_the_ring_has_passed_is_at_least_as_old_as_the_ring_and_is_remembered)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "t", NULL);
    auto_subscription *s = dlx_test_stream_subscribe(c, "t", SUBSCRIBE(.max_held = 1)),
                      *early = dlx_test_stream_subscribe(c, "t", SUBSCRIBE(.max_held = 1));
    dlx_test_stream_publish(p, 10, 1);
    struct dlx_message *unseen = dlx_test_stream_next(s);
    uint64_t published = dlx_message_monotonic_ns(unseen);
    dlx_test_stream_publish_all(p, 10, 2, 3000);
    uint64_t held = link_of(c, p).held_ns; /* of the last link: none */
    ck_assert_uint_eq(held, 0);
    early = dlx_subscription_unref(early);
    eventually(dlx_test_stream_list(c, NULL) == 1 && link_of(c, p).held_ns > 0);
    held = link_of(c, p).held_ns;
    ck_assert(published < held && held < dlx__now_ns());
    dlx_test_stream_publish_all(p, 10, 1, 1000);
    ck_assert_uint_eq(link_of(c, p).held_ns, held);
    dlx_message_unref(unseen);
}

static void *publish_one_more(void *p)
{
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(p, 10, 3);
    ok(dlx_publish(p, t, PUBLISH(.timeout_ns = PATIENCE), NULL));
    return NULL;
}

static struct dlx_publisher_info info_of(struct dlx_client *c)
{
    struct dlx_publisher_info info;
    ck_assert_uint_eq(dlx_test_stream_list(c, &info), 1);
    return info;
}

TEST(the_time_that_a_publisher_waits_for_room_is_told_while_it_waits_and_after)
{
    auto_client *c = dlx_test_stream_connect(), *elsewhere = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(elsewhere, "t", PUBLISHER_BLOCKING(.depth = 2));
    auto_subscription *s = dlx_test_stream_subscribe(c, "t", SUBSCRIBE(.reliable = true));
    dlx_test_stream_publish_all(p, 10, 1, 2);
    struct dlx_publisher_info info = info_of(c);
    ck_assert(info.blocked_ns == 0 && info.blocked_at_ns == 0);
    uint64_t before = dlx__now_ns();
    pthread_t thread = dlx_test_stream_thread(publish_one_more, p);
    eventually(info_of(c).blocked_at_ns != 0);
    info = info_of(c);
    ck_assert_uint_ge(info.blocked_at_ns, before);
    eventually(info_of(c).blocked_ns > info.blocked_ns);
    dlx_test_stream_take(s, 1);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    info = info_of(c);
    ck_assert_uint_eq(info.blocked_at_ns, 0);
    ck_assert(info.blocked_ns > 0 && info.blocked_ns < dlx__now_ns() - before);
    ck_assert_uint_eq(info_of(c).blocked_ns, info.blocked_ns);
}

/* ---- kicks --------------------------------------------------------------------------------- */

static void expect_kicked(int code)
{
    ck_assert_int_eq(code, DLX_E_KICKED);
    contains(dlx_errmsg(), "kicked by e2e_operate (pid ");
    contains(dlx_errmsg(), "does not connect again");
}

static void delete_nothing(DLManagedTensorVersioned *t)
{
    (void)t;
}

/* Publishes a tensor that is not in shared memory. */
static int publish_own(struct dlx_publisher *p, int64_t timeout_ns)
{
    static int64_t value, n = 1;
    static DLManagedTensorVersioned t = {.version = {1, 0},
                                         .deleter = delete_nothing,
                                         .dl_tensor = {.data = &value,
                                                       .device = {kDLCPU, 0},
                                                       .ndim = 1,
                                                       .dtype = {kDLInt, 64, 1},
                                                       .shape = &n}};
    return dlx_publish(p, &t, PUBLISH(.timeout_ns = timeout_ns), NULL);
}

TEST(a_kicked_client_stays_away_and_its_calls_name_who_kicked)
{
    auto_client *c = dlx_test_stream_connect(), *victim = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(victim, "out", NULL);
    auto_subscription *s = dlx_test_stream_subscribe(victim, "in", NULL);
    struct dlx_kicked kicked = {.size = sizeof kicked};
    ok(dlx_kick(c, id_of(victim), &kicked));
    ck_assert_uint_eq(kicked.n_kicked, 1);
    ck_assert_uint_eq(kicked.n_older, 0);
    struct dlx_message *m = NULL;
    for (int i = 0; i < 3; i++) {
        expect_kicked(dlx_take(s, PATIENCE, &m));
        expect_kicked(dlx_take(s, 0, &m));
    }
    eventually(publish_own(p, 0) < 0);
    for (int i = 0; i < 3; i++)
        expect_kicked(publish_own(p, SECOND));
    DLManagedTensorVersioned *t = NULL;
    struct dlx_tensor_spec spec = {.size = sizeof spec, .dtype = {kDLInt, 64, 1}};
    expect_kicked(dlx_alloc(p, &spec, &t));
    expect_kicked(dlx_publisher_wait(p, 1, SECOND));
    struct dlx_publisher *none = NULL;
    expect_kicked(dlx_publisher_new(victim, "more", NULL, &none));
    struct dlx_daemon_info info = {.size = sizeof info};
    expect_kicked(dlx_client_get_daemon_info(victim, &info));
    ck_assert_uint_eq(list_clients(c).n, 1);
    ck_assert_uint_eq(dlx_test_stream_list(c, NULL), 0);
    auto_client *anew = dlx_test_stream_connect();
    ck_assert_uint_eq(list_clients(c).n, 2);
}

TEST(a_kicked_client_stays_away_from_the_next_daemon_too)
{
    auto_client *c = dlx_test_stream_connect(), *victim = dlx_test_stream_connect();
    auto_subscription *s = dlx_test_stream_subscribe(victim, "in", NULL);
    ok(dlx_kick(c, id_of(victim), NULL));
    dlx_test_stream_restart();
    struct dlx_message *m = NULL;
    expect_kicked(dlx_take(s, 0, &m));
    ck_assert_uint_eq(list_clients(c).n, 1);
}

TEST(messages_of_a_kicked_publisher_stay_whole)
{
    auto_client *c = dlx_test_stream_connect(), *victim = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(victim, "t", PUBLISHER(.retain = 1));
    auto_subscription *s = dlx_test_stream_subscribe(c, "t", NULL);
    dlx_test_stream_publish_all(p, 10, 1, 2);
    struct dlx_message *m = dlx_test_stream_next(s);
    ok(dlx_kick(c, id_of(victim), NULL));
    eventually(dlx_test_stream_list(c, NULL) == 0);
    dlx_test_stream_check(m, 10, 1);
    dlx_test_stream_expect(s, 10, 2);
    dlx_message_unref(m);
    take_fails(s, PATIENCE, DLX_E_PUBLISHER_GONE, "");
}

TEST(a_publisher_goes_on_without_a_kicked_subscriber_that_holds_all_it_may)
{
    auto_client *c = dlx_test_stream_connect(), *victim = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "t", PUBLISHER_BLOCKING(.depth = 2));
    auto_subscription *s =
        dlx_test_stream_subscribe(victim, "t", SUBSCRIBE(.reliable = true, .max_held = 1));
    dlx_test_stream_publish_all(p, 10, 1, 3 - 1);
    struct dlx_message *held = dlx_test_stream_next(s);
    dlx_test_stream_publish(p, 10, 3);
    DLManagedTensorVersioned *refused = dlx_test_stream_alloc(p, 10, 4);
    fails(dlx_publish(p, refused, NULL, NULL), DLX_E_FULL, "");
    ok(dlx_kick(c, id_of(victim), NULL));
    ok(dlx_publish(p, refused, PUBLISH(.timeout_ns = PATIENCE), NULL));
    for (int64_t i = 5; i < 20; i++)
        ok(dlx_publish(p, dlx_test_stream_alloc(p, 10, i), PUBLISH(.timeout_ns = PATIENCE), NULL));
    dlx_test_stream_check(held, 10, 1);
    dlx_message_unref(held);
    struct dlx_message *m = NULL;
    int code = 0;
    eventually((m = dlx_message_unref(m), code = dlx_take(s, SECOND, &m)) < 0); /* after the rest */
    expect_kicked(code);
}

TEST(a_kick_of_a_process_cuts_all_its_connections_but_the_own)
{
    auto_client *c = dlx_test_stream_connect(), *one = dlx_test_stream_connect(),
                *two = dlx_test_stream_connect();
    struct dlx_kicked kicked = {.size = sizeof kicked};
    ok(dlx_kick_process(c, (uint32_t)getpid(), &kicked));
    ck_assert_uint_eq(kicked.n_kicked, 2);
    ck_assert_uint_eq(list_clients(c).n, 1);
    fails(dlx_kick_process(c, (uint32_t)getpid(), NULL), DLX_E_NOT_FOUND, "no program of process");
    struct dlx_daemon_info info = {.size = sizeof info};
    expect_kicked(dlx_client_get_daemon_info(one, &info));
    expect_kicked(dlx_client_get_daemon_info(two, &info));
}

TEST(a_kick_that_names_no_client_says_so)
{
    auto_client *c = dlx_test_stream_connect();
    fails(dlx_kick(c, 1, NULL), DLX_E_NOT_FOUND, "there is no client 1");
    fails(dlx_kick(c, id_of(c), NULL), DLX_E_INVALID, "the connection that asks");
    fails(dlx_kick(c, 0, NULL), DLX_E_INVALID, "no client");
    fails(dlx_kick_process(c, 0, NULL), DLX_E_INVALID, "no process");
    fails(dlx_kick(NULL, 1, NULL), DLX_E_INVALID, "client is NULL");
    fails(dlx_list_clients(c, NULL, NULL), DLX_E_INVALID, "fn is NULL");
}
