/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_BOARD_VIEW_H
#define CLI_BOARD_VIEW_H

/** The topics of a board as rows: columns, order, filter. Pure. */

#include "cli/board.h"
#include "cli/output.h"

/** What the figure of a column is, by which it is shown. */
enum board_kind {
    BOARD_NAME,      /**< char[]: text */
    BOARD_NUMBER,    /**< uint64_t */
    BOARD_SIZE,      /**< uint64_t: bytes */
    BOARD_TIME,      /**< uint64_t: nanoseconds */
    BOARD_AGE,       /**< likewise; 0: there is none */
    BOARD_RATE,      /**< double: a second, or BOARD_UNKNOWN */
    BOARD_SIZE_RATE, /**< double: bytes a second, or BOARD_UNKNOWN */
    BOARD_NOTE,      /**< words about the state of the topic */
};

/** A figure of a topic. A new figure is one line of the table. */
struct board_column {
    struct table_column table; /**< title and what goes first where there is no room */
    const char *key;           /**< in JSON; NULL: of several members */
    enum board_kind kind;
    size_t offset;  /**< in struct board_topic */
    unsigned width; /**< on a screen that is updated; 0: what is left */
    const char *help;
};

extern const struct board_column board_columns[];
extern const size_t board_n_columns;

/** The column whose title this is, in letters of any case; NULL: none. */
const struct board_column *board_column_find(const char *title);

/** The figure in words. Returns `text`. */
#define BOARD_TEXT_SIZE (DLX_TOPIC_MAX + 1)
const char *board_text(const struct board_column *column, const struct board_topic *topic,
                       char text[BOARD_TEXT_SIZE]);

/** All figures, under the keys of their columns. NULL: out of memory. */
json_t *board_json(const struct board_topic *topic);

/** "12.3/s", "1.50 MiB/s"; "-" of a rate that is not known. Each returns `text`. */
const char *board_rate_text(double rate, char text[HUMAN_SIZE + 2]);
const char *board_size_rate_text(double rate, char text[HUMAN_SIZE + 2]);

struct board_view {
    const struct board_column *sort; /**< names in their order, figures from the largest */
    bool reverse;
    const char *filter; /**< a pattern; or any part of a topic; "": all */

    const struct board_topic **rows; /**< valid until the next look */
    size_t n_rows, n_allocated;
    size_t n_topics; /**< with those that the filter leaves out */
};

/** Chooses the rows: topics that have publishers, or retained messages. Returns 0 or
 *  DLX_E_NO_MEMORY. */
int board_view_update(struct board_view *v, const struct board *b);
void board_view_deinit(struct board_view *v);

/** Does the topic match? In a filter with a '*' it stands for any characters of its segment, a last
 *  segment '**' for one or more segments; any other filter is a part of the topic. */
bool board_matches(const char *filter, const char *topic);

#endif
