/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/link.h"
#include "common/error.h"
#include "common/memory.h"
#include "common/probes.h"
#include "ring/layout.h"
#include "daemon/objects/connection.h"
#include "daemon/objects/drain.h"
#include "daemon/objects/group.h"
#include "daemon/objects/pending_join.h"
#include "daemon/objects/publisher.h"
#include "daemon/objects/refusal.h"
#include "daemon/memory/proof.h"
#include "daemon/users/outbox.h"
#include "daemon/users/share.h"
#include "daemon/base/worker.h"
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The limit comes from the Hello of the process: client/base/limits.c computes it. */
#define LIMIT_REMEDY                                                                               \
    ", by its limits of open files and mappings): raise them (ulimit -n, LimitNOFILE=; "           \
    "vm.max_map_count)"

/* Adds the draining links to an error about a limit. */
static int tell_draining(int r, size_t n)
{
    return n == 0 ? r : dlx__fail_prefix(r, "%zu closed subscriptions still hold messages", n);
}

/* Has the client room for a link that counts for `n` of its links? */
static int check_client(struct dlxd_client *client, uint32_t n, const char *role)
{
    struct dlxd_drains *reads = &client->holder->drains, *writes = &client->drains;
    if (client->n_links + n > client->max_links) {
        dlxd_drains_look(reads);
        dlxd_drains_look(writes);
    }
    if (client->n_links + n <= client->max_links)
        return 0;
    int r = dlx__fail(DLX_E_LIMIT, "%s %s (pid %d) has %zu links%s (limit %u" LIMIT_REMEDY, role,
                      client->name, (int)client->pid, client->n_links,
                      n > 1 ? ", those of a group's worker counted twice" : "", client->max_links);
    return tell_draining(r, reads->n + writes->n);
}

static int charge_user(struct dlxd_charge *charge, struct dlxd_user *user,
                       enum dlxd_resource resource, uint64_t amount)
{
    int r = dlxd_flights_charge(charge, user, resource, amount);
    if (r == 0 || user->drains.n == 0)
        return r;
    dlxd_drains_look(&user->drains);
    r = dlxd_charge_init(charge, user, resource, amount);
    return r == 0 ? 0 : tell_draining(r, user->drains.n);
}

static bool link_is_fair(const struct dlxd_client *client, const struct dlxd_user *user)
{
    return user == client->user || dlxd_share_is_fair(dlxd_share_of(&client->shares, user) + 1,
                                                      client->max_links - client->n_links - 1);
}

/* No user may take all links of another user's publisher. The client has room for one link. */
static int link_check_share(struct dlxd_client *client, const struct dlxd_user *user)
{
    if (!link_is_fair(client, user))
        dlxd_drains_look(&client->drains);
    if (link_is_fair(client, user))
        return 0;
    int r =
        dlx__fail(DLX_E_LIMIT,
                  "publisher %s (pid %d) has %zu links (limit %u): uid %u has %" PRIu32
                  " of them, and may have at most %u times what is left",
                  client->name, (int)client->pid, client->n_links, client->max_links,
                  (unsigned)user->uid, dlxd_share_of(&client->shares, user), DLXD_SHARE_OF_LEFT);
    return tell_draining(r, client->drains.n);
}

static int check_clients(const struct dlxd_link *link, const struct dlxd_publisher *publisher)
{
    struct dlxd_client *reader = link->subscription->client, *writer = publisher->client;
    int r = check_client(reader, link->drain->n_links, "subscriber");
    if (r == 0 && writer)
        r = check_client(writer, 1, "publisher");
    return r == 0 && writer ? link_check_share(writer, reader->user) : r;
}

/* Charges the subscriber's user; given back when the link becomes FAILED. */
static int link_charge(struct dlxd_link *link)
{
    struct dlxd_user *user = link->subscription->client->user;
    int r = charge_user(&link->drain->links_charge, user, DLXD_LINKS, 1);
    return r < 0 ? r : charge_user(&link->drain->bytes_charge, user, DLXD_BYTES, link->page_size);
}

/* Inserts by id: a spare link has a lower id than links that were made since. */
static void insert_by_id(struct dlxd_list *links, struct dlxd_link *link)
{
    struct dlxd_list *after = links->prev;
    while (after != links && dlxd_link_id(dlxd_container_of(after, struct dlxd_link,
                                                            by_publisher)) > dlxd_link_id(link))
        after = after->prev;
    dlxd_list_push_front(after, &link->by_publisher);
}

static int attach(struct dlxd_link *link, struct dlxd_publisher *publisher)
{
    struct dlxd_client *writer = publisher->client;
    struct dlxd_user *user = link->subscription->client->user;
    int r = dlxd_publisher_index_get(publisher, &link->index);
    if (r < 0)
        return r;
    if (writer && writer->user != user) {
        link->drain->share = dlxd_share_take(&writer->shares, user);
        if (!link->drain->share) {
            dlxd_publisher_index_put(publisher, link->index);
            return DLX_E_NO_MEMORY;
        }
    }
    link->publisher = publisher;
    link->subscription->n_served++;
    dlxd_list_remove(&link->by_publisher);
    insert_by_id(&publisher->links, link);
    publisher->n_links++;
    if (writer)
        writer->n_links++;
    link->subscription->client->n_links += link->drain->n_links;
    DLX_PROBE_DAEMON_ATTACH(dlxd_publisher_id(publisher), dlxd_link_id(link), publisher->topic_name,
                            publisher->pid, link->subscription->client->pid);
    return 0;
}

/* The link is no longer a spare. */
static void count_out(struct dlxd_link *link)
{
    link->subscription->n_spares--;
    link->subscription->broker->registry.n_spares--;
}

static void close_join_fds(struct dlxd_link *link)
{
    link->locked_fd = dlx__close(link->locked_fd);
    link->bell_fd =
        dlxd_workers_close_socket(link->workers, link->subscription->client->user, link->bell_fd);
    dlxd_charge_deinit(&link->join_charge);
    dlxd_group_close_claims(link);
}

static void release_resources(struct dlxd_link *link)
{
    link->proof = dlxd_proof_abandon(link->proof);
    close_join_fds(link);
    link->drain = dlxd_drain_free(link->drain);
}

/* The link ends: it counts as told of every dropped arena. */
static void let_go_of_dropped(struct dlxd_link *link)
{
    struct dlxd_arena *arena;
    while (!dlxd_list_empty(&link->drops)) {
        struct dlxd_flight *flight =
            dlxd_container_of(link->drops.next, struct dlxd_flight, of_link);
        arena = flight->arena;
        dlxd_flight_free(flight);
        dlxd_publisher_drop_acknowledged(link, arena);
    }
    while ((arena = dlxd_link_next_dropped(link))) {
        link->drop_seq = arena->drop_seq;
        dlxd_publisher_drop_acknowledged(link, arena);
    }
}

void dlxd_link_drop_landed(struct dlxd_flight *flight)
{
    dlxd_list_remove(&flight->of_arena);
    dlxd_publisher_drop_acknowledged(flight->link, flight->arena);
}

/* Undoes attach(). A draining link stays charged and counted as a link of both clients. */
static void detach(struct dlxd_link *link)
{
    struct dlxd_publisher *publisher = link->publisher;
    const struct dlxd_client *reader = link->subscription->client;
    bool joined = link->state == DLXD_LINK_ADDED || link->state == DLXD_LINK_OPEN, cut = false;
    bool counts = joined && !link->pending_join; /* else when the publisher is told of the link */
    if (!publisher) {
        dlxd_list_remove(&link->by_publisher);
        if (link->made == DLXD_MADE_AS_SPARE && link->state != DLXD_LINK_FAILED)
            count_out(link);
        return;
    }
    if (link->state == DLXD_LINK_OPEN)
        let_go_of_dropped(link);
    if (joined)
        dlx__region_unlock(publisher->control->fd);
    dlxd_pending_join_link_ended(link);
    dlxd_publisher_index_put(publisher, link->index);
    dlxd_publisher_link_leaves(publisher, link);
    dlxd_list_remove(&link->by_publisher);
    publisher->n_links--;
    if (joined && dlxd_drain_begin(link->drain, publisher, reader->holder)) {
        cut = publisher->client && dlxd_client_is_cut(reader) &&
              dlxd_pending_joins_cut(link->drain, reader->dismissed, counts);
        link->drain = NULL;
    } else {
        if (publisher->client)
            publisher->client->n_links--;
        link->subscription->client->n_links -= link->drain->n_links;
        release_resources(link);
    }
    if (counts && !cut) /* else when the publisher was told of the cut */
        dlxd_membership_left(&publisher->line);
    dlxd_group_leave(link);
    link->publisher = NULL;
    link->subscription->n_served--;
    if (publisher->state == DLXD_PUBLISHER_GONE && !link->gone_sent)
        dlxd_publisher_delivered(publisher);
    dlxd_publisher_link_left(publisher);
}

static struct dlxd_link *link_alloc(struct dlxd_subscription *subscription, uint64_t id)
{
    struct dlxd_link *link = calloc(1, sizeof *link);
    if (!link)
        return NULL;
    link->drain = dlxd_drain_new(id, subscription->broker->workers, subscription->config.max_held);
    if (!link->drain) {
        free(link);
        return NULL;
    }
    link->drain->mode = subscription->config.mode;
    link->drain->reliable = subscription->config.reliable;
    /* A worker has the claims page and the bell of its group besides (client/base/limits.c). */
    link->drain->n_links = dlxd_subscription_is_worker(subscription) ? 2 : 1;
    link->subscription = subscription;
    link->workers = subscription->broker->workers;
    link->state = DLXD_LINK_NEW;
    link->page_size = dlx_shm_link_size(subscription->config.max_held);
    link->bell_fd = link->locked_fd = link->claims_fd = -1;
    dlxd_list_init(&link->by_publisher);
    dlxd_list_init(&link->pending);
    dlxd_list_init(&link->drops);
    return link;
}

static void link_free(struct dlxd_link *link)
{
    release_resources(link);
    dlxd_charge_deinit(&link->failed_charge);
    free(link->fail_topic);
    free(link->fail_text);
    free(link);
}

/* Inserts by id: links with ids reserved for a subscription may be made after others. */
static void link_enlist(struct dlxd_link *link, uint64_t id)
{
    struct dlxd_list *links = &link->subscription->links, *after = links->prev;
    while (after != links &&
           dlxd_link_id(dlxd_container_of(after, struct dlxd_link, by_subscription)) > id)
        after = after->prev;
    dlxd_list_push_front(after, &link->by_subscription);
    dlxd_idmap_add(&link->subscription->broker->registry.links, &link->by_id, id);
}

/* LinkFailed will say whose link it was. */
static void name_publisher(struct dlxd_link *link, const struct dlxd_publisher *publisher)
{
    link->fail_publisher = dlxd_publisher_id(publisher);
    link->fail_pid = (uint32_t)publisher->pid;
    link->fail_topic = strdup(publisher->topic_name);
}

/* The publisher of a worker without a link is told when it asks who serves it. */
static void note_refusal(struct dlxd_publisher *publisher,
                         const struct dlxd_subscription *subscription, const char *text)
{
    if (!dlxd_subscription_is_worker(subscription))
        return;
    free(publisher->refusal);
    publisher->refusal = strdup(text);
}

/* A worker has a link: what kept others from one does not matter any more. */
static void forget_refusal(const struct dlxd_link *link)
{
    if (!link->group)
        return;
    free(link->publisher->refusal);
    link->publisher->refusal = NULL;
}

int dlxd_link_new(struct dlxd_subscription *subscription, struct dlxd_publisher *publisher,
                  uint64_t id, bool from_start)
{
    struct dlxd_link *link = link_alloc(subscription, id);
    if (!link)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for a link to publisher %s",
                         publisher->topic_name);
    link->from_start = from_start;
    link_enlist(link, id);
    int r = check_clients(link, publisher);
    if (r == 0)
        r = link_charge(link);
    if (r == 0)
        r = attach(link, publisher);
    if (r == 0) {
        dlxd_link_schedule(link);
        return 0;
    }
    name_publisher(link, publisher);
    note_refusal(publisher, subscription, dlx__error_message());
    dlxd_link_fail(link, r, dlx__error_message());
    return 0;
}

int dlxd_link_new_spare(struct dlxd_subscription *subscription, uint64_t id)
{
    struct dlxd_link *link = link_alloc(subscription, id);
    if (!link)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for a spare link to %s",
                         subscription->topic_name);
    int r = link_charge(link);
    if (r < 0) {
        link_free(link);
        return r;
    }
    link_enlist(link, id);
    link->made = DLXD_MADE_AS_SPARE;
    subscription->n_spares++;
    subscription->broker->registry.n_spares++;
    dlxd_link_schedule(link);
    return 0;
}

void dlxd_link_set_prepared(struct dlxd_link *link)
{
    link->state = DLXD_LINK_PREPARED;
    if (link->made == DLXD_MADE_AS_SPARE)
        dlxd_list_remove(&link->by_publisher);
    dlxd_link_schedule(link);
}

void dlxd_link_set_proving(struct dlxd_link *link)
{
    link->state = DLXD_LINK_PROVING;
    if (link->made == DLXD_MADE_AS_SPARE)
        insert_by_id(&link->subscription->spares, link);
}

int dlxd_link_assign(struct dlxd_link *link, struct dlxd_publisher *publisher)
{
    assert(dlxd_link_is_free(link));
    int r = check_clients(link, publisher);
    if (r == 0)
        r = attach(link, publisher);
    if (r < 0)
        return r;
    count_out(link);
    dlxd_list_remove(&link->pending); /* SpareSealed has no turn; the next step has one */
    if (link->state == DLXD_LINK_SPARE)
        link->state = DLXD_LINK_READY;
    link->made = DLXD_MADE_EARLY;
    link->from_start = true;
    dlxd_link_schedule(link);
    return 0;
}

/* Does the publisher wait for what the link has yet to take? For a declared group it waits whether
 * there are workers or not; for another one, from the first worker on. */
static bool counts(const struct dlxd_link *link)
{
    const struct dlxd_group *group = link->group;
    bool is_first = group && !group->is_declared && group->n_open == 0;
    return is_first || dlxd_link_is_reliable(link);
}

bool dlxd_link_is_awaited(const struct dlxd_link *link)
{
    return link->from_start && link->state < DLXD_LINK_OPEN &&
           link->publisher->config.on_full == 1 && counts(link);
}

/* The links after it may need no credit. */
static void leave_turn(struct dlxd_link *link)
{
    if (!dlxd_list_linked(&link->pending))
        return;
    dlxd_list_remove(&link->pending);
    dlxd_subscription_mark(link->subscription);
}

void dlxd_link_end(struct dlxd_link *link)
{
    if (!link)
        return;
    detach(link);
    link->subscription->waits = 0;
    link->subscription->n_failed -= link->state == DLXD_LINK_FAILED;
    if (link->subscription->failed == link)
        link->subscription->failed = NULL;
    leave_turn(link);
    dlxd_list_remove(&link->by_subscription);
    dlxd_idmap_remove(&link->subscription->broker->registry.links, &link->by_id);
    link_free(link);
}

void dlxd_link_fail(struct dlxd_link *link, int code, const char *text)
{
    if (link->state == DLXD_LINK_FAILED)
        return;
    assert(link->state < DLXD_LINK_ADDED);
    struct dlxd_subscription *subscription = link->subscription;
    link->fail_code = code;
    link->fail_text = strdup(text);
    if (link->publisher)
        name_publisher(link, link->publisher);
    dlxd_refusal_note(subscription->client, DLXD_REFUSED_LINK,
                      link->fail_topic ? link->fail_topic : subscription->topic_name,
                      dlxd_subscription_id(subscription), code, text);
    if (link->publisher)
        note_refusal(link->publisher, subscription, text);
    link->fail_stays = link->state != DLXD_LINK_NEW ||
                       dlxd_link_id(link) <= subscription->last_offer ||
                       subscription->state == DLXD_SUBSCRIPTION_OPENING ||
                       (link->publisher && link->publisher->config.resumes != 0);
    subscription->n_failed++;
    (void)dlxd_charge_init(&link->failed_charge, subscription->client->user, DLXD_FAILED, 1);
    detach(link);
    release_resources(link);
    link->state = DLXD_LINK_FAILED;
    dlxd_link_schedule(link);
}

void dlxd_link_fail_gone(struct dlxd_link *link)
{
    char text[DLX_ERROR_TEXT_SIZE];
    const struct dlxd_publisher *publisher = link->publisher;
    link->fail_origin = dlxd_publisher_origin(publisher);
    link->fail_seq = publisher->gone_head;
    if (link->from_start)
        link->fail_missed = link->fail_seq - DLX_MIN(link->fail_seq, publisher->config.after_seq);
    (void)snprintf(text, sizeof text, "publisher of %s (pid %d) left before the link was open",
                   publisher->topic_name, (int)publisher->pid);
    dlxd_link_fail(link, DLX_E_PUBLISHER_GONE, text);
}

/* How many failed links of one subscription are kept separate. */
#define FAILED_MAX 64U

/* Makes `into` report this link, too. The number of missed messages stays exact. */
static void merge(struct dlxd_link *into, struct dlxd_link *link)
{
    if (link->fail_code == DLX_E_PUBLISHER_GONE) {
        /* Reported like a publisher that nobody knows, which published that many messages. */
        into->fail_code = DLX_E_PUBLISHER_GONE;
        into->fail_origin = ++link->subscription->broker->registry.last_publisher;
        into->fail_missed += link->fail_missed;
        into->fail_seq = into->fail_missed;
    }
    into->n_merged++;
    into->fail_publisher = into->fail_pid = 0;
    free(into->fail_topic);
    into->fail_topic = NULL;
    dlxd_link_end(link);
}

void dlxd_link_condense(struct dlxd_link *link)
{
    struct dlxd_subscription *subscription = link->subscription;
    bool is_charged = link->failed_charge.user;
    if (link->state != DLXD_LINK_FAILED || (is_charged && subscription->n_failed <= FAILED_MAX))
        return;
    if (!link->fail_stays) {
        if (subscription->failed && subscription->failed != link)
            merge(subscription->failed, link);
        else
            subscription->failed = link;
    } else if (!is_charged) {
        dlxd_client_disconnect(subscription->client, DLX_E_LIMIT,
                               "subscription to %s does not read what it is told: %u links failed",
                               subscription->topic_name, subscription->n_failed);
    }
}

struct dlxd_arena *dlxd_link_next_dropped(struct dlxd_link *link)
{
    struct dlxd_arena *arena;
    while ((arena = dlxd_arenas_dropped_after(&link->publisher->dropped, link->drop_seq))) {
        if (dlxd_link_knows(link, arena))
            return arena;
        link->drop_seq = arena->drop_seq; /* not for this link */
    }
    return NULL;
}

struct dlxd_arena *dlxd_link_next_arena(const struct dlxd_link *link)
{
    return dlxd_arenas_ready_after(&link->publisher->ready, link->arena_seq);
}

/* Drops come before arenas. So a link that did not know an arena when it was dropped never will,
 * and dlxd_link_knows() returns the same from the drop until the link is told. */
static enum dlxd_link_step next_when_open(struct dlxd_link *link)
{
    if (dlxd_link_next_dropped(link))
        return DLXD_STEP_DROPPED;
    if (dlxd_link_next_arena(link))
        return DLXD_STEP_ARENA;
    if (dlxd_publisher_has_ended(link->publisher) && !link->gone_sent)
        return DLXD_STEP_GONE;
    return DLXD_STEP_NONE;
}

enum dlxd_link_step dlxd_link_next(struct dlxd_link *link)
{
    switch (link->state) {
    case DLXD_LINK_NEW:
        return DLXD_STEP_OFFER;
    case DLXD_LINK_PREPARED:
        return DLXD_STEP_PROVE;
    case DLXD_LINK_OFFERED:
    case DLXD_LINK_PROVING:
    case DLXD_LINK_SPARE:
        return DLXD_STEP_NONE;
    case DLXD_LINK_READY:
        if (!link->publisher)
            return DLXD_STEP_SEAL;
        return dlxd_publisher_is_settled(link->publisher) ? DLXD_STEP_JOIN : DLXD_STEP_NONE;
    case DLXD_LINK_ADDED:
        return DLXD_STEP_OPEN;
    case DLXD_LINK_OPEN:
        return next_when_open(link);
    case DLXD_LINK_FAILED:
        return DLXD_STEP_FAILED;
    }
    return DLXD_STEP_NONE;
}

bool dlxd_link_step_has_fds(enum dlxd_link_step step)
{
    return step >= DLXD_STEP_OFFER;
}

/*
 * The publisher of a former spare link gets it whatever the subscriber has acknowledged, and
 * publishes to it. So the subscriber is told at once, too, because it could not be told if the
 * daemon ended. The number of these links is limited by the spare links that the subscriber has
 * prepared.
 */
bool dlxd_link_step_needs_credit(const struct dlxd_link *link, enum dlxd_link_step step)
{
    return dlxd_link_step_has_fds(step) &&
           !(link->made == DLXD_MADE_EARLY && step == DLXD_STEP_OPEN);
}

void dlxd_link_schedule(struct dlxd_link *link)
{
    struct dlxd_subscription *subscription = link->subscription;
    enum dlxd_link_step step = dlxd_link_next(link);
    subscription->waits = 0;
    bool needs_credit = dlxd_link_step_needs_credit(link, step);
    if (!needs_credit) /* otherwise it keeps its turn */
        leave_turn(link);
    if (step == DLXD_STEP_NONE)
        return;
    /* PublisherGone keeps its turn: by then the subscriber must know all publishers that came
     * before. */
    bool in_turn = needs_credit || step == DLXD_STEP_GONE;
    if (!in_turn)
        dlxd_list_push_front(&subscription->pending, &link->pending);
    else if (!dlxd_list_linked(&link->pending))
        dlxd_list_push_back(&subscription->pending, &link->pending);
    dlxd_subscription_mark(subscription);
}

void dlxd_link_step_done(struct dlxd_link *link, enum dlxd_link_step step)
{
    struct dlxd_publisher *publisher = link->publisher;
    struct dlxd_arena *arena;

    dlxd_list_remove(&link->pending); /* its next step has a turn of its own */
    if (dlxd_link_step_has_fds(step) && step != DLXD_STEP_JOIN)
        link->subscription->n_fds_sent++;
    switch (step) {
    case DLXD_STEP_NONE:
        break;
    case DLXD_STEP_FAILED:
        dlxd_link_end(link);
        return;
    case DLXD_STEP_DROPPED:
        arena = dlxd_link_next_dropped(link);
        assert(arena);
        link->drop_seq = arena->drop_seq;
        dlxd_payer_may_change(link, arena);
        break;
    case DLXD_STEP_GONE:
        link->gone_sent = true;
        if (publisher->state == DLXD_PUBLISHER_GONE)
            dlxd_publisher_delivered(publisher);
        break;
    case DLXD_STEP_OFFER:
        link->state = DLXD_LINK_OFFERED;
        break;
    case DLXD_STEP_SEAL:
        link->state = DLXD_LINK_SPARE;
        break;
    case DLXD_STEP_PROVE:
        dlxd_link_set_proving(link);
        break;
    case DLXD_STEP_JOIN:
        link->state = DLXD_LINK_ADDED;
        dlxd_membership_joined(&publisher->line);
        break;
    case DLXD_STEP_OPEN:
        link->state = DLXD_LINK_OPEN;
        dlxd_group_opened(link);
        forget_refusal(link);
        close_join_fds(link);
        link->open_seq = publisher->last_ready_seq;
        link->drop_seq = publisher->last_drop_seq;
        break;
    case DLXD_STEP_ARENA:
        arena = dlxd_link_next_arena(link);
        assert(arena);
        link->arena_seq = arena->ready_seq;
        break;
    }
    dlxd_link_schedule(link);
}
