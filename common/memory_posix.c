/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The posix backend, for systems without F_SEAL_FUTURE_WRITE. A file of /dev/shm has a name only
 * until it is opened by that name a second time, read-only. So the backend works without /proc, the
 * daemon holds one descriptor for each region, and a daemon that is killed in between leaves an
 * empty file. Readers get the read-only descriptor; the daemon closes the writer's after sending
 * it.
 */
#include "common/error.h"
#include "common/memory.h"
#include "common/shm_name.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* A cleaner of /dev/shm, or a daemon in another pid namespace, may remove a name in between. */
#define ATTEMPTS 8

static int compare_files(int a, int b, bool *ret_same)
{
    struct stat st, other;
    if (fstat(a, &st) < 0 || fstat(b, &other) < 0)
        return dlx__fail_errno("fstat of a region");
    *ret_same = st.st_dev == other.st_dev && st.st_ino == other.st_ino;
    return 0;
}

/* Returns 0; 1 if the name was lost in between; or an error. */
static int open_twice(const char *what, int *ret_rw, int *ret_ro)
{
    char name[DLX_SHM_NAME_SIZE];
    int r = dlx__shm_name_make(name);
    if (r < 0)
        return r;
    dlx_cleanup(dlx__closep) int rw = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
    if (rw < 0)
        return dlx__fail_errno("shm_open for %s", what);
    /* The umask of the process may have removed the owner's permissions. */
    if (fchmod(rw, 0600) < 0)
        r = dlx__fail_errno("fchmod of a region");
    dlx_cleanup(dlx__closep) int ro = r < 0 ? -1 : shm_open(name, O_RDONLY, 0);
    if (r == 0 && ro < 0)
        r = errno == ENOENT ? 1 : dlx__fail_errno("shm_open, read-only, for %s", what);
    bool same = false;
    if (r == 0)
        r = compare_files(rw, ro, &same);
    if (r == 0 && !same)
        return 1; /* the name now belongs to somebody else, who may need it */
    (void)shm_unlink(name);
    if (r == 0) {
        *ret_rw = dlx__steal_fd(&rw);
        *ret_ro = dlx__steal_fd(&ro);
    }
    return r;
}

static int posix_new(const char *what, uint64_t size, int *ret_ro_fd, int *ret_writer_fd)
{
    int rw_fd = -1, ro_fd = -1, r = 1;
    for (int i = 0; r == 1 && i < ATTEMPTS; i++)
        r = open_twice(what, &rw_fd, &ro_fd);
    if (r < 0)
        return r;
    dlx_cleanup(dlx__closep) int rw = rw_fd;
    dlx_cleanup(dlx__closep) int ro = ro_fd;
    if (r == 1)
        return dlx__fail(DLX_E_SYSTEM,
                         "somebody removes names from /dev/shm as soon as they are "
                         "made: %d attempts for %s failed",
                         ATTEMPTS, what);
    r = dlx__region_resize(rw, size);
    if (r < 0)
        return r;
    *ret_ro_fd = dlx__steal_fd(&ro);
    *ret_writer_fd = dlx__steal_fd(&rw);
    return 0;
}

/* Only files in kernel memory answer F_GET_SEALS, so a foreign fd is refused here. */
static int posix_check(int borrow_fd, enum dlx_region_state state)
{
    (void)state;
    if (fcntl(borrow_fd, F_GET_SEALS) < 0)
        return dlx__fail(DLX_E_PROTOCOL, "region is not shared memory");
    return 0;
}

/* This backend seals nothing. The proof finds only the omissions of an honest writer. */
static int posix_seal(int borrow_writer_fd)
{
    (void)borrow_writer_fd;
    return 0;
}

const struct dlx_memory dlx__memory_posix = {
    .name = "posix",
    .tag = 1,
    .create = posix_new,
    .seal = posix_seal,
    .seal_seals = posix_seal,
    .check = posix_check,
};
