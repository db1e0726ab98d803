/* SPDX-License-Identifier: Apache-2.0 */

/* A subscription's memory of publishers that left, and its counts, without a daemon. */

#include "client/control/notification.h"
#include "client/subscribe/subscription.h"
#include "tests/harness/run.h"

enum { ORIGIN = 7 };

static const struct dlx_reader_counters none;

static struct dlx_resume_position position_of(const struct dlx_subscription *s)
{
    return *dlx__resume_positions_find(&s->resume_positions, ORIGIN);
}

/* The publisher, known as ORIGIN, left after message `last_seq`, before a link to it was open. */
static void leave(struct dlx_subscription *s, uint64_t last_seq, uint64_t missed)
{
    const struct dlx_notification gone = {.resumes = ORIGIN, .base = last_seq, .missed = missed};
    dlx__origin_gone_before(s, &gone);
}

/* The next message reports one gap for all of them. */
LOOP_TEST(messages_missed_in_several_lives_of_a_publisher_add_up, 0, 2)
{
    struct dlx_subscription s = {.args = {.mode = _i == 0 ? DLX_MODE_ALL : DLX_MODE_LATEST}};
    dlx__resume_positions_add(&s.resume_positions, ORIGIN, 10, 2, &none);
    for (uint64_t i = 1; i <= 5; i++) {
        leave(&s, 10 + 3 * i, 0);
        ck_assert_uint_eq(position_of(&s).seq, 10 + 3 * i);
        ck_assert_uint_eq(position_of(&s).untold, 2 + 3 * i);
        ck_assert_uint_eq(s.stats.lost, _i == 0 ? 3 * i : 0);
        ck_assert_uint_eq(s.stats.skipped, _i == 0 ? 0 : 3 * i);
        ck_assert_uint_eq(position_of(&s).counts.lost, s.stats.lost);
        ck_assert_uint_eq(position_of(&s).counts.skipped, s.stats.skipped);
    }
    leave(&s, 25, 0); /* nothing more was missed */
    ck_assert_uint_eq(position_of(&s).untold, 17);
    dlx__resume_positions_deinit(&s.resume_positions);
}

/* The counters go to the new link, once: the total of the subscription stays the same. */
TEST(counters_go_to_the_next_link_and_the_total_stays)
{
    struct dlx_subscription s = {
        .stats = {.taken = 20, .taken_bytes = 200, .skipped = 5, .lost = 9}};
    struct dlx_shm_link *page = calloc(1, dlx_shm_link_size(1));
    struct dlx_subscriber_link link = {.origin = ORIGIN, .core = {.page = page}};
    const struct dlx_reader_counters counts = {10, 100, 3, 4};
    ck_assert_ptr_nonnull(page);
    dlx__resume_positions_add(&s.resume_positions, ORIGIN, 17, 0, &counts);
    for (int i = 0; i < 3; i++) {
        dlx__origin_resume(&s, &link, dlx__resume_positions_find(&s.resume_positions, ORIGIN));
        ck_assert_uint_eq(s.stats.taken + link.core.taken, 20);
        ck_assert_uint_eq(s.stats.taken_bytes + link.core.taken_bytes, 200);
        ck_assert_uint_eq(s.stats.skipped + link.core.skipped, 5);
        ck_assert_uint_eq(s.stats.lost + link.core.lost, 9);
        ck_assert_uint_eq(link.core.lost, 4);
    }
    dlx__resume_positions_deinit(&s.resume_positions);
    free(page);
}

/* Two links that may go on: the end is that of the stream, so the last one counts it. */
LOOP_TEST(the_last_link_in_order_counts_what_came_by_none, 0, 2)
{
    struct dlx_subscriber_link first = {
        .state = DLX_LINK_LIVE, .daemon = DLX_LINK_LOST, .origin = ORIGIN};
    struct dlx_subscriber_link last = first, *links[] = {&first, &last};
    last.after = &first;
    if (_i == 1) {
        links[0] = &last;
        links[1] = &first;
    }
    struct dlx_subscription s = {.links = links, .n_links = 2};
    leave(&s, 30, 0);
    ck_assert_uint_eq(last.ended_at, 30);
    ck_assert_uint_eq(first.ended_at, 0);
    ck_assert_uint_eq(s.stats.lost, 0); /* until that link ends */
}

/* As many publishers are remembered as fit, the newest ones, each once. */
TEST(the_newest_publishers_are_remembered_each_once)
{
    struct dlx_resume_positions positions = {0};
    for (int round = 0; round < 2; round++)
        for (uint64_t i = 1; i <= DLX_RESUME_POSITIONS_MAX; i++)
            dlx__resume_positions_add(&positions, i, i, 0, &none);
    ck_assert_uint_eq(positions.n, DLX_RESUME_POSITIONS_MAX);
    dlx__resume_positions_add(&positions, 1000, 5, 1, &none);
    ck_assert_ptr_null(dlx__resume_positions_find(&positions, 1));
    for (uint64_t i = 2; i <= DLX_RESUME_POSITIONS_MAX; i++)
        ck_assert_uint_eq(dlx__resume_positions_find(&positions, i)->seq, i);
    dlx__resume_positions_add(&positions, 1000, 4, 3, &none); /* an older place changes nothing */
    ck_assert_uint_eq(dlx__resume_positions_find(&positions, 1000)->untold, 1);
    dlx__resume_positions_add(&positions, 1000, 5, 2, &none); /* the same place: a gap was told */
    ck_assert_uint_eq(dlx__resume_positions_find(&positions, 1000)->untold, 2);
    dlx__resume_positions_deinit(&positions);
}

int main(void)
{
    return dlx_test_run_case(tcase_create("origin"));
}
