/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/users/user.h"
#include "common/error.h"
#include <assert.h>
#include <inttypes.h>

static const char *const resource_names[DLXD_N_RESOURCES] = {
    [DLXD_BYTES] = "bytes of shared memory",
    [DLXD_CONNECTIONS] = "connections",
    [DLXD_OBJECTS] = "publishers and subscriptions",
    [DLXD_LINKS] = "links",
    [DLXD_PATTERNS] = "subscriptions to patterns",
    [DLXD_WAITING] = "links that wait for their publishers",
    [DLXD_DESCRIPTORS] = "file descriptors",
    [DLXD_FAILED] = "failed links that it was not told of",
    [DLXD_GPU_CALLS] = "calls that wait for the GPU keeper",
    [DLXD_IN_FLIGHT] = "file descriptors on their way",
};

/* That one of it costs; of shared memory, each region. */
static const uint64_t descriptors[DLXD_N_RESOURCES] = {
    [DLXD_BYTES] = 1,       /* the region */
    [DLXD_CONNECTIONS] = 2, /* socket and pidfd */
    [DLXD_OBJECTS] = 1,     /* link socket, or subscription socket */
    [DLXD_WAITING] = 3,     /* page, bell and pidfd */
    [DLXD_GPU_CALLS] = 2,   /* both ends of a socket */
};

void dlxd_users_init(struct dlxd_users *users, uint64_t ram_bytes)
{
    dlxd_list_init(&users->users);
    dlxd_list_init(&users->working);
    users->all_bytes = 0;
    users->all_bytes_max = ram_bytes / 4 * 3;
    users->max[DLXD_BYTES] = ram_bytes / 2;
    users->max[DLXD_CONNECTIONS] = 4096;
    users->max[DLXD_OBJECTS] = 65536;
    users->max[DLXD_LINKS] = 65536;
    users->max[DLXD_PATTERNS] = 1024;
    users->max[DLXD_WAITING] = 2048;
    users->max[DLXD_FAILED] = 16384;
    users->max[DLXD_GPU_CALLS] = 1024;
    users->all_descriptors = 0;
    users->all_descriptors_max = UINT64_MAX;
    users->max[DLXD_IN_FLIGHT] = UINT64_MAX;
    users->all_in_flight = 0;
    users->all_in_flight_max = UINT64_MAX;
}

void dlxd_users_deinit(struct dlxd_users *users)
{
    assert(dlxd_list_empty(&users->users));
    assert(users->all_bytes == 0 && users->all_descriptors == 0 && users->all_in_flight == 0);
    (void)users;
}

int dlxd_users_get(struct dlxd_users *users, const struct dlxd_principal *principal,
                   struct dlxd_user **ret)
{
    dlx_for_each (it, &users->users) {
        struct dlxd_user *user = dlxd_container_of(it, struct dlxd_user, node);
        if (user->uid == principal->uid && user->socket == principal->socket) {
            *ret = dlxd_user_ref(user);
            return 0;
        }
    }
    struct dlxd_user *user = calloc(1, sizeof *user);
    if (!user)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for uid %u", (unsigned)principal->uid);
    user->users = users;
    user->n_refs = 1;
    user->uid = principal->uid;
    user->socket = principal->socket;
    dlxd_list_init(&user->tasks);
    dlxd_list_init(&user->working);
    dlxd_list_init(&user->membership_pages);
    dlxd_drains_init(&user->drains);
    dlxd_list_init(&user->end_drains.node);
    dlxd_list_init(&user->flights);
    dlxd_list_push_back(&users->users, &user->node);
    *ret = user;
    return 0;
}

struct dlxd_user *dlxd_user_ref(struct dlxd_user *user)
{
    user->n_refs++;
    return user;
}

struct dlxd_user *dlxd_user_unref(struct dlxd_user *user)
{
    if (user && --user->n_refs == 0) {
        for (int i = 0; i < DLXD_N_RESOURCES; i++)
            assert(user->used[i] == 0);
        assert(dlxd_list_empty(&user->membership_pages));
        assert(dlxd_list_empty(&user->tasks));
        assert(dlxd_list_empty(&user->flights));
        dlxd_list_remove(&user->working);
        dlxd_list_remove(&user->node);
        free(user);
    }
    return NULL;
}

/* Charges that move may go beyond a limit. */
static uint64_t left_of(uint64_t all, uint64_t max)
{
    return max - DLX_MIN(all, max);
}

static int check_descriptors(const struct dlxd_user *user, enum dlxd_resource resource, uint64_t n)
{
    const struct dlxd_users *users = user->users;
    uint64_t used = user->used[DLXD_DESCRIPTORS];
    uint64_t left = left_of(users->all_descriptors, users->all_descriptors_max);
    if (n == 0)
        return 0;
    /* Whoever has its share may still come to look at what uses it, while enough is left for
     * others. */
    uint64_t least = resource == DLXD_CONNECTIONS ? DLX_MIN((used + n) / DLXD_DESCRIPTORS_SHARE,
                                                            users->all_descriptors_max / 64)
                                                  : (used + n) / DLXD_DESCRIPTORS_SHARE;
    if (n <= left && least <= left - n)
        return 0;
    return dlx__fail(DLX_E_LIMIT,
                     "uid %u asks for %" PRIu64 " file descriptors of the daemon, uses %" PRIu64
                     " and may have at most %u times what is left: %" PRIu64 " of %" PRIu64,
                     (unsigned)user->uid, n, used, DLXD_DESCRIPTORS_SHARE, left,
                     users->all_descriptors_max);
}

static void charge_to(struct dlxd_charge *charge, struct dlxd_user *user)
{
    user->used[charge->resource] += charge->amount;
    user->used[DLXD_DESCRIPTORS] += charge->n_descriptors;
    charge->user = dlxd_user_ref(user);
}

static void uncharge(struct dlxd_charge *charge)
{
    struct dlxd_user *user = charge->user;
    assert(user->used[charge->resource] >= charge->amount);
    user->used[charge->resource] -= charge->amount;
    user->used[DLXD_DESCRIPTORS] -= charge->n_descriptors;
    charge->user = dlxd_user_unref(user);
}

/* A resource of which all users together use `all` and may have `all_max`. */
static int check_share(const struct dlxd_user *user, enum dlxd_resource resource, uint64_t amount,
                       uint64_t share, uint64_t all, uint64_t all_max)
{
    uint64_t used = user->used[resource];
    uint64_t left = left_of(all, all_max);
    if (amount == 0 || (amount <= left && (used + amount) / share <= left - amount))
        return 0;
    return dlx__fail(
        DLX_E_LIMIT,
        "uid %u asks for %" PRIu64 " %s, uses %" PRIu64 " and may have at most %" PRIu64
        " times what is left: all users together use %" PRIu64 " and may have %" PRIu64,
        (unsigned)user->uid, amount, resource_names[resource], used, share, all, all_max);
}

static int check_shares(const struct dlxd_user *user, enum dlxd_resource resource, uint64_t amount)
{
    const struct dlxd_users *users = user->users;
    if (resource == DLXD_BYTES)
        return check_share(user, resource, amount, DLXD_BYTES_SHARE, users->all_bytes,
                           users->all_bytes_max);
    if (resource == DLXD_IN_FLIGHT)
        return check_share(user, resource, amount, DLXD_IN_FLIGHT_SHARE, users->all_in_flight,
                           users->all_in_flight_max);
    return 0;
}

int dlxd_charge_init(struct dlxd_charge *charge, struct dlxd_user *user,
                     enum dlxd_resource resource, uint64_t amount)
{
    struct dlxd_users *users = user->users;
    uint64_t used = user->used[resource];
    uint64_t max = users->max[resource];

    assert(!charge->user);
    if (amount > max || used > max - amount)
        return dlx__fail(DLX_E_LIMIT,
                         "uid %u asks for %" PRIu64 " %s, uses %" PRIu64 " and may have %" PRIu64,
                         (unsigned)user->uid, amount, resource_names[resource], used, max);
    uint64_t n = descriptors[resource] * (resource == DLXD_BYTES ? 1 : amount);
    int r = check_descriptors(user, resource, n);
    if (r == 0)
        r = check_shares(user, resource, amount);
    if (r < 0)
        return r;
    users->all_descriptors += n;
    users->all_bytes += resource == DLXD_BYTES ? amount : 0;
    users->all_in_flight += resource == DLXD_IN_FLIGHT ? amount : 0;
    *charge = (struct dlxd_charge){.resource = resource, .amount = amount, .n_descriptors = n};
    charge_to(charge, user);
    return 0;
}

void dlxd_charge_move(struct dlxd_charge *charge, struct dlxd_user *to)
{
    if (charge->user == to)
        return;
    uncharge(charge);
    charge_to(charge, to);
}

void dlxd_charge_add_descriptor(struct dlxd_charge *charge)
{
    charge->n_descriptors++;
    charge->user->used[DLXD_DESCRIPTORS]++;
    charge->user->users->all_descriptors++;
}

void dlxd_charge_close_descriptors(struct dlxd_charge *charge)
{
    if (!charge->user)
        return;
    charge->user->used[DLXD_DESCRIPTORS] -= charge->n_descriptors;
    charge->user->users->all_descriptors -= charge->n_descriptors;
    charge->n_descriptors = 0;
}

void dlxd_charge_deinit(struct dlxd_charge *charge)
{
    if (!charge->user)
        return;
    dlxd_charge_close_descriptors(charge);
    if (charge->resource == DLXD_BYTES)
        charge->user->users->all_bytes -= charge->amount;
    if (charge->resource == DLXD_IN_FLIGHT)
        charge->user->users->all_in_flight -= charge->amount;
    uncharge(charge);
    charge->amount = 0;
}
