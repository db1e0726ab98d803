/* SPDX-License-Identifier: Apache-2.0 */

/* Groups of workers: which there are, who may be in them, their claims pages, and what workers
 * write there. */

#include "common/memory.h"
#include "common/topic.h"
#include "daemon/memory/claims.h"
#include "daemon/objects/group.h"
#include "ring/layout.h"
#include "tests/daemon/sim_daemon/sim.h"
#include <stdarg.h>

static uint32_t slot_of(const struct group *g, uint64_t seq)
{
    return (uint32_t)(seq % g->pub->n_entries);
}

static struct cell *cell_of(struct group *g, uint64_t seq)
{
    return &g->cells[seq - g->pub->after_seq - 1];
}

static uint64_t newest_of(const struct pub *p)
{
    return p->r[0].map ? p->r[0].map[0] : 0;
}

struct group *group_numbered(const struct pub *p, uint32_t number)
{
    each_group(g) if (g->pub == p && g->number == number) return g;
    return NULL;
}

/* The next in the order of numbers. */
static struct group *group_after(const struct pub *p, uint32_t number)
{
    struct group *next = NULL;
    each_group(g)
    {
        if (g->pub == p && g->number > number && (!next || g->number < next->number))
            next = g;
    }
    return next;
}

static uint32_t group_n_links(const struct group *g)
{
    uint32_t n = 0;
    each_link (l)
        n += l->group == g;
    return n;
}

uint32_t group_n_open(const struct group *g)
{
    uint32_t n = 0;
    each_link (l)
        n += l->group == g && l->state == LINK_OPEN;
    return n;
}

/* The first message of the group; 0: no worker has said so yet. */
static uint64_t first_of(const struct group *g)
{
    bool is_known = g->is_declared || (g->from_start && g->pub->resumes == 0);
    if (g->page != 0)
        return g->start;
    return is_known ? g->pub->after_seq + 1 : 0;
}

struct tally {
    uint64_t waiting, in_flight, done, oldest;
};

static struct tally count(struct group *g)
{
    struct tally n = {.waiting = 0};
    uint64_t first = first_of(g), newest = newest_of(g->pub);
    for (uint64_t seq = first; seq > 0 && seq <= newest; seq++) {
        enum dlx_shm_cell_state state = cell_of(g, seq)->state;
        n.done += state == DLX_SHM_CELL_DONE;
        n.in_flight += state == DLX_SHM_CELL_CLAIMED;
        n.waiting += state != DLX_SHM_CELL_DONE && state != DLX_SHM_CELL_CLAIMED;
        if (state != DLX_SHM_CELL_DONE && n.oldest == 0)
            n.oldest = seq;
    }
    return n;
}

static bool is_undone(struct group *g)
{
    return g->is_declared && count(g).oldest > 0;
}

bool groups_are_undone(const struct pub *p)
{
    each_group(g) if (g->pub == p && is_undone(g)) return true;
    return false;
}

bool group_is_kept(const struct pub *p, const char *name)
{
    each_group(g) if (g->pub == p && strcmp(g->name, name) == 0 && is_undone(g)) return true;
    return false;
}

/* ---- who may be in it ---------------------------------------------------------------------- */

static struct group *group_of(const struct pub *p, const char *name, int user)
{
    struct group *g = NULL;
    while ((g = group_after(p, g ? g->number : 0)))
        if (strcmp(g->name, name) == 0 && (g->is_declared || g->user == user))
            return g;
    return NULL;
}

/* What the error's text says. */
static int fit_fails(struct says *says, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static int fit_fails(struct says *says, int code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(says->first, sizeof says->first, fmt, ap);
    va_end(ap);
    return code;
}

static const char *lease_text(uint64_t lease)
{
    return lease == 0 ? "no lease" : "a lease of 1 s";
}

static int fit_terms(struct says *says, const struct group *g, const struct terms *terms)
{
    if (group_n_links(g) == 0 ||
        (g->terms.lease == terms->lease && g->terms.max_attempts == terms->max_attempts))
        return 0;
    (void)snprintf(says->second, sizeof says->second,
                   "for %s and at most %u:", lease_text(terms->lease), terms->max_attempts);
    return fit_fails(says, DLX_E_QOS, "have %s and at most %u attempts,",
                     lease_text(g->terms.lease), g->terms.max_attempts);
}

int group_fit(const struct pub *p, int user, const struct terms *terms, struct says *says)
{
    *says = (struct says){.first = ""};
    if (p->proc && p->proc->minor < 8)
        return fit_fails(says, DLX_E_VERSION, "protocol %u.%u,", DLX_PROTO_MAJOR, p->proc->minor);
    const struct group *g = group_of(p, terms->group, user);
    if (p->workers >= 0 && p->workers != user && !(g && g->is_declared))
        return fit_fails(says, DLX_E_ACCESS, "group of %s: a rule of dlpackd.conf says", p->topic);
    if (!g)
        return 0;
    if (g->user != user)
        return fit_fails(says, DLX_E_ACCESS, "group %s of %s: publisher %s (pid %d) declared it",
                         g->name, p->topic, p->name, p->pid);
    return fit_terms(says, g, terms);
}

void must_say(const struct says *says, const char *text)
{
    MUST(strstr(text, says->first) && strstr(text, says->second), "it does not say '%s' '%s': %s",
         says->first, says->second, text);
}

/* ---- which there are ----------------------------------------------------------------------- */

static struct group *group_new(struct pub *p, const char *name, int user)
{
    int i = 0;
    while (i < GROUPS && w.groups[i].used)
        i++;
    MUST(i < GROUPS, "no room for a group in the model");
    struct group *g = &w.groups[i];
    *g = (struct group){.used = true, .pub = p, .number = ++p->last_group, .user = user};
    (void)snprintf(g->name, sizeof g->name, "%s", name);
    return g;
}

void groups_declare(struct pub *p, char *const *names, size_t n)
{
    p->n_groups = (uint32_t)n;
    for (size_t i = 0; i < n; i++)
        group_new(p, names[i], p->workers < 0 ? p->user : p->workers)->is_declared = true;
}

static void group_free_if_over(struct group *g)
{
    bool stays = g->is_declared && g->pub->state != PUB_GONE;
    if (!stays && group_n_links(g) == 0)
        g->used = false;
}

void groups_forget(struct pub *p)
{
    p->n_groups = 0;
    each_group(g)
    {
        if (g->pub != p)
            continue;
        g->is_declared = false;
        w.counts[23] += group_n_links(g) > 0;
        group_free_if_over(g);
    }
}

void groups_publisher_gone(const struct pub *p)
{
    each_group(g) if (g->pub == p) group_free_if_over(g);
}

void groups_free(const struct pub *p)
{
    each_group(g) if (g->pub == p) g->used = false;
}

void group_join(struct link *l)
{
    const struct sub *s = l->sub;
    if (!*s->terms.group)
        return;
    struct group *g = group_of(l->pub, s->terms.group, s->proc->user);
    if (!g)
        g = group_new(l->pub, s->terms.group, s->proc->user);
    if (group_n_links(g) == 0)
        g->terms = s->terms;
    g->from_start |= l->from_start;
    l->group = g;
    l->group_number = g->number;
}

void group_leave(struct link *l)
{
    struct group *g = l->group;
    if (!g)
        return;
    g->rung |= l->owner > 0;
    l->group = NULL;
    l->owner = 0;
    l->has_claims = false;
    group_free_if_over(g);
}

void on_leave(uint64_t link, uint64_t publisher, uint32_t number, bool is_retained)
{
    struct link *l = link_by_id(link);
    struct pub *p = pub_by_id(publisher);
    const struct group *g = p ? group_numbered(p, number) : NULL;
    if (g)
        p->looks |= g->is_declared && is_retained;
    if (l && l->group == g)
        group_leave(l);
}

void group_left(const struct pub *p, uint32_t number)
{
    struct group *g = group_numbered(p, number);
    if (g)
        g->rung = true;
}

void on_groups_looked(uint64_t publisher)
{
    struct pub *p = pub_by_id(publisher);
    MUST(p && p->looks, "nothing of publisher %ju has changed", publisher);
    p->looks = false;
    if (pub_is_retained(p) && !groups_are_undone(p))
        pub_forget_groups(p);
}

void queues_looked(void)
{
    each_pub (p) {
        if (!pub_is_retained(p) || p->n_groups == 0)
            continue;
        p->looks = false;
        if (!groups_are_undone(p))
            pub_forget_groups(p);
    }
}

/* ---- the claims page ----------------------------------------------------------------------- */

static uint64_t size_of(const struct group *g)
{
    return dlx_shm_claims_size(g->pub->n_entries);
}

static struct group *group_of_theirs(const struct dlxd_group *theirs)
{
    const struct pub *p = pub_by_id(dlxd_publisher_id(theirs->publisher));
    struct group *g = p ? group_numbered(p, theirs->number) : NULL;
    MUST(g, "group %s is unknown", theirs->name);
    return g;
}

/* The daemon has tried to make it. */
static void page_is_due(struct group *g, const struct dlxd_group *theirs, int r, bool beyond)
{
    bool fits = beyond || bytes_fit_after_look(g->user, size_of(g));
    if (g->page != 0)
        return;
    if (theirs->page_fd >= 0) {
        MUST(fits, "the page of group %s is beyond a limit", g->name);
        g->start = first_of(g);
        g->page = sim_inode(theirs->page_fd);
        w.counts[20]++;
        return;
    }
    MUST(r == DLX_E_LIMIT ? !fits : r < 0 && w.faults > 0, "the page of group %s: %s", g->name,
         dlx__error_name(r));
    g->pub->no_page |= r == DLX_E_LIMIT;
}

void on_page(const struct dlxd_group *theirs, int r, bool beyond)
{
    struct group *g = group_of_theirs(theirs);
    page_is_due(g, theirs, r, beyond);
    MUST(r == 0 || g->page == 0 || w.faults > 0, "the page of group %s: %s", g->name,
         dlx__error_name(r));
}

static bool has_owner(const struct group *g, uint32_t owner)
{
    each_link (l)
        if (l->group == g && l->owner == owner)
            return true;
    each_claimer(c) if (c->page == g->page && c->owner == owner) return true;
    for (int i = 0; i < CELLS; i++)
        if (g->cells[i].state == DLX_SHM_CELL_CLAIMED && g->cells[i].owner == owner)
            return true;
    return false;
}

void on_admit(uint64_t link, const struct dlxd_group *theirs, uint32_t owner, int r)
{
    request_shows();
    struct link *l = link_by_id(link);
    MUST(l && (l->group != NULL) == (theirs != NULL), "link %ju is in another group", link);
    if (!l->group || l->owner > 0) {
        MUST(r == 0 && owner == l->owner, "worker %u of link %ju was %u", owner, link, l->owner);
        return;
    }
    page_is_due(l->group, theirs, r, false);
    sim_say("link %ju: worker %u of group %s", link, owner, l->group->name);
    if (r == 0) {
        MUST(owner >= 1 && owner <= DLX_SHM_OWNERS_MAX && !has_owner(l->group, owner),
             "worker %u of group %s is another one's number", owner, l->group->name);
        l->owner = owner;
        l->has_claims = true;
    } else if (r == DLX_E_LIMIT) {
        MUST(l->group->page == 0, "there is room for worker of link %ju", link);
        link_fail(l, r);
    } else {
        MUST(w.faults > 0, "link %ju: %s", link, dlx__error_name(r));
    }
}

/* The first one is for the map alone, with the lock. */
void must_be_claims(const struct link *l, const int *fds)
{
    struct flock lock = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)l->owner, .l_len = 1};
    MUST(sim_inode(fds[0]) == l->group->page && sim_inode(fds[1]) == l->group->page,
         "another group's page");
    MUST((fcntl(fds[0], F_GETFL) & O_ACCMODE) == O_RDWR &&
             (fcntl(fds[1], F_GETFL) & O_ACCMODE) == O_RDONLY,
         "no worker can use its page");
    MUST((fcntl(fds[0], F_GET_SEALS) & (F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL)) ==
             (F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL),
         "a claims page that is not sealed");
    MUST(fcntl(fds[1], F_OFD_GETLK, &lock) == 0 && lock.l_type == F_WRLCK, "worker %u has no lock",
         l->owner);
}

/* ---- workers ------------------------------------------------------------------------------- */

void claimer_add(const struct link *l, int fd)
{
    int i = 0;
    while (i < CLAIMERS && w.claimers[i].used)
        i++;
    MUST(i < CLAIMERS, "no room for a worker in the model");
    void *map = mmap(NULL, size_of(l->group), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MUST(map != MAP_FAILED, "mmap: %m");
    w.claimers[i] = (struct claimer){.used = true,
                                     .proc = l->sub->proc,
                                     .link = l->id,
                                     .page = l->group->page,
                                     .owner = l->owner,
                                     .size = size_of(l->group),
                                     .map = map};
}

static void claimer_free(struct claimer *c)
{
    dlx__region_unmap(c->map, c->size);
    c->used = false;
}

void claimers_leave(const struct proc *proc)
{
    each_claimer(c) if (!proc || c->proc == proc) claimer_free(c);
}

static struct group *group_with_page(ino_t page)
{
    each_group(g) if (g->page == page) return g;
    return NULL;
}

static void write_cell(const struct claimer *c, struct group *g, uint64_t seq, struct cell cell)
{
    struct dlx_shm_claims *claims = c->map;
    const struct dlx_shm_cell word = {.state = cell.state,
                                      .attempt = cell.attempt,
                                      .owner = cell.owner,
                                      .lap = seq / g->pub->n_entries + 1};
    *cell_of(g, seq) = cell;
    dlx_store64_release(&claims->cells[slot_of(g, seq)], dlx_shm_cell_pack(word));
}

/* Claims it, or says that it is done, or gives it back; or a lie. */
static void work_on(const struct claimer *c, struct group *g, uint64_t seq)
{
    struct cell cell = *cell_of(g, seq);
    bool is_own = cell.state == DLX_SHM_CELL_CLAIMED && cell.owner == c->owner;
    if (one_in(30)) {
        cell = (struct cell){.state = 1 + rnd(3), .attempt = rnd(64), .owner = rnd(4096)};
    } else if (is_own) {
        cell.state = one_in(4) ? DLX_SHM_CELL_RETURNED : DLX_SHM_CELL_DONE;
    } else if (cell.state == DLX_SHM_CELL_NEVER || cell.state == DLX_SHM_CELL_RETURNED) {
        cell.state = DLX_SHM_CELL_CLAIMED;
        cell.attempt = DLX_MIN(cell.attempt + 1, 60U);
        cell.owner = c->owner;
    } else if (cell.state ==
               DLX_SHM_CELL_CLAIMED) { /* by one that has died, or whose lease is over */
        cell.state = DLX_SHM_CELL_RETURNED;
    }
    write_cell(c, g, seq, cell);
}

/* Of a message that no worker has claimed, the cell may have the one before it. */
static void leave_lap_before(const struct claimer *c, const struct group *g, uint64_t seq)
{
    struct dlx_shm_claims *claims = c->map;
    const struct dlx_shm_cell word = {.state = DLX_SHM_CELL_DONE,
                                      .attempt = 1,
                                      .owner = c->owner,
                                      .lap = seq / g->pub->n_entries};
    if (word.lap > 0)
        dlx_store64_release(&claims->cells[slot_of(g, seq)], dlx_shm_cell_pack(word));
}

static void work(const struct claimer *c, struct group *g)
{
    struct dlx_shm_claims *claims = c->map;
    uint64_t newest = newest_of(g->pub);
    if (g->start == 0) {
        g->start = DLX_MAX(newest, g->pub->after_seq) + 1;
        dlx_store64_release(&claims->start, g->start);
    }
    bool finishes = one_in(60);
    for (uint64_t seq = g->start; seq <= newest; seq++)
        if (finishes)
            write_cell(c, g, seq, (struct cell){.state = DLX_SHM_CELL_DONE, .owner = c->owner});
        else if (cell_of(g, seq)->state == DLX_SHM_CELL_NEVER && one_in(3))
            leave_lap_before(c, g, seq);
        else if (one_in(3))
            work_on(c, g, seq);
}

/* What the daemon reads of it. */
static void check_report(struct group *g, const struct dlxd_group *theirs)
{
    struct dlxd_claims_report report;
    struct dlxd_claim claims[8];
    bool more;
    struct tally n = count(g);
    MUST(dlxd_group_report(theirs, &report), "the page of group %s cannot be read", g->name);
    MUST(report.waiting == n.waiting && report.in_flight == n.in_flight && report.done == n.done &&
             report.oldest == n.oldest,
         "group %s: %ju wait, %ju are in flight, %ju done, expected %ju, %ju and %ju", g->name,
         report.waiting, report.in_flight, report.done, n.waiting, n.in_flight, n.done);
    uint32_t n_claims = dlxd_group_list_claims(theirs, 0, claims, 8, &more);
    MUST(n_claims == DLX_MIN(n.in_flight, 8U) && more == (n.in_flight > 8), "group %s: %u claims",
         g->name, n_claims);
    for (uint32_t i = 0; i < n_claims; i++) {
        const struct cell *cell = cell_of(g, claims[i].seq);
        MUST((i == 0 || claims[i].seq > claims[i - 1].seq) && cell->state == DLX_SHM_CELL_CLAIMED &&
                 cell->owner == claims[i].owner && cell->attempt == claims[i].attempt,
             "group %s: claim of message %ju", g->name, claims[i].seq);
    }
}

void claimers_step(void)
{
    uint32_t at = rnd(CLAIMERS), n = 0;
    while (n < CLAIMERS && !w.claimers[(at + n) % CLAIMERS].used)
        n++;
    if (n == CLAIMERS)
        return;
    struct claimer *c = &w.claimers[(at + n) % CLAIMERS];
    struct group *g = group_with_page(c->page);
    if (!g || (!link_by_id(c->link) && one_in(4))) {
        claimer_free(c);
        return;
    }
    work(c, g);
    struct dlxd_publisher *theirs = their_publisher(g->pub->id);
    if (theirs)
        check_report(g, dlxd_group_numbered(theirs, g->number));
}

/* ---- daemons that end and begin ------------------------------------------------------------ */

static int find_kept_of(const struct group *g, bool bell)
{
    char name[112];
    if (bell)
        (void)snprintf(name, sizeof name, "dlx-bell-%ju-%u", g->pub->id, g->number);
    else
        (void)snprintf(name, sizeof name, "dlx-group-%ju-%u-%s", g->pub->id, g->number, g->name);
    return edge_find(name);
}

static int find_inherited(const struct group *g)
{
    char name[112];
    (void)snprintf(name, sizeof name, "dlx-group-%ju-%u-%s", g->pub->id, g->number, g->name);
    return life_inherited(name);
}

void groups_restore(struct pub *p)
{
    p->n_groups = 0;
    p->looks = false;
    each_group(g)
    {
        if (g->pub != p)
            continue;
        g->used = g->is_declared && find_inherited(g) >= 0;
        p->n_groups += g->used;
    }
    p->last_group = 0;
    each_group(g) if (g->pub == p) p->last_group = DLX_MAX(p->last_group, g->number);
}

/* Some may be lost, as something was refused. */
void groups_reconcile(struct pub *p)
{
    struct dlxd_publisher *theirs = their_publisher(p->id);
    each_group(g)
    {
        if (g->pub != p || dlxd_group_numbered(theirs, g->number))
            continue;
        MUST(w.faults > 0, "group %s of publisher %ju was not restored", g->name, p->id);
        g->used = false;
        p->n_groups--;
    }
    p->last_group = theirs->last_group;
    p->is_bare |= w.faults > 0 && p->n_groups == 0 && p->retain == 0;
}

/* ---- checks -------------------------------------------------------------------------------- */

int groups_n_stored(const struct pub *p)
{
    int n = 0;
    each_group(g)
    {
        if (g->pub != p || !g->is_declared)
            continue;
        MUST(find_kept_of(g, false) >= 0 && find_kept_of(g, true) >= 0, "group %s is not kept",
             g->name);
        n += 2;
    }
    return n;
}

static void check_bell(struct group *g, const struct dlxd_group *theirs)
{
    uint64_t n;
    struct pollfd p = {.fd = theirs->bell_fd, .events = POLLIN};
    if (g->unheard) { /* a former daemon may have rung it */
        (void)!read(theirs->bell_fd, &n, sizeof n);
        g->unheard = g->rung = false;
    }
    MUST(poll(&p, 1, g->rung ? 1000 : 0) == g->rung, "the bell of group %s: expected %d", g->name,
         g->rung);
    if (g->rung)
        MUST(read(theirs->bell_fd, &n, sizeof n) == sizeof n, "the bell of group %s", g->name);
    g->rung = false;
}

static void check_group(struct group *g, const struct dlxd_group *theirs)
{
    static const uid_t uids[USERS] = {500, 0, 1001};
    uint32_t n_links = group_n_links(g);
    MUST(strcmp(theirs->name, g->name) == 0 && theirs->is_declared == g->is_declared &&
             theirs->whose->uid == uids[g->user] && theirs->n_links == n_links &&
             theirs->n_open == group_n_open(g),
         "group %s of publisher %ju: %u links of %u, %u open of %u, declared %d", g->name,
         g->pub->id, theirs->n_links, n_links, theirs->n_open, group_n_open(g),
         theirs->is_declared);
    MUST(n_links == 0 ||
             (theirs->lease_ns == g->terms.lease && theirs->max_attempts == g->terms.max_attempts),
         "group %s of publisher %ju has other terms", g->name, g->pub->id);
    MUST((theirs->page_fd >= 0) == (g->page != 0), "the page of group %s", g->name);
    if (g->page != 0) {
        MUST(sim_inode(theirs->page_fd) == g->page, "another page of group %s", g->name);
        check_bell(g, theirs);
    }
}

static struct dlxd_publisher *their_pub(uint64_t id)
{
    struct dlxd_idmap_node *node = dlxd_idmap_find(&w.broker.registry.gone_publishers, id);
    return node ? dlxd_container_of(node, struct dlxd_publisher, by_id) : their_publisher(id);
}

void groups_check(void)
{
    each_pub (p) {
        struct dlxd_publisher *theirs = their_pub(p->id);
        struct group *g = NULL;
        dlx_for_each (it, &theirs->groups) {
            const struct dlxd_group *other = dlxd_container_of(it, struct dlxd_group, node);
            g = group_after(p, g ? g->number : 0);
            MUST(g && g->number == other->number, "group %u of publisher %ju", other->number,
                 p->id);
            check_group(g, other);
        }
        g = group_after(p, g ? g->number : 0);
        MUST(!g, "group %u of publisher %ju is not there", g->number, p->id);
        MUST(!p->looks, "publisher %ju has not looked at its groups", p->id);
    }
}

static void check_entry(const struct proc *c, const Dlx__Wire__GroupEntry *e, struct group *g)
{
    static const uid_t uids[USERS] = {500, 0, 1001};
    const struct pub *p = g->pub;
    uint32_t n_links = group_n_links(g);
    struct tally n = count(g);
    MUST(e->publisher == p->id && e->group == g->number && strcmp(e->topic, p->topic) == 0 &&
             strcmp(e->name, g->name) == 0 && e->uid == uids[g->user] &&
             e->declared == g->is_declared && e->away == (c->minor >= 9 && pub_is_away(p)) &&
             e->gone == (p->state == PUB_RETAINED && !pub_is_away(p)) && e->n_workers == n_links,
         "entry of group %s of publisher %ju", g->name, p->id);
    MUST(e->waiting == n.waiting && e->in_flight == n.in_flight && e->done == n.done &&
             e->oldest == n.oldest && e->lost == 0 && e->dead == 0,
         "group %s of publisher %ju: %ju wait, %ju are in flight, %ju done", g->name, p->id,
         e->waiting, e->in_flight, e->done);
    MUST(e->lease_ns == (n_links > 0 ? g->terms.lease : 0) &&
             e->max_attempts == (n_links > 0 ? g->terms.max_attempts : 0),
         "entry of group %s of publisher %ju has other terms", g->name, p->id);
}

void check_group_list(const struct proc *c, const Dlx__Wire__ListGroups *asked,
                      const Dlx__Wire__GroupList *body)
{
    uint64_t id = *asked->after_topic ? asked->after_publisher - 1 : 0;
    uint32_t number = asked->after_group, n = 0, weight = 0;
    const char *topic = asked->after_topic;
    struct pub *p;
    bool more = false;
    for (; !more && (p = pub_with_groups_after(topic, id)); topic = p->topic, id = p->id) {
        if (!dlx__pattern_matches(*asked->topic ? asked->topic : "**", p->topic))
            continue;
        number = p->id == asked->after_publisher && *asked->after_topic ? number : 0;
        for (struct group *g; !more && (g = group_after(p, number)); number = g->number) {
            more = n == 16 || weight >= 32;
            if (more)
                break;
            MUST(n < body->n_entries, "group %s of publisher %ju is not listed", g->name, p->id);
            check_entry(c, body->entries[n++], g);
            weight += 1 + p->n_entries / 256;
        }
    }
    MUST(body->n_entries == n && body->more == more, "%zu groups, expected %u", body->n_entries, n);
    w.counts[21] += n;
}

/* The link of the worker with this number; 0: it has none any more. */
static uint64_t link_of_owner(const struct group *g, uint32_t owner)
{
    each_link (l)
        if (l->group == g && l->owner == owner)
            return l->id;
    return 0;
}

void check_claim_list(const Dlx__Wire__ListClaims *asked, const Dlx__Wire__ClaimList *body)
{
    struct group *g = group_numbered(pub_by_id(asked->publisher), asked->group);
    uint64_t newest = newest_of(g->pub);
    uint32_t n = 0, n_more = 0;
    for (uint64_t seq = first_of(g); g->page != 0 && seq > 0 && seq <= newest; seq++) {
        const struct cell *cell = cell_of(g, seq);
        if (cell->state != DLX_SHM_CELL_CLAIMED || seq <= asked->after_seq)
            continue;
        n_more += n == 32;
        if (n == 32)
            continue;
        MUST(n < body->n_entries, "the claim of message %ju is not listed", seq);
        const Dlx__Wire__ClaimEntry *e = body->entries[n++];
        uint64_t link = link_of_owner(g, cell->owner);
        MUST(e->seq == seq && e->attempt == cell->attempt, "the claim of message %ju", seq);
        /* One that is over may drain: then its worker may live. */
        MUST(link > 0 ? e->link == link : !link_by_id(e->link), "message %ju is of link %ju", seq,
             e->link);
    }
    MUST(body->n_entries == n && body->more == (n_more > 0), "%zu claims, expected %u",
         body->n_entries, n);
}
