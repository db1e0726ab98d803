/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_SHM_H
#define DLX_TESTS_HARNESS_SHM_H

/* A /dev/shm of the test's own, which a test may fill, or leave things in, and no other program
 * sees. */

#include "tests/harness/run.h"

/* For this process and its children, from now on; `options` are those of tmpfs. Needs root or user
 * namespaces: otherwise prints why the test is skipped, and returns false. */
bool dlx_test_shm_private(const char *options);

/* Names in /dev/shm. */
size_t dlx_test_shm_count(void);
/* Names in /dev/shm that this process made. */
size_t dlx_test_shm_count_own(void);

#endif
