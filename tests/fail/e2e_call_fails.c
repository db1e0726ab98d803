/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Stories of calls, as those of e2e_fails.c: each time one call of the C library fails. What fails
 * is tried again, or given up; either way each call has its result, and nothing is left.
 */

#include "common/util.h"
#include "tests/fail/harness_retry.h"
#include "tests/harness/stream.h"

enum { N = 100 };

/* More than the library has on its stack. */
static char words[1000];
static const struct dlx_bytes meta = {.data = words, .size = sizeof words};

#define CALL(...) (&(const struct dlx_call_args){.size = sizeof(struct dlx_call_args), __VA_ARGS__})
#define REPLY(...)                                                                                 \
    (&(const struct dlx_reply_args){.size = sizeof(struct dlx_reply_args), __VA_ARGS__})

static int ask(struct dlx_test_cast *x, int64_t value, uint64_t *ret)
{
    const int64_t n = N;
    const struct dlx_tensor_spec spec = dlx_test_cast_spec(1, &n);
    DLX_TEST_RETRY(dlx_caller_alloc(x->caller, &spec, &x->t[0]));
    for (int64_t i = 0; i < n; i++)
        ((int64_t *)x->t[0]->dl_tensor.data)[i] = value + i;
    const struct dlx_item item = {.tensor = x->t[0]};
    DLX_TEST_RETRY(dlx_call_begin(x->caller, &item, 1, CALL(.meta = &meta), ret));
    x->t[0] = NULL;
    return 0;
}

static int take_request(struct dlx_test_cast *x, int64_t value)
{
    DLX_TEST_RETRY(dlx_service_take(x->service, PATIENCE, &x->request));
    size_t size;
    struct dlx_message *m = dlx_request_message(x->request);
    const int64_t *data = dlx_message_tensor_peek(m, 0)->data;
    dlx_test_fail_expect(dlx_message_meta(m, &size) && size == meta.size && data[0] == value,
                         "the request");
    return 0;
}

static int reply(struct dlx_test_cast *x, int64_t value)
{
    const int64_t n = 1;
    const struct dlx_tensor_spec spec = dlx_test_cast_spec(1, &n);
    DLX_TEST_RETRY(dlx_request_alloc(x->request, &spec, &x->t[0]));
    *(int64_t *)x->t[0]->dl_tensor.data = value;
    const struct dlx_item item = {.tensor = x->t[0]};
    DLX_TEST_RETRY(dlx_reply(x->request, &item, 1, REPLY(.meta = &meta)));
    x->t[0] = NULL;
    x->request = dlx_request_unref(x->request);
    return 0;
}

static int look_for_result(struct dlx_test_cast *x, struct dlx_call_result *ret)
{
    int r = dlx_call_take(x->caller, 0, ret);
    return r == DLX_E_EMPTY ? 0 : r;
}

/* The next result, which is of this call. Its descriptor tells when it is there. */
static int take_result(struct dlx_test_cast *x, uint64_t call, struct dlx_call_result *ret)
{
    *ret = (struct dlx_call_result){.size = sizeof *ret};
    struct pollfd p = {.events = POLLIN};
    DLX_TEST_RETRY(p.fd = dlx_caller_fd(x->caller));
    for (uint64_t until = dlx__deadline(PATIENCE); ret->call == 0 && dlx__now_ns() < until;) {
        (void)poll(&p, 1, 100);
        DLX_TEST_RETRY(look_for_result(x, ret));
    }
    x->m = ret->reply;
    dlx_test_fail_expect(ret->call == call, "the result of the call");
    return ret->call == call ? 0 : DLX_E_EMPTY;
}

/* The daemon could not link the worker to the caller, or there was no memory to answer. */
static bool is_lost(const struct dlx_test_cast *x, const struct dlx_call_result *result)
{
    return dlx_test_retry_has_failed(x) && result->code == DLX_E_WORKER_GONE &&
           strstr(result->text, "no reply came");
}

static int expect_reply(struct dlx_test_cast *x, uint64_t call, int64_t value)
{
    struct dlx_call_result result;
    size_t size;
    DLX_TEST_TRY(take_result(x, call, &result));
    if (is_lost(x, &result))
        return dlx_test_retry_note(result.code, result.text);
    dlx_test_fail_expect(result.code == 0 && dlx_message_meta(x->m, &size) && size == meta.size,
                         "a reply");
    if (x->m)
        dlx_test_cast_check(x, 1, value);
    return 0;
}

/* Without memory for the text it is that of the code. */
static int expect_failure(struct dlx_test_cast *x, uint64_t call, const char *text)
{
    struct dlx_call_result result;
    DLX_TEST_TRY(take_result(x, call, &result));
    if (is_lost(x, &result))
        return dlx_test_retry_note(result.code, result.text);
    dlx_test_fail_expect(
        result.code == DLX_E_CALL_FAILED &&
            (strstr(result.text, text) ||
             (dlx_test_retry_has_failed(x) && strcmp(result.text, dlx_strerror(result.code)) == 0)),
        "an error of the worker");
    return 0;
}

static int take_no_request(struct dlx_test_cast *x)
{
    int r = dlx_service_take(x->service, 0, &x->request);
    dlx_test_fail_expect(r < 0, "that no worker gets what was cancelled");
    return r == DLX_E_EMPTY ? 0 : r;
}

static int cancel_one(struct dlx_test_cast *x)
{
    uint64_t call = 0;
    DLX_TEST_TRY(ask(x, 4, &call));
    DLX_TEST_RETRY(dlx_call_cancel(x->caller, call));
    DLX_TEST_RETRY(take_no_request(x));
    return 0;
}

static int play_calls(struct dlx_test_cast *x, uint64_t *ret_n_lost)
{
    uint64_t calls[2] = {0};
    DLX_TEST_TRY(dlx_test_retry_connect(x));
    DLX_TEST_RETRY(dlx_caller_new(x->c[0], "calls/s", NULL, &x->caller));
    DLX_TEST_RETRY(dlx_service_new(x->c[1], "calls/s", NULL, &x->service));
    DLX_TEST_RETRY(dlx_service_fd(x->service));
    DLX_TEST_RETRY(dlx_caller_wait(x->caller, PATIENCE));
    DLX_TEST_TRY(ask(x, 1, &calls[0]));
    DLX_TEST_TRY(ask(x, 2, &calls[1]));
    DLX_TEST_TRY(take_request(x, 1));
    DLX_TEST_TRY(reply(x, 11));
    DLX_TEST_TRY(take_request(x, 2));
    DLX_TEST_RETRY(dlx_reply_error(x->request, 7, "no such thing"));
    x->request = dlx_request_unref(x->request);
    DLX_TEST_TRY(expect_reply(x, calls[0], 11));
    DLX_TEST_TRY(expect_failure(x, calls[1], "no such thing"));
    DLX_TEST_TRY(ask(x, 3, &calls[0]));
    DLX_TEST_TRY(take_request(x, 3));
    x->request = dlx_request_unref(x->request);
    DLX_TEST_TRY(expect_failure(x, calls[0], "let the request go"));
    DLX_TEST_TRY(cancel_one(x));
    if (dlx_test_retry_has_failed(x))
        x->fail = NULL; /* nothing fails twice */
    DLX_TEST_TRY(ask(x, 5, &calls[0]));
    DLX_TEST_TRY(take_request(x, 5));
    DLX_TEST_TRY(reply(x, 55));
    DLX_TEST_TRY(expect_reply(x, calls[0], 55));
    *ret_n_lost = dlx_test_retry_n_lost(x);
    return dlx_test_retry_first();
}

static int tell(int kind, struct dlx_test_fail *fail)
{
    return dlx_test_retry_tell(play_calls, kind, fail);
}

static const struct dlx_test_fail_story stories[] = {
    {"calls, and the daemon", tell, DLX_TEST_RETRY_DAEMON, .n_calls = 300, .n_errors = 10},
    {"calls that go on", tell, DLX_TEST_RETRY_LIBRARY, .n_calls = 300, .n_errors = 10},
    {"calls that are given up", tell, DLX_TEST_RETRY_GIVES_UP, .n_calls = 300, .n_errors = 10},
};

LOOP_TEST(each_call_fails_once, 0, DLX_ARRAY_SIZE(stories))
{
    dlx_test_fail_each(&stories[_i]);
}

int main(void)
{
    return dlx_test_run_case(dlx_test_server_case("call_fails"));
}
