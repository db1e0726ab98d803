/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_STREAM_H
#define DLX_TESTS_HARNESS_STREAM_H

/* libdlx against a real daemon: fixtures, and tensors of int64 that count up from a value. */

#include "tests/harness/daemon.h"
#include <dlx/dlx.h>
#include <sched.h>

#define SECOND INT64_C(1000000000)

/* dlx_take() must fail likewise: there is no message. */
#define take_fails(s, timeout_ns, code, word)                                                      \
    do {                                                                                           \
        struct dlx_message *none_ = NULL;                                                          \
        fails(dlx_take(s, timeout_ns, &none_), code, word);                                        \
    } while (0)

/* The condition, which is checked again and again, must hold within PATIENCE. */
#define eventually(condition)                                                                      \
    do {                                                                                           \
        for (uint64_t until_ = dlx__deadline(PATIENCE); !(condition); (void)sched_yield())         \
            if (dlx__now_ns() > until_)                                                            \
                ck_abort_msg("waited in vain for: %s", #condition);                                \
    } while (0)

/* The daemon of the fixtures. */
extern struct dlx_test_daemon dlx_test_stream_daemon;

/* A test case whose tests have a daemon each; at the end of each test no fd may be left open. A
 * program without a main() has it. */
TCase *dlx_test_stream_case(const char *name);

/* The same fixtures, for a case that has others before them: they need the folder of the daemon. */
void dlx_test_stream_add_daemon(TCase *tcase);

struct dlx_client *dlx_test_stream_connect(void);
/* The client may have so many links: it tells the daemon what its open files allow. */
struct dlx_client *dlx_test_stream_connect_with_links(uint32_t n);
DLManagedTensorVersioned *dlx_test_stream_alloc(struct dlx_publisher *p, int64_t n, int64_t value);
void dlx_test_stream_publish(struct dlx_publisher *p, int64_t n, int64_t value);
void dlx_test_stream_check(struct dlx_message *m, int64_t n, int64_t value);

/* Each of these must succeed. */
struct dlx_publisher *dlx_test_stream_publisher(struct dlx_client *c, const char *topic,
                                                const struct dlx_publisher_args *args);
struct dlx_subscription *dlx_test_stream_subscribe(struct dlx_client *c, const char *pattern,
                                                   const struct dlx_subscribe_args *args);
/* Each with a connection of its own. */
struct dlx_publisher *dlx_test_stream_new_publisher(const char *topic,
                                                    const struct dlx_publisher_args *args);
struct dlx_subscription *dlx_test_stream_new_subscription(const char *pattern,
                                                          const struct dlx_subscribe_args *args);
struct dlx_message *dlx_test_stream_next(struct dlx_subscription *s);
struct dlx_publisher_stats dlx_test_stream_stats(struct dlx_publisher *p);
struct dlx_subscription_stats dlx_test_stream_subscription_stats(struct dlx_subscription *s);
struct dlx_daemon_info dlx_test_stream_daemon_info(struct dlx_client *c);
/* The next message has `n` elements that count up from `value`. */
void dlx_test_stream_expect(struct dlx_subscription *s, int64_t n, int64_t value);

/* dlx_get() returns at once a message of `n` elements that count up from `value`. */
void dlx_test_stream_get(struct dlx_client *c, const char *topic, int64_t n, int64_t value);
/* How many publishers the daemon lists; `ret` is the last of them, or NULL. */
size_t dlx_test_stream_list(struct dlx_client *c, struct dlx_publisher_info *ret);

/* Kills the daemon, and starts another one in its place. */
void dlx_test_stream_restart(void);
/* Take the message of 10 elements whose sequence number is its value, and that follows the one
 * before. */
void dlx_test_stream_take(struct dlx_subscription *s, int64_t value);
/* Publish, expect or take each value of [first, last]. */
void dlx_test_stream_publish_all(struct dlx_publisher *p, int64_t n, int64_t first, int64_t last);
void dlx_test_stream_expect_all(struct dlx_subscription *s, int64_t n, int64_t first, int64_t last);
void dlx_test_stream_take_all(struct dlx_subscription *s, int64_t first, int64_t last);
/* A subscriber of test/a in a process of its own, which makes no call until it is killed. */
pid_t dlx_test_stream_subscribe_elsewhere(const struct dlx_subscribe_args *args);
/* Begin a thread, which the test joins. */
pthread_t dlx_test_stream_thread(void *(*run)(void *userdata), void *userdata);
/* The same, which deletes a tensor. */
pthread_t dlx_test_stream_delete_elsewhere(DLManagedTensorVersioned *t);
/* Release the first n of these. */
void dlx_test_stream_unref_publishers(struct dlx_publisher **p, size_t n);
void dlx_test_stream_unref_subscriptions(struct dlx_subscription **s, size_t n);
void dlx_test_stream_unref_messages(struct dlx_message **m, size_t n);
/* Publish without waiting, again and again, until the subscription has joined, which takes none. */
void dlx_test_stream_publish_once_joined(struct dlx_publisher *p, DLManagedTensorVersioned *tensor,
                                         struct dlx_subscription *s);

/* Arguments, written where they are used: PUBLISHER(.retain = 1). */
#define PUBLISHER(...)                                                                             \
    (&(const struct dlx_publisher_args){.size = sizeof(struct dlx_publisher_args), __VA_ARGS__})
#define SUBSCRIBE(...)                                                                             \
    (&(const struct dlx_subscribe_args){.size = sizeof(struct dlx_subscribe_args), __VA_ARGS__})
#define PUBLISH(...)                                                                               \
    (&(const struct dlx_publish_args){.size = sizeof(struct dlx_publish_args), __VA_ARGS__})

#define CONNECT(...)                                                                               \
    (&(const struct dlx_connect_args){.size = sizeof(struct dlx_connect_args),                     \
                                      .socket = dlx_test_stream_daemon.path,                       \
                                      __VA_ARGS__})
#define SPEC(...)                                                                                  \
    (&(const struct dlx_tensor_spec){.size = sizeof(struct dlx_tensor_spec), __VA_ARGS__})
/* A publisher that waits for subscriptions, and one of those. */
#define PUBLISHER_BLOCKING(...) PUBLISHER(.on_full = DLX_ON_FULL_BLOCK, __VA_ARGS__)
#define SUBSCRIBE_RELIABLY      SUBSCRIBE(.reliable = true)

/* The beginning of a tensor, or of its spec, of one dimension of int64. */
#define INT64_SPEC(int64_shape)                                                                    \
    {                                                                                              \
        .size = sizeof(struct dlx_tensor_spec), .dtype = {kDLInt, 64, 1}, .ndim = 1,               \
        .shape = (int64_shape)                                                                     \
    }
#define INT64_TENSOR(int64_values, int64_shape)                                                    \
    {                                                                                              \
        .version = {DLPACK_MAJOR_VERSION, 0}, .dl_tensor = {                                       \
            .data = (int64_values),                                                                \
            .device = {kDLCPU, 0},                                                                 \
            .ndim = 1,                                                                             \
            .dtype = {kDLInt, 64, 1},                                                              \
            .shape = (int64_shape)                                                                 \
        }                                                                                          \
    }

/* A publisher and a subscription on topic test/a. */
struct dlx_test_pair {
    struct dlx_client *c;
    struct dlx_publisher *p;
    struct dlx_subscription *s;
};
struct dlx_test_pair dlx_test_pair_make(const struct dlx_publisher_args *pa,
                                        const struct dlx_subscribe_args *sa);
void dlx_test_pair_end(struct dlx_test_pair *pair);
/* Publish, and take the next message, which may be another one. */
struct dlx_message *dlx_test_pair_pass(struct dlx_test_pair *pair, int64_t n, int64_t value);

/* A variable declared as one of these is released at the end of its block. A test that releases it
 * before sets it to NULL. */
#define auto_client       DLX_TEST_AUTO(dlx_test_stream_end_client) struct dlx_client
#define auto_publisher    DLX_TEST_AUTO(dlx_test_stream_end_publisher) struct dlx_publisher
#define auto_subscription DLX_TEST_AUTO(dlx_test_stream_end_subscription) struct dlx_subscription
#define auto_message      DLX_TEST_AUTO(dlx_test_stream_end_message) struct dlx_message
#define auto_tensor       DLX_TEST_AUTO(dlx_test_stream_end_tensor) DLManagedTensorVersioned
#define auto_caller       DLX_TEST_AUTO(dlx_test_stream_end_caller) struct dlx_caller
#define auto_service      DLX_TEST_AUTO(dlx_test_stream_end_service) struct dlx_service
#define auto_pair         DLX_TEST_AUTO(dlx_test_pair_end) struct dlx_test_pair
void dlx_test_stream_end_client(struct dlx_client **c);
void dlx_test_stream_end_publisher(struct dlx_publisher **p);
void dlx_test_stream_end_subscription(struct dlx_subscription **s);
void dlx_test_stream_end_message(struct dlx_message **m);
void dlx_test_stream_end_tensor(DLManagedTensorVersioned **t);
void dlx_test_stream_end_caller(struct dlx_caller **k);
void dlx_test_stream_end_service(struct dlx_service **s);

#endif
