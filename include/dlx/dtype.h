/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_DTYPE_H
#define DLX_DTYPE_H

/* Part of dlx/dlx.h, which includes it: names of data types, the same in C, in dlxctl and in
 * Python. */

#include <dlx/dlx.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Bytes that are enough for every name of a data type, with its NUL. */
#define DLX_DTYPE_NAME_SIZE 48

/**
 * The name of a data type: "float32", "int4", "bfloat16"; with lanes "float32x4". What has no name
 * is written in numbers, "code:bits:lanes". dlx_dtype_parse() reads all of these. `name` holds
 * DLX_DTYPE_NAME_SIZE bytes; NULL: only the answer is of interest. Any thread, without a client.
 * Returns whether the type has a name.
 */
DLX_API bool dlx_dtype_name(DLDataType dtype, char *name);

/**
 * The data type of a name: as dlx_dtype_name() writes it; as NumPy has it, with "float" and "int"
 * of 64 bits and "complex" of 128, short ("f4", "<f4", "f", "?") or long ("single", "double"); or
 * as PyTorch has types of several lanes ("float4_e2m1fn_x2"). A name in a byte order other than
 * this machine's is none. Any thread, without a client.
 *
 * Returns 0; DLX_E_SHAPE (there is no such type, or it would have no bits or no lanes),
 * DLX_E_INVALID (an argument is NULL).
 */
DLX_API int dlx_dtype_parse(const char *name, DLDataType *ret_dtype);

#ifdef __cplusplus
}
#endif

#endif
