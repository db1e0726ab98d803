/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/maps.h"
#include "tests/harness/daemon.h"
#include <inttypes.h>
#include <setjmp.h>
#include <sys/resource.h>

static sigjmp_buf back;

static void on_fault(int signal)
{
    (void)signal;
    siglongjmp(back, 1);
}

bool dlx_test_faults(void *at)
{
    volatile uint8_t *byte = at;
    struct sigaction action = {.sa_handler = on_fault}, before;
    volatile bool faulted = true;
    ck_assert_int_eq(sigaction(SIGSEGV, &action, &before), 0);
    if (sigsetjmp(back, 1) == 0) {
        *byte = *byte;
        faulted = false;
    }
    ck_assert_int_eq(sigaction(SIGSEGV, &before, NULL), 0);
    return faulted;
}

struct mapped_region {
    unsigned long inode;
    uint64_t size;
};

/* A map may be a part of its region. */
static void note_region(struct mapped_region **regions, size_t *n, unsigned long inode,
                        uint64_t end)
{
    size_t i = 0;
    while (i < *n && (*regions)[i].inode != inode)
        i++;
    if (i == *n) {
        *regions = reallocarray(*regions, ++*n, sizeof **regions);
        ck_assert_ptr_nonnull(*regions);
        (*regions)[i] = (struct mapped_region){.inode = inode};
    }
    (*regions)[i].size = DLX_MAX((*regions)[i].size, end);
}

uint64_t dlx_test_region_bytes(const pid_t *pids, size_t n_pids)
{
    struct mapped_region *regions = NULL;
    uint64_t bytes = 0, first, end, offset;
    unsigned long inode;
    size_t n = 0;
    char line[512], path[64];
    for (size_t i = 0; i < n_pids; i++) {
        (void)snprintf(path, sizeof path, "/proc/%d/maps", (int)pids[i]);
        FILE *f = fopen(path, "re");
        ck_assert_ptr_nonnull(f);
        while (fgets(line, sizeof line, f))
            if ((strstr(line, "/memfd:dlx-") || strstr(line, "/dlpackd.")) &&
                sscanf(line, "%" SCNx64 "-%" SCNx64 " %*s %" SCNx64 " %*s %lu", &first, &end,
                       &offset, &inode) == 4)
                note_region(&regions, &n, inode, offset + end - first);
        (void)fclose(f);
    }
    for (size_t i = 0; i < n; i++)
        bytes += regions[i].size;
    free(regions);
    return bytes;
}

uint64_t dlx_test_protected_bytes(const char *file)
{
    uint64_t bytes = 0, first, end;
    char line[512], how[8];
    FILE *f = fopen("/proc/self/maps", "re");
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof line, f))
        if (strstr(line, file) &&
            sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s", &first, &end, how) == 3 &&
            strcmp(how, "r--s") == 0)
            bytes += end - first;
    (void)fclose(f);
    return bytes;
}

/* Also outside of a test: asserts nothing. */
static size_t max_map_count(void)
{
    size_t limit = SIZE_MAX;
    FILE *f = fopen("/proc/sys/vm/max_map_count", "re");
    if (f && fscanf(f, "%zu", &limit) != 1)
        limit = SIZE_MAX;
    if (f)
        (void)fclose(f);
    return limit;
}

bool dlx_test_maps_can_limit(void)
{
#if defined(__SANITIZE_THREAD__)
    return false;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
    return false;
#endif
#endif
    return !dlx_test_valgrind();
}

bool dlx_test_maps_can_exhaust(void)
{
    return dlx_test_maps_can_limit() && max_map_count() <= 2000000;
}

static void set_limit(rlim_t limit)
{
    struct rlimit both;
    ck_assert_int_eq(getrlimit(RLIMIT_AS, &both), 0);
    both.rlim_cur = limit;
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &both), 0);
}

void dlx_test_maps_limit(uint64_t room)
{
    uint64_t pages;
    FILE *f = fopen("/proc/self/statm", "re");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(fscanf(f, "%" SCNu64, &pages), 1);
    (void)fclose(f);
    set_limit(pages * (uint64_t)sysconf(_SC_PAGESIZE) + room);
}

void dlx_test_maps_unlimit(void)
{
    set_limit(RLIM_INFINITY);
}

struct dlx_test_maps dlx_test_maps_exhaust(void)
{
    size_t limit = max_map_count(), page = (size_t)sysconf(_SC_PAGESIZE);
    size_t size = 2 * limit * page;
    uint8_t *map = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ck_assert_ptr_ne(map, MAP_FAILED);
    size_t at = page;
    while (at < size && mprotect(map + at, page, PROT_READ) == 0)
        at += 2 * page;
    ck_assert_uint_lt(at, size);
    return (struct dlx_test_maps){.map = map, .size = size};
}

void dlx_test_maps_give_back(struct dlx_test_maps *maps)
{
    ck_assert_int_eq(munmap(maps->map, maps->size), 0);
}
