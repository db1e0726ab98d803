/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXK_MEMORY_H
#define DLXK_MEMORY_H

/*
 * The GPU memory that the keeper made, by publisher. A publisher is in the table while it has
 * memory or the daemon has to be told that it has none any more. No I/O here, but that descriptors
 * are closed, which frees their memory where nobody else has it open.
 */

#include "daemon/base/list.h"
#include "gpu/handle.h"

struct dlxk_publisher {
    struct dlxd_list node;
    uint64_t origin;
    uint64_t user;
    int pidfd;                    /* of its process; -1: that has ended, or is not known yet */
    bool is_wanted;               /* the connected daemon has this publisher */
    uint64_t n_bytes;             /* of all its allocations */
    uint64_t told;                /* the number of bytes that the daemon was told */
    uint32_t n, room;             /* of `items` */
    struct dlx_gpu_handle *items; /* allocations, by their ids */
};

struct dlxk_memory {
    struct dlxd_list publishers;
    uint32_t n_fds; /* one for each allocation and each publisher */
    uint32_t n_fds_most;
};

void dlxk_memory_init(struct dlxk_memory *memory, uint32_t n_fds_most);
void dlxk_memory_deinit(struct dlxk_memory *memory);

/* Returns NULL if there is none. */
struct dlxk_publisher *dlxk_memory_find(const struct dlxk_memory *memory, uint64_t origin,
                                        uint64_t user);
const struct dlx_gpu_handle *dlxk_memory_get(const struct dlxk_publisher *publisher, uint64_t id);

/* Has it memory, or does the daemon have to be told that it has none any more? */
static inline bool dlxk_memory_is_needed(const struct dlxk_publisher *publisher)
{
    return publisher->n > 0 || publisher->told > 0;
}

/*
 * The publisher, with room for this allocation, which is to be made next; one that is not needed in
 * the end is to be removed. Returns 0; DLX_E_INVALID (it has an allocation with this id),
 * DLX_E_LIMIT (of descriptors; a user may have three times what is left, daemon/users/share.h),
 * DLX_E_NO_MEMORY.
 */
int dlxk_memory_reserve(struct dlxk_memory *memory, uint64_t origin, uint64_t user, uint64_t id,
                        struct dlxk_publisher **ret);
/* Takes the complete handle, for which there is room. */
void dlxk_memory_put(struct dlxk_memory *memory, struct dlxk_publisher *publisher,
                     const struct dlx_gpu_handle *take_handle);
/* Frees this allocation, if the publisher has it. */
void dlxk_memory_free(struct dlxk_memory *memory, struct dlxk_publisher *publisher, uint64_t id);
void dlxk_memory_free_all(struct dlxk_memory *memory, struct dlxk_publisher *publisher);
/* Removes a publisher, with its memory. */
void dlxk_memory_remove(struct dlxk_memory *memory, struct dlxk_publisher *publisher);

#endif
