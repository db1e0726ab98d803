/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/pending_join.h"
#include "common/bell.h"
#include "common/error.h"
#include "daemon/objects/connection.h"
#include "daemon/objects/group.h"
#include "daemon/users/outbox.h"
#include "daemon/users/share.h"
#include "daemon/base/watch.h"
#include "daemon/base/worker.h"
#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>

/* No scan for fewer pending joins whose links have ended, and none this soon after the last. */
#define LOOK_LEAST 8U
#define LOOK_NS    UINT64_C(20000000)

enum { PAGE, BELL, PIDFD, N_FDS };

struct dlxd_pending_join {
    struct dlxd_list node;
    struct dlxd_publisher *publisher;
    struct dlxd_link *link; /* NULL: the link has ended */
    struct dlxd_charge charge;
    struct dlxd_flight *flight; /* of the LinkAdded */
    Dlx__Wire__LinkAdded body;
    char group_name[DLX_SHM_GROUP_NAME_MAX + 1]; /* of `body` */
    int fds[N_FDS];
};

void dlxd_pending_joins_init(struct dlxd_pending_joins *pending_joins)
{
    *pending_joins = (struct dlxd_pending_joins){.look_at = LOOK_LEAST};
    dlxd_list_init(&pending_joins->list);
    dlxd_list_init(&pending_joins->cuts);
    dlxd_list_init(&pending_joins->slow);
}

static void pending_join_free(struct dlxd_pending_join *pending_join)
{
    dlxd_list_remove(&pending_join->node);
    pending_join->publisher->pending_joins.n--;
    if (pending_join->link)
        pending_join->link->pending_join = NULL;
    else
        pending_join->publisher->pending_joins.n_ended--;
    struct dlxd_workers *workers = pending_join->publisher->broker->workers;
    dlxd_workers_close(workers, pending_join->charge.user, pending_join->fds[PAGE]);
    /* Not by dlxd_workers_close_socket(): to close the bells of all pending joins of a publisher
     * wakes their subscribers, and takes 7 of 9 ms of a turn. */
    dlxd_workers_close(workers, pending_join->charge.user, pending_join->fds[BELL]);
    dlx__close(pending_join->fds[PIDFD]);
    dlxd_flight_free(pending_join->flight);
    dlxd_charge_deinit(&pending_join->charge);
    free(pending_join);
}

void dlxd_pending_joins_deinit(struct dlxd_pending_joins *pending_joins)
{
    dlx_for_each (it, &pending_joins->list)
        pending_join_free(dlxd_container_of(it, struct dlxd_pending_join, node));
    dlxd_list_remove(&pending_joins->slow);
    pending_joins->watch = dlxd_watch_free(pending_joins->watch);
}

/* ---- sending ------------------------------------------------------------------------------- */

/* Takes the flight on success. */
static int pending_join_send_added(const struct dlxd_publisher *publisher,
                                   struct dlxd_flight *flight, const Dlx__Wire__LinkAdded *body,
                                   const int *fds)
{
    Dlx__Wire__Packet packet = DLX__WIRE__PACKET__INIT;
    packet.body_case = DLX__WIRE__PACKET__BODY_LINK_ADDED;
    packet.link_added = (Dlx__Wire__LinkAdded *)(uintptr_t)body;
    return dlxd_outbox_send_flight(publisher->link_sock, flight, &packet, fds);
}

static void ring(const struct dlxd_pending_join *pending_join, char byte)
{
    (void)!send(pending_join->fds[BELL], &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* Is the publisher to blame? Otherwise the kernel was out of memory, or our user has too many
 * descriptors in flight. */
static bool is_full(int r)
{
    return r == DLX_E_FULL && errno == EAGAIN;
}

static int send_cut(const struct dlxd_publisher *publisher, const struct dlxd_drain *drain)
{
    Dlx__Wire__LinkCut body = DLX__WIRE__LINK_CUT__INIT;
    Dlx__Wire__Packet packet = DLX__WIRE__PACKET__INIT;
    body.link = drain->link;
    body.code = drain->cut_code;
    packet.body_case = DLX__WIRE__PACKET__BODY_LINK_CUT;
    packet.link_cut = &body;
    return dlx__proto_send(publisher->link_sock->fd, &packet, NULL, 0);
}

/* Sends pending joins in order, and then cuts, as far as there is room. */
static int pending_join_flush(struct dlxd_publisher *publisher)
{
    struct dlxd_pending_joins *pending_joins = &publisher->pending_joins;
    size_t n = pending_joins->n;
    int r = 0;
    while (pending_joins->n > 0) {
        struct dlxd_pending_join *pending_join =
            dlxd_container_of(pending_joins->list.next, struct dlxd_pending_join, node);
        r = pending_join_send_added(publisher, pending_join->flight, &pending_join->body,
                                    pending_join->fds);
        if (r < 0)
            break;
        pending_join->flight = NULL;
        ring(pending_join, DLX_BELL_TOLD);
        if (!pending_join->link) /* it has ended: now the publisher can know which one */
            dlxd_group_left(publisher, pending_join->body.group);
        pending_join_free(pending_join);
    }
    while (r == 0 && !dlxd_list_empty(&pending_joins->cuts)) {
        struct dlxd_drain *drain =
            dlxd_container_of(pending_joins->cuts.next, struct dlxd_drain, cut);
        r = send_cut(publisher, drain);
        if (r == 0)
            dlxd_pending_joins_forget_cut(drain);
    }
    bool watched = is_full(r) && pending_joins->watch;
    dlxd_list_remove(&pending_joins->slow);
    if (pending_joins->watch)
        dlxd_watch_set(pending_joins->watch, watched ? DLXD_WRITABLE : 0);
    if (r < 0 && !watched && r != DLX_E_DISCONNECTED)
        dlxd_list_push_back(&publisher->broker->slow, &pending_joins->slow);
    /* The publisher makes calls: it may have published, and has rung only the links that it knows.
     * The others may sleep. */
    if (pending_joins->n < n)
        dlx_for_each (it, &pending_joins->list)
            ring(dlxd_container_of(it, struct dlxd_pending_join, node), 0);
    return r;
}

static void pending_join_on_events(void *data, int events)
{
    (void)events;
    (void)pending_join_flush(data);
}

void dlxd_pending_joins_retry(struct dlxd_broker *broker)
{
    struct dlxd_list *last = broker->slow.prev;
    while (!dlxd_list_empty(&broker->slow)) {
        struct dlxd_list *first = broker->slow.next;
        struct dlxd_pending_joins *pending_joins =
            dlxd_container_of(first, struct dlxd_pending_joins, slow);
        (void)pending_join_flush(
            dlxd_container_of(pending_joins, struct dlxd_publisher, pending_joins));
        if (first == last)
            break;
    }
}

bool dlxd_pending_joins_cut(struct dlxd_drain *drain, int code, bool counts)
{
    struct dlxd_publisher *publisher = drain->publisher;
    if (publisher->client->principal->minor < 8)
        return false;
    drain->cut_code = code;
    drain->cut_counts = counts;
    dlxd_list_push_back(&publisher->pending_joins.cuts, &drain->cut);
    (void)pending_join_flush(publisher);
    return true;
}

void dlxd_pending_joins_forget_cut(struct dlxd_drain *drain)
{
    if (!dlxd_list_linked(&drain->cut))
        return;
    dlxd_list_remove(&drain->cut);
    if (drain->cut_counts)
        dlxd_group_left(drain->publisher, drain->group);
}

/* ---- who has left -------------------------------------------------------------------------- */

/* The publisher does not know of the link yet, so it need never know. */
static void withdraw(struct dlxd_pending_join *pending_join)
{
    dlxd_membership_withdrawn(&pending_join->publisher->line);
    pending_join_free(pending_join);
}

static bool has_left(const struct dlxd_pending_join *pending_join)
{
    return dlxd_reader_has_left(pending_join->fds[PAGE], pending_join->body.max_held,
                                pending_join->fds[PIDFD]);
}

/* No event reports the release of the last message that a subscriber holds. */
static void pending_join_look(struct dlxd_pending_joins *pending_joins)
{
    dlx_for_each (it, &pending_joins->list) {
        struct dlxd_pending_join *pending_join =
            dlxd_container_of(it, struct dlxd_pending_join, node);
        if (!pending_join->link && has_left(pending_join))
            withdraw(pending_join);
    }
    pending_joins->look_at = DLX_MAX(2 * pending_joins->n_ended, LOOK_LEAST);
    pending_joins->looked_ns = dlx__now_ns();
}

void dlxd_pending_join_link_ended(struct dlxd_link *link)
{
    struct dlxd_pending_join *pending_join = link->pending_join;
    if (!pending_join)
        return;
    struct dlxd_pending_joins *pending_joins = &pending_join->publisher->pending_joins;
    link->pending_join = NULL;
    pending_join->link = NULL;
    pending_joins->n_ended++;
    if (has_left(pending_join))
        withdraw(pending_join);
    else if (pending_joins->n_ended >= pending_joins->look_at)
        pending_join_look(pending_joins);
}

/* ---- waiting ------------------------------------------------------------------------------- */

/* No user may take all places of another user's publisher. */
static bool pending_join_is_fair(const struct dlxd_publisher *publisher,
                                 const struct dlxd_user *user)
{
    uint32_t n = 1;
    if (user == publisher->user)
        return true;
    for (const struct dlxd_list *it = publisher->pending_joins.list.next;
         it != &publisher->pending_joins.list; it = it->next)
        n += dlxd_container_of(it, struct dlxd_pending_join, node)->charge.user == user;
    return dlxd_share_is_fair(n, DLXD_PENDING_JOINS_MAX - publisher->pending_joins.n - 1);
}

static bool has_room(const struct dlxd_publisher *publisher, const struct dlxd_user *user)
{
    return publisher->pending_joins.n < DLXD_PENDING_JOINS_MAX &&
           pending_join_is_fair(publisher, user);
}

static int check_room(struct dlxd_publisher *publisher, const struct dlxd_user *user)
{
    struct dlxd_pending_joins *pending_joins = &publisher->pending_joins;
    if (!has_room(publisher, user) && pending_joins->n_ended > 0 &&
        dlx__now_ns() - pending_joins->looked_ns > LOOK_NS)
        pending_join_look(pending_joins);
    if (has_room(publisher, user))
        return 0;
    int r =
        dlx__fail(DLX_E_PUBLISHER_NOT_RESPONDING,
                  "publisher of %s (pid %d) does not pick up new subscribers: it makes no call, "
                  "its link socket is full, and %zu more wait who are there or hold messages",
                  publisher->topic_name, (int)publisher->pid, pending_joins->n);
    return pending_joins->n == DLXD_PENDING_JOINS_MAX
               ? r
               : dlx__fail_prefix(r, "uid %u may have at most %u times the places that are left",
                                  (unsigned)user->uid, DLXD_SHARE_OF_LEFT);
}

/* Takes the flight on success. */
static int pending_join_enqueue(struct dlxd_link *link, struct dlxd_flight *flight,
                                const Dlx__Wire__LinkAdded *body, const int *fds)
{
    struct dlxd_publisher *publisher = link->publisher;
    struct dlxd_pending_joins *pending_joins = &publisher->pending_joins;
    struct dlxd_user *user = link->subscription->client->user;
    int r = check_room(publisher, user);
    if (r == 0 && !pending_joins->watch)
        r = dlxd_watch_new(&pending_joins->watch, publisher->broker->watches,
                           publisher->link_sock->fd, DLXD_WRITABLE, pending_join_on_events,
                           publisher);
    if (r < 0)
        return r;
    struct dlxd_pending_join *pending_join = calloc(1, sizeof *pending_join);
    if (!pending_join)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for a link that waits for a publisher");
    pending_join->publisher = publisher;
    pending_join->link = link;
    pending_join->body = *body;
    (void)snprintf(pending_join->group_name, sizeof pending_join->group_name, "%s",
                   body->group_name);
    pending_join->body.group_name = pending_join->group_name;
    dlxd_list_push_back(&pending_joins->list, &pending_join->node);
    if (++pending_joins->n == 1)
        dlxd_watch_set(pending_joins->watch, DLXD_WRITABLE);
    for (size_t i = 0; i < N_FDS; i++) {
        pending_join->fds[i] = r < 0 ? -1 : fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
        if (r == 0 && pending_join->fds[i] < 0)
            r = dlx__fail_errno("link that waits for a publisher");
    }
    if (r == 0)
        r = dlxd_charge_init(&pending_join->charge, user, DLXD_PENDING_JOINS, 1);
    if (r < 0) {
        pending_join_free(pending_join);
        return r;
    }
    pending_join->flight = flight;
    link->pending_join = pending_join;
    ring(pending_join, DLX_BELL_WAITS);
    return 0;
}

int dlxd_pending_join_send(struct dlxd_link *link, const Dlx__Wire__LinkAdded *body, const int *fds)
{
    struct dlxd_publisher *publisher = link->publisher;
    struct dlxd_flight *flight;
    int r = dlxd_flight_new(&flight, link->subscription->client->user, N_FDS);
    if (r < 0)
        return r == DLX_E_LIMIT ? DLX_E_FULL : r;
    r = pending_join_flush(publisher);
    if (r == 0)
        r = pending_join_send_added(publisher, flight, body, fds);
    bool waits = publisher->pending_joins.n > 0 ? r != DLX_E_DISCONNECTED : is_full(r);
    if (waits)
        r = pending_join_enqueue(link, flight, body, fds);
    if (r < 0)
        dlxd_flight_free(flight);
    return r;
}
