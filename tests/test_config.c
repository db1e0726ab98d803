/* SPDX-License-Identifier: Apache-2.0 */
/* dlpackd.conf: what is read, what is refused and with which words, and which rule decides. */
#include "common/error.h"
#include "common/memory.h"
#include "daemon/server/config.h"
#include "tests/harness_daemon.h"
#include "tests/harness_run.h"
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct dlx_test_daemon place; /* its folder */
static struct dlxd_config config;
static char path[300];

static void write_file(const char *name, const char *text)
{
    (void)snprintf(path, sizeof path, "%s/%s", place.dir, name);
    FILE *f = fopen(path, "we");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_ge(fputs(text, f), 0);
    ck_assert_int_eq(fclose(f), 0);
}

static int read_text(const char *text)
{
    write_file("dlpackd.conf", text);
    return dlxd_config_read(&config, path);
}

static bool may(uid_t uid, gid_t gid, enum dlxd_verb verb, const char *topic)
{
    const struct dlxd_principal who = {.uid = uid, .gid = gid};
    const struct dlxd_rule *rule = dlxd_rules_find(&config.rules, &who, verb, topic);
    return rule && rule->allow & DLXD_VERB(verb);
}

START_TEST(settings_and_rules_are_read)
{
    ck_assert_int_eq(read_text("# a comment\n"
                               "[daemon]\n"
                               "socket = /run/dlpackd/dlpackd.sock\n"
                               "memory = posix\n"
                               "fd-store = 1000\n"
                               "\n"
                               "[rule cameras]\n"
                               "users = root, 64001 64002\n"
                               "groups = 7\n"
                               "topics = cam/*\n"
                               "    depth/**\n" /* goes on */
                               "allow = publish subscribe\n"
                               "deny = drop\n"),
                     0);
    ck_assert_str_eq(config.socket, "/run/dlpackd/dlpackd.sock");
    ck_assert_ptr_eq(config.memory, &dlx__memory_posix);
    ck_assert_int_eq(config.fd_store, 1000);
    ck_assert_uint_eq(config.rules.n, 1);
    ck_assert_uint_eq(config.rules.items[0].n_uids, 3);
    ck_assert_uint_eq(config.rules.items[0].n_topics, 2);
    ck_assert(strstr(config.rules.items[0].place, "dlpackd.conf:8"));
    ck_assert(may(64001, 1, DLXD_MAY_PUBLISH, "cam/a"));
    ck_assert(may(64001, 1, DLXD_MAY_PUBLISH, "depth/a/b"));
    ck_assert(may(9, 7, DLXD_MAY_SUBSCRIBE, "cam/a"));
    ck_assert(!may(9, 8, DLXD_MAY_SUBSCRIBE, "cam/a"));
    ck_assert(!may(64001, 1, DLXD_MAY_PUBLISH, "cam/a/b"));
    ck_assert(!may(64001, 1, DLXD_MAY_DROP, "cam/a"));
    ck_assert(!may(64001, 1, DLXD_MAY_OBSERVE, "cam/a"));
}
END_TEST

START_TEST(the_first_rule_that_applies_decides)
{
    ck_assert_int_eq(
        read_text("[rule secret]\nusers = *\ntopics = cam/secret\ndeny = all\n"
                  "[rule cameras]\nusers = *\ntopics = cam/**\nallow = subscribe\n"
                  "[rule late]\nusers = 1\ntopics = **\ndeny = subscribe\nallow = drop\n"),
        0);
    ck_assert(!may(1, 1, DLXD_MAY_SUBSCRIBE, "cam/secret"));
    ck_assert(may(1, 1, DLXD_MAY_SUBSCRIBE, "cam/front"));
    ck_assert(!may(1, 1, DLXD_MAY_SUBSCRIBE, "mic"));
    ck_assert(may(1, 1, DLXD_MAY_DROP, "cam/front")); /* "cameras" does not say */
    ck_assert(!may(2, 1, DLXD_MAY_DROP, "cam/front"));
}
END_TEST

START_TEST(files_of_conf_d_follow_in_the_order_of_their_names)
{
    (void)snprintf(path, sizeof path, "%s/conf.d", place.dir);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    write_file("conf.d/20-b.conf", "[rule b]\nusers = 2\ntopics = x\nallow = all\n");
    write_file("conf.d/10-a.conf",
               "[daemon]\nfd-store = 5\n[rule a]\nusers = 1\ntopics = x\nallow = all\n");
    write_file("conf.d/30-c.conf.disabled", "nonsense\n");
    ck_assert_int_eq(read_text("[daemon]\nfd-store = 4\n"), 0);
    ck_assert_int_eq(config.fd_store, 5);
    ck_assert_uint_eq(config.rules.n, 2);
    ck_assert_str_eq(config.rules.items[0].name, "a");
    ck_assert_str_eq(config.rules.items[1].name, "b");
    dlxd_config_deinit(&config);
    ck_assert_int_eq(read_text("[rule b]\nusers = 3\ntopics = x\nallow = all\n"), DLX_E_INVALID);
    ck_assert_msg(strstr(dlx__error_message(), "20-b.conf:2: rule \"b\" is at ") &&
                      strstr(dlx__error_message(), "dlpackd.conf:2 already"),
                  "%s", dlx__error_message());
    write_file("conf.d/20-b.conf", "");
    (void)unlink(path);
    write_file("conf.d/10-a.conf", "");
    (void)unlink(path);
    write_file("conf.d/30-c.conf.disabled", "");
    (void)unlink(path);
    (void)snprintf(path, sizeof path, "%s/conf.d", place.dir);
    ck_assert_int_eq(rmdir(path), 0);
}
END_TEST

#define FIFTY "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
static const struct {
    const char *text, *words;
} bad[] = {
    {"socket = /x\n", "dlpackd.conf:1: 'socket' is in []: there are [daemon] and [rule NAME]"},
    {"[deamon]\nsocket = /x\n", ":2: 'socket' is in [deamon]"},
    {"[rule ]\nusers = root\n", ":2: 'users' is in [rule"},
    {"[daemon]\n# x\nsockt = /x\n", ":3: [daemon] has no 'sockt': socket, memory, fd-store"},
    {"[daemon]\nsocket = x\n", ":2: socket 'x' is no path that begins with /"},
    {"[daemon]\nmemory = disk\n", ":2: there is no memory of the kind 'disk': memfd, posix"},
    {"[daemon]\nfd-store = -1\n", ":2: '-1' is not a number from 0 to 65536"},
    {"[daemon]\nfd-store = 65537\n", ":2: '65537' is not a number from 0 to 65536"},
    {"[daemon]\nfd-store\n", ":2: neither '[section]' nor 'key = value', nor a comment (#)"},
    {"[daemon\n", ":1: neither '[section]'"},
    {"[rule a]\nuser = root\n", ":2: a rule has no 'user': users, groups, topics, allow, deny"},
    {"[rule a]\nusers = root no/such\n", ":2: there is no user 'no/such'"},
    {"[rule a]\nusers = 65534\n", ":2: uid 65534 stands for users without a number"},
    {"[rule a]\ngroups = no/such\n", ":2: there is no group 'no/such'"},
    {"[rule a]\nusers = root\ntopics = cam//x\n", ":3: topic name \"cam//x\" has an empty segment"},
    {"[rule a]\nusers = root\ntopics = **/x\n", ":3: pattern \"**/x\""},
    {"[rule a]\nusers = root\ntopics = x\nallow = read\n", ":4: 'read' is none of: publish"},
    {"[rule a]\nusers = root\ntopics = x\nallow = all\ndeny = drop\n",
     ":5: 'drop' is both allowed and denied"},
    {"[rule a]\ntopics = x\nallow = all\n", ":2: rule \"a\" is about nobody"},
    {"[rule a]\nusers = root\ntopics = x\n", ":2: rule \"a\" says nothing"},
    {"[rule a]\nusers = root\nallow = all\n", ":2: rule \"a\" is about no topics"},
    {"[daemon]\nsocket = /" FIFTY FIFTY FIFTY FIFTY "\n", ":2: the line has more than 198 bytes"},
};

START_TEST(what_is_wrong_is_said_with_its_line)
{
    ck_assert_int_eq(read_text(bad[_i].text), DLX_E_INVALID);
    ck_assert_msg(strstr(dlx__error_message(), bad[_i].words), "'%s': %s", bad[_i].text,
                  dlx__error_message());
    ck_assert_uint_eq(config.rules.n, 0);
    ck_assert_ptr_null(config.socket);
}
END_TEST

START_TEST(a_file_that_cannot_be_read_is_an_error)
{
    (void)snprintf(path, sizeof path, "%s/no.conf", place.dir);
    ck_assert_int_lt(dlxd_config_read(&config, path), 0);
    ck_assert(strstr(dlx__error_message(), "no.conf"));
    ck_assert_int_lt(dlxd_config_read(&config, place.dir), 0);
}
END_TEST

static void tear_down(void)
{
    dlxd_config_deinit(&config);
    (void)snprintf(path, sizeof path, "%s/dlpackd.conf", place.dir);
    (void)unlink(path);
}

int main(void)
{
    Suite *suite = suite_create("test_config");
    TCase *tcase = tcase_create("config");
    dlx_test_dir_fixture(tcase, &place);
    tcase_add_checked_fixture(tcase, NULL, tear_down);
    tcase_add_test(tcase, settings_and_rules_are_read);
    tcase_add_test(tcase, the_first_rule_that_applies_decides);
    tcase_add_test(tcase, files_of_conf_d_follow_in_the_order_of_their_names);
    tcase_add_loop_test(tcase, what_is_wrong_is_said_with_its_line, 0, DLX_ARRAY_SIZE(bad));
    tcase_add_test(tcase, a_file_that_cannot_be_read_is_an_error);
    suite_add_tcase(suite, tcase);
    return dlx_test_run(suite);
}
