/* SPDX-License-Identifier: Apache-2.0 */

/* The C exchange API of DLPack 1.3, on dlx.Tensor and dlx.Message: extension modules get tensors
 * without running Python. */

#include "errors.h"
#include "export.h"
#include "gpu.h"
#include "message.h"
#include "source.h"
#include "tensor.h"

static int allocate(DLTensor *prototype, DLManagedTensorVersioned **out, void *error_ctx,
                    void (*SetError)(void *error_ctx, const char *kind, const char *message))
{
    if (prototype->device.device_type != kDLCPU) {
        SetError(error_ctx, "BufferError",
                 "memory of GPUs is allocated by a publisher: pub.empty(shape, device=...)");
        return -1;
    }
    if (prototype->ndim < 0 || prototype->ndim > DLX_NDIM_MAX ||
        (prototype->ndim > 0 && !prototype->shape)) {
        SetError(error_ctx, "BufferError", "a shape of 0 to 64 dimensions is needed");
        return -1;
    }
    *out = dlxpy_private_new(prototype, false);
    if (*out)
        return 0;
    SetError(error_ctx, "MemoryError", "out of memory");
    return -1;
}

static int from_object(void *py_object, DLManagedTensorVersioned **out)
{
    PyObject *object = py_object;
    DLManagedTensorVersioned *managed = NULL;
    if (PyObject_TypeCheck(object, dlxpy_message_type)) {
        managed = dlxpy_message_export(object);
    } else if (Py_IS_TYPE(object, dlxpy_tensor_type)) {
        const struct dlxpy_tensor *t = py_object;
        if (dlxpy_tensor_data(t) && t->owner->gpu) {
            managed = dlxpy_gpu_export(t->owner, NULL);
        } else if (!PyErr_Occurred()) {
            managed = dlxpy_owner_export(t->owner);
            if (!managed)
                PyErr_NoMemory();
        }
    } else {
        PyErr_Format(PyExc_TypeError, "a dlx.Tensor is needed, not %R",
                     (PyObject *)Py_TYPE(object));
    }
    if (!managed)
        return -1;
    *out = managed;
    return 0;
}

static int to_object(DLManagedTensorVersioned *tensor, void **out_py_object)
{
    if (dlxpy_source_check_version(tensor) < 0 || dlxpy_source_check_shape(&tensor->dl_tensor) < 0)
        return -1;
    if (tensor->dl_tensor.device.device_type != kDLCPU) {
        PyErr_SetString(PyExc_BufferError, "a dlx.Tensor is made of memory of the CPU only");
        return -1;
    }
    /* On failure the tensor stays the caller's, so what may fail comes first. */
    struct dlxpy_owner *owner = dlxpy_owner_new(tensor);
    if (!owner) {
        PyErr_NoMemory();
        return -1;
    }
    struct dlxpy_tensor *t = dlxpy_tensor_of(owner);
    if (!t) {
        owner->tensor = NULL;
        dlxpy_owner_unref(owner);
        return -1;
    }
    *out_py_object = t;
    return 0;
}

static int describe(void *py_object, DLTensor *out)
{
    const struct dlxpy_tensor *t = py_object;
    if (PyObject_TypeCheck((PyObject *)py_object, dlxpy_message_type)) {
        const struct dlx_message *m = dlxpy_message_only_one(py_object);
        if (!m)
            return -1;
        if (dlxpy_gpu_has(m, 0)) { /* no consumer would say when it stops using the address */
            PyErr_SetString(PyExc_BufferError, "of a message on a GPU, only msg[0] has an address");
            return -1;
        }
        *out = *dlx_message_tensor_peek(m, 0);
        return 0;
    }
    if (!Py_IS_TYPE((PyObject *)py_object, dlxpy_tensor_type)) {
        PyErr_SetString(PyExc_TypeError, "a dlx.Tensor is needed");
        return -1;
    }
    if (!dlxpy_tensor_data(t))
        return -1;
    if (t->owner->gpu)
        return dlxpy_gpu_expose(t->owner, out);
    *out = dlxpy_owner_describe(t->owner);
    return 0;
}

/* A received tensor is ready on every stream before this API gives it away. */
static int current_stream(DLDeviceType device_type, int32_t device_id, void **out_current_stream)
{
    (void)device_type;
    (void)device_id;
    *out_current_stream = NULL;
    return 0;
}

static DLPackExchangeAPI api = {
    .header = {.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION}},
    .managed_tensor_allocator = allocate,
    .managed_tensor_from_py_object_no_sync = from_object,
    .managed_tensor_to_py_object_no_sync = to_object,
    .dltensor_from_py_object_no_sync = describe,
    .current_work_stream = current_stream,
};

int dlxpy_add_exchange(PyObject *module)
{
    (void)module;
    PyObject *capsule = PyCapsule_New(&api, "dlpack_exchange_api", NULL);
    PyTypeObject *const types[] = {dlxpy_tensor_type, dlxpy_message_type};
    int r = capsule ? 0 : -1;
    for (size_t i = 0; r == 0 && i < 2; i++)
        r = PyObject_SetAttrString((PyObject *)types[i], "__dlpack_c_exchange_api__", capsule);
    Py_XDECREF(capsule);
    return r;
}
