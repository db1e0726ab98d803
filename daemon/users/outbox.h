/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_OUTBOX_H
#define DLXD_OUTBOX_H

/*
 * An outbox: a socket on which the daemon sends packets to a client, and its flights, which are
 * packets that were sent and may not have been received yet. Packets with descriptors are flights,
 * and so is each ArenaDropped.
 *
 * The kernel lets the daemon's user have RLIMIT_NOFILE descriptors in flight, in all sockets
 * together. Clients that do not read could use them up for everybody. So the descriptors of each
 * packet are charged to the user who causes it until its flight lands. A dropped arena is charged
 * until each of its ArenaDropped packets has landed (objects/publisher.c).
 *
 * The kernel reports how much of a socket's queue is unread (SIOCOUTQ), so all flights but the last
 * few that this amount may contain have landed. Acknowledgements of clients are not trusted: a
 * false one would make the descriptors free of charge. The daemon checks before it sends, when a
 * client acknowledges something, when a user reaches a limit, and periodically.
 *
 * A queue outlives the daemon's end of the socket: its packets stay in flight until the client
 * reads them or closes its own end. So an outbox that is closed with descriptors in its queue is
 * shut down, which the client sees as a hang-up, and is freed once the queue is empty.
 *
 *   OPEN --dlxd_outbox_close()--+-- (no descriptors in flight) --> (freed)
 *                               |
 *                               +--> DISCARDING --(a worker is done)--> CLOSING
 *                               |                                          ^
 *                               +--(nothing to discard)--------------------+
 *
 *   CLOSING --(its queue is empty)--> (freed)
 */

#include "common/proto.h"
#include "daemon/users/user.h"

struct dlxd_arena;
struct dlxd_flight;
struct dlxd_link;
struct dlxd_workers;

typedef void dlxd_landed_fn(struct dlxd_flight *flight);

enum dlxd_outbox_state {
    DLXD_OUTBOX_OPEN,
    DLXD_OUTBOX_DISCARDING, /* shut down; a worker empties the receive queue */
    DLXD_OUTBOX_CLOSING,    /* shut down; it waits until its queue is empty */
};

struct dlxd_outbox {
    struct dlxd_workers *workers; /* close the socket */
    int fd;
    enum dlxd_outbox_state state;
    struct dlxd_list flights; /* in the order of their packets */
    uint32_t n_flights;
    uint32_t n_with_fds; /* flights with descriptors */
};

/* One packet. Its descriptors are charged from before they are sent until they have landed. */
struct dlxd_flight {
    /* in no list if the previous flight in the outbox belongs to the same user */
    struct dlxd_list of_user;
    struct dlxd_list of_outbox;
    struct dlxd_outbox *outbox; /* NULL: not sent yet */
    struct dlxd_charge charge;
    /* Of ArenaDropped, until the link ends: */
    dlxd_landed_fn *landed; /* NULL: not reported */
    struct dlxd_link *link;
    struct dlxd_arena *arena;
    struct dlxd_list of_link;
    struct dlxd_list of_arena;
};

/* The most descriptors in one packet: LinkOpen of a worker of a group has this many. */
#define DLXD_FLIGHT_FDS_MOST 5U

/* Returns NULL if out of memory, with the thread's message set. Takes the fd on success. */
struct dlxd_outbox *dlxd_outbox_new(struct dlxd_workers *workers, int take_fd);
/* Closes the socket, or shuts it down and closes it once the client has read everything. Every link
 * with a flight here must have ended. `whose` pays from now on, and the socket is closed in its
 * queue of jobs. Returns NULL; accepts NULL. */
struct dlxd_outbox *dlxd_outbox_close(struct dlxd_outbox *outbox, struct dlxd_user *whose);

/* Charges `n_fds`, which may be 0. The flight is in no outbox yet. Returns 0, DLX_E_LIMIT,
 * DLX_E_NO_MEMORY. */
int dlxd_flight_new(struct dlxd_flight **ret, struct dlxd_user *user, size_t n_fds);
/* Frees a flight that was not sent or has landed. Returns NULL; accepts NULL. */
struct dlxd_flight *dlxd_flight_free(struct dlxd_flight *flight);

/* The flight was sent on the outbox's socket, just after dlxd_outbox_look(): the outbox owns it. */
void dlxd_outbox_sent(struct dlxd_outbox *outbox, struct dlxd_flight *flight);
/* Sends a packet with the descriptors that `flight` was charged for; the caller keeps them. Returns
 * what dlx__proto_send() does. On success, the outbox owns the flight. */
int dlxd_outbox_send_flight(struct dlxd_outbox *outbox, struct dlxd_flight *flight,
                            const Dlx__Wire__Packet *packet, const int *borrow_fds);
/* The same with a new flight of this user. Also returns DLX_E_LIMIT. `ret_flight` may be NULL. */
int dlxd_outbox_send(struct dlxd_outbox *outbox, struct dlxd_user *user,
                     const Dlx__Wire__Packet *packet, const int *borrow_fds, size_t n_fds,
                     struct dlxd_flight **ret_flight);
/* Lands the flights that were read, and returns their number. */
uint32_t dlxd_outbox_look(struct dlxd_outbox *outbox);

/* Like dlxd_charge_init(). If the user is at a limit, checks its flights and tries again. */
int dlxd_flights_charge(struct dlxd_charge *charge, struct dlxd_user *user,
                        enum dlxd_resource resource, uint64_t amount);
/* May the user have `n_fds` more descriptors in flight? */
bool dlxd_flights_have_room(struct dlxd_user *user, size_t n_fds);
/* Lands flights of all users. Checks a part of many outboxes, and takes 1/16 of the time at
 * most. */
void dlxd_flights_look_all(struct dlxd_users *users);
bool dlxd_flights_are_left(const struct dlxd_users *users);
/* The daemon ends: drops all flights. */
void dlxd_flights_forget(struct dlxd_users *users);

#endif
