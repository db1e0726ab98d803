/* SPDX-License-Identifier: Apache-2.0 */
#include "common/listen.h"
#include "common/error.h"
#include "common/packet.h"
#include <fcntl.h>
#include <libgen.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>

/* A program that is ending holds the lock a moment longer than its socket. */
#define LOCK_WAIT_NS UINT64_C(2000000000)
#define LOCK_POLL_MS 2

static void listen_tell(const struct dlx_listen *place, const char *fmt, ...) dlx_printf(2, 3);

static void listen_tell(const struct dlx_listen *place, const char *fmt, ...)
{
    char text[DLX_ERROR_TEXT_SIZE];
    va_list ap;
    if (!place->tell)
        return;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    place->tell(text);
}

/* ---- the folder ---------------------------------------------------------------------------- */

static int make_folder(const struct dlx_listen *place, bool *ret_made)
{
    *ret_made = mkdir(place->folder, 0755) == 0;
    if (!*ret_made && errno != EEXIST)
        return dlx__fail_errno("making the directory of the socket, %s", place->folder);
    if (*ret_made)
        listen_tell(place, "made the folder %s for the socket", place->folder);
    return 0;
}

void dlx__listen_note_folder(struct dlx_listen *place)
{
    struct stat name, folder;
    bool is_there = lstat(place->folder, &name) == 0 && stat(place->folder, &folder) == 0;
    place->folder_name_uid = is_there ? name.st_uid : geteuid();
    place->folder_uid = is_there ? folder.st_uid : geteuid();
    place->folder_mode = is_there ? folder.st_mode & 07777 : 0700;
}

/* Makes a folder that was removed, with its former mode. A folder of that name may be another
 * user's by now, who could replace the files that are made there. */
static int restore_folder(const struct dlx_listen *place)
{
    struct stat name, folder;
    bool made;
    int r = make_folder(place, &made);
    if (r < 0)
        return r;
    if (made && chmod(place->folder, place->folder_mode) < 0)
        return dlx__fail_errno("mode of %s", place->folder);
    if (lstat(place->folder, &name) < 0 || stat(place->folder, &folder) < 0)
        return dlx__fail_errno("%s", place->folder);
    if (name.st_uid != place->folder_name_uid || folder.st_uid != place->folder_uid ||
        (folder.st_mode & 07777 & ~place->folder_mode) != 0)
        return dlx__fail(DLX_E_ACCESS,
                         "the folder %s was of uid %u with mode %04o, and is of uid %u with mode "
                         "%04o: remove it",
                         place->folder, (unsigned)place->folder_uid, (unsigned)place->folder_mode,
                         (unsigned)folder.st_uid, (unsigned)folder.st_mode & 07777U);
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

static int report_holder(const struct dlx_listen *place)
{
    char text[32] = "";
    ssize_t n = pread(place->lock_fd, text, sizeof text - 1, 0);
    text[DLX_MAX(n, 0)] = '\0';
    return dlx__fail(DLX_E_IN_USE, "another %s (pid %ld) is listening on %s", place->program,
                     strtol(text, NULL, 10), place->path);
}

/* Does anybody answer? */
static bool is_served(const struct sockaddr_un *address)
{
    dlx_cleanup(dlx__closep) int fd =
        socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return fd < 0 || connect(fd, (const struct sockaddr *)address, sizeof *address) == 0 ||
           (errno != ENOENT && errno != ECONNREFUSED);
}

/* Did a program unlink the file at its end, between our open() and flock()? */
static bool is_current(const struct dlx_listen *place)
{
    struct stat mine;
    struct stat there;
    return fstat(place->lock_fd, &mine) == 0 && stat(place->lock_path, &there) == 0 &&
           mine.st_dev == there.st_dev && mine.st_ino == there.st_ino;
}

/* Anybody who can open a file can hold its lock, so the lock file must be a regular file of this
 * user with no second name. `ret_exposed`: other users can open it, because it was made with
 * another mode. */
static int open_lock(struct dlx_listen *place, bool *ret_exposed)
{
    struct stat st;
    dlx__closep(&place->lock_fd);
    dlx_cleanup(dlx__closep) int fd =
        open(place->lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 || fstat(fd, &st) < 0)
        return dlx__fail_errno("lock file %s", place->lock_path);
    if (!S_ISREG(st.st_mode) || st.st_uid != geteuid() || st.st_nlink > 1)
        return dlx__fail(DLX_E_ACCESS,
                         "lock file %s (uid %u, mode %o, %u names) is not a file of uid %u alone: "
                         "remove it",
                         place->lock_path, (unsigned)st.st_uid, (unsigned)st.st_mode,
                         (unsigned)st.st_nlink, (unsigned)geteuid());
    *ret_exposed = (st.st_mode & (S_IRWXG | S_IRWXO)) != 0;
    place->lock_fd = dlx__steal_fd(&fd);
    return 0;
}

enum lock_state {
    LOCK_OURS,
    LOCK_AGAIN,   /* the file was replaced, or an ending program still holds it */
    LOCK_USELESS, /* exposed: another user holds it or can hold it later */
    LOCK_HELD,
    LOCK_FAILED, /* errno has the reason */
};

static enum lock_state try_lock(const struct dlx_listen *place, bool exposed,
                                const struct sockaddr_un *address, uint64_t deadline)
{
    if (flock(place->lock_fd, LOCK_EX | LOCK_NB) == 0) {
        if (!is_current(place))
            return LOCK_AGAIN;
        return exposed ? LOCK_USELESS : LOCK_OURS;
    }
    if (errno != EWOULDBLOCK)
        return LOCK_FAILED;
    if (is_served(address))
        return LOCK_HELD;
    if (dlx__now_ns() >= deadline)
        return exposed && is_current(place) ? LOCK_USELESS : LOCK_HELD;
    (void)poll(NULL, 0, LOCK_POLL_MS);
    return LOCK_AGAIN;
}

static int replace_lock(const struct dlx_listen *place, unsigned n_before)
{
    if (n_before > 0)
        return dlx__fail(DLX_E_ACCESS, "others can open the lock file %s, however it is made",
                         place->lock_path);
    if (unlink(place->lock_path) < 0 && errno != ENOENT)
        return dlx__fail_errno("removing the lock file %s, which others can open",
                               place->lock_path);
    listen_tell(place, "replaced the lock file %s, which others could open", place->lock_path);
    return 0;
}

int dlx__listen_sign(const struct dlx_listen *place)
{
    char text[32];
    int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    if (ftruncate(place->lock_fd, 0) < 0 ||
        pwrite(place->lock_fd, text, (size_t)n, 0) != (ssize_t)n)
        return dlx__fail_errno("writing %s", place->lock_path);
    return 0;
}

static int take_lock(struct dlx_listen *place, const struct sockaddr_un *address, uint64_t deadline)
{
    enum lock_state state = LOCK_AGAIN;
    unsigned n_replaced = 0;
    bool exposed = false;
    while (state != LOCK_OURS) {
        int r = open_lock(place, &exposed);
        if (r < 0)
            return r;
        state = try_lock(place, exposed, address, deadline);
        if (state == LOCK_USELESS)
            r = replace_lock(place, n_replaced++);
        else if (state == LOCK_HELD)
            r = report_holder(place);
        else if (state == LOCK_FAILED)
            r = dlx__fail_errno("locking %s", place->lock_path);
        if (r < 0) {
            /* dlx__listen_deinit() must not unlink another program's lock. */
            dlx__closep(&place->lock_fd);
            return r;
        }
    }
    return dlx__listen_sign(place);
}

/* A socket without a lock is stale, unless another program answers there. */
static int remove_stale(const struct dlx_listen *place, const struct sockaddr_un *address)
{
    const char *path = place->path;
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
    listen_tell(place, "replaced the stale socket %s", path);
    return 0;
}

/* ---- the socket ---------------------------------------------------------------------------- */

/* Before listen(), no client can connect. */
static int restrict_file(const struct dlx_listen *place)
{
    if (place->has_group && lchown(place->path, (uid_t)-1, place->gid) < 0)
        return dlx__fail_errno("group %u for %s", (unsigned)place->gid, place->path);
    if (chmod(place->path, place->mode) < 0)
        return dlx__fail_errno("mode of %s", place->path);
    return 0;
}

static int bind_and_listen(struct dlx_listen *place, const struct sockaddr_un *address)
{
    struct stat st;
    place->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (place->fd < 0)
        return dlx__fail_errno("socket");
    if (!place->takes_fds)
        dlx__packet_refuse_fds(place->fd);
    if (bind(place->fd, (const struct sockaddr *)address, sizeof *address) < 0)
        return dlx__fail_errno("binding to %s", place->path);
    if (lstat(place->path, &st) < 0) { /* needed to recognize the file at the end */
        int r = dlx__fail_errno("%s", place->path);
        (void)unlink(place->path);
        return r;
    }
    place->bound = true;
    place->dev = st.st_dev;
    place->ino = st.st_ino;
    int r = restrict_file(place);
    if (r < 0)
        return r;
    if (listen(place->fd, place->backlog) < 0)
        return dlx__fail_errno("listening on %s", place->path);
    return 0;
}

static void unbind(struct dlx_listen *place)
{
    if (dlx__listen_is_at_path(place))
        (void)unlink(place->path);
    place->bound = false;
    dlx__closep(&place->fd);
}

static struct sockaddr_un address_of(const struct dlx_listen *place)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, place->path, strlen(place->path));
    return address;
}

static int claim_path(struct dlx_listen *place, uint64_t deadline)
{
    const struct sockaddr_un address = address_of(place);
    int r = check_path(place->path);
    if (r == 0 && !is_current(place))
        r = take_lock(place, &address, deadline);
    if (r == 0)
        r = remove_stale(place, &address);
    if (r == 0)
        r = bind_and_listen(place, &address);
    return r;
}

int dlx__listen_name_files(struct dlx_listen *place, char *take_path)
{
    dlx_cleanup(dlx__freep) char *copy = take_path ? strdup(take_path) : NULL;
    place->path = take_path;
    place->folder = copy ? strdup(dirname(copy)) : NULL;
    return place->folder ? 0 : dlx__fail(DLX_E_NO_MEMORY, "out of memory for a path");
}

static int name_lock(struct dlx_listen *place)
{
    char *lock_path;
    if (asprintf(&lock_path, "%s.lock", place->path) < 0)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for a path");
    place->lock_path = lock_path;
    return 0;
}

int dlx__listen_start(struct dlx_listen *place, const char *path)
{
    const size_t path_max = sizeof(((struct sockaddr_un *)0)->sun_path) - 1;
    if (strlen(path) > path_max)
        return dlx__fail(DLX_E_INVALID, "socket path of %zu bytes must have at most %zu: %s",
                         strlen(path), path_max, path);
    if (!*path)
        return dlx__fail(DLX_E_INVALID, "empty socket path");
    int r = dlx__listen_name_files(place, strdup(path));
    if (r == 0)
        r = name_lock(place);
    if (r == 0)
        r = make_folder(place, &place->made_folder);
    if (r == 0)
        r = claim_path(place, dlx__now_ns() + LOCK_WAIT_NS);
    if (r == 0)
        dlx__listen_note_folder(place);
    return r;
}

/* ---- files that were removed --------------------------------------------------------------- */

bool dlx__listen_is_at_path(const struct dlx_listen *place)
{
    struct stat st;
    return place->bound && lstat(place->path, &st) == 0 && st.st_dev == place->dev &&
           st.st_ino == place->ino;
}

bool dlx__listen_restore_lock(struct dlx_listen *place)
{
    const struct sockaddr_un address = address_of(place);
    /* Another program that holds it finds our socket, and goes. */
    return !is_current(place) && take_lock(place, &address, dlx__now_ns()) == 0;
}

int dlx__listen_restore(struct dlx_listen *place, bool *ret_is_taken)
{
    unbind(place);
    if (!is_current(place))
        dlx__closep(&place->lock_fd);
    int r = restore_folder(place);
    if (r == 0)
        r = claim_path(place, dlx__now_ns());
    if (r < 0)
        unbind(place);
    const struct sockaddr_un address = address_of(place);
    *ret_is_taken = r == DLX_E_IN_USE && place->lock_fd < 0 && is_served(&address);
    return r;
}

bool dlx__listen_is_served(const struct dlx_listen *place)
{
    const struct sockaddr_un address = address_of(place);
    return is_served(&address);
}

int dlx__listen_take_lock(struct dlx_listen *place, int take_lock_fd)
{
    dlx_cleanup(dlx__closep) int fd = take_lock_fd;
    /* The fd is the same open file description, so this checks whether the lock is still held. */
    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        return dlx__fail_errno("the lock of %s", place->path);
    int r = name_lock(place);
    if (r < 0)
        return r;
    place->lock_fd = dlx__steal_fd(&fd);
    dlx__listen_note_folder(place);
    return 0;
}

/* ---- the end ------------------------------------------------------------------------------- */

void dlx__listen_unlink(const struct dlx_listen *place)
{
    if (dlx__listen_is_at_path(place))
        (void)unlink(place->path);
    if (place->lock_fd >= 0 && is_current(place))
        (void)unlink(place->lock_path);
}

void dlx__listen_deinit(struct dlx_listen *place)
{
    dlx__listen_unlink(place);
    dlx__closep(&place->fd);
    dlx__closep(&place->lock_fd);
    free(place->path);
    free(place->folder);
    free(place->lock_path);
    *place = DLX_LISTEN_NONE();
}
