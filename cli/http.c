/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/http.h"
#include <stdlib.h>
#include <string.h>

bool http_is_loopback(const char *host)
{
    static const char *const names[] = {"localhost", "127.0.0.1", "[::1]"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const size_t n = strlen(names[i]);
        if (strncmp(host, names[i], n) != 0)
            continue;
        if (!host[n])
            return true;
        if (host[n] == ':' && host[n + 1] && !host[n + 1 + strspn(host + n + 1, "0123456789")])
            return true;
    }
    return false;
}

#ifdef DLX_NO_MICROHTTPD

int http_new(struct http **ret, int borrow_fd, http_answer_fn answer, void *userdata,
             struct cli_error *e)
{
    (void)ret;
    (void)borrow_fd;
    (void)answer;
    (void)userdata;
    return cli_fail(e, DLX_E_KERNEL,
                    "this dlxctl was built without libmicrohttpd, which serves HTTP: install its "
                    "development files, and build again");
}

struct http *http_free(struct http *h)
{
    return h;
}

const char *http_query(const struct http_request *request, const char *name)
{
    (void)request;
    (void)name;
    return "";
}

void http_run(struct http *h, int64_t deadline_ns)
{
    (void)h;
    (void)deadline_ns;
}

#else

#include "cli/wait.h"
#include <microhttpd.h>

/* What clients may take: requests are small, and a browser has two connections for a page. */
enum { CONNECTIONS = 128, IDLE_S = 10, REQUEST_BYTES = 16384, RUN_MS = 250 };

struct http {
    struct MHD_Daemon *daemon;
    http_answer_fn answer;
    void *userdata;
};

/* For all answers: a page gets scripts, styles and figures from here alone, is shown in no page of
 * another site, and what is served here is no part of one. */
static const struct {
    const char *name, *value;
} headers[] = {
    {MHD_HTTP_HEADER_CACHE_CONTROL, "no-store"},
    {"X-Content-Type-Options", "nosniff"},
    {"Referrer-Policy", "no-referrer"},
    {"Cross-Origin-Resource-Policy", "same-origin"},
    {"Content-Security-Policy",
     "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
     "img-src blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
};

static enum MHD_Result send_answer(struct MHD_Connection *connection, struct http_answer answer)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer(answer.size, answer.text, MHD_RESPMEM_MUST_FREE);
    if (!response) {
        free(answer.text);
        return MHD_NO;
    }
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, answer.type);
    for (size_t i = 0; i < sizeof headers / sizeof headers[0]; i++)
        (void)MHD_add_response_header(response, headers[i].name, headers[i].value);
    if (answer.caption)
        (void)MHD_add_response_header(response, "X-Caption", answer.caption);
    if (answer.status == MHD_HTTP_UNAUTHORIZED)
        (void)MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    if (answer.status == MHD_HTTP_METHOD_NOT_ALLOWED)
        (void)MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    enum MHD_Result result = MHD_queue_response(connection, answer.status, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result refuse(struct MHD_Connection *connection, unsigned status, const char *why)
{
    char *text = strdup(why);
    if (!text)
        return MHD_NO;
    return send_answer(connection, (struct http_answer){.status = status,
                                                        .type = "text/plain; charset=utf-8",
                                                        .text = text,
                                                        .size = strlen(text)});
}

static enum MHD_Result on_request(void *userdata, struct MHD_Connection *connection,
                                  const char *url, const char *method, const char *version,
                                  const char *body, size_t *body_size, void **state)
{
    static char seen;
    const struct http *h = userdata;
    const char *host =
        MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST);
    (void)version;
    (void)body;
    if (!*state) { /* the headers are here; the answer is due at the end */
        *state = &seen;
        return MHD_YES;
    }
    if (*body_size > 0) {
        *body_size = 0;
        return MHD_YES;
    }
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        return refuse(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "Nothing is changed here: GET.\n");
    if (!host || !http_is_loopback(host))
        return refuse(connection, MHD_HTTP_FORBIDDEN,
                      "The header Host must be localhost, 127.0.0.1 or [::1].\n");
    const struct http_request request = {
        .path = url,
        .authorization =
            MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION),
        .connection = connection};
    struct http_answer answer = h->answer(&request, h->userdata);
    return answer.text ? send_answer(connection, answer)
                       : refuse(connection, MHD_HTTP_INTERNAL_SERVER_ERROR, "Out of memory.\n");
}

const char *http_query(const struct http_request *request, const char *name)
{
    const char *value =
        MHD_lookup_connection_value(request->connection, MHD_GET_ARGUMENT_KIND, name);
    return value ? value : "";
}

int http_new(struct http **ret, int borrow_fd, http_answer_fn answer, void *userdata,
             struct cli_error *e)
{
    struct http *h = malloc(sizeof *h);
    if (!h)
        return cli_fail(e, DLX_E_NO_MEMORY, "out of memory");
    *h = (struct http){.answer = answer, .userdata = userdata};
    h->daemon =
        MHD_start_daemon(MHD_USE_EPOLL, 0, NULL, NULL, on_request, h, MHD_OPTION_LISTEN_SOCKET,
                         borrow_fd, MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS,
                         MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_S,
                         MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)REQUEST_BYTES, MHD_OPTION_END);
    if (!h->daemon) {
        free(h);
        return cli_fail(e, DLX_E_SYSTEM, "libmicrohttpd does not start");
    }
    *ret = h;
    return 0;
}

struct http *http_free(struct http *h)
{
    if (!h)
        return NULL;
    (void)MHD_quiesce_daemon(h->daemon); /* the socket is the caller's */
    MHD_stop_daemon(h->daemon);
    free(h);
    return NULL;
}

/* A signal that comes just before the library sleeps is noticed after RUN_MS. */
void http_run(struct http *h, int64_t deadline_ns)
{
    for (;;) {
        int64_t left_ms = (deadline_ns - wait_now() + 999999) / 1000000;
        if (left_ms <= 0 || wait_signal())
            return;
        (void)MHD_run_wait(h->daemon, (int32_t)(left_ms < RUN_MS ? left_ms : RUN_MS));
    }
}

#endif
