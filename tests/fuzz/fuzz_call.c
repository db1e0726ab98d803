/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer: a caller with hostile workers, and a service with hostile callers. What they publish
 * has any metadata: envelopes that are right, that have any numbers, or any bytes. The input is a
 * program that begins, cancels and takes calls, and has requests and replies come; or that serves.
 * The functions below stand for the library below client/service (mk/tests.mk).
 *
 * Each call has one result, and a reply only its own; each request that is handed out was one, and
 * is answered once; every message is released, and every request is done or given back.
 */
#include "client/message/message.h"
#include "client/publish/publisher.h"
#include "client/publish/publisher_group.h"
#include "client/publish/publisher_link.h"
#include "client/service/envelope.h"
#include "client/subscribe/subscription.h"
#include "common/error.h"
#include "tests/fuzz/harness_fuzz.h"
#include <string.h>

#define IN_FLIGHT 4U
#define CALLS_MAX 64U
#define META_MAX  256U
#define HELD_MAX  4U

/* ---- what is below ------------------------------------------------------------------------- */

struct message {
    struct dlx_message m; /* first */
    struct dlx_subscriber_link link;
    uint8_t meta[META_MAX];
    size_t meta_size, cut;
    uint32_t attempt;
    bool is_done;
};

static struct state {
    struct dlx_fuzz f;
    struct message *next; /* what dlx_take() returns; NULL: an error */
    uint32_t n_messages;  /* that are not released */
    bool is_strict;       /* a message that is not done is not released, unless it is idempotent */
    uint32_t n_publishers, n_subscriptions;
    uint64_t passed; /* all requests up to this one are done */
    uint32_t n_sent; /* messages that were published */
    struct dlx_envelope sent;
} * now;

static uint8_t element[8];

static struct message *message_new(struct state *s)
{
    struct message *it = calloc(1, sizeof *it);
    REQUIRE(it);
    it->m.n_tensors = 1;
    it->m.link = &it->link;
    it->link.pid = 1;
    it->link.publisher = 1 + dlx_fuzz_choose(&s->f, 3);
    it->attempt = 1;
    s->n_messages++;
    return it;
}

/* GCC and clang want prototypes; these are called by their other names alone. */
#define WRAPPED(type, name, params)                                                                \
    type __wrap_##name params;                                                                     \
    type __wrap_##name params

WRAPPED(int, dlx__publisher_new,
        (struct dlx_client * c, const char *topic, const struct dlx_publisher_args *args,
         struct dlx_publisher **ret))
{
    static struct dlx_writer_group workers;
    static struct dlx_writer_group *groups[] = {&workers};
    (void)args;
    if (dlx_fuzz_choose(&now->f, 16) == 15)
        return dlx__fail(DLX_E_FD_LIMIT, "too many open files");
    struct dlx_publisher *p = calloc(1, sizeof *p);
    REQUIRE(p && strlen(topic) < sizeof p->topic);
    memcpy(p->topic, topic, strlen(topic) + 1);
    p->client = c;
    p->core.groups = groups;
    now->n_publishers++;
    *ret = p;
    return 0;
}

WRAPPED(struct dlx_publisher *, dlx_publisher_unref, (struct dlx_publisher * p))
{
    now->n_publishers -= p != NULL;
    free(p);
    return NULL;
}

WRAPPED(int, dlx_subscribe,
        (struct dlx_client * c, const char *topic, const struct dlx_subscribe_args *args,
         struct dlx_subscription **ret))
{
    struct dlx_subscription *s = calloc(1, sizeof *s);
    REQUIRE(s && strlen(topic) < sizeof s->topic);
    memcpy(s->topic, topic, strlen(topic) + 1);
    s->client = c;
    s->args = *args;
    now->n_subscriptions++;
    *ret = s;
    return 0;
}

WRAPPED(int, dlx__subscribe,
        (struct dlx_client * c, const char *topic, const struct dlx_subscribe_args *args,
         struct dlx_subscription **ret))
{
    return __wrap_dlx_subscribe(c, topic, args, ret);
}

WRAPPED(struct dlx_subscription *, dlx_subscription_unref, (struct dlx_subscription * s))
{
    if (s)
        dlx__events_deinit(&s->events);
    now->n_subscriptions -= s != NULL;
    free(s);
    return NULL;
}

WRAPPED(int, dlx_take, (struct dlx_subscription * s, int64_t timeout_ns, struct dlx_message **ret))
{
    static const int codes[] = {DLX_E_EMPTY, DLX_E_EMPTY, DLX_E_PUBLISHER_GONE, DLX_E_BAD_PEER};
    (void)s;
    (void)timeout_ns;
    if (!now->next) {
        int code = codes[dlx_fuzz_choose(&now->f, DLX_ARRAY_SIZE(codes))];
        return dlx__fail(now->f.left > 0 ? code : DLX_E_EMPTY, "no message");
    }
    *ret = &now->next->m;
    now->next = NULL;
    return 0;
}

WRAPPED(const void *, dlx__message_cut_meta,
        (struct dlx_message * m, uint32_t n, const void **ret_in_place))
{
    struct message *it = (struct message *)m;
    if (it->meta_size < n)
        return NULL;
    it->cut = n;
    *ret_in_place = it->meta;
    return it->meta;
}

WRAPPED(const void *, dlx_message_meta, (const struct dlx_message *m, size_t *ret_size))
{
    const struct message *it = (const struct message *)m;
    *ret_size = it->meta_size - it->cut;
    return *ret_size > 0 ? it->meta + it->cut : NULL;
}

WRAPPED(int, dlx_message_done, (struct dlx_message * m))
{
    struct message *it = (struct message *)m;
    REQUIRE(!it->is_done);
    it->is_done = true;
    return 0;
}

WRAPPED(uint32_t, dlx_message_attempt, (const struct dlx_message *m))
{
    return ((const struct message *)m)->attempt;
}

WRAPPED(struct dlx_message *, dlx_message_unref, (struct dlx_message * m))
{
    const struct message *it = (const struct message *)m;
    REQUIRE(!it || it->is_done || !now->is_strict ||
            it->meta[offsetof(struct dlx_envelope, idempotent)]);
    now->n_messages -= it != NULL;
    free(m);
    return NULL;
}

static void tensor_deleter(DLManagedTensorVersioned *t)
{
    free(t);
}

WRAPPED(int, dlx_alloc,
        (struct dlx_publisher * p, const struct dlx_tensor_spec *spec,
         DLManagedTensorVersioned **ret))
{
    (void)p;
    (void)spec;
    if (dlx_fuzz_choose(&now->f, 16) == 15)
        return dlx__fail(DLX_E_NO_MEMORY, "no memory");
    *ret = calloc(1, sizeof **ret);
    REQUIRE(*ret);
    (*ret)->dl_tensor.data = element;
    (*ret)->deleter = tensor_deleter;
    return 0;
}

WRAPPED(int, dlx_publish_set,
        (struct dlx_publisher * p, const struct dlx_item *items, uint32_t n_items,
         const struct dlx_bytes *meta, const struct dlx_publish_args *args,
         struct dlx_publish_report *report))
{
    (void)args;
    (void)report;
    REQUIRE(meta && meta->size >= sizeof now->sent && meta->size <= DLX_META_MAX);
    if (dlx_fuzz_choose(&now->f, 16) == 15)
        return dlx__fail(DLX_E_FULL, "full");
    memcpy(&now->sent, meta->data, sizeof now->sent);
    for (uint32_t i = 0; i < n_items; i++)
        items[i].tensor->deleter(items[i].tensor);
    p->core.head++;
    now->n_sent++;
    return 0;
}

WRAPPED(uint64_t, dlx__writer_group_passed,
        (const struct dlx_writer *w, struct dlx_writer_group *group))
{
    (void)group;
    return DLX_MIN(now->passed, w->head);
}

WRAPPED(int, dlx__publisher_describe_late,
        (struct dlx_publisher * p, struct dlx_writer_group *group, bool asks,
         char ret[DLX_LATE_GROUP_SIZE]))
{
    (void)p;
    (void)group;
    (void)asks;
    ret[0] = '\0';
    return 0;
}

WRAPPED(void, dlx__writer_look_for_dead, (struct dlx_writer * w))
{
    (void)w;
}

WRAPPED(void, dlx__publisher_mark, (struct dlx_publisher * p, uint64_t n, uint32_t at, uint8_t v))
{
    REQUIRE(n > 0 && n <= p->core.head && at < DLX_ENVELOPE_SIZE && v == 1);
}

WRAPPED(int, dlx_publisher_next_event, (struct dlx_publisher * p, struct dlx_event *ret))
{
    (void)p;
    (void)ret;
    return DLX_E_EMPTY;
}

WRAPPED(int, dlx_publisher_get_stats, (struct dlx_publisher * p, struct dlx_publisher_stats *ret))
{
    (void)p;
    ret->n_subscribers = dlx_fuzz_choose(&now->f, 2);
    return 0;
}

WRAPPED(uint32_t, dlx__publisher_link_n_attached, (const struct dlx_publisher *p))
{
    (void)p;
    return dlx_fuzz_choose(&now->f, 2);
}

/* ---- envelopes ----------------------------------------------------------------------------- */

/* A field of it is another one; or all of it is; or it is cut, or is followed by text. */
static void write_meta(struct state *s, struct message *it, struct dlx_envelope envelope)
{
    struct dlx_fuzz *f = &s->f;
    const uint8_t *piece;
    uint32_t what = dlx_fuzz_choose(f, 16);
    uint64_t number = what < 12 ? dlx_fuzz_number(f) : 0;
    envelope.magic += what == 0 ? (uint32_t)number : 0;
    envelope.kind = what == 1 ? (uint16_t)number : envelope.kind;
    envelope.idempotent = what == 2 ? (uint8_t)number : envelope.idempotent;
    envelope.cancelled = what == 3 ? (uint8_t)number : envelope.cancelled;
    envelope.call += what == 4 ? number : 0;
    envelope.slot += what == 5 ? (uint32_t)number : 0;
    envelope.max_in_flight = what == 6 ? (uint32_t)number : envelope.max_in_flight;
    envelope.deadline_ns = what == 7 ? number : envelope.deadline_ns;
    envelope.code = what == 8 ? (int32_t)number : envelope.code;
    envelope.worker_code = (int32_t)number;
    envelope.token[0] = what == 9 ? (uint8_t)number : envelope.token[0];
    envelope.n_unheard = what == 10 ? (uint32_t)number : envelope.n_unheard;
    memcpy(it->meta, &envelope, sizeof envelope);
    it->meta_size = what == 11 ? (size_t)number % sizeof envelope : sizeof envelope;
    if (what == 13 || what == 14) {
        size_t at = what == 13 ? 0 : sizeof envelope;
        size_t size = dlx_fuzz_piece(f, META_MAX - at, &piece);
        memcpy(it->meta + at, piece, size);
        it->meta_size = at + size;
    }
}

static struct dlx_envelope envelope_of(const struct message *it)
{
    struct dlx_envelope ret = {.magic = 0};
    if (it->meta_size >= sizeof ret)
        memcpy(&ret, it->meta, sizeof ret);
    return ret;
}

/* ---- a caller ------------------------------------------------------------------------------ */

struct call {
    uint64_t id;
    uint32_t slot;
    bool is_open;             /* neither taken nor cancelled */
    bool has_reply, has_code; /* that fits it has come */
};

struct caller_state {
    struct state s; /* first */
    struct dlx_caller *k;
    struct call calls[CALLS_MAX];
    uint32_t n;
};

static void begin_call(struct caller_state *x)
{
    struct dlx_item item = {.name = NULL};
    const struct dlx_call_args args = {.size = sizeof args,
                                       .idempotent = dlx_fuzz_choose(&x->s.f, 2)};
    struct call *call = &x->calls[x->n];
    if (x->n == CALLS_MAX || dlx_caller_alloc(x->k, NULL, &item.tensor) < 0)
        return;
    uint32_t n_sent = x->s.n_sent;
    int r = dlx_call_begin(x->k, &item, 1, &args, &call->id);
    REQUIRE(x->s.n_sent == n_sent + (r == 0));
    if (r < 0) {
        REQUIRE(r == DLX_E_FULL && *dlx_errmsg());
        item.tensor->deleter(item.tensor);
        return;
    }
    REQUIRE(x->s.sent.kind == DLX_ENVELOPE_REQUEST && x->s.sent.magic == DLX_ENVELOPE_MAGIC);
    REQUIRE(x->s.sent.call == call->id && x->s.sent.slot < IN_FLIGHT);
    call->slot = x->s.sent.slot;
    call->is_open = true;
    x->n++;
}

static void note_reply(struct caller_state *x, const struct message *it)
{
    const struct dlx_envelope e = envelope_of(it);
    for (uint32_t i = 0; i < x->n; i++) {
        struct call *call = &x->calls[i];
        if (e.magic != DLX_ENVELOPE_MAGIC || e.kind != DLX_ENVELOPE_REPLY || e.call != call->id ||
            e.slot != call->slot)
            continue;
        call->has_reply |= e.code == 0;
        call->has_code |= e.code != 0 && e.code != DLX_E_WORKER_GONE;
    }
}

/* To one of the calls, or to one like it. */
static void reply_comes(struct caller_state *x)
{
    const struct call *call = x->n > 0 ? &x->calls[dlx_fuzz_choose(&x->s.f, x->n)] : NULL;
    struct message *it = message_new(&x->s);
    static const int32_t codes[] = {0, 0, DLX_E_CALL_FAILED, DLX_E_WORKER_GONE};
    write_meta(&x->s, it,
               (struct dlx_envelope){.magic = DLX_ENVELOPE_MAGIC,
                                     .kind = DLX_ENVELOPE_REPLY,
                                     .call = call ? call->id : 0,
                                     .slot = call ? call->slot : 0,
                                     .code = codes[dlx_fuzz_choose(&x->s.f, 4)]});
    note_reply(x, it);
    x->s.next = it;
}

static struct call *find(struct caller_state *x, uint64_t id)
{
    for (uint32_t i = 0; i < x->n; i++)
        if (x->calls[i].id == id)
            return &x->calls[i];
    return NULL;
}

static void take_result(struct caller_state *x)
{
    struct dlx_call_result result = {.size = sizeof result};
    int r = dlx_call_take(x->k, 0, &result);
    if (r < 0) {
        REQUIRE(r == DLX_E_EMPTY || r == DLX_E_NOT_FOUND);
        return;
    }
    struct call *call = find(x, result.call);
    REQUIRE(call && call->is_open);
    call->is_open = false;
    REQUIRE((result.code == 0) == (result.reply != NULL));
    REQUIRE(result.code == 0 || strlen(result.text) > 0);
    REQUIRE(result.code != 0 || call->has_reply);
    REQUIRE(result.code != DLX_E_CALL_FAILED || call->has_code);
    REQUIRE(result.code == 0 || result.code == DLX_E_CALL_FAILED ||
            result.code == DLX_E_WORKER_GONE);
    dlx_message_unref(result.reply);
}

static void cancel(struct caller_state *x)
{
    struct call *call = x->n > 0 ? &x->calls[dlx_fuzz_choose(&x->s.f, x->n)] : NULL;
    if (!call)
        return;
    int r = dlx_call_cancel(x->k, call->id);
    REQUIRE(r == (call->is_open ? 0 : DLX_E_NOT_FOUND));
    call->is_open = false;
}

static void requests_are_done(struct caller_state *x)
{
    x->s.passed += dlx_fuzz_choose(&x->s.f, 4);
}

static void (*const caller_steps[])(struct caller_state *) = {
    begin_call,  begin_call,  reply_comes, reply_comes,
    take_result, take_result, cancel,      requests_are_done};

static void play_caller(struct dlx_client *c, struct dlx_fuzz *f)
{
    static struct caller_state x;
    const struct dlx_caller_args args = {.size = sizeof args, .max_in_flight = IN_FLIGHT};
    x = (struct caller_state){.s.f = *f};
    now = &x.s;
    if (dlx_caller_new(c, "svc/a", &args, &x.k) < 0)
        return;
    while (x.s.f.left > 0) {
        caller_steps[dlx_fuzz_choose(&x.s.f, DLX_ARRAY_SIZE(caller_steps))](&x);
        if (x.s.next) /* it is looked at by a call */
            take_result(&x);
        if (x.s.next)
            x.s.next = (struct message *)dlx_message_unref(&x.s.next->m);
    }
    dlx_caller_unref(x.k);
    REQUIRE(x.s.n_messages == 0);
}

/* ---- a service ----------------------------------------------------------------------------- */

struct service_state {
    struct state s; /* first */
    struct dlx_service *service;
    struct dlx_request *held[HELD_MAX];
    uint32_t n_held;
};

/* The request that is taken next. */
static struct message *make_request(struct service_state *x)
{
    struct dlx_fuzz *f = &x->s.f;
    struct message *it = message_new(&x->s);
    const struct dlx_envelope envelope = {.magic = DLX_ENVELOPE_MAGIC,
                                          .kind = DLX_ENVELOPE_REQUEST,
                                          .call = 1,
                                          .max_in_flight = 1 + dlx_fuzz_choose(f, 4),
                                          .deadline_ns = UINT64_MAX,
                                          .token = {(uint8_t)it->link.publisher}};
    it->attempt = 1 + dlx_fuzz_choose(f, 8) / 6;
    it->link.holder = dlx_fuzz_choose(f, 16) == 15 ? DLX_BELL_HUNG_UP : 0;
    write_meta(&x->s, it, envelope);
    return it;
}

/* One that the service could not answer may come before it. */
static void request_comes(struct service_state *x)
{
    struct dlx_request *request = NULL;
    if (!x->service)
        return;
    x->s.next = x->s.next ? x->s.next : make_request(x);
    int r = dlx_service_take(x->service, 0, &request);
    REQUIRE((r == 0) == (request != NULL));
    if (r < 0) {
        REQUIRE(*dlx_errmsg());
        return;
    }
    const struct message *it = (const struct message *)dlx_request_message(request);
    const struct dlx_envelope envelope = envelope_of(it);
    REQUIRE(envelope.magic == DLX_ENVELOPE_MAGIC && envelope.kind == DLX_ENVELOPE_REQUEST);
    REQUIRE(!it->is_done && (it->attempt == 1 || envelope.idempotent));
    if (x->n_held < HELD_MAX)
        x->held[x->n_held++] = request;
    else
        dlx_request_unref(request);
}

static void answer_one(struct service_state *x)
{
    if (x->n_held == 0)
        return;
    uint32_t i = dlx_fuzz_choose(&x->s.f, x->n_held), how = dlx_fuzz_choose(&x->s.f, 3);
    struct dlx_request *request = x->held[i];
    struct message *it = (struct message *)dlx_request_message(request);
    struct dlx_item item = {.name = NULL};
    (void)dlx_request_cancelled(request);
    int r = how == 0 ? dlx_request_alloc(request, NULL, &item.tensor) : DLX_E_EMPTY;
    if (r == 0 && (r = dlx_reply(request, &item, 1, NULL)) < 0)
        item.tensor->deleter(item.tensor);
    if (how == 1)
        r = dlx_reply_error(request, (int32_t)dlx_fuzz_number(&x->s.f), "no");
    if (r == 0) {
        const struct dlx_envelope e = envelope_of(it);
        REQUIRE(it->is_done && x->s.sent.kind == DLX_ENVELOPE_REPLY);
        REQUIRE(x->s.sent.call == e.call && x->s.sent.slot == e.slot);
        REQUIRE(dlx_reply_error(request, 1, "again") == DLX_E_NOT_FOUND);
    }
    dlx_request_unref(request);
    x->held[i] = x->held[--x->n_held];
}

static void end_service(struct service_state *x)
{
    x->s.is_strict = false;
    x->service = dlx_service_unref(x->service);
    x->s.f.left = 0;
}

static void (*const service_steps[])(struct service_state *) = {
    request_comes, request_comes, request_comes, request_comes,
    answer_one,    answer_one,    answer_one,    end_service};

static void play_service(struct dlx_client *c, struct dlx_fuzz *f)
{
    static struct service_state x;
    const struct dlx_service_args args = {.size = sizeof args, .max_held = HELD_MAX};
    x = (struct service_state){.s.f = *f};
    now = &x.s;
    x.s.is_strict = true;
    REQUIRE(dlx_service_new(c, "svc/a", &args, &x.service) == 0);
    while (x.s.f.left > 0)
        service_steps[dlx_fuzz_choose(&x.s.f, DLX_ARRAY_SIZE(service_steps))](&x);
    x.s.is_strict = false; /* what it could not answer is given back */
    if (x.n_held % 2)      /* requests may outlive it */
        x.service = dlx_service_unref(x.service);
    while (x.n_held > 0)
        dlx_request_unref(x.held[--x.n_held]);
    dlx_service_unref(x.service);
    if (x.s.next)
        dlx_message_unref(&x.s.next->m);
    REQUIRE(x.s.n_messages == 0);
}

void dlx_fuzz_one(struct dlx_fuzz *f)
{
    static struct dlx_client *c; /* stays: nobody connects it */
    c = c ? c : dlx_fuzz_client(-1);
    (dlx_fuzz_choose(f, 2) ? play_service : play_caller)(c, f);
    REQUIRE(now->n_publishers == 0 && now->n_subscriptions == 0);
}
