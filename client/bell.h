/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_BELL_H
#define DLX_CLIENT_BELL_H

/*
 * What goes over the bell of a link. A byte of 0 wakes whoever sleeps. A publisher that closes says before it hangs up how
 * far its stream came: the subscriber may not be told of the control block that it ended in. That is a number below 2^63 in
 * 9 digits of 7 bits, the highest first, each with the top bit set, so that no byte of it is 0 and nobody has to find where
 * it begins. docs/decisions/0009.
 */

#include "common/util.h"

#define DLX_BELL_END_SIZE 9U

/* `end`: one more than the number of the last message, so it is not 0. */
static inline void dlx__bell_pack(uint64_t end, uint8_t ret_bytes[DLX_BELL_END_SIZE])
{
    for (uint32_t i = DLX_BELL_END_SIZE; i-- > 0; end >>= 7)
        ret_bytes[i] = (uint8_t)(0x80 | (end & 0x7f));
}

/* What was heard so far, 0 at first, and what came now: the last 9 digits count. Any bytes make some number below 2^63. */
static inline uint64_t dlx__bell_hear(uint64_t end, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i] & 0x80)
            end = (end << 7 | (bytes[i] & 0x7f)) & INT64_MAX;
    return end;
}

#endif
