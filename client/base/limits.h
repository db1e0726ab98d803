/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_LIMITS_H
#define DLX_CLIENT_LIMITS_H

#include <stdint.h>

/* How many links this process can have, by RLIMIT_NOFILE (a link costs a bell, and a pidfd at
 * worst) and vm.max_map_count (a page, a control block and some arenas), with some left to the
 * program. */
uint32_t dlx__limits_max_links(void);

#endif
