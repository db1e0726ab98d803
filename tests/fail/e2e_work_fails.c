/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Stories of work queues and of calls, as those of e2e_fails.c: each time one call of the C library
 * fails. What fails is tried again, or given up; either way no message and no request is lost, each
 * call has its result, and nothing is left.
 */

#include "client/control/client.h"
#include "common/error.h"
#include "tests/fail/harness_fail.h"
#include "tests/fail/harness_server.h"
#include "tests/harness/stream.h"

enum { N = 100 };

/* Did an error end the story, or does the story go on after it? */
static bool gives_up;
/* The first error, in words. */
static int failed_with;
static char failed_text[256];

/* Returns 0, or the code if the story gives up. */
static int note_failure(int code, const char *text)
{
    if (failed_with == 0)
        (void)snprintf(failed_text, sizeof failed_text, "%s", text);
    failed_with = failed_with ? failed_with : code;
    return gives_up ? dlx__fail(code, "%s", failed_text) : 0;
}

static int first_failure(void)
{
    return failed_with ? dlx__fail(failed_with, "%s", failed_text) : 0;
}

/* In a function that returns codes. Nothing fails twice: what is tried again succeeds. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        int r_ = (call);                                                                           \
        if (r_ < 0 && ((r_ = note_failure(r_, dlx_errmsg())) < 0 || (r_ = (call)) < 0))            \
            return r_;                                                                             \
    } while (0)

/* What e2e_fails.c tells of: no call of the library fails here. */
#define UNTROUBLED(call)                                                                           \
    do {                                                                                           \
        struct dlx_test_fail *own_ = dlx_test_fail(NULL);                                          \
        int untroubled_ = (call);                                                                  \
        (void)dlx_test_fail(own_);                                                                 \
        DLX_TEST_TRY(untroubled_);                                                                 \
    } while (0)

static int connect_both(struct dlx_test_cast *x)
{
    TRY(dlx_test_server_connect(&x->c[0]));
    TRY(dlx_test_server_connect(&x->c[1]));
    return 0;
}

static int publish(struct dlx_test_cast *x, int64_t value)
{
    TRY(dlx_test_cast_publish(x, N, value));
    return 0;
}

static int get(struct dlx_test_cast *x)
{
    TRY(dlx_get(x->c[0], "calls/a", 0, &x->m));
    return 0;
}

static bool has_failed(const struct dlx_test_cast *x)
{
    return x->fail && x->fail->call;
}

static uint64_t n_lost(const struct dlx_test_cast *x)
{
    return atomic_load(&x->c[0]->epoch) + atomic_load(&x->c[1]->epoch);
}

/* ---- a work queue ---------------------------------------------------------------------------- */

#define WORKER(...)                                                                                \
    SUBSCRIBE(.group = "g", .max_held = 2, .max_attempts = 2, .dead_letters = "calls/a",           \
              __VA_ARGS__)

static int see_group(const struct dlx_group_info *info, void *userdata)
{
    *(struct dlx_group_info *)userdata = *info;
    return 0;
}

static int see_claim(const struct dlx_claim_info *info, void *userdata)
{
    *(uint64_t *)userdata = info->seq;
    return 0;
}

/* A message of a queue, in this delivery. */
static int take_work(struct dlx_test_cast *x, uint32_t attempt)
{
    TRY(dlx_take(x->s, PATIENCE, &x->m));
    dlx_test_fail_expect(dlx_message_attempt(x->m) == attempt, "the attempt");
    return 0;
}

static int take_nothing(struct dlx_test_cast *x)
{
    int r = dlx_take(x->s, 0, &x->m);
    dlx_test_fail_expect(r < 0, "no message");
    return r == DLX_E_EMPTY ? 0 : r;
}

static int do_next(struct dlx_test_cast *x, int64_t value)
{
    DLX_TEST_TRY(take_work(x, 1));
    TRY(dlx_message_done(x->m));
    dlx_test_cast_check(x, N, value);
    return 0;
}

static int list_work(struct dlx_test_cast *x)
{
    struct dlx_group_info group = {.n_workers = 0};
    uint64_t claimed = 0;
    TRY(dlx_list_groups(x->c[1], "calls/*", see_group, &group));
    TRY(dlx_list_claims(x->c[1], group.publisher, group.group, see_claim, &claimed));
    /* A page that the daemon could not read is told as empty. */
    dlx_test_fail_expect(claimed <= 2 && group.done <= 1 && group.n_workers == 1, "the group");
    return 0;
}

/* The second one of two attempts is the last. */
static int let_die(struct dlx_test_cast *x)
{
    struct dlx_event event = {.size = sizeof event};
    UNTROUBLED(publish(x, 2));
    DLX_TEST_TRY(take_work(x, 1));
    DLX_TEST_TRY(list_work(x));
    TRY(dlx_message_give_back(x->m));
    dlx_test_cast_check(x, N, 2);
    DLX_TEST_TRY(take_work(x, 2));
    bool had_failed = has_failed(x);
    dlx_test_cast_check(x, N, 2); /* which gives it back */
    TRY(take_nothing(x));
    while (event.kind != DLX_EVENT_DEAD_LETTER)
        DLX_TEST_TRY(dlx_subscription_next_event(x->s, &event));
    if (!strstr(event.reason, "a copy was published")) {
        dlx_test_fail_expect(has_failed(x) && !had_failed, "a copy of the dead letter");
        return 0;
    }
    UNTROUBLED(get(x));
    dlx_test_cast_check(x, N, 2);
    return 0;
}

static int drain_in_vain(struct dlx_test_cast *x)
{
    int r = dlx_publisher_drain(x->p, 1000);
    dlx_test_fail_expect(r < 0, "that a message is not done");
    return r == DLX_E_TIMEOUT ? 0 : r;
}

static int drain(struct dlx_test_cast *x)
{
    UNTROUBLED(publish(x, 3));
    DLX_TEST_TRY(take_work(x, 1));
    TRY(drain_in_vain(x));
    TRY(dlx_message_done_at_release(x->m));
    dlx_test_cast_check(x, N, 3);
    TRY(dlx_publisher_drain(x->p, PATIENCE));
    return 0;
}

/* A queue, whose publisher goes before all is done. */
static int play_work(struct dlx_test_cast *x, uint64_t *ret_n_lost)
{
    const struct dlx_publisher_args *pa =
        PUBLISHER(.groups = (const char *const[]){"g"}, .n_groups = 1);
    failed_with = 0;
    UNTROUBLED(connect_both(x));
    TRY(dlx_publisher_new(x->c[0], "calls/q", pa, &x->p));
    TRY(dlx_subscribe(x->c[1], "calls/q", WORKER(), &x->s));
    UNTROUBLED(publish(x, 1));
    DLX_TEST_TRY(do_next(x, 1));
    DLX_TEST_TRY(let_die(x));
    DLX_TEST_TRY(drain(x));
    TRY(dlx_subscribe(x->c[0], "calls/*", WORKER(), &x->pattern));
    x->pattern = dlx_subscription_unref(x->pattern);
    UNTROUBLED(publish(x, 4));
    x->p = dlx_publisher_unref(x->p);
    DLX_TEST_TRY(do_next(x, 4));
    *ret_n_lost = n_lost(x);
    return first_failure();
}

/* ---- calls ----------------------------------------------------------------------------------- */

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
    TRY(dlx_caller_alloc(x->caller, &spec, &x->t[0]));
    for (int64_t i = 0; i < n; i++)
        ((int64_t *)x->t[0]->dl_tensor.data)[i] = value + i;
    const struct dlx_item item = {.tensor = x->t[0]};
    TRY(dlx_call_begin(x->caller, &item, 1, CALL(.meta = &meta), ret));
    x->t[0] = NULL;
    return 0;
}

static int take_request(struct dlx_test_cast *x, int64_t value)
{
    TRY(dlx_service_take(x->service, PATIENCE, &x->request));
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
    TRY(dlx_request_alloc(x->request, &spec, &x->t[0]));
    *(int64_t *)x->t[0]->dl_tensor.data = value;
    const struct dlx_item item = {.tensor = x->t[0]};
    TRY(dlx_reply(x->request, &item, 1, REPLY(.meta = &meta)));
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
    TRY(p.fd = dlx_caller_fd(x->caller));
    for (uint64_t until = dlx__deadline(PATIENCE); ret->call == 0 && dlx__now_ns() < until;) {
        (void)poll(&p, 1, 100);
        TRY(look_for_result(x, ret));
    }
    x->m = ret->reply;
    dlx_test_fail_expect(ret->call == call, "the result of the call");
    return ret->call == call ? 0 : DLX_E_EMPTY;
}

/* The daemon could not link the worker to the caller, or there was no memory to answer. */
static bool is_lost(const struct dlx_test_cast *x, const struct dlx_call_result *result)
{
    return has_failed(x) && result->code == DLX_E_WORKER_GONE &&
           strstr(result->text, "no reply came");
}

static int expect_reply(struct dlx_test_cast *x, uint64_t call, int64_t value)
{
    struct dlx_call_result result;
    size_t size;
    DLX_TEST_TRY(take_result(x, call, &result));
    if (is_lost(x, &result))
        return note_failure(result.code, result.text);
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
        return note_failure(result.code, result.text);
    dlx_test_fail_expect(
        result.code == DLX_E_CALL_FAILED &&
            (strstr(result.text, text) ||
             (has_failed(x) && strcmp(result.text, dlx_strerror(result.code)) == 0)),
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
    TRY(dlx_call_cancel(x->caller, call));
    TRY(take_no_request(x));
    return 0;
}

static int play_calls(struct dlx_test_cast *x, uint64_t *ret_n_lost)
{
    uint64_t calls[2] = {0};
    failed_with = 0;
    UNTROUBLED(connect_both(x));
    TRY(dlx_caller_new(x->c[0], "calls/s", NULL, &x->caller));
    TRY(dlx_service_new(x->c[1], "calls/s", NULL, &x->service));
    TRY(dlx_service_fd(x->service));
    TRY(dlx_caller_wait(x->caller, PATIENCE));
    DLX_TEST_TRY(ask(x, 1, &calls[0]));
    DLX_TEST_TRY(ask(x, 2, &calls[1]));
    DLX_TEST_TRY(take_request(x, 1));
    DLX_TEST_TRY(reply(x, 11));
    DLX_TEST_TRY(take_request(x, 2));
    TRY(dlx_reply_error(x->request, 7, "no such thing"));
    x->request = dlx_request_unref(x->request);
    DLX_TEST_TRY(expect_reply(x, calls[0], 11));
    DLX_TEST_TRY(expect_failure(x, calls[1], "no such thing"));
    DLX_TEST_TRY(ask(x, 3, &calls[0]));
    DLX_TEST_TRY(take_request(x, 3));
    x->request = dlx_request_unref(x->request);
    DLX_TEST_TRY(expect_failure(x, calls[0], "let the request go"));
    DLX_TEST_TRY(cancel_one(x));
    if (has_failed(x))
        x->fail = NULL; /* nothing fails twice */
    DLX_TEST_TRY(ask(x, 5, &calls[0]));
    DLX_TEST_TRY(take_request(x, 5));
    DLX_TEST_TRY(reply(x, 55));
    DLX_TEST_TRY(expect_reply(x, calls[0], 55));
    *ret_n_lost = n_lost(x);
    return first_failure();
}

/* ---- all of them ----------------------------------------------------------------------------- */

enum { DAEMON, LIBRARY, GIVES_UP };

static int tell(dlx_test_cast_play play, int kind, struct dlx_test_fail *fail)
{
    gives_up = kind == GIVES_UP;
    return dlx_test_server_tell(
        play, kind == DAEMON ? DLX_TEST_DAEMON_FAILS : DLX_TEST_LIBRARY_FAILS, fail);
}

static int tell_of_work(int kind, struct dlx_test_fail *fail)
{
    return tell(play_work, kind, fail);
}

static int tell_of_calls(int kind, struct dlx_test_fail *fail)
{
    return tell(play_calls, kind, fail);
}

static const struct dlx_test_fail_story stories[] = {
    {"work, and the daemon", tell_of_work, DAEMON, .n_calls = 300, .n_errors = 10},
    {"work that goes on", tell_of_work, LIBRARY, .n_calls = 300, .n_errors = 10},
    {"calls, and the daemon", tell_of_calls, DAEMON, .n_calls = 300, .n_errors = 10},
    {"calls that go on", tell_of_calls, LIBRARY, .n_calls = 300, .n_errors = 10},
    {"calls that are given up", tell_of_calls, GIVES_UP, .n_calls = 300, .n_errors = 10},
};

LOOP_TEST(each_call_fails_once, 0, DLX_ARRAY_SIZE(stories))
{
    dlx_test_fail_each(&stories[_i]);
}

int main(void)
{
    return dlx_test_run_case(dlx_test_server_case("work_fails"));
}
