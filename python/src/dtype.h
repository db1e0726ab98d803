/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXPY_DTYPE_H
#define DLXPY_DTYPE_H

/* Data types: DLPack's, and their names in Python, in the buffer protocol and in
 * __array_interface__. */

#include "state.h"
#include <stdbool.h>

/*
 * From a name that dlx_dtype_parse() knows, a dtype of NumPy, PyTorch, JAX or ml_dtypes, a NumPy
 * scalar type, or Python's bool, int, float and complex. Returns 0, or -1 with TypeError.
 */
int dlxpy_dtype(PyObject *object, DLDataType *ret);

/* The name of a data type, a new reference; NULL with an exception. */
PyObject *dlxpy_dtype_name(DLDataType dtype);

/* Format of the struct module; NULL if there is none, as for bfloat16. */
const char *dlxpy_dtype_format(DLDataType dtype);

/* Type string of __array_interface__, "<f4"; false if there is none. */
bool dlxpy_dtype_typestr(DLDataType dtype, char ret[8]);

/* From a format of the struct module and an item size: false if it is no number, or of another byte
 * order. */
bool dlxpy_dtype_of_format(const char *format, Py_ssize_t itemsize, DLDataType *ret);

/* Bytes an element; 0 for a type without whole bytes. */
size_t dlxpy_dtype_bytes(DLDataType dtype);

/* Bytes of `t` in row-major order; SIZE_MAX if that is more than there can be. */
size_t dlxpy_tensor_bytes(const DLTensor *t, bool padded);

#endif
