/* SPDX-License-Identifier: Apache-2.0 */

/* The header of a .safetensors file, as the reference implementation writes it. */

#include "cli/dtype.h"
#include "cli/safetensors.h"
#include <dlx/dlx.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define META_KEY "__metadata__"
enum { ALIGNMENT = 8 };

/* The place of a type in the table, safetensors_n_dtypes when it is not there. */
static size_t find_dtype(DLDataType dtype)
{
    size_t i = 0;
    for (; i < safetensors_n_dtypes; i++)
        if (dtype.lanes == 1 && safetensors_dtypes[i].code == dtype.code &&
            safetensors_dtypes[i].bits == dtype.bits)
            break;
    return i;
}

static int compare_tensors(const void *a, const void *b)
{
    const struct safetensors_tensor *x = a, *y = b;
    size_t rank_x = find_dtype(x->dtype), rank_y = find_dtype(y->dtype);
    if (rank_x != rank_y)
        return rank_x > rank_y ? -1 : 1;
    int names = strcmp(x->name, y->name);
    return names ? names : (x->index > y->index) - (x->index < y->index);
}

/* Names, sizes, order, offsets. */
static int arrange(struct safetensors_tensor *tensors, uint32_t n, struct safetensors_header *h,
                   struct cli_error *e)
{
    char label[SAFETENSORS_LABEL_SIZE], dtype[DLX_DTYPE_NAME_SIZE], shape[SHAPE_NAME_SIZE];
    uint64_t n_items = 0, at = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct safetensors_tensor *t = &tensors[i];
        t->index = i;
        if (!t->name || !t->name[0]) {
            (void)snprintf(h->names[i], sizeof h->names[i], "tensor_%" PRIu32, i);
            t->name = h->names[i];
        }
        safetensors_label(t->name, label);
        (void)dlx_dtype_name(t->dtype, dtype);
        if (find_dtype(t->dtype) == safetensors_n_dtypes)
            return cli_fail(e, DLX_E_SHAPE, "%s: .safetensors has no dtype for %s", label, dtype);
        shape_name(t->shape, t->ndim, shape);
        if (!shape_items(t->shape, t->ndim, &n_items) || !dtype_bytes(t->dtype, n_items, &t->size))
            return cli_fail(e, DLX_E_SHAPE, "%s: %s %.200s is over the limit of 2^63 - 1 bytes",
                            label, dtype, shape);
    }
    qsort(tensors, n, sizeof *tensors, compare_tensors);
    for (uint32_t i = 0; i < n; i++) {
        tensors[i].offset = at;
        at += tensors[i].size;
        if (at > INT64_MAX)
            return cli_fail(e, DLX_E_SHAPE, "the set is over the limit of 2^63 - 1 bytes");
    }
    return 0;
}

static json_t *tensor_json(const struct safetensors_tensor *t)
{
    json_t *shape = json_array();
    for (int32_t i = 0; i < t->ndim; i++)
        if (json_array_append_new(shape, json_integer(t->shape[i])) < 0) {
            json_decref(shape);
            return NULL;
        }
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", safetensors_dtypes[find_dtype(t->dtype)].name,
                     "shape", shape, "data_offsets", (json_int_t)t->offset,
                     (json_int_t)t->offset + (json_int_t)t->size);
}

/* Messages have no two tensors of one name, so one of them is made, or it is the metadata's. */
static int clash(const struct safetensors_tensor *t, uint32_t n, const struct safetensors_header *h,
                 struct cli_error *e)
{
    char label[SAFETENSORS_LABEL_SIZE];
    safetensors_label(t->name, label);
    if (strcmp(t->name, META_KEY) == 0)
        return cli_fail(e, DLX_E_INVALID, "%s: that name is the metadata's in .safetensors", label);
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(h->names[i], t->name) == 0)
            return cli_fail(e, DLX_E_INVALID,
                            "%s is there twice: tensor %" PRIu32 " has no name and would get that",
                            label, i);
    return cli_fail(e, DLX_E_INVALID, "%s is there twice", label);
}

static int add_tensors(json_t *root, const struct safetensors_tensor *tensors, uint32_t n,
                       const struct safetensors_header *h, struct cli_error *e)
{
    char label[SAFETENSORS_LABEL_SIZE];
    for (uint32_t i = 0; i < n; i++) {
        const struct safetensors_tensor *t = &tensors[i];
        safetensors_label(t->name, label);
        json_t *name = json_string(t->name);
        json_decref(name);
        if (!name)
            return cli_fail(e, DLX_E_INVALID, "%s: its name is not UTF-8", label);
        if (strcmp(t->name, META_KEY) == 0 || json_object_get(root, t->name))
            return clash(t, n, h, e);
        if (json_object_set_new(root, t->name, tensor_json(t)) < 0)
            return cli_fail(e, DLX_E_NO_MEMORY, "out of memory");
    }
    return 0;
}

/* Puts the JSON text of a value in its place. Returns 0 or -1. */
static int set_text(json_t *object, const char *key, const json_t *value)
{
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    int code = text ? json_object_set_new(object, key, json_string(text)) : -1;
    free(text);
    return code;
}

/* The metadata as an object of strings, NULL when it is no object. */
static json_t *meta_json(const void *meta, size_t size)
{
    const char *key;
    json_t *value, *json = size ? json_loadb(meta, size, JSON_REJECT_DUPLICATES, NULL) : NULL;
    json_t *strings = json_object(), *keys = json_array();
    bool fits = json_is_object(json) && !json_object_get(json, SAFETENSORS_JSON_KEY);
    json_object_foreach(json, key, value)
    {
        if (json_is_string(value))
            fits = fits && json_object_set(strings, key, value) == 0;
        else
            fits = fits && set_text(strings, key, value) == 0 &&
                   json_array_append_new(keys, json_string(key)) == 0;
    }
    if (fits && json_array_size(keys) > 0)
        fits = set_text(strings, SAFETENSORS_JSON_KEY, keys) == 0;
    json_decref(json);
    json_decref(keys);
    if (fits)
        return strings;
    json_decref(strings);
    return NULL;
}

static int write_header(const json_t *root, struct safetensors_header *h, struct cli_error *e)
{
    char *text = json_dumps(root, JSON_COMPACT);
    if (!text)
        return cli_fail(e, DLX_E_NO_MEMORY, "out of memory");
    size_t used = strlen(text), size = (used + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    int code = 0;
    if (size > SAFETENSORS_HEADER_SIZE_MAX)
        code = cli_fail(e, DLX_E_LIMIT, ".safetensors header of %zu bytes is over the limit of %d",
                        size, SAFETENSORS_HEADER_SIZE_MAX);
    h->data = code == 0 ? malloc(SAFETENSORS_PREFIX_SIZE + size) : NULL;
    if (code == 0 && !h->data)
        code = cli_fail(e, DLX_E_NO_MEMORY, "out of memory");
    if (code == 0) {
        for (unsigned i = 0; i < SAFETENSORS_PREFIX_SIZE; i++)
            h->data[i] = (uint8_t)((uint64_t)size >> (8 * i));
        memcpy(h->data + SAFETENSORS_PREFIX_SIZE, text, used);
        memset(h->data + SAFETENSORS_PREFIX_SIZE + used, ' ', size - used);
        h->size = SAFETENSORS_PREFIX_SIZE + size;
    }
    free(text);
    return code;
}

int safetensors_header_make(struct safetensors_tensor *tensors, uint32_t n, const void *meta,
                            size_t meta_size, struct safetensors_header *ret_header,
                            struct cli_error *e)
{
    struct safetensors_header h = {.names = calloc(n, sizeof *h.names)};
    json_t *root = json_object(), *metadata = meta_json(meta, meta_size);
    h.has_meta = metadata != NULL;
    int code = 0;
    if (!h.names || !root || (metadata && json_object_set(root, META_KEY, metadata) < 0))
        code = cli_fail(e, DLX_E_NO_MEMORY, "out of memory");
    if (code == 0)
        code = arrange(tensors, n, &h, e);
    if (code == 0)
        code = add_tensors(root, tensors, n, &h, e);
    if (code == 0)
        code = write_header(root, &h, e);
    json_decref(metadata);
    json_decref(root);
    if (code < 0)
        safetensors_header_free(&h);
    else
        *ret_header = h;
    return code;
}

void safetensors_header_free(struct safetensors_header *header)
{
    free(header->data);
    free(header->names);
    *header = (struct safetensors_header){0};
}
