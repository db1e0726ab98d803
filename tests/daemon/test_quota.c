/* SPDX-License-Identifier: Apache-2.0 */
/* Classes of quotas: who has which, lower limits, shares, words of errors; the pace of requests;
 * and the memory that they are parts of. */
#include "daemon/memory/arena.h"
#include "daemon/server/memory_available.h"
#include "tests/daemon/harness_users.h"
#include "tests/harness/daemon.h"
#include "tests/harness/file.h"

#define GIB    (UINT64_C(1) << 30)
#define SECOND UINT64_C(1000000000)

static struct dlxd_quotas quotas;

static struct dlxd_user *user_by(uid_t uid, const char *socket)
{
    return dlx_users_get(&dlx_users, uid, socket);
}

/* Two classes: "default" and "pods", which socket "p" has. */
static void set_quotas(uint64_t default_bytes, uint64_t pods_bytes)
{
    dlxd_quotas_deinit(&quotas);
    dlxd_quotas_add(&quotas, "default")->max[DLXD_BYTES] = default_bytes;
    ok(dlxd_quota_add_socket(dlxd_quotas_add(&quotas, "pods"), "p"));
    quotas.items[0].is_set = quotas.items[1].is_set = UINT32_C(1) << DLXD_BYTES;
    quotas.items[1].max[DLXD_BYTES] = pods_bytes;
    uint64_t defaults[DLXD_N_RESOURCES];
    dlxd_quota_defaults(defaults, 64 * GIB);
    dlxd_quotas_complete(&quotas, defaults);
    dlxd_users_set_quotas(&dlx_users, &quotas, 64 * GIB);
}

static void tear_down(void)
{
    dlxd_quotas_deinit(&quotas);
}

CASE(quota)
{
    TCase *tcase = dlx_users_case("quota");
    tcase_add_checked_fixture(tcase, NULL, tear_down);
    return tcase;
}

TEST_OF(quota, a_socket_has_its_class_and_the_others_the_default_one)
{
    struct dlxd_user *a = user_by(5, DLXD_SOCKET_MAIN), *b = user_by(5, "p");
    ck_assert_ptr_ne(a, b);
    set_quotas(8 * GIB, 2 * GIB);
    struct dlxd_user *c = user_by(6, "p"), *d = user_by(6, "q");
    ck_assert_uint_eq(dlxd_user_limit(a, DLXD_BYTES), 8 * GIB);
    ck_assert_uint_eq(dlxd_user_limit(b, DLXD_BYTES), 2 * GIB);
    ck_assert_uint_eq(dlxd_user_limit(c, DLXD_BYTES), 2 * GIB);
    ck_assert_uint_eq(dlxd_user_limit(d, DLXD_BYTES), 8 * GIB);
    ck_assert_uint_eq(dlxd_user_limit(c, DLXD_CONNECTIONS), 4096);
    (void)dlx_users_charge(b, DLXD_BYTES, 3 * GIB / 2);
    ck_assert_str_eq(dlx_users_refused(b, DLXD_BYTES, GIB),
                     "uid 5 by socket p asks for 1.0 GiB of shared memory, uses 1.5 GiB and may "
                     "have 2.0 GiB (quota bytes of class pods); release some (see dlxctl holds), "
                     "or raise it in [quota pods] of dlpackd.conf");
    ck_assert_str_eq(dlx_users_refused(b, DLXD_CONNECTIONS, 4097),
                     "uid 5 by socket p asks for 4097 connections, uses 0 and may have 4096 (quota "
                     "connections of class pods); raise it in [quota pods] of dlpackd.conf");
}

/* A user of the machine's service neither ends it nor chooses its options. */
TEST_OF(quota, a_refusal_names_the_configuration_that_has_the_limit)
{
    struct dlxd_user *a = user_by(5, DLXD_SOCKET_MAIN), *b = user_by(5, "p");
    set_quotas(8 * GIB, 2 * GIB);
    contains(dlx_users_refused(a, DLXD_BYTES, 9 * GIB), "(quota bytes); release some (see dlxctl "
                                                        "holds), or end this dlpackd (pid ");
    quotas.borrow_file = "/etc/d.conf";
    contains(dlx_users_refused(a, DLXD_BYTES, 9 * GIB), "(quota bytes); release some (see dlxctl "
                                                        "holds), or raise it in [quota default] of "
                                                        "/etc/d.conf");
    contains(dlx_users_refused(b, DLXD_BYTES, 9 * GIB), ", or raise it in [quota pods] of /etc/");
    dlx_users.all_bytes_max = GIB;
    contains(dlx_users_refused(a, DLXD_BYTES, 2 * GIB),
             ", or raise memory-limit in [daemon] of /etc/d.conf and restart dlpackd");
    quotas.borrow_file = NULL;
}

/* Charges that are there stay, and what costs nothing goes on. */
TEST_OF(quota, a_user_above_a_lowered_limit_keeps_what_it_has_and_gets_nothing_new)
{
    struct dlxd_user *user = user_by(5, "p");
    set_quotas(8 * GIB, 2 * GIB);
    (void)dlx_users_charge(user, DLXD_BYTES, 2 * GIB);
    set_quotas(8 * GIB, GIB);
    ck_assert_uint_eq(user->used[DLXD_BYTES], 2 * GIB);
    (void)dlx_users_refused(user, DLXD_BYTES, 1);
    dlxd_charge_deinit(dlx_users_charge(user, DLXD_BYTES, 0));
    set_quotas(8 * GIB, 3 * GIB);
    (void)dlx_users_charge(user, DLXD_BYTES, GIB);
}

TEST_OF(quota, descriptors_may_have_a_limit_of_their_own)
{
    struct dlxd_user *user = user_by(5, DLXD_SOCKET_MAIN);
    ck_assert_uint_eq(dlxd_user_limit(user, DLXD_DESCRIPTORS), DLXD_UNLIMITED);
    dlx_users.max[DLXD_DESCRIPTORS] = 3;
    (void)dlx_users_charge(user, DLXD_CONNECTIONS, 1); /* has two */
    ck_assert_str_eq(dlx_users_refused(user, DLXD_CONNECTIONS, 1),
                     "uid 5 asks for 2 file descriptors of the daemon, uses 2 and may have 3 "
                     "(quota descriptors); raise it in [quota default] of dlpackd.conf");
}

/* The user gets as much as dlxd_user_limit() says, and no byte more. */
TEST_OF(quota, the_limit_is_what_others_leave)
{
    struct dlxd_user *a = user_by(1, DLXD_SOCKET_MAIN), *b = user_by(2, DLXD_SOCKET_MAIN);
    for (uint64_t all = 99; all < 104; all++)
        for (uint64_t others = 0; others < 60; others++) {
            dlx_users.all_bytes_max = all;
            struct dlxd_charge *theirs = dlx_users_charge(b, DLXD_BYTES, others);
            uint64_t limit = dlxd_user_limit(a, DLXD_BYTES);
            (void)dlx_users_refused(a, DLXD_BYTES, limit + 1);
            struct dlxd_charge *mine = dlx_users_charge(a, DLXD_BYTES, limit);
            ck_assert_uint_eq(dlxd_user_limit(a, DLXD_BYTES), limit);
            dlxd_charge_deinit(mine);
            dlxd_charge_deinit(theirs);
        }
}

/* The least that is shared, and the most: no sum overflows. */
TEST_OF(quota, a_single_user_may_have_all_of_a_memory_limit)
{
    const uint64_t limits[] = {4096, 100 * GIB, UINT64_C(1) << 60};
    struct dlxd_user *a = user_by(1, DLXD_SOCKET_MAIN);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(limits); i++) {
        dlxd_users_set_quotas(&dlx_users, &quotas, 2 * limits[i]);
        ck_assert_uint_eq(dlxd_user_limit(a, DLXD_BYTES), limits[i]);
        dlxd_charge_deinit(dlx_users_charge(a, DLXD_BYTES, limits[i]));
    }
}

TEST_OF(quota, amounts_are_in_units_for_people)
{
    static const struct {
        uint64_t n;
        const char *text;
    } rows[] = {
        {0, "0 B"},           {1023, "1023 B"},        {1024, "1.0 KiB"},       {1536, "1.5 KiB"},
        {2 * GIB, "2.0 GiB"}, {GIB * 1024, "1.0 TiB"}, {UINT64_MAX, "16.0 EiB"}};
    char text[DLXD_AMOUNT_SIZE];
    for (size_t i = 0; i < DLX_ARRAY_SIZE(rows); i++)
        ck_assert_str_eq(dlxd_quota_amount(DLXD_BYTES, rows[i].n, text), rows[i].text);
    ck_assert_str_eq(dlxd_quota_amount(DLXD_RETAINED_BYTES, 2 * GIB, text), "2.0 GiB");
    ck_assert_str_eq(dlxd_quota_amount(DLXD_LINKS, UINT64_MAX, text), "18446744073709551615");
}

/* Existing memory is counted, and leaves less room for new memory. */
TEST_OF(quota, memory_that_a_former_daemon_knew_is_charged_beyond_the_limit)
{
    struct dlxd_charge former = {.user = NULL};
    struct dlxd_user *user = user_by(5, "p");
    set_quotas(8 * GIB, GIB);
    dlxd_charge_restore(&former, user, DLXD_BYTES, 2 * GIB);
    ck_assert_uint_eq(user->used[DLXD_BYTES], 2 * GIB);
    ck_assert_uint_eq(user->used[DLXD_DESCRIPTORS], 1);
    ck_assert_uint_eq(dlx_users.all_bytes, 2 * GIB);
    (void)dlx_users_refused(user, DLXD_BYTES, 1);
    dlxd_charge_deinit(&former);
    ck_assert_uint_eq(dlx_users.all_bytes, 0);
    (void)dlx_users_charge(user, DLXD_BYTES, 1);
}

/* A half of what others leave, but for the daemon's own user, who may have all of it; and what its
 * class says. */
TEST_OF(quota, the_store_is_shared_by_all_but_the_daemons_own_user)
{
    struct dlxd_user *own = user_by(1, DLXD_SOCKET_MAIN), *a = user_by(2, DLXD_SOCKET_MAIN);
    ck_assert_uint_eq(dlxd_user_limit(a, DLXD_STORE_ENTRIES), DLXD_UNLIMITED); /* there is none */
    own->is_own = true;
    dlx_users.all_stored_max = 100;
    struct dlxd_charge *charge = dlx_users_charge(own, DLXD_STORE_ENTRIES, 0);
    dlxd_charge_set(charge, 40);
    ck_assert_uint_eq(dlxd_user_limit(a, DLXD_STORE_ENTRIES), 30);
    ok(dlxd_user_check(a, DLXD_STORE_ENTRIES, 30));
    ck_assert_int_eq(dlxd_user_check(a, DLXD_STORE_ENTRIES, 31), DLX_E_LIMIT);
    ck_assert_uint_eq(dlxd_user_limit(own, DLXD_STORE_ENTRIES), 100);
    ok(dlxd_user_check(own, DLXD_STORE_ENTRIES, 60));
    ck_assert_int_eq(dlxd_user_check(own, DLXD_STORE_ENTRIES, 61), DLX_E_LIMIT);
    dlxd_charge_set(charge, 10);
    ck_assert_uint_eq(dlx_users.all_stored, 10);
    ck_assert_uint_eq(dlxd_user_limit(a, DLXD_STORE_ENTRIES), 45);
    dlx_users.max[DLXD_STORE_ENTRIES] = 12;
    ck_assert_uint_eq(dlxd_user_limit(a, DLXD_STORE_ENTRIES), 12);
    ck_assert_int_eq(dlxd_user_check(own, DLXD_STORE_ENTRIES, 3), DLX_E_LIMIT);
    ck_assert_str_eq(dlx__error_message(),
                     "uid 1 asks for 3 file descriptors that the service manager keeps, uses 10 "
                     "and may have 12 (quota store-entries); raise it in [quota default] of "
                     "dlpackd.conf");
}

/* As fast as they may come, with a look before each whether the one before it was not too late. */
TEST_OF(quota, requests_come_at_their_pace)
{
    static const uint64_t rates[] = {1, 2, 3, 7, 100, 1001, 4000};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(rates); i++) {
        struct dlxd_pace pace = {.n = 0};
        uint64_t max = rates[i], begin = 5000 * SECOND, now = begin;
        for (uint64_t n = 0; n < 6 * max; n++) {
            uint64_t next = dlxd_pace_next_ns(&pace, max, now);
            ck_assert_uint_ge(next, now);
            ck_assert_uint_le(next, now + 2 * SECOND / max + 2);
            if (next > now) {
                ck_assert_uint_eq(dlxd_pace_used(&pace, now), max);
                ck_assert_uint_eq(dlxd_pace_used(&pace, next - 1), max);
            }
            ck_assert_uint_lt(dlxd_pace_used(&pace, next), max);
            dlxd_pace_count(&pace, now = next);
            if (n + 1 == max) /* at once: it has paused before */
                ck_assert_uint_eq(now, begin);
            if (n + 1 == max)
                now = begin + SECOND - 1; /* not one more in this second */
        }
        /* A second for each but the first. */
        ck_assert_uint_ge(now, begin + 5 * SECOND - SECOND / 10);
        ck_assert_uint_le(now, begin + 6 * SECOND + SECOND / 10);
    }
}

TEST_OF(quota, a_pause_is_forgotten_and_a_debt_is_not)
{
    struct dlxd_pace pace = {.n = 0};
    uint64_t now = 5000 * SECOND;
    for (int i = 0; i < 30; i++) /* what cannot wait counts all the same */
        dlxd_pace_count(&pace, now);
    ck_assert_uint_eq(dlxd_pace_used(&pace, now), 30);
    ck_assert_uint_eq(dlxd_pace_used(&pace, now + SECOND + SECOND / 2), 15);
    ck_assert_uint_gt(dlxd_pace_next_ns(&pace, 10, now), now + SECOND + SECOND / 2);
    ck_assert_uint_eq(dlxd_pace_next_ns(&pace, DLXD_UNLIMITED, now), now);
    ck_assert_uint_eq(dlxd_pace_next_ns(&pace, 0, now), UINT64_MAX);
    ck_assert_uint_eq(dlxd_pace_used(&pace, now + 2 * SECOND), 0);
    for (int i = 0; i < 10; i++)
        ck_assert_uint_eq(dlxd_pace_next_ns(&pace, 10, now + 9 * SECOND), now + 9 * SECOND);
}

static struct dlx_test_daemon place; /* its folder */
static char made[16][300];
static size_t n_made;

static const char *path_of(const char *name)
{
    ck_assert_uint_lt(n_made, DLX_ARRAY_SIZE(made));
    (void)snprintf(made[n_made], sizeof made[0], "%s/%s", place.dir, name);
    return made[n_made++];
}

static void make_file(const char *name, const char *text)
{
    dlx_test_write_file(path_of(name), text);
}

/* The last made is the first to go. */
static void remove_all(void)
{
    while (n_made > 0)
        ck_assert_int_eq(remove(made[--n_made]), 0);
}

static void make_tree(const char *group)
{
    static const char *const folders[] = {
        "proc",
        "proc/self",
        "sys",
        "sys/fs",
        "sys/fs/cgroup",
        "sys/fs/cgroup/a",
        "sys/fs/cgroup/a/b",
    };
    for (size_t i = 0; i < DLX_ARRAY_SIZE(folders); i++)
        ck_assert_int_eq(mkdir(path_of(folders[i]), 0700), 0);
    make_file("proc/self/cgroup", group);
}

CASE(memory)
{
    TCase *tcase = tcase_create("memory");
    dlx_test_dir_fixture(tcase, &place);
    tcase_add_checked_fixture(tcase, NULL, remove_all);
    return tcase;
}

TEST_OF(memory, the_memory_is_what_the_control_groups_leave)
{
    uint64_t ram = dlxd_memory_available(place.dir); /* no such files */
    ck_assert_uint_gt(ram, 100 << 20);
    make_tree("5:cpu:/x\n0::/a/b\n");
    ck_assert_uint_eq(dlxd_memory_available(place.dir), ram);
    make_file("sys/fs/cgroup/a/b/memory.max", "max\n");
    make_file("sys/fs/cgroup/a/b/memory.high", "max\n");
    ck_assert_uint_eq(dlxd_memory_available(place.dir), ram);
    make_file("sys/fs/cgroup/a/memory.max", "41943040\n"); /* of a group above */
    ck_assert_uint_eq(dlxd_memory_available(place.dir), 40 << 20);
    make_file("sys/fs/cgroup/a/memory.high", "31457280\n");
    ck_assert_uint_eq(dlxd_memory_available(place.dir), 30 << 20);
    make_file("sys/fs/cgroup/memory.max", "20971520\n"); /* a container's own */
    ck_assert_uint_eq(dlxd_memory_available(place.dir), 20 << 20);
}

/* In a namespace of control groups that does not have the group. */
TEST_OF(memory, a_group_that_is_not_shown_has_the_limits_of_what_is)
{
    make_tree("0::/../a/b\n");
    make_file("sys/fs/cgroup/memory.max", "20971520\n");
    ck_assert_uint_eq(dlxd_memory_available(place.dir), 20 << 20);
}

/* The last unit that a limit allows is given, and the next one is not. */
TEST_OF(quota, a_limit_is_what_may_be_used)
{
    struct dlxd_user *user = user_by(5, DLXD_SOCKET_MAIN);
    dlx_users.max[DLXD_LINKS] = 2;
    ok(dlxd_user_check(user, DLXD_LINKS, 2));
    ck_assert_int_eq(dlxd_user_check(user, DLXD_LINKS, 3), DLX_E_LIMIT);
    (void)dlx_users_charge(user, DLXD_LINKS, 1);
    (void)dlx_users_charge(user, DLXD_LINKS, 1);
    (void)dlx_users_refused(user, DLXD_LINKS, 1);
    ok(dlxd_user_check(user, DLXD_LINKS, 0));
}

/* An arena is charged twice: if the second charge fails, the first one is given back. */
TEST_OF(quota, an_arena_that_is_refused_costs_nothing)
{
    struct dlxd_arena *arena = NULL;
    struct dlxd_user *user = user_by(5, DLXD_SOCKET_MAIN);
    dlx_users.max[DLXD_RETAINED_BYTES] = GIB - 1;
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(dlxd_arena_new(&arena, NULL, user, 1, GIB, true), DLX_E_LIMIT);
        ck_assert_ptr_null(arena);
        ck_assert_uint_eq(user->used[DLXD_BYTES], 0);
        ck_assert_uint_eq(user->used[DLXD_RETAINED_BYTES], 0);
        ck_assert_uint_eq(dlx_users.all_bytes, 0);
        ck_assert_uint_eq(dlx_users.all_descriptors, 0);
    }
    ck_assert_uint_eq(user->n_refs, 1);
}

int main(void)
{
    return dlx_test_run_cases();
}
