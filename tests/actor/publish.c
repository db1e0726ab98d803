/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/actor/actor.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

bool actor_announce(struct actor_publisher *p, const struct dlx_publisher_args *args)
{
    struct actor_object *o = p->part->object;
    int r;
    actor_begins(p->part);
    while ((r = dlx_publisher_new(p->part->client, o->topic, args, &p->p)) < 0)
        if (!actor_begins_again(p->part, r, "dlx_publisher_new"))
            return false;
    actor_has_begun(p->part);
    return true;
}

void actor_withdraw(struct actor_publisher *p)
{
    p->p = dlx_publisher_unref(p->p);
    actor_ends(p->part);
}

struct actor_draft actor_draft_begin(struct actor_publisher *p, uint64_t n)
{
    struct actor_draft draft = {.header = {.magic = ACTOR_MAGIC,
                                           .key = p->part->object->key,
                                           .seq = p->part->object->done + 1 + n,
                                           .prev_ns = n == 0 ? p->prev_ns : 0}};
    for (size_t i = 0; i < ACTOR_TENSORS; i++)
        draft.header.seed[i] = actor_random(p->part, UINT64_MAX);
    return draft;
}

DLManagedTensorVersioned *actor_alloc(struct actor_publisher *p, const int64_t *shape, int32_t ndim)
{
    DLManagedTensorVersioned *t;
    const struct dlx_tensor_spec spec = {
        .size = sizeof spec, .dtype = {kDLUInt, 8, 1}, .ndim = ndim, .shape = shape};
    int r = dlx_alloc(p->p, &spec, &t);
    if (r == 0)
        return t;
    actor_error(p->part->object, r, "dlx_alloc");
    return NULL;
}

static void free_private(DLManagedTensorVersioned *t)
{
    free(t);
}

/* The shape lies behind the struct, and the data behind the shape. */
DLManagedTensorVersioned *actor_alloc_private(uint64_t size)
{
    DLManagedTensorVersioned *t = calloc(1, sizeof *t + sizeof(int64_t) + size);
    if (!t)
        return NULL;
    int64_t *shape = (int64_t *)(void *)(t + 1);
    *shape = (int64_t)size;
    t->version = (DLPackVersion){DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
    t->deleter = free_private;
    t->dl_tensor = (DLTensor){.data = shape + 1,
                              .device = {kDLCPU, 0},
                              .ndim = 1,
                              .dtype = {kDLUInt, 8, 1},
                              .shape = shape};
    return t;
}

void actor_drop(DLManagedTensorVersioned *t)
{
    if (t)
        t->deleter(t);
}

bool actor_draft_add(struct actor_publisher *p, struct actor_draft *draft, uint64_t size,
                     bool private, const char *name)
{
    uint64_t i = draft->header.n_tensors, skip = draft->is_set ? 0 : sizeof draft->header;
    int64_t shape = (int64_t)(size + skip);
    DLManagedTensorVersioned *t =
        private ? actor_alloc_private(size + skip) : actor_alloc(p, &shape, 1);
    if (!t)
        return false;
    actor_fill((uint8_t *)t->dl_tensor.data + skip, size, draft->header.seed[i]);
    draft->items[i] = (struct dlx_item){name, t};
    draft->header.n_tensors++;
    draft->header.n_bytes += size + skip;
    return true;
}

void actor_draft_drop(struct actor_draft *draft)
{
    for (uint64_t i = 0; i < draft->header.n_tensors && !draft->share; i++)
        actor_drop(draft->items[i].tensor);
}

/* An empty tensor has no room for it. */
static void write_header(struct actor_draft *draft)
{
    draft->header.sent_ns = actor_now_ns();
    if (!draft->is_set && draft->header.n_bytes > 0)
        memcpy(draft->items[0].tensor->dl_tensor.data, &draft->header, sizeof draft->header);
}

/* A call failed; false: the publisher is to end. */
static bool try_again(struct actor_publisher *p, int code, const char *what)
{
    actor_error(p->part->object, code, what);
    if (!actor_goes_on(p->part))
        return false;
    if (code != DLX_E_TIMEOUT)
        actor_sleep_ns(2 * ACTOR_MS);
    return true;
}

bool actor_publish(struct actor_publisher *p, struct actor_draft *draft, int64_t timeout_ns)
{
    struct actor_object *o = p->part->object;
    struct dlx_publish_report report = {.size = sizeof report};
    const struct dlx_publish_args args = {
        .size = sizeof args, .timeout_ns = timeout_ns, .share = draft->share};
    const struct dlx_bytes meta = {&draft->header, sizeof draft->header};
    uint64_t began_ns;
    int r;
    write_header(draft);
    __atomic_store_n(&o->begun, o->done + 1, __ATOMIC_RELEASE);
    do {
        began_ns = actor_now_ns();
        r = draft->is_set ? dlx_publish_set(p->p, draft->items, (uint32_t)draft->header.n_tensors,
                                            &meta, &args, &report)
                          : dlx_publish(p->p, draft->items[0].tensor, &args, &report);
        if (r < 0 && !try_again(p, r, "dlx_publish")) {
            __atomic_store_n(&o->begun, o->done, __ATOMIC_RELEASE);
            actor_draft_drop(draft);
            return false;
        }
    } while (r < 0);
    if (report.seq != o->done + 1)
        actor_fault("topic %s: message %" PRIu64 " was published as %" PRIu64, o->topic,
                    o->done + 1, report.seq);
    __atomic_store_n(&o->done, report.seq, __ATOMIC_RELEASE);
    p->prev_ns = began_ns;
    o->bytes += draft->header.n_bytes;
    return true;
}

void actor_publish_batch(struct actor_publisher *p, struct actor_draft *drafts, uint32_t n,
                         int64_t timeout_ns)
{
    struct actor_object *o = p->part->object;
    struct dlx_publish_report report = {.size = sizeof report};
    const struct dlx_publish_args args = {.size = sizeof args, .timeout_ns = timeout_ns};
    DLManagedTensorVersioned *tensors[ACTOR_BATCH_MAX];
    uint32_t at = 0;
    int r;
    for (uint32_t i = 0; i < n; i++) {
        write_header(&drafts[i]);
        tensors[i] = drafts[i].items[0].tensor;
    }
    p->prev_ns = actor_now_ns();
    __atomic_store_n(&o->begun, o->done + n, __ATOMIC_RELEASE);
    do {
        uint32_t done = UINT32_MAX;
        r = dlx_publish_n(p->p, tensors + at, n - at, &args, &report, &done);
        if (done > n - at || (r == 0 && done < n - at) ||
            (done > 0 && report.seq != o->done + done))
            actor_fault("topic %s: of %u messages after %" PRIu64
                        " %u were published, up to %" PRIu64,
                        o->topic, n - at, o->done, done, report.seq);
        at += done;
        __atomic_store_n(&o->done, o->done + done, __ATOMIC_RELEASE);
    } while (r < 0 && try_again(p, r, "dlx_publish_n"));
    __atomic_store_n(&o->begun, o->done, __ATOMIC_RELEASE);
    for (uint32_t i = 0; i < n; i++) {
        if (i >= at)
            actor_draft_drop(&drafts[i]);
        else
            o->bytes += drafts[i].header.n_bytes;
    }
}
