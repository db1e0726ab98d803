/* SPDX-License-Identifier: Apache-2.0 */
#include "client/limits.h"
#include "common/util.h"
#include <inttypes.h>
#include <stdio.h>
#include <sys/resource.h>

/* Left to the program, and the library's own sockets. */
#define FDS_KEPT      64U
#define FDS_PER_LINK  2U
#define MAPS_PER_LINK 8U
#define MAPS_DEFAULT  65530U

static uint64_t max_map_count(void)
{
    uint64_t n = 0;
    FILE *f = fopen("/proc/sys/vm/max_map_count", "re");
    if (f) {
        if (fscanf(f, "%" SCNu64, &n) != 1)
            n = 0;
        (void)fclose(f);
    }
    return n ? n : MAPS_DEFAULT;
}

uint32_t dlx__limits_max_links(void)
{
    struct rlimit limit;
    uint64_t fds = 1024;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
        fds = limit.rlim_cur;
    uint64_t by_fds = fds > FDS_KEPT ? (fds - FDS_KEPT) / FDS_PER_LINK : 1;
    uint64_t by_maps = max_map_count() / MAPS_PER_LINK;
    uint64_t n = DLX_MIN(by_fds, by_maps);
    return (uint32_t)DLX_MIN(DLX_MAX(n, 1U), 1000000U);
}
