/* SPDX-License-Identifier: Apache-2.0 */

/* dlx_take() and dlx_take_n(): look, spin, sleep. */

#include "client/control/call.h"
#include "client/control/connection.h"
#include "client/gpu/gpu.h"
#include "client/message/message.h"
#include "client/subscribe/sleep.h"
#include "client/subscribe/subscription.h"
#include "common/topic.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#define SPIN_MIN_NS UINT64_C(500)
/* How often a caller that never waits looks for notifications, beside DLX_NOTIFICATION_EVERY_NS. */
#define NEWS_EVERY_TAKES 1024U
/* How often a caller that never waits looks again because something came meanwhile. */
#define ROUNDS_MAX 16

/* ---- the newest of all publishers ------------------------------------------------------------ */

/* Mode LATEST with several publishers of a topic: only the newest message of all of them counts. */

/* Times of messages are taken by the processor's counter: so far they may be ahead. */
#define AHEAD_NS UINT64_C(1000000)

/* Is there a newer message of this topic, by another publisher? One that claims to be from the
 * future hides no other message. */
static bool is_newer_elsewhere(const struct dlx_subscription *s,
                               const struct dlx_subscriber_link *link, uint64_t ns)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < s->n_active; i++) {
        const struct dlx_subscriber_link *other = s->active[i];
        if (other == link || strcmp(other->topic, link->topic) != 0)
            continue;
        uint64_t others = dlx__subscriber_link_newest_ns(other);
        if (others <= ns)
            continue;
        most = most ? most : dlx__now_ns() + AHEAD_NS;
        if (others <= most)
            return true;
    }
    return false;
}

static bool is_newest(struct dlx_subscription *s, struct dlx_subscriber_link *link)
{
    if (s->n_active == 1 && !s->looks.is_owed && !dlx__subscription_joins(s))
        return true;
    uint64_t ns = dlx__subscriber_link_newest_ns(link);
    if (ns == 0)
        return true;
    bool has_ended = link->state != DLX_LINK_LIVE || dlx__reader_is_closed(&link->core);
    bool waits = has_ended && dlx__subscription_may_get_newer(s);
    link->wants = waits ? DLX_WANTS_NEWS : DLX_WANTS_NOTHING;
    return !waits && !is_newer_elsewhere(s, link, ns);
}

static void pass_older(struct dlx_subscription *s, const struct dlx_subscriber_link *link,
                       uint64_t ns)
{
    for (uint32_t i = 0; i < s->n_active; i++) {
        struct dlx_subscriber_link *other = s->active[i];
        if (other == link || strcmp(other->topic, link->topic) != 0)
            continue;
        uint64_t others = dlx__subscriber_link_newest_ns(other);
        if (others > 0 && others < ns)
            dlx__subscriber_link_pass(other);
    }
}

/* ---- the oldest of all publishers ------------------------------------------------------------ */

/*
 * A worker begins messages in the order of their publication, also those of several publishers: a
 * message that says that no more will come must not overtake what others have published before it.
 *
 * The *head* of a link is the message that the next take of it would claim. A look at all links
 * lists their heads by age. A take claims the oldest head; then the next message of that link is
 * listed, if it was published before the look. When the list is empty, the next take looks again,
 * and so it does when a link ended, or others may have left messages. So a take of a busy queue
 * looks at one link, however many publishers there are.
 */

/* 0: the link has none. */
static uint64_t head_ns(const struct dlx_subscriber_link *link)
{
    if (link->n_pending > 0)
        return link->pending[link->first_pending].words[0];
    dlx__worker_link_look(link->claims);
    return dlx__claims_oldest_ns(&link->claims->core);
}

static int younger_first(const void *a, const void *b)
{
    const struct dlx_head *x = a, *y = b;
    return x->ns < y->ns ? 1 : -(x->ns > y->ns);
}

/* Stamps may be ahead of this clock, by AHEAD_NS. A stamp that claims more is listed and changes
 * nothing else: what comes after the look would be listed until that time, and links without a head
 * would wait as long. */
static void list_heads(struct dlx_subscription *s)
{
    struct dlx_heads *heads = &s->heads;
    uint64_t now = dlx__clock_now(&s->worker->clock);
    heads->until_ns = now;
    for (uint32_t i = 0; i < s->n_active; i++) {
        struct dlx_subscriber_link *link = s->active[i];
        uint64_t ns = head_ns(link);
        link->claims->n_turns = 0;
        if (ns == 0 && link->state == DLX_LINK_LIVE)
            continue;
        heads->until_ns = DLX_MIN(DLX_MAX(heads->until_ns, ns), now + AHEAD_NS);
        heads->list[heads->n++] = (struct dlx_head){.ns = ns, .link = link, .at = i};
    }
    qsort(heads->list, heads->n, sizeof *heads->list, younger_first);
}

/* Lists the head of an active link, if it is one of those that the last look was for. A publisher
 * may claim to be from the past; an honest one had no more messages than a ring full. */
static void list_head(struct dlx_heads *heads, struct dlx_subscriber_link *link, uint32_t at,
                      uint64_t ns)
{
    if (ns == 0 || ns > heads->until_ns || ++link->claims->n_turns > DLX_SHM_ENTRIES_MAX)
        return;
    uint32_t i = heads->n++;
    for (; i > 0 && heads->list[i - 1].ns < ns; i--)
        heads->list[i] = heads->list[i - 1];
    heads->list[i] = (struct dlx_head){.ns = ns, .link = link, .at = at};
}

/* Gives the turn to the link with the oldest head, and leaves it as it is if no link has one.
 * `looks`: an empty list takes a look at all links, once. */
static void turn_to_oldest(struct dlx_subscription *s, bool looks)
{
    struct dlx_heads *heads = &s->heads;
    if (s->n_active < 2) {
        heads->n = 0;
        return;
    }
    while (heads->n > 0 || looks) {
        if (heads->n == 0) {
            list_heads(s);
            looks = false;
            continue;
        }
        const struct dlx_head oldest = heads->list[--heads->n];
        if (oldest.at >= s->n_active || s->active[oldest.at] != oldest.link)
            continue; /* links came or went */
        struct dlx_subscriber_link *link = s->active[oldest.at];
        uint64_t ns = oldest.ns > 0 ? head_ns(link) : 0;
        if (ns == oldest.ns) {
            s->next = oldest.at;
            return;
        }
        list_head(heads, link, oldest.at, ns); /* another worker has what was listed */
    }
}

/* ---- what ends a take ------------------------------------------------------------------------ */

/* Something that is not a message: a failed link, the end of the last publisher. */
static int check_ends(struct dlx_subscription *s)
{
    if (dlx_unlikely(s->untold.failure < 0)) {
        int code = s->untold.failure;
        if (code != DLX_E_KICKED) /* that is for good */
            s->untold.failure = 0;
        return dlx__fail(code, "topic %s: %s", s->topic, s->untold.failure_text);
    }
    if (dlx_unlikely(s->tells_events && s->events.n > 0))
        return dlx__fail(DLX_E_PUBLISHER_GONE, "topic %s: a publisher came or went", s->topic);
    if (dlx_unlikely(s->n_links == s->n_spares)) {
        if (s->untold.was_attached && s->untold.n_left >= s->args.n_publishers) {
            s->untold.was_attached = false;
            s->untold.n_left = 0;
            if (*s->untold.refusal)
                return dlx__fail(DLX_E_PUBLISHER_GONE, "topic %s: no publisher is left: %s",
                                 s->topic, s->untold.refusal);
            return dlx__fail(DLX_E_PUBLISHER_GONE,
                             "topic %s: the last publisher left, and "
                             "everything it published was taken",
                             s->topic);
        }
        if (s->sock < 0 && !s->untold.told_lost) {
            s->untold.told_lost = true;
            return dlx__fail(DLX_E_DISCONNECTED,
                             "topic %s: no publisher is attached and dlpackd is gone", s->topic);
        }
    }
    return DLX_E_EMPTY;
}

/* What the link needs is not here. */
static int wait_for_news(struct dlx_subscription *s, struct dlx_subscriber_link *link)
{
    /* The publisher went on with another daemon: so do we, when its link comes. */
    if (link->n_pending == 0)
        return dlx__subscription_successor(s, link) ||
                       (link->state != DLX_LINK_LIVE && !dlx__subscription_expects_news(s, link))
                   ? DLX_E_PUBLISHER_GONE
                   : DLX_E_EMPTY;
    if (dlx__subscription_is_cut_off(s, link) || link->state != DLX_LINK_OVER)
        return DLX_E_EMPTY; /* on its way, also if its publisher hung up: the message is held until
                               then */
    return dlx__fail(DLX_E_BAD_PEER,
                     "its memory was never announced"); /* and will not be any more */
}

/* Of mode latest: what the link goes on with has something newer already. */
static bool is_outdated(const struct dlx_subscription *s, const struct dlx_subscriber_link *link)
{
    const struct dlx_subscriber_link *next = dlx__subscription_successor(s, link);
    return s->args.mode == DLX_MODE_LATEST && next && dlx__subscriber_link_is_open(next) &&
           dlx__reader_is_past(&next->core, &link->core);
}

/* What the link cannot read may be here after further notifications, or come by the link that it
 * goes on with. */
static bool may_link_come(const struct dlx_subscription *s, const struct dlx_subscriber_link *link)
{
    const struct dlx_subscriber_link *next = dlx__subscription_successor(s, link);
    if (next)
        return dlx__reader_begins_by(&next->core, &link->core);
    return link->state == DLX_LINK_LIVE || dlx__subscription_expects_news(s, link);
}

/* The link's message lies in an arena that is not here yet, or its publisher went on with another
 * daemon: read notifications. EMPTY also if the link has gone meanwhile. */
static int __attribute__((noinline))
read_news_for(struct dlx_subscription *s, struct dlx_subscriber_link *link, uint32_t n,
              struct dlx_message **ret)
{
    uint32_t n_changes = s->n_changes;
    dlx__subscription_read_notifications(s);
    if (s->n_changes != n_changes)
        return DLX_E_EMPTY; /* the link may have gone: the caller begins again */
    int r = dlx__subscriber_link_take(link, n, ret);
    enum dlx_subscriber_link_wants wants =
        may_link_come(s, link) ? DLX_WANTS_NOTHING : DLX_WANTS_LAST_LOOK;
    if (r == DLX_E_NOT_FOUND && link->n_pending == 0 && wants == DLX_WANTS_LAST_LOOK) {
        link->wants = wants;
        r = dlx__subscriber_link_take(link, n, ret);
    }
    if (dlx_unlikely(s->worker) && r == DLX_E_NOT_FOUND && link->n_pending > 0 &&
        dlx__subscription_is_cut_off(s, link)) { /* to claim it again is one attempt less */
        dlx__subscription_leave_unread(s, link);
        return DLX_E_EMPTY;
    }
    /* An arena that was never announced, and will not be any more. What is behind its message may
     * be here, and a publisher that has gone is not asked again. */
    for (uint32_t k = 0; r == DLX_E_NOT_FOUND && link->n_pending > 0 &&
                         dlx__subscription_is_cut_off(s, link) && k < DLX_SHM_ENTRIES_MAX;
         k++) {
        dlx__subscriber_link_lose_first(link);
        link->wants = wants;
        r = dlx__subscriber_link_take(link, n, ret);
    }
    return r == DLX_E_NOT_FOUND ? wait_for_news(s, link) : r;
}

/* ---- links that are looked at: client/subscribe/sleep.h -------------------------------------- */

/* Of more active links than these, those that had nothing for so many takes are parked. */
#define ACTIVE_FEW 8U
#define IDLE_TAKES 16U
/* When no other active link had anything, the others are looked at again after so many takes. */
#define ALONE_TAKES 64U
/* A caller that always finds messages looks for the bells of parked links once in so many takes,
 * and when so much time has passed by the stamps of the messages, which cost no look at the
 * clock. */
#define BELLS_EVERY    256U
#define BELLS_EVERY_NS UINT64_C(1000000)

/* ---- look ------------------------------------------------------------------------------------ */

/* Everything was taken. When it is the last publisher, another one may count on a spare link
 * already: of that the daemon tells before it tells of this one's end. */
static void end(struct dlx_subscription *s, struct dlx_subscriber_link *link)
{
    link->wants = DLX_WANTS_NEWS;
    if (s->n_spares == 0 || s->n_links - s->n_spares > 1 ||
        !dlx__subscription_expects_news(s, link))
        dlx__subscription_detach(s, link);
}

/* The publisher wrote what cannot be. */
static int reject(struct dlx_subscription *s, struct dlx_subscriber_link *link, int r)
{
    uint64_t publisher = link->publisher;
    uint32_t pid = link->pid;
    s->stats.rejected++;
    dlx__subscription_reject(s, link);
    return dlx__fail_prefix(r, "topic %s, publisher %" PRIu64 " (pid %u)", s->topic, publisher,
                            pid);
}

/* Has the worker claimed what it could not hand out yet? Then it comes first. */
static bool has_pending_claim(const struct dlx_subscription *s)
{
    for (uint32_t i = 0; s->worker && i < s->n_links; i++)
        if (s->links[i]->n_pending > 0)
            return true;
    return false;
}

/* A link had no message: why? Returns EMPTY, and the search goes on, or what dlx_take() returns. */
static int __attribute__((noinline))
have_nothing(struct dlx_subscription *s, struct dlx_subscriber_link *link, int r)
{
    switch (r) {
    case DLX_E_EMPTY:
        dlx__subscriber_link_look(link);
        if (dlx_unlikely(link->claims))
            return DLX_E_EMPTY; /* until everything is done */
        if (link->state != DLX_LINK_LIVE &&
            !(link->wants == DLX_WANTS_NEWS && dlx__subscription_expects_news(s, link)))
            end(s, link);
        else if (++link->n_idle > IDLE_TAKES && s->n_active > ACTIVE_FEW &&
                 dlx__subscriber_link_listens(link))
            (void)dlx__subscription_park(s, link);
        return DLX_E_EMPTY;
    case DLX_E_PUBLISHER_GONE:
        end(s, link);
        return DLX_E_EMPTY;
    case DLX_E_BAD_PEER:
        return reject(s, link, r);
    case DLX_E_FD_LIMIT:
    case DLX_E_LIMIT:
    case DLX_E_NO_MEMORY:
        return dlx__fail_prefix(r,
                                "topic %s, publisher %" PRIu64 " (pid %u): the next message stays",
                                s->topic, link->publisher, link->pid);
    case DLX_E_TOO_MANY_HELD:
        return has_pending_claim(s) ? DLX_E_EMPTY : dlx__fail_prefix(r, "topic %s", s->topic);
    default:
        return r;
    }
}

void dlx__subscription_leave_ended(struct dlx_subscription *s)
{
    for (uint32_t i = s->n_active; i-- > 0;) {
        struct dlx_subscriber_link *link = s->active[i];
        if (link->state == DLX_LINK_LIVE || link->n_pending > 0)
            continue;
        int r = dlx__subscriber_link_look_ahead(link);
        if (r == DLX_E_EMPTY || r == DLX_E_PUBLISHER_GONE)
            (void)have_nothing(s, link, r);
    }
    dlx__error_clear();
}

/* Has memory of GPUs that the message needs ended with its publisher? */
static bool ended_with_its_publisher(struct dlx_message *m)
{
    DLManagedTensorVersioned described;
    bool has_ended = false;
    if (dlx_likely(!m->gpu || m->link->state < DLX_LINK_DRAINING))
        return false;
    for (uint32_t i = 0; i < m->n_tensors && !has_ended; i++)
        has_ended = dlx_message_tensor_describe(m, i, &described) == DLX_E_PUBLISHER_GONE;
    return has_ended;
}

/* A dead letter is not handed out: it was given back too often, or nobody can read it. */
static bool bury_if_dead(struct dlx_subscription *s, struct dlx_message *m)
{
    bool is_worn = dlx_message_attempt(m) > s->worker->max_attempts;
    if (dlx_likely(!is_worn && !ended_with_its_publisher(m)))
        return false;
    char reason[DLX_EVENT_REASON_SIZE];
    const struct dlx_subscriber_link *link = m->link;
    if (is_worn)
        (void)snprintf(reason, sizeof reason, "message %" PRIu64 " was given back %u times%s%.60s",
                       m->seq, s->worker->max_attempts, s->worker->dead_letters ? "; " : "",
                       s->worker->dead_letters ? s->worker->copy_dead(s->worker, s->client, m)
                                               : "");
    else
        (void)snprintf(reason, sizeof reason,
                       "message %" PRIu64 ": its GPU memory ended with its publisher", m->seq);
    if (!dlx__worker_claim_done(link->claims, &m->claim, DLX_CLAIM_DEAD)) {
        s->worker->n_dead++;
        dlx__events_push(&s->events, DLX_EVENT_DEAD_LETTER, link->id, link->publisher, link->pid,
                         link->topic, reason);
    }
    dlx_message_unref(m);
    dlx__error_clear();
    return true;
}

/* A look ends after so many dead letters: a hostile worker makes them without end. */
#define BURIED_MAX DLX_SHM_DEPTH_MAX

/* Looks once at every active link. EMPTY: none has a message. */
static int try_take(struct dlx_subscription *s, uint32_t n, struct dlx_message **ret)
{
    const bool is_latest = s->args.mode == DLX_MODE_LATEST;
    uint32_t n_buried = 0;
    s->notifications.n_known = s->notifications.n_read;
    if (dlx_unlikely(s->worker))
        dlx__subscription_disarm(s);
    for (uint32_t k = 0; k < s->n_active; k++) {
        if (dlx_unlikely(s->worker))
            turn_to_oldest(s, k == 0);
        uint32_t i = s->next < s->n_active ? s->next : 0;
        struct dlx_subscriber_link *link = s->active[i];
        struct dlx_message *m; /* `ret` is the caller's: only what is handed out is stored there */
        s->next = i + 1 < s->n_active ? i + 1 : 0;
        if (dlx_unlikely(is_latest) && !is_newest(s, link))
            continue;
        int r = dlx_unlikely(dlx__subscriber_link_is_foreign(link) && is_outdated(s, link))
                    ? DLX_E_PUBLISHER_GONE
                    : dlx__subscriber_link_take(link, n, &m);
        uint32_t n_changes = s->n_changes;
        if (dlx_unlikely(r == DLX_E_NOT_FOUND))
            r = read_news_for(s, link, n, &m);
        if (dlx_unlikely(s->worker) && r == 0 && bury_if_dead(s, m)) {
            if (++n_buried >= BURIED_MAX)
                return DLX_E_EMPTY;
            s->next = i;
            k = UINT32_MAX; /* begin again */
            continue;
        }
        if (dlx_likely(r == 0)) {
            if (dlx_unlikely(is_latest))
                pass_older(s, link, m->monotonic_ns);
            if (dlx_unlikely(s->worker)) {
                s->worker->n_redelivered += dlx_message_attempt(m) > 1;
                dlx__subscription_pass_on(s, link);
            }
            link->n_idle = 0;
            s->n_alone = k + 1 >= s->n_active ? ALONE_TAKES : 0;
            if (link->n_pending > 0 || s->n_alone > 0)
                s->next = i; /* a batch is handed out before others have their turn */
            if (dlx_unlikely(s->worker) && s->n_active > 1)
                list_head(&s->heads, link, i, head_ns(link));
            *ret = m;
            return 0;
        }
        if (s->n_changes == n_changes)
            r = have_nothing(s, link, r);
        if (r != DLX_E_EMPTY && dlx_unlikely(s->worker)) /* it was rung in vain */
            dlx__subscription_pass_on(s, NULL);
        if (r != DLX_E_EMPTY)
            return r;
        if (s->n_changes != n_changes) {
            k = UINT32_MAX;            /* links came or went: begin again */
        } else if (!link->is_active) { /* another one has its place */
            s->next = i;
            k--;
        }
    }
    return DLX_E_EMPTY;
}

/* Takes a message, if the link whose turn it is has one and nothing is special. */
static inline __attribute__((always_inline)) bool take_next(struct dlx_subscription *s,
                                                            struct dlx_message **ret)
{
    struct dlx_taken_plain taken;
    if (dlx_unlikely(s->looks.takes >= s->looks.at || s->next >= s->n_active))
        return false;
    struct dlx_subscriber_link *link = s->active[s->next];
    struct dlx_message *m = link->messages[0];
    if (dlx_unlikely(link->n_pending > 0 || dlx__subscriber_link_is_foreign(link) || !m ||
                     !dlx__reader_take_plain(&link->core, &m->form, &taken)))
        return false;
    if (dlx_unlikely(dlx__message_build_again(link, taken.n, taken.arena, taken.offset, m) < 0)) {
        /* The message is held; the next take builds it, or says why it cannot be built. */
        struct dlx_taken *pending = &link->pending[0];
        *pending = (struct dlx_taken){.n = taken.n, .gap = taken.gap, .hold = 0};
        memcpy(&pending->words[2], m->form.words, sizeof m->form.words);
        pending->words[0] = taken.monotonic_ns;
        dlx__entry_set_place(pending->words, taken.arena, taken.offset);
        link->first_pending = 0;
        link->n_pending = 1;
        return false;
    }
    if (s->n_alone > 0)
        s->n_alone--;
    else
        s->next = s->next + 1 < s->n_active ? s->next + 1 : 0;
    link->n_idle = 0;
    if (dlx_unlikely(taken.monotonic_ns >= s->looks.stamp)) {
        s->looks.stamp = taken.monotonic_ns + BELLS_EVERY_NS;
        s->looks.at = s->looks.takes + 1;
    }
    dlx__message_hand_out(link, m, taken.n, taken.gap, taken.monotonic_ns);
    *ret = m;
    return true;
}

/* Nothing is there and the caller does not wait. */
static int dont_wait(struct dlx_subscription *s, uint32_t n, struct dlx_message **ret)
{
    if (!s->fd_given) {
        if (dlx__subscription_waits_for_news(s) ||
            dlx__now_ns() - s->looks.last_ns > DLX_NOTIFICATION_EVERY_NS)
            dlx__subscription_look(s);
        else if (s->n_active < s->n_open)
            (void)dlx__subscription_handle_events(s, 0); /* the bells of parked links */
        int r = try_take(s, n, ret);
        return r == DLX_E_EMPTY ? check_ends(s) : r;
    }
    /* What made the fd readable is read here, before the caller polls it again. Again if something
     * came meanwhile, but a publisher that always says so does not keep us here: it was asked to
     * ring. */
    for (int round = 1;; round++) {
        int r = dlx__subscription_handle_events(s, 0);
        if (r < 0 && r != DLX_E_INTERRUPTED)
            return r;
        if (dlx_unlikely(s->worker)) {
            r = try_take(s, n, ret);
            if (r == DLX_E_EMPTY)
                r = check_ends(s);
            if (r != DLX_E_EMPTY || dlx__subscription_arm(s))
                return r; /* it stays armed */
            if (round == ROUNDS_MAX) {
                (void)eventfd_write(s->nudge, 1);
                return r;
            }
            continue;
        }
        uint32_t n_changes = s->n_changes;
        bool nothing = dlx__subscription_arm(s);
        r = try_take(s, n, ret);
        if (r == DLX_E_EMPTY)
            r = check_ends(s);
        if (r != DLX_E_EMPTY)
            return r;
        if (s->n_changes != n_changes || dlx__subscription_has_unused_notifications(s))
            round = 0; /* a link has begun, or has got its turn, that was not asked to ring */
        else if (nothing || round == ROUNDS_MAX)
            return r;
    }
}

/* Its publisher has joined a daemon, and only a daemon can make the link to where it publishes. */
static const struct dlx_subscriber_link *find_left(const struct dlx_subscription *s)
{
    for (uint32_t i = 0; i < s->n_links; i++)
        if (dlx__subscriber_link_is_open(s->links[i]) && dlx__reader_is_left(&s->links[i]->core))
            return s->links[i];
    return NULL;
}

/* Where nobody publishes, it matters that others may use another daemon. */
void dlx__subscription_why_none(const struct dlx_subscription *s, char ret[DLX_WHY_NONE_SIZE])
{
    const struct dlx_client *c = s->client;
    const struct dlx_subscriber_link *left = s->sock < 0 ? find_left(s) : NULL;
    ret[0] = '\0';
    if (left)
        (void)snprintf(ret, DLX_WHY_NONE_SIZE,
                       "publisher %" PRIu64 " (pid %u) went on with another dlpackd, which ended "
                       "before a call here: its messages come, or count as lost, when there is "
                       "one at %s",
                       left->publisher, left->pid, c->path);
    if (s->n_links > s->n_spares)
        return;
    if (s->sock < 0)
        (void)snprintf(ret, DLX_WHY_NONE_SIZE, "no dlpackd is at %s", c->path);
    else if (*s->untold.refusal)
        (void)snprintf(ret, DLX_WHY_NONE_SIZE, "%s", s->untold.refusal);
    else if (*s->untold.away)
        (void)snprintf(ret, DLX_WHY_NONE_SIZE, "%s", s->untold.away);
    else
        (void)snprintf(ret, DLX_WHY_NONE_SIZE, "nobody publishes it at %s%s%s%s", c->path,
                       *c->refused_by ? " (refused by " : "", c->refused_by,
                       *c->refused_by ? ")" : "");
}

static int fail_late(const struct dlx_subscription *s)
{
    char why[DLX_WHY_NONE_SIZE];
    dlx__subscription_why_none(s, why);
    return dlx__fail(DLX_E_TIMEOUT, "topic %s: no message in time%s%s", s->topic,
                     *why ? ", since " : "", why);
}

static int sleep_until(struct dlx_subscription *s, struct dlx_wait *wait, uint32_t n,
                       struct dlx_message **ret)
{
    for (;;) {
        if (!dlx__subscription_has_unused_notifications(s) && dlx__subscription_arm(s)) {
            int r = dlx__subscription_sleep(s, wait);
            if (r < 0 && s->worker) { /* it may have been rung */
                dlx__subscription_disarm(s);
                dlx__subscription_pass_on(s, NULL);
            }
            if (r < 0)
                return r;
        }
        int r = try_take(s, n, ret);
        if (r == DLX_E_EMPTY)
            r = check_ends(s);
        if (r != DLX_E_EMPTY)
            return r;
        if (dlx__now_ns() >= wait->deadline)
            return fail_late(s);
    }
}

/* A call of its own, unlike that of dlx_take(). */
static bool __attribute__((noinline))
take_next_found(struct dlx_subscription *s, struct dlx_message **ret)
{
    return take_next(s, ret);
}

/* Spinning ended: probably with a message on the link whose turn it is, and the caller has waited
 * for it long enough. */
static int take_found(struct dlx_subscription *s, uint32_t n, struct dlx_message **ret)
{
    return n == 1 && take_next_found(s, ret) ? 0 : try_take(s, n, ret);
}

static int wait_take(struct dlx_subscription *s, int64_t timeout_ns, uint32_t n,
                     struct dlx_message **ret)
{
    struct dlx_wait wait = {.deadline = dlx__deadline(timeout_ns)};
    if (s->args.spin_ns == DLX_SPIN_ALWAYS) {
        for (;;) {
            int more = dlx__subscription_spin(s, &wait, wait.deadline);
            if (more < 0)
                return more;
            int r = take_found(s, n, ret);
            if (r == DLX_E_EMPTY)
                r = check_ends(s);
            if (r != DLX_E_EMPTY)
                return r;
            if (!more)
                return fail_late(s);
        }
    }
    if (s->looks.spin_ns > 0 && s->n_active > 0) {
        uint64_t until = DLX_MIN(wait.deadline, dlx__now_ns() + s->looks.spin_ns);
        uint64_t most = s->args.spin_ns > 0 ? (uint64_t)s->args.spin_ns : DLX_SPIN_DEFAULT_NS;
        /* Spinning that pays is done longer; spinning that does not, shorter. */
        int paid = dlx__subscription_spin(s, &wait, until);
        if (paid < 0)
            return paid;
        s->looks.spin_ns =
            paid ? DLX_MIN(s->looks.spin_ns * 2, most) : DLX_MAX(s->looks.spin_ns / 2, SPIN_MIN_NS);
        int r = paid ? take_found(s, n, ret) : DLX_E_EMPTY;
        if (r == DLX_E_EMPTY && paid)
            r = check_ends(s);
        if (r != DLX_E_EMPTY)
            return r;
    }
    return sleep_until(s, &wait, n, ret);
}

/* A caller that always finds messages still hears of new publishers, of parked links, of links that
 * are cut because the daemon has disconnected us, and, soon
 * after a link was made, of its arenas, of which only so many are sent before the first are
 * acknowledged. */
static void __attribute__((noinline)) look_around(struct dlx_subscription *s)
{
    if (s->looks.takes >= s->looks.notification_at) {
        s->looks.notification_step = DLX_MIN(s->looks.notification_step * 2, NEWS_EVERY_TAKES);
        s->looks.notification_at = s->looks.takes + s->looks.notification_step;
        dlx__subscription_read_notifications(s);
    }
    if ((s->n_active < s->n_open && s->n_active > 0) || dlx__subscription_has_foreign(s))
        (void)dlx__subscription_handle_events(s, 0);
    dlx__subscription_leave_gone(s);
    s->looks.at = DLX_MIN(s->looks.notification_at, s->looks.takes + BELLS_EVERY);
}

/* While messages take little time, a worker that always finds some looks at the clock once in so
 * many takes. */
#define QUICK_TAKES 16U

/* A worker that always finds messages hears of those that another one had. */
static void hear_of_others(struct dlx_subscription *s)
{
    struct dlx_worker *worker = s->worker;
    if (dlx_likely(s->looks.takes < worker->clock_at))
        return;
    uint64_t now = dlx__clock_now(&worker->clock);
    bool is_quick = now - worker->asked_ns < DLX_NOTIFICATION_EVERY_NS / QUICK_TAKES;
    worker->clock_at = s->looks.takes + (is_quick ? QUICK_TAKES : 1);
    worker->asked_ns = now;
    if (dlx_likely(now - worker->looked_ns < DLX_NOTIFICATION_EVERY_NS))
        return;
    worker->looked_ns = now;
    dlx__subscription_look(s);
}

static int take_once(struct dlx_subscription *s, int64_t timeout_ns, uint32_t n,
                     struct dlx_message **ret)
{
    if (dlx_unlikely(s->worker))
        hear_of_others(s);
    if (s->looks.takes >= s->looks.at) {
        look_around(s);
        if (s->untold.failure == DLX_E_BAD_PEER)
            return check_ends(s);
    }
    int r = try_take(s, n, ret);
    if (dlx_likely(r != DLX_E_EMPTY))
        return r;
    r = check_ends(s);
    if (r != DLX_E_EMPTY)
        return r;
    r = timeout_ns == 0 ? dont_wait(s, n, ret) : wait_take(s, timeout_ns, n, ret);
    if (r == 0)
        dlx__error_clear(); /* of what was missing at first */
    return r;
}

/* Until a release is over. Returns 0; DLX_E_EMPTY (there is none), DLX_E_TIMEOUT,
 * DLX_E_INTERRUPTED. */
static int wait_for_release(struct dlx_subscription *s, uint32_t n_done, struct dlx_wait *wait)
{
    while (s->gpu) {
        uint64_t part = dlx__wait_part(wait, s->client, dlx__now_ns());
        int waited = dlx__gpu_receiver()->wait_released(s->gpu, n_done, part);
        if (waited == 0 || waited == DLX_E_EMPTY)
            return waited;
        if (dlx__now_ns() >= wait->deadline)
            return DLX_E_TIMEOUT;
        int r = dlx__subscription_ask(s, wait, waited == DLX_E_INTERRUPTED);
        if (r < 0)
            return r;
    }
    return DLX_E_EMPTY;
}

/* Messages whose tensors were deleted are held while work on a GPU uses them: wait for the first of
 * these to be released. */
static int __attribute__((noinline))
take_when_released(struct dlx_subscription *s, uint64_t deadline, uint32_t n,
                   struct dlx_message **ret)
{
    struct dlx_wait wait = {.deadline = deadline};
    for (;;) {
        uint32_t n_done = s->gpu ? dlx__gpu_receiver()->n_released(s->gpu) : 0;
        uint64_t now = dlx__now_ns();
        int r = take_once(
            s, deadline == UINT64_MAX ? -1 : (int64_t)(deadline - DLX_MIN(now, deadline)), n, ret);
        if (r != DLX_E_TOO_MANY_HELD)
            return r;
        int waited = wait_for_release(s, n_done, &wait);
        if (waited < 0)
            return waited == DLX_E_INTERRUPTED ? waited : r;
    }
}

/* Take one message, and have up to `n` taken from its link. */
static int __attribute__((noinline))
take(struct dlx_subscription *s, int64_t timeout_ns, uint32_t n, struct dlx_message **ret)
{
    int r = take_once(s, timeout_ns, n, ret);
    if (r == DLX_E_EMPTY)
        return dlx__fail_text(r, "no message is there");
    if (dlx_unlikely(dlx__error_is_lack(r)) && s->nudge >= 0)
        (void)eventfd_write(s->nudge, 1); /* the message stays: a caller that polls takes again */
    return dlx_likely(r != DLX_E_TOO_MANY_HELD || timeout_ns == 0)
               ? r
               : take_when_released(s, dlx__deadline(timeout_ns), n, ret);
}

static int __attribute__((noinline))
take_and_leave(struct dlx_subscription *s, int64_t timeout_ns, struct dlx_message **ret)
{
    int r = take(s, timeout_ns, 1, ret);
    dlx__subscription_leave(s);
    return r;
}

int dlx_take(struct dlx_subscription *s, int64_t timeout_ns, struct dlx_message **ret)
{
    if (dlx_unlikely(!ret))
        return DLX_NAME_NULL(0, "dlx_take", {"ret", ret});
    int r = dlx__subscription_begin(s, "dlx_take");
    if (dlx_unlikely(r < 0))
        return r;
    s->looks.takes++;
    if (dlx_unlikely(!take_next(s, ret)))
        return take_and_leave(s, timeout_ns, ret);
    dlx__subscription_leave(s);
    return 0;
}

/* Messages that were taken with the last one, as far as nothing is special. Returns how many. */
static uint32_t take_pending(struct dlx_subscription *s, struct dlx_message **ret, uint32_t n)
{
    uint32_t got = 0;
    if (s->next >= s->n_active)
        return 0;
    struct dlx_subscriber_link *link = s->active[s->next];
    /* whose bytes, or claims, dlx__subscriber_link_take() counts */
    if (dlx__reader_is_bounded(&link->core) || link->claims)
        return 0;
    for (; got < n && link->n_pending > 0; got++) {
        const struct dlx_taken *taken = &link->pending[link->first_pending];
        struct dlx_message *m = link->messages[taken->hold];
        if (dlx_unlikely(!m || !dlx__entry_is_like(taken->words, &m->form) ||
                         dlx__message_build_again(link, taken->n, dlx__entry_arena(taken->words),
                                                  dlx__entry_offset(taken->words), m) < 0))
            break; /* who takes it next says why */
        dlx__message_hand_out(link, m, taken->n, taken->gap, taken->words[0]);
        link->first_pending++;
        link->n_pending--;
        ret[got] = m;
    }
    return got;
}

static int take_n(struct dlx_subscription *s, uint32_t n, int64_t timeout_ns,
                  struct dlx_message **ret, uint32_t *ret_n)
{
    s->looks.takes++;
    int r = take(s, timeout_ns, DLX_MIN(n, DLX_SUBSCRIBER_LINK_BATCH), &ret[0]);
    if (r < 0)
        return r;
    uint32_t got = 1;
    for (;;) {
        got += take_pending(s, &ret[got], n - got);
        if (got == n ||
            (r = try_take(s, DLX_MIN(n - got, DLX_SUBSCRIBER_LINK_BATCH), &ret[got])) < 0)
            break;
        got++;
    }
    /* An error is for the next call, where others than this one come again. */
    if (r == DLX_E_BAD_PEER) {
        dlx__subscription_fail(s, r);
        s->looks.at = s->looks.takes + 1;
    }
    dlx__error_clear();
    *ret_n = got;
    return 0;
}

int dlx_take_n(struct dlx_subscription *s, uint32_t n, int64_t timeout_ns, struct dlx_message **ret,
               uint32_t *ret_n)
{
    if (!ret || !ret_n)
        return DLX_NAME_NULL(0, "dlx_take_n", {"ret", ret}, {"ret_n", ret_n});
    if (n == 0)
        return dlx__fail(DLX_E_INVALID, "dlx_take_n: n is 0");
    int r = dlx__subscription_begin(s, "dlx_take_n");
    if (r < 0)
        return r;
    r = take_n(s, n, timeout_ns, ret, ret_n);
    dlx__subscription_leave(s);
    return r;
}

/* ---- dlx_get() and dlx_drop_retained() ------------------------------------------------------- */

/* Takes what is there, also after the publisher has ended. */

static bool is_newer(const struct dlx_message *a, const struct dlx_message *b)
{
    if (dlx_message_monotonic_ns(a) != dlx_message_monotonic_ns(b))
        return dlx_message_monotonic_ns(a) > dlx_message_monotonic_ns(b);
    return dlx_message_publisher(a) > dlx_message_publisher(b);
}

/* The first message that comes, and then the newest of what every publisher has now. */
static int take_newest(struct dlx_subscription *s, uint64_t deadline, struct dlx_message **ret)
{
    struct dlx_message *newest = NULL;
    uint32_t left = DLX_MAX(s->n_links - s->n_spares, 1U);
    do {
        struct dlx_message *m;
        uint64_t now = dlx__now_ns();
        int64_t wait = newest || deadline <= now ? 0
                       : deadline == UINT64_MAX  ? DLX_FOREVER
                                                 : (int64_t)(deadline - now);
        int r = dlx_take(s, wait, &m);
        if (r == DLX_E_PUBLISHER_GONE && !newest) {
            r = dlx__call_check_interrupt(s->client);
            if (r == 0)
                continue; /* it left nothing: wait for the next one */
        }
        if (r < 0 && newest)
            break;
        if (r < 0)
            return r;
        bool newer = !newest || is_newer(m, newest);
        dlx_message_unref(newer ? newest : m);
        newest = newer ? m : newest;
        left--;
    } while (left > 0);
    dlx__error_clear();
    *ret = newest;
    return 0;
}

int dlx_get(struct dlx_client *c, const char *topic, int64_t timeout_ns, struct dlx_message **ret)
{
    const struct dlx_subscribe_args args = {
        .size = sizeof args, .mode = DLX_MODE_LATEST, .history = 1, .max_held = 2};
    char why[DLX_ERROR_TEXT_SIZE], none[DLX_WHY_NONE_SIZE];
    uint64_t deadline = timeout_ns == 0 ? 0 : dlx__deadline(timeout_ns);
    struct dlx_subscription *s;
    dlx__error_clear();
    if (!ret)
        return dlx__fail(DLX_E_INVALID, "dlx_get: ret is NULL");
    int r = dlx_subscribe(c, topic, &args, &s);
    if (r < 0)
        return r;
    r = take_newest(s, deadline, ret);
    if (r == DLX_E_EMPTY || r == DLX_E_TIMEOUT) {
        r = timeout_ns == 0 ? DLX_E_EMPTY : DLX_E_TIMEOUT;
        dlx__subscription_why_none(s, none);
        dlx__fail(r, "topic %s has no message%s%s%s", topic,
                  r == DLX_E_TIMEOUT ? ", and none came" : "", *none ? ": " : "", none);
    }
    memcpy(why, dlx__error_message(), sizeof why);
    dlx_subscription_unref(s);
    return r < 0 ? dlx__fail(r, "%s", why) : 0;
}

int dlx_drop_retained(struct dlx_client *c, const char *topic)
{
    dlx__error_clear();
    if (!c)
        return dlx__fail(DLX_E_INVALID, "dlx_drop_retained: client is NULL");
    int r = dlx__client_ensure(c);
    if (r == 0)
        r = dlx__topic_check(topic);
    return r < 0 ? r : dlx__call_retained_drop(c, topic);
}

/* ---- events ---------------------------------------------------------------------------------- */

static void tell_of_gpu(struct dlx_subscription *s, enum dlx_event_kind kind,
                        bool (*tell)(struct dlx_gpu_receiver *, struct dlx_gpu_report *))
{
    struct dlx_gpu_report report;
    if (tell(s->gpu, &report))
        dlx__events_push(&s->events, kind, report.link, report.publisher, report.pid, report.topic,
                         *report.reason ? report.reason : dlx_strerror(report.code));
}

/* What a take would notice: a caller that has taken everything, and waits for the end of a
 * publisher, need not take. */
static void look_for_ends(struct dlx_subscription *s)
{
    dlx__subscription_read_notifications(s);
    bool came = dlx__subscription_handle_events(s, 0) > 0;
    dlx__subscription_leave_ended(s);
    /* What made the descriptor readable was read: a caller that polls it is to take anyway. */
    if (s->nudge >= 0 && (came || dlx__subscription_has_unused_notifications(s)))
        (void)eventfd_write(s->nudge, 1);
}

int dlx_subscription_next_event(struct dlx_subscription *s, struct dlx_event *ret)
{
    dlx__error_clear();
    if (!ret)
        return dlx__fail(DLX_E_INVALID, "dlx_subscription_next_event: ret is NULL");
    int r = dlx__subscription_begin(s, "dlx_subscription_next_event");
    if (r < 0)
        return r;
    if (s->gpu) {
        tell_of_gpu(s, DLX_EVENT_LATE, dlx__gpu_receiver()->tell_late);
        tell_of_gpu(s, DLX_EVENT_CPU_WAITED, dlx__gpu_receiver()->tell_waited);
    }
    if (s->events.n == 0)
        look_for_ends(s);
    for (uint32_t i = 0; i < s->n_links; i++) /* an arena may have been mapped late */
        dlx__subscription_tell(s, s->links[i]);
    r = dlx__events_pop(&s->events, ret);
    dlx__subscription_leave(s);
    return r;
}
