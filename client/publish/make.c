/* SPDX-License-Identifier: Apache-2.0 */

/* What messages are made of, and sets: several named tensors and metadata as one message. */

#include "client/publish/make.h"
#include "client/base/device.h"
#include "client/base/nametable.h"
#include "client/gpu/gpu.h"
#include "client/message/message.h"
#include "client/message/subscriber_link.h"
#include "client/publish/publisher_link.h"
#include "client/publish/publisher_move.h"
#include "common/probes.h"
#include "ring/tensor.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- what to publish ---------------------------------------------------------------------- */

static bool overlaps(const DLTensor *t)
{
    for (int32_t i = 0; i < t->ndim; i++)
        if (t->strides[i] <= 0 && t->shape[i] > 1)
            return true;
    return false;
}

/* Can this tensor be read where it lies, in its own block? The user may have changed the shape, the
 * strides or the start of what dlx_alloc() gave. */
static bool fits_block(const struct dlx_block *block, const DLTensor *t, bool padded,
                       uint64_t *ret_offset, uint64_t *ret_size, bool *ret_follow)
{
    if (dlx__block_is_frozen(block))
        return false;
    const uint8_t *base = dlx__block_data(block);
    uint64_t start, end;
    if (t->device.device_type != kDLCPU || t->device.device_id != 0)
        return false;
    /* First: it says whether there are shapes to look at. */
    if (dlx__tensor_size(t->dtype, padded, t->ndim, t->shape, ret_size) < 0)
        return false;
    if (!dlx__tensor_is_row_major(t->ndim, t->shape, t->strides) &&
        (overlaps(t) ||
         dlx__tensor_extent(t->dtype, padded, t->ndim, t->shape, t->strides, ret_size) < 0))
        return false;
    *ret_follow = dlx__tensor_strides_follow(t->ndim, t->shape, t->strides);
    if (*ret_size == 0) {
        *ret_offset = 0;
        return true;
    }
    /* As numbers: the pointer need not lie in the block at all. */
    uintptr_t data = (uintptr_t)t->data, first = (uintptr_t)base;
    if (!base || __builtin_add_overflow(data, t->byte_offset, &data) || data < first)
        return false;
    start = data - first;
    if (start % DLX_SHM_ALIGN != 0 || __builtin_add_overflow(start, *ret_size, &end) ||
        end > block->size)
        return false;
    *ret_offset = block->offset + start;
    return true;
}

static int check_device(const DLTensor *t)
{
    switch (t->device.device_type) {
    case kDLCPU:
    case kDLCUDAHost:
    case kDLROCMHost:
        return 0;
    case kDLCUDA:
    case kDLROCM:
        return dlx__fail(DLX_E_DEVICE,
                         "a tensor on %s is not copied: publish it as DLManagedTensorVersioned",
                         DLX_DEVICE(t->device));
    default:
        return dlx__fail(DLX_E_DEVICE,
                         "a tensor on %s cannot be carried, only in memory of the CPU and of CUDA "
                         "and ROCm: copy it to the CPU first",
                         DLX_DEVICE(t->device));
    }
}

int dlx__publish_fail_again(const struct dlx_publisher *p, const char *what)
{
    return dlx__fail(
        DLX_E_INVALID,
        "topic %s: %s was published or deleted before, and is not the caller's any more: allocate "
        "another one, or publish with `share`",
        p->topic, what);
}

int dlx__publish_fail_would_copy(const struct dlx_publisher *p, const char *what,
                                 const struct dlx_block *own, const struct dlx_message *received)
{
    static const char end[] = "so it would be copied, which `strict` forbids: publish without "
                              "`strict`, or write into memory of dlx_alloc()";
    if (received && dlx_message_publisher(received) == p->id)
        return dlx__fail(DLX_E_WOULD_COPY,
                         "topic %s: %s was received, and lies in memory of a message of this "
                         "publisher, %s",
                         p->topic, what, end);
    if (received)
        return dlx__fail(DLX_E_WOULD_COPY,
                         "topic %s: %s was received, and lies in memory of the publisher on topic "
                         "%s (pid %u), %s",
                         p->topic, what, dlx_message_topic(received), received->link->pid, end);
    return dlx__fail(DLX_E_WOULD_COPY, "topic %s: %s %s, %s", p->topic, what,
                     own ? "was moved out of what dlx_alloc() gave, overlaps itself, or predates "
                           "the dlpackd restart"
                         : "is not from dlx_alloc() of this publisher",
                     end);
}

int dlx__publish_place_slowly(const DLTensor *t, const struct dlx_block *own, bool padded,
                              struct dlx_shm_record *ret)
{
    uint64_t offset = 0, size = 0;
    bool follow = true, copy = false;
    if (!own || !fits_block(own, t, padded, &offset, &size, &follow)) {
        copy = true;
        int r = check_device(t);
        if (r == 0)
            r = dlx__tensor_size(t->dtype, padded, t->ndim, t->shape, &size);
        if (r < 0)
            return r;
    }
    *ret = (struct dlx_shm_record){
        .arena = own && !copy && size > 0 ? dlx__block_arena_id(own) : 0,
        .dtype_code = t->dtype.code,
        .dtype_bits = t->dtype.bits,
        .dtype_lanes = t->dtype.lanes,
        .device_type = kDLCPU,
        .ndim = (uint32_t)t->ndim,
        .flags = (padded ? DLX_SHM_RECORD_PADDED : 0U) |
                 (copy || follow ? DLX_SHM_RECORD_ROW_MAJOR : 0U),
        .offset = offset,
        .size = size,
    };
    return copy;
}

int dlx__publish_copy(const struct dlx_block *block, uint64_t at, const DLTensor *t,
                      struct dlx_shm_record *record)
{
    if (record->size == 0)
        return 0;
    int r = dlx__tensor_compact((uint8_t *)dlx__block_data(block) + at, t,
                                record->flags & DLX_SHM_RECORD_PADDED);
    record->arena = dlx__block_arena_id(block);
    record->offset = block->offset + at;
    return r;
}

int dlx__publish_manifest(struct dlx_publisher *p, const struct dlx_manifest_item *items,
                          uint32_t n_items, const struct dlx_bytes *meta,
                          const struct dlx_block *tensors, struct dlx_block **ret)
{
    struct dlx_shm_manifest header;
    uint64_t size = dlx__manifest_lay_out(items, n_items, meta ? (uint32_t)meta->size : 0, &header);
    int r = dlx__publisher_block_beside(p, tensors, size, ret);
    if (r < 0)
        return r;
    (*ret)->payload_size = size;
    (*ret)->made.ndim = -1;
    dlx__manifest_write(dlx__block_data(*ret), &header, items, meta ? meta->data : NULL);
    return 0;
}

void dlx__publish_put(struct dlx_publisher *p, const struct dlx_parcel *parcel,
                      uint64_t monotonic_ns)
{
    if (dlx_unlikely(p->is_guarded)) /* before anybody can read it */
        p->stats.unprotected += !dlx__debug_protect(parcel->blocks);
    dlx__block_count_message(parcel->blocks, parcel->bytes);
    dlx__writer_put(&p->core, parcel->words, monotonic_ns, parcel->blocks);
    p->stats.published_bytes += parcel->bytes;
    p->stats.copied_bytes += parcel->copied_bytes;
    p->stats.copied += parcel->n_copied > 0;
    dlx_store64_relaxed(&dlx__writer_control(&p->core)->copied, p->stats.copied);
    dlx_store64_relaxed(&dlx__writer_control(&p->core)->copied_bytes, p->stats.copied_bytes);
    DLX_PROBE_PUBLISH(p->id, dlx__writer_head(&p->core), parcel->bytes, monotonic_ns);
}

void dlx__publish_report(const struct dlx_publisher *p, uint64_t copied_bytes, uint32_t n_copied,
                         uint32_t n_copied_views, struct dlx_publish_report *ret)
{
    if (!ret)
        return;
    struct dlx_publish_report report = {.size = sizeof report,
                                        .seq = dlx__writer_head(&p->core),
                                        .copied_bytes = copied_bytes,
                                        .n_copied = n_copied,
                                        .n_copied_views = n_copied_views,
                                        .n_subscribers = dlx__publisher_link_n_reached(p)};
    (void)dlx__args_return(ret, sizeof report, &report, sizeof report);
}

bool dlx__publish_shares(const struct dlx_block *own, const struct dlx_publish_args *args)
{
    return args->share || own->n_refs > 0;
}

void dlx__publish_handed_over(struct dlx_block *own, const struct dlx_publish_args *args)
{
    if (dlx_unlikely(args->share)) {
        own->is_dirty = true;
        own->tensor.flags |= DLPACK_FLAG_BITMASK_READ_ONLY;
    } else {
        dlx__block_published(own);
    }
}

/* ---- sets --------------------------------------------------------------------------------- */

/* How many items ahead tensors and blocks are prefetched: a large set does not fit into a cache. */
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
    const void *before[AHEAD]; /* `&next` of the newest ones, for `ahead` */
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
struct seen_names {
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
                        struct seen_names *seen)
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
static int measure_name(const struct set *set, uint32_t i, struct seen_names *seen)
{
    struct dlx_manifest_item *entry = &set->entries[i];
    entry->name = set->items[i].name ? set->items[i].name : "";
    entry->name_size = (uint32_t)strnlen(entry->name, DLX_SHM_NAME_MAX + 1);
    return entry->name_size == 0 ? 0
                                 : hash_seen(&seen->names, set->n, entry->name, entry->name_size,
                                             &seen->hashes[i % AHEAD]);
}

static int check_name(const struct dlx_publisher *p, const struct set *set, uint32_t i,
                      const struct seen_names *seen)
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

/* Add a block that readers read in place, in front of the list, so that blocks that come back
 * are taken again in order. */
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
    const DLManagedTensorVersioned *tensor = set->items[i].tensor;
    int r = dlx__gpu_load_for(tensor->dl_tensor.device);
    if (r == 0)
        r = dlx__gpu_publisher()->add(p, &set->gpu, set->n, tensor, args, &set->entries[i]);
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

/* Prefetch the lines of the block that are read, if the tensor is ours. The address is the
 * caller's, and no address is wrong here. */
static void prefetch_tensor(const DLManagedTensorVersioned *t)
{
    for (size_t line = 0; line <= offsetof(struct dlx_block, inline_dims) + 72; line += 64)
        dlx__prefetch_write((const char *)t + line);
}

/* Everything about an item in one go: a large set does not fit into a cache. */
static int check_items(struct dlx_publisher *p, struct set *set,
                       const struct dlx_publish_args *args)
{
    struct seen_names seen = {0};
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
    int r = dlx__gpu_publisher()->hold(p, set->gpu, args, &set->gpu_block);
    if (r == 0)
        dlx__gpu_publisher()->write(p, set->gpu, dlx__block_data(set->manifest));
    return r;
}

/* The lines of the next manifest, which readers have had, become ours again while this message is
 * on its way: the next announcement would wait for them. */
static void prefetch_manifest_of(struct dlx_publisher *p, uint64_t block_size)
{
    const struct dlx_block *next = dlx__heap_next_of(p->heap, block_size);
    if (!next)
        return;
    const char *data = dlx__block_data(next);
    for (uint64_t i = 0; i < DLX_MIN(block_size, DLX_MANIFEST_AHEAD); i += DLX_CACHELINE)
        dlx__prefetch_write(data + i);
}

static void put_set(struct dlx_publisher *p, struct set *set, const struct dlx_publish_args *args)
{
    uint64_t words[DLX_SHM_ENTRY_WORDS];
    struct dlx_block *blocks = set->manifest;
    uint64_t manifest_size = blocks->size;
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
            dlx__gpu_publisher()->adopt(p, set->gpu, set->items[i].tensor, args);
    }
    const struct dlx_parcel parcel = {.words = words,
                                      .blocks = blocks,
                                      .bytes = set->bytes,
                                      .copied_bytes = set->copied_bytes,
                                      .n_copied = set->n_copied};
    dlx__publish_put(p, &parcel,
                     args->monotonic_ns ? args->monotonic_ns : dlx__clock_now(&p->clock));
    dlx__publish_announce(p);
    prefetch_manifest_of(p, manifest_size);
}

static size_t bits_size(uint32_t n)
{
    return ((size_t)n + 63) / 64 * sizeof(uint64_t);
}

/* Returns 0; DLX__AGAIN. */
static int publish_set(struct dlx_publisher *p, struct set *set, const struct dlx_bytes *meta,
                       const struct dlx_publish_args *args, struct dlx_wait *wait,
                       struct dlx_publish_report *ret)
{
    int r = check_items(p, set, args);
    if (r == 0 && set->gpu)
        dlx__gpu_publisher()->collect(p);
    if (r == 0)
        r = dlx__publish_room(p, wait);
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
        dlx__publisher_give_list(p, set->refs);
        return r;
    }
    put_set(p, set, args);
    dlx__publish_report(p, set->copied_bytes, set->n_copied, set->n_copied_views, ret);
    for (uint32_t i = 0; !args->share && set->n_copied > 0 && i < set->n; i++) {
        DLManagedTensorVersioned *t = set->items[i].tensor;
        if (is_copied(set, i) && t->deleter)
            t->deleter(t);
    }
    dlx__publisher_look_after(p, dlx__clock_now(&p->clock), 1); /* last: it may move */
    return 0;
}

int dlx__publish_items(struct dlx_publisher *p, const struct dlx_item *items, uint32_t n,
                       const struct dlx_bytes *meta, const struct dlx_publish_args *args,
                       struct dlx_publish_report *ret)
{
    dlx_cleanup(dlx__freep) struct dlx_manifest_item *entries = malloc(n * sizeof *entries);
    dlx_cleanup(dlx__freep) uint64_t *copied = malloc(bits_size(n));
    struct dlx_wait wait = dlx__wait_of(args->timeout_ns);
    int r;
    if (!entries || !copied)
        return dlx__fail(DLX_E_NO_MEMORY, "table of %u tensors", n);
    do {
        struct set set = {.items = items,
                          .n = n,
                          .share = args->share,
                          .entries = entries,
                          .is_copied = memset(copied, 0, bits_size(n))};
        r = publish_set(p, &set, meta, args, &wait, ret);
        if (set.gpu)
            dlx__gpu_publisher()->drop(set.gpu);
    } while (dlx_unlikely(r < 0) && (r = dlx__publisher_go_on(p, r, &wait)) == DLX__AGAIN);
    return r;
}

int dlx__publish_on_gpu(struct dlx_publisher *p, DLManagedTensorVersioned *tensor,
                        const struct dlx_publish_args *args, uint64_t *copied_bytes,
                        uint32_t *n_copied)
{
    const struct dlx_item item = {.tensor = tensor};
    const struct dlx_publisher_stats before = p->stats;
    int r = dlx__publish_items(p, &item, 1, NULL, args, NULL);
    *copied_bytes += p->stats.copied_bytes - before.copied_bytes;
    *n_copied += p->stats.copied > before.copied;
    return r;
}
