/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_SUBSCRIPTION_H
#define DLX_CLIENT_SUBSCRIPTION_H

/* A subscription: its links, the socket that brings their notifications, and the epoll that it
 * sleeps on. */

#include "client/base/event.h"
#include "client/base/turn.h"
#include "client/control/call.h"
#include "client/message/subscriber_link.h"
#include "client/subscribe/origin.h"

/* Longest busy wait unless the caller chose one. */
#define DLX_SPIN_DEFAULT_NS UINT64_C(20000)

/* What the socket of a subscription brought. */
struct dlx_subscription_notifications {
    uint64_t n_read;     /* packets */
    uint64_t n_known;    /* of them, those that were read before the last look at all links began */
    uint32_t n_with_fds; /* of them, those with fds: for Ack */
    uint32_t n_acked;
    bool stays;          /* the last of them, in the socket, until it is dropped */
    uint32_t n_offers;   /* links to publishers that were there, and spares */
    uint32_t n_offered;  /* of them, those that were offered, or failed before that */
    uint64_t first_link; /* the number of the first of them; the others' follow */
};

/* When a take looks at more than the ring, and how long it spins. */
struct dlx_subscription_looks {
    uint64_t takes;
    uint64_t at;                /* when `takes` is this: look for notifications, or bells */
    uint64_t stamp;             /* likewise when a message has a later time */
    uint64_t notification_at;   /* likewise for notifications */
    uint32_t notification_step; /* and then again after so many */
    uint64_t last_ns;
    uint64_t told_ns; /* in mode LATEST: when the last notification was read */
    bool is_owed; /* likewise: since then, the daemon may have had more than it had credit for */
    uint64_t spin_ns; /* adaptive */
};

/*
 * What a take has yet to tell, each once.
 *
 *     publishers   NONE --- a link opens ---> ATTACHED --- no link is left, and args.n_publishers
 *                   ^                            |         have left
 *                   +---- PUBLISHER_GONE is told +
 *
 *     the daemon   there --- it ends ---> lost --- no link is left: DISCONNECTED is told ---> told
 *                    ^                     |                                                   |
 *                    +---- another one ----+---------------------------------------------------+
 */
struct dlx_subscription_untold {
    int failure; /* of a link, or to subscribe again */
    char failure_text[DLX_ERROR_TEXT_SIZE];
    char refusal[DLX_ERROR_TEXT_SIZE]; /* why the last link failed or was cut; "": none did */
    char away[DLX_AWAY_SIZE]; /* who has yet to come to the daemon; "": nobody, or one has */
    bool was_attached;        /* ATTACHED */
    uint32_t n_left;          /* publishers that have left since PUBLISHER_GONE was told last */
    /* The daemon has disconnected us, and this is told before our socket is seen to be closed. */
    bool told_cut;
    bool told_lost; /* of a daemon that is lost (sock is -1): the caller knows it */
};

/* The message that the next take of a worker's link would claim, client/subscribe/take.c. */
struct dlx_head {
    uint64_t ns; /* when it was published */
    const struct dlx_subscriber_link *link;
    uint32_t at; /* of the active links */
};

struct dlx_heads {
    struct dlx_head *list; /* [links_room]: the oldest comes last */
    uint32_t n;
    uint64_t until_ns; /* when all links were looked at */
};

struct dlx_subscription {
    struct dlx_client *client;
    const struct dlx_memory *memory; /* of its daemon: another object may have met the next one */
    uint64_t generation;
    struct dlx_turn turn;
    uint64_t id;
    char topic[DLX_TOPIC_MAX + 1];
    struct dlx_subscribe_args args;
    int sock;       /* notifications; -1 once the daemon is gone */
    int timer;      /* a time to look for another one, or at links that nobody rings for; else -1 */
    uint64_t epoch; /* of the client, when it was made */
    uint64_t next_try_ns; /* to make it again */
    uint64_t reader;      /* names it to publishers, whichever daemon makes the link */
    bool made_again;      /* with another daemon */
    int epoll;            /* every bell, and sock */
    bool fd_given;
    int nudge; /* an eventfd that makes the epoll readable, once its fd was given away; else -1 */
    struct dlx_subscriber_link **links;
    struct dlx_subscriber_link **active; /* [links_room]: those that every take looks at */
    uint32_t n_active;
    uint32_t n_links;
    uint32_t n_spares; /* of them: links that have no publisher yet */
    uint32_t links_room;
    uint32_t n_open;
    uint32_t next;          /* whose turn it is, of the active ones */
    uint32_t n_alone;       /* takes for which it stays that one's turn */
    struct dlx_heads heads; /* of a worker */
    uint32_t n_changes;     /* of the links: when it changes, a pointer to one may be stale */
    struct dlx_subscription_notifications notifications;
    struct dlx_subscription_looks looks;
    struct dlx_subscription_untold untold;
    struct dlx_resume_positions resume_positions;
    struct dlx_events events;
    /* Of calls (client/service): a take that has no message ends for an event. Events alone tell an
     * inbox of links that failed. */
    bool tells_events;
    struct dlx_gpu_receiver *gpu; /* client/gpu/gpu.h; NULL: none yet */
    struct dlx_worker *worker;    /* client/message/worker.h; NULL: it is in no group */
    struct dlx_subscription_view of;
    struct dlx_subscription_stats stats;
};

/* A call on the subscription begins. Returns 0, then dlx__subscription_leave() ends it;
 * DLX_E_INVALID (s is NULL), DLX_E_FORKED, DLX_E_IN_USE (another thread is in a call). `what` is
 * the name of the call. */
static inline int dlx__subscription_begin(struct dlx_subscription *s, const char *what)
{
    dlx__error_clear();
    if (dlx_likely(s && !dlx__forked(s->generation) && dlx__turn_begin(&s->turn)))
        return 0;
    return dlx__turn_refuse(what, "subscription", s ? &s->generation : NULL, s ? s->topic : NULL);
}

static inline void dlx__subscription_leave(struct dlx_subscription *s)
{
    dlx__turn_end(&s->turn);
}

/* As dlx_subscribe(), also to an inbox (common/topic.h). The topic was checked. */
int dlx__subscribe(struct dlx_client *c, const char *topic, const struct dlx_subscribe_args *args,
                   struct dlx_subscription **ret);

/* What was counted on a link. */
static inline void dlx__subscription_count(struct dlx_subscription_stats *stats,
                                           const struct dlx_subscriber_link *link)
{
    const struct dlx_reader_counters counters = dlx__reader_counters(&link->core);
    stats->taken += counters.taken;
    stats->taken_bytes += counters.taken_bytes;
    stats->skipped += counters.skipped;
    stats->lost += counters.lost;
}

/* Adds a descriptor to the epoll of the subscription. Returns 0; DLX_E_SYSTEM. */
int dlx__subscription_epoll_add(struct dlx_subscription *s, int fd, uint32_t events, void *data);
/* Removes a descriptor (-1: none) from the epoll and closes it. Returns -1. Closing alone does not
 * remove it while a forked child has it, too: the epoll would name it for ever. */
int dlx__subscription_epoll_close(struct dlx_subscription *s, int take_fd);

/* What names the bell of the group of a link in the epoll; the link itself names its own bell. */
static inline void *dlx__subscription_group_tag(struct dlx_subscriber_link *link)
{
    return (void *)((uintptr_t)link | 1);
}
/* The link whose group is named so; NULL: it is another name. */
static inline struct dlx_subscriber_link *dlx__subscription_of_group_tag(void *tag)
{
    return (uintptr_t)tag & 1 ? (struct dlx_subscriber_link *)((uintptr_t)tag & ~(uintptr_t)1)
                              : NULL;
}

/* What the thread's message says happened to a link: remembered, and told by a later take, or by
 * dlx_subscribe(). The first one counts. */
void dlx__subscription_fail(struct dlx_subscription *s, int code);

/* Why no message came: nobody publishes it, a publisher was refused, or there is no daemon.
 * "": there is a publisher. */
#define DLX_WHY_NONE_SIZE 700 /* a path, and what dlx_client_refused_by() returns */
void dlx__subscription_why_none(const struct dlx_subscription *s, char ret[DLX_WHY_NONE_SIZE]);

/* News were read, by whoever spins, for another link or for an event, after the last look at a link
 * that may wait for them, or that was not asked to ring. Nothing else will tell of those. */
static inline bool dlx__subscription_has_unused_notifications(const struct dlx_subscription *s)
{
    return s->notifications.n_known != s->notifications.n_read;
}

/* What a bell is in the epoll for. */
#define DLX_BELL_EVENTS (EPOLLIN | EPOLLRDHUP | EPOLLET)

/* Tells by an event what happened to the memory of a link that is open. */
void dlx__subscription_tell(struct dlx_subscription *s, struct dlx_subscriber_link *link);

/* Leave a link: what is held stays held. */
void dlx__subscription_detach(struct dlx_subscription *s, struct dlx_subscriber_link *link);
/* Leave a link that cannot go on, as the thread's message says: DLX_EVENT_LOST has that reason, and
 * what the publisher has published and the link has not passed counts as lost. */
void dlx__subscription_reject(struct dlx_subscription *s, struct dlx_subscriber_link *link);
/* Likewise of a worker that cannot read what it has claimed, since it will not hear of the memory:
 * another worker can, or it can by a link of the next daemon. */
void dlx__subscription_leave_unread(struct dlx_subscription *s, struct dlx_subscriber_link *link);

/* Is there a link of a daemon that has ended, or that has disconnected us? */
static inline bool dlx__subscription_has_foreign(const struct dlx_subscription *s)
{
    bool has = false;
    for (uint32_t i = 0; !has && s->made_again && i < s->n_links; i++)
        has = dlx__subscriber_link_is_foreign(s->links[i]);
    return has;
}
/* Its publisher has cut the link: a later take, and an event, say why. */
void dlx__subscription_cut(struct dlx_subscription *s, struct dlx_subscriber_link *link);
/* Leave links whose publishers are gone, as the daemon said, and have published more than a ring
 * full since: a publisher whom the daemon has disconnected may ignore that. */
void dlx__subscription_leave_gone(struct dlx_subscription *s);
/* A daemon refuses the subscription, and the thread's message says why: leave all links, a later
 * take says so. */
void dlx__subscription_refused(struct dlx_subscription *s, int code);

/* Something may be there. Links that are not open, or whose turn has
 * not come, stay as they are. */
void dlx__subscription_activate(struct dlx_subscription *s, struct dlx_subscriber_link *link);
void dlx__subscription_deactivate(struct dlx_subscription *s, struct dlx_subscriber_link *link);

/* Do links wait for LinkOpen, or for arenas? */
static inline bool dlx__subscription_joins(const struct dlx_subscription *s)
{
    return s->n_open < s->n_links - s->n_spares;
}

/* In mode LATEST: may the daemon be about to tell of a publisher with a newer message than those of
 * publishers that have ended? These wait for that, but not for a daemon that says nothing. */
#define DLX_NEWER_NS UINT64_C(100000000)
static inline bool dlx__subscription_may_get_newer(const struct dlx_subscription *s)
{
    return (s->looks.is_owed || dlx__subscription_joins(s)) && s->sock >= 0 &&
           dlx__now_ns() - s->looks.told_ns < DLX_NEWER_NS;
}

/* The link that goes on where this one ends, with another daemon; NULL: none. A worker takes from
 * both meanwhile. */
struct dlx_subscriber_link *dlx__subscription_successor(const struct dlx_subscription *s,
                                                        const struct dlx_subscriber_link *link);

/* client/subscribe/take.c: leave the links whose publishers have left and of which everything
 * was taken, as a take does. */
void dlx__subscription_leave_ended(struct dlx_subscription *s);

/* The daemon is gone: try to subscribe with another one. */
void dlx__subscription_reconnect(struct dlx_subscription *s);
/* Read what the daemon has sent, without waiting. May attach and detach links, and set
 * `failure`. */
void dlx__subscription_read_notifications(struct dlx_subscription *s);

#endif
