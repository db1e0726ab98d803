/* SPDX-License-Identifier: Apache-2.0 */
#include "client/message/gpu_wait.h"
#include "client/message/message.h"
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

/* So often who waits looks whether a publisher has gone. */
#define LOOK_NS UINT64_C(20000000)
/* And so often for words that the kernel does not watch: those beyond its limit, or all but the
 * first where it can watch only one. */
#define POLL_NS UINT64_C(1000000)

/* ---- one word ------------------------------------------------------------------------------ */

/* 0, DLX_GPU_WAITING, or an error code. `gone` was asked before: the publisher may have set the
 * word last. */
static int judge(dlx_atomic_u32 *word, bool gone, uint64_t now, uint64_t deadline)
{
    switch (dlx_load32_acquire(word)) {
    case DLX_GPU_READY:
        return 0;
    case DLX_GPU_PENDING:
        return gone ? DLX_E_PUBLISHER_GONE : now >= deadline ? DLX_E_TIMEOUT : DLX_GPU_WAITING;
    default:
        return DLX_E_DEVICE;
    }
}

static int explain_wait(int r)
{
    switch (r) {
    case DLX_E_DEVICE:
        return dlx__fail(r, "an error of the publisher's GPU ended the work that was to write it");
    case DLX_E_PUBLISHER_GONE:
        return dlx__fail(r, "the publisher was gone before its GPU had written it");
    case DLX_E_TIMEOUT:
        return dlx__fail(r, "the publisher's GPU has not written it within the time of "
                            "dlx_connect_args");
    default:
        return r;
    }
}

int dlx__gpu_wait_ready(dlx_atomic_u32 *word, uint64_t deadline, bool (*is_gone)(const void *),
                        const void *userdata)
{
    for (;;) {
        bool gone = is_gone(userdata);
        uint64_t now = dlx__now_ns();
        int r = judge(word, gone, now, deadline);
        if (r != DLX_GPU_WAITING)
            return explain_wait(r);
        uint64_t left = DLX_MIN(deadline - now, LOOK_NS);
        const struct timespec timeout = {.tv_nsec = (long)left};
        (void)syscall(SYS_futex, word, FUTEX_WAIT, DLX_GPU_PENDING, &timeout, NULL, 0);
    }
}

/* ---- waits of streams ---------------------------------------------------------------------- */

struct dlx_gpu_wait {
    struct dlx_gpu_wait *next;
    atomic_uint refs;   /* the tensor's, and the thread's */
    int over;           /* the result, before it is known */
    _Atomic int result; /* from then on the message may go */
    struct dlx_gpu_wait_args args;
    struct dlx_gpu_gate gate;
};

int dlx__gpu_wait_result(struct dlx_gpu_wait *wait)
{
    return explain_wait(atomic_load_explicit(&wait->result, memory_order_acquire));
}

struct dlx_gpu_wait *dlx__gpu_wait_ref(struct dlx_gpu_wait *wait)
{
    atomic_fetch_add_explicit(&wait->refs, 1, memory_order_relaxed);
    return wait;
}

struct dlx_gpu_wait *dlx__gpu_wait_unref(struct dlx_gpu_wait *wait)
{
    if (wait && atomic_fetch_sub_explicit(&wait->refs, 1, memory_order_acq_rel) == 1)
        free(wait);
    return NULL;
}

void dlx__gpu_wait_settle(struct dlx_gpu_wait *wait)
{
    while (atomic_load_explicit(&wait->result, memory_order_acquire) == DLX_GPU_WAITING)
        (void)poll(NULL, 0, 1);
}

static void note_late(struct dlx_gpu_threads *threads, const struct dlx_gpu_wait *wait)
{
    const struct dlx_subscriber_link *link = wait->args.m->link;
    struct dlx_gpu_late *late = &threads->late;
    (void)pthread_mutex_lock(&threads->lock);
    late->n++;
    late->code = wait->over;
    late->pid = link->pid;
    late->link = link->id;
    late->publisher = link->publisher;
    memcpy(late->topic, link->topic, sizeof late->topic);
    (void)pthread_mutex_unlock(&threads->lock);
}

/* The result first, so that whoever has seen the stream go on finds it. */
static void finish_wait(struct dlx_gpu_threads *threads, struct dlx_gpu_wait *wait)
{
    if (wait->over < 0)
        note_late(threads, wait);
    atomic_store_explicit(&wait->result, wait->over, memory_order_release);
    dlx__gpu_gate_open(&wait->gate);
    (void)dlx__gpu_wait_unref(wait);
}

/* Locked. Takes those that are over off the list, with their results. */
static struct dlx_gpu_wait *take_over(struct dlx_gpu_threads *threads)
{
    struct dlx_gpu_wait *over = NULL, **at = &threads->waits;
    while (*at) {
        struct dlx_gpu_wait *wait = *at;
        bool gone = wait->args.is_gone(wait->args.m);
        wait->over = judge(wait->args.word, gone, dlx__now_ns(), wait->args.deadline);
        if (wait->over == DLX_GPU_WAITING) {
            at = &wait->next;
            continue;
        }
        *at = wait->next;
        wait->next = over;
        over = wait;
    }
    return over;
}

/* ---- the thread's sleep -------------------------------------------------------------------- */

struct sleep {
    dlx_atomic_u32 *words[128]; /* as many as the kernel watches; the first is `changed` */
    uint32_t n;
    uint32_t n_changed;
    uint64_t ns;
};

/* Locked. */
static void plan(struct dlx_gpu_threads *threads, struct sleep *ret)
{
    uint64_t now = dlx__now_ns();
    ret->words[0] = &threads->changed;
    ret->n = 1;
    ret->n_changed = dlx_load32_relaxed(&threads->changed);
    ret->ns = LOOK_NS;
    for (const struct dlx_gpu_wait *wait = threads->waits; wait; wait = wait->next) {
        uint64_t deadline = wait->args.deadline;
        ret->ns = DLX_MIN(ret->ns, deadline - DLX_MIN(deadline, now));
        if (ret->n < DLX_ARRAY_SIZE(ret->words))
            ret->words[ret->n++] = wait->args.word;
        else
            ret->ns = DLX_MIN(ret->ns, POLL_NS);
    }
}

/* Returns false if the kernel cannot watch several words. */
static bool sleep_on_all(const struct sleep *sleep)
{
#ifdef SYS_futex_waitv
    struct futex_waitv watched[DLX_ARRAY_SIZE(sleep->words)] = {{0}};
    struct timespec end;
    for (uint32_t i = 0; i < sleep->n; i++) {
        watched[i].uaddr = (uintptr_t)sleep->words[i];
        watched[i].val = i == 0 ? sleep->n_changed : DLX_GPU_PENDING;
        watched[i].flags = FUTEX_32 | (i == 0 ? FUTEX_PRIVATE_FLAG : 0U);
    }
    (void)clock_gettime(CLOCK_MONOTONIC, &end);
    uint64_t ns = (uint64_t)end.tv_nsec + sleep->ns;
    end.tv_sec += (time_t)(ns / UINT64_C(1000000000));
    end.tv_nsec = (long)(ns % UINT64_C(1000000000));
    if (syscall(SYS_futex_waitv, watched, sleep->n, 0, &end, CLOCK_MONOTONIC) >= 0)
        return true;
    return errno == EAGAIN || errno == EINTR || errno == ETIMEDOUT;
#else
    (void)sleep;
    return false;
#endif
}

static void sleep_a_while(const struct sleep *sleep)
{
    if (sleep->n > 1 && sleep_on_all(sleep))
        return;
    uint64_t ns = sleep->n > 1 ? DLX_MIN(sleep->ns, POLL_NS) : sleep->ns;
    const struct timespec timeout = {.tv_nsec = (long)ns};
    (void)syscall(SYS_futex, sleep->words[0], FUTEX_WAIT_PRIVATE, sleep->n_changed,
                  sleep->n > 1 ? &timeout : NULL, NULL, 0);
}

static void *waiter_main(void *arg)
{
    struct dlx_gpu_threads *threads = arg;
    struct sleep sleep;
    (void)pthread_mutex_lock(&threads->lock);
    while (!threads->is_over || threads->waits || threads->n_announced > 0) {
        struct dlx_gpu_wait *over = take_over(threads), *next;
        plan(threads, &sleep);
        (void)pthread_mutex_unlock(&threads->lock);
        if (!over)
            sleep_a_while(&sleep);
        for (; over; over = next) {
            next = over->next;
            finish_wait(threads, over);
        }
        (void)pthread_mutex_lock(&threads->lock);
    }
    (void)pthread_mutex_unlock(&threads->lock);
    return NULL;
}

/* ---- adding -------------------------------------------------------------------------------- */

static void wake(struct dlx_gpu_threads *threads)
{
    (void)atomic_fetch_add_explicit(&threads->changed, 1, memory_order_release);
    (void)syscall(SYS_futex, &threads->changed, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* Signals are for the program's own threads. Locked. */
static bool start_threads(struct dlx_gpu_threads *threads)
{
    sigset_t all, before;
    if (threads->has_waiter)
        return true;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    threads->has_waiter = pthread_create(&threads->waiter, NULL, waiter_main, threads) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return threads->has_waiter;
}

/* From here on the thread stays until the wait was added, or was not. */
static bool announce_wait(struct dlx_gpu_threads *threads)
{
    if (!threads)
        return false;
    (void)pthread_mutex_lock(&threads->lock);
    bool is_possible = !threads->is_over && start_threads(threads);
    threads->n_announced += is_possible;
    (void)pthread_mutex_unlock(&threads->lock);
    return is_possible;
}

static void add(struct dlx_gpu_threads *threads, struct dlx_gpu_wait *wait)
{
    (void)pthread_mutex_lock(&threads->lock);
    threads->n_announced--;
    if (wait) {
        wait->next = threads->waits;
        threads->waits = wait;
    }
    (void)pthread_mutex_unlock(&threads->lock);
    wake(threads);
}

int dlx__gpu_wait_add(struct dlx_gpu_threads *threads, const struct dlx_gpu_wait_args *args,
                      struct dlx_gpu_wait **ret)
{
    struct dlx_gpu_wait *wait = malloc(sizeof *wait);
    if (!wait || !announce_wait(threads)) {
        free(wait);
        return dlx__fail(DLX_E_NO_MEMORY, "no thread can wait for the publisher");
    }
    *wait = (struct dlx_gpu_wait){.args = *args};
    atomic_init(&wait->refs, 2);
    atomic_init(&wait->result, DLX_GPU_WAITING);
    int r = dlx__gpu_gate_shut(args->device_type, args->device, args->stream, &wait->gate);
    if (r < 0) {
        add(threads, NULL);
        free(wait);
        return r;
    }
    *ret = wait;
    add(threads, wait);
    return 0;
}

void dlx__gpu_waits_end(struct dlx_gpu_threads *threads)
{
    if (!threads->has_waiter)
        return;
    wake(threads);
    (void)pthread_join(threads->waiter, NULL);
    threads->has_waiter = false;
}
