/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_TURN_H
#define DLX_CLIENT_TURN_H

/*
 * One thread at a time is in a call on an object; another one is refused, not made to wait. A
 * thread that is always the same one pays no locked instruction for that: it owns the turn. Any
 * other thread takes the turn away first, by membarrier(2), which is as if the owner had executed a
 * fence.
 *
 *     FREE --- the same thread, OWN_AFTER calls in a row --> OWNED --- another thread --> FREE
 */

#include "common/error.h"
#include <stdatomic.h>

struct dlx_turn {
    _Atomic(const void *) owner; /* NULL: none */
    _Atomic uint32_t inside;     /* the owner is in a call */
    _Atomic uint32_t busy; /* a thread that does not own the turn is in a call, or wants to be */
    bool is_foreign;       /* the thread in a call is not the owner; false between calls */
    /* Of the thread that is in a call. */
    const void *last;
    uint32_t n_same; /* calls of `last` in a row */
    uint32_t n_lost; /* times that an owner was not alone after all */
};

/* dlx__turn_begin() for a thread that does not own the turn. */
bool dlx__turn_begin_slowly(struct dlx_turn *turn);

/* A name for this thread: an address of its own. */
static inline const void *dlx__turn_self(void)
{
    return &dlx__error_is_set;
}

/* False: another thread is in a call. Otherwise dlx__turn_end() follows. */
static inline bool dlx__turn_begin(struct dlx_turn *turn)
{
    const void *self = dlx__turn_self();
    if (dlx_likely(atomic_load_explicit(&turn->owner, memory_order_relaxed) == self)) {
        atomic_store_explicit(&turn->inside, 1, memory_order_relaxed);
        atomic_signal_fence(memory_order_seq_cst); /* partner: membarrier() in take_away() */
        if (dlx_likely(atomic_load_explicit(&turn->owner, memory_order_relaxed) == self))
            return true;
        atomic_store_explicit(&turn->inside, 0, memory_order_release);
    }
    return dlx__turn_begin_slowly(turn);
}

/* Why a call (`what`) on an object of this kind is refused: DLX_E_INVALID (there is none:
 * `generation` is NULL), DLX_E_FORKED, DLX_E_IN_USE. */
int dlx__turn_refuse(const char *what, const char *kind, const uint64_t *generation,
                     const char *topic);

/* The thread in a call gives up owning the turn: until the call ends, its further calls are refused
 * as those of other threads are. */
static inline void dlx__turn_disown(struct dlx_turn *turn)
{
    atomic_store_explicit(&turn->owner, NULL, memory_order_relaxed);
}

static inline void dlx__turn_end(struct dlx_turn *turn)
{
    /* Read before the store: after it, the next thread may be in a call, and set is_foreign. */
    if (dlx_unlikely(turn->is_foreign)) {
        turn->is_foreign = false;
        atomic_store_explicit(&turn->busy, 0, memory_order_release);
    } else {
        atomic_store_explicit(&turn->inside, 0, memory_order_release);
    }
}

#endif
