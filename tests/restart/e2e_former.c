/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that programs keep of a daemon that has ended is in the books of the next one: each byte
 * once, with the processes that keep it, until they let go of it. */

#include "client/publish/publisher_memory.h"
#include "tests/daemon/harness_config.h"
#include "tests/harness/cli.h"
#include "tests/harness/fork.h"
#include "tests/harness/maps.h"
#include "tests/restart/harness_restart.h"

enum { MIB = 1 << 20, VALUES = MIB / 8 };

static uint64_t mapped(void)
{
    return dlx_test_region_bytes((const pid_t[]){getpid()}, 1);
}

static struct dlx_daemon_info info(void)
{
    auto_client *c = dlx_test_stream_connect();
    return dlx_test_stream_daemon_info(c);
}

/* The books of the daemon have what this process maps, and nothing else. */
static void expect_counted(void)
{
    for (uint64_t until = dlx__deadline(PATIENCE); info().shared_bytes != mapped();)
        if (dlx__now_ns() > until)
            ck_abort_msg("%lu bytes are counted, %lu of them former, and %lu are mapped",
                         (unsigned long)info().shared_bytes, (unsigned long)info().former_bytes,
                         (unsigned long)mapped());
}

/* The lines of `dlxctl holds --all` about former memory. */
struct shown {
    struct dlx_client *c;
    uint64_t bytes;                    /* of all entries */
    uint64_t of_publishers, of_others; /* as those say who keep it */
    uint32_t n_publishers, n_others;
    uint32_t last_pid;
};

static int add_link(const struct dlx_link_info *link, void *userdata)
{
    struct shown *shown = userdata;
    *(link->is_publisher ? &shown->of_publishers : &shown->of_others) += link->former_bytes;
    *(link->is_publisher ? &shown->n_publishers : &shown->n_others) += 1;
    shown->last_pid = link->pid;
    return 0;
}

static int add_former(const struct dlx_publisher_info *publisher, void *userdata)
{
    struct shown *shown = userdata;
    if (publisher->former == 0)
        return 0;
    shown->bytes += publisher->arena_bytes + publisher->control_bytes;
    int r = dlx_list_links(shown->c, publisher->publisher, add_link, shown);
    return r == DLX_E_NOT_FOUND ? 0 : r; /* it may have gone since */
}

static struct shown show(const char *topic)
{
    auto_client *c = dlx_test_stream_connect();
    struct shown shown = {.c = c};
    ok(dlx_list_gone_publishers(c, topic, add_former, &shown));
    return shown;
}

static void check_dlxctl(const char *const *command, const char *const *words)
{
    auto_cli cli;
    dlx_test_cli_run(&cli, dlx_test_stream_daemon.path, -1, 0, command);
    for (; *words; words++)
        contains(cli.out, *words);
}

/* A subscription goes on with the next daemon. */
static void subscribe_again(struct dlx_subscription *s, struct dlx_publisher *p, int64_t value)
{
    struct dlx_message *m = NULL;
    uint64_t seq = 0;
    dlx_test_stream_publish(p, 10, value);
    uint64_t last = dlx_test_stream_stats(p).published;
    for (uint64_t until = dlx__deadline(PATIENCE); seq < last; dlx_test_before(until)) {
        if (dlx_take(s, SECOND / 50, &m) == 0)
            seq = dlx_message_seq(m);
        m = dlx_message_unref(m);
    }
}

/* Messages that are held, and nothing else of the same publisher in the way. */
static void hold(struct dlx_publisher *p, struct dlx_subscription *s, struct dlx_message **held,
                 int n)
{
    for (int i = 0; i < n; i++) {
        dlx_test_stream_publish(p, VALUES, i);
        held[i] = dlx_test_stream_next(s);
    }
}

static void release(struct dlx_message **held, size_t n)
{
    dlx_test_stream_unref_messages(held, n);
    for (size_t i = 0; i < n; i++)
        held[i] = NULL;
}

/* The scene: 286 MB were held, and 48 KiB shown. */
TEST(every_byte_counts_once_before_and_after_restarts)
{
    enum { N = 3, RESTARTS = 2 };
    struct dlx_message *held[RESTARTS + 1][N] = {{NULL}};
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    hold(x.p, x.s, held[0], N);
    ck_assert_uint_eq(info().shared_bytes, mapped());
    for (int i = 1; i <= RESTARTS; i++) {
        dlx_restart_with(x.p);
        subscribe_again(x.s, x.p, i);
        expect_counted();
        ck_assert_uint_ge(info().former_bytes, (uint64_t)i * N * MIB);
        ck_assert_uint_eq(show(NULL).bytes, info().former_bytes);
        hold(x.p, x.s, held[i], N);
        expect_counted();
    }
    for (int i = 0; i <= RESTARTS; i++) {
        release(held[i], N);
        for (int k = 0; k < 40; k++) { /* the publisher retires blocks that no subscriber holds */
            dlx_test_stream_publish(x.p, 10, k);
            dlx_message_unref(dlx_test_stream_next(x.s));
        }
        expect_counted();
    }
    eventually(info().former_bytes == 0);
    ck_assert_uint_eq(show(NULL).bytes, 0);
    expect_counted();
}

static bool has_link(const struct dlx_subscription *s, uint64_t id)
{
    for (uint32_t i = 0; i < s->n_links; i++)
        if (s->links[i]->id == id)
            return true;
    return false;
}

static void done(struct dlx_message *m)
{
    ok(dlx_message_done(m));
    dlx_message_unref(m);
}

/* The workers of a group map one claims page. Odd: the publisher has declared the group. */
LOOP_TEST(claims_page_of_a_former_group_counts_once_while_its_workers_map_it, 0, 2)
{
    static const char *const groups[] = {"g"};
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(
        c, "test/a", PUBLISHER(.groups = groups, .n_groups = (uint32_t)_i, .depth = 512));
    const struct dlx_subscribe_args *args = SUBSCRIBE(.group = "g", .max_held = 2);
    auto_subscription *first = dlx_test_stream_subscribe(c, "test/a", args);
    auto_subscription *second = dlx_test_stream_subscribe(c, "test/a", args);
    struct dlx_message *held[2];
    hold(p, first, &held[0], 1);
    hold(p, second, &held[1], 1);
    expect_counted();
    dlx_restart_with(p);
    subscribe_again(first, p, 1);
    subscribe_again(second, p, 1);
    expect_counted();
    done(held[0]);
    expect_counted();
    done(held[1]);
    for (int k = 0; k < 40; k++) { /* until all have left the former links */
        dlx_test_stream_publish(p, 10, k);
        done(dlx_test_stream_next(k % 2 ? second : first));
    }
    expect_counted();
}

/* The subscription has left its link with the first daemon. The publisher maps the page of the link
 * until it looks for links that are over. */
TEST(page_of_former_link_counts_while_its_publisher_maps_it)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    struct dlx_message *none = NULL;
    dlx_test_stream_publish(x.p, 10, 1);
    dlx_message_unref(dlx_test_stream_next(x.s));
    uint64_t first = x.s->links[0]->id;
    dlx_restart_with(x.p);
    for (uint64_t until = dlx__deadline(PATIENCE); has_link(x.s, first); dlx_test_before(until))
        ck_assert_int_lt(dlx_take(x.s, SECOND / 100, &none), 0);
    ck_assert_uint_eq(dlx__writer_n_links(&x.p->core), 1);
    expect_counted();
    dlx__publisher_look_ahead(x.p);
    expect_counted();
}

/* Only the subscriber's process has the memory any more; then its connection ends, too. */
TEST(messages_of_a_publisher_that_never_comes_back_count_until_they_are_released)
{
    struct dlx_message *held[2], *none = NULL;
    struct dlx_client *c = dlx_test_stream_connect();
    struct dlx_subscription *s = dlx_test_stream_subscribe(c, "test/a", NULL);
    struct dlx_publisher *p = dlx_test_stream_new_publisher("test/a", NULL);
    hold(p, s, held, 2);
    dlx_publisher_unref(p);
    take_fails(s, PATIENCE, DLX_E_PUBLISHER_GONE, "");
    ck_assert_uint_eq(dlx_test_stream_subscription_stats(s).n_held,
                      2); /* of a link that was left */
    dlx_test_stream_restart();
    /* The subscription maps its new spare links in its calls. */
    for (uint64_t until = dlx__deadline(PATIENCE);
         info().former_bytes == 0 || info().shared_bytes != mapped(); dlx_test_before(until))
        ck_assert_int_lt(dlx_take(s, SECOND / 50, &none), 0);
    struct shown shown = show("test/*");
    ck_assert_uint_ge(shown.of_others, UINT64_C(2) * MIB);
    ck_assert_uint_eq(shown.n_others, 1);
    ck_assert_uint_eq(shown.n_publishers, 0);
    ck_assert_uint_eq(shown.last_pid, (uint32_t)getpid());
    ck_assert_uint_eq(show("other").bytes, 0);
    check_dlxctl(DLX_TEST_WORDS("holds"),
                 DLX_TEST_WORDS("test/a", "from before dlpackd's restart, keeps 2.0"));
    check_dlxctl(DLX_TEST_WORDS("holds", "--json"), DLX_TEST_WORDS("\"former_bytes\": 2"));
    check_dlxctl(DLX_TEST_WORDS("info", "test/a"),
                 DLX_TEST_WORDS("test/a: 0 publishers", "of test/a, from before dlpackd's restart",
                                "which these programs keep", "uid"));
    check_dlxctl(DLX_TEST_WORDS("info"), DLX_TEST_WORDS("of it 2.0"));
    ck_assert_uint_eq(dlx_test_stream_subscription_stats(s).n_held, 2);
    dlx_message_unref(held[0]);
    ck_assert_uint_eq(dlx_test_stream_subscription_stats(s).n_held, 1);
    dlx_subscription_unref(s);
    dlx_client_unref(c);
    expect_counted();
    ck_assert_uint_ge(info().former_bytes, MIB);
    dlx_test_stream_check(held[1], VALUES, 1);
    dlx_message_unref(held[1]);
    eventually(info().shared_bytes == 0);
}

/* ---- processes ------------------------------------------------------------------------------ */

/* Holds a message, and goes on with the next daemon. */
static void hold_elsewhere(int sock, const void *userdata)
{
    struct dlx_message *held[1], *m = NULL;
    struct dlx_client *c = dlx_test_stream_connect();
    struct dlx_subscription *s = dlx_test_stream_subscribe(c, "test/a", userdata);
    dlx_test_say(sock);
    held[0] = dlx_test_stream_next(s);
    dlx_test_say(sock);
    dlx_test_hear(sock);
    while (!s->made_again)
        if (dlx_take(s, SECOND / 50, &m) == 0)
            m = dlx_message_unref(m);
    dlx_test_say(sock);
    dlx_test_hear(sock); /* until it is killed */
    dlx_message_unref(held[0]);
}

TEST(memory_that_a_process_kept_counts_no_more_when_it_is_killed)
{
    struct dlx_test_part part = dlx_test_part_begin(hold_elsewhere, NULL);
    dlx_test_hear(part.sock);
    auto_publisher *p = dlx_test_stream_new_publisher("test/a", NULL);
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    dlx_test_stream_publish(p, VALUES, 1);
    dlx_test_hear(part.sock);
    dlx_restart_with(p);
    dlx_test_say(part.sock);
    for (uint64_t until = dlx__deadline(PATIENCE); show(NULL).n_others == 0; dlx_test_before(until))
        dlx_test_stream_publish(p, 10, 1);
    dlx_test_hear(part.sock);
    const pid_t pids[] = {getpid(), part.pid};
    eventually(info().shared_bytes == dlx_test_region_bytes(pids, 2));
    struct shown shown = show(NULL);
    ck_assert_uint_ge(shown.of_others, MIB);
    ck_assert_uint_ge(shown.of_publishers, MIB);
    ck_assert_uint_lt(shown.bytes, UINT64_C(2) * MIB); /* once */
    dlx_test_part_kill(&part);
    eventually(show(NULL).n_others == 0);
    for (uint64_t until = dlx__deadline(PATIENCE); info().former_bytes > 0; dlx_test_before(until))
        dlx_test_stream_publish(p, 10, 1);
    expect_counted();
}

/* ---- users: a uid is another one on each socket ---------------------------------------------- */

static char pods_path[300];

static const char *two_sockets(void)
{
    static char text[1024];
    (void)snprintf(pods_path, sizeof pods_path, "%s/pods", dlx_test_stream_daemon.dir);
    (void)snprintf(text, sizeof text,
                   "[quota default]\nbytes = 32M\n"
                   "[socket pods]\npath = %s\n"
                   "[rule all]\nusers = *\nsockets = dlpackd, pods\ntopics = **\nallow = all\n",
                   pods_path);
    return text;
}

struct bytes {
    uint64_t by_main, by_pods;
};

static int add_quota(const struct dlx_quota_info *quota, void *userdata)
{
    struct bytes *bytes = userdata;
    if (strcmp(quota->name, "bytes") == 0)
        *(strcmp(quota->socket, "pods") == 0 ? &bytes->by_pods : &bytes->by_main) += quota->used;
    return 0;
}

static struct bytes used(void)
{
    struct bytes bytes = {0, 0};
    auto_client *c = dlx_test_stream_connect();
    ok(dlx_list_quotas(c, add_quota, &bytes));
    return bytes;
}

static struct dlx_client *connect_by_pods(void)
{
    struct dlx_client *c = NULL;
    ok(dlx_configured_connect(pods_path, &c));
    return c;
}

TEST(the_publisher_pays_and_after_it_who_holds)
{
    enum { N = 3 };
    struct dlx_message *held[N];
    dlx_configured_start(two_sockets());
    auto_client *c = dlx_test_stream_connect(), *pods = connect_by_pods();
    struct dlx_publisher *p = dlx_test_stream_publisher(c, "test/a", NULL);
    auto_subscription *s = dlx_test_stream_subscribe(pods, "test/a", NULL);
    hold(p, s, held, N);
    struct bytes before = used();
    ck_assert_uint_ge(before.by_main, N * MIB);
    ck_assert_uint_lt(before.by_pods, MIB);
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    dlx_configured_start(two_sockets());
    dlx_restart_announce(p);
    subscribe_again(s, p, 1);
    expect_counted();
    ck_assert_uint_ge(used().by_main, N * MIB);
    ck_assert_uint_lt(used().by_pods, MIB);
    dlx_publisher_unref(p);
    eventually(used().by_main < MIB && used().by_pods >= N * MIB);
    expect_counted();
    release(held, N);
    take_fails(s, PATIENCE, DLX_E_PUBLISHER_GONE, "");
    eventually(used().by_pods < MIB);
    expect_counted();
    ck_assert_int_eq(dlx_test_daemon_stop(&dlx_test_stream_daemon), 0);
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
}

/* The kept part of 32 MiB counts as before. */
TEST(a_quota_that_former_memory_fills_has_room_when_that_is_released)
{
    enum { N = 15, LARGE = 2 * VALUES };
    struct dlx_message *held[N];
    dlx_configured_start(two_sockets());
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", PUBLISHER(.depth = 1));
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/a", NULL);
    for (int i = 0; i < N; i++) {
        dlx_test_stream_publish(p, LARGE, i);
        held[i] = dlx_test_stream_next(s);
    }
    DLManagedTensorVersioned *t = NULL;
    const struct dlx_tensor_spec spec = INT64_SPEC(((int64_t[]){2 * LARGE}));
    fails(dlx_alloc(p, &spec, &t), DLX_E_LIMIT, "see dlxctl holds");
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    dlx_configured_start(two_sockets());
    dlx_restart_announce(p);
    subscribe_again(s, p, 1); /* the stream goes on */
    fails(dlx_alloc(p, &spec, &t), DLX_E_LIMIT, "from before dlpackd was restarted");
    release(held, N);
    for (uint64_t until = dlx__deadline(PATIENCE); dlx_alloc(p, &spec, &t) < 0;
         dlx_test_before(until))
        dlx_test_stream_publish(p, 10, 1);
    t->deleter(t);
    ck_assert_int_eq(dlx_test_daemon_stop(&dlx_test_stream_daemon), 0);
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
}

int main(void)
{
    TCase *tcase = dlx_test_stream_case("former");
    dlx_configured_fixture(tcase);
    return dlx_test_run_case(tcase);
}
