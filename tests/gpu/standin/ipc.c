/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Legacy IPC. A handle names an entry of the machine's table; an importer opens the exporter's
 * memfd through /proc, so that it cannot open memory whose exporter has freed it or died.
 */
#include "tests/gpu/standin/vmm.h"
#include "tests/gpu/standin/ipc.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void share_name_write(uint64_t magic, uint64_t id, int slot, void *ret)
{
    const struct share_name name = {.magic = magic, .id = id, .slot = slot};
    memset(ret, 0, CU_IPC_HANDLE_SIZE);
    memcpy(ret, &name, sizeof name);
}

bool share_name_read(const void *bytes, uint64_t magic, int n_slots, struct share_name *ret)
{
    memcpy(ret, bytes, sizeof *ret);
    return ret->magic == magic && ret->slot >= 0 && ret->slot < n_slots;
}

/* Machine locked. */
static struct share *share_of(uint64_t id, int slot)
{
    struct share *share = &machine->shares[slot];
    return share->id == id ? share : NULL;
}

static bool share_is_dead(const struct share *share)
{
    return share->is_freed || !process_is_alive(share->process);
}

CUresult share_publish(struct range *range, uint64_t pool_id, void *ret)
{
    CUresult code = CUDA_SUCCESS;
    machine_lock(); /* what was published before keeps its name */
    for (int i = 0; i < MAX_SHARES && range->share < 0; i++) {
        struct share *s = &machine->shares[i];
        if (s->id != 0 && !share_is_dead(s))
            continue;
        range->share = i;
        range->share_id = ++machine->last_id;
        *s = (struct share){.id = range->share_id,
                            .process = atomic_load(&process->id),
                            .pid = getpid(),
                            .pid_namespace = process->pid_namespace,
                            .fd = range->backing->fd,
                            .device = state.visible[range->device],
                            .offset = range->pool_offset,
                            .size = range->size,
                            .pool_id = pool_id};
    }
    if (range->share < 0)
        code = CUDA_ERROR_OUT_OF_MEMORY;
    else
        share_name_write(NAME_OF_MEMORY, range->share_id, range->share, ret);
    machine_unlock();
    return code;
}

CUresult share_import(const void *bytes, uint64_t pool_id, struct share *ret,
                      struct share_name *ret_name)
{
    CUresult code = CUDA_SUCCESS;
    if (!share_name_read(bytes, NAME_OF_MEMORY, MAX_SHARES, ret_name))
        return CUDA_ERROR_INVALID_VALUE;
    machine_lock();
    struct share *share = share_of(ret_name->id, ret_name->slot);
    if (!share || share_is_dead(share)) {
        code = CUDA_ERROR_INVALID_HANDLE;
    } else if (share->pool_id != pool_id) {
        code = CUDA_ERROR_INVALID_VALUE; /* of another pool */
    } else if (share->pid == getpid()) {
        code = CUDA_ERROR_INVALID_CONTEXT;
    } else {
        share->n_opens++;
        *ret = *share;
    }
    machine_unlock();
    return code;
}

void share_close(uint64_t id, int slot)
{
    machine_lock();
    struct share *share = share_of(id, slot);
    if (share)
        share->n_opens--;
    machine_unlock();
}

void share_end(struct range *range)
{
    if (range->kind == RANGE_IPC || range->kind == RANGE_POOL_IMPORT) {
        share_close(range->share_id, range->share);
        return;
    }
    machine_lock();
    struct share *share = &machine->shares[range->share];
    if (share->n_opens > 0)
        count_add(STANDIN_FREED_WHILE_OPEN, 1);
    share->is_freed = true;
    machine_unlock();
}

void share_check_use(const struct range *range)
{
    if (range->kind != RANGE_IPC && range->kind != RANGE_POOL_IMPORT)
        return;
    machine_lock();
    const struct share *share = share_of(range->share_id, range->share);
    if (!share || share_is_dead(share))
        count_add(STANDIN_USED_AFTER_REVOKE, 1);
    machine_unlock();
}

/* -1 across pid namespaces, as the exporter's pid means nothing here: what a driver does there is
 * not known (docs/GPU.md, E7), and this is the worse of two answers. */
static int exporter_fd(const struct share *share)
{
    char path[64];
    if (share->pid_namespace != process->pid_namespace)
        return -1;
    (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", share->pid, share->fd);
    return open(path, O_RDWR | O_CLOEXEC);
}

static int visible_device(int index)
{
    for (int i = 0; i < state.n_devices; i++)
        if (state.visible[i] == index)
            return i;
    return -1;
}

CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle *ret, CUdeviceptr address)
{
    ENTER(cuIpcGetMemHandle);
    struct range *range = range_find(address);
    if (!range || range->kind != RANGE_ALLOC)
        return CUDA_ERROR_INVALID_VALUE;
    return share_publish(range, 0, ret);
}

/* Opening once more in the same context: the same address. */
static struct range *opened_before(const struct context *context, const struct share_name *name)
{
    struct range *r;
    LIST_FIND(r, &state.ranges,
              r->kind == RANGE_IPC && r->context == context && r->share_id == name->id);
    return r;
}

static struct range *ipc_map(struct context *context, const struct share *share,
                             const struct share_name *name)
{
    int fd = exporter_fd(share);
    struct range *range = fd >= 0 ? range_new(RANGE_IPC, 0, share->size, fd, 0) : NULL;
    if (fd >= 0)
        close(fd);
    if (!range)
        return NULL;
    range->context = context;
    range->device = visible_device(share->device);
    range->share = name->slot;
    range->share_id = name->id;
    return range;
}

CUresult CUDAAPI cuIpcOpenMemHandle(CUdeviceptr *ret, CUipcMemHandle handle, unsigned flags)
{
    ENTER(cuIpcOpenMemHandle);
    struct share share;
    struct share_name name;
    if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS ||
        !share_name_read(&handle, NAME_OF_MEMORY, MAX_SHARES, &name))
        return CUDA_ERROR_INVALID_VALUE;
    struct range *range = opened_before(call.context, &name);
    if (range) {
        range->n_opens++;
        count_add(STANDIN_IPC_MAPPINGS, 1);
    } else {
        CUresult code = share_import(&handle, 0, &share, &name);
        if (code != CUDA_SUCCESS)
            return code;
        if (visible_device(share.device) < 0)
            code = CUDA_ERROR_INVALID_DEVICE;
        else if (!device_reaches(call.context->device, visible_device(share.device)))
            code = CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
        else
            range = ipc_map(call.context, &share, &name);
        if (!range) {
            share_close(name.id, name.slot);
            return code != CUDA_SUCCESS ? code : CUDA_ERROR_MAP_FAILED;
        }
    }
    *ret = range->base;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuIpcCloseMemHandle(CUdeviceptr address)
{
    ENTER(cuIpcCloseMemHandle);
    struct range *range = range_find(address);
    if (!range || range->kind != RANGE_IPC || range->base != address)
        return CUDA_ERROR_INVALID_VALUE;
    if (range->n_opens > 1) {
        range->n_opens--;
        count_add(STANDIN_IPC_MAPPINGS, -1);
        return CUDA_SUCCESS;
    }
    return range_free(call.context, address);
}
