/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/harness_gpu_peer.h"

#if DLX_TEST_HAS_GPU
#include "gpu/exports.h"
#include "gpu/imports.h"
#include "tests/gpu/harness_gpu_arena.h"
#include "tests/harness/fds.h"
#include "tests/gpu/harness_gpu_machine.h"
#include "tests/harness/patience.h"
#include <dlpack/dlpack.h>

static struct dlx_packet packet;

static void send_packet(int sock, const void *data, size_t size, const int *fds, size_t n_fds)
{
    struct pollfd p = {.fd = sock, .events = POLLOUT};
    ck_assert_int_eq(poll(&p, 1, PATIENCE_MS), 1);
    ck_assert_int_eq(dlx__packet_send(sock, data, size, fds, n_fds), 0);
}

static void recv_packet(int sock)
{
    struct pollfd p = {.fd = sock, .events = POLLIN};
    ck_assert_int_eq(poll(&p, 1, PATIENCE_MS), 1);
    ok(dlx__packet_recv_fds(sock, &packet));
}

static void send_handle(int sock, const struct dlx_gpu_handle *handle)
{
    uint8_t data[DLX_GPU_BYTES_MAX];
    int fds[DLX_PACKET_FDS_MAX];
    uint32_t first = 0;
    do {
        size_t n_fds;
        size_t size = dlx__gpu_handle_encode(handle, first, data, fds, &n_fds);
        send_packet(sock, data, size, fds, n_fds);
        first += (uint32_t)n_fds;
    } while (first < handle->n_chunks);
}

static void recv_handle(int sock, struct dlx_gpu_handle *ret)
{
    *ret = (struct dlx_gpu_handle){0};
    do {
        recv_packet(sock);
        ok(dlx__gpu_handle_decode(ret, packet.data, packet.size, packet.fds, packet.n_fds));
        dlx__packet_deinit(&packet);
    } while (!dlx__gpu_handle_is_complete(ret));
}

static void recv_word(int sock, struct dlx_test_gpu_word *ret)
{
    recv_packet(sock);
    ck_assert_uint_eq(packet.size, sizeof *ret);
    memcpy(ret, packet.data, sizeof *ret);
    dlx__packet_deinit(&packet);
}

static struct dlx_gpu_import *imports[64];
static uint64_t n_imports;

static CUcontext context_of(int device)
{
    CUdevice dev;
    CUcontext context;
    CU_OK(cu.cuDeviceGet(&dev, device));
    CU_OK(cu.cuDevicePrimaryCtxRetain(&context, dev));
    return context;
}

static CUdeviceptr address(const struct dlx_test_gpu_word *w)
{
    return (CUdeviceptr)(uintptr_t)dlx__gpu_import_base(imports[w->a]) + w->b;
}

/* NVIDIA's takes 0.1 s to make, and descriptors that the driver keeps. */
static void keep_context(void)
{
    static CUcontext kept;
    if (kept || dlx_test_gpu_is_standin())
        return;
    CU_OK(cu.cuInit(0));
    kept = context_of(0);
}

/* In the context of a framework that uses the device; of the stand-in, gone again afterwards. */
static int copy(struct dlx_test_gpu_word *w, bool is_write)
{
    CUcontext before;
    CUresult result;
    keep_context();
    CU_OK(cu.cuCtxPushCurrent(context_of(0)));
    if (is_write)
        result = cu.cuMemcpyHtoD(address(w), &w->c, sizeof w->c);
    else
        result = cu.cuMemcpyDtoH(&w->c, address(w), sizeof w->c);
    w->a = w->c;
    CU_OK(cu.cuCtxPopCurrent(&before));
    CU_OK(cu.cuDevicePrimaryCtxRelease(0));
    return result == CUDA_SUCCESS ? 0 : DLX_E_SYSTEM;
}

enum dlx_gpu_kind dlx_test_gpu_vmm(void)
{
    return dlx_test_gpu_is_hip() ? DLX_GPU_HIP_VMM : DLX_GPU_CUDA_VMM;
}

enum dlx_gpu_kind dlx_test_gpu_ipc(void)
{
    return dlx_test_gpu_is_hip() ? DLX_GPU_HIP_IPC : DLX_GPU_CUDA_IPC;
}

static CUdeviceptr foreign(enum dlx_gpu_kind kind, uint64_t size)
{
    CUmemoryPool pool;
    CUdeviceptr at;
    if (kind == DLX_GPU_CUDA_POOL)
        return dlx_test_gpu_pool_make(size, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, &pool);
    ck_assert_int_eq(kind, dlx_test_gpu_ipc());
    CU_OK(cu.cuMemAlloc(&at, size));
    return at;
}

static void allocate(int sock, enum dlx_gpu_kind kind, uint64_t size)
{
    static struct dlx_gpu_exports *exports;
    struct dlx_gpu_export *export;
    uint64_t offset;
    dlx_test_gpu_context(0);
    if (!exports)
        ok(dlx__gpu_exports_new(&exports, DLX_TEST_GPU_PEER));
    if (kind == dlx_test_gpu_vmm())
        ok(dlx_test_gpu_arena(exports, dlx_test_gpu_type(), 0, size, &export));
    else
        ok(dlx__gpu_exports_share(exports, dlx_test_gpu_type(), 0,
                                  (void *)(uintptr_t)foreign(kind, size), size, &export, &offset));
    for (uint64_t i = 0; i < size / 8; i += 4096) {
        uint64_t word = i + 1;
        CUdeviceptr at = (CUdeviceptr)(uintptr_t)dlx__gpu_export_base(export) + 8 * i;
        CU_OK(cu.cuMemcpyHtoD(at, &word, sizeof word));
    }
    send_handle(sock, dlx__gpu_export_handle(export));
}

static int answer(struct dlx_test_gpu_word *w, int sock)
{
    struct dlx_gpu_handle handle;
    int r = 0;
    switch ((enum dlx_test_gpu_op)w->op) {
    case DLX_TEST_GPU_OPEN:
        recv_handle(sock, &handle);
        r = dlx__gpu_import(DLX_TEST_GPU_OWN, &handle, (int32_t)w->a, (enum dlx_gpu_access)w->b,
                            NULL, &imports[n_imports]);
        w->a = r == 0 ? n_imports++ : 0;
        dlx__gpu_handle_deinit(&handle);
        break;
    case DLX_TEST_GPU_READ:
        r = copy(w, false);
        break;
    case DLX_TEST_GPU_WRITE:
        r = copy(w, true);
        break;
    case DLX_TEST_GPU_DROP:
        dlx__gpu_import_unref(imports[w->a]);
        break;
    case DLX_TEST_GPU_FREED:
        dlx__gpu_imports_freed(DLX_TEST_GPU_OWN, w->a);
        break;
    case DLX_TEST_GPU_LEAVE:
        dlx__gpu_imports_leave(DLX_TEST_GPU_OWN);
        break;
    case DLX_TEST_GPU_TRIM:
        r = dlx__gpu_imports_trim(&w->a);
        break;
    case DLX_TEST_GPU_COUNT:
        w->a = dlx_test_gpu_is_standin() ? standin.standin_count((enum standin_counter)w->a) : 0;
        break;
    case DLX_TEST_GPU_FDS:
        keep_context();
        w->a = dlx_test_fds_count();
        break;
    case DLX_TEST_GPU_ALLOCATE:
    case DLX_TEST_GPU_END:
        break;
    }
    return r;
}

/* Sockets of all peers: one that inherited another's would keep it from seeing the test's end. */
static int socks[16];
static size_t n_socks;
static const char *variable;

static void serve(int sock)
{
    struct dlx_test_gpu_word w;
    for (size_t i = 0; i < n_socks; i++)
        dlx__close(socks[i]);
    ck_assert(!variable || putenv((char *)(uintptr_t)variable) == 0);
    ok(dlx__gpu_imports_join(DLX_TEST_GPU_OWN));
    for (;;) {
        recv_word(sock, &w);
        if (w.op == DLX_TEST_GPU_END)
            return;
        if (w.op == DLX_TEST_GPU_ALLOCATE) {
            allocate(sock, (enum dlx_gpu_kind)w.b, w.a);
            continue;
        }
        dlx__error_clear();
        w.result = answer(&w, sock);
        memcpy(w.text, dlx__error_message(), sizeof w.text - 1);
        w.text[sizeof w.text - 1] = '\0';
        send_packet(sock, &w, sizeof w, NULL, 0);
    }
}

void dlx_test_gpu_peer_start(struct dlx_test_gpu_peer *ret, const char *its_variable)
{
    variable = its_variable;
    *ret = dlx_test_gpu_start(serve);
    ck_assert_uint_lt(n_socks, DLX_ARRAY_SIZE(socks));
    socks[n_socks++] = ret->sock;
}

void dlx_test_gpu_peer_end(struct dlx_test_gpu_peer *peer)
{
    struct dlx_test_gpu_word w = {.op = DLX_TEST_GPU_END};
    send_packet(peer->sock, &w, sizeof w, NULL, 0);
    dlx_test_gpu_join(peer);
}

struct dlx_test_gpu_word dlx_test_gpu_ask(struct dlx_test_gpu_peer *peer, enum dlx_test_gpu_op op,
                                          uint64_t a, uint64_t b, uint64_t c,
                                          const struct dlx_gpu_handle *handle)
{
    struct dlx_test_gpu_word w = {.op = op, .a = a, .b = b, .c = c};
    send_packet(peer->sock, &w, sizeof w, NULL, 0);
    if (handle)
        send_handle(peer->sock, handle);
    recv_word(peer->sock, &w);
    return w;
}

void dlx_test_gpu_peer_check(struct dlx_test_gpu_peer *peer, enum standin_counter counter,
                             uint64_t n)
{
    if (!dlx_test_gpu_is_counted(counter))
        return;
    if (dlx_test_gpu_is_standin())
        ck_assert_uint_eq(dlx_test_gpu_ask(peer, DLX_TEST_GPU_COUNT, counter, 0, 0, NULL).a, n);
    else
        dlx_test_gpu_unchecked("how many objects of the driver exist in another process");
}

void dlx_test_gpu_ask_handle(struct dlx_test_gpu_peer *peer, enum dlx_gpu_kind kind, uint64_t size,
                             struct dlx_gpu_handle *ret)
{
    struct dlx_test_gpu_word w = {.op = DLX_TEST_GPU_ALLOCATE, .a = size, .b = kind};
    send_packet(peer->sock, &w, sizeof w, NULL, 0);
    recv_handle(peer->sock, ret);
}

#endif
