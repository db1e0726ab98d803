/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of workers, as a real daemon brokers them: who may be in one, and what a worker gets. */
#include "common/memory.h"
#include "tests/daemon/harness_worker.h"
#include "tests/harness/fork.h"
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define LEASE UINT64_C(1500000000)

static uint64_t start_of(const struct dlx_worker *worker)
{
    uint64_t start;
    ck_assert_int_eq(pread(worker->probe, &start, sizeof start, 0), sizeof start);
    return start;
}

/* ---- refusals ------------------------------------------------------------------------------ */

/* 64 bytes. */
#define LONG "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static const struct {
    const char *group;
    uint32_t mode, history;
    uint64_t lease_ns;
    uint32_t max_attempts;
    const char *words;
} refused_workers[] = {
    {"a b", 0, 0, 0, 5, "subscription to t: the name of a group has byte 0x20 at 1; allowed are"},
    {"a\n", 0, 0, 0, 5, "the name of a group has byte 0x0a at 1"},
    {"a/b", 0, 0, 0, 5, "the name of a group has byte 0x2f at 1"},
    {LONG, 0, 0, 0, 5, "has 64 bytes; it must have 1 to 63"},
    {"g", 1, 0, 0, 5, "mode latest skips messages, so it cannot be in group g"},
    {"g", 0, 1, 0, 5, "group g gets what is published from now on, so history 1 must be 0"},
    {"g", 0, 0, UINT64_MAX, 5, "lease of 18446744073709551615 ns of group g must be at most"},
    {"g", 0, 0, 0, 0, "0 attempts of group g must be 1 to 60"},
    {"g", 0, 0, 0, 61, "61 attempts of group g must be 1 to 60"},
};

LOOP_TEST(a_subscription_that_cannot_be_in_a_group_is_refused, 0, DLX_ARRAY_SIZE(refused_workers))
{
    const char *text = dlx_test_call_error(
        dlx_served_client, BODY(SUBSCRIBE),
        WORKER_AS(refused_workers[_i].group, refused_workers[_i].max_attempts,
                  .mode = refused_workers[_i].mode, .history = refused_workers[_i].history,
                  .lease_ns = refused_workers[_i].lease_ns),
        DLX_E_INVALID);
    contains(text, refused_workers[_i].words);
}

static void refuse_declaration(char **groups, size_t n, const char *words)
{
    Dlx__Wire__PublisherNew request = dlx_test_publisher_request("t");
    request.groups = groups;
    request.n_groups = n;
    contains(dlx_test_call_error(dlx_served_client, BODY(PUBLISHER_NEW), &request, DLX_E_INVALID),
             words);
}

TEST(groups_that_cannot_be_declared_are_refused)
{
    char *twice[] = {WIRE_TEXT("a"), WIRE_TEXT("b"), WIRE_TEXT("a")}, *none[] = {WIRE_TEXT("")};
    char *odd[] = {WIRE_TEXT("a"), WIRE_TEXT("\xff")}, *many[DLX_SHM_GROUPS_MAX + 1];
    char names[DLX_ARRAY_SIZE(many)][4];
    for (size_t i = 0; i < DLX_ARRAY_SIZE(many); i++) {
        (void)snprintf(names[i], sizeof names[i], "g%zu", i);
        many[i] = names[i];
    }
    refuse_declaration(twice, 3, "publisher of t: group a is declared twice");
    refuse_declaration(none, 1, "the name of a group, \"\", has 0 bytes; it must have 1 to 63");
    refuse_declaration(odd, 2, "publisher of t: the name of a group has byte 0xff at 0");
    refuse_declaration(many, DLX_ARRAY_SIZE(many), "publisher of t: 17 groups, must be at most 16");
    Dlx__Wire__PublisherNew request = dlx_test_publisher_request("t");
    struct dlx_test_publisher publisher;
    request.groups = many;
    request.n_groups = DLX_SHM_GROUPS_MAX;
    dlx_test_publisher_new_from(&publisher, dlx_served_client, &request);
    dlx_test_publisher_deinit(&publisher);
}

TEST(workers_of_a_group_have_the_same_lease_and_attempts)
{
    auto_test_publisher pub = dlx_worker_publisher(0, NULL);
    auto_worker first;
    dlx_worker_join(&first, dlx_served_client, WORKER_AS("g", 5, .lease_ns = LEASE));
    const char *text =
        dlx_test_call_error(dlx_served_client, BODY(SUBSCRIBE), WORKER("g"), DLX_E_QOS);
    contains(text, "the workers of group g of t have a lease of 1.5 s and at most 5 "
                   "attempts");
    contains(text, "asks for no lease and at most 5");
    text = dlx_test_call_error(dlx_served_client, BODY(SUBSCRIBE),
                               WORKER_AS("g", 6, .lease_ns = LEASE), DLX_E_QOS);
    contains(text, "asks for a lease of 1.5 s and at most 6");
    /* Another group is another matter, and so is this one when it has ended. */
    auto_worker other, next;
    dlx_worker_join(&other, dlx_served_client, WORKER("h"));
    dlx_test_call_ok(dlx_served_client, SUBSCRIPTION_CLOSE(.subscription = first.sub.id));
    dlx_worker_join(&next, dlx_served_client, WORKER_AS("g", 60, ));
}

TEST(a_worker_that_comes_before_its_publisher_is_told_why_it_is_refused)
{
    auto_worker first, second;
    dlx_worker_begin(&first, dlx_served_client, WORKER("g"));
    dlx_worker_begin(&second, dlx_served_client, WORKER_AS("g", 1, ));
    auto_test_publisher pub = dlx_worker_publisher(0, NULL);
    first.link = dlx_test_accept_offer(&first.sub);
    (void)dlx_worker_open(&first);
    const Dlx__Wire__LinkFailed *failed =
        dlx_test_expect(second.sub.fd, BODY(LINK_FAILED))->link_failed;
    ck_assert_int_eq(failed->code, DLX_E_QOS);
    contains(failed->text, "and worker ");
}

static const char *refusal_of(uint64_t publisher)
{
    const Dlx__Wire__Packet *reply =
        dlx_test_call(dlx_served_client, LIST_LINKS(.publisher = publisher));
    ck_assert_int_eq(reply->body_case, BODY(LINK_LIST));
    return reply->link_list->refusal;
}

TEST(the_reason_why_a_worker_has_no_link_is_told_until_one_has_a_link)
{
    auto_worker first, second;
    dlx_worker_begin(&first, dlx_served_client, WORKER("g"));
    dlx_worker_begin(&second, dlx_served_client, WORKER_AS("g", 1, ));
    auto_test_publisher pub = dlx_worker_publisher(0, NULL);
    (void)dlx_test_expect(second.sub.fd, BODY(LINK_FAILED));
    contains(refusal_of(pub.id), "at most 1");
    first.link = dlx_test_accept_offer(&first.sub);
    (void)dlx_worker_open(&first);
    ck_assert_str_eq(refusal_of(pub.id), "");
}

TEST(a_user_has_so_many_groups_of_a_publisher)
{
    enum { MOST = 64 };
    auto_test_publisher pub = dlx_worker_publisher(1, "declared");
    struct dlx_worker workers[MOST];
    char name[8];
    for (int i = 0; i < MOST; i++) {
        (void)snprintf(name, sizeof name, "g%d", i);
        dlx_worker_begin(&workers[i], dlx_served_client, WORKER(name));
    }
    contains(dlx_test_call_error(dlx_served_client, BODY(SUBSCRIBE), WORKER("more"), DLX_E_LIMIT),
             "64 of them of uid");
    auto_worker same, declared;
    dlx_worker_begin(&same, dlx_served_client, WORKER("g0"));
    dlx_worker_begin(&declared, dlx_served_client, WORKER("declared"));
    for (int i = 0; i < MOST; i++)
        dlx_worker_deinit(&workers[i]);
}

TEST(a_group_that_may_lose_messages_cannot_be_reliable)
{
    auto_test_publisher pub = dlx_worker_publisher(0, NULL);
    contains(dlx_test_call_error(dlx_served_client, BODY(SUBSCRIBE),
                                 WORKER_AS("g", 5, .reliable = true), DLX_E_QOS),
             "drops its oldest messages");
}

/* A raw client of this minor version. */
static int connect_as(uint32_t minor)
{
    int fd = dlx_test_connect(&dlx_served);
    dlx_test_send(fd, HELLO(.major = DLX_PROTO_MAJOR, .minor = minor, .max_links = 10), 1);
    (void)dlx_test_expect(fd, BODY(HELLO_REPLY));
    return fd;
}

TEST(a_publisher_of_an_older_library_has_no_workers)
{
    auto_fd older = connect_as(7);
    auto_test_publisher pub;
    dlx_test_publisher_new(&pub, older, "t", 0);
    dlx_test_publisher_ready(&pub);
    contains(dlx_test_call_error(dlx_served_client, BODY(SUBSCRIBE), WORKER("g"), DLX_E_VERSION),
             "has a libdlx that knows no groups of workers (protocol 2.7, 2.8 is needed)");
}

/* ---- what a worker gets --------------------------------------------------------------------- */

TEST(a_worker_gets_a_claims_page_with_a_lock_of_its_own)
{
    auto_test_publisher pub = dlx_worker_publisher(1, NULL);
    auto_worker first, second;
    dlx_worker_join(&first, dlx_served_client, WORKER("g"));
    dlx_worker_join(&second, dlx_served_client, WORKER("g"));
    ck_assert_uint_eq(first.owner, 1);
    ck_assert_uint_eq(second.owner, 2);
    dlx_served_barrier(); /* the daemon has closed its own copies */
    ck_assert(dlx_worker_is_locked(first.probe, 1) && dlx_worker_is_locked(first.probe, 2));
    ck_assert(!dlx_worker_is_locked(first.probe, 0) && !dlx_worker_is_locked(first.probe, 3));

    struct stat one, other;
    ck_assert_int_eq(fstat(first.claims, &one), 0);
    ck_assert_int_eq(fstat(second.probe, &other), 0);
    ck_assert(one.st_dev == other.st_dev && one.st_ino == other.st_ino);
    ck_assert_int_eq(one.st_size, (off_t)dlx_shm_claims_size(DLX_WORKER_ENTRIES));
    ck_assert_int_ge(one.st_blocks * 512, one.st_size); /* it is all there */
    ck_assert_int_eq(fcntl(first.claims, F_GETFL) & O_ACCMODE, O_RDWR);
    ck_assert_int_eq(fcntl(first.probe, F_GETFL) & O_ACCMODE, O_RDONLY);

    /* A mapping keeps the lock, and only the last one. */
    void *map =
        mmap(NULL, (size_t)one.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, second.claims, 0);
    ck_assert_ptr_ne(map, MAP_FAILED);
    second.claims = dlx__close(second.claims);
    ck_assert(dlx_worker_is_locked(first.probe, 2));
    munmap(map, (size_t)one.st_size);
    ck_assert(!dlx_worker_is_locked(first.probe, 2));
    ck_assert(dlx_worker_is_locked(second.probe, 1));
}

TEST(the_size_of_a_claims_page_is_for_good)
{
    auto_test_publisher pub = dlx_worker_publisher(0, NULL);
    auto_worker worker;
    dlx_worker_join(&worker, dlx_served_client, WORKER("g"));
    if (strcmp(dlx_test_memory->name, "memfd") != 0)
        return; /* nothing is sealed */
    off_t size = (off_t)dlx_shm_claims_size(DLX_WORKER_ENTRIES);
    ck_assert_int_eq(ftruncate(worker.claims, size + 4096), -1);
    ck_assert_int_eq(ftruncate(worker.claims, 0), -1);
    ck_assert_int_eq(fcntl(worker.claims, F_ADD_SEALS, F_SEAL_WRITE), -1); /* nor for ever sealed */
}

TEST(a_publisher_is_told_of_which_group_a_link_is)
{
    auto_test_publisher pub = dlx_worker_publisher(1, "declared");
    auto_worker first, second, third;
    dlx_worker_join(&first, dlx_served_client, WORKER("other"));
    dlx_worker_join(&second, dlx_served_client, WORKER("declared"));
    auto_test_subscription ordinary = dlx_served_subscription("t");
    (void)dlx_test_join(&ordinary);
    static const struct {
        uint32_t group;
        const char *name;
    } told[] = {{2, "other"}, {1, "declared"}, {0, ""}, {3, "other"}};
    const Dlx__Wire__LinkAdded *added;
    for (size_t i = 0; i < 3; i++) {
        added = dlx_test_expect(pub.link_sock, BODY(LINK_ADDED))->link_added;
        ck_assert_uint_eq(added->group, told[i].group);
        ck_assert_str_eq(added->group_name, told[i].name);
        ck_assert(!added->reliable);
    }
    /* Another group of the same name has another number. */
    dlx_test_call_ok(dlx_served_client, SUBSCRIPTION_CLOSE(.subscription = first.sub.id));
    dlx_worker_join(&third, dlx_served_client, WORKER("other"));
    ck_assert_uint_eq(third.owner, 1);
    added = dlx_test_expect(pub.link_sock, BODY(LINK_ADDED))->link_added;
    ck_assert_uint_eq(added->group, told[3].group);
    ck_assert_str_eq(added->group_name, told[3].name);
    dlx_test_recv_done();
}

/* If the publisher has moved here, another daemon knew the group, and only its workers know where
 * they are. */
LOOP_TEST(a_group_begins_with_the_first_message_if_it_was_there_before, 0, 2)
{
    const bool has_moved = _i == 1;
    const uint64_t after = has_moved ? 40 : 0, first = has_moved ? 0 : 1;
    auto_worker spare, early, late, declared;
    dlx_worker_begin(&spare, dlx_served_client, WORKER_AS("spare", 5, .n_spares = 1));
    dlx_worker_begin(&early, dlx_served_client, WORKER("early"));
    (void)dlx_test_accept_offer(&spare.sub);
    ck_assert_uint_gt(dlx_test_expect(spare.sub.fd, BODY(SPARE_SEALED))->spare_sealed->link, 0);
    struct dlx_test_publisher pub;
    Dlx__Wire__PublisherNew request = dlx_test_publisher_request("t");
    char *groups[] = {WIRE_TEXT("declared")};
    request.groups = groups;
    request.n_groups = 1;
    request.resumes = has_moved ? 77 : 0;
    request.after_seq = after;
    dlx_test_publisher_new_from(&pub, dlx_served_client, &request);
    dlx_test_publisher_ready(&pub);
    const Dlx__Wire__LinkAdded *added =
        dlx_test_expect(pub.link_sock, BODY(LINK_ADDED))->link_added;
    ck_assert(added->early);
    ck_assert_str_eq(added->group_name, "spare");
    spare.link = added->link;
    ck_assert(dlx_worker_open(&spare)->from_start);
    early.link = dlx_test_accept_offer(&early.sub);
    (void)dlx_worker_open(&early);
    dlx_worker_join(&late, dlx_served_client, WORKER("late"));
    dlx_worker_join(&declared, dlx_served_client, WORKER("declared"));
    ck_assert_uint_eq(start_of(&spare), first);
    ck_assert_uint_eq(start_of(&early), first);
    ck_assert_uint_eq(start_of(&declared), after + 1);
    ck_assert_uint_eq(start_of(&late), 0); /* its first worker says where */
    dlx_test_publisher_deinit(&pub);
}

TEST(a_blocking_publisher_waits_for_the_first_worker_of_a_group_that_was_there)
{
    auto_worker first, second;
    struct dlx_test_publisher pub;
    dlx_worker_begin(&first, dlx_served_client, WORKER("g"));
    dlx_worker_begin(&second, dlx_served_client, WORKER("g"));
    dlx_test_publisher_new(&pub, dlx_served_client, "t", 1);
    contains(
        dlx_test_call_error(dlx_served_client, PUBLISHER_READY(.publisher = pub.id), DLX_E_FULL),
        "the subscription in a group of ");
    second.link = dlx_test_accept_offer(&second.sub);
    (void)dlx_worker_open(&second);
    dlx_test_publisher_ready(&pub); /* one has its link: it does what the other cannot yet */
    dlx_test_publisher_deinit(&pub);
}

/* ---- lists ---------------------------------------------------------------------------------- */

#define LIST_CLAIMS(...) DLX_TEST_BODY(LIST_CLAIMS, list_claims, __VA_ARGS__)

TEST(a_list_says_what_became_of_the_messages_of_a_group)
{
    auto_test_publisher pub = dlx_worker_publisher(1, "g");
    const Dlx__Wire__GroupEntry *group = dlx_worker_listed();
    ck_assert(group->declared && !group->gone && group->n_workers == 0 && group->waiting == 0);
    dlx_worker_publish(&pub, 5, 1);
    group = dlx_worker_listed(); /* they wait before there is a worker */
    ck_assert_uint_eq(group->waiting, 5);
    ck_assert_uint_eq(group->oldest, 1);
    ck_assert_uint_eq(group->oldest_ns, 1001);

    auto_worker mine;
    dlx_worker_join(&mine, dlx_served_client, WORKER_AS("g", 7, .lease_ns = LEASE));
    for (uint64_t n = 1; n <= 44; n++)
        dlx_worker_set_cell(&mine, n, DLX_SHM_CELL_DONE, 1, 1);
    for (uint64_t n = 257; n <= 300; n++)
        dlx_worker_set_cell(&mine, n, DLX_SHM_CELL_DONE, 1, 1);
    for (uint64_t n = 45; n <= 256; n++)
        dlx_worker_set_cell(&mine, n, DLX_SHM_CELL_DONE, 1, 1);
    dlx_worker_publish(&pub, 306, 301);
    dlx_worker_set_cell(&mine, 301, DLX_SHM_CELL_RETURNED, 9, 2);
    dlx_worker_set_cell(&mine, 302, DLX_SHM_CELL_CLAIMED, 1, 3);
    dlx_worker_set_cell(&mine, 303, DLX_SHM_CELL_CLAIMED, 8, 1);
    dlx_worker_set_cell(&mine, 304, DLX_SHM_CELL_DONE, 1, 1);
    dlx_worker_set_word(&mine, offsetof(struct dlx_shm_claims, redelivered), 12);
    dlx_worker_set_word(&mine, offsetof(struct dlx_shm_claims, dead), 3);
    group = dlx_worker_listed();
    ck_assert_uint_eq(group->publisher, pub.id);
    ck_assert_uint_eq(group->group, 1);
    ck_assert_str_eq(group->topic, "t");
    ck_assert_str_eq(group->name, "g");
    ck_assert_uint_eq(group->uid, getuid());
    ck_assert_uint_eq(group->n_workers, 1);
    ck_assert_uint_eq(group->lease_ns, LEASE);
    ck_assert_uint_eq(group->max_attempts, 7);
    ck_assert_uint_eq(group->waiting, 3); /* 301, 305, 306 */
    ck_assert_uint_eq(group->in_flight, 2);
    ck_assert_uint_eq(group->redelivered, 12);
    ck_assert_uint_eq(group->dead, 3);
    ck_assert_uint_eq(group->lost, 0);
    ck_assert_uint_eq(group->done, 306 - 3 - 2 - 3);
    ck_assert_uint_eq(group->oldest, 301);
    ck_assert_uint_eq(group->oldest_ns, 1301);

    const Dlx__Wire__ClaimList *claims =
        dlx_test_call_for(dlx_served_client, LIST_CLAIMS(.publisher = pub.id, .group = 1),
                          BODY(CLAIM_LIST))
            ->claim_list;
    ck_assert_uint_eq(claims->n_entries, 2);
    ck_assert(!claims->more);
    ck_assert_uint_eq(claims->entries[0]->seq, 302);
    ck_assert_uint_eq(claims->entries[0]->link, mine.link);
    ck_assert_uint_eq(claims->entries[0]->pid, (uint32_t)getpid());
    ck_assert_uint_eq(claims->entries[0]->uid, getuid());
    ck_assert_uint_eq(claims->entries[0]->attempt, 3);
    ck_assert_uint_eq(claims->entries[0]->published_ns, 1302);
    ck_assert_uint_eq(claims->entries[1]->seq, 303);
    ck_assert_uint_eq(claims->entries[1]->link, 0); /* it has left */
    dlx_test_call_error(dlx_served_client, LIST_CLAIMS(.publisher = pub.id, .group = 2),
                        DLX_E_NOT_FOUND);
}

/* A publisher that drops: nobody claimed what is gone. */
TEST(a_list_counts_what_was_dropped_before_a_worker_had_it)
{
    auto_test_publisher pub = dlx_worker_publisher(0, "g");
    auto_worker mine;
    dlx_worker_join(&mine, dlx_served_client, WORKER("g"));
    dlx_worker_set_cell(&mine, 1, DLX_SHM_CELL_DONE, 1, 1);
    dlx_worker_set_cell(&mine, 3, DLX_SHM_CELL_CLAIMED, 1, 1); /* and still has it */
    dlx_worker_set_cell(&mine, 2, DLX_SHM_CELL_DONE, 1, 1);
    dlx_worker_set_word(&mine, offsetof(struct dlx_shm_claims, lost), 1);
    dlx_worker_publish(&pub, 3 * DLX_WORKER_ENTRIES, 3 * DLX_WORKER_ENTRIES - 3);
    const Dlx__Wire__GroupEntry *group = dlx_worker_listed();
    ck_assert_uint_eq(group->waiting, 4);
    ck_assert_uint_eq(group->in_flight, 1);
    ck_assert_uint_eq(group->done, 1);
    ck_assert_uint_eq(group->lost, 3 * DLX_WORKER_ENTRIES - 4 - 1 - 1);
    ck_assert_uint_eq(group->oldest, 3);
    ck_assert_uint_eq(group->oldest_ns, 0); /* its entry is another message's by now */
}

TEST(claims_are_listed_by_number_and_in_parts)
{
    auto_test_publisher pub = dlx_worker_publisher(1, "g");
    auto_worker mine;
    dlx_worker_join(&mine, dlx_served_client, WORKER("g"));
    dlx_worker_publish(&pub, 300, 201);
    for (uint64_t n = 201; n <= 300; n++)
        dlx_worker_set_cell(&mine, n, DLX_SHM_CELL_CLAIMED, 1, 1);
    uint64_t next = 201;
    for (bool more = true; more;) {
        const Dlx__Wire__ClaimList *list =
            dlx_test_call_for(dlx_served_client,
                              LIST_CLAIMS(.publisher = pub.id, .group = 1, .after_seq = next - 1),
                              BODY(CLAIM_LIST))
                ->claim_list;
        ck_assert_uint_le(list->n_entries, 32);
        for (size_t i = 0; i < list->n_entries; i++)
            ck_assert_uint_eq(list->entries[i]->seq, next++);
        more = list->more;
        ck_assert(more == (next <= 300));
    }
}

TEST(groups_are_listed_by_topic_publisher_and_number_and_in_parts)
{
    enum { N_PUBLISHERS = 5, N_GROUPS = 7 };
    struct dlx_test_publisher publishers[N_PUBLISHERS];
    char names[N_GROUPS][4], *groups[N_GROUPS];
    for (size_t i = 0; i < N_GROUPS; i++) {
        (void)snprintf(names[i], sizeof names[i], "g%zu", i);
        groups[i] = names[i];
    }
    for (size_t i = 0; i < N_PUBLISHERS; i++) {
        Dlx__Wire__PublisherNew request = dlx_test_publisher_request(i % 2 ? "a/b" : "a/a");
        request.groups = groups;
        request.n_groups = i == 2 ? 0 : N_GROUPS;
        dlx_test_publisher_new_from(&publishers[i], dlx_served_client, &request);
        dlx_test_publisher_ready(&publishers[i]);
    }
    static const size_t order[] = {0, 4, 1, 3};
    Dlx__Wire__ListGroups list = DLX__WIRE__LIST_GROUPS__INIT;
    char after[8] = "";
    size_t n = 0;
    list.topic = WIRE_TEXT("a/*");
    list.after_topic = after;
    for (bool more = true; more;) {
        const Dlx__Wire__GroupList *reply =
            dlx_test_call_for(dlx_served_client, BODY(LIST_GROUPS), &list, BODY(GROUP_LIST))
                ->group_list;
        ck_assert_uint_le(reply->n_entries, 16);
        for (size_t i = 0; i < reply->n_entries; i++, n++) {
            const Dlx__Wire__GroupEntry *entry = reply->entries[i];
            ck_assert_uint_lt(n / N_GROUPS, DLX_ARRAY_SIZE(order));
            ck_assert_uint_eq(entry->publisher, publishers[order[n / N_GROUPS]].id);
            ck_assert_uint_eq(entry->group, n % N_GROUPS + 1);
            (void)snprintf(after, sizeof after, "%s", entry->topic);
            list.after_publisher = entry->publisher;
            list.after_group = entry->group;
        }
        more = reply->more;
    }
    ck_assert_uint_eq(n, DLX_ARRAY_SIZE(order) * N_GROUPS);
    for (size_t i = 0; i < N_PUBLISHERS; i++)
        dlx_test_publisher_deinit(&publishers[i]);
}

/* ---- ends ----------------------------------------------------------------------------------- */

/* An epoll that has the bell, as workers have it: edge-triggered, and nobody reads it. */
static int wait_for_bell(const struct dlx_worker *worker)
{
    int fd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(epoll_ctl(fd, EPOLL_CTL_ADD, worker->bell, &event), 0);
    ck_assert_int_eq(epoll_wait(fd, &event, 1, 0), 0);
    return fd;
}

static void check_rung(int epoll)
{
    struct epoll_event event;
    ck_assert_int_eq(epoll_wait(epoll, &event, 1, PATIENCE_MS), 1);
    ck_assert_int_eq(epoll_wait(epoll, &event, 1, 0), 0);
}

static void work(int sock, const void *userdata)
{
    struct dlx_worker worker;
    auto_fd control = dlx_test_hello(&dlx_served, 10);
    (void)userdata;
    dlx_worker_join(&worker, control, WORKER("g"));
    if (worker.owner != 2)
        _exit(1);
    /* Only the mapping has the lock. */
    if (mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, worker.claims, 0) == MAP_FAILED)
        _exit(1);
    worker.claims = dlx__close(worker.claims);
    dlx_test_say(sock);
    dlx_test_hear(sock);
}

TEST(the_lock_of_a_killed_worker_is_free_and_the_others_are_rung)
{
    auto_test_publisher pub = dlx_worker_publisher(1, NULL);
    auto_worker mine;
    dlx_worker_join(&mine, dlx_served_client, WORKER("g"));
    for (int i = 0; i < 2; i++) {
        struct dlx_test_part part = dlx_test_part_begin(work, NULL);
        dlx_test_hear(part.sock);
        auto_fd epoll = wait_for_bell(&mine);
        ck_assert(dlx_worker_is_locked(mine.probe, 2));
        dlx_test_part_kill(&part);
        check_rung(epoll);
        ck_assert_uint_eq(dlx_test_leaves(&pub), (uint64_t)i + 1); /* before the bell */
        ck_assert(!dlx_worker_is_locked(mine.probe, 2));
        ck_assert(dlx_worker_is_locked(mine.probe, 1));
        if (i == 0)
            break;
    }
    /* Its number is not the next one's. */
    auto_worker next;
    dlx_worker_join(&next, dlx_served_client, WORKER("g"));
    ck_assert_uint_eq(next.owner, 3);
}

/* Accepts the offer, and may take messages: its page does not say that it has left. */
static void accept_and_stay(struct dlx_worker *worker)
{
    const Dlx__Wire__LinkOffer *offer =
        dlx_test_expect(worker->sub.fd, BODY(LINK_OFFER))->link_offer;
    uint64_t size = offer->page_size;
    void *map;
    worker->link = offer->link;
    ok(dlx__region_populate(dlx_test_memory, dlx_test_take_fd(0), size, &map));
    dlx__region_unmap(map, size);
    dlx_test_ack(&worker->sub);
    dlx_test_send(worker->sub.fd, LINK_READY(.link = worker->link), 0);
    (void)dlx_worker_open(worker);
}

/* It lives, and so keeps its lock, and what it has. */
TEST(a_disconnected_worker_is_cut_and_the_others_are_rung)
{
    auto_test_publisher pub = dlx_worker_publisher(1, "g");
    auto_worker mine, violates;
    int control = dlx_test_hello(&dlx_served, 10);
    dlx_worker_join(&mine, dlx_served_client, WORKER("g"));
    dlx_worker_begin(&violates, control, WORKER("g"));
    accept_and_stay(&violates);
    auto_fd epoll = wait_for_bell(&mine);
    (void)dlx_test_expect(pub.link_sock, BODY(LINK_ADDED));
    (void)dlx_test_expect(pub.link_sock, BODY(LINK_ADDED));
    dlx_test_send(control, OK(), 1);
    (void)dlx_test_disconnected(control, DLX_E_PROTOCOL);
    ck_assert_uint_eq(dlx_test_expect(pub.link_sock, BODY(LINK_CUT))->link_cut->link,
                      violates.link);
    check_rung(epoll);
    ck_assert_uint_eq(dlx_test_leaves(&pub), 1);
    ck_assert(dlx_worker_is_locked(mine.probe, violates.owner));
}

TEST(a_worker_that_leaves_rings_the_others_and_no_other_group)
{
    auto_test_publisher pub = dlx_worker_publisher(1, "g");
    auto_worker first, second, other;
    dlx_worker_join(&first, dlx_served_client, WORKER("g"));
    dlx_worker_join(&second, dlx_served_client, WORKER("g"));
    dlx_worker_join(&other, dlx_served_client, WORKER("h"));
    auto_fd epoll = wait_for_bell(&first), others = wait_for_bell(&other);
    dlx_test_call_ok(dlx_served_client, SUBSCRIPTION_CLOSE(.subscription = second.sub.id));
    check_rung(epoll);
    struct epoll_event event;
    ck_assert_int_eq(epoll_wait(others, &event, 1, 0), 0);
    /* It rings each time, also when a worker makes the timer expire for ever. */
    const struct itimerspec often = {.it_interval = {.tv_nsec = 1}, .it_value = {.tv_nsec = 1}};
    ck_assert_int_eq(timerfd_settime(other.bell, 0, &often, NULL), 0);
    dlx_served_barrier();
    auto_worker third;
    dlx_worker_join(&third, dlx_served_client, WORKER("g"));
    dlx_test_send(third.sub.fd, LINK_CLOSE(.link = third.link), 0);
    check_rung(epoll);
}

/* ---- numbers of workers --------------------------------------------------------------------- */

static void come_and_go(int control, uint32_t owner)
{
    auto_worker worker;
    dlx_worker_join(&worker, control, WORKER("g"));
    ck_assert_uint_eq(worker.owner, owner);
    dlx_test_call_ok(control, SUBSCRIPTION_CLOSE(.subscription = worker.sub.id));
}

/* Locks these bytes, as a former worker that lives has locked one. */
static int lock_bytes(const struct dlx_worker *worker, uint32_t first, uint32_t n)
{
    char path[32];
    struct flock lock = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)first, .l_len = (off_t)n};
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", worker->claims);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(fcntl(fd, F_OFD_SETLK, &lock), 0);
    return fd;
}

TEST(a_number_is_used_again_when_no_claim_and_no_lock_has_it)
{
    auto_test_publisher pub = dlx_worker_publisher(1, "g");
    auto_worker mine;
    dlx_worker_join(&mine, dlx_served_client, WORKER("g"));
    come_and_go(dlx_served_client, 2);
    dlx_worker_set_cell(&mine, 3, DLX_SHM_CELL_CLAIMED, 4, 1);
    come_and_go(dlx_served_client, 3);
    come_and_go(dlx_served_client, 5); /* a claim has number 4 */
    auto_fd former = lock_bytes(&mine, 6, 2);
    come_and_go(dlx_served_client, 8);
    /* Many former workers live: the daemon tries some numbers at a time. */
    auto_fd more = lock_bytes(&mine, 9, DLX_SHM_OWNERS_MAX - 9);
    come_and_go(dlx_served_client, DLX_SHM_OWNERS_MAX);
    come_and_go(dlx_served_client, 2);
    come_and_go(dlx_served_client, 3);
    come_and_go(dlx_served_client, 5);
}

TEST(a_worker_for_whom_there_is_no_number_is_told_so)
{
    auto_test_publisher pub = dlx_worker_publisher(1, "g");
    auto_worker mine, late;
    dlx_worker_join(&mine, dlx_served_client, WORKER("g"));
    auto_fd all = lock_bytes(&mine, 2, DLX_SHM_OWNERS_MAX);
    dlx_worker_begin(&late, dlx_served_client, WORKER("g"));
    (void)dlx_test_accept_offer(&late.sub);
    const Dlx__Wire__LinkFailed *failed =
        dlx_test_expect(late.sub.fd, BODY(LINK_FAILED))->link_failed;
    ck_assert_int_eq(failed->code, DLX_E_LIMIT);
    contains(failed->text, "group g of t has no number for another worker: it has 2 of them");
    contains(failed->text, "(limit 4095)");
}

/* A page without pages: a worker of the group harms nobody but the group. */
TEST(a_claims_page_with_garbage_and_holes_does_not_stop_the_daemon)
{
    auto_test_publisher pub = dlx_worker_publisher(1, "g");
    auto_worker mine, next;
    dlx_worker_join(&mine, dlx_served_client, WORKER("g"));
    for (uint32_t i = 0; i < DLX_WORKER_ENTRIES; i++)
        dlx_worker_set_cell(&mine, i, DLX_SHM_CELL_CLAIMED, DLX_SHM_OWNERS_MAX - i, 1);
    ck_assert_int_eq(fallocate(mine.claims, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096),
                     0);
    dlx_worker_join(&next, dlx_served_client, WORKER("g"));
    ck_assert_uint_eq(next.owner, 2);
}

int main(void)
{
    return dlx_test_run_case(dlx_served_case("groups"));
}
