/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_METRICS_H
#define CLI_METRICS_H

/** The figures of a board and of the daemon as text for Prometheus (exposition format 0.0.4). Pure:
 *  no clock, no daemon. */

#include "cli/board.h"

struct metrics_quota {
    struct dlx_quota_info *items;
    size_t n;
};

struct metrics {
    struct board *board;
    const struct dlx_daemon_info *daemon; /**< of the last look */
    struct metrics_quota quotas;
    bool up;        /**< the last look succeeded */
    int64_t now_ns; /**< CLOCK_MONOTONIC */

    /** Topics that have series of their own: those that the board keeps. A topic that has some
     *  keeps them, so that no counter falls: the others share one series. */
    size_t n_topics_max;
    size_t n_named;
};

/** The name of the series of all other topics, which no topic has. */
#define METRICS_OTHER "(other)"

/** Gives series to topics of the board that have none, as long as there are fewer than
 *  n_topics_max. */
void metrics_name_topics(struct metrics *m);

/** The text, which the caller frees. Without `all` it names only topics that every user may
 *  observe, and no user. NULL: out of memory. */
char *metrics_text(const struct metrics *m, bool all, size_t *ret_size);

void metrics_deinit(struct metrics *m);

#endif
