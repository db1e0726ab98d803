/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXPY_STREAM_H
#define DLXPY_STREAM_H

/*
 * A stream of a GPU, as Python programs name it: None; a number, by the rules of `__dlpack__` in
 * the Python array API; or an object of PyTorch (cuda_stream), CuPy (ptr) or cuda.core
 * (__cuda_stream__). The object is not kept: the caller keeps it.
 *
 *              CUDA                                ROCm
 *   None       the default                         the default
 *   -1         no stream: the consumer is not told what to wait for, nor does it say what it uses
 *   0          refused: libraries disagree         the default stream
 *   1, 2       the legacy, the per-thread default  refused
 *
 * The stream of an object that is 0 is the default stream on both.
 */

#include "state.h"
#include <stdbool.h>

/* The stream of CUDA and HIP that each thread has for itself. */
#define DLXPY_STREAM_PER_THREAD 2

enum dlxpy_stream_kind {
    DLXPY_STREAM_NONE,
    DLXPY_STREAM_ANY, /* -1 */
    DLXPY_STREAM_NUMBER,
    DLXPY_STREAM_OBJECT,
};

struct dlxpy_stream {
    enum dlxpy_stream_kind kind;
    uintptr_t number;
};

/* NULL: as None. Returns 0, or -1 with TypeError (no stream) or ValueError. */
int dlxpy_stream_parse(PyObject *object, struct dlxpy_stream *ret);

/* May it be a stream of a device of this type? Returns 0, or -1 with ValueError. */
int dlxpy_stream_check(const struct dlxpy_stream *s, int device_type);

/* The handle of this stream for libdlx; NULL is the default stream. Not for -1. */
void *dlxpy_stream_handle(const struct dlxpy_stream *s);

/* The number of this stream for __dlpack__(stream=...) of another library; it was checked. */
long long dlxpy_stream_number(const struct dlxpy_stream *s, int device_type);

#endif
