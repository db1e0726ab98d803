/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_LISTENER_H
#define DLXD_LISTENER_H

/*
 * The listening socket and its lock file (PATH.lock), which is what keeps a second daemon off the
 * path: its lock lives as long as the process, so a socket file without it is stale. Nobody but the
 * daemon's user can open the file, and so hold the lock.
 */

#include "common/util.h"
#include <sys/stat.h>

struct dlxd_listener {
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
 * Returns 0; DLX_E_IN_USE naming the path and the pid of the daemon that has it, or a path that is
 * something else than a socket, which is left alone; DLX_E_INVALID (path too long); DLX_E_ACCESS
 * (also: the lock file is not this user's alone), DLX_E_SYSTEM.
 */
int dlxd_listener_init(struct dlxd_listener *listener, const char *path);
/*
 * Listen on a socket that the service manager bound: its path is in its name, and needs neither a
 * lock nor a look at who answers there. Takes the fd, also on failure. Returns 0; DLX_E_INVALID (it
 * has no path), DLX_E_NO_MEMORY, DLX_E_SYSTEM.
 */
int dlxd_listener_adopt(struct dlxd_listener *listener, int take_fd);
/*
 * Other users are to connect. The socket lets everybody in: the policy decides. So that they can
 * reach it, a folder that the listener made is opened to all; one that was there is left alone, and
 * a warning tells if it keeps them out. Returns 0; DLX_E_NO_MEMORY, DLX_E_ACCESS, DLX_E_SYSTEM.
 */
int dlxd_listener_share(const struct dlxd_listener *listener);
/* Unlinks what is ours. */
void dlxd_listener_deinit(struct dlxd_listener *listener);

/* The default path: $DLX_SOCKET, else $XDG_RUNTIME_DIR/dlpackd.sock, else
 * /run/dlpackd/dlpackd.sock. To be freed; NULL when out of memory, and the thread's message says so. */
char *dlxd_listener_default_path(void);

#endif
