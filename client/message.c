/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Messages: tensors rebuilt from records, and the count that gives the memory back. One message struct
 * belongs to each hold word of a link, so taking allocates nothing: the hold word that the last release
 * clears is also what makes the struct free.
 */

#include "client/inlet.h"
#include "client/nametable.h"
#include "common/manifest.h"
#include <inttypes.h>
#include <string.h>

/* A managed tensor that dlx_message_tensor() handed out. */
struct export
{
    union {
        DLManagedTensorVersioned versioned;
        DLManagedTensor legacy;
    } as;
    struct dlx_message *message;
};

/* What a message with a manifest has beside its struct, in one piece of memory. */
struct table {
    _Atomic(struct dlx_nametable *) index; /* made by the first dlx_message_find() */
    uint32_t *names;                       /* [n_tensors]: offsets in `text` */
    char *text;                            /* names, each terminated */
    void *meta;
    uint32_t meta_size;
    atomic_bool *used;      /* [n_tensors]: is exports[i] handed out? */
    struct export *exports; /* [n_tensors]: saves an allocation for the first of each tensor */
};

struct dlx_message {
    atomic_uint refs; /* the message, and each tensor of it; and FIRST_USED */
    uint32_t n_tensors;
    struct dlx_inlet *inlet;
    uint64_t seq;
    uint64_t gap;
    uint64_t time_ns;
    uint64_t bytes; /* payload, if it has a manifest */
    uint32_t hold;
    DLTensor *tensors;   /* [n_tensors]: &inline_tensor, or in `table` */
    uint64_t *flags;     /* [n_tensors]: of the managed tensors */
    struct table *table; /* what a manifest needs; NULL for one tensor in its slot */
    struct export first; /* saves an allocation for the first tensor, unless FIRST_USED */
    uint64_t inline_flags;
    DLTensor inline_tensor;
    int64_t dims[2 * DLX_SHM_NDIM_INLINE];
    uint64_t form;        /* dlx_taken.form, if inline_tensor is still one of these */
    uint32_t first_arena; /* if it has a manifest: the numbers of the arenas with its tensors, */
    uint32_t last_arena;  /* which are in between; first > last: there are none */
};

#define FIRST_USED (1U << 31)

static struct table *table_free(struct table *table)
{
    if (table)
        dlx__nametable_free(atomic_load_explicit(&table->index, memory_order_acquire));
    free(table);
    return NULL;
}

void dlx__message_free(struct dlx_message *m)
{
    if (m)
        table_free(m->table);
    free(m);
}

/* ---- build --------------------------------------------------------------------------------- */

static uint64_t export_flags(const struct dlx_shm_record *record)
{
    uint64_t flags = DLPACK_FLAG_BITMASK_READ_ONLY;
    if (record->flags & DLX_SHM_RECORD_COPIED)
        flags |= DLPACK_FLAG_BITMASK_IS_COPIED;
    if (record->flags & DLX_SHM_RECORD_PADDED)
        flags |= DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
    return flags;
}

/* The arena `id` for the message that is pending. */
static int find_arena(struct dlx_inlet *inlet, uint32_t id, const struct dlx_inlet_arena **ret)
{
    const struct dlx_inlet_arena *arena = dlx__inlet_arena(inlet, id);
    if (dlx_unlikely(!arena))
        return dlx__fail(DLX_E_NOT_FOUND, "arena %u has not been announced", id);
    /* It stays mapped for what was taken before, and no longer. */
    if (dlx_unlikely(arena->dropped_after && inlet->pending.n >= arena->dropped_after))
        return dlx__fail(DLX_E_BAD_PEER, "message %" PRIu64 " lies in arena %u, which was dropped",
                         inlet->pending.n, id);
    *ret = arena;
    return 0;
}

/* Check a record and make a DLTensor of it. shape and strides point to memory that stays. */
static int build_tensor(struct dlx_inlet *inlet, const struct dlx_shm_record *record,
                        int64_t *shape, int64_t *strides, DLTensor *ret)
{
    const struct dlx_inlet_arena *arena = NULL;
    if (record->size > 0) {
        int found = find_arena(inlet, record->arena, &arena);
        if (dlx_unlikely(found < 0))
            return found;
    }
    int r = dlx__record_check(record, shape, strides, arena ? arena->size : 0);
    if (dlx_unlikely(r < 0))
        return r;
    if (record->flags & DLX_SHM_RECORD_ROW_MAJOR)
        dlx__tensor_row_major((int32_t)record->ndim, shape, strides);
    *ret = (DLTensor){
        .data = arena ? (void *)(uintptr_t)(arena->map + record->offset) : NULL,
        .device = {kDLCPU, 0},
        .ndim = (int32_t)record->ndim,
        .dtype = {record->dtype_code, record->dtype_bits, record->dtype_lanes},
        .shape = shape,
        .strides = strides,
    };
    return 0;
}

/* The manifest, where it lies; of its size, nothing is believed that could not be. */
static int open_manifest(struct dlx_inlet *inlet, const struct dlx_taken *taken,
                         struct dlx_manifest *ret)
{
    const struct dlx_inlet_arena *arena = NULL;
    uint64_t end, most = dlx__manifest_size_max(taken->n_tensors);
    int r = find_arena(inlet, taken->manifest_arena, &arena);
    if (r < 0)
        return r;
    if (taken->manifest_size > most) /* or a liar has us allocate as much as it likes */
        return dlx__fail(DLX_E_BAD_PEER,
                         "manifest of %" PRIu64 " bytes for %u tensors, at most %" PRIu64
                         " are possible",
                         taken->manifest_size, taken->n_tensors, most);
    if (__builtin_add_overflow(taken->manifest_offset, taken->manifest_size, &end) ||
        end > arena->size || taken->manifest_offset % sizeof(uint64_t) != 0)
        return dlx__fail(DLX_E_BAD_PEER,
                         "manifest at offset %" PRIu64 " of %" PRIu64
                         " bytes is not inside arena %u of %" PRIu64 " bytes",
                         taken->manifest_offset, taken->manifest_size, arena->id, arena->size);
    return dlx__manifest_open(arena->map + taken->manifest_offset, taken->manifest_size,
                              taken->n_tensors, ret);
}

/* What is left of the room in a table. */
struct room {
    int64_t *dims;
    uint64_t n_dims; /* numbers in the manifest; the table has twice as many */
    uint64_t text;
};

/* Lay the table out: what is aligned most comes first. An honest manifest shares no bytes between its entries, so what
 * they need together is not more than the manifest has. */
static int new_table(struct dlx_message *m, const struct dlx_shm_manifest *header,
                     struct room *ret_room)
{
    size_t n = m->n_tensors, meta_room = ((size_t)header->meta_size + 7) / 8 * 8;
    ret_room->n_dims = header->dims_size / sizeof(int64_t);
    ret_room->text = header->names_size;
    size_t size = sizeof *m->table + meta_room +
                  n * (sizeof *m->tensors + sizeof *m->flags + sizeof(struct export)) +
                  2 * ret_room->n_dims * sizeof(int64_t) +
                  n * (sizeof(uint32_t) + sizeof(atomic_bool)) + ret_room->text + n;
    struct table *table = malloc(size);
    if (!table)
        return dlx__fail(DLX_E_NO_MEMORY, "table of %u tensors", m->n_tensors);
    table->meta = table + 1;
    table->meta_size = header->meta_size;
    m->tensors = (DLTensor *)((char *)table->meta + meta_room);
    m->flags = (uint64_t *)(m->tensors + n);
    table->exports = (struct export *)(m->flags + n);
    ret_room->dims = (int64_t *)(table->exports + n);
    table->names = (uint32_t *)(ret_room->dims + 2 * ret_room->n_dims);
    table->used = (atomic_bool *)(table->names + n);
    table->text = (char *)(table->used + n);
    atomic_init(&table->index, NULL);
    m->table = table;
    return 0;
}

/* Tensor i, from what a peer may still write: each number and each byte is loaded once. */
static int build_item(struct dlx_inlet *inlet, const struct dlx_manifest *manifest, uint32_t i,
                      struct dlx_message *m, struct room *room)
{
    struct table *table = m->table;
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
    r = build_tensor(inlet, &item.record, dims, dims + ndim, &m->tensors[i]);
    if (dlx_unlikely(r < 0))
        return r == DLX_E_NOT_FOUND ? r : dlx__fail_prefix(r, "tensor %u", i);
    m->flags[i] = export_flags(&item.record);
    m->bytes += item.record.size;
    if (item.record.size > 0) {
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

static int build_from_manifest(struct dlx_inlet *inlet, const struct dlx_taken *taken,
                               struct dlx_message *m)
{
    struct dlx_manifest manifest;
    struct room room = {0};
    int r = open_manifest(inlet, taken, &manifest);
    if (r == 0)
        r = new_table(m, &manifest.header, &room);
    if (r < 0)
        return r;
    m->form = 0;
    if (manifest.header.meta_size > 0)
        memcpy(m->table->meta, manifest.meta, manifest.header.meta_size);
    m->bytes = 0;
    m->first_arena = UINT32_MAX;
    m->last_arena = 0;
    for (uint32_t i = 0; r == 0 && i < m->n_tensors; i++)
        r = build_item(inlet, &manifest, i, m, &room);
    return r;
}

/* Its tensor is like that of the message before, but for the place. */
static int build_again(struct dlx_inlet *inlet, const struct dlx_taken *taken,
                       struct dlx_message *m)
{
    const struct dlx_shm_record *record = &taken->record;
    const uint8_t *data = NULL;
    if (dlx_likely(record->size > 0)) {
        const struct dlx_inlet_arena *arena;
        uint64_t room;
        int r = find_arena(inlet, record->arena, &arena);
        if (dlx_unlikely(r < 0))
            return r;
        if (dlx_unlikely(record->offset % DLX_SHM_ALIGN != 0 ||
                         __builtin_sub_overflow(arena->size, record->offset, &room) ||
                         record->size > room))
            return dlx__record_check(record, taken->shape, NULL, arena->size);
        data = arena->map + record->offset;
    }
    m->inline_tensor.data = (void *)(uintptr_t)data;
    /* Who had the last one was given their address. */
    for (uint32_t i = 0; i < record->ndim; i++) {
        m->dims[i] = taken->shape[i];
        m->dims[record->ndim + i] = taken->strides[i];
    }
    return 0;
}

static int build_from_slot(struct dlx_inlet *inlet, const struct dlx_taken *taken,
                           struct dlx_message *m)
{
    uint32_t ndim = taken->record.ndim;
    if (dlx_likely(taken->form > 0 && m->form == taken->form))
        return build_again(inlet, taken, m);
    m->form = 0;
    m->tensors = &m->inline_tensor;
    m->flags = &m->inline_flags;
    m->inline_flags = export_flags(&taken->record);
    for (uint32_t i = 0; i < ndim; i++)
        m->dims[i] = taken->shape[i];
    if (!(taken->record.flags & DLX_SHM_RECORD_ROW_MAJOR))
        for (uint32_t i = 0; i < ndim; i++)
            m->dims[ndim + i] = taken->strides[i];
    int r = build_tensor(inlet, &taken->record, m->dims, m->dims + ndim, &m->inline_tensor);
    if (r == 0)
        m->form = taken->form;
    return r;
}

int dlx__message_build(struct dlx_inlet *inlet, const struct dlx_taken *taken,
                       struct dlx_message **ret)
{
    struct dlx_message *m = inlet->messages[taken->hold];
    if (dlx_unlikely(!m)) {
        m = calloc(1, sizeof *m);
        if (!m)
            return dlx__fail(DLX_E_NO_MEMORY, "state of a message");
        m->inlet = inlet;
        m->hold = taken->hold;
        inlet->messages[taken->hold] = m;
    }
    m->n_tensors = taken->n_tensors;
    m->seq = taken->n;
    m->gap = taken->gap;
    m->time_ns = taken->time_ns;
    int r = taken->flags & DLX_SHM_SLOT_MANIFEST ? build_from_manifest(inlet, taken, m)
                                                 : build_from_slot(inlet, taken, m);
    if (dlx_unlikely(r < 0)) {
        m->table = table_free(m->table);
        return r;
    }
    inlet->taken_bytes += m->table ? m->bytes : taken->record.size;
    dlx_store64_relaxed(&inlet->page->taken_bytes, inlet->taken_bytes);
    atomic_store_explicit(&m->refs, 1, memory_order_relaxed);
    inlet->n_given++;
    *ret = m;
    return 0;
}

bool dlx__message_may_lie_in(const struct dlx_message *m, const struct dlx_inlet_arena *arena)
{
    /* Nothing here is written by a release, which may run now: so not `table`. */
    if (m->tensors != &m->inline_tensor)
        return m->seq < arena->dropped_after && arena->id >= m->first_arena &&
               arena->id <= m->last_arena; /* what is newer was not built if it lies in it */
    uintptr_t data = (uintptr_t)m->inline_tensor.data;
    return data - (uintptr_t)arena->map < arena->size;
}

/* ---- count --------------------------------------------------------------------------------- */

struct dlx_message *dlx_message_ref(struct dlx_message *m)
{
    if (m && !dlx__forked(m->inlet->generation))
        atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed);
    return m;
}

struct dlx_message *dlx_message_unref(struct dlx_message *m)
{
    if (!m)
        return NULL;
    struct dlx_inlet *inlet = m->inlet;
    if (dlx__forked(inlet->generation))
        return NULL; /* the parent's to release */
    /* Who sees 1 is alone: nobody else can add a reference. */
    if ((atomic_load_explicit(&m->refs, memory_order_acquire) & ~FIRST_USED) != 1 &&
        (atomic_fetch_sub_explicit(&m->refs, 1, memory_order_acq_rel) & ~FIRST_USED) != 1)
        return NULL;
    if (dlx_unlikely(m->table))
        m->table = table_free(m->table);
    /* From here on the message may be taken anew by another thread. */
    dlx__take_release(&inlet->core, m->hold);
    dlx__inlet_released(inlet);
    return NULL;
}

/* ---- tensors ------------------------------------------------------------------------------- */

static void release(struct export *e)
{
    struct dlx_message *m = e->message;
    if (dlx__forked(m->inlet->generation))
        return;
    /* One of the message's own stays used: the message is about to end, or has other tensors out. */
    bool own = e == &m->first ||
               (m->table && e >= m->table->exports && e < m->table->exports + m->n_tensors);
    if (!own)
        free(e);
    dlx_message_unref(m);
}

static void delete_versioned(DLManagedTensorVersioned *tensor)
{
    release(tensor->manager_ctx);
}

static void delete_legacy(DLManagedTensor *tensor)
{
    release(tensor->manager_ctx);
}

/* The one inside the message, with a reference; NULL if it is handed out. The one reference that there is is
 * the caller's, as a rule: both are taken in one step. */
static struct export *take_first(struct dlx_message *m)
{
    unsigned refs = 1;
    while (dlx_unlikely(!atomic_compare_exchange_weak_explicit(
        &m->refs, &refs, (refs + 1) | FIRST_USED, memory_order_relaxed, memory_order_relaxed)))
        if (refs & FIRST_USED)
            return NULL;
    return &m->first;
}

/* The one of tensor i of a set, with a reference; NULL if it is handed out. */
static struct export *take_own(struct dlx_message *m, uint32_t i)
{
    if (atomic_exchange_explicit(&m->table->used[i], true, memory_order_relaxed))
        return NULL;
    dlx_message_ref(m);
    return &m->table->exports[i];
}

static int new_export(struct dlx_message *m, uint32_t i, struct export **ret)
{
    dlx__error_clear();
    if (dlx_unlikely(!m || !ret))
        return dlx__fail(DLX_E_INVALID, "dlx_message_tensor: message or ret is NULL");
    if (dlx_unlikely(dlx__forked(m->inlet->generation)))
        return dlx__fail_forked();
    if (dlx_unlikely(i >= m->n_tensors))
        return dlx__fail(DLX_E_INVALID, "tensor %u of a message of %u", i, m->n_tensors);
    struct export *e = m->table ? take_own(m, i) : take_first(m);
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

int dlx_message_tensor(struct dlx_message *m, uint32_t i, DLManagedTensorVersioned **ret)
{
    struct export *e;
    int r = new_export(m, i, ret ? &e : NULL);
    if (dlx_unlikely(r < 0))
        return r;
    e->as.versioned = (DLManagedTensorVersioned){
        .version = {DLPACK_MAJOR_VERSION, 0},
        .manager_ctx = e,
        .deleter = delete_versioned,
        .flags = m->flags[i],
        .dl_tensor = m->tensors[i],
    };
    *ret = &e->as.versioned;
    return 0;
}

int dlx_message_tensor_legacy(struct dlx_message *m, uint32_t i, bool allow_read_only,
                              DLManagedTensor **ret)
{
    struct export *e;
    if (!allow_read_only)
        return dlx__fail(DLX_E_READ_ONLY, "a received tensor is read-only, which DLManagedTensor "
                                          "cannot say: use DLManagedTensorVersioned, or allow it");
    int r = new_export(m, i, ret ? &e : NULL);
    if (r < 0)
        return r;
    e->as.legacy =
        (DLManagedTensor){.dl_tensor = m->tensors[i], .manager_ctx = e, .deleter = delete_legacy};
    *ret = &e->as.legacy;
    return 0;
}

const struct dlx_message *dlx__message_of(const DLManagedTensorVersioned *tensor)
{
    if (tensor->deleter != delete_versioned)
        return NULL;
    return ((const struct export *)tensor->manager_ctx)->message;
}

const struct dlx_message *dlx__message_of_legacy(const DLManagedTensor *tensor)
{
    if (tensor->deleter != delete_legacy)
        return NULL;
    return ((const struct export *)tensor->manager_ctx)->message;
}

struct dlx_inlet *dlx__message_inlet(const struct dlx_message *m)
{
    return m->inlet;
}

const DLTensor *dlx_message_peek(const struct dlx_message *m, uint32_t i)
{
    return m && i < m->n_tensors ? &m->tensors[i] : NULL;
}

/* ---- names --------------------------------------------------------------------------------- */

const char *dlx_message_name(const struct dlx_message *m, uint32_t i)
{
    if (!m || i >= m->n_tensors)
        return NULL;
    return m->table ? m->table->text + m->table->names[i] : "";
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

int dlx_message_find(struct dlx_message *m, const char *name, uint32_t *ret_i)
{
    dlx__error_clear();
    if (!m || !name || !ret_i)
        return dlx__fail(DLX_E_INVALID, "dlx_message_find: message, name or ret_i is NULL");
    if (dlx__forked(m->inlet->generation))
        return dlx__fail_forked();
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
        return dlx__fail(DLX_E_NOT_FOUND, "topic %s, message %" PRIu64 " has no tensor \"%.200s\"",
                         m->inlet->topic, m->seq, name);
    *ret_i = found;
    return 0;
}

/* ---- what is known of it ------------------------------------------------------------------- */

uint32_t dlx_message_n_tensors(const struct dlx_message *m)
{
    return m->n_tensors;
}

uint64_t dlx_message_seq(const struct dlx_message *m)
{
    return m->seq;
}

uint64_t dlx_message_gap(const struct dlx_message *m)
{
    return m->gap;
}

uint64_t dlx_message_time_ns(const struct dlx_message *m)
{
    return m->time_ns;
}

const void *dlx_message_meta(const struct dlx_message *m, size_t *ret_size)
{
    uint32_t size = m->table ? m->table->meta_size : 0;
    if (ret_size)
        *ret_size = size;
    return size > 0 ? m->table->meta : NULL;
}

const char *dlx_message_topic(const struct dlx_message *m)
{
    return m->inlet->topic;
}

uint64_t dlx_message_publisher(const struct dlx_message *m)
{
    return m->inlet->publisher;
}
