/* SPDX-License-Identifier: Apache-2.0 */
/* Rights to drop retained messages, their end, and those of a former daemon: users, times and
 * regions that a test cannot have for real. */
#include "common/memory.h"
#include "ring/layout.h"
#include "daemon/objects/group.h"
#include "daemon/objects/offer.h"
#include "daemon/objects/publisher_state.h"
#include "tests/daemon/harness_scene.h"
#include "tests/harness/fds.h"

static int life[2]; /* a former daemon's process lives until its end is closed; -1: it is dead */

static struct dlxd_client *new_client(uid_t uid)
{
    struct dlxd_client *client = dlx_scene_client(0, 10);
    client->principal->uid = uid; /* the broker asks for nothing else */
    return client;
}

static void set_up(void)
{
    dlx_scene.broker.policy.uid = 500;
    life[1] = 0;
}

/* The arguments of most publishers here. */
#define RETAINS_2(...) PUBLISHER_CONFIG(.history = 4, .retain = 2, __VA_ARGS__)

/* A publisher that is ready and has published this many messages. */
static struct dlxd_publisher *new_publisher(struct dlxd_client *client, uint64_t head)
{
    return dlx_test_broker_publisher(client, "t", RETAINS_2(), head);
}

/* Makes a publisher that has left, too. */
static void leave_messages(struct dlxd_client *client, uint64_t head, uint64_t retain_for_ns)
{
    (void)dlxd_publisher_end(
        dlx_test_broker_publisher(client, "t", RETAINS_2(.retain_for_ns = retain_for_ns), head));
}

static bool is_idle(void)
{
    dlxd_broker_settle(&dlx_scene.broker);
    return dlxd_broker_is_idle(&dlx_scene.broker);
}

static size_t n_publishers(void)
{
    return dlx_scene.broker.registry.publishers.n;
}

static int drop(const struct dlxd_client *client, uint32_t *n)
{
    int r;
    while ((r = dlxd_retained_drop(client, "t", n)) == 1)
        ;
    return r;
}

TEST(another_user_neither_evicts_nor_drops)
{
    uint32_t n = 0;
    struct dlxd_client *a = new_client(1000), *b = new_client(1001);
    leave_messages(a, 5, 0);
    ck_assert_uint_eq(n_publishers(), 1);
    struct dlxd_publisher *other = new_publisher(b, 9);
    dlxd_retained_succeed(other);
    ck_assert_uint_eq(n_publishers(), 2);
    dlxd_publisher_end(other);
    ck_assert_uint_eq(n_publishers(), 2);
    ok(drop(b, &n));
    ck_assert_uint_eq(n, 1);
    n = 0;
    fails(drop(b, &n), DLX_E_ACCESS, "uid 1000");
    ck_assert_uint_eq(n_publishers(), 1);
    /* The same user, root and the daemon's own user may. */
    struct dlxd_publisher *same = new_publisher(a, 2);
    dlxd_retained_succeed(same);
    ck_assert_uint_eq(n_publishers(), 1);
    dlxd_publisher_end(same);
    b->principal->uid = 0;
    dlxd_retained_succeed(new_publisher(b, 2));
    ck_assert_uint_eq(n_publishers(), 1);
    leave_messages(a, 2, 0);
    ck_assert_uint_eq(n_publishers(), 2);
    b->principal->uid = 500;
    ok(drop(b, &n));
}

TEST(a_counter_that_lies_low_replaces_nothing)
{
    struct dlxd_client *a = new_client(1000);
    leave_messages(a, 5, 0);
    struct dlxd_publisher *successor = new_publisher(a, 1); /* retains 2 */
    dlxd_retained_succeed(successor);
    ck_assert_uint_eq(n_publishers(), 2);
    /* A publisher that published nothing leaves nothing. */
    leave_messages(a, 0, 0);
    ck_assert_uint_eq(n_publishers(), 2);
}

TEST(the_first_to_expire_comes_first)
{
    struct dlxd_client *a = new_client(1000);
    static const uint64_t times[] = {3000000, 1000000, 0, 2000000, UINT64_MAX, 4000000};
    uint64_t begin = dlx__now_ns();
    ck_assert_uint_eq(dlxd_retained_next_ns(&dlx_scene.broker), UINT64_MAX);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(times); i++)
        leave_messages(a, 1, times[i]);
    /* 2 of retain, but 1 published each: none replaces another. */
    ck_assert_uint_eq(n_publishers(), 6);
    ck_assert_uint_ge(dlxd_retained_next_ns(&dlx_scene.broker), begin + 1000000);
    for (size_t left = 6; left > 2; left--) {
        uint64_t next = dlxd_retained_next_ns(&dlx_scene.broker);
        dlxd_retained_expire(&dlx_scene.broker, next - 1);
        ck_assert_uint_eq(n_publishers(), left);
        dlxd_retained_expire(&dlx_scene.broker, next);
        ck_assert_uint_eq(n_publishers(), left - 1);
    }
    ck_assert_uint_eq(dlxd_retained_next_ns(&dlx_scene.broker), UINT64_MAX);
}

enum { MANY = 60, AT_ONCE = 1 };

/* Of so many, at most a part has vanished. Returns how many are left. */
static size_t expect_part(size_t before)
{
    size_t n = n_publishers();
    ck_assert_uint_le(n, before);
    ck_assert_uint_le(before - n, AT_ONCE);
    return n;
}

TEST(many_are_replaced_in_parts)
{
    struct dlxd_client *a = new_client(1000);
    for (int i = 0; i < MANY; i++)
        leave_messages(a, 1, 0);
    struct dlxd_publisher *successor = new_publisher(a, 2);
    ck_assert(dlxd_retained_succeed(successor));
    size_t left = expect_part(MANY + 1);
    while (dlxd_work_is_left(&dlx_scene.broker.users)) {
        dlxd_work_run(&dlx_scene.broker.users, 1);
        left = expect_part(left);
    }
    ck_assert(!successor->succeeds);
    ck_assert_uint_eq(left, 1);
}

/* A worker has left meanwhile: all may be done. */
TEST(a_publisher_that_replaces_messages_looks_at_its_groups_next)
{
    char *names[] = {"g"};
    struct dlxd_publisher *publisher =
        dlx_test_broker_publisher(new_client(1000), "t", RETAINS_2(.n_groups = 1), 5);
    ok(dlxd_groups_declare(publisher, names));
    ck_assert(dlxd_publisher_end(publisher));
    publisher->succeeds = publisher->looks_at_groups = true;
    dlxd_task_start(&publisher->task, publisher->user);
    dlxd_broker_settle(&dlx_scene.broker);
    ck_assert(!publisher->succeeds);
    ck_assert(!publisher->looks_at_groups);
}

TEST(many_that_expire_together_do_so_in_parts)
{
    struct dlxd_client *a = new_client(1000);
    for (int i = 0; i < MANY; i++)
        leave_messages(a, 1, 1000000);
    for (size_t left = MANY; left > 0; left = expect_part(left))
        dlxd_retained_expire(&dlx_scene.broker, UINT64_MAX - 1);
}

/* Whether for ever or for a time: a daemon that ends would take it along. */
LOOP_TEST(while_anything_is_retained_the_daemon_is_not_idle, 0, 2)
{
    uint32_t n;
    ck_assert(is_idle());
    struct dlxd_client *a = new_client(1000);
    leave_messages(a, 1, _i == 0 ? 0 : UINT64_C(3600) * 1000000000);
    dlxd_client_free(a);
    ck_assert(!is_idle());
    if (_i == 0) {
        a = new_client(1000);
        ok(drop(a, &n));
        dlxd_client_free(a);
    } else {
        uint64_t end = dlxd_retained_next_ns(&dlx_scene.broker);
        dlxd_retained_expire(&dlx_scene.broker, end - 1);
        ck_assert(!is_idle());
        dlxd_retained_expire(&dlx_scene.broker, end);
    }
    ck_assert(is_idle());
}

/* The second in which its process is awaited is not its end: the ledger would say so to the next
 * daemon. */
TEST(messages_retained_for_ever_have_no_end_after_a_late_death)
{
    int pidfd[2]; /* readable: dead */
    struct dlxd_client *a = new_client(1000);
    struct dlxd_publisher *publisher = new_publisher(a, 5);
    ck_assert_int_eq(pipe2(pidfd, O_CLOEXEC), 0);
    dlxd_publisher_die(publisher, pidfd[0]);
    ck_assert_uint_ne(dlxd_retained_next_ns(&dlx_scene.broker), UINT64_MAX);
    close(pidfd[1]);
    dlx_test_broker_run(&dlx_scene);
    dlx_test_broker_run(&dlx_scene);
    ck_assert_uint_eq(dlxd_retained_next_ns(&dlx_scene.broker), UINT64_MAX);
    ck_assert_uint_eq(publisher->expires_ns, 0);
    ck_assert_uint_eq(n_publishers(), 1);
    close(pidfd[0]);
}

TEST(the_descriptor_of_a_process_that_ends_late_is_charged_until_then)
{
    int pidfd[2]; /* readable: dead */
    struct dlxd_client *a = new_client(1000);
    struct dlxd_publisher *publisher = new_publisher(a, 5);
    ck_assert_int_eq(pipe2(pidfd, O_CLOEXEC), 0);
    dlxd_publisher_die(publisher, pidfd[0]);
    uint64_t n = a->user->used[DLXD_DESCRIPTORS];
    close(pidfd[1]);
    dlx_test_broker_run(&dlx_scene);
    dlx_test_broker_run(&dlx_scene);
    ck_assert_int_eq(publisher->state, DLXD_PUBLISHER_RETAINED);
    ck_assert_uint_eq(a->user->used[DLXD_DESCRIPTORS], n - 1);
    close(pidfd[0]);
}

static struct dlx_shm_control *newest_block; /* as its publisher has it mapped */

/* If it is large enough for a control block, with what that says. */
static int region_of(uint64_t size, uint64_t head, bool heeds_locks)
{
    int fd, writer;
    void *map;
    ok(dlx__region_new(&dlx__memory_memfd, "test", size, &fd, &writer));
    ok(dlx__region_populate(&dlx__memory_memfd, writer, size, &map));
    struct dlx_shm_control *control = map;
    control->head = head;
    control->heeds_locks = heeds_locks;
    newest_block = control; /* until the test's process ends */
    return fd;
}

/* A publisher of a former daemon, of uid 1000. */
static const struct dlxd_publisher_former former_publisher = {
    .id = 100,
    .uid = 1000,
    .socket = DLXD_SOCKET_MAIN,
    .client_name = "former",
    .topic = "t",
    .config = {.history = 4, .depth = 16, .n_entries = 256, .retain = 2}};

enum { CONTROL, ARENA_1, ARENA_4, N_REGIONS };

/* The records of the ledger, and the service manager's descriptors. */
static const struct restored {
    uint32_t n_entries, first, n;
    int regions[N_REGIONS];
    int code;
} restored[] = {
    {256, 0, 3, {CONTROL, ARENA_1, ARENA_4}, 0},
    {256, 0, 1, {CONTROL}, 0},
    {256, 0, 0, {CONTROL}, DLX_E_PROTOCOL},
    {256, 1, 2, {CONTROL, ARENA_1, ARENA_4}, DLX_E_PROTOCOL},
    {256, 0, 3, {CONTROL, CONTROL, ARENA_1}, DLX_E_PROTOCOL},
    {256, 0, 3, {CONTROL, ARENA_1, ARENA_1}, DLX_E_PROTOCOL},
    {512, 0, 1, {CONTROL}, DLX_E_PROTOCOL},
    {0, 0, 1, {CONTROL}, DLX_E_PROTOCOL},
    {UINT32_MAX, 0, 1, {CONTROL}, DLX_E_PROTOCOL},
};

LOOP_TEST(regions_that_cannot_be_a_publisher_are_not_restored, 0, DLX_ARRAY_SIZE(restored))
{
    static const struct dlxd_publisher_region kinds[] = {
        {.id = 0}, {.id = 1, .ready_seq = 1}, {.id = 4, .ready_seq = 3}};
    const struct restored *row = &restored[_i];
    struct dlxd_publisher *publisher;
    struct dlxd_publisher_region regions[N_REGIONS];
    struct dlxd_publisher_former former = former_publisher;
    former.config.n_entries = row->n_entries;
    for (int i = 0; i < N_REGIONS; i++) {
        bool is_control = row->regions[i] == CONTROL;
        regions[i] = kinds[row->regions[i]];
        regions[i].fd = region_of(is_control ? dlx_shm_control_size(256) : DLX_PAGE, 0, false);
    }
    int r = dlxd_publisher_restore(&publisher, &dlx_scene.broker, &former, regions + row->first,
                                   row->n);
    ck_assert_msg(r == row->code, "%d, %s", r, dlx__error_message());
    for (uint32_t i = 0; i < N_REGIONS; i++)
        if (r < 0 || i < row->first || i >= row->first + row->n)
            close(regions[i].fd); /* no record took it */
    if (r < 0) {                  /* no charge is left, which would keep the user */
        ck_assert(dlxd_list_empty(&dlx_scene.broker.users.users));
        return;
    }
    ck_assert_uint_eq(publisher->user->used[DLXD_OBJECTS], 1);
    ck_assert_uint_eq(publisher->user->used[DLXD_DESCRIPTORS], row->n); /* no link socket */
    ck_assert_uint_eq(publisher->ready.n, row->n - 1);
    ck_assert_uint_eq(publisher->last_arena, regions[row->n - 1].id);
    dlxd_retained_restore(publisher, -1, 0); /* without a message it is nothing */
    ck_assert_uint_eq(n_publishers(), 0);
}

static uint64_t retained_bytes(const struct dlxd_user *user)
{
    return user->used[DLXD_RETAINED_BYTES];
}

/* Counted from the start on, so that there is room at the end; until no subscriber can get it any
 * more. */
TEST(memory_that_stays_is_counted_until_it_goes)
{
    struct dlxd_client *client = new_client(1000);
    struct dlxd_user *user = dlxd_user_ref(client->user);
    struct dlxd_arena *dropped;
    uint64_t size = dlx_shm_control_size(256);
    (void)dlx_test_broker_publisher(client, "l", RETAINS_2(.latched = true), 1);
    (void)dlx_test_broker_publisher(client, "p", &dlx_scene_plain, 1);
    ck_assert_uint_eq(retained_bytes(user), 0);
    struct dlxd_publisher *publisher = new_publisher(client, 5);
    ck_assert_uint_eq(retained_bytes(user), size);
    (void)dlx_scene_arena(publisher, DLX_PAGE);
    dropped = dlx_scene_arena(publisher, DLX_PAGE);
    ck_assert_uint_eq(retained_bytes(user), size + 2 * DLX_PAGE);
    ok(dlxd_publisher_arena_drop(publisher, dropped->id));
    ck_assert_uint_eq(retained_bytes(user), size + DLX_PAGE);
    uint64_t n_descriptors = user->used[DLXD_DESCRIPTORS];
    ck_assert(dlxd_publisher_end(publisher));
    ck_assert_uint_eq(user->used[DLXD_DESCRIPTORS], n_descriptors - 1); /* the link socket */
    ck_assert_uint_eq(retained_bytes(user), size + DLX_PAGE);
    dlxd_publisher_vanish(publisher);
    ck_assert_uint_eq(retained_bytes(user), 0);
    dlxd_user_unref(user);
}

/* Such an arena has no retained messages, and no client can make it ready any more. */
TEST(an_arena_that_was_never_ready_goes_with_its_client)
{
    int writer;
    struct dlxd_arena *arena;
    struct dlxd_client *client = new_client(1000);
    struct dlxd_publisher *publisher = new_publisher(client, 5);
    uint64_t bytes = client->user->used[DLXD_BYTES];
    ok(dlxd_publisher_arena_new(publisher, 16 * DLX_PAGE, &arena, &writer));
    (void)dlx_scene_keep(writer);
    ck_assert_uint_eq(client->user->used[DLXD_BYTES], bytes + 16 * DLX_PAGE);
    ck_assert(dlxd_publisher_end(publisher));
    ck_assert_uint_le(client->user->used[DLXD_BYTES], bytes);
    ck_assert_uint_eq(publisher->unready.n, 0);
}

/* A subscriber that still reads dropped messages keeps them mapped; no other one can get them. */
TEST(memory_that_a_subscriber_still_has_is_not_retained)
{
    int sock;
    struct dlxd_client *client = new_client(500), *reader = new_client(500);
    struct dlxd_user *user = client->user;
    struct dlxd_publisher *publisher = new_publisher(client, 5);
    struct dlxd_subscription *subscription = dlx_scene_subscription(reader, "t", NULL, &sock);
    ck_assert_uint_eq(dlx_scene_subscribed(subscription), 1);
    ck_assert_uint_eq(publisher->n_links, 1);
    const struct dlxd_arena *control = publisher->control;
    struct dlxd_link *link = dlx_scene_link(subscription);
    struct dlxd_arena *arena = dlx_scene_arena(publisher, DLX_PAGE);
    link->state = DLXD_LINK_OPEN; /* as after LinkReady */
    link->open_seq = link->arena_seq = publisher->last_ready_seq;
    dlxd_membership_joined(&publisher->line);
    ck_assert_uint_eq(retained_bytes(user), control->size + DLX_PAGE);
    ok(dlxd_publisher_arena_drop(publisher, arena->id));
    ck_assert_uint_eq(publisher->dropped.n, 1);
    ck_assert_uint_eq(retained_bytes(user), control->size);
    dlxd_publisher_vanish(publisher);
    ck_assert_uint_eq(retained_bytes(user), 0);
    ck_assert_uint_ge(user->used[DLXD_BYTES], control->size);
}

TEST(a_publisher_that_would_retain_beyond_the_limit_is_refused_from_the_start)
{
    struct dlxd_publisher_fds made;
    struct dlxd_publisher *another;
    struct dlxd_arena *arena;
    char words[200];
    int writer;
    uint64_t size = dlx_shm_control_size(256);
    struct dlxd_client *client = new_client(1000);
    dlx_scene.broker.users.max[DLXD_RETAINED_BYTES] = size + DLX_PAGE;
    struct dlxd_publisher *publisher = new_publisher(client, 5);
    (void)dlx_scene_arena(publisher, DLX_PAGE);
    uint64_t bytes = client->user->used[DLXD_BYTES];
    (void)snprintf(words, sizeof words,
                   "asks for 4.0 KiB of memory that stays when its publisher has gone, uses %.1f "
                   "KiB and may have %.1f KiB (quota retained-bytes)",
                   (double)(size + DLX_PAGE) / 1024, (double)(size + DLX_PAGE) / 1024);
    fails(dlxd_publisher_arena_new(publisher, DLX_PAGE, &arena, &writer), DLX_E_LIMIT, words);
    ck_assert_uint_eq(client->user->used[DLXD_BYTES], bytes); /* and nothing else is charged */
    ck_assert_int_eq(dlxd_publisher_new(&another, client, "t", RETAINS_2(), &made), DLX_E_LIMIT);
    (void)dlx_test_broker_publisher(client, "p", &dlx_scene_plain, 1);
}

/* Only the publisher's control block is there, with its content. */
static struct dlxd_publisher *read_back(const struct dlxd_publisher_former *former, uint64_t head,
                                        bool heeds_locks)
{
    struct dlxd_publisher *publisher;
    const struct dlxd_publisher_region control = {
        .fd = region_of(dlx_shm_control_size(256), head, heeds_locks)};
    ok(dlxd_publisher_restore(&publisher, &dlx_scene.broker, former, &control, 1));
    return publisher;
}

static struct dlxd_publisher *restore_after(uint64_t id, uint64_t resumes, uint64_t after_seq,
                                            uint64_t head, bool heeds)
{
    struct dlxd_publisher_former former = former_publisher;
    former.id = id;
    former.config.resumes = resumes;
    former.config.after_seq = after_seq;
    struct dlxd_publisher *publisher = read_back(&former, head, heeds);
    if (life[1] == 0)
        ck_assert_int_eq(pipe2(life, O_CLOEXEC), 0);
    int pidfd = life[0] < 0 ? -1 : dlx_test_fds_dup(life[0]);
    bool hidden = dlxd_retained_restore(publisher, pidfd, 0);
    ck_assert_int_eq(hidden, publisher->state == DLXD_PUBLISHER_HIDDEN);
    return publisher;
}

static struct dlxd_publisher *restore(uint64_t id, uint64_t head, bool heeds)
{
    return restore_after(id, 0, 0, head, heeds);
}

/* An upgrade loses nothing, whatever the limits have become. */
TEST(messages_that_a_former_daemon_retained_are_back_beyond_the_limits)
{
    for (int i = 0; i < DLXD_N_RESOURCES; i++)
        dlx_scene.broker.users.max[i] = 0;
    struct dlxd_publisher *publisher = read_back(&former_publisher, 3, false);
    ck_assert_uint_eq(retained_bytes(publisher->user), dlx_shm_control_size(256));
    ck_assert_uint_eq(publisher->user->used[DLXD_BYTES], dlx_shm_control_size(256));
    ck_assert_uint_eq(publisher->user->used[DLXD_OBJECTS], 1);
    (void)dlxd_retained_restore(publisher, -1, 0);
    ck_assert_uint_eq(n_publishers(), 1);
}

static void die(void)
{
    close(life[1]);
    dlx_test_broker_run(&dlx_scene);
    dlx_test_broker_run(&dlx_scene);
    close(life[0]);
    life[0] = -1; /* of one that is restored later there is none */
}

static struct dlxd_subscription *new_subscription(struct dlxd_client *client, bool reliable)
{
    static struct dlxd_rules rules;
    int sock;
    if (rules.n == 0)
        ok(dlxd_rules_add_user(&rules, "test", 1000));
    dlx_scene.broker.policy.borrow_rules = &rules;
    return dlx_scene_subscription(client, "t",
                                  SUBSCRIPTION_CONFIG(.max_held = 1, .reliable = reliable), &sock);
}

/* Returns how many links it is offered. */
static uint32_t subscribe(struct dlxd_client *client, bool reliable)
{
    return dlx_scene_subscribed(new_subscription(client, reliable));
}

/* How many publishers have yet to come to this daemon, as a reliable subscriber is told. */
static uint32_t n_away(struct dlxd_client *client)
{
    struct dlxd_offers offers;
    dlxd_offers_init(&offers, new_subscription(client, true));
    while (dlxd_offers_step(&offers) == 1)
        ;
    uint32_t n = offers.n_away;
    dlxd_offers_deinit(&offers);
    return n;
}

/* What a publisher stores that closes its control block after message `head`. */
static void close_newest(uint64_t head)
{
    dlx_store64_release(&newest_block->entries[(head + 1) % 256].gen, (head + 1) | DLX_SHM_END);
}

/* It could not tell this daemon, and its process lives on. */
LOOP_TEST(a_publisher_of_a_former_daemon_that_closes_is_found, 0, 2)
{
    struct dlxd_publisher *publisher = restore(100, 5, _i);
    struct dlxd_client *client = new_client(1000);
    close_newest(4); /* it has published another one since */
    dlxd_retained_look_all(&dlx_scene.broker);
    ck_assert_int_ne(publisher->state, DLXD_PUBLISHER_RETAINED);
    ck_assert_uint_eq(subscribe(client, true), 0);
    close_newest(5);
    dlxd_retained_look_all(&dlx_scene.broker);
    ck_assert_int_eq(publisher->state, DLXD_PUBLISHER_RETAINED);
    ck_assert_uint_eq(subscribe(client, true), 1);
    die();
    dlxd_retained_look_all(&dlx_scene.broker);
    ck_assert_uint_eq(n_publishers(), 1);
}

TEST(a_publisher_of_a_former_daemon_that_closes_with_nothing_vanishes)
{
    restore(100, 0, true);
    close_newest(0);
    ck_assert_uint_eq(n_publishers(), 1);
    dlxd_retained_look_all(&dlx_scene.broker);
    ck_assert_uint_eq(n_publishers(), 0);
    die();
}

/* The successor is looked at first, after a look that had no time for it, and replaces the last one
 * of the list. */
TEST(a_look_that_ends_two_publishers_goes_on_with_the_list)
{
    struct dlxd_publisher *publisher = restore(100, 5, true);
    restore_after(101, 100, 4, 5, true);
    dlxd_list_remove(&publisher->by_look);
    dlxd_list_push_back(&dlx_scene.broker.looked, &publisher->by_look);
    dlx_store64_release(&newest_block->head, 6); /* as many messages as replace those of 100 */
    close_newest(6);
    dlxd_retained_look_all(&dlx_scene.broker);
    ck_assert_uint_eq(n_publishers(), 1);
    ck_assert(dlxd_list_empty(&dlx_scene.broker.looked));
    die();
}

/* It closed while there was no daemon. */
TEST(a_publisher_that_had_closed_is_restored_as_one_that_has_ended)
{
    struct dlxd_publisher *publisher = read_back(&former_publisher, 5, true);
    close_newest(5);
    ck_assert_int_eq(pipe2(life, O_CLOEXEC), 0);
    ck_assert(!dlxd_retained_restore(publisher, dlx_test_fds_dup(life[0]), 0));
    ck_assert_int_eq(publisher->state, DLXD_PUBLISHER_RETAINED);
    die();
}

TEST(a_live_publisher_is_shown_if_its_library_looks_for_locks)
{
    ck_assert_int_eq(restore(100, 5, false)->state, DLXD_PUBLISHER_HIDDEN);
    ck_assert_int_eq(restore(101, 0, true)->state, DLXD_PUBLISHER_HIDDEN); /* with nothing */
    struct dlxd_publisher *publisher = restore(102, 5, true);
    ck_assert_int_eq(publisher->state, DLXD_PUBLISHER_SHOWN);
    die();
    ck_assert_int_eq(publisher->state, DLXD_PUBLISHER_RETAINED);
    ck_assert_uint_eq(n_publishers(), 1); /* 101 left nothing, and this one replaces 100 */
}

TEST(a_shown_publisher_is_offered_to_able_subscribers_and_to_others_later)
{
    struct dlxd_client *client = new_client(1000), *old = new_client(1000);
    struct dlxd_publisher *publisher = restore(100, 5, true);
    client->principal->minor = 2;
    old->principal->minor = 1;
    ck_assert_uint_eq(subscribe(client, false), 1);
    ck_assert_uint_eq(subscribe(client, true), 0); /* it would not be waited for */
    ck_assert_uint_eq(subscribe(old, false), 0);   /* it does not know what that is */
    ck_assert_uint_eq(publisher->n_links, 1);
    die();
    ck_assert_uint_eq(publisher->n_links, 3);
}

TEST(a_publisher_that_was_announced_again_is_not_away)
{
    struct dlxd_client *client = new_client(1000);
    restore(100, 5, true);
    ck_assert_uint_eq(n_away(client), 1);
    dlx_test_broker_publisher(client, "t", RETAINS_2(.resumes = 100, .after_seq = 5), 5);
    ck_assert_uint_eq(n_away(client), 0);
    die();
}

LOOP_TEST(reannounced_publisher_is_shown_once, 0, 2)
{
    struct dlxd_client *client = new_client(1000), *other = new_client(1001);
    struct dlxd_publisher *publisher = restore(100, 5, true);
    const struct dlxd_publisher_config *config = RETAINS_2(.resumes = 100, .after_seq = 5);
    client->principal->minor = 2;
    dlx_test_broker_publisher(other, "t", config, 5); /* of another user: it only says so */
    ck_assert_uint_eq(subscribe(client, false), 2);
    if (_i == 0)
        dlx_test_broker_publisher(client, "t", config, 5);
    else /* it had, and that daemon ended, too */
        ck_assert_int_eq(restore_after(101, 100, 5, 6, true)->state, DLXD_PUBLISHER_SHOWN);
    ck_assert_int_eq(publisher->state, DLXD_PUBLISHER_SHOWN);
    ck_assert_uint_eq(subscribe(client, false), 2);
    ck_assert_uint_eq(publisher->n_links, 1);
    die(); /* without as many messages in the new block as would replace these */
    ck_assert_uint_eq(n_publishers(), 3);
}

/* The publisher had announced itself again, and the daemon was killed before it read that the new
 * block has the retained messages of the old one. An idle publisher tells no later daemon. */
LOOP_TEST(reannounced_publisher_replaces_itself_when_it_is_restored, 0, 4)
{
    bool heeds = _i % 2, is_dead = _i / 2;
    restore(100, 5, heeds);
    restore_after(101, 100, 4, 5, heeds); /* it has 1 message, and retains 2 */
    ck_assert_uint_eq(n_publishers(), 2);
    if (is_dead)
        die();
    ck_assert_uint_eq(n_publishers(), 2);
    struct dlxd_publisher *newest = restore_after(102, 100, 3, 5, heeds);
    dlxd_broker_settle(&dlx_scene.broker);
    ck_assert_uint_eq(n_publishers(), 1);
    ck_assert_ptr_nonnull(dlxd_idmap_find(&dlx_scene.broker.registry.publishers, 102));
    ck_assert_int_eq(newest->state, is_dead ? DLXD_PUBLISHER_RETAINED
                                    : heeds ? DLXD_PUBLISHER_SHOWN
                                            : DLXD_PUBLISHER_HIDDEN);
    if (!is_dead)
        die();
}

/* The publisher lives, and replaces its retained messages itself. Once it has died, any publisher
 * that could may do so. */
LOOP_TEST(a_live_publisher_is_replaced_by_itself_only, 0, 4)
{
    bool heeds = _i % 2, dies = _i / 2;
    struct dlxd_client *client = new_client(1000);
    struct dlxd_publisher *publisher = restore(100, 5, heeds);
    struct dlxd_publisher *other = dlx_test_broker_publisher(
        client, "t", PUBLISHER_CONFIG(.history = 4, .retain = 1, .resumes = 77), 5);
    dlxd_retained_succeed(other);
    ck_assert_uint_eq(n_publishers(), 2);
    ck_assert_int_eq(publisher->state, heeds ? DLXD_PUBLISHER_SHOWN : DLXD_PUBLISHER_HIDDEN);
    if (dies) {
        die();
        ck_assert_uint_eq(n_publishers(), 2);
        dlxd_retained_succeed(other);
        ck_assert_uint_eq(n_publishers(), 1);
    } else {
        dlxd_retained_succeed(dlx_test_broker_publisher(
            client, "t", PUBLISHER_CONFIG(.history = 4, .retain = 1, .resumes = 100), 5));
        ck_assert_uint_eq(n_publishers(), 2); /* itself, and the other one */
        die();
    }
}

int main(void)
{
    return dlx_test_run_case(dlx_scene_case("retained", set_up));
}
