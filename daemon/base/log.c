/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/log.h"
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>

#define LINES_PER_SECOND 100U

static struct {
    enum dlxd_log_level level;
    bool journal;
    uint64_t second_ns; /* start of the second that n_lines counts */
    unsigned n_lines;
    unsigned n_dropped;
} state;

void dlxd_log_init(enum dlxd_log_level level, bool journal)
{
    state.level = level;
    state.journal = journal;
}

/* A pipe or socket that is writable takes a line of less than PIPE_BUF bytes without blocking. */
static bool write_line(const char *line, size_t size)
{
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (poll(&p, 1, 0) != 1 || !(p.revents & POLLOUT))
        return false;
    return write(STDERR_FILENO, line, size) == (ssize_t)size;
}

static bool emit(enum dlxd_log_level level, const char *text)
{
    char line[1024];
    int n = state.journal ? snprintf(line, sizeof line - 1, "<%d>%s", (int)level, text)
                          : snprintf(line, sizeof line - 1, "dlpackd: %s", text);
    size_t size = DLX_MIN((size_t)DLX_MAX(n, 0), sizeof line - 2);
    line[size++] = '\n';
    return write_line(line, size);
}

static bool within_rate(void)
{
    uint64_t now = dlx__now_ns();
    if (now - state.second_ns >= UINT64_C(1000000000)) {
        state.second_ns = now;
        state.n_lines = 0;
    }
    return state.n_lines++ < LINES_PER_SECOND;
}

void dlxd_log(enum dlxd_log_level level, const char *fmt, ...)
{
    char text[960];
    va_list ap;
    if (level > state.level)
        return;
    if (!within_rate()) {
        state.n_dropped++;
        return;
    }
    if (state.n_dropped > 0) {
        (void)snprintf(text, sizeof text, "%u lines were not written", state.n_dropped);
        if (emit(DLXD_LOG_WARNING, text))
            state.n_dropped = 0;
    }
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!emit(level, text))
        state.n_dropped++;
}
