/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_BOARD_ASK_H
#define CLI_BOARD_ASK_H

/** Asks the daemon for the figures of a board. */

#include "cli/board.h"

/** Publishers may come between two questions of a look, but hardly of so many in a row. */
#define BOARD_ASK_LOOKS 3

/** The list of 5,000 publishers costs an observer 10 ms and the daemon 20 ms of CPU time: so it is
 *  0.2 % of the daemon's. */
enum { BOARD_ASK_SHARE = 1000 };

struct board_ask {
    struct dlx_client *client;
    const char *topic; /**< or pattern; NULL: all topics */
    /** A look at all topics waits for so many times the CPU time that the former one took. Looks in
     *  between are at watched topics alone. 0: each look is at all topics, and all their links. */
    unsigned share;

    struct board board;
    struct dlx_daemon_info daemon; /**< of the last look */

    bool was_of_all; /**< the last look was at all topics */

    int64_t daemon_start_ns;
    int64_t next_all_ns;
    bool has_links; /* of all publishers, once */
    size_t turn;    /* the publisher whose links are asked for next */
    /* How many publishers were missing in the last looks at all topics, the newest first. */
    uint64_t missing[BOARD_ASK_LOOKS];
};

/** One look. Returns 0, or a negative code of libdlx: the board has what was looked at before. */
int board_ask(struct board_ask *a);

void board_ask_deinit(struct board_ask *a);

#endif
