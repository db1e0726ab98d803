/* SPDX-License-Identifier: Apache-2.0 */

/* A region that passes the proof keeps all of its pages, whatever its writer does. */

#include "tests/harness/fds.h"
#include "tests/harness/fork.h"
#include "tests/unit/harness_region.h"
#include <inttypes.h>

/* More pages than one step of the proof looks at. */
#define PAGES UINT64_C(5000)
#define SIZE  (PAGES * DLX_PAGE)

static uint64_t blocks(int fd)
{
    struct stat st;
    ck_assert_int_eq(fstat(fd, &st), 0);
    return (uint64_t)st.st_blocks;
}

static bool blocks_are_complete(const struct region *region)
{
    return blocks(region->ro) * 512 >= region->size;
}

MEMORY_TEST(a_single_hole_is_found_wherever_it_is)
{
    static const uint64_t holes[] = {0, 1, 4095, 4096, PAGES - 1};
    size_t before = dlx_test_fds_count();
    for (size_t i = 0; i < DLX_ARRAY_SIZE(holes); i++) {
        auto_region region = region_filled(memories[_i], SIZE);
        dlx_test_memory_punch(region.rw, holes[i] * DLX_PAGE, DLX_PAGE);
        seal(&region);
        ck_assert_int_eq(prove(&region), DLX_E_BAD_PEER);
        char at[64];
        (void)snprintf(at, sizeof at, "page at %" PRIu64 " of", holes[i] * (uint64_t)DLX_PAGE);
        ck_assert_msg(strstr(dlx__error_message(), at), "%s", dlx__error_message());
    }
    ck_assert_uint_eq(dlx_test_fds_count(), before);
}

/* Otherwise the process that looks would pay. */
MEMORY_TEST(to_look_at_pages_does_not_allocate_them)
{
    auto_region region = region_new(memories[_i], SIZE);
    seal(&region);
    ck_assert_int_eq(prove(&region), DLX_E_BAD_PEER);
    ck_assert_uint_eq(blocks(region.ro), 0);
}

MEMORY_TEST(a_writer_that_has_done_its_part_passes)
{
    void *map;
    auto_region region = region_new(memories[_i], SIZE);
    ck_assert_int_eq(prove(&region), DLX_E_BAD_PEER);
    ck_assert_int_eq(dlx__region_populate(region.memory, dlx_test_fds_dup(region.rw), SIZE, &map),
                     0);
    ck_assert_int_eq(prove(&region), 0);
    dlx__region_unmap(map, SIZE);
}

/* The kernel takes such pages back when a fallocate() is killed before its end. */
MEMORY_TEST(pages_that_were_allocated_and_never_touched_do_not_pass)
{
    uint8_t byte;
    auto_region region = region_new(memories[_i], SIZE);
    ck_assert_int_eq(fallocate(region.rw, 0, 0, (off_t)SIZE), 0);
    seal(&region);
    ck_assert(blocks_are_complete(&region));
    ck_assert_int_eq(prove(&region), DLX_E_BAD_PEER);
    ck_assert_int_eq(pread(region.ro, &byte, 1, 0), 1);
    ck_assert_int_eq(prove(&region), DLX_E_BAD_PEER);
    /* A second one makes them the file's, as a touch would: it is what populating does where no
     * other call can. */
    ck_assert_int_eq(fallocate(region.rw, 0, 0, (off_t)SIZE), 0);
    ck_assert_int_eq(prove(&region), 0);
}

static pid_t start_allocating(const struct region *region)
{
    pid_t pid = dlx_test_fork();
    if (pid == 0)
        for (;;)
            (void)!fallocate(region->rw, 0, 0, (off_t)region->size);
    return pid;
}

/* All pages but the first are there; then a call that allocates that one is under way: every block
 * counts. */
MEMORY_TEST(an_allocation_that_has_not_ended_does_not_pass)
{
    auto_region region = region_filled(memories[_i], UINT64_C(256) << 20);
    dlx_test_memory_punch(region.rw, 0, DLX_PAGE);
    seal(&region);
    pid_t pid = dlx_test_fork();
    if (pid == 0)
        _exit(fallocate(region.rw, 0, 0, (off_t)region.size) != 0);
    while (!blocks_are_complete(&region))
        continue;
    int r = prove(&region);
    dlx_test_fork_kill(pid);
    ck_assert_int_eq(r, DLX_E_BAD_PEER);
}

MEMORY_TEST(region_that_has_passed_stays_when_allocations_are_killed)
{
    auto_region region = region_filled(memories[_i], UINT64_C(16) << 20);
    seal(&region);
    ck_assert_int_eq(prove(&region), 0);
    for (int i = 0; i < 100; i++) {
        dlx_test_fork_kill(start_allocating(&region));
        ck_assert(blocks_are_complete(&region));
    }
    ck_assert_int_eq(prove(&region), 0);
}

static bool is_in_memory(const struct region *region)
{
    static uint8_t there[PAGES];
    void *map = mmap(NULL, region->size, PROT_READ, MAP_SHARED, region->ro, 0);
    ck_assert_ptr_ne(map, MAP_FAILED);
    ck_assert_int_eq(mincore(map, region->size, there), 0);
    munmap(map, region->size);
    for (size_t i = 0; i < region->size / DLX_PAGE; i++)
        if (!(there[i] & 1))
            return false;
    return true;
}

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

MEMORY_TEST(pages_that_were_swapped_out_pass)
{
    auto_region region = region_filled(memories[_i], SIZE);
    seal(&region);
    void *map = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, region.ro, 0);
    ck_assert_ptr_ne(map, MAP_FAILED);
    for (int i = 0; i < 100 && is_in_memory(&region); i++) {
        ck_assert_int_eq(madvise(map, SIZE, MADV_POPULATE_READ), 0);
        (void)madvise(map, SIZE, MADV_PAGEOUT);
    }
    munmap(map, SIZE);
    if (is_in_memory(&region))
        puts("SKIP: there is no swap here");
    ck_assert_int_eq(prove(&region), 0);
}

/* Sealing would wait for the lock: a writer that has not done it, is told so. */
MEMORY_TEST(writer_with_the_lock_of_its_file_holds_no_process_up)
{
    struct dlx_test_lock lock;
    auto_region region = region_filled(memories[_i], SIZE);
    if (!dlx_test_memory_lock(&lock, region.rw))
        return;
    int r = prove(&region); /* or the time limit of the test */
    ck_assert_int_eq(r, region.memory == MEMFD ? DLX_E_BAD_PEER : 0);
    ck_assert_int_eq(waitpid(lock.pid, NULL, WNOHANG), 0);
    dlx_test_memory_unlock(&lock);
}

/* A lease would hold up who opens the file; the daemon has opened it already. */
MEMORY_TEST(a_writer_gets_no_lease)
{
    auto_region region = region_new(memories[_i], DLX_PAGE);
    ck_assert_int_lt(fcntl(region.rw, F_SETLEASE, F_WRLCK), 0);
    ck_assert_int_eq(errno, EAGAIN);
}

int main(void)
{
    TCase *tcase = tcase_create("memory_proof");
    tcase_set_timeout(tcase, 30);
    return dlx_test_run_case(tcase);
}
