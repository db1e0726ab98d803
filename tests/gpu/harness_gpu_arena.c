/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/harness_gpu_arena.h"

int dlx_test_gpu_arena(struct dlx_gpu_exports *exports, int32_t device_type, int32_t device,
                       uint64_t size, struct dlx_gpu_export **ret)
{
    const struct dlx_gpu_api *api = NULL;
    const struct dlx_gpu_ops *ops = NULL;
    struct dlx_gpu_handle handle = {0};
    struct dlx_gpu_uuid uuid;
    struct dlx_gpu_memory memory;
    struct dlx_gpu_export *export = NULL;
    int r = dlx__gpu_uuid(device_type, device, &uuid);
    if (r == 0)
        r = dlx__gpu_api(device_type, &api);
    if (r == 0)
        r = dlx__gpu_ops(api->own_kind, &ops);
    if (r == 0)
        r = dlx__gpu_exports_plan(exports, &export);
    if (r < 0)
        return r;
    uint64_t id = dlx__gpu_export_handle(export)->id;
    r = ops->create(device, size, &handle);
    if (r == 0) {
        handle.id = id;
        handle.device = uuid;
        r = dlx__gpu_open_new(ops, &handle, device, &memory);
    }
    if (r < 0) {
        dlx__gpu_handle_deinit(&handle);
        dlx__gpu_exports_told(exports, id);
        return r;
    }
    dlx__gpu_export_fill(export, &memory, &handle);
    *ret = export;
    return 0;
}
