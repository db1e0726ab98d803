/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/broker.h"
#include "common/memory.h"
#include "daemon/protocol/dispatch.h"
#include "daemon/objects/offer.h"
#include "daemon/objects/publisher.h"
#include "daemon/objects/publisher_state.h"
#include "daemon/base/worker.h"
#include "tests/harness/fds.h"

void dlx_test_broker_init(struct dlx_test_broker *test, uint64_t ram_bytes)
{
    ck_assert_int_eq(uv_loop_init(&test->loop), 0);
    ck_assert_int_eq(
        dlxd_broker_init(&test->broker, &test->loop, &dlx__memory_memfd, &dlxd_dispatch, ram_bytes),
        0);
    test->broker.users.all_descriptors_max = UINT64_MAX; /* there are as many as there are */
}

void dlx_test_broker_run(struct dlx_test_broker *test)
{
    (void)uv_run(&test->loop, UV_RUN_NOWAIT);
    dlxd_broker_settle(&test->broker);
    while (dlxd_workers_n_jobs(test->broker.workers) > 0) {
        (void)uv_run(&test->loop, UV_RUN_ONCE);
        dlxd_broker_settle(&test->broker);
    }
}

size_t dlx_test_broker_n_fds(struct dlx_test_broker *test)
{
    dlx_test_broker_run(test);
    return dlx_test_fds_count();
}

void dlx_test_broker_deinit(struct dlx_test_broker *test)
{
    dlx_for_each (it, &test->broker.clients)
        dlxd_client_free(dlxd_container_of(it, struct dlxd_client, node));
    dlxd_broker_settle(&test->broker);
    dlxd_retained_clear(&test->broker);
    ck_assert_uint_eq(test->broker.users.all_bytes, 0);
    ck_assert_uint_eq(test->broker.n_clients, 0);
    ck_assert_uint_eq(test->broker.n_greeting, 0);
    ck_assert_uint_eq(test->broker.n_refused, 0);
    dlxd_broker_deinit(&test->broker);
    (void)uv_run(&test->loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&test->loop), 0);
}

static bool may_everything(const struct dlxd_policy *policy, const struct dlxd_principal *who,
                           enum dlxd_verb verb, const char *topic)
{
    (void)policy;
    (void)who;
    (void)verb;
    (void)topic;
    return true;
}

struct dlxd_client *dlx_test_broker_client_by(struct dlx_test_broker *test, uint32_t socket,
                                              uint32_t max_links, int *ret_fd)
{
    struct dlxd_client *client;
    char name[DLXD_SOCKET_NAME_SIZE] = DLXD_SOCKET_MAIN;
    int pair[2];
    if (socket != 0) {
        (void)snprintf(name, sizeof name, "socket-%u", socket);
        test->broker.policy.may = may_everything; /* no rules are there */
    }
    dlx_test_fds_pair(pair);
    ck_assert_int_eq(dlxd_client_new(&client, &test->broker, pair[0], name), 0);
    if (max_links > 0)
        dlxd_client_greet(client, "test", max_links);
    *ret_fd = pair[1];
    return client;
}

struct dlxd_client *dlx_test_broker_client(struct dlx_test_broker *test, uint32_t max_links,
                                           int *ret_fd)
{
    return dlx_test_broker_client_by(test, 0, max_links, ret_fd);
}

int dlx_test_broker_offer_all(struct dlxd_subscription *subscription, uint32_t *ret_n)
{
    struct dlxd_offers offers;
    int r;
    dlxd_offers_init(&offers, subscription);
    do
        r = dlxd_offers_step(&offers);
    while (r == 1);
    *ret_n = offers.n_links;
    dlxd_offers_deinit(&offers);
    dlxd_subscription_open(subscription);
    return r;
}

static struct dlx_test_broker *test_of(const struct dlxd_client *client)
{
    return dlxd_container_of(client->broker, struct dlx_test_broker, broker);
}

void dlx_test_broker_request(struct dlxd_client *client, Dlx__Wire__Packet__BodyCase body,
                             void *message, uint32_t serial)
{
    static uint8_t data[DLX_PACKET_SIZE_MAX];
    Dlx__Wire__Packet packet = DLX__WIRE__PACKET__INIT;
    packet.serial = serial;
    packet.body_case = body;
    packet.ok = message;
    ck_assert_uint_le(dlx__wire__packet__get_packed_size(&packet), sizeof data);
    client->broker->users.slice_end_ns = UINT64_MAX; /* as in a step that has time */
    dlxd_dispatch_client_bytes(client, data, dlx__wire__packet__pack(&packet, data));
    client->broker->users.slice_end_ns = 0;
    while (client->request.step || client->awaits_proof)
        if (client->awaits_proof)
            dlx_test_broker_run(test_of(client));
        else
            (void)dlxd_dispatch.client(&client->task);
}

static void on_proved(void *owner, int code, const char *text, int take_fd)
{
    ck_assert_int_eq(dlxd_publisher_ready(owner, code, text, take_fd), 0);
}

void dlx_test_broker_ready(struct dlx_test_broker *test, struct dlxd_publisher *publisher)
{
    ck_assert_int_eq(dlxd_publisher_prove(publisher, on_proved), 0);
    dlx_test_broker_run(test);
}

static void on_arena_proved(void *owner, int code, const char *text, int take_fd)
{
    ck_assert_int_eq(dlxd_publisher_arena_ready(owner, code, text, take_fd), 0);
    dlxd_publisher_tell_links(owner);
}

void dlx_test_broker_arena_ready(struct dlx_test_broker *test, struct dlxd_publisher *publisher,
                                 uint32_t id)
{
    ck_assert_int_eq(dlxd_publisher_arena_prove(publisher, id, on_arena_proved), 0);
    dlx_test_broker_run(test);
}

struct dlxd_publisher *dlx_test_broker_publisher(struct dlxd_client *client, const char *topic,
                                                 const struct dlxd_publisher_config *config,
                                                 uint64_t n_published)
{
    struct dlxd_publisher *publisher = NULL;
    struct dlxd_publisher_fds made;
    void *map;
    ck_assert_int_eq(dlxd_publisher_new(&publisher, client, topic, config, &made), 0);
    dlx__close(made.membership_fd);
    dlx__close(made.link_sock);
    uint64_t size = publisher->control->size;
    ck_assert_int_eq(dlx__region_populate(&dlx__memory_memfd, made.control_fd, size, &map), 0);
    memcpy(map, &n_published, sizeof n_published);
    dlx__region_unmap(map, size);
    dlx_test_broker_ready(test_of(client), publisher);
    return publisher;
}
