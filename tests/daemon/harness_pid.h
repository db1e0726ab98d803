/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_PID_H
#define DLX_TESTS_HARNESS_PID_H

#include <stdbool.h>
#include <sys/types.h>

/* May a process be made with a number that is chosen here? If not, says why: the test is
 * skipped. */
bool dlx_test_pid_may_choose(void);

/* As dlx_test_fork(), and the child has this number, which must be free. */
pid_t dlx_test_pid_fork(pid_t pid);

#endif
