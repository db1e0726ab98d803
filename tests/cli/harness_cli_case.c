/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cli/harness_cli_case.h"
#include <regex.h>

TCase *dlx_test_cli_case(const char *name)
{
    TCase *tcase = dlx_test_stream_case(name);
    tcase_set_timeout(tcase, 120);
    dlx_test_files_fixture(tcase);
    return tcase;
}

struct dlx_client *dlx_test_cli_connect(const char *name)
{
    const struct dlx_connect_args args = {
        .size = sizeof args, .socket = dlx_test_stream_daemon.path, .name = name};
    struct dlx_client *c = NULL;
    ok(dlx_connect(&args, &c));
    return c;
}

struct dlx_test_cli dlx_test_cli_started(const char *const *words)
{
    struct dlx_test_cli cli;
    dlx_test_cli_start(&cli, dlx_test_stream_daemon.path, -1, words);
    return cli;
}

struct dlx_test_cli dlx_test_cli_ended(int status, const char *const *words)
{
    struct dlx_test_cli cli;
    dlx_test_cli_run(&cli, dlx_test_stream_daemon.path, -1, status, words);
    return cli;
}

/* Replace each match of `pattern`. The caller frees. */
static char *replace_all(char *take_text, const char *pattern, const char *by)
{
    regex_t regex;
    regmatch_t match;
    char *out = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&out, &size);
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(regcomp(&regex, pattern, REG_EXTENDED), 0);
    const char *p = take_text;
    for (; regexec(&regex, p, 1, &match, 0) == 0; p += match.rm_eo)
        (void)fprintf(file, "%.*s%s", (int)match.rm_so, p, by);
    (void)fputs(p, file);
    ck_assert_int_eq(fclose(file), 0);
    regfree(&regex);
    free(take_text);
    return out;
}

void dlx_test_cli_golden(const struct dlx_test_cli *cli, const char *name)
{
    char path[300], pid[32];
    size_t size = 0;
    (void)snprintf(path, sizeof path, "cli/%s", name);
    (void)snprintf(pid, sizeof pid, "\\b%d\\b", (int)getpid());
    char *text = replace_all(strdup(cli->out), pid, "PID");
    text = replace_all(text, "uid [0-9]+", "uid UID");
    text = replace_all(text, "[0-9]{7,}", "N");
    text = replace_all(text, "\\b[0-9][0-9.]* (ns|us|ms|s)\\b", "TIME");
    text = replace_all(text, "   +", "  ");
    const char *mode = getenv("DLX_GOLDEN");
    if (mode && strcmp(mode, "write") == 0) {
        FILE *file = fopen(dlx_test_data(path), "we");
        ck_assert_ptr_nonnull(file);
        (void)fputs(text, file);
        ck_assert_int_eq(fclose(file), 0);
    }
    char *expected = dlx_test_read_file(dlx_test_data(path), &size);
    ck_assert_msg(strcmp(text, expected) == 0, "%s should be\n%s\nand is\n%s", name, expected,
                  text);
    free(expected);
    free(text);
}

json_int_t dlx_test_cli_integer(const json_t *json, const char *key)
{
    json_t *value = json_object_get(json, key);
    ck_assert_msg(json_is_integer(value), "%s is no integer", key);
    return json_integer_value(value);
}
