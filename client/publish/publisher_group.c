/* SPDX-License-Identifier: Apache-2.0 */
#include "client/publish/publisher_group.h"
#include "client/publish/publisher_link.h"
#include "ring/entry.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct dlx_writer_group *dlx__publisher_late_group(struct dlx_publisher *p, uint64_t to,
                                                   bool declared)
{
    struct dlx_writer_group *late = NULL;
    for (uint32_t i = 0; i < dlx__writer_n_groups(&p->core); i++) {
        struct dlx_writer_group *group = dlx__writer_group_at(&p->core, i);
        uint64_t passed = dlx__writer_group_passed(&p->core, group);
        if (passed >= to || (declared && !dlx__writer_group_is_declared(group)))
            continue;
        late = group;
        to = passed;
    }
    return late;
}

static const char *name_of(const struct dlx_publisher *p, const struct dlx_writer_group *group)
{
    if (dlx__writer_group_is_declared(group))
        return p->args.groups[dlx__writer_group_number(group) - 1];
    return dlx__publisher_link_of(dlx__writer_group_link_at(group, 0))->group;
}

uint32_t dlx__publisher_n_workers(const struct dlx_writer_group *group)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < dlx__writer_group_n_links(group); i++)
        n += dlx__publisher_link_receives(
            dlx__publisher_link_of(dlx__writer_group_link_at(group, i)));
    return n;
}

/* The worker that holds message n; NULL: none. It may have done it, and kept its tensors. */
static const struct dlx_publisher_link *find_holder(const struct dlx_writer_group *group,
                                                    uint64_t n)
{
    for (uint32_t i = 0; i < dlx__writer_group_n_links(group); i++) {
        const struct dlx_writer_link *link = dlx__writer_group_link_at(group, i);
        if (!dlx__writer_link_is_dead(link) && dlx__writer_link_holds(link, n))
            return dlx__publisher_link_of(link);
    }
    return NULL;
}

void dlx__publisher_name_link(const struct dlx_publisher *p, const struct dlx_publisher_link *link,
                              char ret[DLX_WHO_SIZE])
{
    const char *name = dlx__peers_name(&p->client->peers, link->peer);
    (void)snprintf(ret, DLX_WHO_SIZE, "%.64s%spid %u%s", name, *name ? " (" : "", link->peer->pid,
                   *name ? ")" : "");
}

/* ---- who is there -------------------------------------------------------------------------- */

/* The minor version since which daemons list links whose subscribers have yet to make a call, and
 * the groups of links. */
#define JOINING_SINCE 7U
#define GROUP_SINCE   9U

static void add_name(struct dlx_seen *seen, const char *name, uint32_t pid)
{
    size_t used = strlen(seen->text);
    for (uint32_t i = 0; i < DLX_MIN(seen->n, DLX_NAMES_MOST); i++)
        if (seen->pids[i] == pid) /* another subscription of it */
            return;
    if (seen->n < DLX_NAMES_MOST) {
        seen->pids[seen->n] = pid;
        (void)snprintf(seen->text + used, sizeof seen->text - used, "%s%.40s%spid %u%s",
                       used ? ", " : "", name, *name ? " (" : "", pid, *name ? ")" : "");
    }
    seen->n++;
}

static void end_names(struct dlx_seen *seen)
{
    size_t used = strlen(seen->text);
    if (seen->n > DLX_NAMES_MOST)
        (void)snprintf(seen->text + used, sizeof seen->text - used, " and %u more",
                       seen->n - DLX_NAMES_MOST);
}

struct view {
    struct dlx_publisher *publisher;
    uint32_t group; /* the number of whose workers are looked at; 0: all subscribers are */
    struct dlx_seen *attached, *joining;
};

static const struct dlx_publisher_link *view_find_link(const struct dlx_publisher *p, uint64_t id)
{
    for (uint32_t i = 0; i < dlx__writer_n_links(&p->core); i++) {
        const struct dlx_publisher_link *link =
            dlx__publisher_link_of(dlx__writer_link_at(&p->core, i));
        if (link->id == id && !link->foreign)
            return link;
    }
    return NULL;
}

/* A link that the daemon has. One that only drains is in the list, too: it does not join. */
static int see_link(const struct dlx_link_info *info, void *userdata)
{
    const struct view *view = userdata;
    const struct dlx_publisher_link *link = view_find_link(view->publisher, info->link);
    bool joins = link
                     ? !dlx__publisher_link_receives(link) && !dlx__writer_link_is_over(&link->core)
                     : info->joining;
    if (joins && (view->group == 0 || view->group == info->group))
        add_name(view->joining, info->client_name, info->pid);
    return 0;
}

/* Links that the publisher has. Those by a former daemon count once they have come to the next. */
static void see_own_links(const struct view *view)
{
    struct dlx_publisher *p = view->publisher;
    for (uint32_t i = 0; i < dlx__writer_n_links(&p->core); i++) {
        const struct dlx_publisher_link *link =
            dlx__publisher_link_of(dlx__writer_link_at(&p->core, i));
        const char *name = dlx__peers_name(&p->client->peers, link->peer);
        if (view->group > 0 && view->group != dlx__writer_link_group(&link->core))
            continue;
        if (dlx__publisher_link_receives(link))
            add_name(view->attached, name, link->peer->pid);
        else if (link->foreign && !dlx__writer_link_is_over(&link->core))
            add_name(view->joining, name, link->peer->pid);
    }
}

/* Asks the daemon, which alone knows those that have subscribed and do not count yet. */
static int see_joining(struct view *view)
{
    struct dlx_publisher *p = view->publisher;
    char *why_not = view->joining->why_not;
    uint32_t since = view->group > 0 ? GROUP_SINCE : JOINING_SINCE;
    if (p->client->interrupt) /* it runs while this call waits for the daemon */
        dlx__turn_disown(&p->turn);
    int r = dlx__call_list_links(p->client, p->id, DLX_RECONNECT_PATIENCE_NS, see_link, view,
                                 view->joining->refusal);
    if (r == DLX_E_NOT_FOUND)
        (void)snprintf(why_not, DLX_WHY_NOT_SIZE,
                       "dlpackd's rules let this program not observe it");
    else if (r < 0)
        (void)snprintf(why_not, DLX_WHY_NOT_SIZE, "%s", dlx__error_message());
    else if (p->client->minor < since)
        (void)snprintf(why_not, DLX_WHY_NOT_SIZE, "dlpackd is older than protocol 2.%u", since);
    return r == DLX_E_INTERRUPTED ? r : 0;
}

int dlx__publisher_see(struct dlx_publisher *p, struct dlx_seen *attached, struct dlx_seen *joining)
{
    struct view view = {.publisher = p, .attached = attached, .joining = joining};
    *attached = *joining = (struct dlx_seen){.n = 0};
    see_own_links(&view);
    int r = see_joining(&view);
    end_names(attached);
    end_names(joining);
    return r;
}

int dlx__publisher_see_workers(struct dlx_publisher *p, uint32_t group, bool asks,
                               struct dlx_seen *ret)
{
    struct view view = {.publisher = p, .group = group, .attached = ret, .joining = ret};
    int r = 0;
    *ret = (struct dlx_seen){.n = 0};
    see_own_links(&view);
    if (ret->n == 0 && asks)
        r = see_joining(&view);
    else if (ret->n == 0)
        (void)snprintf(ret->why_not, sizeof ret->why_not, "the call did not wait to ask dlpackd");
    end_names(ret);
    return r;
}

void dlx__publisher_describe_holder(const struct dlx_publisher *p,
                                    const struct dlx_writer_group *group, uint64_t n,
                                    const char *what, const struct dlx_seen *workers,
                                    char ret[DLX_HOLDER_SIZE])
{
    const struct dlx_publisher_link *holder = find_holder(group, n);
    char name[DLX_WHO_SIZE];
    if (holder) {
        dlx__publisher_name_link(p, holder, name);
        (void)snprintf(ret, DLX_HOLDER_SIZE, "worker %s has %s", name, what);
    } else if (workers->n > 0)
        (void)snprintf(ret, DLX_HOLDER_SIZE, "none of its workers has %s: %s", what, workers->text);
    else if (*workers->why_not)
        (void)snprintf(ret, DLX_HOLDER_SIZE,
                       "no worker is attached, and whether others serve it is not known: %s",
                       workers->why_not);
    else
        (void)snprintf(ret, DLX_HOLDER_SIZE, "no worker serves it%s%s",
                       *workers->refusal ? "; one was refused: " : "", workers->refusal);
}

int dlx__publisher_describe_late(struct dlx_publisher *p, struct dlx_writer_group *group, bool asks,
                                 char ret[DLX_LATE_GROUP_SIZE])
{
    uint64_t n = dlx__writer_group_passed(&p->core, group) + 1;
    uint64_t published = dlx__writer_published_ns(&p->core, n), now = dlx__now_ns();
    double age = published > 0 && published < now ? (double)(now - published) / 1e9 : 0;
    struct dlx_seen workers;
    char holder[DLX_HOLDER_SIZE];
    int r = dlx__publisher_see_workers(p, dlx__writer_group_number(group), asks, &workers);
    dlx__publisher_describe_holder(p, group, n, "it", &workers, holder);
    (void)snprintf(ret, DLX_LATE_GROUP_SIZE,
                   "group %s has not done message %" PRIu64 ", published %.1f s ago: %s",
                   name_of(p, group), n, age, holder);
    return r;
}

/* ---- marks --------------------------------------------------------------------------------- */

void dlx__publisher_mark(struct dlx_publisher *p, uint64_t n, uint32_t at, uint8_t value)
{
    uint64_t words[DLX_SHM_ENTRY_WORDS];
    if (dlx__writer_published_ns(&p->core, n) == 0)
        return;
    struct dlx_block *it = dlx__writer_payload(&p->core, n, words);
    while (it && (it->offset != dlx__entry_offset(words) || it->payload_size != words[4] ||
                  it->of || dlx__block_arena_id(it) != dlx__entry_arena(words)))
        it = it->next; /* to the manifest */
    if (!it || dlx__block_is_frozen(it) || (it->is_protected && !dlx__debug_unprotect(it)))
        return;
    const struct dlx_shm_manifest *manifest = dlx__block_data(it);
    if (!manifest || at >= manifest->meta_size)
        return;
    uint8_t *byte = (uint8_t *)dlx__block_data(it) + manifest->meta_offset + at;
    atomic_store_explicit((_Atomic uint8_t *)byte, value, memory_order_release);
}
