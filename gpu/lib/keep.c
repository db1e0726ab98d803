/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/lib/keep.h"
#include "client/control/call.h"
#include "keeper/wire.h"
#include <assert.h>
#include <inttypes.h>
#include <poll.h>

/* A drop that cannot be sent within this time breaks the connection. */
#define DROP_NS INT64_C(20000000)
/* A keeper that ends just when it is asked says nothing: the next one is asked. */
#define TRIES_MAX 3

struct dlx_gpu_keep {
    int sock; /* -1: broken */
    uint32_t serial;
    bool is_new; /* nothing has been put by it */
};

/* Whoever waits, and how long. */
struct patience {
    const struct dlx_client *client; /* NULL: not to be interrupted */
    int64_t timeout_ns;
    struct dlx_wait wait;
};

static struct patience patience_of(const struct dlx_client *c)
{
    return (struct patience){c, c->timeout_ns, {.deadline = dlx__deadline(c->timeout_ns)}};
}

static int await_keeper(struct patience *patience, int sock, short events)
{
    struct pollfd pfd = {.fd = sock, .events = events};
    for (;;) {
        uint64_t now = dlx__now_ns();
        const struct dlx_client *c = patience->client;
        uint64_t until = c ? dlx__wait_part(&patience->wait, c, now) : patience->wait.deadline;
        int n = poll(&pfd, 1, dlx__deadline_ms(until, now));
        if (n > 0)
            return 0;
        if (n < 0 && errno != EINTR)
            return dlx__fail_errno("poll");
        if (dlx__now_ns() >= patience->wait.deadline)
            return dlx__fail(DLX_E_TIMEOUT, "the GPU keeper did not answer within %.3g s",
                             (double)patience->timeout_ns / 1e9);
        if (c && dlx__wait_ask(&patience->wait, c, NULL, n < 0) < 0)
            return dlx__call_interrupted(c);
    }
}

static int send_packet(struct patience *patience, int sock, const struct dlx_keeper_packet *packet,
                       const int *fds, size_t n_fds)
{
    for (;;) {
        int r = dlx__keeper_send(sock, packet, fds, n_fds);
        if (r != DLX_E_FULL)
            return r;
        r = await_keeper(patience, sock, POLLOUT);
        if (r < 0)
            return r;
        /* There may be room, and our user has too many descriptors on their way. */
        (void)poll(NULL, 0, 1);
    }
}

/* 0; DLX_E_DISCONNECTED when the other end is closed. */
static int receive_packet(struct patience *patience, int sock, struct dlx_packet *packet,
                          struct dlx_keeper_packet *ret)
{
    int r;
    while ((r = dlx__packet_recv_fds(sock, packet)) == DLX_E_EMPTY) {
        r = await_keeper(patience, sock, POLLIN);
        if (r < 0)
            return r;
    }
    if (r == DLX_E_DISCONNECTED)
        return dlx__fail(r, "the GPU keeper closed the connection");
    if (r == 0)
        r = dlx__keeper_decode(packet, ret);
    if (r < 0)
        dlx__packet_deinit(packet);
    return r;
}

/* ---- publisher ------------------------------------------------------------------------------- */

static int open_keep(struct dlx_client *c, uint64_t publisher, struct dlx_gpu_keep **ret)
{
    int sock;
    int r = dlx__call_gpu_keep(c, publisher, &sock);
    if (r < 0)
        return r;
    struct dlx_gpu_keep *keep = calloc(1, sizeof *keep);
    if (!keep) {
        dlx__close(sock);
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for a connection to the GPU keeper");
    }
    keep->sock = sock;
    keep->is_new = true;
    *ret = keep;
    return 0;
}

static int send_parts(struct patience *patience, const struct dlx_gpu_keep *keep,
                      const struct dlx_gpu_handle *handle)
{
    uint8_t data[DLX_GPU_BYTES_MAX];
    int fds[DLX_PACKET_FDS_MAX];
    size_t n_fds = 0;
    for (uint32_t first = 0; first < handle->n_chunks; first += (uint32_t)n_fds) {
        size_t size = dlx__gpu_handle_encode(handle, first, data, fds, &n_fds);
        const struct dlx_keeper_packet put = {
            .kind = DLX_KEEPER_PUT, .serial = keep->serial, .body = data, .body_size = size};
        int r = send_packet(patience, keep->sock, &put, fds, n_fds);
        if (r < 0)
            return r;
    }
    return 0;
}

/* `ret_broken`: the connection is of no use any more. */
static int put_allocation(struct patience *patience, struct dlx_gpu_keep *keep,
                          const struct dlx_gpu_handle *handle, bool *ret_broken)
{
    struct dlx_packet packet;
    struct dlx_keeper_packet answer;
    keep->serial++;
    *ret_broken = true;
    int r = send_parts(patience, keep, handle);
    while (r == 0) {
        r = receive_packet(patience, keep->sock, &packet, &answer);
        if (r == 0 && answer.kind != DLX_KEEPER_ANSWER) {
            dlx__packet_deinit(&packet);
            return dlx__fail(DLX_E_PROTOCOL, "the GPU keeper does not answer what it was asked");
        }
        if (r == 0 && answer.serial == keep->serial)
            break;
    }
    if (r < 0)
        return r;
    *ret_broken = false;
    return dlx__keeper_fail(&answer);
}

int dlx__gpu_keep_put(struct dlx_client *c, uint64_t publisher, struct dlx_gpu_keep **keep,
                      const struct dlx_gpu_handle *handle)
{
    assert(dlx__gpu_handle_is_complete(handle) && handle->n_chunks > 0);
    struct patience patience = patience_of(c);
    int r = dlx__refuse_forked(c->generation);
    if (r < 0)
        return r;
    r = DLX_E_DISCONNECTED;
    for (int i = 0; i < TRIES_MAX && r == DLX_E_DISCONNECTED; i++) {
        bool is_broken = false;
        if (*keep && (*keep)->sock < 0)
            *keep = dlx__gpu_keep_free(*keep);
        if (!*keep) {
            r = open_keep(c, publisher, keep);
            if (r < 0)
                return r;
        }
        r = put_allocation(&patience, *keep, handle, &is_broken);
        if (is_broken)
            *keep = dlx__gpu_keep_free(*keep);
    }
    if (r == DLX_E_DISCONNECTED)
        return dlx__fail(r, "the GPU keeper ended when it was given memory, %d times", TRIES_MAX);
    if (r < 0 || !(*keep)->is_new)
        return r;
    (*keep)->is_new = false;
    return 1;
}

void dlx__gpu_keep_drop(struct dlx_gpu_keep *keep, uint64_t allocation)
{
    struct patience patience = {NULL, DROP_NS, {.deadline = dlx__deadline(DROP_NS)}};
    const struct dlx_keeper_packet drop = {.kind = DLX_KEEPER_DROP, .allocation = allocation};
    if (!keep || keep->sock < 0)
        return;
    /* It would hold the memory for ever. By the next put it holds nothing but what that puts. */
    if (send_packet(&patience, keep->sock, &drop, NULL, 0) < 0)
        keep->sock = dlx__close(keep->sock);
}

struct dlx_gpu_keep *dlx__gpu_keep_free(struct dlx_gpu_keep *keep)
{
    if (keep)
        dlx__close(keep->sock);
    free(keep);
    return NULL;
}

/* ---- subscriber ------------------------------------------------------------------------------ */

/* `ret_n`: packets that came. */
static int receive_parts(struct patience *patience, int sock, struct dlx_gpu_handle *ret,
                         uint32_t *ret_n)
{
    struct dlx_packet packet;
    struct dlx_keeper_packet part;
    int r = 0;
    *ret_n = 0;
    while (r == 0 && !dlx__gpu_handle_is_complete(ret)) {
        r = receive_packet(patience, sock, &packet, &part);
        if (r < 0)
            break;
        (*ret_n)++;
        if (part.kind == DLX_KEEPER_PART)
            r = dlx__gpu_handle_decode(ret, part.body, part.body_size, packet.fds, packet.n_fds);
        else if (part.kind == DLX_KEEPER_ANSWER && part.code != 0)
            r = dlx__keeper_fail(&part);
        else
            r = dlx__fail(DLX_E_PROTOCOL, "the GPU keeper does not answer what it was asked");
        dlx__packet_deinit(&packet);
    }
    return r;
}

static int get(struct dlx_client *c, uint64_t link, uint64_t origin, uint64_t allocation,
               struct dlx_gpu_handle *ret, uint32_t *ret_n)
{
    struct patience patience = patience_of(c);
    int fd = -1;
    *ret_n = 1;
    int r = dlx__call_gpu_get(c, link, origin, allocation, &fd);
    dlx_cleanup(dlx__closep) int sock = fd;
    if (r == 0)
        r = receive_parts(&patience, sock, ret, ret_n);
    if (r == 0 && ret->id != allocation)
        r = dlx__fail(DLX_E_PROTOCOL, "the GPU keeper sent another allocation, %" PRIu64, ret->id);
    if (r < 0)
        dlx__gpu_handle_deinit(ret);
    return r;
}

int dlx__gpu_keep_get(struct dlx_client *c, uint64_t link, uint64_t origin, uint64_t allocation,
                      struct dlx_gpu_handle *ret)
{
    uint32_t n_packets = 0;
    int r = dlx__refuse_forked(c->generation);
    if (r < 0)
        return r;
    assert(ret->id == 0);
    r = DLX_E_DISCONNECTED;
    for (int i = 0; i < TRIES_MAX && r == DLX_E_DISCONNECTED && n_packets == 0; i++)
        r = get(c, link, origin, allocation, ret, &n_packets);
    return r;
}
