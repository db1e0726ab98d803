/* SPDX-License-Identifier: Apache-2.0 */
/* A libdlx-gpu.so.0 of another build, as far as libdlx.so may look at it. */
#include "client/gpu/gpu.h"

__attribute__((visibility("default"))) const char dlx__gpu_library[DLX_GPU_BUILD_SIZE] =
    "0.0.9 0123456789abcdef";
