/* SPDX-License-Identifier: Apache-2.0 */
/* dlxctl hz and bw that end without a message, and dlxctl holds. */
#include "client/publish/publisher.h"
#include "tests/cli/harness_cli_case.h"
#include <sched.h>

/* The line that is shown each second is no message. */
TEST(on_a_terminal_silence_ends_hz_too)
{
    auto_cli hz = dlxctl_on_screen(80, 1, "hz", "a", "--timeout", "1.1");
    has(hz.err, ": a: no message within 1.1");
}

/* --timeout is for a publisher that is silent for that time. A publisher that is slower than
 * --duration, or than the line that a terminal shows each second, is no failure. */
LOOP_TEST(a_publisher_that_is_slower_than_the_measurement_is_not_silent, 0, 2)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "a", PUBLISHER(.history = 1));
    dlx_test_stream_publish(p, 10, 1);
    static const char *const words[] = {"hz", "a",          "--history", "1", "--timeout",
                                        "60", "--duration", "1.2",       NULL};
    auto_cli hz = _i == 0 ? dlx_test_cli_ended(0, words)
                          : dlx_test_cli_run_on_screen(dlx_test_stream_daemon.path, 80, 0, words);
    has(hz.out, "a: 1 message, ");
    has_not(hz.err, "no message within");
}

/* Waits until the only subscriber sleeps in a take: it has asked for a bell. */
static void wait_until_asleep(const struct dlx_publisher *p)
{
    uint64_t end = dlx__deadline(PATIENCE);
    while (dlx_load64_relaxed(p->core.links[0]->ticket) == 0) {
        ck_assert_uint_lt(dlx__now_ns(), end);
        sched_yield();
    }
}

/* A command without an end ends well by Ctrl-C; but not if no message came, and never without a
 * word. */
LOOP_TEST(ctrl_c_before_the_first_message_is_a_failure, 0, 2)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "a", NULL);
    auto_cli cli = dlxctl_start(_i == 0 ? "bw" : "hz", "a");
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    wait_until_asleep(p);
    ck_assert_int_eq(kill(cli.pid, SIGINT), 0);
    dlx_test_cli_finish(&cli, 1);
    ck_assert_ptr_eq(strstr(cli.out, "a: 0 messages"), cli.out);
    has(cli.err, ": a: no message came: 1 publisher attached\n");
}

/* Of a pattern, for all topics and for each: an age would be that of the wait. */
TEST(messages_of_before_the_start_have_no_age_in_a_pattern)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "a/b", PUBLISHER(.history = 3));
    dlx_test_stream_publish_all(p, 10, 1, 3);
    auto_cli hz = dlxctl(0, "hz", "a/*", "--history", "3", "--count", "3", "--json");
    json_auto_t *json = dlx_test_cli_json(&hz);
    const json_t *of_topic = json_array_get(json_object_get(json, "topics"), 0);
    ck_assert_int_eq(dlx_test_cli_integer(of_topic, "messages"), 3);
    ck_assert(json_is_null(json_object_get(of_topic, "age")));
    ck_assert(json_is_null(json_object_get(of_topic, "rate")));
    ck_assert(json_is_null(json_object_get(json, "age")));
}

/* The next publisher of a pattern may come at any time: it is waited for unless that is said. */
TEST(a_measurement_of_a_pattern_ends_with_its_last_publisher_if_asked_to)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "a/b", PUBLISHER(.history = 1));
    dlx_test_stream_publish(p, 10, 1);
    auto_cli hz = dlxctl_start("hz", "a/*", "--history", "1", "--until-gone");
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    p = dlx_publisher_unref(p);
    dlx_test_cli_finish(&hz, 0);
    has(hz.out, "a/*: 1 message, ");
}

enum { N_SUBSCRIPTIONS = 4, N_MESSAGES = 3 };

/* A publisher of topic "a" and one of "b", and subscribers that hold 1, 3 and 0 messages of "a" and
 * 2 of "b". */
struct story {
    struct dlx_client *c;
    struct dlx_publisher *p[2];
    struct dlx_subscription *s[N_SUBSCRIPTIONS];
    struct dlx_message *m[6];
    size_t n_held;
};

static void take(struct story *story, struct dlx_subscription *s, int n)
{
    while (n-- > 0)
        story->m[story->n_held++] = dlx_test_stream_next(s);
}

static struct story begin(void)
{
    const struct dlx_subscribe_args *how[N_SUBSCRIPTIONS] = {
        SUBSCRIBE(.reliable = true), SUBSCRIBE(.max_held = 5), SUBSCRIBE(.mode = DLX_MODE_LATEST),
        NULL};
    struct story story = {.c = dlx_test_cli_connect("h\x1b[2J")};
    for (int i = 0; i < 2; i++)
        story.p[i] = dlx_test_stream_publisher(story.c, i ? "b" : "a",
                                               PUBLISHER(.on_full = DLX_ON_FULL_BLOCK));
    for (int i = 0; i < N_SUBSCRIPTIONS; i++)
        story.s[i] = dlx_test_stream_subscribe(story.c, i == 3 ? "b" : "a", how[i]);
    for (int i = 0; i < 2; i++)
        dlx_test_stream_publish_all(story.p[i], 1, 1, N_MESSAGES);
    take(&story, story.s[0], 1);
    take(&story, story.s[1], 3);
    take(&story, story.s[3], 2);
    return story;
}

static void release_held(struct story *story)
{
    dlx_test_stream_unref_messages(story->m, story->n_held);
    story->n_held = 0;
}

static void end(struct story *story)
{
    release_held(story);
    dlx_test_stream_unref_subscriptions(story->s, N_SUBSCRIPTIONS);
    dlx_test_stream_unref_publishers(story->p, 2);
    dlx_client_unref(story->c);
}
#define auto_story DLX_TEST_AUTO(end) struct story

/* A row of `dlxctl holds --json`. */
struct row {
    const char *topic;
    int held, max_held;
    bool latest, reliable;
};
static const struct row three = {"a", 3, 5, false, false}, two_of_b = {"b", 2, 16, false, false},
                        one = {"a", 1, 16, false, true}, none = {"a", 0, 16, true, false};

static void check_row(const json_t *row, const struct row *expected)
{
    ck_assert_str_eq(json_string_value(json_object_get(row, "topic")), expected->topic);
    ck_assert_int_eq(dlx_test_cli_integer(row, "n_held"), expected->held);
    ck_assert_int_eq(dlx_test_cli_integer(row, "max_held"), expected->max_held);
    ck_assert_int_eq(dlx_test_cli_integer(row, "pid"), getpid());
    ck_assert_int_eq(dlx_test_cli_integer(row, "uid"), getuid());
    ck_assert_int_eq(dlx_test_cli_integer(row, "lost"), 0);
    ck_assert_int_eq(dlx_test_cli_integer(row, "taken"), expected->held);
    ck_assert(json_is_true(json_object_get(row, "latest")) == expected->latest);
    ck_assert(json_is_boolean(json_object_get(row, "reliable")));
    ck_assert(json_is_true(json_object_get(row, "reliable")) == expected->reliable);
}

/* It lists these, in this order; the caller drops the reference. */
static json_t *check_rows(const struct dlx_test_cli *holds, size_t n,
                          const struct row *const *expected)
{
    json_t *json = dlx_test_cli_json(holds);
    ck_assert_uint_eq(json_array_size(json), n);
    for (size_t i = 0; i < n; i++)
        check_row(json_array_get(json, i), expected[i]);
    return json;
}

TEST(holds_lists_those_who_hold_most_first)
{
    auto_story story = begin();
    auto_cli holds = dlxctl(0, "holds", "--json"),
             of_a = dlxctl(0, "holds", "a", "--all", "--json");
    json_decref(check_rows(&holds, 3, (const struct row *[]){&three, &two_of_b, &one}));
    json_decref(check_rows(&of_a, 3, (const struct row *[]){&three, &one, &none}));
}

TEST(holds_is_a_table_for_people)
{
    auto_story story = begin();
    auto_cli holds = dlxctl(0, "holds", "a");
    ck_assert_int_eq(strncmp(holds.out, "TOPIC  ", 7), 0);
    has(holds.out, "h?[2J");
    has_not(holds.out, "\x1b");
    const char *first = strstr(holds.out, "3 of 5"), *second = strstr(holds.out, "1 of 16");
    ck_assert(first && second && first < second);
    has_not(holds.out, "2 of 16"); /* of the other topic */
    has_not(holds.out, "latest");
    release_held(&story);
    auto_cli nothing = dlxctl(0, "holds", "a"), all = dlxctl(0, "holds", "--all");
    ck_assert_str_eq(nothing.out, "no program holds a message of a\n");
    has(all.out, "0 of 5");
    has(all.out, "latest");
}

/* A publisher's memory stays until its subscribers have taken all, even if they hold nothing. */
TEST(holds_lists_who_keeps_the_memory_of_a_publisher_that_has_gone)
{
    auto_story story = begin();
    story.p[0] = dlx_publisher_unref(story.p[0]);
    auto_cli holds = dlxctl(0, "holds", "--json"), people = dlxctl(0, "holds", "a");
    json_auto_t *json =
        check_rows(&holds, 4, (const struct row *[]){&three, &two_of_b, &one, &none});
    for (size_t i = 0; i < 4; i++) {
        const json_t *row = json_array_get(json, i);
        ck_assert(json_is_boolean(json_object_get(row, "publisher_gone")));
        ck_assert_int_eq(json_is_true(json_object_get(row, "publisher_gone")), i != 1);
        ck_assert_int_gt(dlx_test_cli_integer(row, "publisher_bytes"), 4096);
    }
    ck_assert_int_eq(dlx_test_cli_integer(json_array_get(json, 2), "behind"), 2);
    has(people.out, "publisher GONE, 2 to take, keeps 3");
}

int main(void)
{
    return dlx_test_run_case(dlx_test_cli_case("dlxctl"));
}
