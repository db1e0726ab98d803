/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reasons for which a link is not made or told. Random histories of links and arenas are the
 * simulation's (sim_daemon/).
 */
#include "ring/layout.h"
#include "daemon/objects/publisher_state.h"
#include "tests/daemon/harness_scene.h"

static struct dlxd_client *client;
static struct dlxd_subscription *subscription;
static int sock;

static void set_up(void)
{
    client = dlx_scene_client(0, 1000);
}

static void subscribe(struct dlxd_client *whose)
{
    subscription = dlx_scene_subscription(whose, "t", NULL, &sock);
}

static uint32_t offer_all(void)
{
    uint32_t n = dlx_scene_subscribed(subscription);
    dlxd_broker_settle(&dlx_scene.broker);
    return n;
}

/* A publisher; then a subscriber of this client, whose LinkReady is on its way. Returns the
 * publisher's end of its link socket. */
static int begin_joining(struct dlxd_client *whose)
{
    int link_sock;
    (void)dlx_scene_publisher_linked(client, "t", &link_sock);
    subscribe(whose);
    (void)offer_all();
    (void)dlx_scene_accept(sock, dlx_scene_receive(sock));
    return link_sock;
}

/* The link that waited opens. */
static void expect_open(void)
{
    dlxd_broker_unstick(&dlx_scene.broker);
    dlx_test_broker_run(&dlx_scene);
    (void)dlx_scene_expect(sock, BODY(LINK_OPEN));
}

/* A subscriber that stands still is remembered by positions: what piles up is bounded by what it
 * was sent, not by what happens meanwhile. */
TEST(subscriber_that_stands_still_costs_nothing_more)
{
    (void)begin_joining(client);
    dlx_test_broker_run(&dlx_scene);
    (void)dlx_scene_expect(sock, BODY(LINK_OPEN));
    struct dlxd_publisher *p = dlx_scene_link(subscription)->publisher;
    for (int i = 0; i < 10000; i++) {
        const struct dlxd_arena *arena = dlx_scene_arena(p, DLX_PAGE);
        dlxd_broker_settle(&dlx_scene.broker);
        ok(dlxd_publisher_arena_drop(p, arena->id));
        dlxd_broker_settle(&dlx_scene.broker);
        ck_assert_uint_le(p->dropped.n + p->ready.n, DLXD_CREDIT);
    }
}

TEST(a_link_waits_while_its_user_has_too_many_descriptors_in_flight)
{
    int link_sock = begin_joining(client);
    dlx_scene.broker.users.all_in_flight_max =
        5; /* of a worker's LinkOpen: something must be left */
    dlx_test_broker_run(&dlx_scene);
    ck_assert_ptr_null(dlx_scene_receive(link_sock));
    ck_assert_int_eq(subscription->state, DLXD_SUBSCRIPTION_STUCK);
    dlx_scene.broker.users.all_in_flight_max = 12;
    expect_open();
}

/* Other users would pay for the packets that it does not read. */
TEST(a_publisher_whose_user_has_too_many_descriptors_in_flight_is_not_joined)
{
    int link_sock = begin_joining(dlx_scene_client(1, 1000));
    dlx_scene.broker.users.all_in_flight_max = 20;
    struct dlxd_charge *unread = dlx_users_charge(client->user, DLXD_IN_FLIGHT, 14);
    dlx_test_broker_run(&dlx_scene);
    ck_assert_ptr_null(dlx_scene_receive(link_sock));
    dlxd_charge_deinit(unread);
    expect_open();
}

/* The subscriber counts its offers from the first number that it hears. */
TEST(the_first_packet_is_about_the_first_offer)
{
    (void)dlx_scene_publisher(client, "t");
    (void)dlx_scene_publisher(client, "t");
    subscribe(dlx_scene_client(0, 1));
    ck_assert_uint_eq(offer_all(), 2);
    uint64_t first = dlx_scene_expect(sock, BODY(LINK_OFFER))->link_offer->link;
    /* The second does not fit. */
    ck_assert_uint_eq(dlx_scene_expect(sock, BODY(LINK_FAILED))->link_failed->link, first + 1);
}

#ifndef DLX_SANITIZE /* their calloc() is not to be replaced */
static bool no_memory_for_links;
void *__libc_calloc(size_t n, size_t size);

void *calloc(size_t n, size_t size)
{
    return no_memory_for_links && n == 1 && size == sizeof(struct dlxd_link)
               ? NULL
               : __libc_calloc(n, size);
}

TEST(a_subscriber_hears_of_a_publisher_that_there_was_no_memory_for)
{
    subscribe(client);
    dlxd_subscription_open(subscription);
    no_memory_for_links = true;
    (void)dlx_scene_publisher(client, "t");
    no_memory_for_links = false;
    const Dlx__Wire__LinkFailed *failed = dlx_scene_expect(sock, BODY(LINK_FAILED))->link_failed;
    ck_assert_int_eq(failed->code, DLX_E_NO_MEMORY);
    ck_assert_uint_ne(failed->link, 0);
    (void)dlx_scene_publisher(client, "t"); /* the next one is offered */
    dlxd_broker_settle(&dlx_scene.broker);
    (void)dlx_scene_accept(sock, dlx_scene_receive(sock));
}
#endif

int main(void)
{
    return dlx_test_run_case(dlx_scene_case("links", set_up));
}
