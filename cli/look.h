/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_LOOK_H
#define CLI_LOOK_H

/**
 * What the daemon knows about publishers and their subscribers, for the commands that look.
 *
 * Asking subscribes to nothing, so no publisher takes this program for a subscriber. Only the newest
 * messages need that: then this program is a subscriber for a moment.
 */

#include "cli/cli.h"

/** One publisher and all that is known about it. */
struct look_entry {
    struct dlx_publisher_info info;
    struct dlx_link_info *links;
    size_t n_links;
    struct dlx_message *newest; /**< NULL: none to be had */
};

struct look {
    struct cli *cli;
    const char *topic; /**< or pattern; NULL: all topics */
    bool newest;       /**< ask for the newest messages, too */

    struct look_entry *entries; /**< by topic, then id */
    size_t n_entries;
    char why_not[512]; /**< the newest messages could not be looked at; else "" */
};

/** Ask anew. Returns 0 or a negative code of libdlx. */
int look_ask(struct look *look);

/** Forget what was asked, and release it. */
void look_clear(struct look *look);

/** It holds as many messages as it may: it can take no more until it releases one. */
bool look_is_full(const struct dlx_link_info *link);

/** It has lost messages: it was further behind than the publisher's depth. */
bool look_is_behind(const struct dlx_link_info *link);

/** The publisher waits for reliable subscribers, and one of them is full: it cannot publish more than
 *  its depth before that one releases a message. */
bool look_is_blocked(const struct look_entry *entry);

/** How many subscribers are full, and behind. */
size_t look_count(const struct look_entry *entry, bool (*is)(const struct dlx_link_info *link));

/** "BLOCKED, 1 FULL, 2 BEHIND"; "" when there is nothing to note. Returns `text`. */
#define LOOK_NOTE_SIZE 64
const char *look_note(const struct look_entry *entry, char text[LOOK_NOTE_SIZE]);

/** Of one subscriber: "FULL, blocks the publisher, BEHIND", or less. Likewise. */
const char *look_link_note(const struct dlx_link_info *link, char text[LOOK_NOTE_SIZE]);

/** The publisher as JSON, with the note as numbers. NULL: out of memory. */
json_t *look_json(const struct look *look, const struct look_entry *entry);

#endif
