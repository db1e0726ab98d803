/* SPDX-License-Identifier: Apache-2.0 */
#include "client/subscription.h"

int dlx_subscription_get_stats(struct dlx_subscription *s, struct dlx_subscription_stats *stats)
{
    dlx__error_clear();
    if (!s || !stats)
        return dlx__fail(DLX_E_INVALID,
                         "dlx_subscription_get_stats: subscription or stats is NULL");
    if (dlx__forked(s->generation))
        return dlx__fail_forked();
    struct dlx_subscription_stats sum = s->stats;
    sum.n_held = 0;
    sum.n_publishers = s->n_open;
    for (uint32_t i = 0; i < s->n_inlets; i++) {
        struct dlx_inlet *inlet = s->inlets[i];
        if (inlet->state != DLX_INLET_OPEN)
            continue;
        sum.taken += inlet->core.taken;
        sum.taken_bytes += inlet->core.taken_bytes;
        sum.skipped += inlet->core.skipped;
        sum.lost += inlet->core.lost;
        sum.n_held += dlx__reader_n_held(&inlet->core) - inlet->n_pending;
    }
    return dlx__args_return(stats, sizeof *stats, &sum, sizeof sum);
}
