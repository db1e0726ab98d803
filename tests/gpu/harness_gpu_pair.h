/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_GPU_PAIR_H
#define DLX_TESTS_HARNESS_GPU_PAIR_H

/* A publisher and a subscriber of one process with a stream each, and tensors that are published
 * while the publisher's stream is held. */

#include "tests/gpu/harness_gpu_stream.h"

#if DLX_TEST_HAS_GPU

/* Elements of each tensor. */
#define DLX_TEST_GPU_PAIR_N 16

struct dlx_test_gpu_pair {
    struct dlx_test_gpu_end x;
    CUstream from, to; /* of the publisher, and of the subscriber */
    CUdeviceptr copy;  /* zeros, of the size of a tensor */
};
struct dlx_test_gpu_pair dlx_test_gpu_pair_new(void);
void dlx_test_gpu_pair_end(struct dlx_test_gpu_pair *pair);

/* A tensor that `stream` fills with 7, behind the gate (unless NULL) and work of `work_ns`, is
 * published at once. */
void dlx_test_gpu_publish_this(struct dlx_publisher *p, DLManagedTensorVersioned *t,
                               CUstream stream, struct dlx_test_gpu_gate *gate, uint64_t work_ns);
/* The same, of a new tensor. It is made before, since that waits for the device. */
void dlx_test_gpu_publish_behind(struct dlx_publisher *p, CUstream stream,
                                 struct dlx_test_gpu_gate *gate, uint64_t work_ns);

/* The tensor of the next message, for the stream. */
DLManagedTensorVersioned *dlx_test_gpu_take_on(struct dlx_test_gpu_end *x, CUstream stream);

#endif

#endif
