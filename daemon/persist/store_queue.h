/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_STORE_QUEUE_H
#define DLXD_STORE_QUEUE_H

/*
 * Messages for the service manager, and a count of the descriptors that it keeps for each user. The
 * daemon never waits for the manager.
 *
 * A user's messages are sent in the order in which they were posted. Users take turns, one message
 * each, so that no user waits for another one's backlog. After a burst, messages are sent at a rate
 * that uses a fifth of the manager's time: it compares each new descriptor with all that it keeps.
 * A descriptor that is dropped before it was sent is never sent.
 *
 * A descriptor counts from when it is posted until its removal has been sent, so the manager never
 * keeps more descriptors than are counted. Its user is charged for it (DLXD_STORE_ENTRIES), even
 * beyond the limits: whoever posts asks dlxd_user_check() before.
 */

#include "daemon/base/list.h"
#include <stdbool.h>
#include <stdint.h>

struct dlxd_user;

struct dlxd_store_queue {
    struct dlxd_list users;
    struct dlxd_list turns; /* of those that have something to be sent, the next one first */
    uint32_t n;             /* messages that wait */
    uint32_t n_fds; /* that the manager keeps, or will, or does until it is told otherwise */
    uint64_t paid_until_ns; /* how far what was sent reaches, at that rate */
};

void dlxd_store_queue_init(struct dlxd_store_queue *queue);
void dlxd_store_queue_deinit(struct dlxd_store_queue *queue);

/* The manager keeps so many more for this user, or fewer, than were posted: a former daemon sent
 * them. Returns 0; DLX_E_NO_MEMORY, if this is the user's first. */
int dlxd_store_queue_count(struct dlxd_store_queue *queue, struct dlxd_user *whose, int32_t n);

/* Have it keep a copy of the descriptor. Returns 0; DLX_E_NO_MEMORY, DLX_E_FD_LIMIT. */
int dlxd_store_queue_keep(struct dlxd_store_queue *queue, struct dlxd_user *whose, int fd_borrow,
                          const char *name);
/* Have it forget what this user has by this name. Returns 0; DLX_E_NO_MEMORY: it stays, and is
 * counted. */
int dlxd_store_queue_drop(struct dlxd_store_queue *queue, struct dlxd_user *whose,
                          const char *name);
/* Have it close a copy of the descriptor after everything that was posted for this user. Codes as
 * of keep. */
int dlxd_store_queue_barrier(struct dlxd_store_queue *queue, struct dlxd_user *whose,
                             int fd_borrow);

/* Is this user's descriptor of this name still to be sent? */
bool dlxd_store_queue_is_unsent(const struct dlxd_store_queue *queue, const struct dlxd_user *whose,
                                const char *name);
/* Call `fn` with each name that the manager has yet to be told to forget, until it returns a code,
 * which is returned; else 0. */
int dlxd_store_queue_each_drop(const struct dlxd_store_queue *queue,
                               int (*fn)(void *data, const char *name), void *data);

/* Send what may be sent now; UINT64_MAX: everything, because the daemon ends. Returns 0, also when
 * the manager has too much to read; or what dlxd_notify() returns, and the rest stays. */
int dlxd_store_queue_flush(struct dlxd_store_queue *queue, uint64_t now_ns);

#endif
