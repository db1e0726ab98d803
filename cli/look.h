/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_LOOK_H
#define CLI_LOOK_H

/**
 * What the daemon knows about publishers and their subscribers, for the commands that look.
 *
 * Asking subscribes to nothing, so no publisher takes this program for a subscriber. Only the
 * newest messages need that: then this program is a subscriber for a moment.
 */

#include "cli/cli.h"

/** One publisher and all that is known about it. */
struct look_entry {
    struct dlx_publisher_info info;
    bool gone; /**< the publisher is gone; its memory stays until its links end */
    struct dlx_link_info *links;
    size_t n_links;
    struct dlx_message *newest; /**< NULL: none to be had */
};

struct look {
    struct cli *cli;
    const char *topic;   /**< or pattern; NULL: all topics */
    bool newest;         /**< ask for the newest messages, too */
    bool include_gone;   /**< list publishers that are gone, too, if the daemon can: 2.7 */
    bool include_former; /**< of these, only what programs keep of earlier daemons: 2.8 */

    struct look_entry *entries; /**< by topic, then id */
    size_t n_entries;
    bool is_gone;      /**< those that are being listed have gone */
    char why_not[512]; /**< the newest messages could not be looked at; else "" */
};

/** Ask anew. Returns 0 or a negative code of libdlx. */
int look_ask(struct look *look);

/** Forget what was asked, and release it. */
void look_clear(struct look *look);

/** It holds as many messages as it may: it can take no more until it releases one. */
bool look_is_full(const struct dlx_link_info *link);

/** It has lost messages: it was further behind than the publisher's depth. */
bool look_has_lost(const struct dlx_link_info *link);

/** The publisher waits for room: this reliable subscriber is as far behind as the depth allows. */
bool look_blocks(const struct dlx_link_info *link);

/** It has yet to be told of the link, or to prepare memory for it. */
bool look_is_joining(const struct dlx_link_info *link);

/** How many subscribers are, or do, that. */
size_t look_count(const struct look_entry *entry, bool (*is)(const struct dlx_link_info *link));

/** How far the slowest subscriber is behind, in messages; DLX_BEHIND_UNKNOWN. */
uint64_t look_behind(const struct look_entry *entry);

/** Messages that the publisher could not publish; 0 if the daemon does not report them. */
uint64_t look_refused(const struct dlx_publisher_info *info);

/** "BLOCKED, 7 REFUSED, 1 is FULL, 2 have LOST, 1 is JOINING"; "" when there is nothing to
 *  note. Returns `text`. */
#define LOOK_NOTE_SIZE 80
const char *look_note(const struct look_entry *entry, char text[LOOK_NOTE_SIZE]);

/** Of one subscriber: "BLOCKS, FULL, LOST, JOINING", or less. Likewise. */
const char *look_link_note(const struct dlx_link_info *link, char text[LOOK_NOTE_SIZE]);

/** "12", or "?" if the daemon does not tell. Returns `text`. */
#define LOOK_BEHIND_SIZE 24
const char *look_behind_text(uint64_t behind, char text[LOOK_BEHIND_SIZE]);

/** The publisher as JSON, with the note as numbers. NULL: out of memory. */
json_t *look_json(const struct look *look, const struct look_entry *entry);

#endif
