/* SPDX-License-Identifier: Apache-2.0 */

/* The answer that each request should get, and its consequences. */

#include "ring/layout.h"
#include "common/topic.h"
#include "tests/daemon/sim_daemon/sim.h"

static struct pub *own_pub(struct proc *c, uint64_t id)
{
    struct pub *p = pub_by_id(id);
    return p && p->proc == c && p->state != PUB_GONE ? p : NULL;
}

static int find_region(const struct pub *p, uint32_t id)
{
    for (int i = 0; i < p->n_r; i++)
        if (!p->r[i].gone && p->r[i].id == id)
            return i;
    return -1;
}

static int code_of_publisher_new(struct proc *c, const Dlx__Wire__PublisherNew *body)
{
    int user = c->user;
    bool twice = body->n_groups > 1 && strcmp(body->groups[0], body->groups[1]) == 0;
    bool stays = (body->retain > 0 || body->n_groups > 0) && !body->latched;
    if (twice || body->history == 0 || body->depth == 0 || body->n_entries % 256 != 0 ||
        body->n_entries < 2 * body->depth)
        return DLX_E_INVALID;
    if (is_denied(user, body->topic))
        return DLX_E_ACCESS;
    uint64_t size = dlx_shm_control_size(body->n_entries);
    uint64_t page = n_pages(user) == 0 ? DLX_PAGE : 0;
    if (used(user, DLXD_OBJECTS) >= w.max[DLXD_OBJECTS] ||
        !bytes_fit_after_look(user, size + page) || !retained_bytes_fit(user, stays, size))
        return DLX_E_LIMIT;
    return 0;
}

static struct terms terms_of(const Dlx__Wire__Subscribe *body)
{
    struct terms terms = {.lease = body->lease_ns, .max_attempts = body->max_attempts};
    (void)snprintf(terms.group, sizeof terms.group, "%s", body->group);
    return terms;
}

/* The first client that subscribes to it has it for itself. */
static bool is_others_inbox(const struct proc *c, const char *topic)
{
    each_sub (s)
        if (dlx__is_inbox(topic) && strcmp(s->topic, topic) == 0 && s->proc != c)
            return true;
    return false;
}

static int code_of_subscribe(struct proc *c, const Dlx__Wire__Subscribe *body)
{
    int user = c->user;
    struct terms terms = terms_of(body);
    if (*terms.group && (body->mode == 1 || body->history > 0 || strchr(terms.group, ' ') ||
                         terms.max_attempts < 1 || terms.max_attempts > 60))
        return DLX_E_INVALID;
    if (is_denied(user, body->topic) || is_others_inbox(c, body->topic))
        return DLX_E_ACCESS;
    if (used(user, DLXD_OBJECTS) >= w.max[DLXD_OBJECTS] ||
        (strchr(body->topic, '*') && used(user, DLXD_PATTERNS) >= w.max[DLXD_PATTERNS]))
        return DLX_E_LIMIT;
    /* The first publisher that does not fit decides. */
    const struct sub s = {.proc = c, .reliable = body->reliable, .terms = terms};
    struct pub *p;
    const char *topic = "";
    int r = 0;
    for (uint64_t id = 0; r == 0 && (p = pub_listed_after(topic, id)); topic = p->topic, id = p->id)
        if (dlx__pattern_matches(body->topic, p->topic) && !is_denied(user, p->topic) &&
            (!p->shown || joins_shown(&s)) && pub_is_offered(&s, p))
            r = sub_fits(&terms, body->reliable, user, p, &w.says);
    return r;
}

/* A publisher that comes back has its first arena beside what it keeps. */
static bool former_fits(const struct pub *p, int user, uint64_t size)
{
    uint64_t former = former_bytes(user);
    return former == 0 || (p->state == PUB_NEW && p->resumes != 0) ||
           used(user, DLXD_BYTES) + former + size <= w.max[DLXD_BYTES];
}

static int code_of_arena_new(struct proc *c, const Dlx__Wire__ArenaNew *body)
{
    const struct pub *p = own_pub(c, body->publisher);
    int user = c->user;
    if (!p)
        return DLX_E_NOT_FOUND;
    if (!former_fits(p, user, body->arena_size)) {
        former_looked(user);
        if (!former_fits(p, user, body->arena_size))
            return DLX_E_LIMIT;
    }
    return bytes_fit_after_look(user, body->arena_size) &&
                   retained_bytes_fit(user, p->may_retain, body->arena_size)
               ? 0
               : DLX_E_LIMIT;
}

static int code_of_arena_ready(struct proc *c, const Dlx__Wire__ArenaReady *body)
{
    const struct pub *p = own_pub(c, body->publisher);
    w.region = p && body->arena > 0 ? find_region(p, body->arena) : -1;
    if (w.region < 0 || p->r[w.region].order)
        return DLX_E_NOT_FOUND;
    return p->r[w.region].filled ? 0 : DLX_E_BAD_PEER;
}

static int code_of_arena_drop(struct proc *c, const Dlx__Wire__ArenaDrop *body)
{
    const struct pub *p = own_pub(c, body->publisher);
    w.region = p && body->arena > 0 ? find_region(p, body->arena) : -1;
    return w.region < 0 ? DLX_E_NOT_FOUND : 0;
}

static int code_of_publisher_ready(struct proc *c, uint64_t id)
{
    const struct pub *p = own_pub(c, id);
    if (!p)
        return DLX_E_NOT_FOUND;
    if (p->state != PUB_NEW)
        return p->awaited ? 0 : DLX_E_IN_USE;
    return p->r[0].filled ? 0 : DLX_E_BAD_PEER;
}

static int code_of_drop(struct proc *c, const char *topic, bool of_groups)
{
    bool other = false;
    w.n = 0;
    each_pub (p) {
        if (p->state != PUB_RETAINED || strcmp(p->topic, topic) != 0 ||
            (of_groups ? p->n_groups : p->retain) == 0)
            continue;
        if (c->user < 2 || c->user == p->user)
            w.n++;
        else
            other = true;
    }
    return w.n > 0 ? 0 : other ? DLX_E_ACCESS : DLX_E_NOT_FOUND;
}

static int code_of(struct proc *c, const Dlx__Wire__Packet *packet)
{
    const struct sub *s;
    switch (packet->body_case) {
    case BODY(HELLO):
        return packet->hello->major == DLX_PROTO_MAJOR ? 0 : DLX_E_VERSION;
    case BODY(PUBLISHER_NEW):
        return code_of_publisher_new(c, packet->publisher_new);
    case BODY(PUBLISHER_READY):
        return code_of_publisher_ready(c, packet->publisher_ready->publisher);
    case BODY(PUBLISHER_CLOSE):
        return own_pub(c, packet->publisher_close->publisher) ? 0 : DLX_E_NOT_FOUND;
    case BODY(PUBLISHER_RETAINS):
        return own_pub(c, packet->publisher_retains->publisher) ? 0 : DLX_E_NOT_FOUND;
    case BODY(RETAINED_DROP):
        return code_of_drop(c, packet->retained_drop->topic, false);
    case BODY(GROUPS_DROP):
        return code_of_drop(c, packet->groups_drop->topic, true);
    case BODY(ARENA_NEW):
        return code_of_arena_new(c, packet->arena_new);
    case BODY(ARENA_READY):
        return code_of_arena_ready(c, packet->arena_ready);
    case BODY(ARENA_DROP):
        return code_of_arena_drop(c, packet->arena_drop);
    case BODY(SUBSCRIBE):
        return code_of_subscribe(c, packet->subscribe);
    case BODY(SUBSCRIPTION_CLOSE):
        s = sub_by_id(packet->subscription_close->subscription);
        return s && s->proc == c ? 0 : DLX_E_NOT_FOUND;
    case BODY(LIST_CLAIMS):
        each_pub (p)
            if (p->state != PUB_GONE && p->id == packet->list_claims->publisher &&
                !dlx__is_inbox(p->topic) && group_numbered(p, packet->list_claims->group))
                return 0;
        return DLX_E_NOT_FOUND;
    case BODY(LIST_LINKS):
        each_pub (p)
            if (p->state != PUB_GONE && p->id == packet->list_links->publisher &&
                !dlx__is_inbox(p->topic))
                return 0;
        return DLX_E_NOT_FOUND;
    default:
        return 0;
    }
}

static bool is_of_groups(Dlx__Wire__Packet__BodyCase body)
{
    return body == BODY(GROUPS_DROP) || body == BODY(LIST_GROUPS) || body == BODY(LIST_CLAIMS);
}

static bool is_request(Dlx__Wire__Packet__BodyCase body)
{
    return is_of_groups(body) || (body >= BODY(HELLO) && body != BODY(HELLO_REPLY) &&
                                  body != BODY(OK) && body <= BODY(RETAINED_DROP));
}

/* Is it of a version that the client does not speak? */
static bool is_too_new(struct proc *c, const Dlx__Wire__Packet *packet)
{
    Dlx__Wire__Packet__BodyCase body = packet->body_case;
    return c->greeted && c->minor < 8 &&
           (is_of_groups(body) ||
            (body == BODY(PUBLISHER_NEW) && packet->publisher_new->n_groups > 0 &&
             code_of(c, packet) != DLX_E_INVALID) ||
            (body == BODY(SUBSCRIBE) && *packet->subscribe->group &&
             code_of(c, packet) != DLX_E_INVALID));
}

static bool is_violation(struct proc *c, const Dlx__Wire__Packet *packet)
{
    bool silent =
        packet->body_case == BODY(ARENA_DROP) || packet->body_case == BODY(PUBLISHER_RETAINS);
    if (!is_request(packet->body_case) || (packet->serial == 0 && !silent))
        return true;
    return !c->refused &&
           ((packet->body_case == BODY(HELLO)) == c->greeted || is_too_new(c, packet));
}

static void drop_all(const char *topic, int user, bool of_groups)
{
    each_pub (p) {
        if (p->state != PUB_RETAINED || strcmp(p->topic, topic) != 0 ||
            (user >= 2 && user != p->user))
            continue;
        if (of_groups && p->n_groups > 0)
            pub_forget_groups(p);
        else if (!of_groups && p->retain > 0)
            pub_forget_retained(p);
    }
}

/* Consequences that the answer cannot change, and that may be told before it. */
static void commit_early(struct proc *c, const Dlx__Wire__Packet *packet)
{
    switch (packet->body_case) {
    case BODY(PUBLISHER_CLOSE):
        pub_end(own_pub(c, packet->publisher_close->publisher), true);
        break;
    case BODY(PUBLISHER_RETAINS):
        pub_succeed(own_pub(c, packet->publisher_retains->publisher));
        break;
    case BODY(RETAINED_DROP):
        drop_all(packet->retained_drop->topic, c->user, false);
        break;
    case BODY(GROUPS_DROP):
        drop_all(packet->groups_drop->topic, c->user, true);
        break;
    case BODY(ARENA_DROP):
        w.calm = true;
        region_drop(own_pub(c, packet->arena_drop->publisher), w.region);
        break;
    case BODY(SUBSCRIPTION_CLOSE):
        sub_by_id(packet->subscription_close->subscription)->closing = true;
        break;
    case BODY(DAEMON_INFO):
        former_looked(-1);
        break;
    default:
        break;
    }
}

void request_proves(void)
{
    struct proc *c = w.asker;
    const Dlx__Wire__Packet *packet = w.request;
    MUST(packet->body_case == BODY(ARENA_READY) || packet->body_case == BODY(PUBLISHER_READY),
         "%s waits", dlx__proto_name(packet));
    MUST(w.code == 0 || w.code == DLX_E_BAD_PEER, "it should be answered with %d", w.code);
    c->proving.serial = packet->serial;
    c->proving.body = packet->body_case;
    if (packet->body_case == BODY(ARENA_READY)) {
        c->proving.publisher = packet->arena_ready->publisher;
        c->proving.arena = packet->arena_ready->arena;
    } else {
        c->proving.publisher = packet->publisher_ready->publisher;
        MUST(!own_pub(w.asker, c->proving.publisher)->awaited, "it is ready already");
    }
    w.asker = NULL;
}

void request_goes_on(struct proc *c)
{
    static Dlx__Wire__Packet packet = DLX__WIRE__PACKET__INIT;
    static Dlx__Wire__ArenaReady arena = DLX__WIRE__ARENA_READY__INIT;
    static Dlx__Wire__PublisherReady publisher = DLX__WIRE__PUBLISHER_READY__INIT;
    MUST(c->connected && c->proving.serial > 0, "process %d waits for nothing", number_of(c));
    packet.serial = c->proving.serial;
    packet.body_case = c->proving.body;
    arena.publisher = publisher.publisher = c->proving.publisher;
    arena.arena = c->proving.arena;
    packet.arena_ready = &arena;
    if (packet.body_case == BODY(PUBLISHER_READY))
        packet.publisher_ready = &publisher;
    c->proving.serial = 0;
    request_over();
    w.request = &packet;
    w.asker = c;
    w.says = (struct says){.first = ""};
    w.code = code_of(c, &packet);
    MUST(w.code == 0 || w.code == DLX_E_BAD_PEER, "it has become %d", w.code);
    struct pub *p = own_pub(c, arena.publisher);
    w.ready_due = w.is_behind = w.code == 0 && packet.body_case == BODY(PUBLISHER_READY);
    if (w.ready_due)
        pub_resume(p);
    if (w.code == 0 && !w.ready_due)
        p->r[w.region].order = ++p->last_order;
}

void request_shows(void)
{
    if (!w.ready_due)
        return;
    w.ready_due = false;
    struct pub *p = pub_by_id(w.request->publisher_ready->publisher);
    p->state = PUB_OPEN;
    pub_offer(p, true);
    catch_up();
}

/* The one before was answered, or waits for the service manager. */
void request_over(void)
{
    if (w.asker) {
        struct proc *c = w.asker;
        MUST((w.store && w.request->body_case == BODY(PUBLISHER_CLOSE)) || !c->connected,
             "%s was not answered", dlx__proto_name(w.request));
        if (c->connected)
            c->waits = w.request->serial;
    }
    w.asker = NULL;
    w.link_ready = 0;
    w.ready_due = false;
    catch_up();
    w.calm = w.fds_refused = false;
}

void on_request(struct proc *c, const Dlx__Wire__Packet *packet)
{
    request_over();
    links_reconcile(); /* packets that were sent since the one before may have failed */
    MUST(c->waits == 0 && c->proving.serial == 0, "a request is read while the one before waits");
    w.counts[0]++;
    sim_say("process %d: %s %u", number_of(c), dlx__proto_name(packet), packet->serial);
    if (is_violation(c, packet)) {
        c->must_go = c->dismissed = true;
        return;
    }
    w.request = packet;
    w.says = (struct says){.first = ""};
    w.code = c->refused ? DLX_E_LIMIT : code_of(c, packet);
    if (w.code == 0)
        commit_early(c, packet);
    if (packet->body_case == BODY(HELLO) && w.code < 0)
        c->must_go = true;
    if (packet->serial != 0)
        w.asker = c;
}

static void new_id(uint64_t id)
{
    MUST(id > w.highest_id, "id %ju after %ju", id, w.highest_id);
}

static void add_region(struct pub *p, uint32_t id, uint64_t size, int fd)
{
    MUST(p->n_r < REGIONS, "no room for a region in the model");
    p->r[p->n_r++] = (struct region){.id = id, .size = size, .ino = sim_inode(fd), .fd = -1};
    MUST((fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR, "its writer cannot write");
}

static void publisher_made(struct proc *c, const Dlx__Wire__PublisherNew *asked,
                           const Dlx__Wire__PublisherNewReply *body, const int *fds, size_t n_fds)
{
    struct pub *p = pub_add();
    MUST(n_fds == 3 && !pub_by_id(body->publisher), "PublisherNewReply");
    new_id(body->publisher);
    MUST(body->control_size == dlx_shm_control_size(asked->n_entries), "size");
    p->id = body->publisher;
    p->proc = c;
    p->user = c->user;
    p->pid = c->pid;
    memcpy(p->name, c->name, sizeof p->name);
    (void)snprintf(p->topic, sizeof p->topic, "%s", asked->topic);
    p->history = asked->history;
    p->depth = asked->depth;
    p->n_entries = asked->n_entries;
    p->on_full = asked->on_full;
    p->retain = asked->retain;
    p->latched = asked->latched;
    p->retain_for = asked->retain_for_ns;
    p->resumes = asked->resumes;
    p->after_seq = asked->after_seq;
    p->max_held = asked->max_held;
    p->max_held_bytes = asked->max_held_bytes;
    p->may_retain = (asked->retain > 0 || asked->n_groups > 0) && !asked->latched;
    p->workers = w.names_workers && strcmp(p->topic, "a/c") == 0 ? 2 : -1;
    groups_declare(p, asked->groups, asked->n_groups);
    add_region(p, 0, body->control_size, fds[0]);
    int dsock = w.fds[fds[2]].peer;
    w.fds[dsock] = (struct fd_info){.kind = FD_LINKS, .of = p, .peer = -1};
    p->line_no = body->membership_line;
}

static void subscription_made(struct proc *c, const Dlx__Wire__Subscribe *asked,
                              const Dlx__Wire__SubscribeReply *body, const int *fds, size_t n_fds)
{
    int i = 0;
    uint32_t n = 0;
    MUST(n_fds == 1 && !sub_by_id(body->subscription), "SubscribeReply");
    while (i < SUBS && w.subs[i].used)
        i++;
    MUST(i < SUBS, "no room for a subscription in the model");
    struct sub *s = &w.subs[i];
    *s = (struct sub){.used = true,
                      .id = body->subscription,
                      .proc = c,
                      .reliable = asked->reliable,
                      .mode = asked->mode,
                      .max_held = asked->max_held,
                      .n_spares = asked->n_spares,
                      .terms = terms_of(asked),
                      .sock = -1,
                      .dsock = w.fds[fds[0]].peer};
    (void)snprintf(s->topic, sizeof s->topic, "%s", asked->topic);
    w.fds[s->dsock] = (struct fd_info){.kind = FD_SUB, .of = s, .peer = -1};
    uint64_t first = w.last_link + 1;
    struct pub *p;
    const char *topic = "";
    for (uint64_t id = 0; (p = pub_listed_after(topic, id)); topic = p->topic, id = p->id)
        if (matches(s, p) && (!p->shown || joins_shown(s)) && pub_is_offered(s, p)) {
            link_add(s, p, false);
            n++;
        }
    n += spares_add(s, UINT32_MAX);
    MUST(body->n_offers == n, "%u offers, expected %u", body->n_offers, n);
    s->first = n > 0 ? first : 0;
}

/* Before the answer: it has every spare that it got, unless its link socket, or the kernel, refused
 * that for now. */
static void check_has_spares(const struct pub *p)
{
    each_link (l) {
        if (l->early && l->pub == p)
            MUST(l->state != LINK_READY || l->sub->stalled,
                 "publisher %ju may publish before it has link %ju", p->id, l->id);
    }
}

static void check_publishers(const Dlx__Wire__ListPublishers *asked,
                             const Dlx__Wire__PublisherList *body)
{
    const char *topic = asked->after_topic;
    uint64_t id = *topic ? asked->after_publisher : 0;
    struct pub *p;
    size_t n = 0;
    for (; (p = pub_listed_after(topic, id)); topic = p->topic, id = p->id) {
        if (!dlx__pattern_matches(*asked->topic ? asked->topic : "**", p->topic))
            continue;
        if (n++ == 16)
            break;
        MUST(n <= body->n_entries, "publisher %ju is not listed", p->id);
        const Dlx__Wire__PublisherEntry *e = body->entries[n - 1];
        uint64_t bytes = 0;
        uint32_t n_arenas = 0, n_links = n_links_of(p);
        for (int i = 1; i < p->n_r; i++) {
            if (!region_is_ready(p, i))
                continue;
            bytes += p->r[i].size;
            n_arenas++;
        }
        MUST(
            e->publisher == p->id && strcmp(e->topic, p->topic) == 0 &&
                strcmp(e->client_name, p->name) == 0 && e->pid == (uint32_t)p->pid &&
                (e->n_subscribers == n_links || (something_ends() && e->n_subscribers > n_links)) &&
                e->n_arenas == n_arenas && e->arena_bytes == bytes &&
                e->control_bytes == p->r[0].size && e->history == p->history &&
                e->retain == p->retain && e->on_full == p->on_full && e->depth == p->depth &&
                e->retained == (p->state == PUB_RETAINED && !p->shown),
            "entry of publisher %ju", p->id);
    }
    MUST(body->n_entries == (n > 16 ? 16 : n) && body->more == (n > 16), "%zu entries", n);
}

static void check_links(const Dlx__Wire__ListLinks *asked, const Dlx__Wire__LinkList *body)
{
    size_t n = 0;
    uint64_t after = asked->after_link;
    for (;;) {
        const struct link *next = NULL;
        each_link (l) {
            if (l->pub && l->pub->id == asked->publisher && l->state == LINK_OPEN &&
                l->id > after && (!next || l->id < next->id))
                next = l;
        }
        if (!next || n++ == 32)
            break;
        MUST(n <= body->n_entries && body->entries[n - 1]->link == next->id &&
                 body->entries[n - 1]->reliable == next->sub->reliable &&
                 body->entries[n - 1]->max_held == next->sub->max_held,
             "link %ju is not listed", next->id);
        after = next->id;
    }
    MUST(body->n_entries == (n > 32 ? 32 : n) && body->more == (n > 32), "%zu entries", n);
}

/* The request failed for a lack, although everything was right, and has changed nothing. */
static void undone(struct proc *c, const Dlx__Wire__Packet *request, const Dlx__Wire__Error *error)
{
    bool lack = error->code == DLX_E_NO_MEMORY || error->code == DLX_E_FD_LIMIT;
    bool left = c->hung_up && error->code == DLX_E_DISCONNECTED;
    MUST((w.faults > 0 && lack) || (w.fds_refused && (error->code == DLX_E_LIMIT || lack || left)),
         "%s: %s: %s", dlx__proto_name(request), dlx__error_name(error->code), error->text);
    w.counts[1]++;
    struct pub *p = NULL;
    if (request->body_case == BODY(ARENA_READY)) {
        p = own_pub(c, request->arena_ready->publisher);
        const struct dlxd_publisher *theirs = their_publisher(p->id);
        p->last_order = theirs->last_ready_seq;
        p->r[w.region].order = 0;
        p->r[w.region].gone = !dlxd_arenas_find(&theirs->unready, request->arena_ready->arena);
    } else if (request->body_case == BODY(ARENA_NEW)) {
        p = own_pub(c, request->arena_new->publisher);
        if (w.fds_refused) /* its number is not used again */
            p->last_region++;
    } else if (request->body_case == BODY(PUBLISHER_CLOSE)) {
        MUST(false, "a publisher could not be closed");
    }
    each_pub (of) { /* numbers of groups are not used again */
        const struct dlxd_publisher *theirs = their_publisher(of->id);
        if (theirs && request->body_case == BODY(SUBSCRIBE))
            of->last_group = theirs->last_group;
    }
    w.last_link = w.broker.registry.last_link;
}

static void refused(struct proc *c, const Dlx__Wire__Packet *request, const Dlx__Wire__Error *error)
{
    bool lack = w.faults > 0 && (error->code == DLX_E_NO_MEMORY || error->code == DLX_E_FD_LIMIT);
    MUST(error->code == w.code || lack, "%s: %s, expected %s: %s", dlx__proto_name(request),
         dlx__error_name(error->code), dlx__error_name(w.code), error->text);
    MUST(strlen(error->text) > 10, "%s says only '%s'", dlx__proto_name(request), error->text);
    MUST(error->code != DLX_E_LIMIT || w.fired > 0 || strpbrk(error->text, "0123456789"),
         "no limit: %s", error->text);
    if (!lack)
        must_say(&w.says, error->text);
    w.counts[2]++;
    if (request->body_case == BODY(PUBLISHER_READY) && w.code == DLX_E_BAD_PEER && !lack)
        pub_vanish(own_pub(c, request->publisher_ready->publisher));
    if (request->body_case == BODY(ARENA_READY) && w.code == DLX_E_BAD_PEER && !lack)
        own_pub(c, request->arena_ready->publisher)->r[w.region].gone = true;
    if (request->body_case == BODY(SUBSCRIBE))
        w.last_link = w.broker.registry.last_link;
}

static void done(struct proc *c, const Dlx__Wire__Packet *request, const Dlx__Wire__Packet *reply,
                 const int *fds, size_t n_fds)
{
    struct pub *p;
    switch (reply->body_case) {
    case BODY(HELLO_REPLY):
        c->greeted = true;
        c->max_links = request->hello->max_links;
        c->minor = request->hello->minor;
        break;
    case BODY(PUBLISHER_NEW_REPLY):
        publisher_made(c, request->publisher_new, reply->publisher_new_reply, fds, n_fds);
        break;
    case BODY(ARENA_NEW_REPLY):
        p = own_pub(c, request->arena_new->publisher);
        MUST(reply->arena_new_reply->arena == ++p->last_region, "number of an arena");
        add_region(p, p->last_region, request->arena_new->arena_size, fds[0]);
        break;
    case BODY(SUBSCRIBE_REPLY):
        subscription_made(c, request->subscribe, reply->subscribe_reply, fds, n_fds);
        break;
    case BODY(RETAINED_DROP_REPLY):
        MUST(reply->retained_drop_reply->n_dropped == w.n, "%u were dropped", w.n);
        break;
    case BODY(DAEMON_INFO_REPLY):
        check_info(reply->daemon_info_reply);
        break;
    case BODY(CLAIM_LIST):
        check_claim_list(request->list_claims, reply->claim_list);
        break;
    case BODY(GROUP_LIST):
        check_group_list(c, request->list_groups, reply->group_list);
        break;
    case BODY(PUBLISHER_LIST):
        check_publishers(request->list_publishers, reply->publisher_list);
        break;
    case BODY(LINK_LIST):
        check_links(request->list_links, reply->link_list);
        break;
    default:
        if (request->body_case == BODY(ARENA_READY)) /* its news came before the answer */
            check_nothing_is_owed(own_pub(c, request->arena_ready->publisher));
        if (request->body_case != BODY(PUBLISHER_READY))
            break;
        links_reconcile(); /* an object that was refused memory has failed, and no client waits for
                              it */
        p = own_pub(c, request->publisher_ready->publisher);
        MUST(!pub_is_awaited(p), "publisher %ju waits for nobody", p->id);
        p->awaited = false;
        break;
    }
}

void on_reply(struct proc *c, const Dlx__Wire__Packet *packet, const int *fds, size_t n_fds)
{
    if (!w.running)
        return;
    c->unread++;
    if (c->waits && packet->serial == c->waits) {
        MUST(packet->body_case == BODY(OK), "what waited is answered with an error");
        c->waits = 0;
        return;
    }
    MUST(w.asker == c && packet->serial == w.request->serial, "nobody asked for serial %u",
         packet->serial);
    w.asker = NULL;
    w.counts[3]++;
    sim_say("process %d: answer %u: %s", number_of(c), packet->serial,
            packet->body_case == BODY(ERROR) ? packet->error->text : "yes");
    bool waits = packet->body_case == BODY(ERROR) && packet->error->code == DLX_E_FULL;
    if (waits || packet->body_case != BODY(ERROR))
        request_shows();
    w.ready_due = false;
    catch_up();
    if (w.faults == 0 && w.request->body_case == BODY(PUBLISHER_READY) &&
        (waits || packet->body_case == BODY(OK)) && c->alive && !c->hung_up && !c->must_go &&
        !own_pub(c, w.request->publisher_ready->publisher)->awaited)
        check_has_spares(own_pub(c, w.request->publisher_ready->publisher));
    if (waits) {
        struct pub *p = pub_by_id(w.request->publisher_ready->publisher);
        MUST(w.code == 0 && w.request->body_case == BODY(PUBLISHER_READY) && pub_is_awaited(p),
             "%s waits", dlx__proto_name(w.request));
        MUST(strstr(packet->error->text, "pid "), "it says only '%s'", packet->error->text);
        p->awaited = true;
        w.counts[17]++;
    } else if (packet->body_case != BODY(ERROR)) {
        MUST(w.code == 0, "%s was granted, expected %s", dlx__proto_name(w.request),
             dlx__error_name(w.code));
        done(c, w.request, packet, fds, n_fds);
    } else if (w.code == 0) {
        undone(c, w.request, packet->error);
    } else {
        refused(c, w.request, packet->error);
    }
    links_reconcile();
}
