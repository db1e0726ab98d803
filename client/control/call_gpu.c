/* SPDX-License-Identifier: Apache-2.0 */
#include "client/control/call.h"
#include "client/control/call_wire.h"

/* Since this minor version. */
#define MINOR 3U

static int call(struct dlx_client *c, Dlx__Wire__Packet *request, int *ret_sock)
{
    const Dlx__Wire__Packet *reply;
    int r = dlx__call_lock(c);
    if (r < 0)
        return r;
    if (c->minor < MINOR)
        r = dlx__fail(DLX_E_VERSION,
                      "dlpackd at %s speaks protocol %u.%u; GPU memory that outlives its publisher "
                      "needs %u.%u",
                      c->path, DLX_PROTO_MAJOR, c->minor, DLX_PROTO_MAJOR, MINOR);
    else
        r = dlx__call_round_trip(c, request, DLX__WIRE__PACKET__BODY_GPU_SOCKET, 1, &reply);
    if (r == 0)
        *ret_sock = dlx__packet_steal_fd(&c->call->packet, 0);
    dlx__lock_release(&c->lock);
    return r;
}

int dlx__call_gpu_keep(struct dlx_client *c, uint64_t publisher, int *ret_sock)
{
    Dlx__Wire__GpuKeep body = DLX__WIRE__GPU_KEEP__INIT;
    Dlx__Wire__Packet request = DLX__WIRE__PACKET__INIT;
    body.publisher = publisher;
    request.body_case = DLX__WIRE__PACKET__BODY_GPU_KEEP;
    request.gpu_keep = &body;
    return call(c, &request, ret_sock);
}

int dlx__call_gpu_get(struct dlx_client *c, uint64_t link, uint64_t origin, uint64_t allocation,
                      int *ret_sock)
{
    Dlx__Wire__GpuGet body = DLX__WIRE__GPU_GET__INIT;
    Dlx__Wire__Packet request = DLX__WIRE__PACKET__INIT;
    body.link = link;
    body.origin = origin;
    body.allocation = allocation;
    request.body_case = DLX__WIRE__PACKET__BODY_GPU_GET;
    request.gpu_get = &body;
    return call(c, &request, ret_sock);
}
