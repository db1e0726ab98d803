/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/report.h"
#include "common/memory.h"
#include "common/shm.h"
#include <fcntl.h>

static const void *map(int fd, uint64_t size)
{
    const void *page;
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (copy < 0 || dlx__region_attach(copy, size, &page) < 0)
        return NULL;
    return page;
}

/* Partner: the client's relaxed stores. The page is read-only here, the cast removes const only. */
static uint64_t look(const dlx_atomic_u64 *word)
{
    return dlx_load64_relaxed((dlx_atomic_u64 *)(uintptr_t)word);
}

void dlxd_report_control(int fd, uint64_t size, struct dlxd_control_report *ret)
{
    *ret = (struct dlxd_control_report){.published = 0};
    const struct dlx_shm_control *control = map(fd, size);
    if (!control)
        return;
    ret->head = look(&control->head) & ~DLX_SHM_MOVED;
    ret->published = look(&control->published);
    ret->published_bytes = look(&control->published_bytes);
    dlx__region_unmap(control, size);
}

void dlxd_report_link(int fd, uint64_t size, uint32_t max_held, struct dlxd_link_report *ret)
{
    *ret = (struct dlxd_link_report){.taken = 0};
    const struct dlx_shm_link *link = map(fd, size);
    if (!link)
        return;
    ret->taken = look(&link->taken);
    ret->skipped = look(&link->skipped);
    ret->lost = look(&link->lost);
    for (uint32_t i = 0; i < max_held; i++)
        if (look(&link->hold[i]) != 0)
            ret->n_held++;
    dlx__region_unmap(link, size);
}
