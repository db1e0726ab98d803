/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/persist/ledger.h"
#include "common/error.h"
#include "common/proto.h"
#include "common/util.h"
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define ENTRY ((off_t)sizeof(struct dlxd_ledger_entry))
#define GROWS 64U

_Static_assert(DLX_PAGE % sizeof(struct dlxd_ledger_entry) == 0, "no entry crosses a page");

/* At the place of entry 0. */
struct header {
    char magic[16];
    uint32_t version;
    uint32_t entry_size;
};

static const struct header header = {"dlpackd ledger", DLX_PROTO_MAJOR,
                                     sizeof(struct dlxd_ledger_entry)};

static int reserve(struct dlxd_ledger *ledger, uint32_t n)
{
    bool *used = reallocarray(ledger->used, (size_t)n + 1, sizeof *used);
    if (!used)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for a ledger of %u publishers", n);
    memset(used + ledger->n + 1, 0, n - ledger->n);
    ledger->used = used;
    ledger->n = n;
    return 0;
}

int dlxd_ledger_init(struct dlxd_ledger *ledger)
{
    *ledger = (struct dlxd_ledger){.fd = memfd_create("dlx-ledger", MFD_CLOEXEC)};
    if (ledger->fd < 0)
        return dlx__fail_errno("memfd_create dlx-ledger");
    int r = pwrite(ledger->fd, &header, sizeof header, 0) == (ssize_t)sizeof header
                ? 0
                : dlx__fail_errno("writing a ledger");
    if (r < 0)
        dlxd_ledger_deinit(ledger);
    return r;
}

static int ledger_check_header(int fd)
{
    struct header seen;
    ssize_t n = pread(fd, &seen, sizeof seen, 0);
    if (n < 0)
        return dlx__fail_errno("reading a ledger");
    if (n != (ssize_t)sizeof seen || memcmp(seen.magic, header.magic, sizeof seen.magic) != 0)
        return dlx__fail(DLX_E_VERSION, "it is not a ledger of dlpackd");
    if (seen.version != header.version || seen.entry_size != header.entry_size)
        return dlx__fail(DLX_E_VERSION,
                         "it is a ledger of version %u (entries of %u bytes), and dlpackd %s reads "
                         "version %u (entries of %u bytes)",
                         seen.version, seen.entry_size, DLX_VERSION_STRING, header.version,
                         header.entry_size);
    return 0;
}

int dlxd_ledger_open(struct dlxd_ledger *ledger, int take_fd)
{
    struct stat st;
    struct dlxd_ledger_entry entry;
    *ledger = (struct dlxd_ledger){.fd = take_fd};
    int r = fstat(take_fd, &st) < 0 ? dlx__fail_errno("fstat of a ledger")
                                    : ledger_check_header(take_fd);
    if (r == 0)
        r = reserve(ledger, (uint32_t)DLX_MIN(DLX_MAX(st.st_size / ENTRY, 1) - 1, INT32_MAX));
    if (r < 0) {
        dlxd_ledger_deinit(ledger);
        return r;
    }
    for (uint32_t i = 1; i <= ledger->n; i++)
        ledger->used[i] = dlxd_ledger_get(ledger, i, &entry);
    return 0;
}

void dlxd_ledger_deinit(struct dlxd_ledger *ledger)
{
    dlx__close(ledger->fd);
    free(ledger->used);
    *ledger = (struct dlxd_ledger){.fd = -1};
}

static int ledger_write_entry(const struct dlxd_ledger *ledger, uint32_t index,
                              const struct dlxd_ledger_entry *entry)
{
    ssize_t n = pwrite(ledger->fd, entry, sizeof *entry, (off_t)index * ENTRY);
    if (n == ENTRY)
        return 0;
    if (n >= 0) /* RLIMIT_FSIZE lies within the entry */
        errno = EFBIG;
    return dlx__fail_errno("writing entry %u of the ledger", index);
}

static int free_index(struct dlxd_ledger *ledger, uint32_t *ret)
{
    uint32_t i = 1;
    while (i <= ledger->n && ledger->used[i])
        i++;
    int r = i > ledger->n ? reserve(ledger, ledger->n + GROWS) : 0;
    *ret = i;
    return r;
}

int dlxd_ledger_put(struct dlxd_ledger *ledger, uint32_t index,
                    const struct dlxd_ledger_entry *entry)
{
    int r = index ? 0 : free_index(ledger, &index);
    if (r == 0)
        r = ledger_write_entry(ledger, index, entry);
    if (r < 0)
        return r;
    ledger->used[index] = true;
    return (int)index;
}

void dlxd_ledger_remove(struct dlxd_ledger *ledger, uint32_t index)
{
    static const struct dlxd_ledger_entry empty;
    /* If clearing fails, the entry has no regions any more, and the next daemon drops it. */
    (void)ledger_write_entry(ledger, index, &empty);
    ledger->used[index] = false;
}

bool dlxd_ledger_get(const struct dlxd_ledger *ledger, uint32_t index,
                     struct dlxd_ledger_entry *ret)
{
    if (pread(ledger->fd, ret, sizeof *ret, (off_t)index * ENTRY) != ENTRY || ret->id == 0)
        return false;
    ret->client_name[sizeof ret->client_name - 1] = '\0';
    ret->topic[sizeof ret->topic - 1] = '\0';
    ret->socket[sizeof ret->socket - 1] = '\0';
    ret->workers_socket[sizeof ret->workers_socket - 1] = '\0';
    return true;
}
