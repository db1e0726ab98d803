/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_MAPPED_H
#define DLX_CLIENT_MAPPED_H

/*
 * The shared memory that a client maps, and the connection that made each region. After a restart
 * the next daemon does not know these regions: client/control/connection.c lists them in a former
 * page (ring/layout.h), and dlx__mapped_remove() clears a region there.
 *
 *   dlx_mapped, one for each client, and longer than that if messages are
 *     +-- sources: a publisher, or a link of a subscription, with one daemon
 *           +-- regions: control block, arenas, link page, claims page
 *
 * Regions come and go with system calls, so a lock costs little. Any thread.
 */

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dlx_mapped;
struct dlx_mapped_source;

struct dlx_mapped_region {
    struct dlx_mapped_region *next;
    struct dlx_mapped_region **at; /* the pointer to this region */
    struct dlx_mapped_source *source;
    uint64_t number; /* as in struct dlx_shm_former_region */
    uint64_t size;
    const void *map;
    _Atomic uint64_t *word; /* in the former page; NULL: not listed there */
};

struct dlx_mapped_source {
    struct dlx_mapped_source *next;
    struct dlx_mapped_source **at;
    struct dlx_mapped *mapped;
    struct dlx_mapped_region *regions;
    size_t n_refs; /* regions, and the owner */
    uint64_t epoch;
    uint64_t publisher;
    bool is_publisher;
    /* Messages that are still out, of a link that its subscription has left. */
    const _Atomic uint64_t *n_out;
    uint64_t subscription;
    char topic[];
};

/* A former page; NULL map: none. The page is unmapped with its last region. */
struct dlx_mapped_page {
    void *map;
    uint64_t size;
    size_t n_regions; /* that have a word in the page */
};

/* Returns NULL if out of memory. */
struct dlx_mapped *dlx__mapped_new(uint64_t generation);
/* Returns NULL; accepts NULL. The last source frees the rest. */
struct dlx_mapped *dlx__mapped_unref(struct dlx_mapped *mapped);

/* A publisher or a link, made in this epoch of its client. Returns 0; DLX_E_NO_MEMORY. */
int dlx__mapped_source_new(struct dlx_mapped_source **ret, struct dlx_mapped *mapped,
                           uint64_t epoch, uint64_t publisher, const char *topic,
                           bool is_publisher);
/* The owner lets go of the source, which goes with its last region. Returns NULL; accepts NULL. */
struct dlx_mapped_source *dlx__mapped_source_unref(struct dlx_mapped_source *source);

/* Note that a region was mapped. Without a source (NULL), which is fine, nothing is noted and `ret`
 * is NULL. Returns 0; DLX_E_NO_MEMORY. */
int dlx__mapped_add(struct dlx_mapped_source *source, uint64_t number, const void *map,
                    uint64_t size, struct dlx_mapped_region **ret);
/* Note that a region is unmapped. Accepts NULL. */
void dlx__mapped_remove(struct dlx_mapped_region *region);
/* The same for the control block at this address. */
void dlx__mapped_remove_control(struct dlx_mapped *mapped, const void *map);

/* The subscription leaves the link, of which so many messages are out: `n_out` counts down. */
void dlx__mapped_source_left(struct dlx_mapped_source *source, uint64_t subscription,
                             const _Atomic uint64_t *n_out);
/* The messages that are out, of all links that this subscription has left. */
uint64_t dlx__mapped_n_out(struct dlx_mapped *mapped, uint64_t subscription);

/* ---- for client/control/connection.c ------------------------------------------------------- */

/* Locks `mapped`, for the functions below. */
struct dlx_mapped_source *dlx__mapped_lock(struct dlx_mapped *mapped);
void dlx__mapped_unlock(struct dlx_mapped *mapped);
/* All words point into this page from now on; returns the former one, which the caller unmaps. */
struct dlx_mapped_page dlx__mapped_set_page(struct dlx_mapped *mapped,
                                            struct dlx_mapped_page take_page);

#endif
