/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gates: streams that wait for a word which the CPU writes.
 *
 * The words of a device are in a page of this process, which is registered with the device's
 * primary context by the first gate, and stays so until that context ends: a stream whose gate was
 * opened may read its word much later. A word only ever rises, and the stream waits until it is at
 * least as great as after this gate: so the word serves the next gate as soon as it is written.
 *
 * A gate must hold up its own stream only. With one hardware queue (CUDA_DEVICE_MAX_CONNECTIONS=1)
 * it would hold up all streams of the process. And a driver that loads kernels lazily may wait for
 * all work of the context when one is launched for the first time, and keeps other threads out of
 * its context meanwhile: the launch waits for the publisher then, or in a cycle of processes for
 * ever, since the thread that says when a message of this process is ready does not come in either.
 */
#include "common/atomic.h"
#include "common/error.h"
#include "gpu/cuda_driver.h"
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

/* The time limit of the trial of a device, which takes microseconds or never ends. */
#define TRIAL_NS UINT64_C(1000000000)

#define DEVICES_MAX 64
#define N_WORDS     (DLX_PAGE / sizeof(dlx_atomic_u32))

/* Streams beside one that waits: the program's own work may hold up some. */
#define N_BESIDE 3

/* The words of a context. They are never freed. */
struct gate_page {
    unsigned long long context; /* its id */
    enum {
        PAGE_FAILED,    /* the trial, or a call before it */
        PAGE_ONE_QUEUE, /* a stream that waits holds up the others */
        PAGE_WORKS,
    } state;
    dlx_atomic_u32 *words; /* word 0 is the trial's */
    CUdeviceptr at;
    atomic_bool is_used[N_WORDS];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for `pages` */
static struct gate_page *pages[DEVICES_MAX];

/* ---- the hardware queues -------------------------------------------------------------------- */

static int fail_one_queue(void)
{
    return dlx__fail(DLX_E_DEVICE, "all streams share a hardware queue, as with "
                                   "CUDA_DEVICE_MAX_CONNECTIONS=1: raise it");
}

/* ---- the page of a context ----------------------------------------------------------------- */

static int register_page(const struct dlx_cuda *cu, void *page, unsigned flags, CUdeviceptr *ret)
{
    CUresult result = cu->cuMemHostRegister(page, DLX_PAGE, CU_MEMHOSTREGISTER_DEVICEMAP | flags);
    if (result != CUDA_SUCCESS)
        return dlx__cuda_fail(cu, result, "cannot register a page with the driver");
    result = cu->cuMemHostGetDevicePointer(ret, page, 0);
    return result == CUDA_SUCCESS ? 0 : dlx__cuda_fail(cu, result, "cuMemHostGetDevicePointer");
}

/* The page is shared, so that parent and child have the same page after a fork. If registering it
 * fails half way it stays: unregistering may wait for all work on the GPU. */
static int map_words(const struct dlx_cuda *cu, struct gate_page *page)
{
    void *map = mmap(NULL, DLX_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return dlx__fail_errno("mmap of a page");
    int r = register_page(cu, map, 0, &page->at);
    if (r == 0)
        page->words = map;
    return r;
}

int dlx__cuda_page_add(int32_t device, void *page, uint64_t *ret_at)
{
    const struct dlx_cuda *cu;
    struct dlx_cuda_scope scope;
    CUdeviceptr at = 0;
    int r = dlx__cuda(&cu);
    if (r == 0)
        r = dlx__cuda_enter(cu, device, &scope);
    if (r < 0)
        return r;
    r = register_page(cu, page, CU_MEMHOSTREGISTER_PORTABLE, &at);
    dlx__cuda_leave(&scope);
    *ret_at = at;
    return r;
}

/* Does another stream go on, while one waits? It has nothing to do but to see that a word is at
 * least 0. */
static bool goes_on_beside(const struct dlx_cuda *cu, const struct gate_page *page)
{
    uint64_t end = dlx__now_ns() + TRIAL_NS;
    CUstream streams[N_BESIDE];
    int n = 0;
    bool goes_on = false;
    while (n < N_BESIDE && cu->cuStreamCreate(&streams[n], CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS)
        (void)cu->cuStreamWaitValue32(streams[n++], page->at, 0, CU_STREAM_WAIT_VALUE_GEQ);
    do {
        for (int i = 0; i < n && !goes_on; i++)
            goes_on = cu->cuStreamQuery(streams[i]) == CUDA_SUCCESS;
        (void)sched_yield();
    } while (!goes_on && dlx__now_ns() < end);
    while (n > 0)
        (void)cu->cuStreamDestroy(streams[--n]);
    return goes_on;
}

/* The trial makes real calls on a new stream, which has to wait, while others go on, and to go on
 * when the word is written. A stream that does not go on is not destroyed. */
static int try_stream(const struct dlx_cuda *cu, struct gate_page *page, CUstream stream)
{
    CUresult result = cu->cuStreamWaitValue32(stream, page->at, 1, CU_STREAM_WAIT_VALUE_GEQ);
    if (result != CUDA_SUCCESS)
        return dlx__cuda_fail(cu, result, "cuStreamWaitValue32");
    bool waits = cu->cuStreamQuery(stream) == CUDA_ERROR_NOT_READY;
    bool goes_on = goes_on_beside(cu, page);
    dlx_store32_release(&page->words[0], 1);
    uint64_t end = dlx__now_ns() + TRIAL_NS;
    do {
        result = cu->cuStreamQuery(stream);
        if (result != CUDA_ERROR_NOT_READY)
            break;
        (void)sched_yield();
    } while (dlx__now_ns() < end);
    if (result != CUDA_SUCCESS)
        return dlx__cuda_fail(cu, result, "a CUDA stream does not see what the CPU writes");
    if (!waits)
        return dlx__fail(DLX_E_DEVICE, "a CUDA stream does not wait for a word");
    page->state = goes_on ? PAGE_WORKS : PAGE_ONE_QUEUE;
    return 0;
}

static int try_page(const struct dlx_cuda *cu, struct gate_page *page)
{
    CUstream stream;
    int r = map_words(cu, page);
    if (r < 0)
        return r;
    CUresult result = cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    if (result != CUDA_SUCCESS)
        return dlx__cuda_fail(cu, result, "cuStreamCreate");
    r = try_stream(cu, page, stream);
    (void)cu->cuStreamDestroy(stream);
    return r;
}

/* The caller holds the lock, and the context is current. A trial that failed is not repeated in
 * this context. */
static int find_page(const struct dlx_cuda *cu, int32_t device, struct gate_page **ret)
{
    unsigned long long context;
    CUresult result = cu->cuCtxGetId(NULL, &context);
    if (result != CUDA_SUCCESS)
        return dlx__cuda_fail(cu, result, "cuCtxGetId");
    struct gate_page *page = pages[device];
    if (!page || page->context != context) {
        page = calloc(1, sizeof *page);
        if (!page)
            return dlx__fail(DLX_E_NO_MEMORY, "words for streams to wait for");
        page->context = context;
        if (dlx__cuda_is_one_queue_set())
            page->state = PAGE_ONE_QUEUE;
        else
            (void)try_page(cu, page);
        pages[device] = page; /* the previous page may have gates that are shut */
    }
    *ret = page;
    if (page->state == PAGE_ONE_QUEUE)
        return fail_one_queue();
    return page->state == PAGE_WORKS
               ? 0
               : dlx__fail(DLX_E_DEVICE,
                           "streams of CUDA device %d cannot wait for words of the CPU", device);
}

/* ---- gates --------------------------------------------------------------------------------- */

static int take_word(struct gate_page *page, struct dlx_gpu_gate *ret)
{
    for (uint32_t i = 1; i < N_WORDS; i++) {
        if (atomic_load_explicit(&page->is_used[i], memory_order_relaxed) ||
            atomic_exchange_explicit(&page->is_used[i], true, memory_order_acquire))
            continue;
        ret->word = (struct dlx_gpu_word){.word = &page->words[i],
                                          .at = page->at + i * sizeof page->words[i],
                                          .value = dlx_load32_relaxed(&page->words[i]) + 1};
        ret->is_used = &page->is_used[i];
        return 0;
    }
    return dlx__fail(DLX_E_NO_MEMORY, "%zu streams wait already", N_WORDS - 1);
}

/* The words belong to the current context, which is a primary one. */
static int check_context(const struct dlx_cuda *cu, CUstream stream)
{
    CUcontext of_stream;
    unsigned long long mine, its;
    CUresult result = cu->cuStreamGetCtx(stream, &of_stream);
    if (result == CUDA_SUCCESS)
        result = cu->cuCtxGetId(of_stream, &its);
    if (result == CUDA_SUCCESS)
        result = cu->cuCtxGetId(NULL, &mine);
    if (result != CUDA_SUCCESS)
        return dlx__cuda_fail(cu, result, "cannot look at a CUDA stream");
    return its == mine ? 0 : dlx__fail(DLX_E_DEVICE, "the stream is not of a primary context");
}

static int check_process(const struct dlx_cuda *cu, bool are_kernels_loaded)
{
    CUmoduleLoadingMode mode = CU_MODULE_LAZY_LOADING;
    if (dlx__cuda_was_one_queue())
        return fail_one_queue();
    CUresult result = are_kernels_loaded ? CUDA_SUCCESS : cu->cuModuleGetLoadingMode(&mode);
    if (result != CUDA_SUCCESS)
        return dlx__cuda_fail(cu, result, "cuModuleGetLoadingMode");
    return are_kernels_loaded || mode == CU_MODULE_EAGER_LOADING
               ? 0
               : dlx__fail(DLX_E_DEVICE, "CUDA loads kernels lazily: set "
                                         "CUDA_MODULE_LOADING=EAGER, or see kernels_loaded");
}

/* The context is current. */
static int shut(const struct dlx_cuda *cu, int32_t device, CUstream stream, bool are_kernels_loaded,
                const struct dlx_gpu_word *shared, struct dlx_gpu_gate *ret)
{
    struct gate_page *page = NULL;
    struct dlx_gpu_gate gate = {.api = NULL};
    int r = dlx__cuda_check_stream(cu, stream);
    if (r == 0)
        r = check_context(cu, stream);
    if (r == 0)
        r = check_process(cu, are_kernels_loaded);
    if (r < 0)
        return r;
    (void)pthread_mutex_lock(&lock);
    r = find_page(cu, device, &page);
    (void)pthread_mutex_unlock(&lock);
    if (r == 0 && shared)
        gate.word = *shared;
    else if (r == 0)
        r = take_word(page, &gate);
    if (r < 0)
        return r;
    CUresult result =
        cu->cuStreamWaitValue32(stream, gate.word.at, gate.word.value, CU_STREAM_WAIT_VALUE_GEQ);
    if (result == CUDA_SUCCESS) {
        *ret = gate;
        return 0;
    }
    if (gate.is_used)
        atomic_store_explicit(gate.is_used, false, memory_order_release);
    return dlx__cuda_fail(cu, result, "cuStreamWaitValue32");
}

int dlx__cuda_gate_shut(int32_t device, void *stream, bool are_kernels_loaded,
                        const struct dlx_gpu_word *shared, struct dlx_gpu_gate *ret)
{
    const struct dlx_cuda *cu;
    struct dlx_cuda_scope scope;
    bool entered = false;
    int r = dlx__cuda(&cu);
    if (r == 0 && ((uintptr_t)stream <= (uintptr_t)CU_STREAM_LEGACY || device >= DEVICES_MAX))
        return dlx__fail(DLX_E_DEVICE, "the other streams wait for the legacy default stream");
    if (r == 0)
        r = dlx__cuda_enter_if_active(cu, device, &scope, &entered);
    if (r < 0)
        return r;
    if (!entered)
        return dlx__fail(DLX_E_DEVICE, "CUDA device %d has no primary context", device);
    r = shut(cu, device, stream, are_kernels_loaded, shared, ret);
    dlx__cuda_leave(&scope);
    return r;
}
