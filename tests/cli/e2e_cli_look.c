/* SPDX-License-Identifier: Apache-2.0 */
/* dlxctl ls and info: what they note of subscribers, the rates of a watch, and that they only
 * look. */
#include "tests/cli/harness_cli_case.h"
#include "tests/harness/run.h"
#include <dlx/dlx.h>
#include <sched.h>

static struct dlx_client *c;

static void start(void)
{
    struct dlx_connect_args args = {
        .size = sizeof args, .socket = dlx_test_cli_daemon.path, .name = "camera_node"};
    ck_assert_int_eq(dlx_connect(&c, &args), 0);
}

static void stop(void)
{
    c = dlx_client_unref(c);
}

static void publish(struct dlx_publisher *p, int n)
{
    struct dlx_tensor_spec spec = {
        .size = sizeof spec, .dtype = {kDLFloat, 32, 1}, .ndim = 2, .shape = (int64_t[]){4, 6}};
    for (int i = 0; i < n; i++) {
        DLManagedTensorVersioned *t = NULL;
        ck_assert_int_eq(dlx_alloc(p, &spec, &t), 0);
        ck_assert_int_eq(dlx_publish(p, t, NULL), 0);
    }
}

static struct dlx_publisher *new_publisher(const char *topic, enum dlx_on_full on_full)
{
    struct dlx_publisher_args args = {.size = sizeof args, .on_full = on_full, .depth = 4};
    struct dlx_publisher *p = NULL;
    ck_assert_int_eq(dlx_publisher_new(c, topic, &args, &p), 0);
    return p;
}

static struct dlx_subscription *subscribe(const char *topic, bool reliable)
{
    struct dlx_subscribe_args args = {.size = sizeof args, .reliable = reliable, .max_held = 2};
    struct dlx_subscription *s = NULL;
    ck_assert_int_eq(dlx_subscribe(c, topic, &args, &s), 0);
    return s;
}

static struct dlx_message *take(struct dlx_subscription *s)
{
    struct dlx_message *m = NULL;
    ck_assert_int_eq(dlx_take(s, INT64_C(30000000000), &m), 0);
    return m;
}

static void check_golden(const char *name, const char *const *words)
{
    struct dlx_test_cli cli;
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0, words);
    dlx_test_cli_golden(&cli, name);
    dlx_test_cli_deinit(&cli);
}

/* -- BLOCKED, FULL, LOST, BEHIND --------------------------------------------------------------- */

/* Until somebody takes a message. */
static void *publish_once_there_is_room(void *p)
{
    const struct dlx_publish_args args = {.size = sizeof args, .timeout_ns = INT64_C(30000000000)};
    const struct dlx_tensor_spec spec = {
        .size = sizeof spec, .dtype = {kDLFloat, 32, 1}, .ndim = 1, .shape = (int64_t[]){1}};
    DLManagedTensorVersioned *t = NULL;
    ck_assert_int_eq(dlx_alloc(p, &spec, &t), 0);
    ck_assert_int_eq(dlx_publish(p, t, &args), 0);
    return NULL;
}

static int has_blocking_link(const struct dlx_link_info *link, void *userdata)
{
    (void)userdata;
    return link->blocks;
}

static int wait_for_blocking_link(const struct dlx_publisher_info *p, void *userdata)
{
    (void)userdata;
    int r;
    while ((r = dlx_list_links(c, p->publisher, has_blocking_link, NULL)) == 0)
        (void)sched_yield();
    return r;
}

/* What dlxctl is to note of each of three topics. */
struct noted {
    bool blocked;
    int behind, full, have_lost;
};

static void check_noted(const json_t *row, const struct noted *expected)
{
    ck_assert(json_is_boolean(json_object_get(row, "blocked")));
    ck_assert_int_eq(json_is_true(json_object_get(row, "blocked")), expected->blocked);
    ck_assert_int_eq(dlx_test_cli_integer(row, "behind"), expected->behind);
    ck_assert_int_eq(dlx_test_cli_integer(row, "full"), expected->full);
    ck_assert_int_eq(dlx_test_cli_integer(row, "have_lost"), expected->have_lost);
}

/*
 * Of cam/front, one subscriber keeps up, one has lost messages, and one has and is full. The
 * reliable one of lidar holds one message of two, and is slow: its publisher waits. That of quiet
 * is full, but there is room for what follows.
 */
TEST(ls_and_info_note_who_is_in_the_way)
{
    static const struct noted expected[] = {{false, 3, 1, 2}, {true, 4, 0, 0}, {false, 1, 1, 0}};
    struct dlx_publisher *p[3] = {new_publisher("cam/front", DLX_ON_FULL_DROP),
                                  new_publisher("lidar", DLX_ON_FULL_BLOCK),
                                  new_publisher("quiet", DLX_ON_FULL_BLOCK)};
    struct dlx_subscription *s[5] = {subscribe("cam/front", false), subscribe("cam/front", false),
                                     subscribe("cam/front", false), subscribe("lidar", true),
                                     subscribe("quiet", true)};
    struct dlx_message *m[6] = {NULL};
    struct dlx_test_cli cli;
    pthread_t thread;
    for (int i = 0; i < 8; i++) {
        publish(p[0], 1);
        dlx_message_unref(take(s[0]));
    }
    m[0] = take(s[1]);
    for (int i = 1; i < 3; i++)
        m[i] = take(s[2]);
    publish(p[1], 1);
    m[3] = take(s[3]);
    publish(p[1], 4);
    ck_assert_int_eq(pthread_create(&thread, NULL, publish_once_there_is_room, p[1]), 0);
    ck_assert_int_eq(dlx_list_publishers(c, "lidar", wait_for_blocking_link, NULL), 1);
    publish(p[2], 3);
    m[4] = take(s[4]);
    m[5] = take(s[4]);
    check_golden("ls_notes.txt", DLX_TEST_WORDS("ls"));
    check_golden("info_notes.txt", DLX_TEST_WORDS("info", "**"));
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0, DLX_TEST_WORDS("ls", "--json"));
    json_t *json = dlx_test_cli_json(&cli);
    for (size_t i = 0; i < 3; i++)
        check_noted(json_array_get(json, i), &expected[i]);
    json_decref(json);
    dlx_test_cli_deinit(&cli);
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0,
                     DLX_TEST_WORDS("info", "lidar", "--json"));
    json = dlx_test_cli_json(&cli);
    const json_t *publisher = json_array_get(json_object_get(json, "publishers"), 0);
    const json_t *link = json_array_get(json_object_get(publisher, "links"), 0);
    ck_assert_int_eq(dlx_test_cli_integer(link, "behind"), 4);
    ck_assert(json_is_true(json_object_get(link, "blocks")));
    json_decref(json);
    dlx_test_cli_deinit(&cli);
    dlx_message_unref(take(s[3]));
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    for (int i = 0; i < 6; i++)
        dlx_message_unref(m[i]);
    for (int i = 0; i < 5; i++)
        dlx_subscription_unref(s[i]);
    for (int i = 0; i < 3; i++)
        dlx_publisher_unref(p[i]);
}

/* No subscriber has a gap there: the publisher alone knows. */
TEST(ls_and_info_tell_how_many_messages_could_not_be_published)
{
    struct dlx_publisher *p = new_publisher("lidar", DLX_ON_FULL_BLOCK);
    struct dlx_subscription *s = subscribe("lidar", true);
    const struct dlx_tensor_spec spec = {
        .size = sizeof spec, .dtype = {kDLFloat, 32, 1}, .ndim = 1, .shape = (int64_t[]){1}};
    DLManagedTensorVersioned *t = NULL;
    struct dlx_test_cli cli;
    publish(p, 4);
    ck_assert_int_eq(dlx_alloc(p, &spec, &t), 0);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(dlx_publish(p, t, NULL), DLX_E_FULL);
    t->deleter(t);
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0, DLX_TEST_WORDS("ls"));
    ck_assert_msg(strstr(cli.out, "3 REFUSED\n"), "%s", cli.out);
    dlx_test_cli_deinit(&cli);
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0, DLX_TEST_WORDS("info", "lidar"));
    ck_assert_msg(strstr(cli.out, "  refused      3 messages, for which"), "%s", cli.out);
    ck_assert_msg(strstr(cli.out, "  subscribers  1: 3 REFUSED\n"), "%s", cli.out);
    dlx_test_cli_deinit(&cli);
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0, DLX_TEST_WORDS("ls", "--json"));
    json_t *json = dlx_test_cli_json(&cli);
    ck_assert_int_eq(dlx_test_cli_integer(json_array_get(json, 0), "refused"), 3);
    json_decref(json);
    dlx_test_cli_deinit(&cli);
    dlx_subscription_unref(s);
    dlx_publisher_unref(p);
}

/* -- looking only ------------------------------------------------------------------------------ */

/* Else it would end the wait of a publisher for its first subscriber. */
/* It makes no call, so it does not answer the daemon's offer. */
TEST(a_subscriber_that_is_about_to_join_is_shown)
{
    struct dlx_publisher *p = new_publisher("cam/front", DLX_ON_FULL_DROP);
    struct dlx_test_subscription s;
    struct dlx_test_cli cli;
    int fd = dlx_test_hello(&dlx_test_cli_daemon, 10);
    dlx_test_subscribe(&s, fd, "cam/front", false);
    for (int joining = 1; joining >= 0; joining--) {
        dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0, DLX_TEST_WORDS("ls"));
        ck_assert_int_eq(strstr(cli.out, "1 is JOINING\n") != NULL, joining);
        dlx_test_cli_deinit(&cli);
        dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0,
                         DLX_TEST_WORDS("info", "cam/front"));
        ck_assert_int_eq(strstr(cli.out, "subscribers  1: 1 is JOINING\n") != NULL, joining);
        ck_assert_int_eq(strstr(cli.out, "  JOINING\n") != NULL, joining);
        dlx_test_cli_deinit(&cli);
        dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0,
                         DLX_TEST_WORDS("info", "cam/front", "--json"));
        json_t *json = dlx_test_cli_json(&cli);
        const json_t *publisher = json_array_get(json_object_get(json, "publishers"), 0);
        const json_t *link = json_array_get(json_object_get(publisher, "links"), 0);
        ck_assert_int_eq(dlx_test_cli_integer(publisher, "joining"), joining);
        ck_assert_int_eq(json_is_true(json_object_get(link, "joining")), joining);
        json_decref(json);
        dlx_test_cli_deinit(&cli);
        if (joining)
            (void)dlx_test_join(&s);
    }
    dlx_test_subscription_deinit(&s);
    dlx_test_recv_done();
    (void)close(fd);
    dlx_publisher_unref(p);
}

TEST(looking_subscribes_only_where_it_says_so)
{
    static const char *const looks[][8] = {{"info", "t"},
                                           {"info", "t", "--json"},
                                           {"ls"},
                                           {"ls", "t"},
                                           {"ls", "--watch", "--count", "2", "--interval", "0.01"}};
    static const char *const subscribes[][4] = {{"info", "--newest", "t"}, {"ls", "--types"}};
    struct dlx_event event = {.size = sizeof event};
    struct dlx_publisher *p = new_publisher("t", DLX_ON_FULL_DROP);
    struct dlx_test_cli cli;
    publish(p, 1);
    for (size_t i = 0; i < sizeof looks / sizeof looks[0]; i++) {
        dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0, looks[i]);
        ck_assert_ptr_null(strstr(cli.out, "newest"));
        dlx_test_cli_deinit(&cli);
        ck_assert_int_eq(dlx_publisher_next_event(p, &event), DLX_E_EMPTY);
    }
    for (size_t i = 0; i < sizeof subscribes / sizeof subscribes[0]; i++) {
        dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0, subscribes[i]);
        ck_assert_ptr_nonnull(strstr(cli.out, "float32 (4, 6)"));
        dlx_test_cli_deinit(&cli);
        bool joined = false;
        while (dlx_publisher_next_event(p, &event) == 0)
            joined = joined || event.kind == DLX_EVENT_JOINED;
        ck_assert(joined);
    }
    dlx_publisher_unref(p);
}

/* -- ls --watch -------------------------------------------------------------------------------- */

/* Three lists: between the first two, two messages of 96 bytes are published, and then none. */
TEST(a_watch_tells_rates)
{
    struct dlx_publisher *other = new_publisher("s", DLX_ON_FULL_DROP);
    struct dlx_publisher *p = new_publisher("t", DLX_ON_FULL_DROP);
    struct dlx_test_cli cli;
    publish(other, 2);
    publish(p, 1);
    dlx_test_cli_start(&cli, dlx_test_cli_daemon.path, -1,
                       DLX_TEST_WORDS("ls", "-w", "--json", "--interval", "0.3"));
    dlx_test_cli_wait_lines(&cli, 1);
    publish(p, 2);
    json_t *json, *row = NULL;
    size_t n = 1;
    for (double messages = 0; messages == 0; n++) { /* a list more, until they are in one */
        dlx_test_cli_wait_lines(&cli, n + 1);
        json = dlx_test_cli_json_line(&cli, n);
        row = json_array_get(json, 1);
        messages = json_real_value(json_object_get(row, "messages_per_s"));
        if (messages > 0) {
            ck_assert_int_eq(dlx_test_cli_integer(row, "published"), 3);
            /* two in 0.3 s, or later on a slow machine; each of 96 bytes */
            ck_assert_msg(messages < 6.8, "%g", messages);
            double bytes = json_real_value(json_object_get(row, "bytes_per_s"));
            ck_assert_msg(bytes > 95.9 * messages && bytes < 96.1 * messages, "%g", bytes);
        }
        json_decref(json);
    }
    dlx_test_cli_wait_lines(&cli, n + 1);
    json = dlx_test_cli_json_line(&cli, n);
    ck_assert(json_real_value(json_object_get(json_array_get(json, 1), "messages_per_s")) == 0);
    json_decref(json);
    json = dlx_test_cli_json_line(&cli, 0);
    ck_assert(json_is_null(json_object_get(json_array_get(json, 1), "messages_per_s")));
    json_decref(json);
    ck_assert_int_eq(kill(cli.pid, SIGINT), 0);
    dlx_test_cli_finish(&cli, 0); /* that is how it ends */
    dlx_test_cli_deinit(&cli);
    dlx_publisher_unref(p);
    dlx_publisher_unref(other);
}

TEST(a_watch_on_a_screen_writes_it_anew_and_counts_what_has_no_room)
{
    enum { N = 30 };
    struct dlx_publisher *p[N];
    struct dlx_test_cli cli;
    char topic[16];
    for (int i = 0; i < N; i++) {
        (void)snprintf(topic, sizeof topic, "t/%02d", i);
        p[i] = new_publisher(topic, DLX_ON_FULL_DROP);
    }
    dlx_test_cli_run_on_screen(&cli, dlx_test_cli_daemon.path, 200, 0,
                               DLX_TEST_WORDS("ls", "-wtn", "2", "--interval", "0.01"));
    const char *second = strstr(cli.out + 1, "\033[H\033[2JTOPIC");
    ck_assert_int_eq(strncmp(cli.out, "\033[H\033[2JTOPIC", 12), 0);
    ck_assert_ptr_nonnull(second);
    ck_assert_ptr_nonnull(strstr(second, "\nt/20 ")); /* of 24 lines, the title has one */
    ck_assert_ptr_null(strstr(second, "\nt/21 "));
    ck_assert_msg(strstr(second, "\n... and 9 more lines\r\n"), "%s", second);
    dlx_test_cli_deinit(&cli);
    for (int i = 0; i < N; i++)
        dlx_publisher_unref(p[i]);
}

TEST(hz_names_the_subscriber_that_blocks_the_publisher)
{
    struct dlx_publisher *p = new_publisher("lidar", DLX_ON_FULL_BLOCK);
    struct dlx_subscription *s = subscribe("lidar", true);
    struct dlx_test_cli cli;
    char said[128];
    pthread_t thread;
    publish(p, 4);
    ck_assert_int_eq(pthread_create(&thread, NULL, publish_once_there_is_room, p), 0);
    ck_assert_int_eq(dlx_list_publishers(c, "lidar", wait_for_blocking_link, NULL), 1);
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 1,
                     DLX_TEST_WORDS("hz", "lidar", "--duration", "0.02"));
    (void)snprintf(said, sizeof said,
                   "no message came: 1 publisher attached, BLOCKED by camera_node (pid %d)\n",
                   (int)getpid());
    ck_assert_msg(strstr(cli.err, said), "'%s' lacks '%s'", cli.err, said);
    dlx_test_cli_deinit(&cli);
    dlx_message_unref(take(s));
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    dlx_subscription_unref(s);
    dlx_publisher_unref(p);
}

/* Each look at the newest message is a subscriber, which the publisher hears of when it makes a
 * call. Any number may look, but not all of them may keep what they got. */
TEST(a_message_that_cannot_be_looked_at_is_not_none)
{
    struct dlx_publisher_args retain = {.size = sizeof retain, .retain = 1};
    struct dlx_tensor_spec spec = {.size = sizeof spec, .dtype = {kDLUInt, 8, 1}};
    struct dlx_publisher *p = NULL;
    DLManagedTensorVersioned *t = NULL;
    struct dlx_message *m = NULL, *held[641];
    struct dlx_event event = {.size = sizeof event};
    struct dlx_test_cli cli;
    int code, n = 0;
    ck_assert_int_eq(dlx_publisher_new(c, "idle", &retain, &p), 0);
    ck_assert_int_eq(dlx_alloc(p, &spec, &t), 0);
    *(uint8_t *)t->dl_tensor.data = 7;
    ck_assert_int_eq(dlx_publish(p, t, NULL), 0);
    for (int i = 0; i < 1000; i++) {
        ck_assert_int_eq(dlx_get(c, "idle", 0, &m), 0);
        m = dlx_message_unref(m);
    }
    while ((code = dlx_get(c, "idle", 0, &m)) == 0) {
        ck_assert_int_lt(n, (int)DLX_ARRAY_SIZE(held));
        held[n++] = m;
    }
    ck_assert_int_eq(code, DLX_E_PUBLISHER_NOT_RESPONDING);
    ck_assert_int_eq(n, 512);
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0,
                     DLX_TEST_WORDS("info", "idle", "--newest"));
    ck_assert_msg(
        strstr(cli.out, "newest       not known: subscription to idle: publisher of idle (pid "),
        "%s", cli.out);
    ck_assert_msg(strstr(cli.out, "512 more wait who are there or hold messages"), "%s", cli.out);
    dlx_test_cli_deinit(&cli);
    (void)dlx_publisher_next_event(p, &event);
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0,
                     DLX_TEST_WORDS("info", "idle", "--newest"));
    ck_assert_msg(strstr(cli.out, "newest       message 1, "), "%s", cli.out);
    dlx_test_cli_deinit(&cli);
    while (n > 0)
        dlx_message_unref(held[--n]);
    dlx_publisher_unref(p);
}

int main(void)
{
    TCase *tcase = dlx_test_cli_case("look");
    tcase_add_checked_fixture(tcase, start, stop);
    return dlx_test_run_case(tcase);
}
