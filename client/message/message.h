/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_MESSAGE_H
#define DLX_CLIENT_MESSAGE_H

/*
 * A received message. One struct belongs to each hold word of a link, so taking allocates nothing:
 * the hold word that the last release clears is also what makes the struct free.
 */

#include "client/message/subscriber_link.h"
#include "client/message/worker.h"
#include "common/probes.h"
#include "ring/entry.h"
#include "ring/manifest.h"
#include <stdatomic.h>

struct dlx_message_table; /* client/message/message.c */
/* gpu/lib/receive.c */
struct dlx_message_gpu;
struct dlx_gpu_streams;
struct dlx_gpu_wait;

/* A managed tensor that dlx_message_tensor() handed out. */
struct dlx_export {
    union {
        DLManagedTensorVersioned versioned;
        DLManagedTensor legacy;
    } as;
    struct dlx_message *message;
    /* Only if the message has tensors on GPUs, or this one is used on streams: */
    uint32_t i; /* which tensor it is */
    struct dlx_gpu_streams *streams;
    struct dlx_gpu_wait *wait; /* of a stream, until it is ready; NULL: it was ready */
};

struct dlx_message {
    atomic_uint refs; /* the message, and each tensor of it; and FIRST_USED */
    uint32_t n_tensors;
    struct dlx_subscriber_link *link;
    uint64_t seq;
    uint64_t gap;
    uint64_t monotonic_ns;
    uint64_t bytes; /* payload */
    uint32_t hold;
    DLTensor *tensors;               /* [n_tensors]: &inline_tensor, or in `table` */
    uint64_t *flags;                 /* [n_tensors]: of the managed tensors */
    struct dlx_message_table *table; /* what a manifest needs; NULL for one tensor in its entry */
    struct dlx_export first; /* saves an allocation for the first tensor, unless FIRST_USED */
    uint64_t inline_flags;
    DLTensor inline_tensor;
    /* Shape and strides of inline_tensor, which are given away, and the same again. */
    int64_t dims[4 * DLX_SHM_NDIM_ENTRY];
    struct dlx_entry_form form; /* what inline_tensor was made from */
    uint32_t first_arena; /* if it has a manifest: the numbers of the arenas with its tensors, */
    uint32_t last_arena;  /* which are in between; first > last: there are none */
    struct dlx_message_gpu *gpu;   /* NULL: no tensor is on a GPU */
    struct dlx_worker_claim claim; /* of a worker */
};

/* In debug mode, what has been released: a message has no tensors and this link, and a tensor has
 * this message. */
extern struct dlx_subscriber_link dlx__released_link;
extern struct dlx_message dlx__released_message;

_Noreturn void dlx__message_fail_released(void);
static inline void dlx__message_check(const struct dlx_message *m)
{
    if (dlx_unlikely(m->n_tensors == 0))
        dlx__message_fail_released();
}

/* The manifest of a message, where it lies. Returns 0; DLX_E_NOT_FOUND: its arena is not here;
 * DLX_E_BAD_PEER. */
int dlx__message_open_manifest(struct dlx_subscriber_link *link, const struct dlx_taken *taken,
                               struct dlx_manifest *ret);

/* Why there is no arena for message n. */
int dlx__message_no_arena(struct dlx_subscriber_link *link, uint64_t n, uint32_t id);
/* DLX_E_BAD_PEER. */
int dlx__message_bad_place(uint64_t offset, uint64_t size,
                           const struct dlx_subscriber_link_arena *arena);

/* The arena `id`, for message n. Returns 0; DLX_E_NOT_FOUND; DLX_E_BAD_PEER. */
static inline int dlx__message_arena(struct dlx_subscriber_link *link, uint64_t n, uint32_t id,
                                     const struct dlx_subscriber_link_arena **ret)
{
    const struct dlx_subscriber_link_arena *arena = dlx__subscriber_link_arena(link, id);
    /* A dropped one stays mapped for what was taken before, and no longer. */
    if (dlx_unlikely(!arena || n >= arena->until))
        return dlx__message_no_arena(link, n, id);
    *ret = arena;
    return 0;
}

/* Message n, in a struct whose last tensor was like it, and was checked then: only its place is
 * new. */
static inline int dlx__message_build_again(struct dlx_subscriber_link *link, uint64_t n,
                                           uint32_t arena_id, uint64_t offset,
                                           struct dlx_message *m)
{
    uint64_t room;
    const uint8_t *data = NULL;
    if (dlx_likely(m->bytes > 0)) {
        const struct dlx_subscriber_link_arena *arena = NULL;
        int r = dlx__message_arena(link, n, arena_id, &arena);
        if (dlx_unlikely(r < 0))
            return r;
        if (dlx_unlikely(offset % DLX_SHM_ALIGN != 0 ||
                         __builtin_sub_overflow(arena->size, offset, &room) || m->bytes > room))
            return dlx__message_bad_place(offset, m->bytes, arena);
        data = arena->map + offset;
    }
    DLTensor *t = &m->inline_tensor;
    t->data = (void *)(uintptr_t)data;
    for (int64_t *dims = m->dims, *end = dims + 2 * t->ndim; dims < end; dims += 2) {
        *(dlx_pair *)(void *)dims = dlx__pair(dims + 2 * DLX_SHM_NDIM_ENTRY);
        __asm__(
            ""
            : "+r"(dims)); /* few dimensions: not worth the call of memcpy() that it would become */
    }
    return 0;
}

/* The struct is built: it is the caller's. */
static inline __attribute__((always_inline)) void
dlx__message_hand_out(struct dlx_subscriber_link *link, struct dlx_message *m, uint64_t n,
                      uint64_t gap, uint64_t monotonic_ns)
{
    m->seq = n;
    m->gap = gap;
    m->monotonic_ns = monotonic_ns;
    dlx__reader_count(&link->core, m->bytes);
    atomic_store_explicit(&m->refs, 1, memory_order_relaxed);
    link->n_given++;
    DLX_PROBE_TAKE(link->publisher, n, link->id, m->bytes, monotonic_ns);
}

/* What to stamp on a tensor: the first DLPack that has its flags, since some consumers refuse
 * what they do not know. */
static inline DLPackVersion dlx__message_version(uint64_t flags)
{
    bool padded = flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
    return (DLPackVersion){DLPACK_MAJOR_VERSION, padded ? 1 : 0};
}

/*
 * Cuts the first `n` bytes, a multiple of 8, off the metadata of a message that was just taken, and
 * returns them as they were then; NULL: it has fewer. `ret_in_place` receives where they lie in the
 * publisher's memory, which stays mapped, and may change, as long as the message. Both live as long
 * as the message.
 */
const void *dlx__message_cut_meta(struct dlx_message *m, uint32_t n, const void **ret_in_place);

/* The name of tensor `i`, which there is; "" if it has none. Valid as long as the message. */
dlx_for_gpu const char *dlx__message_name(const struct dlx_message *m, uint32_t i);

/* A tensor on the CPU is used on streams: its deleter is to look at them. */
dlx_for_gpu void dlx__message_release_on_streams(DLManagedTensorVersioned *tensor);

/* The end of a tensor: nothing uses it any more, or ever did. Any thread. */
dlx_for_gpu void dlx__message_abandon(struct dlx_export *e);

/*
 * Build the message of `taken`, whose hold word is set: checks every number. Returns 0;
 * DLX_E_NOT_FOUND (an arena is missing), DLX_E_BAD_PEER, DLX_E_NO_MEMORY. The hold word stays set
 * on failure.
 */
int dlx__message_build(struct dlx_subscriber_link *link, const struct dlx_taken *taken,
                       struct dlx_message **ret);

#endif
