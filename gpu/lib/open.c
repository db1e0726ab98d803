/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/lib/open.h"
#include "common/packet.h"
#include "gpu/lib/fetch.h"
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
