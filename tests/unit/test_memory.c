/* SPDX-License-Identifier: Apache-2.0 */
/* Regions of every kind of memory: what the writer writes readers see, and only good ones are
 * attached. Sealed memory has one writer from the moment that it is sealed. */
#include "tests/harness/fds.h"
#include "tests/unit/harness_region.h"

#define SIZE (UINT64_C(5) * DLX_PAGE)

static size_t n_fds; /* before the test */

static void setup(void)
{
    n_fds = dlx_test_fds_count();
}

static void teardown(void)
{
    ck_assert_uint_eq(dlx_test_fds_count(), n_fds);
}

/* With the writer's mapping, and proven. */
static struct region region_make(const struct dlx_memory *memory)
{
    struct region region = region_new(memory, SIZE);
    void *map;
    ck_assert_int_eq(dlx__region_populate(memory, dlx_test_fds_dup(region.rw), SIZE, &map), 0);
    ck_assert_int_eq(prove(&region), 0);
    region.map = map;
    return region;
}

static int attach(const struct dlx_memory *memory, int fd, uint64_t size)
{
    const void *map = NULL;
    int r = dlx__region_attach(memory, fd < 0 ? -1 : dlx_test_fds_dup(fd), size, &map);
    ck_assert((r == 0) == (map != NULL));
    dlx__region_unmap(map, size);
    return r;
}

static int populate(const struct dlx_memory *memory, int fd, uint64_t size)
{
    void *map = NULL;
    int r = dlx__region_populate(memory, fd < 0 ? -1 : dlx_test_fds_dup(fd), size, &map);
    ck_assert((r == 0) == (map != NULL));
    dlx__region_unmap(map, size);
    return r;
}

static void refuse_proof(const struct dlx_memory *memory, int fd)
{
    ck_assert_int_eq(dlx__region_prove(memory, fd, SIZE), DLX_E_BAD_PEER);
    ck_assert_ptr_nonnull(strstr(dlx__error_message(), "not made ready"));
}

static void check_all(const uint8_t *bytes, uint8_t value)
{
    for (size_t i = 0; i < SIZE; i++)
        ck_assert_uint_eq(bytes[i], value);
}

MEMORY_TEST(readers_see_each_write_of_the_writer)
{
    const struct dlx_memory *memory = memories[_i];
    const void *readers[3];
    ck_assert_int_eq(dlx__memory_supported(memory), 0);
    ck_assert_uint_eq(dlx_test_fds_count(), n_fds);
    auto_region region = region_make(memory);
    ck_assert_uint_eq(dlx_test_fds_count(), n_fds + 2);
    check_all(region.map, 0);
    memset(region.map, 'a', SIZE);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(readers); i++)
        ck_assert_int_eq(dlx__region_attach(memory, dlx_test_fds_dup(region.ro), SIZE, &readers[i]),
                         0);
    memset(region.map + SIZE / 2, 'b', SIZE / 2);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(readers); i++) {
        ck_assert_mem_eq(readers[i], region.map, SIZE);
        ck_assert_int_ne(mprotect((void *)(uintptr_t)readers[i], SIZE, PROT_READ | PROT_WRITE), 0);
        ck_assert_int_eq(errno, EACCES);
        dlx__region_unmap(readers[i], SIZE);
    }
    dlx__region_unmap(NULL, SIZE);
}

MEMORY_TEST(fds_close_on_exec_and_read_only_ones_cannot_write)
{
    auto_region region = region_make(memories[_i]);
    ck_assert_int_eq(fcntl(region.rw, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    ck_assert_int_eq(fcntl(region.ro, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    ck_assert_int_eq(fcntl(region.rw, F_GETFL) & O_ACCMODE, O_RDWR);
    ck_assert_int_eq(fcntl(region.ro, F_GETFL) & O_ACCMODE, O_RDONLY);
}

/* By any fd of sealed memory; of other memory, by what readers are given. */
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

MEMORY_TEST(readers_cannot_write_by_what_they_were_given)
{
    auto_region region = region_make(memories[_i]);
    memset(region.map, 'a', SIZE);
    nothing_writes_through(region.ro);
    check_all(region.map, 'a');
}

TEST(a_sealed_region_has_no_second_writer)
{
    struct stat st;
    char path[64];
    auto_region region = region_make(MEMFD);
    memset(region.map, 'a', SIZE);
    nothing_writes_through(region.rw);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", region.ro);
    int again = open(path, O_RDWR | O_CLOEXEC); /* the kernel allows it: the file is ours */
    if (again >= 0) {
        nothing_writes_through(again);
        dlx__close(again);
    }
    ck_assert_int_lt(truncate(path, 0), 0);
    dlx__close(open(path, O_RDWR | O_TRUNC | O_CLOEXEC));
    ck_assert_int_eq(fstat(region.ro, &st), 0);
    ck_assert_int_eq(st.st_size, SIZE);
    ck_assert_int_ge(st.st_blocks * 512, SIZE);
    /* Not even the writer takes pages away. */
    ck_assert_int_ne(madvise(region.map, SIZE, MADV_REMOVE), 0);
    check_all(region.map, 'a');
    memset(region.map, 'b', SIZE);
    ck_assert_uint_eq(region.map[SIZE - 1], 'b');
}

TEST(before_sealing_the_size_is_fixed_already)
{
    auto_region region = region_new(MEMFD, SIZE);
    ck_assert_int_lt(ftruncate(region.rw, 0), 0);
    ck_assert_int_lt(ftruncate(region.rw, (off_t)SIZE * 2), 0);
}

MEMORY_TEST(bad_regions_are_not_attached)
{
    static const uint64_t wrong[] = {SIZE - DLX_PAGE, SIZE + DLX_PAGE,  0, 1,
                                     UINT64_MAX,      UINT64_C(1) << 63};
    const struct dlx_memory *memory = memories[_i];
    int fd, writer;
    ck_assert_int_eq(dlx__region_new(memory, "test", UINT64_MAX - DLX_PAGE + 1, &fd, &writer),
                     DLX_E_NO_MEMORY);
    auto_region good = region_make(memory);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(wrong); i++)
        ck_assert_int_eq(attach(memory, good.ro, wrong[i]), DLX_E_PROTOCOL);
    auto_region fresh = region_new(memory, SIZE);
    ck_assert_int_eq(populate(memory, fresh.rw, SIZE + DLX_PAGE), DLX_E_PROTOCOL);

    /* Pages are missing: all, or one. */
    for (uint64_t pages = 0; pages < 5; pages += 4) {
        auto_region region = region_filled(memory, SIZE);
        dlx_test_memory_punch(region.rw, pages * DLX_PAGE, SIZE - pages * DLX_PAGE);
        seal(&region);
        refuse_proof(memory, region.ro);
        ck_assert_int_eq(attach(memory, region.ro, SIZE), DLX_E_PROTOCOL);
    }
}

TEST(regions_that_are_not_sealed_are_not_attached)
{
    auto_region region = region_filled(MEMFD, SIZE);
    ck_assert_int_eq(attach(MEMFD, region.rw, SIZE), DLX_E_PROTOCOL);
    refuse_proof(MEMFD, region.rw);
    /* Without FUTURE_WRITE, without SEAL. */
    ck_assert_int_eq(fcntl(region.rw, F_ADD_SEALS, 0x0010 /* F_SEAL_FUTURE_WRITE */), 0);
    ck_assert_int_eq(attach(MEMFD, region.rw, SIZE), DLX_E_PROTOCOL);
    refuse_proof(MEMFD, region.rw);
    ck_assert_int_eq(fcntl(region.rw, F_ADD_SEALS, F_SEAL_SEAL), 0);
    ck_assert_int_eq(dlx__region_prove(MEMFD, region.rw, SIZE), 0);
    ck_assert_int_eq(attach(MEMFD, region.rw, SIZE), 0);
}

#define LARGE (UINT64_C(9) << 20)

struct steps {
    int fd; /* of the region */
    int n, stop_at;
    uint64_t n_bytes;
};

/* The memory that is there grows with each step. */
static int on_step(void *data, uint64_t n_bytes, bool signalled)
{
    struct steps *steps = data;
    struct stat st;
    ck_assert(!signalled);
    ck_assert_uint_gt(n_bytes, steps->n_bytes);
    ck_assert_uint_le(n_bytes - steps->n_bytes, LARGE / 2);
    ck_assert_int_eq(fstat(steps->fd, &st), 0);
    ck_assert_uint_eq((uint64_t)st.st_blocks * 512, n_bytes);
    steps->n_bytes = n_bytes;
    return ++steps->n == steps->stop_at ? DLX_E_INTERRUPTED : 0;
}

MEMORY_TEST(a_large_region_is_populated_in_steps_that_end_it)
{
    void *map = NULL;
    auto_region region = region_new(memories[_i], LARGE);
    struct steps steps = {.fd = region.ro, .stop_at = 2};
    ck_assert_int_eq(dlx__region_populate_in_steps(memories[_i], dlx_test_fds_dup(region.rw), LARGE,
                                                   on_step, &steps, &map),
                     DLX_E_INTERRUPTED);
    ck_assert_ptr_null(map);
    ck_assert_int_eq(steps.n, 2);
    ck_assert_uint_lt(steps.n_bytes, LARGE);
    auto_region other = region_new(memories[_i], LARGE);
    steps = (struct steps){.fd = other.ro};
    ok(dlx__region_populate_in_steps(memories[_i], dlx_test_fds_dup(other.rw), LARGE, on_step,
                                     &steps, &map));
    ck_assert_uint_eq(steps.n_bytes, LARGE);
    ck_assert_int_eq(prove(&other), 0);
    dlx__region_unmap(map, LARGE);
}

static void refuse_foreign(const struct dlx_memory *memory, int reader, int writer)
{
    ck_assert_int_eq(attach(memory, reader, SIZE), DLX_E_PROTOCOL);
    ck_assert_int_eq(populate(memory, writer, SIZE), DLX_E_PROTOCOL);
    ck_assert_int_eq(dlx__region_prove(memory, reader, SIZE), DLX_E_BAD_PEER);
}

MEMORY_TEST(foreign_fds_are_refused_and_closed)
{
    int fds[2];
    refuse_foreign(memories[_i], -1, -1);
    ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
    refuse_foreign(memories[_i], fds[0], fds[1]);
    dlx__close(fds[0]);
    dlx__close(fds[1]);
}

TEST(a_reader_that_expects_sealed_memory_takes_no_other)
{
    auto_region posix = region_new(&dlx__memory_posix, SIZE);
    ck_assert_int_eq(fallocate(posix.rw, 0, 0, (off_t)SIZE), 0);
    refuse_foreign(MEMFD, posix.ro, posix.rw);
    /* A memfd that can change its size. */
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, (off_t)SIZE), 0);
    dlx_test_memory_fill(fd, SIZE);
    refuse_foreign(MEMFD, fd, fd);
    dlx__close(fd);
}

TEST(backends_are_found_by_name_and_by_tag)
{
    for (size_t i = 0; i < DLX_ARRAY_SIZE(memories); i++) {
        ck_assert_ptr_eq(dlx__memory_by_name(memories[i]->name), memories[i]);
        ck_assert_ptr_eq(dlx__memory_by_tag(memories[i]->tag), memories[i]);
        ck_assert_uint_eq(memories[i]->tag, i); /* the numbers are the protocol's */
    }
    ck_assert_ptr_null(dlx__memory_by_name(""));
    ck_assert_ptr_null(dlx__memory_by_name("memfds"));
    ck_assert_ptr_null(dlx__memory_by_tag(2));
}

int main(void)
{
    TCase *tcase = tcase_create("memory");
    tcase_add_checked_fixture(tcase, setup, teardown);
    return dlx_test_run_case(tcase);
}
