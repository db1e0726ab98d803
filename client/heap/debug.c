/* SPDX-License-Identifier: Apache-2.0 */
#include "client/heap/debug.h"
#include <string.h>
#include <sys/mman.h>

enum { UNKNOWN, OFF, ON };

static atomic_int mode = UNKNOWN;

bool dlx__debug(void)
{
    int now = atomic_load_explicit(&mode, memory_order_relaxed);
    if (now != UNKNOWN)
        return now == ON;
    /* Not for a program with more rights than who set its environment (AT_SECURE). */
    const char *value = secure_getenv("DLX_DEBUG");
    int first = value && strcmp(value, "1") == 0 ? ON : OFF;
    /* What dlx_set_debug() said meanwhile holds. */
    if (!atomic_compare_exchange_strong_explicit(&mode, &now, first, memory_order_relaxed,
                                                 memory_order_relaxed))
        first = now;
    return first == ON;
}

void dlx_set_debug(bool on)
{
    atomic_store_explicit(&mode, on ? ON : OFF, memory_order_relaxed);
}

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
