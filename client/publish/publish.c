/* SPDX-License-Identifier: Apache-2.0 */

/* dlx_alloc(), dlx_publish() and their variants: the hot path of a publisher. */

#include "client/publish/make.h"
#include "client/message/message.h"
#include "client/publish/publisher_move.h"
#include "common/probes.h"
#include "ring/manifest.h"
#include "ring/tensor.h"
#include <string.h>

/* ---- alloc -------------------------------------------------------------------------------- */

/* If need be, from another daemon. */
static int take_block(struct dlx_publisher *p, struct dlx_heap *heap, uint64_t size,
                      struct dlx_block **ret)
{
    struct dlx_wait wait = dlx__wait_of(p->client->timeout_ns);
    int r;
    do
        r = dlx__publisher_block_of(p, heap, size, ret);
    while (dlx_unlikely(r < 0) && (r = dlx__publisher_go_on(p, r, &wait)) == DLX__AGAIN);
    return r;
}

/* On failure the block is given back. */
static int export_block(struct dlx_heap *heap, struct dlx_block *block,
                        const struct dlx_tensor_spec *spec, uint64_t size,
                        DLManagedTensorVersioned **ret)
{
    int r = dlx__block_export(block, spec->dtype, spec->ndim, spec->shape, size);
    if (r < 0)
        dlx__heap_give(heap, block);
    else
        *ret = &block->tensor;
    return r;
}

static int __attribute__((noinline))
alloc_slowly(struct dlx_publisher *p, const struct dlx_tensor_spec *user_spec,
             DLManagedTensorVersioned **ret)
{
    struct dlx_tensor_spec copy;
    const struct dlx_tensor_spec *spec = &copy;
    struct dlx_heap *heap;
    struct dlx_block *block;
    uint64_t size;
    int r = dlx__tensor_spec(&copy, user_spec);
    if (r == 0)
        r = dlx__tensor_size(spec->dtype, false, spec->ndim, spec->shape, &size);
    if (r == 0)
        r = dlx__publisher_heap(p, spec->device, &heap);
    if (r < 0)
        return r;
    r = take_block(p, heap, size, &block);
    return r < 0 ? r : export_block(heap, block, spec, size, ret);
}

/* Zeros, or what DLPack calls the CPU: for a stream of tensors, one look has to do. */
static inline bool is_on_cpu(const struct dlx_tensor_spec *spec)
{
    uint64_t device;
    _Static_assert(sizeof device == sizeof spec->device, "type and number");
    memcpy(&device, &spec->device, sizeof device);
    return device <= kDLCPU; /* the number is in the upper half */
}

/*
 * The next block was last used many messages ago, so its lines may be in no cache. While a message
 * is on its way, its publisher notes where the next block and its payload lie. dlx_alloc() then
 * prefetches all of these lines at once; it would otherwise find the payload only after the block
 * has arrived.
 */
static inline void note_next(struct dlx_publisher *p)
{
    const struct dlx_block *next = dlx__heap_next(p->heap);
    if (dlx_likely(next != NULL)) {
        p->memory.next_block = next;
        p->memory.next_data = next->made.data;
    }
}

static inline void prefetch_next(const struct dlx_publisher *p)
{
    dlx__prefetch_write(p->memory.next_data);
#pragma GCC unroll 5
    for (size_t i = 0; i < DLX_BLOCK_LINES; i++)
        dlx__prefetch_write((const char *)p->memory.next_block + i * DLX_CACHELINE);
}

int dlx_alloc(struct dlx_publisher *p, const struct dlx_tensor_spec *user_spec,
              DLManagedTensorVersioned **ret)
{
    int r = dlx__publisher_begin(user_spec && ret ? p : NULL, "dlx_alloc");
    if (dlx_unlikely(r < 0))
        return DLX_NAME_NULL(r, "dlx_alloc", {"spec", user_spec}, {"ret", ret});
    prefetch_next(p);
    struct dlx_block *block = NULL;
    if (dlx_likely(user_spec->size == sizeof *user_spec && is_on_cpu(user_spec) &&
                   dlx__writer_head(&p->core) < p->memory.next_trim))
        block =
            dlx__heap_export_again(p->heap, user_spec->dtype, user_spec->ndim, user_spec->shape);
    if (dlx_likely(block != NULL))
        *ret = &block->tensor;
    else
        r = alloc_slowly(p, user_spec, ret);
    dlx__publisher_leave(p);
    return r;
}

/* ---- alloc_set: tensors of a set side by side, in memory for one message ------------------ */

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

/* The memory of a set in one heap. */
struct piece {
    struct dlx_heap *heap;
    struct dlx_block *whole; /* of a GPU: what tensors have yet to be cut from */
};

/* More devices than this are gone through again each time. */
#define PIECES_MAX 32U

struct pieces {
    uint32_t n;
    struct piece all[PIECES_MAX];
};

static struct piece *piece_of(struct pieces *pieces, const struct dlx_heap *heap)
{
    uint32_t i = 0;
    while (i < pieces->n && pieces->all[i].heap != heap)
        i++;
    return i < pieces->n ? &pieces->all[i] : NULL;
}

/*
 * Tensors of a GPU lie in one piece, in their order: where a set has an arena of its own, the same
 * set lies there as it did in another arena, which is what a subscriber needs that maps it at the
 * addresses of the former one (dlx_message_open_into()). Memory of the CPU is not mapped like that:
 * there each tensor takes a block of an earlier set, which is faster.
 */
static int take_part(struct dlx_publisher *p, struct dlx_heap *heap, struct piece *piece,
                     uint64_t size, struct dlx_block **ret)
{
    if (piece && heap != p->heap)
        return dlx__heap_cut(heap, &piece->whole, size, ret);
    bool before = dlx__heap_put_anywhere(heap, true);
    int r = dlx__publisher_block_of(p, heap, size, ret);
    (void)dlx__heap_put_anywhere(heap, before);
    return r;
}

static int alloc_parts(struct dlx_publisher *p, const struct dlx_tensor_spec *specs, uint32_t n,
                       struct pieces *pieces, DLManagedTensorVersioned **ret)
{
    struct dlx_tensor_spec spec;
    struct dlx_heap *heap;
    struct dlx_block *block;
    uint64_t size;
    for (uint32_t i = 0; i < n; i++) {
        int r = copy_spec(p, specs, i, &spec, &size, &heap);
        if (r == 0)
            r = take_part(p, heap, piece_of(pieces, heap), size, &block);
        if (r == 0)
            r = export_block(heap, block, &spec, size, &ret[i]);
        if (r < 0) {
            while (i-- > 0) {
                ret[i]->deleter(ret[i]);
                ret[i] = NULL; /* a caller may delete all entries that are not NULL */
            }
            return r;
        }
    }
    return 0;
}

/* Room for all of them in one piece, which they are then taken from. */
static int make_room(struct dlx_publisher *p, struct piece *piece, uint64_t size)
{
    struct dlx_block *whole;
    int r = take_block(p, piece->heap, size, &whole);
    if (r == 0 && piece->heap == p->heap)
        dlx__heap_give(piece->heap, whole);
    else if (r == 0)
        piece->whole = whole;
    return r;
}

/* Bytes of a manifest, with names of usual length. */
static uint64_t manifest_size(uint32_t n, uint64_t n_dims)
{
    return sizeof(struct dlx_shm_manifest) + (sizeof(struct dlx_shm_manifest_entry) + 64) * n +
           sizeof(int64_t) * n_dims;
}

/* Room for those of the tensors that go into this heap. */
static int make_room_in(struct dlx_publisher *p, struct piece *piece,
                        const struct dlx_tensor_spec *specs, uint32_t n)
{
    struct dlx_heap *heap = piece->heap;
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
    bool is_there = heap == p->heap && all_there;
    return is_there ? 0 : make_room(p, piece, total);
}

static int make_pieces(struct dlx_publisher *p, const struct dlx_tensor_spec *specs, uint32_t n,
                       struct pieces *ret)
{
    for (uint32_t i = 0; i < n; i++) {
        struct dlx_tensor_spec spec;
        struct piece piece = {0};
        int r = dlx__tensor_spec(&spec, spec_at(specs, i));
        if (r == 0)
            r = dlx__publisher_heap(p, spec.device, &piece.heap);
        if (r < 0)
            return dlx__fail_prefix(r, "topic %s: tensor %u", p->topic, i);
        if (piece_of(ret, piece.heap))
            continue;
        r = make_room_in(p, &piece, specs, n);
        if (r < 0)
            return r;
        if (ret->n < PIECES_MAX)
            ret->all[ret->n++] = piece;
        else
            dlx__heap_give(piece.heap, piece.whole);
    }
    return 0;
}

static int alloc_set(struct dlx_publisher *p, const struct dlx_tensor_spec *specs, uint32_t n,
                     DLManagedTensorVersioned **ret)
{
    struct pieces pieces = {0};
    if (n == 0 || n > DLX_SHM_TENSORS_MAX)
        return dlx__fail(DLX_E_INVALID, "topic %s: a set of %u tensors, possible are 1 to %u",
                         p->topic, n, DLX_SHM_TENSORS_MAX);
    int r = make_pieces(p, specs, n, &pieces);
    if (r == 0)
        r = alloc_parts(p, specs, n, &pieces, ret);
    for (uint32_t i = 0; i < pieces.n; i++) /* after a failure, or without bytes */
        dlx__heap_give(pieces.all[i].heap, pieces.all[i].whole);
    return r;
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

/* ---- publish ------------------------------------------------------------------------------ */

/* A tensor that is as dlx_alloc() gave it: nothing is to be made. */
static inline bool is_in_own_block(const DLManagedTensorVersioned *tensor,
                                   const struct dlx_block *own)
{
    return own && atomic_load_explicit(&own->at_caller, memory_order_relaxed) && own->is_plain &&
           own->arena->state != DLX_ARENA_FROZEN && tensor->version.major == DLPACK_MAJOR_VERSION &&
           dlx__block_is_unchanged(own);
}

/* A tensor on its way into the ring. */
struct made {
    struct dlx_parcel parcel;
    uint64_t words[DLX_SHM_ENTRY_WORDS];
};

/* The words of a record, or a manifest for it. */
static int pack(struct dlx_publisher *p, const DLTensor *t, const struct dlx_shm_record *record,
                struct made *made)
{
    struct dlx_block *manifest;
    struct dlx_manifest_item item = {.record = *record, .shape = t->shape, .strides = t->strides};
    made->parcel.words = made->words;
    if ((record->flags & DLX_SHM_RECORD_ROW_MAJOR) &&
        dlx__entry_pack_tensor(made->words, record->arena, record->offset, t->dtype,
                               record->flags & DLX_SHM_RECORD_PADDED, t->ndim, t->shape))
        return 0;
    int r = dlx__publish_manifest(p, &item, 1, NULL, made->parcel.blocks, &manifest);
    if (r < 0)
        return r;
    made->parcel.blocks->next = manifest;
    dlx__entry_pack_manifest(made->words, dlx__block_arena_id(manifest), manifest->offset,
                             manifest->payload_size, 1);
    return 0;
}

/* Whatever the tensor is. On failure nothing was made. */
static int make_tensor(struct dlx_publisher *p, const DLTensor *t, struct dlx_block *own,
                       bool padded, const struct dlx_publish_args *args, struct made *made)
{
    struct dlx_shm_record record;
    made->parcel = (struct dlx_parcel){.blocks = own};
    int r = dlx__publish_place(t, own, padded, &record);
    if (r < 0)
        return r;
    made->parcel.bytes = record.size;
    if (r > 0) {
        if (args->strict)
            return DLX_E_WOULD_COPY; /* the caller knows more to say about it */
        r = dlx__publisher_block(p, record.size, &made->parcel.blocks);
        if (r < 0)
            return r;
        r = dlx__publish_copy(made->parcel.blocks, 0, t, &record);
        made->parcel.copied_bytes = record.size;
        made->parcel.n_copied = 1;
        made->parcel.n_copied_views = dlx__heap_has(p->heap, t->data);
    } else if (dlx__publish_shares(own, args)) {
        r = dlx__block_share(own, &made->parcel.blocks);
        if (r < 0)
            return r;
    }
    if (r == 0) {
        made->parcel.blocks->next = NULL;
        r = pack(p, t, &record, made);
    }
    if (r < 0 && made->parcel.blocks != own)
        dlx__heap_give(p->heap, made->parcel.blocks);
    return r;
}

static inline __attribute__((always_inline)) void
put_ready(struct dlx_publisher *p, struct dlx_block *own, uint64_t monotonic_ns)
{
    own->next = NULL; /* a set that was not published may have left something there */
    dlx__writer_put(&p->core, own->words, monotonic_ns, own);
    p->stats.published_bytes += own->payload_size;
    dlx__block_published(own);
    DLX_PROBE_PUBLISH(p->id, dlx__writer_head(&p->core), own->payload_size, monotonic_ns);
}

/* Tensors on their way, with what is the same for all of them. */
struct batch {
    const struct dlx_publish_args *args;
    struct dlx_publish_report *report; /* the caller's, or NULL */
    struct dlx_wait wait;
    uint64_t now;
    uint64_t copied_bytes;
    uint32_t n_copied;
    uint32_t n_copied_views;
};

static void begin_batch(struct dlx_publisher *p, struct batch *batch,
                        const struct dlx_publish_args *args, struct dlx_publish_report *report)
{
    uint64_t now = dlx__clock_now(&p->clock);
    *batch = (struct batch){.args = args,
                            .report = report,
                            .wait = dlx__wait_of(args->timeout_ns),
                            .now = args->monotonic_ns ? args->monotonic_ns : now};
}

static void announce_rest(struct dlx_publisher *p)
{
    if (!dlx__writer_has_announced(&p->core))
        dlx__publish_announce(p);
}

/* Put one tensor of the batch, of whatever kind. Returns 1: the tensor was copied, and stays the
 * caller's to delete. */
static int put_any(struct dlx_publisher *p, struct batch *batch, const DLTensor *t,
                   struct dlx_block *own, bool padded)
{
    struct made made;
    int r;
    for (;;) {
        if (!dlx__publish_has_room(p)) {
            announce_rest(p);
            r = dlx__publish_room_slowly(p, &batch->wait);
        } else {
            r = 0;
        }
        if (r == 0)
            r = make_tensor(p, t, own, padded, batch->args, &made);
        if (dlx_likely(r == 0))
            break;
        announce_rest(p);
        r = dlx__publisher_go_on(p, r, &batch->wait);
        if (r != DLX__AGAIN)
            return r;
    }
    dlx__publish_put(p, &made.parcel, batch->now);
    batch->copied_bytes += made.parcel.copied_bytes;
    batch->n_copied += made.parcel.n_copied;
    batch->n_copied_views += made.parcel.n_copied_views;
    if (made.parcel.n_copied > 0)
        return 1;
    dlx__publish_handed_over(own, batch->args);
    return 0;
}

static int put_versioned(struct dlx_publisher *p, struct batch *batch,
                         DLManagedTensorVersioned *tensor)
{
    if (dlx_unlikely(!tensor))
        return dlx__fail(DLX_E_INVALID, "topic %s: tensor is NULL", p->topic);
    struct dlx_block *own = dlx__block_of(p->heap, tensor);
    if (dlx_likely(!batch->args->share && is_in_own_block(tensor, own) &&
                   dlx__publish_has_room(p))) {
        put_ready(p, own, batch->now);
        return 0;
    }
    if (tensor->version.major != DLPACK_MAJOR_VERSION)
        return dlx__fail(DLX_E_VERSION, "topic %s: tensor of DLPack %u.%u, this library knows %d.x",
                         p->topic, tensor->version.major, tensor->version.minor,
                         DLPACK_MAJOR_VERSION);
    if (dlx__publish_is_again(own))
        return dlx__publish_fail_again(p, "the tensor");
    if (dlx_unlikely(dlx__tensor_is_on_gpu(&tensor->dl_tensor))) {
        announce_rest(p);
        return dlx__publish_on_gpu(p, tensor, batch->args, &batch->copied_bytes, &batch->n_copied);
    }
    int r = put_any(p, batch, &tensor->dl_tensor, own,
                    tensor->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED);
    if (r == DLX_E_WOULD_COPY)
        return dlx__publish_fail_would_copy(p, "the tensor", own, dlx__message_of(tensor));
    if (r == 1 && !batch->args->share && tensor->deleter) {
        announce_rest(p);
        tensor->deleter(tensor); /* the original has done its work */
    }
    return DLX_MIN(r, 0);
}

/* Everything that was put is announced; it may move to another daemon here. */
static void end_batch(struct dlx_publisher *p, const struct batch *batch, uint32_t n)
{
    announce_rest(p);
    note_next(p);
    dlx__publish_report(p, batch->copied_bytes, batch->n_copied, batch->n_copied_views,
                        batch->report);
    dlx__publisher_look_after(p, batch->args->monotonic_ns ? dlx__clock_now(&p->clock) : batch->now,
                              n);
}

static int __attribute__((noinline))
publish_batch(struct dlx_publisher *p, DLManagedTensorVersioned *const *tensors, uint32_t n,
              const struct dlx_publish_args *user_args, struct dlx_publish_report *ret,
              uint32_t *ret_n)
{
    struct dlx_publish_args args = {0};
    struct batch batch;
    int r = dlx__publish_args(&args, user_args, ret);
    if (r < 0)
        return r;
    begin_batch(p, &batch, &args, ret);
    for (*ret_n = 0; *ret_n < n; ++*ret_n) {
        r = put_versioned(p, &batch, tensors[*ret_n]);
        if (dlx_unlikely(r < 0))
            break;
    }
    if (*ret_n > 0)
        end_batch(p, &batch, *ret_n);
    return r;
}

/* These arguments make no difference to a tensor that is ready, while there is room. */
static inline bool are_plain(const struct dlx_publish_args *args)
{
    return !args || (args->size == sizeof *args && args->monotonic_ns == 0 && !args->share);
}

int dlx_publish(struct dlx_publisher *p, DLManagedTensorVersioned *tensor,
                const struct dlx_publish_args *args, struct dlx_publish_report *ret)
{
    uint32_t n;
    int r = dlx__publisher_begin(tensor ? p : NULL, "dlx_publish");
    if (dlx_unlikely(r < 0))
        return DLX_NAME_NULL(r, "dlx_publish", {"tensor", tensor});
    struct dlx_block *own = dlx__block_of(p->heap, tensor);
    if (dlx_likely(!ret && are_plain(args) && is_in_own_block(tensor, own) &&
                   dlx__publish_has_room(p))) {
        uint64_t now = dlx__clock_now(&p->clock);
        put_ready(p, own, now);
        dlx__publish_announce(p);
        note_next(p);
        dlx__publisher_look_after(p, now, 1); /* last: it may move */
    } else {
        r = publish_batch(p, &tensor, 1, args, ret, &n);
    }
    dlx__publisher_leave(p);
    return r;
}

int dlx_publish_n(struct dlx_publisher *p, DLManagedTensorVersioned *const *tensors, uint32_t n,
                  const struct dlx_publish_args *args, struct dlx_publish_report *ret,
                  uint32_t *ret_n)
{
    uint32_t done = 0;
    int r = dlx__publisher_begin(tensors ? p : NULL, "dlx_publish_n");
    if (r == 0) {
        r = publish_batch(p, tensors, n, args, ret, &done);
        dlx__publisher_leave(p);
    } else {
        r = DLX_NAME_NULL(r, "dlx_publish_n", {"tensors", tensors});
    }
    if (ret_n)
        *ret_n = done;
    return r;
}

int dlx_publish_legacy(struct dlx_publisher *p, DLManagedTensor *tensor,
                       const struct dlx_publish_args *user_args, struct dlx_publish_report *ret)
{
    struct dlx_publish_args args = {0};
    struct batch batch;
    int r = dlx__publisher_begin(tensor ? p : NULL, "dlx_publish_legacy");
    if (r < 0)
        return DLX_NAME_NULL(r, "dlx_publish_legacy", {"tensor", tensor});
    r = dlx__publish_args(&args, user_args, ret);
    if (r == 0) {
        begin_batch(p, &batch, &args, ret);
        r = put_any(p, &batch, &tensor->dl_tensor, NULL, false);
        if (r == DLX_E_WOULD_COPY)
            dlx__publish_fail_would_copy(p, "the tensor", NULL, dlx__message_of_legacy(tensor));
        if (r >= 0)
            end_batch(p, &batch, 1);
        if (r == 1 && !args.share && tensor->deleter)
            tensor->deleter(tensor);
    }
    dlx__publisher_leave(p);
    return DLX_MIN(r, 0);
}

int dlx_publish_set(struct dlx_publisher *p, const struct dlx_item *items, uint32_t n_items,
                    const struct dlx_bytes *meta, const struct dlx_publish_args *user_args,
                    struct dlx_publish_report *ret)
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
    else
        r = dlx__publish_args(&args, user_args, ret);
    if (r == 0)
        r = dlx__publish_items(p, items, n_items, meta, &args, ret);
    dlx__publisher_leave(p);
    return r;
}
