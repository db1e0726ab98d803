/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/upgrade.h"
#include "tests/harness/daemon_log.h"
#include <sys/sendfile.h>

char dlx_test_upgrade_program[256];
char dlx_test_upgrade_config[256];
static char option[300];

static void name_new(char name[300], const char *path)
{
    (void)snprintf(name, 300, "%s.new", path);
}

void dlx_test_upgrade_put(size_t size, unsigned mode)
{
    char from[512], new[300];
    struct stat st;
    const char *build = getenv("BUILD");
    (void)snprintf(from, sizeof from, "%s/dlpackd", build ? build : "build");
    name_new(new, dlx_test_upgrade_program);
    dlx_cleanup(dlx__closep) int source = open(from, O_RDONLY | O_CLOEXEC);
    int target = open(new, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ck_assert(source >= 0 && target >= 0 && fstat(source, &st) == 0);
    size_t left = size ? size : (size_t)st.st_size;
    while (left > 0) {
        ssize_t n = sendfile(target, source, NULL, left);
        ck_assert_int_gt(n, 0);
        left -= (size_t)n;
    }
    ck_assert_int_eq(fchmod(target, mode), 0);
    close(target);
    ck_assert_int_eq(rename(new, dlx_test_upgrade_program), 0);
}

void dlx_test_upgrade_write(const char *path, const char *text)
{
    char new[300];
    name_new(new, path);
    int fd = open(new, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    ck_assert_int_eq(rename(new, path), 0);
}

static void make_files(void)
{
    struct dlx_test_daemon *daemon = &dlx_test_stream_daemon;
    (void)snprintf(dlx_test_upgrade_program, sizeof dlx_test_upgrade_program, "%.199s/d",
                   daemon->dir);
    (void)snprintf(dlx_test_upgrade_config, sizeof dlx_test_upgrade_config, "%.199s/c",
                   daemon->dir);
    (void)snprintf(option, sizeof option, "--config=%s", dlx_test_upgrade_config);
    daemon->program = dlx_test_upgrade_program;
    daemon->option[0] = option;
}

/* Each test begins with the program, and an empty configuration. */
static void put_files(void)
{
    dlx_test_upgrade_put(0, 0755);
    dlx_test_upgrade_write(dlx_test_upgrade_config, "");
}

static void remove_files(void)
{
    (void)unlink(dlx_test_upgrade_program);
    (void)unlink(dlx_test_upgrade_config);
}

TCase *dlx_test_upgrade_case(const char *name)
{
    TCase *tcase = tcase_create(name);
    tcase_set_timeout(tcase, 5 * PATIENCE_S);
    dlx_test_dir_fixture(tcase, &dlx_test_stream_daemon);
    tcase_add_unchecked_fixture(tcase, make_files, remove_files);
    tcase_add_checked_fixture(tcase, put_files, NULL);
    dlx_test_stream_add_daemon(tcase);
    return tcase;
}

void dlx_test_upgrade_await(const char *words)
{
    dlx_test_daemon_await(&dlx_test_stream_daemon, words);
}

void dlx_test_upgrade_signal(int signum)
{
    ck_assert_int_eq(kill(dlx_test_stream_daemon.pid, signum), 0);
}

void dlx_test_upgrade(void)
{
    dlx_test_upgrade_signal(SIGUSR2);
    dlx_test_upgrade_await("listening on ");
}

void dlx_test_upgrade_to_new(void)
{
    dlx_test_upgrade_put(0, 0755);
    dlx_test_upgrade_signal(SIGHUP);
    dlx_test_upgrade_await("listening on ");
}
