/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Runs the cases of tests/conformance/cases against programs that have libdlx in some language: the
 * adapters, which this program starts, asks and ends. README.md beside it has the contract.
 *
 *     driver [--only CASE] [--patience SECONDS] [--daemon FILE] [--peer COMMAND] [--verbose]
 *            FOLDER LANGUAGE=COMMAND...
 *
 * For each language, each case runs once with its adapter as program `a`, and once as `b`, if there
 * is one; the other programs of the case are the peer: the adapter in C, or COMMAND, which may lack
 * anything. Each run of a case has a daemon of its own. Exit 0: all languages passed.
 */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define N_PROGRAMS  4 /* a, b, c, d */
#define ANSWER_MAX  (1 << 20)
#define STATEMENTS  4096
#define FEATURES    64
#define START_MS    60000 /* for a program or a daemon to begin */
#define PAUSE_MS    5     /* between two tries of `a?` */
#define SIGNAL_MS   10    /* between two signals */
#define HISTORY_MAX (1 << 16)

struct statement {
    char *text;    /* a line of a case, without what follows it */
    char *pattern; /* of the line `= PATTERN` after it; NULL: the answer is "ok" or begins so */
    const char *file;
    unsigned line;
};

/* A language may lack a feature that README.md lists for it. */
struct feature {
    char name[64];
    unsigned n_seen;
};

struct program {
    pid_t pid;    /* 0: it does not run */
    int in, out;  /* the driver's ends: what it is asked, what it answers */
    size_t n_fds; /* descriptors, before its first command */
    char *unread; /* what it has said and the driver has not read */
    size_t n_unread;
    bool under_test;
};

static struct statement statements[STATEMENTS];
static unsigned n_statements;
static struct program programs[N_PROGRAMS];
static const char *daemon_file = "build/dlpackd", *peer, *only;
static int64_t patience_ms = 60000;
static char folder[256], socket_path[sizeof folder + 16], log_path[sizeof folder + 16];
static pid_t daemon_pid;
static bool is_paused;            /* the daemon */
static char history[HISTORY_MAX]; /* what was said in this run of a case */
static char answer[ANSWER_MAX];   /* the last one */
static int64_t asked_ms, took_ms; /* when the last command was sent, and the time to its answer */
static struct feature features[FEATURES];
static unsigned n_features;
static bool is_verbose, peer_may_lack; /* a peer that is not the adapter in C */
static bool lacks;                     /* the language lacks a feature that the case needs */

static _Noreturn void give_up(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void give_up(const char *format, ...)
{
    va_list words;
    va_start(words, format);
    (void)fputs("conformance: ", stderr);
    (void)vfprintf(stderr, format, words);
    (void)fputc('\n', stderr);
    va_end(words);
    exit(2);
}

static int64_t now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void note(const char *format, ...)
{
    size_t used = strlen(history);
    va_list words;
    va_start(words, format);
    (void)vsnprintf(history + used, sizeof history - used, format, words);
    va_end(words);
}

/* ---- the daemon ---------------------------------------------------------------------------- */

static void start_daemon(void)
{
    int ready[2];
    char number[16], said[16] = "";
    if (pipe2(ready, O_CLOEXEC) < 0)
        give_up("pipe2: %s", strerror(errno));
    (void)snprintf(number, sizeof number, "%d", ready[1]);
    daemon_pid = fork();
    if (daemon_pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)fcntl(ready[1], F_SETFD, 0);
        int fd = open(log_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        (void)dup2(fd, STDERR_FILENO);
        (void)execl(daemon_file, "dlpackd", "--socket", socket_path, "--ready-fd", number,
                    (char *)NULL);
        _exit(127);
    }
    (void)close(ready[1]);
    struct pollfd p = {.fd = ready[0], .events = POLLIN};
    if (poll(&p, 1, START_MS) != 1 || read(ready[0], said, sizeof said - 1) <= 0)
        give_up("%s does not listen on %s: see %s", daemon_file, socket_path, log_path);
    (void)close(ready[0]);
}

/* Says whether the daemon ended as it should. A SIGCONT beside the signal would disturb the leak
 * check at its end. */
static bool end_daemon(int signal_number)
{
    const int64_t deadline = now_ms() + START_MS;
    int status = 0;
    pid_t ended = 0;
    if (daemon_pid == 0)
        return true;
    if (is_paused)
        (void)kill(daemon_pid, SIGCONT);
    (void)kill(daemon_pid, signal_number);
    while ((ended = waitpid(daemon_pid, &status, WNOHANG)) == 0 && now_ms() < deadline)
        (void)poll(NULL, 0, 1);
    if (ended == 0) {
        (void)kill(daemon_pid, SIGKILL);
        (void)waitpid(daemon_pid, &status, 0);
    }
    daemon_pid = 0;
    is_paused = false;
    if (signal_number == SIGKILL || (WIFEXITED(status) && WEXITSTATUS(status) == 0))
        return true;
    note("  the daemon ended with the status %#x of waitpid(), and said:\n", (unsigned)status);
    FILE *log = fopen(log_path, "re");
    for (char line[256]; log && fgets(line, sizeof line, log);)
        note("    %s", line);
    if (log)
        (void)fclose(log);
    return false;
}

static void pause_daemon(bool on)
{
    is_paused = on;
    (void)kill(daemon_pid, on ? SIGSTOP : SIGCONT);
}

/* ---- programs ------------------------------------------------------------------------------ */

/* Entries of a folder of /proc: open descriptors. 0: it cannot be read. */
static size_t count_fds(pid_t pid)
{
    char path[64];
    size_t n = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *d = opendir(path);
    if (!d)
        return 0;
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    (void)closedir(d);
    return n;
}

/* Shared memory of dlpackd that the process maps. */
static size_t count_shared(pid_t pid)
{
    char path[64], line[512];
    size_t n = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/maps", pid);
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    while (fgets(line, sizeof line, f))
        n += strstr(line, "memfd:dlx") || strstr(line, "/dev/shm/dlpackd.");
    (void)fclose(f);
    return n;
}

/* The whole first line of what the program has said, if there is one. */
static bool have_line(struct program *p)
{
    char *end = p->n_unread ? memchr(p->unread, '\n', p->n_unread) : NULL;
    if (!end)
        return false;
    size_t size = (size_t)(end - p->unread);
    if (size >= sizeof answer)
        give_up("an answer of %zu bytes (limit %d)", size, ANSWER_MAX);
    memcpy(answer, p->unread, size);
    answer[size] = '\0';
    p->n_unread -= size + 1;
    memmove(p->unread, end + 1, p->n_unread);
    return true;
}

struct count {
    unsigned passed, failed, lacked; /* runs of cases */
};

enum heard { HEARD, NOTHING_YET, ENDED };

static enum heard hear(struct program *p, int64_t wait_ms)
{
    const int64_t deadline = now_ms() + wait_ms;
    while (!have_line(p)) {
        int64_t left = deadline - now_ms();
        struct pollfd fd = {.fd = p->out, .events = POLLIN};
        if (left < 0 || poll(&fd, 1, (int)left) == 0)
            return NOTHING_YET;
        p->unread = realloc(p->unread, p->n_unread + 65536);
        if (!p->unread)
            give_up("out of memory");
        ssize_t n = read(p->out, p->unread + p->n_unread, 65536);
        if (n <= 0)
            return ENDED;
        p->n_unread += (size_t)n;
    }
    took_ms = now_ms() - asked_ms;
    return HEARD;
}

static bool tell(struct program *p, const char *line)
{
    asked_ms = now_ms();
    return dprintf(p->in, "%s\n", line) > 0;
}

static void start_program(struct program *p, const char *command)
{
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) < 0 || pipe2(out, O_CLOEXEC) < 0)
        give_up("pipe2: %s", strerror(errno));
    p->pid = fork();
    if (p->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)dup2(in[0], STDIN_FILENO);
        (void)dup2(out[1], STDOUT_FILENO);
        char line[4096];
        (void)snprintf(line, sizeof line, "exec %s", command);
        (void)execl("/bin/bash", "bash", "-c", line, (char *)NULL);
        _exit(127);
    }
    (void)close(in[0]);
    (void)close(out[1]);
    p->in = in[1];
    p->out = out[0];
    p->n_unread = 0;
    if (!tell(p, "version") || hear(p, START_MS) != HEARD || strncmp(answer, "ok ", 3) != 0)
        give_up("'%s' does not answer `version` with \"ok\" and the version", command);
    p->n_fds = count_fds(p->pid);
}

/* Returns its status as of waitpid(). */
static int forget_program(struct program *p)
{
    int status = 0;
    (void)close(p->in);
    (void)close(p->out);
    (void)waitpid(p->pid, &status, 0);
    free(p->unread);
    *p = (struct program){.under_test = p->under_test};
    return status;
}

static void kill_program(struct program *p)
{
    if (p->pid > 0) {
        (void)kill(p->pid, SIGKILL);
        (void)forget_program(p);
    }
}

/* It ends by itself when there is nothing more to read, and has released everything. */
static bool end_program(struct program *p)
{
    (void)close(p->in);
    p->in = -1;
    struct pollfd fd = {.fd = p->out, .events = POLLIN};
    if (poll(&fd, 1, (int)patience_ms) == 0) {
        note("  it does not end at the end of its input\n");
        kill_program(p);
        return false;
    }
    int status = forget_program(p);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        note("  it ended with the status %#x of waitpid()\n", (unsigned)status);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* ---- what cases say ------------------------------------------------------------------------ */

static uint32_t crc_of(uint32_t crc, uint8_t byte)
{
    crc ^= byte;
    for (int i = 0; i < 8; i++)
        crc = crc >> 1 ^ (crc & 1 ? 0xedb88320U : 0);
    return crc;
}

/* Replaces $socket, $pid(a), $crc(SEED,BYTES) and $crc(HEX). */
static char *expand(const char *text)
{
    char *ret = NULL, name;
    size_t size;
    unsigned seed, n;
    FILE *f = open_memstream(&ret, &size);
    if (!f)
        give_up("out of memory");
    while (*text) {
        if (strncmp(text, "$socket", 7) == 0) {
            (void)fputs(socket_path, f);
            text += 7;
        } else if (sscanf(text, "$pid(%c)", &name) == 1) {
            (void)fprintf(f, "%d", (int)programs[name - 'a'].pid);
            text += 7;
        } else if (strncmp(text, "$crc(", 5) == 0) {
            uint32_t crc = 0xffffffff;
            text += 5;
            if (sscanf(text, "%u,%u)", &seed, &n) == 2)
                for (unsigned i = 0; i < n; i++)
                    crc = crc_of(crc, (uint8_t)(seed + i));
            else
                for (const char *at = text; sscanf(at, "%2x", &n) == 1; at += 2)
                    crc = crc_of(crc, (uint8_t)n);
            (void)fprintf(f, "%08x", ~crc);
            text = strchr(text, ')') + 1;
        } else {
            (void)fputc(*text++, f);
        }
    }
    (void)fclose(f);
    return ret;
}

/* '*' stands for any characters; "A || B" for either of both. */
static bool matches(const char *pattern, const char *text)
{
    char *copy = strdup(pattern), *rest = copy;
    bool does = false;
    while (!does && rest) {
        char *one = rest, *end = strstr(rest, " || ");
        rest = end ? end + 4 : NULL;
        if (end)
            *end = '\0';
        does = fnmatch(one, text, FNM_NOESCAPE) == 0;
    }
    free(copy);
    return does;
}

static bool fits(const struct statement *s)
{
    if (!s->pattern)
        return strcmp(answer, "ok") == 0 || strncmp(answer, "ok ", 3) == 0;
    char *pattern = expand(s->pattern);
    bool does = matches(pattern, answer);
    free(pattern);
    return does;
}

/* Looks at the answer: true if it fits, or says which feature is not there. */
static bool judge(struct program *p, const struct statement *s)
{
    char name[64];
    if (!p->under_test && peer_may_lack && strncmp(answer, "unsupported ", 12) == 0) {
        lacks = true;
        return true;
    }
    if (p->under_test && sscanf(answer, "unsupported %63s", name) == 1) {
        for (unsigned i = 0; i < n_features; i++)
            if (strcmp(features[i].name, name) == 0) {
                features[i].n_seen++;
                lacks = true;
                return true;
            }
        note("  README.md does not list %s for this language\n", name);
        return false;
    }
    if (!fits(s))
        note("  expected: %s\n", s->pattern ? s->pattern : "ok");
    return fits(s);
}

/* The program has not answered, or has ended: it runs no more. */
static void end_silent(struct program *p, enum heard heard)
{
    if (heard == NOTHING_YET) {
        note("  no answer within %lld ms\n", (long long)patience_ms);
        kill_program(p);
    } else {
        int status = forget_program(p);
        note("  it ended, with the status %#x of waitpid()\n", (unsigned)status);
    }
}

static bool await(struct program *p, const struct statement *s, bool with_signals)
{
    const int64_t deadline = now_ms() + patience_ms;
    enum heard heard;
    do {
        if (with_signals)
            (void)kill(p->pid, SIGUSR1);
        heard = hear(p, with_signals ? SIGNAL_MS : patience_ms);
    } while (heard == NOTHING_YET && now_ms() < deadline);
    if (heard != HEARD) {
        end_silent(p, heard);
        return false;
    }
    note("    %.2000s\n", answer);
    return judge(p, s);
}

/* Asks again until the answer fits. */
static bool await_fit(struct program *p, const struct statement *s, const char *command)
{
    const int64_t deadline = now_ms() + patience_ms;
    do {
        (void)tell(p, command); /* a program that does not listen does not answer */
        enum heard heard = hear(p, patience_ms);
        if (heard != HEARD) {
            end_silent(p, heard);
            return false;
        }
        if (fits(s) || strncmp(answer, "unsupported ", 12) == 0 || now_ms() > deadline)
            break;
        (void)poll(NULL, 0, PAUSE_MS);
    } while (true);
    note("    %.2000s\n", answer);
    return judge(p, s);
}

static bool command_daemon(const char *what)
{
    if (strcmp(what, "kill") == 0)
        (void)end_daemon(SIGKILL);
    else if (strcmp(what, "stop") == 0)
        return end_daemon(SIGTERM);
    else if (strcmp(what, "pause") == 0)
        pause_daemon(true);
    else if (strcmp(what, "continue") == 0)
        pause_daemon(false);
    else if (strcmp(what, "start") == 0)
        start_daemon();
    else
        give_up("unknown: daemon %s", what);
    return true;
}

/* The program that a statement names, which runs from then on. */
static struct program *named(const char *name, const char *const commands[N_PROGRAMS])
{
    if (name[0] < 'a' || name[0] >= 'a' + N_PROGRAMS)
        give_up("no program is called '%s'", name);
    struct program *p = &programs[name[0] - 'a'];
    if (p->pid == 0)
        start_program(p, commands[name[0] - 'a']);
    return p;
}

static bool run_statement(const struct statement *s, const char *const commands[N_PROGRAMS])
{
    char verb[16], argument[16] = "";
    int at = 0;
    char *text = expand(s->text);
    bool good = true;
    note("  %s\n", text);
    (void)sscanf(text, "%15s %15s", verb, argument);
    (void)sscanf(text, "%*s %n", &at);
    if (strcmp(verb, "daemon") == 0) {
        good = command_daemon(argument);
    } else if (strcmp(verb, "kill") == 0) {
        kill_program(named(argument, commands));
    } else if (strcmp(verb, "end") == 0) {
        good = end_program(named(argument, commands));
    } else if (strcmp(verb, "signal") == 0) {
        good = await(named(argument, commands), s, true);
    } else if (strcmp(verb, "took") == 0) {
        good = took_ms >= atoi(argument);
        if (!good)
            note("  the answer came after %lld ms\n", (long long)took_ms);
    } else {
        struct program *p = named(verb, commands);
        switch (verb[1]) {
        case '\0':
            good = tell(p, text + at) && await(p, s, false);
            break;
        case '&':
            good = tell(p, text + at);
            break;
        case '=':
            good = await(p, s, false);
            break;
        case '?':
            good = await_fit(p, s, text + at);
            break;
        default:
            give_up("%s:%u: what is '%s'?", s->file, s->line, verb);
        }
    }
    free(text);
    return good;
}

/* ---- runs of cases ------------------------------------------------------------------------- */

/* After a case each program releases what it has, and nothing of it may be left. */
static bool reset_programs(void)
{
    static const struct statement reset = {0};
    bool good = true;
    for (unsigned i = 0; i < N_PROGRAMS; i++) {
        struct program *p = &programs[i];
        if (p->pid == 0)
            continue;
        note("  %c reset\n", (int)('a' + i));
        if (!tell(p, "reset") || !await(p, &reset, false)) {
            good = false;
            continue;
        }
        size_t n_fds = count_fds(p->pid), n_shared = count_shared(p->pid);
        if (n_fds != p->n_fds || n_shared > 0) {
            note("  after reset it has %zu descriptors (%zu before its first command) and maps %zu "
                 "pieces of shared memory\n",
                 n_fds, p->n_fds, n_shared);
            good = false;
            kill_program(p);
        }
    }
    return good;
}

/* Statements [from, to). */
static bool run_case(unsigned from, unsigned to, const char *const commands[N_PROGRAMS])
{
    bool good = true;
    history[0] = '\0';
    lacks = false;
    start_daemon();
    for (unsigned i = from; i < to && good && !lacks; i++) {
        good = run_statement(&statements[i], commands);
        if (!good)
            note("  at %s:%u\n", statements[i].file, statements[i].line);
    }
    if (lacks || !good) /* one may still wait for something */
        for (unsigned i = 0; i < N_PROGRAMS; i++)
            kill_program(&programs[i]);
    if (is_paused)
        pause_daemon(false);
    good &= reset_programs();
    good &= end_daemon(SIGTERM);
    return good;
}

static bool uses(unsigned from, unsigned to, char name)
{
    for (unsigned i = from; i < to; i++)
        if (statements[i].text[0] == name && strchr(" &=?", statements[i].text[1]))
            return true;
    return false;
}

static void read_features(const char *path, const char *language)
{
    char line[256], of[64], name[64];
    FILE *f = fopen(path, "re");
    if (!f)
        give_up("%s: %s", path, strerror(errno));
    n_features = 0;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "| %63s | `%63[^`]` |", of, name) == 2 && strcmp(of, language) == 0 &&
            n_features < FEATURES) {
            features[n_features] = (struct feature){.n_seen = 0};
            (void)snprintf(features[n_features++].name, sizeof name, "%s", name);
        }
    (void)fclose(f);
}

/* The case that begins at statement `from`: its name; returns where the next one begins. */
static unsigned next_case(unsigned from, char name[128])
{
    unsigned to = from + 1;
    if (sscanf(statements[from].text, "case %127s", name) != 1)
        give_up("%s:%u: no case begins here", statements[from].file, statements[from].line);
    while (to < n_statements && strncmp(statements[to].text, "case ", 5) != 0)
        to++;
    return to;
}

/* Runs the cases with this program as `a` (role 0) or `b` (role 1). */
static void run_role(struct count *count, const char *language, const char *command, unsigned role)
{
    const char *commands[N_PROGRAMS] = {peer, peer, peer, peer};
    char name[128];
    commands[role] = command;
    programs[role].under_test = true;
    for (unsigned from = 0, to; from < n_statements; from = to) {
        to = next_case(from, name);
        if ((only && strcmp(name, only) != 0) || (role > 0 && !uses(from, to, 'b')))
            continue;
        const int64_t began_ms = now_ms();
        if (!run_case(from + 1, to, commands)) {
            printf("%s: FAILED: case %s, as program %c\n%s", language, name, (int)('a' + role),
                   history);
            count->failed++;
        } else if (lacks) {
            count->lacked++;
        } else {
            count->passed++;
        }
        if (is_verbose)
            printf("%s: %s, as program %c: %lld ms\n", language, name, (int)('a' + role),
                   (long long)(now_ms() - began_ms));
    }
    history[0] = '\0';
    if (programs[role].pid > 0 && !end_program(&programs[role])) {
        printf("%s: FAILED: its end\n%s", language, history);
        count->failed++;
    }
    for (unsigned i = 0; i < N_PROGRAMS; i++)
        kill_program(&programs[i]);
    programs[role].under_test = false;
}

static bool run_language(const char *language, const char *command)
{
    struct count count = {0};
    run_role(&count, language, command, 0);
    if (strcmp(command, peer) != 0)
        run_role(&count, language, command, 1);
    printf("%s: %u passed, %u failed, %u not supported:", language, count.passed, count.failed,
           count.lacked);
    for (unsigned i = 0; i < n_features; i++)
        printf(" %s (%u)", features[i].name, features[i].n_seen);
    printf("\n");
    for (unsigned i = 0; i < n_features && !only && !peer_may_lack; i++)
        if (features[i].n_seen == 0) {
            printf("%s: FAILED: README.md says that it lacks %s, which no case found\n", language,
                   features[i].name);
            count.failed++;
        }
    if (count.passed == 0)
        printf("%s: FAILED: nothing was run\n", language);
    return count.failed == 0 && count.passed > 0;
}

/* Reads a file of cases: a line that begins with more than 4 spaces goes on with the one before,
 * after a space unless that ends in a comma. */
static void read_cases(const char *path)
{
    char *line = NULL, **last = NULL;
    size_t room = 0;
    FILE *f = fopen(path, "re");
    if (!f)
        give_up("%s: %s", path, strerror(errno));
    path = strdup(path);
    for (unsigned number = 1; getline(&line, &room, f) >= 0; number++) {
        size_t indent = strspn(line, " ");
        line[strcspn(line, "\n")] = '\0';
        if (line[indent] == '\0' || line[indent] == '#')
            continue;
        if (indent > 4 && last) {
            char *longer = NULL;
            const char *between = (*last)[strlen(*last) - 1] == ',' ? "" : " ";
            if (asprintf(&longer, "%s%s%s", *last, between, line + indent) < 0)
                give_up("out of memory");
            free(*last);
            *last = longer;
        } else if (strncmp(line + indent, "= ", 2) == 0 && n_statements > 0) {
            last = &statements[n_statements - 1].pattern;
            *last = strdup(line + indent + 2);
        } else if (n_statements < STATEMENTS) {
            statements[n_statements] = (struct statement){.file = path, .line = number};
            last = &statements[n_statements++].text;
            *last = strdup(line + indent);
        } else {
            give_up("more than %d statements", STATEMENTS);
        }
    }
    free(line);
    (void)fclose(f);
}

static int is_case(const struct dirent *e)
{
    return strstr(e->d_name, ".case") != NULL;
}

static void clean_up(void)
{
    char lock_path[sizeof socket_path + 8];
    for (unsigned i = 0; i < N_PROGRAMS; i++)
        kill_program(&programs[i]);
    (void)end_daemon(SIGTERM);
    (void)snprintf(lock_path, sizeof lock_path, "%s.lock", socket_path);
    (void)unlink(socket_path);
    (void)unlink(lock_path); /* of a daemon that was killed */
    (void)unlink(log_path);
    (void)rmdir(folder);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"only", required_argument, NULL, 'o'},   {"patience", required_argument, NULL, 'p'},
        {"daemon", required_argument, NULL, 'd'}, {"peer", required_argument, NULL, 'e'},
        {"verbose", no_argument, NULL, 'v'},      {0}};
    char path[4096], own[4096] = "";
    bool good = true;
    (void)signal(SIGPIPE, SIG_IGN);
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) >= 0;)
        switch (c) {
        case 'o':
            only = optarg;
            break;
        case 'p':
            patience_ms = 1000 * (int64_t)atoi(optarg);
            break;
        case 'd':
            daemon_file = optarg;
            break;
        case 'e':
            peer = optarg;
            peer_may_lack = true;
            break;
        case 'v':
            is_verbose = true;
            break;
        default:
            return 2;
        }
    if (argc - optind < 2)
        give_up("usage: driver [OPTION...] FOLDER LANGUAGE=COMMAND...");
    if (!peer) { /* the adapter in C, which was built beside this program */
        ssize_t n = readlink("/proc/self/exe", path, sizeof path - 8);
        char *slash = n > 0 ? memrchr(path, '/', (size_t)n) : NULL;
        (void)snprintf(own, sizeof own, "%.*s/c", slash ? (int)(slash - path) : 0, path);
        peer = own;
    }
    struct dirent **found;
    (void)snprintf(path, sizeof path, "%s/cases", argv[optind]);
    const int n_found = scandir(path, &found, is_case, alphasort);
    if (n_found <= 0)
        give_up("%s has no *.case", path);
    for (int i = 0; i < n_found; i++) {
        (void)snprintf(path, sizeof path, "%s/cases/%s", argv[optind], found[i]->d_name);
        read_cases(path);
        free(found[i]);
    }
    free(found);
    const char *tmp = getenv("TMPDIR");
    (void)snprintf(folder, sizeof folder, "%s/dlx-conformance.XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(folder))
        give_up("%s: %s", folder, strerror(errno));
    (void)snprintf(socket_path, sizeof socket_path, "%s/socket", folder);
    (void)snprintf(log_path, sizeof log_path, "%s/log", folder);
    (void)setenv("DLX_SOCKET", socket_path, 1);
    (void)atexit(clean_up);
    for (int i = optind + 1; i < argc; i++) {
        char *command = strchr(argv[i], '=');
        if (!command)
            give_up("'%s' is not LANGUAGE=COMMAND", argv[i]);
        *command++ = '\0';
        (void)snprintf(path, sizeof path, "%s/README.md", argv[optind]);
        read_features(path, argv[i]);
        good &= run_language(argv[i], command);
    }
    return good ? 0 : 1;
}
