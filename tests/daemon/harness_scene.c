/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/daemon/harness_scene.h"
#include "common/memory.h"
#include "daemon/objects/offer.h"
#include "ring/layout.h"
#include "daemon/users/outbox.h"
#include "tests/harness/fds.h"

enum { KEPT_MAX = 4096, CLIENTS_MAX = 1024, PAGES_MAX = 2048 };

struct dlx_test_broker dlx_scene;
const struct dlxd_publisher_config dlx_scene_plain = {.history = 1, .depth = 16, .n_entries = 256};

static size_t n_fds_before;
static int kept[KEPT_MAX];
static size_t n_kept;
static struct {
    const struct dlxd_client *client;
    int fd;
} clients[CLIENTS_MAX];
static size_t n_clients;
static struct {
    void *map;
    uint64_t size;
} pages[PAGES_MAX];
static size_t n_pages;
static struct dlx_packet rx;
static struct dlx_proto_arena unpacked;

static void begin(void)
{
    uv_loop_t first;
    ck_assert_int_eq(uv_loop_init(&first), 0); /* the first loop opens what all of them share */
    ck_assert_int_eq(uv_loop_close(&first), 0);
    n_fds_before = dlx_test_fds_count();
    n_kept = n_clients = n_pages = 0;
    dlx_test_broker_init(&dlx_scene, UINT64_C(1) << 30);
}

static void end(void)
{
    dlx__packet_deinit(&rx);
    for (size_t i = 0; i < n_kept; i++)
        dlx__close(kept[i]);
    for (; n_pages > 0; n_pages--)
        dlx__region_unmap(pages[n_pages - 1].map, pages[n_pages - 1].size);
    dlx_users_release();
    dlx_scene_look(); /* no client reads the sent packets any more */
    dlx_test_broker_deinit(&dlx_scene);
    ck_assert_uint_eq(dlx_scene.broker.users.all_in_flight, 0);
    ck_assert_uint_eq(dlx_scene.broker.users.all_descriptors, 0);
    ck_assert_uint_eq(dlx_test_fds_count(), n_fds_before);
}

TCase *dlx_scene_case(const char *name, void (*prepare)(void))
{
    TCase *tcase = tcase_create(name);
    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, begin, end);
    if (prepare)
        tcase_add_checked_fixture(tcase, prepare, NULL);
    return tcase;
}

int dlx_scene_keep(int take_fd)
{
    ck_assert_int_ge(take_fd, 0);
    ck_assert_uint_lt(n_kept, KEPT_MAX);
    return kept[n_kept++] = take_fd;
}

void dlx_scene_close(int fd)
{
    size_t i = 0;
    while (i < n_kept && kept[i] != fd)
        i++;
    ck_assert_uint_lt(i, n_kept);
    kept[i] = kept[--n_kept];
    dlx__close(fd);
}

struct dlxd_client *dlx_scene_client(uint32_t socket, uint32_t max_links)
{
    int fd;
    struct dlxd_client *client = dlx_test_broker_client_by(&dlx_scene, socket, max_links, &fd);
    ck_assert_uint_lt(n_clients, CLIENTS_MAX);
    clients[n_clients].client = client;
    clients[n_clients++].fd = dlx_scene_keep(fd);
    return client;
}

int dlx_scene_fd(const struct dlxd_client *client)
{
    size_t i = n_clients;
    while (i > 0 && clients[i - 1].client != client)
        i--;
    ck_assert_uint_gt(i, 0);
    return clients[i - 1].fd;
}

struct dlxd_user *dlx_scene_user(uid_t uid, const char *socket)
{
    return dlx_users_get(&dlx_scene.broker.users, uid, socket);
}

void dlx_scene_send(int fd, void *message, uint32_t serial)
{
    Dlx__Wire__Packet packet = DLX__WIRE__PACKET__INIT;
    packet.serial = serial;
    packet.body_case = dlx_test_body_of(message);
    packet.ok = message; /* a union of pointers */
    ok(dlx__proto_send(fd, &packet, NULL, 0));
}

const Dlx__Wire__Packet *dlx_scene_receive(int fd)
{
    const Dlx__Wire__Packet *packet;
    dlx__packet_deinit(&rx);
    int r = dlx__packet_recv_fds(fd, &rx);
    if (r == DLX_E_EMPTY)
        return NULL;
    ck_assert_msg(r == 0, "receive: %s", dlx__error_name(r));
    ok(dlx__proto_unpack(&unpacked, rx.data, rx.size, &packet));
    return packet;
}

static const Dlx__Wire__Packet *check_body(const Dlx__Wire__Packet *packet,
                                           Dlx__Wire__Packet__BodyCase body)
{
    ck_assert_msg(packet, "nothing came");
    ck_assert_msg(packet->body_case == body, "got %s %s, expected %d", dlx__proto_name(packet),
                  packet->body_case == BODY(ERROR) ? packet->error->text : "", (int)body);
    return packet;
}

const Dlx__Wire__Packet *dlx_scene_expect(int fd, Dlx__Wire__Packet__BodyCase body)
{
    return check_body(dlx_scene_receive(fd), body);
}

void dlx_scene_close_received(void)
{
    dlx__packet_deinit(&rx);
}

int dlx_scene_take_fd(size_t i)
{
    int fd = dlx__packet_steal_fd(&rx, i);
    ck_assert_int_ge(fd, 0);
    return fd;
}

void dlx_scene_expect_end(int fd)
{
    dlx__packet_deinit(&rx);
    ck_assert_int_eq(dlx__packet_recv_fds(fd, &rx), DLX_E_DISCONNECTED);
}

size_t dlx_scene_receive_all(int fd)
{
    size_t n = 0;
    while (dlx_scene_receive(fd))
        n++;
    return n;
}

const Dlx__Wire__Packet *dlx_scene_call(struct dlxd_client *client, void *message)
{
    static uint32_t serial;
    dlx_test_broker_request(client, dlx_test_body_of(message), message, ++serial);
    dlxd_broker_settle(&dlx_scene.broker);
    const Dlx__Wire__Packet *reply = dlx_scene_receive(dlx_scene_fd(client));
    ck_assert_msg(reply, "no reply");
    ck_assert_uint_eq(reply->serial, serial);
    return reply;
}

const Dlx__Wire__Packet *dlx_scene_call_gets(struct dlxd_client *client, void *message,
                                             Dlx__Wire__Packet__BodyCase reply)
{
    return check_body(dlx_scene_call(client, message), reply);
}

void dlx_scene_call_fails(struct dlxd_client *client, void *message, int code, const char *words)
{
    const Dlx__Wire__Packet *reply = dlx_scene_call_gets(client, message, BODY(ERROR));
    ck_assert_msg(reply->error->code == code, "%s: %s", dlx__error_name(reply->error->code),
                  reply->error->text);
    ck_assert_msg(reply->error->text[0] && strstr(reply->error->text, words), "'%s' is not in '%s'",
                  words, reply->error->text);
    ck_assert(!dlxd_client_is_doomed(client));
}

Dlx__Wire__PublisherNew dlx_scene_publisher_new(const char *topic)
{
    Dlx__Wire__PublisherNew request = DLX__WIRE__PUBLISHER_NEW__INIT;
    request.topic = WIRE_TEXT(topic);
    request.history = dlx_scene_plain.history;
    request.depth = dlx_scene_plain.depth;
    request.n_entries = dlx_scene_plain.n_entries;
    return request;
}

void dlx_scene_offer(struct dlxd_publisher *publisher)
{
    while (dlxd_offering_step(publisher))
        continue;
}

struct dlxd_publisher *dlx_scene_publisher_linked(struct dlxd_client *client, const char *topic,
                                                  int *ret_link_sock)
{
    struct dlxd_publisher *publisher;
    struct dlxd_publisher_fds made;
    ok(dlxd_publisher_new(&publisher, client, topic, &dlx_scene_plain, &made));
    dlx__close(made.membership_fd);
    *ret_link_sock = dlx_scene_keep(made.link_sock);
    dlx_scene_allocate(made.control_fd, publisher->control->size);
    dlx_test_broker_ready(&dlx_scene, publisher);
    dlx_scene_offer(publisher);
    return publisher;
}

struct dlxd_publisher *dlx_scene_publisher(struct dlxd_client *client, const char *topic)
{
    struct dlxd_publisher *publisher =
        dlx_test_broker_publisher(client, topic, &dlx_scene_plain, 0);
    dlx_scene_offer(publisher);
    return publisher;
}

struct dlxd_subscription *dlx_scene_subscription(struct dlxd_client *client, const char *pattern,
                                                 const struct dlxd_subscription_config *config,
                                                 int *ret_sock)
{
    static const struct dlxd_subscription_config plain = {.max_held = 1};
    struct dlxd_subscription *subscription;
    ok(dlxd_subscription_new(&subscription, client, pattern, config ? config : &plain, ret_sock));
    dlx_scene_keep(*ret_sock);
    return subscription;
}

uint32_t dlx_scene_subscribed(struct dlxd_subscription *subscription)
{
    uint32_t n;
    ok(dlx_test_broker_offer_all(subscription, &n));
    return n;
}

struct dlx_shm_link *dlx_scene_accept(int sock, const Dlx__Wire__Packet *offer)
{
    uint64_t size = check_body(offer, BODY(LINK_OFFER))->link_offer->page_size;
    uint64_t link = offer->link_offer->link;
    ck_assert_uint_lt(n_pages, PAGES_MAX);
    pages[n_pages].size = size;
    ok(dlx__region_populate(&dlx__memory_memfd, dlx_scene_take_fd(0), size, &pages[n_pages].map));
    dlx_scene_send(sock, WIRE(link_ready, .link = link), 0);
    dlx_scene_send(sock, WIRE(ack, .n = 1), 0);
    return pages[n_pages++].map;
}

void dlx_scene_allocate(int take_fd, uint64_t size)
{
    void *map;
    ok(dlx__region_populate(&dlx__memory_memfd, take_fd, size, &map));
    dlx__region_unmap(map, size);
}

struct dlxd_arena *dlx_scene_arena(struct dlxd_publisher *publisher, uint64_t size)
{
    struct dlxd_arena *arena;
    int writer;
    ok(dlxd_publisher_arena_new(publisher, size, &arena, &writer));
    dlx_scene_allocate(writer, size);
    dlx_test_broker_arena_ready(&dlx_scene, publisher, arena->id);
    return arena;
}

struct dlxd_link *dlx_scene_link(const struct dlxd_subscription *subscription)
{
    ck_assert(!dlxd_list_empty(&subscription->links));
    return dlxd_container_of(subscription->links.next, struct dlxd_link, by_subscription);
}

void dlx_scene_look(void)
{
    dlx_for_each (it, &dlx_scene.broker.users.users)
        dlxd_container_of(it, struct dlxd_user, node)->next_look_ns = 0;
    dlxd_flights_look_all(&dlx_scene.broker.users);
}
