/* SPDX-License-Identifier: Apache-2.0 */

/* dlx_alloc_set(): tensors of a set side by side, in memory for one message. */

#include "client/publish/publish.h"
#include "client/publish/publisher_reconnect.h"
#include "ring/manifest.h"
#include "ring/tensor.h"

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
