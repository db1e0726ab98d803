/* SPDX-License-Identifier: Apache-2.0 */

/* dlx_subscription_next_event(). */

#include "client/gpu/gpu.h"
#include "client/subscribe/sleep.h"
#include "client/subscribe/subscription.h"
#include <sys/eventfd.h>

/* Once for each link, after the event that it is there: more of them would push others out. */
void dlx__subscription_tell(struct dlx_subscription *s, struct dlx_subscriber_link *link)
{
    if (link->unpinned[0] == '\0' || link->told_unpinned || link->state != DLX_SUBSCRIBER_LINK_OPEN)
        return;
    link->told_unpinned = true;
    dlx__events_push(&s->events, DLX_EVENT_UNPINNED, link->id, link->publisher, link->pid,
                     link->topic, link->unpinned);
}

static void tell_late(struct dlx_subscription *s)
{
    struct dlx_gpu_late late;
    if (dlx__gpu_receiver.tell_late(s->gpu, &late))
        dlx__events_push(&s->events, DLX_EVENT_LATE, late.link, late.publisher, late.pid,
                         late.topic, dlx_strerror(late.code));
}

/* What a take would notice: a caller that has taken everything, and waits for the end of a
 * publisher, need not take. */
static void look_for_ends(struct dlx_subscription *s)
{
    dlx__subscription_read_notifications(s);
    bool came = dlx__subscription_handle_events(s, 0) > 0;
    dlx__subscription_leave_ended(s);
    /* What made the descriptor readable was read: a caller that polls it is to take anyway. */
    if (s->nudge >= 0 && (came || dlx__subscription_has_unused_notifications(s)))
        (void)eventfd_write(s->nudge, 1);
}

int dlx_subscription_next_event(struct dlx_subscription *s, struct dlx_event *ret)
{
    dlx__error_clear();
    if (!ret)
        return dlx__fail(DLX_E_INVALID, "dlx_subscription_next_event: ret is NULL");
    int r = dlx__subscription_begin(s, "dlx_subscription_next_event");
    if (r < 0)
        return r;
    tell_late(s);
    if (s->events.n == 0)
        look_for_ends(s);
    for (uint32_t i = 0; i < s->n_links; i++) /* an arena may have been mapped late */
        dlx__subscription_tell(s, s->links[i]);
    r = dlx__events_pop(&s->events, ret);
    dlx__subscription_leave(s);
    return r;
}
