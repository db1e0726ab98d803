/* SPDX-License-Identifier: Apache-2.0 */
/* How users share the daemon's time: counted in steps, so that no clock decides. */
#include "common/error.h"
#include "daemon/protocol/dispatch.h"
#include "tests/harness_broker.h"
#include "tests/harness_run.h"
#include <check.h>
#include <sys/socket.h>

#define BODY(name) DLX__WIRE__PACKET__BODY_##name

static struct dlx_test_broker test;
static struct dlx_packet rx;
static struct dlx_proto_arena arena;

static void set_up(void)
{
    dlx_test_broker_init(&test, UINT64_C(1) << 30);
}

static void tear_down(void)
{
    dlx_test_broker_deinit(&test);
    dlx__packet_deinit(&rx);
}

static void send_info_requests(int to, uint32_t first, uint32_t n)
{
    Dlx__Wire__DaemonInfo body = DLX__WIRE__DAEMON_INFO__INIT;
    Dlx__Wire__Packet packet = DLX__WIRE__PACKET__INIT;
    packet.body_case = BODY(DAEMON_INFO);
    packet.daemon_info = &body;
    for (uint32_t i = 0; i < n; i++) {
        packet.serial = first + i;
        ck_assert_int_eq(dlx__proto_send(to, &packet, NULL, 0), 0);
    }
}

/* Serials from `first` on, as many as there are. */
static uint32_t read_replies(int from, uint32_t first)
{
    const Dlx__Wire__Packet *packet;
    uint32_t n = 0;
    while (dlx__packet_recv_fds(from, &rx) == 0) {
        ck_assert_int_eq(dlx__proto_unpack(&arena, rx.data, rx.size, &packet), 0);
        ck_assert_uint_eq(packet->serial, first + n++);
    }
    return n;
}

/* See what is readable, and do nothing yet. */
static void look(void)
{
    (void)uv_run(&test.loop, UV_RUN_NOWAIT);
}

/* One step of one task. */
static void run_step(void)
{
    dlxd_work_run(&test.broker.users, 1);
}

/* ---- tasks --------------------------------------------------------------------------------- */

struct count {
    struct dlxd_task task;
    uint32_t n; /* steps that were done */
    uint32_t most;
};

static bool count_step(struct dlxd_task *task)
{
    struct count *count = dlxd_container_of(task, struct count, task);
    return ++count->n < count->most;
}

START_TEST(users_take_turns_and_so_do_the_tasks_of_one)
{
    enum { GREEDY = 3, STEPS = 5 };
    const struct dlxd_principal who[] = {{.uid = 1}, {.uid = 2}};
    struct count greedy[GREEDY] = {0}, honest = {.most = STEPS};
    struct dlxd_user *users[2];
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(dlxd_users_get(&test.broker.users, &who[i], &users[i]), 0);
    for (int i = 0; i < GREEDY; i++) {
        greedy[i].most = STEPS;
        dlxd_task_init(&greedy[i].task, count_step);
        dlxd_task_start(&greedy[i].task, users[0]);
        dlxd_task_start(&greedy[i].task, users[0]); /* it is there: nothing happens */
    }
    dlxd_task_init(&honest.task, count_step);
    dlxd_task_start(&honest.task, users[1]);
    for (uint32_t i = 0; i < 2 * STEPS; i++) {
        uint32_t n = 0;
        run_step();
        for (int k = 0; k < GREEDY; k++)
            n += greedy[k].n;
        ck_assert_uint_eq(n, i / 2 + 1);
        ck_assert_uint_eq(honest.n, (i + 1) / 2);
    }
    for (int k = 0; k < GREEDY; k++)
        ck_assert_uint_le(greedy[k].n, STEPS / GREEDY + 1);
    dlxd_task_stop(&greedy[0].task);
    dlxd_broker_settle(&test.broker);
    ck_assert_uint_lt(greedy[0].n, STEPS);
    ck_assert_uint_eq(greedy[1].n + greedy[2].n + honest.n, 3 * STEPS);
    ck_assert(!dlxd_work_is_left(&test.broker.users));
    for (int i = 0; i < 2; i++)
        dlxd_user_unref(users[i]);
}
END_TEST

/* A user goes while it is in the list of those who work. */
START_TEST(a_task_that_is_stopped_leaves_nothing)
{
    struct count count = {.most = 5};
    struct dlxd_user *user;
    ck_assert_int_eq(
        dlxd_users_get(&test.broker.users, &(const struct dlxd_principal){.uid = 1}, &user), 0);
    dlxd_task_init(&count.task, count_step);
    dlxd_task_start(&count.task, user);
    dlxd_task_stop(&count.task);
    dlxd_user_unref(user);
    dlxd_broker_settle(&test.broker);
    ck_assert_uint_eq(count.n, 0);
}
END_TEST

/* ---- requests ------------------------------------------------------------------------------- */

START_TEST(many_connections_of_one_user_delay_another_by_a_step)
{
    enum { GREEDY = 50, EACH = 10 };
    int greedy[GREEDY], honest;
    for (int i = 0; i < GREEDY; i++) {
        (void)dlx_test_broker_client_by(&test, 1, 10, &greedy[i]);
        send_info_requests(greedy[i], 1, EACH);
    }
    (void)dlx_test_broker_client_by(&test, 2, 10, &honest);
    look();
    for (uint32_t i = 1; i <= 20; i++) {
        send_info_requests(honest, i, 1);
        look();
        run_step();
        run_step();
        ck_assert_uint_eq(read_replies(honest, i), 1);
        run_step(); /* it finds nothing more */
        run_step();
    }
    dlxd_broker_settle(&test.broker);
    for (int i = 0; i < GREEDY; i++) {
        ck_assert_uint_eq(read_replies(greedy[i], 1), EACH); /* all of them, in order */
        close(greedy[i]);
    }
    close(honest);
}
END_TEST

/* It is looked at again when it has been read to the end. */
START_TEST(a_socket_that_waits_for_its_turn_is_not_looked_at_again)
{
    int fd;
    struct dlxd_client *client = dlx_test_broker_client(&test, 10, &fd);
    for (uint32_t round = 0; round < 3; round++) {
        send_info_requests(fd, 1, 3);
        look();
        ck_assert_int_eq(client->input, DLXD_INPUT_READY);
        look();
        ck_assert_int_eq(client->input, DLXD_INPUT_PAUSED);
        dlxd_broker_settle(&test.broker);
        ck_assert_int_eq(client->input, DLXD_INPUT_NONE);
        ck_assert_uint_eq(read_replies(fd, 1), 3);
    }
    close(fd);
}
END_TEST

/* ---- connections that say nothing
 * ------------------------------------------------------------- */

START_TEST(who_is_silent_for_longest_makes_way_for_its_own_user_only)
{
    enum { N = DLXD_GREETING_MAX + 20 };
    static int fds[N];
    int other;
    struct dlxd_client *first = NULL, *honest = dlx_test_broker_client_by(&test, 2, 0, &other);
    for (int i = 0; i < N; i++) {
        struct dlxd_client *client = dlx_test_broker_client_by(&test, 1, 0, &fds[i]);
        first = first ? first : client;
        ck_assert(!dlxd_client_is_doomed(client)); /* the newest never does */
        ck_assert_uint_le(client->user->n_greeting, DLXD_GREETING_MAX);
        ck_assert(i < (int)DLXD_GREETING_MAX || dlxd_client_is_doomed(first));
    }
    ck_assert_int_eq(honest->state, DLXD_CLIENT_GREETING);
    dlxd_broker_settle(&test.broker);
    ck_assert_uint_eq(test.broker.n_greeting, DLXD_GREETING_MAX + 1);
    for (int i = 0; i < N; i++)
        close(fds[i]);
    close(other);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("work");
    TCase *tcase = tcase_create("work");
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, users_take_turns_and_so_do_the_tasks_of_one);
    tcase_add_test(tcase, a_task_that_is_stopped_leaves_nothing);
    tcase_add_test(tcase, many_connections_of_one_user_delay_another_by_a_step);
    tcase_add_test(tcase, a_socket_that_waits_for_its_turn_is_not_looked_at_again);
    tcase_add_test(tcase, who_is_silent_for_longest_makes_way_for_its_own_user_only);
    suite_add_tcase(suite, tcase);
    return dlx_test_run(suite);
}
