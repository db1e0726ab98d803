/* SPDX-License-Identifier: Apache-2.0 */

/* The module dlx._dlx: each other file adds its part. */

#include "debug.h"
#include "errors.h"
#include "state.h"
#include <stdbool.h>

/* ---- functions ----------------------------------------------------------------------------- */

PyDoc_STRVAR(info_doc,
             "dlpack_info($module, /)\n"
             "--\n"
             "\n"
             "Returns a dict with the versions of dlx and libdlx, of the DLPack ABI and of its C\n"
             "exchange API.");
static PyObject *dlpack_info(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    return Py_BuildValue("{s:s,s:(iii),s:(ii),s:(ii),s:[ss]}", "libdlx", dlx_version(), "built_for",
                         DLX_VERSION_MAJOR, DLX_VERSION_MINOR, DLX_VERSION_PATCH, "dlpack",
                         DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION, "exchange_api",
                         DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION, "capsules",
                         "dltensor_versioned", "dltensor");
}

PyDoc_STRVAR(
    gpu_trim_doc,
    "gpu_trim($module, /)\n"
    "--\n"
    "\n"
    "Closes GPU memory of other processes that no tensor of this process is in, on all\n"
    "GPUs, and returns its bytes. Such memory stays open for the next message: up to an\n"
    "eighth of each GPU, until its publisher frees it. Call it when another library lacks\n"
    "memory of a GPU, or before no message is taken for long.");
static PyObject *gpu_trim(PyObject *self, PyObject *unused)
{
    uint64_t bytes = 0;
    int r;
    (void)self;
    (void)unused;
    Py_BEGIN_ALLOW_THREADS
    r = dlx_gpu_trim(&bytes);
    Py_END_ALLOW_THREADS
    return r < 0 ? dlxpy_raise(r) : PyLong_FromUnsignedLongLong(bytes);
}

static PyMethodDef functions[] = {
    {"gpu_trim", gpu_trim, METH_NOARGS, gpu_trim_doc},
    {"dlpack_info", dlpack_info, METH_NOARGS, info_doc},
    {"debug", (PyCFunction)(void (*)(void))dlxpy_debug, METH_FASTCALL | METH_KEYWORDS,
     dlxpy_debug_doc},
    {0},
};

static int set_up(PyObject *module)
{
    static int (*const parts[])(PyObject *) = {
        dlxpy_add_errors,     dlxpy_add_source,   dlxpy_add_tensor,    dlxpy_add_message,
        dlxpy_add_publish,    dlxpy_add_event,    dlxpy_add_publisher, dlxpy_add_subscription,
        dlxpy_add_connection, dlxpy_add_exchange, dlxpy_add_range,     dlxpy_add_caller,
        dlxpy_add_service,    dlxpy_add_observer, dlxpy_add_qos,
    };
    static bool is_loaded; /* whole: after a failure it may be loaded once more */
    if (is_loaded) {
        PyErr_SetString(PyExc_ImportError, "dlx is loaded already, in another interpreter of this "
                                           "process: it serves one");
        return -1;
    }
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (parts[i](module) < 0)
            return -1;
    if (PyModule_AddStringConstant(module, "__version__", dlx_version()) < 0)
        return -1;
    is_loaded = true;
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)set_up},
    {0, NULL},
};
static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "dlx._dlx",
    .m_doc = "libdlx for Python; import dlx instead.",
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__dlx(void);
PyMODINIT_FUNC PyInit__dlx(void)
{
    return PyModuleDef_Init(&definition);
}
