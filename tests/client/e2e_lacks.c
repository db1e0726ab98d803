/* SPDX-License-Identifier: Apache-2.0 */

/* A subscriber that cannot map what it is sent, for a while: it hears which limit stops it, no
 * message is lost by that, and the link goes on when there is room again. */

#include "tests/harness/fork.h"
#include "tests/harness/maps.h"
#include "tests/harness/stream.h"
#include <poll.h>

/* A tensor of LARGE numbers does not fit into ROOM bytes. */
enum { SMALL = 10, LARGE = 8 << 20, ROOM = 32 << 20 };

/* The limit is one of this process, so the publisher is another one. It publishes each number when
 * it is told to: message 1 and even ones are small. */
static void publish_when_told(int sock, const void *userdata)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", userdata);
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    for (int64_t i = 1; i <= 5; i++) {
        dlx_test_hear(sock);
        DLManagedTensorVersioned *t =
            dlx_test_stream_alloc(p, i == 1 || i % 2 == 0 ? SMALL : LARGE, i);
        ok(dlx_publish(p, t, PUBLISH(.timeout_ns = PATIENCE), NULL));
        dlx_test_say(sock);
    }
    dlx_test_hear(sock);
}

static void have_next(const struct dlx_test_part *part)
{
    dlx_test_say(part->sock);
    dlx_test_hear(part->sock);
}

static void end(const struct dlx_test_part *part)
{
    dlx_test_say(part->sock);
    dlx_test_part_join(part);
}

static void take_in_order(struct dlx_subscription *s, int64_t value, int64_t n)
{
    auto_message *m = dlx_test_stream_next(s);
    dlx_test_stream_check(m, n, value);
    ck_assert_uint_eq(dlx_message_gap(m), 0);
}

static void lost_nothing(struct dlx_subscription *s)
{
    const struct dlx_subscription_stats stats = dlx_test_stream_subscription_stats(s);
    ck_assert_uint_eq(stats.lost, 0);
    ck_assert_uint_eq(stats.rejected, 0);
    ck_assert_uint_eq(stats.n_publishers, 1);
}

static void is_joined(struct dlx_subscription *s)
{
    struct dlx_event e = {.size = sizeof e};
    ok(dlx_subscription_next_event(s, &e));
    ck_assert_uint_eq(e.kind, DLX_EVENT_JOINED);
    fails(dlx_subscription_next_event(s, &e), DLX_E_EMPTY, "");
}

LOOP_TEST(a_message_that_cannot_be_mapped_stays_until_it_can, 0, 2)
{
    const bool reliable = _i == 1;
    const struct dlx_publisher_args *args =
        reliable ? PUBLISHER_BLOCKING(.depth = 8) : PUBLISHER(.depth = 8);
    if (!dlx_test_maps_can_limit())
        return;
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/a", SUBSCRIBE(.reliable = reliable));
    struct dlx_test_part part = dlx_test_part_begin(publish_when_told, args);
    have_next(&part);
    take_in_order(s, 1, SMALL);
    is_joined(s);
    have_next(&part);
    take_in_order(s, 2, SMALL);
    dlx_test_maps_limit(ROOM);
    have_next(&part);
    have_next(&part);
    for (int i = 0; i < 3; i++)
        take_fails(s, PATIENCE, DLX_E_LIMIT, "cannot map 64.0 MiB: out of address space");
    take_fails(s, 0, DLX_E_LIMIT, "the next message stays");
    lost_nothing(s);
    dlx_test_maps_unlimit();
    take_in_order(s, 3, LARGE);
    take_in_order(s, 4, SMALL);
    have_next(&part);
    take_in_order(s, 5, LARGE);
    lost_nothing(s);
    end(&part);
    take_fails(s, PATIENCE, DLX_E_PUBLISHER_GONE, "the last publisher left");
}

TEST(mode_latest_passes_a_message_that_cannot_be_mapped_for_a_newer_one)
{
    if (!dlx_test_maps_can_limit())
        return;
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *s =
        dlx_test_stream_subscribe(c, "test/a", SUBSCRIBE(.mode = DLX_MODE_LATEST));
    struct dlx_test_part part = dlx_test_part_begin(publish_when_told, NULL);
    have_next(&part);
    take_in_order(s, 1, SMALL);
    have_next(&part);
    take_in_order(s, 2, SMALL);
    dlx_test_maps_limit(ROOM);
    have_next(&part);
    take_fails(s, PATIENCE, DLX_E_LIMIT, "cannot map");
    have_next(&part);
    {
        auto_message *m = dlx_test_stream_next(s);
        dlx_test_stream_check(m, SMALL, 4);
        ck_assert_uint_eq(dlx_message_gap(m), 1);
    }
    ck_assert_uint_eq(dlx_test_stream_subscription_stats(s).skipped, 1);
    lost_nothing(s);
    dlx_test_maps_unlimit();
    have_next(&part);
    take_in_order(s, 5, LARGE);
    end(&part);
}

/* The descriptor tells to take again as long as a message stays. */
TEST(the_descriptor_is_readable_while_a_message_stays)
{
    if (!dlx_test_maps_can_limit())
        return;
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/a", NULL);
    struct dlx_test_part part = dlx_test_part_begin(publish_when_told, NULL);
    struct pollfd fd = {.fd = dlx_subscription_fd(s), .events = POLLIN};
    have_next(&part);
    take_in_order(s, 1, SMALL);
    have_next(&part);
    take_in_order(s, 2, SMALL);
    take_fails(s, 0, DLX_E_EMPTY, "");
    dlx_test_maps_limit(ROOM);
    have_next(&part);
    for (int i = 0; i < 3; i++) {
        struct dlx_message *m = NULL;
        int r;
        do
            ck_assert_int_eq(poll(&fd, 1, PATIENCE_MS), 1);
        while ((r = dlx_take(s, 0, &m)) == DLX_E_EMPTY);
        ck_assert_int_eq(r, DLX_E_LIMIT);
    }
    dlx_test_maps_unlimit();
    ck_assert_int_eq(poll(&fd, 1, PATIENCE_MS), 1);
    take_in_order(s, 3, LARGE);
    have_next(&part);
    have_next(&part);
    end(&part);
}

/* The arena was received: the daemon is not needed for it. */
LOOP_TEST(a_message_that_cannot_be_mapped_stays_through_a_restart_of_the_daemon, 0, 2)
{
    const bool reliable = _i == 1;
    const struct dlx_publisher_args *args =
        reliable ? PUBLISHER_BLOCKING(.depth = 8) : PUBLISHER(.depth = 8);
    if (!dlx_test_maps_can_limit())
        return;
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/a", SUBSCRIBE(.reliable = reliable));
    struct dlx_test_part part = dlx_test_part_begin(publish_when_told, args);
    for (int64_t i = 1; i <= 2; i++) {
        have_next(&part);
        take_in_order(s, i, SMALL);
    }
    dlx_test_maps_limit(ROOM);
    have_next(&part);
    take_fails(s, PATIENCE, DLX_E_LIMIT, "cannot map");
    dlx_test_stream_restart();
    take_fails(s, PATIENCE, DLX_E_LIMIT, "cannot map");
    dlx_test_maps_unlimit();
    take_in_order(s, 3, LARGE);
    ck_assert_uint_eq(dlx_test_stream_subscription_stats(s).lost, 0);
    dlx_test_part_kill(&part);
}

/* Nothing can be mapped: neither the control block of a new publisher, nor the page of the next
 * spare link. */
LOOP_TEST(a_publisher_that_comes_while_nothing_can_be_mapped_is_attached_later, 0, 2)
{
    const bool reliable = _i == 1;
    const struct dlx_publisher_args *args =
        reliable ? PUBLISHER_BLOCKING(.depth = 8) : PUBLISHER(.depth = 8);
    /* A sanitizer's allocator needs mappings, too. */
    if (dlx_test_instrumented() || !dlx_test_maps_can_exhaust())
        return;
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/a", SUBSCRIBE(.reliable = reliable));
    struct dlx_test_part part = dlx_test_part_begin(publish_when_told, args);
    have_next(&part);
    struct dlx_message *m = NULL;
    struct dlx_test_maps maps = dlx_test_maps_exhaust();
    int codes[3];
    char words[256];
    for (size_t i = 0; i < DLX_ARRAY_SIZE(codes); i++)
        codes[i] = dlx_take(s, PATIENCE, &m);
    (void)snprintf(words, sizeof words, "%s", dlx_errmsg());
    dlx_test_maps_give_back(&maps);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(codes); i++)
        ck_assert_int_eq(codes[i], DLX_E_LIMIT);
    contains(words, "vm.max_map_count");
    for (int64_t i = 1; i <= 2; i++) {
        take_in_order(s, i, SMALL);
        have_next(&part);
    }
    is_joined(s);
    lost_nothing(s);
    dlx_test_part_kill(&part);
}
