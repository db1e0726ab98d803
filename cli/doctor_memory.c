/* SPDX-License-Identifier: Apache-2.0 */

/* Memory of the machine and of this process's control group, by the files that dlpackd reads for
 * its quotas, and /dev/shm. */

#include "cli/doctor.h"
#include "cli/output.h"
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#define CGROUPS "/sys/fs/cgroup"

/* Less than that is short: 1/20. */
enum { SHORT_PART = 20 };

static bool read_number(const char *folder, const char *name, uint64_t *ret)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
        return false;
    FILE *f = fopen(path, "re");
    bool is_read = f && fscanf(f, "%" SCNu64, ret) == 1; /* "max" is no number */
    if (f)
        (void)fclose(f);
    return is_read;
}

/* ---- the machine ----------------------------------------------------------------------------- */

static bool read_meminfo(uint64_t *ret_total, uint64_t *ret_available)
{
    char line[128];
    unsigned n = 0;
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof line, f)) {
        unsigned long long kib;
        if (sscanf(line, "MemTotal: %llu", &kib) == 1)
            *ret_total = kib * 1024, n++;
        if (sscanf(line, "MemAvailable: %llu", &kib) == 1)
            *ret_available = kib * 1024, n++;
    }
    if (f)
        (void)fclose(f);
    return n == 2;
}

static void check_machine(struct doctor *d)
{
    static const char check[] = "memory.machine";
    uint64_t total = 0, available = 0;
    char total_text[HUMAN_SIZE], available_text[HUMAN_SIZE];
    if (!read_meminfo(&total, &available)) {
        doctor_found(
            d, check, DOCTOR_UNKNOWN,
            (struct doctor_advice){"whether memory is short is not known", "mount /proc here"},
            "/proc/meminfo cannot be read");
        return;
    }
    human_bytes(total, total_text);
    human_bytes(available, available_text);
    if (available >= total / SHORT_PART)
        doctor_ok(d, check, "machine: %s of %s available", available_text, total_text);
    else
        doctor_found(d, check, DOCTOR_WARNING,
                     (struct doctor_advice){"publishers that need more memory fail with \"no "
                                            "memory\", or the kernel ends a process",
                                            "end programs, or look with `dlxctl holds` and `dlxctl "
                                            "ls` for topics that keep much"},
                     "machine: only %s of %s available", available_text, total_text);
}

/* ---- the control group ----------------------------------------------------------------------- */

/* Finds "/a/b" in the line "0::/a/b". */
static bool find_group(char *ret, size_t size)
{
    char line[PATH_MAX];
    bool found = false;
    FILE *f = fopen("/proc/self/cgroup", "re");
    while (f && !found && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        found = strncmp(line, "0::/", 4) == 0 && snprintf(ret, size, "%s", line + 3) < (int)size;
    }
    if (f)
        (void)fclose(f);
    return found;
}

struct group_limit {
    char folder[PATH_MAX];
    uint64_t max, used;
    bool is_known;
};

/* The group and those above it: the one that has the least left. */
static struct group_limit find_tightest(void)
{
    struct group_limit tightest = {.max = UINT64_MAX};
    char group[PATH_MAX / 2], folder[PATH_MAX];
    tightest.is_known = find_group(group, sizeof group);
    while (tightest.is_known) {
        uint64_t max = UINT64_MAX, high = UINT64_MAX, used = 0;
        (void)snprintf(folder, sizeof folder, CGROUPS "%s", group);
        (void)read_number(folder, "memory.max", &max);
        (void)read_number(folder, "memory.high", &high);
        (void)read_number(folder, "memory.current", &used);
        max = high < max ? high : max;
        used = used < max ? used : max;
        if (max != UINT64_MAX && max - used < tightest.max - tightest.used) {
            tightest.max = max;
            tightest.used = used;
            memcpy(tightest.folder, folder, sizeof folder);
        }
        char *last = strrchr(group, '/');
        if (!last)
            break;
        *last = '\0';
    }
    return tightest;
}

static void check_group(struct doctor *d)
{
    static const char check[] = "memory.control_group";
    const struct group_limit limit = find_tightest();
    char max[HUMAN_SIZE], used[HUMAN_SIZE];
    if (limit.max == UINT64_MAX) {
        doctor_ok(d, check, "control group: %s",
                  limit.is_known ? "no limit" : "none of version 2 that limits memory");
        return;
    }
    human_bytes(limit.max, max);
    human_bytes(limit.used, used);
    if (limit.used <= limit.max - limit.max / SHORT_PART)
        doctor_ok(d, check, "control group: %s of %s used", used, max);
    else
        doctor_found(d, check, DOCTOR_WARNING,
                     (struct doctor_advice){"the memory of messages counts for the group of the "
                                            "publisher: it fails with \"no memory\", or the kernel "
                                            "ends a process of the group",
                                            "raise MemoryMax= of the unit, or the container's "
                                            "limit of memory"},
                     "control group %s: %s of %s used", limit.folder, used, max);
}

/* ---- /dev/shm -------------------------------------------------------------------------------- */

/* Docker gives a container that much, which is little for tensors. */
#define SHM_LEAST (UINT64_C(64) << 20)

static void check_shm(struct doctor *d)
{
    static const char check[] = "memory.dev_shm";
    struct statvfs vfs;
    char size[HUMAN_SIZE], left[HUMAN_SIZE];
    if (!d->has_daemon)
        return;
    if (!d->is_posix_memory || d->is_elsewhere) {
        doctor_ok(d, check,
                  d->is_posix_memory ? "/dev/shm: that of dlpackd's container is used"
                                     : "/dev/shm: not used, memory is in memfds");
        return;
    }
    if (statvfs("/dev/shm", &vfs) < 0) {
        doctor_found(d, check, DOCTOR_UNKNOWN,
                     (struct doctor_advice){"whether it is full is not known",
                                            "look in the container of dlpackd"},
                     "/dev/shm, in which this dlpackd makes memory, cannot be looked at from here");
        return;
    }
    const uint64_t total = vfs.f_blocks * vfs.f_frsize, n_free = vfs.f_bavail * vfs.f_frsize;
    human_bytes(total, size);
    human_bytes(n_free, left);
    if (total > SHM_LEAST && n_free >= total / SHORT_PART)
        doctor_ok(d, check, "/dev/shm: %s of %s free", left, size);
    else
        doctor_found(d, check, n_free < total / SHORT_PART ? DOCTOR_PROBLEM : DOCTOR_WARNING,
                     (struct doctor_advice){"dlpackd runs with --memory=posix and makes all memory "
                                            "of messages there; publishers fail with \"no memory\" "
                                            "when it is full",
                                            "`mount -o remount,size=50% /dev/shm`, a larger "
                                            "--shm-size of the container, or dlpackd without "
                                            "--memory=posix"},
                     "/dev/shm: %s of %s free", left, size);
}

void doctor_memory(struct doctor *d)
{
    check_machine(d);
    check_group(d);
    check_shm(d);
}
