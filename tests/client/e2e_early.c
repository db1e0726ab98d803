/* SPDX-License-Identifier: Apache-2.0 */

/* A subscription counts from the moment dlx_subscribe() returned, also for publishers that come
 * later and while the subscriber makes no call of the library. */

#include "tests/harness/fork.h"
#include "tests/harness/stream.h"

#define DEPTH 8

static const struct dlx_publisher_args block = {
    .size = sizeof block, .depth = DEPTH, .on_full = DLX_ON_FULL_BLOCK};
static const struct dlx_publisher_args drop = {.size = sizeof drop, .depth = DEPTH};

static void publish(struct dlx_publisher *p, int64_t from, int64_t to)
{
    dlx_test_stream_publish_all(p, 10, from, to);
}

static void take(struct dlx_subscription *s, int64_t from, int64_t to)
{
    dlx_test_stream_take_all(s, from, to);
}

/* Takes until the last publisher has left. Returns how many came. */
static uint64_t drain(struct dlx_subscription *s)
{
    struct dlx_message *m = NULL;
    uint64_t n = 0;
    int r;
    while ((r = dlx_take(s, PATIENCE, &m)) == 0) {
        dlx_message_unref(m);
        n++;
    }
    ck_assert_int_eq(r, DLX_E_PUBLISHER_GONE);
    return n;
}

/* A process that publishes 1 to n on test/a, says so, and ends as it is told to. */
enum end { CLOSES, EXITS, IS_KILLED };
static void publish_elsewhere(const struct dlx_publisher_args *args, int64_t n, enum end end)
{
    struct dlx_test_peer peer = dlx_test_fork_peer();
    if (peer.pid == 0) {
        struct dlx_client *c = dlx_test_stream_connect();
        struct dlx_publisher *p = dlx_test_stream_publisher(c, "test/a", args);
        publish(p, 1, n);
        if (end == CLOSES) {
            dlx_publisher_unref(p);
            dlx_client_unref(c);
        }
        dlx_test_peer_say(&peer);
        if (end == IS_KILLED)
            dlx_test_peer_hear(&peer);
        _exit(0);
    }
    dlx_test_peer_hear(&peer);
    (end == IS_KILLED ? dlx_test_peer_kill : dlx_test_peer_join)(&peer);
}

static uint64_t n_lost(struct dlx_subscription *s)
{
    return dlx_test_stream_subscription_stats(s).lost;
}

LOOP_TEST(a_reliable_subscriber_that_sleeps_elsewhere_gets_all_of_a_publisher_that_ends, 0, 3)
{
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/a", SUBSCRIBE_RELIABLY);
    publish_elsewhere(&block, DEPTH, (enum end)_i);
    take(s, 1, DEPTH);
    ck_assert_uint_eq(drain(s), 0);
    ck_assert_uint_eq(n_lost(s), 0);
}

/* Returns the tensor of the message that there is no room for. */
static DLManagedTensorVersioned *publish_until_full(struct dlx_publisher *p)
{
    publish(p, 1, DEPTH);
    DLManagedTensorVersioned *next = dlx_test_stream_alloc(p, 10, DEPTH + 1);
    fails(dlx_publish(p, next, NULL, NULL), DLX_E_FULL, "depth");
    return next;
}

TEST(a_publisher_waits_at_its_depth_for_a_subscriber_that_sleeps_elsewhere)
{
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/a", SUBSCRIBE_RELIABLY);
    struct dlx_publisher *p = dlx_test_stream_publisher(c, "test/a", &block);
    DLManagedTensorVersioned *next = publish_until_full(p);
    take(s, 1, 1);
    ok(dlx_publish(p, next, PUBLISH(.timeout_ns = PATIENCE), NULL));
    take(s, 2, DEPTH + 1);
    dlx_publisher_unref(p);
    ck_assert_uint_eq(drain(s), 0);
    ck_assert_uint_eq(n_lost(s), 0);
}

LOOP_TEST(messages_that_an_unreliable_subscriber_does_not_get_count_as_lost, 0, 3)
{
    const uint64_t n_published = 1000;
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/a", NULL);
    publish_elsewhere(&drop, (int64_t)n_published, (enum end)_i);
    uint64_t n = drain(s);
    ck_assert_uint_ge(n, 1);
    ck_assert_uint_eq(n + n_lost(s), n_published);
}

/* More publishers than there are spare links: of those that got none, and have left, every message
 * is counted. */
LOOP_TEST(messages_of_publishers_that_found_no_spare_link_count_as_lost, 0, 3)
{
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/a", NULL);
    for (int i = 0; i < 4; i++)
        publish_elsewhere(&drop, DEPTH, (enum end)_i);
    uint64_t n = drain(s);
    while (n + n_lost(s) < 4 * DEPTH) {
        dlx_message_unref(dlx_test_stream_next(s));
        n++;
    }
    ck_assert_uint_ge(n, 2 * DEPTH);
    ck_assert_uint_eq(n + n_lost(s), 4 * DEPTH);
}

/* So many that one LinkFailed tells of most of them: the number is exact. */
TEST(messages_of_many_short_lived_publishers_are_counted_one_by_one)
{
    enum { N_PUBLISHERS = 300 };
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/*", SUBSCRIBE(.n_publishers = 1));
    struct dlx_message *m = NULL;
    uint64_t n = 0;
    for (int i = 0; i < N_PUBLISHERS; i++) {
        auto_publisher *p = dlx_test_stream_publisher(other, "test/a", &drop);
        publish(p, 1, DEPTH);
    }
    while (n + n_lost(s) < (uint64_t)N_PUBLISHERS * DEPTH) {
        int r = dlx_take(s, PATIENCE, &m);
        ck_assert_msg(r == 0 || r == DLX_E_PUBLISHER_GONE, "%s: %llu taken, %llu lost",
                      dlx_error_name(r), (unsigned long long)n, (unsigned long long)n_lost(s));
        n += r == 0;
        m = dlx_message_unref(m);
    }
    ck_assert_uint_ge(n, 2 * DEPTH);
    ck_assert_uint_eq(n + n_lost(s), (uint64_t)N_PUBLISHERS * DEPTH);
}

LOOP_TEST(a_subscriber_that_leaves_or_is_killed_without_a_look_lets_the_publisher_go_on, 0, 2)
{
    const bool leaves = _i == 0;
    pid_t pid = leaves ? -1 : dlx_test_stream_subscribe_elsewhere(SUBSCRIBE_RELIABLY);
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *s =
        leaves ? dlx_test_stream_subscribe(c, "test/a", SUBSCRIBE_RELIABLY) : NULL;
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", &block);
    ok(dlx_publisher_wait(p, 1, 0));
    DLManagedTensorVersioned *next = publish_until_full(p);
    s = dlx_subscription_unref(s);
    if (!leaves)
        dlx_test_fork_kill(pid);
    ok(dlx_publish(p, next, PUBLISH(.timeout_ns = PATIENCE), NULL));
    publish(p, DEPTH + 2, 4 * DEPTH);
}

/* Each subscribes to the other, and then waits for it in the library. */
static void talk(const struct dlx_test_peer *peer, const char *mine, const char *other)
{
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *s = dlx_test_stream_subscribe(c, other, SUBSCRIBE_RELIABLY);
    dlx_test_peer_say(peer);
    dlx_test_peer_hear(peer);
    auto_publisher *p = dlx_test_stream_publisher(c, mine, &block);
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    publish(p, 1, DEPTH);
    take(s, 1, DEPTH);
    dlx_test_peer_say(peer);
    dlx_test_peer_hear(peer);
}

TEST(two_programs_that_subscribe_first_and_then_wait_for_each_other_get_through)
{
    struct dlx_test_peer peer = dlx_test_fork_peer();
    if (peer.pid == 0) {
        talk(&peer, "test/a", "test/b");
        _exit(0);
    }
    talk(&peer, "test/b", "test/a");
    dlx_test_peer_join(&peer);
}

#define SPARES 8

/* On test/0, test/1 and so on. */
static struct dlx_publisher *new_publisher(struct dlx_client *c, int i)
{
    char topic[16];
    (void)snprintf(topic, sizeof topic, "test/%d", i);
    return dlx_test_stream_publisher(c, topic, &block);
}

TEST(a_pattern_counts_for_as_many_publishers_as_it_has_spare_links_and_then_again)
{
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *s =
        dlx_test_stream_subscribe(c, "test/*", SUBSCRIBE(.reliable = true, .n_publishers = 1));
    struct dlx_publisher *p[SPARES];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < SPARES; i++) {
            p[i] = new_publisher(c, i);
            ok(dlx_publisher_wait(p[i], 1, 0));
            publish(p[i], 1, DEPTH);
        }
        dlx_test_stream_unref_publishers(p, SPARES);
        for (int i = 0; i < SPARES * DEPTH; i++) {
            auto_message *m = dlx_test_stream_next(s);
            ck_assert_uint_eq(dlx_message_gap(m), 0);
        }
        ck_assert_uint_eq(drain(s), 0);
    }
    ck_assert_uint_eq(n_lost(s), 0);
}

TEST(a_publisher_that_finds_no_spare_link_waits_and_names_the_subscription)
{
    auto_client *c = NULL;
    ok(dlx_connect(CONNECT(.timeout_ns = SECOND / 5, .name = "sleeper"), &c));
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/*", SUBSCRIBE_RELIABLY);
    struct dlx_publisher *p[SPARES], *late = NULL;
    struct dlx_message *m = NULL;
    char pid[32];
    for (int i = 0; i < SPARES; i++)
        p[i] = new_publisher(c, i);
    fails(dlx_publisher_new(c, "test/late", &block, &late), DLX_E_TIMEOUT, "test/*");
    ck_assert_ptr_nonnull(strstr(dlx_errmsg(), "sleeper"));
    (void)snprintf(pid, sizeof pid, "pid %d", (int)getpid());
    ck_assert_ptr_nonnull(strstr(dlx_errmsg(), pid));
    /* A publisher that drops its oldest messages waits for no subscriber: it cannot serve a
     * reliable one. */
    dlx_publisher_unref(dlx_test_stream_publisher(c, "test/drop", &drop));
    int r;
    /* Each look may prepare more spare links, which the daemon may not have seen at once. */
    do
        while (dlx_take(s, 0, &m) != DLX_E_EMPTY) /* says that test/drop cannot */
            ;
    while ((r = dlx_publisher_new(c, "test/late", &block, &late)) == DLX_E_TIMEOUT);
    ok(r);
    publish(late, 1, DEPTH);
    take(s, 1, DEPTH);
    dlx_test_stream_unref_publishers(p, SPARES);
    dlx_publisher_unref(late);
}

/* The subscriber reads its socket while the publisher waits. */
TEST(a_publisher_that_found_no_spare_link_goes_on_when_the_subscriber_looks)
{
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/a", SUBSCRIBE_RELIABLY);
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", &block),
                   *q = dlx_test_stream_publisher(c, "test/a", &block);
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        struct dlx_client *other = dlx_test_stream_connect();
        struct dlx_publisher *late = dlx_test_stream_publisher(other, "test/a", &block);
        publish(late, 1, DEPTH);
        dlx_publisher_unref(late);
        _exit(0);
    }
    eventually(dlx_test_stream_list(c, NULL) == 3); /* the last of them is ready, or waits to be */
    take(s, 1, DEPTH);
    take_fails(s, 0, DLX_E_EMPTY, "");
    dlx_test_fork_join(pid);
    ck_assert_uint_eq(n_lost(s), 0);
}

/* The daemon that gave the link ends before the subscriber looks. */
TEST(a_subscriber_that_sleeps_through_the_end_of_the_daemon_gets_all)
{
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/a", SUBSCRIBE_RELIABLY);
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", &block);
    publish(p, 1, DEPTH);
    dlx_test_stream_restart();
    take(s, 1, DEPTH);
    for (int64_t i = DEPTH + 1; i < 4 * DEPTH; i++) {
        struct dlx_message *m = NULL;
        DLManagedTensorVersioned *t = dlx_test_stream_alloc(p, 10, i);
        while (dlx_publish(p, t, PUBLISH(.timeout_ns = SECOND / 100), NULL) < 0)
            ck_assert_int_eq(dlx_take(s, 0, &m), DLX_E_EMPTY);
        take(s, i, i);
    }
    ck_assert_uint_eq(n_lost(s), 0);
}

/* A publisher that was there announces itself to the next daemon, and finds a subscription that was
 * made there first. */
TEST(a_subscription_made_with_the_next_daemon_counts_from_then_on)
{
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", &block);
    publish(p, 1, 3 * DEPTH);
    dlx_test_stream_restart();
    auto_subscription *s = dlx_test_stream_subscribe(other, "test/a", SUBSCRIBE_RELIABLY);
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    publish(p, 3 * DEPTH + 1, 4 * DEPTH);
    take(s, 3 * DEPTH + 1, 4 * DEPTH);
    ck_assert_uint_eq(n_lost(s), 0);
}

/* ---- more publishers than two ---------------------------------------------------------------- */

/* Each publishes its number once and leaves, while the subscriber makes no call. */
static void publish_once_each(struct dlx_client *c, const char *topic, int n,
                              const struct dlx_publisher_args *args)
{
    for (int i = 1; i <= n; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, topic, i);
        auto_publisher *p = dlx_test_stream_publisher(c, name, args);
        dlx_test_stream_publish(p, 10, i);
    }
}

/* Takes the numbers from 1 to n, each once, from anybody. */
static void take_each(struct dlx_subscription *s, int n)
{
    for (int64_t sum = 0, i = 1; i <= n; i++) {
        auto_message *m = dlx_test_stream_next(s);
        sum += *(const int64_t *)dlx_message_tensor_peek(m, 0)->data;
        ck_assert(i < n || sum == (int64_t)n * (n + 1) / 2);
    }
}

/* To a topic, to a pattern; reliably. */
LOOP_TEST(a_subscription_for_n_publishers_gets_all_of_n_that_came_and_left, 0, 4)
{
    enum { N = 100 };
    const bool is_pattern = _i & 1, reliable = _i & 2;
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    const uint64_t before = dlx_test_stream_daemon_info(c).shared_bytes;
    auto_subscription *s = dlx_test_stream_subscribe(
        c, is_pattern ? "test/*" : "test/a", SUBSCRIBE(.n_publishers = N, .reliable = reliable));
    /* Each is charged. */
    ck_assert_uint_eq(dlx_test_stream_daemon_info(c).shared_bytes - before, N * 4096);
    publish_once_each(other, is_pattern ? "test/%d" : "test/a", N, reliable ? &block : &drop);
    take_each(s, N);
    take_fails(s, PATIENCE, DLX_E_PUBLISHER_GONE, "");
    ck_assert_uint_eq(n_lost(s), 0);
    s = dlx_subscription_unref(s);
    eventually(dlx_test_stream_daemon_info(c).shared_bytes == before);
}

TEST(a_subscription_is_ready_for_more_publishers_after_more_came)
{
    enum { N = 12, ROUNDS = 10 };
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/a", NULL);
    uint64_t n = 0, last = 0;
    for (int round = 0; round < ROUNDS && last < N; round++) {
        publish_once_each(other, "test/a", N, &drop);
        for (last = drain(s); last + n_lost(s) < (uint64_t)(round + 1) * N - n; last++)
            dlx_message_unref(dlx_test_stream_next(s));
        n += last;
        ck_assert_uint_ge(last, 2);
    }
    ck_assert_uint_eq(last, N);
}

/* Each publisher whose messages were not kept is told. */
TEST(publishers_that_were_not_seen_are_named_with_what_they_published)
{
    enum { N = 5, KEPT = 2 };
    uint64_t ids[N];
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/*", SUBSCRIBE(.n_publishers = KEPT));
    for (int i = 0; i < SPARES - KEPT; i++) /* it is ready for eight */
        dlx_publisher_unref(dlx_test_stream_publisher(other, "test/nothing", &drop));
    for (int i = 0; i < N; i++) {
        struct dlx_publisher_info info = {.size = sizeof info};
        auto_publisher *p = dlx_test_stream_publisher(other, "test/a", &drop);
        publish(p, 1, 3);
        ck_assert_uint_eq(dlx_test_stream_list(other, &info), 1);
        ids[i] = info.publisher;
    }
    uint64_t n = 0;
    while (n + n_lost(s) < N * 3) {
        struct dlx_message *m = NULL;
        n += dlx_take(s, PATIENCE, &m) == 0;
        dlx_message_unref(m);
    }
    struct dlx_event e = {.size = sizeof e};
    uint64_t n_unseen = 0;
    while (dlx_subscription_next_event(s, &e) == 0) {
        if (e.kind != DLX_EVENT_UNSEEN)
            continue;
        ck_assert_uint_eq(e.publisher, ids[KEPT + n_unseen++]);
        ck_assert_str_eq(e.topic, "test/a");
        ck_assert_uint_eq(e.pid, (uint32_t)getpid());
        contains(e.reason, "3 messages");
    }
    ck_assert_uint_eq(n_unseen, N - KEPT);
    ck_assert_uint_eq(n_lost(s), (N - KEPT) * 3);
}

/* ---- mode LATEST ----------------------------------------------------------------------------- */

static void expect_only(struct dlx_subscription *s, int64_t value, uint64_t n_skipped)
{
    auto_message *m = dlx_test_stream_next(s);
    dlx_test_stream_check(m, 10, value);
    struct dlx_message *none = NULL;
    int r;
    while ((r = dlx_take(s, SECOND / 5, &none)) == DLX_E_PUBLISHER_GONE)
        ;
    ck_assert_int_eq(r, DLX_E_TIMEOUT);
    const struct dlx_subscription_stats stats = dlx_test_stream_subscription_stats(s);
    ck_assert_uint_eq(stats.skipped, n_skipped);
    ck_assert_uint_eq(stats.taken, 1);
    ck_assert_uint_eq(stats.lost, 0);
}

/* Six loaders, one for each version: the subscriber sees the newest alone. */
LOOP_TEST(mode_latest_gets_the_newest_of_publishers_that_ended, 0, 12)
{
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    auto_subscription *s = dlx_test_stream_subscribe(
        c, _i & 1 ? "test/*" : "test/a",
        SUBSCRIBE(.mode = DLX_MODE_LATEST, .n_publishers = _i & 2 ? 6 : 0));
    publish_once_each(other, "test/a", 6, PUBLISHER(.retain = 1));
    expect_only(s, 6, 5);
}

TEST(mode_latest_gets_the_newest_of_publishers_that_are_there)
{
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    auto_subscription *s =
        dlx_test_stream_subscribe(c, "test/*", SUBSCRIBE(.mode = DLX_MODE_LATEST));
    auto_publisher *p = dlx_test_stream_publisher(other, "test/a", NULL),
                   *q = dlx_test_stream_publisher(other, "test/a", NULL);
    publish(p, 1, 3);
    publish(q, 4, 5);
    publish(p, 6, 6);
    expect_only(s, 6, 5);
}

TEST(mode_latest_gets_the_newest_of_each_topic)
{
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    auto_subscription *s =
        dlx_test_stream_subscribe(c, "test/*", SUBSCRIBE(.mode = DLX_MODE_LATEST));
    publish_once_each(other, "test/%d", 6, PUBLISHER(.retain = 1));
    take_each(s, 6);
    ck_assert_uint_eq(dlx_test_stream_subscription_stats(s).skipped, 0);
}
