/* SPDX-License-Identifier: Apache-2.0 */
/* dlxctl and .npz files: those of NumPy are published, NumPy reads what is saved, and what lies is
 * refused. */
#include "tests/cli/harness_cli_case.h"
#include "tests/harness/run.h"
#include <check.h>
#include <dlx/dlx.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void run(int status, const char *err, const char *const *words)
{
    struct dlx_test_cli cli;
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, status, words);
    ck_assert_msg(strstr(cli.err, err), "'%s' lacks '%s'", cli.err, err);
    dlx_test_cli_deinit(&cli);
}

static const char *reference(void)
{
    return dlx_test_data("npz/reference.npz");
}

TEST(a_file_of_numpy_is_one_set)
{
    struct dlx_test_cli cli;
    run(0, "", DLX_TEST_WORDS("pub", "w", reference(), "--loop", "2", "--retain", "2"));
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0, DLX_TEST_WORDS("get", "w"));
    dlx_test_cli_golden(&cli, "get_npz.txt");
    dlx_test_cli_deinit(&cli);
}

TEST(numpy_reads_what_was_saved)
{
    char command[1200];
    const char *path = dlx_test_cli_file("saved.npz");
    if (system("/usr/bin/python3 -c 'import numpy' 2>/dev/null") !=
        0) { /* NOLINT(cert-env33-c): a test */
        puts("SKIP: no numpy");
        return;
    }
    run(0, "", DLX_TEST_WORDS("pub", "w", reference(), "--retain", "1"));
    run(0, "", DLX_TEST_WORDS("get", "w", path));
    (void)snprintf(command, sizeof command, "/usr/bin/python3 %s %s", dlx_test_data("npz/make.py"),
                   path);
    ck_assert_int_eq(system(command), 0); /* NOLINT(cert-env33-c): a test */
}

/* Names, and the same bytes each time: the date of a member is 1980-01-01, as NumPy has it. */
TEST(a_saved_file_comes_back_byte_for_byte)
{
    const char *first = dlx_test_cli_file("first.npz"), *second = dlx_test_cli_file("second.npz");
    run(0, "", DLX_TEST_WORDS("pub", "w", reference(), "--retain", "1"));
    run(0, "", DLX_TEST_WORDS("get", "w", first));
    run(0, "", DLX_TEST_WORDS("pub", "v", first, "--retain", "1"));
    run(0, "", DLX_TEST_WORDS("save", "v", second));
    dlx_test_cli_same(first, second);
    size_t size = 0;
    char *data = dlx_test_read_file(first, &size);
    ck_assert_uint_gt(size, 30);
    ck_assert_mem_eq(data + 10, "\0\0\x21\0", 4);
    free(data);
}

/* A tensor without a name gets NumPy's; strides are followed; types and metadata that it cannot say
 * are told. */
TEST(what_the_format_cannot_say_is_told)
{
    int64_t strides[] = {1, 3};
    struct dlx_connect_args args = {.size = sizeof args, .socket = dlx_test_cli_daemon.path};
    struct dlx_tensor_spec spec = {.size = sizeof spec,
                                   .dtype = {kDLBfloat, 16, 1},
                                   .ndim = 2,
                                   .shape = (const int64_t[]){3, 2}};
    struct dlx_bytes meta = {.data = "{}", .size = 2};
    struct dlx_client *c = NULL;
    struct dlx_publisher *p = NULL;
    struct dlx_item item = {.name = NULL};
    struct dlx_test_cli cli;
    ck_assert_int_eq(dlx_connect(&c, &args), 0);
    ck_assert_int_eq(dlx_publisher_new(c, "w", NULL, &p), 0);
    ck_assert_int_eq(dlx_alloc(p, &spec, &item.tensor), 0);
    for (int16_t i = 0; i < 6; i++)
        ((int16_t *)item.tensor->dl_tensor.data)[i] = (int16_t)(i + 1);
    item.tensor->dl_tensor.strides = strides; /* it is published as it lies there */
    ck_assert_int_eq(dlx_publish_set(p, &item, 1, &meta, NULL), 0);
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0,
                     DLX_TEST_WORDS("get", "w", dlx_test_cli_file("told.npz")));
    ck_assert_str_eq(cli.err,
                     "dlxctl get: w: 2 bytes of metadata are left out: .npz has no room for them, "
                     ".safetensors has for a JSON object\n"
                     "dlxctl get: w: .npy cannot name bfloat16: stored as '<u2' with shape (3, 2); "
                     "`dlxctl pub --dtype bfloat16` takes single items back\n");
    dlx_test_cli_deinit(&cli);
    run(0, "", DLX_TEST_WORDS("pub", "v", dlx_test_cli_file("told.npz"), "--retain", "1"));
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0, DLX_TEST_WORDS("get", "v"));
    ck_assert_ptr_nonnull(strstr(cli.out, "arr_0  uint16 (3, 2)  12 B  [1 4 2 5 3 6]\n"));
    dlx_test_cli_deinit(&cli);
    dlx_publisher_unref(p);
    dlx_client_unref(c);
}

static void write_file(const char *path, const char *data, size_t size)
{
    FILE *file = fopen(path, "we");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(data, 1, size, file), size);
    ck_assert_int_eq(fclose(file), 0);
}

TEST(archives_that_lie_publish_nothing)
{
    const char *path = dlx_test_cli_file("bad.npz");
    char words[700];
    size_t size = 0;
    struct dlx_test_cli cli;
    run(0, "", DLX_TEST_WORDS("pub", "w", reference(), "--retain", "1"));
    run(0, "", DLX_TEST_WORDS("get", "w", path));
    run(0, "", DLX_TEST_WORDS("rm", "w"));
    char *data = dlx_test_read_file(path, &size);
    /* the first array's data follow its two headers */
    char *first = memmem(data, size, "\x93NUMPY", 6);
    ck_assert_ptr_nonnull(first);
    first[128 + 5] ^= 1;
    write_file(path, data, size);
    (void)snprintf(words, sizeof words, "%s: rgb: CRC error", path);
    run(1, words, DLX_TEST_WORDS("pub", "w", path));
    first[128 + 5] ^= 1;
    char *shape = memmem(first, 128, "(2, 3, 4)", 9);
    ck_assert_ptr_nonnull(shape);
    shape[1] = '9';
    write_file(path, data, size);
    run(1, "rgb: should have 432 bytes of data, the member has 96",
        DLX_TEST_WORDS("pub", "w", path));
    shape[1] = '2';
    write_file(path, data, size - 10);
    run(1, "bad.npz: ", DLX_TEST_WORDS("pub", "w", path));
    pid_t feeder = -1;
    int status = 0, in = dlx_test_pipe(data, size, &feeder);
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, in, 1, DLX_TEST_WORDS("pub", "w", "-"));
    ck_assert_ptr_nonnull(strstr(cli.err, "standard input: a .npz file has its index at its end"));
    dlx_test_cli_deinit(&cli);
    (void)close(in);
    ck_assert_int_eq(waitpid(feeder, &status, 0), feeder);
    for (char *name = data; (name = memmem(name, size - (size_t)(name - data), "empty.npy", 9));
         name++)
        memcpy(name, "empty.txt", 9);
    write_file(path, data, size);
    run(1, "is a zip archive and no .npz: member 'empty.txt' is no .npy file (PyTorch's",
        DLX_TEST_WORDS("pub", "w", path));
    run(1, "reference.npz: --dtype alone is for .npy",
        DLX_TEST_WORDS("pub", "w", reference(), "--dtype", "u1"));
    run(0, "no publishers", DLX_TEST_WORDS("ls"));
    run(2, "--tensor is for .npy", DLX_TEST_WORDS("get", "w", path, "-T", "1"));
    free(data);
}

int main(void)
{
    return dlx_test_run_case(dlx_test_cli_case("npz"));
}
