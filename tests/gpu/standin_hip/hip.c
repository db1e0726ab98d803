/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for AMD's HIP runtime: each call is one of the stand-in for NVIDIA's driver
 * (tests/gpu/standin), whose memory, streams, counts and controls it has.
 * tests/gpu/standin/README.md says what that proves.
 *
 * The runtime chooses a device per thread and keeps each device that was used until the process
 * ends. So does this: the primary context of a device is retained by the first call that needs it,
 * and made current for each call.
 */
#include "tests/gpu/standin/standin.h"

#include <pthread.h>
#include <string.h>

/* The runtime's functions are exported. */
#pragma GCC visibility push(default)
#include <hip/hip_runtime_api.h>
#pragma GCC visibility pop

#define MAX_DEVICES 8

/* In the static block of each thread: for memory that the loader allocates for a thread,
 * LeakSanitizer of gcc 12 takes what lies before it for the loader's, if it begins 16 bytes into a
 * page, and crashes on that. */
static _Thread_local int current __attribute__((tls_model("initial-exec")));
static int n_devices; /* set by hipInit() */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUcontext contexts[MAX_DEVICES]; /* NULL: the device was not used */

/* Errors have the same numbers, as far as both have them. */
static hipError_t error_of(CUresult result)
{
    return (hipError_t)result;
}

static CUdeviceptr address_of(const void *p)
{
    return (CUdeviceptr)(uintptr_t)p;
}

static CUresult enter(void)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    if (!contexts[current])
        result = cuDevicePrimaryCtxRetain(&contexts[current], current);
    CUcontext context = contexts[current];
    pthread_mutex_unlock(&lock);
    return result == CUDA_SUCCESS ? cuCtxPushCurrent(context) : result;
}

/* A call in the context of the thread's device. */
#define IN_CONTEXT(call)                                                                           \
    CUcontext popped;                                                                              \
    CUresult result = enter();                                                                     \
    if (result != CUDA_SUCCESS)                                                                    \
        return error_of(result);                                                                   \
    result = (call);                                                                               \
    (void)cuCtxPopCurrent(&popped);                                                                \
    return error_of(result)

/* ---- the runtime and its devices -------------------------------------------------------- */

hipError_t hipInit(unsigned flags)
{
    CUresult result = cuInit(flags);
    return error_of(result == CUDA_SUCCESS ? cuDeviceGetCount(&n_devices) : result);
}

hipError_t hipRuntimeGetVersion(int *ret)
{
    *ret = HIP_VERSION;
    return hipSuccess;
}

const char *hipGetErrorName(hipError_t error)
{
    const char *name;
    return cuGetErrorName((CUresult)error, &name) == CUDA_SUCCESS ? name : "hipErrorUnknown";
}

const char *hipGetErrorString(hipError_t error)
{
    const char *text;
    return cuGetErrorString((CUresult)error, &text) == CUDA_SUCCESS ? text : "unknown";
}

hipError_t hipGetDeviceCount(int *ret)
{
    return error_of(cuDeviceGetCount(ret));
}

hipError_t hipGetDevice(int *ret)
{
    *ret = current;
    return hipSuccess;
}

hipError_t hipSetDevice(int device)
{
    if (device < 0 || device >= n_devices)
        return hipErrorInvalidDevice;
    current = device;
    return hipSuccess;
}

hipError_t hipDeviceGetUuid(hipUUID *ret, hipDevice_t device)
{
    CUuuid uuid;
    CUresult result = cuDeviceGetUuid(&uuid, device);
    if (result == CUDA_SUCCESS)
        memcpy(ret->bytes, uuid.bytes, sizeof ret->bytes);
    return error_of(result);
}

hipError_t hipDeviceTotalMem(size_t *ret, hipDevice_t device)
{
    return error_of(cuDeviceTotalMem(ret, device));
}

hipError_t hipDeviceCanAccessPeer(int *ret, int device, int peer)
{
    return error_of(cuDeviceCanAccessPeer(ret, device, peer));
}

hipError_t hipDeviceSynchronize(void)
{
    IN_CONTEXT(cuCtxSynchronize());
}

/* ---- pointers ---------------------------------------------------------------------------- */

/* Attributes have the same numbers. The range is that of a mapping, and not of what was reserved;
 * the memory types of versions before 6 begin with 0. */
hipError_t hipDrvPointerGetAttributes(unsigned n, hipPointer_attribute *attributes, void **data,
                                      hipDeviceptr_t at)
{
    CUpointer_attribute which[16];
    if (n == 0 || n > sizeof which / sizeof which[0])
        return hipErrorInvalidValue;
    for (unsigned i = 0; i < n; i++)
        which[i] = attributes[i] == HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR
                       ? CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR
                   : attributes[i] == HIP_POINTER_ATTRIBUTE_RANGE_SIZE
                       ? CU_POINTER_ATTRIBUTE_MAPPING_SIZE
                       : (CUpointer_attribute)attributes[i];
    CUresult result = cuPointerGetAttributes(n, which, data, address_of(at));
    for (unsigned i = 0; i < n && result == CUDA_SUCCESS; i++) {
        unsigned *type = data[i];
        if (which[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE && *type != 0)
            *type = *type == CU_MEMORYTYPE_HOST ? hipMemoryTypeHost : hipMemoryTypeDevice;
    }
    return error_of(result);
}

/* ---- memory of hipMalloc between processes ------------------------------------------------ */

hipError_t hipIpcGetMemHandle(hipIpcMemHandle_t *ret, void *at)
{
    IN_CONTEXT(cuIpcGetMemHandle((CUipcMemHandle *)ret, address_of(at)));
}

hipError_t hipIpcOpenMemHandle(void **ret, hipIpcMemHandle_t handle, unsigned flags)
{
    CUipcMemHandle ipc;
    if (flags != hipIpcMemLazyEnablePeerAccess)
        return hipErrorInvalidValue;
    memcpy(&ipc, &handle, sizeof ipc);
    IN_CONTEXT(cuIpcOpenMemHandle((CUdeviceptr *)ret, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
}

hipError_t hipIpcCloseMemHandle(void *at)
{
    IN_CONTEXT(cuIpcCloseMemHandle(address_of(at)));
}

/* ---- virtual memory ----------------------------------------------------------------------- */

static CUmemAllocationProp prop_of(const hipMemAllocationProp *prop)
{
    CUmemAllocationProp ret;
    memset(&ret, 0, sizeof ret);
    ret.type = (CUmemAllocationType)prop->type;
    ret.requestedHandleTypes = (CUmemAllocationHandleType)prop->requestedHandleType;
    ret.location.type = (CUmemLocationType)prop->location.type;
    ret.location.id = prop->location.id;
    return ret;
}

static CUmemGenericAllocationHandle handle_of(hipMemGenericAllocationHandle_t handle)
{
    return (CUmemGenericAllocationHandle)(uintptr_t)handle;
}

/* Handles have the same size in both. */
static CUmemGenericAllocationHandle *handle_to(hipMemGenericAllocationHandle_t *ret)
{
    _Static_assert(sizeof *ret == sizeof(CUmemGenericAllocationHandle), "handle");
    return (CUmemGenericAllocationHandle *)(void *)ret;
}

hipError_t hipMemGetAllocationGranularity(size_t *ret, const hipMemAllocationProp *prop,
                                          hipMemAllocationGranularity_flags option)
{
    CUmemAllocationProp of = prop_of(prop);
    return error_of(
        cuMemGetAllocationGranularity(ret, &of, (CUmemAllocationGranularity_flags)option));
}

hipError_t hipMemCreate(hipMemGenericAllocationHandle_t *ret, size_t size,
                        const hipMemAllocationProp *prop, unsigned long long flags)
{
    CUmemAllocationProp of = prop_of(prop);
    return error_of(cuMemCreate(handle_to(ret), size, &of, flags));
}

hipError_t hipMemRelease(hipMemGenericAllocationHandle_t handle)
{
    return error_of(cuMemRelease(handle_of(handle)));
}

hipError_t hipMemRetainAllocationHandle(hipMemGenericAllocationHandle_t *ret, void *at)
{
    return error_of(cuMemRetainAllocationHandle(handle_to(ret), at));
}

hipError_t hipMemExportToShareableHandle(void *ret, hipMemGenericAllocationHandle_t handle,
                                         hipMemAllocationHandleType type, unsigned long long flags)
{
    return error_of(cuMemExportToShareableHandle(ret, handle_of(handle),
                                                 (CUmemAllocationHandleType)type, flags));
}

hipError_t hipMemImportFromShareableHandle(hipMemGenericAllocationHandle_t *ret, void *os_handle,
                                           hipMemAllocationHandleType type)
{
    return error_of(
        cuMemImportFromShareableHandle(handle_to(ret), os_handle, (CUmemAllocationHandleType)type));
}

hipError_t hipMemAddressReserve(void **ret, size_t size, size_t alignment, void *at,
                                unsigned long long flags)
{
    return error_of(
        cuMemAddressReserve((CUdeviceptr *)ret, size, alignment, address_of(at), flags));
}

hipError_t hipMemAddressFree(void *at, size_t size)
{
    return error_of(cuMemAddressFree(address_of(at), size));
}

hipError_t hipMemMap(void *at, size_t size, size_t offset, hipMemGenericAllocationHandle_t handle,
                     unsigned long long flags)
{
    return error_of(cuMemMap(address_of(at), size, offset, handle_of(handle), flags));
}

hipError_t hipMemUnmap(void *at, size_t size)
{
    return error_of(cuMemUnmap(address_of(at), size));
}

hipError_t hipMemSetAccess(void *at, size_t size, const hipMemAccessDesc *access, size_t count)
{
    CUmemAccessDesc of[MAX_DEVICES];
    if (!access || count > MAX_DEVICES)
        return hipErrorInvalidValue;
    memset(of, 0, sizeof of);
    for (size_t i = 0; i < count; i++) {
        of[i].location.type = (CUmemLocationType)access[i].location.type;
        of[i].location.id = access[i].location.id;
        of[i].flags = (CUmemAccess_flags)access[i].flags;
    }
    return error_of(cuMemSetAccess(address_of(at), size, of, count));
}

/* ---- streams ------------------------------------------------------------------------------ */

hipError_t hipStreamCreateWithFlags(hipStream_t *ret, unsigned flags)
{
    IN_CONTEXT(cuStreamCreate((CUstream *)ret, flags));
}

hipError_t hipStreamDestroy(hipStream_t stream)
{
    return error_of(cuStreamDestroy((CUstream)stream));
}

hipError_t hipStreamSynchronize(hipStream_t stream)
{
    IN_CONTEXT(cuStreamSynchronize((CUstream)stream));
}

hipError_t hipStreamIsCapturing(hipStream_t stream, hipStreamCaptureStatus *ret)
{
    IN_CONTEXT(cuStreamIsCapturing((CUstream)stream, (CUstreamCaptureStatus *)ret));
}

/* Modes have the same numbers. */
hipError_t hipThreadExchangeStreamCaptureMode(hipStreamCaptureMode *mode)
{
    return error_of(cuThreadExchangeStreamCaptureMode((CUstreamCaptureMode *)mode));
}

hipError_t hipMemcpyDtoDAsync(hipDeviceptr_t to, hipDeviceptr_t from, size_t size,
                              hipStream_t stream)
{
    IN_CONTEXT(cuMemcpyDtoDAsync(address_of(to), address_of(from), size, (CUstream)stream));
}

hipError_t hipMemcpyDtoHAsync(void *to, hipDeviceptr_t from, size_t size, hipStream_t stream)
{
    IN_CONTEXT(cuMemcpyDtoHAsync(to, address_of(from), size, (CUstream)stream));
}

hipError_t hipMemsetD32Async(hipDeviceptr_t to, int value, size_t count, hipStream_t stream)
{
    IN_CONTEXT(cuMemsetD32Async(address_of(to), (unsigned)value, count, (CUstream)stream));
}

/* ---- memory of the host ------------------------------------------------------------------- */

/* Memory that is mapped read-only is pinned without a flag for it. */
hipError_t hipHostRegister(void *at, size_t size, unsigned flags)
{
    if (flags != hipHostRegisterPortable)
        return hipErrorInvalidValue;
    IN_CONTEXT(
        cuMemHostRegister(at, size, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_READ_ONLY));
}

hipError_t hipHostUnregister(void *at)
{
    IN_CONTEXT(cuMemHostUnregister(at));
}
