/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cli/harness_cli_case.h"
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct dlx_test_daemon dlx_test_cli_daemon;
char dlx_test_cli_files[256];

static void make_dirs(void)
{
    dlx_test_dir_make(&dlx_test_cli_daemon);
    dlx_test_files_make(dlx_test_cli_files);
}

static void remove_dirs(void)
{
    dlx_test_files_remove(dlx_test_cli_files);
    dlx_test_dir_remove(&dlx_test_cli_daemon);
}

static void start(void)
{
    dlx_test_daemon_start(&dlx_test_cli_daemon, NULL);
}

static void stop(void)
{
    ck_assert_int_eq(dlx_test_daemon_stop(&dlx_test_cli_daemon), 0);
}

TCase *dlx_test_cli_case(const char *name)
{
    TCase *tcase = tcase_create(name);
    tcase_set_timeout(tcase, 120);
    tcase_add_unchecked_fixture(tcase, make_dirs, remove_dirs);
    tcase_add_checked_fixture(tcase, start, stop);
    return tcase;
}

const char *dlx_test_cli_file(const char *name)
{
    static char paths[4][512];
    static unsigned next;
    char *path = paths[next++ % 4];
    (void)snprintf(path, sizeof paths[0], "%s/%s", dlx_test_cli_files, name);
    return path;
}

void dlx_test_cli_finish(struct dlx_test_cli *cli, int status)
{
    dlx_test_cli_wait(cli);
    ck_assert_msg(cli->status == status, "status %d; printed: %.2000s; said: %.2000s", cli->status,
                  cli->out, cli->err);
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
