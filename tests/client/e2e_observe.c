/* SPDX-License-Identifier: Apache-2.0 */

/* Observers: they are told of publishers and subscriptions that come and go, what each offers, and
 * what is there again after a restart of the daemon. */

#include "common/topic.h"
#include "tests/harness/fork.h"
#include "tests/harness/stream.h"
#include <poll.h>

#define OBSERVE(...)                                                                               \
    (&(const struct dlx_observer_args){.size = sizeof(struct dlx_observer_args), __VA_ARGS__})
#define ONLY_PUBLISHERS    OBSERVE(.kinds = DLX_OBSERVED_PUBLISHER)
#define ONLY_SUBSCRIPTIONS OBSERVE(.kinds = DLX_OBSERVED_SUBSCRIPTION)
#define auto_observer      DLX_TEST_AUTO(end_observer) struct dlx_observer

static void end_observer(struct dlx_observer **o)
{
    *o = dlx_observer_unref(*o);
}

static struct dlx_observer *observe(struct dlx_client *c, const char *topic,
                                    const struct dlx_observer_args *args)
{
    struct dlx_observer *o = NULL;
    ok(dlx_observer_new(c, topic, args, &o));
    return o;
}

static struct dlx_observed next_observed(struct dlx_observer *o)
{
    struct dlx_observed x = {.size = sizeof x};
    ok(dlx_observer_next(o, PATIENCE, &x));
    return x;
}

/* The next one is of this kind, on this topic. */
static struct dlx_observed expect_observed(struct dlx_observer *o, uint32_t kind, bool gone,
                                           const char *topic)
{
    struct dlx_observed x = next_observed(o);
    ck_assert_uint_eq(x.kind, kind);
    ck_assert_str_eq(x.topic, topic);
    ck_assert_int_eq(x.gone, gone);
    return x;
}

static void expect_all_told(struct dlx_observer *o)
{
    struct dlx_observed x = expect_observed(o, DLX_OBSERVED_ALL, false, "");
    ck_assert_uint_eq(x.id, 0);
}

static void expect_unchanged(struct dlx_observer *o)
{
    struct dlx_observed x = {.size = sizeof x};
    fails(dlx_observer_next(o, 0, &x), DLX_E_EMPTY, "nothing has changed");
}

TEST(an_observer_follows_publishers_as_they_come_and_go)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *front = dlx_test_stream_publisher(c, "cam/front", NULL),
                   *other = dlx_test_stream_publisher(c, "mic", NULL);
    auto_observer *o = observe(c, "cam/**", NULL);
    struct dlx_observed x = expect_observed(o, DLX_OBSERVED_PUBLISHER, false, "cam/front");
    ck_assert_uint_eq(x.id, dlx_publisher_id(front));
    ck_assert_uint_eq(x.pid, (uint32_t)getpid());
    ck_assert_uint_eq(x.uid, getuid());
    ck_assert_str_eq(x.client_name, "e2e_observe");
    ck_assert(x.own && !x.retained);
    expect_all_told(o);
    expect_unchanged(o);
    auto_client *elsewhere = dlx_test_stream_connect();
    struct dlx_publisher *rear = dlx_test_stream_publisher(elsewhere, "cam/a/rear", NULL);
    uint64_t id = dlx_publisher_id(rear);
    x = expect_observed(o, DLX_OBSERVED_PUBLISHER, false, "cam/a/rear");
    ck_assert(x.id == id && !x.own);
    dlx_test_stream_publish(other, 10, 1); /* no change, and not observed */
    dlx_publisher_unref(rear);
    x = expect_observed(o, DLX_OBSERVED_PUBLISHER, true, "cam/a/rear");
    ck_assert_uint_eq(x.id, id);
    expect_unchanged(o);
}

TEST(an_observer_is_told_what_a_publisher_offers)
{
    static const char *const groups[] = {"first", "second"};
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *plain = dlx_test_stream_publisher(c, "a", NULL);
    auto_publisher *rich = dlx_test_stream_publisher(
        c, "b",
        PUBLISHER_BLOCKING(.depth = 7, .history = 5, .retain = 3, .retain_for_ns = 9 * SECOND,
                           .groups = groups, .n_groups = 2));
    auto_publisher *latched = dlx_test_stream_publisher(
        c, "c", PUBLISHER(.retain = 1, .retain_for_ns = DLX_RETAIN_LATCHED));
    auto_observer *o = observe(c, "**", NULL);
    struct dlx_observed x = expect_observed(o, DLX_OBSERVED_PUBLISHER, false, "a");
    ck_assert_uint_eq(x.on_full, DLX_ON_FULL_DROP);
    ck_assert(x.depth == 16 && x.history == 1 && x.retain == 0 && x.retain_for_ns == 0);
    ck_assert_uint_eq(x.n_groups, 0);
    x = expect_observed(o, DLX_OBSERVED_PUBLISHER, false, "b");
    ck_assert_uint_eq(x.on_full, DLX_ON_FULL_BLOCK);
    ck_assert(x.depth == 7 && x.history == 5 && x.retain == 3);
    ck_assert_int_eq(x.retain_for_ns, 9 * SECOND);
    ck_assert_uint_eq(x.n_groups, 2);
    ck_assert_str_eq(x.groups[0], "first");
    ck_assert_str_eq(x.groups[1], "second");
    x = expect_observed(o, DLX_OBSERVED_PUBLISHER, false, "c");
    ck_assert_int_eq(x.retain_for_ns, DLX_RETAIN_LATCHED);
    ck_assert_uint_eq(x.retain, 1);
}

TEST(an_observer_sees_what_a_publisher_leaves)
{
    auto_client *c = dlx_test_stream_connect();
    struct dlx_publisher *p = dlx_test_stream_publisher(c, "map", PUBLISHER(.retain = 1));
    auto_observer *o = observe(c, "map", NULL);
    uint64_t id = expect_observed(o, DLX_OBSERVED_PUBLISHER, false, "map").id;
    expect_all_told(o);
    dlx_test_stream_publish(p, 10, 1);
    dlx_publisher_unref(p);
    struct dlx_observed x = expect_observed(o, DLX_OBSERVED_PUBLISHER, false, "map");
    ck_assert(x.id == id && x.retained);
    ok(dlx_drop_retained(c, "map"));
    x = expect_observed(o, DLX_OBSERVED_PUBLISHER, true, "map");
    ck_assert_uint_eq(x.id, id);
}

TEST(an_observer_sees_that_only_a_queue_is_left)
{
    auto_client *c = dlx_test_stream_connect();
    struct dlx_publisher *p = dlx_test_stream_publisher(
        c, "map", PUBLISHER(.retain = 1, .groups = (const char *const[]){"g"}, .n_groups = 1));
    auto_observer *o = observe(c, "map", NULL);
    dlx_test_stream_publish(p, 10, 1);
    dlx_publisher_unref(p);
    (void)expect_observed(o, DLX_OBSERVED_PUBLISHER, false, "map");
    expect_all_told(o);
    struct dlx_observed x = expect_observed(o, DLX_OBSERVED_PUBLISHER, false, "map");
    ck_assert(x.retained && x.retain == 1);
    ok(dlx_drop_retained(c, "map"));
    x = expect_observed(o, DLX_OBSERVED_PUBLISHER, false, "map");
    ck_assert(x.retained && x.retain == 0 && x.n_groups == 1);
    ok(dlx_drop_queue(c, "map"));
    (void)expect_observed(o, DLX_OBSERVED_PUBLISHER, true, "map");
}

TEST(an_observer_sees_the_death_of_a_process)
{
    auto_client *c = dlx_test_stream_connect();
    auto_observer *o = observe(c, "test/*", NULL);
    expect_all_told(o);
    pid_t pid = dlx_test_stream_subscribe_elsewhere(SUBSCRIBE_RELIABLY);
    struct dlx_observed x = expect_observed(o, DLX_OBSERVED_SUBSCRIPTION, false, "test/a");
    ck_assert_uint_eq(x.pid, (uint32_t)pid);
    ck_assert(x.reliable && !x.own);
    dlx_test_fork_kill(pid);
    ck_assert_uint_eq(expect_observed(o, DLX_OBSERVED_SUBSCRIPTION, true, "test/a").id, x.id);
}

/* Subscriptions that no publisher serves, also by patterns that meet the observed one. */
TEST(subscriptions_are_told_without_publishers)
{
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *topic = dlx_test_stream_subscribe(c, "cam/front", NULL),
                      *meets = dlx_test_stream_subscribe(c, "*/front",
                                                         SUBSCRIBE(.mode = DLX_MODE_LATEST)),
                      *misses = dlx_test_stream_subscribe(c, "mic/*", NULL);
    auto_observer *o = observe(c, "cam/*", NULL);
    struct dlx_observed x = expect_observed(o, DLX_OBSERVED_SUBSCRIPTION, false, "cam/front");
    ck_assert_uint_eq(x.mode, DLX_MODE_ALL);
    ck_assert(x.own && !x.reliable);
    x = expect_observed(o, DLX_OBSERVED_SUBSCRIPTION, false, "*/front");
    ck_assert_uint_eq(x.mode, DLX_MODE_LATEST);
    expect_all_told(o);
    auto_subscription *worker = dlx_test_stream_subscribe(c, "cam/rear", SUBSCRIBE(.group = "g"));
    x = expect_observed(o, DLX_OBSERVED_SUBSCRIPTION, false, "cam/rear");
    ck_assert_str_eq(x.group, "g");
    topic = dlx_subscription_unref(topic);
    (void)expect_observed(o, DLX_OBSERVED_SUBSCRIPTION, true, "cam/front");
    meets = dlx_subscription_unref(meets);
    (void)expect_observed(o, DLX_OBSERVED_SUBSCRIPTION, true, "*/front");
    misses = dlx_subscription_unref(misses);
    expect_unchanged(o);
}

TEST(an_observer_may_ask_for_one_kind)
{
    auto_client *c = dlx_test_stream_connect();
    auto_observer *publishers = observe(c, "*", ONLY_PUBLISHERS),
                  *subscriptions = observe(c, "*", ONLY_SUBSCRIPTIONS);
    auto_publisher *p = dlx_test_stream_publisher(c, "a", NULL);
    auto_subscription *s = dlx_test_stream_subscribe(c, "a", NULL),
                      *pattern = dlx_test_stream_subscribe(c, "*", NULL);
    expect_all_told(publishers);
    (void)expect_observed(publishers, DLX_OBSERVED_PUBLISHER, false, "a");
    expect_unchanged(publishers);
    expect_all_told(subscriptions);
    (void)expect_observed(subscriptions, DLX_OBSERVED_SUBSCRIPTION, false, "a");
    (void)expect_observed(subscriptions, DLX_OBSERVED_SUBSCRIPTION, false, "*");
    expect_unchanged(subscriptions);
    /* The same from the beginning. */
    auto_observer *later = observe(c, "*", ONLY_PUBLISHERS);
    (void)expect_observed(later, DLX_OBSERVED_PUBLISHER, false, "a");
    expect_all_told(later);
    expect_unchanged(later);
}

/* Callers and services have inboxes, which belong to them alone. */
TEST(inboxes_are_not_told)
{
    auto_client *c = dlx_test_stream_connect();
    auto_observer *o = observe(c, "**", NULL);
    struct dlx_caller *k = NULL;
    expect_all_told(o);
    ok(dlx_caller_new(c, "svc/add", NULL, &k));
    (void)expect_observed(o, DLX_OBSERVED_PUBLISHER, false, "svc/add");
    expect_unchanged(o);
    auto_observer *later = observe(c, "**", NULL);
    (void)expect_observed(later, DLX_OBSERVED_PUBLISHER, false, "svc/add");
    expect_all_told(later);
    dlx_caller_unref(k);
    (void)expect_observed(o, DLX_OBSERVED_PUBLISHER, true, "svc/add");
    expect_unchanged(o);
}

static bool is_readable(int fd, int timeout_ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, timeout_ms) == 1;
}

TEST(a_descriptor_tells_that_something_has_changed)
{
    auto_client *c = dlx_test_stream_connect();
    auto_observer *o = observe(c, "a", NULL);
    int fd = dlx_observer_fd(o);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(dlx_observer_fd(o), fd);
    ck_assert(is_readable(fd, PATIENCE_MS));
    expect_all_told(o);
    expect_unchanged(o);
    ck_assert(!is_readable(fd, 0));
    auto_publisher *p = dlx_test_stream_publisher(c, "a", NULL);
    ck_assert(is_readable(fd, PATIENCE_MS));
    (void)expect_observed(o, DLX_OBSERVED_PUBLISHER, false, "a");
    expect_unchanged(o);
    ck_assert(!is_readable(fd, 0));
}

TEST(names_of_groups_stay_until_the_next_change_is_asked_for)
{
    auto_client *c = dlx_test_stream_connect();
    struct dlx_publisher *p = dlx_test_stream_publisher(
        c, "a", PUBLISHER(.groups = (const char *const[]){"g"}, .n_groups = 1));
    auto_observer *o = observe(c, "a", NULL);
    (void)expect_observed(o, DLX_OBSERVED_PUBLISHER, false, "a");
    expect_all_told(o);
    dlx_publisher_unref(p);
    struct dlx_observed x = expect_observed(o, DLX_OBSERVED_PUBLISHER, true, "a");
    ck_assert_int_ge(dlx_observer_fd(o), 0);
    ck_assert_uint_eq(x.n_groups, 1);
    ck_assert_str_eq(x.groups[0], "g");
}

/* There was something to tell when it was made, and no packet brings that again. */
TEST(a_descriptor_that_is_asked_for_late_becomes_quiet)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "a", NULL),
                   *q = dlx_test_stream_publisher(c, "b", NULL);
    auto_observer *o = observe(c, "*", NULL);
    (void)expect_observed(o, DLX_OBSERVED_PUBLISHER, false, "a");
    int fd = dlx_observer_fd(o);
    ck_assert(is_readable(fd, PATIENCE_MS));
    (void)expect_observed(o, DLX_OBSERVED_PUBLISHER, false, "b");
    expect_all_told(o);
    expect_unchanged(o);
    ck_assert(!is_readable(fd, 0));
}

/* The daemon is replaced: the publisher that comes back has another id, and the other one is told
 * as gone. A caller that polls learns of it. */
TEST(an_observer_goes_on_with_the_next_daemon)
{
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "a", NULL),
                   *idle = dlx_test_stream_publisher(other, "b", NULL);
    auto_observer *o = observe(c, "*", ONLY_PUBLISHERS);
    struct dlx_observed x = {.size = sizeof x};
    int fd = dlx_observer_fd(o);
    uint64_t id = expect_observed(o, DLX_OBSERVED_PUBLISHER, false, "a").id;
    (void)expect_observed(o, DLX_OBSERVED_PUBLISHER, false, "b");
    expect_all_told(o);
    expect_unchanged(o);
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    ck_assert(is_readable(fd, PATIENCE_MS));
    fails(dlx_observer_next(o, SECOND / 20, &x), DLX_E_TIMEOUT, ", and there is no dlpackd at ");
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
    eventually(dlx_publisher_wait(p, 0, 0) == 0 && dlx_publisher_id(p) != id);
    bool told[3] = {false, false, false}; /* a is there, the former a and b are gone */
    while (!told[0] || !told[1] || !told[2]) {
        int r = dlx_observer_next(o, 0, &x);
        if (r == DLX_E_EMPTY) {
            ck_assert(is_readable(fd, PATIENCE_MS));
            continue;
        }
        ok(r);
        told[0] |= !x.gone && strcmp(x.topic, "a") == 0 && x.id == dlx_publisher_id(p);
        told[1] |= x.gone && strcmp(x.topic, "a") == 0 && x.id == id;
        told[2] |= x.gone && strcmp(x.topic, "b") == 0;
    }
    ok(dlx_publisher_wait(idle, 0, 0));
    while (x.gone || strcmp(x.topic, "b") != 0)
        x = next_observed(o);
    ck_assert_uint_eq(x.id, dlx_publisher_id(idle));
}

enum { N_TOPICS = 400 };

/* Until the observer was told of these publishers, and all once more if `is_told_again`: how many
 * were told that have not been told as gone. */
static int n_that_remain(struct dlx_observer *o, struct dlx_publisher *const *p, bool is_told_again)
{
    bool is_told[N_TOPICS] = {false};
    int n_last = 0, n_present = 0;
    while (n_last < N_TOPICS || is_told_again) {
        struct dlx_observed x = next_observed(o);
        if (x.kind == DLX_OBSERVED_ALL) {
            ck_assert(is_told_again);
            is_told_again = false;
            continue;
        }
        n_present += x.gone ? -1 : 1;
        int i = atoi(x.topic + 2);
        if (x.id != dlx_publisher_id(p[i]))
            continue;
        ck_assert(!x.gone && !is_told[i]); /* nothing twice */
        is_told[i] = true;
        n_last++;
    }
    return n_present;
}

/* An observer makes no call while more comes and goes than its socket has room for, but no more
 * than the daemon keeps; or more than that, and then it is told all again. Either way it is told
 * what is there, and what is gone, and nothing twice. */
LOOP_TEST(an_observer_that_sleeps_misses_nothing_that_stays, 0, 2)
{
    const int n_rounds = _i == 0 ? 1 : 12;
    struct dlx_publisher *p[N_TOPICS] = {NULL};
    char topic[32];
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    auto_observer *o = observe(c, "t/**", ONLY_PUBLISHERS);
    expect_all_told(o);
    for (int round = 0; round < n_rounds; round++) {
        for (int i = 0; i < N_TOPICS; i++) {
            dlx_publisher_unref(p[i]);
            (void)snprintf(topic, sizeof topic, "t/%d", i);
            p[i] = dlx_test_stream_publisher(other, topic, PUBLISHER(.depth = 1));
        }
    }
    ck_assert_int_eq(n_that_remain(o, p, _i == 1), N_TOPICS);
    expect_unchanged(o);
    dlx_test_stream_unref_publishers(p, N_TOPICS);
}

static int count_interrupt(void *n)
{
    return ++*(int *)n == 3;
}

TEST(an_observer_that_waits_can_be_interrupted)
{
    struct dlx_client *made = NULL;
    int n = 0;
    ok(dlx_connect(CONNECT(.interrupt = count_interrupt, .interrupt_data = &n), &made));
    auto_client *c = made;
    auto_observer *o = observe(c, "a", NULL);
    struct dlx_observed x = {.size = sizeof x};
    expect_all_told(o);
    fails(dlx_observer_next(o, DLX_FOREVER, &x), DLX_E_INTERRUPTED,
          "topic a: interrupted while it waited for a change");
    fails(dlx_observer_next(o, SECOND / 1000, &x), DLX_E_TIMEOUT,
          "observer of a: nothing has changed within 0.001 s");
}

TEST(an_observer_that_cannot_be)
{
    auto_client *c = dlx_test_stream_connect();
    struct dlx_observer *o = NULL;
    fails(dlx_observer_new(c, "a b", NULL, &o), DLX_E_TOPIC, "' '");
    fails(dlx_observer_new(c, "**/a", NULL, &o), DLX_E_TOPIC, "last segment");
    fails(dlx_observer_new(c, "a", OBSERVE(.kinds = 4), &o), DLX_E_INVALID,
          "observer of a: kinds 4 must be 0 to 3");
    ck_assert_ptr_null(o);
    ck_assert_ptr_null(dlx_observer_unref(NULL));
}

/* A client that sends on the socket of an observer violates the protocol. */
TEST(an_observer_says_nothing)
{
    int control = dlx_test_hello(&dlx_test_stream_daemon, 10);
    Dlx__Wire__Observe request = DLX__WIRE__OBSERVE__INIT;
    static struct dlx_packet packet;
    request.topic = (char *)(uintptr_t) "a";
    request.kinds = 1;
    dlx_test_send(control, BODY(OBSERVE), &request, 2);
    dlx_test_wait_readable(control);
    ok(dlx__packet_recv_fds(control, &packet));
    ck_assert_uint_eq(packet.n_fds, 1);
    auto_fd fd = dlx__packet_steal_fd(&packet, 0);
    dlx__packet_deinit(&packet);
    ok(dlx__packet_send(fd, "x", 1, NULL, 0));
    contains(dlx_test_disconnected(control, DLX_E_PROTOCOL),
             "a packet on the socket of an observer of a");
}

/* ---- reliable where it is offered ----------------------------------------------------------- */

static struct dlx_message_qos qos_of(const struct dlx_message *m)
{
    struct dlx_message_qos qos = {.size = sizeof qos};
    ok(dlx_message_get_qos(m, &qos));
    return qos;
}

/* A pattern over publishers of both kinds, before and after it. */
TEST(a_subscription_is_reliable_where_that_is_offered)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *blocks =
                       dlx_test_stream_publisher(c, "x/blocks", PUBLISHER_BLOCKING(.depth = 2)),
                   *drops = dlx_test_stream_publisher(c, "x/drops", PUBLISHER(.depth = 2));
    struct dlx_subscription *refused = NULL;
    fails(dlx_subscribe(c, "x/*", SUBSCRIBE_RELIABLY, &refused), DLX_E_QOS, "`accepts_unreliable`");
    auto_subscription *s = dlx_test_stream_subscribe(
        c, "x/*", SUBSCRIBE(.reliable = true, .accepts_unreliable = true));
    auto_publisher *later = dlx_test_stream_publisher(c, "x/later", PUBLISHER(.depth = 2));
    for (int i = 1; i <= 5; i++) {
        dlx_test_stream_publish(drops, 10, i);
        dlx_test_stream_publish(later, 10, i);
    }
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(blocks, 10, 1);
    for (int i = 1; i <= 3; i++) /* it waits for this subscription */
        ck_assert_int_eq(dlx_publish(blocks, t, PUBLISH(.share = true), NULL),
                         i <= 2 ? 0 : DLX_E_FULL);
    t->deleter(t);
    uint64_t gap = 0;
    for (int i = 0; i < 6; i++) {
        auto_message *m = dlx_test_stream_next(s);
        bool is_reliable = strcmp(dlx_message_topic(m), "x/blocks") == 0;
        ck_assert_int_eq(qos_of(m).reliable, is_reliable);
        ck_assert_uint_eq(qos_of(m).on_full, is_reliable ? DLX_ON_FULL_BLOCK : DLX_ON_FULL_DROP);
        ck_assert(!is_reliable || dlx_message_gap(m) == 0);
        gap += dlx_message_gap(m);
    }
    ck_assert_uint_eq(gap, 6); /* three of each that drops */
    take_fails(s, 0, DLX_E_EMPTY, "");
}

static int keep_first_link(const struct dlx_link_info *info, void *userdata)
{
    *(struct dlx_link_info *)userdata = *info;
    return 0;
}

TEST(the_daemon_lists_which_links_are_reliable)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *blocks =
                       dlx_test_stream_publisher(c, "x/blocks", PUBLISHER_BLOCKING(.depth = 2)),
                   *drops = dlx_test_stream_publisher(c, "x/drops", NULL);
    auto_subscription *s = dlx_test_stream_subscribe(
        c, "x/*", SUBSCRIBE(.reliable = true, .accepts_unreliable = true));
    struct dlx_link_info link = {.size = 0};
    ok(dlx_list_links(c, dlx_publisher_id(blocks), keep_first_link, &link));
    ck_assert(link.reliable);
    ok(dlx_list_links(c, dlx_publisher_id(drops), keep_first_link, &link));
    ck_assert(!link.reliable);
}

TEST(accepting_what_is_not_reliable_needs_reliable)
{
    auto_client *c = dlx_test_stream_connect();
    struct dlx_subscription *s = NULL;
    fails(dlx_subscribe(c, "a", SUBSCRIBE(.accepts_unreliable = true), &s), DLX_E_INVALID,
          "accepts_unreliable is for subscriptions that are reliable");
    ck_assert_ptr_null(s);
}

/* ---- what a message says of its publisher --------------------------------------------------- */

TEST(a_message_tells_what_its_publisher_offers)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(
        c, "a",
        PUBLISHER_BLOCKING(.depth = 7, .history = 5, .retain = 3, .retain_for_ns = 9 * SECOND));
    auto_subscription *plain = dlx_test_stream_subscribe(c, "a", NULL),
                      *reliable = dlx_test_stream_subscribe(c, "a", SUBSCRIBE_RELIABLY),
                      *worker = dlx_test_stream_subscribe(c, "a", SUBSCRIBE(.group = "g"));
    dlx_test_stream_publish(p, 10, 1);
    auto_message *m = dlx_test_stream_next(plain), *other = dlx_test_stream_next(reliable),
                 *claimed = dlx_test_stream_next(worker);
    struct dlx_message_qos qos = qos_of(m);
    ck_assert_uint_eq(qos.on_full, DLX_ON_FULL_BLOCK);
    ck_assert(qos.depth == 7 && qos.history == 5 && qos.retain == 3 && !qos.reliable);
    ck_assert_int_eq(qos.retain_for_ns, 9 * SECOND);
    ck_assert(qos_of(other).reliable && qos_of(claimed).reliable);
    ok(dlx_message_done(claimed));
}

TEST(a_retained_message_tells_how_it_is_retained)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *latched = dlx_test_stream_publisher(
        c, "latched", PUBLISHER(.retain = 1, .retain_for_ns = DLX_RETAIN_LATCHED));
    struct dlx_publisher *p =
        dlx_test_stream_publisher(c, "left", PUBLISHER(.history = 4, .retain = 2));
    struct dlx_message *got = NULL;
    dlx_test_stream_publish(latched, 10, 1);
    dlx_test_stream_publish(p, 10, 2);
    dlx_publisher_unref(p);
    ok(dlx_get(c, "latched", 0, &got));
    ck_assert_int_eq(qos_of(got).retain_for_ns, DLX_RETAIN_LATCHED);
    dlx_message_unref(got);
    ok(dlx_get(c, "left", 0, &got));
    struct dlx_message_qos qos = qos_of(got);
    ck_assert(qos.retain == 2 && qos.history == 2 && qos.retain_for_ns == 0);
    dlx_message_unref(got);
}
