/* SPDX-License-Identifier: Apache-2.0 */
/* Undone messages of declared groups, and their workers, when a daemon is killed and the service
 * manager has stored what is needed. */

#include "tests/restart/harness_queues.h"

TEST(undone_messages_are_stored)
{
    dlx_queues_tell_left(dlx_test_store_restart);
}

TEST(messages_that_no_worker_has_seen_are_stored)
{
    dlx_queues_tell_unseen(dlx_test_store_restart);
}

TEST(undone_messages_of_a_publisher_that_is_killed_after_a_crash_are_there)
{
    dlx_queues_tell_killed(dlx_test_store_restart);
}

TEST(a_worker_of_the_daemon_before_a_crash_keeps_what_it_has)
{
    dlx_queues_tell_held(dlx_test_store_restart);
}

TEST(undone_messages_whose_time_is_over_are_not_stored_any_more)
{
    dlx_test_store_leave_messages(DLX_QUEUES_TOPIC,
                                  PUBLISHER(DLX_QUEUES_GROUPS, .retain_for_ns = SECOND / 10), 3);
    dlx_queues_await_end();
}

TEST(a_publisher_that_cannot_tell_its_end_after_a_crash_leaves_what_is_undone)
{
    dlx_queues_tell_silent(dlx_test_store_restart);
}

TEST(a_queue_whose_last_message_a_former_worker_finishes_after_a_crash_ends)
{
    dlx_queues_tell_finished(dlx_test_store_restart);
}

int main(void)
{
    return dlx_test_run_case(dlx_test_store_case("queues_stored"));
}
