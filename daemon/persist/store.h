/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_STORE_H
#define DLXD_STORE_H

/*
 * What outlives the daemon: descriptors that the service manager stores for the next daemon
 * (FileDescriptorStoreMax= of systemd.service(5), FDSTORE=1 of sd_notify(3)). They are, for each
 * publisher that retains messages, its control block and arenas as soon as they are ready, and a
 * pidfd while its process may write them; and the ledger.
 *
 * The manager silently drops descriptors above its limit, so the daemon counts them
 * (store_queue.h). A publisher that does not fit, or exceeds the share of its user, is not stored
 * at all, and the log says so.
 *
 * The daemon also works without a store: broker->store is NULL then.
 */

#include "common/util.h"

struct dlxd_arena;
struct dlxd_broker;
struct dlxd_client;
struct dlxd_handover;
struct dlxd_manager_fds;
struct dlxd_group;
struct dlxd_publisher;
struct dlxd_store;

/*
 * Makes broker->store, with at most `max_fds` descriptors. Restores the publishers that the former
 * daemon stored or handed over. What was handed over without being stored is stored as far as there
 * is room. On failure, nothing of that is taken. Returns 0; DLX_E_NOT_FOUND (no service manager),
 * DLX_E_NO_MEMORY, DLX_E_FD_LIMIT, DLX_E_SYSTEM.
 */
int dlxd_store_init(struct dlxd_broker *broker, uint32_t max_fds,
                    struct dlxd_manager_fds *manager_fds);
/* The daemon ends; what is stored stays stored. */
void dlxd_store_deinit(struct dlxd_broker *broker);

/*
 * Hands over everything that is retained, whether or not there is a store and it fits: ledger
 * entries, control blocks, arenas and pidfds, and which of these the manager stores. Returns 0;
 * DLX_E_NO_MEMORY, DLX_E_FD_LIMIT, DLX_E_SYSTEM. Call dlxd_store_take_back() if the daemon
 * continues.
 */
int dlxd_store_hand_over(struct dlxd_broker *broker, struct dlxd_handover *handover);
void dlxd_store_take_back(struct dlxd_broker *broker);

/* Publishers and clients call these through broker->store_hooks (store_hooks.h). */
void dlxd_store_update(struct dlxd_publisher *publisher);
void dlxd_store_forget(struct dlxd_publisher *publisher);
void dlxd_store_forget_group(struct dlxd_group *group);
void dlxd_store_forget_arena(const struct dlxd_publisher *publisher, struct dlxd_arena *arena);
void dlxd_store_leave(struct dlxd_client *client);

/* Replies with Ok to this request of the client as soon as the manager has read everything it was
 * sent, and reads no other request of the client until then. Returns false if there is nothing to
 * wait for; the caller then replies. */
bool dlxd_store_answer_later(const struct dlxd_publisher *publisher, struct dlxd_client *client,
                             uint32_t serial);

/* Does dlxd_store_retry() have something to do later? */
bool dlxd_store_is_waiting(const struct dlxd_broker *broker);
void dlxd_store_retry(struct dlxd_broker *broker, uint64_t now_ns);

#endif
