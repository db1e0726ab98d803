/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_RECLAIM_H
#define DLXD_RECLAIM_H

/* Returns memory that was reserved and is not used: see reservation.h. */

#include <stdint.h>

/* While there are reservations, they are looked at so often; and this long may one not grow. */
#define DLXD_RECLAIM_MS       1000U
#define DLXD_RECLAIM_AFTER_NS UINT64_C(2000000000)

struct dlxd_broker;

/* Return those that do not grow, of some that were not looked at the longest: as if their writer
 * had dropped the arena, or closed the publisher that is not ready. */
void dlxd_reclaim(struct dlxd_broker *broker, uint64_t now_ns);

#endif
