/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_STANDIN_STATE_H
#define DLX_STANDIN_STATE_H

/*
 * The state of the stand-in in one process. One lock protects all of it: each driver call takes it
 * on entry (ENTER) and gives it back on return. A stream's thread gives it up while it copies or
 * runs a function. `changed` is signalled whenever something that a thread may wait for has
 * happened.
 *
 * Objects behind handles (contexts, streams, events) are never freed: a stale handle stays
 * recognisable.
 */

/* The driver's functions are exported, and nothing else of this library but standin.h. */
#pragma GCC visibility push(default)
#include "tests/gpu/standin/standin.h"
#pragma GCC visibility pop

/* For those that cuda.h declares in one of its versions only. */
#define EXPORTED __attribute__((visibility("default")))

#include "tests/gpu/standin/calls.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

#define DRIVER_VERSION 13000
#define MAX_DEVICES    8
#define PAGE           ((size_t)4096)
#define GRANULARITY    ((size_t)2 << 20)

static inline size_t whole_pages(size_t size)
{
    return (size + PAGE - 1) & ~(PAGE - 1);
}

/* Sets `member` to the first one of the list that fits, or to NULL. */
#define LIST_FIND(member, list, fits)                                                              \
    for ((member) = LIST_FIRST(list); (member) && !(fits);)                                        \
    (member) = LIST_NEXT(member, link)

/* -- contexts ---------------------------------------------------------------------------------- */

struct stream;

struct context {
    LIST_ENTRY(context) link;
    int device;
    uint64_t id;
    bool is_destroyed;
    CUresult sticky; /* the first asynchronous error; every later call returns it */
    struct stream *legacy, *per_thread;
    int n_workers; /* threads of streams */
    /* With one hardware queue: the last operation that waits, as what its stream has then done. */
    struct stream *waiting;
    uint64_t waiting_upto;
    void (*loaded[16])(void *); /* kernels, where they are loaded lazily */
    int n_loaded;
};

/* -- device memory ----------------------------------------------------------------------------- */

enum range_kind {
    RANGE_ALLOC,       /* cuMemAlloc */
    RANGE_VMM,         /* cuMemMap */
    RANGE_IPC,         /* cuIpcOpenMemHandle */
    RANGE_POOL,        /* cuMemAllocFromPoolAsync */
    RANGE_POOL_IMPORT, /* cuMemPoolImportPointer */
    RANGE_MANAGED,     /* cuMemAllocManaged: the CPU may use it */
    RANGE_HOST,        /* cuMemHostAlloc: the CPU may use it */
    RANGE_REGISTERED,  /* cuMemHostRegister: has a device address of its own */
};

/* A physical allocation: a memfd, whose last page describes it. */
struct backing {
    int fd;
    int refs;
    int device;
    size_t size;
    size_t charged; /* of the device's memory, by this process */
    CUmemAllocationProp prop;
};

/*
 * A range of device addresses that has memory. The addresses are reserved without any access, so
 * that a CPU load or store faults, as on hardware; the stand-in reaches the memory through
 * `shadow`.
 */
struct range {
    LIST_ENTRY(range) link;
    enum range_kind kind;
    int refs; /* 1 for being listed, and 1 for each operation that uses it now */
    bool is_listed;
    CUdeviceptr base;
    size_t size;
    char *shadow;
    bool owns_shadow, owns_addresses;
    CUmemAccess_flags access[MAX_DEVICES];
    int device;
    struct context *context; /* NULL: no context's */
    uint64_t buffer_id;
    struct backing *backing;
    struct vmm_handle *handle;       /* VMM */
    struct reservation *reservation; /* VMM */
    struct pool *pool;               /* pools */
    size_t pool_offset;              /* pools */
    bool is_freeing;                 /* pools: cuMemFreeAsync was called */
    int share;                       /* the machine's entry once shared, or -1 */
    uint64_t share_id;
    int n_opens;         /* 1, or more of RANGE_IPC */
    void *host;          /* HOST, REGISTERED: the CPU's address */
    bool is_read_only;   /* REGISTERED */
    unsigned long inode; /* REGISTERED: of the file that was mapped there; 0: none */
};
LIST_HEAD(range_list, range);

/* -- streams and events ------------------------------------------------------------------------ */

struct event {
    LIST_ENTRY(event) link;
    struct context *context;
    unsigned flags;
    bool is_destroyed;
    struct stream *captured_by; /* the last record was part of a capture */
    struct event_state *state;  /* own_state, or the machine's */
    struct event_state {
        _Atomic uint64_t recorded;  /* how often cuEventRecord was called */
        _Atomic uint64_t completed; /* the greatest of those records that was reached */
        _Atomic uint64_t recorder;  /* id of a process */
    } own_state;
    int slot; /* the machine's, or -1 */
};

struct op {
    STAILQ_ENTRY(op) link;
    enum op_kind {
        OP_COPY,
        OP_FILL,
        OP_HOST_FUNCTION,
        OP_KERNEL,
        OP_WAIT_VALUE,
        OP_WRITE_VALUE,
        OP_RECORD,
        OP_WAIT_EVENT,
        OP_WAIT_STREAM,
        OP_FREE,
    } kind;
    CUdeviceptr dst, src; /* device addresses, or 0 where the host's is used */
    void *host_dst;
    const void *host_src;
    void *staged; /* copy of a pageable source */
    size_t size;
    uint64_t value;
    unsigned width, flags;
    CUhostFn function;
    standin_kernel *kernel;
    void *arg;
    struct event *event;
    struct stream *stream;
    struct range *range;
    struct stream *behind; /* in the hardware queue; NULL: nothing that waits */
    uint64_t behind_upto;
};

struct stream {
    LIST_ENTRY(stream) link;
    struct context *context;
    unsigned flags;
    bool is_destroyed;
    STAILQ_HEAD(, op) queue;
    uint64_t enqueued, completed;
    CUstreamCaptureStatus capture;
    CUstreamCaptureMode capture_mode;
    pthread_t capturer;
    pthread_cond_t wake;
};

/* -- the process ------------------------------------------------------------------------------- */

struct state {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_initialised, is_forked;
    bool has_one_queue, is_lazy; /* as the environment says in cuInit */
    int n_devices;
    int visible[MAX_DEVICES]; /* the machine's ordinal of each device */
    uint64_t last_id;         /* of contexts */
    uint64_t last_buffer;
    struct context *primary[MAX_DEVICES];
    int n_primary[MAX_DEVICES];
    struct range_list ranges;
    LIST_HEAD(, context) contexts;
    LIST_HEAD(, stream) streams;
    LIST_HEAD(, event) events;
    LIST_HEAD(, reservation) reservations;
    LIST_HEAD(, vmm_handle) handles;
    LIST_HEAD(, pool) pools;
    int n_capturing;
};
extern struct state state;

/* -- entry of each call (enter.c) -------------------------------------------------------------- */

struct call {
    bool is_locked;
    struct context *context; /* the current one, for calls that need one */
};

CUresult call_enter(struct call *call, enum call_id id);
void call_leave(struct call *call);

/* First statement of each driver function. */
#define ENTER(name)                                                                                \
    struct call call __attribute__((cleanup(call_leave))) = {.is_locked = false};                  \
    CUresult entered = call_enter(&call, CALL_##name);                                             \
    if (entered != CUDA_SUCCESS)                                                                   \
    return entered

#define CHECK_DEVICE(device)                                                                       \
    if (!device_is_valid(device))                                                                  \
    return CUDA_ERROR_INVALID_DEVICE

/* After ENTER(), in a call about a stream: the stream, s. */
#define FIND_STREAM(handle)                                                                        \
    struct stream *s = NULL;                                                                       \
    CUresult found = stream_of(&call, handle, &s);                                                 \
    if (found != CUDA_SUCCESS)                                                                     \
    return found

/* Wait until something may have changed, other processes' doing included. The lock is given up. */
void wait_change(void);
void signal_change(void);
extern atomic_bool waits_are_stuck;
void configure_failures(const char *text);

/* A host function or a kernel runs on this thread. */
extern _Thread_local bool in_callback;
extern _Thread_local CUstreamCaptureMode thread_capture_mode;

/* -- contexts (context.c) ---------------------------------------------------------------------- */

struct context *context_current(void);
void context_poison(struct context *context, CUresult code);
/* Ends all work of a context, and frees what belongs to it. */
void context_destroy(struct context *context);
bool device_is_valid(CUdevice device);
int device_attribute(CUdevice_attribute attribute);
/* Can this device use memory of that one? */
bool device_reaches(int device, int other);

/* -- memory (memory.c) ------------------------------------------------------------------------- */

struct backing *backing_ref(struct backing *backing);
void backing_unref(struct backing *backing);

/* Reserves device addresses: no CPU access. 0: none left. */
CUdeviceptr addresses_reserve(size_t size, size_t alignment);
void addresses_free(CUdeviceptr base, size_t size);

/* A listed range at `base` (0: reserve addresses) for memory of the descriptor at the offset. */
struct range *range_new(enum range_kind kind, CUdeviceptr base, size_t size, int fd, size_t offset);
/* Takes the range off the list. Running work that uses it keeps it, and counts as an error. */
void range_remove(struct range *range);
struct range *range_find(CUdeviceptr address);
/* The range at an address, pinned; NULL: the device may not access it so. */
struct range *range_pin(CUdeviceptr address, const struct context *context, bool is_write);
void range_unpin(struct range *range);
/* Waits for the work of the context, then removes the range at the address. */
CUresult range_free(struct context *context, CUdeviceptr address);

/* -- streams (stream.c) ------------------------------------------------------------------------ */

struct stream *stream_new(struct context *context, unsigned flags);
/* Ends its thread, once the work that it was given is done. */
void stream_end(struct stream *stream);
/* The stream of a handle, NULL included. */
CUresult stream_of(const struct call *call, CUstream handle, struct stream **ret);
/* Takes the operation over; the default streams' implicit order is added. */
CUresult stream_enqueue(struct stream *stream, struct op *op);
struct op *op_new(enum op_kind kind);
/* Waits until the work up to now is done. */
CUresult stream_drain(struct stream *stream);
CUresult context_drain(struct context *context);
/* Refuses what may not be done to a stream under capture, and invalidates the capture. */
CUresult capture_refuse(struct stream *stream, CUresult code);
/* Runs one operation, in execute.c; lock held, may be given up meanwhile. */
void op_run(struct stream *stream, struct op *op);
void op_free(struct op *op);

/* -- events (event.c) -------------------------------------------------------------------------- */

bool event_is_reached(const struct event *event, uint64_t record);
void event_reach(struct event *event, uint64_t record);

/* -- pools (pool.c) ---------------------------------------------------------------------------- */

/* The end of a pool's allocation: its place is free again. */
void pool_give_back(struct range *range);
CUmemAccess_flags pool_access(const struct pool *pool, int device);

/* -- legacy IPC (ipc.c) ------------------------------------------------------------------------ */

/* The exporter frees a shared range. */
void share_end(struct range *range);
/* An importer uses a range: counts it if the exporter has ended. */
void share_check_use(const struct range *range);

#endif
