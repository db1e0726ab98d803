/* SPDX-License-Identifier: Apache-2.0 */

/* Names of topics: each rule, and whether the message tells which was broken where. */

#include "common/error.h"
#include "common/topic.h"
#include <check.h>
#include <stdio.h>
#include <string.h>

static const char *const good[] = {
    "a", "cam/front", "A/b/C/0/9", "_", "-", "...", "a.b", "..a", "a..", "x/.hidden", "a/b-c_d.e",
};

static const struct {
    const char *name, *word;
} bad[] = {
    {"", "empty"},           {"/", "empty segment"},     {"/a", "empty segment"},
    {"a/", "empty segment"}, {"a//b", "empty segment"},  {".", "\".\" or \"..\""},
    {"a/..", "\"..\""},      {"a/./b", "segment \".\""}, {"a b", "' ' at 1"},
    {"cam/*", "'*' at 4"},   {"a\nb", "byte 0x0a at 1"}, {"caf\xc3\xa9", "byte 0xc3 at 3"},
    {"a\\b", "'\\' at 1"},   {"a:b", "':' at 1"},        {"\x7f", "byte 0x7f at 0"},
};

START_TEST(names_that_keep_the_rules)
{
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        ck_assert_msg(dlx__topic_check(good[i]) == 0, "%s: %s", good[i], dlx__error_message());
}
END_TEST

START_TEST(names_that_break_a_rule)
{
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ck_assert_int_eq(dlx__topic_check(bad[i].name), DLX_E_TOPIC);
        ck_assert_msg(strstr(dlx__error_message(), bad[i].word) != NULL, "\"%s\" lacks \"%s\"",
                      dlx__error_message(), bad[i].word);
    }
    ck_assert_int_eq(dlx__topic_check(NULL), DLX_E_TOPIC);
}
END_TEST

START_TEST(every_byte_is_allowed_or_not)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
    for (int c = 1; c < 256; c++) {
        char name[] = {'x', (char)c, 'y', '\0'};
        bool expected = c == '/' || strchr(allowed, c);
        ck_assert_msg((dlx__topic_check(name) == 0) == expected, "byte %d", c);
    }
}
END_TEST

START_TEST(length_has_a_limit)
{
    char name[4096];
    memset(name, 'a', sizeof name);
    name[DLX_TOPIC_SIZE_MAX] = '\0';
    ck_assert_int_eq(dlx__topic_check(name), 0);
    name[DLX_TOPIC_SIZE_MAX] = 'a';
    name[DLX_TOPIC_SIZE_MAX + 1] = '\0';
    ck_assert_int_eq(dlx__topic_check(name), DLX_E_TOPIC);
    ck_assert_ptr_nonnull(strstr(dlx__error_message(), "longer than 255"));
    name[DLX_TOPIC_SIZE_MAX + 1] = 'a'; /* not terminated soon: not read beyond the limit */
    name[sizeof name - 1] = '\0';
    ck_assert_int_eq(dlx__topic_check(name), DLX_E_TOPIC);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("topic");
    TCase *tcase = tcase_create("topic");
    tcase_add_test(tcase, names_that_keep_the_rules);
    tcase_add_test(tcase, names_that_break_a_rule);
    tcase_add_test(tcase, every_byte_is_allowed_or_not);
    tcase_add_test(tcase, length_has_a_limit);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
