/* SPDX-License-Identifier: Apache-2.0 */

/*
 * GPU memory. What the keeper made comes from the keeper. For other memory the daemon makes a
 * socket between the publisher's process, which sends it, and the reader; descriptors that a client
 * made never pass through the daemon.
 */
#include "common/error.h"
#include "daemon/gpu/keeper.h"
#include "daemon/objects/client.h"
#include "daemon/objects/connection.h"
#include "daemon/objects/publisher.h"
#include "daemon/protocol/handler.h"
#include "daemon/users/outbox.h"
#include "daemon/users/policy.h"
#include <inttypes.h>
#include <string.h>
#include <sys/socket.h>

/* Since this minor version of the protocol the keeper makes memory. */
#define GPU_SINCE 8U

/* Nothing is read from the client until its request is answered, which it may be already. */
static int await_gpu(struct dlxd_client *client)
{
    dlxd_client_rewatch(client);
    return 0;
}

static void end_gpu_request(struct dlxd_client *client, uint32_t serial, int r)
{
    dlxd_request_end(client);
    dlxd_request_resume(client, serial, r);
}

static int send_memory(struct dlxd_client *client, uint32_t serial,
                       const struct dlxd_gpu_answer *answer)
{
    Dlx__Wire__GpuMemory body = DLX__WIRE__GPU_MEMORY__INIT;
    Dlx__Wire__Packet reply = DLX__WIRE__PACKET__INIT;
    reply.serial = serial;
    reply.body_case = DLX__WIRE__PACKET__BODY_GPU_MEMORY;
    reply.gpu_memory = &body;
    body.description.data = (uint8_t *)(uintptr_t)answer->description; /* it is only read */
    body.description.len = answer->size;
    body.keeper = answer->keeper;
    return dlxd_client_send_fds(client, &reply, &answer->borrow_fd, 1);
}

/* ---- what the keeper makes ------------------------------------------------------------------- */

int dlxd_handle_gpu_keep(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    (void)packet;
    return dlx__fail(DLX_E_VERSION,
                     "%s (pid %d) speaks protocol %u.%u, in which publishers hand GPU memory over; "
                     "here it is made for them: update libdlx to protocol %u.%u",
                     client->name, (int)client->pid, DLX_PROTO_MAJOR, client->principal->minor,
                     DLX_PROTO_MAJOR, GPU_SINCE);
}

static void on_allocated(void *owner, int code, const char *text,
                         const struct dlxd_gpu_answer *answer)
{
    struct dlxd_client *client = owner;
    const struct dlxd_gpu_wanted *wanted = &client->request.gpu;
    uint32_t serial = client->request.serial;
    struct dlxd_gpu_call *ignored;
    client->gpu_call = NULL;
    int r = code < 0 ? dlx__fail(code, "%s", text) : send_memory(client, serial, answer);
    if (code == 0 && r < 0) {
        const struct dlxd_publisher *publisher = dlxd_publisher_find(client, wanted->publisher);
        if (publisher)
            (void)dlxd_gpu_call_drop(&ignored, client->broker->gpu, client->user,
                                     dlxd_publisher_gpu_whose(publisher), wanted->allocation, NULL,
                                     NULL);
    }
    end_gpu_request(client, serial, r);
}

int dlxd_handle_gpu_allocate(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    const Dlx__Wire__GpuAllocate *request = packet->gpu_allocate;
    struct dlxd_publisher *publisher = dlxd_publisher_find(client, request->publisher);
    if (!publisher)
        return DLX_E_NOT_FOUND;
    struct dlxd_gpu_request wanted = {.whose = dlxd_publisher_gpu_whose(publisher),
                                      .allocation = request->allocation,
                                      .size = request->size,
                                      .device.type = request->device_type,
                                      .borrow_pidfd = client->pidfd};
    memcpy(wanted.device.uuid, request->device.data, sizeof wanted.device.uuid);
    client->request.serial = packet->serial;
    client->request.gpu = (struct dlxd_gpu_wanted){.publisher = request->publisher,
                                                   .allocation = request->allocation};
    int r = dlxd_gpu_call_allocate(&client->gpu_call, client->broker->gpu, client->user,
                                   &publisher->gpu, &wanted, on_allocated, client);
    return r < 0 ? r : await_gpu(client);
}

static void on_dropped(void *owner, int code, const char *text,
                       const struct dlxd_gpu_answer *answer)
{
    struct dlxd_client *client = owner;
    uint32_t serial = client->request.serial;
    (void)answer;
    client->gpu_call = NULL;
    if (code == 0 && serial != 0)
        dlxd_client_send_ok(client, serial);
    end_gpu_request(client, serial, code < 0 ? dlx__fail(code, "%s", text) : 0);
}

/* It waits until there is room for it in the keeper's socket, and its client with it. */
int dlxd_handle_gpu_free(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    const struct dlxd_publisher *publisher =
        dlxd_publisher_find(client, packet->gpu_free->publisher);
    if (!publisher)
        return DLX_E_NOT_FOUND;
    if (packet->gpu_free->allocation == 0)
        return dlx__fail(DLX_E_INVALID, "allocation 0: ids of allocations begin with 1");
    client->request.serial = packet->serial;
    int r = dlxd_gpu_call_drop(&client->gpu_call, client->broker->gpu, client->user,
                               dlxd_publisher_gpu_whose(publisher), packet->gpu_free->allocation,
                               on_dropped, client);
    return r < 0 ? r : await_gpu(client);
}

/* ---- what publishers serve ------------------------------------------------------------------- */

int dlxd_handle_gpu_serve(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    Dlx__Wire__GpuSocket body = DLX__WIRE__GPU_SOCKET__INIT;
    Dlx__Wire__Packet reply = DLX__WIRE__PACKET__INIT;
    struct dlxd_publisher *publisher = dlxd_publisher_find(client, packet->gpu_serve->publisher);
    int fd = -1;
    if (!publisher)
        return DLX_E_NOT_FOUND;
    int r = dlxd_publisher_serve_gpu(publisher, &fd);
    dlx_cleanup(dlx__closep) int theirs = fd;
    if (r < 0)
        return r;
    reply.serial = packet->serial;
    reply.body_case = DLX__WIRE__PACKET__BODY_GPU_SOCKET;
    reply.gpu_socket = &body;
    return dlxd_client_send_fds(client, &reply, &theirs, 1);
}

static int send_ask(const struct dlxd_client *reader, struct dlxd_publisher *publisher,
                    uint64_t allocation, int borrow_sock)
{
    const struct dlx_keeper_packet ask = {.kind = DLX_KEEPER_ASK, .allocation = allocation};
    struct dlxd_flight *flight;
    int r = dlxd_flight_new(&flight, reader->user, 1);
    if (r < 0)
        return r;
    (void)dlxd_outbox_look(publisher->gpu_serve);
    r = dlx__keeper_send(publisher->gpu_serve->fd, &ask, &borrow_sock, 1);
    if (r < 0)
        (void)dlxd_flight_free(flight);
    else
        dlxd_outbox_sent(publisher->gpu_serve, flight);
    return r;
}

static int ask_publisher(struct dlxd_client *client, struct dlxd_publisher *publisher,
                         uint64_t allocation)
{
    int pair[2];
    if (!publisher->gpu_serve)
        return dlx__fail(DLX_E_NOT_FOUND,
                         "the GPU keeper does not have it, and its publisher, %s (pid %d), does "
                         "not serve it%s",
                         publisher->client_name, (int)publisher->pid,
                         publisher->client ? " before its next call" : " any more");
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return dlx__fail_errno("socket between a publisher and a reader");
    dlx_cleanup(dlx__closep) int readers = pair[0], publishers = pair[1];
    if (shutdown(publishers, SHUT_RD) < 0) /* a reader has nothing to say */
        return dlx__fail_errno("socket between a publisher and a reader");
    int r = send_ask(client, publisher, allocation, publishers);
    if (r == DLX_E_FULL)
        return dlx__fail(DLX_E_LIMIT,
                         "its publisher, %s (pid %d), does not serve those who asked for GPU "
                         "memory before",
                         publisher->client_name, (int)publisher->pid);
    if (r == DLX_E_DISCONNECTED)
        return dlx__fail(DLX_E_NOT_FOUND,
                         "its publisher, %s (pid %d), serves no GPU memory any more",
                         publisher->client_name, (int)publisher->pid);
    const struct dlxd_gpu_answer socket = {.borrow_fd = readers};
    return r < 0 ? r : send_memory(client, client->request.serial, &socket);
}

/* ---- readers --------------------------------------------------------------------------------- */

static struct dlxd_publisher *of_link(const struct dlxd_client *client, uint64_t id)
{
    struct dlxd_idmap_node *node = dlxd_idmap_find(&client->broker->registry.links, id);
    if (!node)
        return NULL;
    const struct dlxd_link *link = dlxd_container_of(node, struct dlxd_link, by_id);
    return link->subscription->client == client ? link->publisher : NULL;
}

/* Finds a publisher of this user: any user may claim that an origin is its own, and only a link
 * shows which one the reader knows. */
static struct dlxd_publisher *of_origin(const struct dlxd_client *client, uint64_t origin)
{
    const struct dlxd_gpu_whose whose = {origin, dlxd_principal_number(client->principal)};
    struct dlxd_gpu_member *member =
        origin ? dlxd_gpu_keeper_find(client->broker->gpu, whose) : NULL;
    return member ? dlxd_publisher_of_gpu(member) : NULL;
}

/* Returns the publisher of what is wanted, if the client may have it; or NULL, with a code. */
static struct dlxd_publisher *find_wanted(struct dlxd_client *client, int *ret_code)
{
    const struct dlxd_gpu_wanted *wanted = &client->request.gpu;
    struct dlxd_publisher *publisher = of_link(client, wanted->link);
    int r = 0;
    if (!publisher) {
        publisher = of_origin(client, wanted->origin);
        if (!publisher) {
            *ret_code = dlx__fail(DLX_E_NOT_FOUND,
                                  "%s (pid %d) has no link %" PRIu64
                                  ", and its publisher has left no GPU memory",
                                  client->name, (int)client->pid, wanted->link);
            return NULL;
        }
        r = dlxd_policy_check(&client->broker->policy, client->principal, DLXD_MAY_SUBSCRIBE,
                              publisher->topic_name);
    }
    if (r == 0)
        r = dlxd_policy_check_gpu(&client->broker->policy, client->principal, publisher->principal,
                                  publisher->topic_name);
    *ret_code = r;
    return r < 0 ? NULL : publisher;
}

static void on_found(void *owner, int code, const char *text, const struct dlxd_gpu_answer *answer)
{
    struct dlxd_client *client = owner;
    uint32_t serial = client->request.serial;
    int r = code;
    client->gpu_call = NULL;
    if (code == 0) {
        r = send_memory(client, serial, answer);
    } else if (code == DLX_E_NOT_FOUND) {
        struct dlxd_publisher *publisher = find_wanted(client, &r);
        if (publisher)
            r = ask_publisher(client, publisher, client->request.gpu.allocation);
    } else {
        (void)dlx__fail(code, "%s", text);
    }
    end_gpu_request(client, serial, r);
}

int dlxd_handle_gpu_get(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    const Dlx__Wire__GpuGet *request = packet->gpu_get;
    int r = 0;
    if (client->principal->minor < GPU_SINCE)
        return dlxd_handle_gpu_keep(client, packet);
    client->request.gpu = (struct dlxd_gpu_wanted){
        .link = request->link, .origin = request->origin, .allocation = request->allocation};
    const struct dlxd_publisher *publisher = find_wanted(client, &r);
    if (!publisher)
        return r;
    client->request.serial = packet->serial;
    r = dlxd_gpu_call_get(&client->gpu_call, client->broker->gpu, client->user,
                          dlxd_publisher_gpu_whose(publisher), request->allocation, on_found,
                          client);
    return r < 0 ? r : await_gpu(client);
}
