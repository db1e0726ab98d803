/* SPDX-License-Identifier: Apache-2.0 */
/* .safetensors headers: what they say, what is refused and in which words, and what is written. */
#include "cli/safetensors.h"
#include "tests/harness/run.h"
#include <dlx/dlx.h>
#include <inttypes.h>

#define UNKNOWN SAFETENSORS_SIZE_UNKNOWN

static struct safetensors *accept_header(const char *header, uint64_t data_size)
{
    struct safetensors *s = NULL;
    struct cli_error e = {{0}};
    int code = safetensors_parse(&s, header, strlen(header), data_size, &e);
    ck_assert_msg(code == 0, "%.200s: %s", header, e.text);
    return s;
}

static void free_set(struct safetensors **s)
{
    safetensors_free(*s);
}
#define auto_set DLX_TEST_AUTO(free_set) struct safetensors

static void free_text(char **text)
{
    free(*text);
}
#define auto_text DLX_TEST_AUTO(free_text) char

static void refuse_bytes(const char *header, size_t size, uint64_t data_size, int code,
                         const char *words)
{
    struct safetensors *s = NULL;
    struct cli_error e = {{0}};
    int got = safetensors_parse(&s, header, size, data_size, &e);
    ck_assert_msg(got == code, "%.200s: %d, %s", header, got, e.text);
    ck_assert_msg(strstr(e.text, words), "'%s' lacks '%s'", e.text, words);
    ck_assert_ptr_null(s);
}

static void refuse(const char *header, uint64_t data_size, int code, const char *words)
{
    refuse_bytes(header, strlen(header), data_size, code, words);
}

TEST(the_size_of_the_header_has_limits)
{
    static const struct {
        uint8_t prefix[9];
        size_t size;
        uint64_t file_size;
        int code;
        const char *words; /* of the failure */
    } cases[] = {
        {"\x10\0\0\0\0\0\0\0", 8, 24, 0, NULL},
        {"\x10\0\0\0\0\0\0\0", 8, UNKNOWN, 0, NULL},
        {"\x11\0\0\0\0\0\0\0", 8, 24, DLX_E_INVALID,
         "17 bytes is larger than the file, which has 24"},
        {"\x01\0\0\0\0\0\0\0", 8, 7, DLX_E_INVALID, "larger than the file"},
        {"\x10\0\0\0\0\0\0", 7, 7, DLX_E_INVALID, "7 bytes, the size of its header takes 8"},
        {"", 0, 0, DLX_E_INVALID, "0 bytes"},
        {"\x00\xe1\xf5\x05\0\0\0\0", 8, UNKNOWN, 0, NULL}, /* 100,000,000 */
        {"\x01\xe1\xf5\x05\0\0\0\0", 8, UNKNOWN, DLX_E_LIMIT,
         "100000001 bytes is over the limit of 100000000"},
        {"\xff\xff\xff\xff\xff\xff\xff\xff", 8, UNKNOWN, DLX_E_LIMIT, "18446744073709551615 bytes"},
        {"\0\0\0\0\0\0\0\x80", 8, UNKNOWN, DLX_E_LIMIT, "9223372036854775808 bytes"},
    };
    for (size_t i = 0; i < DLX_ARRAY_SIZE(cases); i++) {
        struct cli_error e = {{0}};
        size_t size = 0;
        int code =
            safetensors_header_size(cases[i].prefix, cases[i].size, cases[i].file_size, &size, &e);
        ck_assert_msg(code == cases[i].code, "%zu: %d, %s", i, code, e.text);
        if (code == 0)
            ck_assert_uint_eq(size, i < 2 ? 16 : SAFETENSORS_HEADER_SIZE_MAX);
        else
            ck_assert_msg(strstr(e.text, cases[i].words), "%zu: %s", i, e.text);
    }
}

TEST(a_file_is_recognised_by_its_first_bytes)
{
    ck_assert(safetensors_is((const uint8_t *)"\x10\0\0\0\0\0\0\0{\"a\"", 12));
    ck_assert(!safetensors_is((const uint8_t *)"\x10\0\0\0\0\0\0\0", 8)); /* no more than that */
    ck_assert(!safetensors_is((const uint8_t *)"\x10\0\0\0\0\0\0\0[]", 10));
    ck_assert(!safetensors_is((const uint8_t *)"\x10\0\0\0\0\0\0\x01{}", 10));
    ck_assert(!safetensors_is((const uint8_t *)"\x93NUMPY\x01\0v\0{'", 12));
    ck_assert(!safetensors_is((const uint8_t *)"YUV4MPEG{", 9));
}

TEST(every_data_type_of_whole_bytes_is_carried)
{
    static const struct {
        const char *name;
        uint8_t code, bits;
    } types[] = {
        {"BOOL", kDLBool, 8},
        {"U8", kDLUInt, 8},
        {"I8", kDLInt, 8},
        {"U16", kDLUInt, 16},
        {"I16", kDLInt, 16},
        {"U32", kDLUInt, 32},
        {"I32", kDLInt, 32},
        {"U64", kDLUInt, 64},
        {"I64", kDLInt, 64},
        {"F16", kDLFloat, 16},
        {"BF16", kDLBfloat, 16},
        {"F32", kDLFloat, 32},
        {"F64", kDLFloat, 64},
        {"F8_E4M3", kDLFloat8_e4m3fn, 8},
        {"F8_E5M2", kDLFloat8_e5m2, 8},
        {"F8_E8M0", kDLFloat8_e8m0fnu, 8},
        {"F8_E4M3FNUZ", kDLFloat8_e4m3fnuz, 8},
        {"F8_E5M2FNUZ", kDLFloat8_e5m2fnuz, 8},
        {"C64", kDLComplex, 64},
    };
    size_t n = sizeof types / sizeof types[0];
    ck_assert_uint_eq(n, safetensors_n_dtypes);
    for (size_t i = 0; i < n; i++) {
        char header[200];
        struct safetensors_header h = {0};
        struct cli_error e = {{0}};
        (void)snprintf(header, sizeof header,
                       "{\"a\":{\"dtype\":\"%s\",\"shape\":[2,3],\"data_offsets\":[0,%d]}}",
                       types[i].name, 6 * types[i].bits / 8);
        auto_set *s = accept_header(header, 6U * types[i].bits / 8);
        DLDataType dtype = s->tensors[0].dtype;
        ck_assert_msg(dtype.code == types[i].code && dtype.bits == types[i].bits &&
                          dtype.lanes == 1,
                      "%s", types[i].name);
        /* and back */
        ck_assert_int_eq(safetensors_header_make(s->tensors, 1, NULL, 0, &h, &e), 0);
        ck_assert_mem_eq(h.data + SAFETENSORS_PREFIX_SIZE, header, strlen(header));
        safetensors_header_free(&h);
    }
}

TEST(tensors_come_in_the_order_of_their_data)
{
    auto_set *s =
        accept_header("{\"z\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,6]},"
                      "\"__metadata__\":{\"k\":\"v\",\"\\u00e9\":\"\"},"
                      "\"e\":{\"dtype\":\"F64\",\"shape\":[7,0],\"data_offsets\":[2,2]},"
                      "\"a\":{\"shape\":[],\"data_offsets\":[0,2],\"dtype\":\"F16\","
                      "\"more\":[{}]},"
                      "\"last\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[6,6]}}   ",
                      6);
    static const char *const names[] = {"a", "e", "z", "last"};
    ck_assert_uint_eq(s->n_tensors, 4);
    for (uint32_t i = 0; i < 4; i++)
        ck_assert_str_eq(s->tensors[i].name, names[i]);
    ck_assert(s->tensors[0].ndim == 0 && s->tensors[0].size == 2);
    ck_assert(s->tensors[1].ndim == 2 && s->tensors[1].shape[0] == 7 &&
              s->tensors[1].shape[1] == 0);
    ck_assert(s->tensors[2].offset == 2 && s->tensors[2].size == 4 && s->data_size == 6);
    ck_assert_str_eq(s->meta, "{\"k\":\"v\",\"\xc3\xa9\":\"\"}");
    ck_assert_uint_eq(s->meta_size, strlen(s->meta));
}

#define T(dtype, shape, offsets)                                                                   \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

TEST(a_header_that_is_no_json_object_is_refused)
{
    static const struct {
        const char *header, *words;
    } cases[] = {
        {"", "is empty"},
        {" {}", "does not begin with '{'"},
        {"[]", "does not begin with '{'"},
        {"{", "not valid JSON"},
        {"{\"a\":}", "not valid JSON"},
        {"{} x", "not valid JSON: end of file expected"},
        {"{\"a\xff\":1}", "not valid JSON: unable to decode"},
        {"{\"\\ud800\":1}", "not valid JSON"},
        {"{\"a\\u0000\":1}", "not valid JSON"},
        {"{\"a\":1,\"a\":2}", "duplicate object key near '\"a\"'"},
        {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", "duplicate object key near '\"dtype\"'"},
        {"{\"a\":\"\x1b[2J", "not valid JSON"},
    };
    for (size_t i = 0; i < DLX_ARRAY_SIZE(cases); i++)
        refuse(cases[i].header, UNKNOWN, DLX_E_INVALID, cases[i].words);
    refuse_bytes("{}\0", 3, UNKNOWN, DLX_E_INVALID, "not valid JSON");
}

TEST(words_about_a_file_do_not_reach_the_terminal_as_they_are)
{
    static const char *const headers[] = {"{\"a\":\"\x1b[2J", "{\"\\u001b[2J\":1}", "{\"a\":\x1b}",
                                          "{\"a\":{\"dtype\":\"\\u001b[2J\"}}",
                                          "{\"__metadata__\":{\"\\u001b\":1},\"a\":{}}"};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(headers); i++) {
        struct safetensors *s = NULL;
        struct cli_error e = {{0}};
        ck_assert_int_lt(safetensors_parse(&s, headers[i], strlen(headers[i]), UNKNOWN, &e), 0);
        ck_assert_ptr_null(strchr(e.text, '\x1b'));
    }
}

TEST(an_entry_that_does_not_describe_a_tensor_is_refused)
{
    static const struct {
        const char *header;
        int code;
        const char *words;
    } cases[] = {
        {"{\"a\":1}", DLX_E_INVALID, "tensor 'a' is no JSON object"},
        {"{\"a\":null}", DLX_E_INVALID, "tensor 'a' is no JSON object"},
        {"{\"a\":{\"shape\":[],\"data_offsets\":[0,1]}}", DLX_E_INVALID, "'a' has no dtype"},
        {"{\"a\":{\"dtype\":1,\"shape\":[],\"data_offsets\":[0,1]}}", DLX_E_INVALID,
         "'a' has no dtype"},
        {"{\"a.b\":" T("F4", "[2]", "[0,1]") "}", DLX_E_SHAPE,
         "tensor 'a.b': dtype 'F4' cannot be carried"},
        {"{\"a\":" T("f32", "[]", "[0,4]") "}", DLX_E_SHAPE, "dtype 'f32' cannot be carried"},
        {"{\"a\":" T("C128", "[]", "[0,16]") "}", DLX_E_SHAPE, "dtype 'C128' cannot be carried"},
        {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", DLX_E_INVALID, "'a' has no shape"},
        {"{\"a\":" T("U8", "1", "[0,1]") "}", DLX_E_INVALID, "'a' has no shape"},
        {"{\"a\":" T("U8", "[1.0]", "[0,1]") "}", DLX_E_INVALID,
         "size 0 of its shape is no integer"},
        {"{\"a\":" T("U8", "[1,true]", "[0,1]") "}", DLX_E_INVALID,
         "size 1 of its shape is no integer"},
        {"{\"a\":" T("U8", "[-1]", "[0,1]") "}", DLX_E_SHAPE,
         "size 0 of its shape is negative (-1)"},
        {"{\"a\":" T("U8", "[9223372036854775808]", "[0,1]") "}", DLX_E_INVALID, "too big integer"},
        {"{\"a\":" T("U16", "[9223372036854775807]", "[0,1]") "}", DLX_E_SHAPE,
         "over the limit of 2^63 - 1 bytes"},
        {"{\"a\":" T("U8", "[4294967296,4294967296]", "[0,0]") "}", DLX_E_SHAPE,
         "over the limit of 2^63 - 1 bytes"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[]}}", DLX_E_INVALID, "'a' has no data_offsets"},
        {"{\"a\":" T("U8", "[]", "[0]") "}", DLX_E_INVALID, "'a' has no data_offsets that are two"},
        {"{\"a\":" T("U8", "[]", "[0,1,2]") "}", DLX_E_INVALID,
         "'a' has no data_offsets that are two"},
        {"{\"a\":" T("U8", "[]", "[0,1.0]") "}", DLX_E_INVALID,
         "'a' has no data_offsets that are two"},
        {"{\"a\":" T("U8", "[]", "{}") "}", DLX_E_INVALID, "'a' has no data_offsets that are two"},
        {"{\"a\":" T("U8", "[]", "[-1,0]") "}", DLX_E_INVALID, "data_offsets [-1, 0] are negative"},
        {"{\"a\":" T("U8", "[]", "[2,1]") "}", DLX_E_INVALID, "data_offsets [2, 1] end too early"},
        {"{\"a\":" T("F32", "[2]", "[0,4]") "}", DLX_E_INVALID,
         "tensor 'a': data_offsets [0, 4] are 4 bytes, float32 (2,) has 8"},
        {"{\"a\":" T("F32", "[0]", "[0,4]") "}", DLX_E_INVALID, "float32 (0,) has 0"},
    };
    for (size_t i = 0; i < DLX_ARRAY_SIZE(cases); i++)
        refuse(cases[i].header, UNKNOWN, cases[i].code, cases[i].words);
}

TEST(tensors_must_cover_the_data_once)
{
    static const struct {
        const char *header;
        uint64_t data_size;
        const char *words;
    } cases[] = {
        {"{\"a\":" T("U8", "[4]", "[0,4]") ",\"b\":" T("U8", "[4]", "[3,7]") "}", 7,
         "tensor 'b' begins at 3, where tensor 'a' is, up to 4"},
        {"{\"a\":" T("U8", "[4]", "[0,4]") ",\"b\":" T("U8", "[4]", "[0,4]") "}", 4,
         "tensor 'b' begins at 0, where tensor 'a' is, up to 4"},
        {"{\"a\":" T("U8", "[4]", "[0,4]") ",\"e\":" T("U8", "[0]", "[2,2]") "}", 4,
         "tensor 'e' begins at 2, where tensor 'a' is"}, /* in the middle of another */
        {"{\"a\":" T("U8", "[4]", "[0,4]") ",\"b\":" T("U8", "[4]", "[5,9]") "}", 9,
         "tensor 'b' begins at 5: a hole of 1 bytes in front of it"},
        {"{\"a\":" T("U8", "[4]", "[1,5]") "}", 5, "tensor 'a' begins at 1: a hole of 1 bytes"},
        {"{\"a\":" T("U8", "[4]", "[0,4]") "}", 3, "tensor 'a' ends at 4, the file has only 3"},
        {"{\"a\":" T("U8", "[4]", "[0,4]") "}", 0, "tensor 'a' ends at 4, the file has only 0"},
        {"{\"a\":" T("U8", "[9223372036854775807]", "[0,9223372036854775807]") ",\"b\":" T(
             "U8", "[1]", "[9223372036854775806,9223372036854775807]") "}",
         UNKNOWN, "tensor 'b' begins at"},
        {"{\"a\":" T("U8", "[4]", "[0,4]") "}", 6, "the tensors have 4 bytes, the file has 6"},
    };
    for (size_t i = 0; i < DLX_ARRAY_SIZE(cases); i++)
        refuse(cases[i].header, cases[i].data_size, DLX_E_INVALID, cases[i].words);
}

TEST(metadata_is_a_map_of_strings)
{
    refuse("{\"__metadata__\":[],\"a\":" T("U8", "[]", "[0,1]") "}", 1, DLX_E_INVALID,
           "__metadata__ is no JSON object");
    refuse("{\"__metadata__\":{\"k\":1},\"a\":" T("U8", "[]", "[0,1]") "}", 1, DLX_E_INVALID,
           "__metadata__: 'k' is no string");
    refuse("{\"__metadata__\":{\"k\":\"v\"}}", 0, DLX_E_INVALID,
           "0 tensors, a message has 1 to 65535");
    refuse("{}", 0, DLX_E_INVALID, "0 tensors");
    auto_set *s = accept_header("{\"__metadata__\":{},\"a\":" T("U8", "[]", "[0,1]") "}", 1);
    ck_assert_str_eq(s->meta, "{}");
}

/* `count` times a character between two texts; the caller frees. */
static char *filled(const char *before, size_t count, const char *after)
{
    size_t n = strlen(before);
    char *text = malloc(n + count + strlen(after) + 1);
    ck_assert_ptr_nonnull(text);
    memcpy(text, before, n);
    memset(text + n, 'x', count);
    strcpy(text + n + count, after);
    return text;
}

TEST(limits_of_a_message_are_limits_of_a_file)
{
    static const char before[] = "{\"__metadata__\":{\"k\":\"",
                      after[] = "\"},\"a\":" T("U8", "[]", "[0,1]") "}",
                      tensor[] = "\":" T("U8", "[]", "[0,1]") "}";
    auto_text *longest = filled("{\"", DLX_NAME_MAX, tensor);
    auto_text *longer = filled("{\"", DLX_NAME_MAX + 1, tensor);
    safetensors_free(accept_header(longest, 1));
    refuse(longer, 1, DLX_E_LIMIT, "...': a name of 1024 bytes, the limit is 1023");
    /* {"k":"..."} has 8 bytes around what it holds */
    auto_text *largest = filled(before, DLX_META_MAX - 8, after);
    auto_text *larger = filled(before, DLX_META_MAX - 7, after);
    auto_set *s = accept_header(largest, 1);
    ck_assert_uint_eq(s->meta_size, DLX_META_MAX);
    refuse(larger, 1, DLX_E_LIMIT, "__metadata__ of 65537 bytes is over the limit of 65536");
}

/* A header of `n` scalars. */
static char *many_tensors(unsigned n)
{
    char *text = malloc((size_t)n * 80 + 8), *p = text;
    ck_assert_ptr_nonnull(text);
    for (unsigned i = 0; i < n; i++)
        p += sprintf(p, "%c\"t%u\":" T("U8", "[]", "[%u,%u]"), i ? ',' : '{', i, i, i + 1);
    strcpy(p, "}");
    return text;
}

TEST(a_set_has_as_many_tensors_as_a_message)
{
    auto_text *most = many_tensors(DLX_TENSORS_MAX), *more = many_tensors(DLX_TENSORS_MAX + 1);
    auto_set *s = accept_header(most, DLX_TENSORS_MAX);
    ck_assert_uint_eq(s->n_tensors, DLX_TENSORS_MAX);
    ck_assert_str_eq(s->tensors[65534].name, "t65534");
    refuse(more, DLX_TENSORS_MAX + 1, DLX_E_LIMIT, "65536 tensors, a message has 1 to 65535");
}

/* A header of a tensor of `n` dimensions of size 1. */
static char *dimensions(unsigned n)
{
    char *text = malloc(n * 2 + 100), *p = text;
    ck_assert_ptr_nonnull(text);
    p += sprintf(p, "{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1],\"shape\":[");
    for (unsigned i = 0; i < n; i++)
        p += sprintf(p, "%s1", i ? "," : "");
    strcpy(p, "]}}");
    return text;
}

TEST(dimensions_and_values_are_limited)
{
    auto_text *most = dimensions(DLX_NDIM_MAX), *more = dimensions(DLX_NDIM_MAX + 1);
    auto_set *s = accept_header(most, 1);
    ck_assert_int_eq(s->tensors[0].ndim, DLX_NDIM_MAX);
    refuse(more, 1, DLX_E_LIMIT, "tensor 'a' has 65 dimensions, the limit is 64");
    auto_text *values = dimensions(SAFETENSORS_VALUES_MAX); /* would take 400 MB to parse */
    refuse(values, 1, DLX_E_LIMIT, "more than the limit of 5000000 values");
    safetensors_free(accept_header(/* in a name they count nothing */
                                   "{\"xxxxxxxxxx,,[[{{\\\",,\":" T("U8", "[]", "[0,1]") "}", 1));
    static char deep[4096] = "{\"a\":";
    memset(deep + 5, '[', 4000);
    refuse(deep, 1, DLX_E_INVALID, "maximum parsing depth");
}

static const int64_t shape23[] = {2, 3};

static struct safetensors_tensor tensor(const char *name, uint8_t code, uint8_t bits)
{
    return (struct safetensors_tensor){
        .name = name, .dtype = {code, bits, 1}, .ndim = 2, .shape = shape23};
}

TEST(headers_are_written_in_the_order_of_the_reference)
{
    struct safetensors_tensor t[] = {tensor("b", kDLUInt, 8), tensor("", kDLFloat, 32),
                                     tensor("a", kDLUInt, 8), tensor(NULL, kDLFloat, 64)};
    static const char expected[] =
        "{\"__metadata__\":{\"k\":\"v\"},"
        "\"tensor_3\":" T("F64", "[2,3]", "[0,48]") ",\"tensor_1\":" T(
            "F32", "[2,3]", "[48,72]") ",\"a\":" T("U8", "[2,3]",
                                                   "[72,78]") ",\"b\":" T("U8", "[2,3]",
                                                                          "[78,84]") "}";
    static const uint32_t order[] = {3, 1, 2, 0};
    struct safetensors_header h;
    struct cli_error e = {{0}};
    ck_assert_int_eq(safetensors_header_make(t, 4, "{\"k\": \"v\"}", 10, &h, &e), 0);
    size_t used = strlen(expected);
    ck_assert(h.has_meta && h.size == 8 + (used + 7) / 8 * 8 && h.size > 8 + used);
    ck_assert_uint_eq((size_t)(h.data[0] | h.data[1] << 8), h.size - 8);
    ck_assert_mem_eq(h.data + 8, expected, used);
    for (size_t i = 8 + used; i < h.size; i++)
        ck_assert_int_eq(h.data[i], ' ');
    for (uint32_t i = 0; i < 4; i++)
        ck_assert_uint_eq(t[i].index, order[i]);
    ck_assert(t[3].offset == 78 && t[3].size == 6);
    safetensors_header_free(&h);
}

/* The format holds strings only: what a string is and what a number was stays known. */
TEST(metadata_of_any_json_values_comes_back)
{
    static const char meta[] = "{\"v\":1,\"name\":\"1\",\"lr\":0.001,\"on\":true,\"none\":null,"
                               "\"layers\":[1,{\"k\":\"\\u0007\"}]}";
    static const char stored[] = "{\"__metadata__\":{\"v\":\"1\",\"name\":\"1\",";
    struct safetensors_tensor t = tensor("a", kDLUInt, 8);
    struct safetensors_header h;
    struct cli_error e = {{0}};
    ck_assert_int_eq(safetensors_header_make(&t, 1, meta, strlen(meta), &h, &e), 0);
    ck_assert(h.has_meta);
    ck_assert_mem_eq(h.data + SAFETENSORS_PREFIX_SIZE, stored, strlen(stored));
    auto_text *text = calloc(1, h.size);
    ck_assert_ptr_nonnull(text);
    memcpy(text, h.data + SAFETENSORS_PREFIX_SIZE, h.size - SAFETENSORS_PREFIX_SIZE);
    auto_set *s = accept_header(text, 6);
    ck_assert_str_eq(s->meta, meta);
    safetensors_header_free(&h);
}

/* Of a file that dlxctl did not write: it is as it is. */
TEST(metadata_that_only_looks_as_if_it_had_json_values_stays)
{
    static const char *const metas[] = {
        "{\"k\":\"1\",\"dlx.json\":\"x\"}", "{\"k\":\"1\",\"dlx.json\":\"[\\\"other\\\"]\"}",
        "{\"k\":\"v\",\"dlx.json\":\"[\\\"k\\\"]\"}", "{\"k\":\"1\",\"dlx.json\":\"[1]\"}"};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(metas); i++) {
        char header[300];
        (void)snprintf(header, sizeof header,
                       "{\"__metadata__\":%s,\"a\":" T("U8", "[]", "[0,1]") "}", metas[i]);
        auto_set *s = accept_header(header, 1);
        ck_assert_str_eq(s->meta, metas[i]);
    }
}

TEST(metadata_that_the_format_cannot_hold_is_left_out)
{
    static const char *const metas[] = {"",
                                        "x",
                                        "[]",
                                        "{\"k\":\"v\",\"dlx.json\":\"[]\"}",
                                        "{\"k\":\"v\"",
                                        "{\"k\":\"\\u0000\"}",
                                        "\"k\"",
                                        "{\"k\":\"v\",\"k\":\"v\"}"};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(metas); i++) {
        struct safetensors_tensor t = tensor("a", kDLUInt, 8);
        struct safetensors_header h;
        struct cli_error e = {{0}};
        ck_assert_int_eq(safetensors_header_make(&t, 1, metas[i], strlen(metas[i]), &h, &e), 0);
        ck_assert_msg(!h.has_meta, "%s", metas[i]);
        ck_assert_ptr_null(memmem(h.data, h.size, "__metadata__", 12));
        safetensors_header_free(&h);
    }
}

TEST(a_tensor_that_safetensors_cannot_represent_is_refused)
{
    static const int64_t huge[] = {INT64_MAX, 2};
    struct {
        struct safetensors_tensor tensors[2];
        int code;
        const char *words;
    } cases[] = {
        {{tensor("tensor_1", kDLUInt, 8), tensor("", kDLUInt, 8)},
         DLX_E_INVALID,
         "'tensor_1' is there twice: tensor 1 has no name and would get that"},
        {{tensor("tensor_1", kDLUInt, 8), tensor(NULL, kDLFloat, 32)},
         DLX_E_INVALID,
         "'tensor_1' is there twice: tensor 1 has no name"},
        {{tensor("a", kDLUInt, 8), tensor("a", kDLUInt, 8)}, DLX_E_INVALID, "'a' is there twice"},
        {{tensor("a", kDLUInt, 8), tensor("__metadata__", kDLUInt, 8)},
         DLX_E_INVALID,
         "tensor '__metadata__': that name is the metadata's"},
        {{tensor("a", kDLUInt, 8), tensor("b\xff\x1b", kDLUInt, 8)},
         DLX_E_INVALID,
         "tensor 'b?"
         "?': its name is not UTF-8"},
        {{tensor("a", kDLUInt, 8), tensor("c", kDLComplex, 128)},
         DLX_E_SHAPE,
         "tensor 'c': .safetensors has no dtype for complex128"},
        {{tensor("a", kDLUInt, 8), tensor("c", kDLFloat4_e2m1fn, 4)},
         DLX_E_SHAPE,
         "tensor 'c': .safetensors has no dtype for float4_e2m1fn"},
        {{tensor("a", kDLUInt, 8), tensor("lanes", kDLFloat, 32)},
         DLX_E_SHAPE,
         "tensor 'lanes': .safetensors has no dtype for float32x4"},
        {{tensor("a", kDLUInt, 8), tensor("huge", kDLUInt, 8)},
         DLX_E_SHAPE,
         "tensor 'huge': uint8"},
        {{tensor("a", kDLUInt, 8), tensor("max", kDLUInt, 8)},
         DLX_E_SHAPE,
         "the set is over the limit"},
    };
    cases[7].tensors[1].dtype.lanes = 4;
    cases[8].tensors[1].shape = huge;
    cases[9].tensors[1].shape = huge;
    cases[9].tensors[1].ndim = 1;
    for (size_t i = 0; i < DLX_ARRAY_SIZE(cases); i++) {
        struct safetensors_header h = {0};
        struct cli_error e = {{0}};
        int code = safetensors_header_make(cases[i].tensors, 2, NULL, 0, &h, &e);
        ck_assert_msg(code == cases[i].code, "%zu: %d, %s", i, code, e.text);
        ck_assert_msg(strstr(e.text, cases[i].words), "%zu: %s", i, e.text);
        ck_assert_ptr_null(h.data);
    }
}

int main(void)
{
    TCase *tcase = tcase_create("headers");
    tcase_set_timeout(tcase, 60);
    return dlx_test_run_case(tcase);
}
