/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_HANDOVER_H
#define DLXD_HANDOVER_H

/*
 * What a daemon hands over to the program that takes its place in the same process by execve(2)
 * (docs/decisions/0030): open descriptors, and a sealed memfd with a table of them. Each descriptor
 * has a name: one of record.h; the name of a listening socket; or, for the lock file of a socket
 * that the service manager did not bind, the socket's name with DLXD_HANDOVER_LOCK_SUFFIX. The
 * environment variable DLX_HANDOVER is "PID:FD": the process that it is for, and the number of the
 * memfd.
 *
 * Any change that an older program would misread raises the version. New fields take reserved
 * bytes, where 0 stands for the former behaviour.
 */

#include "daemon/persist/manager_fds.h"
#include "daemon/persist/ledger.h"

#define DLXD_HANDOVER_VARIABLE "DLX_HANDOVER"

struct dlxd_handover_item;

/* All zero except ledger.fd, which is -1: nothing is handed over. */
struct dlxd_handover {
    struct dlxd_handover_item *items;
    size_t n;
    size_t n_max;
    struct dlxd_ledger ledger; /* without a store, which has a ledger otherwise */
    int fd;                    /* the memfd, once written; otherwise -1 */
};

void dlxd_handover_init(struct dlxd_handover *handover);
void dlxd_handover_deinit(struct dlxd_handover *handover);
/* Adds a descriptor, which stays open and the caller's; it may be added under several names.
 * `not_stored`: the service manager does not keep it under this name. -1 as the descriptor: the
 * manager keeps something under this name that it must forget. Returns 0; DLX_E_NO_MEMORY. */
int dlxd_handover_add(struct dlxd_handover *handover, int borrow_fd, const char *name,
                      bool not_stored);
/* The same for the lock file of a listening socket, with what is known of the socket. */
int dlxd_handover_add_lock(struct dlxd_handover *handover, int borrow_fd, const char *name,
                           const struct dlxd_listen_lock *lock);
/* Writes and seals the table, and clears close-on-exec for all descriptors. Returns 0;
 * DLX_E_FD_LIMIT, DLX_E_NO_MEMORY, DLX_E_SYSTEM. */
int dlxd_handover_write(struct dlxd_handover *handover);
/* execve(2) failed: makes everything close-on-exec again. */
void dlxd_handover_undo(struct dlxd_handover *handover);

/* Takes what the variable names, and removes the variable. For dlxd_manager_fds_init(). Returns 0,
 * also if there is no variable or one for another process; DLX_E_INVALID or DLX_E_VERSION if the
 * table is not valid; DLX_E_NO_MEMORY, DLX_E_FD_LIMIT, DLX_E_SYSTEM. */
int dlxd_handover_take(struct dlxd_manager_fds *manager_fds);

/* "1.2": the versions of the table and of the ledger. The string is static. */
const char *dlxd_handover_version(void);
/* Can this program take over from a daemon of that version? Returns 0, or DLX_E_VERSION naming both
 * versions. */
int dlxd_handover_check_version(const char *version);

#endif
