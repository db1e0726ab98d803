/* SPDX-License-Identifier: Apache-2.0 */

/* A tensor by __dlpack__. */

#include "errors.h"
#include "gpu.h"
#include "tensor.h"

static PyObject *gpu_dlpack(const struct dlxpy_tensor *t, const struct dlxpy_request *request)
{
    DLDevice device;
    if (dlxpy_gpu_open(t->owner, &device) < 0 || dlxpy_request_check(request, device) < 0)
        return NULL;
    if (!request->versioned && !t->gives_legacy)
        return dlxpy_refuse_legacy("this tensor");
    DLManagedTensorVersioned *managed = dlxpy_gpu_export(t->owner, &request->stream);
    if (!managed || request->versioned)
        return managed ? dlxpy_capsule(managed) : NULL;
    struct dlxpy_owner *owner = dlxpy_owner_new(managed);
    if (!owner) {
        managed->deleter(managed);
        return PyErr_NoMemory();
    }
    DLManagedTensor *legacy = dlxpy_owner_export_legacy(owner);
    dlxpy_owner_unref(owner);
    return dlxpy_capsule_legacy(legacy);
}

PyObject *dlxpy_tensor_dlpack(struct dlxpy_tensor *t, const struct dlxpy_request *request)
{
    if (!dlxpy_tensor_data(t))
        return NULL;
    if (t->owner->gpu)
        return gpu_dlpack(t, request);
    if (dlxpy_request_check(request, t->owner->tensor->dl_tensor.device) < 0)
        return NULL;
    if (request->copy) {
        DLManagedTensorVersioned *copy = dlxpy_tensor_own_copy(t);
        struct dlxpy_owner *owner = copy && !request->versioned ? dlxpy_owner_new(copy) : NULL;
        if (!copy || request->versioned)
            return copy ? dlxpy_capsule(copy) : NULL;
        if (!owner) {
            copy->deleter(copy);
            return PyErr_NoMemory();
        }
        DLManagedTensor *legacy = dlxpy_owner_export_legacy(owner);
        dlxpy_owner_unref(owner);
        return dlxpy_capsule_legacy(legacy);
    }
    if (request->versioned)
        return dlxpy_capsule(dlxpy_owner_export(t->owner));
    if (t->owner->tensor->flags & DLPACK_FLAG_BITMASK_READ_ONLY && !t->gives_legacy)
        return dlxpy_refuse_legacy("this tensor");
    if (t->owner->tensor->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED) {
        PyErr_SetString(PyExc_BufferError, "elements that are padded to a byte need DLPack 1.1");
        return NULL;
    }
    return dlxpy_capsule_legacy(dlxpy_owner_export_legacy(t->owner));
}

PyObject *dlxpy_tensor_device(const struct dlxpy_tensor *t)
{
    const DLTensor *data = dlxpy_tensor_data(t);
    DLDevice device = data ? data->device : (DLDevice){0};
    if (!data || (t->owner->gpu && dlxpy_gpu_open(t->owner, &device) < 0))
        return NULL;
    return Py_BuildValue("(ii)", (int)device.device_type, (int)device.device_id);
}
