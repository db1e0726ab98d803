/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/lib/receive.h"
#include "common/packet.h"
#include "gpu/gpu.h"
#include "gpu/lib/idle.h"
#include "gpu/lib/open.h"
#include "gpu/lib/range.h"
#include "gpu/lib/thread.h"
#include "gpu/lib/words.h"
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Streams up to this number are special ones of CUDA. */
#define SPECIAL_STREAMS 2U

/* How often a waiting thread checks that the publisher lives, or, for a release, the clock. */
#define LOOK_NS UINT64_C(20000000)
/* And so often for words that the kernel does not watch: those beyond its limit, or all but the
 * first where it can watch only one. */
#define POLL_NS UINT64_C(1000000)

static const struct dlx_gpu_import *import_of(const struct dlx_export *e)
{
    const struct dlx_message_gpu *gpu = e->message->gpu;
    uint32_t allocation = gpu ? gpu->places[e->i].allocation : 0;
    return allocation > 0 ? gpu->allocations[allocation - 1].import : NULL;
}

/* The library has a part of the message, or of its link, so the link has one here. */
static struct dlx_gpu_receiver *receiver_of(const struct dlx_export *e)
{
    const struct dlx_subscriber_link *link = e->message->link;
    return atomic_load_explicit(&link->gpu, memory_order_acquire)->receiver;
}

/* ---- one word ------------------------------------------------------------------------------ */

/* 0, DLX_GPU_WAITING, or an error code. Whether it is gone was asked before: the publisher may have
 * set the word last. */
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

/* `limit`: which one is over, if one is. */
static int explain_wait(int r, const char *limit)
{
    switch (r) {
    case DLX_E_DEVICE:
        return dlx__fail(r, "an error of the publisher's GPU ended the work that was to write it");
    case DLX_E_PUBLISHER_GONE:
        return dlx__fail(r, "the publisher was gone before its GPU had written it");
    case DLX_E_TIMEOUT:
        return dlx__fail(r, "the publisher's GPU has not written it within %s", limit);
    default:
        return r;
    }
}

static int wait_ready(dlx_atomic_u32 *word, uint64_t deadline, int bell)
{
    for (;;) {
        bool gone = dlx_load32_acquire(word) == DLX_GPU_PENDING && dlx__packet_hung_up(bell);
        uint64_t now = dlx__now_ns();
        int r = judge(word, gone, now, deadline);
        if (r != DLX_GPU_WAITING)
            return explain_wait(r, "the time of dlx_connect_args");
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
    _Atomic int result; /* from then on the message may go, and nothing here changes */
    bool is_gone;       /* the publisher, when it was looked at last */
    uint64_t deadline;
    struct dlx_gpu_wait_args args;
    struct dlx_gpu_gate gate;
};

struct dlx_gpu_limit dlx__gpu_stream_limit(const struct dlx_gpu_receiver *receiver,
                                           const struct dlx_subscriber_link *link)
{
    if (receiver->stream_timeout_ns != 0)
        return (struct dlx_gpu_limit){receiver->stream_timeout_ns, DLX_GPU_LIMIT_ASKED};
    return (struct dlx_gpu_limit){link->stream_wait_ns, DLX_GPU_LIMIT_OTHER_USER};
}

#define LIMIT_TEXT_SIZE (DLX_EVENT_REASON_SIZE - 20)

static const char *describe_limit(const struct dlx_gpu_limit *limit, char ret[LIMIT_TEXT_SIZE])
{
    static const char *const texts[] = {
        [DLX_GPU_LIMIT_ASKED] = "%g s: see stream_timeout_ns of dlx_subscribe_args",
        [DLX_GPU_LIMIT_OTHER_USER] = "%g s, the default for other users: see stream_timeout_ns",
        [DLX_GPU_LIMIT_ENDING] = "%g s of the end of its subscription or tensor",
    };
    (void)snprintf(ret, LIMIT_TEXT_SIZE, texts[limit->of], (double)limit->ns / 1e9);
    return ret;
}

int dlx__gpu_wait_result(struct dlx_gpu_wait *wait)
{
    char text[LIMIT_TEXT_SIZE];
    int r = atomic_load_explicit(&wait->result, memory_order_acquire);
    return r < 0 ? explain_wait(r, describe_limit(&wait->args.limit, text)) : r;
}

static struct dlx_gpu_wait *wait_ref(struct dlx_gpu_wait *wait)
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

/* Locked. Nobody waits for it longer than calls may take. */
static void end_soon(struct dlx_gpu_wait *wait)
{
    uint64_t deadline = dlx__deadline(wait->args.ending_ns);
    if (wait->over != DLX_GPU_WAITING || deadline >= wait->deadline)
        return;
    wait->deadline = deadline;
    wait->args.limit = (struct dlx_gpu_limit){wait->args.ending_ns, DLX_GPU_LIMIT_ENDING};
}

static void wake(struct dlx_gpu_receiver *receiver)
{
    (void)atomic_fetch_add_explicit(&receiver->changed, 1, memory_order_release);
    (void)syscall(SYS_futex, &receiver->changed, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* Its stream has gone on, unless the GPU of this process is lost. */
static void wait_settle(struct dlx_gpu_receiver *receiver, struct dlx_gpu_wait *wait)
{
    if (atomic_load_explicit(&wait->result, memory_order_acquire) != DLX_GPU_WAITING)
        return;
    (void)pthread_mutex_lock(&receiver->lock);
    end_soon(wait);
    (void)pthread_mutex_unlock(&receiver->lock);
    wake(receiver);
    while (atomic_load_explicit(&wait->result, memory_order_acquire) == DLX_GPU_WAITING)
        (void)poll(NULL, 0, 1);
}

/* Locked. */
static void report(struct dlx_gpu_report *report, const struct dlx_subscriber_link *link, int code,
                   const char *reason)
{
    report->n++;
    report->code = code;
    (void)snprintf(report->reason, sizeof report->reason, "%s", reason);
    report->pid = link->pid;
    report->link = link->id;
    report->publisher = link->publisher;
    memcpy(report->topic, link->topic, sizeof report->topic);
}

static void note_late(struct dlx_gpu_receiver *receiver, const struct dlx_gpu_wait *wait)
{
    char text[LIMIT_TEXT_SIZE], reason[DLX_EVENT_REASON_SIZE] = "";
    (void)pthread_mutex_lock(&receiver->lock);
    if (wait->over == DLX_E_TIMEOUT)
        (void)snprintf(reason, sizeof reason, "not ready within %s",
                       describe_limit(&wait->args.limit, text));
    report(&receiver->late, wait->args.m->link, wait->over, reason);
    (void)pthread_mutex_unlock(&receiver->lock);
}

/* The CPU is about to wait, since the stream cannot, as the message of the error says. */
static void note_wait(struct dlx_gpu_receiver *receiver, const struct dlx_subscriber_link *link,
                      int code)
{
    atomic_fetch_add_explicit(&receiver->n_waits, 1, memory_order_relaxed);
    (void)pthread_mutex_lock(&receiver->lock);
    if (receiver->waited.n == 0)
        report(&receiver->waited, link, code, dlx__error_message());
    (void)pthread_mutex_unlock(&receiver->lock);
}

/* Stores the result first: a thread that has seen the stream go on finds it. */
static void finish_wait(struct dlx_gpu_receiver *receiver, struct dlx_gpu_wait *wait)
{
    if (wait->over < 0)
        note_late(receiver, wait);
    atomic_store_explicit(&wait->result, wait->over, memory_order_release);
    dlx__gpu_gate_open(&wait->gate);
    (void)dlx__gpu_wait_unref(wait);
}

/* Locked. Takes those that are over off the list, with their results. No system call: callers wait
 * for the lock. */
static struct dlx_gpu_wait *take_over(struct dlx_gpu_receiver *receiver)
{
    struct dlx_gpu_wait *over = NULL, **at = &receiver->waits;
    uint64_t now = dlx__now_ns();
    while (*at) {
        struct dlx_gpu_wait *wait = *at;
        wait->over = judge(wait->args.word, wait->is_gone, now, wait->deadline);
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

/* Not locked: the thread alone takes waits off the list, and others are added before the first. */
static void look_at_publishers(struct dlx_gpu_wait *waits)
{
    struct pollfd bells[128];
    while (waits) {
        struct dlx_gpu_wait *first = waits;
        nfds_t n = 0;
        for (; waits && n < DLX_ARRAY_SIZE(bells); waits = waits->next)
            bells[n++] = (struct pollfd){.fd = waits->args.m->link->bell, .events = POLLRDHUP};
        if (poll(bells, n, 0) <= 0)
            continue; /* the next look tells */
        for (nfds_t i = 0; i < n; i++, first = first->next)
            first->is_gone = (bells[i].revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
    }
}

/* ---- the thread's sleep -------------------------------------------------------------------- */

struct sleep {
    dlx_atomic_u32 *words[128]; /* as many as the kernel watches; the first is `changed` */
    uint32_t n;
    uint32_t n_changed;
    uint64_t ns; /* 0: it is time to look at the publishers of `waits` */
    struct dlx_gpu_wait *waits;
};

/* Locked. */
static void plan(struct dlx_gpu_receiver *receiver, uint64_t next_look, struct sleep *ret)
{
    uint64_t now = dlx__now_ns();
    ret->words[0] = &receiver->changed;
    ret->n = 1;
    ret->n_changed = dlx_load32_relaxed(&receiver->changed);
    ret->ns = next_look - DLX_MIN(next_look, now);
    ret->waits = receiver->waits;
    for (const struct dlx_gpu_wait *wait = receiver->waits; wait; wait = wait->next) {
        uint64_t deadline = wait->deadline;
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

/* Without waits, until there is one. */
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
    struct dlx_gpu_receiver *receiver = arg;
    uint64_t next_look = 0;
    struct sleep sleep;
    (void)pthread_mutex_lock(&receiver->lock);
    while (!receiver->is_over || receiver->waits || receiver->n_announced > 0) {
        struct dlx_gpu_wait *over = take_over(receiver), *next;
        plan(receiver, next_look, &sleep);
        (void)pthread_mutex_unlock(&receiver->lock);
        if (!over && (!sleep.waits || sleep.ns > 0)) {
            sleep_a_while(&sleep);
        } else if (!over) {
            look_at_publishers(sleep.waits);
            next_look = dlx__now_ns() + LOOK_NS;
        }
        for (; over; over = next) {
            next = over->next;
            finish_wait(receiver, over);
        }
        (void)pthread_mutex_lock(&receiver->lock);
    }
    (void)pthread_mutex_unlock(&receiver->lock);
    return NULL;
}

/* ---- adding -------------------------------------------------------------------------------- */

/* Locked. */
static bool start_waiter(struct dlx_gpu_receiver *receiver)
{
    if (!receiver->has_waiter)
        receiver->has_waiter = dlx__gpu_thread_start(&receiver->waiter, waiter_main, receiver);
    return receiver->has_waiter;
}

/* From here on the thread stays until the wait was added, or was not. */
static bool announce_wait(struct dlx_gpu_receiver *receiver)
{
    (void)pthread_mutex_lock(&receiver->lock);
    bool is_possible = !receiver->is_over && start_waiter(receiver);
    receiver->n_announced += is_possible;
    (void)pthread_mutex_unlock(&receiver->lock);
    return is_possible;
}

static void add(struct dlx_gpu_receiver *receiver, struct dlx_gpu_wait *wait)
{
    (void)pthread_mutex_lock(&receiver->lock);
    receiver->n_announced--;
    if (wait) {
        wait->next = receiver->waits;
        receiver->waits = wait;
        if (receiver->is_over)
            end_soon(wait);
    }
    (void)pthread_mutex_unlock(&receiver->lock);
    wake(receiver);
}

int dlx__gpu_wait_add(struct dlx_gpu_receiver *receiver, const struct dlx_gpu_wait_args *args,
                      struct dlx_gpu_wait **ret)
{
    struct dlx_gpu_wait *wait = malloc(sizeof *wait);
    if (!wait || !announce_wait(receiver)) {
        free(wait);
        return dlx__fail(DLX_E_NO_MEMORY, "no thread can wait for the publisher");
    }
    *wait = (struct dlx_gpu_wait){
        .over = DLX_GPU_WAITING, .deadline = dlx__deadline(args->limit.ns), .args = *args};
    atomic_init(&wait->refs, 2);
    atomic_init(&wait->result, DLX_GPU_WAITING);
    int r = dlx__gpu_gate_shut(args->device_type, args->device, args->stream,
                               receiver->are_kernels_loaded, args->shared, &wait->gate);
    if (r < 0) {
        add(receiver, NULL);
        free(wait);
        return r;
    }
    *ret = wait;
    add(receiver, wait);
    return 0;
}

static void waits_end(struct dlx_gpu_receiver *receiver)
{
    if (!receiver->has_waiter)
        return;
    wake(receiver);
    (void)pthread_join(receiver->waiter, NULL);
    receiver->has_waiter = false;
}

/* The streams that use a tensor: DLX_STREAM_ALL alone, or others; DLX_STREAM_NONE is an empty list.
 */
struct dlx_gpu_streams {
    uint32_t n;
    void *streams[];
};

/* A tensor whose deleter has returned. */
struct release {
    struct dlx_gpu_job job;
    struct dlx_gpu_receiver *receiver;
    struct dlx_export *export;
    uintptr_t stream; /* as of struct dlx_gpu_releaser */
    bool is_on_all;   /* it may be used by any stream of the device, and there are no events */
    struct dlx_gpu_work work; /* waited for then, and if events cannot be */
    struct dlx_gpu_idle idle;
    struct dlx_gpu_event events[];
};

static struct dlx_gpu_receiver *receiver_ref(struct dlx_gpu_receiver *receiver)
{
    atomic_fetch_add_explicit(&receiver->refs, 1, memory_order_relaxed);
    return receiver;
}

static void receiver_unref(struct dlx_gpu_receiver *receiver)
{
    if (atomic_fetch_sub_explicit(&receiver->refs, 1, memory_order_acq_rel) > 1)
        return;
    dlx__pin_free(receiver->pin);
    (void)pthread_mutex_destroy(&receiver->lock);
    free(receiver);
}

/* ---- releases --------------------------------------------------------------------- */

static uint32_t n_released(struct dlx_gpu_receiver *receiver)
{
    return dlx_load32_acquire(&receiver->n_done);
}

static int wait_released(struct dlx_gpu_receiver *receiver, uint32_t n_done, uint64_t deadline)
{
    for (;;) {
        uint32_t now_done = dlx_load32_acquire(&receiver->n_done);
        uint64_t now = dlx__now_ns();
        if (now_done != n_done)
            return 0;
        if (atomic_load_explicit(&receiver->n_added, memory_order_relaxed) == now_done)
            return DLX_E_EMPTY;
        if (now >= deadline)
            return DLX_E_TIMEOUT;
        uint64_t left = DLX_MIN(deadline - now, LOOK_NS);
        const struct timespec timeout = {.tv_nsec = (long)left};
        if (syscall(SYS_futex, &receiver->n_done, FUTEX_WAIT_PRIVATE, n_done, &timeout, NULL, 0) <
                0 &&
            errno == EINTR)
            return DLX_E_INTERRUPTED;
    }
}

/* ---- one tensor ---------------------------------------------------------------------------- */

static void count(_Atomic uint64_t *counter)
{
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

/* Whose streams use a tensor: the GPU that it is on or, on the CPU, that it is pinned for. Returns
 * false if there is none. */
static bool find_device(const struct dlx_export *e, DLDevice *ret)
{
    const struct dlx_gpu_import *import = import_of(e);
    const struct dlx_pin *pin = receiver_of(e)->pin;
    DLDevice device = e->message->tensors[e->i].device;
    if (import)
        *ret = (DLDevice){device.device_type, dlx__gpu_import_device(import)};
    else if (pin && device.device_type == kDLCPU)
        *ret = dlx__pin_device(pin);
    else
        return false;
    return true;
}

static bool is_all(const struct dlx_gpu_streams *s)
{
    return s->n == 1 && s->streams[0] == DLX_STREAM_ALL;
}

/* The work has ended, perhaps by an error of the GPU. */
static void finish_export(struct dlx_export *e, int result)
{
    if (result < 0)
        count(&receiver_of(e)->n_errors);
    if (e->wait)
        wait_settle(receiver_of(e), e->wait);
    e->wait = dlx__gpu_wait_unref(e->wait);
    dlx__error_clear();
}

static void complete(struct release *release, int result)
{
    struct dlx_gpu_receiver *receiver = release->receiver;
    finish_export(release->export, result);
    dlx__message_abandon(release->export); /* may be the last that refers to its link */
    free(release);
    (void)atomic_fetch_add_explicit(&receiver->n_done, 1, memory_order_release);
    (void)syscall(SYS_futex, &receiver->n_done, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* On the thread of the GPU, perhaps after the end of the subscription. */
static void complete_late(struct dlx_gpu_idle *idle, int result)
{
    struct release *release =
        (struct release *)(void *)((char *)idle - offsetof(struct release, idle));
    struct dlx_gpu_receiver *receiver = release->receiver;
    complete(release, result);
    receiver_unref(receiver);
}

/* The driver did not wait. Without a thread the message is held for good, since its memory may be
 * in use for good. */
static void leave_to_gpu(struct release *release)
{
    const struct dlx_gpu_work work = release->work;
    struct dlx_gpu_receiver *receiver = receiver_ref(release->receiver);
    dlx__error_clear();
    if (dlx__gpu_when_idle(&release->idle, &work, complete_late))
        return;
    count(&receiver->n_errors);
    receiver_unref(receiver);
}

/* On the thread. */
static void release_done(struct dlx_gpu_job *job, int result)
{
    struct release *release = (struct release *)(void *)job;
    if (release->is_on_all)
        result = dlx__gpu_work_wait(&release->work);
    if (dlx__gpu_has_ended(result)) {
        complete(release, result);
        return;
    }
    for (uint32_t i = 0; i < release->job.n_events; i++)
        dlx__gpu_event_end(&release->events[i]);
    leave_to_gpu(release);
}

/* The caller waits for all work on the GPU. Returns 1 if the driver refuses that, and a thread
 * releases the tensor; else 0 or an error that has ended the work. */
static int wait_for_all(struct dlx_export *e, DLDevice device)
{
    const struct dlx_gpu_work work =
        dlx__gpu_work_now((int32_t)device.device_type, device.device_id);
    int r = dlx__gpu_work_wait(&work);
    if (dlx__gpu_has_ended(r))
        return r;
    struct release *release = calloc(1, sizeof *release);
    if (!release) {
        count(&receiver_of(e)->n_errors); /* the message is held for good */
        return 1;
    }
    release->receiver = receiver_of(e);
    release->export = e;
    release->work = work;
    atomic_fetch_add_explicit(&release->receiver->n_added, 1, memory_order_relaxed);
    leave_to_gpu(release);
    return 1;
}

/* Locked. The one that waits for this stream, else one that has nothing to do: so a release waits
 * for other streams only if more are busy than there are threads. */
static struct dlx_gpu_order *find_releaser(struct dlx_gpu_receiver *receiver, uintptr_t stream)
{
    struct dlx_gpu_releaser *found = NULL;
    for (uint32_t i = 0; i < DLX_GPU_RELEASERS; i++) {
        struct dlx_gpu_releaser *releaser = &receiver->releasers[i];
        if (dlx__gpu_order_is_idle(&releaser->order))
            found = found ? found : releaser;
        else if (stream != 0 && releaser->stream == stream)
            return &releaser->order;
    }
    if (!found)
        found = &receiver->releasers[receiver->next_releaser++ % DLX_GPU_RELEASERS];
    found->stream = stream;
    return &found->order;
}

/* If no other thread can be had, the first one has to do. */
static bool leave_to_thread(struct dlx_gpu_receiver *receiver, struct release *release)
{
    (void)pthread_mutex_lock(&receiver->lock);
    atomic_fetch_add_explicit(&receiver->n_added, 1, memory_order_relaxed);
    bool is_left = !receiver->is_over &&
                   (dlx__gpu_order_try(find_releaser(receiver, release->stream), &release->job) ||
                    dlx__gpu_order_try(&receiver->releasers[0].order, &release->job));
    if (!is_left)
        atomic_fetch_sub_explicit(&receiver->n_added, 1, memory_order_relaxed);
    (void)pthread_mutex_unlock(&receiver->lock);
    return is_left;
}

/* Returns 1 if the thread releases the tensor; 0: its work is done (`*ret_waited`: it was waited
 * for); an error. */
static int record(struct dlx_export *e, DLDevice device, const struct dlx_gpu_streams *s,
                  bool *ret_waited)
{
    struct release *release = calloc(1, sizeof *release + s->n * sizeof release->events[0]);
    int r = release ? 0 : DLX_E_NO_MEMORY;
    bool is_on_all = is_all(s);
    for (uint32_t i = 0; r >= 0 && i < s->n && !is_on_all; i++) {
        bool waited = false;
        r = dlx__gpu_event_record((int32_t)device.device_type, device.device_id, s->streams[i],
                                  &release->events[release->job.n_events], &waited);
        release->job.n_events += r == 1;
        *ret_waited |= waited;
    }
    if (r >= 0 && (is_on_all || release->job.n_events > 0)) {
        release->is_on_all = is_on_all;
        release->work = (struct dlx_gpu_work){(int32_t)device.device_type, device.device_id, NULL};
        if (is_on_all)
            release->work = dlx__gpu_work_now((int32_t)device.device_type, device.device_id);
        release->job.events = release->events;
        release->job.done = release_done;
        release->receiver = receiver_of(e);
        release->export = e;
        release->stream = s->n == 1 ? (uintptr_t)s->streams[0] + 1 : 0;
        if (leave_to_thread(release->receiver, release))
            return 1;
        *ret_waited = true;
        r = is_on_all ? DLX_E_EMPTY : dlx__gpu_job_wait(&release->job);
    }
    for (uint32_t i = 0; release && i < release->job.n_events; i++)
        dlx__gpu_event_end(&release->events[i]);
    free(release);
    return DLX_MIN(r, 0);
}

static bool release_tensor(struct dlx_export *e)
{
    struct dlx_gpu_streams *s = e->streams;
    DLDevice device;
    bool waited = !s;
    int r = 0;
    e->streams = NULL;
    if ((s || import_of(e)) && find_device(e, &device)) {
        r = s ? record(e, device, s, &waited) : DLX_E_EMPTY;
        if (r < 0)
            waited = true;
        if (waited)
            count(&receiver_of(e)->n_waits);
        if (r < 0)
            r = wait_for_all(e, device);
        if (r < 1)
            finish_export(e, r);
    }
    free(s);
    return r == 1;
}

/* ---- its streams --------------------------------------------------------------------------- */

int dlx__gpu_use_on(struct dlx_export *e, void *stream)
{
    bool is_none = stream == DLX_STREAM_NONE;
    uint32_t n = e->streams ? e->streams->n : 0;
    if (is_none || stream == DLX_STREAM_ALL || (n > 0 && is_all(e->streams)))
        n = 0;
    for (uint32_t i = 0; i < n; i++)
        if (e->streams->streams[i] == stream)
            return 0;
    struct dlx_gpu_streams *s = realloc(e->streams, sizeof *s + (n + 1) * sizeof s->streams[0]);
    if (!s)
        return dlx__fail(DLX_E_NO_MEMORY, "list of %u streams", n + 1);
    s->streams[n] = stream;
    s->n = is_none ? 0 : n + 1;
    e->streams = s;
    return 0;
}

static int use_tensor_on(DLManagedTensorVersioned *tensor, void *stream)
{
    struct dlx_export *e = tensor->manager_ctx;
    DLDevice device;
    if (!find_device(e, &device))
        return DLX_E_DEVICE;
    if (!import_of(e))
        dlx__message_release_on_streams(tensor);
    return dlx__gpu_use_on(e, stream);
}

/* ---- what a subscription and its links have ------------------------------------------------- */

static int receiver_begin(const struct dlx_subscribe_args *asked, struct dlx_gpu_receiver **ret)
{
    const DLDevice device = asked->device;
    struct dlx_gpu_uuid unused;
    if (device.device_type != 0) {
        int r = dlx__gpu_uuid((int32_t)device.device_type, device.device_id, &unused);
        if (r < 0)
            return dlx__fail_prefix(r, "no tensors can be for device (%d, %d)",
                                    (int)device.device_type, device.device_id);
    }
    struct dlx_gpu_receiver *receiver = calloc(1, sizeof *receiver);
    if (!receiver)
        return dlx__fail(DLX_E_NO_MEMORY, "state of a subscription");
    int r = asked->pin.device_type != 0 ? dlx__pin_new(asked->pin, &receiver->pin) : 0;
    if (r < 0) {
        free(receiver);
        return r;
    }
    receiver->stream_timeout_ns = asked->stream_timeout_ns;
    receiver->device = device;
    receiver->are_kernels_loaded = asked->kernels_loaded;
    atomic_init(&receiver->refs, 1);
    (void)pthread_mutex_init(&receiver->lock, NULL);
    *ret = receiver;
    return 0;
}

static int link_begin(struct dlx_subscriber_link *link, struct dlx_gpu_receiver *receiver)
{
    struct dlx_gpu_link *of = calloc(1, sizeof *of);
    if (!of)
        return dlx__fail(DLX_E_NO_MEMORY, "state of a link");
    of->receiver = receiver_ref(receiver);
    of->words = dlx__gpu_words_reader_new();
    atomic_store_explicit(&link->gpu, of, memory_order_release);
    return 0;
}

/* The first message with tensors on GPUs begins it. */
static int ensure_link(struct dlx_subscriber_link *link)
{
    int r = 0;
    if (atomic_load_explicit(&link->gpu, memory_order_relaxed))
        return 0;
    if (!*link->of->gpu)
        r = receiver_begin(link->of->asked, link->of->gpu);
    return r < 0 ? r : link_begin(link, *link->of->gpu);
}

/* The number is the publisher's own choice: it may not choose another one. */
static int note_publisher(const struct dlx_subscriber_link *link, struct dlx_gpu_link *of,
                          uint64_t number)
{
    if (number == 0 || (of->publisher != 0 && of->publisher != number))
        return dlx__fail(DLX_E_BAD_PEER,
                         "its number as a publisher of GPU memory is %" PRIu64 ", and was %" PRIu64,
                         number, of->publisher);
    if (of->publisher == number)
        return 0;
    int r = dlx__gpu_imports_join((struct dlx_gpu_publisher){number, link->publisher});
    if (r < 0)
        return r;
    uint64_t ids[DLX_SHM_FREED]; /* of messages that were there before */
    (void)dlx__reader_freed(&link->core, &of->n_freed, ids);
    of->publisher = number;
    return 0;
}

static void link_look(struct dlx_subscriber_link *link)
{
    struct dlx_gpu_link *of = atomic_load_explicit(&link->gpu, memory_order_relaxed);
    const struct dlx_gpu_publisher publisher = {of->publisher, link->publisher};
    uint64_t ids[DLX_SHM_FREED];
    uint32_t n = of->publisher != 0 ? dlx__reader_freed(&link->core, &of->n_freed, ids) : 0;
    if (n == DLX_READER_FREED_MANY) {
        dlx__gpu_imports_freed(publisher, 0);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] != 0)
            dlx__gpu_imports_freed(publisher, ids[i]);
}

static void link_leave(struct dlx_subscriber_link *link)
{
    struct dlx_gpu_link *of = atomic_load_explicit(&link->gpu, memory_order_relaxed);
    if (of->publisher != 0)
        dlx__gpu_imports_leave((struct dlx_gpu_publisher){of->publisher, link->publisher});
    of->publisher = 0;
}

static void link_end(struct dlx_subscriber_link *link)
{
    struct dlx_gpu_link *of = atomic_load_explicit(&link->gpu, memory_order_relaxed);
    receiver_unref(of->receiver);
    dlx__gpu_words_reader_free(of->words);
    free(of);
}

/* ---- messages -------------------------------------------------------------------------------- */

static void message_free(struct dlx_message_gpu *gpu)
{
    for (uint32_t i = 0; i < gpu->n_allocations; i++) {
        dlx__gpu_import_unref(gpu->allocations[i].import);
        dlx__gpu_handle_deinit(&gpu->allocations[i].handle);
    }
    if (gpu->range)
        dlx__gpu_range_leave(gpu->range);
    (void)dlx__gpu_wait_unref(gpu->wait);
    (void)pthread_mutex_destroy(&gpu->lock);
    dlx__client_unref(gpu->client);
    free(gpu->places);
    free(gpu);
}

static int message_new(struct dlx_subscriber_link *link, const struct dlx_manifest *manifest,
                       struct dlx_message_gpu **ret)
{
    uint32_t n = manifest->n_allocations;
    uint64_t number = *(const volatile uint64_t *)&manifest->gpu->publisher;
    int r = ensure_link(link);
    if (r == 0)
        r = note_publisher(link, atomic_load_explicit(&link->gpu, memory_order_relaxed), number);
    if (r < 0)
        return r;
    link_look(link);
    struct dlx_message_gpu *gpu = calloc(1, sizeof *gpu + n * sizeof gpu->allocations[0]);
    struct dlx_gpu_place *places = calloc(manifest->header.n_tensors, sizeof *places);
    if (!gpu || !places) {
        free(gpu);
        free(places);
        return dlx__fail(DLX_E_NO_MEMORY, "table of %u allocations", n);
    }
    (void)pthread_mutex_init(&gpu->lock, NULL);
    gpu->publisher = (struct dlx_gpu_publisher){number, link->publisher};
    gpu->ready = (dlx_atomic_u32 *)(uintptr_t)&manifest->gpu->ready; /* to be read */
    gpu->word = *(const volatile uint32_t *)&manifest->gpu->word;
    gpu->timeout_ns = link->of->client->timeout_ns;
    gpu->device = atomic_load_explicit(&link->gpu, memory_order_relaxed)->receiver->device;
    gpu->places = places;
    gpu->n_allocations = n;
    for (uint32_t i = 0; i < n; i++) {
        struct dlx_gpu_allocation *a = &gpu->allocations[i];
        memcpy(a->bytes, manifest->allocations + (size_t)i * sizeof a->bytes, sizeof a->bytes);
        __asm__ volatile("" ::: "memory"); /* from here on only the private copy is looked at */
        r = dlx__message_gpu_decode(a);
        if (r < 0 && r != DLX_E_VERSION) { /* of a later version: said when it is to be opened */
            message_free(gpu);
            return dlx__fail_prefix(DLX_E_BAD_PEER, "allocation %u", i + 1);
        }
        if ((a->handle.n_chunks > 0 || gpu->word != 0) && !gpu->client)
            gpu->client = dlx__client_ref(link->of->client);
    }
    *ret = gpu;
    return 0;
}

static int place_tensor(struct dlx_message_gpu *gpu, uint32_t i,
                        const struct dlx_manifest_item *item, const int64_t *shape,
                        const int64_t *strides)
{
    uint64_t size = 0;
    if (item->allocation > 0) { /* dlx__manifest_item(): there are so many */
        const struct dlx_gpu_handle *handle = &gpu->allocations[item->allocation - 1].handle;
        size = handle->id != 0 ? handle->size : UINT64_MAX;
        if (handle->id != 0 && item->record.device_type != dlx__message_gpu_type(handle->kind))
            return dlx__fail(DLX_E_BAD_PEER, "tensor on device type %d in an allocation of kind %s",
                             item->record.device_type, dlx__gpu_kind_text(handle->kind));
        gpu->places[i] = (struct dlx_gpu_place){item->allocation, item->record.offset};
    }
    return dlx__record_check_gpu(&item->record, shape, strides, size);
}

/* ---- ready --------------------------------------------------------------------------------- */

static bool are_streams_ordered(const struct dlx_message_gpu *gpu)
{
    return dlx_load32_acquire(gpu->ready) == DLX_GPU_READY;
}

/* The wait of this stream for another tensor of the message, if that is not over. Locked. A stream
 * that each thread has for itself is another one each time. */
static bool share_wait(const struct dlx_message_gpu *gpu, struct dlx_export *e, const void *stream)
{
    if (!gpu->wait || gpu->wait_stream != stream || (uintptr_t)stream <= SPECIAL_STREAMS ||
        dlx__gpu_wait_result(gpu->wait) != DLX_GPU_WAITING)
        return false;
    e->wait = wait_ref(gpu->wait);
    return true;
}

/* Locked. The word that the publisher's stream writes. One wait of the message has it: another one
 * would go on when the first is given up. */
static bool find_word(struct dlx_message *m, const struct dlx_gpu_wait_args *args,
                      struct dlx_gpu_word *ret)
{
    const struct dlx_gpu_link *of = atomic_load_explicit(&m->link->gpu, memory_order_acquire);
    const DLDevice device = {(DLDeviceType)args->device_type, args->device};
    if (m->gpu->word == 0 || !of->words ||
        !dlx__gpu_words_find(of->words, m->gpu->client, m->link->id, m->link->origin, device,
                             m->gpu->word, ret))
        return false;
    m->gpu->word = 0;
    return true;
}

static int let_stream_wait(struct dlx_export *e, void *stream)
{
    struct dlx_message_gpu *gpu = e->message->gpu;
    struct dlx_gpu_word word;
    struct dlx_gpu_wait_args args = {
        .m = e->message,
        .word = gpu->ready,
        .limit = dlx__gpu_stream_limit(receiver_of(e), e->message->link),
        .ending_ns = gpu->timeout_ns,
        .device_type = (int32_t)e->message->tensors[e->i].device.device_type,
        .device = dlx__gpu_import_device(import_of(e)),
        .stream = stream,
    };
    int r = 0;
    (void)pthread_mutex_lock(&gpu->lock);
    if (!share_wait(gpu, e, stream)) {
        args.shared = find_word(e->message, &args, &word) ? &word : NULL;
        r = dlx__gpu_wait_add(receiver_of(e), &args, &e->wait);
        if (r == 0) {
            (void)dlx__gpu_wait_unref(gpu->wait);
            gpu->wait = wait_ref(e->wait);
            gpu->wait_stream = stream;
        }
    }
    (void)pthread_mutex_unlock(&gpu->lock);
    return r;
}

static int await_tensor(struct dlx_export *e, void *const *stream)
{
    struct dlx_message *m = e->message;
    const struct dlx_message_gpu *gpu = m->gpu;
    if (!import_of(e))
        return 0;
    int r = stream ? dlx__gpu_use_on(e, *stream) : 0;
    if (r == 0 && dlx_likely(are_streams_ordered(gpu)))
        return 0;
    if (r == 0 && stream) {
        r = let_stream_wait(e, *stream);
        if (r == 0)
            return 0;
        if (r != DLX_E_INVALID) /* it is being captured */
            note_wait(receiver_of(e), m->link, r);
    }
    if (r != DLX_E_INVALID) {
        dlx__error_clear();
        r = wait_ready(gpu->ready, dlx__deadline(gpu->timeout_ns), m->link->bell);
    }
    if (r == 0)
        return 0;
    free(e->streams);
    e->streams = NULL;
    return dlx__message_gpu_fail(m, e->i, r);
}

static int message_status(struct dlx_message_gpu *gpu)
{
    (void)pthread_mutex_lock(&gpu->lock);
    int r = gpu->wait ? dlx__gpu_wait_result(gpu->wait) : 0;
    (void)pthread_mutex_unlock(&gpu->lock);
    return r;
}

/* ---- a subscription ------------------------------------------------------------------------ */

static void receiver_stats(struct dlx_gpu_receiver *receiver, struct dlx_subscription_stats *stats)
{
    dlx__pin_count(receiver->pin, stats);
    stats->gpu_waits = atomic_load_explicit(&receiver->n_waits, memory_order_relaxed);
    stats->gpu_errors = atomic_load_explicit(&receiver->n_errors, memory_order_relaxed);
    (void)pthread_mutex_lock(&receiver->lock);
    stats->gpu_late = receiver->late.n;
    (void)pthread_mutex_unlock(&receiver->lock);
}

static bool tell(struct dlx_gpu_receiver *receiver, struct dlx_gpu_report *report,
                 struct dlx_gpu_report *ret)
{
    (void)pthread_mutex_lock(&receiver->lock);
    *ret = *report;
    report->n_told = report->n;
    (void)pthread_mutex_unlock(&receiver->lock);
    return ret->n > ret->n_told;
}

static bool tell_late(struct dlx_gpu_receiver *receiver, struct dlx_gpu_report *ret)
{
    return tell(receiver, &receiver->late, ret);
}

static bool tell_waited(struct dlx_gpu_receiver *receiver, struct dlx_gpu_report *ret)
{
    return tell(receiver, &receiver->waited, ret);
}

static void receiver_stop(struct dlx_gpu_receiver *receiver)
{
    (void)pthread_mutex_lock(&receiver->lock);
    receiver->is_over = true;
    for (struct dlx_gpu_wait *wait = receiver->waits; wait; wait = wait->next)
        end_soon(wait);
    (void)pthread_mutex_unlock(&receiver->lock);
    waits_end(receiver);
}

static void receiver_end(struct dlx_gpu_receiver *receiver)
{
    for (uint32_t i = 0; i < DLX_GPU_RELEASERS; i++) {
        dlx__gpu_order_drain(&receiver->releasers[i].order);
        dlx__gpu_order_end(&receiver->releasers[i].order);
    }
    receiver_unref(receiver);
}

static bool pin_arena(struct dlx_gpu_link *link, const void *map, uint64_t size)
{
    struct dlx_pin *pin = link->receiver->pin;
    if (!pin)
        return false;
    if (dlx__pin_add(pin, map, size) == 0)
        return true;
    if (link->pins == DLX_GPU_PINS_ALL) {
        (void)snprintf(link->unpinned, sizeof link->unpinned, "%s", dlx__error_message());
        link->pins = DLX_GPU_PINS_FAILED;
    }
    dlx__error_clear();
    return false;
}

static bool tell_unpinned(struct dlx_gpu_link *link, char ret_reason[DLX_EVENT_REASON_SIZE])
{
    if (link->pins != DLX_GPU_PINS_FAILED)
        return false;
    memcpy(ret_reason, link->unpinned, sizeof link->unpinned);
    link->pins = DLX_GPU_PINS_TOLD;
    return true;
}

static bool unpin_arena(struct dlx_gpu_link *link, const void *map, uint64_t size)
{
    return dlx__pin_remove(link->receiver->pin, map, size);
}

const struct dlx_gpu_receiver_table dlx__gpu_receive_table = {
    .message_new = message_new,
    .message_free = message_free,
    .place = place_tensor,
    .open = dlx__message_gpu_open,
    .open_into = dlx__message_gpu_open_into,
    .copy_to_host = dlx__message_gpu_copy_to_host,
    .await = await_tensor,
    .message_status = message_status,
    .wait_status = dlx__gpu_wait_result,
    .use_on = use_tensor_on,
    .release = release_tensor,
    .begin = receiver_begin,
    .stop = receiver_stop,
    .end = receiver_end,
    .stats = receiver_stats,
    .tell_late = tell_late,
    .tell_waited = tell_waited,
    .n_released = n_released,
    .wait_released = wait_released,
    .link_begin = link_begin,
    .link_look = link_look,
    .link_leave = link_leave,
    .link_end = link_end,
    .pin = pin_arena,
    .tell_unpinned = tell_unpinned,
    .unpin = unpin_arena,
};
