/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/users/user.h"
#include "common/error.h"
#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* What an amount is of. */
static const char *const resource_names[DLXD_N_RESOURCES] = {
    [DLXD_BYTES] = "of shared memory",
    [DLXD_CONNECTIONS] = "connections",
    [DLXD_OBJECTS] = "publishers and subscriptions",
    [DLXD_LINKS] = "links",
    [DLXD_PATTERNS] = "subscriptions to patterns",
    [DLXD_WAITING] = "links that wait for their publishers",
    [DLXD_FAILED] = "failed links that it was not told of",
    [DLXD_GPU_CALLS] = "calls that wait for the GPU keeper",
    [DLXD_IN_FLIGHT] = "file descriptors on their way",
    [DLXD_DESCRIPTORS] = "file descriptors of the daemon",
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
    dlxd_quota_defaults(users->max, ram_bytes);
    users->quotas_borrow = NULL;
    users->all_descriptors = 0;
    users->all_descriptors_max = UINT64_MAX;
    users->all_in_flight = 0;
    users->all_in_flight_max = UINT64_MAX;
}

void dlxd_users_set_quotas(struct dlxd_users *users, const struct dlxd_quotas *quotas,
                           uint64_t memory_bytes)
{
    const struct dlxd_quota *first = dlxd_quotas_find(quotas, DLXD_QUOTA_DEFAULT);
    users->all_bytes_max = memory_bytes / 4 * 3;
    dlxd_quota_defaults(users->max, memory_bytes);
    if (first)
        memcpy(users->max, first->max, sizeof users->max);
    users->quotas_borrow = quotas;
    dlx_for_each (it, &users->users) {
        struct dlxd_user *user = dlxd_container_of(it, struct dlxd_user, node);
        user->quota_borrow = dlxd_quotas_of_socket(quotas, user->socket);
    }
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
        if (user->uid == principal->uid && strcmp(user->socket, principal->socket) == 0) {
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
    memcpy(user->socket, principal->socket, sizeof user->socket);
    user->quota_borrow = dlxd_quotas_of_socket(users->quotas_borrow, user->socket);
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

static uint64_t max_of(const struct dlxd_user *user, enum dlxd_resource resource)
{
    return user->quota_borrow ? user->quota_borrow->max[resource] : user->users->max[resource];
}

/* What all users together use and may have, and how many times what is left one of them may have. */
struct pool {
    uint64_t used, max, share;
};

static struct pool pool_of(const struct dlxd_users *users, enum dlxd_resource resource)
{
    switch (resource) {
    case DLXD_BYTES:
        return (struct pool){users->all_bytes, users->all_bytes_max, DLXD_BYTES_SHARE};
    case DLXD_IN_FLIGHT:
        return (struct pool){users->all_in_flight, users->all_in_flight_max, DLXD_IN_FLIGHT_SHARE};
    case DLXD_DESCRIPTORS:
        return (struct pool){users->all_descriptors, users->all_descriptors_max,
                             DLXD_DESCRIPTORS_SHARE};
    default:
        return (struct pool){.max = UINT64_MAX};
    }
}

uint64_t dlxd_user_limit(const struct dlxd_user *user, enum dlxd_resource resource)
{
    uint64_t used = user->used[resource], max = max_of(user, resource);
    struct pool pool = pool_of(user->users, resource);
    if (pool.max == UINT64_MAX)
        return max;
    /* The most of which a part of 1 / share is left for others, as check_share() says. */
    uint64_t all = left_of(pool.used, pool.max) + used;
    uint64_t fair =
        all / (pool.share + 1) * pool.share + DLX_MIN(all % (pool.share + 1), pool.share - 1);
    return DLX_MIN(max, fair);
}

/* " (quota bytes)", " (quota bytes of class pods)". */
#define KEY_SIZE 300
static const char *key_text(const struct dlxd_user *user, enum dlxd_resource resource,
                            char text[KEY_SIZE])
{
    const struct dlxd_quota *quota = user->quota_borrow;
    (void)snprintf(text, KEY_SIZE, " (quota %s%s%.200s)", dlxd_quota_key(resource),
                   quota ? " of class " : "", quota ? quota->name : "");
    return text;
}

/* "uid 7 asks for 1.0 GiB of shared memory, uses 1.5 GiB and may have", and what `fmt` says. */
static dlx_printf(4, 5) int fail_limit(const struct dlxd_user *user, enum dlxd_resource resource,
                                       uint64_t amount, const char *fmt, ...)
{
    char who[DLXD_PRINCIPAL_TEXT_SIZE], key[KEY_SIZE], limit[256];
    char asked[DLXD_AMOUNT_SIZE], used[DLXD_AMOUNT_SIZE];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(limit, sizeof limit, fmt, ap);
    va_end(ap);
    return dlx__fail(DLX_E_LIMIT, "%s asks for %s %s, uses %s and may have %s%s",
                     dlxd_principal_text(user->uid, user->socket, who),
                     dlxd_quota_amount(resource, amount, asked), resource_names[resource],
                     dlxd_quota_amount(resource, user->used[resource], used), limit,
                     key_text(user, resource, key));
}

static int check_max(const struct dlxd_user *user, enum dlxd_resource resource, uint64_t amount)
{
    uint64_t used = user->used[resource], max = max_of(user, resource);
    char text[DLXD_AMOUNT_SIZE];
    if (amount == 0 || (amount <= max && used <= max - amount)) /* it may be above a lowered one */
        return 0;
    return fail_limit(user, resource, amount, "%s", dlxd_quota_amount(resource, max, text));
}

/* What all users together may have of it, they also share. */
static int check_share(const struct dlxd_user *user, enum dlxd_resource resource, uint64_t amount,
                       uint64_t least_left)
{
    struct pool pool = pool_of(user->users, resource);
    uint64_t left = left_of(pool.used, pool.max);
    char used[DLXD_AMOUNT_SIZE], max[DLXD_AMOUNT_SIZE];
    if (amount <= left && least_left <= left - amount)
        return 0;
    return fail_limit(user, resource, amount,
                      "at most %" PRIu64 " times what is left: all users together use %s and may "
                      "have %s",
                      pool.share, dlxd_quota_amount(resource, pool.used, used),
                      dlxd_quota_amount(resource, pool.max, max));
}

/* `for_what` needs so many. */
static int check_descriptors(const struct dlxd_user *user, enum dlxd_resource for_what, uint64_t n)
{
    if (n == 0)
        return 0;
    uint64_t least = (user->used[DLXD_DESCRIPTORS] + n) / DLXD_DESCRIPTORS_SHARE;
    /* Whoever has its share may still come to look at what uses it, while enough is left for
     * others. */
    if (for_what == DLXD_CONNECTIONS)
        least = DLX_MIN(least, user->users->all_descriptors_max / 64);
    int r = check_max(user, DLXD_DESCRIPTORS, n);
    return r < 0 ? r : check_share(user, DLXD_DESCRIPTORS, n, least);
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

static int check_shares(const struct dlxd_user *user, enum dlxd_resource resource, uint64_t amount)
{
    uint64_t share = pool_of(user->users, resource).share;
    if (amount == 0 || share == 0)
        return 0;
    return check_share(user, resource, amount, (user->used[resource] + amount) / share);
}

int dlxd_charge_init(struct dlxd_charge *charge, struct dlxd_user *user,
                     enum dlxd_resource resource, uint64_t amount)
{
    struct dlxd_users *users = user->users;
    assert(!charge->user);
    uint64_t n = descriptors[resource] * (resource == DLXD_BYTES ? 1 : amount);
    int r = check_max(user, resource, amount);
    if (r == 0)
        r = check_descriptors(user, resource, n);
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
