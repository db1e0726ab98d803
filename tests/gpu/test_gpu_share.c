/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory between two processes: every kind of it, processes that die,
 * and what one keeps open of another. */
#include "tests/gpu/harness_gpu_machine.h"

#if DLX_TEST_HAS_GPU
#include "gpu/exports.h"
#include "gpu/imports.h"
#include "gpu/lib/malloc.h"
#include "tests/gpu/harness_gpu_arena.h"
#include <dlpack/dlpack.h>

#define FD_TYPE CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define MIB     DLX_TEST_GPU_MIB
#define HOME    ((uint64_t)(int64_t)DLX_GPU_HOME)

static struct dlx_test_gpu_peer peers[5];
static struct dlx_gpu_exports *exports;
static struct dlx_gpu_export *export;
static uint64_t offset;
static struct dlx_gpu_handle received; /* of a peer */
static struct dlx_gpu_import *import;

static void publisher(void)
{
    dlx_test_gpu_context(0);
    ok(dlx__gpu_exports_new(&exports, DLX_TEST_GPU_OWN));
}

/* A publisher, and a peer, which is started before. */
static void publisher_with_peer(const char *variable)
{
    dlx_test_gpu_peer_start(&peers[0], variable);
    publisher();
}

static void end(void)
{
    dlx__gpu_export_unref(dlx_steal(export));
    if (exports)
        dlx__gpu_exports_end(dlx_steal(exports));
}

/* Ends the objects that the test has not ended itself. */
static void teardown(void)
{
    dlx__gpu_handle_deinit(&received);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(peers); i++)
        if (peers[i].pid > 0)
            dlx_test_gpu_peer_end(&peers[i]);
    end();
}

static void arena(uint64_t size)
{
    ok(dlx_test_gpu_arena(exports, dlx_test_gpu_type(), 0, size, &export));
}

static void share(CUdeviceptr at, uint64_t size)
{
    ok(dlx__gpu_exports_share(exports, dlx_test_gpu_type(), 0, (void *)(uintptr_t)at, size, &export,
                              &offset));
}

static CUdeviceptr base_of(const struct dlx_gpu_export *e)
{
    return (CUdeviceptr)(uintptr_t)dlx__gpu_export_base(e);
}

static struct dlx_test_gpu_word ask_open(struct dlx_test_gpu_peer *peer, uint64_t device,
                                         enum dlx_gpu_access access)
{
    return dlx_test_gpu_ask(peer, DLX_TEST_GPU_OPEN, device, access, 0,
                            dlx__gpu_export_handle(export));
}

/* The number of the import in the peer. */
static uint64_t open_in(struct dlx_test_gpu_peer *peer, enum dlx_gpu_access access)
{
    struct dlx_test_gpu_word w = ask_open(peer, HOME, access);
    ck_assert_msg(w.result == 0, "%s", w.text);
    return w.a;
}

static uint64_t read_in(struct dlx_test_gpu_peer *peer, uint64_t number, uint64_t at)
{
    struct dlx_test_gpu_word w = dlx_test_gpu_ask(peer, DLX_TEST_GPU_READ, number, at, 0, NULL);
    ck_assert_int_eq(w.result, 0);
    return w.a;
}

static uint64_t ask(struct dlx_test_gpu_peer *peer, enum dlx_test_gpu_op op, uint64_t a)
{
    return dlx_test_gpu_ask(peer, op, a, 0, 0, NULL).a;
}

/* 2 MiB of a peer. */
static void begin_received(enum dlx_gpu_kind kind)
{
    dlx_test_gpu_peer_start(&peers[0], NULL);
    dlx_test_gpu_ask_handle(&peers[0], kind, 2 * MIB, &received);
    ok(dlx__gpu_imports_join(DLX_TEST_GPU_PEER));
}

static int open_received(void)
{
    return dlx__gpu_import(DLX_TEST_GPU_PEER, &received, DLX_GPU_HOME, DLX_GPU_READ, NULL, &import);
}

static uint64_t trim(void)
{
    uint64_t bytes = 0;
    ok(dlx__gpu_imports_trim(&bytes));
    return bytes;
}

static void close_received(void)
{
    dlx__gpu_import_unref(import);
    (void)trim();
}

/* Nothing of the driver, but contexts, is left in the peer. */
static void check_empty(struct dlx_test_gpu_peer *peer)
{
    static const enum standin_counter what[] = {
        STANDIN_CONTEXTS,     STANDIN_HANDLES, STANDIN_RESERVATIONS, STANDIN_MAPPINGS,
        STANDIN_IPC_MAPPINGS, STANDIN_POOLS,   STANDIN_POOL_IMPORTS};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(what); i++)
        dlx_test_gpu_peer_check(peer, what[i], 0);
}

/* The peer must read the test's words at `at`; and the other way, if it may write. */
static void check_shared(CUdeviceptr at, bool may_write)
{
    uint64_t word;
    dlx_test_gpu_fill(at, 64, 0x01020304);
    uint64_t number = open_in(&peers[0], may_write ? DLX_GPU_READ_WRITE : DLX_GPU_READ);
    ck_assert_uint_eq(read_in(&peers[0], number, offset), 0x0102030401020304);
    struct dlx_test_gpu_word w =
        dlx_test_gpu_ask(&peers[0], DLX_TEST_GPU_WRITE, number, offset, 0xfeedfeedfeed, NULL);
    ck_assert_int_eq(w.result, may_write ? 0 : DLX_E_SYSTEM);
    CU_OK(cu.cuMemcpyDtoH(&word, at, sizeof word));
    ck_assert_uint_eq(word, may_write ? 0xfeedfeedfeed : 0x0102030401020304);
    ask(&peers[0], DLX_TEST_GPU_DROP, number);
}

GPU_LOOP_TEST(an_arena_is_read_and_with_leave_written_by_another_process, 0, 2, 0)
{
    publisher_with_peer(NULL);
    arena(MIB);
    offset = 4096;
    check_shared(base_of(export) + 4096, _i == 1);
    ask(&peers[0], DLX_TEST_GPU_TRIM, 0);
    if (_i == 1)
        check_empty(&peers[0]);
}

GPU_TEST(memory_of_cudamalloc_is_used_by_another_process, 0)
{
    CUdeviceptr at;
    publisher_with_peer(NULL);
    CU_OK(cu.cuMemAlloc(&at, MIB));
    share(at + 4096, 64);
    check_shared(at + 4096, true);
    check_empty(&peers[0]);
    end();
    CU_OK(cu.cuMemFree(at));
}

/* A pool's importers have to free before the exporter: none is kept open. */
GPU_TEST(memory_of_a_pool_is_used_by_another_process_and_closed_at_once, DLX_TEST_GPU_POOLS)
{
    CUmemoryPool pool;
    publisher_with_peer(NULL);
    CUdeviceptr at = dlx_test_gpu_pool_make(MIB, FD_TYPE, &pool);
    share(at + 4096, 64);
    check_shared(at + 4096, true);
    check_empty(&peers[0]);
    end();
    dlx_test_gpu_pool_free(pool, at);
}

/* The driver does not count: of two imports the first that is closed would end both. */
GPU_TEST(memory_of_a_pool_is_opened_once_whoever_publishes_it, DLX_TEST_GPU_POOLS)
{
    static const struct dlx_gpu_publisher other = {2, 3};
    struct dlx_gpu_import *second;
    begin_received(DLX_GPU_CUDA_POOL);
    dlx_test_gpu_context(0);
    ok(open_received());
    received.id = 77; /* as the other publisher calls it */
    ok(dlx__gpu_import(other, &received, DLX_GPU_HOME, DLX_GPU_READ, NULL, &second));
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)dlx__gpu_import_base(second);
    dlx_test_gpu_check_calls("cuMemPoolImportPointer", 1);
    dlx__gpu_import_unref(import);
    ck_assert_uint_eq(dlx_test_gpu_word(at), 1);
    dlx__gpu_import_unref(second);
    dlx_test_gpu_check_count(STANDIN_POOL_IMPORTS, 0);
}

/* Another import for another GPU would end with the first one, too. */
GPU_TEST(memory_of_a_pool_is_open_for_one_gpu_at_a_time, DLX_TEST_GPU_TWO | DLX_TEST_GPU_POOLS)
{
    struct dlx_gpu_import *none;
    begin_received(DLX_GPU_CUDA_POOL);
    dlx_test_gpu_context(1);
    dlx_test_gpu_context(0);
    ok(open_received());
    fails(dlx__gpu_import(DLX_TEST_GPU_PEER, &received, 1, DLX_GPU_READ, NULL, &none), DLX_E_DEVICE,
          "is open for GPU 0 and cannot be opened for GPU 1");
    ck_assert_uint_eq(dlx_test_gpu_word((CUdeviceptr)(uintptr_t)dlx__gpu_import_base(import)), 1);
    dlx__gpu_import_unref(import);
    ok(dlx__gpu_import(DLX_TEST_GPU_PEER, &received, 1, DLX_GPU_READ, NULL, &import));
    dlx__gpu_import_unref(import);
}

GPU_LOOP_TEST(chunks_of_an_expandable_segment_are_side_by_side_in_another_process, 0, 3,
              DLX_TEST_GPU_CHUNKS)
{
    static const uint32_t n_chunks[] = {3, 253, 300};
    static struct dlx_test_gpu_segment segment;
    uint32_t n = n_chunks[_i];
    publisher_with_peer(NULL);
    dlx_test_gpu_segment_make(&segment, n, 2 * MIB, FD_TYPE);
    for (uint32_t i = 0; i < n; i++)
        dlx_test_gpu_fill(segment.base + 2 * MIB * i, 64, i + 1);
    share(segment.base + MIB, (2 * n - 1) * MIB);
    ck_assert_uint_eq(dlx__gpu_export_handle(export)->n_chunks, n);
    uint64_t n_fds = ask(&peers[0], DLX_TEST_GPU_FDS, 0);
    uint64_t number = open_in(&peers[0], DLX_GPU_READ);
    for (uint32_t i = 0; i < n; i++)
        ck_assert_uint_eq(read_in(&peers[0], number, 2 * MIB * i) & 0xffffffff, i + 1);
    dlx_test_gpu_peer_check(&peers[0], STANDIN_HANDLES, 0);
    ask(&peers[0], DLX_TEST_GPU_DROP, number);
    ask(&peers[0], DLX_TEST_GPU_TRIM, 0);
    check_empty(&peers[0]);
    ck_assert_uint_le(ask(&peers[0], DLX_TEST_GPU_FDS, 0), n_fds + 1); /* the driver's own */
    dlx_test_gpu_peer_end(&peers[0]);
    end();
    dlx_test_gpu_segment_free(&segment);
}

GPU_TEST(a_process_that_does_not_see_the_gpu_says_which_one, DLX_TEST_GPU_TWO)
{
    char name[DLX_GPU_UUID_TEXT];
    publisher_with_peer("CUDA_VISIBLE_DEVICES=1");
    arena(MIB);
    struct dlx_test_gpu_word w = ask_open(&peers[0], HOME, DLX_GPU_READ);
    ck_assert_int_eq(w.result, DLX_E_DEVICE);
    dlx__gpu_uuid_text(&dlx__gpu_export_handle(export)->device, name);
    ck_assert_msg(strstr(w.text, name) && strstr(w.text, "does not see"), "%s", w.text);
    check_empty(&peers[0]);
}

GPU_TEST(ordinals_of_the_two_processes_may_differ, DLX_TEST_GPU_TWO)
{
    publisher_with_peer("CUDA_VISIBLE_DEVICES=1,0");
    arena(MIB);
    dlx_test_gpu_fill(base_of(export), 64, 5);
    struct dlx_test_gpu_word w = ask_open(&peers[0], HOME, DLX_GPU_READ);
    ck_assert_msg(w.result == 0, "%s", w.text);
    dlx_test_gpu_peer_check(&peers[0], STANDIN_CONTEXTS_MADE, 0);
    /* Device 0 of the peer is the other GPU: it reads what it was opened for. */
    w = ask_open(&peers[0], 0, DLX_GPU_READ);
    ck_assert_msg(w.result == 0, "%s", w.text);
    ck_assert_uint_eq(read_in(&peers[0], w.a, 0), 0x500000005);
}

GPU_TEST(an_arena_outlives_its_process_while_a_descriptor_is_open, 0)
{
    begin_received(dlx_test_gpu_vmm());
    dlx_test_gpu_kill(&peers[0]);
    dlx_test_gpu_context(0);
    struct dlx_test_gpu_state before = dlx_test_gpu_state_now();
    ok(open_received());
    dlx__gpu_handle_deinit(&received); /* the mapping keeps it now */
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)dlx__gpu_import_base(import);
    ck_assert_uint_eq(dlx_test_gpu_word(at), 1);
    ck_assert_uint_eq(dlx_test_gpu_word(at + 8 * 4096), 4097);
    dlx__gpu_imports_leave(DLX_TEST_GPU_PEER);
    ck_assert_uint_eq(dlx_test_gpu_word(at), 1); /* until it is dropped */
    dlx__gpu_import_unref(import);
    before.n_fds--;
    dlx_test_gpu_state_check(&before);
}

GPU_LOOP_TEST(memory_comes_back_whatever_number_of_processes_had_it, 0, 3, 0)
{
    static const size_t numbers[] = {0, 1, 5};
    size_t n = numbers[_i];
    for (size_t i = 0; i < n; i++)
        dlx_test_gpu_peer_start(&peers[i], NULL);
    publisher();
    struct dlx_test_gpu_state before = dlx_test_gpu_state_now();
    size_t free_before = dlx_test_gpu_free_memory();
    arena(64 * MIB);
    for (size_t i = 0; i < n; i++)
        (void)open_in(&peers[i], DLX_GPU_READ);
    dlx__gpu_export_unref(dlx_steal(export));
    if (n > 0)
        before.n_free = 0; /* they have it open */
    dlx_test_gpu_state_check(&before);
    for (size_t i = 0; i < n; i++) {
        ck_assert_uint_eq(read_in(&peers[i], 0, 0), 0);
        if (i % 2 == 1) {
            dlx_test_gpu_kill(&peers[i]);
            continue;
        }
        ask(&peers[i], DLX_TEST_GPU_DROP, 0);
        ask(&peers[i], DLX_TEST_GPU_FREED, 1);
        check_empty(&peers[i]);
        dlx_test_gpu_peer_end(&peers[i]);
    }
    dlx_test_gpu_check_free_memory(free_before);
}

GPU_TEST(an_allocation_is_opened_once_and_stays_until_its_publisher_has_freed_it,
         DLX_TEST_GPU_COUNTS)
{
    publisher_with_peer(NULL);
    arena(MIB);
    uint64_t first = open_in(&peers[0], DLX_GPU_READ);
    uint64_t second = open_in(&peers[0], DLX_GPU_READ);
    dlx_test_gpu_peer_check(&peers[0], STANDIN_MAPPINGS, 1);
    ask(&peers[0], DLX_TEST_GPU_DROP, first);
    ask(&peers[0], DLX_TEST_GPU_DROP, second);
    ask(&peers[0], DLX_TEST_GPU_FREED, 99); /* another allocation */
    dlx_test_gpu_peer_check(&peers[0], STANDIN_MAPPINGS, 1);
    first = open_in(&peers[0], DLX_GPU_READ); /* idle, and used again */
    dlx_test_gpu_peer_check(&peers[0], STANDIN_MAPPINGS, 1);
    ask(&peers[0], DLX_TEST_GPU_FREED, 0); /* any, but not what is used */
    dlx_test_gpu_peer_check(&peers[0], STANDIN_MAPPINGS, 1);
    ask(&peers[0], DLX_TEST_GPU_DROP, first);
    dlx_test_gpu_peer_check(&peers[0], STANDIN_MAPPINGS, 1);
    ask(&peers[0], DLX_TEST_GPU_FREED, dlx__gpu_export_handle(export)->id);
    check_empty(&peers[0]);
}

GPU_TEST(imports_stay_until_the_last_link_to_their_publisher_leaves, DLX_TEST_GPU_COUNTS)
{
    struct dlx_gpu_import *other;
    begin_received(dlx_test_gpu_vmm());
    ok(dlx__gpu_imports_join(DLX_TEST_GPU_PEER)); /* another subscription */
    ok(open_received());
    dlx__gpu_imports_leave(DLX_TEST_GPU_PEER);
    other = import;
    ok(open_received());
    ck_assert_ptr_eq(import, other);
    dlx__gpu_import_unref(other);
    dlx__gpu_import_unref(import);
    dlx_test_gpu_check_count(STANDIN_MAPPINGS, 1);
    ok(open_received());
    dlx__gpu_imports_leave(DLX_TEST_GPU_PEER);
    dlx_test_gpu_check_count(STANDIN_MAPPINGS, 1);
    dlx__gpu_import_unref(import); /* of a message that is held */
    dlx_test_gpu_check_count(STANDIN_MAPPINGS, 0);
}

/* Ids are those of one daemon, numbers those of one process: only both together are a publisher. */
GPU_TEST(an_allocation_belongs_to_a_publisher_of_one_number_and_one_id, 0)
{
    static const struct dlx_gpu_publisher others[] = {{2, 2}, {1, 3}};
    struct dlx_gpu_import *other;
    begin_received(dlx_test_gpu_vmm());
    ok(open_received());
    for (size_t i = 0; i < DLX_ARRAY_SIZE(others); i++) {
        ok(dlx__gpu_imports_join(others[i]));
        ok(dlx__gpu_import(others[i], &received, DLX_GPU_HOME, DLX_GPU_READ, NULL, &other));
        ck_assert_ptr_ne(other, import);
        dlx__gpu_import_unref(other);
        dlx__gpu_imports_leave(others[i]);
        ok(dlx__gpu_import(DLX_TEST_GPU_PEER, &received, DLX_GPU_HOME, DLX_GPU_READ, NULL, &other));
        ck_assert_ptr_eq(other, import); /* it has not gone with the other one */
        dlx__gpu_import_unref(other);
    }
    close_received();
}

/* A mapping for reading alone is not given to a caller that writes. */
GPU_TEST(an_import_is_of_one_access, 0)
{
    struct dlx_gpu_import *other;
    begin_received(dlx_test_gpu_vmm());
    ok(open_received());
    ok(dlx__gpu_import(DLX_TEST_GPU_PEER, &received, DLX_GPU_HOME, DLX_GPU_READ_WRITE, NULL,
                       &other));
    ck_assert_ptr_ne(other, import);
    dlx__gpu_import_unref(other);
    close_received();
}

static int import_own(const struct dlx_gpu_handle *handle, struct dlx_gpu_import **ret)
{
    return dlx__gpu_import(DLX_TEST_GPU_OWN, handle, DLX_GPU_HOME, DLX_GPU_READ, NULL, ret);
}

GPU_TEST(a_publisher_of_this_process_is_not_opened, 0)
{
    CUdeviceptr at;
    publisher();
    CU_OK(cu.cuMemAlloc(&at, MIB));
    share(at + 64, 64);
    const struct dlx_gpu_handle *handle = dlx__gpu_export_handle(export);
    ck_assert_int_eq(import_own(handle, &import), 0);
    ck_assert_uint_eq((CUdeviceptr)(uintptr_t)dlx__gpu_import_base(import) + offset, at + 64);
    dlx_test_gpu_check_calls("cuIpcOpenMemHandle", 0);
    struct dlx_gpu_handle other = *handle;
    struct dlx_gpu_import *none;
    other.size++;
    ck_assert_int_eq(import_own(&other, &none), DLX_E_PROTOCOL);
    other.id = 77;
    ck_assert_int_eq(import_own(&other, &none), DLX_E_NOT_FOUND);
    end(); /* what was taken stays until it is dropped */
    ck_assert_uint_eq((CUdeviceptr)(uintptr_t)dlx__gpu_import_base(import), at);
    dlx__gpu_import_unref(import);
    CU_OK(cu.cuMemFree(at));
}

static bool is_found(uint64_t number, uint64_t id)
{
    struct dlx_gpu_export *found = NULL;
    ck_assert_int_eq(dlx__gpu_exports_find((struct dlx_gpu_publisher){number, id},
                                           dlx__gpu_export_handle(export)->id, &found),
                     0);
    dlx__gpu_export_unref(found);
    return found != NULL;
}

/* With any pid: no check asks for it. */
GPU_TEST(a_publisher_is_known_by_the_id_of_each_daemon, 0)
{
    struct dlx_gpu_publisher own = DLX_TEST_GPU_OWN;
    publisher();
    arena(MIB);
    ck_assert(is_found(own.number, own.id));
    ck_assert(!is_found(own.number, own.id + 1)); /* one that repeats its number */
    ck_assert(!is_found(own.number + 1, own.id));
    ck_assert_int_eq(dlx__gpu_exports_also(exports, own.id + 1), 0);
    ck_assert(is_found(own.number, own.id + 1));
    ck_assert(is_found(own.number, own.id)); /* by links of the former daemon */
    ck_assert(!is_found(own.number, own.id + 2));
}

/* `n_calls` of the driver may fail. */
static void check_open_fails(enum dlx_gpu_kind kind, uint32_t n_calls)
{
    begin_received(kind);
    dlx_test_gpu_context(0); /* so that no context's end closes what is left open */
    ok(open_received());
    ck_assert_uint_eq(dlx_test_gpu_word((CUdeviceptr)(uintptr_t)dlx__gpu_import_base(import)), 1);
    dlx_test_gpu_context(1); /* so that one that is left on the stack is seen */
    close_received();
    ck_assert_uint_eq(dlx_test_gpu_fail_each(open_received, close_received), n_calls);
}

/* 0: what libdlx allocates; 1: what frameworks do. */
GPU_LOOP_TEST(memory_that_cannot_be_opened_leaves_nothing, 0, 2, DLX_TEST_GPU_FAILURES)
{
    uint32_t of_hip = _i == 0 ? 6 : 5;
    check_open_fails(_i == 0 ? dlx_test_gpu_vmm() : dlx_test_gpu_ipc(),
                     dlx_test_gpu_is_hip() ? of_hip : 8);
}

GPU_TEST(memory_of_a_pool_that_cannot_be_opened_leaves_nothing,
         DLX_TEST_GPU_FAILURES | DLX_TEST_GPU_POOLS)
{
    check_open_fails(DLX_GPU_CUDA_POOL, 9);
}

GPU_TEST(a_description_that_lies_about_its_chunks_leaves_nothing, 0)
{
    begin_received(dlx_test_gpu_vmm());
    ok(open_received());
    close_received();
    struct dlx_test_gpu_state before = dlx_test_gpu_state_now();
    received.size = received.chunks[0].size = 4 * MIB;
    ck_assert_int_lt(open_received(), 0);
    contains(dlx__error_message(), dlx__gpu_kind_text(dlx_test_gpu_vmm()));
    dlx_test_gpu_state_check(&before);
    int fd = received.chunks[0].fd;
    received.size = received.chunks[0].size = 2 * MIB;
    received.chunks[0].fd = peers[0].sock; /* no memory at all */
    ck_assert_int_lt(open_received(), 0);
    dlx_test_gpu_state_check(&before);
    received.chunks[0].fd = fd;
    ok(open_received());
    close_received();
}

static void check_lie_about_size(enum dlx_gpu_kind kind)
{
    begin_received(kind);
    dlx_test_gpu_context(0);
    dlx_test_gpu_context(1);
    struct dlx_test_gpu_state before = dlx_test_gpu_state_now();
    received.size++;
    fails(open_received(), DLX_E_PROTOCOL, "says 2097153 bytes, and there are 2097152");
    dlx_test_gpu_state_check(&before);
    received.size--;
    ok(open_received());
    struct dlx_gpu_import *first = import;
    received.size++; /* said once it is open */
    fails(open_received(), DLX_E_PROTOCOL, "has 2097153 bytes, and has said 2097152");
    import = first;
    close_received();
}

GPU_TEST(a_description_that_lies_about_the_size_of_memory_leaves_nothing, DLX_TEST_GPU_TWO)
{
    check_lie_about_size(dlx_test_gpu_ipc());
}

GPU_TEST(a_description_that_lies_about_the_size_of_a_pool_s_memory_leaves_nothing,
         DLX_TEST_GPU_TWO | DLX_TEST_GPU_POOLS)
{
    check_lie_about_size(DLX_GPU_CUDA_POOL);
}

/* The one that was used longest ago goes first: the last one is still open at the end. */
GPU_TEST(no_more_than_a_limit_stays_open, DLX_TEST_GPU_COUNTS)
{
    enum { N = DLX_GPU_IMPORTS_IDLE_MAX + 2 };
    dlx_test_gpu_peer_start(&peers[0], NULL);
    ok(dlx__gpu_imports_join(DLX_TEST_GPU_PEER));
    for (uint64_t i = 1; i <= N; i++) {
        dlx_test_gpu_ask_handle(&peers[0], dlx_test_gpu_vmm(), 2 * MIB, &received);
        ck_assert_uint_eq(received.id, i);
        ok(open_received());
        dlx__gpu_import_unref(import);
        if (i < N)
            dlx__gpu_handle_deinit(&received);
    }
    dlx_test_gpu_check_count(STANDIN_MAPPINGS, DLX_GPU_IMPORTS_IDLE_MAX);
    ok(open_received());
    dlx_test_gpu_check_calls("cuMemMap", N);
    close_received();
    dlx_test_gpu_check_count(STANDIN_MAPPINGS, 0);
}

/* Opens so much of a peer, and drops it. */
static void visit(uint64_t size)
{
    dlx__gpu_handle_deinit(&received);
    dlx_test_gpu_ask_handle(&peers[0], dlx_test_gpu_vmm(), size, &received);
    ok(open_received());
    dlx__gpu_import_unref(import);
}

/* An eighth of the 1 GiB of the GPU. */
GPU_TEST(no_more_bytes_than_a_part_of_the_gpu_stay_open, DLX_TEST_GPU_CHOICE)
{
    dlx_test_gpu_peer_start(&peers[0], NULL);
    ok(dlx__gpu_imports_join(DLX_TEST_GPU_PEER));
    visit(48 * MIB);
    visit(64 * MIB);
    dlx_test_gpu_check_count(STANDIN_MAPPINGS, 2);
    visit(48 * MIB); /* the first one goes */
    dlx_test_gpu_check_count(STANDIN_MAPPINGS, 2);
    visit(130 * MIB); /* too much by itself: the others stay */
    dlx_test_gpu_check_count(STANDIN_MAPPINGS, 2);
    ck_assert_uint_eq(trim(), 112 * MIB);
    dlx_test_gpu_check_count(STANDIN_MAPPINGS, 0);
}

static int allocate_here(void)
{
    void *memory;
    int r = dlx__gpu_malloc(dlx_test_gpu_type(), 0, 2 * MIB, &memory);
    if (r == 0)
        dlx__gpu_free(memory);
    return r;
}

GPU_TEST(an_allocation_that_finds_no_memory_closes_idle_imports_first, DLX_TEST_GPU_FAILURES)
{
    const CUresult none = CUDA_ERROR_OUT_OF_MEMORY;
    begin_received(dlx_test_gpu_vmm());
    ok(open_received());
    ck_assert(standin.standin_fail("cuMemCreate", 1, 1, none));
    fails(allocate_here(), DLX_E_NO_MEMORY, "OUT_OF_MEMORY"); /* nothing is idle */
    dlx__gpu_import_unref(import);
    ck_assert(standin.standin_fail("cuMemCreate", 1, 1, none));
    ok(allocate_here());
    dlx_test_gpu_check_count(STANDIN_MAPPINGS, 0);
    ck_assert_uint_eq(standin.standin_fail_clear(), 2);
}

enum { N_THREADS = 8, N_ROUNDS = 50 };
static pthread_barrier_t barrier;

static void *open_at_once(void *arg)
{
    struct dlx_gpu_import *mine;
    (void)arg;
    for (int i = 0; i < N_ROUNDS; i++) {
        pthread_barrier_wait(&barrier);
        if (dlx__gpu_import(DLX_TEST_GPU_PEER, &received, DLX_GPU_HOME, DLX_GPU_READ, NULL, &mine) <
                0 ||
            !dlx__gpu_import_base(mine))
            return NULL;
        pthread_barrier_wait(&barrier);
        dlx__gpu_import_unref(mine);
        dlx__gpu_imports_freed(DLX_TEST_GPU_PEER, received.id);
    }
    return &barrier;
}

GPU_TEST(threads_that_open_at_once_open_once, DLX_TEST_GPU_COUNTS)
{
    pthread_t threads[N_THREADS];
    begin_received(dlx_test_gpu_vmm());
    ck_assert_int_eq(pthread_barrier_init(&barrier, NULL, N_THREADS), 0);
    CU_OK(cu.cuInit(0));
    ck_assert(standin.standin_delay("cuMemMap", 1000000)); /* the others come meanwhile */
    for (int i = 0; i < N_THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, open_at_once, NULL), 0);
    for (int i = 0; i < N_THREADS; i++) {
        void *result;
        ck_assert_int_eq(pthread_join(threads[i], &result), 0);
        ck_assert_ptr_nonnull(result);
    }
    dlx_test_gpu_check_calls("cuMemImportFromShareableHandle", N_ROUNDS);
    dlx_test_gpu_check_count(STANDIN_MAPPINGS, 0);
    ck_assert_int_eq(pthread_barrier_destroy(&barrier), 0);
}

/* As a subscriber that takes and releases one message after the other, on several threads. */
static void *open_and_close(void *arg)
{
    struct dlx_gpu_import *mine;
    for (int i = 0; i < N_ROUNDS; i++) {
        uint64_t word = 0;
        if (cu.cuCtxSetCurrent(arg) != CUDA_SUCCESS ||
            dlx__gpu_import(DLX_TEST_GPU_PEER, &received, DLX_GPU_HOME, DLX_GPU_READ, NULL, &mine) <
                0 ||
            cu.cuMemcpyDtoH(&word, (CUdeviceptr)(uintptr_t)dlx__gpu_import_base(mine),
                            sizeof word) != CUDA_SUCCESS ||
            word != 1)
            return NULL;
        dlx__gpu_import_unref(mine);
    }
    return arg;
}

GPU_TEST(memory_of_a_pool_is_not_opened_while_another_thread_closes_it,
         DLX_TEST_GPU_COUNTS | DLX_TEST_GPU_POOLS)
{
    pthread_t threads[N_THREADS];
    begin_received(DLX_GPU_CUDA_POOL);
    CUcontext context = dlx_test_gpu_context(0);
    ck_assert(standin.standin_delay("cuMemFree", 100000)); /* the others come meanwhile */
    for (int i = 0; i < N_THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, open_and_close, context), 0);
    for (int i = 0; i < N_THREADS; i++) {
        void *result;
        ck_assert_int_eq(pthread_join(threads[i], &result), 0);
        ck_assert_ptr_eq(result, context);
    }
    dlx_test_gpu_check_count(STANDIN_POOL_IMPORTS, 0);
}

static TCase *share_case(void)
{
    TCase *tcase = dlx_test_gpu_case("share");
    tcase_add_checked_fixture(tcase, NULL, teardown);
    return tcase;
}

#endif

GPU_MAIN(share_case())
