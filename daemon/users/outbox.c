/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/users/outbox.h"
#include "common/error.h"
#include "common/packet.h"
#include "daemon/base/worker.h"
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

/* The most outboxes checked in one pass, and the part of the time that passes may take (1/16). */
#define LOOK_MOST 128U
#define LOOK_PART 16U
/* The most flights that land in one pass: those of one full socket and a few more. */
#define LAND_MOST 1024U
/* The duration of a pass over all users. */
#define LOOK_ALL_NS UINT64_C(1000000)
/* A lower bound of the bytes that the kernel counts for a packet of any size: 768 on x86-64. */
#define PACKET_LEAST 256U
/* More packets than fit into a queue. */
#define DISCARD_MOST 4096U

struct dlxd_outbox *dlxd_outbox_new(struct dlxd_workers *workers, int fd)
{
    struct dlxd_outbox *outbox = calloc(1, sizeof *outbox);
    if (!outbox) {
        (void)dlx__fail(DLX_E_NO_MEMORY, "out of memory for a socket's outbox");
        return NULL;
    }
    outbox->workers = workers;
    outbox->fd = fd;
    dlxd_list_init(&outbox->flights);
    return outbox;
}

static struct dlxd_flight *first_flight(const struct dlxd_outbox *outbox)
{
    return dlxd_container_of(outbox->flights.next, struct dlxd_flight, of_outbox);
}

/* The next flight takes over the place in the user's list if it belongs to the same user. */
static void leave_outbox(struct dlxd_flight *flight)
{
    struct dlxd_outbox *outbox = flight->outbox;
    struct dlxd_list *next = flight->of_outbox.next;
    outbox->n_flights--;
    outbox->n_with_fds -= flight->charge.amount > 0;
    dlxd_list_remove(&flight->of_outbox);
    if (next == &outbox->flights || !dlxd_list_linked(&flight->of_user))
        return;
    struct dlxd_flight *heir = dlxd_container_of(next, struct dlxd_flight, of_outbox);
    if (heir->charge.user == flight->charge.user && !dlxd_list_linked(&heir->of_user))
        dlxd_list_push_front(&flight->of_user, &heir->of_user);
}

struct dlxd_flight *dlxd_flight_free(struct dlxd_flight *flight)
{
    if (flight) {
        if (flight->outbox)
            leave_outbox(flight);
        dlxd_list_remove(&flight->of_user);
        dlxd_list_remove(&flight->of_link);
        dlxd_list_remove(&flight->of_arena);
        dlxd_charge_deinit(&flight->charge);
        free(flight);
    }
    return NULL;
}

static void free_empty(struct dlxd_outbox *outbox, const struct dlxd_user *whose)
{
    dlxd_workers_close_socket(outbox->workers, whose, outbox->fd);
    free(outbox);
}

static void land_first(struct dlxd_outbox *outbox)
{
    struct dlxd_flight *flight = first_flight(outbox);
    if (flight->landed)
        flight->landed(flight);
    dlxd_flight_free(flight);
}

static void land_all(struct dlxd_outbox *outbox)
{
    while (!dlxd_list_empty(&outbox->flights))
        land_first(outbox);
}

uint32_t dlxd_outbox_look(struct dlxd_outbox *outbox)
{
    uint32_t n = outbox->n_flights;
    int n_bytes;
    if (n == 0 || ioctl(outbox->fd, SIOCOUTQ, &n_bytes) < 0)
        return 0;
    while (outbox->n_flights > (uint32_t)n_bytes / PACKET_LEAST)
        land_first(outbox);
    return n - outbox->n_flights;
}

/* ---- the end ------------------------------------------------------------------------------- */

/* Runs on a worker: descriptors in the packets are closed, which may take as long as their sender
 * likes. */
static void discard(void *data)
{
    const struct dlxd_outbox *outbox = data;
    char byte;
    for (uint32_t i = 0; i < DISCARD_MOST; i++)
        if (recv(outbox->fd, &byte, 1, MSG_DONTWAIT) < 0)
            return;
}

static void on_discarded(void *data)
{
    struct dlxd_outbox *outbox = data;
    outbox->state = DLXD_OUTBOX_CLOSING;
    if (outbox->n_flights == 0)
        free_empty(outbox, NULL);
}

/* Before Linux 6.16, the client may have sent its own end of the socket over the socket. That end
 * then lives in our queue, together with everything sent to it, until the queue is emptied. */
static void discard_received(struct dlxd_outbox *outbox, const struct dlxd_user *whose)
{
    if (!dlx__packet_refuses_fds(outbox->fd) &&
        dlxd_workers_run(outbox->workers, whose, discard, on_discarded, outbox) == 0)
        outbox->state = DLXD_OUTBOX_DISCARDING;
}

/* A client pays for what it leaves unread in its socket, whoever caused the packets. */
static void charge_all_to(struct dlxd_outbox *outbox, struct dlxd_user *whose)
{
    dlx_for_each (it, &outbox->flights) {
        struct dlxd_flight *flight = dlxd_container_of(it, struct dlxd_flight, of_outbox);
        dlxd_list_remove(&flight->of_user);
        dlxd_charge_move(&flight->charge, whose);
    }
    dlxd_list_push_back(&whose->flights, &first_flight(outbox)->of_user);
}

struct dlxd_outbox *dlxd_outbox_close(struct dlxd_outbox *outbox, struct dlxd_user *whose)
{
    if (!outbox)
        return NULL;
    (void)dlxd_outbox_look(outbox);
    if (outbox->n_with_fds == 0) {
        land_all(outbox);
        free_empty(outbox, whose);
        return NULL;
    }
    charge_all_to(outbox, whose);
    /* The socket is closed when the last flight has landed. */
    dlxd_charge_add_descriptor(
        &dlxd_container_of(outbox->flights.prev, struct dlxd_flight, of_outbox)->charge);
    (void)shutdown(outbox->fd, SHUT_RDWR);
    outbox->state = DLXD_OUTBOX_CLOSING;
    discard_received(outbox, whose);
    return NULL;
}

/* Frees an outbox that was shut down and has nothing in flight. */
static void outbox_free_if_over(struct dlxd_outbox *outbox, const struct dlxd_user *whose)
{
    if (outbox->state == DLXD_OUTBOX_CLOSING && outbox->n_flights == 0)
        free_empty(outbox, whose);
}

/* ---- sending ------------------------------------------------------------------------------- */

int dlxd_flight_new(struct dlxd_flight **ret, struct dlxd_user *user, size_t n_fds)
{
    struct dlxd_flight *flight = calloc(1, sizeof *flight);
    if (!flight)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for a packet on its way");
    dlxd_list_init(&flight->of_outbox);
    dlxd_list_init(&flight->of_user);
    dlxd_list_init(&flight->of_link);
    dlxd_list_init(&flight->of_arena);
    int r = dlxd_flights_charge(&flight->charge, user, DLXD_IN_FLIGHT, n_fds);
    if (r < 0) {
        free(flight);
        return r;
    }
    *ret = flight;
    return 0;
}

void dlxd_outbox_sent(struct dlxd_outbox *outbox, struct dlxd_flight *flight)
{
    flight->outbox = outbox;
    outbox->n_flights++;
    outbox->n_with_fds += flight->charge.amount > 0;
    struct dlxd_user *user = flight->charge.user;
    const struct dlxd_list *last = outbox->flights.prev;
    if (last == &outbox->flights ||
        dlxd_container_of(last, struct dlxd_flight, of_outbox)->charge.user != user)
        dlxd_list_push_back(&user->flights, &flight->of_user);
    dlxd_list_push_back(&outbox->flights, &flight->of_outbox);
}

int dlxd_outbox_send_flight(struct dlxd_outbox *outbox, struct dlxd_flight *flight,
                            const Dlx__Wire__Packet *packet, const int *fds)
{
    dlxd_outbox_look(outbox);
    int r = dlx__proto_send(outbox->fd, packet, fds, flight->charge.amount);
    if (r == 0)
        dlxd_outbox_sent(outbox, flight);
    return r;
}

int dlxd_outbox_send(struct dlxd_outbox *outbox, struct dlxd_user *user,
                     const Dlx__Wire__Packet *packet, const int *fds, size_t n_fds,
                     struct dlxd_flight **ret_flight)
{
    struct dlxd_flight *flight;
    int r = dlxd_flight_new(&flight, user, n_fds);
    if (r < 0)
        return r;
    r = dlxd_outbox_send_flight(outbox, flight, packet, fds);
    if (r < 0)
        dlxd_flight_free(flight);
    else if (ret_flight)
        *ret_flight = flight;
    return r;
}

/* ---- looking ------------------------------------------------------------------------------- */

static struct dlxd_outbox *outbox_of(struct dlxd_list *of_user)
{
    return dlxd_container_of(of_user, struct dlxd_flight, of_user)->outbox;
}

static void outbox_look(struct dlxd_user *user)
{
    uint64_t start = dlx__now_ns();
    const struct dlxd_list *kept = NULL; /* the first outbox that still has flights */
    uint32_t n_landed = 0;
    if (start < user->next_look_ns)
        return;
    for (size_t i = 0; i < LOOK_MOST && n_landed < LAND_MOST; i++) {
        struct dlxd_list *first = user->flights.next;
        if (first == &user->flights || first == kept)
            break;
        struct dlxd_outbox *outbox = outbox_of(first);
        n_landed += dlxd_outbox_look(outbox);
        outbox_free_if_over(outbox, user);
        if (user->flights.next == first) {
            dlxd_list_remove(first);
            dlxd_list_push_back(&user->flights, first);
            kept = kept ? kept : first;
        }
    }
    user->next_look_ns = start + LOOK_PART * (dlx__now_ns() - start);
}

int dlxd_flights_charge(struct dlxd_charge *charge, struct dlxd_user *user,
                        enum dlxd_resource resource, uint64_t amount)
{
    int r = dlxd_charge_init(charge, user, resource, amount);
    if (r == DLX_E_LIMIT && !dlxd_list_empty(&user->flights)) {
        outbox_look(user);
        r = dlxd_charge_init(charge, user, resource, amount);
    }
    return r;
}

bool dlxd_flights_have_room(struct dlxd_user *user, size_t n_fds)
{
    struct dlxd_charge charge = {.user = NULL};
    int r = dlxd_flights_charge(&charge, user, DLXD_IN_FLIGHT, n_fds);
    dlxd_charge_deinit(&charge);
    return r == 0;
}

/* Starts with the users checked the longest ago. outbox_look() may land flights of other users, and
 * free those users. */
void dlxd_flights_look_all(struct dlxd_users *users)
{
    uint64_t until = dlx__now_ns() + LOOK_ALL_NS;
    size_t n = 0;
    dlx_for_each (it, &users->users)
        n++;
    for (; n > 0 && !dlxd_list_empty(&users->users) && dlx__now_ns() < until; n--) {
        struct dlxd_list *first = users->users.next;
        struct dlxd_user *user = dlxd_user_ref(dlxd_container_of(first, struct dlxd_user, node));
        dlxd_list_remove(first);
        dlxd_list_push_back(&users->users, first);
        outbox_look(user);
        dlxd_user_unref(user);
    }
}

static struct dlxd_user *find_flying(const struct dlxd_users *users)
{
    dlx_for_each (it, &users->users) {
        struct dlxd_user *user = dlxd_container_of(it, struct dlxd_user, node);
        if (!dlxd_list_empty(&user->flights))
            return user;
    }
    return NULL;
}

bool dlxd_flights_are_left(const struct dlxd_users *users)
{
    return find_flying(users) != NULL;
}

void dlxd_flights_forget(struct dlxd_users *users)
{
    struct dlxd_user *user;
    while ((user = find_flying(users))) {
        struct dlxd_outbox *outbox = outbox_of(user->flights.next);
        land_all(outbox);
        outbox_free_if_over(outbox, NULL);
    }
}
