/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/client/harness_call.h"

void dlx_call_end_request(struct dlx_request **request)
{
    dlx_request_unref(*request);
}

struct dlx_caller *dlx_call_caller(struct dlx_client *c, const struct dlx_caller_args *args)
{
    struct dlx_caller *k = NULL;
    ok(dlx_caller_new(c, TOPIC, args, &k));
    return k;
}

struct dlx_service *dlx_call_service(struct dlx_client *c, const struct dlx_service_args *args)
{
    struct dlx_service *s = NULL;
    ok(dlx_service_new(c, TOPIC, args, &s));
    return s;
}

void dlx_call_fill(DLManagedTensorVersioned *t, int64_t n, int64_t value)
{
    for (int64_t i = 0; i < n; i++)
        ((int64_t *)t->dl_tensor.data)[i] = value + i;
}

DLManagedTensorVersioned *dlx_call_question(struct dlx_caller *k, int64_t n, int64_t value)
{
    const struct dlx_tensor_spec spec = INT64_SPEC(&n);
    DLManagedTensorVersioned *t = NULL;
    ok(dlx_caller_alloc(k, &spec, &t));
    dlx_call_fill(t, n, value);
    return t;
}

uint64_t dlx_call_ask(struct dlx_caller *k, int64_t value, const struct dlx_call_args *args)
{
    const struct dlx_item item = {.tensor = dlx_call_question(k, N, value)};
    uint64_t call = 0;
    ok(dlx_call_begin(k, &item, 1, args, &call));
    return call;
}

struct dlx_request *dlx_call_next(struct dlx_service *s)
{
    struct dlx_request *request = NULL;
    ok(dlx_service_take(s, PATIENCE, &request));
    return request;
}

int64_t dlx_call_first_of(struct dlx_message *m)
{
    return ((const int64_t *)dlx_message_tensor_peek(m, 0)->data)[0];
}

void dlx_call_answer(struct dlx_request *request)
{
    struct dlx_message *m = dlx_request_message(request);
    int64_t n = dlx_message_tensor_peek(m, 0)->shape[0];
    const struct dlx_tensor_spec spec = INT64_SPEC(&n);
    struct dlx_item item = {.name = "sum"};
    ok(dlx_request_alloc(request, &spec, &item.tensor));
    dlx_call_fill(item.tensor, n, dlx_call_first_of(m) + 1);
    ok(dlx_reply(request, &item, 1, NULL));
}

void dlx_call_answer_next(struct dlx_service *s)
{
    auto_request *request = dlx_call_next(s);
    dlx_call_answer(request);
}

struct dlx_call_result dlx_call_result_of(struct dlx_caller *k, uint64_t call)
{
    struct dlx_call_result result = {.size = sizeof result};
    ok(dlx_call_take(k, PATIENCE, &result));
    ck_assert_uint_eq(result.call, call);
    return result;
}

void dlx_call_expect_reply(struct dlx_caller *k, uint64_t call, int64_t value)
{
    struct dlx_call_result result = dlx_call_result_of(k, call);
    ck_assert_msg(result.code == 0, "%d %s", result.code, result.text);
    dlx_test_stream_check(result.reply, N, value);
    dlx_message_unref(result.reply);
}

void dlx_call_expect_failure(struct dlx_caller *k, uint64_t call, int code, const char *words)
{
    struct dlx_call_result result = dlx_call_result_of(k, call);
    ck_assert_msg(result.code == code, "%d %s", result.code, result.text);
    ck_assert_msg(strstr(result.text, words), "\"%s\" lacks \"%s\"", result.text, words);
    ck_assert_ptr_null(result.reply);
}

struct dlx_caller_stats dlx_call_caller_stats(struct dlx_caller *k)
{
    struct dlx_caller_stats stats = {.size = sizeof stats};
    ok(dlx_caller_get_stats(k, &stats));
    return stats;
}

struct dlx_service_stats dlx_call_service_stats(struct dlx_service *s)
{
    struct dlx_service_stats stats = {.size = sizeof stats};
    ok(dlx_service_get_stats(s, &stats));
    return stats;
}

void dlx_call_no_result(struct dlx_caller *k)
{
    struct dlx_call_result none = {.size = sizeof none};
    fails(dlx_call_take(k, 0, &none), DLX_E_NOT_FOUND, "no call is in flight");
}

void dlx_call_serve_elsewhere(struct dlx_test_peer *parent)
{
    struct dlx_service *s = dlx_call_service(dlx_test_stream_connect(), NULL);
    dlx_test_peer_say(parent);
    for (;;) {
        struct dlx_request *request = NULL;
        if (dlx_service_take(s, DLX_FOREVER, &request) == 0)
            dlx_call_answer(request);
        dlx_request_unref(request);
    }
}

void dlx_call_keep_elsewhere(struct dlx_test_peer *parent)
{
    struct dlx_service *s = dlx_call_service(dlx_test_stream_connect(), NULL);
    dlx_test_peer_say(parent);
    (void)dlx_call_next(s);
    dlx_test_peer_say(parent);
    pause();
}

void dlx_call_ask_elsewhere(struct dlx_test_peer *parent)
{
    struct dlx_caller *k = dlx_call_caller(dlx_test_stream_connect(), NULL);
    (void)dlx_call_ask(k, 1, NULL);
    dlx_test_peer_say(parent);
    struct dlx_call_result result = {.size = sizeof result};
    (void)dlx_call_take(k, DLX_FOREVER, &result);
    dlx_test_peer_say(parent);
    pause();
}

void dlx_call_there_and_back(struct dlx_caller *k, int64_t n, int64_t value)
{
    const struct dlx_item item = {.tensor = dlx_call_question(k, n, value)};
    struct dlx_message *reply = NULL;
    bool sent = false;
    ok(dlx_call(k, &item, 1, CALL(.timeout_ns = PATIENCE), &reply, &sent));
    ck_assert(sent);
    dlx_test_stream_check(reply, n, value + 1);
    dlx_message_unref(reply);
}
