/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_GPU_STREAM_H
#define DLX_TESTS_HARNESS_GPU_STREAM_H

/* Publishers and subscribers of tensors on GPUs of the stand-in driver, over a daemon. */

#include "tests/gpu/harness_gpu_machine.h"

#if DLX_TEST_HAS_GPU

#include "tests/harness/stream.h"
#include <semaphore.h>

/* A test case whose tests have a daemon and a machine with two GPUs each. */
TCase *dlx_test_gpu_stream_case(const char *name);

/* One process: it has a context of a device, and either end of topic gpu/a, or both; and perhaps a
 * peer with the other end. */
struct dlx_test_gpu_end {
    struct dlx_client *c;
    struct dlx_publisher *p;
    struct dlx_subscription *s;
    int device;
    struct dlx_test_gpu_peer peer;
    bool is_awaited; /* by the peer, which publishes: it ends after this end, when it is told */
};

struct dlx_test_gpu_end dlx_test_gpu_publisher(const struct dlx_publisher_args *args);
/* The same, and a subscription of its own. */
struct dlx_test_gpu_end dlx_test_gpu_both(const struct dlx_publisher_args *args);
/* The same as the first, with a peer of this role; returns when the peer has subscribed. */
struct dlx_test_gpu_end dlx_test_gpu_publish_to(void (*role)(int sock),
                                                const struct dlx_publisher_args *args);
/* In a peer: subscribe, and say so. With a history or a NULL of that, after the test's word. */
struct dlx_test_gpu_end dlx_test_gpu_subscribe(int sock, const struct dlx_subscribe_args *args);
struct dlx_test_gpu_end dlx_test_gpu_subscribe_on(int sock, int device,
                                                  const struct dlx_subscribe_args *args);
/* A process that subscribes, whatever others do. */
struct dlx_test_gpu_end dlx_test_gpu_subscriber(const struct dlx_subscribe_args *args);
/* Subscribe to a peer of this role: it is told, and its word that it has published awaited. */
struct dlx_test_gpu_end dlx_test_gpu_subscribe_to(void (*role)(int sock),
                                                  const struct dlx_subscribe_args *args);
/* The first tensor of the next message. */
DLManagedTensorVersioned *dlx_test_gpu_take_tensor(struct dlx_test_gpu_end *end);
/* Tensor `i` of the next message has n elements of this value. */
void dlx_test_gpu_expect(struct dlx_test_gpu_end *end, uint32_t i, int64_t n, uint32_t value);
/* A role: subscribe, and expect one tensor of 16 sevens. */
void dlx_test_gpu_expect_sevens(int sock);
/* A publisher's peer is joined first, unless it was joined or killed. Nothing of the driver may be
 * left then. */
void dlx_test_gpu_end(struct dlx_test_gpu_end *end);
#define auto_gpu_end DLX_TEST_AUTO(dlx_test_gpu_end) struct dlx_test_gpu_end

/* Of dlx_alloc(): n elements of uint32 on device 0, as they come or all of this value. */
struct dlx_tensor_spec dlx_test_gpu_spec(const int64_t *shape, int32_t ndim, DLDevice device);
DLManagedTensorVersioned *dlx_test_gpu_alloc_empty(struct dlx_publisher *p, int64_t n);
DLManagedTensorVersioned *dlx_test_gpu_alloc(struct dlx_publisher *p, int64_t n, uint32_t value);

/* A tensor of uint32, all of this value, so many bytes into an allocation of its own on device
 * 0. */
DLManagedTensorVersioned *dlx_test_gpu_tensor(uint64_t offset, int64_t rows, int64_t columns,
                                              uint32_t value);
/* A tensor without memory of its own: in that of another one, each `step` elements; and at an
 * address. */
DLManagedTensorVersioned *dlx_test_gpu_view(const DLManagedTensorVersioned *of, int64_t rows,
                                            int64_t columns, int64_t step);
DLManagedTensorVersioned *dlx_test_gpu_tensor_at(CUdeviceptr at, int64_t rows, int64_t columns);
static inline CUdeviceptr dlx_test_gpu_address(const DLManagedTensorVersioned *t)
{
    return (CUdeviceptr)(uintptr_t)t->dl_tensor.data;
}
/* How many of them were deleted; and wait, as a publisher, until so many were. */
uint32_t dlx_test_gpu_n_deleted(void);
void dlx_test_gpu_wait_deleted(struct dlx_test_gpu_end *end, uint32_t n);

/* By a kernel: the first `n` elements of a tensor have this value, strides aside. */
void dlx_test_gpu_check(const DLManagedTensorVersioned *tensor, int64_t n, uint32_t value);

/*
 * Holds a stream: work that is enqueued after dlx_test_gpu_gate_shut() begins when the gate is
 * opened, by any thread and at any time. One stream each, and each gate is opened.
 */
struct dlx_test_gpu_gate {
    sem_t open;
};
void dlx_test_gpu_gate_shut(struct dlx_test_gpu_gate *gate, CUstream stream);
void dlx_test_gpu_gate_open(struct dlx_test_gpu_gate *gate);

/* A stream that does not wait for the default one, and ends with the process. */
CUstream dlx_test_gpu_stream(void);
/* Wait until the stream has done its work: fails if it does not, soon. */
void dlx_test_gpu_sync(CUstream stream);
struct dlx_subscription_stats dlx_test_gpu_stats(const struct dlx_test_gpu_end *end);

/* The subscription holds so many messages, soon. */
void dlx_test_gpu_wait_held(struct dlx_subscription *s, uint32_t n);

/* For roles: which variant of the test it is. */
extern int dlx_test_gpu_variant;

/* Wait until the publisher keeps nothing only because the GPU still writes it. */
void dlx_test_gpu_wait_written(struct dlx_publisher *p);

/* A publisher that dies now leaves the `n` messages of gpu/a whole. A later one may be ready before
 * an earlier one. */
void dlx_test_gpu_wait_ready(const struct dlx_test_gpu_end *x, int n);

/* A publisher and a subscriber of one process with a stream each, and tensors that are published
 * while the publisher's stream is held. */

/* Elements of each tensor. */
#define DLX_TEST_GPU_PAIR_N 16

struct dlx_test_gpu_pair {
    struct dlx_test_gpu_end x;
    CUstream from, to; /* of the publisher, and of the subscriber */
    CUdeviceptr copy;  /* zeros, of the size of a tensor */
};
struct dlx_test_gpu_pair dlx_test_gpu_pair_new(void);
void dlx_test_gpu_pair_end(struct dlx_test_gpu_pair *pair);
#define auto_gpu_pair DLX_TEST_AUTO(dlx_test_gpu_pair_end) struct dlx_test_gpu_pair

/* A tensor that `stream` fills with 7, behind the gate (unless NULL) and work of `work_ns`, is
 * published at once. */
void dlx_test_gpu_publish_this(struct dlx_publisher *p, DLManagedTensorVersioned *t,
                               CUstream stream, struct dlx_test_gpu_gate *gate, uint64_t work_ns);
/* The same, of a new tensor. The tensor is made before, since that waits for the device. */
void dlx_test_gpu_publish_behind(struct dlx_publisher *p, CUstream stream,
                                 struct dlx_test_gpu_gate *gate, uint64_t work_ns);

/* The tensor of the next message, for the stream. */
DLManagedTensorVersioned *dlx_test_gpu_take_on(struct dlx_test_gpu_end *x, CUstream stream);

#endif

#endif
