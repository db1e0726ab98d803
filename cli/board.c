/* SPDX-License-Identifier: Apache-2.0 */

/* Figures of topics: counters that never fall, rates, sums of publishers and links. */

#include "cli/board.h"
#include "cli/output.h"
#include <dlx/error.h>
#include <stdlib.h>
#include <string.h>

/* ---- publishers ------------------------------------------------------------------------------ */

static void free_publishers(struct board_publisher *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(p[i].links);
    free(p);
}

void board_deinit(struct board *b)
{
    board_abandon(b);
    free_publishers(b->publishers, b->n_publishers);
    free_publishers(b->former, b->n_former);
    free(b->topics);
    *b = (struct board){0};
}

/* Where publishers of the topic begin. */
static size_t find_publishers(const struct board_publisher *p, size_t n, const char *topic)
{
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(p[middle].info.topic, topic) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Is `info` the same publisher, which has reconnected to a restarted daemon? */
static bool resumes(const struct board_publisher *former, const struct dlx_publisher_info *info)
{
    const struct dlx_publisher_info *f = &former->info;
    return f->size > 0 && f->pid == info->pid && f->uid == info->uid &&
           f->published <= info->published && f->published_bytes <= info->published_bytes &&
           strcmp(f->client_name, info->client_name) == 0;
}

/* A former publisher that has come back has the size 0. NULL: the publisher is a new one. */
static struct board_publisher *find_former(struct board *b, const struct dlx_publisher_info *info)
{
    size_t i = find_publishers(b->former, b->n_former, info->topic);
    for (; i < b->n_former && strcmp(b->former[i].info.topic, info->topic) == 0; i++)
        if (resumes(&b->former[i], info))
            return &b->former[i];
    return NULL;
}

/* ---- a look ---------------------------------------------------------------------------------- */

void board_abandon(struct board *b)
{
    free(b->next); /* no links yet */
    b->next = NULL;
    b->n_next = b->n_allocated = 0;
}

void board_begin(struct board *b, int64_t now_ns, bool same_daemon)
{
    board_abandon(b);
    b->next_ns = now_ns;
    b->same_daemon = same_daemon;
    b->is_partial = false;
}

void board_begin_partial(struct board *b, int64_t now_ns)
{
    board_begin(b, now_ns, true);
    b->is_partial = true;
}

int board_add(struct board *b, const struct dlx_publisher_info *info)
{
    if (b->n_next == b->n_allocated) {
        size_t n = b->n_allocated ? b->n_allocated * 2 : 64;
        struct board_publisher *next = reallocarray(b->next, n, sizeof *next);
        if (!next)
            return DLX_E_NO_MEMORY;
        b->next = next;
        b->n_allocated = n;
    }
    b->next[b->n_next++] = (struct board_publisher){.info = *info,
                                                    .look_ns = b->next_ns,
                                                    .messages_per_s = BOARD_UNKNOWN,
                                                    .bytes_per_s = BOARD_UNKNOWN,
                                                    .dropped_per_s = BOARD_UNKNOWN};
    return 0;
}

/* A figure that the daemon is too old to report counts as 0. */
static uint64_t known(uint64_t figure)
{
    return figure == DLX_FIGURE_UNKNOWN ? 0 : figure;
}

/* A counter that has fallen was set to 0 meanwhile. */
static uint64_t grown(uint64_t before, uint64_t now)
{
    return now >= before ? now - before : now;
}

/* A publisher and a subscriber say what they like: a counter that is full does not begin anew. */
static uint64_t sum_of(uint64_t a, uint64_t b)
{
    return b > UINT64_MAX - a ? UINT64_MAX : a + b;
}

static void board_add_to(uint64_t *counter, uint64_t n)
{
    *counter = sum_of(*counter, n);
}

static void count(struct board_topic *topic, const struct dlx_publisher_info *before,
                  const struct dlx_publisher_info *now)
{
    static const struct dlx_publisher_info none;
    const struct dlx_publisher_info *old = before ? before : &none;
    uint64_t *counters = topic->counters;
    board_add_to(&counters[BOARD_MESSAGES], grown(old->published, now->published));
    board_add_to(&counters[BOARD_BYTES], grown(old->published_bytes, now->published_bytes));
    board_add_to(&counters[BOARD_REFUSED], grown(known(old->refused), known(now->refused)));
    board_add_to(&counters[BOARD_COPIED], grown(known(old->copied), known(now->copied)));
    board_add_to(&counters[BOARD_COPIED_BYTES],
                 grown(known(old->copied_bytes), known(now->copied_bytes)));
    /* No new beginning: a wait that was told too long, of a publisher that was killed, say. */
    if (known(now->blocked_ns) > known(old->blocked_ns))
        board_add_to(&counters[BOARD_BLOCKED_NS], known(now->blocked_ns) - known(old->blocked_ns));
}

/* How many of these are publishers of the first one's topic. */
static size_t n_of_topic(const struct board_publisher *p, size_t n)
{
    size_t i = 0;
    while (i < n && strcmp(p[i].info.topic, p->info.topic) == 0)
        i++;
    return i;
}

/* Makes `topics` of the former topics and those of `next`, both by name. */
static struct board_topic *merge_topics(const struct board *b, size_t *ret_n)
{
    size_t n = 0, t = 0, p = 0;
    struct board_topic *topics = calloc(b->n_topics + b->n_next + 1, sizeof *topics);
    while (topics && (t < b->n_topics || p < b->n_next)) {
        int order = t == b->n_topics ? 1
                    : p == b->n_next ? -1
                                     : strcmp(b->topics[t].name, b->next[p].info.topic);
        struct board_topic *topic = &topics[n++];
        if (order <= 0)
            *topic = b->topics[t++];
        else
            memcpy(topic->name, b->next[p].info.topic, sizeof topic->name);
        if (order >= 0)
            p += n_of_topic(b->next + p, b->n_next - p);
    }
    *ret_n = n;
    return topics;
}

/* Keeps the links of the publisher, as the last look found them. */
static void keep(struct board_publisher *publisher, struct board_publisher *before)
{
    publisher->links = before->links;
    publisher->n_links = before->n_links;
    publisher->links_ns = before->links_ns;
    publisher->dropped_per_s = before->dropped_per_s;
    before->links = NULL;
    before->n_links = 0;
}

static void board_count(struct board *b, struct board_topic *topic,
                        struct board_publisher *publisher, struct board_publisher *before)
{
    struct board_publisher *former = before ? NULL : find_former(b, &publisher->info);
    if (former) {
        before = former;
        former->info.size = 0;
    }
    count(topic, before ? &before->info : NULL, &publisher->info);
    double seconds = (double)(b->next_ns - (before ? before->look_ns : b->look_ns)) / 1e9;
    if (b->same_daemon && b->look_ns > 0 && seconds > 0 && !former) {
        uint64_t messages = before ? before->info.published : 0,
                 bytes = before ? before->info.published_bytes : 0;
        publisher->messages_per_s = (double)grown(messages, publisher->info.published) / seconds;
        publisher->bytes_per_s = (double)grown(bytes, publisher->info.published_bytes) / seconds;
    }
    if (before)
        keep(publisher, before);
    if (former)
        publisher->links_ns = 0; /* the links have other ids: their figures, and no rates */
}

/* After a restart all publishers are former ones, until they are found again. */
static void forget_publishers(struct board *b)
{
    if (b->n_publishers == 0)
        return;
    free_publishers(b->former, b->n_former);
    b->former = b->publishers;
    b->n_former = b->n_publishers;
    b->publishers = NULL;
    b->n_publishers = 0;
}

/* Returns the publisher with this id; NULL: none. */
static struct board_publisher *find_id(struct board_publisher *p, size_t n, uint64_t id)
{
    for (size_t i = 0; i < n && p[i].info.publisher <= id; i++)
        if (p[i].info.publisher == id)
            return &p[i];
    return NULL;
}

/* Counts `n` publishers that the look has found of the topic. `old` are those of the last look. */
static void board_count_topic(struct board *b, struct board_topic *topic,
                              struct board_publisher *publishers, size_t n,
                              struct board_publisher *old, size_t n_old)
{
    for (size_t i = 0; i < n; i++)
        board_count(b, topic, &publishers[i], find_id(old, n_old, publishers[i].info.publisher));
    topic->n_listed = n;
}

/* Fills `all` with the publishers of all topics, which the look has found or left out. */
static size_t gather(struct board *b, struct board_topic *topics, size_t n_topics,
                     struct board_publisher *all)
{
    size_t at = 0, next = 0, old = 0;
    for (size_t t = 0; t < n_topics; t++) {
        struct board_topic *topic = &topics[t];
        struct board_publisher *before = b->publishers + old;
        size_t n_before = old < b->n_publishers && strcmp(before->info.topic, topic->name) == 0
                              ? n_of_topic(before, b->n_publishers - old)
                              : 0;
        size_t n = next < b->n_next && strcmp(b->next[next].info.topic, topic->name) == 0
                       ? n_of_topic(b->next + next, b->n_next - next)
                       : 0;
        topic->first = at;
        if (b->is_partial && !topic->watched) {
            for (size_t i = 0; i < n_before; i++) {
                all[at + i] = before[i];
                before[i].links = NULL; /* they went with the copy */
            }
            at += n_before;
        } else {
            for (size_t i = 0; i < n; i++)
                all[at + i] = b->next[next + i];
            board_count_topic(b, topic, all + at, n, before, n_before);
            at += n;
        }
        old += n_before;
        next += n;
    }
    return at;
}

static size_t forget_topics(struct board *b, struct board_topic *topics, size_t n)
{
    size_t kept = 0;
    if (n <= BOARD_TOPICS_MAX)
        return n;
    for (size_t t = 0; t < n; t++)
        if (topics[t].n_listed > 0 || topics[t].kept)
            topics[kept++] = topics[t];
        else
            for (size_t i = 0; i < BOARD_N_COUNTERS; i++)
                board_add_to(&b->forgotten[i], topics[t].counters[i]);
    return kept;
}

int board_end(struct board *b)
{
    size_t n_topics = 0;
    struct board_topic *topics = merge_topics(b, &n_topics);
    struct board_publisher *all = calloc(b->n_publishers + b->n_next + 1, sizeof *all);
    if (!topics || !all) {
        free(topics);
        free(all);
        return DLX_E_NO_MEMORY;
    }
    if (!b->same_daemon)
        forget_publishers(b);
    size_t n = gather(b, topics, n_topics, all);
    free(b->topics);
    b->topics = topics;
    b->n_topics = forget_topics(b, topics, n_topics);
    free_publishers(b->publishers, b->n_publishers);
    b->publishers = all;
    b->n_publishers = n;
    if (!b->is_partial)
        b->look_ns = b->next_ns;
    board_abandon(b);
    return 0;
}

/* ---- links ----------------------------------------------------------------------------------- */

/* The link as it was before: with this id, or after a restart of the daemon (links_ns is 0) the one
 * of the same program. A link that was found has the size 0. */
static struct board_link *find_former_link(struct board_publisher *p,
                                           const struct dlx_link_info *info)
{
    for (size_t i = 0; i < p->n_links; i++) {
        struct dlx_link_info *old = &p->links[i].info;
        bool same = p->links_ns > 0 ? old->link == info->link
                                    : old->pid == info->pid && old->mode == info->mode &&
                                          old->taken <= info->taken &&
                                          strcmp(old->client_name, info->client_name) == 0;
        if (old->size > 0 && same) {
            old->size = 0;
            return &p->links[i];
        }
    }
    return NULL;
}

int board_set_links(struct board *b, size_t i, const struct dlx_link_info *infos, size_t n,
                    int64_t now_ns)
{
    struct board_publisher *p = &b->publishers[i];
    struct board_topic *topic = board_find(b, p->info.topic);
    struct board_link *links = calloc(n + 1, sizeof *links);
    if (!links)
        return DLX_E_NO_MEMORY;
    double seconds = p->links_ns > 0 ? (double)(now_ns - p->links_ns) / 1e9 : 0;
    uint64_t dropped = 0;
    for (size_t l = 0; l < n; l++) {
        const struct dlx_link_info *now = &infos[l];
        const struct board_link *before = find_former_link(p, now);
        uint64_t lost = grown(before ? before->info.lost : 0, now->lost);
        uint64_t skipped = grown(before ? before->info.skipped : 0, now->skipped);
        uint64_t taken = grown(before ? before->info.taken : 0, now->taken);
        board_add_to(&topic->counters[BOARD_LOST], lost);
        board_add_to(&topic->counters[BOARD_SKIPPED], skipped);
        dropped = sum_of(dropped, sum_of(lost, skipped));
        links[l] = (struct board_link){
            .info = *now, .taken_per_s = seconds > 0 ? (double)taken / seconds : BOARD_UNKNOWN};
    }
    free(p->links);
    p->links = links;
    p->n_links = n;
    p->links_ns = now_ns;
    p->dropped_per_s = seconds > 0 ? (double)dropped / seconds : BOARD_UNKNOWN;
    return 0;
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* The sum of rates that are known. */
static void add_rate(double *sum, double rate)
{
    if (rate >= 0)
        *sum = *sum < 0 ? rate : *sum + rate;
}

/* The age at a time of what was published then; 0: there is none. */
static uint64_t age_at(int64_t now_ns, uint64_t published_ns)
{
    uint64_t age = (uint64_t)output_age(now_ns, published_ns);
    return published_ns > 0 && age == 0 ? 1 : age;
}

static void raise_to(uint64_t *most, uint64_t n)
{
    *most = n > *most ? n : *most;
}

uint64_t board_held_bytes(const struct board_publisher *p, const struct dlx_link_info *link)
{
    const struct dlx_publisher_info *info = &p->info;
    return info->published > 0 ? info->published_bytes / info->published * link->n_held : 0;
}

static void sum_link(struct board_topic *topic, const struct board_publisher *p, size_t l)
{
    const struct dlx_link_info *link = &p->links[l].info;
    const int64_t now_ns = p->links_ns;
    raise_to(&topic->held_age_ns, age_at(now_ns, link->held_ns));
    raise_to(&topic->next_age_ns, age_at(now_ns, link->next_ns));
    raise_to(&topic->behind, known(link->behind));
    topic->n_held += link->n_held;
    board_add_to(&topic->held_bytes, board_held_bytes(p, link));
    topic->n_full += link->max_held > 0 && link->n_held >= link->max_held;
    topic->n_joining += link->joining;
    topic->blocked |= link->blocks;
}

static void sum_topic(const struct board *b, struct board_topic *topic)
{
    topic->messages_per_s = topic->bytes_per_s = topic->dropped_per_s =
        topic->n_listed > 0 ? BOARD_UNKNOWN : 0;
    topic->n_publishers = topic->n_retained = 0;
    topic->n_subscribers = topic->behind = topic->n_held = topic->memory_bytes = 0;
    topic->held_bytes = 0;
    topic->n_full = topic->n_joining = topic->held_age_ns = topic->next_age_ns = 0;
    topic->blocked = false;
    topic->for_everybody = topic->n_listed > 0;
    topic->dropped = sum_of(topic->counters[BOARD_LOST], topic->counters[BOARD_SKIPPED]);
    for (size_t i = topic->first; i < topic->first + topic->n_listed; i++) {
        const struct board_publisher *p = &b->publishers[i];
        topic->for_everybody &= p->info.for_everybody;
        topic->n_publishers += !p->info.retained;
        topic->n_retained += p->info.retained;
        raise_to(&topic->n_subscribers, p->info.n_subscribers);
        topic->memory_bytes += p->info.arena_bytes + p->info.control_bytes;
        add_rate(&topic->messages_per_s, p->messages_per_s);
        add_rate(&topic->bytes_per_s, p->bytes_per_s);
        add_rate(&topic->dropped_per_s, p->dropped_per_s);
        for (size_t l = 0; l < p->n_links; l++)
            sum_link(topic, p, l);
    }
}

void board_sum(struct board *b)
{
    for (size_t t = 0; t < b->n_topics; t++)
        sum_topic(b, &b->topics[t]);
}

struct board_topic *board_find(const struct board *b, const char *name)
{
    size_t low = 0, high = b->n_topics;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(b->topics[middle].name, name);
        if (order == 0)
            return &b->topics[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}
