/* SPDX-License-Identifier: Apache-2.0 */
#include "client/subscribe/origin.h"
#include "client/control/notification.h"
#include "client/subscribe/subscription.h"

void dlx__resume_positions_deinit(struct dlx_resume_positions *positions)
{
    free(positions->entries);
    *positions = (struct dlx_resume_positions){.n = 0};
}

static uint32_t n_there(const struct dlx_resume_positions *positions)
{
    return (uint32_t)DLX_MIN(positions->n, DLX_RESUME_POSITIONS_MAX);
}

struct dlx_resume_position *dlx__resume_positions_find(const struct dlx_resume_positions *positions,
                                                       uint64_t origin)
{
    for (uint32_t i = 0; i < n_there(positions); i++)
        if (positions->entries[i].origin == origin)
            return &positions->entries[i];
    return NULL;
}

void dlx__resume_positions_add(struct dlx_resume_positions *positions, uint64_t origin,
                               uint64_t seq, uint64_t untold,
                               const struct dlx_reader_counters *counts)
{
    if (!positions->entries)
        positions->entries = calloc(DLX_RESUME_POSITIONS_MAX, sizeof *positions->entries);
    if (!positions->entries)
        return;
    struct dlx_resume_position *entry = dlx__resume_positions_find(positions, origin);
    if (!entry) {
        entry = &positions->entries[positions->n++ % DLX_RESUME_POSITIONS_MAX];
        *entry = (struct dlx_resume_position){.origin = origin};
    }
    if (seq >= entry->seq) {
        entry->seq = seq;
        entry->untold = untold;
    }
    entry->counts.taken += counts->taken;
    entry->counts.taken_bytes += counts->taken_bytes;
    entry->counts.skipped += counts->skipped;
    entry->counts.lost += counts->lost;
}

/* ---- links of a subscription ----------------------------------------------------------------- */

bool dlx__origin_may_resume(const struct dlx_subscriber_link *link, uint64_t origin)
{
    return dlx__subscriber_link_is_open(link) &&
           (link->daemon != DLX_LINK_OURS || link->state == DLX_LINK_OVER) &&
           link->origin == origin;
}

bool dlx__origin_is_anothers(const struct dlx_subscription *s, uint64_t publisher, uint64_t origin)
{
    if (origin == publisher)
        return false;
    for (uint32_t i = 0; i < s->n_links; i++) {
        const struct dlx_subscriber_link *other = s->links[i];
        if (dlx__subscriber_link_is_open(other) && other->origin == origin &&
            other->publisher != publisher && !dlx__origin_may_resume(other, origin))
            return true;
    }
    return false;
}

bool dlx__origin_is_joined(const struct dlx_subscription *s, uint64_t origin)
{
    for (uint32_t i = 0; i < s->n_links; i++) {
        const struct dlx_subscriber_link *link = s->links[i];
        if (dlx__subscriber_link_is_open(link) && link->origin == origin &&
            !dlx__subscriber_link_is_shown(link))
            return true;
    }
    return false;
}

uint64_t dlx__origin_gone_before(struct dlx_subscription *s,
                                 const struct dlx_notification *notification)
{
    uint64_t origin = notification->resumes, last_seq = notification->base;
    for (uint32_t i = 0; i < s->n_links; i++) {
        struct dlx_subscriber_link *link = s->links[i];
        if (dlx__origin_may_resume(link, origin) && !dlx__subscription_successor(s, link)) {
            link->ended_at = DLX_MAX(link->ended_at, last_seq); /* the rest of it is taken first */
            return 0;
        }
    }
    bool is_own = !dlx__origin_is_anothers(s, 0, origin);
    const struct dlx_resume_position *passed =
        is_own ? dlx__resume_positions_find(&s->resume_positions, origin) : NULL;
    uint64_t since = passed ? passed->seq : last_seq - DLX_MIN(last_seq, notification->missed);
    if (since >= last_seq)
        return 0;
    uint64_t n_missed = last_seq - since;
    uint64_t untold = passed ? passed->untold + n_missed : n_missed;
    bool is_latest = s->args.mode == DLX_MODE_LATEST;
    const struct dlx_reader_counters counts = {.skipped = is_latest ? n_missed : 0,
                                               .lost = is_latest ? 0 : n_missed};
    s->stats.skipped += counts.skipped;
    s->stats.lost += counts.lost;
    if (is_own)
        dlx__resume_positions_add(&s->resume_positions, origin, last_seq, untold, &counts);
    return n_missed;
}

void dlx__origin_remember(struct dlx_subscription *s, const struct dlx_subscriber_link *link,
                          uint64_t n_missed)
{
    const struct dlx_reader_counters counts = dlx__reader_counters(&link->core);
    dlx__resume_positions_add(&s->resume_positions, link->origin,
                              dlx__reader_cursor(&link->core) + n_missed,
                              dlx__reader_untold(&link->core) + n_missed, &counts);
}

void dlx__origin_resume(struct dlx_subscription *s, struct dlx_subscriber_link *link,
                        struct dlx_resume_position *passed)
{
    const struct dlx_reader_counters counts = passed->counts;
    s->stats.taken -= counts.taken;
    s->stats.taken_bytes -= counts.taken_bytes;
    s->stats.skipped -= counts.skipped;
    s->stats.lost -= counts.lost;
    passed->counts = (struct dlx_reader_counters){0};
    dlx__reader_add_counters(&link->core, &counts);
    dlx__reader_follow(&link->core, passed->seq, passed->untold);
}
