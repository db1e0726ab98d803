/* SPDX-License-Identifier: Apache-2.0 */
/* dlxctl for people: on a terminal of 80 columns, and what is said of metadata. */
#include "tests/cli/harness_cli_case.h"
#include <regex.h>

static struct dlx_client *c;

static void start(void)
{
    c = dlx_test_cli_connect("camera_driver_node");
}

static void stop(void)
{
    c = dlx_client_unref(c);
}

/* One tensor of 6 MB, with these metadata. */
static struct dlx_publisher *publish(const char *topic, const void *meta, size_t size)
{
    const struct dlx_bytes bytes = {.data = meta, .size = size};
    const struct dlx_tensor_spec spec = {.size = sizeof spec,
                                         .dtype = {kDLUInt, 8, 1},
                                         .ndim = 3,
                                         .shape = (const int64_t[]){1080, 1920, 3}};
    struct dlx_publisher *p = dlx_test_stream_publisher(c, topic, NULL);
    struct dlx_item item = {.name = "rgb"};
    ok(dlx_alloc(p, &spec, &item.tensor));
    ok(dlx_publish_set(p, &item, 1, size > 0 ? &bytes : NULL, NULL, NULL));
    return p;
}

static const char *const topics[] = {"camera/front_left/rgb", "camera/front_right/depth_registered",
                                     "lidar/top", "weights/policy/2026-11-22"};

/* Each topic is whole, and each line fits if that is possible. */
static void check_screen(const char *command, unsigned short columns, bool fits)
{
    auto_cli cli = dlxctl_on_screen(columns, 0, command);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(topics); i++) {
        char cell[64];
        (void)snprintf(cell, sizeof cell, "%s ", topics[i]);
        has(cli.out, cell);
    }
    for (const char *line = cli.out, *end; (end = strchr(line, '\n')); line = end + 1)
        ck_assert_msg(!fits || (size_t)(end - line) <= (size_t)columns + 1, "%s, %d columns:\n%s",
                      command, columns, cli.out);
}

TEST(topics_are_whole_on_a_screen_of_80_columns)
{
    static const char *const commands[] = {"ls", "holds"};
    struct dlx_publisher *p[4];
    struct dlx_subscription *s[4];
    struct dlx_message *m[4];
    for (int i = 0; i < 4; i++) {
        p[i] = publish(topics[i], NULL, 0);
        s[i] = dlx_test_stream_subscribe(c, topics[i], SUBSCRIBE(.history = 1));
        m[i] = dlx_test_stream_next(s[i]);
    }
    for (size_t i = 0; i < 2; i++) {
        check_screen(commands[i], 80, true);
        check_screen(commands[i], 132, true);
        check_screen(commands[i], 20, false);
    }
    auto_cli screen = dlxctl_on_screen(80, 0, "ls");
    has(screen.out, "\r\n(no room for ID");
    /* Programs, and files, get everything. */
    auto_cli all = dlxctl(0, "ls");
    has(all.out, " ID ");
    has(all.out, "camera_driver_node");
    has_not(all.out, "no room");
    dlx_test_stream_unref_messages(m, 4);
    dlx_test_stream_unref_subscriptions(s, 4);
    dlx_test_stream_unref_publishers(p, 4);
}

/* info, get and echo show this; and in JSON it is what it is. */
static void check_meta(const void *meta, size_t size, const char *text, const char *key,
                       const char *exact, size_t exact_size)
{
    const char *const *const shows[] = {
        DLX_TEST_WORDS("info", "t", "--newest"), DLX_TEST_WORDS("get", "t"),
        DLX_TEST_WORDS("echo", "t", "--history", "1", "--count", "1")};
    const char *const *const json[] = {
        DLX_TEST_WORDS("info", "t", "--newest", "--json"), DLX_TEST_WORDS("get", "t", "--json"),
        DLX_TEST_WORDS("echo", "t", "--history", "1", "--count", "1", "--json")};
    auto_publisher *p = publish("t", meta, size);
    for (size_t i = 0; i < 3; i++) {
        auto_cli shown = dlx_test_cli_ended(0, shows[i]), exactly = dlx_test_cli_ended(0, json[i]);
        has(shown.out, text);
        has_not(shown.out, "\x1b");
        json_auto_t *all = json_loads(exactly.out, JSON_ALLOW_NUL, NULL);
        ck_assert_ptr_nonnull(all);
        const json_t *m = all;
        if (i == 0)
            m = json_object_get(json_array_get(json_object_get(all, "publishers"), 0), "newest");
        const json_t *value = json_object_get(m, key);
        ck_assert_msg(json_is_string(value), "%s lacks %s", exactly.out, key);
        ck_assert_uint_eq(json_string_length(value), exact_size);
        ck_assert_mem_eq(json_string_value(value), exact, exact_size);
    }
}

TEST(metadata_is_shown)
{
    static const char text[] = "{\"frame\": \"base_link\", \"name\": \"caf\xc3\xa9\"}";
    static const char escape[] = "a\x1b[2Jb\n\0c";
    char large[3000];
    check_meta(text, sizeof text - 1, "  {\"frame\": \"base_link\", \"name\": \"caf\xc3\xa9\"}\n",
               "meta", text, sizeof text - 1);
    check_meta(escape, sizeof escape - 1, "a\\x1b[2Jb\\n\\x00c\n", "meta", escape,
               sizeof escape - 1);
    check_meta("\xff\x00\x01", 3, "\\xff\\x00\\x01\n", "meta_hex", "ff0001", 6);
    memset(large, 'm', sizeof large);
    check_meta(large, sizeof large, "mmm... (the first 200 of 3000 bytes)\n", "meta", large,
               sizeof large);
}

TEST(without_metadata_there_is_none)
{
    auto_publisher *p = publish("t", NULL, 0);
    auto_cli get = dlxctl(0, "get", "t"), json = dlxctl(0, "get", "t", "--json");
    has_not(get.out, "metadata");
    has(json.out, "\"meta_bytes\":0,");
    has_not(json.out, "\"meta\"");
}

LOOP_TEST(a_terminal_gets_no_tensors, 0, 2)
{
    auto_publisher *p = publish("t", NULL, 0);
    auto_cli cli = dlxctl_on_screen(80, 2, _i == 0 ? "get" : "save", "t", "-");
    ck_assert_str_eq(cli.out, "");
    has(cli.err, "the standard output is a terminal");
}

/* A figure without its value would look like a broken line. */
TEST(the_line_of_hz_has_whole_fields_on_a_screen_of_80_columns)
{
    static const char whole[] =
        "lost 0  [0-9.]+/s  .*age p50 [0-9.]+ [mun]?s p99 [0-9.]+ [mun]?s\033";
    regex_t regex;
    ck_assert_int_eq(regcomp(&regex, whole, REG_EXTENDED | REG_NOSUB), 0);
    auto_cli pub = dlxctl_start("pub", topics[1], dlx_test_npy("f4.npy"), "--wait", "1", "--loop",
                                "0", "--rate", "100");
    auto_cli hz = dlxctl_on_screen(80, 0, "hz", topics[1], "--duration", "1.5");
    ck_assert_msg(regexec(&regex, hz.out, 0, NULL, 0) == 0, "%s", hz.out);
    ck_assert_int_eq(kill(pub.pid, SIGINT), 0);
    regfree(&regex);
}

TEST(pub_that_publishes_nothing_has_no_summary)
{
    auto_cli nothing = dlxctl_on_terminal(1, "pub", "a", "no/such");
    ck_assert_str_eq(nothing.err, "dlxctl pub: a: no/such: No such file or directory\r\n");
    /* what came before a failure is told */
    auto_cli one = dlxctl_on_terminal(1, "pub", "a", dlx_test_npy("f4.npy"), "no/such");
    has(one.err, "no/such: No such file or directory\r\n");
    has(one.err, "a: 1 message, 96 B in ");
}

/* FILE is not the name of any of them. */
TEST(save_tells_the_names_of_several_files)
{
    char said[1200];
    auto_cli pub = dlxctl(0, "pub", "w", dlx_test_npy("f4.npy"), "--loop", "3", "--retain", "3");
    auto_cli three = dlxctl_on_terminal(0, "save", "w", dlx_test_file("n.npy"), "--count", "3");
    (void)snprintf(said, sizeof said, "\n3 files: %s ... %s\r\n", dlx_test_file("n-000001.npy"),
                   dlx_test_file("n-000003.npy"));
    has(three.err, said);
    auto_cli one = dlxctl_on_terminal(0, "save", "w", dlx_test_file("one.npy"));
    has_not(one.err, " file");
}

int main(void)
{
    TCase *tcase = dlx_test_cli_case("screen");
    tcase_add_checked_fixture(tcase, start, stop);
    return dlx_test_run_case(tcase);
}
