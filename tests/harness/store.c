/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/store.h"
#include <poll.h>

struct dlx_test_manager dlx_test_store_manager;

const struct dlx_publisher_args dlx_test_retain_1 = {.size = sizeof dlx_test_retain_1, .retain = 1};
const struct dlx_publisher_args dlx_test_retain_2 = {.size = sizeof dlx_test_retain_2, .retain = 2};

void dlx_test_store_begin(unsigned max_fds)
{
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    dlx_test_manager_start(&dlx_test_store_manager, &dlx_test_stream_daemon);
    dlx_test_manager_run(&dlx_test_store_manager, &dlx_test_stream_daemon, max_fds);
}

void dlx_test_store_run_again(void)
{
    dlx_test_manager_run(&dlx_test_store_manager, &dlx_test_stream_daemon, DLX_TEST_STORE_MANY);
}

void dlx_test_store_restart(void)
{
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    dlx_test_store_run_again();
}

struct dlx_publisher *dlx_test_store_publisher(struct dlx_client *c, const char *topic,
                                               const struct dlx_publisher_args *args)
{
    struct dlx_publisher *p = NULL;
    ok(dlx_publisher_new(c, topic, args, &p));
    return p;
}

void dlx_test_store_leave_messages(const char *topic, const struct dlx_publisher_args *args,
                                   int64_t n)
{
    struct dlx_client *c = dlx_test_stream_connect();
    struct dlx_publisher *p = dlx_test_store_publisher(c, topic, args);
    for (int64_t i = 1; i <= n; i++)
        dlx_test_stream_publish(p, 100, i);
    dlx_publisher_unref(p);
    dlx_client_unref(c);
}

void dlx_test_store_take(struct dlx_subscription *s, int64_t first, int64_t last)
{
    struct dlx_message *m = NULL;
    for (int64_t i = first; i <= last; i++) {
        int r = dlx_take(s, PATIENCE, &m);
        /* Of those before; each is told once. */
        for (int k = 0; k < 4 && (r == DLX_E_PUBLISHER_GONE || r == DLX_E_DISCONNECTED); k++)
            r = dlx_take(s, PATIENCE, &m);
        ok(r);
        dlx_test_stream_check(m, 100, i);
        ck_assert_uint_eq(dlx_message_seq(m), (uint64_t)i);
        dlx_message_unref(m);
    }
}

void dlx_test_store_check_there(const char *topic, int64_t first, int64_t last)
{
    struct dlx_client *c = dlx_test_stream_connect();
    struct dlx_subscription *s = NULL;
    struct dlx_message *m = NULL;
    ok(dlx_subscribe(c, topic, NULL, &s));
    dlx_test_store_take(s, first, last);
    int r = dlx_take(s, 0, &m);
    ck_assert_msg(r == DLX_E_PUBLISHER_GONE || r == DLX_E_EMPTY, "%d", r);
    dlx_subscription_unref(s);
    dlx_client_unref(c);
}

static int count(const struct dlx_publisher_info *info, void *userdata)
{
    (void)info;
    ++*(int *)userdata;
    return 0;
}

int dlx_test_store_n_publishers(void)
{
    struct dlx_client *c = dlx_test_stream_connect();
    int n = 0;
    ok(dlx_list_publishers(c, NULL, count, &n));
    dlx_client_unref(c);
    return n;
}

void dlx_test_store_drop(const char *topic)
{
    struct dlx_client *c = dlx_test_stream_connect();
    ok(dlx_retained_drop(c, topic));
    dlx_client_unref(c);
}

void dlx_test_store_end(void)
{
    dlx_test_manager_wait_n_kept(&dlx_test_store_manager, "", 1);
    dlx_test_manager_stop(&dlx_test_store_manager);
}
