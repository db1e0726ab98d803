/* SPDX-License-Identifier: Apache-2.0 */
#include "qos.h"
#include "errors.h"

static PyTypeObject *qos_type;

PyObject *dlxpy_on_full(uint32_t on_full)
{
    return PyUnicode_FromString(on_full == DLX_ON_FULL_BLOCK ? "block" : "drop");
}

PyObject *dlxpy_retain_for(int64_t ns)
{
    if (ns == DLX_RETAIN_LATCHED)
        return PyUnicode_FromString("latched");
    return ns > 0 ? PyFloat_FromDouble((double)ns / 1e9) : Py_NewRef(Py_None);
}

PyObject *dlxpy_qos_of(const struct dlx_message *m)
{
    struct dlx_message_qos qos = {.size = sizeof qos};
    int r = dlx_message_get_qos(m, &qos);
    if (r < 0)
        return dlxpy_raise(r);
    PyObject *ret = PyStructSequence_New(qos_type);
    if (!ret)
        return NULL;
    PyStructSequence_SetItem(ret, 0, PyBool_FromLong(qos.reliable));
    PyStructSequence_SetItem(ret, 1, dlxpy_on_full(qos.on_full));
    PyStructSequence_SetItem(ret, 2, PyLong_FromUnsignedLong(qos.depth));
    PyStructSequence_SetItem(ret, 3, PyLong_FromUnsignedLong(qos.history));
    PyStructSequence_SetItem(ret, 4, PyLong_FromUnsignedLong(qos.retain));
    PyStructSequence_SetItem(ret, 5, dlxpy_retain_for(qos.retain_for_ns));
    if (PyErr_Occurred())
        Py_CLEAR(ret);
    return ret;
}

static PyStructSequence_Field fields[] = {
    {"reliable", "True if the publisher waits for this subscription, or for its group of workers"},
    {"on_full", "\"drop\" or \"block\", as in publisher()"},
    {"depth", "as in publisher(); 0: the daemon is too old to tell"},
    {"history", "as in publisher(); once the publisher is gone, `retain`"},
    {"retain", "as in publisher()"},
    {"retain_for", "as in publisher(); None also if the daemon is too old to tell"},
    {NULL, NULL},
};
static PyStructSequence_Desc desc = {
    "dlx.Qos", "What the publisher of a message offers, and this subscription gets of it.", fields,
    6};

int dlxpy_add_qos(PyObject *module)
{
    qos_type = dlxpy_add_record(module, &desc);
    return qos_type ? 0 : -1;
}
