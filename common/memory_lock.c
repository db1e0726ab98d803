/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Locks that tell a region's writer that others have it mapped, whom it does not know.
 *
 * An open file description lock (fcntl(2)) goes with the last reference to its description, and a
 * mapping is one. So nobody has to let go of it, and a process that dies does. Taking it never
 * blocks, unlike sealing (decision 21). It fails while the writer holds a conflicting lock.
 */

#include "common/error.h"
#include "common/memory.h"
#include <fcntl.h>
#include <stdio.h>

int dlx__region_reopen_locked(int borrow_fd, int *ret_fd)
{
    char path[32];
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", borrow_fd);
    /* Not to wait for a lease that the writer took. */
    dlx_cleanup(dlx__closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return dlx__fail_errno("reopening a region by %s", path);
    if (fcntl(fd, F_OFD_SETLK, &lock) < 0)
        return dlx__fail_errno("locking a region");
    *ret_fd = dlx__steal_fd(&fd);
    return 0;
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
