/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_DAEMON_HARNESS_USERS_H
#define DLX_TESTS_DAEMON_HARNESS_USERS_H

/* Users and what is charged to them, for tests that need no broker. */

#include "daemon/users/user.h"
#include "tests/harness/run.h"

/* The users of the running test. The memory is such that one of them may have this much of it. */
extern struct dlxd_users dlx_users;
#define DLX_USERS_BYTES (UINT64_C(32) << 30)

/* A test case whose tests have them. At the end of each test nothing is charged, and only the
 * harness refers to a user. */
TCase *dlx_users_case(const char *name);

/* The user of this uid by this socket, among those of a test; it stays until the test ends. */
struct dlxd_user *dlx_users_get(struct dlxd_users *users, uid_t uid, const char *socket);
/* Charge the user until the test ends, or dlxd_charge_deinit(). */
struct dlxd_charge *dlx_users_charge(struct dlxd_user *user, enum dlxd_resource resource,
                                     uint64_t amount);
/* So much more is refused, in the words that are returned. */
const char *dlx_users_refused(struct dlxd_user *user, enum dlxd_resource resource, uint64_t amount);

/* The test ends: the teardown of each harness that has users calls it. */
void dlx_users_release(void);

#endif
