/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_USER_H
#define DLX_TESTS_HARNESS_USER_H

/* Children that become another user. */

#include "tests/harness/run.h"

/* May this process become another user? If not, says why: the test is skipped. */
bool dlx_test_user_may(void);

/* In a child: become this user (0: stay root), in the folder of the fixtures' daemon, whose socket
 * path becomes relative: the user may not search the folders above it. */
void dlx_test_user_become(uid_t uid);

#endif
