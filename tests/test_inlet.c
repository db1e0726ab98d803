/* SPDX-License-Identifier: Apache-2.0 */

/* A link from the subscriber's side, without a daemon. */

#include "client/inlet.h"
#include "common/memory.h"
#include "tests/harness_run.h"
#include <check.h>
#include <sys/mman.h>
#include <unistd.h>

#define HELD 16

/* Its publisher may know it already, and would wait for its first cursor as long as the process lives. */
START_TEST(a_link_that_was_never_opened_lets_its_publisher_go)
{
    const struct dlx_memory *memory = dlx__memory_by_tag(0);
    uint64_t size = dlx_shm_link_size(HELD);
    struct dlx_inlet *inlet = NULL;
    int fd, writer_fd;
    ck_assert_ptr_nonnull(memory);
    ck_assert_int_eq(dlx__region_new(memory, "dlx-link", size, &fd, &writer_fd), 0);
    ck_assert_int_eq(dlx__inlet_new(&inlet, memory, 1, 7, 8, "t", writer_fd, size, 0, HELD), 0);
    struct dlx_shm_link *page = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    ck_assert(page != MAP_FAILED);
    ck_assert_uint_eq(*(const uint64_t *)&page->cursor, 0);
    dlx__inlet_close(inlet);
    ck_assert_uint_eq(*(const uint64_t *)&page->cursor, DLX_SHM_CURSOR_CLOSED);
    dlx__inlet_unref(inlet);
    munmap(page, size);
    close(fd);
}
END_TEST

/* A sealed control block, filled by `map`, which is the writer's. */
static int make_block(const struct dlx_memory *memory, uint64_t size, struct dlx_shm_control **map)
{
    int fd, writer_fd, ro_fd;
    ck_assert_int_eq(dlx__region_new(memory, "dlx-control", size, &fd, &writer_fd), 0);
    ck_assert_int_eq(dlx__region_populate(memory, writer_fd, size, (void **)map), 0);
    ck_assert_int_eq(dlx__region_seal(memory, fd, size, &ro_fd), 0);
    return ro_fd;
}

/* A publisher says that it moved after message 3, and had published 5. Where we are must not be among the blocks that we have
 * left, too: it would be unmapped twice, and by then there may be something else. */
START_TEST(a_block_that_begins_before_what_was_passed_is_refused_and_unmapped_once)
{
    const struct dlx_memory *memory = dlx__memory_by_tag(0);
    const uint64_t size = dlx_shm_control_size(4);
    struct dlx_shm_control *first, *second;
    struct dlx_inlet *inlet = NULL;
    struct dlx_message *message;
    int fd, writer_fd;
    ck_assert_int_eq(dlx__region_new(memory, "dlx-link", dlx_shm_link_size(HELD), &fd, &writer_fd),
                     0);
    ck_assert_int_eq(
        dlx__inlet_new(&inlet, memory, 1, 7, 8, "t", writer_fd, dlx_shm_link_size(HELD), 0, HELD),
        0);
    ck_assert_int_eq(dlx__inlet_open(inlet, -1, 1), 0);
    ck_assert_int_eq(dlx__inlet_block_add(inlet, 0, make_block(memory, size, &first), size, 4, 0),
                     0);
    ck_assert_int_eq(dlx__inlet_block_add(inlet, 1, make_block(memory, size, &second), size, 4, 3),
                     0);
    dlx_store64_sc(&first->head, 5);
    dlx__inlet_start(inlet, 5, false, false, false);
    ck_assert_ptr_eq(inlet->blocks[0].control, inlet->core.control);
    while (dlx__inlet_take(inlet, &message) != DLX_E_EMPTY) /* lost: no slot holds anything */
        ;
    dlx_store64_sc(&first->head, 5 | DLX_SHM_MOVED);
    ck_assert_int_eq(dlx__inlet_take(inlet, &message), DLX_E_BAD_PEER);
    ck_assert_uint_eq(inlet->n_blocks, 2);
    ck_assert_uint_eq(inlet->n_left, 0);
    dlx__inlet_close(inlet);
    dlx__inlet_unref(inlet);
    dlx__region_unmap(first, size);
    dlx__region_unmap(second, size);
    close(fd);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("inlet");
    TCase *tcase = tcase_create("inlet");
    tcase_add_test(tcase, a_link_that_was_never_opened_lets_its_publisher_go);
    tcase_add_test(tcase, a_block_that_begins_before_what_was_passed_is_refused_and_unmapped_once);
    suite_add_tcase(suite, tcase);
    return dlx_test_run(suite);
}
