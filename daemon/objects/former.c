/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/former.h"
#include "common/amount.h"
#include "common/error.h"
#include "common/memory.h"
#include "daemon/base/log.h"
#include "daemon/base/worker.h"
#include "daemon/memory/report.h"
#include "daemon/objects/connection.h"
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The part of the time that scans may take (1/16). */
#define LOOK_PART 16U
/* The most words of one user that one scan checks. Each takes about 5 ns. */
#define LOOK_MOST 16384U
/* What one user's clients may say that they keep, in bytes: sums do not overflow. */
#define TOLD_MOST (UINT64_C(1) << 60)

struct region {
    struct dlxd_idmap_node by_key;
    struct dlxd_list node;   /* in former->regions */
    struct dlxd_list claims; /* the payer is first */
    struct dlxd_former *former;
    uint64_t number;
    struct dlxd_user *payer; /* NULL: this daemon has it in its books */
    uint64_t bytes;          /* charged to the payer */
};

struct claim {
    struct dlxd_list node; /* in region->claims */
    struct region *region; /* NULL: the client has let go of it */
    struct dlxd_former_source *source;
    uint64_t bytes;
};

struct dlxd_former_page {
    struct dlxd_list node; /* READY: in user->former_pages */
    struct dlxd_broker *broker;
    struct dlxd_holder *holder;
    struct dlxd_charge charge; /* of the page */
    int fd;
    uint32_t max_regions, max_sources;
    uint32_t n_claims, n_sources; /* 0: ASKED */
    uint32_t n_left;              /* claims */
    struct claim *claims;
    struct dlxd_former_source *sources;
};

const struct dlxd_holder *dlxd_former_holder(const struct dlxd_former_page *page)
{
    return page->holder;
}

uid_t dlxd_former_uid(const struct dlxd_former_page *page)
{
    return page->charge.user->uid;
}

/* ---- keys ---------------------------------------------------------------------------------- */

/* A bijection (splitmix64), so that different numbers have different keys. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static uint64_t key_of(const struct dlxd_registry *registry, const char *topic, uint64_t publisher)
{
    uint64_t key = mix(registry->former_secret ^ publisher);
    for (const char *c = topic; *c; c++)
        key = mix(key + (unsigned char)*c);
    return key;
}

/* Compares the names, too: two publishers may have the same key, though none can be aimed at. */
static struct dlxd_former *find(const struct dlxd_registry *registry, const char *topic,
                                uint64_t publisher, uint64_t key)
{
    struct dlxd_idmap_node *node = dlxd_idmap_find(&registry->former_keys, key);
    struct dlxd_former *former = node ? dlxd_container_of(node, struct dlxd_former, by_key) : NULL;
    return former && former->publisher == publisher && strcmp(former->topic, topic) == 0 ? former
                                                                                         : NULL;
}

/* ---- what is left of one publisher --------------------------------------------------------- */

static struct dlxd_former *former_get(struct dlxd_registry *registry, const char *topic,
                                      uint64_t publisher)
{
    uint64_t key = key_of(registry, topic, publisher);
    struct dlxd_former *former = find(registry, topic, publisher, key);
    if (former)
        return former;
    former = calloc(1, sizeof *former);
    if (!former) {
        (void)dlx__fail(DLX_E_NO_MEMORY, "out of memory for a former publisher of %s", topic);
        return NULL;
    }
    former->registry = registry;
    former->publisher = publisher;
    former->gone = ++registry->last_gone;
    dlxd_list_init(&former->regions);
    dlxd_list_init(&former->sources);
    dlxd_idmap_init(&former->region_keys);
    (void)snprintf(former->topic, sizeof former->topic, "%s", topic);
    dlxd_idmap_add(&registry->former_ids, &former->by_id, ++registry->last_publisher);
    dlxd_idmap_add(&registry->former_keys, &former->by_key, key);
    dlxd_list_push_back(&registry->formers, &former->node);
    return former;
}

static void former_free_if_over(struct dlxd_former *former)
{
    if (!dlxd_list_empty(&former->regions) || !dlxd_list_empty(&former->sources))
        return;
    dlxd_idmap_remove(&former->registry->former_ids, &former->by_id);
    dlxd_idmap_remove(&former->registry->former_keys, &former->by_key);
    dlxd_list_remove(&former->node);
    dlxd_idmap_deinit(&former->region_keys);
    free(former);
}

/* ---- regions ------------------------------------------------------------------------------- */

static bool is_arena(const struct region *region)
{
    return region->number > 0 && region->number < DLX_SHM_FORMER_CLAIMS;
}

static bool has_claims_page(struct dlxd_publisher *publisher, uint64_t number)
{
    dlx_for_each (it, &publisher->groups) {
        int fd = dlxd_container_of(it, struct dlxd_group, node)->page_fd;
        if (fd >= 0 && dlx_shm_former_claims(dlx__region_inode(fd)) == number)
            return true;
    }
    return false;
}

static bool publisher_has(struct dlxd_publisher *publisher, uint64_t number)
{
    uint32_t id = (uint32_t)number;
    if (number >= DLX_SHM_FORMER_CLAIMS)
        return has_claims_page(publisher, number);
    return number == 0 || (number <= UINT32_MAX && (dlxd_arenas_find(&publisher->ready, id) ||
                                                    dlxd_arenas_find(&publisher->dropped, id)));
}

/* Does this daemon have it in its books? */
static bool is_covered(const struct region *region)
{
    const struct dlxd_former *former = region->former;
    const struct dlxd_registry *registry = former->registry;
    if (region->number >= DLX_SHM_FORMER_REST)
        return false;
    if (region->number >= DLX_SHM_FORMER_LINK)
        return region->number - DLX_SHM_FORMER_LINK > registry->first_id;
    struct dlxd_idmap_node *node = dlxd_idmap_find(&registry->publishers, former->publisher);
    if (!node)
        node = dlxd_idmap_find(&registry->gone_publishers, former->publisher);
    if (!node)
        return false;
    struct dlxd_publisher *publisher = dlxd_container_of(node, struct dlxd_publisher, by_id);
    return strcmp(publisher->topic_name, former->topic) == 0 &&
           publisher_has(publisher, region->number);
}

static void add_bytes(struct region *region, uint64_t bytes) /* modulo 2^64 */
{
    *(is_arena(region) ? &region->former->arena_bytes : &region->former->other_bytes) += bytes;
    region->payer->former_bytes += bytes;
    region->bytes += bytes;
}

static void stop_paying(struct region *region)
{
    if (!region->payer)
        return;
    add_bytes(region, -region->bytes);
    region->former->n_arenas -= is_arena(region);
    region->payer = dlxd_user_unref(region->payer);
}

/* Charges the user of the first claim. A region that this daemon covers has no payer. */
static void region_settle(struct region *region)
{
    stop_paying(region);
    if (dlxd_list_empty(&region->claims) || is_covered(region))
        return;
    const struct claim *first = dlxd_container_of(region->claims.next, struct claim, node);
    region->payer = dlxd_user_ref(first->source->page->charge.user);
    region->former->n_arenas += is_arena(region);
    add_bytes(region, first->bytes);
}

static struct region *region_get(struct dlxd_former *former, uint64_t number)
{
    uint64_t key = mix(former->registry->former_secret ^ number);
    struct dlxd_idmap_node *node = dlxd_idmap_find(&former->region_keys, key);
    if (node)
        return dlxd_container_of(node, struct region, by_key);
    struct region *region = calloc(1, sizeof *region);
    if (!region) {
        (void)dlx__fail(DLX_E_NO_MEMORY, "out of memory for a former region of %s", former->topic);
        return NULL;
    }
    region->former = former;
    region->number = number;
    dlxd_list_init(&region->claims);
    dlxd_idmap_add(&former->region_keys, &region->by_key, key);
    dlxd_list_push_back(&former->regions, &region->node);
    former->n_regions++;
    return region;
}

static void region_free_if_over(struct region *region)
{
    if (!dlxd_list_empty(&region->claims))
        return;
    stop_paying(region);
    dlxd_idmap_remove(&region->former->region_keys, &region->by_key);
    dlxd_list_remove(&region->node);
    region->former->n_regions--;
    free(region);
}

void dlxd_former_uncover(struct dlxd_broker *broker, const char *topic, uint64_t publisher)
{
    const struct dlxd_registry *registry = &broker->registry;
    if (dlxd_list_empty(&registry->formers))
        return;
    struct dlxd_former *former =
        find(registry, topic, publisher, key_of(registry, topic, publisher));
    if (!former)
        return;
    dlx_for_each (it, &former->regions)
        region_settle(dlxd_container_of(it, struct region, node));
}

/* ---- claims -------------------------------------------------------------------------------- */

static void source_end(struct dlxd_former_source *source)
{
    struct dlxd_former *former = source->former;
    if (!former || source->n_claims > 0)
        return;
    dlxd_list_remove(&source->node);
    source->former = NULL;
    former_free_if_over(former);
}

/* The client maps so many bytes of it now, which is less than before. */
static void claim_shrink(struct claim *claim, uint64_t bytes)
{
    struct region *region = claim->region;
    struct dlxd_former_source *source = claim->source;
    bool pays = region->payer && region->claims.next == &claim->node;
    source->bytes -= claim->bytes - bytes;
    source->page->charge.user->former_bytes_told -= claim->bytes - bytes;
    if (bytes > 0 && pays)
        add_bytes(region, bytes - claim->bytes);
    claim->bytes = bytes;
    if (bytes > 0)
        return;
    claim->region = NULL;
    source->page->n_left--;
    source->n_claims--;
    dlxd_list_remove(&claim->node);
    if (pays)
        region_settle(region);
    region_free_if_over(region);
    source_end(source);
}

static int claim_begin(struct claim *claim, struct dlxd_former_source *source, uint64_t number,
                       uint64_t bytes)
{
    struct region *region = region_get(source->former, number);
    if (!region)
        return DLX_E_NO_MEMORY;
    *claim = (struct claim){.region = region, .source = source, .bytes = bytes};
    dlxd_list_init(&claim->node);
    bool is_first = dlxd_list_empty(&region->claims) || source->is_publisher;
    if (is_first)
        dlxd_list_push_front(&region->claims, &claim->node);
    else
        dlxd_list_push_back(&region->claims, &claim->node);
    source->n_claims++;
    source->bytes += bytes;
    source->page->n_left++;
    source->page->charge.user->former_bytes_told += bytes;
    if (is_first)
        region_settle(region);
    return 0;
}

/* ---- pages --------------------------------------------------------------------------------- */

static void former_page_free(struct dlxd_former_page *page)
{
    struct dlxd_holder *holder = page->holder;
    for (uint32_t i = 0; i < page->n_claims; i++)
        if (page->claims[i].region)
            claim_shrink(&page->claims[i], 0);
    for (uint32_t i = 0; i < page->n_sources; i++)
        source_end(&page->sources[i]); /* the page was not filled */
    free(page->claims);
    free(page->sources);
    dlxd_list_remove(&page->node);
    page->broker->registry.n_former_pages--;
    (void)dlxd_workers_close(page->broker->workers, page->charge.user, page->fd);
    dlxd_charge_deinit(&page->charge);
    if (holder->former == page)
        holder->former = NULL;
    else
        holder->former_asked = NULL;
    free(page);
    dlxd_holder_release(holder);
}

int dlxd_former_new(struct dlxd_client *client, uint32_t n_regions, uint32_t n_sources,
                    uint64_t *ret_size, int *ret_writer_fd)
{
    struct dlxd_broker *broker = client->broker;
    uint64_t size = dlx_shm_former_size(n_regions, n_sources);
    struct dlxd_former_page *page = calloc(1, sizeof *page);
    if (!page)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for a former page");
    int r = dlxd_charge_init(&page->charge, client->user, DLXD_BYTES, size);
    if (r == 0)
        r = dlx__region_new(broker->memory, "dlx-former", size, &page->fd, ret_writer_fd);
    if (r < 0) {
        dlxd_charge_deinit(&page->charge);
        free(page);
        return dlx__fail_prefix(r, "former page");
    }
    if (client->holder->former_asked)
        former_page_free(client->holder->former_asked);
    page->broker = broker;
    page->holder = client->holder;
    page->max_regions = n_regions;
    page->max_sources = n_sources;
    dlxd_list_init(&page->node);
    broker->registry.n_former_pages++;
    client->holder->former_asked = page;
    *ret_size = size;
    return 0;
}

static int page_check(const struct dlxd_former_page *page, const struct dlxd_former_report *report,
                      uint32_t n_regions, uint32_t n_sources)
{
    uint64_t sum = page->charge.user->former_bytes_told;
    for (uint32_t i = 0; i < n_sources; i++)
        if (dlx__topic_check_any(report->sources[i].topic) < 0)
            return dlx__fail_prefix(DLX_E_PROTOCOL, "source %u of a former page", i);
    for (uint32_t i = 0; i < n_regions; i++) {
        if (report->regions[i].source >= n_sources)
            return dlx__fail(DLX_E_PROTOCOL, "region %u of a former page is of source %u (of %u)",
                             i, report->regions[i].source, n_sources);
        if (__builtin_add_overflow(sum, report->bytes[i], &sum) || sum > TOLD_MOST)
            return dlx__fail(DLX_E_LIMIT, "clients of uid %u say that they keep more than %s",
                             (unsigned)page->charge.user->uid, DLX_AMOUNT(TOLD_MOST));
    }
    return 0;
}

static int page_fill(struct dlxd_former_page *page, const struct dlxd_former_report *report,
                     uint32_t n_regions, uint32_t n_sources)
{
    struct dlxd_registry *registry = &page->broker->registry;
    page->claims = calloc(n_regions, sizeof *page->claims);
    page->sources = calloc(n_sources, sizeof *page->sources);
    if (!page->claims || !page->sources)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for %u former regions", n_regions);
    for (; page->n_sources < n_sources; page->n_sources++) {
        const struct dlx_shm_former_source *from = &report->sources[page->n_sources];
        struct dlxd_former_source *source = &page->sources[page->n_sources];
        dlxd_list_init(&source->node);
        source->page = page;
        source->is_publisher = from->is_publisher != 0;
        source->former = former_get(registry, from->topic, from->publisher);
        if (!source->former)
            return DLX_E_NO_MEMORY;
        source->id = ++registry->last_former_source;
        dlxd_list_push_back(&source->former->sources, &source->node);
    }
    for (; page->n_claims < n_regions; page->n_claims++) {
        const struct dlx_shm_former_region *from = &report->regions[page->n_claims];
        if (report->bytes[page->n_claims] > 0 &&
            claim_begin(&page->claims[page->n_claims], &page->sources[from->source], from->region,
                        report->bytes[page->n_claims]) < 0)
            return DLX_E_NO_MEMORY;
    }
    for (uint32_t i = 0; i < n_sources; i++)
        source_end(&page->sources[i]); /* one without regions */
    return 0;
}

static void page_log(const struct dlxd_former_page *page, const struct dlxd_client *client)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < page->n_claims; i++)
        sum += page->claims[i].bytes;
    dlxd_log_client(dlxd_principal_number(client->principal), DLXD_LOG_INFO,
                    "%s (pid %d) keeps %s in %u regions from before this connection", client->name,
                    (int)client->pid, DLX_AMOUNT(sum), page->n_left);
}

int dlxd_former_ready(struct dlxd_client *client, uint32_t n_regions, uint32_t n_sources)
{
    static struct dlxd_former_report report; /* too large for the stack; the loop's thread alone */
    struct dlxd_holder *holder = client->holder;
    struct dlxd_former_page *page = holder->former_asked;
    int r = 0;
    if (!page)
        return dlx__fail(DLX_E_NOT_FOUND, "%s (pid %d) has asked for no former page", client->name,
                         (int)client->pid);
    if (n_regions == 0 || n_regions > page->max_regions || n_sources == 0 ||
        n_sources > page->max_sources)
        r = dlx__fail(DLX_E_PROTOCOL,
                      "former page with %u regions of %u sources; there is room for %u of %u",
                      n_regions, n_sources, page->max_regions, page->max_sources);
    else if (!dlxd_report_former(page->fd, page->max_regions, n_regions, n_sources, &report))
        r = dlx__fail(DLX_E_PROTOCOL, "former page: it is incomplete");
    if (r == 0)
        r = page_check(page, &report, n_regions, n_sources);
    if (r == 0)
        r = page_fill(page, &report, n_regions, n_sources);
    if (r < 0) {
        former_page_free(page);
        return r;
    }
    page_log(page, client);
    if (holder->former)
        former_page_free(holder->former);
    holder->former = page;
    holder->former_asked = NULL;
    dlxd_list_push_back(&page->charge.user->former_pages, &page->node);
    if (page->n_left == 0)
        former_page_free(page);
    return 0;
}

void dlxd_former_disconnected(struct dlxd_holder *holder)
{
    if (holder->former_asked)
        former_page_free(holder->former_asked);
    if (holder->former && dlxd_process_is_dead(holder->pidfd))
        former_page_free(holder->former);
}

/* Frees it if nothing is left. */
static void page_look(struct dlxd_former_page *page)
{
    const uint64_t *bytes = dlxd_process_is_dead(page->holder->pidfd)
                                ? NULL
                                : dlxd_report_former_bytes(page->fd, page->n_claims);
    for (uint32_t i = 0; bytes && i < page->n_claims; i++)
        if (page->claims[i].region && bytes[i] < page->claims[i].bytes)
            claim_shrink(&page->claims[i], bytes[i]);
    if (!bytes || page->n_left == 0)
        former_page_free(page);
}

void dlxd_former_look(struct dlxd_user *user)
{
    struct dlxd_list *list = &user->former_pages, *last = list->prev;
    uint64_t start = dlx__now_ns();
    if (dlxd_list_empty(list) || start < user->former_look_ns)
        return;
    (void)dlxd_user_ref(user); /* its pages may be all that it has */
    for (int64_t n = LOOK_MOST; n > 0 && !dlxd_list_empty(list);) {
        struct dlxd_list *first = list->next;
        struct dlxd_former_page *page = dlxd_container_of(first, struct dlxd_former_page, node);
        bool all = first == last;
        n -= page->n_claims;
        dlxd_list_remove(first);
        dlxd_list_push_back(list, first);
        page_look(page);
        if (all)
            break;
    }
    user->former_look_ns = start + (LOOK_PART + 1) * (dlx__now_ns() - start);
    dlxd_user_unref(user);
}

void dlxd_former_look_all(struct dlxd_broker *broker)
{
    if (broker->registry.n_former_pages == 0)
        return;
    dlx_for_each (it, &broker->users.users)
        dlxd_former_look(dlxd_container_of(it, struct dlxd_user, node));
}

void dlxd_former_clear(struct dlxd_broker *broker)
{
    dlx_for_each (it, &broker->users.users) {
        struct dlxd_user *user = dlxd_user_ref(dlxd_container_of(it, struct dlxd_user, node));
        while (!dlxd_list_empty(&user->former_pages))
            former_page_free(
                dlxd_container_of(user->former_pages.next, struct dlxd_former_page, node));
        dlxd_user_unref(user);
    }
}
