/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_DRAIN_H
#define DLXD_DRAIN_H

/* The resources of a link, which may outlive it. */

#include "daemon/objects/objects.h"

/* About how many times as long it takes to read the link's page as one that holds a few messages: 1
 * to 2 us. */
static inline uint32_t dlxd_drain_weight(uint32_t max_held)
{
    return 1 + max_held / 512;
}

/* Makes one without a page and charges. Returns NULL if out of memory. */
struct dlxd_drain *dlxd_drain_new(uint64_t link, struct dlxd_workers *workers, uint32_t max_held);
/* It must be in no list. Returns NULL; accepts NULL. */
struct dlxd_drain *dlxd_drain_free(struct dlxd_drain *drain);

#endif
