/* SPDX-License-Identifier: Apache-2.0 */
/* dlxctl and sets that no dlxctl publishes, and what libdlx has of one that it does. */
#include "tests/cli/harness_cli_case.h"

/* The tensor of the set with this name. */
static const DLTensor *tensor_of(struct dlx_message *m, const char *name)
{
    uint32_t i = 0;
    ck_assert_int_eq(dlx_message_tensor_find(m, name, &i), 0);
    return dlx_message_tensor_peek(m, i);
}

TEST(a_set_of_a_file_has_its_names_and_metadata)
{
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *s = dlx_test_stream_subscribe(c, "w", NULL);
    size_t size = 0;
    auto_cli pub =
        dlxctl_start("pub", "w", dlx_test_data("safetensors/reference.safetensors"), "--wait", "1");
    auto_message *m = dlx_test_stream_next(s);
    ck_assert_uint_eq(dlx_message_n_tensors(m), 22);
    const char *meta = dlx_message_meta(m, &size);
    ck_assert_ptr_nonnull(meta);
    json_auto_t *json = json_loadb(meta, size, 0, NULL);
    ck_assert_str_eq(json_string_value(json_object_get(json, "format")), "pt");
    ck_assert_str_eq(json_string_value(json_object_get(json, "note")), "\"caf\xc3\xa9\"\n");
    const DLTensor *t = tensor_of(m, "layer.float8_e4m3fn");
    ck_assert(t->dtype.code == kDLFloat8_e4m3fn && t->ndim == 2 && t->shape[0] == 2 &&
              t->shape[1] == 3);
    t = tensor_of(m, "scalar");
    ck_assert(t->ndim == 0 && *(const float *)t->data == 1.5F);
    ck_assert_int_eq(tensor_of(m, "empty")->shape[1], 0);
    dlx_test_cli_finish(&pub, 0);
}

/* Publish two tensors of this type, the second with this name, and have dlxctl save them. */
static struct dlx_test_cli save_pair(DLDataType dtype, const char *name, const char *meta,
                                     int status)
{
    const struct dlx_tensor_spec spec = {
        .size = sizeof spec, .dtype = dtype, .ndim = 1, .shape = (const int64_t[]){5}};
    struct dlx_item items[2] = {{.name = NULL}, {.name = name}};
    struct dlx_bytes bytes = {.data = meta, .size = strlen(meta)};
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "w", NULL);
    for (int i = 0; i < 2; i++) {
        ok(dlx_alloc(p, &spec, &items[i].tensor));
        memset(items[i].tensor->dl_tensor.data, 'a' + i, 5U * dtype.bits / 8);
    }
    ok(dlx_publish_set(p, items, 2, &bytes, NULL, NULL));
    return dlxctl(status, "save", "w", dlx_test_file("pair.safetensors"), "--history", "1",
                  "--json");
}

TEST(a_tensor_without_a_name_gets_one)
{
    static const char expected[] =
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[0,5]},"
        "\"tensor_0\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[5,10]}}";
    size_t size = 0;
    auto_cli save = save_pair((DLDataType){kDLUInt, 8, 1}, "a", "no JSON", 0);
    ck_assert_str_eq(save.err, "dlxctl save: w: 7 bytes of metadata are left out: .safetensors has "
                               "room for a JSON object only\n");
    json_auto_t *json = dlx_test_cli_json(&save);
    ck_assert_str_eq(json_string_value(json_object_get(json, "file")),
                     dlx_test_file("pair.safetensors"));
    char *data = dlx_test_read_file(dlx_test_file("pair.safetensors"), &size);
    ck_assert_uint_gt(size, 8 + sizeof expected);
    ck_assert_mem_eq(data + 8, expected, sizeof expected - 1);
    ck_assert_mem_eq(data + size - 10, "bbbbbaaaaa", 10);
    free(data);
}

TEST(of_metadata_that_the_file_has_nothing_is_said)
{
    static const char expected[] = "{\"__metadata__\":{\"k\":\"v\"}";
    size_t size = 0;
    auto_cli save = save_pair((DLDataType){kDLUInt, 8, 1}, "a", "{\"k\":\"v\"}", 0);
    ck_assert_str_eq(save.err, "");
    char *data = dlx_test_read_file(dlx_test_file("pair.safetensors"), &size);
    ck_assert_uint_gt(size, 8 + sizeof expected);
    ck_assert_mem_eq(data + 8, expected, sizeof expected - 1);
    free(data);
}

TEST(a_set_that_safetensors_cannot_represent_leaves_no_file)
{
    auto_cli no_dtype = save_pair((DLDataType){kDLComplex, 128, 1}, "a", "{}", 1);
    ck_assert_str_eq(
        no_dtype.err,
        "dlxctl save: w: tensor 'tensor_0': .safetensors has no dtype for complex128\n");
    auto_cli twice = save_pair((DLDataType){kDLUInt, 8, 1}, "tensor_0", "{}", 1);
    ck_assert_str_eq(twice.err,
                     "dlxctl save: w: tensor 'tensor_0' is there twice: tensor 0 has no name "
                     "and would get that\n");
    ck_assert_uint_eq(dlx_test_n_files(), 0);
    auto_cli one_tensor = dlxctl(2, "save", "w", "x.safetensors", "--tensor", "0");
    has(one_tensor.err, "--tensor is for .npy");
}

/* A tensor without a name gets NumPy's; strides are followed; types and metadata that it cannot say
 * are told. */
TEST(types_and_metadata_that_npz_cannot_represent_are_named)
{
    int64_t strides[] = {1, 3};
    const struct dlx_tensor_spec spec = {.size = sizeof spec,
                                         .dtype = {kDLBfloat, 16, 1},
                                         .ndim = 2,
                                         .shape = (const int64_t[]){3, 2}};
    struct dlx_bytes meta = {.data = "{}", .size = 2};
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "w", NULL);
    struct dlx_item item = {.name = NULL};
    ok(dlx_alloc(p, &spec, &item.tensor));
    for (int16_t i = 0; i < 6; i++)
        ((int16_t *)item.tensor->dl_tensor.data)[i] = (int16_t)(i + 1);
    item.tensor->dl_tensor.strides = strides; /* it is published as it lies there */
    ok(dlx_publish_set(p, &item, 1, &meta, NULL, NULL));
    const char *npz = dlx_test_file("told.npz");
    auto_cli get = dlxctl(0, "get", "w", npz);
    ck_assert_str_eq(get.err,
                     "dlxctl get: w: 2 bytes of metadata are left out: .npz has no room for them, "
                     ".safetensors has for a JSON object\n"
                     "dlxctl get: w: .npy cannot name bfloat16: stored as '<u2' with shape (3, 2); "
                     "`dlxctl pub --dtype bfloat16` takes single items back\n");
    auto_cli pub = dlxctl(0, "pub", "v", npz, "--retain", "1"), back = dlxctl(0, "get", "v");
    has(back.out, "arr_0  uint16 (3, 2)  12 B  [1 4 2 5 3 6]\n");
}

int main(void)
{
    return dlx_test_run_case(dlx_test_cli_case("dlxctl"));
}
