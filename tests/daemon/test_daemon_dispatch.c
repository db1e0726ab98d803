/* SPDX-License-Identifier: Apache-2.0 */
/* Every value of a request that is out of range gets an Error that says so, and changes nothing. */
#include "common/pid_namespace.h"
#include "daemon/objects/connection.h"
#include "daemon/objects/publisher_state.h"
#include "ring/layout.h"
#include "common/topic.h"
#include "tests/daemon/harness_scene.h"

static struct dlxd_client *client;

static void set_up(void)
{
    client = dlx_scene_client(0, 10);
}

/* Nothing is made by a request that is refused. */
static void expect_error(void *message, int code, const char *words)
{
    dlx_scene_call_fails(client, message, code, words);
    ck_assert_uint_eq(dlx_scene.broker.registry.n_topics, 0);
    ck_assert_uint_eq(dlx_scene.broker.users.all_bytes, 0);
    ck_assert_uint_eq(client->user->used[DLXD_OBJECTS], 0);
}

TEST(a_bad_topic_is_refused)
{
    char too_long[DLX_TOPIC_SIZE_MAX + 2];
    static const char *const bad[] = {"",      "/",   "/a",   "a/",   "a//b", "..",      "a/../b",
                                      "a/./b", "a b", "**/a", "\xff", "a\nb", "\xc3\xa4"};
    memset(too_long, 'a', sizeof too_long - 1);
    too_long[sizeof too_long - 1] = '\0';
    for (size_t i = 0; i <= DLX_ARRAY_SIZE(bad); i++) {
        char *topic = WIRE_TEXT(i < DLX_ARRAY_SIZE(bad) ? bad[i] : too_long);
        Dlx__Wire__PublisherNew publisher = dlx_scene_publisher_new(topic);
        expect_error(&publisher, DLX_E_TOPIC, "");
        expect_error(WIRE(subscribe, .topic = topic, .max_held = 1), DLX_E_TOPIC, "");
        if (*topic)
            expect_error(WIRE(list_publishers, .topic = topic), DLX_E_TOPIC, "");
    }
    /* A pattern is for those who look, not for those who publish or drop. */
    Dlx__Wire__PublisherNew publisher = dlx_scene_publisher_new("a/*");
    expect_error(&publisher, DLX_E_TOPIC, "'*'");
    expect_error(WIRE(retained_drop, .topic = WIRE_TEXT("a/*")), DLX_E_TOPIC, "'*'");
}

/* Each request differs from one that is granted by what the row says. */
static const struct publisher_row {
    uint32_t history, depth, n_entries, on_full, max_held, retain;
    uint64_t after_seq;
    const char *words;
} publisher_rows[] = {
    {0, 16, 256, 0, 0, 0, 0, "must be 1 to 1024"},
    {DLX_SHM_HISTORY_MAX + 1, 16, 256, 0, 0, 0, 0, "must be 1 to 1024"},
    {UINT32_MAX, 16, 256, 0, 0, 0, 0, "must be 1 to 1024"},
    {1, 0, 256, 0, 0, 0, 0, "must be 1 to 4096"},
    {1, DLX_SHM_DEPTH_MAX + 1, 256, 0, 0, 0, 0, "must be 1 to 4096"},
    {1, UINT32_MAX, 256, 0, 0, 0, 0, "must be 1 to 4096"},
    {1, 1, 0, 0, 0, 0, 0, "to 8192"},
    {1, 1, 1, 0, 0, 0, 0, "to 8192"},
    {1, 1, 128, 0, 0, 0, 0, "to 8192"},
    {1, 1, 300, 0, 0, 0, 0, "to 8192"},
    {1, 1, 16384, 0, 0, 0, 0, "to 8192"},
    {1, 1, UINT32_MAX, 0, 0, 0, 0, "to 8192"},
    {1, 129, 256, 0, 0, 0, 0, "to 8192"},
    {129, 1, 256, 0, 0, 0, 0, "to 8192"},
    {DLX_SHM_HISTORY_MAX, 1, 1024, 0, 0, 0, 0, "to 8192"},
    {1, 2049, 4096, 0, 0, 0, 0, "to 8192"},
    {1, DLX_SHM_DEPTH_MAX, 4096, 0, 0, 0, 0, "to 8192"},
    {1, 16, 256, 2, 0, 0, 0, "on_full 2 must be 0"},
    {1, 16, 256, 0, DLX_SHM_HELD_MAX + 1, 0, 0, "max_held 4097 must be at most 4096"},
    {1, 16, 256, 0, 0, 0, DLX_SHM_MOVED, "2305843009213693952"},
    {4, 16, 256, 0, 0, 5, 0, "retains 5 messages of a history of 4"},
    {4, 16, 256, 0, 0, 4, 0, NULL},
    {1, 1, 256, 1, DLX_SHM_HELD_MAX, 0, DLX_SHM_MOVED - 1, NULL},
    {DLX_SHM_HISTORY_MAX, DLX_SHM_DEPTH_MAX, 8192, 0, 0, 0, 0, NULL},
    {1, 128, 256, 0, 0, 0, 0, NULL},
    {128, 1, 256, 0, 0, 0, 0, NULL},
};

LOOP_TEST(a_publisher_out_of_range_is_refused, 0, DLX_ARRAY_SIZE(publisher_rows))
{
    const struct publisher_row *row = &publisher_rows[_i];
    Dlx__Wire__PublisherNew *request =
        WIRE(publisher_new, .topic = WIRE_TEXT("t"), .history = row->history, .depth = row->depth,
             .n_entries = row->n_entries, .on_full = row->on_full, .max_held = row->max_held,
             .retain = row->retain, .after_seq = row->after_seq);
    if (row->words)
        expect_error(request, DLX_E_INVALID, row->words);
    else
        dlx_scene_call_gets(client, request, BODY(PUBLISHER_NEW_REPLY));
}

static const struct subscription_row {
    uint32_t mode, history, max_held, n_spares;
    bool reliable;
    const char *words;
} subscription_rows[] = {
    {2, 0, 1, 0, false, "mode 2 must be 0"},
    {1, 0, 1, 0, true, "cannot be reliable"},
    {0, DLX_SHM_HISTORY_MAX + 1, 1, 0, false, "at most 1024"},
    {0, 0, 0, 0, false, "must be 1 to 4096"},
    {0, 0, DLX_SHM_HELD_MAX + 1, 0, false, "must be 1 to 4096"},
    {0, 0, UINT32_MAX, 0, false, "must be 1 to 4096"},
    {0, 0, 1, 4097, false, "4097 spare links must be at most 4096"},
    {1, DLX_SHM_HISTORY_MAX, DLX_SHM_HELD_MAX, 4096, false, NULL},
};

LOOP_TEST(a_subscription_out_of_range_is_refused, 0, DLX_ARRAY_SIZE(subscription_rows))
{
    const struct subscription_row *row = &subscription_rows[_i];
    Dlx__Wire__Subscribe *request =
        WIRE(subscribe, .topic = WIRE_TEXT("t"), .mode = row->mode, .history = row->history,
             .max_held = row->max_held, .n_spares = row->n_spares, .reliable = row->reliable);
    if (row->words)
        expect_error(request, DLX_E_INVALID, row->words);
    else
        dlx_scene_call_gets(client, request, BODY(SUBSCRIBE_REPLY));
}

TEST(objects_that_do_not_exist_are_not_found)
{
    static const uint64_t ids[] = {0, 1, UINT64_MAX};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(ids); i++) {
        const uint64_t id = ids[i];
        void *const of_publishers[] = {
            WIRE(publisher_ready, .publisher = id),
            WIRE(publisher_close, .publisher = id),
            WIRE(publisher_retains, .publisher = id),
            WIRE(arena_new, .publisher = id, .arena_size = DLX_PAGE),
            WIRE(arena_ready, .publisher = id),
            WIRE(arena_drop, .publisher = id),
            WIRE(list_links, .publisher = id),
        };
        char words[64];
        (void)snprintf(words, sizeof words, "publisher %ju", (uintmax_t)id);
        for (size_t k = 0; k < DLX_ARRAY_SIZE(of_publishers); k++)
            expect_error(of_publishers[k], DLX_E_NOT_FOUND, words);
        (void)snprintf(words, sizeof words, "subscription %ju", (uintmax_t)id);
        expect_error(WIRE(subscription_close, .subscription = id), DLX_E_NOT_FOUND, words);
    }
}

TEST(quota_names_asked_used_and_limit)
{
    dlx_scene.broker.users.max[DLXD_BYTES] = 1 << 16;
    Dlx__Wire__PublisherNew request = dlx_scene_publisher_new("t");
    request.n_entries = DLX_SHM_ENTRIES_MAX;
    expect_error(&request, DLX_E_LIMIT, "may have 64.0 KiB (quota bytes)");
    dlx_scene.broker.users.max[DLXD_OBJECTS] = 0;
    request.n_entries = 256;
    expect_error(&request, DLX_E_LIMIT, "publishers and subscriptions");
    expect_error(WIRE(subscribe, .topic = WIRE_TEXT("t"), .max_held = 1), DLX_E_LIMIT,
                 "publishers and subscriptions");
}

TEST(arenas_of_a_publisher_are_limited_in_number)
{
    Dlx__Wire__PublisherNew request = dlx_scene_publisher_new("t");
    const Dlx__Wire__Packet *packet =
        dlx_scene_call_gets(client, &request, BODY(PUBLISHER_NEW_REPLY));
    Dlx__Wire__ArenaNew *arena_new = WIRE(
        arena_new, .publisher = packet->publisher_new_reply->publisher, .arena_size = DLX_PAGE);
    for (uint32_t i = 1; i <= DLX_SHM_ARENAS_MAX; i++) {
        packet = dlx_scene_call(client, arena_new);
        if (packet->body_case == BODY(ERROR) && packet->error->code == DLX_E_FD_LIMIT)
            break; /* the process may not have so many files */
        ck_assert_int_eq(packet->body_case, BODY(ARENA_NEW_REPLY));
        ck_assert_uint_eq(packet->arena_new_reply->arena, i);
        if (i == DLX_SHM_ARENAS_MAX)
            dlx_scene_call_fails(client, arena_new, DLX_E_LIMIT, "");
    }
}

/* Fds cannot be queued: when the client does not read, the request fails and nothing stays
 * behind. */
TEST(reply_with_fds_that_does_not_fit_undoes_the_request)
{
    Dlx__Wire__PublisherNew publisher = dlx_scene_publisher_new("t");
    int size = 1;
    uint32_t serial = 0;
    ck_assert_int_eq(setsockopt(client->fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size), 0);
    while (client->n_tx == 0)
        dlx_test_broker_request(client, BODY(DAEMON_INFO), WIRE(daemon_info), ++serial);
    dlx_test_broker_request(client, BODY(PUBLISHER_NEW), &publisher, ++serial);
    dlx_test_broker_request(client, BODY(SUBSCRIBE),
                            WIRE(subscribe, .topic = WIRE_TEXT("t"), .max_held = 1), ++serial);
    dlx_test_broker_request(client, BODY(DAEMON_INFO), WIRE(daemon_info), ++serial);
    dlxd_broker_settle(&dlx_scene.broker);
    ck_assert_uint_eq(dlx_scene.broker.registry.n_topics, 0);
    ck_assert_uint_eq(dlx_scene.broker.users.all_bytes, 0);
    /* And all replies come, in order. */
    for (uint32_t i = 1; i <= serial; i++) {
        struct pollfd p = {.fd = dlx_scene_fd(client), .events = POLLIN};
        dlx_test_broker_run(&dlx_scene);
        ck_assert_int_eq(poll(&p, 1, 10000), 1);
        const Dlx__Wire__Packet *packet = dlx_scene_receive(dlx_scene_fd(client));
        ck_assert_uint_eq(packet->serial, i);
        bool failed = i == serial - 1 || i == serial - 2;
        ck_assert_int_eq(packet->body_case, failed ? BODY(ERROR) : BODY(DAEMON_INFO_REPLY));
        if (failed)
            ck_assert_int_eq(packet->error->code, DLX_E_LIMIT);
    }
    ck_assert_uint_eq(client->n_tx, 0);
}

TEST(queue_of_replies_is_bounded)
{
    size_t most = 0;
    for (uint32_t i = 1; i < 100000 && !dlxd_client_is_doomed(client); i++) {
        dlx_test_broker_request(client, BODY(DAEMON_INFO), WIRE(daemon_info), i);
        most = DLX_MAX(most, client->n_tx);
    }
    ck_assert(dlxd_client_is_doomed(client));
    ck_assert_uint_eq(most, DLXD_TX_PACKETS_MAX);
    dlxd_broker_settle(&dlx_scene.broker);
    ck_assert_uint_eq(dlx_scene.broker.n_clients, 0);
}

static const Dlx__Wire__PublisherList *list_publishers(Dlx__Wire__ListPublishers *list)
{
    return dlx_scene_call_gets(client, list, BODY(PUBLISHER_LIST))->publisher_list;
}

/* More publishers than fit on a page, of several topics. */
TEST(lists_come_page_by_page_in_order)
{
    enum { N = 50 };
    char last_topic[DLX_TOPIC_SIZE_MAX + 1] = "";
    uint64_t last_id = 0;
    size_t n = 0;
    for (int i = 0; i < N; i++) {
        char topic[16];
        (void)snprintf(topic, sizeof topic, "t/%d", i % 3);
        Dlx__Wire__PublisherNew request = dlx_scene_publisher_new(topic);
        (void)dlx_scene_call(client, &request);
    }
    /* Not announced: not listed. Announce behind the protocol's back. */
    ck_assert_uint_eq(list_publishers(WIRE(list_publishers))->n_entries, 0);
    dlx_for_each (it, &client->publishers)
        dlxd_publisher_announce(dlxd_container_of(it, struct dlxd_publisher, by_client), true);
    for (bool more = true; more;) {
        const Dlx__Wire__PublisherList *page = list_publishers(
            WIRE(list_publishers, .after_topic = last_topic, .after_publisher = last_id));
        more = page->more;
        ck_assert_uint_eq(page->n_entries, more ? 16 : N - n);
        for (size_t i = 0; i < page->n_entries; i++, n++) {
            const Dlx__Wire__PublisherEntry *entry = page->entries[i];
            int order = strcmp(entry->topic, last_topic);
            ck_assert(order > 0 || (order == 0 && entry->publisher > last_id));
            ck_assert_uint_eq(entry->history, 1);
            (void)snprintf(last_topic, sizeof last_topic, "%s", entry->topic);
            last_id = entry->publisher;
        }
    }
    ck_assert_uint_eq(n, N);
    const Dlx__Wire__PublisherList *page =
        list_publishers(WIRE(list_publishers, .topic = WIRE_TEXT("t/1")));
    ck_assert_uint_eq(page->n_entries, 16);
    ck_assert(page->more);
    ck_assert_str_eq(page->entries[15]->topic, "t/1");
    page = list_publishers(
        WIRE(list_publishers, .topic = WIRE_TEXT("t/1"), .after_topic = WIRE_TEXT("t/2")));
    ck_assert_uint_eq(page->n_entries, 0);
}

/* A field that it does not know would be a violation to it. */
TEST(an_older_minor_version_gets_no_newer_field_and_a_newer_one_learns_ours)
{
    dlx_scene.broker.longest_turn_ns = 7;
    (void)snprintf(dlx_scene.broker.lack.text, sizeof dlx_scene.broker.lack.text, "descriptors");
    for (uint32_t minor = 0; minor <= DLX_PROTO_MINOR + 1; minor++) {
        struct dlxd_client *newcomer = dlx_scene_client(0, 0);
        Dlx__Wire__Hello *hello = WIRE(hello, .major = DLX_PROTO_MAJOR, .minor = minor,
                                       .name = WIRE_TEXT("other"), .max_links = 10);
        ck_assert_uint_eq(dlx_scene_call(newcomer, hello)->hello_reply->minor,
                          DLX_MIN(minor, DLX_PROTO_MINOR));
        const Dlx__Wire__DaemonInfoReply *got =
            dlx_scene_call(newcomer, WIRE(daemon_info))->daemon_info_reply;
        ck_assert_uint_eq(got->longest_turn_ns, minor < 1 ? 0 : 7);
        ck_assert_uint_eq(got->pid_namespace, minor < 4 ? 0 : dlx__pid_namespace());
        ck_assert_str_eq(got->lack, minor < 8 ? "" : "descriptors");
    }
}

static const Dlx__Wire__QuotaList *list_quotas(uint32_t after_uid, const char *after_socket)
{
    Dlx__Wire__ListQuotas *list =
        WIRE(list_quotas, .after_uid = after_uid, .after_socket = WIRE_TEXT(after_socket));
    return dlx_scene_call_gets(client, list, BODY(QUOTA_LIST))->quota_list;
}

/* Root, by the main socket, as all clients of this test are. */
TEST(a_superuser_sees_the_quotas_of_all_users_in_order)
{
    client->principal->minor = 5;
    (void)dlx_users_charge(dlx_scene_user(7, "b"), DLXD_LINKS, 5);
    (void)dlx_scene_user(4000000000U, "a");
    (void)dlx_scene_user(7, "a");
    (void)dlx_scene_user(3, "z");
    char seen[400] = "", socket[DLXD_SOCKET_NAME_SIZE] = "";
    uint32_t uid = 0;
    for (const Dlx__Wire__QuotaList *list; (list = list_quotas(uid, socket))->more;) {
        size_t n = strlen(seen);
        uid = list->uid;
        (void)snprintf(socket, sizeof socket, "%s", list->socket);
        ck_assert_str_eq(list->quota_class, "default");
        ck_assert_uint_eq(list->n_entries, DLXD_N_RESOURCES);
        ck_assert_str_eq(list->entries[DLXD_LINKS]->name, "links");
        ck_assert_uint_eq(list->entries[DLXD_LINKS]->max, 65536);
        if (uid != geteuid())
            (void)snprintf(seen + n, sizeof seen - n, "%u/%s:%u ", uid, socket,
                           (unsigned)list->entries[DLXD_LINKS]->used);
    }
    ck_assert_str_eq(seen, "3/z:0 7/a:0 7/b:5 4000000000/a:0 ");
}

TEST(others_see_their_own_quotas_alone)
{
    dlx_scene.broker.policy.uid = geteuid() + 1;
    client->principal->minor = 5;
    client->principal->uid = 1234; /* its user has the uid with which it came */
    const Dlx__Wire__QuotaList *list = list_quotas(0, "");
    ck_assert_uint_eq(list->uid, geteuid());
    ck_assert_str_eq(list->socket, DLXD_SOCKET_MAIN);
    ck_assert(!list->more);
    ck_assert_uint_eq(list->entries[DLXD_CONNECTIONS]->used, 1);
    list = list_quotas(0, DLXD_SOCKET_MAIN);
    ck_assert_str_eq(list->socket, "");
    ck_assert_uint_eq(list->n_entries, 0);
}

int main(void)
{
    return dlx_test_run_case(dlx_scene_case("dispatch", set_up));
}
