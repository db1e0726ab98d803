/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/listener.h"
#include "common/error.h"
#include "common/packet.h"
#include "daemon/base/log.h"
#include "daemon/persist/handover.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#define BACKLOG 1024

char *dlxd_listener_default_path(void)
{
    const char *path = getenv("DLX_SOCKET");
    const char *dir = getenv("XDG_RUNTIME_DIR");
    char *made;
    if (path && *path)
        made = strdup(path);
    else if (!dir || !*dir)
        made = strdup("/run/dlpackd/dlpackd.sock");
    else if (asprintf(&made, "%s/dlpackd.sock", dir) < 0)
        made = NULL;
    if (!made)
        (void)dlx__fail(DLX_E_NO_MEMORY, "out of memory for a path");
    return made;
}

static int adopt(struct dlx_listen *at)
{
    struct sockaddr_un address;
    socklen_t size = sizeof address;
    int flags = fcntl(at->fd, F_GETFL);
    if (flags < 0 || fcntl(at->fd, F_SETFL, flags | O_NONBLOCK) < 0)
        return dlx__fail_errno("inherited socket %d", at->fd);
    dlx__packet_refuse_fds(at->fd);
    if (getsockname(at->fd, (struct sockaddr *)&address, &size) < 0)
        return dlx__fail_errno("name of the inherited socket %d", at->fd);
    size_t path_size = size - DLX_MIN(size, offsetof(struct sockaddr_un, sun_path));
    if (path_size == 0 || address.sun_path[0] == '\0')
        return dlx__fail(DLX_E_INVALID, "inherited socket %d is bound to no path", at->fd);
    return dlx__listen_name_files(
        at, strndup(address.sun_path, DLX_MIN(path_size, sizeof address.sun_path)));
}

static int listener_own(struct dlx_listen *at, const struct dlxd_listen *how)
{
    const struct dlxd_listen_lock *lock = how->borrow_lock;
    int r = dlx__listen_take_lock(at, how->take_lock_fd);
    if (r < 0)
        return r;
    at->bound = lock->is_bound;
    at->made_folder = lock->made_folder;
    at->dev = (dev_t)lock->dev;
    at->ino = (ino_t)lock->ino;
    return 0;
}

static void listener_tell(const char *text)
{
    dlxd_log(DLXD_LOG_NOTICE, "%s", text);
}

int dlxd_listener_init(struct dlxd_listener *listener, const struct dlxd_listen *how)
{
    struct dlx_listen *at = &listener->at;
    /* The mode decides who can connect and get a reply; policy.h decides what they may do. */
    *at = DLX_LISTEN_NONE(.program = "dlpackd", .tell = listener_tell, .backlog = BACKLOG,
                          .mode = how->mode ? how->mode : 0666, .has_group = how->has_group,
                          .gid = how->gid);
    at->fd = how->take_fd;
    (void)snprintf(listener->name, sizeof listener->name, "%s",
                   how->name ? how->name : DLXD_SOCKET_MAIN);
    int r = how->take_fd < 0 ? dlx__listen_start(at, how->path) : adopt(at);
    if (r == 0 && how->borrow_lock)
        r = listener_own(at, how);
    else if (how->borrow_lock)
        dlx__close(how->take_lock_fd);
    if (r < 0)
        dlxd_listener_deinit(listener);
    return r;
}

int dlxd_listener_hand_over(const struct dlxd_listener *listener, struct dlxd_handover *handover)
{
    char lock_name[DLXD_SOCKET_NAME_SIZE + sizeof DLXD_HANDOVER_LOCK_SUFFIX];
    const struct dlxd_listen_lock lock = {.dev = listener->at.dev,
                                          .ino = listener->at.ino,
                                          .is_bound = listener->at.bound,
                                          .made_folder = listener->at.made_folder};
    (void)snprintf(lock_name, sizeof lock_name, "%s" DLXD_HANDOVER_LOCK_SUFFIX, listener->name);
    int r = dlxd_handover_add(handover, listener->at.fd, listener->name, true);
    if (r == 0 && listener->at.lock_fd >= 0)
        r = dlxd_handover_add_lock(handover, listener->at.lock_fd, lock_name, &lock);
    return r;
}

int dlxd_listener_share(struct dlxd_listener *listener)
{
    struct stat st;
    const char *dir = listener->at.folder;
    if (listener->at.made_folder && chmod(dir, 0755) < 0) /* the umask may have restricted it */
        return dlx__fail_errno("mode of %s", dir);
    if (stat(dir, &st) < 0)
        return dlx__fail_errno("%s", dir);
    dlx__listen_note_folder(&listener->at);
    if (!(st.st_mode & S_IXOTH))
        dlxd_log(DLXD_LOG_WARNING, "other users cannot reach %s: mode %04o of folder %s",
                 listener->at.path, (unsigned)st.st_mode & 07777U, dir);
    return 0;
}

/* ---- files that were removed --------------------------------------------------------------- */

bool dlxd_listener_is_ours(const struct dlxd_listener *listener)
{
    return listener->at.lock_path != NULL;
}

void dlxd_listener_restore_lock(struct dlxd_listener *listener)
{
    if (dlx__listen_restore_lock(&listener->at))
        dlxd_log(DLXD_LOG_WARNING, "%s was removed: made it again", listener->at.lock_path);
}

void dlxd_listener_deinit(struct dlxd_listener *listener)
{
    dlx__listen_deinit(&listener->at);
}
