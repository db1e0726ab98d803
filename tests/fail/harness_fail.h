/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_FAIL_H
#define DLX_TESTS_HARNESS_FAIL_H

/*
 * Calls of the C library that fail, one at a time. Programs named *_fails are linked with --wrap
 * (Makefile): what our own code calls in them comes by here, and what Check calls: no ck_ while
 * calls fail. Those of other libraries do not. Nothing fails but in a thread that asked for it.
 */

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dlx_test_fail {
    atomic_size_t at; /* which call fails, from 1; 0: none, which any thread may say */
    size_t way;       /* and how: each has up to DLX_TEST_FAIL_WAYS errors */
    size_t n_calls;   /* so far */
    const char *only; /* no other call is counted, or fails; NULL: all are */
    uint64_t for_ns;  /* those after it fail, too, for so long; 0: it alone */
    uint64_t until_ns;
    atomic_int error;
    _Atomic(const char *) call; /* the one that failed, NULL: none yet; any thread may ask */
};

enum { DLX_TEST_FAIL_WAYS = 4 };

/* Of this thread from now on; NULL: no calls fail any more. Another thread may read it after
 * that. */
void dlx_test_fail(struct dlx_test_fail *fail);

/*
 * The next point: all ways of one call, then the next call. False: what was told last made fewer
 * calls, so that was all. Begins with all zero.
 */
bool dlx_test_fail_next(struct dlx_test_fail *fail);

/* In a function that returns codes: what fails ends it. */
#define DLX_TEST_TRY(call)                                                                         \
    do {                                                                                           \
        int r_ = (call);                                                                           \
        if (r_ < 0)                                                                                \
            return r_;                                                                             \
    } while (0)

#endif
