/* SPDX-License-Identifier: Apache-2.0 */
#include "client/message/message_gpu.h"
#include "client/gpu/gpu_keep.h"
#include "client/message/gpu_release.h"
#include "client/message/gpu_wait.h"
#include "common/packet.h"
#include "gpu/gpu.h"
#include "gpu/imports.h"
#include <inttypes.h>
#include <string.h>

/* Streams up to this number are special ones of CUDA. */
#define SPECIAL_STREAMS 2U

struct allocation {
    uint8_t bytes[DLX_SHM_ALLOCATION_SIZE]; /* a copy */
    struct dlx_gpu_handle handle;           /* all zero: this version cannot open it */
    struct dlx_gpu_import *import;
};

struct place {
    uint32_t allocation; /* 1: the first; 0: none */
    uint64_t offset;
};

struct dlx_message_gpu {
    pthread_mutex_t lock; /* for `import` of all of them, and `wait` */
    struct dlx_gpu_publisher publisher;
    dlx_atomic_u32 *ready;     /* in the manifest */
    int64_t timeout_ns;        /* how long it is waited for */
    struct dlx_client *client; /* to ask for descriptors; NULL: there are none */
    struct dlx_gpu_wait *wait; /* of the stream that waited last; NULL: none has */
    void *wait_stream;
    struct place *places; /* [n_tensors] */
    uint32_t n_allocations;
    struct allocation allocations[];
};

static int decode(struct allocation *a)
{
    return dlx__gpu_handle_decode_outline(&a->handle, a->bytes);
}

int dlx__message_gpu_new(struct dlx_subscriber_link *link, const struct dlx_manifest *manifest,
                         struct dlx_message_gpu **ret)
{
    uint32_t n = manifest->n_allocations;
    struct dlx_message_gpu *gpu = calloc(1, sizeof *gpu + n * sizeof gpu->allocations[0]);
    struct place *places = calloc(manifest->header.n_tensors, sizeof *places);
    if (!gpu || !places) {
        free(gpu);
        free(places);
        return dlx__fail(DLX_E_NO_MEMORY, "table of %u allocations", n);
    }
    (void)pthread_mutex_init(&gpu->lock, NULL);
    uint64_t number = *(const volatile uint64_t *)&manifest->gpu->publisher;
    gpu->publisher = (struct dlx_gpu_publisher){number, link->publisher};
    gpu->ready = (dlx_atomic_u32 *)(uintptr_t)&manifest->gpu->ready; /* to be read */
    gpu->timeout_ns = link->client->timeout_ns;
    atomic_store_explicit(&link->gpu_publisher, number, memory_order_relaxed);
    gpu->places = places;
    gpu->n_allocations = n;
    for (uint32_t i = 0; i < n; i++) {
        struct allocation *a = &gpu->allocations[i];
        memcpy(a->bytes, manifest->allocations + (size_t)i * sizeof a->bytes, sizeof a->bytes);
        __asm__ volatile("" ::: "memory"); /* from here on only the private copy is looked at */
        int r = decode(a);
        if (r < 0 && r != DLX_E_VERSION) { /* of a later version: said when it is to be opened */
            dlx__message_gpu_free(gpu);
            return dlx__fail_prefix(DLX_E_BAD_PEER, "allocation %u", i + 1);
        }
        if (a->handle.n_chunks > 0 && !gpu->client)
            gpu->client = dlx__client_ref(link->client);
    }
    *ret = gpu;
    return 0;
}

struct dlx_message_gpu *dlx__message_gpu_free(struct dlx_message_gpu *gpu)
{
    if (!gpu)
        return NULL;
    for (uint32_t i = 0; i < gpu->n_allocations; i++) {
        dlx__gpu_import_unref(gpu->allocations[i].import);
        dlx__gpu_handle_deinit(&gpu->allocations[i].handle);
    }
    (void)dlx__gpu_wait_unref(gpu->wait);
    (void)pthread_mutex_destroy(&gpu->lock);
    dlx__client_unref(gpu->client);
    free(gpu->places);
    free(gpu);
    return NULL;
}

void dlx__message_gpu_leave(const struct dlx_subscriber_link *link)
{
    uint64_t number = atomic_load_explicit(&link->gpu_publisher, memory_order_relaxed);
    if (number != 0)
        dlx__gpu_imports_gone((struct dlx_gpu_publisher){number, link->publisher}, 0);
}

static int32_t device_type_of(enum dlx_gpu_kind kind)
{
    return kind == DLX_GPU_HIP_IPC || kind == DLX_GPU_HIP_VMM ? kDLROCM : kDLCUDA;
}

int dlx__message_gpu_place(struct dlx_message_gpu *gpu, uint32_t i,
                           const struct dlx_manifest_item *item, const int64_t *shape,
                           const int64_t *strides)
{
    uint64_t size = 0;
    if (item->allocation > 0) { /* dlx__manifest_item(): there are so many */
        const struct dlx_gpu_handle *handle = &gpu->allocations[item->allocation - 1].handle;
        size = handle->id != 0 ? handle->size : UINT64_MAX;
        if (handle->id != 0 && item->record.device_type != device_type_of(handle->kind))
            return dlx__fail(DLX_E_BAD_PEER, "tensor on device type %d in an allocation of kind %s",
                             item->record.device_type, dlx__gpu_kind_text(handle->kind));
        gpu->places[i] = (struct place){item->allocation, item->record.offset};
    }
    return dlx__record_check_gpu(&item->record, shape, strides, size);
}

/* ---- open ---------------------------------------------------------------------------------- */

int dlx__message_gpu_fetch(struct dlx_client *c, const struct dlx_subscriber_link *link,
                           uint64_t allocation, struct dlx_gpu_handle *ret)
{
    int r = dlx__gpu_keep_get(c, link->id, link->origin, allocation, ret);
    return r < 0 && r != DLX_E_FORKED
               ? dlx__fail_prefix(r, "GPU memory %" PRIu64 " of %s", allocation, link->topic)
               : r;
}

static int fetch_parts(void *userdata, uint64_t id, struct dlx_gpu_handle *ret)
{
    const struct dlx_message *m = userdata;
    return dlx__message_gpu_fetch(m->gpu->client, m->link, id, ret);
}

/* Locked. What the driver says of memory of a process that has ended is one of many codes. */
static int open_allocation(struct dlx_message *m, struct allocation *a)
{
    if (a->handle.id == 0) {
        int r = decode(a);
        return r < 0 ? r : DLX_E_VERSION; /* it says why */
    }
    const struct dlx_gpu_fetch fetch = {.call = fetch_parts, .userdata = m};
    int r = dlx__gpu_import(m->gpu->publisher, &a->handle, DLX_GPU_HOME, DLX_GPU_READ, &fetch,
                            &a->import);
    bool is_of_driver = r == DLX_E_SYSTEM || r == DLX_E_NOT_FOUND || r == DLX_E_ACCESS;
    return is_of_driver && dlx__packet_hung_up(m->link->bell)
               ? dlx__fail_prefix(DLX_E_PUBLISHER_GONE,
                                  "the publisher is gone, and its GPU memory with it")
               : r;
}

static bool is_publisher_gone(const void *userdata)
{
    const struct dlx_message *m = userdata;
    return dlx__packet_hung_up(m->link->bell);
}

static int fail_tensor(const struct dlx_message *m, uint32_t i, int r)
{
    return dlx__fail_prefix(r, "topic %s, publisher %" PRIu64 " (pid %u), tensor %u",
                            m->link->topic, m->link->publisher, m->link->pid, i);
}

int dlx__message_gpu_open(struct dlx_message *m, uint32_t i, DLTensor *tensor)
{
    struct dlx_message_gpu *gpu = m->gpu;
    const struct place *place = &gpu->places[i];
    int r = 0;
    if (place->allocation == 0)
        return 0;
    struct allocation *a = &gpu->allocations[place->allocation - 1];
    (void)pthread_mutex_lock(&gpu->lock);
    if (!a->import)
        r = open_allocation(m, a);
    (void)pthread_mutex_unlock(&gpu->lock);
    if (r < 0)
        return fail_tensor(m, i, r);
    tensor->data = (uint8_t *)dlx__gpu_import_base(a->import) + place->offset;
    tensor->device.device_id = dlx__gpu_import_device(a->import);
    return 0;
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
    e->wait = dlx__gpu_wait_ref(gpu->wait);
    return true;
}

static int let_stream_wait(struct dlx_export *e, void *stream)
{
    struct dlx_message_gpu *gpu = e->message->gpu;
    const struct dlx_gpu_wait_args args = {
        .m = e->message,
        .word = gpu->ready,
        .deadline = dlx__deadline(gpu->timeout_ns),
        .is_gone = is_publisher_gone,
        .device_type = (int32_t)e->message->tensors[e->i].device.device_type,
        .device = dlx__gpu_import_device(dlx__message_gpu_import(e)),
        .stream = stream,
    };
    int r = 0;
    (void)pthread_mutex_lock(&gpu->lock);
    if (!share_wait(gpu, e, stream)) {
        r = dlx__gpu_wait_add(e->message->link->gpu_threads, &args, &e->wait);
        if (r == 0) {
            (void)dlx__gpu_wait_unref(gpu->wait);
            gpu->wait = dlx__gpu_wait_ref(e->wait);
            gpu->wait_stream = stream;
        }
    }
    (void)pthread_mutex_unlock(&gpu->lock);
    return r;
}

int dlx__message_gpu_await(struct dlx_export *e, void *const *stream)
{
    struct dlx_message *m = e->message;
    const struct dlx_message_gpu *gpu = m->gpu;
    if (!dlx__message_gpu_import(e))
        return 0;
    int r = stream ? dlx__gpu_use_on(e, *stream) : 0;
    if (r == 0 && dlx_likely(are_streams_ordered(gpu)))
        return 0;
    if (r == 0 && stream) {
        r = let_stream_wait(e, *stream);
        if (r == 0)
            return 0;
        if (r != DLX_E_INVALID) /* it is being captured */
            atomic_fetch_add_explicit(&m->link->n_gpu_waits, 1, memory_order_relaxed);
    }
    if (r != DLX_E_INVALID) {
        dlx__error_clear();
        r = dlx__gpu_wait_ready(gpu->ready, dlx__deadline(gpu->timeout_ns), is_publisher_gone, m);
    }
    if (r == 0)
        return 0;
    free(e->streams);
    e->streams = NULL;
    return fail_tensor(m, e->i, r);
}

const struct dlx_gpu_import *dlx__message_gpu_import(const struct dlx_export *e)
{
    const struct dlx_message_gpu *gpu = e->message->gpu;
    uint32_t allocation = gpu ? gpu->places[e->i].allocation : 0;
    return allocation > 0 ? gpu->allocations[allocation - 1].import : NULL;
}

int dlx_message_status(const struct dlx_message *m)
{
    dlx__error_clear();
    if (!m)
        return dlx__fail(DLX_E_INVALID, "dlx_message_status: message is NULL");
    if (dlx__forked(m->link->generation))
        return dlx__fail_forked(m->link->generation);
    if (!m->gpu)
        return 0;
    (void)pthread_mutex_lock(&m->gpu->lock);
    int r = m->gpu->wait ? dlx__gpu_wait_result(m->gpu->wait) : 0;
    (void)pthread_mutex_unlock(&m->gpu->lock);
    return r;
}
