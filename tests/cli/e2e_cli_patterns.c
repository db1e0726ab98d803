/* SPDX-License-Identifier: Apache-2.0 */
/* dlxctl and patterns of topics: each command that takes one. */
#include "tests/cli/harness_cli_case.h"
#include "tests/harness/run.h"
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void check_text(const json_t *json, const char *key, const char *text)
{
    ck_assert_str_eq(json_string_value(json_object_get(json, key)), text);
}

static void run(struct dlx_test_cli *cli, const char *const *words)
{
    dlx_test_cli_run(cli, dlx_test_cli_daemon.path, -1, 0, words);
    ck_assert_str_eq(dlx_test_cli_said(cli), "");
}

static void publish(const char *topic, const char *name)
{
    struct dlx_test_cli cli;
    run(&cli, DLX_TEST_WORDS("pub", topic, dlx_test_npy(name), "--retain", "2"));
    dlx_test_cli_deinit(&cli);
}

/* One message of cam/front, two of cam/rear, and one that "cam/" and a star is not about. */
static void publish_all(void)
{
    publish("cam/front", "f4.npy");
    publish("cam/rear", "two.npy");
    publish("cam/rear/depth", "f2.npy");
}

TEST(echo_names_the_topics)
{
    struct dlx_test_cli cli;
    publish_all();
    run(&cli, DLX_TEST_WORDS("echo", "cam/*", "--until-gone"));
    ck_assert_ptr_nonnull(strstr(cli.out, "cam/front  #1  "));
    ck_assert_ptr_nonnull(strstr(cli.out, "cam/rear  #1  "));
    ck_assert_ptr_nonnull(strstr(cli.out, "cam/rear  #2  "));
    ck_assert_ptr_null(strstr(cli.out, "depth"));
    ck_assert_ptr_null(strstr(cli.out, "publisher"));
    dlx_test_cli_deinit(&cli);
    run(&cli, DLX_TEST_WORDS("echo", "cam/rear/**", "--until-gone", "--json"));
    json_t *json = dlx_test_cli_json_line(&cli, 0);
    check_text(json, "topic", "cam/rear/depth");
    json_decref(json);
    dlx_test_cli_deinit(&cli);
    /* the name of one topic is no pattern: the line begins as ever */
    run(&cli, DLX_TEST_WORDS("echo", "cam/front", "--until-gone"));
    ck_assert_int_eq(strncmp(cli.out, "#1  ", 4), 0);
    dlx_test_cli_deinit(&cli);
}

TEST(hz_and_bw_tell_of_each_topic)
{
    struct dlx_test_cli cli;
    publish_all();
    for (int bw = 0; bw < 2; bw++) {
        run(&cli, DLX_TEST_WORDS(bw ? "bw" : "hz", "cam/*", "--until-gone"));
        ck_assert_ptr_nonnull(strstr(cli.out, "cam/*: 3 messages, 124 B in "));
        const char *front = strstr(cli.out, "\ncam/front: 1 message, 96 B, 0 missed\n  ");
        const char *rear = strstr(cli.out, "\ncam/rear: 2 messages, 28 B, 0 missed\n  ");
        ck_assert_msg(front && rear && front < rear, "%s", cli.out);
        ck_assert_ptr_nonnull(strstr(rear, bw ? "  size  mean 14 B" : "age without 2 messages "));
        dlx_test_cli_deinit(&cli);

        run(&cli, DLX_TEST_WORDS(bw ? "bw" : "hz", "cam/*", "--until-gone", "--json"));
        json_t *json = dlx_test_cli_json(&cli), *topics = json_object_get(json, "topics");
        check_text(json, "topic", "cam/*");
        ck_assert_int_eq(dlx_test_cli_integer(json, "messages"), 3);
        ck_assert_uint_eq(json_array_size(topics), 2);
        check_text(json_array_get(topics, 0), "topic", "cam/front");
        check_text(json_array_get(topics, 1), "topic", "cam/rear");
        ck_assert_int_eq(dlx_test_cli_integer(json_array_get(topics, 1), "messages"), 2);
        ck_assert_int_eq(dlx_test_cli_integer(json_array_get(topics, 1), "bytes"), 28);
        ck_assert_int_eq(dlx_test_cli_integer(json_array_get(topics, 1), "missed"), 0);
        const json_t *figure = json_object_get(json_array_get(topics, 1), bw ? "size" : "age");
        ck_assert(bw ? json_is_object(figure) : json_is_null(figure));
        json_decref(json);
        dlx_test_cli_deinit(&cli);

        run(&cli, DLX_TEST_WORDS(bw ? "bw" : "hz", "cam/rear", "--until-gone", "--json"));
        json = dlx_test_cli_json(&cli);
        ck_assert_ptr_null(json_object_get(json, "topics"));
        json_decref(json);
        dlx_test_cli_deinit(&cli);
    }
}

/* Once, and not with --until-gone, which waits for nobody. */
TEST(hz_and_bw_say_that_what_is_retained_has_no_publisher)
{
    static const char *const commands[] = {"hz", "bw"};
    struct dlx_test_cli cli;
    char said[128];
    publish("a/x", "two.npy");
    for (size_t i = 0; i < 2; i++) {
        (void)snprintf(said, sizeof said,
                       "dlxctl %s: a/x: only retained messages: no publisher yet, waiting for "
                       "one\n",
                       commands[i]);
        dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0,
                         DLX_TEST_WORDS(commands[i], "a/x", "--count", "2"));
        ck_assert_str_eq(cli.err, said);
        dlx_test_cli_deinit(&cli);
        dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0,
                         DLX_TEST_WORDS(commands[i], "a/x", "--until-gone"));
        ck_assert_str_eq(cli.err, "");
        dlx_test_cli_deinit(&cli);
    }
}

TEST(hz_says_which_topic_missed_messages)
{
    struct dlx_test_cli cli;
    publish("a/x", "two.npy");
    run(&cli, DLX_TEST_WORDS("hz", "a/*", "--latest", "--until-gone", "--json"));
    json_t *json = dlx_test_cli_json(&cli);
    json_t *x = json_array_get(json_object_get(json, "topics"), 0);
    ck_assert_int_eq(dlx_test_cli_integer(x, "messages") + dlx_test_cli_integer(json, "skipped"),
                     2);
    ck_assert_int_eq(dlx_test_cli_integer(x, "missed"), dlx_test_cli_integer(json, "skipped"));
    json_decref(json);
    dlx_test_cli_deinit(&cli);
}

TEST(save_names_files_by_topic)
{
    struct dlx_test_cli cli;
    publish_all();
    run(&cli,
        DLX_TEST_WORDS("save", "cam/**", dlx_test_cli_file("{topic}-{seq}.npy"), "--until-gone"));
    ck_assert_uint_eq(dlx_test_files_count(dlx_test_cli_files), 4);
    dlx_test_cli_same(dlx_test_cli_file("cam+front-000001.npy"), dlx_test_npy("f4.npy"));
    dlx_test_cli_same(dlx_test_cli_file("cam+rear+depth-000001.npy"), dlx_test_npy("f2.npy"));
    ck_assert_int_eq(access(dlx_test_cli_file("cam+rear-000002.npy"), F_OK), 0);
    dlx_test_cli_deinit(&cli);
    dlx_test_cli_run(
        &cli, dlx_test_cli_daemon.path, -1, 2,
        DLX_TEST_WORDS("save", "cam/*", dlx_test_cli_file("{seq}.npy"), "--until-gone"));
    ck_assert_ptr_nonnull(strstr(cli.err, "{topic} or %d is needed, too"));
    dlx_test_cli_deinit(&cli);
    run(&cli, DLX_TEST_WORDS("save", "cam/*", dlx_test_cli_file("n.npy"), "--count", "3"));
    ck_assert_uint_eq(dlx_test_files_count(dlx_test_cli_files), 7);
    dlx_test_cli_deinit(&cli);
}

TEST(ls_info_and_holds_list_what_matches)
{
    static const char *const topics[] = {"cam/front", "cam/rear", "lidar"};
    struct dlx_test_cli cli, pub[3], echo;
    for (int i = 0; i < 3; i++)
        dlx_test_cli_start(
            &pub[i], dlx_test_cli_daemon.path, -1,
            DLX_TEST_WORDS("pub", topics[i], dlx_test_npy("f4.npy"), "--wait", "1", "--hold"));
    dlx_test_cli_start(&echo, dlx_test_cli_daemon.path, -1, DLX_TEST_WORDS("echo", "**"));
    dlx_test_cli_wait_lines(&echo, 3);

    run(&cli, DLX_TEST_WORDS("ls", "cam/*"));
    ck_assert_ptr_nonnull(strstr(cli.out, "\ncam/front  "));
    ck_assert_ptr_nonnull(strstr(cli.out, "\ncam/rear "));
    ck_assert_ptr_null(strstr(cli.out, "lidar"));
    dlx_test_cli_deinit(&cli);
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 1, DLX_TEST_WORDS("ls", "nobody/*"));
    ck_assert_str_eq(cli.out, "");
    ck_assert_str_eq(cli.err, "dlxctl ls: nobody/*: no publisher\n");
    dlx_test_cli_deinit(&cli);

    run(&cli, DLX_TEST_WORDS("info", "cam/*", "--newest"));
    ck_assert_ptr_nonnull(strstr(cli.out, "cam/*: 2 publishers\n"));
    ck_assert_ptr_nonnull(strstr(cli.out, " of cam/front: "));
    ck_assert_ptr_nonnull(strstr(cli.out, " of cam/rear: "));
    ck_assert_ptr_null(strstr(cli.out, "none"));
    dlx_test_cli_deinit(&cli);
    run(&cli, DLX_TEST_WORDS("info", "*", "--newest", "--json"));
    json_t *json = dlx_test_cli_json(&cli), *list = json_object_get(json, "publishers");
    ck_assert_uint_eq(json_array_size(list), 1);
    check_text(json_array_get(list, 0), "topic", "lidar");
    ck_assert_int_eq(
        dlx_test_cli_integer(json_object_get(json_array_get(list, 0), "newest"), "seq"), 1);
    json_decref(json);
    dlx_test_cli_deinit(&cli);

    run(&cli, DLX_TEST_WORDS("holds", "cam/*", "--all", "--json"));
    json = dlx_test_cli_json(&cli);
    ck_assert_uint_eq(json_array_size(json), 2);
    for (size_t i = 0; i < 2; i++) {
        ck_assert(json_is_false(json_object_get(json_array_get(json, i), "latest")));
        ck_assert_int_eq(dlx_test_cli_integer(json_array_get(json, i), "pid"), echo.pid);
        ck_assert_str_ne(json_string_value(json_object_get(json_array_get(json, i), "topic")),
                         "lidar");
    }
    json_decref(json);
    dlx_test_cli_deinit(&cli);

    ck_assert_int_eq(kill(echo.pid, SIGINT), 0);
    dlx_test_cli_deinit(&echo);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(kill(pub[i].pid, SIGINT), 0);
        dlx_test_cli_deinit(&pub[i]);
    }
}

TEST(patterns_that_break_the_rules_are_named)
{
    static const char *const commands[] = {"ls", "info", "get", "echo", "hz", "bw", "holds"};
    struct dlx_test_cli cli;
    char words[64];
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 1,
                         DLX_TEST_WORDS(commands[i], "a//*"));
        (void)snprintf(words, sizeof words, "dlxctl %s: pattern \"a//*\" ", commands[i]);
        ck_assert_msg(strncmp(cli.err, words, strlen(words)) == 0, "%s", cli.err);
        ck_assert_str_eq(cli.out, "");
        dlx_test_cli_deinit(&cli);
    }
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 1,
                     DLX_TEST_WORDS("pub", "cam/*", dlx_test_npy("f4.npy")));
    ck_assert_ptr_nonnull(strstr(cli.err, "dlxctl pub: topic name \"cam/*\" "));
    dlx_test_cli_deinit(&cli);
}

/* Retained messages come in a burst, and may be hours old. */
TEST(hz_leaves_what_was_published_before_the_start_out_of_rates_and_ages)
{
    static const char *const figures[][2] = {
        {"rate", "mean_hz"}, {"rate", "max_hz"}, {"age", "p99_ns"}, {"age", "max_ns"}};
    struct dlx_test_cli hz, pub;
    publish("rig/old", "two.npy");
    dlx_test_cli_start(&hz, dlx_test_cli_daemon.path, -1,
                       DLX_TEST_WORDS("hz", "rig/*", "--count", "5", "--json", "--reliable"));
    run(&pub, DLX_TEST_WORDS("pub", "rig/new", dlx_test_npy("f4.npy"), "--loop", "3", "--wait", "1",
                             "--block"));
    dlx_test_cli_finish(&hz, 0);
    json_t *json = dlx_test_cli_json(&hz), *topics = json_object_get(json, "topics");
    const json_t *new = json_array_get(topics, 0), *old = json_array_get(topics, 1);
    check_text(old, "topic", "rig/old");
    ck_assert_int_eq(dlx_test_cli_integer(json, "messages"), 5);
    ck_assert_int_eq(dlx_test_cli_integer(old, "messages"), 2);
    ck_assert(json_is_null(json_object_get(old, "rate")));
    ck_assert(json_is_null(json_object_get(old, "age")));
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++) {
        const json_t *all = json_object_get(json_object_get(json, figures[i][0]), figures[i][1]);
        const json_t *one = json_object_get(json_object_get(new, figures[i][0]), figures[i][1]);
        ck_assert_msg(json_is_number(one) && json_equal(all, one), "%s", hz.out);
    }
    json_decref(json);
    dlx_test_cli_deinit(&hz);
    dlx_test_cli_deinit(&pub);
}

int main(void)
{
    return dlx_test_run_case(dlx_test_cli_case("dlxctl"));
}
