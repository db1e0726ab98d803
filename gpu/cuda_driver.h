/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_GPU_CUDA_DRIVER_H
#define DLX_GPU_CUDA_DRIVER_H

/* The CUDA driver, loaded at run time. Types are those of the real cuda.h, 12.5 or later. */

#include "gpu/backend.h"
#include <cuda.h>

/* Names without a version: cuda.h defines them as the version that it declares. All of them are in
 * drivers since 12.0 (525). */
#define DLX_CUDA_FUNCTIONS(X)                                                                      \
    X(cuInit)                                                                                      \
    X(cuGetErrorName)                                                                              \
    X(cuGetErrorString)                                                                            \
    X(cuDeviceGet)                                                                                 \
    X(cuDeviceGetCount)                                                                            \
    X(cuDeviceGetUuid)                                                                             \
    X(cuDeviceTotalMem)                                                                            \
    X(cuDeviceCanAccessPeer)                                                                       \
    X(cuDeviceGetAttribute)                                                                        \
    X(cuDevicePrimaryCtxRetain)                                                                    \
    X(cuDevicePrimaryCtxRelease)                                                                   \
    X(cuDevicePrimaryCtxGetState)                                                                  \
    X(cuCtxGetId)                                                                                  \
    X(cuModuleGetLoadingMode)                                                                      \
    X(cuCtxGetCurrent)                                                                             \
    X(cuCtxGetDevice)                                                                              \
    X(cuCtxSynchronize)                                                                            \
    X(cuCtxPushCurrent)                                                                            \
    X(cuCtxPopCurrent)                                                                             \
    X(cuPointerGetAttributes)                                                                      \
    X(cuMemGetAllocationGranularity)                                                               \
    X(cuMemCreate)                                                                                 \
    X(cuMemRelease)                                                                                \
    X(cuMemRetainAllocationHandle)                                                                 \
    X(cuMemExportToShareableHandle)                                                                \
    X(cuMemImportFromShareableHandle)                                                              \
    X(cuMemAddressReserve)                                                                         \
    X(cuMemAddressFree)                                                                            \
    X(cuMemMap)                                                                                    \
    X(cuMemUnmap)                                                                                  \
    X(cuMemSetAccess)                                                                              \
    X(cuStreamCreate)                                                                              \
    X(cuStreamQuery)                                                                               \
    X(cuStreamSynchronize)                                                                         \
    X(cuStreamGetCtx)                                                                              \
    X(cuStreamWaitValue32)                                                                         \
    X(cuStreamWriteValue32)                                                                        \
    X(cuStreamIsCapturing)                                                                         \
    X(cuThreadExchangeStreamCaptureMode)                                                           \
    X(cuStreamDestroy)                                                                             \
    X(cuEventCreate)                                                                               \
    X(cuEventRecord)                                                                               \
    X(cuEventQuery)                                                                                \
    X(cuEventSynchronize)                                                                          \
    X(cuEventDestroy)                                                                              \
    X(cuMemcpyDtoDAsync)                                                                           \
    X(cuMemcpyDtoHAsync)                                                                           \
    X(cuMemsetD32Async)                                                                            \
    X(cuIpcGetMemHandle)                                                                           \
    X(cuIpcOpenMemHandle)                                                                          \
    X(cuIpcCloseMemHandle)                                                                         \
    X(cuMemPoolExportToShareableHandle)                                                            \
    X(cuMemPoolImportFromShareableHandle)                                                          \
    X(cuMemPoolExportPointer)                                                                      \
    X(cuMemPoolImportPointer)                                                                      \
    X(cuMemPoolSetAccess)                                                                          \
    X(cuMemPoolDestroy)                                                                            \
    X(cuMemFree)                                                                                   \
    X(cuMemHostGetDevicePointer)                                                                   \
    X(cuMemHostRegister)                                                                           \
    X(cuMemHostUnregister)

struct dlx_cuda {
#define DLX_CUDA_MEMBER(f) __typeof__(f) *f;
    DLX_CUDA_FUNCTIONS(DLX_CUDA_MEMBER)
#undef DLX_CUDA_MEMBER
};

/* The driver, loaded and initialised. DLX_E_DEVICE: it is missing, too old or has no GPU; every
 * later call says the same. */
int dlx__cuda(const struct dlx_cuda **ret);
/* Does the environment ask for one hardware queue? And did it when the driver was loaded? */
bool dlx__cuda_is_one_queue_set(void);
bool dlx__cuda_was_one_queue(void);

/* What failed, and the driver's name for the reason; returns the code that stands for it. */
int dlx__cuda_fail(const struct dlx_cuda *cu, CUresult result, const char *fmt, ...)
    dlx_printf(3, 4);

/*
 * The same where a caller may be about to wait: DLX_E_DEVICE only if the work has ended, with its
 * context, or the device is not there. cuda.h (12.9, 13.5) says of these errors that "any further
 * CUDA work will return the same error", or that the context "cannot be used anymore" or is
 * destroyed. Others may be over soon, and the work goes on.
 */
int dlx__cuda_fail_wait(const struct dlx_cuda *cu, CUresult result, const char *what);

/* The driver's name of a device of this process. */
int dlx__cuda_device(const struct dlx_cuda *cu, int32_t device, CUdevice *ret);
/* Can the device use memory of `peer`? */
int dlx__cuda_can_access(int32_t device, int32_t peer, bool *ret);

/*
 * A context that is current for a few calls. Entering a device retains its primary context, which
 * is made if there is none: only for a device that the caller named. Leaving restores the context
 * that was current before.
 *
 * The capture mode of the thread is relaxed meanwhile: a stream of the program that is being
 * captured neither refuses these calls, of which none is part of its capture, nor is its capture
 * invalidated by them.
 */
struct dlx_cuda_scope {
    const struct dlx_cuda *cu;
    CUstreamCaptureMode mode; /* of the thread, before */
    CUdevice retained;
    bool is_retained;
};
int dlx__cuda_enter(const struct dlx_cuda *cu, int32_t device, struct dlx_cuda_scope *ret);
/* The same if there is a primary context, since waiting is no reason to make one; else nothing. */
int dlx__cuda_enter_if_active(const struct dlx_cuda *cu, int32_t device, struct dlx_cuda_scope *ret,
                              bool *ret_entered);
/*
 * Make the context of a stream current, which may be one of any device: its primary context, and
 * then the scope retains it, or one that the program made, which libdlx cannot retain. NULL and the
 * other special streams are those of the calling thread's context if that is one of `device`, else
 * of the primary context of `device`; without either nothing is entered.
 */
int dlx__cuda_enter_stream(const struct dlx_cuda *cu, int32_t device, CUstream stream,
                           struct dlx_cuda_scope *ret, bool *ret_entered);
/* Enter a context that the caller does not own. */
int dlx__cuda_enter_context(const struct dlx_cuda *cu, CUcontext context,
                            struct dlx_cuda_scope *ret);
void dlx__cuda_leave(struct dlx_cuda_scope *scope);
/* Leave, but keep the device's primary context for the memory; dlx__cuda_drop_context() ends that.
 * */
void dlx__cuda_leave_for(struct dlx_cuda_scope *scope, struct dlx_gpu_memory *memory);
void dlx__cuda_drop_context(const struct dlx_cuda *cu, struct dlx_gpu_memory *memory);

static inline CUdeviceptr dlx__cuda_ptr(const void *address)
{
    return (CUdeviceptr)(uintptr_t)address;
}

/* Close-on-exec: the driver does not promise that. */
void dlx__cuda_cloexec(int borrow_fd);

/*
 * Whether memory that was opened has the size that its publisher says, as far as the driver knows:
 * handles of the older interfaces do not say. DLX_E_PROTOCOL: it has less.
 */
int dlx__cuda_check_size(const struct dlx_cuda *cu, CUdeviceptr at, uint64_t size);

/* What a device may do with memory, in the form that the driver wants. */
CUmemAccessDesc dlx__cuda_access(int32_t device, enum dlx_gpu_access access);

/* gpu/cuda_wait.c */
/* DLX_E_INVALID: it is being captured. */
int dlx__cuda_check_stream(const struct dlx_cuda *cu, CUstream stream);
int dlx__cuda_wait_stream(int32_t device, void *stream);
void *dlx__cuda_own_context(int32_t device);
int dlx__cuda_wait_work(const struct dlx_gpu_work *work);
int dlx__cuda_copy(int32_t device, void *to, const void *from, uint64_t size, void *stream);
int dlx__cuda_copy_to_host(int32_t device, void *to, const void *from, uint64_t size);
int dlx__cuda_event_record(int32_t device, void *stream, struct dlx_gpu_event *ret);
/* Returns 1 if it was not reached and is not to be waited for (`block`). */
int dlx__cuda_event_wait(const struct dlx_gpu_event *event, bool block);
void dlx__cuda_event_end(struct dlx_gpu_event *event);
int dlx__cuda_write_words(const struct dlx_gpu_event *event, void *stream,
                          const struct dlx_gpu_word *words, uint32_t n, uint32_t *ret_n);

/* gpu/cuda_gate.c */
int dlx__cuda_gate_shut(int32_t device, void *stream, bool are_kernels_loaded,
                        const struct dlx_gpu_word *shared, struct dlx_gpu_gate *ret);
int dlx__cuda_page_add(int32_t device, void *page, uint64_t *ret_at);

/* gpu/cuda_host.c */
int dlx__cuda_retain(int32_t device);
void dlx__cuda_release(int32_t device);
int dlx__cuda_pin(int32_t device, const void *at, uint64_t size);
int dlx__cuda_unpin(int32_t device, const void *at);

/* gpu/cuda_classify.c */
int dlx__cuda_check_range(int32_t device, const void *ptr, uint64_t size);
int dlx__cuda_classify(int32_t device, const void *ptr, uint64_t size, struct dlx_gpu_memory *ret);

#endif
