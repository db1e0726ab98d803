/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_RESTORE_H
#define DLXD_RESTORE_H

/* Publishers out of the descriptors that the former daemon left with the service manager, or handed
 * over. */

#include "common/util.h"

struct dlxd_broker;
struct dlxd_inherited;
struct dlxd_inherited_fd;
struct dlxd_ledger;
struct dlxd_store_queue;
struct dlxd_user;

/* Find the ledger among them and open it: `ret` has a descriptor of its own. NULL: there is none that
 * can be read. */
struct dlxd_inherited_fd *dlxd_restore_ledger(struct dlxd_inherited *inherited,
                                              struct dlxd_ledger *ret);
/* What the ledger names and can be restored is back, and what the manager keeps of it is counted in
 * the queue; the rest leaves the ledger. What the manager does not keep is `not_kept`. Without a
 * store, `queue` is NULL. */
void dlxd_restore_publishers(struct dlxd_broker *broker, struct dlxd_inherited *inherited,
                             struct dlxd_ledger *ledger, struct dlxd_store_queue *queue);
/* The same without a store, for what was handed over. */
void dlxd_restore_handed_over(struct dlxd_broker *broker, struct dlxd_inherited *inherited);
/* Have the manager forget what is ours and was not taken: in the name of the daemon's own user. */
void dlxd_restore_remove_rest(const struct dlxd_inherited *inherited, struct dlxd_user *own,
                              struct dlxd_store_queue *queue);

#endif
