/* SPDX-License-Identifier: Apache-2.0 */

/* dlx_alloc(), dlx_publish() and dlx_publish_n(): the hot path of a publisher. */

#include "client/publish/publish.h"
#include "client/heap/debug.h"
#include "client/message/message.h"
#include "client/message/subscriber_link.h"
#include "client/publish/publisher_reconnect.h"
#include "client/base/device.h"
#include "ring/manifest.h"
#include "ring/tensor.h"
#include <inttypes.h>
#include <string.h>

/* ---- alloc --------------------------------------------------------------------------------- */

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
    do
        r = dlx__publisher_block_of(p, heap, size, &block);
    while (dlx_unlikely(r < 0) && dlx__publisher_has_resumed(p, &r, p->client->timeout_ns));
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

/* ---- what to publish ----------------------------------------------------------------------- */

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

/* A tensor that is as dlx_alloc() gave it: nothing is to be made. */
static inline bool is_in_own_block(const DLManagedTensorVersioned *tensor,
                                   const struct dlx_block *own)
{
    return own && atomic_load_explicit(&own->at_caller, memory_order_relaxed) && own->is_plain &&
           !dlx__block_is_frozen(own) && tensor->version.major == DLPACK_MAJOR_VERSION &&
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

/* ---- publish ------------------------------------------------------------------------------- */

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
}

void dlx__publish_show_counters(const struct dlx_publisher *p, struct dlx_shm_control *control)
{
    dlx_store64_relaxed(&control->published, dlx__writer_head(&p->core));
    dlx_store64_relaxed(&control->published_bytes, p->stats.published_bytes);
    dlx_store64_relaxed(&control->copied, p->stats.copied);
    dlx_store64_relaxed(&control->copied_bytes, p->stats.copied_bytes);
    dlx_store64_relaxed(&control->refused, p->stats.full);
}

void dlx__publish_report(const struct dlx_publisher *p, const struct dlx_publish_args *args,
                         uint64_t copied_bytes, uint32_t n_copied, uint32_t n_copied_views)
{
    if (!args->report)
        return;
    struct dlx_publish_report report = {.size = sizeof report,
                                        .seq = dlx__writer_head(&p->core),
                                        .copied_bytes = copied_bytes,
                                        .n_copied = n_copied,
                                        .n_copied_views = n_copied_views,
                                        .n_subscribers = dlx__publisher_link_n_reached(p)};
    (void)dlx__args_return(args->report, sizeof report, &report, sizeof report);
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

static inline void put_ready(struct dlx_publisher *p, struct dlx_block *own, uint64_t monotonic_ns)
{
    own->next = NULL; /* a set that was not published may have left something there */
    dlx__writer_put(&p->core, own->words, monotonic_ns, own);
    p->stats.published_bytes += own->payload_size;
    dlx__block_published(own);
}

/* Tensors on their way, with what is the same for all of them. */
struct batch {
    const struct dlx_publish_args *args;
    struct dlx_wait wait;
    uint64_t now;
    uint64_t copied_bytes;
    uint32_t n_copied;
    uint32_t n_copied_views;
};

static void begin_batch(struct dlx_publisher *p, struct batch *batch,
                        const struct dlx_publish_args *args)
{
    uint64_t now = dlx__clock_now(&p->clock);
    *batch = (struct batch){.args = args, .now = args->monotonic_ns ? args->monotonic_ns : now};
    batch->wait.deadline = args->timeout_ns == 0 ? 0 : dlx__deadline(args->timeout_ns);
}

static void announce_rest(struct dlx_publisher *p)
{
    if (!dlx__writer_has_announced(&p->core))
        dlx__publish_announce(p);
}

/* Put one of them, of whatever kind. Returns 1: it was copied, and stays the caller's to delete. */
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
        if (!dlx__publisher_has_resumed(p, &r, batch->args->timeout_ns))
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
    dlx__publish_report(p, batch->args, batch->copied_bytes, batch->n_copied,
                        batch->n_copied_views);
    dlx__publisher_look_after(p, batch->args->monotonic_ns ? dlx__clock_now(&p->clock) : batch->now,
                              n);
}

static int __attribute__((noinline))
publish_batch(struct dlx_publisher *p, DLManagedTensorVersioned *const *tensors, uint32_t n,
              const struct dlx_publish_args *user_args, uint32_t *ret_n)
{
    struct dlx_publish_args args = {0};
    struct batch batch;
    int r = user_args ? dlx__publish_args(&args, user_args) : 0;
    if (r < 0)
        return r;
    begin_batch(p, &batch, &args);
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
    return !args ||
           (args->size == sizeof *args && args->monotonic_ns == 0 && !args->share && !args->report);
}

int dlx_publish(struct dlx_publisher *p, DLManagedTensorVersioned *tensor,
                const struct dlx_publish_args *args)
{
    uint32_t n;
    int r = dlx__publisher_begin(tensor ? p : NULL, "dlx_publish");
    if (dlx_unlikely(r < 0))
        return DLX_NAME_NULL(r, "dlx_publish", {"tensor", tensor});
    struct dlx_block *own = dlx__block_of(p->heap, tensor);
    if (dlx_likely(are_plain(args) && is_in_own_block(tensor, own) && dlx__publish_has_room(p))) {
        uint64_t now = dlx__clock_now(&p->clock);
        put_ready(p, own, now);
        dlx__publish_announce(p);
        note_next(p);
        dlx__publisher_look_after(p, now, 1); /* last: it may move */
    } else {
        r = publish_batch(p, &tensor, 1, args, &n);
    }
    dlx__publisher_leave(p);
    return r;
}

int dlx_publish_n(struct dlx_publisher *p, DLManagedTensorVersioned *const *tensors, uint32_t n,
                  const struct dlx_publish_args *args, uint32_t *ret_n)
{
    uint32_t done = 0;
    int r = dlx__publisher_begin(tensors ? p : NULL, "dlx_publish_n");
    if (r == 0) {
        r = publish_batch(p, tensors, n, args, &done);
        dlx__publisher_leave(p);
    } else {
        r = DLX_NAME_NULL(r, "dlx_publish_n", {"tensors", tensors});
    }
    if (ret_n)
        *ret_n = done;
    return r;
}

int dlx_publish_legacy(struct dlx_publisher *p, DLManagedTensor *tensor,
                       const struct dlx_publish_args *user_args)
{
    struct dlx_publish_args args = {0};
    struct batch batch;
    int r = dlx__publisher_begin(tensor ? p : NULL, "dlx_publish_legacy");
    if (r < 0)
        return DLX_NAME_NULL(r, "dlx_publish_legacy", {"tensor", tensor});
    r = user_args ? dlx__publish_args(&args, user_args) : 0;
    if (r == 0) {
        begin_batch(p, &batch, &args);
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
