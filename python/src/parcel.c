/* SPDX-License-Identifier: Apache-2.0 */
#include "parcel.h"
#include "errors.h"
#include "message.h"
#include <stdlib.h>
#include <string.h>

void dlxpy_parcel_init(struct dlxpy_parcel *parcel)
{
    memset(parcel, 0, offsetof(struct dlxpy_parcel, first));
}

void dlxpy_parcel_unpack(struct dlxpy_parcel *parcel, bool spent)
{
    for (uint32_t i = 0; i < parcel->n; i++)
        dlxpy_source_end(&parcel->sources[i], spent);
    if (parcel->sources != &parcel->first)
        free(parcel->sources);
    free(parcel->items);
    Py_XDECREF(parcel->names);
    Py_XDECREF(parcel->meta);
}

int dlxpy_parcel_check_size(Py_ssize_t n)
{
    if (n >= 1 && n <= DLX_TENSORS_MAX)
        return 0;
    (void)dlxpy_raise_text(DLX_E_INVALID, "a message of %zd tensors (limit %d)%s", n,
                           DLX_TENSORS_MAX,
                           n < 1 ? ": publish at least one, and scalars alone as its meta" : "");
    return -1;
}

static int make_room(struct dlxpy_parcel *parcel, Py_ssize_t n)
{
    if (dlxpy_parcel_check_size(n) < 0)
        return -1;
    parcel->is_set = true;
    parcel->sources = malloc((size_t)n * sizeof *parcel->sources);
    parcel->items = calloc((size_t)n, sizeof *parcel->items);
    if (parcel->sources && parcel->items)
        return 0;
    PyErr_NoMemory();
    return -1;
}

/* The name of a tensor: str; of what was received, as the bytes that came; None for none. Returns
 * 0, or -1. */
static int read_name(PyObject *key, const char **ret)
{
    Py_ssize_t size = 0;
    *ret = NULL;
    if (!key || key == Py_None)
        return 0;
    *ret = PyBytes_Check(key) ? PyBytes_AsString(key) : PyUnicode_AsUTF8AndSize(key, &size);
    if (PyBytes_Check(key))
        size = PyBytes_Size(key);
    if (*ret && (Py_ssize_t)strlen(*ret) == size)
        return 0;
    if (*ret)
        PyErr_Format(PyExc_ValueError, "a name of a tensor with a NUL in it: %R", key);
    return -1;
}

/* Notes on the current exception which tensor it is about. `tree`: the nested set, or NULL. */
static void say_which(PyObject *key, uint32_t i, PyObject *tree)
{
    if (tree)
        dlxpy_amend("name_leaf", "(OO)", tree, key);
    else if (key && key != Py_None)
        dlxpy_amend("name_item", "(sO)", "tensors", key);
    else
        dlxpy_amend("name_item", "(sI)", "tensors", i);
}

/* Is the object an item of a list that stands for one tensor, or for a nested set? */
static bool is_plain(PyObject *object)
{
    return PyList_Check(object) || PyTuple_Check(object) || PyDict_Check(object) ||
           PyUnicode_Check(object) || PyLong_Check(object) || PyFloat_Check(object) ||
           PyComplex_Check(object) || object == Py_None;
}

/* `tree` as for say_which(). */
static int add(struct dlxpy_parcel *parcel, PyObject *key, PyObject *object, PyObject *tree,
               const struct dlxpy_sender *sender)
{
    uint32_t i = parcel->n;
    const char *name;
    if (read_name(key, &name) < 0)
        return -1;
    if (dlxpy_source_begin(&parcel->sources[i], object, sender) < 0) {
        if (!key && is_plain(object) && PyErr_ExceptionMatches(PyExc_TypeError))
            PyErr_Format(PyExc_TypeError,
                         "no tensor: %R in a list or tuple, which is a set of tensors: publish "
                         "np.asarray(list) if all of it is one tensor, and a dict if it is nested",
                         (PyObject *)Py_TYPE(object));
        say_which(key, i, tree);
        return -1;
    }
    parcel->items[i] = (struct dlx_item){name, parcel->sources[i].tensor};
    parcel->n++;
    return 0;
}

/* `sequence`: a tuple of tensors; `names`: a tuple of as many, or NULL; `tree` as for say_which().
 * Takes `names` over. */
static int pack_sequence(struct dlxpy_parcel *parcel, PyObject *sequence, PyObject *names,
                         PyObject *tree, const struct dlxpy_sender *sender)
{
    Py_ssize_t n = PyTuple_Size(sequence);
    parcel->names = names;
    int r = make_room(parcel, n);
    for (Py_ssize_t i = 0; r == 0 && i < n; i++)
        r = add(parcel, names ? PyTuple_GetItem(names, i) : NULL, PyTuple_GetItem(sequence, i),
                tree, sender);
    return r;
}

/* Returns a key as msg.keys() gives it: bytes that are no UTF-8 are there as in os.fsdecode(). A
 * new reference, or NULL. */
static PyObject *name_object(PyObject *key)
{
    if (PyUnicode_AsUTF8AndSize(key, NULL)) {
        Py_INCREF(key);
        return key;
    }
    PyErr_Clear();
    return PyUnicode_AsEncodedString(key, "utf-8", "surrogateescape");
}

int dlxpy_pair(PyObject *item, PyObject **ret_key, PyObject **ret_value)
{
    if (PyTuple_Check(item) && PyTuple_Size(item) == 2) {
        *ret_key = PyTuple_GetItem(item, 0);
        *ret_value = PyTuple_GetItem(item, 1);
        return 0;
    }
    PyErr_Format(PyExc_TypeError, "items() of a set of tensors gives pairs (name, tensor), not %R",
                 item);
    return -1;
}

/* Returns 1, 0, or -1 with an exception. */
static int has(PyObject *object, const char *name)
{
    bool failed = false;
    PyObject *value = dlxpy_attribute(object, name, &failed);
    Py_XDECREF(value);
    return value ? 1 : failed ? dlxpy_pass_over() : 0;
}

/* A dict, or another mapping that is no tensor. Returns as has(). */
static int is_mapping(PyObject *object)
{
    if (PyDict_Check(object))
        return 1;
    if (!PyMapping_Check(object) || PyObject_CheckBuffer(object))
        return 0;
    int r = has(object, "__dlpack__");
    if (r != 0)
        return r < 0 ? -1 : 0;
    r = has(object, "items");
    return r > 0 ? has(object, "keys") : r;
}

/* Does this item make a dict nested: an int key, a value that holds others, or no tensor? `flat`:
 * the last type that was no mapping. Returns as has(). */
static int is_nested(PyObject *key, PyObject *value, PyTypeObject **flat)
{
    if (PyLong_CheckExact(key) || PyDict_Check(value) || PyList_Check(value) ||
        PyTuple_Check(value) || PyUnicode_Check(value) || value == Py_None || PyBool_Check(value) ||
        PyLong_CheckExact(value) || PyFloat_CheckExact(value) || PyComplex_CheckExact(value))
        return 1;
    if (Py_IS_TYPE(value, *flat))
        return 0;
    *flat = Py_TYPE(value);
    return is_mapping(value);
}

/* Call a function of _tree.py whose last or only result is metadata, which replace those of
 * `parcel`. Returns the result, a new reference; NULL with an exception. */
static PyObject *call_tree(struct dlxpy_parcel *parcel, const char *name, PyObject *object)
{
    PyObject *function = dlxpy_import("_tree", name);
    PyObject *ret = function ? PyObject_CallFunctionObjArgs(
                                   function, object, parcel->meta ? parcel->meta : Py_None, NULL)
                             : NULL;
    PyObject *meta = ret && PyTuple_Check(ret) ? PyTuple_GetItem(ret, 1) : ret;
    if (meta) {
        Py_XDECREF(parcel->meta);
        parcel->meta = Py_NewRef(meta);
    }
    Py_XDECREF(function);
    return ret;
}

/* The pairs of a mapping, which is flattened first if it is nested; a list. NULL with an
 * exception. */
static PyObject *flat_items(struct dlxpy_parcel *parcel, PyObject *mapping, bool *ret_is_nested)
{
    PyObject *items = PyMapping_Items(mapping), *key, *value;
    PyTypeObject *flat = NULL;
    int r = items ? 0 : -1;
    for (Py_ssize_t i = 0; r == 0 && i < PyList_Size(items); i++) {
        r = dlxpy_pair(PyList_GetItem(items, i), &key, &value);
        if (r == 0)
            r = is_nested(key, value, &flat);
    }
    *ret_is_nested = r != 0;
    if (r == 0)
        return items;
    Py_XDECREF(items);
    if (r < 0)
        return NULL;
    PyObject *ret = call_tree(parcel, "flatten", mapping);
    items = ret ? PyDict_Items(PyTuple_GetItem(ret, 0)) : NULL;
    Py_XDECREF(ret);
    return items;
}

static int pack_mapping(struct dlxpy_parcel *parcel, PyObject *mapping,
                        const struct dlxpy_sender *sender)
{
    bool is_nested;
    PyObject *items = flat_items(parcel, mapping, &is_nested);
    Py_ssize_t n = items ? PyList_Size(items) : 0;
    PyObject *names = items ? PyTuple_New(n) : NULL, *values = names ? PyTuple_New(n) : NULL;
    int r = values ? 0 : -1;
    for (Py_ssize_t i = 0; r == 0 && i < n; i++) {
        PyObject *item = PyList_GetItem(items, i), *key, *value;
        if (dlxpy_pair(item, &key, &value) < 0) {
            r = -1;
            break;
        }
        if (!PyUnicode_Check(key)) {
            PyErr_Format(PyExc_TypeError, "names of tensors are str, not %R", key);
            r = -1;
            break;
        }
        key = name_object(key);
        if (!key) {
            r = -1;
            break;
        }
        Py_INCREF(value);
        (void)PyTuple_SetItem(names, i, key);
        (void)PyTuple_SetItem(values, i, value);
    }
    Py_XDECREF(items);
    if (r == 0)
        r = pack_sequence(parcel, values, names, is_nested ? mapping : NULL, sender);
    else
        Py_XDECREF(names);
    Py_XDECREF(values);
    return r;
}

/* A tuple of names, bytes as they came, and None where there is none. */
static PyObject *names_of(const struct dlx_message *m)
{
    uint32_t n = dlx_message_n_tensors(m);
    PyObject *names = PyTuple_New(n);
    for (uint32_t i = 0; names && i < n; i++) {
        const char *name = dlx_message_tensor_name(m, i);
        PyObject *object = name[0] ? PyBytes_FromString(name) : Py_None;
        if (!object) {
            Py_DECREF(names);
            return NULL;
        }
        if (object == Py_None)
            Py_INCREF(object);
        (void)PyTuple_SetItem(names, i, object);
    }
    return names;
}

/* A message goes on with names and metadata. */
static int pack_message(struct dlxpy_parcel *parcel, PyObject *message,
                        const struct dlxpy_sender *sender)
{
    struct dlx_message *m = dlxpy_message_of(message);
    if (!m)
        return -1;
    (void)dlx_message_ref(m); /* the collection of garbage may release it meanwhile */
    PyObject *list = dlxpy_message_tensors(message, NULL);
    PyObject *values = list ? PyList_AsTuple(list) : NULL;
    PyObject *names = values ? names_of(m) : NULL;
    int r = -1;
    if (names && !parcel->meta) {
        size_t size;
        const char *meta = dlx_message_meta(m, &size);
        if (size > 0)
            parcel->meta = PyBytes_FromStringAndSize(meta, (Py_ssize_t)size);
    } else if (names && Py_IS_TYPE(message, dlxpy_tree_message_type)) {
        Py_XDECREF(call_tree(parcel, "with_meta", message));
    }
    if (names && !PyErr_Occurred())
        r = pack_sequence(parcel, values, names, NULL, sender);
    else
        Py_XDECREF(names);
    dlx_message_unref(m);
    Py_XDECREF(list);
    Py_XDECREF(values);
    return r;
}

int dlxpy_parcel_pack(struct dlxpy_parcel *parcel, PyObject *object,
                      const struct dlxpy_sender *sender)
{
    if (PyObject_TypeCheck(object, dlxpy_message_type))
        return pack_message(parcel, object, sender);
    if (PyList_Check(object) || PyTuple_Check(object)) {
        PyObject *tuple = PySequence_Tuple(object);
        int r = tuple ? pack_sequence(parcel, tuple, NULL, NULL, sender) : -1;
        Py_XDECREF(tuple);
        return r;
    }
    int mapping = Py_IS_TYPE(object, dlxpy_tensor_type) ? 0 : is_mapping(object);
    if (mapping != 0)
        return mapping > 0 ? pack_mapping(parcel, object, sender) : -1;
    parcel->sources = &parcel->first;
    if (dlxpy_source_begin(&parcel->first, object, sender) < 0)
        return -1;
    parcel->n = 1;
    return 0;
}

int dlxpy_parcel_add_meta(struct dlxpy_parcel *parcel, PyObject *meta)
{
    if (!meta || meta == Py_None)
        return 0;
    PyObject *encode = dlxpy_import("_meta", "encode");
    parcel->meta = encode ? PyObject_CallFunctionObjArgs(encode, meta, NULL) : NULL;
    Py_XDECREF(encode);
    return parcel->meta ? 0 : -1;
}

bool dlxpy_parcel_has_gpu(const struct dlxpy_parcel *parcel)
{
    for (uint32_t i = 0; i < parcel->n; i++)
        if (parcel->sources[i].on_gpu)
            return true;
    return false;
}

static bool is_copied(const struct dlxpy_source *s)
{
    return !s->own && !s->on_gpu;
}

uint32_t dlxpy_parcel_n_copied(const struct dlxpy_parcel *parcel)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < parcel->n; i++)
        n += is_copied(&parcel->sources[i]);
    return n;
}

size_t dlxpy_parcel_copied_bytes(const struct dlxpy_parcel *parcel, size_t most)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < parcel->n; i++)
        if (is_copied(&parcel->sources[i])) {
            const DLTensor *t = &parcel->sources[i].view.dl_tensor;
            size_t n = 8; /* per element, roughly */
            for (int32_t k = 0; k < t->ndim && n <= most; k++)
                n *= t->shape[k] > 0 ? (size_t)t->shape[k] : 0;
            bytes += n;
        }
    return bytes;
}
