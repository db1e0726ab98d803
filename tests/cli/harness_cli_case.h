/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_CLI_CASE_H
#define DLX_TESTS_HARNESS_CLI_CASE_H

/* The common part of the stories of dlxctl: the daemon of stream.h, programs that ask it, and a
 * folder for files. */

#include "tests/harness/cli.h"
#include "tests/harness/stream.h"

/* As dlx_test_stream_case(), with the folder. */
TCase *dlx_test_cli_case(const char *name);
/* A client of this name. */
struct dlx_client *dlx_test_cli_connect(const char *name);

/* Start dlxctl with these words; and wait for its end, which is to have this status. */
#define dlxctl_start(...)   dlx_test_cli_started(DLX_TEST_WORDS(__VA_ARGS__))
#define dlxctl(status, ...) dlx_test_cli_ended(status, DLX_TEST_WORDS(__VA_ARGS__))
struct dlx_test_cli dlx_test_cli_started(const char *const *words);
struct dlx_test_cli dlx_test_cli_ended(int status, const char *const *words);
/* The same with a terminal as its stderr; and with one of so many columns as its stdout. */
#define dlxctl_on_terminal(status, ...)                                                            \
    dlx_test_cli_run_on_terminal(dlx_test_stream_daemon.path, status, DLX_TEST_WORDS(__VA_ARGS__))
#define dlxctl_on_screen(columns, status, ...)                                                     \
    dlx_test_cli_run_on_screen(dlx_test_stream_daemon.path, columns, status,                       \
                               DLX_TEST_WORDS(__VA_ARGS__))

/* The output of dlxctl, standard or error, must have this text, or must not. */
#define has(output, text) ck_assert_msg(strstr(output, text), "\"%s\" lacks \"%s\"", output, text)
#define has_not(output, text)                                                                      \
    ck_assert_msg(!strstr(output, text), "\"%s\" has \"%s\"", output, text)

/*
 * The output must be tests/data/cli/<name>, but for what differs from run to run: in that file PID
 * stands for the pid of this process, UID for a uid, N for a number of seven digits or more, TIME
 * for a time, and two spaces for more of them. `make golden` makes the file again: look at the
 * difference then.
 */
void dlx_test_cli_golden(const struct dlx_test_cli *cli, const char *name);
json_int_t dlx_test_cli_integer(const json_t *json, const char *key);

#endif
