/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/harness_gpu_pair.h"

#if DLX_TEST_HAS_GPU

#define N DLX_TEST_GPU_PAIR_N

void dlx_test_gpu_publish_this(struct dlx_publisher *p, DLManagedTensorVersioned *t,
                               CUstream stream, struct dlx_test_gpu_gate *gate, uint64_t work_ns)
{
    struct dlx_publish_args args = {.size = sizeof args, .stream = stream};
    if (gate)
        dlx_test_gpu_gate_shut(gate, stream);
    if (work_ns > 0)
        dlx_test_gpu_spin(stream, 0, work_ns);
    CU_OK(cu.cuMemsetD32Async(dlx_test_gpu_address(t), 7, N, stream));
    ok(dlx_publish(p, t, &args));
}

void dlx_test_gpu_publish_behind(struct dlx_publisher *p, CUstream stream,
                                 struct dlx_test_gpu_gate *gate, uint64_t work_ns)
{
    dlx_test_gpu_publish_this(p, dlx_test_gpu_alloc(p, N, 0), stream, gate, work_ns);
}

DLManagedTensorVersioned *dlx_test_gpu_take_on(struct dlx_test_gpu_end *x, CUstream stream)
{
    DLManagedTensorVersioned *t;
    struct dlx_message *m = dlx_test_gpu_take(x);
    ok(dlx_message_tensor_on(m, 0, stream, &t));
    dlx_message_unref(m);
    return t;
}

struct dlx_test_gpu_pair dlx_test_gpu_pair_new(void)
{
    struct dlx_test_gpu_pair pair = {.x = dlx_test_gpu_both(NULL)};
    pair.from = dlx_test_gpu_stream();
    pair.to = dlx_test_gpu_stream();
    CU_OK(cu.cuMemAlloc(&pair.copy, N * sizeof(uint32_t)));
    CU_OK(cu.cuMemsetD32(pair.copy, 0, N));
    return pair;
}

void dlx_test_gpu_pair_end(struct dlx_test_gpu_pair *pair)
{
    CU_OK(cu.cuMemFree(pair->copy));
    CU_OK(cu.cuStreamDestroy(pair->from));
    CU_OK(cu.cuStreamDestroy(pair->to));
    dlx_test_gpu_end(&pair->x);
}

#endif
