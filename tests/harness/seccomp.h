/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_SECCOMP_H
#define DLX_TESTS_HARNESS_SECCOMP_H

#include "tests/harness/run.h"
#include <linux/filter.h>
#include <linux/seccomp.h>

/* From here on, for this process and those that it starts. Returns false where the kernel does not
 * allow it. */
bool dlx_test_seccomp_install(struct sock_filter *filter, size_t n);
/* System call number `nr` returns `error`. */
bool dlx_test_seccomp_fail(unsigned nr, unsigned error);
/* The same where an argument (0 to 5) has this value. */
bool dlx_test_seccomp_fail_with(unsigned nr, unsigned arg, unsigned value, unsigned error);
/* The kernel kills a process that makes the system call. */
bool dlx_test_seccomp_kill(unsigned nr);
/* As before Linux 6.16: sockets cannot be told to refuse descriptors (SO_PASSRIGHTS). */
bool dlx_test_seccomp_no_passrights(void);
/* The same for a daemon: for dlx_test_daemon_start_prepared(). */
void dlx_test_seccomp_on_an_older_kernel(void *userdata);

#endif
