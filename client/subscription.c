/* SPDX-License-Identifier: Apache-2.0 */

/* dlx_subscribe(): a subscription, its links and their news. client/receive.c takes from it. */

#include "client/subscription.h"
#include "client/call.h"
#include "client/revive.h"
#include "common/topic.h"
#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#define DEFAULT_HELD 16U

/* ---- links --------------------------------------------------------------------------------- */

static int epoll_add(struct dlx_subscription *s, int fd, void *data)
{
    struct epoll_event event = {.events = EPOLLIN, .data = {.ptr = data}};
    if (epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &event) < 0)
        return dlx__fail_errno("epoll_ctl");
    return 0;
}

static struct dlx_inlet *find_inlet(struct dlx_subscription *s, uint64_t link, uint32_t *ret_index)
{
    for (uint32_t i = 0; i < s->n_inlets; i++)
        if (s->inlets[i]->id == link) {
            *ret_index = i;
            return s->inlets[i];
        }
    return NULL;
}

/* The link is complete, or will never be: dlx_subscribe() does not wait for it any more. For those of publishers that came
 * meanwhile it never did; the others have the first numbers. */
static void settle(struct dlx_subscription *s, uint64_t link)
{
    if (link - s->first_link < s->n_offers)
        s->n_settled++;
}

static void settle_inlet(struct dlx_subscription *s, struct dlx_inlet *inlet)
{
    if (!inlet->settled)
        settle(s, inlet->id);
    inlet->settled = true;
}

struct dlx_inlet *dlx__subscription_successor(const struct dlx_subscription *s,
                                              const struct dlx_inlet *inlet)
{
    for (uint32_t i = 0; i < s->n_inlets; i++)
        if (s->inlets[i]->after == inlet)
            return s->inlets[i];
    return NULL;
}

/* Leave a link: what is held stays held. */
void dlx__subscription_detach(struct dlx_subscription *s, uint32_t i)
{
    struct dlx_inlet *inlet = s->inlets[i];
    s->inlets[i] = s->inlets[--s->n_inlets];
    s->n_detached++;
    s->next = 0;
    settle_inlet(s, inlet);
    if (inlet->bell >= 0)
        (void)epoll_ctl(s->epoll, EPOLL_CTL_DEL, inlet->bell, NULL);
    if (inlet->state == DLX_INLET_OPEN) {
        if (inlet->has_pending) /* its arena has not come, and will not be waited for any more */
            dlx__inlet_lose(inlet);
        /* Where there is another link after all, that one counts what was before it. */
        bool goes_on = dlx__subscription_successor(s, inlet) != NULL;
        uint64_t n_missed =
            goes_on ? 0 : inlet->ended_at - DLX_MIN(inlet->ended_at, inlet->core.cursor);
        dlx__take_miss(&inlet->core, n_missed);
        s->n_open--;
        s->stats.taken += inlet->core.taken;
        s->stats.taken_bytes += inlet->taken_bytes;
        s->stats.skipped += inlet->core.skipped;
        s->stats.lost += inlet->core.lost;
        if (inlet->retain > 0 || inlet->foreign || !dlx__take_is_closed(&inlet->core))
            dlx__passed_add(&s->passed, inlet->origin, inlet->core.cursor + n_missed,
                            dlx__take_untold(&inlet->core) + n_missed);
        bool closed = dlx__take_is_closed(&inlet->core) || inlet->end > 0;
        if (!goes_on)
            dlx__events_push(&s->events, closed ? DLX_EVENT_LEFT : DLX_EVENT_LOST, inlet->id,
                             inlet->publisher, inlet->pid, inlet->topic);
    }
    dlx__inlet_close(inlet);
    for (uint32_t k = 0; k < s->n_inlets; k++)
        if (s->inlets[k]->after == inlet) {
            s->inlets[k]->after = NULL; /* its turn */
            s->n_changes++;
            dlx__take_follow(&s->inlets[k]->core, inlet->core.cursor,
                             dlx__take_untold(&inlet->core));
        }
    if (s->sock >= 0)
        (void)dlx__news_link_close(s->sock, inlet->id); /* else the daemon sees us leave */
    dlx__inlet_unref(inlet);
}

static int add_inlet(struct dlx_subscription *s, struct dlx_inlet *inlet)
{
    if (s->n_inlets == s->inlets_room) {
        uint32_t room = s->inlets_room ? s->inlets_room * 2 : 2;
        struct dlx_inlet **inlets = realloc(s->inlets, room * sizeof(struct dlx_inlet *));
        if (!inlets)
            return dlx__fail(DLX_E_NO_MEMORY, "table of %u links", room);
        s->inlets = inlets;
        s->inlets_room = room;
    }
    s->inlets[s->n_inlets++] = inlet;
    return 0;
}

/* A link could not be made: remembered, and told by the next take (or by dlx_subscribe()). */
static void fail_link(struct dlx_subscription *s, int code)
{
    if (s->failure == 0) {
        s->failure = code;
        memcpy(s->failure_text, dlx__error_message(), sizeof s->failure_text);
    }
}

/* ---- news ---------------------------------------------------------------------------------- */

static void on_offer(struct dlx_subscription *s, struct dlx_news *news)
{
    struct dlx_inlet *inlet = NULL;
    int r =
        dlx__inlet_new(&inlet, s->memory, s->generation, news->link, news->publisher, news->text,
                       dlx__steal_fd(&news->fds[0]), news->size, news->link_index, news->max_held);
    if (r == 0) {
        inlet->origin = news->resumes ? news->resumes : news->publisher;
        r = add_inlet(s, inlet);
    }
    if (r == 0) {
        r = dlx__news_link_ready(s->sock, news->link, s->reader);
        if (r < 0)
            s->n_inlets--;
    }
    if (r < 0) {
        dlx__inlet_unref(inlet);
        if (r != DLX_E_DISCONNECTED) /* the daemon has ended: that is noticed elsewhere */
            fail_link(s, r);
        (void)dlx__news_link_close(s->sock, news->link);
    }
}

/* May the publisher of this link have announced itself again, as one says that names it? One that our daemon has not told
 * us to be gone is another's. */
static bool may_resume(const struct dlx_inlet *inlet, uint64_t origin)
{
    return inlet->state == DLX_INLET_OPEN && (inlet->foreign || inlet->told) &&
           inlet->origin == origin;
}

/* All that was there is here: from now on the publisher waits for us, if we are reliable. */
static void start(struct dlx_subscription *s, struct dlx_inlet *inlet)
{
    uint32_t history = DLX_MIN(DLX_MAX(s->args.history, inlet->retain), inlet->history);
    /* The publisher announced itself again, to another daemon, or to this one, which had disconnected it: it goes on here
     * where it ended there. One that we do not know came while we were away. */
    for (uint32_t i = 0; i < s->n_inlets; i++) {
        struct dlx_inlet *other = s->inlets[i];
        if (may_resume(other, inlet->origin) && (!inlet->after || inlet->after->id < other->id))
            inlet->after = other;
    }
    dlx__inlet_start(inlet, s->args.history == DLX_HISTORY_NONE ? 0 : history,
                     inlet->from_start || s->made_again, s->args.mode == DLX_MODE_LATEST,
                     s->args.reliable);
    struct dlx_passed_entry passed = dlx__passed_find(&s->passed, inlet->origin);
    if (!inlet->after && passed.origin != 0)
        dlx__take_follow(&inlet->core, passed.seq, passed.untold);
    settle_inlet(s, inlet);
    s->n_open++;
    s->was_attached = true;
    s->news_step = 1;
    s->news_at = s->takes + 1;
    s->n_changes++;
    if (!inlet->after)
        dlx__events_push(&s->events, DLX_EVENT_JOINED, inlet->id, inlet->publisher, inlet->pid,
                         inlet->topic);
}

static void on_open(struct dlx_subscription *s, struct dlx_news *news)
{
    uint32_t i;
    struct dlx_inlet *inlet = find_inlet(s, news->link, &i);
    if (!inlet)
        return; /* we closed it meanwhile */
    int r = dlx__inlet_open(inlet, dlx__steal_fd(&news->fds[1]), news->n_arenas);
    if (r == 0)
        r = dlx__inlet_block_add(inlet, news->arena, dlx__steal_fd(&news->fds[0]), news->size,
                                 news->n_slots, news->base);
    if (r == 0)
        r = epoll_add(s, inlet->bell, inlet);
    if (r < 0) {
        fail_link(s, r);
        dlx__subscription_detach(s, i);
        return;
    }
    inlet->pid = news->pid;
    inlet->history = news->history;
    inlet->retain = news->retain;
    inlet->on_full = news->on_full;
    inlet->from_start = news->from_start;
    if (inlet->arenas_due == 0)
        start(s, inlet);
}

static int add_region(struct dlx_inlet *inlet, struct dlx_news *news)
{
    int fd = dlx__steal_fd(&news->fds[0]);
    if (news->n_slots > 0)
        return dlx__inlet_block_add(inlet, news->arena, fd, news->size, news->n_slots, news->base);
    return dlx__inlet_arena_add(inlet, news->arena, fd, news->size);
}

static void on_arena(struct dlx_subscription *s, struct dlx_news *news)
{
    uint32_t i;
    struct dlx_inlet *inlet = find_inlet(s, news->link, &i);
    bool added = news->kind == DLX_NEWS_ARENA_ADDED;
    if (!inlet || inlet->state == DLX_INLET_OFFERED)
        return; /* we closed it meanwhile */
    int r = added ? add_region(inlet, news) : 0;
    if (r < 0) { /* its messages cannot be read: better no link than one that hangs */
        fail_link(s, r);
        dlx__subscription_detach(s, i);
        return;
    }
    if (!added && news->control)
        dlx__inlet_block_dropped(inlet, news->arena);
    else if (!added)
        dlx__inlet_arena_dropped(inlet, news->arena);
    /* A drop stands in for one that was never added. */
    if (inlet->arenas_due > 0 && --inlet->arenas_due == 0)
        start(s, inlet);
}

/* A publisher left before our link to it was open. Of one that we do not know we missed nothing; of one that we know by an
 * earlier link, what it published since. */
static void on_gone_before(struct dlx_subscription *s, uint64_t origin, uint64_t last_seq)
{
    for (uint32_t i = 0; i < s->n_inlets; i++) {
        struct dlx_inlet *inlet = s->inlets[i];
        if (may_resume(inlet, origin)) {
            inlet->ended_at =
                DLX_MAX(inlet->ended_at, last_seq); /* the rest of it is taken first */
            return;
        }
    }
    struct dlx_passed_entry passed = dlx__passed_find(&s->passed, origin);
    if (passed.origin == 0 || passed.seq >= last_seq)
        return;
    uint64_t n_missed = last_seq - passed.seq;
    *(s->args.mode == DLX_MODE_LATEST ? &s->stats.skipped : &s->stats.lost) += n_missed;
    dlx__passed_add(&s->passed, origin, last_seq, passed.untold + n_missed);
}

static void on_news(struct dlx_subscription *s, struct dlx_news *news)
{
    uint32_t i;
    struct dlx_inlet *inlet;
    if (s->first_link == 0)
        s->first_link = news->link;
    switch (news->kind) {
    case DLX_NEWS_LINK_OFFER:
        on_offer(s, news);
        return;
    case DLX_NEWS_LINK_OPEN:
        on_open(s, news);
        return;
    case DLX_NEWS_LINK_FAILED:
        if (news->code != DLX_E_PUBLISHER_GONE) {
            dlx__fail(news->code, "%s", news->text);
            fail_link(s, news->code);
        } else if (news->resumes != 0) {
            on_gone_before(s, news->resumes, news->base);
        }
        if (find_inlet(s, news->link, &i))
            dlx__subscription_detach(s, i);
        else
            settle(s, news->link); /* it was never offered */
        return;
    case DLX_NEWS_ARENA_ADDED:
    case DLX_NEWS_ARENA_DROPPED:
        on_arena(s, news);
        return;
    case DLX_NEWS_PUBLISHER_GONE:
        inlet = find_inlet(s, news->link, &i);
        if (inlet && inlet->state == DLX_INLET_OPEN)
            inlet->gone = inlet->told = true;
        else if (inlet)
            dlx__subscription_detach(s, i);
        return;
    case DLX_NEWS_LINK_ADDED:
        return; /* a publisher's: not ours to understand */
    }
}

/* Wakes whoever sleeps on the epoll, the caller of dlx_subscription_fd() too, to look for a new daemon. */
static void start_timer(struct dlx_subscription *s)
{
    const struct itimerspec often = {.it_interval = {.tv_nsec = (long)DLX_REVIVE_NS},
                                     .it_value = {.tv_nsec = (long)DLX_REVIVE_NS}};
    dlx_cleanup(dlx__closep) int timer =
        timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (timer >= 0 && timerfd_settime(timer, 0, &often, NULL) == 0 &&
        epoll_add(s, timer, &s->timer) == 0)
        s->timer = dlx__steal_fd(&timer);
}

static void lose_daemon(struct dlx_subscription *s)
{
    (void)epoll_ctl(s->epoll, EPOLL_CTL_DEL, s->sock, NULL);
    s->sock = dlx__close(s->sock);
    s->told_lost = false;
    start_timer(s);
    for (uint32_t i = s->n_inlets; i-- > 0;)
        if (s->inlets[i]->state != DLX_INLET_OPEN)
            dlx__subscription_detach(s, i); /* nobody will open it */
}

/* Read what the daemon has sent. */
void dlx__subscription_read_news(struct dlx_subscription *s)
{
    if (s->sock < 0)
        dlx__subscription_revive(s);
    while (s->sock >= 0) {
        struct dlx_news news;
        int r = dlx__news_read(s->sock, &news);
        if (r == DLX_E_EMPTY)
            break;
        if (r == DLX_E_DISCONNECTED || r == DLX_E_PROTOCOL) {
            lose_daemon(s);
            break;
        }
        if (r < 0) {
            if (s->failure == 0)
                fail_link(s, r);
            break;
        }
        s->fd_news += news.n_fds > 0;
        on_news(s, &news);
        dlx__news_deinit(&news);
    }
    if (s->sock >= 0 && s->fd_news != s->acked && dlx__news_ack(s->sock, s->fd_news) == 0)
        s->acked = s->fd_news;
}

static int wait_news(struct dlx_subscription *s, uint64_t deadline)
{
    struct pollfd pfd = {.fd = s->sock, .events = POLLIN};
    uint64_t now = dlx__now_ns();
    int n = poll(&pfd, 1, dlx__deadline_ms(dlx__call_slice_end(s->client, now, deadline), now));
    if (n < 0 && errno != EINTR)
        return dlx__fail_errno("poll");
    if (n > 0)
        return 0;
    return dlx__now_ns() >= deadline ? DLX_E_TIMEOUT : dlx__call_check_interrupt(s->client);
}

/* ---- subscribe ----------------------------------------------------------------------------- */

static int check_args(const char *topic, struct dlx_subscribe_args *args)
{
    int r = dlx__pattern_check(topic);
    if (r < 0)
        return r;
    if (args->max_held == 0)
        args->max_held = DEFAULT_HELD;
    if (args->max_held > DLX_SHM_HELD_MAX)
        return dlx__fail(DLX_E_INVALID, "subscription to %s: max_held %u, at most %u is possible",
                         topic, args->max_held, DLX_SHM_HELD_MAX);
    if (args->history > DLX_SHM_HISTORY_MAX && args->history != DLX_HISTORY_NONE)
        return dlx__fail(DLX_E_INVALID, "subscription to %s: history %u, at most %u is possible",
                         topic, args->history, DLX_SHM_HISTORY_MAX);
    if (args->mode > DLX_MODE_LATEST)
        return dlx__fail(DLX_E_INVALID, "subscription to %s: mode %u", topic, args->mode);
    if (args->mode == DLX_MODE_LATEST && args->reliable)
        return dlx__fail(DLX_E_INVALID,
                         "subscription to %s: mode LATEST passes messages over, so it cannot be "
                         "reliable",
                         topic);
    if (args->spin_ns < DLX_SPIN_ALWAYS)
        return dlx__fail(DLX_E_INVALID, "subscription to %s: spin_ns %" PRId64, topic,
                         args->spin_ns);
    return 0;
}

/* Until every publisher that was there is attached, or one cannot be. */
static int attach_all(struct dlx_subscription *s)
{
    uint64_t deadline = dlx__deadline(s->client->timeout_ns);
    for (;;) {
        dlx__subscription_read_news(s);
        if (s->failure < 0)
            return dlx__fail(s->failure, "%s", s->failure_text);
        if (s->n_settled >= s->n_offers)
            return 0;
        if (s->sock < 0)
            return dlx__fail(DLX_E_DISCONNECTED, "dlpackd closed the subscription");
        int r = wait_news(s, deadline);
        if (r == DLX_E_TIMEOUT)
            return dlx__fail(r, "%u of %u publishers attached in time", s->n_settled, s->n_offers);
        if (r < 0)
            return r;
    }
}

static void subscription_free(struct dlx_subscription *s)
{
    while (s->n_inlets > 0)
        dlx__subscription_detach(s, s->n_inlets - 1);
    free(s->inlets);
    dlx__passed_deinit(&s->passed);
    dlx__events_deinit(&s->events);
    if (s->sock >= 0)
        shutdown(s->sock, SHUT_RDWR); /* a forked child may have inherited it */
    dlx__close(s->sock);
    dlx__close(s->nudge);
    dlx__close(s->timer);
    dlx__close(s->epoll);
    dlx_client_unref(s->client);
    free(s);
}

int dlx__subscription_adopt(struct dlx_subscription *s, const struct dlx_new_subscription *made)
{
    int r = epoll_add(s, made->sock, NULL);
    if (r < 0) {
        dlx__close(made->sock);
        return r;
    }
    s->id = made->id;
    s->memory = made->memory;
    s->sock = made->sock;
    s->fd_news = s->acked = 0;
    s->made_again = true;
    for (uint32_t i = 0; i < s->n_inlets; i++)
        s->inlets[i]->foreign = true;
    s->timer = dlx__close(s->timer); /* leaves the epoll by that */
    return 0;
}

int dlx_subscribe(struct dlx_client *c, const char *topic,
                  const struct dlx_subscribe_args *user_args, struct dlx_subscription **ret)
{
    struct dlx_subscribe_args args;
    struct dlx_new_subscription made;
    dlx__error_clear();
    if (!c || !ret)
        return dlx__fail(DLX_E_INVALID, "dlx_subscribe: client or ret is NULL");
    if (dlx__forked(c->generation))
        return dlx__fail_forked();
    int r = dlx__args_copy(&args, sizeof args, sizeof args, user_args);
    if (r == 0)
        r = check_args(topic, &args);
    if (r < 0)
        return r;
    struct dlx_subscription *s = calloc(1, sizeof *s);
    if (!s)
        return dlx__fail(DLX_E_NO_MEMORY, "state of a subscription");
    dlx__client_ensure(c);
    s->client = dlx__client_ref(c);
    s->generation = c->generation;
    s->args = args;
    s->spin_ns = args.spin_ns == 0  ? DLX_SPIN_DEFAULT_NS
                 : args.spin_ns > 0 ? (uint64_t)args.spin_ns
                                    : 0;
    s->sock = -1;
    s->nudge = -1;
    s->timer = -1;
    s->news_step = s->news_at = 1;
    if (getrandom(&s->reader, sizeof s->reader, GRND_NONBLOCK) < 0) /* early after boot */
        s->reader = dlx__now_ns() ^ (uint64_t)(uintptr_t)s;
    s->epoch = atomic_load_explicit(&c->epoch, memory_order_acquire);
    memcpy(s->topic, topic, strlen(topic) + 1);
    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    r = s->epoll < 0 ? dlx__fail_errno("epoll_create1")
                     : dlx__call_subscribe(c, topic, &args, c->timeout_ns, &made);
    if (r == 0) {
        s->id = made.id;
        s->memory = made.memory;
        s->sock = made.sock;
        s->n_offers = made.n_offers;
        r = epoll_add(s, s->sock, NULL);
    }
    if (r == 0)
        r = attach_all(s);
    if (r < 0) {
        dlx__fail_prefix(r, "subscription to %s", topic);
        subscription_free(s);
        return r;
    }
    *ret = s;
    return 0;
}

struct dlx_subscription *dlx_subscription_unref(struct dlx_subscription *s)
{
    if (s && !dlx__forked(s->generation))
        subscription_free(s);
    return NULL;
}

int dlx_subscription_fd(struct dlx_subscription *s)
{
    dlx__error_clear();
    if (!s)
        return dlx__fail(DLX_E_INVALID, "dlx_subscription_fd: subscription is NULL");
    if (dlx__forked(s->generation))
        return dlx__fail_forked();
    if (!s->fd_given) {
        /* No publisher was asked to ring yet, and there may be something already: the first poll says
         * "look", and the EMPTY that follows is the one that arms. */
        dlx_cleanup(dlx__closep) int nudge = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
        if (nudge < 0)
            return dlx__fail_errno("eventfd");
        int r = epoll_add(s, nudge, &s->nudge);
        if (r < 0)
            return r;
        s->nudge = dlx__steal_fd(&nudge);
        s->fd_given = true;
    }
    return s->epoll;
}

int dlx_subscription_get_stats(struct dlx_subscription *s, struct dlx_subscription_stats *stats)
{
    dlx__error_clear();
    if (!s || !stats)
        return dlx__fail(DLX_E_INVALID,
                         "dlx_subscription_get_stats: subscription or stats is NULL");
    if (dlx__forked(s->generation))
        return dlx__fail_forked();
    struct dlx_subscription_stats sum = s->stats;
    sum.n_held = 0;
    sum.n_publishers = s->n_open;
    for (uint32_t i = 0; i < s->n_inlets; i++) {
        struct dlx_inlet *inlet = s->inlets[i];
        if (inlet->state != DLX_INLET_OPEN)
            continue;
        sum.taken += inlet->core.taken - inlet->has_pending; /* which waits for its arena */
        sum.taken_bytes += inlet->taken_bytes;
        sum.skipped += inlet->core.skipped;
        sum.lost += inlet->core.lost;
        sum.n_held += dlx__take_n_held(&inlet->core) - inlet->has_pending;
    }
    return dlx__args_return(stats, sizeof *stats, &sum, sizeof sum);
}
