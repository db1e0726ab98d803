/* SPDX-License-Identifier: Apache-2.0 */

/* The packets that may be sent on subscription and link sockets, and their order: checked as they
 * are sent, so across all sockets. */

#include "ring/layout.h"
#include "tests/daemon/sim_daemon/sim.h"

#define PATIENCE_NS UINT64_C(1000000000)

/* Only a process that has it mapped can write it any more, and this descriptor cannot. */
static void must_be_sealed(int fd)
{
    const int seals = F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
    MUST((fcntl(fd, F_GET_SEALS) & seals) == seals, "not sealed");
    MUST((fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY, "can be written");
}

/* A lock by a process that has another description of it. */
static void must_be_locked(int fd)
{
    char path[32];
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    bool calm = w.calm;
    w.calm = true; /* this descriptor is not the daemon's */
    int other = open(path, O_RDONLY | O_CLOEXEC);
    w.calm = calm;
    MUST(other >= 0 && fcntl(other, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_RDLCK,
         "not locked");
    close(other);
}

void on_notifications(struct sub *s, const Dlx__Wire__Packet *packet)
{
    struct link *l;
    request_over();
    sim_say("subscription %ju says %s", s->id, dlx__proto_name(packet));
    switch (packet->body_case) {
    case BODY(ACK):
        if (packet->ack->n - s->ack > s->sent - s->ack) {
            s->gone_sock = true;
            s->proc->must_go = s->proc->dismissed = true;
            break;
        }
        s->ack = packet->ack->n;
        break;
    case BODY(LINK_READY):
        l = link_by_id(packet->link_ready->link);
        if (!l || l->sub != s || l->state == LINK_FAILED)
            break;
        MUST(l->state == LINK_OFFERED, "our client is wrong");
        l->state = LINK_PROVING;
        l->reader = packet->link_ready->reader;
        w.link_ready = l->id;
        break;
    case BODY(LINK_CLOSE):
        l = link_by_id(packet->link_close->link);
        if (l && l->sub == s)
            link_end(l);
        break;
    default:
        MUST(false, "our client is wrong");
    }
}

/* The next arena that it was not told of; -1: none. */
static int next_arena(const struct link *l)
{
    const struct pub *p = l->pub;
    int next = -1;
    for (int i = 1; i < p->n_r; i++)
        if (region_is_ready(p, i) && !(l->told >> i & 1) &&
            (next < 0 || p->r[i].order < p->r[next].order))
            next = i;
    return next;
}

bool link_is_owed(const struct link *l, bool *ret_for_credit)
{
    *ret_for_credit = false;
    if (l->state == LINK_FAILED || (l->spare && l->state == LINK_READY))
        return true;
    if (l->spare) {
        *ret_for_credit = true;
        return l->state == LINK_NEW;
    }
    const struct pub *p = l->pub;
    if (l->state == LINK_OPEN && l->first_drop < l->n_drops)
        return true;
    *ret_for_credit = !(l->early && l->state == LINK_ADDED);
    switch (l->state) {
    case LINK_NEW:
    case LINK_ADDED:
        return true;
    case LINK_READY:
        return pub_is_settled(p);
    case LINK_OPEN:
        if (next_arena(l) >= 0)
            return true;
        *ret_for_credit = false;
        return p->state >= PUB_RETAINED && !p->shown && !l->gone_sent;
    default:
        return false;
    }
}

static void told_offer(struct sub *s, struct link *l, const Dlx__Wire__LinkOffer *body,
                       const int *fds)
{
    uint64_t bit = UINT64_C(1) << body->link_index % 64;
    MUST((fcntl(fds[0], F_GETFL) & O_ACCMODE) == O_RDWR, "the page cannot be written");
    l->page = sim_inode(fds[0]);
    if (l->spare) {
        MUST(l->state == LINK_NEW && body->publisher == 0 && !*body->topic && body->resumes == 0 &&
                 body->max_held == s->max_held && body->page_size == dlx_shm_link_size(s->max_held),
             "LinkOffer of a spare in state %d", (int)l->state);
        l->state = LINK_OFFERED;
        return;
    }
    struct pub *p = l->pub;
    MUST(l->state == LINK_NEW && (pub_is_shown(p) || p->is_back) && matches(s, p),
         "LinkOffer in state %d", (int)l->state);
    MUST(body->former == p->shown && (!p->shown || joins_shown(s)), "former %d", body->former);
    MUST(body->publisher == p->id && strcmp(body->topic, p->topic) == 0 &&
             body->resumes == p->resumes && body->max_held == s->max_held &&
             body->page_size == dlx_shm_link_size(s->max_held),
         "LinkOffer of publisher %ju", p->id);
    MUST(body->link_index < 256 && !(p->indices[body->link_index / 64] & bit), "index %u is taken",
         body->link_index);
    p->indices[body->link_index / 64] |= bit;
    l->index = body->link_index;
    l->state = LINK_OFFERED;
}

static void told_sealed(struct link *l)
{
    MUST(l->spare && l->state == LINK_READY && l->filled, "SpareSealed in state %d", (int)l->state);
    l->state = LINK_SPARE;
}

static uint32_t n_arenas(const struct pub *p)
{
    uint32_t n = 0;
    for (int i = 1; i < p->n_r; i++)
        n += region_is_ready(p, i);
    return n;
}

static void told_open(struct link *l, const Dlx__Wire__LinkOpen *body, const int *fds)
{
    struct pub *p = l->pub;
    const struct region *block = &p->r[0];
    bool nobody = !p->proc && pub_is_settled(p) && p->state == PUB_RETAINED;
    MUST(l->state == LINK_ADDED || (l->state == LINK_READY && nobody), "LinkOpen in state %d",
         (int)l->state);
    MUST(!p->proc || n_joins(p) == p->joins, "joins is %ju, %ju links were added", n_joins(p),
         p->joins);
    MUST(body->control_size == block->size && body->n_entries == p->n_entries &&
             body->after_seq == p->after_seq && sim_inode(fds[0]) == block->ino,
         "control block of publisher %ju", p->id);
    must_be_sealed(fds[0]);
    if (p->shown || l->locked)
        must_be_locked(fds[0]);
    MUST(l->bell < 0 || fds[1] == l->bell, "the other end of another bell");
    MUST(body->publisher == p->id && body->n_arenas == n_arenas(p) &&
             body->from_start == l->from_start && body->on_full == p->on_full &&
             strcmp(body->topic, p->topic) == 0 && body->link_index == l->index &&
             body->resumes == p->resumes && body->retain == p->retain &&
             body->pid == (uint32_t)p->pid && body->max_held == p->max_held &&
             body->max_held_bytes == p->max_held_bytes &&
             body->same_user == (l->sub->proc->minor >= 8 && l->sub->proc->user == p->user) &&
             body->history == (p->state == PUB_RETAINED ? p->retain : p->history),
         "LinkOpen of publisher %ju: %u arenas, expected %u", p->id, body->n_arenas, n_arenas(p));
    MUST(body->owner == l->owner && (l->owner > 0) == (l->group != NULL), "worker %u, expected %u",
         body->owner, l->owner);
    if (l->group) {
        MUST(body->claims_size == dlx_shm_claims_size(p->n_entries) &&
                 body->declared_group == (l->group->is_declared ? l->group->number : 0),
             "LinkOpen of group %s", l->group->name);
        must_be_claims(l, fds + 2);
    }
    l->has_claims = false;
    l->state = LINK_OPEN;
    for (int i = 1; i < p->n_r; i++)
        if (region_is_ready(p, i))
            l->counted |= UINT64_C(1) << i;
}

static void told_arena(struct link *l, const Dlx__Wire__ArenaAdded *body, const int *fds)
{
    struct pub *p = l->pub;
    int next = next_arena(l);
    MUST(l->state == LINK_OPEN && next >= 0 && !l->gone_sent, "ArenaAdded %u in state %d",
         body->arena, (int)l->state);
    const struct region *r = &p->r[next];
    MUST(body->arena == r->id && body->arena_size == r->size && sim_inode(fds[0]) == r->ino,
         "ArenaAdded %u, expected %u", body->arena, r->id);
    must_be_sealed(fds[0]);
    l->told |= UINT64_C(1) << next;
}

static void told_dropped(struct link *l, const Dlx__Wire__ArenaDropped *body)
{
    MUST(l->state == LINK_OPEN && l->first_drop < l->n_drops && !l->gone_sent,
         "ArenaDropped %u that it does not know", body->arena);
    const struct region *r = &l->pub->r[l->drops[l->first_drop].region];
    MUST(body->arena == r->id, "ArenaDropped %u, expected %u", body->arena, r->id);
    l->drops[l->first_drop].packet = l->sub->all_sent;
    l->drops[l->first_drop++].told = w.counts[5];
}

void on_drop_landed(uint64_t id, uint32_t arena)
{
    struct link *l = link_by_id(id);
    MUST(l && l->n_landed < l->first_drop, "link %ju was not told of a drop", id);
    const struct sub *s = l->sub;
    const struct region *r = &l->pub->r[l->drops[l->n_landed].region];
    MUST(arena == r->id, "ArenaDropped %u has landed, expected %u", arena, r->id);
    MUST(s->sock < 0 || s->all_read >= l->drops[l->n_landed].packet,
         "ArenaDropped %u of link %ju was not read", arena, id);
    l->n_landed++;
    if (!w.is_behind)
        l->n_settled = l->n_landed;
}

static void told_gone(struct link *l)
{
    bool for_credit;
    MUST(l->state == LINK_OPEN && !l->gone_sent && l->pub->state >= PUB_RETAINED && !l->pub->shown,
         "PublisherGone in state %d", (int)l->state);
    MUST(link_is_owed(l, &for_credit) && !for_credit && l->first_drop == l->n_drops,
         "PublisherGone before what is due");
    each_link (other)
        MUST(other->sub != l->sub || other->state != LINK_ADDED || other->added >= l->pub->left,
             "PublisherGone before link %ju, which was added earlier", other->id);
    l->gone_sent = true;
}

static void told_failed(struct link *l, const Dlx__Wire__LinkFailed *body)
{
    MUST(strlen(body->text) > 5, "LinkFailed says only '%s'", body->text);
    if (!l) {
        MUST(w.faults > 0 && body->link == w.broker.registry.last_link,
             "LinkFailed of an unknown link");
        return;
    }
    if (l->state == LINK_READY && !l->filled && body->code == DLX_E_BAD_PEER) {
        link_fail(l, DLX_E_BAD_PEER);
    } else if (l->state != LINK_FAILED) {
        MUST(w.faults > 0 && body->code == DLX_E_NO_MEMORY && l->state == LINK_NEW,
             "LinkFailed in state %d: %s", (int)l->state, body->text);
        link_fail(l, body->code);
    }
    bool lack = body->code == DLX_E_NO_MEMORY;
    MUST(body->code == l->code || (lack && w.fired > 0), "LinkFailed with %s, expected %s",
         dlx__error_name(body->code), dlx__error_name(l->code));
    bool is_short = w.fired > 0 && strcmp(body->text, dlx__error_text(body->code)) == 0;
    if (!lack && !is_short) /* there was no memory for the text */
        must_say(&l->says, body->text);
    MUST(body->origin == l->origin && body->last_seq == l->last_seq && body->missed == l->missed,
         "LinkFailed: %ju up to %ju", body->origin, body->last_seq);
    w.counts[4]++;
    link_end(l);
}

static uint64_t link_of(const Dlx__Wire__Packet *packet)
{
    switch (packet->body_case) {
    case BODY(LINK_OFFER):
        return packet->link_offer->link;
    case BODY(LINK_OPEN):
        return packet->link_open->link;
    case BODY(ARENA_ADDED):
        return packet->arena_added->link;
    case BODY(ARENA_DROPPED):
        return packet->arena_dropped->link;
    case BODY(PUBLISHER_GONE):
        return packet->publisher_gone->link;
    case BODY(LINK_FAILED):
        return packet->link_failed->link;
    case BODY(SPARE_SEALED):
        return packet->spare_sealed->link;
    default:
        MUST(false, "%s on a subscription socket", dlx__proto_name(packet));
        return 0;
    }
}

static size_t n_fds_of(Dlx__Wire__Packet__BodyCase body, const struct link *l)
{
    return body == BODY(LINK_OPEN)                                 ? l && l->group ? 5 : 2
           : body == BODY(LINK_OFFER) || body == BODY(ARENA_ADDED) ? 1
                                                                   : 0;
}

void on_told(struct sub *s, const Dlx__Wire__Packet *packet, const int *fds, size_t n_fds)
{
    struct link *l = link_by_id(link_of(packet));
    w.counts[5]++;
    sim_say("subscription %ju: %s of link %ju", s->id, dlx__proto_name(packet), link_of(packet));
    MUST(w.running, "%s from a daemon that ends", dlx__proto_name(packet));
    MUST(packet->serial == 0 && n_fds == n_fds_of(packet->body_case, l), "%s with %zu descriptors",
         dlx__proto_name(packet), n_fds);
    MUST(s->used && (l ? l->sub == s : packet->body_case == BODY(LINK_FAILED)),
         "%s of a link that this subscription does not have", dlx__proto_name(packet));
    if (s->first > 0)
        MUST(link_of(packet) == s->first, "the first packet is about link %ju, not %ju",
             link_of(packet), s->first);
    s->first = 0;
    s->all_sent++;
    if (n_fds > 0) {
        bool waits = packet->body_case != BODY(LINK_OPEN) || !l->early;
        MUST(!waits || s->sent - s->ack < credit_of(s), "%u packets are not acknowledged",
             s->sent - s->ack);
        s->sent++;
    }
    switch (packet->body_case) {
    case BODY(LINK_OFFER):
        told_offer(s, l, packet->link_offer, fds);
        break;
    case BODY(LINK_OPEN):
        told_open(l, packet->link_open, fds);
        break;
    case BODY(ARENA_ADDED):
        told_arena(l, packet->arena_added, fds);
        break;
    case BODY(ARENA_DROPPED):
        told_dropped(l, packet->arena_dropped);
        break;
    case BODY(PUBLISHER_GONE):
        told_gone(l);
        break;
    case BODY(SPARE_SEALED):
        told_sealed(l);
        break;
    default:
        told_failed(l, packet->link_failed);
        break;
    }
}

/* The subscription's socket took no more. A retained publisher has no client to be told of the
 * link, so that link is made all the same. */
void on_not_told(struct sub *s, const Dlx__Wire__Packet *packet, const int *fds)
{
    struct link *l = link_by_id(link_of(packet));
    sim_note_stall(s);
    if (packet->body_case != BODY(LINK_OPEN) || l->state != LINK_READY)
        return;
    MUST(l->pub->state == PUB_RETAINED && pub_is_settled(l->pub), "LinkOpen before LinkAdded");
    l->bell = fds[1];
    l->locked = l->pub->shown;
    l->state = LINK_ADDED;
    l->added = w.steps;
}

uint64_t n_joins(const struct pub *p)
{
    return p->line[0] & DLX_SHM_JOINS_MASK;
}

/* A packet that waited, in its order; its link may have ended, and be gone, or hold messages. */
static void on_added_late(struct pub *p, struct waiter *waiter, const int *fds)
{
    sim_say("publisher %ju: LinkAdded of link %ju, which waited", p->id, waiter->link);
    MUST(waiter->pub == p && p->proc && p->state == PUB_OPEN, "LinkAdded of link %ju",
         waiter->link);
    for (int i = 0; &w.waiters[i] != waiter; i++)
        MUST(w.waiters[i].pub != p, "it has passed link %ju", w.waiters[i].link);
    MUST(sim_inode(fds[0]) == waiter->page, "another link's page");
    must_be_sealed(fds[0]);
    MUST(w.fds[fds[2]].kind == FD_PIDFD && w.fds[fds[2]].of == waiter->proc,
         "another process's pidfd");
    struct link *l = link_by_id(waiter->link);
    if (l) {
        l->waits = false;
        l->has_left = link_is_ending(l->id);
    }
    p->n_unread++;
    bool has_left = waiter->ended || link_is_ending(waiter->link);
    if (has_left) { /* it did not count before the publisher knew the link */
        p->leaves++;
        group_left(p, waiter->group);
    }
    waiter_remove(waiter);
    w.counts[6]++;
}

/* Its subscriber was disconnected, and may hold messages. The link may be about to end. */
static void on_link_cut(struct pub *p, uint64_t id)
{
    sim_say("publisher %ju: LinkCut of link %ju", p->id, id);
    if (!p->used || !p->proc) /* its process is being disconnected, too */
        return;
    MUST(p->proc->minor >= 8, "LinkCut for version 2.%u", p->proc->minor);
    for (int i = 0; i < w.n_waiters; i++)
        MUST(w.waiters[i].pub != p, "it has passed link %ju", w.waiters[i].link);
    p->n_unread++;
    struct link *l = link_by_id(id);
    if (l) {
        MUST(l->pub == p && !l->is_cut && is_cut(l->sub->proc), "link %ju is cut", id);
        l->is_cut = true;
        return;
    }
    int i = 0;
    while (i < w.n_drains && w.drains[i].link != id)
        i++;
    MUST(i < w.n_drains && w.drains[i].pub == p && w.drains[i].is_cut, "link %ju is cut", id);
    w.drains[i].is_cut = false;
    if (w.drains[i].counts) {
        p->leaves++;
        group_left(p, w.drains[i].group);
    }
    w.drains[i].counts = false;
}

void on_added(struct pub *p, const Dlx__Wire__Packet *packet, const int *fds, size_t n_fds)
{
    if (packet->body_case == BODY(LINK_CUT)) {
        on_link_cut(p, packet->link_cut->link);
        return;
    }
    MUST(packet->body_case == BODY(LINK_ADDED) && packet->serial == 0 && n_fds == 3, "%s with %zu",
         dlx__proto_name(packet), n_fds);
    const Dlx__Wire__LinkAdded *body = packet->link_added;
    struct waiter *waiter = waiter_of(body->link);
    if (waiter) {
        on_added_late(p, waiter, fds);
        return;
    }
    struct link *l = link_by_id(body->link);
    MUST(l && l->state == LINK_READY && l->filled && l->pub == p && p->proc && p->state == PUB_OPEN,
         "LinkAdded of link %ju", body->link);
    const struct sub *s = l->sub;
    MUST(n_joins(p) == p->joins, "joins is raised before LinkAdded");
    for (int i = 0; i < w.n_waiters; i++)
        MUST(w.waiters[i].pub != p, "it has passed link %ju", w.waiters[i].link);
    MUST(body->pid == (uint32_t)s->proc->pid && body->reader == l->reader &&
             body->link_index == l->index && body->max_held == s->max_held &&
             body->reliable == s->reliable && body->early == l->early &&
             body->latest == (s->mode == 1) && body->page_size == dlx_shm_link_size(s->max_held) &&
             body->group == (l->group ? l->group->number : 0) &&
             strcmp(body->group_name, l->group ? l->group->name : "") == 0,
         "LinkAdded of link %ju", l->id);
    MUST(sim_inode(fds[0]) == l->page, "another link's page");
    must_be_sealed(fds[0]);
    MUST(w.fds[fds[2]].kind == FD_PIDFD && w.fds[fds[2]].of == s->proc, "another process's pidfd");
    sim_say("publisher %ju: LinkAdded of link %ju", p->id, l->id);
    l->bell = w.fds[fds[1]].peer;
    l->state = LINK_ADDED;
    l->added = w.steps;
    p->joins++;
    p->n_unread++;
    w.counts[6]++;
}

void on_waits(uint64_t id, const int *fds)
{
    request_shows();
    struct link *l = link_by_id(id);
    MUST(l && l->state == LINK_READY && l->filled && w.n_waiters < WAITERS, "link %ju waits", id);
    const struct sub *s = l->sub;
    struct pub *p = l->pub;
    sim_say("publisher %ju: link %ju waits", p->id, id);
    MUST(p->proc && p->state == PUB_OPEN, "nobody is there to hear of link %ju", id);
    w.waiters[w.n_waiters++] = (struct waiter){.link = id,
                                               .pub = l->pub,
                                               .proc = s->proc,
                                               .user = s->proc->user,
                                               .closed = l->closed,
                                               .group = l->group_number,
                                               .page = sim_inode(fds[0])};
    l->bell = w.fds[fds[1]].peer;
    l->state = LINK_ADDED;
    l->added = w.steps;
    l->waits = true;
    p->joins++;
    w.counts[7]++;
}

void on_withdrawn(void)
{
    int i = 0;
    while (i < w.n_waiters && w.waiters[i].page != w.looked_at)
        i++;
    MUST(i < w.n_waiters, "who is withdrawn does not wait");
    struct waiter *waiter = &w.waiters[i];
    sim_say("link %ju is withdrawn", waiter->link);
    const struct link *l = link_by_id(waiter->link); /* ends before its subscription does */
    MUST((waiter->ended || sub_may_end(l->sub)) && (waiter->closed || is_dead(waiter->proc)),
         "link %ju is needed", waiter->link);
    waiter->pub->joins--;
    waiter_remove(waiter);
    w.counts[14]++;
}

void on_let_go(uint64_t id)
{
    int i = 0;
    while (i < w.n_drains && w.drains[i].link != id)
        i++;
    sim_say("link %ju is let go", id);
    if (i == w.n_drains) /* its publisher has left */
        return;
    MUST(drain_has_left(&w.drains[i]), "link %ju holds messages", id);
    w.counts[15]++;
    /* the model gets there in its turn: those who were refused before were refused */
    if (w.is_behind)
        w.drains[i].let_go = true;
    else
        drain_remove(i);
}

/* The publisher has closed its end: then the daemon waits a second for the publisher's end. Or no
 * peer is at fault: the packet is sent again. */
void on_not_added(uint64_t id, int code)
{
    request_shows();
    struct link *l = link_by_id(id);
    MUST(l && l->state == LINK_READY, "LinkAdded");
    int user = l->sub->proc->user;
    switch (code) {
    case DLX_E_FULL:
        sim_note_stall(l->sub);
        return;
    case DLX_E_NO_MEMORY:
    case DLX_E_FD_LIMIT:
        MUST(w.faults > 0, "link %ju: %s", id, dlx__error_name(code));
        return; /* it waits for what is lacking */
    case DLX_E_LIMIT:
        MUST(used(user, DLXD_PENDING_JOINS) >= w.max[DLXD_PENDING_JOINS], "there is no such limit");
        link_fail(l, code);
        return;
    case DLX_E_DISCONNECTED:
        if (l->until == 0)
            l->until = w.now + PATIENCE_NS;
        if (w.now < l->until)
            sim_note_stall(l->sub);
        else
            link_fail(l, DLX_E_PUBLISHER_NOT_RESPONDING);
        return;
    default:
        MUST(false, "link %ju: %s", id, dlx__error_name(code));
    }
}
