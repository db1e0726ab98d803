/* SPDX-License-Identifier: Apache-2.0 */

/*
 * While a worker looks at a client's region, or closes one, everybody else is served, and the
 * client's next request waits. Here the worker has something else to do for that user, and does not
 * end before it is told to.
 */

#include "daemon/base/worker.h"
#include "daemon/objects/connection.h"
#include "tests/daemon/harness_scene.h"
#include "tests/harness/fds.h"
#include <semaphore.h>

/* A client with a publisher. */
struct actor {
    struct dlxd_client *client;
    int fd;
    uint64_t publisher;
};

static struct actor actors[2]; /* of two users */

static sem_t told;

static void wait_for_end(void *data)
{
    (void)data;
    (void)sem_wait(&told);
}

static void nothing(void *data)
{
    (void)data;
}

static void keep_busy(const struct actor *a)
{
    ck_assert_int_eq(sem_init(&told, 0, 0), 0);
    ok(dlxd_workers_run(dlx_scene.broker.workers, a->client->user, wait_for_end, nothing, NULL));
}

static void let_go(void)
{
    ck_assert_int_eq(sem_post(&told), 0);
    dlx_test_broker_run(&dlx_scene);
}

/* Everything but jobs. */
static void run(void)
{
    for (int i = 0; i < 5; i++) {
        (void)uv_run(&dlx_scene.loop, UV_RUN_NOWAIT);
        dlxd_broker_settle(&dlx_scene.broker);
    }
}

static void ask(const struct actor *a, void *message, uint32_t serial)
{
    dlx_scene_send(a->fd, message, serial);
    run();
}

static bool is_answered(const struct actor *a)
{
    return recv(a->fd, NULL, 0, MSG_PEEK | MSG_DONTWAIT) >= 0;
}

static const Dlx__Wire__Packet *answer(const struct actor *a, Dlx__Wire__Packet__BodyCase body,
                                       uint32_t serial)
{
    const Dlx__Wire__Packet *packet = dlx_scene_expect(a->fd, body);
    ck_assert_uint_eq(packet->serial, serial);
    return packet;
}

/* Its number. Not ready yet; allocated if it says so. */
static uint32_t new_arena(const struct actor *a, uint64_t size, bool allocated)
{
    ask(a, WIRE(arena_new, .publisher = a->publisher, .arena_size = size), 90);
    uint32_t id = answer(a, BODY(ARENA_NEW_REPLY), 90)->arena_new_reply->arena;
    if (allocated)
        dlx_scene_allocate(dlx_scene_take_fd(0), size);
    dlx_scene_close_received();
    return id;
}

static void say_ready(const struct actor *a, uint32_t arena, uint32_t serial)
{
    ask(a, WIRE(arena_ready, .publisher = a->publisher, .arena = arena), serial);
}

static void drop(const struct actor *a, uint32_t arena, uint32_t serial)
{
    ask(a, WIRE(arena_drop, .publisher = a->publisher, .arena = arena), serial);
}

static void set_up(void)
{
    static const struct dlxd_quotas none = {.n = 0};
    int link_sock;
    dlxd_users_set_quotas(&dlx_scene.broker.users, &none, UINT64_C(1) << 36);
    for (uint32_t i = 0; i < 2; i++) {
        actors[i].client = dlx_scene_client(i, 10);
        actors[i].fd = dlx_scene_fd(actors[i].client);
        actors[i].publisher =
            dlxd_publisher_id(dlx_scene_publisher_linked(actors[i].client, "t", &link_sock));
    }
}

static void is_served(const struct actor *a, uint32_t serial)
{
    ask(a, WIRE(daemon_info), serial);
    (void)answer(a, BODY(DAEMON_INFO_REPLY), serial);
}

TEST(requests_that_follow_wait_for_the_answer)
{
    const struct actor *a = &actors[0];
    uint32_t arena = new_arena(a, DLX_PAGE, true);
    keep_busy(a);
    say_ready(a, arena, 3);
    ask(a, WIRE(daemon_info), 4);
    drop(a, arena, 5);
    drop(a, arena, 6);
    ask(a, WIRE(publisher_close, .publisher = a->publisher), 7);
    ck_assert(!is_answered(a));
    is_served(&actors[1], 3);
    let_go();
    dlx_test_broker_run(&dlx_scene);
    (void)answer(a, BODY(OK), 3);
    (void)answer(a, BODY(DAEMON_INFO_REPLY), 4);
    (void)answer(a, BODY(OK), 5);
    ck_assert_int_eq(answer(a, BODY(ERROR), 6)->error->code, DLX_E_NOT_FOUND);
    (void)answer(a, BODY(OK), 7);
}

TEST(others_regions_are_looked_at_meanwhile)
{
    uint32_t arenas[2];
    for (int i = 0; i < 2; i++)
        arenas[i] = new_arena(&actors[i], DLX_PAGE, true);
    keep_busy(&actors[0]);
    for (int i = 0; i < 2; i++)
        say_ready(&actors[i], arenas[i], 3);
    while (!is_answered(&actors[1]))
        (void)uv_run(&dlx_scene.loop, UV_RUN_ONCE);
    (void)answer(&actors[1], BODY(OK), 3);
    ck_assert(!is_answered(&actors[0]));
    let_go();
    (void)answer(&actors[0], BODY(OK), 3);
}

/* In the midst of the proof. The arena is charged to no user any more, and closed in the end. */
LOOP_TEST(a_client_that_goes_while_its_region_is_looked_at_leaves_nothing, 0, 2)
{
    struct actor *a = &actors[0];
    uint32_t arena = new_arena(a, DLX_PAGE, _i == 0);
    struct dlxd_user *user = dlxd_user_ref(a->client->user);
    /* The client's socket, pidfd, link socket, membership page, control block and arena go. */
    size_t n_fds = dlx_test_broker_n_fds(&dlx_scene) - 6;
    keep_busy(a);
    say_ready(a, arena, 3);
    ck_assert_uint_gt(user->used[DLXD_BYTES], 0);
    dlxd_client_doom(a->client);
    dlxd_broker_settle(&dlx_scene.broker);
    ck_assert_uint_eq(user->used[DLXD_BYTES], 0);
    ck_assert_ptr_null(dlxd_user_unref(user));
    is_served(&actors[1], 3);
    let_go();
    ck_assert_uint_eq(dlx_test_fds_count(), n_fds);
}

/* Regions of any size: many of them together take as long. */
LOOP_TEST(regions_are_closed_beside_the_loop, 0, 3)
{
    enum { N = 64 };
    static const uint64_t sizes[] = {DLX_PAGE, UINT64_C(4) << 20, UINT64_C(64) << 20};
    const struct actor *a = &actors[0];
    uint32_t arenas[N];
    for (int i = 0; i < N; i++)
        arenas[i] = new_arena(a, sizes[_i], false);
    size_t n_fds = dlx_test_broker_n_fds(&dlx_scene);
    int other;
    dlxd_workers_close(dlx_scene.broker.workers, a->client->user,
                       dlx_test_fds_slow_to_close(&other));
    for (uint32_t i = 0; i < N; i++) {
        drop(a, arenas[i], 3 + i);
        (void)answer(a, BODY(OK), 3 + i);
    }
    is_served(&actors[1], 3);
    ck_assert_uint_ge(dlx_test_fds_count(), n_fds + 1); /* none was closed, nor the other end */
    dlx__close(other);
    dlx_test_broker_run(&dlx_scene);
    ck_assert_uint_eq(dlx_test_fds_count(), n_fds - N);
}

int main(void)
{
    return dlx_test_run_case(dlx_scene_case("proof", set_up));
}
