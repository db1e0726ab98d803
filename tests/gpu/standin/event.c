/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events: each record has a number, and an event is complete when its last record was reached.
 * Events between processes have their numbers in the machine's file, which has room for a limited
 * number.
 */
#include "tests/gpu/standin/ipc.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct event *event_of(CUevent handle)
{
    struct event *e;
    LIST_FIND(e, &state.events, (CUevent)e == handle && !e->is_destroyed);
    return e;
}

/* A record whose process has died is over: nothing else will reach it. */
bool event_is_reached(const struct event *event, uint64_t record)
{
    const struct event_state *s = event->state;
    uint64_t recorder = atomic_load(&s->recorder);
    return atomic_load(&s->completed) >= record ||
           (recorder != 0 && recorder != atomic_load(&process->id) && !process_is_alive(recorder));
}

void event_reach(struct event *event, uint64_t record)
{
    uint64_t before = atomic_load(&event->state->completed);
    while (before < record &&
           !atomic_compare_exchange_weak(&event->state->completed, &before, record)) {
    }
}

static struct event *event_new(struct context *context, unsigned flags)
{
    struct event *e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    e->context = context;
    e->flags = flags;
    e->state = &e->own_state;
    e->slot = -1;
    return e;
}

static void event_add(struct event *e, CUevent *ret)
{
    LIST_INSERT_HEAD(&state.events, e, link);
    count_add(STANDIN_EVENTS, 1);
    *ret = (CUevent)e;
}

static bool event_share(struct event *e)
{
    machine_lock();
    for (int i = 0; i < machine->n_events && e->slot < 0; i++) {
        struct event_slot *slot = &machine->events[i];
        if (slot->n_users > 0)
            continue;
        memset(slot, 0, sizeof *slot);
        slot->id = ++machine->last_id;
        slot->n_users = 1;
        e->slot = i;
        e->state = &slot->state;
    }
    machine_unlock();
    return e->slot >= 0;
}

CUresult CUDAAPI cuEventCreate(CUevent *ret, unsigned flags)
{
    ENTER(cuEventCreate);
    const unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    if ((flags & ~known) != 0 ||
        (flags & CU_EVENT_INTERPROCESS && !(flags & CU_EVENT_DISABLE_TIMING)))
        return CUDA_ERROR_INVALID_VALUE;
    struct event *e = event_new(call.context, flags);
    if (!e)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (flags & CU_EVENT_INTERPROCESS && !event_share(e)) {
        free(e);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    event_add(e, ret);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventDestroy(CUevent handle)
{
    ENTER(cuEventDestroy);
    struct event *e = event_of(handle);
    if (!e)
        return CUDA_ERROR_INVALID_HANDLE;
    e->is_destroyed = true;
    count_add(STANDIN_EVENTS, -1);
    if (e->slot >= 0) {
        machine_lock();
        machine->events[e->slot].n_users--;
        machine_unlock();
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuIpcGetEventHandle(CUipcEventHandle *ret, CUevent handle)
{
    ENTER(cuIpcGetEventHandle);
    const struct event *e = event_of(handle);
    if (!e)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!(e->flags & CU_EVENT_INTERPROCESS))
        return CUDA_ERROR_INVALID_VALUE;
    share_name_write(NAME_OF_EVENT, machine->events[e->slot].id, e->slot, ret);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuIpcOpenEventHandle(CUevent *ret, CUipcEventHandle handle)
{
    ENTER(cuIpcOpenEventHandle);
    struct share_name name;
    if (!share_name_read(&handle, NAME_OF_EVENT, machine->n_events, &name))
        return CUDA_ERROR_INVALID_VALUE;
    struct event *e = event_new(call.context, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
    if (!e)
        return CUDA_ERROR_OUT_OF_MEMORY;
    machine_lock();
    struct event_slot *slot = &machine->events[name.slot];
    bool is_there = slot->id == name.id && slot->n_users > 0;
    slot->n_users += is_there;
    machine_unlock();
    if (!is_there) {
        free(e);
        return CUDA_ERROR_INVALID_HANDLE;
    }
    e->slot = name.slot;
    e->state = &slot->state;
    event_add(e, ret);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventRecord(CUevent handle, CUstream stream)
{
    ENTER(cuEventRecord);
    FIND_STREAM(stream);
    struct event *e = event_of(handle);
    if (!e || e->context != s->context)
        return CUDA_ERROR_INVALID_HANDLE;
    bool is_captured = s->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE;
    struct op *op = op_new(OP_RECORD);
    if (op) {
        op->event = e;
        op->value = atomic_load(&e->state->recorded) + 1;
    }
    CUresult code = stream_enqueue(s, op);
    if (code != CUDA_SUCCESS)
        return code;
    e->captured_by = is_captured ? s : NULL;
    if (!is_captured) {
        atomic_store(&e->state->recorder, atomic_load(&process->id));
        atomic_fetch_add(&e->state->recorded, 1);
    }
    return CUDA_SUCCESS;
}

/* Asking about an event of a capture breaks the capture. */
static CUresult event_may_be_asked(const struct event *e)
{
    if (!e)
        return CUDA_ERROR_INVALID_HANDLE;
    return e->captured_by ? capture_refuse(e->captured_by, CUDA_ERROR_CAPTURED_EVENT)
                          : CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventQuery(CUevent handle)
{
    ENTER(cuEventQuery);
    const struct event *e = event_of(handle);
    CUresult code = event_may_be_asked(e);
    if (code != CUDA_SUCCESS)
        return code;
    return event_is_reached(e, atomic_load(&e->state->recorded)) ? CUDA_SUCCESS
                                                                 : CUDA_ERROR_NOT_READY;
}

CUresult CUDAAPI cuEventSynchronize(CUevent handle)
{
    ENTER(cuEventSynchronize);
    const struct event *e = event_of(handle);
    CUresult code = event_may_be_asked(e);
    if (code != CUDA_SUCCESS)
        return code;
    uint64_t record = atomic_load(&e->state->recorded);
    while (!event_is_reached(e, record) && e->context->sticky == CUDA_SUCCESS &&
           !e->context->is_destroyed)
        wait_change();
    return e->context->sticky;
}

CUresult CUDAAPI cuStreamWaitEvent(CUstream stream, CUevent handle, unsigned flags)
{
    ENTER(cuStreamWaitEvent);
    FIND_STREAM(stream);
    struct event *e = event_of(handle);
    if (!e)
        return CUDA_ERROR_INVALID_HANDLE;
    if ((flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (e->captured_by && e->captured_by != s) {
        CUresult code = capture_refuse(e->captured_by, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
        if (code != CUDA_SUCCESS)
            return code;
    }
    if (s->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE && !e->captured_by)
        return capture_refuse(s, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    struct op *op = op_new(OP_WAIT_EVENT);
    if (op) {
        op->event = e;
        op->value = atomic_load(&e->state->recorded);
    }
    return stream_enqueue(s, op);
}
