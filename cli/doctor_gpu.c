/* SPDX-License-Identifier: Apache-2.0 */

/* Drivers of GPUs, asked without their headers and without a context: cuInit() and hipInit() make
 * none. docs/GPU.md names the kinds of memory. */

#include "cli/doctor.h"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The numbers of the drivers' interfaces, which never change. */
enum {
    NO_DEVICE = 100, /* of CUresult and hipError_t */
    CUDA_STUB = 34,  /* libcuda.so.1 of a toolkit, which drives nothing */
    CUDA_HAS_VMM = 102,
    CUDA_HAS_POSIX_FDS = 103,
    CUDA_HAS_POOLS = 115,
    CUDA_POOL_HANDLES = 119, /* a mask: 1 is a descriptor */
    CUDA_DRIVER_LEAST = 12000,
};

#define GPU_TODO                                                                                   \
    "see what `nvidia-smi` says; in a container, give it the devices (docs/CONTAINERS.md)"

/* ISO C has no cast from void * to a function. */
static void find_function(void *lib, const char *name, void *ret_function)
{
    void *p = dlsym(lib, name);
    memcpy(ret_function, &p, sizeof p);
}

/* ---- libdlx-gpu ------------------------------------------------------------------------------ */

/* The library that libdlx.so loads for the first GPU: beside it, else where the loader looks.
 * A dlxctl with libdlx in it, as the wheel has, loads none, and what other programs load is theirs.
 */
static void check_library(struct doctor *d)
{
    char path[4096] = "";
    Dl_info own;
    if (dladdr((void *)(uintptr_t)dlx_version, &own) == 0 || !own.dli_fname ||
        !strstr(own.dli_fname, "libdlx.so"))
        return;
    const char *slash = strrchr(own.dli_fname, '/');
    if (slash)
        (void)snprintf(path, sizeof path, "%.*s/libdlx-gpu.so.0", (int)(slash - own.dli_fname),
                       own.dli_fname);
    const char *name = *path && access(path, F_OK) == 0 ? path : "libdlx-gpu.so.0";
    void *lib = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
    if (lib)
        doctor_ok(d, "gpu.library", "%s", name);
    else
        doctor_found(d, "gpu.library", DOCTOR_PROBLEM,
                     (struct doctor_advice){"tensors on GPUs cannot be published or opened",
                                            "install libdlx0-gpu, or put libdlx-gpu.so.0 beside "
                                            "libdlx.so.0"},
                     "libdlx-gpu.so.0 cannot be loaded: %s", dlerror());
}

/* ---- CUDA ------------------------------------------------------------------------------------ */

struct cuda {
    void *lib;
    int (*init)(unsigned flags);
    int (*version)(int *ret);
    int (*count)(int *ret);
    int (*device)(int *ret, int ordinal);
    int (*name)(char *ret, int size, int device);
    int (*attribute)(int *ret, int attribute, int device);
    int (*error_name)(int error, const char **ret);
};

static bool find_cuda(struct cuda *cuda)
{
    cuda->lib = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (!cuda->lib)
        return false;
    find_function(cuda->lib, "cuInit", &cuda->init);
    find_function(cuda->lib, "cuDriverGetVersion", &cuda->version);
    find_function(cuda->lib, "cuDeviceGetCount", &cuda->count);
    find_function(cuda->lib, "cuDeviceGet", &cuda->device);
    find_function(cuda->lib, "cuDeviceGetName", &cuda->name);
    find_function(cuda->lib, "cuDeviceGetAttribute", &cuda->attribute);
    find_function(cuda->lib, "cuGetErrorName", &cuda->error_name);
    return cuda->init && cuda->count && cuda->device && cuda->attribute;
}

static bool cuda_has(const struct cuda *cuda, int device, int attribute, int mask)
{
    int value = 0;
    return cuda->attribute(&value, attribute, device) == 0 && (value & mask) != 0;
}

static void check_cuda_device(struct doctor *d, const struct cuda *cuda, int ordinal)
{
    int device = 0;
    char name[128] = "";
    if (cuda->device(&device, ordinal) != 0)
        return;
    if (cuda->name)
        (void)cuda->name(name, sizeof name, device);
    const bool has_vmm =
        cuda_has(cuda, device, CUDA_HAS_VMM, ~0) && cuda_has(cuda, device, CUDA_HAS_POSIX_FDS, ~0);
    const bool has_pools =
        cuda_has(cuda, device, CUDA_HAS_POOLS, ~0) && cuda_has(cuda, device, CUDA_POOL_HANDLES, 1);
    if (has_vmm)
        doctor_ok(d, "gpu.cuda",
                  "GPU %d, %s: memory by descriptors (cuda_vmm%s), and cuda_ipc of "
                  "the same user",
                  ordinal, *name ? name : "without a name", has_pools ? ", cuda_pool" : "");
    else
        doctor_found(d, "gpu.cuda", DOCTOR_PROBLEM,
                     (struct doctor_advice){"dlx_alloc() and expandable segments fail on this GPU: "
                                            "their memory is shared by descriptors",
                                            "publish memory of cudaMalloc, which another process "
                                            "of the same user may open (cuda_ipc); or use a GPU "
                                            "or driver with descriptors (not WSL)"},
                     "GPU %d, %s: its driver gives no descriptors of memory", ordinal,
                     *name ? name : "without a name");
}

static void tell_cuda_failure(struct doctor *d, const struct cuda *cuda, int error)
{
    const char *name = NULL;
    if (cuda->error_name)
        (void)cuda->error_name(error, &name);
    doctor_found(d, "gpu.cuda", DOCTOR_PROBLEM,
                 (struct doctor_advice){"tensors on NVIDIA GPUs cannot be published or opened here",
                                        GPU_TODO},
                 "the NVIDIA driver does not start: cuInit says %d (%s)", error,
                 name ? name : "no name");
}

/* Returns whether there is a GPU. */
static bool check_cuda(struct doctor *d)
{
    struct cuda cuda = {0};
    int version = 0, n = 0;
    if (!find_cuda(&cuda)) {
        if (access("/dev/nvidiactl", F_OK) == 0)
            doctor_found(d, "gpu.cuda", DOCTOR_PROBLEM,
                         (struct doctor_advice){"tensors on NVIDIA GPUs cannot be published or "
                                                "opened here",
                                                "install the driver's libcuda.so.1; in a "
                                                "container, let its runtime add it (--gpus all)"},
                         "there are NVIDIA devices (/dev/nvidiactl), and no libcuda.so.1");
        else
            doctor_ok(d, "gpu.cuda", "no NVIDIA driver found");
        return false;
    }
    int error = cuda.init(0);
    if (error == 0)
        error = cuda.count(&n);
    if (error == NO_DEVICE || error == CUDA_STUB || (error == 0 && n == 0)) {
        doctor_ok(d, "gpu.cuda", "an NVIDIA driver (libcuda.so.1), and no GPU");
        return false;
    }
    if (error != 0) {
        tell_cuda_failure(d, &cuda, error);
        return false;
    }
    if (cuda.version && cuda.version(&version) == 0 && version < CUDA_DRIVER_LEAST)
        doctor_found(d, "gpu.cuda", DOCTOR_PROBLEM,
                     (struct doctor_advice){"libdlx-gpu needs the driver 525 or later (CUDA 12.0)",
                                            "upgrade the NVIDIA driver"},
                     "the NVIDIA driver is for CUDA %d.%d", version / 1000, version % 1000 / 10);
    for (int i = 0; i < n; i++)
        check_cuda_device(d, &cuda, i);
    return true;
}

/* ---- HIP ------------------------------------------------------------------------------------- */

/* Returns whether there is a GPU. */
static bool check_hip(struct doctor *d)
{
    static const char *const names[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5",
                                        "libamdhip64.so"};
    void *lib = NULL;
    int (*init)(unsigned flags) = NULL, (*count)(int *ret) = NULL, n = 0;
    if (access("/dev/kfd", F_OK) == 0 && access("/dev/kfd", R_OK | W_OK) < 0)
        doctor_found(d, "gpu.hip", DOCTOR_PROBLEM,
                     (struct doctor_advice){"tensors on AMD GPUs cannot be published or opened by "
                                            "this user",
                                            "add the user to the groups render and video"},
                     "/dev/kfd may not be opened by this user");
    for (size_t i = 0; !lib && i < sizeof names / sizeof names[0]; i++)
        lib = dlopen(names[i], RTLD_LAZY | RTLD_LOCAL);
    if (lib) {
        find_function(lib, "hipInit", &init);
        find_function(lib, "hipGetDeviceCount", &count);
    }
    if (!init || !count) {
        doctor_ok(d, "gpu.hip", "no AMD driver found");
        return false;
    }
    int error = init(0);
    if (error == 0)
        error = count(&n);
    if (error == 0 && n > 0)
        doctor_ok(d, "gpu.hip",
                  "%d AMD GPU%s: memory of hip_vmm and hip_ipc, if the trial at the "
                  "first use succeeds",
                  n, n == 1 ? "" : "s");
    else if (error == NO_DEVICE || error == 0 || access("/dev/kfd", F_OK) < 0)
        doctor_ok(d, "gpu.hip", "AMD's runtime (libamdhip64), and no GPU");
    else
        doctor_found(
            d, "gpu.hip", DOCTOR_PROBLEM,
            (struct doctor_advice){"tensors on AMD GPUs cannot be published or opened here",
                                   "see what `rocminfo` says; in a container, give it "
                                   "/dev/kfd and /dev/dri"},
            "AMD's runtime does not start: hipInit says %d", error);
    return error == 0 && n > 0;
}

void doctor_gpu(struct doctor *d)
{
    const bool has_cuda = check_cuda(d), has_hip = check_hip(d);
    if (has_cuda || has_hip)
        check_library(d);
}
