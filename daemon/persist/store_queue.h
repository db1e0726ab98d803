/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_STORE_QUEUE_H
#define DLXD_STORE_QUEUE_H

/*
 * Messages to the service manager, and the number of descriptors that it stores for each user. The
 * daemon never waits for the manager.
 *
 * The messages of a user are sent in order. Users take turns, one message each, so that no user
 * waits for the backlog of another. After a burst, messages are sent at a rate that uses a fifth of
 * the manager's time, because the manager compares each new descriptor with all that it stores. A
 * descriptor that is dropped before it was sent is never sent.
 *
 * A descriptor counts from when it is posted until its removal has been sent, so the manager never
 * stores more descriptors than are counted. The user is charged for it (DLXD_STORE_ENTRIES), even
 * beyond the limits: a caller that posts asks dlxd_user_check() first.
 */

#include "daemon/base/list.h"
#include <stdbool.h>
#include <stdint.h>

struct dlxd_user;

struct dlxd_store_queue {
    struct dlxd_list users;
    struct dlxd_list turns; /* users with messages to send, the next one first */
    uint32_t n;             /* waiting messages */
    uint32_t n_fds; /* stored by the manager, or about to be, or until their removal was sent */
    uint64_t paid_until_ns; /* the time up to which the rate is used up */
};

void dlxd_store_queue_init(struct dlxd_store_queue *queue);
void dlxd_store_queue_deinit(struct dlxd_store_queue *queue);

/* Adds `n`, which may be negative, to the descriptors that the manager stores for this user: a
 * former daemon sent them. Returns 0; DLX_E_NO_MEMORY if this is the user's first. */
int dlxd_store_queue_count(struct dlxd_store_queue *queue, struct dlxd_user *whose, int32_t n);

/* Makes the manager store a copy of the descriptor. Returns 0; DLX_E_NO_MEMORY, DLX_E_FD_LIMIT. */
int dlxd_store_queue_keep(struct dlxd_store_queue *queue, struct dlxd_user *whose, int borrow_fd,
                          const char *name);
/* Makes the manager forget the user's descriptors of this name. Returns 0; DLX_E_NO_MEMORY: it
 * stays stored and counted. */
int dlxd_store_queue_drop(struct dlxd_store_queue *queue, struct dlxd_user *whose,
                          const char *name);
/* Makes the manager close a copy of the descriptor after everything that was posted for this user.
 * Returns as dlxd_store_queue_keep() does. */
int dlxd_store_queue_barrier(struct dlxd_store_queue *queue, struct dlxd_user *whose,
                             int borrow_fd);

/* Is this user's descriptor of this name still unsent? */
bool dlxd_store_queue_is_unsent(const struct dlxd_store_queue *queue, const struct dlxd_user *whose,
                                const char *name);
/* Calls `fn` with each name whose removal is unsent, until it returns a code, which is then
 * returned; otherwise returns 0. */
int dlxd_store_queue_each_drop(const struct dlxd_store_queue *queue,
                               int (*fn)(void *data, const char *name), void *data);

/* Sends what may be sent now; UINT64_MAX: everything, because the daemon ends. Returns 0, also if
 * the manager has too much to read; or what dlxd_notify() returns, and the rest stays. */
int dlxd_store_queue_flush(struct dlxd_store_queue *queue, uint64_t now_ns);

#endif
