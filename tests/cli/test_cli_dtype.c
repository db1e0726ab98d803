/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes, values and command line arguments: what cli/ knows of types without any I/O. */
#include "cli/args.h"
#include "cli/dtype.h"
#include "cli/tensor.h"
#include "cli/value.h"
#include "tests/harness/run.h"
#include <inttypes.h>
#include <math.h>

static DLDataType type(uint8_t code, uint8_t bits, uint16_t lanes)
{
    return (DLDataType){.code = code, .bits = bits, .lanes = lanes};
}

TEST(sizes_do_not_overflow)
{
    uint64_t n = 7, size = 7;
    int64_t big[2] = {INT64_C(1) << 32, INT64_C(1) << 31};
    ck_assert(!shape_items(big, 2, &n)); /* 2^63 */
    big[1]--;
    ck_assert(shape_items(big, 2, &n));
    ck_assert(n == (UINT64_C(1) << 63) - (UINT64_C(1) << 32));
    ck_assert(!dtype_bytes(type(kDLUInt, 16, 1), n, &size));
    ck_assert(dtype_bytes(type(kDLUInt, 8, 1), n, &size));
    ck_assert(!dtype_bytes(type(kDLUInt, 255, 65535), UINT64_C(1) << 50, &size));

    int64_t negative[1] = {-1}, empty[3] = {INT64_MAX, INT64_MAX, 0}, max[1] = {INT64_MAX};
    ck_assert(!shape_items(negative, 1, &n));
    ck_assert(shape_items(empty, 3, &n) && n == 0);
    ck_assert(shape_items(max, 1, &n) && n == INT64_MAX);
    ck_assert(shape_items(NULL, 0, &n) && n == 1);

    ck_assert(dtype_bytes(type(kDLFloat4_e2m1fn, 4, 1), 5, &size) && size == 3);
    ck_assert(dtype_bytes(type(kDLFloat6_e2m3fn, 6, 1), 4, &size) && size == 3);
    ck_assert(dtype_bytes(type(kDLFloat, 32, 4), 2, &size) && size == 32);
}

TEST(shapes_are_written_as_python_does)
{
    char name[SHAPE_NAME_SIZE];
    int64_t shape[64];
    shape_name(NULL, 0, name);
    ck_assert_str_eq(name, "()");
    shape_name((int64_t[]){5}, 1, name);
    ck_assert_str_eq(name, "(5,)");
    shape_name((int64_t[]){3, 608, 608}, 3, name);
    ck_assert_str_eq(name, "(3, 608, 608)");
    for (int i = 0; i < 64; i++)
        shape[i] = INT64_MIN;
    shape_name(shape, 64, name);
    ck_assert_uint_eq(strlen(name), 2 + 64 * 20 + 63 * 2);
}

static void check_value(DLDataType t, const void *data, uint64_t index, const char *text,
                        const char *json)
{
    char buffer[VALUE_TEXT_SIZE];
    value_text(t, data, index, buffer);
    ck_assert_str_eq(buffer, text);
    json_t *value = value_json(t, data, index);
    char *dump = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    ck_assert_str_eq(dump, json);
    free(dump);
    json_decref(value);
}

TEST(values_of_the_usual_types)
{
    int8_t i8[] = {-128, 127};
    uint64_t u64[] = {UINT64_MAX, 5};
    int64_t i64[] = {INT64_MIN};
    float f32[] = {0.5F, NAN, -INFINITY};
    double f64[] = {1e300};
    uint8_t boolean[] = {0, 1, 7};
    uint16_t half[] = {0x3c00, 0x0001, 0x7c00, 0xfe00}, bf16[] = {0x3fc0, 0xff80};
    float complex64[] = {1.5F, -2.0F};
    uint16_t complex32[] = {0, 0, 0x3c00, 0xc000};
    check_value(type(kDLInt, 8, 1), i8, 0, "-128", "-128");
    check_value(type(kDLInt, 8, 1), i8, 1, "127", "127");
    check_value(type(kDLUInt, 64, 1), u64, 0, "18446744073709551615", "1.8446744073709552e19");
    check_value(type(kDLInt, 64, 1), i64, 0, "-9223372036854775808", "-9223372036854775808");
    check_value(type(kDLFloat, 32, 1), f32, 0, "0.5", "0.5");
    check_value(type(kDLFloat, 32, 1), f32, 1, "nan", "\"nan\"");
    check_value(type(kDLFloat, 32, 1), f32, 2, "-inf", "\"-inf\"");
    check_value(type(kDLFloat, 64, 1), f64, 0, "1e+300", "1.0000000000000001e300");
    check_value(type(kDLBool, 8, 1), boolean, 0, "false", "false");
    check_value(type(kDLBool, 8, 1), boolean, 2, "true", "true");
    check_value(type(kDLFloat, 16, 1), half, 0, "1", "1.0");
    check_value(type(kDLFloat, 16, 1), half, 1, "5.9605e-08", "5.9604644775390625e-8");
    check_value(type(kDLFloat, 16, 1), half, 2, "inf", "\"inf\"");
    check_value(type(kDLFloat, 16, 1), half, 3, "nan", "\"nan\"");
    check_value(type(kDLBfloat, 16, 1), bf16, 0, "1.5", "1.5");
    check_value(type(kDLBfloat, 16, 1), bf16, 1, "-inf", "\"-inf\"");
    check_value(type(kDLComplex, 64, 1), complex64, 0, "1.5-2j", "[1.5,-2.0]");
    check_value(type(kDLComplex, 32, 1), complex32, 1, "1-2j", "[1.0,-2.0]");
}

TEST(values_of_packed_types_come_from_the_low_bits_first)
{
    uint8_t nibbles[] = {0x8f, 0x01}; /* 15, 8, 1, 0 */
    check_value(type(kDLUInt, 4, 1), nibbles, 0, "15", "15");
    check_value(type(kDLUInt, 4, 1), nibbles, 1, "8", "8");
    check_value(type(kDLInt, 4, 1), nibbles, 1, "-8", "-8");
    check_value(type(kDLInt, 1, 1), nibbles, 0, "-1", "-1");
    check_value(type(kDLInt, 1, 1), nibbles, 4, "0", "0");
    check_value(type(kDLInt, 4, 2), nibbles, 2, "1", "1"); /* indices count lanes */
    check_value(type(kDLFloat4_e2m1fn, 4, 1), nibbles, 0, "-6", "-6.0");
    uint8_t six[] = {0x40, 0x20, 0x0c}; /* 6 bits each: 0x00, 0x01, 0x02, 0x03 */
    check_value(type(kDLFloat6_e2m3fn, 6, 1), six, 3, "0.375", "0.375");
}

/* All patterns of all formats were compared with ml_dtypes 0.6.0; these are the corners. */
TEST(small_floats_have_their_corners)
{
    static const struct {
        uint8_t code;
        uint32_t bits;
        double value;
    } corners[] = {
        {kDLFloat8_e4m3fn, 0x7e, 448},      {kDLFloat8_e4m3fn, 0x01, 0x1p-9},
        {kDLFloat8_e5m2, 0x7b, 57344},      {kDLFloat8_e5m2, 0x7c, INFINITY},
        {kDLFloat8_e5m2fnuz, 0x7f, 57344},  {kDLFloat8_e4m3fnuz, 0x7f, 240},
        {kDLFloat8_e4m3b11fnuz, 0x7f, 30},  {kDLFloat8_e3m4, 0x6f, 15.5},
        {kDLFloat8_e4m3, 0x77, 240},        {kDLFloat8_e8m0fnu, 0x00, 0x1p-127},
        {kDLFloat8_e8m0fnu, 0xfe, 0x1p127}, {kDLFloat6_e3m2fn, 0x1f, 28},
        {kDLFloat6_e2m3fn, 0x1f, 7.5},      {kDLFloat4_e2m1fn, 0x07, 6},
    };
    static const struct {
        uint8_t code;
        uint32_t bits;
    } nans[] = {
        {kDLFloat8_e4m3fn, 0x7f},   {kDLFloat8_e4m3fn, 0xff}, {kDLFloat8_e4m3fnuz, 0x80},
        {kDLFloat8_e5m2fnuz, 0x80}, {kDLFloat8_e5m2, 0x7d},   {kDLFloat8_e8m0fnu, 0xff},
    };
    double d = 0;
    for (size_t i = 0; i < sizeof corners / sizeof corners[0]; i++) {
        ck_assert(value_minifloat(corners[i].code, corners[i].bits, &d));
        /* Zeros have a sign. */
        ck_assert_msg(d == corners[i].value && signbit(d) == signbit(corners[i].value), "%zu: %g",
                      i, d);
    }
    for (size_t i = 0; i < sizeof nans / sizeof nans[0]; i++)
        ck_assert(value_minifloat(nans[i].code, nans[i].bits, &d) && isnan(d));
    ck_assert(!value_minifloat(kDLFloat, 0, &d));
    ck_assert(!value_minifloat(18, 0, &d));
}

TEST(unknown_types_are_shown_in_hexadecimal)
{
    uint8_t bytes[33] = {0xde, 0xad, 0xbe, 0xef, 0x01};
    check_value(type(200, 16, 1), bytes, 1, "0xbeef", "\"0xbeef\"");
    check_value(type(200, 4, 1), bytes, 1, "0xd", "\"0xd\"");
    check_value(type(kDLFloat, 40, 1), bytes, 0, "0xdeadbeef01", "\"0xdeadbeef01\"");
    char text[VALUE_TEXT_SIZE];
    value_text(type(255, 255, 1), bytes, 0, text); /* fits */
    ck_assert_uint_eq(strlen(text), 2 + 2 * 31);
}

TEST(tensors_with_strides_are_walked)
{
    int64_t shape[] = {2, 3}, column_major[] = {1, 2}, row_major[] = {3, 1};
    uint16_t data[] = {0, 3, 1, 4, 2, 5};
    DLTensor t = {.data = data,
                  .device = {kDLCPU, 0},
                  .ndim = 2,
                  .dtype = {kDLUInt, 16, 1},
                  .shape = shape,
                  .strides = column_major};
    ck_assert(!tensor_is_compact(&t) && tensor_is_readable(&t));
    for (uint64_t i = 0; i < 6; i++) {
        uint16_t v;
        memcpy(&v, tensor_item(&t, i), sizeof v);
        ck_assert_uint_eq(v, i);
    }
    t.strides = row_major;
    ck_assert(tensor_is_compact(&t));
    t.strides = NULL;
    ck_assert(tensor_is_compact(&t));
    shape[0] = 1;
    t.strides = (int64_t[]){77, 1}; /* the stride of a size of 1 does not count */
    ck_assert(tensor_is_compact(&t));
    t.device.device_type = kDLCUDA;
    ck_assert(!tensor_is_readable(&t));
}

TEST(numbers_of_the_command_line)
{
    uint64_t n = 0;
    ck_assert(args_parse_number("42", 1, 100, &n) && n == 42);
    ck_assert(args_parse_number("18446744073709551615", 0, UINT64_MAX, &n) && n == UINT64_MAX);
    static const char *const bad_numbers[] = {"",    "-1",   "+1",  " 1", "1 ",
                                              "1.5", "0x10", "101", "0",  "18446744073709551616"};
    for (size_t i = 0; i < sizeof bad_numbers / sizeof bad_numbers[0]; i++)
        ck_assert_msg(!args_parse_number(bad_numbers[i], 1, 100, &n), "'%s'", bad_numbers[i]);
}

TEST(times_and_rates_may_have_units)
{
    static const struct {
        const char *text;
        int64_t ns;
    } times[] = {{"2", 2000000000},
                 {"0.25", 250000000},
                 {"1e-3", 1000000},
                 {"7ns", 7},
                 {"1.5us", 1500},
                 {"100ms", 100000000},
                 {"100 ms", 100000000},
                 {"3s", 3000000000},
                 {"2min", 120000000000},
                 {"1h", 3600000000000},
                 {"1d", 86400000000000},
                 {"1e9", 1000000000000000000},
                 {"0", 0},
                 {".5s", 500000000}};
    static const char *const bad_times[] = {
        "",   "-1", "inf", "nan", "0x1p3", "0X1",  "1.2.3", "2e9",  " 1",  "1 ",
        "ms", "1m", "1S",  "s1",  "1e400", "1sec", "+1",    "1ms2", "1,5", "11575d"};
    static const struct {
        const char *text;
        double rate;
    } rates[] = {{"29.97", 29.97}, {"30Hz", 30}, {"2kHz", 2000}, {"1 MHz", 1e6}, {"0.1", 0.1}};
    static const char *const bad_rates[] = {"0", "1e10", "1001MHz", "30hz", "3s", "-1", ""};
    int64_t ns = 0;
    double rate = 0;
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++)
        ck_assert_msg(args_parse_time(times[i].text, &ns) && ns == times[i].ns, "'%s': %" PRId64,
                      times[i].text, ns);
    for (size_t i = 0; i < sizeof bad_times / sizeof bad_times[0]; i++)
        ck_assert_msg(!args_parse_time(bad_times[i], &ns), "'%s'", bad_times[i]);
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++)
        ck_assert_msg(args_parse_rate(rates[i].text, &rate) && rate == rates[i].rate, "'%s': %g",
                      rates[i].text, rate);
    for (size_t i = 0; i < sizeof bad_rates / sizeof bad_rates[0]; i++)
        ck_assert_msg(!args_parse_rate(bad_rates[i], &rate), "'%s'", bad_rates[i]);
}

TEST(shapes_of_the_command_line)
{
    static const struct {
        const char *text;
        int32_t ndim;
        int64_t shape[3];
    } good[] = {
        {"5", 1, {5}},
        {"3,608,608", 3, {3, 608, 608}},
        {"3x608x608", 3, {3, 608, 608}},
        {"()", 0, {0}},
        {"(5,)", 1, {5}},
        {"(3, 608, 608)", 3, {3, 608, 608}},
        {"[2, 3]", 2, {2, 3}},
        {"0,3", 2, {0, 3}},
        {"9223372036854775807", 1, {INT64_MAX}},
        {"3,4,", 2, {3, 4}},
    };
    static const char *const bad[] = {"",     ",",  "3,,4", "-1",  "3,-4", "a",
                                      "(3",   "3)", "[3)",  "3 4", "1.5",  "9223372036854775808",
                                      "(3)x", "x3"};
    int64_t shape[64];
    int32_t ndim = -1;
    char long_shape[200] = "";
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        ck_assert_msg(args_parse_shape(good[i].text, shape, &ndim), "'%s'", good[i].text);
        ck_assert_int_eq(ndim, good[i].ndim);
        ck_assert_mem_eq(shape, good[i].shape, (size_t)ndim * sizeof shape[0]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ck_assert_msg(!args_parse_shape(bad[i], shape, &ndim), "'%s'", bad[i]);
    for (int i = 0; i < 64; i++)
        strcat(long_shape, "1,");
    ck_assert(args_parse_shape(long_shape, shape, &ndim) && ndim == 64);
    strcat(long_shape, "1");
    ck_assert(!args_parse_shape(long_shape, shape, &ndim));
}

int main(void)
{
    return dlx_test_run_case(tcase_create("types"));
}
