/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is charged, and that no writer populates, is returned; growing or populated memory is
 * not. */
#include "tests/daemon/harness_scene.h"
#include "daemon/objects/publisher_state.h"
#include "tests/harness/memory.h"

#define ARENA_SIZE (UINT64_C(1) << 20)
/* Just over the time that a region may not grow. */
#define LONG (DLXD_RECLAIM_AFTER_NS + 1)

static struct dlxd_client *client;
static struct dlxd_publisher *publisher;
static struct dlxd_arena *arena;
static int fd;
static uint64_t used; /* bytes, without the arena */

static uint64_t bytes(void)
{
    return client->user->used[DLXD_BYTES];
}

static void set_up(void)
{
    client = dlx_scene_client(0, 100);
    publisher = dlx_scene_publisher(client, "t");
    ck_assert(dlxd_list_empty(&dlx_scene.broker.reservations)); /* its control block is ready */
    used = bytes();
    ok(dlxd_publisher_arena_new(publisher, ARENA_SIZE, &arena, &fd));
    dlx_scene_keep(fd);
}

static void look_in(uint64_t ns)
{
    dlxd_reclaim(&dlx_scene.broker, dlx__now_ns() + ns);
}

static void on_proved(void *owner, int code, const char *text, int take_fd)
{
    ok(dlxd_publisher_arena_ready(owner, code, text, take_fd));
}

TEST(an_arena_that_is_not_populated_is_returned)
{
    look_in(DLXD_RECLAIM_AFTER_NS / 2);
    ck_assert_uint_eq(bytes(), used + ARENA_SIZE);
    uint32_t id = arena->id;
    look_in(LONG);
    ck_assert_uint_eq(bytes(), used);
    fails(dlxd_publisher_arena_prove(publisher, id, on_proved), DLX_E_NOT_FOUND,
          "its pages did not grow");
    ck_assert(dlxd_list_empty(&dlx_scene.broker.reservations));
}

/* A reservation takes 10 us of the loop's time, and a client may have thousands. */
TEST(many_reservations_are_returned_in_parts)
{
    enum { MANY = 200, AT_ONCE = 16 };
    const uint64_t later = dlx__now_ns() + 2 * LONG;
    for (int i = 0; i < MANY; i++) {
        struct dlxd_publisher *idle;
        struct dlxd_publisher_fds made;
        ok(dlxd_publisher_new(&idle, client, "idle", &dlx_scene_plain, &made));
        close(made.control_fd);
        close(made.membership_fd);
        close(made.link_sock);
    }
    size_t left = dlx_scene.broker.registry.publishers.n;
    while (dlxd_reclaim(&dlx_scene.broker, later)) {
        size_t n = dlx_scene.broker.registry.publishers.n;
        ck_assert_uint_le(left - n, AT_ONCE);
        ck_assert_uint_ge(left - n, AT_ONCE - 1); /* one may be the arena of each test */
        left = n;
    }
    ck_assert_uint_eq(dlx_scene.broker.registry.publishers.n, 1);
}

TEST(a_publisher_that_is_not_made_ready_is_closed)
{
    struct dlxd_publisher_fds made;
    struct dlxd_publisher *idle;
    ok(dlxd_publisher_arena_drop(publisher, arena->id));
    ok(dlxd_publisher_new(&idle, client, "idle", &dlx_scene_plain, &made));
    ck_assert_uint_gt(bytes(), used);
    look_in(LONG);
    ck_assert_uint_eq(bytes(), used);
    ck_assert_uint_eq(dlx_scene.broker.registry.publishers.n, 1);
    close(made.control_fd);
    close(made.membership_fd);
    close(made.link_sock);
}

TEST(an_arena_that_grows_is_left_alone)
{
    uint64_t now = dlx__now_ns();
    for (uint64_t i = 0; i < 10; i++) {
        ck_assert_int_eq(fallocate(fd, 0, (off_t)(i * DLX_PAGE), DLX_PAGE), 0);
        now += LONG;
        dlxd_reclaim(&dlx_scene.broker, now);
        ck_assert_uint_eq(bytes(), used + ARENA_SIZE);
    }
    dlxd_reclaim(&dlx_scene.broker, now + LONG);
    ck_assert_uint_eq(bytes(), used);
}

/* The writer may be touching the pages, which does not show. */
TEST(an_arena_with_all_its_pages_is_left_alone)
{
    ck_assert_int_eq(fallocate(fd, 0, 0, ARENA_SIZE), 0);
    look_in(0);
    look_in(LONG);
    ck_assert_uint_eq(bytes(), used + ARENA_SIZE);
    dlx_test_memory_punch(fd, 0, DLX_PAGE);
    look_in(2 * LONG);
    look_in(4 * LONG);
    ck_assert_uint_eq(bytes(), used);
}

/* A publisher that reconnects copies what it retains before it is ready: that has no bound. */
TEST(a_publisher_whose_control_block_is_populated_has_time)
{
    struct dlxd_publisher_fds made;
    struct dlxd_publisher *late;
    ok(dlxd_publisher_new(&late, client, "late", &dlx_scene_plain, &made));
    dlx_scene_allocate(made.control_fd, late->control->size);
    uint64_t populated = bytes();
    look_in(0);
    look_in(LONG);
    ck_assert_uint_eq(bytes(), populated - ARENA_SIZE); /* the empty one is returned */
    ck_assert_uint_eq(dlx_scene.broker.registry.publishers.n, 2);
    close(made.membership_fd);
    close(made.link_sock);
}

TEST(an_arena_that_is_being_proved_or_is_ready_is_left_alone)
{
    dlx_scene_allocate(dup(fd), ARENA_SIZE);
    look_in(0);
    ok(dlxd_publisher_arena_prove(publisher, arena->id, on_proved));
    look_in(LONG);
    ck_assert_uint_eq(bytes(), used + ARENA_SIZE);
    dlx_test_broker_run(&dlx_scene);
    ck_assert_uint_eq(publisher->ready.n, 1);
    ck_assert(dlxd_list_empty(&dlx_scene.broker.reservations));
    look_in(10 * LONG);
    ck_assert_uint_eq(bytes(), used + ARENA_SIZE);
}

TEST(a_look_takes_a_bounded_number_of_reservations)
{
    enum { MANY = 300, MOST = 16 };
    for (int i = 0; i < MANY; i++) {
        int writer;
        ok(dlxd_publisher_arena_new(publisher, DLX_PAGE, &arena, &writer));
        close(writer);
    }
    look_in(LONG);
    ck_assert_uint_eq(publisher->unready.n, 1 + MANY - MOST);
    while (dlxd_reclaim(&dlx_scene.broker, dlx__now_ns() + LONG))
        ;
    ck_assert_uint_eq(publisher->unready.n, 0);
}

int main(void)
{
    return dlx_test_run_case(dlx_scene_case("reservation", set_up));
}
