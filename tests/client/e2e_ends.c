/* SPDX-License-Identifier: Apache-2.0 */

/* When a subscription says that its publishers have left: n_publishers of struct
 * dlx_subscribe_args, and events. */

#include "tests/harness/fork.h"
#include "tests/harness/stream.h"

static struct dlx_subscription *subscribe(struct dlx_client *c, uint32_t n_publishers)
{
    return dlx_test_stream_subscribe(c, "b/*", SUBSCRIBE(.n_publishers = n_publishers));
}

/* A publisher that comes, publishes one message, and leaves. */
static void come_and_go(struct dlx_client *c, struct dlx_subscription *s, const char *topic)
{
    struct dlx_publisher *p = dlx_test_stream_publisher(c, topic, NULL);
    dlx_test_stream_publish(p, 10, 1);
    dlx_publisher_unref(p);
    auto_message *m = dlx_test_stream_next(s);
    ck_assert_str_eq(dlx_message_topic(m), topic);
}

/* Until the subscription knows that no publisher is attached. */
static void wait_until_alone(struct dlx_subscription *s)
{
    do
        take_fails(s, SECOND / 1000, DLX_E_TIMEOUT, "no message in time");
    while (dlx_test_stream_subscription_stats(s).n_publishers > 0);
}

TEST(a_subscription_ends_when_so_many_publishers_have_left)
{
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *s = subscribe(c, 2);
    for (int round = 0; round < 2; round++) { /* the count begins again */
        come_and_go(c, s, "b/0");
        wait_until_alone(s);
        come_and_go(c, s, "b/1");
        take_fails(s, PATIENCE, DLX_E_PUBLISHER_GONE, "b/*");
        take_fails(s, SECOND / 100, DLX_E_TIMEOUT, "b/*");
    }
}

TEST(a_subscription_does_not_end_while_a_publisher_is_attached)
{
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *s = subscribe(c, 2);
    struct dlx_publisher *p = dlx_test_stream_publisher(c, "b/third", NULL);
    for (int i = 0; i < 3; i++)
        come_and_go(c, s, "b/0");
    take_fails(s, SECOND / 100, DLX_E_TIMEOUT, "b/*");
    dlx_publisher_unref(p);
    take_fails(s, PATIENCE, DLX_E_PUBLISHER_GONE, "b/*");
}

/* Even: to any number of publishers; odd: to a pattern, of which nothing else is said. */
LOOP_TEST(a_subscription_waits_for_the_next_publisher, 0, 2)
{
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *s = subscribe(c, _i == 0 ? DLX_PUBLISHERS_ANY : 0);
    for (int i = 0; i < 3; i++) {
        come_and_go(c, s, "b/0");
        wait_until_alone(s);
    }
}

/* A restart of the daemon: the first publisher is there all the time, whatever daemon it is
 * attached by. */
TEST(a_publisher_that_reconnects_has_not_left)
{
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *s = subscribe(c, 2);
    struct dlx_publisher *p = dlx_test_stream_publisher(c, "b/0", NULL);
    for (int64_t value = 1; value <= 3; value += 2) {
        dlx_test_stream_publish(p, 10, value);
        dlx_test_stream_take(s, value);
        dlx_test_stream_restart();
        dlx_test_stream_publish(p, (value + 1) << 20,
                                value + 1); /* needs memory of the new daemon */
        auto_message *next = dlx_test_stream_next(s);
        ck_assert_uint_eq(dlx_message_seq(next), (uint64_t)value + 1);
    }
    dlx_publisher_unref(p);
    wait_until_alone(s);
    come_and_go(c, s, "b/1");
    take_fails(s, PATIENCE, DLX_E_PUBLISHER_GONE, "b/*");
}

/* Closes when it is told to; it may be killed instead. */
static struct dlx_test_peer publish_one_elsewhere(void)
{
    struct dlx_test_peer peer = dlx_test_fork_peer();
    if (peer.pid == 0) {
        struct dlx_publisher *p = dlx_test_stream_new_publisher("test/a", NULL);
        dlx_test_stream_publish(p, 10, 1);
        dlx_test_peer_say(&peer);
        dlx_test_peer_hear(&peer);
        dlx_publisher_unref(p);
        _exit(0);
    }
    return peer;
}

static uint32_t next_kind(struct dlx_subscription *s)
{
    struct dlx_event event = {.size = sizeof event};
    eventually(dlx_subscription_next_event(s, &event) == 0);
    return event.kind;
}

/* The subscription has taken everything, and does not take again. The publisher closes, or is
 * killed; with a daemon, with one that stands still until the publisher is dead, and with none. */
LOOP_TEST(a_subscription_that_reads_events_alone_is_told_once_that_its_publisher_has_gone, 0, 6)
{
    struct dlx_event event = {.size = sizeof event};
    bool is_killed = _i % 2;
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/a", NULL);
    struct dlx_test_peer peer = publish_one_elsewhere();
    dlx_test_peer_hear(&peer);
    dlx_test_stream_expect(s, 10, 1);
    ck_assert_uint_eq(next_kind(s), DLX_EVENT_JOINED);
    if (_i / 2 == 1)
        dlx_test_daemon_pause(&dlx_test_stream_daemon);
    else if (_i / 2 == 2)
        dlx_test_daemon_kill(&dlx_test_stream_daemon);
    if (is_killed) {
        dlx_test_peer_kill(&peer);
    } else {
        dlx_test_peer_say(&peer);
        if (_i / 2 != 1) /* else it waits for the daemon */
            dlx_test_peer_join(&peer);
    }
    if (_i / 2 == 1)
        ck_assert_int_eq(kill(dlx_test_stream_daemon.pid, SIGCONT), 0);
    ck_assert_uint_eq(next_kind(s), is_killed ? DLX_EVENT_LOST : DLX_EVENT_LEFT);
    if (_i / 2 == 1 && !is_killed)
        dlx_test_peer_join(&peer);
    if (_i / 2 == 2)
        dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
    take_fails(s, PATIENCE, DLX_E_PUBLISHER_GONE, "test/a");
    take_fails(s, SECOND / 100, DLX_E_TIMEOUT, "");
    while (dlx_subscription_next_event(s, &event) == 0)
        ck_assert_uint_eq(event.kind, DLX_EVENT_RECONNECTED);
}

enum { N_GONE = 40 }; /* several pages */

struct seen_gone {
    struct dlx_client *c;
    uint64_t ids[N_GONE];
    int n;
};

static int count_link(const struct dlx_link_info *info, void *userdata)
{
    ck_assert_uint_eq(info->behind, 1);
    ++*(int *)userdata;
    return 0;
}

static int see_gone(const struct dlx_publisher_info *info, void *userdata)
{
    struct seen_gone *seen = userdata;
    int n_links = 0;
    ck_assert_int_lt(seen->n, N_GONE);
    seen->ids[seen->n++] = info->publisher;
    ck_assert_uint_eq(info->published, 1);
    ck_assert_uint_gt(info->arena_bytes, 0);
    ok(dlx_list_links(seen->c, info->publisher, count_link, &n_links));
    ck_assert_int_eq(n_links, 1);
    return 0;
}

static int is_there(const struct dlx_publisher_info *info, void *userdata)
{
    (void)info;
    (void)userdata;
    return 1;
}

static int n_gone(struct dlx_client *c, const char *topic, struct seen_gone *ret)
{
    *ret = (struct seen_gone){.c = c};
    ok(dlx_list_gone_publishers(c, topic, see_gone, ret));
    return ret->n;
}

struct seen_held {
    struct dlx_client *c;
    uint64_t bytes;
    uint32_t pid, n_held;
};

static int see_holder(const struct dlx_link_info *info, void *userdata)
{
    struct seen_held *seen = userdata;
    seen->pid = info->pid;
    seen->n_held += info->n_held;
    return 0;
}

static int see_held(const struct dlx_publisher_info *info, void *userdata)
{
    struct seen_held *seen = userdata;
    seen->bytes += info->arena_bytes + info->control_bytes;
    ok(dlx_list_links(seen->c, info->publisher, see_holder, seen));
    return 0;
}

/* Does the list of holders have this process for a publisher that has gone, and are its bytes
 * counted? */
static void check_held_here(struct dlx_client *looks)
{
    struct seen_held seen = {.c = looks};
    struct dlx_daemon_info info = {.size = sizeof info};
    ok(dlx_list_gone_publishers(looks, NULL, see_held, &seen));
    ck_assert_uint_eq(seen.n_held, 1);
    ck_assert_uint_eq(seen.pid, (uint32_t)getpid());
    ck_assert_uint_gt(seen.bytes, 8 << 20);
    ok(dlx_client_get_daemon_info(looks, &info));
    ck_assert_uint_ge(info.shared_bytes, seen.bytes);
}

TEST(a_publisher_that_has_gone_is_listed_and_charged_until_nothing_of_it_is_held)
{
    auto_client *looks = dlx_test_stream_connect();
    struct dlx_client *c = dlx_test_stream_connect();
    struct dlx_subscription *s = dlx_test_stream_subscribe(c, "held", NULL);
    struct dlx_publisher *p = dlx_test_stream_publisher(looks, "held", NULL);
    dlx_test_stream_publish(p, 1 << 20, 1);
    struct dlx_message *m = dlx_test_stream_next(s);
    dlx_publisher_unref(p);
    take_fails(s, PATIENCE, DLX_E_PUBLISHER_GONE, "held"); /* the link has ended */
    check_held_here(looks);
    dlx_subscription_unref(s);
    check_held_here(looks);
    dlx_client_unref(c); /* the process has no connection, and holds the message */
    check_held_here(looks);
    dlx_message_unref(m);
    eventually(dlx_list_gone_publishers(looks, NULL, is_there, NULL) == 0);
}

/* The last of them goes first. */
TEST(publishers_that_have_gone_are_listed_until_their_links_end)
{
    auto_client *c = dlx_test_stream_connect();
    struct dlx_publisher *p[N_GONE];
    struct dlx_event event = {.size = sizeof event};
    struct seen_gone seen;
    char topic[16];
    struct dlx_subscription *s = dlx_test_stream_subscribe(c, "gone/**", NULL);
    for (int i = 0; i < N_GONE; i++) {
        (void)snprintf(topic, sizeof topic, "gone/%02d", i);
        p[i] = dlx_test_stream_publisher(c, topic, NULL);
        /* The subscription joins, and takes nothing. */
        eventually((dlx_subscription_next_event(s, &event), dlx_publisher_wait(p[i], 1, 0) == 0));
        dlx_test_stream_publish(p[i], 10, 1);
    }
    ck_assert_int_eq(n_gone(c, NULL, &seen), 0);
    for (int i = N_GONE; i-- > 0;)
        dlx_publisher_unref(p[i]);
    ck_assert_int_eq(n_gone(c, NULL, &seen), N_GONE);
    for (int i = 1; i < N_GONE; i++)
        ck_assert_uint_lt(seen.ids[i], seen.ids[i - 1]);
    ck_assert_int_eq(n_gone(c, "gone/0*", &seen), 10);
    ck_assert_int_eq(n_gone(c, "other/**", &seen), 0);
    dlx_subscription_unref(s);
    eventually(dlx_list_gone_publishers(c, NULL, is_there, NULL) == 0);
}
