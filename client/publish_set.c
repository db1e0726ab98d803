/* SPDX-License-Identifier: Apache-2.0 */

/* Sets: several named tensors and metadata as one message. */

#include "client/gpu_heap.h"
#include "client/gpu_share.h"
#include "client/subscriber_link.h"
#include "client/nametable.h"
#include "client/publish.h"
#include "client/reconnect.h"
#include "ring/manifest.h"
#include "ring/tensor.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- alloc --------------------------------------------------------------------------------- */

/* The first one says how far apart they are: the caller may know fewer members. */
static const struct dlx_tensor_spec *spec_at(const struct dlx_tensor_spec *specs, uint32_t i)
{
    return (const void *)((const char *)specs + i * specs->size);
}

static int copy_spec(struct dlx_publisher *p, const struct dlx_tensor_spec *specs, uint32_t i,
                     struct dlx_tensor_spec *ret, uint64_t *ret_size, struct dlx_heap **ret_heap)
{
    int r = dlx__tensor_spec(ret, spec_at(specs, i));
    if (r == 0)
        r = dlx__tensor_size(ret->dtype, false, ret->ndim, ret->shape, ret_size);
    if (r == 0)
        r = dlx__publisher_heap(p, ret->device, ret_heap);
    return r < 0 ? dlx__fail_prefix(r, "topic %s: tensor %u", p->topic, i) : 0;
}

static int alloc_one(struct dlx_publisher *p, struct dlx_heap *heap,
                     const struct dlx_tensor_spec *spec, uint64_t size,
                     DLManagedTensorVersioned **ret)
{
    struct dlx_block *block;
    int r = dlx__publisher_block_of(p, heap, size, &block);
    if (r < 0)
        return r;
    r = dlx__block_export(block, spec->dtype, spec->ndim, spec->shape, size);
    if (r < 0) {
        dlx__heap_give(heap, block);
        return r;
    }
    *ret = &block->tensor;
    return 0;
}

static int alloc_parts(struct dlx_publisher *p, const struct dlx_tensor_spec *specs, uint32_t n,
                       DLManagedTensorVersioned **ret)
{
    struct dlx_tensor_spec spec;
    struct dlx_heap *heap;
    uint64_t size;
    for (uint32_t i = 0; i < n; i++) {
        int r = copy_spec(p, specs, i, &spec, &size, &heap);
        if (r == 0) {
            bool before = dlx__heap_put_anywhere(heap, true);
            r = alloc_one(p, heap, &spec, size, &ret[i]);
            (void)dlx__heap_put_anywhere(heap, before);
        }
        if (r < 0) {
            while (i-- > 0) {
                ret[i]->deleter(ret[i]);
                ret[i] = NULL; /* who deletes all that it has does not delete it again */
            }
            return r;
        }
    }
    return 0;
}

/* Room for all of them in one piece, which they are then taken from. */
static int make_room(struct dlx_publisher *p, struct dlx_heap *heap, uint64_t size)
{
    struct dlx_block *whole;
    int r = dlx__publisher_block_of(p, heap, size, &whole);
    while (r < 0 && dlx__publisher_has_resumed(p, &r, p->client->timeout_ns))
        r = dlx__publisher_block_of(p, heap, size, &whole);
    if (r == 0)
        dlx__heap_give(heap, whole);
    return r;
}

/* Bytes of a manifest, with names of usual length. */
static uint64_t manifest_size(uint32_t n, uint64_t n_dims)
{
    return sizeof(struct dlx_shm_manifest) + (sizeof(struct dlx_shm_manifest_entry) + 64) * n +
           sizeof(int64_t) * n_dims;
}

/* Room for those of the tensors that go into this heap. */
static int make_room_in(struct dlx_publisher *p, struct dlx_heap *heap,
                        const struct dlx_tensor_spec *specs, uint32_t n)
{
    struct dlx_tensor_spec spec;
    struct dlx_heap *of;
    uint64_t size, total = 0, n_dims = 0;
    bool all_there = true; /* blocks of an earlier set */
    dlx__heap_want_none(heap);
    for (uint32_t i = 0; i < n; i++) {
        int r = copy_spec(p, specs, i, &spec, &size, &of);
        if (r < 0)
            return r;
        n_dims += (uint32_t)spec.ndim;
        if (of != heap)
            continue;
        all_there = all_there && (size == 0 || dlx__heap_want(heap, size));
        if (!dlx__heap_round(heap, size, &size) || __builtin_add_overflow(total, size, &total))
            return dlx__fail(DLX_E_SHAPE, "topic %s: the set has more than 2^64-1 bytes", p->topic);
    }
    if (heap == p->heap && __builtin_add_overflow(total, manifest_size(n, n_dims), &total))
        total = UINT64_MAX;
    return all_there ? 0 : make_room(p, heap, total);
}

/* More devices than this are gone through again each time. */
#define HEAPS_MAX 32U

static int alloc_set(struct dlx_publisher *p, const struct dlx_tensor_spec *specs, uint32_t n,
                     DLManagedTensorVersioned **ret)
{
    struct dlx_heap *heap, *done[HEAPS_MAX];
    uint32_t n_done = 0;
    if (n == 0 || n > DLX_SHM_TENSORS_MAX)
        return dlx__fail(DLX_E_INVALID, "topic %s: a set of %u tensors, possible are 1 to %u",
                         p->topic, n, DLX_SHM_TENSORS_MAX);
    for (uint32_t i = 0; i < n; i++) {
        struct dlx_tensor_spec spec;
        uint32_t k = 0;
        int r = dlx__tensor_spec(&spec, spec_at(specs, i));
        if (r == 0)
            r = dlx__publisher_heap(p, spec.device, &heap);
        if (r < 0)
            return dlx__fail_prefix(r, "topic %s: tensor %u", p->topic, i);
        while (k < n_done && done[k] != heap)
            k++;
        if (k < n_done)
            continue;
        r = make_room_in(p, heap, specs, n);
        if (r < 0)
            return r;
        if (n_done < HEAPS_MAX)
            done[n_done++] = heap;
    }
    return alloc_parts(p, specs, n, ret);
}

int dlx_alloc_set(struct dlx_publisher *p, const struct dlx_tensor_spec *specs, uint32_t n,
                  DLManagedTensorVersioned **ret)
{
    int r = dlx__publisher_begin(specs && ret ? p : NULL, "dlx_alloc_set");
    if (r < 0)
        return DLX_NAME_NULL(r, "dlx_alloc_set", {"specs", specs}, {"ret", ret});
    r = alloc_set(p, specs, n, ret);
    dlx__publisher_leave(p);
    return r;
}

/* ---- publish ------------------------------------------------------------------------------- */

/* How many items ahead the caches are asked for what is looked at: a large set does not fit into one. */
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
        char what[256];
        (void)snprintf(what, sizeof what, "tensor %u (\"%.200s\")", i, set->entries[i].name);
        return dlx__publish_fail_again(p, what);
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
        return dlx__fail(
            DLX_E_INVALID,
            "topic %s: tensor %u (\"%.200s\") is in the set twice: `share` allows that", p->topic,
            i, set->entries[i].name);
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

/* It is read where it lies. Back to front, so that blocks that come back and are taken again keep their order. */
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
    int r = dlx__gpu_parcel_add(p, &set->gpu, set->n, set->items[i].tensor, args, &set->entries[i]);
    if (r < 0)
        return dlx__fail_prefix(r, "topic %s: tensor %u (\"%.200s\")", p->topic, i,
                                set->entries[i].name);
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
        return dlx__fail_prefix(r, "topic %s: tensor %u (\"%.200s\")", p->topic, i, entry->name);
    entry->shape = t->dl_tensor.shape;
    entry->strides = t->dl_tensor.strides;
    set->bytes += entry->record.size;
    if (r == 0) {
        add_own(set, own, args);
        return 0;
    }
    if (args->strict) {
        char what[256];
        (void)snprintf(what, sizeof what, "tensor %u (\"%.200s\")", i, entry->name);
        return dlx__publish_fail_would_copy(p, what, own, dlx__message_of(t));
    }
    if (!dlx__align_up(entry->record.size, DLX_SHM_ALIGN, &aligned) ||
        __builtin_add_overflow(set->copy_size, aligned, &set->copy_size))
        return dlx__fail(DLX_E_SHAPE, "topic %s: the set has more than 2^64-1 bytes", p->topic);
    count_copy(set, i);
    return 0;
}

/* Of ours: the lines of its block that are looked at. The address is the caller's, and none is wrong here. */
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
            dlx__fail_prefix(r, "topic %s: tensor %u (\"%.200s\")", p->topic, i,
                             set->entries[i].name);
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
    int r = dlx__gpu_parcel_hold(p, set->gpu, args, &set->gpu_block);
    if (r == 0)
        dlx__gpu_parcel_write(p, set->gpu, dlx__block_data(set->manifest));
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

static void put(struct dlx_publisher *p, struct set *set, const struct dlx_publish_args *args)
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
            dlx__gpu_parcel_adopt(p, set->gpu, set->items[i].tensor, args);
    }
    const struct dlx_parcel parcel = {words, blocks, set->bytes, set->copied_bytes, set->n_copied};
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
        dlx__gpu_share_collect(p);
    if (r == 0)
        r = dlx__publish_room(p, &wait);
    if (dlx_unlikely(r == 0 &&
                     p->epoch != epoch)) { /* it went on with another daemon while it waited */
        dlx__gpu_parcel_unref(set->gpu);
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
    put(p, set, args);
    dlx__publish_report(p, args, set->copied_bytes, set->n_copied);
    for (uint32_t i = 0; !args->share && set->n_copied > 0 && i < set->n; i++) {
        DLManagedTensorVersioned *t = set->items[i].tensor;
        if (is_copied(set, i) && t->deleter)
            t->deleter(t);
    }
    dlx__publisher_look(p, dlx__now_ns()); /* last: it may move */
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
        dlx__gpu_parcel_unref(set.gpu);
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
        r = dlx__fail(DLX_E_INVALID, "topic %s: %zu bytes of metadata, at most %u are possible",
                      p->topic, meta->size, DLX_SHM_META_MAX);
    else if (user_args)
        r = dlx__publish_args(&args, user_args);
    if (r == 0)
        r = dlx__publish_items(p, items, n_items, meta, &args);
    dlx__publisher_leave(p);
    return r;
}
