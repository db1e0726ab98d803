/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_COMMON_SYSCALLS_H
#define DLX_COMMON_SYSCALLS_H

/* Numbers of system calls that are missing in the headers of glibc 2.28, which wheels are built
 * with. */

#include <sys/syscall.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434 /* Linux 5.3 */
#endif
#ifndef SYS_close_range
#define SYS_close_range 436 /* Linux 5.9 */
#endif

#endif
