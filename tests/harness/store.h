/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_STORE_H
#define DLX_TESTS_HARNESS_STORE_H

/* Stories of objects that outlive a daemon: the daemon of the fixture (stream.h), under a stand-in
 * for the service manager. */

#include "tests/harness/manager.h"
#include "tests/harness/stream.h"

/* Descriptors that the manager keeps. */
#define DLX_TEST_STORE_MANY 100U

extern struct dlx_test_manager dlx_test_store_manager;

extern const struct dlx_publisher_args dlx_test_retain_1;
extern const struct dlx_publisher_args dlx_test_retain_2;

/* The daemon of the fixture has no manager: begin with a daemon that has one. */
void dlx_test_store_begin(unsigned max_fds);
/* Cases whose tests begin so, and must end with nothing kept but what they did not drop. */
TCase *dlx_test_store_case(const char *name);
/* The same for a case that has a daemon. */
void dlx_test_store_add_manager(TCase *tcase);
/* Another daemon, for which the manager must keep this many descriptors. */
void dlx_test_store_limit(unsigned max_fds);
/* There is no daemon: run one. */
void dlx_test_store_run_again(void);
/* Kill the daemon before. */
void dlx_test_store_restart(void);
/* Nothing but the ledger is kept. */
void dlx_test_store_end(void);

struct dlx_publisher *dlx_test_store_publisher(struct dlx_client *c, const char *topic,
                                               const struct dlx_publisher_args *args);
/* Publish 1 to n and go. */
void dlx_test_store_leave_messages(const char *topic, const struct dlx_publisher_args *args,
                                   int64_t n);
/* Publish 1 to n on test/a in a process of its own, which makes no call until it is killed. */
pid_t dlx_test_store_publish_elsewhere(const struct dlx_publisher_args *args, int64_t n);
/* Take exactly `first` to `last`; ends that are told before do not matter. */
void dlx_test_store_take(struct dlx_subscription *s, int64_t first, int64_t last);
/* A newcomer gets exactly these. */
void dlx_test_store_check_there(const char *topic, int64_t first, int64_t last);
int dlx_test_store_n_publishers(void);
void dlx_test_store_drop(const char *topic);

#endif
