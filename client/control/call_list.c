/* SPDX-License-Identifier: Apache-2.0 */

/* The public calls that only ask the daemon: dlx_list_publishers(), dlx_list_links(),
 * dlx_client_get_daemon_info(), dlx_list_quotas(). */

#include "client/control/call.h"
#include "client/control/call_wire.h"
#include "client/control/connection.h"
#include "common/memory.h"
#include "common/pid_namespace.h"
#include "common/topic.h"
#include <stdio.h>
#include <string.h>

/* Minor versions: since when something is told. */
#define BEHIND_SINCE  6U
#define REFUSED_SINCE 7U
#define GONE_SINCE    7U
#define TIMES_SINCE   10U

static void publisher_info(const struct dlx_client *c, const Dlx__Wire__PublisherEntry *e,
                           struct dlx_publisher_info *ret)
{
    *ret = (struct dlx_publisher_info){
        .size = sizeof *ret,
        .publisher = e->publisher,
        .published = e->published,
        .published_bytes = e->published_bytes,
        .arena_bytes = e->arena_bytes,
        .control_bytes = e->control_bytes,
        .pid = e->pid,
        .uid = e->uid,
        .n_subscribers = e->n_subscribers,
        .n_arenas = e->n_arenas,
        .depth = e->depth,
        .history = e->history,
        .on_full = dlx__call_on_full(e->on_full),
        .retain = e->retain,
        .retained = e->retained,
        .refused = c->minor < REFUSED_SINCE ? DLX_REFUSED_UNKNOWN : e->refused,
        .former = e->former,
        .copied = c->minor < TIMES_SINCE ? DLX_FIGURE_UNKNOWN : e->copied,
        .copied_bytes = c->minor < TIMES_SINCE ? DLX_FIGURE_UNKNOWN : e->copied_bytes,
        .blocked_ns = c->minor < TIMES_SINCE ? DLX_FIGURE_UNKNOWN : e->blocked_ns,
        .blocked_at_ns = e->blocked_at_ns,
        .for_everybody = e->for_everybody,
    };
    dlx__call_copy_text(ret->topic, sizeof ret->topic, e->topic);
    dlx__call_copy_text(ret->client_name, sizeof ret->client_name, e->client_name);
}

static void link_info(const struct dlx_client *c, const Dlx__Wire__LinkEntry *e,
                      struct dlx_link_info *ret)
{
    *ret = (struct dlx_link_info){
        .size = sizeof *ret,
        .link = e->link,
        .publisher = e->publisher,
        .taken = e->taken,
        .skipped = e->skipped,
        .lost = e->lost,
        .pid = e->pid,
        .uid = e->uid,
        .n_held = e->n_held,
        .max_held = e->max_held,
        .mode = e->mode,
        .reliable = e->reliable,
        .blocks = e->blocks,
        .joining = e->joining,
        .group = e->group,
        .is_publisher = e->is_publisher,
        .former_bytes = e->former_bytes,
        .behind = c->minor < BEHIND_SINCE ? DLX_BEHIND_UNKNOWN : e->behind,
        .next_ns = e->next_ns,
        .held_ns = e->held_ns,
    };
    dlx__call_copy_text(ret->client_name, sizeof ret->client_name, e->client_name);
}

int dlx__call_begin_list(struct dlx_client *c, const char *call, const void *fn, const char *topic)
{
    dlx__error_clear();
    int r = DLX_NAME_NULL(0, call, {"client", c}, {"fn", fn});
    if (r == 0 && topic)
        r = dlx__pattern_check(topic);
    return r == 0 ? dlx__client_ensure(c) : r;
}

void *dlx__call_new_page(size_t entry_size)
{
    void *page = malloc(DLX_CALL_PAGE_MAX * entry_size);
    if (!page)
        (void)dlx__fail(DLX_E_NO_MEMORY, "out of memory for a page of the list");
    return page;
}

int dlx__call_check_list(const struct dlx_client *c, size_t n, bool more)
{
    if (n > DLX_CALL_PAGE_MAX || (n == 0 && more))
        return dlx__fail(DLX_E_PROTOCOL, "list of %zu entries from dlpackd at %s", n, c->path);
    return 0;
}

/* The callback runs without the lock: it may make calls of its own. So a page is copied first. */
static int list_publishers(struct dlx_client *c, const char *topic, bool gone,
                           dlx_publisher_info_fn fn, void *userdata)
{
    Dlx__Wire__ListPublishers body = DLX__WIRE__LIST_PUBLISHERS__INIT;
    Dlx__Wire__Packet request = DLX_PACKET(LIST_PUBLISHERS, list_publishers, &body);
    const Dlx__Wire__Packet *reply;
    char after[DLX_TOPIC_MAX + 1] = "";
    bool more = true;
    int r = dlx__call_begin_list(c, gone ? "dlx_list_gone_publishers" : "dlx_list_publishers",
                                 (void *)(uintptr_t)fn, topic);
    if (r < 0)
        return r;
    dlx_cleanup(dlx__freep) struct dlx_publisher_info *page = dlx__call_new_page(sizeof *page);
    if (!page)
        return DLX_E_NO_MEMORY;
    body.topic = (char *)(uintptr_t)(topic ? topic : "");
    body.after_topic = after;
    body.gone = gone;
    while (more) {
        r = dlx__call_ask_since(c, gone ? GONE_SINCE : 0, "a list of publishers that have gone",
                                &request, DLX__WIRE__PACKET__BODY_PUBLISHER_LIST, &reply);
        if (r < 0)
            return r;
        const Dlx__Wire__PublisherList *list = reply->publisher_list;
        size_t n = list->n_entries;
        more = list->more;
        r = dlx__call_check_list(c, n, more);
        for (size_t i = 0; r == 0 && i < n; i++)
            publisher_info(c, list->entries[i], &page[i]);
        if (r == 0 && gone && n > 0)
            body.after_gone = list->entries[n - 1]->gone;
        dlx__lock_release(&c->lock);
        for (size_t i = 0; r == 0 && i < n; i++)
            r = fn(&page[i], userdata);
        if (r != 0)
            return r;
        if (n > 0) {
            if (!gone)
                memcpy(after, page[n - 1].topic, sizeof after);
            body.after_publisher = page[n - 1].publisher;
        }
    }
    return 0;
}

int dlx_list_publishers(struct dlx_client *c, const char *topic, dlx_publisher_info_fn fn,
                        void *userdata)
{
    return list_publishers(c, topic, false, fn, userdata);
}

int dlx_list_gone_publishers(struct dlx_client *c, const char *topic, dlx_publisher_info_fn fn,
                             void *userdata)
{
    return list_publishers(c, topic, true, fn, userdata);
}

int dlx__call_list_links(struct dlx_client *c, uint64_t publisher, int64_t timeout_ns,
                         dlx_link_info_fn fn, void *userdata, char ret_refusal[DLX_REFUSAL_SIZE])
{
    Dlx__Wire__ListLinks body = DLX__WIRE__LIST_LINKS__INIT;
    Dlx__Wire__Packet request = DLX_PACKET(LIST_LINKS, list_links, &body);
    const Dlx__Wire__Packet *reply;
    bool more = true;
    dlx_cleanup(dlx__freep) struct dlx_link_info *page = dlx__call_new_page(sizeof *page);
    if (!page)
        return DLX_E_NO_MEMORY;
    body.publisher = publisher;
    ret_refusal[0] = '\0';
    while (more) {
        int r =
            dlx__call_ask(c, timeout_ns, &request, DLX__WIRE__PACKET__BODY_LINK_LIST, 0, &reply);
        if (r < 0)
            return r;
        const Dlx__Wire__LinkList *list = reply->link_list;
        size_t n = list->n_entries;
        more = list->more;
        r = dlx__call_check_list(c, n, more);
        for (size_t i = 0; r == 0 && i < n; i++)
            link_info(c, list->entries[i], &page[i]);
        (void)snprintf(ret_refusal, DLX_REFUSAL_SIZE, "%s", list->refusal);
        dlx__lock_release(&c->lock);
        for (size_t i = 0; r == 0 && i < n; i++)
            r = fn(&page[i], userdata);
        if (r != 0)
            return r;
        if (n > 0)
            body.after_link = page[n - 1].link;
    }
    return 0;
}

int dlx_list_links(struct dlx_client *c, uint64_t publisher, dlx_link_info_fn fn, void *userdata)
{
    int r = dlx__call_begin_list(c, "dlx_list_links", (void *)(uintptr_t)fn, NULL);
    char refusal[DLX_REFUSAL_SIZE];
    return r < 0 ? r : dlx__call_list_links(c, publisher, c->timeout_ns, fn, userdata, refusal);
}

static uint32_t scope_of(uint64_t pid_namespace)
{
    uint64_t own = dlx__pid_namespace();
    if (pid_namespace == 0 || own == 0)
        return DLX_PID_UNKNOWN;
    return pid_namespace == own ? DLX_PID_HERE : DLX_PID_ELSEWHERE;
}

int dlx_client_get_daemon_info(struct dlx_client *c, struct dlx_daemon_info *ret)
{
    Dlx__Wire__DaemonInfo body = DLX__WIRE__DAEMON_INFO__INIT;
    Dlx__Wire__Packet request = DLX_PACKET(DAEMON_INFO, daemon_info, &body);
    const Dlx__Wire__Packet *reply;
    struct dlx_daemon_info got = {.size = sizeof got};
    dlx__error_clear();
    if (!c || !ret)
        return DLX_NAME_NULL(0, "dlx_client_get_daemon_info", {"client", c}, {"ret", ret});
    int r = dlx__client_ensure(c);
    if (r == 0)
        r = dlx__call_ask(c, c->timeout_ns, &request, DLX__WIRE__PACKET__BODY_DAEMON_INFO_REPLY, 0,
                          &reply);
    if (r < 0)
        return r;
    const Dlx__Wire__DaemonInfoReply *d = reply->daemon_info_reply;
    got.pid = d->pid;
    got.protocol_major = d->major;
    got.protocol_minor = d->minor;
    got.n_clients = d->n_clients;
    got.n_publishers = d->n_publishers;
    got.n_links = d->n_links;
    got.n_topics = d->n_topics;
    got.shared_bytes = d->shared_bytes;
    got.former_bytes = d->former_bytes;
    got.uptime_ns = d->uptime_ns;
    got.longest_turn_ns = d->longest_turn_ns;
    got.refused_access = d->refused_access;
    got.refused_limit = d->refused_limit;
    got.refused_qos = d->refused_qos;
    got.refused_other = d->refused_other;
    got.reclaimed = d->reclaimed;
    got.pid_scope = scope_of(d->pid_namespace);
    dlx__call_copy_text(got.version, sizeof got.version, d->version);
    dlx__call_copy_text(got.socket, sizeof got.socket, d->socket);
    dlx__call_copy_text(got.memory, sizeof got.memory, c->memory->name);
    dlx__call_copy_text(got.lack, sizeof got.lack, d->lack);
    dlx__lock_release(&c->lock);
    return dlx__args_return(ret, sizeof got, &got, sizeof got);
}

/* ---- quotas ---------------------------------------------------------------------------------- */

/* Since this minor version. */
#define QUOTA_MINOR 5U
#define QUOTAS_MAX  32U

/* Of one user. */
struct quota_page {
    struct dlx_quota_info entries[QUOTAS_MAX];
    size_t n;
    bool more;
};

static int copy_quotas(const struct dlx_client *c, const Dlx__Wire__QuotaList *list,
                       struct quota_page *ret)
{
    if (list->n_entries > QUOTAS_MAX || (list->more && !*list->socket))
        return dlx__fail(DLX_E_PROTOCOL, "list of %zu quotas from dlpackd at %s", list->n_entries,
                         c->path);
    ret->n = list->n_entries;
    ret->more = list->more;
    for (size_t i = 0; i < ret->n; i++) {
        const Dlx__Wire__QuotaEntry *from = list->entries[i];
        struct dlx_quota_info *to = &ret->entries[i];
        *to = (struct dlx_quota_info){
            .size = sizeof *to, .used = from->used, .max = from->max, .uid = list->uid};
        (void)snprintf(to->socket, sizeof to->socket, "%s", list->socket);
        (void)snprintf(to->quota_class, sizeof to->quota_class, "%s", list->quota_class);
        (void)snprintf(to->name, sizeof to->name, "%s", from->name);
    }
    return 0;
}

static int ask_for_quotas(struct dlx_client *c, Dlx__Wire__Packet *request, struct quota_page *ret)
{
    const Dlx__Wire__Packet *reply;
    int r = dlx__call_ask_since(c, QUOTA_MINOR, "a list of quotas", request,
                                DLX__WIRE__PACKET__BODY_QUOTA_LIST, &reply);
    if (r < 0)
        return r;
    r = copy_quotas(c, reply->quota_list, ret);
    dlx__lock_release(&c->lock);
    return r;
}

/* The callback runs without the lock: it may make calls of its own. */
int dlx_list_quotas(struct dlx_client *c, dlx_quota_info_fn fn, void *userdata)
{
    Dlx__Wire__ListQuotas body = DLX__WIRE__LIST_QUOTAS__INIT;
    Dlx__Wire__Packet request = DLX_PACKET(LIST_QUOTAS, list_quotas, &body);
    struct quota_page page = {.more = true};
    char after[sizeof page.entries[0].socket] = "";
    dlx__error_clear();
    if (!c || !fn)
        return DLX_NAME_NULL(0, "dlx_list_quotas", {"client", c}, {"fn", (void *)(uintptr_t)fn});
    int r = dlx__client_ensure(c);
    if (r < 0)
        return r;
    body.after_socket = after;
    while (page.more) {
        r = ask_for_quotas(c, &request, &page);
        for (size_t i = 0; r == 0 && i < page.n; i++)
            r = fn(&page.entries[i], userdata);
        if (r != 0)
            return r;
        if (page.n > 0) {
            body.after_uid = page.entries[0].uid;
            memcpy(after, page.entries[0].socket, sizeof after);
        }
    }
    return 0;
}
