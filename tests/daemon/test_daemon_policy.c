/* SPDX-License-Identifier: Apache-2.0 */
/* The user of a client, the user that pays for it, and the policy, which decides wherever an object
 * is made, offered, listed or dropped. */
#include "daemon/gpu/origin.h"
#include "daemon/objects/offer.h"
#include "daemon/objects/publisher_state.h"
#include "daemon/persist/ledger.h"
#include "daemon/persist/record.h"
#include "tests/daemon/harness_scene.h"
#include "tests/harness/fds.h"
#include "tests/harness/fork.h"
#include <grp.h>

static struct dlxd_client *client;

static void set_up(void)
{
    client = dlx_scene_client(0, 100);
}

TEST(a_principal_is_what_the_kernel_says)
{
    gid_t groups[NGROUPS_MAX];
    int n = getgroups(NGROUPS_MAX, groups);
    const struct dlxd_principal *who = client->principal;
    ck_assert_int_ge(n, 0);
    ck_assert_uint_eq(who->uid, geteuid());
    ck_assert_uint_eq(who->gid, getegid());
    ck_assert_uint_eq(who->n_groups, (unsigned)n);
    ck_assert(dlxd_principal_has_group(who, getegid()));
    for (int i = 0; i < n; i++)
        ck_assert(dlxd_principal_has_group(who, groups[i]));
    ck_assert(!dlxd_principal_has_group(who, 4242));
}

/* More groups than the first attempt has room for. */
TEST(a_principal_may_have_many_groups)
{
    enum { N = 1000 };
    static gid_t groups[N];
    if (geteuid() != 0) {
        (void)fprintf(stderr, "test_daemon_policy: skipped: many groups need root\n");
        return;
    }
    for (unsigned i = 0; i < N; i++)
        groups[i] = 5000 + i;
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        struct dlxd_principal *who;
        pid_t from;
        int pair[2];
        ck_assert_int_eq(setgroups(N, groups), 0);
        dlx_test_fds_pair(pair);
        ok(dlxd_principal_new(&who, &from, pair[0], "pods"));
        ck_assert_int_eq(from, getpid());
        ck_assert_uint_eq(who->n_groups, N);
        ck_assert(dlxd_principal_has_group(who, 5000 + N - 1));
        _exit(0);
    }
    dlx_test_fork_join(pid);
}

TEST(neither_a_group_nor_a_version_buys_a_quota_but_a_socket_does)
{
    gid_t group = 7;
    struct dlxd_user *same, *user = dlx_scene_user(5, "");
    ok(dlxd_users_get(
        &dlx_scene.broker.users,
        &(const struct dlxd_principal){.uid = 5, .minor = 3, .n_groups = 1, .groups = &group},
        &same));
    ck_assert_ptr_eq(user, same);
    dlxd_user_unref(same);
    struct dlxd_user *by_pods = dlx_scene_user(5, "pods"), *other = dlx_scene_user(6, "");
    ck_assert_ptr_ne(user, by_pods);
    ck_assert_ptr_ne(user, other);
    ck_assert_ptr_ne(by_pods, other);
}

/* The publisher belongs to another user for the next daemon, too. */
TEST(the_socket_of_a_publisher_is_in_the_ledger)
{
    struct dlxd_publisher_former former;
    struct dlxd_ledger_entry entry;
    struct dlxd_client *other = dlx_scene_client(1, 100);
    for (int i = 0; i < 2; i++) {
        dlxd_record_write(dlx_test_broker_publisher(i ? other : client, "a", &dlx_scene_plain, 1),
                          &entry);
        ck_assert_str_eq(entry.socket, i ? "socket-1" : ""); /* as older daemons read and write */
        dlxd_record_read(&entry, &former);
        ck_assert_str_eq(former.socket, i ? "socket-1" : DLXD_SOCKET_MAIN);
        ck_assert_uint_eq(former.uid, (i ? other : client)->principal->uid);
    }
}

/* One of the same uid by another socket says that the origin is its own: it neither gets what the
 * other one shared, nor takes its place. */
TEST(an_origin_belongs_to_a_user_by_one_socket)
{
    static const char *const sockets[] = {DLXD_SOCKET_MAIN, "pods", "lab"};
    struct dlxd_gpu_origins origins;
    struct dlxd_gpu_member members[3] = {{.origin = NULL}};
    dlxd_gpu_origins_init(&origins);
    for (int i = 0; i < 3; i++) {
        struct dlxd_principal who = {.uid = 1000};
        (void)snprintf(who.socket, sizeof who.socket, "%s", sockets[i]);
        uint64_t number = dlxd_principal_number(&who);
        ck_assert_uint_eq((uint32_t)number, 1000);
        ck_assert_int_eq(number >> 32 == 0, i == 0);
        ok(dlxd_gpu_origins_join(&origins, &members[i], (struct dlxd_gpu_whose){7, number},
                                 client->user));
        for (int j = 0; j < i; j++)
            ck_assert_ptr_ne(members[i].origin, members[j].origin);
    }
    for (int i = 0; i < 3; i++)
        dlxd_gpu_origins_leave(&origins, &members[i]);
    dlxd_gpu_origins_deinit(&origins);
}

static enum dlxd_verb denied_verb;
static const char *denied_topic;

static bool deny(const struct dlxd_policy *policy, const struct dlxd_principal *who,
                 enum dlxd_verb verb, const char *topic)
{
    (void)policy;
    ck_assert_ptr_eq(who, client->principal);
    return verb != denied_verb || strcmp(topic, denied_topic) != 0;
}

static void deny_only(enum dlxd_verb verb, const char *topic)
{
    denied_verb = verb;
    denied_topic = topic;
    dlx_scene.broker.policy.may = deny;
}

static struct dlxd_publisher *publish(const char *topic, uint32_t on_full, uint32_t retain)
{
    return dlx_test_broker_publisher(
        client, topic, PUBLISHER_CONFIG(.history = 4, .on_full = on_full, .retain = retain), 5);
}

TEST(a_publisher_that_the_rules_deny_is_refused)
{
    Dlx__Wire__PublisherNew body = dlx_scene_publisher_new("a/b"),
                            other = dlx_scene_publisher_new("a/c");
    deny_only(DLXD_MAY_PUBLISH, "a/b");
    dlx_scene_call_fails(client, &body, DLX_E_ACCESS, "may not publish on a/b");
    ck_assert_uint_eq(dlx_scene.broker.registry.publishers.n, 0);
    (void)dlx_scene_call_gets(client, &other, BODY(PUBLISHER_NEW_REPLY));
}

static Dlx__Wire__SubscribeReply *subscribe(const char *topic, bool reliable)
{
    return dlx_scene_call_gets(
               client,
               WIRE(subscribe, .topic = WIRE_TEXT(topic), .max_held = 1, .reliable = reliable),
               BODY(SUBSCRIBE_REPLY))
        ->subscribe_reply;
}

static void subscribe_fails(const char *topic, bool reliable, const char *words)
{
    dlx_scene_call_fails(
        client, WIRE(subscribe, .topic = WIRE_TEXT(topic), .max_held = 1, .reliable = reliable),
        DLX_E_ACCESS, words);
}

TEST(a_subscriber_that_the_rules_deny_is_refused)
{
    deny_only(DLXD_MAY_SUBSCRIBE, "a/b");
    subscribe_fails("a/b", false, "may not subscribe to a/b");
    ck_assert_uint_eq(dlx_scene.broker.registry.subscriptions.n, 0);
    (void)subscribe("a/c", false);
}

/* Whichever side comes first. */
TEST(a_pattern_is_offered_only_what_its_subscriber_may_subscribe_to)
{
    deny_only(DLXD_MAY_SUBSCRIBE, "a/b");
    publish("a/b", 0, 0);
    publish("a/c", 0, 0);
    ck_assert_uint_eq(subscribe("a/*", false)->n_offers, 1);
    ck_assert_uint_eq(dlx_scene.broker.registry.links.n, 1);
    dlx_scene_offer(publish("a/b", 0, 0));
    ck_assert_uint_eq(dlx_scene.broker.registry.links.n, 1);
    dlx_scene_offer(publish("a/c", 0, 0));
    ck_assert_uint_eq(dlx_scene.broker.registry.links.n, 2);
}

TEST(a_reliable_subscriber_that_the_rules_deny_is_refused)
{
    deny_only(DLXD_MAY_BLOCK, "a/b");
    subscribe_fails("a/b", true, "may not make publishers wait on a/b");
    publish("a/b", 1, 0);
    subscribe_fails("a/*", true, "may not make publishers wait on a/b");
    (void)subscribe("a/*", false);
    ck_assert_uint_eq(dlx_scene.broker.registry.links.n, 1);
}

TEST(a_publisher_that_may_not_be_made_to_wait_fails_the_link_of_who_was_there_first)
{
    deny_only(DLXD_MAY_BLOCK, "a/b");
    (void)subscribe("a/*", true);
    struct dlxd_publisher *publisher = publish("a/b", 1, 0);
    dlx_scene_offer(publisher);
    ck_assert_uint_eq(publisher->n_links, 0);
    ok(dlxd_publisher_check_awaited(publisher));
}

TEST(lists_show_only_what_may_be_observed)
{
    deny_only(DLXD_MAY_OBSERVE, "a/b");
    uint64_t unseen = dlxd_publisher_id(publish("a/b", 0, 0));
    publish("a/c", 0, 0);
    const Dlx__Wire__PublisherList *listed =
        dlx_scene_call_gets(client, WIRE(list_publishers), BODY(PUBLISHER_LIST))->publisher_list;
    ck_assert_uint_eq(listed->n_entries, 1);
    ck_assert_str_eq(listed->entries[0]->topic, "a/c");
    dlx_scene_call_fails(client, WIRE(list_links, .publisher = unseen), DLX_E_NOT_FOUND,
                         "there is no publisher");
}

static bool deny_all(const struct dlxd_policy *policy, const struct dlxd_principal *who,
                     enum dlxd_verb verb, const char *topic)
{
    (void)policy, (void)who, (void)verb, (void)topic;
    return false;
}

/* To know the name of an inbox is the right to it; and no list tells the name. */
TEST(no_rule_is_about_an_inbox)
{
    static const char inbox[] = "@00112233445566778899aabbccddeeff";
    dlx_scene.broker.policy.may = deny_all;
    (void)subscribe(inbox, false);
    Dlx__Wire__PublisherNew body = dlx_scene_publisher_new(inbox);
    (void)dlx_scene_call_gets(client, &body, BODY(PUBLISHER_NEW_REPLY));
    dlx_scene.broker.policy.may = NULL; /* a superuser */
    uint64_t id = dlxd_publisher_id(publish(inbox, 0, 0));
    ck_assert_uint_eq(subscribe("**", false)->n_offers, 0);
    ck_assert_uint_eq(dlx_scene_call_gets(client, WIRE(list_publishers), BODY(PUBLISHER_LIST))
                          ->publisher_list->n_entries,
                      0);
    dlx_scene_call_fails(client, WIRE(list_links, .publisher = id), DLX_E_NOT_FOUND,
                         "there is no publisher");
    dlx_scene_call_fails(client, WIRE(list_publishers, .topic = WIRE_TEXT(inbox)), DLX_E_TOPIC,
                         "'@'");
}

TEST(a_drop_that_the_rules_deny_is_refused_but_for_own_messages)
{
    Dlx__Wire__RetainedDrop *drop = WIRE(retained_drop, .topic = WIRE_TEXT("a/b"));
    for (int own = 0; own < 2; own++) {
        struct dlxd_publisher *publisher = publish("a/b", 0, 1);
        ck_assert(dlxd_publisher_end(publisher));
        dlxd_principal_unref(publisher->principal);
        ok(dlxd_principal_new_former(&publisher->principal, geteuid() + (own ? 0 : 1),
                                     DLXD_SOCKET_MAIN));
        deny_only(DLXD_MAY_DROP, "a/b");
        if (own)
            dlx_scene_call_gets(client, drop, BODY(RETAINED_DROP_REPLY));
        else
            dlx_scene_call_fails(client, drop, DLX_E_ACCESS, "is retained on a/b");
        dlx_scene.broker.policy.may = NULL;
        dlxd_retained_clear(&dlx_scene.broker);
    }
}

/* Each side has to trust the other, and a superuser has no more to say about that than others. */
TEST(gpu_memory_is_exchanged_by_users_whom_rules_let_and_by_nobody_else)
{
    enum { ALICE = 5, BOB = 6, CAROL = 7, DAEMON = 500 };
    static const struct {
        uid_t reader, whose;
        const char *by, *topic;
        bool may;
    } rows[] = {
        {ALICE, ALICE, "dlpackd", "mic", true}, /* without a rule */
        {ALICE, ALICE, "pods", "mic", false},   /* it published by the main socket */
        {ALICE, BOB, "dlpackd", "gpu/a", true},
        {BOB, ALICE, "dlpackd", "gpu/a", true},
        {ALICE, BOB, "pods", "gpu/a", false}, /* the rule is about the main socket */
        {ALICE, BOB, "dlpackd", "mic", false},
        {ALICE, CAROL, "dlpackd", "gpu/a", false},
        {CAROL, ALICE, "dlpackd", "gpu/a", false},
        {0, ALICE, "dlpackd", "gpu/a", false},
        {ALICE, 0, "dlpackd", "gpu/a", false},
        {DAEMON, ALICE, "dlpackd", "gpu/a", false},
        {DLXD_OVERFLOW_UID, ALICE, "dlpackd", "gpu/a", false},
        {DLXD_OVERFLOW_UID, DLXD_OVERFLOW_UID, "dlpackd", "gpu/a", false},
    };
    static const uid_t trusted[] = {ALICE, BOB, DLXD_OVERFLOW_UID};
    struct dlxd_rules rules = {.n = 0};
    struct dlxd_rule *rule = dlxd_rules_add(&rules, "gpu");
    rule->allow = DLXD_VERB(DLXD_MAY_GPU);
    for (int i = 0; i < 3; i++)
        ok(dlxd_rule_add_uid(rule, trusted[i]));
    ok(dlxd_rule_add_topic(rule, "gpu/*"));
    ok(dlxd_rule_add_socket(rule, DLXD_SOCKET_MAIN));
    ok(dlxd_rules_add_user(&rules, "--allow-user", CAROL));
    const struct dlxd_policy policy = {.uid = DAEMON, .borrow_rules = &rules};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(rows); i++) {
        struct dlxd_principal reader = {.uid = rows[i].reader};
        const struct dlxd_principal whose = {.uid = rows[i].whose, .socket = DLXD_SOCKET_MAIN};
        (void)snprintf(reader.socket, sizeof reader.socket, "%s", rows[i].by);
        int r = dlxd_policy_check_gpu(&policy, &reader, &whose, rows[i].topic);
        ck_assert_msg(r == (rows[i].may ? 0 : DLX_E_ACCESS), "row %zu: %d", i, r);
    }
    dlxd_rules_deinit(&rules);
}

int main(void)
{
    return dlx_test_run_case(dlx_scene_case("policy", set_up));
}
