/* SPDX-License-Identifier: Apache-2.0 */
/* dlxctl why: each thing that keeps a topic from flowing is named, with what to do. */
#include "tests/cli/harness_cli_case.h"

#define LOOK "--for=20ms"

static struct dlx_client *c;

static void start(void)
{
    c = dlx_test_cli_connect("camera_node");
}

static void stop(void)
{
    c = dlx_client_unref(c);
}

static void publish_until_full(struct dlx_publisher *p)
{
    int code = 0;
    for (int64_t i = 1; code == 0; i++) {
        DLManagedTensorVersioned *t = dlx_test_stream_alloc(p, 12, i);
        code = dlx_publish(p, t, NULL, NULL);
        if (code < 0)
            t->deleter(t);
    }
    ck_assert_int_eq(code, DLX_E_FULL);
}

static void *publish_once_there_is_room(void *p)
{
    ok(dlx_publish(p, dlx_test_stream_alloc(p, 12, 0), PUBLISH(.timeout_ns = PATIENCE), NULL));
    return NULL;
}

static int is_blocked(const struct dlx_publisher_info *p, void *userdata)
{
    (void)userdata;
    return p->blocked_at_ns != 0;
}

TEST(a_topic_without_anything_is_told_with_those_that_exist)
{
    auto_publisher *p = dlx_test_stream_publisher(c, "cam/front", NULL);
    auto_cli cli = dlxctl(1, "why", "cam/fornt", LOOK);
    has(cli.out, "cam/fornt has no publisher and no subscriber.");
    has(cli.out, "do: start a publisher on cam/fornt, or check the name: there are cam/front");
}

TEST(a_subscription_that_no_publisher_serves_is_named)
{
    auto_subscription *s = dlx_test_stream_subscribe(c, "cam", NULL),
                      *pattern = dlx_test_stream_subscribe(c, "*", NULL);
    auto_cli cli = dlxctl(1, "why", "cam", LOOK);
    has(cli.out, "no publisher serves the subscription of camera_node (pid ");
    has(cli.out, " to *.");
    has(cli.out, "do: start a publisher on cam: no topic has one");
}

TEST(a_publisher_that_published_nothing_is_named)
{
    auto_publisher *p = dlx_test_stream_publisher(c, "cam", NULL);
    auto_cli never = dlxctl(1, "why", "cam", LOOK);
    has(never.out, "publisher camera_node (pid ");
    has(never.out, "has published nothing");
    dlx_test_stream_publish(p, 1, 1);
    auto_cli idle = dlxctl(1, "why", "cam", LOOK);
    has(idle.out, "published nothing while dlxctl looked (");
    has(idle.out, "a longer look (--for)");
}

TEST(a_subscriber_that_holds_all_it_may_and_blocks_is_named)
{
    auto_publisher *p = dlx_test_stream_publisher(c, "cam", PUBLISHER_BLOCKING(.depth = 4));
    auto_subscription *s =
        dlx_test_stream_subscribe(c, "cam", SUBSCRIBE(.reliable = true, .max_held = 2));
    dlx_test_stream_publish_all(p, 12, 1, 2);
    struct dlx_message *held[] = {dlx_test_stream_next(s), dlx_test_stream_next(s)};
    publish_until_full(p);
    pthread_t thread = dlx_test_stream_thread(publish_once_there_is_room, p);
    eventually(dlx_list_publishers(c, "cam", is_blocked, NULL) == 1);
    auto_cli cli = dlxctl(1, "why", "cam", LOOK);
    has(cli.out, "publisher camera_node (pid ");
    has(cli.out, " waits for subscriber camera_node (pid ");
    has(cli.out, "which took nothing while dlxctl looked (");
    has(cli.out, "; its next message is ");
    has(cli.out, "; it holds 2 of 2, the oldest for ");
    has(cli.out, "do: let it release messages, or raise its max_held; `dlxctl kick ");
    auto_cli json = dlxctl(1, "why", "cam", LOOK, "--json");
    json_t *root = dlx_test_cli_json(&json);
    const json_t *findings = json_object_get(root, "findings");
    ck_assert(json_is_false(json_object_get(root, "flows")));
    ck_assert_uint_eq(json_array_size(findings), 1);
    ck_assert_str_eq(json_string_value(json_object_get(json_array_get(findings, 0), "kind")),
                     "blocked");
    json_decref(root);
    dlx_test_stream_unref_messages(held, 2);
    dlx_test_stream_expect(s, 12, 1);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
}

TEST(a_subscriber_that_holds_all_it_may_is_stuck_also_where_the_publisher_drops)
{
    auto_publisher *p = dlx_test_stream_publisher(c, "cam", NULL);
    auto_subscription *s = dlx_test_stream_subscribe(c, "cam", SUBSCRIBE(.max_held = 1));
    dlx_test_stream_publish_all(p, 12, 1, 3);
    struct dlx_message *held = dlx_test_stream_next(s);
    auto_cli cli = dlxctl(1, "why", "cam", LOOK);
    has(cli.out, "subscriber camera_node (pid ");
    has(cli.out, "is stuck, which took nothing while");
    has(cli.out, "it holds 1 of 1");
    dlx_message_unref(held);
}

TEST(a_refused_subscription_is_told_with_its_reason)
{
    auto_publisher *p = dlx_test_stream_publisher(c, "cam", NULL);
    struct dlx_subscription *s = NULL;
    fails(dlx_subscribe(c, "cam", SUBSCRIBE(.reliable = true), &s), DLX_E_QOS, "");
    fails(dlx_subscribe(c, "cam", SUBSCRIBE(.reliable = true), &s), DLX_E_QOS, "");
    auto_cli cli = dlxctl(1, "why", "cam", LOOK);
    has(cli.out, "camera_node (pid ");
    has(cli.out, " was refused a subscription 2 times, the last time ");
    has(cli.out, " ago: ");
    has(cli.out, "do: subscribe without `reliable`, or let the publisher block (on_full)");
}

TEST(a_quota_that_is_used_up_is_told_with_whose_it_is)
{
    c = dlx_client_unref(c);
    dlx_test_stream_daemon.option[0] = "--memory-limit=256KiB";
    dlx_test_stream_restart();
    dlx_test_stream_daemon.option[0] = NULL;
    c = dlx_test_cli_connect("camera_node");
    auto_publisher *p = dlx_test_stream_publisher(c, "cam", NULL);
    struct dlx_tensor_spec spec = {
        .size = sizeof spec, .dtype = {kDLInt, 64, 1}, .ndim = 1, .shape = &(int64_t){1 << 20}};
    DLManagedTensorVersioned *t = NULL;
    fails(dlx_alloc(p, &spec, &t), DLX_E_LIMIT, "");
    auto_cli cli = dlxctl(1, "why", "cam", LOOK);
    has(cli.out, "camera_node (pid ");
    has(cli.out, " was refused shared memory to publish with ");
    has(cli.out, " by socket dlpackd uses most: ");
    has(cli.out, "do: `dlxctl quota` shows what is used");
}

TEST(a_queue_without_workers_and_one_whose_workers_finish_nothing_are_told)
{
    static const char *const groups[] = {"gpu"};
    auto_publisher *p =
        dlx_test_stream_publisher(c, "jobs", PUBLISHER(.groups = groups, .n_groups = 1));
    dlx_test_stream_publish_all(p, 12, 1, 3);
    auto_cli none = dlxctl(1, "why", "jobs", LOOK);
    has(none.out, "work queue gpu of jobs: 3 messages wait, 0 are in flight, the oldest is ");
    has(none.out, "; it has no worker");
    auto_subscription *s = dlx_test_stream_subscribe(c, "jobs", SUBSCRIBE(.group = "gpu"));
    struct dlx_message *m = dlx_test_stream_next(s);
    auto_cli busy = dlxctl(1, "why", "jobs", LOOK);
    has(busy.out, "work queue gpu of jobs: 2 messages wait, 1 are in flight");
    has(busy.out, "; its 1 worker said done of none while dlxctl looked");
    has(busy.out, "`dlxctl queue jobs`");
    dlx_message_unref(m);
}

static void *publish_all_the_time(void *p)
{
    static int64_t value;
    while (dlx_publisher_wait(p, 1, 0) == 0)
        dlx_test_stream_publish(p, 12, ++value);
    return NULL;
}

TEST(a_topic_that_flows_is_told_so)
{
    auto_publisher *p = dlx_test_stream_publisher(c, "cam", NULL);
    struct dlx_subscription *s =
        dlx_test_stream_subscribe(c, "cam", SUBSCRIBE(.mode = DLX_MODE_LATEST));
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    pthread_t thread = dlx_test_stream_thread(publish_all_the_time, p);
    struct dlx_test_cli cli = dlxctl_start("why", "cam", "--for=100ms");
    for (siginfo_t end = {.si_pid = 0}; end.si_pid == 0;) {
        struct dlx_message *m = NULL;
        ok(dlx_take(s, PATIENCE, &m));
        dlx_message_unref(m);
        ck_assert_int_eq(waitid(P_PID, (id_t)cli.pid, &end, WEXITED | WNOHANG | WNOWAIT), 0);
    }
    dlx_subscription_unref(s);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    dlx_test_cli_finish(&cli, 0);
    has(cli.out, "cam flows: 1 publisher, ");
    dlx_test_cli_deinit(&cli);
}

static void *subscribe_patiently(void *client)
{
    return dlx_test_stream_subscribe(client, "cam", NULL);
}

TEST(a_daemon_that_lacks_descriptors_is_told)
{
    auto_publisher *p = dlx_test_stream_publisher(c, "cam", NULL);
    struct dlx_test_cli cli = dlxctl_start("why", "cam", "--for=500ms");
    struct dlx_client *other = dlx_test_stream_connect();
    void *s = NULL;
    eventually(dlx_test_stream_daemon_info(c).n_clients == 3);
    const struct rlimit limit = dlx_test_daemon_leave_fds(&dlx_test_stream_daemon, 2);
    pthread_t thread = dlx_test_stream_thread(subscribe_patiently, other);
    eventually(*dlx_test_stream_daemon_info(c).lack);
    dlx_test_cli_finish(&cli, 1);
    has(cli.out, "dlpackd lacks what links need, so subscribers wait: ");
    has(cli.out, "do: raise what it lacks");
    ck_assert_int_eq(prlimit(dlx_test_stream_daemon.pid, RLIMIT_NOFILE, &limit, NULL), 0);
    ck_assert_int_eq(pthread_join(thread, &s), 0);
    dlx_subscription_unref(s);
    dlx_client_unref(other);
    dlx_test_cli_deinit(&cli);
}

int main(void)
{
    TCase *tcase = dlx_test_cli_case("why");
    tcase_add_checked_fixture(tcase, start, stop);
    return dlx_test_run_case(tcase);
}
