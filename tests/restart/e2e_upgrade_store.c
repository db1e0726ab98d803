/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon whose place another program takes, and for which the service manager (a stand-in:
 * tests/harness/manager.h) keeps descriptors: what it keeps, and what the new daemon believes that
 * it keeps, stay the same. */

#include "tests/harness/fork.h"
#include "tests/harness/store.h"
#include "tests/harness/upgrade.h"
#include <sys/un.h>

static size_t n_kept(void)
{
    return dlx_test_manager_n_kept(&dlx_test_store_manager, "");
}

/* Nothing has two of a name. */
static void check_names(void)
{
    struct dlx_test_manager *manager = &dlx_test_store_manager;
    char twice[128] = "";
    pthread_mutex_lock(&manager->lock);
    for (size_t i = 0; i < manager->n; i++)
        for (size_t k = 0; k < i; k++)
            if (strcmp(manager->kept[i].name, manager->kept[k].name) == 0)
                (void)snprintf(twice, sizeof twice, "%s", manager->kept[i].name);
    pthread_mutex_unlock(&manager->lock);
    ck_assert_msg(!twice[0], "%s is kept twice", twice);
}

TEST(entries_that_the_manager_keeps_stay_as_they_are)
{
    auto_client *c = dlx_test_stream_connect();
    struct dlx_publisher *p = dlx_test_store_publisher(c, "test/a", &dlx_test_retain_2);
    dlx_test_stream_publish_all(p, 100, 1, 5);
    dlx_test_store_leave_messages("test/b", &dlx_test_retain_1, 3);
    /* A ledger; a pidfd, a control block and an arena; a control block and an arena. */
    dlx_test_manager_wait_n_kept(&dlx_test_store_manager, "", 6);
    for (int i = 0; i < 5; i++) {
        dlx_test_upgrade();
        dlx_test_store_check_there("test/a", 4, 5);
        dlx_test_store_check_there("test/b", 3, 3);
        ck_assert_uint_eq(n_kept(), 6);
        check_names();
    }
    /* The new daemon knows what is kept: it has it forgotten, and what comes is kept. */
    dlx_test_store_drop("test/b");
    dlx_test_manager_wait_n_kept(&dlx_test_store_manager, "", 4);
    dlx_test_store_leave_messages("test/b", &dlx_test_retain_1, 4);
    dlx_test_manager_wait_n_kept(&dlx_test_store_manager, "", 6);
    dlx_test_store_restart(); /* by a crash */
    dlx_test_store_check_there("test/a", 4, 5);
    dlx_test_store_check_there("test/b", 4, 4);
    dlx_test_upgrade();
    dlx_publisher_unref(p); /* announces itself first */
    dlx_test_store_check_there("test/a", 4, 5);
}

/* The publisher is handed over beside the kept ones, and there is no room for it later, either. */
TEST(a_publisher_that_did_not_fit_survives_an_upgrade_and_no_crash)
{
    dlx_test_store_limit(4);
    dlx_test_store_leave_messages("test/a", &dlx_test_retain_1, 3);
    dlx_test_store_leave_messages("test/b", &dlx_test_retain_1, 4);
    dlx_test_manager_wait_n_kept(&dlx_test_store_manager, "", 3);
    for (int i = 0; i < 3; i++) {
        dlx_test_upgrade_signal(SIGUSR2);
        dlx_test_upgrade_await("what 1 of them retain will not outlive this daemon: ");
        dlx_test_upgrade_await("listening on ");
        dlx_test_store_check_there("test/a", 3, 3);
        dlx_test_store_check_there("test/b", 4, 4);
        dlx_test_manager_wait_n_kept(&dlx_test_store_manager, "", 3);
        check_names();
    }
    /* There is room now, and it is used. */
    dlx_test_store_drop("test/a");
    dlx_test_manager_wait_n_kept(&dlx_test_store_manager, "", 1);
    dlx_test_upgrade();
    dlx_test_manager_wait_n_kept(&dlx_test_store_manager, "", 3);
    dlx_test_store_leave_messages("test/a", &dlx_test_retain_1, 3);
    dlx_test_store_restart();
    ck_assert_int_eq(dlx_test_store_n_publishers(), 1);
    dlx_test_store_check_there("test/b", 4, 4);
}

/* The manager reads nothing, and its socket takes nothing more. */
static void stall_manager(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    atomic_store(&dlx_test_store_manager.stalled, true);
    memcpy(address.sun_path, dlx_test_store_manager.path, strlen(dlx_test_store_manager.path));
    for (bool took_some = true; took_some;) {
        int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        ck_assert_int_ge(fd, 0);
        took_some = false;
        while (sendto(fd, "X=1", 3, 0, (const struct sockaddr *)&address, sizeof address) == 3)
            took_some = true;
        close(fd); /* a socket has a limit of its own */
    }
}

/* How the names of regions begin, all of which are of one publisher. */
static void find_regions(char ret[128])
{
    struct dlx_test_manager *manager = &dlx_test_store_manager;
    pthread_mutex_lock(&manager->lock);
    for (size_t i = 0; i < manager->n; i++)
        if (sscanf(manager->kept[i].name, "dlx-region-%90[0-9]", ret) == 1)
            (void)snprintf(ret, 128, "%.*s", (int)(strlen("dlx-region-") + strlen(ret)),
                           manager->kept[i].name);
    pthread_mutex_unlock(&manager->lock);
}

/* The new daemon tells the manager what the old one could not. */
TEST(a_manager_that_does_not_read_is_told_later)
{
    enum { MANY = 30 };
    char topic[32], regions[128] = "";
    struct dlx_publisher *publishers[MANY];
    dlx_test_store_leave_messages("test/a", &dlx_test_retain_1, 3);
    dlx_test_manager_wait_n_kept(&dlx_test_store_manager, "", 3);
    find_regions(regions);
    ck_assert_uint_eq(dlx_test_manager_n_kept(&dlx_test_store_manager, regions), 2);
    stall_manager();
    auto_client *c = dlx_test_stream_connect();
    for (int i = 0; i < MANY; i++) {
        (void)snprintf(topic, sizeof topic, "test/%d", i);
        publishers[i] = dlx_test_store_publisher(c, topic, &dlx_test_retain_1);
        dlx_test_stream_publish(publishers[i], 10, i);
    }
    dlx_test_store_drop("test/a");
    dlx_test_upgrade();
    for (int i = 0; i < MANY; i++) {
        (void)snprintf(topic, sizeof topic, "test/%d", i);
        auto_message *m = NULL;
        ok(dlx_get(c, topic, PATIENCE, &m));
        dlx_test_stream_check(m, 10, i);
    }
    atomic_store(&dlx_test_store_manager.stalled, false);
    dlx_test_manager_wait_n_kept(&dlx_test_store_manager, regions, 0); /* it comes last */
    dlx_test_manager_wait_n_kept(&dlx_test_store_manager, "", 1 + 3 * MANY);
    check_names();
    dlx_test_store_restart();
    ck_assert_int_eq(dlx_test_store_n_publishers(), MANY);
    dlx_test_stream_unref_publishers(publishers, MANY);
}

/* The entries that were made for it alone leave the ledger again. */
TEST(an_upgrade_that_fails_leaves_the_ledger_as_it_was)
{
    char text[700];
    dlx_test_store_limit(4);
    dlx_test_store_leave_messages("test/a", &dlx_test_retain_1, 3);
    dlx_test_store_leave_messages("test/b", &dlx_test_retain_1, 4); /* does not fit */
    (void)snprintf(text, sizeof text, "#!/bin/sh\nrm %s\n", dlx_test_upgrade_program);
    dlx_test_upgrade_write(dlx_test_upgrade_program, text);
    dlx_test_upgrade_signal(SIGUSR2);
    dlx_test_upgrade_await("cannot take its place: execve: No such file or directory");
    dlx_test_store_check_there("test/b", 4, 4);
    dlx_test_upgrade_put(0, 0755);
    dlx_test_store_restart();
    ck_assert_msg(!strstr(dlx_test_stream_daemon.said, "is lost"), "%s",
                  dlx_test_stream_daemon.said);
    ck_assert_int_eq(dlx_test_store_n_publishers(), 1);
    dlx_test_store_check_there("test/a", 3, 3);
}

enum { N_QUOTAS = 16 };

struct quotas {
    uint64_t used[N_QUOTAS];
    int64_t n;
};

static int add_quota(const struct dlx_quota_info *info, void *userdata)
{
    struct quotas *quotas = userdata;
    bool passes = strcmp(info->name, "requests-per-second") == 0 ||
                  strcmp(info->name, "descriptors-in-flight") == 0;
    ck_assert_int_lt(quotas->n, N_QUOTAS);
    quotas->used[quotas->n++] = passes ? 0 : info->used;
    return 0;
}

static struct quotas quotas_now(void)
{
    struct quotas quotas = {.n = 0};
    auto_client *c = dlx_test_stream_connect();
    ok(dlx_list_quotas(c, add_quota, &quotas));
    return quotas;
}

static bool quotas_are(const struct quotas *expected)
{
    struct quotas now = quotas_now();
    return memcmp(&now, expected, sizeof now) == 0;
}

/* Independent of the fate of their publishers. */
TEST(retained_messages_are_charged_alike_by_the_next_daemon)
{
    const struct dlx_publisher_args for_an_hour = {
        .size = sizeof for_an_hour, .retain = 2, .retain_for_ns = UINT64_C(3600000000000)};
    for (int i = 0; i < 8; i++) {
        char topic[16];
        (void)snprintf(topic, sizeof topic, "test/many/%d", i);
        dlx_test_store_leave_messages(topic, &dlx_test_retain_1, 1);
    }
    dlx_test_store_leave_messages("test/b", &for_an_hour, 5);
    pid_t idle = dlx_test_store_publish_elsewhere(&dlx_test_retain_2, 5);
    dlx_test_store_restart();
    struct quotas before = quotas_now();
    ck_assert_int_gt(before.n, 10);
    dlx_test_store_restart(); /* the idle publisher is known by its pidfd */
    eventually(quotas_are(&before));
    dlx_test_upgrade();
    eventually(quotas_are(&before));
    dlx_test_fork_kill(idle);
    dlx_test_store_check_there("test/a", 4, 5);
    eventually(!quotas_are(&before)); /* its pidfd is closed */
    before = quotas_now();
    dlx_test_store_restart();
    eventually(quotas_are(&before));
    dlx_test_upgrade();
    eventually(quotas_are(&before));
    for (int i = 0; i < 8; i++) {
        char topic[16];
        (void)snprintf(topic, sizeof topic, "test/many/%d", i);
        dlx_test_store_drop(topic);
    }
}

int main(void)
{
    TCase *tcase = dlx_test_upgrade_case("upgrade_store");
    dlx_test_store_add_manager(tcase);
    return dlx_test_run_case(tcase);
}
