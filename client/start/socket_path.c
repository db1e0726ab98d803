/* SPDX-License-Identifier: Apache-2.0 */
#include "client/start/socket_path.h"
#include "common/error.h"
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define SOCKET_NAME  "dlpackd.sock"
#define LOCK_POLL_MS 2

struct dlx_socket_path_env dlx__socket_path_env(void)
{
    return (struct dlx_socket_path_env){
        .runtime_dir = getenv("XDG_RUNTIME_DIR"),
        .system_path = "/run/dlpackd/" SOCKET_NAME,
        .tmp_dir = "/tmp",
        .uid = geteuid(),
    };
}

static bool fits(int n, size_t size)
{
    return n >= 0 && (size_t)n < size;
}

/* Only the name. */
static bool path_of(const struct dlx_socket_path_env *env, enum dlx_socket_path path_kind,
                    char ret[DLX_SOCKET_PATH_SIZE])
{
    int n = -1;
    if (path_kind == DLX_SOCKET_PATH_RUNTIME && env->runtime_dir && env->runtime_dir[0] == '/')
        n = snprintf(ret, DLX_SOCKET_PATH_SIZE, "%s/" SOCKET_NAME, env->runtime_dir);
    else if (path_kind == DLX_SOCKET_PATH_SYSTEM)
        n = snprintf(ret, DLX_SOCKET_PATH_SIZE, "%s", env->system_path);
    else if (path_kind == DLX_SOCKET_PATH_TMP)
        n = snprintf(ret, DLX_SOCKET_PATH_SIZE, "%s/dlpackd-%u/" SOCKET_NAME, env->tmp_dir,
                     (unsigned)env->uid);
    return fits(n, DLX_SOCKET_PATH_SIZE);
}

/* The folder of the last place. */
static void tmp_folder(const struct dlx_socket_path_env *env, char ret[DLX_SOCKET_PATH_SIZE])
{
    (void)snprintf(ret, DLX_SOCKET_PATH_SIZE, "%s/dlpackd-%u", env->tmp_dir, (unsigned)env->uid);
}

/* Refuses a folder of the last place that is not safe. O_NOFOLLOW: a link leads to where its maker
 * chose. */
static int open_tmp_folder(const struct dlx_socket_path_env *env, const char *folder, int *ret_fd)
{
    struct stat st;
    dlx_cleanup(dlx__closep) int fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && (errno == ELOOP || errno == ENOTDIR))
        return dlx__fail(DLX_E_ACCESS,
                         "%s is not a folder: another user may have put it there; remove it",
                         folder);
    if (fd < 0 || fstat(fd, &st) < 0)
        return dlx__fail_errno("%s", folder);
    if (st.st_uid != env->uid)
        return dlx__fail(DLX_E_ACCESS, "%s belongs to uid %u, not to %u: it is not used", folder,
                         (unsigned)st.st_uid, (unsigned)env->uid);
    if ((st.st_mode & 07777) != 0700)
        return dlx__fail(DLX_E_ACCESS, "%s has mode %04o, not 0700: others may reach into it",
                         folder, (unsigned)(st.st_mode & 07777));
    *ret_fd = dlx__steal_fd(&fd);
    return 0;
}

bool dlx__socket_path_of(const struct dlx_socket_path_env *env, enum dlx_socket_path path_kind,
                         char ret[DLX_SOCKET_PATH_SIZE])
{
    char folder[DLX_SOCKET_PATH_SIZE];
    dlx_cleanup(dlx__closep) int fd = -1;
    if (!path_of(env, path_kind, ret))
        return false;
    if (path_kind != DLX_SOCKET_PATH_TMP)
        return true;
    tmp_folder(env, folder);
    return open_tmp_folder(env, folder, &fd) == 0;
}

bool dlx__socket_path_has_socket(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISSOCK(st.st_mode);
}

void dlx__socket_path_list(const struct dlx_socket_path_env *env, char *ret, size_t ret_size)
{
    char path[DLX_SOCKET_PATH_SIZE];
    size_t used = 0;
    ret[0] = '\0';
    for (int path_kind = 0; path_kind < DLX_N_SOCKET_PATHS; path_kind++) {
        if (!path_of(env, (enum dlx_socket_path)path_kind, path))
            continue;
        const char *comma = used == 0 ? "" : path_kind == DLX_N_SOCKET_PATHS - 1 ? " or " : ", ";
        int n = snprintf(ret + used, ret_size - used, "%s%s", comma, path);
        if (!fits(n, ret_size - used))
            return;
        used += (size_t)n;
    }
}

bool dlx__socket_path_is_trusted(const struct dlx_socket_path_env *env,
                                 enum dlx_socket_path path_kind, int fd)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (path_kind != DLX_SOCKET_PATH_TMP)
        return true;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == env->uid;
}

/* A folder of this user that others can neither write to nor open: a process that can open it can
 * hold its lock. */
static int open_runtime_dir(const struct dlx_socket_path_env *env)
{
    struct stat st;
    int fd = open(env->runtime_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, &st) == 0 && st.st_uid == env->uid && (st.st_mode & 066) == 0)
        return fd;
    return dlx__close(fd);
}

int dlx__socket_path_private(const struct dlx_socket_path_env *env,
                             enum dlx_socket_path *ret_path_kind,
                             char ret_path[DLX_SOCKET_PATH_SIZE], int *ret_dir_fd)
{
    char folder[DLX_SOCKET_PATH_SIZE];
    if (path_of(env, DLX_SOCKET_PATH_RUNTIME, ret_path)) {
        int fd = open_runtime_dir(env);
        if (fd >= 0) {
            *ret_path_kind = DLX_SOCKET_PATH_RUNTIME;
            *ret_dir_fd = fd;
            return 0;
        }
    }
    if (!path_of(env, DLX_SOCKET_PATH_TMP, ret_path))
        return dlx__fail(DLX_E_INVALID, "%s is too long for a socket", env->tmp_dir);
    tmp_folder(env, folder);
    if (mkdir(folder, 0700) < 0 && errno != EEXIST)
        return dlx__fail_errno("making %s for a private dlpackd", folder);
    *ret_path_kind = DLX_SOCKET_PATH_TMP;
    return open_tmp_folder(env, folder, ret_dir_fd);
}

int dlx__socket_path_lock(int fd, const char *path, uint64_t deadline)
{
    /* flock() has no time-out of its own, and the library neither starts threads nor uses
     * signals. */
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return dlx__fail_errno("locking the folder of %s", path);
        if (dlx__now_ns() >= deadline)
            return dlx__fail(DLX_E_TIMEOUT,
                             "another process is starting a dlpackd for %s and does not get done",
                             path);
        (void)poll(NULL, 0, LOCK_POLL_MS);
    }
    return 0;
}

void dlx__socket_path_unlock(int fd)
{
    (void)flock(fd, LOCK_UN);
}
