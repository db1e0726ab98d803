/* SPDX-License-Identifier: Apache-2.0 */

/* Signals that come while a file is written: nothing stays of it, whatever ends the program. */

#include "cli/save_file.h"
#include "cli/wait.h"
#include "common/util.h"
#include "tests/harness_cli.h"
#include "tests/harness_fork.h"
#include "tests/harness_run.h"
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[256];
static char path[512];

static void make(void)
{
    dlx_test_files_make(folder);
    (void)snprintf(path, sizeof path, "%s/x.npy", folder);
}

static void clean(void)
{
    dlx_test_files_remove(folder);
}

/* What a test left that failed is no concern of the next one. */
static void empty(void)
{
    clean();
    ck_assert_int_eq(mkdir(folder, 0700), 0);
}

static const int signals[] = {SIGHUP, SIGINT, SIGQUIT, SIGALRM, SIGUSR1, SIGUSR2, SIGTERM, SIGXCPU};

/* The signal comes between two parts of the content. */
static int write_and_raise(int fd, const void *content)
{
    int code = save_bytes(fd, "some", 4);
    (void)raise(*(const int *)content);
    return code < 0 ? code : save_bytes(fd, " bytes", 6);
}

enum disposition { DEFAULT, CAUGHT, IGNORED };

/* Save in a child, where the signal comes; it exits with -1 times what save_file() returned. */
static int save_in_child(const int *number, enum disposition disposition)
{
    int status = 0;
    pid_t pid = dlx_test_fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        struct cli_error e = {{0}};
        (void)prctl(PR_SET_DUMPABLE, 0); /* no core */
        for (size_t i = 0; i < DLX_ARRAY_SIZE(signals); i++)
            (void)signal(signals[i], disposition == IGNORED ? SIG_IGN : SIG_DFL);
        if (disposition == CAUGHT)
            wait_catch_signals();
        _exit(-save_file(path, write_and_raise, number, &e));
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return status;
}

START_TEST(a_signal_that_ends_the_program_leaves_no_file)
{
    int status = save_in_child(&signals[_i], DEFAULT);
    ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == signals[_i], "status %d", status);
    ck_assert_uint_eq(dlx_test_files_count(folder), 0);
}
END_TEST

START_TEST(a_signal_that_ends_the_program_leaves_a_file_as_it_was)
{
    FILE *file = fopen(path, "we");
    ck_assert_ptr_nonnull(file);
    (void)fputs("before", file);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert(WIFSIGNALED(save_in_child(&signals[_i], DEFAULT)));
    size_t size = 0;
    char *data = dlx_test_read_file(path, &size);
    ck_assert_str_eq(data, "before");
    ck_assert_uint_eq(dlx_test_files_count(folder), 1);
    free(data);
}
END_TEST

START_TEST(a_signal_that_is_caught_is_told_and_leaves_no_file)
{
    const int number = _i ? SIGINT : SIGTERM;
    int status = save_in_child(&number, CAUGHT);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == -DLX_E_INTERRUPTED, "status %d",
                  status);
    ck_assert_uint_eq(dlx_test_files_count(folder), 0);
}
END_TEST

START_TEST(a_signal_that_is_ignored_changes_nothing)
{
    int status = save_in_child(&signals[_i], IGNORED);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %d", status);
    size_t size = 0;
    char *data = dlx_test_read_file(path, &size);
    ck_assert_str_eq(data, "some bytes");
    ck_assert_uint_eq(dlx_test_files_count(folder), 1);
    free(data);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cli_save_file");
    TCase *tcase = tcase_create("signals");
    tcase_add_unchecked_fixture(tcase, make, clean);
    tcase_add_checked_fixture(tcase, empty, NULL);
    int n = (int)DLX_ARRAY_SIZE(signals);
    tcase_add_loop_test(tcase, a_signal_that_ends_the_program_leaves_no_file, 0, n);
    tcase_add_loop_test(tcase, a_signal_that_ends_the_program_leaves_a_file_as_it_was, 0, n);
    tcase_add_loop_test(tcase, a_signal_that_is_caught_is_told_and_leaves_no_file, 0, 2);
    tcase_add_loop_test(tcase, a_signal_that_is_ignored_changes_nothing, 0, n);
    suite_add_tcase(suite, tcase);
    return dlx_test_run(suite);
}
