/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_DTYPE_H
#define DLX_DTYPE_H

/* Names of data types. They are the same in C, in dlxctl and in Python. Included by dlx/dlx.h. */

#include <dlx/dlx.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Size in bytes of a buffer for any name of a data type, with its NUL. */
#define DLX_DTYPE_NAME_SIZE 48

/**
 * Writes the name of a data type, such as "float32", "int4", "bfloat16", or "float32x4" for a type
 * with lanes. A type without a name is written in numbers, "code:bits:lanes". dlx_dtype_parse()
 * reads all of these.
 *
 * `ret` has room for DLX_DTYPE_NAME_SIZE bytes, or is NULL to learn only whether there is a name.
 * Any thread, without a client.
 *
 * Returns whether the type has a name.
 */
DLX_API bool dlx_dtype_name(DLDataType dtype, char *ret);

/**
 * Finds the data type with a name. It accepts three kinds of names:
 *
 *   - those that dlx_dtype_name() writes;
 *   - those of NumPy, short ("f4", "<f4", "f", "?") or long ("single", "double"), where "float" and
 *     "int" have 64 bits and "complex" has 128;
 *   - those of PyTorch for types of several lanes ("float4_e2m1fn_x2").
 *
 * Names for the byte order of other machines are refused. Any thread, without a client.
 *
 * Returns 0; DLX_E_SHAPE (there is no such type, or it would have no bits or no lanes),
 * DLX_E_INVALID (an argument is NULL).
 */
DLX_API int dlx_dtype_parse(const char *name, DLDataType *ret);

#ifdef __cplusplus
}
#endif

#endif
