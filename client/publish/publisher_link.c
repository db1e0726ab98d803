/* SPDX-License-Identifier: Apache-2.0 */

/* The publisher's links: picked up from the link socket, rung, seen to end, cut, and let go. */

#include "client/publish/publisher_link.h"
#include "client/control/connection.h"
#include "client/gpu/gpu.h"
#include "common/amount.h"
#include "common/bell.h"
#include "common/memory.h"
#include "common/probes.h"
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

/* So long a publisher waits for the next link that the daemon has not sent yet. */
#define MORE_MS 20

static void publisher_link_free(struct dlx_publisher *p, struct dlx_publisher_link *link)
{
    if (!link)
        return;
    if (link->bell >= 0)
        shutdown(link->bell, SHUT_RDWR); /* a forked child may have inherited it */
    dlx__close(link->bell);
    dlx__region_unmap(link->page, link->page_size);
    dlx__mapped_remove(link->mapped);
    dlx__peers_put(&p->client->peers, link->peer);
    free(link);
}

/* On failure, `notification` is unchanged. */
static int publisher_link_new(struct dlx_publisher *p, struct dlx_notification *notification,
                              struct dlx_publisher_link **ret)
{
    const void *page;
    if (notification->max_held == 0 || notification->max_held > DLX_SHM_HELD_MAX ||
        notification->size != dlx_shm_link_size(notification->max_held))
        return dlx__fail(DLX_E_PROTOCOL, "link page of %" PRIu64 " bytes for %u hold words",
                         notification->size, notification->max_held);
    struct dlx_publisher_link *link = calloc(1, sizeof *link);
    if (!link)
        return dlx__fail(DLX_E_NO_MEMORY, "state of a link");
    link->bell = -1;
    int r = dlx__peers_get(&p->client->peers, notification->client, notification->pid,
                           notification->fds[2], &link->peer);
    if (r == 0)
        r = dlx__region_attach_borrowed(p->daemon.memory, notification->fds[0], notification->size,
                                        &page);
    if (r < 0) {
        publisher_link_free(p, link);
        return r;
    }
    link->id = notification->link;
    link->reader = notification->reader;
    link->early = notification->early;
    (void)snprintf(link->group, sizeof link->group, "%.63s",
                   notification->group ? notification->text : "");
    link->page = page;
    link->page_size = notification->size;
    link->core = (struct dlx_writer_link){.page = page,
                                          .ticket = dlx_shm_ticket(page, notification->link_index),
                                          .base = notification->early ? p->daemon.base : 0,
                                          .max_held = notification->max_held,
                                          .reliable = notification->reliable,
                                          .group_number = notification->group,
                                          .is_passed_over = notification->latest};
    r = dlx__writer_link_add(&p->core, &link->core);
    if (r < 0) {
        publisher_link_free(p, link);
        return r;
    }
    link->bell = dlx__steal_fd(&notification->fds[1]);
    *ret = link;
    return 0;
}

/* ---- ends that are told ------------------------------------------------------------------- */

static void tell_end(struct dlx_publisher *p, struct dlx_publisher_link *link,
                     enum dlx_event_kind kind, const char *reason)
{
    if (link->state == DLX_PUBLISHER_LINK_ENDED)
        return;
    link->state = DLX_PUBLISHER_LINK_ENDED;
    p->joins.n_ended += !link->foreign;
    dlx__events_push(&p->events, kind, link->id, p->id, link->peer->pid, p->topic, reason);
}

/* ---- ends that are noticed ---------------------------------------------------------------- */

/* A subscriber that was killed after it closed has left. */
void dlx__publisher_link_end(struct dlx_publisher *p, struct dlx_publisher_link *link)
{
    tell_end(p, link, dlx__writer_link_is_closed(&link->core) ? DLX_EVENT_LEFT : DLX_EVENT_LOST,
             "");
}

/* Links whose descriptors one poll(2) asks. */
#define LOOK_AT_ONCE 64U

/* A process is dead when its pidfd says so, never by a time-out or a hang-up. */
static void look_at_pidfds(struct dlx_publisher *p, uint32_t first, uint32_t n)
{
    struct pollfd fds[LOOK_AT_ONCE];
    for (uint32_t i = 0; i < n; i++) {
        const struct dlx_writer_link *link = dlx__writer_link_at(&p->core, first + i);
        fds[i] = (struct pollfd){
            .fd = dlx__writer_link_is_dead(link) ? -1 : dlx__publisher_link_of(link)->peer->pidfd,
            .events = POLLIN};
    }
    int n_ready = poll(fds, n, 0);
    for (uint32_t i = 0; i < n && n_ready > 0; i++)
        if (fds[i].revents)
            dlx__writer_link_set_dead(dlx__writer_link_at(&p->core, first + i));
}

bool dlx__publisher_link_misses_end(const struct dlx_publisher *p)
{
    return p->joins.n_ended < dlx__writer_n_ended(&p->core);
}

/* A process that executes another program lives on, and its page does not say CLOSED: the daemon
 * has ended a link more than have closed or died, and it hung up. */
static void look_at_bells(struct dlx_publisher *p)
{
    for (uint32_t i = 0; i < dlx__writer_n_links(&p->core) && dlx__publisher_link_misses_end(p);
         i++) {
        struct dlx_publisher_link *link = dlx__publisher_link_of(dlx__writer_link_at(&p->core, i));
        struct pollfd pfd = {.fd = link->bell};
        if (link->state == DLX_PUBLISHER_LINK_ATTACHED && !link->foreign && poll(&pfd, 1, 0) == 1 &&
            (pfd.revents & POLLHUP)) {
            dlx__writer_link_set_left(&link->core);
            dlx__publisher_link_end(p, link);
        }
    }
}

void dlx__publisher_link_look_for_dead(void *userdata)
{
    struct dlx_publisher *p = userdata;
    if (dlx__publisher_link_misses_end(p)) /* perhaps by LinkCut, in the socket */
        dlx__publisher_link_env.pick_up(p);
    uint32_t n_links = dlx__writer_n_links(&p->core);
    for (uint32_t i = 0; i < n_links; i += LOOK_AT_ONCE)
        look_at_pidfds(p, i, DLX_MIN(n_links - i, LOOK_AT_ONCE));
    for (uint32_t i = 0; i < n_links; i++) {
        struct dlx_publisher_link *link = dlx__publisher_link_of(dlx__writer_link_at(&p->core, i));
        if (dlx__writer_link_is_dead(&link->core) || dlx__writer_link_is_closed(&link->core))
            dlx__publisher_link_end(p, link);
    }
    look_at_bells(p);
}

void dlx__publisher_link_find_ends(struct dlx_publisher *p)
{
    dlx__writer_read_membership(&p->core);
    if (dlx__publisher_link_misses_end(p))
        dlx__writer_look_for_dead(&p->core);
}

/* ---- links that are cut ------------------------------------------------------------------- */

/* The daemon has disconnected the subscriber, which may live on and ignore that. What it holds
 * stays held; the rest is over. */
void dlx__publisher_link_cut_by_daemon(struct dlx_publisher *p, const struct dlx_notification *cut)
{
    char reason[DLX_EVENT_REASON_SIZE];
    for (uint32_t i = 0; i < dlx__writer_n_links(&p->core); i++) {
        struct dlx_publisher_link *link = dlx__publisher_link_of(dlx__writer_link_at(&p->core, i));
        if (link->id != cut->link || link->foreign)
            continue;
        dlx__writer_link_set_left(&link->core);
        (void)!send(link->bell, &(uint8_t){DLX_BELL_REVOKED}, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        shutdown(link->bell, SHUT_RDWR);
        link->hung_up = true;
        p->stats.cut++;
        (void)snprintf(reason, sizeof reason, "dlpackd disconnected it: %s",
                       dlx_strerror(cut->code));
        tell_end(p, link, DLX_EVENT_LOST, reason);
        return;
    }
}

/* The library of a subscriber keeps to the bounds: a page that exceeds them was written by
 * something else. */
static bool exceeds_bounds(const struct dlx_publisher *p, const struct dlx_writer_link *link,
                           char reason[static DLX_EVENT_REASON_SIZE])
{
    uint32_t most = p->args.max_held, n_used = dlx__writer_link_n_used(link);
    uint64_t most_bytes = p->args.max_held_bytes;
    if (most > 0 && n_used > most) {
        (void)snprintf(reason, DLX_EVENT_REASON_SIZE,
                       "its page has used %u hold words (max_held %u)", n_used, most);
        return true;
    }
    if (most_bytes == 0)
        return false;
    uint64_t bytes = dlx__writer_link_bytes(&p->core, link);
    (void)snprintf(reason, DLX_EVENT_REASON_SIZE, "it holds %s and a message (max_held_bytes %s)",
                   DLX_AMOUNT(bytes), DLX_AMOUNT(most_bytes));
    return bytes > most_bytes;
}

bool dlx__publisher_link_cut(struct dlx_publisher *p)
{
    char reason[DLX_EVENT_REASON_SIZE];
    bool any = false;
    if (p->args.max_held == 0 && p->args.max_held_bytes == 0)
        return false;
    for (uint32_t i = 0; i < dlx__writer_n_links(&p->core); i++) {
        struct dlx_publisher_link *link = dlx__publisher_link_of(dlx__writer_link_at(&p->core, i));
        if (dlx__writer_link_is_dead(&link->core) || !exceeds_bounds(p, &link->core, reason))
            continue;
        dlx__writer_link_set_dead(&link->core);
        (void)!send(link->bell, &(uint8_t){DLX_BELL_CUT}, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        p->stats.cut++;
        tell_end(p, link, DLX_EVENT_LOST,
                 reason); /* the daemon counts it when the subscriber has left */
        any = true;
    }
    return any;
}

/* ---- environment of the ring writer ------------------------------------------------------- */

/* Returns false when there is not enough memory, or open files, for it now: then it is kept. The
 * packet does not come again, and without its link nothing could ever be freed. */
static bool publisher_add_link(struct dlx_publisher *p, struct dlx_notification *notification)
{
    struct dlx_publisher_link *link = NULL;
    int r = publisher_link_new(p, notification, &link);
    if (r < 0 && r != DLX_E_PROTOCOL) {
        p->joins.due = *notification;
        p->joins.state = DLX_PUBLISHER_JOINS_DUE;
        return false;
    }
    if (r == 0) {
        DLX_PROBE_ATTACH(p->id, link->id, p->topic, DLX_PROBE_PUBLISHER, link->peer->pid);
        dlx__events_push(&p->events, DLX_EVENT_JOINED, link->id, p->id, link->peer->pid, p->topic,
                         "");
    }
    dlx__notification_deinit(notification);
    return true;
}

/* The daemon sends what did not fit into the link socket as soon as there is room. Until then
 * nothing can be freed: so a publisher that wakes up waits for it, and does not fail, or take
 * more memory, for that. Not often for a daemon that stands still. */
static bool more_comes(struct dlx_publisher *p)
{
    struct pollfd pfd = {.fd = p->daemon.link_sock, .events = POLLIN};
    if (!dlx__writer_misses_link(&p->core) || dlx__now_ns() < p->joins.next_more_ns)
        return false;
    int n = poll(&pfd, 1, MORE_MS);
    if (n == 0)
        p->joins.next_more_ns = dlx__now_ns() + DLX_LOOK_NS;
    return n > 0;
}

static void env_pick_up(void *userdata)
{
    struct dlx_publisher *p = userdata;
    uint64_t picked = UINT64_MAX; /* when more was waited for */
    if (p->joins.state == DLX_PUBLISHER_JOINS_DUE) {
        struct dlx_notification due = p->joins.due;
        p->joins.due.n_fds = 0;
        p->joins.state = DLX_PUBLISHER_JOINS_PICKED_UP;
        if (!publisher_add_link(p, &due))
            return;
    }
    while (p->daemon.link_sock >= 0) {
        struct dlx_notification notification;
        int r = dlx__notification_read(p->daemon.link_sock, &notification);
        p->joins.state =
            r == DLX_E_FD_LIMIT ? DLX_PUBLISHER_JOINS_STARVED : DLX_PUBLISHER_JOINS_PICKED_UP;
        if (r == DLX_E_DISCONNECTED) {
            p->daemon.link_sock =
                dlx__close(p->daemon.link_sock); /* no joins until the daemon is back */
            return;
        }
        if (r == DLX_E_EMPTY && dlx__writer_n_picked(&p->core) != picked && more_comes(p)) {
            picked = dlx__writer_n_picked(&p->core);
            continue;
        }
        if (r < 0)
            return; /* a link that is not picked up counts as one that holds everything */
        if (notification.kind == DLX_NOTIFICATION_LINK_CUT)
            dlx__publisher_link_cut_by_daemon(p, &notification);
        else if (notification.kind != DLX_NOTIFICATION_LINK_ADDED)
            dlx__notification_deinit(&notification);
        else if (!publisher_add_link(p, &notification))
            return;
    }
}

static void env_ring(void *userdata, struct dlx_writer_link *link)
{
    struct dlx_publisher *p = userdata;
    if (link->left) /* its bell hung up, or it was cut */
        return;
    p->stats.bells++;
    const struct dlx_publisher_link *of = dlx__publisher_link_of(link);
    DLX_PROBE_BELL(p->id, of->id, DLX_PROBE_PUBLISHER, of->peer->pid);
    if (!dlx__ring_bell(of->bell))
        dlx__writer_link_ring_again(link);
}

/* Its process ended while it may have used memory: one that closed and holds nothing has left. */
static bool died_in_use(const struct dlx_writer_link *link)
{
    return dlx__writer_link_is_dead(link) &&
           (!dlx__writer_link_is_closed(link) || dlx__writer_link_n_held(link) > 0);
}

static void env_link_gone(void *userdata, struct dlx_writer_link *link)
{
    struct dlx_publisher *p = userdata;
    dlx__publisher_link_end(p, dlx__publisher_link_of(link));
    if (p->link_gone)
        p->link_gone(p->link_gone_userdata, dlx__publisher_link_of(link));
    if (p->gpu && died_in_use(link))
        dlx__gpu_publisher()->reader_died(p);
    publisher_link_free(p, dlx__publisher_link_of(link));
}

static void env_undone(void *userdata, uint64_t n)
{
    struct dlx_publisher *p = userdata;
    p->stats.undone += n;
}

static void env_payload_freed(void *userdata, void *payload)
{
    struct dlx_publisher *p = userdata;
    struct dlx_block *block = payload;
    if (dlx_likely(!block->next)) {
        dlx__heap_give(p->heap, block);
        return;
    }
    while (block) {
        struct dlx_block *next = block->next;
        if (next)
            dlx__prefetch_write(block->ahead);
        dlx__heap_give(p->heap, block);
        block = next;
    }
}

static uint64_t env_payload_bytes(void *userdata, const void *payload)
{
    (void)userdata;
    return dlx__block_message_bytes(payload);
}

static bool env_has_unknown_readers(void *userdata)
{
    const struct dlx_publisher *p = userdata;
    return dlx__region_is_locked(p->daemon.control_fd);
}

static void env_block_gone(void *userdata, const struct dlx_writer_block *block)
{
    dlx__publisher_unmap_control(userdata, dlx__writer_block_control(block));
}

const struct dlx_writer_env dlx__publisher_link_env = {
    .pick_up = env_pick_up,
    .ring = env_ring,
    .look_for_dead = dlx__publisher_link_look_for_dead,
    .link_gone = env_link_gone,
    .undone = env_undone,
    .payload_freed = env_payload_freed,
    .payload_bytes = env_payload_bytes,
    .has_unknown_readers = env_has_unknown_readers,
    .block_gone = env_block_gone,
};

/* ---- counts ------------------------------------------------------------------------------- */

bool dlx__publisher_link_receives(const struct dlx_publisher_link *link)
{
    return (dlx__writer_link_is_started(&link->core) || link->early) && !link->foreign &&
           !dlx__writer_link_is_over(&link->core);
}

uint32_t dlx__publisher_link_n_receiving(const struct dlx_publisher *p)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < dlx__writer_n_links(&p->core); i++)
        n += dlx__publisher_link_receives(dlx__publisher_link_of(dlx__writer_link_at(&p->core, i)));
    return n;
}

uint32_t dlx__publisher_link_n_attached(const struct dlx_publisher *p)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < dlx__writer_n_links(&p->core); i++)
        n += dlx__publisher_link_of(dlx__writer_link_at(&p->core, i))->state ==
             DLX_PUBLISHER_LINK_ATTACHED;
    return n;
}

uint32_t dlx__publisher_link_n_reached(const struct dlx_publisher *p)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < dlx__writer_n_links(&p->core); i++) {
        const struct dlx_publisher_link *link =
            dlx__publisher_link_of(dlx__writer_link_at(&p->core, i));
        n += !link->foreign && !dlx__writer_link_is_over(&link->core);
    }
    return n;
}

/* ---- after a new daemon ------------------------------------------------------------------- */

/* Has its subscription a link by the new daemon? */
static bool is_replaced(const struct dlx_publisher *p, const struct dlx_publisher_link *link)
{
    for (uint32_t i = 0; i < dlx__writer_n_links(&p->core); i++) {
        const struct dlx_publisher_link *other =
            dlx__publisher_link_of(dlx__writer_link_at(&p->core, i));
        if (!other->foreign && other->reader == link->reader &&
            dlx__writer_link_is_started(&other->core))
            return true;
    }
    return false;
}

bool dlx__publisher_link_have_rejoined(const struct dlx_publisher *p, bool all)
{
    bool gates = dlx__publisher_gates(&p->args);
    for (uint32_t i = 0; i < dlx__writer_n_links(&p->core); i++) {
        const struct dlx_publisher_link *link =
            dlx__publisher_link_of(dlx__writer_link_at(&p->core, i));
        bool waits = dlx__writer_link_is_reliable(&link->core) ||
                     (gates && dlx__writer_link_keeps_group(&link->core));
        if (link->foreign && (all || waits) && !dlx__writer_link_is_over(&link->core) &&
            !is_replaced(p, link))
            return false;
    }
    return true;
}

void dlx__publisher_link_set_foreign(struct dlx_publisher *p)
{
    for (uint32_t i = 0; i < dlx__writer_n_links(&p->core); i++) {
        struct dlx_publisher_link *link = dlx__publisher_link_of(dlx__writer_link_at(&p->core, i));
        if (!link->foreign) /* without memory for the note, the next daemon counts less */
            (void)dlx__mapped_add(p->daemon.source, DLX_SHM_FORMER_LINK + link->id, link->page,
                                  link->page_size, &link->mapped);
        link->foreign = true;
    }
    p->joins.n_ended = 0; /* as far as the new daemon knows */
    dlx__publisher_detour(p, DLX_DETOUR_REJOIN, !dlx__publisher_link_have_rejoined(p, false));
}

/* ---- its end ------------------------------------------------------------------------------ */

/* Messages that the daemon goes on showing. */
static uint64_t n_left_behind(const struct dlx_publisher *p)
{
    bool latched = p->args.retain_for_ns == DLX_RETAIN_LATCHED;
    return latched ? 0 : DLX_MIN(p->retain, dlx__writer_head(&p->core) - p->daemon.base);
}

void dlx__publisher_link_tell_end(struct dlx_publisher *p)
{
    uint8_t bytes[DLX_BELL_END_SIZE];
    dlx__bell_pack(dlx__writer_head(&p->core) - n_left_behind(p) + 1, bytes);
    for (uint32_t i = 0; i < dlx__writer_n_links(&p->core); i++)
        (void)!send(dlx__publisher_link_of(dlx__writer_link_at(&p->core, i))->bell, bytes,
                    sizeof bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
}
