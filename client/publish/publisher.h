/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_PUBLISHER_H
#define DLX_CLIENT_PUBLISHER_H

/* A publisher: a ring writer with its memory, its sockets and its links. */

#include "client/base/clock.h"
#include "client/base/event.h"
#include "client/base/turn.h"
#include "client/control/call.h"
#include "client/control/client.h"
#include "client/heap/heap.h"
#include "ring/writer.h"
#include <stdatomic.h>

/* A link, from the publisher's side. */
struct dlx_publisher_link {
    struct dlx_writer_link core;
    struct dlx_peer *peer;
    uint64_t id;
    uint64_t page_size;
    int bell;
    bool hung_up;    /* the other end of the bell is closed */
    bool ended;      /* counted in n_ended of its publisher */
    bool left;       /* an event told that */
    bool foreign;    /* made by a daemon that has ended */
    bool early;      /* its subscription was there first: it receives everything, started or not */
    uint64_t reader; /* the same for all links of a subscription */
};

/* What is not in use goes back after `depth` messages if it is much, else after so many times
 * that. */
#define DLX_TRIM_EVERY UINT32_C(16)

/* What a message has to do before it is published, even where there is room. */
enum dlx_detour {
    /* Wait for reliable subscribers that have yet to come to the new daemon. */
    DLX_DETOUR_REJOIN = 1,
    DLX_DETOUR_REQUIRE = 2, /* see that args.min_subscribers are there */
    DLX_DETOUR_REFUSED = 4, /* fail: the daemon does not let it publish, until one takes it again */
    /* Look at the descriptor of dlx_publisher_fd(): a call has failed, and subscribers ring since. */
    DLX_DETOUR_ARMED = 8,
};

struct dlx_publisher {
    struct dlx_client *client;
    const struct dlx_memory *memory; /* of the daemon that it is announced to */
    uint64_t generation;
    uint64_t id;
    char topic[DLX_TOPIC_MAX + 1];
    struct dlx_turn turn;
    /* The block that the next dlx_alloc() takes, and its payload: for prefetching only, may be stale. */
    const void *next_block;
    const void *next_data;
    struct dlx_clock clock; /* for the times of messages */
    struct dlx_writer core;
    struct dlx_heap *heap;
    /* Of the newest control block, to see who has locked it; -1: the daemon would not keep it. */
    int control_fd;
    const void *membership;
    uint64_t membership_size;
    uint64_t n_ended;            /* links of this daemon that are known to have ended */
    int link_sock;               /* -1 once the daemon is gone */
    struct dlx_notification due; /* with fds: a new link that there was no memory for */
    uint64_t next_trim;          /* message number */
    uint32_t n_trims;
    uint32_t trim_step;     /* arenas that go back with each message; 0: none */
    uint64_t crowded_until; /* no arena could be had: until then what fits anywhere will do */
    /* Not 0: the last block, of this size, needed an old message to go; the next one will, too. */
    uint64_t room_size;
    struct dlx_publisher_args args;    /* to announce it again */
    uint64_t epoch;                    /* of the client, when it was announced */
    uint64_t origin;                   /* its id with the first daemon */
    uint32_t detours;                  /* of enum dlx_detour */
    char refusal[DLX_ERROR_TEXT_SIZE]; /* what the daemon said: DLX_DETOUR_REFUSED */
    uint64_t next_look_ns;             /* whether the daemon is still there */
    bool is_guarded;                   /* its heap is in the debug mode */
    bool had_daemon_tid;               /* it was when we looked last, by its own word */
    int64_t linger_ns;     /* how long its end waits for subscribers on their way to a new daemon */
    uint64_t n_sets;       /* that were looked at; the number of each marks its blocks */
    bool starved;          /* no room for the descriptors of a link: it waits in the link socket */
    uint64_t next_more_ns; /* not before: the daemon did not send the rest in time */
    bool closed;           /* the daemon knows that it has left, or soon will */
    uint32_t retain;       /* messages */
    uint64_t base;         /* the daemon does not know the messages up to here */
    bool has_succeeded;    /* it knows that there are so many */
    /* dlx_publisher_fd(): an epoll with one member, which is an epoll of what may make room (at first, an
     * eventfd that is readable); -1: nobody asked for it. */
    int ready, sources;
    int timer;               /* in `sources`: where nothing rings */
    uint64_t fd_pause_ns;    /* how long it was set last to look for a new daemon; 0: it was not */
    const void *armed_block; /* that says that it is blocked */
    struct dlx_events events;
    struct dlx_publisher_stats stats;
    struct dlx_gpu_share *gpu; /* NULL: it has shared no memory of GPUs */
};

static inline void dlx__publisher_detour(struct dlx_publisher *p, enum dlx_detour detour, bool on)
{
    p->detours = on ? p->detours | detour : p->detours & ~(uint32_t)detour;
}

/* It was refused: DLX_E_ACCESS, with the daemon's words. */
int dlx__publisher_fail_refused(const struct dlx_publisher *p);

/* Why dlx__publisher_begin() refuses. */
int dlx__publisher_refuse(const struct dlx_publisher *p, const char *what);

/* A call on the publisher begins. Returns 0, then dlx__publisher_leave() ends it; DLX_E_INVALID (p is NULL),
 * DLX_E_FORKED, DLX_E_IN_USE (another thread is in a call). `what` is the name of the call. */
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

struct dlx_wait; /* client/control/wait.h */

/* The environment of the ring writer: client/publish/publisher_link.c. */
extern const struct dlx_writer_env dlx__publisher_link_env;

/*
 * Wait until something may have changed: a bell, a join, a death; or until a part of the wait is over
 * and the program lets it go on. Bells are drained. Returns 0; DLX_E_TIMEOUT, DLX_E_INTERRUPTED,
 * DLX_E_NO_MEMORY, DLX_E_SYSTEM.
 */
int dlx__publisher_link_wait(struct dlx_publisher *p, struct dlx_wait *wait);

/*
 * After a new daemon: wait until every reliable subscriber has a link by it, so that what is published is not lost if that
 * daemon ends, too. Returns 0; DLX_E_FULL, DLX_E_TIMEOUT, and as dlx__publisher_link_wait().
 */
int dlx__publisher_link_rejoin(struct dlx_publisher *p, struct dlx_wait *wait);
/* Before it leaves: wait so long for subscribers who have yet to come to the new daemon, where the newest messages are. */
void dlx__publisher_link_drain(struct dlx_publisher *p, int64_t timeout_ns);
/* It has published its last message: tell every link how far its stream came, less what the daemon keeps. Who sees all of its
 * control blocks knows it from these; who has not come to the new daemon does not. */
void dlx__publisher_link_tell_end(struct dlx_publisher *p);
/* The daemon that made the links has ended. */
void dlx__publisher_link_set_foreign(struct dlx_publisher *p);

/* Cut the links whose pages say that they hold more than this publisher allows: they hold nothing from the next
 * dlx__writer_reclaim() on. Returns whether there were any. */
bool dlx__publisher_link_cut(struct dlx_publisher *p);

/* Links whose subscriber receives what is published from now on. */
uint32_t dlx__publisher_link_n_started(const struct dlx_publisher *p);
/* Links whose subscribers have not closed them and live, as far as was seen: one that holds messages
 * is a link for longer. */
uint32_t dlx__publisher_link_n_attached(const struct dlx_publisher *p);
/* Links that a message reaches that is published now. */
uint32_t dlx__publisher_link_n_reached(const struct dlx_publisher *p);

/* Write into `fds`, which has room for 2 * n_links + 1, the descriptors that become readable when
 * there may be room, or a subscriber; -1 where there is none. Returns true if either may also come
 * without any of them: then look again after DLX_RECONNECT_NS. That a new daemon is there is not told either. */
struct pollfd;
bool dlx__publisher_link_list_sources(const struct dlx_publisher *p, struct pollfd *fds);

/* client/publish/publisher_fd.c, where somebody has asked for dlx_publisher_fd(): before a call looks for
 * room or subscribers, ask subscribers to ring, and forget what they rang before. */
void dlx__publisher_link_arm_begin(struct dlx_publisher *p);
/* After the call, which returns `r`: if it has to be made again, the descriptor becomes readable
 * when that is worth it. Returns `r`, or why the descriptor could not be prepared. */
int dlx__publisher_link_arm_end(struct dlx_publisher *p, int r);
/* A call waits no more. Subscribers go on ringing for dlx_publisher_fd(). */
void dlx__publisher_link_unblock(struct dlx_publisher *p);

/* Set the thread's message to who keeps the publisher from publishing, and return `code`. */
int dlx__publisher_link_blame(const struct dlx_publisher *p, int code);

/* Another descriptor of a control block that its daemon keeps beyond its own end, to be kept as
 * p->control_fd; else -1. */
int dlx__publisher_keep_control(const struct dlx_publisher_args *args, int borrow_fd);

/* Entries of its control block. */
uint32_t dlx__publisher_n_entries(const struct dlx_publisher_args *args);

/*
 * A block of `size` bytes: from the heap, from messages that nobody needs any more, or from a new
 * arena. Errors as of dlx_alloc().
 */
int dlx__publisher_block(struct dlx_publisher *p, uint64_t size, struct dlx_block **ret);
/* Likewise, of what goes when `other` does (NULL: some other): it lies where that does, if there is room. */
int dlx__publisher_block_beside(struct dlx_publisher *p, const struct dlx_block *other,
                                uint64_t size, struct dlx_block **ret);

/*
 * Let messages that nobody needs any more go until the heap, which is the publisher's, has `size`
 * bytes, and with `drop` some that are not passed. DLX_E_FULL: none can go any more.
 */
int dlx__publisher_reclaim(struct dlx_publisher *p, struct dlx_heap *heap, uint64_t size, bool drop,
                           struct dlx_block **ret);

/* Get an arena with room for `size` bytes from the daemon, which knows the publisher by `id` and has this kind of memory. Returns
 * 0; the errors of a call to it; DLX_E_LIMIT, DLX_E_NO_MEMORY. */
int dlx__publisher_grow(struct dlx_publisher *p, const struct dlx_memory *memory, uint64_t id,
                        uint64_t size);

/* Wait until so many subscribers are attached. Returns 0; DLX_E_TIMEOUT, which tells how many are;
 * DLX_E_ACCESS, and as dlx__publisher_link_wait(). */
int dlx__publisher_await(struct dlx_publisher *p, uint32_t n_subscribers, struct dlx_wait *wait);

/* It has as many messages as it retains: what predecessors left may go. */
void dlx__publisher_succeed(struct dlx_publisher *p);

/* Make room for the next message while this one is on its way. */
void dlx__publisher_look_ahead(struct dlx_publisher *p);

#endif
