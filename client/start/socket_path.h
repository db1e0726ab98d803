/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_SOCKET_PATH_H
#define DLX_CLIENT_SOCKET_PATH_H

/*
 * Where a daemon's socket may be if the program names none:
 *
 *     $XDG_RUNTIME_DIR/dlpackd.sock     this user's daemon, or a private one
 *     /run/dlpackd/dlpackd.sock         the machine's
 *     /tmp/dlpackd-UID/dlpackd.sock     a private one where there is no XDG_RUNTIME_DIR
 *
 * Any user can make the last folder first, so it counts only when it is a folder, not a link, that
 * belongs to this user and has mode 0700: then no other user can have put a socket into it. (In a
 * sticky /tmp no other user can rename it either; where /tmp is not sticky the credentials of the
 * socket tell, see dlx__socket_path_is_trusted().)
 */

#include "common/util.h"
#include <sys/types.h>

#define DLX_SOCKET_PATH_SIZE 108 /* sun_path */

enum dlx_socket_path {
    DLX_SOCKET_PATH_RUNTIME,
    DLX_SOCKET_PATH_SYSTEM,
    DLX_SOCKET_PATH_TMP,
    DLX_N_SOCKET_PATHS
};

/* The environment that the socket paths depend on. */
struct dlx_socket_path_env {
    const char *runtime_dir; /* NULL: not set */
    const char *system_path;
    const char *tmp_dir;
    uid_t uid;
};

/* Of this process. Borrows from its environment. */
struct dlx_socket_path_env dlx__socket_path_env(void);

/* The path of a place; false when there is none: not set, too long, or a folder that is not
 * ours. */
bool dlx__socket_path_of(const struct dlx_socket_path_env *env, enum dlx_socket_path path_kind,
                         char ret[DLX_SOCKET_PATH_SIZE]);

/* Is there a socket, whether or not anybody listens on it? */
bool dlx__socket_path_has_socket(const char *path);

/* All of them for a message: "A, B or C". */
void dlx__socket_path_list(const struct dlx_socket_path_env *env, char *ret, size_t ret_size);

/* May the process that listens on this connected socket be at this place? */
bool dlx__socket_path_is_trusted(const struct dlx_socket_path_env *env,
                                 enum dlx_socket_path path_kind, int borrow_fd);

/*
 * The place where a private daemon of this user is to listen; its folder is made. Returns 0, the
 * place, the path and the folder, opened, which the caller owns; DLX_E_ACCESS (the folder is
 * another user's, a link, or open to others: the message names it), DLX_E_NO_MEMORY,
 * DLX_E_FD_LIMIT, DLX_E_SYSTEM.
 */
int dlx__socket_path_private(const struct dlx_socket_path_env *env,
                             enum dlx_socket_path *ret_path_kind,
                             char ret_path[DLX_SOCKET_PATH_SIZE], int *ret_dir_fd);

/* Wait until no other process holds the folder. Closing the fd lets go, and so does the end of the
 * process. Returns 0; DLX_E_TIMEOUT, DLX_E_SYSTEM. */
int dlx__socket_path_lock(int borrow_dir_fd, const char *path, uint64_t deadline);
/* Also releases what a process holds that was forked meanwhile. */
void dlx__socket_path_unlock(int borrow_dir_fd);

#endif
