/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_SERVE_PAGE_H
#define CLI_SERVE_PAGE_H

/**
 * The status page of `dlxctl serve`: its files, and the figures that it asks for again and again.
 *
 * The browser names the topics that it shows: a filter, an order, a number. So a page costs as much
 * with thousands of topics as with some, and pages do not disturb each other.
 */

#include "cli/board_view.h"
#include "cli/metrics.h"
#include "cli/serve_picture.h"

struct serve_page {
    const struct metrics *metrics; /**< the board, the daemon, the quotas */
    struct serve_pictures *pictures;
    const char *trouble; /**< why there are no new figures; "": there are */
    int64_t interval_ns;

    struct board_view view;
    json_t *unserved; /**< subscriptions that no publisher serves, some of them */
    bool has_unserved;
    json_t *refusals; /**< the latest ones, the newest last */
    int64_t asked_ns; /**< when a page asked for figures last; 0: none has */
};

/** What a page asks for. */
struct serve_page_query {
    const char *filter; /**< as of struct board_view */
    const char *sort;   /**< title of a column; an unknown one: RATE */
    bool reverse;
    uint32_t n_topics; /**< topics that it shows at most */
    const char *topic; /**< of which publishers and links are shown; "": of none */
};

/** A file of the page: "/", "/page.css", "/page.js". NULL: there is none with this name. */
const char *serve_page_file(const char *path, const char **ret_type);

/** Before a look: topics that pages show are watched, as many as the daemon is asked for without
 *  much cost. */
void serve_page_watch(struct serve_page *p, int64_t now_ns);

/** After a look, while there are pages: asks for what only they show. What takes as long as a list
 *  of all topics is asked for if the look was at `all` of them. Returns 0 or a negative code of
 *  libdlx. */
int serve_page_ask(struct serve_page *p, struct dlx_client *client, int64_t now_ns, bool all);

/** The figures, as JSON that the caller frees. NULL: out of memory. */
char *serve_page_state(struct serve_page *p, const struct serve_page_query *query, int64_t now_ns,
                       size_t *ret_size);

void serve_page_deinit(struct serve_page *p);

#endif
