/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_CLI_CASE_H
#define DLX_TESTS_HARNESS_CLI_CASE_H

/* What the stories of dlxctl have in common: a daemon for each test, and a folder for files. */

#include "tests/harness/cli.h"
#include "tests/harness/daemon.h"
#include <check.h>

extern struct dlx_test_daemon dlx_test_cli_daemon;
extern char dlx_test_cli_files[256];

/* A test case with these. */
TCase *dlx_test_cli_case(const char *name);

/* The path of a file in the folder. Static; four at once. */
const char *dlx_test_cli_file(const char *name);
/* Wait for its end, which is to have this status. */
void dlx_test_cli_finish(struct dlx_test_cli *cli, int status);
/*
 * What it printed is to be tests/data/cli/<name>, but for what differs from run to run: in that
 * file PID stands for the pid of this process, UID for a uid, N for a number of seven digits or
 * more, TIME for a time, and two spaces for more of them. `make golden` makes the file anew: look
 * at the difference then.
 */
void dlx_test_cli_golden(const struct dlx_test_cli *cli, const char *name);
json_int_t dlx_test_cli_integer(const json_t *json, const char *key);

#endif
