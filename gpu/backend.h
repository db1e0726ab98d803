/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_GPU_BACKEND_H
#define DLX_GPU_BACKEND_H

/*
 * CUDA and HIP are behind one table: what a runtime can say about its devices and pointers (struct
 * dlx_gpu_api), and what can be done with each kind of memory (struct dlx_gpu_ops).
 *
 * Every function undoes what it did when it fails: after an error no descriptor, mapping, address
 * range, handle or context is left, and the outputs are as before. None of them locks; none is
 * called in a forked child (gpu/gpu.h).
 */

#include "gpu/handle.h"
#include "gpu/stream.h"

/* A part of memory with a handle of its own. */
struct dlx_gpu_piece {
    uint64_t identity; /* an allocation handle that this process holds, or a BUFFER_ID; 0: none */
    uint64_t size;
};

/* Memory of a GPU in this process: allocated, found behind a pointer, or opened. */
struct dlx_gpu_memory {
    const struct dlx_gpu_ops *ops;
    int32_t device;   /* ordinal, of the GPU that has the memory or, if opened, that uses it */
    bool has_context; /* it keeps the primary context of `device` */
    bool is_placed;   /* its addresses are reserved by the caller of open(), and stay so */
    void *base;
    uint64_t size;
    void *pool;    /* CUDA_POOL: the CUmemoryPool */
    void *context; /* CUDA_IPC: the CUcontext that it was allocated in, its owner's */
    uint32_t n_pieces;
    struct dlx_gpu_piece *pieces;
};

enum dlx_gpu_access { DLX_GPU_READ = 1, DLX_GPU_READ_WRITE };

struct dlx_gpu_ops {
    enum dlx_gpu_kind kind;
    int32_t device_type; /* of DLPack */
    /* An export, or what classify() found, keeps the memory in use: hold it only while needed. */
    bool export_pins;
    /* Memory may stay open while no tensor uses it, since opening is slow. */
    bool import_stays;
    /* A process opens an allocation once, from whatever publisher it comes: the token names it.
     * Drivers do not count: the first import that is closed would close it for all. */
    bool opens_once;

    /* Make memory of at least `size` bytes on the device, without a context and without mapping it:
     * the kind, size, token and chunks of a complete handle, whose descriptors keep the memory. The
     * caller sets device and id. NULL: frameworks alone allocate memory of this kind. */
    int (*create)(int32_t device, uint64_t size, struct dlx_gpu_handle *ret);
    /* Fill memory that was opened for reading and writing with zeros, and wait for that. NULL where
     * `create` is. */
    int (*clear)(struct dlx_gpu_memory *memory);
    /* The chunks with their descriptors, and the token. The caller sets device, id and size.
     * DLX_E_DEVICE: the memory cannot be shared, which some runtimes say only now. */
    int (*export)(const struct dlx_gpu_memory *memory, struct dlx_gpu_handle *ret);
    /*
     * Map memory of another process, whose GPU has the local ordinal `home`, for kernels on
     * `device`: at `at`, which reserve() gave and where nothing is mapped, or if that is NULL
     * anywhere. Descriptors stay the handle's. The kinds whose mappings cannot be read-only give a
     * writable one.
     */
    int (*open)(const struct dlx_gpu_handle *handle, int32_t home, int32_t device,
                enum dlx_gpu_access access, void *at, struct dlx_gpu_memory *ret);
    /* Addresses for memory of this kind, of any GPU, and their end. NULL: the driver alone says
     * where memory is mapped, and the `at` of open() has to be NULL. */
    int (*reserve)(uint64_t size, void **ret);
    void (*unreserve)(void *at, uint64_t size);
    /* Let kernels of all peers, in this process, use memory that was allocated. NULL: not possible.
     */
    int (*allow_peers)(const struct dlx_gpu_memory *memory);
    /* Close memory that was allocated or opened. No kernel may still use it. */
    void (*close)(struct dlx_gpu_memory *memory);
    /* Release what classify() found. The memory itself stays its owner's. */
    void (*forget)(struct dlx_gpu_memory *memory);
};

struct dlx_gpu_api {
    const char *name;
    int32_t device_type;        /* of DLPack */
    enum dlx_gpu_kind own_kind; /* of memory that this library allocates */
    int (*count)(int32_t *ret);
    int (*uuid)(int32_t device, struct dlx_gpu_uuid *ret);
    /* Bytes of the device, used or not. */
    int (*memory_size)(int32_t device, uint64_t *ret);
    /* Can kernels of the device use memory of its peer? */
    int (*can_access)(int32_t device, int32_t peer, bool *ret);
    /*
     * What kind of memory `size` bytes at `ptr` are: `ret` covers them, and whole chunks.
     * DLX_E_DEVICE: they cannot be shared, and the message says why.
     */
    int (*classify)(int32_t device, const void *ptr, uint64_t size, struct dlx_gpu_memory *ret);
    /* See dlx__gpu_event_record() and what follows it. NULL: streams are waited for. */
    int (*event_record)(int32_t device, void *stream, struct dlx_gpu_event *ret);
    int (*event_wait)(const struct dlx_gpu_event *event, bool block);
    void (*event_end)(struct dlx_gpu_event *event);
    /* See dlx__gpu_gate_shut(). NULL: streams cannot wait for the CPU. */
    int (*gate_shut)(int32_t device, void *stream, bool are_kernels_loaded,
                     const struct dlx_gpu_word *shared, struct dlx_gpu_gate *ret);
    /* See dlx__gpu_page_add() and dlx__gpu_write_words(). NULL where `gate_shut` is. */
    int (*page_add)(int32_t device, void *page, uint64_t *ret_at);
    int (*write_words)(const struct dlx_gpu_event *event, void *stream,
                       const struct dlx_gpu_word *words, uint32_t n, uint32_t *ret_n);
    /* See dlx__gpu_wait_stream(), dlx__gpu_work_now() and dlx__gpu_work_wait(). `own` is NULL if
     * the backend has one context for each device. */
    int (*wait_stream)(int32_t device, void *stream);
    void *(*own)(int32_t device);
    int (*wait_work)(const struct dlx_gpu_work *work);
    /* See dlx__gpu_check_range() and what follows it. */
    int (*check_range)(int32_t device, const void *ptr, uint64_t size);
    int (*copy)(int32_t device, void *to, const void *from, uint64_t size, void *stream);
    int (*copy_to_host)(int32_t device, void *to, const void *from, uint64_t size);
    /* See dlx__gpu_retain() to dlx__gpu_unpin(). */
    int (*retain)(int32_t device);
    void (*release)(int32_t device);
    int (*pin)(int32_t device, const void *at, uint64_t size);
    int (*unpin)(int32_t device, const void *at);
};

extern const struct dlx_gpu_api dlx__cuda_api, dlx__hip_api;
extern const struct dlx_gpu_ops dlx__cuda_vmm_ops, dlx__cuda_pool_ops, dlx__cuda_ipc_ops;
extern const struct dlx_gpu_ops dlx__hip_ipc_ops, dlx__hip_vmm_ops;

/* The table. DLX_E_DEVICE: no such device type, or this build does not have it. */
int dlx__gpu_api(int32_t device_type, const struct dlx_gpu_api **ret);
int dlx__gpu_ops(enum dlx_gpu_kind kind, const struct dlx_gpu_ops **ret);

/* Open what `create` has made, for reading and writing, and clear it. The descriptors stay the
 * handle's. */
int dlx__gpu_open_new(const struct dlx_gpu_ops *ops, const struct dlx_gpu_handle *handle,
                      int32_t device, struct dlx_gpu_memory *ret);

/* One or more pieces, zeroed, of memory that has none. 0 or DLX_E_NO_MEMORY. */
int dlx__gpu_memory_pieces(struct dlx_gpu_memory *memory, uint32_t n);

/* A backend calls this before it loads anything: from then on fork() is noticed. */
void dlx__gpu_watch_forks(void);
/* Is this a forked child of a process that had loaded a driver? */
bool dlx__gpu_is_forked(void);
/* DLX_E_FORKED with its message. */
int dlx__gpu_fail_forked(void);

#endif
