/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/serve_page.h"
#include "cli/describe.h"
#include "cli/output.h"
#include "cli/user.h"
#include "page_files.h"
#include <stdlib.h>
#include <string.h>

/* A page that has asked nothing for so long is gone: a hidden one does not ask. */
#define PAGE_GONE_NS INT64_C(5000000000)
/* Topics of one page, and of all pages, at which each look looks: two requests each. The others are
 * looked at as often as for metrics. */
enum { WATCHED_A_PAGE = 30, WATCHED = 100 };
/* What is listed at most; the page says how many there are. */
enum { LINKS_MAX = 200, HOLDS_MAX = 50, UNSERVED_MAX = 50, REFUSALS_MAX = 20 };

/* ---- files ----------------------------------------------------------------------------------- */

const char *serve_page_file(const char *path, const char **ret_type)
{
    static const struct {
        const char *path, *type, *text;
    } files[] = {{"/", "text/html; charset=utf-8", page_html},
                 {"/page.css", "text/css; charset=utf-8", page_css},
                 {"/page.js", "text/javascript; charset=utf-8", page_js}};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        if (strcmp(files[i].path, path) == 0) {
            *ret_type = files[i].type;
            return files[i].text;
        }
    return NULL;
}

/* ---- looks ----------------------------------------------------------------------------------- */

void serve_page_watch(struct serve_page *p, int64_t now_ns)
{
    struct board *b = p->metrics->board;
    unsigned n = 0;
    for (size_t i = 0; i < b->n_topics; i++) {
        struct board_topic *topic = &b->topics[i];
        topic->watched =
            topic->shown_ns > 0 && now_ns - topic->shown_ns < PAGE_GONE_NS && n++ < WATCHED;
    }
}

static json_t *user_json(uint32_t uid)
{
    char name[USER_NAME_SIZE];
    return output_json_text(user_name(uid, name));
}

/* How long ago something was; null: it was not. */
static json_t *page_age_json(int64_t now_ns, uint64_t at_ns)
{
    if (at_ns == 0)
        return json_null();
    return json_integer(output_age(now_ns, at_ns));
}

static int add_unserved(const struct dlx_subscription_info *info, void *array)
{
    if (json_array_size(array) >= UNSERVED_MAX)
        return 0;
    json_t *json =
        json_pack("{s:o, s:o, s:I, s:o, s:o}", "topic", output_json_text(info->topic), "program",
                  output_json_text(info->client_name), "pid", (json_int_t)info->pid, "user",
                  user_json(info->uid), "refusal", output_json_text(info->refusal));
    return json_array_append_new(array, json) < 0 ? DLX_E_NO_MEMORY : 0;
}

struct refusals {
    json_t *array;
    int64_t now_ns;
};

static int page_add_refusal(const struct dlx_refusal_info *info, void *userdata)
{
    const struct refusals *r = userdata;
    json_t *json = json_pack("{s:o, s:s, s:o, s:I, s:o, s:o, s:o, s:o, s:o}", "topic",
                             output_json_text(info->topic), "what", info->what, "program",
                             output_json_text(info->client_name), "pid", (json_int_t)info->pid,
                             "user", user_json(info->uid), "text", output_json_text(info->text),
                             "rule", output_json_text(info->rule), "n", output_json_u64(info->n),
                             "age_ns", page_age_json(r->now_ns, info->at_ns));
    if (json_array_append_new(r->array, json) < 0)
        return DLX_E_NO_MEMORY;
    if (json_array_size(r->array) > REFUSALS_MAX) /* the oldest comes first */
        (void)json_array_remove(r->array, 0);
    return 0;
}

static bool is_open(const struct serve_page *p, int64_t now_ns)
{
    return p->asked_ns > 0 && now_ns - p->asked_ns < PAGE_GONE_NS;
}

int serve_page_ask(struct serve_page *p, struct dlx_client *client, int64_t now_ns, bool all)
{
    const bool has_page = is_open(p, now_ns), keeps = has_page && p->has_unserved && !all;
    struct refusals refusals = {.array = json_array(), .now_ns = now_ns};
    json_t *unserved = keeps ? json_incref(p->unserved) : json_array();
    int code = unserved && refusals.array ? 0 : DLX_E_NO_MEMORY;
    if (code == 0 && has_page && !keeps)
        code = dlx_list_subscriptions(client, NULL, true, add_unserved, unserved);
    if (code == 0 && has_page)
        code = dlx_list_refusals(client, NULL, page_add_refusal, &refusals);
    if (code == DLX_E_VERSION) /* the daemon is older than protocol 2.10, and lists neither */
        code = 0;
    if (code < 0) {
        json_decref(unserved);
        json_decref(refusals.array);
        return code;
    }
    json_decref(p->unserved);
    json_decref(p->refusals);
    p->unserved = unserved;
    p->refusals = refusals.array;
    p->has_unserved = has_page;
    return 0;
}

void serve_page_deinit(struct serve_page *p)
{
    board_view_deinit(&p->view);
    json_decref(p->unserved);
    json_decref(p->refusals);
    p->unserved = p->refusals = NULL;
}

/* ---- figures --------------------------------------------------------------------------------- */

static json_t *rate_json(double rate)
{
    return rate < 0 ? json_null() : json_real(rate);
}

static json_t *figures_of_daemon(const struct dlx_daemon_info *d)
{
    return json_pack(
        "{s:o, s:I, s:I, s:o, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o}", "version",
        output_json_text(d->version), "protocol_major", (json_int_t)d->protocol_major,
        "protocol_minor", (json_int_t)d->protocol_minor, "uptime_ns", output_json_u64(d->uptime_ns),
        "n_clients", (json_int_t)d->n_clients, "n_topics", (json_int_t)d->n_topics, "n_publishers",
        (json_int_t)d->n_publishers, "n_links", (json_int_t)d->n_links, "shared_bytes",
        output_json_u64(d->shared_bytes), "refused",
        output_json_u64(d->refused_access + d->refused_limit + d->refused_qos + d->refused_other),
        "longest_turn_ns", output_json_u64(d->longest_turn_ns), "lack", output_json_text(d->lack));
}

static json_t *link_json(const struct board_publisher *p, const struct board_link *link)
{
    const struct dlx_link_info *i = &link->info;
    return output_json_merge(describe_link(i),
                             json_pack("{s:o, s:o, s:o, s:o}", "user", user_json(i->uid),
                                       "taken_per_s", rate_json(link->taken_per_s), "next_age_ns",
                                       page_age_json(p->links_ns, i->next_ns), "held_age_ns",
                                       page_age_json(p->links_ns, i->held_ns)));
}

static json_t *publisher_json(const struct board_publisher *p, size_t *n_links_left)
{
    json_t *links = json_array();
    for (size_t i = 0; *n_links_left > 0 && i < p->n_links; i++, --*n_links_left)
        links = output_json_append(links, link_json(p, &p->links[i]));
    return output_json_merge(describe_publisher(&p->info),
                             json_pack("{s:o, s:o, s:o, s:o, s:o}", "user", user_json(p->info.uid),
                                       "messages_per_s", rate_json(p->messages_per_s),
                                       "bytes_per_s", rate_json(p->bytes_per_s), "blocked_age_ns",
                                       page_age_json(p->look_ns, p->info.blocked_at_ns), "links",
                                       links));
}

/* The publishers of the topic with their links; null: the topic has none. */
static json_t *page_topic_json(const struct board *b, const struct board_topic *topic)
{
    size_t n_links_left = LINKS_MAX;
    json_t *publishers = json_array();
    if (!topic || topic->n_listed == 0) {
        json_decref(publishers);
        return json_null();
    }
    for (size_t i = topic->first; i < topic->first + topic->n_listed; i++)
        publishers =
            output_json_append(publishers, publisher_json(&b->publishers[i], &n_links_left));
    return output_json_put(board_json(topic), "publishers", publishers);
}

/* ---- who holds or blocks --------------------------------------------------------------------- */

struct hold {
    const struct board_publisher *publisher;
    const struct dlx_link_info *link;
    int64_t age_ns;
};

static int compare_holds(const void *a, const void *b)
{
    const struct hold *x = a, *y = b;
    if (x->link->blocks != y->link->blocks)
        return x->link->blocks ? -1 : 1;
    if (x->age_ns != y->age_ns)
        return x->age_ns > y->age_ns ? -1 : 1;
    if (x->link->n_held != y->link->n_held)
        return x->link->n_held > y->link->n_held ? -1 : 1;
    return (x->link->link > y->link->link) - (x->link->link < y->link->link);
}

static bool is_hold(const struct dlx_link_info *link)
{
    return link->n_held > 0 || link->blocks;
}

/* Links that make their publishers wait, then those that hold messages, each with the oldest hold
 * first. NULL: out of memory, or there are none. */
static struct hold *find_holds(const struct board *b, size_t *ret_n)
{
    size_t n = 0;
    *ret_n = 0;
    for (size_t i = 0; i < b->n_publishers; i++)
        for (size_t l = 0; l < b->publishers[i].n_links; l++)
            n += is_hold(&b->publishers[i].links[l].info);
    struct hold *holds = n > 0 ? calloc(n, sizeof *holds) : NULL;
    for (size_t i = 0; holds && i < b->n_publishers; i++) {
        const struct board_publisher *p = &b->publishers[i];
        for (size_t l = 0; l < p->n_links; l++)
            if (is_hold(&p->links[l].info))
                holds[(*ret_n)++] =
                    (struct hold){.publisher = p,
                                  .link = &p->links[l].info,
                                  .age_ns = output_age(p->links_ns, p->links[l].info.held_ns)};
    }
    if (holds)
        qsort(holds, *ret_n, sizeof *holds, compare_holds);
    return holds;
}

static json_t *holds_json(const struct board *b, size_t *ret_n)
{
    struct hold *holds = find_holds(b, ret_n);
    json_t *array = json_array();
    for (size_t i = 0; i < *ret_n && i < HOLDS_MAX; i++) {
        const struct hold *h = &holds[i];
        array = output_json_append(
            array,
            json_pack("{s:o, s:o, s:I, s:o, s:o, s:I, s:I, s:o, s:o, s:b, s:o, s:o}", "link",
                      output_json_u64(h->link->link), "program",
                      output_json_text(h->link->client_name), "pid", (json_int_t)h->link->pid,
                      "user", user_json(h->link->uid), "topic",
                      output_json_text(h->publisher->info.topic), "n_held",
                      (json_int_t)h->link->n_held, "max_held", (json_int_t)h->link->max_held,
                      "held_age_ns", page_age_json(h->publisher->links_ns, h->link->held_ns),
                      "bytes", output_json_u64(board_held_bytes(h->publisher, h->link)), "blocks",
                      (int)h->link->blocks, "behind", describe_figure(h->link->behind),
                      "next_age_ns", page_age_json(h->publisher->links_ns, h->link->next_ns)));
    }
    free(holds);
    return array;
}

static json_t *quotas_json(const struct metrics_quota *quotas)
{
    json_t *array = json_array();
    for (size_t i = 0; i < quotas->n; i++) {
        const struct dlx_quota_info *q = &quotas->items[i];
        if (q->max == DLX_QUOTA_UNLIMITED)
            continue;
        array = output_json_append(
            array, json_pack("{s:o, s:o, s:o, s:o, s:o}", "user", user_json(q->uid), "socket",
                             output_json_text(q->socket), "name", output_json_text(q->name), "used",
                             output_json_u64(q->used), "max", output_json_u64(q->max)));
    }
    return array;
}

/* ---- what a page gets ------------------------------------------------------------------------ */

static json_t *page_rows_json(struct serve_page *p, const struct serve_page_query *query,
                              int64_t now_ns)
{
    struct board *b = p->metrics->board;
    json_t *array = json_array();
    p->view.filter = query->filter;
    p->view.sort = board_column_find(query->sort);
    p->view.sort = p->view.sort ? p->view.sort : board_column_find("RATE");
    p->view.reverse = query->reverse;
    if (board_view_update(&p->view, b) < 0) {
        json_decref(array);
        return NULL;
    }
    for (size_t i = 0; i < p->view.n_rows && i < query->n_topics; i++) {
        if (i < WATCHED_A_PAGE)
            b->topics[p->view.rows[i] - b->topics].shown_ns = now_ns;
        array = output_json_append(array, board_json(p->view.rows[i]));
    }
    return array;
}

/* How often to ask for the picture of the topic that is chosen; null: it may not be shown. */
static json_t *picture_json(const struct serve_page *p, const struct serve_page_query *query)
{
    return *query->topic && serve_picture_allowed(p->pictures, query->topic)
               ? json_integer((json_int_t)p->pictures->interval_ns)
               : json_null();
}

char *serve_page_state(struct serve_page *p, const struct serve_page_query *query, int64_t now_ns,
                       size_t *ret_size)
{
    const struct metrics *m = p->metrics;
    struct board_topic *topic = *query->topic ? board_find(m->board, query->topic) : NULL;
    size_t n_holds = 0;
    p->asked_ns = now_ns;
    if (topic)
        topic->shown_ns = now_ns;
    json_t *topics = page_rows_json(p, query, now_ns);
    json_t *holds = holds_json(m->board, &n_holds);
    json_t *json = json_pack(
        "{s:b, s:o, s:I, s:I, s:I, s:o, s:o, s:o, s:I, s:I, s:I, s:o, s:I, s:o, s:I, s:O?, s:O?, "
        "s:o}",
        "up", (int)m->up, "trouble", output_json_text(p->trouble), "interval_ns",
        (json_int_t)p->interval_ns, "look_ns", (json_int_t)m->board->look_ns, "look_age_ns",
        (json_int_t)(now_ns - m->board->look_ns), "daemon", figures_of_daemon(m->daemon), "topic",
        page_topic_json(m->board, topic), "picture_ns", picture_json(p, query), "n_topics",
        (json_int_t)p->view.n_topics, "n_found", (json_int_t)p->view.n_rows, "n_hidden",
        (json_int_t)m->board->n_hidden, "topics", topics, "n_holds", (json_int_t)n_holds, "holds",
        holds, "n_unserved", (json_int_t)m->board->n_unserved, "unserved", p->unserved, "refusals",
        p->refusals, "quotas", quotas_json(&m->quotas));
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    *ret_size = text ? strlen(text) : 0;
    return text;
}
