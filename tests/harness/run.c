/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/run.h"

int dlx_test_run(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
