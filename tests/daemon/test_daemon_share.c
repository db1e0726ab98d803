/* SPDX-License-Identifier: Apache-2.0 */
/* However many links of a publisher one user takes, others get some. */
#include "daemon/users/share.h"
#include "daemon/objects/publisher_state.h"
#include "tests/daemon/harness_scene.h"

enum { WRITER, GREEDY, HONEST, N_USERS };
enum { MAX_LINKS = 64, FAIR = 48, MANY = 200 };

static struct dlxd_client *clients[N_USERS];
static struct dlxd_publisher *publisher;
static struct dlxd_subscription *subscriptions[MANY];
static uint32_t n_subscriptions;

/* Each of another user. Only the writer's process can bear few links. */
static void set_up(void)
{
    for (uint32_t i = 0; i < N_USERS; i++)
        clients[i] = dlx_scene_client(i, i == WRITER ? MAX_LINKS : 100000);
    publisher = dlx_scene_publisher(clients[WRITER], "t");
    n_subscriptions = 0;
}

/* Returns 0, or why the link failed. */
static int subscribe(int user)
{
    int sock;
    ck_assert_uint_lt(n_subscriptions, MANY);
    struct dlxd_subscription *subscription =
        dlx_scene_subscription(clients[user], "t", NULL, &sock);
    (void)dlx_scene_subscribed(subscription);
    dlxd_task_stop(&subscription->task);
    const struct dlxd_link *link = dlx_scene_link(subscription);
    int r = link->state == DLXD_LINK_FAILED ? link->fail_code : 0;
    if (r == 0) {
        subscriptions[n_subscriptions++] = subscription;
        return 0;
    }
    ck_assert_msg(strstr(link->fail_text, "3 times what is left") ||
                      strstr(link->fail_text, "has 64 links (limit 64, by its"),
                  "%s", link->fail_text);
    dlxd_subscription_free(subscription);
    return r;
}

static uint32_t subscribe_often(int user)
{
    uint32_t n = 0;
    int r;
    while ((r = subscribe(user)) == 0)
        n++;
    ck_assert_int_eq(r, DLX_E_LIMIT);
    return n;
}

TEST(a_user_leaves_links_of_anothers_publisher_for_the_next)
{
    ck_assert_uint_eq(subscribe_often(GREEDY), FAIR); /* 48 is 3 times 16 */
    ck_assert_uint_eq(subscribe_often(HONEST), 12);
    ck_assert_uint_eq(subscribe_often(WRITER), 2); /* both ends of each */
    ck_assert_uint_eq(clients[WRITER]->n_links, MAX_LINKS);
}

TEST(a_user_may_have_all_links_of_its_own_publisher)
{
    ck_assert_uint_eq(subscribe_often(WRITER), MAX_LINKS / 2); /* both ends of each */
}

TEST(links_that_end_are_given_back_to_the_share)
{
    for (int round = 0; round < 3; round++) {
        uint32_t n = subscribe_often(GREEDY);
        ck_assert_uint_eq(n, FAIR);
        ck_assert_uint_eq(dlxd_share_of(&clients[WRITER]->shares, clients[GREEDY]->user), n);
        while (n_subscriptions > 0)
            dlxd_subscription_free(subscriptions[--n_subscriptions]);
        ck_assert_uint_eq(dlxd_share_of(&clients[WRITER]->shares, clients[GREEDY]->user), 0);
        ck_assert(dlxd_list_empty(&clients[WRITER]->shares));
    }
}

/* Its retained messages have no client whose links could be used up. */
TEST(a_publisher_that_leaves_its_client_takes_its_links_out_of_the_shares)
{
    ck_assert_uint_eq(subscribe_often(GREEDY), FAIR);
    (void)dlxd_publisher_end(publisher);
    ck_assert(dlxd_list_empty(&clients[WRITER]->shares));
    ck_assert_uint_eq(clients[WRITER]->n_links, 0);
}

int main(void)
{
    return dlx_test_run_case(dlx_scene_case("share", set_up));
}
