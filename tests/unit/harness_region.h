/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_REGION_H
#define DLX_TESTS_HARNESS_REGION_H

/* A region of either kind of memory, which ends with its block. */

#include "common/memory.h"
#include "tests/harness/memory.h"
#include "tests/harness/run.h"

#define MEMFD (&dlx__memory_memfd)

static const struct dlx_memory *const memories[] = {&dlx__memory_memfd, &dlx__memory_posix};

/* Runs for each of them. */
#define MEMORY_TEST(name) LOOP_TEST(name, 0, (int)DLX_ARRAY_SIZE(memories))

struct region {
    const struct dlx_memory *memory;
    uint64_t size;
    uint8_t *map; /* the writer's; NULL: it has none */
    int rw;       /* likewise: a writer would have closed it */
    int ro;
};

#define auto_region DLX_TEST_AUTO(region_end) struct region

static inline void region_end(const struct region *region)
{
    dlx__region_unmap(region->map, region->size);
    dlx__close(region->rw);
    dlx__close(region->ro);
}

static inline struct region region_new(const struct dlx_memory *memory, uint64_t size)
{
    struct region region = {.memory = memory, .size = size};
    ck_assert_int_eq(dlx__region_new(memory, "test", size, &region.ro, &region.rw), 0);
    return region;
}

/* With all pages there: what its writer does, but for the seals. */
static inline struct region region_filled(const struct dlx_memory *memory, uint64_t size)
{
    struct region region = region_new(memory, size);
    dlx_test_memory_fill(region.rw, size);
    return region;
}

/* As its writer does last. */
static inline void seal(const struct region *region)
{
    if (region->memory == MEMFD)
        dlx_test_memory_seal(region->rw);
}

static inline int prove(const struct region *region)
{
    return dlx__region_prove(region->memory, region->ro, region->size);
}

#endif
