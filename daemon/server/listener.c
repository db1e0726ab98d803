/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/listener.h"
#include "common/error.h"
#include "common/packet.h"
#include "daemon/base/log.h"
#include "daemon/persist/handover.h"
#include <fcntl.h>
#include <libgen.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>

#define BACKLOG 1024
/* A daemon that is ending holds the lock a moment longer than its socket. */
#define LOCK_WAIT_NS UINT64_C(2000000000)
#define LOCK_POLL_MS 2

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

/* ---- the folder ---------------------------------------------------------------------------- */

static int make_folder(const struct dlxd_listener *listener, bool *ret_made)
{
    *ret_made = mkdir(listener->folder, 0755) == 0;
    if (!*ret_made && errno != EEXIST)
        return dlx__fail_errno("making the directory of the socket, %s", listener->folder);
    if (*ret_made)
        dlxd_log(DLXD_LOG_NOTICE, "made the folder %s for the socket", listener->folder);
    return 0;
}

/* Remembers whose the folder is, and who may reach into it: restore_folder(). A folder that is
 * missing already is restored for this user alone. */
static void note_folder(struct dlxd_listener *listener)
{
    struct stat name, folder;
    bool is_there = lstat(listener->folder, &name) == 0 && stat(listener->folder, &folder) == 0;
    listener->folder_name_uid = is_there ? name.st_uid : geteuid();
    listener->folder_uid = is_there ? folder.st_uid : geteuid();
    listener->folder_mode = is_there ? folder.st_mode & 07777 : 0700;
}

/* Makes a folder that was removed, with its former mode. A folder of that name may be another
 * user's by now, who could replace the files that are made there. */
static int restore_folder(const struct dlxd_listener *listener)
{
    struct stat name, folder;
    bool made;
    int r = make_folder(listener, &made);
    if (r < 0)
        return r;
    if (made && chmod(listener->folder, listener->folder_mode) < 0)
        return dlx__fail_errno("mode of %s", listener->folder);
    if (lstat(listener->folder, &name) < 0 || stat(listener->folder, &folder) < 0)
        return dlx__fail_errno("%s", listener->folder);
    if (name.st_uid != listener->folder_name_uid || folder.st_uid != listener->folder_uid ||
        (folder.st_mode & 07777 & ~listener->folder_mode) != 0)
        return dlx__fail(DLX_E_ACCESS,
                         "the folder %s was of uid %u with mode %04o, and is of uid %u with mode "
                         "%04o: remove it",
                         listener->folder, (unsigned)listener->folder_uid,
                         (unsigned)listener->folder_mode, (unsigned)folder.st_uid,
                         (unsigned)folder.st_mode & 07777U);
    return 0;
}

/* ---- the path and its lock ----------------------------------------------------------------- */

/* The path may be unused or a socket; anything else is left alone. */
static int check_path(const char *path)
{
    struct stat st;
    if (lstat(path, &st) < 0) {
        if (errno == ENOENT)
            return 0;
        return dlx__fail_errno("%s", path);
    }
    if (!S_ISSOCK(st.st_mode))
        return dlx__fail(DLX_E_IN_USE, "%s exists and is not a socket: it is left alone", path);
    return 0;
}

static int report_holder(const struct dlxd_listener *listener)
{
    char text[32] = "";
    ssize_t n = pread(listener->lock_fd, text, sizeof text - 1, 0);
    text[DLX_MAX(n, 0)] = '\0';
    return dlx__fail(DLX_E_IN_USE, "another dlpackd (pid %ld) is listening on %s",
                     strtol(text, NULL, 10), listener->path);
}

/* Does anybody answer? */
static bool is_served(const struct sockaddr_un *address)
{
    dlx_cleanup(dlx__closep) int fd =
        socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return fd < 0 || connect(fd, (const struct sockaddr *)address, sizeof *address) == 0 ||
           (errno != ENOENT && errno != ECONNREFUSED);
}

/* Did a daemon unlink the file at its end, between our open() and flock()? */
static bool is_current(const struct dlxd_listener *listener)
{
    struct stat mine;
    struct stat there;
    return fstat(listener->lock_fd, &mine) == 0 && stat(listener->lock_path, &there) == 0 &&
           mine.st_dev == there.st_dev && mine.st_ino == there.st_ino;
}

/* Anybody who can open a file can hold its lock, so the lock file must be a regular file of this
 * user with no second name. `ret_exposed`: other users can open it, because it was made with
 * another mode. */
static int open_lock(struct dlxd_listener *listener, bool *ret_exposed)
{
    struct stat st;
    dlx__closep(&listener->lock_fd);
    dlx_cleanup(dlx__closep) int fd =
        open(listener->lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 || fstat(fd, &st) < 0)
        return dlx__fail_errno("lock file %s", listener->lock_path);
    if (!S_ISREG(st.st_mode) || st.st_uid != geteuid() || st.st_nlink > 1)
        return dlx__fail(DLX_E_ACCESS,
                         "lock file %s (uid %u, mode %o, %u names) is not a file of uid %u alone: "
                         "remove it",
                         listener->lock_path, (unsigned)st.st_uid, (unsigned)st.st_mode,
                         (unsigned)st.st_nlink, (unsigned)geteuid());
    *ret_exposed = (st.st_mode & (S_IRWXG | S_IRWXO)) != 0;
    listener->lock_fd = dlx__steal_fd(&fd);
    return 0;
}

enum lock_state {
    LOCK_OURS,
    LOCK_AGAIN,   /* the file was replaced, or an ending daemon still holds it */
    LOCK_USELESS, /* exposed: another user holds it or can hold it later */
    LOCK_HELD,
    LOCK_FAILED, /* errno has the reason */
};

static enum lock_state try_lock(const struct dlxd_listener *listener, bool exposed,
                                const struct sockaddr_un *address, uint64_t deadline)
{
    if (flock(listener->lock_fd, LOCK_EX | LOCK_NB) == 0) {
        if (!is_current(listener))
            return LOCK_AGAIN;
        return exposed ? LOCK_USELESS : LOCK_OURS;
    }
    if (errno != EWOULDBLOCK)
        return LOCK_FAILED;
    if (is_served(address))
        return LOCK_HELD;
    if (dlx__now_ns() >= deadline)
        return exposed && is_current(listener) ? LOCK_USELESS : LOCK_HELD;
    (void)poll(NULL, 0, LOCK_POLL_MS);
    return LOCK_AGAIN;
}

static int replace_lock(const struct dlxd_listener *listener, unsigned n_before)
{
    if (n_before > 0)
        return dlx__fail(DLX_E_ACCESS, "others can open the lock file %s, however it is made",
                         listener->lock_path);
    if (unlink(listener->lock_path) < 0 && errno != ENOENT)
        return dlx__fail_errno("removing the lock file %s, which others can open",
                               listener->lock_path);
    dlxd_log(DLXD_LOG_NOTICE, "replaced the lock file %s, which others could open",
             listener->lock_path);
    return 0;
}

static int take_lock(struct dlxd_listener *listener, const struct sockaddr_un *address,
                     uint64_t deadline)
{
    enum lock_state state = LOCK_AGAIN;
    unsigned n_replaced = 0;
    bool exposed = false;
    while (state != LOCK_OURS) {
        int r = open_lock(listener, &exposed);
        if (r < 0)
            return r;
        state = try_lock(listener, exposed, address, deadline);
        if (state == LOCK_USELESS)
            r = replace_lock(listener, n_replaced++);
        else if (state == LOCK_HELD)
            r = report_holder(listener);
        else if (state == LOCK_FAILED)
            r = dlx__fail_errno("locking %s", listener->lock_path);
        if (r < 0) {
            /* Dlxd_listener_deinit() must not unlink another daemon's lock. */
            dlx__closep(&listener->lock_fd);
            return r;
        }
    }

    char text[32];
    int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    if (ftruncate(listener->lock_fd, 0) < 0 ||
        pwrite(listener->lock_fd, text, (size_t)n, 0) != (ssize_t)n)
        return dlx__fail_errno("writing %s", listener->lock_path);
    return 0;
}

/* A socket without a lock is stale, unless another program answers there. */
static int remove_stale(const char *path, const struct sockaddr_un *address)
{
    int r = check_path(path);
    if (r < 0)
        return r;
    dlx_cleanup(dlx__closep) int fd =
        socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return dlx__fail_errno("socket");
    if (connect(fd, (const struct sockaddr *)address, sizeof *address) == 0 || errno == EAGAIN ||
        errno == EPROTOTYPE)
        return dlx__fail(DLX_E_IN_USE, "another program is listening on %s: it is left alone",
                         path);
    if (errno == ENOENT)
        return 0;
    if (errno != ECONNREFUSED)
        return dlx__fail_errno("looking who is on %s", path);
    if (unlink(path) < 0 && errno != ENOENT)
        return dlx__fail_errno("removing the stale socket %s", path);
    dlxd_log(DLXD_LOG_NOTICE, "replaced the stale socket %s", path);
    return 0;
}

/* ---- the socket ---------------------------------------------------------------------------- */

/* Before listen(), nobody can connect. */
static int restrict_file(const struct dlxd_listener *listener)
{
    if (listener->has_group && lchown(listener->path, (uid_t)-1, listener->gid) < 0)
        return dlx__fail_errno("group %u for %s", (unsigned)listener->gid, listener->path);
    /* The mode decides who can connect and get a reply; policy.h decides what they may do. */
    if (chmod(listener->path, listener->mode ? listener->mode : 0666) < 0)
        return dlx__fail_errno("mode of %s", listener->path);
    return 0;
}

static int bind_and_listen(struct dlxd_listener *listener, const struct sockaddr_un *address)
{
    struct stat st;
    listener->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener->fd < 0)
        return dlx__fail_errno("socket");
    dlx__packet_refuse_fds(listener->fd);
    if (bind(listener->fd, (const struct sockaddr *)address, sizeof *address) < 0)
        return dlx__fail_errno("binding to %s", listener->path);
    if (lstat(listener->path, &st) < 0) { /* needed to recognize the file at the end */
        int r = dlx__fail_errno("%s", listener->path);
        (void)unlink(listener->path);
        return r;
    }
    listener->bound = true;
    listener->dev = st.st_dev;
    listener->ino = st.st_ino;
    int r = restrict_file(listener);
    if (r < 0)
        return r;
    if (listen(listener->fd, BACKLOG) < 0)
        return dlx__fail_errno("listening on %s", listener->path);
    return 0;
}

static void unbind(struct dlxd_listener *listener)
{
    if (dlxd_listener_is_at_path(listener))
        (void)unlink(listener->path);
    listener->bound = false;
    dlx__closep(&listener->fd);
}

static struct sockaddr_un address_of(const struct dlxd_listener *listener)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, listener->path, strlen(listener->path));
    return address;
}

static int claim_path(struct dlxd_listener *listener, uint64_t deadline)
{
    const struct sockaddr_un address = address_of(listener);
    int r = check_path(listener->path);
    if (r == 0 && !is_current(listener))
        r = take_lock(listener, &address, deadline);
    if (r == 0)
        r = remove_stale(listener->path, &address);
    if (r == 0)
        r = bind_and_listen(listener, &address);
    return r;
}

/* Takes over the path. */
static int name_files(struct dlxd_listener *listener, char *take_path)
{
    dlx_cleanup(dlx__freep) char *copy = take_path ? strdup(take_path) : NULL;
    listener->path = take_path;
    listener->folder = copy ? strdup(dirname(copy)) : NULL;
    return listener->folder ? 0 : dlx__fail(DLX_E_NO_MEMORY, "out of memory for a path");
}

static int name_lock(struct dlxd_listener *listener)
{
    char *lock_path;
    if (asprintf(&lock_path, "%s.lock", listener->path) < 0)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for a path");
    listener->lock_path = lock_path;
    return 0;
}

static int listener_start(struct dlxd_listener *listener, const char *path)
{
    const size_t path_max = sizeof(((struct sockaddr_un *)0)->sun_path) - 1;
    if (strlen(path) > path_max)
        return dlx__fail(DLX_E_INVALID, "socket path of %zu bytes, at most %zu are possible: %s",
                         strlen(path), path_max, path);
    if (!*path)
        return dlx__fail(DLX_E_INVALID, "empty socket path");
    int r = name_files(listener, strdup(path));
    if (r == 0)
        r = name_lock(listener);
    if (r == 0)
        r = make_folder(listener, &listener->made_folder);
    if (r == 0)
        r = claim_path(listener, dlx__now_ns() + LOCK_WAIT_NS);
    if (r == 0)
        note_folder(listener);
    return r;
}

static int adopt(struct dlxd_listener *listener)
{
    struct sockaddr_un address;
    socklen_t size = sizeof address;
    int flags = fcntl(listener->fd, F_GETFL);
    if (flags < 0 || fcntl(listener->fd, F_SETFL, flags | O_NONBLOCK) < 0)
        return dlx__fail_errno("inherited socket %d", listener->fd);
    dlx__packet_refuse_fds(listener->fd);
    if (getsockname(listener->fd, (struct sockaddr *)&address, &size) < 0)
        return dlx__fail_errno("name of the inherited socket %d", listener->fd);
    size_t path_size = size - DLX_MIN(size, offsetof(struct sockaddr_un, sun_path));
    if (path_size == 0 || address.sun_path[0] == '\0')
        return dlx__fail(DLX_E_INVALID, "inherited socket %d is bound to no path", listener->fd);
    return name_files(listener,
                      strndup(address.sun_path, DLX_MIN(path_size, sizeof address.sun_path)));
}

static int listener_own(struct dlxd_listener *listener, const struct dlxd_listen *how)
{
    dlx_cleanup(dlx__closep) int fd = how->take_lock_fd;
    const struct dlxd_listen_lock *lock = how->borrow_lock;
    /* The fd is the same open file description, so this checks whether the lock is still held. */
    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        return dlx__fail_errno("the lock of %s", listener->path);
    int r = name_lock(listener);
    if (r < 0)
        return r;
    listener->lock_fd = dlx__steal_fd(&fd);
    listener->bound = lock->is_bound;
    listener->made_folder = lock->made_folder;
    listener->dev = (dev_t)lock->dev;
    listener->ino = (ino_t)lock->ino;
    note_folder(listener);
    return 0;
}

int dlxd_listener_init(struct dlxd_listener *listener, const struct dlxd_listen *how)
{
    *listener = (struct dlxd_listener){.fd = how->take_fd,
                                       .lock_fd = -1,
                                       .mode = how->mode,
                                       .has_group = how->has_group,
                                       .gid = how->gid};
    (void)snprintf(listener->name, sizeof listener->name, "%s",
                   how->name ? how->name : DLXD_SOCKET_MAIN);
    int r = how->take_fd < 0 ? listener_start(listener, how->path) : adopt(listener);
    if (r == 0 && how->borrow_lock)
        r = listener_own(listener, how);
    else if (how->borrow_lock)
        dlx__close(how->take_lock_fd);
    if (r < 0)
        dlxd_listener_deinit(listener);
    return r;
}

int dlxd_listener_hand_over(const struct dlxd_listener *listener, struct dlxd_handover *handover)
{
    char lock_name[DLXD_SOCKET_NAME_SIZE + sizeof DLXD_HANDOVER_LOCK_SUFFIX];
    const struct dlxd_listen_lock lock = {.dev = listener->dev,
                                          .ino = listener->ino,
                                          .is_bound = listener->bound,
                                          .made_folder = listener->made_folder};
    (void)snprintf(lock_name, sizeof lock_name, "%s" DLXD_HANDOVER_LOCK_SUFFIX, listener->name);
    int r = dlxd_handover_add(handover, listener->fd, listener->name, true);
    if (r == 0 && listener->lock_fd >= 0)
        r = dlxd_handover_add_lock(handover, listener->lock_fd, lock_name, &lock);
    return r;
}

int dlxd_listener_share(struct dlxd_listener *listener)
{
    struct stat st;
    const char *dir = listener->folder;
    if (listener->made_folder && chmod(dir, 0755) < 0) /* the umask may have restricted it */
        return dlx__fail_errno("mode of %s", dir);
    if (stat(dir, &st) < 0)
        return dlx__fail_errno("%s", dir);
    note_folder(listener);
    if (!(st.st_mode & S_IXOTH))
        dlxd_log(DLXD_LOG_WARNING, "other users cannot reach %s: mode %04o of folder %s",
                 listener->path, (unsigned)st.st_mode & 07777U, dir);
    return 0;
}

/* ---- files that were removed --------------------------------------------------------------- */

bool dlxd_listener_is_ours(const struct dlxd_listener *listener)
{
    return listener->lock_path != NULL;
}

bool dlxd_listener_is_at_path(const struct dlxd_listener *listener)
{
    struct stat st;
    return listener->bound && lstat(listener->path, &st) == 0 && st.st_dev == listener->dev &&
           st.st_ino == listener->ino;
}

void dlxd_listener_restore_lock(struct dlxd_listener *listener)
{
    const struct sockaddr_un address = address_of(listener);
    if (is_current(listener))
        return;
    /* Another daemon that holds it finds our socket, and goes. */
    if (take_lock(listener, &address, dlx__now_ns()) == 0)
        dlxd_log(DLXD_LOG_WARNING, "%s was removed: made it again", listener->lock_path);
}

int dlxd_listener_restore(struct dlxd_listener *listener, bool *ret_is_taken)
{
    unbind(listener);
    if (!is_current(listener))
        dlx__closep(&listener->lock_fd);
    int r = restore_folder(listener);
    if (r == 0)
        r = claim_path(listener, dlx__now_ns());
    if (r < 0)
        unbind(listener);
    const struct sockaddr_un address = address_of(listener);
    *ret_is_taken = r == DLX_E_IN_USE && listener->lock_fd < 0 && is_served(&address);
    return r;
}

void dlxd_listener_deinit(struct dlxd_listener *listener)
{
    unbind(listener);
    if (listener->lock_fd >= 0 && is_current(listener))
        (void)unlink(listener->lock_path);
    dlx__closep(&listener->lock_fd);
    free(listener->path);
    free(listener->folder);
    free(listener->lock_path);
    *listener = (struct dlxd_listener){.fd = -1, .lock_fd = -1};
}
