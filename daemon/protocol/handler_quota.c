/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/connection.h"
#include "daemon/objects/drain.h"
#include "daemon/objects/former.h"
#include "daemon/users/outbox.h"
#include "daemon/protocol/handler.h"
#include <string.h>

static int compare(const struct dlxd_user *user, uid_t uid, const char *socket)
{
    if (user->uid != uid)
        return user->uid < uid ? -1 : 1;
    return strcmp(user->socket, socket);
}

/* Returns the next user in order; NULL: there is none. Only users with objects are listed. */
static const struct dlxd_user *next_user(const struct dlxd_users *users, uid_t uid,
                                         const char *socket)
{
    const struct dlxd_user *next = NULL;
    bool from_start = *socket == '\0';
    dlx_for_each (it, &users->users) {
        const struct dlxd_user *user = dlxd_container_of(it, struct dlxd_user, node);
        bool is_after = from_start || compare(user, uid, socket) > 0;
        if (is_after && (!next || compare(user, next->uid, next->socket) < 0))
            next = user;
    }
    return next;
}

struct entries {
    Dlx__Wire__QuotaEntry items[DLXD_N_RESOURCES];
    Dlx__Wire__QuotaEntry *pointers[DLXD_N_RESOURCES];
};

static void quota_handler_fill(Dlx__Wire__QuotaList *body, struct entries *entries,
                               const struct dlxd_user *user)
{
    body->uid = user->uid;
    body->socket = (char *)(uintptr_t)user->socket;
    body->quota_class =
        user->borrow_quota ? user->borrow_quota->name : (char *)(uintptr_t)DLXD_QUOTA_DEFAULT;
    uint64_t now = dlx__now_ns();
    body->n_entries = DLXD_N_RESOURCES;
    body->entries = entries->pointers;
    for (int i = 0; i < DLXD_N_RESOURCES; i++) {
        Dlx__Wire__QuotaEntry *entry = entries->pointers[i] = &entries->items[i];
        dlx__wire__quota_entry__init(entry);
        entry->name = (char *)(uintptr_t)dlxd_quota_key((enum dlxd_resource)i);
        entry->used = dlxd_user_used(user, (enum dlxd_resource)i, now);
        entry->max = dlxd_user_limit(user, (enum dlxd_resource)i);
    }
}

int dlxd_handle_list_quotas(struct dlxd_client *client, const Dlx__Wire__Packet *packet)
{
    const Dlx__Wire__ListQuotas *request = packet->list_quotas;
    const struct dlxd_user *own = client->user, *user = own;
    Dlx__Wire__QuotaList body = DLX__WIRE__QUOTA_LIST__INIT;
    Dlx__Wire__Packet reply = DLX__WIRE__PACKET__INIT;
    struct entries entries;
    /* What has gone, and was not looked at since, counts no more. */
    dlxd_drains_look_all(client->broker);
    dlxd_former_look_all(client->broker);
    dlxd_flights_look_all(&client->broker->users);
    bool sees_all = dlxd_policy_is_superuser(&client->broker->policy, client->principal);
    if (sees_all)
        user = next_user(own->users, request->after_uid, request->after_socket);
    else if (*request->after_socket)
        user = NULL;
    if (user)
        quota_handler_fill(&body, &entries, user);
    body.more = user && sees_all;
    reply.serial = packet->serial;
    reply.body_case = DLX__WIRE__PACKET__BODY_QUOTA_LIST;
    reply.quota_list = &body;
    dlxd_client_send(client, &reply);
    return 0;
}
