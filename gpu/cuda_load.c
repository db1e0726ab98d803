/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/cuda_driver.h"
#include "common/error.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The interface that is asked for: for our functions 12.0 and all later versions are the same. */
#define API_VERSION 12000

static const struct {
    const char *name;
    size_t offset;
} functions[] = {
#define FUNCTION(f) {#f, offsetof(struct dlx_cuda, f)},
    DLX_CUDA_FUNCTIONS(FUNCTION)
#undef FUNCTION
};

static struct dlx_cuda cuda;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int load_result;
static char load_error[DLX_ERROR_TEXT_SIZE];

typedef CUresult (*get_proc_v2)(const char *, void **, int, cuuint64_t,
                                CUdriverProcAddressQueryResult *);
typedef CUresult (*get_proc_v1)(const char *, void **, int, cuuint64_t);

struct library {
    void *lib;
    get_proc_v2 get_v2;
    get_proc_v1 get_v1;
};

/* ISO C has no cast from void * to a function. */
static void cuda_load_find(void *lib, const char *name, void *ret_function)
{
    void *p = dlsym(lib, name);
    memcpy(ret_function, &p, sizeof p);
}

/* First the driver's own directory of versions. Symbols end in the version where it is not the
 * first, as far as our functions go: none has a third. */
static void *resolve(const struct library *l, const char *name)
{
    void *p = NULL;
    char versioned[96];
    CUdriverProcAddressQueryResult status;
    if (l->get_v2 && l->get_v2(name, &p, API_VERSION, 0, &status) == CUDA_SUCCESS && p)
        return p;
    if (!l->get_v2 && l->get_v1 && l->get_v1(name, &p, API_VERSION, 0) == CUDA_SUCCESS && p)
        return p;
    (void)snprintf(versioned, sizeof versioned, "%s_v2", name);
    p = dlsym(l->lib, versioned);
    return p ? p : dlsym(l->lib, name);
}

/* The driver reads the environment when it is initialised, or when a context is made: whichever it
 * is, and whoever did it, the number that was there at one of the times that this library sees is
 * believed if it is 1. If none was seen, a trial finds out (gpu/cuda_gate.c). */
static atomic_bool was_one_queue;

bool dlx__cuda_is_one_queue_set(void)
{
    const char *text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    char *end = NULL;
    return text && strtol(text, &end, 10) < 2 && end != text;
}

bool dlx__cuda_was_one_queue(void)
{
    return atomic_load_explicit(&was_one_queue, memory_order_relaxed);
}

static int cuda_load_load(void)
{
    struct library l = {.lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)};
    if (!l.lib)
        return dlx__fail(DLX_E_DEVICE, "the CUDA driver is not installed: %s", dlerror());
    cuda_load_find(l.lib, "cuGetProcAddress_v2", &l.get_v2);
    cuda_load_find(l.lib, "cuGetProcAddress", &l.get_v1);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(functions); i++) {
        void *p = resolve(&l, functions[i].name);
        if (!p)
            return dlx__fail(DLX_E_DEVICE,
                             "libcuda.so.1 has no %s: the CUDA driver must be 525 or later",
                             functions[i].name);
        memcpy((char *)&cuda + functions[i].offset, &p, sizeof p);
    }
    atomic_store_explicit(&was_one_queue, dlx__cuda_is_one_queue_set(), memory_order_relaxed);
    CUresult result = cuda.cuInit(0);
    /* The driver returns this in a child of a process that had used it, by us or by others. */
    if (result == CUDA_ERROR_NOT_INITIALIZED)
        return dlx__gpu_fail_forked();
    if (result != CUDA_SUCCESS)
        return dlx__cuda_fail(&cuda, result, "the CUDA driver does not start: cuInit");
    return 0;
}

static void cuda_load_load_once(void)
{
    dlx__gpu_watch_forks();
    load_result = cuda_load_load();
    memcpy(load_error, dlx__error_message(), sizeof load_error);
}

int dlx__cuda(const struct dlx_cuda **ret)
{
    (void)pthread_once(&once, cuda_load_load_once);
    if (load_result < 0)
        return dlx__fail(load_result, "%s", load_error);
    *ret = &cuda;
    return 0;
}

/* The state of the process is inconsistent, or its driver or the context have ended. */
static bool cuda_load_is_end(CUresult result)
{
    switch ((int)result) {
    case 226: /* CUDA_ERROR_CONTAINED, which cuda.h of 12.5 has not, */
    case 721: /* nor CUDA_ERROR_TENSOR_MEMORY_LEAK */
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
    case CUDA_ERROR_EXTERNAL_DEVICE:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
        return true;
    default:
        return false;
    }
}

int dlx__cuda_fail_wait(const struct dlx_cuda *cu, CUresult result, const char *what)
{
    int r = dlx__cuda_fail(cu, result, "%s", what);
    return cuda_load_is_end(result) ? DLX_E_DEVICE : r == DLX_E_DEVICE ? DLX_E_SYSTEM : r;
}

int dlx__cuda_fail(const struct dlx_cuda *cu, CUresult result, const char *fmt, ...)
{
    char what[DLX_ERROR_TEXT_SIZE / 2];
    const char *name = NULL, *text = NULL;
    int code;
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
        code = DLX_E_NO_MEMORY;
        break;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:
        code = DLX_E_DEVICE;
        break;
    case CUDA_ERROR_NOT_PERMITTED:
        code = DLX_E_ACCESS;
        break;
    default:
        code = DLX_E_SYSTEM;
    }
    if (cu->cuGetErrorName(result, &name) != CUDA_SUCCESS || !name)
        name = "unknown error";
    if (cu->cuGetErrorString(result, &text) != CUDA_SUCCESS || !text)
        text = "no description";
    return dlx__fail(code, "%s: %s (%d, %s)", what, name, (int)result, text);
}
