/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_OUTBOX_H
#define DLXD_OUTBOX_H

/*
 * A socket on which a client is sent packets, and its flights: packets that were sent and are not
 * known to be received yet. Packets with descriptors are flights, and so is each ArenaDropped.
 *
 * The kernel lets the daemon's user have RLIMIT_NOFILE descriptors in flight, in all sockets
 * together. Clients that do not read could use them up for everybody. So the descriptors of each
 * packet are charged to the user who causes it, until its flight lands. A dropped arena is charged
 * until each ArenaDropped has landed: payer.h.
 *
 * The kernel says how much of a socket's queue is unread (SIOCOUTQ): so all flights have landed but
 * the last few that it can be. What clients acknowledge is not believed: whoever lies about it
 * would pay for nothing. The daemon looks before it sends, when the client acknowledges something,
 * when a user meets a limit, and once in a while.
 *
 * A queue outlives the daemon's end of the socket: what is in it stays in flight until the client
 * reads it, or closes its own end. So an outbox that is closed with descriptors in its queue is
 * shut down, which the client sees as a hang-up, and goes on until the queue is empty.
 *
 *   open --dlxd_outbox_close()--> (freed), or shut down --(its queue is empty)--> (freed)
 */

#include "common/proto.h"
#include "daemon/users/user.h"

struct dlxd_arena;
struct dlxd_flight;
struct dlxd_link;
struct dlxd_workers;

typedef void dlxd_landed_fn(struct dlxd_flight *flight);

struct dlxd_outbox {
    struct dlxd_workers *workers; /* close the socket */
    int fd;
    bool is_shut_down;
    bool is_discarding;       /* a worker empties our own queue */
    struct dlxd_list flights; /* in the order of their packets */
    uint32_t n_flights;
    uint32_t n_with_fds; /* of these */
};

/* One packet. Its descriptors are charged before they are sent, and until they have landed. */
struct dlxd_flight {
    struct dlxd_list of_user; /* in no list if the flight before it in its outbox is this user's */
    struct dlxd_list of_outbox;
    struct dlxd_outbox *outbox; /* NULL: not sent yet */
    struct dlxd_charge charge;
    /* Of ArenaDropped, until the link ends. */
    dlxd_landed_fn *landed; /* NULL: nobody wants to know */
    struct dlxd_link *link;
    struct dlxd_arena *arena;
    struct dlxd_list of_link;
    struct dlxd_list of_arena;
};

/* Descriptors of one packet, at most: of LinkAdded, and of the answer to PublisherNew. */
#define DLXD_FLIGHT_FDS_MOST 3U

/* NULL: out of memory, and the thread's message says so. Takes the fd on success. */
struct dlxd_outbox *dlxd_outbox_new(struct dlxd_workers *workers, int take_fd);
/* Every link with a flight here has ended. Closes the socket, or shuts it down and closes it once
 * it was read. `whose` pays from then on, and it is its queue of jobs in which the socket is
 * closed. Returns NULL; NULL is fine. */
struct dlxd_outbox *dlxd_outbox_close(struct dlxd_outbox *outbox, struct dlxd_user *whose);

/* Charge `n_fds`, which may be 0; the flight is in no outbox yet. Returns 0, DLX_E_LIMIT,
 * DLX_E_NO_MEMORY. */
int dlxd_flight_new(struct dlxd_flight **ret, struct dlxd_user *user, size_t n_fds);
/* It was not sent, or has landed. Returns NULL; NULL is fine. */
struct dlxd_flight *dlxd_flight_free(struct dlxd_flight *flight);

/* Send a packet with the descriptors that `flight` was charged for; they stay the caller's. Returns
 * what dlx__proto_send() does. On success the flight belongs to the outbox. */
int dlxd_outbox_send_flight(struct dlxd_outbox *outbox, struct dlxd_flight *flight,
                            const Dlx__Wire__Packet *packet, const int *fds_borrow);
/* The same with a flight of this user. Returns DLX_E_LIMIT as well. `ret_flight` may be NULL. */
int dlxd_outbox_send(struct dlxd_outbox *outbox, struct dlxd_user *user,
                     const Dlx__Wire__Packet *packet, const int *fds_borrow, size_t n_fds,
                     struct dlxd_flight **ret_flight);
/* Land what was read. Returns how many flights did. */
uint32_t dlxd_outbox_look(struct dlxd_outbox *outbox);

/* dlxd_charge_init(); if the user meets a limit, it is tried again after a look at its flights. */
int dlxd_flights_charge(struct dlxd_charge *charge, struct dlxd_user *user,
                        enum dlxd_resource resource, uint64_t amount);
/* May the user have so many more in flight? */
bool dlxd_flights_have_room(struct dlxd_user *user, size_t n_fds);
/* Have flights landed? Of many outboxes, a part is looked at, and not so often that the daemon does
 * little else. */
void dlxd_flights_look_all(struct dlxd_users *users);
bool dlxd_flights_are_left(const struct dlxd_users *users);
/* The daemon ends: nothing is in flight any more for it. */
void dlxd_flights_forget(struct dlxd_users *users);

#endif
