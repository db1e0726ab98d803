/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_STANDIN_H
#define DLX_STANDIN_H

/*
 * The requests of a test to the stand-in driver. The functions are exported by the stand-in's
 * libcuda.so.1; tests/gpu/harness_gpu.h resolves them. tests/gpu/standin/README.md explains the
 * model.
 *
 * Environment, read by cuInit:
 *   STANDIN_MACHINE        file that the processes of one "machine" share; else each is alone
 *   STANDIN_DEVICES        number of devices (1); read by the process that makes the machine, so:
 *   STANDIN_UUIDS            their UUIDs, "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx,..."
 *   STANDIN_MEMORY           bytes of each device (1 GiB)
 *   STANDIN_EVENTS           interprocess events of the machine (64)
 *   STANDIN_FAIL           "name:k:times:code,...": standin_fail() for each; name "*": any call
 *   CUDA_VISIBLE_DEVICES   as with the driver: ordinals or UUIDs
 *   CUDA_DEVICE_MAX_CONNECTIONS   1: all streams of a context share one hardware queue
 *   CUDA_MODULE_LOADING    unless EAGER, the first launch of a kernel waits for all work
 */

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Counts of one process. The first group is what exists now; the second only grows. */
#define STANDIN_COUNTERS(X)                                                                        \
    X(CONTEXTS) /* primary contexts, and others */                                                 \
    X(STREAMS)  /* created and not destroyed; a context's default streams do not count */          \
    X(EVENTS)                                                                                      \
    X(ALLOCATIONS)      /* of cuMemAlloc, cuMemAllocManaged and pools */                           \
    X(HOST_ALLOCATIONS) /* of cuMemHostAlloc */                                                    \
    X(REGISTERED)       /* cuMemHostRegister */                                                    \
    X(HANDLES)          /* VMM handles, each reference of them */                                  \
    X(RESERVATIONS)                                                                                \
    X(MAPPINGS)                                                                                    \
    X(IPC_MAPPINGS) /* legacy handles that are open, each open counted */                          \
    X(POOLS)        /* created and imported */                                                     \
    X(POOL_IMPORTS) /* pointers imported from pools */                                             \
    X(CALLS_MADE)                                                                                  \
    X(SYNC_CALLS) /* calls that wait for the device */                                             \
    X(CONTEXTS_MADE)                                                                               \
    X(FDS_EXPORTED)                                                                                \
    X(FREED_WHILE_OPEN)    /* memory freed by its exporter while another process had it open */    \
    X(USED_AFTER_REVOKE)   /* uses of imported memory whose exporter had freed it, or had died */  \
    X(UNMAPPED_IN_USE)     /* memory unmapped under running work */                                \
    X(UNMAPPED_REGISTERED) /* registered memory unmapped before cuMemHostUnregister() */           \
    X(CALLS_IN_CALLBACK)   /* CUDA calls made by a function of cuLaunchHostFunc */                 \
    X(CALLS_AFTER_FORK)    /* calls in a child of a process that had called cuInit */              \
    X(CAPTURES_BROKEN)     /* captures that an illegal call invalidated */

enum standin_counter {
#define X(name) STANDIN_##name,
    STANDIN_COUNTERS(X)
#undef X
        STANDIN_N_COUNTERS
};

/* The last of the counters that say what exists. */
#define STANDIN_LAST_LIVE STANDIN_POOL_IMPORTS

typedef void standin_kernel(void *arg);

/*
 * The control functions, as X(return type, name, parameters).
 *
 * count         a counter of this process
 * count_of      the same of another process of the machine, alive or dead; 0 if it never was there
 * count_name    a counter's name
 * calls         how often this process made the call of that name
 * contexts_made how many contexts this process made on a device, by the machine's ordinal
 * open_fds      how many of the process's descriptors are memory of the stand-in, its own excluded
 * fail          the calls number k to k + times - 1 from now, of that name (NULL: of any), return
 *               code; up to 16 at once
 * fail_here     the call number k from now that the calling thread makes returns code: what other
 *               threads call meanwhile does not count
 * fail_clear    forget them; returns how many calls have failed so since the last time
 * delay         each call of that name takes that long
 * stick_waits   as long as it is set, no stream that waits for a word goes on
 * part_peers    as long as it is set, no device can use memory of another one
 * set_attribute what cuDeviceGetAttribute says from now on
 * poison        what an illegal address does: a sticky error of the current context
 * launch        enqueue a kernel: a function that runs on the stream's thread, may load and store
 * load, store   in a kernel: device memory, as the CPU sees it, until the kernel ends; NULL: an
 *               illegal address, which has poisoned the context
 */
#define STANDIN_CONTROLS(X)                                                                        \
    X(uint64_t, standin_count, (enum standin_counter counter))                                     \
    X(uint64_t, standin_count_of, (pid_t pid, enum standin_counter counter))                       \
    X(const char *, standin_count_name, (enum standin_counter counter))                            \
    X(uint64_t, standin_calls, (const char *name))                                                 \
    X(uint64_t, standin_contexts_made, (int device))                                               \
    X(int, standin_open_fds, (void))                                                               \
    X(bool, standin_fail, (const char *name, uint64_t k, uint64_t times, CUresult code))           \
    X(bool, standin_fail_here, (const char *name, uint64_t k, CUresult code))                      \
    X(uint64_t, standin_fail_clear, (void))                                                        \
    X(bool, standin_delay, (const char *name, uint64_t ns))                                        \
    X(void, standin_stick_waits, (bool are_stuck))                                                 \
    X(void, standin_part_peers, (bool are_apart))                                                  \
    X(void, standin_set_attribute, (CUdevice_attribute attribute, int value))                      \
    X(CUresult, standin_poison, (CUresult code))                                                   \
    X(CUresult, standin_launch, (CUstream stream, standin_kernel * kernel, void *arg))             \
    X(const void *, standin_load, (CUdeviceptr address, size_t size))                              \
    X(void *, standin_store, (CUdeviceptr address, size_t size))

#define X(type, name, parameters) type name parameters;
STANDIN_CONTROLS(X)
#undef X

#endif
