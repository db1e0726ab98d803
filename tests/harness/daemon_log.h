/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_DAEMON_LOG_H
#define DLX_TESTS_HARNESS_DAEMON_LOG_H

#include "tests/harness/daemon.h"

/* Read the daemon's output up to these words; later calls do not find earlier output. */
void dlx_test_daemon_await(const struct dlx_test_daemon *daemon, const char *words);

#endif
