/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu.h"
#include "errors.h"
#include <stdlib.h>

/* Of CUDA and HIP: a stream that each thread has for itself. */
#define PER_THREAD 2

struct dlxpy_gpu {
    DLManagedTensorVersioned described; /* shape and strides are the message's */
    struct dlx_message *m;
    uint32_t i;
    struct dlxpy_stream stream;       /* of take() */
    DLManagedTensorVersioned *opened; /* not handed out; NULL: none */
    bool is_open;                     /* the device in `described` is known */
    bool is_exposed;                  /* the address of `opened` was given away */
};

bool dlxpy_gpu_has(const struct dlx_message *m, uint32_t i)
{
    const DLTensor *t = dlx_message_peek(m, i);
    return t && (t->device.device_type == kDLCUDA || t->device.device_type == kDLROCM);
}

/* ---- streams ------------------------------------------------------------------------------- */

static int use_on(DLManagedTensorVersioned *t, const struct dlxpy_stream *stream)
{
    return dlx_tensor_used_on(t, dlxpy_stream_handle(stream));
}

static bool is_unknown(const struct dlxpy_stream *s, DLDeviceType type)
{
    return s->kind == DLXPY_STREAM_ANY || (type == kDLCUDA && s->number == PER_THREAD);
}

/* What take() was told, when nobody knew on which device the tensors are. */
static int check_take(const struct dlxpy_gpu *gpu)
{
    return dlxpy_stream_check(&gpu->stream, (int)gpu->described.dl_tensor.device.device_type);
}

/* See gpu.h. `stream` may be NULL. Returns 0 or a code. */
static int name_streams(const struct dlxpy_gpu *gpu, DLManagedTensorVersioned *t,
                        const struct dlxpy_stream *stream)
{
    DLDeviceType type = t->dl_tensor.device.device_type;
    bool is_told = stream && stream->kind != DLXPY_STREAM_NONE;
    bool by_take = gpu->stream.kind != DLXPY_STREAM_NONE;
    if (!t->dl_tensor.data || is_unknown(&gpu->stream, type) ||
        (is_told && is_unknown(stream, type)) || (!stream && !by_take))
        return 0;
    int r = by_take ? use_on(t, &gpu->stream) : 0;
    if (r == 0 && stream && (is_told || !by_take))
        r = use_on(t, stream);
    return r;
}

/* ---- making and ending --------------------------------------------------------------------- */

/* Nobody has used it. To wait for a stream of this thread, which nobody has used either, is what
 * keeps libdlx from waiting for the device. */
static void drop_unused(DLManagedTensorVersioned *t)
{
    if (t->dl_tensor.data)
        (void)dlx_tensor_used_on(t, (void *)PER_THREAD);
    t->deleter(t);
}

static void delete_gpu(DLManagedTensorVersioned *tensor)
{
    struct dlxpy_gpu *gpu = tensor->manager_ctx;
    if (gpu->opened && gpu->is_exposed)
        gpu->opened->deleter(gpu->opened);
    else if (gpu->opened)
        drop_unused(gpu->opened);
    dlx_message_unref(gpu->m);
    free(gpu);
}

struct dlxpy_owner *dlxpy_gpu_owner(struct dlx_message *m, uint32_t i,
                                    const struct dlxpy_stream *stream)
{
    struct dlxpy_gpu *gpu = calloc(1, sizeof *gpu);
    if (gpu)
        gpu->described = (DLManagedTensorVersioned){
            .version = {DLPACK_MAJOR_VERSION, 0},
            .manager_ctx = gpu,
            .deleter = delete_gpu,
            .flags = DLPACK_FLAG_BITMASK_READ_ONLY,
            .dl_tensor = *dlx_message_peek(m, i),
        };
    struct dlxpy_owner *owner = gpu ? dlxpy_owner_new(&gpu->described) : NULL;
    if (!owner) {
        free(gpu);
        PyErr_NoMemory();
        return NULL;
    }
    gpu->m = dlx_message_ref(m);
    gpu->i = i;
    gpu->stream = *stream;
    owner->gpu = gpu;
    return owner;
}

/* ---- opening ------------------------------------------------------------------------------- */

static DLManagedTensorVersioned *make(struct dlxpy_gpu *gpu)
{
    DLManagedTensorVersioned *t = NULL;
    int r;
    Py_BEGIN_ALLOW_THREADS
    r = dlx_message_tensor(gpu->m, gpu->i, &t);
    Py_END_ALLOW_THREADS
    if (r < 0) {
        (void)dlxpy_raise(r);
        return NULL;
    }
    gpu->described.dl_tensor.device = t->dl_tensor.device;
    gpu->described.flags = t->flags;
    gpu->is_open = true;
    return t;
}

/* One that nobody uses yet. Another thread may have had the same idea. */
static int ensure_opened(struct dlxpy_gpu *gpu)
{
    DLManagedTensorVersioned *t = gpu->opened ? NULL : make(gpu);
    if (!t)
        return gpu->opened ? 0 : -1;
    if (gpu->opened)
        drop_unused(t);
    else
        gpu->opened = t;
    return 0;
}

int dlxpy_gpu_open(const struct dlxpy_owner *owner, DLDevice *ret)
{
    struct dlxpy_gpu *gpu = owner->gpu;
    if (gpu && !gpu->is_open && ensure_opened(gpu) < 0)
        return -1;
    *ret = owner->tensor->dl_tensor.device;
    return 0;
}

DLManagedTensorVersioned *dlxpy_gpu_export(const struct dlxpy_owner *owner,
                                           const struct dlxpy_stream *stream)
{
    struct dlxpy_gpu *gpu = owner->gpu;
    DLManagedTensorVersioned *t = gpu->is_exposed ? NULL : gpu->opened;
    if (check_take(gpu) < 0)
        return NULL;
    if (t)
        gpu->opened = NULL;
    else
        t = make(gpu);
    int r = t ? name_streams(gpu, t, stream) : 0;
    if (r == 0)
        return t;
    (void)dlxpy_raise(r);
    drop_unused(t);
    return NULL;
}

int dlxpy_gpu_expose(const struct dlxpy_owner *owner, DLTensor *ret)
{
    struct dlxpy_gpu *gpu = owner->gpu;
    int r = check_take(gpu) < 0 ? -1 : ensure_opened(gpu);
    if (r == 0 && !gpu->is_exposed) {
        r = name_streams(gpu, gpu->opened, NULL);
        if (r < 0)
            (void)dlxpy_raise(r);
        gpu->is_exposed = r == 0;
    }
    if (r == 0)
        *ret = gpu->opened->dl_tensor;
    return r < 0 ? -1 : 0;
}

/* ---- words --------------------------------------------------------------------------------- */

static const char *type_name(const struct dlxpy_owner *owner)
{
    return owner->tensor->dl_tensor.device.device_type == kDLROCM ? "rocm" : "cuda";
}

PyObject *dlxpy_gpu_name(const struct dlxpy_owner *owner)
{
    if (owner->gpu && !owner->gpu->is_open)
        return PyUnicode_FromString(type_name(owner));
    return PyUnicode_FromFormat("%s:%d", type_name(owner),
                                (int)owner->tensor->dl_tensor.device.device_id);
}

int dlxpy_gpu_refuse_cpu(const struct dlxpy_owner *owner)
{
    (void)dlxpy_raise_text(
        DLX_E_DEVICE,
        "the tensor is on a GPU (%s), and nothing is copied to the host unasked: "
        "torch.from_dlpack(t) and cupy.from_dlpack(t) use it where it is, and "
        "torch.from_dlpack(t).cpu() copies it",
        type_name(owner));
    return -1;
}
