/* SPDX-License-Identifier: Apache-2.0 */

/* dlx_subscribe() and dlx_take(): a subscription, its links, its sleep. */

#include "client/call.h"
#include "client/inlet.h"
#include "common/topic.h"
#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define DEFAULT_HELD    16U
#define DEFAULT_SPIN_NS UINT64_C(20000)
#define SPIN_MIN_NS     UINT64_C(500)
/* How often a caller that never waits looks for news. */
#define NEWS_EVERY_TAKES 1024U
#define NEWS_EVERY_NS    UINT64_C(1000000)

struct dlx_subscription {
    struct dlx_client *client;
    uint64_t generation;
    uint64_t id;
    char topic[DLX_TOPIC_MAX + 1];
    struct dlx_subscribe_args args;
    int sock;  /* news; -1 once the daemon is gone */
    int epoll; /* every bell, and sock */
    bool fd_given;
    struct dlx_inlet **inlets;
    uint32_t n_inlets;
    uint32_t inlets_room;
    uint32_t n_open;
    uint32_t next;      /* whose turn it is */
    uint32_t n_settled; /* offers that ended in a link or a failure */
    uint32_t fd_news;   /* packets with fds received, for Ack */
    uint32_t acked;
    uint32_t takes;
    uint64_t last_news_ns;
    uint64_t spin_ns; /* adaptive */
    int failure;      /* of a link, to be told once */
    char failure_text[DLX_ERROR_TEXT_SIZE];
    bool was_attached; /* tell when the last publisher leaves */
    struct dlx_subscription_stats stats;
};

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

/* Leave a link: what is held stays held. */
static void detach(struct dlx_subscription *s, uint32_t i)
{
    struct dlx_inlet *inlet = s->inlets[i];
    s->inlets[i] = s->inlets[--s->n_inlets];
    s->next = 0;
    if (inlet->state == DLX_INLET_OPEN) {
        s->n_open--;
        s->stats.taken += inlet->core.taken;
        s->stats.taken_bytes += inlet->taken_bytes;
        s->stats.skipped += inlet->core.skipped;
        s->stats.lost += inlet->core.lost;
        (void)epoll_ctl(s->epoll, EPOLL_CTL_DEL, inlet->bell, NULL);
    }
    dlx__inlet_close(inlet);
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
    s->n_settled++;
    if (s->failure == 0) {
        s->failure = code;
        memcpy(s->failure_text, dlx__error_message(), sizeof s->failure_text);
    }
}

/* ---- news ---------------------------------------------------------------------------------- */

static void on_offer(struct dlx_subscription *s, struct dlx_news *news)
{
    struct dlx_inlet *inlet = NULL;
    int r = dlx__inlet_new(&inlet, s->generation, news->link, news->publisher, news->text,
                           dlx__steal_fd(&news->fds[0]), news->size, news->link_index,
                           news->max_held);
    if (r == 0)
        r = add_inlet(s, inlet);
    if (r == 0) {
        r = dlx__news_link_ready(s->sock, news->link);
        if (r < 0)
            s->n_inlets--;
    }
    if (r < 0) {
        dlx__inlet_unref(inlet);
        fail_link(s, r);
        (void)dlx__news_link_close(s->sock, news->link);
    }
}

static void on_open(struct dlx_subscription *s, struct dlx_news *news)
{
    uint32_t i;
    struct dlx_inlet *inlet = find_inlet(s, news->link, &i);
    if (!inlet)
        return; /* we closed it meanwhile */
    int r = dlx__inlet_open(inlet, dlx__steal_fd(&news->fds[0]), dlx__steal_fd(&news->fds[1]),
                            news->size, news->n_slots, s->args.mode == DLX_MODE_LATEST,
                            s->args.reliable);
    if (r == 0) {
        s->n_open++;
        inlet->pid = news->pid;
        r = epoll_add(s, inlet->bell, inlet);
    }
    if (r < 0) {
        fail_link(s, r);
        detach(s, i);
        return;
    }
    s->n_settled++;
    s->was_attached = true;
    dlx__take_start(&inlet->core, DLX_MIN(s->args.history, news->history), news->from_start);
}

static void on_news(struct dlx_subscription *s, struct dlx_news *news)
{
    uint32_t i;
    struct dlx_inlet *inlet;
    switch (news->kind) {
    case DLX_NEWS_LINK_OFFER:
        on_offer(s, news);
        return;
    case DLX_NEWS_LINK_OPEN:
        on_open(s, news);
        return;
    case DLX_NEWS_LINK_FAILED:
        dlx__fail(news->code, "%s", news->text);
        fail_link(s, news->code);
        if (find_inlet(s, news->link, &i))
            detach(s, i);
        return;
    case DLX_NEWS_ARENA_ADDED:
        inlet = find_inlet(s, news->link, &i);
        if (inlet) {
            int r = dlx__inlet_arena_add(inlet, news->arena, dlx__steal_fd(&news->fds[0]),
                                         news->size);
            if (r < 0) { /* its messages cannot be read: better no link than one that hangs */
                fail_link(s, r);
                detach(s, i);
            }
        }
        return;
    case DLX_NEWS_ARENA_DROPPED:
        inlet = find_inlet(s, news->link, &i);
        if (inlet && inlet->state == DLX_INLET_OPEN)
            dlx__inlet_arena_dropped(inlet, news->arena);
        return;
    case DLX_NEWS_PUBLISHER_GONE:
        inlet = find_inlet(s, news->link, &i);
        if (inlet && inlet->state == DLX_INLET_OPEN)
            inlet->gone = true;
        else if (inlet)
            detach(s, i);
        return;
    case DLX_NEWS_LINK_ADDED:
        return; /* a publisher's: not ours to understand */
    }
}

static void lose_daemon(struct dlx_subscription *s)
{
    (void)epoll_ctl(s->epoll, EPOLL_CTL_DEL, s->sock, NULL);
    s->sock = dlx__close(s->sock);
    for (uint32_t i = s->n_inlets; i-- > 0;)
        if (s->inlets[i]->state == DLX_INLET_OFFERED)
            detach(s, i); /* nobody will open it */
}

/* Read what the daemon has sent. */
static void read_news(struct dlx_subscription *s)
{
    s->last_news_ns = dlx__now_ns();
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
            if (r == DLX_E_FD_LIMIT)
                s->fd_news++; /* its packet is gone all the same */
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
    int n = poll(&pfd, 1, dlx__deadline_ms(deadline, dlx__now_ns()));
    if (n < 0)
        return errno == EINTR ? dlx__fail(DLX_E_INTERRUPTED, "interrupted by a signal")
                              : dlx__fail_errno("poll");
    if (n == 0 && dlx__now_ns() >= deadline)
        return DLX_E_TIMEOUT;
    return 0;
}

/* ---- subscribe ----------------------------------------------------------------------------- */

static int check_args(const char *topic, struct dlx_subscribe_args *args)
{
    int r = dlx__topic_check(topic);
    if (r < 0)
        return r;
    if (args->max_held == 0)
        args->max_held = DEFAULT_HELD;
    if (args->max_held > DLX_SHM_HELD_MAX)
        return dlx__fail(DLX_E_INVALID, "subscription to %s: max_held %u, at most %u is possible",
                         topic, args->max_held, DLX_SHM_HELD_MAX);
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
static int attach_all(struct dlx_subscription *s, uint32_t n_offers)
{
    uint64_t deadline = dlx__deadline(s->client->timeout_ns);
    for (;;) {
        read_news(s);
        if (s->failure < 0)
            return dlx__fail(s->failure, "%s", s->failure_text);
        if (s->n_settled >= n_offers)
            return 0;
        if (s->sock < 0)
            return dlx__fail(DLX_E_DISCONNECTED, "dlpackd closed the subscription");
        int r = wait_news(s, deadline);
        if (r == DLX_E_TIMEOUT)
            return dlx__fail(r, "%u of %u publishers attached in time", s->n_settled, n_offers);
        if (r < 0 && r != DLX_E_INTERRUPTED)
            return r;
    }
}

static void subscription_free(struct dlx_subscription *s)
{
    while (s->n_inlets > 0)
        detach(s, s->n_inlets - 1);
    free(s->inlets);
    if (s->sock >= 0)
        shutdown(s->sock, SHUT_RDWR); /* a forked child may have inherited it */
    dlx__close(s->sock);
    dlx__close(s->epoll);
    dlx_client_unref(s->client);
    free(s);
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
    s->client = dlx__client_ref(c);
    s->generation = c->generation;
    s->args = args;
    s->spin_ns = args.spin_ns == 0 ? DEFAULT_SPIN_NS : args.spin_ns > 0 ? (uint64_t)args.spin_ns : 0;
    s->sock = -1;
    memcpy(s->topic, topic, strlen(topic) + 1);
    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    r = s->epoll < 0 ? dlx__fail_errno("epoll_create1")
                     : dlx__call_subscribe(c, topic, &args, &made);
    if (r == 0) {
        s->id = made.id;
        s->sock = made.sock;
        r = epoll_add(s, s->sock, NULL);
    }
    if (r == 0)
        r = attach_all(s, made.n_offers);
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
    s->fd_given = true;
    return s->epoll;
}

/* ---- take ---------------------------------------------------------------------------------- */

/* Something that is not a message: a failed link, the end of the last publisher. */
static int check_ends(struct dlx_subscription *s)
{
    if (dlx_unlikely(s->failure < 0)) {
        int code = s->failure;
        s->failure = 0;
        return dlx__fail(code, "topic %s: %s", s->topic, s->failure_text);
    }
    if (dlx_unlikely(s->n_inlets == 0)) {
        if (s->was_attached) {
            s->was_attached = false;
            return dlx__fail(DLX_E_PUBLISHER_GONE, "topic %s: the last publisher left, and "
                                                   "everything it published was taken",
                             s->topic);
        }
        if (s->sock < 0)
            return dlx__fail(DLX_E_DISCONNECTED,
                             "topic %s: no publisher is attached and dlpackd is gone", s->topic);
    }
    return DLX_E_EMPTY;
}

/* One look at every link. EMPTY: nothing anywhere. */
static int try_take(struct dlx_subscription *s, struct dlx_message **ret)
{
    for (uint32_t k = 0; k < s->n_inlets; k++) {
        uint32_t i = s->next < s->n_inlets ? s->next : 0;
        struct dlx_inlet *inlet = s->inlets[i];
        s->next = i + 1;
        if (inlet->state != DLX_INLET_OPEN)
            continue;
        int r = dlx__inlet_take(inlet, ret);
        if (dlx_likely(r == 0))
            return 0;
        switch (r) {
        case DLX_E_EMPTY:
            if (!inlet->gone)
                break;
            detach(s, i);
            k = UINT32_MAX; /* the table changed: begin again */
            break;
        case DLX_E_PUBLISHER_GONE:
            detach(s, i);
            k = UINT32_MAX;
            break;
        case DLX_E_NOT_FOUND: /* held; its arena is on its way */
            read_news(s);
            r = s->n_inlets > i && s->inlets[i] == inlet ? dlx__inlet_take(inlet, ret) : r;
            if (r == 0)
                return 0;
            if (r == DLX_E_NOT_FOUND && (s->sock < 0 || inlet->gone) &&
                s->n_inlets > i && s->inlets[i] == inlet) {
                /* Nobody will bring it any more. */
                s->stats.rejected++;
                r = dlx__fail(DLX_E_BAD_PEER, "topic %s, pid %u: its memory was never announced",
                              s->topic, inlet->pid);
                detach(s, i);
                return r;
            }
            break;
        case DLX_E_BAD_PEER:
            s->stats.rejected++;
            dlx__fail_prefix(r, "topic %s, publisher %" PRIu64 " (pid %u)", s->topic,
                             inlet->publisher, inlet->pid);
            detach(s, i);
            return r;
        case DLX_E_TOO_MANY_HELD:
            return dlx__fail_prefix(r, "topic %s", s->topic);
        default:
            return r;
        }
    }
    return DLX_E_EMPTY;
}

static bool pending(struct dlx_subscription *s)
{
    for (uint32_t i = 0; i < s->n_inlets; i++) {
        struct dlx_inlet *inlet = s->inlets[i];
        if (inlet->state == DLX_INLET_OPEN && (inlet->stuck || dlx__take_pending(&inlet->core)))
            return true;
    }
    return false;
}

/* Busy-wait until something is pending. Returns false when `until` has passed. */
static bool spin(struct dlx_subscription *s, uint64_t until)
{
    for (;;) {
        for (int i = 0; i < 64; i++) {
            if (pending(s))
                return true;
            dlx__cpu_relax();
        }
        uint64_t now = dlx__now_ns();
        if (now >= until)
            return false;
        if (now - s->last_news_ns > NEWS_EVERY_NS) {
            uint32_t n_inlets = s->n_inlets;
            read_news(s);
            for (uint32_t i = 0; i < s->n_inlets; i++)
                if (s->inlets[i]->gone)
                    return true;
            if (s->n_inlets != n_inlets || s->failure < 0 || s->sock < 0)
                return true;
        }
    }
}

/* Ask every publisher for a bell. Returns false if something is there already. */
static bool arm(struct dlx_subscription *s)
{
    bool nothing = true;
    for (uint32_t i = 0; i < s->n_inlets; i++)
        if (s->inlets[i]->state == DLX_INLET_OPEN)
            nothing &= dlx__take_arm(&s->inlets[i]->core);
    return nothing;
}

static void on_bell(struct dlx_subscription *s, struct dlx_inlet *inlet)
{
    char bytes[64];
    ssize_t n = recv(inlet->bell, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
        /* The publisher is gone: it will not ring again. Drain what it published. */
        (void)epoll_ctl(s->epoll, EPOLL_CTL_DEL, inlet->bell, NULL);
        inlet->gone = true;
    }
}

static int handle_events(struct dlx_subscription *s, int timeout_ms)
{
    struct epoll_event events[16];
    bool news = false;
    int n = epoll_wait(s->epoll, events, (int)DLX_ARRAY_SIZE(events), timeout_ms);
    if (n < 0)
        return errno == EINTR ? dlx__fail(DLX_E_INTERRUPTED, "interrupted by a signal")
                              : dlx__fail_errno("epoll_wait");
    for (int i = 0; i < n; i++) {
        if (events[i].data.ptr)
            on_bell(s, events[i].data.ptr);
        else
            news = true;
    }
    if (news) /* last: it may free links that the events name */
        read_news(s);
    return 0;
}

/* Nothing is there and the caller does not wait. */
static int dont_wait(struct dlx_subscription *s, struct dlx_message **ret)
{
    if (!s->fd_given) {
        if (dlx__now_ns() - s->last_news_ns > NEWS_EVERY_NS)
            read_news(s);
        int r = try_take(s, ret);
        return r == DLX_E_EMPTY ? check_ends(s) : r;
    }
    /* What made the fd readable is read here, before the caller polls it again. */
    for (;;) {
        int r = handle_events(s, 0);
        if (r < 0 && r != DLX_E_INTERRUPTED)
            return r;
        bool nothing = arm(s);
        r = try_take(s, ret);
        if (r == DLX_E_EMPTY)
            r = check_ends(s);
        if (r != DLX_E_EMPTY || nothing)
            return r;
    }
}

static int sleep_until(struct dlx_subscription *s, uint64_t deadline, struct dlx_message **ret)
{
    for (;;) {
        if (arm(s)) {
            s->stats.sleeps++;
            int r = handle_events(s, dlx__deadline_ms(deadline, dlx__now_ns()));
            if (r < 0)
                return r;
        }
        int r = try_take(s, ret);
        if (r == DLX_E_EMPTY)
            r = check_ends(s);
        if (r != DLX_E_EMPTY)
            return r;
        if (dlx__now_ns() >= deadline)
            return dlx__fail(DLX_E_TIMEOUT, "topic %s: no message in time", s->topic);
    }
}

static int wait_take(struct dlx_subscription *s, int64_t timeout_ns, struct dlx_message **ret)
{
    uint64_t deadline = dlx__deadline(timeout_ns);
    if (s->args.spin_ns == DLX_SPIN_ALWAYS) {
        for (;;) {
            bool more = spin(s, deadline);
            int r = try_take(s, ret);
            if (r == DLX_E_EMPTY)
                r = check_ends(s);
            if (r != DLX_E_EMPTY)
                return r;
            if (!more)
                return dlx__fail(DLX_E_TIMEOUT, "topic %s: no message in time", s->topic);
        }
    }
    if (s->spin_ns > 0) {
        uint64_t until = DLX_MIN(deadline, dlx__now_ns() + s->spin_ns);
        uint64_t most = s->args.spin_ns > 0 ? (uint64_t)s->args.spin_ns : DEFAULT_SPIN_NS;
        /* Spinning that pays is done longer; spinning that does not, shorter. */
        bool paid = spin(s, until);
        s->spin_ns = paid ? DLX_MIN(s->spin_ns * 2, most) : DLX_MAX(s->spin_ns / 2, SPIN_MIN_NS);
        int r = paid ? try_take(s, ret) : DLX_E_EMPTY;
        if (r == DLX_E_EMPTY && paid)
            r = check_ends(s);
        if (r != DLX_E_EMPTY)
            return r;
    }
    return sleep_until(s, deadline, ret);
}

int dlx_take(struct dlx_subscription *s, int64_t timeout_ns, struct dlx_message **ret)
{
    dlx__error_clear();
    if (dlx_unlikely(!s || !ret))
        return dlx__fail(DLX_E_INVALID, "dlx_take: subscription or ret is NULL");
    if (dlx_unlikely(dlx__forked(s->generation)))
        return dlx__fail_forked();
    if (dlx_unlikely(++s->takes % NEWS_EVERY_TAKES == 0))
        read_news(s); /* a caller that always finds messages still hears of new publishers */
    int r = try_take(s, ret);
    if (dlx_likely(r != DLX_E_EMPTY))
        return r;
    r = check_ends(s);
    if (r != DLX_E_EMPTY)
        return r;
    return timeout_ns == 0 ? dont_wait(s, ret) : wait_take(s, timeout_ns, ret);
}

int dlx_subscription_stats(struct dlx_subscription *s, struct dlx_subscription_stats *stats)
{
    dlx__error_clear();
    if (!s || !stats)
        return dlx__fail(DLX_E_INVALID, "dlx_subscription_stats: subscription or stats is NULL");
    if (dlx__forked(s->generation))
        return dlx__fail_forked();
    struct dlx_subscription_stats sum = s->stats;
    sum.n_held = 0;
    sum.n_publishers = s->n_open;
    for (uint32_t i = 0; i < s->n_inlets; i++) {
        struct dlx_inlet *inlet = s->inlets[i];
        if (inlet->state != DLX_INLET_OPEN)
            continue;
        sum.taken += inlet->core.taken;
        sum.taken_bytes += inlet->taken_bytes;
        sum.skipped += inlet->core.skipped;
        sum.lost += inlet->core.lost;
        sum.n_held += dlx__take_n_held(&inlet->core);
    }
    return dlx__args_return(stats, sizeof *stats, &sum, sizeof sum);
}
