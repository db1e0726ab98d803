/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_RUN_H
#define DLX_TESTS_HARNESS_RUN_H

/* Tests, and the headers that nearly every test needs: include this, or a harness header that does,
 * instead of them. */
#include "common/error.h"
#include "common/util.h"
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

/* An int that is closed at the end of its block. */
#define DLX_TEST_AUTO(end) __attribute__((cleanup(end), unused)) /* also if only its end matters */
#define auto_fd            DLX_TEST_AUTO(dlx__closep) int

/* The text must have these words. */
#define contains(text, words)                                                                      \
    do {                                                                                           \
        const char *text_ = (text), *words_ = (words);                                             \
        ck_assert_msg(strstr(text_, words_), "\"%s\" lacks \"%s\"", text_, words_);                \
    } while (0)

/* At the end of each turn of a waiting loop: fails if it is too late. */
void dlx_test_before(uint64_t deadline);

/* If `is_so`, says why the test is skipped. */
bool dlx_test_skips(bool is_so, const char *why);

/* TEST(name) { ... } defines a test, and LOOP_TEST() one that runs for each _i of [from, to).
 * dlx_test_run_case() adds all of them to its case, in the order of the file.
 *
 * A program whose tests need different fixtures has several cases: CASE(name) { return ...; }
 * makes one, or says why its tests are skipped and returns NULL; TEST_OF(name, test) { ... } is a
 * test of it, and dlx_test_run_cases() runs all. */
#define TEST(name)                LOOP_TEST(name, 0, 1)
#define LOOP_TEST(name, from, to) DLX_TEST_DEFINE(name, dlx_test_add(&name##_test, from, to))
#define TEST_OF(make, name)       LOOP_TEST_OF(make, name, 0, 1)
#define LOOP_TEST_OF(make, name, from, to)                                                         \
    DLX_TEST_DEFINE(name, dlx_test_add_to(make##_case, &name##_test, from, to))
#define DLX_TEST_DEFINE(name, add)                                                                 \
    static void name##_fn(int _i CK_ATTRIBUTE_UNUSED);                                             \
    __attribute__((constructor)) static void name##_add(void)                                      \
    {                                                                                              \
        static const TTest name##_test = {#name, name##_fn, __FILE__, __LINE__};                   \
        add;                                                                                       \
    }                                                                                              \
    static void name##_fn(int _i CK_ATTRIBUTE_UNUSED)
#define CASE(name) static TCase *name##_case(void)

void dlx_test_add(const TTest *test, int from, int to);
void dlx_test_add_to(TCase *(*make)(void), const TTest *test, int from, int to);

/* Run all tests of the program, those of no other case in this one; returns main's exit status. */
int dlx_test_run_case(TCase *tcase);
/* Add all of them to one of several cases that run the same tests. */
void dlx_test_add_case(Suite *suite, TCase *tcase);

/* Run the tests of each CASE(), the cases in the order of their first tests. */
int dlx_test_run_cases(void);

/* Run the suite and free it; returns main's exit status. */
int dlx_test_run(Suite *suite);

/* The call must succeed: 0. Otherwise the test shows the thread's message, the library's, too. */
#define ok(call)                                                                                   \
    do {                                                                                           \
        int r_ = (call);                                                                           \
        ck_assert_msg(r_ == 0, "%s: %s: %s", #call, dlx__error_text(r_), dlx__error_message());    \
    } while (0)

/* The call must fail with this code, and with this word in its message. */
#define fails(call, code, word)                                                                    \
    do {                                                                                           \
        int r_ = (call);                                                                           \
        ck_assert_msg(r_ == (code), "%s: got %d (%s)", #call, r_, dlx__error_message());           \
        ck_assert_msg(strstr(dlx__error_message(), (word)), "\"%s\" lacks \"%s\"",                 \
                      dlx__error_message(), (word));                                               \
    } while (0)

#endif
