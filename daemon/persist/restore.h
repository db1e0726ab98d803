/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_RESTORE_H
#define DLXD_RESTORE_H

/* Publishers out of the descriptors that the former daemon left with the service manager: part
 * of daemon/persist/store.c. */

#include "common/util.h"

struct dlxd_broker;
struct dlxd_inherited;
struct dlxd_ledger;
struct dlxd_store_queue;

/* Find the ledger among them and open it. False: there is none that can be read. */
bool dlxd_restore_ledger(struct dlxd_inherited *inherited, struct dlxd_ledger *ret);
/* What the ledger names and can be restored is back, and counted in the queue; the rest leaves the
 * ledger. */
void dlxd_restore_publishers(struct dlxd_broker *broker, struct dlxd_inherited *inherited,
                             struct dlxd_ledger *ledger, struct dlxd_store_queue *queue);
/* Have the manager forget what is ours and was not taken. */
void dlxd_restore_remove_rest(const struct dlxd_broker *broker,
                              const struct dlxd_inherited *inherited,
                              struct dlxd_store_queue *queue);

#endif
