/* SPDX-License-Identifier: Apache-2.0 */

/* Names of data types: dlx/dtype.h. */

#include "common/error.h"
#include <dlx/dlx.h>
#include <stdio.h>
#include <string.h>

/* The first entry of a (code, bits) pair is the name that is written. */
static const struct {
    const char *name;
    uint8_t code;
    uint8_t bits;
} names[] = {
    {"bool", kDLBool, 8},
    {"int1", kDLInt, 1},
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
    {"complex32", kDLComplex, 32},
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
    /* NumPy's short forms, by bytes */
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
    /* and by letters; "l" and "L" differ between machines */
    {"?", kDLBool, 8},
    {"b", kDLInt, 8},
    {"h", kDLInt, 16},
    {"i", kDLInt, 32},
    {"q", kDLInt, 64},
    {"B", kDLUInt, 8},
    {"H", kDLUInt, 16},
    {"I", kDLUInt, 32},
    {"Q", kDLUInt, 64},
    {"e", kDLFloat, 16},
    {"f", kDLFloat, 32},
    {"d", kDLFloat, 64},
    {"F", kDLComplex, 64},
    {"D", kDLComplex, 128},
    /* and its other names */
    {"int", kDLInt, 64},
    {"uint", kDLUInt, 64},
    {"half", kDLFloat, 16},
    {"single", kDLFloat, 32},
    {"double", kDLFloat, 64},
    {"float", kDLFloat, 64},
    {"complex", kDLComplex, 128},
};

static const char *find_name(DLDataType dtype)
{
    for (size_t i = 0; i < sizeof names / sizeof names[0] && dtype.lanes > 0; i++)
        if (names[i].code == dtype.code && names[i].bits == dtype.bits)
            return names[i].name;
    return NULL;
}

bool dlx_dtype_name(DLDataType dtype, char *ret)
{
    const char *known = find_name(dtype);
    if (!ret)
        return known;
    if (!known)
        (void)snprintf(ret, DLX_DTYPE_NAME_SIZE, "%u:%u:%u", dtype.code, dtype.bits, dtype.lanes);
    else if (dtype.lanes > 1)
        (void)snprintf(ret, DLX_DTYPE_NAME_SIZE, "%sx%u", known, dtype.lanes);
    else
        (void)snprintf(ret, DLX_DTYPE_NAME_SIZE, "%s", known);
    return known;
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

static bool parse_numbers(const char *p, DLDataType *ret)
{
    unsigned code = 0, bits = 0, lanes = 0;
    if (!parse_number(&p, UINT8_MAX, &code) || *p++ != ':' || !parse_number(&p, UINT8_MAX, &bits) ||
        *p++ != ':' || !parse_number(&p, UINT16_MAX, &lanes) || *p || bits == 0 || lanes == 0)
        return false;
    *ret = (DLDataType){.code = (uint8_t)code, .bits = (uint8_t)bits, .lanes = (uint16_t)lanes};
    return true;
}

/* The lanes after a name: nothing, "x4", or "_x2" as PyTorch writes them. */
static bool parse_lanes(const char *p, unsigned *ret)
{
    *ret = 1;
    if (p[0] == '_' && p[1] == 'x')
        p++;
    if (*p == 'x') {
        p++;
        if (!parse_number(&p, UINT16_MAX, ret))
            return false;
    }
    return !*p && *ret > 0;
}

/* Shared memory is little-endian, and so is every machine that this runs on. */
static const char *skip_byte_order(const char *name)
{
    return *name == '<' || *name == '|' || *name == '=' ? name + 1 : name;
}

int dlx_dtype_parse(const char *name, DLDataType *ret)
{
    dlx__error_clear();
    if (!name || !ret)
        return dlx__fail(DLX_E_INVALID, "dlx_dtype_parse: name or ret is NULL");
    if (parse_numbers(name, ret))
        return 0;
    const char *text = skip_byte_order(name);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        size_t size = strlen(names[i].name);
        unsigned lanes;
        if (strncmp(text, names[i].name, size) != 0 || !parse_lanes(text + size, &lanes))
            continue; /* "int8" is the beginning of nothing, "float8_e4m3" of many */
        *ret = (DLDataType){.code = names[i].code, .bits = names[i].bits, .lanes = (uint16_t)lanes};
        return 0;
    }
    return dlx__fail(DLX_E_SHAPE, "\"%.64s\" is no data type", name);
}
