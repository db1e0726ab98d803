/* SPDX-License-Identifier: Apache-2.0 */

/* Limits of this process, which programs that are started like it have as well. */

#include "cli/doctor.h"
#include "cli/output.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

/* How libdlx derives the number of links that a process offers (client/base/limits.c). */
enum { FDS_KEPT = 64, FDS_PER_LINK = 2, MAPS_PER_LINK = 8, MAPS_DEFAULT = 65530 };

/* Fewer links than that are few for any program. */
enum { LINKS_FEW = 32, LINKS_MANY = 256 };

static uint64_t links_of_files(uint64_t n_files)
{
    return n_files > FDS_KEPT ? (n_files - FDS_KEPT) / FDS_PER_LINK : 0;
}

static enum doctor_status status_of_links(uint64_t n)
{
    return n < LINKS_FEW ? DOCTOR_PROBLEM : n < LINKS_MANY ? DOCTOR_WARNING : DOCTOR_OK;
}

static void limit_text(rlim_t limit, bool is_bytes, char text[HUMAN_SIZE])
{
    if (limit == RLIM_INFINITY)
        (void)snprintf(text, HUMAN_SIZE, "unlimited");
    else if (is_bytes)
        human_bytes(limit, text);
    else
        (void)snprintf(text, HUMAN_SIZE, "%" PRIu64, (uint64_t)limit);
}

static void check_open_files(struct doctor *d)
{
    static const char check[] = "limits.open_files";
    struct rlimit limit = {0};
    char soft[HUMAN_SIZE], hard[HUMAN_SIZE], todo[256];
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return;
    limit_text(limit.rlim_cur, false, soft);
    limit_text(limit.rlim_max, false, hard);
    const uint64_t n = links_of_files(limit.rlim_cur);
    const enum doctor_status status = status_of_links(n);
    if (status == DOCTOR_OK) {
        doctor_ok(d, check, "open files: %s (hard limit %s), for %" PRIu64 " links in a process",
                  soft, hard, n);
        return;
    }
    (void)snprintf(todo, sizeof todo,
                   "raise it before the program starts: `ulimit -n %s`%s, or LimitNOFILE= of the "
                   "service",
                   limit.rlim_max > limit.rlim_cur ? hard : "1024",
                   limit.rlim_max > limit.rlim_cur ? "" : " (as root)");
    doctor_found(d, check, status,
                 (struct doctor_advice){"a program has about two descriptors for each publisher "
                                        "that it reads and each subscriber that it serves; "
                                        "further ones are not linked, or it fails with \"Too many "
                                        "open files\"",
                                        todo},
                 "open files: %s (hard limit %s), for %" PRIu64 " links in a process", soft, hard,
                 n);
}

static void check_mappings(struct doctor *d)
{
    static const char check[] = "limits.mappings";
    unsigned long long n = 0;
    FILE *f = fopen("/proc/sys/vm/max_map_count", "re");
    bool is_read = f && fscanf(f, "%llu", &n) == 1;
    if (f)
        (void)fclose(f);
    if (!is_read) {
        doctor_found(d, check, DOCTOR_UNKNOWN,
                     (struct doctor_advice){"libdlx assumes 65530 mappings", "mount /proc"},
                     "mappings: /proc/sys/vm/max_map_count cannot be read");
        return;
    }
    const enum doctor_status status = status_of_links(n / MAPS_PER_LINK);
    if (status == DOCTOR_OK)
        doctor_ok(d, check, "mappings: %llu (vm.max_map_count), for %llu links in a process", n,
                  n / MAPS_PER_LINK);
    else
        doctor_found(d, check, status,
                     (struct doctor_advice){"a program maps each arena of each publisher; takes "
                                            "fail with \"out of address space or of mappings\"",
                                            "as root: `sysctl vm.max_map_count=65530`"},
                     "mappings: %llu (vm.max_map_count), for %llu links in a process", n,
                     n / MAPS_PER_LINK);
}

/* Limits that are not there on most machines. */
static const struct rare {
    const char *check, *name, *option;
    __rlimit_resource_t resource;
    uint64_t least; /* below that, nothing works */
    const char *means;
} rare[] = {
    {"limits.file_size", "size of a file", "ulimit -f", RLIMIT_FSIZE, UINT64_C(1) << 20,
     "shared memory is a file for the kernel, so that a publisher has no arena that is larger, and "
     "a private daemon that is started here as little"},
    {"limits.address_space", "address space", "ulimit -v", RLIMIT_AS, UINT64_C(1) << 28,
     "a program maps the arenas of publishers that it reads; takes fail with \"out of address "
     "space\""},
};

static void check_rare(struct doctor *d, const struct rare *r)
{
    struct rlimit limit;
    char size[HUMAN_SIZE], todo[64];
    if (getrlimit(r->resource, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY)
        return;
    human_bytes(limit.rlim_cur, size);
    (void)snprintf(todo, sizeof todo, "raise it: `%s unlimited`", r->option);
    doctor_found(d, r->check, limit.rlim_cur < r->least ? DOCTOR_PROBLEM : DOCTOR_WARNING,
                 (struct doctor_advice){r->means, todo}, "%s: at most %s (%s)", r->name, size,
                 r->option);
}

void doctor_limits(struct doctor *d)
{
    struct rlimit locked;
    char size[HUMAN_SIZE];
    check_open_files(d);
    check_mappings(d);
    for (size_t i = 0; i < sizeof rare / sizeof rare[0]; i++)
        check_rare(d, &rare[i]);
    if (getrlimit(RLIMIT_MEMLOCK, &locked) == 0) {
        limit_text(locked.rlim_cur, true, size);
        doctor_ok(d, "limits.locked_memory",
                  "locked memory: %s (matters after mlockall, and to pin memory for a GPU)", size);
    }
}
