/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_ARENA_H
#define DLX_CLIENT_ARENA_H

/*
 * An arena of a publisher and its free pieces; in which arena a block is put, how large the next
 * arena is, and when empty ones are too many: part of client/heap/heap.c, off the path of a stream
 * whose messages have one size.
 *
 * No page of an arena can be given back while the arena is there (its seals promise readers that
 * none goes away), so memory comes back by whole arenas, and blocks are put so that arenas become
 * empty. A large block has an arena of its own, of its size. What is too small for that shares
 * arenas with its like: there are many of them and few bytes in them.
 */

#include "common/util.h"

/* ---- an arena and its free pieces ------------------------------------------------------------ */

/* Free bytes in an arena: [offset, offset + size). */
struct dlx_extent {
    uint64_t offset;
    uint64_t size;
};

/*
 *     USED <--- too much memory is there; dlx__heap_set_aside() ---> LEAVING
 *                                                                       |
 *                                  dlx__heap_freeze() ---> FROZEN <-----+
 *
 * LEAVING, FROZEN: memory of blocks that come back goes back to the arena. New blocks are put into
 * USED ones, and into LEAVING ones of this daemon when no more arenas can be had. FROZEN: its
 * daemon has ended, and it goes with its last block.
 */
enum dlx_arena_state {
    DLX_ARENA_USED,
    DLX_ARENA_LEAVING,
    DLX_ARENA_FROZEN,
};

struct dlx_arena {
    struct dlx_arena *next;           /* ascending id */
    uint8_t *map;                     /* of a GPU: not for this processor */
    void *owner;                      /* see dlx__heap_add_of() */
    struct dlx_mapped_region *mapped; /* NULL: not noted */
    uint64_t size;
    uint64_t free_bytes; /* in extents */
    uint32_t id;         /* 0: frozen */
    enum dlx_arena_state state;
    bool has_large;    /* the block that came when it was empty was large */
    uint32_t n_blocks; /* with memory in it, those of the payload cache included */
    uint32_t n_extents;
    uint32_t extents_room;
    struct dlx_extent *extents; /* ascending offset, never adjacent */
};

/* Room for so many pieces. False: out of memory. */
bool dlx__extents_reserve(struct dlx_arena *arena, uint32_t n);
/* Piece `i` is used up. */
void dlx__extents_remove(struct dlx_arena *arena, uint32_t i);
/* Bytes come back, and join their neighbours. There is room: it was reserved when they were
 * taken. */
void dlx__extents_give(struct dlx_arena *arena, uint64_t offset, uint64_t size);
/* All bytes are free. */
void dlx__extents_give_all(struct dlx_arena *arena);

/* ---- which arena ----------------------------------------------------------------------------- */

#define DLX_ARENA_SIZE_MIN (16U * 1024)

struct dlx_arena_policy {
    struct dlx_arena *arenas;
    uint32_t n_arenas;
    uint64_t bytes; /* of all of them */
    uint64_t least; /* bytes of an arena, */
    uint64_t unit;  /* which are a multiple of this */
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
 * dlx__heap_find_excess(). */
bool dlx__arena_policy_is_excess(const struct dlx_arena_policy *policy, uint64_t size,
                                 struct dlx_arena_policy_peak *peak, uint64_t now, uint64_t window);

#endif
