/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/save_file.h"
#include "cli/tensor.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK_SIZE = 1 << 16 };

int save_bytes(int fd, const void *data, uint64_t size)
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
            if (save_bytes(fd, tensor_item(t, i), item_size) < 0)
                return DLX_E_SYSTEM;
        return 0;
    }
    for (uint64_t i = 0; i < n_items; i++) {
        if (used + item_size > sizeof chunk) {
            if (save_bytes(fd, chunk, used) < 0)
                return DLX_E_SYSTEM;
            used = 0;
        }
        memcpy(chunk + used, tensor_item(t, i), item_size);
        used += item_size;
    }
    return save_bytes(fd, chunk, used);
}

int save_items(int fd, const DLTensor *t, uint64_t n_items, uint64_t size)
{
    return tensor_is_compact(t) ? save_bytes(fd, size ? tensor_data(t) : NULL, size)
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

int save_file(const char *path, save_content_fn write, const void *content, struct cli_error *e)
{
    char temporary[SAVE_PATH_SIZE + 16];
    struct stat st;
    if (strcmp(path, "-") == 0)
        return write(STDOUT_FILENO, content) < 0 ? failed(e, "standard output", "write") : 0;
    /* a device or a pipe is written to, not replaced */
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        FILE *file = fopen(path, "we");
        if (!file)
            return failed(e, path, "open");
        int code = write(fileno(file), content);
        if (code < 0)
            (void)failed(e, path, "write");
        (void)fclose(file);
        return code;
    }
    (void)snprintf(temporary, sizeof temporary, "%s.XXXXXX", path);
    int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0)
        return failed(e, path, "create");
    int code = write(fd, content);
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
