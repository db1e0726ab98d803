/* SPDX-License-Identifier: Apache-2.0 */

/* dlx/call.h, callers: requests in flight, each in its slot, and the replies to them. */

#include "client/base/args.h"
#include "client/base/misuse.h"
#include "client/base/turn.h"
#include "client/control/client.h"
#include "client/message/message.h"
#include "client/publish/publisher_group.h"
#include "client/publish/publisher_wait.h"
#include "client/service/envelope.h"
#include "client/subscribe/subscription.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/timerfd.h>

#define IN_FLIGHT_DEFAULT 16U
/* How many requests back the oldest one in flight may lie: others go on while one takes long. */
#define DEPTH_PER_CALL 8U
#define DEPTH_LEAST    128U
/* Replies that the program may hold beside those that it may ask for. */
#define HELD_MORE 64U

/* The caller looks at its calls in flight so often, should nothing tell that a worker has died. */
#define LOOK_NS UINT64_C(1000000000)
/* A worker that hung up is dead, as its pidfd says, a little later: so long, so often. */
#define DYING_NS      UINT64_C(500000000)
#define DYING_LOOK_NS UINT64_C(1000000)
/* A reply that has not come so long after its request was done does not come at all. */
#define REPLY_LATE_NS UINT64_C(1000000000)

/*
 *     FREE -- begin --> WAITING ------------ a reply, or its time is over ------> ENDED
 *      ^                   |                                                        |
 *      |                   +-- its worker died --> GONE -- no reply is there -------+
 *      |                   +-- cancel --> LINGERS                                   |
 *      |                                   |  ^                                     |
 *      +--- reply, or request is done -----+  +-- taken: no reply has come ---------+
 *      +------------------------------------------ taken: a reply has come ---------+
 */
enum slot_state {
    SLOT_FREE,
    SLOT_WAITING,
    SLOT_GONE,
    SLOT_ENDED,
    SLOT_LINGERS,
};

#define NONE UINT32_MAX

struct slot {
    enum slot_state state;
    bool is_sync; /* dlx_call() waits for it: it is in no list of results */
    bool idempotent;
    bool lingers; /* ENDED without a reply, which may come late */
    bool dropped; /* ENDED, and its caller wants no result */
    uint64_t call;
    uint64_t seq;      /* of the request */
    uint64_t begun_ns; /* if it has a deadline */
    uint64_t deadline;
    uint64_t done_ns; /* when the request was seen to be done; 0: it was not */
    int32_t code;     /* of ENDED and GONE, with text; NULL: no memory for it */
    int32_t worker_code;
    uint32_t worker_pid;
    char *text;
    struct dlx_message *reply;
    uint32_t next; /* in the list of results, or of free slots */
};

struct dlx_caller {
    uint64_t generation;
    struct dlx_turn turn;
    struct dlx_publisher *out;
    struct dlx_subscription *inbox;
    uint8_t token[DLX_TOKEN_SIZE];
    uint64_t last_call;
    uint32_t n_unheard; /* workers that were not linked to the inbox, or not in time */
    char unheard[DLX_EVENT_REASON_SIZE + 32]; /* why the last of them was not */
    uint64_t unheard_call; /* it concerns no later call than this one; 0: there was none */
    struct slot *slots;    /* [max_in_flight] */
    uint32_t max_in_flight;
    uint32_t n_async; /* WAITING or GONE, and not is_sync */
    uint32_t free;    /* first of a list */
    uint32_t first;   /* results, in their order */
    uint32_t last;
    uint64_t next_look_ns;
    uint64_t next_tick_ns; /* a look that asks who is dead */
    uint64_t dying_until_ns;
    char *text; /* that dlx_call_take() has lent */
    int32_t worker_code;
    int fd;    /* an epoll of `timer` and the inbox; -1: the program did not ask for it */
    int timer; /* -1 likewise */
    struct dlx_caller_stats stats;
};

static int caller_begin(struct dlx_caller *k, const char *what)
{
    dlx__error_clear();
    if (dlx_likely(k && !dlx__forked(k->generation) && dlx__turn_begin(&k->turn))) {
        if (k->out->client->interrupt) /* it may run in any call */
            dlx__turn_disown(&k->turn);
        return 0;
    }
    return dlx__turn_refuse(what, "caller", k ? &k->generation : NULL, k ? k->out->topic : NULL);
}

static void caller_leave(struct dlx_caller *k)
{
    dlx__turn_end(&k->turn);
}

static const char *caller_topic(const struct dlx_caller *k)
{
    return k->out->topic;
}

/* The workers of the service. */
static struct dlx_writer_group *group_of(const struct dlx_caller *k)
{
    return dlx__writer_group_at(&k->out->core, 0);
}

/* All requests up to this one are done. */
static uint64_t passed_of(const struct dlx_caller *k)
{
    return dlx__writer_group_passed(&k->out->core, group_of(k));
}

/* ---- the descriptor ------------------------------------------------------------------------ */

/* It becomes readable at this time; in any case when a reply comes. */
static void arm(struct dlx_caller *k, uint64_t at_ns)
{
    if (k->timer < 0)
        return;
    struct itimerspec once = {.it_value = {0}}; /* which disarms it */
    if (at_ns < UINT64_MAX) {
        at_ns = DLX_MAX(at_ns, UINT64_C(1));
        once.it_value.tv_sec = (time_t)(at_ns / 1000000000);
        once.it_value.tv_nsec = (long)(at_ns % 1000000000);
    }
    (void)timerfd_settime(k->timer, TFD_TIMER_ABSTIME, &once, NULL);
}

/* ---- how a call ends ----------------------------------------------------------------------- */

static void slot_free(struct dlx_caller *k, struct slot *slot)
{
    dlx_message_unref(slot->reply);
    free(slot->text);
    *slot = (struct slot){.state = SLOT_FREE, .next = k->free};
    k->free = (uint32_t)(slot - k->slots);
    k->stats.n_in_flight--;
}

static void slot_mark_cancelled(struct dlx_caller *k, const struct slot *slot)
{
    if (passed_of(k) < slot->seq)
        dlx__publisher_mark(k->out, slot->seq, offsetof(struct dlx_envelope, cancelled), 1);
}

static void slot_end(struct dlx_caller *k, struct slot *slot, int32_t code)
{
    uint32_t i = (uint32_t)(slot - k->slots);
    slot->state = SLOT_ENDED;
    slot->code = code;
    k->stats.replies += code == 0;
    k->stats.failed += code == DLX_E_CALL_FAILED;
    k->stats.workers_gone += code == DLX_E_WORKER_GONE;
    k->stats.timed_out += code == DLX_E_TIMEOUT;
    if (slot->is_sync)
        return;
    k->n_async--;
    slot->next = NONE;
    if (k->first == NONE)
        k->first = i;
    else
        k->slots[k->last].next = i;
    k->last = i;
    arm(k, 0);
}

/* The thread's message says why, and stays as it is. */
static void slot_say(struct slot *slot)
{
    free(slot->text);
    slot->text = strdup(dlx__error_message());
}

/* ---- replies ------------------------------------------------------------------------------- */

static struct slot *slot_of(struct dlx_caller *k, const struct dlx_envelope *envelope)
{
    if (envelope->slot >= k->max_in_flight)
        return NULL;
    struct slot *slot = &k->slots[envelope->slot];
    return slot->state != SLOT_FREE && slot->call == envelope->call ? slot : NULL;
}

static void fail_by_worker(struct dlx_caller *k, struct slot *slot,
                           const struct dlx_envelope *envelope, struct dlx_message *m)
{
    size_t size;
    const char *text = dlx_message_meta(m, &size);
    int shown = (int)DLX_MIN(size, (size_t)DLX_CALL_TEXT_MAX);
    slot->worker_code = envelope->worker_code;
    if (envelope->code == DLX_E_WORKER_GONE && slot->state == SLOT_WAITING) {
        dlx__fail(DLX_E_WORKER_GONE, "topic %s: %.*s", caller_topic(k), shown, text ? text : "");
        slot->state = SLOT_GONE; /* the one that died may have answered */
        slot_say(slot);
    } else if (envelope->code != DLX_E_WORKER_GONE) {
        char error[24] = "an error";
        if (slot->worker_code != 0)
            (void)snprintf(error, sizeof error, "error %" PRId32, slot->worker_code);
        slot->worker_pid = m->link->pid;
        free(slot->text);
        if (asprintf(&slot->text, "topic %s: worker (pid %u) answered with %s: %.*s",
                     caller_topic(k), slot->worker_pid, error, shown, text ? text : "") < 0)
            slot->text = NULL;
        slot_end(k, slot, DLX_E_CALL_FAILED);
    }
}

static void accept_reply(struct dlx_caller *k, struct dlx_message *m)
{
    dlx_atomic_flag *cancelled;
    const struct dlx_envelope *envelope = dlx__envelope_open(m, DLX_ENVELOPE_REPLY, &cancelled);
    struct slot *slot = envelope ? slot_of(k, envelope) : NULL;
    bool is_wanted = slot && (slot->state == SLOT_WAITING || slot->state == SLOT_GONE);
    if (is_wanted && envelope->code == 0) {
        free(slot->text);
        slot->text = NULL;
        slot->worker_pid = m->link->pid;
        slot->reply = m;
        slot_end(k, slot, 0);
        return;
    }
    if (is_wanted) {
        fail_by_worker(k, slot, envelope, m);
    } else {
        k->stats.late++;
        if (slot && slot->state == SLOT_LINGERS)
            slot_free(k, slot);
        else if (slot)
            slot->lingers = false;
    }
    dlx_message_unref(m);
}

/* ---- workers that die, and time ------------------------------------------------------------ */

/* For the publisher, which lets go of the link of a dead worker. What it did not answer before it
 * died is in no inbox; that is looked at first. */
static void on_link_gone(void *userdata, struct dlx_publisher_link *link)
{
    struct dlx_caller *k = userdata;
    char who[DLX_WHO_SIZE];
    if (!dlx__writer_link_is_dead(&link->core) || !*link->group)
        return;
    for (uint32_t i = 0; i < k->max_in_flight; i++) {
        struct slot *slot = &k->slots[i];
        if (slot->state != SLOT_WAITING || slot->idempotent ||
            slot->seq > dlx__writer_head(&k->out->core) ||
            !dlx__writer_link_holds(&link->core, slot->seq))
            continue;
        dlx__publisher_name_link(k->out, link, who);
        dlx__fail(DLX_E_WORKER_GONE,
                  "topic %s: worker %s died with the request, which is not idempotent",
                  caller_topic(k), who);
        slot_say(slot);
        slot->worker_pid = link->peer->pid;
        slot->state = SLOT_GONE;
        dlx__publisher_mark(k->out, slot->seq, offsetof(struct dlx_envelope, cancelled), 1);
    }
}

static int see_workers(struct dlx_caller *k, struct dlx_seen *ret)
{
    dlx__publisher_link_env.pick_up(k->out);
    return dlx__publisher_see_workers(k->out, dlx__writer_group_number(group_of(k)), true, ret);
}

static void say_late(struct dlx_caller *k, struct slot *slot, const struct dlx_seen *workers,
                     uint64_t now)
{
    char why[DLX_HOLDER_SIZE] = "a worker has done the request, but its reply is not here";
    if (passed_of(k) < slot->seq)
        dlx__publisher_describe_holder(k->out, group_of(k), slot->seq, "the request", workers, why);
    dlx__fail(DLX_E_TIMEOUT, "topic %s: no reply after %.3f s: %s", caller_topic(k),
              (double)(now - slot->begun_ns) / 1e9, why);
    slot_say(slot);
}

/* The request is done, or was given up, and there is no reply. */
static bool is_lost(const struct dlx_caller *k, struct slot *slot, uint64_t passed, uint64_t now)
{
    if (slot->seq > passed)
        return false;
    if (slot->done_ns == 0)
        slot->done_ns = now;
    if (now - slot->done_ns < REPLY_LATE_NS)
        return false;
    const char *refusal = slot->call <= k->unheard_call ? k->unheard : k->inbox->untold.refusal;
    dlx__fail(DLX_E_WORKER_GONE,
              "topic %s: the request was done, or given up since its workers died again and again, "
              "and no reply came%s%s",
              caller_topic(k), *refusal ? ": " : "", refusal);
    slot_say(slot);
    return true;
}

static void hear_of_workers(struct dlx_caller *k, uint64_t now)
{
    struct dlx_event event = {.size = sizeof event};
    while (k->inbox->events.n > 0 && dlx__events_pop(&k->inbox->events, &event) == 0) {
        if (event.kind == DLX_EVENT_LEFT || event.kind == DLX_EVENT_LOST)
            k->dying_until_ns = now + DYING_NS;
        if (event.kind == DLX_EVENT_UNSEEN) {
            k->n_unheard++;
            k->unheard_call = k->last_call;
            (void)snprintf(k->unheard, sizeof k->unheard, "worker (pid %u): %s", event.pid,
                           event.reason);
        }
    }
    while (dlx_publisher_next_event(k->out, &event) == 0) /* the program does not ask for them */
        ;
    if (now < k->dying_until_ns || now >= k->next_tick_ns) {
        dlx__writer_look_for_dead(&k->out->core);
        k->next_tick_ns = now + LOOK_NS;
    }
}

/* The inbox is empty. Returns 0; DLX_E_INTERRUPTED. */
static int caller_look(struct dlx_caller *k)
{
    struct dlx_seen workers;
    bool has_seen = false;
    uint64_t now = dlx__now_ns();
    for (uint32_t i = 0; i < k->max_in_flight; i++)
        if (k->slots[i].state == SLOT_GONE)
            slot_end(k, &k->slots[i], DLX_E_WORKER_GONE);
    hear_of_workers(k, now);
    uint64_t passed = passed_of(k);
    k->next_look_ns = now + (now < k->dying_until_ns ? DYING_LOOK_NS : LOOK_NS);
    for (uint32_t i = 0; i < k->max_in_flight; i++) {
        struct slot *slot = &k->slots[i];
        if (slot->state == SLOT_GONE)
            k->next_look_ns = now;
        if (slot->state != SLOT_WAITING)
            continue;
        if (slot->deadline <= now) {
            int r = has_seen ? 0 : see_workers(k, &workers);
            if (r < 0)
                return r;
            has_seen = true;
            say_late(k, slot, &workers, now);
            slot_mark_cancelled(k, slot);
            slot->lingers = true;
            slot_end(k, slot, DLX_E_TIMEOUT);
        } else if (is_lost(k, slot, passed, now)) {
            slot_end(k, slot, DLX_E_WORKER_GONE);
        } else {
            k->next_look_ns = DLX_MIN(k->next_look_ns, slot->deadline);
        }
    }
    dlx__error_clear();
    return 0;
}

/* ---- waiting ------------------------------------------------------------------------------- */

/* What is not about replies, or comes once. */
static bool is_no_reply(int code)
{
    return code == DLX_E_EMPTY || code == DLX_E_TIMEOUT || code == DLX_E_PUBLISHER_GONE ||
           code == DLX_E_DISCONNECTED || code == DLX_E_BAD_PEER || code == DLX_E_QOS;
}

/* Takes a reply, or looks what else has come, waiting until `until` at the longest. Returns 0;
 * DLX_E_EMPTY: nothing comes without waiting; what dlx_take() fails with. */
static int step(struct dlx_caller *k, uint64_t until)
{
    struct dlx_message *m;
    uint64_t now = until == 0 ? UINT64_MAX : dlx__now_ns();
    uint64_t next = DLX_MIN(until, k->next_look_ns);
    int r = dlx_take(k->inbox, next <= now ? 0 : (int64_t)(next - now), &m);
    if (dlx_likely(r == 0)) {
        accept_reply(k, m);
        return 0;
    }
    if (r == DLX_E_INTERRUPTED)
        return dlx__fail(r, "topic %s: interrupted while it waited for a reply", caller_topic(k));
    if (r == DLX_E_TOO_MANY_HELD)
        return dlx__fail(r, "topic %s: a worker's replies are held, %u at most: release some",
                         caller_topic(k), k->max_in_flight + HELD_MORE);
    if (!is_no_reply(r))
        return r;
    int looked = caller_look(k);
    if (looked < 0)
        return looked;
    return r == DLX_E_EMPTY || r == DLX_E_TIMEOUT ? DLX_E_EMPTY : 0;
}

/* Until the call in this slot has ended; NULL: until there is a result for dlx_call_take(). */
static int caller_wait_for(struct dlx_caller *k, const struct slot *sync, uint64_t until)
{
    for (;;) {
        int r = step(k, until);
        if (r < 0 && r != DLX_E_EMPTY)
            return r;
        if (sync ? sync->state == SLOT_ENDED : k->first != NONE)
            return 0;
        if (r == DLX_E_EMPTY && (until == 0 || dlx__now_ns() >= until))
            return until == 0 ? DLX_E_EMPTY : DLX_E_TIMEOUT;
    }
}

/* ---- requests ------------------------------------------------------------------------------ */

/* Slots whose requests are done wait for no reply any more: a late one was there before. */
static int find_free(struct dlx_caller *k, struct slot **ret)
{
    if (k->free == NONE) {
        uint64_t passed = passed_of(k);
        while (step(k, 0) == 0)
            ;
        for (uint32_t i = 0; i < k->max_in_flight; i++)
            if (k->slots[i].state == SLOT_LINGERS && k->slots[i].seq <= passed)
                slot_free(k, &k->slots[i]);
        dlx__error_clear();
    }
    if (k->free == NONE)
        return dlx__fail(DLX_E_FULL,
                         "topic %s: %u calls are in flight, the limit of this caller "
                         "(max_in_flight): take results first, or raise it",
                         caller_topic(k), k->max_in_flight);
    *ret = &k->slots[k->free];
    return 0;
}

/* One request lies so far back that no other may follow it. */
static int fail_ahead(struct dlx_caller *k)
{
    char late[DLX_LATE_GROUP_SIZE];
    (void)dlx__publisher_describe_late(k->out, group_of(k), false, late);
    return dlx__fail(DLX_E_FULL,
                     "topic %s: %s; this caller may be %u requests ahead of it (max_in_flight %u): "
                     "wait for it, end that worker, or make another caller",
                     caller_topic(k), late, k->out->args.depth, k->max_in_flight);
}

/* Sends a request, and gives it a slot. */
static int begin_call(struct dlx_caller *k, const struct dlx_item *items, uint32_t n_items,
                      const struct dlx_call_args *user_args, bool is_sync, struct slot **ret)
{
    struct dlx_call_args args;
    struct slot *slot = NULL;
    int r = dlx__args_copy(&args, sizeof args, sizeof args, user_args);
    if (r == 0)
        r = find_free(k, &slot);
    if (r < 0)
        return r;
    struct dlx_envelope envelope = {
        .magic = DLX_ENVELOPE_MAGIC,
        .kind = DLX_ENVELOPE_REQUEST,
        .idempotent = args.idempotent,
        .call = k->last_call + 1,
        .slot = (uint32_t)(slot - k->slots),
        .max_in_flight = k->max_in_flight,
        .n_unheard = k->n_unheard,
        .deadline_ns = args.timeout_ns == 0 ? UINT64_MAX : dlx__deadline(args.timeout_ns)};
    memcpy(envelope.token, k->token, sizeof envelope.token);
    const uint32_t next = slot->next;
    /* The slot waits before the request is published: a worker may take the request, and die,
     * before the call that publishes it returns. */
    *slot = (struct slot){.state = SLOT_WAITING,
                          .is_sync = is_sync,
                          .idempotent = args.idempotent,
                          .call = envelope.call,
                          .seq = dlx__writer_head(&k->out->core) + 1,
                          .begun_ns = envelope.deadline_ns - (uint64_t)args.timeout_ns,
                          .deadline = envelope.deadline_ns};
    r = dlx__envelope_publish(k->out, &envelope, items, n_items, args.meta, args.publish);
    if (r < 0)
        *slot = (struct slot){.state = SLOT_FREE, .next = next};
    if (r == DLX_E_FULL && dlx__writer_head(&k->out->core) >= passed_of(k) + k->out->args.depth)
        return fail_ahead(k);
    if (r < 0)
        return r;
    k->free = next;
    k->last_call = envelope.call;
    k->n_async += !is_sync;
    k->stats.calls++;
    k->stats.n_in_flight++;
    if (slot->deadline < k->next_look_ns || slot->state == SLOT_GONE) {
        k->next_look_ns = slot->state == SLOT_GONE ? 0 : slot->deadline;
        arm(k, k->next_look_ns);
    }
    *ret = slot;
    return 0;
}

/* The caller waits for the reply no more. */
static void give_up(struct dlx_caller *k, struct slot *slot)
{
    k->stats.cancelled++;
    k->n_async -= !slot->is_sync;
    slot_mark_cancelled(k, slot);
    slot->state = SLOT_LINGERS;
}

/* The result was told: the slot is free, or waits for a reply that its caller does not want. */
static void let_go(struct dlx_caller *k, struct slot *slot)
{
    if (slot->lingers)
        slot->state = SLOT_LINGERS;
    else
        slot_free(k, slot);
}

int dlx_call(struct dlx_caller *k, const struct dlx_item *items, uint32_t n_items,
             const struct dlx_call_args *args, struct dlx_message **ret, bool *ret_sent)
{
    struct slot *slot = NULL;
    if (ret_sent)
        *ret_sent = false;
    int r = caller_begin(ret ? k : NULL, "dlx_call");
    if (r < 0)
        return DLX_NAME_NULL(r, "dlx_call", {"ret", ret});
    r = begin_call(k, items, n_items, args, true, &slot);
    if (r == 0 && ret_sent)
        *ret_sent = true;
    if (r == 0)
        r = caller_wait_for(k, slot, UINT64_MAX);
    if (r < 0 && slot) {
        give_up(k, slot);
    } else if (slot) {
        r = slot->code;
        k->worker_code = r == DLX_E_CALL_FAILED ? slot->worker_code : k->worker_code;
        if (r < 0)
            dlx__fail(r, "%s", slot->text ? slot->text : dlx_strerror(r));
        else
            *ret = slot->reply;
        slot->reply = NULL;
        let_go(k, slot);
    }
    caller_leave(k);
    return r;
}

int dlx_call_begin(struct dlx_caller *k, const struct dlx_item *items, uint32_t n_items,
                   const struct dlx_call_args *args, uint64_t *ret)
{
    struct slot *slot = NULL;
    int r = caller_begin(ret ? k : NULL, "dlx_call_begin");
    if (r < 0)
        return DLX_NAME_NULL(r, "dlx_call_begin", {"ret", ret});
    r = begin_call(k, items, n_items, args, false, &slot);
    if (r == 0)
        *ret = slot->call;
    caller_leave(k);
    return r;
}

/* ---- results ------------------------------------------------------------------------------- */

/* NULL: there is none. */
static struct slot *pop_result(struct dlx_caller *k)
{
    while (k->first != NONE) {
        struct slot *slot = &k->slots[k->first];
        k->first = slot->next;
        if (!slot->dropped)
            return slot;
        let_go(k, slot);
    }
    return NULL;
}

static void tell_result(struct dlx_caller *k, struct slot *slot, struct dlx_call_result *ret)
{
    free(k->text);
    k->text = slot->text;
    slot->text = NULL;
    k->worker_code = slot->code == DLX_E_CALL_FAILED ? slot->worker_code : k->worker_code;
    *ret = (struct dlx_call_result){.size = sizeof *ret,
                                    .call = slot->call,
                                    .code = slot->code,
                                    .worker_code = slot->worker_code,
                                    .worker_pid = slot->worker_pid,
                                    .text = slot->code == 0 ? ""
                                            : k->text       ? k->text
                                                            : dlx_strerror(slot->code),
                                    .reply = slot->reply};
    slot->reply = NULL;
    let_go(k, slot);
}

static int call_take(struct dlx_caller *k, int64_t timeout_ns, struct dlx_call_result *ret)
{
    struct dlx_call_result result;
    uint64_t until = timeout_ns == 0 ? 0 : dlx__deadline(timeout_ns);
    struct slot *slot;
    int r = 0;
    while (!(slot = pop_result(k)) && k->n_async > 0 && r == 0)
        r = caller_wait_for(k, NULL, until);
    if (slot) {
        dlx__error_clear();
        tell_result(k, slot, &result);
        return dlx__args_return(ret, sizeof result, &result, sizeof result);
    }
    while (r == 0 && k->fd >= 0 && step(k, 0) == 0) /* until the descriptor has nothing to tell */
        ;
    if (r == DLX_E_EMPTY)
        return dlx__fail_text(r, "no call has ended");
    if (r == DLX_E_TIMEOUT)
        return dlx__fail(r, "topic %s: no call has ended in time", caller_topic(k));
    return r < 0 ? r
                 : dlx__fail(DLX_E_NOT_FOUND, "topic %s: no call is in flight", caller_topic(k));
}

int dlx_call_take(struct dlx_caller *k, int64_t timeout_ns, struct dlx_call_result *ret)
{
    int r = caller_begin(ret ? k : NULL, "dlx_call_take");
    if (r < 0)
        return DLX_NAME_NULL(r, "dlx_call_take", {"ret", ret});
    r = dlx__args_check_result(ret, sizeof *ret);
    if (r == 0)
        r = call_take(k, timeout_ns, ret);
    arm(k, k->first != NONE ? 0 : k->n_async > 0 ? k->next_look_ns : UINT64_MAX);
    caller_leave(k);
    return r;
}

static struct slot *find_call(struct dlx_caller *k, uint64_t call)
{
    for (uint32_t i = 0; i < k->max_in_flight; i++) {
        struct slot *slot = &k->slots[i];
        bool is_known = slot->state != SLOT_FREE && slot->state != SLOT_LINGERS;
        if (is_known && !slot->dropped && slot->call == call)
            return slot;
    }
    return NULL;
}

int dlx_call_cancel(struct dlx_caller *k, uint64_t call)
{
    int r = caller_begin(k, "dlx_call_cancel");
    if (r < 0)
        return r;
    struct slot *slot = find_call(k, call);
    if (!slot) {
        r = dlx__fail(DLX_E_NOT_FOUND, "topic %s: call %" PRIu64 " is not in flight",
                      caller_topic(k), call);
    } else if (slot->state == SLOT_ENDED) {
        slot->dropped = true;
        slot->reply = dlx_message_unref(slot->reply);
    } else {
        give_up(k, slot);
    }
    caller_leave(k);
    return r;
}

int32_t dlx_caller_worker_code(const struct dlx_caller *k)
{
    return k ? k->worker_code : 0;
}

/* ---- callers ------------------------------------------------------------------------------- */

static void caller_free(struct dlx_caller *k)
{
    for (uint32_t i = 0; i < k->max_in_flight && k->slots; i++) {
        dlx_message_unref(k->slots[i].reply);
        free(k->slots[i].text);
    }
    free(k->slots);
    free(k->text);
    dlx__close(k->timer);
    dlx__close(k->fd);
    dlx_publisher_unref(k->out);
    dlx_subscription_unref(k->inbox);
    dlx__release_handle(k, &k->generation);
}

/* No other process knows the name of the inbox before it is subscribed to. */
static int open_inbox(struct dlx_client *c, const struct dlx_caller_args *args,
                      struct dlx_caller *k)
{
    char inbox[DLX_INBOX_SIZE + 1];
    if (getrandom(k->token, sizeof k->token, 0) != (ssize_t)sizeof k->token)
        return dlx__fail_errno("getrandom");
    dlx__inbox_name(k->token, inbox);
    const struct dlx_subscribe_args subscribe = {.size = sizeof subscribe,
                                                 .max_held = k->max_in_flight + HELD_MORE,
                                                 .n_publishers = DLX_PUBLISHERS_ANY,
                                                 .spin_ns = args->spin_ns};
    int r = dlx__subscribe(c, inbox, &subscribe, &k->inbox);
    if (r == 0)
        k->inbox->tells_events = true;
    return r;
}

static int announce_requests(struct dlx_client *c, const char *topic, struct dlx_caller *k)
{
    static const char *const groups[] = {DLX_SERVICE_GROUP};
    uint32_t depth = DLX_MAX(DEPTH_PER_CALL * k->max_in_flight, DEPTH_LEAST);
    depth = DLX_MIN(depth, DLX_SHM_DEPTH_MAX);
    const struct dlx_publisher_args args = {.size = sizeof args,
                                            .on_full = DLX_ON_FULL_FAIL,
                                            .depth = depth,
                                            .retain_for_ns = DLX_RETAIN_LATCHED,
                                            .groups = groups,
                                            .n_groups = 1};
    int r = dlx__publisher_new(c, topic, &args, &k->out);
    if (r < 0)
        return r;
    k->out->link_gone = on_link_gone;
    k->out->link_gone_userdata = k;
    return 0;
}

int dlx_caller_new(struct dlx_client *c, const char *topic, const struct dlx_caller_args *user_args,
                   struct dlx_caller **ret)
{
    struct dlx_caller_args args;
    dlx__error_clear();
    if (!c || !ret)
        return DLX_NAME_NULL(0, "dlx_caller_new", {"client", c}, {"ret", ret});
    int r = dlx__refuse_forked(c->generation);
    if (r == 0)
        r = dlx__topic_check(topic);
    if (r == 0)
        r = dlx__args_copy(&args, sizeof args, sizeof args, user_args);
    if (r < 0)
        return r;
    if (args.max_in_flight > DLX_IN_FLIGHT_MAX)
        return dlx__fail(DLX_E_INVALID, "caller of %s: max_in_flight %u must be at most %u", topic,
                         args.max_in_flight, DLX_IN_FLIGHT_MAX);
    struct dlx_caller *k = calloc(1, sizeof *k);
    if (!k)
        return dlx__fail(DLX_E_NO_MEMORY, "state of a caller");
    k->generation = c->generation;
    k->fd = k->timer = -1;
    k->max_in_flight = args.max_in_flight ? args.max_in_flight : IN_FLIGHT_DEFAULT;
    k->first = k->last = NONE;
    k->slots = calloc(k->max_in_flight, sizeof *k->slots);
    r = k->slots ? 0 : dlx__fail(DLX_E_NO_MEMORY, "state of %u calls", k->max_in_flight);
    for (uint32_t i = 0; r == 0 && i < k->max_in_flight; i++)
        k->slots[i].next = i + 1 < k->max_in_flight ? i + 1 : NONE;
    if (r == 0)
        r = announce_requests(c, topic, k);
    if (r == 0)
        r = open_inbox(c, &args, k);
    if (r < 0) {
        char why[DLX_ERROR_TEXT_SIZE];
        memcpy(why, dlx__error_message(), sizeof why);
        caller_free(k);
        return dlx__fail(r, "caller of %s: %s", topic, why);
    }
    *ret = k;
    return 0;
}

struct dlx_caller *dlx_caller_unref(struct dlx_caller *k)
{
    if (k && dlx__forked(k->generation))
        dlx__check_released(k->generation, "dlx_caller_unref()");
    else if (k) {
        k->out->link_gone = NULL;
        for (uint32_t i = 0; i < k->max_in_flight; i++)
            if (k->slots[i].state == SLOT_WAITING || k->slots[i].state == SLOT_GONE)
                give_up(k, &k->slots[i]);
        caller_free(k);
    }
    return NULL;
}

int dlx_caller_wait(struct dlx_caller *k, int64_t timeout_ns)
{
    int r = caller_begin(k, "dlx_caller_wait");
    if (r < 0)
        return r;
    hear_of_workers(k, dlx__now_ns()); /* also of another daemon */
    r = dlx__publisher_wait_for_worker(k->out, timeout_ns);
    caller_leave(k);
    return r;
}

int dlx_caller_alloc(struct dlx_caller *k, const struct dlx_tensor_spec *spec,
                     DLManagedTensorVersioned **ret)
{
    int r = caller_begin(k, "dlx_caller_alloc");
    if (r < 0)
        return r;
    r = dlx_alloc(k->out, spec, ret);
    caller_leave(k);
    return r;
}

static int make_fd(struct dlx_caller *k)
{
    int inbox = dlx_subscription_fd(k->inbox);
    if (inbox < 0)
        return inbox;
    dlx_cleanup(dlx__closep) int fd = epoll_create1(EPOLL_CLOEXEC);
    dlx_cleanup(dlx__closep) int timer =
        timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN};
    if (fd < 0 || timer < 0 || epoll_ctl(fd, EPOLL_CTL_ADD, inbox, &event) < 0 ||
        epoll_ctl(fd, EPOLL_CTL_ADD, timer, &event) < 0)
        return dlx__fail_errno("dlx_caller_fd");
    k->fd = dlx__steal_fd(&fd);
    k->timer = dlx__steal_fd(&timer);
    arm(k, 0);
    return 0;
}

int dlx_caller_fd(struct dlx_caller *k)
{
    int r = caller_begin(k, "dlx_caller_fd");
    if (r < 0)
        return r;
    if (k->fd < 0)
        r = make_fd(k);
    r = r < 0 ? r : k->fd;
    caller_leave(k);
    return r;
}

int dlx_caller_get_stats(struct dlx_caller *k, struct dlx_caller_stats *ret)
{
    int r = caller_begin(ret ? k : NULL, "dlx_caller_get_stats");
    if (r < 0)
        return DLX_NAME_NULL(r, "dlx_caller_get_stats", {"ret", ret});
    hear_of_workers(k, dlx__now_ns());
    k->stats.n_workers = dlx__publisher_n_workers(group_of(k));
    struct dlx_caller_stats stats = k->stats;
    r = dlx__args_return(ret, sizeof stats, &stats, sizeof stats);
    caller_leave(k);
    return r;
}
