/* SPDX-License-Identifier: Apache-2.0 */
#include "common/util.h"
#include "daemon/objects/connection.h"
#include "daemon/objects/observer.h"
#include "daemon/protocol/handler.h"

int dlxd_handle_observe(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    Dlx__Wire__ObserveReply body = DLX__WIRE__OBSERVE_REPLY__INIT;
    Dlx__Wire__Packet reply = DLX__WIRE__PACKET__INIT;
    struct dlxd_observer *observer;
    int theirs;
    int r = dlxd_observer_new(&observer, client, packet->observe->topic, packet->observe->kinds,
                              &theirs);
    if (r < 0)
        return r;
    dlx_cleanup(dlx__closep) int fd = theirs;
    reply.serial = packet->serial;
    reply.body_case = DLX__WIRE__PACKET__BODY_OBSERVE_REPLY;
    reply.observe_reply = &body;
    r = dlxd_client_send_fds(client, &reply, &fd, 1);
    if (r < 0)
        dlxd_observer_free(observer);
    return r;
}
