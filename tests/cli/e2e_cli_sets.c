/* SPDX-License-Identifier: Apache-2.0 */
/* dlxctl and .safetensors files: what one publishes, another saves, and what the reference
 * implementation makes of it. */
#include "tests/cli/harness_cli_case.h"
#include "tests/harness/run.h"
#include <check.h>
#include <dlx/dlx.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* What dlxctl saves of what dlxctl publishes; `in` is the publisher's standard input. */
static void pass_on(const char *from, int in, const char *to)
{
    struct dlx_test_cli pub, save;
    dlx_test_cli_start(&save, dlx_test_cli_daemon.path, -1, DLX_TEST_WORDS("save", "w/a", to));
    dlx_test_cli_run(&pub, dlx_test_cli_daemon.path, in, 0,
                     DLX_TEST_WORDS("pub", "w/a", from, "--wait", "1", "--json"));
    dlx_test_cli_finish(&save, 0);
    ck_assert_str_eq(dlx_test_cli_said(&save), "");
    json_t *json = dlx_test_cli_json(&pub);
    ck_assert_int_eq(dlx_test_cli_integer(json, "published"), 1);
    ck_assert_int_eq(dlx_test_cli_integer(json, "copied_bytes"), 0);
    json_decref(json);
    dlx_test_cli_deinit(&pub);
    dlx_test_cli_deinit(&save);
}

TEST(files_of_the_reference_come_back_byte_for_byte)
{
    const char *reference = dlx_test_data("safetensors/reference.safetensors");
    pass_on(reference, -1, dlx_test_cli_file("out.safetensors"));
    dlx_test_cli_same(dlx_test_cli_file("out.safetensors"), reference);
    ck_assert_int_eq(unlink(dlx_test_cli_file("out.safetensors")), 0);

    size_t size = 0;
    pid_t feeder = -1;
    char *data = dlx_test_read_file(reference, &size);
    int in = dlx_test_pipe(data, size, &feeder);
    pass_on("-", in, dlx_test_cli_file("out.safetensors"));
    (void)close(in);
    ck_assert_int_eq(waitpid(feeder, NULL, 0), feeder);
    dlx_test_cli_same(dlx_test_cli_file("out.safetensors"), reference);
    ck_assert_uint_eq(dlx_test_files_count(dlx_test_cli_files), 1); /* no temporary file is left */
    free(data);
}

TEST(the_reference_reads_what_was_saved)
{
    const char *top = getenv("SRCDIR");
    char command[2048];
    if (dlx_test_valgrind()) {
        puts("SKIP: under valgrind Python would be looked at, and that takes a minute");
        return;
    }
    (void)snprintf(command, sizeof command,
                   "%s/build/venv/bin/python -c 'import safetensors' 2>/dev/null", top ? top : ".");
    if (system(command) != 0) { /* NOLINT(cert-env33-c): a test */
        puts("SKIP: build/venv has no safetensors (tools/setup.sh installs it)");
        return;
    }
    pass_on(dlx_test_data("safetensors/reference.safetensors"), -1,
            dlx_test_cli_file("read.safetensors"));
    (void)snprintf(command, sizeof command, "%s/build/venv/bin/python %s %s", top ? top : ".",
                   dlx_test_data("safetensors/make.py"), dlx_test_cli_file("read.safetensors"));
    ck_assert_int_eq(system(command), 0); /* NOLINT(cert-env33-c): a test */
    /* it would see a difference */
    size_t size = 0;
    char *data = dlx_test_read_file(dlx_test_cli_file("read.safetensors"), &size);
    data[size - 1] ^= 1;
    FILE *f = fopen(dlx_test_cli_file("read.safetensors"), "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(data, 1, size, f), size);
    (void)fclose(f);
    free(data);
    strcat(command, " 2>/dev/null");
    ck_assert_int_ne(system(command), 0); /* NOLINT(cert-env33-c): a test */
}

TEST(a_set_of_a_file_has_its_names_and_metadata)
{
    struct dlx_connect_args args = {.size = sizeof args, .socket = dlx_test_cli_daemon.path};
    struct dlx_client *c = NULL;
    struct dlx_subscription *s = NULL;
    struct dlx_message *m = NULL;
    struct dlx_test_cli pub;
    uint32_t i = 0;
    size_t size = 0;
    ck_assert_int_eq(dlx_connect(&c, &args), 0);
    ck_assert_int_eq(dlx_subscribe(c, "w", NULL, &s), 0);
    dlx_test_cli_start(&pub, dlx_test_cli_daemon.path, -1,
                       DLX_TEST_WORDS("pub", "w",
                                      dlx_test_data("safetensors/reference.safetensors"), "--wait",
                                      "1"));
    ck_assert_int_eq(dlx_take(s, INT64_C(30000000000), &m), 0);
    ck_assert_uint_eq(dlx_message_n_tensors(m), 22);
    const char *meta = dlx_message_meta(m, &size);
    ck_assert_ptr_nonnull(meta);
    json_t *json = json_loadb(meta, size, 0, NULL);
    ck_assert_str_eq(json_string_value(json_object_get(json, "format")), "pt");
    ck_assert_str_eq(json_string_value(json_object_get(json, "note")), "\"caf\xc3\xa9\"\n");
    json_decref(json);
    ck_assert_int_eq(dlx_message_find(m, "layer.float8_e4m3fn", &i), 0);
    const DLTensor *t = dlx_message_peek(m, i);
    ck_assert(t->dtype.code == kDLFloat8_e4m3fn && t->ndim == 2 && t->shape[0] == 2 &&
              t->shape[1] == 3);
    ck_assert_int_eq(dlx_message_find(m, "scalar", &i), 0);
    t = dlx_message_peek(m, i);
    ck_assert(t->ndim == 0 && *(const float *)t->data == 1.5F);
    ck_assert_int_eq(dlx_message_find(m, "empty", &i), 0);
    ck_assert_int_eq(dlx_message_peek(m, i)->shape[1], 0);
    dlx_test_cli_finish(&pub, 0);
    dlx_test_cli_deinit(&pub);
    dlx_message_unref(m);
    dlx_subscription_unref(s);
    dlx_client_unref(c);
}

/* Publish two tensors of this type, the second with this name, and have dlxctl save them. */
static void save_pair(DLDataType dtype, const char *name, const char *meta, int status,
                      struct dlx_test_cli *save)
{
    static const int64_t shape[] = {5};
    struct dlx_connect_args args = {.size = sizeof args, .socket = dlx_test_cli_daemon.path};
    struct dlx_tensor_spec spec = {.size = sizeof spec, .dtype = dtype, .ndim = 1, .shape = shape};
    struct dlx_item items[2] = {{.name = NULL}, {.name = name}};
    struct dlx_bytes bytes = {.data = meta, .size = strlen(meta)};
    struct dlx_client *c = NULL;
    struct dlx_publisher *p = NULL;
    ck_assert_int_eq(dlx_connect(&c, &args), 0);
    ck_assert_int_eq(dlx_publisher_new(c, "w", NULL, &p), 0);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(dlx_alloc(p, &spec, &items[i].tensor), 0);
        memset(items[i].tensor->dl_tensor.data, 'a' + i, 5U * dtype.bits / 8);
    }
    ck_assert_int_eq(dlx_publish_set(p, items, 2, &bytes, NULL), 0);
    dlx_test_cli_run(save, dlx_test_cli_daemon.path, -1, status,
                     DLX_TEST_WORDS("save", "w", dlx_test_cli_file("pair.safetensors"), "--history",
                                    "1", "--json"));
    dlx_publisher_unref(p);
    dlx_client_unref(c);
}

TEST(a_tensor_without_a_name_gets_one)
{
    static const char expected[] =
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[0,5]},"
        "\"tensor_0\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[5,10]}}";
    struct dlx_test_cli save;
    size_t size = 0;
    save_pair((DLDataType){kDLUInt, 8, 1}, "a", "no JSON", 0, &save);
    ck_assert_str_eq(save.err, "dlxctl save: w: 7 bytes of metadata are left out: .safetensors has "
                               "room for a JSON object only\n");
    json_t *json = dlx_test_cli_json(&save);
    ck_assert_str_eq(json_string_value(json_object_get(json, "file")),
                     dlx_test_cli_file("pair.safetensors"));
    json_decref(json);
    char *data = dlx_test_read_file(dlx_test_cli_file("pair.safetensors"), &size);
    ck_assert_uint_gt(size, 8 + sizeof expected);
    ck_assert_mem_eq(data + 8, expected, sizeof expected - 1);
    ck_assert_mem_eq(data + size - 10, "bbbbbaaaaa", 10);
    free(data);
    dlx_test_cli_deinit(&save);
}

TEST(what_the_format_cannot_say_leaves_no_file)
{
    struct dlx_test_cli save;
    (void)unlink(dlx_test_cli_file("pair.safetensors"));
    size_t before = dlx_test_files_count(dlx_test_cli_files);
    save_pair((DLDataType){kDLComplex, 128, 1}, "a", "{}", 1, &save);
    ck_assert_str_eq(
        save.err, "dlxctl save: w: tensor 'tensor_0': .safetensors has no dtype for complex128\n");
    dlx_test_cli_deinit(&save);
    save_pair((DLDataType){kDLUInt, 8, 1}, "tensor_0", "{}", 1, &save);
    ck_assert_str_eq(save.err,
                     "dlxctl save: w: tensor 'tensor_0' is there twice: tensor 0 has no name "
                     "and would get that\n");
    dlx_test_cli_deinit(&save);
    ck_assert_uint_eq(dlx_test_files_count(dlx_test_cli_files), before);
    dlx_test_cli_run(&save, dlx_test_cli_daemon.path, -1, 2,
                     DLX_TEST_WORDS("save", "w", "x.safetensors", "--tensor", "0"));
    ck_assert_ptr_nonnull(strstr(save.err, "--tensor is for .npy"));
    dlx_test_cli_deinit(&save);
}

TEST(several_sets_are_numbered_files)
{
    struct dlx_test_cli pub, save;
    const char *reference = dlx_test_data("safetensors/reference.safetensors");
    dlx_test_cli_start(&save, dlx_test_cli_daemon.path, -1,
                       DLX_TEST_WORDS("save", "w", dlx_test_cli_file("n.safetensors"), "--count",
                                      "3", "--reliable"));
    dlx_test_cli_run(
        &pub, dlx_test_cli_daemon.path, -1, 0,
        DLX_TEST_WORDS("pub", "w", reference, "--loop", "3", "--wait", "1", "--block"));
    dlx_test_cli_finish(&save, 0);
    dlx_test_cli_same(dlx_test_cli_file("n-000001.safetensors"), reference);
    dlx_test_cli_same(dlx_test_cli_file("n-000003.safetensors"), reference);
    dlx_test_cli_deinit(&pub);
    dlx_test_cli_deinit(&save);
}

/* The first message has one tensor, so there is nothing to say yet. */
TEST(tensors_that_a_later_message_loses_are_told)
{
    struct dlx_test_cli pub, save;
    dlx_test_cli_run(&pub, dlx_test_cli_daemon.path, -1, 0,
                     DLX_TEST_WORDS("pub", "w", dlx_test_npy("f4.npy"),
                                    dlx_test_data("safetensors/reference.safetensors"),
                                    dlx_test_data("safetensors/reference.safetensors"), "--retain",
                                    "3"));
    dlx_test_cli_run(&save, dlx_test_cli_daemon.path, -1, 0,
                     DLX_TEST_WORDS("save", "w", dlx_test_cli_file("later.npy"), "--count", "3",
                                    "--tensor", "0"));
    ck_assert_str_eq(
        save.err, "dlxctl save: w: 36 bytes of metadata are left out: .npy has no room for them, "
                  ".safetensors has for a JSON object\n"
                  "dlxctl save: w: message 2 has 22 tensors: tensor 0 is saved (--tensor), the "
                  "others are left out; .safetensors or .npz has room for all\n");
    dlx_test_cli_deinit(&save);
    dlx_test_cli_deinit(&pub);
}

TEST(a_file_that_lies_publishes_nothing)
{
    struct dlx_test_cli pub;
    size_t size = 0;
    char *data = dlx_test_read_file(dlx_test_data("safetensors/reference.safetensors"), &size);
    char words[700];
    FILE *f = fopen(dlx_test_cli_file("bad.safetensors"), "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(data, 1, size - 1, f), size - 1);
    (void)fclose(f);
    free(data);
    dlx_test_cli_run(&pub, dlx_test_cli_daemon.path, -1, 1,
                     DLX_TEST_WORDS("pub", "w", dlx_test_cli_file("bad.safetensors"), "--json"));
    (void)snprintf(
        words, sizeof words,
        "dlxctl pub: w: %s: tensor 'layer.bool' ends at 367, the file has only 366 bytes of data\n",
        dlx_test_cli_file("bad.safetensors"));
    ck_assert_str_eq(pub.err, words);
    ck_assert_str_eq(pub.out, "");
    dlx_test_cli_deinit(&pub);
}

/* -- sets of several files, and metadata of the command line ----------------------------------- */

static void fails(int status, const char *why, const char *const *words)
{
    struct dlx_test_cli cli;
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, status, words);
    ck_assert_msg(strstr(cli.err, why), "'%s' lacks '%s'", cli.err, why);
    dlx_test_cli_deinit(&cli);
}

TEST(several_files_are_one_set)
{
    struct dlx_test_cli pub, get;
    char rgb[600], same[600];
    (void)snprintf(rgb, sizeof rgb, "rgb=%s", dlx_test_npy("f4_fortran.npy"));
    (void)snprintf(same, sizeof same, "=%s", dlx_test_npy("bool.npy"));
    dlx_test_cli_run(&pub, dlx_test_cli_daemon.path, -1, 0,
                     DLX_TEST_WORDS("pub", "w", "--set", rgb, dlx_test_npy("f2.npy"), same, "-m",
                                    "{\"frame\": 7}", "--loop", "2", "--retain", "2"));
    dlx_test_cli_deinit(&pub);
    dlx_test_cli_run(&get, dlx_test_cli_daemon.path, -1, 0, DLX_TEST_WORDS("get", "w"));
    dlx_test_cli_golden(&get, "get_set.txt");
    dlx_test_cli_deinit(&get);
}

/* The first of each, then the second of each: two.npy has two arrays, the raw bytes one of its own
 * type. */
TEST(files_of_a_set_go_on_together)
{
    struct dlx_test_cli pub, save;
    char again[600], three[600];
    (void)snprintf(again, sizeof again, "again=%s", dlx_test_npy("two.npy"));
    dlx_test_cli_run(
        &pub, dlx_test_cli_daemon.path, -1, 0,
        DLX_TEST_WORDS("pub", "w", "--set", dlx_test_npy("two.npy"), again, "--retain", "2"));
    dlx_test_cli_deinit(&pub);
    dlx_test_cli_run(&save, dlx_test_cli_daemon.path, -1, 0,
                     DLX_TEST_WORDS("save", "w", "-", "-n", "2", "--tensor", "1"));
    size_t size = 0;
    char *two = dlx_test_read_file(dlx_test_npy("two.npy"), &size);
    ck_assert_uint_eq(save.out_size, size);
    ck_assert_mem_eq(save.out, two, size);
    free(two);
    dlx_test_cli_deinit(&save);
    (void)snprintf(three, sizeof three, "f4.npy: has no more tensors, but %s has",
                   dlx_test_npy("two.npy"));
    fails(1, three,
          DLX_TEST_WORDS("pub", "v", "-e", dlx_test_npy("two.npy"), dlx_test_npy("f4.npy")));
}

TEST(sets_that_cannot_be_are_named)
{
    const char *npy = dlx_test_npy("f4.npy");
    fails(2, "--set: the standard input needs a name in a set: NAME=-",
          DLX_TEST_WORDS("pub", "w", "--set", npy, "-"));
    fails(2, "--set: a file is missing", DLX_TEST_WORDS("pub", "w", "--set"));
    fails(2, "--set: 'a=' is not [NAME=]FILE", DLX_TEST_WORDS("pub", "w", "--set", "a="));
    fails(2, "can only be given once", DLX_TEST_WORDS("pub", "w", "--set", "a=-", "b=-"));
    fails(1, "is a set itself",
          DLX_TEST_WORDS("pub", "w", "--set", dlx_test_data("safetensors/reference.safetensors")));
    fails(1, "f4", DLX_TEST_WORDS("pub", "w", "--set", npy, npy));
    fails(1, "no/such: No such file or directory",
          DLX_TEST_WORDS("pub", "w", "--set", npy, "x=no/such"));
}

TEST(metadata_may_be_given)
{
    const char *npy = dlx_test_npy("f4.npy"), *path = dlx_test_cli_file("meta");
    char at[600], large[65537];
    struct dlx_test_cli cli;
    (void)snprintf(at, sizeof at, "@%s", path);
    memset(large, 'm', sizeof large);
    for (size_t size = 65535; size <= 65537; size++) {
        FILE *file = fopen(path, "we");
        ck_assert_ptr_nonnull(file);
        ck_assert_uint_eq(fwrite(large, 1, size, file), size);
        ck_assert_int_eq(fclose(file), 0);
        if (size > 65536) {
            fails(2, "--meta: more than the limit of 65536 bytes",
                  DLX_TEST_WORDS("pub", "m", npy, "--meta", at));
            continue;
        }
        dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0,
                         DLX_TEST_WORDS("pub", "m", npy, "--meta", at, "--retain", "1"));
        dlx_test_cli_deinit(&cli);
        dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0,
                         DLX_TEST_WORDS("get", "m", "--json"));
        json_t *json = dlx_test_cli_json(&cli);
        ck_assert_int_eq(dlx_test_cli_integer(json, "meta_bytes"), (json_int_t)size);
        ck_assert_uint_eq(json_array_size(json_object_get(json, "tensors")), 1);
        json_decref(json);
        dlx_test_cli_deinit(&cli);
    }
    ck_assert_int_eq(unlink(path), 0);
    fails(2, "--meta: ", DLX_TEST_WORDS("pub", "m", npy, "--meta", at));
    fails(2,
          "--meta: no valid JSON at byte 4: string or '}' expected near 'bad' (--meta @FILE takes "
          "any bytes)",
          DLX_TEST_WORDS("pub", "m", npy, "--meta", "{bad"));
    fails(2, "--meta: no valid JSON at byte 5: ']' expected near end of file",
          DLX_TEST_WORDS("pub", "m", npy, "--meta", "[1, 2"));
    /* it replaces that of a file */
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0,
                     DLX_TEST_WORDS("pub", "m", dlx_test_data("safetensors/reference.safetensors"),
                                    "--meta", "mine", "--retain", "1"));
    dlx_test_cli_deinit(&cli);
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0, DLX_TEST_WORDS("get", "m"));
    ck_assert_ptr_nonnull(strstr(cli.out, "\n    metadata  mine\n"));
    dlx_test_cli_deinit(&cli);
}

int main(void)
{
    return dlx_test_run_case(dlx_test_cli_case("dlxctl"));
}
