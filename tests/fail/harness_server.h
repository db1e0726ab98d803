/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_SERVER_H
#define DLX_TESTS_HARNESS_SERVER_H

#include "tests/fail/harness_fail.h"

/* The daemon as a thread of this program, at this path, with the memory that $DLX_MEMORY names.
 * `fail`: calls of that thread that fail, or NULL. One at a time. */
void dlx_test_server_start(const char *path, struct dlx_test_fail *fail);
/* By SIGTERM, which libuv hands on. */
void dlx_test_server_stop(void);

#endif
