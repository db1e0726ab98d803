/* SPDX-License-Identifier: Apache-2.0 */

/* Input of a source: a file or a pipe, read from front to back, and what its formats share. */

#include "cli/output.h"
#include "cli/progress.h"
#include "cli/source_input.h"
#include "cli/wait.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIPE_SIZE = 1 << 20, PIECES_AT_ONCE = 256 };

/* Large enough that calls cost nothing; small enough that Ctrl-C is seen, also on a slow disk. */
#define READ_SIZE ((size_t)64 << 20)

int input_open(struct input *in, const char *path, struct cli_error *e)
{
    struct stat st;
    bool standard = strcmp(path, "-") == 0;
    *in = (struct input){.name = standard ? "standard input" : path,
                         .fd = standard ? STDIN_FILENO : -1,
                         .owned = !standard};
    if (!standard) /* a pipe without a writer is waited for where a signal ends the wait */
        in->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
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

/* Calls readv(2) once. *ret_size 0: the end of the file, or nothing yet if *ret_again. */
static int read_some(struct input *in, const struct iovec *pieces, int n, uint64_t *ret_size,
                     bool *ret_again, struct cli_error *e)
{
    *ret_size = 0;
    *ret_again = false;
    if (wait_signal())
        return DLX_E_INTERRUPTED;
    if (!in->regular) {
        int code = wait_until(in->fd, WAIT_FOREVER);
        *ret_again = code == DLX_E_INTERRUPTED;
        if (code == DLX_E_INTERRUPTED)
            return 0;
        if (code < 0)
            return cli_fail(e, code, "%.255s: poll: %s", in->name, strerror(errno));
    }
    ssize_t got = readv(in->fd, pieces, n);
    *ret_again = got < 0 && (errno == EINTR || errno == EAGAIN);
    if (got < 0 && !*ret_again)
        return cli_fail(e, DLX_E_SYSTEM, "%.255s: %s", in->name, strerror(errno));
    *ret_size = got > 0 ? (uint64_t)got : 0;
    in->offset += *ret_size;
    progress_moved(*ret_size);
    return 0;
}

/* The pieces that one call reads; the first one is not empty. */
static int fill_batch(struct iovec batch[PIECES_AT_ONCE], const struct iovec *pieces, size_t n)
{
    size_t room = READ_SIZE;
    int i = 0;
    for (; i < PIECES_AT_ONCE && (size_t)i < n && room > 0; i++) {
        batch[i] = pieces[i];
        if (batch[i].iov_len > room)
            batch[i].iov_len = room;
        room -= batch[i].iov_len;
    }
    return i;
}

int input_read_pieces(struct input *in, struct iovec *pieces, size_t n, uint64_t *ret_size,
                      struct cli_error *e)
{
    struct iovec batch[PIECES_AT_ONCE];
    uint64_t sum = 0, got = 0;
    bool again = false;
    for (size_t i = 0;;) {
        while (i < n && pieces[i].iov_len == 0)
            i++;
        if (i == n)
            break;
        int code = read_some(in, batch, fill_batch(batch, pieces + i, n - i), &got, &again, e);
        if (code < 0)
            return code;
        if (got == 0 && !again)
            break;
        sum += got;
        for (size_t step; got > 0; got -= step, i += pieces[i].iov_len == 0) {
            step = pieces[i].iov_len < got ? pieces[i].iov_len : (size_t)got;
            pieces[i].iov_base = (uint8_t *)pieces[i].iov_base + step;
            pieces[i].iov_len -= step;
        }
    }
    *ret_size = sum;
    return 0;
}

int input_read(struct input *in, void *data, uint64_t size, uint64_t *ret_size, struct cli_error *e)
{
    struct iovec piece = {.iov_base = data, .iov_len = (size_t)size};
    return input_read_pieces(in, &piece, 1, ret_size, e);
}

/* ---- what formats share ---------------------------------------------------------------------- */

int source_take(struct source *s, void *data, uint64_t size, uint64_t *ret_size,
                struct cli_error *e)
{
    *ret_size = 0;
    if (size == 0) /* `data` may be NULL */
        return 0;
    size_t ahead = s->prefix_size < size ? s->prefix_size : (size_t)size;
    memcpy(data, s->prefix, ahead);
    memmove(s->prefix, s->prefix + ahead, s->prefix_size - ahead);
    s->prefix_size -= ahead;
    uint64_t got = 0;
    int code = input_read(&s->in, (uint8_t *)data + ahead, size - ahead, &got, e);
    if (code == 0)
        *ret_size = ahead + got;
    return code;
}

int source_scratch(struct source *s, uint64_t size, struct cli_error *e)
{
    if (size <= s->scratch_size)
        return 0;
    free(s->scratch);
    s->scratch_size = 0;
    s->scratch = size <= SIZE_MAX ? malloc((size_t)size) : NULL;
    if (!s->scratch) {
        char amount[HUMAN_SIZE];
        human_bytes(size, amount);
        return cli_fail(e, DLX_E_NO_MEMORY, "%.255s: no memory for %s", s->in.name, amount);
    }
    s->scratch_size = size;
    return 0;
}

int source_lies(struct source *s, uint64_t expected, uint64_t found, const char *what,
                struct cli_error *e)
{
    if (s->n_items > 1)
        return cli_fail(e, DLX_E_INVALID,
                        "%.255s: tensor %" PRIu64 " should have %" PRIu64
                        " bytes (%s), the file has %" PRIu64 " more",
                        s->in.name, s->n_items, expected, what, found);
    return cli_fail(e, DLX_E_INVALID,
                    "%.255s: %s should have %" PRIu64 " bytes, the file has %" PRIu64, s->in.name,
                    what, expected, found);
}
