/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_HANDOVER_H
#define DLXD_HANDOVER_H

/*
 * What a daemon hands to the program that takes its place in the same process by execve(2)
 * (docs/decisions/0030): descriptors that stay open, and a sealed memfd with a table of them. Each
 * has a name: those of record.h; the name of a listening socket; and for the lock file of one that
 * the service manager did not bind, its name and DLXD_HANDOVER_LOCK_SUFFIX. The environment variable
 * DLX_HANDOVER is "PID:FD": the process that it is meant for, and the number of the memfd.
 *
 * Its version is raised by any change that an older program would misread. New fields take reserved
 * bytes, where 0 stands for what programs did before.
 */

#include "daemon/persist/inherited.h"
#include "daemon/persist/ledger.h"

#define DLXD_HANDOVER_VARIABLE "DLX_HANDOVER"

struct dlxd_handover_item;

/* All zero but ledger.fd, which is -1: nothing is handed over. */
struct dlxd_handover {
    struct dlxd_handover_item *items;
    size_t n;
    size_t n_max;
    struct dlxd_ledger ledger; /* where there is no store, whose ledger it would be */
    int fd;                    /* the memfd, once written; else -1 */
};

void dlxd_handover_init(struct dlxd_handover *handover);
void dlxd_handover_deinit(struct dlxd_handover *handover);
/*
 * Hand over a descriptor, which stays the caller's and open; the same one may have several names.
 * `not_stored`: the service manager does not keep it under this name. With -1 for the descriptor,
 * the manager keeps something under this name that it is to forget. Returns 0; DLX_E_NO_MEMORY.
 */
int dlxd_handover_add(struct dlxd_handover *handover, int fd_borrow, const char *name,
                      bool not_stored);
/* The same for the lock file of a listening socket, with what is known of the latter. */
int dlxd_handover_add_lock(struct dlxd_handover *handover, int fd_borrow, const char *name,
                           const struct dlxd_inherited_lock *lock);
/* Write the table, seal it, and take close-on-exec from all of it. Returns 0; DLX_E_FD_LIMIT,
 * DLX_E_NO_MEMORY, DLX_E_SYSTEM. */
int dlxd_handover_write(struct dlxd_handover *handover);
/* There was no execve(2): everything is close-on-exec again. */
void dlxd_handover_undo(struct dlxd_handover *handover);

/*
 * Take what the variable names, and remove the variable. Returns 0, also where there is none, or
 * one for another process; DLX_E_INVALID, DLX_E_VERSION: what it names is not as it has to be;
 * DLX_E_NO_MEMORY, DLX_E_FD_LIMIT, DLX_E_SYSTEM. For dlxd_inherited_init().
 */
int dlxd_handover_take(struct dlxd_inherited *inherited);

/* "1.2": the version of the table, and that of the ledger. Static. */
const char *dlxd_handover_version(void);
/* Can this program take over from a daemon of that version? Returns 0; DLX_E_VERSION, which names
 * both versions. */
int dlxd_handover_check_version(const char *version);

#endif
