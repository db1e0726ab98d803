/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_RETRY_H
#define DLX_TESTS_HARNESS_RETRY_H

/* Stories of harness_server.h in which a call that failed is made again, or the story given up. */

#include "tests/fail/harness_server.h"

/* Whose calls fail; of the library, whether an error ends the story. */
enum { DLX_TEST_RETRY_DAEMON, DLX_TEST_RETRY_LIBRARY, DLX_TEST_RETRY_GIVES_UP };
int dlx_test_retry_tell(dlx_test_cast_play play, int kind, struct dlx_test_fail *fail);

/* Keeps the first error, in words. Returns 0, or its code if the story gives up. */
int dlx_test_retry_note(int code, const char *text);
/* The first error, once the story has gone well all the same; 0: none. */
int dlx_test_retry_first(void);
/* Connects both clients, of which e2e_fails.c tells. */
int dlx_test_retry_connect(struct dlx_test_cast *x);

bool dlx_test_retry_has_failed(const struct dlx_test_cast *x);
/* How often both clients lost the daemon. */
uint64_t dlx_test_retry_n_lost(const struct dlx_test_cast *x);

/* In a function that returns codes. Nothing fails twice: what is tried again succeeds. */
#define DLX_TEST_RETRY(call)                                                                       \
    do {                                                                                           \
        int r_ = (call);                                                                           \
        if (r_ < 0 && ((r_ = dlx_test_retry_note(r_, dlx_errmsg())) < 0 || (r_ = (call)) < 0))     \
            return r_;                                                                             \
    } while (0)

/* What e2e_fails.c tells of: no call of the library fails here. */
#define DLX_TEST_UNTROUBLED(call)                                                                  \
    do {                                                                                           \
        struct dlx_test_fail *own_ = dlx_test_fail(NULL);                                          \
        int untroubled_ = (call);                                                                  \
        (void)dlx_test_fail(own_);                                                                 \
        DLX_TEST_TRY(untroubled_);                                                                 \
    } while (0)

#endif
