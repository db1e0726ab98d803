/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_PUBLISHER_MEMORY_H
#define DLX_CLIENT_PUBLISHER_MEMORY_H

/* The memory of a publisher: blocks for its messages, by its heap, its ring and the daemon, and
 * when memory goes back. */

#include "client/heap/heap.h"

struct dlx_memory;
struct dlx_publisher;

/* What is not in use goes back after `depth` messages if it is much, else after so many times
 * that. */
#define DLX_TRIM_EVERY UINT32_C(16)

struct dlx_publisher_memory {
    /* The block that the next dlx_alloc() takes, and its payload: for prefetching only, may be
     * stale. */
    const void *next_block;
    const void *next_data;
    /* Not 0: the last block, of this size, needed an old message to go; the next one will, too. */
    uint64_t room_size;
    uint64_t next_trim; /* message number */
    uint32_t n_trims;
    uint32_t trim_step;     /* arenas that go back with each message; 0: none */
    uint64_t crowded_until; /* no arena could be had: until then what fits anywhere will do */
};

/*
 * A block of `size` bytes: from the heap, from messages that nobody needs any more, or from a new
 * arena. Errors as of dlx_alloc().
 */
int dlx__publisher_block(struct dlx_publisher *p, uint64_t size, struct dlx_block **ret);
/* Likewise, of what goes when `other` does (NULL: some other): it lies where that does, if there
 * is room. */
int dlx__publisher_block_beside(struct dlx_publisher *p, const struct dlx_block *other,
                                uint64_t size, struct dlx_block **ret);

/* The heap for tensors on a device. Returns 0; DLX_E_DEVICE: there is no such device, or memory
 * there cannot be allocated; DLX_E_NO_MEMORY, DLX_E_FORKED. */
int dlx__publisher_heap(struct dlx_publisher *p, DLDevice device, struct dlx_heap **ret);
/* dlx__publisher_block() of one of these heaps. */
int dlx__publisher_block_of(struct dlx_publisher *p, struct dlx_heap *heap, uint64_t size,
                            struct dlx_block **ret);

/*
 * Let messages that nobody needs any more go until the heap, which is the publisher's, has `size`
 * bytes, and with `drop` some that are not passed. DLX_E_FULL: none can go any more.
 */
int dlx__publisher_reclaim(struct dlx_publisher *p, struct dlx_heap *heap, uint64_t size, bool drop,
                           struct dlx_block **ret);

/* Get an arena with room for `size` bytes from the daemon, which knows the publisher by `id` and
 * has this kind of memory. Returns 0; the errors of a call to it; DLX_E_LIMIT, DLX_E_NO_MEMORY. */
int dlx__publisher_grow(struct dlx_publisher *p, const struct dlx_memory *memory, uint64_t id,
                        uint64_t size);

/* Give back arenas that are empty, but too small, or not to be spared any more. Were there any? */
bool dlx__publisher_drop_empty(struct dlx_publisher *p);

/* Make room for the next message while this one is on its way. */
void dlx__publisher_look_ahead(struct dlx_publisher *p);

#endif
