/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that its owner has let go of is on the subscribers who still have it, one after the
 * other. */
#include "common/error.h"
#include "common/memory.h"
#include "common/packet.h"
#include "daemon/objects/delivery.h"
#include "daemon/objects/drain.h"
#include "daemon/objects/link.h"
#include "daemon/objects/publisher.h"
#include "daemon/users/outbox.h"
#include "ring/layout.h"
#include "tests/harness/broker.h"
#include "tests/harness/run.h"
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
static int theirs[N_USERS];           /* sockets */
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
    ck_assert_int_eq(
        dlxd_subscription_new(&subscriptions[user], clients[user], "t", &config, &theirs[user]), 0);
    ck_assert_int_eq(dlx_test_broker_offer_all(subscriptions[user], &n_offers), 0);
    dlxd_task_stop(&subscriptions[user]->task); /* it is told what the tests say */
    struct dlxd_link *link = link_of(user);
    link->drain->page_fd = memfd_create("page", MFD_CLOEXEC);
    ck_assert_int_eq(ftruncate(link->drain->page_fd, (off_t)link->page_size), 0);
    ck_assert_int_eq(
        pwrite(link->drain->page_fd, &closed, 8, offsetof(struct dlx_shm_link, cursor)), 8);
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
    close(theirs[FIRST]);
    close(theirs[SECOND]);
    close(link_sock);
}

/* The next packet that is due is in its socket. */
static void tell(int user)
{
    ck_assert(dlxd_delivery_step(subscriptions[user]));
}

static void read_all(int user)
{
    struct dlx_packet rx;
    while (dlx__packet_recv_fds(theirs[user], &rx) == 0)
        dlx__packet_deinit(&rx);
}

static void look(void)
{
    for (int i = 0; i < N_USERS; i++)
        clients[i]->user->next_look_ns = 0;
    dlxd_flights_look_all(&test.broker.users);
}

static void is_charged_to(int user)
{
    ck_assert_uint_eq(bytes_of(WRITER), 0 - ARENA_SIZE);
    ck_assert_uint_eq(bytes_of(FIRST), user == FIRST ? ARENA_SIZE : 0);
    ck_assert_uint_eq(bytes_of(SECOND), user == SECOND ? ARENA_SIZE : 0);
}

START_TEST(a_dropped_arena_is_on_who_has_yet_to_be_told_and_then_on_who_has_yet_to_read)
{
    uint64_t all = test.broker.users.all_bytes;
    ck_assert_int_eq(dlxd_publisher_arena_drop(publisher, arena->id), 0);
    is_charged_to(FIRST);
    tell(FIRST);
    is_charged_to(SECOND);
    tell(SECOND);
    is_charged_to(FIRST);
    look();
    is_charged_to(FIRST); /* it has not read it */
    ck_assert_uint_eq(test.broker.users.all_bytes, all);
    read_all(FIRST);
    look();
    is_charged_to(SECOND);
    ck_assert_uint_eq(test.broker.users.all_bytes, all);
    read_all(SECOND);
    look();
    is_charged_to(WRITER);
    ck_assert_uint_eq(test.broker.users.all_bytes, all - ARENA_SIZE);
    ck_assert_uint_eq(publisher->dropped.n, 0);
}
END_TEST

/* Whoever was told last may be the first to read. */
START_TEST(who_reads_a_drop_early_leaves_it_to_who_does_not)
{
    ck_assert_int_eq(dlxd_publisher_arena_drop(publisher, arena->id), 0);
    tell(SECOND);
    read_all(SECOND);
    look();
    is_charged_to(FIRST);
    tell(FIRST);
    look();
    is_charged_to(FIRST);
    read_all(FIRST);
    look();
    is_charged_to(WRITER);
}
END_TEST

/* Whoever says that it has received a packet, and has not, goes on paying: for descriptors, too. */
START_TEST(an_acknowledgement_is_believed_once_the_packets_were_read)
{
    ck_assert_int_eq(dlxd_publisher_arena_drop(publisher, arena->id), 0);
    for (int user = FIRST; user <= SECOND; user++)
        tell(user);
    used_before[WRITER] += ARENA_SIZE;
    make_arena(); /* ArenaAdded is sent, or to be sent */
    for (int user = FIRST; user <= SECOND; user++) {
        struct dlxd_subscription *subscription = subscriptions[user];
        dlxd_delivery_step(subscription);
        ck_assert_uint_gt(subscription->n_fds_sent, 0);
        ck_assert_int_eq(dlxd_subscription_ack(subscription, subscription->n_fds_sent), 0);
        is_charged_to(user);
        ck_assert_uint_eq(clients[user]->user->used[DLXD_IN_FLIGHT], 1);
        read_all(user);
        ck_assert_int_eq(dlxd_subscription_ack(subscription, subscription->n_fds_sent), 0);
        ck_assert_uint_eq(clients[user]->user->used[DLXD_IN_FLIGHT], 0);
    }
    is_charged_to(WRITER);
}
END_TEST

START_TEST(what_was_told_and_not_read_is_on_the_next_when_a_link_ends)
{
    ck_assert_int_eq(dlxd_publisher_arena_drop(publisher, arena->id), 0);
    tell(FIRST);
    tell(SECOND);
    used_before[FIRST] -= link_of(FIRST)->page_size;
    dlxd_link_end(link_of(FIRST));
    is_charged_to(SECOND);
    used_before[SECOND] -= link_of(SECOND)->page_size;
    dlxd_link_end(link_of(SECOND));
    is_charged_to(WRITER);
    ck_assert_uint_eq(publisher->dropped.n, 0);
    read_all(FIRST);
    read_all(SECOND);
    look(); /* nobody wants to know any more */
}
END_TEST

static int ask_for_arena(struct dlxd_user *user)
{
    struct dlxd_arena *wanted;
    user->next_look_ns = 0;
    int r = dlxd_arena_new(&wanted, test.broker.workers, user, 1, ARENA_SIZE, false);
    if (r == 0)
        dlxd_arena_free(wanted);
    return r;
}

static int ask_for_link(struct dlxd_user *user)
{
    user->next_look_ns = 0;
    return dlxd_link_new_spare(subscriptions[FIRST], ++test.broker.registry.last_link);
}

/* Whoever reads what he is told is refused nothing since the daemon has yet to see it. */
START_TEST(who_meets_the_limit_of_bytes_gets_what_he_has_read)
{
    int (*const ask[])(struct dlxd_user *) = {ask_for_arena, ask_for_link};
    struct dlxd_user *user = clients[FIRST]->user;
    dlxd_link_end(link_of(SECOND));
    ck_assert_int_eq(dlxd_publisher_arena_drop(publisher, arena->id), 0);
    test.broker.users.max[DLXD_BYTES] = user->used[DLXD_BYTES];
    tell(FIRST);
    ck_assert_int_eq(ask[_i](user), DLX_E_LIMIT);
    read_all(FIRST);
    ck_assert_int_eq(ask[_i](user), 0);
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
    tell(FIRST);
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
    tcase_add_test(tcase,
                   a_dropped_arena_is_on_who_has_yet_to_be_told_and_then_on_who_has_yet_to_read);
    tcase_add_test(tcase, who_reads_a_drop_early_leaves_it_to_who_does_not);
    tcase_add_test(tcase, an_acknowledgement_is_believed_once_the_packets_were_read);
    tcase_add_test(tcase, what_was_told_and_not_read_is_on_the_next_when_a_link_ends);
    tcase_add_loop_test(tcase, who_meets_the_limit_of_bytes_gets_what_he_has_read, 0, 2);
    tcase_add_test(tcase, a_dropped_arena_is_on_the_next_when_a_link_ends);
    tcase_add_test(tcase, what_a_publisher_that_has_gone_leaves_is_on_its_subscribers);
    tcase_add_test(tcase, who_is_beyond_his_limit_gets_nothing_until_he_lets_go);
    tcase_add_test(tcase, an_owner_who_has_left_is_forgotten_when_his_publisher_is);
    suite_add_tcase(suite, tcase);
    return dlx_test_run(suite);
}
