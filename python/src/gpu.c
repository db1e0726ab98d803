/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu.h"
#include "errors.h"
#include <stdlib.h>

struct dlxpy_gpu {
    DLManagedTensorVersioned described; /* shape and strides are the message's */
    struct dlx_message *m;
    uint32_t i;
    struct dlxpy_stream stream; /* of take() */
    bool is_open;               /* device and flags in `described` are known */
    /* Tensors whose address was given away; NULL: none. Ready on every stream, and on that of
     * take(). */
    DLManagedTensorVersioned *exposed, *exposed_on_take;
};

bool dlxpy_gpu_has(const struct dlx_message *m, uint32_t i)
{
    const DLTensor *t = dlx_message_tensor_peek(m, i);
    return t && (t->device.device_type == kDLCUDA || t->device.device_type == kDLROCM);
}

/* ---- streams ------------------------------------------------------------------------------- */

/* The streams that use a tensor. n = 0: the streams are unknown. */
struct streams {
    uint32_t n;
    void *all[2];
};

static DLDeviceType type_of(const struct dlxpy_gpu *gpu)
{
    return gpu->described.dl_tensor.device.device_type;
}

static bool is_unknown(const struct dlxpy_stream *s, DLDeviceType type)
{
    return s->kind == DLXPY_STREAM_ANY || (type == kDLCUDA && s->number == DLXPY_STREAM_PER_THREAD);
}

/* See gpu.h. `consumer` NULL: it does not tell. */
static struct streams find_streams(const struct dlxpy_gpu *gpu, const struct dlxpy_stream *consumer)
{
    struct streams s = {0};
    bool is_told = consumer && consumer->kind != DLXPY_STREAM_ANY;
    if (is_unknown(&gpu->stream, type_of(gpu)) || (is_told && is_unknown(consumer, type_of(gpu))))
        return s;
    if (gpu->stream.kind != DLXPY_STREAM_NONE)
        s.all[s.n++] = dlxpy_stream_handle(&gpu->stream);
    if (is_told && (s.n == 0 || s.all[0] != dlxpy_stream_handle(consumer)))
        s.all[s.n++] = dlxpy_stream_handle(consumer);
    return s;
}

/* Checks the stream of take(), which came before the device of the tensors was known. */
static int check_take(const struct dlxpy_gpu *gpu)
{
    return dlxpy_stream_check(&gpu->stream, (int)type_of(gpu));
}

static int name_streams(DLManagedTensorVersioned *t, const struct streams *s)
{
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < s->n && t->dl_tensor.data; i++)
        r = dlx_tensor_used_on(t, s->all[i]);
    return r;
}

/* ---- making and ending --------------------------------------------------------------------- */

/* Drops a tensor that no stream has used. */
static void drop_unused(DLManagedTensorVersioned *t)
{
    if (t->dl_tensor.data)
        (void)dlx_tensor_used_on(t, DLX_STREAM_NONE);
    t->deleter(t);
}

static void delete_gpu(DLManagedTensorVersioned *tensor)
{
    struct dlxpy_gpu *gpu = tensor->manager_ctx;
    if (gpu->exposed)
        gpu->exposed->deleter(gpu->exposed);
    if (gpu->exposed_on_take)
        gpu->exposed_on_take->deleter(gpu->exposed_on_take);
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
            .dl_tensor = *dlx_message_tensor_peek(m, i),
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

/* Returns 0, or -1 with the exception of a code. */
static int note(struct dlxpy_gpu *gpu, int r, const DLManagedTensorVersioned *t)
{
    if (r < 0) {
        (void)dlxpy_raise(r);
        return -1;
    }
    gpu->described.dl_tensor.device = t->dl_tensor.device;
    gpu->described.flags = t->flags;
    gpu->is_open = true;
    return 0;
}

int dlxpy_gpu_open(const struct dlxpy_owner *owner, DLDevice *ret)
{
    struct dlxpy_gpu *gpu = owner->gpu;
    DLManagedTensorVersioned t;
    if (gpu && !gpu->is_open) {
        int r;
        Py_BEGIN_ALLOW_THREADS
        r = dlx_message_tensor_describe(gpu->m, gpu->i, &t);
        Py_END_ALLOW_THREADS
        if (note(gpu, r, &t) < 0)
            return -1;
    }
    *ret = owner->tensor->dl_tensor.device;
    return 0;
}

/* Lets the CPU wait until the tensor is ready. `s` are streams that use it. A tensor that was made
 * belongs to the caller, also after an error. */
static int wait_here(const struct dlxpy_gpu *gpu, const struct streams *s,
                     DLManagedTensorVersioned **ret)
{
    int r = dlx_message_tensor(gpu->m, gpu->i, ret);
    return r < 0 ? r : name_streams(*ret, s);
}

/* Lets the streams wait until the tensor is ready. The last stream is the tensor's; a tensor of its
 * own makes the other one wait, unless the tensor is ready already. */
static int let_streams_wait(const struct dlxpy_gpu *gpu, const struct streams *s,
                            DLManagedTensorVersioned **ret)
{
    DLManagedTensorVersioned *other;
    int r = dlx_message_tensor_on(gpu->m, gpu->i, s->all[s->n - 1], ret);
    if (r == 0 && s->n == 2 && dlx_tensor_status(*ret) != 0) {
        r = dlx_message_tensor_on(gpu->m, gpu->i, s->all[0], &other);
        if (r == 0)
            other->deleter(other);
    }
    return r < 0 ? r : name_streams(*ret, s);
}

/* NULL with an exception. */
static DLManagedTensorVersioned *make(struct dlxpy_gpu *gpu, const struct streams *s,
                                      bool on_streams)
{
    DLManagedTensorVersioned *t = NULL;
    int r = check_take(gpu);
    if (r < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    r = on_streams && s->n > 0 ? let_streams_wait(gpu, s, &t) : wait_here(gpu, s, &t);
    Py_END_ALLOW_THREADS
    if (note(gpu, r, t) == 0)
        return t;
    if (t)
        drop_unused(t);
    return NULL;
}

DLManagedTensorVersioned *dlxpy_gpu_export(const struct dlxpy_owner *owner,
                                           const struct dlxpy_stream *stream)
{
    const struct streams s = find_streams(owner->gpu, stream);
    return make(owner->gpu, &s, stream != NULL);
}

/* Another thread may have opened the tensor meanwhile. */
static int expose(struct dlxpy_gpu *gpu, bool on_take, DLTensor *ret)
{
    DLManagedTensorVersioned **place = on_take ? &gpu->exposed_on_take : &gpu->exposed;
    const struct streams s = find_streams(gpu, NULL);
    if (!*place) {
        DLManagedTensorVersioned *t = make(gpu, &s, on_take);
        if (!t)
            return -1;
        if (*place)
            drop_unused(t);
        else
            *place = t;
    }
    *ret = (*place)->dl_tensor;
    return 0;
}

int dlxpy_gpu_expose(const struct dlxpy_owner *owner, DLTensor *ret)
{
    return expose(owner->gpu, false, ret);
}

int dlxpy_gpu_expose_on(const struct dlxpy_owner *owner, DLTensor *ret, PyObject **ret_stream)
{
    struct dlxpy_gpu *gpu = owner->gpu;
    const struct streams s = find_streams(gpu, NULL);
    if (expose(gpu, s.n > 0, ret) < 0)
        return -1;
    *ret_stream = s.n > 0
                      ? PyLong_FromLongLong(dlxpy_stream_number(&gpu->stream, (int)type_of(gpu)))
                      : Py_NewRef(Py_None);
    return *ret_stream ? 0 : -1;
}

PyObject *dlxpy_gpu_status(const struct dlxpy_owner *owner)
{
    int r = dlx_message_status(owner->gpu->m);
    return PyUnicode_FromString(r == 0 ? "ready" : r == 1 ? "waiting" : dlx_error_name(r));
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
