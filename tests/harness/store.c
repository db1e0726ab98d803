/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/store.h"
#include "tests/harness/fork.h"

struct dlx_test_manager dlx_test_store_manager;

const struct dlx_publisher_args dlx_test_retain_1 = {.size = sizeof dlx_test_retain_1, .retain = 1};
const struct dlx_publisher_args dlx_test_retain_2 = {.size = sizeof dlx_test_retain_2, .retain = 2};

void dlx_test_store_begin(unsigned max_fds)
{
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    dlx_test_manager_start(&dlx_test_store_manager, &dlx_test_stream_daemon);
    dlx_test_manager_run(&dlx_test_store_manager, &dlx_test_stream_daemon, max_fds);
}

static void begin(void)
{
    dlx_test_store_begin(DLX_TEST_STORE_MANY);
}

static int drop(const struct dlx_publisher_info *info, void *userdata)
{
    struct dlx_client *c = userdata;
    int r = info->retained ? dlx_drop_retained(c, info->topic) : 0;
    ck_assert_msg(r == 0 || r == DLX_E_NOT_FOUND, "%s: %d", info->topic, r);
    return 0;
}

/* Until nothing is retained: the daemon may have yet to hear that a publisher has ended. */
static void end(void)
{
    uint64_t until = dlx__deadline(PATIENCE);
    auto_client *c = dlx_test_stream_connect(), *looks = dlx_test_stream_connect();
    while (dlx_test_store_n_publishers() > 0) {
        ck_assert_uint_lt(dlx__now_ns(), until);
        ok(dlx_list_publishers(looks, NULL, drop, c));
    }
    c = dlx_client_unref(c);
    looks = dlx_client_unref(looks);
    dlx_test_store_end();
}

void dlx_test_store_add_manager(TCase *tcase)
{
    tcase_add_checked_fixture(tcase, begin, end);
}

TCase *dlx_test_store_case(const char *name)
{
    TCase *tcase = dlx_test_stream_case(name);
    dlx_test_store_add_manager(tcase);
    return tcase;
}

void dlx_test_store_limit(unsigned max_fds)
{
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
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
    return dlx_test_stream_publisher(c, topic, args);
}

void dlx_test_store_leave_messages(const char *topic, const struct dlx_publisher_args *args,
                                   int64_t n)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_store_publisher(c, topic, args);
    for (int64_t i = 1; i <= n; i++)
        dlx_test_stream_publish(p, 100, i);
}

pid_t dlx_test_store_publish_elsewhere(const struct dlx_publisher_args *args, int64_t n)
{
    struct dlx_test_child child = dlx_test_fork_child();
    if (child.pid == 0) {
        struct dlx_client *c = dlx_test_stream_connect();
        dlx_test_stream_publish_all(dlx_test_stream_publisher(c, "test/a", args), 100, 1, n);
        dlx_test_fork_ready(&child);
    }
    return dlx_test_fork_wait_ready(&child);
}

void dlx_test_store_take(struct dlx_subscription *s, int64_t first, int64_t last)
{
    struct dlx_message *m = NULL;
    for (int64_t i = first; i <= last; i++) {
        int r = dlx_take(s, PATIENCE, &m);
        /* Events of the earlier ones; each is told once. */
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
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *s = dlx_test_stream_subscribe(c, topic, NULL);
    struct dlx_message *m = NULL;
    dlx_test_store_take(s, first, last);
    int r = dlx_take(s, 0, &m);
    ck_assert_msg(r == DLX_E_PUBLISHER_GONE || r == DLX_E_EMPTY, "%d", r);
}

int dlx_test_store_n_publishers(void)
{
    auto_client *c = dlx_test_stream_connect();
    return (int)dlx_test_stream_list(c, NULL);
}

void dlx_test_store_drop(const char *topic)
{
    auto_client *c = dlx_test_stream_connect();
    ok(dlx_drop_retained(c, topic));
}

void dlx_test_store_end(void)
{
    dlx_test_manager_wait_n_kept(&dlx_test_store_manager, "dlx-", 1);
    dlx_test_manager_stop(&dlx_test_store_manager);
}
