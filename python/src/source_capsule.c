/* SPDX-License-Identifier: Apache-2.0 */

/* Tensors in capsules, by the rules of DLPack: who takes the tensor out renames the capsule, and
 * calls the deleter once. A capsule that nobody renames calls it itself. */

#include "errors.h"
#include "export.h"
#include "source.h"

#define USED        "used_" DLXPY_CAPSULE
#define USED_LEGACY "used_" DLXPY_CAPSULE_LEGACY

/* `object` is no capsule of either kind, or was used before. */
static int refuse(PyObject *object)
{
    if (!PyCapsule_CheckExact(object)) {
        PyErr_Format(PyExc_TypeError, "__dlpack__() returned %R, which is no capsule", object);
        return -1;
    }
    const char *name = PyCapsule_GetName(object);
    if (PyCapsule_IsValid(object, USED) || PyCapsule_IsValid(object, USED_LEGACY))
        PyErr_Format(PyExc_BufferError,
                     "the tensor of this DLPack capsule was taken before (its name is '%s'), and "
                     "each capsule gives its tensor once: make a new one",
                     name);
    else
        PyErr_Format(PyExc_TypeError,
                     "a capsule named '%s' holds no DLPack tensor: those are named "
                     "'" DLXPY_CAPSULE "' and '" DLXPY_CAPSULE_LEGACY "'",
                     name ? name : "");
    return -1;
}

int dlxpy_source_check_version(const DLManagedTensorVersioned *managed)
{
    if (managed->version.major == DLPACK_MAJOR_VERSION)
        return 0;
    PyErr_Format(PyExc_BufferError,
                 "a tensor of DLPack %u.%u, and only 1.x is known: ask its library for that, as "
                 "x.__dlpack__(max_version=(1, 0))",
                 (unsigned)managed->version.major, (unsigned)managed->version.minor);
    return -1;
}

int dlxpy_source_check_shape(const DLTensor *t)
{
    if (t->ndim < 0 || t->ndim > DLX_NDIM_MAX)
        (void)dlxpy_raise_text(DLX_E_SHAPE, "a tensor of %d dimensions (limit %d)", (int)t->ndim,
                               DLX_NDIM_MAX);
    else if (t->ndim > 0 && !t->shape)
        PyErr_Format(PyExc_BufferError, "a tensor of %d dimensions whose shape is NULL",
                     (int)t->ndim);
    else
        return 0;
    return -1;
}

/* MXNet names its bool uint1, and gives it a byte each. Before DLPack 1.1 nothing said whether
 * small elements are packed. */
static int check_is_whole(const DLManagedTensor *legacy)
{
    DLDataType dtype = legacy->dl_tensor.dtype;
    if (dtype.code != kDLUInt || dtype.bits != 1)
        return 0;
    PyErr_SetString(PyExc_BufferError,
                    "elements of uint1 from DLPack of before 1.0, which does not say whether they "
                    "are packed: convert them to a type of whole bytes (in MXNet: "
                    "x.astype('uint8'))");
    return -1;
}

int dlxpy_source_open_capsule(struct dlxpy_source *s, PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, DLXPY_CAPSULE)) {
        s->managed = PyCapsule_GetPointer(capsule, DLXPY_CAPSULE);
        (void)PyCapsule_SetName(capsule, USED);
        return 0;
    }
    if (PyCapsule_IsValid(capsule, DLXPY_CAPSULE_LEGACY)) {
        s->legacy = PyCapsule_GetPointer(capsule, DLXPY_CAPSULE_LEGACY);
        (void)PyCapsule_SetName(capsule, USED_LEGACY);
        return check_is_whole(s->legacy);
    }
    return refuse(capsule);
}

int dlxpy_source_look_into_capsule(struct dlxpy_source *s, PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, DLXPY_CAPSULE)) {
        const DLManagedTensorVersioned *managed = PyCapsule_GetPointer(capsule, DLXPY_CAPSULE);
        if (dlxpy_source_check_version(managed) < 0)
            return -1;
        s->view.dl_tensor = managed->dl_tensor;
        return dlxpy_source_check_shape(&managed->dl_tensor) < 0 ? -1 : 1;
    }
    if (PyCapsule_IsValid(capsule, DLXPY_CAPSULE_LEGACY)) {
        const DLManagedTensor *legacy = PyCapsule_GetPointer(capsule, DLXPY_CAPSULE_LEGACY);
        s->view.dl_tensor = legacy->dl_tensor;
        return check_is_whole(legacy) < 0 || dlxpy_source_check_shape(&legacy->dl_tensor) < 0 ? -1
                                                                                              : 1;
    }
    return refuse(capsule);
}
