/* SPDX-License-Identifier: Apache-2.0 */
#include "dtype.h"
#include "source.h"
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first entry of a (code, bits) pair is the name that is given out; the names are those of dlxctl. */
static const struct entry {
    const char *name;
    uint8_t code;
    uint8_t bits;
    const char *format;
} entries[] = {
    {"bool", kDLBool, 8, "?"},
    {"int2", kDLInt, 2, NULL},
    {"int4", kDLInt, 4, NULL},
    {"int8", kDLInt, 8, "b"},
    {"int16", kDLInt, 16, "h"},
    {"int32", kDLInt, 32, "i"},
    {"int64", kDLInt, 64, "q"},
    {"uint1", kDLUInt, 1, NULL},
    {"uint2", kDLUInt, 2, NULL},
    {"uint4", kDLUInt, 4, NULL},
    {"uint8", kDLUInt, 8, "B"},
    {"uint16", kDLUInt, 16, "H"},
    {"uint32", kDLUInt, 32, "I"},
    {"uint64", kDLUInt, 64, "Q"},
    {"float16", kDLFloat, 16, "e"},
    {"float32", kDLFloat, 32, "f"},
    {"float64", kDLFloat, 64, "d"},
    {"bfloat16", kDLBfloat, 16, NULL},
    {"complex64", kDLComplex, 64, "Zf"},
    {"complex128", kDLComplex, 128, "Zd"},
    {"float8_e3m4", kDLFloat8_e3m4, 8, NULL},
    {"float8_e4m3", kDLFloat8_e4m3, 8, NULL},
    {"float8_e4m3b11fnuz", kDLFloat8_e4m3b11fnuz, 8, NULL},
    {"float8_e4m3fn", kDLFloat8_e4m3fn, 8, NULL},
    {"float8_e4m3fnuz", kDLFloat8_e4m3fnuz, 8, NULL},
    {"float8_e5m2", kDLFloat8_e5m2, 8, NULL},
    {"float8_e5m2fnuz", kDLFloat8_e5m2fnuz, 8, NULL},
    {"float8_e8m0fnu", kDLFloat8_e8m0fnu, 8, NULL},
    {"float6_e2m3fn", kDLFloat6_e2m3fn, 6, NULL},
    {"float6_e3m2fn", kDLFloat6_e3m2fn, 6, NULL},
    {"float4_e2m1fn", kDLFloat4_e2m1fn, 4, NULL},
    /* NumPy's short forms */
    {"b1", kDLBool, 8, NULL},
    {"i1", kDLInt, 8, NULL},
    {"i2", kDLInt, 16, NULL},
    {"i4", kDLInt, 32, NULL},
    {"i8", kDLInt, 64, NULL},
    {"u1", kDLUInt, 8, NULL},
    {"u2", kDLUInt, 16, NULL},
    {"u4", kDLUInt, 32, NULL},
    {"u8", kDLUInt, 64, NULL},
    {"f2", kDLFloat, 16, NULL},
    {"f4", kDLFloat, 32, NULL},
    {"f8", kDLFloat, 64, NULL},
    {"c8", kDLComplex, 64, NULL},
    {"c16", kDLComplex, 128, NULL},
    /* other names of frameworks */
    {"half", kDLFloat, 16, NULL},
    {"float", kDLFloat, 32, NULL},
    {"double", kDLFloat, 64, NULL},
};

static const struct entry *find(DLDataType dtype)
{
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++)
        if (entries[i].code == dtype.code && entries[i].bits == dtype.bits)
            return &entries[i];
    return NULL;
}

/* ---- names --------------------------------------------------------------------------------- */

/* "1:8:1", as dlxctl writes what has no name. */
static bool parse_numbers(const char *name, DLDataType *ret)
{
    unsigned code, bits, lanes;
    char more;
    if (sscanf(name, "%u:%u:%u%c", &code, &bits, &lanes, &more) != 3 || code > UINT8_MAX ||
        bits > UINT8_MAX || lanes > UINT16_MAX || bits == 0 || lanes == 0)
        return false;
    *ret = (DLDataType){(uint8_t)code, (uint8_t)bits, (uint16_t)lanes};
    return true;
}

bool dlxpy_dtype_named(const char *name, DLDataType *ret)
{
    unsigned long lanes = 1;
    if (name[0] == '<' || name[0] == '|' || name[0] == '=')
        name++;
    size_t size = strlen(name);
    const char *x = strrchr(name, 'x'); /* no name has one, but complex */
    if (x && x[1] >= '1' && x[1] <= '9' && strncmp(name, "complex", 7) != 0) {
        char *end;
        lanes = strtoul(x + 1, &end, 10);
        if (*end || lanes > UINT16_MAX)
            return false;
        size = (size_t)(x - name);
    }
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++)
        if (strncmp(entries[i].name, name, size) == 0 && entries[i].name[size] == '\0') {
            *ret = (DLDataType){entries[i].code, entries[i].bits, (uint16_t)lanes};
            return true;
        }
    return parse_numbers(name, ret);
}

PyObject *dlxpy_dtype_name(DLDataType dtype)
{
    const struct entry *entry = find(dtype);
    if (!entry)
        return PyUnicode_FromFormat("%u:%u:%u", (unsigned)dtype.code, (unsigned)dtype.bits,
                                    (unsigned)dtype.lanes);
    if (dtype.lanes != 1)
        return PyUnicode_FromFormat("%sx%u", entry->name, (unsigned)dtype.lanes);
    return PyUnicode_FromString(entry->name);
}

static bool from_text(PyObject *text, DLDataType *ret)
{
    const char *name = PyUnicode_AsUTF8AndSize(text, NULL);
    if (!name) {
        PyErr_Clear();
        return false;
    }
    if (strncmp(name, "torch.", 6) == 0)
        name += 6;
    return dlxpy_dtype_named(name, ret);
}

/* `value`: taken over; NULL with an exception, which is passed over. Returns 1; 0: it is no name of a type; -1 with an exception. */
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

static int from_dtype(PyObject *object, DLDataType *ret)
{
    PyObject *dtype = PyObject_GetAttrString(object, "dtype");
    int r = dtype ? from_attribute(dtype, "name", ret) : from_value(NULL, ret);
    Py_XDECREF(dtype);
    return r;
}

/* np.dtype and jnp.dtype have a name; np.uint8 is a type, jnp.uint8 has a dtype; torch.uint8 is what it prints. */
static int from_object(PyObject *object, DLDataType *ret)
{
    int r = from_attribute(object, "name", ret);
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
    const struct entry *entry = dtype.lanes == 1 ? find(dtype) : NULL;
    return entry ? entry->format : NULL;
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

/* Has a number of this kind so many bytes? What is packed or a union says of all its bytes "B", in ctypes. */
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
    case 'g': /* the 80 bits of x86 are nobody else's, and no type of DLPack */
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
