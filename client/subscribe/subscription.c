/* SPDX-License-Identifier: Apache-2.0 */

/* A subscription: its links, the daemon's notifications about them, and how it is made and ends.
 * client/subscribe/take.c takes from it. */

#include "client/subscribe/subscription.h"
#include "client/base/misuse.h"
#include "client/control/call.h"
#include "client/control/connection.h"
#include "client/control/notification.h"
#include "client/gpu/gpu.h"
#include "client/message/worker.h"
#include "client/subscribe/dead_letter.h"
#include "common/probes.h"
#include "common/topic.h"
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#define DEFAULT_HELD 16U

/* ---- links --------------------------------------------------------------------------------- */

int dlx__subscription_epoll_add(struct dlx_subscription *s, int fd, uint32_t events, void *data)
{
    struct epoll_event event = {.events = events, .data = {.ptr = data}};
    if (epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &event) < 0)
        return dlx__fail_errno("epoll_ctl");
    return 0;
}

int dlx__subscription_epoll_close(struct dlx_subscription *s, int take_fd)
{
    if (take_fd >= 0)
        (void)epoll_ctl(s->epoll, EPOLL_CTL_DEL, take_fd, NULL);
    return dlx__close(take_fd);
}

static struct dlx_subscriber_link *find_link(const struct dlx_subscription *s, uint64_t link)
{
    for (uint32_t i = 0; i < s->n_links; i++)
        if (s->links[i]->id == link)
            return s->links[i];
    return NULL;
}

/* Does dlx_subscribe() wait for this link? Those of publishers that came meanwhile have later
 * numbers. */
static bool is_awaited(const struct dlx_subscription *s, uint64_t link)
{
    return link - s->notifications.first_link < s->notifications.n_offers;
}

/* Of these links, how many have begun, are sealed spares, or have failed? */
static uint32_t n_settled(const struct dlx_subscription *s)
{
    uint32_t n = s->notifications.n_offered;
    for (uint32_t i = 0; i < s->n_links; i++)
        n -= is_awaited(s, s->links[i]->id) &&
             (s->links[i]->state == DLX_LINK_OFFERED || s->links[i]->state == DLX_LINK_OPENING);
    return n;
}

struct dlx_subscriber_link *dlx__subscription_successor(const struct dlx_subscription *s,
                                                        const struct dlx_subscriber_link *link)
{
    for (uint32_t i = 0; i < s->n_links; i++) {
        struct dlx_subscriber_link *other = s->links[i];
        if (other->after == link || (s->worker && other->origin == link->origin &&
                                     other->id > link->id && dlx__subscriber_link_is_open(other)))
            return other;
    }
    return NULL;
}

/* A link ends before its turn. The one before it goes on for both: what only this one would have
 * brought is lost when that one ends, or when another link goes on after it. */
static void leave_to_before(struct dlx_subscriber_link *link)
{
    struct dlx_subscriber_link *before = link->after;
    uint64_t newest = dlx__reader_cursor(&link->core) + dlx__reader_n_left(&link->core);
    before->ended_at = DLX_MAX(before->ended_at, DLX_MAX(newest, link->ended_at));
    dlx__reader_move_counters(&before->core, &link->core);
}

/* What comes by no link any more counts as missed. Returns how much that is. */
static uint64_t miss_rest(struct dlx_subscriber_link *link, const struct dlx_subscriber_link *next,
                          const char *cut)
{
    if (!next)
        dlx__reader_miss_gone(&link->core);
    uint64_t n_missed =
        next ? 0 : link->ended_at - DLX_MIN(link->ended_at, dlx__reader_cursor(&link->core));
    if (cut)
        n_missed = DLX_MAX(n_missed, dlx__reader_n_left(&link->core));
    dlx__reader_miss(&link->core, n_missed);
    return n_missed;
}

/* `cut`: why the link is cut; NULL: it is not. */
static void leave_link(struct dlx_subscription *s, struct dlx_subscriber_link *link,
                       const char *cut)
{
    char reason[DLX_EVENT_REASON_SIZE];
    uint32_t i = 0;
    (void)snprintf(reason, sizeof reason, "%.95s", cut ? cut : "");
    while (s->links[i] != link)
        i++;
    s->links[i] = s->links[--s->n_links];
    s->n_spares -= link->publisher == 0;
    dlx__subscription_deactivate(s, link);
    s->n_changes++;
    s->next = 0;
    if (link->bell >= 0)
        (void)epoll_ctl(s->epoll, EPOLL_CTL_DEL, link->bell, NULL);
    if (link->claims)
        (void)epoll_ctl(s->epoll, EPOLL_CTL_DEL, link->claims->bell, NULL);
    s->n_open -= dlx__subscriber_link_is_open(link);
    if (link->after)
        leave_to_before(link);
    if (dlx__subscriber_link_is_open(link) && !link->after) {
        dlx__subscriber_link_lose_pending(link);
        /* Where there is another link after all, that one counts what was before it. */
        struct dlx_subscriber_link *next = dlx__subscription_successor(s, link);
        uint64_t n_missed = link->claims ? 0 : miss_rest(link, next, cut);
        if (next)
            dlx__reader_move_counters(&next->core, &link->core);
        dlx__subscription_count(&s->stats, link);
        /* What a worker has passed is in the claims page. */
        if (!s->worker && (link->qos.retain > 0 || dlx__subscriber_link_is_foreign(link) ||
                           !dlx__reader_is_closed(&link->core)))
            dlx__origin_remember(s, link, n_missed);
        bool closed = dlx__reader_is_closed(&link->core) || link->end > 0;
        s->untold.n_left += !next;
        if (!next)
            dlx__events_push(&s->events, closed && !cut ? DLX_EVENT_LEFT : DLX_EVENT_LOST, link->id,
                             link->publisher, link->pid, link->topic, reason);
    } else if (cut) {
        dlx__events_push(&s->events, DLX_EVENT_LOST, link->id, link->publisher, link->pid,
                         link->topic, reason);
    }
    dlx__subscriber_link_close(link);
    for (uint32_t k = 0; k < s->n_links; k++)
        if (s->links[k]->after == link) {
            s->links[k]->after = link->after;
            if (link->after) /* not its turn yet */
                continue;
            if (!link->claims)
                dlx__reader_follow(&s->links[k]->core, dlx__reader_cursor(&link->core),
                                   dlx__reader_untold(&link->core));
            dlx__subscription_activate(s, s->links[k]);
        }
    if (s->sock >= 0)
        (void)dlx__notification_link_close(s->sock, link->id); /* else the daemon sees us leave */
    dlx__subscriber_link_leave(link, s->reader);
}

void dlx__subscription_detach(struct dlx_subscription *s, struct dlx_subscriber_link *link)
{
    leave_link(s, link, NULL);
}

/* The first failure counts. */
static void fail_with(struct dlx_subscription *s, int code, const char *text)
{
    if (s->untold.failure != 0)
        return;
    s->untold.failure = code;
    (void)snprintf(s->untold.failure_text, sizeof s->untold.failure_text, "%s", text);
}

/* The reason that there is no publisher, if this was the last one. */
static void note_cut(struct dlx_subscription *s, const struct dlx_subscriber_link *link,
                     const char *why)
{
    (void)snprintf(s->untold.refusal, sizeof s->untold.refusal,
                   "the link to publisher %" PRIu64 " (pid %u) was cut: %.400s", link->publisher,
                   link->pid, why);
}

void dlx__subscription_reject(struct dlx_subscription *s, struct dlx_subscriber_link *link)
{
    char why[DLX_ERROR_TEXT_SIZE];
    memcpy(why, dlx__error_message(), sizeof why);
    note_cut(s, link, why);
    leave_link(s, link, why);
}

/* Of a publisher that has not left. */
static void part_from(struct dlx_subscription *s, struct dlx_subscriber_link *link, const char *why)
{
    note_cut(s, link, why);
    leave_link(s, link, why);
    if (s->n_links == s->n_spares)
        s->untold.was_attached = false;
}

static void cut(struct dlx_subscription *s, struct dlx_subscriber_link *link, int code,
                const char *why)
{
    part_from(s, link, why);
    fail_with(s, code, why);
}

void dlx__subscription_leave_unread(struct dlx_subscription *s, struct dlx_subscriber_link *link)
{
    part_from(s, link, "dlpackd ended before it had told of the memory of a message");
}

void dlx__subscription_cut(struct dlx_subscription *s, struct dlx_subscriber_link *link)
{
    char why[DLX_ERROR_TEXT_SIZE], text[DLX_ERROR_TEXT_SIZE];
    int code = DLX_E_LIMIT;
    if (link->holder == DLX_BELL_CUT_BY_PUBLISHER) {
        (void)snprintf(why, sizeof why,
                       "the publisher (pid %u) cut the link, which held more than it allows",
                       link->pid);
    } else {
        code = dlx__client_goodbye(s->client, text);
        (void)snprintf(why, sizeof why, "disconnected: %.400s%s",
                       code ? text : "dlpackd said so to the publisher",
                       code == DLX_E_KICKED ? DLX_KICKED_REMEDY : "");
        code = code ? code : DLX_E_DISCONNECTED;
        *(s->sock < 0 ? &s->untold.told_lost : &s->untold.told_cut) = true;
    }
    cut(s, link, code, why);
}

void dlx__subscription_leave_gone(struct dlx_subscription *s)
{
    for (uint32_t i = s->n_links; i-- > 0;) {
        struct dlx_subscriber_link *link = s->links[i];
        if (link->state == DLX_LINK_OVER && link->n_pending == 0 &&
            dlx__reader_cursor(&link->core) - link->gone_at >
                2 * (uint64_t)dlx__reader_n_entries(&link->core)) {
            static const char why[] = "its publisher publishes, though dlpackd has disconnected it";
            note_cut(s, link, why);
            leave_link(s, link, why);
        }
    }
}

void dlx__subscription_refused(struct dlx_subscription *s, int code)
{
    char why[DLX_ERROR_TEXT_SIZE];
    memcpy(why, dlx__error_message(), sizeof why);
    fail_with(s, code, why);
    s->untold.told_lost = true; /* the daemon is there */
    while (s->n_links > 0)
        cut(s, s->links[s->n_links - 1], code, why);
}

static int make_room_for_link(struct dlx_subscription *s)
{
    if (s->n_links < s->links_room)
        return 0;
    uint32_t room = s->links_room ? s->links_room * 2 : 2;
    struct dlx_subscriber_link **links =
        realloc(s->links, room * sizeof(struct dlx_subscriber_link *));
    if (!links)
        return dlx__fail(DLX_E_NO_MEMORY, "table of %u links", room);
    s->links = links;
    struct dlx_subscriber_link **active =
        realloc(s->active, room * sizeof(struct dlx_subscriber_link *));
    if (!active)
        return dlx__fail(DLX_E_NO_MEMORY, "table of %u links", room);
    s->active = active;
    struct dlx_head *heads = realloc(s->heads.list, room * sizeof *heads);
    if (!heads)
        return dlx__fail(DLX_E_NO_MEMORY, "table of %u links", room);
    s->heads.list = heads;
    s->links_room = room;
    return 0;
}

void dlx__subscription_fail(struct dlx_subscription *s, int code)
{
    fail_with(s, code, dlx__error_message());
}

void dlx__subscription_activate(struct dlx_subscription *s, struct dlx_subscriber_link *link)
{
    if (link->is_active || !dlx__subscriber_link_is_open(link) || link->after)
        return;
    link->is_active = true;
    link->n_idle = 0;
    s->n_alone = 0;
    s->active[s->n_active++] = link; /* there is room for all links */
}

void dlx__subscription_deactivate(struct dlx_subscription *s, struct dlx_subscriber_link *link)
{
    if (!link->is_active)
        return;
    uint32_t i = 0;
    while (s->active[i] != link)
        i++;
    s->active[i] = s->active[--s->n_active];
    s->heads.n = 0; /* another link has its place */
    link->is_active = false;
}

/* Once for each link, after the event that it is there: more of them would push others out. */
void dlx__subscription_tell(struct dlx_subscription *s, struct dlx_subscriber_link *link)
{
    char reason[DLX_EVENT_REASON_SIZE];
    if (link->gpu && dlx__subscriber_link_is_open(link) &&
        dlx__gpu_receiver()->tell_unpinned(link->gpu, reason))
        dlx__events_push(&s->events, DLX_EVENT_UNPINNED, link->id, link->publisher, link->pid,
                         link->topic, reason);
}

/* ---- notifications --------------------------------------------------------------------------- */

/* Each of these returns 0; or what is lacking (dlx__error_is_lack()): then nothing has changed, and
 * the notification is handled again later. */

static int add_link(struct dlx_subscription *s, struct dlx_notification *offer, uint64_t origin,
                    struct dlx_subscriber_link **ret)
{
    int r = make_room_for_link(s);
    if (r == 0)
        r = dlx__subscriber_link_new(ret, s->memory, s->generation, offer->link, offer->publisher,
                                     offer->text, dlx__steal_fd(&offer->fds[0]), offer->size,
                                     offer->max_held);
    if (r < 0)
        return r;
    (*ret)->of = &s->of;
    (*ret)->origin = origin;
    (*ret)->daemon = offer->former ? DLX_LINK_SHOWN : DLX_LINK_OURS;
    s->links[s->n_links++] = *ret;
    s->n_spares += offer->publisher == 0;
    s->notifications.n_offered += is_awaited(s, offer->link);
    return 0;
}

/* The page of a link is sealed when it is made. So the link stays if something is lacking after
 * that, and this is done when the notification is handled again. */
static int on_offer(struct dlx_subscription *s, struct dlx_notification *notification)
{
    struct dlx_subscriber_link *link = find_link(s, notification->link);
    uint64_t origin = notification->resumes ? notification->resumes : notification->publisher;
    if (notification->former && !link && dlx__origin_is_joined(s, origin)) {
        s->notifications.n_offered += is_awaited(s, notification->link);
        (void)dlx__notification_link_close(s->sock, notification->link);
        return 0;
    }
    int r = link ? 0 : add_link(s, notification, origin, &link);
    if (r == 0 && s->gpu && !link->gpu)
        r = dlx__gpu_receiver()->link_begin(link, s->gpu);
    if (r == 0)
        r = dlx__notification_link_ready(s->sock, notification->link, s->reader);
    if (r == DLX_E_FULL)
        r = dlx__fail(DLX_E_NO_MEMORY, "the kernel has no room for an answer to dlpackd");
    if (r == 0 || dlx__error_is_lack(r))
        return r;
    if (r != DLX_E_DISCONNECTED) /* the daemon has ended: that is noticed elsewhere */
        dlx__subscription_fail(s, r);
    if (link)
        dlx__subscription_detach(s, link);
    else
        (void)dlx__notification_link_close(s->sock, notification->link);
    return 0;
}

/* All that was there is here: from now on the publisher waits for us, if we are reliable. */
static void start_link(struct dlx_subscription *s, struct dlx_subscriber_link *link)
{
    if (dlx__subscriber_link_is_shown(link) &&
        dlx__origin_is_joined(s, link->origin)) { /* its publisher came meanwhile */
        dlx__subscription_detach(s, link);
        return;
    }
    if (dlx__origin_is_anothers(s, link->publisher, link->origin))
        link->origin = link->publisher;
    /* The publisher announced itself again, to another daemon, or to this one, which had
     * disconnected it: it goes on here where it ended there. One that we do not know came while we
     * were away. */
    for (uint32_t i = 0; i < s->n_links && !s->worker; i++) { /* workers take from both */
        struct dlx_subscriber_link *other = s->links[i];
        if (dlx__origin_may_resume(other, link->origin) &&
            (!link->after || link->after->id < other->id))
            link->after = other;
    }
    /* To the same control block, since the publisher is one of a former daemon, or only we were
     * disconnected. The old link is left as soon as it has nothing new: from then on the new one,
     * which the daemon knows, counts. */
    if (link->after && link->after->publisher == link->publisher &&
        (dlx__subscriber_link_is_shown(link) || s->sock >= 0)) {
        dlx__subscriber_link_drain(link->after);
        dlx__subscription_activate(s, link->after);
    }
    struct dlx_resume_position *passed =
        link->after || s->worker ? NULL
                                 : dlx__resume_positions_find(&s->resume_positions, link->origin);
    dlx__subscriber_link_start(link, s->made_again ? DLX_READER_ALL : link->history,
                               link->after || passed);
    if (link->after) /* not only when it ends: whoever lists links sees this one alone */
        dlx__reader_move_counters(&link->core, &link->after->core);
    if (passed) {
        dlx__origin_resume(s, link, passed);
        s->untold.n_left -= s->untold.n_left > 0; /* it left another daemon, and is here again */
    }
    DLX_PROBE_ATTACH(link->publisher, link->id, link->topic, DLX_PROBE_SUBSCRIBER, link->pid);
    s->n_open++;
    s->untold.was_attached = true;
    s->untold.refusal[0] = s->untold.away[0] = '\0'; /* there is a publisher that it can have */
    s->looks.notification_step = 1;
    s->looks.notification_at = s->looks.at = s->looks.takes + 1;
    s->n_changes++;
    dlx__subscription_activate(s, link);
    if (!link->after)
        dlx__events_push(&s->events, DLX_EVENT_JOINED, link->id, link->publisher, link->pid,
                         link->topic, "");
    dlx__subscription_tell(s, link);
}

/* How many messages that are there does a link begin with? */
static uint64_t history_of(const struct dlx_subscription *s, const struct dlx_notification *opened)
{
    if (opened->from_start)
        return DLX_READER_ALL;
    if (s->args.history == DLX_HISTORY_NONE || s->worker)
        return 0;
    return DLX_MIN(DLX_MAX(s->args.history, opened->retain), opened->history);
}

/* Is a link to such a publisher reliable? */
static bool is_reliable(const struct dlx_subscription *s, uint32_t on_full)
{
    return s->args.reliable && !(s->args.accepts_unreliable && on_full == DLX_ON_FULL_DROP);
}

static int on_open(struct dlx_subscription *s, struct dlx_notification *notification)
{
    struct dlx_subscriber_link *link = find_link(s, notification->link);
    if (!link)
        return 0; /* we closed it meanwhile */
    int r = 0;
    if (link->publisher == 0) {
        r = dlx__subscriber_link_assign(link, notification->publisher, notification->text);
        s->n_spares -= link->publisher != 0;
        link->origin = notification->resumes ? notification->resumes : notification->publisher;
    }
    link->pid = notification->pid;
    if (r == 0)
        r = dlx__subscriber_link_note(link, s->epoch);
    if (r == 0)
        r = dlx__subscriber_link_open(link, notification, s->args.mode == DLX_MODE_LATEST,
                                      is_reliable(s, notification->on_full));
    if (r == 0) {
        r = dlx__subscription_epoll_add(s, link->bell, DLX_BELL_EVENTS, link);
        if (r == 0 && link->claims)
            r = dlx__subscription_epoll_add(s, link->claims->bell, EPOLLIN | EPOLLET,
                                            dlx__subscription_group_tag(link));
        if (dlx__error_is_lack(r))
            dlx__subscriber_link_unopen(link);
    }
    if (dlx__error_is_lack(r))
        return r;
    if (r < 0) {
        dlx__subscription_fail(s, r);
        dlx__subscription_reject(s, link);
        return 0;
    }
    link->history = history_of(s, notification);
    if (link->arenas_due == 0)
        start_link(s, link);
    return 0;
}

static int on_arena(struct dlx_subscription *s, struct dlx_notification *notification)
{
    struct dlx_subscriber_link *link = find_link(s, notification->link);
    bool added = notification->kind == DLX_NOTIFICATION_ARENA_ADDED;
    if (!link || link->state < DLX_LINK_OPENING)
        return 0; /* we closed it meanwhile */
    int r = added ? dlx__subscriber_link_arena_add(link, notification->arena,
                                                   dlx__steal_fd(&notification->fds[0]),
                                                   notification->size)
                  : 0;
    if (dlx__error_is_lack(r))
        return r;
    if (r < 0) { /* its messages cannot be read: better no link than one that hangs */
        dlx__subscription_fail(s, r);
        dlx__subscription_reject(s, link);
        return 0;
    }
    if (!added)
        dlx__subscriber_link_arena_dropped(link, notification->arena);
    dlx__subscription_tell(s, link);
    dlx__subscription_activate(s, link); /* it may have waited for this */
    /* A drop stands in for one that was never added. */
    if (link->arenas_due > 0 && --link->arenas_due == 0)
        start_link(s, link);
    return 0;
}

static void tell_unseen(struct dlx_subscription *s, const struct dlx_notification *notification,
                        const char *reason)
{
    dlx__events_push(&s->events, DLX_EVENT_UNSEEN, notification->link, notification->publisher,
                     notification->pid, *notification->topic ? notification->topic : s->topic,
                     reason);
}

static void on_failed(struct dlx_subscription *s, struct dlx_notification *notification)
{
    struct dlx_subscriber_link *link = find_link(s, notification->link);
    char reason[DLX_EVENT_REASON_SIZE];
    if (notification->code != DLX_E_PUBLISHER_GONE) {
        dlx__fail(notification->code, "%s", notification->text);
        if (!s->tells_events || s->worker)
            dlx__subscription_fail(s, notification->code);
        (void)snprintf(s->untold.refusal, sizeof s->untold.refusal,
                       "a publisher was refused: %.480s", notification->text);
        (void)snprintf(reason, sizeof reason, "%.95s", notification->text);
        tell_unseen(s, notification, reason);
    } else if (notification->resumes != 0) {
        uint64_t n = dlx__origin_gone_before(s, notification);
        (void)snprintf(
            reason, sizeof reason,
            "%" PRIu64 " messages: it left before a call here; see publishers (n_publishers)", n);
        if (n > 0) {
            s->untold.n_left++;
            tell_unseen(s, notification, reason);
        }
    }
    if (link)
        dlx__subscription_detach(s, link);
    else
        s->notifications.n_offered += is_awaited(s, notification->link);
}

static int on_notifications(struct dlx_subscription *s, struct dlx_notification *notification)
{
    struct dlx_subscriber_link *link;
    if (s->notifications.first_link == 0)
        s->notifications.first_link = notification->link;
    switch (notification->kind) {
    case DLX_NOTIFICATION_LINK_OFFER:
        return on_offer(s, notification);
    case DLX_NOTIFICATION_LINK_OPEN:
        return on_open(s, notification);
    case DLX_NOTIFICATION_LINK_FAILED:
        on_failed(s, notification);
        return 0;
    case DLX_NOTIFICATION_ARENA_ADDED:
    case DLX_NOTIFICATION_ARENA_DROPPED:
        return on_arena(s, notification);
    case DLX_NOTIFICATION_PUBLISHER_GONE:
        link = find_link(s, notification->link);
        if (link && dlx__subscriber_link_is_open(link)) {
            link->state = DLX_LINK_OVER;
            link->gone_at = dlx__reader_cursor(&link->core);
            dlx__subscription_activate(s, link);
        } else if (link) {
            dlx__subscription_detach(s, link);
        }
        return 0;
    case DLX_NOTIFICATION_SPARE_SEALED:
        link = find_link(s, notification->link);
        if (link && link->state == DLX_LINK_OFFERED)
            link->state = DLX_LINK_SEALED;
        return 0;
    case DLX_NOTIFICATION_LINK_ADDED:
    case DLX_NOTIFICATION_LINK_CUT:
        return 0; /* a publisher's: not ours to understand */
    }
    return 0;
}

/* Wakes whoever sleeps on the epoll, the caller of dlx_subscription_fd() too: see needs_timer(). */
static void start_timer(struct dlx_subscription *s)
{
    if (s->timer >= 0)
        return;
    const struct itimerspec often = {.it_interval = {.tv_nsec = (long)DLX_RECONNECT_NS},
                                     .it_value = {.tv_nsec = (long)DLX_RECONNECT_NS}};
    dlx_cleanup(dlx__closep) int timer =
        timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (timer >= 0 && timerfd_settime(timer, 0, &often, NULL) == 0 &&
        dlx__subscription_epoll_add(s, timer, EPOLLIN, &s->timer) == 0)
        s->timer = dlx__steal_fd(&timer);
}

static void lose_daemon(struct dlx_subscription *s)
{
    char why[DLX_ERROR_TEXT_SIZE];
    s->sock = dlx__subscription_epoll_close(s, s->sock);
    s->untold.told_lost = s->untold.told_cut;
    s->untold.told_cut = false;
    start_timer(s);
    for (uint32_t i = s->n_links; i-- > 0;) {
        struct dlx_subscriber_link *link = s->links[i];
        if (link->state == DLX_LINK_OPENING && link->history == DLX_READER_ALL)
            start_link(s, link); /* though it will not get all arenas */
        if (!dlx__subscriber_link_is_open(link))
            dlx__subscription_detach(s, link); /* nobody will open it */
        else
            dlx__subscription_activate(s, link);
    }
    if (dlx__client_goodbye(s->client, why) == DLX_E_KICKED) /* the next take says who it was */
        dlx__subscription_reconnect(s);
}

/* The daemon sends so many packets with descriptors before they are acknowledged. */
#define CREDIT 4U

/* Notifications were read in mode LATEST: are more to be expected? */
static void expect_newer(struct dlx_subscription *s)
{
    uint64_t now = dlx__now_ns();
    s->looks.is_owed &= now - s->looks.told_ns < DLX_NEWER_NS;
    s->looks.is_owed |= s->notifications.n_with_fds - s->notifications.n_acked >= CREDIT;
    s->looks.told_ns = now;
}

/* Once the daemon has no credit left, nothing comes before it has this. */
static void acknowledge(struct dlx_subscription *s)
{
    if (dlx__notification_ack(s->sock, s->notifications.n_with_fds) < 0) {
        start_timer(s);
        return;
    }
    s->notifications.n_acked = s->notifications.n_with_fds;
}

/* To look for a new daemon, to send what the kernel did not take, or since a publisher that only a
 * former daemon knew may go on in its old block, and cannot ring. */
static bool needs_timer(const struct dlx_subscription *s)
{
    bool needs = s->sock < 0 || s->notifications.n_with_fds != s->notifications.n_acked ||
                 (s->args.mode == DLX_MODE_LATEST && dlx__subscription_may_get_newer(s));
    for (uint32_t i = 0; !needs && i < s->n_links; i++)
        needs = dlx__subscriber_link_is_shown(s->links[i]) &&
                (s->links[i]->state == DLX_LINK_LIVE || s->links[i]->state == DLX_LINK_DRAINING);
    return needs;
}

static int adopt(struct dlx_subscription *s, const struct dlx_new_subscription *made)
{
    int r = dlx__subscription_epoll_add(s, made->sock, EPOLLIN, NULL);
    if (r < 0) {
        dlx__close(made->sock);
        return r;
    }
    s->id = made->id;
    s->memory = made->memory;
    s->sock = made->sock;
    memcpy(s->untold.away, made->away, sizeof s->untold.away);
    s->notifications.n_with_fds = s->notifications.n_acked = 0;
    s->made_again = true;
    for (uint32_t i = 0; i < s->n_links; i++)
        s->links[i]->daemon =
            dlx__subscriber_link_is_shown(s->links[i]) ? DLX_LINK_LOST_SHOWN : DLX_LINK_LOST;
    s->timer = dlx__subscription_epoll_close(s, s->timer);
    dlx__events_push(&s->events, DLX_EVENT_RECONNECTED, 0, 0, 0, s->topic, "");
    return 0;
}

void dlx__subscription_reconnect(struct dlx_subscription *s)
{
    struct dlx_new_subscription made;
    uint64_t now = dlx__now_ns();
    if (now < s->next_try_ns)
        return;
    s->next_try_ns = now + DLX_RECONNECT_NS;
    if (s->client->interrupt) /* it runs while this call waits for the daemon */
        dlx__turn_disown(&s->turn);
    int r = dlx__client_reconnect(s->client, s->epoch, DLX_HURRY_NOW_AND_THEN);
    /* The connection is there, but the daemon lacked what this subscription needs, and ended it. It
     * may lack that for long: once a second is enough. */
    bool was_ended = r == DLX_E_IN_USE;
    if (r == 0 || was_ended) {
        uint64_t epoch = atomic_load_explicit(&s->client->epoch, memory_order_acquire);
        r = dlx__call_subscribe(s->client, s->topic, &s->args, DLX_RECONNECT_PATIENCE_NS, &made);
        if (r == 0 && was_ended)
            s->next_try_ns = now + DLX_LOOK_NS;
        if (r == 0 && adopt(s, &made) == 0)
            s->epoch = epoch;
        dlx__client_tell_former(s->client);
    }
    if (r == DLX_E_ACCESS) { /* the rules have changed: the next take says so */
        s->next_try_ns = now + DLX_LOOK_NS;
        dlx__subscription_refused(s, r);
    }
    if (r == DLX_E_KICKED) /* every take says so */
        dlx__subscription_refused(s, r);
    dlx__error_clear();
}

/* Returns false if the packet that was handled last is still in the socket. */
static bool drop_handled(struct dlx_subscription *s)
{
    s->notifications.stays = s->notifications.stays && !dlx__notification_done(s->sock);
    return !s->notifications.stays;
}

/* Read what the daemon has sent. A packet stays in the socket until it is handled, and the next one
 * is not looked at before it is dropped. */
void dlx__subscription_read_notifications(struct dlx_subscription *s)
{
    uint64_t n_read = s->notifications.n_read;
    if (s->sock < 0)
        dlx__subscription_reconnect(s);
    while (s->sock >= 0 && drop_handled(s)) {
        struct dlx_notification notification;
        int r = dlx__notification_look(s->sock, &notification);
        if (r == DLX_E_EMPTY)
            break;
        if (r == DLX_E_DISCONNECTED || r == DLX_E_PROTOCOL) {
            lose_daemon(s);
            break;
        }
        size_t n_fds = r == 0 ? notification.n_fds : 0;
        if (r == 0) {
            r = on_notifications(s, &notification);
            dlx__notification_deinit(&notification);
        }
        if (r < 0) { /* the packet stays, and what follows it */
            dlx__subscription_fail(s, r);
            break;
        }
        s->notifications.n_read++;
        s->notifications.n_with_fds += n_fds > 0;
        s->notifications.stays = true;
    }
    if (s->args.mode == DLX_MODE_LATEST && s->notifications.n_read != n_read)
        expect_newer(s);
    if (s->sock >= 0 && s->notifications.n_with_fds != s->notifications.n_acked)
        acknowledge(s);
    if (needs_timer(s))
        start_timer(s);
    else
        s->timer = dlx__subscription_epoll_close(s, s->timer);
}

/* ---- dlx_subscribe(), and the end ------------------------------------------------------------ */

/* Waits until the daemon has sent something. Returns 0, also if it has to look again;
 * DLX_E_TIMEOUT, DLX_E_INTERRUPTED, DLX_E_SYSTEM. */
static int wait_for_notifications(struct dlx_subscription *s, struct dlx_wait *wait)
{
    struct pollfd pfd = {.fd = s->sock, .events = POLLIN};
    uint64_t now = dlx__now_ns(), until = dlx__wait_part(wait, s->client, now);
    if (s->notifications.n_acked != s->notifications.n_with_fds) /* it is sent again */
        until = DLX_MIN(until, now + DLX_RECONNECT_NS);
    int n = poll(&pfd, 1, dlx__deadline_ms(until, now));
    if (n < 0 && errno != EINTR)
        return dlx__fail_errno("poll");
    if (n > 0)
        return 0;
    if (dlx__now_ns() >= wait->deadline)
        return DLX_E_TIMEOUT;
    return dlx__wait_ask(wait, s->client, NULL, n < 0) < 0 ? dlx__call_interrupted(s->client) : 0;
}

static int check_subscription(const char *topic, struct dlx_subscribe_args *args)
{
    if (args->max_held == 0)
        args->max_held = args->group ? 1 : DEFAULT_HELD;
    if (args->max_held > DLX_SHM_HELD_MAX)
        return dlx__fail(DLX_E_INVALID, "subscription to %s: max_held %u must be at most %u", topic,
                         args->max_held, DLX_SHM_HELD_MAX);
    if (args->history > DLX_SHM_HISTORY_MAX && args->history != DLX_HISTORY_NONE)
        return dlx__fail(DLX_E_INVALID, "subscription to %s: history %u must be at most %u", topic,
                         args->history, DLX_SHM_HISTORY_MAX);
    if (args->mode > DLX_MODE_LATEST)
        return dlx__fail(DLX_E_INVALID, "subscription to %s: mode %u", topic, args->mode);
    if (args->mode == DLX_MODE_LATEST && args->reliable)
        return dlx__fail(DLX_E_INVALID,
                         "subscription to %s: mode LATEST passes messages over, so it cannot be "
                         "reliable",
                         topic);
    if (args->accepts_unreliable && !args->reliable)
        return dlx__fail(DLX_E_INVALID,
                         "subscription to %s: accepts_unreliable is for subscriptions that are "
                         "reliable",
                         topic);
    if (args->spin_ns < DLX_SPIN_ALWAYS)
        return dlx__fail(DLX_E_INVALID, "subscription to %s: spin_ns %" PRId64, topic,
                         args->spin_ns);
    return 0;
}

/* The daemon knows whether it could not make them. */
static int fail_attach_late(const struct dlx_subscription *s)
{
    struct dlx_daemon_info info = {.size = sizeof info};
    bool lacks = dlx_client_get_daemon_info(s->client, &info) == 0 && *info.lack;
    return dlx__fail(DLX_E_TIMEOUT, "%u of %u links were made in time%s%s", n_settled(s),
                     s->notifications.n_offers,
                     lacks ? ", and dlpackd lacks what the others need: " : "",
                     lacks ? info.lack : "");
}

/* Waits until every publisher that was there is attached and the next ones find spare links.
 * Returns 0, or why that cannot be. */
static int attach_all(struct dlx_subscription *s)
{
    struct dlx_wait wait = {.deadline = dlx__deadline(s->client->timeout_ns)};
    for (;;) {
        dlx__subscription_read_notifications(s);
        if (s->untold.failure < 0)
            return dlx__fail(s->untold.failure, "%s", s->untold.failure_text);
        if (n_settled(s) >= s->notifications.n_offers)
            return 0;
        if (s->sock < 0)
            return dlx__fail(DLX_E_DISCONNECTED, "dlpackd closed the subscription");
        int r = wait_for_notifications(s, &wait);
        if (r == DLX_E_TIMEOUT)
            return fail_attach_late(s);
        if (r < 0)
            return r;
    }
}

/* The next worker of this program may have other terms: it comes after the end of this one. */
static void tell_worker_end(const struct dlx_subscription *s)
{
    bool is_same =
        s->sock >= 0 && s->epoch == atomic_load_explicit(&s->client->epoch, memory_order_acquire);
    if (s->worker && is_same && s->id > 0)
        (void)dlx__call_subscription_close(s->client, s->id); /* else its socket tells it */
}

static void subscription_free(struct dlx_subscription *s)
{
    if (s->gpu)
        dlx__gpu_receiver()->stop(s->gpu); /* a closed link does not tell when a message is ready */
    while (s->n_links > 0)
        dlx__subscription_detach(s, s->links[s->n_links - 1]);
    tell_worker_end(s);
    free(s->links);
    free(s->active);
    free(s->heads.list);
    dlx__resume_positions_deinit(&s->resume_positions);
    dlx__events_deinit(&s->events);
    if (s->worker)
        s->worker->grave = dlx_publisher_unref(s->worker->grave);
    dlx__worker_unref(s->worker);
    if (s->sock >= 0)
        shutdown(s->sock, SHUT_RDWR); /* a forked child may have inherited it */
    dlx__subscription_epoll_close(s, s->sock);
    dlx__subscription_epoll_close(s, s->nudge);
    dlx__subscription_epoll_close(s, s->timer);
    dlx__close(s->epoll);
    if (s->gpu)
        dlx__gpu_receiver()->end(s->gpu); /* releases messages of closed links */
    dlx__client_unref(s->client);
    dlx__release_handle(s, &s->generation);
}

/* It names a GPU; else the first message with tensors on GPUs begins this. */
static int begin_for_gpu(struct dlx_subscription *s)
{
    int r = s->args.pin.device_type != 0 ? dlx__gpu_load_for(s->args.pin) : 0;
    if (r == 0 && s->args.device.device_type != 0)
        r = dlx__gpu_load_for(s->args.device);
    return r < 0 ? r : dlx__gpu_receiver()->begin(&s->args, &s->gpu);
}

/* What is kept of messages that are done takes hold words, too. */
static int begin_as_worker(struct dlx_subscription *s)
{
    int r = dlx__worker_new(&s->args, &s->worker);
    if (r < 0)
        return r;
    s->args.max_held = DLX_MIN(s->args.max_held + DEFAULT_HELD, DLX_SHM_HELD_MAX);
    s->args.group = s->worker->group;
    s->args.max_attempts = s->worker->max_attempts;
    s->args.dead_letters = NULL;
    s->worker->copy_dead = dlx__dead_letter_copy;
    return 0;
}

int dlx_subscribe(struct dlx_client *c, const char *topic, const struct dlx_subscribe_args *args,
                  struct dlx_subscription **ret)
{
    dlx__error_clear();
    if (!c || !ret)
        return DLX_NAME_NULL(0, "dlx_subscribe", {"client", c}, {"ret", ret});
    int r = dlx__refuse_forked(c->generation);
    if (r == 0)
        r = dlx__pattern_check(topic);
    return r < 0 ? r : dlx__subscribe(c, topic, args, ret);
}

/* Rings once a second. */
static int add_worker_timer(struct dlx_subscription *s)
{
    s->worker->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (s->worker->timer < 0)
        return dlx__fail_errno("timerfd_create");
    dlx__worker_set_timer(s->worker, 0);
    return dlx__subscription_epoll_add(s, s->worker->timer, EPOLLIN, &s->worker->timer);
}

int dlx__subscribe(struct dlx_client *c, const char *topic,
                   const struct dlx_subscribe_args *user_args, struct dlx_subscription **ret)
{
    struct dlx_subscribe_args args;
    struct dlx_new_subscription made;
    int r = dlx__args_copy(&args, sizeof args, offsetof(struct dlx_subscribe_args, pin), user_args);
    if (r == 0)
        r = check_subscription(topic, &args);
    if (r < 0)
        return r;
    struct dlx_subscription *s = calloc(1, sizeof *s);
    if (!s)
        return dlx__fail(DLX_E_NO_MEMORY, "state of a subscription");
    r = dlx__client_ensure(c);
    if (r < 0) {
        free(s);
        return r;
    }
    s->client = dlx__client_ref(c);
    s->generation = c->generation;
    s->args = args;
    s->sock = s->nudge = s->timer = s->epoll = -1;
    if (args.group)
        r = begin_as_worker(s);
    s->of = (struct dlx_subscription_view){c, &s->args, &s->gpu, s->worker};
    if (args.n_publishers == 0 && dlx__is_pattern(topic))
        s->args.n_publishers = DLX_PUBLISHERS_ANY;
    s->looks.spin_ns = args.spin_ns == 0  ? DLX_SPIN_DEFAULT_NS
                       : args.spin_ns > 0 ? (uint64_t)args.spin_ns
                                          : 0;
    s->looks.notification_step = 1;
    if (getrandom(&s->reader, sizeof s->reader, GRND_NONBLOCK) < 0) /* early after boot */
        s->reader = dlx__now_ns() ^ (uint64_t)(uintptr_t)s;
    s->epoch = atomic_load_explicit(&c->epoch, memory_order_acquire);
    memcpy(s->topic, topic, strlen(topic) + 1);
    if (r == 0)
        s->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (r == 0 && s->epoll < 0)
        r = dlx__fail_errno("epoll_create1");
    if (r == 0 && s->worker)
        r = add_worker_timer(s);
    if (r == 0 && (args.pin.device_type != 0 || args.device.device_type != 0))
        r = begin_for_gpu(s);
    if (r == 0)
        r = dlx__call_subscribe(c, topic, &s->args, c->timeout_ns, &made);
    if (r == 0) {
        s->id = made.id;
        s->memory = made.memory;
        s->sock = made.sock;
        s->notifications.n_offers = made.n_offers;
        memcpy(s->untold.away, made.away, sizeof s->untold.away);
        r = dlx__subscription_epoll_add(s, s->sock, EPOLLIN, NULL);
    }
    if (r == 0)
        r = attach_all(s);
    if (r < 0) {
        dlx__fail_prefix(r, "subscription to %s", topic);
        s->id = 0; /* its socket tells its end, and changes no text */
        subscription_free(s);
        return r;
    }
    s->looks.is_owed = false; /* every publisher that was there is attached */
    *ret = s;
    return 0;
}

struct dlx_subscription *dlx_subscription_unref(struct dlx_subscription *s)
{
    if (s && dlx__forked(s->generation))
        dlx__check_released(s->generation, "dlx_subscription_unref()");
    else if (s)
        subscription_free(s);
    return NULL;
}

/* ---- the descriptor, and counters ------------------------------------------------------------ */

/* No publisher was asked to ring yet, and there may be something already: the first poll says
 * "look", and the EMPTY that follows is the one that arms. */
static int add_nudge(struct dlx_subscription *s)
{
    struct epoll_event event = {.events = EPOLLIN, .data = {.ptr = &s->nudge}};
    dlx_cleanup(dlx__closep) int nudge = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
    if (nudge < 0)
        return dlx__fail_errno("eventfd");
    if (epoll_ctl(s->epoll, EPOLL_CTL_ADD, nudge, &event) < 0)
        return dlx__fail_errno("epoll_ctl");
    s->nudge = dlx__steal_fd(&nudge);
    s->fd_given = true;
    return 0;
}

int dlx_subscription_fd(struct dlx_subscription *s)
{
    int r = dlx__subscription_begin(s, "dlx_subscription_fd");
    if (r < 0)
        return r;
    if (!s->fd_given)
        r = add_nudge(s);
    if (r == 0)
        r = s->epoll;
    dlx__subscription_leave(s);
    return r;
}

/* A subscription that makes no other call still counts what its publishers have dropped. */
static void hear_of_publishers(struct dlx_subscription *s)
{
    if (s->sock < 0) /* a call that may wait looks for another daemon */
        return;
    dlx__subscription_read_notifications(s);
    /* What made the descriptor readable was read: a caller that polls it is to take anyway. */
    if (s->nudge >= 0 && dlx__subscription_has_unused_notifications(s))
        (void)eventfd_write(s->nudge, 1);
    dlx__error_clear();
}

/* Messages that the subscription can never get by this link. The next takes will count them. */
static uint64_t n_gone(const struct dlx_subscription *s, const struct dlx_subscriber_link *link)
{
    const struct dlx_reader *reader = &link->core;
    uint64_t n = dlx__reader_n_gone(reader, link->after ? &link->after->core : NULL);
    uint64_t newest = dlx__reader_cursor(reader) + dlx__reader_n_left(reader);
    if (!dlx__subscription_successor(s, link))
        n += link->ended_at - DLX_MIN(link->ended_at, newest);
    return n;
}

int dlx_subscription_get_stats(struct dlx_subscription *s, struct dlx_subscription_stats *ret)
{
    dlx__error_clear();
    if (!ret)
        return dlx__fail(DLX_E_INVALID, "dlx_subscription_get_stats: ret is NULL");
    int r = dlx__subscription_begin(s, "dlx_subscription_get_stats");
    if (r < 0)
        return r;
    hear_of_publishers(s);
    struct dlx_subscription_stats sum = s->stats;
    sum.n_held = 0;
    sum.n_publishers = s->n_open;
    sum.has_daemon = s->sock >= 0;
    for (uint32_t i = 0; i < s->n_links; i++) {
        struct dlx_subscriber_link *link = s->links[i];
        if (!dlx__subscriber_link_is_open(link))
            continue;
        dlx__subscription_count(&sum, link);
        if (!link->claims)
            *(s->args.mode == DLX_MODE_LATEST ? &sum.skipped : &sum.lost) += n_gone(s, link);
        sum.n_held += dlx__reader_n_held(&link->core) - link->n_pending;
    }
    if (s->client->mapped) /* links that were left */
        sum.n_held += (uint32_t)dlx__mapped_n_out(s->client->mapped, s->reader);
    if (s->gpu)
        dlx__gpu_receiver()->stats(s->gpu, &sum);
    if (s->worker)
        dlx__worker_stats(s->worker, &sum);
    r = dlx__args_return(ret, offsetof(struct dlx_subscription_stats, gpu_waits), &sum, sizeof sum);
    dlx__subscription_leave(s);
    return r;
}
