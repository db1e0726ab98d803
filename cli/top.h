/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_TOP_H
#define CLI_TOP_H

/** The state of the screen of dlxctl top, and what keys do to it. */

#include "cli/board_view.h"

enum top_mode {
    TOP_LIST,   /**< the topics */
    TOP_FILTER, /**< likewise, while a filter is typed */
    TOP_TOPIC,  /**< the publishers and links of one topic */
    TOP_HELP,
};

#define TOP_FILTER_SIZE 128

struct top {
    const struct board *board;
    const struct dlx_daemon_info *daemon;
    struct board_view view;
    char filter[TOP_FILTER_SIZE], filter_before[TOP_FILTER_SIZE];

    enum top_mode mode, mode_before; /**< before the help */
    size_t selected;                 /**< of the rows */
    size_t first, n_shown;           /**< the rows on the screen, once it was drawn */
    size_t scrolled;                 /**< lines of TOP_TOPIC and TOP_HELP */
    char topic[DLX_TOPIC_MAX + 1];   /**< that is open */
    bool paused, quits;
    const char *trouble; /**< why the figures are old; "": they are not */
};

/** A key was pressed. */
void top_press(struct top *t, int key);

#endif
