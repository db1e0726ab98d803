/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/gpu/start.h"
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define PROGRAM     "dlpackd-keeper"
#define PATIENCE_NS UINT64_C(4000000000)
#define LOOK_MS     1

_Static_assert(DLXD_GPU_PROGRAM_SIZE >= PATH_MAX, "realpath() writes PATH_MAX bytes");

static bool is_program(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

static int find_program(char ret[DLXD_GPU_PROGRAM_SIZE])
{
    static const char *const folders[] = {".", "../libexec"};
    const char *given = getenv("DLX_KEEPER");
    char self[PATH_MAX];
    if (given && *given) {
        if (!realpath(given, ret) || !is_program(ret))
            return dlx__fail(DLX_E_NO_DAEMON, "the GPU keeper: DLX_KEEPER=%.300s is not a program",
                             given);
        return 0;
    }
    if (!realpath("/proc/self/exe", self))
        return dlx__fail_errno("the GPU keeper: /proc/self/exe");
    const char *folder = dirname(self);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(folders); i++) {
        int n = snprintf(ret, DLXD_GPU_PROGRAM_SIZE, "%s/%s/" PROGRAM, folder, folders[i]);
        if (n < DLXD_GPU_PROGRAM_SIZE && is_program(ret))
            return 0;
    }
    return dlx__fail(DLX_E_NO_DAEMON,
                     "there is no program " PROGRAM " in %.300s, or in ../libexec from there: "
                     "install it, or set DLX_KEEPER",
                     folder);
}

/* What the service manager told this process about itself. */
static bool is_ours_only(const char *variable)
{
    static const char *const names[] = {"NOTIFY_SOCKET=", "WATCHDOG_", "LISTEN_", "FDSTORE="};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(names); i++)
        if (strncmp(variable, names[i], strlen(names[i])) == 0)
            return true;
    return false;
}

int dlxd_gpu_start_init(struct dlxd_gpu_start *start, const char *socket)
{
    size_t n = 0, n_kept = 0;
    *start = (struct dlxd_gpu_start){.code = DLX_E_SYSTEM};
    (void)snprintf(start->socket, sizeof start->socket, "%s", socket);
    while (environ && environ[n])
        n++;
    start->environment = calloc(n + 1, sizeof *start->environment);
    if (!start->environment)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for the environment of the GPU keeper");
    for (size_t i = 0; i < n; i++)
        if (!is_ours_only(environ[i]))
            start->environment[n_kept++] = environ[i];
    return find_program(start->program);
}

void dlxd_gpu_start_deinit(struct dlxd_gpu_start *start)
{
    free(start->environment);
    start->environment = NULL;
}

/* As a program finds its signals that nobody has prepared. */
static void reset_signals(posix_spawnattr_t *attributes)
{
    sigset_t all, none;
    (void)sigfillset(&all);
    (void)sigemptyset(&none);
    (void)posix_spawnattr_setsigdefault(attributes, &all);
    (void)posix_spawnattr_setsigmask(attributes, &none);
    (void)posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
}

static void fail(struct dlxd_gpu_start *start, int code, const char *what)
{
    start->code = code;
    (void)snprintf(start->text, sizeof start->text, "the GPU keeper, %.300s, %s", start->program,
                   what);
}

/* It listens when the process that was started has ended. */
static void await(struct dlxd_gpu_start *start, pid_t pid)
{
    char what[64];
    int status = 0;
    const uint64_t deadline = dlx__now_ns() + PATIENCE_NS;
    pid_t ended;
    while ((ended = waitpid(pid, &status, WNOHANG)) == 0 && dlx__now_ns() < deadline)
        (void)poll(NULL, 0, LOOK_MS);
    if (ended == 0) {
        (void)kill(pid, SIGKILL);
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            ;
        fail(start, DLX_E_TIMEOUT, "was not ready in time and was ended");
    } else if (status != 0) {
        (void)snprintf(what, sizeof what, "ended with status %d", WEXITSTATUS(status));
        fail(start, DLX_E_NO_DAEMON, what);
    } else {
        start->code = 0;
    }
}

void dlxd_gpu_start_run(struct dlxd_gpu_start *start)
{
    char *const argv[] = {(char[]){PROGRAM}, (char[]){"--detach"}, (char[]){"--socket"},
                          start->socket, NULL};
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_t actions;
    pid_t pid;
    int error = posix_spawnattr_init(&attributes);
    if (error == 0)
        error = posix_spawn_file_actions_init(&actions);
    if (error != 0) {
        fail(start, DLX_E_NO_MEMORY, strerror(error));
        return;
    }
    reset_signals(&attributes);
    (void)posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    (void)posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    error = posix_spawn(&pid, start->program, &actions, &attributes, argv, start->environment);
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)posix_spawnattr_destroy(&attributes);
    if (error != 0)
        fail(start, dlx__error_from_errno(error), strerror(error));
    else
        await(start, pid);
}
