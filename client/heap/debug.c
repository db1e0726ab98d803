/* SPDX-License-Identifier: Apache-2.0 */
#include "client/heap/debug.h"
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

#define GUARD_BYTE 0xd5

uint64_t dlx__debug_align(void)
{
    long page = sysconf(_SC_PAGESIZE);
    return page > (long)DLX_PAGE ? (uint64_t)page : DLX_PAGE;
}

bool dlx__debug_protect(struct dlx_block *blocks)
{
    bool all = true;
    for (; blocks; blocks = blocks->next) {
        struct dlx_block *block = blocks->of ? blocks->of : blocks;
        if (!block->is_protected && block->size > 0)
            block->is_protected = mprotect(dlx__block_data(block), block->size, PROT_READ) == 0;
        all &= block->is_protected || block->size == 0;
        dlx__debug_check(block);
    }
    return all;
}

bool dlx__debug_unprotect(struct dlx_block *block)
{
    if (mprotect(dlx__block_data(block), block->size, PROT_READ | PROT_WRITE) < 0)
        return false; /* vm.max_map_count: it is in the middle of what is protected */
    block->is_protected = false;
    return true;
}

/* ---- guard bytes --------------------------------------------------------------------------- */

static uint8_t *guard_of(const struct dlx_block *block, uint64_t *ret_size)
{
    bool is_exported = block->made.ndim >= 0 && block->size > block->payload_size;
    *ret_size = is_exported ? block->size - block->payload_size : 0;
    return is_exported ? (uint8_t *)dlx__block_data(block) + block->payload_size : NULL;
}

void dlx__debug_guard(struct dlx_block *block)
{
    uint64_t size;
    uint8_t *guard = guard_of(block, &size);
    if (guard)
        memset(guard, GUARD_BYTE, (size_t)size);
}

void dlx__debug_check(const struct dlx_block *block)
{
    uint64_t size;
    const uint8_t *guard = guard_of(block, &size);
    for (uint64_t i = 0; i < size; i++)
        if (guard[i] != GUARD_BYTE)
            dlx__misuse("a tensor of %" PRIu64 " bytes, from %p on, was written beyond its end, at "
                        "byte %" PRIu64,
                        block->payload_size, dlx__block_data(block), block->payload_size + i);
}
