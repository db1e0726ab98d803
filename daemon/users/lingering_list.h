/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_LINGERING_LIST_H
#define DLXD_LINGERING_LIST_H

/* The links of one user, of one client's publishers, or of one subscriber's process that linger:
 * lingering.h. */

#include "daemon/base/list.h"
#include <stdint.h>

/* Fewer are not worth a look of their own. */
#define DLXD_LINGERING_LOOK_LEAST 8U

struct dlxd_link;

struct dlxd_lingering {
    struct dlxd_list links; /* the one looked at the longest ago is first */
    size_t n;
    size_t look_at;   /* so many of these, and it is time */
    uint64_t look_ns; /* not before */
};

/* A link in such a list. */
struct dlxd_lingering_node {
    struct dlxd_list node;
    struct dlxd_lingering *lingering;
    struct dlxd_link *link;
};

static inline void dlxd_lingering_init(struct dlxd_lingering *lingering)
{
    *lingering = (struct dlxd_lingering){.look_at = DLXD_LINGERING_LOOK_LEAST};
    dlxd_list_init(&lingering->links);
}

#endif
