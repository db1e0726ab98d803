/* SPDX-License-Identifier: Apache-2.0 */
/* dlxctl for people: on a terminal of 80 columns, and what is said of metadata. */
#include "tests/cli/harness_cli_case.h"
#include "tests/harness/run.h"
#include <dlx/dlx.h>
#include <regex.h>

static struct dlx_client *c;

static void start(void)
{
    struct dlx_connect_args args = {
        .size = sizeof args, .socket = dlx_test_cli_daemon.path, .name = "camera_driver_node"};
    ck_assert_int_eq(dlx_connect(&c, &args), 0);
}

static void stop(void)
{
    c = dlx_client_unref(c);
}

/* One tensor of 6 MB, with these metadata. */
static struct dlx_publisher *publish(const char *topic, const void *meta, size_t size)
{
    const struct dlx_bytes bytes = {.data = meta, .size = size};
    struct dlx_publisher *p = NULL;
    struct dlx_tensor_spec spec = {.size = sizeof spec,
                                   .dtype = {kDLUInt, 8, 1},
                                   .ndim = 3,
                                   .shape = (const int64_t[]){1080, 1920, 3}};
    struct dlx_item item = {.name = "rgb"};
    ck_assert_int_eq(dlx_publisher_new(c, topic, NULL, &p), 0);
    ck_assert_int_eq(dlx_alloc(p, &spec, &item.tensor), 0);
    ck_assert_int_eq(dlx_publish_set(p, &item, 1, size > 0 ? &bytes : NULL, NULL), 0);
    return p;
}

static const char *const topics[] = {"camera/front_left/rgb", "camera/front_right/depth_registered",
                                     "lidar/top", "weights/policy/2026-11-22"};

/* Each topic is whole, and each line fits if that is possible. */
static void check_screen(const char *command, unsigned short columns, bool fits)
{
    struct dlx_test_cli cli;
    dlx_test_cli_run_on_screen(&cli, dlx_test_cli_daemon.path, columns, 0, DLX_TEST_WORDS(command));
    for (size_t i = 0; i < sizeof topics / sizeof topics[0]; i++) {
        char cell[64];
        (void)snprintf(cell, sizeof cell, "%s ", topics[i]);
        ck_assert_msg(strstr(cli.out, cell), "%s lacks %s:\n%s", command, topics[i], cli.out);
    }
    for (const char *line = cli.out, *end; (end = strchr(line, '\n')); line = end + 1)
        ck_assert_msg(!fits || (size_t)(end - line) <= (size_t)columns + 1, "%d columns:\n%s",
                      columns, cli.out);
    dlx_test_cli_deinit(&cli);
}

TEST(topics_are_whole_on_a_screen_of_80_columns)
{
    struct dlx_publisher *p[4];
    struct dlx_subscription *s[4] = {NULL};
    struct dlx_message *m[4];
    struct dlx_subscribe_args args = {.size = sizeof args, .history = 1};
    struct dlx_test_cli cli;
    for (int i = 0; i < 4; i++) {
        p[i] = publish(topics[i], NULL, 0);
        ck_assert_int_eq(dlx_subscribe(c, topics[i], &args, &s[i]), 0);
        ck_assert_int_eq(dlx_take(s[i], DLX_FOREVER, &m[i]), 0);
    }
    static const char *const commands[] = {"ls", "holds"};
    for (size_t i = 0; i < 2; i++) {
        check_screen(commands[i], 80, true);
        check_screen(commands[i], 132, true);
        check_screen(commands[i], 20, false);
    }
    dlx_test_cli_run_on_screen(&cli, dlx_test_cli_daemon.path, 80, 0, DLX_TEST_WORDS("ls"));
    ck_assert_ptr_nonnull(strstr(cli.out, "\r\n(no room for ID"));
    dlx_test_cli_deinit(&cli);
    /* Programs, and files, get everything. */
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0, DLX_TEST_WORDS("ls"));
    ck_assert_ptr_nonnull(strstr(cli.out, " ID "));
    ck_assert_ptr_nonnull(strstr(cli.out, "camera_driver_node"));
    ck_assert_ptr_null(strstr(cli.out, "no room"));
    dlx_test_cli_deinit(&cli);
    for (int i = 0; i < 4; i++) {
        dlx_message_unref(m[i]);
        dlx_subscription_unref(s[i]);
        dlx_publisher_unref(p[i]);
    }
}

static char *run(const char *const *words)
{
    struct dlx_test_cli cli;
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0, words);
    char *out = strdup(cli.out);
    ck_assert_ptr_nonnull(out);
    dlx_test_cli_deinit(&cli);
    return out;
}

/* info, get and echo show this; and in JSON it is what it is. */
static void check_meta(const void *meta, size_t size, const char *text, const char *key,
                       const char *exact, size_t exact_size)
{
    const char *const *const shows[] = {
        DLX_TEST_WORDS("info", "t", "--newest"), DLX_TEST_WORDS("get", "t"),
        DLX_TEST_WORDS("echo", "t", "--history", "1", "--count", "1")};
    const char *const *const json[] = {
        DLX_TEST_WORDS("get", "t", "--json"),
        DLX_TEST_WORDS("echo", "t", "--history", "1", "--count", "1", "--json"),
        DLX_TEST_WORDS("info", "t", "--newest", "--json")};
    struct dlx_publisher *p = publish("t", meta, size);
    for (size_t i = 0; i < 3; i++) {
        char *out = run(shows[i]);
        ck_assert_msg(strstr(out, text), "%s lacks %s", out, text);
        ck_assert_ptr_null(strchr(out, '\x1b'));
        free(out);
        out = run(json[i]);
        json_t *all = json_loads(out, JSON_ALLOW_NUL, NULL), *m = all;
        ck_assert_ptr_nonnull(all);
        if (i == 2)
            m = json_object_get(json_array_get(json_object_get(all, "publishers"), 0), "newest");
        const json_t *value = json_object_get(m, key);
        ck_assert_msg(json_is_string(value), "%s lacks %s", out, key);
        ck_assert_uint_eq(json_string_length(value), exact_size);
        ck_assert_int_eq(memcmp(json_string_value(value), exact, exact_size), 0);
        json_decref(all);
        free(out);
    }
    dlx_publisher_unref(p);
}

TEST(metadata_is_shown)
{
    static const char text[] = "{\"frame\": \"base_link\", \"name\": \"caf\xc3\xa9\"}";
    static const char escape[] = "a\x1b[2Jb\n\0c";
    static const char binary[] = "\xff\x00\x01";
    char large[3000], hex[] = "ff0001";
    check_meta(text, sizeof text - 1, "  {\"frame\": \"base_link\", \"name\": \"caf\xc3\xa9\"}\n",
               "meta", text, sizeof text - 1);
    check_meta(escape, sizeof escape - 1, "a\\x1b[2Jb\\n\\x00c\n", "meta", escape,
               sizeof escape - 1);
    check_meta(binary, sizeof binary - 1, "\\xff\\x00\\x01\n", "meta_hex", hex, 6);
    memset(large, 'm', sizeof large);
    check_meta(large, sizeof large, "mmm... (the first 200 of 3000 bytes)\n", "meta", large,
               sizeof large);
}

TEST(without_metadata_there_is_none)
{
    struct dlx_publisher *p = publish("t", NULL, 0);
    char *out = run(DLX_TEST_WORDS("get", "t"));
    ck_assert_ptr_null(strstr(out, "metadata"));
    free(out);
    out = run(DLX_TEST_WORDS("get", "t", "--json"));
    ck_assert_ptr_nonnull(strstr(out, "\"meta_bytes\":0,"));
    ck_assert_ptr_null(strstr(out, "\"meta\""));
    free(out);
    dlx_publisher_unref(p);
}

TEST(a_terminal_gets_no_tensors)
{
    static const char *const commands[] = {"get", "save"};
    struct dlx_test_cli cli;
    struct dlx_publisher *p = publish("t", NULL, 0);
    for (size_t i = 0; i < 2; i++) {
        dlx_test_cli_run_on_screen(&cli, dlx_test_cli_daemon.path, 80, 2,
                                   DLX_TEST_WORDS(commands[i], "t", "-"));
        ck_assert_str_eq(cli.out, "");
        ck_assert_ptr_nonnull(strstr(cli.err, "the standard output is a terminal"));
        dlx_test_cli_deinit(&cli);
    }
    dlx_publisher_unref(p);
}

/* A figure without its value would look like a broken line. */
TEST(the_line_of_hz_has_whole_fields_on_a_screen_of_80_columns)
{
    struct dlx_test_cli pub, hz;
    regex_t whole;
    ck_assert_int_eq(regcomp(&whole,
                             "lost 0  [0-9.]+/s  .*age p50 [0-9.]+ [mun]?s p99 [0-9.]+ [mun]?s\033",
                             REG_EXTENDED | REG_NOSUB),
                     0);
    dlx_test_cli_start(&pub, dlx_test_cli_daemon.path, -1,
                       DLX_TEST_WORDS("pub", topics[1], dlx_test_npy("f4.npy"), "--wait", "1",
                                      "--loop", "0", "--rate", "100"));
    dlx_test_cli_run_on_screen(&hz, dlx_test_cli_daemon.path, 80, 0,
                               DLX_TEST_WORDS("hz", topics[1], "--duration", "1.5"));
    ck_assert_msg(regexec(&whole, hz.out, 0, NULL, 0) == 0, "%s", hz.out);
    dlx_test_cli_deinit(&hz);
    ck_assert_int_eq(kill(pub.pid, SIGINT), 0);
    dlx_test_cli_deinit(&pub);
    regfree(&whole);
}

TEST(pub_that_publishes_nothing_has_no_summary)
{
    const char *npy = dlx_test_npy("f4.npy");
    struct dlx_test_cli cli;
    dlx_test_cli_run_on_terminal(&cli, dlx_test_cli_daemon.path, 1,
                                 DLX_TEST_WORDS("pub", "a", "no/such"));
    ck_assert_str_eq(cli.err, "dlxctl pub: a: no/such: No such file or directory\r\n");
    dlx_test_cli_deinit(&cli);
    /* what came before a failure is told */
    dlx_test_cli_run_on_terminal(&cli, dlx_test_cli_daemon.path, 1,
                                 DLX_TEST_WORDS("pub", "a", npy, "no/such"));
    ck_assert_ptr_nonnull(strstr(cli.err, "no/such: No such file or directory\r\n"));
    ck_assert_ptr_nonnull(strstr(cli.err, "a: 1 message, 96 B in "));
    dlx_test_cli_deinit(&cli);
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

int main(void)
{
    TCase *tcase = dlx_test_cli_case("screen");
    tcase_add_checked_fixture(tcase, start, stop);
    return dlx_test_run_case(tcase);
}
