/* SPDX-License-Identifier: Apache-2.0 */
#include "client/message/gpu_threads.h"
#include "client/subscribe/subscription.h"

int dlx_subscription_get_stats(struct dlx_subscription *s, struct dlx_subscription_stats *stats)
{
    dlx__error_clear();
    if (!stats)
        return dlx__fail(DLX_E_INVALID, "dlx_subscription_get_stats: stats is NULL");
    int r = dlx__subscription_begin(s, "dlx_subscription_get_stats");
    if (r < 0)
        return r;
    struct dlx_subscription_stats sum = s->stats;
    sum.n_held = 0;
    sum.n_publishers = s->n_open;
    sum.has_daemon = s->sock >= 0;
    for (uint32_t i = 0; i < s->n_links; i++) {
        struct dlx_subscriber_link *link = s->links[i];
        if (link->state != DLX_SUBSCRIBER_LINK_OPEN)
            continue;
        dlx__subscription_count(&sum, link);
        sum.n_held += dlx__reader_n_held(&link->core) - link->n_pending;
    }
    dlx__pin_count(s->pin, &sum);
    sum.gpu_late = dlx__gpu_threads_late(s->gpu_threads).n;
    r = dlx__args_return(stats, offsetof(struct dlx_subscription_stats, gpu_waits), &sum,
                         sizeof sum);
    dlx__subscription_leave(s);
    return r;
}
