/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/run.h"

enum { MAX_TESTS = 128 };

static struct {
    TCase *(*make)(void);
    const TTest *test;
    int from, to;
} tests[MAX_TESTS];
static size_t n_tests;

void dlx_test_add_to(TCase *(*make)(void), const TTest *test, int from, int to)
{
    if (n_tests == MAX_TESTS)
        abort();
    tests[n_tests].make = make;
    tests[n_tests].test = test;
    tests[n_tests].from = from;
    tests[n_tests++].to = to;
}

void dlx_test_add(const TTest *test, int from, int to)
{
    dlx_test_add_to(NULL, test, from, to);
}

static void add_case_of(Suite *suite, TCase *tcase, TCase *(*make)(void))
{
    for (size_t i = 0; i < n_tests; i++)
        if (tests[i].make == make)
            tcase_add_loop_test(tcase, tests[i].test, tests[i].from, tests[i].to);
    suite_add_tcase(suite, tcase);
}

void dlx_test_add_case(Suite *suite, TCase *tcase)
{
    add_case_of(suite, tcase, NULL);
}

static bool is_first_of_case(size_t i)
{
    size_t k = 0;
    while (tests[k].make != tests[i].make)
        k++;
    return k == i;
}

/* Stands for the tests of a case that is skipped. */
static void pass(int i)
{
    (void)i;
}

static void add_skipped_case(Suite *suite)
{
    static const TTest skipped = {"skipped", pass, __FILE__, __LINE__};
    TCase *tcase = tcase_create("skipped");
    tcase_add_test(tcase, &skipped);
    suite_add_tcase(suite, tcase);
}

static int run_cases(Suite *suite)
{
    for (size_t i = 0; i < n_tests; i++) {
        if (!tests[i].make || !is_first_of_case(i))
            continue;
        TCase *tcase = tests[i].make();
        if (tcase)
            add_case_of(suite, tcase, tests[i].make);
        else
            add_skipped_case(suite);
    }
    return dlx_test_run(suite);
}

int dlx_test_run_case(TCase *tcase)
{
    Suite *suite = suite_create(program_invocation_short_name);
    dlx_test_add_case(suite, tcase);
    return run_cases(suite);
}

int dlx_test_run_cases(void)
{
    return run_cases(suite_create(program_invocation_short_name));
}

void dlx_test_before(uint64_t deadline)
{
    ck_assert_msg(dlx__now_ns() < deadline, "what the test waits for does not come");
}

bool dlx_test_skips(bool is_so, const char *why)
{
    if (is_so)
        printf("SKIP: %s\n", why);
    return is_so;
}

int dlx_test_run(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
