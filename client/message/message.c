/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Messages: tensors rebuilt from records, and the count that gives the memory back. One message
 * struct belongs to each hold word of a link, so taking allocates nothing: the hold word that the
 * last release clears is also what makes the struct free.
 */

#include "client/message/message.h"
#include "client/base/misuse.h"
#include "client/base/nametable.h"
#include "client/gpu/gpu.h"
#include "common/amount.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a message with a manifest has beside its struct, in one piece of memory. */
struct dlx_message_table {
    _Atomic(struct dlx_nametable *) index; /* made by the first dlx_message_tensor_find() */
    uint32_t *names;                       /* [n_tensors]: offsets in `text` */
    char *text;                            /* names, each terminated */
    void *meta;
    uint32_t meta_size;
    uint32_t arena; /* where the manifest lies, and the metadata in it */
    const void *meta_in_place;
    atomic_bool *used;          /* [n_tensors]: is exports[i] handed out? */
    struct dlx_export *exports; /* [n_tensors]: saves an allocation for the first of each tensor */
};

#define FIRST_USED (1U << 31)

struct dlx_subscriber_link dlx__released_link = {.generation = DLX_RELEASED};
struct dlx_message dlx__released_message = {.link = &dlx__released_link};

void dlx__message_fail_released(void)
{
    dlx__misuse("a message was used after dlx_message_unref()");
}

static struct dlx_message_table *table_free(struct dlx_message_table *table)
{
    if (table)
        dlx__nametable_free(atomic_load_explicit(&table->index, memory_order_acquire));
    free(table);
    return NULL;
}

static void free_gpu(struct dlx_message *m)
{
    if (m->gpu)
        dlx__gpu_receiver()->message_free(m->gpu);
    m->gpu = NULL;
}

void dlx__message_free(struct dlx_message *m)
{
    if (m) {
        table_free(m->table);
        free_gpu(m);
    }
    if (m && m->link == &dlx__released_link)
        dlx__quarantine(m);
    else
        free(m);
}

/* ---- build --------------------------------------------------------------------------------- */

static uint64_t export_flags(const struct dlx_shm_record *record)
{
    uint64_t flags = DLPACK_FLAG_BITMASK_READ_ONLY;
    if (record->flags & DLX_SHM_RECORD_PADDED)
        flags |= DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
    return flags;
}

int dlx__message_no_arena(struct dlx_subscriber_link *link, uint64_t n, uint32_t id)
{
    if (!dlx__subscriber_link_has_arena(link, id))
        return dlx__fail(DLX_E_NOT_FOUND, "arena %u has not been announced", id);
    return dlx__fail(DLX_E_BAD_PEER, "message %" PRIu64 " lies in arena %u, which was dropped", n,
                     id);
}

int dlx__message_bad_place(uint64_t offset, uint64_t size,
                           const struct dlx_subscriber_link_arena *arena)
{
    return dlx__fail(DLX_E_BAD_PEER,
                     "tensor at offset %" PRIu64 " of %" PRIu64 " bytes is not inside arena %u of "
                     "%" PRIu64 " bytes, or not aligned to %u",
                     offset, size, arena->id, arena->size, DLX_SHM_ALIGN);
}

static void fill_tensor(const struct dlx_shm_record *record, const void *data, int64_t *shape,
                        int64_t *strides, DLTensor *ret)
{
    if (record->flags & DLX_SHM_RECORD_ROW_MAJOR)
        dlx__tensor_row_major((int32_t)record->ndim, shape, strides);
    *ret = (DLTensor){
        .data = (void *)(uintptr_t)data,
        .device = {(DLDeviceType)record->device_type, 0},
        .ndim = (int32_t)record->ndim,
        .dtype = {record->dtype_code, record->dtype_bits, record->dtype_lanes},
        .shape = shape,
        .strides = strides,
    };
}

/* Check a record and make a DLTensor of it. shape and strides point to memory that stays. */
static int build_tensor(struct dlx_subscriber_link *link, uint64_t n,
                        const struct dlx_shm_record *record, int64_t *shape, int64_t *strides,
                        DLTensor *ret)
{
    const struct dlx_subscriber_link_arena *arena = NULL;
    if (record->size > 0) {
        int found = dlx__message_arena(link, n, record->arena, &arena);
        if (dlx_unlikely(found < 0))
            return found;
    }
    int r = dlx__record_check(record, shape, strides, arena ? arena->size : 0);
    if (dlx_unlikely(r < 0))
        return r;
    fill_tensor(record, arena ? arena->map + record->offset : NULL, shape, strides, ret);
    return 0;
}

/* The same for one on a GPU, which is not opened. Without libdlx-gpu the size of its allocation is
 * unknown. */
static int build_on_gpu(struct dlx_message *m, uint32_t i, const struct dlx_manifest_item *item,
                        int64_t *shape, int64_t *strides)
{
    int r = m->gpu ? dlx__gpu_receiver()->place(m->gpu, i, item, shape, strides)
                   : dlx__record_check_gpu(&item->record, shape, strides,
                                           item->allocation > 0 ? UINT64_MAX : 0);
    if (r == 0)
        fill_tensor(&item->record, NULL, shape, strides, &m->tensors[i]);
    return r;
}

/* Of its size, nothing is believed that could not be. */
int dlx__message_open_manifest(struct dlx_subscriber_link *link, const struct dlx_taken *taken,
                               struct dlx_manifest *ret)
{
    const struct dlx_subscriber_link_arena *arena = NULL;
    uint32_t n_tensors = (uint32_t)taken->words[5];
    uint64_t end, offset = dlx__entry_offset(taken->words), size = taken->words[4];
    if (taken->words[5] == 0 || taken->words[5] > DLX_SHM_TENSORS_MAX)
        return dlx__fail(DLX_E_BAD_PEER, "message %" PRIu64 " claims %" PRIu64 " tensors", taken->n,
                         taken->words[5]);
    int r = dlx__message_arena(link, taken->n, dlx__entry_arena(taken->words), &arena);
    if (r < 0)
        return r;
    /* Or a liar has us allocate as much as it likes. */
    if (size > dlx__manifest_size_max(n_tensors))
        return dlx__fail(DLX_E_BAD_PEER,
                         "manifest of %" PRIu64 " bytes for %u tensors, at most %" PRIu64
                         " are possible",
                         size, n_tensors, dlx__manifest_size_max(n_tensors));
    if (__builtin_add_overflow(offset, size, &end) || end > arena->size ||
        offset % sizeof(uint64_t) != 0)
        return dlx__fail(DLX_E_BAD_PEER,
                         "manifest at offset %" PRIu64 " of %" PRIu64
                         " bytes is not inside arena %u of %" PRIu64 " bytes",
                         offset, size, arena->id, arena->size);
    /* Its lines, which the publisher wrote last, come together instead of one after the other. */
    for (uint64_t i = DLX_CACHELINE; i < DLX_MIN(size, DLX_MANIFEST_AHEAD); i += DLX_CACHELINE)
        __builtin_prefetch(arena->map + offset + i);
    return dlx__manifest_open(arena->map + offset, size, n_tensors, ret);
}

/* What is left of the room in a table. */
struct room {
    int64_t *dims;
    uint64_t n_dims; /* numbers in the manifest; the table has twice as many */
    uint64_t text;
};

/* Lay the table out: what is aligned most comes first. An honest manifest shares no bytes between
 * its entries, so what they need together is not more than the manifest has. */
static int new_table(struct dlx_message *m, const struct dlx_shm_manifest *header,
                     struct room *ret_room)
{
    size_t n = m->n_tensors, meta_room = ((size_t)header->meta_size + 7) / 8 * 8;
    ret_room->n_dims = header->dims_size / sizeof(int64_t);
    ret_room->text = header->names_size;
    size_t size = sizeof *m->table + meta_room +
                  n * (sizeof *m->tensors + sizeof *m->flags + sizeof(struct dlx_export)) +
                  2 * ret_room->n_dims * sizeof(int64_t) +
                  n * (sizeof(uint32_t) + sizeof(atomic_bool)) + ret_room->text + n;
    struct dlx_message_table *table = malloc(size);
    if (!table)
        return dlx__fail(DLX_E_NO_MEMORY, "table of %u tensors", m->n_tensors);
    table->meta = table + 1;
    table->meta_size = header->meta_size;
    table->meta_in_place = NULL;
    m->tensors = (DLTensor *)((char *)table->meta + meta_room);
    m->flags = (uint64_t *)(m->tensors + n);
    table->exports = (struct dlx_export *)(m->flags + n);
    ret_room->dims = (int64_t *)(table->exports + n);
    table->names = (uint32_t *)(ret_room->dims + 2 * ret_room->n_dims);
    table->used = (atomic_bool *)(table->names + n);
    table->text = (char *)(table->used + n);
    atomic_init(&table->index, NULL);
    m->table = table;
    return 0;
}

/* Tensor i, from what a peer may still write: each number and each byte is loaded once. */
static int build_item(struct dlx_subscriber_link *link, const struct dlx_manifest *manifest,
                      uint32_t i, struct dlx_message *m, struct room *room)
{
    struct dlx_message_table *table = m->table;
    struct dlx_manifest_item item;
    int r = dlx__manifest_item(manifest, i, &item);
    if (dlx_unlikely(r < 0))
        return r;
    uint32_t ndim = item.record.ndim, n_dims = dlx__manifest_n_dims(&item.record);
    if (dlx_unlikely(n_dims > room->n_dims || item.name_size > room->text))
        return dlx__fail(DLX_E_BAD_PEER, "manifest whose %u entries share dimensions or names",
                         m->n_tensors);
    int64_t *dims = room->dims;
    for (uint32_t k = 0; k < n_dims; k++)
        dims[k] = item.shape[k];
    __asm__ volatile("" ::: "memory"); /* from here on only the private copy is looked at */
    bool on_gpu = dlx__device_is_gpu(item.record.device_type);
    if (dlx_unlikely(on_gpu))
        r = build_on_gpu(m, i, &item, dims, dims + ndim);
    else
        r = build_tensor(link, m->seq, &item.record, dims, dims + ndim, &m->tensors[i]);
    if (dlx_unlikely(r < 0))
        return r == DLX_E_NOT_FOUND ? r : dlx__fail_prefix(r, "tensor %u", i);
    m->flags[i] = export_flags(&item.record);
    m->bytes += item.record.size;
    if (item.record.size > 0 && !on_gpu) {
        m->first_arena = DLX_MIN(m->first_arena, item.record.arena);
        m->last_arena = DLX_MAX(m->last_arena, item.record.arena);
    }
    uint32_t text = i > 0 ? table->names[i] : 0;
    if (item.name_size > 0)
        memcpy(table->text + text, item.name, item.name_size);
    table->text[text + item.name_size] = '\0';
    table->names[i] = text;
    if (i + 1 < m->n_tensors)
        table->names[i + 1] = text + item.name_size + 1;
    atomic_init(&table->used[i], false);
    room->dims += 2 * (size_t)ndim;
    room->n_dims -= n_dims;
    room->text -= item.name_size;
    return 0;
}

/* Without libdlx-gpu the tensors on the CPU are of use all the same, and dlx_message_tensor() says
 * why the others are not. */
static int begin_gpu(struct dlx_subscriber_link *link, const struct dlx_manifest *manifest,
                     struct dlx_message *m)
{
    if (dlx__gpu_load() == 0)
        return dlx__gpu_receiver()->message_new(link, manifest, &m->gpu);
    dlx__error_clear();
    return 0;
}

static int build_from_manifest(struct dlx_subscriber_link *link, const struct dlx_taken *taken,
                               struct dlx_message *m)
{
    struct dlx_manifest manifest;
    struct room room = {0};
    int r = dlx__message_open_manifest(link, taken, &manifest);
    if (r < 0)
        return r;
    m->n_tensors = manifest.header.n_tensors;
    r = new_table(m, &manifest.header, &room);
    if (r < 0)
        return r;
    m->form.is_none = 1;
    if (manifest.header.meta_size > 0)
        memcpy(m->table->meta, manifest.meta, manifest.header.meta_size);
    m->table->meta_in_place = manifest.meta;
    m->table->arena = dlx__entry_arena(taken->words);
    m->bytes = 0;
    m->first_arena = UINT32_MAX;
    m->last_arena = 0;
    if (dlx_unlikely(manifest.n_allocations > 0)) {
        /* Its manifest says when it is ready. */
        m->first_arena = m->last_arena = dlx__entry_arena(taken->words);
        r = begin_gpu(link, &manifest, m);
    }
    for (uint32_t i = 0; r == 0 && i < m->n_tensors; i++)
        r = build_item(link, &manifest, i, m, &room);
    if (r == 0)
        __builtin_prefetch(m->tensors->data); /* a small one is read soon */
    return r;
}

static int build_anew(struct dlx_subscriber_link *link, const struct dlx_taken *taken,
                      struct dlx_message *m)
{
    DLDataType dtype;
    bool padded;
    int32_t ndim;
    int64_t *dims = m->dims;
    struct dlx_shm_record record = {.arena = dlx__entry_arena(taken->words),
                                    .device_type = kDLCPU,
                                    .offset = dlx__entry_offset(taken->words)};
    m->form.is_none = 1;
    if (!dlx__entry_unpack_tensor(taken->words, &dtype, &padded, &ndim, dims))
        return dlx__fail(DLX_E_BAD_PEER,
                         "message %" PRIu64 " claims a tensor of impossible form (%#" PRIx64 ")",
                         taken->n, taken->words[3] >> 32);
    int r = dlx__tensor_size(dtype, padded, ndim, dims, &record.size);
    if (r < 0)
        return dlx__fail_prefix(DLX_E_BAD_PEER, "message %" PRIu64, taken->n);
    record.dtype_code = dtype.code;
    record.dtype_bits = dtype.bits;
    record.dtype_lanes = dtype.lanes;
    record.ndim = (uint32_t)ndim;
    record.flags = DLX_SHM_RECORD_ROW_MAJOR | (padded ? DLX_SHM_RECORD_PADDED : 0U);
    r = build_tensor(link, taken->n, &record, dims, dims + ndim, &m->inline_tensor);
    if (r < 0)
        return r;
    memcpy(dims + 2 * DLX_SHM_NDIM_ENTRY, dims, 2 * (size_t)ndim * sizeof *dims);
    m->n_tensors = 1;
    m->tensors = &m->inline_tensor;
    m->flags = &m->inline_flags;
    m->inline_flags = export_flags(&record);
    m->bytes = record.size;
    memcpy(m->form.words, taken->words + 2, sizeof m->form.words);
    m->form.is_none = 0;
    return 0;
}

static int new_message(struct dlx_subscriber_link *link, uint32_t hold)
{
    struct dlx_message *m = calloc(1, sizeof *m);
    if (!m)
        return dlx__fail(DLX_E_NO_MEMORY, "state of a message");
    m->link = link;
    m->hold = hold;
    m->form.is_none = 1;
    link->messages[hold] = m;
    return 0;
}

static int build_anew_as(struct dlx_subscriber_link *link, const struct dlx_taken *taken,
                         struct dlx_message *m)
{
    int r;
    switch (dlx__entry_kind(taken->words)) {
    case DLX_SHM_KIND_TENSOR:
        return build_anew(link, taken, m);
    case DLX_SHM_KIND_MANIFEST:
    case DLX_SHM_KIND_MANIFEST_GPU:
        r = build_from_manifest(link, taken, m);
        if (r < 0) {
            m->table = table_free(m->table);
            free_gpu(m);
        }
        return r;
    default:
        return dlx__fail(DLX_E_BAD_PEER, "message %" PRIu64 " is of unknown kind %u", taken->n,
                         dlx__entry_kind(taken->words));
    }
}

static int build(struct dlx_subscriber_link *link, const struct dlx_taken *taken,
                 struct dlx_message *m)
{
    m->seq = taken->n;
    if (dlx__entry_is_like(taken->words, &m->form))
        return dlx__message_build_again(link, taken->n, dlx__entry_arena(taken->words),
                                        dlx__entry_offset(taken->words), m);
    return build_anew_as(link, taken, m);
}

/* In debug mode: a struct that the caller had before stays released, and no tensor lies in a
 * struct that is used again. */
static int build_watched(struct dlx_subscriber_link *link, const struct dlx_taken *taken,
                         struct dlx_message **ret)
{
    struct dlx_message *before = link->messages[taken->hold];
    int r = new_message(link, taken->hold);
    if (r < 0)
        return r;
    dlx__message_free(before);
    *ret = link->messages[taken->hold];
    (*ret)->seq = taken->n;
    r = build_anew_as(link, taken, *ret);
    if (r < 0)
        return r;
    dlx__message_hand_out(link, *ret, taken->n, taken->gap, taken->words[0]);
    atomic_store_explicit(&(*ret)->refs, 1 | FIRST_USED, memory_order_relaxed);
    return 0;
}

int dlx__message_build(struct dlx_subscriber_link *link, const struct dlx_taken *taken,
                       struct dlx_message **ret)
{
    if (dlx_unlikely(link->is_watched))
        return build_watched(link, taken, ret);
    int r = link->messages[taken->hold] ? 0 : new_message(link, taken->hold);
    if (r == 0)
        r = build(link, taken, link->messages[taken->hold]);
    if (r < 0)
        return r;
    *ret = link->messages[taken->hold];
    dlx__message_hand_out(link, *ret, taken->n, taken->gap, taken->words[0]);
    return 0;
}

bool dlx__message_may_lie_in(const struct dlx_message *m,
                             const struct dlx_subscriber_link_arena *arena)
{
    /* Nothing here is written by a release, which may run now: so not `table`. */
    if (m->tensors != &m->inline_tensor)
        return m->seq < arena->until && arena->id >= m->first_arena &&
               arena->id <= m->last_arena; /* what is newer was not built if it lies in it */
    uintptr_t data = (uintptr_t)m->inline_tensor.data;
    return data - (uintptr_t)arena->map < arena->size;
}

/* ---- count --------------------------------------------------------------------------------- */

struct dlx_message *dlx_message_ref(struct dlx_message *m)
{
    if (m && !dlx__forked(m->link->generation))
        atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed);
    else if (m)
        dlx__check_released(m->link->generation, "dlx_message_ref()");
    return m;
}

/* The last reference is gone: from here on another thread may use the struct again. */
static void __attribute__((noinline)) let_go_slowly(struct dlx_message *m)
{
    struct dlx_subscriber_link *link = m->link;
    if (dlx__forked(link->generation)) {
        dlx__check_released(link->generation, "dlx_message_unref()");
        return; /* the parent's to release */
    }
    if (link->claims)
        dlx__worker_claim_let_go(link->claims, &m->claim);
    uint64_t bytes = m->bytes;
    m->table = table_free(m->table);
    free_gpu(m);
    if (link->is_watched) { /* its next calls end in the branches for a forked child */
        m->n_tensors = 0;
        m->link = &dlx__released_link;
        atomic_store_explicit(&m->refs, 1 | FIRST_USED, memory_order_relaxed);
    }
    DLX_PROBE_RELEASE(link->publisher, m->seq, link->id);
    dlx__reader_release(&link->core, m->hold);
    if (dlx__reader_is_bounded(&link->core))
        dlx__subscriber_link_uncount(link, bytes);
    dlx__subscriber_link_released(link);
}

static inline __attribute__((always_inline)) void unref(struct dlx_message *m)
{
    /* A thread that sees 1 is alone: no other can add a reference. */
    if ((atomic_load_explicit(&m->refs, memory_order_acquire) & ~FIRST_USED) != 1 &&
        (atomic_fetch_sub_explicit(&m->refs, 1, memory_order_acq_rel) & ~FIRST_USED) != 1)
        return;
    struct dlx_subscriber_link *link = m->link;
    if (dlx_unlikely(m->table || dlx__reader_is_told(&link->core) ||
                     dlx__forked(link->generation))) {
        let_go_slowly(m);
        return;
    }
    DLX_PROBE_RELEASE(link->publisher, m->seq, link->id);
    dlx__reader_release_quietly(&link->core, m->hold);
    dlx__subscriber_link_released(link);
}

struct dlx_message *dlx_message_unref(struct dlx_message *m)
{
    if (m)
        unref(m);
    return NULL;
}

/* ---- tensors ------------------------------------------------------------------------------- */

void dlx__message_abandon(struct dlx_export *e)
{
    struct dlx_message *m = e->message;
    if (m == &dlx__released_message)
        dlx__misuse("the deleter of a received tensor was called twice");
    if (m->link->is_watched) {
        e->message = &dlx__released_message;
        dlx__quarantine(e);
        unref(m);
        return;
    }
    /* A tensor of the message's own stays used: the message is about to end, or has other tensors
     * out. */
    bool own = e == &m->first ||
               (m->table && e >= m->table->exports && e < m->table->exports + m->n_tensors);
    if (!own)
        free(e);
    unref(m);
}

/* Of a tensor that a GPU may use. */
static void release_on_gpu(struct dlx_export *e)
{
    if (dlx__forked(e->message->link->generation) || !dlx__gpu_receiver()->release(e))
        dlx__message_abandon(e);
}

static void __attribute__((noinline)) release_slowly(struct dlx_export *e)
{
    if (e->message->gpu)
        release_on_gpu(e);
    else
        dlx__message_abandon(e);
}

static inline __attribute__((always_inline)) void release(struct dlx_export *e)
{
    struct dlx_message *m = e->message;
    if (dlx_likely(e == &m->first)) /* of a message whose tensor is not on a GPU */
        unref(m);
    else
        release_slowly(e);
}

static void delete_versioned(DLManagedTensorVersioned *tensor)
{
    release(tensor->manager_ctx);
}

static void delete_legacy(DLManagedTensor *tensor)
{
    release(tensor->manager_ctx);
}

/* Of a tensor on the CPU. */
static void delete_on_streams(DLManagedTensorVersioned *tensor)
{
    release_on_gpu(tensor->manager_ctx);
}

void dlx__message_release_on_streams(DLManagedTensorVersioned *tensor)
{
    struct dlx_export *e = tensor->manager_ctx;
    if (tensor->deleter == delete_on_streams)
        return;
    e->streams = NULL;
    e->wait = NULL;
    tensor->deleter = delete_on_streams;
}

/* The one inside the message, with a reference; NULL if it is handed out. The one reference that
 * there is is the caller's, as a rule: both are taken in one step. */
static struct dlx_export *take_first(struct dlx_message *m)
{
    unsigned refs = 1;
    while (dlx_unlikely(!atomic_compare_exchange_weak_explicit(
        &m->refs, &refs, (refs + 1) | FIRST_USED, memory_order_relaxed, memory_order_relaxed)))
        if (refs & FIRST_USED)
            return NULL;
    return &m->first;
}

/* The one of tensor i of a set, with a reference; NULL if it is handed out. */
static struct dlx_export *take_own(struct dlx_message *m, uint32_t i)
{
    if (atomic_exchange_explicit(&m->table->used[i], true, memory_order_relaxed))
        return NULL;
    dlx_message_ref(m);
    return &m->table->exports[i];
}

static int new_export(struct dlx_message *m, uint32_t i, struct dlx_export **ret)
{
    dlx__error_clear();
    if (dlx_unlikely(!m || !ret))
        return DLX_NAME_NULL(0, "tensor of a message", {"message", m}, {"ret", ret});
    if (dlx_unlikely(dlx__forked(m->link->generation)))
        return dlx__fail_forked(m->link->generation);
    if (dlx_unlikely(i >= m->n_tensors))
        return dlx__fail(DLX_E_INVALID, "tensor %u of a message of %u", i, m->n_tensors);
    struct dlx_export *e = m->link->is_watched ? NULL : m->table ? take_own(m, i) : take_first(m);
    if (dlx_unlikely(!e)) {
        e = malloc(sizeof *e);
        if (!e)
            return dlx__fail(DLX_E_NO_MEMORY, "state of a tensor");
        dlx_message_ref(m);
    }
    e->message = m;
    *ret = e;
    return 0;
}

static inline void fill(struct dlx_export *e, struct dlx_message *m, uint64_t flags,
                        const DLTensor *tensor)
{
    e->message = m;
    e->as.versioned.version = dlx__message_version(flags);
    e->as.versioned.manager_ctx = e;
    e->as.versioned.deleter = delete_versioned;
    e->as.versioned.flags = flags;
    e->as.versioned.dl_tensor = *tensor;
}

static bool is_empty(const DLTensor *tensor)
{
    int32_t i = 0;
    while (i < tensor->ndim && tensor->shape[i] != 0)
        i++;
    return i < tensor->ndim;
}

/* Open tensor i, if it is on a GPU. */
static int open_tensor(struct dlx_message *m, uint32_t i, DLTensor *tensor)
{
    if (dlx_likely(!dlx__tensor_is_on_gpu(tensor)))
        return 0;
    if (m->gpu)
        return dlx__gpu_receiver()->open(m, i, tensor);
    if (is_empty(tensor))
        return 0;
    int r = dlx__gpu_load();
    if (r == 0) /* since the message was taken */
        r = dlx__fail(DLX_E_DEVICE, "libdlx-gpu could not be loaded when the message was taken: "
                                    "take another one");
    return dlx__fail_prefix(r, "topic %s, publisher %" PRIu64 " (pid %u), tensor %u",
                            m->link->topic, m->link->publisher, m->link->pid, i);
}

/* An export of tensor i, which is open, and ready for the CPU or, if there is one, for the
 * stream. */
static int open_export(struct dlx_message *m, uint32_t i, void *const *stream, DLTensor *ret_tensor,
                       struct dlx_export **ret)
{
    struct dlx_export *e = NULL;
    int r = new_export(m, i, ret ? &e : NULL);
    if (r < 0)
        return r;
    *ret_tensor = m->tensors[i];
    e->i = i;
    e->streams = NULL;
    e->wait = NULL;
    r = open_tensor(m, i, ret_tensor);
    if (r == 0 && dlx_unlikely(m->gpu))
        r = dlx__gpu_receiver()->await(e, stream);
    if (r == 0)
        *ret = e;
    else
        dlx__message_abandon(e);
    return r;
}

static int __attribute__((noinline))
tensor_slowly(struct dlx_message *m, uint32_t i, void *const *stream,
              DLManagedTensorVersioned **ret)
{
    struct dlx_export *e;
    DLTensor tensor;
    int r = open_export(m, i, stream, &tensor, ret ? &e : NULL);
    if (r < 0)
        return r;
    fill(e, m, m->flags[i], &tensor);
    *ret = &e->as.versioned;
    return 0;
}

int dlx_message_tensor(struct dlx_message *m, uint32_t i, DLManagedTensorVersioned **ret)
{
    dlx__error_clear();
    if (dlx_unlikely(!m || i != 0 || !ret || m->table || dlx__forked(m->link->generation) ||
                     !take_first(m)))
        return tensor_slowly(m, i, NULL, ret);
    fill(&m->first, m, m->inline_flags, &m->inline_tensor);
    *ret = &m->first.as.versioned;
    return 0;
}

int dlx_message_tensor_on(struct dlx_message *m, uint32_t i, void *stream,
                          DLManagedTensorVersioned **ret)
{
    if (stream == DLX_STREAM_ALL || stream == DLX_STREAM_NONE)
        return dlx__fail(DLX_E_INVALID, "dlx_message_tensor_on: DLX_STREAM_ALL and DLX_STREAM_NONE "
                                        "are for dlx_tensor_used_on()");
    return tensor_slowly(m, i, &stream, ret);
}

int dlx_message_tensor_legacy(struct dlx_message *m, uint32_t i, bool allow_read_only,
                              DLManagedTensor **ret)
{
    struct dlx_export *e;
    DLTensor tensor;
    if (!allow_read_only)
        return dlx__fail(DLX_E_READ_ONLY, "a received tensor is read-only, which DLManagedTensor "
                                          "cannot say: use DLManagedTensorVersioned, or allow it");
    int r = open_export(m, i, NULL, &tensor, ret ? &e : NULL);
    if (r < 0)
        return r;
    e->as.legacy =
        (DLManagedTensor){.dl_tensor = tensor, .manager_ctx = e, .deleter = delete_legacy};
    *ret = &e->as.legacy;
    return 0;
}

const struct dlx_message *dlx__message_of(const DLManagedTensorVersioned *tensor)
{
    if (tensor->deleter != delete_versioned && tensor->deleter != delete_on_streams)
        return NULL;
    return ((const struct dlx_export *)tensor->manager_ctx)->message;
}

const struct dlx_message *dlx__message_of_legacy(const DLManagedTensor *tensor)
{
    if (tensor->deleter != delete_legacy)
        return NULL;
    return ((const struct dlx_export *)tensor->manager_ctx)->message;
}

struct dlx_subscriber_link *dlx__message_link(const struct dlx_message *m)
{
    return m->link;
}

const DLTensor *dlx_message_tensor_peek(const struct dlx_message *m, uint32_t i)
{
    if (dlx_likely(m && i < m->n_tensors))
        return &m->tensors[i];
    if (m)
        dlx__message_check(m);
    return NULL;
}

/* ---- names --------------------------------------------------------------------------------- */

const char *dlx__message_name(const struct dlx_message *m, uint32_t i)
{
    return m->table ? m->table->text + m->table->names[i] : "";
}

const char *dlx_message_tensor_name(const struct dlx_message *m, uint32_t i)
{
    if (!m)
        return NULL;
    dlx__message_check(m);
    return i < m->n_tensors ? dlx__message_name(m, i) : NULL;
}

/* Any number of threads may be here at once: one of their indexes stays. */
static int make_index(struct dlx_message *m, struct dlx_nametable **ret)
{
    struct dlx_nametable *index, *other = NULL;
    int r = dlx__nametable_new(&index, m->n_tensors);
    if (r < 0)
        return r;
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        const char *name = m->table->text + m->table->names[i];
        uint32_t size = (uint32_t)strlen(name);
        if (size > 0)
            (void)dlx__nametable_add(index, name, size, dlx__nametable_hash(index, name, size), i);
    }
    if (!atomic_compare_exchange_strong_explicit(&m->table->index, &other, index,
                                                 memory_order_acq_rel, memory_order_acquire)) {
        dlx__nametable_free(index);
        index = other;
    }
    *ret = index;
    return 0;
}

/* With the names that there are, as many as there is room for. */
static int fail_name(const struct dlx_message *m, const char *name)
{
    char names[200] = "", all[240];
    size_t used = 0;
    uint32_t i = 0;
    for (; i < m->n_tensors; i++) {
        const char *one = dlx_message_tensor_name(m, i);
        size_t size = one ? strlen(one) + 4 : 0; /* with quotes and a comma */
        if (size <= 4 || size >= sizeof names - used)
            break;
        used +=
            (size_t)snprintf(names + used, sizeof names - used, "%s\"%s\"", i > 0 ? ", " : "", one);
    }
    if (used == 0)
        (void)snprintf(
            all, sizeof all, "its %u tensors have no names%s", m->n_tensors,
            m->table && m->n_tensors > 0 && *dlx_message_tensor_name(m, 0) ? " that fit here" : "");
    else
        (void)snprintf(all, sizeof all, "it has %s%s", names,
                       i < m->n_tensors ? " and others" : "");
    return dlx__fail(DLX_E_NOT_FOUND, "topic %s, message %" PRIu64 " has no tensor \"%.200s\": %s",
                     m->link->topic, m->seq, name, all);
}

int dlx_message_tensor_find(struct dlx_message *m, const char *name, uint32_t *ret)
{
    dlx__error_clear();
    if (!m || !name || !ret)
        return DLX_NAME_NULL(0, "dlx_message_tensor_find", {"message", m}, {"name", name},
                             {"ret", ret});
    if (dlx__forked(m->link->generation))
        return dlx__fail_forked(m->link->generation);
    uint32_t found = DLX_NAMETABLE_NONE;
    size_t size = strnlen(name, DLX_SHM_NAME_MAX + 1);
    if (m->table && size > 0 && size <= DLX_SHM_NAME_MAX) {
        struct dlx_nametable *index = atomic_load_explicit(&m->table->index, memory_order_acquire);
        int r = index ? 0 : make_index(m, &index);
        if (r < 0)
            return r;
        found = dlx__nametable_find(index, name, (uint32_t)size);
    }
    if (found == DLX_NAMETABLE_NONE)
        return fail_name(m, name);
    *ret = found;
    return 0;
}

/* ---- what is known of it ------------------------------------------------------------------- */

uint32_t dlx_message_n_tensors(const struct dlx_message *m)
{
    dlx__message_check(m);
    return m->n_tensors;
}

uint64_t dlx_message_seq(const struct dlx_message *m)
{
    dlx__message_check(m);
    return m->seq;
}

uint64_t dlx_message_gap(const struct dlx_message *m)
{
    dlx__message_check(m);
    return m->gap;
}

uint64_t dlx_message_monotonic_ns(const struct dlx_message *m)
{
    dlx__message_check(m);
    return m->monotonic_ns;
}

const void *dlx_message_meta(const struct dlx_message *m, size_t *ret_size)
{
    dlx__message_check(m);
    uint32_t size = m->table ? m->table->meta_size : 0;
    if (ret_size)
        *ret_size = size;
    return size > 0 ? m->table->meta : NULL;
}

const void *dlx__message_cut_meta(struct dlx_message *m, uint32_t n, const void **ret_in_place)
{
    struct dlx_message_table *table = m->table;
    if (!table || table->meta_size < n)
        return NULL;
    const void *ret = table->meta;
    table->meta = (char *)table->meta + n;
    table->meta_size -= n;
    m->first_arena = DLX_MIN(m->first_arena, table->arena);
    m->last_arena = DLX_MAX(m->last_arena, table->arena);
    *ret_in_place = table->meta_in_place;
    return ret;
}

const char *dlx_message_topic(const struct dlx_message *m)
{
    dlx__message_check(m);
    return m->link->topic;
}

uint64_t dlx_message_publisher(const struct dlx_message *m)
{
    dlx__message_check(m);
    return m->link->publisher;
}

int dlx_message_get_qos(const struct dlx_message *m, struct dlx_message_qos *ret)
{
    dlx__error_clear();
    if (!m || !ret)
        return DLX_NAME_NULL(0, "dlx_message_get_qos", {"message", m}, {"ret", ret});
    if (dlx__forked(m->link->generation))
        return dlx__fail_forked(m->link->generation);
    const struct dlx_message_qos *qos = &m->link->qos;
    return dlx__args_return(ret, sizeof *qos, qos, sizeof *qos);
}

int dlx_message_tensor_describe(struct dlx_message *m, uint32_t i, DLManagedTensorVersioned *ret)
{
    dlx__error_clear();
    if (!m || !ret)
        return DLX_NAME_NULL(0, "dlx_message_tensor_describe", {"message", m}, {"ret", ret});
    if (dlx__forked(m->link->generation))
        return dlx__fail_forked(m->link->generation);
    if (i >= m->n_tensors)
        return dlx__fail(DLX_E_INVALID, "tensor %u of a message of %u", i, m->n_tensors);
    DLTensor tensor = m->tensors[i];
    int r = open_tensor(m, i, &tensor);
    if (r < 0)
        return r;
    tensor.data = m->tensors[i].data; /* on a GPU: it may not be ready */
    *ret = (DLManagedTensorVersioned){
        .version = dlx__message_version(m->flags[i]), .flags = m->flags[i], .dl_tensor = tensor};
    return 0;
}

int dlx_message_open_into(struct dlx_message *m, struct dlx_gpu_range *range, int64_t timeout_ns)
{
    dlx__error_clear();
    if (!m || !range)
        return DLX_NAME_NULL(0, "dlx_message_open_into", {"message", m}, {"range", range});
    int r = dlx__refuse_forked(m->link->generation);
    if (r == 0 && !m->gpu)
        r = dlx__fail(DLX_E_INVALID, "dlx_message_open_into: no tensor of the message is on a GPU, "
                                     "or libdlx-gpu could not be loaded when it was taken");
    return r < 0 ? r : dlx__gpu_receiver()->open_into(m, range, timeout_ns);
}

/* ---- streams ------------------------------------------------------------------------------- */

/* For `call`: a received tensor of this process. */
static int check_received(const DLManagedTensorVersioned *tensor, const char *call)
{
    dlx__error_clear();
    if (!tensor || !dlx__message_of(tensor))
        return dlx__fail(DLX_E_INVALID, "%s: the tensor is not one of dlx_message_tensor()", call);
    return dlx__refuse_forked(dlx__message_of(tensor)->link->generation);
}

int dlx_tensor_used_on(DLManagedTensorVersioned *tensor, void *stream)
{
    int r = check_received(tensor, "dlx_tensor_used_on");
    if (r < 0)
        return r;
    const struct dlx_message *m = dlx__message_of(tensor);
    r = atomic_load_explicit(&m->link->gpu, memory_order_acquire)
            ? dlx__gpu_receiver()->use_on(tensor, stream)
            : DLX_E_DEVICE;
    return r != DLX_E_DEVICE
               ? r
               : dlx__fail(r, "dlx_tensor_used_on: the tensor is not on a GPU, or is empty, and "
                              "its subscription has no `pin`");
}

int dlx_tensor_status(const DLManagedTensorVersioned *tensor)
{
    int r = check_received(tensor, "dlx_tensor_status");
    if (r < 0)
        return r;
    const struct dlx_export *e = tensor->manager_ctx;
    return e->message->gpu && e->wait ? dlx__gpu_receiver()->wait_status(e->wait) : 0;
}

int dlx_message_status(const struct dlx_message *m)
{
    dlx__error_clear();
    if (!m)
        return dlx__fail(DLX_E_INVALID, "dlx_message_status: message is NULL");
    int r = dlx__refuse_forked(m->link->generation);
    return r == 0 && m->gpu ? dlx__gpu_receiver()->message_status(m->gpu) : r;
}

/* ---- copies on the host --------------------------------------------------------------------- */

/* A tensor on a GPU that has strides comes with what lies between its elements. */
static int copy_from_gpu(const DLTensor *t, bool padded, void *to, uint64_t size)
{
    if (dlx__tensor_is_row_major(t->ndim, t->shape, t->strides))
        return dlx__gpu_receiver()->copy_to_host(t, to, size);
    DLTensor all = *t;
    uint64_t extent = 0;
    int r = dlx__tensor_extent(t->dtype, padded, t->ndim, t->shape, t->strides, &extent);
    if (r < 0)
        return r;
    all.data = malloc((size_t)extent);
    if (!all.data)
        return dlx__fail(DLX_E_NO_MEMORY, "no memory for the %s that its elements span",
                         DLX_AMOUNT(extent));
    r = dlx__gpu_receiver()->copy_to_host(t, all.data, extent);
    if (r == 0)
        r = dlx__tensor_compact(to, &all, padded);
    free(all.data);
    return r;
}

static int copy_to_host(struct dlx_message *m, uint32_t i, void *to, uint64_t size)
{
    DLManagedTensorVersioned *t;
    const bool padded = m->flags[i] & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
    if (!dlx__tensor_is_on_gpu(&m->tensors[i]))
        return dlx__tensor_compact(to, &m->tensors[i], padded);
    int r = dlx_message_tensor(m, i, &t);
    if (r < 0)
        return r;
    r = copy_from_gpu(&t->dl_tensor, padded, to, size);
    char why[DLX_ERROR_TEXT_SIZE];
    (void)snprintf(why, sizeof why, "%s", dlx__error_message());
    if (r == 0)
        (void)dlx_tensor_used_on(t, DLX_STREAM_NONE); /* the copy is done: its release need not
                                                         wait for the GPU's other work */
    t->deleter(t);
    return r < 0 ? dlx__fail(r, "topic %s, publisher %" PRIu64 " (pid %u), tensor %u: %s",
                             m->link->topic, m->link->publisher, m->link->pid, i, why)
                 : 0;
}

int dlx_message_copy_to_host(struct dlx_message *m, uint32_t i, void *to, size_t size)
{
    uint64_t needed = 0;
    dlx__error_clear();
    if (!m || (!to && size > 0))
        return DLX_NAME_NULL(0, "dlx_message_copy_to_host", {"message", m}, {"to", to});
    dlx__message_check(m);
    int r = dlx__refuse_forked(m->link->generation);
    if (r < 0)
        return r;
    if (i >= m->n_tensors)
        return dlx__fail(DLX_E_INVALID, "tensor %u of a message of %u", i, m->n_tensors);
    const DLTensor *t = &m->tensors[i];
    r = dlx__tensor_size(t->dtype, m->flags[i] & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED,
                         t->ndim, t->shape, &needed);
    if (r == 0 && size < needed)
        r = dlx__fail(DLX_E_INVALID,
                      "tensor %u of a message of topic %s has %" PRIu64
                      " bytes, and the memory for them %zu",
                      i, m->link->topic, needed, size);
    return r < 0 || needed == 0 ? r : copy_to_host(m, i, to, needed);
}
