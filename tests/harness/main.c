/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/stream.h"

/* For programs without a main(): each of their tests has a daemon. */
int main(void)
{
    return dlx_test_run_case(dlx_test_stream_case(program_invocation_short_name));
}
