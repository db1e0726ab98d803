/* SPDX-License-Identifier: Apache-2.0 */
/* cuGetProcAddress: which functions there are, for a caller that knows a certain version. */
#include "tests/gpu/standin/state.h"
#include <dlfcn.h>
#include <string.h>

struct symbol {
    const char *base, *name;
    int since;
};

/*
 * Functions that changed: the newest that both the caller's version and the driver's know is
 * found, and its arguments may differ from those of the name that cuda.h declares, as with the
 * driver.
 */
static const struct symbol versions[] = {
    {"cuGetProcAddress", "cuGetProcAddress_v2", 12000},
    {"cuGetProcAddress", "cuGetProcAddress", 11030},
    {"cuStreamGetCtx", "cuStreamGetCtx_v2", 12050},
    {"cuStreamGetCtx", "cuStreamGetCtx", 9020},
    {"cuCtxSynchronize", "cuCtxSynchronize_v2", 13000},
    {"cuCtxSynchronize", "cuCtxSynchronize", 2000},
};

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)

/* Their names are macros of cuda.h, which say the version that the library has. */
static const struct symbol symbols[] = {
#define X(name, since, flags) {#name, TEXT(name), since},
    CALLS(X)
#undef X
};

static void *own_library(void)
{
    static void *library;
    Dl_info info;
    if (!library && dladdr(&state, &info))
        library = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    return library;
}

static const char *find(const char *base, int version, bool *ret_is_known)
{
    const struct symbol *found = NULL;
    *ret_is_known = false;
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++)
        if (strcmp(symbols[i].base, base) == 0)
            found = &symbols[i];
    if (!found || found->since > DRIVER_VERSION)
        return NULL;
    *ret_is_known = true;
    bool has_changed = false;
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++) {
        if (strcmp(versions[i].base, base) != 0)
            continue;
        has_changed = true;
        if (versions[i].since <= version && versions[i].since <= DRIVER_VERSION)
            return versions[i].name;
    }
    return !has_changed && found->since <= version ? found->name : NULL;
}

static CUresult resolve(const char *symbol, void **ret, int version,
                        CUdriverProcAddressQueryResult *ret_status)
{
    ENTER(cuGetProcAddress);
    bool is_known;
    if (!symbol || !ret)
        return CUDA_ERROR_INVALID_VALUE;
    const char *name = find(symbol, version, &is_known);
    *ret = name ? dlsym(own_library(), name) : NULL;
    if (ret_status)
        *ret_status = *ret       ? CU_GET_PROC_ADDRESS_SUCCESS
                      : is_known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                 : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *ret ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult CUDAAPI cuGetProcAddress_v2(const char *symbol, void **ret, int version, cuuint64_t flags,
                                     CUdriverProcAddressQueryResult *ret_status)
{
    (void)flags; /* per-thread default streams: streams say so themselves */
    return resolve(symbol, ret, version, ret_status);
}

/* The first version of it, whose caller learns less. */
#undef cuGetProcAddress
EXPORTED CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **ret, int version,
                                           cuuint64_t flags);
CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **ret, int version, cuuint64_t flags)
{
    (void)flags;
    return resolve(symbol, ret, version, NULL);
}
