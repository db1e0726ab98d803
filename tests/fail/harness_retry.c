/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fail/harness_retry.h"
#include "client/control/client.h"
#include "common/error.h"
#include <stdio.h>

static bool gives_up;
static int failed_with;
static char failed_text[256];

int dlx_test_retry_note(int code, const char *text)
{
    if (failed_with == 0)
        (void)snprintf(failed_text, sizeof failed_text, "%s", text);
    failed_with = failed_with ? failed_with : code;
    return gives_up ? dlx__fail(code, "%s", failed_text) : 0;
}

int dlx_test_retry_first(void)
{
    return failed_with ? dlx__fail(failed_with, "%s", failed_text) : 0;
}

int dlx_test_retry_connect(struct dlx_test_cast *x)
{
    failed_with = 0;
    DLX_TEST_UNTROUBLED(dlx_test_server_connect(&x->c[0]));
    DLX_TEST_UNTROUBLED(dlx_test_server_connect(&x->c[1]));
    return 0;
}

bool dlx_test_retry_has_failed(const struct dlx_test_cast *x)
{
    return x->fail && x->fail->call;
}

uint64_t dlx_test_retry_n_lost(const struct dlx_test_cast *x)
{
    return atomic_load(&x->c[0]->epoch) + atomic_load(&x->c[1]->epoch);
}

int dlx_test_retry_tell(dlx_test_cast_play play, int kind, struct dlx_test_fail *fail)
{
    gives_up = kind == DLX_TEST_RETRY_GIVES_UP;
    return dlx_test_server_tell(
        play, kind == DLX_TEST_RETRY_DAEMON ? DLX_TEST_DAEMON_FAILS : DLX_TEST_LIBRARY_FAILS, fail);
}
