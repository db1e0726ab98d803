/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rules by topic between users, under a real dlpackd with a configuration: what is refused, what a
 * pattern shows, and what SIGHUP takes away from those who are there.
 */

#include "tests/daemon/harness_config.h"
#include "tests/harness/fork.h"
#include "tests/harness/fuse.h"
#include "tests/harness/user.h"

#define ALICE 64001
#define BOB   64002

CASE(rules)
{
    if (!dlx_test_user_may())
        return NULL;
    TCase *tcase = dlx_test_stream_case("rules");
    dlx_configured_fixture(tcase);
    return tcase;
}

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
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        dlx_test_user_become(uid);
        _exit(-call(topic));
    }
    return -dlx_test_fork_status(pid);
}

static const char cameras[] = "[rule alice]\nusers = 64001\ntopics = cam/**\n"
                              "allow = publish subscribe observe\n"
                              "[rule bob]\nusers = 64002\ntopics = cam/front\nallow = subscribe\n";

static int note_for_everybody(const struct dlx_publisher_info *info, void *userdata)
{
    *(bool *)userdata = info->for_everybody;
    return 0;
}

/* As the only publisher of the topic is listed. */
static bool is_for_everybody(const char *topic)
{
    auto_client *c = dlx_test_stream_connect();
    bool is = false;
    ok(dlx_list_publishers(c, topic, note_for_everybody, &is));
    return is;
}

TEST_OF(rules, lists_tell_which_topics_every_user_may_observe)
{
    dlx_configured_start(cameras);
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "cam/front", NULL);
    ck_assert(!is_for_everybody("cam/front"));
    dlx_configured_reload("[rule all]\nusers = *\ntopics = cam/**\nallow = observe\n",
                          "read the configuration again: 1 rule");
    ck_assert(is_for_everybody("cam/front"));
}

TEST_OF(rules, a_rule_decides_by_user_topic_and_verb)
{
    static const struct {
        uid_t uid;
        int (*call)(const char *topic);
        const char *topic;
        int code;
        const char *log;
    } all[] = {
        {ALICE, publish, "cam/front", 0, ""},
        {ALICE, publish, "mic", DLX_E_ACCESS,
         "uid 64001 may not publish on mic: no rule allows it \"publish\""},
        {BOB, publish, "cam/front", DLX_E_ACCESS, ""},
        {BOB, subscribe, "cam/front", 0, ""},
        {BOB, subscribe, "cam/rear", DLX_E_ACCESS,
         "uid 64002 may not subscribe to cam/rear: no rule allows it \"subscribe\""},
        {0, publish, "mic", 0, ""},
        {64003, connect_only, "", DLX_E_ACCESS,
         "refused: uid 64003 may not use this daemon: no rule allows it anything"},
    };
    dlx_configured_start(cameras);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(all); i++) {
        int r = call_as(all[i].uid, all[i].call, all[i].topic);
        ck_assert_msg(r == all[i].code, "%u %s: %d", all[i].uid, all[i].topic, r);
        (void)dlx_configured_log(all[i].log);
    }
}

TEST_OF(rules, a_denial_names_its_rule_in_the_log)
{
    dlx_configured_start("[rule secret]\nusers = *\ntopics = cam/secret\ndeny = all\n"
                         "[rule rest]\nusers = *\ntopics = **\nallow = all\n");
    ck_assert_int_eq(call_as(ALICE, publish, "cam/secret"), DLX_E_ACCESS);
    ck_assert_int_eq(call_as(ALICE, publish, "cam/front"), 0);
    const char *log = dlx_configured_log("dlpackd.conf:2) denies \"publish\"");
    ck_assert_msg(strstr(log, "rule \"secret\" ("), "%s", log);
    ck_assert_msg(strstr(log, ", e2e_rules)"), "%s", log); /* the process, after its pid */
}

static int wait_for_subscribers(const char *topic)
{
    struct dlx_client *c = NULL;
    struct dlx_publisher *p = NULL;
    int r = dlx_configured_connect(dlx_test_stream_daemon.path, &c);
    if (r == 0)
        r = dlx_publisher_new(c, topic, NULL, &p);
    if (r == 0)
        fails(dlx_publisher_wait(p, 1, SECOND / 20), DLX_E_TIMEOUT,
              "who else has subscribed is not known: dlpackd's rules let this program not observe");
    dlx_publisher_unref(p);
    dlx_client_unref(c);
    return r;
}

TEST_OF(rules, a_wait_does_not_name_subscribers_that_may_not_be_observed)
{
    dlx_configured_start("[rule a]\nusers = 64001\ntopics = cam/**\nallow = publish\n");
    ck_assert_int_eq(call_as(ALICE, wait_for_subscribers, "cam/front"), 0);
}

static int wait_for_workers(const char *topic)
{
    struct dlx_client *c = NULL;
    struct dlx_caller *k = NULL;
    int r = dlx_configured_connect(dlx_test_stream_daemon.path, &c);
    if (r == 0)
        r = dlx_caller_new(c, topic, NULL, &k);
    if (r == 0)
        fails(
            dlx_caller_wait(k, SECOND / 20), DLX_E_TIMEOUT,
            "no worker is attached, and whether others serve it is not known: dlpackd's rules let "
            "this program not observe it");
    dlx_caller_unref(k);
    dlx_client_unref(c);
    return r;
}

TEST_OF(rules, a_caller_that_may_not_observe_is_told_so)
{
    dlx_configured_start("[rule a]\nusers = 64001\ntopics = svc/**\nallow = publish\n");
    ck_assert_int_eq(call_as(ALICE, wait_for_workers, "svc/add"), 0);
}

/* ---- observers ------------------------------------------------------------------------------ */

/* Counts what it is told of before all was told. */
static int n_observed(const char *pattern)
{
    struct dlx_observer *o = NULL;
    struct dlx_observed x = {.size = sizeof x};
    int n = -1;
    ok(dlx_observer_new(dlx_test_stream_connect(), pattern, NULL, &o));
    for (; x.kind != DLX_OBSERVED_ALL; n++)
        ok(dlx_observer_next(o, PATIENCE, &x));
    dlx_observer_unref(o);
    return -n;
}

TEST_OF(rules, observers_are_told_what_they_may_observe)
{
    dlx_configured_start(cameras);
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *front = dlx_test_stream_publisher(c, "cam/front", NULL),
                   *mic = dlx_test_stream_publisher(c, "mic", NULL);
    auto_subscription *rear = dlx_test_stream_subscribe(c, "cam/rear", NULL),
                      *all = dlx_test_stream_subscribe(c, "**", NULL),
                      *cams = dlx_test_stream_subscribe(c, "cam/*", NULL);
    ck_assert_int_eq(call_as(0, n_observed, "**"), -5);
    ck_assert_int_eq(call_as(ALICE, n_observed, "**"), -3); /* of cam: front, rear and cam/ * */
    ck_assert_int_eq(call_as(BOB, n_observed, "**"), 0);    /* it may subscribe, not observe */
}

/* ---- groups of workers --------------------------------------------------------------------- */

static int work_in(const char *group, const char *topic, const char *words)
{
    struct dlx_subscription *s = NULL;
    int r = dlx_subscribe(dlx_test_stream_connect(), topic, SUBSCRIBE(.group = group), &s);
    if (r < 0 && !strstr(dlx_errmsg(), words))
        (void)fprintf(stderr, "%s\n", dlx_errmsg());
    return r < 0 && !strstr(dlx_errmsg(), words) ? -200 : r;
}

/* Of a declared group. */
static int work(const char *topic)
{
    return work_in("g", topic, "may not be a worker of ");
}

static int work_otherwise(const char *topic)
{
    return work_in("other", topic, "may not be a worker of a group of ");
}

static int work_without_right(const char *topic)
{
    return work_in("other", topic, "uid 64002 may not make publishers wait on ");
}

static int declare(const char *topic)
{
    struct dlx_publisher *p = NULL;
    return dlx_publisher_new(dlx_test_stream_connect(), topic,
                             PUBLISHER(.groups = (const char *const[]){"g"}, .n_groups = 1), &p);
}

static const char all_may[] = "[rule all]\nusers = *\ntopics = cam/*\nallow = all\n";

TEST_OF(rules, workers_of_a_declared_group_are_of_the_user_of_its_publisher)
{
    dlx_configured_start(all_may);
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(
        c, "cam/a", PUBLISHER(.groups = (const char *const[]){"g"}, .n_groups = 1));
    ck_assert_int_eq(call_as(0, work, "cam/a"), 0);
    ck_assert_int_eq(call_as(BOB, work, "cam/a"), DLX_E_ACCESS);
    ck_assert_int_eq(call_as(BOB, work_otherwise, "cam/a"), 0); /* a group of its own */
}

TEST_OF(rules, workers_need_the_right_to_make_publishers_wait)
{
    dlx_configured_start(cameras);
    ck_assert_int_eq(call_as(BOB, work_without_right, "cam/front"), DLX_E_ACCESS);
    auto_publisher *p = dlx_test_stream_new_publisher("cam/front", NULL);
    ck_assert_int_eq(call_as(BOB, work_without_right, "cam/front"), DLX_E_ACCESS);
}

/* A service, whose callers are other users. */
TEST_OF(rules, a_rule_says_of_which_user_the_workers_are)
{
    dlx_configured_start("[rule service]\nusers = *\ntopics = cam/*\n"
                         "allow = publish subscribe block\nworkers = 64002\n");
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(
        c, "cam/a", PUBLISHER(.groups = (const char *const[]){"g"}, .n_groups = 1));
    ck_assert_int_eq(call_as(ALICE, declare, "cam/b"), 0);
    ck_assert_int_eq(call_as(BOB, work, "cam/a"), 0);
    ck_assert_int_eq(call_as(BOB, work_otherwise, "cam/a"), 0);
    ck_assert_int_eq(call_as(ALICE, work, "cam/a"), DLX_E_ACCESS);
    ck_assert_int_eq(call_as(0, work, "cam/a"), DLX_E_ACCESS);
    ck_assert_int_eq(call_as(ALICE, work_otherwise, "cam/a"), DLX_E_ACCESS);
    ck_assert_int_eq(call_as(ALICE, subscribe, "cam/a"), 0);
}

/* A user that takes or publishes, and reports the result by letters. */
struct user {
    struct dlx_test_part peer;
    uid_t uid;
    const char *topic;
};

static void tell(int sock, char c)
{
    if (send(sock, &c, 1, MSG_NOSIGNAL) != 1)
        _exit(101);
}

static void expect(const struct user *user, char c)
{
    char byte = 0;
    ck_assert_int_eq(recv(user->peer.sock, &byte, 1, 0), 1);
    ck_assert_int_eq(byte, c);
}

static int end_of(const struct user *user)
{
    close(user->peer.sock);
    return -dlx_test_fork_status(user->peer.pid);
}

/* Takes what comes; what ends it is its exit status. */
static void take(int sock, const void *userdata)
{
    const struct user *user = userdata;
    struct dlx_subscription *s = NULL;
    struct dlx_message *m = NULL;
    struct dlx_client *c = NULL;
    int r;
    dlx_test_user_become(user->uid);
    ok(dlx_configured_connect("s", &c));
    ok(dlx_subscribe(c, user->topic, NULL, &s));
    tell(sock, 's');
    /* The connection is lost first, and made again. */
    while ((r = dlx_take(s, PATIENCE, &m)) == 0 || r == DLX_E_DISCONNECTED) {
        if (r == 0)
            tell(sock, 'm');
        m = dlx_message_unref(m);
    }
    (void)fprintf(stderr, "%s\n", dlx_errmsg());
    _exit(-r);
}

static struct user begin(uid_t uid, void (*part)(int sock, const void *userdata), const char *topic)
{
    struct user user = {.uid = uid, .topic = topic};
    user.peer = dlx_test_part_begin(part, &user);
    expect(&user, 's');
    return user;
}

/* Bob may still use the daemon, but not this topic. */
TEST_OF(rules, a_subscriber_whose_right_was_taken_is_told_and_gets_it_back)
{
    dlx_configured_start(cameras);
    struct user bob = begin(BOB, take, "cam/front");
    dlx_configured_reload("[rule bob]\nusers = 64002\ntopics = cam/rear\nallow = subscribe\n",
                          "uid 64002 may not subscribe to cam/front: no rule allows it");
    ck_assert_int_eq(end_of(&bob), DLX_E_ACCESS);
    ck_assert_int_eq(call_as(BOB, subscribe, "cam/front"), DLX_E_ACCESS);
    dlx_configured_reload(cameras, "read the configuration again: 2 rules");
    ck_assert_int_eq(call_as(BOB, subscribe, "cam/front"), 0);
}

/* Says 's' when all was told, and then for each that it is told of whether it is there or gone. */
static void observe(int sock, const void *userdata)
{
    const struct user *user = userdata;
    struct dlx_observer *o = NULL;
    struct dlx_observed x = {.size = sizeof x};
    dlx_test_user_become(user->uid);
    ok(dlx_observer_new(dlx_test_stream_connect(), user->topic, NULL, &o));
    while (x.kind != DLX_OBSERVED_ALL)
        ok(dlx_observer_next(o, PATIENCE, &x));
    tell(sock, 's');
    for (;;) {
        ok(dlx_observer_next(o, PATIENCE, &x));
        tell(sock, x.kind == DLX_OBSERVED_ALL ? 'a' : x.gone ? 'g' : 't');
    }
}

/* What may not be observed any more is told as gone, and what may be again as there. */
TEST_OF(rules, sighup_hides_what_may_not_be_observed_any_more)
{
    dlx_configured_start(cameras);
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *front = dlx_test_stream_publisher(c, "cam/front", NULL),
                   *rear = dlx_test_stream_publisher(c, "cam/rear", NULL);
    struct user alice = begin(ALICE, observe, "cam/*");
    dlx_configured_reload("[rule a]\nusers = 64001\ntopics = cam/front\nallow = observe\n",
                          "read the configuration again: 1 rules");
    expect(&alice, 'g');
    expect(&alice, 'a');
    dlx_configured_reload(cameras, "read the configuration again: 2 rules");
    expect(&alice, 't');
    expect(&alice, 'a');
    dlx_test_part_kill(&alice.peer);
}

TEST_OF(rules, sighup_ends_links_that_are_not_allowed_any_more)
{
    dlx_configured_start(cameras);
    auto_publisher *p = dlx_test_stream_new_publisher("cam/front", NULL);
    struct user alice = begin(ALICE, take, "cam/front"), bob = begin(BOB, take, "cam/*");
    ok(dlx_publisher_wait(p, 2, PATIENCE));
    dlx_test_stream_publish(p, 10, 1);
    expect(&alice, 'm');
    expect(&bob, 'm');
    /* A bad file changes nothing. */
    dlx_configured_reload("[rule alice]\nusers = 64001\nnonsense\n",
                          "the configuration stays as it was: ");
    (void)dlx_configured_log("dlpackd.conf:3: neither");
    dlx_test_stream_publish(p, 10, 1);
    expect(&bob, 'm');
    expect(&alice, 'm');
    dlx_configured_reload("[rule alice]\nusers = 64001\ntopics = cam/**\nallow = subscribe\n",
                          "read the configuration again: 1 rules");
    ck_assert_int_eq(end_of(&bob), DLX_E_ACCESS);
    dlx_test_stream_publish(p, 10, 1);
    expect(&alice, 'm');
    ok(dlx_publisher_wait(p, 0, 0));
    ck_assert_uint_eq(dlx_test_stream_stats(p).n_subscribers, 1);
    dlx_test_part_kill(&alice.peer);
}

/* The next event of this kind, and its reason. */
static void expect_lost(struct dlx_subscription *s, const char *words)
{
    struct dlx_event event = {.size = sizeof event};
    do
        ok(dlx_subscription_next_event(s, &event));
    while (event.kind != DLX_EVENT_LOST);
    contains(event.reason, words);
}

/* Takes as long as there is something, and may be stopped between two messages. */
static void take_reliably(int sock, const void *userdata)
{
    const struct user *user = userdata;
    struct dlx_subscription *s = NULL;
    struct dlx_message *m = NULL;
    struct dlx_client *c = NULL;
    int r;
    dlx_test_user_become(user->uid);
    ok(dlx_configured_connect("s", &c));
    ok(dlx_subscribe(c, user->topic, SUBSCRIBE_RELIABLY, &s));
    tell(sock, 's');
    while ((r = dlx_take(s, PATIENCE, &m)) == 0)
        m = dlx_message_unref(m);
    ck_assert_int_eq(r, DLX_E_ACCESS);
    contains(dlx_errmsg(), "uid 64002 may not subscribe to cam/front");
    expect_lost(s, "uid 64002 may not subscribe to cam/front");
    r = dlx_take(s, 0, &m); /* neither is the daemon gone, nor the publisher */
    ck_assert(r == DLX_E_EMPTY || r == DLX_E_ACCESS);
}

static const char blocks[] = "[rule bob]\nusers = 64002\ntopics = cam/front\n"
                             "allow = subscribe block\n";
static const char nothing_for_bob[] = "[rule bob]\nusers = 64002\ntopics = cam/rear\n"
                                      "allow = subscribe\n";

static void expect_subscriber_lost(struct dlx_publisher *p)
{
    struct dlx_event event = {.size = sizeof event};
    do
        ok(dlx_publisher_next_event(p, &event));
    while (event.kind != DLX_EVENT_LOST);
    contains(event.reason, "dlpackd disconnected it: permission denied");
}

static uint64_t n_cut(struct dlx_publisher *p)
{
    return dlx_test_stream_stats(p).cut;
}

static void publish_reliably(struct dlx_publisher *p, int64_t value)
{
    ok(dlx_publish(p, dlx_test_stream_alloc(p, 10, value), PUBLISH(.timeout_ns = PATIENCE), NULL));
}

/* Messages never end, so the subscriber never finds that nothing is there. */
TEST_OF(rules, a_busy_subscriber_whose_right_was_taken_gets_nothing_new)
{
    dlx_configured_start(blocks);
    auto_publisher *p = dlx_test_stream_new_publisher("cam/front", PUBLISHER_BLOCKING());
    struct user bob = begin(BOB, take_reliably, "cam/front");
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    for (int64_t i = 1; i <= 1000; i++)
        publish_reliably(p, i);
    dlx_configured_reload(nothing_for_bob, "uid 64002 may not subscribe to cam/front");
    for (int64_t i = 1001; n_cut(p) == 0; i++)
        publish_reliably(p, i);
    expect_subscriber_lost(p);
    ck_assert_uint_eq(dlx_test_stream_stats(p).n_subscribers, 0);
    ck_assert_int_eq(end_of(&bob), 0);
}

TEST_OF(rules, a_stopped_subscriber_whose_right_was_taken_blocks_nobody)
{
    dlx_configured_start(blocks);
    auto_publisher *p = dlx_test_stream_new_publisher("cam/front", PUBLISHER_BLOCKING());
    struct user bob = begin(BOB, take_reliably, "cam/front");
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    ck_assert_int_eq(kill(bob.peer.pid, SIGSTOP), 0);
    int64_t i = 1;
    auto_tensor *t = NULL;
    for (; !t; i++) {
        t = dlx_test_stream_alloc(p, 10, i);
        if (dlx_publish(p, t, PUBLISH(.timeout_ns = 0), NULL) == 0)
            t = NULL;
    }
    dlx_configured_reload(nothing_for_bob, "uid 64002 may not subscribe to cam/front");
    ok(dlx_publish(p, t, PUBLISH(.timeout_ns = PATIENCE), NULL));
    t = NULL;
    for (int k = 0; k < 1000; k++)
        dlx_test_stream_publish(p, 10, i++);
    expect_subscriber_lost(p);
    ck_assert_int_eq(kill(bob.peer.pid, SIGCONT), 0);
    ck_assert_int_eq(end_of(&bob), 0);
}

enum { BURST = 512 };

static void publish_burst(struct dlx_publisher *p)
{
    for (int64_t i = 1; i <= BURST; i++)
        dlx_test_stream_publish(p, 10, i);
}

/* Publishes whenever it is told to, by a path at which it finds no daemon any more: so it takes its
 * disconnection for the daemon's end. */
static void publish_bursts(int sock, const void *userdata)
{
    const struct user *user = userdata;
    struct dlx_client *c = NULL;
    dlx_test_user_become(user->uid);
    ok(dlx_configured_connect("alias", &c));
    struct dlx_publisher *p =
        dlx_test_stream_publisher(c, user->topic, PUBLISHER(.depth = 2 * BURST, .history = 1));
    tell(sock, 's');
    for (;;) {
        dlx_test_hear(sock);
        publish_burst(p);
        tell(sock, 'b');
    }
}

static void burst(const struct user *user)
{
    dlx_test_say(user->peer.sock);
    expect(user, 'b');
}

static int take_burst(struct dlx_subscription *s)
{
    struct dlx_message *m = NULL;
    int r = 0;
    for (int i = 0; i < BURST && r == 0; i++) {
        r = dlx_take(s, PATIENCE, &m);
        m = dlx_message_unref(m);
    }
    return r;
}

/* The subscriber always finds a message. */
TEST_OF(rules, a_publisher_that_goes_on_without_its_right_is_left)
{
    dlx_configured_start(cameras);
    char alias[sizeof dlx_configured_path + 8];
    (void)snprintf(alias, sizeof alias, "%.*s/alias",
                   (int)(strrchr(dlx_test_stream_daemon.path, '/') - dlx_test_stream_daemon.path),
                   dlx_test_stream_daemon.path);
    ck_assert_int_eq(symlink("s", alias), 0);
    struct user alice = begin(ALICE, publish_bursts, "cam/front");
    ck_assert_int_eq(unlink(alias), 0);
    auto_subscription *s = dlx_test_stream_new_subscription("cam/front", NULL);
    burst(&alice);
    dlx_configured_reload("[rule alice]\nusers = 64001\ntopics = cam/rear\nallow = publish\n",
                          "uid 64001 may not publish on cam/front: no rule allows it");
    int r = 0;
    for (uint64_t until = dlx__deadline(PATIENCE); r == 0; dlx_test_before(until)) {
        burst(&alice);
        r = take_burst(s);
    }
    ck_assert_int_eq(r, DLX_E_PUBLISHER_GONE);
    ck_assert_ptr_nonnull(strstr(dlx_errmsg(), "dlpackd has disconnected it"));
    expect_lost(s, "its publisher publishes, though dlpackd has disconnected it");
    dlx_test_part_kill(&alice.peer);
}

/* The result of a call that publishes, or waits for a subscriber. */
static int publish_once(struct dlx_publisher *p)
{
    const struct dlx_tensor_spec spec = INT64_SPEC((const int64_t[]){10});
    DLManagedTensorVersioned *t = NULL;
    int r = dlx_alloc(p, &spec, &t);
    if (r < 0)
        return r;
    r = dlx_publish(p, t, NULL, NULL);
    if (r < 0)
        t->deleter(t);
    return r;
}

/* Publishes as long as that has this code: returns the next one; after a while, this one. */
static int publish_while(struct dlx_publisher *p, int code)
{
    uint64_t end = dlx__deadline(PATIENCE);
    int r;
    do
        r = publish_once(p);
    while (r == code && dlx__now_ns() < end);
    return r;
}

/* Publishes as fast as it can, and says when that is refused, and when it may again. */
static void publish_on(int sock, const void *userdata)
{
    const struct user *user = userdata;
    dlx_test_user_become(user->uid);
    auto_publisher *p = dlx_test_stream_new_publisher(user->topic, NULL);
    tell(sock, 's');
    fails(publish_while(p, 0), DLX_E_ACCESS, "uid 64001 may not publish on");
    ck_assert_int_eq(publish_once(p), DLX_E_ACCESS);
    ck_assert_int_eq(dlx_publisher_wait(p, 1, PATIENCE), DLX_E_ACCESS);
    tell(sock, 'r');
    ok(publish_while(p, DLX_E_ACCESS));
    tell(sock, 'a');
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    ok(publish_once(p));
}

/* Alice may still use the daemon, but not this topic. */
TEST_OF(rules, a_publisher_whose_right_was_taken_is_told_and_gets_it_back)
{
    dlx_configured_start(cameras);
    struct user alice = begin(ALICE, publish_on, "cam/front");
    dlx_configured_reload("[rule alice]\nusers = 64001\ntopics = cam/rear\nallow = publish\n",
                          "uid 64001 may not publish on cam/front: no rule allows it");
    expect(&alice, 'r');
    dlx_configured_reload(cameras, "read the configuration again: 2 rules");
    expect(&alice, 'a');
    auto_subscription *s = dlx_test_stream_new_subscription("cam/front", NULL);
    dlx_message_unref(dlx_test_stream_next(s));
    ck_assert_int_eq(end_of(&alice), 0);
}

/* ---- files that cannot be read ------------------------------------------------------------- */

static const char *in_conf_d(const char *name)
{
    static char path[sizeof dlx_configured_path + 40];
    (void)snprintf(path, sizeof path, "%.*s/conf.d%s",
                   (int)(strrchr(dlx_configured_path, '/') - dlx_configured_path),
                   dlx_configured_path, name);
    return path;
}

static void expect_served(void)
{
    auto_publisher *p = dlx_test_stream_new_publisher("cam/front", NULL);
    auto_subscription *s = dlx_test_stream_new_subscription("cam/front", NULL);
    dlx_test_stream_publish(p, 10, 1);
    dlx_test_stream_expect(s, 10, 1);
}

TEST_OF(rules, a_fifo_in_conf_d_is_refused)
{
    dlx_configured_start(cameras);
    ck_assert_int_eq(mkdir(in_conf_d(""), 0700), 0);
    ck_assert_int_eq(mkfifo(in_conf_d("/x.conf"), 0600), 0);
    dlx_configured_reload(cameras, "the configuration stays as it was: ");
    (void)dlx_configured_log("conf.d/x.conf is not a regular file");
    expect_served();
    ck_assert_int_eq(unlink(in_conf_d("/x.conf")), 0);
    ck_assert_int_eq(rmdir(in_conf_d("")), 0);
}

/* The file lies on a file system that has stopped answering. */
TEST_OF(rules, a_configuration_that_cannot_be_read_delays_nobody)
{
    struct dlx_test_fuse fuse;
    char target[64];
    dlx_configured_start(cameras);
    if (!dlx_test_fuse_start(&fuse))
        return;
    (void)snprintf(target, sizeof target, "/proc/%d/fd/%d", (int)getpid(), fuse.fd);
    ck_assert_int_eq(mkdir(in_conf_d(""), 0700), 0);
    ck_assert_int_eq(symlink(target, in_conf_d("/x.conf")), 0);
    dlx_test_fuse_mute(&fuse);
    ck_assert_int_eq(kill(dlx_test_stream_daemon.pid, SIGHUP), 0);
    dlx_test_fuse_wait(&fuse.asked->open);
    ck_assert_int_eq(kill(dlx_test_stream_daemon.pid, SIGHUP), 0);
    expect_served();
    dlx_test_fuse_end(&fuse);
    (void)dlx_configured_log("the configuration stays as it was: ");
    expect_served();
    ck_assert_int_eq(unlink(in_conf_d("/x.conf")), 0);
    ck_assert_int_eq(rmdir(in_conf_d("")), 0);
}

int main(void)
{
    return dlx_test_run_cases();
}
