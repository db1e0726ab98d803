/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_CARRY_H
#define DLX_CLIENT_CARRY_H

/*
 * A publisher that announces itself to another daemon takes along what it retains: that daemon does not know the arenas in
 * which it lies, so it is copied into a new one.
 */

#include "client/publisher.h"

/* How many messages that is. */
uint32_t dlx__carry_count(const struct dlx_publisher *p);

/*
 * Copy the messages that are to be carried into `block`. The new daemon knows the publisher by `id`, and has this kind of
 * memory; the heap was set aside. Returns 0; what a call to the daemon returns, DLX_E_NO_MEMORY: then dlx__carry_undo().
 */
int dlx__carry(struct dlx_publisher *p, const struct dlx_memory *memory, uint64_t id,
               struct dlx_writer_block *block);
/* The block is not used after all: give the copies back. */
void dlx__carry_undo(struct dlx_publisher *p, struct dlx_writer_block *block);

#endif
