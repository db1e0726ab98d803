/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_COMMON_MEMORY_H
#define DLX_COMMON_MEMORY_H

/*
 * Shared memory with exactly one writer. The four steps:
 *
 *   1. daemon   dlx__region_new()        makes the file; the daemon keeps a read-only fd and sends
 *                                        the only writable one to the writer
 *   2. writer   dlx__region_populate()   allocates every page (the writer's cgroup pays, and a lack
 *                                        of memory is an error here and no SIGBUS later), maps it,
 *                                        seals it, and closes the fd
 *   3. daemon   dlx__region_prove()      checks that nobody else can write from now on and that
 *                                        every page is present for good
 *   4. readers  dlx__region_attach()     checks again, maps it read-only, and closes the fd
 *
 * What the kernel guarantees depends on the backend, which the daemon chooses when it starts and
 * reports to each client. A process that is connected to two daemons may use both backends.
 *
 *   memfd   Step 1 seals the size and step 2 seals writing: the writer's mapping is the only
 *           writable one in the system, and no page of it can be removed. Needs
 *           F_SEAL_FUTURE_WRITE, Linux 5.1.
 *   posix   shm_open(3): nothing is sealed. Readers have a read-only fd, but a process of the
 *           daemon's user can get a writable one, and a hostile writer can remove pages, which
 *           causes SIGBUS in its readers. The size of /dev/shm limits it. For systems without
 *           those seals; docs/SHM.md.
 *
 * The writer seals, because sealing waits for the lock of the file, which the writer can hold as
 * long as it likes. The daemon only checks the seals. None of the daemon's functions (steps 1 and
 * 3, and dlx__region_inspect()) waits for a client (docs/decisions/0021). The daemon is the writer
 * of membership pages, and runs step 2 before anybody else has a descriptor.
 *
 * All mappings are MADV_DONTFORK.
 */

#include "common/util.h"

/* The expected state of a region. */
enum dlx_region_state {
    DLX_REGION_NEW,    /* step 2; or a shared region, for good: dlx__region_new_shared() */
    DLX_REGION_SEALED, /* after step 2 */
};

/* A backend. Call the functions below, which call these and do what all backends share. */
struct dlx_memory {
    const char *name;       /* the value of --memory */
    uint32_t tag;           /* HelloReply.memory */
    int (*supported)(void); /* NULL: the four steps show it */
    /* The daemon's fd is read-only from the start, so nothing is reopened later. */
    int (*create)(const char *what, uint64_t size, int *ret_ro_fd, int *ret_writer_fd);
    /* Step 2: nobody else writes it from now on. */
    int (*seal)(int borrow_writer_fd);
    /* Nobody ever seals it, so that it keeps its writers. */
    int (*seal_seals)(int borrow_writer_fd);
    /* Is it a region of this backend? Returns 0 or DLX_E_PROTOCOL. */
    int (*check)(int borrow_fd, enum dlx_region_state state);
};

extern const struct dlx_memory dlx__memory_memfd;
extern const struct dlx_memory dlx__memory_posix;

/* Returns NULL if there is none. */
const struct dlx_memory *dlx__memory_by_name(const char *name);
const struct dlx_memory *dlx__memory_by_tag(uint32_t tag);

/* Does this system support it? Returns 0, or DLX_E_KERNEL with the reason and remedy in the
 * thread's message. */
int dlx__memory_supported(const struct dlx_memory *memory);

/*
 * Step 1. `size` is a multiple of DLX_PAGE; `what` names the region for people. The daemon keeps
 * `ret_ro_fd`, and sends and closes `ret_writer_fd`, which is read-write. The process must ignore
 * SIGXFSZ, which would kill it if it makes a region beyond RLIMIT_FSIZE. Returns 0; DLX_E_LIMIT
 * (RLIMIT_FSIZE), DLX_E_FD_LIMIT, DLX_E_NO_MEMORY, DLX_E_SYSTEM.
 */
int dlx__region_new(const struct dlx_memory *memory, const char *what, uint64_t size,
                    int *ret_ro_fd, int *ret_writer_fd);

/* Step 2. Takes the fd, also on failure. Returns 0; DLX_E_NO_MEMORY (with the number of bytes),
 * DLX_E_PROTOCOL (not a new region of that size), DLX_E_SYSTEM. */
int dlx__region_populate(const struct dlx_memory *memory, int take_fd, uint64_t size,
                         void **ret_map);

/* Called after each step of an allocation, of 4 MiB: `n_bytes` are there. `signalled`: a signal
 * handler ran in it. Returns 0, or the code with which the allocation ends. */
typedef int dlx_region_step_fn(void *data, uint64_t n_bytes, bool signalled);
/* The same for a region of any size. Also returns what `step` does. */
int dlx__region_populate_in_steps(const struct dlx_memory *memory, int take_fd, uint64_t size,
                                  dlx_region_step_fn *step, void *data, void **ret_map);

/* Step 3. After it, the daemon may announce the region with its own fd. It takes long: it checks
 * each page and reads back swapped-out ones. Any thread may call it. Returns 0; DLX_E_BAD_PEER (not
 * sealed, or pages are missing), DLX_E_LIMIT (vm.max_map_count), DLX_E_SYSTEM. */
int dlx__region_prove(const struct dlx_memory *memory, int borrow_fd, uint64_t size);

/* Step 4. Takes the fd, also on failure. Returns 0; DLX_E_PROTOCOL (not sealed, or another size, or
 * missing pages), DLX_E_NO_MEMORY, DLX_E_LIMIT (vm.max_map_count), DLX_E_SYSTEM. */
int dlx__region_attach(const struct dlx_memory *memory, int take_fd, uint64_t size,
                       const void **ret_map);

/* The same; the caller keeps the fd. */
int dlx__region_attach_borrowed(const struct dlx_memory *memory, int borrow_fd, uint64_t size,
                                const void **ret_map);

/* Maps a region that several processes write: nobody seals it, and the daemon has allocated it.
 * Takes the fd, also on failure; the map keeps its locks. Returns as dlx__region_attach(). */
int dlx__region_share(int take_fd, uint64_t size, void **ret_map);

/* Checks a region that passed step 3, and returns its size. Returns 0; DLX_E_PROTOCOL,
 * DLX_E_SYSTEM. */
int dlx__region_inspect(const struct dlx_memory *memory, int borrow_fd, uint64_t *ret_size);

/*
 * Makes a region that several processes of one user write, whose size is for good and whose pages
 * are all there. Any of its writers can remove pages, so nobody else maps it: others read it with
 * pread(2). The caller owns both descriptors. Returns as dlx__region_new(), also DLX_E_NO_MEMORY
 * (with the number of bytes).
 */
int dlx__region_new_shared(const struct dlx_memory *memory, const char *what, uint64_t size,
                           int *ret_ro_fd, int *ret_writer_fd);
/* The number of its file, which all descriptors of it have; 0: it cannot be told. */
uint64_t dlx__region_inode(int borrow_fd);
/* Checks that it is such a region, and returns its size. Returns as dlx__region_inspect(). */
int dlx__region_inspect_shared(const struct dlx_memory *memory, int borrow_fd, uint64_t *ret_size);
/* In memory_lock.c. Opens a descriptor of a shared region for one writer, with a write lock on the
 * byte at `at`, which nobody else has then. The lock is released when the descriptor and all
 * mappings made with it are gone. The caller owns the file. Returns 0; DLX_E_IN_USE (somebody has a
 * lock there), DLX_E_FD_LIMIT, DLX_E_SYSTEM. */
int dlx__region_reopen_owned(int borrow_fd, uint64_t at, int *ret_fd);
/* Has anybody such a lock of that byte, by another descriptor than this one? Returns true if the
 * kernel cannot tell. */
bool dlx__region_is_owned(int borrow_fd, uint64_t at);

/* In memory_lock.c. Opens a locked descriptor of a sealed region for one reader. The lock is
 * released when the descriptor and all mappings made with it are gone. The caller owns the file.
 * Returns 0; DLX_E_FD_LIMIT, DLX_E_SYSTEM. */
int dlx__region_reopen_locked(int borrow_fd, int *ret_fd);
/* Releases locks that others may have taken through a copy of this very descriptor. */
void dlx__region_unlock(int borrow_fd);
/* Does anybody hold such a lock? The writer asks with a descriptor that was opened separately.
 * Returns true if the kernel cannot tell. */
bool dlx__region_is_locked(int borrow_fd);

/*
 * Copy-on-write views of an attached region whose descriptor is closed. A view is made from a spare
 * map: a private, inaccessible mapping of the region, which costs address space and one mapping.
 * The kernel can duplicate any part of it (MREMAP_DONTUNMAP of a file mapping, Linux 5.13). A page
 * of a view is the region's page until somebody writes to the view, so the owner of the view
 * ensures that nobody writes to the region meanwhile.
 *
 * Both functions return NULL if the system does not support this, for whatever reason; the caller
 * then copies.
 */
const void *dlx__region_spare(int borrow_fd, uint64_t size);
/* A readable and writable view of `size` bytes (more than 0) from `offset`, for
 * dlx__region_view_unmap(). */
void *dlx__region_view(const void *spare, uint64_t offset, uint64_t size);
void dlx__region_view_unmap(void *view, uint64_t size);

/* Accepts NULL. */
void dlx__region_unmap(const void *map, uint64_t size);

/* In memory_proof.c, for step 3: is every page of the mapped region present for good? Returns 0;
 * DLX_E_PROTOCOL (one is missing), DLX_E_SYSTEM. */
int dlx__region_check_pages(int borrow_fd, void *map, uint64_t size);
/* For backends: sets the size of a new file. Returns 0; DLX_E_LIMIT (RLIMIT_FSIZE),
 * DLX_E_NO_MEMORY, DLX_E_SYSTEM. */
int dlx__region_resize(int borrow_fd, uint64_t size);

#endif
