/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/dtype.h"
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first entry of a (code, bits) pair is the name that is written. */
static const struct {
    const char *name;
    uint8_t code;
    uint8_t bits;
} names[] = {
    {"bool", kDLBool, 8},
    {"int2", kDLInt, 2},
    {"int4", kDLInt, 4},
    {"int8", kDLInt, 8},
    {"int16", kDLInt, 16},
    {"int32", kDLInt, 32},
    {"int64", kDLInt, 64},
    {"uint1", kDLUInt, 1},
    {"uint2", kDLUInt, 2},
    {"uint4", kDLUInt, 4},
    {"uint8", kDLUInt, 8},
    {"uint16", kDLUInt, 16},
    {"uint32", kDLUInt, 32},
    {"uint64", kDLUInt, 64},
    {"float16", kDLFloat, 16},
    {"float32", kDLFloat, 32},
    {"float64", kDLFloat, 64},
    {"bfloat16", kDLBfloat, 16},
    {"complex64", kDLComplex, 64},
    {"complex128", kDLComplex, 128},
    {"float8_e3m4", kDLFloat8_e3m4, 8},
    {"float8_e4m3", kDLFloat8_e4m3, 8},
    {"float8_e4m3b11fnuz", kDLFloat8_e4m3b11fnuz, 8},
    {"float8_e4m3fn", kDLFloat8_e4m3fn, 8},
    {"float8_e4m3fnuz", kDLFloat8_e4m3fnuz, 8},
    {"float8_e5m2", kDLFloat8_e5m2, 8},
    {"float8_e5m2fnuz", kDLFloat8_e5m2fnuz, 8},
    {"float8_e8m0fnu", kDLFloat8_e8m0fnu, 8},
    {"float6_e2m3fn", kDLFloat6_e2m3fn, 6},
    {"float6_e3m2fn", kDLFloat6_e3m2fn, 6},
    {"float4_e2m1fn", kDLFloat4_e2m1fn, 4},
    /* NumPy's short forms */
    {"b1", kDLBool, 8},
    {"i1", kDLInt, 8},
    {"i2", kDLInt, 16},
    {"i4", kDLInt, 32},
    {"i8", kDLInt, 64},
    {"u1", kDLUInt, 8},
    {"u2", kDLUInt, 16},
    {"u4", kDLUInt, 32},
    {"u8", kDLUInt, 64},
    {"f2", kDLFloat, 16},
    {"f4", kDLFloat, 32},
    {"f8", kDLFloat, 64},
    {"c8", kDLComplex, 64},
    {"c16", kDLComplex, 128},
};

static const char *find_name(uint8_t code, uint8_t bits)
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (names[i].code == code && names[i].bits == bits)
            return names[i].name;
    return NULL;
}

bool dtype_is_known(DLDataType dtype)
{
    return dtype.lanes > 0 && find_name(dtype.code, dtype.bits);
}

void dtype_name(DLDataType dtype, char name[DTYPE_NAME_SIZE])
{
    const char *known = find_name(dtype.code, dtype.bits);
    if (!known || dtype.lanes == 0)
        (void)snprintf(name, DTYPE_NAME_SIZE, "%u:%u:%u", dtype.code, dtype.bits, dtype.lanes);
    else if (dtype.lanes > 1)
        (void)snprintf(name, DTYPE_NAME_SIZE, "%sx%u", known, dtype.lanes);
    else
        (void)snprintf(name, DTYPE_NAME_SIZE, "%s", known);
}

/* Digits only, at least one; moves *p behind them. */
static bool parse_number(const char **p, unsigned max, unsigned *ret)
{
    unsigned n = 0;
    const char *s = *p;
    if (*s < '0' || *s > '9')
        return false;
    for (; *s >= '0' && *s <= '9'; s++) {
        n = n * 10 + (unsigned)(*s - '0');
        if (n > max)
            return false;
    }
    *p = s;
    *ret = n;
    return true;
}

static bool parse_numbers(const char *p, DLDataType *ret_dtype)
{
    unsigned code = 0, bits = 0, lanes = 0;
    if (!parse_number(&p, UINT8_MAX, &code) || *p++ != ':' || !parse_number(&p, UINT8_MAX, &bits) ||
        *p++ != ':' || !parse_number(&p, UINT16_MAX, &lanes) || *p || bits == 0 || lanes == 0)
        return false;
    *ret_dtype =
        (DLDataType){.code = (uint8_t)code, .bits = (uint8_t)bits, .lanes = (uint16_t)lanes};
    return true;
}

bool dtype_parse(const char *name, DLDataType *ret_dtype)
{
    if (parse_numbers(name, ret_dtype))
        return true;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        size_t size = strlen(names[i].name);
        if (strncmp(name, names[i].name, size) != 0)
            continue;
        const char *rest = name + size;
        unsigned lanes = 1;
        if (*rest == 'x') {
            rest++;
            if (!parse_number(&rest, UINT16_MAX, &lanes) || lanes == 0)
                continue;
        }
        if (*rest)
            continue; /* "int8" is a prefix of nothing, "float8_e4m3" of many */
        *ret_dtype =
            (DLDataType){.code = names[i].code, .bits = names[i].bits, .lanes = (uint16_t)lanes};
        return true;
    }
    return false;
}

bool shape_items(const int64_t *shape, int32_t ndim, uint64_t *ret_n_items)
{
    uint64_t n = 1;
    bool empty = false;
    for (int32_t i = 0; i < ndim; i++) {
        if (shape[i] < 0)
            return false;
        empty = empty || shape[i] == 0;
    }
    for (int32_t i = 0; i < ndim && !empty; i++)
        if (__builtin_mul_overflow(n, (uint64_t)shape[i], &n) || n > INT64_MAX)
            return false;
    *ret_n_items = empty ? 0 : n;
    return true;
}

bool dtype_bytes(DLDataType dtype, uint64_t n_items, uint64_t *ret_size)
{
    uint64_t item_bits = (uint64_t)dtype.bits * dtype.lanes, bits, size;
    if (item_bits % 8 == 0) {
        if (__builtin_mul_overflow(n_items, item_bits / 8, &size))
            return false;
    } else {
        if (__builtin_mul_overflow(n_items, item_bits, &bits))
            return false;
        size = bits / 8 + (bits % 8 != 0);
    }
    if (size > INT64_MAX)
        return false;
    *ret_size = size;
    return true;
}

void shape_name(const int64_t *shape, int32_t ndim, char name[SHAPE_NAME_SIZE])
{
    size_t at = 0;
    name[at++] = '(';
    for (int32_t i = 0; i < ndim && i < DTYPE_NDIM_MAX; i++)
        at += (size_t)snprintf(name + at, SHAPE_NAME_SIZE - at, "%s%" PRId64, i ? ", " : "",
                               shape[i]);
    (void)snprintf(name + at, SHAPE_NAME_SIZE - at, "%s", ndim == 1 ? ",)" : ")");
}
