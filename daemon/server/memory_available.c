/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/memory_available.h"
#include "common/util.h"
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysinfo.h>

#define CGROUPS "/sys/fs/cgroup"

static uint64_t ram_bytes(void)
{
    struct sysinfo info;
    if (sysinfo(&info) < 0)
        return UINT64_C(1) << 30;
    return (uint64_t)info.totalram * info.mem_unit;
}

/* Returns UINT64_MAX if there is no limit ("max") or no such file, as in the topmost group. */
static uint64_t read_limit(const char *folder, const char *file)
{
    char path[PATH_MAX];
    unsigned long long limit;
    if (snprintf(path, sizeof path, "%s/%s", folder, file) >= (int)sizeof path)
        return UINT64_MAX;
    FILE *f = fopen(path, "re");
    if (!f)
        return UINT64_MAX;
    if (fscanf(f, "%llu", &limit) != 1)
        limit = UINT64_MAX;
    (void)fclose(f);
    return limit;
}

/* Finds "/a/b" in the line "0::/a/b" of /proc/self/cgroup. Returns false if there is none. */
static bool find_group(const char *sysroot, char *ret, size_t size)
{
    char path[PATH_MAX], line[PATH_MAX];
    bool found = false;
    if (snprintf(path, sizeof path, "%s/proc/self/cgroup", sysroot) >= (int)sizeof path)
        return false;
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    while (!found && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        found = strncmp(line, "0::/", 4) == 0 && snprintf(ret, size, "%s", line + 3) < (int)size;
    }
    (void)fclose(f);
    return found;
}

uint64_t dlxd_memory_available(const char *sysroot)
{
    uint64_t bytes = ram_bytes();
    char group[PATH_MAX / 2], folder[PATH_MAX];
    if (!find_group(sysroot, group, sizeof group))
        return bytes;
    /* A group outside this namespace ("/..") has no files here, except the topmost. */
    for (;;) {
        if (snprintf(folder, sizeof folder, "%s" CGROUPS "%s", sysroot, group) <
            (int)sizeof folder) {
            bytes = DLX_MIN(bytes, read_limit(folder, "memory.max"));
            bytes = DLX_MIN(bytes, read_limit(folder, "memory.high"));
        }
        char *last = strrchr(group, '/');
        if (!last)
            return bytes;
        *last = '\0';
    }
}
