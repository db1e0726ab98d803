/* SPDX-License-Identifier: Apache-2.0 */
#include "client/base/nametable.h"
#include "common/error.h"
#include "common/util.h"
#include <assert.h>
#include <pthread.h>
#include <string.h>
#include <sys/random.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* Small, since a table of many entries does not fit into a cache. The hash is compared before the
 * key, which lies anywhere. */
struct entry {
    const void *key; /* NULL: free */
    uint32_t hash;
    uint16_t key_size;
    uint16_t index;
};
_Static_assert(sizeof(struct entry) == 16, "entry");

struct dlx_nametable {
    uint32_t mask;
    struct entry entries[];
};

static uint64_t seed;

static void make_seed(void)
{
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != sizeof seed)
        seed = dlx__now_ns() ^ (uintptr_t)&seed;
}

int dlx__nametable_new(struct dlx_nametable **ret, uint32_t n_keys)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    uint32_t size = 4;
    (void)pthread_once(&once, make_seed);
    while (size < n_keys + n_keys / 2)
        size *= 2;
    struct dlx_nametable *table = calloc(1, sizeof *table + size * sizeof(struct entry));
    if (!table)
        return dlx__fail(DLX_E_NO_MEMORY, "index of %u names", n_keys);
    table->mask = size - 1;
    *ret = table;
    return 0;
}

struct dlx_nametable *dlx__nametable_free(struct dlx_nametable *table)
{
    free(table);
    return NULL;
}

/* The entry of the key, or the free one where it would be. */
static const struct entry *look_up(const struct dlx_nametable *table, const void *key,
                                   uint32_t key_size, uint32_t hash)
{
    uint32_t at = hash & table->mask;
    for (;;) {
        const struct entry *e = &table->entries[at];
        if (!e->key ||
            (e->hash == hash && e->key_size == key_size && memcmp(e->key, key, key_size) == 0))
            return e;
        at = (at + 1) & table->mask;
    }
}

static uint32_t hash_of(const void *key, uint32_t key_size)
{
    return (uint32_t)XXH3_64bits_withSeed(key, key_size, seed);
}

uint32_t dlx__nametable_hash(const struct dlx_nametable *table, const void *key, uint32_t key_size)
{
    uint32_t hash = hash_of(key, key_size);
    dlx__prefetch_write(&table->entries[hash & table->mask]);
    return hash;
}

uint32_t dlx__nametable_add(struct dlx_nametable *table, const void *key, uint32_t key_size,
                            uint32_t hash, uint32_t index)
{
    struct entry *e = (struct entry *)(uintptr_t)look_up(table, key, key_size, hash);
    assert(key_size <= UINT16_MAX && index <= UINT16_MAX);
    if (e->key)
        return e->index;
    *e = (struct entry){
        .key = key, .hash = hash, .key_size = (uint16_t)key_size, .index = (uint16_t)index};
    return DLX_NAMETABLE_NONE;
}

uint32_t dlx__nametable_find(const struct dlx_nametable *table, const void *key, uint32_t key_size)
{
    const struct entry *e = look_up(table, key, key_size, hash_of(key, key_size));
    return e->key ? e->index : DLX_NAMETABLE_NONE;
}
