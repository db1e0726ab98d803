/* SPDX-License-Identifier: Apache-2.0 */

/* dlx_get() and dlx_retained_drop(): what is there, also when nobody publishes it any more. */

#include "client/control/call.h"
#include "client/control/connection.h"
#include "client/subscribe/subscription.h"
#include "common/topic.h"

static bool is_newer(const struct dlx_message *a, const struct dlx_message *b)
{
    if (dlx_message_monotonic_ns(a) != dlx_message_monotonic_ns(b))
        return dlx_message_monotonic_ns(a) > dlx_message_monotonic_ns(b);
    return dlx_message_publisher(a) > dlx_message_publisher(b);
}

/* The first message that comes, and then the newest of what every publisher has now. */
static int take_newest(struct dlx_subscription *s, uint64_t deadline, struct dlx_message **ret)
{
    struct dlx_message *newest = NULL;
    uint32_t left = DLX_MAX(s->n_links - s->n_spares, 1U);
    do {
        struct dlx_message *m;
        uint64_t now = dlx__now_ns();
        int64_t wait = newest || deadline <= now ? 0
                       : deadline == UINT64_MAX  ? DLX_FOREVER
                                                 : (int64_t)(deadline - now);
        int r = dlx_take(s, wait, &m);
        if (r == DLX_E_PUBLISHER_GONE && !newest) {
            r = dlx__call_check_interrupt(s->client);
            if (r == 0)
                continue; /* it left nothing: wait for the next one */
        }
        if (r < 0 && newest)
            break;
        if (r < 0)
            return r;
        bool newer = !newest || is_newer(m, newest);
        dlx_message_unref(newer ? newest : m);
        newest = newer ? m : newest;
        left--;
    } while (left > 0);
    dlx__error_clear();
    *ret = newest;
    return 0;
}

int dlx_get(struct dlx_client *c, const char *topic, int64_t timeout_ns, struct dlx_message **ret)
{
    const struct dlx_subscribe_args args = {
        .size = sizeof args, .mode = DLX_MODE_LATEST, .history = 1, .max_held = 2};
    char why[DLX_ERROR_TEXT_SIZE], none[DLX_WHY_NONE_SIZE];
    uint64_t deadline = timeout_ns == 0 ? 0 : dlx__deadline(timeout_ns);
    struct dlx_subscription *s;
    dlx__error_clear();
    if (!ret)
        return dlx__fail(DLX_E_INVALID, "dlx_get: ret is NULL");
    int r = dlx_subscribe(c, topic, &args, &s);
    if (r < 0)
        return r;
    r = take_newest(s, deadline, ret);
    if (r == DLX_E_EMPTY || r == DLX_E_TIMEOUT) {
        r = timeout_ns == 0 ? DLX_E_EMPTY : DLX_E_TIMEOUT;
        dlx__subscription_why_none(s, none);
        dlx__fail(r, "topic %s has no message%s%s%s", topic,
                  r == DLX_E_TIMEOUT ? ", and none came" : "", *none ? ": " : "", none);
    }
    memcpy(why, dlx__error_message(), sizeof why);
    dlx_subscription_unref(s);
    return r < 0 ? dlx__fail(r, "%s", why) : 0;
}

int dlx_retained_drop(struct dlx_client *c, const char *topic)
{
    dlx__error_clear();
    if (!c)
        return dlx__fail(DLX_E_INVALID, "dlx_retained_drop: client is NULL");
    if (dlx__forked(c->generation))
        return dlx__fail_forked(c->generation);
    int r = dlx__client_ensure(c);
    if (r == 0)
        r = dlx__topic_check(topic);
    return r < 0 ? r : dlx__call_retained_drop(c, topic);
}
