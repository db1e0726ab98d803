/* SPDX-License-Identifier: Apache-2.0 */
#include "client/base/device.h"
#include "common/util.h"
#include <stdio.h>

const char *dlx__device_text(DLDevice device, char text[DLX_DEVICE_SIZE])
{
    static const char *const names[] = {
        [kDLCPU] = "CPU",
        [kDLCUDA] = "CUDA",
        [kDLCUDAHost] = "CUDA host",
        [kDLOpenCL] = "OpenCL",
        [kDLVulkan] = "Vulkan",
        [kDLMetal] = "Metal",
        [kDLVPI] = "VPI",
        [kDLROCM] = "ROCm",
        [kDLROCMHost] = "ROCm host",
        [kDLExtDev] = "extension",
        [kDLCUDAManaged] = "CUDA managed",
        [kDLOneAPI] = "oneAPI",
        [kDLWebGPU] = "WebGPU",
        [kDLHexagon] = "Hexagon",
        [kDLMAIA] = "MAIA",
        [kDLTrn] = "Trainium",
    };
    unsigned type = (unsigned)device.device_type;
    const char *name = type < DLX_ARRAY_SIZE(names) ? names[type] : NULL;
    if (name)
        (void)snprintf(text, DLX_DEVICE_SIZE, "%s device %d (device type %u)", name,
                       device.device_id, type);
    else
        (void)snprintf(text, DLX_DEVICE_SIZE, "device type %u", type);
    return text;
}
