/* SPDX-License-Identifier: Apache-2.0 */
/* dlxctl ls and info: what they note of subscribers, the rates of a watch, and that they only
 * look. */
#include "client/publish/publisher.h"
#include "tests/cli/harness_cli_case.h"
#include <sched.h>

static struct dlx_client *c;

static void start(void)
{
    c = dlx_test_cli_connect("camera_node");
}

static void stop(void)
{
    c = dlx_client_unref(c);
}

/* So many messages of 96 bytes. */
static void publish(struct dlx_publisher *p, int n)
{
    dlx_test_stream_publish_all(p, 12, 1, n);
}

static struct dlx_publisher *new_publisher(const char *topic, enum dlx_on_full on_full)
{
    return dlx_test_stream_publisher(c, topic, PUBLISHER(.on_full = on_full, .depth = 4));
}

static struct dlx_subscription *subscribe(const char *topic, bool reliable)
{
    return dlx_test_stream_subscribe(c, topic, SUBSCRIBE(.reliable = reliable, .max_held = 2));
}

/* Waits until a subscriber takes a message. */
static void *publish_once_there_is_room(void *p)
{
    ok(dlx_publish(p, dlx_test_stream_alloc(p, 12, 0), PUBLISH(.timeout_ns = PATIENCE), NULL));
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

/* Publishes one more message on lidar, whose publisher waits until a subscriber takes one. */
static pthread_t publish_and_block(struct dlx_publisher *p)
{
    pthread_t thread = dlx_test_stream_thread(publish_once_there_is_room, p);
    ck_assert_int_eq(dlx_list_publishers(c, "lidar", wait_for_blocking_link, NULL), 1);
    return thread;
}

/* The first publisher of `dlxctl info TOPIC --json`, and its first link. */
static const json_t *publisher_of(const json_t *info)
{
    return json_array_get(json_object_get(info, "publishers"), 0);
}

static const json_t *link_of(const json_t *info)
{
    return json_array_get(json_object_get(publisher_of(info), "links"), 0);
}

/* The notes that dlxctl must print for each of three topics. */
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

/* The subscriber is hung, or busy elsewhere: it makes no call. */
TEST(ls_and_info_show_what_a_subscriber_that_takes_nothing_has_lost)
{
    auto_publisher *p = new_publisher("cam/front", DLX_ON_FULL_DROP);
    auto_subscription *s = subscribe("cam/front", false);
    publish(p, 500);
    auto_cli ls = dlxctl(0, "ls", "--json"), info = dlxctl(0, "info", "cam/front", "--json");
    json_auto_t *topics = dlx_test_cli_json(&ls), *links = dlx_test_cli_json(&info);
    const struct noted expected = {.behind = 4, .have_lost = 1};
    check_noted(json_array_get(topics, 0), &expected);
    ck_assert_int_eq(dlx_test_cli_integer(link_of(links), "lost"), 496);
    ck_assert_int_eq(dlx_test_cli_integer(link_of(links), "behind"), 4);
}

/*
 * Of cam/front, one subscriber keeps up, one has lost messages, and one has and is full. The
 * reliable one of lidar holds one message of two, and is slow: its publisher waits. The one of
 * quiet is full, but there is room for more messages.
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
    for (int i = 0; i < 8; i++) {
        publish(p[0], 1);
        dlx_message_unref(dlx_test_stream_next(s[0]));
    }
    m[0] = dlx_test_stream_next(s[1]);
    for (int i = 1; i < 3; i++)
        m[i] = dlx_test_stream_next(s[2]);
    publish(p[1], 1);
    m[3] = dlx_test_stream_next(s[3]);
    publish(p[1], 4);
    pthread_t thread = publish_and_block(p[1]);
    publish(p[2], 3);
    m[4] = dlx_test_stream_next(s[4]);
    m[5] = dlx_test_stream_next(s[4]);
    auto_cli ls = dlxctl(0, "ls"), info = dlxctl(0, "info", "**");
    dlx_test_cli_golden(&ls, "ls_notes.txt");
    dlx_test_cli_golden(&info, "info_notes.txt");
    auto_cli ls_json = dlxctl(0, "ls", "--json"), lidar_json = dlxctl(0, "info", "lidar", "--json");
    json_auto_t *topics = dlx_test_cli_json(&ls_json), *lidar = dlx_test_cli_json(&lidar_json);
    for (size_t i = 0; i < 3; i++)
        check_noted(json_array_get(topics, i), &expected[i]);
    ck_assert_int_eq(dlx_test_cli_integer(link_of(lidar), "behind"), 4);
    ck_assert(json_is_true(json_object_get(link_of(lidar), "blocks")));
    dlx_message_unref(dlx_test_stream_next(s[3]));
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    dlx_test_stream_unref_messages(m, 6);
    dlx_test_stream_unref_subscriptions(s, 5);
    dlx_test_stream_unref_publishers(p, 3);
}

/* No subscriber has a gap there: the publisher alone knows. */
TEST(ls_and_info_tell_how_many_messages_could_not_be_published)
{
    auto_publisher *p = new_publisher("lidar", DLX_ON_FULL_BLOCK);
    auto_subscription *s = subscribe("lidar", true);
    publish(p, 4);
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(p, 12, 0);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(dlx_publish(p, t, NULL, NULL), DLX_E_FULL);
    t->deleter(t);
    auto_cli ls = dlxctl(0, "ls"), info = dlxctl(0, "info", "lidar");
    has(ls.out, "3 REFUSED\n");
    has(info.out, "  refused      3 messages, for which");
    has(info.out, "  subscribers  1: 3 REFUSED\n");
    auto_cli json = dlxctl(0, "ls", "--json");
    json_auto_t *topics = dlx_test_cli_json(&json);
    ck_assert_int_eq(dlx_test_cli_integer(json_array_get(topics, 0), "refused"), 3);
}

/* The subscriber makes no call, so it does not answer the daemon's offer. */
TEST(a_subscriber_that_is_about_to_join_is_shown)
{
    auto_publisher *p = new_publisher("cam/front", DLX_ON_FULL_DROP);
    struct dlx_test_subscription s;
    int fd = dlx_test_hello(&dlx_test_stream_daemon, 10);
    dlx_test_subscribe(&s, fd, "cam/front", false);
    for (int joining = 1; joining >= 0; joining--) {
        auto_cli ls = dlxctl(0, "ls"), info = dlxctl(0, "info", "cam/front");
        ck_assert_int_eq(strstr(ls.out, "1 is JOINING\n") != NULL, joining);
        ck_assert_int_eq(strstr(info.out, "subscribers  1: 1 is JOINING\n") != NULL, joining);
        ck_assert_int_eq(strstr(info.out, "  JOINING\n") != NULL, joining);
        auto_cli info_json = dlxctl(0, "info", "cam/front", "--json");
        json_auto_t *json = dlx_test_cli_json(&info_json);
        ck_assert_int_eq(dlx_test_cli_integer(publisher_of(json), "joining"), joining);
        ck_assert_int_eq(json_is_true(json_object_get(link_of(json), "joining")), joining);
        if (joining)
            (void)dlx_test_join(&s);
    }
    dlx_test_subscription_deinit(&s);
    dlx_test_recv_done();
    (void)close(fd);
}

/* Returns the rest of the line that `dlxctl quota` has of this quota. */
static const char *line_of(const struct dlx_test_cli *cli, const char *quota, char ret[80])
{
    const char *at = strstr(cli->out, quota);
    ck_assert_msg(at != NULL, "\"%s\" lacks \"%s\"", cli->out, quota);
    (void)snprintf(ret, 80, "%.*s", (int)strcspn(at, "\n"), at);
    return ret;
}

TEST(quotas_of_memory_have_units_and_others_have_none)
{
    char line[80];
    auto_publisher *p = dlx_test_stream_publisher(c, "a", PUBLISHER(.retain = 1));
    auto_cli quota = dlxctl(0, "quota");
    has(line_of(&quota, " bytes ", line), " KiB ");
    has(line_of(&quota, " retained-bytes ", line), " KiB ");
    has_not(line_of(&quota, " descriptors ", line), "B");
}

/* Else it would end the wait of a publisher for its first subscriber. */
TEST(looking_subscribes_only_where_it_says_so)
{
    static const char *const looks[][8] = {{"info", "t"},
                                           {"info", "t", "--json"},
                                           {"ls"},
                                           {"ls", "t"},
                                           {"ls", "--watch", "--count", "2", "--interval", "0.01"}};
    static const char *const subscribes[][4] = {{"info", "--newest", "t"}, {"ls", "--types"}};
    struct dlx_event event = {.size = sizeof event};
    auto_publisher *p = new_publisher("t", DLX_ON_FULL_DROP);
    publish(p, 1);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(looks); i++) {
        auto_cli cli = dlx_test_cli_ended(0, looks[i]);
        has_not(cli.out, "newest");
        ck_assert_int_eq(dlx_publisher_next_event(p, &event), DLX_E_EMPTY);
    }
    for (size_t i = 0; i < DLX_ARRAY_SIZE(subscribes); i++) {
        auto_cli cli = dlx_test_cli_ended(0, subscribes[i]);
        has(cli.out, "int64 (12,)");
        bool joined = false;
        while (dlx_publisher_next_event(p, &event) == 0)
            joined = joined || event.kind == DLX_EVENT_JOINED;
        ck_assert(joined);
    }
}

/* Messages a second of topic t in the list of this number, with how much else it says. */
static double messages_per_s(struct dlx_test_cli *watch, size_t n, bool *ret_is_null)
{
    dlx_test_cli_wait_lines(watch, n + 1);
    json_auto_t *list = dlx_test_cli_json_line(watch, n);
    const json_t *row = json_array_get(list, 1), *rate = json_object_get(row, "messages_per_s");
    double messages = json_real_value(rate);
    *ret_is_null = json_is_null(rate);
    if (messages > 0) {
        double bytes = json_real_value(json_object_get(row, "bytes_per_s"));
        ck_assert_msg(bytes > 95.9 * messages && bytes < 96.1 * messages, "%g", bytes);
        ck_assert_int_eq(dlx_test_cli_integer(row, "published"), 3);
    }
    return messages;
}

/* Three lists: between the first two, two messages are published, and then none. */
TEST(a_watch_tells_rates)
{
    auto_publisher *other = new_publisher("s", DLX_ON_FULL_DROP);
    auto_publisher *p = new_publisher("t", DLX_ON_FULL_DROP);
    bool is_null;
    publish(other, 2);
    publish(p, 1);
    auto_cli watch = dlxctl_start("ls", "-w", "--json", "--interval", "0.3");
    (void)messages_per_s(&watch, 0, &is_null);
    ck_assert(is_null);
    publish(p, 2);
    size_t n = 1;
    double messages = 0;
    for (; messages == 0; n++) /* a list more, until they are in one */
        messages = messages_per_s(&watch, n, &is_null);
    /* two in 0.3 s, or later on a slow machine */
    ck_assert_msg(messages < 6.8, "%g", messages);
    ck_assert(messages_per_s(&watch, n, &is_null) == 0 && !is_null);
    ck_assert_int_eq(kill(watch.pid, SIGINT), 0);
    dlx_test_cli_finish(&watch, 0); /* that is how it ends */
}

/* A publisher writes its counters itself, and one of them may go down: that is no rate. */
TEST(a_watch_has_no_rate_of_a_counter_that_went_down)
{
    auto_publisher *p = new_publisher("t", DLX_ON_FULL_DROP);
    json_int_t published = 100;
    bool has_rate = true;
    publish(p, (int)published);
    auto_cli watch = dlxctl_start("ls", "-w", "--json", "--interval", "0.1");
    dlx_test_cli_wait_lines(&watch, 1);
    dlx_store64_relaxed(&dlx__writer_control(&p->core)->published, 3);
    for (size_t n = 0; published == 100; n++) {
        dlx_test_cli_wait_lines(&watch, n + 1);
        json_auto_t *list = dlx_test_cli_json_line(&watch, n);
        const json_t *row = json_array_get(list, 0);
        published = dlx_test_cli_integer(row, "published");
        has_rate = !json_is_null(json_object_get(row, "messages_per_s"));
    }
    ck_assert_int_eq(published, 3);
    ck_assert(!has_rate);
    ck_assert_int_eq(kill(watch.pid, SIGINT), 0);
    dlx_test_cli_finish(&watch, 0);
}

TEST(a_watch_on_a_screen_writes_it_anew_and_counts_what_has_no_room)
{
    enum { N = 30 };
    struct dlx_publisher *p[N];
    char topic[16];
    for (int i = 0; i < N; i++) {
        (void)snprintf(topic, sizeof topic, "t/%02d", i);
        p[i] = new_publisher(topic, DLX_ON_FULL_DROP);
    }
    auto_cli watch = dlxctl_on_screen(200, 0, "ls", "-wtn", "2", "--interval", "0.01");
    const char *second = strstr(watch.out + 1, "\033[H\033[2JTOPIC");
    ck_assert_int_eq(strncmp(watch.out, "\033[H\033[2JTOPIC", 12), 0);
    ck_assert_ptr_nonnull(second);
    has(second, "\nt/20 "); /* of 24 lines, the title has one */
    has_not(second, "\nt/21 ");
    has(second, "\n... and 9 more lines\r\n");
    dlx_test_stream_unref_publishers(p, N);
}

TEST(hz_names_the_subscriber_that_blocks_the_publisher)
{
    auto_publisher *p = new_publisher("lidar", DLX_ON_FULL_BLOCK);
    auto_subscription *s = subscribe("lidar", true);
    char said[128];
    publish(p, 4);
    pthread_t thread = publish_and_block(p);
    auto_cli hz = dlxctl(1, "hz", "lidar", "--duration", "0.02");
    (void)snprintf(said, sizeof said,
                   "no message came: 1 publisher attached, BLOCKED by camera_node (pid %d)\n",
                   (int)getpid());
    has(hz.err, said);
    dlx_message_unref(dlx_test_stream_next(s));
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
}

/* Its publisher has dropped it, and the time with it. */
TEST(queue_does_not_invent_the_age_of_a_message_that_was_dropped)
{
    auto_publisher *p = new_publisher("work", DLX_ON_FULL_DROP);
    auto_subscription *s = dlx_test_stream_subscribe(c, "work", SUBSCRIBE(.group = "g"));
    publish(p, 1);
    auto_message *m = dlx_test_stream_next(s);
    publish(p, 300);
    auto_cli queue = dlxctl(0, "queue", "work");
    has(queue.out, "1 in flight; the oldest, message 1, was dropped by its publisher\n");
    has(queue.out, "1 of 5    -  dropped by its publisher\n");
    auto_cli shown = dlxctl(0, "queue", "work", "--json");
    json_auto_t *array = dlx_test_cli_json(&shown);
    const json_t *group = json_array_get(array, 0);
    const json_t *claim = json_array_get(json_object_get(group, "claims"), 0);
    ck_assert(json_is_null(json_object_get(group, "age_ns")));
    ck_assert(json_is_null(json_object_get(claim, "age_ns")));
}

/* Each look at the newest message is a subscriber, which the publisher hears of when it makes a
 * call. Any number may look, but not all of them may keep what they got. */
TEST(a_message_that_cannot_be_looked_at_is_not_none)
{
    auto_publisher *p = dlx_test_stream_publisher(c, "idle", PUBLISHER(.retain = 1));
    struct dlx_message *m = NULL, *held[641];
    struct dlx_event event = {.size = sizeof event};
    int code;
    size_t n = 0;
    dlx_test_stream_publish(p, 1, 7);
    for (int i = 0; i < 1000; i++) {
        ok(dlx_get(c, "idle", 0, &m));
        m = dlx_message_unref(m);
    }
    while ((code = dlx_get(c, "idle", 0, &m)) == 0) {
        ck_assert_uint_lt(n, DLX_ARRAY_SIZE(held));
        held[n++] = m;
    }
    ck_assert_int_eq(code, DLX_E_PUBLISHER_NOT_RESPONDING);
    ck_assert_uint_eq(n, 512);
    auto_cli before = dlxctl(0, "info", "idle", "--newest");
    has(before.out, "newest       not known: subscription to idle: publisher of idle (pid ");
    has(before.out, "512 more wait who are there or hold messages");
    (void)dlx_publisher_next_event(p, &event);
    auto_cli after = dlxctl(0, "info", "idle", "--newest");
    has(after.out, "newest       message 1, ");
    dlx_test_stream_unref_messages(held, n);
}

int main(void)
{
    TCase *tcase = dlx_test_cli_case("look");
    tcase_add_checked_fixture(tcase, start, stop);
    return dlx_test_run_case(tcase);
}
