/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/child.h"
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>

#define LOOK_MS 1

static bool is_ours_only(const char *variable)
{
    static const char *const names[] = {"NOTIFY_SOCKET=", "WATCHDOG_", "LISTEN_", "FDSTORE="};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(names); i++)
        if (strncmp(variable, names[i], strlen(names[i])) == 0)
            return true;
    return false;
}

char **dlxd_child_environment(void)
{
    size_t n = 0, n_kept = 0;
    while (environ && environ[n])
        n++;
    char **kept = calloc(n + 1, sizeof *kept);
    if (!kept)
        return NULL;
    for (size_t i = 0; i < n; i++)
        if (!is_ours_only(environ[i]))
            kept[n_kept++] = environ[i];
    return kept;
}

/* Resets the signals to the state that a program expects at its start. */
static void reset_signals(posix_spawnattr_t *attributes)
{
    sigset_t all, none;
    (void)sigfillset(&all);
    (void)sigemptyset(&none);
    (void)posix_spawnattr_setsigdefault(attributes, &all);
    (void)posix_spawnattr_setsigmask(attributes, &none);
    (void)posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
}

static int child_await(pid_t pid, uint64_t patience_ns)
{
    int status = 0;
    const uint64_t deadline = dlx__now_ns() + patience_ns;
    pid_t ended;
    while ((ended = waitpid(pid, &status, WNOHANG)) == 0 && dlx__now_ns() < deadline)
        (void)poll(NULL, 0, LOOK_MS);
    if (ended == 0) {
        (void)kill(pid, SIGKILL);
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            ;
        return DLXD_CHILD_LATE;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int dlxd_child_run(const char *program, char *const argv[], char *const environment[],
                   uint64_t patience_ns)
{
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_t actions;
    pid_t pid;
    int error = posix_spawnattr_init(&attributes);
    if (error == 0)
        error = posix_spawn_file_actions_init(&actions);
    if (error == 0) {
        reset_signals(&attributes);
        (void)posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
        (void)posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
        error = posix_spawn(&pid, program, &actions, &attributes, argv, environment);
        (void)posix_spawn_file_actions_destroy(&actions);
        (void)posix_spawnattr_destroy(&attributes);
    }
    if (error == 0)
        return child_await(pid, patience_ns);
    errno = error;
    return DLXD_CHILD_ABSENT;
}
