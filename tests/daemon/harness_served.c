/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/daemon/harness_served.h"
#include <grp.h>
#include <stdio.h>
#include <unistd.h>

struct dlx_test_daemon dlx_served;
int dlx_served_client;
void (*dlx_served_prepare)(void *userdata);

static size_t n_fds_at_start;

void dlx_served_start(const char *env)
{
    if (dlx_served_prepare)
        dlx_test_daemon_start_prepared(&dlx_served, dlx_served_prepare, NULL);
    else
        dlx_test_daemon_start(&dlx_served, env);
    n_fds_at_start = dlx_test_daemon_n_fds(&dlx_served);
    dlx_served_client = dlx_test_hello(&dlx_served, 1000);
}

static void start(void)
{
    dlx_served_start(NULL);
}

static void stop(void)
{
    dlx_served_barrier();
    dlx_test_recv_done();
    close(dlx_served_client);
    dlx_test_daemon_wait_n_fds(&dlx_served, n_fds_at_start);
    ck_assert_int_eq(dlx_test_daemon_stop(&dlx_served), 0);
    ck_assert_int_ne(access(dlx_served.path, F_OK), 0);
}

TCase *dlx_served_case(const char *name)
{
    TCase *tcase = tcase_create(name);
    dlx_test_dir_fixture(tcase, &dlx_served);
    tcase_add_checked_fixture(tcase, start, stop);
    tcase_set_timeout(tcase, 30);
    return tcase;
}

void dlx_served_barrier(void)
{
    const Dlx__Wire__Packet *reply = dlx_test_call(dlx_served_client, DAEMON_INFO());
    ck_assert_int_eq(reply->body_case, BODY(DAEMON_INFO_REPLY));
    ck_assert_uint_eq(reply->daemon_info_reply->pid, (uint32_t)dlx_served.pid);
    ck_assert_str_eq(reply->daemon_info_reply->socket, dlx_served.path);
}

void dlx_served_publisher_close(const struct dlx_test_publisher *publisher)
{
    dlx_test_call_ok(publisher->control, PUBLISHER_CLOSE(.publisher = publisher->id));
}

void dlx_served_arena_drop(const struct dlx_test_publisher *publisher, uint32_t arena)
{
    dlx_test_call_ok(publisher->control, ARENA_DROP(.publisher = publisher->id, .arena = arena));
}

struct dlx_test_publisher dlx_served_publisher(const char *topic)
{
    struct dlx_test_publisher publisher;
    dlx_test_publisher_new(&publisher, dlx_served_client, topic, 0);
    dlx_test_publisher_ready(&publisher);
    return publisher;
}

struct dlx_test_subscription dlx_served_subscription(const char *topic)
{
    struct dlx_test_subscription subscription;
    dlx_test_subscribe(&subscription, dlx_served_client, topic, false);
    return subscription;
}

void dlx_test_become(const struct dlx_test_daemon *daemon, uid_t uid)
{
    if (chdir(daemon->dir) < 0 || setgroups(0, NULL) < 0 || setresgid(uid, uid, uid) < 0 ||
        setresuid(uid, uid, uid) < 0)
        _exit(10);
}
