/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_COMMON_MEMORY_H
#define DLX_COMMON_MEMORY_H

/*
 * Shared memory with exactly one writer, which the kernel enforces. The four steps:
 *
 *   1. daemon   dlx__memfd_new()          size fixed, GROW and SHRINK sealed; fd goes to the writer
 *   2. writer   dlx__region_populate()    allocates every page (its own cgroup pays, and a lack of
 *                                         memory is an error here, not SIGBUS later), maps, closes
 *   3. daemon   dlx__memfd_seal()         FUTURE_WRITE and SEAL sealed, then checks that every page is
 *                                         there; gets a read-only fd to hand out
 *   4. readers  dlx__region_attach()      check seals, size and pages again, map read-only, close
 *
 * After step 3 the writer's mapping is the only one in the system that can be written. FUTURE_WRITE
 * needs Linux 5.1: dlx__memfd_supported() tells. All maps are MADV_DONTFORK.
 */

#include "common/util.h"

/* 0, or DLX_E_KERNEL with the reason in the thread's message. */
int dlx__memfd_supported(void);

/* Step 1. `size` is a multiple of DLX_PAGE. Returns 0; DLX_E_FD_LIMIT, DLX_E_NO_MEMORY, DLX_E_SYSTEM. */
int dlx__memfd_new(const char *name, uint64_t size, int *ret_fd);

/* Step 2. Takes the fd, also on failure. Returns 0; DLX_E_NO_MEMORY (names the bytes), DLX_E_PROTOCOL
 * (not a memfd of that size with its size sealed), DLX_E_SYSTEM. */
int dlx__region_populate(int take_fd, uint64_t size, void **ret_map);

/* Step 3. Takes the fd, also on failure. On success the region is announced by `ret_ro_fd`. Returns 0;
 * DLX_E_BAD_PEER (pages are missing), DLX_E_FD_LIMIT, DLX_E_SYSTEM. */
int dlx__memfd_seal(int take_fd, uint64_t size, int *ret_ro_fd);

/* Step 4. Takes the fd, also on failure. Returns 0; DLX_E_PROTOCOL (not sealed, or size or pages
 * differ), DLX_E_NO_MEMORY, DLX_E_LIMIT (vm.max_map_count), DLX_E_SYSTEM. */
int dlx__region_attach(int take_fd, uint64_t size, const void **ret_map);

/* Membership pages stay writable by the daemon, whose successor must be able to write them: maps
 * read-write in the daemon (borrows the fd), and hands out a read-only fd. */
int dlx__membership_map(int borrow_fd, uint64_t size, void **ret_map);
int dlx__membership_reopen(int borrow_fd, int *ret_ro_fd);
/* Reader's side of a membership page: as dlx__region_attach() without FUTURE_WRITE. Takes the fd. */
int dlx__membership_attach(int take_fd, uint64_t size, const void **ret_map);

/* NULL is fine. */
void dlx__region_unmap(const void *map, uint64_t size);

#endif
