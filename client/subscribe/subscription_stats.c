/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpu/gpu.h"
#include "client/subscribe/subscription.h"
#include <sys/eventfd.h>

/* A subscription that makes no other call still counts what its publishers have dropped. */
static void hear_of_publishers(struct dlx_subscription *s)
{
    if (s->sock < 0) /* a call that may wait looks for another daemon */
        return;
    dlx__subscription_read_notifications(s);
    /* What made the descriptor readable was read: a caller that polls it is to take anyway. */
    if (s->nudge >= 0 && dlx__subscription_has_unused_notifications(s))
        (void)eventfd_write(s->nudge, 1);
    dlx__error_clear();
}

/* Messages that the subscription can never get by this link. The next takes will count them. */
static uint64_t n_gone(const struct dlx_subscription *s, const struct dlx_subscriber_link *link)
{
    const struct dlx_reader *reader = &link->core;
    uint64_t n = dlx__reader_n_gone(reader, link->after ? &link->after->core : NULL);
    uint64_t newest = dlx__reader_cursor(reader) + dlx__reader_n_left(reader);
    if (!dlx__subscription_successor(s, link))
        n += link->ended_at - DLX_MIN(link->ended_at, newest);
    return n;
}

int dlx_subscription_get_stats(struct dlx_subscription *s, struct dlx_subscription_stats *stats)
{
    dlx__error_clear();
    if (!stats)
        return dlx__fail(DLX_E_INVALID, "dlx_subscription_get_stats: stats is NULL");
    int r = dlx__subscription_begin(s, "dlx_subscription_get_stats");
    if (r < 0)
        return r;
    hear_of_publishers(s);
    struct dlx_subscription_stats sum = s->stats;
    sum.n_held = 0;
    sum.n_publishers = s->n_open;
    sum.has_daemon = s->sock >= 0;
    for (uint32_t i = 0; i < s->n_links; i++) {
        struct dlx_subscriber_link *link = s->links[i];
        if (link->state != DLX_SUBSCRIBER_LINK_OPEN)
            continue;
        dlx__subscription_count(&sum, link);
        *(s->args.mode == DLX_MODE_LATEST ? &sum.skipped : &sum.lost) += n_gone(s, link);
        sum.n_held += dlx__reader_n_held(&link->core) - link->n_pending;
    }
    if (s->client->mapped) /* links that were left */
        sum.n_held += (uint32_t)dlx__mapped_n_out(s->client->mapped, s->reader);
    dlx__gpu_receiver.stats(s->gpu, &sum);
    r = dlx__args_return(stats, offsetof(struct dlx_subscription_stats, gpu_waits), &sum,
                         sizeof sum);
    dlx__subscription_leave(s);
    return r;
}
