/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_PUBLISHER_LINK_H
#define DLX_CLIENT_PUBLISHER_LINK_H

/*
 * The links of a publisher, from its side: picked up from the link socket, rung, waited for, and
 * let go.
 *
 *     picked up --> ATTACHED ---- notice: an event tells the end ----> ENDED --> freed
 *
 *     notice                                           event   the link
 *     its page says CLOSED                             LEFT    may still hold messages
 *     its pidfd: the process is dead                   LOST    is `dead`
 *     the daemon has ended more links than are known   LOST    is `left`: its process executed
 *     to have ended, and its bell hung up                      another program, or is dying
 *     it holds more than it may, and is cut            LOST    is `dead`, whatever its process does
 *
 * The first notice counts, and others may follow in any order. A process that is killed hangs up
 * before its pidfd says that it is dead, so a link that is `left` becomes `dead` later. A link that
 * ended may still hold messages, and is freed with the last of them (ring/writer.h).
 */

#include "client/base/peer.h"
#include "client/control/notification.h"
#include "ring/writer.h"

struct dlx_publisher;
struct dlx_wait; /* client/control/wait.h */

enum dlx_publisher_link_state {
    DLX_PUBLISHER_LINK_ATTACHED,
    DLX_PUBLISHER_LINK_ENDED,
};

struct dlx_publisher_link {
    struct dlx_writer_link core;
    enum dlx_publisher_link_state state;
    struct dlx_peer *peer;
    uint64_t id;
    uint64_t reader;  /* the same for all links of a subscription */
    const void *page; /* the link page, which `core` reads */
    uint64_t page_size;
    int bell;
    bool hung_up; /* the other end of the bell is closed: nothing is read from it any more */
    bool foreign; /* made by a daemon that has ended */
    bool early;   /* its subscription was there first: it receives everything, started or not */
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

/* The environment of the ring writer: client/publish/publisher_link.c. */
extern const struct dlx_writer_env dlx__publisher_link_env;

static inline struct dlx_publisher_link *dlx__publisher_link_of(const struct dlx_writer_link *link)
{
    return (struct dlx_publisher_link *)(uintptr_t)((const char *)link -
                                                    offsetof(struct dlx_publisher_link, core));
}

/* ---- ends: client/publish/publisher_link_end.c ----------------------------------------------- */

/* The end of the link was noticed: tells it, unless that was done before. */
void dlx__publisher_link_end(struct dlx_publisher *p, struct dlx_publisher_link *link);
/* For the ring writer, which then drops what is over: dlx__writer_look_for_dead(). */
void dlx__publisher_link_look_for_dead(void *userdata);
/* LinkCut: the daemon has disconnected the subscriber of a link. */
void dlx__publisher_link_cut_by_daemon(struct dlx_publisher *p, const struct dlx_notification *cut);
/* Cut the links whose pages say that they hold more than this publisher allows: they hold
 * nothing from the next dlx__writer_reclaim() on. Returns whether there were any. */
bool dlx__publisher_link_cut(struct dlx_publisher *p);
/* Has the daemon ended a link that is not known to have ended? What it saw of the end (a socket
 * that hung up) may come before what the publisher can see: so the publisher looks again. */
bool dlx__publisher_link_misses_end(const struct dlx_publisher *p);
/* Read the membership line, and look for the ends that it tells of. Links may go. */
void dlx__publisher_link_find_ends(struct dlx_publisher *p);

/* ---- joins, waiting, reports ----------------------------------------------------------------- */

/*
 * Wait until something may have changed: a bell, a join, a death; or until a part of the wait is
 * over and the program lets it go on. Bells are drained. Returns 0; DLX_E_TIMEOUT,
 * DLX_E_INTERRUPTED, DLX_E_NO_MEMORY, DLX_E_SYSTEM.
 */
int dlx__publisher_link_wait(struct dlx_publisher *p, struct dlx_wait *wait);

/*
 * After a new daemon: wait until every reliable subscriber has a link by it, so that what is
 * published is not lost if that daemon ends, too. Returns 0; DLX_E_FULL, DLX_E_TIMEOUT, and as
 * dlx__publisher_link_wait().
 */
int dlx__publisher_link_rejoin(struct dlx_publisher *p, struct dlx_wait *wait);
/* Before it leaves: wait so long for subscribers who have yet to come to the new daemon, where
 * the newest messages are. */
void dlx__publisher_link_drain(struct dlx_publisher *p, int64_t timeout_ns);
/* It has published its last message: tell every link how far its stream came, less what the
 * daemon keeps. Who sees all of its control blocks knows it from these; who has not come to the
 * new daemon does not. */
void dlx__publisher_link_tell_end(struct dlx_publisher *p);
/* The daemon that made the links has ended. */
void dlx__publisher_link_set_foreign(struct dlx_publisher *p);

/* Does its subscriber receive what is published from now on? Whether it is in the library or not:
 * the subscriber of an early link is waited for, or counts what it misses. */
bool dlx__publisher_link_receives(const struct dlx_publisher_link *link);
uint32_t dlx__publisher_link_n_receiving(const struct dlx_publisher *p);
/* Links whose subscribers have not closed them and live, as far as was seen: one that holds
 * messages is a link for longer. */
uint32_t dlx__publisher_link_n_attached(const struct dlx_publisher *p);
/* Links that a message reaches that is published now. */
uint32_t dlx__publisher_link_n_reached(const struct dlx_publisher *p);

/* Write into `fds`, which has room for 2 * n_links + 1, the descriptors that become readable
 * when there may be room, or a subscriber; -1 where there is none. Returns true if either may
 * also come without any of them: then look again after DLX_RECONNECT_NS. That a new daemon is
 * there is not told either. */
struct pollfd;
bool dlx__publisher_link_list_sources(const struct dlx_publisher *p, struct pollfd *fds);

/* Set the thread's message to who keeps the publisher from publishing, and return `code`. */
int dlx__publisher_link_blame(const struct dlx_publisher *p, int code);

#endif
