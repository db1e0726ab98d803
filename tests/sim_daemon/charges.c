/* SPDX-License-Identifier: Apache-2.0 */

/* What each user should be charged: sums over what there is. */

#include "ring/layout.h"
#include "daemon/users/share.h"
#include "daemon/users/user.h"
#include "tests/sim_daemon/sim.h"
#include <string.h>

static int user_of(const struct link *l)
{
    return w.procs[w.subs[l->sub].proc].user;
}

/* The first of its links that has yet to be told that this region was dropped, or if it is -1:
 * the first of all. */
static const struct link *first_link(const struct pub *p, int region)
{
    const struct link *first = NULL;
    for (const struct link *l = w.links; l < w.links + LINKS; l++) {
        bool is_due = region < 0;
        for (int i = l->first_drop; i < l->n_drops; i++)
            is_due |= l->drops[i] == region;
        if (l->used && l->pub == p - w.pubs && is_due && (!first || l->id < first->id))
            first = l;
    }
    return first;
}

/* Who pays for it: its owner, until that lets go of it. -1: nobody. */
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
    for (int i = 0; resource == DLXD_BYTES && i < p->n_r; i++)
        n += payer_of(p, i) == user ? p->r[i].size : 0;
    return n;
}

bool lingerer_has_left(const struct lingerer *lingerer)
{
    return lingerer->closed || w.procs[lingerer->proc].pid != lingerer->pid ||
           is_dead(lingerer->proc);
}

void lingerer_remove(int at)
{
    struct lingerer *lingerer = &w.lingerers[at];
    if (lingerer->reader >= 0)
        w.procs[lingerer->reader].n_links--;
    if (w.pubs[lingerer->pub].proc >= 0)
        w.procs[w.pubs[lingerer->pub].proc].n_links--;
    w.n_lingerers--;
    memmove(lingerer, lingerer + 1, (size_t)(w.n_lingerers - at) * sizeof *lingerer);
}

/* Those that the daemon has let go since the request came. */
void lingerers_remove_let_go(void)
{
    for (int i = w.n_lingerers; i-- > 0;)
        if (w.lingerers[i].let_go)
            lingerer_remove(i);
}

static uint64_t used_by_lingerer(const struct lingerer *lingerer, enum dlxd_resource resource)
{
    return resource == DLXD_LINKS ? 1 : resource == DLXD_BYTES ? lingerer->size : 0;
}

uint64_t used(int user, enum dlxd_resource resource)
{
    uint64_t n = 0;
    for (int i = 0; i < PUBS; i++)
        if (w.pubs[i].used)
            n += used_of_pub(&w.pubs[i], user, resource);
    for (int i = 0; i < SUBS; i++) {
        const struct sub *s = &w.subs[i];
        if (s->used && w.procs[s->proc].user == user)
            n += resource == DLXD_OBJECTS || (resource == DLXD_PATTERNS && strchr(s->topic, '*'));
    }
    for (int i = 0; i < LINKS; i++) {
        const struct link *l = &w.links[i];
        if (!l->used || w.procs[w.subs[l->sub].proc].user != user)
            continue;
        n += resource == DLXD_FAILED && l->state == LINK_FAILED;
        if (l->pub < 0 && !l->spare)
            continue;
        n += resource == DLXD_LINKS;
        n += resource == DLXD_BYTES ? dlx_shm_link_size(w.subs[l->sub].max_held) : 0;
    }
    for (int i = 0; i < PROCS; i++)
        n += resource == DLXD_CONNECTIONS && w.procs[i].connected && !w.procs[i].refused &&
             w.procs[i].user == user;
    for (int i = 0; i < w.n_waiters; i++)
        n += resource == DLXD_WAITING && w.waiters[i].user == user;
    for (int i = 0; i < w.n_lingerers; i++)
        if (w.lingerers[i].user == user)
            n += used_by_lingerer(&w.lingerers[i], resource);
    return n;
}

uint64_t used_all(void)
{
    uint64_t n = 0;
    for (int user = 0; user < USERS; user++)
        n += used(user, DLXD_BYTES);
    return n;
}

bool share_fits(int user, uint64_t size)
{
    uint64_t left = w.max_all - used_all();
    return size <= left && (used(user, DLXD_BYTES) + size) / DLXD_BYTES_SHARE <= left - size;
}

/* ---- room ------------------------------------------------------------------------------------ */

/* What limit does one more link hit? */
static uint32_t n_links_that_stay(const struct proc *proc)
{
    uint32_t n = proc->n_links;
    for (int i = 0; i < w.n_lingerers; i++) {
        const struct lingerer *l = &w.lingerers[i];
        if (lingerer_has_left(l))
            n -= (uint32_t)(l->reader == proc - w.procs) +
                 (uint32_t)(w.pubs[l->pub].proc == proc - w.procs);
    }
    return n;
}

static bool has_room(const struct proc *proc)
{
    return n_links_that_stay(proc) < proc->max_links;
}

/* Of a publisher of another user: at most 3 times what is left. */
static bool has_share(const struct proc *reader, const struct pub *p)
{
    const struct proc *writer = &w.procs[p->proc];
    uint32_t n = 1;
    if (reader->user == writer->user)
        return true;
    for (const struct link *l = w.links; l < w.links + LINKS; l++)
        n += l->used && l->pub >= 0 && w.pubs[l->pub].proc == p->proc &&
             w.procs[w.subs[l->sub].proc].user == reader->user;
    for (const struct lingerer *l = w.lingerers; l < w.lingerers + w.n_lingerers; l++)
        n += w.pubs[l->pub].proc == p->proc && l->user == reader->user && !lingerer_has_left(l);
    return n <= DLXD_SHARE_OF_LEFT * (writer->max_links - n_links_that_stay(writer) - 1);
}

bool clients_have_room(const struct proc *reader, const struct pub *p)
{
    return has_room(reader) &&
           (p->proc < 0 || (has_room(&w.procs[p->proc]) && has_share(reader, p)));
}

static bool fits(int user, uint64_t size)
{
    return used(user, DLXD_LINKS) < w.max[DLXD_LINKS] &&
           used(user, DLXD_BYTES) + size <= w.max[DLXD_BYTES] && share_fits(user, size);
}

/* Who has no room looks for links that have left meanwhile: they take up room for other users,
 * too. */
bool user_has_room(int user, uint64_t size)
{
    if (fits(user, size))
        return true;
    for (int i = w.n_lingerers; i-- > 0;)
        if (w.lingerers[i].user == user && lingerer_has_left(&w.lingerers[i]))
            lingerer_remove(i);
    return fits(user, size);
}
