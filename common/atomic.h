/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_COMMON_ATOMIC_H
#define DLX_COMMON_ATOMIC_H

/*
 * Atomic words of shared memory.
 *
 * The protocol between publisher and subscriber rests on store-then-load pairs: each side stores its
 * own word and then loads the other's, and at least one of them sees the other's store. That is what
 * sequential consistency gives and what release and acquire do not give (x86 reorders a store with a
 * later load). So the words of such pairs are accessed with the _sc functions on both sides, and each
 * place names its partner. There are no fences: thread sanitizer does not see them.
 *
 *     hold word (store, then load gen)      |  gen = 0 (store, then load hold words)
 *     head      (store, then load ticket)   |  ticket  (store, then load head)
 *     head      (store, then load joins)    |  joins   (raised, then the joiner loads head)
 *     blocked   (store, then reclaim again) |  hold or cursor (store, then load blocked)
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

#endif
