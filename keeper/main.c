/* SPDX-License-Identifier: Apache-2.0 */
#include "common/error.h"
#include "common/listen.h"
#include "common/syscalls.h"
#include "keeper/keeper.h"
#include <argp.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>

/* Exported so that argp in libc sees it despite -fvisibility=hidden. */
__attribute__((visibility("default"))) const char *argp_program_version =
    "dlpackd-keeper " DLX_VERSION_STRING;

static const char doc[] =
    "Make GPU memory for publishers of dlpackd and keep it, so that it reaches those who subscribe "
    "later, also when its publisher or dlpackd has ended.\v"
    "dlpackd starts this program when a publisher first needs such memory, unless one listens on "
    "its socket: there is no need to start it by hand. It loads the driver of a GPU then, and has "
    "no context. It ends by itself, SECONDS after the last dlpackd, when no memory is left.";

enum { OPTION_GRACE = 0x100, OPTION_DETACH };
#define GRACE_MAX_S 1e6
#define BACKLOG     16
#define FIRST_FD    3 /* of the service manager */

static const struct argp_option options[] = {
    {"socket", 's', "PATH", 0,
     "listen here: the socket of dlpackd, followed by .keeper (not with a socket of the service "
     "manager)",
     0},
    {"grace", OPTION_GRACE, "SECONDS", 0,
     "keep memory of publishers that have ended for so long without a dlpackd, and end so long "
     "after the last one (default: $DLX_KEEPER_GRACE, else 60; fractions allowed)",
     0},
    {"detach", OPTION_DETACH, NULL, 0, "listen, then go on in the background", 0},
    {0},
};

struct arguments {
    const char *socket;
    uint64_t grace_ns; /* 0: the default */
    bool detach;
};

static uint64_t parse_seconds(const char *text, struct argp_state *state)
{
    char *end;
    double seconds = strtod(text, &end);
    if (end == text || *end || !(seconds > 0) || seconds > GRACE_MAX_S)
        argp_error(state, "--grace %s: must be more than 0 and at most %.0f seconds", text,
                   GRACE_MAX_S);
    uint64_t ns = (uint64_t)(seconds * 1e9);
    return ns > 0 ? ns : 1;
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct arguments *arguments = state->input;
    const char *grace = getenv("DLX_KEEPER_GRACE");
    switch (key) {
    case ARGP_KEY_INIT:
        if (grace && *grace)
            arguments->grace_ns = parse_seconds(grace, state);
        return 0;
    case 's':
        arguments->socket = argument;
        return 0;
    case OPTION_GRACE:
        arguments->grace_ns = parse_seconds(argument, state);
        return 0;
    case OPTION_DETACH:
        arguments->detach = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static int fail(void)
{
    (void)fprintf(stderr, "dlpackd-keeper: %s\n", dlx__error_message());
    return EXIT_FAILURE;
}

static struct dlx_listen place = DLX_LISTEN_NONE();

/* Whoever started this program does not wait, so nothing of theirs may stay open. */
static bool detach(void)
{
    pid_t pid = fork();
    if (pid > 0)
        _exit(EXIT_SUCCESS);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (pid < 0 || null < 0)
        return false;
    for (int fd = 0; fd <= 2; fd++)
        (void)dup2(null, fd);
    dlx__close(null);
    return setsid() >= 0 && chdir("/") == 0 && (place.lock_fd < 0 || dlx__listen_sign(&place) == 0);
}

/* The handler runs in the loop or before it, and the calls that it makes are safe in a handler. */
static void on_signal(int signum)
{
    (void)signum;
    /* NOLINTNEXTLINE(bugprone-signal-handler): stat, fstat and unlink, and nothing that waits */
    dlx__listen_unlink(&place);
    _exit(EXIT_SUCCESS); /* its memory goes with it, but for what others have open */
}

static void keeper_tell(const char *text)
{
    (void)fprintf(stderr, "dlpackd-keeper: %s\n", text);
}

static void raise_limit(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = DLX_MIN(files.rlim_max, (rlim_t)DLXK_FILES_MAX);
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
}

/* Takes the service manager's socket: sd_listen_fds(3). Returns 1, or 0 if there is none. */
static int inherit(void)
{
    const char *n = getenv("LISTEN_FDS"), *pid = getenv("LISTEN_PID");
    int is_listener = 0;
    socklen_t size = sizeof is_listener;
    if (!n || !pid || strtol(pid, NULL, 10) != (long)getpid())
        return 0;
    if (strtol(n, NULL, 10) != 1 ||
        getsockopt(FIRST_FD, SOL_SOCKET, SO_ACCEPTCONN, &is_listener, &size) < 0 || !is_listener)
        return dlx__fail(DLX_E_INVALID, "LISTEN_FDS=%s: must be one socket to listen on", n);
    (void)fcntl(FIRST_FD, F_SETFD, FD_CLOEXEC);
    (void)fcntl(FIRST_FD, F_SETFL, O_NONBLOCK);
    place.fd = FIRST_FD;
    return 1;
}

/* Returns 0; 1 if another keeper serves there; or an error. */
static int listen_at(const char *path)
{
    int r = dlx__listen_start(&place, path);
    if (r == DLX_E_IN_USE && place.path && dlx__listen_is_served(&place))
        r = 1;
    if (r != 0)
        dlx__listen_deinit(&place);
    return r;
}

static int make_listener(const struct arguments *arguments)
{
    int r = inherit();
    if (r != 0)
        return r < 0 ? r : 0;
    (void)syscall(SYS_close_range, 3U, ~0U, 0U); /* fds of the process that started it */
    if (!arguments->socket)
        return dlx__fail(DLX_E_INVALID,
                         "no --socket PATH, and no socket of a service manager: dlpackd starts "
                         "this program when it needs it");
    place = DLX_LISTEN_NONE(.program = "dlpackd-keeper", .tell = keeper_tell, .backlog = BACKLOG,
                            .mode = 0600, .takes_fds = true);
    return listen_at(arguments->socket);
}

int main(int argc, char **argv)
{
    static const struct argp argp = {options, parse, NULL, doc, NULL, NULL, NULL};
    struct arguments arguments = {.socket = NULL};

    (void)signal(SIGPIPE, SIG_IGN);
    argp_err_exit_status = 2;
    int error = argp_parse(&argp, argc, argv, 0, NULL, &arguments);
    if (error != 0)
        return EXIT_FAILURE;
    int r = make_listener(&arguments);
    if (r != 0)
        return r < 0 ? fail() : EXIT_SUCCESS;
    (void)signal(SIGTERM, on_signal);
    (void)signal(SIGINT, on_signal);
    raise_limit();
    const struct dlxk_options keeper = {.grace_ns = arguments.grace_ns,
                                        .place = place.path ? &place : NULL};
    if (arguments.detach && !detach())
        return EXIT_FAILURE;
    r = dlxk_run(place.fd, &keeper);
    dlx__listen_deinit(&place);
    return r < 0 ? fail() : EXIT_SUCCESS;
}
