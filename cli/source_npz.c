/* SPDX-License-Identifier: Apache-2.0 */

/* A .npz file is one set. The index stands at the end, so a pipe cannot serve. */

#include "cli/source_input.h"
#include "cli/wait.h"
#include <dlx/dlx.h>
#include <stdlib.h>
#include <string.h>

#ifdef DLX_NO_ZIP

static int npz_next(struct source *s, struct source_item *item, struct cli_error *e)
{
    (void)item;
    return cli_fail(
        e, DLX_E_INVALID,
        "%.255s: is a zip archive, as .npz and PyTorch's .pt files are: this dlxctl was "
        "built without .npz, and no dlxctl reads .pt (save it as .safetensors)",
        s->in.name);
}

void source_npz_close(struct source *s)
{
    (void)s;
}

const struct source_format source_npz = {.next = npz_next};

#else

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>
#include <zip.h>

/* After this many bytes the program looks for a signal. */
#define PIECE_SIZE ((uint64_t)16 << 20)

void source_npz_close(struct source *s)
{
    for (size_t i = 0; s->npz_names && s->npz_names[i]; i++)
        free(s->npz_names[i]);
    free(s->npz_names);
    s->npz_names = NULL;
    if (s->zip)
        zip_discard(s->zip);
    s->zip = NULL;
}

static int open_zip(struct source *s, struct cli_error *e)
{
    zip_error_t error;
    if (!s->in.regular)
        return cli_fail(e, DLX_E_INVALID,
                        "%.255s: a .npz file has its index at its end: it cannot come from a pipe",
                        s->in.name);
    int fd = fcntl(s->in.fd, F_DUPFD_CLOEXEC, 0);
    FILE *file = fd >= 0 ? fdopen(fd, "re") : NULL;
    if (!file) {
        if (fd >= 0)
            (void)close(fd);
        return cli_fail(e, DLX_E_SYSTEM, "%.255s: cannot be opened again", s->in.name);
    }
    zip_error_init(&error);
    zip_source_t *source = zip_source_filep_create(file, 0, -1, &error);
    s->zip = source ? zip_open_from_source(source, ZIP_RDONLY | ZIP_CHECKCONS, &error) : NULL;
    int code = 0;
    if (!s->zip) {
        code = cli_fail(e, DLX_E_INVALID, "%.255s: %s", s->in.name, zip_error_strerror(&error));
        if (source)
            zip_source_free(source);
        else
            (void)fclose(file);
    }
    zip_error_fini(&error);
    return code;
}

/* Read exactly `size` bytes. */
static int read_all(struct source *s, zip_file_t *file, void *data, uint64_t size,
                    struct cli_error *e)
{
    for (uint64_t at = 0; at < size;) {
        uint64_t left = size - at;
        if (wait_signal())
            return DLX_E_INTERRUPTED;
        zip_int64_t n =
            zip_fread(file, (uint8_t *)data + at, left < PIECE_SIZE ? left : PIECE_SIZE);
        if (n < 0)
            return cli_fail(e, DLX_E_INVALID, "%.255s: %s", s->in.name,
                            zip_error_strerror(zip_file_get_error(file)));
        if (n == 0)
            return cli_fail(e, DLX_E_INVALID, "%.255s: ends early", s->in.name);
        at += (uint64_t)n;
    }
    return 0;
}

/* Open member `i` and parse its header into s->npy; the data comes next. */
static int open_member(struct source *s, uint64_t i, zip_file_t **ret, struct cli_error *e)
{
    uint8_t header[NPY_HEADER_SIZE_MAX];
    size_t size = 0;
    zip_stat_t st;
    zip_stat_init(&st);
    zip_file_t *file =
        zip_stat_index(s->zip, i, 0, &st) == 0 ? zip_fopen_index(s->zip, i, 0) : NULL;
    if (!file)
        return cli_fail(e, DLX_E_INVALID, "%.255s: %s", s->in.name, zip_strerror(s->zip));
    int code = read_all(s, file, header, NPY_PREFIX_SIZE, e);
    if (code == 0)
        code = npy_header_size(header, NPY_PREFIX_SIZE, &size, e);
    if (code == 0)
        code = read_all(s, file, header + NPY_PREFIX_SIZE, size - NPY_PREFIX_SIZE, e);
    if (code == 0)
        code = npy_header_parse(header, size, &s->npy, e);
    if (code == 0 && s->npy.dtype.bits == 0)
        code = cli_fail(e, DLX_E_SHAPE, "data type '%s' has no DLPack type", s->npy.descr);
    if (code == 0 && st.size != s->npy.header_size + s->npy.data_size)
        code = cli_fail(e, DLX_E_INVALID,
                        "should have %" PRIu64 " bytes of data, the member has %" PRIu64,
                        s->npy.data_size, st.size - s->npy.header_size);
    if (code == 0) {
        *ret = file;
        return 0;
    }
    (void)zip_fclose(file);
    return code == DLX_E_INTERRUPTED ? code : cli_fail_at(e, code, s->npz_names[i]);
}

static int add_tensor(struct source *s, uint64_t i, struct cli_error *e)
{
    struct safetensors_tensor *t = &s->set->tensors[i];
    int64_t *shape = &s->set->shapes[i * NPY_NDIM_MAX];
    const char *name = zip_get_name(s->zip, i, 0);
    zip_file_t *file = NULL;
    if (!name)
        return cli_fail(e, DLX_E_INVALID, "%.255s: %s", s->in.name, zip_strerror(s->zip));
    size_t size = strlen(name);
    if (size <= 4 || strcmp(name + size - 4, ".npy") != 0)
        return cli_fail(e, DLX_E_INVALID,
                        "%.255s: is a zip archive and no .npz: member '%.200s' is no .npy file "
                        "(PyTorch's .pt is not read: save it as .safetensors)",
                        s->in.name, name);
    s->npz_names[i] = strndup(name, size - 4);
    if (!s->npz_names[i])
        return cli_fail(e, DLX_E_NO_MEMORY, "out of memory");
    int code = open_member(s, i, &file, e);
    if (code < 0)
        return code == DLX_E_INTERRUPTED ? code : cli_fail_at(e, code, s->in.name);
    (void)zip_fclose(file);
    memcpy(shape, s->npy.shape, NPY_NDIM_MAX * sizeof *shape);
    *t = (struct safetensors_tensor){.name = s->npz_names[i],
                                     .dtype = s->npy.dtype,
                                     .ndim = s->npy.ndim,
                                     .shape = shape,
                                     .size = s->npy.data_size,
                                     .index = (uint32_t)i};
    if (__builtin_add_overflow(s->set->data_size, t->size, &s->set->data_size))
        return cli_fail(e, DLX_E_SHAPE, "%.255s: is over the limit of 2^64 - 1 bytes", s->in.name);
    return 0;
}

static int npz_next(struct source *s, struct source_item *item, struct cli_error *e)
{
    if (s->n_items > 0)
        return 0;
    if (s->args.dtype.bits)
        return cli_fail(e, DLX_E_INVALID,
                        "%.255s: --dtype alone is for .npy; .npz says the types itself",
                        s->in.name);
    source_npz_close(s);
    int code = open_zip(s, e);
    if (code < 0)
        return code;
    zip_int64_t n = zip_get_num_entries(s->zip, 0);
    if (n < 1 || n > DLX_TENSORS_MAX)
        return cli_fail(e, DLX_E_LIMIT, "%.255s: has %" PRId64 " arrays, must have 1 to %d",
                        s->in.name, n, DLX_TENSORS_MAX);
    s->set = calloc(1, sizeof *s->set);
    s->npz_names = calloc((size_t)n + 1, sizeof *s->npz_names);
    if (s->set) {
        s->set->n_tensors = (uint32_t)n;
        s->set->tensors = calloc((size_t)n, sizeof *s->set->tensors);
        s->set->shapes = calloc((size_t)n, NPY_NDIM_MAX * sizeof *s->set->shapes);
    }
    if (!s->npz_names || !s->set || !s->set->tensors || !s->set->shapes)
        return cli_fail(e, DLX_E_NO_MEMORY, "out of memory");
    for (zip_int64_t i = 0; code == 0 && i < n; i++)
        code = add_tensor(s, (uint64_t)i, e);
    if (code < 0)
        return code;
    s->n_items++;
    item->set = s->set;
    item->size = s->set->data_size;
    return 1;
}

static bool is_as_before(const struct npy_header *now, const struct safetensors_tensor *t)
{
    return now->data_size == t->size && now->ndim == t->ndim &&
           memcmp(now->shape, t->shape, (size_t)t->ndim * sizeof *t->shape) == 0 &&
           memcmp(&now->dtype, &t->dtype, sizeof t->dtype) == 0;
}

/* Straight into the tensor's memory, but for column-major arrays. */
static int read_tensor(struct source *s, uint64_t i, void *data, struct cli_error *e)
{
    zip_file_t *file = NULL;
    uint8_t more;
    int code = open_member(s, i, &file, e);
    if (code < 0)
        return code;
    const uint64_t size = s->npy.data_size;
    if (!is_as_before(&s->npy, &s->set->tensors[i])) { /* `data` is for what was there */
        (void)zip_fclose(file);
        return cli_fail(e, DLX_E_INVALID, "%.255s: %s changed while the file was read", s->in.name,
                        s->npz_names[i]);
    }
    void *into = data;
    if (s->npy.fortran_order) {
        code = source_scratch(s, size, e);
        into = s->scratch;
    }
    if (code == 0)
        code = read_all(s, file, into, size, e);
    if (code == 0 && zip_fread(file, &more, 1) != 0) /* at its end the checksum is compared */
        code = cli_fail(e, DLX_E_INVALID, "%.255s: %s: %s", s->in.name, s->npz_names[i],
                        zip_error_strerror(zip_file_get_error(file)));
    (void)zip_fclose(file);
    if (code < 0)
        return code;
    npy_swap(into, size, s->npy.swap_size);
    if (s->npy.fortran_order)
        npy_transpose(&s->npy, into, data);
    return 0;
}

static int npz_read_set(struct source *s, void *const *data, struct cli_error *e)
{
    int code = 0;
    for (uint32_t i = 0; code == 0 && i < s->set->n_tensors; i++)
        code = read_tensor(s, i, data[i], e);
    return code;
}

const struct source_format source_npz = {.next = npz_next, .read_set = npz_read_set};

#endif
