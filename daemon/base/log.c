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

#define LINES_MAX       100U /* for the administrator, and of all clients: in a second */
#define USERS_LINES_MAX 10U  /* of one user, and as many refusals */
#define USERS_MAX       64U  /* whose lines are counted apart */

/* The lines of one kind written in the current second. */
struct budget {
    uint64_t second_ns; /* start of the current second */
    unsigned n_lines;
    unsigned n_dropped;
};

struct user_budgets {
    uint64_t whose;
    struct budget lines, refusals;
};

static struct {
    enum dlxd_log_level level;
    const char *journal;
    struct budget lines;   /* for the administrator */
    struct budget clients; /* of all clients; n_dropped: of users that have no place any more */
    struct user_budgets users[USERS_MAX];
    size_t n_users;
} state;

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

/* ---- budgets ------------------------------------------------------------------------------- */

static bool budget_has_room(struct budget *budget, unsigned max, uint64_t now)
{
    if (now - budget->second_ns >= UINT64_C(1000000000)) {
        budget->second_ns = now;
        budget->n_lines = 0;
    }
    return budget->n_lines < max;
}

/* Reports the number of dropped lines. */
static void tell_dropped(struct budget *budget, const char *what, const char *whose)
{
    char text[96];
    if (budget->n_dropped == 0)
        return;
    (void)snprintf(text, sizeof text, "%u %s were not written%s", budget->n_dropped, what, whose);
    if (emit(DLXD_LOG_WARNING, text))
        budget->n_dropped = 0;
}

static void tell_dropped_of(struct user_budgets *user)
{
    char whose[40];
    (void)snprintf(whose, sizeof whose, " (of uid %u)", (unsigned)(uint32_t)user->whose);
    tell_dropped(&user->lines, "lines", whose);
    tell_dropped(&user->refusals, "refusals", whose);
}

/* If there are many users, the one that logged least recently loses its place. */
static struct user_budgets *user_budgets_of(uint64_t whose)
{
    struct user_budgets *oldest = &state.users[0];
    for (size_t i = 0; i < state.n_users; i++) {
        struct user_budgets *user = &state.users[i];
        if (user->whose == whose)
            return user;
        if (DLX_MAX(user->lines.second_ns, user->refusals.second_ns) <
            DLX_MAX(oldest->lines.second_ns, oldest->refusals.second_ns))
            oldest = user;
    }
    if (state.n_users < USERS_MAX)
        oldest = &state.users[state.n_users++];
    state.clients.n_dropped += oldest->lines.n_dropped + oldest->refusals.n_dropped;
    *oldest = (struct user_budgets){.whose = whose};
    return oldest;
}

/* May the user's client cause a line of this level now? */
static bool log_begin_client(struct user_budgets *user, struct budget *budget,
                             enum dlxd_log_level level)
{
    uint64_t now = dlx__now_ns();
    if (level > state.level)
        return false;
    if (!budget_has_room(budget, USERS_LINES_MAX, now) ||
        !budget_has_room(&state.clients, LINES_MAX, now)) {
        budget->n_dropped++;
        return false;
    }
    budget->n_lines++;
    state.clients.n_lines++;
    tell_dropped_of(user);
    tell_dropped(&state.clients, "lines", " (of several users)");
    return true;
}

void dlxd_log_flush(void)
{
    tell_dropped(&state.lines, "lines", "");
    tell_dropped(&state.clients, "lines", " (of several users)");
    for (size_t i = 0; i < state.n_users; i++)
        tell_dropped_of(&state.users[i]);
}

/* ---- lines --------------------------------------------------------------------------------- */

void dlxd_log(enum dlxd_log_level level, const char *fmt, ...)
{
    char text[TEXT_SIZE];
    va_list ap;
    if (level > state.level)
        return;
    if (!budget_has_room(&state.lines, LINES_MAX, dlx__now_ns()) && level != DLXD_LOG_ERROR) {
        state.lines.n_dropped++;
        return;
    }
    state.lines.n_lines++;
    tell_dropped(&state.lines, "lines", "");
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!emit(level, text))
        state.lines.n_dropped++;
}

void dlxd_log_client(uint64_t whose, enum dlxd_log_level level, const char *fmt, ...)
{
    char text[TEXT_SIZE];
    va_list ap;
    struct user_budgets *user = user_budgets_of(whose);
    if (!log_begin_client(user, &user->lines, level))
        return;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!emit(level, text))
        user->lines.n_dropped++;
}

void dlxd_log_refusal(uint64_t whose, const struct dlxd_log_field *fields, size_t n_fields,
                      const char *fmt, ...)
{
    char text[TEXT_SIZE];
    va_list ap;
    struct user_budgets *user = user_budgets_of(whose);
    if (!log_begin_client(user, &user->refusals, DLXD_LOG_NOTICE))
        return;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!emit_entry(DLXD_LOG_NOTICE, fields, n_fields, text) && !emit(DLXD_LOG_NOTICE, text))
        user->refusals.n_dropped++;
}
