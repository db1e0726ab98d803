/* SPDX-License-Identifier: Apache-2.0 */

/* The charges that each user should have: sums over the model's objects. */

#include "ring/layout.h"
#include "daemon/users/share.h"
#include "daemon/users/user.h"
#include "tests/daemon/sim_daemon/sim.h"

static int user_of(const struct link *l)
{
    return l->sub->proc->user;
}

/* Would a look show that whatever was sent on it was read? */
static bool is_read(const struct link *l)
{
    const struct sub *s = l->sub;
    return s->sock < 0 || s->all_read == s->all_sent;
}

/* The user for whom the daemon looks for room; -1: none. */
static int looks = -1;

/* Where is this region among the drops that a link has yet to acknowledge? -1: not there. */
static int find_drop(const struct link *l, int region)
{
    for (int i = l->n_settled; i < l->n_drops; i++)
        if (l->drops[i].region == region)
            return i < l->first_drop && user_of(l) == looks && is_read(l) ? -1 : i;
    return -1;
}

/* Clients that have yet to be told come first. */
static uint64_t told(const struct link *l, int drop)
{
    return drop < 0 || drop >= l->first_drop ? 0 : l->drops[drop].told;
}

/* The first of its links that has yet to acknowledge that this region was dropped: the first that
 * was not told, or else that was told. If it is -1: the first of all. */
static const struct link *first_link(const struct pub *p, int region)
{
    const struct link *first = NULL;
    uint64_t since = 0;
    each_link (l) {
        if (l->pub != p)
            continue;
        int drop = region < 0 ? -1 : find_drop(l, region);
        if (region >= 0 && drop < 0)
            continue;
        uint64_t at = told(l, drop);
        if (!first || at < since || (at == since && l->id < first->id)) {
            first = l;
            since = at;
        }
    }
    return first;
}

/* The payer of a region: its owner, until that lets go of it. -1: none. */
static int payer_of(const struct pub *p, int region)
{
    bool dropped = region > 0 && p->r[region].gone;
    if (!dropped && p->state != PUB_GONE)
        return p->user;
    const struct link *first = first_link(p, dropped ? region : -1);
    return first ? user_of(first) : dropped ? -1 : p->user;
}

static uint64_t used_of_pub(const struct pub *p, int user, enum dlxd_resource resource)
{
    uint64_t n = 0;
    if (resource == DLXD_OBJECTS)
        return payer_of(p, 0) == user;
    bool stays = p->may_retain && p->state != PUB_GONE && p->user == user;
    for (int i = 0; resource == DLXD_RETAINED_BYTES && stays && i < p->n_r; i++)
        n += p->r[i].gone ? 0 : p->r[i].size;
    for (int i = 0; resource == DLXD_BYTES && i < p->n_r; i++)
        n += payer_of(p, i) == user ? p->r[i].size : 0;
    return n;
}

bool drain_has_left(const struct drain *drain)
{
    return drain->closed || drain->proc->pid != drain->pid || is_dead(drain->proc);
}

void drain_remove(int at)
{
    struct drain *drain = &w.drains[at];
    if (drain->counts) { /* its publisher is not told any more */
        drain->pub->leaves++;
        group_left(drain->pub, drain->group);
    }
    if (drain->reader)
        drain->reader->n_links -= drain->weight;
    if (drain->pub->proc)
        drain->pub->proc->n_links--;
    w.n_drains--;
    memmove(drain, drain + 1, (size_t)(w.n_drains - at) * sizeof *drain);
}

/* The model has made the same offers. The packets that the daemon has meanwhile dropped, or seen
 * read, freed room for none of the refused offers. */
void catch_up(void)
{
    w.is_behind = false;
    each_link (l)
        l->n_settled = l->n_landed;
    for (int i = w.n_drains; i-- > 0;)
        if (w.drains[i].let_go)
            drain_remove(i);
}

static uint64_t used_by_drain(const struct drain *drain, enum dlxd_resource resource)
{
    return resource == DLXD_LINKS ? 1 : resource == DLXD_BYTES ? drain->size : 0;
}

/* Of a publisher that has gone the regions are closed when all its links have been told
 * everything. */
bool regions_are_open(const struct pub *p)
{
    if (p->state != PUB_GONE)
        return true;
    each_link (l)
        if (l->pub == p && !l->gone_sent)
            return true;
    return false;
}

/* Of a connection that has ended, and of which links drain, the pidfd is kept once. */
bool is_last_of_its_process(int drain)
{
    int i = w.n_drains - 1;
    while (w.drains[i].connection != w.drains[drain].connection)
        i--;
    return i == drain && !w.drains[i].reader;
}

/* The membership page of its publishers: one is enough for as many as there can be. */
uint64_t n_pages(int user)
{
    each_pub (p)
        if (p->proc && p->user == user)
            return 1;
    return 0;
}

static uint64_t descriptors_of_pub(const struct pub *p, int user)
{
    uint64_t n = p->user == user && (p->proc || (p->dying && p->has_pidfd));
    for (int i = 0; i < p->n_r && regions_are_open(p); i++)
        n += !p->r[i].gone && payer_of(p, i) == user;
    return n;
}

/* Without sockets that the daemon has shut down, which are not read yet. */
uint64_t used_descriptors(int user)
{
    uint64_t n = n_pages(user);
    each_proc (c)
        if (c->connected && !c->refused && c->user == user)
            n += 2U + (c->waits != 0);
    each_pub (p)
        n += descriptors_of_pub(p, user);
    each_sub (s)
        n += s->proc->user == user;
    each_link (l)
        if ((l->pub || l->spare) && user_of(l) == user)
            n += 1U + (l->state == LINK_ADDED) + (l->state == LINK_ADDED && l->locked) +
                 l->has_claims;
    each_group(g) n += g->page != 0 && g->user == user ? 2 : 0; /* and its bell */
    for (int i = 0; i < w.n_waiters; i++)
        n += w.waiters[i].user == user ? 3 : 0;
    for (int i = 0; i < w.n_drains; i++)
        n += w.drains[i].user == user ? 1U + is_last_of_its_process(i) : 0;
    return n + former_descriptors(user);
}

uint64_t used(int user, enum dlxd_resource resource)
{
    uint64_t n = resource == DLXD_BYTES ? n_pages(user) * DLX_PAGE + former_page_bytes(user) : 0;
    each_pub (p)
        n += used_of_pub(p, user, resource);
    each_sub (s) {
        if (s->proc->user == user)
            n += resource == DLXD_OBJECTS || (resource == DLXD_PATTERNS && strchr(s->topic, '*'));
    }
    each_link (l) {
        if (l->sub->proc->user != user)
            continue;
        n += resource == DLXD_FAILED && l->state == LINK_FAILED;
        if (!l->pub && !l->spare)
            continue;
        n += resource == DLXD_LINKS;
        n += resource == DLXD_BYTES ? dlx_shm_link_size(l->sub->max_held) : 0;
    }
    each_group(g) if (resource == DLXD_BYTES && g->page != 0 && g->user == user) n +=
        dlx_shm_claims_size(g->pub->n_entries);
    each_proc (c)
        n += resource == DLXD_CONNECTIONS && c->connected && !c->refused && c->user == user;
    for (int i = 0; i < w.n_waiters; i++)
        n += resource == DLXD_PENDING_JOINS && w.waiters[i].user == user;
    for (int i = 0; i < w.n_drains; i++)
        if (w.drains[i].user == user)
            n += used_by_drain(&w.drains[i], resource);
    return n;
}

uint64_t used_all(void)
{
    uint64_t n = 0;
    for (int user = 0; user < USERS; user++)
        n += used(user, DLXD_BYTES);
    return n;
}

static bool share_fits(int user, uint64_t size)
{
    uint64_t left = w.max_all - used_all();
    return size <= left && (used(user, DLXD_BYTES) + size) / DLXD_BYTES_SHARE <= left - size;
}

/* Counts the links that stay, for the limit that one more link would meet. */
static uint32_t n_links_that_stay(const struct proc *c)
{
    uint32_t n = c->n_links;
    for (int i = 0; i < w.n_drains; i++) {
        const struct drain *l = &w.drains[i];
        if (drain_has_left(l))
            n -= (l->reader == c ? l->weight : 0) + (uint32_t)(l->pub->proc == c);
    }
    return n;
}

static bool has_room(const struct proc *c, uint32_t n)
{
    return n_links_that_stay(c) + n <= c->max_links;
}

/* Of a publisher of another user: at most 3 times what is left. */
static bool has_share(const struct proc *reader, const struct pub *p)
{
    const struct proc *writer = p->proc;
    uint32_t n = 1;
    if (reader->user == writer->user)
        return true;
    each_link (l)
        n += l->pub && l->pub->proc == p->proc && l->sub->proc->user == reader->user;
    for (const struct drain *l = w.drains; l < w.drains + w.n_drains; l++)
        n += l->pub->proc == p->proc && l->user == reader->user && !drain_has_left(l);
    return n <= DLXD_SHARE_OF_LEFT * (writer->max_links - n_links_that_stay(writer) - 1);
}

bool clients_have_room(const struct sub *s, const struct pub *p)
{
    return has_room(s->proc, weight_of(s)) &&
           (!p->proc || (has_room(p->proc, 1) && has_share(s->proc, p)));
}

bool bytes_fit(int user, uint64_t size)
{
    return used(user, DLXD_BYTES) + size <= w.max[DLXD_BYTES] && share_fits(user, size);
}

static bool fits(int user, uint64_t size)
{
    return used(user, DLXD_LINKS) < w.max[DLXD_LINKS] && bytes_fit(user, size);
}

bool bytes_fit_after_look(int user, uint64_t size)
{
    looks = user;
    bool r = bytes_fit(user, size);
    looks = -1;
    return r;
}

bool retained_bytes_fit(int user, bool stays, uint64_t size)
{
    return !stays || size <= w.max[DLXD_RETAINED_BYTES] - DLX_MIN(used(user, DLXD_RETAINED_BYTES),
                                                                  w.max[DLXD_RETAINED_BYTES]);
}

/* For a user without room the daemon checks which packets were read, and which links have left
 * meanwhile: these take up room for other users, too. */
bool user_has_room(int user, uint64_t size)
{
    if (fits(user, size))
        return true;
    each_link (l) {
        if (user_of(l) == user)
            l->n_settled = l->n_landed;
    }
    looks = user;
    bool r = fits(user, size);
    for (int i = w.n_drains; !r && i-- > 0;)
        if (w.drains[i].user == user && drain_has_left(&w.drains[i]))
            drain_remove(i);
    r = fits(user, size);
    looks = -1;
    return r;
}
