/* SPDX-License-Identifier: Apache-2.0 */
/* dlxctl pub: when it publishes, and what it says of what stays. */
#include "cli/cli.h"
#include "tests/cli/harness_cli_case.h"
#include "tests/harness/fork.h"

/* A subscriber stops for longer than the publisher's depth of 16 messages, which waits then. Of any
 * four messages the last one is at least a period after the first: one may come late, and the next
 * one in time. */
TEST(messages_that_could_not_go_out_do_not_follow_all_at_once)
{
    enum { PERIOD_NS = 5000000, STOP_NS = 40 * PERIOD_NS, STOP_AT = 5, N = 40 };
    const char *file = dlx_test_file_write("byte", "x", 1);
    uint64_t at_ns[N];
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *s = dlx_test_stream_subscribe(c, "a", SUBSCRIBE_RELIABLY);
    auto_cli pub = dlxctl_start("pub", "a", file, "--dtype", "uint8", "--shape", "1", "--loop", "0",
                                "--rate", "200", "--block", "--wait", "1");
    for (int i = 0; i < N; i++) {
        auto_message *m = dlx_test_stream_next(s);
        at_ns[i] = dlx_message_monotonic_ns(m);
        for (uint64_t until = dlx__now_ns() + STOP_NS; i == STOP_AT && dlx__now_ns() < until;)
            (void)poll(NULL, 0, 1);
        if (i >= 3)
            ck_assert_uint_ge(at_ns[i] - at_ns[i - 3], PERIOD_NS);
    }
    ck_assert_int_eq(kill(pub.pid, SIGINT), 0);
    dlx_test_cli_finish(&pub, 0);
}

/* This program, as dlxctl, drops its retained messages before it looks. */
static bool is_dropped;

int __real_dlx_list_publishers(struct dlx_client *c, const char *topic, dlx_publisher_info_fn fn,
                               void *userdata);
int __wrap_dlx_list_publishers(struct dlx_client *c, const char *topic, dlx_publisher_info_fn fn,
                               void *userdata);
int __wrap_dlx_list_publishers(struct dlx_client *c, const char *topic, dlx_publisher_info_fn fn,
                               void *userdata)
{
    if (is_dropped)
        ok(dlx_drop_retained(c, topic));
    return __real_dlx_list_publishers(c, topic, fn, userdata);
}

static char *words[] = {"dlxctl pub", "a", NULL,       "--dtype", "uint8",
                        "--shape",    "8", "--retain", "1",       NULL};

static void publish_retained(const void *userdata)
{
    struct cli cli = {.command = "pub", .socket = dlx_test_stream_daemon.path};
    (void)userdata;
    _exit(cmd_pub(&cli, DLX_ARRAY_SIZE(words) - 1, words));
}

/* Another publisher of the topic has published the same, and may retain as much: but it lives. */
LOOP_TEST(a_publisher_that_lives_is_not_what_is_retained, 0, 2)
{
    char file[300], said[256] = "";
    (void)snprintf(file, sizeof file, "%s", dlx_test_file_write("eight", "12345678", 8));
    words[2] = file;
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "a", PUBLISHER(.retain = 1));
    dlx_test_stream_publish(p, 1, 1); /* an int64 */
    is_dropped = _i == 0;
    ck_assert_int_eq(dlx_test_fork_said(publish_retained, NULL, said, sizeof said), is_dropped);
    if (is_dropped)
        has(said, ": a: nothing is retained: it was replaced or dropped meanwhile\n");
    else
        ck_assert_str_eq(said, "");
}

int main(void)
{
    return dlx_test_run_case(dlx_test_cli_case("pub"));
}
