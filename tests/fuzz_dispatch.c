/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dispatcher under arbitrary packets. Input: records of one byte (which socket, and whether a client
 * that has said Hello), two bytes of length, and that many bytes of packet. Two clients of one broker; the
 * second has a publisher and a subscription, so that ids 1 and 2 mean something.
 */
#include "common/memory.h"
#include "common/proto.h"
#include "daemon/broker.h"
#include "daemon/client.h"
#include "daemon/dispatch.h"
#include "daemon/publisher.h"
#include "daemon/subscription.h"
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <uv.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uv_loop_t loop;
static struct dlxd_broker broker;
static struct dlx_packet rx;

static struct dlxd_client *connect_client(int *ret_fd)
{
    struct dlxd_client *client;
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
        abort();
    if (dlxd_client_new(&client, &broker, pair[0]) < 0)
        abort();
    *ret_fd = pair[1];
    return client;
}

/* An announced publisher of "t". */
static void make_publisher(struct dlxd_client *client)
{
    static const struct dlxd_publisher_config config = {.history = 1, .n_slots = 3, .on_full = 1};
    struct dlxd_publisher_fds fds;
    struct dlxd_publisher *publisher;
    void *map;
    if (dlxd_publisher_new(&publisher, client, "t", &config, &fds) < 0)
        abort();
    dlx__close(fds.membership_fd);
    dlx__close(fds.link_sock);
    if (dlx__region_populate(&dlx__memory_memfd, fds.control_fd,
                             dlxd_publisher_control(publisher)->size, &map) < 0)
        abort();
    dlx__region_unmap(map, dlxd_publisher_control(publisher)->size);
    if (dlxd_publisher_ready(publisher) < 0)
        abort();
}

static int make_subscription(struct dlxd_client *client)
{
    static const struct dlxd_subscription_config config = {.max_held = 2};
    struct dlxd_subscription *subscription;
    uint32_t n;
    int fd;
    if (dlxd_subscription_new(&subscription, client, "t", &config, &fd) < 0 ||
        dlxd_subscription_offer_all(subscription, &n) < 0)
        abort();
    return fd;
}

/* What the daemon answered must itself decode: the other side checks as strictly. */
static void drain(int fd)
{
    static struct dlx_proto_arena arena;
    const Dlx__Wire__Packet *packet;
    while (dlx__packet_recv(fd, &rx) == 0) {
        if (dlx__proto_unpack(&arena, rx.data, rx.size, &packet) < 0)
            abort();
        dlx__packet_deinit(&rx);
    }
}

static struct dlxd_subscription *some_subscription(struct dlxd_client *client)
{
    if (dlxd_list_empty(&client->subscriptions))
        return NULL;
    return dlxd_container_of(client->subscriptions.next, struct dlxd_subscription, by_client);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int fds[3];
    (void)signal(SIGPIPE, SIG_IGN);
    if (uv_loop_init(&loop) < 0)
        abort();
    if (dlxd_broker_init(&broker, &loop, &dlx__memory_memfd, UINT64_C(1) << 26) < 0)
        abort();
    struct dlxd_client *clients[2] = {connect_client(&fds[0]), connect_client(&fds[1])};
    dlxd_client_greet(clients[1], "fuzz", 8);
    make_publisher(clients[1]);
    fds[2] = make_subscription(clients[1]);
    dlxd_broker_settle(&broker);

    while (size >= 3) {
        uint8_t which = data[0] % 3;
        size_t n = DLX_MIN((size_t)(data[1] | data[2] << 8), size - 3);
        struct dlxd_client *client = clients[which > 0];
        if (client && which == 2) {
            struct dlxd_subscription *subscription = some_subscription(client);
            if (subscription)
                dlxd_dispatch_subscription_bytes(subscription, data + 3, n);
        } else if (client) {
            dlxd_dispatch_client_bytes(client, data + 3, n);
        }
        for (int i = 0; i < 2; i++)
            if (clients[i] && dlxd_client_is_doomed(clients[i]))
                clients[i] = NULL;
        dlxd_broker_settle(&broker);
        data += 3 + n;
        size -= 3 + n;
    }
    for (int i = 0; i < 3; i++)
        drain(fds[i]);
    for (int i = 0; i < 2; i++)
        if (clients[i])
            dlxd_client_free(clients[i]);
    dlxd_broker_settle(&broker);
    dlxd_broker_deinit(&broker);
    for (int i = 0; i < 3; i++)
        close(fds[i]);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    if (uv_loop_close(&loop) < 0)
        abort();
    return 0;
}
