/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_NAMETABLE_H
#define DLX_CLIENT_NAMETABLE_H

/*
 * A hash table from keys, which the caller keeps, to indexes. Its seed is a secret of the process,
 * so no peer can choose keys that make it slow.
 */

#include <stdint.h>

struct dlx_nametable;

#define DLX_NAMETABLE_NONE UINT32_MAX

/* Room for `n_keys`. Returns 0; DLX_E_NO_MEMORY. */
int dlx__nametable_new(struct dlx_nametable **ret, uint32_t n_keys);
struct dlx_nametable *dlx__nametable_free(struct dlx_nametable *table);

/* A key for add: keys of a large set are hashed ahead, and their places in the table prefetched. */
uint32_t dlx__nametable_hash(const struct dlx_nametable *table, const void *key, uint32_t key_size);

/* Add a key of at most 65,535 bytes, borrowed, with its hash and an index up to 65,535. Returns
 * NONE; or the index that has the same key, and nothing was added. */
uint32_t dlx__nametable_add(struct dlx_nametable *table, const void *key, uint32_t key_size,
                            uint32_t hash, uint32_t index);

/* The index of a key; NONE. */
uint32_t dlx__nametable_find(const struct dlx_nametable *table, const void *key, uint32_t key_size);

#endif
