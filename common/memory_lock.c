/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Locks that show the writer of a region that readers unknown to it have mapped the region; and, of
 * regions that several write, who of them is alive.
 *
 * An open file description lock (fcntl(2)) is released with the last reference to its description,
 * and a mapping is such a reference. So no reader has to release it, and a process that dies
 * releases it. Taking it never blocks, unlike sealing (decision 21). It fails while the writer
 * holds a conflicting lock.
 */

#include "common/error.h"
#include "common/memory.h"
#include <fcntl.h>
#include <stdio.h>

/* Returns DLX_E_IN_USE if somebody has a conflicting lock. */
static int reopen(int borrow_fd, int flags, struct flock *lock, int *ret_fd)
{
    char path[32];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", borrow_fd);
    /* O_NONBLOCK: does not wait for a lease that a writer has taken. */
    dlx_cleanup(dlx__closep) int fd = open(path, flags | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return dlx__fail_errno("reopening a region by %s", path);
    if (fcntl(fd, F_OFD_SETLK, lock) < 0)
        return errno == EAGAIN || errno == EACCES
                   ? dlx__fail(DLX_E_IN_USE, "somebody has locked this part of a region")
                   : dlx__fail_errno("locking a region");
    *ret_fd = dlx__steal_fd(&fd);
    return 0;
}

int dlx__region_reopen_locked(int borrow_fd, int *ret_fd)
{
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    int r = reopen(borrow_fd, O_RDONLY, &lock, ret_fd);
    return r == DLX_E_IN_USE ? dlx__fail(DLX_E_SYSTEM, "the writer of a region has locked it") : r;
}

int dlx__region_reopen_owned(int borrow_fd, uint64_t at, int *ret_fd)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)at, .l_len = 1};
    return reopen(borrow_fd, O_RDWR, &lock, ret_fd);
}

bool dlx__region_is_owned(int borrow_fd, uint64_t at)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)at, .l_len = 1};
    return fcntl(borrow_fd, F_OFD_GETLK, &lock) < 0 || lock.l_type != F_UNLCK;
}

void dlx__region_unlock(int borrow_fd)
{
    struct flock lock = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
    (void)fcntl(borrow_fd, F_OFD_SETLK, &lock);
}

bool dlx__region_is_locked(int borrow_fd)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return fcntl(borrow_fd, F_OFD_GETLK, &lock) < 0 || lock.l_type != F_UNLCK;
}
