/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tensors on GPUs that a publisher shares. Their memory is not copied: a message says in its
 * manifest how to open it. A parcel is what a message needs until no subscriber holds it: exports
 * and tensors. A block without memory among the blocks of the message stands for the parcel, so the
 * parcel goes when these do:
 *
 *     NEW --> PUBLISHED --> its tensors' deleters are called, and it is freed
 *      |          |  |                            ^
 *      |          |  +--> UNWRITTEN --------------+   nobody needs it, and the GPU still writes it
 *      |          |
 *      |          +--> LEFT    its publisher ended, and a subscriber still holds the message, or
 *      |                       the driver could not wait for what writes it: to free it would be
 *      |                       undefined, so it stays until the process ends
 *      +--> freed; the tensors stay the caller's
 *
 * Memory of dlx_alloc() is no tensor to be deleted: its blocks come back to their heap. A parcel
 * of nothing else outlives the publisher, in the keeper, and is never LEFT. Others are mortal.
 *
 * Memory of GPUs for tensors of dlx_alloc(): a heap (client/heap/heap.h) for each device, whose
 * arenas are exports (gpu/exports.h) of memory that the keeper made (gpu/lib/arena.h). So what was
 * published can be opened as long as the daemon keeps the message, whatever becomes of the
 * publisher. Other memory with descriptors is served by the publisher (gpu/lib/serve.h).
 *
 * When a subscriber dies, work that it has queued may still run for a while. All arenas that are
 * there then are used for no new tensor, and freed with the last of theirs.
 *
 * All of it is the publisher's thread's.
 */

#include "gpu/lib/share.h"
#include "client/base/device.h"
#include "client/message/subscriber_link.h"
#include "client/publish/make.h"
#include "client/publish/publisher.h"
#include "common/amount.h"
#include "client/control/call.h"
#include "gpu/gpu.h"
#include "gpu/lib/arena.h"
#include "gpu/lib/idle.h"
#include "gpu/lib/serve.h"
#include "gpu/lib/words.h"
#include "ring/manifest.h"
#include "ring/tensor.h"
#include <poll.h>
#include <string.h>
#include <sys/random.h>

_Static_assert(DLX_SHM_ALLOCATION_SIZE == DLX_GPU_HEADER_SIZE, "a description without descriptors");

/* How long the end of a publisher waits for those who hold tensors. */
#define END_NS        INT64_C(2000000000)
#define PAUSE_MOST_MS 16
/* How soon the daemon is told again what it could not be told. */
#define ASK_AGAIN_NS UINT64_C(100000000)
/* How long an allocation waits for those that were told to close what was freed. */
#define CLOSE_NS UINT64_C(100000000)

/* Streams with these numbers are special ones, of which each device has its own. */
#define SPECIAL_STREAMS 2U

#define DEVICES_MAX 16U

/* Kernels want what cudaMalloc() gives. */
#define ALIGN 256U
/* The smallest piece that drivers allocate. */
#define ARENA_UNIT (UINT64_C(2) << 20)

struct dlx_gpu_heap {
    struct dlx_gpu_heap *next;
    struct dlx_gpu_share *share;
    struct dlx_heap *heap;
    struct settling *settling; /* NULL: nothing is */
    uint64_t next_trim;        /* message number */
};

struct dlx_gpu_parcel {
    struct dlx_block_guest guest; /* the first member: blocks refer to it */
    struct dlx_gpu_share *share;
    struct dlx_gpu_parcel *next; /* of those that are UNWRITTEN, or LEFT */
    uint32_t n_refs;             /* the maker, and a block for each control block it is in */
    uint32_t n_exports;
    uint32_t n_tensors;
    struct dlx_gpu_job job;
    struct dlx_gpu_event events[DEVICES_MAX];
    void *stream;       /* of the event that was recorded last */
    uint32_t n_devices; /* whose work was noted */
    DLDevice devices[DEVICES_MAX];
    uint32_t n_own;
    bool is_mortal;
    struct dlx_gpu_export **exports;
    struct dlx_block **own;   /* of tensors of dlx_alloc() in it */
    struct dlx_block *blocks; /* to be given back: these, or references to them; a list */
    DLManagedTensorVersioned *tensors[]; /* to be deleted */
};

/* ---- a publisher --------------------------------------------------------------------------- */

static int share_begin(struct dlx_publisher *p)
{
    if (p->gpu)
        return 0;
    struct dlx_gpu_share *share = calloc(1, sizeof *share);
    if (!share)
        return dlx__fail(DLX_E_NO_MEMORY, "state of a publisher's GPU memory");
    if (getrandom(&share->number, sizeof share->number, 0) != (ssize_t)sizeof share->number) {
        free(share);
        return dlx__fail_errno("getrandom");
    }
    struct dlx_gpu_publisher publisher = {share->number, p->id};
    int r = dlx__gpu_exports_new(&share->exports, publisher);
    if (r < 0) {
        free(share);
        return r;
    }
    share->p = p;
    p->gpu = share;
    return 0;
}

/* ---- what the daemon is told and asked ------------------------------------------------------- */

static int serve(struct dlx_gpu_share *share, uint64_t id, int64_t timeout_ns)
{
    int sock;
    int r = dlx__call_gpu_serve(share->p->client, id, timeout_ns, &sock);
    if (r == 0)
        r = dlx__gpu_serve(share->exports, share->words, sock);
    if (r == 0)
        share->serving = DLX_GPU_SERVES;
    return r;
}

static int tell_freed(const struct dlx_gpu_share *share, uint64_t publisher)
{
    uint64_t id;
    int r = 0;
    while (r == 0 && (id = dlx__gpu_exports_kept(share->exports)) != 0) {
        r = dlx__call_gpu_free(share->p->client, publisher, id);
        if (r == 0)
            dlx__gpu_exports_told(share->exports, id);
    }
    return r;
}

/* The result of the call, and its message, are not concerned: what cannot be said now is said
 * later. */
static void tell_daemon(struct dlx_gpu_share *share, uint64_t publisher)
{
    char message[DLX_ERROR_TEXT_SIZE];
    bool has_failed = dlx__error_is_set;
    bool must_serve = share->serving == DLX_GPU_MUST_SERVE;
    if ((!must_serve && dlx__gpu_exports_kept(share->exports) == 0) ||
        dlx__now_ns() < share->next_ask_ns)
        return;
    memcpy(message, dlx__error_message(), sizeof message);
    int r = tell_freed(share, publisher);
    if (r == 0 && must_serve)
        r = serve(share, publisher, DLX_RECONNECT_PATIENCE_NS);
    share->next_ask_ns = r < 0 ? dlx__now_ns() + ASK_AGAIN_NS : 0;
    dlx__error_clear();
    if (has_failed)
        (void)dlx__fail(DLX_E_SYSTEM, "%s", message);
}

static int share_also(struct dlx_publisher *p, uint64_t id)
{
    struct dlx_gpu_share *share = p->gpu;
    int r = dlx__gpu_exports_also(share->exports, id);
    if (r < 0)
        return r;
    if (share->serving == DLX_GPU_SERVES || share->words ||
        dlx__gpu_exports_have_descriptors(share->exports))
        share->serving = DLX_GPU_MUST_SERVE;
    share->next_ask_ns = 0;
    tell_daemon(share, id);
    return 0;
}

/* What a lost keeper had is served by its publisher. */
static void note_keeper(struct dlx_gpu_share *share, uint64_t keeper)
{
    if (share->keeper != 0 && share->keeper != keeper && share->serving == DLX_GPU_SERVES_NOT)
        share->serving = DLX_GPU_MUST_SERVE;
    share->keeper = keeper;
}

/* Memory that the keeper has not. */
static int serve_export(struct dlx_gpu_share *share, const struct dlx_gpu_export *export)
{
    bool begins =
        dlx__gpu_export_handle(export)->n_chunks > 0 && share->serving == DLX_GPU_SERVES_NOT;
    return begins ? serve(share, share->p->id, share->p->client->timeout_ns) : 0;
}

/* Subscribers close what was freed, and the keeper does. */
static void tell_gone(struct dlx_gpu_share *share)
{
    uint64_t id;
    while (dlx__gpu_exports_next_gone(share->exports, &id)) {
        dlx__writer_note_freed(&share->p->core, id);
        share->told_ns = dlx__now_ns();
    }
    tell_daemon(share, share->p->id);
}

static bool is_same_device(DLDevice a, DLDevice b)
{
    return a.device_type == b.device_type && a.device_id == b.device_id;
}

/* ---- what work of this process may use ------------------------------------------------------- */

static struct dlx_gpu_work work_now(DLDevice device)
{
    return dlx__gpu_work_now((int32_t)device.device_type, device.device_id);
}

/* An arena that is freed when the work that may use its tensors has ended. */
struct leaving_arena {
    struct dlx_gpu_idle idle; /* the first member */
    struct dlx_gpu_export *export;
};

static void free_leaving_arena(struct dlx_gpu_idle *idle, int result)
{
    struct leaving_arena *leaving = (struct leaving_arena *)(void *)idle;
    (void)result;
    dlx__gpu_export_unref(leaving->export);
    free(leaving);
}

/* A thread waits for the GPU, and the caller for the thread as long as its call may: publishing
 * does not wait. Where there is no thread, and the driver does not wait here, the arena stays until
 * the process ends. */
static void free_gpu_arena(const struct dlx_heap_kind *kind, const struct dlx_arena *arena,
                           bool is_end)
{
    const struct dlx_gpu_work work = work_now(kind->device);
    bool has_ended = is_end && dlx__gpu_has_ended(dlx__gpu_work_wait(&work));
    struct leaving_arena *leaving = has_ended ? NULL : calloc(1, sizeof *leaving);
    if (leaving) {
        leaving->export = arena->owner;
        if (dlx__gpu_when_idle(&leaving->idle, &work, free_leaving_arena)) {
            const struct dlx_gpu_heap *of = is_end ? NULL : kind->userdata;
            dlx__gpu_idle_settle(kind->device, of ? of->share->deadline : 0);
            dlx__error_clear();
            return;
        }
        free(leaving);
    }
    if (has_ended || dlx__gpu_has_ended(dlx__gpu_work_wait(&work)))
        dlx__gpu_export_unref(arena->owner);
    dlx__error_clear();
}

/* Deleted tensors of a heap, when a thread waits for the work that may use them. */
struct settling {
    struct dlx_gpu_idle idle; /* the first member */
    atomic_uint refs;         /* the heap's, and the thread's */
    atomic_bool is_over;
};

static struct settling *settling_unref(struct settling *settling)
{
    if (settling && atomic_fetch_sub_explicit(&settling->refs, 1, memory_order_acq_rel) == 1)
        free(settling);
    return NULL;
}

static void end_settling(struct dlx_gpu_idle *idle, int result)
{
    struct settling *settling = (struct settling *)(void *)idle;
    (void)result;
    atomic_store_explicit(&settling->is_over, true, memory_order_release);
    (void)settling_unref(settling);
}

static struct settling *begin_settling(DLDevice device)
{
    const struct dlx_gpu_work work = work_now(device);
    struct settling *settling = calloc(1, sizeof *settling);
    if (!settling)
        return NULL;
    atomic_init(&settling->refs, 2);
    if (dlx__gpu_when_idle(&settling->idle, &work, end_settling))
        return settling;
    free(settling);
    return NULL;
}

/* Tensors that were deleted lie in memory which is to be used again. The first call for them waits
 * for the work on the GPU, as long as it may; the next ones only look. */
static bool settle_deleted(const struct dlx_heap_kind *kind)
{
    struct dlx_gpu_heap *of = kind->userdata;
    if (!of->settling) {
        of->settling = begin_settling(kind->device);
        of->share->p->stats.gpu_waits++;
        dlx__gpu_idle_settle(kind->device, of->share->deadline);
        dlx__error_clear();
    }
    if (!of->settling || !atomic_load_explicit(&of->settling->is_over, memory_order_acquire))
        return false;
    of->settling = settling_unref(of->settling);
    return true;
}

/* ---- heaps --------------------------------------------------------------------------------- */

static struct dlx_gpu_heap *find(const struct dlx_publisher *p, DLDevice device)
{
    struct dlx_gpu_heap *of = p->gpu ? p->gpu->heaps : NULL;
    while (of && !is_same_device(dlx__heap_kind(of->heap)->device, device))
        of = of->next;
    return of;
}

static int heap_new(struct dlx_publisher *p, DLDevice device, struct dlx_heap **ret)
{
    struct dlx_heap_kind kind = {.device = device,
                                 .align = ALIGN,
                                 .least = ARENA_UNIT,
                                 .unit = ARENA_UNIT,
                                 .free_arena = free_gpu_arena,
                                 .settle = settle_deleted};
    struct dlx_gpu_uuid uuid;
    int r = dlx__gpu_uuid((int32_t)device.device_type, device.device_id, &uuid);
    if (r == 0)
        r = share_begin(p);
    if (r < 0)
        return r;
    struct dlx_gpu_heap *of = calloc(1, sizeof *of);
    if (!of)
        return dlx__fail(DLX_E_NO_MEMORY, "state of a publisher's memory");
    of->share = p->gpu;
    kind.userdata = of;
    r = dlx__heap_new_of(&of->heap, p->generation, &kind);
    if (r < 0) {
        free(of);
        return r;
    }
    of->next = p->gpu->heaps;
    p->gpu->heaps = of;
    *ret = of->heap;
    return 0;
}

static int heap_of(struct dlx_publisher *p, DLDevice device, struct dlx_heap **ret)
{
    struct dlx_gpu_heap *of = find(p, device);
    if (!of)
        return heap_new(p, device, ret);
    *ret = of->heap;
    return 0;
}

static struct dlx_gpu_heap *close_heaps(struct dlx_gpu_heap *first)
{
    while (first) {
        struct dlx_gpu_heap *of = first;
        DLDevice device = dlx__heap_kind(of->heap)->device;
        first = of->next;
        dlx__heap_close(of->heap);
        dlx__gpu_idle_settle(device, dlx__deadline(END_NS)); /* of arenas that went before */
        (void)settling_unref(of->settling);
        free(of);
    }
    return NULL;
}

static uint64_t heap_bytes(const struct dlx_publisher *p)
{
    uint64_t bytes = 0;
    for (const struct dlx_gpu_heap *of = p->gpu->heaps; of; of = of->next)
        bytes += dlx__heap_bytes(of->heap);
    return bytes;
}

static void reader_died(struct dlx_publisher *p)
{
    for (struct dlx_gpu_heap *of = p->gpu->heaps; of; of = of->next) {
        dlx__heap_set_aside(of->heap, NULL);
        dlx__heap_freeze(of->heap);
    }
    tell_gone(p->gpu);
}

static void free_written(struct dlx_gpu_share *share);

/* ---- blocks -------------------------------------------------------------------------------- */

static int grow_heap(struct dlx_publisher *p, struct dlx_heap *heap, uint64_t size)
{
    DLDevice device = dlx__heap_kind(heap)->device;
    uint64_t bytes = dlx__heap_growth(heap, size);
    struct dlx_gpu_export *export;
    if (bytes == UINT64_MAX)
        return dlx__fail(DLX_E_NO_MEMORY, "a tensor or a set may have at most %s",
                         DLX_AMOUNT(DLX_SHM_ARENA_MAX));
    uint64_t window = (uint64_t)DLX_TRIM_EVERY * p->args.depth;
    for (uint32_t id;
         (id = dlx__heap_find_excess(heap, bytes, dlx__writer_head(&p->core), window));)
        dlx__heap_drop(heap, id);
    tell_gone(p->gpu); /* before the memory is wanted that subscribers have open */
    uint64_t keeper;
    int r = dlx__gpu_arena_new(p, p->gpu->exports, device, bytes, &export, &keeper);
    if (r < 0)
        return r;
    note_keeper(p->gpu, keeper);
    const struct dlx_gpu_handle *handle = dlx__gpu_export_handle(export);
    r = dlx__heap_add_of(heap, (uint32_t)handle->id, dlx__gpu_export_base(export), handle->size,
                         export);
    if (r < 0)
        dlx__gpu_export_unref(export);
    return r;
}

static int grow_heap_and_take(struct dlx_publisher *p, struct dlx_heap *heap, uint64_t size,
                              struct dlx_block **ret)
{
    int r = grow_heap(p, heap, size);
    if (r == 0)
        r = dlx__heap_take(heap, size, ret);
    if (r == DLX_E_FULL) { /* with an arena more it may have become a large block */
        bool before = dlx__heap_put_anywhere(heap, true);
        r = dlx__heap_take(heap, size, ret);
        (void)dlx__heap_put_anywhere(heap, before);
    }
    return r;
}

/* The GPU, or the quota, has no more. */
static bool is_short(int r)
{
    return r == DLX_E_NO_MEMORY || r == DLX_E_LIMIT;
}

/* There is no more. Free arenas that nothing is in. The keeper and subscribers close what was
 * freed a moment after they were told, so the memory is there a little later. */
static int free_and_grow(struct dlx_publisher *p, struct dlx_heap *heap, uint64_t size,
                         uint32_t n_done, struct dlx_block **ret)
{
    DLDevice device = dlx__heap_kind(heap)->device;
    for (uint32_t id; (id = dlx__heap_find_any_empty(heap));)
        dlx__heap_drop(heap, id);
    dlx__gpu_idle_settle(device, p->gpu->deadline);
    tell_gone(p->gpu);
    uint64_t until = p->gpu->told_ns + CLOSE_NS;
    if (dlx__gpu_idle_n_done(device) == n_done && dlx__now_ns() >= until)
        return DLX_E_NO_MEMORY; /* nothing was freed lately */
    int r = grow_heap_and_take(p, heap, size, ret);
    until = DLX_MIN(until, p->gpu->deadline);
    p->stats.gpu_waits += is_short(r) && dlx__now_ns() < until;
    for (int pause_ms = 1; is_short(r) && dlx__now_ns() < until;
         pause_ms = DLX_MIN(2 * pause_ms, PAUSE_MOST_MS)) {
        (void)poll(NULL, 0, pause_ms);
        r = grow_heap_and_take(p, heap, size, ret);
    }
    return r;
}

/* Nobody needs some messages any more, but the GPU still writes them: wait until it has written
 * enough of them, as long as the call may. `r` is the result so far. */
static int take_written(struct dlx_publisher *p, struct dlx_heap *heap, uint64_t size,
                        struct dlx_block **ret, int r)
{
    struct dlx_gpu_share *share = p->gpu;
    bool waits = r == DLX_E_FULL && share->unwritten && dlx__now_ns() < share->deadline;
    p->stats.gpu_waits += waits;
    while (waits && r == DLX_E_FULL && share->unwritten &&
           dlx__gpu_order_settle(&share->order, &share->unwritten->job, share->deadline)) {
        free_written(share);
        r = dlx__heap_take(heap, size, ret);
    }
    return r;
}

/* No more memory of the GPU: the stream goes on with what it has, if that is enough. */
static int find_heap_room(struct dlx_publisher *p, struct dlx_heap *heap, uint64_t size,
                          struct dlx_block **ret)
{
    char why[DLX_ERROR_TEXT_SIZE];
    DLDevice device = dlx__heap_kind(heap)->device;
    uint32_t n_done = dlx__gpu_idle_n_done(device);
    int r = take_written(p, heap, size, ret, dlx__publisher_reclaim(p, heap, size, false, ret));
    if (r != DLX_E_FULL)
        return r;
    int grown = grow_heap_and_take(p, heap, size, ret);
    if (grown == 0)
        return 0;
    memcpy(why, dlx__error_message(), sizeof why);
    bool before = dlx__heap_put_anywhere(heap, true);
    r = take_written(p, heap, size, ret, dlx__publisher_reclaim(p, heap, size, true, ret));
    (void)dlx__heap_put_anywhere(heap, before);
    if (r != DLX_E_FULL)
        return r;
    if (is_short(grown) && free_and_grow(p, heap, size, n_done, ret) == 0)
        return 0;
    return dlx__fail(grown, "topic %s: no memory for %s on %s: %s%s", p->topic, DLX_AMOUNT(size),
                     DLX_DEVICE(device), why,
                     p->gpu->unwritten ? "; messages that nobody needs any more keep theirs until "
                                         "the GPU has written them: publish more slowly"
                                       : "");
}

/* Arenas that nothing is in go back: memory of GPUs is scarce. */
static void trim(struct dlx_publisher *p, struct dlx_heap *heap)
{
    struct dlx_gpu_heap *of = find(p, dlx__heap_kind(heap)->device);
    if (dlx__writer_head(&p->core) < of->next_trim)
        return;
    uint64_t size, bytes = dlx__heap_trim(heap, of->next_trim > 0);
    for (uint32_t id; (id = dlx__heap_find_empty(heap, bytes, &size));) {
        dlx__heap_drop(heap, id);
        bytes -= DLX_MIN(bytes, size);
    }
    of->next_trim = dlx__writer_head(&p->core) + (uint64_t)DLX_TRIM_EVERY * p->args.depth;
}

static int heap_block_until(struct dlx_publisher *p, struct dlx_heap *heap, uint64_t size,
                            uint64_t deadline, struct dlx_block **ret)
{
    p->gpu->deadline = deadline;
    free_written(p->gpu);
    trim(p, heap);
    int r = dlx__heap_take(heap, size, ret);
    if (r == DLX_E_FULL)
        r = find_heap_room(p, heap, size, ret);
    p->gpu->deadline = 0;
    tell_gone(p->gpu);
    return r;
}

/* Of dlx_alloc(), which waits for as long as a request may take. */
static int heap_block(struct dlx_publisher *p, struct dlx_heap *heap, uint64_t size,
                      struct dlx_block **ret)
{
    return heap_block_until(p, heap, size, dlx__deadline(p->client->timeout_ns), ret);
}

static struct dlx_block *block_of(const struct dlx_publisher *p,
                                  const DLManagedTensorVersioned *tensor)
{
    struct dlx_block *block = NULL;
    for (struct dlx_gpu_heap *of = p->gpu ? p->gpu->heaps : NULL; of && !block; of = of->next)
        block = dlx__block_of(of->heap, tensor);
    return block;
}

static struct dlx_gpu_export *export_of(const struct dlx_block *block)
{
    return block->arena->owner;
}

/* ---- its end --------------------------------------------------------------------------------- */

static void share_free(struct dlx_gpu_share *share)
{
    dlx__gpu_order_end(&share->order);
    share->heaps = close_heaps(share->heaps);
    dlx__gpu_serve_end(share->exports);
    share->words = dlx__gpu_words_end(share->words);
    dlx__gpu_exports_end(share->exports);
    free(share);
}

static void share_collect(struct dlx_publisher *p)
{
    free_written(p->gpu);
    while (p->gpu->n_parcels > 0 && dlx__writer_reclaim(&p->core, false) > 0)
        ;
    tell_gone(p->gpu);
}

/* Also who died unnoticed, since the daemon that would tell may be gone. */
static void collect_of_dead(struct dlx_publisher *p)
{
    dlx__writer_look_for_dead(&p->core);
    share_collect(p);
}

static void share_end(struct dlx_publisher *p)
{
    dlx__gpu_order_drain(&p->gpu->order);
    free_written(p->gpu);
    if (p->gpu->n_mortal == 0)
        return;
    uint64_t deadline = dlx__now_ns() + END_NS;
    dlx__writer_set_kept(&p->core, 0);
    collect_of_dead(p);
    for (int pause_ms = 1; p->gpu->n_mortal > 0 && dlx__now_ns() < deadline;
         pause_ms = DLX_MIN(2 * pause_ms, PAUSE_MOST_MS)) {
        (void)poll(NULL, 0, pause_ms);
        collect_of_dead(p);
    }
    /* What nobody has taken is lost: its memory may be used for something else from now on. */
    while (p->gpu->n_mortal > 0 && dlx__writer_reclaim(&p->core, true) > 0)
        ;
    p->gpu->is_over = true;
}

/* ---- parcels ------------------------------------------------------------------------------- */

/* What a block with `is_gpu` stands for. */
static struct dlx_gpu_parcel *parcel_of(const struct dlx_block *block)
{
    return (struct dlx_gpu_parcel *)(void *)block->guest;
}

/* The block stands for the parcel, too. */
static void hold_block(struct dlx_block_guest *guest, struct dlx_block *block)
{
    struct dlx_gpu_parcel *parcel = (struct dlx_gpu_parcel *)(void *)guest;
    parcel->n_refs++;
    block->is_gpu = true;
    block->guest = guest;
}

/* Wait until nothing of its message will be written any more. */
static void settle_block(const struct dlx_block *block)
{
    struct dlx_gpu_parcel *parcel = parcel_of(block);
    struct dlx_gpu_share *share = parcel->share;
    share->p->stats.gpu_waits += !dlx__gpu_order_settle(&share->order, &parcel->job, 0);
    (void)dlx__gpu_order_settle(&share->order, &parcel->job, UINT64_MAX);
}

/* LEFT ones: referred to, so that it is plain where they are. */
static struct dlx_gpu_parcel *_Atomic left;

static void leave(struct dlx_gpu_parcel *parcel)
{
    parcel->next = atomic_load_explicit(&left, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&left, &parcel->next, parcel,
                                                  memory_order_release, memory_order_relaxed))
        ;
}

static void give_blocks(struct dlx_block *block)
{
    while (block) {
        struct dlx_block *next = block->next;
        dlx__heap_give(block->heap, block);
        block = next;
    }
}

/* What writes it has ended. */
static void parcel_free(struct dlx_gpu_parcel *parcel)
{
    struct dlx_gpu_share *share = parcel->share;
    for (uint32_t i = 0; i < parcel->job.n_events; i++) /* of one that was not published */
        dlx__gpu_event_end(&parcel->events[i]);
    share->n_parcels--;
    share->n_mortal -= parcel->is_mortal;
    bool may_be_written = !dlx__gpu_has_ended(parcel->job.result);
    if ((share->is_over && parcel->is_mortal) || may_be_written) {
        leave(parcel);
        return;
    }
    give_blocks(parcel->blocks);
    for (uint32_t i = 0; i < parcel->n_exports; i++)
        dlx__gpu_export_unref(parcel->exports[i]);
    tell_gone(share);
    for (uint32_t i = 0; i < parcel->n_tensors; i++)
        if (parcel->tensors[i]->deleter)
            parcel->tensors[i]->deleter(parcel->tensors[i]);
    free(parcel->exports);
    free(parcel->own);
    free(parcel);
}

/* Publishing does not wait for what the GPU still writes: it is freed by a later call. */
static void parcel_unref(struct dlx_gpu_parcel *parcel)
{
    if (!parcel || --parcel->n_refs > 0)
        return;
    struct dlx_gpu_share *share = parcel->share;
    dlx__gpu_order_forget(&share->order, &parcel->job);
    if (dlx__gpu_order_settle(&share->order, &parcel->job, 0)) {
        parcel_free(parcel);
        return;
    }
    if (share->unwritten)
        share->last_unwritten->next = parcel;
    else
        share->unwritten = parcel;
    share->last_unwritten = parcel;
}

static void free_written(struct dlx_gpu_share *share)
{
    struct dlx_gpu_parcel *parcel;
    while ((parcel = share->unwritten) && dlx__gpu_order_settle(&share->order, &parcel->job, 0)) {
        share->unwritten = parcel->next;
        parcel_free(parcel);
    }
}

/* The block that stood for a parcel came back. */
static void drop_block(struct dlx_block *block)
{
    struct dlx_gpu_parcel *parcel = parcel_of(block);
    block->is_gpu = false;
    block->guest = NULL;
    parcel_unref(parcel);
}

static int parcel_new(struct dlx_publisher *p, uint32_t n, struct dlx_gpu_parcel **ret)
{
    int r = share_begin(p);
    if (r < 0)
        return r;
    struct dlx_gpu_parcel *parcel = calloc(1, sizeof *parcel + n * sizeof parcel->tensors[0]);
    struct dlx_gpu_export **exports = calloc(n, sizeof(struct dlx_gpu_export *));
    struct dlx_block **own = calloc(n, sizeof(struct dlx_block *));
    if (!parcel || !exports || !own) {
        free(parcel);
        free(exports);
        free(own);
        return dlx__fail(DLX_E_NO_MEMORY, "table of %u tensors", n);
    }
    parcel->guest = (struct dlx_block_guest){
        .came_back = drop_block, .settle = settle_block, .again = hold_block};
    parcel->share = p->gpu;
    parcel->share->n_parcels++;
    parcel->n_refs = 1;
    parcel->job.events = parcel->events;
    parcel->exports = exports;
    parcel->own = own;
    *ret = parcel;
    return 0;
}

static void parcel_adopt(struct dlx_publisher *p, struct dlx_gpu_parcel *parcel,
                         DLManagedTensorVersioned *tensor, const struct dlx_publish_args *args)
{
    struct dlx_block *own = block_of(p, tensor);
    if (!own) {
        if (!args->share)
            parcel->tensors[parcel->n_tensors++] = tensor;
        return;
    }
    if (!dlx__publish_shares(own, args)) {
        own->next = parcel->blocks;
        parcel->blocks = own;
    }
    dlx__publish_handed_over(own, args);
}

static int parcel_hold(struct dlx_publisher *p, struct dlx_gpu_parcel *parcel,
                       const struct dlx_publish_args *args, struct dlx_block **ret)
{
    for (uint32_t i = 0; i < parcel->n_own; i++) {
        struct dlx_block *ref;
        if (!dlx__publish_shares(parcel->own[i], args))
            continue;
        int r = dlx__block_share(parcel->own[i], &ref);
        if (r < 0)
            return r;
        ref->next = parcel->blocks;
        parcel->blocks = ref;
    }
    int r = dlx__heap_take(p->heap, 0, ret);
    if (r < 0)
        return r;
    hold_block(&parcel->guest, *ret);
    return 0;
}

/* ---- tensors ------------------------------------------------------------------------------- */

/* All but where it lies. */
static int make_record(const DLTensor *t, bool padded, struct dlx_shm_record *ret)
{
    uint64_t size;
    int r = dlx__tensor_size(t->dtype, padded, t->ndim, t->shape, &size);
    bool follow = r == 0 && dlx__tensor_strides_follow(t->ndim, t->shape, t->strides);
    if (r == 0 && !follow)
        r = dlx__tensor_extent(t->dtype, padded, t->ndim, t->shape, t->strides, &size);
    if (r < 0)
        return r;
    *ret = (struct dlx_shm_record){
        .dtype_code = t->dtype.code,
        .dtype_bits = t->dtype.bits,
        .dtype_lanes = t->dtype.lanes,
        .device_type = (int32_t)t->device.device_type,
        .ndim = (uint32_t)t->ndim,
        .flags = (padded ? DLX_SHM_RECORD_PADDED : 0U) | (follow ? DLX_SHM_RECORD_ROW_MAJOR : 0U),
        .size = size,
    };
    return 0;
}

/* Is the work of this device on the stream among what the message waits for? */
static bool is_noted(const struct dlx_gpu_parcel *parcel, DLDevice device, const void *stream)
{
    bool is_special = (uintptr_t)stream <= SPECIAL_STREAMS;
    for (uint32_t i = 0; i < parcel->n_devices; i++)
        if (!is_special || (parcel->devices[i].device_type == device.device_type &&
                            parcel->devices[i].device_id == device.device_id))
            return true;
    return false;
}

/* Its streams write words from now on, if that is wanted. */
static void begin_words(struct dlx_gpu_share *share, DLDevice device)
{
    if (share->words || !dlx__gpu_words_are_wanted())
        return;
    share->words = dlx__gpu_words_new(device);
    if (!share->words)
        return;
    share->serving = DLX_GPU_MUST_SERVE; /* these, too, if it serves already */
    tell_daemon(share, share->p->id);
}

/* One event stands for all its work. */
static uint32_t write_word(struct dlx_gpu_parcel *parcel)
{
    struct dlx_gpu_words *words = parcel->share->words;
    return words && parcel->job.n_events == 1
               ? dlx__gpu_words_write(words, &parcel->events[0], parcel->stream, &parcel->job.busy)
               : 0;
}

/* Once a message, or once a device where the stream stands for one of each device. In the debug
 * mode nothing can be written to a manifest that is out. */
static int note_work(struct dlx_publisher *p, struct dlx_gpu_parcel *parcel, DLDevice device,
                     void *stream)
{
    struct dlx_gpu_event event;
    bool waited;
    if (is_noted(parcel, device, stream))
        return 0;
    int r = dlx__gpu_event_record((int32_t)device.device_type, device.device_id, stream, &event,
                                  &waited);
    if (r == 1 && (p->is_guarded || parcel->n_devices == DEVICES_MAX)) {
        r = dlx__gpu_event_wait(&event); /* after an error nothing is published */
        dlx__gpu_event_end(&event);
        waited = true;
    }
    if (r < 0)
        return r;
    p->stats.gpu_waits += waited;
    if (r == 1)
        parcel->events[parcel->job.n_events++] = event;
    if (r == 1) {
        parcel->stream = stream;
        begin_words(p->gpu, device);
    }
    if (parcel->n_devices < DEVICES_MAX)
        parcel->devices[parcel->n_devices++] = device;
    return 0;
}

/* One of its exports, as a number from 1 on. One use of each is enough. */
static uint32_t add_export(struct dlx_gpu_parcel *parcel, struct dlx_gpu_export *export)
{
    uint32_t i = 0;
    while (i < parcel->n_exports && parcel->exports[i] != export)
        i++;
    if (i < parcel->n_exports)
        dlx__gpu_export_unref(export);
    else
        parcel->exports[parcel->n_exports++] = export;
    return i + 1;
}

static void set_mortal(struct dlx_gpu_parcel *parcel)
{
    parcel->share->n_mortal += !parcel->is_mortal;
    parcel->is_mortal = true;
}

/* Memory of somebody else. */
static int share_memory(struct dlx_publisher *p, struct dlx_gpu_parcel *parcel, const DLTensor *t,
                        struct dlx_manifest_item *item)
{
    struct dlx_gpu_export *export;
    const void *data = (const uint8_t *)t->data + t->byte_offset;
    int r =
        dlx__gpu_exports_share(p->gpu->exports, (int32_t)t->device.device_type, t->device.device_id,
                               data, item->record.size, &export, &item->record.offset);
    if (r < 0)
        return r;
    r = serve_export(p->gpu, export);
    if (r < 0) {
        dlx__gpu_export_unref(export);
        return r;
    }
    item->allocation = add_export(parcel, export);
    return 0;
}

/* The user may have changed the shape, the strides or the start of what dlx_alloc() gave. */
static int share_block(struct dlx_gpu_parcel *parcel, const struct dlx_block *own,
                       const DLTensor *t, struct dlx_manifest_item *item)
{
    uintptr_t first = (uintptr_t)dlx__block_data(own), data = (uintptr_t)t->data;
    uint64_t size = item->record.size;
    if (__builtin_add_overflow(data, t->byte_offset, &data) || data < first || size > own->size ||
        data - first > own->size - size)
        return dlx__fail(DLX_E_DEVICE, "it was moved out of what dlx_alloc() gave");
    item->record.offset = own->offset + (data - first);
    item->allocation = add_export(parcel, dlx__gpu_export_ref(export_of(own)));
    return 0;
}

/* Publish a tensor where it is. */
static int share_tensor(struct dlx_publisher *p, struct dlx_gpu_parcel *parcel,
                        const DLManagedTensorVersioned *tensor, struct dlx_block *own, void *stream,
                        struct dlx_manifest_item *item)
{
    const DLTensor *t = &tensor->dl_tensor;
    int r = 0;
    if (dlx__message_of(tensor))
        return dlx__fail(DLX_E_DEVICE, "a GPU tensor that was received cannot be published, but a "
                                       "copy of it (`stage`)");
    if (item->record.size > 0)
        r = note_work(p, parcel, t->device, stream);
    if (r == 0 && item->record.size > 0)
        r = own ? share_block(parcel, own, t, item) : share_memory(p, parcel, t, item);
    if (r < 0)
        return r;
    if (own)
        parcel->own[parcel->n_own++] = own;
    else
        set_mortal(parcel);
    return 0;
}

/* The copy may be under way. Returns `code`, with its message. */
static int give_failed_copy(struct dlx_heap *heap, struct dlx_block *block, int code)
{
    char why[DLX_ERROR_TEXT_SIZE];
    DLDevice device = dlx__heap_kind(heap)->device;
    memcpy(why, dlx__error_message(), sizeof why);
    if (dlx__gpu_has_ended(dlx__gpu_wait_device((int32_t)device.device_type, device.device_id)))
        dlx__heap_give(heap, block);
    else
        dlx__heap_give_unsettled(heap, block);
    return dlx__fail(code, "%s", why);
}

/* Publish a copy in memory of dlx_alloc() instead. It is complete when this returns, so the caller
 * may reuse the original at once. The thread's error says why the original cannot be shared. */
static int stage_tensor(struct dlx_publisher *p, struct dlx_gpu_parcel *parcel, const DLTensor *t,
                        const struct dlx_publish_args *args, struct dlx_manifest_item *item)
{
    struct dlx_heap *heap;
    struct dlx_block *block;
    if (args->strict)
        return dlx__fail_prefix(DLX_E_WOULD_COPY, "it would be copied, which `strict` forbids");
    dlx__error_clear();
    if (item->record.size == 0)
        return 1;
    const int32_t type = (int32_t)t->device.device_type, device = t->device.device_id;
    const void *data = (const uint8_t *)t->data + t->byte_offset;
    int r = dlx__gpu_check_range(type, device, data, item->record.size);
    if (r == 0)
        r = heap_of(p, t->device, &heap);
    if (r == 0)
        r = heap_block_until(p, heap, item->record.size, dlx__deadline(args->timeout_ns), &block);
    if (r < 0)
        return r;
    r = dlx__gpu_copy(type, device, dlx__block_data(block), data, item->record.size, args->stream);
    if (r < 0)
        return give_failed_copy(heap, block, r);
    p->stats.gpu_waits++;
    block->next = parcel->blocks;
    parcel->blocks = block;
    item->record.offset = block->offset;
    item->allocation = add_export(parcel, dlx__gpu_export_ref(export_of(block)));
    return 1;
}

static int parcel_add(struct dlx_publisher *p, struct dlx_gpu_parcel **parcel, uint32_t n,
                      const DLManagedTensorVersioned *tensor, const struct dlx_publish_args *args,
                      struct dlx_manifest_item *ret)
{
    const DLTensor *t = &tensor->dl_tensor;
    struct dlx_block *own = block_of(p, tensor);
    if (dlx__block_of(p->heap, tensor))
        return dlx__fail(DLX_E_DEVICE,
                         "it is from dlx_alloc(), on the CPU, and claims device type %d",
                         t->device.device_type);
    if (dlx__publish_is_again(own))
        return dlx__fail(DLX_E_INVALID,
                         "it was published or deleted before, and is not the caller's any more: "
                         "allocate another one, or publish with `share`");
    int r =
        make_record(t, tensor->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED, &ret->record);
    if (r == 0 && !*parcel)
        r = parcel_new(p, n, parcel);
    if (r < 0)
        return r;
    ret->shape = t->shape;
    ret->strides = t->strides;
    ret->allocation = 0;
    r = share_tensor(p, *parcel, tensor, own, args->stream, ret);
    if (r == DLX_E_DEVICE && args->stage)
        r = stage_tensor(p, *parcel, t, args, ret);
    return r;
}

static void parcel_write(struct dlx_publisher *p, struct dlx_gpu_parcel *parcel, void *manifest)
{
    if (parcel->n_exports == 0)
        return;
    struct dlx_shm_manifest_gpu *gpu = dlx__manifest_gpu(manifest);
    bool is_ready = parcel->job.n_events == 0;
    gpu->publisher = parcel->share->number;
    gpu->word = write_word(parcel);
    dlx_store32_relaxed(&gpu->ready, is_ready ? DLX_GPU_READY : DLX_GPU_PENDING);
    for (uint32_t i = 0; i < parcel->n_exports; i++)
        dlx__gpu_handle_encode_outline(dlx__gpu_export_handle(parcel->exports[i]),
                                       dlx__manifest_allocation(manifest, i));
    parcel->job.word = &gpu->ready;
    if (!is_ready)
        p->stats.gpu_waits += dlx__gpu_order_add(&parcel->share->order, &parcel->job);
}

const struct dlx_gpu_publisher_table dlx__gpu_share_table = {
    .heap = heap_of,
    .block = heap_block,
    .add = parcel_add,
    .hold = parcel_hold,
    .write = parcel_write,
    .adopt = parcel_adopt,
    .drop = parcel_unref,
    .also = share_also,
    .collect = share_collect,
    .reader_died = reader_died,
    .bytes = heap_bytes,
    .end = share_end,
    .free = share_free,
};
