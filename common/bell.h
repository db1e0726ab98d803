/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_COMMON_BELL_H
#define DLX_COMMON_BELL_H

/*
 * The bytes that go over the bell of a link. A byte of 0 wakes the subscriber or publisher. Before
 * a closing publisher hangs up, it sends the end of its stream, because the subscriber may not know
 * the control block in which the stream ended. The end is a number below 2^63 in 9 digits of 7
 * bits, the highest digit first. Each digit has the top bit set, so that no byte is 0 and the
 * reader needs no start mark (docs/decisions/0009).
 *
 * While the publisher has not been told of the link, the daemon holds the publisher's end of the
 * bell, and says so. If the daemon ends then, the bell hangs up although the publisher lives.
 */

#include "common/util.h"
#include <sys/socket.h>

#define DLX_BELL_END_SIZE 9U

/* Sent by the daemon as the first byte: the publisher is yet to be told of the link. Later: it was
 * told. */
#define DLX_BELL_WAITS 1
#define DLX_BELL_TOLD  2
/* The last byte of a publisher that dropped this link because the link exceeded its limits. The
 * daemon does not report the end. */
#define DLX_BELL_CUT 3
/* Likewise of a publisher that was told that the daemon has disconnected the subscriber. */
#define DLX_BELL_REVOKED 4

/* Attempts to send a byte, for which the kernel may be out of memory. */
#define DLX_BELL_TRIES 4

/* Wakes the peer. A closed socket has no peer to wake, and the peer of a socket that stays full
 * does not read. Returns false if the kernel was out of memory several times. */
static inline bool dlx__ring_bell(int borrow_fd)
{
    for (int i = 0; i < DLX_BELL_TRIES; i++)
        if (send(borrow_fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 ||
            (errno != ENOBUFS && errno != ENOMEM && errno != EINTR && errno != EAGAIN))
            return true;
    return errno == EAGAIN;
}

/* `end` is one more than the number of the last message, so it is not 0. */
static inline void dlx__bell_pack(uint64_t end, uint8_t ret_bytes[DLX_BELL_END_SIZE])
{
    for (uint32_t i = DLX_BELL_END_SIZE; i-- > 0; end >>= 7)
        ret_bytes[i] = (uint8_t)(0x80 | (end & 0x7f));
}

/* Adds received bytes to `end`, which is 0 at first. The last 9 digits count. Any bytes result in a
 * number below 2^63. */
static inline uint64_t dlx__bell_hear(uint64_t end, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i] & 0x80)
            end = (end << 7 | (bytes[i] & 0x7f)) & INT64_MAX;
    return end;
}

/* Who holds the other end? dlx__bell_holder() derives it from the previous state and new bytes, and
 * the subscriber from the hang-up that follows. */
enum dlx_bell_holder {
    DLX_BELL_UNHEARD,
    DLX_BELL_DAEMON,
    DLX_BELL_PUBLISHER,
    DLX_BELL_CUT_BY_PUBLISHER, /* none: the link held too much */
    DLX_BELL_CUT_BY_DAEMON,    /* none: the daemon disconnected the subscriber */
    DLX_BELL_HUNG_UP,          /* none: the publisher hung up */
    DLX_BELL_LOST,             /* none: the daemon ended before the publisher was told */
};

static inline enum dlx_bell_holder dlx__bell_holder(enum dlx_bell_holder holder,
                                                    const uint8_t *bytes, size_t n)
{
    if (holder == DLX_BELL_UNHEARD)
        holder = bytes[0] == DLX_BELL_WAITS ? DLX_BELL_DAEMON : DLX_BELL_PUBLISHER;
    for (size_t i = 0; i < n; i++)
        if (bytes[i] == DLX_BELL_TOLD)
            holder = DLX_BELL_PUBLISHER;
        else if (bytes[i] == DLX_BELL_CUT)
            holder = DLX_BELL_CUT_BY_PUBLISHER;
        else if (bytes[i] == DLX_BELL_REVOKED)
            holder = DLX_BELL_CUT_BY_DAEMON;
    return holder;
}

#endif
