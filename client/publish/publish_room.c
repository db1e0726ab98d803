/* SPDX-License-Identifier: Apache-2.0 */

/* What a message waits for: room, reliable subscribers, the subscribers that its publisher
 * requires. */

#include "client/control/wait.h"
#include "client/publish/publish.h"
#include "client/publish/publisher_reconnect.h"

/* It may have been taken again. */
static int check_refused(struct dlx_publisher *p)
{
    if (dlx_likely(!(p->detours & DLX_DETOUR_REFUSED)))
        return 0;
    dlx__publisher_look(p, dlx__now_ns());
    return (p->detours & DLX_DETOUR_REFUSED) ? dlx__publisher_fail_refused(p) : 0;
}

/* One attempt, and if it fails, something has happened since that may help. */
static int wait_for_room(struct dlx_publisher *p, struct dlx_wait *wait)
{
    dlx__writer_set_blocked(&p->core, true); /* again each time, as it may have moved */
    int r = check_refused(p);
    if (r == 0)
        r = dlx__writer_make_room(&p->core);
    if (r != DLX_E_FULL)
        return r;
    r = dlx__publisher_link_wait(p, wait);
    if (r == 0 && (p->detours & DLX_DETOUR_REJOIN))
        r = dlx__publisher_link_rejoin(p, wait);
    return r < 0 ? r : 1;
}

/* With a new daemon, they come to that one. */
static int require_subscribers(struct dlx_publisher *p, struct dlx_wait *wait)
{
    struct dlx_wait once = {.deadline = 0};
    uint32_t n = p->args.min_subscribers;
    int r = dlx__publisher_await(p, n, &once);
    if (r != DLX_E_TIMEOUT)
        return r;
    dlx__publisher_look(p, dlx__now_ns());
    p->stats.blocked += wait->deadline != 0;
    r = dlx__publisher_await(p, n, wait);
    p->stats.full += r == DLX_E_TIMEOUT;
    if (r != DLX_E_TIMEOUT)
        return r;
    return dlx__fail_prefix(r, "nothing was published, since min_subscribers is %u%s", n,
                            wait->deadline == 0 ? " (it did not wait: timeout_ns is 0)" : "");
}

static int find_ring_room(struct dlx_publisher *p, struct dlx_wait *wait)
{
    int r = check_refused(p);
    if (r == 0 && (p->detours & DLX_DETOUR_REJOIN))
        r = dlx__publisher_link_rejoin(p, wait);
    if (r == 0 && (p->detours & DLX_DETOUR_REQUIRE))
        r = require_subscribers(p, wait);
    if (r < 0)
        return r;
    r = dlx__writer_make_room(&p->core);
    if (r != DLX_E_FULL)
        return r;
    /* A daemon that has ended may be why: with another one there is room. */
    if (p->daemon.link_sock < 0) {
        uint64_t epoch = p->epoch;
        dlx__publisher_look(p, dlx__now_ns());
        if (p->epoch != epoch)
            return find_ring_room(p, wait);
    }
    if (wait->deadline != 0) {
        p->stats.blocked++;
        do
            r = wait_for_room(p, wait);
        while (r > 0);
        dlx__publisher_link_unblock(p);
        if (r == 0)
            return 0;
    } else if (p->daemon.link_sock < 0 || dlx__publisher_link_misses_end(p)) {
        dlx__writer_look_for_dead(&p->core);
        r = dlx__writer_make_room(&p->core);
        if (r == 0)
            return 0;
    }
    if (r != DLX_E_FULL && r != DLX_E_TIMEOUT)
        return r;
    p->stats.full++;
    return dlx__publisher_link_blame(p, r);
}

int dlx__publish_room_slowly(struct dlx_publisher *p, struct dlx_wait *wait)
{
    dlx__publisher_link_arm_begin(p);
    int r = dlx__publisher_link_arm_end(p, find_ring_room(p, wait));
    dlx_store64_relaxed(&dlx__writer_control(&p->core)->refused, p->stats.full);
    return r;
}
