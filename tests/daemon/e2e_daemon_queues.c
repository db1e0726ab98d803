/* SPDX-License-Identifier: Apache-2.0 */
/* What declared groups have not done when their publisher goes: who gets it, and when it ends. */
#include "tests/daemon/harness_worker.h"
#include "tests/harness/fork.h"
#include <unistd.h>

#define GROUPS_DROP(...)   DLX_TEST_BODY(GROUPS_DROP, groups_drop, __VA_ARGS__)
#define RETAINED_DROP(...) DLX_TEST_BODY(RETAINED_DROP, retained_drop, __VA_ARGS__)

/* A publisher of the served client that declares group g and has published so many messages. */
static struct dlx_test_publisher publish(uint64_t n, uint32_t retain, uint64_t retain_for_ns)
{
    struct dlx_test_publisher publisher;
    Dlx__Wire__PublisherNew request = dlx_test_publisher_request("t");
    char *groups[] = {WIRE_TEXT("g")};
    request.on_full = 1;
    request.groups = groups;
    request.n_groups = 1;
    request.retain = retain;
    request.retain_for_ns = retain_for_ns;
    dlx_test_publisher_new_from(&publisher, dlx_served_client, &request);
    dlx_test_publisher_ready(&publisher);
    dlx_worker_publish(&publisher, n, 1);
    return publisher;
}

static void leave(struct dlx_test_publisher *publisher)
{
    dlx_served_publisher_close(publisher);
    dlx_test_publisher_deinit(publisher);
}

static size_t n_groups(void)
{
    const Dlx__Wire__Packet *reply = dlx_test_call_for(
        dlx_served_client, LIST_GROUPS(.topic = WIRE_TEXT("**")), BODY(GROUP_LIST));
    return reply->group_list->n_entries;
}

/* Nothing that the publisher left is there any more. */
static void await_end(void)
{
    while (n_groups() > 0)
        dlx_served_barrier();
    ck_assert_uint_eq(dlx_test_call_for(dlx_served_client, LIST_PUBLISHERS(), BODY(PUBLISHER_LIST))
                          ->publisher_list->n_entries,
                      0);
}

static void finish(const struct dlx_worker *worker, uint64_t first, uint64_t last)
{
    for (uint64_t n = first; n <= last; n++)
        dlx_worker_set_cell(worker, n, DLX_SHM_CELL_DONE, worker->owner, 1);
}

static uint32_t drop(Dlx__Wire__Packet__BodyCase body, void *message)
{
    return dlx_test_call_for(dlx_served_client, body, message, BODY(RETAINED_DROP_REPLY))
        ->retained_drop_reply->n_dropped;
}

TEST(undone_messages_outlive_their_publisher_until_they_are_done)
{
    struct dlx_test_publisher pub = publish(5, 0, 0);
    struct dlx_worker first;
    dlx_worker_join(&first, dlx_served_client, WORKER("g"));
    finish(&first, 1, 2);
    dlx_worker_set_cell(&first, 3, DLX_SHM_CELL_CLAIMED, first.owner, 1);
    leave(&pub);
    ck_assert_uint_gt(dlx_test_expect(first.sub.fd, BODY(PUBLISHER_GONE))->publisher_gone->link, 0);
    const Dlx__Wire__GroupEntry *group = dlx_worker_listed();
    ck_assert(group->gone && group->declared);
    ck_assert_uint_eq(group->waiting, 2);
    ck_assert_uint_eq(group->in_flight, 1);
    ck_assert_uint_eq(group->done, 2);
    /* The worker leaves, and another one comes. */
    dlx_test_call_ok(dlx_served_client, SUBSCRIPTION_CLOSE(.subscription = first.sub.id));
    dlx_worker_deinit(&first);
    ck_assert_uint_eq(dlx_worker_listed()->n_workers, 0);
    struct dlx_worker second;
    dlx_worker_join(&second, dlx_served_client, WORKER("g"));
    ck_assert_uint_eq(second.owner, 2);
    ck_assert_uint_eq(dlx_test_expect(second.sub.fd, BODY(PUBLISHER_GONE))->publisher_gone->link,
                      second.link);
    finish(&second, 3, 5);
    ck_assert_uint_eq(dlx_worker_listed()->done, 5);
    dlx_test_send(second.sub.fd, LINK_CLOSE(.link = second.link), 0);
    await_end();
    dlx_worker_deinit(&second);
}

/* Nobody has needed a claims page before. */
TEST(messages_of_a_group_without_workers_outlive_their_publisher)
{
    struct dlx_test_publisher pub = publish(7, 0, 0);
    leave(&pub);
    ck_assert_uint_eq(dlx_worker_listed()->waiting, 7);
    auto_worker worker;
    dlx_worker_join(&worker, dlx_served_client, WORKER("g"));
    finish(&worker, 1, 7);
    dlx_test_call_ok(dlx_served_client, SUBSCRIPTION_CLOSE(.subscription = worker.sub.id));
    await_end();
}

TEST(a_publisher_whose_groups_have_done_all_leaves_nothing)
{
    struct dlx_test_publisher pub = publish(3, 0, 0), none = publish(0, 0, 0);
    auto_worker worker;
    dlx_worker_begin(&worker, dlx_served_client, WORKER("g"));
    worker.link = dlx_test_accept_offer(&worker.sub);
    (void)dlx_test_accept_offer(&worker.sub);
    (void)dlx_worker_open(&worker);
    finish(&worker, 1, 3);
    leave(&none);
    leave(&pub);
    await_end();
}

TEST(undone_messages_are_for_workers_of_their_group_alone)
{
    struct dlx_test_publisher pub = publish(3, 0, 0);
    leave(&pub);
    struct dlx_test_subscription ordinary = dlx_served_subscription("t");
    auto_worker other;
    dlx_worker_begin(&other, dlx_served_client, WORKER("h"));
    ck_assert_uint_eq(ordinary.n_offers, 0);
    ck_assert_uint_eq(other.sub.n_offers, 0);
    dlx_test_subscription_deinit(&ordinary);
    ck_assert_uint_eq(drop(GROUPS_DROP(.topic = WIRE_TEXT("t"))), 1);
}

TEST(a_successor_replaces_retained_messages_and_no_undone_ones)
{
    struct dlx_test_publisher pub = publish(3, 1, 0), next = publish(0, 1, 0);
    leave(&pub);
    dlx_worker_publish(&next, 1, 1);
    dlx_test_call_ok(dlx_served_client, BODY(PUBLISHER_RETAINS),
                     WIRE(publisher_retains, .publisher = next.id));
    ck_assert_uint_eq(n_groups(), 2);
    struct dlx_test_subscription ordinary = dlx_served_subscription("t");
    ck_assert_uint_eq(ordinary.n_offers, 1); /* of the next one */
    dlx_test_subscription_deinit(&ordinary);
    auto_worker worker;
    dlx_worker_begin(&worker, dlx_served_client, WORKER("g"));
    ck_assert_uint_eq(worker.sub.n_offers, 2);
    /* Dropping one leaves the other. */
    leave(&next);
    ck_assert_uint_eq(drop(RETAINED_DROP(.topic = WIRE_TEXT("t"))), 1);
    ck_assert_uint_eq(n_groups(), 2);
    ck_assert_uint_eq(drop(GROUPS_DROP(.topic = WIRE_TEXT("t"))), 2);
    ck_assert_uint_eq(n_groups(), 0);
}

TEST(undone_messages_are_dropped_and_retained_ones_stay)
{
    struct dlx_test_publisher pub = publish(3, 2, 0);
    contains(dlx_test_call_error(dlx_served_client, GROUPS_DROP(.topic = WIRE_TEXT("t")),
                                 DLX_E_NOT_FOUND),
             "what groups have not done on t is of publisher");
    leave(&pub);
    ck_assert_uint_eq(drop(GROUPS_DROP(.topic = WIRE_TEXT("t"))), 1);
    contains(dlx_test_call_error(dlx_served_client, GROUPS_DROP(.topic = WIRE_TEXT("t")),
                                 DLX_E_NOT_FOUND),
             "nothing that groups have not done is kept on t");
    ck_assert_uint_eq(n_groups(), 0);
    struct dlx_test_subscription ordinary = dlx_served_subscription("t");
    ck_assert_uint_eq(ordinary.n_offers, 1);
    dlx_test_subscription_deinit(&ordinary);
    auto_worker worker;
    dlx_worker_begin(&worker, dlx_served_client, WORKER("g"));
    ck_assert_uint_eq(worker.sub.n_offers, 0);
    ck_assert_uint_eq(drop(RETAINED_DROP(.topic = WIRE_TEXT("t"))), 1);
    await_end();
}

TEST(undone_messages_end_with_their_time)
{
    struct dlx_test_publisher pub = publish(3, 0, 50000000);
    leave(&pub);
    await_end();
}

/* As of one whose callers are gone when it is. */
TEST(undone_messages_of_a_latched_publisher_end_with_it)
{
    struct dlx_test_publisher publisher;
    Dlx__Wire__PublisherNew request = dlx_test_publisher_request("t");
    char *groups[] = {WIRE_TEXT("g")};
    request.groups = groups;
    request.n_groups = 1;
    request.latched = true;
    dlx_test_publisher_new_from(&publisher, dlx_served_client, &request);
    dlx_test_publisher_ready(&publisher);
    dlx_worker_publish(&publisher, 3, 1);
    ck_assert_uint_eq(dlx_worker_listed()->waiting, 3);
    leave(&publisher);
    await_end();
}

static void publish_and_wait(int sock, const void *userdata)
{
    (void)userdata;
    dlx_served_client = dlx_test_hello(&dlx_served, 10);
    (void)publish(4, 0, 0);
    dlx_test_say(sock);
    dlx_test_hear(sock);
}

TEST(undone_messages_outlive_a_killed_publisher)
{
    struct dlx_test_part part = dlx_test_part_begin(publish_and_wait, NULL);
    dlx_test_hear(part.sock);
    auto_worker worker;
    dlx_worker_join(&worker, dlx_served_client, WORKER("g"));
    dlx_test_part_kill(&part);
    ck_assert_uint_eq(dlx_test_expect(worker.sub.fd, BODY(PUBLISHER_GONE))->publisher_gone->link,
                      worker.link);
    ck_assert_uint_eq(dlx_worker_listed()->waiting, 4);
    auto_worker late;
    dlx_worker_join(&late, dlx_served_client, WORKER("g"));
    ck_assert_uint_eq(late.owner, 2);
    finish(&worker, 1, 4);
    dlx_test_call_ok(dlx_served_client, SUBSCRIPTION_CLOSE(.subscription = worker.sub.id));
    await_end();
}

TEST(undone_messages_end_with_the_last_one_of_a_worker_that_has_left)
{
    struct dlx_test_publisher pub = publish(2, 0, 0);
    auto_worker worker;
    dlx_worker_join(&worker, dlx_served_client, WORKER("g"));
    dlx_worker_set_cell(&worker, 1, DLX_SHM_CELL_CLAIMED, worker.owner, 1);
    leave(&pub);
    dlx_test_call_ok(dlx_served_client, SUBSCRIPTION_CLOSE(.subscription = worker.sub.id));
    ck_assert_uint_eq(dlx_worker_listed()->in_flight, 1);
    finish(&worker, 1, 2);
    await_end();
}

int main(void)
{
    return dlx_test_run_case(dlx_served_case("queues"));
}
