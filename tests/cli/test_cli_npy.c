/* SPDX-License-Identifier: Apache-2.0 */
/* .npy headers of NumPy, of other programs, and malformed ones. */
#include "cli/npy.h"
#include "tests/harness/cli.h"
#include "tests/harness/run.h"

static uint8_t buffer[1 << 17];

/* A file of version `major` around `dict`, padded by a newline only. Returns its size. */
static size_t make(int major, const char *dict)
{
    size_t n = strlen(dict) + 1, prefix = major == 1 ? 10 : 12;
    memcpy(buffer, "\x93NUMPY", 6);
    buffer[6] = (uint8_t)major;
    buffer[7] = 0;
    for (size_t i = 0; i < prefix - 8; i++)
        buffer[8 + i] = (uint8_t)(n >> (8 * i));
    memcpy(buffer + prefix, dict, n - 1);
    buffer[prefix + n - 1] = '\n';
    return prefix + n;
}

static int parse(const char *dict, struct npy_header *h, struct cli_error *e)
{
    size_t size = make(1, dict);
    uint8_t *exact = malloc(size); /* so that a sanitizer sees a byte too much */
    memcpy(exact, buffer, size);
    memset(h, 0x55, sizeof *h);
    e->text[0] = '\0';
    int code = npy_header_parse(exact, size, h, e);
    free(exact);
    ck_assert_msg(code == 0 || e->text[0], "words are missing");
    return code;
}

#define DICT(descr, order, shape)                                                                  \
    "{'descr': " descr ", 'fortran_order': " order ", 'shape': " shape ", }"

static void accepts(const char *dict, uint8_t code, uint8_t bits, int32_t ndim, uint64_t n_items)
{
    struct npy_header h;
    struct cli_error e;
    ck_assert_msg(parse(dict, &h, &e) == 0, "%s: %s", dict, e.text);
    ck_assert_msg(h.dtype.code == code && h.dtype.bits == bits, "%s: %u:%u", dict, h.dtype.code,
                  h.dtype.bits);
    ck_assert_msg(h.ndim == ndim && h.n_items == n_items, "%s", dict);
}

static void refuse(const char *dict, int code, const char *words)
{
    struct npy_header h;
    struct cli_error e;
    ck_assert_msg(parse(dict, &h, &e) == code, "%s: %s", dict, e.text);
    ck_assert_msg(strstr(e.text, words), "%s: '%s' lacks '%s'", dict, e.text, words);
}

TEST(headers_as_numpy_writes_them)
{
    accepts(DICT("'<f4'", "False", "(3, 608, 608)"), kDLFloat, 32, 3, 3 * 608 * 608);
    accepts(DICT("'|u1'", "False", "(5,)"), kDLUInt, 8, 1, 5);
    accepts(DICT("'|b1'", "False", "()"), kDLBool, 8, 0, 1);
    accepts(DICT("'<c16'", "True", "(2, 2)"), kDLComplex, 128, 2, 4);
    accepts(DICT("'<f2'", "False", "(0, 7)"), kDLFloat, 16, 2, 0);
    accepts(DICT("'<i8'", "False", "(9223372036854775807, 0)"), kDLInt, 64, 2, 0);
}

TEST(headers_as_others_write_them)
{
    accepts("{'shape': (3L, 4L), 'fortran_order': False, 'descr': '<f8'}", kDLFloat, 64, 2, 12);
    accepts("{\"descr\": \"<f8\", \"fortran_order\": False, \"shape\": (2, )}", kDLFloat, 64, 1, 2);
    accepts("{u'descr': u'<f8', 'fortran_order':False,'shape':(2,)}", kDLFloat, 64, 1, 2);
    accepts("  {\n 'descr' : '=i4' ,\t'fortran_order' : False , 'shape' : ( 2 , 3 ) , }  ", kDLInt,
            32, 2, 6);
    accepts(DICT("'f4'", "False", "(1,)"), kDLFloat, 32, 1, 1);
    accepts(DICT("'?'", "False", "(1,)"), kDLBool, 8, 1, 1);
}

TEST(types_that_dlpack_has_no_name_for_need_a_word)
{
    accepts(DICT("'|V2'", "False", "(4,)"), 0, 0, 1, 4);
    accepts(DICT("'<f16'", "False", "(4,)"), kDLFloat, 0, 1, 4);
    accepts(DICT("'<M8[ns]'", "False", "(4,)"), 0, 0, 1, 4);
    struct npy_header h;
    struct cli_error e;
    ck_assert_int_eq(parse(DICT("'|V2'", "False", "(4,)"), &h, &e), 0);
    ck_assert_int_eq(npy_header_set_dtype(&h, (DLDataType){kDLBfloat, 16, 1}, &e), 0);
    ck_assert_uint_eq(h.dtype.code, kDLBfloat);
    ck_assert_int_eq(npy_header_set_dtype(&h, (DLDataType){kDLFloat, 32, 1}, &e), DLX_E_SHAPE);
    ck_assert_str_eq(e.text, "--dtype float32 has 32 bits an item, the file's '|V2' has 16");
}

TEST(types_that_cannot_be_carried_are_named)
{
    refuse(DICT("'|O'", "False", "(3,)"), DLX_E_SHAPE, "'|O': Python objects");
    refuse(DICT("'<U5'", "False", "(3,)"), DLX_E_SHAPE, "text cannot be carried");
    refuse(DICT("'|S5'", "False", "(3,)"), DLX_E_SHAPE, "text cannot be carried");
    refuse(DICT("[('x', '<f4'), ('y', '<i2')]", "False", "(2,)"), DLX_E_SHAPE, "structured");
    refuse(DICT("'<q8'", "False", "(3,)"), DLX_E_SHAPE, "'<q8' is not known");
    refuse(DICT("'<f'", "False", "(3,)"), DLX_E_SHAPE, "not known");
    refuse(DICT("'<f4x'", "False", "(3,)"), DLX_E_SHAPE, "not known");
    refuse(DICT("''", "False", "(3,)"), DLX_E_SHAPE, "not known");
    refuse(DICT("'<'", "False", "(3,)"), DLX_E_SHAPE, "not known");
    refuse(DICT("'<f0'", "False", "(3,)"), DLX_E_SHAPE, "0 bytes");
    refuse(DICT("'|V99999999999999999999'", "False", "(3,)"), DLX_E_SHAPE, "not known");
}

TEST(absurd_shapes_are_refused)
{
    char dict[1024] = "{'descr': '<f8', 'fortran_order': False, 'shape': (";
    refuse(DICT("'<f8'", "False", "(4294967296, 4294967296)"), DLX_E_SHAPE, "2^63 - 1 bytes");
    refuse(DICT("'<f8'", "False", "(1152921504606846976,)"), DLX_E_SHAPE,
           "2^63 - 1 bytes"); /* 2^60 */
    refuse(DICT("'<f8'", "False", "(9223372036854775808,)"), DLX_E_SHAPE, "over 2^63 - 1");
    refuse(DICT("'<f8'", "False", "(99999999999999999999999999,)"), DLX_E_SHAPE, "over 2^63 - 1");
    refuse(DICT("'<f8'", "False", "(3, -1)"), DLX_E_SHAPE, "negative");
    for (int i = 0; i < 65; i++)
        strcat(dict, "1, ");
    strcat(dict, ")}");
    refuse(dict, DLX_E_SHAPE, "more than 64 dimensions");
}

TEST(malformed_headers_are_refused)
{
    static const char *const bad[] = {
        "{",
        "{}",
        "}",
        "[]",
        "{'descr'",
        "{'descr'}",
        "{'descr': ",
        "{'descr': '<f4",
        "{'descr': '<f4'",
        "{'descr': '<f4', 'fortran_order': False}",
        "{'descr': '<f4', 'shape': (1,)}",
        "{'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4' 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4', 'descr': '<f8', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} {}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}x",
        "{'descr': 4, 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': 'False', 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': Fals, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': 1}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': [1]}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,,2)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1 2)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1.5,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1e3,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,",
        "{'d\xc3\xa9scr': '<f4', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '\xff\xfe', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4\\n', 'fortran_order': False, 'shape': (1,)}",
        ("{'descr': '<f4aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 'fortran_order': False, "
         "'shape': "
         "(1,)}"),
        "{'descr': __import__('os').system('true'), 'fortran_order': False, 'shape': (1,)}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        refuse(bad[i], DLX_E_INVALID, "header");
}

TEST(prefixes_are_checked)
{
    struct cli_error e;
    struct npy_header h;
    size_t total = 0, size = make(2, DICT("'<f4'", "False", "(1,)"));
    ck_assert_int_eq(npy_header_parse(buffer, size, &h, &e), 0);
    ck_assert_uint_eq(h.header_size, size);
    for (size_t n = 0; n < size; n++) /* truncated anywhere */
        ck_assert_int_eq(npy_header_parse(buffer, n, &h, &e), DLX_E_INVALID);

    buffer[6] = 4;
    ck_assert_int_eq(npy_header_size(buffer, size, &total, &e), DLX_E_INVALID);
    ck_assert_ptr_nonnull(strstr(e.text, "version 4.0"));
    buffer[6] = 0;
    ck_assert_int_eq(npy_header_size(buffer, size, &total, &e), DLX_E_INVALID);
    buffer[6] = 2;
    memset(buffer + 8, 0xff, 4); /* 4 GiB of header */
    ck_assert_int_eq(npy_header_size(buffer, size, &total, &e), DLX_E_LIMIT);
    ck_assert_ptr_nonnull(strstr(e.text, "4294967307"));
    memset(buffer + 8, 0, 4);
    buffer[6] = 1;
    ck_assert_int_eq(npy_header_size(buffer, size, &total, &e), DLX_E_INVALID);
    memcpy(buffer, "PK\x03\x04", 4); /* .npz is a zip archive */
    ck_assert_int_eq(npy_header_size(buffer, size, &total, &e), DLX_E_INVALID);
    ck_assert_ptr_nonnull(strstr(e.text, "not a .npy file"));
}

TEST(foreign_byte_order_is_swapped)
{
    struct npy_header h;
    struct cli_error e;
    ck_assert_int_eq(parse(DICT("'>i4'", "False", "(2,)"), &h, &e), 0);
    ck_assert_uint_eq(h.swap_size, 4);
    ck_assert_int_eq(parse(DICT("'>c16'", "False", "(2,)"), &h, &e), 0);
    ck_assert_uint_eq(h.swap_size, 8); /* each part */
    ck_assert_int_eq(parse(DICT("'>u1'", "False", "(2,)"), &h, &e), 0);
    ck_assert_uint_eq(h.swap_size, 0);
    ck_assert_int_eq(parse(DICT("'<i4'", "False", "(2,)"), &h, &e), 0);
    ck_assert_uint_eq(h.swap_size, 0);

    uint8_t bytes[] = {1, 2, 3, 4, 5, 6, 7, 8};
    npy_swap(bytes, 8, 4);
    ck_assert_mem_eq(bytes, ((uint8_t[]){4, 3, 2, 1, 8, 7, 6, 5}), 8);
    npy_swap(bytes, 8, 0);
    npy_swap(NULL, 0, 4);
}

TEST(column_major_becomes_row_major)
{
    struct npy_header h = {.item_size = 1, .ndim = 3, .shape = {2, 3, 4}, .n_items = 24};
    static const uint32_t sizes[] = {1, 2, 4, 8, 16, 3};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        uint32_t item = h.item_size = sizes[s];
        uint8_t *from = calloc(24, item), *to = malloc(24 * (size_t)item);
        for (size_t i = 0; i < 2; i++)
            for (size_t j = 0; j < 3; j++)
                for (size_t k = 0; k < 4; k++)
                    from[(i + 2 * j + 6 * k) * item] = (uint8_t)(i * 12 + j * 4 + k);
        npy_transpose(&h, from, to);
        for (size_t i = 0; i < 24; i++)
            ck_assert_uint_eq(to[i * item], i);
        free(from);
        free(to);
    }
    h = (struct npy_header){.item_size = 8, .ndim = 2, .shape = {0, 5}};
    npy_transpose(&h, NULL, NULL);
}

TEST(order_that_makes_no_difference_is_none)
{
    struct npy_header h;
    struct cli_error e;
    ck_assert(parse(DICT("'<f4'", "True", "(1, 7, 1)"), &h, &e) == 0 && !h.fortran_order);
    ck_assert(parse(DICT("'<f4'", "True", "()"), &h, &e) == 0 && !h.fortran_order);
    ck_assert(parse(DICT("'<f4'", "True", "(3, 0)"), &h, &e) == 0 && !h.fortran_order);
    ck_assert(parse(DICT("'<f4'", "True", "(3, 2)"), &h, &e) == 0 && h.fortran_order);
}

TEST(headers_are_written_byte_for_byte_as_numpy_does)
{
    static const struct {
        const char *file;
        DLDataType dtype;
        int32_t ndim;
        int64_t shape[3];
    } files[] = {
        {"f4.npy", {kDLFloat, 32, 1}, 3, {2, 3, 4}}, {"bool.npy", {kDLBool, 8, 1}, 1, {3}},
        {"f2.npy", {kDLFloat, 16, 1}, 1, {5}},       {"scalar.npy", {kDLInt, 64, 1}, 0, {0}},
        {"empty.npy", {kDLUInt, 16, 1}, 2, {0, 3}},
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        uint8_t out[NPY_WRITE_SIZE_MAX];
        struct npy_storage storage;
        struct npy_header h;
        struct cli_error e;
        size_t size = 0;
        char *file = dlx_test_read_file(dlx_test_npy(files[i].file), &size);
        ck_assert_int_eq(npy_header_parse((uint8_t *)file, size, &h, &e), 0);
        ck_assert_uint_eq(h.header_size + h.data_size, size);
        ck_assert_int_eq(
            npy_storage_choose(files[i].dtype, files[i].shape, files[i].ndim, &storage, &e), 0);
        ck_assert(storage.exact);
        size_t n = npy_header_write(&storage, out, sizeof out);
        ck_assert_uint_eq(n, h.header_size);
        ck_assert_mem_eq(out, file, n);
        free(file);
    }
}

static void check_storage(DLDataType dtype, const int64_t *shape, int32_t ndim, const char *descr,
                          const int64_t *stored, int32_t stored_ndim)
{
    struct npy_storage s;
    struct cli_error e;
    ck_assert_int_eq(npy_storage_choose(dtype, shape, ndim, &s, &e), 0);
    ck_assert(!s.exact);
    ck_assert_str_eq(s.descr, descr);
    ck_assert_int_eq(s.ndim, stored_ndim);
    ck_assert_mem_eq(s.shape, stored, (size_t)stored_ndim * sizeof *stored);
}

TEST(types_that_npy_cannot_name_are_stored_by_size)
{
    int64_t shape[] = {3, 5};
    check_storage((DLDataType){kDLBfloat, 16, 1}, shape, 2, "<u2", shape, 2);
    check_storage((DLDataType){kDLComplex, 32, 1}, shape, 2, "<u4", shape, 2);
    check_storage((DLDataType){kDLFloat8_e5m2, 8, 1}, shape, 2, "|u1", shape, 2);
    check_storage((DLDataType){200, 24, 1}, shape, 2, "|V3", shape, 2);
    check_storage((DLDataType){kDLFloat, 32, 4}, shape, 2, "<f4", ((int64_t[]){3, 5, 4}), 3);
    check_storage((DLDataType){kDLFloat4_e2m1fn, 4, 1}, shape, 2, "|u1", ((int64_t[]){8}), 1);

    struct npy_storage s;
    struct cli_error e;
    int64_t huge[] = {INT64_MAX, 2};
    ck_assert_int_eq(npy_storage_choose((DLDataType){kDLFloat, 32, 1}, huge, 2, &s, &e),
                     DLX_E_SHAPE);
    ck_assert_int_eq(npy_storage_choose((DLDataType){kDLFloat, 32, 1}, shape, 65, &s, &e),
                     DLX_E_SHAPE);
}

TEST(the_largest_header_fits)
{
    struct npy_storage s = {.descr = "<c16", .ndim = 65};
    struct npy_header h;
    struct cli_error e;
    uint8_t out[NPY_WRITE_SIZE_MAX];
    for (int i = 0; i < 65; i++)
        s.shape[i] = INT64_MAX;
    size_t n = npy_header_write(&s, out, sizeof out);
    ck_assert(n > 0 && n % 64 == 0);
    ck_assert_uint_eq(npy_header_write(&s, out, n - 1), 0);
    s.ndim = 64;
    for (int i = 0; i < 64; i++)
        s.shape[i] = i ? 1 : INT64_MAX / 16;
    n = npy_header_write(&s, out, sizeof out);
    ck_assert_int_eq(npy_header_parse(out, n, &h, &e), 0);
    ck_assert(h.ndim == 64 && h.shape[0] == INT64_MAX / 16);
}

/* A key has room for 23 characters. */
TEST(the_longest_key_is_read_and_a_longer_one_is_not)
{
    refuse("{'aaaaaaaaaaaaaaaaaaaaaaa': 1}", DLX_E_INVALID, "a key that is none of");
    refuse("{'aaaaaaaaaaaaaaaaaaaaaaaa': 1}", DLX_E_INVALID, "a string that is too long");
}

TEST(a_header_of_the_limit_is_read_and_a_larger_one_is_not)
{
    struct cli_error e;
    size_t size = 0;
    for (uint32_t over = 0; over < 2; over++) {
        const uint32_t n = NPY_HEADER_SIZE_MAX - 12 + over;
        make(2, "{}");
        for (uint32_t i = 0; i < 4; i++)
            buffer[8 + i] = (uint8_t)(n >> (8 * i));
        ck_assert_int_eq(npy_header_size(buffer, sizeof buffer, &size, &e), over ? DLX_E_LIMIT : 0);
        ck_assert_uint_eq(size, NPY_HEADER_SIZE_MAX);
    }
}

int main(void)
{
    return dlx_test_run_case(tcase_create("npy"));
}
