/* SPDX-License-Identifier: Apache-2.0 */
/* dlpackd.conf: what is read, what is refused and with which words, and which rule decides. */
#include "common/memory.h"
#include "daemon/server/config.h"
#include "daemon/users/policy.h"
#include "tests/harness/daemon.h"
#include "tests/harness/file.h"
#include "tests/harness/run.h"

#define GIB (UINT64_C(1) << 30)

static struct dlx_test_daemon place; /* its folder */
static struct dlxd_config config;
static char path[300];

static const char *path_of(const char *name)
{
    (void)snprintf(path, sizeof path, "%s/%s", place.dir, name);
    return path;
}

static int read_text(const char *text)
{
    dlx_test_write_file(path_of("dlpackd.conf"), text);
    return dlxd_config_read(&config, path);
}

static bool may_by(const char *socket, uid_t uid, gid_t gid, enum dlxd_verb verb, const char *topic)
{
    struct dlxd_principal who = {.uid = uid, .gid = gid};
    (void)snprintf(who.socket, sizeof who.socket, "%s", socket);
    const struct dlxd_rule *rule = dlxd_rules_find(&config.rules, &who, verb, topic);
    return rule && rule->allow & DLXD_VERB(verb);
}

static bool may(uid_t uid, gid_t gid, enum dlxd_verb verb, const char *topic)
{
    return may_by(DLXD_SOCKET_MAIN, uid, gid, verb, topic);
}

TEST(settings_and_rules_are_read)
{
    ok(read_text("# a comment\n"
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
                 "deny = drop\n"));
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

TEST(every_user_may_what_no_rule_before_denies_to_one)
{
    static const struct {
        const char *topic;
        bool observe;
    } rows[] = {{"open/a", true},   {"open/denied", false}, {"open/some", true},
                {"group/a", false}, {"few/a", false},       {"other/a", false},
                {"pods/a", false},  {"both/a", true},       {"empty/a", true}};
    ok(read_text("[rule 1]\nusers = 5\ntopics = open/denied\ndeny = observe\n"
                 "[rule 2]\nusers = 5\ntopics = open/some\nallow = observe\n"
                 "[rule 3]\nusers = *\ntopics = open/**\nallow = observe\n"
                 "[rule 4]\ngroups = 5\ntopics = group/a\ndeny = all\n"
                 "[rule 5]\nusers = *\ntopics = group/**\nallow = all\n"
                 "[rule 6]\nusers = 1 2 3\ntopics = few/**\nallow = all\n"
                 "[rule 7]\nusers = *\ntopics = other/**\nallow = publish subscribe\n"
                 "[socket pods]\npath = /run/pods\n"
                 "[rule 8]\nusers = *\nsockets = pods\ntopics = pods/**\nallow = all\n"
                 "[rule 9]\nusers = *\nsockets = *\ntopics = both/**\nallow = all\n"
                 "[rule 10]\nusers = *\nsockets = pods\ntopics = empty/**\ndeny = all\n"
                 "[rule 11]\nusers = *\ntopics = empty/**\nallow = all\n"));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        ck_assert_msg(dlxd_rules_let_everybody(&config.rules, DLXD_MAY_OBSERVE, rows[i].topic) ==
                          rows[i].observe,
                      "%s", rows[i].topic);
    ck_assert(!dlxd_rules_let_everybody(NULL, DLXD_MAY_OBSERVE, "open/a"));
}

TEST(to_allow_all_does_not_allow_gpu_memory_and_to_deny_all_denies_it)
{
    ok(read_text("[rule secret]\nusers = *\ntopics = cam/secret\ndeny = all\n"
                 "[rule all]\nusers = 1\ntopics = **\nallow = all\n"
                 "[rule gpu]\nusers = 2\ntopics = cam/*\nallow = gpu\n"
                 "[rule both]\nusers = 3\ntopics = **\nallow = all gpu\n"));
    ck_assert(may(1, 1, DLXD_MAY_DROP, "cam/front") && !may(1, 1, DLXD_MAY_GPU, "cam/front"));
    ck_assert(!may(2, 1, DLXD_MAY_DROP, "cam/front") && may(2, 1, DLXD_MAY_GPU, "cam/front"));
    ck_assert(may(3, 1, DLXD_MAY_DROP, "cam/front") && may(3, 1, DLXD_MAY_GPU, "cam/front"));
    ck_assert(!may(2, 1, DLXD_MAY_GPU, "cam/secret") && !may(3, 1, DLXD_MAY_GPU, "cam/secret"));
}

TEST(the_first_rule_that_applies_decides)
{
    ok(read_text("[rule secret]\nusers = *\ntopics = cam/secret\ndeny = all\n"
                 "[rule cameras]\nusers = *\ntopics = cam/**\nallow = subscribe\n"
                 "[rule late]\nusers = 1\ntopics = **\ndeny = subscribe\nallow = drop\n"));
    ck_assert(!may(1, 1, DLXD_MAY_SUBSCRIBE, "cam/secret"));
    ck_assert(may(1, 1, DLXD_MAY_SUBSCRIBE, "cam/front"));
    ck_assert(!may(1, 1, DLXD_MAY_SUBSCRIBE, "mic"));
    ck_assert(may(1, 1, DLXD_MAY_DROP, "cam/front")); /* "cameras" does not say */
    ck_assert(!may(2, 1, DLXD_MAY_DROP, "cam/front"));
}

TEST(files_of_conf_d_follow_in_the_order_of_their_names)
{
    ck_assert_int_eq(mkdir(path_of("conf.d"), 0700), 0);
    dlx_test_write_file(path_of("conf.d/20-b.conf"),
                        "[rule b]\nusers = 2\ntopics = x\nallow = all\n");
    dlx_test_write_file(path_of("conf.d/10-a.conf"),
                        "[daemon]\nfd-store = 5\n[rule a]\nusers = 1\ntopics = x\nallow = all\n");
    dlx_test_write_file(path_of("conf.d/30-c.conf.disabled"), "nonsense\n");
    ok(read_text("[daemon]\nfd-store = 4\n"));
    ck_assert_int_eq(config.fd_store, 5);
    ck_assert_uint_eq(config.rules.n, 2);
    ck_assert_str_eq(config.rules.items[0].name, "a");
    ck_assert_str_eq(config.rules.items[1].name, "b");
    dlxd_config_deinit(&config);
    fails(read_text("[rule b]\nusers = 3\ntopics = x\nallow = all\n"), DLX_E_INVALID,
          "20-b.conf:2: rule \"b\" is at ");
    ck_assert_ptr_nonnull(strstr(dlx__error_message(), "dlpackd.conf:2 already"));
    ck_assert_int_eq(unlink(path_of("conf.d/20-b.conf")), 0);
    ck_assert_int_eq(unlink(path_of("conf.d/10-a.conf")), 0);
    ck_assert_int_eq(unlink(path_of("conf.d/30-c.conf.disabled")), 0);
    ck_assert_int_eq(rmdir(path_of("conf.d")), 0);
}

/* A file of `n` parts, each printed with its number, between `before` and `after`. */
static int read_many(const char *before, const char *format, int n)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    ck_assert_ptr_nonnull(file);
    (void)fputs(before, file);
    for (int i = 0; i < n; i++)
        ck_assert_int_gt(fprintf(file, format, i), 0);
    ck_assert_int_eq(fclose(file), 0);
    int r = read_text(text);
    free(text);
    return r;
}

TEST(a_configuration_has_limits)
{
    static const char rule[] = "[rule %d]\nusers = *\ntopics = a\nallow = drop\n";
    static const char topic[] = "topics = t%d\n";
    static const char comment[] = "# %150d\n";
    const int n_words = DLXD_CONFIG_WORDS_MAX;
    ok(read_many("", rule, n_words));
    ck_assert_uint_eq(config.rules.n, (size_t)n_words);
    dlxd_config_deinit(&config);
    fails(read_many("", rule, n_words + 1), DLX_E_INVALID,
          "rules name more than 16384 users, groups, sockets and topics");
    ok(read_many("[rule a]\nusers = *\nallow = drop\n", topic, n_words));
    dlxd_config_deinit(&config);
    fails(read_many("[rule a]\nusers = *\nallow = drop\n", topic, n_words + 1), DLX_E_INVALID,
          "more than 16384");
    ok(read_many("", comment, 6800));
    dlxd_config_deinit(&config);
    fails(read_many("", comment, 6900), DLX_E_INVALID, "more than 1048576 bytes");
    ok(read_many("", "[quota %d]\n", DLXD_CONFIG_PARTS_MAX));
    dlxd_config_deinit(&config);
    fails(read_many("", "[quota %d]\n", DLXD_CONFIG_PARTS_MAX + 1), DLX_E_INVALID,
          "more than 256 sockets or classes of quotas");
    ok(read_many("", "[socket s%d]\n", DLXD_CONFIG_PARTS_MAX));
    dlxd_config_deinit(&config);
    fails(read_many("", "[socket s%d]\n", DLXD_CONFIG_PARTS_MAX + 1), DLX_E_INVALID,
          "more than 256 sockets or classes");
}

TEST(a_configuration_is_a_regular_file)
{
    ck_assert_int_eq(mkfifo(path_of("fifo"), 0600), 0);
    fails(dlxd_config_read(&config, path), DLX_E_INVALID, "fifo is not a regular file");
    ck_assert_int_eq(unlink(path), 0);
    fails(dlxd_config_read(&config, "/dev/zero"), DLX_E_INVALID, "is not a regular file");
    fails(dlxd_config_read(&config, "/proc"), DLX_E_INVALID, "is not a regular file");
}

#define FIFTY "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
static const struct {
    const char *text, *words;
} bad[] = {
    {" [quota small]\nbytes = 1\n", "dlpackd.conf:2: '[quota small]' has to begin its line"},
    {" [socket pods]\npath = /x\n", "dlpackd.conf:2: '[socket pods]' has to begin its line"},
    {"socket = /x\n", "dlpackd.conf:1: 'socket' is in []: there are [daemon], [rule NAME], "
                      "[socket NAME] and [quota NAME]"},
    {"[deamon]\nsocket = /x\n", ":2: 'socket' is in [deamon]"},
    {"[rule ]\nusers = root\n", ":2: 'users' is in [rule"},
    {"[daemon]\n# x\nsockt = /x\n", ":3: [daemon] has no 'sockt': socket, memory, memory-limit, "
                                    "fd-store"},
    {"[daemon]\nsocket = x\n", ":2: socket 'x' is no path that begins with /"},
    {"[daemon]\nmemory = disk\n", ":2: there is no memory of the kind 'disk': memfd, posix"},
    {"[daemon]\nfd-store = -1\n", ":2: '-1' is not a number from 0 to 65536"},
    {"[daemon]\nfd-store = 65537\n", ":2: '65537' is not a number from 0 to 65536"},
    {"[daemon]\nfd-store\n", ":2: neither '[section]' nor 'key = value', nor a comment (#)"},
    {"[daemon\n", ":1: neither '[section]'"},
    {"[rule a]\nuser = root\n",
     ":2: a rule has no 'user': users, groups, sockets, topics, allow, deny, workers"},
    {"[rule a]\nusers = root\ntopics = x\nallow = all\nworkers = no/such\n",
     ":5: there is no user 'no/such'"},
    {"[rule a]\nusers = root\ntopics = x\nallow = all\nworkers = 5 a b\n",
     ":5: 'b' is one word too many: workers are one user, and one socket by which it connects"},
    {"[rule a]\nusers = root\ntopics = x\nallow = all\nworkers = 5 /x\n",
     ":5: '/x' is no name of a socket"},
    {"[rule a]\nusers = root\ntopics = x\nallow = all\nworkers = 5 pods\n",
     ":2: rule \"a\" is about a socket 'pods': there is no [socket pods]"},
    {"[rule a]\nusers = root\ntopics = x\nallow = subscribe\nworkers = 5\n",
     ":2: rule \"a\" says who the workers of publishers are, and lets nobody publish"},
    {"[rule a]\nusers = root no/such\n", ":2: there is no user 'no/such'"},
    {"[rule a]\nusers = 65534\n", ":2: uid 65534 stands for users without a number"},
    {"[rule a]\ngroups = no/such\n", ":2: there is no group 'no/such': make it with groupadd(8)"},
    {"[rule a]\nusers = root\ntopics = cam//x\n", ":3: topic name \"cam//x\" has an empty segment"},
    {"[rule a]\nusers = root\ntopics = **/x\n", ":3: pattern \"**/x\""},
    {"[rule a]\nusers = root\ntopics = x\nallow = read\n", ":4: 'read' is none of: publish"},
    {"[rule a]\nusers = root\ntopics = x\nallow = all\ndeny = drop\n",
     ":5: 'drop' is both allowed and denied"},
    {"[rule a]\ntopics = x\nallow = all\n", ":2: rule \"a\" is about nobody"},
    {"[rule a]\nusers = root\ntopics = x\n", ":2: rule \"a\" says nothing"},
    {"[rule a]\nusers = root\nallow = all\n", ":2: rule \"a\" is about no topics"},
    {"[socket a b]\n", ":1: 'a b' is no name of a socket: 1 to 31 letters, digits"},
    {"[socket a]\npath = x\n", ":2: socket 'x' is no path that begins with /"},
    {"[socket a]\nmode = 0800\n", ":2: '0800' is no mode of a file: 1 to 0777, in octal"},
    {"[socket a]\nmode = 01000\n", ":2: '01000' is no mode"},
    {"[socket a]\ngroup = no/such\n", ":2: there is no group 'no/such'"},
    {"[socket a]\nuser = root\n", ":2: a socket has no 'user': path, mode, group, quota"},
    {"\n[socket a]\nquota = pods\n", ":2: socket a has quota 'pods': there is no [quota pods]"},
    {"[rule a]\nusers = root\nsockets = b\ntopics = x\nallow = all\n",
     ":2: rule \"a\" is about a socket 'b': there is no [socket b]"},
    {"[quota " FIFTY "]\n", ":1: 'xxxxxx"},
    {"[quota a]\nbyte = 1\n",
     ":2: a quota has no 'byte': bytes, retained-bytes, store-entries, connections, "
     "requests-per-second, objects, links, "},
    {"[quota a]\nrequests-per-second = 0\n",
     ":2: requests-per-second is 0, and a request would wait for ever: 1 is the least"},
    {"[quota a]\nretained-bytes = 101%\n", ":2: '101%' is no part of the memory: 1% to 100%"},
    {"[quota a]\nstore-entries = 10%\n", ":2: '10%' is not a number"},
    {"[daemon]\nmemory-limit = 8GX\n",
     ":2: '8GX' is not an amount of memory, like 8GiB, 512MiB or 70%"},
    {"[quota a]\nbytes = 1GX\n", ":2: '1GX' is not a number, perhaps with K, M, G, T, Ki, Mi, "},
    {"[quota a]\ngpu-bytes = 10%\n", ":2: '10%' is not a number"},
    {"[quota a]\nlinks = 1GB\n", ":2: '1GB' is not a number, perhaps with K, M, G, T, Ki, Mi, "},
    {"[quota a]\nbytes = -1\n", ":2: '-1' is not a number"},
    {"[quota a]\nbytes = 101%\n", ":2: '101%' is no part of the memory: 1% to 100%"},
    {"[quota a]\nlinks = 10%\n", ":2: '10%' is not a number"},
    {"[quota a]\nbytes = 18446744073709551616\n", ":2: '18446744073709551616' is not a number"},
    {"[quota a]\nbytes = 99999999Ti\n", ":2: '99999999Ti' is more than can be counted"},
    {"[daemon]\nsocket = /" FIFTY FIFTY FIFTY FIFTY "\n", ":2: the line has more than 198 bytes"},
};

LOOP_TEST(an_error_in_a_configuration_is_named_with_its_line, 0, DLX_ARRAY_SIZE(bad))
{
    fails(read_text(bad[_i].text), DLX_E_INVALID, bad[_i].words);
    ck_assert_uint_eq(config.rules.n, 0);
    ck_assert_ptr_null(config.socket);
}

/* The user by the main socket, unless another one is named; of the rule that lets publish. */
TEST(a_rule_may_say_who_the_workers_of_its_publishers_are)
{
    ok(read_text("[socket pods]\npath = /run/p\n"
                 "[rule a]\nusers = *\ntopics = a\nallow = subscribe\n"
                 "[rule b]\nusers = *\ntopics = a\nallow = publish\nworkers = 7\n"
                 "[rule c]\nusers = *\nsockets = pods\ntopics = **\nallow = all\n"
                 "workers = 8 pods\n"
                 "[rule d]\nusers = *\ntopics = **\nallow = publish\n"));
    static const struct {
        const char *socket, *topic, *by;
        uid_t uid;
    } all[] = {{DLXD_SOCKET_MAIN, "a", DLXD_SOCKET_MAIN, 7},
               {"pods", "a", "pods", 8},
               {"pods", "b", "pods", 8},
               {DLXD_SOCKET_MAIN, "b", NULL, 0}};
    const struct dlxd_policy policy = {.uid = 1, .borrow_rules = &config.rules};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(all); i++) {
        struct dlxd_principal who = {.uid = 5}, *workers = NULL;
        (void)snprintf(who.socket, sizeof who.socket, "%s", all[i].socket);
        ok(dlxd_policy_workers(&policy, &who, all[i].topic, &workers));
        ck_assert_int_eq(workers != NULL, all[i].by != NULL);
        if (!workers)
            continue;
        ck_assert_uint_eq(workers->uid, all[i].uid);
        ck_assert_str_eq(workers->socket, all[i].by);
        dlxd_principal_unref(workers);
    }
    dlxd_config_deinit(&config);
}

TEST(a_rule_may_be_about_some_sockets)
{
    ok(read_text("[socket pods]\npath = /run/p\nmode = 0660\ngroup = 7\n"
                 "[socket empty]\n"
                 "[socket dlpackd]\npath = /run/main\nmode = 0600\n"
                 "[rule a]\nusers = *\nsockets = pods\ntopics = a\nallow = subscribe\n"
                 "[rule b]\nusers = *\nsockets = dlpackd, empty\ntopics = a\nallow = publish\n"
                 "[rule c]\nusers = 5\nsockets = *\ntopics = a\nallow = drop\n"
                 "[rule d]\nusers = 5\ntopics = a\nallow = observe\n"));
    ck_assert_uint_eq(config.n_sockets, 3);
    const struct dlxd_config_socket *pods = dlxd_config_find_socket(&config, "pods");
    ck_assert_str_eq(pods->path, "/run/p");
    ck_assert_uint_eq(pods->mode, 0660);
    ck_assert(pods->has_group && pods->gid == 7);
    ck_assert_ptr_null(dlxd_config_find_socket(&config, "empty")->path);
    ck_assert_str_eq(config.socket, "/run/main"); /* of the main one */
    ck_assert_uint_eq(dlxd_config_find_socket(&config, DLXD_SOCKET_MAIN)->mode, 0600);
    static const char *const names[] = {"pods", "empty", DLXD_SOCKET_MAIN};
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(may_by(names[i], 5, 1, DLXD_MAY_SUBSCRIBE, "a"), i == 0);
        ck_assert_int_eq(may_by(names[i], 5, 1, DLXD_MAY_PUBLISH, "a"), i != 0);
        ck_assert(may_by(names[i], 5, 1, DLXD_MAY_DROP, "a"));
        ck_assert(!may_by(names[i], 6, 1, DLXD_MAY_DROP, "a"));
        ck_assert_int_eq(may_by(names[i], 5, 1, DLXD_MAY_OBSERVE, "a"), i == 2);
    }
    const struct dlxd_principal who = {.uid = 6, .socket = "other"};
    ck_assert(!dlxd_rules_allow_something(&config.rules, &who));
}

TEST(quotas_have_units_and_the_rest_of_the_default_class)
{
    ok(read_text("[quota pods]\nbytes = 2Gi\nlinks = 3K\ndescriptors = infinity\n"
                 "[socket p]\npath = /p\nquota = pods\n"
                 "[socket q]\npath = /q\nquota = default\n"
                 "[quota default]\nbytes = 25%\nconnections = 17\n"));
    const struct dlxd_quota *pods = dlxd_quotas_of_socket(&config.quotas, "p");
    const struct dlxd_quota *rest = dlxd_quotas_find(&config.quotas, "default");
    ck_assert_str_eq(pods->name, "pods");
    ck_assert_ptr_null(dlxd_quotas_of_socket(&config.quotas, "q"));
    ck_assert_uint_eq(pods->max[DLXD_BYTES], 2 * GIB);
    ck_assert_uint_eq(pods->max[DLXD_LINKS], 3000);
    ck_assert_uint_eq(pods->max[DLXD_DESCRIPTORS], DLXD_UNLIMITED);
    ck_assert_uint_eq(pods->max[DLXD_CONNECTIONS], 17);
    ck_assert_uint_eq(pods->max[DLXD_OBJECTS], 65536);
    ck_assert_uint_eq(rest->max[DLXD_BYTES], config.memory_bytes / 100 * 25);
    ck_assert_uint_eq(rest->max[DLXD_LINKS], 65536);
    ck_assert_uint_gt(config.memory_bytes, 0);
}

/* The bytes that a user by this socket may have. */
static uint64_t bytes_by(const char *socket)
{
    return dlxd_quotas_of_socket(&config.quotas, socket)->max[DLXD_BYTES];
}

TEST(a_memory_limit_is_for_users_whose_class_says_nothing)
{
    uint64_t bytes = 0;
    ok(read_text("[socket p]\npath = /p\nquota = pods\n"
                 "[socket q]\npath = /q\nquota = rest\n"
                 "[quota pods]\nbytes = 2GiB\n[quota rest]\nlinks = 3\n"
                 "[daemon]\nmemory-limit = 6GiB\n"));
    ck_assert_uint_eq(config.shared_bytes, 12 * GIB);
    ck_assert_uint_eq(bytes_by("p"), 2 * GIB);
    ck_assert_uint_eq(bytes_by("q"), 6 * GIB);
    /* As the option does, after the file. */
    ok(dlxd_config_parse_memory_limit("8G", &bytes));
    ck_assert_uint_eq(bytes, UINT64_C(8000000000));
    dlxd_config_limit_memory(&config, bytes);
    ck_assert_uint_eq(bytes_by("p"), 2 * GIB);
    ck_assert_uint_eq(bytes_by("q"), bytes);
    ok(dlxd_config_parse_memory_limit("25%", &bytes));
    ck_assert_uint_eq(bytes, config.memory_bytes / 100 * 25);
}

TEST(a_file_that_cannot_be_read_is_an_error)
{
    ck_assert_int_lt(dlxd_config_read(&config, path_of("no.conf")), 0);
    ck_assert(strstr(dlx__error_message(), "no.conf"));
    ck_assert_int_lt(dlxd_config_read(&config, place.dir), 0);
    ck_assert_msg(strstr(dlx__error_message(), "is not a regular file"), "%s",
                  dlx__error_message());
}

static void tear_down(void)
{
    dlxd_config_deinit(&config);
    (void)unlink(path_of("dlpackd.conf"));
}

int main(void)
{
    TCase *tcase = tcase_create("config");
    dlx_test_dir_fixture(tcase, &place);
    tcase_add_checked_fixture(tcase, NULL, tear_down);
    return dlx_test_run_case(tcase);
}
