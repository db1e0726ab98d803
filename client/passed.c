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

void dlx__passed_add(struct dlx_passed *passed, uint64_t origin, uint64_t seq, uint64_t untold)
{
    const struct dlx_passed_entry entry = {.origin = origin, .seq = seq, .untold = untold};
    if (!passed->entries)
        passed->entries = calloc(DLX_PASSED_MAX, sizeof *passed->entries);
    if (!passed->entries)
        return;
    for (uint32_t i = 0; i < n_there(passed); i++) {
        if (passed->entries[i].origin == origin) {
            if (seq >= passed->entries[i].seq)
                passed->entries[i] = entry;
            return;
        }
    }
    passed->entries[passed->n++ % DLX_PASSED_MAX] = entry;
}

struct dlx_passed_entry dlx__passed_find(const struct dlx_passed *passed, uint64_t origin)
{
    for (uint32_t i = 0; i < n_there(passed); i++)
        if (passed->entries[i].origin == origin)
            return passed->entries[i];
    return (struct dlx_passed_entry){0};
}
