/* SPDX-License-Identifier: Apache-2.0 */

/* Items of a tensor as text and as JSON. */

#include "cli/value.h"
#include "cli/dtype.h"
#include "cli/output.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum special {
    SPECIAL_IEEE, /* the largest exponent is infinity and NaN */
    SPECIAL_FN,   /* no infinity; all ones is NaN */
    SPECIAL_FNUZ, /* no infinity, no negative zero, whose pattern is the one NaN */
    SPECIAL_NONE, /* every pattern is a number */
    SPECIAL_E8M0, /* no sign, no mantissa, a power of two; all ones is NaN */
};

/* OCP 8-bit floating point and microscaling formats; the fnuz ones as in LLVM and StableHLO. */
static const struct minifloat {
    uint8_t code, exponent_bits, mantissa_bits;
    int bias;
    enum special special;
} minifloats[] = {
    {kDLFloat8_e3m4, 3, 4, 3, SPECIAL_IEEE},         {kDLFloat8_e4m3, 4, 3, 7, SPECIAL_IEEE},
    {kDLFloat8_e4m3b11fnuz, 4, 3, 11, SPECIAL_FNUZ}, {kDLFloat8_e4m3fn, 4, 3, 7, SPECIAL_FN},
    {kDLFloat8_e4m3fnuz, 4, 3, 8, SPECIAL_FNUZ},     {kDLFloat8_e5m2, 5, 2, 15, SPECIAL_IEEE},
    {kDLFloat8_e5m2fnuz, 5, 2, 16, SPECIAL_FNUZ},    {kDLFloat8_e8m0fnu, 8, 0, 127, SPECIAL_E8M0},
    {kDLFloat6_e2m3fn, 2, 3, 1, SPECIAL_NONE},       {kDLFloat6_e3m2fn, 3, 2, 3, SPECIAL_NONE},
    {kDLFloat4_e2m1fn, 2, 1, 1, SPECIAL_NONE},
};

static double decode(const struct minifloat *f, uint32_t bits)
{
    uint32_t mantissa_max = (1U << f->mantissa_bits) - 1,
             exponent_max = (1U << f->exponent_bits) - 1;
    uint32_t mantissa = bits & mantissa_max;
    uint32_t exponent = (bits >> f->mantissa_bits) & exponent_max;
    bool negative = (bits >> (f->mantissa_bits + f->exponent_bits)) & 1;

    if (f->special == SPECIAL_E8M0)
        return exponent == exponent_max ? (double)NAN : ldexp(1.0, (int)exponent - f->bias);
    if (f->special == SPECIAL_FNUZ && negative && exponent == 0 && mantissa == 0)
        return (double)NAN;
    if (f->special == SPECIAL_FN && exponent == exponent_max && mantissa == mantissa_max)
        return (double)NAN;
    if (f->special == SPECIAL_IEEE && exponent == exponent_max) {
        if (mantissa)
            return (double)NAN;
        return negative ? (double)-INFINITY : (double)INFINITY;
    }
    double scale = (double)(mantissa_max + 1), value;
    if (exponent == 0)
        value = ldexp((double)mantissa / scale, 1 - f->bias);
    else
        value = ldexp(1.0 + (double)mantissa / scale, (int)exponent - f->bias);
    return negative ? -value : value;
}

bool value_minifloat(uint8_t code, uint32_t bits, double *ret)
{
    for (size_t i = 0; i < sizeof minifloats / sizeof minifloats[0]; i++)
        if (minifloats[i].code == code) {
            *ret = decode(&minifloats[i], bits);
            return true;
        }
    return false;
}

double value_half(uint16_t bits)
{
    /* The bits as a float have an exponent that is too small by 127 - 15. */
    uint32_t wide = (uint32_t)(bits & 0x7fff) << 13;
    float f;
    memcpy(&f, &wide, sizeof f);
    double d = (double)f * 0x1p112;
    if ((bits & 0x7c00) == 0x7c00)
        d = bits & 0x3ff ? (double)NAN : (double)INFINITY;
    return bits & 0x8000 ? -d : d;
}

/* Bits of item `index`, little-endian packed, for items of at most 64 bits. */
static uint64_t load_bits(const uint8_t *data, uint64_t index, unsigned bits)
{
    uint64_t v = 0;
    if (bits % 8 == 0) {
        memcpy(&v, data + index * (bits / 8), bits / 8);
        return v;
    }
    uint64_t first = index * bits;
    for (unsigned i = 0; i < bits; i++) {
        uint64_t at = first + i;
        v |= (((uint64_t)data[at / 8] >> (at % 8)) & 1U) << i;
    }
    return v;
}

enum kind { KIND_HEX, KIND_BOOL, KIND_INT, KIND_UINT, KIND_REAL, KIND_COMPLEX };

struct value {
    enum kind kind;
    union {
        int64_t i;
        uint64_t u;
        double real[2];
    };
    int digits; /* that a real number is worth */
};

static double load_float(const uint8_t *p)
{
    float f;
    memcpy(&f, p, sizeof f);
    return (double)f;
}

static double load_double(const uint8_t *p)
{
    double d;
    memcpy(&d, p, sizeof d);
    return d;
}

static struct value load_float_type(DLDataType dtype, const uint8_t *bytes, uint64_t index)
{
    struct value v = {.kind = KIND_REAL, .digits = 6};
    const uint8_t *p = bytes + index * (dtype.bits / 8U);
    if (dtype.code == kDLComplex && dtype.bits == 32) {
        v.kind = KIND_COMPLEX;
        v.digits = 5;
        v.real[0] = value_half((uint16_t)load_bits(bytes, 2 * index, 16));
        v.real[1] = value_half((uint16_t)load_bits(bytes, 2 * index + 1, 16));
    } else if (dtype.code == kDLComplex) {
        v.kind = KIND_COMPLEX;
        v.real[0] = dtype.bits == 64 ? load_float(p) : load_double(p);
        v.real[1] = dtype.bits == 64 ? load_float(p + 4) : load_double(p + 8);
    } else if (dtype.code == kDLBfloat) {
        uint32_t wide = (uint32_t)load_bits(bytes, index, 16) << 16;
        v.real[0] = load_float((const uint8_t *)&wide);
        v.digits = 4;
    } else if (dtype.bits == 16) {
        v.real[0] = value_half((uint16_t)load_bits(bytes, index, 16));
        v.digits = 5;
    } else {
        v.real[0] = dtype.bits == 32 ? load_float(p) : load_double(p);
    }
    return v;
}

static struct value load(DLDataType dtype, const uint8_t *bytes, uint64_t index)
{
    struct value v = {.kind = KIND_HEX};
    if (!dlx_dtype_name(dtype, NULL))
        return v;
    switch (dtype.code) {
    case kDLBool:
        v.kind = KIND_BOOL;
        v.u = bytes[index];
        return v;
    case kDLUInt:
        v.kind = KIND_UINT;
        v.u = load_bits(bytes, index, dtype.bits);
        return v;
    case kDLInt: {
        uint64_t raw = load_bits(bytes, index, dtype.bits), sign = 1ULL << (dtype.bits - 1U);
        v.kind = KIND_INT;
        v.i = (int64_t)((raw ^ sign) - sign);
        return v;
    }
    case kDLFloat:
    case kDLBfloat:
    case kDLComplex:
        return load_float_type(dtype, bytes, index);
    default:
        if (value_minifloat(dtype.code, (uint32_t)load_bits(bytes, index, dtype.bits),
                            &v.real[0])) {
            v.kind = KIND_REAL;
            v.digits = 4;
        }
        return v;
    }
}

/* Bytes of one value of a type without a name; what does not fill bytes is shown bit-aligned. */
static void hex(DLDataType dtype, const uint8_t *bytes, uint64_t index, char text[VALUE_TEXT_SIZE])
{
    size_t at = (size_t)snprintf(text, VALUE_TEXT_SIZE, "0x");
    if (dtype.bits % 8 != 0 && dtype.bits < 64) {
        (void)snprintf(text + at, VALUE_TEXT_SIZE - at, "%" PRIx64,
                       load_bits(bytes, index, dtype.bits));
        return;
    }
    size_t n = dtype.bits / 8U; /* at most 31, and the odd bits of such sizes are not shown */
    for (size_t i = 0; i < n; i++)
        at += (size_t)snprintf(text + at, VALUE_TEXT_SIZE - at, "%02x", bytes[index * n + i]);
}

static void real_text(double d, int digits, char *text, size_t size)
{
    if (isnan(d))
        (void)snprintf(text, size, "nan"); /* without the sign that printf would show */
    else
        (void)snprintf(text, size, "%.*g", digits, d);
}

void value_text(DLDataType dtype, const void *data, uint64_t index, char text[VALUE_TEXT_SIZE])
{
    char re[32], im[32];
    struct value v = load(dtype, data, index);
    switch (v.kind) {
    case KIND_HEX:
        hex(dtype, data, index, text);
        break;
    case KIND_BOOL:
        (void)snprintf(text, VALUE_TEXT_SIZE, "%s", v.u ? "true" : "false");
        break;
    case KIND_INT:
        (void)snprintf(text, VALUE_TEXT_SIZE, "%" PRId64, v.i);
        break;
    case KIND_UINT:
        (void)snprintf(text, VALUE_TEXT_SIZE, "%" PRIu64, v.u);
        break;
    case KIND_REAL:
        real_text(v.real[0], v.digits, text, VALUE_TEXT_SIZE);
        break;
    case KIND_COMPLEX:
        real_text(v.real[0], v.digits, re, sizeof re);
        real_text(v.real[1], v.digits, im, sizeof im);
        (void)snprintf(text, VALUE_TEXT_SIZE, "%s%s%sj", re, im[0] == '-' ? "" : "+", im);
        break;
    }
}

bool value_number(DLDataType dtype, const void *data, uint64_t index, double *ret)
{
    struct value v = load(dtype, data, index);
    switch (v.kind) {
    case KIND_BOOL:
        *ret = v.u != 0;
        return true;
    case KIND_INT:
        *ret = (double)v.i;
        return true;
    case KIND_UINT:
        *ret = (double)v.u;
        return true;
    case KIND_REAL:
        *ret = v.real[0];
        return true;
    case KIND_COMPLEX:
        *ret = hypot(v.real[0], v.real[1]);
        return true;
    case KIND_HEX:
        break;
    }
    return false;
}

static json_t *real_json(double d)
{
    if (isnan(d))
        return json_string("nan");
    if (isinf(d))
        return json_string(d > 0 ? "inf" : "-inf");
    return json_real(d);
}

json_t *value_json(DLDataType dtype, const void *data, uint64_t index)
{
    char text[VALUE_TEXT_SIZE];
    struct value v = load(dtype, data, index);
    switch (v.kind) {
    case KIND_BOOL:
        return json_boolean(v.u != 0);
    case KIND_INT:
        return json_integer(v.i);
    case KIND_UINT:
        return output_json_u64(v.u);
    case KIND_REAL:
        return real_json(v.real[0]);
    case KIND_COMPLEX:
        return json_pack("[o, o]", real_json(v.real[0]), real_json(v.real[1]));
    case KIND_HEX:
        break;
    }
    hex(dtype, data, index, text);
    return json_string(text);
}
