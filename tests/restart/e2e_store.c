/* SPDX-License-Identifier: Apache-2.0 */
/* Retained messages outlive the daemon, where the service manager keeps descriptors (a stand-in:
 * tests/harness/manager.h). */

#include "tests/harness/fork.h"
#include "tests/harness/store.h"
#include "tests/harness/upgrade.h"

static int add_stored(const struct dlx_quota_info *info, void *sum)
{
    if (strcmp(info->name, "store-entries") == 0)
        *(uint64_t *)sum += info->used;
    return 0;
}

static uint64_t n_charged(struct dlx_client *c)
{
    uint64_t sum = 0;
    ok(dlx_list_quotas(c, add_stored, &sum));
    return sum;
}

/* The users pay for what the service manager keeps of ours, and for nothing else. */
static void check_charges(void)
{
    auto_client *c = dlx_test_stream_connect();
    eventually(n_charged(c) == dlx_test_manager_n_kept(&dlx_test_store_manager, "dlx-"));
}

TEST(retained_messages_outlive_daemons)
{
    dlx_test_store_leave_messages("test/a", &dlx_test_retain_2, 10);
    dlx_test_store_leave_messages("test/b", &dlx_test_retain_1, 3);
    for (int i = 0; i < 3; i++) {
        dlx_test_store_restart();
        ck_assert_int_eq(dlx_test_store_n_publishers(), 2);
        dlx_test_store_check_there("test/a", 9, 10);
        dlx_test_store_check_there("test/b", 3, 3);
        check_charges();
    }
    /* A daemon that is told to end leaves them, too. */
    ck_assert_int_eq(dlx_test_daemon_stop(&dlx_test_stream_daemon), 0);
    dlx_test_store_run_again();
    dlx_test_store_check_there("test/a", 9, 10);
    dlx_test_store_leave_messages("test/b", &dlx_test_retain_1, 1); /* replaces what was there */
    dlx_test_store_drop("test/a");
    dlx_test_store_restart();
    ck_assert_int_eq(dlx_test_store_n_publishers(), 1);
    dlx_test_store_check_there("test/b", 1, 1);
    check_charges();
}

/* "Closed" is answered when the manager has everything. */
TEST(a_daemon_that_is_killed_at_once_loses_nothing)
{
    for (int64_t i = 1; i <= 60; i++) {
        dlx_test_store_leave_messages("test/a", &dlx_test_retain_1, i % 7 + 1);
        dlx_test_store_restart();
        dlx_test_store_check_there("test/a", i % 7 + 1, i % 7 + 1);
        ck_assert_int_eq(dlx_test_store_n_publishers(), 1);
    }
}

/* Odd: it had published nothing. */
LOOP_TEST(a_publisher_that_dies_while_there_is_no_daemon_leaves_its_messages, 0, 2)
{
    pid_t pid = dlx_test_store_publish_elsewhere(&dlx_test_retain_2, _i ? 0 : 5);
    dlx_test_manager_wait_n_kept(&dlx_test_store_manager, "dlx-pid-", 1);
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    dlx_test_fork_kill(pid);
    dlx_test_store_run_again();
    if (_i == 0)
        dlx_test_store_check_there("test/a", 4, 5);
    else
        dlx_test_manager_wait_n_kept(&dlx_test_store_manager, "dlx-region-", 0);
    dlx_test_manager_wait_n_kept(&dlx_test_store_manager, "dlx-pid-", 0); /* no process writes */
    if (_i)
        ck_assert_int_eq(dlx_test_store_n_publishers(), 0);
    dlx_test_store_restart();
    if (_i == 0)
        dlx_test_store_check_there("test/a", 4, 5);
}

/* The publisher's retained messages, if any, are shown meanwhile: e2e_shown. */
TEST(a_publisher_that_sleeps_through_a_restart_is_there_when_it_dies)
{
    pid_t pid = dlx_test_store_publish_elsewhere(&dlx_test_retain_2, 5),
          idle = dlx_test_store_publish_elsewhere(&dlx_test_retain_2, 0);
    dlx_test_manager_wait_n_kept(&dlx_test_store_manager, "dlx-pid-", 2);
    dlx_test_store_restart();
    dlx_test_store_restart();
    contains(dlx_test_stream_daemon.said,
             "what 2 publishers retain; nobody sees what 1 of them retain until");
    ck_assert_int_eq(dlx_test_store_n_publishers(), 1);
    dlx_test_fork_kill(idle); /* it had published nothing, and leaves nothing */
    dlx_test_fork_kill(pid);
    dlx_test_manager_wait_n_kept(&dlx_test_store_manager, "dlx-pid-", 0);
    ck_assert_int_eq(dlx_test_store_n_publishers(), 1);
    dlx_test_store_check_there("test/a", 4, 5);
}

/* The subscription's only publisher leaves again: nothing is taken, and the subscription does not
 * end. */
static void wait_until_left(struct dlx_subscription *s)
{
    struct dlx_event event = {.size = sizeof event};
    struct dlx_message *m = NULL;
    while (dlx_subscription_next_event(s, &event) != 0 || event.kind == DLX_EVENT_JOINED ||
           event.kind == DLX_EVENT_RECONNECTED) {
        int r = dlx_take(s, SECOND / 1000, &m);
        ck_assert_msg(r == DLX_E_TIMEOUT || r == DLX_E_DISCONNECTED, "%d", r);
    }
}

/* A subscription for two publishers counts one that another daemon knows again once. */
TEST(a_retained_publisher_leaves_once)
{
    struct dlx_message *m = NULL;
    dlx_test_store_leave_messages("test/a", &dlx_test_retain_2, 10);
    auto_subscription *s = dlx_test_stream_new_subscription("test/a", SUBSCRIBE(.n_publishers = 2));
    dlx_test_store_take(s, 9, 10);
    wait_until_left(s);
    for (int i = 0; i < 2; i++) {
        dlx_test_store_restart();
        wait_until_left(s);
    }
    dlx_test_store_leave_messages("test/a", &dlx_test_retain_2, 3);
    dlx_test_stream_expect_all(s, 100, 1, 3);
    fails(dlx_take(s, PATIENCE, &m), DLX_E_PUBLISHER_GONE, "test/a");
}

TEST(no_message_comes_twice)
{
    struct dlx_message *m = NULL;
    dlx_test_store_leave_messages("test/a", &dlx_test_retain_2, 10);
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/a", NULL);
    auto_subscription *slow = dlx_test_stream_subscribe(c, "test/a", NULL);
    dlx_test_store_take(s, 9, 10);
    dlx_test_store_take(slow, 9, 9);
    for (int i = 0; i < 2; i++) {
        /* Asked as often as it takes to find the new daemon. */
        dlx_test_store_restart();
        int r;
        uint64_t until = dlx__deadline(PATIENCE);
        while ((r = dlx_take(s, 1000000, &m)) != DLX_E_PUBLISHER_GONE) {
            ck_assert_msg(r == DLX_E_EMPTY || r == DLX_E_TIMEOUT || r == DLX_E_DISCONNECTED, "%d",
                          r);
            ck_assert_uint_eq(dlx_test_stream_subscription_stats(s).lost, 0);
            dlx_test_before(until);
        }
        ck_assert_uint_eq(dlx_test_stream_subscription_stats(s).lost, 0);
    }
    dlx_test_store_take(slow, 10, 10);
    /* The daemon knows it again. Of another one, who comes after them, all that it publishes. */
    ck_assert_int_eq(dlx_take(slow, PATIENCE, &m), DLX_E_PUBLISHER_GONE);
    dlx_test_store_leave_messages("test/a", &dlx_test_retain_2, 3);
    dlx_test_store_take(s, 1, 3);
    dlx_test_store_take(slow, 1, 3);
}

TEST(time_goes_on_while_there_is_no_daemon)
{
    dlx_test_store_leave_messages("test/a", PUBLISHER(.retain = 1, .retain_for_ns = 60 * SECOND),
                                  1);
    dlx_test_store_leave_messages("test/b", PUBLISHER(.retain = 1, .retain_for_ns = SECOND / 5), 1);
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    uint64_t until = dlx__deadline(SECOND / 5);
    while (dlx__now_ns() < until)
        (void)poll(NULL, 0, 1);
    dlx_test_store_run_again();
    dlx_test_manager_wait_n_kept(&dlx_test_store_manager, "dlx-region-", 2);
    ck_assert_int_eq(dlx_test_store_n_publishers(), 1);
    dlx_test_store_check_there("test/a", 1, 1);
}

/* The bounds of one link are in the ledger, too. */
LOOP_TEST(bounds_of_what_is_retained_outlive_daemons, 0, 2)
{
    struct dlx_message *other = NULL;
    dlx_test_store_leave_messages("test/a",
                                  _i == 0 ? PUBLISHER(.retain = 2, .max_held = 1)
                                          : PUBLISHER(.retain = 2, .max_held_bytes = 800),
                                  2);
    dlx_test_store_restart();
    auto_subscription *s = dlx_test_stream_new_subscription("test/a", NULL);
    struct dlx_message *m = dlx_test_stream_next(s);
    fails(dlx_take(s, PATIENCE, &other), DLX_E_TOO_MANY_HELD,
          _i == 0 ? "1 messages are held, the limit of the publisher"
                  : "800 B are held, and the publisher allows 800 B");
    dlx_message_unref(m);
    dlx_test_store_take(s, 2, 2);
}

/* The ledger, and a control block and an arena for each; a pidfd for each that is open. */
TEST(a_publisher_that_does_not_fit_is_not_kept_by_half)
{
    dlx_test_store_limit(4);
    dlx_test_store_leave_messages("test/a", &dlx_test_retain_1, 1);
    dlx_test_store_leave_messages("test/b", &dlx_test_retain_1, 1);
    dlx_test_upgrade_await("test/b: what ");
    dlx_test_upgrade_await("use 4 and may have 4 (quota store-entries)");
    dlx_test_manager_wait_n_kept(&dlx_test_store_manager, "", 3);
    dlx_test_store_check_there("test/b", 1, 1);
    dlx_test_store_restart();
    ck_assert_int_eq(dlx_test_store_n_publishers(), 1);
    dlx_test_store_check_there("test/a", 1, 1);
}

/* Publishers that come and go before the manager reads are never sent: no descriptor waits. */
TEST(a_flood_that_the_manager_does_not_read_takes_no_descriptors)
{
    enum { FEW = 10 };
    atomic_store(&dlx_test_store_manager.stalled, true);
    auto_client *c = dlx_test_stream_connect();
    size_t n = 0;
    /* Until the manager's socket is full, however much that takes, and beyond. */
    for (int i = 0; i < 1000; i++) {
        dlx_publisher_unref(dlx_test_store_publisher(c, "test/a", &dlx_test_retain_1));
        if (i == 0)
            n = dlx_test_daemon_n_fds(&dlx_test_stream_daemon);
    }
    ck_assert_uint_le(dlx_test_daemon_n_fds(&dlx_test_stream_daemon), n + FEW);
    atomic_store(&dlx_test_store_manager.stalled, false);
    /* Waits until the manager has all of it. */
    dlx_test_store_leave_messages("test/b", &dlx_test_retain_1, 1);
    dlx_test_store_restart();
    dlx_test_store_check_there("test/b", 1, 1);
}

TEST(a_manager_that_does_not_answer_keeps_nobody_waiting_for_ever)
{
    auto_client *c = dlx_test_stream_connect(), *others = dlx_test_stream_connect();
    struct dlx_publisher *p = dlx_test_store_publisher(c, "test/a", &dlx_test_retain_1);
    dlx_test_stream_publish(p, 100, 1);
    /* Ledger, pidfd, control block, arena. */
    dlx_test_manager_wait_n_kept(&dlx_test_store_manager, "", 4);
    atomic_store(&dlx_test_store_manager.stalled, true);
    pid_t other = dlx_test_fork();
    if (other == 0) { /* meanwhile, others are served */
        uint64_t before = dlx__now_ns();
        for (int i = 0; i < 100; i++) {
            auto_client *mine = dlx_test_stream_connect();
            (void)dlx_test_stream_daemon_info(mine);
        }
        _exit(dlx__now_ns() - before < 2 * (uint64_t)SECOND ? 0 : 1);
    }
    dlx_publisher_unref(p); /* seconds */
    dlx_test_fork_join(other);
    (void)dlx_test_stream_daemon_info(others);
    atomic_store(&dlx_test_store_manager.stalled, false); /* it reads what waited */
    dlx_test_manager_wait_n_kept(&dlx_test_store_manager, "dlx-pid-", 0);
    dlx_test_store_restart();
    dlx_test_store_check_there("test/a", 1, 1);
}

static int memfd(const char *content)
{
    int fd = memfd_create("test", MFD_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, content, strlen(content)), (ssize_t)strlen(content));
    return fd;
}

TEST(descriptors_that_cannot_be_are_forgotten)
{
    /* Names of no publisher, twice; the rest are no names that a daemon gives. */
    static const char *const names[] = {"dlx-region-1-0-0",
                                        "dlx-region-1-0-0",
                                        "dlx-region-1-1-1-1",
                                        "dlx-region-1-1-0",
                                        "dlx-region-1-0-1",
                                        "dlx-region-1-1-x",
                                        "dlx-region-1-1",
                                        "dlx-region-1-1-",
                                        "dlx-region-1-1-18446744073709551616",
                                        "dlx-region-1-4294967296-1",
                                        "dlx-region-",
                                        "dlx-region-/-1-1",
                                        "dlx-pid-99999999999999999999999",
                                        "dlx-pid-1-1",
                                        "dlx-"};
    dlx_test_store_leave_messages("test/a", &dlx_test_retain_1, 1);
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(names); i++)
        dlx_test_manager_keep(&dlx_test_store_manager, names[i], memfd("of nobody"));
    dlx_test_manager_keep(&dlx_test_store_manager, "dlx-ledger-1",
                          memfd("of another version, it seems"));
    dlx_test_manager_keep(&dlx_test_store_manager, "somebody-elses", memfd("not ours"));
    dlx_test_store_run_again();
    dlx_test_store_check_there("test/a", 1, 1);
    dlx_test_manager_wait_n_kept(&dlx_test_store_manager, "", 4);
    ck_assert_uint_eq(dlx_test_manager_n_kept(&dlx_test_store_manager, "somebody-elses"), 1);
    dlx_test_store_drop("test/a");
    dlx_test_manager_wait_n_kept(&dlx_test_store_manager, "", 2);
    check_charges();
}

static void set_ledger_version(uint32_t version)
{
    pthread_mutex_lock(&dlx_test_store_manager.lock);
    for (size_t i = 0; i < dlx_test_store_manager.n; i++)
        if (strncmp(dlx_test_store_manager.kept[i].name, "dlx-ledger-", 11) == 0)
            ck_assert_int_eq(
                pwrite(dlx_test_store_manager.kept[i].fd, &version, sizeof version, 16),
                (ssize_t)sizeof version);
    pthread_mutex_unlock(&dlx_test_store_manager.lock);
}

/* After an upgrade over several releases, or back to an older one: what it cannot read is given up,
 * and it says so. */
TEST(a_ledger_of_another_version_is_given_up_in_words)
{
    const char *said = dlx_test_stream_daemon.said;
    for (uint32_t i = 0; i < 2; i++) {
        dlx_test_store_leave_messages("test/a", &dlx_test_retain_1, 3);
        dlx_test_daemon_kill(&dlx_test_stream_daemon);
        set_ledger_version(i == 0 ? DLX_PROTO_MAJOR - 1 : DLX_PROTO_MAJOR + 1);
        dlx_test_store_run_again();
        contains(said, i == 0 ? "ledger of version 1 (" : "ledger of version 3 (");
        contains(said, "reads version 2 (");
        contains(said, "2 regions that former daemons retained are given up");
        dlx_test_manager_wait_n_kept(&dlx_test_store_manager, "", 1); /* a ledger of its own */
        ck_assert_int_eq(dlx_test_store_n_publishers(), 0);
    }
    dlx_test_store_leave_messages("test/a", &dlx_test_retain_1, 5);
    dlx_test_store_restart();
    dlx_test_store_check_there("test/a", 5, 5);
}

/* The regions of a publisher are not what the ledger says. */
TEST(damaged_regions_are_dropped_and_the_rest_is_there)
{
    dlx_test_store_leave_messages("test/a", &dlx_test_retain_1, 1);
    dlx_test_store_leave_messages("test/b", &dlx_test_retain_1, 1);
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    pthread_mutex_lock(&dlx_test_store_manager.lock);
    for (size_t i = 0; i < dlx_test_store_manager.n; i++) {
        if (strstr(dlx_test_store_manager.kept[i].name, "-0-0")) { /* the control block of test/a */
            dlx__close(dlx_test_store_manager.kept[i].fd);
            dlx_test_store_manager.kept[i].fd = memfd("short");
            break;
        }
    }
    pthread_mutex_unlock(&dlx_test_store_manager.lock);
    dlx_test_store_run_again();
    ck_assert_int_eq(dlx_test_store_n_publishers(), 1);
    dlx_test_store_check_there("test/b", 1, 1);
    dlx_test_manager_wait_n_kept(&dlx_test_store_manager, "dlx-region-", 2);
    check_charges();
}

int main(void)
{
    return dlx_test_run_case(dlx_test_store_case("store"));
}
