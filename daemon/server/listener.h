/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_LISTENER_H
#define DLXD_LISTENER_H

/* A listening socket of the daemon: made at a path (common/listen.h), by the service manager, or by
 * the former daemon in this process. */

#include "common/listen.h"
#include "daemon/users/principal.h"
#include <sys/stat.h>

struct dlxd_handover;
struct dlxd_listen_lock;

/* Describes a socket to listen on. */
struct dlxd_listen {
    const char *name; /* NULL: the main socket */
    const char *path; /* where to make it */
    int take_fd;      /* -1: make it; else made by the service manager or the former daemon */
    mode_t mode;      /* of the file that is made; 0: 0666 */
    bool has_group;   /* `gid` is the group of that file, instead of the daemon's own */
    gid_t gid;
    /* What the former daemon in this process knew of a socket that it had bound itself; NULL:
     * nothing. The lock file, which is still locked, then comes with it. */
    const struct dlxd_listen_lock *borrow_lock;
    int take_lock_fd;
};

struct dlxd_listener {
    char name[DLXD_SOCKET_NAME_SIZE];
    struct dlx_listen at; /* with lock_path NULL: the service manager's socket */
};

/*
 * Makes the socket and listens. A bound socket is used as it is: its address has its path, and it
 * needs no check of who answers there and no lock, except the lock that comes with it. Takes the
 * fds, also on failure. Returns 0; DLX_E_IN_USE naming the path and the pid of the daemon that has
 * it, or a path that is no socket, which is left alone; DLX_E_INVALID (the path is too long, or a
 * passed socket has none); DLX_E_ACCESS (also: the lock file is not this user's alone),
 * DLX_E_NO_MEMORY, DLX_E_SYSTEM.
 */
int dlxd_listener_init(struct dlxd_listener *listener, const struct dlxd_listen *listen);
/* Adds the socket to what the next program gets, under the socket's name. Returns 0;
 * DLX_E_NO_MEMORY. */
int dlxd_listener_hand_over(const struct dlxd_listener *listener, struct dlxd_handover *handover);
/* Lets other users connect. The socket's mode admits everybody, because the policy decides. Opens a
 * folder that the listener made to all users; leaves an existing folder alone and logs a warning if
 * it keeps them out. Returns 0; DLX_E_NO_MEMORY, DLX_E_ACCESS, DLX_E_SYSTEM. */
int dlxd_listener_share(struct dlxd_listener *listener);

/* Did the daemon make the socket file? The service manager's is not looked after here. */
bool dlxd_listener_is_ours(const struct dlxd_listener *listener);
/* Makes the lock file of such a socket again if that was removed, and logs that. Tries once. */
void dlxd_listener_restore_lock(struct dlxd_listener *listener);
/* Closes the socket and unlinks our files. */
void dlxd_listener_deinit(struct dlxd_listener *listener);

/* The default socket path: $DLX_SOCKET, otherwise $XDG_RUNTIME_DIR/dlpackd.sock, otherwise
 * /run/dlpackd/dlpackd.sock. The caller frees it. Returns NULL if out of memory, with the thread's
 * message set. */
char *dlxd_listener_default_path(void);

#endif
