/* SPDX-License-Identifier: Apache-2.0 */

/* The header of NumPy's .npy format, versions 1 to 3: a Python dictionary of three keys. */

#include "cli/npy.h"
#include "cli/dtype.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint8_t magic[6] = {0x93, 'N', 'U', 'M', 'P', 'Y'};

bool npy_is(const uint8_t *data, size_t size)
{
    return size >= sizeof magic && memcmp(data, magic, sizeof magic) == 0;
}

static size_t prefix_size(const uint8_t *data)
{
    return data[6] == 1 ? 10 : 12;
}

int npy_header_size(const uint8_t *data, size_t size, size_t *ret_size, struct cli_error *e)
{
    if (size < NPY_PREFIX_SIZE || !npy_is(data, size))
        return cli_fail(e, DLX_E_INVALID,
                        "not a .npy file (%s); raw bytes need --dtype and --shape",
                        size < NPY_PREFIX_SIZE ? "too short" : "it does not begin with \\x93NUMPY");
    if (data[6] < 1 || data[6] > 3)
        return cli_fail(e, DLX_E_INVALID,
                        ".npy format version %u.%u is not known (1.0, 2.0 and 3.0 are)", data[6],
                        data[7]);
    uint64_t header = (uint64_t)data[8] | (uint64_t)data[9] << 8;
    if (data[6] != 1)
        header |= (uint64_t)data[10] << 16 | (uint64_t)data[11] << 24;
    uint64_t total = prefix_size(data) + header;
    if (total > NPY_HEADER_SIZE_MAX)
        return cli_fail(e, DLX_E_LIMIT, ".npy header of %" PRIu64 " bytes is over the limit of %d",
                        total, NPY_HEADER_SIZE_MAX);
    if (total < NPY_PREFIX_SIZE)
        return cli_fail(e, DLX_E_INVALID, ".npy header is empty");
    *ret_size = (size_t)total;
    return 0;
}

/* ---- the dictionary -------------------------------------------------------------------------- */

struct reader {
    const uint8_t *p, *end, *begin;
    struct cli_error *e;
};

static int malformed(struct reader *r, const char *what)
{
    return cli_fail(r->e, DLX_E_INVALID, ".npy header is malformed: %s at byte %td", what,
                    r->p - r->begin);
}

static void skip_space(struct reader *r)
{
    while (r->p < r->end && (*r->p == ' ' || *r->p == '\t' || *r->p == '\n' || *r->p == '\r'))
        r->p++;
}

static bool accept(struct reader *r, char c)
{
    skip_space(r);
    if (r->p >= r->end || *r->p != (uint8_t)c)
        return false;
    r->p++;
    return true;
}

static bool accept_word(struct reader *r, const char *word)
{
    size_t size = strlen(word);
    skip_space(r);
    if ((size_t)(r->end - r->p) < size || memcmp(r->p, word, size) != 0)
        return false;
    r->p += size;
    return true;
}

/* A string in either kind of quotes, with Python 2's u or b in front; printable ASCII, no escapes.
 */
static int read_string(struct reader *r, char *text, size_t size)
{
    skip_space(r);
    if (r->end - r->p >= 2 && (*r->p == 'u' || *r->p == 'b') && (r->p[1] == '\'' || r->p[1] == '"'))
        r->p++;
    if (r->p >= r->end || (*r->p != '\'' && *r->p != '"'))
        return malformed(r, "a string is expected");
    uint8_t quote = *r->p++;
    size_t n = 0;
    for (; r->p < r->end && *r->p != quote; r->p++) {
        if (*r->p < 0x20 || *r->p > 0x7e || *r->p == '\\')
            return malformed(r, "a string with other than plain ASCII");
        if (n + 1 >= size)
            return malformed(r, "a string that is too long");
        text[n++] = (char)*r->p;
    }
    if (r->p >= r->end)
        return malformed(r, "a string without an end");
    r->p++;
    text[n] = '\0';
    return 0;
}

static int read_dimension(struct reader *r, int64_t *ret)
{
    skip_space(r);
    if (r->p < r->end && *r->p == '-')
        return cli_fail(r->e, DLX_E_SHAPE, ".npy header has a negative size in its shape");
    if (r->p >= r->end || *r->p < '0' || *r->p > '9')
        return malformed(r, "a size is expected");
    int64_t n = 0;
    for (; r->p < r->end && *r->p >= '0' && *r->p <= '9'; r->p++)
        if (__builtin_mul_overflow(n, 10, &n) || __builtin_add_overflow(n, *r->p - '0', &n))
            return cli_fail(r->e, DLX_E_SHAPE,
                            ".npy header has a size in its shape that is over 2^63 - 1");
    if (r->p < r->end && *r->p == 'L')
        r->p++; /* Python 2 */
    *ret = n;
    return 0;
}

/* A tuple: "()", "(3,)", "(3, 4)", "(3, 4, )"; "(3)" is a number and not a shape. */
static int read_shape(struct reader *r, struct npy_header *h)
{
    if (!accept(r, '('))
        return malformed(r, "the shape is not a tuple");
    bool comma = true;
    while (!accept(r, ')')) {
        if (!comma)
            return malformed(r, "a comma is expected in the shape");
        if (h->ndim >= NPY_NDIM_MAX)
            return cli_fail(r->e, DLX_E_SHAPE, ".npy header has more than %d dimensions",
                            NPY_NDIM_MAX);
        int64_t n = 0;
        int code = read_dimension(r, &n);
        if (code < 0)
            return code;
        h->shape[h->ndim++] = n;
        comma = accept(r, ',');
    }
    if (h->ndim == 1 && !comma)
        return malformed(r, "the shape is not a tuple");
    return 0;
}

enum { KEY_DESCR = 1, KEY_FORTRAN_ORDER = 2, KEY_SHAPE = 4, KEYS = 7 };

static int read_entry(struct reader *r, struct npy_header *h, unsigned *seen)
{
    char key[24];
    unsigned bit;
    int code = read_string(r, key, sizeof key);
    if (code < 0)
        return code;
    if (strcmp(key, "descr") == 0)
        bit = KEY_DESCR;
    else if (strcmp(key, "fortran_order") == 0)
        bit = KEY_FORTRAN_ORDER;
    else if (strcmp(key, "shape") == 0)
        bit = KEY_SHAPE;
    else
        return malformed(r, "a key that is none of descr, fortran_order and shape");
    if (*seen & bit)
        return malformed(r, "a key that was there before");
    *seen |= bit;
    if (!accept(r, ':'))
        return malformed(r, "a colon is expected");
    if (bit == KEY_SHAPE)
        return read_shape(r, h);
    if (bit == KEY_FORTRAN_ORDER) {
        h->fortran_order = accept_word(r, "True");
        if (!h->fortran_order && !accept_word(r, "False"))
            return malformed(r, "fortran_order is neither True nor False");
        return 0;
    }
    skip_space(r);
    if (r->p < r->end && *r->p == '[')
        return cli_fail(r->e, DLX_E_SHAPE,
                        "structured data types cannot be carried; publish the fields one by one");
    return read_string(r, h->descr, sizeof h->descr);
}

static int read_dict(struct reader *r, struct npy_header *h)
{
    unsigned seen = 0;
    bool comma = true;
    if (!accept(r, '{'))
        return malformed(r, "a dictionary is expected");
    while (!accept(r, '}')) {
        if (!comma)
            return malformed(r, "a comma is expected");
        int code = read_entry(r, h, &seen);
        if (code < 0)
            return code;
        comma = accept(r, ',');
    }
    skip_space(r);
    if (r->p < r->end)
        return malformed(r, "something after the dictionary");
    if (seen != KEYS)
        return cli_fail(r->e, DLX_E_INVALID, ".npy header lacks its %s",
                        !(seen & KEY_DESCR)           ? "descr"
                        : !(seen & KEY_FORTRAN_ORDER) ? "fortran_order"
                                                      : "shape");
    return 0;
}

/* ---- data types ------------------------------------------------------------------------------ */

static const char *cannot_copy_retained(char kind)
{
    switch (kind) {
    case 'O':
        return "Python objects (pickles) cannot be carried, and are never loaded";
    case 'S':
    case 'a':
    case 'U':
        return "text cannot be carried";
    default:
        return NULL;
    }
}

/* DLPack's type for a kind and a size, or bits 0. Long double has padding: no type for it. */
static DLDataType carried_type(char kind, uint64_t item_size)
{
    DLDataType t = {.lanes = 1};
    bool int_size = item_size == 1 || item_size == 2 || item_size == 4 || item_size == 8;
    bool ok = false;
    switch (kind) {
    case 'b':
        t.code = kDLBool;
        ok = item_size == 1;
        break;
    case 'i':
        t.code = kDLInt;
        ok = int_size;
        break;
    case 'u':
        t.code = kDLUInt;
        ok = int_size;
        break;
    case 'f':
        t.code = kDLFloat;
        ok = int_size && item_size != 1;
        break;
    case 'c':
        t.code = kDLComplex;
        ok = item_size == 8 || item_size == 16;
        break;
    default:
        break;
    }
    t.bits = ok ? (uint8_t)(item_size * 8) : 0;
    return t;
}

/* "<f4", "|u1", ">c16", "=i8", "f4", "|V2", "<M8[ns]". */
static int parse_descr(struct npy_header *h, struct cli_error *e)
{
    const char *p = h->descr;
    bool big = *p == '>';
    if (*p == '<' || *p == '>' || *p == '|' || *p == '=')
        p++;
    char kind = *p;
    const char *why = cannot_copy_retained(kind);
    if (why)
        return cli_fail(e, DLX_E_SHAPE, "data type '%s': %s", h->descr, why);
    if (kind == '?') {
        h->dtype = carried_type('b', 1);
        h->item_size = 1;
        return p[1] ? cli_fail(e, DLX_E_INVALID, "data type '%s' is not known", h->descr) : 0;
    }
    uint64_t size = 0;
    const char *digits = kind ? p + 1 : p;
    for (p = digits; *p >= '0' && *p <= '9' && size < 1U << 20; p++)
        size = size * 10 + (uint64_t)(*p - '0');
    bool time = kind == 'm' || kind == 'M';
    if (p == digits || !strchr("biufcVmM", kind) || (*p && !(time && *p == '[')))
        return cli_fail(e, DLX_E_SHAPE, "data type '%s' is not known", h->descr);
    if (size == 0 || size > 1U << 20)
        return cli_fail(e, DLX_E_SHAPE, "data type '%s': items of %" PRIu64 " bytes", h->descr,
                        size);
    h->item_size = (uint32_t)size;
    h->dtype = carried_type(kind, size);
    if (big && size > 1 && kind != 'V')
        h->swap_size = kind == 'c' ? h->item_size / 2 : h->item_size;
    return 0;
}

static int finish(struct npy_header *h, struct cli_error *e)
{
    char name[SHAPE_NAME_SIZE];
    int code = parse_descr(h, e);
    if (code < 0)
        return code;
    if (!shape_items(h->shape, h->ndim, &h->n_items) ||
        __builtin_mul_overflow(h->n_items, (uint64_t)h->item_size, &h->data_size) ||
        h->data_size > INT64_MAX) {
        shape_name(h->shape, h->ndim, name);
        return cli_fail(e, DLX_E_SHAPE,
                        "shape %.300s of items of %u bytes is over the limit of 2^63 - 1 bytes",
                        name, h->item_size);
    }
    int n_wide = 0;
    for (int32_t i = 0; i < h->ndim; i++)
        n_wide += h->shape[i] > 1;
    h->fortran_order = h->fortran_order && n_wide > 1 && h->n_items > 0;
    return 0;
}

int npy_header_parse(const uint8_t *data, size_t size, struct npy_header *ret_header,
                     struct cli_error *e)
{
    size_t total = 0;
    int code = npy_header_size(data, size, &total, e);
    if (code < 0)
        return code;
    if (size < total)
        return cli_fail(e, DLX_E_INVALID, ".npy header has %zu bytes, the file only %zu", total,
                        size);
    struct npy_header h = {.header_size = total};
    struct reader r = {.p = data + prefix_size(data), .end = data + total, .begin = data, .e = e};
    code = read_dict(&r, &h);
    if (code == 0)
        code = finish(&h, e);
    if (code == 0)
        *ret_header = h;
    return code;
}

int npy_header_set_dtype(struct npy_header *header, DLDataType dtype, struct cli_error *e)
{
    char name[DLX_DTYPE_NAME_SIZE];
    if ((uint64_t)dtype.bits * dtype.lanes != (uint64_t)header->item_size * 8) {
        (void)dlx_dtype_name(dtype, name);
        return cli_fail(e, DLX_E_SHAPE, "--dtype %s has %u bits an item, the file's '%s' has %u",
                        name, (unsigned)dtype.bits * dtype.lanes, header->descr,
                        header->item_size * 8);
    }
    header->dtype = dtype;
    return 0;
}

/* ---- data ------------------------------------------------------------------------------------ */

void npy_swap(void *data, uint64_t size, uint32_t unit_size)
{
    uint8_t *p = data;
    if (unit_size < 2)
        return;
    for (uint64_t at = 0; at + unit_size <= size; at += unit_size)
        for (uint32_t i = 0; i < unit_size / 2; i++) {
            uint8_t low = p[at + i];
            p[at + i] = p[at + unit_size - 1 - i];
            p[at + unit_size - 1 - i] = low;
        }
}

static void copy_strided(uint8_t *to, const uint8_t *from, uint64_t n, uint64_t stride,
                         uint32_t size)
{
    switch (size) { /* constant sizes: the copies become single loads and stores */
    case 1:
        for (uint64_t i = 0; i < n; i++)
            to[i] = from[i * stride];
        break;
    case 2:
        for (uint64_t i = 0; i < n; i++)
            memcpy(to + i * 2, from + i * stride, 2);
        break;
    case 4:
        for (uint64_t i = 0; i < n; i++)
            memcpy(to + i * 4, from + i * stride, 4);
        break;
    case 8:
        for (uint64_t i = 0; i < n; i++)
            memcpy(to + i * 8, from + i * stride, 8);
        break;
    default:
        for (uint64_t i = 0; i < n; i++)
            memcpy(to + i * size, from + i * stride, size);
        break;
    }
}

void npy_transpose(const struct npy_header *header, const void *from, void *to)
{
    uint64_t stride[NPY_NDIM_MAX]; /* bytes, of `from` */
    int64_t index[NPY_NDIM_MAX] = {0};
    uint64_t step = header->item_size;
    int32_t last = header->ndim - 1;

    if (header->n_items == 0)
        return;
    if (header->ndim == 0) {
        memcpy(to, from, header->item_size);
        return;
    }
    for (int32_t i = 0; i < header->ndim; i++) {
        stride[i] = step;
        step *= (uint64_t)header->shape[i];
    }
    uint64_t row = (uint64_t)header->shape[last], offset = 0;
    for (uint8_t *out = to;; out += row * header->item_size) {
        copy_strided(out, (const uint8_t *)from + offset, row, stride[last], header->item_size);
        int32_t d = last - 1;
        for (; d >= 0; d--) {
            offset += stride[d];
            if (++index[d] < header->shape[d])
                break;
            offset -= stride[d] * (uint64_t)header->shape[d];
            index[d] = 0;
        }
        if (d < 0)
            return;
    }
}
