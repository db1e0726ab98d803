/* SPDX-License-Identifier: Apache-2.0 */

/* Calls against a real daemon: each request has one reply, which its caller gets, or the caller is
 * told why there is none. */

#include "client/publish/publisher.h"
#include "client/service/envelope.h"
#include "tests/client/harness_call.h"
#include <poll.h>
#include <stdatomic.h>

#define NOBODY_HAS_IT "none of its workers has the request: e2e_call"

/* ---- replies ------------------------------------------------------------------------------- */

TEST(a_call_returns_its_reply)
{
    struct dlx_test_peer worker = dlx_test_peer_begin(dlx_call_serve_elsewhere);
    auto_client *c = dlx_test_stream_connect();
    auto_caller *k = dlx_call_caller(c, NULL);
    ok(dlx_caller_wait(k, PATIENCE));
    for (int64_t n = 0; n < 100; n++)
        dlx_call_there_and_back(k, N, 100 * n);
    for (int64_t n = 0; n < 20; n++)
        dlx_call_there_and_back(k, 131072, n); /* 1 MiB */
    struct dlx_caller_stats stats = dlx_call_caller_stats(k);
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
    auto_service *s = dlx_call_service(c, NULL);
    auto_caller *k = dlx_call_caller(c, NULL);
    const struct dlx_item two[] = {{"a", dlx_call_question(k, 3, 5)},
                                   {"b", dlx_call_question(k, 4, 7)}};
    uint64_t call;
    size_t size;
    ok(dlx_call_begin(k, two, 2, CALL(.meta = BYTES("how much?")), &call));
    auto_request *request = dlx_call_next(s);
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
    struct dlx_call_result result = dlx_call_result_of(k, call);
    ck_assert_int_eq(result.code, 0);
    auto_message *reply = result.reply;
    ck_assert_uint_eq(dlx_message_n_tensors(reply), 2);
    ck_assert_str_eq(dlx_message_tensor_name(reply, 0), "x");
    ck_assert_mem_eq(dlx_message_meta(reply, &size), "so much", 7);
    ck_assert_uint_eq(size, 7);
    request = dlx_request_unref(request);
    call = dlx_call_ask(k, 1, NULL);
    request = dlx_call_next(s);
    ck_assert_ptr_null(dlx_message_meta(dlx_request_message(request), &size));
    ck_assert_uint_eq(size, 0);
    dlx_call_answer(request);
    dlx_call_expect_reply(k, call, 2);
}

TEST(the_largest_metadata_goes_both_ways_and_more_is_refused)
{
    static const char bytes[DLX_CALL_META_MAX + 1] = "m";
    auto_client *c = dlx_test_stream_connect();
    auto_service *s = dlx_call_service(c, NULL);
    auto_caller *k = dlx_call_caller(c, NULL);
    struct dlx_bytes meta = {.data = bytes, .size = sizeof bytes};
    struct dlx_item item = {.tensor = dlx_call_question(k, N, 1)};
    uint64_t call;
    size_t size;
    fails(dlx_call_begin(k, &item, 1, CALL(.meta = &meta), &call), DLX_E_INVALID,
          "limit DLX_CALL_META_MAX, 65472");
    meta.size--;
    ok(dlx_call_begin(k, &item, 1, CALL(.meta = &meta), &call));
    auto_request *request = dlx_call_next(s);
    ck_assert_mem_eq(dlx_message_meta(dlx_request_message(request), &size), bytes, meta.size);
    ck_assert_uint_eq(size, meta.size);
    ok(dlx_request_alloc(request, SPEC(.dtype = {kDLInt, 64, 1}), &item.tensor));
    ok(dlx_reply(request, &item, 1, REPLY(.meta = &meta)));
    struct dlx_call_result result = dlx_call_result_of(k, call);
    (void)dlx_message_meta(result.reply, &size);
    ck_assert_uint_eq(size, meta.size);
    dlx_message_unref(result.reply);
}

TEST(replies_in_any_order_find_their_calls)
{
    auto_client *c = dlx_test_stream_connect();
    auto_service *s = dlx_call_service(c, SERVICE(.max_held = 16));
    auto_caller *k = dlx_call_caller(c, NULL);
    struct dlx_request *requests[16];
    uint64_t calls[16];
    for (int64_t i = 0; i < 16; i++)
        calls[i] = dlx_call_ask(k, 10 * i, NULL);
    for (int i = 0; i < 16; i++)
        requests[i] = dlx_call_next(s);
    for (int i = 15; i >= 0; i--) {
        dlx_call_answer(requests[i]);
        requests[i] = dlx_request_unref(requests[i]);
    }
    for (int64_t i = 15; i >= 0; i--)
        dlx_call_expect_reply(k, calls[i], 10 * i + 1);
    dlx_call_no_result(k);
}

TEST(a_call_waits_while_others_are_in_flight)
{
    struct dlx_test_peer worker = dlx_test_peer_begin(dlx_call_serve_elsewhere);
    auto_client *c = dlx_test_stream_connect();
    auto_caller *k = dlx_call_caller(c, NULL);
    uint64_t before = dlx_call_ask(k, 1, NULL);
    dlx_call_there_and_back(k, N, 10);
    dlx_call_expect_reply(k, before, 2);
    dlx_call_there_and_back(k, N, 20);
    dlx_call_no_result(k);
    dlx_test_peer_kill(&worker);
}

/* ---- errors -------------------------------------------------------------------------------- */

TEST(errors_of_workers_reach_the_caller)
{
    auto_client *c = dlx_test_stream_connect();
    auto_service *s = dlx_call_service(c, NULL);
    auto_caller *k = dlx_call_caller(c, NULL);
    char words[64], longest[DLX_CALL_TEXT_MAX + 10];
    uint64_t call = dlx_call_ask(k, 1, NULL);
    struct dlx_request *request = dlx_call_next(s);
    ok(dlx_reply_error(request, 7, "no such model: detect"));
    fails(dlx_reply_error(request, 7, "twice"), DLX_E_NOT_FOUND, "answered before");
    dlx_request_unref(request);
    (void)snprintf(words, sizeof words, "worker (pid %d) answered with error 7: no such model",
                   (int)getpid());
    dlx_call_expect_failure(k, call, DLX_E_CALL_FAILED, words);
    ck_assert_int_eq(dlx_caller_worker_code(k), 7);
    call = dlx_call_ask(k, 1, NULL);
    request = dlx_call_next(s);
    ok(dlx_reply_error(request, 0, "none of ours"));
    dlx_request_unref(request);
    dlx_call_expect_failure(k, call, DLX_E_CALL_FAILED, "answered with an error: none of ours");
    call = dlx_call_ask(k, 1, NULL);
    request = dlx_call_next(s);
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    ok(dlx_reply_error(request, INT32_MIN, longest));
    dlx_request_unref(request);
    struct dlx_call_result result = dlx_call_result_of(k, call);
    ck_assert_int_eq(result.worker_code, INT32_MIN);
    longest[DLX_CALL_TEXT_MAX] = '\0';
    ck_assert_str_eq(strchr(result.text, 'x'), longest);
    ck_assert_uint_eq(dlx_call_caller_stats(k).failed, 3);
    ck_assert_uint_eq(dlx_call_service_stats(s).errors, 3);
}

TEST(a_request_that_is_let_go_fails_its_call)
{
    auto_client *c = dlx_test_stream_connect();
    struct dlx_service *s = dlx_call_service(c, SERVICE(.max_held = 3));
    auto_caller *k = dlx_call_caller(c, NULL);
    uint64_t call = dlx_call_ask(k, 1, NULL);
    dlx_request_unref(dlx_call_next(s));
    dlx_call_expect_failure(k, call, DLX_E_CALL_FAILED, "let the request go without a reply");
    call = dlx_call_ask(k, 1, NULL);
    uint64_t other = dlx_call_ask(k, 2, NULL);
    struct dlx_request *request = dlx_call_next(s), *answered = dlx_call_next(s);
    dlx_call_answer(answered);
    s = dlx_service_unref(s);
    dlx_call_expect_reply(k, other, 3);
    dlx_call_expect_failure(k, call, DLX_E_CALL_FAILED, "let the request go without a reply");
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
    auto_service *s = dlx_call_service(c, NULL);
    auto_publisher *p = dlx_test_stream_publisher(c, TOPIC, PUBLISHER_BLOCKING());
    dlx_test_stream_publish(p, N, 1);
    dlx_call_no_request(s, SECOND / 20);
    ck_assert_uint_eq(dlx_call_service_stats(s).refused, 1);
    auto_caller *k = dlx_call_caller(c, NULL);
    uint64_t call = dlx_call_ask(k, 1, NULL);
    dlx_call_answer_next(s);
    dlx_call_expect_reply(k, call, 2);
}

/* ---- time ---------------------------------------------------------------------------------- */

TEST(a_timeout_says_who_has_the_request)
{
    auto_client *c = dlx_test_stream_connect();
    auto_caller *k = dlx_call_caller(c, NULL);
    char words[64];
    const struct dlx_call_args *soon = CALL(.timeout_ns = SECOND / 20);
    fails(dlx_caller_wait(k, SECOND / 50), DLX_E_TIMEOUT,
          "topic svc/add: no worker serves it at /");
    dlx_call_expect_failure(k, dlx_call_ask(k, 1, soon), DLX_E_TIMEOUT, "no worker serves it");
    auto_service *s = dlx_call_service(c, NULL);
    ok(dlx_caller_wait(k, PATIENCE));
    (void)snprintf(words, sizeof words, "%s (pid %d)", NOBODY_HAS_IT, (int)getpid());
    dlx_call_expect_failure(k, dlx_call_ask(k, 1, soon), DLX_E_TIMEOUT, words);
    uint64_t call = dlx_call_ask(k, 1, CALL(.timeout_ns = SECOND / 5));
    auto_request *request = dlx_call_next(s);
    (void)snprintf(words, sizeof words, "(pid %d) has the request", (int)getpid());
    ck_assert_uint_lt(dlx_request_deadline_ns(request), dlx__now_ns() + (uint64_t)SECOND / 5);
    ck_assert(!dlx_request_cancelled(request));
    dlx_call_expect_failure(k, call, DLX_E_TIMEOUT, words);
    ck_assert(dlx_request_cancelled(request));
    ck_assert_uint_eq(dlx_call_caller_stats(k).timed_out, 3);
    ck_assert_uint_eq(dlx_call_service_stats(s).expired, 2);
}

/* A process that computes makes no call. It is ready for two callers that come meanwhile. */
TEST(a_worker_that_makes_no_call_serves_callers_that_come)
{
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    auto_service *s = dlx_call_service(c, NULL);
    auto_caller *first = dlx_call_caller(other, NULL), *second = dlx_call_caller(other, NULL),
                *third = dlx_call_caller(other, NULL);
    char words[64];
    (void)snprintf(words, sizeof words, "%s (pid %d)", NOBODY_HAS_IT, (int)getpid());
    ck_assert_uint_eq(dlx_call_caller_stats(first).n_workers, 1);
    ck_assert_uint_eq(dlx_call_caller_stats(second).n_workers, 1);
    ck_assert_uint_eq(dlx_call_caller_stats(third).n_workers, 0);
    ok(dlx_caller_wait(third, 0));
    ok(dlx_caller_wait(third, PATIENCE));
    dlx_call_expect_failure(third, dlx_call_ask(third, 1, CALL(.timeout_ns = 1)), DLX_E_TIMEOUT,
                            words);
    uint64_t call = dlx_call_ask(third, 5, NULL);
    dlx_call_answer_next(s);
    dlx_call_expect_reply(third, call, 6);
    ck_assert_uint_eq(dlx_call_caller_stats(third).n_workers, 1);
}

TEST(a_subscriber_that_makes_no_call_is_no_worker)
{
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    auto_subscription *s = dlx_test_stream_subscribe(c, TOPIC, NULL);
    auto_caller *first = dlx_call_caller(other, NULL), *second = dlx_call_caller(other, NULL),
                *third = dlx_call_caller(other, NULL);
    struct dlx_caller *callers[] = {first, second, third};
    for (int i = 0; i < 3; i++) {
        fails(dlx_caller_wait(callers[i], SECOND / 50), DLX_E_TIMEOUT, "no worker serves it at /");
        dlx_call_expect_failure(callers[i], dlx_call_ask(callers[i], 1, CALL(.timeout_ns = 1)),
                                DLX_E_TIMEOUT, "no worker serves it");
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
    auto_caller *k = dlx_call_caller(c, NULL);
    auto_service *s = dlx_call_service(c, NULL);
    struct dlx_caller_stats of_caller = {.size = sizeof of_caller};
    struct dlx_service_stats of_service = {.size = sizeof of_service};
    struct dlx_call_result none = {.size = sizeof none};
    struct dlx_request *request = NULL;
    for (int i = 0; i < 200; i++) {
        ok(dlx_caller_get_stats(k, &of_caller));
        ok(dlx_service_get_stats(s, &of_service));
    }
    if (_i == 1) /* a call that does not end, as nobody takes it */
        (void)dlx_call_ask(k, 1, NULL);
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
    auto_caller *k = dlx_call_caller(c, NULL);
    struct dlx_call_result none = {.size = sizeof none};
    dlx_call_expect_failure(k, dlx_call_ask(k, 1, CALL(.timeout_ns = 1)), DLX_E_TIMEOUT,
                            "no worker serves it");
    kill(dlx_test_stream_daemon.pid, SIGSTOP);
    dlx_call_expect_failure(k, dlx_call_ask(k, 1, CALL(.timeout_ns = 1)), DLX_E_TIMEOUT, words);
    fails(dlx_caller_wait(k, 0), DLX_E_TIMEOUT, words);
    uint64_t call = dlx_call_ask(k, 1, CALL(.timeout_ns = 1));
    stop = 1;
    fails(dlx_call_take(k, PATIENCE, &none), DLX_E_INTERRUPTED, "interrupted");
    fails(dlx_caller_wait(k, PATIENCE), DLX_E_INTERRUPTED, "interrupted");
    stop = 0;
    kill(dlx_test_stream_daemon.pid, SIGCONT);
    dlx_call_expect_failure(k, call, DLX_E_TIMEOUT, "no worker serves it");
}

TEST(a_request_whose_time_is_over_is_not_started)
{
    auto_client *c = dlx_test_stream_connect();
    auto_service *s = dlx_call_service(c, NULL);
    auto_caller *k = dlx_call_caller(c, NULL);
    uint64_t call = dlx_call_ask(k, 1, CALL(.timeout_ns = 1));
    dlx_call_no_request(s, 0);
    dlx_call_expect_failure(k, call, DLX_E_TIMEOUT, "");
    ck_assert_uint_eq(dlx_call_service_stats(s).expired, 1);
    call = dlx_call_ask(k, 5, NULL);
    dlx_call_answer_next(s);
    dlx_call_expect_reply(k, call, 6);
}

TEST(a_late_reply_is_dropped_and_never_given_to_the_next_call)
{
    auto_client *c = dlx_test_stream_connect();
    auto_service *s = dlx_call_service(c, SERVICE(.max_held = 2));
    auto_caller *k = dlx_call_caller(c, CALLER(.max_in_flight = 2));
    for (int64_t n = 0; n < 4; n++) {
        uint64_t late = dlx_call_ask(k, 1000, CALL(.timeout_ns = SECOND / 4));
        auto_request *slow = dlx_call_next(s);
        dlx_call_expect_failure(k, late, DLX_E_TIMEOUT, "has the request");
        uint64_t call = dlx_call_ask(k, n, NULL);
        dlx_call_answer(slow);
        dlx_call_answer_next(s);
        dlx_call_expect_reply(k, call, n + 1);
    }
    ck_assert_uint_eq(dlx_call_caller_stats(k).late, 4);
    ck_assert_uint_eq(dlx_call_caller_stats(k).n_in_flight, 0);
}

TEST(a_call_that_timed_out_counts_until_its_worker_lets_go_of_it)
{
    auto_client *c = dlx_test_stream_connect();
    auto_service *s = dlx_call_service(c, NULL);
    auto_caller *k = dlx_call_caller(c, CALLER(.max_in_flight = 1));
    uint64_t late = dlx_call_ask(k, 1, CALL(.timeout_ns = SECOND / 4)), more;
    auto_request *slow = dlx_call_next(s);
    dlx_call_expect_failure(k, late, DLX_E_TIMEOUT, "has the request");
    auto_tensor *t = dlx_call_question(k, N, 5);
    const struct dlx_item item = {.tensor = t};
    fails(dlx_call_begin(k, &item, 1, NULL, &more), DLX_E_FULL, "1 calls are in flight");
    dlx_call_answer(slow);
    slow = dlx_request_unref(slow);
    ok(dlx_call_begin(k, &item, 1, NULL, &more));
    t = NULL;
    dlx_call_answer_next(s);
    dlx_call_expect_reply(k, more, 6);
}

/* Says to the caller of the request, as any worker of the service could. */
static void forge(struct dlx_publisher *p, struct dlx_envelope envelope, int64_t value)
{
    const int64_t n = N;
    const struct dlx_tensor_spec spec = INT64_SPEC(&n);
    struct dlx_item item = {.name = NULL};
    ok(dlx_alloc(p, &spec, &item.tensor));
    dlx_call_fill(item.tensor, N, value);
    ok(dlx__envelope_publish(p, &envelope, &item, 1, NULL, NULL));
}

TEST(a_reply_that_fits_no_call_is_dropped)
{
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *all = dlx_test_stream_subscribe(c, TOPIC, NULL);
    auto_service *s = dlx_call_service(c, NULL);
    auto_caller *k = dlx_call_caller(c, CALLER(.max_in_flight = 2));
    uint64_t call = dlx_call_ask(k, 1, NULL);
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
    dlx_call_answer_next(s);
    dlx_call_expect_reply(k, call, 2);
    eventually(({
        struct dlx_call_result none = {.size = sizeof none};
        uint64_t next_call = dlx_call_ask(k, 5, NULL);
        dlx_call_answer_next(s);
        dlx_call_expect_reply(k, next_call, 6);
        dlx_call_take(k, 0, &none) == DLX_E_NOT_FOUND &&dlx_call_caller_stats(k).late == 6;
    }));
}

/* ---- cancel, and limits -------------------------------------------------------------------- */

TEST(a_cancelled_call_is_not_started)
{
    auto_client *c = dlx_test_stream_connect();
    auto_service *s = dlx_call_service(c, SERVICE(.max_held = 2));
    auto_caller *k = dlx_call_caller(c, NULL);
    uint64_t first = dlx_call_ask(k, 1, NULL), second = dlx_call_ask(k, 2, NULL),
             third = dlx_call_ask(k, 3, NULL);
    auto_request *request = dlx_call_next(s);
    ck_assert(!dlx_request_cancelled(request));
    ok(dlx_call_cancel(k, first));
    ok(dlx_call_cancel(k, second));
    fails(dlx_call_cancel(k, second), DLX_E_NOT_FOUND, "is not in flight");
    ck_assert(dlx_request_cancelled(request));
    dlx_call_answer(request);
    dlx_call_answer_next(s);
    dlx_call_expect_reply(k, third, 4);
    ck_assert_uint_eq(dlx_call_service_stats(s).expired, 1);
    ck_assert_uint_eq(dlx_call_caller_stats(k).cancelled, 2);
    uint64_t ended = dlx_call_ask(k, 4, NULL);
    uint64_t last = dlx_call_ask(k, 5, NULL);
    dlx_call_answer_next(s);
    dlx_call_answer_next(s);
    dlx_call_expect_reply(k, ended, 5);
    ok(dlx_call_cancel(k, last)); /* its reply is there, and is released */
    dlx_call_no_result(k);
}

TEST(no_more_calls_than_max_in_flight)
{
    auto_client *c = dlx_test_stream_connect();
    auto_service *s = dlx_call_service(c, NULL);
    auto_caller *k = dlx_call_caller(c, CALLER(.max_in_flight = 3));
    auto_tensor *t = dlx_call_question(k, N, 0);
    const struct dlx_item item = {.tensor = t};
    uint64_t calls[3], more = 0;
    bool sent = true;
    for (int64_t i = 0; i < 3; i++)
        calls[i] = dlx_call_ask(k, i, NULL);
    fails(dlx_call_begin(k, &item, 1, NULL, &more), DLX_E_FULL, "3 calls are in flight");
    struct dlx_message *reply;
    fails(dlx_call(k, &item, 1, NULL, &reply, &sent), DLX_E_FULL, "max_in_flight");
    ck_assert(!sent);
    dlx_call_answer_next(s);
    fails(dlx_call_begin(k, &item, 1, NULL, &more), DLX_E_FULL, ""); /* nobody took the result */
    dlx_call_expect_reply(k, calls[0], 1);
    ok(dlx_call_cancel(k, calls[1]));
    calls[0] = dlx_call_ask(k, 9, NULL);
    fails(dlx_call_begin(k, &item, 1, NULL, &more), DLX_E_FULL, ""); /* a worker may answer it */
    dlx_call_answer_next(s); /* call 2, since call 1 is dropped */
    dlx_call_expect_reply(k, calls[2], 3);
    ok(dlx_call_begin(k, &item, 1, NULL, &more)); /* the dropped one is over */
    t = NULL;
    dlx_call_answer_next(s);
    dlx_call_answer_next(s);
    dlx_call_expect_reply(k, calls[0], 10);
    dlx_call_expect_reply(k, more, 1);
}

TEST(a_call_that_takes_long_does_not_stop_others)
{
    auto_client *c = dlx_test_stream_connect();
    auto_service *slow = dlx_call_service(c, NULL);
    auto_caller *k = dlx_call_caller(c, CALLER(.max_in_flight = 2));
    uint64_t old = dlx_call_ask(k, 1000, NULL);
    auto_request *request = dlx_call_next(slow);
    auto_service *s = dlx_call_service(c, NULL);
    for (int64_t n = 0; n < 100; n++) {
        uint64_t call = dlx_call_ask(k, n, NULL);
        dlx_call_answer_next(s);
        dlx_call_expect_reply(k, call, n + 1);
    }
    dlx_call_answer(request);
    dlx_call_expect_reply(k, old, 1001);
}

/* 128 behind it is the least. */
TEST(a_request_that_takes_too_long_is_named_to_a_caller_that_is_far_ahead_of_it)
{
    enum { AHEAD = 128 };
    auto_client *c = dlx_test_stream_connect(), *c2 = dlx_test_stream_connect();
    auto_caller *k = dlx_call_caller(c, CALLER(.max_in_flight = 2));
    auto_service *slow = dlx_call_service(c2, NULL);
    uint64_t oldest = dlx_call_ask(k, 0, NULL);
    auto_request *request = dlx_call_next(slow);
    auto_service *s = dlx_call_service(c2, NULL);
    for (int i = 1; i < AHEAD; i++) {
        uint64_t call = dlx_call_ask(k, i, NULL);
        dlx_call_answer_next(s);
        dlx_call_expect_reply(k, call, i + 1);
    }
    const struct dlx_item item = {.tensor = dlx_call_question(k, N, 1)};
    uint64_t call = 0;
    fails(dlx_call_begin(k, &item, 1, NULL, &call), DLX_E_FULL, "message 1, published ");
    contains(dlx_errmsg(), " s ago: worker e2e_call (pid");
    contains(dlx_errmsg(), "this caller may be 128 requests ahead of it (max_in_flight 2)");
    dlx_call_answer(request);
    dlx_call_expect_reply(k, oldest, 1);
    ok(dlx_call_begin(k, &item, 1, NULL, &call));
    dlx_call_answer_next(s);
    dlx_call_expect_reply(k, call, 2);
}

TEST(a_descriptor_tells_of_results_and_of_time)
{
    auto_client *c = dlx_test_stream_connect();
    auto_service *s = dlx_call_service(c, NULL);
    auto_caller *k = dlx_call_caller(c, NULL);
    struct pollfd pfd = {.fd = dlx_caller_fd(k), .events = POLLIN};
    struct pollfd work = {.fd = dlx_service_fd(s), .events = POLLIN};
    struct dlx_call_result result = {.size = sizeof result};
    ck_assert_int_ge(pfd.fd, 0);
    ck_assert_int_ge(work.fd, 0);
    for (int64_t n = 0; n < 20; n++) {
        struct dlx_request *request = NULL;
        int r;
        uint64_t call = dlx_call_ask(k, n, CALL(.timeout_ns = n % 5 == 4 ? SECOND / 50 : PATIENCE));
        ck_assert_int_eq(dlx_call_take(k, 0, &result), DLX_E_EMPTY);
        while (n % 5 != 4 && (r = dlx_service_take(s, 0, &request)) == DLX_E_EMPTY)
            ck_assert_int_eq(poll(&work, 1, PATIENCE / 1000000), 1);
        if (request)
            dlx_call_answer(request);
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
    auto_caller *k = dlx_call_caller(c, NULL);
    struct pollfd pfd = {.fd = dlx_caller_fd(k), .events = POLLIN};
    do
        dlx_call_no_result(k);
    while (poll(&pfd, 1, 0) == 1);
    uint64_t before = dlx__now_ns(), call = dlx_call_ask(k, 1, CALL(.timeout_ns = SECOND / 50));
    ck_assert_int_eq(poll(&pfd, 1, PATIENCE / 1000000), 1);
    ck_assert_uint_lt(dlx__now_ns() - before, SECOND / 2);
    dlx_call_expect_failure(k, call, DLX_E_TIMEOUT, "no worker serves it");
}
