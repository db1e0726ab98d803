/* SPDX-License-Identifier: Apache-2.0 */

/* One set out of several files: the first tensor of each, then the second of each, and so on. Each
 * file has a source of its own, a part. */

#include "cli/source_input.h"
#include <stdlib.h>
#include <string.h>

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

int joined_open(struct source *s, struct cli_error *e)
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

void joined_close(struct source *s)
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

int joined_next(struct source *s, struct source_item *ret_item, struct cli_error *e)
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

int joined_read(struct source *s, void *const *data, struct cli_error *e)
{
    int code = 0;
    for (size_t i = 0; code == 0 && i < s->n_parts; i++)
        code = source_read(s->parts[i].source, data[i], e);
    return code;
}
