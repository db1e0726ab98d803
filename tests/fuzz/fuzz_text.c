/* SPDX-License-Identifier: Apache-2.0 */
/* libFuzzer: arguments of dlxctl: data types, shapes, numbers, names of files. The first byte says
 * what the rest is. An accepted value that is written again is the same. */
#include "cli/args.h"
#include "cli/dtype.h"
#include "cli/save.h"
#include "cli/value.h"
#include "tests/fuzz/harness_fuzz.h"
#include <math.h>
#include <string.h>

static bool is_same_type(DLDataType a, DLDataType b)
{
    return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

static void check_dtype(const char *text)
{
    DLDataType dtype = {0}, again = {0};
    char name[DLX_DTYPE_NAME_SIZE];
    if (dlx_dtype_parse(text, &dtype) < 0)
        return;
    REQUIRE(dtype.bits > 0 && dtype.lanes > 0);
    (void)dlx_dtype_name(dtype, name);
    REQUIRE(memchr(name, 0, sizeof name) && dlx_dtype_parse(name, &again) == 0);
    REQUIRE(is_same_type(dtype, again));
}

static void check_shape(const char *text)
{
    int64_t shape[64], again[64];
    int32_t ndim = -1, ndim_again = -1;
    char name[SHAPE_NAME_SIZE];
    if (!args_parse_shape(text, shape, &ndim))
        return;
    REQUIRE(ndim >= 0 && ndim <= 64);
    for (int32_t i = 0; i < ndim; i++)
        REQUIRE(shape[i] >= 0);
    shape_name(shape, ndim, name);
    REQUIRE(args_parse_shape(name, again, &ndim_again) && ndim_again == ndim);
    REQUIRE(ndim == 0 || memcmp(shape, again, (size_t)ndim * sizeof *shape) == 0);
}

static void check_numbers(struct dlx_fuzz *f, const char *text)
{
    uint64_t min = dlx_fuzz_number(f), max = dlx_fuzz_number(f), n = 0;
    int64_t ns = -1;
    double rate = -1;
    if (args_parse_number(text, min, max, &n))
        REQUIRE(n >= min && n <= max && strspn(text, "0123456789") == strlen(text));
    if (args_parse_time(text, &ns))
        REQUIRE(ns >= 0 && ns <= INT64_C(1000000000000000000));
    if (args_parse_rate(text, &rate))
        REQUIRE(rate > 0 && rate <= 1e9);
}

/* Two messages never share a file unless the pattern says so. */
static void check_path(struct dlx_fuzz *f, const char *text)
{
    struct cli_error e = {{0}};
    char first[200], second[200];
    struct save_name name = {.pattern = text,
                             .number = dlx_fuzz_number(f),
                             .seq = dlx_fuzz_number(f),
                             .topic = "a/b.c",
                             .several = dlx_fuzz_choose(f, 2)};
    if (save_pattern_check(text, &e) < 0) {
        REQUIRE(e.text[0]);
        return;
    }
    int r = save_path(&name, first, sizeof first, &e);
    if (r < 0) {
        REQUIRE(e.text[0]);
        return;
    }
    REQUIRE(memchr(first, 0, sizeof first));
    name.number++;
    name.seq++;
    if (save_path(&name, second, sizeof second, &e) == 0 && name.several && strcmp(text, "-") != 0)
        REQUIRE(strcmp(first, second) != 0);
}

/* A value of any type, out of exactly the bytes that it has. */
static void check_value(struct dlx_fuzz *f)
{
    DLDataType dtype = {.code = (uint8_t)dlx_fuzz_bytes(f, 1),
                        .bits = (uint8_t)dlx_fuzz_bytes(f, 1)};
    uint64_t n = 1 + dlx_fuzz_choose(f, 4), index = dlx_fuzz_choose(f, 8), size = 0;
    char text[VALUE_TEXT_SIZE];
    dtype.lanes = (uint16_t)(1 + dlx_fuzz_choose(f, 3));
    if (dtype.bits == 0 || !dtype_bytes(dtype, n, &size) || index >= n * dtype.lanes)
        return;
    uint8_t *data = calloc(1, size);
    REQUIRE(data);
    memcpy(data, f->at, DLX_MIN(f->left, size));
    value_text(dtype, data, index, text);
    REQUIRE(memchr(text, 0, sizeof text) && text[0]);
    json_t *json = value_json(dtype, data, index);
    REQUIRE(json);
    char *dumped = json_dumps(json, JSON_ENCODE_ANY);
    REQUIRE(dumped);
    free(dumped);
    json_decref(json);
    free(data);
}

void dlx_fuzz_one(struct dlx_fuzz *f)
{
    uint32_t what = dlx_fuzz_choose(f, 5);
    if (what == 0) {
        check_value(f);
        return;
    }
    struct dlx_fuzz numbers = *f;
    if (what > 2) {
        for (int i = 0; i < 3; i++)
            (void)dlx_fuzz_number(f);
    }
    char *text = malloc(f->left + 1);
    REQUIRE(text);
    memcpy(text, f->at, f->left);
    text[f->left] = '\0';
    if (what == 1)
        check_dtype(text);
    else if (what == 2)
        check_shape(text);
    else if (what == 3)
        check_numbers(&numbers, text);
    else
        check_path(&numbers, text);
    free(text);
}
