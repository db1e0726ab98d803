/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's own memory: what many objects took goes back to the system when they have gone,
 * though others stay. */

#include "tests/harness/daemon.h"

#define N_TOPICS     5000
#define N_PUBLISHERS 1000
#define N_ROUNDS     3
/* Tables that grew with the largest descriptor, pages that an object shares with what is free. */
#define SLACK_KIB 384

static struct dlx_test_daemon place;

/* The daemon's own memory, counted page by page: other counters of the kernel are estimates. */
static size_t memory_kib(void)
{
    char path[64], line[256];
    size_t kib = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/smaps_rollup", (int)place.pid);
    FILE *file = fopen(path, "re");
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file) && sscanf(line, "Anonymous: %zu", &kib) != 1)
        ;
    (void)fclose(file);
    ck_assert_uint_gt(kib, 0);
    return kib;
}

static void await_memory_kib(size_t most)
{
    uint64_t deadline = dlx__deadline(PATIENCE);
    for (size_t now; (now = memory_kib()) > most; (void)poll(NULL, 0, 10))
        ck_assert_msg(dlx__now_ns() < deadline, "%zu KiB, at most %zu", now, most);
}

/* Topics with a subscription each, some with a publisher; `stays` gets one in the midst of them.
 * Returns what the daemon had when all were there. */
static size_t come_and_go(struct dlx_test_subscription *stays, int control_that_stays)
{
    static struct dlx_test_subscription subscriptions[N_TOPICS];
    static struct dlx_test_publisher publishers[N_PUBLISHERS];
    char name[64];
    auto_fd control = dlx_test_hello(&place, 2 * N_TOPICS);
    for (int i = 0; i < N_TOPICS; i++) {
        (void)snprintf(name, sizeof name, "topic/%d", i);
        dlx_test_subscribe(&subscriptions[i], control, name, false);
        if (i < N_PUBLISHERS)
            dlx_test_publisher_new(&publishers[i], control, name, 0);
        if (i == N_TOPICS / 2)
            dlx_test_subscribe(stays, control_that_stays, name, false);
    }
    size_t most = memory_kib();
    for (int i = 0; i < N_TOPICS; i++) {
        dlx_test_subscription_deinit(&subscriptions[i]);
        if (i < N_PUBLISHERS)
            dlx_test_publisher_deinit(&publishers[i]);
    }
    return most;
}

TEST(memory_of_a_burst_goes_back)
{
    struct dlx_test_subscription stay[N_ROUNDS + 1];
    if (dlx_test_skips(dlx_test_instrumented(), "sanitizers and valgrind have allocators"))
        return;
    dlx_test_daemon_start(&place, NULL);
    int control = dlx_test_hello(&place, 10);
    dlx_test_subscribe(&stay[N_ROUNDS], control, "t", false);
    size_t before = memory_kib();
    for (int i = 0; i < N_ROUNDS; i++) {
        size_t most = come_and_go(&stay[i], control);
        ck_assert_msg(most > before + 8 * SLACK_KIB, "%zu KiB, %zu before: too few to show much",
                      most, before);
        await_memory_kib(before + SLACK_KIB);
    }
    for (int i = 0; i <= N_ROUNDS; i++)
        dlx_test_subscription_deinit(&stay[i]);
    close(control);
    dlx_test_recv_done();
    ck_assert_int_eq(dlx_test_daemon_stop(&place), 0);
}

/* Too few objects to be a burst of their own, spread over all that it had. */
TEST(memory_of_last_objects_of_a_burst_goes_back)
{
    enum { ONE_OF = 20 }; /* stays until the memory of the others has gone back */
    static struct dlx_test_subscription subscriptions[N_TOPICS];
    char name[64];
    if (dlx_test_skips(dlx_test_instrumented(), "sanitizers and valgrind have allocators"))
        return;
    dlx_test_daemon_start(&place, NULL);
    int control = dlx_test_hello(&place, 2 * N_TOPICS);
    size_t before = memory_kib();
    for (int i = 0; i < N_TOPICS; i++) {
        (void)snprintf(name, sizeof name, "topic/%d", i);
        dlx_test_subscribe(&subscriptions[i], control, name, false);
    }
    size_t most = memory_kib();
    for (int i = 0; i < N_TOPICS; i++)
        if (i % ONE_OF != 0)
            dlx_test_subscription_deinit(&subscriptions[i]);
    await_memory_kib(before + (most - before) / 2);
    size_t of_last = memory_kib();
    ck_assert_msg(of_last > before + 2 * SLACK_KIB, "%zu KiB, %zu before: too few to show much",
                  of_last, before);
    for (int i = 0; i < N_TOPICS; i += ONE_OF)
        dlx_test_subscription_deinit(&subscriptions[i]);
    await_memory_kib(before + SLACK_KIB);
    close(control);
    dlx_test_recv_done();
    ck_assert_int_eq(dlx_test_daemon_stop(&place), 0);
}

int main(void)
{
    TCase *tcase = tcase_create("memory");
    tcase_set_timeout(tcase, 2 * PATIENCE_S);
    dlx_test_dir_fixture(tcase, &place);
    return dlx_test_run_case(tcase);
}
