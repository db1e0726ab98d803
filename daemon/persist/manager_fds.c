/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/persist/manager_fds.h"
#include "common/error.h"
#include "common/util.h"
#include "daemon/persist/handover.h"
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIRST_FD 3

/* Parses a whole number that is not negative; returns -1 for anything else. */
static long manager_fds_parse(const char *text)
{
    char *end;
    if (!text || *text < '0' || *text > '9')
        return -1;
    errno = 0;
    long value = strtol(text, &end, 10);
    return *end || errno ? -1 : value;
}

static int manager_fds_add(struct dlxd_manager_fds *manager_fds, int fd, const char *name,
                           size_t name_size)
{
    struct dlxd_manager_fd *to = &manager_fds->fds[manager_fds->n];
    to->name = strndup(name, name_size);
    if (!to->name)
        return DLX_E_NO_MEMORY;
    to->fd = fd;
    manager_fds->n++;
    return fcntl(fd, F_SETFD, FD_CLOEXEC) < 0 ? dlx__fail_errno("inherited descriptor %d", fd) : 0;
}

static int manager_fds_fill(struct dlxd_manager_fds *manager_fds, size_t n, const char *names)
{
    manager_fds->fds = calloc(n, sizeof *manager_fds->fds);
    if (!manager_fds->fds)
        return DLX_E_NO_MEMORY;
    for (size_t i = 0; i < n; i++) {
        size_t size = names ? strcspn(names, ":") : 0;
        int r = names ? manager_fds_add(manager_fds, FIRST_FD + (int)i, names, size)
                      : manager_fds_add(manager_fds, FIRST_FD + (int)i, "unknown",
                                        sizeof "unknown" - 1);
        if (r < 0)
            return r;
        if (!names)
            continue;
        names += size;
        if ((*names == ':') != (i + 1 < n))
            return dlx__fail(DLX_E_INVALID, "LISTEN_FDNAMES does not have %zu names", n);
        names += *names == ':';
    }
    return 0;
}

int dlxd_manager_fds_init(struct dlxd_manager_fds *manager_fds)
{
    *manager_fds = (struct dlxd_manager_fds){.n = 0};
    int r = dlxd_handover_take(manager_fds);
    if (r < 0)
        dlxd_manager_fds_deinit(manager_fds);
    if (r < 0 || manager_fds->is_handed_over)
        return r;
    long n = manager_fds_parse(getenv("LISTEN_FDS"));
    if (n <= 0 || manager_fds_parse(getenv("LISTEN_PID")) != (long)getpid())
        return 0;
    r = n > INT_MAX / 2 ? dlx__fail(DLX_E_INVALID, "LISTEN_FDS=%ld", n)
                        : manager_fds_fill(manager_fds, (size_t)n, getenv("LISTEN_FDNAMES"));
    (void)unsetenv("LISTEN_PID");
    (void)unsetenv("LISTEN_FDS");
    (void)unsetenv("LISTEN_FDNAMES");
    if (r == DLX_E_NO_MEMORY)
        r = dlx__fail(r, "out of memory for %ld inherited descriptors", n);
    if (r < 0)
        dlxd_manager_fds_deinit(manager_fds);
    return r;
}

static bool is_socket(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode);
}

static bool has_option(int fd, int option, int value)
{
    int have;
    socklen_t size = sizeof have;
    return getsockopt(fd, SOL_SOCKET, option, &have, &size) == 0 && have == value;
}

static int check_listener(const struct dlxd_manager_fd *it)
{
    if (has_option(it->fd, SO_DOMAIN, AF_UNIX) && has_option(it->fd, SO_TYPE, SOCK_SEQPACKET) &&
        has_option(it->fd, SO_ACCEPTCONN, 1))
        return 0;
    return dlx__fail(DLX_E_INVALID,
                     "inherited descriptor %d (%s) is not a Unix SOCK_SEQPACKET socket that "
                     "listens: ListenSequentialPacket= makes one",
                     it->fd, it->name);
}

#define UNIT_SUFFIX ".socket"

/* The size of the name without the suffix of a unit. */
static size_t name_size(const struct dlxd_manager_fd *it)
{
    size_t size = strlen(it->name), suffix = strlen(UNIT_SUFFIX);
    bool is_unit = size > suffix && strcmp(it->name + size - suffix, UNIT_SUFFIX) == 0;
    return is_unit ? size - suffix : size;
}

static bool has_name(const struct dlxd_manager_fd *it, const char *name)
{
    size_t size = name_size(it);
    return strlen(name) == size && strncmp(it->name, name, size) == 0;
}

int dlxd_manager_fds_take_listen_fd(struct dlxd_manager_fds *manager_fds, const char *name,
                                    int *ret_fd)
{
    struct dlxd_manager_fd *found = NULL;
    for (size_t i = 0; i < manager_fds->n; i++) {
        struct dlxd_manager_fd *it = &manager_fds->fds[i];
        if (it->taken || !is_socket(it->fd) || (name && !has_name(it, name)))
            continue;
        int r = check_listener(it);
        if (r < 0)
            return r;
        if (found && name)
            return dlx__fail(DLX_E_INVALID,
                             "inherited descriptors %d (%s) and %d (%s) are both socket %s: give "
                             "each a unit, and a name by FileDescriptorName=",
                             found->fd, found->name, it->fd, it->name, name);
        if (found)
            return dlx__fail(DLX_E_INVALID,
                             "inherited descriptors %d (%s) and %d (%s) are sockets: a "
                             "configuration with a section [socket NAME] for each tells them apart",
                             found->fd, found->name, it->fd, it->name);
        found = it;
    }
    if (found)
        found->taken = true;
    *ret_fd = found ? found->fd : -1;
    return 0;
}

static const struct dlxd_manager_fd *find_left_listener(const struct dlxd_manager_fds *manager_fds)
{
    for (size_t i = 0; i < manager_fds->n; i++)
        if (!manager_fds->fds[i].taken && is_socket(manager_fds->fds[i].fd))
            return &manager_fds->fds[i];
    return NULL;
}

const char *dlxd_manager_fds_dropped_listen_fd(const struct dlxd_manager_fds *manager_fds)
{
    const struct dlxd_manager_fd *it =
        manager_fds->is_handed_over ? find_left_listener(manager_fds) : NULL;
    return it ? it->name : NULL;
}

int dlxd_manager_fds_check_listen_fds(const struct dlxd_manager_fds *manager_fds)
{
    const struct dlxd_manager_fd *it =
        manager_fds->is_handed_over ? NULL : find_left_listener(manager_fds);
    return it ? dlx__fail(DLX_E_INVALID,
                          "inherited descriptor %d (%s) is a socket that the configuration does "
                          "not describe: it has no [socket %.*s]",
                          it->fd, it->name, (int)name_size(it), it->name)
              : 0;
}

int dlxd_manager_fds_take_lock(struct dlxd_manager_fds *manager_fds, const char *name,
                               struct dlxd_listen_lock *ret)
{
    size_t size = strlen(name);
    for (size_t i = 0; manager_fds->is_handed_over && i < manager_fds->n; i++) {
        struct dlxd_manager_fd *it = &manager_fds->fds[i];
        if (strncmp(it->name, name, size) != 0 ||
            strcmp(it->name + size, DLXD_HANDOVER_LOCK_SUFFIX) != 0)
            continue;
        it->taken = true;
        *ret = it->lock;
        return it->fd;
    }
    return -1;
}

void dlxd_manager_fds_deinit(struct dlxd_manager_fds *manager_fds)
{
    for (size_t i = 0; i < manager_fds->n; i++) {
        if (!manager_fds->fds[i].taken)
            dlx__close(manager_fds->fds[i].fd);
        free(manager_fds->fds[i].name);
    }
    free(manager_fds->fds);
    *manager_fds = (struct dlxd_manager_fds){.n = 0};
}
