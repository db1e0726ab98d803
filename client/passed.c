/* SPDX-License-Identifier: Apache-2.0 */
#include "client/passed.h"
#include "common/util.h"

void dlx__passed_deinit(struct dlx_passed *passed)
{
    free(passed->entries);
    *passed = (struct dlx_passed){.n = 0};
}

static uint32_t n_there(const struct dlx_passed *passed)
{
    return (uint32_t)DLX_MIN(passed->n, DLX_PASSED_MAX);
}

void dlx__passed_add(struct dlx_passed *passed, uint64_t origin, uint64_t seq)
{
    if (!passed->entries)
        passed->entries = calloc(DLX_PASSED_MAX, sizeof *passed->entries);
    if (!passed->entries)
        return;
    for (uint32_t i = 0; i < n_there(passed); i++) {
        if (passed->entries[i].origin == origin) {
            passed->entries[i].seq = DLX_MAX(passed->entries[i].seq, seq);
            return;
        }
    }
    passed->entries[passed->n++ % DLX_PASSED_MAX] =
        (struct dlx_passed_entry){.origin = origin, .seq = seq};
}

uint64_t dlx__passed_find(const struct dlx_passed *passed, uint64_t origin)
{
    for (uint32_t i = 0; i < n_there(passed); i++)
        if (passed->entries[i].origin == origin)
            return passed->entries[i].seq;
    return 0;
}
