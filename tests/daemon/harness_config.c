/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/daemon/harness_config.h"
#include "tests/harness/upgrade.h"

char dlx_configured_path[300];
void (*dlx_configured_pass)(void);

static struct dlx_test_daemon *const served = &dlx_test_stream_daemon;
static char log_text[8192];

static void set_up(void)
{
    (void)snprintf(dlx_configured_path, sizeof dlx_configured_path, "%s/dlpackd.conf", served->dir);
}

static void tear_down(void)
{
    (void)unlink(dlx_configured_path);
}

void dlx_configured_fixture(TCase *tcase)
{
    tcase_add_checked_fixture(tcase, set_up, tear_down);
}

void dlx_configured_write(const char *text)
{
    dlx_test_upgrade_write(dlx_configured_path, text);
}

void dlx_configured_exec(void *userdata)
{
    (void)userdata;
    if (dlx_configured_pass)
        dlx_configured_pass();
    dlx_test_daemon_exec(served, DLX_TEST_WORDS("--config", dlx_configured_path));
}

void dlx_configured_start(const char *text)
{
    dlx_configured_write(text);
    if (served->pid > 0)
        ck_assert_int_eq(dlx_test_daemon_stop(served), 0);
    dlx_test_daemon_start_prepared(served, dlx_configured_exec, NULL);
    log_text[0] = '\0';
}

const char *dlx_configured_log(const char *words)
{
    size_t n = strlen(log_text);
    while (!strstr(log_text, words)) {
        struct pollfd p = {.fd = served->log_fd, .events = POLLIN};
        ck_assert_msg(poll(&p, 1, PATIENCE_MS) == 1, "never said '%s': %s", words, log_text);
        ssize_t got = read(p.fd, log_text + n, sizeof log_text - 1 - n);
        ck_assert_int_gt(got, 0);
        n += (size_t)got;
        log_text[n] = '\0';
    }
    return log_text;
}

void dlx_configured_reload(const char *text, const char *words)
{
    dlx_configured_write(text);
    ck_assert_int_eq(kill(served->pid, SIGHUP), 0);
    (void)dlx_configured_log(words);
}

int dlx_configured_connect(const char *path, struct dlx_client **ret)
{
    const struct dlx_connect_args args = {
        .size = sizeof args, .socket = path, .timeout_ns = PATIENCE};
    return dlx_connect(&args, ret);
}
