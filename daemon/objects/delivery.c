/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/delivery.h"
#include "common/bell.h"
#include "common/error.h"
#include "common/memory.h"
#include "common/packet.h"
#include "common/proto.h"
#include "daemon/objects/connection.h"
#include "daemon/objects/group.h"
#include "daemon/objects/link.h"
#include "daemon/objects/pending_join.h"
#include "daemon/objects/subscription.h"
#include "daemon/base/log.h"
#include "daemon/users/principal.h"
#include "daemon/memory/proof.h"
#include "daemon/users/outbox.h"
#include "daemon/base/watch.h"
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>

/* The minor versions since which LinkFailed names the publisher, and LinkOpen has `same_user`, and
 * `depth` and what follows. */
#define FAILED_PUBLISHER_SINCE 8U
#define SAME_USER_SINCE        8U
#define QOS_SINCE              9U

/* The socket took no more packets. If it is full, the loop reports when there is room. If not, the
 * kernel refused the fds (ETOOMANYREFS: the user has too many in flight) or was out of memory, and
 * nothing reports the end of that, so the server tries again later. */
static void wait_for_room(struct dlxd_subscription *subscription)
{
    struct pollfd p = {.fd = subscription->sock->fd, .events = POLLOUT};
    /* Otherwise it waits already: see dlxd_delivery_join(). */
    if (subscription->state != DLXD_SUBSCRIPTION_OPEN)
        return;
    if (poll(&p, 1, 0) == 1) {
        subscription->state = DLXD_SUBSCRIPTION_STUCK;
        dlxd_list_push_back(&subscription->broker->stuck, &subscription->stuck);
        return;
    }
    subscription->state = DLXD_SUBSCRIPTION_FULL;
    dlxd_subscription_rewatch(subscription);
}

/* What dlpackd itself lacks comes back. */
static bool is_lack(int code)
{
    return code == DLX_E_FD_LIMIT || code == DLX_E_NO_MEMORY;
}

static bool needs_more_of_daemon(enum dlxd_link_step step)
{
    return step == DLXD_STEP_OFFER || step == DLXD_STEP_PROVE || step == DLXD_STEP_JOIN;
}

static void wait_for_what_lacks(struct dlxd_subscription *subscription)
{
    dlxd_lack_begin(subscription);
    wait_for_room(subscription);
}

static int send_on_subscription(struct dlxd_link *link, const Dlx__Wire__Packet *packet,
                                const int *fds, size_t n_fds)
{
    const struct dlxd_subscription *subscription = link->subscription;
    if (n_fds == 0)
        return dlx__proto_send(subscription->sock->fd, packet, NULL, 0);
    int r =
        dlxd_outbox_send(subscription->sock, subscription->client->user, packet, fds, n_fds, NULL);
    return r == DLX_E_LIMIT ? DLX_E_FULL : r; /* until the client has read more */
}

static const struct dlx_memory *memory_of(const struct dlxd_link *link)
{
    return link->subscription->broker->memory;
}

static int send_failed_body(const struct dlxd_subscription *subscription,
                            Dlx__Wire__LinkFailed *body)
{
    Dlx__Wire__Packet packet = DLX__WIRE__PACKET__INIT;
    packet.body_case = DLX__WIRE__PACKET__BODY_LINK_FAILED;
    packet.link_failed = body;
    return dlx__proto_send(subscription->sock->fd, &packet, NULL, 0);
}

int dlxd_delivery_tell_failed(const struct dlxd_subscription *subscription, uint64_t link, int code,
                              const char *text)
{
    Dlx__Wire__LinkFailed body = DLX__WIRE__LINK_FAILED__INIT;
    body.link = link;
    body.code = code;
    body.text = (char *)(uintptr_t)text;
    return send_failed_body(subscription, &body);
}

static int send_failed(struct dlxd_link *link)
{
    Dlx__Wire__LinkFailed body = DLX__WIRE__LINK_FAILED__INIT;
    body.link = dlxd_link_id(link);
    body.code = link->fail_code;
    body.text =
        link->fail_text ? link->fail_text : (char *)(uintptr_t)dlx__error_text(link->fail_code);
    char text[96];
    if (link->n_merged > 0) {
        (void)snprintf(text, sizeof text,
                       "%u publishers left, or failed, before their links were open",
                       link->n_merged + 1);
        body.text = text;
    }
    body.origin = link->fail_origin;
    body.last_seq = link->fail_seq;
    body.missed = link->fail_missed;
    if (link->subscription->client->principal->minor >= FAILED_PUBLISHER_SINCE) {
        body.publisher = link->fail_publisher;
        body.pid = link->fail_pid;
        if (link->fail_topic)
            body.topic = link->fail_topic;
    }
    return send_failed_body(link->subscription, &body);
}

static int send_dropped(struct dlxd_link *link)
{
    Dlx__Wire__ArenaDropped body = DLX__WIRE__ARENA_DROPPED__INIT;
    Dlx__Wire__Packet packet = DLX__WIRE__PACKET__INIT;
    const struct dlxd_subscription *subscription = link->subscription;
    struct dlxd_arena *arena = dlxd_link_next_dropped(link);
    struct dlxd_flight *flight;
    body.link = dlxd_link_id(link);
    body.arena = arena->id;
    packet.body_case = DLX__WIRE__PACKET__BODY_ARENA_DROPPED;
    packet.arena_dropped = &body;
    int r =
        dlxd_outbox_send(subscription->sock, subscription->client->user, &packet, NULL, 0, &flight);
    if (r < 0)
        return r;
    flight->landed = dlxd_link_drop_landed;
    flight->link = link;
    flight->arena = arena;
    dlxd_list_push_back(&link->drops, &flight->of_link);
    dlxd_list_push_back(&arena->told, &flight->of_arena);
    return 0;
}

static int send_gone(struct dlxd_link *link)
{
    Dlx__Wire__PublisherGone body = DLX__WIRE__PUBLISHER_GONE__INIT;
    Dlx__Wire__Packet packet = DLX__WIRE__PACKET__INIT;
    body.link = dlxd_link_id(link);
    packet.body_case = DLX__WIRE__PACKET__BODY_PUBLISHER_GONE;
    packet.publisher_gone = &body;
    return send_on_subscription(link, &packet, NULL, 0);
}

/* The page is made only now, so that links waiting for credit cost no fd. */
static int send_offer(struct dlxd_link *link)
{
    Dlx__Wire__LinkOffer body = DLX__WIRE__LINK_OFFER__INIT;
    Dlx__Wire__Packet packet = DLX__WIRE__PACKET__INIT;
    int fd;
    int r =
        dlx__region_new(memory_of(link), "dlx-link", link->page_size, &link->drain->page_fd, &fd);
    if (r < 0)
        return r;
    dlx_cleanup(dlx__closep) int writer = fd;
    body.link = dlxd_link_id(link);
    body.page_size = link->page_size;
    body.max_held = link->subscription->config.max_held;
    if (link->publisher) {
        body.publisher = dlxd_publisher_id(link->publisher);
        body.link_index = link->index;
        body.topic = link->publisher->topic_name;
        body.resumes = link->publisher->config.resumes;
        body.former = link->publisher->state == DLXD_PUBLISHER_SHOWN;
    }
    packet.body_case = DLX__WIRE__PACKET__BODY_LINK_OFFER;
    packet.link_offer = &body;
    r = send_on_subscription(link, &packet, &writer, 1);
    if (r < 0) /* the next attempt makes another one */
        link->drain->page_fd = dlx__close(link->drain->page_fd);
    return r;
}

/* Makes a bell: a stream socket on which one byte wakes the peer. If the kernel supports it, the
 * socket refuses fds, because a byte with an SO_LINGER socket attached would block its reader. */
static int make_bell(int pair[2])
{
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
        return dlx__fail_errno("bell");
    dlx__packet_refuse_fds(pair[0]);
    dlx__packet_refuse_fds(pair[1]);
    return 0;
}

static int delivery_send_added(struct dlxd_link *link, int bell)
{
    const struct dlxd_subscription *subscription = link->subscription;
    const struct dlxd_publisher *publisher = link->publisher;
    Dlx__Wire__LinkAdded body = DLX__WIRE__LINK_ADDED__INIT;
    const int fds[] = {link->drain->page_fd, bell, subscription->client->pidfd};
    body.link = dlxd_link_id(link);
    body.client = dlxd_client_id(subscription->client);
    body.pid = (uint32_t)subscription->client->pid;
    body.link_index = link->index;
    body.page_size = link->page_size;
    body.max_held = subscription->config.max_held;
    body.reliable = link->drain->reliable = dlxd_link_is_reliable(link);
    body.reader = link->reader;
    body.latest = subscription->config.mode == 1;
    body.early = link->made == DLXD_MADE_EARLY;
    if (link->group) {
        body.group = link->group->number;
        body.group_name = link->group->name;
    }
    int r = dlxd_pending_join_send(link, &body, fds);
    if (r == DLX_E_DISCONNECTED)
        return dlx__fail(r, "publisher of %s (pid %d) has closed its link socket",
                         publisher->topic_name, (int)publisher->pid);
    return r;
}

static void on_proved(void *owner, int code, const char *text, int take_fd)
{
    struct dlxd_link *link = owner;
    link->proof = NULL;
    link->drain->page_fd = take_fd;
    if (code == 0) {
        link->state = DLXD_LINK_READY;
        dlxd_link_schedule(link);
        return;
    }
    (void)dlx__fail(code, "link page: %s", text);
    if (is_lack(code)) {
        dlxd_link_set_prepared(link);
        wait_for_what_lacks(link->subscription);
    } else {
        dlxd_link_fail(link, code, dlx__error_message());
    }
}

static int prove(struct dlxd_link *link)
{
    int r = dlxd_proof_begin(&link->proof, link->workers, memory_of(link),
                             link->drain->links_charge.user, link->drain->page_fd, link->page_size,
                             on_proved, link);
    if (r == 0)
        link->drain->page_fd = -1;
    return r;
}

static int send_sealed(struct dlxd_link *link)
{
    Dlx__Wire__SpareSealed body = DLX__WIRE__SPARE_SEALED__INIT;
    Dlx__Wire__Packet packet = DLX__WIRE__PACKET__INIT;
    body.link = dlxd_link_id(link);
    packet.body_case = DLX__WIRE__PACKET__BODY_SPARE_SEALED;
    packet.spare_sealed = &body;
    return send_on_subscription(link, &packet, NULL, 0);
}

/* Retained messages have no publisher: nobody needs the page, and the bell hangs up. If the
 * publisher of SHOWN messages lives, it cannot be told of the link: it sees a lock on its control
 * block instead, and the bell says that the publisher will be told. */
static int tell_publisher(struct dlxd_link *link, int bell)
{
    const struct dlxd_publisher *publisher = link->publisher;
    if (publisher->client)
        return delivery_send_added(link, bell);
    if (publisher->state != DLXD_PUBLISHER_SHOWN)
        return 0;
    (void)!send(bell, &(uint8_t){DLX_BELL_WAITS}, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    int r = dlx__region_reopen_locked(publisher->control->fd, &link->locked_fd);
    /* The publisher's own lock conflicts: for this link, it is gone until it announces itself
     * again. */
    if (r == DLX_E_SYSTEM)
        dlxd_link_fail_gone(link);
    return r;
}

static int make_bell_and_tell(struct dlxd_link *link)
{
    int pair[2];
    int r = make_bell(pair);
    if (r < 0)
        return r;
    dlx_cleanup(dlx__closep) int publishers_end = pair[0];
    dlx_cleanup(dlx__closep) int subscribers_end = pair[1];
    r = tell_publisher(link, publishers_end);
    if (r < 0)
        return r;
    link->bell_fd = dlx__steal_fd(&subscribers_end);
    return 0;
}

static int join(struct dlxd_link *link)
{
    struct dlxd_user *user = link->subscription->client->user;
    bool is_locked = link->publisher->state == DLXD_PUBLISHER_SHOWN;
    int r = dlxd_group_admit(link);
    if (r == 0)
        r = dlxd_charge_init(&link->join_charge, user, DLXD_DESCRIPTORS, is_locked ? 2 : 1);
    if (r == 0)
        r = make_bell_and_tell(link);
    if (r < 0)
        dlxd_charge_deinit(&link->join_charge);
    return r;
}

static int send_open(struct dlxd_link *link)
{
    const struct dlxd_publisher *publisher = link->publisher;
    const struct dlxd_principal *subscriber = link->subscription->client->principal;
    Dlx__Wire__LinkOpen body = DLX__WIRE__LINK_OPEN__INIT;
    Dlx__Wire__Packet packet = DLX__WIRE__PACKET__INIT;
    const struct dlxd_group *group = link->group;
    const int fds[] = {link->locked_fd < 0 ? publisher->control->fd : link->locked_fd,
                       link->bell_fd, group ? link->claims_fd : -1, group ? group->page_fd : -1,
                       group ? group->bell_fd : -1};
    _Static_assert(DLX_ARRAY_SIZE(fds) <= DLXD_FLIGHT_FDS_MOST, "there is room in flight");
    body.link = dlxd_link_id(link);
    body.publisher = dlxd_publisher_id(publisher);
    body.control_size = publisher->control->size;
    body.n_entries = publisher->config.n_entries;
    body.after_seq = publisher->config.after_seq;
    body.history = publisher->config.history;
    body.on_full = publisher->config.on_full;
    body.from_start = link->from_start;
    body.n_arenas = (uint32_t)publisher->ready.n;
    body.pid = (uint32_t)publisher->pid;
    body.retain = publisher->config.retain;
    body.topic = (char *)(uintptr_t)publisher->topic_name;
    body.link_index = link->index;
    body.resumes = publisher->config.resumes;
    body.max_held = publisher->config.max_held;
    body.max_held_bytes = publisher->config.max_held_bytes;
    body.same_user = subscriber->minor >= SAME_USER_SINCE &&
                     dlxd_principal_is_same_user(subscriber, publisher->principal);
    if (subscriber->minor >= QOS_SINCE) {
        body.depth = publisher->config.depth;
        body.latched = publisher->config.latched;
        body.retain_for_ns = publisher->config.retain_for_ns;
    }
    if (dlxd_publisher_leaves(publisher))
        body.history = body.retain; /* older messages may be gone or overwritten */
    packet.body_case = DLX__WIRE__PACKET__BODY_LINK_OPEN;
    if (group) {
        body.owner = link->owner;
        body.claims_size = dlxd_group_claims_size(publisher);
        body.declared_group = group->is_declared ? group->number : 0;
    }
    packet.link_open = &body;
    return send_on_subscription(link, &packet, fds, group ? DLX_ARRAY_SIZE(fds) : 2);
}

static int send_arena(struct dlxd_link *link)
{
    const struct dlxd_arena *arena = dlxd_link_next_arena(link);
    Dlx__Wire__ArenaAdded body = DLX__WIRE__ARENA_ADDED__INIT;
    Dlx__Wire__Packet packet = DLX__WIRE__PACKET__INIT;
    body.link = dlxd_link_id(link);
    body.arena = arena->id;
    body.arena_size = arena->size;
    packet.body_case = DLX__WIRE__PACKET__BODY_ARENA_ADDED;
    packet.arena_added = &body;
    return send_on_subscription(link, &packet, &arena->fd, 1);
}

static int take_step(struct dlxd_link *link, enum dlxd_link_step step)
{
    switch (step) {
    case DLXD_STEP_FAILED:
        return send_failed(link);
    case DLXD_STEP_DROPPED:
        return send_dropped(link);
    case DLXD_STEP_GONE:
        return send_gone(link);
    case DLXD_STEP_SEAL:
        return send_sealed(link);
    case DLXD_STEP_PROVE:
        return prove(link);
    case DLXD_STEP_OFFER:
        return send_offer(link);
    case DLXD_STEP_JOIN:
        return join(link);
    case DLXD_STEP_OPEN:
        return send_open(link);
    case DLXD_STEP_ARENA:
        return send_arena(link);
    case DLXD_STEP_NONE:
        break;
    }
    return 0;
}

/* The publisher's link socket is closed. If the publisher is about to end, its end decides about
 * the link, because it may retain messages: a process closes its sockets in any order and is dead a
 * little later. */
static bool await_end(struct dlxd_link *link)
{
    struct dlxd_client *client = link->publisher->client;
    uint64_t now = dlx__now_ns();
    if (client && dlxd_client_has_left(client))
        dlxd_client_doom(client);
    if (link->join_until_ns == 0)
        link->join_until_ns = now + DLXD_DYING_NS;
    return now < link->join_until_ns;
}

static bool has_credit(const struct dlxd_link *link, enum dlxd_link_step step)
{
    return !dlxd_link_step_needs_credit(link, step) ||
           dlxd_subscription_credit(link->subscription) > 0;
}

static bool has_room_in_flight(struct dlxd_user *user)
{
    return dlxd_flights_have_room(user, DLXD_FLIGHT_FDS_MOST);
}

enum outcome {
    DONE,
    LINK_WAITS, /* for the end of its publisher; other links continue */
    ALL_WAIT,   /* nothing more can be sent now */
};

static enum outcome run_step(struct dlxd_subscription *subscription, struct dlxd_link *link,
                             enum dlxd_link_step step)
{
    /* Checked before anything is made for the step. */
    if (dlxd_link_step_has_fds(step) && !has_room_in_flight(subscription->client->user)) {
        wait_for_room(subscription);
        return ALL_WAIT;
    }
    /* Otherwise other users would pay for packets that a publisher does not read. */
    if (step == DLXD_STEP_JOIN && link->publisher->client &&
        !has_room_in_flight(link->publisher->user))
        return LINK_WAITS;
    int r = take_step(link, step);
    if (r == 0) {
        if (needs_more_of_daemon(step))
            dlxd_lack_end(subscription);
        subscription->begun = true;
        dlxd_link_step_done(link, step);
        /* The publisher may wait for this link by now, so LinkOpen is not queued behind offers. */
        return step == DLXD_STEP_JOIN && subscription->state == DLXD_SUBSCRIPTION_OPEN &&
                       has_credit(link, DLXD_STEP_OPEN)
                   ? run_step(subscription, link, DLXD_STEP_OPEN)
                   : DONE;
    }
    if (link->state == DLXD_LINK_FAILED && step != DLXD_STEP_FAILED)
        return DONE; /* LinkFailed is pending now */
    if (is_lack(r) || step == DLXD_STEP_PROVE) {
        wait_for_what_lacks(subscription);
        return ALL_WAIT;
    }
    if (step == DLXD_STEP_JOIN && r == DLX_E_DISCONNECTED && await_end(link))
        return LINK_WAITS;
    if ((step == DLXD_STEP_JOIN && r != DLX_E_FULL) ||
        (step == DLXD_STEP_OFFER && r == DLX_E_SYSTEM)) {
        dlxd_link_fail(link, r == DLX_E_DISCONNECTED ? DLX_E_PUBLISHER_NOT_RESPONDING : r,
                       dlx__error_message());
        return DONE;
    }
    if (r == DLX_E_FULL) {
        wait_for_room(subscription);
        return ALL_WAIT;
    }
    if (r != DLX_E_DISCONNECTED)
        dlxd_log_client(dlxd_principal_number(subscription->client->principal), DLXD_LOG_WARNING,
                        "subscription %" PRIu64 " of %s (pid %d) to %s: %s",
                        dlxd_subscription_id(subscription), subscription->client->name,
                        (int)subscription->client->pid, subscription->topic_name,
                        dlx__error_message());
    dlxd_subscription_doom(subscription);
    return ALL_WAIT;
}

void dlxd_delivery_prove(struct dlxd_link *link)
{
    dlxd_link_set_prepared(link);
    (void)run_step(link->subscription, link, DLXD_STEP_PROVE);
}

void dlxd_delivery_join(struct dlxd_link *link)
{
    if (dlxd_link_next(link) == DLXD_STEP_JOIN)
        (void)run_step(link->subscription, link, DLXD_STEP_JOIN);
}

/* The first packet must be about the first link, whatever other links have to report, because the
 * subscriber counts its offers from that number. Until then the first link is offered or has
 * failed, so it is pending. */
static struct dlxd_link *next_link(const struct dlxd_subscription *subscription)
{
    if (!subscription->begun)
        return dlxd_container_of(subscription->links.next, struct dlxd_link, by_subscription);
    return dlxd_container_of(subscription->pending.next, struct dlxd_link, pending);
}

bool dlxd_delivery_step(struct dlxd_subscription *subscription)
{
    /* While the daemon stops, publishers are freed without being gone: streams continue. */
    if (subscription->broker->stopping)
        return false;
    if (dlxd_list_empty(&subscription->pending))
        dlxd_lack_end(subscription); /* who lacked it has ended */
    if (subscription->state != DLXD_SUBSCRIPTION_OPEN || dlxd_list_empty(&subscription->pending))
        return false;
    struct dlxd_link *link = next_link(subscription);
    if (dlxd_link_id(link) == subscription->waits) { /* so do all other links */
        subscription->waits = 0;
        wait_for_room(subscription);
        return false;
    }
    if (link->publisher && link->publisher->state == DLXD_PUBLISHER_GONE &&
        link->state < DLXD_LINK_ADDED) { /* the publisher's task has not reported it yet */
        dlxd_link_fail_gone(link);
        dlxd_link_condense(link);
        return true;
    }
    enum dlxd_link_step step = dlxd_link_next(link);
    if (step == DLXD_STEP_NONE) {
        dlxd_list_remove(&link->pending);
        return true;
    }
    /* Links without need of credit come first, except ends of publishers. So if this link waits for
     * credit, all others do. */
    if (!has_credit(link, step)) {
        dlxd_lack_end(subscription);
        subscription->waits = 0;
        return false;
    }
    switch (run_step(subscription, link, step)) {
    case DONE:
        subscription->waits = 0;
        return true;
    case LINK_WAITS:
        if (subscription->waits == 0)
            subscription->waits = dlxd_link_id(link);
        dlxd_list_remove(&link->pending);
        dlxd_list_push_back(&subscription->pending, &link->pending);
        return true;
    case ALL_WAIT:
        subscription->waits = 0;
        break;
    }
    return false;
}
