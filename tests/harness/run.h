/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_RUN_H
#define DLX_TESTS_HARNESS_RUN_H

#include <check.h>

/* TEST(name) { ... } defines a test, and LOOP_TEST() one that runs for each _i of [from, to).
 * dlx_test_run_case() adds all tests of the program to its case, in the order of the file. A
 * program with several cases defines its tests with Check's START_TEST() and adds them itself. */
#define TEST(name)                LOOP_TEST(name, 0, 1)
#define LOOP_TEST(name, from, to) DLX_TEST_DEFINE(name, dlx_test_add(&name##_test, from, to))
#define DLX_TEST_DEFINE(name, add)                                                                 \
    static void name##_fn(int _i CK_ATTRIBUTE_UNUSED);                                             \
    __attribute__((constructor)) static void name##_add(void)                                      \
    {                                                                                              \
        static const TTest name##_test = {#name, name##_fn, __FILE__, __LINE__};                   \
        add;                                                                                       \
    }                                                                                              \
    static void name##_fn(int _i CK_ATTRIBUTE_UNUSED)

void dlx_test_add(const TTest *test, int from, int to);

/* Run all tests of the program in this case; returns main's exit status. */
int dlx_test_run_case(TCase *tcase);

/* Run the suite and free it; returns main's exit status. */
int dlx_test_run(Suite *suite);

#endif
