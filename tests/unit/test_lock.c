/* SPDX-License-Identifier: Apache-2.0 */

/* The lock of a connection: one thread at a time, a time-out of the monotonic clock, and who has it
 * already. */

#include "client/base/lock.h"
#include "tests/harness/run.h"

enum { N_THREADS = 4, N_TURNS = 2000 };

static struct dlx_lock lock;

static void setup(void)
{
    ck_assert_int_eq(dlx__lock_init(&lock), 0);
}

/* The result of another thread that waits until `until_ns`, and releases the lock. */
static void *try(void *until_ns)
{
    int e = dlx__lock_until(&lock, *(uint64_t *)until_ns);
    if (e == 0)
        dlx__lock_release(&lock);
    return (void *)(intptr_t)e;
}

static int other_thread(uint64_t until_ns)
{
    pthread_t thread;
    void *e;
    ck_assert_int_eq(pthread_create(&thread, NULL, try, &until_ns), 0);
    ck_assert_int_eq(pthread_join(thread, &e), 0);
    return (int)(intptr_t)e;
}

TEST(a_held_lock_times_out_and_not_before)
{
    ck_assert_int_eq(dlx__lock_until(&lock, UINT64_MAX), 0);
    ck_assert_int_eq(other_thread(0), ETIMEDOUT);
    uint64_t until = dlx__now_ns() + 20000000;
    ck_assert_int_eq(other_thread(until), ETIMEDOUT);
    ck_assert_uint_ge(dlx__now_ns(), until);
    dlx__lock_release(&lock);
    ck_assert_int_eq(other_thread(0), 0);
}

TEST(the_thread_that_has_it_is_told)
{
    ck_assert_int_eq(dlx__lock_until(&lock, UINT64_MAX), 0);
    ck_assert_int_eq(dlx__lock_until(&lock, UINT64_MAX), EDEADLK);
    dlx__lock_release(&lock);
    ck_assert_int_eq(dlx__lock_until(&lock, 0), 0);
}

TEST(a_thread_that_waits_gets_it)
{
    pthread_t thread;
    void *e;
    uint64_t never = UINT64_MAX;
    ck_assert_int_eq(dlx__lock_until(&lock, UINT64_MAX), 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, try, &never), 0);
    dlx__lock_release(&lock);
    ck_assert_int_eq(pthread_join(thread, &e), 0);
    ck_assert_ptr_null(e);
}

static unsigned turns; /* not atomic: the lock guards it */

static void *take_turns(void *data)
{
    (void)data;
    for (int i = 0; i < N_TURNS; i++) {
        while (dlx__lock_until(&lock, i % 2 ? UINT64_MAX : dlx__now_ns() + 100000) != 0)
            ;
        turns++;
        dlx__lock_release(&lock);
    }
    return NULL;
}

TEST(a_lock_is_held_by_one_thread_at_a_time)
{
    pthread_t threads[N_THREADS];
    for (int i = 0; i < N_THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, take_turns, NULL), 0);
    for (int i = 0; i < N_THREADS; i++)
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    ck_assert_uint_eq(turns, N_THREADS * N_TURNS);
}

int main(void)
{
    TCase *tcase = tcase_create("lock");
    tcase_add_checked_fixture(tcase, setup, NULL);
    return dlx_test_run_case(tcase);
}
