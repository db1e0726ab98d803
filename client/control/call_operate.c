/* SPDX-License-Identifier: Apache-2.0 */

/* The public calls of operators: dlx_list_subscriptions(), dlx_list_refusals(), dlx_list_clients(),
 * dlx_kick(), dlx_kick_process(). */

#include "client/control/call.h"
#include "client/control/call_wire.h"
#include "client/control/connection.h"
#include "common/topic.h"
#include <stdio.h>
#include <string.h>

/* Since this minor version. */
#define OPERATE_SINCE 10U

/* ---- subscriptions ------------------------------------------------------------------------- */

static void subscription_info(const Dlx__Wire__SubscriptionEntry *e,
                              struct dlx_subscription_info *ret)
{
    *ret = (struct dlx_subscription_info){
        .size = sizeof *ret,
        .subscription = e->subscription,
        .client = e->client,
        .pid = e->pid,
        .uid = e->uid,
        .n_links = e->n_links,
        .mode = e->mode,
        .reliable = e->reliable,
        .accepts_unreliable = e->accepts_unreliable,
    };
    dlx__call_copy_text(ret->topic, sizeof ret->topic, e->topic);
    dlx__call_copy_text(ret->client_name, sizeof ret->client_name, e->client_name);
    dlx__call_copy_text(ret->group, sizeof ret->group, e->group);
    dlx__call_copy_text(ret->refusal, sizeof ret->refusal, e->refusal);
}

/* The callback runs without the lock: it may make calls of its own. So a page is copied first. */
int dlx_list_subscriptions(struct dlx_client *c, const char *topic, bool unserved,
                           dlx_subscription_info_fn fn, void *userdata)
{
    Dlx__Wire__ListSubscriptions body = DLX__WIRE__LIST_SUBSCRIPTIONS__INIT;
    Dlx__Wire__Packet request = DLX_PACKET(LIST_SUBSCRIPTIONS, list_subscriptions, &body);
    const Dlx__Wire__Packet *reply;
    char after[DLX_TOPIC_MAX + 1] = "";
    bool more = true;
    int r = dlx__call_begin_list(c, "dlx_list_subscriptions", (void *)(uintptr_t)fn, topic);
    if (r < 0)
        return r;
    dlx_cleanup(dlx__freep) struct dlx_subscription_info *page = dlx__call_new_page(sizeof *page);
    if (!page)
        return DLX_E_NO_MEMORY;
    body.topic = (char *)(uintptr_t)(topic ? topic : "");
    body.after_topic = after;
    body.unserved = unserved;
    while (more) {
        r = dlx__call_ask_since(c, OPERATE_SINCE, "a list of subscriptions", &request,
                                DLX__WIRE__PACKET__BODY_SUBSCRIPTION_LIST, &reply);
        if (r < 0)
            return r;
        const Dlx__Wire__SubscriptionList *list = reply->subscription_list;
        size_t n = list->n_entries;
        more = list->more;
        r = dlx__call_check_list(c, n, more);
        for (size_t i = 0; r == 0 && i < n; i++)
            subscription_info(list->entries[i], &page[i]);
        dlx__lock_release(&c->lock);
        for (size_t i = 0; r == 0 && i < n; i++)
            r = fn(&page[i], userdata);
        if (r != 0)
            return r;
        if (n > 0) {
            memcpy(after, page[n - 1].topic, sizeof after);
            body.after_subscription = page[n - 1].subscription;
        }
    }
    return 0;
}

/* ---- refusals ------------------------------------------------------------------------------ */

/* Twice what the daemon keeps. One that is renewed moves to the end of the list, behind at most all
 * others, so each is told although others are renewed again and again. */
#define REFUSALS_TOLD_MAX 256U

static void refusal_info(const Dlx__Wire__RefusalEntry *e, struct dlx_refusal_info *ret)
{
    *ret = (struct dlx_refusal_info){
        .size = sizeof *ret,
        .number = e->number,
        .code = e->code,
        .pid = e->pid,
        .uid = e->uid,
        .at_ns = e->at_ns,
        .n = e->n,
        .subscription = e->subscription,
    };
    dlx__call_copy_text(ret->topic, sizeof ret->topic, e->topic);
    dlx__call_copy_text(ret->what, sizeof ret->what, e->what);
    dlx__call_copy_text(ret->client_name, sizeof ret->client_name, e->client_name);
    dlx__call_copy_text(ret->text, sizeof ret->text, e->text);
    dlx__call_copy_text(ret->rule, sizeof ret->rule, e->rule);
}

int dlx_list_refusals(struct dlx_client *c, const char *topic, dlx_refusal_info_fn fn,
                      void *userdata)
{
    Dlx__Wire__ListRefusals body = DLX__WIRE__LIST_REFUSALS__INIT;
    Dlx__Wire__Packet request = DLX_PACKET(LIST_REFUSALS, list_refusals, &body);
    const Dlx__Wire__Packet *reply;
    bool more = true;
    size_t n_told = 0;
    int r = dlx__call_begin_list(c, "dlx_list_refusals", (void *)(uintptr_t)fn, topic);
    if (r < 0)
        return r;
    dlx_cleanup(dlx__freep) struct dlx_refusal_info *page = dlx__call_new_page(sizeof *page);
    if (!page)
        return DLX_E_NO_MEMORY;
    body.topic = (char *)(uintptr_t)(topic ? topic : "");
    while (more && n_told < REFUSALS_TOLD_MAX) {
        r = dlx__call_ask_since(c, OPERATE_SINCE, "a list of refusals", &request,
                                DLX__WIRE__PACKET__BODY_REFUSAL_LIST, &reply);
        if (r < 0)
            return r;
        const Dlx__Wire__RefusalList *list = reply->refusal_list;
        size_t n = list->n_entries;
        more = list->more;
        r = dlx__call_check_list(c, n, more);
        for (size_t i = 0; r == 0 && i < n; i++)
            refusal_info(list->entries[i], &page[i]);
        dlx__lock_release(&c->lock);
        for (size_t i = 0; r == 0 && i < n; i++)
            r = fn(&page[i], userdata);
        if (r != 0)
            return r;
        n_told += n;
        if (n > 0)
            body.after = page[n - 1].number;
    }
    return 0;
}

/* ---- clients ------------------------------------------------------------------------------- */

static void client_info(const Dlx__Wire__ClientEntry *e, struct dlx_client_info *ret)
{
    *ret = (struct dlx_client_info){
        .size = sizeof *ret,
        .client = e->client,
        .shared_bytes = e->shared_bytes,
        .pid = e->pid,
        .uid = e->uid,
        .n_publishers = e->n_publishers,
        .n_subscriptions = e->n_subscriptions,
        .n_links = e->n_links,
        .protocol_minor = e->minor,
        .own = e->own,
    };
    dlx__call_copy_text(ret->client_name, sizeof ret->client_name, e->client_name);
    dlx__call_copy_text(ret->socket, sizeof ret->socket, e->socket);
}

int dlx_list_clients(struct dlx_client *c, dlx_client_info_fn fn, void *userdata)
{
    Dlx__Wire__ListClients body = DLX__WIRE__LIST_CLIENTS__INIT;
    Dlx__Wire__Packet request = DLX_PACKET(LIST_CLIENTS, list_clients, &body);
    const Dlx__Wire__Packet *reply;
    bool more = true;
    int r = dlx__call_begin_list(c, "dlx_list_clients", (void *)(uintptr_t)fn, NULL);
    if (r < 0)
        return r;
    dlx_cleanup(dlx__freep) struct dlx_client_info *page = dlx__call_new_page(sizeof *page);
    if (!page)
        return DLX_E_NO_MEMORY;
    while (more) {
        r = dlx__call_ask_since(c, OPERATE_SINCE, "a list of clients", &request,
                                DLX__WIRE__PACKET__BODY_CLIENT_LIST, &reply);
        if (r < 0)
            return r;
        const Dlx__Wire__ClientList *list = reply->client_list;
        size_t n = list->n_entries;
        more = list->more;
        r = dlx__call_check_list(c, n, more);
        for (size_t i = 0; r == 0 && i < n; i++)
            client_info(list->entries[i], &page[i]);
        dlx__lock_release(&c->lock);
        for (size_t i = 0; r == 0 && i < n; i++)
            r = fn(&page[i], userdata);
        if (r != 0)
            return r;
        if (n > 0)
            body.after_client = page[n - 1].client;
    }
    return 0;
}

/* ---- the end of a connection --------------------------------------------------------------- */

static int call_kick(struct dlx_client *c, const char *call, uint64_t client, uint32_t pid,
                     struct dlx_kicked *ret)
{
    Dlx__Wire__Kick body = DLX__WIRE__KICK__INIT;
    Dlx__Wire__Packet request = DLX_PACKET(KICK, kick, &body);
    const Dlx__Wire__Packet *reply;
    struct dlx_kicked got = {.size = sizeof got};
    dlx__error_clear();
    if (!c)
        return DLX_NAME_NULL(0, call, {"client", c});
    if (client == 0 && pid == 0)
        return dlx__fail(DLX_E_INVALID, "%s: 0 is no client and no process", call);
    int r = dlx__client_ensure(c);
    if (r < 0)
        return r;
    body.client = client;
    body.pid = pid;
    r = dlx__call_ask_since(c, OPERATE_SINCE, "kicking a program", &request,
                            DLX__WIRE__PACKET__BODY_KICK_REPLY, &reply);
    if (r < 0)
        return r;
    got.n_kicked = reply->kick_reply->n_kicked;
    got.n_older = reply->kick_reply->n_older;
    dlx__lock_release(&c->lock);
    return ret ? dlx__args_return(ret, sizeof got, &got, sizeof got) : 0;
}

int dlx_kick(struct dlx_client *c, uint64_t client, struct dlx_kicked *ret)
{
    return call_kick(c, "dlx_kick", client, 0, ret);
}

int dlx_kick_process(struct dlx_client *c, uint32_t pid, struct dlx_kicked *ret)
{
    return call_kick(c, "dlx_kick_process", 0, pid, ret);
}
