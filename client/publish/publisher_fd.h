/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_PUBLISHER_FD_H
#define DLX_CLIENT_PUBLISHER_FD_H

/*
 * dlx_publisher_fd(): an epoll that stays the same. Its one member is an epoll of all that tells of
 * room or of subscribers. Each call that fails for want of these makes that one anew, since links
 * come and go. Subscribers ring while the publisher says that it is blocked. It says so before the
 * call looks, so that it misses nothing that comes later, and until a call succeeds.
 */

#include <stdint.h>

struct dlx_publisher;

struct dlx_publisher_ready {
    int fd;                  /* the epoll; -1: nobody asked for it */
    int sources;             /* its member, an epoll; at first an eventfd that is readable */
    int timer;               /* in `sources`: where nothing rings */
    uint64_t pause_ns;       /* how long the timer was set to look for a daemon; 0: it was not */
    const void *armed_block; /* the control block that says that it is blocked */
};

/* Where somebody has asked for dlx_publisher_fd(): before a call looks for
 * room or subscribers, ask subscribers to ring, and forget what they rang before. */
void dlx__publisher_link_arm_begin(struct dlx_publisher *p);
/* After the call, which returns `r`: if it has to be made again, the descriptor becomes readable
 * when that is worth it. Returns `r`, or why the descriptor could not be prepared. */
int dlx__publisher_link_arm_end(struct dlx_publisher *p, int r);
/* A call waits no more. Subscribers go on ringing for dlx_publisher_fd(). */
void dlx__publisher_link_unblock(struct dlx_publisher *p);

#endif
