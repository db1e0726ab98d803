/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/lib/open.h"
#include "common/packet.h"
#include "gpu/gpu.h"
#include "gpu/lib/fetch.h"
#include "gpu/lib/range.h"
#include <inttypes.h>

int dlx__message_gpu_decode(struct dlx_gpu_allocation *a)
{
    return dlx__gpu_handle_decode_outline(&a->handle, a->bytes);
}

int32_t dlx__message_gpu_type(enum dlx_gpu_kind kind)
{
    return kind == DLX_GPU_HIP_IPC || kind == DLX_GPU_HIP_VMM ? kDLROCM : kDLCUDA;
}

static int fetch_parts(void *userdata, uint64_t id, struct dlx_gpu_handle *ret)
{
    const struct dlx_message *m = userdata;
    int r = dlx__gpu_fetch(m->gpu->client, m->link->id, m->link->origin, id, ret);
    return r < 0 && r != DLX_E_FORKED
               ? dlx__fail_prefix(r, "GPU memory %" PRIu64 " of %s", id, m->link->topic)
               : r;
}

/* The GPU whose kernels use tensors of this kind of memory. */
static int32_t device_for(const struct dlx_message *m, enum dlx_gpu_kind kind)
{
    DLDevice device = m->gpu->device;
    return (int32_t)device.device_type == dlx__message_gpu_type(kind) ? device.device_id
                                                                      : DLX_GPU_HOME;
}

/* What the driver says of memory of a process that has ended is one of many codes. */
static int explain_open(const struct dlx_message *m, int r)
{
    bool is_of_driver = r == DLX_E_SYSTEM || r == DLX_E_NOT_FOUND || r == DLX_E_ACCESS;
    return is_of_driver && dlx__packet_hung_up(m->link->bell)
               ? dlx__fail_prefix(DLX_E_PUBLISHER_GONE,
                                  "the publisher is gone, and its GPU memory with it")
               : r;
}

static int check_version(struct dlx_gpu_allocation *a)
{
    int r = a->handle.id == 0 ? dlx__message_gpu_decode(a) : 0;
    return a->handle.id != 0 ? 0 : r < 0 ? r : DLX_E_VERSION; /* it says why */
}

/* Locked. */
static int open_allocation(struct dlx_message *m, struct dlx_gpu_allocation *a)
{
    const struct dlx_gpu_fetch fetch = {.call = fetch_parts, .userdata = m};
    int r = check_version(a);
    if (r == 0)
        r = dlx__gpu_import(m->gpu->publisher, &a->handle, device_for(m, a->handle.kind),
                            DLX_GPU_READ, &fetch, &a->import);
    return explain_open(m, r);
}

int dlx__message_gpu_fail(const struct dlx_message *m, uint32_t i, int r)
{
    return dlx__fail_prefix(r, "topic %s, publisher %" PRIu64 " (pid %u), tensor %u",
                            m->link->topic, m->link->publisher, m->link->pid, i);
}

int dlx__message_gpu_open(struct dlx_message *m, uint32_t i, DLTensor *tensor)
{
    struct dlx_message_gpu *gpu = m->gpu;
    const struct dlx_gpu_place *place = &gpu->places[i];
    int r = 0;
    if (place->allocation == 0)
        return 0;
    struct dlx_gpu_allocation *a = &gpu->allocations[place->allocation - 1];
    (void)pthread_mutex_lock(&gpu->lock);
    if (!a->import)
        r = open_allocation(m, a);
    (void)pthread_mutex_unlock(&gpu->lock);
    if (r < 0)
        return dlx__message_gpu_fail(m, i, r);
    tensor->data = (uint8_t *)dlx__gpu_import_base(a->import) + place->offset;
    tensor->device.device_id = dlx__gpu_import_device(a->import);
    return 0;
}

int dlx__message_gpu_copy_to_host(const DLTensor *tensor, void *to, uint64_t size)
{
    return dlx__gpu_copy_to_host((int32_t)tensor->device.device_type, tensor->device.device_id, to,
                                 tensor->data, size);
}

/* ---- open in a range ------------------------------------------------------------------------- */

/* All that may fail for want of somebody else: from here on the driver alone is needed. */
static int prepare(struct dlx_message *m)
{
    struct dlx_message_gpu *gpu = m->gpu;
    const struct dlx_gpu_fetch fetch = {.call = fetch_parts, .userdata = m};
    int r = 0;
    (void)pthread_mutex_lock(&gpu->lock);
    for (uint32_t i = 0; r == 0 && i < gpu->n_allocations; i++) {
        struct dlx_gpu_allocation *a = &gpu->allocations[i];
        if (a->import)
            r = dlx__fail(DLX_E_INVALID, "a tensor of it was opened before: open it in the range "
                                         "first");
        if (r == 0)
            r = check_version(a);
        if (r == 0) {
            a->device = device_for(m, a->handle.kind);
            r = dlx__gpu_import_prepare(&a->handle, &fetch, &a->device);
        }
    }
    (void)pthread_mutex_unlock(&gpu->lock);
    return explain_open(m, r);
}

/* Locked. All of it or nothing. */
static int open_all_at(struct dlx_message *m, const struct dlx_gpu_range *range)
{
    struct dlx_message_gpu *gpu = m->gpu;
    uint32_t n = 0;
    int r = 0;
    while (r == 0 && n < gpu->n_allocations) {
        struct dlx_gpu_allocation *a = &gpu->allocations[n];
        r = a->import ? dlx__fail(DLX_E_INVALID, "a tensor of it was opened meanwhile")
                      : dlx__gpu_import_at(&a->handle, a->device, DLX_GPU_READ,
                                           dlx__gpu_range_address(range, n), &a->import);
        n += r == 0;
    }
    for (uint32_t i = 0; r < 0 && i < n; i++) {
        dlx__gpu_import_unref(gpu->allocations[i].import);
        gpu->allocations[i].import = NULL;
    }
    for (uint32_t i = 0; r == 0 && i < n; i++) /* the mapping keeps the memory */
        dlx__gpu_handle_deinit(&gpu->allocations[i].handle);
    return r;
}

/* What prepare() did is of use only for a call that follows one which has waited in vain. */
static int undo_prepare(struct dlx_message_gpu *gpu, int code)
{
    (void)pthread_mutex_lock(&gpu->lock);
    for (uint32_t i = 0; code != DLX_E_TIMEOUT && i < gpu->n_allocations; i++) {
        struct dlx_gpu_allocation *a = &gpu->allocations[i];
        if (a->import || a->handle.id == 0)
            continue;
        dlx__gpu_handle_deinit(&a->handle);
        (void)dlx__message_gpu_decode(a); /* as when the message was taken */
    }
    (void)pthread_mutex_unlock(&gpu->lock);
    return code;
}

int dlx__message_gpu_open_into(struct dlx_message *m, struct dlx_gpu_range *range,
                               int64_t timeout_ns)
{
    struct dlx_message_gpu *gpu = m->gpu;
    int r = prepare(m);
    if (r == 0)
        r = dlx__gpu_range_claim(range, m, dlx__deadline(timeout_ns));
    if (r == 0) {
        (void)pthread_mutex_lock(&gpu->lock);
        r = dlx__gpu_range_reserve(range);
        if (r == 0)
            r = open_all_at(m, range);
        if (r == 0)
            gpu->range = range;
        (void)pthread_mutex_unlock(&gpu->lock);
        if (r == 0)
            dlx__gpu_range_mapped(range);
        else
            r = dlx__gpu_range_fail(range, r);
    }
    return r < 0 ? dlx__fail_prefix(undo_prepare(gpu, r),
                                    "topic %s, publisher %" PRIu64 " (pid %u), message %" PRIu64,
                                    m->link->topic, m->link->publisher, m->link->pid, m->seq)
                 : 0;
}
