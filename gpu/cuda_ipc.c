/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of cudaMalloc, by the older interface: 64 bytes name a whole allocation, and no descriptor
 * keeps it. It can be opened in other processes only.
 */
#include "common/error.h"
#include "gpu/cuda_driver.h"
#include <dlpack/dlpack.h>
#include <string.h>

_Static_assert(sizeof(CUipcMemHandle) == sizeof(((struct dlx_gpu_handle *)0)->token), "token");

/* classify() has found the context that the memory belongs to. */
static int export_handle(const struct dlx_gpu_memory *memory, struct dlx_gpu_handle *ret)
{
    const struct dlx_cuda *cu;
    struct dlx_cuda_scope scope;
    CUipcMemHandle ipc;
    int r = dlx__cuda(&cu);
    if (r == 0)
        r = memory->context ? dlx__cuda_enter_context(cu, memory->context, &scope)
                            : dlx__cuda_enter(cu, memory->device, &scope);
    if (r < 0)
        return r;
    CUresult result = cu->cuIpcGetMemHandle(&ipc, dlx__cuda_ptr(memory->base));
    dlx__cuda_leave(&scope);
    if (result != CUDA_SUCCESS)
        return dlx__cuda_fail(cu, result, "cuIpcGetMemHandle");
    memcpy(ret->token, &ipc, sizeof ipc);
    return 0;
}

static int open_handle(const struct dlx_gpu_handle *handle, int32_t home, int32_t device,
                       enum dlx_gpu_access access, void *address, struct dlx_gpu_memory *ret)
{
    const struct dlx_cuda *cu;
    struct dlx_cuda_scope scope;
    struct dlx_gpu_memory memory = {
        .ops = &dlx__cuda_ipc_ops, .device = device, .size = handle->size};
    CUipcMemHandle ipc;
    CUdeviceptr at;
    (void)home, (void)access, (void)address;
    int r = dlx__cuda(&cu);
    if (r == 0)
        r = dlx__cuda_enter(cu, device, &scope);
    if (r < 0)
        return r;
    memcpy(&ipc, handle->token, sizeof ipc);
    CUresult result = cu->cuIpcOpenMemHandle(&at, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (result != CUDA_SUCCESS) {
        dlx__cuda_leave(&scope);
        return dlx__cuda_fail(cu, result, "cuIpcOpenMemHandle on CUDA device %d", device);
    }
    r = dlx__cuda_check_size(cu, at, handle->size);
    if (r < 0) {
        (void)cu->cuIpcCloseMemHandle(at);
        dlx__cuda_leave(&scope);
        return r;
    }
    memory.base = (void *)(uintptr_t)at;
    dlx__cuda_leave_for(&scope, &memory); /* the mapping is the context's */
    *ret = memory;
    return 0;
}

static void close_handle(struct dlx_gpu_memory *memory)
{
    const struct dlx_cuda *cu;
    struct dlx_cuda_scope scope;
    if (dlx__cuda(&cu) == 0 && dlx__cuda_enter(cu, memory->device, &scope) == 0) {
        (void)cu->cuIpcCloseMemHandle(dlx__cuda_ptr(memory->base));
        dlx__cuda_leave(&scope);
        dlx__cuda_drop_context(cu, memory);
    }
    *memory = (struct dlx_gpu_memory){0};
}

static void cuda_ipc_forget(struct dlx_gpu_memory *memory)
{
    free(memory->pieces);
    *memory = (struct dlx_gpu_memory){0};
}

/* An import closes with its last use: the owner may free the memory then. */
const struct dlx_gpu_ops dlx__cuda_ipc_ops = {
    .kind = DLX_GPU_CUDA_IPC,
    .device_type = kDLCUDA,
    .export = export_handle,
    .open = open_handle,
    .close = close_handle,
    .forget = cuda_ipc_forget,
};
