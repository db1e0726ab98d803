/* SPDX-License-Identifier: Apache-2.0 */

/* Tensors of other libraries on GPUs, to be published where they are: __dlpack__ with a stream. */

#include "errors.h"
#include "source.h"
#include <stdlib.h>

/* What a library that knows only the DLPack of before 1.0 gave, as libdlx takes it. */
struct wrapped {
    DLManagedTensorVersioned tensor;
    DLManagedTensor *legacy;
};

static void delete_wrapped(DLManagedTensorVersioned *tensor)
{
    struct wrapped *w = tensor->manager_ctx;
    if (w->legacy->deleter)
        w->legacy->deleter(w->legacy);
    free(w);
}

int dlxpy_source_wrap(struct dlxpy_source *s)
{
    struct wrapped *w = malloc(sizeof *w);
    if (!w) {
        PyErr_NoMemory();
        return -1;
    }
    *w = (struct wrapped){.tensor = {.version = {DLPACK_MAJOR_VERSION, 0},
                                     .manager_ctx = w,
                                     .deleter = delete_wrapped,
                                     .dl_tensor = s->legacy->dl_tensor},
                          .legacy = s->legacy};
    s->legacy = NULL;
    s->managed = &w->tensor;
    return 0;
}

/* Always the number: what leaving it out means differs (PyTorch does not wait then). */
PyObject *dlxpy_source_stream(const struct dlxpy_stream *stream, int device_type)
{
    if (dlxpy_stream_check(stream, device_type) < 0)
        return NULL;
    return PyLong_FromLongLong(dlxpy_stream_number(stream, device_type));
}

int dlxpy_source_check_gpu(const struct dlxpy_sender *sender, int type, int id)
{
    const char *name = type == kDLROCM ? "ROCm" : "CUDA";
    if (sender->use == DLXPY_PASS || sender->use == DLXPY_LOOK)
        return 0;
    if (sender->use == DLXPY_SHARE)
        (void)dlxpy_raise_text(DLX_E_DEVICE,
                               "the tensor is on %s device %d, and share=True is for tensors of "
                               "empty(): without it, this one is not spent either",
                               name, id);
    else
        (void)dlxpy_raise_text(DLX_E_DEVICE,
                               "the tensor is on %s device %d: publish() takes it where it is, but "
                               "nothing is copied to the host unasked (in PyTorch: t.cpu())",
                               name, id);
    return -1;
}
