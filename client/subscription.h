/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_SUBSCRIPTION_H
#define DLX_CLIENT_SUBSCRIPTION_H

/* A subscription: its links, the socket that brings their news, and the epoll that it sleeps on. */

#include "client/event.h"
#include "client/inlet.h"
#include "client/passed.h"

/* Longest busy wait unless the caller chose one. */
#define DLX_SPIN_DEFAULT_NS UINT64_C(20000)

struct dlx_subscription {
    struct dlx_client *client;
    const struct dlx_memory *memory; /* of its daemon: another object may have met the next one */
    uint64_t generation;
    uint64_t id;
    char topic[DLX_TOPIC_MAX + 1];
    struct dlx_subscribe_args args;
    int sock;             /* news; -1 once the daemon is gone */
    int timer;            /* while it is gone: a time to look for another one; else -1 */
    uint64_t epoch;       /* of the client, when it was made */
    uint64_t next_try_ns; /* to make it again */
    uint64_t reader;      /* names it to publishers, whichever daemon makes the link */
    bool made_again;      /* with another daemon */
    bool told_lost;       /* the caller knows that the daemon is gone */
    int epoll;            /* every bell, and sock */
    bool fd_given;
    int nudge; /* makes the epoll readable once, when its fd is first given away; else -1 */
    struct dlx_inlet **inlets;
    uint32_t n_inlets;
    uint32_t inlets_room;
    uint32_t n_open;
    uint32_t next;       /* whose turn it is */
    uint32_t n_changes;  /* of the links that are listened to */
    uint32_t n_detached; /* links that were left: changes when a pointer to one may be stale */
    uint32_t n_offers;   /* links to publishers that were there */
    uint32_t n_settled;  /* of them, those that ended in a link or a failure */
    uint64_t first_link; /* the number of the first of them; the others' follow */
    uint32_t fd_news;    /* packets with fds received, for Ack */
    uint32_t acked;
    uint32_t takes;
    uint32_t news_at;   /* when `takes` is this: look for news */
    uint32_t news_step; /* and then again after so many */
    uint64_t last_look_ns;
    uint64_t spin_ns;      /* adaptive */
    uint64_t pace_ns;      /* when news_step changed last */
    uint32_t n_fast;       /* since then the stream was fast, so many times in a row */
    bool gathers;          /* see client/receive.c */
    uint32_t gather_shift; /* how often it has ended since it was worth it */
    uint32_t gathered_at;  /* `takes` when it did last */
    uint32_t n_poor;       /* times in a row that it found little */
    int failure;           /* of a link, to be told once */
    char failure_text[DLX_ERROR_TEXT_SIZE];
    bool was_attached; /* tell when the last publisher leaves */
    struct dlx_passed passed;
    struct dlx_events events;
    struct dlx_subscription_stats stats;
};

/* It was made again: news come on the new socket, which is taken, also on failure. */
struct dlx_new_subscription;
int dlx__subscription_adopt(struct dlx_subscription *s, const struct dlx_new_subscription *made);

/* Leave link `i`: what is held stays held. */
void dlx__subscription_detach(struct dlx_subscription *s, uint32_t i);

/* The link that goes on where this one ends, with another daemon; NULL: none. */
struct dlx_inlet *dlx__subscription_successor(const struct dlx_subscription *s,
                                              const struct dlx_inlet *inlet);

/* Read what the daemon has sent, without waiting. May attach and detach links, and set `failure`. */
void dlx__subscription_read_news(struct dlx_subscription *s);

#endif
