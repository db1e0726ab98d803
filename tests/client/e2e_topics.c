/* SPDX-License-Identifier: Apache-2.0 */

/* Patterns that follow publishers as they come and go, several publishers of a topic, and the
 * events that tell of both sides. */

#include "tests/harness/fork.h"
#include "tests/harness/stream.h"
#include <stdatomic.h>
#include <sys/resource.h>

static struct dlx_publisher *new_publisher(struct dlx_client *c, const char *topic)
{
    return dlx_test_stream_publisher(c, topic, NULL);
}

static struct dlx_subscription *new_subscription(struct dlx_client *c, const char *pattern)
{
    return dlx_test_stream_subscribe(c, pattern, NULL);
}

/* The next message is from this topic, with this value. */
static void expect(struct dlx_subscription *s, const char *topic, int64_t value)
{
    auto_message *m = dlx_test_stream_next(s);
    ck_assert_str_eq(dlx_message_topic(m), topic);
    dlx_test_stream_check(m, 10, value);
}

static void expect_nothing(struct dlx_subscription *s)
{
    take_fails(s, 0, DLX_E_EMPTY, "");
}

static uint32_t n_publishers(struct dlx_subscription *s)
{
    return dlx_test_stream_subscription_stats(s).n_publishers;
}

TEST(a_pattern_follows_publishers_as_they_come_and_go)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *front = new_publisher(c, "cam/front"), *other = new_publisher(c, "lidar/front"),
                   *deep = new_publisher(c, "cam/a/b");
    auto_subscription *s = dlx_test_stream_subscribe(c, "cam/*", SUBSCRIBE(.n_publishers = 1));
    auto_subscription *all = new_subscription(c, "**");
    ck_assert_uint_eq(n_publishers(s), 1);
    ck_assert_uint_eq(n_publishers(all), 3);
    dlx_test_stream_publish(front, 10, 1);
    expect(s, "cam/front", 1);
    dlx_test_stream_publish(other, 10, 2);
    dlx_test_stream_publish(deep, 10, 3);
    expect_nothing(s);
    /* A later publisher loses nothing. */
    struct dlx_publisher *rear = new_publisher(c, "cam/rear");
    dlx_test_stream_publish_all(rear, 10, 4, 5);
    expect(s, "cam/rear", 4);
    expect(s, "cam/rear", 5);
    /* A new one on the same topic, after the first has left. */
    dlx_test_stream_publish(rear, 10, 6);
    dlx_publisher_unref(rear);
    rear = new_publisher(c, "cam/rear");
    dlx_test_stream_publish(rear, 10, 7);
    expect(s, "cam/rear", 6);
    expect(s, "cam/rear", 7);
    front = dlx_publisher_unref(front);
    expect_nothing(s);
    dlx_publisher_unref(rear);
    take_fails(s, PATIENCE, DLX_E_PUBLISHER_GONE, "cam/*");
    expect_nothing(s);
}

/* Notifications that one link waits for may be read while a take looks at another link, or spins: a
 * take that spins, one that sleeps, and a caller that polls. */
LOOP_TEST(first_messages_of_many_publishers_arrive, 0, 3)
{
    enum { N_FIRST = 256, AT_ONCE = 16 };
    const bool polls = _i == 2;
    auto_client *c = dlx_test_stream_connect();
    struct dlx_publisher *p[N_FIRST];
    char topic[32];
    for (int i = 0; i < N_FIRST; i++) {
        (void)snprintf(topic, sizeof topic, "cam/%d", i);
        p[i] = new_publisher(c, topic);
    }
    auto_subscription *s =
        dlx_test_stream_subscribe(c, "cam/*", SUBSCRIBE(.spin_ns = _i == 1 ? DLX_SPIN_NEVER : 0));
    uint64_t began = dlx__now_ns();
    for (int i = 0; i < N_FIRST; i++) {
        dlx_test_stream_publish(p[i], 10, i);
        for (int k = 0; k < AT_ONCE && i % AT_ONCE == AT_ONCE - 1; k++) {
            auto_message *m = NULL;
            int r = DLX_E_EMPTY;
            while (polls && (r = dlx_take(s, 0, &m)) == DLX_E_EMPTY)
                dlx_test_wait_readable(dlx_subscription_fd(s));
            ok(polls ? r : dlx_take(s, PATIENCE, &m));
            /* A take that slept through notifications finds the message in the end. */
            ck_assert_uint_lt(dlx__now_ns() - began, PATIENCE);
        }
    }
    expect_nothing(s);
    dlx_test_stream_unref_publishers(p, N_FIRST);
}

/* The subscriber did not ask its publisher to ring: only this take reads what the daemon tells of
 * it. */
TEST(news_that_an_event_was_made_of_wake_who_polls)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *other = new_publisher(c, "cam/other");
    auto_subscription *s = new_subscription(c, "cam/*");
    struct dlx_event e = {.size = sizeof e};
    ok(dlx_subscription_next_event(s, &e));
    expect_nothing(s);
    const int fd = dlx_subscription_fd(s);
    for (int i = 0; i < 4; i++) {
        char topic[16];
        (void)snprintf(topic, sizeof topic, "cam/%d", i);
        expect_nothing(s);
        while (dlx_test_is_readable(fd, 0))
            expect_nothing(s);
        struct dlx_publisher *p = new_publisher(c, topic);
        while (dlx_subscription_next_event(s, &e) == DLX_E_EMPTY)
            continue;
        ck_assert_uint_eq(e.kind, DLX_EVENT_JOINED);
        ck_assert(dlx_test_is_readable(fd, 0));
        while (dlx_test_is_readable(fd, 0))
            expect_nothing(s);
        dlx_test_stream_publish(p, 10, i);
        dlx_test_wait_readable(fd);
        expect(s, topic, i);
        dlx_publisher_unref(p);
        while (dlx_subscription_next_event(s, &e) == DLX_E_EMPTY || e.kind != DLX_EVENT_LEFT)
            expect_nothing(s);
    }
}

TEST(a_pattern_gets_what_is_retained)
{
    auto_client *c = dlx_test_stream_connect();
    static const char *const topics[] = {"weights/a", "weights/b", "weights/b/bias", "weights-c"};
    for (int i = 0; i < 4; i++) {
        auto_publisher *p = dlx_test_stream_publisher(c, topics[i], PUBLISHER(.retain = 1));
        dlx_test_stream_publish(p, 10, i);
    }
    auto_subscription *s = dlx_test_stream_subscribe(c, "weights/*", SUBSCRIBE(.n_publishers = 1));
    auto_message *newest = NULL;
    unsigned seen = 0;
    for (int i = 0; i < 2; i++) {
        auto_message *next = dlx_test_stream_next(s);
        seen |= 1U << dlx_message_topic(next)[8] % 32;
    }
    ck_assert_uint_eq(seen, 1U << 'a' % 32 | 1U << 'b' % 32);
    take_fails(s, SECOND, DLX_E_PUBLISHER_GONE, "");
    ok(dlx_get(c, "weights/**", 0, &newest)); /* of several */
    ck_assert_str_eq(dlx_message_topic(newest), "weights/b/bias");
    fails(dlx_drop_retained(c, "weights/*"), DLX_E_TOPIC, "'*'");
}

static int note(const struct dlx_publisher_info *info, void *userdata)
{
    char *names = userdata;
    (void)snprintf(names + strlen(names), 200 - strlen(names), "%s ", info->topic);
    return 0;
}

/* Of each topic the newest message counts, whichever topic is the newer one. */
LOOP_TEST(latest_of_a_pattern_skips_nothing_of_another_topic, 0, 2)
{
    const char *const topics[] = {"cam/front", "cam/rear"};
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *front = new_publisher(c, topics[0]), *rear = new_publisher(c, topics[1]);
    auto_subscription *s =
        dlx_test_stream_subscribe(c, "cam/*", SUBSCRIBE(.mode = DLX_MODE_LATEST));
    for (int round = 1; round <= 4; round++) {
        bool got[2] = {false, false};
        dlx_test_stream_publish(_i ? front : rear, 10, round);
        dlx_test_stream_publish(_i ? rear : front, 10, round);
        for (int k = 0; k < 2; k++) {
            auto_message *m = dlx_test_stream_next(s);
            got[strcmp(dlx_message_topic(m), topics[1]) == 0] = true;
            dlx_test_stream_check(m, 10, round);
            ck_assert_uint_eq(dlx_test_stream_subscription_stats(s).skipped, 0);
        }
        ck_assert(got[0] && got[1]);
    }
}

TEST(publishers_are_listed_by_pattern)
{
    auto_client *c = dlx_test_stream_connect();
    static const char *const topics[] = {"b/x", "a", "a/x", "a/y", "a-b", "ab/x", "a/x/z"};
    static const struct {
        const char *pattern, *names;
    } lists[] = {
        {NULL, "a a-b a/x a/x/z a/y ab/x b/x "},
        {"a/x", "a/x "},
        {"a/*", "a/x a/y "},
        {"a*", "a a-b "},
        {"*/x", "a/x ab/x b/x "},
        {"**", "a a-b a/x a/x/z a/y ab/x b/x "},
        {"a/**", "a/x a/x/z a/y "},
        {"c*", ""},
        {"a/x/z/*", ""},
        {"zzz", ""},
    };
    struct dlx_publisher *p[DLX_ARRAY_SIZE(topics)];
    for (size_t i = 0; i < DLX_ARRAY_SIZE(topics); i++)
        p[i] = new_publisher(c, topics[i]);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(lists); i++) {
        char names[200] = "";
        ok(dlx_list_publishers(c, lists[i].pattern, note, names));
        ck_assert_str_eq(names, lists[i].names);
    }
    dlx_test_stream_unref_publishers(p, DLX_ARRAY_SIZE(topics));
}

static int add(const struct dlx_publisher_info *info, void *userdata)
{
    unsigned *n = userdata;
    ck_assert_uint_eq(*n / 2, (unsigned)strtoul(info->topic + 4, NULL, 10));
    ++*n;
    return 0;
}

/* More than fit into one packet, two on each topic. */
TEST(long_lists_by_pattern_are_complete)
{
    enum { N = 60 };
    auto_client *c = dlx_test_stream_connect();
    struct dlx_publisher *p[2 * N];
    auto_publisher *other = new_publisher(c, "cam/b");
    for (int i = 0; i < 2 * N; i++) {
        char topic[16];
        (void)snprintf(topic, sizeof topic, "cam/%03d", i % N);
        p[i] = new_publisher(c, topic);
    }
    unsigned n = 0;
    ok(dlx_list_publishers(c, "cam/0*", add, &n));
    ck_assert_uint_eq(n, 2 * N);
    dlx_test_stream_unref_publishers(p, 2 * N);
}

static int on_link(const struct dlx_link_info *info, void *userdata)
{
    uint64_t **last = userdata;
    ck_assert_uint_gt(info->link, **last);
    *++*last = info->link;
    return 0;
}

/* A packet has 32 links. */
TEST(links_of_a_publisher_are_listed_once_each)
{
    enum { N = 70 };
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = new_publisher(c, "test/a");
    struct dlx_subscription *s[N];
    uint64_t links[N + 2] = {0}, *last = links;
    struct dlx_publisher_info info;
    ck_assert_uint_eq(dlx_test_stream_list(c, &info), 1);
    for (int i = 0; i < N; i++) {
        last = links;
        ok(dlx_list_links(c, info.publisher, on_link, &last));
        ck_assert_int_eq(last - links, i);
        s[i] = new_subscription(c, "test/a");
    }
    dlx_test_stream_unref_subscriptions(s, N);
}

TEST(patterns_of_a_user_have_a_limit)
{
    auto_client *c = dlx_test_stream_connect();
    struct dlx_subscription *s[1025] = {0};
    int r = 0, n;
    struct rlimit limit = {.rlim_cur = 4096, .rlim_max = 4096}; /* two fds each */
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    for (n = 0; n <= 1024 && r == 0; n++)
        r = dlx_subscribe(c, "a/*", NULL, &s[n]);
    ck_assert_msg(n == 1025 && r == DLX_E_LIMIT && strstr(dlx_errmsg(), "1024"), "%d: %d: %s", n, r,
                  dlx_errmsg());
    dlx_test_stream_unref_subscriptions(s, (size_t)n);
}

/* Of a publisher, or else of a subscription. */
static struct dlx_event wait_event(struct dlx_publisher *p, struct dlx_subscription *s)
{
    struct dlx_event e = {.size = sizeof e};
    int r;
    eventually((r = p ? dlx_publisher_next_event(p, &e) : dlx_subscription_next_event(s, &e)) !=
               DLX_E_EMPTY);
    ok(r);
    return e;
}

static void is_event(const struct dlx_event *e, uint32_t kind, pid_t pid)
{
    ck_assert_uint_eq(e->kind, kind);
    ck_assert_uint_eq(e->pid, (uint32_t)pid);
}

TEST(events_tell_who_came_and_left)
{
    auto_client *c = dlx_test_stream_connect(), *c2 = dlx_test_stream_connect();
    struct dlx_publisher *p = new_publisher(c, "cam/front");
    struct dlx_event e = {.size = sizeof e};
    ck_assert_int_eq(dlx_publisher_next_event(p, &e), DLX_E_EMPTY);
    auto_subscription *s = new_subscription(c2, "cam/*");
    ok(dlx_publisher_next_event(p, &e));
    is_event(&e, DLX_EVENT_JOINED, getpid());
    ck_assert_str_eq(e.topic, "cam/front");
    uint64_t link = e.link, publisher = e.publisher;
    ok(dlx_subscription_next_event(s, &e));
    ck_assert_uint_eq(e.kind, DLX_EVENT_JOINED);
    ck_assert_uint_eq(e.link, link);
    ck_assert_uint_eq(e.publisher, publisher);
    ck_assert_uint_eq(e.missed, 0);
    ck_assert_int_eq(dlx_subscription_next_event(s, &e), DLX_E_EMPTY);
    /* A subscription that leaves while it holds a message: told at once, and only once. */
    dlx_test_stream_publish(p, 10, 1);
    struct dlx_message *m = dlx_test_stream_next(s);
    s = dlx_subscription_unref(s);
    e = wait_event(p, NULL);
    ck_assert_uint_eq(e.kind, DLX_EVENT_LEFT);
    ck_assert_uint_eq(e.link, link);
    dlx_message_unref(m);
    s = new_subscription(c2, "cam/front");
    e = wait_event(p, NULL);
    ck_assert_uint_eq(e.kind, DLX_EVENT_JOINED);
    ck_assert_uint_gt(e.link, link);
    ck_assert_int_eq(dlx_publisher_next_event(p, &e), DLX_E_EMPTY);
    /* A publisher leaves once everything is taken. */
    dlx_test_stream_publish(p, 10, 2);
    dlx_publisher_unref(p);
    ck_assert_uint_eq(wait_event(NULL, s).kind, DLX_EVENT_JOINED);
    ck_assert_int_eq(dlx_subscription_next_event(s, &e), DLX_E_EMPTY);
    expect(s, "cam/front", 2);
    ck_assert_int_eq(dlx_take(s, SECOND, &m), DLX_E_PUBLISHER_GONE);
    ck_assert_uint_eq(wait_event(NULL, s).kind, DLX_EVENT_LEFT);
    fails(dlx_subscription_next_event(s, NULL), DLX_E_INVALID, "NULL");
    fails(dlx_publisher_next_event(NULL, &e), DLX_E_INVALID, "NULL");
}

static pid_t publish_elsewhere(void)
{
    struct dlx_test_child child = dlx_test_fork_child();
    if (child.pid == 0) {
        (void)new_publisher(dlx_test_stream_connect(), "test/b");
        dlx_test_fork_ready(&child);
    }
    return dlx_test_fork_wait_ready(&child);
}

TEST(events_tell_who_died)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = new_publisher(c, "test/a");
    auto_subscription *s = new_subscription(c, "test/b");
    pid_t subscriber = dlx_test_stream_subscribe_elsewhere(NULL), publisher = publish_elsewhere();
    ck_assert_uint_eq(wait_event(p, NULL).pid, (uint32_t)subscriber);
    ck_assert_uint_eq(wait_event(NULL, s).pid, (uint32_t)publisher);
    dlx_test_fork_kill(subscriber);
    dlx_test_fork_kill(publisher);
    struct dlx_event e = wait_event(p, NULL);
    is_event(&e, DLX_EVENT_LOST, subscriber);
    take_fails(s, PATIENCE, DLX_E_PUBLISHER_GONE, "");
    e = wait_event(NULL, s);
    is_event(&e, DLX_EVENT_LOST, publisher);
}

TEST(events_that_nobody_fetches_are_counted)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = new_publisher(c, "t");
    for (int i = 0; i < 50; i++) {
        dlx_subscription_unref(new_subscription(c, "t"));
        ok(dlx_publisher_wait(p, 0, 0)); /* notices */
    }
    struct dlx_event e = wait_event(p, NULL);
    ck_assert_uint_ge(e.missed, 30);
    uint32_t n = 1;
    while (dlx_publisher_next_event(p, &e) == 0) {
        ck_assert_uint_eq(e.missed, 0);
        n++;
    }
    ck_assert_uint_ge(n, 60);
    ck_assert_uint_le(n, 66);
}

struct crowd {
    atomic_bool stop;
    const char *topic;
};

static void *come_and_go(void *userdata)
{
    struct crowd *x = userdata;
    auto_client *c = dlx_test_stream_connect();
    while (!atomic_load(&x->stop))
        dlx_publisher_unref(new_publisher(c, x->topic));
    return NULL;
}

/* Links of publishers that come meanwhile are not those that dlx_subscribe() waits for. */
TEST(a_message_published_after_a_subscribe_reaches_it_while_others_come_and_go)
{
    enum { N = 6, ROUNDS = 150 };
    auto_client *c = dlx_test_stream_connect();
    struct dlx_publisher *p[N];
    struct crowd crowds[2] = {{.topic = "test/another"}, {.topic = "test/other"}};
    pthread_t threads[2];
    for (int i = 0; i < N; i++) {
        p[i] = new_publisher(c, "test/a");
        dlx_test_stream_publish(p[i], 10, 0);
    }
    for (int i = 0; i < 2; i++)
        threads[i] = dlx_test_stream_thread(come_and_go, &crowds[i]);
    for (int round = 1; round <= ROUNDS; round++) {
        auto_subscription *s = new_subscription(c, "test/*");
        for (int i = 0; i < N; i++)
            dlx_test_stream_publish(p[i], 10, round);
        for (int n = 0; n < N;) {
            auto_message *m = NULL;
            int r = dlx_take(s, 2 * SECOND, &m);
            if (r == DLX_E_PUBLISHER_GONE)
                continue;
            ck_assert_msg(r == 0, "round %d: %d of %d came", round, n, N);
            dlx_test_stream_check(m, 10, round);
            n++;
        }
    }
    for (int i = 0; i < 2; i++) {
        atomic_store(&crowds[i].stop, true);
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    }
    dlx_test_stream_unref_publishers(p, N);
}
