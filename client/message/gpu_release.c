/* SPDX-License-Identifier: Apache-2.0 */
#include "client/message/gpu_release.h"
#include "client/message/gpu_wait.h"
#include "client/message/message.h"
#include "client/message/message_gpu.h"
#include "client/message/pin.h"
#include "gpu/imports.h"
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

/* So often who waits for a release looks at the clock. */
#define LOOK_NS UINT64_C(20000000)

/* The streams that use a tensor. */
struct dlx_gpu_streams {
    uint32_t n;
    void *streams[];
};

/* A tensor whose deleter has returned. */
struct release {
    struct dlx_gpu_job job;
    struct dlx_gpu_threads *threads;
    struct dlx_export *export;
    uintptr_t stream; /* as of struct dlx_gpu_releaser */
    struct dlx_gpu_event events[];
};

/* ---- of a subscription --------------------------------------------------------------------- */

uint32_t dlx__gpu_releases_n_done(struct dlx_gpu_threads *threads)
{
    return dlx_load32_acquire(&threads->n_done);
}

int dlx__gpu_releases_wait(struct dlx_gpu_threads *threads, uint32_t n_done, uint64_t deadline)
{
    for (;;) {
        uint32_t now_done = dlx_load32_acquire(&threads->n_done);
        uint64_t now = dlx__now_ns();
        if (now_done != n_done)
            return 0;
        if (atomic_load_explicit(&threads->n_added, memory_order_relaxed) == now_done)
            return DLX_E_EMPTY;
        if (now >= deadline)
            return DLX_E_TIMEOUT;
        uint64_t left = DLX_MIN(deadline - now, LOOK_NS);
        const struct timespec timeout = {.tv_nsec = (long)left};
        if (syscall(SYS_futex, &threads->n_done, FUTEX_WAIT_PRIVATE, n_done, &timeout, NULL, 0) <
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
    const struct dlx_gpu_import *import = dlx__message_gpu_import(e);
    const struct dlx_pin *pin = e->message->link->pin;
    DLDevice device = e->message->tensors[e->i].device;
    if (import)
        *ret = (DLDevice){device.device_type, dlx__gpu_import_device(import)};
    else if (pin && device.device_type == kDLCPU)
        *ret = dlx__pin_device(pin);
    else
        return false;
    return true;
}

/* The work has ended, or the GPU is lost, which has ended it, too: nobody is to wait for it. What
 * cannot be waited for by its streams is a reason to wait for everything. */
static void finish_export(struct dlx_export *e, int result)
{
    struct dlx_subscriber_link *link = e->message->link;
    DLDevice device;
    if (result < 0 && find_device(e, &device))
        result = dlx__gpu_wait_device((int32_t)device.device_type, device.device_id);
    if (result < 0)
        count(&link->n_gpu_errors);
    if (e->wait)
        dlx__gpu_wait_settle(e->wait);
    e->wait = dlx__gpu_wait_unref(e->wait);
    dlx__error_clear();
}

/* On the thread. */
static void release_done(struct dlx_gpu_job *job, int result)
{
    struct release *release = (struct release *)(void *)job;
    struct dlx_gpu_threads *threads = release->threads;
    finish_export(release->export, result);
    dlx__message_abandon(release->export); /* may be the last that refers to its link */
    free(release);
    (void)atomic_fetch_add_explicit(&threads->n_done, 1, memory_order_release);
    (void)syscall(SYS_futex, &threads->n_done, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* Locked. The one that waits for this stream, else one that has nothing to do: so a release waits
 * for other streams only if more are busy than there are threads. */
static struct dlx_gpu_order *find_releaser(struct dlx_gpu_threads *threads, uintptr_t stream)
{
    struct dlx_gpu_releaser *found = NULL;
    for (uint32_t i = 0; i < DLX_GPU_RELEASERS; i++) {
        struct dlx_gpu_releaser *releaser = &threads->releasers[i];
        if (dlx__gpu_order_is_idle(&releaser->order))
            found = found ? found : releaser;
        else if (stream != 0 && releaser->stream == stream)
            return &releaser->order;
    }
    if (!found)
        found = &threads->releasers[threads->next_releaser++ % DLX_GPU_RELEASERS];
    found->stream = stream;
    return &found->order;
}

/* If no other thread can be had, the first one has to do. */
static bool leave_to_thread(struct dlx_gpu_threads *threads, struct release *release)
{
    (void)pthread_mutex_lock(&threads->lock);
    atomic_fetch_add_explicit(&threads->n_added, 1, memory_order_relaxed);
    bool is_left = !threads->is_over &&
                   (dlx__gpu_order_try(find_releaser(threads, release->stream), &release->job) ||
                    dlx__gpu_order_try(&threads->releasers[0].order, &release->job));
    if (!is_left)
        atomic_fetch_sub_explicit(&threads->n_added, 1, memory_order_relaxed);
    (void)pthread_mutex_unlock(&threads->lock);
    return is_left;
}

/* Returns 1 if the thread releases the tensor; 0: its work is done (`*ret_waited`: it was waited
 * for); an error. */
static int record(struct dlx_export *e, DLDevice device, const struct dlx_gpu_streams *s,
                  bool *ret_waited)
{
    struct release *release = calloc(1, sizeof *release + s->n * sizeof release->events[0]);
    int r = release ? 0 : DLX_E_NO_MEMORY;
    for (uint32_t i = 0; r >= 0 && i < s->n; i++) {
        bool waited = false;
        r = dlx__gpu_event_record((int32_t)device.device_type, device.device_id, s->streams[i],
                                  &release->events[release->job.n_events], &waited);
        release->job.n_events += r == 1;
        *ret_waited |= waited;
    }
    if (r >= 0 && release->job.n_events > 0) {
        release->job.events = release->events;
        release->job.done = release_done;
        release->threads = e->message->link->gpu_threads;
        release->export = e;
        release->stream = s->n == 1 ? (uintptr_t)s->streams[0] + 1 : 0;
        if (release->threads && leave_to_thread(release->threads, release))
            return 1;
        *ret_waited = true;
        r = dlx__gpu_job_wait(&release->job);
    }
    for (uint32_t i = 0; release && i < release->job.n_events; i++)
        dlx__gpu_event_end(&release->events[i]);
    free(release);
    return DLX_MIN(r, 0);
}

bool dlx__gpu_release_tensor(struct dlx_export *e)
{
    struct dlx_gpu_streams *s = e->streams;
    struct dlx_subscriber_link *link = e->message->link;
    DLDevice device;
    bool waited = !s;
    int r = 0;
    if (dlx__forked(link->generation))
        return false;
    e->streams = NULL;
    if ((s || dlx__message_gpu_import(e)) && find_device(e, &device)) {
        r = s ? record(e, device, s, &waited) : DLX_E_EMPTY;
        if (r < 0)
            waited = true;
        if (waited)
            count(&link->n_gpu_waits);
        if (r < 1)
            finish_export(e, r);
    }
    free(s);
    return r == 1;
}

/* ---- its streams --------------------------------------------------------------------------- */

int dlx__gpu_use_on(struct dlx_export *e, void *stream)
{
    uint32_t n = e->streams ? e->streams->n : 0;
    for (uint32_t i = 0; i < n; i++)
        if (e->streams->streams[i] == stream)
            return 0;
    struct dlx_gpu_streams *s = realloc(e->streams, sizeof *s + (n + 1) * sizeof s->streams[0]);
    if (!s)
        return dlx__fail(DLX_E_NO_MEMORY, "list of %u streams", n + 1);
    s->streams[n] = stream;
    s->n = n + 1;
    e->streams = s;
    return 0;
}

/* For `call`: a received tensor of this process. */
static int check_received(const DLManagedTensorVersioned *tensor, const char *call)
{
    dlx__error_clear();
    if (!tensor || !dlx__message_of(tensor))
        return dlx__fail(DLX_E_INVALID, "%s: the tensor is not one of dlx_message_tensor()", call);
    return dlx__forked(dlx__message_of(tensor)->link->generation)
               ? dlx__fail_forked(dlx__message_of(tensor)->link->generation)
               : 0;
}

int dlx_tensor_used_on(DLManagedTensorVersioned *tensor, void *stream)
{
    int r = check_received(tensor, "dlx_tensor_used_on");
    if (r < 0)
        return r;
    struct dlx_export *e = tensor->manager_ctx;
    DLDevice device;
    if (!find_device(e, &device))
        return dlx__fail(DLX_E_DEVICE,
                         "dlx_tensor_used_on: the tensor is not on a GPU, or is empty, and its "
                         "subscription has no `pin`");
    if (!dlx__message_gpu_import(e))
        dlx__message_release_on_streams(tensor);
    return dlx__gpu_use_on(e, stream);
}

int dlx_tensor_status(const DLManagedTensorVersioned *tensor)
{
    int r = check_received(tensor, "dlx_tensor_status");
    if (r < 0)
        return r;
    const struct dlx_export *e = tensor->manager_ctx;
    return e->message->gpu && e->wait ? dlx__gpu_wait_result(e->wait) : 0;
}
