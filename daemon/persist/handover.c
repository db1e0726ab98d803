/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/persist/handover.h"
#include "common/error.h"
#include "common/proto.h"
#include "common/util.h"
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define VERSION   1U
#define NAME_SIZE 104
#define ITEMS_MAX (1U << 20)
#define SEALS     (F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL)
#define FIRST_FD  3

enum { ITEM_NOT_STORED = 1, ITEM_BOUND = 2, ITEM_MADE_FOLDER = 4 };

struct dlxd_handover_item {
    int32_t fd; /* -1: nothing is passed, and the manager must forget the name */
    uint32_t flags;
    uint64_t socket_dev; /* of the socket's file, for a lock file */
    uint64_t socket_ino;
    char name[NAME_SIZE];
};

struct header {
    char magic[16];
    uint32_t version;
    uint32_t item_size;
    uint32_t n_items;
    uint32_t pid;
    uint8_t reserved[32]; /* 0 */
};

_Static_assert(sizeof(struct dlxd_handover_item) == 128, "the layout is that of every release");
_Static_assert(sizeof(struct header) == 64, "likewise");

static const char magic[16] = "dlpackd handover";

const char *dlxd_handover_version(void)
{
    static char text[32];
    (void)snprintf(text, sizeof text, "%u.%u", VERSION, (unsigned)DLX_PROTO_MAJOR);
    return text;
}

int dlxd_handover_check_version(const char *version)
{
    if (strcmp(version, dlxd_handover_version()) == 0)
        return 0;
    return dlx__fail(DLX_E_VERSION,
                     "the daemon hands over in version %.40s, and dlpackd %s takes over in version "
                     "%s: restart it instead",
                     version, DLX_VERSION_STRING, dlxd_handover_version());
}

/* ---- the side that hands over ---------------------------------------------------------------- */

void dlxd_handover_init(struct dlxd_handover *handover)
{
    *handover = (struct dlxd_handover){.fd = -1, .ledger = {.fd = -1}};
}

void dlxd_handover_deinit(struct dlxd_handover *handover)
{
    dlx__close(handover->fd);
    dlxd_ledger_deinit(&handover->ledger);
    free(handover->items);
    dlxd_handover_init(handover);
}

static struct dlxd_handover_item *handover_add(struct dlxd_handover *handover, int fd,
                                               const char *name)
{
    if (handover->n == handover->n_max) {
        size_t n = handover->n_max ? handover->n_max * 2 : 64;
        struct dlxd_handover_item *items = reallocarray(handover->items, n, sizeof *items);
        if (!items) {
            (void)dlx__fail(DLX_E_NO_MEMORY, "out of memory to hand over %zu descriptors", n);
            return NULL;
        }
        handover->items = items;
        handover->n_max = n;
    }
    struct dlxd_handover_item *item = &handover->items[handover->n++];
    *item = (struct dlxd_handover_item){.fd = fd};
    (void)snprintf(item->name, sizeof item->name, "%s", name);
    return item;
}

int dlxd_handover_add(struct dlxd_handover *handover, int fd, const char *name, bool not_stored)
{
    struct dlxd_handover_item *item = handover_add(handover, fd, name);
    if (!item)
        return DLX_E_NO_MEMORY;
    item->flags = not_stored ? (uint32_t)ITEM_NOT_STORED : 0;
    return 0;
}

int dlxd_handover_add_lock(struct dlxd_handover *handover, int fd, const char *name,
                           const struct dlxd_listen_lock *lock)
{
    struct dlxd_handover_item *item = handover_add(handover, fd, name);
    if (!item)
        return DLX_E_NO_MEMORY;
    item->flags = ITEM_NOT_STORED | (lock->is_bound ? (uint32_t)ITEM_BOUND : 0) |
                  (lock->made_folder ? (uint32_t)ITEM_MADE_FOLDER : 0);
    item->socket_dev = lock->dev;
    item->socket_ino = lock->ino;
    return 0;
}

static int write_all(int fd, const void *data, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t n = write(fd, (const char *)data + done, size - done);
        if (n < 0)
            return dlx__fail_errno("writing what is handed over");
        done += (size_t)n;
    }
    return 0;
}

static int set_cloexec(const struct dlxd_handover *handover, bool set)
{
    for (size_t i = 0; i < handover->n; i++)
        if (handover->items[i].fd >= 0 &&
            fcntl(handover->items[i].fd, F_SETFD, set ? FD_CLOEXEC : 0) < 0)
            return dlx__fail_errno("descriptor %d, %s, to be handed over", handover->items[i].fd,
                                   handover->items[i].name);
    if (fcntl(handover->fd, F_SETFD, set ? FD_CLOEXEC : 0) < 0)
        return dlx__fail_errno("the table of what is handed over");
    return 0;
}

int dlxd_handover_write(struct dlxd_handover *handover)
{
    struct header header = {.version = VERSION,
                            .item_size = sizeof *handover->items,
                            .n_items = (uint32_t)handover->n,
                            .pid = (uint32_t)getpid()};
    memcpy(header.magic, magic, sizeof magic);
    handover->fd = memfd_create("dlx-handover", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (handover->fd < 0)
        return dlx__fail_errno("memfd_create dlx-handover");
    int r = write_all(handover->fd, &header, sizeof header);
    if (r == 0)
        r = write_all(handover->fd, handover->items, handover->n * sizeof *handover->items);
    if (r == 0 && fcntl(handover->fd, F_ADD_SEALS, SEALS) < 0)
        r = dlx__fail_errno("sealing what is handed over");
    return r < 0 ? r : set_cloexec(handover, false);
}

void dlxd_handover_undo(struct dlxd_handover *handover)
{
    if (handover->fd >= 0)
        (void)set_cloexec(handover, true);
}

/* ---- the side that takes over ---------------------------------------------------------------- */

/* Parses "PID:FD". Returns false if it is not for this process. */
static bool parse_variable(const char *text, int *ret_fd)
{
    char *end;
    errno = 0;
    long pid = strtol(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != ':' || errno || pid != (long)getpid())
        return false;
    text = end + 1;
    long fd = strtol(text, &end, 10);
    *ret_fd = *text < '0' || *text > '9' || *end || errno || fd > INT_MAX ? -1 : (int)fd;
    return true;
}

static int handover_check_header(int fd, struct header *ret)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return dlx__fail_errno("descriptor %d", fd);
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS)
        return dlx__fail(DLX_E_INVALID, "descriptor %d is not a sealed memfd", fd);
    ssize_t n = pread(fd, ret, sizeof *ret, 0);
    if (n < 0)
        return dlx__fail_errno("reading descriptor %d", fd);
    if (n != (ssize_t)sizeof *ret || memcmp(ret->magic, magic, sizeof magic) != 0)
        return dlx__fail(DLX_E_INVALID, "descriptor %d is not what a dlpackd has written", fd);
    if (ret->version != VERSION || ret->item_size != sizeof(struct dlxd_handover_item))
        return dlx__fail(DLX_E_VERSION,
                         "it has version %u (items of %u bytes), and dlpackd %s reads version %u "
                         "(items of %zu bytes)",
                         ret->version, ret->item_size, DLX_VERSION_STRING, VERSION,
                         sizeof(struct dlxd_handover_item));
    if (ret->pid != (uint32_t)getpid())
        return dlx__fail(DLX_E_INVALID, "it is for process %u", ret->pid);
    if (ret->n_items > ITEMS_MAX ||
        (uint64_t)st.st_size != sizeof *ret + (uint64_t)ret->n_items * ret->item_size)
        return dlx__fail(DLX_E_INVALID, "it has %jd bytes for %u descriptors", (intmax_t)st.st_size,
                         ret->n_items);
    return 0;
}

static int check_item(const struct dlxd_handover_item *item, int table_fd)
{
    if (memchr(item->name, '\0', sizeof item->name) == NULL || item->name[0] == '\0')
        return dlx__fail(DLX_E_INVALID, "descriptor %d has no name", item->fd);
    if (item->fd == -1)
        return 0;
    if (item->fd < FIRST_FD || item->fd == table_fd)
        return dlx__fail(DLX_E_INVALID, "descriptor %d cannot be %s", item->fd, item->name);
    if (fcntl(item->fd, F_GETFD) < 0)
        return dlx__fail_errno("descriptor %d, %s", item->fd, item->name);
    return 0;
}

/* Gives each name a descriptor of its own, which is close-on-exec. The first use of a number keeps
 * it. */
static int handover_own(int fd, int *ret)
{
    int flags = fcntl(fd, F_GETFD);
    bool is_first = flags >= 0 && !(flags & FD_CLOEXEC);
    *ret = is_first ? fd : fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (*ret < 0 || (is_first && fcntl(fd, F_SETFD, FD_CLOEXEC) < 0))
        return dlx__fail_errno("descriptor %d", fd);
    return 0;
}

static int take_item(struct dlxd_manager_fds *manager_fds, const struct dlxd_handover_item *item)
{
    struct dlxd_manager_fd *to = &manager_fds->fds[manager_fds->n];
    *to = (struct dlxd_manager_fd){.fd = -1,
                                   .not_stored = item->flags & ITEM_NOT_STORED,
                                   .lock = {.dev = item->socket_dev,
                                            .ino = item->socket_ino,
                                            .is_bound = item->flags & ITEM_BOUND,
                                            .made_folder = item->flags & ITEM_MADE_FOLDER}};
    to->name = strdup(item->name);
    if (!to->name)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for %s", item->name);
    manager_fds->n++;
    return item->fd < 0 ? 0 : handover_own(item->fd, &to->fd);
}

static int take_all(struct dlxd_manager_fds *manager_fds, const struct header *header, int fd)
{
    struct dlxd_handover_item item;
    manager_fds->fds = calloc((size_t)header->n_items + 1, sizeof *manager_fds->fds);
    if (!manager_fds->fds)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for %u descriptors", header->n_items);
    for (uint32_t i = 0; i < header->n_items; i++) {
        off_t at = (off_t)(sizeof *header + (size_t)i * sizeof item);
        int r = pread(fd, &item, sizeof item, at) == (ssize_t)sizeof item
                    ? check_item(&item, fd)
                    : dlx__fail_errno("reading its table");
        if (r == 0)
            r = take_item(manager_fds, &item);
        if (r < 0)
            return r;
    }
    manager_fds->is_handed_over = true;
    return 0;
}

int dlxd_handover_take(struct dlxd_manager_fds *manager_fds)
{
    const char *text = getenv(DLXD_HANDOVER_VARIABLE);
    struct header header;
    int fd = -1;
    bool is_ours = text && parse_variable(text, &fd);
    (void)unsetenv(DLXD_HANDOVER_VARIABLE);
    if (!is_ours)
        return 0;
    int r = fd < FIRST_FD ? dlx__fail(DLX_E_INVALID, "it names no descriptor") : 0;
    if (r == 0)
        r = handover_check_header(fd, &header);
    if (r == 0)
        r = take_all(manager_fds, &header, fd);
    if (fd >= FIRST_FD)
        dlx__close(fd);
    return r < 0 ? dlx__fail_prefix(r, "what " DLXD_HANDOVER_VARIABLE " hands over") : 0;
}
