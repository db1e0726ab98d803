/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_DAEMON_HARNESS_CONFIG_H
#define DLX_TESTS_DAEMON_HARNESS_CONFIG_H

/*
 * A real daemon with a configuration file, in place of the one that stream.h started: in the same
 * folder, and with the same socket.
 */

#include "tests/harness/stream.h"

/* The file. */
extern char dlx_configured_path[300];

/* Around each test of a case that has the fixtures of stream.h: the file is removed at its end. */
void dlx_configured_fixture(TCase *tcase);
void dlx_configured_write(const char *text);
/* Write the file and start a daemon that reads it, once the one that runs has ended. */
void dlx_configured_start(const char *text);
/* Run the program with the file, in a child; does not return. `pass`, if not NULL, is called before
 * each such program. */
void dlx_configured_exec(void *userdata);
extern void (*dlx_configured_pass)(void);
/* Write the file, send SIGHUP, and wait until the daemon's log has these words. */
void dlx_configured_reload(const char *text, const char *words);
/* Wait until the log, since the daemon started, has these words; returns all that was read of
 * it. */
const char *dlx_configured_log(const char *words);
/* The code of a connection by that socket. */
int dlx_configured_connect(const char *path, struct dlx_client **ret);

#endif
