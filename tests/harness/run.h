/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_RUN_H
#define DLX_TESTS_HARNESS_RUN_H

#include <check.h>

/* Run the suite and free it; returns main's exit status. */
int dlx_test_run(Suite *suite);

#endif
