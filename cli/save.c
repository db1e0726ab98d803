/* SPDX-License-Identifier: Apache-2.0 */

/* Names of saved files, and what is saved of a message in each format. */

#include "cli/save.h"
#include "cli/npy.h"
#include "cli/safetensors.h"
#include "cli/tensor.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIGITS_DEFAULT = 6, DIGITS_MAX = 20 };

/* ---- names ----------------------------------------------------------------------------------- */

/* A %d or %0Nd at `p`: its length and width. Returns 0 when it is something else. */
static size_t number_field(const char *p, int *ret_width)
{
    size_t n = 1;
    int width = 0;
    for (; p[n] >= '0' && p[n] <= '9'; n++) {
        width = width * 10 + (p[n] - '0');
        if (width > DIGITS_MAX)
            return 0;
    }
    if (p[n] != 'd' || (n > 1 && p[1] != '0'))
        return 0;
    *ret_width = width;
    return n + 1;
}

int save_pattern_check(const char *pattern, struct cli_error *e)
{
    int width, n_fields = 0;
    for (const char *p = pattern; *p; p++) {
        if (*p != '%')
            continue;
        if (p[1] == '%') {
            p++;
            continue;
        }
        size_t n = number_field(p, &width);
        if (n == 0)
            return cli_fail(
                e, DLX_E_INVALID,
                "file name '%.255s': only %%d, %%0Nd (N up to %d) and %%%% may follow %%", pattern,
                DIGITS_MAX);
        n_fields++;
        p += n - 1;
    }
    if (n_fields > 1)
        return cli_fail(e, DLX_E_INVALID, "file name '%.255s' has more than one %%d", pattern);
    return *pattern ? 0 : cli_fail(e, DLX_E_INVALID, "the file name is empty");
}

/* Where a number goes in a name without a field: before the last suffix of the last component. */
static const char *suffix_of(const char *pattern)
{
    const char *slash = strrchr(pattern, '/'), *base = slash ? slash + 1 : pattern;
    const char *dot = strrchr(base, '.');
    return dot && dot != base ? dot : base + strlen(base);
}

/* Has it a %d or %0Nd? */
static bool has_number(const char *pattern)
{
    for (const char *p = pattern; *p; p++) {
        if (p[0] == '%' && p[1] == '%')
            p++;
        else if (p[0] == '%')
            return true;
    }
    return false;
}

bool save_pattern_mixes_topics(const char *pattern)
{
    return strstr(pattern, "{seq}") && !strstr(pattern, "{topic}") && !has_number(pattern);
}

/* Write the field, or the character, at `p`. Returns how much of the pattern that was. */
static size_t expand(const struct save_name *name, const char *p, FILE *file)
{
    int width = 0;
    if (p[0] == '%' && p[1] != '%') {
        size_t n = number_field(p, &width);
        (void)fprintf(file, "%0*" PRIu64, width, name->number);
        return n;
    }
    if (strncmp(p, "{seq}", 5) == 0) {
        (void)fprintf(file, "%0*" PRIu64, DIGITS_DEFAULT, name->seq);
        return 5;
    }
    if (strncmp(p, "{topic}", 7) == 0) {
        for (const char *t = name->topic; *t; t++)
            (void)fputc(*t == '/' ? '+' : *t, file);
        return 7;
    }
    (void)fputc(*p, file);
    return p[0] == '%' ? 2 : 1; /* "%%" */
}

int save_path(const struct save_name *name, char *path, size_t size, struct cli_error *e)
{
    const char *p = name->pattern, *insert = NULL;
    int code = save_pattern_check(p, e);
    if (code < 0)
        return code;
    if (name->several && strcmp(p, "-") != 0 && !strstr(p, "{seq}") && !has_number(p))
        insert = suffix_of(p);
    char *text = NULL;
    size_t text_size = 0;
    FILE *file = open_memstream(&text, &text_size);
    if (!file)
        return cli_fail(e, DLX_E_NO_MEMORY, "out of memory");
    for (; *p; p += expand(name, p, file))
        if (p == insert)
            (void)fprintf(file, "-%0*" PRIu64, DIGITS_DEFAULT, name->number);
    if (p == insert)
        (void)fprintf(file, "-%0*" PRIu64, DIGITS_DEFAULT, name->number);
    if (fclose(file) != 0)
        code = cli_fail(e, DLX_E_NO_MEMORY, "out of memory");
    else if (text_size >= size)
        code = cli_fail(e, DLX_E_LIMIT, "file name is longer than %zu bytes", size - 1);
    else
        memcpy(path, text, text_size + 1);
    free(text);
    return code;
}

/* ---- .npy ------------------------------------------------------------------------------------ */

struct npy_content {
    uint8_t header[NPY_WRITE_SIZE_MAX];
    size_t header_size;
    const DLTensor *tensor;
    uint64_t n_items, size;
};

static int write_npy(int fd, const void *content)
{
    const struct npy_content *c = content;
    int code = save_bytes(fd, c->header, c->header_size);
    return code < 0 ? code : save_items(fd, c->tensor, c->n_items, c->size);
}

int save_look(const DLTensor *t, uint64_t *ret_n_items, uint64_t *ret_size, struct cli_error *e)
{
    char dtype[DLX_DTYPE_NAME_SIZE];
    if (!tensor_size(t, ret_n_items, ret_size))
        return cli_fail(e, DLX_E_SHAPE, "the tensor's size overflows");
    if (tensor_is_readable(t))
        return 0;
    (void)dlx_dtype_name(t->dtype, dtype);
    return cli_fail(e, DLX_E_DEVICE, "a tensor of %s on device type %d cannot be read here", dtype,
                    (int)t->device.device_type);
}

void save_report_storage(struct save_report *r, DLDataType dtype, const struct npy_storage *storage)
{
    char shape[SHAPE_NAME_SIZE];
    (void)dlx_dtype_name(dtype, r->dtype);
    memcpy(r->descr, storage->descr, sizeof r->descr);
    shape_name(storage->shape, storage->ndim, shape);
    (void)snprintf(r->shape, sizeof r->shape, "%.250s", shape);
    r->exact = storage->exact;
}

int save_tensor(const DLTensor *t, const char *path, struct save_report *ret_report,
                struct cli_error *e)
{
    struct save_report r = {.size = 0};
    struct npy_content c = {.tensor = t};
    struct npy_storage storage;
    int code = save_look(t, &c.n_items, &c.size, e);
    if (code == 0)
        code = npy_storage_choose(t->dtype, t->shape, t->ndim, &storage, e);
    if (code < 0)
        return code;
    save_report_storage(&r, t->dtype, &storage);
    c.header_size = npy_header_write(&storage, c.header, sizeof c.header);
    r.size = c.header_size + c.size;
    code = save_file(path, write_npy, &c, e);
    if (code == 0)
        *ret_report = r;
    return code;
}

/* ---- .safetensors ---------------------------------------------------------------------------- */

static bool save_has_suffix(const char *pattern, const char *suffix)
{
    size_t size = strlen(pattern), suffix_size = strlen(suffix);
    return size >= suffix_size && strcmp(pattern + size - suffix_size, suffix) == 0;
}

bool save_knows_suffix(const char *pattern)
{
    return *suffix_of(pattern) == '\0' || save_has_suffix(pattern, ".npy") ||
           save_is_set(pattern) || save_is_npz(pattern);
}

bool save_is_set(const char *pattern)
{
    return save_has_suffix(pattern, ".safetensors");
}

bool save_is_npz(const char *pattern)
{
    return save_has_suffix(pattern, ".npz");
}

struct set_content {
    const struct dlx_message *message;
    struct safetensors_header header;
    struct safetensors_tensor *tensors;
    uint32_t n;
};

static int write_set(int fd, const void *content)
{
    const struct set_content *c = content;
    uint64_t n_items = 0, size = 0;
    int code = save_bytes(fd, c->header.data, c->header.size);
    for (uint32_t i = 0; code == 0 && i < c->n; i++) {
        const DLTensor *t = dlx_message_tensor_peek(c->message, c->tensors[i].index);
        if (tensor_size(t, &n_items, &size)) /* it was looked at before */
            code = save_items(fd, t, n_items, size);
    }
    return code;
}

static int fill_set(struct set_content *c, struct cli_error *e)
{
    char label[SAFETENSORS_LABEL_SIZE];
    for (uint32_t i = 0; i < c->n; i++) {
        const DLTensor *t = dlx_message_tensor_peek(c->message, i);
        uint64_t n_items = 0, size = 0;
        int code = save_look(t, &n_items, &size, e);
        if (code < 0) {
            safetensors_label(dlx_message_tensor_name(c->message, i), label);
            return cli_fail_at(e, code, label);
        }
        c->tensors[i] = (struct safetensors_tensor){.name = dlx_message_tensor_name(c->message, i),
                                                    .dtype = t->dtype,
                                                    .ndim = t->ndim,
                                                    .shape = t->shape};
    }
    return 0;
}

int save_set(const struct dlx_message *m, const char *path, struct save_report *ret_report,
             struct cli_error *e)
{
    struct set_content c = {.message = m, .n = dlx_message_n_tensors(m)};
    size_t meta_size = 0;
    const void *meta = dlx_message_meta(m, &meta_size);

    c.tensors = calloc(c.n, sizeof *c.tensors);
    if (!c.tensors)
        return cli_fail(e, DLX_E_NO_MEMORY, "out of memory");
    int code = fill_set(&c, e);
    if (code == 0)
        code = safetensors_header_make(c.tensors, c.n, meta, meta_size, &c.header, e);
    if (code == 0)
        code = save_file(path, write_set, &c, e);
    if (code == 0) {
        const struct safetensors_tensor *last = &c.tensors[c.n - 1];
        *ret_report = (struct save_report){.exact = true,
                                           .size = c.header.size + last->offset + last->size,
                                           .lost_meta_size = c.header.has_meta ? 0 : meta_size};
    }
    safetensors_header_free(&c.header);
    free(c.tensors);
    return code;
}
