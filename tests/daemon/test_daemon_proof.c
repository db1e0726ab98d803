/* SPDX-License-Identifier: Apache-2.0 */

/*
 * While a worker looks at a client's region, or closes one, everybody else is served, and the
 * client's next request waits. Here the worker has something else to do for that user, and does not
 * end before it is told to.
 */

#include "common/error.h"
#include "common/memory.h"
#include "daemon/base/worker.h"
#include "tests/harness/broker.h"
#include "tests/harness/fds.h"
#include "tests/harness/run.h"
#include <check.h>
#include <fcntl.h>
#include <string.h>

#define BODY(name) DLX__WIRE__PACKET__BODY_##name

/* A client with a publisher. */
struct actor {
    struct dlxd_client *client;
    int fd;
    uint64_t publisher;
    int n_fds; /* that it was sent with it */
    int fds[3];
};

static struct dlx_test_broker test;
static struct dlx_packet rx;
static struct dlx_proto_arena unpacked;
static struct actor actors[2]; /* of two users */

/* ---- the worker that has something else to do ------------------------------------------------ */

static int busy[2]; /* a pipe */

static void wait_for_end(void *data)
{
    char byte;
    (void)data;
    (void)!read(busy[0], &byte, 1);
}

static void nothing(void *data)
{
    (void)data;
}

static void keep_busy(const struct actor *a)
{
    ck_assert_int_eq(pipe2(busy, O_CLOEXEC), 0);
    ck_assert_int_eq(
        dlxd_workers_run(test.broker.workers, a->client->user, wait_for_end, nothing, NULL), 0);
}

static void let_go(void)
{
    busy[1] = dlx__close(busy[1]);
    dlx_test_broker_run(&test);
    busy[0] = dlx__close(busy[0]);
}

/* Everything but jobs. */
static void run(void)
{
    for (int i = 0; i < 5; i++) {
        (void)uv_run(&test.loop, UV_RUN_NOWAIT);
        dlxd_broker_settle(&test.broker);
    }
}

/* ---- clients --------------------------------------------------------------------------------- */

static void ask(const struct actor *a, Dlx__Wire__Packet__BodyCase body, void *message,
                uint32_t serial)
{
    Dlx__Wire__Packet packet = DLX__WIRE__PACKET__INIT;
    packet.serial = serial;
    packet.body_case = body;
    packet.ok = message;
    ck_assert_int_eq(dlx__proto_send(a->fd, &packet, NULL, 0), 0);
    run();
}

static bool is_answered(const struct actor *a)
{
    return recv(a->fd, NULL, 0, MSG_PEEK | MSG_DONTWAIT) >= 0;
}

static const Dlx__Wire__Packet *answer(const struct actor *a, Dlx__Wire__Packet__BodyCase body,
                                       uint32_t serial)
{
    const Dlx__Wire__Packet *packet;
    dlx__packet_deinit(&rx);
    ck_assert_int_eq(dlx__packet_recv_fds(a->fd, &rx), 0);
    ck_assert_int_eq(dlx__proto_unpack(&unpacked, rx.data, rx.size, &packet), 0);
    ck_assert_msg(packet->body_case == body, "%s: %s", dlx__proto_name(packet),
                  packet->body_case == BODY(ERROR) ? packet->error->text : "");
    ck_assert_uint_eq(packet->serial, serial);
    return packet;
}

static void make_ready(int take_fd, uint64_t size)
{
    void *map;
    ck_assert_int_eq(dlx__region_populate(&dlx__memory_memfd, take_fd, size, &map), 0);
    dlx__region_unmap(map, size);
}

/* Its number. Not ready yet; allocated if it says so. */
static uint32_t new_arena(const struct actor *a, uint64_t size, bool allocated)
{
    Dlx__Wire__ArenaNew request = DLX__WIRE__ARENA_NEW__INIT;
    request.publisher = a->publisher;
    request.arena_size = size;
    ask(a, BODY(ARENA_NEW), &request, 90);
    uint32_t id = answer(a, BODY(ARENA_NEW_REPLY), 90)->arena_new_reply->arena;
    if (allocated)
        make_ready(dlx__packet_steal_fd(&rx, 0), size);
    dlx__packet_deinit(&rx);
    return id;
}

static void say_ready(const struct actor *a, uint32_t arena, uint32_t serial)
{
    Dlx__Wire__ArenaReady request = DLX__WIRE__ARENA_READY__INIT;
    request.publisher = a->publisher;
    request.arena = arena;
    ask(a, BODY(ARENA_READY), &request, serial);
}

static void new_actor(struct actor *a, uint32_t socket)
{
    Dlx__Wire__PublisherNew request = DLX__WIRE__PUBLISHER_NEW__INIT;
    Dlx__Wire__PublisherReady ready = DLX__WIRE__PUBLISHER_READY__INIT;
    static char topic[] = "t";
    a->client = dlx_test_broker_client_by(&test, socket, 10, &a->fd);
    request.topic = topic;
    request.history = 1;
    request.depth = 16;
    request.n_entries = 256;
    ask(a, BODY(PUBLISHER_NEW), &request, 1);
    const Dlx__Wire__PublisherNewReply *reply =
        answer(a, BODY(PUBLISHER_NEW_REPLY), 1)->publisher_new_reply;
    a->publisher = ready.publisher = reply->publisher;
    make_ready(dlx__packet_steal_fd(&rx, 0), reply->control_size);
    a->fds[0] = dlx__packet_steal_fd(&rx, 2);
    dlx__packet_deinit(&rx);
    ask(a, BODY(PUBLISHER_READY), &ready, 2);
    dlx_test_broker_run(&test);
    (void)answer(a, BODY(OK), 2);
}

static void setup(void)
{
    dlx_test_broker_init(&test, UINT64_C(1) << 36);
    for (uint32_t i = 0; i < 2; i++)
        new_actor(&actors[i], i);
}

static void teardown(void)
{
    dlx_test_broker_deinit(&test);
    dlx__packet_deinit(&rx);
    for (int i = 0; i < 2; i++) {
        dlx__close(actors[i].fd);
        dlx__close(actors[i].fds[0]);
    }
}

/* ---- the tests ------------------------------------------------------------------------------- */

static void is_served(const struct actor *a, uint32_t serial)
{
    Dlx__Wire__DaemonInfo info = DLX__WIRE__DAEMON_INFO__INIT;
    ask(a, BODY(DAEMON_INFO), &info, serial);
    (void)answer(a, BODY(DAEMON_INFO_REPLY), serial);
}

START_TEST(requests_that_follow_wait_for_the_answer)
{
    const struct actor *a = &actors[0];
    Dlx__Wire__DaemonInfo info = DLX__WIRE__DAEMON_INFO__INIT;
    Dlx__Wire__ArenaDrop drop = DLX__WIRE__ARENA_DROP__INIT;
    Dlx__Wire__PublisherClose leave = DLX__WIRE__PUBLISHER_CLOSE__INIT;
    uint32_t arena = new_arena(a, DLX_PAGE, true);
    keep_busy(a);
    drop.publisher = leave.publisher = a->publisher;
    drop.arena = arena;
    say_ready(a, arena, 3);
    ask(a, BODY(DAEMON_INFO), &info, 4);
    ask(a, BODY(ARENA_DROP), &drop, 5);
    ask(a, BODY(ARENA_DROP), &drop, 6);
    ask(a, BODY(PUBLISHER_CLOSE), &leave, 7);
    ck_assert(!is_answered(a));
    is_served(&actors[1], 3);
    let_go();
    dlx_test_broker_run(&test);
    (void)answer(a, BODY(OK), 3);
    (void)answer(a, BODY(DAEMON_INFO_REPLY), 4);
    (void)answer(a, BODY(OK), 5);
    ck_assert_int_eq(answer(a, BODY(ERROR), 6)->error->code, DLX_E_NOT_FOUND);
    (void)answer(a, BODY(OK), 7);
}
END_TEST

START_TEST(others_regions_are_looked_at_meanwhile)
{
    uint32_t arenas[2];
    for (int i = 0; i < 2; i++)
        arenas[i] = new_arena(&actors[i], DLX_PAGE, true);
    keep_busy(&actors[0]);
    for (int i = 0; i < 2; i++)
        say_ready(&actors[i], arenas[i], 3);
    while (!is_answered(&actors[1]))
        (void)uv_run(&test.loop, UV_RUN_ONCE);
    (void)answer(&actors[1], BODY(OK), 3);
    ck_assert(!is_answered(&actors[0]));
    let_go();
    (void)answer(&actors[0], BODY(OK), 3);
}
END_TEST

/* In the midst of it. The arena is charged to nobody any more, and closed in the end. */
START_TEST(a_client_that_goes_while_its_region_is_looked_at_leaves_nothing)
{
    struct actor *a = &actors[0];
    uint32_t arena = new_arena(a, DLX_PAGE, _i == 0);
    struct dlxd_user *user = dlxd_user_ref(a->client->user);
    /* Its socket, pidfd, link socket, membership page, control block and arena go. */
    size_t n_fds = dlx_test_broker_n_fds(&test) - 6;
    keep_busy(a);
    say_ready(a, arena, 3);
    ck_assert_uint_gt(user->used[DLXD_BYTES], 0);
    dlxd_client_doom(a->client);
    dlxd_broker_settle(&test.broker);
    ck_assert_uint_eq(user->used[DLXD_BYTES], 0);
    ck_assert_ptr_null(dlxd_user_unref(user));
    a->client = NULL;
    is_served(&actors[1], 3);
    let_go();
    ck_assert_uint_eq(dlx_test_fds_count(), n_fds);
}
END_TEST

/* Whatever their size: what many of them have together takes as long. */
START_TEST(regions_are_closed_beside_the_loop)
{
    enum { N = 64 };
    static const uint64_t sizes[] = {DLX_PAGE, UINT64_C(4) << 20, UINT64_C(64) << 20};
    const struct actor *a = &actors[0];
    Dlx__Wire__ArenaDrop drop = DLX__WIRE__ARENA_DROP__INIT;
    uint32_t arenas[N];
    drop.publisher = a->publisher;
    for (int i = 0; i < N; i++)
        arenas[i] = new_arena(a, sizes[_i], false);
    size_t n_fds = dlx_test_broker_n_fds(&test);
    keep_busy(a);
    for (uint32_t i = 0; i < N; i++) {
        drop.arena = arenas[i];
        ask(a, BODY(ARENA_DROP), &drop, 3 + i);
        (void)answer(a, BODY(OK), 3 + i);
    }
    is_served(&actors[1], 3);
    ck_assert_uint_eq(dlx_test_fds_count(), n_fds + 2); /* none was closed; the pipe */
    let_go();
    ck_assert_uint_eq(dlx_test_fds_count(), n_fds - N);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("daemon_proof");
    TCase *tcase = tcase_create("proof");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, requests_that_follow_wait_for_the_answer);
    tcase_add_test(tcase, others_regions_are_looked_at_meanwhile);
    tcase_add_loop_test(tcase, a_client_that_goes_while_its_region_is_looked_at_leaves_nothing, 0,
                        2);
    tcase_add_loop_test(tcase, regions_are_closed_beside_the_loop, 0, 3);
    suite_add_tcase(suite, tcase);
    return dlx_test_run(suite);
}
