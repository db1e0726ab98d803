/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/lib/range.h"
#include "client/base/fork.h"
#include "common/amount.h"
#include "gpu/gpu.h"
#include "gpu/lib/message.h"
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* As of range.h. */
enum range_state { RANGE_NEW, RANGE_FIRST, RANGE_USED, RANGE_EMPTY };

struct spot {
    uint64_t offset; /* in the range */
    uint64_t size;
    int32_t device;
};

/* A tensor on a GPU, as code knows it that has its address; one that lies elsewhere has no
 * allocation. */
struct spot_tensor {
    struct dlx_gpu_place place;
    DLTensor form;
    const char *name;
};

/* In one piece of memory. */
struct layout {
    const struct dlx_gpu_ops *ops;
    uint64_t size;
    uint32_t n_spots;
    uint32_t n_tensors;
    struct spot *spots;
    struct spot_tensor *tensors;
};

struct dlx_gpu_range {
    atomic_uint refs; /* the caller's, and that of the message in it */
    uint64_t generation;
    pthread_mutex_t lock; /* for what follows, but `layout` and `base` of one that is FIRST are its
                           * message's */
    dlx_atomic_u32 n_changes; /* of `state`; wraps; a futex */
    enum range_state state;
    char topic[DLX_TOPIC_MAX + 1]; /* of the message in it */
    uint64_t seq;
    struct layout *layout; /* of the first message */
    void *base;
};

/* ---- the layout ------------------------------------------------------------------------------ */

static bool is_on_gpu(const struct dlx_message *m, uint32_t i)
{
    return m->gpu->places[i].allocation > 0;
}

/* Strides come after the shape, so both are compared, and copied, at once. */
static size_t dims_size(const DLTensor *t)
{
    return 2 * (size_t)t->ndim * sizeof *t->shape;
}

static size_t name_size(const struct dlx_message *m, uint32_t i)
{
    return strlen(dlx__message_name(m, i)) + 1;
}

static int place_spots(const struct dlx_message_gpu *gpu, struct layout *layout)
{
    for (uint32_t i = 0; i < gpu->n_allocations; i++) {
        const struct dlx_gpu_allocation *a = &gpu->allocations[i];
        const struct dlx_gpu_ops *ops;
        int r = dlx__gpu_ops(a->handle.kind, &ops);
        if (r < 0)
            return r;
        if (layout->ops && layout->ops != ops)
            return dlx__fail(DLX_E_DEVICE,
                             "it has GPU memory of kinds %s and %s, and a range is for one kind",
                             dlx__gpu_kind_text(layout->ops->kind), dlx__gpu_kind_text(ops->kind));
        layout->ops = ops;
        layout->spots[i] = (struct spot){layout->size, a->handle.size, a->device};
        if (__builtin_add_overflow(layout->size, a->handle.size, &layout->size))
            return dlx__fail(DLX_E_BAD_PEER, "it claims to have more than 2^64-1 bytes");
    }
    return 0;
}

static int layout_new(const struct dlx_message *m, struct layout **ret)
{
    const struct dlx_message_gpu *gpu = m->gpu;
    size_t n = m->n_tensors, dims = 0, names = 0;
    for (uint32_t i = 0; i < n; i++) {
        dims += is_on_gpu(m, i) ? dims_size(&m->tensors[i]) : 0;
        names += is_on_gpu(m, i) ? name_size(m, i) : 0;
    }
    struct layout *layout = calloc(1, sizeof *layout + gpu->n_allocations * sizeof *layout->spots +
                                          n * sizeof *layout->tensors + dims + names);
    if (!layout)
        return dlx__fail(DLX_E_NO_MEMORY, "layout of %u tensors", m->n_tensors);
    layout->n_spots = gpu->n_allocations;
    layout->n_tensors = m->n_tensors;
    layout->spots = (struct spot *)(layout + 1);
    layout->tensors = (struct spot_tensor *)(layout->spots + gpu->n_allocations);
    int64_t *shape = (int64_t *)(layout->tensors + n);
    char *name = (char *)shape + dims;
    for (uint32_t i = 0; i < n; i++) {
        struct spot_tensor *t = &layout->tensors[i];
        if (!is_on_gpu(m, i))
            continue;
        *t = (struct spot_tensor){gpu->places[i], m->tensors[i], name};
        memcpy(shape, t->form.shape, dims_size(&t->form));
        memcpy(name, dlx__message_name(m, i), name_size(m, i));
        t->form.shape = shape;
        shape += 2 * t->form.ndim;
        name += name_size(m, i);
    }
    int r = place_spots(gpu, layout);
    if (r < 0)
        free(layout);
    else
        *ret = layout;
    return r;
}

/* What a publisher does so that each version lies as the one before. */
#define ADVICE                                                                                     \
    "make each version by one dlx_alloc_set() of the same tensors in the same order, at least "    \
    "1 MiB, in a publisher of nothing else"

static bool is_same_form(const DLTensor *a, const DLTensor *b)
{
    return a->dtype.code == b->dtype.code && a->dtype.bits == b->dtype.bits &&
           a->dtype.lanes == b->dtype.lanes && a->ndim == b->ndim &&
           memcmp(a->shape, b->shape, dims_size(a)) == 0;
}

/* Tensor `i`, and what it was in the version before. */
static int compare_tensor(const struct spot_tensor *before, const struct dlx_message *m, uint32_t i)
{
    const struct dlx_gpu_place *now = &m->gpu->places[i], *was = &before->place;
    const char *name = dlx__message_name(m, i);
    if (now->allocation == 0 && was->allocation == 0)
        return 0;
    if (now->allocation == 0 || was->allocation == 0)
        return dlx__fail(DLX_E_SHAPE, "tensor %u (%.100s) is %s a GPU, and was%s: " ADVICE, i, name,
                         now->allocation > 0 ? "on" : "not on", now->allocation > 0 ? " not" : "");
    if (strcmp(name, before->name) != 0)
        return dlx__fail(DLX_E_SHAPE, "tensor %u is %.100s, and was %.100s: " ADVICE, i, name,
                         before->name);
    if (now->allocation != was->allocation || now->offset != was->offset)
        return dlx__fail(DLX_E_SHAPE,
                         "tensor %u (%.100s) lies at offset %" PRIu64
                         " of allocation %u, and was at "
                         "%" PRIu64 " of %u: " ADVICE,
                         i, name, now->offset, now->allocation, was->offset, was->allocation);
    if (!is_same_form(&m->tensors[i], &before->form))
        return dlx__fail(DLX_E_SHAPE,
                         "tensor %u (%.100s) has another data type or shape than before", i, name);
    return 0;
}

static int compare_spots(const struct layout *before, const struct dlx_message_gpu *gpu)
{
    for (uint32_t i = 0; i < before->n_spots; i++) {
        const struct dlx_gpu_allocation *now = &gpu->allocations[i];
        const struct spot *was = &before->spots[i];
        if (now->handle.size != was->size || now->handle.kind != before->ops->kind)
            return dlx__fail(DLX_E_SHAPE,
                             "allocation %u has %" PRIu64 " bytes of kind %s, and had %" PRIu64
                             " of %s: " ADVICE,
                             i + 1, now->handle.size, dlx__gpu_kind_text(now->handle.kind),
                             was->size, dlx__gpu_kind_text(before->ops->kind));
        if (now->device != was->device)
            return dlx__fail(DLX_E_SHAPE, "allocation %u is for GPU %d, and was for GPU %d", i + 1,
                             now->device, was->device);
    }
    return 0;
}

/* The tensors first: they are what the caller knows. */
static int compare(const struct layout *before, const struct dlx_message *m)
{
    int r = 0;
    if (m->n_tensors != before->n_tensors)
        return dlx__fail(DLX_E_SHAPE, "it has %u tensors, and the version before %u: " ADVICE,
                         m->n_tensors, before->n_tensors);
    for (uint32_t i = 0; r == 0 && i < m->n_tensors; i++)
        r = compare_tensor(&before->tensors[i], m, i);
    if (r == 0 && m->gpu->n_allocations != before->n_spots)
        r = dlx__fail(DLX_E_SHAPE,
                      "it lies in %u allocations, and the version before in %u: " ADVICE,
                      m->gpu->n_allocations, before->n_spots);
    return r < 0 ? r : compare_spots(before, m->gpu);
}

/* ---- the range ------------------------------------------------------------------------------- */

int dlx__gpu_range_new(uint64_t generation, struct dlx_gpu_range **ret)
{
    struct dlx_gpu_range *range = calloc(1, sizeof *range);
    if (!range)
        return dlx__fail(DLX_E_NO_MEMORY, "state of a range of addresses");
    atomic_init(&range->refs, 1);
    range->generation = generation;
    (void)pthread_mutex_init(&range->lock, NULL);
    *ret = range;
    return 0;
}

void dlx__gpu_range_unref(struct dlx_gpu_range *range)
{
    if (dlx__refuse_forked(range->generation) < 0) {
        dlx__error_clear();
        return;
    }
    if (atomic_fetch_sub_explicit(&range->refs, 1, memory_order_acq_rel) > 1)
        return;
    if (range->state == RANGE_EMPTY)
        range->layout->ops->unreserve(range->base, range->layout->size);
    free(range->layout);
    (void)pthread_mutex_destroy(&range->lock);
    free(range);
}

/* Locked, but not while it waits. Returns false if the deadline is over. */
static bool wait_changed(struct dlx_gpu_range *range, uint64_t deadline)
{
    uint32_t seen = dlx_load32_relaxed(&range->n_changes);
    uint64_t now = dlx__now_ns();
    if (now >= deadline)
        return false;
    uint64_t left = deadline - now;
    const struct timespec timeout = {.tv_sec = (time_t)(left / UINT64_C(1000000000)),
                                     .tv_nsec = (long)(left % UINT64_C(1000000000))};
    (void)pthread_mutex_unlock(&range->lock);
    (void)syscall(SYS_futex, &range->n_changes, FUTEX_WAIT_PRIVATE, seen,
                  deadline == UINT64_MAX ? NULL : &timeout, NULL, 0);
    (void)pthread_mutex_lock(&range->lock);
    return true;
}

/* Locked. The first message gives the layout, and others have to have it. Another thread may have
 * opened the message meanwhile. */
static int check_layout(struct dlx_gpu_range *range, const struct dlx_message *m)
{
    struct dlx_message_gpu *gpu = m->gpu;
    int r = 0;
    (void)pthread_mutex_lock(&gpu->lock);
    for (uint32_t i = 0; r == 0 && i < gpu->n_allocations; i++)
        if (gpu->allocations[i].import)
            r = dlx__fail(DLX_E_INVALID, "a tensor of it was opened meanwhile");
    if (r == 0 && range->state == RANGE_NEW)
        r = layout_new(m, &range->layout);
    else if (r == 0 && range->state != RANGE_FIRST)
        r = compare(range->layout, m);
    (void)pthread_mutex_unlock(&gpu->lock);
    return r;
}

/* Locked. Another layout is refused at once, whether the range is in use or not. */
static int await_empty(struct dlx_gpu_range *range, const struct dlx_message *m, uint64_t deadline)
{
    for (;;) {
        int r = check_layout(range, m);
        if (r < 0 || range->state == RANGE_NEW || range->state == RANGE_EMPTY)
            return r;
        if (!wait_changed(range, deadline))
            return dlx__fail(DLX_E_TIMEOUT,
                             "message %" PRIu64 " of %s is still in the range: it ends when it and "
                             "its tensors are released and the work on their streams is done",
                             range->seq, range->topic);
    }
}

int dlx__gpu_range_claim(struct dlx_gpu_range *range, const struct dlx_message *m,
                         uint64_t deadline)
{
    int r = dlx__refuse_forked(range->generation);
    if (r < 0)
        return r;
    (void)pthread_mutex_lock(&range->lock);
    r = await_empty(range, m, deadline);
    if (r == 0) {
        range->state = range->state == RANGE_NEW ? RANGE_FIRST : RANGE_USED;
        range->seq = m->seq;
        memcpy(range->topic, m->link->topic, sizeof range->topic);
    }
    (void)pthread_mutex_unlock(&range->lock);
    return r;
}

int dlx__gpu_range_reserve(struct dlx_gpu_range *range)
{
    const struct layout *layout = range->layout;
    if (range->base)
        return 0;
    int r = layout->ops->reserve(layout->size, &range->base);
    return r < 0 ? dlx__fail_prefix(r, "no addresses for %s", DLX_AMOUNT(layout->size)) : 0;
}

void *dlx__gpu_range_address(const struct dlx_gpu_range *range, uint32_t i)
{
    return (uint8_t *)range->base + range->layout->spots[i].offset;
}

static void set_state(struct dlx_gpu_range *range, enum range_state state)
{
    (void)pthread_mutex_lock(&range->lock);
    range->state = state;
    (void)atomic_fetch_add_explicit(&range->n_changes, 1, memory_order_relaxed);
    (void)pthread_mutex_unlock(&range->lock);
    (void)syscall(SYS_futex, &range->n_changes, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void dlx__gpu_range_mapped(struct dlx_gpu_range *range)
{
    atomic_fetch_add_explicit(&range->refs, 1, memory_order_relaxed);
    set_state(range, RANGE_USED);
}

/* The state is this thread's alone. */
int dlx__gpu_range_fail(struct dlx_gpu_range *range, int code)
{
    if (range->state == RANGE_USED) {
        set_state(range, RANGE_EMPTY);
    } else {
        if (range->base)
            range->layout->ops->unreserve(range->base, range->layout->size);
        range->base = NULL;
        free(dlx_steal(range->layout));
        set_state(range, RANGE_NEW);
    }
    return dlx__fail_prefix(code, "the range is empty");
}

void dlx__gpu_range_leave(struct dlx_gpu_range *range)
{
    set_state(range, RANGE_EMPTY);
    dlx__gpu_range_unref(range);
}
