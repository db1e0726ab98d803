/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_COPY_RETAINED_H
#define DLX_CLIENT_COPY_RETAINED_H

/*
 * A publisher that announces itself to another daemon takes along what it retains, what a reliable
 * subscriber has not passed, and what the call that does so has published: the daemon that has
 * ended may not have sent it the arenas in which that lies, and the new one does not know them. So
 * it is copied into a new one.
 */

#include "client/publish/publisher.h"

/* How many messages that is, if the call has published the newest `n_put`. */
uint32_t dlx__copy_retained_count(struct dlx_publisher *p, uint32_t n_put);

/* The publisher has gone on: get memory for as many messages like the newest one as stay, and one
 * more, if there is some. No old arena is written again, and this daemon may end before it is asked
 * for an arena: the stream goes on. */
void dlx__copy_retained_grow(struct dlx_publisher *p);

/*
 * Copy the messages that are to be carried into `block`. The new daemon knows the publisher by
 * `id`, and has this kind of memory; the heap was set aside. Returns 0; what a call to the daemon
 * returns, DLX_E_NO_MEMORY: then dlx__copy_retained_undo().
 */
int dlx__copy_retained(struct dlx_publisher *p, const struct dlx_memory *memory, uint64_t id,
                       struct dlx_writer_block *block);
/* The block is not used after all: give the copies back. */
void dlx__copy_retained_undo(struct dlx_publisher *p, struct dlx_writer_block *block);

#endif
