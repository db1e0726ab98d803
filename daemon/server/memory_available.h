/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_MEMORY_AVAILABLE_H
#define DLXD_MEMORY_AVAILABLE_H

/* How much memory the daemon and its clients have: that of the machine, or less if the daemon's
 * control group, or one above it, sets memory.max or memory.high (cgroup2). Quotas are parts of
 * it. */

#include <stdint.h>

/* In bytes. `sysroot` is the folder that has proc/ and sys/: "" except in tests. */
uint64_t dlxd_memory_available(const char *sysroot);

#endif
