/* SPDX-License-Identifier: Apache-2.0 */

/* The common part of all backends: allocating, checking and mapping regions. */

#include "common/amount.h"
#include "common/memory.h"
#include "common/error.h"
#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* Memory is allocated in steps, so that the daemon sees it grow, the caller can end it, and a
 * signal (EINTR) undoes little. */
#define POPULATE_STEP (UINT64_C(4) << 20)

/* ---- backends ------------------------------------------------------------------------------ */

static const struct dlx_memory *const backends[] = {&dlx__memory_memfd, &dlx__memory_posix};

const struct dlx_memory *dlx__memory_by_name(const char *name)
{
    for (size_t i = 0; i < DLX_ARRAY_SIZE(backends); i++)
        if (strcmp(backends[i]->name, name) == 0)
            return backends[i];
    return NULL;
}

const struct dlx_memory *dlx__memory_by_tag(uint32_t tag)
{
    for (size_t i = 0; i < DLX_ARRAY_SIZE(backends); i++)
        if (backends[i]->tag == tag)
            return backends[i];
    return NULL;
}

/* ---- steps --------------------------------------------------------------------------------- */

static int check_size(int fd, uint64_t size, bool populated)
{
    struct stat st;
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

/* Shared memory is a file, so RLIMIT_FSIZE (`ulimit -f`) limits its size. */
int dlx__region_resize(int borrow_fd, uint64_t size)
{
    struct rlimit limit;
    if (ftruncate(borrow_fd, (off_t)size) == 0)
        return 0;
    int error = errno;
    if (error == EFBIG && getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        return dlx__fail(DLX_E_LIMIT,
                         "dlpackd was started with a limit of %s a file, and so for %s of shared "
                         "memory: raise RLIMIT_FSIZE (`ulimit -f`)",
                         DLX_AMOUNT(limit.rlim_cur), DLX_AMOUNT(size));
    errno = error;
    return dlx__fail_errno("ftruncate of a region to %s", DLX_AMOUNT(size));
}

static int memory_check(const struct dlx_memory *memory, int fd, uint64_t size,
                        enum dlx_region_state state, bool populated)
{
    int r = memory->check(fd, state);
    return r < 0 ? r : check_size(fd, size, populated);
}

static int map_region(int fd, uint64_t size, int prot, void **ret_map)
{
    if (size == 0 || size > SIZE_MAX / 2)
        return dlx__fail(DLX_E_PROTOCOL, "region of %" PRIu64 " bytes", size);
    void *map = mmap(NULL, (size_t)size, prot, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        if (errno == ENOMEM)
            return dlx__fail(DLX_E_LIMIT,
                             "cannot map %s: out of address space (ulimit -v) or of mappings "
                             "(raise vm.max_map_count)",
                             DLX_AMOUNT(size));
        if (errno == EAGAIN) /* mlockall(MCL_FUTURE) locks it */
            return dlx__fail(DLX_E_LIMIT,
                             "cannot map %s: this process locks its memory, and may not lock that "
                             "much (raise RLIMIT_MEMLOCK: ulimit -l)",
                             DLX_AMOUNT(size));
        return dlx__fail_errno("mmap of %s", DLX_AMOUNT(size));
    }
    if (madvise(map, (size_t)size, MADV_DONTFORK) < 0) {
        int r = dlx__fail_errno("MADV_DONTFORK");
        munmap(map, (size_t)size);
        return r;
    }
    *ret_map = map;
    return 0;
}

/* errno has the reason. The file system of /dev/shm has a size of its own; that of memfds has
 * none. */
static int fail_allocate(int fd, uint64_t size)
{
    struct statvfs fs;
    int error = errno;
    if (error == ENOSPC && fstatvfs(fd, &fs) == 0 && fs.f_blocks > 0)
        return dlx__fail(DLX_E_NO_MEMORY,
                         "/dev/shm has %s of %s left, and %s of shared memory are to be allocated: "
                         "make it larger, or start dlpackd with --memory=memfd",
                         DLX_AMOUNT((uint64_t)fs.f_bavail * fs.f_frsize),
                         DLX_AMOUNT((uint64_t)fs.f_blocks * fs.f_frsize), DLX_AMOUNT(size));
    errno = error;
    return dlx__fail_errno("allocating %s of shared memory", DLX_AMOUNT(size));
}

/* However many signals interrupt it. */
static int allocate_range(int fd, uint64_t at, uint64_t n, uint64_t size)
{
    while (fallocate(fd, 0, (off_t)at, (off_t)n) < 0)
        if (errno != EINTR)
            return fail_allocate(fd, size);
    return 0;
}

/*
 * Allocates and touches `n` bytes: the writer is about to touch every page, one call is cheaper
 * than a fault for each page, and the daemon's proof does not accept untouched pages.
 *
 * madvise() allocates as well, and no signal undoes what it did; fallocate() makes it faster. If
 * madvise() fails, fallocate() says why. Before Linux 5.14 a second fallocate() initializes the
 * pages.
 */
static int populate_step(int fd, uint8_t *map, uint64_t at, uint64_t n, uint64_t size,
                         bool *ret_signalled)
{
    bool is_allocated = fallocate(fd, 0, (off_t)at, (off_t)n) == 0;
    *ret_signalled = !is_allocated && errno == EINTR;
    if ((is_allocated || *ret_signalled) && madvise(map + at, (size_t)n, MADV_POPULATE_WRITE) == 0)
        return 0;
    int r = allocate_range(fd, at, n, size);
    return r < 0 ? r : allocate_range(fd, at, n, size);
}

static int populate(int fd, void *map, uint64_t size, dlx_region_step_fn *step, void *data)
{
    bool signalled;
    int r = 0;
    for (uint64_t at = 0, n; r == 0 && at < size; at += n) {
        n = DLX_MIN(size - at, POPULATE_STEP);
        r = populate_step(fd, map, at, n, size, &signalled);
        if (r == 0 && step)
            r = step(data, at + n, signalled);
    }
    return r;
}

int dlx__region_new(const struct dlx_memory *memory, const char *what, uint64_t size,
                    int *ret_ro_fd, int *ret_writer_fd)
{
    assert(size > 0 && size % DLX_PAGE == 0);
    if (size > INT64_MAX)
        return dlx__fail(DLX_E_NO_MEMORY, "region of %s", DLX_AMOUNT(size));
    return memory->create(what, size, ret_ro_fd, ret_writer_fd);
}

int dlx__region_new_shared(const struct dlx_memory *memory, const char *what, uint64_t size,
                           int *ret_ro_fd, int *ret_writer_fd)
{
    int ro_fd, writer_fd;
    int r = dlx__region_new(memory, what, size, &ro_fd, &writer_fd);
    if (r < 0)
        return r;
    dlx_cleanup(dlx__closep) int ro = ro_fd;
    dlx_cleanup(dlx__closep) int writer = writer_fd;
    r = allocate_range(writer, 0, size, size);
    if (r == 0)
        r = memory->seal_seals(writer);
    if (r < 0)
        return r;
    *ret_ro_fd = dlx__steal_fd(&ro);
    *ret_writer_fd = dlx__steal_fd(&writer);
    return 0;
}

uint64_t dlx__region_inode(int borrow_fd)
{
    struct stat st;
    return fstat(borrow_fd, &st) == 0 ? (uint64_t)st.st_ino : 0;
}

int dlx__region_populate_in_steps(const struct dlx_memory *memory, int take_fd, uint64_t size,
                                  dlx_region_step_fn *step, void *data, void **ret_map)
{
    dlx_cleanup(dlx__closep) int fd = take_fd;
    void *map;
    int r = memory_check(memory, fd, size, DLX_REGION_NEW, false);
    if (r == 0)
        r = map_region(fd, size, PROT_READ | PROT_WRITE, &map);
    if (r < 0)
        return r;
    r = populate(fd, map, size, step, data);
    if (r == 0)
        r = memory->seal(fd);
    if (r < 0)
        munmap(map, (size_t)size);
    else
        *ret_map = map;
    return r;
}

int dlx__region_populate(const struct dlx_memory *memory, int take_fd, uint64_t size,
                         void **ret_map)
{
    return dlx__region_populate_in_steps(memory, take_fd, size, NULL, NULL, ret_map);
}

static int check_pages(int fd, uint64_t size)
{
    void *map;
    int r = map_region(fd, size, PROT_READ, &map);
    if (r < 0)
        return r;
    r = dlx__region_check_pages(fd, map, size);
    munmap(map, (size_t)size);
    return r;
}

int dlx__region_prove(const struct dlx_memory *memory, int borrow_fd, uint64_t size)
{
    /* The order matters: once the region is sealed, nobody can remove pages that were checked. */
    int r = memory->check(borrow_fd, DLX_REGION_SEALED);
    if (r == 0)
        r = check_pages(borrow_fd, size);
    if (r == DLX_E_PROTOCOL)
        return dlx__fail_prefix(DLX_E_BAD_PEER, "region was not made ready by its writer");
    return r;
}

int dlx__region_attach(const struct dlx_memory *memory, int take_fd, uint64_t size,
                       const void **ret_map)
{
    dlx_cleanup(dlx__closep) int fd = take_fd;
    return dlx__region_attach_borrowed(memory, fd, size, ret_map);
}

int dlx__region_attach_borrowed(const struct dlx_memory *memory, int borrow_fd, uint64_t size,
                                const void **ret_map)
{
    void *map;
    int r = memory_check(memory, borrow_fd, size, DLX_REGION_SEALED, true);
    if (r == 0)
        r = map_region(borrow_fd, size, PROT_READ, &map);
    if (r == 0)
        *ret_map = map;
    return r;
}

int dlx__region_share(int take_fd, uint64_t size, void **ret_map)
{
    dlx_cleanup(dlx__closep) int fd = take_fd;
    struct stat st;
    if (fstat(fd, &st) < 0)
        return dlx__fail_errno("fstat of a region");
    if ((uint64_t)st.st_size != size)
        return dlx__fail(DLX_E_PROTOCOL, "region of %" PRId64 " bytes instead of %" PRIu64,
                         (int64_t)st.st_size, size);
    return map_region(fd, size, PROT_READ | PROT_WRITE, ret_map);
}

static int inspect(const struct dlx_memory *memory, int fd, enum dlx_region_state state,
                   bool populated, uint64_t *ret_size)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return dlx__fail_errno("fstat of a region");
    uint64_t size = (uint64_t)st.st_size;
    int r = memory_check(memory, fd, size, state, populated);
    if (r == 0)
        *ret_size = size;
    return r;
}

int dlx__region_inspect(const struct dlx_memory *memory, int borrow_fd, uint64_t *ret_size)
{
    return inspect(memory, borrow_fd, DLX_REGION_SEALED, true, ret_size);
}

int dlx__region_inspect_shared(const struct dlx_memory *memory, int borrow_fd, uint64_t *ret_size)
{
    return inspect(memory, borrow_fd, DLX_REGION_NEW, false, ret_size);
}

/* ---- what this system can do --------------------------------------------------------------- */

/* Runs the four steps with one page. A mincore() that may not tell says that all pages are
 * present. */
static int probe(const struct dlx_memory *memory)
{
    int ro_fd, writer_fd;
    void *map = NULL;
    int r = dlx__region_new(memory, "dlx-probe", DLX_PAGE, &ro_fd, &writer_fd);
    if (r < 0)
        return r;
    dlx_cleanup(dlx__closep) int ro = ro_fd;
    dlx_cleanup(dlx__closep) int writer = writer_fd;
    r = check_pages(ro, DLX_PAGE);
    if (r == 0)
        return dlx__fail(DLX_E_KERNEL, "mincore() does not tell that a page is missing");
    if (r == DLX_E_PROTOCOL)
        r = dlx__region_populate(memory, dlx__steal_fd(&writer), DLX_PAGE, &map);
    if (r < 0)
        return r;
    r = dlx__region_prove(memory, ro, DLX_PAGE);
    dlx__region_unmap(map, DLX_PAGE);
    return r;
}

int dlx__memory_supported(const struct dlx_memory *memory)
{
    int r = memory->supported ? memory->supported() : 0;
    if (r == 0)
        r = probe(memory);
    return r < 0 ? dlx__fail_prefix(DLX_E_KERNEL, "memory = %s", memory->name) : 0;
}

/* ---- copy-on-write views ------------------------------------------------------------------- */

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4 /* Linux 5.7; of files, 5.13 */
#endif

const void *dlx__region_spare(int borrow_fd, uint64_t size)
{
    void *map = mmap(NULL, (size_t)size, PROT_NONE, MAP_PRIVATE, borrow_fd, 0);
    if (map == MAP_FAILED)
        return NULL;
    if (madvise(map, (size_t)size, MADV_DONTFORK) == 0)
        return map;
    munmap(map, (size_t)size);
    return NULL;
}

/* The offset of `at` in its page. */
static size_t in_page(uint64_t at)
{
    return (size_t)(at & ((uint64_t)sysconf(_SC_PAGESIZE) - 1));
}

void *dlx__region_view(const void *spare, uint64_t offset, uint64_t size)
{
    size_t before = in_page(offset);
    char *from = (char *)(uintptr_t)spare + (offset - before);
    /* NULL, because the kernel reads the last argument with these flags. */
    void *map = mremap(from, before + size, before + size, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    if (map == MAP_FAILED)
        return NULL;
    if (mprotect(map, before + size, PROT_READ | PROT_WRITE) == 0)
        return (char *)map + before;
    munmap(map, before + size);
    return NULL;
}

void dlx__region_view_unmap(void *view, uint64_t size)
{
    size_t before = in_page((uintptr_t)view);
    munmap((char *)view - before, before + size);
}

void dlx__region_unmap(const void *map, uint64_t size)
{
    if (map)
        munmap((void *)(uintptr_t)map, (size_t)size);
}
