/* SPDX-License-Identifier: Apache-2.0 */

/* dlpackd itself lacks descriptors for a while: no link ends by that, it is told what is lacking,
 * and links are made when there are descriptors again. */

#include "tests/harness/stream.h"
#include <pthread.h>
#include <string.h>
#include <sys/resource.h>

static const struct dlx_test_daemon *const place = &dlx_test_stream_daemon;

static void allow(const struct rlimit *limit)
{
    ck_assert_int_eq(prlimit(place->pid, RLIMIT_NOFILE, limit, NULL), 0);
}

static bool is_lacking(struct dlx_client *c)
{
    const struct dlx_daemon_info info = dlx_test_stream_daemon_info(c);
    if (*info.lack)
        contains(info.lack, "Too many open files");
    return *info.lack;
}

/* Raises the limit when the daemon says that links wait. */
struct relief {
    pthread_t thread;
    struct dlx_client *client;
    struct rlimit limit;
};

static void *relieve(void *data)
{
    const struct relief *relief = data;
    eventually(is_lacking(relief->client));
    allow(&relief->limit);
    return NULL;
}

static void relief_begin(struct relief *relief, struct dlx_client *c, unsigned n_left)
{
    *relief = (struct relief){.client = c, .limit = dlx_test_daemon_leave_fds(place, n_left)};
    ck_assert_int_eq(pthread_create(&relief->thread, NULL, relieve, relief), 0);
}

/* Descriptors that the daemon needs to answer Subscribe: the two ends of the socket. With MANY more
 * it makes the link; with fewer it makes nothing of it, or the page alone. */
enum { OF_SUBSCRIBE = 2, MANY = 4 };

LOOP_TEST(a_subscribe_waits_until_dlpackd_can_make_its_links, 0, MANY)
{
    struct relief relief;
    auto_client *c = dlx_test_stream_connect();
    auto_client *other = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", NULL);
    relief_begin(&relief, other, OF_SUBSCRIBE + (unsigned)_i);
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/a", NULL);
    ck_assert_int_eq(pthread_join(relief.thread, NULL), 0);
    ck_assert(!is_lacking(other));
    dlx_test_stream_publish(p, 3, 1);
    dlx_test_stream_expect(s, 3, 1);
    ck_assert_uint_eq(dlx_test_stream_subscription_stats(s).lost, 0);
}

static void *subscribe_patiently(void *c)
{
    return dlx_test_stream_subscribe(c, "test/a", NULL);
}

/* The subscriber is not why. */
TEST(a_wait_for_subscribers_says_what_dlpackd_lacks)
{
    void *s = NULL;
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", NULL);
    const struct rlimit limit = dlx_test_daemon_leave_fds(place, OF_SUBSCRIBE);
    pthread_t thread = dlx_test_stream_thread(subscribe_patiently, other);
    eventually(is_lacking(c));
    fails(dlx_publisher_wait(p, 1, SECOND / 20), DLX_E_TIMEOUT,
          "subscribed, and dlpackd lacks what their links need: ");
    allow(&limit);
    ck_assert_int_eq(pthread_join(thread, &s), 0);
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    dlx_subscription_unref(s);
}

TEST(a_subscribe_that_is_too_late_says_what_dlpackd_lacks)
{
    struct dlx_client *patient = dlx_test_stream_connect(), *c = NULL;
    struct dlx_subscription *s = NULL;
    ok(dlx_connect(CONNECT(.timeout_ns = SECOND / 5), &c));
    const struct rlimit limit = dlx_test_daemon_leave_fds(place, OF_SUBSCRIBE);
    fails(dlx_subscribe(c, "test/a", NULL, &s), DLX_E_TIMEOUT,
          "of 2 links were made in time, and dlpackd lacks what the others need: ");
    eventually(!is_lacking(patient)); /* no client waits any more */
    allow(&limit);
    dlx_client_unref(c);
    dlx_client_unref(patient);
}
