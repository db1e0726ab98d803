/* SPDX-License-Identifier: Apache-2.0 */
#include "client/base/limits.h"
#include "common/util.h"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

/* Left to the program, and the library's own sockets. */
#define FDS_KEPT 64U
/* A link of a worker of a group takes two descriptors and one map more: the daemon counts it twice.
 */
#define FDS_PER_LINK  2U
#define MAPS_PER_LINK 8U
#define MAPS_DEFAULT  65530U

/* Without stdio: short of memory it reads a part of the number, which would be a limit of few links
 * for ever. */
static uint64_t max_map_count(void)
{
    char text[32];
    dlx_cleanup(dlx__closep) int fd = open("/proc/sys/vm/max_map_count", O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    text[DLX_MAX(size, 0)] = '\0';
    uint64_t n = strtoull(text, NULL, 10);
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
    return (uint32_t)DLX_MIN(DLX_MAX(n, 2U), 1000000U);
}
