/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_LACK_H
#define DLXD_LACK_H

/* What dlpackd itself lacks to make links: descriptors, memory, a thread. That passes, so it ends
 * no link. The subscription is stuck (subscription.h) and tries again, at first after 20 ms, at
 * last every second. The log tells when the first subscription waits and when the last one goes on;
 * DaemonInfoReply has the text meanwhile. */

#include "daemon/objects/objects.h"

/* A step failed for the lack of which the thread's error message tells. */
void dlxd_lack_begin(struct dlxd_subscription *subscription);
/* A step succeeded that needs what was lacking, or none is left to do. */
void dlxd_lack_end(struct dlxd_subscription *subscription);

#endif
