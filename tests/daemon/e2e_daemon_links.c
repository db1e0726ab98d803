/* SPDX-License-Identifier: Apache-2.0 */
/* Publishers, arenas, subscriptions and links, as a real daemon brokers them. */
#include "common/memory.h"
#include "ring/layout.h"
#include "tests/daemon/harness_served.h"
#include "tests/harness/seccomp.h"

/* Such a kernel lets clients send descriptors to the daemon's sockets. */
static void choose_older_kernel(void)
{
    dlx_served_prepare = dlx_test_seccomp_on_an_older_kernel;
}

/* A descriptor of the last packet is a region of this size. */
static void check_region(size_t i, uint64_t size)
{
    const void *map;
    ck_assert_int_eq(dlx__region_attach(dlx_test_memory, dlx_test_take_fd(i), size, &map), 0);
    dlx__region_unmap(map, size);
}

TEST(subscriber_joins_a_publisher_that_is_there)
{
    auto_test_publisher pub = dlx_served_publisher("cam/front");
    ck_assert_uint_eq(dlx_test_arena(&pub, 8192), 1);
    struct dlx_test_subscription sub = dlx_served_subscription("cam/front");
    ck_assert_uint_eq(sub.n_offers, 1);
    uint64_t link = dlx_test_accept_offer(&sub);
    const Dlx__Wire__Packet *p = dlx_test_expect(sub.fd, BODY(LINK_OPEN));
    ck_assert_uint_eq(p->link_open->link, link);
    ck_assert_uint_eq(p->link_open->publisher, pub.id);
    ck_assert_uint_eq(p->link_open->n_entries, 256);
    ck_assert_uint_eq(p->link_open->history, 4);
    ck_assert_uint_eq(p->link_open->n_arenas, 1);
    ck_assert(!p->link_open->from_start);
    ck_assert_uint_eq(p->link_open->pid, (uint32_t)getpid());
    ck_assert_uint_eq(dlx_test_n_fds(), 2);
    ck_assert_uint_eq(p->link_open->control_size, pub.block_size);
    check_region(0, pub.block_size);
    int bell = dlx_test_take_fd(1);

    /* When LinkOpen is here, the epoch was raised; when that was, LinkAdded was queued. */
    ck_assert_uint_eq(dlx_test_joins(&pub), 1);
    ck_assert(!dlx_test_is_silent(pub.link_sock));
    p = dlx_test_expect(pub.link_sock, BODY(LINK_ADDED));
    ck_assert_uint_eq(p->link_added->link, link);
    ck_assert_uint_eq(p->link_added->pid, (uint32_t)getpid());
    ck_assert_uint_eq(p->link_added->link_index, 0);
    ck_assert_uint_eq(p->link_added->max_held, 16);
    ck_assert(!p->link_added->reliable);
    ck_assert_uint_eq(dlx_test_n_fds(), 3);
    check_region(0, p->link_added->page_size);
    auto_fd other_bell = dlx_test_take_fd(1);
    auto_fd pidfd = dlx_test_take_fd(2);
    struct pollfd alive = {.fd = pidfd, .events = POLLIN};
    ck_assert_int_eq(poll(&alive, 1, 0), 0);
    char byte = 1;
    ck_assert_int_eq(write(bell, &byte, 1), 1);
    ck_assert_int_eq(read(other_bell, &byte, 1), 1);

    p = dlx_test_expect(sub.fd, BODY(ARENA_ADDED));
    ck_assert_uint_eq(p->arena_added->arena, 1);
    ck_assert_uint_eq(p->arena_added->arena_size, 8192);
    check_region(0, 8192);

    /* The subscriber leaves. */
    ck_assert_uint_eq(dlx_test_leaves(&pub), 0);
    dlx_test_subscription_deinit(&sub);
    struct pollfd hangup = {.fd = other_bell, .events = POLLIN};
    close(bell);
    ck_assert_int_eq(poll(&hangup, 1, PATIENCE_MS), 1);
    while (dlx_test_leaves(&pub) == 0)
        dlx_served_barrier();
}

TEST(publisher_that_comes_later_is_offered_from_its_start)
{
    auto_test_subscription sub = dlx_served_subscription("t");
    ck_assert_uint_eq(sub.n_offers, 0);
    for (int i = 0; i < 3; i++) {
        auto_test_publisher pub;
        dlx_test_publisher_new(&pub, dlx_served_client, "t", 0);
        dlx_served_barrier();
        ck_assert(dlx_test_is_silent(sub.fd)); /* not before it is ready */
        dlx_test_publisher_ready(&pub);
        uint64_t link = dlx_test_accept_offer(&sub);
        const Dlx__Wire__Packet *p = dlx_test_expect(sub.fd, BODY(LINK_OPEN));
        ck_assert_uint_eq(p->link_open->link, link);
        ck_assert_uint_eq(p->link_open->publisher, pub.id);
        ck_assert(p->link_open->from_start);
        dlx_test_ack(&sub);
    }
}

TEST(arenas_follow_one_another_and_drops_come_in_order)
{
    auto_test_publisher pub = dlx_served_publisher("t");
    auto_test_subscription sub = dlx_served_subscription("t");
    (void)dlx_test_join(&sub);
    for (uint32_t i = 1; i <= 3; i++) {
        ck_assert_uint_eq(dlx_test_arena(&pub, 4096 * i), i);
        /* Ok came after the arena. */
        ck_assert(!dlx_test_is_silent(sub.fd));
        const Dlx__Wire__Packet *p = dlx_test_expect(sub.fd, BODY(ARENA_ADDED));
        ck_assert_uint_eq(p->arena_added->arena, i);
        ck_assert_uint_eq(p->arena_added->arena_size, 4096 * i);
        dlx_test_ack(&sub);
    }
    dlx_served_arena_drop(&pub, 2);
    dlx_served_arena_drop(&pub, 1);
    ck_assert_uint_eq(dlx_test_expect(sub.fd, BODY(ARENA_DROPPED))->arena_dropped->arena, 2);
    ck_assert_uint_eq(dlx_test_expect(sub.fd, BODY(ARENA_DROPPED))->arena_dropped->arena, 1);

    /* Serial 0: no reply. */
    for (int i = 0; i < 2; i++) /* nor if it is not there any more */
        dlx_test_send(dlx_served_client, ARENA_DROP(.publisher = pub.id, .arena = 3), 0);
    ck_assert_uint_eq(dlx_test_expect(sub.fd, BODY(ARENA_DROPPED))->arena_dropped->arena, 3);
    dlx_served_barrier();
    dlx_test_call_error(dlx_served_client, ARENA_DROP(.publisher = pub.id, .arena = 3),
                        DLX_E_NOT_FOUND);
    ck_assert_uint_eq(dlx_test_arena(&pub, 4096), 4); /* ids are not used again */
}

TEST(subscriber_that_never_acknowledges_gets_four_packets_with_fds)
{
    auto_test_publisher pub = dlx_served_publisher("t");
    auto_test_subscription sub = dlx_served_subscription("t");
    auto_test_subscription other = dlx_served_subscription("t");
    (void)dlx_test_join(&other);
    /* An offer and LinkOpen, both acknowledged, and then eight arenas. */
    (void)dlx_test_join(&sub);
    for (uint32_t i = 1; i <= 8; i++) {
        ck_assert_uint_eq(dlx_test_arena(&pub, 4096), i);
        ck_assert_uint_eq(dlx_test_expect(other.fd, BODY(ARENA_ADDED))->arena_added->arena, i);
        dlx_test_ack(&other);
    }
    for (uint32_t i = 1; i <= 4; i++)
        ck_assert_uint_eq(dlx_test_expect(sub.fd, BODY(ARENA_ADDED))->arena_added->arena, i);
    dlx_served_barrier();
    ck_assert(dlx_test_is_silent(sub.fd));
    /* Notifications without fds do not wait; those about an arena that was not sent are not sent.
     */
    dlx_served_arena_drop(&pub, 3);
    dlx_served_arena_drop(&pub, 6);
    ck_assert_uint_eq(dlx_test_expect(sub.fd, BODY(ARENA_DROPPED))->arena_dropped->arena, 3);
    dlx_served_barrier();
    ck_assert(dlx_test_is_silent(sub.fd));
    /* One more packet for each that is acknowledged; the publisher may have left meanwhile. */
    dlx_served_publisher_close(&pub);
    dlx_served_barrier();
    ck_assert(dlx_test_is_silent(sub.fd));
    const uint32_t rest[] = {5, 7, 8};
    for (size_t i = 0; i < 3; i++) {
        dlx_test_ack(&sub);
        ck_assert_uint_eq(dlx_test_expect(sub.fd, BODY(ARENA_ADDED))->arena_added->arena, rest[i]);
        ck_assert_uint_eq(dlx_test_n_fds(), 1);
    }
    (void)dlx_test_expect(sub.fd, BODY(PUBLISHER_GONE));
}

TEST(publisher_that_does_not_respond_refuses_the_641st)
{
    enum { N = 642, MOST = 640 };
    static struct dlx_test_subscription sub[N];
    int n_open = 0;
    auto_fd reader = dlx_test_hello(&dlx_served, N);
    auto_test_publisher pub = dlx_served_publisher("t");
    size_t n_fds = dlx_test_daemon_n_fds(&dlx_served);
    for (int i = 0; i < N; i++) {
        dlx_test_subscribe(&sub[i], reader, "t", false);
        (void)dlx_test_accept_offer(&sub[i]);
        const Dlx__Wire__Packet *p = dlx_test_recv(sub[i].fd);
        if (p->body_case == BODY(LINK_OPEN)) {
            n_open++;
            continue;
        }
        ck_assert_int_eq(p->body_case, BODY(LINK_FAILED));
        ck_assert_int_eq(p->link_failed->code, DLX_E_PUBLISHER_NOT_RESPONDING);
        contains(p->link_failed->text, "publisher of t");
        contains(p->link_failed->text, "512 more wait");
    }
    ck_assert_int_eq(n_open, MOST);
    ck_assert_uint_eq(dlx_test_joins(&pub), MOST);
    /* The publisher reads them, in order, and others can join again. */
    for (uint32_t i = 0; i < MOST; i++)
        ck_assert_uint_eq(dlx_test_expect(pub.link_sock, BODY(LINK_ADDED))->link_added->link_index,
                          i);
    struct dlx_test_subscription late = dlx_served_subscription("t");
    (void)dlx_test_join(&late);
    for (int i = 0; i < N; i++)
        dlx_test_subscription_deinit(&sub[i]);
    dlx_test_subscription_deinit(&late);
    dlx_test_daemon_wait_n_fds(&dlx_served, n_fds);
}

/* The publisher leaves, or dies: subscribers that waited for it hear that it has gone, and nothing
 * is left of them. */
LOOP_TEST(subscribers_that_wait_for_a_publisher_are_told_of_its_end, 0, 2)
{
    enum { N = 140 };
    struct dlx_test_publisher pub;
    static struct dlx_test_subscription sub[N];
    auto_fd writer = dlx_test_hello(&dlx_served, 1000);
    size_t n_fds = dlx_test_daemon_n_fds(&dlx_served);
    dlx_test_publisher_new(&pub, writer, "t", 0);
    dlx_test_publisher_ready(&pub);
    for (int i = 0; i < N; i++) {
        sub[i] = dlx_served_subscription("t");
        (void)dlx_test_join(&sub[i]);
    }
    if (_i == 0)
        dlx_served_publisher_close(&pub);
    else
        writer = dlx__close(writer);
    for (int i = 0; i < N; i++) {
        (void)dlx_test_expect(sub[i].fd, BODY(PUBLISHER_GONE));
        dlx_test_subscription_deinit(&sub[i]);
    }
    dlx_test_publisher_deinit(&pub); /* until then the daemon keeps its end: it was not read */
    dlx_test_daemon_wait_n_fds(&dlx_served, n_fds - (_i == 0 ? 0 : 2));
}

/* Two have closed their link sockets, as a process does that is about to die, but they live. */
TEST(links_that_wait_for_their_publishers_end_keep_no_other_waiting)
{
    uint64_t last = 0;
    auto_test_publisher dying = dlx_served_publisher("a/1"), dies = dlx_served_publisher("a/2");
    auto_test_publisher lives = dlx_served_publisher("a/3");
    dying.link_sock = dlx__close(dying.link_sock);
    dies.link_sock = dlx__close(dies.link_sock);
    auto_test_subscription sub = dlx_served_subscription("a/*");
    for (int i = 0; i < 3; i++)
        last = dlx_test_accept_offer(&sub);
    ck_assert_uint_eq(dlx_test_expect(sub.fd, BODY(LINK_OPEN))->link_open->link, last);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(dlx_test_expect(sub.fd, BODY(LINK_FAILED))->link_failed->code,
                         DLX_E_PUBLISHER_NOT_RESPONDING);
}

TEST(reliable_needs_a_publisher_that_blocks)
{
    auto_test_publisher drop = dlx_served_publisher("t"), block;
    auto_test_subscription sub;
    Dlx__Wire__Subscribe request = DLX__WIRE__SUBSCRIBE__INIT;
    request.topic = (char[]){"t"};
    request.max_held = 1;
    request.reliable = true;
    const char *text = dlx_test_call_error(dlx_served_client, BODY(SUBSCRIBE), &request, DLX_E_QOS);
    contains(text, "reliable");
    contains(text, "publisher test (pid");
    dlx_served_publisher_close(&drop);
    dlx_test_publisher_deinit(&drop);

    dlx_test_publisher_new(&block, dlx_served_client, "t", 1);
    dlx_test_publisher_ready(&block);
    dlx_test_subscribe(&sub, dlx_served_client, "t", true);
    (void)dlx_test_join(&sub);
    ck_assert(dlx_test_expect(block.link_sock, BODY(LINK_ADDED))->link_added->reliable);
    /* A later publisher that does not fit: the subscriber hears why. */
    drop = dlx_served_publisher("t");
    const Dlx__Wire__Packet *p = dlx_test_expect(sub.fd, BODY(LINK_FAILED));
    ck_assert_int_eq(p->link_failed->code, DLX_E_QOS);
}

TEST(links_beyond_what_a_client_can_bear_fail_alone)
{
    auto_test_publisher one = dlx_served_publisher("t"), two = dlx_served_publisher("t");
    auto_test_publisher three = dlx_served_publisher("t");
    auto_test_subscription sub;
    auto_fd small = dlx_test_hello(&dlx_served, 2);
    dlx_test_subscribe(&sub, small, "t", false);
    ck_assert_uint_eq(sub.n_offers, 3);
    uint64_t first = dlx_test_accept_offer(&sub);
    const Dlx__Wire__Packet *p = dlx_test_expect(sub.fd, BODY(LINK_FAILED));
    ck_assert_int_eq(p->link_failed->code, DLX_E_LIMIT);
    contains(p->link_failed->text, "subscriber test");
    contains(p->link_failed->text, "(limit 2, by its limits of open files");
    contains(p->link_failed->text, "ulimit -n");
    uint64_t second = dlx_test_accept_offer(&sub);
    ck_assert_uint_eq(dlx_test_expect(sub.fd, BODY(LINK_OPEN))->link_open->link, first);
    dlx_test_ack(&sub);
    ck_assert_uint_eq(dlx_test_expect(sub.fd, BODY(LINK_OPEN))->link_open->link, second);
}

TEST(regions_that_were_not_allocated_are_refused)
{
    Dlx__Wire__PublisherNew new = dlx_test_publisher_request("t");
    uint64_t id =
        dlx_test_call(dlx_served_client, BODY(PUBLISHER_NEW), &new)->publisher_new_reply->publisher;
    dlx_test_call_error(dlx_served_client, PUBLISHER_READY(.publisher = id), DLX_E_BAD_PEER);
    dlx_test_call_error(dlx_served_client, PUBLISHER_READY(.publisher = id), DLX_E_NOT_FOUND);

    auto_test_publisher pub = dlx_served_publisher("t");
    dlx_test_call_error(dlx_served_client, PUBLISHER_READY(.publisher = pub.id), DLX_E_IN_USE);
    uint32_t arena =
        dlx_test_call(dlx_served_client, ARENA_NEW(.publisher = pub.id, .arena_size = 1 << 20))
            ->arena_new_reply->arena;
    dlx_test_call_error(dlx_served_client, ARENA_READY(.publisher = pub.id, .arena = arena),
                        DLX_E_BAD_PEER);
    dlx_test_call_error(dlx_served_client, ARENA_READY(.publisher = pub.id, .arena = arena),
                        DLX_E_NOT_FOUND);

    auto_test_subscription sub = dlx_served_subscription("t");
    uint64_t link = dlx_test_expect(sub.fd, BODY(LINK_OFFER))->link_offer->link;
    dlx_test_send(sub.fd, LINK_READY(.link = link), 0);
    const Dlx__Wire__Packet *p = dlx_test_expect(sub.fd, BODY(LINK_FAILED));
    ck_assert_int_eq(p->link_failed->code, DLX_E_BAD_PEER);
    ck_assert_uint_eq(dlx_test_joins(&pub), 0);
    ck_assert(dlx_test_is_silent(pub.link_sock));
}

TEST(more_memory_than_there_is_is_refused_with_numbers)
{
    static const struct {
        uint64_t size;
        int code;
    } all[] = {{UINT64_C(1) << 45, DLX_E_LIMIT},
               {UINT64_C(1) << 47, DLX_E_LIMIT},
               {4097, DLX_E_INVALID},
               {0, DLX_E_INVALID},
               {UINT64_MAX, DLX_E_INVALID}};
    auto_test_publisher pub;
    dlx_test_publisher_new(&pub, dlx_served_client, "t", 0);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(all); i++) {
        const char *text = dlx_test_call_error(
            dlx_served_client, ARENA_NEW(.publisher = pub.id, .arena_size = all[i].size),
            all[i].code);
        ck_assert_msg(i > 0 || (strstr(text, "asks for 32.0 TiB") && strstr(text, "may have") &&
                                strstr(text, "uses")),
                      "%s", text);
    }
}

TEST(lists_report_what_the_pages_say)
{
    void *map;
    auto_test_publisher pub = dlx_served_publisher("t");
    (void)dlx_test_arena(&pub, 8192);
    auto_test_subscription sub = dlx_served_subscription("t");
    const Dlx__Wire__Packet *p = dlx_test_expect(sub.fd, BODY(LINK_OFFER));
    uint64_t size = p->link_offer->page_size, link = p->link_offer->link;
    ck_assert_int_eq(dlx__region_populate(dlx_test_memory, dlx_test_take_fd(0), size, &map), 0);
    dlx_test_send(sub.fd, LINK_READY(.link = link), 0);
    (void)dlx_test_expect(sub.fd, BODY(LINK_OPEN));

    struct dlx_shm_control *block = pub.block;
    struct dlx_shm_link *page = map;
    dlx_store64_relaxed(&block->published, 5);
    dlx_store64_relaxed(&block->published_bytes, UINT64_MAX);
    dlx_store64_relaxed(&page->taken, 3);
    dlx_store64_relaxed(&page->skipped, 1);
    dlx_store64_relaxed(&page->lost, 2);
    dlx_store64_relaxed(&page->hold[0], 4);
    dlx_store64_relaxed(&page->hold[15], UINT64_MAX);
    const Dlx__Wire__PublisherList *pubs =
        dlx_test_call(dlx_served_client, LIST_PUBLISHERS())->publisher_list;
    ck_assert_uint_eq(pubs->n_entries, 1);
    bool more = pubs->more; /* the user's slice was over, as on a slow machine */
    const Dlx__Wire__PublisherEntry *entry = pubs->entries[0];
    ck_assert_uint_eq(entry->published, 5);
    ck_assert_uint_eq(entry->published_bytes, UINT64_MAX);
    ck_assert_uint_eq(entry->depth, 16);
    ck_assert_uint_eq(entry->n_subscribers, 1);
    ck_assert_uint_eq(entry->n_arenas, 1);
    ck_assert_uint_eq(entry->arena_bytes, 8192);
    ck_assert_uint_eq(entry->control_bytes, pub.block_size);
    if (more) {
        char after[] = "t";
        pubs = dlx_test_call(dlx_served_client,
                             LIST_PUBLISHERS(.after_topic = after, .after_publisher = pub.id))
                   ->publisher_list;
        ck_assert(pubs->n_entries == 0 && !pubs->more);
    }
    const Dlx__Wire__LinkList *got =
        dlx_test_call(dlx_served_client, LIST_LINKS(.publisher = pub.id))->link_list;
    ck_assert_uint_eq(got->n_entries, 1);
    ck_assert_uint_eq(got->entries[0]->link, link);
    ck_assert_uint_eq(got->entries[0]->taken, 3);
    ck_assert_uint_eq(got->entries[0]->skipped, 1);
    ck_assert_uint_eq(got->entries[0]->lost, 2);
    ck_assert_uint_eq(got->entries[0]->n_held, 2);
    ck_assert_uint_eq(got->entries[0]->max_held, 16);
    p = dlx_test_call(dlx_served_client, DAEMON_INFO());
    ck_assert_uint_eq(p->daemon_info_reply->n_publishers, 1);
    ck_assert_uint_eq(p->daemon_info_reply->n_links, 1);
    ck_assert_uint_eq(p->daemon_info_reply->n_topics, 1);
    ck_assert_uint_eq(p->daemon_info_reply->n_clients, 1);
    ck_assert_uint_eq(p->daemon_info_reply->shared_bytes,
                      pub.block_size + size + 8192 + DLX_PAGE); /* and its membership page */
    dlx_store64_sc(&page->hold[0], 0);                          /* what is held would stay */
    dlx_store64_sc(&page->hold[15], 0);
    dlx__region_unmap(map, size);
}

TEST(other_clients_objects_are_not_found)
{
    auto_test_publisher pub;
    auto_fd other = dlx_test_hello(&dlx_served, 10);
    dlx_test_publisher_new(&pub, dlx_served_client, "t", 0);
    auto_test_subscription sub = dlx_served_subscription("t");
    const struct {
        Dlx__Wire__Packet__BodyCase body;
        void *message;
    } requests[] = {{PUBLISHER_READY(.publisher = pub.id)},
                    {PUBLISHER_CLOSE(.publisher = pub.id)},
                    {ARENA_NEW(.publisher = pub.id, .arena_size = 4096)},
                    {ARENA_READY(.publisher = pub.id)},
                    {ARENA_DROP(.publisher = pub.id)},
                    {SUBSCRIPTION_CLOSE(.subscription = sub.id)},
                    {LIST_LINKS(.publisher = 4711)}};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(requests); i++)
        dlx_test_call_error(other, requests[i].body, requests[i].message, DLX_E_NOT_FOUND);
    dlx_test_call_ok(dlx_served_client, SUBSCRIPTION_CLOSE(.subscription = sub.id));
    dlx_test_call_error(dlx_served_client, SUBSCRIPTION_CLOSE(.subscription = sub.id),
                        DLX_E_NOT_FOUND);
}

int main(void)
{
    Suite *suite = suite_create("daemon_links");
    TCase *older = dlx_served_case("links_on_an_older_kernel");
    tcase_add_unchecked_fixture(older, choose_older_kernel, NULL);
    dlx_test_add_case(suite, dlx_served_case("links"));
    dlx_test_add_case(suite, older);
    return dlx_test_run(suite);
}

/* The caller has it before anybody knows the name; the daemon takes no second client's word. */
TEST(an_inbox_is_of_the_client_that_subscribed_first)
{
    static const char inbox[] = "@00112233445566778899aabbccddeeff";
    struct dlx_test_subscription sub = dlx_served_subscription(inbox);
    auto_test_subscription again = dlx_served_subscription(inbox); /* of the same client */
    auto_fd other = dlx_test_hello(&dlx_served, 1000);
    Dlx__Wire__Subscribe request = DLX__WIRE__SUBSCRIBE__INIT;
    request.topic = WIRE_TEXT(inbox);
    request.max_held = 1;
    contains(dlx_test_call_error(other, BODY(SUBSCRIBE), &request, DLX_E_ACCESS),
             "belongs to another client");
    auto_test_publisher pub;
    dlx_test_publisher_new(&pub, other, inbox, 0); /* a worker: it is offered to the first one */
    dlx_test_subscription_deinit(&sub);
}
