/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_FORK_H
#define DLX_CLIENT_FORK_H

/*
 * Handles do not survive fork(): the child has neither the mappings (MADV_DONTFORK) nor the right
 * to release what its parent holds. Every handle remembers the generation that it was made in; a
 * page that the kernel wipes in children (MADV_WIPEONFORK) tells the generation that is current.
 */

#include "common/util.h"
#include <stdbool.h>
#include <stdint.h>

extern volatile uint64_t *dlx__fork_page;

/* Before the first handle of a process. Returns 0 and the generation; DLX_E_NO_MEMORY,
 * DLX_E_KERNEL. */
int dlx__fork_init(uint64_t *ret_generation);

/* Was the handle made by a parent? Costs one load; no lock, no system call. */
static inline bool dlx__forked(uint64_t generation)
{
    return __builtin_expect(*dlx__fork_page != generation, 0);
}

/* 0; or what dlx__fail_forked() returns if it was. */
dlx_for_gpu int dlx__refuse_forked(uint64_t generation);

/* DLX_E_FORKED, or DLX_E_INVALID for a handle that was released (client/base/misuse.h). */
int dlx__fail_forked(uint64_t generation);

#endif
