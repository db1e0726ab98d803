/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/save.h"
#include "cli/npy.h"
#include "cli/tensor.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK_SIZE = 1 << 16, DIGITS_DEFAULT = 6, DIGITS_MAX = 20 };

/* -- names -------------------------------------------------------------------------------------------- */

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

int save_path(const char *pattern, uint64_t number, uint64_t seq, bool several, char *path,
              size_t size, struct cli_error *e)
{
    const char *insert = NULL;
    size_t at = 0;
    int width = 0, code = save_pattern_check(pattern, e);
    if (code < 0)
        return code;
    if (strcmp(pattern, "-") == 0)
        several = false;
    if (several && !strstr(pattern, "{seq}")) {
        insert = suffix_of(pattern);
        for (const char *p = pattern; *p; p++) {
            if (p[0] == '%' && p[1] == '%')
                p++;
            else if (p[0] == '%')
                insert = NULL;
        }
    }
    for (const char *p = pattern;;) {
        int n = 0;
        if (p == insert) {
            n = snprintf(path + at, size - at, "-%0*" PRIu64, DIGITS_DEFAULT, number);
            insert = NULL;
        } else if (!*p) {
            break;
        } else if (p[0] == '%' && p[1] == '%') {
            n = snprintf(path + at, size - at, "%%");
            p += 2;
        } else if (p[0] == '%') {
            p += number_field(p, &width);
            n = snprintf(path + at, size - at, "%0*" PRIu64, width, number);
        } else if (strncmp(p, "{seq}", 5) == 0) {
            n = snprintf(path + at, size - at, "%0*" PRIu64, DIGITS_DEFAULT, seq);
            p += 5;
        } else {
            n = snprintf(path + at, size - at, "%c", *p++);
        }
        at += (size_t)n;
        if (at >= size)
            return cli_fail(e, DLX_E_LIMIT, "file name is longer than %zu bytes", size - 1);
    }
    return 0;
}

/* -- content ------------------------------------------------------------------------------------------ */

static int write_all(int fd, const void *data, uint64_t size)
{
    const uint8_t *p = data;
    while (size > 0) {
        ssize_t n = write(fd, p, size > 1U << 30 ? 1U << 30 : size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return DLX_E_SYSTEM;
        p += n;
        size -= (uint64_t)n;
    }
    return 0;
}

/* Items one by one through a buffer: only for what a publisher did not make compact. */
static int write_strided(int fd, const DLTensor *t, uint64_t n_items)
{
    uint8_t chunk[CHUNK_SIZE];
    size_t item_size = t->dtype.bits * t->dtype.lanes / 8U, used = 0;
    if (item_size >
        sizeof chunk) { /* hundreds of lanes: rare enough to go to the file one by one */
        for (uint64_t i = 0; i < n_items; i++)
            if (write_all(fd, tensor_item(t, i), item_size) < 0)
                return DLX_E_SYSTEM;
        return 0;
    }
    for (uint64_t i = 0; i < n_items; i++) {
        if (used + item_size > sizeof chunk) {
            if (write_all(fd, chunk, used) < 0)
                return DLX_E_SYSTEM;
            used = 0;
        }
        memcpy(chunk + used, tensor_item(t, i), item_size);
        used += item_size;
    }
    return write_all(fd, chunk, used);
}

static int write_tensor(int fd, const DLTensor *t, const struct npy_storage *storage,
                        uint64_t n_items, uint64_t size, uint64_t *ret_size)
{
    uint8_t header[NPY_WRITE_SIZE_MAX];
    size_t header_size = npy_header_write(storage, header, sizeof header);
    if (write_all(fd, header, header_size) < 0)
        return DLX_E_SYSTEM;
    *ret_size = header_size + size;
    return tensor_is_compact(t) ? write_all(fd, size ? tensor_data(t) : NULL, size)
                                : write_strided(fd, t, n_items);
}

/* Permissions as open(2) would give them; the umask can only be read by setting it. */
static mode_t usual_mode(void)
{
    mode_t mask = umask(0);
    (void)umask(mask);
    return 0666 & ~mask;
}

static int failed(struct cli_error *e, const char *path, const char *what)
{
    return cli_fail(e, DLX_E_SYSTEM, "%.255s: %s: %s", path, what, strerror(errno));
}

static int write_file(const DLTensor *t, const char *path, const struct npy_storage *storage,
                      uint64_t n_items, uint64_t size, uint64_t *ret_size, struct cli_error *e)
{
    char temporary[SAVE_PATH_SIZE + 16];
    struct stat st;
    /* a device or a pipe is written to, not replaced */
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        FILE *file = fopen(path, "we");
        if (!file)
            return failed(e, path, "open");
        int code = write_tensor(fileno(file), t, storage, n_items, size, ret_size);
        if (code < 0)
            (void)failed(e, path, "write");
        (void)fclose(file);
        return code;
    }
    (void)snprintf(temporary, sizeof temporary, "%s.XXXXXX", path);
    int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0)
        return failed(e, path, "create");
    int code = write_tensor(fd, t, storage, n_items, size, ret_size);
    if (code < 0)
        (void)failed(e, path, "write");
    else if (fchmod(fd, usual_mode()) < 0)
        code = failed(e, path, "chmod");
    if (close(fd) < 0 && code == 0)
        code = failed(e, path, "close");
    if (code == 0 && rename(temporary, path) < 0)
        code = failed(e, path, "rename");
    if (code < 0)
        (void)unlink(temporary);
    return code;
}

int save_tensor(const DLTensor *t, const char *path, struct save_report *ret_report,
                struct cli_error *e)
{
    struct save_report r = {.size = 0};
    struct npy_storage storage;
    char shape[SHAPE_NAME_SIZE];
    uint64_t n_items = 0, size = 0;

    dtype_name(t->dtype, r.dtype);
    if (!tensor_size(t, &n_items, &size))
        return cli_fail(e, DLX_E_SHAPE, "the tensor's size overflows");
    if (!tensor_is_readable(t))
        return cli_fail(e, DLX_E_DEVICE, "a tensor of %s on device type %d cannot be read here",
                        r.dtype, (int)t->device.device_type);
    int code = npy_storage_choose(t->dtype, t->shape, t->ndim, &storage, e);
    if (code < 0)
        return code;
    memcpy(r.descr, storage.descr, sizeof r.descr);
    shape_name(storage.shape, storage.ndim, shape);
    (void)snprintf(r.shape, sizeof r.shape, "%.250s", shape);
    r.exact = storage.exact;
    if (strcmp(path, "-") == 0) {
        code = write_tensor(STDOUT_FILENO, t, &storage, n_items, size, &r.size);
        if (code < 0)
            (void)failed(e, "standard output", "write");
    } else {
        code = write_file(t, path, &storage, n_items, size, &r.size, e);
    }
    if (code == 0)
        *ret_report = r;
    return code;
}
