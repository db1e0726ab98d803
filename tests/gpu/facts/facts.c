/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/facts/facts.h"

#if DLX_TEST_HAS_GPU
#include <sched.h>
#include <stdarg.h>

#define SECOND_NS UINT64_C(1000000000)

void facts_answer(const char *fmt, ...)
{
    char text[1500];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    (void)dprintf(STDOUT_FILENO, "%s%s\n", text,
                  standin.standin_launch ? " [on the stand-in: says nothing about a GPU]" : "");
}

const char *facts_code(int64_t result)
{
    const char *name = NULL;
    if (!cu.cuGetErrorName || cu.cuGetErrorName((CUresult)result, &name) != CUDA_SUCCESS || !name)
        return "a code without a name";
    return strncmp(name, "CUDA_ERROR_", 11) == 0 ? name + 11 : name;
}

double facts_ms(uint64_t from_ns, uint64_t to_ns)
{
    return ((double)to_ns - (double)from_ns) / 1e6;
}

static int compare(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

double facts_p50_us(uint64_t *ns, size_t n)
{
    ck_assert_uint_gt(n, 0);
    qsort(ns, n, sizeof *ns, compare);
    size_t middle = n / 2;
    return (double)ns[middle] / 1e3;
}

void facts_say(int sock, struct facts_word word, int borrow_fd)
{
    dlx_test_gpu_send(sock, &word, sizeof word, borrow_fd);
}

struct facts_word facts_hear(int sock, int *ret_fd)
{
    struct facts_word word;
    int fd = dlx_test_gpu_receive(sock, &word, sizeof word);
    if (ret_fd)
        *ret_fd = fd;
    return word;
}

struct facts_word facts_ask(struct dlx_test_gpu_peer *peer, enum facts_op op, uint64_t a)
{
    facts_say(peer->sock, (struct facts_word){.op = op, .a = a}, -1);
    return facts_hear(peer->sock, NULL);
}

void facts_end(struct dlx_test_gpu_peer *peer)
{
    facts_say(peer->sock, (struct facts_word){.op = FACTS_END}, -1);
    dlx_test_gpu_join(peer);
}

/* Calls in a tight loop would keep the driver from tearing another process down. */
static size_t await_free(size_t wanted, uint64_t *ret_when)
{
    uint64_t end = dlx__now_ns() + 5 * SECOND_NS;
    size_t now;
    *ret_when = 0;
    do {
        for (uint64_t next = dlx__now_ns() + 1000000; dlx__now_ns() < next;)
            (void)sched_yield();
        now = dlx_test_gpu_free_memory();
        if (now >= wanted)
            *ret_when = dlx__now_ns();
    } while (now < wanted && dlx__now_ns() < end);
    return now;
}

/* Until it has been still for a third of a second, or 3 s before the first change; 6 s at most. */
static void watch(int sock, CUdeviceptr at, struct facts_word *w)
{
    uint64_t start = dlx__now_ns(), last = start;
    uint32_t old = dlx_test_gpu_word(at), now;
    w->a = w->b = 0;
    while (dlx__now_ns() < last + (w->b ? SECOND_NS / 3 : 3 * SECOND_NS) &&
           dlx__now_ns() < start + 6 * SECOND_NS) {
        now = dlx_test_gpu_word(at);
        if (now == old)
            continue;
        old = now;
        w->a = last = dlx__now_ns();
        if (w->b++ == 0)
            facts_say(sock, *w, -1);
    }
    if (w->b == 0)
        facts_say(sock, *w, -1);
}

void facts_serve(int sock, CUdeviceptr at, size_t size)
{
    for (;;) {
        struct facts_word w = facts_hear(sock, NULL);
        CUresult result = CUDA_SUCCESS;
        if (w.op == FACTS_END)
            return;
        if (w.op == FACTS_FREE)
            w.a = dlx_test_gpu_free_memory();
        else if (w.op == FACTS_AWAIT_FREE)
            w.b = await_free(w.a, &w.a);
        else if (w.op == FACTS_WRONG)
            w.a = facts_count_wrong(at, size, (uint32_t)w.a, &result);
        else if (w.op == FACTS_WATCH)
            watch(sock, at, &w);
        else
            result = facts_health();
        w.result = (int32_t)result;
        facts_say(sock, w, -1);
    }
}

static void observe(int sock)
{
    dlx_test_gpu_context(0);
    facts_say(sock, (struct facts_word){0}, -1);
    facts_serve(sock, 0, 0);
}

struct dlx_test_gpu_peer facts_observer(void)
{
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(observe);
    (void)facts_hear(peer.sock, NULL);
    return peer;
}

int facts_make(struct facts_memory *ret, size_t size)
{
    int fd = -1;
    ret->size = size;
    ret->handle = dlx_test_gpu_create(size);
    ret->at = dlx_test_gpu_map(ret->handle, size, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CU_OK(cu.cuMemExportToShareableHandle(&fd, ret->handle,
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    dlx_test_gpu_store(NULL, ret->at, size / 4, 1);
    CU_OK(cu.cuCtxSynchronize());
    return fd;
}

void facts_exporter(int sock)
{
    struct facts_memory memory;
    dlx_test_gpu_context(0);
    int fd = facts_make(&memory, FACTS_SIZE);
    facts_say(sock, (struct facts_word){0}, fd);
    (void)close(fd);
    facts_serve(sock, memory.at, memory.size);
}

struct dlx_test_gpu_peer facts_start_exporter(int *ret_fd)
{
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(facts_exporter);
    (void)facts_hear(peer.sock, ret_fd);
    ck_assert_int_ge(*ret_fd, 0);
    return peer;
}

CUresult facts_open(struct facts_memory *ret, int borrow_fd, size_t size, CUmemAccess_flags flags)
{
    CUmemAccessDesc access = dlx_test_gpu_access(0, flags);
    CUresult r;
    ret->size = size;
    r = cu.cuMemImportFromShareableHandle(&ret->handle, (void *)(uintptr_t)borrow_fd,
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (r == CUDA_SUCCESS)
        r = cu.cuMemAddressReserve(&ret->at, size, 0, 0, 0);
    if (r == CUDA_SUCCESS)
        r = cu.cuMemMap(ret->at, size, 0, ret->handle, 0);
    return r == CUDA_SUCCESS ? cu.cuMemSetAccess(ret->at, size, &access, 1) : r;
}

uint64_t facts_count_wrong(CUdeviceptr at, size_t size, uint32_t seed, CUresult *ret)
{
    uint32_t *words = malloc(size);
    uint64_t n = 0;
    ck_assert_ptr_nonnull(words);
    *ret = cu.cuMemcpyDtoH(words, at, size);
    for (uint64_t i = 0; i < size / 4 && *ret == CUDA_SUCCESS; i++)
        n += words[i] != dlx_test_gpu_pattern(i, seed);
    free(words);
    return *ret == CUDA_SUCCESS ? n : UINT64_MAX;
}

CUresult facts_health(void)
{
    CUdeviceptr at;
    CUresult r = cu.cuMemAlloc(&at, DLX_TEST_GPU_MIB), freed;
    if (r != CUDA_SUCCESS)
        return r;
    r = cu.cuMemsetD32(at, 7, DLX_TEST_GPU_MIB / 4);
    if (r == CUDA_SUCCESS)
        r = cu.cuCtxSynchronize();
    freed = cu.cuMemFree(at);
    return r == CUDA_SUCCESS ? freed : r;
}

#endif
