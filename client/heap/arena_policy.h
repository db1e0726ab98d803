/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_ARENA_POLICY_H
#define DLX_CLIENT_ARENA_POLICY_H

/*
 * In which arena a block is put, how large the next arena is, and when empty ones are too many:
 * part of client/heap/heap.c, off the path of a stream whose messages have one size.
 *
 * No page of an arena can be given back while the arena is there (its seals promise readers that
 * none goes away), so memory comes back by whole arenas, and blocks are put so that arenas become
 * empty. A large block has an arena of its own, of its size. What is too small for that shares
 * arenas with its like: there are many of them and few bytes in them.
 */

#include "client/heap/extents.h"

#define DLX_ARENA_SIZE_MIN (16U * 1024)

struct dlx_arena_policy {
    struct dlx_arena *arenas;
    uint32_t n_arenas;
    uint64_t bytes; /* of all of them */
    uint64_t least; /* bytes of an arena */
    bool anywhere;  /* see dlx__heap_put_anywhere() */
};

/* The most that was needed when an arena was added, in this window of messages and in the one
 * before. */
struct dlx_arena_policy_peak {
    uint64_t bytes;
    uint64_t bytes_before;
    uint64_t since; /* number of the message that this window began with */
};

bool dlx__arena_policy_is_large(const struct dlx_arena_policy *policy, uint64_t size);

/* An arena, and a free piece in it, for a block of `size` bytes. NULL: there is none. */
struct dlx_arena *dlx__arena_policy_find(const struct dlx_arena_policy *policy, uint64_t size,
                                         uint32_t *ret_extent);

/* Bytes of a new arena for a block of `size` bytes: not fewer. */
uint64_t dlx__arena_policy_growth(const struct dlx_arena_policy *policy, uint64_t size);

/* With `size` bytes more, is there more memory than was needed lately, and the slack? As
 * dlx__heap_drop_excess(). */
bool dlx__arena_policy_is_excess(const struct dlx_arena_policy *policy, uint64_t size,
                                 struct dlx_arena_policy_peak *peak, uint64_t now, uint64_t window);

#endif
