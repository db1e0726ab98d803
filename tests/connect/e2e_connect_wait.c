/* SPDX-License-Identifier: Apache-2.0 */

/* dlx_connect_args.wait_ns: a program that starts before the daemon does. */

#include "tests/harness/daemon.h"
#include "tests/harness/patience.h"
#include "tests/harness/spawn.h"
#include "tests/harness/stream.h"

/* Between two looks: what happens at which of them, from 1; 0: never. */
static struct {
    int n, start_at, stop_at;
} asked;
static struct dlx_client *other;

static int start_daemon(void *unused)
{
    (void)unused;
    if (++asked.n == asked.start_at)
        dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
    return asked.n == asked.stop_at;
}

static int start_private_daemon(void *unused)
{
    (void)unused;
    if (++asked.n == asked.start_at)
        other = dlx_test_spawn_connect();
    return 0;
}

static struct dlx_connect_args waiting(int64_t wait_ns)
{
    asked.n = asked.start_at = asked.stop_at = 0;
    return (struct dlx_connect_args){.size = sizeof(struct dlx_connect_args),
                                     .socket = dlx_test_stream_daemon.path,
                                     .wait_ns = wait_ns,
                                     .interrupt = start_daemon};
}

/* ---- a socket that somebody named ------------------------------------------------------------ */

/* First its socket is not there, then nobody listens on it: it was killed. */
START_TEST(a_daemon_that_comes_later_is_waited_for)
{
    struct dlx_connect_args args = waiting(_i < 2 ? PATIENCE : DLX_FOREVER);
    auto_client *c = NULL;
    if (_i == 0)
        dlx_test_daemon_stop(&dlx_test_stream_daemon);
    else
        dlx_test_daemon_kill(&dlx_test_stream_daemon);
    ck_assert_int_eq(access(args.socket, F_OK), _i == 0 ? -1 : 0);
    asked.start_at = 3;
    args.timeout_ns = 20 * SECOND;
    ok(dlx_connect(&c, &args));
    ck_assert_int_eq(asked.n, 3);
    ck_assert_str_eq(dlx_client_errmsg(c), "");
    struct dlx_daemon_info info = dlx_test_stream_daemon_info(c);
    ck_assert_int_eq((pid_t)info.pid, dlx_test_stream_daemon.pid);
}
END_TEST

START_TEST(who_waited_in_vain_is_told_where_and_how_long)
{
    struct dlx_connect_args args = waiting(SECOND / 20);
    struct dlx_client *c = NULL;
    dlx_test_daemon_stop(&dlx_test_stream_daemon);
    uint64_t began = dlx__now_ns();
    fails(dlx_connect(&c, &args), DLX_E_NO_DAEMON, "waited 0.05 s: ");
    ck_assert_uint_ge(dlx__now_ns() - began, SECOND / 20);
    ck_assert_ptr_nonnull(strstr(dlx_client_errmsg(NULL), args.socket));
    ck_assert_ptr_nonnull(strstr(dlx_client_errmsg(NULL), "No such file"));
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
}
END_TEST

START_TEST(nobody_waits_who_did_not_ask_for_it)
{
    struct dlx_connect_args args = waiting(0);
    struct dlx_client *c = NULL;
    dlx_test_daemon_stop(&dlx_test_stream_daemon);
    asked.stop_at = 1;
    fails(dlx_connect(&c, &args), DLX_E_NO_DAEMON, args.socket);
    ck_assert_int_eq(asked.n, 0);
    ck_assert_ptr_null(strstr(dlx_client_errmsg(NULL), "waited"));
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
}
END_TEST

START_TEST(the_wait_can_be_interrupted)
{
    struct dlx_connect_args args = waiting(DLX_FOREVER);
    struct dlx_client *c = NULL;
    dlx_test_daemon_stop(&dlx_test_stream_daemon);
    asked.stop_at = 2;
    fails(dlx_connect(&c, &args), DLX_E_INTERRUPTED, args.socket);
    ck_assert_int_eq(asked.n, 2);
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
}
END_TEST

/* ---- the usual places ------------------------------------------------------------------------ */

START_TEST(who_starts_no_daemon_waits_for_somebody_elses)
{
    struct dlx_connect_args args = waiting(PATIENCE);
    auto_client *c = NULL;
    args.socket = NULL;
    args.autospawn = DLX_AUTOSPAWN_NEVER;
    args.interrupt = start_private_daemon;
    asked.start_at = 2;
    ok(dlx_connect(&c, &args));
    ck_assert_int_eq(dlx_test_spawn_pid(c), dlx_test_spawn_pid(other));
    other = dlx_client_unref(other);
}
END_TEST

START_TEST(who_waited_where_none_is_started_is_told_why)
{
    struct dlx_connect_args args = waiting(SECOND / 20);
    struct dlx_client *c = NULL;
    args.socket = NULL;
    setenv("DLX_AUTOSPAWN", "no", 1);
    fails(dlx_connect(&c, &args), DLX_E_NO_DAEMON, "waited 0.05 s: ");
    ck_assert_ptr_nonnull(strstr(dlx_client_errmsg(NULL), dlx_test_spawn_socket));
    ck_assert_ptr_nonnull(strstr(dlx_client_errmsg(NULL), "$DLX_AUTOSPAWN turns that off"));
}
END_TEST

START_TEST(who_may_start_a_daemon_does_not_wait)
{
    struct dlx_connect_args args = waiting(PATIENCE);
    auto_client *c = NULL;
    args.socket = NULL;
    args.interrupt = start_private_daemon;
    ok(dlx_connect(&c, &args));
    ck_assert_int_eq(asked.n, 0);
}
END_TEST

START_TEST(a_daemon_that_fails_to_start_is_not_started_again)
{
    struct dlx_connect_args args = waiting(PATIENCE);
    struct dlx_client *c = NULL;
    char said[64];
    args.socket = NULL;
    args.interrupt = start_private_daemon;
    dlx_test_spawn_script("#!/bin/sh\necho once >>\"$XDG_RUNTIME_DIR/starts\"\nexit 3\n");
    fails(dlx_connect(&c, &args), DLX_E_NO_DAEMON, "exited with status 3");
    ck_assert_int_eq(asked.n, 0);
    dlx_test_spawn_read("starts", said, sizeof said);
    ck_assert_str_eq(said, "once\n");
    dlx_test_spawn_remove("starts");
    dlx_test_spawn_remove("script");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("e2e_connect_wait");
    TCase *named = dlx_test_stream_case("named");
    TCase *places = dlx_test_spawn_case("places");
    tcase_add_loop_test(named, a_daemon_that_comes_later_is_waited_for, 0, 3);
    tcase_add_test(named, who_waited_in_vain_is_told_where_and_how_long);
    tcase_add_test(named, nobody_waits_who_did_not_ask_for_it);
    tcase_add_test(named, the_wait_can_be_interrupted);
    tcase_add_test(places, who_starts_no_daemon_waits_for_somebody_elses);
    tcase_add_test(places, who_waited_where_none_is_started_is_told_why);
    tcase_add_test(places, who_may_start_a_daemon_does_not_wait);
    tcase_add_test(places, a_daemon_that_fails_to_start_is_not_started_again);
    suite_add_tcase(suite, named);
    suite_add_tcase(suite, places);
    return dlx_test_run(suite);
}
