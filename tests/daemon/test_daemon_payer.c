/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that its owner has let go of is on the subscribers who still have it, one after the
 * other. */
#include "daemon/objects/delivery.h"
#include "daemon/objects/link.h"
#include "daemon/objects/publisher_state.h"
#include "ring/layout.h"
#include "tests/daemon/harness_scene.h"

enum { WRITER, FIRST, SECOND, N_USERS };
#define ARENA_SIZE (UINT64_C(1) << 20)

static struct dlxd_client *clients[N_USERS];
static struct dlxd_publisher *publisher;
static struct dlxd_arena *arena;
static struct dlxd_subscription *subscriptions[N_USERS];
static int theirs[N_USERS];           /* sockets */
static uint64_t used_before[N_USERS]; /* bytes */

static struct dlxd_link *link_of(int user)
{
    return dlx_scene_link(subscriptions[user]);
}

/* As after all that subscriber, daemon and publisher say to each other. The page says that it
 * holds nothing. */
static void open_link(int user)
{
    uint64_t closed = DLX_SHM_CURSOR_CLOSED;
    subscriptions[user] = dlx_scene_subscription(clients[user], "t", NULL, &theirs[user]);
    (void)dlx_scene_subscribed(subscriptions[user]);
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

static uint64_t bytes_of(int user)
{
    return clients[user]->user->used[DLXD_BYTES] - used_before[user];
}

static void set_up(void)
{
    int link_sock;
    for (uint32_t i = 0; i < N_USERS; i++)
        clients[i] = dlx_scene_client(i, 100);
    publisher = dlx_scene_publisher_linked(clients[WRITER], "t", &link_sock);
    arena = dlx_scene_arena(publisher, ARENA_SIZE);
    open_link(FIRST);
    open_link(SECOND);
    for (int i = 0; i < N_USERS; i++)
        used_before[i] = clients[i]->user->used[DLXD_BYTES];
}

/* The next packet that is due is in its socket. */
static void tell(int user)
{
    ck_assert(dlxd_delivery_step(subscriptions[user]));
}

static void drop(void)
{
    ok(dlxd_publisher_arena_drop(publisher, arena->id));
}

/* The daemon sees that it has read all that it was sent. */
static void read_all(int user)
{
    (void)dlx_scene_receive_all(theirs[user]);
    dlx_scene_look();
}

static void is_charged_to(int user)
{
    ck_assert_uint_eq(bytes_of(WRITER), 0 - ARENA_SIZE);
    ck_assert_uint_eq(bytes_of(FIRST), user == FIRST ? ARENA_SIZE : 0);
    ck_assert_uint_eq(bytes_of(SECOND), user == SECOND ? ARENA_SIZE : 0);
}

TEST(a_dropped_arena_is_on_who_has_yet_to_be_told_and_then_on_who_has_yet_to_read)
{
    uint64_t all = dlx_scene.broker.users.all_bytes;
    drop();
    is_charged_to(FIRST);
    tell(FIRST);
    is_charged_to(SECOND);
    tell(SECOND);
    is_charged_to(FIRST);
    dlx_scene_look();
    is_charged_to(FIRST); /* it has not read it */
    ck_assert_uint_eq(dlx_scene.broker.users.all_bytes, all);
    read_all(FIRST);
    is_charged_to(SECOND);
    ck_assert_uint_eq(dlx_scene.broker.users.all_bytes, all);
    read_all(SECOND);
    is_charged_to(WRITER);
    ck_assert_uint_eq(dlx_scene.broker.users.all_bytes, all - ARENA_SIZE);
    ck_assert_uint_eq(publisher->dropped.n, 0);
}

/* The last one that was told may be the first to read. */
TEST(a_subscriber_that_reads_a_drop_early_leaves_it_to_the_others)
{
    drop();
    tell(SECOND);
    read_all(SECOND);
    is_charged_to(FIRST);
    tell(FIRST);
    dlx_scene_look();
    is_charged_to(FIRST);
    read_all(FIRST);
    is_charged_to(WRITER);
}

/* A client that acknowledges a packet that it has not received goes on paying, for descriptors,
 * too. */
TEST(an_acknowledgement_is_believed_once_the_packets_were_read)
{
    drop();
    for (int user = FIRST; user <= SECOND; user++)
        tell(user);
    used_before[WRITER] += ARENA_SIZE;
    arena = dlx_scene_arena(publisher, ARENA_SIZE); /* ArenaAdded is sent, or to be sent */
    for (int user = FIRST; user <= SECOND; user++) {
        struct dlxd_subscription *subscription = subscriptions[user];
        dlxd_delivery_step(subscription);
        ck_assert_uint_gt(subscription->n_fds_sent, 0);
        ok(dlxd_subscription_ack(subscription, subscription->n_fds_sent));
        is_charged_to(user);
        ck_assert_uint_eq(clients[user]->user->used[DLXD_IN_FLIGHT], 1);
        dlx_scene_receive_all(theirs[user]);
        ok(dlxd_subscription_ack(subscription, subscription->n_fds_sent));
        ck_assert_uint_eq(clients[user]->user->used[DLXD_IN_FLIGHT], 0);
    }
    is_charged_to(WRITER);
}

TEST(a_drop_that_was_told_and_not_read_is_on_the_next_link)
{
    drop();
    tell(FIRST);
    tell(SECOND);
    used_before[FIRST] -= link_of(FIRST)->page_size;
    dlxd_link_end(link_of(FIRST));
    is_charged_to(SECOND);
    used_before[SECOND] -= link_of(SECOND)->page_size;
    dlxd_link_end(link_of(SECOND));
    is_charged_to(WRITER);
    ck_assert_uint_eq(publisher->dropped.n, 0);
    dlx_scene_receive_all(theirs[FIRST]);
    dlx_scene_receive_all(theirs[SECOND]);
    dlx_scene_look(); /* no client wants to know any more */
}

static int ask_for_arena(struct dlxd_user *user)
{
    struct dlxd_arena *wanted;
    user->next_look_ns = 0;
    int r = dlxd_arena_new(&wanted, dlx_scene.broker.workers, user, 1, ARENA_SIZE, false);
    if (r == 0)
        dlxd_arena_free(wanted);
    return r;
}

static int ask_for_link(struct dlxd_user *user)
{
    user->next_look_ns = 0;
    return dlxd_link_new_spare(subscriptions[FIRST], ++dlx_scene.broker.registry.last_link);
}

/* A user that reads its notifications is refused nothing because the daemon has yet to see that. */
LOOP_TEST(a_user_at_the_limit_of_bytes_gets_what_reading_has_freed, 0, 2)
{
    int (*const ask[])(struct dlxd_user *) = {ask_for_arena, ask_for_link};
    struct dlxd_user *user = clients[FIRST]->user;
    dlxd_link_end(link_of(SECOND));
    drop();
    dlx_scene.broker.users.max[DLXD_BYTES] = user->used[DLXD_BYTES];
    tell(FIRST);
    ck_assert_int_eq(ask[_i](user), DLX_E_LIMIT);
    dlx_scene_receive_all(theirs[FIRST]);
    ck_assert_int_eq(ask[_i](user), 0);
}

TEST(a_dropped_arena_is_on_the_next_when_a_link_ends)
{
    drop();
    used_before[FIRST] -= link_of(FIRST)->page_size;
    dlxd_subscription_free(subscriptions[FIRST]);
    is_charged_to(SECOND);
}

TEST(memory_of_a_publisher_that_has_gone_is_on_its_subscribers)
{
    uint64_t left = ARENA_SIZE + publisher->control->size;
    uint64_t objects = clients[WRITER]->user->used[DLXD_OBJECTS];
    (void)dlxd_publisher_end(publisher);
    dlxd_broker_settle(&dlx_scene.broker);
    ck_assert_uint_eq(clients[WRITER]->user->used[DLXD_OBJECTS], objects - 1);
    ck_assert_uint_eq(bytes_of(WRITER), 0 - left - DLX_PAGE); /* its membership page */
    ck_assert_uint_eq(bytes_of(FIRST), left);
    used_before[FIRST] -= link_of(FIRST)->page_size;
    dlxd_subscription_free(subscriptions[FIRST]);
    ck_assert_uint_eq(bytes_of(FIRST), 0);
    ck_assert_uint_eq(bytes_of(SECOND), left);
    dlxd_subscription_free(subscriptions[SECOND]);
    ck_assert_uint_eq(dlx_scene.broker.users.all_bytes, 0);
}

/* The daemon cannot take the memory from the user, but gives it no more. */
TEST(a_user_beyond_his_limit_gets_nothing_until_he_lets_go)
{
    struct dlxd_user *user = clients[FIRST]->user;
    dlx_scene.broker.users.max[DLXD_BYTES] = ARENA_SIZE;
    drop();
    ck_assert_uint_gt(user->used[DLXD_BYTES], ARENA_SIZE);
    (void)dlx_users_refused(user, DLXD_BYTES, 1);
    tell(FIRST);
    (void)dlx_users_charge(user, DLXD_BYTES, 1);
}

/* The publisher's task goes on in the time of its owner, who pays nothing any more. */
TEST(an_owner_who_has_left_is_forgotten_when_his_publisher_is)
{
    dlxd_client_free(clients[WRITER]);
    ck_assert_uint_eq(bytes_of(FIRST), ARENA_SIZE + publisher->control->size);
    dlxd_subscription_free(subscriptions[FIRST]);
    dlxd_subscription_free(subscriptions[SECOND]);
    dlxd_broker_settle(&dlx_scene.broker);
    ck_assert_uint_eq(dlx_scene.broker.users.all_bytes, 0);
}

int main(void)
{
    return dlx_test_run_case(dlx_scene_case("payer", set_up));
}
