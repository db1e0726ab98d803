/* SPDX-License-Identifier: Apache-2.0 */

/* Callers and servers. A request and its reply have the key of the caller and the number of the
 * call in their payload, so that a reply of another call is recognised. */

#include "tests/actor/actor.h"
#include <inttypes.h>
#include <string.h>

/* ---- payloads -------------------------------------------------------------------------------- */

static const struct dlx_tensor_spec *spec_of(struct dlx_tensor_spec *ret, const int64_t *shape)
{
    *ret = (struct dlx_tensor_spec){
        .size = sizeof *ret, .dtype = {kDLUInt, 8, 1}, .ndim = 1, .shape = shape};
    return ret;
}

static void write_payload(DLManagedTensorVersioned *t, uint64_t key, uint64_t seq, uint64_t size)
{
    struct actor_header header = {.magic = ACTOR_MAGIC,
                                  .key = key,
                                  .seq = seq,
                                  .sent_ns = actor_now_ns(),
                                  .n_tensors = 1,
                                  .n_bytes = size + sizeof header,
                                  .seed = {key * 31 + seq}};
    memcpy(t->dl_tensor.data, &header, sizeof header);
    actor_fill((uint8_t *)t->dl_tensor.data + sizeof header, size, header.seed[0]);
}

/* ---- callers --------------------------------------------------------------------------------- */

static void note_call(struct actor_caller *k, uint64_t seq, enum actor_what what, int32_t code,
                      bool idempotent)
{
    k->has_room &= actor_note_step(&(const struct actor_step){.key = k->part->object->key,
                                                              .seq = (uint32_t)seq,
                                                              .group = idempotent,
                                                              .attempt = (uint8_t)-code,
                                                              .what = (uint8_t)what});
}

bool actor_caller_begin(struct actor_caller *k, uint32_t max_in_flight)
{
    const struct dlx_caller_args args = {.size = sizeof args, .max_in_flight = max_in_flight};
    struct actor_object *o = k->part->object;
    int r;
    k->max_in_flight = max_in_flight;
    k->has_room = true;
    actor_begins(k->part);
    while ((r = dlx_caller_new(k->part->client, o->topic, &args, &k->k)) < 0)
        if (!actor_begins_again(k->part, r, "dlx_caller_new"))
            return false;
    actor_has_begun(k->part);
    return true;
}

void actor_caller_end(struct actor_caller *k)
{
    for (uint32_t i = 0; i < k->n_flights; i++)
        note_call(k, k->flights[i].seq, ACTOR_CANCELLED, 0, k->flights[i].idempotent);
    k->k = dlx_caller_unref(k->k);
    actor_ends(k->part);
}

/* The payload of the next call; NULL: there is no memory. */
static DLManagedTensorVersioned *question_of(struct actor_caller *k, uint64_t size)
{
    struct dlx_tensor_spec spec;
    const int64_t shape = (int64_t)(size + sizeof(struct actor_header));
    DLManagedTensorVersioned *t = NULL;
    struct actor_object *o = k->part->object;
    int r = dlx_caller_alloc(k->k, spec_of(&spec, &shape), &t);
    if (r < 0)
        actor_error(o, r, "dlx_caller_alloc");
    else
        write_payload(t, o->key, o->begun + 1, size);
    return t;
}

static void check_reply(struct actor_caller *k, struct dlx_message *take_reply, uint64_t seq)
{
    struct actor_object *o = k->part->object;
    struct actor_header h = actor_check_as(take_reply, seq, "as a reply");
    if (h.key != o->key)
        actor_fault("call %" PRIu64 " of caller %" PRIu64 " got a reply to caller %" PRIu64, seq,
                    o->key, h.key);
    o->bytes += h.n_bytes;
    dlx_message_unref(take_reply);
}

/* A call that has ended: no sooner than its time is over, in case of a time-out. */
static void check_result(struct actor_caller *k, const struct actor_flight *flight, int code,
                         int32_t worker_code, const char *text, struct dlx_message *take_reply)
{
    static const uint64_t early_ns = 1000; /* of two looks at the clock */
    note_call(k, flight->seq, ACTOR_GOT, code, flight->idempotent);
    if (code == 0)
        check_reply(k, take_reply, flight->seq);
    else if (!*text)
        actor_fault("call %" PRIu64 " ended with %s and no words", flight->seq,
                    dlx_error_name(code));
    if (code == DLX_E_CALL_FAILED && worker_code != 0 && worker_code != (int32_t)flight->seq)
        actor_fault("call %" PRIu64 " failed as call %d was to: %s", flight->seq, worker_code,
                    text);
    if (code == DLX_E_TIMEOUT && actor_now_ns() + early_ns < flight->until_ns)
        actor_fault("call %" PRIu64 " timed out %" PRIu64 " ns early: %s", flight->seq,
                    flight->until_ns - actor_now_ns(), text);
    if (code != 0 && code != DLX_E_CALL_FAILED && code != DLX_E_WORKER_GONE &&
        code != DLX_E_TIMEOUT)
        actor_error(k->part->object, code, "a call that was sent");
    k->part->object->done++;
}

static const struct dlx_call_args *args_of(struct dlx_call_args *ret, struct actor_flight *flight,
                                           int64_t timeout_ns, bool idempotent)
{
    flight->idempotent = idempotent;
    flight->until_ns = timeout_ns > 0 ? actor_now_ns() + (uint64_t)timeout_ns : UINT64_MAX;
    *ret = (struct dlx_call_args){
        .size = sizeof *ret, .timeout_ns = timeout_ns, .idempotent = idempotent};
    return ret;
}

/* The next call was sent, or not. */
static void note_sent(struct actor_caller *k, struct actor_flight *flight, bool sent)
{
    note_call(k, flight->seq, sent ? ACTOR_WAS_ASKED : ACTOR_NOT_ASKED, 0, flight->idempotent);
    k->part->object->begun += sent;
}

/* A caller is full while a server has, or none has taken, what it has cancelled. */
static void tell_unsent(struct actor_caller *k, int code, const char *what)
{
    if (code != DLX_E_FULL) {
        actor_error(k->part->object, code, what);
        return;
    }
    k->part->object->errors[-code]++;
    actor_sleep_ns(2 * ACTOR_MS);
}

bool actor_ask(struct actor_caller *k, uint64_t size, int64_t timeout_ns, bool idempotent)
{
    struct actor_flight *flight = &k->flights[k->n_flights];
    struct dlx_call_args args;
    struct dlx_item item = {.tensor = question_of(k, size)};
    if (!item.tensor)
        return false;
    flight->seq = k->part->object->begun + 1;
    note_call(k, flight->seq, ACTOR_ASKS, 0, idempotent);
    int r = dlx_call_begin(k->k, &item, 1, args_of(&args, flight, timeout_ns, idempotent),
                           &flight->call);
    note_sent(k, flight, r == 0);
    if (r < 0) {
        item.tensor->deleter(item.tensor);
        tell_unsent(k, r, "dlx_call_begin");
        return false;
    }
    k->n_flights++;
    return true;
}

void actor_call(struct actor_caller *k, uint64_t size, int64_t timeout_ns, bool idempotent)
{
    struct actor_flight flight;
    struct dlx_call_args args;
    struct dlx_message *reply = NULL;
    bool sent = false;
    struct dlx_item item = {.tensor = question_of(k, size)};
    if (!item.tensor)
        return;
    flight.seq = k->part->object->begun + 1;
    note_call(k, flight.seq, ACTOR_ASKS, 0, idempotent);
    int r =
        dlx_call(k->k, &item, 1, args_of(&args, &flight, timeout_ns, idempotent), &reply, &sent);
    note_sent(k, &flight, sent);
    if (sent) {
        check_result(k, &flight, r, dlx_caller_worker_code(k->k), dlx_errmsg(), reply);
    } else {
        item.tensor->deleter(item.tensor);
        tell_unsent(k, r, "dlx_call");
    }
}

static void remove_flight(struct actor_caller *k, uint32_t i)
{
    k->flights[i] = k->flights[--k->n_flights];
}

bool actor_take_result(struct actor_caller *k, int64_t timeout_ns)
{
    struct dlx_call_result result = {.size = sizeof result};
    int r = dlx_call_take(k->k, timeout_ns, &result);
    if (r == DLX_E_NOT_FOUND && k->n_flights > 0)
        actor_fault("no call is in flight, but %u are: %" PRIu64, k->n_flights, k->flights[0].seq);
    if (r < 0 && r != DLX_E_NOT_FOUND && r != DLX_E_EMPTY && r != DLX_E_TIMEOUT)
        actor_error(k->part->object, r, "dlx_call_take");
    if (r < 0)
        return false;
    uint32_t i = 0;
    while (i < k->n_flights && k->flights[i].call != result.call)
        i++;
    if (i == k->n_flights)
        actor_fault("a result of call %" PRIu64 ", which is not in flight", result.call);
    const struct actor_flight flight = k->flights[i];
    remove_flight(k, i);
    check_result(k, &flight, result.code, result.worker_code, result.text, result.reply);
    return true;
}

void actor_cancel(struct actor_caller *k, uint32_t i)
{
    int r = dlx_call_cancel(k->k, k->flights[i].call);
    if (r < 0)
        actor_fault("dlx_call_cancel of call %" PRIu64 ": %s", k->flights[i].seq, dlx_errmsg());
    note_call(k, k->flights[i].seq, ACTOR_CANCELLED, 0, k->flights[i].idempotent);
    remove_flight(k, i);
}

/* ---- servers --------------------------------------------------------------------------------- */

bool actor_server_begin(struct actor_server *s, uint32_t max_held)
{
    const struct dlx_service_args args = {.size = sizeof args, .max_held = max_held};
    struct actor_object *o = s->part->object;
    int r;
    s->has_room = true;
    actor_begins(s->part);
    while ((r = dlx_service_new(s->part->client, o->topic, &args, &s->s)) < 0)
        if (!actor_begins_again(s->part, r, "dlx_service_new"))
            return false;
    actor_has_begun(s->part);
    return true;
}

void actor_server_end(struct actor_server *s)
{
    s->s = dlx_service_unref(s->s);
    actor_ends(s->part);
}

static struct actor_header note_request(struct actor_server *s, struct dlx_request *request,
                                        enum actor_what what, enum actor_answer answer)
{
    const struct dlx_message *m = dlx_request_message(request);
    struct actor_header h = actor_check_as(m, dlx_message_seq(m), "as a request");
    s->has_room &=
        actor_note_step(&(const struct actor_step){.key = h.key,
                                                   .seq = (uint32_t)h.seq,
                                                   .group = (uint8_t)answer,
                                                   .attempt = (uint8_t)dlx_message_attempt(m),
                                                   .what = (uint8_t)what});
    return h;
}

struct dlx_request *actor_take_request(struct actor_server *s, int64_t timeout_ns)
{
    struct dlx_request *request = NULL;
    int r = dlx_service_take(s->s, timeout_ns, &request);
    s->has_failed = r < 0 && r != DLX_E_EMPTY && r != DLX_E_TIMEOUT;
    if (s->has_failed)
        actor_error(s->part->object, r, "dlx_service_take");
    if (r < 0)
        return NULL;
    s->part->object->taken++;
    (void)note_request(s, request, ACTOR_SERVES, ACTOR_REPLY);
    return request;
}

/* Returns what dlx_reply() does. */
static int reply_to(struct actor_server *s, struct dlx_request *request, uint64_t size,
                    const struct actor_header *h)
{
    struct dlx_tensor_spec spec;
    const int64_t shape = (int64_t)(size + sizeof *h);
    struct dlx_item item = {.name = NULL};
    int r = dlx_request_alloc(request, spec_of(&spec, &shape), &item.tensor);
    if (r == 0) {
        write_payload(item.tensor, h->key, h->seq, size);
        r = dlx_reply(request, &item, 1, NULL);
        if (r < 0)
            item.tensor->deleter(item.tensor);
    }
    if (r < 0)
        actor_error(s->part->object, r, "dlx_reply");
    return r;
}

void actor_answer(struct actor_server *s, struct dlx_request *take_request,
                  enum actor_answer answer, uint64_t size)
{
    struct actor_header h = note_request(s, take_request, ACTOR_ANSWERS, answer);
    if (answer == ACTOR_REPLY && reply_to(s, take_request, size, &h) < 0)
        (void)note_request(s, take_request, ACTOR_ANSWERS, ACTOR_LET_GO);
    if (answer == ACTOR_ERROR) {
        int r = dlx_reply_error(take_request, (int32_t)h.seq, "as it was to be");
        if (r < 0)
            actor_error(s->part->object, r, "dlx_reply_error");
    }
    dlx_request_unref(take_request);
}
