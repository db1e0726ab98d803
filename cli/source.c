/* SPDX-License-Identifier: Apache-2.0 */

/* The files that pub reads, one after the other; their first bytes tell the format. */

#include "cli/dtype.h"
#include "cli/npz.h"
#include "cli/output.h"
#include "cli/source_input.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

int source_take(struct source *s, void *data, uint64_t size, uint64_t *ret_size,
                struct cli_error *e)
{
    *ret_size = 0;
    if (size == 0) /* `data` may be NULL */
        return 0;
    size_t ahead = s->prefix_size < size ? s->prefix_size : (size_t)size;
    memcpy(data, s->prefix, ahead);
    memmove(s->prefix, s->prefix + ahead, s->prefix_size - ahead);
    s->prefix_size -= ahead;
    uint64_t got = 0;
    int code = input_read(&s->in, (uint8_t *)data + ahead, size - ahead, &got, e);
    if (code == 0)
        *ret_size = ahead + got;
    return code;
}

int source_scratch(struct source *s, uint64_t size, struct cli_error *e)
{
    if (size <= s->scratch_size)
        return 0;
    free(s->scratch);
    s->scratch_size = 0;
    s->scratch = size <= SIZE_MAX ? malloc((size_t)size) : NULL;
    if (!s->scratch) {
        char amount[HUMAN_SIZE];
        human_bytes(size, amount);
        return cli_fail(e, DLX_E_NO_MEMORY, "%.255s: no memory for %s", s->in.name, amount);
    }
    s->scratch_size = size;
    return 0;
}

int source_lies(struct source *s, uint64_t expected, uint64_t found, const char *what,
                struct cli_error *e)
{
    if (s->n_items > 1)
        return cli_fail(e, DLX_E_INVALID,
                        "%.255s: tensor %" PRIu64 " should have %" PRIu64
                        " bytes (%s), the file has %" PRIu64 " more",
                        s->in.name, s->n_items, expected, what, found);
    return cli_fail(e, DLX_E_INVALID,
                    "%.255s: %s should have %" PRIu64 " bytes, the file has %" PRIu64, s->in.name,
                    what, expected, found);
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

const struct source_format source_raw = {.next = raw_next, .read = raw_read};
