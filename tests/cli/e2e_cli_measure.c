/* SPDX-License-Identifier: Apache-2.0 */
/* dlxctl hz and bw that end without a message, and dlxctl holds. */
#include "client/publish/publisher.h"
#include "tests/cli/harness_cli_case.h"
#include "tests/harness/run.h"
#include <dlx/dlx.h>
#include <sched.h>

/* -- hz and bw --------------------------------------------------------------------------------- */

/* The line that is shown each second is no message. */
TEST(on_a_terminal_silence_ends_hz_too)
{
    struct dlx_test_cli cli;
    dlx_test_cli_run_on_screen(&cli, dlx_test_cli_daemon.path, 80, 1,
                               DLX_TEST_WORDS("hz", "a", "--timeout", "1.1"));
    ck_assert_ptr_nonnull(strstr(cli.err, ": a: no message within 1.1"));
    dlx_test_cli_deinit(&cli);
}

/* Waits until the only subscriber sleeps in a take: it has asked for a bell. */
static void wait_until_asleep(const struct dlx_publisher *p)
{
    uint64_t end = dlx__deadline(INT64_C(30000000000));
    while (dlx_load64_relaxed(p->core.links[0]->ticket) == 0) {
        ck_assert_uint_lt(dlx__now_ns(), end);
        sched_yield();
    }
}

/* What has no end of its own ends well by Ctrl-C; but not if nothing came, and never without a
 * word. */
TEST(ctrl_c_before_the_first_message_is_a_failure)
{
    static const char *const commands[] = {"bw", "hz"};
    struct dlx_connect_args args = {.size = sizeof args, .socket = dlx_test_cli_daemon.path};
    struct dlx_client *c = NULL;
    struct dlx_publisher *p = NULL;
    ck_assert_int_eq(dlx_connect(&c, &args), 0);
    for (size_t i = 0; i < 2; i++) {
        struct dlx_test_cli cli;
        ck_assert_int_eq(dlx_publisher_new(c, "a", NULL, &p), 0);
        dlx_test_cli_start(&cli, dlx_test_cli_daemon.path, -1, DLX_TEST_WORDS(commands[i], "a"));
        ck_assert_int_eq(dlx_publisher_wait(p, 1, INT64_C(30000000000)), 0);
        wait_until_asleep(p);
        ck_assert_int_eq(kill(cli.pid, SIGINT), 0);
        dlx_test_cli_finish(&cli, 1);
        ck_assert_ptr_eq(strstr(cli.out, "a: 0 messages"), cli.out);
        ck_assert_ptr_nonnull(strstr(cli.err, ": a: no message came: 1 publisher attached\n"));
        dlx_test_cli_deinit(&cli);
        p = dlx_publisher_unref(p);
    }
    dlx_client_unref(c);
}

/* -- holds ------------------------------------------------------------------------------------- */

enum { N_SUBSCRIPTIONS = 4, N_MESSAGES = 3 };

/* A publisher of topic "a" and one of "b", and subscribers that hold 1, 3 and 0 messages of "a" and
 * 2 of "b". */
struct story {
    struct dlx_client *c;
    struct dlx_publisher *p[2];
    struct dlx_subscription *s[N_SUBSCRIPTIONS];
    struct dlx_message *m[6];
    int n_held;
};

static void take(struct story *story, struct dlx_subscription *s, int n)
{
    for (int i = 0; i < n; i++)
        ck_assert_int_eq(dlx_take(s, INT64_C(30000000000), &story->m[story->n_held++]), 0);
}

static void begin(struct story *story)
{
    struct dlx_connect_args args = {
        .size = sizeof args, .socket = dlx_test_cli_daemon.path, .name = "h\x1b[2J"};
    struct dlx_publisher_args block = {.size = sizeof block, .on_full = DLX_ON_FULL_BLOCK};
    struct dlx_subscribe_args how[N_SUBSCRIPTIONS] = {
        {.reliable = true}, {.max_held = 5}, {.mode = DLX_MODE_LATEST}, {.max_held = 0}};
    struct dlx_tensor_spec spec = {.size = sizeof spec, .dtype = {kDLUInt, 8, 1}};
    *story = (struct story){0};
    ck_assert_int_eq(dlx_connect(&story->c, &args), 0);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(dlx_publisher_new(story->c, i ? "b" : "a", &block, &story->p[i]), 0);
    for (int i = 0; i < N_SUBSCRIPTIONS; i++) {
        how[i].size = sizeof how[i];
        ck_assert_int_eq(dlx_subscribe(story->c, i == 3 ? "b" : "a", &how[i], &story->s[i]), 0);
    }
    for (int i = 0; i < 2 * N_MESSAGES; i++) {
        DLManagedTensorVersioned *t = NULL;
        ck_assert_int_eq(dlx_alloc(story->p[i % 2], &spec, &t), 0);
        ck_assert_int_eq(dlx_publish(story->p[i % 2], t, NULL), 0);
    }
    take(story, story->s[0], 1);
    take(story, story->s[1], 3);
    take(story, story->s[3], 2);
}

static void end(struct story *story)
{
    for (int i = 0; i < story->n_held; i++)
        dlx_message_unref(story->m[i]);
    for (int i = 0; i < N_SUBSCRIPTIONS; i++)
        dlx_subscription_unref(story->s[i]);
    for (int i = 0; i < 2; i++)
        dlx_publisher_unref(story->p[i]);
    dlx_client_unref(story->c);
}

static void check_row(const json_t *row, const char *topic, int held, int max_held, bool latest,
                      bool reliable)
{
    ck_assert_str_eq(json_string_value(json_object_get(row, "topic")), topic);
    ck_assert_int_eq(dlx_test_cli_integer(row, "n_held"), held);
    ck_assert_int_eq(dlx_test_cli_integer(row, "max_held"), max_held);
    ck_assert_int_eq(dlx_test_cli_integer(row, "pid"), getpid());
    ck_assert_int_eq(dlx_test_cli_integer(row, "uid"), getuid());
    ck_assert_int_eq(dlx_test_cli_integer(row, "lost"), 0);
    ck_assert_int_eq(dlx_test_cli_integer(row, "taken"), held);
    ck_assert(json_is_true(json_object_get(row, "latest")) == latest);
    ck_assert(json_is_boolean(json_object_get(row, "reliable")));
    ck_assert(json_is_true(json_object_get(row, "reliable")) == reliable);
}

TEST(holds_lists_those_who_hold_most_first)
{
    struct story story;
    struct dlx_test_cli cli;
    begin(&story);
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0, DLX_TEST_WORDS("holds", "--json"));
    json_t *json = dlx_test_cli_json(&cli);
    ck_assert_uint_eq(json_array_size(json), 3);
    check_row(json_array_get(json, 0), "a", 3, 5, false, false);
    check_row(json_array_get(json, 1), "b", 2, 16, false, false);
    check_row(json_array_get(json, 2), "a", 1, 16, false, true);
    json_decref(json);
    dlx_test_cli_deinit(&cli);

    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0,
                     DLX_TEST_WORDS("holds", "a", "--all", "--json"));
    json = dlx_test_cli_json(&cli);
    ck_assert_uint_eq(json_array_size(json), 3);
    check_row(json_array_get(json, 0), "a", 3, 5, false, false);
    check_row(json_array_get(json, 1), "a", 1, 16, false, true);
    check_row(json_array_get(json, 2), "a", 0, 16, true, false);
    json_decref(json);
    dlx_test_cli_deinit(&cli);
    end(&story);
}

TEST(holds_is_a_table_for_people)
{
    struct story story;
    struct dlx_test_cli cli;
    begin(&story);
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0, DLX_TEST_WORDS("holds", "a"));
    ck_assert_int_eq(strncmp(cli.out, "TOPIC  ", 7), 0);
    ck_assert_ptr_nonnull(strstr(cli.out, "h?[2J"));
    ck_assert_ptr_null(strchr(cli.out, '\x1b'));
    const char *first = strstr(cli.out, "3 of 5"), *second = strstr(cli.out, "1 of 16");
    ck_assert(first && second && first < second);
    ck_assert_ptr_null(strstr(cli.out, "2 of 16")); /* of the other topic */
    ck_assert_ptr_null(strstr(cli.out, "latest"));
    dlx_test_cli_deinit(&cli);

    for (; story.n_held > 0; story.n_held--)
        dlx_message_unref(story.m[story.n_held - 1]);
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0, DLX_TEST_WORDS("holds", "a"));
    ck_assert_str_eq(cli.out, "nobody holds a message of a\n");
    dlx_test_cli_deinit(&cli);
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0, DLX_TEST_WORDS("holds", "--all"));
    ck_assert_ptr_nonnull(strstr(cli.out, "0 of 5"));
    ck_assert_ptr_nonnull(strstr(cli.out, "latest"));
    dlx_test_cli_deinit(&cli);
    end(&story);
}

/* Its memory stays until its subscribers have taken all, also while they hold nothing. */
TEST(holds_lists_who_keeps_the_memory_of_a_publisher_that_has_gone)
{
    struct story story;
    struct dlx_test_cli cli;
    begin(&story);
    story.p[0] = dlx_publisher_unref(story.p[0]);
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0, DLX_TEST_WORDS("holds", "--json"));
    json_t *json = dlx_test_cli_json(&cli);
    ck_assert_uint_eq(json_array_size(json), 4);
    check_row(json_array_get(json, 0), "a", 3, 5, false, false);
    check_row(json_array_get(json, 1), "b", 2, 16, false, false);
    check_row(json_array_get(json, 2), "a", 1, 16, false, true);
    check_row(json_array_get(json, 3), "a", 0, 16, true, false);
    for (size_t i = 0; i < 4; i++) {
        const json_t *row = json_array_get(json, i);
        ck_assert(json_is_boolean(json_object_get(row, "publisher_gone")));
        ck_assert_int_eq(json_is_true(json_object_get(row, "publisher_gone")), i != 1);
        ck_assert_int_gt(dlx_test_cli_integer(row, "publisher_bytes"), 4096);
    }
    ck_assert_int_eq(dlx_test_cli_integer(json_array_get(json, 2), "behind"), 2);
    json_decref(json);
    dlx_test_cli_deinit(&cli);
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0, DLX_TEST_WORDS("holds", "a"));
    ck_assert_msg(strstr(cli.out, "publisher GONE, 2 to take, keeps 3"), "%s", cli.out);
    dlx_test_cli_deinit(&cli);
    end(&story);
}

int main(void)
{
    return dlx_test_run_case(dlx_test_cli_case("dlxctl"));
}
