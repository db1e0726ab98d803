/* SPDX-License-Identifier: Apache-2.0 */

/* dlx_publish_set(): several named tensors and metadata as one message. */

#include "client/base/nametable.h"
#include "client/message/subscriber_link.h"
#include "client/gpu/gpu.h"
#include "client/publish/publish.h"
#include "client/publish/publisher_reconnect.h"
#include "ring/manifest.h"
#include "ring/tensor.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* How many items ahead the caches are asked for what is looked at: a large set does not fit into
 * one. */
#define AHEAD 8U

struct set {
    const struct dlx_item *items;
    uint32_t n;
    bool share;
    struct dlx_manifest_item *entries; /* [n] */
    uint64_t copy_size;                /* of what is to be copied, each part aligned */
    uint64_t copied_bytes;
    uint64_t bytes;
    uint32_t n_copied;
    uint32_t n_copied_views;
    uint32_t n_staged;     /* of these, on GPUs */
    uint64_t *is_copied;   /* a bit for each item that is copied */
    bool has_shared;       /* something in it is also elsewhere, or stays the caller's */
    struct dlx_block *own; /* what is read where it lies, and is nowhere else: a list, */
    struct dlx_block *own_last;
    uint32_t n_own;            /* and how many they are */
    const void *before[AHEAD]; /* where the newest of them are */
    struct dlx_block *copies;  /* NULL if there is nothing to copy */
    struct dlx_block *manifest;
    struct dlx_gpu_parcel *gpu;  /* NULL: nothing in it is on a GPU */
    struct dlx_block *gpu_block; /* that stands for it */
    struct dlx_block *refs; /* to what is in other messages, too, or stays the caller's; a list */
};

/* What errors call a tensor of a set: tensor 1 ("rgb"), or tensor 0 if it has no name. */
struct label {
    char text[256];
};

static struct label label(const struct set *set, uint32_t i)
{
    struct label ret;
    const char *name = set->entries[i].name;
    if (name && *name)
        (void)snprintf(ret.text, sizeof ret.text, "tensor %u (\"%.200s\")", i, name);
    else
        (void)snprintf(ret.text, sizeof ret.text, "tensor %u", i);
    return ret;
}

static bool is_copied(const struct set *set, uint32_t i)
{
    return set->is_copied[i / 64] >> (i % 64) & 1;
}

/* Names that were seen, and tensors that are not ours: those carry a mark. Made when needed. */
struct seen {
    struct dlx_nametable *names, *tensors;
    uint32_t hashes[AHEAD]; /* of the names that come next */
};

static int hash_seen(struct dlx_nametable **table, uint32_t n, const void *key, uint32_t key_size,
                     uint32_t *ret)
{
    int r = *table ? 0 : dlx__nametable_new(table, n);
    if (r == 0)
        *ret = dlx__nametable_hash(*table, key, key_size);
    return r;
}

/* The item's block if the message is read from there, else NULL. */
static struct dlx_block *own_block(const struct dlx_publisher *p, const struct set *set, uint32_t i)
{
    return is_copied(set, i) ? NULL : dlx__block_of(p->heap, set->items[i].tensor);
}

static int check_tensor(const struct dlx_publisher *p, const struct set *set, uint32_t i,
                        struct seen *seen)
{
    DLManagedTensorVersioned *const *t = &set->items[i].tensor;
    uint32_t other = DLX_NAMETABLE_NONE;
    if (!*t)
        return dlx__fail(DLX_E_INVALID, "topic %s: tensor %u is NULL", p->topic, i);
    if ((*t)->version.major != DLPACK_MAJOR_VERSION)
        return dlx__fail(
            DLX_E_VERSION, "topic %s: tensor %u is of DLPack %u.%u, this library knows %d.x",
            p->topic, i, (*t)->version.major, (*t)->version.minor, DLPACK_MAJOR_VERSION);
    struct dlx_block *own = dlx__block_of(p->heap, *t);
    bool twice = own && own->set == p->n_sets;
    if (dlx__publish_is_again(own)) {
        return dlx__publish_fail_again(p, label(set, i).text);
    }
    if (own) {
        own->set = p->n_sets;
    } else {
        uint32_t hash = 0;
        int r = hash_seen(&seen->tensors, set->n, t, sizeof(*t), &hash);
        if (r < 0)
            return r;
        other = dlx__nametable_add(seen->tensors, t, sizeof(*t), hash, i);
        twice = other != DLX_NAMETABLE_NONE;
    }
    if (twice && !set->share)
        return dlx__fail(DLX_E_INVALID, "topic %s: %s is in the set twice: `share` allows that",
                         p->topic, label(set, i).text);
    return 0;
}

/* Its length, up to one too long, and its hash. */
static int measure_name(const struct set *set, uint32_t i, struct seen *seen)
{
    struct dlx_manifest_item *entry = &set->entries[i];
    entry->name = set->items[i].name ? set->items[i].name : "";
    entry->name_size = (uint32_t)strnlen(entry->name, DLX_SHM_NAME_MAX + 1);
    return entry->name_size == 0 ? 0
                                 : hash_seen(&seen->names, set->n, entry->name, entry->name_size,
                                             &seen->hashes[i % AHEAD]);
}

static int check_name(const struct dlx_publisher *p, const struct set *set, uint32_t i,
                      const struct seen *seen)
{
    const char *name = set->entries[i].name;
    uint32_t size = set->entries[i].name_size, other = DLX_NAMETABLE_NONE;
    if (size > DLX_SHM_NAME_MAX)
        return dlx__fail(DLX_E_INVALID,
                         "topic %s: the name of tensor %u is longer than %u bytes: \"%.40s...\"",
                         p->topic, i, DLX_SHM_NAME_MAX, name);
    if (size > 0)
        other = dlx__nametable_add(seen->names, name, size, seen->hashes[i % AHEAD], i);
    if (other != DLX_NAMETABLE_NONE)
        return dlx__fail(DLX_E_INVALID, "topic %s: tensors %u and %u are both named \"%.200s\"",
                         p->topic, other, i, name);
    return 0;
}

/* It is read where it lies. Back to front, so that blocks that come back and are taken again keep
 * their order. */
static void add_own(struct set *set, struct dlx_block *own, const struct dlx_publish_args *args)
{
    if (dlx__publish_shares(own, args)) {
        set->has_shared = true;
        return;
    }
    own->next = set->own;
    own->ahead = set->before[set->n_own % AHEAD];
    set->before[set->n_own % AHEAD] = &own->next;
    set->own = own;
    if (set->n_own++ == 0)
        set->own_last = own;
}

static bool is_on_gpu(const struct set *set, uint32_t i)
{
    return dlx__device_is_gpu(set->entries[i].record.device_type);
}

static void count_copy(struct set *set, uint32_t i)
{
    set->is_copied[i / 64] |= UINT64_C(1) << (i % 64);
    set->copied_bytes += set->entries[i].record.size;
    set->n_copied++;
}

static int place_on_gpu(struct dlx_publisher *p, struct set *set, uint32_t i,
                        const struct dlx_publish_args *args)
{
    int r =
        dlx__gpu_publisher.add(p, &set->gpu, set->n, set->items[i].tensor, args, &set->entries[i]);
    if (r < 0)
        return dlx__fail_prefix(r, "topic %s: %s", p->topic, label(set, i).text);
    set->bytes += set->entries[i].record.size;
    if (r == 1) {
        count_copy(set, i);
        set->n_staged++;
    }
    return 0;
}

/* Where does the tensor lie, and must it be copied? */
static int place_item(struct dlx_publisher *p, struct set *set, uint32_t i,
                      const struct dlx_publish_args *args)
{
    const DLManagedTensorVersioned *t = set->items[i].tensor;
    struct dlx_block *own = dlx__block_of(p->heap, t);
    struct dlx_manifest_item *entry = &set->entries[i];
    uint64_t aligned;
    entry->allocation = 0;
    if (dlx_unlikely(dlx__tensor_is_on_gpu(&t->dl_tensor)))
        return place_on_gpu(p, set, i, args);
    int r = dlx__publish_place(
        &t->dl_tensor, own, t->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED, &entry->record);
    if (r < 0)
        return dlx__fail_prefix(r, "topic %s: %s", p->topic, label(set, i).text);
    entry->shape = t->dl_tensor.shape;
    entry->strides = t->dl_tensor.strides;
    set->bytes += entry->record.size;
    if (r == 0) {
        add_own(set, own, args);
        return 0;
    }
    if (args->strict) {
        return dlx__publish_fail_would_copy(p, label(set, i).text, own, dlx__message_of(t));
    }
    if (!dlx__align_up(entry->record.size, DLX_SHM_ALIGN, &aligned) ||
        __builtin_add_overflow(set->copy_size, aligned, &set->copy_size))
        return dlx__fail(DLX_E_SHAPE, "topic %s: the set has more than 2^64-1 bytes", p->topic);
    count_copy(set, i);
    set->n_copied_views += dlx__heap_has(p->heap, t->dl_tensor.data);
    return 0;
}

/* Of ours: the lines of its block that are looked at. The address is the caller's, and none is
 * wrong here. */
static void prefetch_tensor(const DLManagedTensorVersioned *t)
{
    for (size_t line = 0; line <= offsetof(struct dlx_block, inline_dims) + 72; line += 64)
        dlx__prefetch_write((const char *)t + line);
}

/* Everything about an item in one go: a large set does not fit into a cache. */
static int check_items(struct dlx_publisher *p, struct set *set,
                       const struct dlx_publish_args *args)
{
    struct seen seen = {0};
    int r = 0;
    p->n_sets++;
    for (uint32_t i = 0; r == 0 && i < DLX_MIN(AHEAD, set->n); i++)
        r = measure_name(set, i, &seen);
    for (uint32_t i = 0; r == 0 && i < set->n; i++) {
        r = check_name(p, set, i, &seen);
        if (r == 0 && i + AHEAD < set->n) {
            prefetch_tensor(set->items[i + AHEAD].tensor);
            r = measure_name(set, i + AHEAD, &seen);
        }
        if (r == 0)
            r = check_tensor(p, set, i, &seen);
        if (r == 0)
            r = place_item(p, set, i, args);
    }
    dlx__nametable_free(seen.names);
    dlx__nametable_free(seen.tensors);
    return r;
}

static int place_items_again(struct dlx_publisher *p, struct set *set,
                             const struct dlx_publish_args *args)
{
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < set->n; i++)
        r = place_item(p, set, i, args);
    return r;
}

static int copy_items(struct dlx_publisher *p, struct set *set)
{
    uint64_t at = 0, aligned = 0;
    if (set->n_copied == set->n_staged)
        return 0;
    int r = dlx__publisher_block(p, set->copy_size, &set->copies);
    for (uint32_t i = 0; r == 0 && i < set->n; i++) {
        struct dlx_shm_record *record = &set->entries[i].record;
        if (!is_copied(set, i) || is_on_gpu(set, i))
            continue;
        r = dlx__publish_copy(set->copies, at, &set->items[i].tensor->dl_tensor, record);
        if (r < 0)
            dlx__fail_prefix(r, "topic %s: %s", p->topic, label(set, i).text);
        (void)dlx__align_up(record->size, DLX_SHM_ALIGN, &aligned);
        at += aligned;
    }
    return r;
}

/* While it waited for room, what was in other messages may have come back. */
static int share_items(struct dlx_publisher *p, struct set *set,
                       const struct dlx_publish_args *args)
{
    if (!set->has_shared)
        return 0;
    set->own = set->own_last = NULL;
    set->n_own = 0;
    for (uint32_t i = 0; i < set->n; i++) {
        struct dlx_block *own = own_block(p, set, i), *ref;
        if (!own)
            continue;
        if (!dlx__publish_shares(own, args)) {
            add_own(set, own, args);
            continue;
        }
        int r = dlx__block_share(own, &ref);
        if (r < 0)
            return r;
        ref->next = set->refs;
        set->refs = ref;
    }
    return 0;
}

/* The memory of its tensors on GPUs goes with the message. */
static int hold_gpu(struct dlx_publisher *p, struct set *set, const struct dlx_publish_args *args)
{
    if (!set->gpu)
        return 0;
    int r = dlx__gpu_publisher.hold(p, set->gpu, args, &set->gpu_block);
    if (r == 0)
        dlx__gpu_publisher.write(p, set->gpu, dlx__block_data(set->manifest));
    return r;
}

static void give_list(struct dlx_publisher *p, struct dlx_block *block)
{
    while (block) {
        struct dlx_block *next = block->next;
        dlx__heap_give(p->heap, block);
        block = next;
    }
}

static void put_set(struct dlx_publisher *p, struct set *set, const struct dlx_publish_args *args)
{
    uint64_t words[DLX_SHM_ENTRY_WORDS];
    struct dlx_block *blocks = set->manifest;
    dlx__entry_pack_manifest(words, dlx__block_arena_id(blocks), blocks->offset,
                             blocks->payload_size, set->n);
    if (set->gpu)
        dlx__entry_set_gpu(words);
    blocks->next = set->copies;
    if (set->copies)
        set->copies->next = set->refs;
    else
        blocks->next = set->refs;
    if (set->own) {
        set->own_last->next = blocks;
        blocks = set->own;
    }
    if (set->gpu_block) { /* first: the manifest stays until nothing is written there any more */
        set->gpu_block->next = blocks;
        blocks = set->gpu_block;
    }
    for (uint32_t i = 0; i < set->n; i++) {
        struct dlx_block *own = own_block(p, set, i);
        if (own)
            dlx__publish_handed_over(own, args);
        else if (set->gpu && is_on_gpu(set, i) && !is_copied(set, i))
            dlx__gpu_publisher.adopt(p, set->gpu, set->items[i].tensor, args);
    }
    const struct dlx_parcel parcel = {.words = words,
                                      .blocks = blocks,
                                      .bytes = set->bytes,
                                      .copied_bytes = set->copied_bytes,
                                      .n_copied = set->n_copied};
    dlx__publish_put(p, &parcel,
                     args->monotonic_ns ? args->monotonic_ns : dlx__clock_now(&p->clock));
    dlx__publish_announce(p);
}

static size_t bits_size(uint32_t n)
{
    return ((size_t)n + 63) / 64 * sizeof(uint64_t);
}

static int publish_set(struct dlx_publisher *p, struct set *set, const struct dlx_bytes *meta,
                       const struct dlx_publish_args *args)
{
    struct dlx_wait wait = {.deadline =
                                args->timeout_ns == 0 ? 0 : dlx__deadline(args->timeout_ns)};
    uint64_t epoch = p->epoch;
    const struct set fresh = *set;
    int r = check_items(p, set, args);
    if (r == 0 && set->gpu)
        dlx__gpu_publisher.collect(p);
    if (r == 0)
        r = dlx__publish_room(p, &wait);
    if (dlx_unlikely(r == 0 &&
                     p->epoch != epoch)) { /* it went on with another daemon while it waited */
        if (set->gpu)
            dlx__gpu_publisher.drop(set->gpu);
        *set = fresh;
        memset(set->is_copied, 0, bits_size(set->n));
        r = place_items_again(p, set, args);
    }
    if (r == 0)
        r = copy_items(p, set);
    if (r == 0)
        r = dlx__publish_manifest(p, set->entries, set->n, meta, set->own ? set->own : set->copies,
                                  &set->manifest);
    if (r == 0)
        r = share_items(p, set, args);
    if (r == 0)
        r = hold_gpu(p, set, args);
    if (r < 0) {
        dlx__heap_give(p->heap, set->copies);
        dlx__heap_give(p->heap, set->manifest);
        give_list(p, set->refs);
        return r;
    }
    put_set(p, set, args);
    dlx__publish_report(p, args, set->copied_bytes, set->n_copied, set->n_copied_views);
    for (uint32_t i = 0; !args->share && set->n_copied > 0 && i < set->n; i++) {
        DLManagedTensorVersioned *t = set->items[i].tensor;
        if (is_copied(set, i) && t->deleter)
            t->deleter(t);
    }
    dlx__publisher_look_after(p, dlx__now_ns(), 1); /* last: it may move */
    return 0;
}

int dlx__publish_items(struct dlx_publisher *p, const struct dlx_item *items, uint32_t n,
                       const struct dlx_bytes *meta, const struct dlx_publish_args *args)
{
    dlx_cleanup(dlx__freep) struct dlx_manifest_item *entries = malloc(n * sizeof *entries);
    dlx_cleanup(dlx__freep) uint64_t *copied = malloc(bits_size(n));
    int r;
    if (!entries || !copied)
        return dlx__fail(DLX_E_NO_MEMORY, "table of %u tensors", n);
    do {
        struct set set = {.items = items,
                          .n = n,
                          .share = args->share,
                          .entries = entries,
                          .is_copied = memset(copied, 0, bits_size(n))};
        r = publish_set(p, &set, meta, args);
        if (set.gpu)
            dlx__gpu_publisher.drop(set.gpu);
    } while (dlx_unlikely(r < 0) && dlx__publisher_has_resumed(p, &r, args->timeout_ns));
    return r;
}

int dlx__publish_on_gpu(struct dlx_publisher *p, DLManagedTensorVersioned *tensor,
                        const struct dlx_publish_args *args, uint64_t *copied_bytes,
                        uint32_t *n_copied)
{
    const struct dlx_item item = {.tensor = tensor};
    const struct dlx_publisher_stats before = p->stats;
    int r = dlx__publish_items(p, &item, 1, NULL, args);
    *copied_bytes += p->stats.copied_bytes - before.copied_bytes;
    *n_copied += p->stats.copied > before.copied;
    return r;
}

int dlx_publish_set(struct dlx_publisher *p, const struct dlx_item *items, uint32_t n_items,
                    const struct dlx_bytes *meta, const struct dlx_publish_args *user_args)
{
    struct dlx_publish_args args = {0};
    const void *data = meta && meta->size > 0 ? meta->data : "";
    int r = dlx__publisher_begin(items && data ? p : NULL, "dlx_publish_set");
    if (r < 0)
        return DLX_NAME_NULL(r, "dlx_publish_set", {"items", items}, {"meta->data", data});
    if (n_items == 0 || n_items > DLX_SHM_TENSORS_MAX)
        r = dlx__fail(DLX_E_INVALID, "topic %s: a set of %u tensors, possible are 1 to %u",
                      p->topic, n_items, DLX_SHM_TENSORS_MAX);
    else if (meta && meta->size > DLX_SHM_META_MAX)
        r = dlx__fail(DLX_E_INVALID,
                      "topic %s: %zu bytes of metadata (limit DLX_META_MAX, %u): publish what is "
                      "large as a tensor",
                      p->topic, meta->size, DLX_SHM_META_MAX);
    else if (user_args)
        r = dlx__publish_args(&args, user_args);
    if (r == 0)
        r = dlx__publish_items(p, items, n_items, meta, &args);
    dlx__publisher_leave(p);
    return r;
}
