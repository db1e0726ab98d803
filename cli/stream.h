/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_STREAM_H
#define CLI_STREAM_H

/** The messages of a topic, for the commands that receive: one subscription and when it ends. */

#include "cli/cli.h"

struct stream_args {
    struct cli *cli; /**< set before parsing */
    struct dlx_subscribe_args subscribe;
    int64_t timeout_ns;  /**< fail after so long without a message; 0: never */
    int64_t duration_ns; /**< end after so long; 0: never */
    bool latest;         /**< take only the newest message */
    const char *group;   /**< be a worker of this group; NULL: none */
    bool until_gone;     /**< end when the last publisher has left */
};

/** --history, --latest, --reliable, --group, --timeout, --until-gone, for a struct that begins with
 *  a struct stream_args; and its check, as in struct cli_line. */
extern const struct cli_option stream_options[];
void stream_check(void *args, struct argp_state *state);

struct stream {
    struct stream_args args;
    const char *topic;
    struct dlx_subscription *subscription;
    int64_t start;          /**< before it subscribed */
    int64_t end;            /**< when duration_ns is over */
    int64_t last;           /**< when the last message came, or the stream was opened */
    int64_t wake;           /**< when stream_next() returns STREAM_WAKE; WAIT_FOREVER: never */
    bool is_silent;         /**< stream_next() puts into `words` what it would report */
    struct cli_error words; /**< "": nothing since the last message */
};

/** Connect and subscribe; failures are reported. Returns 0 or a negative code. */
int stream_open(struct stream *s, const struct stream_args *args, const char *topic);

void stream_close(struct stream *s);

/** Report that the topic has retained messages and no publisher that could add to them; not with
 *  --until-gone, which waits for no publisher. */
void stream_report_retained(const struct stream *s);

#define STREAM_WAKE 2

/**
 * Wait for the next message, to be unreffed by the caller. Returns 1; STREAM_WAKE; 0 when the
 * stream ends: a signal (wait_signal()), the duration is over, the publisher is gone; or a negative
 * code, reported.
 */
int stream_next(struct stream *s, struct dlx_message **ret_message);

/** Say that the message is done, which only a worker of a group must, and unref it. A message that
 *  is not done is just unreffed, and given back so. */
void stream_finish(const struct stream *s, struct dlx_message *m);

/** "3 publishers attached", with ", BLOCKED by infer (pid 812)" if a subscriber keeps one of them
 *  from publishing: for reports that nothing came. Returns `text`. */
#define STREAM_PUBLISHERS_SIZE 160
const char *stream_publishers(const struct stream *s, char text[STREAM_PUBLISHERS_SIZE]);

/** The counters of the subscription; all 0 if there is none. */
struct dlx_subscription_stats stream_stats(const struct stream *s);

#endif
