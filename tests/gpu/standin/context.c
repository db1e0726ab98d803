/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: the primary one of each device, those of a program's own, and each thread's stack. */
#include "tests/gpu/standin/machine.h"
#include <stdlib.h>

#define MAX_DEPTH 64

static _Thread_local struct context *stack[MAX_DEPTH];
static _Thread_local int depth;

struct context *context_current(void)
{
    return depth > 0 ? stack[depth - 1] : NULL;
}

static CUresult context_check(const struct context *context)
{
    const struct context *c;
    LIST_FIND(c, &state.contexts, c == context);
    if (!c)
        return CUDA_ERROR_INVALID_CONTEXT;
    return c->is_destroyed ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
}

void context_poison(struct context *context, CUresult code)
{
    if (context->sticky == CUDA_SUCCESS)
        context->sticky = code;
    signal_change();
}

static struct context *context_new(int device)
{
    struct context *context = calloc(1, sizeof *context);
    if (!context)
        return NULL;
    context->device = device;
    context->id = ++state.last_id;
    LIST_INSERT_HEAD(&state.contexts, context, link);
    count_add(STANDIN_CONTEXTS, 1);
    count_add(STANDIN_CONTEXTS_MADE, 1);
    atomic_fetch_add(&process->contexts_made[state.visible[device]], 1);
    return context;
}

/* Destroying a context destroys its streams and events, and frees its memory. */
static void context_sweep(struct context *context)
{
    struct event *event;
    struct range *range, *next;
    LIST_FOREACH(event, &state.events, link)
    {
        if (event->context == context && !event->is_destroyed) {
            event->is_destroyed = true;
            count_add(STANDIN_EVENTS, -1);
        }
    }
    for (range = LIST_FIRST(&state.ranges); range; range = next) {
        next = LIST_NEXT(range, link);
        if (range->context == context)
            range_remove(range);
    }
}

void context_destroy(struct context *context)
{
    struct stream *s;
    context->is_destroyed = true;
    LIST_FOREACH(s, &state.streams, link)
    {
        if (s->context != context)
            continue;
        if (!s->is_destroyed && s != context->legacy && s != context->per_thread)
            count_add(STANDIN_STREAMS, -1);
        stream_end(s);
    }
    signal_change();
    while (context->n_workers > 0)
        wait_change();
    context_sweep(context);
    if (state.primary[context->device] == context) {
        state.primary[context->device] = NULL;
        state.n_primary[context->device] = 0;
    }
    count_add(STANDIN_CONTEXTS, -1);
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *ret, CUdevice device)
{
    ENTER(cuDevicePrimaryCtxRetain);
    CHECK_DEVICE(device);
    if (!state.primary[device])
        state.primary[device] = context_new(device);
    if (!state.primary[device])
        return CUDA_ERROR_OUT_OF_MEMORY;
    state.n_primary[device]++;
    *ret = (CUcontext)state.primary[device];
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice device)
{
    ENTER(cuDevicePrimaryCtxRelease);
    CHECK_DEVICE(device);
    if (state.n_primary[device] == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (--state.n_primary[device] == 0)
        context_destroy(state.primary[device]);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    ENTER(cuDevicePrimaryCtxGetState);
    CHECK_DEVICE(device);
    if (!flags || !active)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = 0;
    *active = state.primary[device] != NULL;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxPushCurrent(CUcontext handle)
{
    ENTER(cuCtxPushCurrent);
    struct context *context = (struct context *)handle;
    CUresult code = context_check(context);
    if (code == CUDA_SUCCESS && depth == MAX_DEPTH)
        return CUDA_ERROR_INVALID_VALUE;
    if (code == CUDA_SUCCESS)
        stack[depth++] = context;
    return code;
}

CUresult CUDAAPI cuCtxPopCurrent(CUcontext *ret)
{
    ENTER(cuCtxPopCurrent);
    if (depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (ret)
        *ret = (CUcontext)stack[depth];
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext handle)
{
    ENTER(cuCtxSetCurrent);
    struct context *context = (struct context *)handle;
    CUresult code = context ? context_check(context) : CUDA_SUCCESS;
    if (code != CUDA_SUCCESS)
        return code;
    if (depth > 0)
        depth--;
    if (context)
        stack[depth++] = context;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext *ret)
{
    ENTER(cuCtxGetCurrent);
    *ret = (CUcontext)context_current();
    return CUDA_SUCCESS;
}

/* Makes a context that is not the primary one, and current. */
static CUresult own_context(CUcontext *ret, CUdevice device)
{
    CHECK_DEVICE(device);
    if (depth == MAX_DEPTH)
        return CUDA_ERROR_INVALID_VALUE;
    struct context *context = context_new(device);
    if (!context)
        return CUDA_ERROR_OUT_OF_MEMORY;
    stack[depth++] = context;
    *ret = (CUcontext)context;
    return CUDA_SUCCESS;
}

#if CUDA_VERSION < 13000
CUresult CUDAAPI cuCtxCreate(CUcontext *ret, unsigned flags, CUdevice device)
{
    ENTER(cuCtxCreate);
    return flags == 0 ? own_context(ret, device) : CUDA_ERROR_INVALID_VALUE;
}
#else
CUresult CUDAAPI cuCtxCreate(CUcontext *ret, CUctxCreateParams *params, unsigned flags,
                             CUdevice device)
{
    ENTER(cuCtxCreate);
    return !params && flags == 0 ? own_context(ret, device) : CUDA_ERROR_INVALID_VALUE;
}
#endif

/* Other threads may still have it on their stacks. A primary context is not to be destroyed so. */
CUresult CUDAAPI cuCtxDestroy(CUcontext handle)
{
    ENTER(cuCtxDestroy);
    struct context *context = (struct context *)handle;
    CUresult code = context_check(context);
    if (code != CUDA_SUCCESS || context == state.primary[context->device])
        return CUDA_ERROR_INVALID_CONTEXT;
    if (context_current() == context)
        depth--;
    context_destroy(context);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetDevice(CUdevice *ret)
{
    ENTER(cuCtxGetDevice);
    *ret = call.context->device;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetId(CUcontext handle, unsigned long long *ret)
{
    ENTER(cuCtxGetId);
    const struct context *context = handle ? (struct context *)handle : context_current();
    if (context_check(context) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_CONTEXT;
    *ret = context->id;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSynchronize(void)
{
    ENTER(cuCtxSynchronize);
    return context_drain(call.context);
}

/* Of CUDA 13: the context is an argument; NULL is the current one. */
#if CUDA_VERSION < 13000
EXPORTED CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext handle);
#endif
CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext handle)
{
    ENTER(cuCtxSynchronize);
    struct context *context = handle ? (struct context *)handle : call.context;
    return context_check(context) == CUDA_SUCCESS ? context_drain(context)
                                                  : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult standin_poison(CUresult code)
{
    pthread_mutex_lock(&state.lock);
    struct context *context = context_current();
    if (context)
        context_poison(context, code);
    pthread_mutex_unlock(&state.lock);
    return context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
