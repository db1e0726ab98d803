/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/y4m.h"
#include <string.h>

static const char stream_magic[] = "YUV4MPEG2";
static const char frame_magic[] = "FRAME";

struct token {
    const uint8_t *p;
    size_t size;
};

/* The next parameter of a line: what stands between single or repeated spaces. */
static bool next_token(const uint8_t **p, const uint8_t *end, struct token *ret)
{
    while (*p < end && **p == ' ')
        (*p)++;
    ret->p = *p;
    while (*p < end && **p != ' ')
        (*p)++;
    ret->size = (size_t)(*p - ret->p);
    return ret->size > 0;
}

static bool token_is(struct token t, const char *text)
{
    return t.size == strlen(text) && memcmp(t.p, text, t.size) == 0;
}

/* A number of digits only that fills [p, end). */
static bool parse_number(const uint8_t *p, const uint8_t *end, uint32_t max, uint32_t *ret)
{
    uint64_t n = 0;
    if (p >= end)
        return false;
    for (; p < end; p++) {
        if (*p < '0' || *p > '9')
            return false;
        n = n * 10 + (uint64_t)(*p - '0');
        if (n > max)
            return false;
    }
    *ret = (uint32_t)n;
    return true;
}

static int parse_side(struct token t, uint32_t *ret, struct cli_error *e)
{
    if (!parse_number(t.p + 1, t.p + t.size, Y4M_SIDE_MAX, ret) || *ret == 0)
        return cli_fail(e, DLX_E_LIMIT, "YUV4MPEG2 header has %s %.*s; it must be 1 to %d",
                        t.p[0] == 'W' ? "width" : "height", (int)(t.size > 20 ? 20 : t.size - 1),
                        (const char *)t.p + 1, Y4M_SIDE_MAX);
    return 0;
}

static int parse_rate(struct token t, struct y4m_header *h, struct cli_error *e)
{
    const uint8_t *colon = memchr(t.p, ':', t.size);
    if (!colon || !parse_number(t.p + 1, colon, UINT32_MAX, &h->rate_num) ||
        !parse_number(colon + 1, t.p + t.size, UINT32_MAX, &h->rate_den))
        return cli_fail(e, DLX_E_INVALID, "YUV4MPEG2 header has a malformed frame rate");
    if (h->rate_num == 0 || h->rate_den == 0)
        h->rate_num = h->rate_den = 0; /* 0:0 means unknown */
    return 0;
}

/* All 4:2:0 with 8 bits are the same here: they differ in where the chroma samples lie, which
 * repeating them does not honour. */
static int parse_chroma(struct token t, struct y4m_header *h, struct cli_error *e)
{
    static const struct {
        const char *name;
        enum y4m_chroma chroma;
    } known[] = {
        {"C420jpeg", Y4M_420}, {"C420mpeg2", Y4M_420}, {"C420paldv", Y4M_420}, {"C420", Y4M_420},
        {"C422", Y4M_422},     {"C444", Y4M_444},      {"Cmono", Y4M_MONO},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (token_is(t, known[i].name)) {
            h->chroma = known[i].chroma;
            return 0;
        }
    char name[25] = "";
    for (size_t i = 0; i < t.size && i + 1 < sizeof name; i++)
        name[i] = t.p[i] > 0x20 && t.p[i] < 0x7f ? (char)t.p[i] : '?';
    return cli_fail(
        e, DLX_E_SHAPE,
        "YUV4MPEG2 pixel format %s is not supported (C420jpeg, C420mpeg2, C420paldv, C420, "
        "C422, C444 and Cmono are; ffmpeg: -pix_fmt yuv420p)",
        name);
}

static void set_sizes(struct y4m_header *h)
{
    uint64_t pixels = (uint64_t)h->width * h->height;
    switch (h->chroma) {
    case Y4M_420:
        h->chroma_width = (h->width + 1) / 2;
        h->chroma_height = (h->height + 1) / 2;
        break;
    case Y4M_422:
        h->chroma_width = (h->width + 1) / 2;
        h->chroma_height = h->height;
        break;
    case Y4M_444:
        h->chroma_width = h->width;
        h->chroma_height = h->height;
        break;
    case Y4M_MONO:
        break;
    }
    h->frame_size = pixels + 2 * (uint64_t)h->chroma_width * h->chroma_height;
}

static size_t without_newline(const uint8_t *line, size_t size)
{
    return size > 0 && line[size - 1] == '\n' ? size - 1 : size;
}

int y4m_header_parse(const uint8_t *line, size_t size, struct y4m_header *ret_header,
                     struct cli_error *e)
{
    if (size > Y4M_LINE_SIZE_MAX)
        return cli_fail(e, DLX_E_LIMIT, "YUV4MPEG2 header is longer than %d bytes",
                        Y4M_LINE_SIZE_MAX);
    const uint8_t *p = line, *end = line + without_newline(line, size);
    struct y4m_header h = {.chroma = Y4M_420};
    struct token t;
    int code = 0;

    if (size == 0 || !next_token(&p, end, &t) || t.p != line || !token_is(t, stream_magic))
        return cli_fail(e, DLX_E_INVALID, "not YUV4MPEG2 (it does not begin with \"YUV4MPEG2 \")");
    while (code == 0 && next_token(&p, end, &t)) {
        switch (t.p[0]) {
        case 'W':
            code = parse_side(t, &h.width, e);
            break;
        case 'H':
            code = parse_side(t, &h.height, e);
            break;
        case 'F':
            code = parse_rate(t, &h, e);
            break;
        case 'C':
            code = parse_chroma(t, &h, e);
            break;
        case 'X':
            if (token_is(t, "XCOLORRANGE=FULL"))
                h.full_range = true;
            break;
        case 'I': /* interlacing: the fields are published as they lie */
        case 'A': /* pixel aspect */
            break;
        default:
            code = cli_fail(e, DLX_E_INVALID,
                            "YUV4MPEG2 header has an unknown parameter at byte %td", t.p - line);
            break;
        }
    }
    if (code < 0)
        return code;
    if (h.width == 0 || h.height == 0)
        return cli_fail(e, DLX_E_INVALID, "YUV4MPEG2 header lacks its %s",
                        h.width == 0 ? "width" : "height");
    set_sizes(&h);
    *ret_header = h;
    return 0;
}

int y4m_frame_parse(const uint8_t *line, size_t size, struct cli_error *e)
{
    const uint8_t *p = line, *end = line + (size ? without_newline(line, size) : 0);
    struct token t;
    if (size == 0 || size > Y4M_LINE_SIZE_MAX || !next_token(&p, end, &t) || t.p != line ||
        !token_is(t, frame_magic))
        return cli_fail(e, DLX_E_INVALID, "a FRAME line is expected");
    return 0;
}

int32_t y4m_planar_shape(const struct y4m_header *h, int64_t shape[3])
{
    bool even_width = h->width % 2 == 0, even_height = h->height % 2 == 0;
    shape[0] = (int64_t)h->frame_size;
    if (h->chroma == Y4M_444) {
        shape[0] = 3;
        shape[1] = h->height;
        shape[2] = h->width;
        return 3;
    }
    if ((h->chroma == Y4M_420 && even_width && even_height) ||
        (h->chroma == Y4M_422 && even_width) || h->chroma == Y4M_MONO) {
        shape[0] = (int64_t)(h->frame_size / h->width);
        shape[1] = h->width;
        return 2;
    }
    return 1;
}

/* -- conversion
 * ------------------------------------------------------------------------------------ */

enum { FIXED_BITS = 16 };

/* Factors in 1 / 2^16: of Y, of Cr in R, of Cb and Cr in G, of Cb in B. */
struct factors {
    int32_t y, r_cr, g_cb, g_cr, b_cb, y_offset;
};

static int32_t fixed(double x)
{
    return (int32_t)(x * (1 << FIXED_BITS) + (x < 0 ? -0.5 : 0.5));
}

static struct factors make_factors(const struct y4m_header *h, enum y4m_matrix matrix)
{
    if (matrix == Y4M_MATRIX_AUTO)
        matrix = h->height >= 720 ? Y4M_MATRIX_BT709 : Y4M_MATRIX_BT601;
    double kr = matrix == Y4M_MATRIX_BT709 ? 0.2126 : 0.299;
    double kb = matrix == Y4M_MATRIX_BT709 ? 0.0722 : 0.114;
    double kg = 1.0 - kr - kb;
    double y = h->full_range ? 1.0 : 255.0 / 219.0, c = h->full_range ? 1.0 : 255.0 / 224.0;
    return (struct factors){
        .y = fixed(y),
        .r_cr = fixed(2.0 * (1.0 - kr) * c),
        .g_cb = fixed(-2.0 * kb * (1.0 - kb) / kg * c),
        .g_cr = fixed(-2.0 * kr * (1.0 - kr) / kg * c),
        .b_cb = fixed(2.0 * (1.0 - kb) * c),
        .y_offset = h->full_range ? 0 : 16,
    };
}

static inline uint8_t clamp(int32_t fixed_value)
{
    int32_t v = fixed_value >> FIXED_BITS;
    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
}

struct chroma_terms {
    int32_t r, g, b;
};

static inline struct chroma_terms terms(const struct factors *f, uint8_t cb, uint8_t cr)
{
    int32_t u = cb - 128, v = cr - 128, half = 1 << (FIXED_BITS - 1);
    return (struct chroma_terms){f->r_cr * v + half, f->g_cb * u + f->g_cr * v + half,
                                 f->b_cb * u + half};
}

static inline void put(const struct factors *f, struct chroma_terms c, uint8_t luma, uint8_t *rgb)
{
    int32_t y = f->y * (luma - f->y_offset);
    rgb[0] = clamp(y + c.r);
    rgb[1] = clamp(y + c.g);
    rgb[2] = clamp(y + c.b);
}

static void row_half(const struct factors *f, uint32_t width, const uint8_t *y, const uint8_t *cb,
                     const uint8_t *cr, uint8_t *rgb)
{
    uint32_t x = 0;
    for (; x + 1 < width; x += 2) {
        struct chroma_terms c = terms(f, cb[x / 2], cr[x / 2]);
        put(f, c, y[x], rgb + (size_t)x * 3);
        put(f, c, y[x + 1], rgb + (size_t)x * 3 + 3);
    }
    if (x < width)
        put(f, terms(f, cb[x / 2], cr[x / 2]), y[x], rgb + (size_t)x * 3);
}

static void row_full(const struct factors *f, uint32_t width, const uint8_t *y, const uint8_t *cb,
                     const uint8_t *cr, uint8_t *rgb)
{
    for (uint32_t x = 0; x < width; x++)
        put(f, terms(f, cb[x], cr[x]), y[x], rgb + (size_t)x * 3);
}

static void row_mono(const struct factors *f, uint32_t width, const uint8_t *y, uint8_t *rgb)
{
    struct chroma_terms none = terms(f, 128, 128);
    for (uint32_t x = 0; x < width; x++)
        put(f, none, y[x], rgb + (size_t)x * 3);
}

void y4m_to_rgb(const struct y4m_header *h, enum y4m_matrix matrix, const uint8_t *frame,
                uint8_t *rgb)
{
    struct factors f = make_factors(h, matrix);
    size_t width = h->width, chroma_width = h->chroma_width;
    const uint8_t *cb_plane = frame + width * h->height;
    const uint8_t *cr_plane = cb_plane + chroma_width * h->chroma_height;

    for (uint32_t line = 0; line < h->height; line++) {
        const uint8_t *y = frame + line * width;
        size_t chroma_line = h->chroma == Y4M_420 ? line / 2 : line;
        const uint8_t *cb = cb_plane + chroma_line * chroma_width;
        const uint8_t *cr = cr_plane + chroma_line * chroma_width;
        uint8_t *out = rgb + line * width * 3;
        if (h->chroma == Y4M_MONO)
            row_mono(&f, h->width, y, out);
        else if (h->chroma == Y4M_444)
            row_full(&f, h->width, y, cb, cr, out);
        else
            row_half(&f, h->width, y, cb, cr, out);
    }
}
