/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_STANDIN_CALLS_H
#define DLX_STANDIN_CALLS_H

/*
 * Every driver call that the stand-in has: name, the CUDA version that introduced it
 * (cuGetProcAddress refuses it to callers that ask for less), and what is checked on entry.
 *
 *   CONTEXT   a context must be current, and its sticky error is returned
 *   SYNC      counts as a synchronising call
 *   UNSAFE    illegal while a stream of the process is captured (mode GLOBAL), unless the mode of
 *             the calling thread is RELAXED
 *   NEVER_CAPTURED  illegal while a stream of the process is captured, whatever the modes
 *   EARLY     allowed before cuInit
 */
#define CALLS(X)                                                                                   \
    X(cuInit, 2000, EARLY)                                                                         \
    X(cuDriverGetVersion, 2020, EARLY)                                                             \
    X(cuGetErrorName, 6000, EARLY)                                                                 \
    X(cuGetErrorString, 6000, EARLY)                                                               \
    X(cuGetProcAddress, 11030, EARLY)                                                              \
    X(cuDeviceGetCount, 2000, 0)                                                                   \
    X(cuDeviceGet, 2000, 0)                                                                        \
    X(cuDeviceGetName, 2000, 0)                                                                    \
    X(cuDeviceGetUuid, 9020, 0)                                                                    \
    X(cuDeviceTotalMem, 3020, 0)                                                                   \
    X(cuDeviceGetAttribute, 2000, 0)                                                               \
    X(cuDeviceCanAccessPeer, 4000, 0)                                                              \
    X(cuDevicePrimaryCtxRetain, 7000, 0)                                                           \
    X(cuDevicePrimaryCtxRelease, 7000, 0)                                                          \
    X(cuDevicePrimaryCtxGetState, 7000, 0)                                                         \
    X(cuCtxCreate, 3020, 0)                                                                        \
    X(cuCtxDestroy, 4000, 0)                                                                       \
    X(cuCtxGetDevice, 2000, CONTEXT)                                                               \
    X(cuCtxPushCurrent, 4000, 0)                                                                   \
    X(cuCtxPopCurrent, 4000, 0)                                                                    \
    X(cuCtxSetCurrent, 4000, 0)                                                                    \
    X(cuCtxGetCurrent, 4000, 0)                                                                    \
    X(cuCtxGetId, 12000, 0)                                                                        \
    X(cuCtxSynchronize, 2000, CONTEXT | SYNC | NEVER_CAPTURED)                                     \
    X(cuModuleGetLoadingMode, 11070, 0)                                                            \
    X(cuMemGetInfo, 3020, CONTEXT)                                                                 \
    X(cuMemAlloc, 3020, CONTEXT | UNSAFE)                                                          \
    X(cuMemAllocManaged, 6000, CONTEXT | UNSAFE)                                                   \
    X(cuMemFree, 3020, CONTEXT | SYNC | UNSAFE)                                                    \
    X(cuMemHostAlloc, 2020, CONTEXT | UNSAFE)                                                      \
    X(cuMemFreeHost, 2000, CONTEXT | SYNC | UNSAFE)                                                \
    X(cuMemHostRegister, 6050, CONTEXT | UNSAFE)                                                   \
    X(cuMemHostUnregister, 4000, CONTEXT | SYNC | UNSAFE)                                          \
    X(cuMemHostGetDevicePointer, 3020, CONTEXT)                                                    \
    X(cuMemcpyHtoD, 3020, CONTEXT | SYNC)                                                          \
    X(cuMemcpyDtoH, 3020, CONTEXT | SYNC)                                                          \
    X(cuMemcpyHtoDAsync, 3020, CONTEXT)                                                            \
    X(cuMemcpyDtoHAsync, 3020, CONTEXT)                                                            \
    X(cuMemcpyDtoDAsync, 3020, CONTEXT)                                                            \
    X(cuMemsetD32, 3020, CONTEXT)                                                                  \
    X(cuMemsetD32Async, 3020, CONTEXT)                                                             \
    X(cuMemGetAllocationGranularity, 10020, 0)                                                     \
    X(cuMemCreate, 10020, 0)                                                                       \
    X(cuMemRelease, 10020, 0)                                                                      \
    X(cuMemRetainAllocationHandle, 11000, 0)                                                       \
    X(cuMemExportToShareableHandle, 10020, 0)                                                      \
    X(cuMemImportFromShareableHandle, 10020, 0)                                                    \
    X(cuMemAddressReserve, 10020, 0)                                                               \
    X(cuMemAddressFree, 10020, 0)                                                                  \
    X(cuMemMap, 10020, 0)                                                                          \
    X(cuMemUnmap, 10020, 0)                                                                        \
    X(cuMemSetAccess, 10020, 0)                                                                    \
    X(cuIpcGetMemHandle, 4010, CONTEXT)                                                            \
    X(cuIpcOpenMemHandle, 11000, CONTEXT)                                                          \
    X(cuIpcCloseMemHandle, 4010, CONTEXT | SYNC)                                                   \
    X(cuIpcGetEventHandle, 4010, CONTEXT)                                                          \
    X(cuIpcOpenEventHandle, 4010, CONTEXT)                                                         \
    X(cuMemPoolCreate, 11020, 0)                                                                   \
    X(cuMemPoolDestroy, 11020, UNSAFE)                                                             \
    X(cuMemPoolSetAccess, 11020, 0)                                                                \
    X(cuMemPoolExportToShareableHandle, 11020, 0)                                                  \
    X(cuMemPoolImportFromShareableHandle, 11020, UNSAFE)                                           \
    X(cuMemPoolExportPointer, 11020, 0)                                                            \
    X(cuMemPoolImportPointer, 11020, UNSAFE)                                                       \
    X(cuMemAllocFromPoolAsync, 11020, CONTEXT)                                                     \
    X(cuMemFreeAsync, 11020, CONTEXT)                                                              \
    X(cuPointerGetAttribute, 4000, 0)                                                              \
    X(cuPointerGetAttributes, 7000, 0)                                                             \
    X(cuEventCreate, 2000, CONTEXT)                                                                \
    X(cuEventDestroy, 4000, 0)                                                                     \
    X(cuEventRecord, 2000, CONTEXT)                                                                \
    X(cuEventQuery, 2000, CONTEXT | UNSAFE)                                                        \
    X(cuEventSynchronize, 2000, CONTEXT | SYNC | UNSAFE)                                           \
    X(cuStreamCreate, 2000, CONTEXT)                                                               \
    X(cuStreamDestroy, 4000, 0)                                                                    \
    X(cuStreamQuery, 2000, CONTEXT | UNSAFE)                                                       \
    X(cuStreamSynchronize, 2000, CONTEXT | SYNC | UNSAFE)                                          \
    X(cuStreamWaitEvent, 3020, CONTEXT)                                                            \
    X(cuStreamGetCtx, 9020, CONTEXT)                                                               \
    X(cuStreamBeginCapture, 10010, CONTEXT)                                                        \
    X(cuStreamEndCapture, 10000, CONTEXT)                                                          \
    X(cuStreamIsCapturing, 10000, CONTEXT)                                                         \
    X(cuThreadExchangeStreamCaptureMode, 10010, 0)                                                 \
    X(cuGraphDestroy, 10000, 0)                                                                    \
    X(cuStreamWaitValue32, 11070, CONTEXT)                                                         \
    X(cuStreamWaitValue64, 11070, CONTEXT)                                                         \
    X(cuStreamWriteValue32, 11070, CONTEXT)                                                        \
    X(cuStreamWriteValue64, 11070, CONTEXT)                                                        \
    X(cuLaunchHostFunc, 10000, CONTEXT)

/* What tests enqueue counts, fails and is delayed like a call of the driver. */
#define TEST_CALLS(X) X(standin_launch, 0, CONTEXT)

enum { CONTEXT = 1, SYNC = 2, UNSAFE = 4, EARLY = 8, NEVER_CAPTURED = 16 };

enum call_id {
#define X(name, since, flags) CALL_##name,
    CALLS(X) TEST_CALLS(X)
#undef X
        N_CALLS
};

#endif
