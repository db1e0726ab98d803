/* SPDX-License-Identifier: Apache-2.0 */
/* Names of data types: dlx/dtype.h. */
#include "tests/harness/run.h"
#include <dlx/dlx.h>

static DLDataType type(uint8_t code, uint8_t bits, uint16_t lanes)
{
    return (DLDataType){.code = code, .bits = bits, .lanes = lanes};
}

static void check_name(DLDataType t, const char *expected)
{
    char name[DLX_DTYPE_NAME_SIZE];
    DLDataType back = {0};
    ck_assert(dlx_dtype_name(t, name) == dlx_dtype_name(t, NULL));
    ck_assert_str_eq(name, expected);
    ck_assert_msg(dlx_dtype_parse(name, &back) == 0, "%s", name);
    ck_assert(back.code == t.code && back.bits == t.bits && back.lanes == t.lanes);
}

TEST(names_are_written_and_read_back)
{
    check_name(type(kDLFloat, 32, 1), "float32");
    check_name(type(kDLUInt, 8, 1), "uint8");
    check_name(type(kDLBool, 8, 1), "bool");
    check_name(type(kDLBfloat, 16, 1), "bfloat16");
    check_name(type(kDLComplex, 128, 1), "complex128");
    check_name(type(kDLFloat8_e4m3, 8, 1), "float8_e4m3");
    check_name(type(kDLFloat8_e4m3b11fnuz, 8, 1), "float8_e4m3b11fnuz");
    check_name(type(kDLFloat4_e2m1fn, 4, 2), "float4_e2m1fnx2");
    check_name(type(kDLFloat, 32, 4), "float32x4");
    check_name(type(kDLInt, 4, 1), "int4");
    check_name(type(kDLInt, 1, 1), "int1");
    check_name(type(kDLComplex, 32, 1), "complex32");
    check_name(type(kDLComplex, 64, 2), "complex64x2");
    check_name(type(200, 7, 3), "200:7:3");
    check_name(type(kDLFloat, 128, 1), "2:128:1");
    check_name(type(255, 255, 65535), "255:255:65535");
}

TEST(a_type_has_a_name_or_numbers)
{
    ck_assert(dlx_dtype_name(type(kDLFloat, 32, 1), NULL));
    ck_assert(dlx_dtype_name(type(kDLFloat, 32, 65535), NULL));
    ck_assert(!dlx_dtype_name(type(kDLFloat, 32, 0), NULL));
    ck_assert(!dlx_dtype_name(type(kDLFloat, 33, 1), NULL));
    ck_assert(!dlx_dtype_name(type(200, 8, 1), NULL));
}

TEST(names_of_numpy_are_read_as_numpy_does)
{
    static const struct {
        const char *name;
        const char *meant;
    } names[] = {
        {"f4", "float32"},         {"u1", "uint8"},
        {"c16", "complex128"},     {"<f8", "float64"},
        {"|b1", "bool"},           {"=i2", "int16"},
        {"float", "float64"},      {"int", "int64"},
        {"uint", "uint64"},        {"single", "float32"},
        {"double", "float64"},     {"half", "float16"},
        {"complex", "complex128"}, {"f", "float32"},
        {"d", "float64"},          {"?", "bool"},
        {"F", "complex64"},        {"b", "int8"},
        {"Q", "uint64"},           {"float4_e2m1fn_x2", "float4_e2m1fnx2"}, /* of PyTorch */
    };
    for (size_t i = 0; i < DLX_ARRAY_SIZE(names); i++) {
        DLDataType t;
        char name[DLX_DTYPE_NAME_SIZE];
        ck_assert_msg(dlx_dtype_parse(names[i].name, &t) == 0, "%s", names[i].name);
        ck_assert(dlx_dtype_name(t, name));
        ck_assert_str_eq(name, names[i].meant);
    }
}

TEST(bad_names_are_refused)
{
    static const char *const bad[] = {
        "",          "float33",       "int8 ",   " int8",
        "float32x",  "float32x0",     "x4",      "1:2",
        "1:0:1",     "1:8:0",         "256:8:1", "1:256:1",
        "1:8:65536", "1:8:1:",        "-1:8:1",  "1::1",
        "FLOAT32",   ">f4",           "<",       "<<f4",
        "l",         "f4 ",           "int16_",  "int16_x",
        "int16__x2", "float32x65536", "0x1:8:1", "99999999999999999999:8:1",
    };
    DLDataType t = {0};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(bad); i++)
        ck_assert_msg(dlx_dtype_parse(bad[i], &t) == DLX_E_SHAPE, "'%s'", bad[i]);
}

TEST(arguments_that_are_missing_are_refused)
{
    DLDataType t;
    ck_assert_int_eq(dlx_dtype_parse(NULL, &t), DLX_E_INVALID);
    ck_assert_int_eq(dlx_dtype_parse("float32", NULL), DLX_E_INVALID);
    ck_assert_int_eq(dlx_dtype_parse("float33", &t), DLX_E_SHAPE);
    ck_assert_str_eq(dlx_errmsg(), "\"float33\" is no data type");
}

int main(void)
{
    return dlx_test_run_case(tcase_create("names"));
}
