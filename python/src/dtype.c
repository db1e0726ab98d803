/* SPDX-License-Identifier: Apache-2.0 */
#include "dtype.h"
#include "errors.h"
#include <float.h>
#include <stdio.h>
#include <string.h>

PyObject *dlxpy_dtype_name(DLDataType dtype)
{
    char name[DLX_DTYPE_NAME_SIZE];
    (void)dlx_dtype_name(dtype, name);
    return PyUnicode_FromString(name);
}

/* torch.float32 prints itself by its only name; "torch.float" would be another type than
 * "float". */
static bool is_of_torch(const char *name, DLDataType dtype)
{
    char first[DLX_DTYPE_NAME_SIZE];
    (void)dlx_dtype_name(dtype, first);
    return strcmp(name, first) == 0 || strstr(name, "_x");
}

static bool from_text(PyObject *text, DLDataType *ret)
{
    const char *name = PyUnicode_AsUTF8AndSize(text, NULL);
    if (!name) {
        PyErr_Clear();
        return false;
    }
    if (strncmp(name, "torch.", 6) == 0)
        return dlx_dtype_parse(name + 6, ret) == 0 && is_of_torch(name + 6, *ret);
    return dlx_dtype_parse(name, ret) == 0;
}

/* `value`: taken over; NULL with an exception, which is passed over. Returns 1; 0: it is no name
 * of a type; -1 with an exception. */
static int from_value(PyObject *value, DLDataType *ret)
{
    int r = value && PyUnicode_Check(value) ? from_text(value, ret) : 0;
    if (!value && dlxpy_pass_over() < 0)
        return -1;
    Py_XDECREF(value);
    return r;
}

static int from_attribute(PyObject *object, const char *name, DLDataType *ret)
{
    return from_value(PyObject_GetAttrString(object, name), ret);
}

/* Reads a type by its name, which does not tell that a NumPy dtype has foreign byte order. */
static int from_named(PyObject *object, DLDataType *ret)
{
    bool failed = false;
    int r = from_attribute(object, "name", ret);
    PyObject *native = r > 0 ? dlxpy_attribute(object, "isnative", &failed) : NULL;
    if (native == Py_False) {
        PyErr_Format(PyExc_TypeError,
                     "%R is not in native byte order, and nothing else is carried: pass "
                     "dtype.newbyteorder(\"=\")",
                     object);
        r = -1;
    }
    Py_XDECREF(native);
    return failed ? -1 : r;
}

static int from_dtype(PyObject *object, DLDataType *ret)
{
    PyObject *dtype = PyObject_GetAttrString(object, "dtype");
    int r = dtype ? from_named(dtype, ret) : from_value(NULL, ret);
    Py_XDECREF(dtype);
    return r;
}

/* np.dtype and jnp.dtype have a name; np.uint8 is a type, jnp.uint8 has a dtype; torch.uint8 prints
 * its name. */
static int from_object(PyObject *object, DLDataType *ret)
{
    int r = from_named(object, ret);
    if (r == 0)
        r = from_dtype(object, ret);
    if (r == 0)
        r = from_attribute(object, "__name__", ret);
    return r == 0 ? from_value(PyObject_Str(object), ret) : r;
}

int dlxpy_dtype(PyObject *object, DLDataType *ret)
{
    static const struct {
        PyTypeObject *type;
        DLDataType dtype;
    } builtins[] = {
        {&PyBool_Type, {kDLBool, 8, 1}},
        {&PyLong_Type, {kDLInt, 64, 1}},
        {&PyFloat_Type, {kDLFloat, 64, 1}},
        {&PyComplex_Type, {kDLComplex, 128, 1}},
    };
    for (size_t i = 0; i < sizeof builtins / sizeof builtins[0]; i++)
        if (object == (PyObject *)builtins[i].type) {
            *ret = builtins[i].dtype;
            return 0;
        }
    int r = PyUnicode_Check(object) ? from_text(object, ret) : from_object(object, ret);
    if (r != 0)
        return r < 0 ? -1 : 0;
    PyErr_Format(
        PyExc_TypeError,
        "no data type that DLPack has: %R (known are \"uint8\", \"float32\", \"bfloat16\" and "
        "so on, and the dtypes of NumPy, PyTorch, JAX and ml_dtypes in native byte order)",
        object);
    return -1;
}

/* ---- buffers ------------------------------------------------------------------------------- */

const char *dlxpy_dtype_format(DLDataType dtype)
{
    /* of 8, 16, 32, 64 and 128 bits */
    static const char *const formats[][5] = {
        [kDLInt] = {"b", "h", "i", "q"},
        [kDLUInt] = {"B", "H", "I", "Q"},
        [kDLFloat] = {NULL, "e", "f", "d"},
        [kDLComplex] = {NULL, NULL, NULL, "Zf", "Zd"},
        [kDLBool] = {"?"},
    };
    if (dtype.lanes != 1 || dtype.code >= sizeof formats / sizeof formats[0])
        return NULL;
    for (unsigned i = 0; i < 5; i++)
        if (dtype.bits == 8U << i)
            return formats[dtype.code][i];
    return NULL;
}

bool dlxpy_dtype_typestr(DLDataType dtype, char ret[8])
{
    static const char kinds[] = {
        [kDLInt] = 'i', [kDLUInt] = 'u', [kDLFloat] = 'f', [kDLComplex] = 'c', [kDLBool] = 'b'};
    if (!dlxpy_dtype_format(dtype))
        return false;
    (void)snprintf(ret, 8, "%c%c%u", dtype.bits > 8 ? '<' : '|', kinds[dtype.code],
                   (unsigned)dtype.bits / 8);
    return true;
}

/* Has a number of this kind this many bytes? In ctypes, packed structures and unions have the
 * format "B" for all their bytes. */
static bool has_size(char kind, Py_ssize_t size)
{
    switch (kind) {
    case 'e':
    case 'h':
    case 'H':
        return size == 2;
    case 'f':
    case 'i':
    case 'I':
        return size == 4;
    case 'd':
    case 'q':
    case 'Q':
        return size == 8;
    case 'l':
    case 'L':
    case 'n':
    case 'N':
        return size == 4 || size == 8;
    case 'g': /* the 80 bits of x86 are no type of DLPack */
        return size == sizeof(long double) && LDBL_MANT_DIG != 64;
    default:
        return size == 1;
    }
}

bool dlxpy_dtype_of_format(const char *format, Py_ssize_t itemsize, DLDataType *ret)
{
    static const char *const ints = "bhilqn", *const uints = "BHILQNc";
    if (!format)
        format = "B";
    if (itemsize <= 0 || itemsize > 16 || ((*format == '>' || *format == '!') && itemsize > 1))
        return false;
    if (*format && strchr("@=<>!|", *format))
        format++;
    uint8_t bits = (uint8_t)(itemsize * 8);
    bool complex = *format == 'Z';
    format += complex;
    if (!format[0] || format[1] || !has_size(*format, complex ? itemsize / 2 : itemsize))
        return false;
    if (strchr("efdg", *format))
        *ret = (DLDataType){complex ? kDLComplex : kDLFloat, bits, 1};
    else if (complex)
        return false;
    else if (*format == '?')
        *ret = (DLDataType){kDLBool, bits, 1};
    else if (strchr(ints, *format))
        *ret = (DLDataType){kDLInt, bits, 1};
    else if (strchr(uints, *format))
        *ret = (DLDataType){kDLUInt, bits, 1};
    else
        return false;
    return true;
}

size_t dlxpy_dtype_bytes(DLDataType dtype)
{
    size_t bits = (size_t)dtype.bits * dtype.lanes;
    return bits % 8 == 0 ? bits / 8 : 0;
}

size_t dlxpy_tensor_bytes(const DLTensor *t, bool padded)
{
    size_t n = 1, bits = (size_t)t->dtype.bits * t->dtype.lanes;
    bool overflows = false, is_empty = false;
    for (int32_t i = 0; i < t->ndim; i++) {
        is_empty |= t->shape[i] == 0;
        overflows |= t->shape[i] < 0 || __builtin_mul_overflow(n, (size_t)t->shape[i], &n);
    }
    if (padded)
        bits = (bits + 7) / 8 * 8;
    /* n * bits could overflow where n * bits / 8 does not. */
    size_t whole, rest = (n % 8 * bits + 7) / 8;
    overflows |= __builtin_mul_overflow(n / 8, bits, &whole) || whole > PTRDIFF_MAX - rest;
    return is_empty ? 0 : overflows ? SIZE_MAX : whole + rest;
}
