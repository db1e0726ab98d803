/* SPDX-License-Identifier: Apache-2.0 */
/* Publishers, arenas, subscriptions and links, as a real daemon brokers them. */
#include "common/memory.h"
#include "ring/layout.h"
#include "tests/daemon/harness_served.h"
#include "tests/harness/run.h"
#include "tests/harness/seccomp.h"

/* Such a kernel lets clients send descriptors to the daemon's sockets. */
static void choose_older_kernel(void)
{
    dlx_served_prepare = dlx_test_seccomp_on_an_older_kernel;
}

TEST(subscriber_joins_a_publisher_that_is_there)
{
    struct dlx_test_publisher pub;
    struct dlx_test_subscription sub;
    const void *map;
    dlx_served_publisher(&pub, "cam/front");
    ck_assert_uint_eq(dlx_test_arena(&pub, 8192), 1);
    dlx_test_subscribe(&sub, dlx_served_client, "cam/front", false);
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
    ck_assert_int_eq(
        dlx__region_attach(dlx_test_memory, dlx_test_take_fd(0), p->link_open->control_size, &map),
        0);
    int bell = dlx_test_take_fd(1);
    dlx__region_unmap(map, pub.block_size);

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
    ck_assert_int_eq(
        dlx__region_attach(dlx_test_memory, dlx_test_take_fd(0), p->link_added->page_size, &map),
        0);
    dlx__region_unmap(map, p->link_added->page_size);
    int other_bell = dlx_test_take_fd(1);
    int pidfd = dlx_test_take_fd(2);
    struct pollfd alive = {.fd = pidfd, .events = POLLIN};
    ck_assert_int_eq(poll(&alive, 1, 0), 0);
    char byte = 1;
    ck_assert_int_eq(write(bell, &byte, 1), 1);
    ck_assert_int_eq(read(other_bell, &byte, 1), 1);

    p = dlx_test_expect(sub.fd, BODY(ARENA_ADDED));
    ck_assert_uint_eq(p->arena_added->arena, 1);
    ck_assert_uint_eq(p->arena_added->arena_size, 8192);
    ck_assert_int_eq(dlx__region_attach(dlx_test_memory, dlx_test_take_fd(0), 8192, &map), 0);
    dlx__region_unmap(map, 8192);

    /* The subscriber leaves. */
    ck_assert_uint_eq(dlx_test_leaves(&pub), 0);
    dlx_test_subscription_deinit(&sub);
    struct pollfd hangup = {.fd = other_bell, .events = POLLIN};
    close(bell);
    ck_assert_int_eq(poll(&hangup, 1, PATIENCE_MS), 1);
    while (dlx_test_leaves(&pub) == 0)
        dlx_served_barrier();
    close(other_bell);
    close(pidfd);
    dlx_test_publisher_deinit(&pub);
}

TEST(publisher_that_comes_later_is_offered_from_its_start)
{
    struct dlx_test_publisher pub[3];
    struct dlx_test_subscription sub;
    dlx_test_subscribe(&sub, dlx_served_client, "t", false);
    ck_assert_uint_eq(sub.n_offers, 0);
    for (int i = 0; i < 3; i++) {
        dlx_test_publisher_new(&pub[i], dlx_served_client, "t", 0);
        dlx_served_barrier();
        ck_assert(dlx_test_is_silent(sub.fd)); /* not before it is ready */
        dlx_test_publisher_ready(&pub[i]);
        uint64_t link = dlx_test_accept_offer(&sub);
        const Dlx__Wire__Packet *p = dlx_test_expect(sub.fd, BODY(LINK_OPEN));
        ck_assert_uint_eq(p->link_open->link, link);
        ck_assert_uint_eq(p->link_open->publisher, pub[i].id);
        ck_assert(p->link_open->from_start);
        dlx_test_ack(&sub);
    }
    for (int i = 0; i < 3; i++)
        dlx_test_publisher_deinit(&pub[i]);
    dlx_test_subscription_deinit(&sub);
}

TEST(arenas_follow_one_another_and_drops_come_in_order)
{
    struct dlx_test_publisher pub;
    struct dlx_test_subscription sub;
    dlx_served_publisher(&pub, "t");
    dlx_test_subscribe(&sub, dlx_served_client, "t", false);
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
    Dlx__Wire__ArenaDrop request = DLX__WIRE__ARENA_DROP__INIT;
    request.publisher = pub.id;
    request.arena = 3;
    dlx_test_send(dlx_served_client, BODY(ARENA_DROP), &request, 0);
    dlx_test_send(dlx_served_client, BODY(ARENA_DROP), &request,
                  0); /* not there any more: no reply either */
    ck_assert_uint_eq(dlx_test_expect(sub.fd, BODY(ARENA_DROPPED))->arena_dropped->arena, 3);
    dlx_served_barrier();
    dlx_test_call_error(dlx_served_client, BODY(ARENA_DROP), &request, DLX_E_NOT_FOUND);
    ck_assert_uint_eq(dlx_test_arena(&pub, 4096), 4); /* ids are not used again */
    dlx_test_publisher_deinit(&pub);
    dlx_test_subscription_deinit(&sub);
}

TEST(subscriber_that_never_acknowledges_gets_four_packets_with_fds)
{
    struct dlx_test_publisher pub;
    struct dlx_test_subscription sub;
    struct dlx_test_subscription other;
    dlx_served_publisher(&pub, "t");
    dlx_test_subscribe(&sub, dlx_served_client, "t", false);
    dlx_test_subscribe(&other, dlx_served_client, "t", false);
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
    /* News without fds does not wait, news about an arena that was not sent is not sent. */
    dlx_served_arena_drop(&pub, 3);
    dlx_served_arena_drop(&pub, 6);
    ck_assert_uint_eq(dlx_test_expect(sub.fd, BODY(ARENA_DROPPED))->arena_dropped->arena, 3);
    dlx_served_barrier();
    ck_assert(dlx_test_is_silent(sub.fd));
    /* One more for each that is acknowledged; the publisher may have left meanwhile. */
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
    dlx_test_publisher_deinit(&pub);
    dlx_test_subscription_deinit(&sub);
    dlx_test_subscription_deinit(&other);
}

TEST(publisher_that_does_not_respond_refuses_the_641st)
{
    enum { N = 642, MOST = 640 };
    struct dlx_test_publisher pub;
    static struct dlx_test_subscription sub[N];
    int n_open = 0, reader = dlx_test_hello(&dlx_served, N);
    dlx_served_publisher(&pub, "t");
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
        ck_assert_ptr_nonnull(strstr(p->link_failed->text, "publisher of t"));
        ck_assert_ptr_nonnull(strstr(p->link_failed->text, "512 more wait"));
    }
    ck_assert_int_eq(n_open, MOST);
    ck_assert_uint_eq(dlx_test_joins(&pub), MOST);
    /* It picks them up, in order, and others can join again. */
    for (uint32_t i = 0; i < MOST; i++)
        ck_assert_uint_eq(dlx_test_expect(pub.link_sock, BODY(LINK_ADDED))->link_added->link_index,
                          i);
    struct dlx_test_subscription late;
    dlx_test_subscribe(&late, dlx_served_client, "t", false);
    (void)dlx_test_join(&late);
    for (int i = 0; i < N; i++)
        dlx_test_subscription_deinit(&sub[i]);
    dlx_test_subscription_deinit(&late);
    dlx_test_daemon_wait_n_fds(&dlx_served, n_fds);
    dlx_test_publisher_deinit(&pub);
    close(reader);
}

/* It leaves, or dies: who waited for it hears that it has gone, and nothing is left of them. */
LOOP_TEST(who_waits_for_a_publisher_that_ends_is_told_so, 0, 2)
{
    enum { N = 140 };
    struct dlx_test_publisher pub;
    static struct dlx_test_subscription sub[N];
    int writer = dlx_test_hello(&dlx_served, 1000);
    size_t n_fds = dlx_test_daemon_n_fds(&dlx_served);
    dlx_test_publisher_new(&pub, writer, "t", 0);
    dlx_test_publisher_ready(&pub);
    for (int i = 0; i < N; i++) {
        dlx_test_subscribe(&sub[i], dlx_served_client, "t", false);
        (void)dlx_test_join(&sub[i]);
    }
    if (_i == 0) {
        Dlx__Wire__PublisherClose close_request = DLX__WIRE__PUBLISHER_CLOSE__INIT;
        close_request.publisher = pub.id;
        dlx_test_call_ok(writer, BODY(PUBLISHER_CLOSE), &close_request);
    } else {
        close(writer);
    }
    for (int i = 0; i < N; i++) {
        (void)dlx_test_expect(sub[i].fd, BODY(PUBLISHER_GONE));
        dlx_test_subscription_deinit(&sub[i]);
    }
    dlx_test_publisher_deinit(&pub); /* until then the daemon keeps its end: it was not read */
    dlx_test_daemon_wait_n_fds(&dlx_served, n_fds - (_i == 0 ? 0 : 2));
    if (_i == 0)
        close(writer);
}

/* Two have closed their link sockets, as a process does that is about to die, but they live. */
TEST(links_that_wait_for_their_publishers_end_keep_no_other_waiting)
{
    static const char *const topics[] = {"a/1", "a/2", "a/3"};
    struct dlx_test_publisher pub[3];
    struct dlx_test_subscription sub;
    uint64_t last = 0;
    for (int i = 0; i < 3; i++) {
        dlx_served_publisher(&pub[i], topics[i]);
        if (i < 2) {
            close(pub[i].link_sock);
            pub[i].link_sock = -1;
        }
    }
    dlx_test_subscribe(&sub, dlx_served_client, "a/*", false);
    for (int i = 0; i < 3; i++)
        last = dlx_test_accept_offer(&sub);
    ck_assert_uint_eq(dlx_test_expect(sub.fd, BODY(LINK_OPEN))->link_open->link, last);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(dlx_test_expect(sub.fd, BODY(LINK_FAILED))->link_failed->code,
                         DLX_E_PUBLISHER_NOT_RESPONDING);
    for (int i = 0; i < 3; i++)
        dlx_test_publisher_deinit(&pub[i]);
    dlx_test_subscription_deinit(&sub);
}

TEST(reliable_needs_a_publisher_that_blocks)
{
    struct dlx_test_publisher drop;
    struct dlx_test_publisher block;
    struct dlx_test_subscription sub;
    Dlx__Wire__Subscribe request = DLX__WIRE__SUBSCRIBE__INIT;
    char topic[] = "t";
    dlx_served_publisher(&drop, "t");
    request.topic = topic;
    request.max_held = 1;
    request.reliable = true;
    const char *text = dlx_test_call_error(dlx_served_client, BODY(SUBSCRIBE), &request, DLX_E_QOS);
    ck_assert_ptr_nonnull(strstr(text, "reliable"));
    ck_assert_ptr_nonnull(strstr(text, "publisher test (pid"));
    dlx_served_publisher_close(&drop);
    dlx_test_publisher_deinit(&drop);

    dlx_test_publisher_new(&block, dlx_served_client, "t", 1);
    dlx_test_publisher_ready(&block);
    dlx_test_subscribe(&sub, dlx_served_client, "t", true);
    (void)dlx_test_join(&sub);
    ck_assert(dlx_test_expect(block.link_sock, BODY(LINK_ADDED))->link_added->reliable);
    /* One that does not fit and comes later: the subscriber hears why. */
    dlx_served_publisher(&drop, "t");
    const Dlx__Wire__Packet *p = dlx_test_expect(sub.fd, BODY(LINK_FAILED));
    ck_assert_int_eq(p->link_failed->code, DLX_E_QOS);
    dlx_test_publisher_deinit(&drop);
    dlx_test_publisher_deinit(&block);
    dlx_test_subscription_deinit(&sub);
}

TEST(links_beyond_what_a_client_can_bear_fail_alone)
{
    struct dlx_test_publisher pub[3];
    struct dlx_test_subscription sub;
    int small = dlx_test_hello(&dlx_served, 2);
    for (int i = 0; i < 3; i++) {
        dlx_served_publisher(&pub[i], "t");
    }
    dlx_test_subscribe(&sub, small, "t", false);
    ck_assert_uint_eq(sub.n_offers, 3);
    uint64_t first = dlx_test_accept_offer(&sub);
    const Dlx__Wire__Packet *p = dlx_test_expect(sub.fd, BODY(LINK_FAILED));
    ck_assert_int_eq(p->link_failed->code, DLX_E_LIMIT);
    ck_assert_ptr_nonnull(strstr(p->link_failed->text, "subscriber test"));
    ck_assert_ptr_nonnull(strstr(p->link_failed->text, "(limit 2, by its limits of open files"));
    ck_assert_ptr_nonnull(strstr(p->link_failed->text, "ulimit -n"));
    uint64_t second = dlx_test_accept_offer(&sub);
    ck_assert_uint_eq(dlx_test_expect(sub.fd, BODY(LINK_OPEN))->link_open->link, first);
    dlx_test_ack(&sub);
    ck_assert_uint_eq(dlx_test_expect(sub.fd, BODY(LINK_OPEN))->link_open->link, second);
    dlx_test_ack(&sub);
    for (int i = 0; i < 3; i++)
        dlx_test_publisher_deinit(&pub[i]);
    dlx_test_subscription_deinit(&sub);
    close(small);
}

TEST(regions_that_were_not_allocated_are_refused)
{
    Dlx__Wire__PublisherNew new = DLX__WIRE__PUBLISHER_NEW__INIT;
    Dlx__Wire__PublisherReady ready = DLX__WIRE__PUBLISHER_READY__INIT;
    Dlx__Wire__ArenaNew arena_new = DLX__WIRE__ARENA_NEW__INIT;
    Dlx__Wire__ArenaReady arena_ready = DLX__WIRE__ARENA_READY__INIT;
    struct dlx_test_publisher pub;
    struct dlx_test_subscription sub;
    char topic[] = "t";
    new.topic = topic;
    new.history = 1;
    new.depth = 16;
    new.n_entries = 256;
    ready.publisher =
        dlx_test_call(dlx_served_client, BODY(PUBLISHER_NEW), &new)->publisher_new_reply->publisher;
    dlx_test_call_error(dlx_served_client, BODY(PUBLISHER_READY), &ready, DLX_E_BAD_PEER);
    dlx_test_call_error(dlx_served_client, BODY(PUBLISHER_READY), &ready, DLX_E_NOT_FOUND);

    dlx_served_publisher(&pub, "t");
    ready.publisher = pub.id;
    dlx_test_call_error(dlx_served_client, BODY(PUBLISHER_READY), &ready, DLX_E_IN_USE);
    arena_new.publisher = arena_ready.publisher = pub.id;
    arena_new.arena_size = 1 << 20;
    arena_ready.arena =
        dlx_test_call(dlx_served_client, BODY(ARENA_NEW), &arena_new)->arena_new_reply->arena;
    dlx_test_call_error(dlx_served_client, BODY(ARENA_READY), &arena_ready, DLX_E_BAD_PEER);
    dlx_test_call_error(dlx_served_client, BODY(ARENA_READY), &arena_ready, DLX_E_NOT_FOUND);

    dlx_test_subscribe(&sub, dlx_served_client, "t", false);
    Dlx__Wire__LinkReady link_ready = DLX__WIRE__LINK_READY__INIT;
    link_ready.link = dlx_test_expect(sub.fd, BODY(LINK_OFFER))->link_offer->link;
    dlx_test_send(sub.fd, BODY(LINK_READY), &link_ready, 0);
    const Dlx__Wire__Packet *p = dlx_test_expect(sub.fd, BODY(LINK_FAILED));
    ck_assert_int_eq(p->link_failed->code, DLX_E_BAD_PEER);
    ck_assert_uint_eq(dlx_test_joins(&pub), 0);
    ck_assert(dlx_test_is_silent(pub.link_sock));
    dlx_test_publisher_deinit(&pub);
    dlx_test_subscription_deinit(&sub);
}

TEST(more_memory_than_there_is_is_refused_with_numbers)
{
    struct dlx_test_publisher pub;
    Dlx__Wire__ArenaNew request = DLX__WIRE__ARENA_NEW__INIT;
    dlx_test_publisher_new(&pub, dlx_served_client, "t", 0);
    request.publisher = pub.id;
    request.arena_size = UINT64_C(1) << 45;
    const char *text =
        dlx_test_call_error(dlx_served_client, BODY(ARENA_NEW), &request, DLX_E_LIMIT);
    ck_assert_ptr_nonnull(strstr(text, "asks for 32.0 TiB"));
    ck_assert_ptr_nonnull(strstr(text, "may have"));
    ck_assert_ptr_nonnull(strstr(text, "uses"));
    request.arena_size = UINT64_C(1) << 47;
    dlx_test_call_error(dlx_served_client, BODY(ARENA_NEW), &request, DLX_E_LIMIT);
    request.arena_size = 4097;
    dlx_test_call_error(dlx_served_client, BODY(ARENA_NEW), &request, DLX_E_INVALID);
    request.arena_size = 0;
    dlx_test_call_error(dlx_served_client, BODY(ARENA_NEW), &request, DLX_E_INVALID);
    request.arena_size = UINT64_MAX;
    dlx_test_call_error(dlx_served_client, BODY(ARENA_NEW), &request, DLX_E_INVALID);
    dlx_test_publisher_deinit(&pub);
}

TEST(lists_report_what_the_pages_say)
{
    struct dlx_test_publisher pub;
    struct dlx_test_subscription sub;
    Dlx__Wire__ListPublishers list = DLX__WIRE__LIST_PUBLISHERS__INIT;
    Dlx__Wire__ListLinks links = DLX__WIRE__LIST_LINKS__INIT;
    Dlx__Wire__LinkReady ready = DLX__WIRE__LINK_READY__INIT;
    Dlx__Wire__DaemonInfo info = DLX__WIRE__DAEMON_INFO__INIT;
    void *map;
    dlx_served_publisher(&pub, "t");
    (void)dlx_test_arena(&pub, 8192);
    dlx_test_subscribe(&sub, dlx_served_client, "t", false);
    const Dlx__Wire__Packet *p = dlx_test_expect(sub.fd, BODY(LINK_OFFER));
    uint64_t size = p->link_offer->page_size;
    ready.link = p->link_offer->link;
    ck_assert_int_eq(dlx__region_populate(dlx_test_memory, dlx_test_take_fd(0), size, &map), 0);
    dlx_test_send(sub.fd, BODY(LINK_READY), &ready, 0);
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
        dlx_test_call(dlx_served_client, BODY(LIST_PUBLISHERS), &list)->publisher_list;
    ck_assert_uint_eq(pubs->n_entries, 1);
    ck_assert(!pubs->more);
    ck_assert_uint_eq(pubs->entries[0]->published, 5);
    ck_assert_uint_eq(pubs->entries[0]->published_bytes, UINT64_MAX);
    ck_assert_uint_eq(pubs->entries[0]->depth, 16);
    ck_assert_uint_eq(pubs->entries[0]->n_subscribers, 1);
    ck_assert_uint_eq(pubs->entries[0]->n_arenas, 1);
    ck_assert_uint_eq(pubs->entries[0]->arena_bytes, 8192);
    ck_assert_uint_eq(pubs->entries[0]->control_bytes, pub.block_size);
    links.publisher = pub.id;
    const Dlx__Wire__LinkList *got =
        dlx_test_call(dlx_served_client, BODY(LIST_LINKS), &links)->link_list;
    ck_assert_uint_eq(got->n_entries, 1);
    ck_assert_uint_eq(got->entries[0]->link, ready.link);
    ck_assert_uint_eq(got->entries[0]->taken, 3);
    ck_assert_uint_eq(got->entries[0]->skipped, 1);
    ck_assert_uint_eq(got->entries[0]->lost, 2);
    ck_assert_uint_eq(got->entries[0]->n_held, 2);
    ck_assert_uint_eq(got->entries[0]->max_held, 16);
    p = dlx_test_call(dlx_served_client, BODY(DAEMON_INFO), &info);
    ck_assert_uint_eq(p->daemon_info_reply->n_publishers, 1);
    ck_assert_uint_eq(p->daemon_info_reply->n_links, 1);
    ck_assert_uint_eq(p->daemon_info_reply->n_topics, 1);
    ck_assert_uint_eq(p->daemon_info_reply->n_clients, 1);
    ck_assert_uint_eq(p->daemon_info_reply->shared_bytes, pub.block_size + size + 8192);
    dlx__region_unmap(map, size);
    dlx_test_publisher_deinit(&pub);
    dlx_test_subscription_deinit(&sub);
}

TEST(other_clients_objects_are_not_found)
{
    struct dlx_test_publisher pub;
    struct dlx_test_subscription sub;
    Dlx__Wire__PublisherReady ready = DLX__WIRE__PUBLISHER_READY__INIT;
    Dlx__Wire__PublisherClose close_pub = DLX__WIRE__PUBLISHER_CLOSE__INIT;
    Dlx__Wire__ArenaNew arena_new = DLX__WIRE__ARENA_NEW__INIT;
    Dlx__Wire__ArenaReady arena_ready = DLX__WIRE__ARENA_READY__INIT;
    Dlx__Wire__ArenaDrop arena_drop = DLX__WIRE__ARENA_DROP__INIT;
    Dlx__Wire__SubscriptionClose close_sub = DLX__WIRE__SUBSCRIPTION_CLOSE__INIT;
    Dlx__Wire__ListLinks list = DLX__WIRE__LIST_LINKS__INIT;
    int other = dlx_test_hello(&dlx_served, 10);
    dlx_test_publisher_new(&pub, dlx_served_client, "t", 0);
    dlx_test_subscribe(&sub, dlx_served_client, "t", false);
    ready.publisher = close_pub.publisher = arena_new.publisher = pub.id;
    arena_ready.publisher = arena_drop.publisher = pub.id;
    arena_new.arena_size = 4096;
    close_sub.subscription = sub.id;
    list.publisher = 4711;
    dlx_test_call_error(other, BODY(PUBLISHER_READY), &ready, DLX_E_NOT_FOUND);
    dlx_test_call_error(other, BODY(PUBLISHER_CLOSE), &close_pub, DLX_E_NOT_FOUND);
    dlx_test_call_error(other, BODY(ARENA_NEW), &arena_new, DLX_E_NOT_FOUND);
    dlx_test_call_error(other, BODY(ARENA_READY), &arena_ready, DLX_E_NOT_FOUND);
    dlx_test_call_error(other, BODY(ARENA_DROP), &arena_drop, DLX_E_NOT_FOUND);
    dlx_test_call_error(other, BODY(SUBSCRIPTION_CLOSE), &close_sub, DLX_E_NOT_FOUND);
    dlx_test_call_error(other, BODY(LIST_LINKS), &list, DLX_E_NOT_FOUND);
    dlx_test_call_ok(dlx_served_client, BODY(SUBSCRIPTION_CLOSE), &close_sub);
    dlx_test_call_error(dlx_served_client, BODY(SUBSCRIPTION_CLOSE), &close_sub, DLX_E_NOT_FOUND);
    dlx_test_publisher_deinit(&pub);
    dlx_test_subscription_deinit(&sub);
    close(other);
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
