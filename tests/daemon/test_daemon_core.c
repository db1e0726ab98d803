/* SPDX-License-Identifier: Apache-2.0 */
/* Registry, charges, access, membership: the parts of the daemon that do no I/O on sockets. */
#include "common/memory.h"
#include "ring/layout.h"
#include "daemon/users/policy.h"
#include "daemon/base/idmap.h"
#include "daemon/memory/membership.h"
#include "daemon/objects/registry.h"
#include "daemon/objects/subscription.h"
#include "daemon/users/outbox.h"
#include "tests/daemon/harness_users.h"
#include <linux/futex.h>
#include <sys/syscall.h>

CASE(core)
{
    return tcase_create("core");
}

TEST_OF(core, objects_are_found_by_id_until_removed)
{
    enum { N = 5000 };
    static struct dlxd_idmap_node nodes[N];
    struct dlxd_idmap map;
    dlxd_idmap_init(&map);
    ck_assert_ptr_null(dlxd_idmap_find(&map, 1));
    for (uint64_t i = 0; i < N; i++)
        dlxd_idmap_add(&map, &nodes[i], i + 1);
    for (uint64_t i = 0; i < N; i++)
        ck_assert_ptr_eq(dlxd_idmap_find(&map, i + 1), &nodes[i]);
    ck_assert_ptr_null(dlxd_idmap_find(&map, 0));
    ck_assert_ptr_null(dlxd_idmap_find(&map, N + 1));
    for (uint64_t i = 0; i < N; i += 2)
        dlxd_idmap_remove(&map, &nodes[i]);
    dlxd_idmap_remove(&map, &nodes[0]); /* again: ignored */
    for (uint64_t i = 0; i < N; i++)
        ck_assert_ptr_eq(dlxd_idmap_find(&map, i + 1), i % 2 ? &nodes[i] : NULL);
    ck_assert_uint_ge(map.n_buckets, N);
    for (uint64_t i = 1; i < N - 10; i += 2) {
        dlxd_idmap_remove(&map, &nodes[i]);
        ck_assert_ptr_eq(dlxd_idmap_find(&map, N), &nodes[N - 1]);
    }
    ck_assert_uint_le(map.n_buckets, 64); /* of a thousand times as many nothing is left */
    for (uint64_t i = N - 9; i < N; i += 2)
        dlxd_idmap_remove(&map, &nodes[i]);
    dlxd_idmap_deinit(&map);
}

/* No change of a large table takes long, and all is found in between. */
TEST_OF(core, a_table_of_ids_grows_and_shrinks_in_parts)
{
    enum { N = 5000, MOST = 16 };
    static struct dlxd_idmap_node nodes[N];
    struct dlxd_idmap map;
    size_t n_moved = 0, n_moves = 0;
    dlxd_idmap_init(&map);
    for (uint64_t i = 0; i < 2 * N; i++) {
        if (i < N)
            dlxd_idmap_add(&map, &nodes[i], i + 1);
        else
            dlxd_idmap_remove(&map, &nodes[i - N]);
        if (map.n_former > 0)
            ck_assert_uint_le(map.n_moved, n_moved + MOST);
        n_moves += map.n_former > 0 && n_moved == 0;
        n_moved = map.n_moved;
        for (uint64_t k = 0; k < N; k += 97) {
            bool is_there = i < N ? k <= i : k > i - N;
            ck_assert_ptr_eq(dlxd_idmap_find(&map, k + 1), is_there ? &nodes[k] : NULL);
        }
    }
    ck_assert_uint_ge(n_moves, 12); /* from 64 buckets to 8,192 and back */
    dlxd_idmap_deinit(&map);
}

TEST_OF(core, topics_are_sorted_found_and_go_with_their_last_user)
{
    static const char *const names[] = {"m", "a/b", "z", "a", "a/b/c", "M", "a-b"};
    struct dlxd_registry registry;
    struct dlxd_topic *topic;
    struct dlxd_topic *again;
    struct dlxd_list member;
    dlxd_registry_init(&registry);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(names); i++) {
        ck_assert_ptr_null(dlxd_registry_find(&registry, names[i]));
        ok(dlxd_registry_get(&registry, names[i], &topic));
        ok(dlxd_registry_get(&registry, names[i], &again));
        ck_assert_ptr_eq(topic, again);
        ck_assert_ptr_eq(dlxd_registry_find(&registry, names[i]), topic);
    }
    ck_assert_uint_eq(registry.n_topics, DLX_ARRAY_SIZE(names));
    for (size_t i = 1; i < registry.n_topics; i++)
        ck_assert_int_lt(strcmp(registry.topics[i - 1]->name, registry.topics[i]->name), 0);
    ck_assert_uint_eq(dlxd_registry_lower_bound(&registry, ""), 0);
    ck_assert_uint_eq(dlxd_registry_lower_bound(&registry, "zz"), registry.n_topics);

    dlxd_list_init(&member);
    dlxd_list_push_back(&topic->subscriptions, &member);
    dlxd_registry_put(&registry, topic);
    ck_assert_ptr_eq(dlxd_registry_find(&registry, "a-b"), topic);
    dlxd_list_remove(&member);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(names); i++)
        dlxd_registry_put(&registry, dlxd_registry_find(&registry, names[i]));
    dlxd_registry_put(&registry, NULL);
    ck_assert_uint_eq(registry.n_topics, 0);
    dlxd_registry_deinit(&registry);
}

TEST_OF(core, many_topics)
{
    enum { N = 10000 };
    struct dlxd_registry registry;
    struct dlxd_topic *topic;
    char name[32];
    dlxd_registry_init(&registry);
    for (int i = 0; i < N; i++) {
        (void)snprintf(name, sizeof name, "t/%d", (i * 7919) % N);
        ok(dlxd_registry_get(&registry, name, &topic));
    }
    ck_assert_uint_eq(registry.n_topics, N);
    while (registry.n_topics > 0)
        dlxd_registry_put(&registry, registry.topics[registry.n_topics / 2]);
    ck_assert_uint_le(registry.n_topics_max, 32); /* the table goes with what was in it */
    dlxd_registry_deinit(&registry);
}

enum { N_USERS = 4 };

static struct dlxd_user *user[N_USERS]; /* by uid */

static void set_up_users(void)
{
    for (uid_t i = 0; i < N_USERS; i++)
        user[i] = dlx_users_get(&dlx_users, i, DLXD_SOCKET_MAIN);
}

/* As if the machine had so much memory. */
static void set_ram(uint64_t bytes)
{
    static const struct dlxd_quotas none = {.n = 0};
    dlxd_users_set_quotas(&dlx_users, &none, bytes);
}

CASE(users)
{
    TCase *tcase = dlx_users_case("users");
    tcase_add_checked_fixture(tcase, set_up_users, NULL);
    return tcase;
}

TEST_OF(users, charges_are_limited_and_come_back)
{
    set_ram(1000);
    ck_assert_ptr_eq(user[3], dlx_users_get(&dlx_users, 3, DLXD_SOCKET_MAIN));
    (void)dlx_users_charge(user[3], DLXD_BYTES, 400);
    ck_assert_ptr_nonnull(strstr(dlx_users_refused(user[3], DLXD_BYTES, 101),
                                 "uid 3 asks for 101 B of shared memory, uses 400 B and may have "
                                 "500 B (quota bytes)"));
    (void)dlx_users_refused(user[3], DLXD_BYTES, UINT64_MAX);
    struct dlxd_charge *charge = dlx_users_charge(user[3], DLXD_BYTES, 100);
    dlxd_charge_deinit(charge);
    dlxd_charge_deinit(charge); /* nothing is charged: nothing happens */
    ck_assert_uint_eq(user[3]->used[DLXD_BYTES], 400);
    ck_assert_ptr_null(dlxd_user_unref(NULL));
}

static size_t n_users(void)
{
    size_t n = 0;
    dlx_for_each (it, &dlx_users.users)
        n++;
    return n;
}

TEST_OF(users, charge_keeps_its_user)
{
    struct dlxd_user *other;
    ok(dlxd_users_get(&dlx_users, &(struct dlxd_principal){.uid = 7}, &other));
    struct dlxd_charge *charge = dlx_users_charge(other, DLXD_LINKS, 1);
    dlxd_user_unref(other);
    ck_assert_uint_eq(n_users(), N_USERS + 1);
    dlxd_charge_deinit(charge);
    ck_assert_uint_eq(n_users(), N_USERS);
}

/* Each takes all that it may; the next one gets a third of what is left. */
TEST_OF(users, a_user_may_have_a_share_of_the_bytes_that_are_left)
{
    static const uint64_t may[N_USERS] = {54000, 18000, 6000, 2000};
    set_ram(108000); /* of which all may have 81,000 */
    for (int i = 0; i < N_USERS; i++) {
        (void)dlx_users_charge(user[i], DLXD_BYTES, may[i]);
        const char *words = dlx_users_refused(user[i], DLXD_BYTES, 2);
        ck_assert_msg(i == 0 || strstr(words, "all users together"), "%s", words);
    }
}

/* However many take what they may: the next one gets some, too. */
TEST_OF(users, a_user_may_have_a_share_of_the_descriptors_that_are_left)
{
    enum { MAX = 4000 };
    static struct dlxd_charge charges[N_USERS][MAX];
    static const uint64_t least[N_USERS] = {3870, 120, 3, 0};
    uint64_t n[N_USERS] = {0};
    memset(charges, 0, sizeof charges);
    dlx_users.all_descriptors_max = MAX;
    for (int i = 0; i < N_USERS; i++) {
        while (dlxd_charge_init(&charges[i][n[i]], user[i], DLXD_BYTES, 4096) == 0)
            n[i]++;
        ck_assert_ptr_nonnull(strstr(dlx__error_message(), "file descriptors of the daemon"));
        ck_assert_uint_ge(n[i], least[i]);
        ck_assert_uint_eq(user[i]->used[DLXD_DESCRIPTORS], n[i]);
        if (i == 0) { /* it may still connect */
            ok(dlxd_charge_init(&charges[i][n[i]], user[i], DLXD_CONNECTIONS, 1));
            dlxd_charge_deinit(&charges[i][n[i]]);
        }
    }
    for (int i = 0; i < N_USERS; i++)
        while (n[i] > 0)
            dlxd_charge_deinit(&charges[i][--n[i]]);
}

/* However many users take their shares of the others. */
TEST_OF(users, the_last_descriptors_are_for_administrators)
{
    enum { MAX = 1024, ADMINISTRATOR = N_USERS - 1 };
    static struct dlxd_charge charges[MAX];
    size_t n = 0;
    memset(charges, 0, sizeof charges);
    dlxd_users_set_descriptors(&dlx_users, MAX);
    ck_assert_uint_eq(dlx_users.all_descriptors_max, MAX - DLXD_DESCRIPTORS_OWN);
    user[ADMINISTRATOR]->is_administrator = true;
    for (int i = 0; i < ADMINISTRATOR; i++)
        while (dlxd_charge_init(&charges[n], user[i], DLXD_CONNECTIONS, 1) == 0)
            n++;
    for (int i = 0; i < ADMINISTRATOR; i++)
        (void)dlx_users_refused(user[i], DLXD_CONNECTIONS, 1);
    uint64_t left = dlx_users.all_descriptors_max - dlx_users.all_descriptors;
    ck_assert_uint_ge(left, DLXD_DESCRIPTORS_ADMINISTRATORS);
    ck_assert_uint_lt(left, DLXD_DESCRIPTORS_ADMINISTRATORS + 2);
    for (uint32_t i = 0; i < DLXD_DESCRIPTORS_ADMINISTRATORS / 4; i++)
        (void)dlx_users_charge(user[ADMINISTRATOR], DLXD_CONNECTIONS, 1);
    while (n > 0)
        dlxd_charge_deinit(&charges[--n]);
}

static const struct {
    uint64_t process, all, of_administrators;
} descriptor_limits[] = {
    {16, 14, 0}, {64, 56, 2}, {768, 672, 24}, {1024, 928, 32}, {1U << 20, (1U << 20) - 96, 32}};

LOOP_TEST_OF(users, small_limits_of_descriptors_leave_parts_of_them, 0,
             DLX_ARRAY_SIZE(descriptor_limits))
{
    dlxd_users_set_descriptors(&dlx_users, descriptor_limits[_i].process);
    ck_assert_uint_eq(dlx_users.all_descriptors_max, descriptor_limits[_i].all);
    ck_assert_uint_eq(dlx_users.descriptors_of_administrators,
                      descriptor_limits[_i].of_administrators);
}

TEST_OF(core, acknowledging_more_than_was_sent_is_refused)
{
    struct dlxd_broker broker = {.watches = NULL};
    struct dlxd_outbox sock = {.fd = -1};
    struct dlxd_subscription sub = {.broker = &broker, .sock = &sock};
    dlxd_list_init(&sock.flights);
    ck_assert_uint_eq(dlxd_subscription_credit(&sub), DLXD_CREDIT);
    ck_assert_int_eq(dlxd_subscription_ack(&sub, 1), DLX_E_PROTOCOL);
    sub.n_fds_sent = 3;
    ck_assert_uint_eq(dlxd_subscription_credit(&sub), 1);
    ck_assert_int_eq(dlxd_subscription_ack(&sub, 4), DLX_E_PROTOCOL);
    ok(dlxd_subscription_ack(&sub, 2));
    ck_assert_int_eq(dlxd_subscription_ack(&sub, 1), DLX_E_PROTOCOL); /* backwards */
    ck_assert_uint_eq(dlxd_subscription_credit(&sub), 3);
    /* The count goes round. */
    sub.n_fds_acked = UINT32_MAX - 1;
    sub.n_fds_sent = 2;
    ck_assert_uint_eq(dlxd_subscription_credit(&sub), 0);
    ck_assert_int_eq(dlxd_subscription_ack(&sub, 3), DLX_E_PROTOCOL);
    ok(dlxd_subscription_ack(&sub, 1));
    ck_assert_uint_eq(dlxd_subscription_credit(&sub), 3);
}

static int admit(uid_t uid, uid_t daemon_uid)
{
    return dlxd_policy_admit(&(struct dlxd_policy){.uid = daemon_uid},
                             &(struct dlxd_principal){.uid = uid, .socket = DLXD_SOCKET_MAIN});
}

TEST_OF(core, own_user_and_root_may_come_in)
{
    ok(admit(1000, 1000));
    ok(admit(0, 1000));
    ok(admit(0, 0));
    ck_assert_int_eq(admit(1001, 1000), DLX_E_ACCESS);
    ck_assert_str_eq(dlx__error_message(),
                     "uid 1001 may not use this daemon, which serves uid 1000 and root: start it "
                     "with --allow-user=1001, or use a daemon of your own");
    ck_assert_int_eq(admit(1000, 0), DLX_E_ACCESS);
    ck_assert_int_eq(admit(65534, 65534), DLX_E_ACCESS); /* a user without a rule */
}

TEST_OF(core, allowed_users_may_do_everything_and_others_nothing)
{
    static const uid_t allowed[] = {1001, 1003, 65534};
    struct dlxd_rules rules = {.n = 0};
    const struct dlxd_policy policy = {.uid = 1000, .borrow_rules = &rules};
    for (int i = 0; i < 3; i++)
        ok(dlxd_rules_add_user(&rules, "--allow-user", allowed[i]));
    for (uid_t uid = 1000; uid < 1005; uid++) {
        const struct dlxd_principal who = {.uid = uid, .socket = DLXD_SOCKET_MAIN};
        const bool may = uid != 1002 && uid != 1004;
        ck_assert_int_eq(dlxd_policy_admit(&policy, &who), may ? 0 : DLX_E_ACCESS);
        for (int verb = 0; verb < DLXD_N_VERBS; verb++)
            ck_assert(dlxd_policy_may(&policy, &who, (enum dlxd_verb)verb, "a/b") ==
                      (may && (verb != DLXD_MAY_GPU || uid == 1000)));
    }
    ck_assert_str_eq(dlx__error_message(), "uid 1004 may not use this daemon, which serves uid "
                                           "1000, root and those whom its configuration names: "
                                           "add a rule to dlpackd.conf, or join a group that "
                                           "has one");
    ck_assert_int_eq(dlxd_policy_admit(&policy, &(struct dlxd_principal){.uid = 65534}),
                     DLX_E_ACCESS); /* it has no rights, even if a rule lists it */
    dlxd_rules_deinit(&rules);
}

/* What publishers see of a line. */
static const struct dlx_shm_membership *attach(const struct dlxd_membership_line *line)
{
    const void *map;
    int fd;
    ok(dlxd_membership_dup_fd(line, &fd));
    ck_assert_int_eq(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
    ok(dlx__region_attach(&dlx__memory_memfd, fd, dlxd_membership_size(), &map));
    return (const struct dlx_shm_membership *)map + line->index;
}

static void detach(const struct dlx_shm_membership *line)
{
    dlx__region_unmap((const void *)((uintptr_t)line & ~(uintptr_t)(DLX_PAGE - 1)), DLX_PAGE);
}

static uint64_t joins(const struct dlx_shm_membership *line)
{
    return dlx_load64_sc((dlx_atomic_u64 *)(uintptr_t)&line->joins);
}

static uint64_t leaves(const struct dlx_shm_membership *line)
{
    return dlx_load64_sc((dlx_atomic_u64 *)(uintptr_t)&line->leaves);
}

#define auto_line DLX_TEST_AUTO(dlxd_membership_line_deinit) struct dlxd_membership_line

static void init_line(struct dlxd_membership_line *ret)
{
    ok(dlxd_membership_line_init(ret, user[1], &dlx__memory_memfd));
}

TEST_OF(users, lines_are_given_out_zeroed_and_taken_back)
{
    enum { N = 130 };
    static struct dlxd_membership_line lines[N];
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < N; i++) {
            init_line(&lines[i]);
            ck_assert_uint_eq(lines[i].index, (unsigned)i % 64);
            const struct dlx_shm_membership *seen = attach(&lines[i]);
            ck_assert_uint_eq(joins(seen), 0);
            ck_assert_uint_eq(leaves(seen), 0);
            dlxd_membership_joined(&lines[i]);
            dlxd_membership_joined(&lines[i]);
            dlxd_membership_left(&lines[i]);
            ck_assert_uint_eq(joins(seen), 2);
            dlxd_membership_withdrawn(&lines[i]);
            ck_assert_uint_eq(joins(seen), 1);
            ck_assert_uint_eq(leaves(seen), 1);
            detach(seen);
        }
        for (int i = 0; i < N; i++)
            dlxd_membership_line_deinit(&lines[i]);
        dlxd_membership_line_deinit(&lines[0]);
        dlxd_membership_joined(&lines[0]); /* no line: nothing happens */
        ck_assert(dlxd_list_empty(&user[1]->membership_pages));
    }
}

/* A publisher that was disconnected may look at its line yet: it is to see joins that it knows
 * nothing of. */
TEST_OF(users, a_line_that_is_given_to_another_never_goes_back)
{
    auto_line other = {0}, line = {0};
    init_line(&other);
    init_line(&line);
    const struct dlx_shm_membership *seen = attach(&line);
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned n = 0; n < 5 * round; n++) /* none at first: it would look at nothing else */
            dlxd_membership_joined(&line);
        uint64_t before = joins(seen);
        ck_assert_uint_eq(before & DLX_SHM_JOINS_MASK, 5 * round);
        dlxd_membership_line_deinit(&line);
        ck_assert_uint_eq(joins(seen), before); /* streams go on as they are */
        init_line(&line);
        ck_assert_uint_gt(joins(seen), before);
        ck_assert_uint_eq(joins(seen) & DLX_SHM_JOINS_MASK, 0);
    }
    detach(seen);
}

static uint32_t daemon_tid(const struct dlx_shm_membership *line)
{
    return dlx_load32_sc((dlx_atomic_u32 *)(uintptr_t)&line->daemon_tid);
}

/* Not by what the publisher was given, nor by what a process of the same user makes of it. */
static void nothing_writes_through(int fd)
{
    ck_assert_ptr_eq(mmap(NULL, DLX_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    ck_assert_int_lt(pwrite(fd, "x", 1, 0), 0);
    ck_assert_int_lt(ftruncate(fd, 0), 0);
    ck_assert_int_lt(ftruncate(fd, 2 * DLX_PAGE), 0);
    ck_assert_int_lt(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, DLX_PAGE), 0);
}

TEST_OF(users, a_membership_page_has_no_writer_but_the_daemon)
{
    auto_line line = {0};
    char path[64];
    int fd;
    init_line(&line);
    ok(dlxd_membership_dup_fd(&line, &fd));
    nothing_writes_through(fd);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int again = open(path, O_RDWR | O_CLOEXEC); /* the kernel allows it: the file is ours */
    ck_assert_int_ge(again, 0);
    nothing_writes_through(again);
    dlx__close(again);
    dlx__close(fd);
    const struct dlx_shm_membership *seen = attach(&line);
    dlxd_membership_joined(&line);
    ck_assert_uint_eq(joins(seen), 1);
    detach(seen);
}

/* A daemon's loop that takes lines, gives some back, and ends with the others. */
struct loop {
    struct dlxd_membership_line lines[2100];
    const struct dlx_shm_membership *seen[2100];
    struct dlxd_user *user;
};

static void *run_loop(void *userdata)
{
    struct loop *loop = userdata;
    uint32_t tid = (uint32_t)syscall(SYS_gettid);
    for (uint32_t i = 0; i < DLX_ARRAY_SIZE(loop->lines); i++) {
        if (dlxd_membership_line_init(&loop->lines[i], loop->user, &dlx__memory_memfd) < 0)
            return "no line";
        loop->seen[i] = attach(&loop->lines[i]);
        if (daemon_tid(loop->seen[i]) != (i < 2048 ? tid : 0))
            return "not the right daemon_tid";
    }
    for (uint32_t i = 0; i < DLX_ARRAY_SIZE(loop->lines); i += i % 3 + 1) {
        dlxd_membership_line_deinit(&loop->lines[i]);
        if (daemon_tid(loop->seen[i]) != 0)
            return "daemon_tid is still set";
        if (i % 2)
            continue;
        detach(loop->seen[i]);
        if (dlxd_membership_line_init(&loop->lines[i], loop->user, &dlx__memory_memfd) < 0)
            return "no line";
        loop->seen[i] = attach(&loop->lines[i]);
        if (daemon_tid(loop->seen[i]) != tid)
            return "daemon_tid is not set again";
    }
    return NULL;
}

/* The kernel does it, as when a daemon is killed. */
TEST_OF(users, a_loop_that_has_ended_vouches_for_no_publisher)
{
    static struct loop loop;
    static struct dlxd_users others; /* not of the fixture: only a loop may end its own lines */
    pthread_t thread;
    void *fault = NULL;
    uint32_t n = 0;
    dlxd_users_init(&others, 1 << 20);
    ok(dlxd_users_get(&others, &(struct dlxd_principal){.uid = 7}, &loop.user));
    ck_assert_int_eq(pthread_create(&thread, NULL, run_loop, &loop), 0);
    ck_assert_int_eq(pthread_join(thread, &fault), 0);
    ck_assert_msg(!fault, "%s", (const char *)fault);
    for (uint32_t i = 0; i < DLX_ARRAY_SIZE(loop.lines); i++) {
        uint32_t word = daemon_tid(loop.seen[i]);
        ck_assert_uint_eq(word & FUTEX_TID_MASK, 0);
        n += word == FUTEX_OWNER_DIED;
        detach(loop.seen[i]);
    }
    ck_assert_uint_gt(n, 1000);
}

int main(void)
{
    return dlx_test_run_cases();
}
