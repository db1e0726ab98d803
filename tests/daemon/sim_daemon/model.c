/* SPDX-License-Identifier: Apache-2.0 */

/* The objects that there should be, after docs/PROTOCOL.md, and how each event changes them.
 * Arrays, and sums over them. */

#include "ring/layout.h"
#include "common/topic.h"
#include "daemon/objects/connection.h"
#include "tests/daemon/sim_daemon/sim.h"

#define DYING_NS UINT64_C(1000000000)

struct pub *pub_by_id(uint64_t id)
{
    each_pub (p)
        if (p->id == id)
            return p;
    return NULL;
}

struct sub *sub_by_id(uint64_t id)
{
    each_sub (s)
        if (s->id == id)
            return s;
    return NULL;
}

struct link *link_by_id(uint64_t id)
{
    each_link (l)
        if (l->id == id)
            return l;
    return NULL;
}

bool pub_is_shown(const struct pub *p)
{
    return p->used && (p->state == PUB_OPEN || p->state == PUB_RETAINED) && !p->hidden &&
           !p->is_back;
}

bool joins_shown(const struct sub *s)
{
    return !s->reliable && !*s->terms.group && s->proc->minor >= 2;
}

uint32_t weight_of(const struct sub *s)
{
    return *s->terms.group ? 2 : 1;
}

uint32_t credit_of(const struct sub *s)
{
    return s->reliable || *s->terms.group ? 16 : 4;
}

bool pub_is_offered(const struct sub *s, const struct pub *p)
{
    if (p->state != PUB_RETAINED)
        return true;
    return *s->terms.group ? group_is_kept(p, s->terms.group)
                           : p->retain > 0 && (p->shown || !p->latched);
}

int sub_fits(const struct terms *terms, bool reliable, int user, const struct pub *p,
             struct says *says)
{
    bool drops = p->on_full == 0 && p->state <= PUB_OPEN;
    bool waits = *terms->group || (reliable && !drops && p->state <= PUB_OPEN);
    if (waits && dlx__is_inbox(p->topic)) /* no rule lets anybody wait for a caller */
        return DLX_E_ACCESS;
    int r = *terms->group ? group_fit(p, user, terms, says) : 0;
    return r == 0 && reliable && drops ? DLX_E_QOS : r;
}

bool is_denied(int user, const char *topic)
{
    return w.denied_topic && user == w.denied_user && strcmp(topic, w.denied_topic) == 0;
}

bool may_drop(int user, const struct pub *p)
{
    return user == p->user || (user < 2 && !dlx__is_inbox(p->topic)); /* the daemon's, and root */
}

bool matches(const struct sub *s, const struct pub *p)
{
    return dlx__pattern_matches(s->topic, p->topic) && !is_denied(s->proc->user, p->topic);
}

/* The next in the order of ids. NULL: there is none. */
static struct sub *sub_after(uint64_t id, bool pattern)
{
    struct sub *next = NULL;
    each_sub (s) {
        if (s->id > id && (strchr(s->topic, '*') != NULL) == pattern && (!next || s->id < next->id))
            next = s;
    }
    return next;
}

static struct pub *pub_after(const struct proc *c, uint64_t id)
{
    struct pub *next = NULL;
    each_pub (p) {
        if (p->proc == c && p->id > id && (!next || p->id < next->id))
            next = p;
    }
    return next;
}

static int order(const struct pub *p, const char *topic, uint64_t id)
{
    int by_topic = strcmp(p->topic, topic);
    return by_topic ? by_topic : p->id > id ? 1 : p->id < id ? -1 : 0;
}

static struct pub *pub_next_of(const char *topic, uint64_t id,
                               bool (*is_there)(const struct pub *p))
{
    struct pub *next = NULL;
    each_pub (p) {
        if (is_there(p) && order(p, topic, id) > 0 &&
            (!next || order(p, next->topic, next->id) < 0))
            next = p;
    }
    return next;
}

struct pub *pub_listed_after(const char *topic, uint64_t id)
{
    return pub_next_of(topic, id, pub_is_shown);
}

bool pub_is_away(const struct pub *p)
{
    return p->used && p->state == PUB_RETAINED && (p->hidden || p->shown);
}

static bool has_groups(const struct pub *p)
{
    return pub_is_shown(p) || pub_is_away(p);
}

struct pub *pub_with_groups_after(const char *topic, uint64_t id)
{
    return pub_next_of(topic, id, has_groups);
}

bool region_is_ready(const struct pub *p, int i)
{
    return !p->r[i].gone && (i == 0 ? p->state != PUB_NEW : p->r[i].order > 0);
}

uint64_t n_published(const struct pub *p)
{
    uint64_t head = p->r[0].map ? p->r[0].map[0] : 0;
    return head > p->after_seq ? head - p->after_seq : 0;
}

uint32_t n_links_of(const struct pub *p)
{
    uint32_t n = 0;
    each_link (l)
        n += l->pub == p;
    return n;
}

struct pub *pub_add(void)
{
    int i = 0;
    while (i < PUBS && w.pubs[i].used)
        i++;
    MUST(i < PUBS, "no room for a publisher in the model");
    w.pubs[i] = (struct pub){.used = true, .link_sock = -1};
    return &w.pubs[i];
}

/* The daemon's link; NULL: it is not there. */
static const struct dlxd_link *their_link(uint64_t id)
{
    struct dlxd_idmap_node *node = dlxd_idmap_find(&w.broker.registry.links, id);
    return node ? dlxd_container_of(node, struct dlxd_link, by_id) : NULL;
}

bool link_is_ending(uint64_t id)
{
    const struct dlxd_link *l = their_link(id);
    return l && !l->pending_join;
}

struct link *link_at(const void *theirs)
{
    each_link (l)
        if (their_link(l->id) == theirs)
            return l;
    return NULL;
}

struct dlxd_publisher *their_publisher(uint64_t id)
{
    struct dlxd_idmap_node *node = dlxd_idmap_find(&w.broker.registry.publishers, id);
    return node ? dlxd_container_of(node, struct dlxd_publisher, by_id) : NULL;
}

/* Was something refused that this link needs? */
static bool link_is_lost(uint64_t id)
{
    if (w.faults == 0)
        return false;
    const struct dlxd_link *l = their_link(id);
    return !l || (l->state == DLXD_LINK_FAILED && l->fail_code == DLX_E_NO_MEMORY);
}

static struct link *link_new(struct sub *s)
{
    int i = 0;
    while (i < LINKS && w.links[i].used)
        i++;
    MUST(i < LINKS, "no room for a link in the model");
    w.links[i] =
        (struct link){.used = true, .id = ++w.last_link, .sub = s, .bell = -1, .page_fd = -1};
    return &w.links[i];
}

struct link *link_add(struct sub *s, struct pub *p, bool from_start)
{
    struct proc *reader = s->proc;
    bool fits =
        clients_have_room(s, p) && user_has_room(reader->user, dlx_shm_link_size(s->max_held));
    struct link *l = link_new(s);
    l->from_start = from_start;
    if (!fits || link_is_lost(l->id)) {
        l->state = LINK_FAILED;
        l->code = fits ? DLX_E_NO_MEMORY : DLX_E_LIMIT;
        return l;
    }
    l->pub = p;
    reader->n_links += weight_of(s);
    if (p->proc)
        p->proc->n_links++;
    int code = sub_fits(&s->terms, s->reliable, reader->user, p, &l->says);
    if (code == 0)
        group_join(l);
    else
        link_fail(l, code);
    return l;
}

/* As many as it should have, or as its user may. */
uint32_t spares_add(struct sub *s, uint32_t most)
{
    uint32_t n = 0, added = 0;
    int user = s->proc->user;
    each_link (l)
        n += l->spare && l->sub == s;
    while (n < s->n_spares && added < most) {
        const struct dlxd_link *l = their_link(w.last_link + 1);
        bool refused = l && l->state == DLXD_LINK_FAILED; /* since then */
        if (w.faults > 0 && (!l || !(l->made == DLXD_MADE_AS_SPARE || refused) ||
                             dlxd_subscription_id(l->subscription) != s->id))
            break;
        if (!user_has_room(user, dlx_shm_link_size(s->max_held)))
            break;
        struct link *spare = link_new(s);
        spare->spare = true;
        if (w.faults > 0 && refused)
            link_fail(spare, l->fail_code);
        n += spare->spare;
        added++;
    }
    return added;
}

/* A publisher that has just become ready takes the oldest spare that its subscriber has
 * prepared. */
static bool spare_assign(struct sub *s, struct pub *p)
{
    struct link *first = NULL;
    struct proc *reader = s->proc;
    each_link (l) {
        if (l->sub == s && l->spare && l->state >= LINK_PROVING && l->state <= LINK_SPARE &&
            (!first || l->id < first->id))
            first = l;
    }
    struct says says;
    if (!first || sub_fits(&s->terms, s->reliable, reader->user, p, &says) < 0 ||
        !clients_have_room(s, p))
        return false;
    const struct dlxd_link *l = their_link(first->id);
    MUST(l && (l->publisher || w.faults > 0),
         "link %ju is a spare, and publisher %ju did not get it", first->id, p->id);
    if (!l->publisher && l->made != DLXD_MADE_EARLY)
        return false;
    first->pub = p;
    first->spare = false;
    first->early = first->from_start = true;
    reader->n_links += weight_of(s);
    p->proc->n_links++;
    w.counts[16]++;
    if (!l->publisher) { /* it got it, and then something was refused: links_reconcile() */
        first->state = LINK_NEW;
        if (*s->terms.group && l->fail_code == DLX_E_NO_MEMORY) /* at once: there was none for it */
            link_fail(first, DLX_E_NO_MEMORY);
        return true;
    }
    uint64_t bit = UINT64_C(1) << l->index % 64;
    MUST(dlxd_publisher_id(l->publisher) == p->id, "link %ju is another publisher's", first->id);
    MUST(l->index < 256 && !(p->indices[l->index / 64] & bit), "index %u is taken", l->index);
    p->indices[l->index / 64] |= bit;
    first->index = l->index;
    group_join(first);
    if (first->state == LINK_SPARE)
        first->state = LINK_READY;
    return true;
}

/* Does it wait for a subscription that was there first, as neither of them may lose anything? */
bool pub_is_awaited(const struct pub *p)
{
    each_link (l) {
        bool counts =
            l->sub->reliable || (l->group && !l->group->is_declared && group_n_open(l->group) == 0);
        if (l->pub == p && l->from_start && l->state < LINK_OPEN && p->on_full == 1 && counts)
            return true;
    }
    return false;
}

/* Has the daemon no process to wait for that may still write? */
bool pub_is_settled(const struct pub *p)
{
    return !p->dying || p->unseen || p->shown;
}

bool pub_is_retained(const struct pub *p)
{
    return p->state == PUB_RETAINED && !p->hidden && !p->shown && (!p->dying || p->unseen);
}

struct waiter *waiter_of(uint64_t link)
{
    for (int i = 0; i < w.n_waiters; i++)
        if (w.waiters[i].link == link)
            return &w.waiters[i];
    return NULL;
}

void waiter_remove(struct waiter *waiter)
{
    int at = (int)(waiter - w.waiters);
    w.n_waiters--;
    memmove(waiter, waiter + 1, (size_t)(w.n_waiters - at) * sizeof *waiter);
}

static void pub_free_if_over(struct pub *p)
{
    if (p->state != PUB_GONE || n_links_of(p) > 0)
        return;
    groups_free(p);
    peer_forget_pub(p);
    p->used = false;
}

/* A link ends: will its publisher keep its part of it? */
static bool link_drains(const struct link *l)
{
    const struct sub *s = l->sub;
    const struct proc *c = s->proc;
    const struct drain drain = {.link = l->id,
                                .pub = l->pub,
                                .user = c->user,
                                .reader = c->connected ? s->proc : NULL,
                                .connection = c->connection,
                                .proc = s->proc,
                                .pid = c->pid,
                                .closed = l->closed,
                                .weight = weight_of(s),
                                .group = l->group_number,
                                .size = dlx_shm_link_size(s->max_held)};
    if (drain_has_left(&drain))
        return false;
    MUST(w.n_drains < DRAINS, "no room for a draining link in the model");
    w.drains[w.n_drains++] = drain;
    return true;
}

/* The link has no publisher any more. */
static void link_detach(struct link *l)
{
    l->spare = false;
    if (!l->pub)
        return;
    struct pub *p = l->pub;
    struct waiter *waiter = waiter_of(l->id);
    if (waiter) {
        waiter->ended = true;
        waiter->left = waiter->closed || is_dead(waiter->proc);
    }
    bool joined = p->proc && (l->state == LINK_ADDED || l->state == LINK_OPEN);
    bool counts = joined && !l->waits && !l->has_left;
    if (!joined || !link_drains(l)) {
        l->sub->proc->n_links -= weight_of(l->sub);
        if (p->proc)
            p->proc->n_links--;
    } else if (p->proc->minor >= 8 && is_cut(l->sub->proc)) {
        w.drains[w.n_drains - 1].is_cut = !l->is_cut;
        w.drains[w.n_drains - 1].counts = counts && !l->is_cut;
        counts = counts && l->is_cut;
    }
    p->leaves += counts;
    group_leave(l);
    if (l->state != LINK_NEW)
        p->indices[l->index / 64] &= ~(UINT64_C(1) << l->index % 64);
    l->pub = NULL;
    pub_free_if_over(p);
}

void link_fail(struct link *l, int code)
{
    sim_say("link %ju fails: %s", l->id, dlx__error_name(code));
    MUST(l->state != LINK_ADDED && l->state != LINK_OPEN && l->state != LINK_FAILED,
         "link %ju fails in state %d", l->id, (int)l->state);
    link_detach(l);
    l->state = LINK_FAILED;
    l->code = code;
}

void link_end(struct link *l)
{
    sim_say("link %ju ends", l->id);
    link_detach(l);
    if (l->page_fd >= 0)
        l->page_fd = dlx__close(l->page_fd);
    l->used = false;
}

/* Something was refused: which links has the daemon given up for that, before it had offered them,
 * and the pages of which others could it not look at? */
void links_reconcile(void)
{
    each_link (l) {
        bool bad_page = l->state == LINK_READY && !l->filled;
        if (!w.running || (w.faults == 0 && !bad_page))
            continue;
        const struct dlxd_link *theirs = their_link(l->id);
        if (!theirs) {
            MUST(l->state == LINK_NEW || l->state == LINK_FAILED, "link %ju is not there", l->id);
            link_end(l);
            continue;
        }
        if (theirs->state == DLXD_LINK_PREPARED && w.faults > 0) {
            l->state = LINK_PREPARED;
            continue;
        }
        if (l->state == LINK_FAILED || theirs->state != DLXD_LINK_FAILED)
            continue;
        MUST((theirs->fail_code == DLX_E_NO_MEMORY && l->state == LINK_NEW) ||
                 (bad_page && theirs->fail_code == DLX_E_BAD_PEER),
             "link %ju: %s", l->id, dlx__error_name(theirs->fail_code));
        link_fail(l, theirs->fail_code);
    }
}

static void pub_leave_client(struct pub *p)
{
    p->proc->n_links -= n_links_of(p);
    for (int i = w.n_drains; i-- > 0;)
        if (w.drains[i].pub == p)
            drain_remove(i);
    p->proc = NULL;
    for (int i = w.n_waiters; i-- > 0;)
        if (w.waiters[i].pub == p)
            waiter_remove(&w.waiters[i]);
    for (int i = 0; i < p->n_r; i++)
        p->r[i].gone |= !region_is_ready(p, i);
}

/* Has it nothing for the daemon to keep? */
bool pub_leaves_nothing(const struct pub *p)
{
    return p->latched || ((p->retain == 0 || n_published(p) == 0) && !groups_are_undone(p));
}

void pub_forget_retained(struct pub *p)
{
    p->retain = 0;
    if (pub_leaves_nothing(p))
        pub_vanish(p);
}

void pub_forget_groups(struct pub *p)
{
    groups_forget(p);
    if (pub_leaves_nothing(p))
        pub_vanish(p);
}

void pub_vanish(struct pub *p)
{
    sim_say("publisher %ju vanishes", p->id);
    if (p->proc)
        pub_leave_client(p);
    p->left = p->state == PUB_RETAINED ? p->left : w.steps;
    p->state = PUB_GONE;
    p->dying = p->hidden = p->shown = p->is_back = p->looks = false;
    groups_publisher_gone(p);
    each_link (l) {
        if (l->pub != p || l->state == LINK_ADDED || l->state == LINK_OPEN)
            continue;
        l->origin = p->resumes ? p->resumes : p->id;
        l->last_seq = p->r[0].map ? p->r[0].map[0] : 0;
        if (l->from_start && l->last_seq > p->after_seq)
            l->missed = l->last_seq - p->after_seq;
        l->state = LINK_NEW; /* its index was given back with it */
        link_detach(l);
        l->state = LINK_FAILED;
        l->code = DLX_E_PUBLISHER_GONE;
    }
    if (p->used)
        pub_free_if_over(p);
}

bool pub_has_died(const struct pub *p)
{
    each_proc (c)
        if (c->pid == p->pid)
            return is_dead(c);
    return true;
}

void pub_succeed(const struct pub *by)
{
    uint64_t n = by->state == PUB_NEW ? 0 : n_published(by);
    if (by->retain == 0 || n == 0)
        return;
    each_pub (p) {
        if (p->state != PUB_RETAINED || p->retain == 0 || p->id >= by->id ||
            strcmp(p->topic, by->topic) != 0)
            continue;
        uint64_t origin = p->resumes ? p->resumes : p->id, needed = by->retain;
        if ((p->hidden || p->shown) && by->resumes != origin && !pub_has_died(p))
            continue;
        if (by->resumes == origin && n_published(p) < needed)
            needed = n_published(p);
        if (may_drop(by->user, p) && n >= needed)
            pub_forget_retained(p);
    }
}

void pub_resume(const struct pub *by)
{
    each_pub (p) {
        if ((!p->shown && !p->hidden) || p->id >= by->id || strcmp(p->topic, by->topic) != 0 ||
            by->resumes != (p->resumes ? p->resumes : p->id) || !may_drop(by->user, p))
            continue;
        p->is_back |= p->shown;
        if (p->n_groups > 0)
            pub_forget_groups(p);
    }
}

/* No process writes the publisher's messages any more. */
static void pub_settle(struct pub *p)
{
    sim_say("publisher %ju is retained", p->id);
    p->dying = p->hidden = p->shown = p->is_back = false;
    p->expires = p->retain_for ? w.now + p->retain_for : 0;
    if (p->expires < w.now && p->expires)
        p->expires = UINT64_MAX;
    pub_succeed(p);
}

/* The publisher closed, or its client has gone, whose process is dead or may still write. */
void pub_end(struct pub *p, bool dead)
{
    if (p->state != PUB_OPEN || pub_leaves_nothing(p)) {
        pub_vanish(p);
        return;
    }
    pub_leave_client(p);
    p->left = w.steps;
    p->state = PUB_RETAINED;
    if (dead) {
        pub_settle(p);
    } else {
        p->dying = true;
        p->expires = w.now + DYING_NS;
    }
}

/* Twice as many as before, once a publisher came and left none for the next one. */
static void spares_grow(struct sub *s)
{
    each_link (l) {
        if (l->sub == s && l->spare && l->state >= LINK_PROVING && l->state <= LINK_SPARE)
            return;
    }
    const uint32_t most = SPARES_GROWN_MAX;
    if (s->n_spares < most)
        s->n_spares = DLX_MIN(2 * s->n_spares, most);
}

/* To all who wait for it: those of its topic, then patterns, the oldest first. */
void pub_offer(struct pub *p, bool from_start)
{
    for (int pattern = 0; pattern < 2; pattern++) {
        struct sub *s;
        for (uint64_t id = 0; (s = sub_after(id, pattern)); id = s->id) {
            if (!matches(s, p) || (p->is_late && joins_shown(s)) || !pub_is_offered(s, p))
                continue;
            if (!from_start || !spare_assign(s, p))
                (void)link_add(s, p, from_start);
            if (from_start)
                spares_grow(s);
            (void)spares_add(s, SPARES_AT_ONCE);
        }
    }
}

struct pub *on_death_seen(uint64_t id)
{
    struct pub *p = pub_by_id(id);
    MUST(p && p->dying, "publisher %ju is not awaited", id);
    bool was_former = p->hidden || p->shown;
    p->is_late = p->shown && !p->is_back;
    if (pub_leaves_nothing(p)) {
        pub_vanish(p);
        return NULL;
    }
    pub_settle(p);
    return was_former ? p : NULL;
}

void region_drop(struct pub *p, int at)
{
    uint64_t bit = UINT64_C(1) << at;
    p->r[at].gone = true;
    each_link (l) {
        if (l->pub == p && l->state == LINK_OPEN && ((l->told | l->counted) & bit))
            l->drops[l->n_drops++].region = at;
    }
}

/* As the daemon says: what it lacks it tells no publisher. */
bool is_cut(const struct proc *c)
{
    dlx_for_each (it, &w.broker.clients) {
        const struct dlxd_client *client = dlxd_container_of(it, struct dlxd_client, node);
        int code = client->fd == c->dsock ? client->dismissed : 0;
        if (code != 0)
            return code == DLX_E_PROTOCOL || code == DLX_E_ACCESS || code == DLX_E_LIMIT;
    }
    return false;
}

bool sub_may_end(const struct sub *s)
{
    const struct proc *c = s->proc;
    return s->gone_sock || s->closing || !c->connected || c->must_go || c->hung_up || w.faults > 0;
}

/* The daemon has closed its end. */
void sub_end(struct sub *s)
{
    MUST(s->used, "a subscription ends twice");
    MUST(sub_may_end(s) || !w.running, "subscription %ju ends for no reason", s->id);
    each_link (l)
        if (w.running && l->sub == s)
            link_end(l);
    s->used = false;
    peer_close_sub(s);
}

/* The daemon is about to free what it has of this client. */
void client_gone(struct proc *c, bool dismissed)
{
    bool dead = is_dead(c), excused = w.faults > 0 || c->unread > DLXD_TX_PACKETS_MAX;
    MUST(c->connected, "a connection ends twice");
    sim_say("process %d has left: dead %d, dismissed %d", number_of(c), dead, dismissed);
    c->connected = c->greeted = false;
    c->waits = c->proving.serial = 0;
    edge_abandon(c);
    if (!w.running)
        return;
    MUST(c->must_go || c->hung_up || dead || excused, "process %d was disconnected for no reason",
         number_of(c));
    MUST(dismissed == c->dismissed || excused, "dismissed %d, expected %d", dismissed,
         c->dismissed);
    for (int i = 0; i < w.n_drains; i++)
        if (w.drains[i].reader == c)
            w.drains[i].reader = NULL;
    former_client_gone(c);
    struct pub *p;
    for (uint64_t id = 0; (p = pub_after(c, id)); id = p->id) {
        if (dismissed)
            pub_vanish(p);
        else
            pub_end(p, dead);
    }
}
