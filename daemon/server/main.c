/* SPDX-License-Identifier: Apache-2.0 */
#include "common/error.h"
#include "common/memory.h"
#include "daemon/objects/client.h"
#include "daemon/persist/handover.h"
#include "daemon/persist/manager_fds.h"
#include "daemon/persist/notify.h"
#include "daemon/server/listener.h"
#include "daemon/base/log.h"
#include "daemon/server/reload.h"
#include "daemon/memory/stale_shm.h"
#include "daemon/server/server.h"
#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

/* Exported so that argp in libc sees it despite -fvisibility=hidden. */
__attribute__((visibility("default"))) const char *argp_program_version =
    "dlpackd " DLX_VERSION_STRING;

static const char doc[] =
    "Let processes of this machine exchange DLPack tensors in shared memory without copying.\v"
    "The socket is $DLX_SOCKET, else $XDG_RUNTIME_DIR/dlpackd.sock, else "
    "/run/dlpackd/dlpackd.sock. "
    "The daemon stays in the foreground; SIGTERM and SIGINT end it. "
    "Programs that find no daemon start one like this: "
    "dlpackd --socket PATH --idle-exit 10 --ready-fd 2"
    "\n\n"
    "With --memory memfd (or without) the kernel sees to it that nobody but its publisher writes "
    "to a region or changes its size; that needs Linux 5.1. --memory posix (shm_open) is for "
    "systems without, and promises less: processes of this user can reopen received memory and "
    "write to it; a hostile one can take pages away from under its readers (SIGBUS); the size of "
    "/dev/shm limits everything.";

enum {
    OPTION_IDLE_EXIT = 0x100,
    OPTION_READY_FD,
    OPTION_FD_STORE,
    OPTION_ALLOW_USER,
    OPTION_CONFIG,
    OPTION_CHECK_CONFIG,
    OPTION_CHECK_HANDOVER,
    OPTION_MEMORY_LIMIT,
};
#define IDLE_EXIT_MAX_S 1e6

static const struct argp_option options[] = {
    {"socket", 's', "PATH", 0, "listen here", 0},
    {"memory", 'm', "KIND", 0,
     "kind of shared memory: memfd or posix (default: $DLX_MEMORY, else memfd)", 0},
    {"memory-limit", OPTION_MEMORY_LIMIT, "AMOUNT", 0,
     "how much shared memory one user may have, like 8GiB or 70%; all users together may have one "
     "and a half times that (default: $DLX_MEMORY_LIMIT, else half of the memory)",
     0},
    {"foreground", 'f', NULL, 0,
     "log clients that come and go as well, without prefixes for the journal", 0},
    {"config", OPTION_CONFIG, "FILE", 0,
     "read rules and settings, dlpackd.conf(5), from here and from conf.d beside it; options win "
     "over "
     "settings; SIGHUP reads the rules again",
     0},
    {"check-config", OPTION_CHECK_CONFIG, "FILE", 0,
     "say what is wrong with these, and end: with status 0 if nothing is", 0},
    {"check-handover", OPTION_CHECK_HANDOVER, "VERSION", 0,
     "say whether this program can, with the other options, take the place of a running daemon "
     "that hands over in this version, and end: with status 0 if it can. The daemon asks this "
     "before it lets a new program take its place",
     0},
    {"allow-user", OPTION_ALLOW_USER, "USER", 0,
     "this user (a name or a uid) may do everything, as the daemon's own and root may: all of them "
     "share all topics, and read what any of them publishes; may be given more than once",
     0},
    {"idle-exit", OPTION_IDLE_EXIT, "SECONDS", 0,
     "exit with status 0 after SECONDS without a client (fractions allowed)", 0},
    {"ready-fd", OPTION_READY_FD, "FD", 0,
     "once listening, write the line READY=1 to this file descriptor and close it (0, 1 and 2 "
     "become "
     "/dev/null, so that with 2 what goes wrong before comes from the same pipe)",
     0},
    {"fd-store", OPTION_FD_STORE, "N", 0,
     "retained messages outlive the daemon: the service manager keeps at most N file descriptors "
     "for it (FileDescriptorStoreMax=; default: $FDSTORE, else 0)",
     0},
    {0},
};

struct arguments {
    const char *socket;
    const struct dlx_memory *memory;
    uint64_t memory_limit; /* 0: not set */
    bool foreground;
    uint64_t idle_ms;            /* 0: never */
    const char *ready;           /* NULL: not set */
    int ready_fd;                /* -1: none */
    int32_t fd_store;            /* -1: not set */
    const char *config;          /* NULL: none */
    bool checks_config;          /* and nothing else */
    const char *checks_handover; /* likewise; NULL: no */
    uid_t *allowed;              /* by --allow-user */
    size_t n_allowed;
};

static const struct dlx_memory *find_memory(const char *name, const struct argp_state *state)
{
    const struct dlx_memory *memory = NULL;
    if (dlxd_config_parse_memory(name, &memory) < 0)
        argp_error(state, "%s", dlx__error_message());
    return memory;
}

static uint64_t parse_seconds(const char *text, struct argp_state *state)
{
    char *end;
    double seconds = strtod(text, &end);
    if (end == text || *end || !(seconds > 0) || seconds > IDLE_EXIT_MAX_S)
        argp_error(state, "--idle-exit %s: must be more than 0 and at most %.0f seconds", text,
                   IDLE_EXIT_MAX_S);
    uint64_t ms = (uint64_t)(seconds * 1e3);
    return ms > 0 ? ms : 1;
}

static int parse_fd(const char *text, struct argp_state *state)
{
    char *end;
    long fd = strtol(text, &end, 10);
    if (end == text || *end || fd < 0 || fd > INT_MAX || fcntl((int)fd, F_GETFD) < 0)
        argp_error(state, "--ready-fd %s: no open file descriptor", text);
    return (int)fd;
}

static int32_t parse_count(const char *text, const char *what, const struct argp_state *state)
{
    int32_t n = 0;
    if (dlxd_config_parse_count(text, &n) < 0)
        argp_error(state, "%s: %s", what, dlx__error_message());
    return n;
}

/* `what` is the long name of an option or the name of an environment variable. */
static uint64_t parse_memory_limit(const char *text, const char *what,
                                   const struct argp_state *state)
{
    uint64_t bytes = 0;
    if (dlxd_config_parse_memory_limit(text, &bytes) < 0)
        argp_error(state, "%s: %s", what, dlx__error_message());
    return bytes;
}

static error_t allow(struct arguments *arguments, const char *text, const struct argp_state *state)
{
    uid_t *more = reallocarray(arguments->allowed, arguments->n_allowed + 1, sizeof *more);
    if (!more)
        return ENOMEM;
    arguments->allowed = more;
    if (dlxd_config_parse_user(text, &more[arguments->n_allowed]) < 0)
        argp_error(state, "--allow-user %s: %s", text, dlx__error_message());
    arguments->n_allowed++;
    return 0;
}

static error_t main_parse(int key, char *argument, struct argp_state *state)
{
    struct arguments *arguments = state->input;
    const char *name;
    switch (key) {
    case ARGP_KEY_END:
        name = getenv("FDSTORE"); /* systemd 254 */
        if (arguments->fd_store < 0 && name && *name)
            arguments->fd_store = parse_count(name, "FDSTORE", state);
        name = getenv("DLX_MEMORY");
        if (!arguments->memory && name && *name)
            arguments->memory = find_memory(name, state);
        name = getenv("DLX_MEMORY_LIMIT");
        if (arguments->memory_limit == 0 && name && *name)
            arguments->memory_limit = parse_memory_limit(name, "DLX_MEMORY_LIMIT", state);
        /* The former daemon in this process has reported readiness and closed the descriptor. */
        if (arguments->ready && !arguments->checks_handover && !getenv(DLXD_HANDOVER_VARIABLE))
            arguments->ready_fd = parse_fd(arguments->ready, state);
        return 0;
    case OPTION_CHECK_CONFIG:
        arguments->checks_config = true;
        arguments->config = argument;
        return 0;
    case OPTION_CONFIG:
        arguments->config = argument;
        return 0;
    case 'm':
        arguments->memory = find_memory(argument, state);
        return 0;
    case OPTION_MEMORY_LIMIT:
        arguments->memory_limit = parse_memory_limit(argument, "--memory-limit", state);
        return 0;
    case 's':
        arguments->socket = argument;
        return 0;
    case 'f':
        arguments->foreground = true;
        return 0;
    case OPTION_IDLE_EXIT:
        arguments->idle_ms = parse_seconds(argument, state);
        return 0;
    case OPTION_ALLOW_USER:
        return allow(arguments, argument, state);
    case OPTION_FD_STORE:
        arguments->fd_store = parse_count(argument, "--fd-store", state);
        return 0;
    case OPTION_READY_FD:
        arguments->ready = argument;
        return 0;
    case OPTION_CHECK_HANDOVER:
        arguments->checks_handover = argument;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void raise_limit(__rlimit_resource_t resource)
{
    struct rlimit limit;
    if (getrlimit(resource, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(resource, &limit);
    }
}

/*
 * Links cost fds, and the daemon does not use select(), so the soft limit has no purpose.
 * RLIMIT_FSIZE limits the size of a region. A private daemon inherits it from the process that
 * started it, and it would apply to all clients: the daemon removes it if it may
 * (CAP_SYS_RESOURCE), and otherwise raises it.
 */
static void raise_limits(void)
{
    const struct rlimit unlimited = {RLIM_INFINITY, RLIM_INFINITY};
    raise_limit(RLIMIT_NOFILE);
    if (setrlimit(RLIMIT_FSIZE, &unlimited) < 0)
        raise_limit(RLIMIT_FSIZE);
}

/* Enough for a few hundred links. */
#define FEW_FILES 1024U

static void warn_of_few_files(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < FEW_FILES)
        dlxd_log(DLXD_LOG_WARNING,
                 "at most %u file descriptors (RLIMIT_NOFILE): that is enough for few clients; "
                 "raise it by LimitNOFILE= of the unit, or ulimit -n",
                 (unsigned)limit.rlim_cur);
}

/* The reader may have gone, which is no reason to end. */
static void tell_ready(int fd)
{
    static const char line[] = "READY=1\n";
    if (fd < 0)
        return;
    while (write(fd, line, sizeof line - 1) < 0 && errno == EINTR)
        ;
    if (fd > STDERR_FILENO) {
        dlx__close(fd);
        return;
    }
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0 || dup2(null, fd) < 0)
        dlx__close(fd);
    dlx__close(null);
}

/* A closed standard descriptor would be the number of the next file or socket, which would then get
 * what is printed. Its replacement fails with EBADF when used. */
static bool fill_standard_fds(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 &&
            open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd)
            return false;
    return true;
}

static int main_fail(void)
{
    dlxd_log(DLXD_LOG_ERROR, "%s", dlx__error_message());
    return EXIT_FAILURE;
}

/* ---- the configuration --------------------------------------------------------------------- */

/* Options override settings. */
static void use_settings(struct arguments *arguments, const struct dlxd_config *config)
{
    if (!arguments->socket)
        arguments->socket = config->socket;
    if (!arguments->memory)
        arguments->memory = config->memory ? config->memory : &dlx__memory_memfd;
    if (arguments->fd_store < 0)
        arguments->fd_store = DLX_MAX(config->fd_store, 0);
}

/* ---- sockets ------------------------------------------------------------------------------- */

/* The socket was passed to this process or is to be made. */
static int take_socket(struct dlxd_manager_fds *manager_fds, const char *name,
                       struct dlxd_listen *how, struct dlxd_listen_lock *lock)
{
    int r = dlxd_manager_fds_take_listen_fd(manager_fds, name, &how->take_fd);
    if (r < 0 || how->take_fd < 0)
        return r;
    how->take_lock_fd =
        dlxd_manager_fds_take_lock(manager_fds, name ? name : DLXD_SOCKET_MAIN, lock);
    how->borrow_lock = how->take_lock_fd < 0 ? NULL : lock;
    return 0;
}

/* Makes the main socket. If the configuration has no other socket, the main one is the socket that
 * the service manager passed, whatever its name. */
static int start_server(struct dlxd_server **ret, const struct arguments *arguments,
                        const struct dlxd_config *config, struct dlxd_manager_fds *manager_fds)
{
    const struct dlxd_config_socket *section = dlxd_config_find_socket(config, DLXD_SOCKET_MAIN);
    struct dlxd_listen how = {.path = arguments->socket, .take_fd = -1};
    struct dlxd_listen_lock lock;
    /* Each socket that is handed over has its own name. */
    bool is_only = config->n_sockets == (section ? 1 : 0) && !manager_fds->is_handed_over;
    if (section) {
        how.mode = section->mode;
        how.has_group = section->has_group;
        how.gid = section->gid;
    }
    int r = take_socket(manager_fds, is_only ? NULL : DLXD_SOCKET_MAIN, &how, &lock);
    return r < 0 ? r : dlxd_server_new(ret, &how, arguments->memory);
}

static int listen_on(struct dlxd_server *server, const struct dlxd_config_socket *socket,
                     struct dlxd_manager_fds *manager_fds)
{
    struct dlxd_listen how = {.name = socket->name,
                              .path = socket->path,
                              .take_fd = -1,
                              .mode = socket->mode,
                              .has_group = socket->has_group,
                              .gid = socket->gid};
    struct dlxd_listen_lock lock;
    int r = take_socket(manager_fds, socket->name, &how, &lock);
    if (r == 0 && how.take_fd < 0 && !how.path)
        r = dlx__fail(DLX_E_INVALID, "no path, and the service manager passed no socket %s",
                      socket->name);
    if (r == 0)
        r = dlxd_server_listen(server, &how);
    return r < 0 ? dlx__fail_prefix(r, "%s: socket %s", socket->place, socket->name) : 0;
}

/* The configuration does not have this socket any more. Its file is removed if the former daemon
 * made it. */
static int let_go_of(struct dlxd_manager_fds *manager_fds, const char *name)
{
    struct dlxd_listen how = {.name = name, .take_fd = -1};
    struct dlxd_listen_lock lock;
    struct dlxd_listener listener;
    int r = take_socket(manager_fds, name, &how, &lock);
    if (r == 0)
        r = dlxd_listener_init(&listener, &how);
    if (r < 0)
        return dlx__fail_prefix(r, "socket %s", name);
    dlxd_log(DLXD_LOG_WARNING, "nobody listens on %s any more: there is no [socket %s]",
             listener.at.path, name);
    dlxd_listener_deinit(&listener);
    return 0;
}

/* A file that cannot be removed is no reason to end. */
static void let_go_of_the_rest(struct dlxd_manager_fds *manager_fds)
{
    const char *name;
    while ((name = dlxd_manager_fds_dropped_listen_fd(manager_fds)))
        if (let_go_of(manager_fds, name) < 0) {
            dlxd_log(DLXD_LOG_WARNING, "%s", dlx__error_message());
            return;
        }
}

/* Makes the other sockets. */
static int listen_on_all(struct dlxd_server *server, const struct dlxd_config *config,
                         struct dlxd_manager_fds *manager_fds)
{
    int r = 0;
    for (size_t i = 0; i < config->n_sockets && r == 0; i++)
        if (!dlxd_socket_is_main(config->sockets[i].name))
            r = listen_on(server, &config->sockets[i], manager_fds);
    if (r == 0)
        let_go_of_the_rest(manager_fds);
    return r < 0 ? r : dlxd_manager_fds_check_listen_fds(manager_fds);
}

/* Sets rules, quotas and further sockets. */
static int configure(struct dlxd_server *server, const struct dlxd_config *config,
                     struct dlxd_manager_fds *manager_fds)
{
    int r = listen_on_all(server, config, manager_fds);
    if (r == 0)
        dlxd_server_set_quotas(server, &config->quotas, config->shared_bytes);
    if (r == 0 && config->rules.n > 0)
        r = dlxd_server_set_rules(server, &config->rules);
    return r;
}

/* Copies the arguments, whose order argp may change. Returns NULL if out of memory. */
static char **copy_arguments(int argc, char **argv)
{
    char **copy = calloc((size_t)argc + 1, sizeof *copy);
    if (copy && argc > 0)
        memcpy(copy, argv, (size_t)argc * sizeof *copy);
    return copy;
}

static void arguments_deinit(struct arguments *arguments)
{
    free(arguments->allowed);
}

static volatile sig_atomic_t hung_up;

static void note_hangup(int signum)
{
    (void)signum;
    hung_up = 1;
}

/* SIGHUP may come before the daemon can handle it, and never ends it. */
static void handle_signals(struct dlxd_server *server, struct dlxd_reload *reload,
                           char *const *argv)
{
    if (argv)
        dlxd_server_set_arguments(server, argv);
    dlxd_server_on_hangup(server, reload->source.path ? dlxd_reload_begin : NULL, reload);
    if (hung_up)
        (void)raise(SIGHUP);
}

int main(int argc, char **argv)
{
    static const struct argp argp = {options, main_parse, NULL, doc, NULL, NULL, NULL};
    dlx_cleanup(dlx__freep) char **arguments_again = copy_arguments(argc, argv);
    dlx_cleanup(arguments_deinit) struct arguments arguments = {.ready_fd = -1, .fd_store = -1};
    dlx_cleanup(dlxd_reload_deinit) struct dlxd_reload reload = {.server = NULL};
    dlx_cleanup(dlx__freep) char *default_path = NULL;
    dlx_cleanup(dlxd_manager_fds_deinit) struct dlxd_manager_fds manager_fds = {.n = 0};

    /* A lost reader or a file at its size limit fails one call; the daemon continues. */
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGXFSZ, SIG_IGN);
    (void)signal(SIGHUP, note_hangup);
    argp_err_exit_status = 2;
    int error = argp_parse(&argp, argc, argv, 0, NULL, &arguments);
    if (error != 0) {
        (void)fprintf(stderr, "dlpackd: %s\n", strerror(error));
        return EXIT_FAILURE;
    }
    if (!fill_standard_fds())
        return EXIT_FAILURE; /* there is nowhere to report it */
    dlxd_log_init(arguments.foreground ? DLXD_LOG_INFO : DLXD_LOG_NOTICE,
                  !arguments.foreground && dlxd_log_is_journal() ? DLXD_LOG_JOURNAL : NULL);
    reload.source = (struct dlxd_config_source){.path = arguments.config,
                                                .memory_limit = arguments.memory_limit,
                                                .allowed = arguments.allowed,
                                                .n_allowed = arguments.n_allowed};
    if (dlxd_reload_read(&reload.source, &reload.config) < 0)
        return main_fail();
    if (arguments.checks_config) {
        (void)printf("%s: %zu rules\n", arguments.config, reload.config.rules.n);
        return EXIT_SUCCESS;
    }
    if (arguments.checks_handover)
        return dlxd_handover_check_version(arguments.checks_handover) < 0 ? main_fail()
                                                                          : EXIT_SUCCESS;
    use_settings(&arguments, &reload.config);
    if (dlxd_manager_fds_init(&manager_fds) < 0)
        return main_fail();
    if (!arguments.socket) {
        default_path = dlxd_listener_default_path();
        arguments.socket = default_path;
    }
    if (!arguments.socket)
        return main_fail();
    raise_limits();
    warn_of_few_files();
    if (dlx__memory_supported(arguments.memory) < 0 || dlxd_client_supported() < 0)
        return main_fail();
    if (arguments.memory == &dlx__memory_posix)
        dlxd_stale_shm_clean(DLXD_STALE_SHM_DIR);
    struct dlxd_server *server;
    if (start_server(&server, &arguments, &reload.config, &manager_fds) < 0)
        return main_fail();
    reload.server = server;
    if (configure(server, &reload.config, &manager_fds) < 0) {
        (void)main_fail();
        reload.server = NULL;
        dlxd_server_free(server);
        return EXIT_FAILURE;
    }
    handle_signals(server, &reload, arguments_again);
    dlxd_server_set_idle_exit(server, arguments.idle_ms);
    if (dlxd_server_keep(server, (uint32_t)arguments.fd_store, &manager_fds) < 0)
        dlxd_log(DLXD_LOG_WARNING, "retained messages end with this daemon: %s",
                 dlx__error_message());
    dlxd_manager_fds_deinit(&manager_fds);
    tell_ready(arguments.ready_fd);
    int r = dlxd_server_run(server);
    reload.server = NULL;
    dlxd_server_free(server);
    dlxd_log_flush();
    return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
