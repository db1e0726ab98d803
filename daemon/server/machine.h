/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_MACHINE_H
#define DLXD_MACHINE_H

/*
 * How much memory there is for the daemon and its clients: that of the machine, or less, where the
 * daemon's control group, or one above it, has memory.max or memory.high (cgroup2). Quotas are parts
 * of it.
 */

#include <stdint.h>

/* In bytes. `root` is the folder that has proc/ and sys/: "" but in tests. */
uint64_t dlxd_machine_memory(const char *root);

#endif
