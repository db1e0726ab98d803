/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/stream.h"
#include "tests/harness/fds.h"
#include "tests/harness/fork.h"
#include <inttypes.h>
#include <sys/resource.h>
#include <time.h>

struct dlx_test_daemon dlx_test_stream_daemon;
static size_t fds_before;

static void start(void)
{
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
    fds_before = dlx_test_fds_count();
}

/* Everything that a test opened is closed again, here and in the daemon. */
static void stop(void)
{
    ck_assert_uint_eq(dlx_test_fds_count(), fds_before);
    ck_assert_int_eq(dlx_test_daemon_stop(&dlx_test_stream_daemon), 0);
}

struct dlx_client *dlx_test_stream_connect(void)
{
    struct dlx_client *c = NULL;
    struct dlx_connect_args args = {
        .size = sizeof args, .socket = dlx_test_stream_daemon.path, .timeout_ns = PATIENCE};
    ok(dlx_connect(&args, &c));
    return c;
}

struct dlx_client *dlx_test_stream_connect_with_links(uint32_t n)
{
    struct rlimit limit, low;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    low = limit;
    low.rlim_cur = 64 + 2 * (rlim_t)n;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &low), 0);
    struct dlx_client *c = dlx_test_stream_connect();
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    return c;
}

DLManagedTensorVersioned *dlx_test_stream_alloc(struct dlx_publisher *p, int64_t n, int64_t value)
{
    struct dlx_tensor_spec spec = {
        .size = sizeof spec, .dtype = {kDLInt, 64, 1}, .ndim = 1, .shape = &n};
    DLManagedTensorVersioned *t = NULL;
    ok(dlx_alloc(p, &spec, &t));
    for (int64_t i = 0; i < n; i++)
        ((int64_t *)t->dl_tensor.data)[i] = value + i;
    return t;
}

void dlx_test_stream_publish(struct dlx_publisher *p, int64_t n, int64_t value)
{
    ok(dlx_publish(p, dlx_test_stream_alloc(p, n, value), NULL, NULL));
}

void dlx_test_stream_check(struct dlx_message *m, int64_t n, int64_t value)
{
    const DLTensor *t = dlx_message_tensor_peek(m, 0);
    ck_assert_ptr_nonnull(t);
    ck_assert_int_eq(t->ndim, 1);
    ck_assert_int_eq(t->shape[0], n);
    ck_assert_int_eq(t->strides[0], 1);
    ck_assert_uint_eq((uintptr_t)t->data % DLX_ALIGNMENT, 0);
    int64_t i = 0;
    while (i < n && ((const int64_t *)t->data)[i] == value + i)
        i++;
    ck_assert_msg(i == n, "element %" PRId64 " is %" PRId64 ", not %" PRId64, i,
                  ((const int64_t *)t->data)[i < n ? i : 0],
                  value + i); /* each assert is a system call */
}

struct dlx_publisher *dlx_test_stream_publisher(struct dlx_client *c, const char *topic,
                                                const struct dlx_publisher_args *args)
{
    struct dlx_publisher *p = NULL;
    ok(dlx_publisher_new(c, topic, args, &p));
    return p;
}

struct dlx_subscription *dlx_test_stream_subscribe(struct dlx_client *c, const char *pattern,
                                                   const struct dlx_subscribe_args *args)
{
    struct dlx_subscription *s = NULL;
    ok(dlx_subscribe(c, pattern, args, &s));
    return s;
}

struct dlx_publisher *dlx_test_stream_new_publisher(const char *topic,
                                                    const struct dlx_publisher_args *args)
{
    auto_client *c = dlx_test_stream_connect();
    return dlx_test_stream_publisher(c, topic, args);
}

struct dlx_subscription *dlx_test_stream_new_subscription(const char *pattern,
                                                          const struct dlx_subscribe_args *args)
{
    auto_client *c = dlx_test_stream_connect();
    return dlx_test_stream_subscribe(c, pattern, args);
}

struct dlx_message *dlx_test_stream_next(struct dlx_subscription *s)
{
    struct dlx_message *m = NULL;
    ok(dlx_take(s, PATIENCE, &m));
    return m;
}

struct dlx_publisher_stats dlx_test_stream_stats(struct dlx_publisher *p)
{
    struct dlx_publisher_stats stats = {.size = sizeof stats};
    ok(dlx_publisher_get_stats(p, &stats));
    return stats;
}

struct dlx_subscription_stats dlx_test_stream_subscription_stats(struct dlx_subscription *s)
{
    struct dlx_subscription_stats stats = {.size = sizeof stats};
    ok(dlx_subscription_get_stats(s, &stats));
    return stats;
}

struct dlx_daemon_info dlx_test_stream_daemon_info(struct dlx_client *c)
{
    struct dlx_daemon_info info = {.size = sizeof info};
    ok(dlx_client_get_daemon_info(c, &info));
    return info;
}

void dlx_test_stream_expect(struct dlx_subscription *s, int64_t n, int64_t value)
{
    struct dlx_message *m = dlx_test_stream_next(s);
    dlx_test_stream_check(m, n, value);
    dlx_message_unref(m);
}

void dlx_test_stream_get(struct dlx_client *c, const char *topic, int64_t n, int64_t value)
{
    auto_message *m = NULL;
    ok(dlx_get(c, topic, 0, &m));
    dlx_test_stream_check(m, n, value);
}

struct listed {
    size_t n;
    struct dlx_publisher_info last;
};

static int note(const struct dlx_publisher_info *info, void *userdata)
{
    struct listed *listed = userdata;
    listed->n++;
    listed->last = *info;
    return 0;
}

size_t dlx_test_stream_list(struct dlx_client *c, struct dlx_publisher_info *ret)
{
    struct listed listed = {.n = 0};
    ok(dlx_list_publishers(c, NULL, note, &listed));
    if (ret && listed.n > 0)
        *ret = listed.last;
    return listed.n;
}

void dlx_test_stream_restart(void)
{
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
}

void dlx_test_stream_take(struct dlx_subscription *s, int64_t value)
{
    struct dlx_message *m = dlx_test_stream_next(s);
    ck_assert_uint_eq(dlx_message_seq(m), (uint64_t)value);
    ck_assert_uint_eq(dlx_message_gap(m), 0);
    dlx_test_stream_check(m, 10, value);
    dlx_message_unref(m);
}

void dlx_test_stream_publish_all(struct dlx_publisher *p, int64_t n, int64_t first, int64_t last)
{
    for (int64_t value = first; value <= last; value++)
        dlx_test_stream_publish(p, n, value);
}

void dlx_test_stream_expect_all(struct dlx_subscription *s, int64_t n, int64_t first, int64_t last)
{
    for (int64_t value = first; value <= last; value++)
        dlx_test_stream_expect(s, n, value);
}

void dlx_test_stream_take_all(struct dlx_subscription *s, int64_t first, int64_t last)
{
    for (int64_t value = first; value <= last; value++)
        dlx_test_stream_take(s, value);
}

pid_t dlx_test_stream_subscribe_elsewhere(const struct dlx_subscribe_args *args)
{
    struct dlx_test_child child = dlx_test_fork_child();
    if (child.pid == 0) {
        (void)dlx_test_stream_subscribe(dlx_test_stream_connect(), "test/a", args);
        dlx_test_fork_ready(&child);
    }
    return dlx_test_fork_wait_ready(&child);
}

pthread_t dlx_test_stream_thread(void *(*run)(void *userdata), void *userdata)
{
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, run, userdata), 0);
    return thread;
}

static void *delete_tensor(void *userdata)
{
    DLManagedTensorVersioned *t = userdata;
    t->deleter(t);
    return NULL;
}

pthread_t dlx_test_stream_delete_elsewhere(DLManagedTensorVersioned *t)
{
    return dlx_test_stream_thread(delete_tensor, t);
}

void dlx_test_stream_unref_publishers(struct dlx_publisher **p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dlx_publisher_unref(p[i]);
}

void dlx_test_stream_unref_subscriptions(struct dlx_subscription **s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dlx_subscription_unref(s[i]);
}

void dlx_test_stream_unref_messages(struct dlx_message **m, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dlx_message_unref(m[i]);
}

void dlx_test_stream_publish_once_joined(struct dlx_publisher *p, DLManagedTensorVersioned *tensor,
                                         struct dlx_subscription *s)
{
    struct dlx_message *m = NULL;
    for (time_t end = time(NULL) + PATIENCE_S; dlx_publish(p, tensor, NULL, NULL) == DLX_E_FULL;) {
        ck_assert_int_eq(dlx_take(s, 0, &m), DLX_E_EMPTY);
        ck_assert_int_lt(time(NULL), end);
    }
}

struct dlx_test_pair dlx_test_pair_make(const struct dlx_publisher_args *pa,
                                        const struct dlx_subscribe_args *sa)
{
    struct dlx_test_pair pair = {.c = dlx_test_stream_connect()};
    pair.p = dlx_test_stream_publisher(pair.c, "test/a", pa);
    pair.s = dlx_test_stream_subscribe(pair.c, "test/a", sa);
    return pair;
}

struct dlx_message *dlx_test_pair_pass(struct dlx_test_pair *pair, int64_t n, int64_t value)
{
    dlx_test_stream_publish(pair->p, n, value);
    return dlx_test_stream_next(pair->s);
}

void dlx_test_pair_end(struct dlx_test_pair *pair)
{
    dlx_publisher_unref(pair->p);
    dlx_subscription_unref(pair->s);
    dlx_client_unref(pair->c);
}

void dlx_test_stream_end_client(struct dlx_client **c)
{
    dlx_client_unref(*c);
}

void dlx_test_stream_end_publisher(struct dlx_publisher **p)
{
    dlx_publisher_unref(*p);
}

void dlx_test_stream_end_subscription(struct dlx_subscription **s)
{
    dlx_subscription_unref(*s);
}

void dlx_test_stream_end_message(struct dlx_message **m)
{
    dlx_message_unref(*m);
}

void dlx_test_stream_end_tensor(DLManagedTensorVersioned **t)
{
    if (*t)
        (*t)->deleter(*t);
}

void dlx_test_stream_end_caller(struct dlx_caller **k)
{
    dlx_caller_unref(*k);
}

void dlx_test_stream_end_service(struct dlx_service **s)
{
    dlx_service_unref(*s);
}

TCase *dlx_test_stream_case(const char *name)
{
    TCase *tcase = tcase_create(name);
    tcase_set_timeout(tcase, 5 * PATIENCE_S);
    dlx_test_dir_fixture(tcase, &dlx_test_stream_daemon);
    dlx_test_stream_add_daemon(tcase);
    return tcase;
}

void dlx_test_stream_add_daemon(TCase *tcase)
{
    tcase_add_checked_fixture(tcase, start, stop);
}
