/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/publisher.h"
#include "common/error.h"
#include "common/packet.h"
#include "common/memory.h"
#include "common/probes.h"
#include "ring/layout.h"
#include "daemon/gpu/keeper.h"
#include "daemon/objects/former.h"
#include "daemon/objects/group.h"
#include "daemon/objects/pending_join.h"
#include "daemon/objects/registry.h"
#include "daemon/objects/store_hooks.h"
#include "daemon/memory/report.h"
#include "daemon/users/outbox.h"
#include "daemon/users/share.h"
#include "daemon/base/worker.h"
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

/* Linux charges 768 bytes for a packet of LinkAdded's size and doubles this number, so this fits
 * 128 packets. Further ones become pending joins (pending_join.h). */
#define LINK_SOCK_SNDBUF (128 * 768 / 2)

static void close_sockets(struct dlxd_publisher *publisher)
{
    dlxd_charge_close_descriptors(&publisher->object_charge);
    publisher->link_sock = dlxd_outbox_close(publisher->link_sock, publisher->user);
    publisher->gpu_serve = dlxd_outbox_close(publisher->gpu_serve, publisher->user);
}

static void publisher_free(struct dlxd_publisher *publisher)
{
    if (publisher->gone) {
        dlxd_idmap_remove(&publisher->broker->registry.gone_publishers, &publisher->by_id);
        dlxd_list_remove(&publisher->by_topic);
    }
    dlxd_task_stop(&publisher->task);
    dlxd_gpu_keeper_leave(publisher->broker->gpu, &publisher->gpu);
    dlxd_groups_deinit(publisher);
    DLX_PROBE_DAEMON_RECLAIM(dlxd_publisher_id(publisher), publisher->topic_name, 0U);
    dlxd_arena_free(publisher->control);
    dlxd_arenas_deinit(&publisher->unready);
    dlxd_arenas_deinit(&publisher->ready);
    dlxd_arenas_deinit(&publisher->dropped);
    dlxd_former_uncover(publisher->broker, publisher->topic_name, dlxd_publisher_id(publisher));
    dlxd_pending_joins_deinit(&publisher->pending_joins);
    close_sockets(publisher);
    dlxd_membership_line_deinit(&publisher->line);
    dlxd_charge_deinit(&publisher->object_charge);
    dlxd_user_unref(publisher->user);
    dlxd_principal_unref(publisher->principal);
    dlxd_principal_unref(publisher->workers);
    free(publisher->index_bits);
    free(publisher->refusal);
    free(publisher);
}

/* Makes a region with this id, not ready yet. The name appears in /proc/PID/maps. */
static int new_region(struct dlxd_publisher *publisher, struct dlxd_user *user, const char *name,
                      uint32_t id, uint64_t size, struct dlxd_arena **ret, int *ret_writer_fd)
{
    struct dlxd_arena *arena;
    int r = dlxd_arena_new(&arena, publisher->broker->workers, user, id, size,
                           dlxd_publisher_may_retain(publisher));
    if (r < 0)
        return r;
    r = dlx__region_new(publisher->broker->memory, name, size, &arena->fd, ret_writer_fd);
    if (r < 0) {
        dlxd_arena_free(arena);
        return r;
    }
    dlxd_reservation_begin(arena, publisher, &publisher->broker->reservations);
    *ret = arena;
    return 0;
}

/* A socket for packets to the publisher's process: ours, and theirs, which the caller owns. */
static int new_socket(struct dlxd_publisher *publisher, struct dlxd_outbox **ret, int *ret_theirs)
{
    int pair[2];
    int size = LINK_SOCK_SNDBUF;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
        return dlx__fail_errno("socket of a publisher");
    dlx_cleanup(dlx__closep) int ours = pair[0], theirs = pair[1];
    dlx__packet_refuse_fds(ours);
    if (setsockopt(ours, SOL_SOCKET, SO_SNDBUF, &size, sizeof size) < 0)
        return dlx__fail_errno("SO_SNDBUF of a socket of a publisher");
    *ret = dlxd_outbox_new(publisher->broker->workers, ours);
    if (!*ret)
        return DLX_E_NO_MEMORY;
    (void)dlx__steal_fd(&ours);
    *ret_theirs = dlx__steal_fd(&theirs);
    return 0;
}

int dlxd_publisher_serve_gpu(struct dlxd_publisher *publisher, int *ret_theirs)
{
    struct dlxd_outbox *fresh;
    int r = dlxd_user_check(publisher->user, DLXD_DESCRIPTORS, 1);
    if (r == 0)
        r = new_socket(publisher, &fresh, ret_theirs);
    if (r < 0)
        return r;
    if (publisher->gpu_serve)
        dlxd_charge_close_descriptor(&publisher->object_charge);
    (void)dlxd_outbox_close(publisher->gpu_serve, publisher->user);
    publisher->gpu_serve = fresh;
    dlxd_charge_add_descriptor(&publisher->object_charge);
    return 0;
}

/* The steps that can fail, before any other object knows the publisher. */
static int publisher_allocate(struct dlxd_publisher *publisher, struct dlxd_user *user,
                              struct dlxd_publisher_fds *ret_fds)
{
    int writer_fd = -1, membership_fd;
    publisher->user = dlxd_user_ref(user);
    int r = dlxd_charge_init(&publisher->object_charge, user, DLXD_OBJECTS, 1);
    if (r == 0)
        r = new_region(publisher, user, "dlx-control", 0,
                       dlx_shm_control_size(publisher->config.n_entries), &publisher->control,
                       &writer_fd);
    dlx_cleanup(dlx__closep) int writer = writer_fd;
    if (r == 0)
        r = dlxd_membership_line_init(&publisher->line, user, publisher->broker->memory);
    if (r < 0)
        return r;
    int link_sock;
    r = new_socket(publisher, &publisher->link_sock, &link_sock);
    if (r < 0)
        return r;
    dlx_cleanup(dlx__closep) int theirs = link_sock;
    r = dlxd_membership_dup_fd(&publisher->line, &membership_fd);
    if (r < 0)
        return r;
    ret_fds->control_fd = dlx__steal_fd(&writer);
    ret_fds->membership_fd = membership_fd;
    ret_fds->link_sock = dlx__steal_fd(&theirs);
    return 0;
}

/* Makes a publisher that no other object knows. Returns NULL if out of memory, with the thread's
 * message set. */
static struct dlxd_publisher *publisher_alloc(struct dlxd_broker *broker, const char *topic)
{
    struct dlxd_publisher *publisher = calloc(1, sizeof *publisher);
    if (!publisher) {
        (void)dlx__fail(DLX_E_NO_MEMORY, "out of memory for a publisher of %s", topic);
        return NULL;
    }
    publisher->broker = broker;
    publisher->dying_pidfd = -1;
    dlxd_pending_joins_init(&publisher->pending_joins);
    dlxd_list_init(&publisher->by_client);
    dlxd_list_init(&publisher->by_look);
    dlxd_list_init(&publisher->links);
    dlxd_list_init(&publisher->groups);
    dlxd_drains_init(&publisher->drains);
    publisher->cursor = publisher->next_told = &publisher->links;
    dlxd_task_init(&publisher->task, publisher->broker->steps->publisher);
    (void)snprintf(publisher->topic_name, sizeof publisher->topic_name, "%s", topic);
    return publisher;
}

struct dlxd_gpu_whose dlxd_publisher_gpu_whose(const struct dlxd_publisher *publisher)
{
    return (struct dlxd_gpu_whose){dlxd_publisher_origin(publisher),
                                   dlxd_principal_number(publisher->principal)};
}

/* A former daemon knew this publisher, so the GPU keeper may have something of it. */
static void join_gpu(struct dlxd_publisher *publisher)
{
    dlxd_gpu_keeper_join(publisher->broker->gpu, &publisher->gpu,
                         dlxd_publisher_gpu_whose(publisher), publisher->object_charge.user);
}

int dlxd_publisher_new(struct dlxd_publisher **ret, struct dlxd_client *client, const char *topic,
                       const struct dlxd_publisher_config *config,
                       struct dlxd_publisher_fds *ret_fds)
{
    struct dlxd_registry *registry = &client->broker->registry;
    struct dlxd_publisher_fds fds;
    struct dlxd_publisher *publisher = publisher_alloc(client->broker, topic);
    if (!publisher)
        return DLX_E_NO_MEMORY;
    publisher->client = client;
    publisher->state = DLXD_PUBLISHER_NEW;
    publisher->config = *config;
    publisher->pid = client->pid;
    publisher->principal = dlxd_principal_ref(client->principal);
    memcpy(publisher->client_name, client->name, sizeof publisher->client_name);
    int r =
        dlxd_policy_workers(&client->broker->policy, client->principal, topic, &publisher->workers);
    if (r == 0)
        r = publisher_allocate(publisher, client->user, &fds);
    if (r < 0) {
        publisher_free(publisher);
        return r;
    }
    r = dlxd_registry_get(registry, topic, &publisher->topic);
    if (r < 0) {
        dlx__close(fds.control_fd);
        dlx__close(fds.membership_fd);
        dlx__close(fds.link_sock);
        publisher_free(publisher);
        return r;
    }
    dlxd_idmap_add(&registry->publishers, &publisher->by_id, ++registry->last_publisher);
    dlxd_list_push_back(&publisher->topic->publishers, &publisher->by_topic);
    dlxd_list_push_back(&client->publishers, &publisher->by_client);
    if (config->resumes != 0) {
        join_gpu(publisher);
        dlxd_gpu_keeper_claim(publisher->broker->gpu);
    }
    *ret_fds = fds;
    *ret = publisher;
    return 0;
}

/* Restores a region without its fd, which the caller keeps for now. */
static int restore_region(const struct dlxd_publisher *publisher, struct dlxd_user *user,
                          const struct dlxd_publisher_region *region, struct dlxd_arena **ret)
{
    uint64_t size;
    int r = dlx__region_inspect(publisher->broker->memory, region->fd, &size);
    if (r == 0)
        r = dlxd_arena_restore(ret, publisher->broker->workers, user, region->id, size,
                               dlxd_publisher_may_retain(publisher));
    if (r < 0)
        return r;
    (*ret)->ready_seq = region->ready_seq;
    (*ret)->kept = !region->not_stored;
    return 0;
}

static int restore_control(struct dlxd_publisher *publisher, struct dlxd_user *user,
                           const struct dlxd_publisher_region *region)
{
    uint32_t n_entries = publisher->config.n_entries;
    int r = restore_region(publisher, user, region, &publisher->control);
    if (r == 0 && (!dlx_shm_n_entries_is_valid(n_entries) ||
                   publisher->control->size != dlx_shm_control_size(n_entries)))
        r = dlx__fail(DLX_E_PROTOCOL, "control block of %" PRIu64 " bytes for %u entries",
                      publisher->control->size, n_entries);
    return r;
}

static int restore_arena(struct dlxd_publisher *publisher, struct dlxd_user *user,
                         const struct dlxd_publisher_region *region)
{
    struct dlxd_arena *arena;
    if (region->ready_seq <= publisher->last_ready_seq)
        return dlx__fail(DLX_E_PROTOCOL, "arena %u is there twice", region->id);
    int r = dlxd_arenas_reserve(&publisher->ready);
    if (r == 0)
        r = restore_region(publisher, user, region, &arena);
    if (r < 0)
        return r;
    dlxd_arenas_push(&publisher->ready, arena);
    publisher->last_arena = DLX_MAX(publisher->last_arena, region->id);
    publisher->last_ready_seq = region->ready_seq;
    return 0;
}

static int restore_all(struct dlxd_publisher *publisher, struct dlxd_user *user,
                       const struct dlxd_publisher_region *regions, size_t n_regions)
{
    struct dlxd_registry *registry = &publisher->broker->registry;
    if (n_regions == 0 || regions[0].id != 0)
        return dlx__fail(DLX_E_PROTOCOL, "its control block is missing");
    publisher->user = dlxd_user_ref(user);
    dlxd_charge_restore(&publisher->object_charge, user, DLXD_OBJECTS, 1);
    dlxd_charge_close_descriptors(&publisher->object_charge); /* it has no link socket */
    int r = restore_control(publisher, user, &regions[0]);
    for (size_t i = 1; r == 0 && i < n_regions; i++)
        r = restore_arena(publisher, user, &regions[i]);
    return r < 0 ? r : dlxd_registry_get(registry, publisher->topic_name, &publisher->topic);
}

int dlxd_publisher_restore(struct dlxd_publisher **ret, struct dlxd_broker *broker,
                           const struct dlxd_publisher_former *former,
                           const struct dlxd_publisher_region *regions, size_t n_regions)
{
    struct dlxd_user *user;
    struct dlxd_publisher *publisher = publisher_alloc(broker, former->topic);
    if (!publisher)
        return DLX_E_NO_MEMORY;
    publisher->state = DLXD_PUBLISHER_RETAINED;
    publisher->config = former->config;
    publisher->pid = former->pid;
    (void)snprintf(publisher->client_name, sizeof publisher->client_name, "%s",
                   former->client_name);
    int r = dlxd_principal_new_former(&publisher->principal, former->uid, former->socket);
    if (r == 0 && former->config.n_groups > 0)
        r = dlxd_principal_new_former(&publisher->workers, former->workers_uid,
                                      former->workers_socket);
    if (r == 0)
        r = dlxd_users_get(&broker->users, publisher->principal, &user);
    if (r == 0) {
        r = restore_all(publisher, user, regions, n_regions);
        dlxd_user_unref(user);
    }
    if (r < 0) {
        publisher_free(publisher);
        return r;
    }
    publisher->control->fd = regions[0].fd;
    for (size_t i = 1; i < n_regions; i++)
        publisher->ready.items[i - 1]->fd = regions[i].fd;
    dlxd_idmap_add(&broker->registry.publishers, &publisher->by_id, former->id);
    publisher->announced = publisher->announced_late = ++broker->registry.last_announcement;
    dlxd_list_push_back(&publisher->topic->publishers, &publisher->by_topic);
    join_gpu(publisher); /* dlxd_store_init() claims it together with the others */
    *ret = publisher;
    return 0;
}

void dlxd_publisher_leave_client(struct dlxd_publisher *publisher)
{
    dlx_for_each (it, &publisher->links) {
        struct dlxd_link *link = dlxd_container_of(it, struct dlxd_link, by_publisher);
        link->drain->share = dlxd_share_put(link->drain->share);
    }
    publisher->client->n_links -= dlxd_publisher_n_links(publisher);
    publisher->client = NULL;
    dlxd_list_remove(&publisher->by_client);
    dlxd_pending_joins_deinit(&publisher->pending_joins);
    close_sockets(publisher);
    dlxd_membership_line_deinit(&publisher->line);
    dlxd_arenas_deinit(&publisher->unready);
}

/* ---- who pays ------------------------------------------------------------------------------ */

/*
 * Who is charged for memory that its owner has released and that subscribers still have. The owner
 * is not charged, because subscribers could make it pay forever; their own users are, one after the
 * other, even beyond their limits.
 *
 * A dropped arena stays charged until each link that knew it has acknowledged the drop: until its
 * ArenaDropped has landed (outbox.h) or the link has ended. So a subscriber that does not read pays
 * for what it keeps. Links that were not told yet pay first, in their order, then those that were
 * told, the least recently told first. The search for the next payer only moves forward.
 */

/* Returns the first link that knows a dropped arena and has not been told of the drop. */
static struct dlxd_link *find_untold(struct dlxd_publisher *publisher, struct dlxd_list *from,
                                     const struct dlxd_arena *arena)
{
    for (struct dlxd_list *it = from; it != &publisher->links; it = it->next) {
        struct dlxd_link *link = dlxd_container_of(it, struct dlxd_link, by_publisher);
        if (link->drop_seq < arena->drop_seq && dlxd_link_knows(link, arena))
            return link;
    }
    return NULL;
}

static void payer_charge(struct dlxd_arena *arena)
{
    const struct dlxd_link *payer = arena->untold;
    if (!payer) {
        assert(!dlxd_list_empty(&arena->told));
        payer = dlxd_container_of(arena->told.next, struct dlxd_flight, of_arena)->link;
    }
    dlxd_charge_move(&arena->charge, payer->subscription->client->user);
}

static void charge_from(struct dlxd_publisher *publisher, struct dlxd_list *from,
                        struct dlxd_arena *arena)
{
    arena->untold = find_untold(publisher, from, arena);
    payer_charge(arena);
}

static void payer_of_dropped(struct dlxd_publisher *publisher, struct dlxd_arena *arena)
{
    charge_from(publisher, publisher->links.next, arena);
}

void dlxd_payer_may_change(struct dlxd_link *link, struct dlxd_arena *arena)
{
    if (arena->untold == link)
        charge_from(link->publisher, link->by_publisher.next, arena);
    else
        payer_charge(arena);
}

/* Of its links, and then of those that drain. NULL: there is none. */
static struct dlxd_user *first_user(const struct dlxd_publisher *publisher)
{
    if (!dlxd_list_empty(&publisher->links))
        return dlxd_container_of(publisher->links.next, struct dlxd_link, by_publisher)
            ->subscription->client->user;
    if (publisher->drains.n == 0)
        return NULL;
    return dlxd_drain_of_publisher(publisher->drains.list.next)->links_charge.user;
}

static void payer_of_gone(struct dlxd_publisher *publisher)
{
    struct dlxd_user *user = first_user(publisher);
    if (!user || user == publisher->object_charge.user)
        return;
    dlxd_charge_move(&publisher->object_charge, user);
    dlxd_charge_move(&publisher->control->charge, user);
    for (size_t i = 0; i < publisher->ready.n; i++)
        dlxd_charge_move(&publisher->ready.items[i]->charge, user);
}

/* ---- links that leave ---------------------------------------------------------------------- */

void dlxd_publisher_delivered(struct dlxd_publisher *publisher)
{
    assert(publisher->n_undelivered > 0);
    if (--publisher->n_undelivered > 0)
        return;
    /* The charges of memory stay: subscribers have it mapped. */
    dlxd_arena_close(publisher->control);
    for (size_t i = 0; i < publisher->ready.n; i++)
        dlxd_arena_close(publisher->ready.items[i]);
}

void dlxd_publisher_link_left(struct dlxd_publisher *publisher)
{
    if (publisher->state != DLXD_PUBLISHER_GONE)
        return;
    if (publisher->n_links == 0 && publisher->drains.n == 0)
        publisher_free(publisher);
    else
        payer_of_gone(publisher);
}

bool dlxd_publisher_is_settled(const struct dlxd_publisher *publisher)
{
    if (dlxd_publisher_leaves(publisher))
        return publisher->state >= DLXD_PUBLISHER_SHOWN;
    return !publisher->client || !dlxd_client_is_doomed(publisher->client);
}

struct dlxd_publisher *dlxd_publisher_find(struct dlxd_client *client, uint64_t id)
{
    struct dlxd_idmap_node *node = dlxd_idmap_find(&client->broker->registry.publishers, id);
    if (node) {
        struct dlxd_publisher *p = dlxd_container_of(node, struct dlxd_publisher, by_id);
        if (p->client == client)
            return p;
    }
    (void)dlx__fail(DLX_E_NOT_FOUND, "%s (pid %d) has no publisher %" PRIu64, client->name,
                    (int)client->pid, id);
    return NULL;
}

struct dlxd_list *dlxd_publisher_next_of(const struct dlxd_registry *registry,
                                         struct dlxd_topic *topic, uint64_t after)
{
    struct dlxd_idmap_node *node = dlxd_idmap_find(&registry->publishers, after);
    const struct dlxd_publisher *publisher =
        node ? dlxd_container_of(node, struct dlxd_publisher, by_id) : NULL;
    if (publisher && publisher->topic == topic)
        return publisher->by_topic.next;
    struct dlxd_list *it = topic->publishers.next;
    while (it != &topic->publishers &&
           dlxd_publisher_id(dlxd_container_of(it, struct dlxd_publisher, by_topic)) <= after)
        it = it->next;
    return it;
}

uint32_t dlxd_publisher_weight(const struct dlxd_publisher *publisher)
{
    size_t n_arenas = publisher->unready.n + publisher->ready.n + publisher->dropped.n;
    return (uint32_t)(1 + n_arenas / 32 + publisher->n_links / 64 + publisher->drains.n / 64);
}

/* Considers also what the user keeps of former daemons. The first arena of a publisher that
 * resumes is exempt: it takes the place of former ones, which go when it is there. */
static int check_former(const struct dlxd_publisher *publisher, uint64_t size)
{
    struct dlxd_user *user = publisher->client->user;
    if (publisher->state == DLXD_PUBLISHER_NEW && publisher->config.resumes != 0)
        return 0;
    int r = dlxd_user_check_former(user, size);
    if (r == 0)
        return 0;
    dlxd_former_look(user);
    return dlxd_user_check_former(user, size);
}

int dlxd_publisher_arena_new(struct dlxd_publisher *publisher, uint64_t size,
                             struct dlxd_arena **ret, int *ret_writer_fd)
{
    size_t n = publisher->unready.n + publisher->ready.n;
    if (n >= DLX_SHM_ARENAS_MAX || publisher->last_arena == UINT32_MAX)
        return dlx__fail(DLX_E_LIMIT,
                         "publisher %" PRIu64 " of %s has %zu arenas, at most %u are "
                         "possible",
                         dlxd_publisher_id(publisher), publisher->topic_name, n,
                         DLX_SHM_ARENAS_MAX);
    int r = check_former(publisher, size);
    if (r == 0)
        r = dlxd_arenas_reserve(&publisher->unready);
    if (r < 0)
        return r;
    r = new_region(publisher, publisher->client->user, "dlx-arena", publisher->last_arena + 1, size,
                   ret, ret_writer_fd);
    if (r < 0)
        return r;
    dlxd_arenas_push(&publisher->unready, *ret);
    publisher->last_arena++;
    return 0;
}

/* It is in no list any more, but clients may have listed it. */
static void free_ready(const struct dlxd_publisher *publisher, struct dlxd_arena *arena)
{
    DLX_PROBE_DAEMON_RECLAIM(dlxd_publisher_id(publisher), publisher->topic_name, arena->id);
    dlxd_arena_free(arena);
    dlxd_former_uncover(publisher->broker, publisher->topic_name, dlxd_publisher_id(publisher));
}

void dlxd_publisher_let_go_of(struct dlxd_publisher *publisher, struct dlxd_arena *arena)
{
    dlxd_arenas_remove(&publisher->ready, arena);
    dlxd_arena_forget(arena);
    dlxd_store_hooks_forget_arena(publisher, arena);
    dlx_for_each (it, &publisher->links) {
        struct dlxd_link *link = dlxd_container_of(it, struct dlxd_link, by_publisher);
        if (dlxd_link_knows(link, arena))
            arena->n_notify++;
    }
    if (arena->n_notify == 0) {
        free_ready(publisher, arena);
    } else {
        dlxd_arena_close(arena);
        arena->drop_seq = ++publisher->last_drop_seq;
        dlxd_arenas_push(&publisher->dropped, arena);
        payer_of_dropped(publisher, arena);
    }
}

void dlxd_publisher_drop_acknowledged(struct dlxd_link *link, struct dlxd_arena *arena)
{
    struct dlxd_publisher *publisher = link->publisher;
    assert(arena->n_notify > 0 && link->drop_seq >= arena->drop_seq);
    if (--arena->n_notify == 0) {
        dlxd_arenas_remove(&publisher->dropped, arena);
        free_ready(publisher, arena);
    } else {
        dlxd_payer_may_change(link, arena);
    }
}

void dlxd_publisher_link_leaves(struct dlxd_publisher *publisher, const struct dlxd_link *link)
{
    if (publisher->cursor == &link->by_publisher)
        publisher->cursor = link->by_publisher.next;
    if (publisher->next_told == &link->by_publisher)
        publisher->next_told = link->by_publisher.next;
}

/* ---- indices of links ---------------------------------------------------------------------- */

int dlxd_publisher_index_get(struct dlxd_publisher *publisher, uint32_t *ret)
{
    size_t i = 0;
    while (i < publisher->n_index_words && publisher->index_bits[i] == UINT64_MAX)
        i++;
    if (i == publisher->n_index_words) {
        size_t n = i ? i * 2 : 1;
        uint64_t *bits = reallocarray(publisher->index_bits, n, sizeof *bits);
        if (!bits)
            return dlx__fail(DLX_E_NO_MEMORY, "out of memory for link indices");
        for (size_t k = i; k < n; k++)
            bits[k] = 0;
        publisher->index_bits = bits;
        publisher->n_index_words = n;
    }
    unsigned bit = (unsigned)__builtin_ctzll(~publisher->index_bits[i]);
    publisher->index_bits[i] |= UINT64_C(1) << bit;
    *ret = (uint32_t)(i * 64 + bit);
    return 0;
}

void dlxd_publisher_index_put(struct dlxd_publisher *publisher, uint32_t index)
{
    publisher->index_bits[index / 64] &= ~(UINT64_C(1) << (index % 64));
}
