/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_PUBLISHER_MEMORY_H
#define DLX_CLIENT_PUBLISHER_MEMORY_H

/* The memory of a publisher: blocks for its messages, by its heap, its ring and the daemon, and
 * when memory goes back. */

#include "client/publish/publisher.h"
#include "common/probes.h"

/* What is not in use goes back after `depth` messages if it may be too much (DLX_HEAP_SLACK), else
 * after so many times that. */
#define DLX_TRIM_EVERY UINT32_C(16)

/*
 * A block of `size` bytes: from the heap, from messages that no subscriber needs any more, or from
 * a new arena. Errors as of dlx_alloc().
 */
int dlx__publisher_block(struct dlx_publisher *p, uint64_t size, struct dlx_block **ret);
/* Likewise, for a block that goes when `other` does (NULL: some other): it lies beside that, if
 * there is room. */
int dlx__publisher_block_beside(struct dlx_publisher *p, const struct dlx_block *other,
                                uint64_t size, struct dlx_block **ret);

/* The heap for tensors on a device. Returns 0; DLX_E_DEVICE: there is no such device, or memory
 * there cannot be allocated; DLX_E_NO_MEMORY, DLX_E_FORKED. */
int dlx__publisher_heap(struct dlx_publisher *p, DLDevice device, struct dlx_heap **ret);
/* dlx__publisher_block() of one of these heaps. */
int dlx__publisher_block_of(struct dlx_publisher *p, struct dlx_heap *heap, uint64_t size,
                            struct dlx_block **ret);

/*
 * Let messages that no subscriber needs any more go until the heap, which is the publisher's, has
 * `size` bytes, and with `drop` some that are not passed. DLX_E_FULL: none can go any more.
 */
dlx_for_gpu int dlx__publisher_reclaim(struct dlx_publisher *p, struct dlx_heap *heap,
                                       uint64_t size, bool drop, struct dlx_block **ret);

/* A part of what dlx__publisher_reclaim() does: some messages go. Returns how many, 0 if none can.
 * Called again until it does, or with the next message. */
static inline uint32_t dlx__publisher_reclaim_some(struct dlx_publisher *p, bool drop)
{
    uint32_t n = dlx__writer_reclaim(&p->core, drop);
    DLX_PROBE_RECLAIM(p->id, n, dlx__writer_head(&p->core));
    return n;
}

/* Give a list of blocks back, by `next`. NULL is fine. */
void dlx__publisher_give_list(struct dlx_publisher *p, struct dlx_block *block);

/* Get an arena with room for `size` bytes from the daemon, which knows the publisher by `id` and
 * has this kind of memory. Returns 0; the errors of a call to it; DLX_E_LIMIT, DLX_E_NO_MEMORY. */
int dlx__publisher_grow(struct dlx_publisher *p, const struct dlx_memory *memory, uint64_t id,
                        uint64_t size);

/* Give back arenas that are empty, but too small, or not to be spared any more. Were there any?
 * `insists`: as in dlx__call_arena_drop(). */
bool dlx__publisher_drop_empty(struct dlx_publisher *p, bool insists);

/* Make room for the next message while this one is on its way. */
void dlx__publisher_look_ahead(struct dlx_publisher *p);

/* ---- what is taken along to another daemon -------------------------------------------------- */

/*
 * A publisher that announces itself to another daemon takes along what it retains, what a reliable
 * subscriber has not passed, and what the call that does so has published: the daemon that has
 * ended may not have sent it the arenas in which that lies, and the new one does not know them. So
 * it is copied into a new one.
 */

/* How many messages that is, if the call has published the newest `n_put`. */
uint32_t dlx__copy_retained_count(struct dlx_publisher *p, uint32_t n_put);

/* The publisher has gone on: get memory for as many messages like the newest one as stay, and one
 * more, if there is some. No old arena is written again, and this daemon may end before it is asked
 * for an arena: the stream goes on. */
void dlx__copy_retained_grow(struct dlx_publisher *p);

/*
 * Copy the messages that are to be carried into `block`. The new daemon knows the publisher by
 * `id`, and has this kind of memory; the heap was set aside. Returns 0; what a call to the daemon
 * returns, DLX_E_NO_MEMORY: then dlx__writer_block_free() gives the copies back.
 */
int dlx__copy_retained(struct dlx_publisher *p, const struct dlx_memory *memory, uint64_t id,
                       struct dlx_writer_block *block);

#endif
