/* SPDX-License-Identifier: Apache-2.0 */

/* After each step: does the daemon have what the model has? */

#include "daemon/objects/client.h"
#include "daemon/objects/subscription.h"
#include "tests/daemon/sim_daemon/sim.h"

static uint64_t charged(int user, enum dlxd_resource resource)
{
    static const uid_t uids[USERS] = {500, 0, 1001};
    dlx_for_each (it, &w.broker.users.users) {
        const struct dlxd_user *u = dlxd_container_of(it, struct dlxd_user, node);
        if (u->uid == uids[user])
            return u->used[resource];
    }
    return 0;
}

static void check_charges(void)
{
    uint64_t all = 0;
    for (int user = 0; user < USERS; user++) {
        for (int r = 0; r < DLXD_IN_FLIGHT; r++) {
            uint64_t n = used(user, (enum dlxd_resource)r),
                     has = charged(user, (enum dlxd_resource)r);
            if (r == DLXD_STORE_ENTRIES)
                continue; /* check_store() */
            MUST(has == n, "user %d has %ju of resource %d, expected %ju", user, has, r, n);
            all += r == DLXD_BYTES ? n : 0;
        }
    }
    MUST(w.broker.users.all_bytes == all, "%ju bytes", w.broker.users.all_bytes);
}

/* Each descriptor that is open for a client is charged. */
static void check_descriptors(void)
{
    uint64_t all = (uint64_t)w.n_shut_down;
    for (int user = 0; user < USERS; user++) {
        uint64_t n = used_descriptors(user), has = charged(user, DLXD_DESCRIPTORS);
        MUST(has == n || (w.n_shut_down > 0 && has > n && has - n <= (uint64_t)w.n_shut_down),
             "user %d has %ju descriptors, expected %ju", user, has, n);
        all += n;
    }
    MUST(w.broker.users.all_descriptors == all, "%ju descriptors are charged, expected %ju",
         w.broker.users.all_descriptors, all);
}

bool something_ends(void)
{
    dlx_for_each (it, &w.broker.clients) {
        const struct dlxd_client *client = dlxd_container_of(it, struct dlxd_client, node);
        if (dlxd_client_is_doomed(client))
            return true;
        dlx_for_each (other, &client->subscriptions)
            if (dlxd_subscription_is_doomed(
                    dlxd_container_of(other, struct dlxd_subscription, by_client)))
                return true;
    }
    return false;
}

void check_info(const Dlx__Wire__DaemonInfoReply *body)
{
    uint32_t n_clients = 0, n_pubs = 0, n_links = 0, n_leaving = 0;
    each_proc (c) {
        n_clients += c->greeted;
        n_leaving += c->greeted && c->must_go; /* the daemon may have ended its connection */
    }
    each_pub (p)
        n_pubs += p->state != PUB_GONE;
    each_link (l)
        n_links += !l->spare;
    for (int i = 0; i < w.n_drains; i++)
        MUST(!drain_has_left(&w.drains[i]), "link %ju drains, and has left", w.drains[i].link);
    n_links += (uint32_t)w.n_drains;
    uint64_t bytes = used_all() + dlxd_users_former_bytes(&w.broker.users);
    bool same =
        body->n_publishers == n_pubs && body->n_links == n_links && body->shared_bytes == bytes;
    bool more =
        body->n_publishers >= n_pubs && body->n_links >= n_links && body->shared_bytes >= bytes;
    MUST(body->n_clients <= n_clients && body->n_clients >= n_clients - n_leaving &&
             (same || (more && something_ends())),
         "%u clients of %u, %u publishers of %u, %u links of %u, %ju bytes of %ju", body->n_clients,
         n_clients, body->n_publishers, n_pubs, body->n_links, n_links, body->shared_bytes, bytes);
}

static void check_counts(void)
{
    size_t clients = 0, greeting = 0, refused = 0, pubs = 0, subs = 0, links = 0, topics = 0;
    const char *names[PUBS + SUBS];
    each_proc (c) {
        clients += c->greeted;
        greeting += c->connected && !c->greeted && !c->refused;
        refused += c->connected && c->refused;
    }
    each_pub (p) {
        if (p->state == PUB_GONE)
            continue;
        pubs++;
        names[topics++] = p->topic;
    }
    each_sub (s) {
        subs++;
        if (!strchr(s->topic, '*'))
            names[topics++] = s->topic;
    }
    for (size_t i = 0; i < topics; i++)
        for (size_t k = i + 1; k < topics;)
            if (strcmp(names[i], names[k]) == 0)
                names[k] = names[--topics];
            else
                k++;
    each_link (l)
        links++;
    const struct dlxd_registry *r = &w.broker.registry;
    MUST(w.broker.n_clients == clients && w.broker.n_greeting == greeting &&
             w.broker.n_refused == refused,
         "%zu clients, %zu greeting, %zu refused", w.broker.n_clients, w.broker.n_greeting,
         w.broker.n_refused);
    MUST(r->publishers.n == pubs, "%zu publishers, expected %zu", r->publishers.n, pubs);
    MUST(r->subscriptions.n == subs, "%zu subscriptions, expected %zu", r->subscriptions.n, subs);
    MUST(r->links.n == links, "%zu links, expected %zu", r->links.n, links);
    MUST(r->n_topics == topics, "%zu topics, expected %zu", r->n_topics, topics);
}

static int64_t fds_of_daemon(void)
{
    int64_t n = 0;
    bool has_page[USERS] = {false};
    each_proc (c)
        n += c->connected ? 2 + (c->waits != 0) : 0;
    each_pub (p) {
        if (p->proc)
            has_page[p->user] = true;
        n += (p->proc != NULL) + (p->dying && p->has_pidfd);
        for (int k = 0; k < p->n_r && regions_are_open(p); k++)
            n += !p->r[k].gone;
    }
    for (int user = 0; user < USERS; user++)
        n += has_page[user];
    each_sub (s)
        n++;
    n += 3 * w.n_waiters + w.n_drains + w.n_shut_down + edge_n_abandoned();
    each_group(g) n += g->page != 0 ? 2 : 0;
    for (int i = 0; i < w.n_drains; i++)
        n += is_last_of_its_process(i);
    n += (int64_t)former_descriptors(-1);
    each_link (l) {
        n += (l->state > LINK_NEW && l->state < LINK_FAILED) + (l->state == LINK_ADDED) +
             (l->state == LINK_ADDED && l->locked) + l->has_claims;
    }
    return n;
}

int64_t check_fds_of_peers(void)
{
    int64_t n = w.n_kept + w.n_barriers + former_n_pages();
    for (int i = 0; i < w.n_handed; i++)
        n += w.handed[i].fd >= 0;
    each_proc (c)
        n += (c->death >= 0) + (c->sock >= 0);
    each_pub (p) {
        n += p->link_sock >= 0;
        for (int k = 0; k < p->n_r; k++)
            n += p->r[k].fd >= 0;
    }
    each_sub (s)
        n += s->sock >= 0;
    each_link (l)
        n += l->page_fd >= 0;
    return n;
}

bool check_is_kept(const struct pub *p)
{
    return p->used && (p->retain > 0 || p->n_groups > 0 || p->is_bare) && !p->latched &&
           !p->not_kept && (p->state == PUB_OPEN || p->state == PUB_RETAINED);
}

static void check_store(void)
{
    char name[112];
    int n = 1, n_of[USERS] = {1}; /* the ledger is the daemon's own user's */
    each_pub (p) {
        if (!check_is_kept(p))
            continue;
        for (int k = 0; k < p->n_r; k++) {
            const struct region *r = &p->r[k];
            if (!region_is_ready(p, k))
                continue;
            (void)snprintf(name, sizeof name, "dlx-region-%ju-%u-%ju", p->id, r->id, r->order);
            MUST(edge_find(name) >= 0, "%s is not kept", name);
            n++;
            n_of[p->user]++;
        }
        (void)snprintf(name, sizeof name, "dlx-pid-%ju", p->id);
        MUST((edge_find(name) >= 0) == (p->proc || p->dying) || w.fired > 0,
             "pidfd of a publisher in state %d, dying %d", (int)p->state, p->dying);
        int more = (edge_find(name) >= 0) + groups_n_stored(p);
        n += more;
        n_of[p->user] += more;
    }
    for (int user = 0; user < USERS; user++)
        MUST(charged(user, DLXD_STORE_ENTRIES) == (uint64_t)n_of[user] || w.fired > 0,
             "user %d has %ju entries in the store, expected %d", user,
             charged(user, DLXD_STORE_ENTRIES), n_of[user]);
    /* What could not be dropped for lack of memory is not handed over. */
    bool may_be_more = w.fired > 0 && w.counts[22] > 0;
    MUST(w.broker.users.all_stored == (uint64_t)w.n_kept ||
             (may_be_more && w.broker.users.all_stored < (uint64_t)w.n_kept),
         "%ju entries in the store are charged, and it has %d", w.broker.users.all_stored,
         w.n_kept);
    MUST(w.n_kept == n || w.fired > 0, "%d descriptors are kept, expected %d", w.n_kept, n);
}

/* The daemon remembers the drops that a client has yet to acknowledge. */
static size_t n_remembered_drops(const struct pub *p)
{
    uint64_t regions = 0;
    each_link (l) {
        for (int k = l->n_landed; l->pub == p && k < l->n_drops; k++)
            regions |= UINT64_C(1) << l->drops[k].region;
    }
    return (size_t)__builtin_popcountll(regions);
}

/* Learns what the daemon alone knows: objects that did not fit into the store, or that it could not
 * get. */
static void learn(void)
{
    each_pub (p) {
        const struct dlxd_publisher *theirs = their_publisher(p->id);
        if (!theirs)
            continue;
        if (theirs->not_kept && !p->not_kept) {
            MUST(w.fired > 0 || w.max_fds < 1000 || p->no_page, "publisher %ju is not kept", p->id);
            p->not_kept = true;
        }
        MUST(theirs->dropped.n == n_remembered_drops(p), "%zu dropped regions are remembered",
             theirs->dropped.n);
        p->has_pidfd = theirs->dying_pidfd >= 0;
        MUST(p->has_pidfd == p->dying || w.fired > 0, "dying %d", p->dying);
        if (w.fired > 0 && p->state == PUB_RETAINED) {
            p->expires = theirs->expires_ns;
            p->unseen = p->dying && !theirs->death;
        }
        MUST(p->state != PUB_RETAINED || p->expires == theirs->expires_ns, "it expires at %ju",
             theirs->expires_ns);
    }
}

void check_all(void)
{
    if (!w.running)
        return;
    w.queued |= w.store && w.faults > 0; /* what could not be posted in whole is sent later */
    learn();
    check_charges();
    groups_check();
    former_check();
    check_counts();
    each_pub (p) {
        if (p->proc && p->line)
            MUST(n_joins(p) == p->joins && p->line[1] == p->leaves,
                 "publisher %ju: %ju joins and %ju leaves, expected %ju and %ju", p->id, n_joins(p),
                 p->line[1], p->joins, p->leaves);
    }
    for (int i = 0; i < w.n_waiters; i++)
        MUST(!w.waiters[i].left, "link %ju waits, whose subscriber has left", w.waiters[i].link);
    if (w.store && !w.queued)
        check_store();
    if (!w.queued) {
        check_descriptors();
        int64_t expected = fds_of_daemon() + check_fds_of_peers() + w.store;
        if (w.open_fds != expected)
            sim_print_fds();
        MUST(w.open_fds == expected, "%jd descriptors are open, expected %jd", w.open_fds,
             expected);
    }
    check_nothing_is_owed(NULL);
}

/* PublisherGone is in order with what needs credit: is there any? */
static bool is_behind_another(const struct link *l)
{
    bool for_credit;
    if (l->state != LINK_OPEN || l->first_drop < l->n_drops)
        return false;
    each_link (other)
        if (other->sub == l->sub && link_is_owed(other, &for_credit) && for_credit)
            return true;
    return false;
}

/* Checks that all packets that can be sent were sent. */
void check_nothing_is_owed(const struct pub *p)
{
    each_link (l) {
        bool for_credit;
        if (p && (l->pub != p || l->state != LINK_OPEN))
            continue;
        const struct sub *s = l->sub;
        if (s->stalled || s->gone_sock || !link_is_owed(l, &for_credit))
            continue;
        MUST((for_credit || is_behind_another(l)) && s->sent - s->ack >= credit_of(s),
             "link %ju in state %d: something is due and was not sent", l->id, (int)l->state);
    }
}
