/* SPDX-License-Identifier: Apache-2.0 */

/* Calls against a real daemon: each request has one reply, which its caller gets, or the caller is
 * told why there is none. */

#include "client/publish/publisher.h"
#include "client/service/envelope.h"
#include "tests/harness/fds.h"
#include "tests/harness/fork.h"
#include "tests/harness/stream.h"
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/resource.h>

#define TOPIC "svc/add"
#define N     8 /* elements of a request, which count up; its reply counts up from one more */

#define CALL(...) (&(const struct dlx_call_args){.size = sizeof(struct dlx_call_args), __VA_ARGS__})
#define CALLER(...)                                                                                \
    (&(const struct dlx_caller_args){.size = sizeof(struct dlx_caller_args), __VA_ARGS__})
#define SERVICE(...)                                                                               \
    (&(const struct dlx_service_args){.size = sizeof(struct dlx_service_args), __VA_ARGS__})
#define REPLY(...)                                                                                 \
    (&(const struct dlx_reply_args){.size = sizeof(struct dlx_reply_args), __VA_ARGS__})
#define NOBODY_HAS_IT "none of its workers has the request: e2e_call"
#define BYTES(text)   (&(const struct dlx_bytes){.data = (text), .size = sizeof(text) - 1})

#define auto_caller  DLX_TEST_AUTO(end_caller) struct dlx_caller
#define auto_service DLX_TEST_AUTO(end_service) struct dlx_service
#define auto_request DLX_TEST_AUTO(end_request) struct dlx_request

static void end_caller(struct dlx_caller **k)
{
    dlx_caller_unref(*k);
}

static void end_service(struct dlx_service **s)
{
    dlx_service_unref(*s);
}

static void end_request(struct dlx_request **request)
{
    dlx_request_unref(*request);
}

static struct dlx_caller *caller_of(struct dlx_client *c, const struct dlx_caller_args *args)
{
    struct dlx_caller *k = NULL;
    ok(dlx_caller_new(c, TOPIC, args, &k));
    return k;
}

static struct dlx_service *serve(struct dlx_client *c, const struct dlx_service_args *args)
{
    struct dlx_service *s = NULL;
    ok(dlx_service_new(c, TOPIC, args, &s));
    return s;
}

static void fill(DLManagedTensorVersioned *t, int64_t n, int64_t value)
{
    for (int64_t i = 0; i < n; i++)
        ((int64_t *)t->dl_tensor.data)[i] = value + i;
}

static DLManagedTensorVersioned *question(struct dlx_caller *k, int64_t n, int64_t value)
{
    const struct dlx_tensor_spec spec = INT64_SPEC(&n);
    DLManagedTensorVersioned *t = NULL;
    ok(dlx_caller_alloc(k, &spec, &t));
    fill(t, n, value);
    return t;
}

static uint64_t ask(struct dlx_caller *k, int64_t value, const struct dlx_call_args *args)
{
    const struct dlx_item item = {.tensor = question(k, N, value)};
    uint64_t call = 0;
    ok(dlx_call_begin(k, &item, 1, args, &call));
    return call;
}

static struct dlx_request *next(struct dlx_service *s)
{
    struct dlx_request *request = NULL;
    ok(dlx_service_take(s, PATIENCE, &request));
    return request;
}

#define no_request(s, timeout_ns)                                                                  \
    do {                                                                                           \
        struct dlx_request *none_ = NULL;                                                          \
        int r_ = dlx_service_take(s, timeout_ns, &none_);                                          \
        ck_assert_msg(r_ == DLX_E_EMPTY || r_ == DLX_E_TIMEOUT, "%d %s", r_, dlx_errmsg());        \
    } while (0)

static int64_t first_of(struct dlx_message *m)
{
    return ((const int64_t *)dlx_message_tensor_peek(m, 0)->data)[0];
}

/* Counts up from one more than the request does. */
static void answer(struct dlx_request *request)
{
    struct dlx_message *m = dlx_request_message(request);
    int64_t n = dlx_message_tensor_peek(m, 0)->shape[0];
    const struct dlx_tensor_spec spec = INT64_SPEC(&n);
    struct dlx_item item = {.name = "sum"};
    ok(dlx_request_alloc(request, &spec, &item.tensor));
    fill(item.tensor, n, first_of(m) + 1);
    ok(dlx_reply(request, &item, 1, NULL));
}

static void answer_next(struct dlx_service *s)
{
    auto_request *request = next(s);
    answer(request);
}

static struct dlx_call_result result_of(struct dlx_caller *k, uint64_t call)
{
    struct dlx_call_result result = {.size = sizeof result};
    ok(dlx_call_take(k, PATIENCE, &result));
    ck_assert_uint_eq(result.call, call);
    return result;
}

static void expect_reply(struct dlx_caller *k, uint64_t call, int64_t value)
{
    struct dlx_call_result result = result_of(k, call);
    ck_assert_msg(result.code == 0, "%d %s", result.code, result.text);
    dlx_test_stream_check(result.reply, N, value);
    dlx_message_unref(result.reply);
}

static void expect_failure(struct dlx_caller *k, uint64_t call, int code, const char *words)
{
    struct dlx_call_result result = result_of(k, call);
    ck_assert_msg(result.code == code, "%d %s", result.code, result.text);
    ck_assert_msg(strstr(result.text, words), "\"%s\" lacks \"%s\"", result.text, words);
    ck_assert_ptr_null(result.reply);
}

static struct dlx_caller_stats caller_stats(struct dlx_caller *k)
{
    struct dlx_caller_stats stats = {.size = sizeof stats};
    ok(dlx_caller_get_stats(k, &stats));
    return stats;
}

static struct dlx_service_stats service_stats(struct dlx_service *s)
{
    struct dlx_service_stats stats = {.size = sizeof stats};
    ok(dlx_service_get_stats(s, &stats));
    return stats;
}

static void no_result(struct dlx_caller *k)
{
    struct dlx_call_result none = {.size = sizeof none};
    fails(dlx_call_take(k, 0, &none), DLX_E_NOT_FOUND, "no call is in flight");
}

/* ---- workers elsewhere --------------------------------------------------------------------- */

/* In a process of its own: serves until it is killed. */
static void serve_elsewhere(struct dlx_test_peer *parent)
{
    struct dlx_service *s = serve(dlx_test_stream_connect(), NULL);
    dlx_test_peer_say(parent);
    for (;;) {
        struct dlx_request *request = NULL;
        if (dlx_service_take(s, DLX_FOREVER, &request) == 0)
            answer(request);
        dlx_request_unref(request);
    }
}

/* Takes a request, says so, and keeps it until it is killed. */
static void keep_elsewhere(struct dlx_test_peer *parent)
{
    struct dlx_service *s = serve(dlx_test_stream_connect(), NULL);
    dlx_test_peer_say(parent);
    (void)next(s);
    dlx_test_peer_say(parent);
    pause();
}

/* Asks, says so, and waits until it is killed. */
static void ask_elsewhere(struct dlx_test_peer *parent)
{
    struct dlx_caller *k = caller_of(dlx_test_stream_connect(), NULL);
    (void)ask(k, 1, NULL);
    dlx_test_peer_say(parent);
    struct dlx_call_result result = {.size = sizeof result};
    (void)dlx_call_take(k, DLX_FOREVER, &result);
    dlx_test_peer_say(parent);
    pause();
}

static struct dlx_test_peer begin_elsewhere(void (*part)(struct dlx_test_peer *parent))
{
    struct dlx_test_peer peer = dlx_test_fork_peer();
    if (peer.pid == 0) {
        part(&peer);
        _exit(0);
    }
    dlx_test_peer_hear(&peer);
    return peer;
}

static void call_ok(struct dlx_caller *k, int64_t n, int64_t value)
{
    const struct dlx_item item = {.tensor = question(k, n, value)};
    struct dlx_message *reply = NULL;
    bool sent = false;
    ok(dlx_call(k, &item, 1, CALL(.timeout_ns = PATIENCE), &reply, &sent));
    ck_assert(sent);
    dlx_test_stream_check(reply, n, value + 1);
    dlx_message_unref(reply);
}

/* ---- replies ------------------------------------------------------------------------------- */

TEST(a_call_returns_its_reply)
{
    struct dlx_test_peer worker = begin_elsewhere(serve_elsewhere);
    auto_client *c = dlx_test_stream_connect();
    auto_caller *k = caller_of(c, NULL);
    ok(dlx_caller_wait(k, PATIENCE));
    for (int64_t n = 0; n < 100; n++)
        call_ok(k, N, 100 * n);
    for (int64_t n = 0; n < 20; n++)
        call_ok(k, 131072, n); /* 1 MiB */
    struct dlx_caller_stats stats = caller_stats(k);
    ck_assert_uint_eq(stats.calls, 120);
    ck_assert_uint_eq(stats.replies, 120);
    ck_assert_uint_eq(stats.late, 0);
    ck_assert_uint_eq(stats.n_in_flight, 0);
    ck_assert_uint_eq(stats.n_workers, 1);
    dlx_test_peer_kill(&worker);
}

TEST(sets_and_metadata_go_both_ways)
{
    auto_client *c = dlx_test_stream_connect();
    auto_service *s = serve(c, NULL);
    auto_caller *k = caller_of(c, NULL);
    const struct dlx_item two[] = {{"a", question(k, 3, 5)}, {"b", question(k, 4, 7)}};
    uint64_t call;
    size_t size;
    ok(dlx_call_begin(k, two, 2, CALL(.meta = BYTES("how much?")), &call));
    auto_request *request = next(s);
    struct dlx_message *m = dlx_request_message(request);
    ck_assert_uint_eq(dlx_message_n_tensors(m), 2);
    ck_assert_str_eq(dlx_message_tensor_name(m, 1), "b");
    ck_assert_mem_eq(dlx_message_meta(m, &size), "how much?", 9);
    ck_assert_uint_eq(size, 9);
    ck_assert_uint_eq((uintptr_t)dlx_message_meta(m, &size) % 8, 0);
    struct dlx_item items[2] = {{.name = "x"}, {.name = "y"}};
    for (int i = 0; i < 2; i++)
        ok(dlx_request_alloc(request, SPEC(.dtype = {kDLInt, 64, 1}), &items[i].tensor));
    ok(dlx_reply(request, items, 2, REPLY(.meta = BYTES("so much"))));
    struct dlx_call_result result = result_of(k, call);
    ck_assert_int_eq(result.code, 0);
    auto_message *reply = result.reply;
    ck_assert_uint_eq(dlx_message_n_tensors(reply), 2);
    ck_assert_str_eq(dlx_message_tensor_name(reply, 0), "x");
    ck_assert_mem_eq(dlx_message_meta(reply, &size), "so much", 7);
    ck_assert_uint_eq(size, 7);
    request = dlx_request_unref(request);
    call = ask(k, 1, NULL);
    request = next(s);
    ck_assert_ptr_null(dlx_message_meta(dlx_request_message(request), &size));
    ck_assert_uint_eq(size, 0);
    answer(request);
    expect_reply(k, call, 2);
}

TEST(the_largest_metadata_goes_both_ways_and_more_is_refused)
{
    static const char bytes[DLX_CALL_META_MAX + 1] = "m";
    auto_client *c = dlx_test_stream_connect();
    auto_service *s = serve(c, NULL);
    auto_caller *k = caller_of(c, NULL);
    struct dlx_bytes meta = {.data = bytes, .size = sizeof bytes};
    struct dlx_item item = {.tensor = question(k, N, 1)};
    uint64_t call;
    size_t size;
    fails(dlx_call_begin(k, &item, 1, CALL(.meta = &meta), &call), DLX_E_INVALID,
          "limit DLX_CALL_META_MAX, 65472");
    meta.size--;
    ok(dlx_call_begin(k, &item, 1, CALL(.meta = &meta), &call));
    auto_request *request = next(s);
    ck_assert_mem_eq(dlx_message_meta(dlx_request_message(request), &size), bytes, meta.size);
    ck_assert_uint_eq(size, meta.size);
    ok(dlx_request_alloc(request, SPEC(.dtype = {kDLInt, 64, 1}), &item.tensor));
    ok(dlx_reply(request, &item, 1, REPLY(.meta = &meta)));
    struct dlx_call_result result = result_of(k, call);
    (void)dlx_message_meta(result.reply, &size);
    ck_assert_uint_eq(size, meta.size);
    dlx_message_unref(result.reply);
}

TEST(replies_in_any_order_find_their_calls)
{
    auto_client *c = dlx_test_stream_connect();
    auto_service *s = serve(c, SERVICE(.max_held = 16));
    auto_caller *k = caller_of(c, NULL);
    struct dlx_request *requests[16];
    uint64_t calls[16];
    for (int64_t i = 0; i < 16; i++)
        calls[i] = ask(k, 10 * i, NULL);
    for (int i = 0; i < 16; i++)
        requests[i] = next(s);
    for (int i = 15; i >= 0; i--) {
        answer(requests[i]);
        requests[i] = dlx_request_unref(requests[i]);
    }
    for (int64_t i = 15; i >= 0; i--)
        expect_reply(k, calls[i], 10 * i + 1);
    no_result(k);
}

TEST(a_call_waits_while_others_are_in_flight)
{
    struct dlx_test_peer worker = begin_elsewhere(serve_elsewhere);
    auto_client *c = dlx_test_stream_connect();
    auto_caller *k = caller_of(c, NULL);
    uint64_t before = ask(k, 1, NULL);
    call_ok(k, N, 10);
    expect_reply(k, before, 2);
    call_ok(k, N, 20);
    no_result(k);
    dlx_test_peer_kill(&worker);
}

/* ---- errors -------------------------------------------------------------------------------- */

TEST(errors_of_workers_reach_the_caller)
{
    auto_client *c = dlx_test_stream_connect();
    auto_service *s = serve(c, NULL);
    auto_caller *k = caller_of(c, NULL);
    char words[64], longest[DLX_CALL_TEXT_MAX + 10];
    uint64_t call = ask(k, 1, NULL);
    struct dlx_request *request = next(s);
    ok(dlx_reply_error(request, 7, "no such model: detect"));
    fails(dlx_reply_error(request, 7, "twice"), DLX_E_NOT_FOUND, "answered before");
    dlx_request_unref(request);
    (void)snprintf(words, sizeof words, "worker (pid %d) answered with error 7: no such model",
                   (int)getpid());
    expect_failure(k, call, DLX_E_CALL_FAILED, words);
    ck_assert_int_eq(dlx_caller_worker_code(k), 7);
    call = ask(k, 1, NULL);
    request = next(s);
    ok(dlx_reply_error(request, 0, "none of ours"));
    dlx_request_unref(request);
    expect_failure(k, call, DLX_E_CALL_FAILED, "answered with an error: none of ours");
    call = ask(k, 1, NULL);
    request = next(s);
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    ok(dlx_reply_error(request, INT32_MIN, longest));
    dlx_request_unref(request);
    struct dlx_call_result result = result_of(k, call);
    ck_assert_int_eq(result.worker_code, INT32_MIN);
    longest[DLX_CALL_TEXT_MAX] = '\0';
    ck_assert_str_eq(strchr(result.text, 'x'), longest);
    ck_assert_uint_eq(caller_stats(k).failed, 3);
    ck_assert_uint_eq(service_stats(s).errors, 3);
}

TEST(a_request_that_is_let_go_fails_its_call)
{
    auto_client *c = dlx_test_stream_connect();
    struct dlx_service *s = serve(c, SERVICE(.max_held = 3));
    auto_caller *k = caller_of(c, NULL);
    uint64_t call = ask(k, 1, NULL);
    dlx_request_unref(next(s));
    expect_failure(k, call, DLX_E_CALL_FAILED, "let the request go without a reply");
    call = ask(k, 1, NULL);
    uint64_t other = ask(k, 2, NULL);
    struct dlx_request *request = next(s), *answered = next(s);
    answer(answered);
    s = dlx_service_unref(s);
    expect_reply(k, other, 3);
    expect_failure(k, call, DLX_E_CALL_FAILED, "let the request go without a reply");
    dlx_test_stream_check(dlx_request_message(request), N, 1); /* it stays valid */
    fails(dlx_reply_error(request, 1, ""), DLX_E_NOT_FOUND, "answered before");
    DLManagedTensorVersioned *t = NULL;
    fails(dlx_request_alloc(request, SPEC(.dtype = {kDLInt, 64, 1}), &t), DLX_E_NOT_FOUND,
          "service of the request has ended");
    dlx_request_unref(request);
    dlx_request_unref(answered);
}

TEST(a_message_that_is_no_request_is_not_handed_out)
{
    auto_client *c = dlx_test_stream_connect();
    auto_service *s = serve(c, NULL);
    auto_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER_BLOCKING());
    dlx_test_stream_publish(p, N, 1);
    no_request(s, SECOND / 20);
    ck_assert_uint_eq(service_stats(s).refused, 1);
    auto_caller *k = caller_of(c, NULL);
    uint64_t call = ask(k, 1, NULL);
    answer_next(s);
    expect_reply(k, call, 2);
}

/* ---- time ---------------------------------------------------------------------------------- */

TEST(a_timeout_says_who_has_the_request)
{
    auto_client *c = dlx_test_stream_connect();
    auto_caller *k = caller_of(c, NULL);
    char words[64];
    const struct dlx_call_args *soon = CALL(.timeout_ns = SECOND / 20);
    fails(dlx_caller_wait(k, SECOND / 50), DLX_E_TIMEOUT,
          "topic svc/add: no worker serves it at /");
    expect_failure(k, ask(k, 1, soon), DLX_E_TIMEOUT, "no worker serves it");
    auto_service *s = serve(c, NULL);
    ok(dlx_caller_wait(k, PATIENCE));
    (void)snprintf(words, sizeof words, "%s (pid %d)", NOBODY_HAS_IT, (int)getpid());
    expect_failure(k, ask(k, 1, soon), DLX_E_TIMEOUT, words);
    uint64_t call = ask(k, 1, CALL(.timeout_ns = SECOND / 5));
    auto_request *request = next(s);
    (void)snprintf(words, sizeof words, "(pid %d) has the request", (int)getpid());
    ck_assert_uint_lt(dlx_request_deadline_ns(request), dlx__now_ns() + (uint64_t)SECOND / 5);
    ck_assert(!dlx_request_cancelled(request));
    expect_failure(k, call, DLX_E_TIMEOUT, words);
    ck_assert(dlx_request_cancelled(request));
    ck_assert_uint_eq(caller_stats(k).timed_out, 3);
    ck_assert_uint_eq(service_stats(s).expired, 2);
}

/* A process that computes makes no call. It is ready for two callers that come meanwhile. */
TEST(a_worker_that_makes_no_call_serves_callers_that_come)
{
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    auto_service *s = serve(c, NULL);
    auto_caller *first = caller_of(other, NULL), *second = caller_of(other, NULL),
                *third = caller_of(other, NULL);
    char words[64];
    (void)snprintf(words, sizeof words, "%s (pid %d)", NOBODY_HAS_IT, (int)getpid());
    ck_assert_uint_eq(caller_stats(first).n_workers, 1);
    ck_assert_uint_eq(caller_stats(second).n_workers, 1);
    ck_assert_uint_eq(caller_stats(third).n_workers, 0);
    ok(dlx_caller_wait(third, 0));
    ok(dlx_caller_wait(third, PATIENCE));
    expect_failure(third, ask(third, 1, CALL(.timeout_ns = 1)), DLX_E_TIMEOUT, words);
    uint64_t call = ask(third, 5, NULL);
    answer_next(s);
    expect_reply(third, call, 6);
    ck_assert_uint_eq(caller_stats(third).n_workers, 1);
}

TEST(a_subscriber_that_makes_no_call_is_no_worker)
{
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    auto_subscription *s = dlx_test_stream_subscribe(c, TOPIC, NULL);
    auto_caller *first = caller_of(other, NULL), *second = caller_of(other, NULL),
                *third = caller_of(other, NULL);
    struct dlx_caller *callers[] = {first, second, third};
    for (int i = 0; i < 3; i++) {
        fails(dlx_caller_wait(callers[i], SECOND / 50), DLX_E_TIMEOUT, "no worker serves it at /");
        expect_failure(callers[i], ask(callers[i], 1, CALL(.timeout_ns = 1)), DLX_E_TIMEOUT,
                       "no worker serves it");
    }
}

static int interrupt(void *userdata)
{
    return *(const int *)userdata;
}

/* What an interrupt calls on its own caller, or service, and what that returned. */
static struct {
    struct dlx_caller *k;
    struct dlx_service *s;
    int code;
} nested;

static int call_again(void *userdata)
{
    struct dlx_caller_stats of_caller = {.size = sizeof of_caller};
    struct dlx_service_stats of_service = {.size = sizeof of_service};
    (void)userdata;
    if (nested.k)
        nested.code = dlx_caller_get_stats(nested.k, &of_caller);
    else if (nested.s)
        nested.code = dlx_service_get_stats(nested.s, &of_service);
    return 0;
}

/* Also of a thread that has made so many calls that the object is its own. */
LOOP_TEST(an_interrupt_makes_no_call_on_the_object_whose_call_it_interrupts, 0, 2)
{
    auto_client *c = NULL;
    ok(dlx_connect(CONNECT(.interrupt = call_again), &c));
    auto_caller *k = caller_of(c, NULL);
    auto_service *s = serve(c, NULL);
    struct dlx_caller_stats of_caller = {.size = sizeof of_caller};
    struct dlx_service_stats of_service = {.size = sizeof of_service};
    struct dlx_call_result none = {.size = sizeof none};
    struct dlx_request *request = NULL;
    for (int i = 0; i < 200; i++) {
        ok(dlx_caller_get_stats(k, &of_caller));
        ok(dlx_service_get_stats(s, &of_service));
    }
    if (_i == 1) /* a call that does not end, as nobody takes it */
        (void)ask(k, 1, NULL);
    nested.code = 1;
    nested.k = _i == 1 ? k : NULL;
    nested.s = _i == 1 ? NULL : s;
    while (nested.code == 1) {
        int r = _i == 1 ? dlx_call_take(k, SECOND / 10, &none)
                        : dlx_service_take(s, SECOND / 10, &request);
        ck_assert_int_eq(r, DLX_E_TIMEOUT);
    }
    nested.k = NULL;
    nested.s = NULL;
    ck_assert_int_eq(nested.code, DLX_E_IN_USE);
    ok(dlx_caller_get_stats(k, &of_caller));
    ok(dlx_service_get_stats(s, &of_service));
}

TEST(a_time_out_does_not_say_what_a_daemon_that_hangs_would_know)
{
    const char *words = "no worker is attached, and whether others serve it is not known: dlpackd";
    int stop = 0;
    auto_client *c = NULL;
    ok(dlx_connect(CONNECT(.interrupt = interrupt, .interrupt_data = &stop), &c));
    auto_caller *k = caller_of(c, NULL);
    struct dlx_call_result none = {.size = sizeof none};
    expect_failure(k, ask(k, 1, CALL(.timeout_ns = 1)), DLX_E_TIMEOUT, "no worker serves it");
    kill(dlx_test_stream_daemon.pid, SIGSTOP);
    expect_failure(k, ask(k, 1, CALL(.timeout_ns = 1)), DLX_E_TIMEOUT, words);
    fails(dlx_caller_wait(k, 0), DLX_E_TIMEOUT, words);
    uint64_t call = ask(k, 1, CALL(.timeout_ns = 1));
    stop = 1;
    fails(dlx_call_take(k, PATIENCE, &none), DLX_E_INTERRUPTED, "interrupted");
    fails(dlx_caller_wait(k, PATIENCE), DLX_E_INTERRUPTED, "interrupted");
    stop = 0;
    kill(dlx_test_stream_daemon.pid, SIGCONT);
    expect_failure(k, call, DLX_E_TIMEOUT, "no worker serves it");
}

TEST(a_request_whose_time_is_over_is_not_started)
{
    auto_client *c = dlx_test_stream_connect();
    auto_service *s = serve(c, NULL);
    auto_caller *k = caller_of(c, NULL);
    uint64_t call = ask(k, 1, CALL(.timeout_ns = 1));
    no_request(s, 0);
    expect_failure(k, call, DLX_E_TIMEOUT, "");
    ck_assert_uint_eq(service_stats(s).expired, 1);
    call = ask(k, 5, NULL);
    answer_next(s);
    expect_reply(k, call, 6);
}

TEST(a_late_reply_is_dropped_and_never_given_to_the_next_call)
{
    auto_client *c = dlx_test_stream_connect();
    auto_service *s = serve(c, SERVICE(.max_held = 2));
    auto_caller *k = caller_of(c, CALLER(.max_in_flight = 2));
    for (int64_t n = 0; n < 4; n++) {
        uint64_t late = ask(k, 1000, CALL(.timeout_ns = SECOND / 4));
        auto_request *slow = next(s);
        expect_failure(k, late, DLX_E_TIMEOUT, "has the request");
        uint64_t call = ask(k, n, NULL);
        answer(slow);
        answer_next(s);
        expect_reply(k, call, n + 1);
    }
    ck_assert_uint_eq(caller_stats(k).late, 4);
    ck_assert_uint_eq(caller_stats(k).n_in_flight, 0);
}

TEST(a_call_that_timed_out_counts_until_its_worker_lets_go_of_it)
{
    auto_client *c = dlx_test_stream_connect();
    auto_service *s = serve(c, NULL);
    auto_caller *k = caller_of(c, CALLER(.max_in_flight = 1));
    uint64_t late = ask(k, 1, CALL(.timeout_ns = SECOND / 4)), more;
    auto_request *slow = next(s);
    expect_failure(k, late, DLX_E_TIMEOUT, "has the request");
    auto_tensor *t = question(k, N, 5);
    const struct dlx_item item = {.tensor = t};
    fails(dlx_call_begin(k, &item, 1, NULL, &more), DLX_E_FULL, "1 calls are in flight");
    answer(slow);
    slow = dlx_request_unref(slow);
    ok(dlx_call_begin(k, &item, 1, NULL, &more));
    t = NULL;
    answer_next(s);
    expect_reply(k, more, 6);
}

/* Says to the caller of the request, as any worker of the service could. */
static void forge(struct dlx_publisher *p, struct dlx_envelope envelope, int64_t value)
{
    const int64_t n = N;
    const struct dlx_tensor_spec spec = INT64_SPEC(&n);
    struct dlx_item item = {.name = NULL};
    ok(dlx_alloc(p, &spec, &item.tensor));
    fill(item.tensor, N, value);
    ok(dlx__envelope_publish(p, &envelope, &item, 1, NULL, NULL));
}

TEST(a_reply_that_fits_no_call_is_dropped)
{
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *all = dlx_test_stream_subscribe(c, TOPIC, NULL);
    auto_service *s = serve(c, NULL);
    auto_caller *k = caller_of(c, CALLER(.max_in_flight = 2));
    uint64_t call = ask(k, 1, NULL);
    auto_message *m = dlx_test_stream_next(all);
    struct dlx_envelope envelope;
    char inbox[DLX_INBOX_SIZE + 1];
    size_t size;
    memcpy(&envelope, dlx_message_meta(m, &size), sizeof envelope);
    ck_assert_uint_eq(size, sizeof envelope);
    dlx__inbox_name(envelope.token, inbox);
    auto_publisher *p = NULL;
    ok(dlx__publisher_new(c, inbox, NULL, &p));
    forge(p, envelope, 100); /* a request */
    envelope.kind = DLX_ENVELOPE_REPLY;
    for (uint32_t i = 1; i < 5; i++) {
        struct dlx_envelope wrong = envelope;
        wrong.call += i == 1 ? 1000 : i == 2 ? UINT64_MAX : 0;
        wrong.slot += i == 3 ? 1 : i == 4 ? UINT32_MAX - 7 : 0;
        forge(p, wrong, 100);
    }
    dlx_test_stream_publish(p, N, 100); /* nothing of ours */
    answer_next(s);
    expect_reply(k, call, 2);
    eventually(({
        struct dlx_call_result none = {.size = sizeof none};
        uint64_t next_call = ask(k, 5, NULL);
        answer_next(s);
        expect_reply(k, next_call, 6);
        dlx_call_take(k, 0, &none) == DLX_E_NOT_FOUND &&caller_stats(k).late == 6;
    }));
}

/* ---- cancel, and limits -------------------------------------------------------------------- */

TEST(a_cancelled_call_is_not_started)
{
    auto_client *c = dlx_test_stream_connect();
    auto_service *s = serve(c, SERVICE(.max_held = 2));
    auto_caller *k = caller_of(c, NULL);
    uint64_t first = ask(k, 1, NULL), second = ask(k, 2, NULL), third = ask(k, 3, NULL);
    auto_request *request = next(s);
    ck_assert(!dlx_request_cancelled(request));
    ok(dlx_call_cancel(k, first));
    ok(dlx_call_cancel(k, second));
    fails(dlx_call_cancel(k, second), DLX_E_NOT_FOUND, "is not in flight");
    ck_assert(dlx_request_cancelled(request));
    answer(request);
    answer_next(s);
    expect_reply(k, third, 4);
    ck_assert_uint_eq(service_stats(s).expired, 1);
    ck_assert_uint_eq(caller_stats(k).cancelled, 2);
    uint64_t ended = ask(k, 4, NULL);
    uint64_t last = ask(k, 5, NULL);
    answer_next(s);
    answer_next(s);
    expect_reply(k, ended, 5);
    ok(dlx_call_cancel(k, last)); /* its reply is there, and is released */
    no_result(k);
}

TEST(no_more_calls_than_max_in_flight)
{
    auto_client *c = dlx_test_stream_connect();
    auto_service *s = serve(c, NULL);
    auto_caller *k = caller_of(c, CALLER(.max_in_flight = 3));
    auto_tensor *t = question(k, N, 0);
    const struct dlx_item item = {.tensor = t};
    uint64_t calls[3], more = 0;
    bool sent = true;
    for (int64_t i = 0; i < 3; i++)
        calls[i] = ask(k, i, NULL);
    fails(dlx_call_begin(k, &item, 1, NULL, &more), DLX_E_FULL, "3 calls are in flight");
    struct dlx_message *reply;
    fails(dlx_call(k, &item, 1, NULL, &reply, &sent), DLX_E_FULL, "max_in_flight");
    ck_assert(!sent);
    answer_next(s);
    fails(dlx_call_begin(k, &item, 1, NULL, &more), DLX_E_FULL, ""); /* nobody took the result */
    expect_reply(k, calls[0], 1);
    ok(dlx_call_cancel(k, calls[1]));
    calls[0] = ask(k, 9, NULL);
    fails(dlx_call_begin(k, &item, 1, NULL, &more), DLX_E_FULL, ""); /* a worker may answer it */
    answer_next(s); /* call 2, since call 1 is dropped */
    expect_reply(k, calls[2], 3);
    ok(dlx_call_begin(k, &item, 1, NULL, &more)); /* the dropped one is over */
    t = NULL;
    answer_next(s);
    answer_next(s);
    expect_reply(k, calls[0], 10);
    expect_reply(k, more, 1);
}

TEST(a_call_that_takes_long_does_not_stop_others)
{
    auto_client *c = dlx_test_stream_connect();
    auto_service *slow = serve(c, NULL);
    auto_caller *k = caller_of(c, CALLER(.max_in_flight = 2));
    uint64_t old = ask(k, 1000, NULL);
    auto_request *request = next(slow);
    auto_service *s = serve(c, NULL);
    for (int64_t n = 0; n < 100; n++) {
        uint64_t call = ask(k, n, NULL);
        answer_next(s);
        expect_reply(k, call, n + 1);
    }
    answer(request);
    expect_reply(k, old, 1001);
}

/* 128 behind it is the least. */
TEST(a_request_that_takes_too_long_is_named_to_a_caller_that_is_far_ahead_of_it)
{
    enum { AHEAD = 128 };
    auto_client *c = dlx_test_stream_connect(), *c2 = dlx_test_stream_connect();
    auto_caller *k = caller_of(c, CALLER(.max_in_flight = 2));
    auto_service *slow = serve(c2, NULL);
    uint64_t oldest = ask(k, 0, NULL);
    auto_request *request = next(slow);
    auto_service *s = serve(c2, NULL);
    for (int i = 1; i < AHEAD; i++) {
        uint64_t call = ask(k, i, NULL);
        answer_next(s);
        expect_reply(k, call, i + 1);
    }
    const struct dlx_item item = {.tensor = question(k, N, 1)};
    uint64_t call = 0;
    fails(dlx_call_begin(k, &item, 1, NULL, &call), DLX_E_FULL, "message 1, published ");
    contains(dlx_errmsg(), " s ago: worker e2e_call (pid");
    contains(dlx_errmsg(), "this caller may be 128 requests ahead of it (max_in_flight 2)");
    answer(request);
    expect_reply(k, oldest, 1);
    ok(dlx_call_begin(k, &item, 1, NULL, &call));
    answer_next(s);
    expect_reply(k, call, 2);
}

TEST(a_descriptor_tells_of_results_and_of_time)
{
    auto_client *c = dlx_test_stream_connect();
    auto_service *s = serve(c, NULL);
    auto_caller *k = caller_of(c, NULL);
    struct pollfd pfd = {.fd = dlx_caller_fd(k), .events = POLLIN};
    struct pollfd work = {.fd = dlx_service_fd(s), .events = POLLIN};
    struct dlx_call_result result = {.size = sizeof result};
    ck_assert_int_ge(pfd.fd, 0);
    ck_assert_int_ge(work.fd, 0);
    for (int64_t n = 0; n < 20; n++) {
        struct dlx_request *request = NULL;
        int r;
        uint64_t call = ask(k, n, CALL(.timeout_ns = n % 5 == 4 ? SECOND / 50 : PATIENCE));
        ck_assert_int_eq(dlx_call_take(k, 0, &result), DLX_E_EMPTY);
        while (n % 5 != 4 && (r = dlx_service_take(s, 0, &request)) == DLX_E_EMPTY)
            ck_assert_int_eq(poll(&work, 1, PATIENCE / 1000000), 1);
        if (request)
            answer(request);
        dlx_request_unref(request);
        while ((r = dlx_call_take(k, 0, &result)) == DLX_E_EMPTY)
            ck_assert_int_eq(poll(&pfd, 1, PATIENCE / 1000000), 1);
        ok(r);
        ck_assert_uint_eq(result.call, call);
        ck_assert_int_eq(result.code, n % 5 == 4 ? DLX_E_TIMEOUT : 0);
        dlx_message_unref(result.reply);
    }
}

TEST(a_descriptor_tells_of_a_time_that_is_over_without_a_take_before)
{
    auto_client *c = dlx_test_stream_connect();
    auto_caller *k = caller_of(c, NULL);
    struct pollfd pfd = {.fd = dlx_caller_fd(k), .events = POLLIN};
    do
        no_result(k);
    while (poll(&pfd, 1, 0) == 1);
    uint64_t before = dlx__now_ns(), call = ask(k, 1, CALL(.timeout_ns = SECOND / 50));
    ck_assert_int_eq(poll(&pfd, 1, PATIENCE / 1000000), 1);
    ck_assert_uint_lt(dlx__now_ns() - before, SECOND / 2);
    expect_failure(k, call, DLX_E_TIMEOUT, "no worker serves it");
}

/* ---- the end of workers and callers -------------------------------------------------------- */

TEST(a_caller_learns_at_once_that_its_worker_died)
{
    struct dlx_test_peer worker = begin_elsewhere(keep_elsewhere);
    auto_client *c = dlx_test_stream_connect();
    auto_caller *k = caller_of(c, NULL);
    char words[64];
    uint64_t call = ask(k, 1, NULL);
    dlx_test_peer_hear(&worker);
    pid_t pid = worker.pid;
    struct dlx_call_result none = {.size = sizeof none};
    fails(dlx_call_take(k, SECOND / 100, &none), DLX_E_TIMEOUT, "no call has ended in time");
    uint64_t before = dlx__now_ns();
    dlx_test_peer_kill(&worker);
    (void)snprintf(words, sizeof words, "pid %d", (int)pid); /* its name can be seen no more */
    expect_failure(k, call, DLX_E_WORKER_GONE, words);
    ck_assert_uint_lt(dlx__now_ns() - before, SECOND / 2);
    ck_assert_uint_eq(caller_stats(k).workers_gone, 1);
    auto_service *s = serve(c, NULL);
    no_request(s, SECOND / 20); /* it is done */
    call = ask(k, 5, NULL);
    answer_next(s);
    expect_reply(k, call, 6);
}

TEST(a_caller_learns_that_its_worker_died_also_from_a_daemon_that_hangs)
{
    struct dlx_test_peer worker = begin_elsewhere(keep_elsewhere);
    auto_client *c = dlx_test_stream_connect();
    auto_caller *k = caller_of(c, NULL);
    struct dlx_call_result none = {.size = sizeof none};
    uint64_t call = ask(k, 1, NULL);
    dlx_test_peer_hear(&worker);
    fails(dlx_call_take(k, SECOND / 100, &none), DLX_E_TIMEOUT, "no call has ended in time");
    kill(dlx_test_stream_daemon.pid, SIGSTOP);
    uint64_t before = dlx__now_ns();
    dlx_test_peer_kill(&worker);
    expect_failure(k, call, DLX_E_WORKER_GONE, "died with the request");
    ck_assert_uint_lt(dlx__now_ns() - before, 2 * SECOND);
    kill(dlx_test_stream_daemon.pid, SIGCONT);
}

TEST(another_worker_answers_what_is_idempotent)
{
    struct dlx_test_peer worker = begin_elsewhere(keep_elsewhere);
    auto_client *c = dlx_test_stream_connect();
    auto_caller *k = caller_of(c, NULL);
    uint64_t call = ask(k, 1, CALL(.idempotent = true));
    dlx_test_peer_hear(&worker);
    auto_service *s = serve(c, NULL);
    no_request(s, 0);
    uint64_t before = dlx__now_ns();
    dlx_test_peer_kill(&worker);
    auto_request *request = next(s);
    ck_assert_uint_lt(dlx__now_ns() - before, SECOND / 2);
    ck_assert_uint_eq(dlx_message_attempt(dlx_request_message(request)), 2);
    answer(request);
    expect_reply(k, call, 2);
}

TEST(another_worker_tells_what_the_caller_does_not_see)
{
    struct dlx_test_peer worker = begin_elsewhere(keep_elsewhere);
    auto_client *c = dlx_test_stream_connect();
    auto_caller *k = caller_of(c, NULL);
    uint64_t call = ask(k, 1, NULL);
    dlx_test_peer_hear(&worker);
    auto_service *s = serve(c, NULL);
    dlx_test_peer_kill(&worker);
    eventually(({
        struct dlx_request *none = NULL;
        ck_assert_int_lt(dlx_service_take(s, SECOND / 100, &none), 0);
        service_stats(s).gone == 1;
    }));
    expect_failure(k, call, DLX_E_WORKER_GONE, "died");
}

static size_t n_publishers(struct dlx_client *c)
{
    return dlx_test_stream_list(
        c, &(struct dlx_publisher_info){.size = sizeof(struct dlx_publisher_info)});
}

TEST(a_killed_caller_leaves_nothing)
{
    auto_client *c = dlx_test_stream_connect();
    size_t n_daemon_fds = dlx_test_daemon_n_fds(&dlx_test_stream_daemon);
    auto_service *s = serve(c, NULL);
    size_t n_fds = dlx_test_n_fds();
    struct dlx_test_peer waits = begin_elsewhere(ask_elsewhere);
    struct dlx_test_peer served = begin_elsewhere(ask_elsewhere);
    for (int n = 0; n < 2; n++)
        answer_next(s);
    dlx_test_peer_hear(&served);
    dlx_test_peer_hear(&waits);
    ck_assert_uint_eq(service_stats(s).n_callers, 2);
    struct dlx_daemon_info before = dlx_test_stream_daemon_info(c);
    ck_assert_uint_ge(before.n_publishers, 4);
    dlx_test_peer_kill(&waits);
    dlx_test_peer_kill(&served);
    eventually(({
        no_request(s, SECOND / 100);
        service_stats(s).n_callers == 0 && n_publishers(c) == 0;
    }));
    eventually(dlx_test_stream_daemon_info(c).n_publishers == 0);
    eventually(({
        no_request(s, SECOND / 100);
        dlx_test_n_fds() == n_fds;
    }));
    s = dlx_service_unref(s); /* it was given spare links for the next callers */
    dlx_test_daemon_wait_n_fds(&dlx_test_stream_daemon, n_daemon_fds);
}

/* The first workers get spare links to the inbox; the last one waits until the caller opens one. */
TEST(a_reply_waits_for_its_caller_while_another_caller_leaves)
{
    enum { WORKERS = 6 };
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    struct dlx_service *workers[WORKERS];
    uint64_t calls[WORKERS];
    for (int i = 0; i < WORKERS; i++)
        workers[i] = serve(c, NULL);
    auto_caller *k = caller_of(other, NULL);
    for (int i = 0; i < WORKERS; i++)
        calls[i] = ask(k, i, NULL);
    for (int i = 0; i < WORKERS; i++)
        answer_next(workers[i]);
    struct dlx_caller *leaves = caller_of(c, NULL);
    dlx_caller_unref(leaves);
    for (int i = 0; i < WORKERS; i++)
        no_request(workers[i], SECOND / 50);
    for (int i = 0; i < WORKERS; i++)
        expect_reply(k, calls[i], i + 1);
    for (int i = 0; i < WORKERS; i++)
        dlx_service_unref(workers[i]);
}

/* It could not wait until the caller looked. */
TEST(a_caller_is_told_that_a_worker_left_before_its_reply_was_seen)
{
    enum { WORKERS = 6 };
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    struct dlx_service *workers[WORKERS];
    struct dlx_call_result result = {.size = sizeof result};
    int n_replies = 0;
    for (int i = 0; i < WORKERS; i++)
        workers[i] = serve(c, NULL);
    auto_caller *k = caller_of(other, NULL);
    for (int i = 0; i < WORKERS; i++)
        ask(k, i, NULL);
    for (int i = 0; i < WORKERS; i++) {
        answer_next(workers[i]);
        dlx_service_unref(workers[i]);
    }
    for (int i = 0; i < WORKERS; i++) {
        ok(dlx_call_take(k, PATIENCE, &result));
        n_replies += result.code == 0;
        if (result.code != 0)
            contains(result.text, "no reply came: worker (pid ");
        dlx_message_unref(result.reply);
    }
    contains(result.text, "1 messages: it left before a call here");
    ck_assert(n_replies > 0 && n_replies < WORKERS);
}

TEST(requests_of_a_killed_caller_are_not_started)
{
    auto_client *c = dlx_test_stream_connect();
    struct dlx_test_peer caller = begin_elsewhere(ask_elsewhere);
    dlx_test_peer_kill(&caller);
    eventually(n_publishers(c) == 0);
    auto_service *s = serve(c, NULL);
    no_request(s, SECOND / 20);
    eventually(dlx_test_stream_daemon_info(c).n_publishers == 0);
}

TEST(a_worker_sees_that_the_caller_was_killed)
{
    auto_client *c = dlx_test_stream_connect();
    auto_service *s = serve(c, SERVICE(.max_held = 2));
    struct dlx_test_peer caller = begin_elsewhere(ask_elsewhere);
    auto_request *request = next(s);
    ck_assert(!dlx_request_cancelled(request));
    dlx_test_peer_kill(&caller);
    eventually(({
        no_request(s, SECOND / 100);
        dlx_request_cancelled(request);
    }));
    answer(request); /* in vain */
    request = dlx_request_unref(request);
    eventually(({
        no_request(s, SECOND / 100);
        service_stats(s).n_callers == 0;
    }));
    ck_assert_uint_eq(service_stats(s).abandoned, 1);
}

/* ---- many ---------------------------------------------------------------------------------- */

static void *call_in_thread(void *userdata)
{
    auto_client *c = dlx_test_stream_connect();
    auto_caller *k = caller_of(c, CALLER(.max_in_flight = 4));
    uint32_t n_begun = 0, n_ended = 0;
    (void)userdata;
    while (n_ended < 200) {
        bool is_full = false; /* one that waits for its worker may hold others up */
        while (!is_full && n_begun < 200 && n_begun - n_ended < 4) {
            const struct dlx_item item = {.tensor = question(k, N, n_begun)};
            uint64_t call;
            int r = dlx_call_begin(k, &item, 1, CALL(.timeout_ns = PATIENCE), &call);
            is_full = r == DLX_E_FULL;
            ck_assert_msg(r == 0 || is_full, "%d %s", r, dlx_errmsg());
            n_begun += r == 0;
            if (is_full)
                item.tensor->deleter(item.tensor);
        }
        if (n_begun == n_ended) { /* a worker that has replied has yet to say that it is done */
            sched_yield();
            continue;
        }
        struct dlx_call_result result = {.size = sizeof result};
        ok(dlx_call_take(k, PATIENCE, &result));
        ck_assert_msg(result.code == 0, "%d %s", result.code, result.text);
        ck_assert_int_eq(first_of(result.reply), (int64_t)result.call);
        dlx_message_unref(result.reply);
        n_ended++;
    }
    return NULL;
}

TEST(several_callers_and_workers)
{
    struct dlx_test_peer workers[3];
    pthread_t threads[4];
    for (int i = 0; i < 3; i++)
        workers[i] = begin_elsewhere(serve_elsewhere);
    for (int i = 0; i < 4; i++)
        threads[i] = dlx_test_stream_thread(call_in_thread, NULL);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 3; i++)
        dlx_test_peer_kill(&workers[i]);
}

/* What a worker and the daemon spend on a caller, by which a service of default limits has a
 * thousand of them. */
TEST(a_caller_costs_a_worker_few_descriptors)
{
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    auto_service *s = serve(c, NULL);
    struct dlx_caller *callers[33];
    size_t n_fds = 0, n_daemon_fds = 0;
    for (int64_t i = 0; i < 33; i++) {
        callers[i] = caller_of(other, NULL);
        uint64_t call = ask(callers[i], i, NULL);
        answer_next(s);
        expect_reply(callers[i], call, i + 1);
        if (i == 0) {
            n_fds = dlx_test_n_fds();
            n_daemon_fds = dlx_test_daemon_n_fds(&dlx_test_stream_daemon);
        }
    }
    ck_assert_uint_le((dlx_test_n_fds() - n_fds) / 32, 18); /* of both, in this process */
    ck_assert_uint_le((dlx_test_daemon_n_fds(&dlx_test_stream_daemon) - n_daemon_fds) / 32, 20);
    for (int i = 0; i < 33; i++)
        dlx_caller_unref(callers[i]);
}

static void call_there_and_back(struct dlx_service *s, struct dlx_caller *k, int64_t value)
{
    uint64_t call = ask(k, value, NULL);
    answer_next(s);
    expect_reply(k, call, value + 1);
}

/* The client may have so many links: it tells the daemon what its open files allow. */
static struct dlx_client *connect_with_links(rlim_t n)
{
    struct rlimit limit, low;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    low = limit;
    low.rlim_cur = 64 + 2 * n;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &low), 0);
    struct dlx_client *c = dlx_test_stream_connect();
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    return c;
}

TEST(a_worker_that_could_not_be_linked_to_a_caller_answers_it_later)
{
    if (dlx_test_valgrind()) {
        puts("SKIP: valgrind keeps RLIMIT_NOFILE to itself");
        return;
    }
    auto_client *c = connect_with_links(2), *others = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(others, "test/other", NULL);
    auto_service *s = serve(others, NULL);
    auto_caller *k = caller_of(c, NULL);
    struct dlx_subscription *other = dlx_test_stream_subscribe(c, "test/other", NULL);
    ok(dlx_caller_wait(k, PATIENCE));
    uint64_t call = ask(k, 1, NULL);
    answer_next(s);
    expect_failure(k, call, DLX_E_WORKER_GONE, "has 2 links (limit 2, by its limits of open files");
    other = dlx_subscription_unref(other);
    call = ask(k, 2, NULL);
    answer_next(s);
    expect_reply(k, call, 3);
    ck_assert_uint_eq(service_stats(s).n_callers, 1);
}

/* A worker that has no descriptor for another caller: 0; or 1: the request is idempotent. */
LOOP_TEST(a_caller_that_cannot_be_answered_does_not_stop_others, 0, 2)
{
    struct rlimit limit, low;
    if (dlx_test_valgrind()) {
        puts("SKIP: valgrind keeps RLIMIT_NOFILE to itself");
        return;
    }
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    auto_service *s = serve(c, NULL);
    auto_caller *served = caller_of(other, NULL), *k = caller_of(other, NULL);
    call_there_and_back(s, served, 1);
    uint64_t call = ask(k, 4, CALL(.timeout_ns = 1));
    expect_failure(k, call, DLX_E_TIMEOUT, "");
    eventually(({ /* it has heard of the second one, and has answered nothing */
                  no_request(s, 0);
                  service_stats(s).expired == 1;
    }));
    call = ask(k, 5, CALL(.idempotent = _i == 1));
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    low = limit;
    int next = dlx_test_fds_dup(0);
    close(next);
    low.rlim_cur = (rlim_t)next;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &low), 0);
    for (int n = 0; n < (_i ? 15 : 3); n++) { /* five attempts, of three tries each */
        struct dlx_request *none = NULL;
        fails(dlx_service_take(s, 0, &none), DLX_E_FD_LIMIT, "no way to reply to caller");
    }
    no_request(s, 0);
    call_there_and_back(s, served, 2);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    expect_failure(k, call, DLX_E_WORKER_GONE, "no reply came");
    call_there_and_back(s, k, 3);
    ck_assert_uint_eq(service_stats(s).refused, _i ? 5 : 1);
}

TEST(as_many_replies_may_be_held_as_are_asked_for_and_some_more)
{
    auto_client *c = dlx_test_stream_connect();
    auto_service *s = serve(c, NULL);
    auto_caller *k = caller_of(c, CALLER(.max_in_flight = 1));
    struct dlx_call_result result = {.size = sizeof result};
    struct dlx_message *held[66] = {NULL};
    uint64_t call = 0;
    for (int i = 0; i < 66; i++) {
        call = ask(k, i, NULL);
        answer_next(s);
        if (i == 65)
            fails(dlx_call_take(k, 0, &result), DLX_E_TOO_MANY_HELD,
                  "held, 65 at most: release some");
        else
            held[i] = result_of(k, call).reply;
    }
    dlx_test_stream_unref_messages(held, 65);
    expect_reply(k, call, 66);
}

/* ---- inboxes ------------------------------------------------------------------------------- */

TEST(an_inbox_is_in_no_list_and_matches_no_pattern)
{
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *all = dlx_test_stream_subscribe(c, "**", NULL);
    auto_service *s = serve(c, NULL);
    auto_caller *k = caller_of(c, NULL);
    uint64_t call = ask(k, 1, NULL);
    answer_next(s);
    expect_reply(k, call, 2);
    auto_message *m = dlx_test_stream_next(all);
    ck_assert_str_eq(dlx_message_topic(m), TOPIC);
    take_fails(all, SECOND / 20, DLX_E_TIMEOUT, "");
    struct dlx_publisher_info info = {.size = sizeof info};
    ck_assert_uint_eq(dlx_test_stream_list(c, &info), 1);
    ck_assert_str_eq(info.topic, TOPIC);
    struct dlx_subscription *none = NULL;
    fails(dlx_subscribe(c, "@00112233445566778899aabbccddeeff", NULL, &none), DLX_E_TOPIC, "'@'");
    struct dlx_publisher *p = NULL;
    fails(dlx_publisher_new(c, "@00112233445566778899aabbccddeeff", NULL, &p), DLX_E_TOPIC, "'@'");
}

/* ---- restarts ------------------------------------------------------------------------------ */

TEST(calls_go_on_with_another_daemon)
{
    struct dlx_test_peer worker = begin_elsewhere(serve_elsewhere);
    auto_client *c = dlx_test_stream_connect();
    auto_caller *k = caller_of(c, NULL);
    for (int64_t round = 0; round < 3; round++) {
        for (int64_t n = 0; n < 20; n++)
            call_ok(k, N, 100 * round + n);
        dlx_test_stream_restart();
    }
    for (int64_t n = 0; n < 20; n++)
        call_ok(k, N, n);
    dlx_test_peer_kill(&worker);
}

TEST(a_request_outlives_a_killed_daemon)
{
    auto_client *c = dlx_test_stream_connect();
    auto_service *s = serve(c, NULL);
    auto_caller *k = caller_of(c, NULL);
    uint64_t taken = ask(k, 1, NULL), waits = ask(k, 2, NULL);
    struct dlx_request *request = next(s);
    dlx_test_stream_restart();
    answer(request);
    dlx_request_unref(request);
    expect_reply(k, taken, 2);
    answer_next(s);
    expect_reply(k, waits, 3);
}

/* A process that computes makes no call. */
TEST(a_worker_that_has_yet_to_come_to_another_daemon_serves)
{
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    auto_service *s = serve(c, NULL);
    auto_caller *k = caller_of(other, NULL);
    char words[64];
    (void)snprintf(words, sizeof words, "%s (pid %d)", NOBODY_HAS_IT, (int)getpid());
    dlx_test_stream_restart();
    ok(dlx_caller_wait(k, PATIENCE));
    ck_assert_uint_eq(caller_stats(k).n_workers, 0);
    expect_failure(k, ask(k, 1, CALL(.timeout_ns = 1)), DLX_E_TIMEOUT, words);
    uint64_t call = ask(k, 5, NULL);
    answer_next(s);
    expect_reply(k, call, 6);
}

/* The worker comes to the new daemon before the caller does, who has yet to subscribe there. */
TEST(the_first_request_of_a_caller_outlives_a_killed_daemon)
{
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    auto_service *s = serve(other, SERVICE(.max_held = 2));
    auto_caller *k = caller_of(c, NULL);
    uint64_t first = ask(k, 1, NULL), second = ask(k, 2, NULL);
    dlx_test_stream_restart();
    struct dlx_request *requests[] = {next(s), next(s)};
    for (int i = 0; i < 2; i++) {
        answer(requests[i]);
        dlx_request_unref(requests[i]);
    }
    expect_reply(k, first, 2);
    expect_reply(k, second, 3);
}
