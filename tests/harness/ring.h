/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_RING_H
#define DLX_TESTS_HARNESS_RING_H

/* Shared by the tests of ring/: memory, and messages that have their number in every word. */

#include "ring/entry.h"
#include "ring/reader.h"
#include "ring/writer.h"
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Zeroed pages. free() them. */
static inline void *dlx_test_pages(uint64_t size)
{
    void *p = aligned_alloc(DLX_PAGE, (size_t)size);
    assert(p && size % DLX_PAGE == 0);
    return memset(p, 0, (size_t)size);
}

static inline struct dlx_shm_control *dlx_test_control(uint32_t n_entries)
{
    return dlx_test_pages(dlx_shm_control_size(n_entries));
}

/* A page whose subscriber has yet to start, and the link as its publisher sees it. */
static inline struct dlx_shm_link *dlx_test_link(struct dlx_writer_link *link, uint32_t index,
                                                 uint32_t max_held, bool reliable, bool latest)
{
    struct dlx_shm_link *page = dlx_test_pages(dlx_shm_link_size(max_held));
    *link = (struct dlx_writer_link){.page = page,
                                     .ticket = dlx_shm_ticket(page, index),
                                     .max_held = max_held,
                                     .reliable = reliable,
                                     .is_passed_over = latest};
    return page;
}

/* Every word of an entry, but for the time, is `n` or made of it. */
static inline void dlx_test_fill(uint64_t *words, uint64_t n)
{
    for (uint32_t i = 1; i < DLX_SHM_ENTRY_WORDS; i++)
        words[i] = n * 8 + i;
}

static inline bool dlx_test_is_of(const uint64_t *words, uint64_t n)
{
    bool same = words[0] == n;
    for (uint32_t i = 1; i < DLX_SHM_ENTRY_WORDS; i++)
        same = same && words[i] == n * 8 + i;
    return same;
}

static inline void dlx_test_put(struct dlx_writer *w, void *payload)
{
    uint64_t words[DLX_SHM_ENTRY_WORDS] = {0}, n = w->head + 1;
    dlx_test_fill(words, n);
    dlx__writer_put(w, words, n, payload);
}

/* Every entry of every block has the message that it should have, LIVE or GONE; or a mark. */
static inline bool dlx_test_blocks_are_right(const struct dlx_writer *w)
{
    for (const struct dlx_writer_block *b = w->oldest_block; b; b = b->next) {
        uint64_t last = DLX_MIN(b->last, w->head), n = last > b->mask ? last - b->mask : 1;
        for (n = DLX_MAX(n, b->base + 1); n <= last; n++) {
            struct dlx_shm_entry *entry = &b->control->entries[n & b->mask];
            uint64_t gen = atomic_load(&entry->gen);
            bool is_mark = DLX_SHM_IS_FINAL(gen) && DLX_SHM_NUMBER(gen) == last + 1;
            if (!is_mark && gen != (n < w->oldest ? n | DLX_SHM_GONE : n))
                return false;
        }
        if (w->oldest > b->last)
            return false;
    }
    return true;
}

static inline void dlx_test_reclaim_all(struct dlx_writer *w)
{
    while (dlx__writer_reclaim(w, false) > 0)
        ;
}

/* A callback for events that a test ignores. */
static inline void dlx_test_ignore(void *userdata)
{
    (void)userdata;
}

static inline void dlx_test_ignore_link(void *userdata, struct dlx_writer_link *link)
{
    (void)userdata;
    (void)link;
}

static inline void dlx_test_ignore_block(void *userdata, const struct dlx_writer_block *block)
{
    (void)userdata;
    (void)block;
}

/* %ju is for a uint64_t: it is a uintmax_t on Linux. */
#define sim_check(world, cond, ...)                                                                \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "seed %ju: %s: ", (world)->seed, #cond);                               \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fprintf(stderr, "\n");                                                                 \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

#endif
