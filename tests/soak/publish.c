/* SPDX-License-Identifier: Apache-2.0 */

/* A publisher's life. */

#include "tests/soak/actor.h"
#include "tests/soak/payload.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_KEPT         3
#define BATCH_MAX      8
#define BYTES_A_SECOND (UINT64_C(64) << 20)

/* How large its messages are, and how often they come. */
static const struct {
    uint64_t most;
    uint32_t history_max;
    uint32_t pause_us;
} classes[] = {
    {64, 256, 300},      {4096, 64, 500},           {1 << 18, 16, 3000},
    {2 << 20, 8, 20000}, {SOAK_SIZE_MAX, 3, 60000},
};

struct author {
    struct soak_part *part;
    struct dlx_publisher *p;
    bool blocks;
    uint64_t size_max, pause_us;
    uint64_t prev_ns;                       /* when the message before began */
    DLManagedTensorVersioned *kept[N_KEPT]; /* shared with messages */
    uint64_t kept_seed[N_KEPT];
    unsigned kept_uses;
};

static uint64_t a_size(struct author *a)
{
    return soak_once_in(a->part, 8) ? a->size_max : soak_random_log(a->part, a->size_max);
}

static DLManagedTensorVersioned *allocate(struct author *a, const int64_t *shape, int32_t ndim)
{
    DLManagedTensorVersioned *t;
    struct dlx_tensor_spec spec = {
        .size = sizeof spec, .dtype = {kDLUInt, 8, 1}, .ndim = ndim, .shape = shape};
    int r = dlx_alloc(a->p, &spec, &t);
    if (r == 0)
        return t;
    soak_error(a->part, r, "dlx_alloc");
    return NULL;
}

static void free_private(DLManagedTensorVersioned *t)
{
    free(t->dl_tensor.data);
    free(t);
}

/* Of private memory, to be copied. The shape lies behind the struct. */
static DLManagedTensorVersioned *private_tensor(uint64_t size)
{
    DLManagedTensorVersioned *t = calloc(1, sizeof *t + sizeof(int64_t));
    void *data = malloc(size + 1);
    if (!t || !data)
        soak_fault("out of memory");
    int64_t *shape = (int64_t *)(void *)(t + 1);
    *shape = (int64_t)size;
    t->version = (DLPackVersion){DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
    t->deleter = free_private;
    t->dl_tensor = (DLTensor){
        .data = data, .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLUInt, 8, 1}, .shape = shape};
    return t;
}

static void drop(DLManagedTensorVersioned *t)
{
    if (t)
        t->deleter(t);
}

/* A tensor of the publisher, or a private one; NULL when there is no memory. */
static DLManagedTensorVersioned *any_tensor(struct author *a, uint64_t size)
{
    int64_t shape = (int64_t)size;
    return soak_once_in(a->part, 3) ? private_tensor(size) : allocate(a, &shape, 1);
}

static struct soak_header header_of(struct author *a, uint64_t n_tensors)
{
    struct soak_header h = {.magic = SOAK_MAGIC,
                            .key = a->part->object->key,
                            .seq = a->part->object->done + 1,
                            .prev_ns = a->prev_ns,
                            .n_tensors = n_tensors};
    for (uint64_t i = 0; i < n_tensors; i++)
        h.seed[i] = soak_random(a->part, UINT64_MAX);
    return h;
}

/* Publish until it is out, or the publisher is to end. `items` NULL: the one tensor. */
static bool publish(struct author *a, const struct dlx_item *items, uint32_t n,
                    const struct soak_header *header, DLManagedTensorVersioned *t, bool share,
                    uint64_t bytes)
{
    struct soak_object *o = a->part->object;
    struct dlx_publish_report report = {.size = sizeof report};
    const struct dlx_publish_args args = {.size = sizeof args,
                                          .timeout_ns = soak_once_in(a->part, 4) ? 0 : 50 * SOAK_MS,
                                          .share = share,
                                          .report = &report};
    struct dlx_bytes meta = {header, sizeof *header};
    uint64_t began_ns = soak_now_ns();
    __atomic_store_n(&o->begun, o->done + 1, __ATOMIC_RELEASE);
    for (;;) {
        int r = items ? dlx_publish_set(a->p, items, n, &meta, &args) : dlx_publish(a->p, t, &args);
        if (r == 0)
            break;
        soak_error(a->part, r, "dlx_publish");
        if (atomic_load(&soak_phase) != SOAK_RUN || soak_now_ns() > a->part->until_ns) {
            __atomic_store_n(&o->begun, o->done, __ATOMIC_RELEASE);
            return false;
        }
        if (r != DLX_E_TIMEOUT)
            soak_sleep_ns(2 * SOAK_MS);
        began_ns = soak_now_ns();
    }
    if (report.seq != o->done + 1)
        soak_fault("topic %s: message %" PRIu64 " was published as %" PRIu64, o->topic, o->done + 1,
                   report.seq);
    __atomic_store_n(&o->done, report.seq, __ATOMIC_RELEASE);
    a->prev_ns = began_ns;
    o->bytes += bytes;
    return true;
}

static void one_tensor(struct author *a)
{
    uint64_t size = sizeof(struct soak_header) + a_size(a);
    struct soak_header header = header_of(a, 1);
    DLManagedTensorVersioned *t = any_tensor(a, size);
    if (!t)
        return;
    uint8_t *data = t->dl_tensor.data;
    memcpy(data, &header, sizeof header);
    soak_fill(data + sizeof header, size - sizeof header, header.seed[0]);
    if (!publish(a, NULL, 1, &header, t, false, size))
        drop(t);
}

/* Publish all of them, or as many as go out before the publisher is to end; returns how many
 * did. */
static uint32_t publish_batch(struct author *a, DLManagedTensorVersioned **tensors, uint32_t n)
{
    struct soak_object *o = a->part->object;
    struct dlx_publish_report report = {.size = sizeof report};
    const struct dlx_publish_args args = {.size = sizeof args,
                                          .timeout_ns = soak_once_in(a->part, 4) ? 0 : 50 * SOAK_MS,
                                          .report = &report};
    uint32_t at = 0;
    a->prev_ns = soak_now_ns();
    __atomic_store_n(&o->begun, o->done + n, __ATOMIC_RELEASE);
    while (at < n) {
        uint32_t done = UINT32_MAX;
        int r = dlx_publish_n(a->p, tensors + at, n - at, &args, &done);
        if (done > n - at || (r == 0 && done < n - at) ||
            (done > 0 && report.seq != o->done + done))
            soak_fault("topic %s: of %u messages after %" PRIu64
                       " %u were published, up to %" PRIu64,
                       o->topic, n - at, o->done, done, report.seq);
        at += done;
        __atomic_store_n(&o->done, o->done + done, __ATOMIC_RELEASE);
        if (r == 0)
            break;
        soak_error(a->part, r, "dlx_publish_n");
        if (atomic_load(&soak_phase) != SOAK_RUN || soak_now_ns() > a->part->until_ns)
            break;
        if (r != DLX_E_TIMEOUT)
            soak_sleep_ns(2 * SOAK_MS);
    }
    __atomic_store_n(&o->begun, o->done, __ATOMIC_RELEASE);
    return at;
}

static void batch_of_messages(struct author *a)
{
    DLManagedTensorVersioned *tensors[BATCH_MAX];
    uint64_t bytes[BATCH_MAX];
    uint32_t n = 2 + (uint32_t)soak_random(a->part, BATCH_MAX - 1), made = 0;
    for (; made < n; made++) {
        uint64_t size = sizeof(struct soak_header) + a_size(a) / n;
        struct soak_header header = header_of(a, 1);
        header.seq += made;
        header.prev_ns = made == 0 ? header.prev_ns : 0;
        tensors[made] = any_tensor(a, size);
        if (!tensors[made])
            break;
        uint8_t *data = tensors[made]->dl_tensor.data;
        memcpy(data, &header, sizeof header);
        soak_fill(data + sizeof header, size - sizeof header, header.seed[0]);
        bytes[made] = size;
    }
    uint32_t out = made > 0 ? publish_batch(a, tensors, made) : 0;
    for (uint32_t i = 0; i < made; i++) {
        if (i >= out)
            drop(tensors[i]);
        else
            a->part->object->bytes += bytes[i];
    }
}

static void empty_tensor(struct author *a)
{
    struct soak_header header = header_of(a, 1);
    const int64_t shape[3] = {0, (int64_t)header.key, (int64_t)header.seq};
    DLManagedTensorVersioned *t = allocate(a, shape, 3);
    if (t && !publish(a, NULL, 1, &header, t, false, 0))
        drop(t);
}

static void set_of_tensors(struct author *a)
{
    uint32_t n = 1 + (uint32_t)soak_random(a->part, SOAK_TENSORS);
    struct soak_header header = header_of(a, n);
    struct dlx_item items[SOAK_TENSORS];
    char names[SOAK_TENSORS][16];
    uint64_t bytes = 0;
    bool out = false;
    uint32_t made = 0;
    for (; made < n; made++) {
        uint64_t size = a_size(a) / n;
        (void)snprintf(names[made], sizeof names[made], "tensor %u", made);
        items[made] = (struct dlx_item){names[made], any_tensor(a, size)};
        if (!items[made].tensor)
            break;
        soak_fill(items[made].tensor->dl_tensor.data, size, header.seed[made]);
        bytes += size;
    }
    if (made == n)
        out = publish(a, items, n, &header, NULL, false, bytes);
    for (uint32_t i = 0; !out && i < made; i++)
        drop(items[i].tensor);
}

static void drop_kept(struct author *a)
{
    for (int i = 0; i < N_KEPT; i++) {
        drop(a->kept[i]);
        a->kept[i] = NULL;
    }
}

/* The same tensors in message after message. */
static void shared_tensors(struct author *a)
{
    struct dlx_item items[N_KEPT];
    struct soak_header header = header_of(a, N_KEPT);
    uint64_t bytes = 0;
    if (a->kept_uses == 0)
        drop_kept(a);
    for (int i = 0; i < N_KEPT; i++) {
        if (!a->kept[i]) {
            int64_t size = (int64_t)(a_size(a) / N_KEPT);
            a->kept[i] = allocate(a, &size, 1);
            if (!a->kept[i])
                return;
            a->kept_seed[i] = header.seed[i];
            soak_fill(a->kept[i]->dl_tensor.data, (uint64_t)size, header.seed[i]);
            a->kept_uses = 1 + (unsigned)soak_random(a->part, 10);
        }
        header.seed[i] = a->kept_seed[i];
        items[i] = (struct dlx_item){NULL, a->kept[i]};
        bytes += (uint64_t)a->kept[i]->dl_tensor.shape[0];
    }
    if (publish(a, items, N_KEPT, &header, NULL, true, bytes))
        a->kept_uses--;
}

static void publish_one(struct author *a)
{
    switch (soak_random(a->part, 9)) {
    case 8:
        batch_of_messages(a);
        break;
    case 0:
        empty_tensor(a);
        break;
    case 1:
    case 2:
        set_of_tensors(a);
        break;
    case 3:
        shared_tensors(a);
        break;
    default:
        one_tensor(a);
    }
}

static struct dlx_publisher *announce(struct author *a)
{
    const uint64_t depth_max = 600; /* its ring has more than the fewest entries */
    struct soak_part *part = a->part;
    struct soak_object *o = part->object;
    size_t class = soak_random(part, sizeof classes / sizeof *classes);
    struct dlx_publisher_args args = {.size = sizeof args};
    struct dlx_publisher *p;
    int r;
    a->blocks = soak_once_in(part, 2);
    a->size_max = classes[class].most;
    a->pause_us = soak_once_in(part, 4) ? 0 : soak_random(part, classes[class].pause_us * 2);
    (void)snprintf(o->topic, sizeof o->topic, "soak/%s/%u", a->blocks ? "block" : "drop",
                   (unsigned)soak_random(part, 5));
    args.on_full = a->blocks ? DLX_ON_FULL_BLOCK : DLX_ON_FULL_DROP;
    args.history = 1 + (uint32_t)soak_random(part, classes[class].history_max);
    if (soak_once_in(part, 2))
        args.depth = 1 + (uint32_t)soak_random_log(part, depth_max);
    if (soak_once_in(part, 3)) {
        args.retain = 1 + (uint32_t)soak_random(part, args.history);
        args.retain_for_ns = soak_once_in(part, 3) ? DLX_RETAIN_LATCHED
                             : soak_once_in(part, 2)
                                 ? (int64_t)soak_random(part, 4000) * SOAK_MS + 1
                                 : 0;
    }
    o->begun_ns = soak_now_ns();
    o->state = SOAK_BEGUN;
    for (;;) {
        r = dlx_publisher_new(part->client, o->topic, &args, &p);
        if (r == 0)
            break;
        soak_error(part, r, "dlx_publisher_new");
        if (atomic_load(&soak_phase) != SOAK_RUN)
            return NULL;
        soak_sleep_ns(20 * SOAK_MS);
    }
    o->ready_ns = soak_now_ns();
    o->state = SOAK_ALIVE;
    return p;
}

void soak_publish(struct soak_part *part)
{
    struct author a = {.part = part};
    struct soak_object *o = part->object;
    o->kind = SOAK_PUBLISHER;
    a.p = announce(&a);
    if (!a.p) {
        o->state = SOAK_UNUSED;
        return;
    }
    while (atomic_load(&soak_phase) == SOAK_RUN && soak_now_ns() < part->until_ns) {
        uint64_t before = o->bytes;
        publish_one(&a);
        uint64_t ns = (o->bytes - before) * 1000000000 / BYTES_A_SECOND;
        ns += a.pause_us > 0 ? soak_random(part, a.pause_us * 1000) : 0;
        if (soak_once_in(part, 2000))
            ns += soak_random(part, 500) * (uint64_t)SOAK_MS;
        if (ns > 50000)
            soak_sleep_ns(ns);
    }
    bool first = soak_once_in(part, 2);
    if (first) /* tensors may go before or after their publisher */
        drop_kept(&a);
    dlx_publisher_unref(a.p);
    drop_kept(&a);
    o->ended_ns = soak_now_ns();
    o->state = SOAK_CLOSED;
}
