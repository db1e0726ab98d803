/* SPDX-License-Identifier: Apache-2.0 */
/* Undone messages of declared groups, and their workers, when another program takes the daemon's
 * place in the same process. */

#include "tests/harness/upgrade.h"
#include "tests/restart/harness_queues.h"
#include "tests/restart/harness_restart.h"

TEST(undone_messages_are_handed_over)
{
    dlx_queues_tell_left(dlx_test_upgrade);
}

TEST(messages_that_no_worker_has_seen_are_handed_over)
{
    dlx_queues_tell_unseen(dlx_test_upgrade);
}

TEST(undone_messages_of_a_publisher_that_is_killed_after_an_upgrade_are_there)
{
    dlx_queues_tell_killed(dlx_test_upgrade);
    dlx_test_upgrade_await("made no call since this daemon was started");
}

TEST(a_worker_of_the_daemon_before_an_upgrade_keeps_what_it_has)
{
    dlx_queues_tell_held(dlx_test_upgrade);
}

TEST(a_publisher_that_cannot_tell_its_end_after_an_upgrade_leaves_what_is_undone)
{
    dlx_queues_tell_silent(dlx_test_upgrade);
}

TEST(a_queue_whose_last_message_a_former_worker_finishes_after_an_upgrade_ends)
{
    dlx_queues_tell_finished(dlx_test_upgrade);
}

/* Both go on, by the next daemon. */
TEST(a_queue_goes_on_through_upgrades)
{
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    auto_publisher *p =
        dlx_test_stream_publisher(c, DLX_QUEUES_TOPIC, PUBLISHER(DLX_QUEUES_GROUPS));
    auto_subscription *s = dlx_test_stream_subscribe(other, DLX_QUEUES_TOPIC, DLX_QUEUES_WORKER);
    for (int64_t i = 0; i < 5; i++) {
        dlx_test_stream_publish_all(p, 100, 4 * i + 1, 4 * i + 2);
        dlx_queues_do(s, (uint64_t)(4 * i + 1), 1);
        dlx_test_upgrade();
        dlx_restart_announce(p); /* it makes no call while the worker waits */
        dlx_test_stream_publish_all(p, 100, 4 * i + 3, 4 * i + 4);
        for (int64_t n = 2; n <= 4; n++)
            dlx_queues_do(s, (uint64_t)(4 * i + n), 1);
    }
    dlx_publisher_unref(p);
    p = NULL;
    dlx_subscription_unref(s);
    s = NULL;
    dlx_queues_await_end();
}

int main(void)
{
    return dlx_test_run_case(dlx_test_upgrade_case("queues_upgrade"));
}
