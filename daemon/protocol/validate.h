/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_VALIDATE_H
#define DLXD_VALIDATE_H

/* Checks the values of requests, without looking at anything but the packet. */

#include "common/proto.h"

/* Returns 0, or a code with a text that names the value and the limit. */
typedef int dlxd_validate_fn(const Dlx__Wire__Packet *packet);

dlxd_validate_fn dlxd_validate_hello;
dlxd_validate_fn dlxd_validate_publisher_new;
dlxd_validate_fn dlxd_validate_arena_new;
dlxd_validate_fn dlxd_validate_subscribe;
dlxd_validate_fn dlxd_validate_retained_drop;
dlxd_validate_fn dlxd_validate_groups_drop;
dlxd_validate_fn dlxd_validate_list_publishers;
dlxd_validate_fn dlxd_validate_list_groups;
dlxd_validate_fn dlxd_validate_observe;
dlxd_validate_fn dlxd_validate_list_subscriptions;
dlxd_validate_fn dlxd_validate_list_refusals;
dlxd_validate_fn dlxd_validate_kick;
dlxd_validate_fn dlxd_validate_gpu_allocate;
dlxd_validate_fn dlxd_validate_gpu_get;
dlxd_validate_fn dlxd_validate_former_new;

#endif
