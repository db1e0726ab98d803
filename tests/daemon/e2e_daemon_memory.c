/* SPDX-License-Identifier: Apache-2.0 */

/* The daemon's own memory: what many objects took goes back to the system when they have gone,
 * though others stay. */

#include "tests/harness/daemon.h"
#include "tests/harness/run.h"

#define N_TOPICS     5000
#define N_PUBLISHERS 1000
#define N_ROUNDS     3
/* Tables that grew with the largest descriptor, pages that an object shares with what is free. */
#define SLACK_KIB 384

static struct dlx_test_daemon place;

/* What is its own, counted page by page: other counters of the kernel are estimates. */
static size_t memory_kib(void)
{
    char path[64], text[4096] = "";
    size_t kib = 0, n = 0;
    ssize_t got;
    (void)snprintf(path, sizeof path, "/proc/%d/smaps_rollup", (int)place.pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    while (n < sizeof text - 1 && (got = read(fd, text + n, sizeof text - 1 - n)) > 0)
        n += (size_t)got;
    close(fd);
    const char *line = strstr(text, "\nAnonymous:");
    ck_assert_msg(line && sscanf(line, "\nAnonymous: %zu", &kib) == 1, "%s", text);
    return kib;
}

/* Topics with a subscription each, some with a publisher; `stays` gets one in the midst of them.
 * Returns what the daemon had when all were there. */
static size_t come_and_go(struct dlx_test_subscription *stays, int control_that_stays)
{
    static struct dlx_test_subscription subscriptions[N_TOPICS];
    static struct dlx_test_publisher publishers[N_PUBLISHERS];
    char name[64];
    int control = dlx_test_hello(&place, 2 * N_TOPICS);
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
    close(control);
    return most;
}

TEST(memory_of_a_burst_goes_back)
{
    struct dlx_test_subscription stay[N_ROUNDS + 1];
#ifdef DLX_SANITIZE
    puts("SKIP: sanitizers have an allocator of their own");
    return;
#endif
    if (dlx_test_valgrind()) {
        puts("SKIP: valgrind has an allocator of its own");
        return;
    }
    dlx_test_daemon_start(&place, NULL);
    int control = dlx_test_hello(&place, 10);
    dlx_test_subscribe(&stay[N_ROUNDS], control, "t", false);
    size_t before = memory_kib();
    for (int i = 0; i < N_ROUNDS; i++) {
        uint64_t deadline = dlx__deadline(PATIENCE);
        size_t most = come_and_go(&stay[i], control);
        ck_assert_msg(most > before + 8 * SLACK_KIB, "%zu KiB, %zu before: too few to show much",
                      most, before);
        for (size_t now; (now = memory_kib()) > before + SLACK_KIB; (void)poll(NULL, 0, 10))
            ck_assert_msg(dlx__now_ns() < deadline, "round %d: %zu KiB, %zu before", i, now,
                          before);
    }
    for (int i = 0; i <= N_ROUNDS; i++)
        dlx_test_subscription_deinit(&stay[i]);
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
