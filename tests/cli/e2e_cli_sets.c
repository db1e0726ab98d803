/* SPDX-License-Identifier: Apache-2.0 */
/* dlxctl and sets that no dlxctl publishes, and what libdlx has of one that it does. */
#include "tests/cli/harness_cli_case.h"
#include "tests/harness/run.h"
#include <dlx/dlx.h>

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

/* A tensor without a name gets NumPy's; strides are followed; types and metadata that it cannot say
 * are told. */
TEST(what_npz_cannot_say_is_told)
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
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0,
                     DLX_TEST_WORDS("pub", "v", dlx_test_cli_file("told.npz"), "--retain", "1"));
    dlx_test_cli_deinit(&cli);
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0, DLX_TEST_WORDS("get", "v"));
    ck_assert_ptr_nonnull(strstr(cli.out, "arr_0  uint16 (3, 2)  12 B  [1 4 2 5 3 6]\n"));
    dlx_test_cli_deinit(&cli);
    dlx_publisher_unref(p);
    dlx_client_unref(c);
}

int main(void)
{
    return dlx_test_run_case(dlx_test_cli_case("dlxctl"));
}
