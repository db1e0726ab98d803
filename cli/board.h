/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_BOARD_H
#define CLI_BOARD_H

/**
 * What flows through a daemon: the publishers and links of all topics, with sums and rates of each
 * topic. Pure: no clock, no daemon. Looks feed it:
 *
 *     board_begin(); board_add() for each publisher in the order of the daemon's list; board_end();
 *     board_set_links() for any of the publishers; board_sum()
 *
 * A look may leave out links, and all topics that are not watched: their figures stay as they were.
 *
 * Counters of a topic never fall: what publishers and links have counted stays in when they end,
 * and is not counted again when they reconnect to a restarted daemon.
 */

#include <dlx/dlx.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** What is counted of a topic since its publishers and links began. */
enum board_counter {
    BOARD_MESSAGES,
    BOARD_BYTES,
    BOARD_REFUSED, /**< messages that publishers could not publish */
    BOARD_LOST,    /**< messages that subscribers lost, each for itself */
    BOARD_SKIPPED, /**< likewise: that they skipped, in mode latest */
    BOARD_COPIED,  /**< messages that were copied into shared memory */
    BOARD_COPIED_BYTES,
    BOARD_BLOCKED_NS, /**< how long publishes waited for room */
    BOARD_N_COUNTERS,
};

/** With more topics than this, those without a publisher are forgotten, and their counters, but for
 *  topics that are kept. */
#define BOARD_TOPICS_MAX 65536U

/** A rate that is not known: there was one look, or the daemon was another one at the last look. */
#define BOARD_UNKNOWN (-1.0)

struct board_link {
    struct dlx_link_info info;
    double taken_per_s;
};

struct board_publisher {
    struct dlx_publisher_info info;
    int64_t look_ns; /**< when it was listed last */
    struct board_link *links;
    size_t n_links;
    int64_t links_ns; /**< when the links were looked at; 0: never */
    double messages_per_s, bytes_per_s;
    double dropped_per_s; /**< messages that its subscribers lost or skipped */
};

struct board_topic {
    char name[DLX_TOPIC_MAX + 1];
    bool kept;        /**< set by the caller: never forgotten */
    bool watched;     /**< set by the caller: every look looks at it and at its links */
    int64_t shown_ns; /**< set by the caller: when it was shown last */
    size_t first;     /**< of board->publishers */
    size_t n_listed;
    uint64_t counters[BOARD_N_COUNTERS];
    double messages_per_s, bytes_per_s, dropped_per_s;

    /* Sums of what is there now. */
    uint64_t n_publishers;  /**< without those of which the daemon retains messages */
    uint64_t n_retained;    /**< those */
    uint64_t n_subscribers; /**< of the publisher that has most: a subscription links to each */
    uint64_t behind;        /**< of the slowest subscriber */
    uint64_t n_held;
    uint64_t held_bytes;  /**< about: board_held_bytes() */
    uint64_t held_age_ns; /**< of the oldest message that is held; 0: none, or not known */
    uint64_t next_age_ns; /**< of the oldest message that a subscriber is to take next; likewise */
    uint64_t dropped;     /**< lost or skipped: the sum of these counters */
    uint64_t memory_bytes;
    uint64_t n_full, n_joining; /**< subscribers */
    bool blocked;               /**< a publisher waits for a subscriber */
    bool for_everybody;         /**< every user may observe it; false: it has no publisher */
};

struct board {
    struct board_publisher *publishers; /**< by topic, then id */
    size_t n_publishers;
    struct board_topic *topics; /**< by name; also topics whose publishers have ended */
    size_t n_topics;
    uint64_t forgotten[BOARD_N_COUNTERS]; /**< the counters of forgotten topics */
    int64_t look_ns;                      /**< the last look at all topics; 0: none */
    uint64_t n_unserved; /**< set by the caller: subscriptions that no publisher serves */
    uint64_t n_hidden;   /**< likewise: publishers that the daemon's rules hide */

    /* While a look runs, what it has added. */
    struct board_publisher *next;
    size_t n_next, n_allocated;
    int64_t next_ns;
    bool is_partial;  /**< the look is at watched topics alone */
    bool same_daemon; /**< as the last look */
    /* Publishers of the daemon before the last restart that have not come back. */
    struct board_publisher *former;
    size_t n_former;
};

/** Begin with an empty board: struct board b = {0}. */
void board_deinit(struct board *b);

/** A look begins. `same_daemon` is false if the daemon is not the one of the last look: publishers
 *  and links have other ids then. */
void board_begin(struct board *b, int64_t now_ns, bool same_daemon);

/** A look at watched topics alone begins, at the same daemon. */
void board_begin_partial(struct board *b, int64_t now_ns);

/** Returns 0 or DLX_E_NO_MEMORY. */
int board_add(struct board *b, const struct dlx_publisher_info *info);

/** All publishers were added. Returns 0, or DLX_E_NO_MEMORY, and the board is as it was. */
int board_end(struct board *b);

/** The look has failed, and the board is as it was. */
void board_abandon(struct board *b);

/** The links of publishers[i]. Returns 0 or DLX_E_NO_MEMORY. */
int board_set_links(struct board *b, size_t i, const struct dlx_link_info *links, size_t n,
                    int64_t now_ns);

/** Sums up topics, after links have changed. */
void board_sum(struct board *b);

/** About how many bytes of payload the link holds: its messages, each as large as the publisher's
 *  messages are on average. Messages that the ring has passed have left their sizes nowhere that an
 *  observer can read; a subscriber that wrote them down would pay for that in each take. */
uint64_t board_held_bytes(const struct board_publisher *p, const struct dlx_link_info *link);

/** The topic with this name; NULL: there is none. */
struct board_topic *board_find(const struct board *b, const char *name);

#endif
