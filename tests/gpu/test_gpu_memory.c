/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory in one process: arenas, what tensors of frameworks are in, what cannot be shared, and
 * what is left when a call of the driver fails. */
#include "tests/gpu/harness_gpu_machine.h"

#if DLX_TEST_HAS_GPU
#include "gpu/exports.h"
#include "gpu/imports.h"
#include "gpu/lib/malloc.h"
#include "tests/gpu/harness_gpu_arena.h"
#include "tests/harness/fork.h"
#include <dlpack/dlpack.h>
#include <fcntl.h>

#define FD_TYPE CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define MIB     DLX_TEST_GPU_MIB

static struct dlx_gpu_exports *exports;
static struct dlx_gpu_export *export;
static uint64_t offset;

static void publisher(void)
{
    ok(dlx__gpu_exports_new(&exports, DLX_TEST_GPU_OWN));
}

static void publisher_in_context(void)
{
    dlx_test_gpu_context(0);
    publisher();
}

/* Of the fixture, unless the test ends it before. */
static void end(void)
{
    dlx__gpu_export_unref(dlx_steal(export));
    if (exports)
        dlx__gpu_exports_end(dlx_steal(exports));
}

static CUdeviceptr base_of(const struct dlx_gpu_export *e)
{
    return (CUdeviceptr)(uintptr_t)dlx__gpu_export_base(e);
}

static int allocate(int32_t device, uint64_t size)
{
    return dlx_test_gpu_arena(exports, dlx_test_gpu_type(), device, size, &export);
}

static int share(CUdeviceptr at, uint64_t size)
{
    return dlx__gpu_exports_share(exports, dlx_test_gpu_type(), 0, (void *)(uintptr_t)at, size,
                                  &export, &offset);
}

static void shared(CUdeviceptr at, uint64_t size)
{
    ok(share(at, size));
}

static void refused(CUdeviceptr at, uint64_t size, int code, const char *word)
{
    struct dlx_test_gpu_state before = dlx_test_gpu_state_now();
    fails(share(at, size), code, word);
    dlx_test_gpu_state_check(&before);
}

/* In a process that sees the devices in this way. */
static void ordinals(const char *visible, const struct dlx_gpu_uuid uuids[2], const int32_t want[2])
{
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        ck_assert_int_eq(setenv("CUDA_VISIBLE_DEVICES", visible, 1), 0);
        for (int i = 0; i < 2; i++) {
            int32_t device = -1;
            char text[DLX_GPU_UUID_TEXT];
            int r = dlx__gpu_ordinal(dlx_test_gpu_type(), &uuids[i], &device);
            ck_assert_int_eq(device, want[i]);
            ck_assert_int_eq(r, want[i] < 0 ? DLX_E_DEVICE : 0);
            dlx__gpu_uuid_text(&uuids[i], text);
            ck_assert(r == 0 || strstr(dlx__error_message(), text));
        }
        ck_assert_uint_eq(standin.standin_count(STANDIN_CONTEXTS_MADE), 0);
        _exit(0);
    }
    dlx_test_fork_join(pid);
}

/* The processes that look come before the one that asks a driver: it can have no children. */
GPU_TEST(a_device_is_found_by_its_uuid_whatever_is_visible, DLX_TEST_GPU_CHOICE)
{
    static const char uuids[] = "GPU-01234567-89ab-cdef-0123-456789abcdef,"
                                "GPU-fedcba98-7654-3210-fedc-ba9876543210";
    static const struct dlx_gpu_uuid known[2] = {
        {{0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd,
          0xef}},
        {{0xfe, 0xdc, 0xba, 0x98, 0x76, 0x54, 0x32, 0x10, 0xfe, 0xdc, 0xba, 0x98, 0x76, 0x54, 0x32,
          0x10}}};
    struct dlx_gpu_uuid uuid;
    ck_assert_int_eq(setenv("STANDIN_UUIDS", uuids, 1), 0);
    ordinals("0,1", known, (const int32_t[]){0, 1});
    ordinals("1,0", known, (const int32_t[]){1, 0});
    ordinals("1", known, (const int32_t[]){-1, 0});
    ordinals("0", known, (const int32_t[]){0, -1});
    ordinals("GPU-fedcba98-7654-3210-fedc-ba9876543210", known, (const int32_t[]){-1, 0});
    for (int32_t i = 0; i < 2; i++) {
        ck_assert_int_eq(dlx__gpu_uuid(dlx_test_gpu_type(), i, &uuid), 0);
        ck_assert_mem_eq(uuid.bytes, known[i].bytes, 16);
    }
    fails(dlx__gpu_uuid(dlx_test_gpu_type(), 2, &uuid), DLX_E_DEVICE, "device 2");
    fails(dlx__gpu_uuid(kDLOpenCL, 0, &uuid), DLX_E_DEVICE, "device type 4");
}

static bool is_for_rdma(CUdeviceptr at)
{
    bool is = false;
    CU_OK(cu.cuPointerGetAttribute(&is, CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, at));
    return is;
}

/* Libraries of network cards (UCX, NIXL) register no other memory of cuMemCreate. */
GPU_TEST(an_arena_can_be_registered_with_a_network_card, DLX_TEST_GPU_CHOICE | DLX_TEST_GPU_FLAGS)
{
    publisher();
    ok(allocate(0, MIB));
    ck_assert(!is_for_rdma(base_of(export))); /* the device has no such memory */
    dlx__gpu_export_unref(dlx_steal(export));
    standin.standin_set_attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 1);
    ok(allocate(0, MIB));
    ck_assert(is_for_rdma(base_of(export)));
}

GPU_LOOP_TEST(an_arena_is_made_without_the_mark_for_network_cards_where_the_driver_refuses_it, 0, 2,
              DLX_TEST_GPU_CHOICE | DLX_TEST_GPU_FLAGS)
{
    static const CUresult answers[] = {CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_INVALID_VALUE};
    publisher();
    standin.standin_set_attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 1);
    ck_assert(standin.standin_fail("cuMemCreate", 1, 1, answers[_i]));
    ok(allocate(0, MIB));
    ck_assert_uint_eq(standin.standin_fail_clear(), 1);
    ck_assert(!is_for_rdma(base_of(export)));
}

GPU_TEST(an_arena_is_whole_pieces_of_zeros_on_its_device, DLX_TEST_GPU_TWO)
{
    void *memory;
    publisher();
    for (uint64_t size = 1; size <= 5 * MIB; size += 2 * MIB - 1) {
        ok(allocate(1, size));
        const struct dlx_gpu_handle *handle = dlx__gpu_export_handle(export);
        ck_assert_uint_ge(handle->size, size);
        ck_assert_uint_eq(handle->size % (2 * MIB), 0);
        ck_assert_uint_eq(handle->n_chunks, 1);
        ck_assert_int_eq((int)handle->kind, dlx_test_gpu_vmm());
        dlx_test_gpu_check_no_context(0, 0);
        dlx_test_gpu_context(1);
        ck_assert_uint_eq(dlx_test_gpu_word(base_of(export)), 0);
        ck_assert_uint_eq(dlx_test_gpu_word(base_of(export) + handle->size - 4), 0);
        dlx_test_gpu_fill(base_of(export), handle->size, 0xffffffff);
        dlx__gpu_export_unref(dlx_steal(export));
    }
    dlx_test_gpu_check_no_context(0, 0);
    ck_assert_int_eq(dlx__gpu_malloc(dlx_test_gpu_type(), 0, 0, &memory), DLX_E_INVALID);
    ck_assert_int_eq(dlx__gpu_malloc(dlx_test_gpu_type(), 0, UINT64_MAX, &memory), DLX_E_INVALID);
    fails(allocate(0, UINT64_C(1) << 40), DLX_E_NO_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY");
    ck_assert_int_eq(allocate(99, MIB), DLX_E_DEVICE);
}

/* As when a framework wraps a tensor of dlx_alloc(), and that is published. */
GPU_TEST(a_tensor_in_an_arena_that_comes_as_memory_of_others_is_in_the_same_export, 0)
{
    publisher();
    ok(allocate(0, MIB));
    struct dlx_gpu_export *arena = export;
    shared(base_of(arena) + 64, 64);
    ck_assert_ptr_eq(export, arena);
    ck_assert_uint_eq(offset, 64);
    dlx__gpu_export_unref(arena);
}

GPU_TEST(the_current_context_is_the_caller_s_before_and_after, DLX_TEST_GPU_TWO)
{
    CUcontext before, after;
    dlx_test_gpu_context(0);
    CU_OK(cu.cuCtxGetCurrent(&before));
    publisher();
    ok(allocate(1, MIB));
    CU_OK(cu.cuCtxGetCurrent(&after));
    ck_assert_ptr_eq(before, after);
    end();
    CU_OK(cu.cuCtxGetCurrent(&after));
    ck_assert_ptr_eq(before, after);
    dlx_test_gpu_check_count(STANDIN_CONTEXTS, 1);
}

/* A program that captures a graph may take a payload meanwhile. */
GPU_TEST(an_arena_can_be_had_while_a_stream_is_captured, 0)
{
    CUstream stream;
    dlx_test_gpu_context(0);
    CU_OK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU_OK(cu.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    publisher();
    ok(allocate(0, MIB));
    dlx_test_gpu_end_capture(stream);
    CU_OK(cu.cuStreamDestroy(stream));
}

GPU_TEST(memory_of_cudamalloc_is_shared_whole_and_once, 0)
{
    CUdeviceptr at;
    publisher_in_context();
    CU_OK(cu.cuMemAlloc(&at, 3 * MIB));
    shared(at + MIB + 256, 512);
    const struct dlx_gpu_handle *handle = dlx__gpu_export_handle(export);
    ck_assert_int_eq((int)handle->kind, dlx_test_gpu_ipc());
    ck_assert_uint_eq(handle->size, 3 * MIB);
    ck_assert_uint_eq(handle->n_chunks, 0);
    ck_assert_uint_eq(offset, MIB + 256);
    struct dlx_gpu_export *first = export;
    shared(at, 3 * MIB);
    ck_assert_ptr_eq(export, first);
    ck_assert_uint_eq(offset, 0);
    dlx_test_gpu_check_calls("cuIpcGetMemHandle", 1);
    dlx__gpu_export_unref(first);
    end();
    CU_OK(cu.cuMemFree(at));
}

/* As a thread of a framework that has not used the device yet. */
GPU_TEST(a_thread_without_a_context_shares_memory_and_still_has_none, 0)
{
    static struct dlx_test_gpu_segment segment;
    CUcontext context = dlx_test_gpu_context(0), after;
    CUmemoryPool pool;
    CUdeviceptr at[3];
    publisher();
    CU_OK(cu.cuMemAlloc(&at[0], MIB));
    dlx_test_gpu_segment_make(&segment, 1, 2 * MIB, FD_TYPE);
    at[1] = segment.base;
    at[2] = dlx_test_gpu_pool_make(MIB, FD_TYPE, &pool);
    CU_OK(cu.cuCtxSetCurrent(NULL));
    for (size_t i = 0; i < (dlx_test_gpu_is_hip() ? 2 : DLX_ARRAY_SIZE(at)); i++) {
        shared(at[i], 64);
        CU_OK(cu.cuCtxGetCurrent(&after));
        ck_assert_ptr_null(after);
        dlx__gpu_export_unref(dlx_steal(export));
    }
    dlx_test_gpu_check_count(STANDIN_CONTEXTS_MADE, 1);
    end();
    CU_OK(cu.cuCtxSetCurrent(context));
    CU_OK(cu.cuMemFree(at[0]));
    dlx_test_gpu_segment_free(&segment);
    dlx_test_gpu_pool_free(pool, at[2]);
}

/* Frameworks free and allocate at the same address: what was exported is not what is there now. */
GPU_TEST(an_address_that_is_used_again_is_another_allocation, DLX_TEST_GPU_ADDRESSES)
{
    CUdeviceptr at, again[128];
    uint64_t gone;
    size_t n = 0;
    publisher_in_context();
    CU_OK(cu.cuMemAlloc(&at, 2 * MIB));
    shared(at, 64);
    uint64_t id = dlx__gpu_export_handle(export)->id;
    dlx__gpu_export_unref(export);
    shared(at, 64); /* it was idle, and is the same */
    ck_assert_uint_eq(dlx__gpu_export_handle(export)->id, id);
    dlx__gpu_export_unref(export);
    ck_assert(!dlx__gpu_exports_next_gone(exports, &gone));
    CU_OK(cu.cuMemFree(at));
    do {
        ck_assert_uint_lt(n, DLX_ARRAY_SIZE(again));
        CU_OK(cu.cuMemAlloc(&again[n], 2 * MIB));
    } while (again[n++] != at);
    shared(at, 64);
    ck_assert_uint_ne(dlx__gpu_export_handle(export)->id, id);
    end();
    while (n > 0)
        CU_OK(cu.cuMemFree(again[--n]));
}

GPU_TEST(a_tensor_of_an_expandable_segment_takes_the_chunks_that_it_is_in, DLX_TEST_GPU_CHUNKS)
{
    static struct dlx_test_gpu_segment segment;
    publisher_in_context();
    dlx_test_gpu_segment_make(&segment, 4, 2 * MIB, FD_TYPE);
    struct dlx_test_gpu_state before = dlx_test_gpu_state_now();
    shared(segment.base + 3 * MIB, 2 * MIB);
    const struct dlx_gpu_handle *handle = dlx__gpu_export_handle(export);
    ck_assert_int_eq((int)handle->kind, dlx_test_gpu_vmm());
    ck_assert_uint_eq(handle->n_chunks, 2);
    ck_assert_uint_eq(handle->size, 4 * MIB);
    ck_assert_uint_eq(offset, MIB);
    struct dlx_gpu_export *two = export;
    shared(segment.base + 2 * MIB + 256, 2 * MIB + 1);
    ck_assert_ptr_eq(export, two);
    dlx__gpu_export_unref(export);
    shared(segment.base + 3 * MIB, 64);
    ck_assert_ptr_ne(export, two);
    ck_assert_uint_eq(dlx__gpu_export_handle(export)->n_chunks, 1);
    dlx__gpu_export_unref(dlx_steal(export));
    refused(segment.base + 7 * MIB, 2 * MIB, DLX_E_DEVICE, "not mapped");
    dlx_test_gpu_segment_remap(&segment, 2);
    shared(segment.base + 3 * MIB, 2 * MIB);
    ck_assert_ptr_ne(export, two); /* half of it is other memory now */
    dlx__gpu_export_unref(two);
    end();
    dlx_test_gpu_state_check(&before);
    dlx_test_gpu_segment_free(&segment);
}

/* To keep a descriptor keeps the memory: a framework that frees a chunk gets it back. */
static void check_ends(CUdeviceptr at, uint64_t size, enum dlx_gpu_kind kind, size_t n_fds)
{
    struct dlx_test_gpu_state before = dlx_test_gpu_state_now();
    for (uint64_t want = 1, id; want <= 2; want++) {
        shared(at + 4096, size - 4096);
        ck_assert_int_eq((int)dlx__gpu_export_handle(export)->kind, kind);
        ck_assert_uint_eq(offset, 4096);
        dlx_test_gpu_check_n_fds(before.n_fds + n_fds);
        dlx__gpu_export_unref(dlx_steal(export));
        dlx_test_gpu_state_check(&before);
        ck_assert(dlx__gpu_exports_next_gone(exports, &id));
        ck_assert_uint_eq(id, want);
        ck_assert(!dlx__gpu_exports_next_gone(exports, &id));
    }
    end();
}

GPU_TEST(exports_that_keep_memory_end_with_their_last_use, 0)
{
    static struct dlx_test_gpu_segment segment;
    uint32_t n = dlx_test_gpu_is_hip() ? 1 : 2; /* HIP's are of one chunk */
    publisher_in_context();
    dlx_test_gpu_segment_make(&segment, n, 2 * MIB, FD_TYPE);
    check_ends(segment.base, n * 2 * MIB, dlx_test_gpu_vmm(), n);
    dlx_test_gpu_segment_free(&segment);
}

GPU_TEST(exports_of_pools_end_with_their_last_use, DLX_TEST_GPU_POOLS)
{
    CUmemoryPool pool;
    publisher_in_context();
    CUdeviceptr at = dlx_test_gpu_pool_make(MIB, FD_TYPE, &pool);
    check_ends(at, MIB, DLX_GPU_CUDA_POOL, 1);
    dlx_test_gpu_pool_free(pool, at);
}

/* Subscribers recognise it by what the driver calls it, which another export would change. */
static void check_exported_once(CUdeviceptr at, const char *call)
{
    static const struct dlx_gpu_publisher other = {2, 3};
    struct dlx_gpu_exports *others;
    struct dlx_gpu_export *second;
    struct dlx_test_gpu_state before = dlx_test_gpu_state_now();
    ok(dlx__gpu_exports_new(&others, other));
    shared(at, 64);
    ok(dlx__gpu_exports_share(others, dlx_test_gpu_type(), 0, (void *)(uintptr_t)at, 64, &second,
                              &offset));
    const struct dlx_gpu_handle *a = dlx__gpu_export_handle(export);
    const struct dlx_gpu_handle *b = dlx__gpu_export_handle(second);
    ck_assert_mem_eq(a->token, b->token, sizeof a->token);
    ck_assert_uint_eq(a->n_chunks, b->n_chunks);
    for (uint32_t i = 0; i < a->n_chunks; i++)
        ck_assert_int_ne(a->chunks[i].fd, b->chunks[i].fd);
    dlx_test_gpu_check_calls(call, 1);
    end();
    for (uint32_t i = 0; i < b->n_chunks; i++)
        ck_assert_int_ge(fcntl(b->chunks[i].fd, F_GETFD), FD_CLOEXEC);
    dlx__gpu_export_unref(second);
    dlx__gpu_exports_end(others);
    dlx_test_gpu_state_check(&before);
}

GPU_TEST(memory_that_two_publishers_share_is_exported_once, DLX_TEST_GPU_POOLS)
{
    CUmemoryPool pool;
    publisher_in_context();
    CUdeviceptr at = dlx_test_gpu_pool_make(MIB, FD_TYPE, &pool);
    check_exported_once(at, "cuMemPoolExportPointer");
    dlx_test_gpu_pool_free(pool, at);
}

GPU_TEST(memory_of_cudamalloc_that_two_publishers_share_is_exported_once, 0)
{
    CUdeviceptr at;
    publisher_in_context();
    CU_OK(cu.cuMemAlloc(&at, MIB));
    check_exported_once(at, "cuIpcGetMemHandle");
    CU_OK(cu.cuMemFree(at));
}

GPU_TEST(a_mapping_that_two_publishers_share_is_exported_once, 0)
{
    static struct dlx_test_gpu_segment segment;
    publisher_in_context();
    dlx_test_gpu_segment_make(&segment, 1, 2 * MIB, FD_TYPE);
    check_exported_once(segment.base, "cuMemExportToShareableHandle");
    dlx_test_gpu_segment_free(&segment);
}

GPU_TEST(idle_exports_are_limited_and_the_publisher_hears_which_went, 0)
{
    static CUdeviceptr at[DLX_GPU_EXPORTS_IDLE_MAX + 2];
    uint64_t id, other;
    publisher_in_context();
    for (size_t i = 0; i < DLX_ARRAY_SIZE(at); i++) {
        CU_OK(cu.cuMemAlloc(&at[i], 2 * MIB));
        shared(at[i], 64);
        dlx__gpu_export_unref(dlx_steal(export));
    }
    ck_assert(dlx__gpu_exports_next_gone(exports, &id));
    ck_assert(dlx__gpu_exports_next_gone(exports, &other));
    ck_assert((id == 1 && other == 2) || (id == 2 && other == 1)); /* the oldest ones */
    ck_assert(!dlx__gpu_exports_next_gone(exports, &id));
    end();
    for (size_t i = 0; i < DLX_ARRAY_SIZE(at); i++)
        CU_OK(cu.cuMemFree(at[i]));
}

GPU_TEST(memory_that_cannot_be_shared_is_refused_with_the_reason, 0)
{
    static struct dlx_test_gpu_segment none;
    CUdeviceptr at;
    CUmemoryPool pool;
    void *host;
    static int ordinary;
    bool is_hip = dlx_test_gpu_is_hip(); /* whose runtime refuses without a reason */
    publisher_in_context();
    CU_OK(cu.cuMemAllocManaged(&at, MIB, CU_MEM_ATTACH_GLOBAL));
    refused(at, 64, DLX_E_DEVICE, "managed");
    CU_OK(cu.cuMemFree(at));
    CU_OK(cu.cuMemHostAlloc(&host, MIB, 0));
    refused((CUdeviceptr)(uintptr_t)host, 64, DLX_E_DEVICE, "host memory");
    CU_OK(cu.cuMemFreeHost(host));
    refused((CUdeviceptr)(uintptr_t)&ordinary, 4, DLX_E_DEVICE, "does not know it");
    dlx_test_gpu_segment_make(&none, 1, 2 * MIB, CU_MEM_HANDLE_TYPE_NONE);
    refused(none.base, 64, DLX_E_DEVICE,
            is_hip ? "hipMemExportToShareableHandle" : "POSIX_FILE_DESCRIPTOR");
    refused(none.base, 64, DLX_E_DEVICE,
            is_hip ? "without a type of handle" : "unset TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC");
    dlx_test_gpu_segment_free(&none);
    at = dlx_test_gpu_pool_make(MIB, CU_MEM_HANDLE_TYPE_NONE, &pool);
    refused(at, 64, DLX_E_DEVICE,
            is_hip ? "hipIpcGetMemHandle" : "its memory pool was created without");
    refused(at, 64, DLX_E_DEVICE, is_hip ? "of pools" : "backend:native");
    refused(at, 64, DLX_E_DEVICE, "`stage`");
    dlx_test_gpu_pool_free(pool, at);
    CU_OK(cu.cuMemAlloc(&at, MIB));
    refused(at + MIB - 64, 128, DLX_E_DEVICE, "beyond its allocation");
    fails(dlx__gpu_exports_share(exports, dlx_test_gpu_type(), 1, (void *)(uintptr_t)at, 64,
                                 &export, &offset),
          DLX_E_INVALID, "device 1, its memory is on device 0");
    CU_OK(cu.cuMemFree(at));
}

GPU_TEST(memory_of_a_fabric_is_refused, DLX_TEST_GPU_CHOICE | DLX_TEST_GPU_FLAGS)
{
    static struct dlx_test_gpu_segment fabric;
    publisher_in_context();
    standin.standin_set_attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, 1);
    dlx_test_gpu_segment_make(&fabric, 1, 2 * MIB, CU_MEM_HANDLE_TYPE_FABRIC);
    refused(fabric.base, 64, DLX_E_DEVICE, "IMEX");
    refused(fabric.base, 64, DLX_E_DEVICE, "expandable_segments:False");
    refused(fabric.base, 64, DLX_E_DEVICE, "`stage`");
    dlx_test_gpu_segment_free(&fabric);
}

static CUdeviceptr target;

static int fail_allocate(void)
{
    return allocate(0, 3 * MIB);
}

static int fail_share(void)
{
    return share(target, 3 * MIB);
}

static void fail_undo(void)
{
    dlx__gpu_export_unref(dlx_steal(export));
}

GPU_TEST(an_arena_that_cannot_be_made_leaves_nothing, DLX_TEST_GPU_FAILURES)
{
    publisher();
    ck_assert_int_eq(fail_allocate(), 0); /* loads the driver */
    fail_undo();
    ck_assert_uint_eq(dlx_test_gpu_fail_each(fail_allocate, fail_undo),
                      dlx_test_gpu_is_hip() ? 14 : 16);
}

GPU_TEST(memory_that_cannot_be_exported_leaves_nothing, DLX_TEST_GPU_FAILURES)
{
    static struct dlx_test_gpu_segment segment;
    bool is_hip = dlx_test_gpu_is_hip(); /* whose memory is shared in one chunk */
    publisher_in_context();
    dlx_test_gpu_segment_make(&segment, 3, (is_hip ? 4 : 2) * MIB, FD_TYPE);
    target = segment.base + MIB;
    shared(target, 3 * MIB);
    fail_undo();
    ck_assert_uint_eq(dlx_test_gpu_fail_each(fail_share, fail_undo), is_hip ? 4 : 8);
    dlx_test_gpu_segment_free(&segment);
}

GPU_TEST(memory_of_a_pool_that_cannot_be_exported_leaves_nothing,
         DLX_TEST_GPU_FAILURES | DLX_TEST_GPU_POOLS)
{
    CUmemoryPool pool;
    publisher_in_context();
    target = dlx_test_gpu_pool_make(3 * MIB, FD_TYPE, &pool);
    shared(target, 3 * MIB);
    fail_undo();
    ck_assert_uint_eq(dlx_test_gpu_fail_each(fail_share, fail_undo), 5);
    dlx_test_gpu_pool_free(pool, target);
}

static void in_child(void (*fn)(void))
{
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        fn();
        _exit(0);
    }
    dlx_test_fork_join(pid);
}

static void check_forked(void)
{
    struct dlx_gpu_uuid uuid;
    fails(dlx__gpu_uuid(dlx_test_gpu_type(), 0, &uuid), DLX_E_FORKED, "forked child");
}

static void child_of_dlx(void)
{
    struct dlx_gpu_export *other;
    uint64_t at;
    check_forked();
    ck_assert_int_eq(dlx_test_gpu_arena(exports, dlx_test_gpu_type(), 0, MIB, &other),
                     DLX_E_FORKED);
    ck_assert_int_eq(dlx__gpu_exports_share(exports, dlx_test_gpu_type(), 0, &at, 8, &other, &at),
                     DLX_E_FORKED);
    end(); /* its parent's */
}

GPU_TEST(a_forked_child_is_refused_and_leaves_its_parent_s_memory_alone, 0)
{
    publisher();
    ok(allocate(0, MIB));
    struct dlx_test_gpu_state before = dlx_test_gpu_state_now();
    in_child(child_of_dlx);
    dlx_test_gpu_state_check(&before);
}

GPU_TEST(so_is_a_child_whose_parent_used_the_driver_without_us, DLX_TEST_GPU_FORKS)
{
    dlx_test_gpu_context(0);
    in_child(check_forked);
}

static TCase *memory_case(void)
{
    TCase *tcase = dlx_test_gpu_case("memory");
    tcase_add_checked_fixture(tcase, NULL, end);
    return tcase;
}

#endif

GPU_MAIN(memory_case())
