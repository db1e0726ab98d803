/* SPDX-License-Identifier: Apache-2.0 */

/* dlx/call.h, services: a worker that takes requests, and has a publisher for the replies to each
 * caller. */

#include "client/base/args.h"
#include "client/base/misuse.h"
#include "client/base/turn.h"
#include "client/control/client.h"
#include "client/message/message.h"
#include "client/publish/publisher_link.h"
#include "client/service/envelope.h"
#include "client/subscribe/subscription.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A caller that hung up is dead, as its pidfd says, a little later: so long, so often. */
#define DYING_NS      UINT64_C(500000000)
#define DYING_LOOK_NS UINT64_C(10000000)
/* A request whose caller cannot be answered is given up after so many tries: others wait. */
#define TRIES_MOST 3U
/* A caller that makes calls, and is not attached so long after a reply, will not be. */
#define UNHEARD_NS UINT64_C(500000000)

/*
 * The way to a caller: a publisher on its inbox, which has room for all replies that the caller can
 * wait for, so that no reply is dropped and no worker waits. It is there from the first request of
 * the caller that is taken until the caller has left its inbox and none of its requests is left.
 */
struct channel {
    uint64_t from; /* id of the publisher of the requests: each has one inbox */
    uint8_t token[DLX_TOKEN_SIZE];
    struct dlx_publisher *p;
    uint32_t n_requests;
    uint32_t n_unheard;  /* as the caller said when the publisher was made */
    uint64_t unheard_ns; /* when a reply was published last that had no subscriber */
};

/* A request that was taken, opened. */
struct taken {
    struct dlx_message *m; /* NULL: none */
    const struct dlx_envelope *envelope;
    dlx_atomic_flag *cancelled; /* the caller has given up */
};

struct dlx_service {
    uint64_t generation;
    struct dlx_turn turn;
    uint32_t refs;               /* the program, and requests */
    struct dlx_subscription *in; /* NULL: the program has released the service */
    struct channel **channels;   /* by `from` */
    uint32_t n_channels;
    uint32_t channels_room;
    struct dlx_request *held; /* a list of those that are not released */
    struct taken stuck;       /* there was no way to its caller: tried again */
    uint32_t n_tries;         /* so often, in a row */
    uint64_t dying_until_ns;
    struct dlx_service_stats stats;
};

struct dlx_request {
    uint64_t generation;
    struct dlx_service *service;
    struct channel *channel;
    struct taken taken;
    bool is_answered;
    struct dlx_request *next; /* in `held` */
    struct dlx_request **at;
};

static const char *service_topic(const struct dlx_service *s)
{
    return s->in ? s->in->topic : "";
}

static int service_begin(struct dlx_service *s, const char *what)
{
    dlx__error_clear();
    if (dlx_likely(s && !dlx__forked(s->generation) && dlx__turn_begin(&s->turn))) {
        if (s->in && s->in->client->interrupt) /* it may run in any call */
            dlx__turn_disown(&s->turn);
        return 0;
    }
    return dlx__turn_refuse(what, "service", s ? &s->generation : NULL,
                            s ? service_topic(s) : NULL);
}

static int request_begin(const struct dlx_request *request, const char *what)
{
    dlx__error_clear();
    if (!request)
        return dlx__fail(DLX_E_INVALID, "%s: request is NULL", what);
    int r = dlx__refuse_forked(request->generation);
    return r < 0 ? r : service_begin(request->service, what);
}

static void service_leave(struct dlx_service *s)
{
    dlx__turn_end(&s->turn);
}

/* ---- ways to callers ----------------------------------------------------------------------- */

static uint32_t channel_lower_bound(const struct dlx_service *s, uint64_t from)
{
    uint32_t low = 0, high = s->n_channels;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (s->channels[middle]->from < from)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void channel_remove(struct dlx_service *s, uint32_t i)
{
    memmove(s->channels + i, s->channels + i + 1,
            (s->n_channels - i - 1) * sizeof(struct channel *));
    s->n_channels--;
}

static int channel_insert(struct dlx_service *s, struct channel *channel)
{
    uint32_t i = channel_lower_bound(s, channel->from);
    if (s->n_channels == s->channels_room) {
        uint32_t room = s->channels_room ? 2 * s->channels_room : 8;
        struct channel **channels = reallocarray(s->channels, room, sizeof(struct channel *));
        if (!channels)
            return dlx__fail(DLX_E_NO_MEMORY, "ways to %u callers", room);
        s->channels = channels;
        s->channels_room = room;
    }
    memmove(s->channels + i + 1, s->channels + i, (s->n_channels - i) * sizeof(struct channel *));
    s->channels[i] = channel;
    s->n_channels++;
    return 0;
}

static void channel_free(struct channel *channel)
{
    dlx_publisher_unref(channel->p);
    free(channel);
}

static int channel_new(struct dlx_service *s, uint64_t from, const struct dlx_envelope *envelope,
                       struct channel **ret)
{
    char inbox[DLX_INBOX_SIZE + 1];
    uint32_t depth = DLX_MAX(envelope->max_in_flight, 1U);
    depth = DLX_MIN(depth, (uint32_t)DLX_IN_FLIGHT_MAX);
    const struct dlx_publisher_args args = {
        .size = sizeof args, .on_full = DLX_ON_FULL_DROP, .depth = depth};
    struct channel *channel = calloc(1, sizeof *channel);
    if (!channel)
        return dlx__fail(DLX_E_NO_MEMORY, "the way to a caller");
    channel->from = from;
    channel->n_unheard = envelope->n_unheard;
    memcpy(channel->token, envelope->token, sizeof channel->token);
    dlx__inbox_name(channel->token, inbox);
    int r = dlx__publisher_new(s->in->client, inbox, &args, &channel->p);
    if (r == 0)
        r = channel_insert(s, channel);
    if (r < 0) {
        char why[DLX_ERROR_TEXT_SIZE];
        memcpy(why, dlx__error_message(), sizeof why);
        channel_free(channel);
        return dlx__fail(r, "topic %s: no way to reply to caller %" PRIu64 ": %s", service_topic(s),
                         from, why);
    }
    *ret = channel;
    return 0;
}

/* After a restart of the daemon the caller's publisher has another id, but the same inbox. */
static struct channel *channel_take_over(struct dlx_service *s, uint64_t from,
                                         const struct dlx_envelope *envelope)
{
    for (uint32_t i = 0; i < s->n_channels; i++) {
        struct channel *channel = s->channels[i];
        if (memcmp(channel->token, envelope->token, sizeof channel->token) != 0)
            continue;
        channel_remove(s, i);
        channel->from = from;
        (void)channel_insert(s, channel); /* there is room */
        return channel;
    }
    return NULL;
}

/* Does the caller subscribe to its inbox? One that has not been picked up may be it. */
static bool channel_is_attached(struct channel *channel)
{
    struct dlx_publisher_stats stats = {.size = sizeof stats};
    dlx__writer_look_for_dead(&channel->p->core);
    return dlx_publisher_get_stats(channel->p, &stats) < 0 || stats.n_subscribers > 0 ||
           dlx__writer_misses_link(&channel->p->core);
}

/* A worker was not linked to the inbox: perhaps this one, which then needs another publisher. */
static bool channel_is_unheard(struct channel *channel, const struct dlx_envelope *envelope)
{
    if (dlx_likely(channel->n_unheard == envelope->n_unheard))
        return false;
    if (!channel_is_attached(channel))
        return channel->n_requests == 0 && channel->unheard_ns > 0 &&
               dlx__now_ns() - channel->unheard_ns > UNHEARD_NS;
    channel->n_unheard = envelope->n_unheard;
    return false;
}

/* Returns 0; DLX_E_BAD_PEER: the publisher names another inbox than before; what
 * dlx_publisher_new() returns. */
static int channel_get(struct dlx_service *s, const struct dlx_message *m,
                       const struct dlx_envelope *envelope, struct channel **ret)
{
    uint64_t from = dlx_message_publisher(m);
    uint32_t i = channel_lower_bound(s, from);
    struct channel *channel = i < s->n_channels ? s->channels[i] : NULL;
    if (channel && channel->from == from) {
        if (memcmp(channel->token, envelope->token, sizeof channel->token) != 0)
            return DLX_E_BAD_PEER;
    } else {
        channel = channel_take_over(s, from, envelope);
    }
    if (channel && channel_is_unheard(channel, envelope)) {
        channel_remove(s, channel_lower_bound(s, from));
        channel_free(channel);
        channel = NULL;
    }
    *ret = channel;
    return channel ? 0 : channel_new(s, from, envelope, ret);
}

/* Is there a link of the requests of this caller? */
static bool caller_is_linked(const struct dlx_service *s, uint64_t from)
{
    for (uint32_t i = 0; i < s->in->n_links; i++)
        if (s->in->links[i]->publisher == from)
            return true;
    return false;
}

/* A caller that is linked, and not attached, may be about to attach: a reply waits for that. */
static void close_unused(struct dlx_service *s)
{
    for (uint32_t i = s->n_channels; i-- > 0;) {
        struct channel *channel = s->channels[i];
        if (channel->n_requests > 0 || channel_is_attached(channel) ||
            caller_is_linked(s, channel->from))
            continue;
        channel_remove(s, i);
        channel_free(channel);
    }
}

/* Callers have come or gone, or the daemon was replaced. */
static void hear_of_callers(struct dlx_service *s)
{
    struct dlx_event event = {.size = sizeof event};
    uint64_t now = dlx__now_ns();
    bool any = false;
    while (s->in->events.n > 0 && dlx__events_pop(&s->in->events, &event) == 0)
        any |= event.kind != DLX_EVENT_JOINED;
    if (any)
        s->dying_until_ns = now + DYING_NS;
    if (now < s->dying_until_ns)
        close_unused(s);
    dlx__error_clear();
}

/* ---- answers ------------------------------------------------------------------------------- */

static int publish_reply(const struct channel *channel, const struct dlx_envelope *request,
                         int32_t code, int32_t worker_code, const struct dlx_item *items,
                         uint32_t n_items, const struct dlx_bytes *meta,
                         const struct dlx_publish_args *args)
{
    const struct dlx_envelope envelope = {.magic = DLX_ENVELOPE_MAGIC,
                                          .kind = DLX_ENVELOPE_REPLY,
                                          .call = request->call,
                                          .slot = request->slot,
                                          .code = code,
                                          .worker_code = worker_code};
    return dlx__envelope_publish(channel->p, &envelope, items, n_items, meta, args);
}

/* A message has a tensor: this one has no elements. */
static int publish_error(const struct channel *channel, const struct dlx_envelope *request,
                         int32_t code, int32_t worker_code, const char *text)
{
    const int64_t shape[] = {0};
    const struct dlx_tensor_spec spec = {
        .size = sizeof spec, .dtype = {kDLUInt, 8, 1}, .ndim = 1, .shape = shape};
    const struct dlx_bytes meta = {.data = text, .size = strnlen(text, DLX_CALL_TEXT_MAX)};
    struct dlx_item item = {.name = NULL};
    int r = dlx_alloc(channel->p, &spec, &item.tensor);
    if (r < 0)
        return r;
    r = publish_reply(channel, request, code, worker_code, &item, 1, &meta, NULL);
    if (r < 0)
        item.tensor->deleter(item.tensor);
    return r;
}

/* As far as was noticed: its publisher hung up. */
static bool is_caller_gone(const struct taken *taken)
{
    return taken->m->link->holder == DLX_BELL_HUNG_UP;
}

static bool has_given_up(const struct taken *taken)
{
    uint64_t deadline = taken->envelope->deadline_ns;
    return atomic_load_explicit(taken->cancelled, memory_order_acquire) ||
           (deadline != UINT64_MAX && dlx__now_ns() >= deadline) || is_caller_gone(taken);
}

/* The request was answered. */
static void settle(struct dlx_request *request)
{
    struct dlx_service *s = request->service;
    request->is_answered = true;
    s->stats.n_held--;
    if (dlx_unlikely(dlx__publisher_link_n_attached(request->channel->p) == 0)) {
        s->stats.abandoned++;
        request->channel->unheard_ns = dlx__now_ns();
    }
    (void)dlx_message_done(request->taken.m);
    dlx__error_clear();
}

static int check_open(const struct dlx_request *request)
{
    if (!request->is_answered)
        return 0;
    return dlx__fail(DLX_E_NOT_FOUND, "topic %s: the request was answered before",
                     service_topic(request->service));
}

static int answer_error(struct dlx_request *request, int32_t code, const char *text)
{
    int r = publish_error(request->channel, request->taken.envelope, DLX_E_CALL_FAILED, code, text);
    if (r < 0)
        return r;
    request->service->stats.errors++;
    settle(request);
    return 0;
}

int dlx_reply(struct dlx_request *request, const struct dlx_item *items, uint32_t n_items,
              const struct dlx_reply_args *user_args)
{
    struct dlx_reply_args args;
    int r = request_begin(request, "dlx_reply");
    if (r < 0)
        return r;
    r = dlx__args_copy(&args, sizeof args, sizeof args, user_args);
    if (r == 0)
        r = check_open(request);
    if (r == 0)
        r = publish_reply(request->channel, request->taken.envelope, 0, 0, items, n_items,
                          args.meta, args.publish);
    if (r == 0) {
        request->service->stats.replies++;
        settle(request);
    }
    service_leave(request->service);
    return r;
}

int dlx_reply_error(struct dlx_request *request, int32_t code, const char *text)
{
    int r = request_begin(request, "dlx_reply_error");
    if (r < 0)
        return r;
    r = check_open(request);
    if (r == 0)
        r = answer_error(request, code, text ? text : "");
    service_leave(request->service);
    return r;
}

/* ---- requests ------------------------------------------------------------------------------ */

static void let_go_unanswered(struct dlx_request *request)
{
    if (request->is_answered ||
        answer_error(request, 0, "the worker let the request go without a reply") == 0)
        return;
    request->service->stats.n_held--;
    request->is_answered = true;
    (void)dlx_message_done(request->taken.m); /* the caller sees that */
}

static void service_unref(struct dlx_service *s)
{
    if (--s->refs > 0)
        return;
    for (uint32_t i = 0; i < s->n_channels; i++)
        channel_free(s->channels[i]);
    free(s->channels);
    dlx__release_handle(s, &s->generation);
}

struct dlx_request *dlx_request_unref(struct dlx_request *request)
{
    if (!request)
        return NULL;
    if (dlx__forked(request->generation)) {
        dlx__check_released(request->generation, "dlx_request_unref()");
        return NULL;
    }
    struct dlx_service *s = request->service;
    let_go_unanswered(request);
    *request->at = request->next;
    if (request->next)
        request->next->at = request->at;
    request->channel->n_requests--;
    dlx_message_unref(request->taken.m);
    dlx__release_handle(request, &request->generation);
    service_unref(s);
    return NULL;
}

struct dlx_message *dlx_request_message(struct dlx_request *request)
{
    return request ? request->taken.m : NULL;
}

uint64_t dlx_request_deadline_ns(const struct dlx_request *request)
{
    return request ? request->taken.envelope->deadline_ns : UINT64_MAX;
}

bool dlx_request_cancelled(const struct dlx_request *request)
{
    return request && !dlx__forked(request->generation) && has_given_up(&request->taken);
}

int dlx_request_alloc(struct dlx_request *request, const struct dlx_tensor_spec *spec,
                      DLManagedTensorVersioned **ret)
{
    int r = request_begin(request, "dlx_request_alloc");
    if (r < 0)
        return r;
    r = request->service->in ? dlx_alloc(request->channel->p, spec, ret)
                             : dlx__fail(DLX_E_NOT_FOUND, "the service of the request has ended");
    service_leave(request->service);
    return r;
}

/* ---- dlx_service_take() -------------------------------------------------------------------- */

/* It is not handed out, here or by another worker. */
static void drop(struct dlx_message *m, uint64_t *count)
{
    ++*count;
    (void)dlx_message_done(m);
    dlx_message_unref(m);
}

/* Takes `taken`. Returns 0, and the request, or NULL: it is not worth starting. On failure it still
 * belongs to the caller. */
static int open_request(struct dlx_service *s, const struct taken *taken, struct dlx_request **ret)
{
    struct channel *channel = NULL;
    *ret = NULL;
    if (has_given_up(taken)) {
        drop(taken->m, is_caller_gone(taken) ? &s->stats.abandoned : &s->stats.expired);
        return 0;
    }
    int r = channel_get(s, taken->m, taken->envelope, &channel);
    if (r == DLX_E_BAD_PEER) {
        drop(taken->m, &s->stats.refused);
        return 0;
    }
    if (r < 0)
        return r;
    if (dlx_message_attempt(taken->m) > 1 && !taken->envelope->idempotent) {
        r = publish_error(channel, taken->envelope, DLX_E_WORKER_GONE, 0,
                          "the worker that had the request died, and it is not idempotent");
        if (r == 0)
            drop(taken->m, &s->stats.gone);
        return r;
    }
    struct dlx_request *request = calloc(1, sizeof *request);
    if (!request)
        return dlx__fail(DLX_E_NO_MEMORY, "state of a request");
    *request = (struct dlx_request){.generation = s->generation,
                                    .service = s,
                                    .channel = channel,
                                    .taken = *taken,
                                    .next = s->held,
                                    .at = &s->held};
    if (s->held)
        s->held->at = &request->next;
    s->held = request;
    s->refs++;
    channel->n_requests++;
    s->stats.requests++;
    s->stats.n_held++;
    *ret = request;
    return 0;
}

/* There was no way to its caller, as the thread's message says. Another worker may have one, if the
 * request is idempotent. Returns `code`. */
static int keep_or_give_up(struct dlx_service *s, const struct taken *taken, int code)
{
    char why[DLX_ERROR_TEXT_SIZE];
    memcpy(why, dlx__error_message(), sizeof why);
    if (++s->n_tries < TRIES_MOST) {
        s->stuck = *taken;
        return code;
    }
    s->n_tries = 0;
    if (taken->envelope->idempotent) {
        s->stats.refused++;
        dlx_message_unref(taken->m); /* which gives it back */
    } else {
        drop(taken->m, &s->stats.refused);
    }
    return dlx__fail(code, "%s", why);
}

/* Returns 0, and a request, or one without a message; or what dlx_take() fails with. */
static int take_one(struct dlx_service *s, uint64_t until, struct taken *ret)
{
    struct dlx_message *m;
    uint64_t now = until == 0 || until == UINT64_MAX ? 0 : dlx__now_ns();
    if (s->dying_until_ns > 0) {
        now = dlx__now_ns();
        if (now < s->dying_until_ns)
            until = DLX_MIN(until, now + DYING_LOOK_NS);
        else
            s->dying_until_ns = 0;
    }
    *ret = (struct taken){.m = NULL};
    int r = dlx_take(s->in,
                     until == UINT64_MAX ? DLX_FOREVER
                     : until <= now      ? 0
                                         : (int64_t)(until - now),
                     &m);
    if (r < 0)
        return r;
    *ret = (struct taken){.m = m};
    ret->envelope = dlx__envelope_open(m, DLX_ENVELOPE_REQUEST, &ret->cancelled);
    if (!ret->envelope) {
        drop(m, &s->stats.refused);
        ret->m = NULL;
    }
    return 0;
}

/* It is not about requests, or comes once: the next take goes on. */
static bool is_no_request(int code)
{
    return code == DLX_E_PUBLISHER_GONE || code == DLX_E_DISCONNECTED || code == DLX_E_BAD_PEER;
}

static int service_take(struct dlx_service *s, uint64_t until, struct dlx_request **ret)
{
    for (;;) {
        struct taken taken = s->stuck;
        int r = taken.m ? 0 : take_one(s, until, &taken);
        s->stuck.m = NULL;
        if (r == 0 && taken.m) {
            r = open_request(s, &taken, ret);
            if (r < 0)
                return keep_or_give_up(s, &taken, r);
            s->n_tries = 0;
            if (*ret)
                return 0;
        }
        s->stats.refused += r == DLX_E_BAD_PEER;
        bool is_early = r == DLX_E_EMPTY || r == DLX_E_TIMEOUT; /* of a look at those who die */
        if (r < 0 && !is_early && !is_no_request(r))
            return r;
        if (r < 0)
            hear_of_callers(s);
        if (is_early && (until == 0 || dlx__now_ns() >= until))
            return until == 0
                       ? dlx__fail_text(DLX_E_EMPTY, "no request is there")
                       : dlx__fail(DLX_E_TIMEOUT, "topic %s: no request in time", service_topic(s));
    }
}

int dlx_service_take(struct dlx_service *s, int64_t timeout_ns, struct dlx_request **ret)
{
    struct dlx_request *request = NULL;
    int r = service_begin(ret ? s : NULL, "dlx_service_take");
    if (r < 0)
        return DLX_NAME_NULL(r, "dlx_service_take", {"ret", ret});
    if (dlx_unlikely(s->in->events.n > 0)) /* also while there are always requests */
        hear_of_callers(s);
    r = service_take(s, timeout_ns == 0 ? 0 : dlx__deadline(timeout_ns), &request);
    if (r == 0)
        *ret = request;
    service_leave(s);
    return r;
}

/* ---- services ------------------------------------------------------------------------------ */

int dlx_service_new(struct dlx_client *c, const char *topic,
                    const struct dlx_service_args *user_args, struct dlx_service **ret)
{
    struct dlx_service_args args;
    dlx__error_clear();
    if (!c || !ret)
        return DLX_NAME_NULL(0, "dlx_service_new", {"client", c}, {"ret", ret});
    int r = dlx__refuse_forked(c->generation);
    if (r == 0)
        r = dlx__args_copy(&args, sizeof args, sizeof args, user_args);
    if (r < 0)
        return r;
    const struct dlx_subscribe_args subscribe = {.size = sizeof subscribe,
                                                 .group = DLX_SERVICE_GROUP,
                                                 .max_held = args.max_held,
                                                 .n_publishers = DLX_PUBLISHERS_ANY,
                                                 .spin_ns = args.spin_ns};
    struct dlx_service *s = calloc(1, sizeof *s);
    if (!s)
        return dlx__fail(DLX_E_NO_MEMORY, "state of a service");
    r = dlx_subscribe(c, topic, &subscribe, &s->in);
    if (r < 0) {
        free(s);
        return r;
    }
    s->generation = c->generation;
    s->refs = 1;
    s->in->tells_events = true;
    *ret = s;
    return 0;
}

struct dlx_service *dlx_service_unref(struct dlx_service *s)
{
    if (!s)
        return NULL;
    if (dlx__forked(s->generation)) {
        dlx__check_released(s->generation, "dlx_service_unref()");
        return NULL;
    }
    for (struct dlx_request *it = s->held; it; it = it->next)
        let_go_unanswered(it);
    dlx_message_unref(s->stuck.m); /* another worker gets it */
    s->stuck.m = NULL;
    s->in = dlx_subscription_unref(s->in);
    for (uint32_t i = 0; i < s->n_channels; i++)
        s->channels[i]->p = dlx_publisher_unref(s->channels[i]->p);
    service_unref(s);
    return NULL;
}

int dlx_service_fd(struct dlx_service *s)
{
    int r = service_begin(s, "dlx_service_fd");
    if (r < 0)
        return r;
    r = dlx_subscription_fd(s->in);
    service_leave(s);
    return r;
}

int dlx_service_get_stats(struct dlx_service *s, struct dlx_service_stats *ret)
{
    int r = service_begin(ret ? s : NULL, "dlx_service_get_stats");
    if (r < 0)
        return DLX_NAME_NULL(r, "dlx_service_get_stats", {"ret", ret});
    struct dlx_event event = {.size = sizeof event};
    if (s->in->events.n > 0 || dlx_subscription_next_event(s->in, &event) == 0)
        s->dying_until_ns = dlx__now_ns() + DYING_NS;
    hear_of_callers(s);
    s->stats.n_callers = s->n_channels;
    r = dlx__args_return(ret, sizeof s->stats, &s->stats, sizeof s->stats);
    service_leave(s);
    return r;
}
