/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/imports.h"
#include "common/error.h"
#include "gpu/gpu.h"
#include <pthread.h>
#include <string.h>

enum import_state { IMPORT_OPENING, IMPORT_USED, IMPORT_IDLE, IMPORT_CLOSING };

struct dlx_gpu_import {
    struct dlx_gpu_import *next, *next_closing;
    enum import_state state;
    struct dlx_gpu_publisher publisher;
    uint64_t id;
    const struct dlx_gpu_ops *ops;
    uint8_t token[sizeof((struct dlx_gpu_handle *)0)->token];
    int32_t home; /* the GPU that has the memory */
    int32_t device;
    enum dlx_gpu_access access;
    uint32_t n_uses;
    uint64_t last_use;
    uint64_t idle_most;            /* bytes of `home` that may be idle */
    struct dlx_gpu_memory memory;  /* if its caller placed it: not on the list */
    struct dlx_gpu_export *export; /* of this process: not on the list, and `memory` is empty */
};

/* A publisher, and how many links of this process there are to it. */
struct source {
    struct source *next;
    struct dlx_gpu_publisher publisher;
    uint32_t n_links;
};

/* Guards the lists, states and counts. No driver is called under it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t settled = PTHREAD_COND_INITIALIZER; /* one is no longer OPENING or CLOSING */
static struct dlx_gpu_import *list;
static struct source *sources;
static uint64_t n_uses_ever;

static bool is_publisher(struct dlx_gpu_publisher a, struct dlx_gpu_publisher b)
{
    return a.number == b.number && a.id == b.id;
}

/* The caller holds the lock. What points to the source; to NULL: no link goes to this publisher. */
static struct source **find_source(struct dlx_gpu_publisher publisher)
{
    struct source **at = &sources;
    while (*at && !is_publisher((*at)->publisher, publisher))
        at = &(*at)->next;
    return at;
}

static bool imports_has(const struct dlx_gpu_import *import, const struct dlx_gpu_import *like)
{
    if (like->ops->opens_once) /* for reading and writing: those kinds have no other access */
        return import->ops == like->ops &&
               memcmp(import->token, like->token, sizeof import->token) == 0;
    return import->state != IMPORT_CLOSING && import->id == like->id &&
           import->device == like->device && import->access == like->access &&
           is_publisher(import->publisher, like->publisher);
}

/* The caller holds the lock. */
static struct dlx_gpu_import *imports_find(const struct dlx_gpu_import *like)
{
    struct dlx_gpu_import *import = list;
    while (import && !imports_has(import, like))
        import = import->next;
    return import;
}

/* The caller holds the lock. */
static void unlink_import(struct dlx_gpu_import *import)
{
    struct dlx_gpu_import **at = &list;
    while (*at != import)
        at = &(*at)->next;
    *at = import->next;
}

/* The caller holds the lock, and calls close_all() when it has given the lock up. */
static void close_later(struct dlx_gpu_import *import, struct dlx_gpu_import **closing)
{
    import->state = IMPORT_CLOSING;
    import->next_closing = *closing;
    *closing = import;
}

/* The caller does not hold the lock. */
static void close_all(struct dlx_gpu_import *closing)
{
    for (struct dlx_gpu_import *next; closing; closing = next) {
        next = closing->next_closing;
        closing->ops->close(&closing->memory);
        (void)pthread_mutex_lock(&lock);
        unlink_import(closing);
        (void)pthread_cond_broadcast(&settled);
        (void)pthread_mutex_unlock(&lock);
        free(closing);
    }
}

/* The caller holds the lock. Close idle imports of memory of the same GPU, the one that was used
 * longest ago first, until those that are left may be idle together. */
static void close_excess(const struct dlx_gpu_import *like, struct dlx_gpu_import **closing)
{
    for (;;) {
        struct dlx_gpu_import *oldest = NULL;
        uint64_t bytes = 0;
        uint32_t n = 0;
        for (struct dlx_gpu_import *import = list; import; import = import->next) {
            if (import->state != IMPORT_IDLE || import->home != like->home ||
                import->ops->device_type != like->ops->device_type)
                continue;
            n++;
            bytes += import->memory.size;
            if (!oldest || import->last_use < oldest->last_use)
                oldest = import;
        }
        if (n <= DLX_GPU_IMPORTS_IDLE_MAX && bytes <= like->idle_most)
            return;
        close_later(oldest, closing);
    }
}

/* The caller holds the lock. May it stay open although nothing uses it? */
static bool may_idle(const struct dlx_gpu_import *import)
{
    return import->ops->import_stays && import->memory.size <= import->idle_most &&
           *find_source(import->publisher);
}

/* Tensors are checked against the size in the description, so it has to be the size of the memory
 * that is open. */
static int fail_size(const struct dlx_gpu_handle *handle, uint64_t size)
{
    return dlx__fail(
        DLX_E_PROTOCOL,
        "the publisher says that its GPU memory %llu has %llu bytes, and has said %llu",
        (unsigned long long)handle->id, (unsigned long long)handle->size, (unsigned long long)size);
}

/* Of a kind that is opened once. */
static int fail_device(const struct dlx_gpu_import *found, int32_t device)
{
    return dlx__fail(
        DLX_E_DEVICE,
        "GPU memory of kind %s is open for GPU %d and cannot be opened for GPU %d, since "
        "a process opens it once: name the same GPU in all subscriptions, or publish "
        "memory of dlx_alloc()",
        dlx__gpu_kind_text(found->ops->kind), found->device, device);
}

static int import_own(const struct dlx_gpu_handle *handle, struct dlx_gpu_export *export,
                      struct dlx_gpu_import **ret)
{
    uint64_t size = dlx__gpu_export_handle(export)->size;
    if (handle->size != size) {
        dlx__gpu_export_unref(export);
        return fail_size(handle, size);
    }
    struct dlx_gpu_import *import = calloc(1, sizeof *import);
    if (!import) {
        dlx__gpu_export_unref(export);
        return dlx__fail(DLX_E_NO_MEMORY, "no memory for an import of GPU memory");
    }
    import->export = export;
    *ret = import;
    return 0;
}

/* Whoever has the descriptors: they have to match the message. */
static int fetch_whole(const struct dlx_gpu_handle *outline, const struct dlx_gpu_fetch *fetch,
                       struct dlx_gpu_handle *ret)
{
    struct dlx_gpu_handle whole = {0};
    int r = fetch->call(fetch->userdata, outline->id, &whole);
    if (r == 0 && !dlx__gpu_handle_is_same(outline, &whole))
        r = dlx__fail(DLX_E_PROTOCOL,
                      "the publisher describes its GPU memory %llu in two ways, of kinds %s and %s",
                      (unsigned long long)outline->id, dlx__gpu_kind_text(outline->kind),
                      dlx__gpu_kind_text(whole.kind));
    if (r == 0)
        *ret = whole;
    else
        dlx__gpu_handle_deinit(&whole);
    return r;
}

static int fetch_and_open(const struct dlx_gpu_ops *ops, const struct dlx_gpu_handle *outline,
                          int32_t home, const struct dlx_gpu_fetch *fetch,
                          struct dlx_gpu_import *entry)
{
    struct dlx_gpu_handle whole = {0};
    int r = fetch_whole(outline, fetch, &whole);
    if (r == 0)
        r = ops->open(&whole, home, entry->device, entry->access, NULL, &entry->memory);
    dlx__gpu_handle_deinit(&whole);
    return r;
}

/* Drivers open handles without descriptors in one pid namespace, in processes of different pids,
 * and do not say that this is why they refuse one. */
static int fail_open(int r, enum dlx_gpu_kind kind)
{
    char why[DLX_ERROR_TEXT_SIZE];
    memcpy(why, dlx__error_message(), sizeof why);
    if (r != DLX_E_NO_MEMORY && (kind == DLX_GPU_CUDA_IPC || kind == DLX_GPU_HIP_IPC))
        r = dlx__fail(r,
                      "%s; if its publisher is in another container (pid namespace), it has to "
                      "publish memory of dlx_alloc(), or of a pool or mapping with descriptors",
                      why);
    return dlx__fail_prefix(r, "cannot open GPU memory of kind %s", dlx__gpu_kind_text(kind));
}

static int find_idle_most(struct dlx_gpu_import *entry)
{
    const struct dlx_gpu_api *api = NULL;
    uint64_t bytes = 0;
    int r = dlx__gpu_api(entry->ops->device_type, &api);
    if (r == 0 && entry->ops->import_stays)
        r = api->memory_size(entry->home, &bytes);
    entry->idle_most = bytes / DLX_GPU_IMPORTS_IDLE_PART;
    return r;
}

/* Open the memory of the entry. Other threads that need it wait meanwhile. */
static int open_entry(const struct dlx_gpu_ops *ops, const struct dlx_gpu_handle *handle,
                      int32_t home, const struct dlx_gpu_fetch *fetch, struct dlx_gpu_import *entry)
{
    int r = find_idle_most(entry);
    if (r == 0)
        r = dlx__gpu_handle_is_complete(handle)
                ? ops->open(handle, home, entry->device, entry->access, NULL, &entry->memory)
                : fetch_and_open(ops, handle, home, fetch, entry);
    (void)pthread_mutex_lock(&lock);
    if (r == 0)
        entry->state = IMPORT_USED;
    else
        unlink_import(entry);
    (void)pthread_cond_broadcast(&settled);
    (void)pthread_mutex_unlock(&lock);
    if (r < 0) {
        free(entry);
        return fail_open(r, handle->kind);
    }
    return 0;
}

/* The GPU that has the memory, and `device` in place of DLX_GPU_HOME. */
static int find_devices(const struct dlx_gpu_handle *handle, const struct dlx_gpu_ops **ret_ops,
                        int32_t *ret_home, int32_t *device)
{
    int r = dlx__gpu_ops(handle->kind, ret_ops);
    if (r == 0)
        r = dlx__gpu_ordinal((*ret_ops)->device_type, &handle->device, ret_home);
    if (r == 0 && *device == DLX_GPU_HOME)
        *device = *ret_home;
    else if (r == 0 && *device != *ret_home)
        r = dlx__gpu_check_peer((*ret_ops)->device_type, *device, *ret_home);
    return r;
}

int dlx__gpu_import(struct dlx_gpu_publisher publisher, const struct dlx_gpu_handle *handle,
                    int32_t device, enum dlx_gpu_access access, const struct dlx_gpu_fetch *fetch,
                    struct dlx_gpu_import **ret)
{
    const struct dlx_gpu_ops *ops;
    struct dlx_gpu_export *own;
    int32_t home;
    if (dlx__gpu_is_forked())
        return dlx__gpu_fail_forked();
    if (!dlx__gpu_handle_is_complete(handle) && !fetch)
        return dlx__fail(DLX_E_INVALID, "the description of GPU memory is not complete");
    int r = dlx__gpu_exports_find(publisher, handle->id, &own);
    if (r < 0 || own)
        return r < 0 ? r : import_own(handle, own, ret);
    r = find_devices(handle, &ops, &home, &device);
    if (r < 0)
        return r;
    struct dlx_gpu_import *entry = calloc(1, sizeof *entry);
    if (!entry)
        return dlx__fail(DLX_E_NO_MEMORY, "no memory for an import of GPU memory");
    *entry = (struct dlx_gpu_import){.state = IMPORT_OPENING,
                                     .publisher = publisher,
                                     .id = handle->id,
                                     .ops = ops,
                                     .home = home,
                                     .device = device,
                                     .access = access,
                                     .n_uses = 1};
    memcpy(entry->token, handle->token, sizeof entry->token);
    (void)pthread_mutex_lock(&lock);
    struct dlx_gpu_import *found = imports_find(entry);
    while (found && (found->state == IMPORT_OPENING || found->state == IMPORT_CLOSING)) {
        (void)pthread_cond_wait(&settled, &lock);
        found = imports_find(entry); /* none, if it could not be opened: this thread says why */
    }
    if (found && found->device != entry->device) {
        r = fail_device(found, entry->device);
    } else if (found && found->memory.size != handle->size) {
        r = fail_size(handle, found->memory.size);
    } else if (found) {
        found->state = IMPORT_USED;
        found->n_uses++;
    } else {
        entry->next = list;
        list = entry;
    }
    (void)pthread_mutex_unlock(&lock);
    if (found)
        free(entry);
    else
        r = open_entry(ops, handle, home, fetch, entry);
    if (r == 0)
        *ret = found ? found : entry;
    return r;
}

/* ---- at addresses of the caller's choice --------------------------------------------------- */

int dlx__gpu_import_prepare(struct dlx_gpu_handle *handle, const struct dlx_gpu_fetch *fetch,
                            int32_t *device)
{
    const struct dlx_gpu_ops *ops;
    struct dlx_gpu_handle whole = {0};
    int32_t home;
    if (dlx__gpu_is_forked())
        return dlx__gpu_fail_forked();
    int r = find_devices(handle, &ops, &home, device);
    if (r == 0 && !ops->reserve)
        r = dlx__fail(DLX_E_DEVICE,
                      "GPU memory of kind %s is mapped where the driver chooses, and nowhere else: "
                      "its publisher has to publish memory of dlx_alloc_set()",
                      dlx__gpu_kind_text(handle->kind));
    if (r < 0 || dlx__gpu_handle_is_complete(handle))
        return r;
    r = fetch_whole(handle, fetch, &whole);
    if (r < 0)
        return r;
    dlx__gpu_handle_deinit(handle);
    *handle = whole;
    return 0;
}

int dlx__gpu_import_at(const struct dlx_gpu_handle *handle, int32_t device,
                       enum dlx_gpu_access access, void *at, struct dlx_gpu_import **ret)
{
    const struct dlx_gpu_ops *ops;
    int32_t home;
    int r = find_devices(handle, &ops, &home, &device);
    if (r < 0)
        return r;
    struct dlx_gpu_import *import = calloc(1, sizeof *import);
    if (!import)
        return dlx__fail(DLX_E_NO_MEMORY, "no memory for an import of GPU memory");
    *import = (struct dlx_gpu_import){.state = IMPORT_USED, .ops = ops, .device = device};
    r = ops->open(handle, home, device, access, at, &import->memory);
    if (r < 0) {
        free(import);
        return fail_open(r, handle->kind);
    }
    *ret = import;
    return 0;
}

/* ---- uses ------------------------------------------------------------------------------------ */

void *dlx__gpu_import_base(const struct dlx_gpu_import *import)
{
    return import->export ? dlx__gpu_export_base(import->export) : import->memory.base;
}

int32_t dlx__gpu_import_device(const struct dlx_gpu_import *import)
{
    return import->export ? dlx__gpu_export_device(import->export) : import->device;
}

void dlx__gpu_import_unref(struct dlx_gpu_import *import)
{
    struct dlx_gpu_import *closing = NULL;
    if (!import || dlx__gpu_is_forked())
        return;
    if (import->export) {
        dlx__gpu_export_unref(import->export);
        free(import);
        return;
    }
    if (import->memory.is_placed) {
        import->ops->close(&import->memory);
        free(import);
        return;
    }
    (void)pthread_mutex_lock(&lock);
    if (--import->n_uses == 0) {
        import->last_use = ++n_uses_ever;
        if (may_idle(import)) {
            import->state = IMPORT_IDLE;
            close_excess(import, &closing);
        } else {
            close_later(import, &closing);
        }
    }
    (void)pthread_mutex_unlock(&lock);
    close_all(closing);
}

/* ---- what is not needed any more ------------------------------------------------------------- */

int dlx__gpu_imports_join(struct dlx_gpu_publisher publisher)
{
    struct source *source = calloc(1, sizeof *source);
    if (!source)
        return dlx__fail(DLX_E_NO_MEMORY, "no memory for imports of GPU memory");
    source->publisher = publisher;
    (void)pthread_mutex_lock(&lock);
    struct source **at = find_source(publisher);
    if (!*at)
        *at = dlx_steal(source);
    (*at)->n_links++;
    (void)pthread_mutex_unlock(&lock);
    free(source);
    return 0;
}

/* The caller holds the lock. Allocation `id` of the publisher; 0: all of them. */
static void close_idle_of(struct dlx_gpu_publisher publisher, uint64_t id,
                          struct dlx_gpu_import **closing)
{
    for (struct dlx_gpu_import *import = list; import; import = import->next)
        if (import->state == IMPORT_IDLE && (id == 0 || import->id == id) &&
            is_publisher(import->publisher, publisher))
            close_later(import, closing);
}

void dlx__gpu_imports_leave(struct dlx_gpu_publisher publisher)
{
    struct dlx_gpu_import *closing = NULL;
    if (dlx__gpu_is_forked())
        return;
    (void)pthread_mutex_lock(&lock);
    struct source **at = find_source(publisher), *source = *at;
    if (--source->n_links == 0) {
        *at = source->next;
        free(source);
        close_idle_of(publisher, 0, &closing);
    }
    (void)pthread_mutex_unlock(&lock);
    close_all(closing);
}

void dlx__gpu_imports_freed(struct dlx_gpu_publisher publisher, uint64_t id)
{
    struct dlx_gpu_import *closing = NULL;
    if (dlx__gpu_is_forked())
        return;
    (void)pthread_mutex_lock(&lock);
    close_idle_of(publisher, id, &closing);
    (void)pthread_mutex_unlock(&lock);
    close_all(closing);
}

int dlx__gpu_imports_trim(uint64_t *ret)
{
    struct dlx_gpu_import *closing = NULL;
    uint64_t bytes = 0;
    if (dlx__gpu_is_forked())
        return dlx__gpu_fail_forked();
    (void)pthread_mutex_lock(&lock);
    for (struct dlx_gpu_import *import = list; import; import = import->next)
        if (import->state == IMPORT_IDLE) {
            bytes += import->memory.size;
            close_later(import, &closing);
        }
    (void)pthread_mutex_unlock(&lock);
    close_all(closing);
    *ret = bytes;
    return 0;
}
