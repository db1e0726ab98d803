/* SPDX-License-Identifier: Apache-2.0 */
/* E11, E3, E12, E10, E6: what pointers say, calls without a context, residue, prices. */
#include "tests/gpu/facts/facts.h"

#if DLX_TEST_HAS_GPU
#include <stdatomic.h>

#define MIB     DLX_TEST_GPU_MIB
#define FD_TYPE CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

static uint64_t attribute(CUpointer_attribute which, CUdeviceptr at)
{
    uint64_t value = 0;
    return cu.cuPointerGetAttribute(&value, which, at) == CUDA_SUCCESS ? value : UINT64_MAX;
}

static void describe(char *ret, size_t size, const char *name, CUdeviceptr at)
{
    (void)snprintf(
        ret, size,
        "%s: legacy %lld, types %#llx, pool %s, range at -%#llx of %#llx, mapping at "
        "-%#llx of %#llx",
        name, (long long)(int64_t)attribute(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at),
        (unsigned long long)attribute(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, at),
        attribute(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at) + 1 > 1 ? "yes" : "no",
        (unsigned long long)(at - attribute(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at)),
        (unsigned long long)attribute(CU_POINTER_ATTRIBUTE_RANGE_SIZE, at),
        (unsigned long long)(at - attribute(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, at)),
        (unsigned long long)attribute(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, at));
}

TEST(E11_what_pointers_say)
{
    static struct dlx_test_gpu_segment segment;
    CUdeviceptr at, again, small[2];
    CUmemoryPool pool;
    char text[3][300];
    dlx_test_gpu_context(0);
    CU_OK(cu.cuMemAlloc(&at, 64 * MIB));
    describe(text[0], sizeof text[0], "cuMemAlloc + 3 MiB", at + 3 * MIB);
    uint64_t id = attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, at);
    CU_OK(cu.cuMemFree(at));
    CU_OK(cu.cuMemAlloc(&again, 64 * MIB));
    bool is_new = attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, again) != id;
    for (int i = 0; i < 2; i++)
        CU_OK(cu.cuMemAlloc(&small[i], 4096));
    uint64_t offset = small[1] - attribute(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, small[1]);
    CUdeviceptr pooled = dlx_test_gpu_pool_make(64 * MIB, FD_TYPE, &pool);
    describe(text[1], sizeof text[1], "pool + 3 MiB", pooled + 3 * MIB);
    dlx_test_gpu_segment_make(&segment, 2, DLX_TEST_GPU_CHUNK, FD_TYPE);
    describe(text[2], sizeof text[2], "second of 2 chunks + 1 MiB", segment.base + 3 * MIB);
    facts_answer("E11 attributes of pointers: %s; %s; %s; an address that is used again (%s) has "
                 "a new BUFFER_ID: %s; a second cuMemAlloc of 4 KiB is %lld after the first, and "
                 "%llu into its range",
                 text[0], text[1], text[2], again == at ? "it was" : "it was not",
                 facts_yes(is_new), (long long)(small[1] - small[0]), (unsigned long long)offset);
}

/* Says which call failed first, if one did. */
static void without_context(int sock)
{
    struct facts_memory m = {.size = DLX_TEST_GPU_CHUNK}, own;
    CUmemAllocationProp prop = dlx_test_gpu_prop(0);
    CUcontext current = NULL;
    unsigned flags;
    int is_active = -1, fd = -1;
    CU_OK(cu.cuInit(0));
    facts_say(sock, (struct facts_word){0}, -1);
    (void)facts_hear(sock, NULL);
    CUresult r = cu.cuMemCreate(&m.handle, m.size, &prop, 0);
    if (r == CUDA_SUCCESS)
        r = cu.cuMemExportToShareableHandle(&fd, m.handle, FD_TYPE, 0);
    if (r == CUDA_SUCCESS)
        r = facts_open(&own, fd, m.size, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CU_OK(cu.cuCtxGetCurrent(&current));
    CU_OK(cu.cuDevicePrimaryCtxGetState(0, &flags, &is_active));
    facts_say(sock,
              (struct facts_word){.result = (int32_t)r, .a = current != NULL, .b = is_active == 1},
              -1);
    (void)facts_hear(sock, NULL);
    dlx_test_gpu_context(0);
    CUresult used = r == CUDA_SUCCESS ? cu.cuMemsetD32(own.at, 42, m.size / 4) : r;
    facts_say(sock, (struct facts_word){.result = (int32_t)used}, -1);
    facts_serve(sock, 0, 0);
}

TEST(E3_calls_without_a_context)
{
    uint64_t n_free[4];
    struct dlx_test_gpu_peer observer = facts_observer();
    n_free[0] = facts_ask(&observer, FACTS_FREE, 0).a;
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(without_context);
    (void)facts_hear(peer.sock, NULL);
    n_free[1] = facts_ask(&observer, FACTS_FREE, 0).a;
    struct facts_word w = facts_ask(&peer, FACTS_GO, 0);
    n_free[2] = facts_ask(&observer, FACTS_FREE, 0).a;
    struct facts_word used = facts_ask(&peer, FACTS_GO, 0);
    n_free[3] = facts_ask(&observer, FACTS_FREE, 0).a;
    facts_answer("E3 VMM calls need no context: %s (%s); a context became current: %s, became "
                 "active: %s; the mapping works in a later context: %s; MiB of cuInit, of 2 MiB "
                 "of VMM, of a context: %.1f, %.1f, %.1f",
                 facts_yes(w.result == 0), facts_code(w.result), w.a ? "YES" : "no",
                 w.b ? "YES" : "no", facts_code(used.result),
                 ((double)n_free[0] - (double)n_free[1]) / (double)MIB,
                 ((double)n_free[1] - (double)n_free[2]) / (double)MIB,
                 ((double)n_free[2] - (double)n_free[3]) / (double)MIB);
    facts_end(&peer);
    facts_end(&observer);
}

#define MARK    UINT32_C(0xA5C3D2E1)
#define RESIDUE (256 * MIB)

static CUdeviceptr fresh(bool is_vmm)
{
    CUdeviceptr at;
    if (is_vmm)
        return dlx_test_gpu_map(dlx_test_gpu_create(RESIDUE), RESIDUE,
                                CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CU_OK(cu.cuMemAlloc(&at, RESIDUE));
    return at;
}

static bool is_vmm;

static void mark(int sock)
{
    dlx_test_gpu_context(0);
    dlx_test_gpu_fill(fresh(is_vmm), RESIDUE, MARK);
    facts_say(sock, (struct facts_word){0}, -1);
    (void)facts_hear(sock, NULL);
}

/* More than was written, so that the same pages come up. */
static void look(int sock)
{
    struct facts_word w = {0};
    dlx_test_gpu_context(0);
    for (int i = 0; i < 3; i++) {
        CUdeviceptr at = fresh(is_vmm);
        for (CUdeviceptr from = 0; from < RESIDUE; from += RESIDUE / 64) {
            struct dlx_test_gpu_view_of view = {.at = at + from,
                                                .n = DLX_TEST_GPU_LOOK_MAX,
                                                .columns = 1,
                                                .row_stride = RESIDUE / 64 / 256};
            w.a += dlx_test_gpu_look(&view, MARK);
            w.b += view.n - dlx_test_gpu_look(&view, 0);
            w.c += view.n;
        }
    }
    facts_say(sock, w, -1);
}

TEST(E12_residue_in_fresh_memory)
{
    char text[400];
    size_t n = 0;
    for (int i = 0; i < 4; i++) {
        is_vmm = i & 1;
        struct dlx_test_gpu_peer peer = dlx_test_gpu_start(mark);
        (void)facts_hear(peer.sock, NULL);
        if (i & 2)
            dlx_test_gpu_kill(&peer);
        else
            facts_end(&peer);
        peer = dlx_test_gpu_start(look);
        struct facts_word w = facts_hear(peer.sock, NULL);
        dlx_test_gpu_join(&peer);
        n += (size_t)snprintf(
            text + n, sizeof text - n,
            "%s%s, writer %s: %llu of %llu words not zero, %llu of another process", i ? "; " : "",
            is_vmm ? "cuMemCreate" : "cuMemAlloc", i & 2 ? "killed" : "ended",
            (unsigned long long)w.b, (unsigned long long)w.c, (unsigned long long)w.a);
    }
    facts_answer("E12 residue of a process in fresh memory of the next: %s", text);
}

static void CUDA_CB clear_word(void *arg)
{
    atomic_store((_Atomic uint64_t *)arg, 0);
}

enum { HOST_FUNCTION, STREAM_WRITE, SYNCHRONISE, N_WAYS };

static CUresult release(int how, CUstream stream, _Atomic uint64_t *word, CUdeviceptr at)
{
    if (how == HOST_FUNCTION)
        return cu.cuLaunchHostFunc(stream, clear_word, (void *)word);
    if (how == STREAM_WRITE)
        return cu.cuStreamWriteValue64(stream, at, 0, CU_STREAM_WRITE_VALUE_DEFAULT);
    CUresult r = cu.cuStreamSynchronize(stream);
    atomic_store(word, 0);
    return r;
}

TEST(E10_ways_to_release)
{
    enum { N = 200 };
    static uint64_t ns[N];
    double us[N_WAYS];
    void *page;
    CUdeviceptr at;
    CUstream stream;
    dlx_test_gpu_context(0);
    CU_OK(cu.cuMemHostAlloc(&page, 4096, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
    CU_OK(cu.cuMemHostGetDevicePointer(&at, page, 0));
    CU_OK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    _Atomic uint64_t *word = page;
    for (int how = 0; how < N_WAYS; how++) {
        for (int i = -10; i < N; i++) {
            atomic_store(word, 1);
            uint64_t start = dlx__now_ns();
            dlx_test_gpu_spin(stream, 0, 0);
            CU_OK(release(how, stream, word, at));
            while (atomic_load(word) != 0)
                ck_assert_uint_lt(dlx__now_ns(), start + UINT64_C(2000000000));
            if (i >= 0)
                ns[i] = dlx__now_ns() - start;
        }
        us[how] = facts_p50_us(ns, N);
    }
    facts_answer("E10 a release after an empty kernel is seen by the host, p50: host function "
                 "%.1f us, stream write %.1f us, synchronise and store %.1f us",
                 us[HOST_FUNCTION], us[STREAM_WRITE], us[SYNCHRONISE]);
}

enum { N_OPENS = 64 };

/* Allocations of the size in the word's `a`; `b`: older interface. */
static void price_exporter(int sock)
{
    CUipcMemHandle handle = {{0}};
    struct facts_memory memory;
    struct facts_word w = facts_hear(sock, NULL);
    CUdeviceptr at;
    dlx_test_gpu_context(0);
    for (int i = 0; i < N_OPENS; i++) {
        int fd = -1;
        if (w.b) {
            CU_OK(cu.cuMemAlloc(&at, w.a));
            CU_OK(cu.cuIpcGetMemHandle(&handle, at));
        } else {
            fd = facts_make(&memory, w.a);
        }
        dlx_test_gpu_send(sock, &handle, sizeof handle, fd);
        if (fd >= 0)
            (void)close(fd);
        (void)facts_hear(sock, NULL);
    }
}

struct price {
    double p50_us, first_us, last_us;
};

/* Opens all of them, and leaves them open. */
static struct price price_of(size_t size, bool is_legacy)
{
    uint64_t ns[N_OPENS];
    CUipcMemHandle handle;
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(price_exporter);
    facts_say(peer.sock, (struct facts_word){.a = size, .b = is_legacy}, -1);
    dlx_test_gpu_context(0);
    for (int i = 0; i < N_OPENS; i++) {
        struct facts_memory memory;
        int fd = dlx_test_gpu_receive(peer.sock, &handle, sizeof handle);
        uint64_t start = dlx__now_ns();
        if (is_legacy)
            CU_OK(cu.cuIpcOpenMemHandle(&memory.at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
        else
            CU_OK(facts_open(&memory, fd, size, CU_MEM_ACCESS_FLAGS_PROT_READ));
        ns[i] = dlx__now_ns() - start;
        if (fd >= 0)
            (void)close(fd);
        facts_say(peer.sock, (struct facts_word){0}, -1);
    }
    dlx_test_gpu_join(&peer);
    struct price price = {.first_us = (double)ns[0] / 1e3,
                          .last_us = (double)ns[N_OPENS - 1] / 1e3};
    price.p50_us = facts_p50_us(ns, N_OPENS);
    return price;
}

/* 0: VMM; 1: the older interface. Another process each, since what is open stays open. */
LOOP_TEST(E6_price_of_opening, 0, 2)
{
    struct price p = price_of(DLX_TEST_GPU_CHUNK, _i == 1);
    facts_answer("E6 price of opening %d allocations of 2 MiB, %s: p50 %.1f us, the first %.1f us, "
                 "the last %.1f us",
                 N_OPENS, _i ? "cuIpcOpenMemHandle" : "VMM import, reserve, map and access",
                 p.p50_us, p.first_us, p.last_us);
}

/* The same for one large allocation. */
TEST(E6_price_of_size)
{
    struct facts_memory memory;
    int fd;
    struct dlx_test_gpu_peer peer = facts_start_exporter(&fd);
    dlx_test_gpu_context(0);
    uint64_t start = dlx__now_ns();
    CU_OK(facts_open(&memory, fd, FACTS_SIZE, CU_MEM_ACCESS_FLAGS_PROT_READ));
    facts_answer("E6 price of opening 64 MiB in one chunk, VMM: %.1f us",
                 (double)(dlx__now_ns() - start) / 1e3);
    (void)close(fd);
    facts_end(&peer);
}

#endif
