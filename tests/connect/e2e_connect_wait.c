/* SPDX-License-Identifier: Apache-2.0 */
/* dlx_connect_args.wait_ns: a program that starts before the daemon does. */

#include "tests/harness/spawn.h"

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

/* On a socket that the program named. */
CASE(named)
{
    return dlx_test_stream_case("named");
}

static struct dlx_connect_args waiting(int64_t wait_ns)
{
    return *CONNECT(.wait_ns = wait_ns, .interrupt = start_daemon);
}

/* First the daemon's socket is not there, then no process listens on it: the daemon was killed. */
LOOP_TEST_OF(named, a_daemon_that_comes_later_is_waited_for, 0, 3)
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
    ok(dlx_connect(&args, &c));
    ck_assert_int_eq(asked.n, 3);
    ck_assert_str_eq(dlx_errmsg(), "");
    ck_assert_int_eq(dlx_test_spawn_pid(c), dlx_test_stream_daemon.pid);
}

static const struct {
    int64_t wait_ns;
    int stop_at, n_asked; /* n_asked -1: some times */
    int code;
    const char *words;
} in_vain[] = {
    {SECOND / 20, 0, -1, DLX_E_NO_DAEMON, "waited 0.05 s: "},
    {0, 1, 0, DLX_E_NO_DAEMON, ""},             /* without wait_ns no call waits */
    {DLX_FOREVER, 2, 2, DLX_E_INTERRUPTED, ""}, /* the wait can be interrupted */
};

LOOP_TEST_OF(named, a_connect_without_a_daemon_says_where_and_how_long_it_waited, 0,
             DLX_ARRAY_SIZE(in_vain))
{
    struct dlx_connect_args args = waiting(in_vain[_i].wait_ns);
    struct dlx_client *c = NULL;
    dlx_test_daemon_stop(&dlx_test_stream_daemon);
    asked.stop_at = in_vain[_i].stop_at;
    uint64_t began = dlx__now_ns();
    fails(dlx_connect(&args, &c), in_vain[_i].code, in_vain[_i].words);
    contains(dlx_errmsg(), args.socket);
    if (in_vain[_i].n_asked < 0) {
        ck_assert_uint_ge(dlx__now_ns() - began, SECOND / 20);
        contains(dlx_errmsg(), "No such file");
    } else {
        ck_assert_int_eq(asked.n, in_vain[_i].n_asked);
        ck_assert(asked.n > 0 || !strstr(dlx_errmsg(), "waited"));
    }
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
}

/* In the usual places. */
CASE(places)
{
    return dlx_test_spawn_case("places");
}

static struct dlx_connect_args waiting_anywhere(int64_t wait_ns)
{
    struct dlx_connect_args args = waiting(wait_ns);
    args.socket = NULL;
    args.interrupt = start_private_daemon;
    return args;
}

TEST_OF(places, a_connect_that_starts_no_daemon_waits_for_another_programs)
{
    struct dlx_connect_args args = waiting_anywhere(PATIENCE);
    auto_client *c = NULL;
    args.autospawn = DLX_AUTOSPAWN_NEVER;
    asked.start_at = 2;
    ok(dlx_connect(&args, &c));
    ck_assert_int_eq(dlx_test_spawn_pid(c), dlx_test_spawn_pid(other));
    other = dlx_client_unref(other);
}

TEST_OF(places, a_connect_that_waited_says_why_no_daemon_is_started)
{
    struct dlx_connect_args args = waiting_anywhere(SECOND / 20);
    struct dlx_client *c = NULL;
    setenv("DLX_AUTOSPAWN", "no", 1);
    fails(dlx_connect(&args, &c), DLX_E_NO_DAEMON, "waited 0.05 s: ");
    contains(dlx_errmsg(), dlx_test_spawn_socket);
    contains(dlx_errmsg(), "$DLX_AUTOSPAWN turns that off");
}

TEST_OF(places, a_connect_that_may_start_a_daemon_does_not_wait)
{
    struct dlx_connect_args args = waiting_anywhere(PATIENCE);
    auto_client *c = NULL;
    ok(dlx_connect(&args, &c));
    ck_assert_int_eq(asked.n, 0);
}

TEST_OF(places, a_daemon_that_fails_to_start_is_not_started_again)
{
    struct dlx_connect_args args = waiting_anywhere(PATIENCE);
    struct dlx_client *c = NULL;
    char said[64];
    dlx_test_spawn_script("echo once >>\"$XDG_RUNTIME_DIR/starts\"; exit 3");
    fails(dlx_connect(&args, &c), DLX_E_NO_DAEMON, "exited with status 3");
    ck_assert_int_eq(asked.n, 0);
    dlx_test_spawn_read("starts", said, sizeof said);
    ck_assert_str_eq(said, "once\n");
    dlx_test_spawn_remove("starts");
    dlx_test_spawn_remove("script");
}

int main(void)
{
    return dlx_test_run_cases();
}
