/* SPDX-License-Identifier: Apache-2.0 */

/* dlx_take(): look, spin, sleep. */

#include "client/subscription.h"
#include <inttypes.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define SPIN_MIN_NS UINT64_C(500)
/*
 * In a fast stream each look at head takes its line away from the publisher, just as that writes there. Who is not in a hurry
 * for 2 us finds several messages at once, and both sides are faster.
 */
#define FAST_NS          500U /* a message */
#define GATHER_NS        2000
#define GATHER_LEAST     4U /* messages, or it was not worth the wait: */
#define GATHER_TRIES     8U /* so often in a row, and it ends */
#define GATHER_SHIFT_MAX 10U
/* How often a caller that never waits looks for news. */
#define NEWS_EVERY_TAKES 1024U
#define NEWS_EVERY_NS    UINT64_C(1000000)
/* How often a caller that never waits looks again because something came meanwhile. */
#define ROUNDS_MAX 16

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
            return dlx__fail(DLX_E_PUBLISHER_GONE,
                             "topic %s: the last publisher left, and "
                             "everything it published was taken",
                             s->topic);
        }
        if (s->sock < 0 && !s->told_lost) {
            s->told_lost = true;
            return dlx__fail(DLX_E_DISCONNECTED,
                             "topic %s: no publisher is attached and dlpackd is gone", s->topic);
        }
    }
    return DLX_E_EMPTY;
}

/* No news will come about this link: its daemon has ended. */
static bool is_cut_off(const struct dlx_subscription *s, const struct dlx_inlet *inlet)
{
    return s->sock < 0 || inlet->foreign;
}

/* What it needs is not here. */
static int wait_for_news(struct dlx_subscription *s, struct dlx_inlet *inlet)
{
    bool no_more = inlet->told || is_cut_off(s, inlet);
    if (!inlet
             ->has_pending) /* the publisher has moved: here it ends, or its next block is on its way */
        return dlx__subscription_successor(s, inlet) || (inlet->gone && no_more)
                   ? DLX_E_PUBLISHER_GONE
                   : DLX_E_EMPTY;
    if (is_cut_off(s, inlet) || !inlet->told)
        return DLX_E_EMPTY; /* on its way, also if its publisher hung up: the message is held until then */
    return dlx__fail(DLX_E_BAD_PEER,
                     "its memory was never announced"); /* and will not be any more */
}

/* The arena of its message was never told us, and will not be. */
static bool lose_pending(const struct dlx_subscription *s, struct dlx_inlet *inlet)
{
    if (!inlet->has_pending || !is_cut_off(s, inlet))
        return false;
    dlx__inlet_lose(inlet);
    return true;
}

/* Take from link `i`, reading news if its message lies in an arena that is not here yet. EMPTY also if the
 * link has gone meanwhile. */
static int take_from(struct dlx_subscription *s, uint32_t i, struct dlx_message **ret)
{
    struct dlx_inlet *inlet = s->inlets[i];
    int r = dlx__inlet_take(inlet, ret);
    if (dlx_likely(r != DLX_E_NOT_FOUND))
        return r;
    uint32_t n_detached = s->n_detached;
    dlx__subscription_read_news(s);
    /* Pointers would not tell: a new link may lie where this one was. */
    if (s->n_detached != n_detached)
        return DLX_E_EMPTY;
    r = dlx__inlet_take(inlet, ret);
    /* What is behind it may be here, and a publisher that has gone is not asked again. It cannot have more than slots. */
    for (uint32_t n = 0; r == DLX_E_NOT_FOUND && n < DLX_SHM_SLOTS_MAX && lose_pending(s, inlet);
         n++)
        r = dlx__inlet_take(inlet, ret);
    return r == DLX_E_NOT_FOUND ? wait_for_news(s, inlet) : r;
}

/* One look at every link. EMPTY: nothing anywhere. */
static int try_take(struct dlx_subscription *s, struct dlx_message **ret)
{
    for (uint32_t k = 0; k < s->n_inlets; k++) {
        uint32_t i = s->next < s->n_inlets ? s->next : 0;
        struct dlx_inlet *inlet = s->inlets[i];
        s->next = i + 1;
        if (inlet->state != DLX_INLET_OPEN || inlet->after)
            continue;
        uint32_t n_detached = s->n_detached;
        int r = take_from(s, i, ret);
        if (dlx_likely(r == 0))
            return 0;
        switch (r) {
        case DLX_E_EMPTY:
            if (s->n_detached != n_detached) {
                k = UINT32_MAX; /* the table changed: begin again */
                break;
            }
            if (!inlet->gone || (inlet->stuck && !inlet->told && !is_cut_off(s, inlet)))
                break;
            dlx__subscription_detach(s, i);
            k = UINT32_MAX;
            break;
        case DLX_E_PUBLISHER_GONE:
            dlx__subscription_detach(s, i);
            k = UINT32_MAX;
            break;
        case DLX_E_BAD_PEER:
            s->stats.rejected++;
            dlx__fail_prefix(r, "topic %s, publisher %" PRIu64 " (pid %u)", s->topic,
                             inlet->publisher, inlet->pid);
            dlx__subscription_detach(s, i);
            return r;
        case DLX_E_TOO_MANY_HELD:
            return dlx__fail_prefix(r, "topic %s", s->topic);
        default:
            return r;
        }
    }
    return DLX_E_EMPTY;
}

/* A link that is stuck waits for news, not for its publisher: whatever else that published is no reason to look
 * again. */
static bool listens(const struct dlx_inlet *inlet)
{
    return inlet->state == DLX_INLET_OPEN && !inlet->stuck && !inlet->after;
}

static bool pending(struct dlx_subscription *s)
{
    for (uint32_t i = 0; i < s->n_inlets; i++) {
        struct dlx_inlet *inlet = s->inlets[i];
        if (listens(inlet) && dlx__take_pending(&inlet->core))
            return true;
    }
    return false;
}

static void on_bell(struct dlx_subscription *s, struct dlx_inlet *inlet)
{
    uint8_t bytes[64];
    ssize_t n = recv(inlet->bell, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n > 0) {
        inlet->end = dlx__bell_hear(inlet->end, bytes, (size_t)n);
        inlet->holder = dlx__bell_holder(inlet->holder, bytes, (size_t)n);
    } else if (n == 0 || (n < 0 && errno == ECONNRESET)) {
        /* The publisher is gone: it will not ring again. Drain what it published. Or it never knew of us: then it is
         * the daemon that has ended, or will tell why. */
        (void)epoll_ctl(s->epoll, EPOLL_CTL_DEL, inlet->bell, NULL);
        inlet->gone = inlet->gone || inlet->holder != DLX_BELL_DAEMON;
        if (inlet->end > 0)
            inlet->ended_at = DLX_MAX(inlet->ended_at, inlet->end - 1);
    }
}

static void on_timer(struct dlx_subscription *s)
{
    uint64_t n;
    (void)!read(s->timer, &n, sizeof n);
    dlx__subscription_read_news(s);
}

static int handle_events(struct dlx_subscription *s, int timeout_ms)
{
    struct epoll_event events[16];
    bool news = false, timer = false;
    int n = epoll_wait(s->epoll, events, (int)DLX_ARRAY_SIZE(events), timeout_ms);
    if (n < 0)
        return errno == EINTR ? dlx__fail(DLX_E_INTERRUPTED, "interrupted by a signal")
                              : dlx__fail_errno("epoll_wait");
    for (int i = 0; i < n; i++) {
        if (!events[i].data.ptr)
            news = true;
        else if (events[i].data.ptr == &s->timer)
            timer = true;
        else if (events[i].data.ptr == &s->nudge)
            s->nudge = dlx__close(s->nudge); /* leaves the epoll by that */
        else
            on_bell(s, events[i].data.ptr);
    }
    /* Last: it may free links that the events name. */
    if (timer)
        on_timer(s);
    if (news)
        dlx__subscription_read_news(s);
    return 0;
}

/* For who never sleeps. Of a link whose daemon has ended nobody brings news: its bell tells that the publisher has gone. */
static void look_without_sleeping(struct dlx_subscription *s)
{
    bool cut_off = false;
    s->last_look_ns = dlx__now_ns(); /* news are read by takes, too: that is no look at the bells */
    dlx__subscription_read_news(s);
    for (uint32_t i = 0; i < s->n_inlets; i++)
        cut_off |= !s->inlets[i]->gone && is_cut_off(s, s->inlets[i]);
    if (cut_off)
        (void)handle_events(s, 0);
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
        if (now - s->last_look_ns > NEWS_EVERY_NS) {
            uint32_t n_inlets = s->n_inlets;
            look_without_sleeping(s);
            for (uint32_t i = 0; i < s->n_inlets; i++)
                if (s->inlets[i]->gone || s->inlets[i]->stuck)
                    return true;
            if (s->n_inlets != n_inlets || s->failure < 0 || (s->sock < 0 && !s->told_lost))
                return true;
        }
    }
}

/* Ask every publisher for a bell. Returns false if something is there already. */
static bool arm(struct dlx_subscription *s)
{
    bool nothing = true;
    for (uint32_t i = 0; i < s->n_inlets; i++)
        if (listens(s->inlets[i]))
            nothing &= dlx__take_arm(&s->inlets[i]->core);
    return nothing;
}

/* Nothing is there and the caller does not wait. */
static int dont_wait(struct dlx_subscription *s, struct dlx_message **ret)
{
    if (!s->fd_given) {
        if (dlx__now_ns() - s->last_look_ns > NEWS_EVERY_NS)
            look_without_sleeping(s);
        int r = try_take(s, ret);
        return r == DLX_E_EMPTY ? check_ends(s) : r;
    }
    /* What made the fd readable is read here, before the caller polls it again. Again if something came
     * meanwhile, but a publisher that always says so does not keep us here: it was asked to ring. */
    for (int round = 1;; round++) {
        int r = handle_events(s, 0);
        if (r < 0 && r != DLX_E_INTERRUPTED)
            return r;
        uint32_t n_changes = s->n_changes;
        bool nothing = arm(s);
        r = try_take(s, ret);
        if (r == DLX_E_EMPTY)
            r = check_ends(s);
        if (r != DLX_E_EMPTY)
            return r;
        if (s->n_changes != n_changes)
            round = 0; /* a link has begun, or has got its turn, that was not asked to ring */
        else if (nothing || round == ROUNDS_MAX)
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
        uint64_t most = s->args.spin_ns > 0 ? (uint64_t)s->args.spin_ns : DLX_SPIN_DEFAULT_NS;
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

/* Were the takes since the last time so fast that gathering may be worth it? */
static void note_pace(struct dlx_subscription *s)
{
    uint64_t now = dlx__now_ns();
    bool fast =
        s->news_step == NEWS_EVERY_TAKES && now - s->pace_ns < (uint64_t)FAST_NS * NEWS_EVERY_TAKES;
    s->pace_ns = now;
    bool may = s->args.mode == DLX_MODE_ALL && s->args.spin_ns != DLX_SPIN_NEVER;
    s->n_fast = fast && may ? s->n_fast + 1 : 0;
    if (s->gathers || s->n_fast >> s->gather_shift == 0)
        return;
    s->gathers = true;
    s->gathered_at = s->takes; /* that one counts as poor */
}

/* In a fast stream, and no message is known to be there: let several come. */
static void gather(struct dlx_subscription *s)
{
    for (uint32_t i = 0; i < s->n_inlets; i++)
        if (dlx__take_knows(&s->inlets[i]->core))
            return;
    s->n_poor = s->takes - s->gathered_at < GATHER_LEAST ? s->n_poor + 1 : 0;
    if (s->n_poor == GATHER_TRIES) {
        s->gathers = false;
        s->n_fast = s->n_poor = 0;
        s->gather_shift = DLX_MIN(s->gather_shift + 1, GATHER_SHIFT_MAX);
        return;
    }
    s->gathered_at = s->takes;
    s->stats.gathers++;
    if (s->n_poor == 0)
        s->gather_shift = 0;
    uint64_t until = dlx__now_ns() + GATHER_NS;
    do
        for (int i = 0; i < 8; i++)
            dlx__cpu_relax();
    while (dlx__now_ns() < until);
}

/* A caller that always finds messages still hears of new publishers; and soon after a link was made, of its arenas, of
 * which only so many are sent before the first are acknowledged. */
static void look_for_news(struct dlx_subscription *s)
{
    note_pace(s);
    s->news_step = DLX_MIN(s->news_step * 2, NEWS_EVERY_TAKES);
    s->news_at = s->takes + s->news_step;
    dlx__subscription_read_news(s);
}

int dlx_take(struct dlx_subscription *s, int64_t timeout_ns, struct dlx_message **ret)
{
    dlx__error_clear();
    if (dlx_unlikely(!s || !ret))
        return dlx__fail(DLX_E_INVALID, "dlx_take: subscription or ret is NULL");
    if (dlx_unlikely(dlx__forked(s->generation)))
        return dlx__fail_forked();
    if (dlx_unlikely(++s->takes == s->news_at))
        look_for_news(s);
    if (dlx_unlikely(s->gathers) && (timeout_ns < 0 || timeout_ns >= GATHER_NS))
        gather(s);
    int r = try_take(s, ret);
    if (dlx_likely(r != DLX_E_EMPTY))
        return r;
    r = check_ends(s);
    if (r != DLX_E_EMPTY)
        return r;
    return timeout_ns == 0 ? dont_wait(s, ret) : wait_take(s, timeout_ns, ret);
}
