/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/lib/arena.h"
#include "client/control/call.h"
#include "gpu/imports.h"
#include "gpu/lib/fetch.h"
#include <inttypes.h>
#include <string.h>

static int check(const struct dlx_gpu_handle *handle, const struct dlx_gpu_api *api,
                 const struct dlx_gpu_uuid *device, uint64_t size)
{
    if (handle->kind == api->own_kind && handle->size >= size &&
        memcmp(&handle->device, device, sizeof *device) == 0)
        return 0;
    return dlx__fail(DLX_E_PROTOCOL,
                     "the GPU keeper was asked for %" PRIu64 " bytes of %s and made %" PRIu64
                     " of kind %s, or on another GPU",
                     size, api->name, handle->size, dlx__gpu_kind_text(handle->kind));
}

/* Has the keeper make it. */
static int make(struct dlx_publisher *p, const struct dlx_gpu_api *api, int32_t device, uint64_t id,
                uint64_t size, struct dlx_gpu_handle *ret, uint64_t *ret_keeper)
{
    struct dlx_gpu_uuid uuid;
    struct dlx_new_gpu_memory made;
    int r = api->uuid(device, &uuid);
    if (r == 0)
        r = dlx__call_gpu_allocate(p->client, p->id, id, size, api->device_type, uuid.bytes, &made);
    if (r == 0)
        r = dlx__gpu_take_memory(&made, id, ret);
    if (r < 0)
        return r;
    *ret_keeper = made.keeper;
    r = check(ret, api, &uuid, size);
    if (r < 0)
        dlx__gpu_handle_deinit(ret);
    return r;
}

static int arena_new(struct dlx_publisher *p, struct dlx_gpu_exports *exports,
                     const struct dlx_gpu_api *api, int32_t device, uint64_t size,
                     struct dlx_gpu_export **ret, uint64_t *ret_keeper)
{
    const struct dlx_gpu_ops *ops;
    struct dlx_gpu_handle handle = {0};
    struct dlx_gpu_memory memory;
    struct dlx_gpu_export *export = NULL;
    int r = dlx__gpu_ops(api->own_kind, &ops);
    if (r == 0)
        r = dlx__gpu_exports_plan(exports, &export);
    if (r == 0)
        r = make(p, api, device, dlx__gpu_export_handle(export)->id, size, &handle, ret_keeper);
    if (r == 0)
        r = dlx__gpu_open_new(ops, &handle, device, &memory);
    if (r < 0) {
        dlx__gpu_handle_deinit(&handle);
        return r;
    }
    dlx__gpu_export_fill(export, &memory, &handle);
    *ret = export;
    return 0;
}

int dlx__gpu_arena_new(struct dlx_publisher *p, struct dlx_gpu_exports *exports, DLDevice device,
                       uint64_t size, struct dlx_gpu_export **ret, uint64_t *ret_keeper)
{
    const struct dlx_gpu_api *api = NULL;
    uint64_t bytes = 0;
    int r = dlx__gpu_is_forked() ? dlx__gpu_fail_forked()
                                 : dlx__gpu_api((int32_t)device.device_type, &api);
    if (r == 0)
        r = arena_new(p, exports, api, device.device_id, size, ret, ret_keeper);
    if (r != DLX_E_NO_MEMORY || !api || dlx__gpu_imports_trim(&bytes) < 0 || bytes == 0)
        return r;
    dlx__error_clear();
    return arena_new(p, exports, api, device.device_id, size, ret, ret_keeper);
}
