/* SPDX-License-Identifier: Apache-2.0 */
/* What groups of workers cost, and who pays. Who may be in one, and what a worker gets, tells
 * e2e_daemon_groups. */
#include "daemon/objects/group.h"
#include "ring/layout.h"
#include "tests/daemon/harness_scene.h"

#define WORKER(name) SUBSCRIPTION_CONFIG(.max_held = 1, .group = name, .max_attempts = 5)

static struct dlxd_client *writer, *reader;
static struct dlx_shm_link *last_page; /* of the worker that joined last */

/* Of two users. */
static void set_up(void)
{
    writer = dlx_scene_client(0, 100);
    reader = dlx_scene_client(1, 100);
    writer->principal->minor = reader->principal->minor = DLX_PROTO_MINOR;
    int link_sock;
    (void)dlx_scene_publisher_linked(writer, "t", &link_sock);
}

/* A worker whose LinkReady is on its way. */
static struct dlxd_subscription *begin_joining(const struct dlxd_subscription_config *config,
                                               int *ret_sock)
{
    struct dlxd_subscription *s = dlx_scene_subscription(reader, "t", config, ret_sock);
    ck_assert_uint_eq(dlx_scene_subscribed(s), 1);
    dlxd_broker_settle(&dlx_scene.broker);
    /* It will take nothing, so that its link does not drain. */
    last_page = dlx_scene_accept(*ret_sock, dlx_scene_expect(*ret_sock, BODY(LINK_OFFER)));
    dlx_store64_sc(&last_page->cursor, DLX_SHM_CURSOR_CLOSED);
    return s;
}

static struct dlxd_subscription *join(const char *group)
{
    struct dlxd_subscription_config config = *WORKER("");
    int sock;
    (void)snprintf(config.group, sizeof config.group, "%s", group);
    struct dlxd_subscription *s = begin_joining(&config, &sock);
    dlx_test_broker_run(&dlx_scene);
    (void)dlx_scene_expect(sock, BODY(LINK_OPEN));
    dlx_scene_close_received();
    dlx_scene_look();
    return s;
}

static void leave(struct dlxd_subscription *s)
{
    dlxd_subscription_free(s);
    dlxd_broker_settle(&dlx_scene.broker);
    dlx_scene_look();
}

static uint64_t used(enum dlxd_resource resource)
{
    return reader->user->used[resource];
}

TEST(a_claims_page_and_its_bell_are_charged_to_the_workers_user_until_the_group_ends)
{
    const uint64_t writers = writer->user->used[DLXD_BYTES];
    const uint64_t bytes = used(DLXD_BYTES), descriptors = used(DLXD_DESCRIPTORS);
    struct dlxd_subscription *first = join("g");
    const uint64_t of_link = dlx_shm_link_size(1), of_group = dlx_shm_claims_size(256);
    ck_assert_uint_eq(used(DLXD_BYTES), bytes + of_link + of_group);
    const uint64_t of_first = used(DLXD_DESCRIPTORS);
    struct dlxd_subscription *second = join("g");
    ck_assert_uint_eq(used(DLXD_BYTES), bytes + 2 * of_link + of_group);
    const uint64_t of_second = used(DLXD_DESCRIPTORS) - of_first;
    ck_assert_uint_eq(of_first - descriptors, of_second + 2);
    struct dlxd_subscription *other = join("h");
    ck_assert_uint_eq(used(DLXD_BYTES), bytes + 3 * of_link + 2 * of_group);
    leave(first);
    leave(other);
    ck_assert_uint_eq(used(DLXD_BYTES), bytes + of_link + of_group);
    leave(second);
    ck_assert_uint_eq(used(DLXD_BYTES), bytes);
    ck_assert_uint_eq(used(DLXD_DESCRIPTORS), descriptors);
    ck_assert_uint_eq(writer->user->used[DLXD_BYTES], writers);
}

TEST(a_worker_is_told_that_its_user_has_no_room_for_a_claims_page)
{
    int sock;
    struct dlxd_subscription *s = begin_joining(WORKER("g"), &sock);
    dlx_scene.broker.users.max[DLXD_BYTES] = used(DLXD_BYTES) + dlx_shm_claims_size(256) - 1;
    dlx_test_broker_run(&dlx_scene);
    const Dlx__Wire__LinkFailed *failed = dlx_scene_expect(sock, BODY(LINK_FAILED))->link_failed;
    ck_assert_int_eq(failed->code, DLX_E_LIMIT);
    contains(failed->text, "claims page of group g of t: ");
    contains(failed->text, "asks for 4.0 KiB of shared memory");
    leave(s);
}

/* It has two descriptors more than another link. */
TEST(a_link_of_a_worker_counts_twice_in_its_client_while_it_holds_something)
{
    reader->max_links = 5;
    struct dlxd_subscription *first = join("g"), *second = join("g");
    ck_assert_uint_eq(reader->n_links, 4);
    ck_assert_uint_eq(writer->n_links, 2);
    dlx_store64_sc(&last_page->hold[0], 7);
    leave(second);
    int sock;
    struct dlxd_subscription *third = dlx_scene_subscription(reader, "t", WORKER("g"), &sock);
    ck_assert_uint_eq(dlx_scene_subscribed(third), 1);
    dlxd_broker_settle(&dlx_scene.broker);
    const Dlx__Wire__LinkFailed *failed = dlx_scene_expect(sock, BODY(LINK_FAILED))->link_failed;
    ck_assert_int_eq(failed->code, DLX_E_LIMIT);
    contains(failed->text, "4 links, those of a group's worker counted twice (limit 5");
    contains(failed->text, "1 closed subscriptions still hold messages");
    leave(third);
    dlx_store64_sc(&last_page->hold[0], 0);
    leave(join("g"));
    ck_assert_uint_eq(reader->n_links, 2);
    leave(first);
    ck_assert_uint_eq(reader->n_links, 0);
}

int main(void)
{
    return dlx_test_run_case(dlx_scene_case("groups", set_up));
}
