/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_DRAINS_H
#define DLXD_DRAINS_H

/* The draining links of one user, of one client's publishers, or of one subscriber's process:
 * draining.h. */

#include "daemon/base/list.h"
#include <stdint.h>

/* Fewer are not worth a look of their own. */
#define DLXD_DRAINS_LOOK_LEAST 8U

struct dlxd_drain;

struct dlxd_drains {
    struct dlxd_list list; /* the one looked at the longest ago is first */
    size_t n;
    size_t look_at;   /* so many of these, and it is time */
    uint64_t look_ns; /* not before */
};

/* A draining link in such a list. */
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
