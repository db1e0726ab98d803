/* SPDX-License-Identifier: Apache-2.0 */

/* dlxctl serve: metrics for Prometheus, and a page for people. It looks at the daemon once an
 * interval, and answers each request from the last look, so that requests cost the daemon nothing.
 */

#include "cli/args.h"
#include "cli/board_ask.h"
#include "cli/cli.h"
#include "cli/http.h"
#include "cli/metrics.h"
#include "cli/output.h"
#include "cli/serve_listen.h"
#include "cli/serve_page.h"
#include "cli/serve_token.h"
#include "cli/wait.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_LISTEN "127.0.0.1:9464"
/* A daemon that hangs delays scrapes by so long. */
#define ANSWER_NS INT64_C(1000000000)
/* Requests are answered for at least so long between two looks, however long these take. */
#define ANSWERS_NS         INT64_C(100000000)
#define DEFAULT_PICTURE_HZ 2.0

enum { DEFAULT_TOPICS = 1000, MAX_TOPICS = 100000 };
/* Topics that a page gets, if it does not say, and at most. */
enum { PAGE_TOPICS = 50, PAGE_TOPICS_MAX = 1000 };

struct serve {
    struct cli *cli;
    /* The options. */
    const char *listen;
    const char *token_file;
    uint32_t n_topics_max;
    int64_t interval_ns;
    bool has_page;
    struct serve_pictures pictures;
    double picture_hz;

    struct serve_listen socket;
    char token[SERVE_TOKEN_SIZE]; /* "": there is none */
    struct board_ask ask;
    struct metrics metrics;
    struct serve_page page;
    char trouble[512]; /* of the last look, as it was said */
    bool hides;        /* it was said that rules hide publishers */
};

static void serve_check(void *into, struct argp_state *state)
{
    struct serve *s = into;
    if (s->interval_ns == 0)
        s->interval_ns = INT64_C(1000000000);
    if (s->n_topics_max == 0)
        s->n_topics_max = DEFAULT_TOPICS;
    if (!s->listen)
        s->listen = DEFAULT_LISTEN;
    if (s->picture_hz == 0)
        s->picture_hz = DEFAULT_PICTURE_HZ;
    s->pictures.interval_ns = (int64_t)(1e9 / s->picture_hz);
    if (s->pictures.patterns.n > 0 && !s->has_page)
        argp_error(state, "--pictures is for --page");
    if (s->token_file && !*s->token_file)
        argp_error(state, "--token-file: a path is missing");
}

/* ---- looks ----------------------------------------------------------------------------------- */

static int add_quota(const struct dlx_quota_info *info, void *userdata)
{
    struct metrics_quota *q = userdata;
    struct dlx_quota_info *items = reallocarray(q->items, q->n + 1, sizeof *items);
    if (!items)
        return DLX_E_NO_MEMORY;
    q->items = items;
    items[q->n++] = *info;
    return 0;
}

/* Programs come and go, and with them users: the list is a new one each time. */
static int ask_for_quotas(struct serve *s)
{
    struct metrics_quota quotas = {0};
    int code = dlx_list_quotas(s->cli->client, add_quota, &quotas);
    if (code < 0) {
        free(quotas.items);
        return code == DLX_E_VERSION ? 0 : code;
    }
    free(s->metrics.quotas.items);
    s->metrics.quotas = quotas;
    return 0;
}

static int connect_daemon(struct serve *s)
{
    const struct dlx_connect_args args = {.size = sizeof args,
                                          .socket = s->cli->socket,
                                          .name = DLXCTL " serve",
                                          .autospawn = DLX_AUTOSPAWN_NEVER,
                                          .timeout_ns = ANSWER_NS};
    return dlx_connect(&args, &s->cli->client);
}

static int look(struct serve *s)
{
    int code = s->cli->client ? 0 : connect_daemon(s);
    if (code < 0)
        return code;
    s->ask.client = s->cli->client;
    serve_page_watch(&s->page, wait_now());
    code = board_ask(&s->ask);
    if (code == 0)
        code = ask_for_quotas(s);
    if (code == 0)
        code = serve_page_ask(&s->page, s->cli->client, wait_now(), s->ask.was_of_all);
    if (code == 0)
        metrics_name_topics(&s->metrics);
    return code;
}

/* A rule may take the right to observe away while this runs. */
static void tell_hidden(struct serve *s)
{
    const uint64_t n = s->metrics.board->n_hidden;
    if (n > 0 && !s->hides)
        (void)cli_report(s->cli, NULL,
                         "dlpackd's rules hide %" PRIu64 " publisher%s from this user: a rule with "
                         "`allow = observe` shows them (dlpackd.conf(5))",
                         n, n == 1 ? "" : "s");
    else if (n == 0 && s->hides)
        (void)cli_report(s->cli, NULL, "dlpackd's rules hide no publisher any more");
    s->hides = n > 0;
}

/* Says trouble when it begins, and when it is over. Returns DLX_E_KICKED, after which no look
 * succeeds, or 0. */
static int look_and_tell(struct serve *s)
{
    const int code = look(s);
    const char *words = code == 0 ? "" : dlx_errmsg();
    char trouble[sizeof s->trouble];
    (void)snprintf(trouble, sizeof trouble, "%.400s%s",
                   code < 0 && !(words && *words) ? dlx_strerror(code) : words,
                   code == DLX_E_ACCESS
                       ? "; this needs a rule with `allow = observe` for this user "
                         "(dlpackd.conf(5))"
                       : "");
    if (code == DLX_E_KICKED || (s->metrics.up && code < 0))
        (void)cli_report(s->cli, NULL, "%s", trouble);
    else if (!s->metrics.up && code < 0 && !*s->trouble)
        (void)cli_report(s->cli, NULL, "%s; dlx_up is 0 until it answers", trouble);
    else if (!s->metrics.up && code == 0 && *s->trouble)
        (void)cli_report(s->cli, NULL, "dlpackd answers");
    (void)snprintf(s->trouble, sizeof s->trouble, "%s", trouble);
    s->metrics.up = code == 0;
    if (code == 0)
        tell_hidden(s);
    return code == DLX_E_KICKED ? code : 0;
}

/* ---- answers --------------------------------------------------------------------------------- */

static struct http_answer answer_text(unsigned status, const char *type, const char *text)
{
    char *copy = strdup(text);
    return (struct http_answer){
        .status = status, .type = type, .text = copy, .size = copy ? strlen(copy) : 0};
}

static struct http_answer answer_words(unsigned status, const char *text)
{
    return answer_text(status, "text/plain; charset=utf-8", text);
}

/* 200: the client may see topics. 401: its token is another one. 0: it shows none. */
static unsigned judge(const struct serve *s, const struct http_request *request)
{
    if (s->socket.is_unix)
        return 200;
    if (!request->authorization || !*s->token)
        return 0;
    return serve_token_matches(s->token, request->authorization) ? 200 : 401;
}

static struct http_answer answer_metrics(struct serve *s, bool all)
{
    struct http_answer answer = {.status = 200, .type = "text/plain; version=0.0.4; charset=utf-8"};
    s->metrics.now_ns = wait_now();
    answer.text = metrics_text(&s->metrics, all, &answer.size);
    return answer;
}

static struct http_answer answer_state(struct serve *s, const struct http_request *request)
{
    struct http_answer answer = {.status = 200, .type = "application/json"};
    uint64_t n = PAGE_TOPICS;
    (void)args_parse_number(http_query(request, "n"), 1, PAGE_TOPICS_MAX, &n);
    const struct serve_page_query query = {.filter = http_query(request, "filter"),
                                           .sort = http_query(request, "sort"),
                                           .reverse = *http_query(request, "reverse") == '1',
                                           .n_topics = (uint32_t)n,
                                           .topic = http_query(request, "topic")};
    answer.text = serve_page_state(&s->page, &query, wait_now(), &answer.size);
    return answer;
}

/* Only topics that --pictures names are asked for. */
static struct http_answer answer_picture(struct serve *s, const struct http_request *request)
{
    const char *topic = http_query(request, "topic");
    if (!serve_picture_allowed(&s->pictures, topic))
        return answer_words(403, "--pictures of dlxctl serve does not name this topic.\n");
    const struct serve_picture *picture =
        serve_picture_get(&s->pictures, s->cli->client, topic, wait_now());
    if (picture->status != 200)
        return answer_words(picture->status, picture->caption);
    struct http_answer answer = {.status = 200,
                                 .type = "image/png",
                                 .text = malloc(picture->png_size),
                                 .size = picture->png_size,
                                 .caption = picture->caption};
    if (answer.text)
        memcpy(answer.text, picture->png, picture->png_size);
    return answer;
}

static struct http_answer answer_request(const struct http_request *request, void *userdata)
{
    struct serve *s = userdata;
    const unsigned verdict = judge(s, request);
    const char *type, *file = s->has_page ? serve_page_file(request->path, &type) : NULL;
    if (file) /* names no topic */
        return answer_text(200, type, file);
    bool is_state = s->has_page && strcmp(request->path, "/state") == 0;
    bool is_picture = s->has_page && strcmp(request->path, "/picture") == 0;
    if (!is_state && !is_picture && strcmp(request->path, "/metrics") != 0)
        return answer_words(404, s->has_page ? "There are / and /metrics, and nothing else.\n"
                                             : "There is /metrics, and nothing else.\n");
    if (verdict == 401)
        return answer_words(401, "The token is another one.\n");
    if ((is_state || is_picture) && verdict != 200)
        return answer_words(401, "The page needs the token: Authorization: Bearer TOKEN.\n");
    if (is_picture)
        return answer_picture(s, request);
    return is_state ? answer_state(s, request) : answer_metrics(s, verdict == 200);
}

/* ---- the command ----------------------------------------------------------------------------- */

/* The link has the token behind '#', which a browser keeps for itself. A journal does not get a
 * token that is in a file, too. */
static void tell_page(const struct serve *s)
{
    const char *address = s->socket.address;
    if (s->socket.is_unix)
        printf("page: %s/: to its owner, through a proxy on loopback\n", address);
    else if (s->token_file && !output_is_screen(stdout))
        printf("page: http://%s/#token=TOKEN, with the token in %s\n", address, s->token_file);
    else
        printf("page: http://%s/#token=%s\n", address, s->token);
}

static void tell_where(const struct serve *s)
{
    const char *who = s->socket.is_unix ? "all topics, to its owner"
                      : *s->token       ? "without the token, topics that every user may observe"
                                  : "topics that every user may observe; --token-file shows all";
    printf("serving %s%s/metrics: %s\n", s->socket.is_unix ? "" : "http://", s->socket.address,
           who);
    if (s->has_page)
        tell_page(s);
    (void)fflush(stdout);
}

static int open_server(struct serve *s, struct http **ret, struct cli_error *e)
{
    int r = s->token_file ? serve_token_read(s->token_file, s->token, e) : 0;
    if (r == 0)
        r = serve_listen_open(&s->socket, s->listen, e);
    if (r < 0)
        return r;
    if (s->has_page && !s->token_file && !s->socket.is_unix)
        r = serve_token_make(s->token, e); /* for as long as this runs */
    if (r == 0)
        r = http_new(ret, s->socket.fd, answer_request, s, e);
    if (r < 0)
        serve_listen_close(&s->socket);
    return r;
}

static int serve_run(struct serve *s)
{
    struct http *http = NULL;
    struct cli_error e;
    if (open_server(s, &http, &e) < 0)
        return cli_report(s->cli, NULL, "%s", e.text);
    wait_catch_signals();
    tell_where(s);
    int code = 0;
    while (!wait_signal()) {
        const int64_t next = wait_deadline(s->interval_ns);
        code = look_and_tell(s);
        if (code < 0) /* a kick is meant to end serve; a service manager may start it again */
            break;
        const int64_t least = wait_deadline(ANSWERS_NS);
        http_run(http, next > least ? next : least);
    }
    http_free(http);
    serve_listen_close(&s->socket);
    return code < 0 ? CLI_FAILURE : CLI_OK;
}

int cmd_serve(struct cli *cli, int argc, char **argv)
{
    static const struct cli_option options[] = {
        {"listen", 'l', "ADDRESS", CLI_TO(struct serve, listen),
         "127.0.0.1:PORT, [::1]:PORT, or unix:PATH (default: " DEFAULT_LISTEN ")"},
        {"page", 'p', NULL, CLI_TO(struct serve, has_page),
         "Serve a page for browsers, too: topics, subscribers that are behind, and holders"},
        {"pictures", 0, "TOPIC|PATTERN", CLI_TO(struct serve, pictures.patterns),
         "The page shows images of these topics, which this user has to be allowed to subscribe "
         "to; may be given again"},
        {"picture-rate", 0, "RATE", CLI_TO(struct serve, picture_hz),
         "Pictures of a topic a second, at most, while a page shows them (default: 2)"},
        {"token-file", 0, "FILE", CLI_TO(struct serve, token_file),
         "Show topics to who sends the token in this file, which is made if there is none"},
        {"max-topics", 0, "N", CLI_IN(struct serve, n_topics_max, 1, MAX_TOPICS),
         "Topics with series of their own (default: 1000); the others share one"},
        {"interval", 'i', "TIME", CLI_IN(struct serve, interval_ns, 1, 0),
         "Time between two looks at the daemon (default: 1s)"},
        {0},
    };
    static const struct cli_line line = {
        .options = options,
        .check = serve_check,
        .doc = "Serve metrics for Prometheus at /metrics, and with --page a page for browsers at "
               "/, on "
               "loopback or on a Unix socket of mode 0600. Nothing can be changed by them. Needs "
               "the right to observe; no daemon is started, and dlx_up is 0 while none "
               "answers.\vEvery user of the machine reaches loopback. So without the token of "
               "--token-file (\"Authorization: Bearer TOKEN\") there are dlx_up, figures of the "
               "daemon, and topics that a rule lets every user observe (dlpackd.conf(5)); no user "
               "is named. The page shows nothing without a "
               "token; if there is no --token-file, a new one is made, which is valid while this "
               "runs. The link that is printed has it. Counters of a topic never fall "
               "while this runs: what publishers and subscribers counted that have ended stays "
               "in.",
    };
    struct serve s = {.cli = cli};

    if (cli_parse(cli, &line, argc, argv, &s) != CLI_OK)
        return CLI_FAILURE;
    s.ask.share = BOARD_ASK_SHARE;
    s.metrics.board = &s.ask.board;
    s.metrics.daemon = &s.ask.daemon;
    s.metrics.n_topics_max = s.n_topics_max;
    s.page.metrics = &s.metrics;
    s.page.pictures = &s.pictures;
    s.page.trouble = s.trouble;
    s.page.interval_ns = s.interval_ns;
    int status = serve_run(&s);
    serve_picture_deinit(&s.pictures);
    serve_page_deinit(&s.page);
    metrics_deinit(&s.metrics);
    board_ask_deinit(&s.ask);
    return status;
}
