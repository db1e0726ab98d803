/* SPDX-License-Identifier: Apache-2.0 */
#include "client/control/call.h"
#include "client/control/call_wire.h"
#include "ring/layout.h"

int dlx__call_former_new(struct dlx_client *c, uint32_t n_regions, uint32_t n_sources,
                         uint64_t *ret_size, int *ret_fd)
{
    Dlx__Wire__FormerNew body = DLX__WIRE__FORMER_NEW__INIT;
    Dlx__Wire__Packet request = DLX__WIRE__PACKET__INIT;
    const Dlx__Wire__Packet *reply;
    body.n_regions = n_regions;
    body.n_sources = n_sources;
    request.body_case = DLX__WIRE__PACKET__BODY_FORMER_NEW;
    request.former_new = &body;
    int r = dlx__call_round_trip_within(c, DLX_RECONNECT_PATIENCE_NS, &request,
                                        DLX__WIRE__PACKET__BODY_FORMER_NEW_REPLY, 1, &reply);
    if (r < 0)
        return r;
    if (reply->former_new_reply->page_size != dlx_shm_former_size(n_regions, n_sources))
        return dlx__fail(DLX_E_PROTOCOL, "former page of another size than asked for");
    *ret_size = reply->former_new_reply->page_size;
    *ret_fd = dlx__packet_steal_fd(&c->call->packet, 0);
    return 0;
}

int dlx__call_former_ready(struct dlx_client *c, uint32_t n_regions, uint32_t n_sources)
{
    Dlx__Wire__FormerReady body = DLX__WIRE__FORMER_READY__INIT;
    Dlx__Wire__Packet request = DLX__WIRE__PACKET__INIT;
    const Dlx__Wire__Packet *reply;
    body.n_regions = n_regions;
    body.n_sources = n_sources;
    request.body_case = DLX__WIRE__PACKET__BODY_FORMER_READY;
    request.former_ready = &body;
    return dlx__call_round_trip_within(c, DLX_RECONNECT_PATIENCE_NS, &request,
                                       DLX__WIRE__PACKET__BODY_OK, 0, &reply);
}
