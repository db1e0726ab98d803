/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in driver keeps the rules of the real one: memory and events between processes. */
#include "tests/gpu/harness_gpu_machine.h"

#if DLX_TEST_HAS_GPU

#define POSIX CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define LAZY  CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS

static void vmm_drop(CUmemGenericAllocationHandle handle, CUdeviceptr address)
{
    dlx_test_gpu_unmap(address, DLX_TEST_GPU_CHUNK);
    CU_OK(cu.cuMemRelease(handle));
}

static void vmm_exporter(int sock)
{
    int fd;
    (void)dlx_test_gpu_context(0);
    CUmemGenericAllocationHandle handle = dlx_test_gpu_create(DLX_TEST_GPU_CHUNK);
    CUdeviceptr p =
        dlx_test_gpu_map(handle, DLX_TEST_GPU_CHUNK, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CU_OK(cu.cuMemsetD32(p, 4711, DLX_TEST_GPU_CHUNK / 4));
    CU_OK(cu.cuCtxSynchronize());
    CU_OK(cu.cuMemExportToShareableHandle(&fd, handle, POSIX, 0));
    dlx_test_gpu_send(sock, "", 1, fd);
    (void)close(fd);
    dlx_test_gpu_await(sock);
    vmm_drop(handle, p);
    dlx_test_gpu_end_context(0);
}

TEST(vmm_memory_outlives_its_exporter)
{
    char byte;
    CUmemGenericAllocationHandle handle;
    struct dlx_test_gpu_peer exporter = dlx_test_gpu_start(vmm_exporter);
    int fd = dlx_test_gpu_receive(exporter.sock, &byte, 1);
    dlx_test_gpu_kill(&exporter);
    (void)dlx_test_gpu_context(0);
    CU_OK(cu.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, POSIX));
    (void)close(fd);
    CUdeviceptr p = dlx_test_gpu_map(handle, DLX_TEST_GPU_CHUNK, CU_MEM_ACCESS_FLAGS_PROT_READ);
    ck_assert_uint_eq(dlx_test_gpu_word(p + DLX_TEST_GPU_CHUNK - 4), 4711);
    CU_FAILS(cu.cuMemsetD32(p, 1, 1), CUDA_SUCCESS);
    CU_FAILS(cu.cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    CU_OK(cu.cuDevicePrimaryCtxRelease(0));
    vmm_drop(handle, p);
}

/* Ordinals differ between processes. */
LOOP_TEST(vmm_is_on_the_device_of_its_uuid, 0, 2)
{
    static const char *const visible[] = {"1,0", "1"};
    char byte;
    int device;
    CUmemGenericAllocationHandle handle;
    struct dlx_test_gpu_peer exporter = dlx_test_gpu_start(vmm_exporter);
    int fd = dlx_test_gpu_receive(exporter.sock, &byte, 1);
    ck_assert_int_eq(setenv("CUDA_VISIBLE_DEVICES", visible[_i], 1), 0);
    CU_OK(cu.cuInit(0));
    CU_FAILS(cu.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, POSIX),
             _i == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE);
    (void)close(fd);
    if (_i == 0) {
        CUdeviceptr p = dlx_test_gpu_map(handle, DLX_TEST_GPU_CHUNK, CU_MEM_ACCESS_FLAGS_PROT_READ);
        CU_OK(cu.cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p));
        ck_assert_int_eq(device, 1);
        vmm_drop(handle, p);
    }
    dlx_test_gpu_tell(exporter.sock);
    dlx_test_gpu_join(&exporter);
}

TEST(descriptors_that_stay_open_are_counted)
{
    int fd;
    CU_OK(cu.cuInit(0));
    CUmemGenericAllocationHandle handle = dlx_test_gpu_create(DLX_TEST_GPU_CHUNK);
    CU_OK(cu.cuMemExportToShareableHandle(&fd, handle, POSIX, 0));
    CU_OK(cu.cuMemRelease(handle));
    ck_assert_int_eq(standin.standin_open_fds(), 1);
    (void)close(fd);
    ck_assert_uint_eq(standin.standin_count(STANDIN_FDS_EXPORTED), 1);
}

static void legacy_exporter(int sock)
{
    CUdeviceptr p;
    CUipcMemHandle handle, base;
    (void)dlx_test_gpu_context(0);
    CU_OK(cu.cuMemAlloc(&p, 10000));
    CU_OK(cu.cuMemsetD32(p, 815, 2500));
    CU_OK(cu.cuCtxSynchronize());
    CU_OK(cu.cuIpcGetMemHandle(&handle, p + 400)); /* names the whole allocation */
    CU_OK(cu.cuIpcGetMemHandle(&base, p));
    ck_assert_int_eq(memcmp(&handle, &base, sizeof base), 0);
    dlx_test_gpu_send(sock, &handle, sizeof handle, -1);
    dlx_test_gpu_await(sock);
    CU_OK(cu.cuMemFree(p));
    uint64_t too_early = standin.standin_count(STANDIN_FREED_WHILE_OPEN);
    dlx_test_gpu_send(sock, &too_early, sizeof too_early, -1);
    dlx_test_gpu_await(sock);
    dlx_test_gpu_end_context(0);
}

/* The importer's part, to the point where it has opened the handle. */
static CUdeviceptr legacy_open(struct dlx_test_gpu_peer *exporter, CUipcMemHandle *ret)
{
    CUdeviceptr p;
    *exporter = dlx_test_gpu_start(legacy_exporter);
    (void)dlx_test_gpu_receive(exporter->sock, ret, sizeof *ret);
    (void)dlx_test_gpu_context(0);
    CU_OK(cu.cuIpcOpenMemHandle(&p, *ret, LAZY));
    return p;
}

static uint64_t legacy_freed(struct dlx_test_gpu_peer *exporter)
{
    uint64_t too_early;
    dlx_test_gpu_tell(exporter->sock);
    (void)dlx_test_gpu_receive(exporter->sock, &too_early, sizeof too_early);
    return too_early;
}

TEST(legacy_opens_are_counted)
{
    struct dlx_test_gpu_peer exporter;
    CUipcMemHandle handle;
    CUdeviceptr again;
    CUdeviceptr p = legacy_open(&exporter, &handle);
    CU_OK(cu.cuIpcOpenMemHandle(&again, handle, LAZY));
    ck_assert_uint_eq(again, p);
    ck_assert_uint_eq(standin.standin_count(STANDIN_IPC_MAPPINGS), 2);
    CU_FAILS(cu.cuIpcOpenMemHandle(&again, handle, 0), CUDA_ERROR_INVALID_VALUE);
    ck_assert_uint_eq(dlx_test_gpu_word(p + 9996), 815);
    CU_FAILS(cu.cuMemFree(p), CUDA_ERROR_INVALID_VALUE);
    CU_FAILS(cu.cuIpcCloseMemHandle(p + 400), CUDA_ERROR_INVALID_VALUE);
    CU_OK(cu.cuIpcCloseMemHandle(p));
    ck_assert_uint_eq(dlx_test_gpu_word(p), 815);
    CU_OK(cu.cuIpcCloseMemHandle(p));
    CU_FAILS(cu.cuIpcCloseMemHandle(p), CUDA_ERROR_INVALID_VALUE);
    ck_assert_uint_eq(legacy_freed(&exporter), 0);
    CU_FAILS(cu.cuIpcOpenMemHandle(&p, handle, LAZY), CUDA_ERROR_INVALID_HANDLE);
    dlx_test_gpu_tell(exporter.sock);
    dlx_test_gpu_join(&exporter);
}

TEST(legacy_memory_freed_too_early)
{
    struct dlx_test_gpu_peer exporter;
    CUipcMemHandle handle;
    CUdeviceptr p = legacy_open(&exporter, &handle);
    (void)dlx_test_gpu_word(p);
    ck_assert_uint_eq(standin.standin_count(STANDIN_USED_AFTER_REVOKE), 0);
    ck_assert_uint_eq(legacy_freed(&exporter), 1);
    (void)dlx_test_gpu_word(p);
    ck_assert_uint_eq(standin.standin_count(STANDIN_USED_AFTER_REVOKE), 1);
    ck_assert_uint_eq(standin.standin_count_of(exporter.pid, STANDIN_FREED_WHILE_OPEN), 1);
    CU_OK(cu.cuIpcCloseMemHandle(p));
    dlx_test_gpu_tell(exporter.sock);
    dlx_test_gpu_join(&exporter);
}

TEST(legacy_memory_of_a_dead_exporter)
{
    struct dlx_test_gpu_peer exporter;
    CUipcMemHandle handle;
    CUdeviceptr p = legacy_open(&exporter, &handle);
    pid_t pid = exporter.pid;
    dlx_test_gpu_kill(&exporter);
    (void)dlx_test_gpu_word(p);
    ck_assert_uint_eq(standin.standin_count(STANDIN_USED_AFTER_REVOKE), 1);
    CU_OK(cu.cuIpcCloseMemHandle(p));
    CU_FAILS(cu.cuIpcOpenMemHandle(&p, handle, LAZY), CUDA_ERROR_INVALID_HANDLE);
    ck_assert_uint_eq(standin.standin_count_of(pid, STANDIN_ALLOCATIONS), 1); /* as it died */
}

TEST(legacy_in_the_own_process)
{
    CUdeviceptr p, opened;
    CUipcMemHandle handle;
    CUmemoryPool pool;
    memset(&handle, 0, sizeof handle);
    CU_OK(cu.cuInit(0));
    CU_FAILS(cu.cuIpcOpenMemHandle(&opened, handle, LAZY), CUDA_ERROR_INVALID_CONTEXT);
    (void)dlx_test_gpu_context(0);
    CU_FAILS(cu.cuIpcOpenMemHandle(&opened, handle, LAZY), CUDA_ERROR_INVALID_VALUE);
    CU_OK(cu.cuMemAlloc(&p, 100));
    CU_OK(cu.cuIpcGetMemHandle(&handle, p));
    CU_FAILS(cu.cuIpcOpenMemHandle(&opened, handle, LAZY), CUDA_ERROR_INVALID_CONTEXT);
    CU_OK(cu.cuMemFree(p));
    p = dlx_test_gpu_pool_make(100, POSIX, &pool);
    CU_FAILS(cu.cuIpcGetMemHandle(&handle, p), CUDA_ERROR_INVALID_VALUE);
    dlx_test_gpu_pool_free(pool, p);
}

static void child_of_a_user(int sock)
{
    int n;
    CUcontext context;
    CU_FAILS(cu.cuInit(0), CUDA_ERROR_NOT_INITIALIZED);
    CU_FAILS(cu.cuDeviceGetCount(&n), CUDA_ERROR_NOT_INITIALIZED);
    CU_FAILS(cu.cuCtxGetCurrent(&context), CUDA_ERROR_NOT_INITIALIZED);
    dlx_test_gpu_tell(sock);
}

TEST(the_driver_is_unusable_after_fork)
{
    (void)dlx_test_gpu_context(0);
    struct dlx_test_gpu_peer child = dlx_test_gpu_start(child_of_a_user);
    dlx_test_gpu_await(child.sock);
    dlx_test_gpu_join(&child);
    ck_assert_uint_eq(standin.standin_count(STANDIN_CALLS_AFTER_FORK), 2); /* cuInit may be tried */
}

static void event_exporter(int sock)
{
    CUevent event;
    CUipcEventHandle handle;
    CUstream stream;
    CUdeviceptr word;
    (void)dlx_test_gpu_context(0);
    CU_OK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU_OK(cu.cuMemAlloc(&word, 8));
    CU_OK(cu.cuStreamWriteValue64(NULL, word, 0, 0));
    CU_OK(cu.cuCtxSynchronize());
    CU_OK(cu.cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    CU_OK(cu.cuIpcGetEventHandle(&handle, event));
    dlx_test_gpu_send(sock, &handle, sizeof handle, -1);
    dlx_test_gpu_await(sock); /* the peer waited for what was never recorded */
    CU_OK(cu.cuStreamWaitValue64(stream, word, 1, CU_STREAM_WAIT_VALUE_GEQ));
    CU_OK(cu.cuEventRecord(event, stream));
    dlx_test_gpu_tell(sock);
    dlx_test_gpu_await(sock); /* and saw that it is not ready */
    CU_OK(cu.cuStreamWriteValue64(NULL, word, 1, 0));
    CU_OK(cu.cuStreamSynchronize(stream));
    dlx_test_gpu_await(sock);
    CU_OK(cu.cuEventDestroy(event));
    CU_OK(cu.cuMemFree(word));
    CU_OK(cu.cuStreamDestroy(stream));
    dlx_test_gpu_end_context(0);
}

TEST(events_between_processes)
{
    CUipcEventHandle handle;
    CUevent event, late;
    CUstream stream;
    struct dlx_test_gpu_peer exporter = dlx_test_gpu_start(event_exporter);
    (void)dlx_test_gpu_receive(exporter.sock, &handle, sizeof handle);
    (void)dlx_test_gpu_context(0);
    CU_OK(cu.cuIpcOpenEventHandle(&event, handle));
    CU_OK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU_OK(cu.cuStreamWaitEvent(stream, event, 0));
    CU_OK(cu.cuStreamSynchronize(stream));
    dlx_test_gpu_tell(exporter.sock);
    dlx_test_gpu_await(exporter.sock);
    CU_FAILS(cu.cuEventQuery(event), CUDA_ERROR_NOT_READY);
    CU_OK(cu.cuStreamWaitEvent(stream, event, 0));
    CU_FAILS(cu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    dlx_test_gpu_tell(exporter.sock);
    CU_OK(cu.cuStreamSynchronize(stream));
    CU_OK(cu.cuEventQuery(event));
    dlx_test_gpu_tell(exporter.sock);
    dlx_test_gpu_join(&exporter);
    CU_OK(cu.cuEventDestroy(event));
    CU_FAILS(cu.cuIpcOpenEventHandle(&late, handle), CUDA_ERROR_INVALID_HANDLE);
    CU_OK(cu.cuStreamDestroy(stream));
}

static void event_victim(int sock)
{
    CUevent event;
    CUipcEventHandle handle;
    CUdeviceptr word;
    (void)dlx_test_gpu_context(0);
    CU_OK(cu.cuMemAlloc(&word, 8));
    CU_OK(cu.cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    CU_OK(cu.cuIpcGetEventHandle(&handle, event));
    CU_OK(cu.cuStreamWriteValue64(NULL, word, 0, 0));
    CU_OK(cu.cuCtxSynchronize());
    CU_OK(cu.cuStreamWaitValue64(NULL, word, 1, CU_STREAM_WAIT_VALUE_EQ)); /* for ever */
    CU_OK(cu.cuEventRecord(event, NULL));
    dlx_test_gpu_send(sock, &handle, sizeof handle, -1);
    dlx_test_gpu_await(sock);
}

TEST(an_event_of_a_dead_process)
{
    CUipcEventHandle handle;
    CUevent event;
    struct dlx_test_gpu_peer victim = dlx_test_gpu_start(event_victim);
    (void)dlx_test_gpu_receive(victim.sock, &handle, sizeof handle);
    (void)dlx_test_gpu_context(0);
    CU_OK(cu.cuIpcOpenEventHandle(&event, handle));
    CU_FAILS(cu.cuEventQuery(event), CUDA_ERROR_NOT_READY);
    dlx_test_gpu_kill(&victim);
    CU_OK(cu.cuEventSynchronize(event));
    CU_OK(cu.cuEventDestroy(event));
}

TEST(events_between_processes_are_limited)
{
    CUevent events[64], more;
    (void)dlx_test_gpu_context(0);
    CU_FAILS(cu.cuEventCreate(&more, CU_EVENT_INTERPROCESS), CUDA_ERROR_INVALID_VALUE);
    for (int i = 0; i < 64; i++)
        CU_OK(cu.cuEventCreate(&events[i], CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    CU_FAILS(cu.cuEventCreate(&more, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING),
             CUDA_ERROR_OUT_OF_MEMORY);
    CU_OK(cu.cuEventDestroy(events[3]));
    CU_OK(cu.cuEventCreate(&events[3], CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    for (int i = 0; i < 64; i++)
        CU_OK(cu.cuEventDestroy(events[i]));
}

static void pool_exporter(int sock)
{
    CUmemoryPool pool, other;
    uint64_t too_early = 0;
    CUmemPoolPtrExportData data;
    CUdeviceptr p;
    int fd;
    (void)dlx_test_gpu_context(0);
    CUdeviceptr first = dlx_test_gpu_pool_make(5000, POSIX, &pool);
    CU_OK(cu.cuMemAllocFromPoolAsync(&p, 5000, pool, NULL));
    CU_OK(cu.cuMemsetD32(p, 31, 1250));
    CU_OK(cu.cuCtxSynchronize());
    CU_OK(cu.cuMemPoolExportToShareableHandle(&fd, pool, POSIX, 0));
    CU_OK(cu.cuMemPoolExportPointer(&data, p));
    dlx_test_gpu_send(sock, &data, sizeof data, fd);
    (void)close(fd);
    CUdeviceptr unused = dlx_test_gpu_pool_make(5000, POSIX, &other);
    CU_OK(cu.cuMemPoolExportToShareableHandle(&fd, other, POSIX, 0));
    dlx_test_gpu_pool_free(other, unused);
    dlx_test_gpu_send(sock, &too_early, sizeof too_early, fd);
    (void)close(fd);
    dlx_test_gpu_await(sock);
    CU_OK(cu.cuMemFreeAsync(p, NULL));
    CU_OK(cu.cuMemFree(first));
    CU_OK(cu.cuMemPoolDestroy(pool));
    CU_OK(cu.cuCtxSynchronize());
    too_early = standin.standin_count(STANDIN_FREED_WHILE_OPEN);
    dlx_test_gpu_send(sock, &too_early, sizeof too_early, -1);
    dlx_test_gpu_end_context(0);
}

static void pool_exporter_of_one(int sock)
{
    CUmemoryPool pool;
    CUmemPoolPtrExportData data[2];
    int fd;
    (void)dlx_test_gpu_context(0);
    CUdeviceptr p = dlx_test_gpu_pool_make(10000, POSIX, &pool);
    CU_OK(cu.cuMemPoolExportToShareableHandle(&fd, pool, POSIX, 0));
    CU_OK(cu.cuMemPoolExportPointer(&data[0], p));
    CU_OK(cu.cuMemPoolExportPointer(&data[1], p));
    ck_assert_int_ne(memcmp(&data[0], &data[1], sizeof data[0]), 0);
    dlx_test_gpu_send(sock, data, sizeof data, fd);
    (void)close(fd);
    dlx_test_gpu_await(sock);
    dlx_test_gpu_pool_free(pool, p);
    dlx_test_gpu_end_context(0);
}

TEST(imports_of_a_pool_s_pointer_are_not_counted)
{
    struct dlx_test_gpu_peer exporter = dlx_test_gpu_start(pool_exporter_of_one);
    CUmemPoolPtrExportData data[2];
    CUmemoryPool pools[2];
    CUdeviceptr p[2];
    int fd = dlx_test_gpu_receive(exporter.sock, data, sizeof data);
    (void)dlx_test_gpu_context(0);
    for (int i = 0; i < 2; i++) {
        CU_OK(cu.cuMemPoolImportFromShareableHandle(&pools[i], (void *)(intptr_t)fd, POSIX, 0));
        CU_OK(cu.cuMemPoolImportPointer(&p[i], pools[i], &data[i]));
    }
    (void)close(fd);
    ck_assert_uint_eq(p[0], p[1]);
    ck_assert_uint_eq(standin.standin_count(STANDIN_POOL_IMPORTS), 1);
    CU_OK(cu.cuMemFree(p[0]));
    CU_FAILS(cu.cuMemFree(p[1]), CUDA_ERROR_INVALID_VALUE);
    for (int i = 0; i < 2; i++)
        CU_OK(cu.cuMemPoolDestroy(pools[i]));
    dlx_test_gpu_tell(exporter.sock);
    dlx_test_gpu_join(&exporter);
}

TEST(pools_between_processes)
{
    CUmemPoolPtrExportData data;
    CUmemoryPool pool, other;
    CUdeviceptr p, own;
    uint64_t too_early;
    int other_fd;
    struct dlx_test_gpu_peer exporter = dlx_test_gpu_start(pool_exporter);
    int fd = dlx_test_gpu_receive(exporter.sock, &data, sizeof data);
    (void)dlx_test_gpu_context(0);
    CUmemGenericAllocationHandle handle;
    CU_FAILS(cu.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, POSIX),
             CUDA_ERROR_INVALID_VALUE);
    CU_OK(cu.cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd, POSIX, 0));
    (void)close(fd);
    other_fd = dlx_test_gpu_receive(exporter.sock, &too_early, sizeof too_early);
    CU_OK(cu.cuMemPoolImportFromShareableHandle(&other, (void *)(intptr_t)other_fd, POSIX, 0));
    (void)close(other_fd);
    CU_FAILS(cu.cuMemPoolImportPointer(&p, other, &data), CUDA_ERROR_INVALID_VALUE);
    CU_OK(cu.cuMemPoolDestroy(other));
    CU_OK(cu.cuMemPoolImportPointer(&p, pool, &data));
    ck_assert_uint_eq(dlx_test_gpu_word(p + 4996), 31);
    CU_FAILS(cu.cuMemAllocFromPoolAsync(&own, 100, pool, NULL), CUDA_ERROR_INVALID_VALUE);
    CU_OK(cu.cuMemFreeAsync(p, NULL));
    CU_OK(cu.cuCtxSynchronize());
    dlx_test_gpu_tell(exporter.sock);
    (void)dlx_test_gpu_receive(exporter.sock, &too_early, sizeof too_early);
    ck_assert_uint_eq(too_early, 0);
    CU_FAILS(cu.cuMemPoolImportPointer(&p, pool, &data), CUDA_ERROR_INVALID_HANDLE);
    CU_OK(cu.cuMemPoolDestroy(pool));
    dlx_test_gpu_join(&exporter);
}

#endif

GPU_MAIN(dlx_test_gpu_standin_case("processes"))
