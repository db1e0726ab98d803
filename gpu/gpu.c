/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/gpu.h"
#include "common/error.h"
#include "gpu/backend.h"
#include <dlpack/dlpack.h>
#include <stdio.h>
#include <string.h>

#ifdef DLX_WITH_CUDA
#define CUDA(x) (&(x))
#else
#define CUDA(x) NULL
#endif
#ifdef DLX_WITH_HIP
#define HIP(x) (&(x))
#else
#define HIP(x) NULL
#endif

static const struct dlx_gpu_ops *const kinds[DLX_GPU_KINDS_END] = {
    [DLX_GPU_CUDA_VMM] = CUDA(dlx__cuda_vmm_ops), [DLX_GPU_CUDA_POOL] = CUDA(dlx__cuda_pool_ops),
    [DLX_GPU_CUDA_IPC] = CUDA(dlx__cuda_ipc_ops), [DLX_GPU_HIP_IPC] = HIP(dlx__hip_ipc_ops),
    [DLX_GPU_HIP_VMM] = HIP(dlx__hip_vmm_ops),
};

static const struct {
    int32_t device_type;
    const char *name;
    const char *header;
    const struct dlx_gpu_api *api; /* NULL: built without */
} apis[] = {
    {kDLCUDA, "CUDA", "cuda.h", CUDA(dlx__cuda_api)},
    {kDLROCM, "HIP", "hip/hip_runtime_api.h", HIP(dlx__hip_api)},
};

int dlx__gpu_api(int32_t device_type, const struct dlx_gpu_api **ret)
{
    for (size_t i = 0; i < DLX_ARRAY_SIZE(apis); i++) {
        if (apis[i].device_type != device_type)
            continue;
        if (!apis[i].api)
            return dlx__fail(DLX_E_DEVICE,
                             "this libdlx-gpu has no %s support: it was built without %s",
                             apis[i].name, apis[i].header);
        *ret = apis[i].api;
        return 0;
    }
    return dlx__fail(DLX_E_DEVICE, "device type %d is no GPU", device_type);
}

int dlx__gpu_ops(enum dlx_gpu_kind kind, const struct dlx_gpu_ops **ret)
{
    if (!kinds[kind]) {
        const struct dlx_gpu_api *none;
        bool is_hip = kind == DLX_GPU_HIP_IPC || kind == DLX_GPU_HIP_VMM;
        int r = dlx__gpu_api(is_hip ? kDLROCM : kDLCUDA, &none);
        return dlx__fail_prefix(r, "the publisher shares its memory as %s",
                                dlx__gpu_kind_text(kind));
    }
    *ret = kinds[kind];
    return 0;
}

int dlx__gpu_uuid(int32_t device_type, int32_t device, struct dlx_gpu_uuid *ret)
{
    const struct dlx_gpu_api *api = NULL;
    int r = dlx__gpu_is_forked() ? dlx__gpu_fail_forked() : dlx__gpu_api(device_type, &api);
    return r < 0 ? r : api->uuid(device, ret);
}

int dlx__gpu_wait_stream(int32_t device_type, int32_t device, void *stream)
{
    const struct dlx_gpu_api *api = NULL;
    int r = dlx__gpu_is_forked() ? dlx__gpu_fail_forked() : dlx__gpu_api(device_type, &api);
    return r < 0 ? r : api->wait_stream(device, stream);
}

struct dlx_gpu_work dlx__gpu_work_now(int32_t device_type, int32_t device)
{
    const struct dlx_gpu_api *api = NULL;
    struct dlx_gpu_work work = {.device_type = device_type, .device = device};
    if (!dlx__gpu_is_forked() && dlx__gpu_api(device_type, &api) == 0 && api->own)
        work.own = api->own(device);
    return work;
}

int dlx__gpu_work_wait(const struct dlx_gpu_work *work)
{
    const struct dlx_gpu_api *api = NULL;
    int r = dlx__gpu_is_forked() ? dlx__gpu_fail_forked() : dlx__gpu_api(work->device_type, &api);
    return r < 0 ? r : api->wait_work(work);
}

int dlx__gpu_check_range(int32_t device_type, int32_t device, const void *ptr, uint64_t size)
{
    const struct dlx_gpu_api *api = NULL;
    int r = dlx__gpu_is_forked() ? dlx__gpu_fail_forked() : dlx__gpu_api(device_type, &api);
    return r < 0 ? r : api->check_range(device, ptr, size);
}

int dlx__gpu_copy(int32_t device_type, int32_t device, void *to, const void *from, uint64_t size,
                  void *stream)
{
    const struct dlx_gpu_api *api = NULL;
    int r = dlx__gpu_is_forked() ? dlx__gpu_fail_forked() : dlx__gpu_api(device_type, &api);
    return r < 0 ? r : api->copy(device, to, from, size, stream);
}

int dlx__gpu_copy_to_host(int32_t device_type, int32_t device, void *to, const void *from,
                          uint64_t size)
{
    const struct dlx_gpu_api *api = NULL;
    int r = dlx__gpu_is_forked() ? dlx__gpu_fail_forked() : dlx__gpu_api(device_type, &api);
    return r < 0 ? r : api->copy_to_host(device, to, from, size);
}

int dlx__gpu_event_record(int32_t device_type, int32_t device, void *stream,
                          struct dlx_gpu_event *ret, bool *ret_waited)
{
    const struct dlx_gpu_api *api = NULL;
    int r = dlx__gpu_is_forked() ? dlx__gpu_fail_forked() : dlx__gpu_api(device_type, &api);
    *ret = (struct dlx_gpu_event){.api = api, .device = device};
    *ret_waited = false;
    if (r < 0)
        return r;
    if (api->event_record) {
        r = api->event_record(device, stream, ret);
        if (r == 0)
            r = api->event_wait(ret, false);
        if (r == 1)
            return 1;
        dlx__gpu_event_end(ret);
        if (r == 0 || r == DLX_E_INVALID)
            return r;
    }
    /* No events, or none for this stream, as of a context that is not the primary one. */
    *ret_waited = true;
    return api->wait_stream(device, stream);
}

int dlx__gpu_event_wait(const struct dlx_gpu_event *event)
{
    return event->event ? event->api->event_wait(event, true) : 0;
}

void dlx__gpu_event_end(struct dlx_gpu_event *event)
{
    if (event->event && !dlx__gpu_is_forked())
        event->api->event_end(event);
    *event = (struct dlx_gpu_event){0};
}

int dlx__gpu_gate_shut(int32_t device_type, int32_t device, void *stream, bool are_kernels_loaded,
                       const struct dlx_gpu_word *shared, struct dlx_gpu_gate *ret)
{
    const struct dlx_gpu_api *api = NULL;
    struct dlx_gpu_gate gate = {0};
    int r = dlx__gpu_is_forked() ? dlx__gpu_fail_forked() : dlx__gpu_api(device_type, &api);
    if (r == 0)
        r = api->gate_shut ? api->gate_shut(device, stream, are_kernels_loaded, shared, &gate)
                           : dlx__fail(DLX_E_DEVICE, "streams of %s do not wait", api->name);
    if (r < 0)
        return r;
    gate.api = api;
    *ret = gate;
    return 0;
}

/* A shared word may have been raised further by its publisher's stream. */
void dlx__gpu_gate_open(struct dlx_gpu_gate *gate)
{
    dlx_atomic_u32 *word = gate->word.word;
    uint32_t now = dlx_load32_relaxed(word);
    while ((int32_t)(gate->word.value - now) > 0 &&
           !atomic_compare_exchange_weak_explicit(word, &now, gate->word.value,
                                                  memory_order_release, memory_order_relaxed))
        ;
    if (gate->is_used)
        atomic_store_explicit(gate->is_used, false, memory_order_release);
    *gate = (struct dlx_gpu_gate){0};
}

int dlx__gpu_page_add(int32_t device_type, int32_t device, void *page, uint64_t *ret_at)
{
    const struct dlx_gpu_api *api = NULL;
    int r = dlx__gpu_is_forked() ? dlx__gpu_fail_forked() : dlx__gpu_api(device_type, &api);
    if (r == 0 && !api->page_add)
        r = dlx__fail(DLX_E_DEVICE, "streams of %s write no words", api->name);
    return r < 0 ? r : api->page_add(device, page, ret_at);
}

int dlx__gpu_write_words(const struct dlx_gpu_event *event, void *stream,
                         const struct dlx_gpu_word *words, uint32_t n, uint32_t *ret_n)
{
    *ret_n = 0;
    return dlx__gpu_is_forked() ? dlx__gpu_fail_forked()
                                : event->api->write_words(event, stream, words, n, ret_n);
}

/* ---- pinned memory ------------------------------------------------------------------------- */

int dlx__gpu_retain(int32_t device_type, int32_t device)
{
    const struct dlx_gpu_api *api = NULL;
    int r = dlx__gpu_is_forked() ? dlx__gpu_fail_forked() : dlx__gpu_api(device_type, &api);
    return r < 0 ? r : api->retain(device);
}

void dlx__gpu_release(int32_t device_type, int32_t device)
{
    const struct dlx_gpu_api *api = NULL;
    if (!dlx__gpu_is_forked() && dlx__gpu_api(device_type, &api) == 0)
        api->release(device);
}

int dlx__gpu_pin(int32_t device_type, int32_t device, const void *at, uint64_t size)
{
    const struct dlx_gpu_api *api = NULL;
    int r = dlx__gpu_is_forked() ? dlx__gpu_fail_forked() : dlx__gpu_api(device_type, &api);
    return r < 0 ? r : api->pin(device, at, size);
}

int dlx__gpu_unpin(int32_t device_type, int32_t device, const void *at)
{
    const struct dlx_gpu_api *api = NULL;
    int r = dlx__gpu_is_forked() ? dlx__gpu_fail_forked() : dlx__gpu_api(device_type, &api);
    return r < 0 ? r : api->unpin(device, at);
}

int dlx__gpu_check_peer(int32_t device_type, int32_t device, int32_t home)
{
    const struct dlx_gpu_api *api = NULL;
    bool can = false;
    int r = dlx__gpu_is_forked() ? dlx__gpu_fail_forked() : dlx__gpu_api(device_type, &api);
    if (r == 0)
        r = api->can_access(device, home, &can);
    if (r == 0 && !can)
        r = dlx__fail(DLX_E_DEVICE,
                      "%s device %d has no peer access to memory of device %d: subscribe without "
                      "`device`, and copy the tensor between the two",
                      api->name, device, home);
    return r;
}

/* ---- ordinals ------------------------------------------------------------------------------ */

static int fail_not_visible(const struct dlx_gpu_api *api, const struct dlx_gpu_uuid *uuid,
                            const struct dlx_gpu_uuid *seen, int32_t n)
{
    char want[DLX_GPU_UUID_TEXT], name[DLX_GPU_UUID_TEXT], list[256] = "none";
    size_t used = 0;
    dlx__gpu_uuid_text(uuid, want);
    for (int32_t i = 0; i < n && used < sizeof list - DLX_GPU_UUID_TEXT - 2; i++) {
        dlx__gpu_uuid_text(&seen[i], name);
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? ", " : "", name);
    }
    return dlx__fail(
        DLX_E_DEVICE,
        "the memory is on %s, which this process does not see (it sees %d %s device%s: "
        "%s); make it visible, or use a CPU copy between MIG instances and hosts",
        want, n, api->name, n == 1 ? "" : "s", list);
}

int dlx__gpu_ordinal(int32_t device_type, const struct dlx_gpu_uuid *uuid, int32_t *ret)
{
    const struct dlx_gpu_api *api = NULL;
    struct dlx_gpu_uuid seen[64];
    int32_t n = 0;
    int r = dlx__gpu_is_forked() ? dlx__gpu_fail_forked() : dlx__gpu_api(device_type, &api);
    if (r == 0)
        r = api->count(&n);
    if (r < 0)
        return r;
    n = DLX_MIN(n, (int32_t)DLX_ARRAY_SIZE(seen));
    for (int32_t i = 0; i < n; i++) {
        r = api->uuid(i, &seen[i]);
        if (r < 0)
            return r;
        if (memcmp(seen[i].bytes, uuid->bytes, sizeof uuid->bytes) == 0) {
            *ret = i;
            return 0;
        }
    }
    return fail_not_visible(api, uuid, seen, n);
}
