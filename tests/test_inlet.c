/* SPDX-License-Identifier: Apache-2.0 */

/* A link from the subscriber's side, without a daemon. */

#include "client/inlet.h"
#include "common/memory.h"
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

int main(void)
{
    Suite *suite = suite_create("inlet");
    TCase *tcase = tcase_create("inlet");
    tcase_add_test(tcase, a_link_that_was_never_opened_lets_its_publisher_go);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
