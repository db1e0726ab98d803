/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_LISTENER_H
#define DLXD_LISTENER_H

/*
 * A listening socket and its lock file (PATH.lock), which is what keeps a second daemon off the
 * path: its lock lives as long as the process, so a socket file without it is stale. Nobody but the
 * daemon's user can open the file, and so hold the lock.
 */

#include "common/util.h"
#include "daemon/users/principal.h"
#include <sys/stat.h>

struct dlxd_handover;
struct dlxd_inherited_lock;

/* What to listen on. */
struct dlxd_listen {
    const char *name; /* NULL: it is the main one */
    const char *path; /* where to make it */
    int take_fd;      /* -1: none; else what was made by the service manager, or by the daemon whose
                       * place this one takes in the same process, wherever that is bound */
    mode_t mode;      /* of the file that is made; 0: 0666 */
    bool has_group;   /* likewise: `gid` is its group, and not the daemon's own */
    gid_t gid;
    /* NULL, or what that daemon knew of a socket that it had bound itself; its lock file, which is
     * locked all along, then comes with it. */
    const struct dlxd_inherited_lock *lock_borrow;
    int take_lock_fd;
};

struct dlxd_listener {
    char name[DLXD_SOCKET_NAME_SIZE];
    char *path;
    char *lock_path; /* NULL: the socket is the service manager's */
    int fd;
    int lock_fd;
    bool bound;       /* the socket file is ours */
    bool made_folder; /* of the socket */
    dev_t dev;
    ino_t ino;
};

/*
 * Make the socket and listen; or listen on one that is bound: its path is in its address, and needs
 * no look at who answers there, nor a lock but the one that comes with it. Takes these fds, also on
 * failure.
 * Returns 0; DLX_E_IN_USE naming the path and the pid of the daemon that has it, or a path that is
 * something else than a socket, which is left alone; DLX_E_INVALID (path too long; one that was
 * passed has none); DLX_E_ACCESS (also: the lock file is not this user's alone), DLX_E_NO_MEMORY,
 * DLX_E_SYSTEM.
 */
int dlxd_listener_init(struct dlxd_listener *listener, const struct dlxd_listen *listen);
/* For the program that takes the place of this one, under the socket's name. Returns 0;
 * DLX_E_NO_MEMORY. */
int dlxd_listener_hand_over(const struct dlxd_listener *listener, struct dlxd_handover *handover);
/*
 * Other users are to connect. The socket lets everybody in whom its mode does: the policy decides.
 * So that they can reach it, a folder that the listener made is opened to all; one that was there is left alone, and
 * a warning tells if it keeps them out. Returns 0; DLX_E_NO_MEMORY, DLX_E_ACCESS, DLX_E_SYSTEM.
 */
int dlxd_listener_share(const struct dlxd_listener *listener);
/* Unlinks what is ours. */
void dlxd_listener_deinit(struct dlxd_listener *listener);

/* The default path: $DLX_SOCKET, else $XDG_RUNTIME_DIR/dlpackd.sock, else
 * /run/dlpackd/dlpackd.sock. To be freed; NULL when out of memory, and the thread's message says so. */
char *dlxd_listener_default_path(void);

#endif
