/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_SHM_H
#define DLX_TESTS_HARNESS_SHM_H

/* A /dev/shm of one's own, so that a test may fill it, or leave things in it, and no other program
 * sees it. */

#include "tests/harness/run.h"

/* For this process and its children, from now on; `options` are those of tmpfs. Needs root or user
 * namespaces: otherwise prints why the test is skipped, and returns false. */
bool dlx_test_shm_private(const char *options);

/* Names in /dev/shm. */
size_t dlx_test_shm_count(void);
/* Names in /dev/shm that this process made. */
size_t dlx_test_shm_count_own(void);

#endif
