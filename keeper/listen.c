/* SPDX-License-Identifier: Apache-2.0 */
#include "keeper/listen.h"
#include "common/error.h"
#include "common/packet.h"
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#define BACKLOG 16
#define FIRST   3 /* of the service manager: sd_listen_fds(3) */
/* A keeper that is ending holds the lock a moment longer than its socket. */
#define LOCK_WAIT_NS UINT64_C(2000000000)
#define LOCK_POLL_MS 2

static bool is_served(const struct sockaddr_un *address)
{
    dlx_cleanup(dlx__closep) int fd =
        socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return fd >= 0 &&
           (connect(fd, (const struct sockaddr *)address, sizeof *address) == 0 || errno == EAGAIN);
}

/* Did a keeper unlink the file at its end, between our open() and flock()? */
static bool is_current(const struct dlxk_listen *listen)
{
    struct stat mine, there;
    return fstat(listen->lock_fd, &mine) == 0 && stat(listen->lock_path, &there) == 0 &&
           mine.st_dev == there.st_dev && mine.st_ino == there.st_ino;
}

/* Returns 0 if the lock is ours; 1 if another keeper serves. */
static int take_lock(struct dlxk_listen *listen, const struct sockaddr_un *address)
{
    uint64_t deadline = dlx__now_ns() + LOCK_WAIT_NS;
    for (;;) {
        listen->lock_fd = open(listen->lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (listen->lock_fd < 0)
            return dlx__fail_errno("lock file %s", listen->lock_path);
        if (flock(listen->lock_fd, LOCK_EX | LOCK_NB) == 0 && is_current(listen))
            return 0;
        dlx__closep(&listen->lock_fd);
        if (is_served(address))
            return 1;
        if (dlx__now_ns() >= deadline)
            return dlx__fail(DLX_E_IN_USE, "another process has locked %s, and does not listen",
                             listen->lock_path);
        (void)poll(NULL, 0, LOCK_POLL_MS);
    }
}

static int bind_and_listen(struct dlxk_listen *x, const struct sockaddr_un *address)
{
    if (unlink(x->path) < 0 && errno != ENOENT)
        return dlx__fail_errno("removing the stale socket %s", x->path);
    x->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (x->fd < 0)
        return dlx__fail_errno("socket");
    mode_t before = umask(0177);
    int r = bind(x->fd, (const struct sockaddr *)address, sizeof *address);
    (void)umask(before);
    if (r < 0 || listen(x->fd, BACKLOG) < 0)
        return dlx__fail_errno("listening on %s", x->path);
    return 0;
}

int dlxk_listen_init(struct dlxk_listen *listen, const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    *listen = (struct dlxk_listen){.fd = -1, .lock_fd = -1, .path = path};
    if (!*path || strlen(path) >= sizeof address.sun_path)
        return dlx__fail(DLX_E_INVALID, "socket path of %zu bytes, 1 to %zu are possible: %s",
                         strlen(path), sizeof address.sun_path - 1, path);
    memcpy(address.sun_path, path, strlen(path));
    if (asprintf(&listen->lock_path, "%s.lock", path) < 0) {
        listen->lock_path = NULL;
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for a path");
    }
    int r = take_lock(listen, &address);
    if (r == 0)
        r = bind_and_listen(listen, &address);
    if (r != 0)
        dlxk_listen_deinit(listen);
    return r;
}

int dlxk_listen_inherit(struct dlxk_listen *listen)
{
    const char *n = getenv("LISTEN_FDS"), *pid = getenv("LISTEN_PID");
    int is_listener = 0;
    socklen_t size = sizeof is_listener;
    *listen = (struct dlxk_listen){.fd = -1, .lock_fd = -1};
    if (!n || !pid || strtol(pid, NULL, 10) != (long)getpid())
        return 0;
    if (strtol(n, NULL, 10) != 1 ||
        getsockopt(FIRST, SOL_SOCKET, SO_ACCEPTCONN, &is_listener, &size) < 0 || !is_listener)
        return dlx__fail(DLX_E_INVALID, "LISTEN_FDS=%s: one socket to listen on is possible", n);
    (void)fcntl(FIRST, F_SETFD, FD_CLOEXEC);
    (void)fcntl(FIRST, F_SETFL, O_NONBLOCK);
    listen->fd = FIRST;
    return 1;
}

void dlxk_listen_deinit(struct dlxk_listen *listen)
{
    if (listen->lock_fd >= 0) {
        if (listen->fd >= 0)
            (void)unlink(listen->path);
        (void)unlink(listen->lock_path);
    }
    listen->fd = dlx__close(listen->fd);
    listen->lock_fd = dlx__close(listen->lock_fd);
    free(listen->lock_path);
    listen->lock_path = NULL;
}
