/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpu/gpu.h"
#include "gpu/imports.h"
#include "gpu/lib/range.h"
#include "gpu/lib/receive.h"
#include "gpu/lib/share.h"
#include "gpu/lib/malloc.h"
#include "gpu_build.h"

/* libdlx-gpu.so exports this, and nothing else. */
__attribute__((visibility("default"))) const struct dlx_gpu_library dlx__gpu_library = {
    .build = DLX_GPU_BUILD,
    .core = dlx__gpu_check,
    .publisher = &dlx__gpu_share_table,
    .receiver = &dlx__gpu_receive_table,
    .malloc = dlx__gpu_malloc,
    .free = dlx__gpu_free,
    .trim = dlx__gpu_imports_trim,
    .range_new = dlx__gpu_range_new,
    .range_unref = dlx__gpu_range_unref,
};

/* For a static program. */
int dlx__gpu_find(const struct dlx_gpu_library **ret)
{
    *ret = &dlx__gpu_library;
    return dlx__gpu_check(*ret, "libdlx-gpu.a");
}
