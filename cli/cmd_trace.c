/* SPDX-License-Identifier: Apache-2.0 */

/* dlxctl trace: how long messages are on the way and held, who wakes whom, and who ends while it
 * holds messages, by the probes of running programs. */

#include "cli/board_view.h"
#include "cli/cli.h"
#include "cli/look.h"
#include "cli/output.h"
#include "cli/trace.h"
#include "cli/trace_chrome.h"
#include "cli/trace_files.h"
#include "cli/trace_names.h"
#include "cli/trace_report.h"
#include "cli/wait.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How often the daemon is asked for programs and topics. */
#define LOOK_NS INT64_C(1000000000)
/* How often the ring of events is read, which messages do not wake this program for. */
#define READ_NS INT64_C(100000000)

/* A program that was looked at, by its connection, or by its pid if it was named. */
struct program {
    uint64_t client; /* 0: named */
    uint32_t pid;
};

struct tracing {
    struct look look; /* topic */
    struct cli_texts pids;
    const char *chrome_path;
    int64_t duration_ns;

    struct trace *trace;
    struct trace_files *files;
    struct trace_names *names;
    struct trace_report *report;
    struct trace_chrome *chrome;
    uint32_t named[CLI_TEXTS_MAX];
    bool was_found[CLI_TEXTS_MAX]; /* the named program has probes */
    struct program *programs;
    size_t n_programs;
    uint32_t n_probed; /* programs with probes */
    bool has_said_lost;
    bool has_said_full;
    bool lacks_memory;
};

static void trace_check(void *into, struct argp_state *state)
{
    struct tracing *t = into;
    for (uint32_t i = 0; i < t->pids.n; i++) {
        char *end;
        unsigned long pid = strtoul(t->pids.items[i], &end, 10);
        if (*end || pid == 0 || pid > INT32_MAX || *t->pids.items[i] == '-')
            argp_error(state, "--pid %s: a process id is expected", t->pids.items[i]);
        t->named[i] = (uint32_t)pid;
    }
    if (t->chrome_path && !*t->chrome_path)
        argp_error(state, "--chrome: a path is missing");
}

/* ---- topics ---------------------------------------------------------------------------------- */

static bool wants(const char *topic, void *userdata)
{
    const struct tracing *t = userdata;
    return !t->look.topic || board_matches(t->look.topic, topic);
}

static void note(struct tracing *t, int code)
{
    t->lacks_memory |= code == DLX_E_NO_MEMORY;
}

static void note_claim(struct tracing *t, int code)
{
    note(t, code);
    if (code == DLX_E_LIMIT && !t->has_said_full)
        (void)cli_report(t->look.cli, NULL,
                         "programs gave %d names of publishers and programs between looks at "
                         "dlpackd's lists: further ones are left out until dlpackd tells them",
                         TRACE_NAMES_CLAIMED_MAX);
    t->has_said_full |= code == DLX_E_LIMIT;
}

/* ---- events ---------------------------------------------------------------------------------- */

struct ending {
    struct tracing *tracing;
    const struct trace_event *event;
    struct trace_exit *exits; /* one for each topic */
    size_t n_exits;
    struct trace_hold_key *keys;
    size_t n_keys;
};

static struct trace_exit *exit_of(struct ending *ending, const char *topic)
{
    const struct trace_event *event = ending->event;
    for (size_t i = 0; i < ending->n_exits; i++)
        if (strcmp(ending->exits[i].topic, topic) == 0)
            return &ending->exits[i];
    struct trace_exit *exits =
        reallocarray(ending->exits, ending->n_exits + 1, sizeof *ending->exits);
    if (!exits)
        return NULL;
    ending->exits = exits;
    struct trace_exit *exit = &exits[ending->n_exits++];
    *exit = (struct trace_exit){.pid = event->pid, .is_exec = event->kind == TRACE_EXEC};
    const char *name = trace_names_program(ending->tracing->names, event->pid);
    if (name)
        (void)snprintf(exit->program, sizeof exit->program, "%s", name);
    else
        (void)snprintf(exit->program, sizeof exit->program, "%.15s", event->comm);
    (void)snprintf(exit->topic, sizeof exit->topic, "%s", topic);
    return exit;
}

static void add_hold(const void *key, const void *value, void *userdata)
{
    struct ending *ending = userdata;
    struct tracing *t = ending->tracing;
    const struct trace_hold *hold = value;
    if (hold->pid != ending->event->pid)
        return;
    struct trace_hold_key *keys =
        reallocarray(ending->keys, ending->n_keys + 1, sizeof *ending->keys);
    if (!keys) {
        note(t, DLX_E_NO_MEMORY);
        return;
    }
    ending->keys = keys;
    keys[ending->n_keys++] = *(const struct trace_hold_key *)key;
    const char *topic = trace_names_topic(t->names, hold->publisher);
    if (!topic || !wants(topic, t))
        return;
    if (t->chrome)
        trace_chrome_add_held(t->chrome, key, hold, ending->event->ns, topic);
    struct trace_exit *exit = exit_of(ending, topic);
    if (!exit) {
        note(t, DLX_E_NO_MEMORY);
        return;
    }
    int64_t age = (int64_t)(ending->event->ns - hold->taken_ns);
    exit->n++;
    exit->held_ns = age > exit->held_ns ? age : exit->held_ns;
}

/* A program that has taken nothing since: what the daemon said that it holds. */
static void add_earlier_holds(struct ending *ending)
{
    struct tracing *t = ending->tracing;
    for (size_t i = 0; i < t->look.n_entries; i++) {
        const struct look_entry *entry = &t->look.entries[i];
        for (size_t l = 0; l < entry->n_links; l++) {
            const struct dlx_link_info *link = &entry->links[l];
            if (link->pid != ending->event->pid || link->n_held == 0)
                continue;
            struct trace_exit *exit = exit_of(ending, entry->info.topic);
            if (!exit) {
                note(t, DLX_E_NO_MEMORY);
                return;
            }
            exit->n += link->n_held;
            exit->held_ns = -1;
        }
    }
}

static void end_program(struct tracing *t, const struct trace_event *event)
{
    struct ending ending = {.tracing = t, .event = event};
    if (!trace_is_watched(t->trace, event->pid)) /* several of its threads were the last one */
        return;
    note(t, trace_each(t->trace, TRACE_HOLDS, add_hold, &ending));
    if (ending.n_keys == 0 && !trace_has_taken(t->trace, event->pid))
        add_earlier_holds(&ending);
    for (size_t i = 0; i < ending.n_exits; i++) {
        note(t, trace_report_add_exit(t->report, &ending.exits[i]));
        if (!t->look.cli->json)
            trace_report_print_exit(&ending.exits[i], stdout);
    }
    (void)fflush(stdout);
    for (size_t i = 0; i < ending.n_keys; i++)
        trace_forget_hold(t->trace, &ending.keys[i]);
    trace_forget(t->trace, event->pid);
    free(ending.exits);
    free(ending.keys);
}

static void trace_on_event(const struct trace_event *event, void *userdata)
{
    struct tracing *t = userdata;
    const struct trace_attach *attach;
    char topic[TRACE_TOPIC_SIZE];
    switch (event->kind) {
    case TRACE_ATTACH:
        attach = (const struct trace_attach *)event;
        (void)snprintf(topic, sizeof topic, "%.255s", attach->topic);
        if (!t->look.topic || board_matches(t->look.topic, topic))
            note_claim(t, trace_names_claim_publisher(t->names, event->publisher, topic));
        note_claim(t, trace_names_claim_program(t->names, event->pid, event->comm));
        return;
    case TRACE_EXIT:
    case TRACE_EXEC:
        end_program(t, event);
        return;
    default:
        break;
    }
    const char *name = trace_names_topic(t->names, event->publisher);
    if (t->chrome && name && wants(name, t))
        trace_chrome_add(t->chrome, event, name);
}

/* ---- programs -------------------------------------------------------------------------------- */

static bool is_known(const struct tracing *t, uint64_t client, uint32_t pid)
{
    for (size_t i = 0; i < t->n_programs; i++)
        if (t->programs[i].client == client && t->programs[i].pid == pid)
            return true;
    return false;
}

static bool is_named(const struct tracing *t, uint32_t pid)
{
    for (uint32_t i = 0; i < t->pids.n; i++)
        if (t->named[i] == pid)
            return true;
    return false;
}

static void trace_remember(struct tracing *t, uint64_t client, uint32_t pid)
{
    struct program *programs = reallocarray(t->programs, t->n_programs + 1, sizeof *programs);
    if (!programs) {
        note(t, DLX_E_NO_MEMORY);
        return;
    }
    t->programs = programs;
    programs[t->n_programs++] = (struct program){.client = client, .pid = pid};
}

/* Has its probes counted, or says why it has none. */
static int look_at_program(struct tracing *t, uint32_t pid, const char *name, struct cli_error *e)
{
    struct trace_found found;
    char path[256], program[128];
    output_printable(name, program, sizeof program);
    trace_watch(t->trace, pid);
    int r = trace_files_look(t->files, t->trace, pid, is_named(t, pid), &found, e);
    if (r < 0)
        return r;
    t->n_probed += found.n_probed > 0;
    if (found.n_probed > 0)
        return 1;
    if (found.n_others == 0)
        return cli_fail(e, DLX_E_NOT_FOUND,
                        "%s (pid %u) has no probes: its libdlx was built without sys/sdt.h",
                        program, pid);
    output_printable(found.path, path, sizeof path);
    return cli_fail(e, DLX_E_ACCESS,
                    "%s (pid %u) maps %s, which uid %u or others can change, so it is not read: "
                    "--pid %u reads it",
                    program, pid, path, found.uid, pid);
}

static int on_client(const struct dlx_client_info *info, void *userdata)
{
    struct tracing *t = userdata;
    struct cli_error e;
    if (info->own || info->pid == 0 || is_known(t, info->client, info->pid))
        return 0;
    trace_remember(t, info->client, info->pid);
    note(t, trace_names_add_program(t->names, info->pid, info->client_name));
    int r = look_at_program(t, info->pid, info->client_name, &e);
    if (r < 0 && !is_named(t, info->pid)) /* else it is said once, below */
        (void)cli_report(t->look.cli, NULL, "%s", e.text);
    return r == DLX_E_NO_MEMORY ? r : 0;
}

static void look_at_named(struct tracing *t)
{
    struct cli_error e;
    for (uint32_t i = 0; i < t->pids.n; i++)
        if (!t->was_found[i]) {
            const char *name = trace_names_program(t->names, t->named[i]);
            t->was_found[i] = look_at_program(t, t->named[i], name ? name : "a program", &e) > 0;
        }
}

/* Asks the daemon who there is. */
static int trace_look(struct tracing *t)
{
    int code = look_ask(&t->look);
    for (size_t i = 0; i < t->look.n_entries && code == 0; i++) {
        const struct look_entry *entry = &t->look.entries[i];
        code = trace_names_add_publisher(t->names, entry->info.publisher, entry->info.topic);
        if (code == 0 && entry->info.pid > 0)
            code = trace_names_add_program(t->names, entry->info.pid, entry->info.client_name);
        for (size_t l = 0; l < entry->n_links && code == 0; l++)
            if (entry->links[l].pid > 0)
                code = trace_names_add_program(t->names, entry->links[l].pid,
                                               entry->links[l].client_name);
    }
    if (code == 0)
        code = dlx_list_clients(t->look.cli->client, on_client, t);
    look_at_named(t);
    return code;
}

/* A daemon that ends is no end of a trace: streams go on. */
static int trace_look_again(struct tracing *t)
{
    int code = trace_look(t);
    if (code < 0 && !t->has_said_lost)
        (void)cli_report_dlx(t->look.cli, t->look.topic, code);
    t->has_said_lost = code < 0;
    return code == DLX_E_NO_MEMORY || code == DLX_E_TOPIC ? code : 0;
}

/* Named programs have to have probes at the start. */
static int check_named(struct tracing *t)
{
    struct cli_error e;
    for (uint32_t i = 0; i < t->pids.n; i++) {
        if (t->was_found[i])
            continue;
        const char *name = trace_names_program(t->names, t->named[i]);
        int r = look_at_program(t, t->named[i], name ? name : "the program", &e);
        if (r < 0)
            return cli_report(t->look.cli, NULL, "%s", e.text);
        t->was_found[i] = true;
    }
    return CLI_OK;
}

/* Process ids of a daemon in a container name other processes here. */
static int trace_check_scope(struct tracing *t)
{
    struct dlx_daemon_info info = {.size = sizeof info};
    int code = dlx_client_get_daemon_info(t->look.cli->client, &info);
    if (code < 0)
        return cli_report_dlx(t->look.cli, NULL, code);
    if (info.pid_scope != DLX_PID_HERE)
        return cli_report(t->look.cli, NULL,
                          "dlpackd's process ids are those of another pid namespace: run dlxctl "
                          "where dlpackd runs");
    return CLI_OK;
}

/* ---- the run --------------------------------------------------------------------------------- */

static void trace_watch_all(struct tracing *t, int64_t start)
{
    int64_t end = t->duration_ns > 0 ? start + t->duration_ns : WAIT_FOREVER;
    int64_t next_look = wait_now() + LOOK_NS;
    bool more = false;
    while (!wait_signal() && !t->lacks_memory && wait_now() < end) {
        int64_t until = wait_now() + READ_NS < end ? wait_now() + READ_NS : end;
        if (!more)
            (void)wait_until(trace_fd(t->trace), until);
        more = trace_read(t->trace);
        if (wait_now() >= next_look) {
            if (trace_look_again(t) < 0)
                break;
            next_look = wait_now() + LOOK_NS;
        }
    }
    /* What was sent before the end, and not what is sent for ever. */
    end = wait_now() + LOOK_NS;
    while (trace_read(t->trace) && wait_now() < end)
        ;
}

static void add_rest(const void *key, const void *value, void *userdata)
{
    struct tracing *t = userdata;
    const struct trace_hold *hold = value;
    const char *topic = trace_names_topic(t->names, hold->publisher);
    if (topic && wants(topic, t))
        trace_chrome_add_held(t->chrome, key, hold, (uint64_t)wait_now(), topic);
}

static int end_chrome(struct tracing *t)
{
    struct cli_error e;
    uint64_t left_out = 0;
    note(t, trace_each(t->trace, TRACE_HOLDS, add_rest, t));
    for (size_t i = 0; i < t->n_programs; i++) {
        const char *name = trace_names_program(t->names, t->programs[i].pid);
        if (name)
            trace_chrome_add_process(t->chrome, t->programs[i].pid, name);
    }
    int r = trace_chrome_close(t->chrome, &left_out, &e);
    t->chrome = NULL;
    if (r < 0)
        return cli_report(t->look.cli, NULL, "%s", e.text);
    if (left_out > 0)
        (void)cli_report(t->look.cli, NULL,
                         "%s has the first %" PRIu64 " events, and not %" PRIu64 " later ones",
                         t->chrome_path, TRACE_CHROME_MAX, left_out);
    return CLI_OK;
}

static int tell(struct tracing *t, int64_t duration_ns)
{
    struct cli *cli = t->look.cli;
    int code = trace_report_fill(t->report, t->trace, t->names, wants, t);
    if (code == DLX_E_NO_MEMORY || t->lacks_memory)
        return cli_report(cli, NULL, "out of memory");
    if (code < 0)
        return cli_report(cli, NULL, "the kernel does not tell what it has counted: %s",
                          strerror(errno));
    if (cli->json)
        return cli_json(cli, trace_report_json(t->report, duration_ns), true);
    if (trace_report_print(t->report, stdout) < 0)
        return cli_report(cli, NULL, "out of memory");
    return cli_finish(cli, CLI_OK);
}

static int fail_empty(const struct tracing *t)
{
    if (t->n_probed == 0)
        return cli_report(t->look.cli, t->look.topic, "no program with probes was found");
    return cli_report(t->look.cli, t->look.topic, "no program published or took a message");
}

/* First says what this process may not do, or what the kernel cannot. */
static int trace_begin(struct tracing *t)
{
    struct cli_error e;
    t->files = trace_files_new();
    t->names = trace_names_new();
    t->report = trace_report_new();
    if (!t->files || !t->names || !t->report)
        return cli_report(t->look.cli, NULL, "out of memory");
    int code = trace_new(&t->trace, t->chrome_path != NULL, trace_on_event, t, &e);
    if (code == 0 && t->chrome_path)
        code = trace_chrome_open(&t->chrome, t->chrome_path, &e);
    return code < 0 ? cli_report(t->look.cli, NULL, "%s", e.text) : CLI_OK;
}

static int trace_run(struct tracing *t)
{
    struct cli *cli = t->look.cli;
    int64_t start = wait_now();
    int code = trace_look(t);
    if (code < 0)
        return cli_report_dlx(cli, t->look.topic, code);
    if (check_named(t) != CLI_OK)
        return CLI_FAILURE;
    fprintf(stderr, "tracing %u program%s; an interrupt ends the trace\n", t->n_probed,
            t->n_probed == 1 ? "" : "s");
    trace_watch_all(t, start);
    int status = tell(t, wait_now() - start);
    if (status == CLI_OK && trace_report_is_empty(t->report))
        status = fail_empty(t);
    if (t->chrome && end_chrome(t) != CLI_OK)
        status = CLI_FAILURE;
    return status == CLI_OK && wait_signal() ? cli_signal_status(t->duration_ns == 0) : status;
}

int cmd_trace(struct cli *cli, int argc, char **argv)
{
    static const struct cli_option options[] = {
        {NULL, 0, "TOPIC|PATTERN", CLI_TO(struct tracing, look.topic), NULL},
        {"pid", 'p', "PID", CLI_TO(struct tracing, pids),
         "Look at this program, too, also if another user can change its files"},
        {"chrome", 'c', "FILE", CLI_TO(struct tracing, chrome_path),
         "Write each message into FILE, for Perfetto and chrome://tracing"},
        {"duration", 'd', "TIME", CLI_IN(struct tracing, duration_ns, 1, 0), "End after this time"},
        {0},
    };
    static const struct cli_line line = {
        .options = options,
        .check = trace_check,
        .doc =
            "Look into running programs, without restarting them: how long messages are on the way "
            "from a publish to a take, and held until their release; who wakes whom; and which "
            "programs end while they hold messages, each as it happens. The summary comes at the "
            "end.\vThe kernel counts at the probes of libdlx in the programs that are connected to "
            "the daemon, also those that come later. This needs CAP_BPF, CAP_PERFMON and "
            "CAP_SYS_PTRACE, which root has; dlpackd needs nothing. The command reads a file of a "
            "program if root and this user alone can change it; --pid, which may be given several "
            "times, names programs whose files it reads anyway. While a trace runs, each message "
            "costs its programs some tens of microseconds. --json prints an object at the "
            "end. " CLI_PATTERN_HELP,
    };
    struct tracing t = {.look = {.cli = cli}};
    int status = CLI_FAILURE;

    if (cli_parse(cli, &line, argc, argv, &t) != CLI_OK)
        return CLI_FAILURE;
    if (trace_begin(&t) == CLI_OK && cli_connect(cli) == 0 && trace_check_scope(&t) == CLI_OK) {
        wait_catch_signals();
        status = trace_run(&t);
    }
    if (t.chrome)
        (void)end_chrome(&t);
    trace_free(t.trace);
    trace_files_free(t.files);
    trace_names_free(t.names);
    trace_report_free(t.report);
    look_clear(&t.look);
    free(t.programs);
    return status;
}
