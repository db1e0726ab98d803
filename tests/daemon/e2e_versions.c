/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ends of different minor versions: raw packets of clients to the daemon, and the library
 * against a stand-in for a daemon. The rules are in docs/PROTOCOL.md, "Versions".
 */

#include "client/control/call.h"
#include "client/publish/publisher.h"
#include "common/memory.h"
#include "tests/daemon/harness_served.h"
#include "tests/daemon/harness_worker.h"
#include "tests/harness/cli.h"
#include "tests/harness/stream.h"

/*
 * The highest field of each message in minor version 10. A commit that adds a field or a body
 * raises DLX_PROTO_MINOR, sends the addition only to peers that know it, and changes this table and
 * `newer_fields`.
 */
static const struct {
    const char *name;
    unsigned last_field;
} messages[] = {
    {"Error", 2},
    {"Ok", 0},
    {"Hello", 4},
    {"HelloReply", 5},
    {"PublisherNew", 13},
    {"PublisherNewReply", 4},
    {"PublisherReady", 1},
    {"PublisherClose", 1},
    {"ArenaNew", 2},
    {"ArenaNewReply", 3},
    {"ArenaReady", 2},
    {"ArenaDrop", 2},
    {"Subscribe", 10},
    {"SubscribeReply", 6},
    {"SubscriptionClose", 1},
    {"ListPublishers", 5},
    {"PublisherList", 2},
    {"PublisherEntry", 24},
    {"ListLinks", 2},
    {"LinkList", 3},
    {"LinkEntry", 20},
    {"DaemonInfo", 0},
    {"DaemonInfoReply", 20},
    {"Disconnect", 2},
    {"PublisherRetains", 1},
    {"RetainedDrop", 1},
    {"RetainedDropReply", 1},
    {"GpuKeep", 1},
    {"GpuGet", 3},
    {"GpuSocket", 0},
    {"ListQuotas", 2},
    {"QuotaList", 5},
    {"QuotaEntry", 3},
    {"FormerNew", 2},
    {"FormerNewReply", 1},
    {"LinkAdded", 12},
    {"LinkCut", 2},
    {"FormerReady", 2},
    {"GpuAllocate", 5},
    {"GpuFree", 2},
    {"GpuServe", 1},
    {"GpuMemory", 2},
    {"ListGroups", 4},
    {"GroupList", 2},
    {"GroupEntry", 21},
    {"ListClaims", 3},
    {"LinkOffer", 8},
    {"LinkReady", 2},
    {"LinkOpen", 23},
    {"ArenaAdded", 3},
    {"ArenaDropped", 2},
    {"PublisherGone", 1},
    {"LinkFailed", 9},
    {"Ack", 1},
    {"LinkClose", 1},
    {"SpareSealed", 1},
    {"ClaimList", 2},
    {"ClaimEntry", 7},
    {"GroupsDrop", 1},
    {"Observe", 2},
    {"ObserveReply", 0},
    {"Observed", 4},
    {"ObservedPublisher", 15},
    {"ObservedSubscription", 11},
    {"ListSubscriptions", 4},
    {"SubscriptionList", 2},
    {"SubscriptionEntry", 12},
    {"ListRefusals", 2},
    {"RefusalList", 2},
    {"RefusalEntry", 12},
    {"ListClients", 1},
    {"ClientList", 2},
    {"ClientEntry", 11},
    {"Kick", 2},
    {"KickReply", 2},
};

/* The fields that came after minor version 0, in answers. Numbers: 0 where they are not sent. The
 * text of field 14 is empty mostly: test_daemon_dispatch. A client that does not know field 8 of
 * LinkOffer, of version 2, gets no such offers: test_daemon_retained. */
static const struct {
    Dlx__Wire__Packet__BodyCase body;
    unsigned field;
    uint32_t minor;
} newer_fields[] = {{BODY(DAEMON_INFO_REPLY), 12, 1}, {BODY(DAEMON_INFO_REPLY), 13, 4}};

static unsigned find_last_field(const ProtobufCMessageDescriptor *message)
{
    unsigned last = 0;
    for (unsigned i = 0; i < message->n_fields; i++)
        last = DLX_MAX(last, message->fields[i].id);
    return last;
}

/* Returns the row after that of the message, and of those that it has entries of. */
static size_t check_message(const ProtobufCMessageDescriptor *message, size_t row)
{
    ck_assert_msg(row < DLX_ARRAY_SIZE(messages), "%s is new", message->short_name);
    ck_assert_str_eq(message->short_name, messages[row].name);
    ck_assert_msg(find_last_field(message) == messages[row].last_field,
                  "%s has field %u: that is another version", message->short_name,
                  find_last_field(message));
    row++;
    for (unsigned i = 0; i < message->n_fields; i++)
        if (message->fields[i].type == PROTOBUF_C_TYPE_MESSAGE)
            row = check_message(message->fields[i].descriptor, row);
    return row;
}

TEST(each_field_belongs_to_a_minor_version)
{
    const ProtobufCMessageDescriptor *packet = &dlx__wire__packet__descriptor;
    size_t row = 0;
    ck_assert_uint_eq(DLX_PROTO_MAJOR, 2);
    ck_assert_uint_eq(DLX_PROTO_MINOR, 10);
    ck_assert_str_eq(packet->fields[0].name, "serial");
    for (unsigned i = 1; i < packet->n_fields; i++)
        row = check_message(packet->fields[i].descriptor, row);
    ck_assert_uint_eq(row, DLX_ARRAY_SIZE(messages));
}

static const uint32_t minors[] = {0, DLX_PROTO_MINOR - 1, DLX_PROTO_MINOR, DLX_PROTO_MINOR + 1};

/* A field that a later version might add to a body: 2000, with the number 1. */
static const uint8_t unknown_field[] = {0x80, 0x7d, 0x01};

/* A packet with such a body, which has less than 100 bytes without it. */
static void send_with_unknown_field(int fd, Dlx__Wire__Packet__BodyCase body, void *message)
{
    uint8_t data[128];
    Dlx__Wire__Packet packet = DLX__WIRE__PACKET__INIT;
    packet.serial = 7;
    packet.body_case = body;
    packet.ok = message; /* a union of pointers */
    size_t n = dlx__wire__packet__get_packed_size(&packet);
    size_t body_size = protobuf_c_message_get_packed_size(message);
    ck_assert_uint_lt(n, 100);
    ck_assert_uint_eq(dlx__wire__packet__pack(&packet, data), n);
    data[n - body_size - 1] += sizeof unknown_field; /* the length of the body, which comes last */
    memcpy(data + n, unknown_field, sizeof unknown_field);
    ck_assert_int_eq(dlx__packet_send(fd, data, n + sizeof unknown_field, NULL, 0), 0);
}

static const Dlx__Wire__HelloReply *check_greeted(int fd)
{
    const Dlx__Wire__Packet *reply = dlx_test_expect(fd, BODY(HELLO_REPLY));
    ck_assert_uint_eq(reply->hello_reply->major, DLX_PROTO_MAJOR);
    ck_assert_uint_gt(reply->hello_reply->client, 0);
    return reply->hello_reply;
}

/* A client of this minor version. */
static int connect_as(uint32_t minor)
{
    int fd = dlx_test_connect(&dlx_test_stream_daemon);
    dlx_test_send(fd, HELLO(.major = DLX_PROTO_MAJOR, .minor = minor, .max_links = 10), 1);
    ck_assert_uint_eq(check_greeted(fd)->minor, DLX_MIN(minor, DLX_PROTO_MINOR));
    return fd;
}

/* A number of a body. */
static uint64_t number_of(const Dlx__Wire__Packet *packet, unsigned id)
{
    const ProtobufCMessage *body = (const ProtobufCMessage *)packet->ok;
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field(body->descriptor, id);
    uint64_t value;
    ck_assert_ptr_nonnull(field);
    ck_assert_int_eq(field->type, PROTOBUF_C_TYPE_UINT64);
    memcpy(&value, (const char *)body + field->offset, sizeof value);
    return value;
}

LOOP_TEST(a_reply_has_no_field_that_is_newer_than_its_client, 0, DLX_ARRAY_SIZE(minors))
{
    auto_fd fd = connect_as(minors[_i]);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(newer_fields); i++) {
        const Dlx__Wire__Packet *reply = dlx_test_call(fd, DAEMON_INFO());
        ck_assert_int_eq(reply->body_case, newer_fields[i].body);
        ck_assert_uint_eq(reply->daemon_info_reply->minor, DLX_PROTO_MINOR); /* the daemon's own */
        ck_assert_int_eq(number_of(reply, newer_fields[i].field) != 0,
                         minors[_i] >= newer_fields[i].minor);
    }
}

/* Fields 7 to 9 of LinkFailed. */
LOOP_TEST(a_link_that_failed_names_its_publisher_to_those_who_know_it, 0, DLX_ARRAY_SIZE(minors))
{
    enum { SINCE = 8 };
    const bool knows = minors[_i] >= SINCE;
    auto_fd fd = connect_as(minors[_i]), other = dlx_test_hello(&dlx_test_stream_daemon, 10);
    auto_test_subscription sub;
    struct dlx_test_publisher pub;
    dlx_test_publisher_new(&pub, other, "t", 0);
    dlx_test_publisher_ready(&pub);
    dlx_test_subscribe(&sub, fd, "t", false);
    (void)dlx_test_expect(sub.fd, BODY(LINK_OFFER));
    dlx_test_call(other, PUBLISHER_CLOSE(.publisher = pub.id));
    const Dlx__Wire__LinkFailed *failed = dlx_test_expect(sub.fd, BODY(LINK_FAILED))->link_failed;
    ck_assert_int_eq(failed->code, DLX_E_PUBLISHER_GONE);
    ck_assert_uint_eq(failed->publisher, knows ? pub.id : 0);
    ck_assert_uint_eq(failed->pid, knows ? (uint32_t)getpid() : 0);
    ck_assert_str_eq(failed->topic, knows ? "t" : "");
    dlx_test_publisher_deinit(&pub);
}

/* Field 17 of LinkOpen. */
LOOP_TEST(whether_a_publisher_is_of_its_user_is_told_to_those_who_know_it, 0,
          DLX_ARRAY_SIZE(minors))
{
    enum { SINCE = 8 };
    auto_fd fd = connect_as(minors[_i]), other = dlx_test_hello(&dlx_test_stream_daemon, 10);
    auto_test_subscription sub;
    struct dlx_test_publisher pub;
    dlx_test_publisher_new(&pub, other, "t", 0);
    dlx_test_publisher_ready(&pub);
    dlx_test_subscribe(&sub, fd, "t", false);
    (void)dlx_test_accept_offer(&sub);
    const Dlx__Wire__LinkOpen *open = dlx_test_expect(sub.fd, BODY(LINK_OPEN))->link_open;
    ck_assert_int_eq(open->same_user, minors[_i] >= SINCE);
    dlx_test_recv_done();
    dlx_test_publisher_deinit(&pub);
}

/* Fields 21 to 23 of LinkOpen. */
LOOP_TEST(terms_of_a_publisher_are_told_to_those_who_know_them, 0, DLX_ARRAY_SIZE(minors))
{
    enum { SINCE = 9, DEPTH = 7 };
    const bool knows = minors[_i] >= SINCE, latched = _i % 2;
    auto_fd fd = connect_as(minors[_i]), other = dlx_test_hello(&dlx_test_stream_daemon, 10);
    auto_test_subscription sub;
    struct dlx_test_publisher pub;
    Dlx__Wire__PublisherNew request = dlx_test_publisher_request("t");
    request.depth = DEPTH;
    request.latched = latched;
    request.retain_for_ns = latched ? 0 : (uint64_t)SECOND;
    dlx_test_publisher_new_from(&pub, other, &request);
    dlx_test_publisher_ready(&pub);
    dlx_test_subscribe(&sub, fd, "t", false);
    (void)dlx_test_accept_offer(&sub);
    const Dlx__Wire__LinkOpen *open = dlx_test_expect(sub.fd, BODY(LINK_OPEN))->link_open;
    ck_assert_uint_eq(open->depth, knows ? DEPTH : 0);
    ck_assert_int_eq(open->latched, knows && latched);
    ck_assert_uint_eq(open->retain_for_ns, knows && !latched ? (uint64_t)SECOND : 0);
    dlx_test_recv_done();
    dlx_test_publisher_deinit(&pub);
}

/* Fields 13 and 14 of LinkEntry. */
LOOP_TEST(how_far_a_subscriber_is_behind_is_told_to_those_who_know_it, 0, DLX_ARRAY_SIZE(minors))
{
    enum { DEPTH = 3, SINCE = 6 };
    auto_pair x = dlx_test_pair_make(PUBLISHER_BLOCKING(.depth = DEPTH), SUBSCRIBE_RELIABLY);
    for (int i = 1; i <= DEPTH; i++)
        dlx_test_stream_publish(x.p, 10, i);
    dlx_store32_relaxed(&x.p->core.block->control->blocked, 1); /* as if it waited */
    auto_fd fd = connect_as(minors[_i]);
    const Dlx__Wire__LinkList *links =
        dlx_test_call(fd, LIST_LINKS(.publisher = x.p->id))->link_list;
    ck_assert_uint_eq(links->n_entries, 1);
    ck_assert_uint_eq(links->entries[0]->behind, minors[_i] >= SINCE ? DEPTH : 0);
    ck_assert_int_eq(links->entries[0]->blocks, minors[_i] >= SINCE);
}

/* A subscriber that has yet to answer LinkOffer, as one that makes no call. */
LOOP_TEST(a_link_that_is_being_made_is_told_to_those_who_know_it, 0, DLX_ARRAY_SIZE(minors))
{
    enum { SINCE = 7 };
    auto_publisher *p = dlx_test_stream_new_publisher("test/a", NULL);
    auto_test_subscription s;
    auto_fd subscriber = dlx_test_hello(&dlx_test_stream_daemon, 10);
    dlx_test_subscribe(&s, subscriber, "test/a", false);
    auto_fd fd = connect_as(minors[_i]);
    const Dlx__Wire__LinkList *links = dlx_test_call(fd, LIST_LINKS(.publisher = p->id))->link_list;
    ck_assert_uint_eq(links->n_entries, minors[_i] >= SINCE);
    if (minors[_i] >= SINCE)
        ck_assert(links->entries[0]->joining && links->entries[0]->taken == 0);
    (void)dlx_test_join(&s);
    links = dlx_test_call(fd, LIST_LINKS(.publisher = p->id))->link_list;
    ck_assert_uint_eq(links->n_entries, 1);
    ck_assert(!links->entries[0]->joining);
    dlx_test_recv_done();
}

LOOP_TEST(the_group_of_a_worker_is_told_to_those_who_know_it, 0, DLX_ARRAY_SIZE(minors))
{
    enum { SINCE = 9 };
    auto_pair x = dlx_test_pair_make(NULL, SUBSCRIBE(.group = "g"));
    auto_fd fd = connect_as(minors[_i]);
    const Dlx__Wire__LinkList *links =
        dlx_test_call(fd, LIST_LINKS(.publisher = x.p->id))->link_list;
    ck_assert_uint_eq(links->n_entries, 1);
    ck_assert_uint_eq(links->entries[0]->group, minors[_i] >= SINCE);
    if (minors[_i] < SINCE - 1)
        return; /* it knows no groups */
    const Dlx__Wire__GroupList *groups =
        dlx_test_call(fd, LIST_GROUPS(.topic = WIRE_TEXT("**")))->group_list;
    ck_assert_uint_eq(groups->n_entries, 1);
    ck_assert_uint_eq(groups->entries[0]->pid, minors[_i] >= SINCE ? (uint32_t)getpid() : 0);
}

static int keep_publisher(const struct dlx_publisher_info *info, void *userdata)
{
    *(struct dlx_publisher_info *)userdata = *info;
    return 0;
}

/* Field 17 of PublisherEntry; and the next daemon is told, too. */
LOOP_TEST(refused_messages_are_told_to_versions_that_know_them, 0, DLX_ARRAY_SIZE(minors))
{
    enum { SINCE = 7 };
    auto_client *c = dlx_test_stream_connect();
    struct dlx_publisher_info info = {.refused = 0};
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", PUBLISHER(.min_subscribers = 1));
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(p, 10, 1);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(dlx_publish(p, t, NULL, NULL), DLX_E_TIMEOUT);
    auto_fd fd = connect_as(minors[_i]);
    const Dlx__Wire__PublisherList *publishers =
        dlx_test_call(fd, LIST_PUBLISHERS())->publisher_list;
    ck_assert_uint_eq(publishers->n_entries, 1);
    ck_assert_uint_eq(publishers->entries[0]->refused, minors[_i] >= SINCE ? 2 : 0);
    dlx_test_stream_restart();
    for (uint64_t until = dlx__deadline(PATIENCE); info.refused == 0; dlx_test_before(until)) {
        ck_assert_int_eq(dlx_publisher_wait(p, 1, SECOND / 1000), DLX_E_TIMEOUT);
        (void)dlx_test_stream_list(c, &info);
    }
    ck_assert_uint_eq(info.refused, 2);
    t->deleter(t);
}

TEST(an_older_client_may_not_ask_for_publishers_that_have_gone)
{
    int fd = connect_as(6);
    dlx_test_send(fd, LIST_PUBLISHERS(.gone = true), 2);
    contains(dlx_test_disconnected(fd, DLX_E_PROTOCOL),
             "is of protocol 2.7, and this connection speaks 2.6");
}

/* Requests, and fields of others, of version 8. */
static void ask_about_groups(int fd, int which)
{
    char *names[] = {WIRE_TEXT("g")};
    Dlx__Wire__PublisherNew publisher = dlx_test_publisher_request("t");
    publisher.groups = names;
    publisher.n_groups = 1;
    if (which == 0)
        dlx_test_send(fd, BODY(PUBLISHER_NEW), &publisher, 2);
    else if (which == 1)
        dlx_test_send(fd, BODY(SUBSCRIBE),
                      WIRE(subscribe, .topic = WIRE_TEXT("t"), .max_held = 1,
                           .group = WIRE_TEXT("g"), .max_attempts = 5),
                      2);
    else if (which == 2)
        dlx_test_send(fd, BODY(LIST_GROUPS), WIRE(list_groups, .topic = WIRE_TEXT("t")), 2);
    else if (which == 3)
        dlx_test_send(fd, BODY(LIST_CLAIMS), WIRE(list_claims, .publisher = 1), 2);
    else
        dlx_test_send(fd, BODY(GROUPS_DROP), WIRE(groups_drop, .topic = WIRE_TEXT("t")), 2);
}

LOOP_TEST(an_older_client_may_not_use_groups_of_workers, 0, 5)
{
    int fd = connect_as(7);
    ask_about_groups(fd, _i);
    contains(dlx_test_disconnected(fd, DLX_E_PROTOCOL),
             "is of protocol 2.8, and this connection speaks 2.7");
}

LOOP_TEST(an_older_client_may_not_observe_nor_accept_what_is_not_reliable, 0, 2)
{
    int fd = connect_as(8);
    if (_i == 0)
        dlx_test_send(fd, BODY(OBSERVE), WIRE(observe, .topic = WIRE_TEXT("t"), .kinds = 3), 2);
    else
        dlx_test_send(fd, BODY(SUBSCRIBE),
                      WIRE(subscribe, .topic = WIRE_TEXT("t"), .max_held = 1, .reliable = true,
                           .accepts_unreliable = true),
                      2);
    contains(dlx_test_disconnected(fd, DLX_E_PROTOCOL),
             "is of protocol 2.9, and this connection speaks 2.8");
}

LOOP_TEST(an_older_client_may_not_list_subscriptions_refusals_or_clients_nor_kick, 0, 4)
{
    int fd = connect_as(9);
    if (_i == 0)
        dlx_test_send(fd, BODY(LIST_SUBSCRIPTIONS), WIRE(list_subscriptions), 2);
    else if (_i == 1)
        dlx_test_send(fd, BODY(LIST_REFUSALS), WIRE(list_refusals), 2);
    else if (_i == 2)
        dlx_test_send(fd, BODY(LIST_CLIENTS), WIRE(list_clients), 2);
    else
        dlx_test_send(fd, BODY(KICK), WIRE(kick, .client = 1), 2);
    contains(dlx_test_disconnected(fd, DLX_E_PROTOCOL),
             "is of protocol 2.10, and this connection speaks 2.9");
}

/* An older client does not know the code KICKED. */
LOOP_TEST(an_older_client_that_is_kicked_is_told_a_code_that_it_knows, 9, 11)
{
    int fd = connect_as((uint32_t)_i);
    auto_client *c = dlx_test_stream_connect();
    struct dlx_kicked kicked = {.size = sizeof kicked};
    ok(dlx_kick_process(c, (uint32_t)getpid(), &kicked));
    ck_assert_uint_eq(kicked.n_kicked, 1);
    ck_assert_uint_eq(kicked.n_older, _i == 9);
    contains(dlx_test_disconnected(fd, _i == 9 ? DLX_E_ACCESS : DLX_E_KICKED), "kicked by ");
}

LOOP_TEST(a_newer_client_may_say_more_in_hello, 0, DLX_ARRAY_SIZE(minors))
{
    int fd = dlx_test_connect(&dlx_test_stream_daemon);
    send_with_unknown_field(fd, HELLO(.major = DLX_PROTO_MAJOR, .minor = minors[_i]));
    if (minors[_i] <= DLX_PROTO_MINOR) {
        contains(dlx_test_disconnected(fd, DLX_E_PROTOCOL), "Hello with unknown fields");
        return;
    }
    ck_assert_uint_eq(check_greeted(fd)->minor, DLX_PROTO_MINOR);
    ck_assert_int_eq(dlx_test_call(fd, DAEMON_INFO())->body_case, BODY(DAEMON_INFO_REPLY));
    close(fd);
}

/* The client knows which version the daemon speaks. */
LOOP_TEST(after_hello_a_field_that_the_daemon_does_not_know_is_a_violation, 0,
          DLX_ARRAY_SIZE(minors))
{
    int fd = connect_as(minors[_i]);
    send_with_unknown_field(fd, DAEMON_INFO());
    contains(dlx_test_disconnected(fd, DLX_E_PROTOCOL), "DaemonInfo with unknown fields");
}

/* Odd: it says more than is known here. */
LOOP_TEST(the_hello_of_another_major_version_is_answered_whatever_it_says, 0, 2)
{
    static struct dlx_packet packet;
    auto_fd fd = dlx_test_connect(&dlx_test_stream_daemon);
    if (_i)
        send_with_unknown_field(fd, HELLO(.major = DLX_PROTO_MAJOR + 1));
    else
        dlx_test_send(fd, HELLO(.major = DLX_PROTO_MAJOR + 1), 1);
    const Dlx__Wire__Error *error = dlx_test_expect(fd, BODY(ERROR))->error;
    ck_assert_int_eq(error->code, DLX_E_VERSION);
    contains(error->text, "3.0 is not known");
    contains(error->text, "knows 2.0 to 2.10");
    dlx_test_wait_readable(fd);
    ck_assert_int_eq(dlx__packet_recv_fds(fd, &packet), DLX_E_DISCONNECTED);
}

/* Answers one client's Hello, and its requests for DaemonInfo, publishers and links. */
struct stand_in {
    int listener;
    uint32_t greets; /* the minor version of its HelloReply */
    uint32_t minor;  /* its own */
    bool says_more;
    uint32_t heard_major, heard_minor;
    uint32_t n_silent; /* requests without a serial, which it does not answer */
};

static void answer(const struct stand_in *x, int fd, const Dlx__Wire__Packet *request)
{
    Dlx__Wire__LinkEntry link = DLX__WIRE__LINK_ENTRY__INIT, *links[] = {&link};
    Dlx__Wire__PublisherEntry publisher = DLX__WIRE__PUBLISHER_ENTRY__INIT;
    Dlx__Wire__PublisherEntry *publishers[] = {&publisher};
    link.link = publisher.publisher = 7;
    link.lost = publisher.published = 3;
    const struct {
        Dlx__Wire__Packet__BodyCase asked, body;
        void *message;
    } answers[] = {
        {BODY(HELLO),
         DLX_TEST_BODY(HELLO_REPLY, hello_reply, .major = DLX_PROTO_MAJOR, .minor = x->greets,
                       .memory = dlx__memory_memfd.tag, .version = (char[]){"stand-in"})},
        {BODY(DAEMON_INFO),
         DLX_TEST_BODY(DAEMON_INFO_REPLY, daemon_info_reply, .major = DLX_PROTO_MAJOR,
                       .minor = x->minor, .longest_turn_ns = x->minor >= 1 ? 7 : 0,
                       .version = (char[]){"stand-in"},
                       .lack = x->minor >= 8 ? (char[]){"memory"} : (char[]){""})},
        {BODY(LIST_PUBLISHERS),
         DLX_TEST_BODY(PUBLISHER_LIST, publisher_list, .n_entries = 1, .entries = publishers)},
        {BODY(LIST_LINKS), DLX_TEST_BODY(LINK_LIST, link_list, .n_entries = 1, .entries = links)},
    };
    size_t i = DLX_ARRAY_SIZE(answers) - 1;
    while (i > 0 && answers[i].asked != request->body_case)
        i--;
    Dlx__Wire__Packet reply = DLX__WIRE__PACKET__INIT;
    reply.serial = request->serial;
    reply.body_case = answers[i].body;
    reply.ok = answers[i].message; /* a union of pointers */
    if (request->body_case == BODY(DAEMON_INFO) && x->says_more)
        send_with_unknown_field(fd, reply.body_case, reply.ok);
    else
        (void)dlx__proto_send(fd, &reply, NULL, 0);
}

static void *run_stand_in(void *userdata)
{
    static struct dlx_packet packet;
    static struct dlx_proto_arena arena;
    struct stand_in *x = userdata;
    const Dlx__Wire__Packet *request;
    struct pollfd p = {.fd = x->listener, .events = POLLIN};
    if (poll(&p, 1, PATIENCE_MS) != 1)
        return NULL;
    p.fd = accept4(x->listener, NULL, NULL, SOCK_CLOEXEC);
    /* Until the client leaves. */
    while (poll(&p, 1, PATIENCE_MS) == 1 && dlx__packet_recv(p.fd, &packet) == 0) {
        if (dlx__proto_unpack(&arena, packet.data, packet.size, &request) < 0)
            break;
        if (request->body_case == BODY(HELLO)) {
            x->heard_major = request->hello->major;
            x->heard_minor = request->hello->minor;
        }
        if (request->serial == 0)
            x->n_silent++;
        else
            answer(x, p.fd, request);
    }
    close(p.fd);
    return NULL;
}

/* In place of the daemon. */
static pthread_t begin_stand_in(struct stand_in *x)
{
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    unlink(dlx_test_stream_daemon.path);
    x->listener = dlx_test_listen(dlx_test_stream_daemon.path, SOCK_SEQPACKET);
    return dlx_test_stream_thread(run_stand_in, x);
}

/* Once its client has left. */
static void end_stand_in(const struct stand_in *x, pthread_t thread)
{
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_uint_eq(x->heard_major, DLX_PROTO_MAJOR);
    ck_assert_uint_eq(x->heard_minor, DLX_PROTO_MINOR);
    close(x->listener);
    unlink(dlx_test_stream_daemon.path);
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
}

/* Connects to a stand-in, and makes the call if that succeeds. Returns what failed, or 0. */
static int meet_stand_in(struct stand_in *x, int (*call)(struct dlx_client *c, void *userdata),
                         void *userdata)
{
    struct dlx_client *c = NULL;
    pthread_t thread = begin_stand_in(x);
    int r = dlx_connect(CONNECT(.timeout_ns = PATIENCE), &c);
    if (r == 0)
        r = call(c, userdata);
    dlx_client_unref(c);
    end_stand_in(x, thread);
    return r;
}

/* dlxctl doctor, which must exit with this status, asks a stand-in of that version. */
static struct dlx_test_cli doctor_of(uint32_t minor, int status)
{
    struct dlx_test_cli cli;
    struct stand_in x = {.greets = minor, .minor = minor};
    pthread_t thread = begin_stand_in(&x);
    dlx_test_cli_run(&cli, dlx_test_stream_daemon.path, -1, status, DLX_TEST_WORDS("doctor"));
    end_stand_in(&x, thread);
    return cli;
}

TEST(dlxctl_doctor_says_what_an_older_daemon_does_not_know)
{
    auto_cli cli = doctor_of(3, 0);
    contains(cli.out, "dlpackd stand-in speaks protocol 2.3, which is older than libdlx");
    contains(cli.out,
             "it does not know: quotas, publishers that are gone, work queues, observers.");
    contains(cli.out, "upgrade dlpackd");
}

/* The stand-in answers no question about quotas, and lacks memory. */
TEST(dlxctl_doctor_says_what_the_daemon_lacks)
{
    auto_cli cli = doctor_of(DLX_PROTO_MINOR, 1);
    contains(cli.out, "problem  dlpackd lacks: memory");
    contains(cli.out, "unknown  dlpackd does not say: ");
}

static int ask_stand_in(uint32_t greets, uint32_t minor, bool says_more,
                        int (*call)(struct dlx_client *c, void *userdata), void *userdata)
{
    struct stand_in x = {.greets = greets, .minor = minor, .says_more = says_more};
    return meet_stand_in(&x, call, userdata);
}

static int get_info(struct dlx_client *c, void *info)
{
    return dlx_client_get_daemon_info(c, info);
}

LOOP_TEST(the_library_goes_with_a_daemon_of_another_minor_version, 0, DLX_ARRAY_SIZE(minors))
{
    struct dlx_daemon_info info = {.size = sizeof info};
    ok(ask_stand_in(DLX_MIN(minors[_i], DLX_PROTO_MINOR), minors[_i], false, get_info, &info));
    ck_assert_uint_eq(info.protocol_minor, minors[_i]);
    ck_assert_uint_eq(info.longest_turn_ns, minors[_i] >= 1 ? 7 : 0);
    ck_assert_str_eq(info.lack, minors[_i] >= 8 ? "memory" : "");
}

static int count_quota(const struct dlx_quota_info *info, void *userdata)
{
    (void)info;
    ++*(int *)userdata;
    return 0;
}

static int list_quotas(struct dlx_client *c, void *n)
{
    return dlx_list_quotas(c, count_quota, n);
}

TEST(an_older_daemon_is_not_asked_for_quotas)
{
    int n = 0;
    fails(ask_stand_in(4, 4, false, list_quotas, &n), DLX_E_VERSION,
          "speaks protocol 2.4; a list of quotas needs 2.5: update dlpackd");
    ck_assert_int_eq(n, 0);
}

static int add_group(const struct dlx_group_info *info, void *userdata)
{
    (void)info;
    ++*(int *)userdata;
    return 0;
}

static int list_groups(struct dlx_client *c, void *n)
{
    return dlx_list_groups(c, NULL, add_group, n);
}

static int drop_queue(struct dlx_client *c, void *unused)
{
    (void)unused;
    return dlx_drop_queue(c, "work");
}

static int join_group(struct dlx_client *c, void *unused)
{
    struct dlx_subscription *s = NULL;
    (void)unused;
    int r = dlx_subscribe(c, "work", SUBSCRIBE(.group = "g"), &s);
    dlx_subscription_unref(s);
    return r;
}

static int declare_group(struct dlx_client *c, void *unused)
{
    struct dlx_publisher *p = NULL;
    (void)unused;
    int r = dlx_publisher_new(c, "work",
                              PUBLISHER(.groups = (const char *const[]){"g"}, .n_groups = 1), &p);
    dlx_publisher_unref(p);
    return r;
}

LOOP_TEST(an_older_daemon_is_not_asked_for_work_queues, 0, 4)
{
    int (*const calls[])(struct dlx_client * c, void *userdata) = {list_groups, drop_queue,
                                                                   join_group, declare_group};
    const char *what = _i < 2 ? "a request about work queues" : "a work queue (`group`, `groups`)";
    char words[160];
    int n = 0;
    (void)snprintf(words, sizeof words, "speaks protocol 2.7; %s needs 2.8: update dlpackd", what);
    fails(ask_stand_in(7, 7, false, calls[_i], &n), DLX_E_VERSION, words);
    ck_assert_int_eq(n, 0);
}

static int make_observer(struct dlx_client *c, void *unused)
{
    struct dlx_observer *o = NULL;
    (void)unused;
    int r = dlx_observer_new(c, "t", NULL, &o);
    dlx_observer_unref(o);
    return r;
}

static int accept_unreliable(struct dlx_client *c, void *unused)
{
    struct dlx_subscription *s = NULL;
    (void)unused;
    int r = dlx_subscribe(c, "t", SUBSCRIBE(.reliable = true, .accepts_unreliable = true), &s);
    dlx_subscription_unref(s);
    return r;
}

LOOP_TEST(an_older_daemon_is_not_asked_for_observers_nor_for_links_of_both_kinds, 0, 2)
{
    char words[160];
    (void)snprintf(words, sizeof words, "speaks protocol 2.8; %s needs 2.9: update dlpackd",
                   _i == 0 ? "an observer" : "`accepts_unreliable`");
    fails(ask_stand_in(8, 8, false, _i == 0 ? make_observer : accept_unreliable, NULL),
          DLX_E_VERSION, words);
}

static int on_entry(const void *info)
{
    (void)info;
    ck_abort_msg("an older daemon has told something");
}

static int on_subscription(const struct dlx_subscription_info *info, void *unused)
{
    (void)unused;
    return on_entry(info);
}

static int on_refusal(const struct dlx_refusal_info *info, void *unused)
{
    (void)unused;
    return on_entry(info);
}

static int on_client(const struct dlx_client_info *info, void *unused)
{
    (void)unused;
    return on_entry(info);
}

static int list_subscriptions(struct dlx_client *c, void *unused)
{
    return dlx_list_subscriptions(c, NULL, true, on_subscription, unused);
}

static int list_refusals(struct dlx_client *c, void *unused)
{
    return dlx_list_refusals(c, NULL, on_refusal, unused);
}

static int list_clients(struct dlx_client *c, void *unused)
{
    return dlx_list_clients(c, on_client, unused);
}

static int kick(struct dlx_client *c, void *unused)
{
    (void)unused;
    return dlx_kick(c, 1, NULL);
}

LOOP_TEST(an_older_daemon_is_not_asked_for_what_operators_see_and_do, 0, 4)
{
    static const struct {
        int (*call)(struct dlx_client *c, void *unused);
        const char *words;
    } calls[] = {{list_subscriptions, "a list of subscriptions needs 2.10"},
                 {list_refusals, "a list of refusals needs 2.10"},
                 {list_clients, "a list of clients needs 2.10"},
                 {kick, "kicking a program needs 2.10"}};
    fails(ask_stand_in(9, 9, false, calls[_i].call, NULL), DLX_E_VERSION, calls[_i].words);
}

static int close_subscription(struct dlx_client *c, void *unused)
{
    (void)unused;
    return dlx__call_subscription_close(c, 1);
}

/* It takes the request for a violation. It learns of the end when the socket is closed. */
LOOP_TEST(an_older_daemon_is_not_told_that_a_worker_ends, 8, 11)
{
    const uint32_t minor = (uint32_t)_i;
    struct stand_in x = {.greets = DLX_MIN(minor, DLX_PROTO_MINOR), .minor = minor};
    ok(meet_stand_in(&x, close_subscription, NULL));
    ck_assert_uint_eq(x.n_silent, minor >= 9);
}

static int keep_link(const struct dlx_link_info *info, void *userdata)
{
    *(struct dlx_link_info *)userdata = *info;
    return 0;
}

static int list_links(struct dlx_client *c, void *link)
{
    return dlx_list_links(c, 1, keep_link, link);
}

LOOP_TEST(an_older_daemon_does_not_tell_how_far_a_subscriber_is_behind, 0, 2)
{
    struct dlx_link_info link = {.behind = 1};
    uint32_t minor = _i == 0 ? 5 : DLX_PROTO_MINOR;
    ok(ask_stand_in(minor, minor, false, list_links, &link));
    ck_assert_uint_eq(link.link, 7);
    ck_assert_uint_eq(link.lost, 3);
    ck_assert_uint_eq(link.behind, _i == 0 ? DLX_BEHIND_UNKNOWN : 0);
    ck_assert(!link.blocks);
    ck_assert(link.next_ns == 0 && link.held_ns == 0);
}

static int list_publishers(struct dlx_client *c, void *info)
{
    return dlx_list_publishers(c, NULL, keep_publisher, info);
}

LOOP_TEST(an_older_daemon_does_not_tell_what_could_not_be_published, 0, 2)
{
    struct dlx_publisher_info info = {.refused = 1};
    uint32_t minor = _i == 0 ? 6 : DLX_PROTO_MINOR;
    ok(ask_stand_in(minor, minor, false, list_publishers, &info));
    ck_assert_uint_eq(info.publisher, 7);
    ck_assert_uint_eq(info.published, 3);
    ck_assert_uint_eq(info.refused, _i == 0 ? DLX_REFUSED_UNKNOWN : 0);
    ck_assert_uint_eq(info.copied, _i == 0 ? DLX_FIGURE_UNKNOWN : 0);
    ck_assert_uint_eq(info.copied_bytes, _i == 0 ? DLX_FIGURE_UNKNOWN : 0);
    ck_assert_uint_eq(info.blocked_ns, _i == 0 ? DLX_FIGURE_UNKNOWN : 0);
}

static int list_gone(struct dlx_client *c, void *info)
{
    return dlx_list_gone_publishers(c, NULL, keep_publisher, info);
}

TEST(an_older_daemon_is_not_asked_for_publishers_that_have_gone)
{
    struct dlx_publisher_info info;
    fails(ask_stand_in(6, 6, false, list_gone, &info), DLX_E_VERSION,
          "speaks protocol 2.6; a list of publishers that have gone needs 2.7: update dlpackd");
}

static int must_not_be_called(struct dlx_client *c, void *userdata)
{
    (void)c;
    (void)userdata;
    ck_abort_msg("it is connected");
}

TEST(a_daemon_that_claims_a_newer_version_than_it_was_told_is_refused)
{
    fails(ask_stand_in(DLX_PROTO_MINOR + 1, DLX_PROTO_MINOR + 1, false, must_not_be_called, NULL),
          DLX_E_PROTOCOL, "answers a client of protocol 2.10 with 2.11");
}

TEST(a_field_of_a_daemon_that_the_library_does_not_know_is_a_violation)
{
    struct dlx_daemon_info info = {.size = sizeof info};
    fails(ask_stand_in(DLX_PROTO_MINOR, DLX_PROTO_MINOR + 1, true, get_info, &info), DLX_E_PROTOCOL,
          "DaemonInfoReply with unknown fields");
}
