/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in driver keeps the rules of the real one: devices, contexts, memory of a process. */
#include "tests/gpu/harness_gpu.h"
#include "tests/harness/maps.h"

#if DLX_TEST_HAS_GPU
#include <dlfcn.h>
#include <semaphore.h>
#include <stdatomic.h>

TEST(found_by_its_name)
{
    int version = 0;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    ck_assert_ptr_nonnull(library);
    ck_assert_ptr_eq(dlsym(library, "cuMemAlloc_v2"), (void *)(uintptr_t)cu.cuMemAlloc);
    ck_assert_ptr_nonnull(dlsym(library, "cuDeviceGetUuid"));
    ck_assert_ptr_nonnull(dlsym(library, "cuDeviceGetUuid_v2"));
    CU_OK(cu.cuDriverGetVersion(&version));
    ck_assert_int_eq(version, 13000);
    (void)dlclose(library);
}

TEST(symbols_by_version)
{
    CUdriverProcAddressQueryResult status;
    void *p, *later;
    CU_OK(cu.cuGetProcAddress("cuMemAlloc", &p, 12000, 0, &status));
    ck_assert_int_eq(status, CU_GET_PROC_ADDRESS_SUCCESS);
    ck_assert_ptr_eq(p, (void *)(uintptr_t)cu.cuMemAlloc);
    CU_FAILS(cu.cuGetProcAddress("cuMemAlloc_v2", &p, 12000, 0, &status), CUDA_ERROR_NOT_FOUND);
    ck_assert_int_eq(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    ck_assert_ptr_null(p);
    CU_FAILS(cu.cuGetProcAddress("cuMemCreate", &p, 9000, 0, &status), CUDA_ERROR_NOT_FOUND);
    ck_assert_int_eq(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    /* CUDA 13's has another argument: a caller that asks for 13 gets it. */
    CU_OK(cu.cuGetProcAddress("cuCtxSynchronize", &p, 12000, 0, NULL));
    CU_OK(cu.cuGetProcAddress("cuCtxSynchronize", &later, 13000, 0, NULL));
    ck_assert_ptr_ne(p, later);
    CU_FAILS(cu.cuGetProcAddress(NULL, &p, 12000, 0, NULL), CUDA_ERROR_INVALID_VALUE);
}

TEST(nothing_before_init)
{
    int n;
    CUcontext context;
    const char *text;
    CU_FAILS(cu.cuDeviceGetCount(&n), CUDA_ERROR_NOT_INITIALIZED);
    CU_FAILS(cu.cuDevicePrimaryCtxRetain(&context, 0), CUDA_ERROR_NOT_INITIALIZED);
    CU_FAILS(cu.cuInit(1), CUDA_ERROR_INVALID_VALUE);
    CU_OK(cu.cuGetErrorName(CUDA_ERROR_NOT_INITIALIZED, &text));
    ck_assert_str_eq(text, "CUDA_ERROR_NOT_INITIALIZED");
    CU_OK(cu.cuInit(0));
    CU_OK(cu.cuDeviceGetCount(&n));
    ck_assert_int_eq(n, 2);
}

/* Devices after an entry that names none are not visible. Both devices have UUIDs that end with
 * their numbers, from 1 on. */
LOOP_TEST(visible_devices_are_those_of_the_environment, 0, 4)
{
    static const struct {
        const char *visible;
        int n;
        char first; /* last byte of its UUID */
    } rows[] = {{"1,0,7,0", 2, 2},
                {"0", 1, 1},
                {"GPU-73746e64-696e-4e00-8000-000000000002", 1, 2},
                {"", 0, 0}};
    CUuuid uuid;
    CUdevice device;
    int n;
    ck_assert_int_eq(setenv("CUDA_VISIBLE_DEVICES", rows[_i].visible, 1), 0);
    CU_FAILS(cu.cuInit(0), rows[_i].n > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE);
    if (rows[_i].n == 0)
        return;
    CU_OK(cu.cuDeviceGetCount(&n));
    ck_assert_int_eq(n, rows[_i].n);
    CU_OK(cu.cuDeviceGet(&device, 0));
    CU_OK(cu.cuDeviceGetUuid(&uuid, device));
    ck_assert_int_eq(uuid.bytes[15], rows[_i].first);
    CU_FAILS(cu.cuDeviceGet(&device, n), CUDA_ERROR_INVALID_DEVICE);
}

TEST(a_context_where_one_is_needed)
{
    CUdeviceptr p;
    CUcontext context, popped;
    unsigned flags;
    int active;
    CU_OK(cu.cuInit(0));
    CU_FAILS(cu.cuMemAlloc(&p, 100), CUDA_ERROR_INVALID_CONTEXT);
    CU_FAILS(cu.cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
    CU_OK(cu.cuDevicePrimaryCtxGetState(1, &flags, &active));
    ck_assert_int_eq(active, 0);
    ck_assert_uint_eq(standin.standin_count(STANDIN_CONTEXTS_MADE), 0);

    CU_OK(cu.cuDevicePrimaryCtxRetain(&context, 1));
    CU_FAILS(cu.cuMemAlloc(&p, 100), CUDA_ERROR_INVALID_CONTEXT);
    CU_OK(cu.cuCtxPushCurrent(context));
    CU_OK(cu.cuMemAlloc(&p, 100));
    CU_OK(cu.cuMemFree(p));
    CU_OK(cu.cuCtxPopCurrent(&popped));
    ck_assert_ptr_eq(popped, context);
    CU_FAILS(cu.cuCtxPopCurrent(&popped), CUDA_ERROR_INVALID_CONTEXT);
    ck_assert_uint_eq(standin.standin_contexts_made(0), 0);
    ck_assert_uint_eq(standin.standin_contexts_made(1), 1);
    dlx_test_gpu_end_context(1);
    CU_FAILS(cu.cuDevicePrimaryCtxRelease(1), CUDA_ERROR_INVALID_CONTEXT);
}

TEST(the_end_of_a_context_frees_what_is_its)
{
    CUdeviceptr p;
    CUstream stream;
    CUevent event;
    (void)dlx_test_gpu_context(0);
    CU_OK(cu.cuMemAlloc(&p, 100));
    CU_OK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU_OK(cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    ck_assert_uint_eq(standin.standin_count(STANDIN_ALLOCATIONS), 1);
    ck_assert_uint_eq(standin.standin_count(STANDIN_STREAMS), 1);
    ck_assert_uint_eq(standin.standin_count(STANDIN_EVENTS), 1);
    dlx_test_gpu_end_context(0);
    CU_FAILS(cu.cuMemAlloc(&p, 100), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    CU_FAILS(cu.cuStreamDestroy(stream), CUDA_ERROR_INVALID_HANDLE);
}

TEST(an_illegal_address_stays)
{
    CUdeviceptr p;
    CUstream stream;
    (void)dlx_test_gpu_context(0);
    CU_OK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU_OK(standin.standin_poison(CUDA_ERROR_ILLEGAL_ADDRESS));
    CU_FAILS(cu.cuMemAlloc(&p, 100), CUDA_ERROR_ILLEGAL_ADDRESS);
    CU_FAILS(cu.cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    CU_FAILS(cu.cuStreamDestroy(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    CU_FAILS(cu.cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    CU_OK(cu.cuDevicePrimaryCtxRelease(0));
    (void)dlx_test_gpu_context(0); /* a new context is sound */
    CU_OK(cu.cuMemAlloc(&p, 100));
    CU_OK(cu.cuMemFree(p));
}

TEST(the_cpu_cannot_use_device_memory)
{
    CUdeviceptr p;
    (void)dlx_test_gpu_context(0);
    CU_OK(cu.cuMemAlloc(&p, 100));
    ck_assert(dlx_test_faults((void *)(uintptr_t)p));
    CU_OK(cu.cuMemFree(p));
}

TEST(copies_and_fills)
{
    CUdeviceptr a, b;
    char in[64], out[64];
    (void)dlx_test_gpu_context(0);
    CU_OK(cu.cuMemAlloc(&a, sizeof in));
    CU_OK(cu.cuMemAlloc(&b, sizeof in));
    memset(in, 'x', sizeof in);
    CU_OK(cu.cuMemcpyHtoD(a, in, sizeof in));
    CU_OK(cu.cuMemcpyDtoDAsync(b, a, sizeof in, NULL));
    CU_OK(cu.cuMemsetD32(b + 8, 0x64636261, 2));
    CU_OK(cu.cuMemcpyDtoH(out, b, sizeof out));
    ck_assert_int_eq(memcmp(out, "xxxxxxxxabcdabcdx", 17), 0);
    CU_FAILS(cu.cuMemcpyDtoH(out, b + 100000, 1), CUDA_ERROR_INVALID_VALUE);
    CU_OK(cu.cuMemFree(a));
    CU_FAILS(cu.cuMemFree(a), CUDA_ERROR_INVALID_VALUE);
    CU_FAILS(cu.cuMemcpyDtoH(out, a, 1), CUDA_ERROR_INVALID_VALUE);
    CU_FAILS(cu.cuMemFree(b + 8), CUDA_ERROR_INVALID_VALUE);
    CU_OK(cu.cuMemFree(b));
}

TEST(memory_is_limited)
{
    CUdeviceptr p;
    size_t available, total;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = dlx_test_gpu_prop(0);
    (void)dlx_test_gpu_context(0);
    CU_OK(cu.cuMemGetInfo(&available, &total));
    ck_assert_uint_eq(available, total);
    CU_OK(cu.cuMemAlloc(&p, total - DLX_TEST_GPU_CHUNK));
    CU_FAILS(cu.cuMemCreate(&handle, 2 * DLX_TEST_GPU_CHUNK, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CU_OK(cu.cuMemCreate(&handle, DLX_TEST_GPU_CHUNK, &prop, 0));
    CU_OK(cu.cuMemGetInfo(&available, &total));
    ck_assert_uint_eq(available, 0);
    CU_OK(cu.cuMemRelease(handle));
    CU_OK(cu.cuMemFree(p));
}

TEST(registered_memory_has_an_address_of_its_own)
{
    CUdeviceptr p;
    uint64_t *words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    (void)dlx_test_gpu_context(0);
    CU_FAILS(cu.cuMemHostGetDevicePointer(&p, words, 0), CUDA_ERROR_INVALID_VALUE);
    CU_OK(cu.cuMemHostRegister(words, 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
    CU_FAILS(cu.cuMemHostRegister(words, 4096, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    CU_OK(cu.cuMemHostGetDevicePointer(&p, words + 2, 0));
    ck_assert_uint_ne(p, (uintptr_t)(words + 2));
    CU_OK(cu.cuStreamWriteValue64(NULL, p, 7, 0));
    CU_OK(cu.cuCtxSynchronize());
    ck_assert_uint_eq(words[2], 7);
    CU_OK(cu.cuMemHostUnregister(words));
    CU_FAILS(cu.cuMemHostUnregister(words), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);

    ck_assert_int_eq(mprotect(words, 4096, PROT_READ), 0);
    CU_FAILS(cu.cuMemHostRegister(words, 4096, 0), CUDA_ERROR_INVALID_VALUE);
    CU_FAILS(cu.cuMemHostRegister(words, 4096, CU_MEMHOSTREGISTER_READ_ONLY),
             CUDA_ERROR_NOT_SUPPORTED);
    standin.standin_set_attribute(CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 1);
    CU_OK(cu.cuMemHostRegister(words, 4096, CU_MEMHOSTREGISTER_READ_ONLY));
    CU_OK(cu.cuMemHostGetDevicePointer(&p, words, 0));
    CU_OK(cu.cuStreamWriteValue64(NULL, p, 8, 0));
    CU_FAILS(cu.cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    CU_OK(cu.cuDevicePrimaryCtxRelease(0));

    (void)dlx_test_gpu_context(0);
    standin.standin_set_attribute(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
                                  1);
    CU_OK(cu.cuMemHostRegister(words, 4096, 0));
    CU_OK(cu.cuMemHostUnregister(words));
    (void)munmap(words, 4096);
}

TEST(registered_memory_is_registered_once_and_unregistered_before_it_is_unmapped)
{
    char *p = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    (void)dlx_test_gpu_context(0);
    CU_OK(cu.cuMemHostRegister(p + 4096, 4096, 0));
    CU_FAILS(cu.cuMemHostRegister(p, 16384, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    CU_FAILS(cu.cuMemHostRegister(p, 4097, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    CU_FAILS(cu.cuMemHostUnregister(p + 4097), CUDA_ERROR_INVALID_VALUE);
    CU_FAILS(cu.cuMemHostUnregister(p), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    CU_OK(cu.cuMemHostUnregister(p + 4096));
    ck_assert_uint_eq(standin.standin_count(STANDIN_UNMAPPED_REGISTERED), 0);
    CU_OK(cu.cuMemHostRegister(p, 16384, 0));
    ck_assert_int_eq(munmap(p, 16384), 0);
    CU_OK(cu.cuMemHostUnregister(p));
    ck_assert_uint_eq(standin.standin_count(STANDIN_UNMAPPED_REGISTERED), 1);
}

static sem_t may_pass;

static void CUDA_CB hold(void *arg)
{
    (void)arg;
    (void)sem_wait(&may_pass);
}

/* Two streams, of which a host function holds the first. */
static void hold_stream(CUstream *ret_held, CUstream *ret_other)
{
    ck_assert_int_eq(sem_init(&may_pass, 0, 0), 0);
    CU_OK(cu.cuStreamCreate(ret_held, CU_STREAM_NON_BLOCKING));
    CU_OK(cu.cuStreamCreate(ret_other, CU_STREAM_NON_BLOCKING));
    CU_OK(cu.cuLaunchHostFunc(*ret_held, hold, NULL));
}

static void end_streams(CUstream held, CUstream other)
{
    CU_OK(cu.cuStreamSynchronize(held));
    CU_OK(cu.cuStreamSynchronize(other));
    CU_OK(cu.cuStreamDestroy(held));
    CU_OK(cu.cuStreamDestroy(other));
}

static void nothing(void *arg)
{
    (void)arg;
}

/* 0: each stream has a queue of its own; 1: they share one. */
LOOP_TEST(with_one_hardware_queue_a_stream_that_waits_holds_up_others, 0, 2)
{
    CUstream held, other;
    ck_assert_int_eq(setenv("CUDA_DEVICE_MAX_CONNECTIONS", _i == 1 ? "1" : "8", 1), 0);
    (void)dlx_test_gpu_context(0);
    hold_stream(&held, &other);
    CU_OK(standin.standin_launch(other, nothing, NULL));
    if (_i == 0)
        CU_OK(cu.cuStreamSynchronize(other));
    else
        for (uint64_t end = dlx__now_ns() + UINT64_C(20000000); dlx__now_ns() < end;)
            CU_FAILS(cu.cuStreamQuery(other), CUDA_ERROR_NOT_READY);
    ck_assert_int_eq(sem_post(&may_pass), 0);
    end_streams(held, other);
}

struct launch {
    CUcontext context;
    CUstream stream;
    atomic_bool is_done;
};

static void *launch_first(void *arg)
{
    struct launch *launch = arg;
    CU_OK(cu.cuCtxSetCurrent(launch->context));
    CU_OK(standin.standin_launch(launch->stream, nothing, NULL));
    atomic_store(&launch->is_done, true);
    return NULL;
}

/* 0: CUDA_MODULE_LOADING is EAGER; 1: it is not set; 2: and the kernel was launched before. */
LOOP_TEST(the_first_launch_of_a_kernel_waits_where_it_is_loaded_lazily, 0, 3)
{
    struct launch launch = {.is_done = false};
    CUmoduleLoadingMode mode;
    CUstream held;
    pthread_t thread;
    if (_i > 0)
        ck_assert_int_eq(unsetenv("CUDA_MODULE_LOADING"), 0);
    launch.context = dlx_test_gpu_context(0);
    CU_OK(cu.cuModuleGetLoadingMode(&mode));
    ck_assert_int_eq(mode, _i == 0 ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING);
    if (_i == 2)
        CU_OK(standin.standin_launch(NULL, nothing, NULL));
    hold_stream(&held, &launch.stream);
    ck_assert_int_eq(pthread_create(&thread, NULL, launch_first, &launch), 0);
    if (_i == 1)
        for (uint64_t end = dlx__now_ns() + UINT64_C(20000000); dlx__now_ns() < end;)
            ck_assert(!atomic_load(&launch.is_done));
    else
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(sem_post(&may_pass), 0);
    if (_i == 1)
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert(atomic_load(&launch.is_done));
    end_streams(held, launch.stream);
}

#endif

GPU_MAIN(dlx_test_gpu_standin_case("one process"))
