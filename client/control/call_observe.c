/* SPDX-License-Identifier: Apache-2.0 */

/* What observers ask the daemon, and what it tells them. */

#include "client/control/call.h"
#include "client/control/call_wire.h"
#include "common/memory.h"
#include <stdio.h>
#include <string.h>

int dlx__call_observe(struct dlx_client *c, const char *topic, uint32_t kinds, int64_t timeout_ns,
                      int *ret_sock)
{
    Dlx__Wire__Observe body = DLX__WIRE__OBSERVE__INIT;
    Dlx__Wire__Packet request = DLX_PACKET(OBSERVE, observe, &body);
    const Dlx__Wire__Packet *reply;
    body.topic = (char *)(uintptr_t)topic;
    body.kinds = kinds;
    int r = dlx__call_lock_within(c, timeout_ns);
    if (r < 0)
        return r;
    r = dlx__call_check_minor(c, DLX_OBSERVERS_SINCE, "an observer");
    if (r == 0)
        r = dlx__call_round_trip_within(c, timeout_ns, &request,
                                        DLX__WIRE__PACKET__BODY_OBSERVE_REPLY, 1, &reply);
    if (r == 0)
        *ret_sock = dlx__packet_steal_fd(&c->call->packet, 0);
    dlx__lock_release(&c->lock);
    return r;
}

static void observed_text(char *dst, size_t size, const char *src)
{
    (void)snprintf(dst, size, "%s", src);
}

static void observed_publisher(const Dlx__Wire__ObservedPublisher *e, struct dlx_observed *ret)
{
    *ret = (struct dlx_observed){
        .size = sizeof *ret,
        .kind = DLX_OBSERVED_PUBLISHER,
        .gone = e->gone,
        .own = e->own,
        .id = e->publisher,
        .pid = e->pid,
        .uid = e->uid,
        .retained = e->retained,
        .on_full = dlx__call_on_full(e->on_full),
        .depth = e->depth,
        .history = e->history,
        .retain = e->retain,
        .retain_for_ns = dlx__call_retain_for(e->latched, e->retain_for_ns),
        .n_groups = (uint32_t)e->n_groups,
        .groups = (const char *const *)e->groups,
    };
    observed_text(ret->topic, sizeof ret->topic, e->topic);
    observed_text(ret->client_name, sizeof ret->client_name, e->client_name);
}

static void observed_subscription(const Dlx__Wire__ObservedSubscription *e,
                                  struct dlx_observed *ret)
{
    *ret = (struct dlx_observed){
        .size = sizeof *ret,
        .kind = DLX_OBSERVED_SUBSCRIPTION,
        .gone = e->gone,
        .own = e->own,
        .id = e->subscription,
        .pid = e->pid,
        .uid = e->uid,
        .mode = e->mode,
        .reliable = e->reliable,
        .accepts_unreliable = e->accepts_unreliable,
    };
    observed_text(ret->topic, sizeof ret->topic, e->topic);
    observed_text(ret->client_name, sizeof ret->client_name, e->client_name);
    observed_text(ret->group, sizeof ret->group, e->group);
}

static int tell_observed(const Dlx__Wire__Observed *observed, const struct dlx_observed_fns *fns,
                         void *userdata)
{
    struct dlx_observed info;
    int r = 0;
    if (observed->restarts)
        fns->restarts(userdata);
    for (size_t i = 0; r == 0 && i < observed->n_publishers; i++) {
        if (observed->publishers[i]->n_groups > DLX_OBSERVED_GROUPS_MAX)
            return dlx__fail(DLX_E_PROTOCOL, "publisher with %zu groups from dlpackd",
                             observed->publishers[i]->n_groups);
        observed_publisher(observed->publishers[i], &info);
        r = fns->object(userdata, &info);
    }
    for (size_t i = 0; r == 0 && i < observed->n_subscriptions; i++) {
        observed_subscription(observed->subscriptions[i], &info);
        r = fns->object(userdata, &info);
    }
    if (r == 0 && observed->complete)
        fns->complete(userdata);
    return r;
}

int dlx__observed_read(int sock, const struct dlx_observed_fns *fns, void *userdata)
{
    struct dlx_call *call = malloc(sizeof *call);
    const Dlx__Wire__Packet *packet;
    if (!call)
        return dlx__fail(DLX_E_NO_MEMORY, "buffers of %zu bytes", sizeof *call);
    call->packet.n_fds = 0;
    int r = dlx__packet_recv(sock, &call->packet);
    if (r == 0)
        r = dlx__proto_unpack(&call->arena, call->packet.data, call->packet.size, &packet);
    if (r == 0 && packet->body_case != DLX__WIRE__PACKET__BODY_OBSERVED)
        r = dlx__fail(DLX_E_PROTOCOL, "unexpected %s from dlpackd", dlx__proto_name(packet));
    if (r == 0)
        r = tell_observed(packet->observed, fns, userdata);
    dlx__call_free(call);
    return r;
}
