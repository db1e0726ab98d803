/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_COMMON_PID_NAMESPACE_H
#define DLX_COMMON_PID_NAMESPACE_H

#include <stdint.h>

/* A number that identifies the pid namespace of this process on this machine while the namespace
 * exists. 0: unknown, because there is no /proc. */
uint64_t dlx__pid_namespace(void);

#endif
