/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_FDS_H
#define DLX_TESTS_HARNESS_FDS_H

#include "tests/harness/run.h"

/* How many fds this process has open. */
size_t dlx_test_fds_count(void);
/* The first fd whose link in /proc/self/fd has this text; the test fails if there is none. */
int dlx_test_fds_find(const char *text);
int dlx_test_fds_dup(int fd);
/* The ends of a SOCK_SEQPACKET connection, neither of which blocks. */
void dlx_test_fds_pair(int ret[2]);
/* A descriptor whose close() waits until the returned other end is closed. */
int dlx_test_fds_slow_to_close(int *ret_other);
/* A Unix socket of this type (with SOCK_NONBLOCK or without) at a path, or with the abstract name
 * "@NAME". */
int dlx_test_fds_bind(const char *path, int type);
/* The same, and it listens, unless its type is SOCK_DGRAM. */
int dlx_test_listen(const char *path, int type);

#endif
