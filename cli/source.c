/* SPDX-License-Identifier: Apache-2.0 */

/* The files that pub reads, one after the other, or joined to one set; their first bytes tell the
 * format. */

#include "cli/dtype.h"
#include "cli/npz.h"
#include "cli/output.h"
#include "cli/source.h"
#include "cli/source_input.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- raw bytes ------------------------------------------------------------------------------- */

/* Find the end of the file before memory is asked for: read one byte ahead when its size is not
 * known. */
static int at_end(struct source *s, bool *ret_end, struct cli_error *e)
{
    if (s->in.regular) {
        *ret_end = s->prefix_size == 0 && s->in.offset >= s->in.size;
        return 0;
    }
    uint64_t got = s->prefix_size;
    if (got == 0) {
        int code = input_read(&s->in, s->prefix, 1, &got, e);
        if (code < 0)
            return code;
        s->prefix_size = (size_t)got;
    }
    *ret_end = got == 0;
    return 0;
}

static int raw_next(struct source *s, struct source_item *item, struct cli_error *e)
{
    char dtype[DLX_DTYPE_NAME_SIZE], shape[SHAPE_NAME_SIZE];
    uint64_t n = 0;
    bool end = false;
    shape_name(s->args.shape, s->args.ndim, shape);
    (void)dlx_dtype_name(s->args.dtype, dtype);
    if (!shape_items(s->args.shape, s->args.ndim, &n) ||
        !dtype_bytes(s->args.dtype, n, &item->size))
        return cli_fail(e, DLX_E_SHAPE, "%s %.300s is over the limit of 2^63 - 1 bytes", dtype,
                        shape);
    if (item->size == 0 && s->n_items > 0) /* an empty tensor stands in a file once */
        return 0;
    int code = at_end(s, &end, e);
    if (code < 0)
        return code;
    if (end && item->size > 0) {
        if (s->n_items > 0)
            return 0;
        return cli_fail(e, DLX_E_INVALID,
                        "%.255s: %s %.300s should have %" PRIu64 " bytes, the file has none",
                        s->in.name, dtype, shape, item->size);
    }
    if (!end && item->size == 0)
        return cli_fail(e, DLX_E_INVALID, "%.255s: has bytes, but %s %.200s has none", s->in.name,
                        dtype, shape);
    if (s->in.regular && s->n_items == 0 && item->size > 0 && s->in.size % item->size != 0)
        return cli_fail(e, DLX_E_INVALID,
                        "%.255s: has %" PRIu64
                        " bytes, which is not a whole number of tensors of %" PRIu64
                        " bytes (%s %.200s)",
                        s->in.name, s->in.size, item->size, dtype, shape);
    item->dtype = s->args.dtype;
    item->ndim = s->args.ndim;
    memcpy(item->shape, s->args.shape, sizeof item->shape);
    s->n_items++;
    return 1;
}

static int raw_read(struct source *s, void *data, struct cli_error *e)
{
    char dtype[DLX_DTYPE_NAME_SIZE], shape[SHAPE_NAME_SIZE], what[256];
    uint64_t got = 0;
    int code = source_take(s, data, s->item_size, &got, e);
    if (code < 0 || got == s->item_size)
        return code;
    (void)dlx_dtype_name(s->args.dtype, dtype);
    shape_name(s->args.shape, s->args.ndim, shape);
    (void)snprintf(what, sizeof what, "%s %.180s", dtype, shape);
    return source_lies(s, s->item_size, got, what, e);
}

static const struct source_format source_raw = {.next = raw_next, .read = raw_read};

/* ---- one set out of several files ------------------------------------------------------------ */

/* The first tensor of each, then the second of each, and so on. Each file has a source of its own,
 * a part. */

int joined_split(const char *argument, char name[JOINED_NAME_SIZE], const char **ret_file,
                 struct cli_error *e)
{
    const char *equals = strchr(argument, '='), *begin = argument, *end = equals;
    *ret_file = equals ? equals + 1 : argument;
    if (!equals && strcmp(argument, "-") == 0)
        return cli_fail(e, DLX_E_INVALID, "the standard input needs a name in a set: NAME=-");
    if (!equals || equals == argument) { /* the file's name, without folder and suffix */
        const char *slash = strrchr(*ret_file, '/');
        begin = slash ? slash + 1 : *ret_file;
        end = strrchr(begin, '.');
        if (!end || end == begin)
            end = begin + strlen(begin);
    }
    size_t size = (size_t)(end - begin);
    if (size == 0 || size >= JOINED_NAME_SIZE || !**ret_file)
        return cli_fail(e, DLX_E_INVALID,
                        "'%.255s' is not [NAME=]FILE with a name of 1 to %d bytes", argument,
                        JOINED_NAME_SIZE - 1);
    memcpy(name, begin, size);
    name[size] = '\0';
    return 0;
}

static int joined_open(struct source *s, struct cli_error *e)
{
    size_t n = s->args.n_files;
    s->parts = calloc(n, sizeof *s->parts);
    if (!s->parts)
        return cli_fail(e, DLX_E_NO_MEMORY, "out of memory");
    for (; s->n_parts < n; s->n_parts++) {
        struct joined_part *part = &s->parts[s->n_parts];
        const char *file = NULL;
        int code = joined_split(s->args.files[s->n_parts], part->name, &file, e);
        if (code < 0)
            return code;
        part->file[0] = (char *)(uintptr_t)file;
        struct source_args args = s->args;
        args.joined = false;
        args.files = part->file;
        args.n_files = 1;
        code = source_new(&part->source, &args, e);
        if (code < 0)
            return code;
    }
    return 0;
}

static void joined_close(struct source *s)
{
    for (size_t i = 0; i < s->n_parts; i++)
        source_free(s->parts[i].source);
    free(s->parts);
    s->parts = NULL;
    s->n_parts = 0;
}

static int add_part(struct source *s, size_t i, const struct source_item *item, struct cli_error *e)
{
    struct safetensors_tensor *t = &s->set->tensors[i];
    int64_t *shape = &s->set->shapes[i * NPY_NDIM_MAX];
    if (item->set)
        return cli_fail(e, DLX_E_INVALID, "%.255s: is a set itself; a set takes single tensors",
                        item->file);
    memcpy(shape, item->shape, sizeof item->shape);
    *t = (struct safetensors_tensor){.name = s->parts[i].name,
                                     .dtype = item->dtype,
                                     .ndim = item->ndim,
                                     .shape = shape,
                                     .size = item->size,
                                     .index = (uint32_t)i};
    if (__builtin_add_overflow(s->set->data_size, item->size, &s->set->data_size))
        return cli_fail(e, DLX_E_SHAPE, "the set is over the limit of 2^64 - 1 bytes");
    return 0;
}

static int joined_next(struct source *s, struct source_item *ret_item, struct cli_error *e)
{
    const char *more = NULL, *ended = NULL; /* names of files */
    s->set = calloc(1, sizeof *s->set);
    if (s->set) {
        s->set->n_tensors = (uint32_t)s->n_parts;
        s->set->tensors = calloc(s->n_parts, sizeof *s->set->tensors);
        s->set->shapes = calloc(s->n_parts, NPY_NDIM_MAX * sizeof *s->set->shapes);
    }
    if (!s->set || !s->set->tensors || !s->set->shapes)
        return cli_fail(e, DLX_E_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < s->n_parts; i++) {
        struct source_item item;
        int code = source_next(s->parts[i].source, &item, e);
        if (code > 0) {
            more = item.file;
            code = add_part(s, i, &item, e);
        } else if (code == 0) {
            ended = s->parts[i].file[0];
        }
        if (code < 0)
            return code;
    }
    if (more && ended)
        return cli_fail(e, DLX_E_INVALID, "%.255s: has no more tensors, but %.255s has", ended,
                        more);
    if (!more)
        return 0;
    *ret_item =
        (struct source_item){.set = s->set, .size = s->set->data_size, .file = s->parts[0].file[0]};
    return 1;
}

static int joined_read(struct source *s, void *const *data, struct cli_error *e)
{
    int code = 0;
    for (size_t i = 0; code == 0 && i < s->n_parts; i++)
        code = source_read(s->parts[i].source, data[i], e);
    return code;
}

/* ---- one file after the other ---------------------------------------------------------------- */

int source_new(struct source **ret, const struct source_args *args, struct cli_error *e)
{
    struct source *s = calloc(1, sizeof *s);
    if (!s)
        return cli_fail(e, DLX_E_NO_MEMORY, "out of memory");
    s->args = *args;
    s->in.fd = -1;
    int code = args->joined ? joined_open(s, e) : 0;
    if (code < 0)
        source_free(s);
    else
        *ret = s;
    return code;
}

struct source *source_free(struct source *s)
{
    if (!s)
        return NULL;
    input_close(&s->in);
    joined_close(s);
    source_npz_close(s);
    safetensors_free(s->set);
    free(s->scratch);
    free(s);
    return NULL;
}

void source_rewind(struct source *s)
{
    input_close(&s->in);
    s->format = NULL;
    s->next_file = 0;
    for (size_t i = 0; i < s->n_parts; i++)
        source_rewind(s->parts[i].source);
}

static bool source_has_suffix(const char *name, const char *suffix)
{
    size_t size = strlen(name), suffix_size = strlen(suffix);
    return size > suffix_size && strcmp(name + size - suffix_size, suffix) == 0;
}

/* Open the next file and see what it is. Returns 1, or 0 after the last one. */
static int open_next(struct source *s, struct cli_error *e)
{
    uint64_t got = 0;
    if (s->next_file >= s->args.n_files)
        return 0;
    int code = input_open(&s->in, s->args.files[s->next_file], e);
    if (code < 0)
        return code;
    s->next_file++;
    s->prefix_size = 0;
    s->n_items = 0;
    if (s->args.raw) {
        s->format = &source_raw;
        return 1;
    }
    code = input_read(&s->in, s->prefix, sizeof s->prefix, &got, e);
    if (code < 0)
        return code;
    if (got == 0)
        return cli_fail(e, DLX_E_INVALID, "%.255s: is empty", s->in.name);
    s->prefix_size = (size_t)got;
    bool set =
        source_has_suffix(s->in.name, ".safetensors") || safetensors_is(s->prefix, s->prefix_size);
    s->format = set                                 ? &source_safetensors
                : npz_is(s->prefix, s->prefix_size) ? &source_npz
                                                    : &source_npy;
    return 1;
}

int source_next(struct source *s, struct source_item *ret_item, struct cli_error *e)
{
    s->set = safetensors_free(s->set);
    if (s->parts)
        return joined_next(s, ret_item, e);
    for (;;) {
        int code = s->format ? 1 : open_next(s, e);
        if (code <= 0)
            return code;
        struct source_item item = {.file = s->in.name};
        code = s->format->next(s, &item, e);
        if (code < 0)
            return code;
        if (code > 0) {
            s->item_size = item.size;
            *ret_item = item;
            return 1;
        }
        input_close(&s->in);
        s->format = NULL;
    }
}

int source_read(struct source *s, void *data, struct cli_error *e)
{
    return s->format->read(s, data, e);
}

int source_read_set(struct source *s, void *const *data, struct cli_error *e)
{
    return s->parts ? joined_read(s, data, e) : s->format->read_set(s, data, e);
}
