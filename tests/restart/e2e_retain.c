/* SPDX-License-Identifier: Apache-2.0 */
/* Messages that stay: for those who come late, and after their publisher has gone. */

#include "ring/layout.h"
#include "tests/harness/fork.h"
#include "tests/harness/store.h"

static struct dlx_publisher *new_publisher(struct dlx_client *c,
                                           const struct dlx_publisher_args *args)
{
    return dlx_test_stream_publisher(c, "test/a", args);
}

/* Messages of n_values values that begin with `value`, one after the other, and then this end,
 * of which the daemon tells. */
static void check_stream(struct dlx_client *c, uint32_t history, int64_t first, int64_t last,
                         int end)
{
    struct dlx_message *m = NULL;
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/a", SUBSCRIBE(.history = history));
    dlx_test_stream_expect_all(s, 100, first, last);
    ck_assert_int_eq(dlx_take(s, end == DLX_E_PUBLISHER_GONE ? SECOND : 0, &m), end);
}

struct listing {
    uint32_t n, n_retained;
};

static int count(const struct dlx_publisher_info *info, void *userdata)
{
    struct listing *l = userdata;
    l->n++;
    l->n_retained += info->retained;
    return 0;
}

static struct listing list(struct dlx_client *c)
{
    struct listing l = {0};
    ok(dlx_list_publishers(c, NULL, count, &l));
    return l;
}

static uint64_t shared_bytes(struct dlx_client *c)
{
    return dlx_test_stream_daemon_info(c).shared_bytes;
}

TEST(a_late_subscriber_gets_retained_messages_unasked)
{
    auto_client *c = dlx_test_stream_connect();
    struct dlx_publisher *p =
        new_publisher(c, PUBLISHER(.retain = 2, .retain_for_ns = DLX_RETAIN_LATCHED, .history = 4));
    dlx_test_stream_publish_all(p, 100, 1, 4);
    check_stream(c, 0, 3, 4, DLX_E_EMPTY);
    check_stream(c, 1, 3, 4, DLX_E_EMPTY);
    check_stream(c, 3, 2, 4, DLX_E_EMPTY);
    check_stream(c, DLX_HISTORY_NONE, 1, 0, DLX_E_EMPTY);
    /* Latched messages go with their publisher. */
    dlx_publisher_unref(p);
    struct dlx_message *m = NULL;
    fails(dlx_get(c, "test/a", 0, &m), DLX_E_EMPTY, "test/a");
    ck_assert_uint_eq(list(c).n, 0);
}

TEST(retained_messages_outlive_their_publisher)
{
    auto_client *other = dlx_test_stream_connect();
    auto_message *m = NULL;
    struct dlx_message *n = NULL;
    dlx_test_store_leave_messages("test/a", &dlx_test_retain_2, 10);
    ck_assert_uint_eq(list(other).n_retained, 1);
    check_stream(other, 0, 9, 10, DLX_E_PUBLISHER_GONE);
    check_stream(other, 8, 9, 10, DLX_E_PUBLISHER_GONE); /* no more than that */
    check_stream(other, DLX_HISTORY_NONE, 1, 0, DLX_E_PUBLISHER_GONE);
    ok(dlx_get(other, "test/a", 0, &m));
    ok(dlx_get(other, "test/a", SECOND, &n));
    dlx_test_stream_check(m, 100, 10);
    ck_assert_uint_eq(dlx_message_seq(m), 10);
    dlx_message_unref(n);
    /* Dropped: no subscriber gets the message any more, and one that has it keeps it. */
    ok(dlx_drop_retained(other, "test/a"));
    fails(dlx_get(other, "test/a", 0, &n), DLX_E_EMPTY, "test/a");
    fails(dlx_get(other, "test/a", 1000000, &n), DLX_E_TIMEOUT, "none came");
    fails(dlx_drop_retained(other, "test/a"), DLX_E_NOT_FOUND, "test/a");
    ck_assert_uint_gt(shared_bytes(other), 0); /* and it is counted */
    dlx_test_stream_check(m, 100, 10);
    m = dlx_message_unref(m);
    eventually(shared_bytes(other) == 0);
}

TEST(a_reliable_subscription_gets_what_is_retained)
{
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *s = NULL;
    struct dlx_publisher *p = new_publisher(c, &dlx_test_retain_1); /* drops its oldest */
    dlx_test_stream_publish(p, 100, 1);
    fails(dlx_subscribe(c, "test/a", SUBSCRIBE_RELIABLY, &s), DLX_E_QOS, "reliable");
    dlx_publisher_unref(p); /* what is retained is not dropped any more */
    ok(dlx_subscribe(c, "test/a", SUBSCRIBE_RELIABLY, &s));
    dlx_test_stream_expect(s, 100, 1);
}

TEST(a_clean_end_gives_back_memory_that_retains_nothing)
{
    auto_client *c = dlx_test_stream_connect();
    struct dlx_publisher *p = new_publisher(c, PUBLISHER(.history = 8, .retain = 1));
    dlx_test_stream_publish_all(p, 1 << 20, 0, 7); /* 8 MiB each */
    uint64_t before = shared_bytes(c);
    ck_assert_uint_ge(before, UINT64_C(64) << 20);
    dlx_publisher_unref(p);
    ck_assert_uint_lt(shared_bytes(c), UINT64_C(20) << 20);
    dlx_test_stream_get(c, "test/a", 1 << 20, 7);
}

TEST(a_successor_replaces_once_it_has_as_many)
{
    auto_client *c = dlx_test_stream_connect();
    struct dlx_publisher *first = new_publisher(c, &dlx_test_retain_2), *second;
    dlx_test_stream_publish_all(first, 100, 1, 2);
    fails(dlx_drop_retained(c, "test/a"), DLX_E_NOT_FOUND, "still there");
    dlx_publisher_unref(first);
    /* A publisher that retains nothing replaces nothing. */
    struct dlx_publisher *plain = new_publisher(c, NULL);
    struct dlx_publisher *other = dlx_test_stream_publisher(c, "test/plain", NULL);
    fails(dlx_drop_retained(c, "test/plain"), DLX_E_NOT_FOUND, ") retains nothing");
    dlx_publisher_unref(other);
    dlx_test_stream_publish(plain, 100, 50);
    dlx_publisher_unref(plain);
    ck_assert_uint_eq(list(c).n_retained, 1);
    second = new_publisher(c, &dlx_test_retain_2);
    dlx_test_stream_publish(second, 100, 11);
    ck_assert_uint_eq(list(c).n_retained, 1);
    dlx_test_stream_publish(second, 100, 12);
    ck_assert_uint_eq(list(c).n_retained, 0);
    ck_assert_uint_eq(list(c).n, 1);
    check_stream(c, 0, 11, 12, DLX_E_EMPTY);
    dlx_publisher_unref(second);
    /* Not enough: both stay, and the newest is the one that was published last. */
    second = new_publisher(c, &dlx_test_retain_2);
    dlx_test_stream_publish(second, 100, 21);
    dlx_publisher_unref(second);
    ck_assert_uint_eq(list(c).n_retained, 2);
    dlx_test_stream_get(c, "test/a", 100, 21);
    ok(dlx_drop_retained(c, "test/a"));
    ck_assert_uint_eq(list(c).n, 0);
}

TEST(retained_messages_expire)
{
    static const struct {
        const char *topic;
        int64_t retain_for_ns;
        bool stays;
    } all[] = {{"t/0", 40000000, false},
               {"t/1", 20000000, false},
               {"t/2", 60 * SECOND, true},
               {"t/3", DLX_FOREVER, true}};
    auto_client *c = dlx_test_stream_connect();
    for (size_t i = 0; i < DLX_ARRAY_SIZE(all); i++)
        dlx_test_store_leave_messages(
            all[i].topic, PUBLISHER(.retain = 1, .retain_for_ns = all[i].retain_for_ns), 1);
    ck_assert_uint_ge(list(c).n, 2);
    eventually(list(c).n <= 2);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(all); i++) {
        auto_message *m = NULL;
        ck_assert_msg(dlx_get(c, all[i].topic, 0, &m) == (all[i].stays ? 0 : DLX_E_EMPTY), "%s",
                      all[i].topic);
    }
}

#define SET 20

/* Publish a set whose tensors all begin with `value`, and wait to be killed. */
static pid_t spawn_trainer(int64_t value)
{
    struct dlx_test_child child = dlx_test_fork_child();
    if (child.pid == 0) {
        struct dlx_publisher *p = new_publisher(dlx_test_stream_connect(), &dlx_test_retain_1);
        struct dlx_item items[SET];
        char names[SET][16];
        for (int i = 0; i < SET; i++) {
            (void)snprintf(names[i], sizeof names[i], "w%d", i);
            items[i] = (struct dlx_item){names[i], dlx_test_stream_alloc(p, 1000, value)};
        }
        ok(dlx_publish_set(p, items, SET, NULL, NULL, NULL));
        dlx_test_fork_ready(&child);
    }
    return dlx_test_fork_wait_ready(&child);
}

static void check_set(struct dlx_message *m, int64_t value)
{
    ck_assert_uint_eq(dlx_message_n_tensors(m), SET);
    for (uint32_t i = 0; i < SET; i++) {
        const DLTensor *t = dlx_message_tensor_peek(m, i);
        int64_t k = 0;
        while (k < 1000 && ((const int64_t *)t->data)[k] == value + k)
            k++;
        ck_assert_int_eq(k, 1000); /* one assert: each is a system call */
    }
}

/* From the first set on, there is always one: while its publisher lives, dies, and is succeeded. */
TEST(a_killed_publisher_leaves_its_set_without_a_gap)
{
    auto_client *c = dlx_test_stream_connect();
    for (int64_t round = 1; round <= 40; round++) {
        pid_t pid = spawn_trainer(round * 10000);
        kill(pid, SIGKILL);
        for (int i = 0; i < 20; i++) {
            auto_message *m = NULL;
            ok(dlx_get(c, "test/a", PATIENCE, &m));
            check_set(m, round * 10000);
        }
        ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
        ck_assert_uint_eq(list(c).n_retained, 1);
    }
    ok(dlx_drop_retained(c, "test/a"));
    eventually(shared_bytes(c) == 0); /* looks at links take turns */
}

/* A publisher that speaks packets, with a message of which nothing is there but its number. */
static struct dlx_test_publisher pretend(int control)
{
    struct dlx_test_publisher p;
    Dlx__Wire__PublisherNew request = dlx_test_publisher_request("test/a");
    request.n_entries = DLX_SHM_ENTRIES_MIN;
    request.retain = 1;
    dlx_test_publisher_new_from(&p, control, &request);
    *(uint64_t *)p.block = 1; /* head */
    dlx_test_publisher_ready(&p);
    return p;
}

/* The publisher's control socket is closed, but its process lives, and could write. */
TEST(memory_that_may_still_be_written_is_not_joined)
{
    auto_client *c = dlx_test_stream_connect();
    struct dlx_message *m = NULL;
    int control = dlx_test_hello(&dlx_test_stream_daemon, 10);
    auto_test_publisher p = pretend(control);
    ck_assert_uint_eq(list(c).n, 1);
    close(control);
    /* The daemon waits for the death of the process, then does without it. */
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/a", NULL);
    ck_assert_int_eq(dlx_take(s, 0, &m), DLX_E_EMPTY);
    ck_assert_uint_eq(list(c).n, 0);
}

/* A publisher that the daemon disconnected leaves nothing. */
TEST(a_disconnected_publisher_retains_nothing)
{
    auto_client *c = dlx_test_stream_connect();
    int control = dlx_test_hello(&dlx_test_stream_daemon, 10);
    Dlx__Wire__PublisherNew request = dlx_test_publisher_request("test/a");
    request.retain = request.history + 1;
    contains(dlx_test_call_error(control, BODY(PUBLISHER_NEW), &request, DLX_E_INVALID),
             "retains 5 messages");
    auto_test_publisher p = pretend(control);
    dlx_test_send(control, OK(), 77);
    (void)dlx_test_disconnected(control, DLX_E_PROTOCOL);
    ck_assert_uint_eq(list(c).n, 0);
}
