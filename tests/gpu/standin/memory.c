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

/* -- memfds ------------------------------------------------------------------------------------ */

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

CUresult backing_new(struct backing **ret, int device, const struct label *label, size_t charged)
{
    struct backing *b = calloc(1, sizeof *b);
    if (!b)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!memory_take(device, charged)) {
        free(b);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *b = (struct backing){
        .refs = 1, .device = device, .size = label->size, .charged = charged, .prop = label->prop};
    b->fd = memfd_create(MEMFD_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (b->fd >= 0)
        own_fds++;
    if (b->fd < 0 || !label_write(b->fd, device, label)) {
        backing_unref(b);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *ret = b;
    return CUDA_SUCCESS;
}

struct backing *backing_of_fd(int fd, int device, const struct label *label)
{
    struct backing *b = calloc(1, sizeof *b);
    if (!b)
        return NULL;
    *b = (struct backing){
        .refs = 1, .device = device, .size = label->size, .prop = label->prop, .fd = -1};
    b->prop.location.id = device;
    b->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (b->fd < 0) {
        free(b);
        return NULL;
    }
    own_fds++;
    return b;
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
    if (backing->fd >= 0) {
        close(backing->fd);
        own_fds--;
    }
    memory_give(backing->device, backing->charged);
    free(backing);
}

/* -- addresses --------------------------------------------------------------------------------- */

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

/* -- ranges ------------------------------------------------------------------------------------ */

static size_t whole_pages(size_t size)
{
    return (size + PAGE - 1) & ~(PAGE - 1);
}

struct range *range_new(enum range_kind kind, CUdeviceptr base, size_t size, int fd, size_t offset)
{
    struct range *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    *r = (struct range){.kind = kind, .refs = 1, .is_listed = true, .base = base, .size = size};
    r->share = -1;
    r->buffer_id = ++state.last_buffer;
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
    return r;
}

bool range_is_counted(enum range_kind kind, enum standin_counter *ret)
{
    static const enum standin_counter counters[] = {
        [RANGE_ALLOC] = STANDIN_ALLOCATIONS,     [RANGE_VMM] = STANDIN_MAPPINGS,
        [RANGE_POOL] = STANDIN_ALLOCATIONS,      [RANGE_POOL_IMPORT] = STANDIN_POOL_IMPORTS,
        [RANGE_MANAGED] = STANDIN_ALLOCATIONS,   [RANGE_HOST] = STANDIN_HOST_ALLOCATIONS,
        [RANGE_REGISTERED] = STANDIN_REGISTERED,
    };
    if (kind == RANGE_IPC)
        return false; /* each open counts */
    *ret = counters[kind];
    return true;
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
    enum standin_counter counter;
    if (!r->is_listed)
        return;
    if (r->refs > 1)
        count_add(STANDIN_UNMAPPED_IN_USE, 1);
    if (range_is_counted(r->kind, &counter))
        count_add(counter, -1);
    else
        count_add(STANDIN_IPC_MAPPINGS, -r->n_opens);
    if (r->share >= 0)
        share_end(r);
    if (r->kind == RANGE_POOL)
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
    LIST_FOREACH(r, &state.ranges, link)
    if (address >= r->base && address - r->base < r->size)
        return r;
    return NULL;
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
