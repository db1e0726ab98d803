/* SPDX-License-Identifier: Apache-2.0 */

/* Lists publishers for a board, and links of as many of them as one look may ask for. */

#include "cli/board_ask.h"
#include "cli/wait.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* How far the start of one daemon may seem to move: its answers take time. */
#define START_JITTER_NS (1000 * INT64_C(1000000))
/* How often the list is asked for in one look, if daemons restart meanwhile. */
enum { TRIES = 3 };
/* Of how many publishers whose topics are not watched a look asks for the links: a request costs
 * the daemon about 14 us. */
enum { LINKS_A_LOOK = 25 };

static int board_ask_add(const struct dlx_publisher_info *info, void *userdata)
{
    struct board_ask *a = userdata;
    return board_add(&a->board, info);
}

/* Asks for the daemon, and whether it is the one of the last look. */
static int ask_daemon(struct board_ask *a, bool *ret_same)
{
    struct dlx_daemon_info now = {.size = sizeof now};
    int code = dlx_client_get_daemon_info(a->client, &now);
    if (code < 0)
        return code;
    int64_t start = wait_now() - (int64_t)now.uptime_ns, moved = start - a->daemon_start_ns;
    *ret_same = a->daemon.pid == now.pid && moved < START_JITTER_NS && moved > -START_JITTER_NS;
    a->daemon = now;
    a->daemon_start_ns = *ret_same ? a->daemon_start_ns : start;
    return 0;
}

/* The daemon is asked for after the list: if it is another one than before, it is not known which
 * of them gave the list. */
static int ask_all(struct board_ask *a, bool same)
{
    bool confirmed = false;
    int code = 0;
    for (int i = 0; code == 0 && !confirmed && i < TRIES; i++) {
        board_begin(&a->board, wait_now(), same);
        code = dlx_list_publishers(a->client, a->topic, board_ask_add, a);
        if (code == 0)
            code = ask_daemon(a, &confirmed);
        same &= confirmed;
    }
    return code == 0 && !confirmed ? DLX_E_DISCONNECTED : code;
}

static int count_unserved(const struct dlx_subscription_info *info, void *userdata)
{
    (void)info;
    ++*(uint64_t *)userdata;
    return 0;
}

/* A daemon older than protocol 2.10 does not list them. */
static int ask_unserved(struct board_ask *a)
{
    uint64_t n = 0;
    int code = dlx_list_subscriptions(a->client, a->topic, true, count_unserved, &n);
    a->board.n_unserved = n;
    return code == DLX_E_VERSION ? 0 : code;
}

/* Sets *ret_same to false if the lists may be those of another daemon, which has other ids. */
static int ask_watched(struct board_ask *a, bool *ret_same)
{
    struct board *b = &a->board;
    int code = 0;
    board_begin_partial(b, wait_now());
    for (size_t i = 0; code == 0 && i < b->n_topics; i++)
        if (b->topics[i].watched)
            code = dlx_list_publishers(a->client, b->topics[i].name, board_ask_add, a);
    return code == 0 ? ask_daemon(a, ret_same) : code;
}

/* The daemon counts all publishers, and lists those that this user may observe. */
static void count_hidden(struct board_ask *a)
{
    const uint64_t all = a->daemon.n_publishers, seen = a->board.n_publishers;
    memmove(a->missing + 1, a->missing, sizeof a->missing - sizeof a->missing[0]);
    a->missing[0] = all > seen ? all - seen : 0;
    a->board.n_hidden = UINT64_MAX;
    for (size_t i = 0; i < BOARD_ASK_LOOKS; i++)
        if (a->missing[i] < a->board.n_hidden)
            a->board.n_hidden = a->missing[i];
}

/* The CPU time of this thread, which no wait for a daemon lengthens. */
static int64_t cpu_time(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return ts.tv_sec * INT64_C(1000000000) + ts.tv_nsec;
}

static int ask_publishers(struct board_ask *a)
{
    int64_t begin = wait_now(), used = cpu_time();
    bool first = a->board.look_ns == 0, same = !first;
    bool all = a->share == 0 || first || begin >= a->next_all_ns;
    int code = all ? 0 : ask_watched(a, &same);
    a->was_of_all = all || !same;
    if (code == 0 && a->was_of_all) {
        code = ask_all(a, same);
        code = code == 0 ? ask_unserved(a) : code;
        /* rates need a second one */
        a->next_all_ns = first || code < 0 ? 0 : wait_deadline((cpu_time() - used) * a->share);
    }
    if (code == 0)
        code = board_end(&a->board);
    if (code < 0)
        board_abandon(&a->board);
    else if (a->was_of_all && !a->topic)
        count_hidden(a);
    return code;
}

struct links {
    struct dlx_link_info *infos;
    size_t n, n_allocated;
};

static int add_listed_link(const struct dlx_link_info *info, void *userdata)
{
    struct links *links = userdata;
    if (links->n == links->n_allocated) {
        size_t n = links->n_allocated ? links->n_allocated * 2 : 16;
        struct dlx_link_info *infos = reallocarray(links->infos, n, sizeof *infos);
        if (!infos)
            return DLX_E_NO_MEMORY;
        links->infos = infos;
        links->n_allocated = n;
    }
    links->infos[links->n++] = *info;
    return 0;
}

static int ask_links_of(struct board_ask *a, struct links *links, size_t i)
{
    const struct board_publisher *p = &a->board.publishers[i];
    links->n = 0;
    int code = dlx_list_links(a->client, p->info.publisher, add_listed_link, links);
    if (code == DLX_E_NOT_FOUND) /* the publisher has left meanwhile: the next look tells */
        return 0;
    return code < 0 ? code : board_set_links(&a->board, i, links->infos, links->n, wait_now());
}

static bool may_have_links(const struct board_publisher *p)
{
    return p->info.n_subscribers > 0 || p->n_links > 0;
}

static int ask_watched_links(struct board_ask *a, struct links *links)
{
    const struct board *b = &a->board;
    int code = 0;
    for (size_t t = 0; code == 0 && t < b->n_topics; t++) {
        const struct board_topic *topic = &b->topics[t];
        for (size_t i = 0; code == 0 && topic->watched && i < topic->n_listed; i++)
            if (may_have_links(&b->publishers[topic->first + i]))
                code = ask_links_of(a, links, topic->first + i);
    }
    return code;
}

static int ask_links(struct board_ask *a)
{
    const struct board *b = &a->board;
    struct links links = {0};
    int64_t begin = wait_now();
    bool all = a->share == 0 || !a->has_links;
    size_t n = all ? b->n_publishers : LINKS_A_LOOK;
    int code = ask_watched_links(a, &links);
    for (size_t k = 0; code == 0 && n > 0 && k < b->n_publishers; k++) {
        size_t i = a->turn = (a->turn + 1) % b->n_publishers;
        if (may_have_links(&b->publishers[i]) && b->publishers[i].links_ns < begin) {
            code = ask_links_of(a, &links, i);
            n--;
        }
    }
    a->has_links |= code == 0;
    free(links.infos);
    return code;
}

int board_ask(struct board_ask *a)
{
    int code = ask_publishers(a);
    if (code == 0)
        code = ask_links(a);
    board_sum(&a->board);
    return code;
}

void board_ask_deinit(struct board_ask *a)
{
    board_deinit(&a->board);
}
