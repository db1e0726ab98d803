/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_CLIENT_HARNESS_CALL_H
#define DLX_TESTS_CLIENT_HARNESS_CALL_H

/* Callers and services of svc/add, whose replies count up from one more than their requests, here
 * or in processes of their own. */

#include "tests/harness/fork.h"
#include "tests/harness/stream.h"

#define TOPIC "svc/add"
#define N     8 /* elements of most requests, which count up */

#define CALL(...) (&(const struct dlx_call_args){.size = sizeof(struct dlx_call_args), __VA_ARGS__})
#define CALLER(...)                                                                                \
    (&(const struct dlx_caller_args){.size = sizeof(struct dlx_caller_args), __VA_ARGS__})
#define SERVICE(...)                                                                               \
    (&(const struct dlx_service_args){.size = sizeof(struct dlx_service_args), __VA_ARGS__})
#define REPLY(...)                                                                                 \
    (&(const struct dlx_reply_args){.size = sizeof(struct dlx_reply_args), __VA_ARGS__})
#define BYTES(text) (&(const struct dlx_bytes){.data = (text), .size = sizeof(text) - 1})

#define auto_request DLX_TEST_AUTO(dlx_call_end_request) struct dlx_request

#define dlx_call_no_request(s, timeout_ns)                                                         \
    do {                                                                                           \
        struct dlx_request *none_ = NULL;                                                          \
        int r_ = dlx_service_take(s, timeout_ns, &none_);                                          \
        ck_assert_msg(r_ == DLX_E_EMPTY || r_ == DLX_E_TIMEOUT, "%d %s", r_, dlx_errmsg());        \
    } while (0)

void dlx_call_end_request(struct dlx_request **request);

struct dlx_caller *dlx_call_caller(struct dlx_client *c, const struct dlx_caller_args *args);
struct dlx_service *dlx_call_service(struct dlx_client *c, const struct dlx_service_args *args);
void dlx_call_fill(DLManagedTensorVersioned *t, int64_t n, int64_t value);
DLManagedTensorVersioned *dlx_call_question(struct dlx_caller *k, int64_t n, int64_t value);
/* Begins a call with N elements. Returns its number. */
uint64_t dlx_call_ask(struct dlx_caller *k, int64_t value, const struct dlx_call_args *args);
/* Asks, with n elements, and waits for the reply, which it checks. */
void dlx_call_there_and_back(struct dlx_caller *k, int64_t n, int64_t value);
/* Waits for a request. */
struct dlx_request *dlx_call_next(struct dlx_service *s);
int64_t dlx_call_first_of(struct dlx_message *m);
/* Counts up from one more than the request does. */
void dlx_call_answer(struct dlx_request *request);
void dlx_call_answer_next(struct dlx_service *s);
/* Waits for the result of this call. */
struct dlx_call_result dlx_call_result_of(struct dlx_caller *k, uint64_t call);
void dlx_call_expect_reply(struct dlx_caller *k, uint64_t call, int64_t value);
void dlx_call_expect_failure(struct dlx_caller *k, uint64_t call, int code, const char *words);
void dlx_call_no_result(struct dlx_caller *k);
struct dlx_caller_stats dlx_call_caller_stats(struct dlx_caller *k);
struct dlx_service_stats dlx_call_service_stats(struct dlx_service *s);

/* A part: serves, says so, and answers until it is killed. */
void dlx_call_serve_elsewhere(struct dlx_test_peer *parent);
/* A part: serves, says so, takes a request, says so, and keeps it until it is killed. */
void dlx_call_keep_elsewhere(struct dlx_test_peer *parent);
/* A part: asks, says so, and says so when a result has come. */
void dlx_call_ask_elsewhere(struct dlx_test_peer *parent);

#endif
