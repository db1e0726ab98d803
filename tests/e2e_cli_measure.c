/* SPDX-License-Identifier: Apache-2.0 */
/* dlxctl bw. */
#include "tests/harness_cli.h"
#include "tests/harness_daemon.h"
#include <check.h>
#include <dlx/dlx.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct dlx_test_daemon daemon_;
static void make_dir(void)
{
    dlx_test_dir_make(&daemon_);
}

static void remove_dir(void)
{
    dlx_test_dir_remove(&daemon_);
}

static void start(void)
{
    dlx_test_daemon_start(&daemon_, NULL);
}

static void stop(void)
{
    ck_assert_int_eq(dlx_test_daemon_stop(&daemon_), 0);
}

static void finish(struct dlx_test_cli *cli, int status)
{
    dlx_test_cli_wait(cli);
    ck_assert_msg(cli->status == status, "status %d; printed: %.2000s; said: %.2000s", cli->status,
                  cli->out, cli->err);
}

static json_int_t integer(const json_t *json, const char *key)
{
    json_t *value = json_object_get(json, key);
    ck_assert_msg(json_is_integer(value), "%s is no integer", key);
    return json_integer_value(value);
}

/* -- bw --------------------------------------------------------------------------------------------------- */

/* What bw says of 6 messages: f4.npy (96 bytes) and two.npy, which holds two arrays (4 and 24 bytes), twice. */
static void run_bw(struct dlx_test_cli *bw, const char *option, const char *value)
{
    struct dlx_test_cli pub;
    dlx_test_cli_start(bw, daemon_.path, -1,
                       DLX_TEST_WORDS("bw", "a", "--count", "6", "--reliable", option, value));
    dlx_test_cli_run(&pub, daemon_.path, -1, 0,
                     DLX_TEST_WORDS("pub", "a", dlx_test_npy("f4.npy"), dlx_test_npy("two.npy"),
                                    "--loop", "2", "--wait", "1", "--block", "--rate", "200"));
    finish(bw, 0);
    dlx_test_cli_deinit(&pub);
}

START_TEST(bw_measures)
{
    struct dlx_test_cli bw;
    run_bw(&bw, "--json", NULL);
    json_t *json = dlx_test_cli_json(&bw), *rate = json_object_get(json, "rate");
    json_t *size = json_object_get(json, "size");
    ck_assert_int_eq(integer(json, "messages"), 6);
    ck_assert_int_eq(integer(json, "bytes"), 248);
    ck_assert_int_eq(integer(json, "lost"), 0);
    ck_assert_int_eq(integer(json, "skipped"), 0);
    ck_assert_int_eq(integer(json, "window"), 6);
    ck_assert_int_eq(integer(size, "min_bytes"), 4);
    ck_assert_int_eq(integer(size, "max_bytes"), 96);
    double mean = json_real_value(json_object_get(size, "mean_bytes"));
    ck_assert_msg(mean > 41.3 && mean < 41.4, "%g", mean);
    double hz = json_real_value(json_object_get(rate, "mean_hz"));
    double bytes = json_real_value(json_object_get(rate, "bytes_per_s"));
    ck_assert_msg(hz > 0 && hz < 2000, "%g", hz); /* a loaded machine is slow, never fast */
    ck_assert_msg(bytes > hz * 30.3 && bytes < hz * 30.5, "%g at %g", bytes,
                  hz); /* 152 bytes in 5 intervals */
    json_decref(json);
    dlx_test_cli_deinit(&bw);
}
END_TEST

START_TEST(bw_says_what_it_measured)
{
    struct dlx_test_cli bw;
    run_bw(&bw, "--window", "2");
    ck_assert_ptr_nonnull(strstr(bw.out, "a: 6 messages, 248 B in "));
    ck_assert_ptr_nonnull(strstr(bw.out, ", 0 lost, 0 skipped\n  data  "));
    ck_assert_ptr_nonnull(strstr(bw.out, " messages/s\n  size  mean 14 B  min 4 B  max 24 B\n"));
    ck_assert_ptr_nonnull(strstr(bw.out, "  (data and size: the last 2 messages)\n"));
    dlx_test_cli_deinit(&bw);
}
END_TEST

START_TEST(bw_and_hz_fail_without_messages)
{
    static const char *const commands[] = {"bw", "hz"};
    for (size_t i = 0; i < 2; i++) {
        struct dlx_test_cli cli;
        dlx_test_cli_run(&cli, daemon_.path, -1, 1,
                         DLX_TEST_WORDS(commands[i], "a", "--timeout", "0.05"));
        ck_assert_ptr_nonnull(strstr(cli.err, ": a: no message within 50.0 ms"));
        ck_assert_str_eq(cli.out, "");
        dlx_test_cli_deinit(&cli);
        dlx_test_cli_run(&cli, daemon_.path, -1, 2, DLX_TEST_WORDS(commands[i]));
        ck_assert_ptr_nonnull(strstr(cli.err, "a topic is missing"));
        dlx_test_cli_deinit(&cli);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("e2e_cli_measure");
    TCase *tcase = tcase_create("dlxctl");
    tcase_set_timeout(tcase, 120);
    tcase_add_unchecked_fixture(tcase, make_dir, remove_dir);
    tcase_add_checked_fixture(tcase, start, stop);
    tcase_add_test(tcase, bw_measures);
    tcase_add_test(tcase, bw_says_what_it_measured);
    tcase_add_test(tcase, bw_and_hz_fail_without_messages);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
