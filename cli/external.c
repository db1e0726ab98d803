/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/external.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const struct cli_external cli_externals[] = {
    {"record", "dlx-record", "record messages in an MCAP file"},
    {"play", "dlx-record", "publish the messages of an MCAP file"},
    {"bridge", "dlx-bridge", "exchange messages with other machines, by zenoh"},
};
const size_t cli_n_externals = sizeof cli_externals / sizeof cli_externals[0];

static const char *const prefixes[] = {"dlxctl-", "dlx-"};

const struct cli_external *cli_external_known(const char *name)
{
    for (size_t i = 0; i < cli_n_externals; i++)
        if (strcmp(cli_externals[i].name, name) == 0)
            return &cli_externals[i];
    return NULL;
}

/* A name is no path: "../x" is none. */
static bool is_name(const char *word)
{
    return *word && word[0] != '-' &&
           word[strspn(word, "abcdefghijklmnopqrstuvwxyz0123456789-")] == '\0';
}

/* The program in the folder, whose name has `size` bytes. An empty name is the current folder, as
 * in $PATH. */
static char *find_in(const char *folder, size_t size, const char *below, const char *name)
{
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
        struct stat st;
        char *path;
        if (asprintf(&path, "%.*s%s/%s%s", size ? (int)size : 1, size ? folder : ".", below,
                     prefixes[i], name) < 0)
            return NULL;
        if (stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0)
            return path;
        free(path);
    }
    return NULL;
}

static char *find_beside(const char *name)
{
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0)
        return NULL;
    self[n] = '\0';
    char *slash = strrchr(self, '/');
    if (!slash)
        return NULL;
    size_t size = (size_t)(slash - self);
    char *found = find_in(self, size, "", name);
    return found ? found : find_in(self, size, "/../libexec/dlpackd", name);
}

char *cli_external_find(const char *name)
{
    if (!is_name(name))
        return NULL;
    char *found = find_beside(name);
    const char *at = getenv("PATH");
    while (!found && at) {
        size_t size = strcspn(at, ":");
        found = find_in(at, size, "", name);
        at = at[size] ? at + size + 1 : NULL;
    }
    return found;
}

/* --json and --wait-daemon go on as options, --socket as $DLX_SOCKET. */
static char **external_arguments(const struct cli *cli, const char *path, char *const *words,
                                 char *wait, size_t wait_size)
{
    size_t n_words = 0, n = 0;
    while (words[n_words])
        n_words++;
    char **argv = calloc(n_words + 3, sizeof *argv);
    if (!argv)
        return NULL;
    argv[n++] = (char *)(uintptr_t)path;
    if (cli->json)
        argv[n++] = (char *)(uintptr_t) "--json";
    if (cli->wait_daemon_ns > 0)
        (void)snprintf(wait, wait_size, "--wait-daemon=%" PRId64 "ns", cli->wait_daemon_ns);
    else
        (void)snprintf(wait, wait_size, "--wait-daemon");
    if (cli->wait_daemon_ns != 0)
        argv[n++] = wait;
    for (size_t i = 1; i < n_words; i++)
        argv[n++] = words[i];
    return argv;
}

int cli_external_run(const struct cli *cli, const char *path, char *const *words)
{
    char wait[64];
    char **argv = external_arguments(cli, path, words, wait, sizeof wait);
    if (!argv || (cli->socket && setenv("DLX_SOCKET", cli->socket, 1) < 0)) {
        free(argv);
        return cli_report(cli, NULL, "out of memory");
    }
    (void)signal(SIGXFSZ, SIG_DFL);
    execv(path, argv);
    int failure = errno;
    free(argv);
    return cli_report(cli, path, "cannot be run: %s", strerror(failure));
}
