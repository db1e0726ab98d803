/* SPDX-License-Identifier: Apache-2.0 */
#include "client/base/misuse.h"
#include <dlx/dlx.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { UNKNOWN, OFF, ON };

static atomic_int mode = UNKNOWN;

bool dlx__debug(void)
{
    int now = atomic_load_explicit(&mode, memory_order_relaxed);
    if (now != UNKNOWN)
        return now == ON;
    /* A program with more rights than the user who set its environment (AT_SECURE) ignores it. */
    const char *value = secure_getenv("DLX_DEBUG");
    int first = value && strcmp(value, "1") == 0 ? ON : OFF;
    /* A call of dlx_set_debug() in between holds. */
    if (!atomic_compare_exchange_strong_explicit(&mode, &now, first, memory_order_relaxed,
                                                 memory_order_relaxed))
        first = now;
    return first == ON;
}

void dlx_set_debug(bool on)
{
    atomic_store_explicit(&mode, on ? ON : OFF, memory_order_relaxed);
}

void dlx__misuse(const char *format, ...)
{
    char text[512] = "dlx: ";
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text + 5, sizeof text - 6, format, args);
    va_end(args);
    size_t size = strlen(text);
    text[size++] = '\n';
    (void)!write(STDERR_FILENO, text, size);
    abort();
}

/* ---- released objects ----------------------------------------------------------------------- */

void dlx__quarantine(void *memory)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static void *kept[DLX_QUARANTINE];
    static uint32_t next;
    if (dlx__debug()) {
        pthread_mutex_lock(&lock);
        void *oldest = kept[next];
        kept[next] = memory;
        next = (next + 1) % DLX_QUARANTINE;
        pthread_mutex_unlock(&lock);
        memory = oldest;
    }
    free(memory);
}

void dlx__release_handle(void *handle, uint64_t *generation)
{
    *generation = DLX_RELEASED;
    dlx__quarantine(handle);
}

void dlx__check_released(uint64_t generation, const char *call)
{
    if (generation == DLX_RELEASED && dlx__debug())
        dlx__misuse("%s: it was released before, and each handle and tensor is released once",
                    call);
}
