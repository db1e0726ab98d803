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
#include "client/publish/publisher.h"

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
    struct dlx_mapped_region *mapped; /* the page, if `foreign`; NULL: not noted */
    int bell;
    bool hung_up; /* the other end of the bell is closed: nothing is read from it any more */
    bool foreign; /* made by a daemon that has ended */
    bool early;   /* its subscription was there first: it receives everything, started or not */
    char group[DLX_SHM_GROUP_NAME_MAX + 1]; /* of a worker; "": of none */
};

/* The environment of the ring writer: client/publish/publisher_link.c. */
extern const struct dlx_writer_env dlx__publisher_link_env;

static inline struct dlx_publisher_link *dlx__publisher_link_of(const struct dlx_writer_link *link)
{
    return (struct dlx_publisher_link *)(uintptr_t)((const char *)link -
                                                    offsetof(struct dlx_publisher_link, core));
}

/* ---- ends ------------------------------------------------------------------------------------ */

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

/* ---- joins, restarts, counts ----------------------------------------------------------------- */

/* Does every reliable subscription (with `all`: every one) that has a link by a former daemon
 * have one by this daemon, too? */
bool dlx__publisher_link_have_rejoined(const struct dlx_publisher *p, bool all);
/* The publisher has published its last message: tell every link how far the stream came, less what
 * the daemon keeps. A subscriber that sees all control blocks of the publisher knows that from
 * them; one that has yet to come to the new daemon does not. */
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

#endif
