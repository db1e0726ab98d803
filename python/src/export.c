/* SPDX-License-Identifier: Apache-2.0 */
#include "export.h"
#include "args.h"
#include "errors.h"

/* ---- the request --------------------------------------------------------------------------- */

static int check_pair(PyObject *object, const char *name)
{
    if (PyTuple_Check(object))
        return 0;
    PyErr_Format(PyExc_TypeError, "%s is a tuple of two numbers, not %R", name, object);
    return -1;
}

static int parse_device(PyObject *object, struct dlxpy_request *ret)
{
    int type, id;
    if (!object || object == Py_None)
        return 0;
    if (check_pair(object, "dl_device") < 0 ||
        !PyArg_ParseTuple(object, "ii;dl_device is a tuple (device_type, device_id)", &type, &id))
        return -1;
    ret->device = (DLDevice){(DLDeviceType)type, id};
    ret->has_device = true;
    return 0;
}

static int parse_version(PyObject *object, bool *ret_versioned)
{
    int major, minor;
    *ret_versioned = false;
    if (!object || object == Py_None)
        return 0;
    if (check_pair(object, "max_version") < 0 ||
        !PyArg_ParseTuple(object, "ii;max_version is a tuple (major, minor)", &major, &minor))
        return -1;
    *ret_versioned = major >= DLPACK_MAJOR_VERSION;
    return 0;
}

int dlxpy_request_parse(PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames,
                        struct dlxpy_request *ret)
{
    static const char *const names[] = {"stream", "max_version", "dl_device", "copy"};
    static const struct dlxpy_params params = {"__dlpack__", names, 4, 1, 0};
    PyObject *value[4];
    *ret = (struct dlxpy_request){false};
    if (dlxpy_parse(&params, args, n_args, kwnames, value) < 0)
        return -1;
    if (dlxpy_stream_parse(value[0], &ret->stream) < 0 ||
        parse_version(value[1], &ret->versioned) < 0 || parse_device(value[2], ret) < 0)
        return -1;
    return value[3] && value[3] != Py_None ? dlxpy_flag(value[3], &ret->copy) : 0;
}

static int refuse_device(const struct dlxpy_request *request, DLDevice device)
{
    const char *where = device.device_type == kDLCPU ? "in memory of the CPU" : "on a GPU";
    (void)dlxpy_raise_text(
        DLX_E_DEVICE,
        "this tensor is %s, (%d, %d), and is not copied to another device: (%d, %d) was asked for",
        where, (int)device.device_type, device.device_id, (int)request->device.device_type,
        request->device.device_id);
    return -1;
}

int dlxpy_request_check(const struct dlxpy_request *request, DLDevice device)
{
    if (request->has_device && (request->device.device_type != device.device_type ||
                                request->device.device_id != device.device_id))
        return refuse_device(request, device);
    if (device.device_type != kDLCPU && request->copy) {
        (void)dlxpy_raise_text(DLX_E_DEVICE, "a tensor on a GPU is not copied here: "
                                             "torch.from_dlpack(t).clone() copies it");
        return -1;
    }
    if (device.device_type != kDLCPU)
        return dlxpy_stream_check(&request->stream, (int)device.device_type);
    if (request->stream.kind == DLXPY_STREAM_NONE)
        return 0;
    PyErr_SetString(PyExc_BufferError, "memory of the CPU has no streams: stream must be None");
    return -1;
}

PyObject *dlxpy_refuse_legacy(const char *what)
{
    PyErr_Format(
        PyExc_BufferError,
        "%s is read-only, and this consumer asked for DLPack before 1.0, which has no read-only "
        "flag: pass msg.as_legacy() or t.as_legacy() if it does not write, msg.private(key) if it "
        "does; NumPy before 2.1 takes np.asarray(t)",
        what);
    return NULL;
}

/* ---- capsules ------------------------------------------------------------------------------ */

static void delete_versioned(void *tensor)
{
    DLManagedTensorVersioned *t = tensor;
    if (t->deleter)
        t->deleter(t);
}

static void delete_legacy(void *tensor)
{
    DLManagedTensor *t = tensor;
    if (t->deleter)
        t->deleter(t);
}

/* The deleter of a tensor on a GPU may wait for a thread that needs the GIL, and that of another
 * library's memory may run Python, for which no exception may be set. */
static void end(void *tensor, const DLTensor *t, void (*delete)(void *tensor))
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (t->device.device_type == kDLCPU) {
        delete (tensor);
    } else {
        Py_BEGIN_ALLOW_THREADS
        delete (tensor);
        Py_END_ALLOW_THREADS
    }
    PyErr_Restore(type, value, trace);
}

/* A consumer renames the capsule when it takes the tensor. */
static void end_capsule(PyObject *capsule)
{
    if (!PyCapsule_IsValid(capsule, DLXPY_CAPSULE))
        return;
    DLManagedTensorVersioned *tensor = PyCapsule_GetPointer(capsule, DLXPY_CAPSULE);
    end(tensor, &tensor->dl_tensor, delete_versioned);
}

static void end_capsule_legacy(PyObject *capsule)
{
    if (!PyCapsule_IsValid(capsule, DLXPY_CAPSULE_LEGACY))
        return;
    DLManagedTensor *tensor = PyCapsule_GetPointer(capsule, DLXPY_CAPSULE_LEGACY);
    end(tensor, &tensor->dl_tensor, delete_legacy);
}

PyObject *dlxpy_capsule(DLManagedTensorVersioned *tensor)
{
    if (!tensor)
        return PyErr_NoMemory();
    PyObject *capsule = PyCapsule_New(tensor, DLXPY_CAPSULE, end_capsule);
    if (!capsule)
        tensor->deleter(tensor);
    return capsule;
}

PyObject *dlxpy_capsule_legacy(DLManagedTensor *tensor)
{
    if (!tensor)
        return PyErr_NoMemory();
    PyObject *capsule = PyCapsule_New(tensor, DLXPY_CAPSULE_LEGACY, end_capsule_legacy);
    if (!capsule)
        tensor->deleter(tensor);
    return capsule;
}
