/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Hostile callers and hostile workers, which publish what they like as requests and replies. A
 * service goes on with its honest callers, and an honest caller has one result for each of its
 * calls, which is that of no other call.
 */

#include "client/publish/publisher.h"
#include "client/service/envelope.h"
#include "tests/hostile/harness_liar.h"

#define SVC     "svc/a"
#define N       8
#define SOON_NS (SECOND / 20)

static struct dlx_caller *asker(struct dlx_client *c)
{
    struct dlx_caller *k = NULL;
    ok(dlx_caller_new(c, SVC, NULL, &k));
    return k;
}

static struct dlx_service *answerer(struct dlx_client *c)
{
    const struct dlx_service_args args = {.size = sizeof args, .max_held = 2};
    struct dlx_service *s = NULL;
    ok(dlx_service_new(c, SVC, &args, &s));
    return s;
}

static uint64_t begin_honest(struct dlx_caller *k, int64_t value, int64_t timeout_ns)
{
    const int64_t n = N;
    const struct dlx_tensor_spec spec = INT64_SPEC(&n);
    const struct dlx_call_args args = {.size = sizeof args, .timeout_ns = timeout_ns};
    struct dlx_item item = {.name = NULL};
    uint64_t call = 0;
    ok(dlx_caller_alloc(k, &spec, &item.tensor));
    for (int64_t i = 0; i < n; i++)
        ((int64_t *)item.tensor->dl_tensor.data)[i] = value + i;
    ok(dlx_call_begin(k, &item, 1, &args, &call));
    return call;
}

/* Replies with the tensor of the request. */
static void echo(struct dlx_request *take_request)
{
    struct dlx_item item = {.name = NULL};
    ok(dlx_message_tensor(dlx_request_message(take_request), 0, &item.tensor));
    int r = dlx_reply(take_request, &item, 1, NULL);
    if (r < 0)
        item.tensor->deleter(item.tensor);
    ck_assert_msg(r == 0, "%s", dlx_errmsg());
    dlx_request_unref(take_request);
}

/* Whatever there is is answered. Returns how much that was. */
static int echo_all(struct dlx_service *s, int64_t timeout_ns)
{
    struct dlx_request *request = NULL;
    int n = 0, r;
    for (; (r = dlx_service_take(s, timeout_ns, &request)) == 0; n++)
        echo(request);
    ck_assert_msg(r == DLX_E_EMPTY || r == DLX_E_TIMEOUT, "%d %s", r, dlx_errmsg());
    return n;
}

/* The honest caller's call goes to the honest worker, whatever else is there, and back. */
static void call_honestly(struct dlx_caller *k, struct dlx_service *s, int64_t value)
{
    struct dlx_call_result result = {.size = sizeof result};
    uint64_t call = begin_honest(k, value, PATIENCE), start = dlx__now_ns();
    for (int r = DLX_E_EMPTY; r == DLX_E_EMPTY;) {
        (void)echo_all(s, 0);
        r = dlx_call_take(k, 0, &result);
        ck_assert_msg(r == 0 || r == DLX_E_EMPTY, "%d %s", r, dlx_errmsg());
        ck_assert(dlx_test_ends_in_time(start, 0));
    }
    ck_assert_msg(result.code == 0 && result.call == call, "%d %s", result.code, result.text);
    dlx_test_stream_check(result.reply, N, value);
    dlx_message_unref(result.reply);
}

/* Publishes any bytes as the metadata of a message. */
static void publish_as(struct dlx_publisher *p, const void *meta, size_t size)
{
    const struct dlx_bytes bytes = {.data = meta, .size = size};
    const struct dlx_item item = {.tensor = dlx_test_stream_alloc(p, N, 1000)};
    ok(dlx_publish_set(p, &item, 1, size > 0 ? &bytes : NULL, NULL, NULL));
}

/* What an honest caller sends, as any member of the service's group sees it. */
static struct dlx_envelope read_request(struct dlx_message *m)
{
    struct dlx_envelope ret;
    size_t size;
    const void *meta = dlx_message_meta(m, &size);
    ck_assert_uint_eq(size, sizeof ret);
    memcpy(&ret, meta, sizeof ret);
    return ret;
}

/* ---- hostile callers ------------------------------------------------------------------------- */

static const struct {
    const char *what;
    struct dlx_envelope envelope; /* added to a good one, but for `is_whole` */
    size_t size;                  /* of it; 0: all */
    bool is_whole, is_refused;    /* it is no request */
} requests[] = {
    {.what = "good", .is_refused = false},
    {.what = "no metadata", .is_whole = true, .is_refused = true, .size = SIZE_MAX},
    {.what = "a piece of an envelope", .size = 63, .is_refused = true},
    {.what = "another magic number", .envelope = {.magic = 1}, .is_refused = true},
    {.what = "a reply", .envelope = {.kind = 1}, .is_refused = true},
    {.what = "of no kind", .envelope = {.kind = UINT16_MAX}, .is_refused = true},
    {.what = "call 0", .envelope = {.call = UINT64_MAX}},
    {.what = "the last call", .envelope = {.call = UINT64_MAX - 1}},
    {.what = "a slot that is none", .envelope = {.slot = UINT32_MAX}},
    {.what = "room for no reply", .envelope = {.max_in_flight = UINT32_MAX}},
    {.what = "room for too many replies", .envelope = {.max_in_flight = UINT32_MAX - 1}},
    {.what = "more than idempotent", .envelope = {.idempotent = UINT8_MAX}},
    {.what = "cancelled", .envelope = {.cancelled = 1}},
    {.what = "more than cancelled", .envelope = {.cancelled = UINT8_MAX}},
    {.what = "a code", .envelope = {.code = DLX_E_CALL_FAILED, .worker_code = INT32_MIN}},
    {.what = "over before it began", .envelope = {.deadline_ns = 1}},
    {.what = "over in 1970", .envelope = {.deadline_ns = 2}},
    {.what = "a worker that is not heard",
     .envelope = {.n_unheard = UINT32_MAX, .reserved = UINT32_MAX}},
    {.what = "all ones", .is_whole = true, .is_refused = true},
};

static size_t make_request(struct dlx_envelope *ret, size_t i, uint8_t token)
{
    const struct dlx_envelope *lie = &requests[i].envelope;
    memset(ret, 0xff, sizeof *ret);
    if (requests[i].is_whole)
        return requests[i].size ? 0 : sizeof *ret;
    *ret = (struct dlx_envelope){.magic = DLX_ENVELOPE_MAGIC + lie->magic,
                                 .kind = (uint16_t)(DLX_ENVELOPE_REQUEST + lie->kind),
                                 .idempotent = lie->idempotent,
                                 .cancelled = lie->cancelled,
                                 .call = 1 + lie->call,
                                 .slot = lie->slot,
                                 .max_in_flight = 1 + lie->max_in_flight,
                                 .deadline_ns = UINT64_MAX + lie->deadline_ns,
                                 .code = lie->code,
                                 .worker_code = lie->worker_code,
                                 .n_unheard = lie->n_unheard,
                                 .reserved = lie->reserved};
    memset(ret->token, token, sizeof ret->token);
    return requests[i].size ? requests[i].size : sizeof *ret;
}

static struct dlx_service_stats stats_of(struct dlx_service *s)
{
    struct dlx_service_stats stats = {.size = sizeof stats};
    ok(dlx_service_get_stats(s, &stats));
    return stats;
}

#define SERVICE_GROUPS .groups = (const char *const[]){DLX_SERVICE_GROUP}, .n_groups = 1

/* Nobody subscribes to the inbox that it names. */
LOOP_TEST(a_request_with_absurd_numbers_harms_no_other_caller, 0, DLX_ARRAY_SIZE(requests))
{
    auto_client *c = dlx_test_stream_connect(), *hostile = dlx_test_stream_connect();
    auto_service *s = answerer(c);
    auto_caller *k = asker(c);
    auto_publisher *p = dlx_test_stream_publisher(hostile, SVC, PUBLISHER(SERVICE_GROUPS));
    struct dlx_envelope envelope;
    size_t size = make_request(&envelope, (size_t)_i, 7);
    call_honestly(k, s, 1);
    for (int n = 0; n < 3; n++) {
        publish_as(p, &envelope, size);
        call_honestly(k, s, 10 + n);
    }
    const struct dlx_service_stats stats = stats_of(s);
    ck_assert_msg(stats.refused == (requests[_i].is_refused ? 3 : 0), "%s: %d are refused",
                  requests[_i].what, (int)stats.refused);
    ck_assert_uint_eq(stats.requests + stats.expired + stats.refused, 7);
    p = dlx_publisher_unref(p);
    call_honestly(k, s, 20);
    eventually(((void)echo_all(s, SOON_NS), stats_of(s).n_callers == 1));
}

/* A caller that has an inbox names another one in each request. */
TEST(a_caller_that_changes_its_inbox_is_refused)
{
    auto_client *c = dlx_test_stream_connect(), *hostile = dlx_test_stream_connect();
    auto_service *s = answerer(c);
    auto_caller *k = asker(c);
    auto_publisher *p = dlx_test_stream_publisher(hostile, SVC, PUBLISHER(SERVICE_GROUPS));
    for (uint8_t n = 0; n < 20; n++) {
        struct dlx_envelope envelope;
        size_t size = make_request(&envelope, 0, n);
        publish_as(p, &envelope, size);
    }
    call_honestly(k, s, 1);
    (void)echo_all(s, 0);
    ck_assert_uint_eq(stats_of(s).refused, 19);
    ck_assert_uint_eq(stats_of(s).n_callers, 2);
}

/* Who knows the inbox of another caller, as its workers do, has a worker reply there. */
TEST(replies_to_requests_of_others_are_no_results)
{
    auto_client *c = dlx_test_stream_connect(), *hostile = dlx_test_stream_connect();
    auto_subscription *all = dlx_test_stream_subscribe(hostile, SVC, NULL);
    auto_service *s = answerer(c);
    auto_caller *k = asker(c);
    call_honestly(k, s, 1);
    auto_message *m = dlx_test_stream_next(all);
    struct dlx_envelope envelope = read_request(m);
    auto_publisher *p = dlx_test_stream_publisher(hostile, SVC, PUBLISHER(SERVICE_GROUPS));
    for (uint32_t n = 0; n < 30; n++) {
        envelope.call = n / 4;
        envelope.slot = n % 4;
        publish_as(p, &envelope, sizeof envelope);
        if (n % 3 == 0) /* its number is among them: it has ended, or begins later */
            call_honestly(k, s, 100 + n);
    }
    (void)echo_all(s, 0);
    struct dlx_call_result none = {.size = sizeof none};
    fails(dlx_call_take(k, 0, &none), DLX_E_NOT_FOUND, "");
}

/* ---- hostile workers ------------------------------------------------------------------------- */

/* A worker as a worker is, but that it publishes what it likes on the inbox. */
struct impostor {
    struct dlx_subscription *in;
    struct dlx_publisher *out;
    struct dlx_message *m; /* the request */
    struct dlx_envelope request;
};

static void impostor_take(struct impostor *x, struct dlx_client *c)
{
    char inbox[DLX_INBOX_SIZE + 1];
    x->m = dlx_test_stream_next(x->in);
    x->request = read_request(x->m);
    dlx__inbox_name(x->request.token, inbox);
    if (!x->out)
        ok(dlx__publisher_new(c, inbox, PUBLISHER(.depth = 64), &x->out));
}

static void impostor_done(struct impostor *x)
{
    ok(dlx_message_done(x->m));
    x->m = dlx_message_unref(x->m);
}

static void impostor_end(struct impostor *x)
{
    dlx_message_unref(x->m);
    dlx_publisher_unref(x->out);
    dlx_subscription_unref(x->in);
}

static struct dlx_envelope reply_to(const struct impostor *x)
{
    return (struct dlx_envelope){.magic = DLX_ENVELOPE_MAGIC,
                                 .kind = DLX_ENVELOPE_REPLY,
                                 .call = x->request.call,
                                 .slot = x->request.slot};
}

/* What it replies with before the reply, or instead of it. */
enum reply_lie {
    NOTHING,
    NO_ENVELOPE,
    A_PIECE,
    A_REQUEST,
    OTHER_CALLS,
    OTHER_SLOTS,
    TWICE,
    N_REPLIES, /* that come with a good one */
    UNKNOWN_CODE = N_REPLIES,
    POSITIVE_CODE,
    LONG_TEXT,
    NO_TEXT,
    GONE_FOR_NOTHING,
    DONE_WITHOUT_REPLY,
    N_REPLY_LIES
};

static void lie_in_replies(struct impostor *x, enum reply_lie lie)
{
    struct dlx_envelope envelope = reply_to(x);
    if (lie == NO_ENVELOPE)
        publish_as(x->out, NULL, 0);
    if (lie == A_PIECE)
        publish_as(x->out, &envelope, sizeof envelope - 1);
    if (lie == A_REQUEST)
        publish_as(x->out, &x->request, sizeof x->request);
    for (uint32_t i = 1; i < 60 && (lie == OTHER_CALLS || lie == OTHER_SLOTS); i++) {
        envelope = reply_to(x);
        envelope.call += lie == OTHER_CALLS ? (i % 2 ? i : UINT64_MAX - i) : 0;
        envelope.slot += lie == OTHER_SLOTS ? (i % 2 ? i : UINT32_MAX - i) : 0;
        envelope.code = i % 3 ? 0 : DLX_E_WORKER_GONE;
        publish_as(x->out, &envelope, sizeof envelope);
    }
}

LOOP_TEST(only_the_reply_to_a_call_is_its_result, 0, N_REPLIES)
{
    auto_client *c = dlx_test_stream_connect(), *hostile = dlx_test_stream_connect();
    auto_caller *k = asker(c);
    struct impostor x = {
        .in = dlx_test_stream_subscribe(hostile, SVC, SUBSCRIBE(.group = DLX_SERVICE_GROUP))};
    for (int64_t n = 1; n < 10; n++) {
        struct dlx_call_result result = {.size = sizeof result};
        uint64_t call = begin_honest(k, n, PATIENCE);
        impostor_take(&x, hostile);
        lie_in_replies(&x, (enum reply_lie)_i);
        struct dlx_envelope envelope = reply_to(&x);
        for (int i = 0; i < (_i == TWICE ? 5 : 1); i++)
            publish_as(x.out, &envelope, sizeof envelope);
        impostor_done(&x);
        ok(dlx_call_take(k, PATIENCE, &result));
        ck_assert_msg(result.code == 0 && result.call == call, "%d %s", result.code, result.text);
        dlx_message_unref(result.reply);
        fails(dlx_call_take(k, 0, &result), DLX_E_NOT_FOUND, "");
    }
    impostor_end(&x);
}

static void fail_with_lie(struct impostor *x, enum reply_lie lie)
{
    static uint8_t long_text[DLX_ENVELOPE_SIZE + DLX_CALL_META_MAX];
    struct dlx_envelope envelope = reply_to(x);
    envelope.code = lie == UNKNOWN_CODE       ? INT32_MIN
                    : lie == POSITIVE_CODE    ? INT32_MAX
                    : lie == GONE_FOR_NOTHING ? DLX_E_WORKER_GONE
                                              : DLX_E_CALL_FAILED;
    envelope.worker_code = INT32_MIN;
    memset(long_text, 0xff, sizeof long_text);
    memcpy(long_text, &envelope, sizeof envelope);
    if (lie != DONE_WITHOUT_REPLY)
        publish_as(x->out, long_text, lie == LONG_TEXT ? sizeof long_text : sizeof envelope);
    impostor_done(x);
}

/* It has one result, and soon: no lie makes a caller wait for a reply. */
LOOP_TEST(a_call_ends_though_its_worker_lies, N_REPLIES, N_REPLY_LIES)
{
    auto_client *c = dlx_test_stream_connect(), *hostile = dlx_test_stream_connect();
    auto_caller *k = asker(c);
    struct impostor x = {
        .in = dlx_test_stream_subscribe(hostile, SVC, SUBSCRIBE(.group = DLX_SERVICE_GROUP))};
    for (int64_t n = 1; n < 3; n++) {
        struct dlx_call_result result = {.size = sizeof result};
        uint64_t call = begin_honest(k, n, 0);
        impostor_take(&x, hostile);
        fail_with_lie(&x, (enum reply_lie)_i);
        ok(dlx_call_take(k, PATIENCE, &result));
        ck_assert_uint_eq(result.call, call);
        ck_assert_int_eq(result.code, _i == GONE_FOR_NOTHING || _i == DONE_WITHOUT_REPLY
                                          ? DLX_E_WORKER_GONE
                                          : DLX_E_CALL_FAILED);
        ck_assert_uint_gt(strlen(result.text), 0);
        ck_assert_uint_lt(strlen(result.text), DLX_CALL_TEXT_MAX + 200);
        fails(dlx_call_take(k, 0, &result), DLX_E_NOT_FOUND, "");
    }
    impostor_end(&x);
    auto_service *s = answerer(c);
    call_honestly(k, s, 50);
}

/* A worker that answers nothing, and one that publishes on the inbox all the time. */
static void flood(struct dlx_client *c, int tell, int arg)
{
    struct impostor x = {
        .in = dlx_test_stream_subscribe(c, SVC, SUBSCRIBE(.group = DLX_SERVICE_GROUP))};
    impostor_take(&x, c);
    dlx_test_liar_say(tell);
    for (uint64_t n = 0;; n++) {
        struct dlx_envelope envelope = reply_to(&x);
        envelope.call += arg == 0 ? 1 + n % 100 : n;
        envelope.slot = (uint32_t)(n % 20);
        envelope.code = n % 5 ? 0 : -(int32_t)(n % 40);
        publish_as(x.out, &envelope, sizeof envelope);
    }
}

/* Calls with a time limit end with it. Odd: it guesses numbers of calls to come. */
LOOP_TEST(a_flood_of_replies_does_not_stop_a_caller, 0, 2)
{
    auto_client *c = dlx_test_stream_connect();
    auto_caller *k = asker(c);
    struct dlx_test_liar liar = dlx_test_liar_spawn(flood, _i);
    uint64_t kept = begin_honest(k, 1, SECOND / 2);
    struct dlx_call_result result = {.size = sizeof result};
    dlx_test_liar_hear(liar.sock);
    auto_service *s = answerer(c);
    for (int n = 0; n < 20; n++) {
        uint64_t start = dlx__now_ns(), call = begin_honest(k, n, SECOND / 10);
        (void)echo_all(s, SECOND / 1000);
        do {
            result = (struct dlx_call_result){.size = sizeof result};
            ok(dlx_call_take(k, PATIENCE, &result));
            ck_assert(result.call == call || result.call == kept);
            kept = result.call == kept ? 0 : kept;
            dlx_message_unref(result.reply);
        } while (result.call != call);
        ck_assert(dlx_test_ends_in_time(start, SECOND / 10));
    }
    dlx_test_liar_kill(&liar);
}
