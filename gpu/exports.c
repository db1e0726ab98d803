/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/exports.h"
#include "common/error.h"
#include "gpu/backend.h"
#include <pthread.h>

/* From GONE on no thread can find the export any more. */
enum export_state { EXPORT_USED, EXPORT_IDLE, EXPORT_GONE, EXPORT_KEPT };

struct dlx_gpu_export {
    struct dlx_gpu_export *next;
    struct dlx_gpu_exports *exports;
    enum export_state state;
    bool is_ours; /* an arena: closed, not forgotten */
    uint32_t n_uses;
    uint64_t last_use;
    struct dlx_gpu_memory memory;
    struct dlx_gpu_handle handle;
};

struct dlx_gpu_exports {
    struct dlx_gpu_exports *next;
    uint64_t number; /* of the publisher */
    uint64_t *ids;   /* of it, one for each daemon that it was announced to */
    size_t n_ids;
    struct dlx_gpu_export *list;
    uint64_t last_id;
    uint64_t n_uses; /* a clock for last_use */
    bool is_ended;
};

/* One export at a time: of two publishers that share the same memory one exports it. Taken before
 * `lock`. */
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
/* Guards every list, state and count. No driver is called under it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct dlx_gpu_exports *all;

int dlx__gpu_exports_also(struct dlx_gpu_exports *exports, uint64_t id)
{
    (void)pthread_mutex_lock(&lock);
    uint64_t *ids = realloc(exports->ids, (exports->n_ids + 1) * sizeof *ids);
    if (ids) {
        ids[exports->n_ids++] = id;
        exports->ids = ids;
    }
    (void)pthread_mutex_unlock(&lock);
    return ids ? 0 : dlx__fail(DLX_E_NO_MEMORY, "no memory for a publisher's GPU memory");
}

/* The caller holds the lock. */
static bool exports_is_of(const struct dlx_gpu_exports *exports, struct dlx_gpu_publisher publisher)
{
    size_t i = 0;
    if (exports->number != publisher.number)
        return false;
    while (i < exports->n_ids && exports->ids[i] != publisher.id)
        i++;
    return i < exports->n_ids;
}

int dlx__gpu_exports_new(struct dlx_gpu_exports **ret, struct dlx_gpu_publisher publisher)
{
    struct dlx_gpu_exports *exports = calloc(1, sizeof *exports);
    if (!exports)
        return dlx__fail(DLX_E_NO_MEMORY, "no memory for a publisher's GPU memory");
    exports->number = publisher.number;
    int r = dlx__gpu_exports_also(exports, publisher.id);
    if (r < 0) {
        free(exports);
        return r;
    }
    (void)pthread_mutex_lock(&lock);
    exports->next = all;
    all = exports;
    (void)pthread_mutex_unlock(&lock);
    *ret = exports;
    return 0;
}

/* The caller holds the lock. Take the export off the list. */
static void unlink_export(struct dlx_gpu_export *export)
{
    struct dlx_gpu_export **at = &export->exports->list;
    while (*at != export)
        at = &(*at)->next;
    *at = export->next;
}

/* The caller holds the lock. */
static void unlink_exports(struct dlx_gpu_exports *exports)
{
    struct dlx_gpu_exports **at = &all;
    while (*at != exports)
        at = &(*at)->next;
    *at = exports->next;
}

/* The caller does not hold the lock: no thread can find the export any more. */
static void let_go(struct dlx_gpu_memory memory, struct dlx_gpu_handle handle, bool is_ours)
{
    dlx__gpu_handle_deinit(&handle);
    if (is_ours)
        memory.ops->close(&memory);
    else
        memory.ops->forget(&memory);
}

/* The caller holds the lock. A publisher that has ended is freed with its last export. */
static void free_if_empty(struct dlx_gpu_exports *exports)
{
    if (!exports->is_ended || exports->list)
        return;
    free(exports->ids);
    free(exports);
}

void dlx__gpu_exports_end(struct dlx_gpu_exports *exports)
{
    struct dlx_gpu_export *idle = NULL, *next;
    if (!exports || dlx__gpu_is_forked())
        return;
    (void)pthread_mutex_lock(&lock);
    unlink_exports(exports);
    exports->is_ended = true;
    for (struct dlx_gpu_export *export = exports->list; export; export = next) {
        next = export->next;
        if (export->state == EXPORT_USED)
            continue;
        unlink_export(export);
        export->next = idle;
        idle = export;
    }
    free_if_empty(exports);
    (void)pthread_mutex_unlock(&lock);
    for (; idle; idle = next) {
        next = idle->next;
        if (idle->state == EXPORT_IDLE)
            let_go(idle->memory, idle->handle, idle->is_ours);
        free(idle);
    }
}

/* An arena is where it is until it is closed: nothing else lies there. */
static bool is_same(const struct dlx_gpu_export *export, const struct dlx_gpu_memory *b)
{
    const struct dlx_gpu_memory *a = &export->memory;
    if (a->ops != b->ops || a->base != b->base || a->size != b->size || a->n_pieces != b->n_pieces)
        return false;
    for (uint32_t i = 0; i < a->n_pieces && !export->is_ours; i++) {
        if (a->pieces[i].identity == 0 || a->pieces[i].identity != b->pieces[i].identity)
            return false;
    }
    return true;
}

/* The caller holds the lock. */
static struct dlx_gpu_export *find_same(const struct dlx_gpu_exports *exports,
                                        const struct dlx_gpu_memory *memory)
{
    struct dlx_gpu_export *export = exports->list;
    while (export && (export->state >= EXPORT_GONE || !is_same(export, memory)))
        export = export->next;
    return export;
}

/* As another publisher of this process describes the memory, if one does: subscribers recognise it
 * by the token. Returns 1 if none does. */
static int describe_as_others(const struct dlx_gpu_memory *memory, struct dlx_gpu_handle *ret)
{
    const struct dlx_gpu_export *export = NULL;
    (void)pthread_mutex_lock(&lock);
    for (const struct dlx_gpu_exports *others = all; others && !export; others = others->next)
        export = find_same(others, memory);
    int r = export ? dlx__gpu_handle_copy(&export->handle, ret) : 1;
    (void)pthread_mutex_unlock(&lock);
    return r;
}

static int describe(const struct dlx_gpu_api *api, const struct dlx_gpu_memory *memory,
                    struct dlx_gpu_handle *ret)
{
    struct dlx_gpu_uuid device;
    int r = api->uuid(memory->device, &device);
    if (r == 0)
        r = describe_as_others(memory, ret);
    if (r == 1)
        r = memory->ops->export(memory, ret);
    if (r == 0)
        ret->device = device;
    return r;
}

/* An export with an id, on the list. */
static struct dlx_gpu_export *list_export(struct dlx_gpu_exports *exports,
                                          const struct dlx_gpu_export *export)
{
    struct dlx_gpu_export *listed = malloc(sizeof *listed);
    if (!listed)
        return NULL;
    *listed = *export;
    listed->exports = exports;
    (void)pthread_mutex_lock(&lock);
    listed->handle.id = ++exports->last_id;
    listed->next = exports->list;
    exports->list = listed;
    (void)pthread_mutex_unlock(&lock);
    return listed;
}

int dlx__gpu_exports_plan(struct dlx_gpu_exports *exports, struct dlx_gpu_export **ret)
{
    const struct dlx_gpu_export arena = {.state = EXPORT_KEPT, .is_ours = true};
    struct dlx_gpu_export *export = list_export(exports, &arena);
    if (!export)
        return dlx__fail(DLX_E_NO_MEMORY, "no memory for an export of GPU memory");
    *ret = export;
    return 0;
}

void dlx__gpu_export_fill(struct dlx_gpu_export *export, const struct dlx_gpu_memory *memory,
                          struct dlx_gpu_handle *take_handle)
{
    (void)pthread_mutex_lock(&lock);
    export->memory = *memory;
    export->handle = *take_handle;
    export->n_uses = 1;
    export->state = EXPORT_USED;
    (void)pthread_mutex_unlock(&lock);
    *take_handle = (struct dlx_gpu_handle){0};
}

/* Export the memory of a framework, which then belongs to the export. On failure it stays the
 * caller's, who holds `making`. */
static int exports_make(struct dlx_gpu_exports *exports, const struct dlx_gpu_api *api,
                        const struct dlx_gpu_memory *memory, struct dlx_gpu_export **ret)
{
    struct dlx_gpu_export export = {.n_uses = 1, .memory = *memory};
    int r = describe(api, memory, &export.handle);
    if (r < 0)
        return r;
    export.handle.kind = memory->ops->kind;
    export.handle.size = memory->size;
    export.handle.n_received = export.handle.n_chunks; /* complete */
    *ret = list_export(exports, &export);
    if (*ret)
        return 0;
    dlx__gpu_handle_deinit(&export.handle);
    return dlx__fail(DLX_E_NO_MEMORY, "no memory for an export of GPU memory");
}

/* One more use of an export of this memory, or NULL. */
static struct dlx_gpu_export *reuse(struct dlx_gpu_exports *exports,
                                    const struct dlx_gpu_memory *memory)
{
    (void)pthread_mutex_lock(&lock);
    struct dlx_gpu_export *export = find_same(exports, memory);
    if (export) {
        export->state = EXPORT_USED;
        export->n_uses++;
    }
    (void)pthread_mutex_unlock(&lock);
    return export;
}

int dlx__gpu_exports_share(struct dlx_gpu_exports *exports, int32_t device_type, int32_t device,
                           const void *ptr, uint64_t size, struct dlx_gpu_export **ret,
                           uint64_t *ret_offset)
{
    const struct dlx_gpu_api *api = NULL;
    struct dlx_gpu_memory memory;
    if (dlx__gpu_is_forked())
        return dlx__gpu_fail_forked();
    int r = dlx__gpu_api(device_type, &api);
    if (r < 0)
        return r;
    (void)pthread_mutex_lock(&making);
    r = api->classify(device, ptr, size, &memory);
    if (r == 0) {
        uint64_t offset = (uint64_t)((uintptr_t)ptr - (uintptr_t)memory.base);
        struct dlx_gpu_export *export = reuse(exports, &memory);
        if (!export)
            r = exports_make(exports, api, &memory, &export);
        else
            memory.ops->forget(&memory);
        if (r == 0) {
            *ret = export;
            *ret_offset = offset;
        } else {
            memory.ops->forget(&memory);
        }
    }
    (void)pthread_mutex_unlock(&making);
    return r;
}

const struct dlx_gpu_handle *dlx__gpu_export_handle(const struct dlx_gpu_export *export)
{
    return &export->handle;
}

void *dlx__gpu_export_base(const struct dlx_gpu_export *export)
{
    return export->memory.base;
}

int32_t dlx__gpu_export_device(const struct dlx_gpu_export *export)
{
    return export->memory.device;
}

struct dlx_gpu_export *dlx__gpu_export_ref(struct dlx_gpu_export *export)
{
    (void)pthread_mutex_lock(&lock);
    export->n_uses++;
    (void)pthread_mutex_unlock(&lock);
    return export;
}

/* The caller holds the lock. Find the idle export that was used longest ago, if too many are
 * idle. */
static struct dlx_gpu_export *excess(struct dlx_gpu_exports *exports)
{
    struct dlx_gpu_export *oldest = NULL;
    uint32_t n = 0;
    for (struct dlx_gpu_export *export = exports->list; export; export = export->next) {
        if (export->state != EXPORT_IDLE)
            continue;
        n++;
        if (!oldest || export->last_use < oldest->last_use)
            oldest = export;
    }
    return n > DLX_GPU_EXPORTS_IDLE_MAX ? oldest : NULL;
}

void dlx__gpu_export_unref(struct dlx_gpu_export *export)
{
    if (!export || dlx__gpu_is_forked())
        return;
    (void)pthread_mutex_lock(&lock);
    struct dlx_gpu_exports *exports = export->exports;
    struct dlx_gpu_export *gone = NULL;
    if (--export->n_uses == 0) {
        export->last_use = ++exports->n_uses;
        export->state = EXPORT_IDLE;
        bool stays = !exports->is_ended && !export->is_ours && !export->memory.ops->export_pins;
        gone = stays ? excess(exports) : export;
    }
    /* It stays on the list until its publisher has asked, but no thread can find it any more. */
    struct dlx_gpu_memory memory = {0};
    struct dlx_gpu_handle handle = {0};
    bool is_ours = false;
    if (gone) {
        gone->state = EXPORT_GONE;
        memory = gone->memory;
        handle = gone->handle;
        is_ours = gone->is_ours;
        if (exports->is_ended) {
            unlink_export(gone);
            free(gone);
            free_if_empty(exports);
        }
    }
    (void)pthread_mutex_unlock(&lock);
    if (memory.ops)
        let_go(memory, handle, is_ours);
}

/* The caller holds the lock. The first one in this state. */
static struct dlx_gpu_export *find_in_state(const struct dlx_gpu_exports *exports,
                                            enum export_state state)
{
    struct dlx_gpu_export *export = exports->list;
    while (export && export->state != state)
        export = export->next;
    return export;
}

bool dlx__gpu_exports_next_gone(struct dlx_gpu_exports *exports, uint64_t *ret_id)
{
    struct dlx_gpu_export *freed = NULL;
    (void)pthread_mutex_lock(&lock);
    struct dlx_gpu_export *export = find_in_state(exports, EXPORT_GONE);
    bool is_found = export != NULL;
    if (is_found) {
        *ret_id = export->handle.id;
        export->state = EXPORT_KEPT;
        if (!export->is_ours)
            unlink_export(freed = export);
    }
    (void)pthread_mutex_unlock(&lock);
    free(freed);
    return is_found;
}

uint64_t dlx__gpu_exports_kept(const struct dlx_gpu_exports *exports)
{
    (void)pthread_mutex_lock(&lock);
    const struct dlx_gpu_export *export = find_in_state(exports, EXPORT_KEPT);
    uint64_t id = export ? export->handle.id : 0;
    (void)pthread_mutex_unlock(&lock);
    return id;
}

void dlx__gpu_exports_told(struct dlx_gpu_exports *exports, uint64_t id)
{
    (void)pthread_mutex_lock(&lock);
    struct dlx_gpu_export *export = exports->list;
    while (export && (export->state != EXPORT_KEPT || export->handle.id != id))
        export = export->next;
    if (export)
        unlink_export(export);
    (void)pthread_mutex_unlock(&lock);
    free(export);
}

/* The caller holds the lock. NULL: there is none, or none any more. */
static struct dlx_gpu_export *find_id(const struct dlx_gpu_exports *exports, uint64_t id)
{
    struct dlx_gpu_export *export = exports->list;
    while (export && (export->state >= EXPORT_GONE || export->handle.id != id))
        export = export->next;
    return export;
}

static int fail_not_shared(uint64_t id)
{
    return dlx__fail(DLX_E_NOT_FOUND, "this process does not share GPU memory %llu any more",
                     (unsigned long long)id);
}

bool dlx__gpu_exports_have_descriptors(const struct dlx_gpu_exports *exports)
{
    (void)pthread_mutex_lock(&lock);
    const struct dlx_gpu_export *export = exports->list;
    while (export && (export->state >= EXPORT_GONE || export->handle.n_chunks == 0))
        export = export->next;
    (void)pthread_mutex_unlock(&lock);
    return export != NULL;
}

int dlx__gpu_exports_look(const struct dlx_gpu_exports *exports, uint64_t id,
                          int (*look)(const struct dlx_gpu_handle *handle, void *userdata),
                          void *userdata)
{
    (void)pthread_mutex_lock(&lock);
    const struct dlx_gpu_export *export = find_id(exports, id);
    int r = export ? look(&export->handle, userdata) : fail_not_shared(id);
    (void)pthread_mutex_unlock(&lock);
    return r;
}

int dlx__gpu_exports_find(struct dlx_gpu_publisher publisher, uint64_t id,
                          struct dlx_gpu_export **ret)
{
    struct dlx_gpu_export *export = NULL;
    (void)pthread_mutex_lock(&lock);
    struct dlx_gpu_exports *exports = all;
    while (exports && !exports_is_of(exports, publisher))
        exports = exports->next;
    if (exports)
        export = find_id(exports, id);
    if (export) {
        export->state = EXPORT_USED;
        export->n_uses++;
    }
    (void)pthread_mutex_unlock(&lock);
    if (exports && !export)
        return fail_not_shared(id);
    *ret = export;
    return 0;
}
