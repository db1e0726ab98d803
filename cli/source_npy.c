/* SPDX-License-Identifier: Apache-2.0 */

/* A file of one or more arrays in the .npy format, as a source of messages. */

#include "cli/dtype.h"
#include "cli/source_input.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void describe(const struct npy_header *h, char what[256])
{
    char shape[SHAPE_NAME_SIZE];
    shape_name(h->shape, h->ndim, shape);
    (void)snprintf(what, 256, "'%s' %.180s", h->descr, shape);
}

/* A file whose size is known is checked before memory is asked for. More arrays may follow the
 * first, as several np.save() to one file make them; anything else that follows is a lie. */
static int check_size(struct source *s, struct cli_error *e)
{
    char what[256];
    if (!s->in.regular)
        return 0;
    uint64_t left = s->in.size - (s->in.offset < s->in.size ? s->in.offset : s->in.size);
    if (left >= s->npy.data_size)
        return 0;
    describe(&s->npy, what);
    return source_lies(s, s->npy.data_size, left, what, e);
}

/* Read the header; 0 at the end of the file. */
static int npy_read_header(struct source *s, struct cli_error *e)
{
    uint8_t header[NPY_HEADER_SIZE_MAX];
    uint64_t got = 0;
    size_t total = 0;
    char what[256];

    int code = source_take(s, header, NPY_PREFIX_SIZE, &got, e);
    if (code < 0)
        return code;
    if (got == 0 && s->n_items > 0)
        return 0;
    if (s->n_items > 0 && !npy_is(header, (size_t)got)) {
        uint64_t rest =
            got + (s->in.regular && s->in.size > s->in.offset ? s->in.size - s->in.offset : 0);
        describe(&s->npy, what);
        return cli_fail(e, DLX_E_INVALID,
                        "%.255s: %s should have %" PRIu64 " bytes, the file has %s%" PRIu64 "%s",
                        s->in.name, what, s->npy.data_size, s->in.regular ? "" : "at least ",
                        s->npy.data_size + rest, s->in.regular ? "" : " (more follows)");
    }
    code = npy_header_size(header, (size_t)got, &total, e);
    if (code < 0)
        return cli_fail_at(e, code, s->in.name);
    uint64_t rest = 0;
    code = source_take(s, header + got, total - got, &rest, e);
    if (code < 0)
        return code;
    code = npy_header_parse(header, (size_t)(got + rest), &s->npy, e);
    return code < 0 ? cli_fail_at(e, code, s->in.name) : 1;
}

static int npy_next(struct source *s, struct source_item *item, struct cli_error *e)
{
    int code = npy_read_header(s, e);
    if (code <= 0)
        return code;
    s->n_items++;
    if (s->args.dtype.bits) {
        code = npy_header_set_dtype(&s->npy, s->args.dtype, e);
        if (code < 0)
            return cli_fail_at(e, code, s->in.name);
    }
    if (s->npy.dtype.bits == 0)
        return cli_fail(
            e, DLX_E_SHAPE,
            "%.255s: data type '%s' has no DLPack type; --dtype takes its items of %u bytes "
            "for another type of that size",
            s->in.name, s->npy.descr, s->npy.item_size);
    code = check_size(s, e);
    if (code < 0)
        return code;
    item->dtype = s->npy.dtype;
    item->ndim = s->npy.ndim;
    memcpy(item->shape, s->npy.shape, sizeof item->shape);
    item->size = s->npy.data_size;
    return 1;
}

static int npy_read(struct source *s, void *data, struct cli_error *e)
{
    uint64_t size = s->npy.data_size, got = 0;
    void *into = data;
    char what[256];
    int code;

    if (s->npy.fortran_order) { /* the one case that needs memory of its own */
        code = source_scratch(s, size, e);
        if (code < 0)
            return code;
        into = s->scratch;
    }
    code = source_take(s, into, size, &got, e);
    if (code < 0)
        return code;
    if (got != size) {
        describe(&s->npy, what);
        return source_lies(s, size, got, what, e);
    }
    npy_swap(into, size, s->npy.swap_size);
    if (s->npy.fortran_order)
        npy_transpose(&s->npy, into, data);
    return 0;
}

const struct source_format source_npy = {.next = npy_next, .read = npy_read};
