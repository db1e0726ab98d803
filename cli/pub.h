/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_PUB_H
#define CLI_PUB_H

/** The work of `dlxctl pub`, once its command line is understood. */

#include "cli/cli.h"
#include "cli/progress.h"
#include "cli/source.h"

struct pub {
    /* what was asked for */
    struct cli *cli;
    const char *topic;
    struct source *source;
    double rate;      /**< messages a second, 0: as fast as can be */
    uint64_t n_loops; /**< 0: for ever */
    uint32_t history; /**< 0: the default */
    bool block;
    struct cli_texts groups; /**< for whose workers messages are kept */
    bool drain;              /**< stay until they have done all */
    uint32_t retain;         /**< messages that stay afterwards, 0: none */
    int64_t retain_for_ns;   /**< as of struct dlx_publisher_args */
    struct dlx_bytes meta;   /**< of each message, instead of what a file says; data NULL: none */
    uint32_t n_wait;         /**< subscribers to wait for */
    int64_t timeout_ns;      /**< on waits for subscribers, 0: none */
    int64_t linger_ns;
    bool hold;

    /* where it stands */
    struct dlx_publisher *publisher;
    struct progress progress;
    int64_t start_ns;
    int64_t next_ns; /**< when the next message is due */
    int64_t end_ns;  /**< when the last one was published */
    bool told_waiting;
    bool was_heard; /**< a subscriber was attached when a message was published */
};

/** Returns the exit status. */
int pub_run(struct pub *p);

#endif
