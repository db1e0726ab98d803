/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_WHY_H
#define CLI_WHY_H

/** What `dlxctl why` has seen of a topic, and what it finds. */

#include "cli/look.h"

/** What the daemon says of the topic at one time. */
struct why_view {
    struct look look; /**< publishers with links, and subscriptions that none serves */
    int64_t at_ns;
};

struct why_refusals {
    struct dlx_refusal_info *items;
    size_t n;
};

/** Found out, with what to do. */
struct why_finding {
    const char *kind; /**< "blocked": the word in JSON */
    char text[1600];
    char remedy[600];
};

#define WHY_FINDINGS_MAX 32

struct why {
    struct cli *cli;
    const char *topic;
    int64_t for_ns; /**< time between the two looks */
    struct why_view before, now;
    struct why_refusals refusals;
    struct dlx_daemon_info daemon;
    struct why_finding *findings; /**< [WHY_FINDINGS_MAX] */
    size_t n_findings, n_left_out;
};

/** Adds a finding, and returns it; NULL if there are too many, which are counted. Text and remedy
 *  are filled by why_say() and why_advise(). */
struct why_finding *why_find(struct why *why, const char *kind);
void why_say(struct why_finding *finding, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void why_advise(struct why_finding *finding, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/** "camera (pid 12, uid 1000)". Returns `text`. */
#define WHY_PROGRAM_SIZE 160
const char *why_program(const char *name, uint32_t pid, uint32_t uid, char text[WHY_PROGRAM_SIZE]);
/** ", and its process sleeps"; "" if that cannot be seen from here. Returns `text`. */
#define WHY_STATE_SIZE 64
const char *why_state(const struct why *why, uint32_t pid, char text[WHY_STATE_SIZE]);

/** What keeps one publisher, its links and its groups. */
void why_look_at_publisher(struct why *why, const struct look_entry *entry);

#endif
