/* SPDX-License-Identifier: Apache-2.0 */

/* The publisher's links: picked up from the link socket, rung, waited for, and let go. */

#include "client/control/notification.h"
#include "client/control/wait.h"
#include "client/gpu/gpu.h"
#include "client/publish/publisher.h"
#include "client/publish/publisher_reconnect.h"
#include "common/bell.h"
#include "common/memory.h"
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
    dlx__peers_put(&p->client->peers, link->peer);
    free(link);
}

/* On failure the notifications is as it was. */
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
        r = borrow_dlx__region_attach(p->daemon.memory, notification->fds[0], notification->size,
                                      &page);
    if (r < 0) {
        publisher_link_free(p, link);
        return r;
    }
    link->id = notification->link;
    link->reader = notification->reader;
    link->early = notification->early;
    link->page = page;
    link->page_size = notification->size;
    link->core = (struct dlx_writer_link){.page = page,
                                          .ticket = dlx_shm_ticket(page, notification->link_index),
                                          .base = notification->early ? p->daemon.base : 0,
                                          .max_held = notification->max_held,
                                          .reliable = notification->reliable,
                                          .latest = notification->latest};
    r = dlx__writer_link_add(&p->core, &link->core);
    if (r < 0) {
        publisher_link_free(p, link);
        return r;
    }
    link->bell = dlx__steal_fd(&notification->fds[1]);
    *ret = link;
    return 0;
}

/* ---- environment of the ring writer ---------------------------------------------------------- */

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
    if (r == 0)
        dlx__events_push(&p->events, DLX_EVENT_JOINED, link->id, p->id, link->peer->pid, p->topic,
                         "");
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
    if (!dlx__ring_bell(dlx__publisher_link_of(link)->bell))
        dlx__writer_link_ring_again(link);
}

static void env_link_gone(void *userdata, struct dlx_writer_link *link)
{
    struct dlx_publisher *p = userdata;
    dlx__publisher_link_end(p, dlx__publisher_link_of(link));
    if (p->gpu && dlx__writer_link_is_dead(link))
        dlx__gpu_publisher.reader_died(p);
    publisher_link_free(p, dlx__publisher_link_of(link));
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
    const struct dlx_publisher *p = userdata;
    if (p->daemon.source)
        dlx__mapped_remove_control(p->daemon.source->mapped, dlx__writer_block_control(block));
    dlx__region_unmap(dlx__writer_block_control(block),
                      dlx_shm_control_size(dlx__writer_block_n_entries(block)));
}

const struct dlx_writer_env dlx__publisher_link_env = {
    .pick_up = env_pick_up,
    .ring = env_ring,
    .look_for_dead = dlx__publisher_link_look_for_dead,
    .link_gone = env_link_gone,
    .payload_freed = env_payload_freed,
    .payload_bytes = env_payload_bytes,
    .has_unknown_readers = env_has_unknown_readers,
    .block_gone = env_block_gone,
};

/* ---- waiting ------------------------------------------------------------------------------- */

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

/* Not to the end: a peer that writes as fast as we read does not keep us here. Returns false
 * when it writes no more. */
static bool drain_bell(int fd)
{
    char bytes[4096];
    return recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) != 0;
}

bool dlx__publisher_link_list_sources(const struct dlx_publisher *p, struct pollfd *fds)
{
    uint32_t n_links = dlx__writer_n_links(&p->core);
    /* What cannot be added now is no reason to wake up. */
    bool deaf = p->joins.state != DLX_PUBLISHER_JOINS_PICKED_UP;
    fds[0] = (struct pollfd){.fd = deaf ? -1 : p->daemon.link_sock, .events = POLLIN};
    for (uint32_t i = 0; i < n_links; i++) {
        const struct dlx_publisher_link *link =
            dlx__publisher_link_of(dlx__writer_link_at(&p->core, i));
        fds[1 + 2 * i] = (struct pollfd){.fd = link->hung_up ? -1 : link->bell, .events = POLLIN};
        /* Of the dead nothing more is to be heard. */
        fds[2 + 2 * i] = (struct pollfd){
            .fd = dlx__writer_link_is_dead(&link->core) ? -1 : link->peer->pidfd, .events = POLLIN};
    }
    /* Whoever is missing may leave before the daemon has told of it: no packet comes then, but
     * `joins` is lowered. */
    bool looks_again = deaf || dlx__writer_misses_link(&p->core);
    /* Nothing else tells that the daemon has ended the link of who hung up. */
    for (uint32_t i = 0; i < n_links; i++)
        looks_again |= dlx__publisher_link_of(dlx__writer_link_at(&p->core, i))->hung_up &&
                       !dlx__writer_link_is_over(dlx__writer_link_at(&p->core, i));
    return looks_again;
}

int dlx__publisher_link_wait(struct dlx_publisher *p, struct dlx_wait *wait)
{
    uint32_t n_links = dlx__writer_n_links(&p->core);
    dlx_cleanup(dlx__freep) struct pollfd *fds = calloc(2 * (size_t)n_links + 1, sizeof *fds);
    if (!fds)
        return dlx__fail(DLX_E_NO_MEMORY, "waiting for %u links", n_links);
    bool looks_again = dlx__publisher_link_list_sources(p, fds) || p->daemon.link_sock < 0;
    uint64_t now = dlx__now_ns(), until = dlx__wait_part(wait, p->client, now);
    if (looks_again)
        until = DLX_MIN(until, now + DLX_RECONNECT_NS);
    int n = poll(fds, 2 * (nfds_t)n_links + 1, dlx__deadline_ms(until, now));
    if (n < 0 && errno != EINTR)
        return dlx__fail_errno("poll of %u links", n_links);
    int r = now < wait->deadline
                ? dlx__wait_for_peers(wait, p->client, &p->turn, n < 0, p->topic, "subscribers")
                : 0;
    if (r < 0)
        return r;
    for (uint32_t i = 0; n > 0 && i < n_links; i++) {
        struct dlx_publisher_link *link = dlx__publisher_link_of(dlx__writer_link_at(&p->core, i));
        short bell = fds[1 + 2 * i].revents;
        /* It will ring no more. What it holds still counts until its page says CLOSED and holds
         * nothing, or until its process is dead. */
        if ((bell & (POLLHUP | POLLERR)) || ((bell & POLLIN) && !drain_bell(link->bell)))
            link->hung_up = true;
        if (fds[2 + 2 * i].revents) {
            dlx__writer_link_set_dead(&link->core);
            dlx__publisher_link_end(p, link);
        }
    }
    /* These last: links come, and go. */
    dlx__publisher_link_find_ends(p);
    if (p->daemon.link_sock < 0)
        dlx__publisher_check(p, dlx__now_ns());
    else if (fds[0].revents)
        env_pick_up(p);
    if (n <= 0)
        return dlx__now_ns() >= wait->deadline ? DLX_E_TIMEOUT : 0;
    /* The caller has looked since: a link that always rings is no reason to look for ever. */
    return now >= wait->deadline ? DLX_E_TIMEOUT : 0;
}

/* ---- after a new daemon --------------------------------------------------------------------- */

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

/* Have all of them, or all that are reliable? */
static bool have_rejoined(const struct dlx_publisher *p, bool all)
{
    for (uint32_t i = 0; i < dlx__writer_n_links(&p->core); i++) {
        const struct dlx_publisher_link *link =
            dlx__publisher_link_of(dlx__writer_link_at(&p->core, i));
        if (link->foreign && (all || dlx__writer_link_is_reliable(&link->core)) &&
            !dlx__writer_link_is_over(&link->core) && !is_replaced(p, link))
            return false;
    }
    return true;
}

void dlx__publisher_link_set_foreign(struct dlx_publisher *p)
{
    for (uint32_t i = 0; i < dlx__writer_n_links(&p->core); i++)
        dlx__publisher_link_of(dlx__writer_link_at(&p->core, i))->foreign = true;
    p->joins.n_ended = 0; /* as far as the new daemon knows */
    dlx__publisher_detour(p, DLX_DETOUR_REJOIN, !have_rejoined(p, false));
}

int dlx__publisher_link_rejoin(struct dlx_publisher *p, struct dlx_wait *wait)
{
    int r = 0;
    /* That daemon may have ended, too, and a caller who never waits looks nowhere else. */
    dlx__publisher_look(p, dlx__now_ns());
    for (;;) {
        dlx__writer_set_blocked(&p->core, true); /* again, as it may have moved */
        dlx__writer_read_membership(&p->core);
        dlx__writer_look_for_dead(&p->core);
        dlx__publisher_detour(p, DLX_DETOUR_REJOIN, !have_rejoined(p, false));
        if (!(p->detours & DLX_DETOUR_REJOIN))
            break;
        r = wait->deadline == 0 ? DLX_E_FULL : dlx__publisher_link_wait(p, wait);
        if (r < 0)
            break;
    }
    dlx__publisher_link_unblock(p);
    if (r != DLX_E_FULL && r != DLX_E_TIMEOUT)
        return r;
    p->stats.full++;
    return dlx__fail(r, "topic %s: reliable subscribers have yet to join the new dlpackd",
                     p->topic);
}

void dlx__publisher_link_drain(struct dlx_publisher *p, int64_t timeout_ns)
{
    struct dlx_wait wait = {.deadline = dlx__deadline(timeout_ns)}, once = {.deadline = 0};
    if (dlx__writer_head(&p->core) > dlx__writer_passed(&p->core))
        dlx__publisher_await_daemon(p, &wait);
    else if (dlx__writer_heeds_locks(
                 &p->core)) /* a daemon that shows it has yet to hear that it ends */
        dlx__publisher_await_daemon(p, &once);
    if (dlx__writer_head(&p->core) <= p->daemon.base || have_rejoined(p, true))
        return;
    do {
        dlx__writer_set_blocked(&p->core, true);
        dlx__writer_read_membership(&p->core);
        dlx__writer_look_for_dead(&p->core);
    } while (p->daemon.link_sock >= 0 && !have_rejoined(p, true) &&
             dlx__publisher_link_wait(p, &wait) == 0);
    dlx__writer_set_blocked(&p->core, false);
}

/* ---- its end ------------------------------------------------------------------------------- */

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

/* ---- who is in the way --------------------------------------------------------------------- */

static const char *why_not_attached(const struct dlx_publisher *p)
{
    if (p->joins.state != DLX_PUBLISHER_JOINS_PICKED_UP)
        return "open files or memory of this process";
    return p->daemon.link_sock < 0 ? "dlpackd ended before it told of them"
                                   : "dlpackd has yet to tell of them";
}

/* Others hold memory, and stop nobody. Nothing, if they have gone on meanwhile. */
static void list_blocking(const struct dlx_publisher *p, char *ret, size_t size)
{
    size_t used = 0;
    ret[0] = '\0';
    for (uint32_t i = 0; i < dlx__writer_n_links(&p->core) && used < size - 80; i++) {
        const struct dlx_writer_link *link = dlx__writer_link_at(&p->core, i);
        uint64_t behind = dlx__writer_link_lag(&p->core, link);
        if (behind == 0)
            continue;
        struct dlx_peer *peer = dlx__publisher_link_of(link)->peer;
        const char *name = dlx__peers_name(&p->client->peers, peer);
        int n =
            snprintf(ret + used, size - used, "%s%s%spid %u%s holds %u and is %" PRIu64 " behind",
                     used ? ", " : ": ", name, *name ? " (" : "", peer->pid, *name ? ")" : "",
                     dlx__writer_link_n_held(link), behind);
        used += n > 0 ? (size_t)n : 0;
    }
}

int dlx__publisher_link_blame(const struct dlx_publisher *p, int code)
{
    char who[DLX_ERROR_TEXT_SIZE];
    if (dlx__writer_misses_link(&p->core))
        return dlx__fail(
            code,
            "topic %s: %" PRIu64 " subscribers could not be attached (%s), so nothing can "
            "be dropped (depth %u)",
            p->topic, dlx__writer_n_missing(&p->core), why_not_attached(p), p->args.depth);
    list_blocking(p, who, sizeof who);
    return dlx__fail(
        code,
        "topic %s: a reliable subscriber is as far behind as it may be (depth %u)%.250s; "
        "wait longer (timeout), raise depth, or stop that subscriber",
        p->topic, p->args.depth, who);
}
