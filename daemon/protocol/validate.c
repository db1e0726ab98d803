/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/protocol/validate.h"
#include "common/amount.h"
#include "common/error.h"
#include "ring/layout.h"
#include "common/topic.h"
#include "daemon/objects/objects.h"
#include "keeper/wire.h"
#include <inttypes.h>
#include <string.h>

#define SPARES_MAX 4096U

int dlxd_validate_hello(const Dlx__Wire__Packet *packet)
{
    const Dlx__Wire__Hello *hello = packet->hello;
    if (hello->major != DLX_PROTO_MAJOR)
        return dlx__fail(
            DLX_E_VERSION,
            "protocol version %u.%u is not known: this daemon (%s) knows %u.0 to %u.%u",
            hello->major, hello->minor, DLX_VERSION_STRING, DLX_PROTO_MAJOR, DLX_PROTO_MAJOR,
            DLX_PROTO_MINOR);
    size_t size = strlen(hello->name);
    if (size > DLXD_NAME_SIZE - 1)
        return dlx__fail(DLX_E_INVALID, "client name of %zu bytes, at most %d are allowed", size,
                         DLXD_NAME_SIZE - 1);
    return 0;
}

static int check_group_name(const char *what, const char *topic, const char *name)
{
    int r = dlx__group_check(name);
    return r < 0 ? dlx__fail_prefix(r, "%s %s", what, topic) : 0;
}

static int check_declared(const Dlx__Wire__PublisherNew *body)
{
    if (body->n_groups > DLX_SHM_GROUPS_MAX)
        return dlx__fail(DLX_E_INVALID, "publisher of %s: %zu groups, must be at most %u",
                         body->topic, body->n_groups, DLX_SHM_GROUPS_MAX);
    for (size_t i = 0; i < body->n_groups; i++) {
        int r = check_group_name("publisher of", body->topic, body->groups[i]);
        if (r < 0)
            return r;
        for (size_t k = 0; k < i; k++)
            if (strcmp(body->groups[k], body->groups[i]) == 0)
                return dlx__fail(DLX_E_INVALID, "publisher of %s: group %s is declared twice",
                                 body->topic, body->groups[i]);
    }
    return 0;
}

int dlxd_validate_publisher_new(const Dlx__Wire__Packet *packet)
{
    const Dlx__Wire__PublisherNew *body = packet->publisher_new;
    int r = dlx__topic_check_any(body->topic);
    if (r < 0)
        return r;
    if (body->history < 1 || body->history > DLX_SHM_HISTORY_MAX)
        return dlx__fail(DLX_E_INVALID, "publisher of %s: history %u must be 1 to %u", body->topic,
                         body->history, DLX_SHM_HISTORY_MAX);
    if (body->depth < 1 || body->depth > DLX_SHM_DEPTH_MAX)
        return dlx__fail(DLX_E_INVALID, "publisher of %s: depth %u must be 1 to %u", body->topic,
                         body->depth, DLX_SHM_DEPTH_MAX);
    uint32_t n_least = dlx_shm_n_entries(DLX_MAX(body->depth, body->history));
    if (!dlx_shm_n_entries_is_valid(body->n_entries) || body->n_entries < n_least)
        return dlx__fail(
            DLX_E_INVALID,
            "publisher of %s: ring of %u entries must be a power of 2 from %u (depth %u, "
            "history %u) to %u",
            body->topic, body->n_entries, n_least, body->depth, body->history, DLX_SHM_ENTRIES_MAX);
    if (body->on_full > 1)
        return dlx__fail(DLX_E_INVALID,
                         "publisher of %s: on_full %u must be 0 (drop oldest) or 1 (block)",
                         body->topic, body->on_full);
    if (body->after_seq >= DLX_SHM_MOVED)
        return dlx__fail(DLX_E_INVALID,
                         "publisher of %s: %" PRIu64 " published messages must be below 2^61",
                         body->topic, body->after_seq);
    if (body->retain > body->history)
        return dlx__fail(DLX_E_INVALID, "publisher of %s: retains %u messages of a history of %u",
                         body->topic, body->retain, body->history);
    if (body->max_held > DLX_SHM_HELD_MAX)
        return dlx__fail(DLX_E_INVALID, "publisher of %s: max_held %u must be at most %u",
                         body->topic, body->max_held, DLX_SHM_HELD_MAX);
    return check_declared(body);
}

int dlxd_validate_retained_drop(const Dlx__Wire__Packet *packet)
{
    return dlx__topic_check(packet->retained_drop->topic);
}

int dlxd_validate_groups_drop(const Dlx__Wire__Packet *packet)
{
    return dlx__topic_check(packet->groups_drop->topic);
}

int dlxd_validate_arena_new(const Dlx__Wire__Packet *packet)
{
    uint64_t size = packet->arena_new->arena_size;
    if (size == 0 || size % DLX_PAGE != 0)
        return dlx__fail(DLX_E_INVALID, "arena of %" PRIu64 " bytes, not a multiple of %u", size,
                         DLX_PAGE);
    if (size > DLX_SHM_ARENA_MAX)
        return dlx__fail(DLX_E_LIMIT, "arena of %s: an arena may have at most %s", DLX_AMOUNT(size),
                         DLX_AMOUNT(DLX_SHM_ARENA_MAX));
    return 0;
}

static int check_worker(const Dlx__Wire__Subscribe *body)
{
    if (!*body->group)
        return 0;
    int r = check_group_name("subscription to", body->topic, body->group);
    if (r < 0)
        return r;
    if (body->mode == 1)
        return dlx__fail(DLX_E_INVALID,
                         "subscription to %s: mode latest skips messages, so it cannot be in group "
                         "%s, whose workers do all",
                         body->topic, body->group);
    if (body->history > 0)
        return dlx__fail(DLX_E_INVALID,
                         "subscription to %s: group %s gets what is published from now on, so "
                         "history %u must be 0",
                         body->topic, body->group, body->history);
    if (body->lease_ns > INT64_MAX)
        return dlx__fail(DLX_E_INVALID,
                         "subscription to %s: lease of %" PRIu64 " ns of group %s must be at most "
                         "2^63 - 1",
                         body->topic, body->lease_ns, body->group);
    if (body->max_attempts < 1 || body->max_attempts > DLX_SHM_ATTEMPTS_MAX)
        return dlx__fail(DLX_E_INVALID,
                         "subscription to %s: %u attempts of group %s must be 1 to %u", body->topic,
                         body->max_attempts, body->group, DLX_SHM_ATTEMPTS_MAX);
    return 0;
}

int dlxd_validate_subscribe(const Dlx__Wire__Packet *packet)
{
    const Dlx__Wire__Subscribe *body = packet->subscribe;
    int r = dlx__is_inbox(body->topic) ? 0 : dlx__pattern_check(body->topic);
    if (r < 0)
        return r;
    if (body->mode > 1)
        return dlx__fail(DLX_E_INVALID, "subscription to %s: mode %u must be 0 (all) or 1 (latest)",
                         body->topic, body->mode);
    if (body->mode == 1 && body->reliable)
        return dlx__fail(DLX_E_INVALID,
                         "subscription to %s: mode latest skips messages, so it cannot be reliable",
                         body->topic);
    if (body->accepts_unreliable && !body->reliable)
        return dlx__fail(DLX_E_INVALID,
                         "subscription to %s: it accepts links that are not reliable, but asks for "
                         "none that is",
                         body->topic);
    if (body->history > DLX_SHM_HISTORY_MAX)
        return dlx__fail(DLX_E_INVALID, "subscription to %s: history %u must be at most %u",
                         body->topic, body->history, DLX_SHM_HISTORY_MAX);
    if (body->max_held < 1 || body->max_held > DLX_SHM_HELD_MAX)
        return dlx__fail(DLX_E_INVALID, "subscription to %s: max_held %u must be 1 to %u",
                         body->topic, body->max_held, DLX_SHM_HELD_MAX);
    if (body->n_spares > SPARES_MAX)
        return dlx__fail(DLX_E_INVALID, "subscription to %s: %u spare links must be at most %u",
                         body->topic, body->n_spares, SPARES_MAX);
    return check_worker(body);
}

static int check_list(const char *topic, const char *after_topic)
{
    int r = *topic ? dlx__pattern_check(topic) : 0;
    return r == 0 && *after_topic ? dlx__topic_check(after_topic) : r;
}

int dlxd_validate_list_publishers(const Dlx__Wire__Packet *packet)
{
    return check_list(packet->list_publishers->topic, packet->list_publishers->after_topic);
}

int dlxd_validate_observe(const Dlx__Wire__Packet *packet)
{
    const Dlx__Wire__Observe *body = packet->observe;
    int r = dlx__pattern_check(body->topic);
    if (r == 0 && (body->kinds < 1 || body->kinds > 3))
        r = dlx__fail(DLX_E_INVALID, "observer of %s: kinds %u must be 1 to 3", body->topic,
                      body->kinds);
    return r;
}

int dlxd_validate_list_subscriptions(const Dlx__Wire__Packet *packet)
{
    const Dlx__Wire__ListSubscriptions *body = packet->list_subscriptions;
    int r = *body->topic ? dlx__pattern_check(body->topic) : 0;
    return r == 0 && *body->after_topic ? dlx__pattern_check(body->after_topic) : r;
}

int dlxd_validate_list_refusals(const Dlx__Wire__Packet *packet)
{
    return check_list(packet->list_refusals->topic, "");
}

int dlxd_validate_kick(const Dlx__Wire__Packet *packet)
{
    const Dlx__Wire__Kick *body = packet->kick;
    if ((body->client == 0) == (body->pid == 0))
        return dlx__fail(DLX_E_INVALID,
                         "Kick of client %" PRIu64 " and pid %u: one of them must be 0, the other "
                         "one not",
                         body->client, body->pid);
    return 0;
}

int dlxd_validate_list_groups(const Dlx__Wire__Packet *packet)
{
    return check_list(packet->list_groups->topic, packet->list_groups->after_topic);
}

int dlxd_validate_gpu_allocate(const Dlx__Wire__Packet *packet)
{
    const Dlx__Wire__GpuAllocate *body = packet->gpu_allocate;
    if (body->allocation == 0)
        return dlx__fail(DLX_E_INVALID, "allocation 0: ids of allocations begin with 1");
    if (body->size == 0 || body->size > INT64_MAX)
        return dlx__fail(DLX_E_INVALID, "an allocation of GPU memory cannot have %" PRIu64 " bytes",
                         body->size);
    if (body->device.len != sizeof((struct dlx_keeper_device *)0)->uuid)
        return dlx__fail(DLX_E_INVALID, "the UUID of a GPU has 16 bytes, not %zu",
                         body->device.len);
    return 0;
}

int dlxd_validate_gpu_get(const Dlx__Wire__Packet *packet)
{
    if (packet->gpu_get->allocation == 0)
        return dlx__fail(DLX_E_INVALID, "allocation 0: ids of allocations begin with 1");
    return 0;
}

int dlxd_validate_former_new(const Dlx__Wire__Packet *packet)
{
    const Dlx__Wire__FormerNew *body = packet->former_new;
    if (body->n_regions < 1 || body->n_regions > DLX_SHM_FORMER_REGIONS_MAX ||
        body->n_sources < 1 || body->n_sources > DLX_SHM_FORMER_SOURCES_MAX)
        return dlx__fail(DLX_E_INVALID,
                         "former page for %u regions of %u sources, from 1 to %u of 1 to %u are "
                         "possible",
                         body->n_regions, body->n_sources, DLX_SHM_FORMER_REGIONS_MAX,
                         DLX_SHM_FORMER_SOURCES_MAX);
    return 0;
}
