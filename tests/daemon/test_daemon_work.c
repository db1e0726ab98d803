/* SPDX-License-Identifier: Apache-2.0 */
/* How users share the daemon's time: counted in steps, so that no clock decides. */
#include "tests/daemon/harness_scene.h"
#include "daemon/objects/connection.h"

static void send_info_requests(int to, uint32_t first, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        dlx_scene_send(to, WIRE(daemon_info), first + i);
}

/* Serials from `first` on, as many as there are. */
static uint32_t read_replies(int from, uint32_t first)
{
    uint32_t n = 0;
    for (const Dlx__Wire__Packet *packet; (packet = dlx_scene_receive(from));)
        ck_assert_uint_eq(packet->serial, first + n++);
    return n;
}

/* A client of this user; returns its own end. */
static int connect_by(uint32_t socket)
{
    return dlx_scene_fd(dlx_scene_client(socket, 10));
}

/* See what is readable, and do nothing yet. */
static void look(void)
{
    (void)uv_run(&dlx_scene.loop, UV_RUN_NOWAIT);
}

/* Runs a step of a task. */
static void run_step(void)
{
    dlxd_work_run(&dlx_scene.broker.users, 1);
}

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

/* A step that takes longer than a slice. */
static bool count_slowly(struct dlxd_task *task)
{
    uint64_t until = dlx__now_ns() + DLXD_SLICE_NS + 1;
    while (dlx__now_ns() < until)
        ;
    return count_step(task);
}

TEST(users_take_turns_and_so_do_the_tasks_of_one)
{
    enum { GREEDY = 3, STEPS = 5 };
    struct count greedy[GREEDY] = {0}, honest = {.most = STEPS};
    struct dlxd_user *users[] = {dlx_scene_user(1, ""), dlx_scene_user(2, "")};
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
    dlxd_broker_settle(&dlx_scene.broker);
    ck_assert_uint_lt(greedy[0].n, STEPS);
    ck_assert_uint_eq(greedy[1].n + greedy[2].n + honest.n, 3 * STEPS);
    ck_assert(!dlxd_work_is_left(&dlx_scene.broker.users));
}

/* Then the loop looks at its sockets: a client that comes meanwhile waits for a slice, not for as
 * long as others have work. */
TEST(a_turn_has_one_slice_of_each_user)
{
    enum { TURNS = 3 };
    struct count greedy[2] = {{.most = 100}, {.most = 100}};
    for (uint32_t i = 0; i < 2; i++) {
        dlxd_task_init(&greedy[i].task, count_slowly);
        dlxd_task_start(&greedy[i].task, dlx_scene_user(i + 1, ""));
    }
    for (uint32_t turn = 1; turn <= TURNS; turn++) {
        dlxd_work_run_turn(&dlx_scene.broker.users);
        /* On a busy machine, a step may take as long as a turn of many users. */
        ck_assert_uint_le(greedy[0].n, turn);
        ck_assert_uint_le(greedy[1].n, turn);
        ck_assert_uint_ge(greedy[0].n + greedy[1].n, turn);
    }
    for (uint32_t i = 0; i < 2; i++)
        dlxd_task_stop(&greedy[i].task);
}

/* Goes on while its user has time. */
static bool count_while_there_is_time(struct dlxd_task *task)
{
    struct count *count = dlxd_container_of(task, struct count, task);
    do
        count->n++;
    while (!dlxd_slice_is_over(&dlx_scene.broker.users));
    return true;
}

TEST(step_goes_on_until_its_slice_is_over)
{
    struct count count = {0};
    uint32_t n = 0;
    dlxd_task_init(&count.task, count_while_there_is_time);
    dlxd_task_start(&count.task, dlx_scene_user(1, ""));
    run_step();
    ck_assert_uint_eq(count.n, 1); /* a unit is done in any case */
    /* On a busy machine, another program may have the processor for a slice. */
    while (count.n == ++n) {
        dlxd_work_run_turn(&dlx_scene.broker.users);
        ck_assert_uint_lt(n, 1000);
    }
    ck_assert(dlxd_slice_is_over(&dlx_scene.broker.users)); /* no step runs */
    dlxd_task_stop(&count.task);
}

/* A user goes while it is in the list of those who work. */
TEST(a_task_that_is_stopped_leaves_nothing)
{
    struct count count = {.most = 5};
    struct dlxd_user *user;
    ok(dlxd_users_get(&dlx_scene.broker.users, &(const struct dlxd_principal){.uid = 1}, &user));
    dlxd_task_init(&count.task, count_step);
    dlxd_task_start(&count.task, user);
    dlxd_task_stop(&count.task);
    dlxd_user_unref(user);
    dlxd_broker_settle(&dlx_scene.broker);
    ck_assert_uint_eq(count.n, 0);
}

TEST(many_connections_of_one_user_delay_another_by_a_step)
{
    enum { GREEDY = 50, EACH = 10 };
    int greedy[GREEDY], honest;
    for (int i = 0; i < GREEDY; i++) {
        greedy[i] = connect_by(1);
        send_info_requests(greedy[i], 1, EACH);
    }
    honest = connect_by(2);
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
    dlxd_broker_settle(&dlx_scene.broker);
    for (int i = 0; i < GREEDY; i++)
        ck_assert_uint_eq(read_replies(greedy[i], 1), EACH); /* all of them, in order */
}

/* The loop looks at the socket again when it has been read to the end. */
TEST(a_socket_that_waits_for_its_turn_is_not_looked_at_again)
{
    struct dlxd_client *client = dlx_scene_client(0, 10);
    int fd = dlx_scene_fd(client);
    for (uint32_t round = 0; round < 3; round++) {
        send_info_requests(fd, 1, 3);
        look();
        ck_assert_int_eq(client->input, DLXD_INPUT_READY);
        look();
        ck_assert_int_eq(client->input, DLXD_INPUT_PAUSED);
        dlxd_broker_settle(&dlx_scene.broker);
        ck_assert_int_eq(client->input, DLXD_INPUT_NONE);
        ck_assert_uint_eq(read_replies(fd, 1), 3);
    }
}

/* Do what may be done now, and return how long the next request waits. */
static uint64_t run_and_wake(void)
{
    look();
    dlxd_work_wake(&dlx_scene.broker.users, dlx__now_ns());
    dlxd_broker_settle(&dlx_scene.broker);
    uint64_t now = dlx__now_ns(), next = dlxd_work_next_ns(&dlx_scene.broker.users, now);
    return next == UINT64_MAX ? next : next - now;
}

static void wait_for(uint64_t ns)
{
    (void)poll(NULL, 0, (int)(ns / 1000000) + 1);
}

/* All of them are answered, in their order; those above the pace later. Connections buy nothing. */
TEST(requests_above_the_pace_wait_and_others_do_not)
{
    enum { PACE = 20, CONNECTIONS = 3, EACH = 10 };
    struct dlxd_quotas quotas = {.n = 0};
    uint32_t n = 0, n_each[CONNECTIONS] = {0};
    int fds[CONNECTIONS], honest;
    struct dlxd_quota *slow = dlxd_quotas_add(&quotas, "slow");
    memcpy(slow->max, dlx_scene.broker.users.max, sizeof slow->max);
    slow->max[DLXD_REQUESTS] = PACE;
    ok(dlxd_quota_add_socket(slow, "socket-1"));
    dlxd_users_set_quotas(&dlx_scene.broker.users, &quotas, UINT64_C(1) << 30);
    uint64_t begin = dlx__now_ns();
    for (int i = 0; i < CONNECTIONS; i++) {
        fds[i] = connect_by(1);
        send_info_requests(fds[i], 1, EACH);
    }
    honest = connect_by(2);
    send_info_requests(honest, 1, 2 * PACE);
    while (n < CONNECTIONS * EACH) {
        uint64_t left = run_and_wake();
        for (int i = 0; i < CONNECTIONS; i++) {
            uint32_t some = read_replies(fds[i], n_each[i] + 1);
            n_each[i] += some;
            n += some;
        }
        ck_assert_msg(n <= PACE || dlx__now_ns() - begin >= 1000000000, "%u replies", n);
        if (n == CONNECTIONS * EACH)
            break;
        ck_assert_uint_lt(left, UINT64_C(1100000000));
        wait_for(left);
    }
    ck_assert_uint_eq(read_replies(honest, 1), 2 * PACE);
    for (uint64_t left; (left = run_and_wake()) != UINT64_MAX;) /* nothing is left to wait for */
        wait_for(left);
    dlx_test_broker_run(&dlx_scene);
    dlxd_users_set_quotas(&dlx_scene.broker.users, &(struct dlxd_quotas){.n = 0},
                          UINT64_C(1) << 30);
    dlxd_quotas_deinit(&quotas);
}

/* The client's end does not wait: it gives back memory for others. A raised limit holds at once. */
TEST(a_client_that_waits_for_its_pace_can_be_ended_and_let_go)
{
    int fds[2];
    struct dlxd_client *first = dlx_scene_client(1, 10);
    fds[0] = dlx_scene_fd(first);
    fds[1] = connect_by(1);
    dlx_scene.broker.users.max[DLXD_REQUESTS] = 1;
    for (int i = 0; i < 2; i++)
        send_info_requests(fds[i], 1, 5);
    uint64_t left = run_and_wake();
    ck_assert(left > 0 && left != UINT64_MAX);
    ck_assert(first->task.is_deferred);
    dlxd_client_doom(first);
    ck_assert(!first->task.is_deferred);
    (void)run_and_wake();
    ck_assert_uint_eq(dlx_scene.broker.n_clients, 1);
    uint32_t n = read_replies(fds[1], 1);
    ck_assert_uint_lt(n, 5);
    dlx_scene.broker.users.max[DLXD_REQUESTS] = DLXD_UNLIMITED;
    ck_assert_uint_eq(run_and_wake(), UINT64_MAX);
    ck_assert_uint_eq(read_replies(fds[1], n + 1), 5 - n);
}

TEST(the_longest_silent_client_makes_way_for_its_own_user_only)
{
    enum { N = DLXD_GREETING_MAX + 20 };
    struct dlxd_client *first = NULL, *honest = dlx_scene_client(2, 0);
    for (int i = 0; i < N; i++) {
        struct dlxd_client *client = dlx_scene_client(1, 0);
        first = first ? first : client;
        ck_assert(!dlxd_client_is_doomed(client)); /* the newest never does */
        ck_assert_uint_le(client->user->n_greeting, DLXD_GREETING_MAX);
        ck_assert(i < (int)DLXD_GREETING_MAX || dlxd_client_is_doomed(first));
    }
    ck_assert_int_eq(honest->state, DLXD_CLIENT_GREETING);
    dlxd_broker_settle(&dlx_scene.broker);
    ck_assert_uint_eq(dlx_scene.broker.n_greeting, DLXD_GREETING_MAX + 1);
}

int main(void)
{
    return dlx_test_run_case(dlx_scene_case("work", NULL));
}
