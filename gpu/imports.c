/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/imports.h"
#include "common/error.h"
#include <pthread.h>
#include <string.h>

enum import_state { IMPORT_OPENING, IMPORT_USED, IMPORT_IDLE, IMPORT_LEAVING, IMPORT_CLOSING };

struct dlx_gpu_import {
    struct dlx_gpu_import *next, *next_closing;
    enum import_state state;
    struct dlx_gpu_publisher publisher;
    uint64_t id;
    const struct dlx_gpu_ops *ops;
    uint8_t token[sizeof((struct dlx_gpu_handle *)0)->token];
    int32_t device;
    enum dlx_gpu_access access;
    uint32_t n_uses;
    uint64_t last_use;
    struct dlx_gpu_memory memory;
    struct dlx_gpu_export *export; /* of this process: not on the list, and `memory` is empty */
};

/* Guards the list, states and counts. No driver is called under it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t settled = PTHREAD_COND_INITIALIZER; /* one is no longer OPENING or CLOSING */
static struct dlx_gpu_import *list;
static uint64_t n_uses_ever;

static bool imports_is_of(const struct dlx_gpu_import *import, struct dlx_gpu_publisher publisher)
{
    return import->publisher.number == publisher.number && import->publisher.id == publisher.id;
}

static bool imports_has(const struct dlx_gpu_import *import, const struct dlx_gpu_import *like)
{
    if (like->ops->opens_once) /* for reading and writing: those kinds have no other access */
        return import->ops == like->ops && import->device == like->device &&
               memcmp(import->token, like->token, sizeof import->token) == 0;
    return import->state < IMPORT_LEAVING && import->id == like->id &&
           import->device == like->device && import->access == like->access &&
           imports_is_of(import, like->publisher);
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

/* The caller holds the lock. Idle imports are to be closed, the oldest first, until no more than
 * `n_stay` are left. */
static void close_idle(uint32_t n_stay, struct dlx_gpu_import **closing)
{
    for (;;) {
        struct dlx_gpu_import *oldest = NULL;
        uint32_t n = 0;
        for (struct dlx_gpu_import *import = list; import; import = import->next) {
            if (import->state != IMPORT_IDLE)
                continue;
            n++;
            if (!oldest || import->last_use < oldest->last_use)
                oldest = import;
        }
        if (n <= n_stay)
            return;
        close_later(oldest, closing);
    }
}

/* The caller holds the lock. Those that have been idle for long are to be closed. */
static void close_old(struct dlx_gpu_import **closing)
{
    for (struct dlx_gpu_import *import = list; import; import = import->next)
        if (import->state == IMPORT_IDLE &&
            n_uses_ever - import->last_use > DLX_GPU_IMPORTS_IDLE_USES)
            close_later(import, closing);
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

/* The keeper has what the publisher gave it, which has to match the message. */
static int fetch_and_open(const struct dlx_gpu_ops *ops, const struct dlx_gpu_handle *outline,
                          int32_t home, const struct dlx_gpu_fetch *fetch,
                          struct dlx_gpu_import *entry)
{
    struct dlx_gpu_handle whole = {0};
    int r = fetch->call(fetch->userdata, outline->id, &whole);
    if (r == 0 && !dlx__gpu_handle_is_same(outline, &whole))
        r = dlx__fail(DLX_E_PROTOCOL,
                      "the publisher describes its GPU memory %llu in two ways, of kinds %s and %s",
                      (unsigned long long)outline->id, dlx__gpu_kind_text(outline->kind),
                      dlx__gpu_kind_text(whole.kind));
    if (r == 0)
        r = ops->open(&whole, home, entry->device, entry->access, &entry->memory);
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

/* Open the memory of the entry. Other threads that need it wait meanwhile. */
static int open_entry(const struct dlx_gpu_ops *ops, const struct dlx_gpu_handle *handle,
                      int32_t home, const struct dlx_gpu_fetch *fetch, struct dlx_gpu_import *entry)
{
    int r = dlx__gpu_handle_is_complete(handle)
                ? ops->open(handle, home, entry->device, entry->access, &entry->memory)
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
    r = dlx__gpu_ops(handle->kind, &ops);
    if (r == 0)
        r = dlx__gpu_ordinal(ops->device_type, &handle->device, &home);
    if (r < 0)
        return r;
    struct dlx_gpu_import *entry = calloc(1, sizeof *entry);
    if (!entry)
        return dlx__fail(DLX_E_NO_MEMORY, "no memory for an import of GPU memory");
    *entry = (struct dlx_gpu_import){.state = IMPORT_OPENING,
                                     .publisher = publisher,
                                     .id = handle->id,
                                     .ops = ops,
                                     .device = device == DLX_GPU_HOME ? home : device,
                                     .access = access,
                                     .n_uses = 1};
    memcpy(entry->token, handle->token, sizeof entry->token);
    (void)pthread_mutex_lock(&lock);
    struct dlx_gpu_import *found = imports_find(entry);
    while (found && (found->state == IMPORT_OPENING || found->state == IMPORT_CLOSING)) {
        (void)pthread_cond_wait(&settled, &lock);
        found = imports_find(entry); /* none, if it could not be opened: this thread says why */
    }
    if (found && found->memory.size != handle->size) {
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
    (void)pthread_mutex_lock(&lock);
    if (--import->n_uses == 0) {
        import->last_use = ++n_uses_ever;
        if (import->state == IMPORT_LEAVING || !import->ops->import_stays) {
            close_later(import, &closing);
        } else {
            import->state = IMPORT_IDLE;
            close_idle(DLX_GPU_IMPORTS_IDLE_MAX, &closing);
        }
        close_old(&closing);
    }
    (void)pthread_mutex_unlock(&lock);
    close_all(closing);
}

void dlx__gpu_imports_gone(struct dlx_gpu_publisher publisher, uint64_t id)
{
    struct dlx_gpu_import *closing = NULL, *next;
    if (dlx__gpu_is_forked())
        return;
    (void)pthread_mutex_lock(&lock);
    for (struct dlx_gpu_import *import = list; import; import = next) {
        next = import->next;
        if (!imports_is_of(import, publisher) || (id != 0 && import->id != id))
            continue;
        if (import->state == IMPORT_OPENING) {
            (void)pthread_cond_wait(&settled, &lock);
            next = list; /* the list may have changed */
        } else if (import->state == IMPORT_USED) {
            import->state = IMPORT_LEAVING;
        } else if (import->state == IMPORT_IDLE) {
            close_later(import, &closing);
        }
    }
    (void)pthread_mutex_unlock(&lock);
    close_all(closing);
}

void dlx__gpu_imports_trim(uint32_t n_stay)
{
    struct dlx_gpu_import *closing = NULL;
    if (dlx__gpu_is_forked())
        return;
    (void)pthread_mutex_lock(&lock);
    close_idle(n_stay, &closing);
    (void)pthread_mutex_unlock(&lock);
    close_all(closing);
}
