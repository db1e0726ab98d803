/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_DEVICE_H
#define DLX_CLIENT_DEVICE_H

/* DLPack devices: which are the CPU, and their text for errors. */

#include "common/util.h"
#include <dlpack/dlpack.h>
#include <stdbool.h>

/* Shared memory, also as zeros say? */
static inline bool dlx__device_is_cpu(DLDevice device)
{
    return device.device_type == 0 || device.device_type == kDLCPU;
}

#define DLX_DEVICE_SIZE 48
/* "CUDA device 0 (device type 2)", "device type 99". Returns `text`. */
dlx_for_gpu const char *dlx__device_text(DLDevice device, char text[DLX_DEVICE_SIZE]);
/* The same in a buffer of the enclosing scope, for the arguments of dlx__fail(). */
#define DLX_DEVICE(device) dlx__device_text((device), (char[DLX_DEVICE_SIZE]){0})

#endif
