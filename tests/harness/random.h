/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_RANDOM_H
#define DLX_TESTS_HARNESS_RANDOM_H

#include <stdint.h>

/* xorshift64*: the same numbers in every run. The seed is not 0. */
static inline uint64_t dlx_test_random(uint64_t *seed)
{
    *seed ^= *seed >> 12;
    *seed ^= *seed << 25;
    *seed ^= *seed >> 27;
    return *seed * UINT64_C(2685821657736338717);
}

/* From low to high, both of them possible. */
static inline int64_t dlx_test_random_in(uint64_t *seed, int64_t low, int64_t high)
{
    return low + (int64_t)((dlx_test_random(seed) >> 33) % (uint64_t)(high - low + 1));
}

/* splitmix64, for which any seed will do. */
static inline uint64_t dlx_test_splitmix64(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

#endif
