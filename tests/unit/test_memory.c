/* SPDX-License-Identifier: Apache-2.0 */
/* Regions have one writer from the moment that they are sealed, and only sealed ones are
 * attached. */
#include "common/memory.h"
#include "tests/harness/fds.h"
#include "tests/harness/memory.h"
#include "tests/harness/run.h"

#define SIZE  (UINT64_C(5) * DLX_PAGE)
#define MEMFD (&dlx__memory_memfd)

/* Step 1, without the daemon's fd. */
static int region_new(uint64_t size, int *ret_writer_fd)
{
    int ro;
    int r = dlx__region_new(MEMFD, "test", size, &ro, ret_writer_fd);
    if (r == 0)
        dlx__close(ro);
    return r;
}

/* Steps 1 to 3: a writer's mapping, and fds of both kinds. */
struct region {
    uint8_t *map;
    int rw; /* the writer's, which it would have closed */
    int ro;
};

static void region_init(struct region *region)
{
    void *map;
    ck_assert_int_eq(dlx__region_new(MEMFD, "test", SIZE, &region->ro, &region->rw), 0);
    ck_assert_int_eq(dlx__region_populate(MEMFD, dlx_test_fds_dup(region->rw), SIZE, &map), 0);
    ck_assert_int_eq(dlx__region_prove(MEMFD, region->ro, SIZE), 0);
    region->map = map;
}

static void region_deinit(struct region *region)
{
    dlx__region_unmap(region->map, SIZE);
    dlx__close(region->rw);
    dlx__close(region->ro);
}

/* ---- the four steps ------------------------------------------------------------------------ */

TEST(what_the_writer_writes_readers_see)
{
    size_t before = dlx_test_fds_count();
    struct region region;
    const void *readers[3];
    ck_assert_int_eq(dlx__memory_supported(MEMFD), 0);
    ck_assert_uint_eq(dlx_test_fds_count(), before);
    region_init(&region);
    for (size_t i = 0; i < SIZE; i++)
        ck_assert_uint_eq(region.map[i], 0);
    memset(region.map, 'a', SIZE);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(readers); i++)
        ck_assert_int_eq(dlx__region_attach(MEMFD, dlx_test_fds_dup(region.ro), SIZE, &readers[i]),
                         0);
    memset(region.map + SIZE / 2, 'b', SIZE / 2);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(readers); i++) {
        ck_assert_mem_eq(readers[i], region.map, SIZE);
        ck_assert_int_ne(mprotect((void *)(uintptr_t)readers[i], SIZE, PROT_READ | PROT_WRITE), 0);
        ck_assert_int_eq(errno, EACCES);
        dlx__region_unmap(readers[i], SIZE);
    }
    dlx__region_unmap(NULL, SIZE);
    region_deinit(&region);
    ck_assert_uint_eq(dlx_test_fds_count(), before);
}

TEST(fds_close_on_exec_and_read_only_ones_cannot_write)
{
    struct region region;
    region_init(&region);
    ck_assert_int_eq(fcntl(region.rw, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    ck_assert_int_eq(fcntl(region.ro, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    ck_assert_int_eq(fcntl(region.ro, F_GETFL) & O_ACCMODE, O_RDONLY);
    region_deinit(&region);
}

static void nothing_writes_through(int fd)
{
    ck_assert_ptr_eq(mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    ck_assert_ptr_eq(mmap(NULL, SIZE, PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    void *map = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(map, MAP_FAILED);
    ck_assert_int_ne(mprotect(map, SIZE, PROT_READ | PROT_WRITE), 0);
    ck_assert_int_ne(madvise(map, SIZE, MADV_REMOVE), 0);
    munmap(map, SIZE);
    ck_assert_int_lt(write(fd, "x", 1), 0);
    ck_assert_int_lt(pwrite(fd, "x", 1, DLX_PAGE), 0);
    ck_assert_int_lt(ftruncate(fd, 0), 0);
    ck_assert_int_lt(ftruncate(fd, (off_t)SIZE * 2), 0);
    ck_assert_int_lt(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, DLX_PAGE), 0);
    ck_assert_int_lt(fallocate(fd, 0, (off_t)SIZE, DLX_PAGE), 0);
    ck_assert_int_lt(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
}

TEST(a_sealed_region_has_no_second_writer)
{
    struct region region;
    struct stat st;
    char path[64];
    region_init(&region);
    memset(region.map, 'a', SIZE);
    nothing_writes_through(region.rw);
    nothing_writes_through(region.ro);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", region.ro);
    int again = open(path, O_RDWR | O_CLOEXEC); /* the kernel allows it: the file is ours */
    if (again >= 0) {
        nothing_writes_through(again);
        dlx__close(again);
    }
    ck_assert_int_lt(truncate(path, 0), 0);
    again = open(path, O_RDWR | O_TRUNC | O_CLOEXEC);
    dlx__close(again);
    ck_assert_int_eq(fstat(region.ro, &st), 0);
    ck_assert_int_eq(st.st_size, SIZE);
    ck_assert_int_ge(st.st_blocks * 512, SIZE);
    /* Not even the writer takes pages away. */
    ck_assert_int_ne(madvise(region.map, SIZE, MADV_REMOVE), 0);
    for (size_t i = 0; i < SIZE; i++)
        ck_assert_uint_eq(region.map[i], 'a');
    memset(region.map, 'b', SIZE);
    ck_assert_uint_eq(region.map[SIZE - 1], 'b');
    region_deinit(&region);
}

TEST(before_sealing_the_size_is_fixed_already)
{
    int fd;
    ck_assert_int_eq(region_new(SIZE, &fd), 0);
    ck_assert_int_lt(ftruncate(fd, 0), 0);
    ck_assert_int_lt(ftruncate(fd, (off_t)SIZE * 2), 0);
    dlx__close(fd);
    ck_assert_int_eq(region_new(UINT64_MAX - DLX_PAGE + 1, &fd), DLX_E_NO_MEMORY);
}

/* ---- what is refused ----------------------------------------------------------------------- */

TEST(bad_regions_are_not_attached)
{
    size_t before = dlx_test_fds_count();
    struct region region;
    const void *map = NULL;
    int fd;
    region_init(&region);
    static const uint64_t wrong[] = {SIZE - DLX_PAGE, SIZE + DLX_PAGE,  0, 1,
                                     UINT64_MAX,      UINT64_C(1) << 63};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(wrong); i++)
        ck_assert_int_eq(dlx__region_attach(MEMFD, dlx_test_fds_dup(region.ro), wrong[i], &map),
                         DLX_E_PROTOCOL);
    region_deinit(&region);

    /* Populated, but not sealed. */
    ck_assert_int_eq(region_new(SIZE, &fd), 0);
    dlx_test_memory_fill(fd, SIZE);
    ck_assert_int_eq(dlx__region_attach(MEMFD, dlx_test_fds_dup(fd), SIZE, &map), DLX_E_PROTOCOL);
    ck_assert_int_eq(dlx__region_prove(MEMFD, fd, SIZE), DLX_E_BAD_PEER);
    /* Without FUTURE_WRITE, without SEAL. */
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, 0x0010 /* F_SEAL_FUTURE_WRITE */), 0);
    ck_assert_int_eq(dlx__region_attach(MEMFD, dlx_test_fds_dup(fd), SIZE, &map), DLX_E_PROTOCOL);
    ck_assert_int_eq(dlx__region_prove(MEMFD, fd, SIZE), DLX_E_BAD_PEER);
    ck_assert_ptr_nonnull(strstr(dlx__error_message(), "not made ready"));
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL), 0);
    ck_assert_int_eq(dlx__region_prove(MEMFD, fd, SIZE), 0);
    ck_assert_int_eq(dlx__region_attach(MEMFD, dlx_test_fds_dup(fd), SIZE, &map), 0);
    dlx__region_unmap(map, SIZE);
    dlx__close(fd);

    /* Sealed, but pages are missing: all, or one. */
    for (off_t pages = 0; pages < 5; pages += 4) {
        map = NULL;
        ck_assert_int_eq(region_new(SIZE, &fd), 0);
        dlx_test_memory_fill(fd, SIZE);
        ck_assert_int_eq(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, pages * DLX_PAGE,
                                   (off_t)SIZE - pages * DLX_PAGE),
                         0);
        ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, 0x0010 | F_SEAL_SEAL), 0);
        ck_assert_int_eq(dlx__region_prove(MEMFD, fd, SIZE), DLX_E_BAD_PEER);
        ck_assert_ptr_nonnull(strstr(dlx__error_message(), "not made ready"));
        ck_assert_int_eq(dlx__region_attach(MEMFD, fd, SIZE, &map), DLX_E_PROTOCOL);
        ck_assert_ptr_null(map);
    }
    ck_assert_uint_eq(dlx_test_fds_count(), before);
}

TEST(foreign_fds_are_refused_and_closed)
{
    size_t before = dlx_test_fds_count();
    const void *map = NULL;
    void *writable = NULL;
    int fds[2];
    ck_assert_int_eq(dlx__region_attach(MEMFD, -1, SIZE, &map), DLX_E_PROTOCOL);
    ck_assert_int_eq(dlx__region_populate(MEMFD, -1, SIZE, &writable), DLX_E_PROTOCOL);
    ck_assert_int_eq(dlx__region_prove(MEMFD, -1, SIZE), DLX_E_BAD_PEER);

    ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
    ck_assert_int_eq(dlx__region_attach(MEMFD, dlx_test_fds_dup(fds[0]), SIZE, &map),
                     DLX_E_PROTOCOL);
    ck_assert_int_eq(dlx__region_populate(MEMFD, fds[1], SIZE, &writable), DLX_E_PROTOCOL);
    ck_assert_int_eq(dlx__region_prove(MEMFD, fds[0], SIZE), DLX_E_BAD_PEER);
    dlx__close(fds[0]);

    /* A memfd that can change its size, and one of another size. */
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, (off_t)SIZE), 0);
    ck_assert_int_eq(dlx__region_populate(MEMFD, dlx_test_fds_dup(fd), SIZE, &writable),
                     DLX_E_PROTOCOL);
    dlx_test_memory_fill(fd, SIZE);
    ck_assert_int_eq(dlx__region_prove(MEMFD, fd, SIZE), DLX_E_BAD_PEER);
    dlx__close(fd);
    ck_assert_int_eq(region_new(SIZE, &fd), 0);
    ck_assert_int_eq(dlx__region_populate(MEMFD, dlx_test_fds_dup(fd), SIZE + DLX_PAGE, &writable),
                     DLX_E_PROTOCOL);
    dlx__close(fd);
    ck_assert_ptr_null(map);
    ck_assert_ptr_null(writable);
    ck_assert_uint_eq(dlx_test_fds_count(), before);
}

int main(void)
{
    return dlx_test_run_case(tcase_create("memory"));
}
