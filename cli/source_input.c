/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/source_input.h"
#include "cli/wait.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIPE_SIZE = 1 << 20 };

int input_open(struct input *in, const char *path, struct cli_error *e)
{
    struct stat st;
    bool standard = strcmp(path, "-") == 0;
    *in = (struct input){.name = standard ? "standard input" : path,
                         .fd = standard ? STDIN_FILENO : -1,
                         .owned = !standard};
    if (!standard)
        in->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (in->fd < 0)
        return cli_fail(e, DLX_E_SYSTEM, "%.255s: %s", path, strerror(errno));
    if (fstat(in->fd, &st) < 0 || S_ISDIR(st.st_mode)) {
        int error = S_ISDIR(st.st_mode) ? EISDIR : errno;
        input_close(in);
        return cli_fail(e, DLX_E_SYSTEM, "%.255s: %s", path, strerror(error));
    }
    if (S_ISREG(st.st_mode)) {
        off_t at = lseek(in->fd, 0, SEEK_CUR); /* the standard input may be anywhere */
        in->regular = at >= 0;
        in->size = at >= 0 && st.st_size > at ? (uint64_t)(st.st_size - at) : 0;
        (void)posix_fadvise(in->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    } else if (S_ISFIFO(st.st_mode)) {
        (void)fcntl(in->fd, F_SETPIPE_SZ, PIPE_SIZE); /* fewer, larger reads; may be refused */
    }
    return 0;
}

void input_close(struct input *in)
{
    if (in->owned && in->fd >= 0)
        (void)close(in->fd);
    in->fd = -1;
}

int input_read(struct input *in, void *data, uint64_t size, uint64_t *ret_size, struct cli_error *e)
{
    uint64_t got = 0;
    while (got < size) {
        if (wait_signal())
            return DLX_E_INTERRUPTED;
        if (!in->regular) {
            int code = wait_until(in->fd, WAIT_FOREVER);
            if (code == DLX_E_INTERRUPTED)
                continue;
            if (code < 0)
                return cli_fail(e, code, "%.255s: poll: %s", in->name, strerror(errno));
        }
        uint64_t want = size - got;
        ssize_t n = read(in->fd, (uint8_t *)data + got, want > 1U << 30 ? 1U << 30 : want);
        if (n == 0)
            break;
        if (n < 0) {
            if (errno == EINTR || errno == EAGAIN)
                continue;
            return cli_fail(e, DLX_E_SYSTEM, "%.255s: %s", in->name, strerror(errno));
        }
        got += (uint64_t)n;
        in->offset += (uint64_t)n;
    }
    *ret_size = got;
    return 0;
}
