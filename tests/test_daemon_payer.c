/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that its owner has let go of is on the subscribers who still have it, one after the
 * other. */
#include "common/error.h"
#include "common/memory.h"
#include "daemon/objects/link.h"
#include "daemon/objects/publisher.h"
#include "ring/layout.h"
#include "tests/harness_broker.h"
#include "tests/harness_run.h"
#include <check.h>
#include <sys/mman.h>
#include <unistd.h>

enum { WRITER, FIRST, SECOND, N_USERS };
#define ARENA_SIZE (UINT64_C(1) << 20)

static struct dlx_test_broker test;
static struct dlxd_client *clients[N_USERS];
static int control[N_USERS];
static int link_sock;
static struct dlxd_publisher *publisher;
static struct dlxd_arena *arena;
static struct dlxd_subscription *subscriptions[N_USERS];
static uint64_t used_before[N_USERS]; /* bytes */

static struct dlxd_link *link_of(int user)
{
    return dlxd_container_of(subscriptions[user]->links.next, struct dlxd_link, by_subscription);
}

/* As after all that subscriber, daemon and publisher say to each other. The page says that it
 * holds nothing. */
static void open_link(int user)
{
    static const struct dlxd_subscription_config config = {.max_held = 1};
    uint64_t closed = DLX_SHM_CURSOR_CLOSED;
    uint32_t n_offers;
    int fd;
    ck_assert_int_eq(dlxd_subscription_new(&subscriptions[user], clients[user], "t", &config, &fd),
                     0);
    close(fd);
    ck_assert_int_eq(dlx_test_broker_offer_all(subscriptions[user], &n_offers), 0);
    dlxd_task_stop(&subscriptions[user]->task); /* it would see that nobody reads */
    struct dlxd_link *link = link_of(user);
    link->page_fd = memfd_create("page", MFD_CLOEXEC);
    ck_assert_int_eq(ftruncate(link->page_fd, (off_t)link->page_size), 0);
    ck_assert_int_eq(pwrite(link->page_fd, &closed, 8, offsetof(struct dlx_shm_link, cursor)), 8);
    link->state = DLXD_LINK_OPEN;
    link->open_seq = link->arena_seq = publisher->last_ready_seq;
    dlxd_membership_joined(&publisher->line);
}

static void make_arena(void)
{
    void *map;
    int fd;
    ck_assert_int_eq(dlxd_publisher_arena_new(publisher, ARENA_SIZE, &arena, &fd), 0);
    ck_assert_int_eq(dlx__region_populate(&dlx__memory_memfd, fd, ARENA_SIZE, &map), 0);
    dlx__region_unmap(map, ARENA_SIZE);
    dlx_test_broker_arena_ready(&test, publisher, arena->id);
}

static uint64_t bytes_of(int user)
{
    return clients[user]->user->used[DLXD_BYTES] - used_before[user];
}

static void set_up(void)
{
    static const struct dlxd_publisher_config config = {
        .history = 1, .depth = 16, .n_entries = 256};
    struct dlxd_publisher_fds made;
    void *map;
    dlx_test_broker_init(&test, UINT64_C(1) << 30);
    for (uint32_t i = 0; i < N_USERS; i++)
        clients[i] = dlx_test_broker_client_by(&test, i, 100, &control[i]);
    ck_assert_int_eq(dlxd_publisher_new(&publisher, clients[WRITER], "t", &config, &made), 0);
    close(made.membership_fd);
    link_sock = made.link_sock;
    uint64_t size = publisher->control->size;
    ck_assert_int_eq(dlx__region_populate(&dlx__memory_memfd, made.control_fd, size, &map), 0);
    dlx__region_unmap(map, size);
    dlx_test_broker_ready(&test, publisher);
    while (dlxd_offering_step(publisher))
        ;
    make_arena();
    open_link(FIRST);
    open_link(SECOND);
    for (int i = 0; i < N_USERS; i++)
        used_before[i] = clients[i]->user->used[DLXD_BYTES];
}

static void tear_down(void)
{
    dlx_test_broker_deinit(&test);
    for (int i = 0; i < N_USERS; i++)
        close(control[i]);
    close(link_sock);
}

static void tell_drop(int user)
{
    struct dlxd_link *link = link_of(user);
    link->drop_seq = arena->drop_seq;
    dlxd_publisher_drop_told(link, arena);
}

START_TEST(a_dropped_arena_is_on_who_has_yet_to_be_told)
{
    uint64_t all = test.broker.users.all_bytes;
    ck_assert_int_eq(dlxd_publisher_arena_drop(publisher, arena->id), 0);
    for (int user = FIRST; user <= SECOND; user++) {
        ck_assert_uint_eq(bytes_of(WRITER), 0 - ARENA_SIZE);
        ck_assert_uint_eq(bytes_of(user), ARENA_SIZE);
        ck_assert_uint_eq(bytes_of(FIRST + SECOND - user), 0);
        ck_assert_uint_eq(test.broker.users.all_bytes, all);
        tell_drop(user);
    }
    ck_assert_uint_eq(bytes_of(SECOND), 0);
    ck_assert_uint_eq(test.broker.users.all_bytes, all - ARENA_SIZE);
}
END_TEST

START_TEST(a_dropped_arena_is_on_the_next_when_a_link_ends)
{
    ck_assert_int_eq(dlxd_publisher_arena_drop(publisher, arena->id), 0);
    uint64_t page = link_of(FIRST)->page_size;
    dlxd_subscription_free(subscriptions[FIRST]);
    ck_assert_uint_eq(bytes_of(FIRST), 0 - page);
    ck_assert_uint_eq(bytes_of(SECOND), ARENA_SIZE);
}
END_TEST

START_TEST(what_a_publisher_that_has_gone_leaves_is_on_its_subscribers)
{
    uint64_t left = ARENA_SIZE + publisher->control->size;
    uint64_t objects = clients[WRITER]->user->used[DLXD_OBJECTS];
    (void)dlxd_publisher_end(publisher);
    ck_assert_uint_eq(clients[WRITER]->user->used[DLXD_OBJECTS], objects - 1);
    ck_assert_uint_eq(bytes_of(WRITER), 0 - left);
    ck_assert_uint_eq(bytes_of(FIRST), left);
    uint64_t page = link_of(FIRST)->page_size;
    dlxd_subscription_free(subscriptions[FIRST]);
    ck_assert_uint_eq(bytes_of(FIRST), 0 - page);
    ck_assert_uint_eq(bytes_of(SECOND), left);
    dlxd_subscription_free(subscriptions[SECOND]);
    ck_assert_uint_eq(test.broker.users.all_bytes, 0);
}
END_TEST

/* He cannot be kept from having it, but he gets nothing more. */
START_TEST(who_is_beyond_his_limit_gets_nothing_until_he_lets_go)
{
    struct dlxd_charge charge = {.user = NULL};
    struct dlxd_user *user = clients[FIRST]->user;
    test.broker.users.max[DLXD_BYTES] = ARENA_SIZE;
    ck_assert_int_eq(dlxd_publisher_arena_drop(publisher, arena->id), 0);
    ck_assert_uint_gt(user->used[DLXD_BYTES], ARENA_SIZE);
    ck_assert_int_eq(dlxd_charge_init(&charge, user, DLXD_BYTES, 1), DLX_E_LIMIT);
    tell_drop(FIRST);
    ck_assert_int_eq(dlxd_charge_init(&charge, user, DLXD_BYTES, 1), 0);
    dlxd_charge_deinit(&charge);
}
END_TEST

/* Its task goes on in the time of its owner, who pays nothing any more. */
START_TEST(an_owner_who_has_left_is_forgotten_when_his_publisher_is)
{
    dlxd_client_free(clients[WRITER]);
    ck_assert_uint_eq(bytes_of(FIRST), ARENA_SIZE + publisher->control->size);
    dlxd_subscription_free(subscriptions[FIRST]);
    dlxd_subscription_free(subscriptions[SECOND]);
    dlxd_broker_settle(&test.broker);
    ck_assert_uint_eq(test.broker.users.all_bytes, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("payer");
    TCase *tcase = tcase_create("payer");
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, a_dropped_arena_is_on_who_has_yet_to_be_told);
    tcase_add_test(tcase, a_dropped_arena_is_on_the_next_when_a_link_ends);
    tcase_add_test(tcase, what_a_publisher_that_has_gone_leaves_is_on_its_subscribers);
    tcase_add_test(tcase, who_is_beyond_his_limit_gets_nothing_until_he_lets_go);
    tcase_add_test(tcase, an_owner_who_has_left_is_forgotten_when_his_publisher_is);
    suite_add_tcase(suite, tcase);
    return dlx_test_run(suite);
}
