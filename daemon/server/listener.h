/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_LISTENER_H
#define DLXD_LISTENER_H

/* A listening socket and its lock file (PATH.lock), which keeps a second daemon off the path: the
 * lock lives as long as the process, so a socket file without a locked file is stale. Only the
 * daemon's user can open the file and hold the lock. */

#include "common/util.h"
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
    char *path;
    char *folder;
    char *lock_path; /* NULL: the service manager's socket */
    int fd;          /* -1: its file was removed, and could not be made again */
    int lock_fd;
    mode_t mode; /* as in struct dlxd_listen, like the next two */
    bool has_group;
    gid_t gid;
    bool bound;       /* the socket file is ours */
    bool made_folder; /* the listener made the folder of the socket */
    dev_t dev;
    ino_t ino;
    uid_t folder_name_uid; /* of the folder, or of the symbolic link to it */
    uid_t folder_uid;
    mode_t folder_mode;
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
/* Does the path of such a socket still lead to it? */
bool dlxd_listener_is_at_path(const struct dlxd_listener *listener);
/* Makes the lock file of such a socket again if that was removed, and logs that. Tries once. */
void dlxd_listener_restore_lock(struct dlxd_listener *listener);
/* Closes such a socket, whose file was removed, and listens at its path again with a new one; makes
 * its folder again, too, if need be. Nobody may watch the socket. Returns what dlxd_listener_init()
 * returns; DLX_E_ACCESS also if the folder is another user's now. On failure the listener has no
 * socket, and the call can be made again. `ret_is_taken`: another daemon has the path now. */
int dlxd_listener_restore(struct dlxd_listener *listener, bool *ret_is_taken);
/* Closes the socket and unlinks our files. */
void dlxd_listener_deinit(struct dlxd_listener *listener);

/* The default socket path: $DLX_SOCKET, otherwise $XDG_RUNTIME_DIR/dlpackd.sock, otherwise
 * /run/dlpackd/dlpackd.sock. The caller frees it. Returns NULL if out of memory, with the thread's
 * message set. */
char *dlxd_listener_default_path(void);

#endif
