/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Calls that fail once: what tests/fail/faults found. The functions of the C library that are to
 * fail are those of this program, which the library and the daemon's code in it call, too.
 */

#include "client/base/limits.h"
#include "tests/harness/stream.h"
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* How many of the next calls fail. */
static _Atomic int madvise_fails, recvmsg_fails, recv_fails;

static bool fails_now(_Atomic int *n, int error)
{
    if (atomic_load(n) == 0)
        return false;
    atomic_fetch_sub(n, 1);
    errno = error;
    return true;
}

int madvise(void *start, size_t size, int advice)
{
    if (advice == MADV_DONTFORK && fails_now(&madvise_fails, ENOMEM))
        return -1;
    return (int)syscall(SYS_madvise, start, size, advice);
}

ssize_t recvmsg(int fd, struct msghdr *msg, int flags)
{
    return fails_now(&recvmsg_fails, ENOBUFS) ? -1 : syscall(SYS_recvmsg, fd, msg, flags);
}

ssize_t recv(int fd, void *buffer, size_t size, int flags)
{
    return fails_now(&recv_fails, ENOMEM)
               ? -1
               : syscall(SYS_recvfrom, fd, buffer, size, flags, NULL, NULL);
}

/* The sanitizers' allocators are not to be replaced. */
#ifndef DLX_SANITIZE
static _Atomic int malloc_fails, malloc_spared; /* after so many that do not */

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);

static bool malloc_fails_now(void)
{
    if (atomic_load(&malloc_fails) > 0 && atomic_load(&malloc_spared) > 0) {
        atomic_fetch_sub(&malloc_spared, 1);
        return false;
    }
    return fails_now(&malloc_fails, ENOMEM);
}

__attribute__((visibility("default"))) void *malloc(size_t size)
{
    return malloc_fails_now() ? NULL : __libc_malloc(size);
}

__attribute__((visibility("default"))) void *calloc(size_t n, size_t size)
{
    return malloc_fails_now() ? NULL : __libc_calloc(n, size);
}
#endif

static void take_and_check(struct dlx_subscription *s, int64_t n, int64_t value)
{
    struct dlx_message *m = dlx_test_stream_next(s);
    dlx_test_stream_check(m, n, value);
    ck_assert_uint_eq(dlx_message_gap(m), 0);
    dlx_message_unref(m);
}

TEST(a_link_that_there_is_no_memory_for_is_picked_up_later)
{
    struct dlx_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    struct dlx_publisher_args pa = {.size = sizeof pa, .depth = 3};
    struct dlx_publisher *p = dlx_test_stream_publisher(c, "test/a", &pa);
    struct dlx_subscription *s = dlx_test_stream_subscribe(other, "test/a", NULL);
    madvise_fails = 2; /* the page of the link; it is looked for twice */
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    ck_assert_int_eq(madvise_fails, 0);
    for (int64_t i = 0; i < 100; i++) {
        dlx_test_stream_publish(p, 64, i);
        take_and_check(s, 64, i);
    }
    dlx_subscription_unref(s);
    dlx_publisher_unref(p);
    dlx_client_unref(other);
    dlx_client_unref(c);
}

TEST(a_publisher_may_end_with_a_link_that_it_had_no_memory_for)
{
    struct dlx_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    struct dlx_publisher *p = dlx_test_stream_publisher(c, "test/a", NULL);
    struct dlx_subscription *s = dlx_test_stream_subscribe(other, "test/a", NULL);
    madvise_fails = 1000;
    fails(dlx_publisher_wait(p, 1, SECOND / 20), DLX_E_TIMEOUT, "0 of 1");
    dlx_publisher_unref(p);
    madvise_fails = 0;
    dlx_subscription_unref(s);
    dlx_client_unref(other);
    dlx_client_unref(c);
}

/* The packet is still in the socket: a connection is not given up, nor what depends on it. */
TEST(a_packet_that_the_kernel_had_no_memory_for_is_read_later)
{
    struct dlx_client *c = dlx_test_stream_connect();
    recvmsg_fails = 3;
    (void)dlx_test_stream_daemon_info(c);
    ck_assert_int_eq(recvmsg_fails, 0);
    dlx_client_unref(c);
}

TEST(a_bell_that_could_not_be_read_is_read_later)
{
    struct dlx_test_pair x = dlx_test_pair_make(NULL, NULL);
    struct dlx_message *m = NULL;
    fails(dlx_take(x.s, SECOND / 100, &m), DLX_E_TIMEOUT, "no message");
    dlx_test_stream_publish(x.p, 64, 1); /* rings: it has slept */
    take_and_check(x.s, 64, 1);
    recv_fails = 1;
    for (int64_t i = 2; i < 200; i++) { /* bells are read once in some */
        fails(dlx_take(x.s, 1, &m), DLX_E_TIMEOUT, "no message");
        dlx_test_stream_publish(x.p, 64, i);
        take_and_check(x.s, 64, i);
    }
    ck_assert_int_eq(recv_fails, 0);
    dlx_test_pair_end(&x);
}

#ifndef DLX_SANITIZE
/* Then what is above is not called. */
static bool has_other_malloc(void)
{
    if (dlx_test_valgrind())
        puts("SKIP: valgrind has a malloc() of its own");
    return dlx_test_valgrind();
}

START_TEST(a_message_that_there_is_no_memory_for_is_taken_later)
{
    if (has_other_malloc())
        return;
    struct dlx_test_pair x = dlx_test_pair_make(NULL, NULL);
    struct dlx_message *m = NULL;
    dlx_test_stream_publish(x.p, 64, 1);
    dlx_test_stream_publish(x.p, 64, 2);
    malloc_fails = 1000;
    int r = dlx_take(x.s, SECOND, &m);
    malloc_fails = 0;
    ck_assert_int_eq(r, DLX_E_NO_MEMORY);
    ok(dlx_take(x.s, SECOND, &m));
    dlx_test_stream_check(m, 64, 1);
    dlx_message_unref(m);
    take_and_check(x.s, 64, 2);
    dlx_test_pair_end(&x);
}
END_TEST

START_TEST(without_memory_a_client_can_bear_as_many_links)
{
    if (has_other_malloc())
        return;
    uint32_t n = dlx__limits_max_links();
    for (int k = 0; k < 4; k++) {
        malloc_spared = k;
        malloc_fails = 1000;
        uint32_t less = dlx__limits_max_links();
        malloc_fails = malloc_spared = 0;
        ck_assert_uint_eq(less, n);
    }
}
END_TEST
#endif

int main(void)
{
    TCase *tcase = dlx_test_stream_case("faults");
#ifndef DLX_SANITIZE
    tcase_add_test(tcase, a_message_that_there_is_no_memory_for_is_taken_later);
    tcase_add_test(tcase, without_memory_a_client_can_bear_as_many_links);
#endif
    return dlx_test_run_case(tcase);
}
