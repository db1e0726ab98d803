/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_RECLAIM_H
#define DLXD_RECLAIM_H

/* Returns reserved memory that is not used: reservation.h. */

#include <stdbool.h>
#include <stdint.h>

/* How often reservations are checked, and how long one may go without growing: the kernel slows a
 * process that exceeds memory.high down by up to 2 s a call. */
#define DLXD_RECLAIM_MS       1000U
#define DLXD_RECLAIM_AFTER_NS UINT64_C(10000000000)

struct dlxd_broker;

/* Checks the least recently checked reservations and returns some of those that do not grow, as if
 * the writer had dropped the arena or closed the publisher that is not ready. Returns true if there
 * may be more of them, for a later turn of the loop. */
bool dlxd_reclaim(struct dlxd_broker *broker, uint64_t now_ns);

#endif
