/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_COMMON_ATOMIC_H
#define DLX_COMMON_ATOMIC_H

/*
 * Atomic words of shared memory.
 *
 * The protocol between publisher and subscriber rests on pairs of a store and a load. Each side
 * stores its own words, executes one full fence, and loads the words of the other side; at least
 * one side then sees the stores of the other. Release and acquire alone do not guarantee this (x86
 * reorders a store with a later load), and neither do seq_cst accesses if an earlier release store
 * must count, too. One fence serves any number of words. The comment at each access names its
 * partner.
 *
 *     gen = n + GONE  then holds           |  hold                 then gen
 *     gen = n         then tickets         |  ticket               then gen of the next entry
 *     gen = n         then joins           |  joins (the daemon)   then head, gen
 *     blocked         then reclaim again   |  hold or cursor       then blocked
 *
 * ThreadSanitizer does not model fences. Acquire and release of gen, cursors and holds order the
 * payloads as well.
 *
 * With DLX_SIM, each access first calls dlx_sim_step(), where the scheduler of a test runs, so that
 * a seed decides every interleaving.
 */

#include <stdatomic.h>
#include <stdint.h>

typedef _Atomic uint64_t dlx_atomic_u64;
typedef _Atomic uint32_t dlx_atomic_u32;

#ifdef DLX_SIM
void dlx_sim_step(const volatile void *word);
#else
#define dlx_sim_step(word) ((void)(word))
#endif

#define DLX_ATOMIC_ACCESSORS(bits)                                                                 \
    static inline uint##bits##_t dlx_load##bits##_sc(dlx_atomic_u##bits *word)                     \
    {                                                                                              \
        dlx_sim_step(word);                                                                        \
        return atomic_load_explicit(word, memory_order_seq_cst);                                   \
    }                                                                                              \
    static inline uint##bits##_t dlx_load##bits##_acquire(dlx_atomic_u##bits *word)                \
    {                                                                                              \
        dlx_sim_step(word);                                                                        \
        return atomic_load_explicit(word, memory_order_acquire);                                   \
    }                                                                                              \
    static inline uint##bits##_t dlx_load##bits##_relaxed(dlx_atomic_u##bits *word)                \
    {                                                                                              \
        dlx_sim_step(word);                                                                        \
        return atomic_load_explicit(word, memory_order_relaxed);                                   \
    }                                                                                              \
    static inline void dlx_store##bits##_sc(dlx_atomic_u##bits *word, uint##bits##_t value)        \
    {                                                                                              \
        dlx_sim_step(word);                                                                        \
        atomic_store_explicit(word, value, memory_order_seq_cst);                                  \
    }                                                                                              \
    static inline void dlx_store##bits##_release(dlx_atomic_u##bits *word, uint##bits##_t value)   \
    {                                                                                              \
        dlx_sim_step(word);                                                                        \
        atomic_store_explicit(word, value, memory_order_release);                                  \
    }                                                                                              \
    static inline void dlx_store##bits##_relaxed(dlx_atomic_u##bits *word, uint##bits##_t value)   \
    {                                                                                              \
        dlx_sim_step(word);                                                                        \
        atomic_store_explicit(word, value, memory_order_relaxed);                                  \
    }

DLX_ATOMIC_ACCESSORS(64)
DLX_ATOMIC_ACCESSORS(32)

static inline void dlx_fence(void)
{
    atomic_thread_fence(memory_order_seq_cst);
}

/* The same, behind a compare-and-swap, which is one on x86. */
static inline void dlx_fence_after_swap(void)
{
#if defined(__x86_64__)
    atomic_signal_fence(memory_order_seq_cst);
#else
    dlx_fence();
#endif
}

#endif
