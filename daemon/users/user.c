/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/users/user.h"
#include "common/error.h"
#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The units of amounts in errors. */
static const char *const resource_names[DLXD_N_RESOURCES] = {
    [DLXD_BYTES] = "of shared memory",
    [DLXD_RETAINED_BYTES] = "of memory that stays when its publisher has gone",
    [DLXD_STORE_ENTRIES] = "file descriptors that the service manager keeps",
    [DLXD_CONNECTIONS] = "connections",
    [DLXD_REQUESTS] = "requests per second",
    [DLXD_OBJECTS] = "publishers and subscriptions",
    [DLXD_LINKS] = "links",
    [DLXD_PATTERNS] = "subscriptions to patterns",
    [DLXD_PENDING_JOINS] = "links that wait for their publishers",
    [DLXD_FAILED] = "failed links that it was not told of",
    [DLXD_GPU_BYTES] = "of GPU memory",
    [DLXD_GPU_CALLS] = "calls that wait for the GPU keeper",
    [DLXD_IN_FLIGHT] = "file descriptors on their way",
    [DLXD_DESCRIPTORS] = "file descriptors of the daemon",
};

/* The descriptors that one unit costs; for shared memory, one region. */
static const uint64_t descriptors[DLXD_N_RESOURCES] = {
    [DLXD_BYTES] = 1,         /* the region */
    [DLXD_CONNECTIONS] = 2,   /* socket and pidfd */
    [DLXD_OBJECTS] = 1,       /* link socket, or subscription socket */
    [DLXD_PENDING_JOINS] = 3, /* page, bell and pidfd */
    [DLXD_GPU_CALLS] = 1,     /* the memory, on its way through the daemon */
};

void dlxd_users_init(struct dlxd_users *users, uint64_t shared_bytes)
{
    dlxd_list_init(&users->users);
    dlxd_list_init(&users->working);
    dlxd_list_init(&users->deferred_users);
    users->turn = 0;
    users->all_bytes = 0;
    users->all_bytes_max = shared_bytes / 4 * 3;
    dlxd_quota_defaults(users->max, shared_bytes);
    users->borrow_quotas = NULL;
    users->all_descriptors = 0;
    users->all_descriptors_max = UINT64_MAX;
    users->descriptors_of_administrators = 0;
    users->all_in_flight = 0;
    users->all_in_flight_max = UINT64_MAX;
    users->all_stored = 0;
    users->all_stored_max = UINT64_MAX;
}

void dlxd_users_set_quotas(struct dlxd_users *users, const struct dlxd_quotas *quotas,
                           uint64_t shared_bytes)
{
    const struct dlxd_quota *first = dlxd_quotas_find(quotas, DLXD_QUOTA_DEFAULT);
    users->all_bytes_max = shared_bytes / 4 * 3;
    dlxd_quota_defaults(users->max, shared_bytes);
    if (first)
        memcpy(users->max, first->max, sizeof users->max);
    users->borrow_quotas = quotas;
    dlx_for_each (it, &users->users) {
        struct dlxd_user *user = dlxd_container_of(it, struct dlxd_user, node);
        user->borrow_quota = dlxd_quotas_of_socket(quotas, user->socket);
    }
}

void dlxd_users_set_descriptors(struct dlxd_users *users, uint64_t process_max)
{
    users->all_descriptors_max = process_max - DLX_MIN(process_max / 8, DLXD_DESCRIPTORS_OWN);
    users->descriptors_of_administrators =
        DLX_MIN(process_max / 32, DLXD_DESCRIPTORS_ADMINISTRATORS);
}

void dlxd_users_deinit(struct dlxd_users *users)
{
    assert(dlxd_list_empty(&users->users));
    assert(users->all_bytes == 0 && users->all_descriptors == 0 && users->all_in_flight == 0);
    assert(users->all_stored == 0);
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
    user->borrow_quota = dlxd_quotas_of_socket(users->borrow_quotas, user->socket);
    dlxd_list_init(&user->tasks);
    dlxd_list_init(&user->working);
    dlxd_list_init(&user->deferred_tasks);
    dlxd_list_init(&user->in_deferred);
    dlxd_list_init(&user->membership_pages);
    dlxd_drains_init(&user->drains);
    dlxd_list_init(&user->end_drains.node);
    dlxd_list_init(&user->flights);
    dlxd_list_init(&user->former_pages);
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
        assert(dlxd_list_empty(&user->former_pages) && user->former_bytes == 0);
        assert(dlxd_list_empty(&user->deferred_tasks));
        dlxd_list_remove(&user->working);
        dlxd_list_remove(&user->in_deferred);
        dlxd_list_remove(&user->node);
        free(user);
    }
    return NULL;
}

/* Moved charges may exceed a limit, so the difference is capped at 0. */
static uint64_t left_of(uint64_t all, uint64_t max)
{
    return max - DLX_MIN(all, max);
}

static uint64_t max_of(const struct dlxd_user *user, enum dlxd_resource resource)
{
    return user->borrow_quota ? user->borrow_quota->max[resource] : user->users->max[resource];
}

/* What all users together use and may have, and how many times the rest one of them may have. */
struct pool {
    uint64_t used, max, share;
};

static struct pool pool_of(const struct dlxd_user *user, enum dlxd_resource resource)
{
    const struct dlxd_users *users = user->users;
    switch (resource) {
    case DLXD_BYTES:
        return (struct pool){users->all_bytes, users->all_bytes_max, DLXD_BYTES_SHARE};
    case DLXD_IN_FLIGHT:
        return (struct pool){users->all_in_flight, users->all_in_flight_max, DLXD_IN_FLIGHT_SHARE};
    case DLXD_DESCRIPTORS:
        return (struct pool){
            users->all_descriptors,
            left_of(user->is_administrator ? 0 : users->descriptors_of_administrators,
                    users->all_descriptors_max),
            DLXD_DESCRIPTORS_SHARE};
    case DLXD_STORE_ENTRIES:
        return (struct pool){users->all_stored, users->all_stored_max,
                             user->is_own ? DLXD_SHARE_ALL : DLXD_STORE_SHARE};
    default:
        return (struct pool){.max = UINT64_MAX};
    }
}

uint64_t dlxd_user_limit(const struct dlxd_user *user, enum dlxd_resource resource)
{
    uint64_t used = user->used[resource], max = max_of(user, resource);
    struct pool pool = pool_of(user, resource);
    if (pool.max == UINT64_MAX)
        return max;
    /* The largest amount n for which at least n / share remain for others, as in
     * user_check_share(). */
    uint64_t all = left_of(pool.used, pool.max) + used;
    uint64_t fair =
        all / (pool.share + 1) * pool.share + DLX_MIN(all % (pool.share + 1), pool.share - 1);
    return DLX_MIN(max, fair);
}

void dlxd_user_count_request(struct dlxd_user *user, uint64_t now)
{
    dlxd_pace_count(&user->pace, now);
}

uint64_t dlxd_user_next_request_ns(const struct dlxd_user *user, uint64_t now)
{
    return dlxd_pace_next_ns(&user->pace, max_of(user, DLXD_REQUESTS), now);
}

uint64_t dlxd_user_used(const struct dlxd_user *user, enum dlxd_resource resource, uint64_t now)
{
    if (resource == DLXD_REQUESTS)
        return dlxd_pace_used(&user->pace, now);
    return user->used[resource] + (resource == DLXD_BYTES ? user->former_bytes : 0);
}

uint64_t dlxd_users_former_bytes(const struct dlxd_users *users)
{
    uint64_t sum = 0;
    dlx_for_each (it, &users->users)
        if (__builtin_add_overflow(sum, dlxd_container_of(it, struct dlxd_user, node)->former_bytes,
                                   &sum))
            return UINT64_MAX;
    return sum;
}

/* Where to raise a limit: of the user's class, or, for `is_pool`, of all users together. Only a
 * daemon without a configuration reads the variable, of the program that starts it, and is ended by
 * its user. Returns `text`. */
#define REMEDY_SIZE 400
static const char *remedy(const struct dlxd_user *user, enum dlxd_resource resource, bool is_pool,
                          char text[REMEDY_SIZE])
{
    const struct dlxd_quotas *quotas = user->users->borrow_quotas;
    const char *file = quotas ? quotas->borrow_file : NULL;
    const char *release = resource == DLXD_BYTES ? "release some (see dlxctl holds), or " : "";
    if (is_pool && resource == DLXD_STORE_ENTRIES)
        return "raise dlpackd's --fd-store and FileDescriptorStoreMax= of its unit";
    if (is_pool && resource != DLXD_BYTES)
        return "raise dlpackd's RLIMIT_NOFILE (LimitNOFILE= of its unit, ulimit -n)";
    if (is_pool && file)
        (void)snprintf(text, REMEDY_SIZE,
                       "%sraise memory-limit in [daemon] of %.200s and restart dlpackd", release,
                       file);
    else if (is_pool || (resource == DLXD_BYTES && !user->borrow_quota && !file))
        (void)snprintf(text, REMEDY_SIZE,
                       "%send this dlpackd (pid %d): the next one reads --memory-limit, or "
                       "DLX_MEMORY_LIMIT of the program that starts it",
                       release, (int)getpid());
    else
        (void)snprintf(text, REMEDY_SIZE, "%sraise it in [quota %.60s] of %.200s", release,
                       user->borrow_quota ? user->borrow_quota->name : DLXD_QUOTA_DEFAULT,
                       file ? file : "dlpackd.conf");
    return text;
}

/* Formats " (quota bytes of class pods); raise it in [quota pods] of dlpackd.conf". */
#define KEY_SIZE 600
static const char *key_text(const struct dlxd_user *user, enum dlxd_resource resource, bool is_pool,
                            char text[KEY_SIZE])
{
    const struct dlxd_quota *quota = user->borrow_quota;
    char words[REMEDY_SIZE];
    (void)snprintf(text, KEY_SIZE, " (quota %s%s%.100s); %s", dlxd_quota_key(resource),
                   quota ? " of class " : "", quota ? quota->name : "",
                   remedy(user, resource, is_pool, words));
    return text;
}

/* Formats "uid 7 asks for 1.0 GiB of shared memory, uses 1.5 GiB and may have", the text of `fmt`,
 * and the remedy. `is_pool`: too little is left for all users together. */
static dlx_printf(5, 6) int fail_limit(const struct dlxd_user *user, enum dlxd_resource resource,
                                       uint64_t amount, bool is_pool, const char *fmt, ...)
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
                     key_text(user, resource, is_pool, key));
}

static int check_max(const struct dlxd_user *user, enum dlxd_resource resource, uint64_t amount)
{
    uint64_t used = user->used[resource], max = max_of(user, resource);
    char text[DLXD_AMOUNT_SIZE];
    /* usage may exceed a limit that was lowered */
    if (amount == 0 || (amount <= max && used <= max - amount))
        return 0;
    return fail_limit(user, resource, amount, false, "%s", dlxd_quota_amount(resource, max, text));
}

/* Users share what all of them together may have. */
static int user_check_share(const struct dlxd_user *user, enum dlxd_resource resource,
                            uint64_t amount, uint64_t least_left)
{
    struct pool pool = pool_of(user, resource);
    uint64_t left = left_of(pool.used, pool.max);
    char used[DLXD_AMOUNT_SIZE], max[DLXD_AMOUNT_SIZE], share[DLXD_AMOUNT_SIZE + 16] = "";
    if (amount <= left && least_left <= left - amount)
        return 0;
    if (pool.share != DLXD_SHARE_ALL)
        (void)snprintf(share, sizeof share, "%" PRIu64 " times ", pool.share);
    return fail_limit(user, resource, amount, true,
                      "at most %swhat is left: all users together use %s and may have %s", share,
                      dlxd_quota_amount(resource, pool.used, used),
                      dlxd_quota_amount(resource, pool.max, max));
}

/* Checks `n` descriptors, which are needed for `for_what`. */
static int check_descriptors(const struct dlxd_user *user, enum dlxd_resource for_what, uint64_t n)
{
    if (n == 0)
        return 0;
    uint64_t least = (user->used[DLXD_DESCRIPTORS] + n) / DLXD_DESCRIPTORS_SHARE;
    /* A user that has used up its share may still connect, to look at what uses it, while enough is
     * left for others. */
    if (for_what == DLXD_CONNECTIONS)
        least = DLX_MIN(least, user->users->all_descriptors_max / 64);
    int r = check_max(user, DLXD_DESCRIPTORS, n);
    return r < 0 ? r : user_check_share(user, DLXD_DESCRIPTORS, n, least);
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
    uint64_t share = pool_of(user, resource).share;
    if (amount == 0 || share == 0)
        return 0;
    return user_check_share(user, resource, amount, (user->used[resource] + amount) / share);
}

/* The descriptors that `amount` of a resource costs. */
static uint64_t n_descriptors(enum dlxd_resource resource, uint64_t amount)
{
    return descriptors[resource] * (resource == DLXD_BYTES ? 1 : amount);
}

/* Counts what all users together have, where that is limited. */
static void add_to_all(struct dlxd_users *users, enum dlxd_resource resource, uint64_t amount)
{
    users->all_bytes += resource == DLXD_BYTES ? amount : 0;
    users->all_descriptors += resource == DLXD_DESCRIPTORS ? amount : 0;
    users->all_in_flight += resource == DLXD_IN_FLIGHT ? amount : 0;
    users->all_stored += resource == DLXD_STORE_ENTRIES ? amount : 0;
}

int dlxd_user_check(const struct dlxd_user *user, enum dlxd_resource resource, uint64_t amount)
{
    int r = check_max(user, resource, amount);
    if (r == 0)
        r = check_descriptors(user, resource, n_descriptors(resource, amount));
    return r < 0 ? r : check_shares(user, resource, amount);
}

int dlxd_user_check_former(const struct dlxd_user *user, uint64_t bytes)
{
    uint64_t max = max_of(user, DLXD_BYTES), used = user->used[DLXD_BYTES] + user->former_bytes;
    char text[DLXD_AMOUNT_SIZE], former[DLXD_AMOUNT_SIZE];
    if (user->former_bytes == 0 || (bytes <= max && used <= max - bytes))
        return 0;
    return fail_limit(user, DLXD_BYTES, bytes, false,
                      "%s, and its programs keep %s from before dlpackd was restarted",
                      dlxd_quota_amount(DLXD_BYTES, max, text),
                      dlxd_quota_amount(DLXD_BYTES, user->former_bytes, former));
}

void dlxd_charge_restore(struct dlxd_charge *charge, struct dlxd_user *user,
                         enum dlxd_resource resource, uint64_t amount)
{
    uint64_t n = n_descriptors(resource, amount);
    assert(!charge->user);
    user->users->all_descriptors += n;
    add_to_all(user->users, resource, amount);
    *charge = (struct dlxd_charge){.resource = resource, .amount = amount, .n_descriptors = n};
    charge_to(charge, user);
}

int dlxd_charge_init(struct dlxd_charge *charge, struct dlxd_user *user,
                     enum dlxd_resource resource, uint64_t amount)
{
    int r = dlxd_user_check(user, resource, amount);
    if (r == 0)
        dlxd_charge_restore(charge, user, resource, amount);
    return r;
}

void dlxd_charge_set(struct dlxd_charge *charge, uint64_t amount)
{
    uint64_t more = amount - charge->amount; /* modulo 2^64 */
    assert(descriptors[charge->resource] == 0);
    charge->amount = amount;
    charge->user->used[charge->resource] += more;
    add_to_all(charge->user->users, charge->resource, more);
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

static void close_descriptors(struct dlxd_charge *charge, uint64_t n)
{
    assert(charge->n_descriptors >= n);
    charge->n_descriptors -= n;
    charge->user->used[DLXD_DESCRIPTORS] -= n;
    charge->user->users->all_descriptors -= n;
}

void dlxd_charge_close_descriptor(struct dlxd_charge *charge)
{
    close_descriptors(charge, 1);
}

void dlxd_charge_close_descriptors(struct dlxd_charge *charge)
{
    if (charge->user)
        close_descriptors(charge, charge->n_descriptors);
}

void dlxd_charge_deinit(struct dlxd_charge *charge)
{
    if (!charge->user)
        return;
    dlxd_charge_close_descriptors(charge);
    add_to_all(charge->user->users, charge->resource, -charge->amount); /* modulo 2^64 */
    uncharge(charge);
    charge->amount = 0;
}
