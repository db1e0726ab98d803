/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_EXTENTS_H
#define DLX_CLIENT_EXTENTS_H

/* An arena of a publisher and its free pieces: part of client/heap/heap.c. */

#include "common/util.h"

/* Free bytes in an arena: [offset, offset + size). */
struct dlx_extent {
    uint64_t offset;
    uint64_t size;
};

/*
 *     LEAVING <--- too much memory is there ---> USED <--- dlx__heap_set_aside() ---> ASIDE
 *                                                                                       |
 *                                                     dlx__heap_freeze() ---> FROZEN <--+
 *
 * LEAVING: almost empty, and blocks that come back stay in it. ASIDE, FROZEN: its daemon has ended.
 * New blocks are put into USED ones, and into LEAVING ones when no more arenas can be had.
 */
enum dlx_arena_state {
    DLX_ARENA_USED,
    DLX_ARENA_LEAVING,
    DLX_ARENA_ASIDE,
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
    bool has_large; /* the first block that came in when it was empty: client/heap/arena_policy.h */
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

#endif
