/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/source_input.h"
#include <inttypes.h>
#include <string.h>

/* Read a line of at most Y4M_LINE_SIZE_MAX bytes, never beyond its end: a byte at a time after
 * `at_once` bytes, which must not be more than the shortest line. *ret_size 0: end of the file. */
static int read_line(struct source *s, uint8_t *line, size_t at_once, size_t *ret_size,
                     struct cli_error *e)
{
    uint64_t got = 0;
    int code = source_take(s, line, at_once, &got, e);
    size_t size = (size_t)got;
    while (code == 0 && got > 0 && size < Y4M_LINE_SIZE_MAX && line[size - 1] != '\n') {
        code = source_take(s, line + size, 1, &got, e);
        size += code == 0 ? (size_t)got : 0;
    }
    if (code == 0)
        *ret_size = size;
    return code;
}

static int read_stream_header(struct source *s, struct cli_error *e)
{
    uint8_t line[Y4M_LINE_SIZE_MAX];
    size_t size = 0;
    int code = read_line(s, line, s->prefix_size, &size, e);
    if (code < 0)
        return code;
    if (size == Y4M_LINE_SIZE_MAX && line[size - 1] != '\n' && memcmp(line, "YUV4MPEG2", 9) == 0)
        return cli_fail(e, DLX_E_LIMIT, "%.255s: YUV4MPEG2 header is longer than %d bytes",
                        s->in.name, Y4M_LINE_SIZE_MAX);
    code = y4m_header_parse(line, size, &s->y4m, e);
    return code < 0 ? cli_fail_at(e, code, s->in.name) : 0;
}

static int short_frame(struct source *s, uint64_t found, struct cli_error *e)
{
    return cli_fail(e, DLX_E_INVALID,
                    "%.255s: frame %" PRIu64 " of %u x %u should have %" PRIu64
                    " bytes, the file has %" PRIu64,
                    s->in.name, s->n_items, s->y4m.width, s->y4m.height, s->y4m.frame_size, found);
}

static int y4m_next(struct source *s, struct source_item *item, struct cli_error *e)
{
    static const char frame[] = "FRAME\n";
    uint8_t line[Y4M_LINE_SIZE_MAX];
    size_t size = 0;
    int code = 0;

    if (s->y4m.frame_size == 0)
        code = read_stream_header(s, e);
    if (code == 0)
        code = read_line(s, line, sizeof frame - 1, &size, e);
    if (code == 0 && size == 0 && s->n_items == 0)
        return cli_fail(e, DLX_E_INVALID, "%.255s: YUV4MPEG2 video without a frame", s->in.name);
    if (code < 0 || size == 0)
        return code;
    code = y4m_frame_parse(line, size, e);
    if (code < 0)
        return cli_fail(e, code,
                        "%.255s: a FRAME line is expected after %" PRIu64 " frames of %" PRIu64
                        " bytes",
                        s->in.name, s->n_items, s->y4m.frame_size);
    s->n_items++;
    if (s->in.regular) { /* before memory is asked for */
        uint64_t left = s->in.size > s->in.offset ? s->in.size - s->in.offset : 0;
        if (left < s->y4m.frame_size)
            return short_frame(s, left, e);
    }
    item->dtype = (DLDataType){.code = kDLUInt, .bits = 8, .lanes = 1};
    item->rate = s->y4m.rate_den ? (double)s->y4m.rate_num / s->y4m.rate_den : 0;
    if (s->args.yuv) {
        item->ndim = y4m_planar_shape(&s->y4m, item->shape);
        item->size = s->y4m.frame_size;
    } else {
        item->ndim = 3;
        item->shape[0] = s->y4m.height;
        item->shape[1] = s->y4m.width;
        item->shape[2] = 3;
        item->size = (uint64_t)s->y4m.width * s->y4m.height * 3;
    }
    return 1;
}

static int y4m_read(struct source *s, void *data, struct cli_error *e)
{
    uint64_t size = s->y4m.frame_size, got = 0;
    int code = 0;
    void *into = data;
    if (!s->args.yuv) {
        code = source_scratch(s, size, e);
        into = s->scratch;
    }
    if (code == 0)
        code = source_take(s, into, size, &got, e);
    if (code < 0)
        return code;
    if (got != size)
        return short_frame(s, got, e);
    if (!s->args.yuv)
        y4m_to_rgb(&s->y4m, s->args.matrix, into, data);
    return 0;
}

const struct source_format source_y4m = {.next = y4m_next, .read = y4m_read};
