/* SPDX-License-Identifier: Apache-2.0 */
/* New rules: clients are reviewed in parts, whatever comes and goes between two of them. */
#include "tests/daemon/harness_scene.h"
#include "daemon/objects/publisher_state.h"

enum { MANY = 150, MOST = 1 }; /* MOST: checks of one step */

static struct dlxd_client *client;
static struct dlxd_publisher *publishers[MANY];
static const char *denied; /* topic */
static uint32_t n_checks;

static bool may(const struct dlxd_policy *policy, const struct dlxd_principal *who,
                enum dlxd_verb verb, const char *topic)
{
    (void)policy;
    (void)who;
    (void)verb;
    n_checks++;
    return !denied || strcmp(topic, denied) != 0;
}

static void set_up(void)
{
    denied = NULL;
    client = dlx_scene_client(0, 10000);
    dlx_scene.broker.policy.may = may;
}

static void publish_many(void)
{
    for (int i = 0; i < MANY; i++) {
        char topic[16];
        (void)snprintf(topic, sizeof topic, "t/%d", i);
        publishers[i] = dlx_scene_publisher(client, topic);
    }
}

static void reload(const char *topic)
{
    dlxd_broker_settle(&dlx_scene.broker);
    denied = topic;
    dlxd_client_review(client);
}

static void run_step(void)
{
    n_checks = 0;
    dlxd_work_run(&dlx_scene.broker.users, 1);
    ck_assert_uint_le(n_checks, MOST);
}

static bool is_reviewed(void)
{
    return client->review.state != DLXD_REVIEW_NONE && !dlxd_client_is_doomed(client);
}

TEST(a_client_with_much_is_reviewed_in_parts)
{
    uint32_t n_steps = 0, n_all = 0;
    publish_many();
    for (reload(NULL); is_reviewed(); n_steps++) {
        run_step();
        n_all += n_checks;
    }
    ck_assert_uint_eq(n_all, MANY);
    ck_assert_uint_ge(n_steps, MANY / MOST);
    ck_assert(!dlxd_client_is_doomed(client));
}

/* The first, one of each part, and the last. */
LOOP_TEST(whatever_is_not_allowed_any_more_is_found, 0, MANY)
{
    if (_i % 37 != 0 && _i != MANY - 1)
        return;
    publish_many();
    reload(publishers[_i]->topic_name);
    while (is_reviewed())
        run_step();
    ck_assert_int_eq(client->dismissed, DLX_E_ACCESS);
}

/* Among them the one that was checked last. */
TEST(publishers_that_end_between_two_parts_hide_none)
{
    publish_many();
    reload(publishers[MANY - 1]->topic_name);
    run_step();
    ck_assert_uint_eq(client->review.object, dlxd_publisher_id(publishers[MOST - 1]));
    for (int i = 0; i < 2 * MOST; i++)
        dlxd_publisher_vanish(publishers[i]);
    while (is_reviewed())
        run_step();
    ck_assert_int_eq(client->dismissed, DLX_E_ACCESS);
}

/* Of one subscription, some of which end meanwhile. */
TEST(links_are_reviewed_in_parts)
{
    int fd;
    struct dlxd_client *writer = client;
    publish_many();
    client = dlx_scene_client(0, 10000);
    struct dlxd_subscription *s = dlx_scene_subscription(client, "t/*", NULL, &fd);
    ck_assert_uint_eq(dlx_scene_subscribed(s), MANY);
    reload("t/99"); /* the last one: links are in the order of topics */
    run_step();     /* no publisher, the subscription, its first links */
    ck_assert_int_eq(client->review.state, DLXD_REVIEW_SUBSCRIPTIONS);
    for (int i = 0; i < MANY / 2; i++)
        dlxd_publisher_vanish(publishers[i]);
    while (is_reviewed())
        run_step();
    ck_assert_int_eq(client->dismissed, DLX_E_ACCESS);
    ck_assert(!dlxd_client_is_doomed(writer));
}

/* Links of the second subscription, which are older than some of the first one's. */
TEST(links_of_each_subscription_are_reviewed)
{
    int fds[2];
    struct dlxd_client *writer = client;
    (void)dlx_scene_publisher(writer, "a/0");
    (void)dlx_scene_publisher(writer, "b/0");
    client = dlx_scene_client(0, 10000);
    struct dlxd_subscription *first = dlx_scene_subscription(client, "a/*", NULL, &fds[0]);
    ck_assert_uint_eq(dlx_scene_subscribed(first), 1);
    struct dlxd_subscription *second = dlx_scene_subscription(client, "b/*", NULL, &fds[1]);
    ck_assert_uint_eq(dlx_scene_subscribed(second), 1);
    (void)dlx_scene_publisher(writer, "a/1");
    reload("b/0");
    while (is_reviewed())
        run_step();
    ck_assert_int_eq(client->dismissed, DLX_E_ACCESS);
}

/* A retained publisher drops no more messages, so reliable subscriptions join it; nor does one that
 * has gone, whose link stays for a while. */
TEST(reliable_link_to_a_retained_publisher_that_has_gone_is_left_alone)
{
    int fd;
    struct dlxd_publisher *publisher =
        dlx_test_broker_publisher(client, "t", PUBLISHER_CONFIG(.history = 4, .retain = 2), 5);
    (void)dlxd_publisher_end(publisher);
    client = dlx_scene_client(0, 10);
    struct dlxd_subscription *s =
        dlx_scene_subscription(client, "t", SUBSCRIPTION_CONFIG(.reliable = true), &fd);
    ck_assert_uint_eq(dlx_scene_subscribed(s), 1);
    dlxd_broker_settle(&dlx_scene.broker);
    (void)dlx_scene_accept(fd, dlx_scene_receive(fd));
    dlx_test_broker_run(&dlx_scene);
    dlxd_publisher_vanish(publisher);
    ck_assert_int_eq(publisher->state, DLXD_PUBLISHER_GONE);
    ck_assert(!dlxd_list_empty(&s->links));
    reload("another");
    while (is_reviewed())
        run_step();
    ck_assert(!dlxd_client_is_doomed(client));
}

/* New rules while it is reviewed by others: it is reviewed again. */
TEST(a_review_begins_anew_with_newer_rules)
{
    publish_many();
    reload(NULL);
    run_step();
    denied = publishers[0]->topic_name;
    dlxd_client_review(client);
    while (is_reviewed())
        run_step();
    ck_assert_int_eq(client->dismissed, DLX_E_ACCESS);
}

/* A Subscribe that has found its publishers by the old rules makes links by the new ones. */
TEST(a_subscribe_in_progress_gets_what_the_new_rules_allow)
{
    const struct dlxd_client *writer = client;
    publish_many();
    client = dlx_scene_client(0, 10000);
    const struct dlxd_offers *offers = &client->request.offers;
    int fd = dlx_scene_fd(client);
    dlx_scene_send(fd, WIRE(subscribe, .topic = WIRE_TEXT("t/*"), .max_held = 1), 1);
    (void)uv_run(&dlx_scene.loop, UV_RUN_NOWAIT);
    while (!offers->found_all)
        dlxd_work_run(&dlx_scene.broker.users, 1);
    ck_assert_uint_lt(offers->n_offered, MANY / 2);
    denied = publishers[MANY / 2]->topic_name;
    dlxd_client_review(client);
    dlxd_broker_settle(&dlx_scene.broker);
    const Dlx__Wire__Packet *reply = dlx_scene_expect(fd, BODY(SUBSCRIBE_REPLY));
    ck_assert_uint_eq(reply->subscribe_reply->n_offers, MANY - 1);
    ck_assert(!dlxd_client_is_doomed(writer));
}

int main(void)
{
    return dlx_test_run_case(dlx_scene_case("review", set_up));
}
