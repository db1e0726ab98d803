/* SPDX-License-Identifier: Apache-2.0 */

/* .npz files by libzip: members are .npy files, and written without compression. */

#include "cli/npz.h"
#include "cli/npy.h"
#include "cli/save_file.h"
#include "cli/tensor.h"
#include <string.h>

bool npz_is(const uint8_t *data, size_t size)
{
    return size >= 4 && (memcmp(data, "PK\3\4", 4) == 0 || memcmp(data, "PK\5\6", 4) == 0);
}

#ifdef DLX_NO_ZIP

int npz_save(const struct dlx_message *m, const char *path, struct save_report *ret_report,
             struct cli_error *e)
{
    (void)m;
    (void)ret_report;
    return cli_fail(e, DLX_E_INVALID, "%.255s: this dlxctl was built without .npz", path);
}

#else

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <zip.h>

/* The date that numpy.savez() writes, 1980-01-01: equal messages make equal files. */
enum { DOS_DATE = 1 << 5 | 1 };

/* ---- what goes in: the content of one .npy file ---------------------------------------------- */

struct member {
    const DLTensor *tensor;
    uint8_t header[NPY_WRITE_SIZE_MAX];
    size_t header_size;
    uint64_t size, at; /* bytes of the file; and how many were read */
    size_t item_size;
    bool compact;
    zip_error_t error;
};

/* Copy what lies in one piece at `at`. */
static size_t copy_piece(const struct member *m, uint8_t *to, size_t size)
{
    const uint8_t *from;
    uint64_t left;
    if (m->at < m->header_size) {
        from = m->header + m->at;
        left = m->header_size - m->at;
    } else if (m->compact) {
        from = tensor_data(m->tensor) + (m->at - m->header_size);
        left = m->size - m->at;
    } else {
        uint64_t item = (m->at - m->header_size) / m->item_size;
        size_t offset = (size_t)((m->at - m->header_size) % m->item_size);
        from = tensor_item(m->tensor, item) + offset;
        left = m->item_size - offset;
    }
    size = left < size ? (size_t)left : size;
    memcpy(to, from, size);
    return size;
}

static zip_int64_t read_member(void *state, void *data, zip_uint64_t size, zip_source_cmd_t command)
{
    struct member *m = state;
    size_t done = 0;
    switch (command) {
    case ZIP_SOURCE_OPEN:
        m->at = 0;
        return 0;
    case ZIP_SOURCE_READ:
        while (done < size && m->at < m->size) {
            size_t n = copy_piece(m, (uint8_t *)data + done, (size_t)size - done);
            m->at += n;
            done += n;
        }
        return (zip_int64_t)done;
    case ZIP_SOURCE_STAT: {
        zip_stat_t *st = data;
        zip_stat_init(st);
        st->size = m->size;
        st->valid |= ZIP_STAT_SIZE;
        return (zip_int64_t)sizeof *st;
    }
    case ZIP_SOURCE_ERROR:
        return zip_error_to_data(&m->error, data, size);
    case ZIP_SOURCE_CLOSE:
    case ZIP_SOURCE_FREE:
        return 0;
    case ZIP_SOURCE_SUPPORTS:
        return zip_source_make_command_bitmap(ZIP_SOURCE_OPEN, ZIP_SOURCE_READ, ZIP_SOURCE_CLOSE,
                                              ZIP_SOURCE_STAT, ZIP_SOURCE_ERROR, ZIP_SOURCE_FREE,
                                              -1);
    default:
        zip_error_set(&m->error, ZIP_ER_OPNOTSUPP, 0);
        return -1;
    }
}

/* ---- where it goes: a file that is open, whose name libzip does not know --------------------- */

struct output {
    int fd;
    int code; /* of save_bytes() */
    zip_error_t error;
};

static zip_int64_t seek(struct output *o, void *data, zip_uint64_t size)
{
    const zip_source_args_seek_t *args =
        ZIP_SOURCE_GET_ARGS(zip_source_args_seek_t, data, size, &o->error);
    if (args && lseek(o->fd, args->offset, args->whence) >= 0)
        return 0;
    o->code = DLX_E_SYSTEM;
    zip_error_set(&o->error, ZIP_ER_SEEK, 0);
    return -1;
}

static zip_int64_t write_output(void *state, void *data, zip_uint64_t size,
                                zip_source_cmd_t command)
{
    struct output *o = state;
    switch (command) {
    case ZIP_SOURCE_STAT:
        zip_stat_init(data);
        return (zip_int64_t)sizeof(zip_stat_t);
    case ZIP_SOURCE_WRITE:
        o->code = save_bytes(o->fd, data, size);
        if (o->code == 0)
            return (zip_int64_t)size;
        zip_error_set(&o->error, ZIP_ER_WRITE, 0);
        return -1;
    case ZIP_SOURCE_SEEK_WRITE:
        return seek(o, data, size);
    case ZIP_SOURCE_TELL_WRITE:
        return lseek(o->fd, 0, SEEK_CUR);
    case ZIP_SOURCE_ERROR:
        return zip_error_to_data(&o->error, data, size);
    case ZIP_SOURCE_OPEN: /* to be read: there is nothing yet */
    case ZIP_SOURCE_READ:
    case ZIP_SOURCE_CLOSE:
    case ZIP_SOURCE_SEEK:
    case ZIP_SOURCE_TELL:
    case ZIP_SOURCE_BEGIN_WRITE:
    case ZIP_SOURCE_COMMIT_WRITE:
    case ZIP_SOURCE_ROLLBACK_WRITE:
    case ZIP_SOURCE_REMOVE:
    case ZIP_SOURCE_FREE:
        return 0;
    case ZIP_SOURCE_SUPPORTS:
        return zip_source_make_command_bitmap(
            ZIP_SOURCE_OPEN, ZIP_SOURCE_READ, ZIP_SOURCE_CLOSE, ZIP_SOURCE_STAT, ZIP_SOURCE_ERROR,
            ZIP_SOURCE_FREE, ZIP_SOURCE_SEEK, ZIP_SOURCE_TELL, ZIP_SOURCE_BEGIN_WRITE,
            ZIP_SOURCE_WRITE, ZIP_SOURCE_COMMIT_WRITE, ZIP_SOURCE_ROLLBACK_WRITE,
            ZIP_SOURCE_SEEK_WRITE, ZIP_SOURCE_TELL_WRITE, ZIP_SOURCE_REMOVE, -1);
    default:
        zip_error_set(&o->error, ZIP_ER_OPNOTSUPP, 0);
        return -1;
    }
}

/* ---- together -------------------------------------------------------------------------------- */

struct content {
    const struct dlx_message *message;
    struct member *members;
    uint32_t n;
    struct cli_error *e;
};

static int add_member(zip_t *zip, struct content *c, uint32_t i)
{
    char name[DLX_NAME_MAX + 32];
    const char *own = dlx_message_tensor_name(c->message, i);
    if (*own)
        (void)snprintf(name, sizeof name, "%s.npy", own);
    else
        (void)snprintf(name, sizeof name, "arr_%" PRIu32 ".npy", i);
    zip_source_t *source = zip_source_function(zip, read_member, &c->members[i]);
    zip_int64_t index = source ? zip_file_add(zip, name, source, ZIP_FL_ENC_UTF_8) : -1;
    if (index >= 0 && zip_set_file_compression(zip, (zip_uint64_t)index, ZIP_CM_STORE, 0) == 0 &&
        zip_file_set_dostime(zip, (zip_uint64_t)index, 0, DOS_DATE, 0) == 0)
        return 0;
    if (index < 0)
        zip_source_free(source);
    return cli_fail(c->e, DLX_E_INVALID, "%.255s: %s", name, zip_strerror(zip));
}

/* Returns as save_content_fn; other failures than of a system call have words. */
static int write_content(int fd, const void *content)
{
    struct content c = *(const struct content *)content;
    struct output output = {.fd = fd};
    zip_error_t error;
    zip_error_init(&error);
    zip_error_init(&output.error);
    zip_source_t *source = zip_source_function_create(write_output, &output, &error);
    zip_t *zip = source ? zip_open_from_source(source, ZIP_CREATE | ZIP_TRUNCATE, &error) : NULL;
    int code = 0;
    if (!zip) {
        code = cli_fail(c.e, DLX_E_NO_MEMORY, "libzip: %s", zip_error_strerror(&error));
        zip_source_free(source);
    }
    for (uint32_t i = 0; code == 0 && i < c.n; i++)
        code = add_member(zip, &c, i);
    if (zip && code == 0 && zip_close(zip) == 0)
        zip = NULL;
    else if (zip && code == 0)
        code = output.code < 0 ? output.code
                               : cli_fail(c.e, DLX_E_INVALID, "libzip: %s", zip_strerror(zip));
    if (zip)
        zip_discard(zip);
    zip_error_fini(&error);
    return code;
}

static int fill_member(struct content *c, uint32_t i, struct save_report *r)
{
    struct member *m = &c->members[i];
    const DLTensor *t = dlx_message_tensor_peek(c->message, i);
    struct npy_storage storage;
    uint64_t n_items = 0, size = 0;
    int code = save_look(t, &n_items, &size, c->e);
    if (code == 0)
        code = npy_storage_choose(t->dtype, t->shape, t->ndim, &storage, c->e);
    if (code < 0)
        return code;
    m->tensor = t;
    m->header_size = npy_header_write(&storage, m->header, sizeof m->header);
    m->size = m->header_size + size;
    m->compact = tensor_is_compact(t);
    m->item_size = t->dtype.bits * t->dtype.lanes / 8U;
    zip_error_init(&m->error);
    if (!storage.exact && r->exact)
        save_report_storage(r, t->dtype, &storage);
    r->exact = r->exact && storage.exact;
    r->size += m->size;
    return 0;
}

int npz_save(const struct dlx_message *m, const char *path, struct save_report *ret_report,
             struct cli_error *e)
{
    struct content c = {.message = m, .n = dlx_message_n_tensors(m), .e = e};
    struct save_report report = {.exact = true};
    int code = 0;
    c.members = calloc(c.n, sizeof *c.members);
    if (!c.members)
        return cli_fail(e, DLX_E_NO_MEMORY, "out of memory");
    for (uint32_t i = 0; code == 0 && i < c.n; i++)
        code = fill_member(&c, i, &report);
    if (code == 0)
        code = save_file(path, write_content, &c, e);
    if (code == 0)
        *ret_report = report;
    free(c.members);
    return code;
}

#endif
