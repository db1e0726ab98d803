/* SPDX-License-Identifier: Apache-2.0 */
/* Names of a trace: what the daemon says, and what programs say of themselves. */
#include "cli/trace_names.h"
#include "tests/harness/run.h"
#include <dlx/error.h>

static struct trace_names *names;

static void set_up(void)
{
    names = trace_names_new();
    ck_assert_ptr_nonnull(names);
}

static void tear_down(void)
{
    names = trace_names_free(names);
}

TEST(a_program_changes_no_name_that_the_daemon_gave)
{
    ok(trace_names_add_publisher(names, 1, "cam"));
    ok(trace_names_claim_publisher(names, 1, "lie"));
    ck_assert_str_eq(trace_names_topic(names, 1), "cam");
    ok(trace_names_claim_publisher(names, 2, "lie"));
    ck_assert_str_eq(trace_names_topic(names, 2), "lie");
    ok(trace_names_add_publisher(names, 2, "mic"));
    ck_assert_str_eq(trace_names_topic(names, 2), "mic");
    ok(trace_names_add_program(names, 7, "camera"));
    ok(trace_names_claim_program(names, 7, "lie"));
    ck_assert_str_eq(trace_names_program(names, 7), "camera");
}

TEST(programs_claim_only_so_many_names)
{
    for (uint64_t id = 1; id <= TRACE_NAMES_CLAIMED_MAX; id++)
        ok(trace_names_claim_publisher(names, id, "t"));
    ck_assert_int_eq(trace_names_claim_publisher(names, 1U << 20, "t"), DLX_E_LIMIT);
    ck_assert_int_eq(trace_names_claim_program(names, 7, "t"), DLX_E_LIMIT);
    ck_assert_ptr_null(trace_names_topic(names, 1U << 20));
    ok(trace_names_claim_publisher(names, 1, "other"));
    ok(trace_names_add_publisher(names, 1U << 20, "cam"));
    ck_assert_str_eq(trace_names_topic(names, 1U << 20), "cam");
}

int main(void)
{
    TCase *tcase = tcase_create("trace_names");
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    return dlx_test_run_case(tcase);
}
