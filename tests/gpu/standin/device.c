/* SPDX-License-Identifier: Apache-2.0 */
/* cuInit, versions, error texts, devices and their attributes; how symbols are found. */
#include "tests/gpu/standin/machine.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static void uuid_format(const CUuuid *uuid, char ret[48])
{
    size_t n = (size_t)sprintf(ret, "GPU-");
    for (size_t i = 0; i < sizeof uuid->bytes; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            ret[n++] = '-';
        n += (size_t)sprintf(ret + n, "%02x", (unsigned)(unsigned char)uuid->bytes[i]);
    }
}

/* The machine's ordinal that an entry of CUDA_VISIBLE_DEVICES names, or -1. */
static int visible_entry(const char *text)
{
    char *end;
    long ordinal = strtol(text, &end, 10);
    if (isdigit((unsigned char)*text) && *end == '\0')
        return ordinal < machine->n_devices ? (int)ordinal : -1;
    int found = -1;
    for (int i = 0; i < machine->n_devices; i++) {
        char uuid[48];
        uuid_format(&machine->uuids[i], uuid);
        if (strlen(text) >= 5 && strncasecmp(uuid, text, strlen(text)) == 0)
            found =
                found < 0 ? i : machine->n_devices; /* an abbreviation that fits two names none */
    }
    return found < machine->n_devices ? found : -1;
}

static void find_devices(void)
{
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    state.n_devices = 0;
    if (!list) {
        for (int i = 0; i < machine->n_devices; i++)
            state.visible[state.n_devices++] = i;
        return;
    }
    char *copy = strdup(list), *rest = NULL;
    for (char *one = strtok_r(copy, ", ", &rest); one; one = strtok_r(NULL, ", ", &rest)) {
        int index = visible_entry(one);
        if (index < 0 || state.n_devices == MAX_DEVICES)
            break; /* as with the driver: what follows an invalid entry is invisible */
        state.visible[state.n_devices++] = index;
    }
    free(copy);
}

CUresult CUDAAPI cuInit(unsigned flags)
{
    ENTER(cuInit);
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (state.is_initialised)
        return CUDA_SUCCESS;
    if (!machine && !machine_open())
        return CUDA_ERROR_OPERATING_SYSTEM;
    find_devices();
    if (state.n_devices == 0)
        return CUDA_ERROR_NO_DEVICE;
    const char *connections = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    const char *loading = getenv("CUDA_MODULE_LOADING");
    state.has_one_queue = connections && atoi(connections) == 1;
    state.is_lazy = !loading || strcmp(loading, "EAGER") != 0;
    state.is_initialised = true;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleGetLoadingMode(CUmoduleLoadingMode *ret)
{
    ENTER(cuModuleGetLoadingMode);
    *ret = state.is_lazy ? CU_MODULE_LAZY_LOADING : CU_MODULE_EAGER_LOADING;
    return CUDA_SUCCESS;
}

__attribute__((constructor)) static void read_environment(void)
{
    const char *fail = getenv("STANDIN_FAIL");
    if (fail)
        configure_failures(fail);
}

CUresult CUDAAPI cuDriverGetVersion(int *ret)
{
    ENTER(cuDriverGetVersion);
    *ret = DRIVER_VERSION;
    return CUDA_SUCCESS;
}

#define ERRORS(X)                                                                                  \
    X(CUDA_SUCCESS, "no error")                                                                    \
    X(CUDA_ERROR_INVALID_VALUE, "invalid argument")                                                \
    X(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")                                                   \
    X(CUDA_ERROR_NOT_INITIALIZED, "initialization error")                                          \
    X(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected")                                  \
    X(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal")                                         \
    X(CUDA_ERROR_INVALID_CONTEXT, "invalid device context")                                        \
    X(CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed")                                    \
    X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,                                                          \
      "peer access is not supported between these two devices")                                    \
    X(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS")         \
    X(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle")                                        \
    X(CUDA_ERROR_NOT_FOUND, "named symbol not found")                                              \
    X(CUDA_ERROR_NOT_READY, "device not ready")                                                    \
    X(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered")                      \
    X(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed")                                     \
    X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,                                                   \
      "part or all of the requested memory range is already mapped")                               \
    X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,                                                       \
      "pointer does not correspond to a registered memory region")                                 \
    X(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure")                                      \
    X(CUDA_ERROR_NOT_PERMITTED, "operation not permitted")                                         \
    X(CUDA_ERROR_NOT_SUPPORTED, "operation not supported")                                         \
    X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing")   \
    X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,                                                       \
      "operation failed due to a previous error during capture")                                   \
    X(CUDA_ERROR_STREAM_CAPTURE_ISOLATION,                                                         \
      "dependency created on uncaptured work in another stream")                                   \
    X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,                                                          \
      "operation would make the legacy stream depend on a capturing blocking stream")              \
    X(CUDA_ERROR_CAPTURED_EVENT, "operation not permitted on an event last recorded in a capture") \
    X(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,                                                      \
      "attempt to terminate a thread-local capture sequence from another thread")                  \
    X(CUDA_ERROR_UNKNOWN, "unknown error")

static const struct {
    CUresult code;
    const char *name, *text;
} errors[] = {
#define X(code, text) {code, #code, text},
    ERRORS(X)
#undef X
};

static CUresult error_find(CUresult code, const char **ret, bool is_name)
{
    *ret = NULL;
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (errors[i].code == code)
            *ret = is_name ? errors[i].name : errors[i].text;
    return *ret ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuGetErrorName(CUresult code, const char **ret)
{
    return error_find(code, ret, true);
}

CUresult CUDAAPI cuGetErrorString(CUresult code, const char **ret)
{
    return error_find(code, ret, false);
}

bool device_is_valid(CUdevice device)
{
    return device >= 0 && device < state.n_devices;
}

CUresult CUDAAPI cuDeviceGetCount(int *ret)
{
    ENTER(cuDeviceGetCount);
    *ret = state.n_devices;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGet(CUdevice *ret, int ordinal)
{
    ENTER(cuDeviceGet);
    CHECK_DEVICE(ordinal);
    *ret = ordinal;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetName(char *ret, int size, CUdevice device)
{
    ENTER(cuDeviceGetName);
    CHECK_DEVICE(device);
    if (size <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    (void)snprintf(ret, (size_t)size, "Stand-in GPU %d", state.visible[device]);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetUuid(CUuuid *ret, CUdevice device)
{
    ENTER(cuDeviceGetUuid);
    CHECK_DEVICE(device);
    *ret = machine->uuids[state.visible[device]];
    return CUDA_SUCCESS;
}

/* The same function has two names; which of them cuda.h declares depends on its version. */
#ifdef cuDeviceGetUuid
#undef cuDeviceGetUuid
#define UUID_NAME  "cuDeviceGetUuid_v2"
#define UUID_ALIAS cuDeviceGetUuid
#else
#define UUID_NAME  "cuDeviceGetUuid"
#define UUID_ALIAS cuDeviceGetUuid_v2
#endif
CUresult CUDAAPI UUID_ALIAS(CUuuid *ret, CUdevice device)
    __attribute__((alias(UUID_NAME), visibility("default")));

CUresult CUDAAPI cuDeviceTotalMem(size_t *ret, CUdevice device)
{
    ENTER(cuDeviceTotalMem);
    CHECK_DEVICE(device);
    *ret = machine->memory;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetInfo(size_t *ret_free, size_t *ret_total)
{
    ENTER(cuMemGetInfo);
    if (!ret_free || !ret_total)
        return CUDA_ERROR_INVALID_VALUE;
    *ret_free = memory_free_now(call.context->device);
    *ret_total = machine->memory;
    return CUDA_SUCCESS;
}

#define N_ATTRIBUTES 256

/* What the stand-in has; all others are 0 until a test sets them. */
static int attributes[N_ATTRIBUTES] = {
    [CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES] = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
};

void standin_set_attribute(CUdevice_attribute attribute, int value)
{
    pthread_mutex_lock(&state.lock);
    if ((unsigned)attribute < N_ATTRIBUTES)
        attributes[attribute] = value;
    pthread_mutex_unlock(&state.lock);
}

int device_attribute(CUdevice_attribute attribute)
{
    return attributes[attribute];
}

static bool peers_are_apart;

void standin_part_peers(bool are_apart)
{
    pthread_mutex_lock(&state.lock);
    peers_are_apart = are_apart;
    pthread_mutex_unlock(&state.lock);
}

bool device_reaches(int device, int other)
{
    return device == other || !peers_are_apart;
}

CUresult CUDAAPI cuDeviceCanAccessPeer(int *ret, CUdevice device, CUdevice peer)
{
    ENTER(cuDeviceCanAccessPeer);
    CHECK_DEVICE(device);
    CHECK_DEVICE(peer);
    *ret = device != peer && device_reaches(device, peer);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetAttribute(int *ret, CUdevice_attribute attribute, CUdevice device)
{
    ENTER(cuDeviceGetAttribute);
    CHECK_DEVICE(device);
    if ((unsigned)attribute >= CU_DEVICE_ATTRIBUTE_MAX || attribute <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    *ret = device_attribute(attribute);
    return CUDA_SUCCESS;
}
