/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/hip_runtime.h"
#include "common/error.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    size_t offset;
} functions[] = {
#define FUNCTION(f) {#f, offsetof(struct dlx_hip, f)},
    DLX_HIP_FUNCTIONS(FUNCTION)
#undef FUNCTION
};

static const char *const sonames[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5",
                                      "libamdhip64.so"};

static struct dlx_hip hip_table;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int load_result;
static char load_error[DLX_ERROR_TEXT_SIZE];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Prefer the runtime that a framework has loaded to a second one. */
static void *open_library(void)
{
    void *lib = NULL;
    for (size_t i = 0; !lib && i < DLX_ARRAY_SIZE(sonames); i++)
        lib = dlopen(sonames[i], RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    for (size_t i = 0; !lib && i < DLX_ARRAY_SIZE(sonames); i++)
        lib = dlopen(sonames[i], RTLD_NOW | RTLD_LOCAL);
    return lib;
}

static int hip_load_load(void)
{
    void *lib = open_library();
    if (!lib)
        return dlx__fail(DLX_E_DEVICE, "AMD's HIP runtime is not installed: %s", dlerror());
    for (size_t i = 0; i < DLX_ARRAY_SIZE(functions); i++) {
        void *p = dlsym(lib, functions[i].name);
        if (!p)
            return dlx__fail(DLX_E_DEVICE, "libamdhip64 has no %s: it must be 5.2 or later",
                             functions[i].name);
        memcpy((char *)&hip_table + functions[i].offset, &p, sizeof p);
    }
    hipError_t error = hip_table.hipInit(0);
    if (error == hipSuccess)
        error = hip_table.hipRuntimeGetVersion(&hip_table.version);
    if (error != hipSuccess)
        return dlx__hip_fail(&hip_table, error, "the HIP runtime does not start: hipInit");
    return 0;
}

static void hip_load_load_once(void)
{
    dlx__gpu_watch_forks();
    load_result = hip_load_load();
    memcpy(load_error, dlx__error_message(), sizeof load_error);
}

int dlx__hip(const struct dlx_hip **ret)
{
    (void)pthread_once(&once, hip_load_load_once);
    if (load_result < 0)
        return dlx__fail(load_result, "%s", load_error);
    *ret = &hip_table;
    return 0;
}

int dlx__hip_fail(const struct dlx_hip *hip, hipError_t error, const char *fmt, ...)
{
    char what[DLX_ERROR_TEXT_SIZE / 2];
    int code;
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    switch (error) {
    case hipErrorOutOfMemory:
        code = DLX_E_NO_MEMORY;
        break;
    case hipErrorNoDevice:
    case hipErrorInvalidDevice:
    case hipErrorNotSupported:
        code = DLX_E_DEVICE;
        break;
    default:
        code = DLX_E_SYSTEM;
    }
    return dlx__fail(code, "%s: %s (%d, %s)", what, hip->hipGetErrorName(error), (int)error,
                     hip->hipGetErrorString(error));
}

void dlx__hip_lock(void)
{
    (void)pthread_mutex_lock(&lock);
}

void dlx__hip_unlock(void)
{
    (void)pthread_mutex_unlock(&lock);
}

int dlx__hip_enter(const struct dlx_hip *hip, int32_t device, struct dlx_hip_scope *ret_before)
{
    hipError_t error = hip->hipGetDevice(&ret_before->device);
    if (error == hipSuccess)
        error = hip->hipSetDevice(device);
    if (error != hipSuccess)
        return dlx__hip_fail(hip, error, "cannot use HIP device %d", device);
    /* What may disturb a capture is refused in any mode but this one. */
    ret_before->mode = hipStreamCaptureModeRelaxed;
    error = hip->hipThreadExchangeStreamCaptureMode(&ret_before->mode);
    if (error == hipSuccess)
        return 0;
    (void)hip->hipSetDevice(ret_before->device);
    return dlx__hip_fail(hip, error, "hipThreadExchangeStreamCaptureMode");
}

void dlx__hip_leave(const struct dlx_hip *hip, const struct dlx_hip_scope *before)
{
    hipStreamCaptureMode mode = before->mode;
    (void)hip->hipThreadExchangeStreamCaptureMode(&mode);
    (void)hip->hipSetDevice(before->device);
}
