/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/publisher.h"
#include "common/error.h"
#include "common/packet.h"
#include "common/memory.h"
#include "ring/layout.h"
#include "daemon/gpu/keeper.h"
#include "daemon/objects/drain.h"
#include "daemon/objects/former.h"
#include "daemon/objects/link.h"
#include "daemon/objects/offer.h"
#include "daemon/objects/payer.h"
#include "daemon/objects/pending_join.h"
#include "daemon/objects/registry.h"
#include "daemon/objects/retained.h"
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

static void close_link_sock(struct dlxd_publisher *publisher)
{
    dlxd_charge_close_descriptors(&publisher->object_charge); /* of the link socket */
    publisher->link_sock = dlxd_outbox_close(publisher->link_sock, publisher->user);
}

static void publisher_free(struct dlxd_publisher *publisher)
{
    if (publisher->gone) {
        dlxd_idmap_remove(&publisher->broker->registry.gone_publishers, &publisher->by_id);
        dlxd_list_remove(&publisher->by_topic);
    }
    dlxd_task_stop(&publisher->task);
    dlxd_gpu_keeper_leave(publisher->broker->gpu, &publisher->gpu);
    dlxd_arena_free(publisher->control);
    dlxd_arenas_deinit(&publisher->unready);
    dlxd_arenas_deinit(&publisher->ready);
    dlxd_arenas_deinit(&publisher->dropped);
    dlxd_former_uncover(publisher->broker, publisher->topic_name, dlxd_publisher_id(publisher));
    dlxd_pending_joins_deinit(&publisher->pending_joins);
    close_link_sock(publisher);
    dlxd_membership_line_deinit(&publisher->line);
    dlxd_charge_deinit(&publisher->object_charge);
    dlxd_user_unref(publisher->user);
    dlxd_principal_unref(publisher->principal);
    free(publisher->index_bits);
    free(publisher);
}

/* Makes a region with this id, not ready yet. The name appears in /proc/PID/maps. */
static int new_region(struct dlxd_publisher *publisher, struct dlxd_user *user, const char *name,
                      uint32_t id, uint64_t size, struct dlxd_arena **ret, int *ret_writer_fd)
{
    struct dlxd_arena *arena;
    int r = dlxd_arena_new(&arena, publisher->broker->workers, user, id, size,
                           dlxd_retained_is_possible(publisher));
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

/* The steps that can fail, before any other object knows the publisher. */
static int publisher_allocate(struct dlxd_publisher *publisher, struct dlxd_user *user,
                              struct dlxd_publisher_fds *ret_fds)
{
    int pair[2];
    int size = LINK_SOCK_SNDBUF;
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
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
        return dlx__fail_errno("link socket");
    dlx__packet_refuse_fds(pair[0]);
    dlx_cleanup(dlx__closep) int theirs = pair[1];
    publisher->link_sock = dlxd_outbox_new(publisher->broker->workers, pair[0]);
    if (!publisher->link_sock) {
        dlx__close(pair[0]);
        return DLX_E_NO_MEMORY;
    }
    if (setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size) < 0)
        return dlx__fail_errno("SO_SNDBUF of a link socket");
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
    dlxd_list_init(&publisher->links);
    dlxd_drains_init(&publisher->drains);
    publisher->cursor = publisher->next_told = &publisher->links;
    dlxd_task_init(&publisher->task, dlxd_publisher_step);
    (void)snprintf(publisher->topic_name, sizeof publisher->topic_name, "%s", topic);
    return publisher;
}

/* A former daemon knew this publisher, so the GPU keeper may hold something of it. */
static void join_gpu(struct dlxd_publisher *publisher)
{
    dlxd_gpu_keeper_join(publisher->broker->gpu, &publisher->gpu, dlxd_publisher_origin(publisher),
                         dlxd_principal_number(publisher->principal));
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
    int r = publisher_allocate(publisher, client->user, &fds);
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
                               dlxd_retained_is_possible(publisher));
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

/* Frees what it does not need after its client has left. */
static void leave_client(struct dlxd_publisher *publisher)
{
    dlxd_drains_publisher_left(publisher);
    dlx_for_each (it, &publisher->links) {
        struct dlxd_link *link = dlxd_container_of(it, struct dlxd_link, by_publisher);
        link->drain->share = dlxd_share_put(link->drain->share);
    }
    publisher->client->n_links -= dlxd_publisher_n_links(publisher);
    publisher->client = NULL;
    dlxd_list_remove(&publisher->by_client);
    dlxd_pending_joins_deinit(&publisher->pending_joins);
    close_link_sock(publisher);
    dlxd_membership_line_deinit(&publisher->line);
    dlxd_arenas_deinit(&publisher->unready);
}

/* Its control block may be closed from now on. */
static void note_last_messages(struct dlxd_publisher *publisher)
{
    struct dlxd_control_report report;
    dlxd_report_control(publisher->control->fd, &report);
    publisher->gone_head = report.head;
    publisher->gone_oldest = report.oldest;
}

void dlxd_publisher_vanish(struct dlxd_publisher *publisher)
{
    struct dlxd_registry *registry = &publisher->broker->registry;
    assert(publisher->state != DLXD_PUBLISHER_GONE);
    dlxd_store_hooks_forget(publisher);
    publisher->state = DLXD_PUBLISHER_GONE;
    if (publisher->client)
        leave_client(publisher);
    else
        dlxd_retained_remove(publisher);
    dlxd_list_remove(&publisher->by_topic);
    dlxd_registry_put(registry, publisher->topic);
    publisher->topic = NULL;
    dlxd_idmap_remove(&registry->publishers, &publisher->by_id);
    dlxd_idmap_add(&registry->gone_publishers, &publisher->by_id, dlxd_publisher_id(publisher));
    dlxd_list_push_back(&registry->gone, &publisher->by_topic);
    publisher->gone = ++registry->last_gone;
    dlxd_arena_forget(publisher->control);
    for (size_t i = 0; i < publisher->ready.n; i++)
        dlxd_arena_forget(publisher->ready.items[i]);
    publisher->n_undelivered = 1;
    dlx_for_each (it, &publisher->links)
        publisher->n_undelivered +=
            !dlxd_container_of(it, struct dlxd_link, by_publisher)->gone_sent;
    note_last_messages(publisher);
    publisher->n_links++; /* keeps the publisher alive here */
    dlxd_publisher_tell_links(publisher);
    publisher->n_links--;
    dlxd_publisher_delivered(publisher);
    dlxd_publisher_link_left(publisher);
}

static bool publisher_end(struct dlxd_publisher *publisher, int pidfd)
{
    if (!dlxd_retained_is_wanted(publisher)) {
        dlxd_publisher_vanish(publisher);
        return false;
    }
    leave_client(publisher);
    publisher->state = DLXD_PUBLISHER_RETAINED;
    dlxd_retained_add(publisher, pidfd);
    dlxd_publisher_tell_links(publisher);
    return true;
}

bool dlxd_publisher_end(struct dlxd_publisher *publisher)
{
    return publisher && publisher_end(publisher, -1);
}

void dlxd_publisher_die(struct dlxd_publisher *publisher, int pidfd)
{
    (void)publisher_end(publisher, pidfd);
}

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
        dlxd_payer_of_gone(publisher);
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

/* The client waits for the reply, so there is only one proof at a time. */
static int begin_proof(struct dlxd_publisher *publisher, struct dlxd_arena *arena,
                       dlxd_proof_fn *fn)
{
    int r = dlxd_proof_begin(&arena->proof, arena->workers, publisher->broker->memory,
                             arena->charge.user, arena->fd, arena->size, fn, publisher);
    if (r < 0)
        return r;
    arena->fd = -1;
    publisher->proving = arena;
    return 0;
}

static struct dlxd_arena *end_proof(struct dlxd_publisher *publisher, int take_fd)
{
    struct dlxd_arena *arena = publisher->proving;
    publisher->proving = NULL;
    arena->proof = NULL;
    arena->fd = take_fd;
    return arena;
}

int dlxd_publisher_prove(struct dlxd_publisher *publisher, dlxd_proof_fn *fn)
{
    if (publisher->state != DLXD_PUBLISHER_NEW)
        return dlx__fail(DLX_E_IN_USE, "publisher %" PRIu64 " of %s was made ready before",
                         dlxd_publisher_id(publisher), publisher->topic_name);
    int r = begin_proof(publisher, publisher->control, fn);
    return r < 0 ? dlx__fail_prefix(r, "control block") : 0;
}

int dlxd_publisher_ready(struct dlxd_publisher *publisher, int code, const char *text, int take_fd)
{
    (void)end_proof(publisher, take_fd);
    if (code < 0) {
        (void)dlxd_publisher_end(publisher);
        return dlx__fail(code, "control block: %s", text);
    }
    dlxd_reservation_end(publisher->control);
    publisher->state = DLXD_PUBLISHER_OPEN;
    dlxd_retained_resume(publisher);
    dlxd_offering_begin(publisher, true);
    dlxd_store_hooks_update(publisher);
    return 0;
}

int dlxd_publisher_check_awaited(const struct dlxd_publisher *publisher)
{
    dlx_for_each (it, &publisher->links) {
        const struct dlxd_link *link = dlxd_container_of(it, struct dlxd_link, by_publisher);
        const struct dlxd_subscription *subscription = link->subscription;
        if (dlxd_link_is_awaited(link))
            return dlx__fail(
                DLX_E_FULL,
                "the reliable subscription of %s (pid %d) to %s is not ready for another "
                "publisher: "
                "it has made no call since the last ones came; let it take, or subscribe for more "
                "publishers (n_publishers, publishers=)",
                subscription->client->name, (int)subscription->client->pid,
                subscription->topic_name);
    }
    return 0;
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

static int no_such_arena(const struct dlxd_publisher *publisher, uint32_t id)
{
    return dlx__fail(DLX_E_NOT_FOUND,
                     "publisher %" PRIu64 " of %s has no such arena %u: it was "
                     "dropped, or returned since its pages did not grow",
                     dlxd_publisher_id(publisher), publisher->topic_name, id);
}

int dlxd_publisher_arena_prove(struct dlxd_publisher *publisher, uint32_t id, dlxd_proof_fn *fn)
{
    struct dlxd_arena *arena = dlxd_arenas_find(&publisher->unready, id);
    if (!arena)
        return no_such_arena(publisher, id);
    int r = begin_proof(publisher, arena, fn);
    return r < 0 ? dlx__fail_prefix(r, "arena %u", id) : 0;
}

int dlxd_publisher_arena_ready(struct dlxd_publisher *publisher, int code, const char *text,
                               int take_fd)
{
    struct dlxd_arena *arena = end_proof(publisher, take_fd);
    if (code < 0) {
        int r = dlx__fail(code, "arena %u: %s", arena->id, text);
        dlxd_arenas_remove(&publisher->unready, arena);
        dlxd_arena_free(arena);
        return r;
    }
    int r = dlxd_arenas_reserve(&publisher->ready);
    if (r < 0)
        return dlx__fail_prefix(r, "arena %u", arena->id);
    dlxd_reservation_end(arena);
    dlxd_arenas_remove(&publisher->unready, arena);
    arena->ready_seq = ++publisher->last_ready_seq;
    dlxd_arenas_push(&publisher->ready, arena);
    dlxd_store_hooks_update(publisher);
    return 0;
}

/* It is in no list any more, but clients may have listed it. */
static void free_ready(const struct dlxd_publisher *publisher, struct dlxd_arena *arena)
{
    dlxd_arena_free(arena);
    dlxd_former_uncover(publisher->broker, publisher->topic_name, dlxd_publisher_id(publisher));
}

static void drop_ready(struct dlxd_publisher *publisher, struct dlxd_arena *arena)
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
        dlxd_payer_of_dropped(publisher, arena);
    }
    dlxd_publisher_tell_links(publisher); /* also those that waited to be told of the arena */
}

int dlxd_publisher_arena_drop(struct dlxd_publisher *publisher, uint32_t id)
{
    struct dlxd_arena *arena = dlxd_arenas_take(&publisher->unready, id);
    if (arena) {
        dlxd_arena_free(arena);
        return 0;
    }
    arena = dlxd_arenas_find(&publisher->ready, id);
    if (!arena)
        return no_such_arena(publisher, id);
    int r = dlxd_arenas_reserve(&publisher->dropped);
    if (r < 0)
        return r;
    drop_ready(publisher, arena);
    return 0;
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
