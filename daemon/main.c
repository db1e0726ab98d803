/* SPDX-License-Identifier: Apache-2.0 */
#include "common/error.h"
#include "common/memory.h"
#include "daemon/client.h"
#include "daemon/listener.h"
#include "daemon/log.h"
#include "daemon/server.h"
#include <argp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

/* Exported, so that argp in libc sees it in spite of -fvisibility=hidden. */
__attribute__((visibility("default"))) const char *argp_program_version =
    "dlpackd " DLX_VERSION_STRING;

static const char doc[] =
    "Let processes of this machine exchange DLPack tensors in shared memory without copying.\v"
    "The socket is $DLX_SOCKET, else $XDG_RUNTIME_DIR/dlpackd.sock, else "
    "/run/dlpackd/dlpackd.sock. "
    "The daemon stays in the foreground; SIGTERM and SIGINT end it.";

static const struct argp_option options[] = {
    {"socket", 's', "PATH", 0, "listen here", 0},
    {"foreground", 'f', NULL, 0,
     "log clients that come and go as well, without prefixes for the journal", 0},
    {0},
};

struct arguments {
    const char *socket;
    bool foreground;
};

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct arguments *arguments = state->input;
    switch (key) {
    case 's':
        arguments->socket = argument;
        return 0;
    case 'f':
        arguments->foreground = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* Links cost fds; select() is not used here, so the soft limit has no purpose. */
static void raise_fd_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static int fail(void)
{
    dlxd_log(DLXD_LOG_ERROR, "%s", dlx__error_message());
    return EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    static const struct argp argp = {options, parse, NULL, doc, NULL, NULL, NULL};
    struct arguments arguments = {.socket = NULL};
    struct dlxd_server *server;
    dlx_cleanup(dlx__freep) char *default_path = NULL;

    argp_err_exit_status = 2;
    (void)argp_parse(&argp, argc, argv, 0, NULL, &arguments);
    dlxd_log_init(arguments.foreground ? DLXD_LOG_INFO : DLXD_LOG_NOTICE,
                  !arguments.foreground && getenv("JOURNAL_STREAM"));
    if (!arguments.socket) {
        default_path = dlxd_listener_default_path();
        arguments.socket = default_path;
    }
    if (!arguments.socket)
        return EXIT_FAILURE;
    (void)signal(SIGPIPE, SIG_IGN);
    raise_fd_limit();
    if (dlx__memfd_supported() < 0 || dlxd_client_supported() < 0)
        return fail();
    if (dlxd_server_new(&server, arguments.socket) < 0)
        return fail();
    dlxd_server_run(server);
    dlxd_server_free(server);
    return EXIT_SUCCESS;
}
