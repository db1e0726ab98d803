/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_HEAP_STATE_H
#define DLX_CLIENT_HEAP_STATE_H

/* What heap.c (blocks) and heap_arenas.c (arenas) share, and nobody else sees. */

#include "client/heap/arena_policy.h"
#include "client/heap/heap.h"
#include "client/heap/payload_cache.h"

struct dlx_heap {
    struct dlx_heap_hints hints;
    uint64_t generation;
    struct dlx_heap_kind kind;
    bool is_guarded;
    bool anywhere; /* see dlx__heap_put_anywhere() */
    struct dlx_arena *arenas;
    struct dlx_arena *frozen;                /* see dlx__heap_freeze() */
    struct dlx_mapped_source *borrow_source; /* see dlx__heap_note_in() */
    uint32_t n_arenas;
    uint64_t bytes;
    bool is_leaving;        /* arenas are */
    uint64_t leave_for;     /* bytes of new arenas that this is still worth */
    struct dlx_block *pool; /* block structs without memory */
    struct dlx_payload_cache cache;
    struct dlx_block *stuck; /* came back, but cannot be used yet */
    struct dlx_arena_policy_peak peak;

    /* Once the publisher has gone: local blocks that are left. */
    _Atomic uint64_t n_orphans;
    _Atomic uint64_t n_deleted_again;
};

static inline struct dlx_arena_policy dlx__heap_fit(const struct dlx_heap *heap)
{
    return (struct dlx_arena_policy){
        .arenas = heap->arenas,
        .n_arenas = heap->n_arenas,
        .bytes = heap->bytes,
        .least = heap->kind.least,
        .anywhere = heap->anywhere,
    };
}

/* Blocks that keep their memory give it up: their structs go into the pool. Were there any? */
static inline bool dlx__heap_empty_payload_cache(struct dlx_heap *heap)
{
    return dlx__payload_cache_give_up(&heap->cache, &heap->pool);
}

/* Blocks that could not be used again when they came back may be now. */
void dlx__heap_retry_stuck(struct dlx_heap *heap);
/* Arenas that were to leave are used again. */
void dlx__heap_stay(struct dlx_heap *heap);
void dlx__heap_free_arena(const struct dlx_heap *heap, struct dlx_arena *arena);
void dlx__heap_free_arenas(const struct dlx_heap *heap, struct dlx_arena *first);

#endif
