/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_STORE_H
#define DLXD_STORE_H

/*
 * What outlives the daemon: descriptors that the service manager keeps for the next one
 * (FileDescriptorStoreMax= of systemd.service(5), FDSTORE=1 of sd_notify(3)). There are, of every
 * publisher that retains messages, its control block and arenas as soon as they are ready, and a
 * pidfd while its process may write them; and the ledger.
 *
 * The manager drops what is too much without a word, so the descriptors are counted
 * (store_queue.h). A publisher that does not fit into them, or into the share of its user, is not
 * kept at all, and the log says so.
 *
 * Everything is fine without a store: broker->store is NULL then.
 */

#include "common/util.h"

struct dlxd_arena;
struct dlxd_broker;
struct dlxd_client;
struct dlxd_handover;
struct dlxd_inherited;
struct dlxd_publisher;
struct dlxd_store;

/* Keep at most so many descriptors. Makes broker->store, from what the former daemon kept or handed over if there is
 * anything: its publishers are back then. What it handed over beyond what was kept is kept as far as there is room. On
 * failure nothing of that is taken. Returns 0; DLX_E_NOT_FOUND (no service manager), DLX_E_NO_MEMORY, DLX_E_FD_LIMIT, DLX_E_SYSTEM. */
int dlxd_store_init(struct dlxd_broker *broker, uint32_t max_fds, struct dlxd_inherited *inherited);
/* The daemon ends; what is kept stays kept. */
void dlxd_store_deinit(struct dlxd_broker *broker);

/*
 * Hand over everything that is retained, with or without a store, and whatever fits into that:
 * entries of the ledger, control blocks, arenas and pidfds, and which of these the manager keeps.
 * Returns 0; DLX_E_NO_MEMORY, DLX_E_FD_LIMIT, DLX_E_SYSTEM. Call dlxd_store_take_back() if the
 * daemon goes on.
 */
int dlxd_store_hand_over(struct dlxd_broker *broker, struct dlxd_handover *handover);
void dlxd_store_take_back(struct dlxd_broker *broker);

/* What publishers and clients call by broker->keeper: see keeper.h. */
void dlxd_store_update(struct dlxd_publisher *publisher);
void dlxd_store_forget(struct dlxd_publisher *publisher);
void dlxd_store_forget_arena(const struct dlxd_publisher *publisher, struct dlxd_arena *arena);
void dlxd_store_leave(struct dlxd_client *client);

/*
 * Answer this request of the client with Ok as soon as the manager has everything that it was sent, and read no other request
 * of it until then. False: there is nothing to wait for, the caller answers.
 */
bool dlxd_store_answer_later(const struct dlxd_publisher *publisher, struct dlxd_client *client,
                             uint32_t serial);

/* Is there anything that dlxd_store_retry() should do in a while? */
bool dlxd_store_is_waiting(const struct dlxd_broker *broker);
void dlxd_store_retry(struct dlxd_broker *broker, uint64_t now_ns);

#endif
