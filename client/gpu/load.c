/* SPDX-License-Identifier: Apache-2.0 */

/*
 * How libdlx.so finds libdlx-gpu.so.0: in its own folder, so that a program finds the library of
 * this installation whatever its run path, else where the loader looks. The library is linked with
 * libdlx.so.0, which is this one, and stays loaded until the process ends.
 */

#include "client/gpu/gpu.h"
#include "common/error.h"
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define NAME "libdlx-gpu.so.0"

/* The file beside ours; false: there is none. */
static bool find_beside(char path[PATH_MAX])
{
    Dl_info own;
    if (dladdr(&dlx__gpu_loaded, &own) == 0 || !own.dli_fname)
        return false;
    const char *slash = strrchr(own.dli_fname, '/');
    int n =
        slash ? snprintf(path, PATH_MAX, "%.*s/" NAME, (int)(slash - own.dli_fname), own.dli_fname)
              : 0;
    return n > 0 && n < PATH_MAX && access(path, F_OK) == 0;
}

int dlx__gpu_find(const struct dlx_gpu_library **ret)
{
    char path[PATH_MAX];
    bool is_beside = find_beside(path);
    const char *name = is_beside ? path : NAME;
    void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!handle && is_beside)
        return dlx__fail(DLX_E_DEVICE, NAME ", which GPUs need, cannot be loaded: %s", dlerror());
    if (!handle)
        return dlx__fail(DLX_E_DEVICE,
                         NAME " is not installed, which GPUs need (Debian: libdlx0-gpu; it "
                              "belongs beside libdlx.so.0): %s",
                         dlerror());
    const struct dlx_gpu_library *library = dlsym(handle, "dlx__gpu_library");
    int r = library ? dlx__gpu_check(library, name)
                    : dlx__fail(DLX_E_DEVICE, "%s is no library of libdlx: %s", name, dlerror());
    if (r < 0)
        (void)dlclose(handle);
    else
        *ret = library;
    return r;
}
