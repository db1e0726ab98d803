/* SPDX-License-Identifier: Apache-2.0 */
#include "client/subscribe/subscription_reconnect.h"
#include "client/control/call.h"
#include "client/control/connection.h"
#include "client/control/former.h"

void dlx__subscription_reconnect(struct dlx_subscription *s)
{
    struct dlx_new_subscription made;
    uint64_t now = dlx__now_ns();
    if (now < s->next_try_ns)
        return;
    s->next_try_ns = now + DLX_RECONNECT_NS;
    if (s->client->interrupt) /* it runs while this call waits for the daemon */
        dlx__turn_disown(&s->turn);
    int r = dlx__client_reconnect(s->client, s->epoch, DLX_HURRY_NOW_AND_THEN);
    if (r == 0) {
        uint64_t epoch = atomic_load_explicit(&s->client->epoch, memory_order_acquire);
        r = dlx__call_subscribe(s->client, s->topic, &s->args, DLX_RECONNECT_PATIENCE_NS, &made);
        if (r == 0 && dlx__subscription_adopt(s, &made) == 0)
            s->epoch = epoch;
        dlx__former_tell_more(s->client);
    }
    if (r == DLX_E_ACCESS) { /* the rules have changed: the next take says so */
        s->next_try_ns = now + DLX_LOOK_NS;
        dlx__subscription_refused(s, r);
    }
    dlx__error_clear();
}
