/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/daemon/harness_users.h"

struct dlxd_users dlx_users;

static struct dlxd_user *got[16];
static size_t n_got;
static struct dlxd_charge charges[1024];
static size_t n_charges;

struct dlxd_user *dlx_users_get(struct dlxd_users *users, uid_t uid, const char *socket)
{
    struct dlxd_principal who = {.uid = uid};
    (void)snprintf(who.socket, sizeof who.socket, "%s", socket);
    ck_assert_uint_lt(n_got, DLX_ARRAY_SIZE(got));
    ok(dlxd_users_get(users, &who, &got[n_got]));
    return got[n_got++];
}

struct dlxd_charge *dlx_users_charge(struct dlxd_user *user, enum dlxd_resource resource,
                                     uint64_t amount)
{
    ck_assert_uint_lt(n_charges, DLX_ARRAY_SIZE(charges));
    ok(dlxd_charge_init(&charges[n_charges], user, resource, amount));
    return &charges[n_charges++];
}

const char *dlx_users_refused(struct dlxd_user *user, enum dlxd_resource resource, uint64_t amount)
{
    struct dlxd_charge charge = {.user = NULL};
    ck_assert_int_eq(dlxd_charge_init(&charge, user, resource, amount), DLX_E_LIMIT);
    return dlx__error_message();
}

static void give_back(void)
{
    while (n_charges > 0)
        dlxd_charge_deinit(&charges[--n_charges]);
}

void dlx_users_release(void)
{
    give_back();
    while (n_got > 0)
        ck_assert_ptr_null(dlxd_user_unref(got[--n_got]));
}

static void begin(void)
{
    dlxd_users_init(&dlx_users, 2 * DLX_USERS_BYTES);
}

static void end(void)
{
    give_back();
    dlx_for_each (it, &dlx_users.users) {
        const struct dlxd_user *user = dlxd_container_of(it, struct dlxd_user, node);
        for (int i = 0; i < DLXD_N_RESOURCES; i++)
            ck_assert_msg(user->used[i] == 0, "uid %u, resource %d", (unsigned)user->uid, i);
    }
    dlx_users_release();
    ck_assert_uint_eq(dlx_users.all_bytes, 0);
    ck_assert_uint_eq(dlx_users.all_descriptors, 0);
    ck_assert(dlxd_list_empty(&dlx_users.users));
    dlxd_users_deinit(&dlx_users);
}

TCase *dlx_users_case(const char *name)
{
    TCase *tcase = tcase_create(name);
    tcase_add_checked_fixture(tcase, begin, end);
    return tcase;
}
