/* SPDX-License-Identifier: Apache-2.0 */
/* What the daemon reads of a control block that changes while it is read. The test is the clock, so
 * it knows when that is. */
#include "daemon/memory/report.h"
#include "tests/harness/run.h"
#include <sys/mman.h>
#include <sys/syscall.h>

#define SECOND UINT64_C(1000000000)

static int control_fd = -1;
static void (*on_clock)(void); /* what the publisher does when the daemon reads the clock */

int clock_gettime(clockid_t clock, struct timespec *ret)
{
    if (on_clock)
        on_clock();
    return (int)syscall(SYS_clock_gettime, clock, ret);
}

static void write_words(uint64_t waited, uint64_t since)
{
    uint64_t words[] = {waited, since};
    ck_assert_int_eq(
        pwrite(control_fd, words, sizeof words, offsetof(struct dlx_shm_control, waited)),
        sizeof words);
}

static void begin_wait(uint64_t since, uint64_t earlier_ns)
{
    write_words(DLX_SHM_WAITING | (since - earlier_ns), since);
}

static struct dlxd_control_report report(void)
{
    struct dlxd_control_report control;
    dlxd_report_control(control_fd, &control);
    return control;
}

static void set_up(void)
{
    on_clock = NULL;
    control_fd = memfd_create("control", MFD_CLOEXEC);
    ck_assert_int_eq(ftruncate(control_fd, sizeof(struct dlx_shm_control)), 0);
}

static void tear_down(void)
{
    on_clock = NULL;
    close(control_fd);
}

static void end_wait(void)
{
    write_words(800, 0);
}

TEST(a_wait_that_ends_while_it_is_read_is_not_told_too_long)
{
    begin_wait(dlx__now_ns() - SECOND, 700);
    ck_assert_uint_ge(report().waited_ns, SECOND + 700);
    ck_assert_uint_ne(report().waits_since, 0);
    on_clock = end_wait;
    ck_assert_uint_eq(report().waited_ns, 800);
    ck_assert_uint_eq(report().waits_since, 0);
}

static unsigned n_lies;

static void lie(void)
{
    n_lies++;
    write_words(DLX_SHM_WAITING | n_lies, n_lies);
}

TEST(a_publisher_that_changes_its_wait_for_ever_is_read_all_the_same)
{
    lie();
    on_clock = lie;
    ck_assert_uint_ne(report().waited_ns, 0);
}

int main(void)
{
    TCase *t = tcase_create("report");
    tcase_add_checked_fixture(t, set_up, tear_down);
    return dlx_test_run_case(t);
}
