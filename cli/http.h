/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_HTTP_H
#define CLI_HTTP_H

/** An HTTP server of libmicrohttpd without a thread of its own. A build without that library
 *  (DLX_NO_MICROHTTPD) has none, and says so. */

#include "cli/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct http;

/** GET or HEAD of a path. */
struct http_request {
    const char *path;
    const char *authorization; /**< that header; NULL: there is none */
    void *connection;          /**< of the library */
};

struct http_answer {
    unsigned status; /**< 200; 401, 404 and others with a text for people */
    const char *type;
    char *text; /**< from malloc() */
    size_t size;
    const char *caption; /**< of a picture: the header X-Caption; NULL: there is none */
};
typedef struct http_answer (*http_answer_fn)(const struct http_request *request, void *userdata);

/** The value of `name` in what follows '?', with %XX decoded; "": there is none. */
const char *http_query(const struct http_request *request, const char *name);

/** Serves on a listening socket, which stays the caller's. Requests whose header Host does not name
 *  this machine's loopback are refused: a page of another site would send them (DNS rebinding).
 *  Returns 0, or DLX_E_KERNEL (built without the library), DLX_E_SYSTEM. */
int http_new(struct http **ret, int borrow_fd, http_answer_fn answer, void *userdata,
             struct cli_error *e);
struct http *http_free(struct http *h);

/** Answers requests until then, or until a signal. */
void http_run(struct http *h, int64_t deadline_ns);

/** Is this value of the header Host an address of loopback? */
bool http_is_loopback(const char *host);

#endif
