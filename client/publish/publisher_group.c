/* SPDX-License-Identifier: Apache-2.0 */
#include "client/publish/publisher_group.h"
#include "client/control/call.h"
#include "client/publish/publisher_link.h"
#include "ring/entry.h"
#include <inttypes.h>
#include <stdio.h>

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

const struct dlx_publisher_link *dlx__publisher_holder(const struct dlx_writer_group *group,
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

void dlx__publisher_describe_late(struct dlx_publisher *p, struct dlx_writer_group *group,
                                  char ret[DLX_LATE_GROUP_SIZE])
{
    uint64_t n = dlx__writer_group_passed(&p->core, group) + 1;
    uint64_t published = dlx__writer_published_ns(&p->core, n), now = dlx__now_ns();
    double age = published > 0 && published < now ? (double)(now - published) / 1e9 : 0;
    const struct dlx_publisher_link *holder = dlx__publisher_holder(group, n);
    uint32_t n_workers = dlx__writer_group_n_links(group);
    char name[DLX_WHO_SIZE], who[DLX_WHO_SIZE + 16];
    if (holder) {
        dlx__publisher_name_link(p, holder, name);
        (void)snprintf(who, sizeof who, "%s has it", name);
    } else {
        (void)snprintf(who, sizeof who, "none of its workers (%u) has it", n_workers);
    }
    (void)snprintf(ret, DLX_LATE_GROUP_SIZE,
                   "group %s has not done message %" PRIu64 ", published %.1f s ago: %s",
                   name_of(p, group), n, age, n_workers > 0 ? who : "it has no worker");
}

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
