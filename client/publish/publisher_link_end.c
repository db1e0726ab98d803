/* SPDX-License-Identifier: Apache-2.0 */

/* How a publisher notices the ends of its links, tells them, and cuts a link itself. */

#include "client/publish/publisher.h"
#include "common/amount.h"
#include "common/bell.h"
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>

static void tell_end(struct dlx_publisher *p, struct dlx_publisher_link *link,
                     enum dlx_event_kind kind, const char *reason)
{
    if (link->state == DLX_PUBLISHER_LINK_ENDED)
        return;
    link->state = DLX_PUBLISHER_LINK_ENDED;
    p->joins.n_ended += !link->foreign;
    dlx__events_push(&p->events, kind, link->id, p->id, link->peer->pid, p->topic, reason);
}

/* ---- ends that are noticed ------------------------------------------------------------------- */

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

/* ---- links that are cut ---------------------------------------------------------------------- */

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
