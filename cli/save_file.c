/* SPDX-License-Identifier: Apache-2.0 */

/* A file that appears under its name only when it is complete and synced. */

#include "cli/save_file.h"
#include "cli/progress.h"
#include "cli/tensor.h"
#include "cli/wait.h"
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* After PIECE_SIZE bytes the program looks for a signal. */
enum { CHUNK_SIZE = 1 << 16, PIECE_SIZE = 1 << 24 };
#define TEMPORARY ".dlxctl-XXXXXX"

int save_bytes(int fd, const void *data, uint64_t size)
{
    const uint8_t *p = data;
    while (size > 0) {
        if (wait_holds_signal())
            return DLX_E_INTERRUPTED;
        ssize_t n = write(fd, p, size > PIECE_SIZE ? PIECE_SIZE : size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return DLX_E_SYSTEM;
        p += n;
        size -= (uint64_t)n;
        progress_moved((uint64_t)n);
    }
    return 0;
}

/* Items one by one through a buffer: only for what a publisher did not make compact. */
static int write_strided(int fd, const DLTensor *t, uint64_t n_items)
{
    uint8_t chunk[CHUNK_SIZE];
    size_t item_size = t->dtype.bits * t->dtype.lanes / 8U, used = 0;
    int code;
    /* Hundreds of lanes: rare enough to go to the file one by one. */
    if (item_size > sizeof chunk) {
        for (uint64_t i = 0; i < n_items; i++)
            if ((code = save_bytes(fd, tensor_item(t, i), item_size)) < 0)
                return code;
        return 0;
    }
    for (uint64_t i = 0; i < n_items; i++) {
        if (used + item_size > sizeof chunk) {
            if ((code = save_bytes(fd, chunk, used)) < 0)
                return code;
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

/* Permissions of the file that is replaced; else those that open(2) gives. The umask can only be
 * read by setting it. */
static mode_t mode_of(const char *path)
{
    struct stat st;
    if (stat(path, &st) == 0)
        return st.st_mode & 0777;
    mode_t mask = umask(0);
    (void)umask(mask);
    return 0666 & ~mask;
}

static int failed(struct cli_error *e, const char *path, const char *what)
{
    return cli_fail(e, DLX_E_SYSTEM, "%.255s: %s: %s", path, what, strerror(errno));
}

static int write_to(int fd, const char *path, save_content_fn write, const void *content,
                    struct cli_error *e)
{
    int code = write(fd, content);
    return code == DLX_E_SYSTEM ? failed(e, path, "write") : code;
}

/* A tensor is not text: it would change how the terminal behaves. */
static int refuse_terminal(int fd, const char *path, struct cli_error *e)
{
    if (!isatty(fd))
        return 0;
    return cli_fail(e, DLX_E_INVALID,
                    "%.255s: is a terminal, and the data is binary: "
                    "write to a file or a pipe",
                    path);
}

static int write_to_device(const char *path, save_content_fn write, const void *content,
                           struct cli_error *e)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return failed(e, path, "open");
    int code = refuse_terminal(fd, path, e);
    if (code == 0)
        code = write_to(fd, path, write, content, e);
    (void)close(fd);
    return code;
}

/* Some file systems cannot, and say so by EINVAL. */
static int sync_fd(int fd)
{
    return fsync(fd) == 0 || errno == EINVAL ? 0 : DLX_E_SYSTEM;
}

/* The new name must be on the disk, too. A folder that this user cannot read cannot be synced. */
static int sync_folder(const char *folder)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return errno == EACCES ? 0 : DLX_E_SYSTEM;
    int code = sync_fd(fd), error = errno;
    (void)close(fd);
    errno = error;
    return code;
}

static int write_and_rename(char *temporary, const char *path, save_content_fn write,
                            const void *content, struct cli_error *e)
{
    int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0)
        return failed(e, path, "create");
    int code = write_to(fd, path, write, content, e);
    if (code == 0 && fchmod(fd, mode_of(path)) < 0)
        code = failed(e, path, "chmod");
    if (code == 0 && sync_fd(fd) < 0)
        code = failed(e, path, "sync");
    if (close(fd) < 0 && code == 0)
        code = failed(e, path, "close");
    if (code == 0 && rename(temporary, path) < 0)
        code = failed(e, path, "rename");
    if (code < 0)
        (void)unlink(temporary);
    return code;
}

/* The temporary name is short: one made from the file's may be too long for the file system. */
static int replace(const char *path, save_content_fn write, const void *content,
                   struct cli_error *e)
{
    char temporary[SAVE_PATH_SIZE], folder[SAVE_PATH_SIZE] = ".";
    sigset_t before;
    const char *slash = strrchr(path, '/');
    size_t folder_size = slash ? (size_t)(slash + 1 - path) : 0;
    if (folder_size + sizeof TEMPORARY > sizeof temporary) {
        errno = ENAMETOOLONG;
        return failed(e, path, "create");
    }
    memcpy(temporary, path, folder_size);
    memcpy(temporary + folder_size, TEMPORARY, sizeof TEMPORARY);
    if (folder_size > 0)
        (void)snprintf(folder, sizeof folder, "%.*s", (int)folder_size, path);
    wait_hold_signals(&before);
    int code = write_and_rename(temporary, path, write, content, e);
    if (code == 0 && sync_folder(folder) < 0)
        code = failed(e, path, "sync its folder");
    wait_release_signals(&before);
    return code;
}

/* rename(2) would replace a symbolic link, so the file is made where the link leads. */
static int replace_target(const char *path, save_content_fn write, const void *content,
                          struct cli_error *e)
{
    struct stat st;
    if (lstat(path, &st) < 0 || !S_ISLNK(st.st_mode))
        return replace(path, write, content, e);
    char *target = realpath(path, NULL);
    if (!target)
        return failed(e, path, "follow the symbolic link");
    int code = replace(target, write, content, e);
    free(target);
    return code;
}

int save_file(const char *path, save_content_fn write, const void *content, struct cli_error *e)
{
    struct stat st;
    bool standard = strcmp(path, "-") == 0;
    int r = standard ? fstat(STDOUT_FILENO, &st) : stat(path, &st);
    if (r < 0 && errno == ENAMETOOLONG)
        return failed(e, path, "create");
    bool regular = r == 0 && S_ISREG(st.st_mode);
    if (!standard && (r < 0 || regular))
        return replace_target(path, write, content, e);
    if (regular)
        return write_to(STDOUT_FILENO, "standard output", write, content, e);
    /* a device or a pipe is written to, not replaced; its reader may never read */
    int code = wait_begin_blocking();
    if (code < 0)
        return code;
    if (!standard)
        code = write_to_device(path, write, content, e);
    else if ((code = refuse_terminal(STDOUT_FILENO, "standard output", e)) == 0)
        code = write_to(STDOUT_FILENO, "standard output", write, content, e);
    wait_end_blocking();
    return code;
}
