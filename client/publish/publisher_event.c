/* SPDX-License-Identifier: Apache-2.0 */

/* dlx_publisher_next_event(). */

#include "client/publish/publisher.h"
#include "client/publish/publisher_reconnect.h"

int dlx_publisher_next_event(struct dlx_publisher *p, struct dlx_event *ret)
{
    int r = dlx__publisher_begin(ret ? p : NULL, "dlx_publisher_next_event");
    if (r < 0)
        return DLX_NAME_NULL(r, "dlx_publisher_next_event", {"ret", ret});
    dlx__publisher_look(p, dlx__now_ns());
    dlx__publisher_link_find_ends(p);
    r = dlx__events_pop(&p->events, ret);
    dlx__publisher_leave(p);
    return r;
}
