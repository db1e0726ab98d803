/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory: what backs it, which addresses have it, and who may use them. */
#include "tests/gpu/standin/vmm.h"
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LABEL_MAGIC UINT64_C(0x6c6562616c645453)
#define MEMFD_NAME  "standin-memory"

static int own_fds;

static bool label_write(int fd, int device, const struct label *label)
{
    struct label l = *label;
    l.magic = LABEL_MAGIC;
    l.uuid = machine->uuids[state.visible[device]];
    return ftruncate(fd, (off_t)(l.size + PAGE)) == 0 &&
           pwrite(fd, &l, sizeof l, (off_t)l.size) == (ssize_t)sizeof l &&
           fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0;
}

static bool is_ours(int fd)
{
    char path[64], target[64];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(path, target, sizeof target - 1);
    if (n < 0)
        return false;
    target[n] = '\0';
    return strncmp(target, "/memfd:" MEMFD_NAME, strlen("/memfd:" MEMFD_NAME)) == 0;
}

CUresult label_read(int fd, enum label_kind kind, struct label *ret, int *ret_device)
{
    struct stat st;
    if (!is_ours(fd) || fcntl(fd, F_GET_SEALS) != (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) ||
        fstat(fd, &st) != 0 || st.st_size < (off_t)PAGE ||
        pread(fd, ret, sizeof *ret, st.st_size - (off_t)PAGE) != (ssize_t)sizeof *ret ||
        ret->magic != LABEL_MAGIC || ret->kind != kind || ret->size + PAGE != (uint64_t)st.st_size)
        return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < state.n_devices; i++) {
        if (memcmp(&machine->uuids[state.visible[i]], &ret->uuid, sizeof ret->uuid) != 0)
            continue;
        *ret_device = i;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

int standin_open_fds(void)
{
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    if (!dir)
        return -1;
    for (const struct dirent *entry; (entry = readdir(dir));)
        if (entry->d_name[0] != '.' && is_ours(atoi(entry->d_name)))
            n++;
    closedir(dir);
    pthread_mutex_lock(&state.lock);
    n -= own_fds;
    pthread_mutex_unlock(&state.lock);
    return n;
}

/* Memory of cuMemCreate is charged to one process that has it, as long as one has: the descriptor
 * of its maker may be all that is left there. Changes whether it is charged; false: it was so. */
static bool label_charge(int fd, uint64_t size, bool is_charged)
{
    char *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)size);
    if (page == MAP_FAILED)
        return false;
    uint64_t *word = (uint64_t *)(void *)(page + PAGE - sizeof *word);
    bool has_changed = __atomic_exchange_n(word, is_charged, __ATOMIC_ACQ_REL) != is_charged;
    munmap(page, PAGE);
    return has_changed;
}

static struct backing *backing_of(int take_fd, int device, const struct label *label)
{
    struct backing *b = take_fd < 0 ? NULL : calloc(1, sizeof *b);
    if (!b) {
        if (take_fd >= 0)
            close(take_fd);
        return NULL;
    }
    *b = (struct backing){
        .refs = 1, .device = device, .size = label->size, .prop = label->prop, .fd = take_fd};
    own_fds++;
    return b;
}

CUresult backing_new(struct backing **ret, int device, const struct label *label, size_t charged)
{
    int fd = memfd_create(MEMFD_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    struct backing *b = backing_of(fd, device, label);
    bool is_made = b && label_write(fd, device, label) && memory_take(device, charged);
    if (!is_made) {
        backing_unref(b);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    b->charged = charged;
    if (label->kind == LABEL_VMM)
        (void)label_charge(fd, b->size, true);
    *ret = b;
    return CUDA_SUCCESS;
}

struct backing *backing_of_fd(int fd, int device, const struct label *label)
{
    struct backing *b = backing_of(fcntl(fd, F_DUPFD_CLOEXEC, 0), device, label);
    if (!b)
        return NULL;
    b->prop.location.id = device;
    if (label->kind == LABEL_VMM && label_charge(b->fd, b->size, true)) {
        b->charged = b->size;
        memory_add(device, b->charged);
    }
    return b;
}

CUresult backing_export(const struct backing *backing, CUmemAllocationHandleType type,
                        unsigned long long flags, void *ret)
{
    if (flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        backing->prop.requestedHandleTypes != type)
        return CUDA_ERROR_INVALID_VALUE;
    int fd = fcntl(backing->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    count_add(STANDIN_FDS_EXPORTED, 1);
    memcpy(ret, &fd, sizeof fd);
    return CUDA_SUCCESS;
}

struct backing *backing_ref(struct backing *backing)
{
    backing->refs++;
    return backing;
}

void backing_unref(struct backing *backing)
{
    if (!backing || --backing->refs > 0)
        return;
    if (backing->charged > 0)
        (void)label_charge(backing->fd, backing->size, false);
    close(backing->fd);
    own_fds--;
    memory_give(backing->device, backing->charged);
    free(backing);
}

CUdeviceptr addresses_reserve(size_t size, size_t alignment)
{
    size_t all = size + alignment;
    char *p = mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return 0;
    size_t head = (alignment - (uintptr_t)p % alignment) % alignment;
    if (head > 0)
        munmap(p, head);
    if (alignment > head)
        munmap(p + head + size, alignment - head);
    return (CUdeviceptr)(uintptr_t)(p + head);
}

void addresses_free(CUdeviceptr base, size_t size)
{
    munmap((void *)(uintptr_t)base, size);
}

static const enum standin_counter counters[] = {
    [RANGE_ALLOC] = STANDIN_ALLOCATIONS,        [RANGE_VMM] = STANDIN_MAPPINGS,
    [RANGE_IPC] = STANDIN_IPC_MAPPINGS,         [RANGE_POOL] = STANDIN_ALLOCATIONS,
    [RANGE_POOL_IMPORT] = STANDIN_POOL_IMPORTS, [RANGE_MANAGED] = STANDIN_ALLOCATIONS,
    [RANGE_HOST] = STANDIN_HOST_ALLOCATIONS,    [RANGE_REGISTERED] = STANDIN_REGISTERED,
};

struct range *range_new(enum range_kind kind, CUdeviceptr base, size_t size, int fd, size_t offset)
{
    struct range *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    *r = (struct range){.kind = kind,
                        .refs = 1,
                        .is_listed = true,
                        .base = base,
                        .size = size,
                        .buffer_id = ++state.last_buffer,
                        .share = -1,
                        .n_opens = 1};
    if (fd >= 0) {
        void *shadow =
            mmap(NULL, whole_pages(size), kind == RANGE_VMM ? PROT_NONE : PROT_READ | PROT_WRITE,
                 MAP_SHARED, fd, (off_t)offset);
        if (shadow == MAP_FAILED) {
            free(r);
            return NULL;
        }
        r->shadow = shadow;
        r->owns_shadow = true;
    }
    if (base == 0) {
        r->base = addresses_reserve(whole_pages(size), GRANULARITY);
        r->owns_addresses = true;
    }
    LIST_INSERT_HEAD(&state.ranges, r, link);
    count_add(counters[kind], 1);
    return r;
}

static void range_unref(struct range *r)
{
    if (--r->refs > 0)
        return;
    if (r->owns_shadow)
        munmap(r->shadow, whole_pages(r->size));
    backing_unref(r->backing);
    free(r);
}

void range_remove(struct range *r)
{
    if (!r->is_listed)
        return;
    if (r->refs > 1)
        count_add(STANDIN_UNMAPPED_IN_USE, 1);
    count_add(counters[r->kind], -r->n_opens);
    if (r->share >= 0)
        share_end(r);
    if (r->pool)
        pool_give_back(r);
    LIST_REMOVE(r, link);
    r->is_listed = false;
    if (r->owns_addresses)
        addresses_free(r->base & ~(CUdeviceptr)(PAGE - 1), whole_pages(r->base % PAGE + r->size));
    range_unref(r);
}

struct range *range_find(CUdeviceptr address)
{
    struct range *r;
    LIST_FIND(r, &state.ranges, address >= r->base && address - r->base < r->size);
    return r;
}

CUresult range_free(struct context *context, CUdeviceptr address)
{
    CUresult code = context_drain(context);
    struct range *range = range_find(address); /* not before: the lock was given up */
    if (code == CUDA_SUCCESS && range)
        range_remove(range);
    return code;
}

/* Memory of a context is open to its own device. */
static bool range_allows(const struct range *r, const struct context *context, bool is_write)
{
    if (r->kind == RANGE_VMM || r->kind == RANGE_POOL || r->kind == RANGE_POOL_IMPORT) {
        CUmemAccess_flags access =
            r->pool ? pool_access(r->pool, context->device) : r->access[context->device];
        return is_write ? access == CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                        : access != CU_MEM_ACCESS_FLAGS_PROT_NONE;
    }
    if (r->is_read_only && is_write)
        return false;
    return r->kind == RANGE_HOST || r->kind == RANGE_REGISTERED || r->kind == RANGE_MANAGED ||
           r->kind == RANGE_IPC || r->device == context->device;
}

struct range *range_pin(CUdeviceptr address, const struct context *context, bool is_write)
{
    struct range *r = range_find(address);
    if (!r || !range_allows(r, context, is_write))
        return NULL;
    share_check_use(r);
    r->refs++;
    return r;
}

void range_unpin(struct range *r)
{
    range_unref(r);
}
