/* SPDX-License-Identifier: Apache-2.0 */

/* Packets to the service manager, their times and their users: users, amounts and times that a test
 * cannot have for real. */

#include "daemon/persist/handover.h"
#include "daemon/persist/manager_fds.h"
#include "daemon/persist/record.h"
#include "daemon/persist/store.h"
#include "daemon/persist/store_queue.h"
#include "tests/daemon/harness_scene.h"
#include "tests/harness/fds.h"
#include <limits.h>

#define SECOND UINT64_C(1000000000)
#define BEGIN  (1000 * SECOND)

enum { GREEDY = 1000, OTHER, HONEST, OWN = 500 };

static struct dlxd_user *known[3];
static struct dlxd_store_queue queue;
static int sock;       /* of a manager that reads when it is told to */
static char last[512]; /* what it read last */

static struct dlxd_user *user_of(uid_t uid)
{
    return known[uid - GREEDY];
}

static void begin_manager(void)
{
    char name[64];
    (void)snprintf(name, sizeof name, "@dlx-test-%d", (int)getpid());
    sock = dlx_test_fds_bind(name, SOCK_DGRAM | SOCK_NONBLOCK);
    ck_assert_int_eq(setenv("NOTIFY_SOCKET", name, 1), 0);
}

static void end_manager(void)
{
    close(sock);
}

static void begin_queue(void)
{
    for (uid_t i = 0; i < DLX_ARRAY_SIZE(known); i++)
        known[i] = dlx_users_get(&dlx_users, GREEDY + i, "");
    dlxd_store_queue_init(&queue);
}

static void end_queue(void)
{
    dlxd_store_queue_deinit(&queue);
    ck_assert_uint_eq(queue.n, 0);
    ck_assert_uint_eq(queue.n_fds, 0);
}

/* Descriptors go with what is not asked for. */
static bool read_one(void)
{
    ssize_t n = recv(sock, last, sizeof last - 1, 0);
    if (n >= 0)
        last[n] = '\0';
    return n >= 0;
}

/* All that may be sent at that time, whatever the socket takes at once. */
static size_t n_sent(uint64_t now)
{
    size_t n = 0;
    for (;;) {
        size_t before = n;
        ok(dlxd_store_queue_flush(&queue, now));
        while (read_one())
            n++;
        if (n == before)
            return n;
    }
}

static const char *name_of(uid_t uid, int i)
{
    static char name[32];
    (void)snprintf(name, sizeof name, "%u-%d", (unsigned)uid, i);
    return name;
}

static void keep(uid_t uid, int i)
{
    ok(dlxd_store_queue_keep(&queue, user_of(uid), STDIN_FILENO, name_of(uid, i)));
}

static void keep_many(uid_t uid, int n)
{
    for (int i = 0; i < n; i++)
        keep(uid, i);
}

static void drop(uid_t uid, int i)
{
    ok(dlxd_store_queue_drop(&queue, user_of(uid), name_of(uid, i)));
}

CASE(store)
{
    TCase *tcase = dlx_users_case("store");
    tcase_add_checked_fixture(tcase, begin_manager, end_manager);
    tcase_add_checked_fixture(tcase, begin_queue, end_queue);
    return tcase;
}

TEST_OF(store, entries_beyond_a_burst_are_sent_at_a_rate)
{
    enum { N = 2000 };
    keep_many(GREEDY, N);
    size_t burst = n_sent(BEGIN);
    ck_assert_uint_gt(burst, 300);
    ck_assert_uint_lt(burst, N / 2);
    ck_assert_uint_eq(n_sent(BEGIN), 0);
    /* Each takes some 2 ms of the manager, which gives a fifth of its time. */
    size_t a_second = n_sent(BEGIN + SECOND);
    ck_assert_uint_gt(a_second, 50);
    ck_assert_uint_lt(a_second, 150);
    ck_assert_uint_eq(queue.n, N - burst - a_second);
    ck_assert_uint_eq(n_sent(UINT64_MAX), N - burst - a_second); /* the end */
    /* With little that is kept, they are cheap. */
    for (int i = 0; i < N; i++)
        drop(GREEDY, i);
    ck_assert_uint_eq(n_sent(UINT64_MAX), N);
    for (burst = 0; queue.n == 0; burst++) {
        keep(GREEDY, 0);
        (void)n_sent(BEGIN + 100 * SECOND);
        if (queue.n == 0)
            drop(GREEDY, 0);
        (void)n_sent(BEGIN + 100 * SECOND);
    }
    ck_assert_uint_gt(burst, 5000);
}

TEST_OF(store, users_take_turns)
{
    enum { N = 2000, FEW = 5 };
    size_t n_greedy = 0, n_other = 0;
    keep_many(GREEDY, N);
    keep_many(OTHER, N);
    (void)n_sent(BEGIN);
    keep_many(HONEST, FEW);
    ok(dlxd_store_queue_barrier(&queue, user_of(HONEST), STDIN_FILENO));
    for (uint64_t now = BEGIN; strcmp(last, "BARRIER=1") != 0; now += SECOND / 1000) {
        ck_assert_uint_lt(now, BEGIN + 10 * SECOND);
        ok(dlxd_store_queue_flush(&queue, now));
        if (!read_one())
            continue;
        n_greedy += strstr(last, "FDNAME=1000-") != NULL;
        n_other += strstr(last, "FDNAME=1001-") != NULL;
    }
    /* One descriptor of the greedy user for each of another one. */
    ck_assert_uint_ge(n_greedy, FEW);
    ck_assert_uint_le(n_greedy, FEW + 1);
    ck_assert_uint_ge(n_other, FEW);
    ck_assert_uint_le(n_other, FEW + 1);
    ck_assert_uint_gt(queue.n, N);
}

TEST_OF(store, an_entry_dropped_before_it_was_sent_is_never_sent)
{
    size_t n_fds = dlx_test_fds_count();
    keep_many(GREEDY, 3);
    ck_assert_uint_eq(dlx_test_fds_count(), n_fds + 3);
    drop(GREEDY, 1);
    ck_assert_uint_eq(queue.n_fds, 2);
    drop(GREEDY, 0);
    drop(GREEDY, 2);
    ck_assert_uint_eq(dlx_test_fds_count(), n_fds);
    ck_assert_uint_eq(queue.n, 0);
    ck_assert_uint_eq(queue.n_fds, 0);
    ck_assert_uint_eq(n_sent(BEGIN), 0);
    /* Another user's of the same name is another one. */
    ok(dlxd_store_queue_keep(&queue, user_of(GREEDY), STDIN_FILENO, "x"));
    ck_assert_int_eq(dlxd_store_queue_count(&queue, user_of(OTHER), 1), 0);
    ok(dlxd_store_queue_drop(&queue, user_of(OTHER), "x"));
    ck_assert_uint_eq(queue.n, 2);
    ck_assert_uint_eq(n_sent(BEGIN), 2);
}

/* Or the manager would have more than are counted, and drop one without a word. */
TEST_OF(store, a_removed_entry_is_counted_until_its_removal_was_sent)
{
    keep(GREEDY, 1);
    ck_assert_uint_eq(n_sent(BEGIN), 1);
    ck_assert_str_eq(last, "FDSTORE=1\nFDPOLL=0\nFDNAME=1000-1");
    drop(GREEDY, 1);
    ck_assert_uint_eq(queue.n_fds, 1);
    ck_assert_uint_eq(user_of(GREEDY)->used[DLXD_STORE_ENTRIES], 1);
    ck_assert_uint_eq(n_sent(BEGIN), 1);
    ck_assert_str_eq(last, "FDSTOREREMOVE=1\nFDNAME=1000-1");
    ck_assert_uint_eq(queue.n_fds, 0);
    ck_assert_uint_eq(user_of(GREEDY)->used[DLXD_STORE_ENTRIES], 0);
}

TEST_OF(store, an_entry_that_cannot_be_sent_stays)
{
    keep(GREEDY, 1);
    ck_assert_int_eq(setenv("NOTIFY_SOCKET", "@dlx-test-nobody", 1), 0);
    ck_assert_int_lt(dlxd_store_queue_flush(&queue, BEGIN), 0);
    ck_assert_uint_eq(queue.n, 1);
}

TEST_OF(store, an_entry_that_could_not_be_posted_is_not_counted)
{
    keep(GREEDY, 1);
    ck_assert_int_lt(dlxd_store_queue_keep(&queue, user_of(GREEDY), INT_MAX, "no descriptor"), 0);
    ck_assert_int_lt(dlxd_store_queue_keep(&queue, user_of(OTHER), INT_MAX, "no descriptor"), 0);
    ck_assert_uint_eq(queue.n_fds, 1);
    ck_assert_uint_eq(user_of(GREEDY)->used[DLXD_STORE_ENTRIES], 1);
    ck_assert_uint_eq(user_of(OTHER)->used[DLXD_STORE_ENTRIES], 0);
}

static struct dlxd_publisher *retain(struct dlxd_client *client)
{
    return dlx_test_broker_publisher(client, "t", PUBLISHER_CONFIG(.history = 1, .retain = 1), 1);
}

/* The daemon runs as this uid, and the manager keeps so many descriptors. */
static void begin_store(uid_t own, uint32_t max)
{
    struct dlxd_manager_fds none = {.n = 0};
    dlx_scene.broker.policy.uid = own;
    ok(dlxd_store_init(&dlx_scene.broker, max, &none));
}

static void end_store(void)
{
    dlxd_store_deinit(&dlx_scene.broker);
}

/* Publishers that retain messages, until one does not fit. Returns how many do; each has a control
 * block and a pidfd there. */
static uint32_t fill(uid_t uid)
{
    struct dlxd_client *client = dlx_scene_client(0, 10);
    client->principal->uid = uid;
    dlxd_user_unref(client->user);
    ok(dlxd_users_get(&dlx_scene.broker.users, client->principal, &client->user));
    for (uint32_t n = 0;; n++) {
        dlx__error_clear();
        struct dlxd_publisher *publisher = retain(client);
        ck_assert_uint_eq(publisher->principal->uid, uid);
        ck_assert_int_eq(publisher->not_kept, publisher->ledger_index == 0);
        if (publisher->not_kept) { /* nor does any part of it stay */
            ck_assert(!publisher->pidfd_kept && !publisher->control->kept);
            return n;
        }
    }
}

CASE(shares)
{
    TCase *tcase = dlx_scene_case("shares", NULL);
    tcase_add_checked_fixture(tcase, begin_manager, end_manager);
    tcase_add_checked_fixture(tcase, NULL, end_store);
    return tcase;
}

/* A uid by another socket is another user: it has a share of its own. */
TEST_OF(shares, a_share_belongs_to_a_user_by_one_socket)
{
    begin_store(geteuid() + 1, 65);
    struct dlxd_client *pods = dlx_scene_client(1, 10);
    ck_assert_uint_eq(fill(geteuid()), 65 / 4);
    ck_assert(!retain(pods)->not_kept);
}

TEST_OF(shares, a_user_cannot_take_all_that_the_manager_keeps)
{
    enum { MAX = 65 };
    begin_store(OWN, MAX);
    ck_assert_uint_eq(fill(GREEDY), MAX / 4);
    ck_assert_str_eq(dlx__error_message(),
                     "uid 1000 asks for 1 file descriptors that the service manager keeps, uses 32 "
                     "and may have at most 1 times what is left: all users together use 33 and may "
                     "have 65 (quota store-entries); raise dlpackd's --fd-store and "
                     "FileDescriptorStoreMax= of its unit");
    ck_assert_uint_eq(fill(OTHER), MAX / 8);
    ck_assert_uint_eq(fill(HONEST), MAX / 16);
    /* The daemon's own may have the rest. */
    ck_assert_uint_ge(fill(OWN), MAX / 16 - 1);
    ck_assert_msg(strstr(dlx__error_message(), "may have at most what is left: all users together "
                                               "use 65 and may have 65"),
                  "%s", dlx__error_message());
}

/* A daemon that finds regions without a pidfd takes them to have no writer, however soon the last
 * one ended. */
TEST_OF(shares, a_pidfd_is_kept_before_the_regions_of_its_publisher)
{
    begin_store(OWN, 100);
    struct dlxd_publisher *publisher = retain(dlx_scene_client(0, 10));
    ck_assert(publisher->pidfd_kept && publisher->control->kept);
    bool has_pidfd = false;
    size_t n_regions = 0;
    while (read_one()) {
        has_pidfd |= strstr(last, "FDNAME=" DLXD_RECORD_PIDFD) != NULL;
        n_regions += strstr(last, "FDNAME=" DLXD_RECORD_REGION) != NULL;
        ck_assert(n_regions == 0 || has_pidfd);
    }
    ck_assert_uint_eq(n_regions, 1);
}

/* Publishers that the ledger of the store names. */
static uint32_t n_in_ledger(void)
{
    struct dlxd_ledger ledger;
    uint32_t n = 0;
    ok(dlxd_ledger_open(&ledger, dlx_test_fds_dup(dlx_test_fds_find("/memfd:dlx-ledger"))));
    for (uint32_t i = 1; i <= ledger.n; i++)
        n += ledger.used[i];
    dlxd_ledger_deinit(&ledger);
    return n;
}

/* It names all that is handed over, also what is not to outlive the daemon in any other way. */
TEST_OF(shares, an_upgrade_that_is_given_up_leaves_nothing_in_the_ledger)
{
    struct dlxd_handover handover;
    begin_store(OWN, 100);
    struct dlxd_client *client = dlx_scene_client(0, 10);
    (void)retain(client);
    (void)dlx_test_broker_publisher(
        client, "latched", PUBLISHER_CONFIG(.history = 1, .retain = 1, .latched = true), 1);
    ck_assert_uint_eq(n_in_ledger(), 1);
    dlxd_handover_init(&handover);
    ok(dlxd_store_hand_over(&dlx_scene.broker, &handover));
    ck_assert_uint_eq(n_in_ledger(), 2);
    dlxd_handover_deinit(&handover);
    dlxd_store_take_back(&dlx_scene.broker);
    ck_assert_uint_eq(n_in_ledger(), 1);
}

/* Its class, too, says how much the manager keeps for a user; the daemon's own one is no
 * exception. */
TEST_OF(shares, a_class_limits_what_the_manager_keeps)
{
    dlx_scene.broker.users.max[DLXD_STORE_ENTRIES] = 6;
    begin_store(OWN, 100);
    ck_assert_uint_eq(fill(GREEDY), 3);
    ck_assert_str_eq(dlx__error_message(),
                     "uid 1000 asks for 1 file descriptors that the service manager keeps, uses 6 "
                     "and may have 6 (quota store-entries); raise it in [quota default] of "
                     "dlpackd.conf");
    ck_assert_uint_eq(fill(OTHER), 3);
    ck_assert_uint_eq(fill(OWN), 2); /* the ledger is one */
    ck_assert_uint_eq(dlx_scene.broker.users.all_stored, 6 + 6 + 5);
}

int main(void)
{
    return dlx_test_run_cases();
}
