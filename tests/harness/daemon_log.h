/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_DAEMON_LOG_H
#define DLX_TESTS_HARNESS_DAEMON_LOG_H

#include "tests/harness/daemon.h"

/* Read what the daemon says, until it says this; nothing of what it said before is found later. */
void dlx_test_daemon_await(const struct dlx_test_daemon *daemon, const char *words);

#endif
