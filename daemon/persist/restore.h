/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_RESTORE_H
#define DLXD_RESTORE_H

/* Restores publishers from the descriptors that the former daemon stored with the service manager
 * or handed over. */

#include "common/util.h"

struct dlxd_broker;
struct dlxd_manager_fds;
struct dlxd_manager_fd;
struct dlxd_ledger;
struct dlxd_store_queue;
struct dlxd_user;

/* Finds and opens the ledger: `ret` has a descriptor of its own. Returns NULL if there is none that
 * can be read. */
struct dlxd_manager_fd *dlxd_restore_ledger(struct dlxd_manager_fds *manager_fds,
                                            struct dlxd_ledger *ret);
/* Restores the publishers of the ledger, counts in the queue what the manager stores of them, and
 * removes from the ledger those that cannot be restored. A publisher with regions that the manager
 * does not store is `not_kept`. `queue` is NULL without a store. */
void dlxd_restore_publishers(struct dlxd_broker *broker, struct dlxd_manager_fds *manager_fds,
                             struct dlxd_ledger *ledger, struct dlxd_store_queue *queue);
/* The same without a store, for what was handed over. */
void dlxd_restore_handed_over(struct dlxd_broker *broker, struct dlxd_manager_fds *manager_fds);
/* Makes the manager forget our descriptors that were not taken, on behalf of the daemon's own
 * user. */
void dlxd_restore_remove_rest(const struct dlxd_manager_fds *manager_fds, struct dlxd_user *own,
                              struct dlxd_store_queue *queue);

#endif
