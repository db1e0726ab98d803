/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_GPU_STREAM_H
#define DLX_GPU_STREAM_H

/* What stands in the order of a stream: gpu/gpu.h says what is done with it, drivers fill it. */

#include "common/atomic.h"
#include <dlx/error.h>
#include <stdbool.h>
#include <stdint.h>

struct dlx_gpu_api; /* gpu/backend.h */

/* A point in a stream. All zero: none, or one that was reached. */
struct dlx_gpu_event {
    const struct dlx_gpu_api *api;
    int32_t device; /* of its stream; CUDA: whose primary context it keeps */
    void *event;
};

/* All work of this process on a GPU, as far as it is known. */
struct dlx_gpu_work {
    int32_t device_type;
    int32_t device;
    void *own; /* a context of the GPU that is not its primary one; NULL: only that one */
};

/* A word of a page that the driver knows: a stream waits until it is at least `value`. Words only
 * rise, and wrap. */
struct dlx_gpu_word {
    dlx_atomic_u32 *word;
    uint64_t at; /* its address for streams */
    uint32_t value;
};

/* A stream waits for a word. All zero: none does. */
struct dlx_gpu_gate {
    const struct dlx_gpu_api *api;
    struct dlx_gpu_word word;
    atomic_bool *is_used; /* of a word of this process; NULL: the word is shared with a publisher */
};

/* Has the work ended, after this result of a wait? A forked child has none. */
static inline bool dlx__gpu_has_ended(int result)
{
    return result == 0 || result == DLX_E_DEVICE || result == DLX_E_FORKED;
}

#endif
