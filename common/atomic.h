/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_COMMON_ATOMIC_H
#define DLX_COMMON_ATOMIC_H

/*
 * Atomic words of shared memory.
 *
 * The protocol between publisher and subscriber rests on store-then-load pairs: each side stores its
 * own words, executes one full fence, and loads the other side's words, and at least one of them sees the
 * other's stores. Release and acquire alone do not give that (x86 reorders a store with a later load), nor do
 * seq_cst accesses where an earlier release store counts, too. One fence serves any number of words. Each place
 * names its partner.
 *
 *     gen = n + GONE  then hold words      |  hold word            then gen
 *     gen = n         then tickets         |  ticket               then gen of the next entry
 *     gen = n         then joins           |  joins (the daemon)   then head, gen
 *     blocked         then reclaim again   |  hold word or cursor  then blocked
 *
 * ThreadSanitizer does not model fences; the payloads are ordered by acquire and release of gen, cursors and hold
 * words as well.
 *
 * Compiled with DLX_SIM, each access first calls dlx_sim_step(): a test's scheduler runs there, so a
 * seed decides every interleaving.
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

#endif
