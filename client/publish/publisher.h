/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_PUBLISHER_H
#define DLX_CLIENT_PUBLISHER_H

/*
 * A publisher: a ring writer with its memory, its sockets and its links. Each concern has a struct
 * of its own:
 *
 *     memory   where payloads lie, and when memory goes back     publisher_memory.h
 *     daemon   what its daemon made for it
 *     watch    whether that daemon is still there                publisher_move.h
 *     joins    links that are told of, and links that ended      publisher_link.h
 *     ready    the descriptor of dlx_publisher_fd()              publisher_wait.h
 */

#include "client/base/clock.h"
#include "client/base/event.h"
#include "client/base/mapped.h"
#include "client/base/turn.h"
#include "client/control/client.h"
#include "client/control/notification.h"
#include "client/heap/heap.h"
#include "common/error.h"
#include "common/memory.h"
#include "ring/writer.h"
#include <stdatomic.h>

struct dlx_publisher_link; /* client/publish/publisher_link.h */

struct dlx_publisher_memory {
    /* The block that the next dlx_alloc() takes, and its payload: for prefetching only, may be
     * stale. */
    const void *next_block;
    const void *next_data;
    /* Not 0: the last block, of this size, needed an old message to go; the next one will, too. */
    uint64_t room_size;
    /* Message numbers: of what is too much, and of all that is not in use. */
    uint64_t next_trim;
    uint64_t next_trim_of_all;
    uint32_t trim_step;     /* arenas that go back with each message; 0: none */
    uint64_t crowded_until; /* no arena could be had: until then what fits anywhere will do */
};

/* What that daemon made for the publisher, and knows of it. */
struct dlx_publisher_daemon {
    const struct dlx_memory *memory; /* the daemon's kind */
    int link_sock;                   /* -1 once the daemon is gone */
    /* The newest control block, whose locks tell who reads it; -1: the daemon would not keep it. */
    int control_fd;
    struct dlx_mapped_source *source; /* its memory is noted there */
    const struct dlx_shm_membership *membership;
    uint64_t membership_size;
    uint64_t origin;    /* the publisher's id with the first daemon */
    uint64_t base;      /* this daemon does not know the messages up to here */
    bool has_succeeded; /* it knows that there are as many messages as it retains */
};

/* When to look whether it is there. */
struct dlx_publisher_watch {
    uint64_t next_look_ns;
    bool had_daemon_tid; /* the daemon was there at the last look, by its own word */
    int64_t linger_ns;   /* how long a close waits for subscribers on their way to a new daemon */
    /* DLX_DETOUR_REFUSED: ACCESS, or KICKED, for good; and what the daemon said. */
    int refusal_code;
    char refusal[DLX_ERROR_TEXT_SIZE];
};

/*
 * What comes by the link socket.
 *
 *                 no descriptor is free                 no memory for the link
 *     STARVED <------------------------- PICKED_UP -----------------------------> DUE
 *        |  the packet stays in the socket  ^  ^  the packet was read: it is kept  |
 *        +-- a packet is read, or moved ----+  +------------- it is added ---------+
 *
 * Moved: the publisher goes on with another daemon, which has another socket.
 */
enum dlx_publisher_joins_state {
    DLX_PUBLISHER_JOINS_PICKED_UP,
    DLX_PUBLISHER_JOINS_STARVED,
    DLX_PUBLISHER_JOINS_DUE,
};

struct dlx_publisher_joins {
    enum dlx_publisher_joins_state state;
    struct dlx_notification due; /* if DUE: the link, with fds */
    uint64_t next_more_ns;       /* not before: the daemon did not send the rest in time */
    uint64_t n_ended;            /* links of this daemon that are ENDED, or were */
};

/*
 * dlx_publisher_fd(): an epoll that stays the same. Its one member is an epoll of all that tells of
 * room or of subscribers. Each call that fails for want of these makes that one anew, since links
 * come and go. Subscribers ring while the publisher says that it is blocked. It says so before the
 * call looks, so that it misses nothing that comes later, and until a call succeeds.
 */
struct dlx_publisher_ready {
    int fd;                  /* the epoll; -1: the program did not ask for it */
    int sources;             /* its member, an epoll; at first an eventfd that is readable */
    int timer;               /* in `sources`: where nothing rings */
    uint64_t pause_ns;       /* how long the timer was set to look for a daemon; 0: it was not */
    const void *armed_block; /* the control block that says that it is blocked */
};

/* What a message has to do before it is published, even where there is room. */
enum dlx_detour {
    /* Wait for reliable subscribers that have yet to come to the new daemon. */
    DLX_DETOUR_REJOIN = 1,
    DLX_DETOUR_REQUIRE = 2, /* see that args.min_subscribers are there */
    DLX_DETOUR_REFUSED = 4, /* fail: the daemon does not let it publish, until one takes it again */
    /* Look at the descriptor of dlx_publisher_fd(): a call has failed, and subscribers ring
     * since. */
    DLX_DETOUR_ARMED = 8,
    DLX_DETOUR_BYTES = 16, /* see that no more than args.max_queued_bytes wait */
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
    uint64_t waited_ns;        /* for room, without the wait that goes on */
    uint64_t waits_since;      /* when that began; 0: none goes on */
    struct dlx_gpu_share *gpu; /* NULL: it has shared no memory of GPUs */
    /* Of a caller (client/service/caller.c), which looks what the subscriber holds before the link
     * is let go; NULL: of none. */
    void (*link_gone)(void *userdata, struct dlx_publisher_link *link);
    void *link_gone_userdata;
};

static inline void dlx__publisher_detour(struct dlx_publisher *p, enum dlx_detour detour, bool on)
{
    p->detours = on ? p->detours | detour : p->detours & ~(uint32_t)detour;
}

/* Does it wait for reliable subscribers and groups, instead of dropping messages? */
static inline bool dlx__publisher_gates(const struct dlx_publisher_args *args)
{
    return args->on_full == DLX_ON_FULL_DEFAULT ? args->n_groups > 0
                                                : args->on_full != DLX_ON_FULL_DROP;
}

/* Entries of its control block. */
static inline uint32_t dlx__publisher_n_entries(const struct dlx_publisher_args *args)
{
    return dlx_shm_n_entries(DLX_MAX(args->depth, args->history));
}

/* Tells in a control block how long it has waited for room. */
static inline void dlx__publisher_tell_waited(const struct dlx_publisher *p,
                                              struct dlx_shm_control *control)
{
    if (p->waits_since > 0)
        dlx_store64_relaxed(&control->waits_since, p->waits_since);
    dlx_store64_relaxed(&control->waited, p->waits_since > 0
                                              ? DLX_SHM_WAITING | (p->waits_since - p->waited_ns)
                                              : p->waited_ns);
}

static inline void dlx__publisher_unmap_control(const struct dlx_publisher *p,
                                                struct dlx_shm_control *control)
{
    dlx__mapped_remove_control(p->client->mapped, control);
    dlx__region_unmap(control, dlx_shm_control_size(dlx__publisher_n_entries(&p->args)));
}

/* A call on the publisher begins. Returns 0, then dlx__publisher_leave() ends it; DLX_E_INVALID
 * (p is NULL), DLX_E_FORKED, DLX_E_IN_USE (another thread is in a call). `what` is the name of
 * the call. */
static inline int dlx__publisher_begin(struct dlx_publisher *p, const char *what)
{
    dlx__error_clear();
    if (dlx_likely(p && !dlx__forked(p->generation) && dlx__turn_begin(&p->turn)))
        return 0;
    return dlx__turn_refuse(what, "publisher", p ? &p->generation : NULL, p ? p->topic : NULL);
}

/* As dlx_publisher_new(), also on an inbox (common/topic.h). The topic was checked. */
int dlx__publisher_new(struct dlx_client *c, const char *topic,
                       const struct dlx_publisher_args *args, struct dlx_publisher **ret);

static inline void dlx__publisher_leave(struct dlx_publisher *p)
{
    dlx__turn_end(&p->turn);
}

#endif
