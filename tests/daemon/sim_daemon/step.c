/* SPDX-License-Identifier: Apache-2.0 */

/* The schedule: what happens next, as the seed has it. */

#include "ring/layout.h"
#include "daemon/objects/drain.h"
#include "daemon/objects/former.h"
#include "daemon/objects/publisher_state.h"
#include "daemon/users/outbox.h"
#include "daemon/persist/store.h"
#include "tests/daemon/sim_daemon/sim.h"

static char *topics[] = {"a", "a/b", "a/c"};
/* Callers get replies there. */
static char *inboxes[] = {"@0123456789abcdef0123456789abcdef", "@fedcba9876543210fedcba9876543210"};
static char *patterns[] = {"a", "a/b", "a/*", "**", "a/**", "a/c", "*"};

static struct pub *any_pub(struct proc *c)
{
    int at = (int)rnd(PUBS);
    for (int i = 0; i < PUBS; i++) {
        struct pub *p = &w.pubs[(at + i) % PUBS];
        if (p->used && p->proc == c)
            return p;
    }
    return NULL;
}

/* A publisher with a region to be made ready. */
static struct pub *unready_pub(struct proc *c, int *ret_region)
{
    int at = (int)rnd(PUBS);
    for (int i = 0; i < PUBS; i++) {
        struct pub *p = &w.pubs[(at + i) % PUBS];
        for (int k = 0; p->used && p->proc == c && k < p->n_r; k++) {
            if (p->r[k].fd >= 0) {
                *ret_region = k;
                return p;
            }
        }
    }
    return NULL;
}

/* A publisher that waits for a subscription. */
static struct pub *awaited_pub(struct proc *c)
{
    each_pub (p)
        if (p->proc == c && p->awaited)
            return p;
    return NULL;
}

static int n_pubs(void)
{
    int n = 0;
    each_pub (p)
        n++;
    return n;
}

static int n_subs(void)
{
    int n = 0;
    each_sub (s)
        n++;
    return n;
}

static void ask_hello(struct proc *c)
{
    Dlx__Wire__Hello body = DLX__WIRE__HELLO__INIT;
    body.major = one_in(60) ? 99 : DLX_PROTO_MAJOR;
    body.minor = w.with_groups && !one_in(4) ? 8 + rnd(2) : rnd(3);
    body.name = c->name;
    body.max_links = one_in(6) ? rnd(4) : 100;
    peer_send(c, BODY(HELLO), &body, ++c->serial);
}

static char *group_names[] = {"g", "h", "i"};

static void ask_publisher(struct proc *c)
{
    char *groups[] = {group_names[rnd(2)], group_names[rnd(2)]};
    static const uint64_t times[] = {0, 0, 1000000, 50000000, 2000000000, UINT64_MAX};
    Dlx__Wire__PublisherNew body = DLX__WIRE__PUBLISHER_NEW__INIT;
    if (n_pubs() >= PUBS - 4)
        return;
    body.topic = topics[rnd(DLX_ARRAY_SIZE(topics))];
    if (c->minor >= 8 && one_in(8))
        body.topic = inboxes[rnd(DLX_ARRAY_SIZE(inboxes))];
    body.history = one_in(30) ? 0 : 1 + rnd(4);
    body.depth = one_in(30) ? 0 : one_in(4) ? 129 + rnd(100) : 1 + rnd(8);
    body.n_entries =
        one_in(30) ? 200 + rnd(60) : 256U << (one_in(4) + (body.depth > 128 && !one_in(8)));
    body.on_full = rnd(2);
    body.retain = rnd(2) ? 0 : rnd(body.history + 1);
    body.latched = one_in(6);
    body.retain_for_ns = times[rnd(DLX_ARRAY_SIZE(times))];
    body.max_held = body.depth % 4;
    body.max_held_bytes = body.history * (body.depth % 3);
    /* Some announce themselves again: what is hidden, what has ended, or anything. */
    const struct pub *former = &w.pubs[rnd(PUBS)];
    if (former->used && former->state == PUB_RETAINED && one_in(2)) {
        body.topic = (char *)(uintptr_t)former->topic;
        body.resumes = former->resumes ? former->resumes : former->id;
        body.after_seq = one_in(2) ? rnd(3) : rnd(2000);
        body.retain = DLX_MIN(DLX_MAX(former->retain, 1U), body.history);
    } else if (one_in(8)) {
        body.resumes = 1 + rnd(1000);
        body.after_seq = one_in(2) ? rnd(4) : rnd(2000);
    }
    if (one_in(8)) /* so that cells were in use before */
        body.after_seq = 300 + rnd(1000);
    body.groups = groups;
    if (c->minor >= 8 ? one_in(2) : one_in(60))
        body.n_groups = strcmp(groups[0], groups[1]) == 0 && !one_in(30) ? 1 : 2;
    peer_send(c, BODY(PUBLISHER_NEW), &body, ++c->serial);
}

/* Of a publisher, or of a region; now and then it is ready already, or not allocated. */
static void ask_ready(struct proc *c)
{
    Dlx__Wire__PublisherReady publisher = DLX__WIRE__PUBLISHER_READY__INIT;
    Dlx__Wire__ArenaReady arena = DLX__WIRE__ARENA_READY__INIT;
    int k = 0;
    struct pub *p = one_in(20) ? any_pub(c) : one_in(4) ? awaited_pub(c) : NULL;
    p = p ? p : unready_pub(c, &k);
    if (!p)
        return;
    if (!one_in(20))
        peer_fill(&p->r[k]);
    publisher.publisher = arena.publisher = p->id;
    arena.arena = p->r[k].id;
    if (k == 0)
        peer_send(c, BODY(PUBLISHER_READY), &publisher, ++c->serial);
    else
        peer_send(c, BODY(ARENA_READY), &arena, ++c->serial);
}

static void ask_arena(struct proc *c)
{
    Dlx__Wire__ArenaNew body = DLX__WIRE__ARENA_NEW__INIT;
    struct pub *p = any_pub(c);
    if (!p || p->n_r > REGIONS - 8)
        return;
    body.publisher = p->id;
    body.arena_size = DLX_PAGE * (1 + rnd(4));
    peer_send(c, BODY(ARENA_NEW), &body, ++c->serial);
}

static struct region *any_region(struct pub *p)
{
    for (int k = 0; p && k < 8; k++) {
        struct region *r = &p->r[rnd((uint32_t)p->n_r)];
        if (!r->gone || k == 7)
            return r;
    }
    return NULL;
}

static void ask_arena_drop(struct proc *c)
{
    Dlx__Wire__ArenaDrop body = DLX__WIRE__ARENA_DROP__INIT;
    struct pub *p = any_pub(c);
    struct region *r = any_region(p);
    if (!r)
        return;
    body.publisher = p->id;
    body.arena = r->id;
    peer_send(c, BODY(ARENA_DROP), &body, rnd(2) ? ++c->serial : 0);
}

static void ask_close(struct proc *c)
{
    Dlx__Wire__PublisherClose body = DLX__WIRE__PUBLISHER_CLOSE__INIT;
    struct pub *p = any_pub(c);
    body.publisher = p ? p->id : 7;
    peer_send(c, BODY(PUBLISHER_CLOSE), &body, ++c->serial);
}

static void ask_retains(struct proc *c)
{
    Dlx__Wire__PublisherRetains body = DLX__WIRE__PUBLISHER_RETAINS__INIT;
    struct pub *p = any_pub(c);
    if (!p)
        return;
    body.publisher = p->id;
    peer_send(c, BODY(PUBLISHER_RETAINS), &body, rnd(2) ? ++c->serial : 0);
}

static void ask_drop(struct proc *c)
{
    Dlx__Wire__RetainedDrop body = DLX__WIRE__RETAINED_DROP__INIT;
    body.topic = topics[rnd(DLX_ARRAY_SIZE(topics))];
    peer_send(c, BODY(RETAINED_DROP), &body, ++c->serial);
}

static void ask_drop_queues(struct proc *c)
{
    Dlx__Wire__GroupsDrop body = DLX__WIRE__GROUPS_DROP__INIT;
    body.topic = topics[rnd(DLX_ARRAY_SIZE(topics))];
    each_pub (p)
        if (p->n_groups > 0 && *p->topic != '@' && pub_is_retained(p) && one_in(2))
            body.topic = p->topic;
    if (c->minor >= 8 || one_in(60))
        peer_send(c, BODY(GROUPS_DROP), &body, ++c->serial);
}

static void ask_claims(struct proc *c, const struct group *g)
{
    Dlx__Wire__ListClaims body = DLX__WIRE__LIST_CLAIMS__INIT;
    body.publisher = g->used ? g->pub->id : 9;
    body.group = g->used && !one_in(8) ? g->number : 1 + rnd(3);
    body.after_seq = g->used && one_in(3) ? g->pub->after_seq + rnd(8) : 0;
    peer_send(c, BODY(LIST_CLAIMS), &body, ++c->serial);
}

static void ask_groups(struct proc *c)
{
    Dlx__Wire__ListGroups body = DLX__WIRE__LIST_GROUPS__INIT;
    const struct group *g = &w.groups[rnd(GROUPS)];
    body.topic = one_in(2) ? patterns[rnd(DLX_ARRAY_SIZE(patterns))] : body.topic;
    if (g->used && *g->pub->topic != '@' && one_in(3)) {
        body.after_topic = (char *)(uintptr_t)g->pub->topic;
        body.after_publisher = g->pub->id;
        body.after_group = g->number;
    }
    if (c->minor >= 8 && one_in(2))
        ask_claims(c, g);
    else if (c->minor >= 8 || one_in(60))
        peer_send(c, BODY(LIST_GROUPS), &body, ++c->serial);
}

/* That processes of this user may join. */
static const struct group *any_group(int user)
{
    int at = (int)rnd(GROUPS);
    for (int i = 0; i < GROUPS; i++) {
        const struct group *g = &w.groups[(at + i) % GROUPS];
        if (g->used && g->user == user)
            return g;
    }
    return NULL;
}

static void ask_subscribe(struct proc *c)
{
    Dlx__Wire__Subscribe body = DLX__WIRE__SUBSCRIBE__INIT;
    if (n_subs() >= SUBS - 2)
        return;
    body.topic = patterns[rnd(DLX_ARRAY_SIZE(patterns))];
    body.reliable = one_in(3);
    body.mode = body.reliable ? 0 : rnd(2);
    body.history = rnd(3);
    body.max_held = one_in(4) ? 300 + rnd(600) : 1 + rnd(16);
    body.n_spares = one_in(3) ? 0 : 1 + rnd(3);
    if (c->minor >= 8 ? one_in(2) : one_in(60)) {
        body.group = one_in(40) ? (char *)(uintptr_t) "no name" : group_names[rnd(3)];
        body.mode = one_in(40);
        body.history = one_in(40);
        body.max_attempts = one_in(60) ? 61 * rnd(2) : one_in(8) ? 3 : 5;
        body.lease_ns = one_in(8) ? 1000000000 : 0;
        body.topic = patterns[rnd(3)];
        const struct group *g = any_group(c->user);
        if (g && !one_in(3)) {
            body.group = (char *)(uintptr_t)g->name;
            body.topic = (char *)(uintptr_t)g->pub->topic;
        }
    }
    if (c->minor >= 8 && one_in(6))
        body.topic = inboxes[rnd(DLX_ARRAY_SIZE(inboxes))];
    peer_send(c, BODY(SUBSCRIBE), &body, ++c->serial);
}

static struct sub *any_sub(void)
{
    int at = (int)rnd(SUBS);
    for (int i = 0; i < SUBS; i++)
        if (w.subs[(at + i) % SUBS].used)
            return &w.subs[(at + i) % SUBS];
    return NULL;
}

static void ask_subscription_close(struct proc *c)
{
    Dlx__Wire__SubscriptionClose body = DLX__WIRE__SUBSCRIPTION_CLOSE__INIT;
    const struct sub *s = any_sub(); /* of another process, often */
    body.subscription = s ? s->id : 3;
    peer_send(c, BODY(SUBSCRIPTION_CLOSE), &body, ++c->serial);
}

static void ask_lists(struct proc *c)
{
    Dlx__Wire__ListPublishers publishers = DLX__WIRE__LIST_PUBLISHERS__INIT;
    Dlx__Wire__ListLinks links = DLX__WIRE__LIST_LINKS__INIT;
    Dlx__Wire__DaemonInfo info = DLX__WIRE__DAEMON_INFO__INIT;
    const struct pub *p = &w.pubs[rnd(PUBS)];
    if (!c->greeted || c->minor > 2) { /* which are told more */
        ask_groups(c);
        return;
    }
    uint32_t serial = ++c->serial;
    if (one_in(3)) {
        peer_send(c, BODY(DAEMON_INFO), &info, serial);
    } else if (one_in(2)) {
        publishers.topic = one_in(2) ? patterns[rnd(DLX_ARRAY_SIZE(patterns))] : publishers.topic;
        if (p->used && *p->topic != '@' && one_in(2)) {
            publishers.after_topic = (char *)(uintptr_t)p->topic;
            publishers.after_publisher = p->id;
        }
        peer_send(c, BODY(LIST_PUBLISHERS), &publishers, serial);
    } else {
        links.publisher = p->used ? p->id : 5;
        peer_send(c, BODY(LIST_LINKS), &links, serial);
    }
}

static void lie(struct proc *c)
{
    Dlx__Wire__DaemonInfo info = DLX__WIRE__DAEMON_INFO__INIT;
    Dlx__Wire__Ok no_request = DLX__WIRE__OK__INIT;
    struct sub *s = any_sub();
    switch (rnd(4)) {
    case 0:
        peer_send(c, BODY(DAEMON_INFO), &info, 0);
        break;
    case 1:
        peer_send(c, BODY(OK), &no_request, ++c->serial);
        break;
    case 2:
        ask_hello(c);
        break;
    default:
        if (s && s->sock >= 0)
            peer_ack(s, s->read + 20);
        break;
    }
}

/* A publisher with something undone leaves it; or what is left is dropped. */
static void end_queue(struct proc *c)
{
    Dlx__Wire__PublisherClose body = DLX__WIRE__PUBLISHER_CLOSE__INIT;
    each_pub (p) {
        if (p->proc != c || p->state != PUB_OPEN || !groups_are_undone(p) || !one_in(4))
            continue;
        body.publisher = p->id;
        peer_send(c, BODY(PUBLISHER_CLOSE), &body, ++c->serial);
        return;
    }
    ask_drop_queues(c);
}

static void ask(struct proc *c)
{
    static void (*const requests[])(struct proc *) = {
        ask_publisher,   ask_publisher, ask_publisher,
        ask_ready,       ask_ready,     ask_ready,
        ask_ready,       ask_ready,     ask_ready,
        ask_ready,       ask_ready,     ask_ready,
        ask_arena,       ask_arena,     ask_arena,
        ask_arena,       ask_arena,     ask_arena_drop,
        ask_close,       ask_retains,   ask_drop,
        ask_drop_queues, ask_subscribe, ask_subscribe,
        ask_subscribe,   ask_subscribe, ask_subscription_close,
        ask_lists,       ask_lists};
    if (c->serial == 0)
        ask_hello(c);
    if (c->minor >= 8 && one_in(12)) {
        end_queue(c);
        return;
    }
    requests[rnd(DLX_ARRAY_SIZE(requests))](c);
}

static void publish(void)
{
    uint32_t at = rnd(PUBS), n = 0;
    while (n < PUBS && !w.pubs[(at + n) % PUBS].used)
        n++;
    struct pub *p = &w.pubs[(at + n) % PUBS];
    if (n == PUBS || !p->r[0].map || p->closed)
        return;
    if (p->dying && one_in(2))
        peer_close_block(p);
    else if (p->proc && p->proc->alive && p->state != PUB_NEW && n_published(p) < CELLS - 4)
        p->r[0].map[0] = DLX_MAX(p->r[0].map[0], p->after_seq) + 1 + rnd(3);
}

static void listen_to(struct sub *s)
{
    uint32_t n = rnd(6);
    for (uint32_t i = 0; i < n && peer_read_notifications(s); i++)
        continue;
    each_link (l)
        if (l->sub == s && !one_in(4))
            peer_answer(l);
    /* Late, or for a part of them. */
    if (s->read - s->ack > 0 && !one_in(3))
        peer_ack(s, s->ack + (one_in(3) ? rnd(s->read - s->ack + 1) : s->read - s->ack));
}

static void leave_link(void)
{
    Dlx__Wire__LinkClose body = DLX__WIRE__LINK_CLOSE__INIT;
    const struct link *l = &w.links[rnd(LINKS)];
    if (!l->used || !l->answered)
        return;
    body.link = l->id;
    peer_tell(l->sub, BODY(LINK_CLOSE), &body);
}

/* Queues of which all is done end, and former publishers that have closed. */
static void look_at_all(void)
{
    struct pub *revealed[PUBS];
    int n = 0;
    queues_looked();
    each_pub (p) {
        struct pub *of = pub_is_away(p) && p->closed ? on_death_seen(p->id) : NULL;
        if (of)
            revealed[n++] = of;
    }
    dlxd_retained_look_all(&w.broker);
    for (int i = 0; i < n; i++)
        edge_offer(revealed[i]);
}

void step_time(uint64_t now)
{
    w.now = now;
    w.inside = true;
    w.faults = 0;
    for (;;) {
        struct pub *first = NULL;
        each_pub (p) {
            if (p->state == PUB_RETAINED && p->expires && p->expires <= now &&
                (!first || p->expires < first->expires))
                first = p;
        }
        if (!first)
            break;
        pub_vanish(first);
    }
    for (int i = 0; i < PUBS; i++) /* the timer ends one, and comes again at once */
        dlxd_retained_expire(&w.broker, now);
    for (int i = 0; i < SUBS; i++)
        if (w.subs[i].stalled == 1 && w.subs[i].lack_until <= now)
            w.subs[i].stalled = 0;
    dlxd_broker_unstick(&w.broker);
    dlxd_drains_look_all(&w.broker);
    former_looked(-1);
    dlxd_former_look_all(&w.broker);
    look_at_all();
    dlxd_flights_look_all(&w.broker.users);
    w.queued &= w.busy;
    dlxd_store_retry(&w.broker, now);
    life_rest();
    w.faults = 0;
}

static void come(struct proc *c)
{
    if (!c->alive)
        peer_start(c);
    if (!c->connected)
        peer_connect(c);
}

void step(void)
{
    static const uint64_t spans[] = {1000000, 20000000, 500000000, 2100000000};
    struct proc *c = &w.procs[rnd(PROCS)];
    struct sub *s = any_sub();
    uint32_t what = rnd(1000);
    w.now += 1000000;
    if (what < 480) {
        if (!c->connected)
            come(c);
        else if (!c->hung_up) {
            peer_read_replies(c);
            ask(c);
        }
    } else if (what < 720) {
        if (s)
            listen_to(s);
    } else if (what < 780) {
        publish();
    } else if (what < 840) {
        peer_read_links(&w.pubs[rnd(PUBS)]);
    } else if (what < 870) {
        leave_link();
    } else if (what < 930) {
        step_time(w.now + rnd((uint32_t)spans[rnd(4)]));
    } else if (what < 945) {
        w.busy = w.store && !w.busy;
        edge_drop_barriers();
    } else if (what < 955) {
        if (s)
            peer_close_sub(s);
    } else if (what < 962) {
        struct pub *p = &w.pubs[rnd(PUBS)];
        p->link_sock = p->used ? dlx__close(p->link_sock) : -1;
    } else if (what < 970) {
        if (c->connected)
            peer_hang_up(c);
    } else if (what < 980) {
        if (c->alive)
            peer_die(c);
    } else if (what < 985) {
        if (c->connected && !c->hung_up)
            lie(c);
    } else if (what < 987) {
        if (one_in(3) ? !life_replace_daemon() : (life_end_daemon(one_in(2)), false))
            return;
        if (c->alive && one_in(2))
            peer_die(c);
        life_new_daemon();
    } else if (what < 991) {
        life_quiesce();
    } else if (what < 999) {
        life_reload((int)rnd(USERS), one_in(3) ? NULL : topics[rnd(DLX_ARRAY_SIZE(topics))]);
    }
    for (uint32_t i = w.with_groups ? rnd(4) : 0; i > 0; i--)
        claimers_step();
    if (one_in(10))
        former_step(&w.procs[rnd(PROCS)]);
    check_all();
    for (uint32_t i = one_in(4) ? 0 : 1 + rnd(8); i > 0 && edge_pump(); i--)
        check_all();
    if (!one_in(6))
        peer_read_replies(&w.procs[rnd(PROCS)]);
    w.steps++;
}
