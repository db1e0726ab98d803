/* SPDX-License-Identifier: Apache-2.0 */

/* The memfd backend: the kernel enforces what memory.h promises, against everybody. */

#include "common/error.h"
#include "common/memory.h"
#include <fcntl.h>
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

static int memfd_create_best(const char *name)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL) /* before Linux 6.3 */
        fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    return fd;
}

/* Reopens the file before anybody else has it: a lease that its writer takes later could block
 * this. */
static int open_read_only(int borrow_fd, int *ret_ro_fd)
{
    char path[32];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", borrow_fd);
    int ro = open(path, O_RDONLY | O_CLOEXEC);
    if (ro < 0 && errno == ENOENT)
        return dlx__fail(DLX_E_KERNEL,
                         "there is no %s: without /proc no region can be opened read-only; "
                         "--memory posix needs none, and promises less",
                         path);
    if (ro < 0)
        return dlx__fail_errno("reopening a region read-only by %s", path);
    *ret_ro_fd = ro;
    return 0;
}

static int memfd_new(const char *what, uint64_t size, int *ret_ro_fd, int *ret_writer_fd)
{
    dlx_cleanup(dlx__closep) int fd = memfd_create_best(what);
    if (fd < 0)
        return dlx__fail_errno("memfd_create %s", what);
    int r = dlx__region_resize(fd, size);
    if (r < 0)
        return r;
    if (fchmod(fd, 0600) < 0)
        return dlx__fail_errno("fchmod of a region");
    if (fcntl(fd, F_ADD_SEALS, SIZE_SEALS) < 0)
        return dlx__fail_errno("sealing the size of a region");
    r = open_read_only(fd, ret_ro_fd);
    if (r == 0)
        *ret_writer_fd = dlx__steal_fd(&fd);
    return r;
}

static int memfd_seal(int borrow_writer_fd)
{
    if (fcntl(borrow_writer_fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) < 0)
        return dlx__fail_errno("sealing a region");
    return 0;
}

static int memfd_seal_seals(int borrow_writer_fd)
{
    if (fcntl(borrow_writer_fd, F_ADD_SEALS, F_SEAL_SEAL) < 0)
        return dlx__fail_errno("sealing the seals of a region");
    return 0;
}

/* Only memfds and tmpfs files answer F_GET_SEALS, so a foreign fd is refused here. */
static int memfd_check(int borrow_fd, enum dlx_region_state state)
{
    int seals = state == DLX_REGION_SEALED ? ALL_SEALS : SIZE_SEALS;
    int have = fcntl(borrow_fd, F_GET_SEALS);
    if (have < 0 || (have & seals) != seals)
        return dlx__fail(DLX_E_PROTOCOL, "region is not sealed: seals %#x, needed %#x",
                         have < 0 ? 0U : (unsigned)have, (unsigned)seals);
    return 0;
}

/* Tries everything that a region needs: a file, its size, the seals, and /proc. */
static int memfd_supported(void)
{
    int ro, writer;
    int r = memfd_new("dlx-probe", DLX_PAGE, &ro, &writer);
    if (r < 0)
        return r;
    if (fcntl(writer, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) < 0)
        r = dlx__fail(DLX_E_KERNEL, "the kernel has no F_SEAL_FUTURE_WRITE (Linux 5.1 or newer "
                                    "is needed); --memory posix does without, and promises less");
    dlx__close(ro);
    dlx__close(writer);
    return r;
}

const struct dlx_memory dlx__memory_memfd = {
    .name = "memfd",
    .tag = 0,
    .supported = memfd_supported,
    .create = memfd_new,
    .seal = memfd_seal,
    .seal_seals = memfd_seal_seals,
    .check = memfd_check,
};
