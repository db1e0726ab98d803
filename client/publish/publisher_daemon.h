/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_PUBLISHER_DAEMON_H
#define DLX_CLIENT_PUBLISHER_DAEMON_H

/* What a publisher has of the daemon that it is announced to. How it goes on with another one is in
 * publisher_reconnect.h. */

#include "common/error.h"
#include <dlx/dlx.h>

struct dlx_memory;
struct dlx_publisher;

/* What that daemon made for it, and knows of it. */
struct dlx_publisher_daemon {
    const struct dlx_memory *memory; /* the daemon's kind */
    int link_sock;                   /* -1 once the daemon is gone */
    /* Of the newest control block, to see who has locked it; -1: the daemon would not keep it. */
    int control_fd;
    struct dlx_mapped_source *source; /* its memory is noted there */
    const void *membership;
    uint64_t membership_size;
    uint64_t origin;    /* the publisher's id with the first daemon */
    uint64_t base;      /* this one does not know the messages up to here */
    bool has_succeeded; /* it knows that there are as many messages as it retains */
};

/* When to look whether it is there. */
struct dlx_publisher_watch {
    uint64_t next_look_ns;
    bool had_daemon_tid; /* it was there when we looked last, by its own word */
    int64_t linger_ns;   /* how long a close waits for subscribers on their way to a new daemon */
    char refusal[DLX_ERROR_TEXT_SIZE]; /* what the daemon said: DLX_DETOUR_REFUSED */
};

/* Another descriptor of a control block that its daemon keeps beyond its own end, to be kept as
 * p->daemon.control_fd; else -1. */
int dlx__publisher_keep_control(const struct dlx_publisher_args *args, int borrow_fd);

/* Entries of its control block. */
uint32_t dlx__publisher_n_entries(const struct dlx_publisher_args *args);

/* It has as many messages as it retains: what predecessors left may go. */
void dlx__publisher_succeed(struct dlx_publisher *p);

#endif
