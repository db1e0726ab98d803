/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_MAPS_H
#define DLX_TESTS_HARNESS_MAPS_H

/* The mappings of this process. */

#include "tests/harness/run.h"

/* Does a write there end with SIGSEGV? The byte stays as it is. One thread at a time. */
bool dlx_test_faults(void *at);

/* Bytes that are mapped shared and read-only from files of that name. */
uint64_t dlx_test_protected_bytes(const char *file);

/* Bytes of shared memory of dlpackd's that these processes map, each region once. */
uint64_t dlx_test_region_bytes(const pid_t *pids, size_t n);

/* Use up all mappings that vm.max_map_count allows: no mmap() succeeds until they are given back.
 * Not where there are too many of them to try, nor with ThreadSanitizer and valgrind, which map
 * memory at any moment. */
struct dlx_test_maps {
    void *map;
    size_t size;
};
bool dlx_test_maps_can_exhaust(void);
struct dlx_test_maps dlx_test_maps_exhaust(void);
void dlx_test_maps_give_back(struct dlx_test_maps *maps);

/* Let this process map this many bytes more (RLIMIT_AS). Not with ThreadSanitizer and valgrind. */
bool dlx_test_maps_can_limit(void);
void dlx_test_maps_limit(uint64_t room);
void dlx_test_maps_unlimit(void);

#endif
