/* SPDX-License-Identifier: Apache-2.0 */
#include "client/origin.h"

bool dlx__origin_may_resume(const struct dlx_inlet *inlet, uint64_t origin)
{
    return inlet->state == DLX_INLET_OPEN && (inlet->foreign || inlet->told || inlet->former) &&
           inlet->origin == origin;
}

bool dlx__origin_is_anothers(const struct dlx_subscription *s, uint64_t publisher, uint64_t origin)
{
    if (origin == publisher)
        return false;
    for (uint32_t i = 0; i < s->n_inlets; i++) {
        const struct dlx_inlet *other = s->inlets[i];
        if (other->state == DLX_INLET_OPEN && other->origin == origin &&
            other->publisher != publisher && !dlx__origin_may_resume(other, origin))
            return true;
    }
    return false;
}

bool dlx__origin_is_joined(const struct dlx_subscription *s, uint64_t origin)
{
    for (uint32_t i = 0; i < s->n_inlets; i++) {
        const struct dlx_inlet *inlet = s->inlets[i];
        if (inlet->state == DLX_INLET_OPEN && inlet->origin == origin && !inlet->former)
            return true;
    }
    return false;
}

void dlx__origin_gone_before(struct dlx_subscription *s, const struct dlx_news *news)
{
    uint64_t origin = news->resumes, last_seq = news->base;
    for (uint32_t i = 0; i < s->n_inlets; i++) {
        struct dlx_inlet *inlet = s->inlets[i];
        if (dlx__origin_may_resume(inlet, origin)) {
            inlet->ended_at =
                DLX_MAX(inlet->ended_at, last_seq); /* the rest of it is taken first */
            return;
        }
    }
    bool is_own = !dlx__origin_is_anothers(s, 0, origin);
    struct dlx_passed_entry passed = {0};
    if (is_own)
        passed = dlx__passed_find(&s->passed, origin);
    uint64_t since = passed.origin == 0 ? last_seq - DLX_MIN(last_seq, news->missed) : passed.seq;
    if (since >= last_seq)
        return;
    uint64_t n_missed = last_seq - since;
    bool is_latest = s->args.mode == DLX_MODE_LATEST;
    *(is_latest ? &s->stats.skipped : &s->stats.lost) += n_missed;
    if (!is_own)
        return;
    const struct dlx_passed_counts counts = {.skipped = is_latest ? n_missed : 0,
                                             .lost = is_latest ? 0 : n_missed};
    dlx__passed_add(&s->passed, origin, last_seq, passed.untold + n_missed);
    dlx__passed_count(&s->passed, origin, &counts);
}

void dlx__origin_remember(struct dlx_subscription *s, const struct dlx_inlet *inlet,
                          uint64_t n_missed)
{
    const struct dlx_passed_counts counts = {inlet->core.taken, inlet->core.taken_bytes,
                                             inlet->core.skipped, inlet->core.lost};
    dlx__passed_add(&s->passed, inlet->origin, inlet->core.cursor + n_missed,
                    dlx__reader_untold(&inlet->core) + n_missed);
    dlx__passed_count(&s->passed, inlet->origin, &counts);
}

void dlx__origin_resume_counters(struct dlx_subscription *s, struct dlx_inlet *inlet)
{
    struct dlx_passed_counts counts = dlx__passed_take_counts(&s->passed, inlet->origin);
    s->stats.taken -= counts.taken;
    s->stats.taken_bytes -= counts.taken_bytes;
    s->stats.skipped -= counts.skipped;
    s->stats.lost -= counts.lost;
    dlx__reader_add_counters(&inlet->core, counts.taken, counts.taken_bytes, counts.skipped,
                             counts.lost);
}
