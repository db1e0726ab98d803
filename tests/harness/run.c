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

int dlx_test_run_case(TCase *tcase)
{
    Suite *suite = suite_create(program_invocation_short_name);
    dlx_test_add_case(suite, tcase);
    return dlx_test_run(suite);
}

int dlx_test_run_cases(void)
{
    Suite *suite = suite_create(program_invocation_short_name);
    for (size_t i = 0, k; i < n_tests; i++) {
        for (k = 0; tests[k].make != tests[i].make;)
            k++;
        if (k == i)
            add_case_of(suite, tests[i].make(), tests[i].make);
    }
    return dlx_test_run(suite);
}

int dlx_test_run(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
