/* SPDX-License-Identifier: Apache-2.0 */

/* dlx.GpuRange, and Message.open_into(). */

#include "range.h"
#include "args.h"
#include "errors.h"
#include "message.h"

struct range {
    PyObject_HEAD struct dlx_gpu_range *range;
    PyObject *weakrefs;
};

static PyTypeObject *range_type;

static struct range *cast(PyObject *self)
{
    return (struct range *)self;
}

static PyObject *make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    struct dlx_gpu_range *of_libdlx;
    if (PyTuple_Size(args) > 0 || (kwargs && PyDict_Size(kwargs) > 0)) {
        PyErr_SetString(PyExc_TypeError, "GpuRange() takes no arguments: the first message that is "
                                         "opened in it decides what is reserved");
        return NULL;
    }
    int r = dlx_gpu_range_new(&of_libdlx);
    if (r < 0)
        return dlxpy_raise(r);
    struct range *self = PyObject_New(struct range, type);
    if (!self) {
        dlx_gpu_range_unref(of_libdlx);
        return NULL;
    }
    self->range = of_libdlx;
    self->weakrefs = NULL;
    return (PyObject *)self;
}

/* The driver may wait for a thread that needs the GIL. */
static void dealloc(PyObject *self)
{
    struct dlx_gpu_range *of_libdlx = cast(self)->range;
    dlxpy_clear_weakrefs(self, cast(self)->weakrefs);
    Py_BEGIN_ALLOW_THREADS
    dlx_gpu_range_unref(of_libdlx);
    Py_END_ALLOW_THREADS
    dlxpy_free_object(self);
}

/* ---- opening a message --------------------------------------------------------------------- */

/* How long a wait goes on before it looks for signals. */
#define LOOK_NS    INT64_C(50000000)
#define DEFAULT_NS INT64_C(5000000000)

/* Returns a code of libdlx, or 1 with an exception of a signal's handler. */
static int open_message(struct dlx_message *m, struct dlx_gpu_range *of_libdlx, int64_t timeout_ns)
{
    uint64_t deadline = dlxpy_deadline(timeout_ns);
    for (;;) {
        int64_t left = dlxpy_time_left(deadline);
        bool is_last = left >= 0 && left <= LOOK_NS;
        int r;
        Py_BEGIN_ALLOW_THREADS
        r = dlx_message_open_into(m, of_libdlx, is_last ? left : LOOK_NS);
        Py_END_ALLOW_THREADS
        if (r != DLX_E_TIMEOUT || is_last)
            return r;
        if (PyErr_CheckSignals() < 0)
            return 1;
    }
}

const char dlxpy_open_into_doc[] = PyDoc_STR(
    "open_into($self, range, /, timeout=5.0)\n"
    "--\n"
    "\n"
    "Opens the tensors on GPUs of this message in a dlx.GpuRange, each at the address\n"
    "that the tensor of the same name had in the message that was opened there before.\n"
    "So CUDA graphs that were captured over those tensors run over these.\n"
    "\n"
    "Call it before the message's tensors are used. The former message has to be out of\n"
    "use: it ends when it and everything made from it are gone, and the work on their\n"
    "streams is done. The call waits for that for `timeout` seconds; 0 does not wait,\n"
    "None waits without a limit. Everything else is checked before the wait.\n"
    "\n"
    "Raises dlx.Timeout (another message is in the range), dlx.InvalidError (its tensors\n"
    "lie otherwise in their memory, which names the first and what a publisher has to\n"
    "do: make each version by one pub.empty_like() of the same dict; or a tensor was\n"
    "used before), dlx.DeviceError (memory of cudaMalloc, for example, cannot be\n"
    "placed), and what t.device raises. The message is not open then, and the range is\n"
    "as it was, or empty.");

PyObject *dlxpy_message_open_into(PyObject *self, PyObject *const *args, Py_ssize_t n_args,
                                  PyObject *kwnames)
{
    static const char *const names[] = {"range", "timeout"};
    static const struct dlxpy_params params = {"open_into", names, 2, 2, 1};
    PyObject *given[2];
    int64_t timeout_ns = DEFAULT_NS;
    if (dlxpy_parse(&params, args, n_args, kwnames, given) < 0 ||
        (given[1] && dlxpy_timeout(given[1], &timeout_ns) < 0))
        return NULL;
    if (!PyObject_TypeCheck(given[0], range_type)) {
        PyErr_Format(PyExc_TypeError, "open_into() takes a dlx.GpuRange, not %.100R", given[0]);
        return NULL;
    }
    struct dlx_message *m = dlxpy_message_of(self);
    if (!m)
        return NULL;
    (void)dlx_message_ref(m); /* another thread may release it meanwhile */
    int r = open_message(m, cast(given[0])->range, timeout_ns);
    ((struct dlxpy_message *)self)->is_on_gpu |= r == 0;
    PyObject *ret = r < 0 ? dlxpy_raise(r) : r == 0 ? Py_NewRef(Py_None) : NULL;
    dlx_message_unref(m);
    return ret;
}

/* ---- type ---------------------------------------------------------------------------------- */

static PyObject *reduce(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    PyErr_SetString(PyExc_TypeError, "a dlx.GpuRange has addresses of its process, and is not "
                                     "copied or pickled: make one where it is used");
    return NULL;
}

static PyMethodDef methods[] = {{"__reduce__", reduce, METH_NOARGS, NULL}, {0}};
static PyMemberDef members[] = {DLXPY_WEAKREFS(struct range), {0}};

PyDoc_STRVAR(doc,
             "GpuRange()\n"
             "--\n"
             "\n"
             "Addresses of GPUs that stay while the memory behind them changes: versions of a\n"
             "model's weights, under CUDA graphs. msg.open_into(range) opens a message there.\n"
             "The first one decides which addresses are reserved, and how the next ones have\n"
             "to lie. A range holds one message at a time.");
static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)doc}, {Py_tp_new, (void *)make}, {Py_tp_dealloc, (void *)dealloc},
    {Py_tp_methods, methods}, {Py_tp_members, members},  {0, NULL},
};
static PyType_Spec spec = {"dlx.GpuRange", sizeof(struct range), 0, Py_TPFLAGS_DEFAULT, slots};

int dlxpy_add_range(PyObject *module)
{
    range_type = dlxpy_add_type(module, &spec, NULL);
    return range_type ? 0 : -1;
}
