/* SPDX-License-Identifier: Apache-2.0 */

/* Tensors in a publisher's shared memory: empty, zeros, like. */

#include "dtype.h"
#include "errors.h"
#include "parcel.h"
#include "publisher.h"
#include "source.h"
#include "wait.h"
#include <stdlib.h>
#include <string.h>

/* A tensor's spec with its shape; the shape pointer is set where it is used, since specs move. */
struct spec {
    DLDataType dtype;
    int32_t ndim;
    int64_t shape[DLX_NDIM_MAX];
};

/* ---- shapes -------------------------------------------------------------------------------- */

static int add_extent(struct spec *spec, PyObject *object)
{
    if (spec->ndim == DLX_NDIM_MAX) {
        (void)dlxpy_raise_text(DLX_E_SHAPE, "a shape of more than %d dimensions", DLX_NDIM_MAX);
        return -1;
    }
    PyObject *index = PyNumber_Index(object);
    int64_t extent = index ? PyLong_AsLongLong(index) : -1;
    Py_XDECREF(index);
    if (extent == -1 && PyErr_Occurred())
        return -1;
    spec->shape[spec->ndim++] = extent;
    return 0;
}

/* A number, or a sequence of them. */
static int parse_shape(PyObject *object, struct spec *spec)
{
    spec->ndim = 0;
    if (PyIndex_Check(object))
        return add_extent(spec, object);
    PyObject *sequence = PySequence_Tuple(object);
    if (!sequence)
        return -1;
    Py_ssize_t n = PyTuple_Size(sequence);
    int r = 0;
    for (Py_ssize_t i = 0; i < n && r == 0; i++)
        r = add_extent(spec, PyTuple_GetItem(sequence, i));
    Py_DECREF(sequence);
    return r;
}

/* Reads shape and data type of another tensor. */
static int look_at(PyObject *object, struct spec *spec)
{
    /* -1: the content is of no interest, so no stream has to wait for it. */
    static const struct dlxpy_sender sender = {.use = DLXPY_LOOK,
                                               .stream = {DLXPY_STREAM_ANY, UINTPTR_MAX}};
    struct dlxpy_source source;
    if (dlxpy_source_begin(&source, object, &sender) < 0)
        return -1;
    const DLTensor *t = &source.tensor->dl_tensor;
    int r = t->ndim <= DLX_NDIM_MAX ? 0 : -1;
    if (r < 0)
        (void)dlxpy_raise_text(DLX_E_SHAPE, "a shape of more than %d dimensions", DLX_NDIM_MAX);
    spec->dtype = t->dtype;
    spec->ndim = t->ndim;
    for (int32_t i = 0; r == 0 && i < t->ndim; i++)
        spec->shape[i] = t->shape[i];
    dlxpy_source_end(&source, false);
    return r;
}

/* ---- allocation ---------------------------------------------------------------------------- */

static struct dlx_tensor_spec public_spec(const struct spec *spec, DLDevice device)
{
    return (struct dlx_tensor_spec){.size = sizeof(struct dlx_tensor_spec),
                                    .dtype = spec->dtype,
                                    .ndim = spec->ndim,
                                    .shape = spec->shape,
                                    .device = device};
}

static PyObject *wrap(const struct dlxpy_publisher *p, DLManagedTensorVersioned *managed)
{
    struct dlxpy_tensor *t = dlxpy_tensor_new(managed);
    if (t) {
        t->publisher = p->number;
        t->generation = dlxpy_fork_generation();
    }
    return (PyObject *)t;
}

int dlxpy_alloc_each(int (*one)(void *of, const struct dlx_tensor_spec *spec,
                                DLManagedTensorVersioned **ret),
                     void *of, const struct dlx_tensor_spec *specs, uint32_t n,
                     DLManagedTensorVersioned **ret)
{
    uint32_t n_made = 0;
    int r = 0;
    while (n_made < n && (r = one(of, &specs[n_made], &ret[n_made])) == 0)
        n_made++;
    while (r < 0 && n_made > 0) {
        n_made--;
        ret[n_made]->deleter(ret[n_made]);
    }
    return r;
}

/* Returns 0, or -1 with an exception. */
static int alloc(const struct dlxpy_place *place, PyObject *self,
                 const struct dlx_tensor_spec *specs, uint32_t n, DLManagedTensorVersioned **ret)
{
    struct dlxpy_handle *handle = &place->sender(self)->handle;
    struct dlxpy_wait wait;
    if (dlxpy_handle_enter(handle) < 0)
        return -1;
    void *of = place->of(self);
    if (!of) {
        dlxpy_handle_leave(handle);
        return -1;
    }
    dlxpy_wait_begin(&wait, handle, true);
    int r = place->alloc(of, specs, n, ret);
    bool failed = dlxpy_wait_end(&wait, r) < 0;
    dlxpy_handle_leave(handle);
    for (uint32_t i = 0; r == 0 && failed && i < n; i++)
        ret[i]->deleter(ret[i]);
    return failed ? -1 : 0;
}

static DLManagedTensorVersioned *alloc_one(const struct dlxpy_place *place, PyObject *self,
                                           const struct spec *spec, DLDevice device)
{
    DLManagedTensorVersioned *managed;
    struct dlx_tensor_spec s = public_spec(spec, device);
    return alloc(place, self, &s, 1, &managed) == 0 ? managed : NULL;
}

static PyObject *alloc_parsed(const struct dlxpy_place *place, PyObject *self,
                              const struct dlxpy_params *params, PyObject *const *args,
                              Py_ssize_t n_args, PyObject *kwnames, bool clear)
{
    struct spec spec = {.dtype = {kDLFloat, 32, 1}};
    DLDevice device = {kDLCPU, 0};
    PyObject *value[3];
    if (dlxpy_parse(params, args, n_args, kwnames, value) < 0 || parse_shape(value[0], &spec) < 0 ||
        (value[1] && dlxpy_dtype(value[1], &spec.dtype) < 0) ||
        dlxpy_device(value[2], "device", &device) < 0)
        return NULL;
    if (clear && device.device_type != kDLCPU)
        return dlxpy_raise_text(DLX_E_DEVICE,
                                "device %s:%d: zeros() writes memory of the CPU only: use "
                                "torch.from_dlpack(pub.empty(shape, device=...)).zero_()",
                                device.device_type == kDLROCM ? "rocm" : "cuda", device.device_id);
    DLManagedTensorVersioned *managed = alloc_one(place, self, &spec, device);
    if (!managed)
        return NULL;
    size_t size = clear ? dlxpy_tensor_bytes(&managed->dl_tensor, false) : 0;
    if (size > 0) {
        Py_BEGIN_ALLOW_THREADS
        memset(managed->dl_tensor.data, 0, size);
        Py_END_ALLOW_THREADS
    }
    return wrap(place->sender(self), managed);
}

static const char *const names[] = {"shape", "dtype", "device"};

const char dlxpy_empty_doc[] =
    "empty($self, /, shape, dtype=\"float32\", *, device=\"cpu\")\n"
    "--\n"
    "\n"
    "Allocates a dlx.Tensor in memory that can be shared, so that publishing it copies\n"
    "nothing. The tensor is row-major and aligned to 256 bytes, its content undefined:\n"
    "write to it through np.asarray(t) or torch.from_dlpack(t).\n"
    "\n"
    "shape   a number, or a sequence of 0 to 64 numbers >= 0\n"
    "dtype   a name, or a dtype of NumPy, PyTorch, JAX or ml_dtypes\n"
    "device  \"cpu\", or a GPU: \"cuda:0\", \"rocm:0\" (\"cuda\" is \"cuda:0\"), or a\n"
    "        torch.device\n"
    "\n"
    "Write to a tensor on a GPU through torch.from_dlpack(t), and name the stream that\n"
    "writes it in publish(stream=...). dlx does not order one library\n"
    "after another one, so let only one library use the tensor until it is published.\n"
    "\n"
    "Raises ValueError (device), dlx.InvalidError, dlx.DeviceError (no such GPU),\n"
    "dlx.NoMemory, dlx.LimitError, dlx.DaemonError.";
PyObject *dlxpy_alloc_empty(const struct dlxpy_place *place, PyObject *self, PyObject *const *args,
                            Py_ssize_t n_args, PyObject *kwnames)
{
    static const struct dlxpy_params params = {"empty", names, 3, 2, 1};
    return alloc_parsed(place, self, &params, args, n_args, kwnames, false);
}

const char dlxpy_zeros_doc[] =
    "zeros($self, /, shape, dtype=\"float32\", *, device=\"cpu\")\n"
    "--\n"
    "\n"
    "Allocates a tensor as empty() does, with all bytes 0. On a GPU it raises\n"
    "dlx.DeviceError.";
PyObject *dlxpy_alloc_zeros(const struct dlxpy_place *place, PyObject *self, PyObject *const *args,
                            Py_ssize_t n_args, PyObject *kwnames)
{
    static const struct dlxpy_params params = {"zeros", names, 3, 2, 1};
    return alloc_parsed(place, self, &params, args, n_args, kwnames, true);
}

/* ---- sets ---------------------------------------------------------------------------------- */

static DLManagedTensorVersioned **alloc_set(const struct dlxpy_place *place, PyObject *self,
                                            const struct spec *specs, uint32_t n, DLDevice device)
{
    struct dlx_tensor_spec *s = calloc(n, sizeof *s);
    DLManagedTensorVersioned **ret = calloc(n, sizeof *ret);
    int r = s && ret ? 0 : -1;
    if (r < 0)
        PyErr_NoMemory();
    for (uint32_t i = 0; r == 0 && i < n; i++)
        s[i] = public_spec(&specs[i], device);
    if (r == 0)
        r = alloc(place, self, s, n, ret);
    free(s);
    if (r == 0)
        return ret;
    free(ret);
    return NULL;
}

/* A dict of the allocated tensors, under the keys of `items`. Takes the tensors over. */
static PyObject *dict_of(const struct dlxpy_publisher *p, PyObject *items,
                         DLManagedTensorVersioned **tensors, uint32_t n)
{
    PyObject *ret = PyDict_New();
    for (uint32_t i = 0; i < n; i++) {
        PyObject *t = wrap(p, tensors[i]);
        PyObject *key = t ? PyTuple_GetItem(PyList_GetItem(items, i), 0) : NULL;
        if (ret && (!t || PyDict_SetItem(ret, key, t) < 0))
            Py_CLEAR(ret);
        Py_XDECREF(t);
    }
    return ret;
}

static PyObject *like_mapping(const struct dlxpy_place *place, PyObject *self, PyObject *mapping,
                              DLDevice device)
{
    PyObject *items = PyMapping_Items(mapping), *ret = NULL;
    Py_ssize_t n = items ? PyList_Size(items) : 0;
    if (!items)
        return NULL;
    if (dlxpy_parcel_check_size(n) < 0) {
        Py_DECREF(items);
        return NULL;
    }
    struct spec *specs = calloc((size_t)n, sizeof *specs);
    bool good = specs;
    if (!specs)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; good && i < n; i++) {
        PyObject *key, *value;
        good = dlxpy_pair(PyList_GetItem(items, i), &key, &value) == 0 &&
               look_at(value, &specs[i]) == 0;
    }
    DLManagedTensorVersioned **tensors =
        good ? alloc_set(place, self, specs, (uint32_t)n, device) : NULL;
    if (tensors)
        ret = dict_of(place->sender(self), items, tensors, (uint32_t)n);
    free(tensors);
    free(specs);
    Py_DECREF(items);
    return ret;
}

const char dlxpy_like_doc[] =
    "empty_like($self, /, tensor, *, device=\"cpu\")\n"
    "--\n"
    "\n"
    "Allocates a tensor as empty() does, with the shape and data type of any tensor (of\n"
    "NumPy, PyTorch, ...), on any device. Of a dict of tensors, it makes a dict of new\n"
    "ones with the same keys, all on `device`, in one piece of memory.";
PyObject *dlxpy_alloc_like(const struct dlxpy_place *place, PyObject *self, PyObject *const *args,
                           Py_ssize_t n_args, PyObject *kwnames)
{
    static const char *const like_names[] = {"tensor", "device"};
    static const struct dlxpy_params params = {"empty_like", like_names, 2, 1, 1};
    struct spec spec;
    DLDevice device = {kDLCPU, 0};
    PyObject *value[2];
    if (dlxpy_parse(&params, args, n_args, kwnames, value) < 0 ||
        dlxpy_device(value[1], "device", &device) < 0)
        return NULL;
    if (PyDict_Check(value[0]))
        return like_mapping(place, self, value[0], device);
    if (look_at(value[0], &spec) < 0)
        return NULL;
    DLManagedTensorVersioned *managed = alloc_one(place, self, &spec, device);
    return managed ? wrap(place->sender(self), managed) : NULL;
}
