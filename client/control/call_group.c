/* SPDX-License-Identifier: Apache-2.0 */

/* The public calls about work queues that only ask the daemon: dlx_list_groups(),
 * dlx_list_claims(), dlx_drop_queue(). */

#include "client/control/call.h"
#include "client/control/call_wire.h"
#include "client/control/connection.h"
#include "common/topic.h"
#include <stdio.h>
#include <string.h>

static void group_info(const Dlx__Wire__GroupEntry *e, struct dlx_group_info *ret)
{
    *ret = (struct dlx_group_info){
        .size = sizeof *ret,
        .publisher = e->publisher,
        .group = e->group,
        .uid = e->uid,
        .n_workers = e->n_workers,
        .max_attempts = e->max_attempts,
        .lease_ns = (int64_t)DLX_MIN(e->lease_ns, (uint64_t)INT64_MAX),
        .declared = e->declared,
        .gone = e->gone,
        .waiting = e->waiting,
        .in_flight = e->in_flight,
        .done = e->done,
        .redelivered = e->redelivered,
        .dead = e->dead,
        .lost = e->lost,
        .oldest = e->oldest,
        .oldest_ns = e->oldest_ns,
        .pid = e->pid,
        .away = e->away,
    };
    (void)snprintf(ret->topic, sizeof ret->topic, "%s", e->topic);
    (void)snprintf(ret->name, sizeof ret->name, "%s", e->name);
    (void)snprintf(ret->client_name, sizeof ret->client_name, "%s", e->client_name);
}

static void claim_info(const Dlx__Wire__ClaimEntry *e, struct dlx_claim_info *ret)
{
    *ret = (struct dlx_claim_info){
        .size = sizeof *ret,
        .seq = e->seq,
        .published_ns = e->published_ns,
        .link = e->link,
        .pid = e->pid,
        .uid = e->uid,
        .attempt = e->attempt,
    };
    (void)snprintf(ret->client_name, sizeof ret->client_name, "%s", e->client_name);
}

/* Asks the daemon. On success the caller has the lock. */
static int ask_about_groups(struct dlx_client *c, Dlx__Wire__Packet *request,
                            Dlx__Wire__Packet__BodyCase expected, const Dlx__Wire__Packet **ret)
{
    return dlx__call_ask_since(c, DLX_GROUPS_SINCE, "a request about work queues", request,
                               expected, ret);
}

/* The callback runs without the lock: it may make calls of its own. So a page is copied first. */
int dlx_list_groups(struct dlx_client *c, const char *topic, dlx_group_info_fn fn, void *userdata)
{
    Dlx__Wire__ListGroups body = DLX__WIRE__LIST_GROUPS__INIT;
    Dlx__Wire__Packet request = DLX_PACKET(LIST_GROUPS, list_groups, &body);
    const Dlx__Wire__Packet *reply;
    char after[DLX_TOPIC_MAX + 1] = "";
    bool more = true;
    int r = dlx__call_begin_list(c, "dlx_list_groups", (void *)(uintptr_t)fn, topic);
    if (r < 0)
        return r;
    dlx_cleanup(dlx__freep) struct dlx_group_info *page = dlx__call_new_page(sizeof *page);
    if (!page)
        return DLX_E_NO_MEMORY;
    body.topic = (char *)(uintptr_t)(topic ? topic : "");
    body.after_topic = after;
    while (more) {
        r = ask_about_groups(c, &request, DLX__WIRE__PACKET__BODY_GROUP_LIST, &reply);
        if (r < 0)
            return r;
        const Dlx__Wire__GroupList *list = reply->group_list;
        size_t n = list->n_entries;
        more = list->more;
        r = dlx__call_check_list(c, n, more);
        for (size_t i = 0; r == 0 && i < n; i++)
            group_info(list->entries[i], &page[i]);
        dlx__lock_release(&c->lock);
        for (size_t i = 0; r == 0 && i < n; i++)
            r = fn(&page[i], userdata);
        if (r != 0)
            return r;
        if (n > 0) {
            memcpy(after, page[n - 1].topic, sizeof after);
            body.after_publisher = page[n - 1].publisher;
            body.after_group = page[n - 1].group;
        }
    }
    return 0;
}

int dlx_list_claims(struct dlx_client *c, uint64_t publisher, uint32_t group, dlx_claim_info_fn fn,
                    void *userdata)
{
    Dlx__Wire__ListClaims body = DLX__WIRE__LIST_CLAIMS__INIT;
    Dlx__Wire__Packet request = DLX_PACKET(LIST_CLAIMS, list_claims, &body);
    const Dlx__Wire__Packet *reply;
    bool more = true;
    int r = dlx__call_begin_list(c, "dlx_list_claims", (void *)(uintptr_t)fn, NULL);
    if (r < 0)
        return r;
    dlx_cleanup(dlx__freep) struct dlx_claim_info *page = dlx__call_new_page(sizeof *page);
    if (!page)
        return DLX_E_NO_MEMORY;
    body.publisher = publisher;
    body.group = group;
    while (more) {
        r = ask_about_groups(c, &request, DLX__WIRE__PACKET__BODY_CLAIM_LIST, &reply);
        if (r < 0)
            return r;
        const Dlx__Wire__ClaimList *list = reply->claim_list;
        size_t n = list->n_entries;
        more = list->more;
        r = dlx__call_check_list(c, n, more);
        for (size_t i = 0; r == 0 && i < n; i++)
            claim_info(list->entries[i], &page[i]);
        dlx__lock_release(&c->lock);
        for (size_t i = 0; r == 0 && i < n; i++)
            r = fn(&page[i], userdata);
        if (r != 0)
            return r;
        if (n > 0)
            body.after_seq = page[n - 1].seq;
    }
    return 0;
}

int dlx_drop_queue(struct dlx_client *c, const char *topic)
{
    Dlx__Wire__GroupsDrop body = DLX__WIRE__GROUPS_DROP__INIT;
    Dlx__Wire__Packet request = DLX_PACKET(GROUPS_DROP, groups_drop, &body);
    const Dlx__Wire__Packet *reply;
    dlx__error_clear();
    int r = DLX_NAME_NULL(0, "dlx_drop_queue", {"client", c}, {"topic", topic});
    if (r == 0)
        r = dlx__client_ensure(c);
    if (r == 0)
        r = dlx__topic_check(topic);
    if (r < 0)
        return r;
    body.topic = (char *)(uintptr_t)topic;
    r = ask_about_groups(c, &request, DLX__WIRE__PACKET__BODY_RETAINED_DROP_REPLY, &reply);
    if (r == 0)
        dlx__lock_release(&c->lock);
    return r;
}
