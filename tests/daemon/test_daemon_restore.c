/* SPDX-License-Identifier: Apache-2.0 */
/* What is restored of a publisher's groups, in whatever order the descriptors of a former daemon
 * come. */
#include "common/memory.h"
#include "daemon/memory/membership.h"
#include "daemon/objects/group.h"
#include "daemon/objects/publisher_state.h"
#include "daemon/persist/handover.h"
#include "daemon/persist/restore.h"
#include "daemon/objects/registry.h"
#include "daemon/persist/store.h"
#include "ring/layout.h"
#include "tests/daemon/harness_scene.h"
#include "tests/harness/fds.h"

enum { N_GROUPS = 3 };
static char *names[N_GROUPS] = {"g", "h", "i"};

/* Of a publisher that has left, with a message that no group has done. */
static void leave_groups(void)
{
    struct dlxd_publisher *publisher = dlx_test_broker_publisher(
        dlx_scene_client(0, 10), "t",
        PUBLISHER_CONFIG(.history = 1, .retain = 1, .n_groups = N_GROUPS), 1);
    ok(dlxd_groups_declare(publisher, names));
    ck_assert(dlxd_publisher_end(publisher));
}

static struct dlxd_publisher *only_publisher(void)
{
    struct dlxd_topic *topic = dlxd_registry_find(&dlx_scene.broker.registry, "t");
    ck_assert_ptr_nonnull(topic);
    return dlxd_container_of(topic->publishers.next, struct dlxd_publisher, by_topic);
}

/* The descriptors, which are this test's then, in the reverse of their order. */
static void hand_over(struct dlxd_manager_fds *ret)
{
    struct dlxd_handover handover;
    char text[64];
    dlxd_handover_init(&handover);
    ok(dlxd_store_hand_over(&dlx_scene.broker, &handover));
    ok(dlxd_handover_write(&handover));
    (void)snprintf(text, sizeof text, "%d:%d", (int)getpid(), dlx_test_fds_dup(handover.fd));
    ck_assert_int_eq(setenv(DLXD_HANDOVER_VARIABLE, text, 1), 0);
    ok(dlxd_manager_fds_init(ret));
    for (size_t i = 0; i < ret->n; i++)
        ret->fds[i].fd = dlx_test_fds_dup(ret->fds[i].fd);
    for (size_t i = 0; i < ret->n / 2; i++) {
        struct dlxd_manager_fd first = ret->fds[i];
        ret->fds[i] = ret->fds[ret->n - 1 - i];
        ret->fds[ret->n - 1 - i] = first;
    }
    dlxd_handover_deinit(&handover);
}

/* What the record says of the groups. */
static void restart_with(uint32_t n_groups)
{
    struct dlxd_manager_fds manager_fds;
    leave_groups();
    only_publisher()->config.n_groups = n_groups;
    hand_over(&manager_fds);
    dlxd_publisher_vanish(only_publisher());
    ck_assert_ptr_null(dlxd_registry_find(&dlx_scene.broker.registry, "t"));
    dlxd_restore_handed_over(&dlx_scene.broker, &manager_fds);
    dlxd_manager_fds_deinit(&manager_fds);
}

static void restart(void)
{
    restart_with(N_GROUPS);
}

/* A former daemon could not restore them, and not drop them either. */
TEST(groups_that_were_said_to_be_lost_stay_lost)
{
    restart_with(0);
    ck_assert(dlxd_list_empty(&only_publisher()->groups));
    ck_assert_uint_eq(only_publisher()->config.n_groups, 0);
}

TEST(groups_are_restored_in_the_order_of_their_numbers)
{
    uint32_t n = 0;
    restart();
    dlx_for_each (it, &only_publisher()->groups) {
        const struct dlxd_group *group = dlxd_container_of(it, struct dlxd_group, node);
        ck_assert_str_eq(group->name, names[n]);
        ck_assert_uint_eq(group->number, ++n);
    }
    ck_assert_uint_eq(n, N_GROUPS);
}

/* There is no rule, and the text names none. */
TEST(a_restored_group_names_its_publisher_to_workers_of_other_users)
{
    int sock;
    restart();
    const struct dlxd_subscription *s = dlx_scene_subscription(
        dlx_scene_client(1, 10), "t",
        SUBSCRIPTION_CONFIG(.max_held = 1, .group = "h", .max_attempts = 5), &sock);
    fails(dlxd_group_check(s, only_publisher()), DLX_E_ACCESS, "(pid ");
    ck_assert_ptr_nonnull(strstr(dlx__error_message(), "declared it, and its workers are of uid "));
}

/* One at its limits could keep all others from a new daemon. */
TEST(groups_of_a_user_without_room_are_handed_over)
{
    dlx_scene.broker.users.max[DLXD_BYTES] = dlx_shm_control_size(256) + dlxd_membership_size();
    restart();
    const struct dlxd_publisher *publisher = only_publisher();
    ck_assert_uint_eq(publisher->config.n_groups, N_GROUPS);
    ck_assert_uint_eq(publisher->user->used[DLXD_BYTES],
                      dlx_shm_control_size(256) + N_GROUPS * dlx_shm_claims_size(256));
}

/* Returns whether there was one. */
static bool read_one(int sock, char text[512])
{
    ssize_t n = recv(sock, text, 511, 0); /* without its descriptors */
    text[DLX_MAX(n, 0)] = '\0';
    return n >= 0;
}

/* The manager takes no more than it has room for, and says nothing. */
TEST(entries_to_forget_make_room_for_what_is_handed_over)
{
    struct dlxd_manager_fds manager_fds;
    char name[64], text[512];
    size_t n_dropped = 0, n_kept = 0;
    (void)snprintf(name, sizeof name, "@dlx-restore-%d", (int)getpid());
    int sock = dlx_scene_keep(dlx_test_fds_bind(name, SOCK_DGRAM | SOCK_NONBLOCK));
    ck_assert_int_eq(setenv("NOTIFY_SOCKET", name, 1), 0);
    leave_groups();
    hand_over(&manager_fds);
    dlxd_publisher_vanish(only_publisher());
    manager_fds.fds = realloc(manager_fds.fds, (manager_fds.n + 1) * sizeof *manager_fds.fds);
    ck_assert_ptr_nonnull(manager_fds.fds);
    manager_fds.fds[manager_fds.n++] =
        (struct dlxd_manager_fd){.fd = -1, .name = strdup("dlx-region-77-0-0")};
    ok(dlxd_store_init(&dlx_scene.broker, 100, &manager_fds));
    dlxd_manager_fds_deinit(&manager_fds);
    while (read_one(sock, text)) {
        n_dropped += strstr(text, "FDSTOREREMOVE=1") != NULL;
        n_kept += strstr(text, "FDSTORE=1") && !strstr(text, "dlx-ledger-");
        ck_assert(n_kept == 0 || n_dropped == 1);
    }
    ck_assert_uint_eq(n_kept, 1 + 2 * N_GROUPS);
}

static void end(void)
{
    dlxd_store_deinit(&dlx_scene.broker);
    dlxd_retained_clear(&dlx_scene.broker);
}

int main(void)
{
    TCase *tcase = dlx_scene_case("restore", NULL);
    tcase_add_checked_fixture(tcase, NULL, end);
    return dlx_test_run_case(tcase);
}
