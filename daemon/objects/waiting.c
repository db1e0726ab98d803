/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/waiting.h"
#include "common/bell.h"
#include "common/error.h"
#include "daemon/objects/broker.h"
#include "daemon/objects/client.h"
#include "daemon/objects/link.h"
#include "daemon/objects/publisher.h"
#include "daemon/users/outbox.h"
#include "daemon/users/share.h"
#include "daemon/objects/subscription.h"
#include "daemon/base/watch.h"
#include "daemon/base/worker.h"
#include <fcntl.h>
#include <sys/socket.h>

/* No scan for fewer pending joins whose links have ended, and none this soon after the last. */
#define LOOK_LEAST 8U
#define LOOK_NS    UINT64_C(20000000)

enum { PAGE, BELL, PIDFD, N_FDS };

struct dlxd_waiter {
    struct dlxd_list node;
    struct dlxd_publisher *publisher;
    struct dlxd_link *link; /* NULL: the link has ended */
    struct dlxd_charge charge;
    struct dlxd_flight *flight; /* of the LinkAdded */
    Dlx__Wire__LinkAdded body;
    int fds[N_FDS];
};

void dlxd_waiting_init(struct dlxd_waiting *waiting)
{
    *waiting = (struct dlxd_waiting){.look_at = LOOK_LEAST};
    dlxd_list_init(&waiting->waiters);
    dlxd_list_init(&waiting->slow);
}

static void waiter_free(struct dlxd_waiter *waiter)
{
    dlxd_list_remove(&waiter->node);
    waiter->publisher->waiting.n--;
    if (waiter->link)
        waiter->link->waiter = NULL;
    else
        waiter->publisher->waiting.n_ended--;
    struct dlxd_workers *workers = waiter->publisher->broker->workers;
    dlxd_workers_close(workers, waiter->charge.user, waiter->fds[PAGE]);
    dlxd_workers_close_socket(workers, waiter->charge.user, waiter->fds[BELL]);
    dlx__close(waiter->fds[PIDFD]);
    dlxd_flight_free(waiter->flight);
    dlxd_charge_deinit(&waiter->charge);
    free(waiter);
}

void dlxd_waiting_deinit(struct dlxd_waiting *waiting)
{
    dlx_for_each (it, &waiting->waiters)
        waiter_free(dlxd_container_of(it, struct dlxd_waiter, node));
    dlxd_list_remove(&waiting->slow);
    waiting->watch = dlxd_watch_free(waiting->watch);
}

/* ---- sending ------------------------------------------------------------------------------- */

/* Takes the flight on success. */
static int send_added(const struct dlxd_publisher *publisher, struct dlxd_flight *flight,
                      const Dlx__Wire__LinkAdded *body, const int *fds)
{
    Dlx__Wire__Packet packet = DLX__WIRE__PACKET__INIT;
    packet.body_case = DLX__WIRE__PACKET__BODY_LINK_ADDED;
    packet.link_added = (Dlx__Wire__LinkAdded *)(uintptr_t)body;
    return dlxd_outbox_send_flight(publisher->link_sock, flight, &packet, fds);
}

static void ring(const struct dlxd_waiter *waiter, char byte)
{
    (void)!send(waiter->fds[BELL], &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* Is the publisher to blame? Otherwise the kernel was out of memory, or our user has too many
 * descriptors in flight. */
static bool is_full(int r)
{
    return r == DLX_E_FULL && errno == EAGAIN;
}

/* Sends pending joins in order, as far as there is room. */
static int flush(struct dlxd_publisher *publisher)
{
    struct dlxd_waiting *waiting = &publisher->waiting;
    size_t n = waiting->n;
    int r = 0;
    while (waiting->n > 0) {
        struct dlxd_waiter *waiter =
            dlxd_container_of(waiting->waiters.next, struct dlxd_waiter, node);
        r = send_added(publisher, waiter->flight, &waiter->body, waiter->fds);
        if (r < 0)
            break;
        waiter->flight = NULL;
        ring(waiter, DLX_BELL_TOLD);
        if (!waiter->link) /* the publisher saw the end before it knew of the link */
            dlxd_membership_left(&publisher->line);
        waiter_free(waiter);
    }
    bool full = is_full(r);
    dlxd_list_remove(&waiting->slow);
    if (waiting->watch)
        dlxd_watch_set(waiting->watch, full ? DLXD_WRITABLE : 0);
    if (r < 0 && !full && r != DLX_E_DISCONNECTED)
        dlxd_list_push_back(&publisher->broker->slow, &waiting->slow);
    /* The publisher makes calls: it may have published, and has rung only the links that it knows.
     * The others may sleep. */
    if (waiting->n < n)
        dlx_for_each (it, &waiting->waiters)
            ring(dlxd_container_of(it, struct dlxd_waiter, node), 0);
    return r;
}

static void on_events(void *data, int events)
{
    (void)events;
    (void)flush(data);
}

void dlxd_waiting_retry(struct dlxd_broker *broker)
{
    struct dlxd_list *last = broker->slow.prev;
    while (!dlxd_list_empty(&broker->slow)) {
        struct dlxd_list *first = broker->slow.next;
        struct dlxd_waiting *waiting = dlxd_container_of(first, struct dlxd_waiting, slow);
        (void)flush(dlxd_container_of(waiting, struct dlxd_publisher, waiting));
        if (first == last)
            break;
    }
}

/* ---- who has left -------------------------------------------------------------------------- */

/* The publisher does not know of the link yet, so it need never know. */
static void withdraw(struct dlxd_waiter *waiter)
{
    dlxd_membership_withdrawn(&waiter->publisher->line);
    waiter_free(waiter);
}

static bool has_left(const struct dlxd_waiter *waiter)
{
    return dlxd_drain_has_left(waiter->fds[PAGE], waiter->body.max_held, waiter->fds[PIDFD]);
}

/* No event reports the release of the last message that a subscriber holds. */
static void look(struct dlxd_waiting *waiting)
{
    dlx_for_each (it, &waiting->waiters) {
        struct dlxd_waiter *waiter = dlxd_container_of(it, struct dlxd_waiter, node);
        if (!waiter->link && has_left(waiter))
            withdraw(waiter);
    }
    waiting->look_at = DLX_MAX(2 * waiting->n_ended, LOOK_LEAST);
    waiting->looked_ns = dlx__now_ns();
}

void dlxd_waiting_link_ended(struct dlxd_link *link)
{
    struct dlxd_waiter *waiter = link->waiter;
    if (!waiter)
        return;
    struct dlxd_waiting *waiting = &waiter->publisher->waiting;
    link->waiter = NULL;
    waiter->link = NULL;
    waiting->n_ended++;
    if (has_left(waiter))
        withdraw(waiter);
    else if (waiting->n_ended >= waiting->look_at)
        look(waiting);
}

/* ---- waiting ------------------------------------------------------------------------------- */

/* No user may take all places of another user's publisher. */
static bool is_fair(const struct dlxd_publisher *publisher, const struct dlxd_user *user)
{
    uint32_t n = 1;
    if (user == publisher->user)
        return true;
    for (const struct dlxd_list *it = publisher->waiting.waiters.next;
         it != &publisher->waiting.waiters; it = it->next)
        n += dlxd_container_of(it, struct dlxd_waiter, node)->charge.user == user;
    return dlxd_share_is_fair(n, DLXD_WAITING_MAX - publisher->waiting.n - 1);
}

static bool has_room(const struct dlxd_publisher *publisher, const struct dlxd_user *user)
{
    return publisher->waiting.n < DLXD_WAITING_MAX && is_fair(publisher, user);
}

static int check_room(struct dlxd_publisher *publisher, const struct dlxd_user *user)
{
    struct dlxd_waiting *waiting = &publisher->waiting;
    if (!has_room(publisher, user) && waiting->n_ended > 0 &&
        dlx__now_ns() - waiting->looked_ns > LOOK_NS)
        look(waiting);
    if (has_room(publisher, user))
        return 0;
    int r =
        dlx__fail(DLX_E_PUBLISHER_NOT_RESPONDING,
                  "publisher of %s (pid %d) does not pick up new subscribers: it makes no call, "
                  "its link socket is full, and %zu more wait who are there or hold messages",
                  publisher->topic_name, (int)publisher->pid, waiting->n);
    return waiting->n == DLXD_WAITING_MAX
               ? r
               : dlx__fail_prefix(r, "uid %u may have at most %u times the places that are left",
                                  (unsigned)user->uid, DLXD_SHARE_OF_LEFT);
}

/* Takes the flight on success. */
static int enqueue(struct dlxd_link *link, struct dlxd_flight *flight,
                   const Dlx__Wire__LinkAdded *body, const int *fds)
{
    struct dlxd_publisher *publisher = link->publisher;
    struct dlxd_waiting *waiting = &publisher->waiting;
    struct dlxd_user *user = link->subscription->client->user;
    int r = check_room(publisher, user);
    if (r == 0 && !waiting->watch)
        r = dlxd_watch_new(&waiting->watch, publisher->broker->watches, publisher->link_sock->fd,
                           DLXD_WRITABLE, on_events, publisher);
    if (r < 0)
        return r;
    struct dlxd_waiter *waiter = calloc(1, sizeof *waiter);
    if (!waiter)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for a link that waits for a publisher");
    waiter->publisher = publisher;
    waiter->link = link;
    waiter->body = *body;
    dlxd_list_push_back(&waiting->waiters, &waiter->node);
    if (++waiting->n == 1)
        dlxd_watch_set(waiting->watch, DLXD_WRITABLE);
    for (size_t i = 0; i < N_FDS; i++) {
        waiter->fds[i] = r < 0 ? -1 : fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
        if (r == 0 && waiter->fds[i] < 0)
            r = dlx__fail_errno("link that waits for a publisher");
    }
    if (r == 0)
        r = dlxd_charge_init(&waiter->charge, user, DLXD_WAITING, 1);
    if (r < 0) {
        waiter_free(waiter);
        return r;
    }
    waiter->flight = flight;
    link->waiter = waiter;
    ring(waiter, DLX_BELL_WAITS);
    return 0;
}

int dlxd_waiting_send(struct dlxd_link *link, const Dlx__Wire__LinkAdded *body, const int *fds)
{
    struct dlxd_publisher *publisher = link->publisher;
    struct dlxd_flight *flight;
    int r = dlxd_flight_new(&flight, link->subscription->client->user, N_FDS);
    if (r < 0)
        return r == DLX_E_LIMIT ? DLX_E_FULL : r;
    r = flush(publisher);
    if (r == 0)
        r = send_added(publisher, flight, body, fds);
    bool waits = publisher->waiting.n > 0 ? r != DLX_E_DISCONNECTED : is_full(r);
    if (waits)
        r = enqueue(link, flight, body, fds);
    if (r < 0)
        dlxd_flight_free(flight);
    return r;
}
