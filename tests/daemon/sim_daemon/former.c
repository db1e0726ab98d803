/* SPDX-License-Identifier: Apache-2.0 */

/* Former pages: what clients say that they keep of earlier daemons, and who pays for it. */

#include "daemon/objects/former.h"
#include "ring/layout.h"
#include "tests/daemon/sim_daemon/sim.h"

enum { PAGES = 10, AT_ONCE = 3 };

struct claim {
    uint64_t publisher, number;
    char topic[40];
    bool is_publisher;
    uint64_t bytes;   /* as the daemon has seen; 0: it has ended */
    uint64_t written; /* in the page */
    uint64_t order;   /* among all claims */
};

struct page {
    bool is_ready;
    struct proc *proc; /* NULL: its connection has ended */
    uint32_t connection;
    struct proc *owner; /* its process, while the pid is this one */
    int pid, user, fd;
    uint64_t size;
    int n;
    struct claim claims[AT_ONCE];
};

static struct page pages[PAGES];
static int n_pages_kept;
static uint64_t last_order;

static void remove_page(struct page *page)
{
    close(page->fd);
    n_pages_kept--;
    memmove(page, page + 1, (size_t)(pages + n_pages_kept - page) * sizeof *page);
}

static bool has_died(const struct page *page)
{
    return page->owner->pid != page->pid || is_dead(page->owner);
}

static struct page *page_of(const struct proc *c, bool is_ready)
{
    for (struct page *page = pages; page < pages + n_pages_kept; page++)
        if (page->proc == c && page->is_ready == is_ready)
            return page;
    return NULL;
}

/* ---- what follows -------------------------------------------------------------------------- */

static bool same(const struct claim *a, const struct claim *b)
{
    return a->publisher == b->publisher && a->number == b->number &&
           strcmp(a->topic, b->topic) == 0;
}

static bool pays_before(const struct claim *a, const struct claim *b)
{
    if (a->is_publisher != b->is_publisher)
        return a->is_publisher;
    return a->is_publisher ? a->order > b->order : a->order < b->order;
}

static bool pub_has(const struct pub *p, uint64_t number)
{
    each_group(g) if (g->pub == p && g->page != 0 &&
                      dlx_shm_former_claims(g->page) == number) return true;
    for (int i = 0; i < p->n_r; i++) {
        if (p->r[i].id != number)
            continue;
        bool remembered = false;
        each_link (l)
            for (int k = l->n_landed; l->pub == p && k < l->n_drops; k++)
                remembered |= l->drops[k].region == i;
        return i == 0 || region_is_ready(p, i) || remembered;
    }
    return false;
}

static bool is_known(const struct claim *claim)
{
    each_pub (p)
        if (p->id == claim->publisher && strcmp(p->topic, claim->topic) == 0)
            return pub_has(p, claim->number);
    return false;
}

static bool pays(const struct claim *claim)
{
    if (claim->bytes == 0 || is_known(claim))
        return false;
    for (const struct page *page = pages; page < pages + n_pages_kept; page++)
        for (int i = 0; i < page->n; i++) {
            const struct claim *other = &page->claims[i];
            if (other->bytes > 0 && other != claim && same(other, claim) &&
                pays_before(other, claim))
                return false;
        }
    return true;
}

uint64_t former_bytes(int user)
{
    uint64_t n = 0;
    for (const struct page *page = pages; page < pages + n_pages_kept; page++)
        for (int i = 0; page->user == user && i < page->n; i++)
            n += pays(&page->claims[i]) ? page->claims[i].bytes : 0;
    return n;
}

uint64_t former_page_bytes(int user)
{
    uint64_t n = 0;
    for (const struct page *page = pages; page < pages + n_pages_kept; page++)
        n += page->user == user ? page->size : 0;
    return n;
}

static bool has_drains(const struct page *page)
{
    for (int i = 0; i < w.n_drains; i++)
        if (w.drains[i].connection == page->connection)
            return true;
    return false;
}

/* Of a connection that has ended, the pidfd is kept, once. -1: of all users. */
uint64_t former_descriptors(int user)
{
    uint64_t n = 0;
    for (const struct page *page = pages; page < pages + n_pages_kept; page++)
        if (user < 0 || page->user == user)
            n += 1U + (!page->proc && !has_drains(page));
    return n;
}

int former_n_pages(void)
{
    return n_pages_kept;
}

/* ---- what happens -------------------------------------------------------------------------- */

void former_looked(int user)
{
    for (struct page *page = pages + n_pages_kept; page-- > pages;) {
        if (!page->is_ready || (user >= 0 && page->user != user))
            continue;
        bool any = false;
        for (int i = 0; i < page->n; i++) {
            page->claims[i].bytes = DLX_MIN(page->claims[i].bytes, page->claims[i].written);
            any |= page->claims[i].bytes > 0;
        }
        if (!any || has_died(page))
            remove_page(page);
    }
}

void former_client_gone(const struct proc *c)
{
    struct page *page = page_of(c, false);
    if (page)
        remove_page(page);
    page = page_of(c, true);
    if (page && is_dead(c))
        remove_page(page);
    else if (page)
        page->proc = NULL;
}

void former_forget(void)
{
    while (n_pages_kept > 0)
        remove_page(&pages[n_pages_kept - 1]);
}

static struct dlxd_client *client_of(const struct proc *c)
{
    dlx_for_each (it, &w.broker.clients) {
        struct dlxd_client *client = dlxd_container_of(it, struct dlxd_client, node);
        if (w.fds[client->fd].of == c && client->state == DLXD_CLIENT_OPEN)
            return client;
    }
    return NULL;
}

static bool is_lack(int r)
{
    return w.faults > 0 && (r == DLX_E_NO_MEMORY || r == DLX_E_FD_LIMIT);
}

static void ask_for_page(struct proc *c, struct dlxd_client *client)
{
    uint64_t size = dlx_shm_former_size(AT_ONCE, AT_ONCE), got;
    bool fits = bytes_fit(c->user, size);
    int fd;
    if (n_pages_kept == PAGES)
        return;
    w.inside = true;
    w.faults = 0;
    int r = dlxd_former_new(client, AT_ONCE, AT_ONCE, &got, &fd);
    w.inside = false;
    MUST(is_lack(r) || r == (fits ? 0 : DLX_E_LIMIT), "a former page: %s", dlx__error_message());
    w.faults = 0;
    if (r < 0)
        return;
    MUST(got == size, "a former page of %ju bytes", got);
    struct page *before = page_of(c, false);
    if (before)
        remove_page(before);
    pages[n_pages_kept++] = (struct page){.proc = c,
                                          .connection = c->connection,
                                          .owner = c,
                                          .pid = c->pid,
                                          .user = c->user,
                                          .fd = fd,
                                          .size = size};
}

/* Of a publisher that the daemon may know, or of one that it never knew. */
static struct claim any_claim(void)
{
    const struct pub *p = &w.pubs[rnd(PUBS)];
    struct claim claim = {
        .publisher = 11 + rnd(2), .number = rnd(3), .topic = "a", .is_publisher = one_in(2)};
    if (p->used && one_in(2)) {
        claim.publisher = p->id;
        claim.number = 1000; /* which it never has */
        (void)snprintf(claim.topic, sizeof claim.topic, "%s", one_in(6) ? "x" : p->topic);
        int k = (int)rnd((uint32_t)p->n_r);
        if (k == 0 || region_is_ready(p, k))
            claim.number = p->r[k].id;
        each_group(g) if (g->pub == p && g->page != 0 && one_in(2)) claim.number =
            dlx_shm_former_claims(g->page);
    }
    claim.bytes = claim.written = DLX_PAGE * (1 + rnd(4));
    return claim;
}

static void put(const struct page *page, const void *what, size_t size, uint64_t at)
{
    MUST(pwrite(page->fd, what, size, (off_t)at) == (ssize_t)size, "pwrite: %m");
}

static void fill(struct page *page)
{
    page->n = 1 + (int)rnd(AT_ONCE);
    for (int i = 0; i < page->n; i++) {
        struct claim *claim = &page->claims[i];
        *claim = any_claim();
        const struct dlx_shm_former_region region = {.region = claim->number,
                                                     .source = (uint32_t)i};
        struct dlx_shm_former_source source = {.publisher = claim->publisher,
                                               .is_publisher = claim->is_publisher};
        memcpy(source.topic, claim->topic, sizeof claim->topic);
        put(page, &claim->written, sizeof claim->written, (uint64_t)i * sizeof claim->written);
        put(page, &region, sizeof region,
            dlx_shm_former_regions_at(AT_ONCE) + (uint64_t)i * sizeof region);
        put(page, &source, sizeof source,
            dlx_shm_former_sources_at(AT_ONCE) + (uint64_t)i * sizeof source);
    }
}

static void page_is_ready(struct proc *c, struct dlxd_client *client, struct page *page)
{
    fill(page);
    uint32_t n = (uint32_t)page->n;
    int n_claims = page->n;
    page->n = 0; /* not yet */
    w.inside = true;
    w.faults = 0;
    int r = dlxd_former_ready(client, n, n);
    w.inside = false;
    MUST(r == 0 || is_lack(r), "a former page: %s", dlx__error_message());
    w.faults = 0;
    if (r < 0) {
        remove_page(page);
        return;
    }
    w.counts[19]++;
    for (int i = 0; i < n_claims; i++)
        page->claims[i].order = ++last_order;
    page->n = n_claims;
    struct page *before = page_of(c, true);
    page->is_ready = true;
    if (before)
        remove_page(before);
}

static void let_go(void)
{
    if (n_pages_kept == 0)
        return;
    struct page *page = &pages[rnd((uint32_t)n_pages_kept)];
    if (!page->is_ready)
        return;
    uint32_t i = rnd((uint32_t)page->n);
    struct claim *claim = &page->claims[i];
    claim->written = one_in(4) ? claim->written / 2 : 0;
    put(page, &claim->written, sizeof claim->written, i * sizeof claim->written);
}

void former_step(struct proc *c)
{
    struct dlxd_client *client = c->connected && !c->hung_up ? client_of(c) : NULL;
    struct page *asked = client ? page_of(c, false) : NULL;
    if (!client || one_in(3))
        let_go();
    else if (!asked || one_in(5))
        ask_for_page(c, client);
    else
        page_is_ready(c, client, asked);
}

void former_check(void)
{
    static const uid_t uids[USERS] = {500, 0, 1001};
    uint64_t has[USERS] = {0}, all = 0;
    dlx_for_each (it, &w.broker.users.users) {
        const struct dlxd_user *u = dlxd_container_of(it, struct dlxd_user, node);
        for (int user = 0; user < USERS; user++)
            if (u->uid == uids[user])
                has[user] = u->former_bytes;
    }
    for (int user = 0; user < USERS; user++) {
        uint64_t n = former_bytes(user);
        MUST(has[user] == n, "user %d keeps %ju bytes of former daemons, expected %ju", user,
             has[user], n);
        all += n;
    }
    MUST(dlxd_users_former_bytes(&w.broker.users) == all, "%ju bytes of former daemons", all);
    MUST(w.broker.registry.n_former_pages == (size_t)n_pages_kept, "%zu former pages",
         w.broker.registry.n_former_pages);
    MUST(n_pages_kept > 0 || dlxd_list_empty(&w.broker.registry.formers),
         "a former publisher is left");
}
