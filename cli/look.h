/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_LOOK_H
#define CLI_LOOK_H

/**
 * The daemon's list of publishers and their subscribers, for ls, info and holds.
 *
 * Asking subscribes to nothing, so no publisher sees a subscriber. Only for the newest messages
 * does this program subscribe for a moment.
 */

#include "cli/cli.h"
#include <stdio.h>

/** One publisher with its links. */
struct look_entry {
    struct dlx_publisher_info info;
    bool gone; /**< the publisher is gone; its memory stays until its links end */
    struct dlx_link_info *links;
    size_t n_links;
    struct dlx_group_info *groups; /**< of workers */
    size_t n_groups;
    struct dlx_message *newest; /**< NULL: none */
};

struct look {
    struct cli *cli;
    const char *topic;   /**< or pattern; NULL: all topics */
    bool newest;         /**< ask for the newest messages, too */
    bool include_gone;   /**< list publishers that are gone, too, if the daemon can: 2.7 */
    bool include_alone;  /**< list subscriptions that no publisher serves, too: 2.10 */
    bool include_former; /**< list only memory that programs keep of earlier daemons: 2.8 */

    struct look_entry *entries; /**< by topic, then id */
    size_t n_entries;
    struct dlx_subscription_info *alone; /**< subscriptions that no publisher serves */
    size_t n_alone;
    bool is_gone;      /**< while publishers that are gone are being listed */
    char why_not[512]; /**< why the newest messages could not be taken; else "" */
};

/** Ask again. Returns 0 or a negative code of libdlx. */
int look_ask(struct look *look);

/** Release the entries. */
void look_clear(struct look *look);

/** Does the subscriber hold as many messages as it may? Such a subscriber takes no more until it
 *  releases one. */
bool look_is_full(const struct dlx_link_info *link);

/** Has the subscriber lost messages, since it was further behind than the publisher's depth? */
bool look_has_lost(const struct dlx_link_info *link);

/** Does the publisher wait for this reliable subscriber, which is as far behind as it may be? */
bool look_blocks(const struct dlx_link_info *link);

/** Has the subscriber yet to learn of the link, or to prepare memory for it? */
bool look_is_joining(const struct dlx_link_info *link);

/** How many subscribers of the publisher are in that state. */
size_t look_count(const struct look_entry *entry, bool (*is)(const struct dlx_link_info *link));

/** How far the slowest subscriber is behind, in messages; DLX_BEHIND_UNKNOWN. */
uint64_t look_behind(const struct look_entry *entry);

/** Messages that the publisher could not publish; 0 if the daemon does not report them. */
uint64_t look_refused(const struct dlx_publisher_info *info);

/** "BLOCKED, 7 REFUSED, 1 is FULL, 2 have LOST, 1 is JOINING"; "" when there is nothing to
 *  note. Returns `text`. */
#define LOOK_NOTE_SIZE 80
const char *look_note(const struct look_entry *entry, char text[LOOK_NOTE_SIZE]);

/** As look_note(), of one subscriber: "BLOCKS, FULL, LOST, JOINING", or less. */
const char *look_link_note(const struct dlx_link_info *link, char text[LOOK_NOTE_SIZE]);

/** "12", or "?" if the daemon does not tell. Returns `text`. */
#define LOOK_BEHIND_SIZE 24
const char *look_behind_text(uint64_t behind, char text[LOOK_BEHIND_SIZE]);

/** "16 gpu, 0 cpu": how many messages each group of the publisher has not done. Returns `text`. */
#define LOOK_QUEUES_SIZE 512
const char *look_queues(const struct look_entry *entry, char text[LOOK_QUEUES_SIZE]);

/** Print the subscriptions that no publisher serves, if there are any. Returns 0 or
 *  DLX_E_NO_MEMORY. */
int look_print_alone(const struct look *look, FILE *file);

/** Such a subscription as JSON. NULL: out of memory. */
json_t *look_alone_json(const struct dlx_subscription_info *info);

/** The publisher as JSON, with the note as numbers. NULL: out of memory. */
json_t *look_json(const struct look *look, const struct look_entry *entry);

#endif
