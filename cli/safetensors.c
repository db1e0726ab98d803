/* SPDX-License-Identifier: Apache-2.0 */

/* The header of a .safetensors file, parsed and checked as the reference implementation does. */

#include "cli/safetensors.h"
#include "cli/dtype.h"
#include "cli/output.h"
#include <dlx/dlx.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define META_KEY "__metadata__"

/* In the order of the reference implementation, which it sorts by. F4, F6_E2M3 and F6_E3M2 are not
 * here: how their items are packed is not what DLPack says. */
const struct safetensors_dtype safetensors_dtypes[] = {
    {"BOOL", kDLBool, 8},
    {"U8", kDLUInt, 8},
    {"I8", kDLInt, 8},
    {"F8_E5M2", kDLFloat8_e5m2, 8},
    {"F8_E4M3", kDLFloat8_e4m3fn, 8},
    {"F8_E8M0", kDLFloat8_e8m0fnu, 8},
    {"F8_E4M3FNUZ", kDLFloat8_e4m3fnuz, 8},
    {"F8_E5M2FNUZ", kDLFloat8_e5m2fnuz, 8},
    {"I16", kDLInt, 16},
    {"U16", kDLUInt, 16},
    {"F16", kDLFloat, 16},
    {"BF16", kDLBfloat, 16},
    {"I32", kDLInt, 32},
    {"U32", kDLUInt, 32},
    {"F32", kDLFloat, 32},
    {"C64", kDLComplex, 64},
    {"F64", kDLFloat, 64},
    {"I64", kDLInt, 64},
    {"U64", kDLUInt, 64},
};
const size_t safetensors_n_dtypes = sizeof safetensors_dtypes / sizeof safetensors_dtypes[0];

void safetensors_label(const char *name, char label[SAFETENSORS_LABEL_SIZE])
{
    char printable[SAFETENSORS_LABEL_SIZE - 16];
    output_printable(name, printable, sizeof printable);
    (void)snprintf(label, SAFETENSORS_LABEL_SIZE, "tensor '%s%s'", printable,
                   strlen(name) > sizeof printable - 1 ? "..." : "");
}

/* ---- the prefix ------------------------------------------------------------------------------ */

static uint64_t read_u64(const uint8_t *data)
{
    uint64_t n = 0;
    for (unsigned i = 0; i < 8; i++)
        n |= (uint64_t)data[i] << (8 * i);
    return n;
}

bool safetensors_is(const uint8_t *data, size_t size)
{
    return size > SAFETENSORS_PREFIX_SIZE && data[SAFETENSORS_PREFIX_SIZE] == '{' &&
           read_u64(data) <= SAFETENSORS_HEADER_SIZE_MAX;
}

int safetensors_header_size(const uint8_t *data, size_t size, uint64_t file_size, size_t *ret_size,
                            struct cli_error *e)
{
    if (size < SAFETENSORS_PREFIX_SIZE)
        return cli_fail(e, DLX_E_INVALID,
                        "not a .safetensors file: %zu bytes, the size of its header takes %d", size,
                        SAFETENSORS_PREFIX_SIZE);
    uint64_t n = read_u64(data);
    if (n > SAFETENSORS_HEADER_SIZE_MAX)
        return cli_fail(e, DLX_E_LIMIT,
                        ".safetensors header of %" PRIu64 " bytes is over the limit of %d", n,
                        SAFETENSORS_HEADER_SIZE_MAX);
    if (file_size != SAFETENSORS_SIZE_UNKNOWN &&
        (file_size < SAFETENSORS_PREFIX_SIZE || n > file_size - SAFETENSORS_PREFIX_SIZE))
        return cli_fail(e, DLX_E_INVALID,
                        ".safetensors header of %" PRIu64 " bytes is larger than the file, which "
                        "has %" PRIu64,
                        n, file_size);
    *ret_size = (size_t)n;
    return 0;
}

/* ---- the header ------------------------------------------------------------------------------ */

/* An upper bound: each JSON value but the first follows a comma or an open bracket outside of
 * strings. Invalid JSON is found later. */
static bool too_many_values(const char *header, size_t size)
{
    size_t n = 1;
    bool in_string = false;
    for (size_t i = 0; i < size; i++) {
        char c = header[i];
        if (in_string && c == '\\')
            i++;
        else if (c == '"')
            in_string = !in_string;
        else if (!in_string && (c == ',' || c == '[' || c == '{'))
            n++;
    }
    return n > SAFETENSORS_VALUES_MAX;
}

static int parse_json(const char *header, size_t size, json_t **ret, struct cli_error *e)
{
    json_error_t error;
    char words[JSON_ERROR_TEXT_LENGTH];
    if (size == 0 || header[0] != '{')
        return cli_fail(e, DLX_E_INVALID, ".safetensors header is no JSON object: it %s",
                        size == 0 ? "is empty" : "does not begin with '{'");
    if (too_many_values(header, size))
        return cli_fail(e, DLX_E_LIMIT, ".safetensors header has more than the limit of %d values",
                        SAFETENSORS_VALUES_MAX);
    *ret = json_loadb(header, size, JSON_REJECT_DUPLICATES, &error);
    if (*ret)
        return 0;
    if (json_error_code(&error) == json_error_out_of_memory)
        return cli_fail(e, DLX_E_NO_MEMORY, "out of memory");
    output_printable(error.text, words, sizeof words); /* it cites the file */
    return cli_fail(e, DLX_E_INVALID, ".safetensors header is not valid JSON: %s (byte %d)", words,
                    error.position);
}

static int safetensors_parse_dtype(struct safetensors_tensor *t, const json_t *json,
                                   const char *label, struct cli_error *e)
{
    const char *name = json_string_value(json_object_get(json, "dtype"));
    char printable[64];
    if (!name)
        return cli_fail(e, DLX_E_INVALID, "%s has no dtype that is a string", label);
    for (size_t i = 0; i < safetensors_n_dtypes; i++)
        if (strcmp(safetensors_dtypes[i].name, name) == 0) {
            t->dtype = (DLDataType){
                .code = safetensors_dtypes[i].code, .bits = safetensors_dtypes[i].bits, .lanes = 1};
            return 0;
        }
    output_printable(name, printable, sizeof printable);
    return cli_fail(e, DLX_E_SHAPE, "%s: dtype '%s' cannot be carried", label, printable);
}

/* Into `shape`, which has room for DLX_NDIM_MAX. */
static int safetensors_parse_shape(struct safetensors_tensor *t, const json_t *json, int64_t *shape,
                                   const char *label, struct cli_error *e)
{
    const json_t *array = json_object_get(json, "shape");
    size_t ndim = json_array_size(array);
    if (!json_is_array(array))
        return cli_fail(e, DLX_E_INVALID, "%s has no shape that is an array", label);
    if (ndim > DLX_NDIM_MAX)
        return cli_fail(e, DLX_E_LIMIT, "%s has %zu dimensions, the limit is %d", label, ndim,
                        DLX_NDIM_MAX);
    for (size_t i = 0; i < ndim; i++) {
        const json_t *size = json_array_get(array, i);
        if (!json_is_integer(size))
            return cli_fail(e, DLX_E_INVALID, "%s: size %zu of its shape is no integer", label, i);
        shape[i] = json_integer_value(size);
        if (shape[i] < 0)
            return cli_fail(e, DLX_E_SHAPE, "%s: size %zu of its shape is negative (%" PRId64 ")",
                            label, i, shape[i]);
    }
    t->ndim = (int32_t)ndim;
    t->shape = shape;
    return 0;
}

/* The offsets, which must agree with the shape and the type. */
static int parse_offsets(struct safetensors_tensor *t, const json_t *json, const char *label,
                         struct cli_error *e)
{
    char dtype[DLX_DTYPE_NAME_SIZE], shape[SHAPE_NAME_SIZE];
    const json_t *array = json_object_get(json, "data_offsets");
    const json_t *first = json_array_get(array, 0), *last = json_array_get(array, 1);
    uint64_t n_items = 0, size = 0;
    if (json_array_size(array) != 2 || !json_is_integer(first) || !json_is_integer(last))
        return cli_fail(e, DLX_E_INVALID, "%s has no data_offsets that are two integers", label);
    json_int_t begin = json_integer_value(first), end = json_integer_value(last);
    if (begin < 0 || begin > end)
        return cli_fail(e, DLX_E_INVALID, "%s: data_offsets [%" PRId64 ", %" PRId64 "] %s", label,
                        (int64_t)begin, (int64_t)end, begin < 0 ? "are negative" : "end too early");
    (void)dlx_dtype_name(t->dtype, dtype);
    shape_name(t->shape, t->ndim, shape);
    if (!shape_items(t->shape, t->ndim, &n_items) || !dtype_bytes(t->dtype, n_items, &size))
        return cli_fail(e, DLX_E_SHAPE, "%s: %s %.200s is over the limit of 2^63 - 1 bytes", label,
                        dtype, shape);
    t->offset = (uint64_t)begin;
    t->size = (uint64_t)(end - begin);
    if (t->size != size)
        return cli_fail(e, DLX_E_INVALID,
                        "%s: data_offsets [%" PRId64 ", %" PRId64 "] are %" PRIu64
                        " bytes, %s %.200s has %" PRIu64,
                        label, (int64_t)begin, (int64_t)end, t->size, dtype, shape, size);
    return 0;
}

static int parse_tensor(struct safetensors *s, const char *name, const json_t *json, int64_t *shape,
                        struct cli_error *e)
{
    struct safetensors_tensor *t = &s->tensors[s->n_tensors];
    char label[SAFETENSORS_LABEL_SIZE];
    safetensors_label(name, label);
    if (!json_is_object(json))
        return cli_fail(e, DLX_E_INVALID, "%s is no JSON object", label);
    if (strlen(name) > DLX_NAME_MAX)
        return cli_fail(e, DLX_E_LIMIT, "%s: a name of %zu bytes, the limit is %d", label,
                        strlen(name), DLX_NAME_MAX);
    *t = (struct safetensors_tensor){.name = name, .index = s->n_tensors};
    int code = safetensors_parse_dtype(t, json, label, e);
    if (code == 0)
        code = safetensors_parse_shape(t, json, shape, label, e);
    if (code == 0)
        code = parse_offsets(t, json, label, e);
    if (code == 0)
        s->n_tensors++;
    return code;
}

/* Values that safetensors_header_make() made JSON text of. NULL: this object has none, or another
 * program made it. */
static json_t *restore_values(const json_t *meta)
{
    json_t *copy = json_copy((json_t *)(uintptr_t)meta), *key;
    const char *names = json_string_value(json_object_get(meta, SAFETENSORS_JSON_KEY));
    json_t *keys = names ? json_loads(names, 0, NULL) : NULL;
    bool ok = copy && json_is_array(keys) && json_object_del(copy, SAFETENSORS_JSON_KEY) == 0;
    size_t i;
    json_array_foreach(keys, i, key)
    {
        const char *name = json_string_value(key);
        const char *text = name ? json_string_value(json_object_get(copy, name)) : NULL;
        json_t *value =
            text ? json_loads(text, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL) : NULL;
        ok = ok && value && json_object_set(copy, name, value) == 0;
        json_decref(value);
    }
    json_decref(keys);
    if (ok)
        return copy;
    json_decref(copy);
    return NULL;
}

static int safetensors_parse_meta(struct safetensors *s, json_t *json, struct cli_error *e)
{
    const char *key;
    json_t *value;
    if (!json_is_object(json))
        return cli_fail(e, DLX_E_INVALID, META_KEY " is no JSON object");
    json_object_foreach(json, key, value)
    {
        char printable[128];
        output_printable(key, printable, sizeof printable);
        if (!json_is_string(value))
            return cli_fail(e, DLX_E_INVALID, META_KEY ": '%s' is no string", printable);
    }
    json_t *restored = restore_values(json);
    s->meta = json_dumps(restored ? restored : json, JSON_COMPACT);
    json_decref(restored);
    if (!s->meta)
        return cli_fail(e, DLX_E_NO_MEMORY, "out of memory");
    s->meta_size = strlen(s->meta);
    if (s->meta_size > DLX_META_MAX)
        return cli_fail(e, DLX_E_LIMIT,
                        META_KEY " of %zu bytes is over the limit of %d of a message's metadata",
                        s->meta_size, DLX_META_MAX);
    return 0;
}

static int parse_members(struct safetensors *s, struct cli_error *e)
{
    const char *name;
    json_t *value, *meta = json_object_get(s->json, META_KEY);
    size_t n = json_object_size(s->json) - (meta ? 1 : 0), n_dims = 0;
    if (n == 0 || n > DLX_TENSORS_MAX)
        return cli_fail(e, n ? DLX_E_LIMIT : DLX_E_INVALID,
                        ".safetensors header has %zu tensors, a message has 1 to %d", n,
                        DLX_TENSORS_MAX);
    json_object_foreach(s->json, name, value)
    {
        size_t ndim = json_array_size(json_object_get(value, "shape"));
        n_dims += ndim < DLX_NDIM_MAX ? ndim : DLX_NDIM_MAX;
    }
    s->tensors = calloc(n, sizeof *s->tensors);
    s->shapes = calloc(n_dims + 1, sizeof *s->shapes);
    if (!s->tensors || !s->shapes)
        return cli_fail(e, DLX_E_NO_MEMORY, "out of memory");
    int64_t *shape = s->shapes;
    int code = meta ? safetensors_parse_meta(s, meta, e) : 0;
    if (code < 0)
        return code;
    json_object_foreach(s->json, name, value)
    {
        if (value == meta)
            continue;
        code = parse_tensor(s, name, value, shape, e);
        if (code < 0)
            return code;
        shape += s->tensors[s->n_tensors - 1].ndim;
    }
    return 0;
}

static int compare_offsets(const void *a, const void *b)
{
    const struct safetensors_tensor *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    if (x->size != y->size) /* those without bytes stand in front of what begins there */
        return x->size < y->size ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

/* One tensor after the other must cover all of the data. */
static int check_offsets(struct safetensors *s, uint64_t data_size, struct cli_error *e)
{
    char label[SAFETENSORS_LABEL_SIZE], other[SAFETENSORS_LABEL_SIZE];
    uint64_t at = 0;
    qsort(s->tensors, s->n_tensors, sizeof *s->tensors, compare_offsets);
    for (uint32_t i = 0; i < s->n_tensors; i++) {
        const struct safetensors_tensor *t = &s->tensors[i];
        safetensors_label(t->name, label);
        if (t->offset < at) {
            safetensors_label(s->tensors[i - 1].name, other);
            return cli_fail(e, DLX_E_INVALID,
                            "%s begins at %" PRIu64 ", where %s is, up to %" PRIu64, label,
                            t->offset, other, at);
        }
        if (t->offset > at)
            return cli_fail(e, DLX_E_INVALID,
                            "%s begins at %" PRIu64 ": a hole of %" PRIu64 " bytes in front of it",
                            label, t->offset, t->offset - at);
        at += t->size; /* its end, at most 2^63 - 1 */
        if (at > data_size)
            return cli_fail(e, DLX_E_INVALID,
                            "%s ends at %" PRIu64 ", the file has only %" PRIu64 " bytes of data",
                            label, at, data_size);
    }
    if (data_size != SAFETENSORS_SIZE_UNKNOWN && at < data_size)
        return cli_fail(e, DLX_E_INVALID,
                        "the tensors have %" PRIu64 " bytes, the file has %" PRIu64
                        " bytes of data: %" PRIu64 " belong to none",
                        at, data_size, data_size - at);
    s->data_size = at;
    return 0;
}

int safetensors_parse(struct safetensors **ret, const char *header, size_t size, uint64_t data_size,
                      struct cli_error *e)
{
    struct safetensors *s = calloc(1, sizeof *s);
    if (!s)
        return cli_fail(e, DLX_E_NO_MEMORY, "out of memory");
    int code = parse_json(header, size, &s->json, e);
    if (code == 0)
        code = parse_members(s, e);
    if (code == 0)
        code = check_offsets(s, data_size, e);
    if (code < 0)
        safetensors_free(s);
    else
        *ret = s;
    return code;
}

struct safetensors *safetensors_free(struct safetensors *s)
{
    if (!s)
        return NULL;
    free(s->tensors);
    free(s->shapes);
    free(s->meta);
    json_decref(s->json);
    free(s);
    return NULL;
}
