/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A publisher goes on in a larger control block. Slots are not configured: 64 are enough for most, and a block of
 * 1,024 makes a busy one faster, since it looks less often at what its readers write, and lets them hold more.
 */

#include "client/call.h"
#include "client/publisher.h"
#include "common/memory.h"

#define SLOTS_MANY UINT32_C(1024)
/* More messages a second than this are many: so often DLX_PUB_PRESSURE batches of a quarter of the slots were reclaimed. */
#define MANY_NS UINT64_C(50000000)
/* After a failure, and it is not tried again sooner. */
#define RETRY_NS UINT64_C(1000000000)

/* Make a block with so many slots and have it announced to every link. */
static int new_block(struct dlx_publisher *p, uint32_t n_slots, struct dlx_pub_block **ret)
{
    struct dlx_pub_block *block = NULL;
    uint64_t size = dlx_shm_control_size(n_slots);
    uint32_t id = 0;
    void *map = NULL;
    int fd;
    int r = dlx__call_control_new(p->client, p->id, n_slots, p->core.head, &id, &fd);
    if (r < 0)
        return r;
    r = dlx__region_populate(p->memory, fd, size, &map);
    if (r == 0)
        r = dlx__pub_block_new(&p->core, map, n_slots, &block);
    if (r == 0)
        r = dlx__call_control_ready(p->client, p->id, id);
    if (r < 0) {
        if (block) /* it may have been announced all the same */
            dlx__pub_abandon(block);
        dlx__pub_block_free(block);
        dlx__region_unmap(map, size);
        (void)dlx__call_arena_drop(p->client, p->id, id);
        return r;
    }
    block->id = id;
    *ret = block;
    return 0;
}

int dlx__publisher_move(struct dlx_publisher *p, uint32_t n_slots)
{
    struct dlx_pub_block *block;
    int r = new_block(p, n_slots, &block);
    if (r < 0)
        return r;
    dlx__pub_move(&p->core, block);
    p->control = block->control;
    return 0;
}

void dlx__publisher_relieve(struct dlx_publisher *p)
{
    uint64_t now = dlx__now_ns();
    bool held = p->core.n_retired > p->core.n_slots / 2;
    bool many = now - p->relief_asked_ns < MANY_NS && p->core.n_slots < SLOTS_MANY;
    p->core.pressure = 0;
    p->relief_asked_ns = now;
    if (!p->grows || !(held || many) || p->core.n_slots >= DLX_SHM_SLOTS_MAX ||
        now < p->next_relief_ns)
        return;
    uint32_t n_slots = p->core.n_slots < SLOTS_MANY ? SLOTS_MANY : DLX_SHM_SLOTS_MAX;
    if (dlx__publisher_move(p, n_slots) < 0) { /* it goes on as it is */
        p->next_relief_ns = now + RETRY_NS;
        dlx__error_clear();
    }
}
