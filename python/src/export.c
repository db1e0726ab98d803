/* SPDX-License-Identifier: Apache-2.0 */
#include "export.h"
#include "args.h"

/* ---- the request --------------------------------------------------------------------------- */

static int check_pair(PyObject *object, const char *name)
{
    if (PyTuple_Check(object))
        return 0;
    PyErr_Format(PyExc_TypeError, "%s is a tuple of two numbers, not %R", name, object);
    return -1;
}

static int parse_device(PyObject *object)
{
    int type, id;
    if (!object || object == Py_None)
        return 0;
    if (check_pair(object, "dl_device") < 0 ||
        !PyArg_ParseTuple(object, "ii;dl_device is a tuple (device_type, device_id)", &type, &id))
        return -1;
    if (type == kDLCPU && id == 0)
        return 0;
    PyErr_Format(
        PyExc_BufferError,
        "this tensor is in memory of the CPU, (%d, 0), and is not copied to another device: "
        "(%d, %d) was asked for",
        kDLCPU, type, id);
    return -1;
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
    if (value[0] && value[0] != Py_None) {
        PyErr_Format(PyExc_BufferError,
                     "memory of the CPU has no streams: stream must be None, not %R", value[0]);
        return -1;
    }
    if (parse_version(value[1], &ret->versioned) < 0 || parse_device(value[2]) < 0)
        return -1;
    return value[3] && value[3] != Py_None ? dlxpy_flag(value[3], &ret->copy) : 0;
}

PyObject *dlxpy_refuse_legacy(const char *what)
{
    PyErr_Format(
        PyExc_BufferError,
        "%s is read-only, which the DLPack of before 1.0 that was asked for (no max_version) "
        "cannot say. A consumer that does not write may have t.as_legacy(), one that does "
        "msg.private(name); NumPy has DLPack 1.0 since 2.1, and np.asarray(t) before",
        what);
    return NULL;
}

/* ---- capsules ------------------------------------------------------------------------------ */

/* Who takes the tensor renames the capsule. */
static void end_capsule(PyObject *capsule)
{
    if (!PyCapsule_IsValid(capsule, DLXPY_CAPSULE))
        return;
    DLManagedTensorVersioned *tensor = PyCapsule_GetPointer(capsule, DLXPY_CAPSULE);
    if (tensor->deleter)
        tensor->deleter(tensor);
}

static void end_capsule_legacy(PyObject *capsule)
{
    if (!PyCapsule_IsValid(capsule, DLXPY_CAPSULE_LEGACY))
        return;
    DLManagedTensor *tensor = PyCapsule_GetPointer(capsule, DLXPY_CAPSULE_LEGACY);
    if (tensor->deleter)
        tensor->deleter(tensor);
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

PyObject *dlxpy_device(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    return Py_BuildValue("(ii)", kDLCPU, 0);
}
