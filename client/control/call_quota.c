/* SPDX-License-Identifier: Apache-2.0 */

/* dlx_list_quotas(). */

#include "client/control/call.h"
#include "client/control/call_wire.h"
#include "client/control/reconnect.h"
#include <stdio.h>
#include <string.h>

/* Since this minor version. */
#define MINOR       5U
#define ENTRIES_MAX 32U

/* Of one user. */
struct page {
    struct dlx_quota_info entries[ENTRIES_MAX];
    size_t n;
    bool more;
};

static int copy_quotas(const struct dlx_client *c, const Dlx__Wire__QuotaList *list,
                       struct page *ret)
{
    if (list->n_entries > ENTRIES_MAX || (list->more && !*list->socket))
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

static int ask(struct dlx_client *c, Dlx__Wire__Packet *request, struct page *ret)
{
    const Dlx__Wire__Packet *reply;
    int r = dlx__call_lock(c);
    if (r < 0)
        return r;
    if (c->minor < MINOR)
        r = dlx__fail(DLX_E_VERSION,
                      "dlpackd at %s speaks protocol %u.%u; quotas are told since %u.%u", c->path,
                      DLX_PROTO_MAJOR, c->minor, DLX_PROTO_MAJOR, MINOR);
    else
        r = dlx__call_round_trip(c, request, DLX__WIRE__PACKET__BODY_QUOTA_LIST, 0, &reply);
    if (r == 0)
        r = copy_quotas(c, reply->quota_list, ret);
    dlx__lock_release(&c->lock);
    return r;
}

/* The callback runs without the lock: it may make calls of its own. */
int dlx_list_quotas(struct dlx_client *c, dlx_quota_info_fn fn, void *userdata)
{
    Dlx__Wire__ListQuotas body = DLX__WIRE__LIST_QUOTAS__INIT;
    Dlx__Wire__Packet request = DLX__WIRE__PACKET__INIT;
    struct page page = {.more = true};
    char after[sizeof page.entries[0].socket] = "";
    dlx__error_clear();
    if (!c || !fn)
        return DLX_NAME_NULL(0, "dlx_list_quotas", {"client", c}, {"fn", (void *)(uintptr_t)fn});
    if (dlx__forked(c->generation))
        return dlx__fail_forked(c->generation);
    int r = dlx__client_ensure(c);
    if (r < 0)
        return r;
    body.after_socket = after;
    request.body_case = DLX__WIRE__PACKET__BODY_LIST_QUOTAS;
    request.list_quotas = &body;
    while (page.more) {
        r = ask(c, &request, &page);
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
