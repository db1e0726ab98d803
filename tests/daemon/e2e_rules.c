/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Rules by topic between users, under a real dlpackd with a configuration: what is refused, what a
 * pattern shows, and what SIGHUP takes away from those who are there.
 */

#include "tests/harness/fork.h"
#include "tests/daemon/harness_config.h"
#include "tests/harness/user.h"
#include <grp.h>

#define ALICE 64001
#define BOB   64002

static int publish(const char *topic)
{
    struct dlx_publisher *p = NULL;
    return dlx_publisher_new(dlx_test_stream_connect(), topic, NULL, &p);
}

static int subscribe(const char *topic)
{
    struct dlx_subscription *s = NULL;
    return dlx_subscribe(dlx_test_stream_connect(), topic, NULL, &s);
}

static int connect_only(const char *topic)
{
    struct dlx_client *c = NULL;
    (void)topic;
    return dlx_configured_connect(dlx_test_stream_daemon.path, &c);
}

/* The code that the call has in a process of that user. */
static int call_as(uid_t uid, int (*call)(const char *topic), const char *topic)
{
    int status;
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        dlx_test_user_become(uid);
        _exit(-call(topic));
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status));
    return -WEXITSTATUS(status);
}

static const char cameras[] = "[rule alice]\nusers = 64001\ntopics = cam/**\n"
                              "allow = publish subscribe observe\n"
                              "[rule bob]\nusers = 64002\ntopics = cam/front\nallow = subscribe\n";

TEST(a_rule_decides_by_user_topic_and_verb)
{
    if (!dlx_test_user_may())
        return;
    dlx_configured_start(cameras);
    ck_assert_int_eq(call_as(ALICE, publish, "cam/front"), 0);
    ck_assert_int_eq(call_as(ALICE, publish, "mic"), DLX_E_ACCESS);
    ck_assert_int_eq(call_as(BOB, publish, "cam/front"), DLX_E_ACCESS);
    ck_assert_int_eq(call_as(BOB, subscribe, "cam/front"), 0);
    ck_assert_int_eq(call_as(BOB, subscribe, "cam/rear"), DLX_E_ACCESS);
    ck_assert_int_eq(call_as(0, publish, "mic"), 0);
    (void)dlx_configured_log("uid 64001 may not publish on mic: no rule allows it \"publish\"");
    (void)dlx_configured_log(
        "uid 64002 may not subscribe to cam/rear: no rule allows it \"subscribe\"");
    ck_assert_int_eq(call_as(64003, connect_only, ""), DLX_E_ACCESS);
    (void)dlx_configured_log(
        "refused: uid 64003 may not use this daemon: no rule allows it anything");
}

TEST(a_denial_names_its_rule_in_the_log)
{
    if (!dlx_test_user_may())
        return;
    dlx_configured_start("[rule secret]\nusers = *\ntopics = cam/secret\ndeny = all\n"
                         "[rule rest]\nusers = *\ntopics = **\nallow = all\n");
    ck_assert_int_eq(call_as(ALICE, publish, "cam/secret"), DLX_E_ACCESS);
    ck_assert_int_eq(call_as(ALICE, publish, "cam/front"), 0);
    const char *log = dlx_configured_log("dlpackd.conf:2) denies \"publish\"");
    ck_assert_msg(strstr(log, "rule \"secret\" ("), "%s", log);
}

/* In a process of that user: takes what comes, and says so; what ends it is its exit status. */
static pid_t take_as(uid_t uid, const char *topic, int *ret_said)
{
    int fds[2];
    ck_assert_int_eq(pipe(fds), 0);
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        struct dlx_subscription *s = NULL;
        struct dlx_message *m = NULL;
        struct dlx_client *c = NULL;
        int r;
        dlx_test_user_become(uid);
        if (dlx_configured_connect("s", &c) < 0 || dlx_subscribe(c, topic, NULL, &s) < 0 ||
            write(fds[1], "s", 1) != 1)
            _exit(101);
        /* The connection is lost first, and made again. */
        while ((r = dlx_take(s, PATIENCE, &m)) == 0 || r == DLX_E_DISCONNECTED) {
            if (r == 0 && write(fds[1], "m", 1) != 1)
                _exit(101);
            m = dlx_message_unref(m);
        }
        (void)fprintf(stderr, "%s\n", dlx_client_errmsg(NULL));
        _exit(-r);
    }
    close(fds[1]);
    *ret_said = fds[0];
    return pid;
}

static void expect(int said, char c)
{
    char byte = 0;
    ck_assert_int_eq(read(said, &byte, 1), 1);
    ck_assert_int_eq(byte, c);
}

static int end_of(pid_t pid)
{
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status));
    return -WEXITSTATUS(status);
}

/* Bob may still use the daemon, but not this topic. */
TEST(a_subscriber_whose_right_was_taken_is_told_and_gets_it_back)
{
    int said;
    if (!dlx_test_user_may())
        return;
    dlx_configured_start(cameras);
    pid_t bob = take_as(BOB, "cam/front", &said);
    expect(said, 's');
    dlx_configured_reload("[rule bob]\nusers = 64002\ntopics = cam/rear\nallow = subscribe\n",
                          "uid 64002 may not subscribe to cam/front: no rule allows it");
    ck_assert_int_eq(end_of(bob), DLX_E_ACCESS);
    ck_assert_int_eq(call_as(BOB, subscribe, "cam/front"), DLX_E_ACCESS);
    dlx_configured_reload(cameras, "read the configuration again: 2 rules");
    ck_assert_int_eq(call_as(BOB, subscribe, "cam/front"), 0);
    close(said);
}

TEST(sighup_ends_links_that_are_not_allowed_any_more)
{
    int alice_said, bob_said;
    struct dlx_publisher *p = NULL;
    if (!dlx_test_user_may())
        return;
    dlx_configured_start(cameras);
    struct dlx_client *c = dlx_test_stream_connect();
    ok(dlx_publisher_new(c, "cam/front", NULL, &p));
    pid_t alice = take_as(ALICE, "cam/front", &alice_said), bob = take_as(BOB, "cam/*", &bob_said);
    expect(alice_said, 's');
    expect(bob_said, 's');
    ok(dlx_publisher_wait(p, 2, PATIENCE));
    dlx_test_stream_publish(p, 10, 1);
    expect(alice_said, 'm');
    expect(bob_said, 'm');
    /* A bad file changes nothing. */
    dlx_configured_reload("[rule alice]\nusers = 64001\nnonsense\n",
                          "the configuration stays as it was: ");
    (void)dlx_configured_log("dlpackd.conf:3: neither");
    dlx_test_stream_publish(p, 10, 1);
    expect(bob_said, 'm');
    expect(alice_said, 'm');
    dlx_configured_reload("[rule alice]\nusers = 64001\ntopics = cam/**\nallow = subscribe\n",
                          "read the configuration again: 1 rules");
    ck_assert_int_eq(end_of(bob), DLX_E_ACCESS);
    dlx_test_stream_publish(p, 10, 1);
    expect(alice_said, 'm');
    struct dlx_publisher_stats stats = {.size = sizeof stats};
    ok(dlx_publisher_wait(p, 0, 0));
    ok(dlx_publisher_get_stats(p, &stats));
    ck_assert_uint_eq(stats.n_subscribers, 1);
    dlx_test_fork_kill(alice);
    close(alice_said);
    close(bob_said);
    dlx_publisher_unref(p);
    dlx_client_unref(c);
}

/* What the call has that publishes, or waits for a subscriber. */
static int publish_once(struct dlx_publisher *p)
{
    const struct dlx_tensor_spec spec = {
        .size = sizeof spec, .dtype = {kDLInt, 64, 1}, .ndim = 1, .shape = (const int64_t[]){10}};
    DLManagedTensorVersioned *t = NULL;
    int r = dlx_alloc(p, &spec, &t);
    if (r < 0)
        return r;
    r = dlx_publish(p, t, NULL);
    if (r < 0)
        t->deleter(t);
    return r;
}

/* Publishes as long as that has this code: returns the next one; after a while, this one. */
static int publish_while(struct dlx_publisher *p, int code)
{
    uint64_t end = dlx__now_ns() + PATIENCE;
    int r;
    do
        r = publish_once(p);
    while (r == code && dlx__now_ns() < end);
    return r;
}

/* In a process of Alice: publishes as fast as it can, and says when that is refused, and when it
 * may again. */
static pid_t publish_on(const char *topic, int *ret_said)
{
    int fds[2];
    ck_assert_int_eq(pipe(fds), 0);
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        struct dlx_publisher *p = NULL;
        int r;
        dlx_test_user_become(ALICE);
        ok(dlx_publisher_new(dlx_test_stream_connect(), topic, NULL, &p));
        if (write(fds[1], "s", 1) != 1)
            _exit(101);
        r = publish_while(p, 0);
        if (r != DLX_E_ACCESS || !strstr(dlx_client_errmsg(NULL), "uid 64001 may not publish on") ||
            publish_once(p) != DLX_E_ACCESS || dlx_publisher_wait(p, 1, PATIENCE) != DLX_E_ACCESS ||
            write(fds[1], "r", 1) != 1) {
            (void)fprintf(stderr, "%d: %s\n", r, dlx_client_errmsg(NULL));
            _exit(102);
        }
        if (publish_while(p, DLX_E_ACCESS) != 0 || write(fds[1], "a", 1) != 1)
            _exit(103);
        ok(dlx_publisher_wait(p, 1, PATIENCE));
        ok(publish_once(p));
        dlx_publisher_unref(p);
        _exit(0);
    }
    close(fds[1]);
    *ret_said = fds[0];
    return pid;
}

/* Alice may still use the daemon, but not this topic. */
TEST(a_publisher_whose_right_was_taken_is_told_and_gets_it_back)
{
    int said;
    struct dlx_subscription *s = NULL;
    struct dlx_message *m = NULL;
    if (!dlx_test_user_may())
        return;
    dlx_configured_start(cameras);
    pid_t alice = publish_on("cam/front", &said);
    expect(said, 's');
    dlx_configured_reload("[rule alice]\nusers = 64001\ntopics = cam/rear\nallow = publish\n",
                          "uid 64001 may not publish on cam/front: no rule allows it");
    expect(said, 'r');
    dlx_configured_reload(cameras, "read the configuration again: 2 rules");
    expect(said, 'a');
    struct dlx_client *c = dlx_test_stream_connect();
    ok(dlx_subscribe(c, "cam/front", NULL, &s));
    ok(dlx_take(s, PATIENCE, &m));
    dlx_message_unref(m);
    ck_assert_int_eq(end_of(alice), 0);
    dlx_subscription_unref(s);
    dlx_client_unref(c);
    close(said);
}

int main(void)
{
    TCase *tcase = dlx_test_stream_case("rules");
    dlx_configured_fixture(tcase);
    return dlx_test_run_case(tcase);
}
