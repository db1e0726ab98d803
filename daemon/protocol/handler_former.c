/* SPDX-License-Identifier: Apache-2.0 */
#include "common/error.h"
#include "daemon/base/log.h"
#include "daemon/objects/connection.h"
#include "daemon/objects/former.h"
#include "daemon/protocol/handler.h"

/* The client goes on without, and tries again only with its next object. Returns `r`. */
static int tell_failure(const struct dlxd_client *client, int r)
{
    dlxd_log_client(dlxd_principal_number(client->principal), DLXD_LOG_WARNING,
                    "what %s (pid %d) keeps from before this connection is not counted: %s",
                    client->name, (int)client->pid, dlx__error_message());
    return r;
}

int dlxd_handle_former_new(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    const Dlx__Wire__FormerNew *request = packet->former_new;
    Dlx__Wire__FormerNewReply body = DLX__WIRE__FORMER_NEW_REPLY__INIT;
    Dlx__Wire__Packet reply = DLX__WIRE__PACKET__INIT;
    int fd;
    int r = dlxd_former_new(client, request->n_regions, request->n_sources, &body.page_size, &fd);
    if (r < 0)
        return tell_failure(client, r);
    dlx_cleanup(dlx__closep) int writer = fd;
    reply.serial = packet->serial;
    reply.body_case = DLX__WIRE__PACKET__BODY_FORMER_NEW_REPLY;
    reply.former_new_reply = &body;
    return dlxd_client_send_fds(client, &reply, &writer, 1);
}

int dlxd_handle_former_ready(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    const Dlx__Wire__FormerReady *request = packet->former_ready;
    int r = dlxd_former_ready(client, request->n_regions, request->n_sources);
    return r < 0 ? tell_failure(client, r) : dlxd_reply_ok(client, packet);
}
