/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors out of files and pipes: what comes out, and what is said about files that lie. */
#include "cli/source.h"
#include "tests/harness/cli.h"
#include "tests/harness/run.h"

struct reading {
    struct source *source;
    struct source_item item;
    struct cli_error e;
    uint8_t *data;
};

static struct reading begin(struct source_args *args, char **path)
{
    struct reading r = {0};
    args->files = path;
    args->n_files = 1;
    ck_assert_int_eq(source_new(&r.source, args, &r.e), 0);
    return r;
}

/* Returns 1, 0 at the end, or the code of what failed, looking or reading. */
static int next(struct reading *r)
{
    int code = source_next(r->source, &r->item, &r->e);
    if (code <= 0)
        return code;
    free(r->data);
    r->data = malloc(r->item.size + 1);
    r->data[r->item.size] = 0xa5;
    code = source_read(r->source, r->data, &r->e);
    ck_assert_uint_eq(r->data[r->item.size], 0xa5);
    return code < 0 ? code : 1;
}

static void end(struct reading *r)
{
    free(r->data);
    source_free(r->source);
}

static void expect_failure(struct source_args args, const char *path, int code, const char *words)
{
    char *file = (char *)(uintptr_t)path;
    struct reading r = begin(&args, &file);
    int got;
    do
        got = next(&r);
    while (got > 0);
    ck_assert_msg(got == code, "%s: %d %s", path, got, r.e.text);
    ck_assert_msg(code == 0 || strstr(r.e.text, words), "'%s' lacks '%s'", r.e.text, words);
    end(&r);
}

static void expect_failure_of(struct source_args args, const void *data, size_t size, int code,
                              const char *words)
{
    expect_failure(args, dlx_test_file_write("file", data, size), code, words);
}

TEST(files_of_numpy_are_read)
{
    static const struct {
        const char *name;
        uint8_t code, bits;
        int32_t ndim;
        uint64_t size;
    } files[] = {
        {"f4.npy", kDLFloat, 32, 3, 96},   {"f4_fortran.npy", kDLFloat, 32, 3, 96},
        {"i4_big.npy", kDLInt, 32, 2, 24}, {"bool.npy", kDLBool, 8, 1, 3},
        {"f2.npy", kDLFloat, 16, 1, 10},   {"scalar.npy", kDLInt, 64, 0, 8},
        {"empty.npy", kDLUInt, 16, 2, 0},  {"v2.npy", kDLUInt, 8, 1, 4},
        {"v3.npy", kDLUInt, 8, 1, 4},      {"c16_big_fortran.npy", kDLComplex, 128, 2, 64},
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        struct source_args args = {0};
        char *p = (char *)(uintptr_t)dlx_test_npy(files[i].name);
        struct reading r = begin(&args, &p);
        ck_assert_msg(next(&r) == 1, "%s: %s", files[i].name, r.e.text);
        ck_assert(r.item.dtype.code == files[i].code && r.item.dtype.bits == files[i].bits);
        ck_assert(r.item.ndim == files[i].ndim && r.item.size == files[i].size);
        for (size_t k = 0; files[i].code == kDLFloat && files[i].bits == 32 && k < 24; k++) {
            float v;
            memcpy(&v, r.data + 4 * k, 4);
            ck_assert_msg(v == (float)k, "%s: item %zu is %g", files[i].name, k, (double)v);
        }
        for (size_t k = 0; files[i].code == kDLInt && files[i].bits == 32 && k < 6; k++) {
            int32_t v;
            memcpy(&v, r.data + 4 * k, 4);
            ck_assert_int_eq(v, (int)k);
        }
        if (files[i].code == kDLComplex) {
            static const double expected[] = {0, 0, 1, 10, 2, 0, 3, -30};
            ck_assert_mem_eq(r.data, expected, sizeof expected);
        }
        ck_assert_int_eq(next(&r), 0);
        ck_assert_int_eq(next(&r), 0);
        source_rewind(r.source);
        ck_assert_int_eq(next(&r), 1);
        end(&r);
    }
}

TEST(several_arrays_in_one_file_are_several_tensors)
{
    char *p = (char *)(uintptr_t)dlx_test_npy("two.npy");
    struct source_args args = {0};
    struct reading r = begin(&args, &p);
    ck_assert(next(&r) == 1 && r.item.size == 4);
    ck_assert(next(&r) == 1 && r.item.size == 24);
    ck_assert_int_eq(next(&r), 0);
    end(&r);
}

TEST(types_that_cannot_be_carried_are_refused)
{
    const struct source_args none = {0}, int64 = {.dtype = {kDLInt, 64, 1}},
                             int32 = {.dtype = {kDLInt, 32, 1}};
    const char *datetime = dlx_test_npy("datetime.npy");
    expect_failure(none, dlx_test_npy("objects.npy"), DLX_E_SHAPE,
                   "objects.npy: data type '|O': Python objects");
    expect_failure(none, dlx_test_npy("struct.npy"), DLX_E_SHAPE, "structured");
    expect_failure(none, dlx_test_npy("text.npy"), DLX_E_SHAPE, "text cannot be carried");
    expect_failure(none, datetime, DLX_E_SHAPE, "'<M8[s]' has no DLPack type; --dtype");
    expect_failure(int64, datetime, 0, "");
    expect_failure(int32, datetime, DLX_E_SHAPE, "--dtype int32 has 32 bits");
}

static size_t load(const char *name, uint8_t data[4096])
{
    size_t size = 0;
    char *file = dlx_test_read_file(dlx_test_npy(name), &size);
    ck_assert_uint_le(size, 4096);
    memcpy(data, file, size);
    free(file);
    return size;
}

TEST(npy_files_that_lie_are_refused)
{
    static uint8_t data[4096];
    struct source_args args = {0};
    size_t n = load("f4.npy", data);
    expect_failure_of(args, data, n - 1, DLX_E_INVALID,
                      "'<f4' (2, 3, 4) should have 96 bytes, the file has 95");
    expect_failure_of(args, data, n + 7, DLX_E_INVALID,
                      "'<f4' (2, 3, 4) should have 96 bytes, the file has 103");
    expect_failure_of(args, data, n + 100, DLX_E_INVALID, "should have 96 bytes, the file has 196");
    expect_failure_of(args, data, 128, DLX_E_INVALID, "the file has 0");
    expect_failure_of(args, data, 60, DLX_E_INVALID, "header has 128 bytes, the file only 60");
    expect_failure_of(args, data, 11, DLX_E_INVALID, "too short");
    expect_failure_of(args, data, 0, DLX_E_INVALID, "file: is empty");
    n = load("two.npy", data);
    expect_failure_of(args, data, n - 1, DLX_E_INVALID,
                      "tensor 2 should have 24 bytes ('<i8' (3,)), the file has 23 more");
    expect_failure_of(args, "hello, world, this is text", 26, DLX_E_INVALID, "not a .npy file");
}

TEST(files_that_cannot_be_read_are_named)
{
    struct source_args args = {0};
    expect_failure(args, "no/such/file.npy", DLX_E_SYSTEM, "no/such/file.npy: No such file");
    expect_failure(args, "/", DLX_E_SYSTEM, "/: Is a directory");
}

static struct source_args raw_args(uint8_t code, uint8_t bits, int32_t ndim, int64_t a, int64_t b)
{
    return (struct source_args){
        .raw = true, .dtype = {code, bits, 1}, .ndim = ndim, .shape = {a, b}};
}

TEST(raw_bytes_are_whole_tensors)
{
    static const uint8_t data[64] = {1, 2, 3};
    expect_failure_of(raw_args(kDLFloat, 32, 2, 2, 4), data, 64, 0, "");
    expect_failure_of(
        raw_args(kDLFloat, 32, 2, 2, 4), data, 63, DLX_E_INVALID,
        "has 63 bytes, which is not a whole number of tensors of 32 bytes (float32 (2, 4))");
    expect_failure_of(raw_args(kDLFloat, 32, 2, 2, 4), data, 0, DLX_E_INVALID,
                      "float32 (2, 4) should have 32 bytes, the file has none");
    expect_failure_of(raw_args(kDLFloat, 32, 2, INT64_MAX, 4), data, 64, DLX_E_SHAPE, "2^63 - 1");
    expect_failure_of(raw_args(kDLFloat, 32, 2, 0, 4), data, 0, 0, "");
    expect_failure_of(raw_args(kDLUInt, 4, 1, 5, 0), data, 3, 0, "");
    expect_failure_of(raw_args(200, 24, 1, 2, 0), data, 6, 0, "");
}

struct feed {
    int fd;
    const uint8_t *data;
    size_t size, step;
};

static void *feed(void *userdata)
{
    struct feed *f = userdata;
    for (size_t at = 0; at < f->size;) {
        size_t n = f->size - at < f->step ? f->size - at : f->step;
        ssize_t written = write(f->fd, f->data + at, n);
        if (written < 0)
            break;
        at += (size_t)written;
    }
    (void)close(f->fd);
    return NULL;
}

/* Let `data` come out of a pipe in small steps, as standard input, and count the tensors. */
static int read_pipe(struct source_args args, const uint8_t *data, size_t size, size_t step,
                     int *ret_n, struct cli_error *e)
{
    int fds[2], saved = dup(STDIN_FILENO), code;
    char dash[] = "-", *p = dash;
    pthread_t thread;
    ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
    ck_assert_int_ge(dup2(fds[0], STDIN_FILENO), 0);
    (void)close(fds[0]);
    struct feed f = {fds[1], data, size, step};
    ck_assert_int_eq(pthread_create(&thread, NULL, feed, &f), 0);
    struct reading r = begin(&args, &p);
    for (*ret_n = 0; (code = next(&r)) > 0; ++*ret_n)
        ck_assert_str_eq(r.item.file, "standard input");
    *e = r.e;
    end(&r);
    uint8_t rest[4096];
    while (read(STDIN_FILENO, rest, sizeof rest) > 0) /* the feeder is not to meet a closed pipe */
        ;
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    if (saved >= 0) {
        (void)dup2(saved, STDIN_FILENO);
        (void)close(saved);
    }
    return code;
}

TEST(pipes_are_read_like_files)
{
    static uint8_t data[4096];
    struct cli_error e;
    struct source_args npy = {0};
    int n = 0;
    size_t size = load("two.npy", data);
    for (size_t step = 1; step < size; step += 37) {
        ck_assert_int_eq(read_pipe(npy, data, size, step, &n, &e), 0);
        ck_assert_int_eq(n, 2);
    }
    ck_assert_int_eq(read_pipe(npy, data, size - 1, 50, &n, &e), DLX_E_INVALID);
    ck_assert_str_eq(e.text,
                     "standard input: tensor 2 should have 24 bytes ('<i8' (3,)), the file has 23 "
                     "more");
    ck_assert_int_eq(read_pipe(npy, data, size + 5, 50, &n, &e), DLX_E_INVALID);
    ck_assert_ptr_nonnull(strstr(e.text, "at least"));
    ck_assert_int_eq(read_pipe(raw_args(kDLUInt, 16, 1, 10, 0), data, 60, 7, &n, &e), 0);
    ck_assert_int_eq(n, 3);
    ck_assert_int_eq(read_pipe(raw_args(kDLUInt, 16, 1, 10, 0), data, 61, 7, &n, &e),
                     DLX_E_INVALID);
    ck_assert_int_eq(read_pipe(raw_args(kDLUInt, 16, 1, 10, 0), data, 0, 7, &n, &e), DLX_E_INVALID);
}

int main(void)
{
    TCase *tcase = tcase_create("source");
    tcase_set_timeout(tcase, 60);
    dlx_test_files_fixture(tcase);
    return dlx_test_run_case(tcase);
}
