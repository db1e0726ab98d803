/* SPDX-License-Identifier: Apache-2.0 */
/* dlxctl and messages that stay: pub --retain, get, rm, and how ls and info show them. */
#include "tests/cli/harness_cli_case.h"
#include "tests/harness/run.h"
#include <check.h>
#include <dlx/dlx.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Run; what it prints is exactly this. */
static void prints(int status, const char *out, const char *err, const char *const *words)
{
    struct dlx_test_cli cli;
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, status, words);
    ck_assert_str_eq(cli.out, out);
    ck_assert_str_eq(dlx_test_cli_said(&cli), err);
    dlx_test_cli_deinit(&cli);
}

/* Run; stdout, or stderr when that is to fail, has these words. */
static void says(int status, const char *part, const char *const *words)
{
    struct dlx_test_cli cli;
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, status, words);
    const char *text = status ? cli.err : cli.out;
    ck_assert_msg(strstr(text, part), "'%s' lacks '%s'", text, part);
    dlx_test_cli_deinit(&cli);
}

/* What get says then. Static. */
static const char *nobody_publishes(const char *before, const char *after)
{
    static char said[512];
    (void)snprintf(said, sizeof said, "dlxctl get: %s: nobody publishes it at %s%s\n", before,
                   dlx_test_cli_daemon.path, after);
    return said;
}

TEST(what_pub_retains_stays_until_it_is_dropped)
{
    const char *reference = dlx_test_data("safetensors/reference.safetensors");
    prints(0, "w/policy: 1 message is retained\n", "",
           DLX_TEST_WORDS("pub", "w/policy", reference, "--retain", "1"));
    for (int i = 0; i < 2; i++) {
        prints(0, "", "", DLX_TEST_WORDS("get", "w/policy", dlx_test_cli_file("out.safetensors")));
        dlx_test_cli_same(dlx_test_cli_file("out.safetensors"), reference);
        ck_assert_int_eq(unlink(dlx_test_cli_file("out.safetensors")), 0);
    }
    ck_assert_uint_eq(dlx_test_files_count(dlx_test_cli_files), 0);
    prints(0, "", "", DLX_TEST_WORDS("rm", "w/policy"));
    prints(0, "", "dlxctl ls: no publishers\n", DLX_TEST_WORDS("ls"));
    prints(1, "", nobody_publishes("topic w/policy has no message", " (--timeout waits for one)"),
           DLX_TEST_WORDS("get", "w/policy", dlx_test_cli_file("out.safetensors")));
    ck_assert_uint_eq(dlx_test_files_count(dlx_test_cli_files), 0);
    says(1, "dlxctl rm: nothing is retained on w/policy\n", DLX_TEST_WORDS("rm", "w/policy"));
}

TEST(a_new_file_replaces_the_one_before)
{
    struct dlx_test_cli cli;
    for (int i = 0; i < 2; i++)
        prints(0, "w: 1 message is retained for 1 min 0 s\n", "",
               DLX_TEST_WORDS("pub", "w", dlx_test_npy(i ? "f2.npy" : "f4.npy"), "--retain-for",
                              "60"));
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0, DLX_TEST_WORDS("ls", "--json"));
    json_t *json = dlx_test_cli_json(&cli), *first = json_array_get(json, 0);
    ck_assert_uint_eq(json_array_size(json), 1);
    ck_assert_int_eq(dlx_test_cli_integer(first, "published_bytes"), 10);
    ck_assert_int_eq(dlx_test_cli_integer(first, "retain"), 1);
    ck_assert(json_is_true(json_object_get(first, "retained")));
    json_decref(json);
    dlx_test_cli_deinit(&cli);
    prints(0, "", "", DLX_TEST_WORDS("get", "w", dlx_test_cli_file("out.npy")));
    dlx_test_cli_same(dlx_test_cli_file("out.npy"), dlx_test_npy("f2.npy"));
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0, DLX_TEST_WORDS("get", "w", "-"));
    ck_assert_int_eq(memcmp(cli.out, "\x93NUMPY", 6), 0);
    ck_assert_uint_eq(cli.out_size, 128 + 10);
    dlx_test_cli_deinit(&cli);
}

TEST(several_messages_stay_and_the_history_fits)
{
    struct dlx_test_cli cli;
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0,
                     DLX_TEST_WORDS("pub", "a", dlx_test_npy("f4.npy"), "--loop", "9", "--retain",
                                    "6", "--json"));
    json_t *json = dlx_test_cli_json(&cli);
    ck_assert_int_eq(dlx_test_cli_integer(json, "published"), 9);
    ck_assert_int_eq(dlx_test_cli_integer(json, "retained"), 6);
    json_decref(json);
    dlx_test_cli_deinit(&cli);
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0,
                     DLX_TEST_WORDS("echo", "a", "--json", "--until-gone"));
    for (size_t i = 0; i < 6; i++) {
        json = dlx_test_cli_json_line(&cli, i);
        ck_assert_int_eq(dlx_test_cli_integer(json, "seq"), 4 + (json_int_t)i);
        json_decref(json);
    }
    dlx_test_cli_deinit(&cli);
    /* of two, one is there to be retained: it says so, and does not replace the others */
    prints(0, "a: 1 message is retained\n", "",
           DLX_TEST_WORDS("pub", "a", dlx_test_npy("f2.npy"), "--retain", "2"));
    says(0, "a: 0 publishers, 2 retained\n", DLX_TEST_WORDS("info", "a"));
    says(0, "{\n  \"topic\": \"a\",\n  \"dropped\": true\n}\n",
         DLX_TEST_WORDS("rm", "a", "--json"));
    prints(0, "", "dlxctl ls: no publishers\n", DLX_TEST_WORDS("ls"));
}

TEST(retained_messages_expire)
{
    struct dlx_test_cli cli;
    bool gone = false;
    dlx_test_cli_run(
        &cli, dlx_test_cli_daemon.path, -1, 0,
        DLX_TEST_WORDS("pub", "a", dlx_test_npy("f4.npy"), "--retain", "1", "--retain-for", "0.5"));
    ck_assert_str_eq(cli.out, "a: 1 message is retained for 500 ms\n");
    dlx_test_cli_deinit(&cli);
    for (time_t end = time(NULL) + PATIENCE_S; !gone;) {
        dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0, DLX_TEST_WORDS("ls"));
        gone = strcmp(cli.err, "dlxctl ls: no publishers\n") == 0;
        dlx_test_cli_deinit(&cli);
        ck_assert_int_lt(time(NULL), end);
    }
}

TEST(latched_messages_are_for_those_who_come_meanwhile)
{
    struct dlx_test_cli pub, cli;
    dlx_test_cli_start(&pub, dlx_test_cli_daemon.path, -1,
                       DLX_TEST_WORDS("pub", "a", dlx_test_npy("f4.npy"), "--latch", "--hold"));
    prints(
        0, "", "",
        DLX_TEST_WORDS("save", "a", dlx_test_cli_file("out.npy"))); /* waits for it, if it must */
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0, DLX_TEST_WORDS("ls", "--json"));
    json_t *json = dlx_test_cli_json(&cli), *first = json_array_get(json, 0);
    ck_assert_int_eq(dlx_test_cli_integer(first, "pid"), pub.pid);
    ck_assert_int_eq(dlx_test_cli_integer(first, "retain"), 1);
    ck_assert(json_is_false(json_object_get(first, "retained")));
    json_decref(json);
    dlx_test_cli_deinit(&cli);
    says(0, "  settings     history 1, depth 16, drops the oldest when full, retains 1\n",
         DLX_TEST_WORDS("info", "a"));
    says(1, "still there", DLX_TEST_WORDS("rm", "a"));
    ck_assert_int_eq(kill(pub.pid, SIGINT), 0);
    dlx_test_cli_wait(&pub);
    ck_assert_int_eq(pub.status, 0);
    ck_assert_str_eq(pub.out, "");
    dlx_test_cli_deinit(&pub);
    prints(0, "", "dlxctl ls: no publishers\n", DLX_TEST_WORDS("ls"));
}

TEST(retained_publishers_are_not_shown_as_alive)
{
    struct dlx_test_cli cli;
    char pid[32];
    dlx_test_cli_start(&cli, dlx_test_cli_daemon.path, -1,
                       DLX_TEST_WORDS("pub", "w/a", dlx_test_npy("f4.npy"), "--retain", "2"));
    (void)snprintf(pid, sizeof pid, "%d", (int)cli.pid);
    dlx_test_cli_deinit(&cli);
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0, DLX_TEST_WORDS("ls"));
    ck_assert_ptr_nonnull(strstr(cli.out, "  retained  "));
    ck_assert_ptr_null(strstr(cli.out, pid));
    dlx_test_cli_deinit(&cli);
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0,
                     DLX_TEST_WORDS("info", "w/a", "--newest"));
    ck_assert_ptr_nonnull(strstr(cli.out, "w/a: 0 publishers, 1 retained\n\npublisher "));
    ck_assert_ptr_nonnull(strstr(cli.out, " (retained, its process has gone; uid "));
    ck_assert_ptr_nonnull(strstr(cli.out, "  newest       message 1, "));
    ck_assert_ptr_null(strstr(cli.out, "pid "));
    dlx_test_cli_deinit(&cli);
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0,
                     DLX_TEST_WORDS("info", "w/a", "--newest", "--json"));
    json_t *json = dlx_test_cli_json(&cli);
    json_t *first = json_array_get(json_object_get(json, "publishers"), 0);
    ck_assert(json_is_true(json_object_get(first, "retained")));
    ck_assert_int_eq(dlx_test_cli_integer(first, "retain"), 2);
    ck_assert_int_eq(dlx_test_cli_integer(json_object_get(first, "newest"), "seq"), 1);
    json_decref(json);
    dlx_test_cli_deinit(&cli);
}

TEST(get_shows_what_echo_shows)
{
    struct dlx_test_cli cli;
    prints(0, "w/a: 2 messages are retained\n", "",
           DLX_TEST_WORDS("pub", "w/a", dlx_test_npy("bool.npy"), dlx_test_npy("f2.npy"),
                          "--retain", "2"));
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0,
                     DLX_TEST_WORDS("get", "w/a", "--values", "2"));
    ck_assert_int_eq(strncmp(cli.out, "#2  ", 4), 0);
    ck_assert_ptr_nonnull(strstr(cli.out, "  float16 (5,)  10 B  [0 1 ...]\n"));
    dlx_test_cli_deinit(&cli);
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0, DLX_TEST_WORDS("get", "w/*"));
    ck_assert_int_eq(strncmp(cli.out, "w/a  #2  ", 9), 0);
    dlx_test_cli_deinit(&cli);
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0,
                     DLX_TEST_WORDS("get", "w/**", "--json"));
    json_t *json = dlx_test_cli_json(&cli);
    ck_assert_int_eq(dlx_test_cli_integer(json, "seq"), 2);
    ck_assert_str_eq(json_string_value(json_object_get(json, "topic")), "w/a");
    ck_assert_ptr_nonnull(
        json_object_get(json_array_get(json_object_get(json, "tensors"), 0), "values"));
    json_decref(json);
    dlx_test_cli_deinit(&cli);
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0,
                     DLX_TEST_WORDS("get", "w/a", dlx_test_cli_file("out.npy"), "--json"));
    json = dlx_test_cli_json(&cli);
    ck_assert_str_eq(json_string_value(json_object_get(json, "file")),
                     dlx_test_cli_file("out.npy"));
    json_decref(json);
    dlx_test_cli_deinit(&cli);
}

TEST(get_of_a_set_as_npy_is_one_tensor)
{
    struct dlx_test_cli cli;
    size_t size = 0;
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0,
                     DLX_TEST_WORDS("pub", "w", dlx_test_data("safetensors/reference.safetensors"),
                                    "--retain", "1"));
    dlx_test_cli_deinit(&cli);
    says(0, "  22 tensors, 367 B, 36 B of metadata\n", DLX_TEST_WORDS("get", "w"));
    prints(0, "",
           "dlxctl get: w: 36 bytes of metadata are left out: .npy has no room for them, "
           ".safetensors has for a JSON object\n"
           "dlxctl get: w: message 1 has 22 tensors: tensor 6 is saved (--tensor), the others are "
           "left "
           "out; .safetensors or .npz has room for all\n",
           DLX_TEST_WORDS("get", "w", dlx_test_cli_file("out.npy"), "--tensor", "6"));
    char *data = dlx_test_read_file(dlx_test_cli_file("out.npy"), &size);
    ck_assert_uint_eq(size, 132); /* a scalar */
    ck_assert_mem_eq(data + 128, &(float){1.5F}, 4);
    free(data);
    says(1, "there is no tensor 22", DLX_TEST_WORDS("get", "w", "-", "--tensor", "22"));
}

TEST(get_waits_for_the_first_message)
{
    struct dlx_test_cli get, pub;
    prints(1, "", nobody_publishes("waited 20.0 ms: topic a has no message, and none came", ""),
           DLX_TEST_WORDS("get", "a", "--timeout", "0.02"));
    dlx_test_cli_start(&get, dlx_test_cli_daemon.path, -1,
                       DLX_TEST_WORDS("get", "a", dlx_test_cli_file("out.npy"), "--timeout", "60"));
    dlx_test_cli_run(&pub, dlx_test_cli_daemon.path, -1, 0,
                     DLX_TEST_WORDS("pub", "a", dlx_test_npy("f4.npy"), "--wait", "1"));
    dlx_test_cli_wait(&get);
    ck_assert_msg(get.status == 0, "%s", get.err);
    dlx_test_cli_same(dlx_test_cli_file("out.npy"), dlx_test_npy("f4.npy"));
    dlx_test_cli_deinit(&pub);
    dlx_test_cli_deinit(&get);
}

/* Each look at the newest message is a subscriber, which the publisher hears of when it makes a
 * call. Any number may look, but not all of them may keep what they got. */
TEST(a_message_that_cannot_be_looked_at_is_not_none)
{
    struct dlx_connect_args args = {.size = sizeof args, .socket = dlx_test_cli_daemon.path};
    struct dlx_publisher_args retain = {.size = sizeof retain, .retain = 1};
    struct dlx_tensor_spec spec = {.size = sizeof spec, .dtype = {kDLUInt, 8, 1}};
    struct dlx_client *c = NULL;
    struct dlx_publisher *p = NULL;
    DLManagedTensorVersioned *t = NULL;
    struct dlx_message *m = NULL, *held[641];
    struct dlx_event event = {.size = sizeof event};
    struct dlx_test_cli cli;
    int code, n = 0;
    ck_assert_int_eq(dlx_connect(&c, &args), 0);
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
    dlx_client_unref(c);
}

TEST(wrong_usage_is_named)
{
    const char *npy = dlx_test_npy("f4.npy");
    says(2, "a topic is missing", DLX_TEST_WORDS("get"));
    says(2, "extra argument 'c'", DLX_TEST_WORDS("get", "a", "b", "c"));
    says(2, "--json and the file '-' exclude", DLX_TEST_WORDS("get", "a", "-", "--json"));
    says(2, "--tensor needs a file", DLX_TEST_WORDS("get", "a", "--tensor", "1"));
    says(2, "--values is for showing", DLX_TEST_WORDS("get", "a", "b.npy", "--values", "1"));
    says(2, "--tensor is for .npy", DLX_TEST_WORDS("get", "a", "b.safetensors", "--tensor", "1"));
    says(2, "the file name is empty", DLX_TEST_WORDS("get", "a", ""));
    says(2, "a topic is missing", DLX_TEST_WORDS("rm"));
    says(2, "extra argument 'b'", DLX_TEST_WORDS("rm", "a", "b"));
    says(1, "dlxctl rm: topic name \"w/*\" ", DLX_TEST_WORDS("rm", "w/*"));
    says(1, "dlxctl get: topic name \"a//b\" has", DLX_TEST_WORDS("get", "a//b"));
    says(2, "--retain: '0'", DLX_TEST_WORDS("pub", "a", npy, "--retain", "0"));
    says(2, "5 messages cannot stay, --history keeps only 4",
         DLX_TEST_WORDS("pub", "a", npy, "--retain", "5", "--history", "4"));
    says(2, "--retain-for: must be more than 0",
         DLX_TEST_WORDS("pub", "a", npy, "--retain-for", "0"));
    says(2, "--latch and --retain-for exclude each other",
         DLX_TEST_WORDS("pub", "a", npy, "--latch", "--retain-for", "1"));
    prints(1, "", "dlxctl pub: a: no/such: No such file or directory\n",
           DLX_TEST_WORDS("pub", "a", "no/such", "--retain", "1"));
    prints(0, "", "dlxctl ls: no publishers\n", DLX_TEST_WORDS("ls"));
}

/* FILE is not the name of any of them. */
TEST(save_tells_the_names_of_several_files)
{
    struct dlx_test_cli cli;
    char said[1200];
    dlx_test_cli_run(
        &cli, dlx_test_cli_daemon.path, -1, 0,
        DLX_TEST_WORDS("pub", "w", dlx_test_npy("f4.npy"), "--loop", "3", "--retain", "3"));
    dlx_test_cli_deinit(&cli);
    dlx_test_cli_run_on_terminal(
        &cli, dlx_test_cli_daemon.path, 0,
        DLX_TEST_WORDS("save", "w", dlx_test_cli_file("n.npy"), "--count", "3"));
    (void)snprintf(said, sizeof said, "\n3 files: %s ... %s\r\n", dlx_test_cli_file("n-000001.npy"),
                   dlx_test_cli_file("n-000003.npy"));
    ck_assert_msg(strstr(cli.err, said), "'%s' lacks '%s'", cli.err, said);
    dlx_test_cli_deinit(&cli);
    dlx_test_cli_run_on_terminal(&cli, dlx_test_cli_daemon.path, 0,
                                 DLX_TEST_WORDS("save", "w", dlx_test_cli_file("one.npy")));
    ck_assert_ptr_null(strstr(cli.err, " file"));
    dlx_test_cli_deinit(&cli);
}

/* A topic that nobody publishes may be misspelt; one without a message yet is not. */
TEST(get_tells_a_quiet_topic_from_one_that_nobody_publishes)
{
    struct dlx_connect_args args = {.size = sizeof args, .socket = dlx_test_cli_daemon.path};
    struct dlx_client *c = NULL;
    struct dlx_publisher *p = NULL;
    prints(1, "", nobody_publishes("topic nope has no message", " (--timeout waits for one)"),
           DLX_TEST_WORDS("get", "nope"));
    ck_assert_int_eq(dlx_connect(&c, &args), 0);
    ck_assert_int_eq(dlx_publisher_new(c, "quiet", NULL, &p), 0);
    prints(1, "", "dlxctl get: topic quiet has no message (--timeout waits for one)\n",
           DLX_TEST_WORDS("get", "quiet"));
    dlx_publisher_unref(p);
    dlx_client_unref(c);
}

int main(void)
{
    return dlx_test_run_case(dlx_test_cli_case("dlxctl"));
}
