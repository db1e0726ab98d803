/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_GPU_MESSAGE_H
#define DLX_GPU_MESSAGE_H

/* What a received message has if tensors of it are on GPUs. */

#include "client/message/message.h"
#include "gpu/imports.h"
#include <pthread.h>

struct dlx_gpu_range;

/* An allocation that tensors of a message are in. */
struct dlx_gpu_allocation {
    uint8_t bytes[DLX_SHM_ALLOCATION_SIZE]; /* a copy */
    struct dlx_gpu_handle handle;           /* all zero: this version cannot open it */
    int32_t device;                         /* that uses it, if it is to be opened in a range */
    struct dlx_gpu_import *import;
};

struct dlx_gpu_place {
    uint32_t allocation; /* 1: the first; 0: none */
    uint64_t offset;
};

struct dlx_message_gpu {
    pthread_mutex_t lock; /* for `handle` and `import` of all of them, `range` and `wait` */
    struct dlx_gpu_publisher publisher;
    dlx_atomic_u32 *ready;       /* in the manifest */
    int64_t timeout_ns;          /* how long the CPU waits for that */
    DLDevice device;             /* that tensors are for; zeros: the one that each lies on */
    struct dlx_client *client;   /* to ask for descriptors and words; NULL: there are none */
    struct dlx_gpu_range *range; /* that it was opened in; NULL: in none */
    struct dlx_gpu_wait *wait;   /* of the stream that waited last; NULL: none has */
    void *wait_stream;
    uint32_t word; /* what its publisher's stream writes; 0: nothing, or a stream waits for it */
    struct dlx_gpu_place *places; /* [n_tensors] */
    uint32_t n_allocations;
    struct dlx_gpu_allocation allocations[];
};

#endif
