/* SPDX-License-Identifier: Apache-2.0 */

/* Daemons that end and begin, with what the service manager kept, and the end of a run. */

#include "common/memory.h"
#include "daemon/objects/client.h"
#include "daemon/objects/connection.h"
#include "daemon/protocol/dispatch.h"
#include "daemon/persist/handover.h"
#include "daemon/persist/manager_fds.h"
#include "daemon/persist/restore.h"
#include "daemon/persist/store.h"
#include "ring/layout.h"
#include "tests/daemon/sim_daemon/sim.h"

/* The workers of what anybody publishes on a/c are of the third user. Who may do what is decided by
 * may(). */
static char *with_workers[] = {"a/c"};
static struct dlxd_rule items[] = {{.is_for_everybody = true,
                                    .topics = with_workers,
                                    .n_topics = DLX_ARRAY_SIZE(with_workers),
                                    .allow = DLXD_VERB(DLXD_MAY_PUBLISH),
                                    .has_workers = true,
                                    .workers = 1001}};

static const struct dlxd_rules *rules(void)
{
    static struct dlxd_rules all = {.items = items};
    all.n = w.names_workers ? DLX_ARRAY_SIZE(items) : 0;
    return &all;
}

/* The daemon serves its own user and root; and a third, who has no right to what is others'. */
static bool may(const struct dlxd_policy *policy, const struct dlxd_principal *who,
                enum dlxd_verb verb, const char *topic)
{
    if ((verb == DLXD_MAY_PUBLISH || verb == DLXD_MAY_SUBSCRIBE) && is_denied(who->uid == 500 ? 0
                                                                              : who->uid == 0 ? 1
                                                                                              : 2,
                                                                              topic))
        return false;
    return verb != DLXD_MAY_DROP || who->uid == 0 || who->uid == policy->uid;
}

/* May it have what the rules deny it? Then the daemon has to end its connection. */
static bool has_denied(const struct proc *c)
{
    each_pub (p)
        if (p->proc == c && is_denied(c->user, p->topic))
            return true;
    each_sub (s)
        if (s->proc == c && is_denied(c->user, s->topic))
            return true;
    each_link (l)
        if (l->sub->proc == c && l->pub && is_denied(c->user, l->pub->topic))
            return true;
    return false;
}

void life_reload(int user, const char *topic)
{
    sim_say("new rules: user %d may not use %s", user, topic ? topic : "nothing");
    w.denied_user = user;
    w.denied_topic = topic;
    each_proc (c)
        if (c->connected && has_denied(c))
            c->must_go = c->dismissed = true;
    w.inside = true;
    w.faults = 0;
    dlx_for_each (it, &w.broker.clients)
        dlxd_client_review(dlxd_container_of(it, struct dlxd_client, node));
    life_rest();
    each_proc (c) {
        if (!c->connected)
            continue;
        /* Objects of the process may have ended before the review, with another process. */
        MUST(!has_denied(c), "process %d has what the rules deny it", number_of(c));
        c->must_go = c->dismissed = false;
    }
    w.counts[18]++;
}

static void start_broker(void)
{
    w.now += 1000000000;
    w.inside = w.calm = true;
    w.faults = 0;
    MUST(dlxd_broker_init(&w.broker, NULL, &dlx__memory_memfd, &dlxd_dispatch, UINT64_C(1) << 30) ==
             0,
         "init");
    w.broker.policy = (struct dlxd_policy){.may = may, .uid = 500, .borrow_rules = rules()};
    memcpy(w.broker.users.max, w.max, sizeof w.max);
    w.broker.users.max[DLXD_DESCRIPTORS] = DLXD_UNLIMITED;
    w.broker.users.all_bytes_max = w.max_all;
    w.broker.users.all_descriptors_max = UINT64_MAX;
    MUST(w.broker.registry.last_link >= w.highest_id, "ids are used again");
    w.last_link = w.broker.registry.last_link;
    w.asker = NULL;
    w.running = true;
}

void life_begin(void)
{
    w.now = UINT64_C(1000000000000);
    each_proc (c)
        c->death = c->sock = -1;
    each_proc (c)
        peer_start(c);
    start_broker();
    if (w.store) {
        struct dlxd_manager_fds none = {.n = 0};
        MUST(dlxd_store_init(&w.broker, w.max_fds, &none) == 0, "%s", dlx__error_message());
    }
    w.inside = w.calm = false;
}

void life_rest(void)
{
    dlxd_broker_settle(&w.broker);
    w.inside = false;
    request_over();
    links_reconcile();
}

static void end_clients(void)
{
    dlx_for_each (it, &w.broker.clients) {
        struct dlxd_client *client = dlxd_container_of(it, struct dlxd_client, node);
        if (w.crashed)
            dlxd_client_doom(client);
        else
            dlxd_client_disconnect(client, DLX_E_DISCONNECTED, "dlpackd is stopping");
    }
    dlxd_broker_settle(&w.broker);
}

/* As dlxd_server_run() ends, and dlxd_server_free(). */
static void stop_broker(void)
{
    w.running = false;
    w.inside = w.calm = true;
    w.broker.stopping = true;
    dlxd_store_deinit(&w.broker);
    end_clients();
    dlxd_broker_deinit(&w.broker);
    w.inside = w.calm = w.crashed = false;
}

static void forget_all_but_publishers(void)
{
    w.n_waiters = w.n_drains = 0;
    each_group(g) g->unheard = true;
    each_link (l) {
        l->page_fd = dlx__close(l->page_fd);
        l->used = false;
    }
    each_sub (s)
        MUST(false, "subscription %ju outlives its daemon", s->id);
    each_proc (c) {
        MUST(!c->connected, "a client outlives its daemon");
        c->sock = dlx__close(c->sock);
    }
    former_forget();
    edge_drop_barriers();
}

void life_end_daemon(bool crash)
{
    w.highest_id = w.broker.last_client;
    w.highest_id = DLX_MAX(w.highest_id, w.broker.registry.last_link);
    w.highest_id = DLX_MAX(w.highest_id, w.broker.registry.last_publisher);
    w.highest_id = DLX_MAX(w.highest_id, w.broker.registry.last_subscription);
    sim_say("the daemon %s", crash ? "is killed" : "ends");
    w.crashed = crash;
    w.busy |= crash; /* what it has not said is lost */
    stop_broker();
    w.unsaid = w.queued;
    w.queued = false;
    forget_all_but_publishers();
}

int life_inherited(const char *name)
{
    for (int i = 0; i < w.n_handed; i++)
        if (strcmp(w.handed[i].name, name) == 0)
            return w.handed[i].fd;
    int at = w.n_handed > 0 || !w.store ? -1 : edge_find(name);
    return at < 0 ? -1 : w.kept[at].fd;
}

/* What is handed over, as the next daemon takes it. */
static void take_handed_over(const struct dlxd_handover *handover)
{
    static bool is_daemons[FDS];
    struct dlxd_manager_fds manager_fds;
    char text[64];
    for (int fd = 0; fd < FDS; fd++)
        is_daemons[fd] = fcntl(fd, F_GETFD) >= 0;
    (void)snprintf(text, sizeof text, "%d:%d", (int)getpid(), sim_dup(handover->fd));
    MUST(setenv(DLXD_HANDOVER_VARIABLE, text, 1) == 0 && dlxd_manager_fds_init(&manager_fds) == 0,
         "%s", dlx__error_message());
    MUST(manager_fds.is_handed_over && manager_fds.n < DLX_ARRAY_SIZE(w.handed), "%zu descriptors",
         manager_fds.n);
    for (size_t i = 0; i < manager_fds.n; i++) {
        struct dlxd_manager_fd *from = &manager_fds.fds[i];
        struct kept *to = &w.handed[w.n_handed++];
        bool is_own = from->fd >= 0 && is_daemons[from->fd];
        *to = (struct kept){.fd = is_own ? sim_dup(from->fd) : from->fd,
                            .is_unsent = from->not_stored};
        (void)snprintf(to->name, sizeof to->name, "%s", from->name);
        from->taken = true;
    }
    dlxd_manager_fds_deinit(&manager_fds);
}

bool life_replace_daemon(void)
{
    struct dlxd_handover handover;
    sim_say("the daemon is replaced");
    w.inside = true;
    w.faults = 0;
    dlxd_handover_init(&handover);
    int r = dlxd_store_hand_over(&w.broker, &handover);
    if (r == 0)
        r = dlxd_handover_write(&handover);
    w.inside = false;
    if (r < 0) {
        MUST(w.faults > 0, "it cannot be replaced: %s", dlx__error_message());
        w.inside = true;
        dlxd_handover_undo(&handover);
        dlxd_store_take_back(&w.broker);
        dlxd_handover_deinit(&handover);
        w.inside = false;
        check_all();
        return false;
    }
    take_handed_over(&handover);
    dlxd_handover_deinit(&handover);
    life_end_daemon(true);
    w.counts[22]++;
    return true;
}

/* Of a kept region or pidfd. */
static int find_kept(const struct pub *p, const struct region *r)
{
    char name[112];
    if (r)
        (void)snprintf(name, sizeof name, "dlx-region-%ju-%u-%ju", p->id, r->id, r->order);
    else
        (void)snprintf(name, sizeof name, "dlx-pid-%ju", p->id);
    return life_inherited(name);
}

/* Restores the parts of a publisher that should come back. False: none. */
static bool restore(struct pub *p)
{
    bool is_handed = w.n_handed > 0 && (p->retain > 0 || p->n_groups > 0) &&
                     (p->state == PUB_OPEN || p->state == PUB_RETAINED);
    if (!is_handed && (w.n_handed > 0 || !w.store || !check_is_kept(p)))
        return false;
    uint64_t expires = p->state == PUB_RETAINED && !p->dying ? p->expires : 0;
    for (int i = 0; i < p->n_r; i++) {
        struct region *r = &p->r[i];
        bool found = (i == 0 || r->order > 0) && find_kept(p, r) >= 0;
        MUST(!found || !r->gone || w.fired > 0 || w.unsaid, "%u was dropped, and is kept", r->id);
        r->gone = !found;
    }
    if (p->r[0].gone)
        return false;
    groups_restore(p);
    int pidfd = find_kept(p, NULL);
    struct pollfd poll_fd = {.fd = pidfd, .events = POLLIN};
    bool dead = pidfd < 0 || p->closed || poll(&poll_fd, 1, 0) == 1;
    if (dead && pub_leaves_nothing(p))
        return false;
    p->state = PUB_RETAINED;
    p->proc = NULL;
    const struct dlx_shm_control *control = (const void *)p->r[0].map;
    p->dying = !dead;
    p->shown = !dead && p->retain > 0 && n_published(p) > 0 &&
               dlx_load32_relaxed((dlx_atomic_u32 *)(uintptr_t)&control->heeds_locks) != 0;
    p->hidden = !dead && !p->shown;
    p->is_back = p->is_late = false;
    p->expires = 0;
    if (dead && expires > 0)
        p->expires = expires > w.now ? expires : w.now + 1;
    else if (dead && pidfd >= 0 && p->retain_for > 0)
        p->expires = p->retain_for < UINT64_MAX - w.now ? w.now + p->retain_for : UINT64_MAX;
    memset(p->indices, 0, sizeof p->indices);
    p->link_sock = dlx__close(p->link_sock);
    p->line = NULL;
    dlx__region_unmap(p->page, DLX_PAGE);
    p->page = NULL;
    p->last_order = 0;
    for (int i = 0; i < p->n_r; i++) {
        p->r[i].fd = dlx__close(p->r[i].fd);
        if (!p->r[i].gone)
            p->last_order = DLX_MAX(p->last_order, p->r[i].order);
    }
    return true;
}

/* As the service manager hands them over. */
static void inherit(struct dlxd_manager_fds *manager_fds)
{
    struct kept *from = w.n_handed > 0 ? w.handed : w.kept;
    int n = w.n_handed > 0 ? w.n_handed : w.n_kept;
    *manager_fds = (struct dlxd_manager_fds){.n = (size_t)n, .is_handed_over = w.n_handed > 0};
    manager_fds->fds = calloc((size_t)n + 1, sizeof *manager_fds->fds);
    MUST(manager_fds->fds, "memory");
    for (int i = 0; i < n; i++) {
        manager_fds->fds[i].fd = w.n_handed > 0 ? from[i].fd : sim_dup(from[i].fd);
        manager_fds->fds[i].name = strdup(from[i].name);
        manager_fds->fds[i].not_stored = from[i].is_unsent;
    }
    w.n_handed = 0;
}

static void forget(struct pub *p)
{
    sim_say("publisher %ju is not restored", p->id);
    groups_free(p);
    peer_forget_pub(p);
    p->used = false;
}

static struct pub *next_restored(uint64_t after)
{
    struct pub *next = NULL;
    each_pub (p)
        if (p->id > after && (!next || p->id < next->id))
            next = p;
    return next;
}

/* Finds what the daemon has not restored, or not shown, since something was refused. Restored
 * publishers are replaced as by any other successor, in the order of the ids. */
static void restore_reconcile(bool is_handed)
{
    each_pub (p) {
        const struct dlxd_publisher *theirs = their_publisher(p->id);
        if (!theirs && w.faults > 0) {
            sim_say("publisher %ju was not restored", p->id);
            forget(p);
        } else if (theirs && p->shown && theirs->state == DLXD_PUBLISHER_HIDDEN) {
            MUST(w.faults > 0, "publisher %ju is hidden", p->id);
            p->shown = false;
            p->hidden = true;
        }
        if (theirs) {
            groups_reconcile(p);
            if (is_handed) /* the store may have room for other ones now */
                p->not_kept = theirs->not_kept;
        }
    }
    struct pub *p = NULL;
    for (uint64_t id = 0; (p = next_restored(id)) != NULL;) {
        id = p->id;
        if (p->dying)
            pub_resume(p);
        pub_succeed(p);
    }
    each_pub (left)
        MUST(their_publisher(left->id), "publisher %ju was not restored", left->id);
}

/* Restores what was kept. If something is refused, a part may be lost, or all, and no charge of
 * that is left: check_all(). */
static void restore_all(void)
{
    struct dlxd_manager_fds manager_fds;
    bool is_handed = w.n_handed > 0;
    w.inside = false;
    inherit(&manager_fds);
    w.inside = true;
    uint32_t fault_one_in = w.fault_one_in;
    w.calm = !one_in(3);
    w.fault_one_in = 4 + rnd(60);
    int r = 0;
    if (w.store)
        r = dlxd_store_init(&w.broker, w.max_fds, &manager_fds);
    else
        dlxd_restore_handed_over(&w.broker, &manager_fds);
    w.fault_one_in = fault_one_in;
    w.calm = true;
    if (r < 0) {
        MUST(w.faults > 0, "%s", dlx__error_message());
        MUST(dlxd_list_empty(&w.broker.users.users), "a user is left of what was not restored");
        r = dlxd_store_init(&w.broker, w.max_fds, &manager_fds);
    }
    MUST(r == 0, "%s", dlx__error_message());
    dlxd_manager_fds_deinit(&manager_fds);
    restore_reconcile(is_handed);
}

void life_new_daemon(void)
{
    MUST(w.open_fds == check_fds_of_peers() - 0, "the daemon left %jd descriptors open",
         (w.open_fds - check_fds_of_peers()));
    MUST(w.live == 0, "the daemon left %jd pieces of memory", w.live);
    w.now += rnd(2) ? rnd(3000000) * UINT64_C(1000) : 0;
    w.busy = false;
    w.now += 1000000000; /* as start_broker() does: what is restored is judged at that time */
    each_pub (p) {
        if (!restore(p))
            forget(p);
    }
    w.now -= 1000000000;
    start_broker();
    if (w.store || w.n_handed > 0)
        restore_all();
    w.calm = false;
    w.counts[8]++;
    dlxd_broker_settle(&w.broker);
    w.inside = false;
    links_reconcile();
    check_all();
}

static void read_all(void)
{
    each_proc (c)
        peer_read_replies(c);
    each_pub (p)
        peer_read_links(p);
    each_sub (s) {
        while (peer_read_notifications(s))
            continue;
        if (s->ack != s->read)
            peer_ack(s, s->read);
    }
    each_link (l)
        peer_answer(l);
}

/* Everybody reads, answers and acknowledges until nothing happens any more: then nothing may be
 * owed to anybody. */
void life_quiesce(void)
{
    int rounds = 0;
    uint32_t refuse = w.refuse_one_in, faults = w.fault_one_in;
    w.refuse_one_in = w.fault_one_in = 0;
    edge_manager_reads();
    for (int quiet = 0; quiet < 3; quiet++) {
        MUST(++rounds < 1000, "it never ends");
        read_all();
        while (edge_pump()) {
            check_all();
            read_all();
            edge_manager_reads();
            quiet = 0;
            MUST(++rounds < 3000, "it never ends");
        }
        step_time(w.now + (quiet == 2 ? 0 : 1100000000));
    }
    each_link (l) {
        bool with_fds;
        MUST(l->sub->gone_sock || !link_is_owed(l, &with_fds), "link %ju waits in state %d", l->id,
             (int)l->state);
        MUST(l->sub->gone_sock || l->n_landed == l->n_drops,
             "link %ju: %d drops were read, and the daemon has seen %d", l->id, l->n_drops,
             l->n_landed);
    }
    for (int i = 0; i < w.n_waiters; i++)
        MUST(w.waiters[i].pub->link_sock < 0, "link %ju waits", w.waiters[i].link);
    for (int i = 0; i < w.n_drains; i++)
        MUST(!w.drains[i].is_cut || w.drains[i].pub->link_sock < 0, "link %ju is not cut",
             w.drains[i].link);
    for (int i = 0; i < w.n_drains; i++)
        MUST(!drain_has_left(&w.drains[i]), "link %ju drains, and has left", w.drains[i].link);
    MUST(w.broker.users.all_in_flight == 3 * (uint64_t)w.n_waiters,
         "%ju descriptors are in flight, and all was read", w.broker.users.all_in_flight);
    each_proc (c)
        MUST(!c->connected || !(c->must_go || c->hung_up || is_dead(c)),
             "process %d has left, and is still there", number_of(c));
    w.refuse_one_in = refuse;
    w.fault_one_in = faults;
}

void life_end(void)
{
    life_quiesce();
    each_proc (c)
        if (c->alive)
            peer_die(c);
    life_quiesce();
    each_pub (p)
        MUST(p->state == PUB_RETAINED, "publisher %ju is left", p->id);
    life_end_daemon(false);
    each_pub (p)
        peer_forget_pub(p);
    while (w.n_kept > 0)
        close(w.kept[--w.n_kept].fd);
    each_proc (c)
        close(c->death);
    MUST(w.open_fds == 0 && w.live == 0, "%jd descriptors and %jd pieces of memory are left",
         w.open_fds, w.live);
}
