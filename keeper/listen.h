/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXK_LISTEN_H
#define DLXK_LISTEN_H

/* The socket on which the daemon finds the keeper. */

#include <stdbool.h>

struct dlxk_listen {
    int fd;
    int lock_fd;      /* -1: the service manager made the socket */
    const char *path; /* borrowed */
    char *lock_path;  /* PATH.lock; NULL: the service manager made the socket */
};

/* Listens on `borrow_path`, mode 0600, with a lock on PATH.lock. Returns 0; 1 if another keeper
 * serves there; DLX_E_INVALID, DLX_E_IN_USE, DLX_E_NO_MEMORY, DLX_E_SYSTEM. */
int dlxk_listen_init(struct dlxk_listen *listen, const char *borrow_path);
/* Takes the service manager's socket ($LISTEN_FDS). Returns 1, or 0 if there is none;
 * DLX_E_INVALID. */
int dlxk_listen_inherit(struct dlxk_listen *listen);
/* Closes and removes the socket and the lock. */
void dlxk_listen_deinit(struct dlxk_listen *listen);

#endif
