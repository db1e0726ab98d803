/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_SERVE_PICTURE_H
#define CLI_SERVE_PICTURE_H

/**
 * The newest image of a topic as PNG, for the page of `dlxctl serve`.
 *
 * The server subscribes to no topic between two pictures. It makes a picture by a dlx_get(), when a
 * page asks for one and the last one of the topic is old enough. So it holds the message only while
 * it draws, no publisher waits for it, and no count of skipped messages rises.
 */

#include "cli/cli.h"

/** Pictures of so many topics are kept. */
#define SERVE_PICTURES 8

struct serve_picture {
    char topic[DLX_TOPIC_MAX + 1]; /**< "": this place is free */
    unsigned status;               /**< of HTTP: 200 or a failure, whose words are in `caption` */
    int64_t made_ns, asked_ns;
    uint8_t *png;
    size_t png_size;
    char caption[512]; /**< of the tensor: type, shape, size; printable ASCII */
};

struct serve_pictures {
    struct cli_texts patterns; /**< of topics that may be shown; none: no picture is */
    int64_t interval_ns;       /**< a topic gets a picture no more often */
    struct serve_picture items[SERVE_PICTURES];
};

/** May the topic be shown? A pattern without '*' is a topic. No pattern may be shown itself: one
 *  that looks like another one may match more. */
bool serve_picture_allowed(const struct serve_pictures *p, const char *topic);

/** The picture of a topic that may be shown; it is the last one if that is new enough. Valid until
 *  the next call. */
const struct serve_picture *serve_picture_get(struct serve_pictures *p, struct dlx_client *client,
                                              const char *topic, int64_t now_ns);

void serve_picture_deinit(struct serve_pictures *p);

#endif
