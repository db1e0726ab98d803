/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_DRAINS_H
#define DLXD_DRAINS_H

/* A list of draining links: those of one user, of one client's publishers, or of one subscriber's
 * process (drain.h). */

#include "daemon/base/list.h"
#include <stdint.h>

/* A shorter list is not scanned on its own. */
#define DLXD_DRAINS_LOOK_LEAST 8U

struct dlxd_drain;

struct dlxd_drains {
    struct dlxd_list list;    /* the least recently checked link is first */
    struct dlxd_list *newest; /* of those by link: the last one that came; NULL: it has left */
    size_t n;
    size_t look_at;   /* the length at which a scan is due */
    uint64_t look_ns; /* no scan before this time */
};

/* The membership of a draining link in one list. */
struct dlxd_drain_node {
    struct dlxd_list node;
    struct dlxd_drains *drains;
    struct dlxd_drain *drain;
};

static inline void dlxd_drains_init(struct dlxd_drains *drains)
{
    *drains = (struct dlxd_drains){.look_at = DLXD_DRAINS_LOOK_LEAST};
    dlxd_list_init(&drains->list);
}

#endif
