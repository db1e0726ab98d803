/* SPDX-License-Identifier: Apache-2.0 */
/* dlxctl and dlpackd as programs: what one dlxctl publishes, others print, save and measure. */
#include "tests/cli/harness_cli_case.h"
#include "tests/harness/run.h"
#include <check.h>
#include <dlx/dlx.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* -- .npy -------------------------------------------------------------------------------------- */

TEST(npy_files_come_back_byte_for_byte)
{
    static const char *const names[][2] = {
        {"f4.npy", "f4.npy"},         {"f4_fortran.npy", "f4.npy"}, {"bool.npy", "bool.npy"},
        {"scalar.npy", "scalar.npy"}, {"empty.npy", "empty.npy"},   {"f2.npy", "f2.npy"},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct dlx_test_cli pub, save;
        dlx_test_cli_start(&save, dlx_test_cli_daemon.path, -1,
                           DLX_TEST_WORDS("save", "a/b", dlx_test_cli_file("out.npy")));
        dlx_test_cli_run(&pub, dlx_test_cli_daemon.path, -1, 0,
                         DLX_TEST_WORDS("pub", "a/b", dlx_test_npy(names[i][0]), "--wait", "1"));
        dlx_test_cli_finish(&save, 0);
        dlx_test_cli_same(dlx_test_cli_file("out.npy"), dlx_test_npy(names[i][1]));
        ck_assert_str_eq(pub.out, "");
        ck_assert_str_eq(pub.err, ""); /* quiet, it is no terminal */
        ck_assert_str_eq(save.out, "");
        dlx_test_cli_deinit(&pub);
        dlx_test_cli_deinit(&save);
    }
}

TEST(late_subscribers_get_the_history)
{
    struct dlx_test_cli pub, echo;
    dlx_test_cli_start(&pub, dlx_test_cli_daemon.path, -1,
                       DLX_TEST_WORDS("pub", "a", dlx_test_npy("bool.npy"), dlx_test_npy("f2.npy"),
                                      "--history", "2", "--hold", "--json"));
    for (int i = 0; i < 2; i++) {
        dlx_test_cli_run(&echo, dlx_test_cli_daemon.path, -1, 0,
                         DLX_TEST_WORDS("echo", "a", "--history", "2", "--count", "2"));
        ck_assert_ptr_nonnull(strstr(echo.out, "bool (3,)  3 B  [false true true]\n"));
        ck_assert_ptr_nonnull(strstr(echo.out, "float16 (5,)  10 B  [0 1 2 3 4]\n"));
        ck_assert_ptr_nonnull(strstr(echo.out, "#1  "));
        dlx_test_cli_deinit(&echo);
    }
    ck_assert_int_eq(kill(pub.pid, SIGINT), 0);
    dlx_test_cli_finish(&pub, 0); /* that is how --hold ends */
    json_t *json = dlx_test_cli_json(&pub);
    ck_assert_int_eq(dlx_test_cli_integer(json, "published"), 2);
    ck_assert_int_eq(dlx_test_cli_integer(json, "published_bytes"), 13);
    ck_assert_int_eq(dlx_test_cli_integer(json, "copied_bytes"), 0);
    json_decref(json);
    dlx_test_cli_deinit(&pub);
}

TEST(several_messages_are_numbered_files)
{
    struct dlx_test_cli pub, save;
    size_t before = dlx_test_files_count(dlx_test_cli_files);
    dlx_test_cli_start(&save, dlx_test_cli_daemon.path, -1,
                       DLX_TEST_WORDS("save", "a", dlx_test_cli_file("x-%03d-{seq}.npy"), "--count",
                                      "3", "--json"));
    dlx_test_cli_run(&pub, dlx_test_cli_daemon.path, -1, 0,
                     DLX_TEST_WORDS("pub", "a", dlx_test_npy("f4.npy"), "--loop", "3", "--wait",
                                    "1", "--history", "8"));
    dlx_test_cli_finish(&save, 0);
    dlx_test_cli_same(dlx_test_cli_file("x-001-000001.npy"), dlx_test_npy("f4.npy"));
    dlx_test_cli_same(dlx_test_cli_file("x-003-000003.npy"), dlx_test_npy("f4.npy"));
    json_t *json = dlx_test_cli_json_line(&save, 1);
    ck_assert_str_eq(json_string_value(json_object_get(json, "file")),
                     dlx_test_cli_file("x-002-000002.npy"));
    ck_assert_int_eq(dlx_test_cli_integer(json, "seq"), 2);
    json_decref(json);
    ck_assert_uint_eq(dlx_test_files_count(dlx_test_cli_files) - before,
                      3); /* no temporary file is left */
    dlx_test_cli_deinit(&pub);
    dlx_test_cli_deinit(&save);
}

TEST(a_type_that_npy_cannot_name_survives_by_a_word)
{
    static const uint16_t values[] = {0x3f80, 0xc000, 0x0000, 0x7f80};
    struct dlx_test_cli pub, save, echo;
    int in = dlx_test_memfd(values, sizeof values);
    dlx_test_cli_start(&save, dlx_test_cli_daemon.path, -1,
                       DLX_TEST_WORDS("save", "a", dlx_test_cli_file("b.npy")));
    dlx_test_cli_run(
        &pub, dlx_test_cli_daemon.path, in, 0,
        DLX_TEST_WORDS("pub", "a", "-", "--dtype", "bfloat16", "--shape", "2,2", "--wait", "1"));
    (void)close(in);
    dlx_test_cli_finish(&save, 0);
    ck_assert_ptr_nonnull(
        strstr(save.err, "dlxctl save: a: .npy cannot name bfloat16: stored as '<u2'"));
    dlx_test_cli_deinit(&pub);
    dlx_test_cli_start(&echo, dlx_test_cli_daemon.path, -1,
                       DLX_TEST_WORDS("echo", "a", "--count", "1"));
    dlx_test_cli_run(&pub, dlx_test_cli_daemon.path, -1, 0,
                     DLX_TEST_WORDS("pub", "a", dlx_test_cli_file("b.npy"), "--dtype", "bfloat16",
                                    "--wait", "1"));
    dlx_test_cli_finish(&echo, 0);
    ck_assert_ptr_nonnull(strstr(echo.out, "bfloat16 (2, 2)  8 B  [1 -2 0 inf]\n"));
    dlx_test_cli_deinit(&echo);
    dlx_test_cli_deinit(&pub);
    dlx_test_cli_deinit(&save);
}

TEST(unknown_types_are_carried)
{
    struct dlx_test_cli pub, echo;
    int in = dlx_test_memfd("\x01\x02\x03\x04\x05\x06", 6);
    dlx_test_cli_start(&echo, dlx_test_cli_daemon.path, -1,
                       DLX_TEST_WORDS("echo", "a", "--count", "1"));
    dlx_test_cli_run(
        &pub, dlx_test_cli_daemon.path, in, 0,
        DLX_TEST_WORDS("pub", "a", "--dtype", "200:24:1", "--shape", "2", "--wait", "1"));
    dlx_test_cli_finish(&echo, 0);
    ck_assert_ptr_nonnull(strstr(echo.out, "200:24:1 (2,)  6 B  [0x010203 0x040506]\n"));
    (void)close(in);
    dlx_test_cli_deinit(&echo);
    dlx_test_cli_deinit(&pub);
}

TEST(one_dlxctl_feeds_another)
{
    struct dlx_test_cli pub, save, again, echo;
    dlx_test_cli_start(&save, dlx_test_cli_daemon.path, -1,
                       DLX_TEST_WORDS("save", "a", "-", "--count", "2"));
    dlx_test_cli_run(&pub, dlx_test_cli_daemon.path, -1, 0,
                     DLX_TEST_WORDS("pub", "a", dlx_test_npy("two.npy"), "--wait", "1"));
    dlx_test_cli_finish(&save, 0);
    int in = dlx_test_memfd(save.out, save.out_size);
    dlx_test_cli_start(&echo, dlx_test_cli_daemon.path, -1,
                       DLX_TEST_WORDS("echo", "b", "--count", "2"));
    dlx_test_cli_run(&again, dlx_test_cli_daemon.path, in, 0,
                     DLX_TEST_WORDS("pub", "b", "-", "--wait", "1"));
    dlx_test_cli_finish(&echo, 0);
    ck_assert_ptr_nonnull(strstr(echo.out, "uint16 (2,)  4 B  [0 1]\n"));
    ck_assert_ptr_nonnull(strstr(echo.out, "int64 (3,)  24 B  [0 1 2]\n"));
    (void)close(in);
    dlx_test_cli_deinit(&pub);
    dlx_test_cli_deinit(&save);
    dlx_test_cli_deinit(&again);
    dlx_test_cli_deinit(&echo);
}

/* -- video ------------------------------------------------------------------------------------- */

static bool have_ffmpeg(void)
{
    int status = system("command -v ffmpeg >/dev/null 2>&1"); /* NOLINT(cert-env33-c): a test */
    return status == 0;
}

/* The command line of the man page. */
TEST(video_of_ffmpeg_is_published)
{
    struct dlx_test_cli pub, echo;
    char command[400];
    if (!have_ffmpeg()) {
        puts("SKIP: no ffmpeg");
        return;
    }
    (void)snprintf(command, sizeof command,
                   "ffmpeg -v error -y -f lavfi -i color=red:size=64x48:rate=10:duration=0.3 "
                   "-f rawvideo -pix_fmt rgb24 %s </dev/null",
                   dlx_test_cli_file("video"));
    ck_assert_int_eq(system(command), 0); /* NOLINT(cert-env33-c): a test */
    int in = open(dlx_test_cli_file("video"), O_RDONLY | O_CLOEXEC);
    ck_assert_int_ge(in, 0);
    dlx_test_cli_start(&echo, dlx_test_cli_daemon.path, -1,
                       DLX_TEST_WORDS("echo", "v", "--count", "3", "--values", "4"));
    dlx_test_cli_run(&pub, dlx_test_cli_daemon.path, in, 0,
                     DLX_TEST_WORDS("pub", "v", "--dtype", "uint8", "--shape", "48,64,3", "--rate",
                                    "100", "--wait", "1", "-"));
    (void)close(in);
    dlx_test_cli_finish(&echo, 0);
    ck_assert_ptr_nonnull(strstr(echo.out, "\n#3  "));
    const char *values = strstr(echo.out, "uint8 (48, 64, 3)  9.00 KiB  [25");
    ck_assert_ptr_nonnull(values);
    ck_assert_msg(strstr(values, " 0 0 25"), "%s", values);
    dlx_test_cli_deinit(&pub);
    dlx_test_cli_deinit(&echo);
}

/* -- looking and measuring --------------------------------------------------------------------- */

TEST(ls_and_info_show_what_is_there)
{
    struct dlx_test_cli cli, pub, echo;
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0, DLX_TEST_WORDS("ls"));
    ck_assert_str_eq(cli.out, "");
    ck_assert_str_eq(cli.err, "dlxctl ls: no publishers\n");
    dlx_test_cli_deinit(&cli);
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0, DLX_TEST_WORDS("ls", "--json"));
    ck_assert_str_eq(cli.out, "[]\n");
    dlx_test_cli_deinit(&cli);

    dlx_test_cli_start(
        &pub, dlx_test_cli_daemon.path, -1,
        DLX_TEST_WORDS("pub", "cam/front", dlx_test_npy("f4.npy"), "--hold", "--wait", "1"));
    dlx_test_cli_start(&echo, dlx_test_cli_daemon.path, -1, DLX_TEST_WORDS("echo", "cam/front"));
    dlx_test_cli_wait_lines(&echo, 1);

    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0, DLX_TEST_WORDS("ls"));
    ck_assert_ptr_nonnull(strstr(cli.out, "TOPIC"));
    ck_assert_ptr_nonnull(strstr(cli.out, "cam/front"));
    dlx_test_cli_deinit(&cli);
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0,
                     DLX_TEST_WORDS("--json", "ls", "cam/front"));
    json_t *list = dlx_test_cli_json(&cli), *first = json_array_get(list, 0);
    ck_assert_uint_eq(json_array_size(list), 1);
    ck_assert_int_eq(dlx_test_cli_integer(first, "pid"), pub.pid);
    ck_assert_int_eq(dlx_test_cli_integer(first, "published"), 1);
    ck_assert_int_eq(dlx_test_cli_integer(first, "published_bytes"), 96);
    ck_assert_int_eq(dlx_test_cli_integer(first, "n_subscribers"), 1);
    if (!dlx_test_valgrind()) /* which is the program that runs then */
        ck_assert_str_eq(json_string_value(json_object_get(first, "client_name")), "dlxctl");
    json_decref(list);
    dlx_test_cli_deinit(&cli);

    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0,
                     DLX_TEST_WORDS("info", "cam/front", "--newest", "--json"));
    json_t *info = dlx_test_cli_json(&cli);
    json_t *publisher = json_array_get(json_object_get(info, "publishers"), 0);
    json_t *link = json_array_get(json_object_get(publisher, "links"), 0);
    ck_assert_int_eq(dlx_test_cli_integer(link, "pid"), echo.pid);
    ck_assert_int_eq(dlx_test_cli_integer(link, "taken"), 1);
    ck_assert_int_eq(dlx_test_cli_integer(json_object_get(publisher, "newest"), "seq"), 1);
    json_decref(info);
    dlx_test_cli_deinit(&cli);
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0,
                     DLX_TEST_WORDS("info", "cam/front", "--newest"));
    ck_assert_ptr_nonnull(strstr(cli.out, "float32 (2, 3, 4)  96 B\n"));
    dlx_test_cli_deinit(&cli);

    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0, DLX_TEST_WORDS("info", "--json"));
    info = dlx_test_cli_json(&cli);
    ck_assert_int_eq(dlx_test_cli_integer(info, "pid"), dlx_test_cli_daemon.pid);
    ck_assert_int_eq(dlx_test_cli_integer(info, "n_publishers"), 1);
    ck_assert_str_eq(json_string_value(json_object_get(info, "socket")), dlx_test_cli_daemon.path);
    ck_assert_str_eq(json_string_value(json_object_get(info, "place")), "named");
    ck_assert_str_eq(json_string_value(json_object_get(info, "passed_over")), "");
    json_decref(info);
    dlx_test_cli_deinit(&cli);
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0, DLX_TEST_WORDS("info"));
    ck_assert_ptr_nonnull(strstr(cli.out, "daemon "));
    ck_assert_ptr_nonnull(strstr(cli.out, "found          by --socket or DLX_SOCKET\n"));
    dlx_test_cli_deinit(&cli);

    ck_assert_int_eq(kill(echo.pid, SIGINT), 0);
    dlx_test_cli_finish(&echo, 0);
    ck_assert_int_eq(kill(pub.pid, SIGTERM), 0);
    dlx_test_cli_finish(&pub, 0);
    dlx_test_cli_deinit(&echo);
    dlx_test_cli_deinit(&pub);
}

TEST(hz_measures)
{
    struct dlx_test_cli hz, pub;
    dlx_test_cli_start(&hz, dlx_test_cli_daemon.path, -1,
                       DLX_TEST_WORDS("hz", "a", "--count", "20", "--json"));
    dlx_test_cli_run(&pub, dlx_test_cli_daemon.path, -1, 0,
                     DLX_TEST_WORDS("pub", "a", dlx_test_npy("f4.npy"), "--loop", "20", "--rate",
                                    "200", "--wait", "1"));
    dlx_test_cli_finish(&hz, 0);
    json_t *json = dlx_test_cli_json(&hz), *rate = json_object_get(json, "rate");
    ck_assert_int_eq(dlx_test_cli_integer(json, "messages"), 20);
    ck_assert_int_eq(dlx_test_cli_integer(json, "lost"), 0);
    double mean = json_real_value(json_object_get(rate, "mean_hz"));
    ck_assert_msg(mean > 1 && mean < 2000, "%g", mean); /* a loaded machine is slow, never fast */
    ck_assert_int_ge(dlx_test_cli_integer(json_object_get(json, "age"), "p50_ns"), 0);
    json_decref(json);
    dlx_test_cli_deinit(&hz);
    dlx_test_cli_deinit(&pub);
}

TEST(a_reliable_subscriber_gets_everything)
{
    enum { N = 200 }; /* what echo prints fits into its pipe: nobody reads it until pub has ended */
    struct dlx_test_cli echo, pub;
    dlx_test_cli_start(&echo, dlx_test_cli_daemon.path, -1,
                       DLX_TEST_WORDS("echo", "a", "--reliable", "--count", "200", "--json"));
    dlx_test_cli_run(&pub, dlx_test_cli_daemon.path, -1, 0,
                     DLX_TEST_WORDS("pub", "a", dlx_test_npy("f4.npy"), "--block", "--loop", "200",
                                    "--wait", "1"));
    dlx_test_cli_finish(&echo, 0);
    const char *line = echo.out;
    for (int i = 1; i <= N; i++) {
        char seq[32];
        (void)snprintf(seq, sizeof seq, "\"seq\":%d,", i);
        const char *end = strchr(line, '\n');
        ck_assert_ptr_nonnull(end);
        ck_assert_ptr_nonnull(memmem(line, (size_t)(end - line), seq, strlen(seq)));
        line = end + 1;
    }
    dlx_test_cli_deinit(&echo);
    dlx_test_cli_deinit(&pub);
}

/* A set of `n` scalars named t0, t1, ... The names are a stranger's: they may hold an escape
 * sequence. */
static struct dlx_publisher *publish_set(struct dlx_client *c, uint32_t n)
{
    struct dlx_item items[32];
    char names[32][16];
    struct dlx_bytes meta = {.data = "{}", .size = 2};
    struct dlx_publisher *p = NULL;
    struct dlx_tensor_spec spec = {.size = sizeof spec, .dtype = {kDLFloat, 32, 1}};
    ck_assert_int_eq(dlx_publisher_new(c, "w", NULL, &p), 0);
    for (uint32_t i = 0; i < n; i++) {
        (void)snprintf(names[i], sizeof names[i], "t%u%s", i, i == 1 ? "\x1b[2J" : "");
        items[i].name = names[i];
        ck_assert_int_eq(dlx_alloc(p, &spec, &items[i].tensor), 0);
        *(float *)items[i].tensor->dl_tensor.data = (float)i;
    }
    ck_assert_int_eq(dlx_publish_set(p, items, n, &meta, NULL), 0);
    return p;
}

TEST(sets_are_shown_with_names_and_not_without_end)
{
    struct dlx_connect_args args = {.size = sizeof args, .socket = dlx_test_cli_daemon.path};
    struct dlx_client *c = NULL;
    struct dlx_test_cli cli;
    ck_assert_int_eq(dlx_connect(&c, &args), 0);
    struct dlx_publisher *p = publish_set(c, 20);
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0,
                     DLX_TEST_WORDS("echo", "w", "--history", "1", "--count", "1"));
    ck_assert_ptr_nonnull(strstr(cli.out, "  20 tensors, 80 B, 2 B of metadata\n"));
    ck_assert_ptr_nonnull(
        strstr(cli.out, "\n    t15  float32 ()  4 B  [15]\n    ... and 4 more\n"));
    ck_assert_ptr_null(strchr(cli.out, '\x1b'));
    dlx_test_cli_deinit(&cli);
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0,
                     DLX_TEST_WORDS("info", "w", "--newest"));
    ck_assert_ptr_nonnull(strstr(cli.out, " t15  float32 ()  4 B\n"));
    ck_assert_ptr_nonnull(strstr(cli.out, "... and 4 more\n"));
    ck_assert_ptr_null(strchr(cli.out, '\x1b'));
    dlx_test_cli_deinit(&cli);
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0,
                     DLX_TEST_WORDS("echo", "w", "--history", "1", "--count", "1", "--json"));
    ck_assert_ptr_nonnull(strstr(cli.out, "\"name\":\"t19\""));
    ck_assert_ptr_nonnull(strstr(cli.out, "\"meta_bytes\":2,"));
    dlx_test_cli_deinit(&cli);
    dlx_publisher_unref(p);
    dlx_client_unref(c);
}

int main(void)
{
    return dlx_test_run_case(dlx_test_cli_case("dlxctl"));
}
