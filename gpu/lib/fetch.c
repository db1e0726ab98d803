/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/lib/fetch.h"
#include "client/control/call.h"
#include "keeper/wire.h"
#include <assert.h>
#include <inttypes.h>
#include <poll.h>

/* A publisher that moves to another daemon, or ends, says nothing when it is asked just then. */
#define TRIES_MAX 3

/* Whoever waits, and how long. */
struct patience {
    const struct dlx_client *client;
    struct dlx_wait wait;
};

static int await_publisher(struct patience *patience, int sock)
{
    struct pollfd pfd = {.fd = sock, .events = POLLIN};
    const struct dlx_client *c = patience->client;
    for (;;) {
        uint64_t until = dlx__wait_part(&patience->wait, c, dlx__now_ns());
        int n = poll(&pfd, 1, dlx__deadline_ms(until, dlx__now_ns()));
        if (n > 0)
            return 0;
        if (n < 0 && errno != EINTR)
            return dlx__fail_errno("poll");
        if (dlx__now_ns() >= patience->wait.deadline)
            return dlx__fail(DLX_E_TIMEOUT,
                             "its publisher, which has it, did not send it within %.3g s: its "
                             "process is stopped, or serves too many others",
                             (double)c->timeout_ns / 1e9);
        if (dlx__wait_ask(&patience->wait, c, NULL, n < 0) < 0)
            return dlx__call_interrupted(c);
    }
}

/* 0; DLX_E_DISCONNECTED when the other end is closed. */
static int receive_packet(struct patience *patience, int sock, struct dlx_packet *packet,
                          struct dlx_keeper_packet *ret)
{
    int r;
    while ((r = dlx__packet_recv_fds(sock, packet)) == DLX_E_EMPTY) {
        r = await_publisher(patience, sock);
        if (r < 0)
            return r;
    }
    if (r == DLX_E_DISCONNECTED)
        return dlx__fail(r, "its publisher has not sent all of it: it ends, or has no descriptors "
                            "or memory left");
    if (r == 0)
        r = dlx__keeper_decode(packet, ret);
    if (r < 0)
        dlx__packet_deinit(packet);
    return r;
}

static int receive_parts(struct patience *patience, int sock, struct dlx_gpu_handle *ret)
{
    struct dlx_packet packet;
    struct dlx_keeper_packet part;
    int r = 0;
    while (r == 0 && !dlx__gpu_handle_is_complete(ret)) {
        r = receive_packet(patience, sock, &packet, &part);
        if (r < 0)
            break;
        if (part.kind == DLX_KEEPER_PART)
            r = dlx__gpu_handle_decode(ret, part.body, part.body_size, packet.fds, packet.n_fds);
        else if (part.kind == DLX_KEEPER_REFUSAL)
            r = dlx__keeper_fail(&part);
        else
            r = dlx__fail(DLX_E_PROTOCOL, "its publisher does not send what it was asked for");
        dlx__packet_deinit(&packet);
    }
    return r;
}

static int check_id(const struct dlx_gpu_handle *handle, uint64_t allocation)
{
    return handle->id == allocation
               ? 0
               : dlx__fail(DLX_E_PROTOCOL, "another allocation came, %" PRIu64, handle->id);
}

int dlx__gpu_take_memory(struct dlx_new_gpu_memory *take, uint64_t allocation,
                         struct dlx_gpu_handle *ret)
{
    int r = dlx__gpu_handle_decode(ret, take->description, take->size, &take->fd, 1);
    take->fd = dlx__close(take->fd);
    if (r == 0 && !dlx__gpu_handle_is_complete(ret))
        r = dlx__fail(DLX_E_PROTOCOL, "the GPU keeper describes memory in %u chunks",
                      ret->n_chunks);
    if (r == 0)
        r = check_id(ret, allocation);
    if (r < 0)
        dlx__gpu_handle_deinit(ret);
    return r;
}

static int get(struct dlx_client *c, uint64_t link, uint64_t origin, uint64_t allocation,
               struct dlx_gpu_handle *ret, bool *ret_is_closed)
{
    struct dlx_new_gpu_memory memory;
    int fd = -1;
    *ret_is_closed = false;
    int r = dlx__call_gpu_get(c, link, origin, allocation, &memory, &fd);
    if (r == 0)
        return dlx__gpu_take_memory(&memory, allocation, ret);
    if (r < 0)
        return r;
    dlx_cleanup(dlx__closep) int sock = fd;
    struct patience patience = {c, {.deadline = dlx__deadline(c->timeout_ns)}};
    r = receive_parts(&patience, sock, ret);
    *ret_is_closed = r == DLX_E_DISCONNECTED;
    if (r == 0)
        r = check_id(ret, allocation);
    if (r < 0)
        dlx__gpu_handle_deinit(ret);
    return r;
}

int dlx__gpu_fetch(struct dlx_client *c, uint64_t link, uint64_t origin, uint64_t allocation,
                   struct dlx_gpu_handle *ret)
{
    bool is_closed = true;
    int r = dlx__refuse_forked(c->generation);
    if (r < 0)
        return r;
    assert(ret->id == 0);
    for (int i = 0; i < TRIES_MAX && is_closed; i++)
        r = get(c, link, origin, allocation, ret, &is_closed);
    return r;
}
