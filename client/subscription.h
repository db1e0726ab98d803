/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_SUBSCRIPTION_H
#define DLX_CLIENT_SUBSCRIPTION_H

/* A subscription: its links, the socket that brings their news, and the epoll that it sleeps on. */

#include "client/event.h"
#include "client/inlet.h"
#include "client/passed.h"
#include "client/turn.h"

/* Longest busy wait unless the caller chose one. */
#define DLX_SPIN_DEFAULT_NS UINT64_C(20000)

struct dlx_subscription {
    struct dlx_client *client;
    const struct dlx_memory *memory; /* of its daemon: another object may have met the next one */
    uint64_t generation;
    struct dlx_turn turn;
    uint64_t id;
    char topic[DLX_TOPIC_MAX + 1];
    struct dlx_subscribe_args args;
    int sock;       /* news; -1 once the daemon is gone */
    int timer;      /* a time to look for another one, or at links that nobody rings for; else -1 */
    uint64_t epoch; /* of the client, when it was made */
    uint64_t next_try_ns; /* to make it again */
    uint64_t reader;      /* names it to publishers, whichever daemon makes the link */
    bool made_again;      /* with another daemon */
    bool told_lost;       /* the caller knows that the daemon is gone */
    int epoll;            /* every bell, and sock */
    bool fd_given;
    int nudge; /* an eventfd that makes the epoll readable, once its fd was given away; else -1 */
    struct dlx_inlet **inlets;
    struct dlx_inlet **active; /* [inlets_room]: those that every take looks at */
    uint32_t n_active;
    uint32_t n_inlets;
    uint32_t n_spares; /* of them: links that have no publisher yet */
    uint32_t inlets_room;
    uint32_t n_open;
    uint32_t next;       /* whose turn it is, of the active ones */
    uint32_t n_alone;    /* takes for which it stays that one's turn */
    uint32_t n_changes;  /* of the links: when it changes, a pointer to one may be stale */
    uint64_t n_news;     /* packets read */
    uint64_t news_known; /* of them, those that were read before the last look at all links began */
    uint32_t n_offers;   /* links to publishers that were there, and spares */
    uint32_t n_settled;  /* of them, those that ended in a link, a sealed spare or a failure */
    uint64_t first_link; /* the number of the first of them; the others' follow */
    uint32_t fd_news;    /* packets with fds received, for Ack */
    uint32_t acked;
    uint64_t takes;
    uint64_t look_stamp; /* likewise when a message has a later time */
    uint64_t look_at;    /* when `takes` is this: look for news, or bells */
    uint64_t news_at;    /* likewise for news */
    uint32_t news_step;  /* and then again after so many */
    uint64_t last_look_ns;
    uint64_t spin_ns; /* adaptive */
    int failure;      /* of a link, or to subscribe again: to be told once */
    char failure_text[DLX_ERROR_TEXT_SIZE];
    bool was_attached; /* tell when the last publisher leaves */
    uint32_t n_left;   /* publishers that have left since that was told last: args.n_publishers */
    struct dlx_passed passed;
    struct dlx_events events;
    struct dlx_pin *pin; /* NULL: nothing is pinned */
    struct dlx_gpu_threads *gpu_threads;
    struct dlx_subscription_stats stats;
};

/* Why dlx__subscription_begin() refuses. */
int dlx__subscription_refuse(const struct dlx_subscription *s, const char *what);

/* A call on the subscription begins. Returns 0, then dlx__subscription_leave() ends it; DLX_E_INVALID (s is
 * NULL), DLX_E_FORKED, DLX_E_IN_USE (another thread is in a call). `what` is the name of the call. */
static inline int dlx__subscription_begin(struct dlx_subscription *s, const char *what)
{
    dlx__error_clear();
    if (dlx_likely(s && !dlx__forked(s->generation) && dlx__turn_begin(&s->turn)))
        return 0;
    return dlx__subscription_refuse(s, what);
}

static inline void dlx__subscription_leave(struct dlx_subscription *s)
{
    dlx__turn_end(&s->turn);
}

/* What was counted on a link. */
static inline void dlx__subscription_count(struct dlx_subscription_stats *stats,
                                           const struct dlx_inlet *inlet)
{
    stats->taken += inlet->core.taken;
    stats->taken_bytes += inlet->core.taken_bytes;
    stats->skipped += inlet->core.skipped;
    stats->lost += inlet->core.lost;
    stats->gpu_waits += atomic_load_explicit(&inlet->n_gpu_waits, memory_order_relaxed);
    stats->gpu_errors += atomic_load_explicit(&inlet->n_gpu_errors, memory_order_relaxed);
}

/* It was made again: news come on the new socket, which is taken, also on failure. */
struct dlx_new_subscription;
int dlx__subscription_adopt(struct dlx_subscription *s, const struct dlx_new_subscription *made);

/* What the thread's message says happened to a link: remembered, and told by a later take, or by dlx_subscribe(). The
 * first one counts. */
void dlx__subscription_fail(struct dlx_subscription *s, int code);

/* News were read, by whoever spins, for another link or for an event, after the last look at a link that may wait for them, or
 * that was not asked to ring. Nothing else will tell of those. */
static inline bool dlx__subscription_has_unused_news(const struct dlx_subscription *s)
{
    return s->news_known != s->n_news;
}

/* What a bell is in the epoll for. */
#define DLX_BELL_EVENTS (EPOLLIN | EPOLLRDHUP | EPOLLET)

/* client/event.c: what happened to the memory of a link that is open. */
void dlx__subscription_tell(struct dlx_subscription *s, struct dlx_inlet *inlet);

/* Leave a link: what is held stays held. */
void dlx__subscription_detach(struct dlx_subscription *s, struct dlx_inlet *inlet);

/* client/parking.c: something may be there. Links that are not open, or whose turn has not come,
 * stay as they are. */
void dlx__subscription_activate(struct dlx_subscription *s, struct dlx_inlet *inlet);
void dlx__subscription_deactivate(struct dlx_subscription *s, struct dlx_inlet *inlet);
/* Ask its publisher for a bell. Returns false if something is there already. */
bool dlx__subscription_park(struct dlx_subscription *s, struct dlx_inlet *inlet);
/* The epoll names a bell for each new byte, whether the ones before were read or not. */
void dlx__subscription_on_bell(struct dlx_subscription *s, struct dlx_inlet *inlet,
                               uint32_t events);

/* The link that goes on where this one ends, with another daemon; NULL: none. */
struct dlx_inlet *dlx__subscription_successor(const struct dlx_subscription *s,
                                              const struct dlx_inlet *inlet);

/* Read what the daemon has sent, without waiting. May attach and detach links, and set `failure`. */
void dlx__subscription_read_news(struct dlx_subscription *s);

#endif
