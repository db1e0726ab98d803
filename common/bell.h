/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_COMMON_BELL_H
#define DLX_COMMON_BELL_H

/*
 * What goes over the bell of a link. A byte of 0 wakes whoever sleeps. A publisher that closes says before it hangs up how
 * far its stream came: the subscriber may not be told of the control block that it ended in. That is a number below 2^63 in
 * 9 digits of 7 bits, the highest first, each with the top bit set, so that no byte of it is 0 and nobody has to find where
 * it begins. docs/decisions/0009.
 *
 * Where the publisher has yet to be told of the link the daemon holds its end of the bell, and says so. If the daemon ends then,
 * the bell hangs up, and the publisher lives.
 */

#include "common/util.h"
#include <sys/socket.h>

#define DLX_BELL_END_SIZE 9U

/* The daemon's word, as the first byte: the publisher will be told of the link. Then: it was. */
#define DLX_BELL_WAITS 1
#define DLX_BELL_TOLD  2
/* The publisher's last word: it goes on without this link, which broke its bounds. The daemon
 * tells of no end. */
#define DLX_BELL_CUT 3

/* The kernel may have no memory for a byte just now. */
#define DLX_BELL_TRIES 4

/* Wake who sleeps. A closed socket has nobody to wake, and one that stays full has somebody who does not listen. False: the
 * kernel had no memory for it, several times. */
static inline bool dlx__ring_bell(int borrow_fd)
{
    for (int i = 0; i < DLX_BELL_TRIES; i++)
        if (send(borrow_fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 ||
            (errno != ENOBUFS && errno != ENOMEM && errno != EINTR && errno != EAGAIN))
            return true;
    return errno == EAGAIN;
}

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

/* Who holds the other end? What was known so far, and what came now. */
enum dlx_bell_holder { DLX_BELL_UNHEARD, DLX_BELL_DAEMON, DLX_BELL_PUBLISHER, DLX_BELL_NOBODY };

static inline enum dlx_bell_holder dlx__bell_holder(enum dlx_bell_holder holder,
                                                    const uint8_t *bytes, size_t n)
{
    if (holder == DLX_BELL_UNHEARD)
        holder = bytes[0] == DLX_BELL_WAITS ? DLX_BELL_DAEMON : DLX_BELL_PUBLISHER;
    for (size_t i = 0; i < n; i++)
        if (bytes[i] == DLX_BELL_TOLD || bytes[i] == DLX_BELL_CUT)
            holder = bytes[i] == DLX_BELL_CUT ? DLX_BELL_NOBODY : DLX_BELL_PUBLISHER;
    return holder;
}

#endif
