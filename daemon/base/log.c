/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/log.h"
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#define TEXT_SIZE  960
#define ENTRY_SIZE 4096

/* The lines of one kind written in the current second. */
struct budget {
    const char *what;
    unsigned max;
    uint64_t second_ns; /* start of the current second */
    unsigned n_lines;
    unsigned n_dropped;
};

static struct {
    enum dlxd_log_level level;
    const char *journal;
    struct budget lines, refusals;
} state = {.lines = {.what = "lines", .max = 100}, .refusals = {.what = "refusals", .max = 10}};

bool dlxd_log_is_journal(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    char name[64];
    struct stat st;
    if (!stream || fstat(STDERR_FILENO, &st) < 0)
        return false;
    (void)snprintf(name, sizeof name, "%ju:%ju", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino);
    return strcmp(stream, name) == 0;
}

void dlxd_log_init(enum dlxd_log_level level, const char *borrow_journal)
{
    state.level = level;
    state.journal = borrow_journal;
}

/* ---- stderr -------------------------------------------------------------------------------- */

/* A writable pipe or socket takes a line of less than PIPE_BUF bytes without blocking. */
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

/* ---- the journal --------------------------------------------------------------------------- */

struct entry {
    char bytes[ENTRY_SIZE];
    size_t size; /* more than ENTRY_SIZE: it did not fit */
};

/* Adds a line "NAME=value". Control characters, such as the end of a line, become question
 * marks. */
static void log_add(struct entry *entry, const char *name, const char *value)
{
    if (entry->size > ENTRY_SIZE)
        return;
    char *line = entry->bytes + entry->size;
    size_t room = ENTRY_SIZE - entry->size;
    int n = snprintf(line, room, "%s=%s\n", name, value);
    if (n < 0 || (size_t)n >= room) {
        entry->size = ENTRY_SIZE + 1;
        return;
    }
    for (char *at = line; at < line + n - 1; at++)
        if ((unsigned char)*at < ' ')
            *at = '?';
    entry->size += (size_t)n;
}

static bool send_entry(const struct entry *entry)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (entry->size > ENTRY_SIZE || strlen(state.journal) >= sizeof address.sun_path)
        return false;
    memcpy(address.sun_path, state.journal, strlen(state.journal));
    dlx_cleanup(dlx__closep) int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return fd >= 0 &&
           sendto(fd, entry->bytes, entry->size, MSG_NOSIGNAL | MSG_DONTWAIT,
                  (const struct sockaddr *)&address, sizeof address) == (ssize_t)entry->size;
}

static bool emit_entry(enum dlxd_log_level level, const struct dlxd_log_field *fields,
                       size_t n_fields, const char *text)
{
    struct entry entry;
    const char priority[] = {(char)('0' + (int)level), '\0'};
    entry.size = 0;
    if (!state.journal)
        return false;
    log_add(&entry, "MESSAGE", text);
    log_add(&entry, "PRIORITY", priority);
    log_add(&entry, "SYSLOG_IDENTIFIER", "dlpackd");
    for (size_t i = 0; i < n_fields; i++)
        if (fields[i].value && *fields[i].value)
            log_add(&entry, fields[i].name, fields[i].value);
    return send_entry(&entry);
}

/* ---- lines --------------------------------------------------------------------------------- */

/* May a line of this level be written now? First reports the number of dropped lines. */
static bool log_begin(struct budget *budget, enum dlxd_log_level level)
{
    char text[64];
    uint64_t now = dlx__now_ns();
    if (level > state.level)
        return false;
    if (now - budget->second_ns >= UINT64_C(1000000000)) {
        budget->second_ns = now;
        budget->n_lines = 0;
    }
    if (budget->n_lines++ >= budget->max) {
        budget->n_dropped++;
        return false;
    }
    if (budget->n_dropped > 0) {
        (void)snprintf(text, sizeof text, "%u %s were not written", budget->n_dropped,
                       budget->what);
        if (emit(DLXD_LOG_WARNING, text))
            budget->n_dropped = 0;
    }
    return true;
}

void dlxd_log(enum dlxd_log_level level, const char *fmt, ...)
{
    char text[TEXT_SIZE];
    va_list ap;
    if (!log_begin(&state.lines, level))
        return;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!emit(level, text))
        state.lines.n_dropped++;
}

void dlxd_log_refusal(const struct dlxd_log_field *fields, size_t n_fields, const char *fmt, ...)
{
    char text[TEXT_SIZE];
    va_list ap;
    if (!log_begin(&state.refusals, DLXD_LOG_NOTICE))
        return;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!emit_entry(DLXD_LOG_NOTICE, fields, n_fields, text) && !emit(DLXD_LOG_NOTICE, text))
        state.refusals.n_dropped++;
}
