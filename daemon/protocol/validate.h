/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_VALIDATE_H
#define DLXD_VALIDATE_H

/* Are the values of a request possible at all? Looks at the packet only. */

#include "common/proto.h"

/* Returns 0, or a code with words that name the value and the limit. */
typedef int dlxd_validate_fn(const Dlx__Wire__Packet *packet);

dlxd_validate_fn dlxd_validate_hello;
dlxd_validate_fn dlxd_validate_publisher_new;
dlxd_validate_fn dlxd_validate_arena_new;
dlxd_validate_fn dlxd_validate_subscribe;
dlxd_validate_fn dlxd_validate_retained_drop;
dlxd_validate_fn dlxd_validate_list_publishers;
dlxd_validate_fn dlxd_validate_gpu_get;

#endif
