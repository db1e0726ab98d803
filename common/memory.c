/* SPDX-License-Identifier: Apache-2.0 */
#include "common/memory.h"
#include "common/error.h"
#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* Linux 6.3 */
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010 /* Linux 5.1 */
#endif

#define SIZE_SEALS (F_SEAL_GROW | F_SEAL_SHRINK)
#define ALL_SEALS  (SIZE_SEALS | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)

/* Memory is asked for in pieces, so that a signal does not undo (EINTR) an allocation of gigabytes. */
#define POPULATE_CHUNK (UINT64_C(64) << 20)

static int memfd_create_best(const char *name)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL) /* before Linux 6.3 */
        fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    return fd;
}

int dlx__memfd_supported(void)
{
    dlx_cleanup(dlx__closep) int fd = memfd_create_best("dlx-probe");
    if (fd < 0)
        return dlx__fail_errno("memfd_create");
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) < 0)
        return dlx__fail(DLX_E_KERNEL,
                         "the kernel has no F_SEAL_FUTURE_WRITE (Linux 5.1 or newer is needed)");
    return 0;
}

int dlx__memfd_new(const char *name, uint64_t size, int *ret_fd)
{
    assert(size > 0 && size % DLX_PAGE == 0);
    if (size > INT64_MAX)
        return dlx__fail(DLX_E_NO_MEMORY, "region of %" PRIu64 " bytes", size);
    dlx_cleanup(dlx__closep) int fd = memfd_create_best(name);
    if (fd < 0)
        return dlx__fail_errno("memfd_create %s", name);
    if (ftruncate(fd, (off_t)size) < 0)
        return dlx__fail_errno("ftruncate of a region to %" PRIu64 " bytes", size);
    if (fchmod(fd, 0600) < 0)
        return dlx__fail_errno("fchmod of a region");
    if (fcntl(fd, F_ADD_SEALS, SIZE_SEALS) < 0)
        return dlx__fail_errno("sealing the size of a region");
    *ret_fd = dlx__steal_fd(&fd);
    return 0;
}

/* Is it a memfd with these seals, of this size, and, if asked, with all its pages there? Only memfds
 * (and tmpfs) answer F_GET_SEALS, so a foreign fd does not get any further. */
static int check_region(int fd, uint64_t size, int seals, bool populated)
{
    struct stat st;
    int have = fcntl(fd, F_GET_SEALS);
    if (have < 0 || (have & seals) != seals)
        return dlx__fail(DLX_E_PROTOCOL, "region is not sealed: seals %#x, needed %#x",
                         have < 0 ? 0U : (unsigned)have, (unsigned)seals);
    if (fstat(fd, &st) < 0)
        return dlx__fail_errno("fstat of a region");
    if (st.st_size < 0 || (uint64_t)st.st_size != size)
        return dlx__fail(DLX_E_PROTOCOL, "region has %jd bytes, announced were %" PRIu64,
                         (intmax_t)st.st_size, size);
    if (populated && (uint64_t)st.st_blocks * 512 < size)
        return dlx__fail(DLX_E_PROTOCOL, "region of %" PRIu64 " bytes has only %jd bytes of memory",
                         size, (intmax_t)st.st_blocks * 512);
    return 0;
}

static int map_region(int fd, uint64_t size, int prot, void **ret_map)
{
    if (size == 0 || size > SIZE_MAX / 2)
        return dlx__fail(DLX_E_PROTOCOL, "region of %" PRIu64 " bytes", size);
    void *map = mmap(NULL, (size_t)size, prot, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        if (errno == ENOMEM)
            return dlx__fail(DLX_E_LIMIT,
                             "cannot map %" PRIu64 " bytes: out of address space or of mappings "
                             "(vm.max_map_count)",
                             size);
        return dlx__fail_errno("mmap of %" PRIu64 " bytes", size);
    }
    if (madvise(map, (size_t)size, MADV_DONTFORK) < 0) {
        int r = dlx__fail_errno("MADV_DONTFORK");
        munmap(map, (size_t)size);
        return r;
    }
    *ret_map = map;
    return 0;
}

int dlx__region_populate(int take_fd, uint64_t size, void **ret_map)
{
    dlx_cleanup(dlx__closep) int fd = take_fd;
    int r = check_region(fd, size, SIZE_SEALS, false);
    if (r < 0)
        return r;
    for (uint64_t done = 0; done < size;) {
        uint64_t n = DLX_MIN(size - done, POPULATE_CHUNK);
        if (fallocate(fd, 0, (off_t)done, (off_t)n) == 0) {
            done += n;
        } else if (errno != EINTR) {
            return dlx__fail_errno("allocating %" PRIu64 " bytes of shared memory", size);
        }
    }
    r = map_region(fd, size, PROT_READ | PROT_WRITE, ret_map);
    /* The writer is about to touch all of it: one call now is cheaper than a fault a page then. Without it
     * (before Linux 5.14) the faults come. */
    if (r == 0)
        (void)madvise(*ret_map, size, MADV_POPULATE_WRITE);
    return r;
}

/* The same file behind a new description that cannot write. */
static int reopen_read_only(int fd, int *ret_fd)
{
    char path[32];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int ro = open(path, O_RDONLY | O_CLOEXEC);
    if (ro < 0)
        return dlx__fail_errno("reopening a region read-only by %s", path);
    *ret_fd = ro;
    return 0;
}

int dlx__memfd_seal(int take_fd, uint64_t size, int *ret_ro_fd)
{
    dlx_cleanup(dlx__closep) int fd = take_fd;
    dlx_cleanup(dlx__closep) int ro = -1;
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) < 0)
        return dlx__fail_errno("sealing a region");
    /* Only now can nobody punch holes any more. */
    int r = check_region(fd, size, ALL_SEALS, true);
    if (r == DLX_E_PROTOCOL)
        return dlx__fail_prefix(DLX_E_BAD_PEER, "region was not made ready by its writer");
    if (r < 0)
        return r;
    r = reopen_read_only(fd, &ro);
    if (r < 0)
        return r;
    *ret_ro_fd = dlx__steal_fd(&ro);
    return 0;
}

int dlx__region_attach(int take_fd, uint64_t size, const void **ret_map)
{
    dlx_cleanup(dlx__closep) int fd = take_fd;
    void *map;
    int r = check_region(fd, size, ALL_SEALS, true);
    if (r < 0)
        return r;
    r = map_region(fd, size, PROT_READ, &map);
    if (r < 0)
        return r;
    *ret_map = map;
    return 0;
}

int dlx__membership_map(int borrow_fd, uint64_t size, void **ret_map)
{
    /* The daemon pays: every page is there before a reader could touch it. */
    while (fallocate(borrow_fd, 0, 0, (off_t)size) < 0)
        if (errno != EINTR)
            return dlx__fail_errno("allocating a membership page");
    return map_region(borrow_fd, size, PROT_READ | PROT_WRITE, ret_map);
}

int dlx__membership_reopen(int borrow_fd, int *ret_ro_fd)
{
    return reopen_read_only(borrow_fd, ret_ro_fd);
}

int dlx__membership_attach(int take_fd, uint64_t size, const void **ret_map)
{
    dlx_cleanup(dlx__closep) int fd = take_fd;
    void *map;
    int r = check_region(fd, size, SIZE_SEALS, true);
    if (r < 0)
        return r;
    r = map_region(fd, size, PROT_READ, &map);
    if (r < 0)
        return r;
    *ret_map = map;
    return 0;
}

void dlx__region_unmap(const void *map, uint64_t size)
{
    if (map)
        munmap((void *)(uintptr_t)map, (size_t)size);
}
