/* SPDX-License-Identifier: Apache-2.0 */
/* Sets out of .safetensors files and pipes: what comes out, and what is said about files that
 * lie. */
#include "cli/source.h"
#include "tests/harness/cli.h"
#include "tests/harness/run.h"

#define T(dtype, shape, offsets)                                                                   \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

/* Two tensors, and one without items between them. */
static const char small[] = "\x9d\0\0\0\0\0\0\0{\"a\":" T("U8", "[3]", "[0,3]") ",\"b\":" T(
    "U8", "[]", "[3,4]") ",\"e\":" T("I64", "[0]", "[3,3]") "}wxyz";
enum { SMALL_SIZE = sizeof small - 1, SMALL_DATA = 4 };

/* A file whose first set is about to be read. */
struct reading {
    struct source *source;
    struct source_item item;
    struct cli_error e;
};

static struct reading begin(const char *path)
{
    char *files[] = {(char *)(uintptr_t)path};
    const struct source_args args = {.files = files, .n_files = 1};
    struct reading r = {0};
    ck_assert_int_eq(source_new(&r.source, &args, &r.e), 0);
    ck_assert_msg(source_next(r.source, &r.item, &r.e) == 1, "%s", r.e.text);
    return r;
}

static void end(struct reading *r)
{
    source_free(r->source);
}
#define auto_reading DLX_TEST_AUTO(end) struct reading

/* Everything of one file: sets as text, like "a=wxy b=z". Returns what ended it. */
static int read_all(struct source_args args, const char *path, char text[256], struct cli_error *e)
{
    char *files[] = {(char *)(uintptr_t)path};
    struct source *source = NULL;
    struct source_item item;
    int code;
    args.files = files;
    args.n_files = 1;
    text[0] = '\0';
    ck_assert_int_eq(source_new(&source, &args, e), 0);
    while ((code = source_next(source, &item, e)) > 0) {
        void *data[8] = {NULL};
        ck_assert_msg(item.set != NULL, "%s is no set", path);
        ck_assert_uint_le(item.set->n_tensors, 8);
        for (uint32_t i = 0; i < item.set->n_tensors; i++)
            data[i] = calloc(1, item.set->tensors[i].size + 1);
        code = source_read_set(source, data, e);
        for (uint32_t i = 0; i < item.set->n_tensors; i++) {
            size_t used = strlen(text);
            (void)snprintf(text + used, 256 - used, "%s=%s ", item.set->tensors[i].name,
                           (char *)data[i]);
            free(data[i]);
        }
        if (code < 0)
            break;
    }
    source_free(source);
    return code;
}

static const struct source_args any;

/* The same from the standard input, into which a process writes. */
static int read_pipe(const void *data, size_t size, char text[256], struct cli_error *e)
{
    pid_t feeder = -1;
    int in = dlx_test_pipe(data, size, &feeder), before = dup(STDIN_FILENO);
    ck_assert_int_ge(before, 0);
    ck_assert_int_eq(dup2(in, STDIN_FILENO), STDIN_FILENO);
    (void)close(in);
    int code = read_all(any, "-", text, e);
    ck_assert_int_eq(dup2(before, STDIN_FILENO), STDIN_FILENO);
    (void)close(before);
    ck_assert_int_eq(waitpid(feeder, NULL, 0), feeder);
    return code;
}

TEST(a_set_is_read_whole)
{
    char text[256];
    struct cli_error e = {{0}};
    ck_assert_int_eq(small[0] & 0xff, SMALL_SIZE - 8 - SMALL_DATA);
    /* under another name it is recognised by what is in it */
    static const char *const names[] = {"x.safetensors", "x"};
    for (size_t i = 0; i < 2; i++) {
        ck_assert_int_eq(read_all(any, dlx_test_file_write(names[i], small, SMALL_SIZE), text, &e),
                         0);
        ck_assert_str_eq(text, "a=wxy e= b=z ");
    }
    ck_assert_int_eq(read_pipe(small, SMALL_SIZE, text, &e), 0);
    ck_assert_str_eq(text, "a=wxy e= b=z ");
}

TEST(a_file_that_lies_about_its_size_is_refused)
{
    char text[256], more[SMALL_SIZE + 1];
    memcpy(more, small, SMALL_SIZE);
    more[SMALL_SIZE] = '!';
    for (size_t size = 0; size <= sizeof more; size++) {
        struct cli_error e = {{0}};
        if (size == SMALL_SIZE)
            continue;
        ck_assert_int_eq(read_all(any, dlx_test_file_write("x.safetensors", more, size), text, &e),
                         DLX_E_INVALID);
        const char *words = size == 0                        ? "x.safetensors: is empty"
                            : size < 8                       ? "the size of its header takes 8"
                            : size < SMALL_SIZE - SMALL_DATA ? "is larger than the file"
                            : size == SMALL_SIZE - 1 ? "'b' ends at 4, the file has only 3 bytes"
                            : size > SMALL_SIZE      ? "have 4 bytes, the file has 5 bytes"
                                                     : "the file has only";
        ck_assert_msg(strstr(e.text, words), "%zu: %s", size, e.text);
        ck_assert_msg(strstr(e.text, "x.safetensors: "), "%zu: %s", size, e.text);
        ck_assert_str_eq(text, ""); /* found before anything was read */
    }
}

TEST(a_pipe_that_lies_about_its_size_is_refused)
{
    static const struct {
        size_t size;
        const char *words;
    } cases[] = {
        {20, "standard input: .safetensors header of 157 bytes is larger than the file, which ends "
             "after 12"},
        {SMALL_SIZE - 1,
         "standard input: the tensors have 4 bytes, the file ended after 3 of them"},
        {SMALL_SIZE - SMALL_DATA, "the tensors have 4 bytes, the file ended after 0 of them"},
        {SMALL_SIZE + 1, "the tensors have 4 bytes, the file has more bytes of data"},
    };
    char text[256], more[SMALL_SIZE + 1];
    memcpy(more, small, SMALL_SIZE);
    more[SMALL_SIZE] = '!';
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct cli_error e = {{0}};
        ck_assert_int_eq(read_pipe(more, cases[i].size, text, &e), DLX_E_INVALID);
        ck_assert_msg(strstr(e.text, cases[i].words), "%zu: %s", i, e.text);
    }
}

TEST(a_file_that_shrinks_while_it_is_read_is_refused)
{
    const char *path = dlx_test_file_write("x.safetensors", small, SMALL_SIZE);
    char a[4], b[4];
    void *data[] = {a, NULL, b}; /* nothing goes to the tensor without bytes */
    auto_reading r = begin(path);
    ck_assert_int_eq(truncate(path, SMALL_SIZE - 2), 0);
    ck_assert_int_eq(source_read_set(r.source, data, &r.e), DLX_E_INVALID);
    ck_assert_msg(strstr(r.e.text, "have 4 bytes, the file ended after 2"), "%s", r.e.text);
}

static size_t put(uint8_t *at, uint64_t value, size_t size)
{
    for (size_t i = 0; i < size; i++)
        at[i] = (uint8_t)(value >> (8 * i));
    return size;
}

/* The common part of both headers of a member, from the version to the lengths. The checksum is
 * wrong. */
static size_t put_common(uint8_t *at, size_t content)
{
    enum { DATE = 0x21 };
    size_t n = put(at, 20, 2);
    n += put(at + n, 0, 6); /* flags, not compressed, time */
    n += put(at + n, DATE, 2);
    n += put(at + n, 0, 4);
    n += put(at + n, content, 4);
    n += put(at + n, content, 4);
    n += put(at + n, 5, 2);
    return n + put(at + n, 0, 2);
}

enum { NPY_HEADER = 128 };

static size_t put_array(uint8_t *at, const char *shape, size_t size)
{
    memset(at, ' ', NPY_HEADER);
    memcpy(at, "\x93NUMPY\1", 8);
    (void)put(at + 8, NPY_HEADER - 10, 2);
    int n = snprintf((char *)at + 10, NPY_HEADER - 11,
                     "{'descr': '|u1', 'fortran_order': False, 'shape': %s}", shape);
    at[10 + n] = ' ';
    at[NPY_HEADER - 1] = '\n';
    memset(at + NPY_HEADER, 7, size);
    return NPY_HEADER + size;
}

/* A .npz of arrays "a" and "b" of this shape and `size` bytes each, not compressed. */
static size_t make_npz(uint8_t *zip, const char *shape, size_t size)
{
    size_t at = 0, index, members[2];
    for (int i = 0; i < 2; i++) {
        members[i] = at;
        at += put(zip + at, 0x04034b50, 4);
        at += put_common(zip + at, NPY_HEADER + size);
        memcpy(zip + at, i ? "b.npy" : "a.npy", 5);
        at += 5;
        at += put_array(zip + at, shape, size);
    }
    index = at;
    for (int i = 0; i < 2; i++) {
        at += put(zip + at, 0x02014b50, 4);
        at += put(zip + at, 20, 2);
        at += put_common(zip + at, NPY_HEADER + size);
        at += put(zip + at, 0, 8);
        at += put(zip + at, 0, 2);
        at += put(zip + at, members[i], 4);
        memcpy(zip + at, i ? "b.npy" : "a.npy", 5);
        at += 5;
    }
    size_t index_size = at - index;
    at += put(zip + at, 0x06054b50, 4);
    at += put(zip + at, 0, 4);
    at += put(zip + at, 2, 2);
    at += put(zip + at, 2, 2);
    at += put(zip + at, index_size, 4);
    at += put(zip + at, index, 4);
    return at + put(zip + at, 0, 2);
}

/* dlxctl reads the header again with the data, for whose memory the first one counted. */
TEST(an_array_of_npz_that_changes_while_it_is_read_is_refused)
{
    enum { SIZE = 64 << 10 };
    static uint8_t zip[2 * SIZE + 1024], a[SIZE], b[SIZE];
    const char *path = dlx_test_file_write("x.npz", zip, make_npz(zip, "(2,32768)", SIZE));
    const char *shape = memmem(zip, sizeof zip, "(2,32768)", 9);
    void *const into[] = {a, b};
    auto_reading r = begin(path);
    ck_assert_uint_eq(r.item.size, 2 * (size_t)SIZE);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    ck_assert_int_eq(pwrite(fd, "(4,16384)", 9, shape - (const char *)zip), 9);
    (void)close(fd);
    ck_assert_int_eq(source_read_set(r.source, into, &r.e), DLX_E_INVALID);
    ck_assert_msg(strstr(r.e.text, "a changed while the file was read"), "%s", r.e.text);
}

TEST(names_decide_before_content)
{
    static const char header[] = "\xff\xff\xff\xff\xff\xff\xff\xff{}";
    struct cli_error e = {{0}};
    char text[256];
    ck_assert_int_eq(read_all((struct source_args){0},
                              dlx_test_file_write("x.safetensors", header, sizeof header - 1), text,
                              &e),
                     DLX_E_LIMIT);
    ck_assert_ptr_nonnull(strstr(e.text, "over the limit of 100000000"));
    struct source_args args = {.dtype = {kDLBfloat, 16, 1}};
    ck_assert_int_eq(
        read_all(args, dlx_test_file_write("x.safetensors", small, SMALL_SIZE), text, &e),
        DLX_E_INVALID);
    ck_assert_ptr_nonnull(strstr(e.text, ".safetensors says the types itself"));
}

/* More tensors than one readv(2) takes, of sizes that make its parts end anywhere. */
TEST(many_tensors_are_read_in_pieces)
{
    enum { N = 3000 };
    static char file[N * 80 + 8 + N * 20];
    static uint8_t got[N][24];
    static void *data[N];
    char *p = file + 8;
    unsigned at = 0;
    for (unsigned i = 0; i < N; at += i % 20, i++)
        p += sprintf(p, "%c\"%u\":" T("U8", "[%u]", "[%u,%u]"), i ? ',' : '{', i, i % 20, at,
                     at + i % 20);
    *p++ = '}';
    size_t header_size = (size_t)(p - file) - 8;
    for (unsigned i = 0; i < 8; i++)
        file[i] = (char)(header_size >> (8 * i));
    for (unsigned i = 0; i < at; i++)
        *p++ = (char)(i * 31 >> 3);

    auto_reading r = begin(dlx_test_file_write("many.safetensors", file, (size_t)(p - file)));
    ck_assert_uint_eq(r.item.set->n_tensors, N);
    ck_assert_uint_eq(r.item.size, at);
    for (unsigned i = 0; i < N; i++)
        data[i] = got[i];
    ck_assert_msg(source_read_set(r.source, data, &r.e) == 0, "%s", r.e.text);
    for (unsigned i = 0; i < N; i++) {
        const struct safetensors_tensor *t = &r.item.set->tensors[i];
        for (unsigned k = 0; k < t->size; k++)
            ck_assert_int_eq(got[i][k], (uint8_t)((t->offset + k) * 31 >> 3));
        ck_assert_int_eq(got[i][t->size], 0);
    }
    ck_assert_int_eq(source_next(r.source, &r.item, &r.e), 0);
}

int main(void)
{
    TCase *tcase = tcase_create("sets");
    tcase_set_timeout(tcase, 60);
    dlx_test_files_fixture(tcase);
    return dlx_test_run_case(tcase);
}
