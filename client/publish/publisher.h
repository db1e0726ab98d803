/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_PUBLISHER_H
#define DLX_CLIENT_PUBLISHER_H

/*
 * A publisher: a ring writer with its memory, its sockets and its links. Each concern has a struct
 * of its own, in the header of the concern:
 *
 *     memory   where payloads lie, and when memory goes back     publisher_memory.h
 *     daemon   what its daemon made for it                       publisher_daemon.h
 *     watch    whether that daemon is still there                publisher_daemon.h
 *     joins    links that are told of, and links that ended      publisher_link.h
 *     ready    the descriptor of dlx_publisher_fd()              publisher_fd.h
 */

#include "client/base/clock.h"
#include "client/base/event.h"
#include "client/base/turn.h"
#include "client/control/client.h"
#include "client/heap/heap.h"
#include "client/publish/publisher_daemon.h"
#include "client/publish/publisher_fd.h"
#include "client/publish/publisher_link.h"
#include "client/publish/publisher_memory.h"
#include "ring/writer.h"
#include <stdatomic.h>

/* What a message has to do before it is published, even where there is room. */
enum dlx_detour {
    /* Wait for reliable subscribers that have yet to come to the new daemon. */
    DLX_DETOUR_REJOIN = 1,
    DLX_DETOUR_REQUIRE = 2, /* see that args.min_subscribers are there */
    DLX_DETOUR_REFUSED = 4, /* fail: the daemon does not let it publish, until one takes it again */
    /* Look at the descriptor of dlx_publisher_fd(): a call has failed, and subscribers ring
     * since. */
    DLX_DETOUR_ARMED = 8,
};

struct dlx_publisher {
    struct dlx_client *client;
    uint64_t generation;
    uint64_t id;    /* with the daemon that it is announced to */
    uint64_t epoch; /* of the client, when it was announced */
    char topic[DLX_TOPIC_MAX + 1];
    struct dlx_publisher_args args; /* to announce it again */
    uint32_t retain;                /* messages */
    uint32_t detours;               /* of enum dlx_detour */
    struct dlx_turn turn;
    struct dlx_clock clock; /* for the times of messages */
    struct dlx_writer core;
    struct dlx_heap *heap;
    bool is_guarded; /* its heap is in the debug mode */
    uint64_t n_sets; /* that were looked at; the number of each marks its blocks */
    struct dlx_publisher_memory memory;
    struct dlx_publisher_daemon daemon;
    struct dlx_publisher_watch watch;
    struct dlx_publisher_joins joins;
    struct dlx_publisher_ready ready;
    struct dlx_events events;
    struct dlx_publisher_stats stats;
    struct dlx_gpu_share *gpu; /* NULL: it has shared no memory of GPUs */
};

static inline void dlx__publisher_detour(struct dlx_publisher *p, enum dlx_detour detour, bool on)
{
    p->detours = on ? p->detours | detour : p->detours & ~(uint32_t)detour;
}

struct dlx_new_publisher; /* client/control/call.h */
/* The daemon has made a publisher of this epoch of the client, whose control block is mapped: notes
 * it. The caller owns `ret`, also on failure. Returns 0; DLX_E_NO_MEMORY. */
int dlx__publisher_note(const struct dlx_publisher *p, uint64_t epoch,
                        const struct dlx_new_publisher *made, const void *control,
                        struct dlx_mapped_source **ret);

/* It was refused: DLX_E_ACCESS, with the daemon's words. */
int dlx__publisher_fail_refused(const struct dlx_publisher *p);

/* Why dlx__publisher_begin() refuses. */
int dlx__publisher_refuse(const struct dlx_publisher *p, const char *what);

/* A call on the publisher begins. Returns 0, then dlx__publisher_leave() ends it; DLX_E_INVALID
 * (p is NULL), DLX_E_FORKED, DLX_E_IN_USE (another thread is in a call). `what` is the name of
 * the call. */
static inline int dlx__publisher_begin(struct dlx_publisher *p, const char *what)
{
    dlx__error_clear();
    if (dlx_likely(p && !dlx__forked(p->generation) && dlx__turn_begin(&p->turn)))
        return 0;
    return dlx__publisher_refuse(p, what);
}

static inline void dlx__publisher_leave(struct dlx_publisher *p)
{
    dlx__turn_end(&p->turn);
}

/* client/publish/publisher_wait.c: wait until so many subscribers are attached. Returns 0;
 * DLX_E_TIMEOUT, which names those that are, and those that have yet to make a call; DLX_E_ACCESS,
 * and as dlx__publisher_link_wait(). */
int dlx__publisher_await(struct dlx_publisher *p, uint32_t n_subscribers, struct dlx_wait *wait);

#endif
