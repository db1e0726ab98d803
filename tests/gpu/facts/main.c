/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/facts/facts.h"
#include "tests/harness/run.h"

#if DLX_TEST_HAS_GPU

/* What may upset the device comes last. */
int main(void)
{
    Suite *suite = suite_create("gpu_facts");
    TCase *tc = dlx_test_gpu_case("facts");
    tcase_set_timeout(tc, 40);
    facts_add_memory(tc);
    facts_add_capture(tc);
    facts_add_lifetimes(tc);
    facts_add_order(tc);
    facts_add_legacy(tc);
    suite_add_tcase(suite, tc);
    return dlx_test_run(suite);
}

#else

int main(void)
{
    (void)printf("SKIP: no cuda.h: the tests for GPUs were not built\n");
    return 77;
}

#endif
