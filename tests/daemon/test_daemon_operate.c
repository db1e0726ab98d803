/* SPDX-License-Identifier: Apache-2.0 */
/* What operators see and do in the daemon: who sees whose connections and refusals, and who may
 * kick whom. A client on another socket than the main one is an ordinary user. */
#include "common/memory.h"
#include "common/topic.h"
#include "daemon/objects/connection.h"
#include "daemon/objects/publisher_state.h"
#include "daemon/objects/refusal.h"
#include "daemon/objects/subscription.h"
#include "daemon/protocol/handler.h"
#include "tests/daemon/harness_scene.h"
#include <stdio.h>

#define SECOND UINT64_C(1000000000)

static struct dlxd_client *root, *pod, *other;

static bool may_all(const struct dlxd_policy *policy, const struct dlxd_principal *who,
                    enum dlxd_verb verb, const char *topic)
{
    (void)policy;
    (void)who;
    (void)verb;
    return strcmp(topic, "secret") != 0;
}

static struct dlxd_client *newcomer(uint32_t socket)
{
    struct dlxd_client *client = dlx_scene_client(socket, 10);
    client->principal->minor = DLX_PROTO_MINOR;
    return client;
}

static void set_up(void)
{
    root = newcomer(0);
    pod = newcomer(1);
    other = newcomer(2);
    dlx_scene.broker.policy.may = may_all;
}

/* The ids that the client lists, each with a space. */
static const char *list_ids(struct dlxd_client *client)
{
    static char ids[200];
    uint64_t after = 0;
    const Dlx__Wire__ClientList *list;
    ids[0] = '\0';
    do {
        list = dlx_scene_call_gets(client, WIRE(list_clients, .after_client = after),
                                   BODY(CLIENT_LIST))
                   ->client_list;
        for (size_t i = 0; i < list->n_entries; i++) {
            size_t n = strlen(ids);
            after = list->entries[i]->client;
            (void)snprintf(ids + n, sizeof ids - n, "%d ", (int)(after - dlxd_client_id(root)));
        }
    } while (list->more);
    return ids;
}

TEST(root_lists_all_clients_and_others_their_own)
{
    struct dlxd_client *second = newcomer(1);
    (void)dlx_scene_client(0, 0); /* has not said Hello */
    ck_assert_str_eq(list_ids(root), "0 1 2 3 ");
    ck_assert_str_eq(list_ids(pod), "1 3 ");
    ck_assert_str_eq(list_ids(other), "2 ");
    ck_assert_uint_eq(dlxd_client_id(second) - dlxd_client_id(root), 3);
}

TEST(a_list_of_clients_goes_on_after_one_that_has_left)
{
    for (int i = 0; i < 20; i++)
        (void)newcomer(1);
    const Dlx__Wire__ClientList *list =
        dlx_scene_call_gets(root, WIRE(list_clients, .after_client = dlxd_client_id(pod)),
                            BODY(CLIENT_LIST))
            ->client_list;
    ck_assert_uint_gt(list->n_entries, 0);
    uint64_t first = list->entries[0]->client;
    ck_assert_uint_eq(first, dlxd_client_id(other));
    dlxd_client_doom(other);
    list = dlx_scene_call_gets(root, WIRE(list_clients, .after_client = first), BODY(CLIENT_LIST))
               ->client_list;
    ck_assert_uint_eq(list->entries[0]->client, first + 1);
}

TEST(each_user_kicks_only_its_own)
{
    struct dlxd_client *second = newcomer(1);
    dlx_scene_call_fails(pod, WIRE(kick, .client = dlxd_client_id(other)), DLX_E_NOT_FOUND,
                         "another user's");
    dlx_scene_call_fails(pod, WIRE(kick, .client = dlxd_client_id(root)), DLX_E_NOT_FOUND, "");
    dlx_scene_call_fails(pod, WIRE(kick, .client = dlxd_client_id(pod)), DLX_E_INVALID,
                         "the connection that asks");
    const Dlx__Wire__KickReply *reply =
        dlx_scene_call_gets(pod, WIRE(kick, .client = dlxd_client_id(second)), BODY(KICK_REPLY))
            ->kick_reply;
    ck_assert_uint_eq(reply->n_kicked, 1);
    ck_assert_str_eq(list_ids(root), "0 1 2 ");
    (void)dlx_scene_call_gets(root, WIRE(kick, .client = dlxd_client_id(other)), BODY(KICK_REPLY));
    ck_assert_str_eq(list_ids(root), "0 1 ");
}

TEST(a_kick_that_names_both_or_nothing_is_refused)
{
    dlx_scene_call_fails(root, WIRE(kick), DLX_E_INVALID, "one of them must be 0");
    dlx_scene_call_fails(root, WIRE(kick, .client = 1, .pid = 1), DLX_E_INVALID, "");
}

static const Dlx__Wire__RefusalList *list_refusals(struct dlxd_client *client, uint64_t after)
{
    return dlx_scene_call_gets(client, WIRE(list_refusals, .after = after), BODY(REFUSAL_LIST))
        ->refusal_list;
}

static void refuse_publisher(struct dlxd_client *client, const char *topic)
{
    Dlx__Wire__PublisherNew request = dlx_scene_publisher_new(topic);
    dlx_scene_call_fails(client, &request, DLX_E_ACCESS, "may not publish on");
}

static bool may_look_only(const struct dlxd_policy *policy, const struct dlxd_principal *who,
                          enum dlxd_verb verb, const char *topic)
{
    return verb == DLXD_MAY_OBSERVE && may_all(policy, who, verb, topic);
}

TEST(a_refusal_and_its_rule_are_for_root_its_text_for_the_user_and_others_know_whom_to_ask)
{
    dlx_scene.broker.policy.may = may_look_only;
    refuse_publisher(pod, "cam");
    const Dlx__Wire__RefusalList *list = list_refusals(root, 0);
    ck_assert_uint_eq(list->n_entries, 1);
    ck_assert_str_eq(list->entries[0]->topic, "cam");
    ck_assert_str_eq(list->entries[0]->what, "publish");
    contains(list->entries[0]->text, "may not publish on cam");
    contains(list->entries[0]->rule, "no rule allows it \"publish\"");
    list = list_refusals(pod, 0);
    contains(list->entries[0]->text, "may not publish on cam");
    ck_assert_str_eq(list->entries[0]->rule, "");
    list = list_refusals(other, 0);
    contains(list->entries[0]->text, "ask root or uid");
    ck_assert_str_eq(list->entries[0]->rule, "");
}

TEST(refusals_on_topics_that_a_user_may_not_observe_are_not_told)
{
    dlx_scene.broker.policy.may = may_look_only;
    refuse_publisher(pod, "secret");
    ck_assert_uint_eq(list_refusals(pod, 0)->n_entries, 0);
}

TEST(no_user_pushes_out_refusals_of_others)
{
    char topic[16];
    dlx_scene.broker.policy.may = may_look_only;
    refuse_publisher(other, "kept");
    for (unsigned i = 0; i < 2 * DLXD_REFUSALS_OF_USER_MAX; i++) {
        (void)snprintf(topic, sizeof topic, "t/%u", i);
        refuse_publisher(pod, topic);
    }
    ck_assert_uint_eq(dlx_scene.broker.refusals.n, DLXD_REFUSALS_OF_USER_MAX + 1);
    const Dlx__Wire__RefusalList *list = list_refusals(root, 0);
    ck_assert_str_eq(list->entries[0]->topic, "kept");
    size_t n = 0;
    uint64_t after = 0;
    do {
        list = list_refusals(root, after);
        for (size_t i = 0; i < list->n_entries; i++, n++)
            after = list->entries[i]->number;
    } while (list->more);
    ck_assert_uint_eq(n, DLXD_REFUSALS_OF_USER_MAX + 1);
}

/* Both links of a process to one topic are told, each with its subscription. */
TEST(a_refused_link_of_each_subscription_of_a_process_is_told)
{
    for (uint64_t id = 1; id <= 2; id++)
        for (int n = 0; n < 2; n++)
            dlxd_refusal_note(pod, DLXD_REFUSED_LINK, "t", id, DLX_E_LIMIT, "links");
    for (uint64_t id = 1; id <= 2; id++) {
        const struct dlxd_refusal *refusal = dlxd_refusal_of(&dlx_scene.broker, id);
        ck_assert_ptr_nonnull(refusal);
        ck_assert_uint_eq(refusal->n, 2);
    }
    ck_assert_uint_eq(dlx_scene.broker.refusals.n, 2);
}

static size_t n_subscriptions_after(const char *pattern, const char *after_topic)
{
    Dlx__Wire__ListSubscriptions *list = WIRE(list_subscriptions, .topic = WIRE_TEXT(pattern),
                                              .after_topic = WIRE_TEXT(after_topic));
    return dlx_scene_call_gets(pod, list, BODY(SUBSCRIPTION_LIST))->subscription_list->n_entries;
}

TEST(a_list_that_goes_on_after_a_subscription_tells_only_what_a_user_may_observe_and_asked_for)
{
    int secret, open;
    (void)dlx_scene_subscription(other, "secret", NULL, &secret);
    (void)dlx_scene_subscribed(dlx_scene_subscription(other, "open", NULL, &open));
    dlx_for_each (it, &other->subscriptions)
        dlxd_subscription_open(dlxd_container_of(it, struct dlxd_subscription, by_client));
    ck_assert_uint_eq(n_subscriptions_after("**", "open"), 1);
    ck_assert_uint_eq(n_subscriptions_after("**", "secret"), 0);
    ck_assert_uint_eq(n_subscriptions_after("x/*", "open"), 0);
}

/* Its publishers are so many that they are counted in more than one step. */
TEST(counts_of_a_client_that_has_left_are_not_told_of_the_next)
{
    struct dlxd_client *next = newcomer(2);
    Dlx__Wire__ListClients body = DLX__WIRE__LIST_CLIENTS__INIT;
    Dlx__Wire__Packet packet = DLX__WIRE__PACKET__INIT;
    body.after_client = dlxd_client_id(pod);
    packet.list_clients = &body;
    for (int i = 0; i < 300; i++) {
        Dlx__Wire__PublisherNew request = dlx_scene_publisher_new("t");
        (void)dlx_scene_call(other, &request);
        dlx_scene_close_received();
    }
    dlx_scene.broker.users.slice_end_ns = UINT64_MAX;
    ck_assert_int_eq(dlxd_handle_list_clients(root, &packet), 1);
    dlxd_client_free(other);
    ck_assert_int_eq(dlxd_request_continue(root), 0);
    dlx_scene.broker.users.slice_end_ns = 0;
    const Dlx__Wire__ClientList *list =
        dlx_scene_expect(dlx_scene_fd(root), BODY(CLIENT_LIST))->client_list;
    ck_assert_uint_eq(list->n_entries, 1);
    ck_assert_uint_eq(list->entries[0]->client, dlxd_client_id(next));
    ck_assert_uint_eq(list->entries[0]->n_publishers, 0);
    ck_assert_uint_eq(list->entries[0]->shared_bytes, 0);
}

/* Its wait, after earlier ones, began a second ago. */
static struct dlxd_publisher *new_waiting(uint64_t earlier_ns)
{
    uint64_t since = dlx__now_ns() - SECOND;
    struct dlxd_publisher *publisher;
    struct dlxd_publisher_fds made;
    void *map;
    ok(dlxd_publisher_new(&publisher, pod, "t", PUBLISHER_CONFIG(.history = 4, .retain = 2),
                          &made));
    dlx__close(made.membership_fd);
    dlx__close(made.link_sock);
    ok(dlx__region_populate(&dlx__memory_memfd, made.control_fd, publisher->control->size, &map));
    struct dlx_shm_control *control = map;
    dlx_store64_relaxed(&control->head, 5);
    dlx_store64_relaxed(&control->waits_since, since);
    dlx_store64_relaxed(&control->waited, DLX_SHM_WAITING | (since - earlier_ns));
    dlx__region_unmap(map, publisher->control->size);
    dlx_test_broker_ready(&dlx_scene, publisher);
    dlxd_publisher_announce(publisher, true);
    return publisher;
}

static const Dlx__Wire__PublisherEntry *list_publisher(void)
{
    const Dlx__Wire__PublisherList *list =
        dlx_scene_call_gets(root, WIRE(list_publishers), BODY(PUBLISHER_LIST))->publisher_list;
    ck_assert_uint_eq(list->n_entries, 1);
    return list->entries[0];
}

TEST(the_wait_of_a_publisher_that_has_ended_does_not_go_on)
{
    struct dlxd_publisher *publisher = new_waiting(700);
    ck_assert_uint_ge(list_publisher()->blocked_ns, SECOND + 700);
    ck_assert_uint_ne(list_publisher()->blocked_at_ns, 0);
    (void)dlxd_publisher_end(publisher);
    ck_assert(list_publisher()->retained);
    ck_assert_uint_eq(list_publisher()->blocked_ns, 700);
    ck_assert_uint_eq(list_publisher()->blocked_at_ns, 0);
}

int main(void)
{
    return dlx_test_run_case(dlx_scene_case("operate", set_up));
}
