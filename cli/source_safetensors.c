/* SPDX-License-Identifier: Apache-2.0 */

/* A .safetensors file as a source of messages: one set. */

#include "cli/source_input.h"
#include <inttypes.h>
#include <stdlib.h>

/* Prefix and header; the file stands at the data then. */
static int safetensors_read_header(struct source *s, struct cli_error *e)
{
    uint8_t prefix[SAFETENSORS_PREFIX_SIZE];
    uint64_t got = 0, data_size = SAFETENSORS_SIZE_UNKNOWN;
    size_t size = 0;
    int code = source_take(s, prefix, sizeof prefix, &got, e);
    if (code < 0)
        return code;
    code = safetensors_header_size(prefix, (size_t)got,
                                   s->in.regular ? s->in.size : SAFETENSORS_SIZE_UNKNOWN, &size, e);
    if (code < 0)
        return cli_fail_at(e, code, s->in.name);
    char *header = malloc(size + 1);
    if (!header)
        return cli_fail(e, DLX_E_NO_MEMORY, "%.255s: no memory for a header of %zu bytes",
                        s->in.name, size);
    code = source_take(s, header, size, &got, e);
    if (code == 0 && got < size)
        code = cli_fail(e, DLX_E_INVALID,
                        "%.255s: .safetensors header of %zu bytes is larger than the file, which "
                        "ends after %" PRIu64 " of them",
                        s->in.name, size, got);
    else if (code == 0) {
        if (s->in.regular) /* checked before memory is asked for */
            data_size = s->in.size - sizeof prefix - size;
        code = safetensors_parse(&s->set, header, size, data_size, e);
        if (code < 0)
            (void)cli_fail_at(e, code, s->in.name);
    }
    free(header);
    return code;
}

static int safetensors_next(struct source *s, struct source_item *item, struct cli_error *e)
{
    if (s->n_items > 0)
        return 0;
    if (s->args.dtype.bits)
        return cli_fail(e, DLX_E_INVALID,
                        "%.255s: --dtype alone is for .npy; .safetensors says the types itself",
                        s->in.name);
    int code = safetensors_read_header(s, e);
    if (code < 0)
        return code;
    s->n_items++;
    item->set = s->set;
    item->size = s->set->data_size;
    return 1;
}

/* Nothing may follow, which is known of a pipe only now. */
static int check_end(struct source *s, struct cli_error *e)
{
    uint8_t byte;
    uint64_t got = 0;
    int code = s->in.regular ? 0 : source_take(s, &byte, 1, &got, e);
    if (code < 0 || got == 0)
        return code;
    return cli_fail(e, DLX_E_INVALID,
                    "%.255s: the tensors have %" PRIu64 " bytes, the file has more bytes of data",
                    s->in.name, s->set->data_size);
}

/* Straight into the tensors' memory, many at once. Nothing was read ahead: a header that was
 * accepted is longer than what that takes. */
static int safetensors_read_set(struct source *s, void *const *data, struct cli_error *e)
{
    const struct safetensors *set = s->set;
    uint64_t got = 0;
    struct iovec *pieces = calloc(set->n_tensors, sizeof *pieces);
    if (!pieces)
        return cli_fail(e, DLX_E_NO_MEMORY, "out of memory");
    for (uint32_t i = 0; i < set->n_tensors; i++)
        pieces[i] = (struct iovec){.iov_base = data[i], .iov_len = (size_t)set->tensors[i].size};
    int code = input_read_pieces(&s->in, pieces, set->n_tensors, &got, e);
    free(pieces);
    if (code == 0 && got != set->data_size)
        code = cli_fail(e, DLX_E_INVALID,
                        "%.255s: the tensors have %" PRIu64 " bytes, the file ended after %" PRIu64
                        " of them",
                        s->in.name, set->data_size, got);
    return code < 0 ? code : check_end(s, e);
}

const struct source_format source_safetensors = {.next = safetensors_next,
                                                 .read_set = safetensors_read_set};
