/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon with several listening sockets: rules and users by socket, files of its own and sockets
 * that the service manager passes, and a container that mounted the file of one.
 */

#include "tests/harness/cli.h"
#include "tests/harness/fork.h"
#include "tests/daemon/harness_config.h"
#include "tests/daemon/harness_served.h"
#include "tests/harness/manager.h"
#include "tests/harness/upgrade.h"
#include <grp.h>
#include <sched.h>
#include <sys/mount.h>

static struct dlx_test_daemon *const daemon_ = &dlx_test_stream_daemon;
static char pods_path[300];

/* The descriptors that the service manager passes, from 3 on, and their names. */
static struct {
    int fds[2];
    int n;
    const char *names;
} passed;

static void pass(void)
{
    if (passed.n > 0)
        dlx_test_pass_sockets(passed.fds, passed.n, passed.names);
}

static void serve_elsewhere(const void *userdata)
{
    (void)userdata;
    (void)snprintf(daemon_->path, sizeof daemon_->path, "%s/other", daemon_->dir);
    dlx_configured_exec(NULL);
}

/* The daemon must end before it listens: returns its output. */
static const char *refuses(const char *config)
{
    static char said[4096];
    dlx_configured_write(config);
    int status = dlx_test_fork_said(serve_elsewhere, NULL, said, sizeof said);
    ck_assert_msg(status == 1, "status %d: %s", status, said);
    return said;
}

static struct dlx_client *connect_by(const char *path)
{
    struct dlx_client *c = NULL;
    ok(dlx_configured_connect(path, &c));
    return c;
}

static const char *config_of(const char *rest)
{
    static char text[2048];
    (void)snprintf(text, sizeof text, "[socket pods]\npath = %s\nmode = 0640\n%s", pods_path, rest);
    return text;
}

static const char subscribe_only[] =
    "[rule pods]\nusers = *\nsockets = pods\ntopics = cam/**\nallow = subscribe\n"
    "[rule main]\nusers = *\nsockets = dlpackd\ntopics = **\nallow = all\n";

/* The service manager passes both sockets, with these names, to a daemon that starts then. */
static void begin_with_passed(const char *names)
{
    ck_assert_int_eq(dlx_test_daemon_stop(daemon_), 0);
    passed.fds[0] = dlx_test_listen(pods_path, SOCK_SEQPACKET);
    passed.fds[1] = dlx_test_listen(daemon_->path, SOCK_SEQPACKET);
    passed.n = 2;
    passed.names = names;
    dlx_configured_start(config_of(subscribe_only));
}

/* The files are the manager's: the daemon has left them where they are. */
static void end_passed(void)
{
    ck_assert_int_eq(dlx_test_daemon_stop(daemon_), 0);
    ck_assert_int_eq(unlink(daemon_->path), 0);
    for (int i = 0; i < passed.n; i++)
        close(passed.fds[i]);
    passed.n = 0;
    dlx_test_daemon_start(daemon_, NULL);
}

/* The user who runs this test, root if it is root, may do everything by the main socket. */
TEST(each_socket_has_rules_of_its_own)
{
    struct dlx_publisher *q = NULL;
    struct stat st;
    dlx_configured_start(config_of(subscribe_only));
    ck_assert_int_eq(stat(pods_path, &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777U, 0640);
    auto_client *c = connect_by(daemon_->path), *pods = connect_by(pods_path);
    auto_publisher *p = dlx_test_stream_publisher(c, "cam/front", NULL);
    auto_subscription *s = NULL;
    fails(dlx_publisher_new(pods, "cam/rear", NULL, &q), DLX_E_ACCESS,
          "by socket pods may not publish on cam/rear");
    fails(dlx_subscribe(pods, "mic", NULL, &s), DLX_E_ACCESS, "may not subscribe to mic");
    ok(dlx_subscribe(pods, "cam/front", NULL, &s));
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    dlx_test_stream_publish(p, 10, 1);
    dlx_test_stream_expect(s, 10, 1);
    struct dlx_daemon_info by_pods = dlx_test_stream_daemon_info(pods);
    ck_assert_str_eq(by_pods.socket, pods_path);
    struct dlx_daemon_info by_main = dlx_test_stream_daemon_info(c);
    ck_assert_str_eq(by_main.socket, daemon_->path);
    ck_assert_int_eq(dlx_test_daemon_stop(daemon_), 0);
    ck_assert_int_lt(access(pods_path, F_OK), 0); /* it was the daemon's */
    dlx_test_daemon_start(daemon_, NULL);
}

/* Root of a container is uid 0 as well. */
TEST(root_by_another_socket_is_no_superuser)
{
    auto_client *c = NULL;
    dlx_configured_start(
        config_of("[rule main]\nusers = *\nsockets = dlpackd\ntopics = **\nallow = all\n"));
    fails(dlx_configured_connect(pods_path, &c), DLX_E_ACCESS,
          "may not use this daemon by its socket pods");
    ok(dlx_configured_connect(daemon_->path, &c));
}

static void check_dlxctl(const char *socket, int status, const char *words,
                         const char *const *command)
{
    struct dlx_test_cli cli;
    dlx_test_cli_run(&cli, socket, -1, status, command);
    contains(cli.err, words);
    dlx_test_cli_deinit(&cli);
}

/* A user that may subscribe but not observe receives from publishers that no list shows. */
TEST(dlxctl_says_that_the_rules_hide_publishers)
{
    dlx_configured_start(config_of(subscribe_only));
    auto_client *c = connect_by(daemon_->path), *pods = connect_by(pods_path);
    auto_publisher *p = dlx_test_stream_publisher(c, "cam/front", NULL);
    auto_subscription *s = dlx_test_stream_subscribe(pods, "cam/front", NULL);
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    dlx_test_stream_publish(p, 10, 1);
    dlx_test_stream_expect(s, 10, 1);
    check_dlxctl(pods_path, 0, "no publishers that you may observe (dlpackd's rules hide 1: ",
                 DLX_TEST_WORDS("ls"));
    check_dlxctl(pods_path, 1, "cam/front: no publisher that you may observe (dlpackd's rules ",
                 DLX_TEST_WORDS("info", "cam/front"));
    check_dlxctl(daemon_->path, 1, "cam/rear: no publisher\n", DLX_TEST_WORDS("info", "cam/rear"));
}

TEST(a_class_of_quotas_holds_for_its_socket)
{
    auto_client *second = NULL;
    dlx_configured_start(config_of("quota = small\n[quota small]\nconnections = 1\n"
                                   "[rule all]\nusers = *\nsockets = *\ntopics = **\n"
                                   "allow = all\n"));
    auto_client *pods = connect_by(pods_path);
    fails(dlx_configured_connect(pods_path, &second), DLX_E_LIMIT,
          "asks for 1 connections, uses 1 and may have 1 (quota connections of class small)");
    auto_client *c = connect_by(daemon_->path);
    second = connect_by(daemon_->path);
}

/* A user is a uid by a socket: with the same uid, one by another socket is another user. */
TEST(dlxctl_quota_lists_a_uid_once_for_each_socket)
{
    static const char *const words[] = {"quota", "--json", NULL};
    static const char *const sockets[] = {"dlpackd", "pods"};
    static const int n_connections[] = {1, 2}, most[] = {4096, 7};
    dlx_configured_start(config_of("quota = small\n[quota small]\nconnections = 7\n"
                                   "[rule all]\nusers = *\nsockets = *\ntopics = **\n"
                                   "allow = all\n"));
    auto_client *one = connect_by(pods_path), *two = connect_by(pods_path);
    auto_cli cli = {0};
    dlx_test_cli_run(&cli, daemon_->path, -1, 0, words);
    json_t *users = dlx_test_cli_json(&cli);
    ck_assert_uint_eq(json_array_size(users), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *user = json_array_get(users, i);
        const json_t *connections = json_object_get(json_object_get(user, "quotas"), "connections");
        ck_assert_int_eq(json_integer_value(json_object_get(user, "uid")), (json_int_t)getuid());
        ck_assert_str_eq(json_string_value(json_object_get(user, "socket")), sockets[i]);
        ck_assert_int_eq(json_integer_value(json_object_get(connections, "used")),
                         n_connections[i]);
        ck_assert_int_eq(json_integer_value(json_object_get(connections, "max")), most[i]);
    }
    json_decref(users);
}

static int read_pace(const struct dlx_quota_info *info, void *ret)
{
    if (strcmp(info->name, "requests-per-second") == 0 && strcmp(info->socket, "pods") == 0)
        *(struct dlx_quota_info *)ret = *info;
    return 0;
}

static void ask(struct dlx_client *c, int n)
{
    for (int i = 0; i < n; i++)
        (void)dlx_test_stream_daemon_info(c);
}

static void *ask_much(void *c)
{
    ask(c, 1000);
    return NULL;
}

/* Such requests are answered, later. Requests by another socket are not delayed; waiting ones go on
 * as soon as they may. */
TEST(requests_above_the_rate_of_a_class_wait)
{
    enum { RATE = 40 };
    static const char rest[] =
        "quota = slow\n[rule all]\nusers = *\nsockets = *\ntopics = **\nallow = all\n"
        "[quota slow]\nrequests-per-second = %s\n";
    char text[400];
    struct dlx_quota_info pace = {.max = 0};
    (void)snprintf(text, sizeof text, rest, "40");
    dlx_configured_start(config_of(text));
    auto_client *c = connect_by(daemon_->path);
    uint64_t start = dlx__now_ns();
    auto_client *pods = connect_by(pods_path);
    ask(c, 4 * RATE);
    ask(pods, RATE + 1); /* Hello was one, too */
    ck_assert_uint_ge(dlx__now_ns() - start, 1000000000);
    ok(dlx_list_quotas(pods, read_pace, &pace));
    ck_assert_uint_eq(pace.max, RATE);
    ck_assert_uint_ge(pace.used, 1);
    ck_assert_uint_le(pace.used, RATE);
    pthread_t thread = dlx_test_stream_thread(ask_much, pods);
    start = dlx__now_ns();
    do { /* it waits now */
        ok(dlx_list_quotas(c, read_pace, &pace));
        ck_assert_uint_lt(dlx__now_ns() - start, PATIENCE);
    } while (pace.used < RATE);
    (void)snprintf(text, sizeof text, rest, "infinity");
    dlx_configured_write(config_of(text));
    ck_assert_int_eq(kill(daemon_->pid, SIGHUP), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_uint_lt(dlx__now_ns() - start, UINT64_C(1000) / RATE * 1000000000 / 2);
}

/* The publisher hears it when it is made: at its end there is no client to tell. */
TEST(memory_that_would_stay_beyond_its_quota_is_refused)
{
    auto_publisher *p = NULL;
    dlx_configured_start("[quota default]\nretained-bytes = 4Ki\n");
    auto_client *c = dlx_test_stream_connect();
    char where[400];
    (void)snprintf(where, sizeof where,
                   "uses 0 B and may have 4.0 KiB (quota retained-bytes); raise it in [quota "
                   "default] of %s",
                   dlx_configured_path);
    fails(dlx_publisher_new(c, "a", PUBLISHER(.retain = 1), &p), DLX_E_LIMIT, where);
    ok(dlx_publisher_new(c, "a", NULL, &p));
}

TEST(observers_count_as_patterns)
{
    struct dlx_observer *o[3] = {NULL};
    dlx_configured_start("[quota default]\npatterns = 3\n");
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *s = dlx_test_stream_subscribe(c, "cam/*", NULL);
    ok(dlx_observer_new(c, "cam/a", NULL, &o[0]));
    ok(dlx_observer_new(c, "cam/**", NULL, &o[1]));
    fails(dlx_observer_new(c, "cam/a", NULL, &o[2]), DLX_E_LIMIT,
          "uses 3 and may have 3 (quota patterns)");
    o[1] = dlx_observer_unref(o[1]);
    eventually(dlx_observer_new(c, "cam/a", NULL, &o[2]) == 0);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(o); i++)
        dlx_observer_unref(o[i]);
}

/* The new limit holds as soon as SIGHUP was handled; a client that is there stays. */
TEST(sighup_lowers_a_limit_for_what_is_new)
{
    auto_publisher *third = NULL;
    int r = 0;
    dlx_configured_start("[quota default]\nobjects = 3\n");
    auto_client *c = dlx_test_stream_connect();
    struct dlx_publisher *p = dlx_test_stream_publisher(c, "a", NULL);
    struct dlx_publisher *q = dlx_test_stream_publisher(c, "b", NULL);
    dlx_configured_write("[quota default]\nobjects = 1\n");
    ck_assert_int_eq(kill(daemon_->pid, SIGHUP), 0);
    for (uint64_t until = dlx__deadline(PATIENCE); r == 0; dlx_test_before(until)) {
        auto_client *more = dlx_test_stream_connect();
        r = dlx_publisher_new(more, "c", NULL, &third);
        third = dlx_publisher_unref(third);
    }
    ck_assert_int_eq(r, DLX_E_LIMIT);
    dlx_test_stream_publish(p, 10, 1); /* it has its memory, and gets more */
    dlx_publisher_unref(q);
    fails(dlx_publisher_new(c, "c", NULL, &third), DLX_E_LIMIT,
          "uses 1 and may have 1 (quota objects)");
    dlx_publisher_unref(p);
    ok(dlx_publisher_new(c, "c", NULL, &third));
}

/* Rules and limits hold from then on; the rest is as it was, which is said. */
TEST(sighup_tells_what_takes_a_restart)
{
    static const struct {
        const char *pods; /* its section; NULL: none */
        const char *rest;
        bool is_told;
    } all[] = {
        {"mode = 0640\n", "[rule a]\nusers = 64001\ntopics = a\nallow = all\n", false},
        {"mode = 0640\n", "[quota default]\nobjects = 3\n", false},
        {"mode = 0660\n", "", true},
        {"mode = 0640\ngroup = 64009\n", "", true},
        {"mode = 0640\n", "[socket more]\npath = /tmp/dlpackd-more\n", true},
        {NULL, "", true},
        {NULL, "[socket more]\npath = /tmp/dlpackd-more\nmode = 0640\n", true},
        {"mode = 0640\n", "[daemon]\nsocket = /tmp/dlpackd-more\n", true},
        {"mode = 0640\n", "[daemon]\nmemory = posix\n", true},
        {"mode = 0640\n", "[daemon]\nfd-store = 3\n", true},
    };
    for (size_t i = 0; i < DLX_ARRAY_SIZE(all); i++) {
        char text[1024];
        dlx_configured_start(config_of(""));
        int n = !all[i].pods ? 0
                             : snprintf(text, sizeof text, "[socket pods]\npath = %s\n%s",
                                        pods_path, all[i].pods);
        (void)snprintf(text + n, sizeof text - (size_t)n, "%s", all[i].rest);
        dlx_configured_reload(text, "read the configuration again: ");
        bool is_told = strstr(dlx_configured_log(""), "has changed: that takes a restart") != NULL;
        ck_assert_msg(is_told == all[i].is_told, "%zu: %s", i, text);
    }
}

/* By FileDescriptorName=, or by the name of its unit; a path in the configuration makes no other
 * one. */
LOOP_TEST(sockets_of_the_service_manager_are_known_by_their_names, 0, 2)
{
    auto_publisher *p = NULL;
    begin_with_passed(_i == 0 ? "pods:dlpackd" : "pods.socket:dlpackd.socket");
    auto_client *pods = connect_by(pods_path), *c = connect_by(daemon_->path);
    fails(dlx_publisher_new(pods, "cam/rear", NULL, &p), DLX_E_ACCESS, "by socket pods");
    ok(dlx_publisher_new(c, "cam/rear", NULL, &p));
    end_passed();
    ck_assert_int_eq(unlink(pods_path), 0); /* it is the manager's */
}

TEST(a_socket_that_nobody_describes_is_refused)
{
    char path[300];
    (void)snprintf(path, sizeof path, "%s/podz", daemon_->dir);
    auto_fd podz = dlx_test_listen(path, SOCK_SEQPACKET);
    passed.fds[0] = podz;
    passed.n = 1;
    passed.names = "podz";
    const char *said = refuses(config_of(""));
    ck_assert_msg(strstr(said, "inherited descriptor 3 (podz)") && strstr(said, "[socket podz]"),
                  "%s", said);
    passed.n = 0;
    contains(refuses("[socket pods]\nmode = 0600\n"),
             "dlpackd.conf:1: socket pods: no path, and the service manager passed no socket pods");
    contains(refuses("[socket pods]\npath = /nonexistent/folder/pods\n"),
             "dlpackd.conf:1: socket pods: ");
    ck_assert_int_eq(unlink(path), 0);
}

/* In a mount namespace of its own, where the socket is a mounted file. Publishes, and goes on with
 * the next daemon. */
static void live_in_container(int sock, const void *file)
{
    if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount(daemon_->path, file, NULL, MS_BIND, NULL) < 0)
        _exit(77);
    auto_client *c = connect_by(file);
    auto_publisher *p = dlx_test_stream_publisher(c, "t", NULL);
    dlx_test_say(sock);
    dlx_test_hear(sock);
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    dlx_test_stream_publish(p, 10, 1);
    dlx_test_say(sock);
    dlx_test_hear(sock); /* there is another daemon now */
    dlx_client_unref(connect_by(file));
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    dlx_test_stream_publish(p, 10, 2);
    dlx_test_hear(sock);
}

enum { CONTAINERS_UID = 54321, GROUPS_GID = 64055 };

/* In a container without a user namespace, which chooses its own ids: the pods' socket is mounted,
 * and the process has the gid of a group of the host. */
static void choose_gid_in_container(int sock, const void *file)
{
    struct dlx_publisher *p = NULL;
    const gid_t gid = GROUPS_GID;
    if (unshare(CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET) < 0 ||
        mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount(pods_path, file, NULL, MS_BIND, NULL) < 0 || chdir(daemon_->dir) < 0 ||
        setgroups(1, &gid) < 0 || setresgid(gid, gid, gid) < 0 ||
        setresuid(CONTAINERS_UID, CONTAINERS_UID, CONTAINERS_UID) < 0)
        _exit(77);
    auto_client *c = connect_by(strrchr(file, '/') + 1);
    fails(dlx_publisher_new(c, "secret", NULL, &p), DLX_E_ACCESS,
          "uid 54321 by socket pods may not publish on secret");
    dlx_subscription_unref(dlx_test_stream_subscribe(c, "cam/front", NULL));
    dlx_test_say(sock);
}

/* The installed rule for a group, and the documented socket for pods. */
TEST(a_rule_without_sockets_holds_on_the_main_one_alone)
{
    char file[300], text[1024];
    if (dlx_test_skips(geteuid() != 0, "needs root to mount a file"))
        return;
    (void)snprintf(file, sizeof file, "%s/mounted", daemon_->dir);
    close(open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    (void)snprintf(text, sizeof text,
                   "[socket pods]\npath = %s\n"
                   "[rule dlpack]\ngroups = %d\ntopics = **\nallow = all\n"
                   "[rule pods]\nusers = *\nsockets = pods\ntopics = cam/**\nallow = subscribe\n",
                   pods_path, GROUPS_GID);
    dlx_configured_start(text);
    struct dlx_test_part container = dlx_test_part_begin(choose_gid_in_container, file);
    dlx_test_hear(container.sock);
    dlx_test_part_join(&container);
    ck_assert_int_eq(unlink(file), 0);
    ck_assert_int_eq(dlx_test_daemon_stop(daemon_), 0);
    dlx_test_daemon_start(daemon_, NULL);
}

/* The socket unit keeps the listening descriptor, so the inode that was mounted stays the
 * daemon's. */
TEST(a_container_that_mounted_the_file_goes_on_with_the_next_daemon)
{
    char file[300];
    if (dlx_test_skips(geteuid() != 0, "needs root to mount a file"))
        return;
    (void)snprintf(file, sizeof file, "%s/mounted", daemon_->dir);
    close(open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    ck_assert_int_eq(dlx_test_daemon_stop(daemon_), 0);
    passed.fds[0] = dlx_test_listen(daemon_->path, SOCK_SEQPACKET);
    passed.n = 1;
    passed.names = "dlpackd.socket";
    dlx_configured_start("");
    struct dlx_test_part container = dlx_test_part_begin(live_in_container, file);
    dlx_test_hear(container.sock);
    auto_subscription *s = dlx_test_stream_new_subscription("t", NULL);
    dlx_test_say(container.sock);
    dlx_test_hear(container.sock);
    dlx_test_stream_expect(s, 10, 1);
    dlx_test_daemon_kill(daemon_);
    dlx_configured_start("");
    dlx_test_say(container.sock);
    dlx_test_stream_expect(s, 10, 2);
    dlx_test_say(container.sock);
    dlx_test_part_join(&container);
    end_passed();
    ck_assert_int_eq(unlink(file), 0);
}

/* The daemons before it have said where they listen, too. */
static void take_over(void)
{
    dlx_test_upgrade_signal(SIGUSR2);
    dlx_test_upgrade_await("takes the place of this daemon");
    dlx_test_upgrade_await("listening on ");
}

/* Is the socket there? Its lock never is. */
static bool is_there(const char *path)
{
    char lock[320];
    struct stat st;
    (void)snprintf(lock, sizeof lock, "%s.lock", path);
    ck_assert_int_lt(lstat(lock, &st), 0);
    return lstat(path, &st) == 0;
}

/* The new program has each socket from the former one, and closes one that the configuration does
 * not describe any more, of which nothing is left. */
TEST(a_program_that_takes_over_listens_on_each_socket)
{
    struct dlx_publisher *p = NULL;
    struct dlx_client *none = NULL;
    struct stat before, after;
    dlx_configured_start(config_of(subscribe_only));
    ck_assert_int_eq(stat(pods_path, &before), 0);
    for (int i = 0; i < 3; i++) {
        take_over();
        auto_client *c = connect_by(daemon_->path), *pods = connect_by(pods_path);
        fails(dlx_publisher_new(pods, "cam/rear", NULL, &p), DLX_E_ACCESS,
              "by socket pods may not publish on cam/rear");
        ck_assert_int_eq(stat(pods_path, &after), 0);
        ck_assert_uint_eq(after.st_ino, before.st_ino);
    }
    dlx_configured_write("");
    take_over();
    dlx_client_unref(connect_by(daemon_->path));
    fails(dlx_configured_connect(pods_path, &none), DLX_E_NO_DAEMON, pods_path);
    ck_assert(!is_there(pods_path));
    take_over(); /* and the one after it knows of nothing */
    dlx_configured_write(config_of(subscribe_only));
    take_over();
    dlx_client_unref(connect_by(pods_path));
}

/* Nor is it a file that has taken the place of the daemon's. */
LOOP_TEST(a_file_that_the_daemon_did_not_make_is_left_where_it_is, 0, 2)
{
    bool is_passed = _i == 0;
    if (is_passed)
        begin_with_passed("pods:dlpackd");
    else
        dlx_configured_start(config_of(subscribe_only));
    dlx_client_unref(connect_by(pods_path));
    if (!is_passed) {
        ck_assert_int_eq(unlink(pods_path), 0);
        close(dlx_test_listen(pods_path, SOCK_SEQPACKET));
    }
    dlx_configured_write("");
    take_over();
    dlx_client_unref(connect_by(daemon_->path));
    ck_assert(is_there(pods_path));
    ck_assert_int_eq(unlink(pods_path), 0);
    if (is_passed)
        end_passed();
}

static void set_up(void)
{
    (void)snprintf(pods_path, sizeof pods_path, "%s/pods", daemon_->dir);
    dlx_configured_pass = pass;
}

int main(void)
{
    TCase *tcase = dlx_test_stream_case("sockets");
    dlx_configured_fixture(tcase);
    tcase_add_checked_fixture(tcase, set_up, NULL);
    return dlx_test_run_case(tcase);
}
