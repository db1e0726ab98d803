/* SPDX-License-Identifier: Apache-2.0 */
/*
 * E13: which calls a stream that is captured in mode GLOBAL disturbs, and which disturb its
 * capture. All of them are about other streams, and other memory.
 */
#include "tests/gpu/facts/facts.h"

#if DLX_TEST_HAS_GPU

#define SIZE    DLX_TEST_GPU_CHUNK
#define FD_TYPE CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define PAGE    4096

/* An allocation that another process has shared. */
struct offer {
    CUipcMemHandle memory;
    CUmemPoolPtrExportData data;
    int32_t result; /* of the pool's */
};

/* The objects that the calls use and make, in their order. */
static struct {
    CUstream stream, made_stream;
    CUevent event;
    CUcontext context;
    CUmemGenericAllocationHandle handle, retained, imported;
    CUmemAllocationProp prop;
    CUmemAccessDesc access;
    CUdeviceptr at, import_at, plain, opened, word, pool_at;
    CUmemoryPool pool;
    CUipcMemHandle ipc;
    struct offer offer;
    int fd, pool_fd;
    uint32_t *page;
} x;

static CUresult ask_pointer(void)
{
    uint64_t size;
    return cu.cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, x.at);
}

static CUresult pop_and_push(void)
{
    CUresult r = cu.cuCtxPopCurrent(&x.context);
    return r == CUDA_SUCCESS ? cu.cuCtxPushCurrent(x.context) : r;
}

#define CAPTURED_CALLS(X)                                                                          \
    X(cuCtxPushCurrent, pop_and_push())                                                            \
    X(cuDevicePrimaryCtxRetain, cu.cuDevicePrimaryCtxRetain(&x.context, 0))                        \
    X(cuDevicePrimaryCtxRelease, cu.cuDevicePrimaryCtxRelease(0))                                  \
    X(cuMemCreate, cu.cuMemCreate(&x.handle, SIZE, &x.prop, 0))                                    \
    X(cuMemAddressReserve, cu.cuMemAddressReserve(&x.at, SIZE, 0, 0, 0))                           \
    X(cuMemMap, cu.cuMemMap(x.at, SIZE, 0, x.handle, 0))                                           \
    X(cuMemSetAccess, cu.cuMemSetAccess(x.at, SIZE, &x.access, 1))                                 \
    X(cuMemExportToShareableHandle, cu.cuMemExportToShareableHandle(&x.fd, x.handle, FD_TYPE, 0))  \
    X(cuMemRetainAllocationHandle,                                                                 \
      cu.cuMemRetainAllocationHandle(&x.retained, (void *)(uintptr_t)x.at))                        \
    X(cuPointerGetAttribute, ask_pointer())                                                        \
    X(cuMemImportFromShareableHandle,                                                              \
      cu.cuMemImportFromShareableHandle(&x.imported, (void *)(uintptr_t)x.fd, FD_TYPE))            \
    X(cuStreamCreate, cu.cuStreamCreate(&x.made_stream, CU_STREAM_NON_BLOCKING))                   \
    X(cuMemsetD32Async, cu.cuMemsetD32Async(x.at, 7, 64, x.stream))                                \
    X(cuMemcpyDtoDAsync, cu.cuMemcpyDtoDAsync(x.at + 4096, x.at, 64, x.stream))                    \
    X(cuStreamSynchronize, cu.cuStreamSynchronize(x.stream))                                       \
    X(cuStreamQuery, cu.cuStreamQuery(x.stream))                                                   \
    X(cuEventCreate, cu.cuEventCreate(&x.event, CU_EVENT_DISABLE_TIMING))                          \
    X(cuEventRecord, cu.cuEventRecord(x.event, x.stream))                                          \
    X(cuEventSynchronize, cu.cuEventSynchronize(x.event))                                          \
    X(cuEventQuery, cu.cuEventQuery(x.event))                                                      \
    X(cuStreamWaitEvent, cu.cuStreamWaitEvent(x.stream, x.event, 0))                               \
    X(cuEventDestroy, cu.cuEventDestroy(x.event))                                                  \
    X(cuMemHostRegister, cu.cuMemHostRegister(x.page, PAGE, CU_MEMHOSTREGISTER_DEVICEMAP))         \
    X(cuMemHostGetDevicePointer, cu.cuMemHostGetDevicePointer(&x.word, x.page, 0))                 \
    X(cuStreamWaitValue32, cu.cuStreamWaitValue32(x.stream, x.word, 0, CU_STREAM_WAIT_VALUE_GEQ))  \
    X(cuMemHostUnregister, cu.cuMemHostUnregister(x.page))                                         \
    X(cuStreamDestroy, cu.cuStreamDestroy(x.made_stream))                                          \
    X(cuMemUnmap, cu.cuMemUnmap(x.at, SIZE))                                                       \
    X(cuMemAddressFree, cu.cuMemAddressFree(x.at, SIZE))                                           \
    X(cuMemRelease, cu.cuMemRelease(x.handle))                                                     \
    X(cuMemAlloc, cu.cuMemAlloc(&x.plain, SIZE))                                                   \
    X(cuIpcGetMemHandle, cu.cuIpcGetMemHandle(&x.ipc, x.plain))                                    \
    X(cuMemFree, cu.cuMemFree(x.plain))                                                            \
    X(cuIpcOpenMemHandle,                                                                          \
      cu.cuIpcOpenMemHandle(&x.opened, x.offer.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS))        \
    X(cuIpcCloseMemHandle, cu.cuIpcCloseMemHandle(x.opened))                                       \
    X(cuMemPoolImportFromShareableHandle,                                                          \
      cu.cuMemPoolImportFromShareableHandle(&x.pool, (void *)(uintptr_t)x.pool_fd, FD_TYPE, 0))    \
    X(cuMemPoolImportPointer, cu.cuMemPoolImportPointer(&x.pool_at, x.pool, &x.offer.data))        \
    X(cuMemPoolDestroy, cu.cuMemPoolDestroy(x.pool))                                               \
    X(cuCtxSynchronize, cu.cuCtxSynchronize())

#define X(name, call)                                                                              \
    static CUresult call_##name(void)                                                              \
    {                                                                                              \
        return call;                                                                               \
    }
CAPTURED_CALLS(X)
#undef X

static const struct {
    const char *name;
    CUresult (*fn)(void);
} calls[] = {
#define X(name, call) {#name, call_##name},
    CAPTURED_CALLS(X)
#undef X
};

static void offer_memory(int sock)
{
    struct offer offer;
    CUdeviceptr at;
    CUmemoryPool pool;
    int fd = -1;
    memset(&offer, 0, sizeof offer);
    dlx_test_gpu_context(0);
    CU_OK(cu.cuMemAlloc(&at, SIZE));
    CU_OK(cu.cuIpcGetMemHandle(&offer.memory, at));
    at = dlx_test_gpu_pool_make(SIZE, FD_TYPE, &pool);
    CUresult r = cu.cuMemPoolExportToShareableHandle(&fd, pool, FD_TYPE, 0);
    if (r == CUDA_SUCCESS)
        r = cu.cuMemPoolExportPointer(&offer.data, at);
    offer.result = (int32_t)r;
    dlx_test_gpu_send(sock, &offer, sizeof offer, fd);
    (void)close(fd);
    facts_serve(sock, 0, 0);
}

/* The call's code while a stream is captured, in that mode of the thread; then the capture's. */
static CUresult call_captured(CUresult (*fn)(void), CUstreamCaptureMode mode, CUresult *ret_end)
{
    CUstream captured;
    CUgraph graph = NULL;
    CU_OK(cu.cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING));
    CU_OK(cu.cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU_OK(cu.cuThreadExchangeStreamCaptureMode(&mode));
    CUresult result = fn();
    CU_OK(cu.cuThreadExchangeStreamCaptureMode(&mode));
    *ret_end = cu.cuStreamEndCapture(captured, &graph);
    dlx_test_gpu_n_captures_broken += *ret_end != CUDA_SUCCESS;
    if (graph)
        CU_OK(cu.cuGraphDestroy(graph));
    CU_OK(cu.cuStreamDestroy(captured));
    return result;
}

/* The name alone stands for the usual: refused, and the capture invalidated. */
static void note(char *list, size_t size, const char *name, CUresult result, CUresult end)
{
    size_t n = strlen(list);
    n += (size_t)snprintf(list + n, size - n, "%s%s", n ? ", " : "", name);
    if (result != CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ||
        end != CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
        (void)snprintf(list + n, size - n, " (%s, capture %s)", facts_code(result),
                       facts_code(end));
}

TEST(E13_calls_during_a_capture)
{
    char refused[900] = "", relaxed[500] = "";
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(offer_memory);
    x.pool_fd = dlx_test_gpu_receive(peer.sock, &x.offer, sizeof x.offer);
    ck_assert_int_eq(x.offer.result, CUDA_SUCCESS);
    dlx_test_gpu_context(0);
    x.prop = dlx_test_gpu_prop(0);
    x.access = dlx_test_gpu_access(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CU_OK(cu.cuStreamCreate(&x.stream, CU_STREAM_NON_BLOCKING));
    x.page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(x.page, MAP_FAILED);
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        CUresult end;
        CUresult r = call_captured(calls[i].fn, CU_STREAM_CAPTURE_MODE_GLOBAL, &end);
        if (r != CUDA_SUCCESS || end != CUDA_SUCCESS)
            note(refused, sizeof refused, calls[i].name + 2, r, end);
        if (r == CUDA_SUCCESS)
            continue;
        r = call_captured(calls[i].fn, CU_STREAM_CAPTURE_MODE_RELAXED, &end);
        if (r != CUDA_SUCCESS || end != CUDA_SUCCESS)
            note(relaxed, sizeof relaxed, calls[i].name + 2, r, end);
    }
    facts_answer("E13 of %zu calls, those that are refused while a stream is captured in mode "
                 "GLOBAL, and invalidate the capture: %s; in a thread whose mode is RELAXED: %s",
                 sizeof calls / sizeof calls[0], refused[0] ? refused : "none",
                 relaxed[0] ? relaxed : "none");
    dlx_test_gpu_kill(&peer);
}

#endif
