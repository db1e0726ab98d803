/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_COMMON_PID_NAMESPACE_H
#define DLX_COMMON_PID_NAMESPACE_H

#include <stdint.h>

/* What names the pid namespace of this process on this machine, as long as it lives. 0: not known,
 * as there is no /proc. */
uint64_t dlx__pid_namespace(void);

#endif
