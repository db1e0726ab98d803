/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_FAIL_H
#define DLX_TESTS_HARNESS_FAIL_H

/*
 * Calls of the C library that fail, one at a time. Programs named *_fails are linked with --wrap
 * (Makefile): the calls of this project's code come by here, and those of Check: no ck_ while calls
 * fail. Calls of other libraries do not. Nothing fails but in a thread that asked for it.
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
    size_t n_more;    /* so many after it fail, too */
    uint64_t for_ns;  /* and those of so long */
    uint64_t until_ns;
    atomic_int error;
    bool was_last_way;          /* `call` has no further errors */
    _Atomic(const char *) call; /* the one that failed, NULL: none yet; any thread may ask */
};

enum { DLX_TEST_FAIL_WAYS = 4 };

/* Of this thread from now on; NULL: no calls fail any more. Another thread may read it after
 * that. Returns what it was before. */
struct dlx_test_fail *dlx_test_fail(struct dlx_test_fail *fail);

/*
 * A story that is told again and again, each time with one call that fails. Whatever fails, the
 * story ends; its error has words, and is none that another's lie or a time limit would be; and
 * this process has the descriptors, the shared mappings, the names in /dev/shm and as many
 * allocations of our code as before.
 */
struct dlx_test_fail_story {
    const char *name;
    /* Returns 0, or the code of what failed. `fail` is for dlx_test_fail() around what may fail,
     * also in another thread; NULL: nothing does. No ck_ in between. */
    int (*tell)(int kind, struct dlx_test_fail *fail);
    int kind;
    size_t n_calls;    /* at least so many calls fail */
    size_t n_errors;   /* at least so many tellings end with an error */
    const char *words; /* that each error has; NULL: any */
    bool in_child;     /* it needs a process of its own */
};
void dlx_test_fail_each(const struct dlx_test_fail_story *story);

/* For stories, also while calls fail: note a broken promise; note the words of this thread's error,
 * if `code` is one, and return it. */
void dlx_test_fail_expect(bool good, const char *what);
int dlx_test_fail_say(int code);
/* From now on nothing fails, in no thread. Returns the call that has, or NULL. */
const char *dlx_test_fail_stop(struct dlx_test_fail *fail);

/* In a function that returns codes: what fails ends it. */
#define DLX_TEST_TRY(call)                                                                         \
    do {                                                                                           \
        int r_ = (call);                                                                           \
        if (r_ < 0)                                                                                \
            return r_;                                                                             \
    } while (0)

#endif
