/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_COMMON_MEMORY_H
#define DLX_COMMON_MEMORY_H

/*
 * Shared memory with exactly one writer. The four steps:
 *
 *   1. daemon   dlx__region_new()         of this size; the daemon keeps a read-only fd, and sends
 *                                         the only one that can write to the writer
 *   2. writer   dlx__region_populate()    allocates every page (its own cgroup pays, and a lack of
 *                                         memory is an error here, not SIGBUS later), maps, seals,
 *                                         closes
 *   3. daemon   dlx__region_prove()       nobody else writes from now on, and every page is there
 *                                         for good
 *   4. readers  dlx__region_attach()      check again, map read-only, close
 *
 * What the kernel promises about it depends on the backend, which the daemon chooses when it starts
 * and tells each client. A process that is connected to two daemons may use both.
 *
 *   memfd   Step 1 seals the size, step 2 writing: the writer's mapping is the only one in the
 *           system that can be written, and no page of it goes away. Needs F_SEAL_FUTURE_WRITE,
 *           Linux 5.1.
 *   posix   shm_open(3): nothing is sealed. Readers have an fd that cannot write, but a process of
 *           the daemon's user can get another one, and a hostile writer can take pages away: SIGBUS
 *           in its readers. The size of /dev/shm limits it. For systems without those seals;
 *           docs/SHM.md.
 *
 * The writer seals, because sealing waits for the file's lock, and the writer can hold that as long
 * as it likes. The daemon only checks the seals. None of its functions waits for a client: steps 1
 * and 3, and dlx__region_inspect(). docs/decisions/0021. Of membership pages the daemon is the
 * writer: it makes step 2 before anybody else has a descriptor.
 *
 * All maps are MADV_DONTFORK.
 */

#include "common/util.h"

/* What a region is expected to be. */
enum dlx_region_state {
    DLX_REGION_NEW,    /* step 2 */
    DLX_REGION_SEALED, /* after step 2 */
};

/* A backend. Use the functions below, which call these and do what is common to all. */
struct dlx_memory {
    const char *name;       /* of --memory */
    uint32_t tag;           /* HelloReply.memory */
    int (*supported)(void); /* NULL: the four steps tell */
    /* The daemon's fd is read-only from the start: nothing has to be opened again later. */
    int (*create)(const char *what, uint64_t size, int *ret_ro_fd, int *ret_writer_fd);
    int (*seal)(int borrow_writer_fd);
    /* Is it a region of this backend? 0 or DLX_E_PROTOCOL. */
    int (*check)(int borrow_fd, enum dlx_region_state state);
};

extern const struct dlx_memory dlx__memory_memfd;
extern const struct dlx_memory dlx__memory_posix;

/* NULL when there is none. */
const struct dlx_memory *dlx__memory_by_name(const char *name);
const struct dlx_memory *dlx__memory_by_tag(uint32_t tag);

/* Can this system do it? 0, or DLX_E_KERNEL with the reason, and what to do, in the thread's message. */
int dlx__memory_supported(const struct dlx_memory *memory);

/* Step 1. `size` is a multiple of DLX_PAGE; `what` is for people. `ret_ro_fd` stays with the
 * daemon; `ret_writer_fd` is read-write, to be sent and closed. SIGXFSZ is ignored: it would end
 * a process that makes a region beyond its RLIMIT_FSIZE. Returns 0; DLX_E_LIMIT (that limit),
 * DLX_E_FD_LIMIT, DLX_E_NO_MEMORY, DLX_E_SYSTEM. */
int dlx__region_new(const struct dlx_memory *memory, const char *what, uint64_t size,
                    int *ret_ro_fd, int *ret_writer_fd);

/* Step 2. Takes the fd, also on failure. Returns 0; DLX_E_NO_MEMORY (names the bytes), DLX_E_PROTOCOL
 * (not such a region of that size), DLX_E_SYSTEM. */
int dlx__region_populate(const struct dlx_memory *memory, int take_fd, uint64_t size,
                         void **ret_map);

/* Step 3. The region may be announced by the daemon's fd. Takes time: it looks at each page, and
 * brings those back that were swapped out. Any thread. Returns 0; DLX_E_BAD_PEER (not sealed, or
 * pages are missing), DLX_E_LIMIT (vm.max_map_count), DLX_E_SYSTEM. */
int dlx__region_prove(const struct dlx_memory *memory, int borrow_fd, uint64_t size);

/* Step 4. Takes the fd, also on failure. Returns 0; DLX_E_PROTOCOL (not sealed, or size or pages
 * differ), DLX_E_NO_MEMORY, DLX_E_LIMIT (vm.max_map_count), DLX_E_SYSTEM. */
int dlx__region_attach(const struct dlx_memory *memory, int take_fd, uint64_t size,
                       const void **ret_map);

/* The same, and the fd stays the caller's. */
int dlx__region_attach_borrow(const struct dlx_memory *memory, int borrow_fd, uint64_t size,
                              const void **ret_map);

/* A region that passed step 3, and its size. Returns 0; DLX_E_PROTOCOL, DLX_E_SYSTEM. */
int dlx__region_inspect(const struct dlx_memory *memory, int borrow_fd, uint64_t *ret_size);

/*
 * memory_lock.c. A descriptor of a sealed region that has a lock on it, for one reader: the lock
 * goes when nobody has the descriptor, or a mapping made with it, any more. The caller owns the
 * file. Returns 0; DLX_E_FD_LIMIT, DLX_E_SYSTEM.
 */
int dlx__region_reopen_locked(int borrow_fd, int *ret_fd);
/* Whoever got a copy of this very descriptor may have locked by it, too. Such locks end here. */
void dlx__region_unlock(int borrow_fd);
/* Has anybody such a lock? Asked by its writer, which has another description of the file.
 * Returns true if the kernel cannot tell. */
bool dlx__region_is_locked(int borrow_fd);

/*
 * Copy-on-write views of an attached region, when its descriptor is long closed. What they are made of is a spare map of it, private
 * and without access, which costs address space and a mapping; the kernel duplicates any part of it (MREMAP_DONTUNMAP of what is no
 * anonymous memory: Linux 5.13). A page of a view is the region's until it is written to, so whoever has a view sees to it
 * that nobody writes to the region meanwhile.
 *
 * Both return NULL where the system does not do it, for whatever reason: the caller copies.
 */
const void *dlx__region_spare(int borrow_fd, uint64_t size);
/* Readable and writable from `offset` on, for `size` bytes, more than 0. To be given to dlx__region_view_unmap(). */
void *dlx__region_view(const void *spare, uint64_t offset, uint64_t size);
void dlx__region_view_unmap(void *view, uint64_t size);

/* NULL is fine. */
void dlx__region_unmap(const void *map, uint64_t size);

/* memory_proof.c, for step 3: is every page of the mapped region there, and will it stay? 0;
 * DLX_E_PROTOCOL (one is missing), DLX_E_SYSTEM. */
int dlx__region_check_pages(int borrow_fd, void *map, uint64_t size);
/* For backends: give a new file its size. Returns 0; DLX_E_LIMIT (RLIMIT_FSIZE), DLX_E_NO_MEMORY,
 * DLX_E_SYSTEM. */
int dlx__region_resize(int borrow_fd, uint64_t size);

#endif
