/* SPDX-License-Identifier: Apache-2.0 */
#include "client/control/connection.h"
#include "client/base/misuse.h"
#include "client/control/call.h"
#include "client/control/call_wire.h"
#include "common/memory.h"
#include "ring/layout.h"
#include <string.h>

static void client_free(struct dlx_client *c)
{
    dlx__close(c->sock);
    dlx__call_free(c->call);
    dlx__peers_deinit(&c->peers);
    dlx__mapped_unref(c->mapped);
    if (c->interrupt_free)
        c->interrupt_free(c->interrupt_data);
    dlx__release_handle(c, &c->generation);
}

enum dlx_daemon_place dlx_client_daemon_place(const struct dlx_client *c)
{
    return (enum dlx_daemon_place)c->path_kind;
}

const char *dlx_client_refused_by(const struct dlx_client *c)
{
    return c->refused_by;
}

void dlx__client_unref(struct dlx_client *c)
{
    if (c && !dlx__forked(c->generation) &&
        atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) == 1)
        client_free(c);
}

/* The caller has one reference; the others are those of publishers, subscriptions and messages. */
struct dlx_client *dlx_client_unref(struct dlx_client *c)
{
    static const char call[] = "dlx_client_unref()";
    if (!c)
        return NULL;
    if (dlx__forked(c->generation))
        dlx__check_released(c->generation, call);
    else if (!atomic_exchange_explicit(&c->is_released, true, memory_order_acq_rel))
        dlx__client_unref(c);
    else
        dlx__check_released(DLX_RELEASED, call);
    return NULL;
}

/* ---- memory of former daemons ----------------------------------------------------------- */

/* Room for regions and sources that come while the daemon makes the page. */
#define SLACK 16U

struct count {
    uint32_t n_regions, n_sources;
};

static bool is_former(const struct dlx_client *c, const struct dlx_mapped_source *source)
{
    return source->regions && source->epoch < atomic_load_explicit(&c->epoch, memory_order_relaxed);
}

/* Counts what is mapped. `ret_untold`: something is not in the page. */
static struct count count_all(const struct dlx_client *c, const struct dlx_mapped_source *sources,
                              bool *ret_untold)
{
    struct count count = {0, 0};
    *ret_untold = !c->tells_former;
    for (const struct dlx_mapped_source *source = sources; source; source = source->next) {
        if (!is_former(c, source))
            continue;
        count.n_sources++;
        for (const struct dlx_mapped_region *region = source->regions; region;
             region = region->next) {
            count.n_regions++;
            *ret_untold |= region->word == NULL;
        }
    }
    return count;
}

/* A page that is being filled. */
struct filling {
    struct dlx_mapped_page page;
    struct count max, n;
};

static void fill_region(struct filling *filling, struct dlx_mapped_region *region, uint64_t number)
{
    uint32_t i = DLX_MIN(filling->n.n_regions, filling->max.n_regions - 1);
    uint8_t *page = filling->page.map;
    struct dlx_shm_former_region *to =
        (void *)(page + dlx_shm_former_regions_at(filling->max.n_regions));
    *(to + i) =
        (struct dlx_shm_former_region){.region = number, .source = filling->n.n_sources - 1};
    region->word = (_Atomic uint64_t *)filling->page.map + i;
    atomic_fetch_add_explicit(region->word, region->size, memory_order_relaxed);
    filling->n.n_regions = i + 1;
    filling->page.n_regions++;
}

/* The last region counts also those that do not fit. */
static void fill_source(const struct dlx_client *c, struct filling *filling,
                        struct dlx_mapped_source *source)
{
    bool fits = filling->n.n_sources < filling->max.n_sources;
    uint8_t *page = filling->page.map;
    struct dlx_shm_former_source *to =
        (void *)(page + dlx_shm_former_sources_at(filling->max.n_regions));
    if (fits) {
        to += filling->n.n_sources++;
        to->publisher = source->publisher;
        to->is_publisher = source->is_publisher;
        memcpy(to->topic, source->topic, strlen(source->topic) + 1); /* at most DLX_TOPIC_MAX */
    }
    for (struct dlx_mapped_region *region = source->regions; region; region = region->next) {
        bool is_rest = !fits || filling->n.n_regions >= filling->max.n_regions - 1;
        if (!fits)
            filling->n.n_regions = filling->max.n_regions;
        fill_region(filling, region, is_rest ? DLX_SHM_FORMER_REST + c->id : region->number);
    }
}

static int make_page(struct dlx_client *c, struct count count, struct filling *ret)
{
    int fd;
    *ret = (struct filling){
        .max.n_regions = DLX_MIN(count.n_regions + SLACK, DLX_SHM_FORMER_REGIONS_MAX),
        .max.n_sources = DLX_MIN(count.n_sources + SLACK, DLX_SHM_FORMER_SOURCES_MAX)};
    int r = dlx__call_former_new(c, ret->max.n_regions, ret->max.n_sources, &ret->page.size, &fd);
    return r < 0 ? r : dlx__region_populate(c->memory, fd, ret->page.size, &ret->page.map);
}

static void forget_page(struct dlx_client *c)
{
    struct dlx_mapped_source *sources = dlx__mapped_lock(c->mapped);
    for (struct dlx_mapped_source *source = sources; source; source = source->next)
        for (struct dlx_mapped_region *region = source->regions; region; region = region->next)
            region->word = NULL;
    struct dlx_mapped_page page =
        dlx__mapped_set_page(c->mapped, (struct dlx_mapped_page){NULL, 0, 0});
    dlx__mapped_unlock(c->mapped);
    dlx__region_unmap(page.map, page.size);
}

/* Between the two calls regions may go, and a few may come. */
static int fill_and_show_page(struct dlx_client *c, struct count count)
{
    struct filling filling;
    int r = make_page(c, count, &filling);
    if (r < 0)
        return r;
    struct dlx_mapped_source *sources = dlx__mapped_lock(c->mapped);
    for (struct dlx_mapped_source *source = sources; source; source = source->next) {
        if (is_former(c, source))
            fill_source(c, &filling, source);
        for (struct dlx_mapped_region *region = source->regions; region && !is_former(c, source);
             region = region->next)
            region->word = NULL;
    }
    bool is_empty = filling.page.n_regions == 0; /* all of them have gone meanwhile */
    struct dlx_mapped_page none = {NULL, 0, 0};
    struct dlx_mapped_page before = dlx__mapped_set_page(c->mapped, is_empty ? none : filling.page);
    dlx__mapped_unlock(c->mapped);
    dlx__region_unmap(before.map, before.size);
    if (is_empty) {
        dlx__region_unmap(filling.page.map, filling.page.size);
        return 0;
    }
    return dlx__call_former_ready(c, filling.n.n_regions, filling.n.n_sources);
}

/* The caller has the lock. After a failure dlx__client_tell_former() tries again. */
static void tell_former(struct dlx_client *c)
{
    bool untold;
    if (!c->mapped || c->minor < DLX_FORMER_SINCE) {
        c->tells_former = true; /* the daemon cannot be told */
        return;
    }
    c->tells_former = false;
    struct count count = count_all(c, dlx__mapped_lock(c->mapped), &untold);
    dlx__mapped_unlock(c->mapped);
    /* After a failure the words stay in use: without an answer, the daemon may look at the page. */
    c->tells_former = count.n_regions == 0 || fill_and_show_page(c, count) == 0;
    if (count.n_regions == 0)
        forget_page(c);
    dlx__error_clear();
}

void dlx__client_tell_former(struct dlx_client *c)
{
    bool untold;
    if (!c->mapped || dlx__call_lock_within(c, DLX_CALL_HURRY_NS) < 0)
        return; /* the next object that comes tells it */
    struct count count = count_all(c, dlx__mapped_lock(c->mapped), &untold);
    dlx__mapped_unlock(c->mapped);
    if (count.n_regions > 0 && untold && c->minor >= DLX_FORMER_SINCE && c->sock >= 0)
        tell_former(c);
    dlx__lock_release(&c->lock);
}

/* ---- connect again ---------------------------------------------------------------------- */

static int connect_again(struct dlx_client *c, enum dlx_hurry hurry)
{
    c->next_try_ns = dlx__now_ns() + DLX_RECONNECT_NS;
    int r =
        dlx__call_open_within(c, hurry == DLX_HURRY_AT_ONCE ? c->timeout_ns : DLX_CALL_HURRY_NS);
    if (r == 0) {
        r = dlx__call_greet_within(
            c, c->name, hurry == DLX_HURRY_AT_ONCE ? c->timeout_ns : DLX_RECONNECT_PATIENCE_NS);
        if (r < 0)
            c->sock = dlx__close(c->sock);
    }
    if (r == 0) {
        c->next_try_ns = 0; /* if this daemon ends soon, too, the next one is found at once */
        atomic_fetch_add_explicit(&c->epoch, 1, memory_order_release);
        tell_former(c);
    }
    if (r == DLX_E_ACCESS) /* the daemon answers, and its rules change rarely */
        c->next_try_ns = dlx__now_ns() + DLX_LOOK_NS;
    return r;
}

int dlx__client_reconnect(struct dlx_client *c, uint64_t epoch, enum dlx_hurry hurry)
{
    int r = dlx__call_lock_within(c, hurry == DLX_HURRY_NOW_AND_THEN ? 0 : DLX_CALL_HURRY_NS);
    if (r < 0)
        return r;
    if (hurry == DLX_HURRY_NOW_AND_THEN && dlx__now_ns() < c->next_try_ns) {
        r = DLX_E_TIMEOUT;
    } else if (!dlx__socket_is_lost(c->sock)) {
        /* Another thread has made a new connection, or this one is not lost. */
        r = atomic_load_explicit(&c->epoch, memory_order_relaxed) != epoch ? 0 : DLX_E_IN_USE;
    } else {
        dlx__call_hear_goodbye(c);
        c->sock = dlx__close(c->sock);
        r = dlx__call_was_kicked(c) ? dlx__call_fail_kicked(c) : connect_again(c, hurry);
    }
    dlx__lock_release(&c->lock);
    return r;
}

int dlx__client_goodbye(struct dlx_client *c, char text[static DLX_ERROR_TEXT_SIZE])
{
    text[0] = '\0';
    if (dlx__call_lock_within(c, 0) < 0)
        return 0;
    dlx__call_hear_goodbye(c);
    int code = c->goodbye;
    if (code < 0)
        memcpy(text, c->goodbye_text, sizeof c->goodbye_text);
    dlx__lock_release(&c->lock);
    return code;
}

int dlx__client_ensure(struct dlx_client *c)
{
    if (dlx__forked(c->generation))
        return dlx__fail_forked(c->generation);
    int r = dlx__client_reconnect(c, atomic_load_explicit(&c->epoch, memory_order_acquire),
                                  DLX_HURRY_AT_ONCE);
    if (r == DLX_E_INTERRUPTED)
        return r;
    dlx__error_clear(); /* the call itself will say what is wrong */
    return 0;
}
