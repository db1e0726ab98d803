/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_GPU_HIP_RUNTIME_H
#define DLX_GPU_HIP_RUNTIME_H

/*
 * AMD's HIP runtime, loaded at run time. Types are those of the real hip_runtime_api.h.
 *
 * Sharing between processes has open faults there (docs/GPU.md), so whatever exports, opens or
 * closes takes turns (dlx__hip_lock), nothing is exported twice, and a descriptor stays open until
 * access is set.
 */

#include "gpu/backend.h"
#include <hip/hip_runtime_api.h>

#define DLX_HIP_FUNCTIONS(X)                                                                       \
    X(hipInit)                                                                                     \
    X(hipRuntimeGetVersion)                                                                        \
    X(hipGetErrorName)                                                                             \
    X(hipGetErrorString)                                                                           \
    X(hipGetDeviceCount)                                                                           \
    X(hipGetDevice)                                                                                \
    X(hipSetDevice)                                                                                \
    X(hipDeviceCanAccessPeer)                                                                      \
    X(hipDeviceGetUuid)                                                                            \
    X(hipDeviceTotalMem)                                                                           \
    X(hipDrvPointerGetAttributes)                                                                  \
    X(hipIpcGetMemHandle)                                                                          \
    X(hipIpcOpenMemHandle)                                                                         \
    X(hipIpcCloseMemHandle)                                                                        \
    X(hipMemGetAllocationGranularity)                                                              \
    X(hipMemCreate)                                                                                \
    X(hipMemRelease)                                                                               \
    X(hipMemRetainAllocationHandle)                                                                \
    X(hipMemExportToShareableHandle)                                                               \
    X(hipMemImportFromShareableHandle)                                                             \
    X(hipMemAddressReserve)                                                                        \
    X(hipMemAddressFree)                                                                           \
    X(hipMemMap)                                                                                   \
    X(hipMemUnmap)                                                                                 \
    X(hipMemSetAccess)                                                                             \
    X(hipStreamCreateWithFlags)                                                                    \
    X(hipStreamSynchronize)                                                                        \
    X(hipStreamIsCapturing)                                                                        \
    X(hipThreadExchangeStreamCaptureMode)                                                          \
    X(hipDeviceSynchronize)                                                                        \
    X(hipStreamDestroy)                                                                            \
    X(hipMemcpyDtoDAsync)                                                                          \
    X(hipMemcpyDtoHAsync)                                                                          \
    X(hipMemsetD32Async)                                                                           \
    X(hipHostRegister)                                                                             \
    X(hipHostUnregister)

struct dlx_hip {
#define DLX_HIP_MEMBER(f) __typeof__(f) *f;
    DLX_HIP_FUNCTIONS(DLX_HIP_MEMBER)
#undef DLX_HIP_MEMBER
    int version; /* as hipRuntimeGetVersion() says: 50200000 and something is 5.2 */
};

/* The runtime, loaded and initialised. DLX_E_DEVICE: it is missing, too old or has no GPU; every
 * later call says the same. */
int dlx__hip(const struct dlx_hip **ret);

/* What failed, and the runtime's name for the reason; returns the code that stands for it. */
int dlx__hip_fail(const struct dlx_hip *hip, hipError_t error, const char *fmt, ...)
    dlx_printf(3, 4);

void dlx__hip_lock(void);
void dlx__hip_unlock(void);

/* What a thread had before dlx__hip_enter(). */
struct dlx_hip_scope {
    int device;
    hipStreamCaptureMode mode;
};

/* Make a device current for a few calls, which leave streams that are being captured alone. Then
 * dlx__hip_leave() restores what was. */
int dlx__hip_enter(const struct dlx_hip *hip, int32_t device, struct dlx_hip_scope *ret_before);
void dlx__hip_leave(const struct dlx_hip *hip, const struct dlx_hip_scope *before);

/* gpu/hip_wait.c */
int dlx__hip_wait_stream(int32_t device, void *stream);
int dlx__hip_wait_work(const struct dlx_gpu_work *work);
int dlx__hip_copy(int32_t device, void *to, const void *from, uint64_t size, void *stream);
int dlx__hip_copy_to_host(int32_t device, void *to, const void *from, uint64_t size);

/* gpu/hip_host.c */
int dlx__hip_retain(int32_t device);
void dlx__hip_release(int32_t device);
int dlx__hip_pin(int32_t device, const void *at, uint64_t size);
int dlx__hip_unpin(int32_t device, const void *at);

#endif
