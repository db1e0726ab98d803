/* SPDX-License-Identifier: Apache-2.0 */
/* dlxctl quota: a table for people, JSON for programs. */
#include "tests/cli/harness_cli_case.h"
#include "tests/harness/run.h"
#include <check.h>
#include <dlx/dlx.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct dlx_client *c;
static struct dlx_publisher *p;

static void start(void)
{
    struct dlx_connect_args args = {.size = sizeof args, .socket = dlx_test_cli_daemon.path};
    ck_assert_int_eq(dlx_connect(&c, &args), 0);
    ck_assert_int_eq(dlx_publisher_new(c, "a", NULL, &p), 0);
}

static void stop(void)
{
    p = dlx_publisher_unref(p);
    c = dlx_client_unref(c);
}

/* The words of a line, with one space in between. */
static void squeeze(char *line)
{
    char *to = line;
    for (const char *from = line; *from; from++)
        if (*from != ' ' || (to > line && to[-1] != ' '))
            *to++ = *from;
    while (to > line && to[-1] == ' ')
        to--;
    *to = '\0';
}

/* The publisher's program, and dlxctl itself. What depends on the machine is not compared. */
TEST(the_table_has_a_line_for_each_quota)
{
    static const char *const lines[] = {
        "retained-bytes 0 B -", "store-entries 0 -", "connections 2 4096", "requests-per-second",
        "objects 1 65536",      "links 0 65536",     "patterns 0 1024",    "pending-links 0 2048",
        "failed-links 0 16384", "gpu-calls 0 1024"};
    struct dlx_test_cli cli;
    char *rest = NULL, begin[64];
    size_t n = 0, n_lines = 0;
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0, DLX_TEST_WORDS("quota"));
    (void)snprintf(begin, sizeof begin, "%u dlpackd default ", (unsigned)geteuid());
    for (char *line = strtok_r(cli.out, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        squeeze(line);
        if (n_lines++ == 0) {
            ck_assert_str_eq(line, "UID SOCKET CLASS QUOTA USED MAX");
            continue;
        }
        ck_assert_msg(strncmp(line, begin, strlen(begin)) == 0, "%s", line);
        if (n_lines == 2)
            ck_assert_msg(strncmp(line + strlen(begin), "bytes ", 6) == 0 && strstr(line, "iB"),
                          "%s", line);
        else if (n < sizeof lines / sizeof lines[0] && strchr(lines[n], ' '))
            ck_assert_str_eq(line + strlen(begin), lines[n++]);
        else if (n < sizeof lines / sizeof lines[0]) /* how many depends on the time */
            ck_assert_ptr_eq(strstr(line + strlen(begin), lines[n++]), line + strlen(begin));
    }
    ck_assert_uint_eq(n_lines, 14);
    dlx_test_cli_deinit(&cli);
}

TEST(json_has_an_object_for_each_user)
{
    struct dlx_test_cli cli;
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0, DLX_TEST_WORDS("quota", "--json"));
    json_t *json = dlx_test_cli_json(&cli), *user = json_array_get(json, 0);
    json_t *quotas = json_object_get(user, "quotas");
    ck_assert_uint_eq(json_array_size(json), 1);
    ck_assert_int_eq(dlx_test_cli_integer(user, "uid"), (json_int_t)geteuid());
    ck_assert_str_eq(json_string_value(json_object_get(user, "socket")), "dlpackd");
    ck_assert_str_eq(json_string_value(json_object_get(user, "class")), "default");
    ck_assert_uint_eq(json_object_size(quotas), 13);
    json_t *requests = json_object_get(quotas, "requests-per-second");
    ck_assert_int_ge(dlx_test_cli_integer(requests, "used"), 1); /* this one */
    ck_assert(json_is_null(json_object_get(requests, "max")));
    json_t *objects = json_object_get(quotas, "objects"), *bytes = json_object_get(quotas, "bytes");
    ck_assert_int_eq(dlx_test_cli_integer(objects, "used"), 1);
    ck_assert_int_eq(dlx_test_cli_integer(objects, "max"), 65536);
    ck_assert_int_gt(dlx_test_cli_integer(bytes, "used"), 0);
    ck_assert_int_gt(dlx_test_cli_integer(bytes, "max"), dlx_test_cli_integer(bytes, "used"));
    json_decref(json);
    dlx_test_cli_deinit(&cli);
}

TEST(an_argument_is_wrong_usage)
{
    struct dlx_test_cli cli;
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 2, DLX_TEST_WORDS("quota", "a"));
    ck_assert_msg(strstr(cli.err, "extra argument 'a'"), "%s", cli.err);
    dlx_test_cli_deinit(&cli);
}

int main(void)
{
    TCase *tcase = dlx_test_cli_case("cli_quota");
    tcase_add_checked_fixture(tcase, start, stop);
    return dlx_test_run_case(tcase);
}
