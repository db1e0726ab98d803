/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: a queue each, and a thread that runs it in order. */
#include "tests/gpu/standin/machine.h"
#include <signal.h>
#include <stdlib.h>

struct op *op_new(enum op_kind kind)
{
    struct op *op = calloc(1, sizeof *op);
    if (op)
        op->kind = kind;
    return op;
}

void op_free(struct op *op)
{
    if (op)
        free(op->staged);
    free(op);
}

static bool context_runs(const struct context *context)
{
    return context->sticky == CUDA_SUCCESS && !context->is_destroyed;
}

/*
 * Runs the queue until the stream and its work have ended. A context with an error, or one that is
 * destroyed, runs nothing any more: its operations are dropped.
 */
static void *stream_main(void *arg)
{
    struct stream *s = arg;
    pthread_mutex_lock(&state.lock);
    while (true) {
        while (STAILQ_EMPTY(&s->queue) && !s->is_destroyed)
            pthread_cond_wait(&s->wake, &state.lock);
        struct op *op = STAILQ_FIRST(&s->queue);
        if (!op)
            break;
        while (op->behind && op->behind->completed < op->behind_upto && context_runs(s->context))
            wait_change();
        if (context_runs(s->context))
            op_run(s, op);
        STAILQ_REMOVE_HEAD(&s->queue, link);
        op_free(op);
        s->completed++;
        signal_change();
    }
    s->context->n_workers--;
    signal_change();
    pthread_mutex_unlock(&state.lock);
    return NULL;
}

static bool thread_start(struct stream *s)
{
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigfillset(&all); /* signals are for the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int r = pthread_create(&thread, &attributes, stream_main, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return r == 0;
}

struct stream *stream_new(struct context *context, unsigned flags)
{
    struct stream *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->context = context;
    s->flags = flags;
    STAILQ_INIT(&s->queue);
    pthread_cond_init(&s->wake, NULL);
    context->n_workers++;
    if (!thread_start(s)) {
        context->n_workers--;
        free(s);
        return NULL;
    }
    LIST_INSERT_HEAD(&state.streams, s, link);
    return s;
}

void stream_end(struct stream *s)
{
    state.n_capturing -= s->capture != CU_STREAM_CAPTURE_STATUS_NONE;
    s->capture = CU_STREAM_CAPTURE_STATUS_NONE;
    s->is_destroyed = true;
    pthread_cond_signal(&s->wake);
}

static CUresult default_stream(struct context *context, struct stream **place, unsigned flags,
                               struct stream **ret)
{
    if (!*place)
        *place = stream_new(context, flags);
    *ret = *place;
    return *ret ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult stream_of(const struct call *call, CUstream handle, struct stream **ret)
{
    if (handle == NULL || handle == CU_STREAM_LEGACY)
        return default_stream(call->context, &call->context->legacy, CU_STREAM_DEFAULT, ret);
    if (handle == CU_STREAM_PER_THREAD)
        return default_stream(call->context, &call->context->per_thread, CU_STREAM_DEFAULT, ret);
    struct stream *s;
    LIST_FIND(s, &state.streams, (CUstream)s == handle && !s->is_destroyed);
    *ret = s;
    return s ? s->context->sticky : CUDA_ERROR_INVALID_HANDLE;
}

static bool is_blocking(const struct stream *s)
{
    return s != s->context->legacy && !(s->flags & CU_STREAM_NON_BLOCKING);
}

/* The hardware waits for the host's word, an event or another stream: what was put into the same
 * queue later waits, too. */
static void put_in_one_queue(struct stream *s, struct op *op)
{
    struct context *context = s->context;
    op->behind = context->waiting != s ? context->waiting : NULL;
    op->behind_upto = context->waiting_upto;
    if (op->kind != OP_WAIT_VALUE && op->kind != OP_WAIT_EVENT && op->kind != OP_WAIT_STREAM &&
        op->kind != OP_HOST_FUNCTION)
        return;
    context->waiting = s;
    context->waiting_upto = s->enqueued + 1;
}

static void append(struct stream *s, struct op *op)
{
    if (state.has_one_queue)
        put_in_one_queue(s, op);
    STAILQ_INSERT_TAIL(&s->queue, op, link);
    s->enqueued++;
    pthread_cond_signal(&s->wake);
}

static bool append_wait(struct stream *s, struct stream *earlier)
{
    struct op *op = op_new(OP_WAIT_STREAM);
    if (!op)
        return false;
    op->stream = earlier;
    op->value = earlier->enqueued;
    append(s, op);
    return true;
}

/* The legacy default stream waits for all blocking streams of its context, and they wait for it. */
static bool append_implicit_order(struct stream *s)
{
    struct stream *other = s->context->legacy;
    if (is_blocking(s))
        return !other || other->completed == other->enqueued || append_wait(s, other);
    if (s != s->context->legacy)
        return true;
    LIST_FOREACH(other, &state.streams, link)
    if (other->context == s->context && is_blocking(other) && other->completed != other->enqueued &&
        !append_wait(s, other))
        return false;
    return true;
}

static struct stream *captured_blocking_stream(const struct context *context)
{
    struct stream *s;
    LIST_FIND(s, &state.streams,
              s->context == context && is_blocking(s) &&
                  s->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    return s;
}

CUresult stream_enqueue(struct stream *s, struct op *op)
{
    struct stream *captured = s == s->context->legacy ? captured_blocking_stream(s->context) : NULL;
    CUresult code = CUDA_SUCCESS;
    if (captured)
        code = capture_refuse(captured, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    else if (s->capture == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
        code = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (!op || (s->capture == CU_STREAM_CAPTURE_STATUS_NONE && !append_implicit_order(s)))
        code = CUDA_ERROR_OUT_OF_MEMORY;
    if (code != CUDA_SUCCESS || s->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        op_free(op);
        return code;
    }
    append(s, op);
    return CUDA_SUCCESS;
}

CUresult capture_refuse(struct stream *s, CUresult code)
{
    if (s->capture == CU_STREAM_CAPTURE_STATUS_NONE)
        return CUDA_SUCCESS;
    if (s->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        s->capture = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
        count_add(STANDIN_CAPTURES_BROKEN, 1);
    }
    return code;
}

static CUresult wait_for(struct stream *s, uint64_t upto)
{
    while (s->completed < upto)
        wait_change();
    return s->context->is_destroyed ? CUDA_ERROR_CONTEXT_IS_DESTROYED : s->context->sticky;
}

CUresult stream_drain(struct stream *s)
{
    return wait_for(s, s->enqueued);
}

/* The list may grow and its members end meanwhile, but none is ever freed. */
CUresult context_drain(struct context *context)
{
    struct stream *s;
    CUresult code = CUDA_SUCCESS;
    LIST_FOREACH(s, &state.streams, link)
    {
        if (s->context == context && code == CUDA_SUCCESS)
            code = stream_drain(s);
    }
    return code;
}
