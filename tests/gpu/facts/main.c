/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/facts/facts.h"

#if DLX_TEST_HAS_GPU

/* The files' questions are asked in the order in which mk/tests.mk links them. */
int main(void)
{
    TCase *tc = dlx_test_gpu_case("facts");
    tcase_set_timeout(tc, 40);
    return dlx_test_run_case(tc);
}

#else
DLX_TEST_GPU_SKIP_MAIN("the tests for GPUs were not built")
#endif
