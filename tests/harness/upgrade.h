/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_UPGRADE_H
#define DLX_TESTS_HARNESS_UPGRADE_H

/* Stories of a daemon whose place another program takes in the same process: the daemon of the
 * fixture (stream.h) runs a copy of this build's program, with a configuration, both in the
 * folder of its socket. */

#include "tests/harness/stream.h"

/* The copy, and the configuration, which is empty. */
extern char dlx_test_upgrade_program[256];
extern char dlx_test_upgrade_config[256];

/* As dlx_test_stream_case(). */
TCase *dlx_test_upgrade_case(const char *name);

/* Replace the program by a new copy: of its first `size` bytes, or all if that is 0. */
void dlx_test_upgrade_put(size_t size, unsigned mode);
/* Put this text in a file's place. */
void dlx_test_upgrade_write(const char *path, const char *text);
/* Read the daemon's output up to these words; later calls do not find earlier output. */
void dlx_test_upgrade_await(const char *words);
void dlx_test_upgrade_signal(int signum);
/* SIGUSR2, and the daemon listens again. */
void dlx_test_upgrade(void);
/* A new copy of the program, SIGHUP, and the daemon listens again. */
void dlx_test_upgrade_to_new(void);

#endif
