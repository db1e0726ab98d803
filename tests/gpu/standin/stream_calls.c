/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's calls about streams, and the capture of streams. */
#include "tests/gpu/standin/machine.h"
#include <stdlib.h>

CUresult CUDAAPI cuStreamCreate(CUstream *ret, unsigned flags)
{
    ENTER(cuStreamCreate);
    if ((flags & ~(unsigned)CU_STREAM_NON_BLOCKING) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct stream *s = stream_new(call.context, flags);
    if (!s)
        return CUDA_ERROR_OUT_OF_MEMORY;
    count_add(STANDIN_STREAMS, 1);
    *ret = (CUstream)s;
    return CUDA_SUCCESS;
}

/* The work that was given to it is still done. */
CUresult CUDAAPI cuStreamDestroy(CUstream stream)
{
    ENTER(cuStreamDestroy);
    struct stream *s;
    LIST_FIND(s, &state.streams, (CUstream)s == stream && !s->is_destroyed);
    if (!s || s == s->context->legacy || s == s->context->per_thread)
        return CUDA_ERROR_INVALID_HANDLE;
    stream_end(s);
    count_add(STANDIN_STREAMS, -1);
    return s->context->sticky;
}

CUresult CUDAAPI cuStreamQuery(CUstream stream)
{
    ENTER(cuStreamQuery);
    FIND_STREAM(stream);
    CUresult code = capture_refuse(s, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    return code == CUDA_SUCCESS && s->completed != s->enqueued ? CUDA_ERROR_NOT_READY : code;
}

CUresult CUDAAPI cuStreamSynchronize(CUstream stream)
{
    ENTER(cuStreamSynchronize);
    FIND_STREAM(stream);
    CUresult code = capture_refuse(s, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    return code == CUDA_SUCCESS ? stream_drain(s) : code;
}

CUresult CUDAAPI cuStreamGetCtx(CUstream stream, CUcontext *ret)
{
    ENTER(cuStreamGetCtx);
    FIND_STREAM(stream);
    *ret = (CUcontext)s->context;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetCtx_v2(CUstream stream, CUcontext *ret, CUgreenCtx *ret_green)
{
    ENTER(cuStreamGetCtx);
    FIND_STREAM(stream);
    *ret = (CUcontext)s->context;
    if (ret_green)
        *ret_green = NULL;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode)
{
    ENTER(cuStreamBeginCapture);
    FIND_STREAM(stream);
    if (s == s->context->legacy)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    if (s->capture != CU_STREAM_CAPTURE_STATUS_NONE)
        return CUDA_ERROR_ILLEGAL_STATE;
    s->capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    s->capture_mode = mode;
    s->capturer = pthread_self();
    state.n_capturing++;
    return CUDA_SUCCESS;
}

static void events_uncapture(const struct stream *s)
{
    struct event *e;
    LIST_FOREACH(e, &state.events, link)
    if (e->captured_by == s)
        e->captured_by = NULL;
}

CUresult CUDAAPI cuStreamEndCapture(CUstream stream, CUgraph *ret)
{
    ENTER(cuStreamEndCapture);
    FIND_STREAM(stream);
    CUstreamCaptureStatus status = s->capture;
    if (status == CU_STREAM_CAPTURE_STATUS_NONE)
        return ret ? CUDA_ERROR_ILLEGAL_STATE : CUDA_ERROR_INVALID_VALUE;
    if (s->capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
        !pthread_equal(s->capturer, pthread_self()))
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    s->capture = CU_STREAM_CAPTURE_STATUS_NONE;
    state.n_capturing--;
    events_uncapture(s);
    *ret = NULL;
    if (status == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    *ret = malloc(1); /* what was captured is not kept */
    return *ret ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult CUDAAPI cuGraphDestroy(CUgraph graph)
{
    ENTER(cuGraphDestroy);
    free(graph);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *ret)
{
    ENTER(cuStreamIsCapturing);
    FIND_STREAM(stream);
    *ret = s->capture;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    ENTER(cuThreadExchangeStreamCaptureMode);
    if (!mode || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode before = thread_capture_mode;
    thread_capture_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
